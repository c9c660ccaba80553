/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader_setup - how the lanes of a leg come about: pairs of rails, the offer, queue pairs, where
 * everything lies at the source.
 *
 * The acceptor's, but for what the threads of queue_setup.h do (run_make, run_connect) and the
 * keeper (run_free).
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "ipc/base/log.h"
#include "transport/rdma/engine/poller.h"
#include "transport/rdma/leg/rail_pairs.h"
#include "transport/rdma/leg/reader_own.h"
#include "transport/rdma/memory/region.h"

#define PROBE_BYTES 64u
#define WORTH_LANES_BYTES UINT64_C(16777216) /* less is there by TCP before lanes are */

/* ---- setup's and the keeper's ------------------------------------------------------------- */

/* peer: whom the turn may wait for. */
static void
to_setup(struct reader *reader, void (*run)(struct setup_turn *turn, bool late), const char *peer)
{
	TH_ASSERT(!reader->at_keeper);
	reader->at_keeper = true;
	reader->turn.run = run;
	setup_post(rdma_setup(reader->rdma), &reader->turn, peer, SETUP_WAIT_NS);
}

static void
reader_setup_run_make(struct setup_turn *turn, bool late)
{
	struct reader *reader = loop_container(turn, struct reader, turn);
	struct rdma *rdma = reader->rdma;
	if (late)
		(void)th_fail(&reader->why, TH_E_NO_PATH, "our own agent " SETUP_LATE);
	for (uint32_t i = 0; i < reader->num_lanes && !late; i++) {
		struct reader_lane *lane = &reader->lanes[i];
		/* Until the queue pairs hold it. */
		if (!rail_hold(rdma_rails(rdma), lane->rail)) {
			(void)th_fail(&reader->why, TH_E_NO_PATH,
				"%s cannot be used: the device is gone",
				rail_name(rdma_rails(rdma), lane->rail));
			continue;
		}
		struct verbs_cq *cq = poller_cq(rdma_poller(rdma, lane->rail));
		lane->made = queues_new(rdma_rails(rdma), lane->rail, cq,
				     rdma_settings(rdma)->depth, &lane->queues, &reader->why) == 0;
		rail_unhold(rdma_rails(rdma), lane->rail);
	}
	loop_post(reader_acceptor(reader), &reader->made_task);
}

/* The peer's memory where it begins; what lies there does not matter. */
static bool
probe_of(const struct reader *reader, const struct reader_lane *lane, struct lane_piece *ret_probe)
{
	const struct map *map = &reader->map;
	bool slots = map->num_extents == 0;
	const struct wire_key *key = &map->keys[slots ? 0 : map->extents[0].key];
	uint64_t remote = slots ? key->address : map->extents[0].address;
	struct region_key own;
	if (!rdma_scratch(reader->rdma, lane->rail, &own))
		return false;
	uint64_t left = key->bytes - (remote - key->address);
	*ret_probe = (struct lane_piece){.local = own.address,
		.lkey = own.lkey,
		.remote = remote,
		.rkey = key->rkeys[lane->index],
		.bytes = (uint32_t)th_min_u64(left, PROBE_BYTES)};
	return ret_probe->bytes > 0;
}

/* A peer that nobody finds, or whose endpoint does not suit, is not our own doing. */
static bool
reader_setup_is_ours(int code)
{
	return code != -ETIMEDOUT && code != -EHOSTUNREACH && code != -ENETUNREACH &&
	       code != -EINVAL && code != TH_E_NO_PATH;
}

static int
make_lane(struct reader *reader, struct reader_lane *lane, struct th_err *err)
{
	struct rdma *rdma = reader->rdma;
	struct lane_config config = {
		.user = &reader_lane_user, .arg = lane, .num_qps = lane->queues.count};
	int rc = queues_connect(rdma_rails(rdma), &lane->queues, &lane->other, ENDPOINT_READER,
		reader->leg->peer, err);
	lane->ours = rc == 0 || reader_setup_is_ours(rc);
	if (rc < 0)
		return rc;
	if (!probe_of(reader, lane, &config.probe))
		return th_fail(err, TH_E_NO_PATH, "our own rail is not ready for a probe");
	config.depth = th_min_u32(lane->queues.reads, rdma_settings(rdma)->depth);
	for (uint32_t q = 0; q < lane->queues.count; q++)
		config.qps[q] = lane->queues.qps[q];
	rc = lane_new(poller_rail(rdma_poller(rdma, lane->rail)), &config, &lane->lane);
	if (rc < 0)
		return th_fail(err, rc, "too many legs on one rail: %s", th_strerror(rc));
	lane->made = false; /* the queue pairs are the lane's */
	lane->entry.rail = lane->rail;
	lane->entry.lane = lane->lane;
	memcpy(lane->entry.qpns, lane->queues.own.qpns, sizeof(lane->entry.qpns));
	rdma_lane_add(rdma, &lane->entry);
	return 0;
}

static void
run_connect(struct setup_turn *turn, bool late)
{
	struct reader *reader = loop_container(turn, struct reader, turn);
	int64_t until_ns = th_now_ns() + QUEUES_TURN_NS;
	if (late)
		(void)th_fail(&reader->why, TH_E_NO_PATH, "our own agent " SETUP_LATE);
	for (uint32_t i = 0; i < reader->num_lanes; i++) {
		struct reader_lane *lane = &reader->lanes[i];
		if (late)
			lane->ours = true;
		else if (lane->accepted && th_now_ns() < until_ns)
			lane->unfound = make_lane(reader, lane, &reader->why) < 0 && !lane->ours;
	}
	loop_post(reader_acceptor(reader), &reader->connected_task);
}

static void
reader_setup_run_free(struct loop_task *task)
{
	struct reader *reader = loop_container(task, struct reader, free_task);
	for (uint32_t i = 0; i < reader->num_lanes; i++) {
		struct reader_lane *lane = &reader->lanes[i];
		if (lane->made) /* nothing was ever posted: nothing can write */
			(void)queues_free(rdma_rails(reader->rdma), &lane->queues);
		lane->made = false;
	}
	loop_post(reader_acceptor(reader), &reader->freed_task);
}

/* ---- pairs of rails ----------------------------------------------------------------------- */

static void
choose_pair(struct reader *reader, uint32_t rail, uint32_t *uses, bool *ret_paused)
{
	struct rail_status status;
	uint32_t best = UINT32_MAX;
	int64_t now_ns = th_now_ns();
	rail_status(rdma_rails(reader->rdma), rail, &status);
	for (uint32_t j = 0; j < reader->num_rails; j++) {
		const struct wire_rail *peer = &reader->rails[j];
		if (peer->link != status.port.link)
			continue;
		if (path_paused(rdma_paths(reader->rdma), rail, peer, reader->leg->peer, now_ns)) {
			*ret_paused = true;
			continue;
		}
		/* The least used; of those the one in our own subnet. */
		bool near = memcmp(peer->gid, status.gid.raw, VERBS_GID_BYTES - 1) == 0;
		uint32_t cost = 2 * uses[j] + !near;
		bool better = best == UINT32_MAX;
		if (!better) {
			bool best_near = memcmp(reader->rails[best].gid, status.gid.raw,
						 VERBS_GID_BYTES - 1) == 0;
			better = cost < 2 * uses[best] + !best_near;
		}
		if (better)
			best = j;
	}
	if (best == UINT32_MAX)
		return;
	uses[best]++;
	struct reader_lane *lane = &reader->lanes[reader->num_lanes++];
	lane->rail = rail;
	lane->peer_rail = best;
	lane->peer = reader->rails[best];
}

uint32_t
reader_ready(const struct reader *reader, uint32_t *ret_waiting)
{
	if (!reader->stage.slab)
		return places_ready(&reader->extents, reader->places, ret_waiting);
	return slab_rails(reader->stage.slab, ret_waiting);
}

/* All its registrations have failed meanwhile. */
static bool
stage_instead(struct reader *reader)
{
	struct th_err why, no_room;
	if (reader->stage.slab)
		return false;
	(void)places_why(&reader->extents, reader->places, &why);
	return reader_stage_own(reader, why.text, &no_room) == 0;
}

static uint64_t
bytes_missing(const struct reader *reader)
{
	const struct xfer_part *part = reader->leg->part;
	const struct chunk_table *table = xfer_part_table(part);
	return table->bytes - table->start[xfer_part_prefix(part)];
}

/* Once the source has told its rails, and enough of our own memory is registered. */
void
reader_offer(struct reader *reader, int64_t now_ns)
{
	uint32_t waiting, usable = rdma_usable(reader->rdma), uses[WIRE_RAILS_MAX] = {0};
	uint32_t ready = reader_ready(reader, &waiting) & usable;
	bool paused = false;
	waiting &= usable;
	if (await_more(&reader->await, ready, waiting, now_ns))
		return;
	if (leg_in_streams(reader->leg) && bytes_missing(reader) < WORTH_LANES_BYTES) {
		reader_enter(reader, READER_STAYING, INT64_MAX, "little is missing");
		return;
	}
	if (ready == 0 && waiting == 0 && usable != 0 && stage_instead(reader))
		return; /* looked at again soon */
	if (ready == 0) {
		reader_leave_ours(reader,
			waiting != 0  ? "our own memory is still being registered"
			: usable == 0 ? "none of our own rails is up"
				      : "our own memory is registered on no rail that is up");
		return;
	}
	for (uint32_t rail = 0; rail < RAILS_MAX && reader->num_lanes < WIRE_LANES_MAX; rail++) {
		if (ready & (UINT32_C(1) << rail))
			choose_pair(reader, rail, uses, &paused);
	}
	if (reader->num_lanes == 0) {
		reader_leave(
			reader, paused ? "all paths to it have failed and are left alone for now"
				       : "none of its rails is of the same kind as ours");
		return;
	}
	reader_enter(reader, READER_MAKING, INT64_MAX, "rails are ready");
	to_setup(reader, reader_setup_run_make, "");
}

static int
on_rails(struct reader *reader, const struct frame *frame, const uint8_t *payload)
{
	if (reader->state != READER_WAITING || reader->num_rails > 0)
		return TH_E_PROTOCOL;
	int rc = wire_decode_rails(payload, frame->count, reader->rails);
	if (rc < 0)
		return rc;
	reader->num_rails = frame->count;
	reader_offer(reader, th_now_ns());
	/* From now on our own memory is looked at, also where it streams. */
	if (reader->state == READER_WAITING)
		leg_in_look(reader->leg);
	return 0;
}

/* It stages: why is behind the lanes. */
static int
accept_slots(struct reader *reader, const struct frame *frame, const uint8_t *payload)
{
	char text[TH_CTL_TEXT_BYTES + 1];
	size_t lanes_bytes = (size_t)frame->count * WIRE_LANE_BYTES;
	control_sentence(payload + lanes_bytes, (size_t)frame->bytes - lanes_bytes, text);
	reader_stage_source(reader, frame->first, text);
	return map_init_slots(&reader->map, reader->num_lanes, frame->first);
}

/*
 * The source tries lanes in turn and stops when it has tried for long. The first one that it has
 * not connected it has tried, so that pair of rails is left alone; of those behind it nothing is
 * known.
 */
static void
blame_refused(struct reader *reader)
{
	for (uint32_t i = 0; i < reader->num_lanes; i++) {
		const struct reader_lane *lane = &reader->lanes[i];
		if (lane->accepted)
			continue;
		path_failed(rdma_paths(reader->rdma), lane->rail, &lane->peer, reader->leg->peer,
			"the source could not connect it", th_now_ns());
		return;
	}
}

static int
on_accept(struct reader *reader, const struct frame *frame, const uint8_t *payload)
{
	struct wire_lane lanes[WIRE_LANES_MAX];
	bool any = false;
	if (reader->state != READER_OFFERED || frame->count != reader->num_lanes)
		return TH_E_PROTOCOL;
	int rc = wire_decode_lanes(payload, frame->count, lanes);
	for (uint32_t i = 0; rc == 0 && i < reader->num_lanes; i++) {
		struct reader_lane *lane = &reader->lanes[i];
		struct th_err err;
		if (lanes[i].rail != lane->peer_rail)
			return TH_E_PROTOCOL;
		lane->accepted = lanes[i].made;
		lane->other = lanes[i].end;
		any = any || lane->accepted;
		if (lane->accepted)
			rc = endpoint_check(&lane->other, &err);
	}
	if (rc < 0 || !any)
		return TH_E_PROTOCOL;
	blame_refused(reader);
	reader_enter(reader, READER_MAPPING, reader->deadline_ns, "the source accepts");
	if (frame->flags & FRAME_STAGES)
		return accept_slots(reader, frame, payload);
	return map_init(&reader->map, &reader->extents, reader->num_lanes, frame->first);
}

static int
on_map(struct reader *reader, const struct frame *frame, const uint8_t *payload)
{
	int rc;
	if (reader->state != READER_MAPPING || map_whole(&reader->map))
		return TH_E_PROTOCOL;
	if (frame->kind == FRAME_RDMA_KEYS)
		rc = map_add_keys(&reader->map, frame->first, frame->count, frame->bytes, payload);
	else
		rc = map_add_extents(&reader->map, frame->first, frame->count, payload);
	if (rc < 0 || !map_whole(&reader->map))
		return rc;
	rc = map_check(&reader->map, &reader->extents);
	if (rc < 0)
		return rc;
	reader_enter(reader, READER_CONNECTING, INT64_MAX, "the map is whole");
	to_setup(reader, run_connect, reader->leg->peer);
	return 0;
}

/* ---- what they have done ------------------------------------------------------------------ */

static void
reader_setup_run_made(struct loop_task *task)
{
	struct reader *reader = loop_container(task, struct reader, made_task);
	struct leg_in *leg = reader->leg;
	struct wire_lane lanes[WIRE_LANES_MAX];
	uint8_t payload[WIRE_LANES_MAX * WIRE_LANE_BYTES];
	uint32_t kept = 0;
	reader->at_keeper = false;
	reader_settle(reader);
	reader_leave_if_done(reader);
	if (reader->state != READER_MAKING)
		return;
	for (uint32_t i = 0; i < reader->num_lanes; i++) {
		if (!reader->lanes[i].made)
			continue;
		if (kept != i) {
			reader->lanes[kept] = reader->lanes[i];
			reader->lanes[i].made = false;
		}
		reader->lanes[kept].index = kept;
		lanes[kept] = (struct wire_lane){.rail = reader->lanes[kept].peer_rail,
			.made = true,
			.end = reader->lanes[kept].queues.own};
		kept++;
	}
	reader->num_lanes = kept;
	if (kept == 0) {
		reader_leave_ours(reader, reader->why.text);
		return;
	}
	struct frame frame = {.kind = FRAME_RDMA_OFFER,
		.flags = reader->stage.slab ? FRAME_STAGES : 0,
		.leg = leg->id,
		.count = kept,
		.bytes = (uint64_t)kept * WIRE_LANE_BYTES};
	wire_encode_lanes(lanes, kept, payload);
	reader_enter(reader, READER_OFFERED,
		th_deadline_ns(th_now_ns(), reader_patience_ns(reader)), "queue pairs are made");
	leg_in_put(leg, &frame, payload);
	leg_in_wake(leg);
}

void
reader_say_way(struct reader *reader)
{
	struct leg_in *leg = reader->leg;
	const struct reader_stage *stage = &reader->stage;
	bool own = stage->slab != NULL, source = stage->num_source > 0;
	struct th_err why;
	if (own || source) {
		(void)th_fail(&why, TH_E_NO_PATH, "%s%s%s%s", stage->own_why.text,
			own && source ? "; " : "", source ? "the source says: " : "",
			stage->source_why.text);
		log_info("rdma", "a leg goes through buffers leg=%" PRIu64 " source=%s why='%s'",
			leg->id, leg->peer, why.text);
	}
	leg_in_goes(leg, own || source ? LEG_BY_RDMA_COPY : LEG_BY_RDMA,
		own || source ? why.text : NULL);
}

static void
run_connected(struct loop_task *task)
{
	struct reader *reader = loop_container(task, struct reader, connected_task);
	const char *why = reader->why.text;
	bool any = false, ours = true;
	reader->at_keeper = false;
	for (uint32_t i = 0; i < reader->num_lanes; i++) {
		struct reader_lane *lane = &reader->lanes[i];
		any = any || (lane->lane && !lane->broken);
		ours = ours && (!lane->accepted || lane->ours);
		if (lane->unfound) {
			/* If the source lives on: a host that has died is not found either. */
			lane->blamed = true;
			lane->why = "it could not be connected";
			reader->num_blamed++;
		}
		/* Before it began: its port went down meanwhile. */
		if (lane->lane && lane->broken)
			why = lane->why;
	}
	reader_settle(reader);
	if (reader->state == READER_CLOSING)
		return;
	if (reader->state == READER_CONNECTING && any) {
		reader->looked_ns = th_now_ns();
		leg_in_excuse(reader->leg, reader->looked_ns);
		if (!leg_in_streams(reader->leg))
			reader_say_way(reader);
		reader_enter(reader, READER_RUNNING, INT64_MAX, "lanes are connected");
	}
	for (uint32_t i = 0; i < reader->num_lanes; i++) {
		struct reader_lane *lane = &reader->lanes[i];
		if (!lane->lane || lane->closing)
			continue; /* closing: it may be freed by now */
		lane->moved_ns = th_now_ns();
		lane_start(lane->lane);
		if (reader->state >= READER_LEAVING)
			lane_break(lane->lane, VERBS_FLUSHED, "the leg leaves RDMA");
	}
	if (!any && ours)
		reader_leave_ours(reader, why);
	else if (!any)
		reader_leave(reader, why);
	reader_leave_if_done(reader);
	reader_kick(&reader->path);
}

int
reader_setup_frame(struct reader *reader, const struct frame *frame, const uint8_t *payload)
{
	/* What was on its way when we left. */
	if (reader->state == READER_LEAVING)
		return 0;
	if (frame->kind == FRAME_RDMA_RAILS)
		return on_rails(reader, frame, payload);
	if (frame->kind == FRAME_RDMA_ACCEPT)
		return on_accept(reader, frame, payload);
	if (frame->kind == FRAME_RDMA_KEYS || frame->kind == FRAME_RDMA_MAP)
		return on_map(reader, frame, payload);
	return TH_E_PROTOCOL;
}

static void
reader_setup_run_freed(struct loop_task *task)
{
	struct reader *reader = loop_container(task, struct reader, freed_task);
	reader->at_keeper = false;
	reader_settle(reader);
	reader_leave_if_done(reader);
}

void
reader_setup_init(struct reader *reader)
{
	reader->free_task.run = reader_setup_run_free;
	reader->made_task.run = reader_setup_run_made;
	reader->connected_task.run = run_connected;
	reader->freed_task.run = reader_setup_run_freed;
}
