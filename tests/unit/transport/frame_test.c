/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of transport/frame: the bytes on the wire, and everything that is not a frame. */
#include "transport/leg/frame.h"

#include <criterion/criterion.h>
#include <string.h>

#include "ipc/base/err.h"
#include "tests/support/rng.h"
#include "transport/rdma/leg/rdma_wire.h"

Test(frame, encode__read__known_bytes)
{
	static const uint8_t known[FRAME_BYTES] = {'T', 'H', 'D', '1', 7, 0, 0, 0, 0x88, 0x77, 0x66,
		0x55, 0x44, 0x33, 0x22, 0x11, 4, 3, 2, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
	struct frame frame = {.kind = FRAME_READ,
		.leg = UINT64_C(0x1122334455667788),
		.first = 0x01020304,
		.count = 2};
	struct frame back;
	uint8_t data[FRAME_BYTES];
	frame_encode(&frame, data);
	cr_assert_arr_eq(data, known, sizeof(known));
	cr_assert_eq(frame_decode(data, &back), 0);
	cr_assert_eq(back.kind, FRAME_READ);
	cr_assert_eq(back.leg, frame.leg);
	cr_assert_eq(back.first, frame.first);
	cr_assert_eq(back.count, 2);
	cr_assert_eq(back.bytes, 0);
}

static int
decode(struct frame frame)
{
	uint8_t data[FRAME_BYTES];
	struct frame back;
	frame_encode(&frame, data);
	return frame_decode(data, &back);
}

Test(frame, decode__limits_of_each_kind__kept)
{
	cr_assert_eq(decode((struct frame){.kind = FRAME_HELLO, .bytes = FRAME_HELLO_BYTES}), 0);
	cr_assert_lt(decode((struct frame){.kind = FRAME_HELLO, .bytes = 0}), 0);
	cr_assert_eq(decode((struct frame){.kind = FRAME_WELCOME,
			     .flags = FRAME_DIGESTS,
			     .bytes = FRAME_WELCOME_BYTES}),
		0);
	cr_assert_lt(decode((struct frame){.kind = FRAME_WELCOME,
			     .flags = FRAME_WAITING,
			     .bytes = FRAME_WELCOME_BYTES}),
		0);
	cr_assert_eq(decode((struct frame){.kind = FRAME_REFUSED, .bytes = TH_CTL_TEXT_BYTES}), 0);
	cr_assert_lt(
		decode((struct frame){.kind = FRAME_REFUSED, .bytes = TH_CTL_TEXT_BYTES + 1}), 0);
	cr_assert_eq(decode((struct frame){.kind = FRAME_PROGRESS, .bytes = FRAME_PAYLOAD_MAX}), 0);
	cr_assert_lt(
		decode((struct frame){.kind = FRAME_PROGRESS, .bytes = FRAME_PAYLOAD_MAX + 16}), 0);
	cr_assert_lt(decode((struct frame){.kind = FRAME_PROGRESS, .bytes = 17}), 0);
	cr_assert_eq(decode((struct frame){.kind = FRAME_READ, .count = 16}), 0);
	cr_assert_lt(decode((struct frame){.kind = FRAME_READ, .count = 17}), 0);
	cr_assert_lt(decode((struct frame){.kind = FRAME_READ, .count = 0}), 0);
	cr_assert_eq(
		decode((struct frame){.kind = FRAME_DATA, .count = 1, .bytes = CHUNK_BYTES_MAX}),
		0);
	cr_assert_lt(decode((struct frame){
			     .kind = FRAME_DATA, .count = 1, .bytes = CHUNK_BYTES_MAX + 1}),
		0);
	cr_assert_lt(decode((struct frame){.kind = FRAME_DATA, .count = 1, .bytes = 0}), 0);
	cr_assert_lt(decode((struct frame){.kind = FRAME_BYE, .bytes = 1}), 0);
	cr_assert_eq(decode((struct frame){.kind = FRAME_ALIVE, .count = 7}), 0);
	cr_assert_lt(decode((struct frame){.kind = FRAME_ALIVE, .first = 1, .count = 7}), 0);
	cr_assert_lt(decode((struct frame){.kind = FRAME_ALIVE, .count = 7, .bytes = 1}), 0);
}

Test(frame, decode__random_bytes__refused_or_encoding_again_the_same)
{
	struct th_rng rng;
	th_rng_init_number(&rng, 9);
	struct frame frame = {.kind = FRAME_READ, .leg = 5, .first = 3, .count = 1};
	for (int round = 0; round < 200000; round++) {
		uint8_t data[FRAME_BYTES], again[FRAME_BYTES];
		struct frame back;
		frame.kind = (enum frame_kind)(1 + th_rng_below(&rng, FRAME_STAGED));
		frame.bytes = frame.kind == FRAME_HELLO        ? FRAME_HELLO_BYTES
			      : frame.kind == FRAME_RDMA_RAILS ? WIRE_RAIL_BYTES
			      : frame.kind == FRAME_RDMA_KEYS  ? 24
			      : frame.kind == FRAME_RDMA_MAP   ? WIRE_EXTENT_BYTES
							       : 0;
		frame_encode(&frame, data);
		for (uint64_t flips = th_rng_below(&rng, 4); flips > 0; flips--)
			data[th_rng_below(&rng, FRAME_BYTES)] = (uint8_t)th_rng_u64(&rng);
		if (frame_decode(data, &back) < 0)
			continue;
		frame_encode(&back, again);
		cr_assert_arr_eq(data, again, FRAME_BYTES);
	}
}

Test(frame, payloads__round_trip)
{
	uint8_t data[64];
	struct frame_hello hello = {.ticket = {{1, 2, 3}}, .protocol = 1, .mode = 2}, hello_back;
	frame_encode_hello(&hello, data);
	frame_decode_hello(data, &hello_back);
	cr_assert_arr_eq(hello.ticket.bytes, hello_back.ticket.bytes, 16);
	cr_assert_eq(hello_back.protocol, 1);
	cr_assert_eq(hello_back.mode, 2);
	struct frame_welcome welcome = {.key = {9}, .bytes = 77, .protocol = 1}, welcome_back;
	frame_encode_welcome(&welcome, data);
	frame_decode_welcome(data, &welcome_back);
	cr_assert_arr_eq(welcome.key, welcome_back.key, 16);
	cr_assert_eq(welcome_back.bytes, 77);
	struct th_hash digests[2] = {{1, 2}, {3, UINT64_MAX}}, digests_back[2];
	frame_encode_digests(digests, 2, data);
	frame_decode_digests(data, 2, digests_back);
	cr_assert_eq(memcmp(digests, digests_back, sizeof(digests)), 0);
}

Test(frame, key_equal__any_byte_differs__false)
{
	uint8_t a[FRAME_KEY_BYTES] = {0}, b[FRAME_KEY_BYTES] = {0};
	cr_assert(frame_key_equal(a, b));
	for (uint32_t i = 0; i < FRAME_KEY_BYTES; i++) {
		b[i] = 0x80;
		cr_assert(!frame_key_equal(a, b));
		b[i] = 0;
	}
}
