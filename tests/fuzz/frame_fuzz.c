/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame_fuzz - frames of the data port as a peer may send them, with the payloads of RDMA.
 *
 * A header that is accepted has one encoding, the one that came. A payload is decoded only where
 * all of it is there; what its decoder accepts keeps to the limits and encodes to what came.
 */
#include "transport/leg/frame.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "transport/rdma/leg/rdma_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
try_rails(const uint8_t *data, uint32_t count)
{
	struct wire_rail rails[WIRE_RAILS_MAX];
	uint8_t again[WIRE_RAILS_MAX * WIRE_RAIL_BYTES];
	TH_ASSERT(count >= 1 && count <= WIRE_RAILS_MAX);
	if (wire_decode_rails(data, count, rails) < 0)
		return;
	wire_encode_rails(rails, count, again);
	TH_ASSERT(memcmp(again, data, count * WIRE_RAIL_BYTES) == 0);
}

/* What is behind the lanes is a sentence. */
static void
try_lanes(const struct frame *frame, const uint8_t *data)
{
	struct wire_lane lanes[WIRE_LANES_MAX];
	uint64_t rest = frame->bytes - (uint64_t)frame->count * WIRE_LANE_BYTES;
	TH_ASSERT(frame->count >= 1 && frame->count <= WIRE_LANES_MAX);
	TH_ASSERT(rest <= TH_CTL_TEXT_BYTES);
	if (frame->kind == FRAME_RDMA_ACCEPT && (frame->flags & FRAME_STAGES) != 0)
		TH_ASSERT(rest >= 1 && frame->first >= 1 && frame->first <= WIRE_SLOTS_MAX);
	else
		TH_ASSERT(rest == 0);
	if (wire_decode_lanes(data, frame->count, lanes) < 0)
		return;
	for (uint32_t i = 0; i < frame->count; i++)
		TH_ASSERT(lanes[i].rail < WIRE_RAILS_MAX);
}

static void
try_keys(const struct frame *frame, const uint8_t *data)
{
	uint32_t lanes = wire_key_lanes(frame->count, frame->bytes);
	TH_ASSERT(lanes >= 1 && lanes <= WIRE_LANES_MAX);
	struct wire_key *keys = calloc(frame->count, sizeof(keys[0]));
	uint8_t *again = malloc(frame->bytes);
	if (wire_decode_keys(data, frame->count, lanes, keys) == 0) {
		wire_encode_keys(keys, frame->count, lanes, again);
		TH_ASSERT(memcmp(again, data, frame->bytes) == 0);
	}
	free(keys);
	free(again);
}

static void
try_extents(const struct frame *frame, const uint8_t *data)
{
	struct wire_extent *extents = calloc(frame->count, sizeof(extents[0]));
	uint8_t *again = malloc(frame->bytes);
	if (wire_decode_extents(data, frame->count, extents) == 0) {
		wire_encode_extents(extents, frame->count, again);
		TH_ASSERT(memcmp(again, data, frame->bytes) == 0);
	}
	free(extents);
	free(again);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct frame frame;
	uint8_t again[FRAME_BYTES];
	if (size < FRAME_BYTES || frame_decode(data, &frame) < 0)
		return 0;
	frame_encode(&frame, again);
	TH_ASSERT(memcmp(again, data, FRAME_BYTES) == 0);
	if (frame.kind == FRAME_STAGE || frame.kind == FRAME_STAGED)
		TH_ASSERT(frame.count < WIRE_SLOTS_MAX && frame.bytes == 0 && frame.flags == 0);
	if (frame.bytes == 0 || size - FRAME_BYTES < frame.bytes)
		return 0;
	data += FRAME_BYTES;
	if (frame.kind == FRAME_RDMA_RAILS)
		try_rails(data, frame.count);
	else if (frame.kind == FRAME_RDMA_OFFER || frame.kind == FRAME_RDMA_ACCEPT)
		try_lanes(&frame, data);
	else if (frame.kind == FRAME_RDMA_KEYS)
		try_keys(&frame, data);
	else if (frame.kind == FRAME_RDMA_MAP)
		try_extents(&frame, data);
	return 0;
}
