/* SPDX-License-Identifier: Apache-2.0 */
/*
 * abi_test - the layout of every public struct, in numbers: a field that moves breaks programs that
 * are built already. What comes later is added at the end, and its line here too. And callers whose
 * header is older or newer than the library.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "tests/unit/libthc/libthc_fixture.h"

#if defined(__x86_64__)

#define at(type, field, offset)                                                                    \
	_Static_assert(offsetof(struct type, field) == (offset), #type " " #field)
#define size(type, bytes) _Static_assert(sizeof(struct type) == (bytes), #type)

at(thc_tensor, name, 0);
at(thc_tensor, data, 8);
at(thc_tensor, bytes, 16);
at(thc_tensor, dtype, 24);
at(thc_tensor, device, 28);
at(thc_tensor, ndim, 32);
at(thc_tensor, local_shape, 40);
at(thc_tensor, global_shape, 104);
at(thc_tensor, offset, 168);
size(thc_tensor, 232);

at(thc_open_opts, struct_size, 0);
at(thc_open_opts, model, 8);
at(thc_open_opts, replica, 16);
at(thc_open_opts, shard, 24);
at(thc_open_opts, num_shards, 28);
at(thc_open_opts, lineage, 32);
at(thc_open_opts, retain, 40);
at(thc_open_opts, launch_id, 48);
at(thc_open_opts, agent, 56);
at(thc_open_opts, flags, 64);
size(thc_open_opts, 72);

at(thc_result, struct_size, 0);
at(thc_result, lineage, 8);
at(thc_result, version, 16);
at(thc_result, updated, 24);
at(thc_result, bytes_moved, 32);
at(thc_result, bytes_reused, 40);
at(thc_result, wait_ns, 48);
at(thc_result, transfer_ns, 56);
at(thc_result, verify_ns, 64);
at(thc_result, source, 72);
at(thc_result, transport, 328);
at(thc_result, bytes_prefetched, 360);
at(thc_result, num_sources, 368);
at(thc_result, derived, 372);
at(thc_result, reason, 376);
size(thc_result, 504);

at(thc_attribute, name, 0);
at(thc_attribute, value, 8);
at(thc_attribute, bytes, 16);
size(thc_attribute, 24);

at(thc_manifest, struct_size, 0);
at(thc_manifest, lineage, 8);
at(thc_manifest, version, 16);
at(thc_manifest, shard, 24);
at(thc_manifest, num_shards, 28);
at(thc_manifest, count, 32);
at(thc_manifest, tensor_bytes, 40);
at(thc_manifest, tensors, 48);
at(thc_manifest, num_attributes, 56);
at(thc_manifest, attribute_bytes, 64);
at(thc_manifest, attributes, 72);
size(thc_manifest, 80);

at(thc_replica_info, name, 0);
at(thc_replica_info, datacenter, 8);
at(thc_replica_info, num_shards, 16);
at(thc_replica_info, flags, 20);
at(thc_replica_info, progress, 24);
size(thc_replica_info, 32);

at(thc_version_info, lineage, 0);
at(thc_version_info, version, 8);
at(thc_version_info, retained, 16);
at(thc_version_info, num_replicas, 20);
at(thc_version_info, replicas, 24);
size(thc_version_info, 32);

at(thc_listing, struct_size, 0);
at(thc_listing, generation, 8);
at(thc_listing, num_versions, 16);
at(thc_listing, version_bytes, 24);
at(thc_listing, replica_bytes, 32);
at(thc_listing, versions, 40);
size(thc_listing, 48);

/* The numbers that programs and files have in them. */
_Static_assert(THC_E_INVALID == -5001 && THC_E_CANCELLED == -5021 && THC_E_EVICTED == -5026, "");
_Static_assert(THC_U8 == 1 && THC_BF16 == 7 && THC_F32 == 10 && THC_F6_E3M2 == 22, "");
_Static_assert(THC_SPOT == 1 && THC_REQUIRE_RDMA == 2 && THC_OFFLOAD_SEED == 4, "");
_Static_assert(THC_NO_MEMORY_FD == 8 && THC_STAGED == 16 && THC_PREFETCH == 32, "");
_Static_assert(THC_CLOSE_ABANDON == 1 && THC_ALLOC_HUGE == 1 && THC_FORCE == 1, "");
_Static_assert(THC_LIST_GROUP == 1 && THC_REPLICA_DRAINING == 8 && THC_EV_READY == 64, "");
_Static_assert(THC_EV_UPDATED == 128 && THC_EV_FOLLOW_FAILED == 256, "");
_Static_assert(THC_DIMS_MAX == 8 && THC_NAME_MAX == 255 && THC_HOST == -1, "");

#endif

TestSuite(abi, .init = setup_agent, .fini = teardown_agent, .timeout = 60);

/* A struct of a newer header: ours, and what came after it. */
struct newer {
	struct thc_open_opts opts;
	uint64_t later[3];
};

static struct newer
newer_opts(void)
{
	struct newer newer = {.opts = good_opts()};

	newer.opts.struct_size = sizeof(newer);
	newer.opts.lineage = 9;
	return newer;
}

static int
open_newer(const struct newer *newer, struct thc_shard **ret_shard)
{
	return thc_open(&newer->opts, SOON, ret_shard);
}

Test(abi, open__newer_header__nothing_unknown_set__is_accepted)
{
	struct newer newer = newer_opts();

	cr_assert_eq(open_newer(&newer, &shard), 0, "%s", thc_errmsg());
	cr_assert_eq(agent.opened.lineage, 9);
	cr_assert_eq(thc_close(shard, 0, SOON), 0);
	for (size_t i = 0; i < 3; i++) {
		newer = newer_opts();
		newer.later[i] = UINT64_C(1) << 63;
		cr_assert_eq(open_newer(&newer, &shard), THC_E_INVALID);
		cr_assert_not_null(strstr(thc_errmsg(), "newer library"), "%s", thc_errmsg());
	}
}

Test(abi, open__older_header__has_the_rest_by_default)
{
	struct newer newer = newer_opts();

	/* What lies behind the older struct is not looked at. */
	newer.opts.flags = UINT32_MAX;
	newer.opts.struct_size = offsetof(struct thc_open_opts, flags);
	cr_assert_eq(open_newer(&newer, &shard), 0, "%s", thc_errmsg());
	cr_assert_eq(agent.opened.flags, 0);
	cr_assert_eq(thc_close(shard, 0, SOON), 0);
	newer.opts.agent = (const char *)(uintptr_t)1;
	newer.opts.launch_id = newer.opts.retain = newer.opts.agent;
	newer.opts.struct_size = offsetof(struct thc_open_opts, retain);
	cr_assert_eq(setenv("THC_AGENT", agent.dir, 1), 0);
	cr_assert_eq(open_newer(&newer, &shard), 0, "%s", thc_errmsg());
	cr_assert_eq(thc_close(shard, 0, SOON), 0);
}

Test(abi, open__size_that_no_header_has__is_invalid)
{
	const size_t sizes[] = {0, 1, 8, 32, 39, 41, 68, 71, 73, 4104, SIZE_MAX, SIZE_MAX - 7};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct newer newer = newer_opts();
		newer.opts.struct_size = sizes[i];
		cr_assert_eq(open_newer(&newer, &shard), THC_E_INVALID, "%zu", sizes[i]);
		cr_assert_eq(
			strncmp(thc_errmsg(), "opts->struct_size: ", 19), 0, "%s", thc_errmsg());
	}
}

/* ---- results and tensors ------------------------------------------------------------------- */

static void
setup_open(void)
{
	setup_agent();
	const struct newer newer = newer_opts();
	cr_assert_eq(open_newer(&newer, &shard), 0, "%s", thc_errmsg());
	cr_assert_eq(thc_alloc(4096, 0, (void **)&memory), 0);
}

static void
teardown_open(void)
{
	cr_assert_eq(thc_close(shard, 0, SOON), 0, "%s", thc_errmsg());
	cr_assert_eq(thc_free(memory), 0);
	teardown_agent();
}

TestSuite(abi_open, .init = setup_open, .fini = teardown_open, .timeout = 60);

/* An element of a header with more, or with less: the first bytes of it are used. */
struct newer_tensor {
	struct thc_tensor tensor;
	uint64_t later[2];
};

static void
fill_tensors(struct newer_tensor tensors[2])
{
	memset(tensors, 0, 2 * sizeof(tensors[0]));
	for (int i = 0; i < 2; i++)
		tensors[i].tensor = (struct thc_tensor){i == 0 ? "a" : "b", memory + 64 * i, 24,
			THC_F32, THC_HOST, 2, {2, 3}, {0}, {0}};
}

Test(abi_open, register__newer_elements__nothing_unknown_set__is_accepted)
{
	struct newer_tensor tensors[2];
	const size_t bytes = sizeof(tensors[0]);

	fill_tensors(tensors);
	cr_assert_eq(
		thc_register(shard, &tensors[0].tensor, 2, bytes, SOON), 0, "%s", thc_errmsg());
	cr_assert_eq(agent.rows, 2);
	cr_assert_eq(thc_unregister(shard, SOON), 0);
	tensors[1].later[1] = 1;
	cr_assert_eq(thc_register(shard, &tensors[0].tensor, 2, bytes, SOON), THC_E_INVALID);
	cr_assert_not_null(strstr(thc_errmsg(), "newer library"), "%s", thc_errmsg());
}

Test(abi_open, register__older_elements__are_whole_tensors)
{
	struct newer_tensor tensors[2];
	_Alignas(8) uint8_t older[2][offsetof(struct thc_tensor, global_shape)];
	const struct thc_tensor *first = (const void *)older;

	fill_tensors(tensors);
	for (int i = 0; i < 2; i++)
		memcpy(older[i], &tensors[i].tensor, sizeof(older[i]));
	cr_assert_eq(thc_register(shard, first, 2, sizeof(older[0]), SOON), 0, "%s", thc_errmsg());
	cr_assert_eq(agent.rows, 2);
	cr_assert_eq(agent.rows_bytes, 48);
	cr_assert_eq(thc_unregister(shard, SOON), 0);
	const size_t sizes[] = {0, 8, 96, 103, 105, 231, 233, 4104, SIZE_MAX};
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		cr_assert_eq(thc_register(shard, &tensors[0].tensor, 1, sizes[i], SOON),
			THC_E_INVALID, "%zu", sizes[i]);
		cr_assert_eq(strncmp(thc_errmsg(), "tensor_bytes: ", 14), 0, "%s", thc_errmsg());
	}
}

Test(abi_open, result__any_header__whole_fields_and_no_byte_beyond)
{
	struct newer_tensor tensors[2];
	struct {
		struct thc_result result;
		uint8_t beyond[64];
	} buffer;

	fill_tensors(tensors);
	cr_assert_eq(thc_register(shard, &tensors[0].tensor, 2, sizeof(tensors[0]), SOON), 0);
	script(agent.operation_text = "not brought before");
	for (size_t bytes = 32; bytes <= sizeof(buffer); bytes += 8) {
		memset(&buffer, 0xa5, sizeof(buffer));
		buffer.result.struct_size = bytes;
		cr_assert_eq(
			thc_replicate(shard, "18", SOON, &buffer.result), 0, "%s", thc_errmsg());
		cr_assert_eq(buffer.result.struct_size, bytes);
		cr_assert_eq(buffer.result.version, 18);
		cr_assert_eq(buffer.result.updated, 1);
		if (bytes >= 40)
			cr_assert_eq(buffer.result.bytes_moved, 1000);
		if (bytes >= 328)
			cr_assert_str_eq(buffer.result.source, "trainer");
		if (bytes >= 360)
			cr_assert_str_eq(buffer.result.transport, "tcp");
		if (bytes >= 368)
			cr_assert_eq(buffer.result.bytes_prefetched, 700);
		if (bytes >= 504)
			cr_assert_str_eq(buffer.result.reason, "not brought before");
		const uint8_t *all = (const uint8_t *)&buffer;
		size_t end = bytes;
		if (bytes >= 72)
			end = bytes < 328 ? 72 : bytes < 360 ? 328 : bytes;
		if (bytes > 376)
			end = bytes < 504 ? 376 : 504;
		for (size_t i = end; i < sizeof(buffer); i++)
			cr_assert_eq(all[i], 0xa5, "size %zu: byte %zu was written", bytes, i);
	}
	const size_t sizes[] = {0, 8, 24, 31, 33, 4104, SIZE_MAX};
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		buffer.result.struct_size = sizes[i];
		cr_assert_eq(thc_update(shard, "18", SOON, &buffer.result), THC_E_INVALID, "%zu",
			sizes[i]);
		cr_assert_eq(strncmp(thc_errmsg(), "ret_result: struct_size: ", 25), 0, "%s",
			thc_errmsg());
	}
}
