/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_say - see source.h: the frames of a source, one for each time that the control connection
 * has room.
 */
#include <string.h>

#include "transport/rdma/leg/source_own.h"

static void
put_rails(struct source *source)
{
	struct leg_out *leg = source->leg;
	uint8_t payload[WIRE_RAILS_MAX * WIRE_RAIL_BYTES];
	struct frame frame = {.kind = FRAME_RDMA_RAILS,
		.leg = leg->reader_leg,
		.count = source->num_rails,
		.bytes = (uint64_t)source->num_rails * WIRE_RAIL_BYTES};
	wire_encode_rails(source->named, source->num_rails, payload);
	leg_out_put(leg, &frame, payload);
}

static void
put_accept(struct source *source)
{
	struct leg_out *leg = source->leg;
	struct wire_lane lanes[WIRE_LANES_MAX];
	const struct staging *staging = &source->staging;
	uint8_t payload[WIRE_LANES_MAX * WIRE_LANE_BYTES + TH_CTL_TEXT_BYTES];
	size_t lanes_bytes = (size_t)source->num_lanes * WIRE_LANE_BYTES;
	size_t why_bytes = staging->slab ? strlen(staging->why) : 0;
	for (uint32_t i = 0; i < source->num_lanes; i++)
		lanes[i] = (struct wire_lane){.rail = source->lanes[i].offered.rail,
			.made = source->lanes[i].made,
			.end = source->lanes[i].queues.own};
	struct frame frame = {.kind = FRAME_RDMA_ACCEPT,
		.flags = staging->slab ? FRAME_STAGES : 0,
		.leg = leg->reader_leg,
		.first = source->map.num_keys,
		.count = source->num_lanes,
		.bytes = lanes_bytes + why_bytes};
	wire_encode_lanes(lanes, source->num_lanes, payload);
	memcpy(payload + lanes_bytes, staging->why, why_bytes);
	leg_out_put(leg, &frame, payload);
}

/* The buffer is empty, and takes one frame of any size. */
static void
put_keys(struct source *source)
{
	uint32_t count = th_min_u32(source->map.num_keys - source->keys_told, WIRE_KEYS_AT_ONCE);
	struct frame frame = {.kind = FRAME_RDMA_KEYS,
		.leg = source->leg->reader_leg,
		.first = source->keys_told,
		.count = count,
		.bytes = (uint64_t)count * wire_key_bytes(source->num_lanes)};
	wire_encode_keys(source->map.keys + source->keys_told, count, source->num_lanes,
		leg_out_room(source->leg));
	leg_out_put(source->leg, &frame, NULL);
	source->keys_told += count;
	if (source->staging.slab && source->keys_told == source->map.num_keys)
		source->state = SOURCE_SERVING; /* slots have no extents */
}

static void
put_extents(struct source *source)
{
	uint32_t count =
		th_min_u32(source->map.num_extents - source->extents_told, WIRE_EXTENTS_AT_ONCE);
	struct frame frame = {.kind = FRAME_RDMA_MAP,
		.leg = source->leg->reader_leg,
		.first = source->extents_told,
		.count = count,
		.bytes = (uint64_t)count * WIRE_EXTENT_BYTES};
	wire_encode_extents(
		source->map.extents + source->extents_told, count, leg_out_room(source->leg));
	leg_out_put(source->leg, &frame, NULL);
	source->extents_told += count;
	if (source->extents_told == source->map.num_extents)
		source->state = SOURCE_SERVING;
}

static void
put_decline(struct source *source)
{
	struct leg_out *leg = source->leg;
	size_t bytes = strlen(source->why.text);
	struct frame frame = {.kind = FRAME_RDMA_DECLINE,
		.leg = leg->reader_leg,
		.count = 0u - (uint32_t)TH_E_NO_PATH,
		.bytes = bytes};
	leg_out_put(leg, &frame, (const uint8_t *)source->why.text);
}

static void
put_check(struct source *source)
{
	struct frame frame = {.kind = FRAME_CHECK,
		.leg = source->leg->reader_leg,
		.first = source->checked,
		.count = 1};
	leg_out_put(source->leg, &frame, NULL);
	source->checked = SOURCE_NO_CHUNK;
}

bool
source_refill(struct leg_out_path *path)
{
	struct source *source = source_of(path);
	if (source->closing)
		return false;
	if (source->say_decline) {
		source->say_decline = false;
		put_decline(source);
	} else if (source->say_rails) {
		source->say_rails = false;
		put_rails(source);
	} else if (source->say_accept) {
		source->say_accept = false;
		put_accept(source);
	} else if (source->say_check) {
		source->say_check = false;
		put_check(source);
	} else if (source->state == SOURCE_TELLING && !source->at_keeper &&
		   source->keys_told < source->map.num_keys) {
		put_keys(source);
	} else if (source->state == SOURCE_TELLING) {
		put_extents(source);
	} else if (staging_refill(&source->staging)) {
		return true;
	} else {
		return false;
	}
	return true;
}
