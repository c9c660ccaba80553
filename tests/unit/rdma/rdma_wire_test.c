/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of transport/rdma/wire: the bytes of the RDMA frames, and everything that is not one. */
#include "transport/rdma/leg/rdma_wire.h"

#include <criterion/criterion.h>
#include <string.h>

#include "ipc/base/err.h"
#include "tests/support/rng.h"
#include "transport/leg/frame.h"

static const struct wire_rail a_rail = {.link = VERBS_LINK_ETHERNET,
	.lid = 0x0102,
	.gid = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 7},
	.name = "mlx5_0/1"};

static const struct wire_lane a_lane = {.rail = 3,
	.made = true,
	.end = {.link = VERBS_LINK_INFINIBAND,
		.gid = {0xfe, 0x80},
		.lid = 0x1234,
		.mtu_bytes = 4096,
		.reads_out = 16,
		.reads_in = 8,
		.qpns = {0x112233, 0x445566},
		.psns = {1, 0xffffff}}};

Test(rdma_wire, rails__known_bytes_and_back)
{
	static const uint8_t known[WIRE_RAIL_BYTES] = {2, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
		0, 0, 0, 0xff, 0xff, 10, 0, 0, 7, 'm', 'l', 'x', '5', '_', '0', '/', '1'};
	uint8_t data[WIRE_RAIL_BYTES];
	struct wire_rail back;
	wire_encode_rails(&a_rail, 1, data);
	cr_assert_arr_eq(data, known, sizeof(known));
	cr_assert_eq(wire_decode_rails(data, 1, &back), 0);
	cr_assert_eq(back.link, a_rail.link);
	cr_assert_eq(back.lid, a_rail.lid);
	cr_assert_arr_eq(back.gid, a_rail.gid, VERBS_GID_BYTES);
	cr_assert_str_eq(back.name, a_rail.name);
}

Test(rdma_wire, rails__what_is_not_one__refused)
{
	static const struct {
		uint32_t at;
		uint8_t value;
	} wrong[] = {{0, 0}, {0, 3}, {1, 1}, {4, 1}, {7, 1}, {24, 0}, {25, '\n'}, {26, 0x7f},
		{27, ' '}, {40, 'x'}, {WIRE_RAIL_BYTES - 1, 'x'}};
	struct wire_rail back;
	for (size_t i = 0; i < TH_ARRAY_LEN(wrong); i++) {
		uint8_t data[WIRE_RAIL_BYTES];
		wire_encode_rails(&a_rail, 1, data);
		data[wrong[i].at] = wrong[i].value;
		cr_assert_eq(wire_decode_rails(data, 1, &back), TH_E_PROTOCOL, "%zu", i);
	}
}

/* A name that fills its field has no 0 at its end. */
Test(rdma_wire, rails__long_name__cut_when_written_refused_when_read)
{
	struct wire_rail rail = a_rail, back;
	uint8_t data[WIRE_RAIL_BYTES];
	memset(rail.name, 'n', sizeof(rail.name));
	wire_encode_rails(&rail, 1, data);
	cr_assert_eq(wire_decode_rails(data, 1, &back), 0);
	cr_assert_eq(strlen(back.name), WIRE_NAME_BYTES - 1);
	data[WIRE_RAIL_BYTES - 1] = 'n';
	cr_assert_eq(wire_decode_rails(data, 1, &back), TH_E_PROTOCOL);
}

Test(rdma_wire, lanes__known_bytes_and_back)
{
	static const uint8_t known[WIRE_LANE_BYTES] = {1, 3, 0x34, 0x12, 0, 16, 0, 0, 16, 0, 0, 0,
		8, 0, 0, 0, 0xfe, 0x80, [32] = 0x33, 0x22, 0x11, 0, 0x66, 0x55, 0x44, 0, 1, 0, 0, 0,
		0xff, 0xff, 0xff, 0};
	struct wire_lane lanes[2] = {a_lane, {.rail = 9}}, back[2];
	uint8_t data[2 * WIRE_LANE_BYTES];
	wire_encode_lanes(lanes, 2, data);
	cr_assert_arr_eq(data, known, sizeof(known));
	cr_assert_eq(wire_decode_lanes(data, 2, back), 0);
	cr_assert(back[0].made);
	cr_assert_eq(back[0].rail, 3);
	cr_assert_eq(back[0].end.link, VERBS_LINK_INFINIBAND);
	cr_assert_eq(back[0].end.lid, 0x1234);
	cr_assert_eq(back[0].end.mtu_bytes, 4096);
	cr_assert_eq(back[0].end.reads_out, 16);
	cr_assert_eq(back[0].end.reads_in, 8);
	cr_assert_arr_eq(back[0].end.gid, a_lane.end.gid, VERBS_GID_BYTES);
	cr_assert_arr_eq(back[0].end.qpns, a_lane.end.qpns, sizeof(a_lane.end.qpns));
	cr_assert_arr_eq(back[0].end.psns, a_lane.end.psns, sizeof(a_lane.end.psns));
	cr_assert(!back[1].made);
	cr_assert_eq(back[1].rail, 9);
	data[1] = WIRE_RAILS_MAX;
	cr_assert_eq(wire_decode_lanes(data, 2, back), TH_E_PROTOCOL);
	data[1] = 3;
	data[0] = 3;
	cr_assert_eq(wire_decode_lanes(data, 2, back), TH_E_PROTOCOL);
	data[0] = 1;
	data[WIRE_LANE_BYTES + 40] = 1;
	cr_assert_eq(wire_decode_lanes(data, 2, back), TH_E_PROTOCOL, "something, and no link");
}

Test(rdma_wire, keys__known_bytes_and_back)
{
	static const uint8_t known[] = {8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0x44, 0x33,
		0x22, 0x11, 5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0};
	struct wire_key key = {.address = UINT64_C(0x0102030405060708),
				.bytes = 65536,
				.rkeys = {0x11223344, 5, 6}},
			back;
	uint8_t data[sizeof(known)];
	cr_assert_eq(wire_key_bytes(3), sizeof(known));
	wire_encode_keys(&key, 1, 3, data);
	cr_assert_arr_eq(data, known, sizeof(known));
	cr_assert_eq(wire_decode_keys(data, 1, 3, &back), 0);
	cr_assert_eq(memcmp(&back, &key, sizeof(key)), 0);
	data[31] = 1;
	cr_assert_eq(wire_decode_keys(data, 1, 3, &back), TH_E_PROTOCOL);
	key.bytes = 0;
	wire_encode_keys(&key, 1, 3, data);
	cr_assert_eq(wire_decode_keys(data, 1, 3, &back), TH_E_PROTOCOL);
	key = (struct wire_key){.address = UINT64_MAX - 10, .bytes = 11};
	wire_encode_keys(&key, 1, 3, data);
	cr_assert_eq(wire_decode_keys(data, 1, 3, &back), TH_E_PROTOCOL, "it wraps");
}

Test(rdma_wire, extents__known_bytes_and_back)
{
	static const uint8_t known[WIRE_EXTENT_BYTES] = {
		4, 3, 2, 1, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1};
	struct wire_extent extent = {.key = 0x01020304, .address = UINT64_C(0x0102030405060708)};
	struct wire_extent back;
	uint8_t data[WIRE_EXTENT_BYTES];
	wire_encode_extents(&extent, 1, data);
	cr_assert_arr_eq(data, known, sizeof(known));
	cr_assert_eq(wire_decode_extents(data, 1, &back), 0);
	cr_assert_eq(back.key, extent.key);
	cr_assert_eq(back.address, extent.address);
	data[7] = 1;
	cr_assert_eq(wire_decode_extents(data, 1, &back), TH_E_PROTOCOL);
}

static int
decode(struct frame frame)
{
	uint8_t data[FRAME_BYTES];
	struct frame back;
	frame_encode(&frame, data);
	return frame_decode(data, &back);
}

Test(rdma_wire, frames__limits_of_each_kind__kept)
{
	static const struct {
		enum frame_kind kind;
		uint32_t first, count;
		uint64_t bytes;
		bool good;
	} cases[] = {
		{FRAME_RDMA_RAILS, 0, 1, 56, true},
		{FRAME_RDMA_RAILS, 0, 16, 896, true},
		{FRAME_RDMA_RAILS, 0, 17, 952, false},
		{FRAME_RDMA_RAILS, 0, 0, 0, false},
		{FRAME_RDMA_RAILS, 0, 2, 56, false},
		{FRAME_RDMA_RAILS, 1, 1, 56, false},
		{FRAME_RDMA_OFFER, 0, 8, 384, true},
		{FRAME_RDMA_OFFER, 0, 9, 432, false},
		{FRAME_RDMA_OFFER, 1, 1, 48, false},
		{FRAME_RDMA_ACCEPT, 1, 1, 48, true},
		{FRAME_RDMA_ACCEPT, 16384, 1, 48, true},
		{FRAME_RDMA_ACCEPT, 0, 1, 48, false},
		{FRAME_RDMA_ACCEPT, 16385, 1, 48, false},
		{FRAME_RDMA_KEYS, 0, 1, 24, true},
		{FRAME_RDMA_KEYS, 0, 1, 48, true},
		{FRAME_RDMA_KEYS, 0, 1, 56, false},
		{FRAME_RDMA_KEYS, 0, 1, 16, false},
		{FRAME_RDMA_KEYS, 0, 1024, UINT64_C(1024) * 48, true},
		{FRAME_RDMA_KEYS, 0, 1025, UINT64_C(1025) * 48, false},
		{FRAME_RDMA_KEYS, 16383, 1, 24, true},
		{FRAME_RDMA_KEYS, 16383, 2, 48, false},
		{FRAME_RDMA_MAP, 0, 4096, 65536, true},
		{FRAME_RDMA_MAP, UINT32_MAX, 1, 16, true},
		{FRAME_RDMA_MAP, 0, 4097, UINT64_C(4097) * 16, false},
		{FRAME_RDMA_DECLINE, 0, 7, TH_CTL_TEXT_BYTES, true},
		{FRAME_RDMA_DECLINE, 0, 7, TH_CTL_TEXT_BYTES + 1, false},
		{FRAME_RDMA_DECLINE, 1, 7, 0, false},
		{FRAME_CHECK, 77, 1, 0, true},
		{FRAME_CHECK, 77, 2, 0, false},
		{FRAME_CHECK, 77, 1, 1, false},
		{FRAME_STAGE, UINT32_MAX, 0, 0, true},
		{FRAME_STAGE, 0, 15, 0, true},
		{FRAME_STAGE, 0, 16, 0, false},
		{FRAME_STAGE, 0, 0, 1, false},
		{FRAME_STAGED, 7, 15, 0, true},
		{FRAME_STAGED, 7, 16, 0, false},
		{FRAME_STAGED, 7, 1, 8, false},
		{FRAME_ALIVE, 5, 6, 8, true},
		{FRAME_ALIVE, 5, 6, 0, false},
		{FRAME_ALIVE, 5, 6, 16, false},
	};
	for (size_t i = 0; i < TH_ARRAY_LEN(cases); i++) {
		struct frame frame = {.kind = cases[i].kind,
			.first = cases[i].first,
			.count = cases[i].count,
			.bytes = cases[i].bytes};
		cr_assert_eq(decode(frame) == 0, cases[i].good, "case %zu", i);
		frame.flags = 1;
		cr_assert_lt(decode(frame), 0, "case %zu with a flag", i);
	}
	cr_assert_eq(decode((struct frame){.kind = FRAME_HELLO,
			     .flags = FRAME_VERIFIES | FRAME_TAKES_RDMA,
			     .bytes = FRAME_HELLO_BYTES}),
		0);
	struct frame accept = {
		.kind = FRAME_RDMA_ACCEPT, .flags = FRAME_STAGES, .count = 1, .bytes = 49};
	for (accept.first = 0; accept.first <= 17; accept.first++)
		cr_assert_eq(decode(accept) == 0, accept.first >= 1 && accept.first <= 16);
	accept.first = 1;
	for (accept.bytes = 0; accept.bytes < 48 + TH_CTL_TEXT_BYTES + 3; accept.bytes++)
		cr_assert_eq(decode(accept) == 0,
			accept.bytes > 48 && accept.bytes <= 48 + TH_CTL_TEXT_BYTES);
	accept.count = UINT32_MAX;
	cr_assert_lt(decode(accept), 0);
	cr_assert_eq(
		decode((struct frame){
			.kind = FRAME_RDMA_OFFER, .flags = FRAME_STAGES, .count = 1, .bytes = 48}),
		0);
	cr_assert_eq(decode((struct frame){.kind = FRAME_HELLO,
			     .flags = FRAME_TAKES_RDMA | FRAME_TAKES_STAGED,
			     .bytes = FRAME_HELLO_BYTES}),
		0);
	cr_assert_eq(decode((struct frame){.kind = FRAME_WELCOME,
			     .flags = FRAME_DIGESTS | FRAME_OFFERS_RDMA,
			     .bytes = FRAME_WELCOME_BYTES}),
		0);
	cr_assert_lt(decode((struct frame){.kind = FRAME_WELCOME,
			     .flags = FRAME_TAKES_RDMA,
			     .bytes = FRAME_WELCOME_BYTES}),
		0);
}

/* What is taken is what encoding it gives again: no two spellings of one thing. */
Test(rdma_wire, decode__random_bytes__refused_or_encoding_again_the_same)
{
	struct th_rng rng;
	th_rng_init_number(&rng, 11);
	struct wire_key key = {.address = 4096, .bytes = 1 << 20, .rkeys = {1, 2, 3}};
	struct wire_extent extent = {.key = 5, .address = 4097};
	for (int round = 0; round < 100000; round++) {
		uint8_t data[WIRE_RAIL_BYTES], again[WIRE_RAIL_BYTES];
		struct wire_rail rail;
		struct wire_lane lane;
		struct wire_key key_back;
		struct wire_extent extent_back;
		int kind = round % 4;
		size_t bytes;
		if (kind == 0) {
			bytes = WIRE_RAIL_BYTES;
			wire_encode_rails(&a_rail, 1, data);
		} else if (kind == 1) {
			bytes = WIRE_LANE_BYTES;
			wire_encode_lanes(&a_lane, 1, data);
		} else if (kind == 2) {
			bytes = wire_key_bytes(3);
			wire_encode_keys(&key, 1, 3, data);
		} else {
			bytes = WIRE_EXTENT_BYTES;
			wire_encode_extents(&extent, 1, data);
		}
		for (uint64_t flips = th_rng_below(&rng, 4); flips > 0; flips--)
			data[th_rng_below(&rng, bytes)] = (uint8_t)th_rng_u64(&rng);
		if (kind == 0 && wire_decode_rails(data, 1, &rail) == 0)
			wire_encode_rails(&rail, 1, again);
		else if (kind == 1 && wire_decode_lanes(data, 1, &lane) == 0)
			wire_encode_lanes(&lane, 1, again);
		else if (kind == 2 && wire_decode_keys(data, 1, 3, &key_back) == 0)
			wire_encode_keys(&key_back, 1, 3, again);
		else if (kind == 3 && wire_decode_extents(data, 1, &extent_back) == 0)
			wire_encode_extents(&extent_back, 1, again);
		else
			continue;
		cr_assert_arr_eq(data, again, bytes);
	}
}
