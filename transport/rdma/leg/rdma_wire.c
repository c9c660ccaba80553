/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma_wire - see rdma_wire.h. Pure.
 */
#include "transport/rdma/leg/rdma_wire.h"

#include <string.h>

#include "ipc/base/bytes.h"
#include "ipc/base/err.h"
#include "transport/leg/frame.h"

bool
wire_fits(uint32_t count, uint32_t max, uint32_t record_bytes, uint64_t bytes)
{
	return count >= 1 && count <= max && bytes == (uint64_t)count * record_bytes;
}

uint32_t
wire_key_bytes(uint32_t lanes)
{
	return 16 + (lanes + lanes % 2) * 4;
}

/* Lanes 2n - 1 and 2n have keys of one size: the larger number, which decoding then checks. */
uint32_t
wire_key_lanes(uint32_t count, uint64_t bytes)
{
	if (count == 0 || count > WIRE_KEYS_AT_ONCE || bytes % count != 0)
		return 0;
	for (uint32_t lanes = WIRE_LANES_MAX; lanes > 0; lanes -= 2) {
		if (bytes / count == wire_key_bytes(lanes))
			return lanes;
	}
	return 0;
}

/* ---- rails -------------------------------------------------------------------------------- */

void
wire_encode_rails(const struct wire_rail *rails, uint32_t count, uint8_t *ret_data)
{
	struct th_writer writer;
	th_writer_init(&writer, ret_data, (size_t)count * WIRE_RAIL_BYTES);
	for (uint32_t i = 0; i < count; i++) {
		char name[WIRE_NAME_BYTES] = {0};
		memcpy(name, rails[i].name, strnlen(rails[i].name, sizeof(name) - 1));
		th_write_u8(&writer, (uint8_t)rails[i].link);
		th_write_u8(&writer, 0);
		th_write_u16(&writer, rails[i].lid);
		th_write_u32(&writer, 0);
		th_write_bytes(&writer, rails[i].gid, VERBS_GID_BYTES);
		th_write_bytes(&writer, name, sizeof(name));
	}
}

/* For log lines and listings: nothing but visible characters, then zeros to the end. */
static bool
name_is_plain(const uint8_t *name)
{
	uint32_t bytes = 0;
	while (bytes < WIRE_NAME_BYTES && name[bytes] > 0x20 && name[bytes] < 0x7f)
		bytes++;
	if (bytes == 0 || bytes == WIRE_NAME_BYTES)
		return false;
	for (; bytes < WIRE_NAME_BYTES; bytes++) {
		if (name[bytes] != 0)
			return false;
	}
	return true;
}

static bool
is_link(uint8_t link)
{
	return link == VERBS_LINK_INFINIBAND || link == VERBS_LINK_ETHERNET;
}

int
wire_decode_rails(const uint8_t *data, uint32_t count, struct wire_rail *ret_rails)
{
	struct th_reader reader;
	th_reader_init(&reader, data, (size_t)count * WIRE_RAIL_BYTES);
	for (uint32_t i = 0; i < count; i++) {
		struct wire_rail *rail = &ret_rails[i];
		uint8_t link = th_read_u8(&reader), zero = th_read_u8(&reader);
		rail->link = (enum verbs_link)link;
		rail->lid = th_read_u16(&reader);
		uint32_t zeros = th_read_u32(&reader);
		memcpy(rail->gid, th_read_bytes(&reader, VERBS_GID_BYTES), VERBS_GID_BYTES);
		const uint8_t *name = th_read_bytes(&reader, WIRE_NAME_BYTES);
		if (!is_link(link) || zero != 0 || zeros != 0 || !name_is_plain(name))
			return TH_E_PROTOCOL;
		memcpy(rail->name, name, WIRE_NAME_BYTES);
	}
	return 0;
}

/* ---- lanes -------------------------------------------------------------------------------- */

void
wire_encode_lanes(const struct wire_lane *lanes, uint32_t count, uint8_t *ret_data)
{
	static const struct endpoint none;
	struct th_writer writer;
	th_writer_init(&writer, ret_data, (size_t)count * WIRE_LANE_BYTES);
	for (uint32_t i = 0; i < count; i++) {
		const struct endpoint *end = lanes[i].made ? &lanes[i].end : &none;
		th_write_u8(&writer, (uint8_t)end->link);
		th_write_u8(&writer, (uint8_t)lanes[i].rail);
		th_write_u16(&writer, end->lid);
		th_write_u32(&writer, end->mtu_bytes);
		th_write_u32(&writer, end->reads_out);
		th_write_u32(&writer, end->reads_in);
		th_write_bytes(&writer, end->gid, VERBS_GID_BYTES);
		for (uint32_t q = 0; q < ENDPOINT_QPS; q++)
			th_write_u32(&writer, end->qpns[q]);
		for (uint32_t q = 0; q < ENDPOINT_QPS; q++)
			th_write_u32(&writer, end->psns[q]);
	}
}

static bool
is_nothing(const uint8_t *record)
{
	for (uint32_t i = 0; i < WIRE_LANE_BYTES; i++) {
		if (i != 1 && record[i] != 0)
			return false;
	}
	return true;
}

int
wire_decode_lanes(const uint8_t *data, uint32_t count, struct wire_lane *ret_lanes)
{
	struct th_reader reader;
	th_reader_init(&reader, data, (size_t)count * WIRE_LANE_BYTES);
	for (uint32_t i = 0; i < count; i++) {
		struct wire_lane *lane = &ret_lanes[i];
		struct endpoint *end = &lane->end;
		uint8_t link = th_read_u8(&reader);
		lane->rail = th_read_u8(&reader);
		lane->made = !is_nothing(data + (size_t)i * WIRE_LANE_BYTES);
		end->link = (enum verbs_link)link;
		end->lid = th_read_u16(&reader);
		end->mtu_bytes = th_read_u32(&reader);
		end->reads_out = th_read_u32(&reader);
		end->reads_in = th_read_u32(&reader);
		memcpy(end->gid, th_read_bytes(&reader, VERBS_GID_BYTES), VERBS_GID_BYTES);
		for (uint32_t q = 0; q < ENDPOINT_QPS; q++)
			end->qpns[q] = th_read_u32(&reader);
		for (uint32_t q = 0; q < ENDPOINT_QPS; q++)
			end->psns[q] = th_read_u32(&reader);
		if (lane->rail >= WIRE_RAILS_MAX || (lane->made && !is_link(link)))
			return TH_E_PROTOCOL;
	}
	return 0;
}

/* ---- keys and extents --------------------------------------------------------------------- */

void
wire_encode_keys(const struct wire_key *keys, uint32_t count, uint32_t lanes, uint8_t *ret_data)
{
	struct th_writer writer;
	th_writer_init(&writer, ret_data, (size_t)count * wire_key_bytes(lanes));
	for (uint32_t i = 0; i < count; i++) {
		th_write_u64(&writer, keys[i].address);
		th_write_u64(&writer, keys[i].bytes);
		for (uint32_t l = 0; l < lanes; l++)
			th_write_u32(&writer, keys[i].rkeys[l]);
		if (lanes % 2 == 1)
			th_write_u32(&writer, 0);
	}
}

int
wire_decode_keys(const uint8_t *data, uint32_t count, uint32_t lanes, struct wire_key *ret_keys)
{
	struct th_reader reader;
	uint64_t end;
	th_reader_init(&reader, data, (size_t)count * wire_key_bytes(lanes));
	for (uint32_t i = 0; i < count; i++) {
		struct wire_key *key = &ret_keys[i];
		*key = (struct wire_key){.address = th_read_u64(&reader)};
		key->bytes = th_read_u64(&reader);
		for (uint32_t l = 0; l < lanes; l++)
			key->rkeys[l] = th_read_u32(&reader);
		uint32_t zero = lanes % 2 == 1 ? th_read_u32(&reader) : 0;
		if (zero != 0 || key->bytes == 0 || !th_add_u64(key->address, key->bytes, &end))
			return TH_E_PROTOCOL;
	}
	return 0;
}

void
wire_encode_extents(const struct wire_extent *extents, uint32_t count, uint8_t *ret_data)
{
	struct th_writer writer;
	th_writer_init(&writer, ret_data, (size_t)count * WIRE_EXTENT_BYTES);
	for (uint32_t i = 0; i < count; i++) {
		th_write_u32(&writer, extents[i].key);
		th_write_u32(&writer, 0);
		th_write_u64(&writer, extents[i].address);
	}
}

int
wire_decode_extents(const uint8_t *data, uint32_t count, struct wire_extent *ret_extents)
{
	struct th_reader reader;
	th_reader_init(&reader, data, (size_t)count * WIRE_EXTENT_BYTES);
	for (uint32_t i = 0; i < count; i++) {
		ret_extents[i].key = th_read_u32(&reader);
		uint32_t zero = th_read_u32(&reader);
		ret_extents[i].address = th_read_u64(&reader);
		if (zero != 0)
			return TH_E_PROTOCOL;
	}
	return 0;
}
