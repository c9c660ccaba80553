/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader_watch - how the lanes of a leg fare: proved, moving, broken, closed, and whom that tells
 * against. The acceptor's.
 */
#include <inttypes.h>
#include <stdio.h>

#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "transport/rdma/leg/rail_pairs.h"
#include "transport/rdma/leg/reader_own.h"

static const char *
names_of(const struct reader_lane *lane, char ret_text[160])
{
	snprintf(ret_text, 160, "%s -> %s of %s",
		rail_name(rdma_rails(lane->reader->rdma), lane->rail), lane->peer.name,
		lane->reader->leg->peer);
	return ret_text;
}

/* What data connections were asked for still comes by them. */
static void
move_to_lanes(struct reader *reader)
{
	struct leg_in *leg = reader->leg;
	reader_say_way(reader);
	log_info("rdma", "a leg goes on by RDMA leg=%" PRIu64 " source=%s bytes_by_tcp=%" PRIu64,
		leg->id, leg->peer, __atomic_load_n(&leg->bytes_moved, __ATOMIC_RELAXED));
	leg_in_retire(leg);
}

static void
run_proved(struct loop_task *task)
{
	struct reader_lane *lane = loop_container(task, struct reader_lane, proved_task);
	struct reader *reader = lane->reader;
	int64_t now_ns = th_now_ns();
	lane->proved = true;
	lane->moved_ns = now_ns;
	if (leg_in_streams(reader->leg) && reader->state == READER_RUNNING)
		move_to_lanes(reader);
	path_proved(rdma_paths(reader->rdma), lane->rail, &lane->peer, reader->leg->peer, now_ns);
	leg_in_joined(reader->leg, now_ns);
	reader_kick(&reader->path);
}

/* What the peer's memory or agent did, or our own port, says nothing about the path. */
static bool
blames_path(const struct reader_lane *lane)
{
	return lane->status == VERBS_GONE || lane->status == VERBS_OTHER;
}

/* A path to a host that has died breaks like one whose cable is out. Only a source that lives on
 * tells that it was the path: a host that is there again is read by RDMA at once. */
void
reader_heard(struct leg_in_path *path)
{
	struct reader *reader = reader_of(path);
	if (reader->state == READER_WAITING)
		reader->heard_ns = th_now_ns();
	if (reader->num_blamed == 0)
		return;
	for (uint32_t i = 0; i < reader->num_lanes; i++) {
		struct reader_lane *lane = &reader->lanes[i];
		if (lane->blamed)
			path_failed(rdma_paths(reader->rdma), lane->rail, &lane->peer,
				reader->leg->peer, lane->why, th_now_ns());
		lane->blamed = false;
	}
	reader->num_blamed = 0;
}

/* All of its lanes broke at our end, so with another source they would do the same. */
static bool
broke_here(const struct reader *reader)
{
	bool here = true;
	for (uint32_t i = 0; i < reader->num_lanes; i++) {
		const struct reader_lane *lane = &reader->lanes[i];
		if (lane->lane && lane->broken)
			here = here &&
			       (lane->status == VERBS_LOCAL || lane->status == VERBS_FLUSHED);
	}
	return here;
}

bool
reader_look_at_bytes(struct reader_lane *lane)
{
	struct lane_counters counters;
	lane_counters(lane->lane, &counters);
	uint64_t more = counters.bytes - lane->seen_bytes;
	if (more == 0)
		return false;
	path_moved(rdma_paths(lane->reader->rdma), lane->rail, &lane->peer, lane->reader->leg->peer,
		more);
	lane->seen_bytes = counters.bytes;
	lane->moved_ns = th_now_ns();
	leg_in_lives(lane->reader->leg, lane->moved_ns);
	reader_heard(&lane->reader->path);
	return true;
}

/* What came through the others came before this one broke, as far as is known now. */
static void
blame_path(struct reader_lane *lane)
{
	struct reader *reader = lane->reader;
	for (uint32_t i = 0; i < reader->num_lanes; i++) {
		struct reader_lane *other = &reader->lanes[i];
		if (other->lane && !other->closing)
			(void)reader_look_at_bytes(other);
	}
	lane->blamed = true;
	reader->num_blamed++;
}

/* Our device may still write there: it is not given back, and not filled by other ways. */
static void
say_stuck(struct reader_lane *lane)
{
	struct reader *reader = lane->reader;
	char names[160];
	log_error("rdma",
		"cannot destroy queue pairs of a leg, so its memory stays taken leg=%" PRIu64
		" path='%s'",
		reader->leg->id, names_of(lane, names));
	leg_in_fail_ours(reader->leg, TH_E_NO_PATH,
		"a queue pair of our own can be neither drained nor destroyed, so our device may "
		"still write to this memory; restart the agent");
}

static void
reader_watch_run_broken(struct loop_task *task)
{
	struct reader_lane *lane = loop_container(task, struct reader_lane, broken_task);
	struct reader *reader = lane->reader;
	char names[160];
	struct th_err why;
	lane->broken = true;
	if (lane->stuck)
		say_stuck(lane); /* closes it, unless that was done */
	if (reader->state == READER_CLOSING || lane->closing)
		return;
	(void)reader_look_at_bytes(lane);
	lane->closing = true;
	lane_close(lane->lane);
	if (reader->state != READER_RUNNING)
		return; /* leaving already */
	/* The source may have ended: that is not the path's doing. Its word is here by then. */
	leg_in_hear(reader->leg);
	if (reader->state != READER_RUNNING)
		return;
	log_warn("rdma", "a path broke leg=%" PRIu64 " path='%s' why='%s'", reader->leg->id,
		names_of(lane, names), lane->why);
	count_up(&reader->leg->transport->counters.rdma_paths_broken, 1);
	if (blames_path(lane))
		blame_path(lane);
	bool others = false;
	for (uint32_t i = 0; i < reader->num_lanes; i++)
		others = others || (reader->lanes[i].lane && !reader->lanes[i].broken);
	if (others) {
		reader_kick(&reader->path);
		return;
	}
	(void)th_fail(&why, TH_E_NO_PATH, "%s: %s", names, lane->why);
	if (broke_here(reader))
		reader_leave_ours(reader, why.text);
	else
		reader_leave(reader, why.text);
}

static void
run_closed(struct loop_task *task)
{
	struct reader_lane *lane = loop_container(task, struct reader_lane, closed_task);
	struct reader *reader = lane->reader;
	lane->closed = true;
	if (lane->stuck && !lane->broken)
		say_stuck(lane);
	reader_settle(reader);
	reader_leave_if_done(reader);
}

void
reader_look_at_lane(struct reader_lane *lane, int64_t now_ns)
{
	struct reader *reader = lane->reader;
	struct leg_in *leg = reader->leg;
	int64_t stall_ns = leg->transport->config.stall_ns;
	if (!lane->lane || lane->broken || lane->closing)
		return;
	if (!lane->proved) {
		if (now_ns >= lane->moved_ns + READER_PROBE_NS)
			lane_break(lane->lane, VERBS_GONE, "its first READ does not come back");
		return;
	}
	if (reader_look_at_bytes(lane))
		return;
	if (__atomic_load_n(&lane->num_taken, __ATOMIC_RELAXED) == 0) {
		lane->moved_ns = now_ns;
	} else if (now_ns >= lane->moved_ns + stall_ns) {
		lane_break(lane->lane, VERBS_GONE, "nothing comes through it any more");
	}
}

void
reader_watch_init(struct reader_lane *lane)
{
	lane->proved_task.run = run_proved;
	lane->broken_task.run = reader_watch_run_broken;
	lane->closed_task.run = run_closed;
}
