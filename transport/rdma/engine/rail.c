/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rail - see rail.h: whose turn it is, whose completion that was, and what has taken too long.
 */
#include "transport/rdma/engine/rail.h"

#include <stdlib.h>
#include <utlist.h>

#include "ipc/base/assert.h"

#define POLL_MAX 32   /* completions of one call */
#define POLL_ROUNDS 8 /* calls of one step: posting must not wait for long */

/* ---- requests' names ----------------------------------------------------------------------- */

/* A completion may outlive its lane: the stamp tells. */
#define ID_STAMP_SHIFT 40
#define ID_LANE_SHIFT 24
#define ID_QP_SHIFT 16
#define ID_STAMP_MASK 0xffffffu

uint64_t
rail_id(uint32_t stamp, uint32_t lane, uint32_t qp, uint16_t position)
{
	return (uint64_t)(stamp & ID_STAMP_MASK) << ID_STAMP_SHIFT |
	       (uint64_t)lane << ID_LANE_SHIFT | (uint64_t)qp << ID_QP_SHIFT | position;
}

static void
rail_dispatch(struct rail *rail, const struct verbs_done *done)
{
	uint32_t index = done->id >> ID_LANE_SHIFT & 0xffff;
	struct lane *lane = index < RAIL_LANES_MAX ? rail->lanes[index] : NULL;
	if (!lane || done->id >> ID_STAMP_SHIFT != (lane->stamp & ID_STAMP_MASK)) {
		rail_count(&rail->counters.strange, 1);
		return;
	}
	lane_done(lane, done->id >> ID_QP_SHIFT & 0xff, (uint16_t)done->id, done->status);
}

/* ---- lanes --------------------------------------------------------------------------------- */

static void
rail_unreserve(struct rail *rail, uint32_t requests)
{
	__atomic_sub_fetch(&rail->cq_used, requests, __ATOMIC_RELAXED);
	__atomic_sub_fetch(&rail->lanes_used, 1, __ATOMIC_RELAXED);
}

bool
rail_reserve(struct rail *rail, uint32_t requests)
{
	uint32_t used = __atomic_add_fetch(&rail->cq_used, requests, __ATOMIC_RELAXED);
	uint32_t lanes = __atomic_add_fetch(&rail->lanes_used, 1, __ATOMIC_RELAXED);
	if (used <= rail->cq_depth && lanes <= RAIL_LANES_MAX)
		return true;
	rail_unreserve(rail, requests);
	return false;
}

void
rail_admit(struct rail *rail, struct lane *lane)
{
	uint32_t index = 0;
	while (rail->lanes[index])
		index++;
	TH_ASSERT(index < RAIL_LANES_MAX);
	rail->lanes[index] = lane;
	rail->num_lanes = th_max_u32(rail->num_lanes, index + 1);
	lane->index = index;
	lane->stamp = ++rail->stamp;
}

void
rail_ready(struct rail *rail, struct lane *lane)
{
	if (lane->is_ready)
		return;
	lane->is_ready = true;
	DL_APPEND(rail->ready, lane);
}

void
rail_unready(struct rail *rail, struct lane *lane)
{
	if (!lane->is_ready)
		return;
	lane->is_ready = false;
	DL_DELETE(rail->ready, lane);
}

void
rail_dismiss(struct rail *rail, struct lane *lane)
{
	DL_APPEND(rail->gone, lane);
}

void
rail_expire_at(struct rail *rail, struct lane *lane, int64_t deadline_ns)
{
	lane->deadline_ns = deadline_ns;
	rail->deadline_ns = th_min_i64(rail->deadline_ns, deadline_ns);
}

/* Only with an empty completion queue: until then what these lanes posted may lie in it. */
static void
free_gone(struct rail *rail)
{
	struct lane *lane, *next;
	DL_FOREACH_SAFE(rail->gone, lane, next)
	{
		/* Its user kicked it before it was told. */
		if (__atomic_load_n(&lane->kick_task.queued, __ATOMIC_ACQUIRE) ||
			__atomic_load_n(&lane->break_task.queued, __ATOMIC_ACQUIRE))
			continue;
		DL_DELETE(rail->gone, lane);
		if (lane->index < RAIL_LANES_MAX)
			rail->lanes[lane->index] = NULL;
		rail_unreserve(rail, lane->num_qps * lane->depth);
		free(lane);
	}
	while (rail->num_lanes > 0 && !rail->lanes[rail->num_lanes - 1])
		rail->num_lanes--;
}

/* ---- a step -------------------------------------------------------------------------------- */

static void
rail_expire(struct rail *rail, int64_t now_ns)
{
	rail->deadline_ns = INT64_MAX;
	for (uint32_t i = 0; i < rail->num_lanes; i++) {
		struct lane *lane = rail->lanes[i];
		if (lane && lane->deadline_ns <= now_ns)
			lane_expire(lane);
	}
	for (uint32_t i = 0; i < rail->num_lanes; i++) {
		if (rail->lanes[i])
			rail->deadline_ns =
				th_min_i64(rail->deadline_ns, rail->lanes[i]->deadline_ns);
	}
}

/* Whether something came. */
static bool
reap(struct rail *rail, bool *ret_empty)
{
	struct verbs_done done[POLL_MAX];
	bool moved = false;
	*ret_empty = true;
	for (int round = 0; round < POLL_ROUNDS && !rail->lost; round++) {
		int got = rail->verbs.ops->cq_poll(rail->cq, done, POLL_MAX);
		if (got < 0) {
			rail_lose(rail, VERBS_LOCAL, "our device's completion queue failed");
			return true;
		}
		for (int i = 0; i < got; i++)
			rail_dispatch(rail, &done[i]);
		moved = moved || got > 0;
		*ret_empty = got < POLL_MAX;
		if (*ret_empty)
			break;
	}
	return moved;
}

static bool
rail_has_room(const struct rail *rail)
{
	uint64_t batch_bytes = (uint64_t)rail->batch * rail->slice_bytes;
	uint64_t out_bytes = rail->out_bytes - rail->late_bytes;
	return out_bytes == 0 || out_bytes + batch_bytes <= rail->window_bytes;
}

static bool
starves(const struct rail *rail)
{
	return rail->ready && !rail_has_room(rail);
}

static void
find_late(struct rail *rail, int64_t now_ns)
{
	rail->late_ns = now_ns + RAIL_LATE_NS / 4;
	for (uint32_t i = 0; i < rail->num_lanes; i++) {
		struct lane *lane = rail->lanes[i];
		if (!lane || lane->out_bytes == 0 || lane->late_bytes > 0 ||
			now_ns - lane->moved_ns < RAIL_LATE_NS)
			continue;
		lane->late_bytes = lane->out_bytes;
		rail->late_bytes += lane->late_bytes;
		rail_unready(rail, lane); /* a completion makes it ready again */
	}
}

/* Whether something was posted. */
static bool
rail_fill(struct rail *rail)
{
	bool moved = false;
	while (rail->ready && rail_has_room(rail)) {
		struct lane *lane = rail->ready;
		enum lane_turn turn = lane_turn(lane);
		if (turn == LANE_OVER)
			continue; /* off the list, and perhaps gone */
		rail_unready(rail, lane);
		if (turn == LANE_POSTED) {
			rail_ready(rail, lane);
			moved = true;
		}
	}
	return moved;
}

bool
rail_step(struct rail *rail, int64_t now_ns)
{
	if (rail->num_wanting > 0 && now_ns > rail->stepped_ns) {
		uint64_t passed_ns = (uint64_t)(now_ns - rail->stepped_ns);
		rail_count(&rail->counters.wanting_ns, passed_ns);
		rail_count(&rail->counters.outstanding_ns, passed_ns * rail->out_reads);
	}
	rail->stepped_ns = now_ns;
	bool empty, moved = reap(rail, &empty);
	if (now_ns >= rail->deadline_ns)
		rail_expire(rail, now_ns);
	if (now_ns >= rail->late_ns && starves(rail))
		find_late(rail, now_ns);
	if (rail_fill(rail))
		moved = true;
	if (rail->gone && empty)
		free_gone(rail);
	return moved;
}

int64_t
rail_deadline(const struct rail *rail)
{
	return starves(rail) ? th_min_i64(rail->deadline_ns, rail->late_ns) : rail->deadline_ns;
}

void
rail_lose(struct rail *rail, enum verbs_status status, const char *why)
{
	if (rail->lost)
		return;
	rail->lost = true;
	rail->lost_status = status;
	rail->lost_why = why;
	for (uint32_t i = 0; i < rail->num_lanes; i++) {
		if (rail->lanes[i])
			lane_lose(rail->lanes[i]);
	}
}

/* ---- its life ------------------------------------------------------------------------------ */

void
rail_init(struct rail *rail, const struct rail_config *config)
{
	*rail = (struct rail){
		.verbs = config->verbs,
		.cq = config->cq,
		.around = config->around,
		.arg = config->arg,
		.cq_depth = config->cq_depth,
		.window_bytes = config->window_bytes ? config->window_bytes : RAIL_WINDOW_BYTES,
		.slice_bytes = config->slice_bytes ? config->slice_bytes : RAIL_SLICE_BYTES,
		.answer_ns = config->answer_ns,
		.stepped_ns = INT64_MAX,
		.deadline_ns = INT64_MAX,
	};
	uint64_t slices = th_max_u64(rail->window_bytes / rail->slice_bytes, 1);
	rail->batch = (uint32_t)th_min_u64(slices, LANE_BATCH);
}

void
rail_fini(struct rail *rail)
{
	TH_ASSERT(rail->num_lanes == 0 && !rail->gone && rail->lanes_used == 0);
}

void
rail_counters_add(struct rail_counters *sum, const struct rail_counters *more)
{
	const uint64_t *from = (const uint64_t *)more;
	uint64_t *to = (uint64_t *)sum;
	for (size_t i = 0; i < sizeof(*sum) / sizeof(*from); i++)
		to[i] += from[i];
}

void
rail_counters(const struct rail *rail, struct rail_counters *ret_counters)
{
	const uint64_t *from = (const uint64_t *)&rail->counters;
	uint64_t *to = (uint64_t *)ret_counters;
	_Static_assert(sizeof(rail->counters) % sizeof(*from) == 0, "all are of one type");
	for (size_t i = 0; i < sizeof(rail->counters) / sizeof(*from); i++)
		to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}
