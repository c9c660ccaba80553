/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame - see frame.h. Pure.
 */
#include "transport/leg/frame.h"

#include <string.h>

#include "ipc/base/bytes.h"
#include "ipc/base/err.h"
#include "transport/rdma/leg/rdma_wire.h"

#define MAGIC 0x31444854u /* "THD1" */

void
frame_encode(const struct frame *frame, uint8_t ret_data[FRAME_BYTES])
{
	struct th_writer writer;
	th_writer_init(&writer, ret_data, FRAME_BYTES);
	th_write_u32(&writer, MAGIC);
	th_write_u8(&writer, (uint8_t)frame->kind);
	th_write_u8(&writer, frame->flags);
	th_write_u16(&writer, 0);
	th_write_u64(&writer, frame->leg);
	th_write_u32(&writer, frame->first);
	th_write_u32(&writer, frame->count);
	th_write_u64(&writer, frame->bytes);
}

static bool
fits_accept(const struct frame *frame)
{
	uint64_t lanes = (uint64_t)frame->count * WIRE_LANE_BYTES;
	if (frame->first < 1)
		return false;
	if (frame->flags == FRAME_STAGES)
		return frame->first <= WIRE_SLOTS_MAX && frame->bytes > lanes &&
		       frame->bytes - lanes <= TH_CTL_TEXT_BYTES &&
		       wire_fits(frame->count, WIRE_LANES_MAX, WIRE_LANE_BYTES, lanes);
	return frame->flags == 0 && frame->first <= WIRE_KEYS_MAX &&
	       wire_fits(frame->count, WIRE_LANES_MAX, WIRE_LANE_BYTES, frame->bytes);
}

/* What a kind may carry: the flags it knows, the payload it can have, the fields it leaves zero. */
static bool
frame_fits(const struct frame *frame)
{
	bool plain = frame->flags == 0;
	bool no_range = frame->first == 0 && frame->count == 0;
	switch (frame->kind) {
	case FRAME_HELLO:
		return (frame->flags & ~(FRAME_VERIFIES | FRAME_TAKES_RDMA | FRAME_TAKES_STAGED)) ==
			       0 &&
		       no_range && frame->bytes == FRAME_HELLO_BYTES;
	case FRAME_WELCOME:
		return (frame->flags & ~(FRAME_DIGESTS | FRAME_OFFERS_RDMA | FRAME_RDMA_LATER)) ==
			       0 &&
		       frame->first == 0 && frame->bytes == FRAME_WELCOME_BYTES;
	case FRAME_REFUSED:
	case FRAME_RDMA_DECLINE:
		return plain && frame->first == 0 && frame->bytes <= TH_CTL_TEXT_BYTES;
	case FRAME_PROGRESS:
		return (frame->flags & ~FRAME_WAITING) == 0 && frame->bytes <= FRAME_PAYLOAD_MAX &&
		       frame->bytes % 16 == 0;
	case FRAME_BYE:
		return plain && no_range && frame->bytes == 0;
	case FRAME_JOIN:
		return plain && no_range && frame->bytes == FRAME_KEY_BYTES;
	case FRAME_READ:
		return plain && frame->count >= 1 && frame->count <= FRAME_READ_COUNT_MAX &&
		       frame->bytes == 0;
	case FRAME_DATA:
		return plain && frame->count == 1 && frame->bytes >= 1 &&
		       frame->bytes <= CHUNK_BYTES_MAX;
	case FRAME_ALIVE:
		return plain && (frame->bytes == FRAME_ALIVE_BYTES ||
					(frame->first == 0 && frame->bytes == 0));
	case FRAME_RDMA_RAILS:
		return plain && frame->first == 0 &&
		       wire_fits(frame->count, WIRE_RAILS_MAX, WIRE_RAIL_BYTES, frame->bytes);
	case FRAME_RDMA_OFFER:
		return (frame->flags & ~FRAME_STAGES) == 0 && frame->first == 0 &&
		       wire_fits(frame->count, WIRE_LANES_MAX, WIRE_LANE_BYTES, frame->bytes);
	case FRAME_RDMA_ACCEPT:
		return fits_accept(frame);
	case FRAME_RDMA_KEYS:
		return plain && frame->count >= 1 && frame->bytes <= FRAME_PAYLOAD_MAX &&
		       th_range_fits(frame->first, frame->count, WIRE_KEYS_MAX) &&
		       wire_key_lanes(frame->count, frame->bytes) > 0;
	case FRAME_RDMA_MAP:
		return plain && wire_fits(frame->count, WIRE_EXTENTS_AT_ONCE, WIRE_EXTENT_BYTES,
					frame->bytes);
	case FRAME_CHECK:
		return plain && frame->count == 1 && frame->bytes == 0;
	case FRAME_STAGE:
	case FRAME_STAGED:
		return plain && frame->count < WIRE_SLOTS_MAX && frame->bytes == 0;
	}
	return false;
}

int
frame_decode(const uint8_t data[FRAME_BYTES], struct frame *ret_frame)
{
	struct th_reader reader;
	th_reader_init(&reader, data, FRAME_BYTES);
	uint32_t magic = th_read_u32(&reader);
	uint8_t kind = th_read_u8(&reader);
	if (magic != MAGIC || kind < FRAME_HELLO || kind > FRAME_STAGED)
		return TH_E_PROTOCOL;
	struct frame frame = {.kind = (enum frame_kind)kind, .flags = th_read_u8(&reader)};
	uint16_t zero = th_read_u16(&reader);
	frame.leg = th_read_u64(&reader);
	frame.first = th_read_u32(&reader);
	frame.count = th_read_u32(&reader);
	frame.bytes = th_read_u64(&reader);
	if (zero != 0 || !frame_fits(&frame))
		return TH_E_PROTOCOL;
	*ret_frame = frame;
	return 0;
}

void
frame_encode_hello(const struct frame_hello *hello, uint8_t ret_data[FRAME_HELLO_BYTES])
{
	struct th_writer writer;
	th_writer_init(&writer, ret_data, FRAME_HELLO_BYTES);
	th_write_bytes(&writer, hello->ticket.bytes, sizeof(hello->ticket.bytes));
	th_write_u32(&writer, hello->protocol);
	th_write_u32(&writer, hello->mode);
}

void
frame_decode_hello(const uint8_t data[FRAME_HELLO_BYTES], struct frame_hello *ret_hello)
{
	struct th_reader reader;
	th_reader_init(&reader, data, FRAME_HELLO_BYTES);
	memcpy(ret_hello->ticket.bytes, th_read_bytes(&reader, 16), 16);
	ret_hello->protocol = th_read_u32(&reader);
	ret_hello->mode = th_read_u32(&reader);
}

void
frame_encode_welcome(const struct frame_welcome *welcome, uint8_t ret_data[FRAME_WELCOME_BYTES])
{
	struct th_writer writer;
	th_writer_init(&writer, ret_data, FRAME_WELCOME_BYTES);
	th_write_bytes(&writer, welcome->key, FRAME_KEY_BYTES);
	th_write_u64(&writer, welcome->bytes);
	th_write_u32(&writer, welcome->protocol);
	th_write_u32(&writer, 0);
}

void
frame_decode_welcome(const uint8_t data[FRAME_WELCOME_BYTES], struct frame_welcome *ret_welcome)
{
	struct th_reader reader;
	th_reader_init(&reader, data, FRAME_WELCOME_BYTES);
	memcpy(ret_welcome->key, th_read_bytes(&reader, FRAME_KEY_BYTES), FRAME_KEY_BYTES);
	ret_welcome->bytes = th_read_u64(&reader);
	ret_welcome->protocol = th_read_u32(&reader);
}

void
frame_encode_alive(uint64_t rdma_bytes, uint8_t ret_data[FRAME_ALIVE_BYTES])
{
	struct th_writer writer;
	th_writer_init(&writer, ret_data, FRAME_ALIVE_BYTES);
	th_write_u64(&writer, rdma_bytes);
}

uint64_t
frame_decode_alive(const uint8_t data[FRAME_ALIVE_BYTES])
{
	struct th_reader reader;
	th_reader_init(&reader, data, FRAME_ALIVE_BYTES);
	return th_read_u64(&reader);
}

void
frame_encode_digests(const struct th_hash *digests, uint32_t count, uint8_t *ret_data)
{
	struct th_writer writer;
	th_writer_init(&writer, ret_data, count * 16u);
	for (uint32_t i = 0; i < count; i++) {
		th_write_u64(&writer, digests[i].lo);
		th_write_u64(&writer, digests[i].hi);
	}
}

void
frame_decode_digests(const uint8_t *data, uint32_t count, struct th_hash *ret_digests)
{
	struct th_reader reader;
	th_reader_init(&reader, data, count * 16u);
	for (uint32_t i = 0; i < count; i++) {
		ret_digests[i].lo = th_read_u64(&reader);
		ret_digests[i].hi = th_read_u64(&reader);
	}
}

bool
frame_key_equal(const uint8_t a[FRAME_KEY_BYTES], const uint8_t b[FRAME_KEY_BYTES])
{
	volatile uint8_t difference = 0;
	for (uint32_t i = 0; i < FRAME_KEY_BYTES; i++)
		difference |= (uint8_t)(a[i] ^ b[i]);
	return difference == 0;
}
