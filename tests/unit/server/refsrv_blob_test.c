/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, blobs: manifests come and go in parts, under the key that is their hash, and have a room
 * of their own.
 */
#include "server/core/model/blob_hash.h"
#include "tests/unit/server/refsrv_fixture.h"

TestSuite(refsrv_blob, .init = setup_empty, .fini = teardown);

static int
put_part(uint32_t agent, struct th_hash key, const uint8_t *data, uint64_t total, uint64_t offset,
	size_t bytes)
{
	struct ctl_request request = {.kind = CTL_MANIFEST_PUT};
	request.u.manifest_put = (struct ctl_blob_part){.key = key,
		.total_bytes = total,
		.offset = offset,
		.data = data + offset,
		.data_bytes = bytes};
	return world_request(&w, agent, &request);
}

static int
get_part(uint32_t agent, struct th_hash key, uint64_t offset)
{
	struct ctl_request request = {.kind = CTL_MANIFEST_GET, .u.manifest_get = {key, offset}};
	return world_request(&w, agent, &request);
}

Test(refsrv_blob, in_parts__comes_back_in_parts)
{
	static uint8_t data[TH_PART_BYTES_MAX + 100];
	new_agents(1);
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 7);
	struct th_hash key = hash_bytes(data, sizeof(data));
	cr_assert_eq(put_part(a, key, data, sizeof(data), 0, 1000), 0);
	cr_assert_eq(get_part(a, key, 0), TH_E_NOT_AVAILABLE);
	cr_assert_eq(put_part(a, key, data, sizeof(data), 2000, 10), TH_E_INVALID);
	cr_assert_eq(put_part(a, key, data, sizeof(data), 500, 500), 0); /* again: harmless */
	cr_assert_eq(put_part(a, key, data, sizeof(data) - 1, 1000, 10), TH_E_INVALID);
	cr_assert_eq(put_part(a, key, data, sizeof(data), 1000, TH_PART_BYTES_MAX - 900), 0);
	cr_assert_eq(get_part(a, key, 0), 0);
	cr_assert_eq(w.reply.u.manifest_get.total_bytes, sizeof(data));
	cr_assert_eq(w.reply.u.manifest_get.data_bytes, TH_PART_BYTES_MAX);
	cr_assert_eq(memcmp(w.reply.u.manifest_get.data, data, TH_PART_BYTES_MAX), 0);
	cr_assert_eq(get_part(a, key, TH_PART_BYTES_MAX), 0);
	cr_assert_eq(w.reply.u.manifest_get.data_bytes, 100);
	cr_assert_eq(get_part(a, key, sizeof(data)), TH_E_INVALID);
	/* Who brings it a second time is told that all is well, whatever part it begins with. */
	cr_assert_eq(put_part(a, key, data, sizeof(data), 0, 10), 0);
}

Test(refsrv_blob, bytes_not_of_the_key__checksum_and_forgotten)
{
	new_agents(1);
	const uint8_t data[] = "some manifest";
	struct th_hash key = {.lo = 1, .hi = 2};
	cr_assert_eq(put_part(a, key, data, sizeof(data), 0, sizeof(data)), TH_E_CHECKSUM);
	cr_assert_eq(get_part(a, key, 0), TH_E_NOT_AVAILABLE);
}

Test(refsrv_blob, bad_sizes__refused)
{
	new_agents(1);
	const uint8_t data[16] = {0};
	struct th_hash key = {.lo = 1};
	cr_assert_eq(put_part(a, key, data, 0, 0, 0), TH_E_INVALID);
	cr_assert_eq(put_part(a, key, data, 8, 0, 16), TH_E_INVALID);
	cr_assert_eq(put_part(a, (struct th_hash){0}, data, 8, 0, 8), TH_E_INVALID);
	cr_assert_eq(put_part(a, key, data, TH_BLOB_BYTES_MAX + 1ull, 0, 8), TH_E_LIMIT);
	for (uint64_t i = 0; i < 16; i++)
		cr_assert_eq(put_part(a, (struct th_hash){.lo = i + 1}, data, 16, 0, 8), 0);
	cr_assert_eq(put_part(a, (struct th_hash){.lo = 99}, data, 16, 0, 8), TH_E_LIMIT);
}

Test(refsrv_blob, room_is_short__unreferenced_oldest_goes_first)
{
	struct refsrv_config config;
	world_fini(&w);
	refsrv_config_default(&config);
	config.blob_bytes_max = 200;
	world_init(&w, &config);
	new_agents(1);
	struct world_member m = world_member(&w, a, "r", 0, 1); /* its manifest: 20 bytes, in use */
	uint8_t data[80];
	struct th_hash keys[3], used = hash_bytes("manifest of layout 0", 20);
	(void)m;
	for (uint8_t i = 0; i < 3; i++) {
		memset(data, i, sizeof(data));
		cr_assert_eq(world_put(&w, a, data, sizeof(data), &keys[i]), 0);
	}
	cr_assert_eq(get_part(a, keys[0], 0), TH_E_NOT_AVAILABLE);
	cr_assert_eq(get_part(a, keys[1], 0), 0);
	cr_assert_eq(get_part(a, keys[2], 0), 0);
	cr_assert_eq(get_part(a, used, 0), 0);
	uint8_t large[190] = {1};
	cr_assert_eq(put_part(a, (struct th_hash){.lo = 5}, large, 190, 0, 190), TH_E_LIMIT);
	cr_assert(says("limit.blob_bytes"));
}

Test(refsrv_blob, agent_dies_with_a_half_upload__its_room_is_free)
{
	struct refsrv_config config;
	world_fini(&w);
	refsrv_config_default(&config);
	config.blob_bytes_max = 100;
	world_init(&w, &config);
	new_agents(2);
	uint8_t data[100] = {1};
	struct th_hash key;
	cr_assert_eq(put_part(a, (struct th_hash){.lo = 5}, data, 100, 0, 50), 0);
	cr_assert_eq(put_part(b, (struct th_hash){.lo = 6}, data, 100, 0, 50), TH_E_LIMIT);
	w.agents[a].silent = true;
	world_sleep(&w, 11 * SEC);
	cr_assert_eq(world_put(&w, b, data, 100, &key), 0);
}
