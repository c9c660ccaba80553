/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of transport/rdma/lane: how it breaks and ends; fake devices, virtual time. */
#include "transport/rdma/engine/lane.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/rdma/rail_rig.h"
#include "tests/support/rng.h"

#define MIB (UINT64_C(1) << 20)
#define BYTES (6 * MIB)
#define RATE UINT64_C(50000000000)
/* 8 times 4.096 us times 2^16. */
#define RETRIES_NS INT64_C(2147483648)

/* Two rails at either end, and a leg through the first of them. */
struct setup {
	struct rail_rig rig;
	struct rail_node *readers[2], *sources[2];
	struct rail_memory to, from;
	struct rail_keys *locals[2], *remotes[2];
	struct rail_leg leg;
};

static void
start(struct setup *s, const struct fake_device_config *config)
{
	struct rail_node_config own = {.device = {.bytes_per_second = RATE}};
	if (config)
		own.device = *config;
	*s = (struct setup){0};
	rail_rig_init(&s->rig);
	s->to = (struct rail_memory){.data = calloc(1, BYTES), .bytes = BYTES};
	s->from = (struct rail_memory){.data = malloc(BYTES), .bytes = BYTES};
	cr_assert(s->to.data && s->from.data);
	rail_rig_fill(s->from.data, BYTES);
	for (uint32_t i = 0; i < 2; i++) {
		s->readers[i] = rail_rig_node(&s->rig, &own);
		s->sources[i] = rail_rig_node(&s->rig, &own);
		s->locals[i] = rail_keys_new(s->readers[i], &s->to, VERBS_LOCAL_WRITE);
		s->remotes[i] = rail_keys_new(s->sources[i], &s->from, VERBS_REMOTE_READ);
	}
	rail_leg_init(&s->leg, &s->rig, BYTES, MIB);
}

static struct leg_lane *
open_lane(struct setup *s, uint32_t rail)
{
	return rail_leg_open(
		&s->leg, s->locals[rail], s->remotes[rail], LANE_QPS, LANE_DEPTH, false);
}

static void
finish(struct setup *s)
{
	for (uint32_t i = 0; i < s->leg.num_lanes; i++) {
		if (s->leg.lanes[i].lane)
			rail_leg_close(&s->leg.lanes[i]);
	}
	rail_rig_settle(&s->rig);
	rail_leg_fini(&s->leg);
	for (uint32_t i = 0; i < 2; i++) {
		rail_keys_free(s->locals[i]);
		rail_keys_free(s->remotes[i]);
	}
	rail_rig_settle(&s->rig);
	rail_rig_fini(&s->rig);
	free(s->to.data);
	free(s->from.data);
}

/* The leg ends well over the other rail. */
static void
go_on(struct setup *s)
{
	open_lane(s, 1);
	rail_rig_run(&s->rig, INT64_MAX);
	cr_assert(rail_leg_is_whole(&s->leg));
	cr_assert_eq(memcmp(s->to.data, s->from.data, BYTES), 0);
}

Test(lane, any_request_fails__its_chunks_go_back_and_others_read_them)
{
	static const enum verbs_status kinds[] = {VERBS_ACCESS, VERBS_LOCAL, VERBS_OTHER};
	/* Signalled ones and others, at the beginning, in the middle and at the very end. */
	for (uint32_t n = 0; n < BYTES / RAIL_SLICE_BYTES; n++) {
		for (uint32_t quiet = 0; quiet < 2; quiet++) {
			struct setup s;
			struct fake_device_config config = {
				.bytes_per_second = RATE, .flushes_signalled_only = quiet};
			enum verbs_status status = kinds[n % TH_ARRAY_LEN(kinds)];
			start(&s, &config);
			fake_rdma_fail_read(s.readers[0]->device, n, status);
			struct leg_lane *lane = open_lane(&s, 0);
			rail_rig_run(&s.rig, INT64_MAX);
			cr_assert_eq(lane->broken, 1);
			cr_assert_eq(lane->status, status);
			cr_assert_geq(lane->back, 1);
			cr_assert_eq(lane->landed + lane->back, lane->taken);
			cr_assert_eq(s.readers[0]->rail.out_bytes, 0);
			cr_assert_eq(s.readers[0]->rail.out_reads, 0);
			go_on(&s);
			finish(&s);
		}
	}
}

Test(lane, two_lanes__one_breaks__the_other_reads_all)
{
	for (uint32_t n = 0; n < 10; n += 3) {
		struct setup s;
		start(&s, NULL);
		fake_rdma_fail_read(s.readers[0]->device, n, VERBS_OTHER);
		open_lane(&s, 0);
		open_lane(&s, 1);
		rail_rig_run(&s.rig, INT64_MAX);
		cr_assert_eq(s.leg.lanes[0].broken, 1);
		cr_assert_eq(s.leg.lanes[1].broken, 0);
		cr_assert(rail_leg_is_whole(&s.leg));
		cr_assert_eq(memcmp(s.to.data, s.from.data, BYTES), 0);
		finish(&s);
	}
}

Test(lane, source_does_not_answer__breaks_when_its_retries_are_used_up)
{
	struct setup s;
	start(&s, NULL);
	struct leg_lane *lane = open_lane(&s, 0);
	rail_rig_run(&s.rig, 50000);
	fake_rdma_vanish(s.sources[0]->device);
	rail_rig_run(&s.rig, RETRIES_NS);
	cr_assert_eq(lane->broken, 0);
	rail_rig_run(&s.rig, RETRIES_NS + 100000000);
	cr_assert_eq(lane->broken, 1);
	cr_assert_eq(lane->status, VERBS_GONE);
	go_on(&s);
	finish(&s);
}

Test(lane, told_that_its_source_is_gone__does_not_wait_for_retries)
{
	struct setup s;
	start(&s, NULL);
	struct leg_lane *lane = open_lane(&s, 0);
	rail_rig_run(&s.rig, 50000);
	fake_rdma_vanish(s.sources[0]->device);
	rail_rig_run(&s.rig, 60000);
	lane_break(lane->lane, VERBS_GONE, "no answer on the control connection");
	rail_rig_settle(&s.rig);
	cr_assert_eq(lane->broken, 1);
	cr_assert_eq(lane->status, VERBS_GONE);
	cr_assert_eq(lane->back + lane->landed, lane->taken);
	go_on(&s);
	finish(&s);
}

Test(lane, port_down_for_a_while__the_device_tries_again)
{
	struct setup s;
	start(&s, NULL);
	struct leg_lane *lane = open_lane(&s, 0);
	rail_rig_run(&s.rig, 50000);
	fake_rdma_port_set(s.readers[0]->device, 1, false);
	rail_rig_run(&s.rig, 1000000000);
	cr_assert(!rail_leg_is_whole(&s.leg));
	fake_rdma_port_set(s.readers[0]->device, 1, true);
	rail_rig_run(&s.rig, INT64_MAX);
	cr_assert_eq(lane->broken, 0);
	cr_assert(rail_leg_is_whole(&s.leg));
	cr_assert_eq(memcmp(s.to.data, s.from.data, BYTES), 0);
	finish(&s);
}

Test(lane, source_takes_its_region_away__breaks_at_once)
{
	struct setup s;
	start(&s, NULL);
	struct leg_lane *lane = open_lane(&s, 0);
	rail_rig_run(&s.rig, 50000);
	cr_assert_eq(
		s.sources[0]->verbs.ops->dereg(s.sources[0]->device, &s.remotes[0]->mrs[0]), 0);
	rail_rig_run(&s.rig, 100000);
	cr_assert_eq(lane->broken, 1);
	cr_assert_eq(lane->status, VERBS_ACCESS);
	go_on(&s);
	finish(&s);
}

Test(lane, source_destroys_its_queue_pairs__not_a_byte_more)
{
	struct setup s;
	start(&s, NULL);
	struct leg_lane *lane = open_lane(&s, 0);
	rail_rig_run(&s.rig, 50000);
	rail_leg_fence(lane);
	struct fake_counters before, after;
	fake_rdma_counters(s.sources[0]->device, &before);
	memset(s.from.data, 0xff, BYTES);
	rail_rig_run(&s.rig, INT64_MAX);
	fake_rdma_counters(s.sources[0]->device, &after);
	cr_assert_eq(before.bytes_out, after.bytes_out);
	cr_assert_eq(lane->status, VERBS_GONE);
	cr_assert_eq(lane->back + lane->landed, lane->taken);
	finish(&s);
}

Test(lane, probe_fails__breaks_before_any_chunk_is_taken)
{
	struct setup s;
	start(&s, NULL);
	fake_rdma_cut(s.readers[0]->device, s.sources[0]->device, true);
	struct leg_lane *lane =
		rail_leg_open(&s.leg, s.locals[0], s.remotes[0], LANE_QPS, LANE_DEPTH, true);
	rail_rig_run(&s.rig, INT64_MAX);
	cr_assert_eq(lane->broken, 1);
	cr_assert_eq(lane->proved, 0);
	cr_assert_eq(lane->taken, 0);
	cr_assert_eq(lane->status, VERBS_GONE);
	go_on(&s);
	finish(&s);
}

Test(lane, chunk_without_registered_memory__breaks_and_gives_it_back)
{
	struct setup s;
	start(&s, NULL);
	s.leg.no_pieces = true;
	struct leg_lane *lane = open_lane(&s, 0);
	rail_rig_run(&s.rig, INT64_MAX);
	cr_assert_eq(lane->broken, 1);
	cr_assert_eq(lane->status, VERBS_LOCAL);
	cr_assert_eq(lane->back, 1);
	s.leg.no_pieces = false;
	go_on(&s);
	finish(&s);
}

Test(lane, flushes_do_not_come__chunks_wait_until_the_queue_pairs_are_destroyed)
{
	struct setup s;
	start(&s, NULL);
	struct leg_lane *lane = open_lane(&s, 0);
	rail_rig_run(&s.rig, 50000);
	fake_rdma_mute(s.readers[0]->device, true);
	s.readers[0]->holds_frees = true;
	lane_break(lane->lane, VERBS_GONE, "tried");
	rail_rig_run(&s.rig, 50000 + RAIL_DRAIN_NS - 1);
	cr_assert_eq(s.readers[0]->num_unfreed, 0);
	rail_rig_run(&s.rig, 50000 + RAIL_DRAIN_NS);
	cr_assert_eq(s.readers[0]->num_unfreed, 1);
	rail_rig_run(&s.rig, 50000 + 2 * RAIL_DRAIN_NS);
	cr_assert_eq(lane->back, 0);
	cr_assert_eq(lane->broken, 0);
	rail_node_free_qps(s.readers[0]);
	rail_rig_settle(&s.rig);
	cr_assert_eq(lane->broken, 1);
	cr_assert_eq(lane->back + lane->landed, lane->taken);
	cr_assert_eq(s.readers[0]->rail.out_bytes, 0);
	struct rail_counters counters;
	rail_counters(&s.readers[0]->rail, &counters);
	cr_assert_eq(counters.given_up, 1);
	go_on(&s);
	finish(&s);
}

Test(lane, device_takes_no_posts_for_a_while__tried_again)
{
	struct setup s;
	struct rail_counters counters;
	start(&s, NULL);
	fake_rdma_refuse(s.readers[0]->device, FAKE_POST, 30, -ENOMEM);
	struct leg_lane *lane = open_lane(&s, 0);
	rail_rig_run(&s.rig, INT64_MAX);
	cr_assert_eq(lane->broken, 0);
	cr_assert(rail_leg_is_whole(&s.leg));
	cr_assert_eq(memcmp(s.to.data, s.from.data, BYTES), 0);
	rail_counters(&s.readers[0]->rail, &counters);
	cr_assert_eq(counters.refused, 30);
	finish(&s);
}

Test(lane, device_takes_no_posts_any_more__breaks)
{
	static const struct {
		int code;
		int64_t most_ns;
	} kinds[] = {{-ENOMEM, RAIL_PATIENCE_NS + 2 * RAIL_REFUSED_NS}, {-EINVAL, 1000000}};
	for (size_t i = 0; i < TH_ARRAY_LEN(kinds); i++) {
		struct setup s;
		start(&s, NULL);
		struct leg_lane *lane = open_lane(&s, 0);
		rail_rig_run(&s.rig, 30000);
		fake_rdma_refuse(s.readers[0]->device, FAKE_POST, FAKE_ALWAYS, kinds[i].code);
		rail_leg_kick(&s.leg);
		rail_rig_run(&s.rig, 30000 + kinds[i].most_ns);
		/* All of it fits the window, so what was posted before may have been all. */
		if (!rail_leg_is_whole(&s.leg)) {
			cr_assert_eq(lane->broken, 1);
			cr_assert_eq(lane->status, VERBS_LOCAL);
			go_on(&s);
		}
		finish(&s);
	}
}

/* Some of a batch lie in the queue and may still write: their chunks wait for them. */
Test(lane, device_takes_half_of_a_batch__breaks_and_waits_for_that_half)
{
	for (uint32_t taken = 1; taken <= LANE_BATCH; taken++) {
		for (uint32_t muted = 0; muted < 2; muted++) {
			struct setup s;
			start(&s, NULL);
			fake_rdma_half_post(s.readers[0]->device, taken);
			fake_rdma_mute(s.readers[0]->device, muted);
			s.readers[0]->holds_frees = true;
			struct leg_lane *lane = open_lane(&s, 0);
			rail_rig_settle(&s.rig);
			struct fake_counters counters;
			fake_rdma_counters(s.readers[0]->device, &counters);
			cr_assert_eq(counters.reads, taken);
			cr_assert_eq(lane->broken, !muted);
			cr_assert_eq(lane->back, muted ? 0 : lane->taken);
			cr_assert_eq(s.readers[0]->rail.out_reads, muted ? taken : 0);
			rail_rig_run(&s.rig, 2 * RAIL_DRAIN_NS);
			cr_assert_eq(s.readers[0]->num_unfreed, 1);
			cr_assert_eq(lane->broken, !muted);
			s.readers[0]->holds_frees = false;
			rail_node_free_qps(s.readers[0]);
			rail_rig_settle(&s.rig);
			cr_assert_eq(lane->broken, 1);
			cr_assert_eq(lane->status, VERBS_LOCAL);
			cr_assert_eq(lane->back, lane->taken);
			cr_assert_eq(s.readers[0]->rail.out_bytes, 0);
			go_on(&s);
			finish(&s);
		}
	}
}

Test(lane, device_is_removed__breaks_and_other_rails_go_on)
{
	struct setup s;
	start(&s, NULL);
	struct leg_lane *lane = open_lane(&s, 0);
	rail_rig_run(&s.rig, 50000);
	fake_rdma_remove(s.readers[0]->device);
	rail_rig_settle(&s.rig);
	cr_assert_eq(lane->broken, 1);
	rail_lose(&s.readers[0]->rail, VERBS_OTHER, "the device is gone");
	/* A lane that comes too late. */
	cr_assert_eq(s.leg.num_lanes, 1);
	go_on(&s);
	finish(&s);
}

Test(lane, completion_queue_fails__all_its_lanes_break)
{
	struct setup s;
	start(&s, NULL);
	struct leg_lane *first = open_lane(&s, 0), *second = open_lane(&s, 0);
	rail_rig_run(&s.rig, 50000);
	fake_rdma_break_cqs(s.readers[0]->device);
	rail_rig_settle(&s.rig);
	cr_assert_eq(first->broken, 1);
	cr_assert_eq(second->broken, 1);
	struct leg_lane *late = open_lane(&s, 0);
	rail_rig_settle(&s.rig);
	cr_assert_eq(late->broken, 1);
	cr_assert_eq(late->taken, 0);
	go_on(&s);
	finish(&s);
}

Test(lane, closed_in_every_state__no_call_but_closed)
{
	enum { NEW, PROBING, HUNGRY, RUNNING, DRAINING, BROKEN, LOST, STATES };
	for (int state = 0; state < STATES; state++) {
		struct setup s;
		struct fake_counters device;
		start(&s, NULL);
		if (state == HUNGRY)
			s.leg.limit = 0;
		struct leg_lane *lane = rail_leg_open(
			&s.leg, s.locals[0], s.remotes[0], LANE_QPS, LANE_DEPTH, state == PROBING);
		if (state >= HUNGRY)
			rail_rig_run(&s.rig, 50000);
		else if (state == PROBING)
			rail_rig_settle(&s.rig);
		if (state == DRAINING)
			fake_rdma_mute(s.readers[0]->device, true);
		if (state == DRAINING || state == BROKEN) {
			lane_break(lane->lane, VERBS_OTHER, "tried");
			rail_rig_settle(&s.rig);
		}
		if (state == LOST)
			fake_rdma_break_cqs(s.readers[0]->device);
		cr_assert_eq(lane->broken, state == BROKEN);
		rail_leg_close(lane);
		if (state == RUNNING || state == PROBING)
			rail_leg_kick(&s.leg);
		rail_rig_settle(&s.rig);
		if (state == DRAINING)
			cr_assert_eq(lane->closed, 0);
		rail_rig_run(&s.rig, RAIL_DRAIN_NS * 2);
		cr_assert_eq(lane->closed, 1);
		cr_assert_eq(lane->broken, state == BROKEN);
		fake_rdma_counters(s.readers[0]->device, &device);
		cr_assert_eq(device.qps, 0);
		cr_assert_eq(s.readers[0]->rail.lanes_used, 0);
		cr_assert_eq(s.readers[0]->rail.out_bytes, 0);
		finish(&s);
	}
}

/* Its port goes down while its user closes it, who was told of the break before. */
Test(lane, told_to_break_once_more_while_it_is_closed__gone_once)
{
	struct setup s;
	struct leg_lane *lanes[2];
	start(&s, NULL);
	for (uint32_t i = 0; i < 2; i++)
		lanes[i] = open_lane(&s, 0);
	rail_rig_run(&s.rig, 50000);
	for (uint32_t i = 0; i < 2; i++)
		lane_break(lanes[i]->lane, VERBS_OTHER, "tried");
	rail_rig_settle(&s.rig);
	for (uint32_t i = 0; i < 2; i++)
		rail_leg_close(lanes[i]);
	lane_break(lanes[0]->lane, VERBS_OTHER, "its port is down");
	rail_rig_settle(&s.rig);
	cr_assert_eq(lanes[0]->closed, 1);
	cr_assert_eq(lanes[1]->closed, 1);
	cr_assert_eq(s.readers[0]->rail.lanes_used, 0);
	go_on(&s);
	finish(&s);
}

Test(lane, completions_of_a_lane_that_is_gone__not_taken_for_those_of_the_next)
{
	struct setup s;
	start(&s, NULL);
	struct leg_lane *first = open_lane(&s, 0);
	rail_rig_run(&s.rig, 40000);
	/* Flushed completions lie in the queue when its queue pairs are gone already. */
	fake_rdma_mute(s.readers[0]->device, true);
	rail_leg_close(first);
	rail_rig_run(&s.rig, 40000 + RAIL_DRAIN_NS * 2);
	cr_assert_eq(first->closed, 1);
	fake_rdma_mute(s.readers[0]->device, false);
	for (uint32_t i = 0; i < s.leg.num_chunks; i++) {
		if (s.leg.chunks[i] == LEG_TAKEN)
			s.leg.chunks[i] = LEG_FREE; /* closed with it: its user knows */
	}
	s.leg.next = 0;
	open_lane(&s, 0);
	rail_rig_run(&s.rig, INT64_MAX);
	cr_assert(rail_leg_is_whole(&s.leg));
	cr_assert_eq(memcmp(s.to.data, s.from.data, BYTES), 0);
	finish(&s);
}

Test(lane, refused_now_and_then__each_time_has_its_own_patience)
{
	struct setup s;
	start(&s, NULL);
	s.leg.limit = 0;
	struct leg_lane *lane = open_lane(&s, 0);
	for (uint32_t limit = 1; limit <= s.leg.num_chunks; limit++) {
		fake_rdma_refuse(s.readers[0]->device, FAKE_POST, 2, -ENOMEM);
		rail_leg_push(&s.leg, limit);
		rail_rig_run(&s.rig, fake_rdma_now(s.rig.fake) + RAIL_PATIENCE_NS);
	}
	cr_assert_eq(lane->broken, 0);
	cr_assert(rail_leg_is_whole(&s.leg));
	finish(&s);
}

Test(lane, completion_queue_fails_while_it_drains__does_not_wait)
{
	struct setup s;
	start(&s, NULL);
	struct leg_lane *lane = open_lane(&s, 0);
	rail_rig_run(&s.rig, 50000);
	fake_rdma_mute(s.readers[0]->device, true);
	lane_break(lane->lane, VERBS_OTHER, "tried");
	rail_rig_settle(&s.rig);
	cr_assert_eq(lane->broken, 0);
	fake_rdma_break_cqs(s.readers[0]->device);
	rail_rig_settle(&s.rig);
	cr_assert_eq(lane->broken, 1);
	go_on(&s);
	finish(&s);
}

Test(lane, chunk_of_empty_pieces__is_there_without_a_read)
{
	struct setup s;
	struct fake_counters device;
	start(&s, NULL);
	memcpy(s.to.data, s.from.data, BYTES);
	s.leg.empty_pieces = true;
	open_lane(&s, 0);
	rail_rig_run(&s.rig, INT64_MAX);
	cr_assert(rail_leg_is_whole(&s.leg));
	fake_rdma_counters(s.readers[0]->device, &device);
	cr_assert_eq(device.reads, 0);
	finish(&s);
}

/* Their room in the completion queue is theirs until it is empty: it must not overrun. */
Test(lane, late_completions_of_lanes_that_are_gone__keep_their_room)
{
	struct rail_rig rig;
	struct rail_leg leg;
	struct fake_counters device;
	struct lane *lane;
	uint32_t requests = LANE_QPS_MAX * LANE_DEPTH_MAX;
	struct rail_memory memory = {.bytes = 64 * MIB};
	struct rail_node_config config = {.cq_depth = 2 * requests, .slice_bytes = 4096};
	struct lane_config more = {.num_qps = 1, .depth = 1};
	rail_rig_init(&rig);
	struct rail_node *reader = rail_rig_node(&rig, &config);
	struct rail_node *source = rail_rig_node(&rig, NULL);
	struct rail_keys *local = rail_keys_new(reader, &memory, VERBS_LOCAL_WRITE);
	struct rail_keys *remote = rail_keys_new(source, &memory, VERBS_REMOTE_READ);
	rail_leg_init(&leg, &rig, memory.bytes, RAIL_CHUNK_BYTES);
	for (uint32_t i = 0; i < 2; i++)
		rail_leg_open(&leg, local, remote, LANE_QPS_MAX, LANE_DEPTH_MAX, false);
	rail_rig_settle(&rig);
	cr_assert_eq(reader->rail.out_reads, 2 * requests);
	fake_rdma_mute(reader->device, true);
	reader->holds_frees = true;
	for (uint32_t i = 0; i < 2; i++)
		rail_leg_close(&leg.lanes[i]);
	/* Nothing is polled from here on. */
	rail_rig_settle(&rig);
	fake_rdma_run(rig.fake, RAIL_DRAIN_NS);
	rail_step(&reader->rail, RAIL_DRAIN_NS);
	cr_assert_eq(reader->num_unfreed, 2);
	rail_node_free_qps(reader);
	for (struct loop_task *task = reader->head; task; task = reader->head) {
		reader->head = task->next;
		task->queued = false;
		task->run(task);
	}
	reader->tail = &reader->head;
	cr_assert(leg.lanes[0].closed && leg.lanes[1].closed);
	rail_step(&reader->rail, RAIL_DRAIN_NS);
	cr_assert_eq(lane_new(&reader->rail, &more, &lane), -ENOSPC);
	rail_rig_settle(&rig);
	cr_assert_eq(reader->rail.cq_used, 0);
	fake_rdma_counters(reader->device, &device);
	cr_assert_eq(device.overruns, 0);
	rail_leg_fini(&leg);
	rail_keys_free(local);
	rail_keys_free(remote);
	rail_rig_fini(&rig);
}

static uint64_t stray_id;

static int
poll_stray(struct verbs_cq *cq, struct verbs_done *ret_done, uint32_t done_max)
{
	(void)cq;
	cr_assert_geq(done_max, 1);
	*ret_done = (struct verbs_done){.id = stray_id};
	return 1;
}

Test(lane, completions_of_nothing_known__counted_and_ignored)
{
	struct setup s;
	struct rail_counters counters;
	start(&s, NULL);
	struct leg_lane *lane = open_lane(&s, 0);
	rail_rig_settle(&s.rig);
	struct rail *rail = &s.readers[0]->rail;
	uint32_t stamp = lane->lane->stamp, reads = rail->out_reads;
	const uint64_t ids[] = {
		rail_id(stamp - 1, 0, 0, 0),          /* of another lane that was there */
		rail_id(stamp, 1, 0, 0),              /* of none */
		rail_id(stamp, RAIL_LANES_MAX, 0, 0), /* beyond the table */
		rail_id(stamp, 0, LANE_QPS, 0),       /* of another queue pair */
		rail_id(stamp, 0, 0, LANE_DEPTH),     /* not posted yet */
		rail_id(stamp, 0, 0, UINT16_MAX),     /* done before */
	};
	const struct verbs real = rail->verbs;
	struct verbs_ops ops = *real.ops;
	ops.cq_poll = poll_stray;
	for (size_t i = 0; i < TH_ARRAY_LEN(ids); i++) {
		stray_id = ids[i];
		rail->verbs.ops = &ops;
		rail_step(rail, fake_rdma_now(s.rig.fake));
		rail->verbs = real;
		rail_counters(rail, &counters);
		cr_assert_eq(counters.strange, i + 1);
		cr_assert_eq(rail->out_reads, reads);
	}
	rail_rig_run(&s.rig, INT64_MAX);
	cr_assert(rail_leg_is_whole(&s.leg));
	cr_assert_eq(memcmp(s.to.data, s.from.data, BYTES), 0);
	finish(&s);
}

/* ---- random runs --------------------------------------------------------------------------- */

static uint64_t
below(struct th_rng *rng, uint64_t bound)
{
	return th_rng_below(rng, bound);
}

/* Something goes wrong on rail 0, which may be any of its two devices. */
static void
disturb(struct setup *s, struct th_rng *rng)
{
	struct verbs_device *reader = s->readers[0]->device, *source = s->sources[0]->device;
	struct leg_lane *lane = &s->leg.lanes[below(rng, s->leg.num_lanes)];
	switch (below(rng, 13)) {
	case 0:
		fake_rdma_fail_read(reader, (uint32_t)below(rng, 20),
			(enum verbs_status)(VERBS_ACCESS + below(rng, 4)));
		break;
	case 1:
		fake_rdma_refuse(reader, FAKE_POST, (uint32_t)below(rng, 5), -ENOMEM);
		break;
	case 2:
		fake_rdma_port_set(source, 1, below(rng, 2));
		break;
	case 3:
		fake_rdma_cut(reader, source, below(rng, 2));
		break;
	case 4:
		fake_rdma_mute(reader, below(rng, 2));
		break;
	case 5:
		fake_rdma_set_rate(reader, RATE >> below(rng, 6));
		break;
	case 6:
		if (lane->lane && !lane->broken)
			lane_break(lane->lane, VERBS_OTHER, "tried");
		break;
	case 7:
		if (lane->source == s->sources[0])
			rail_leg_fence(lane);
		break;
	case 8:
		if (s->leg.num_lanes < RAIL_LANES)
			open_lane(s, 0);
		break;
	case 9:
		s->readers[0]->holds_frees = below(rng, 2);
		break;
	case 10:
		rail_leg_kick(&s->leg);
		break;
	case 11:
		fake_rdma_half_post(reader, (uint32_t)below(rng, LANE_BATCH + 1));
		break;
	default:
		rail_leg_push(&s->leg, s->leg.limit + (uint32_t)below(rng, 3));
		break;
	}
}

static void
play(uint64_t seed)
{
	struct setup s;
	struct th_rng rng;
	th_rng_init_number(&rng, seed);
	struct fake_device_config config = {
		.bytes_per_second = RATE,
		.flushes_signalled_only = below(&rng, 2),
		.latency_ns = 1000 << below(&rng, 6),
	};
	start(&s, &config);
	s.leg.limit = (uint32_t)below(&rng, 3);
	/* The lane of the other rail comes last, and is not disturbed: all must end well. */
	rail_leg_open(&s.leg, s.locals[0], s.remotes[0], 1 + (uint32_t)below(&rng, LANE_QPS_MAX),
		1 + (uint32_t)below(&rng, 16), below(&rng, 2));
	for (uint32_t i = (uint32_t)below(&rng, 40); i > 0; i--) {
		rail_rig_run(&s.rig, fake_rdma_now(s.rig.fake) +
					     (int64_t)below(&rng, UINT64_C(1) << below(&rng, 24)));
		disturb(&s, &rng);
	}
	fake_rdma_mute(s.readers[0]->device, false);
	s.readers[0]->holds_frees = false;
	for (uint32_t i = 0; i < s.leg.num_lanes; i++) {
		if (s.leg.lanes[i].lane && !s.leg.lanes[i].broken)
			lane_break(s.leg.lanes[i].lane, VERBS_OTHER, "enough");
	}
	rail_rig_run(&s.rig, fake_rdma_now(s.rig.fake) + 2 * RAIL_DRAIN_NS);
	for (uint32_t i = 0; i < s.leg.num_lanes; i++)
		rail_leg_close(&s.leg.lanes[i]);
	rail_rig_settle(&s.rig);
	cr_assert_eq(s.readers[0]->rail.out_reads, 0);
	cr_assert_eq(s.readers[0]->rail.num_wanting, 0);
	cr_assert_eq(s.readers[0]->rail.lanes_used, 0);
	cr_assert_lt(s.leg.num_lanes, RAIL_LANES + 1);
	if (s.leg.num_lanes == RAIL_LANES) {
		finish(&s);
		return;
	}
	s.leg.limit = s.leg.num_chunks;
	go_on(&s);
	struct fake_counters device;
	fake_rdma_counters(s.readers[0]->device, &device);
	cr_assert_eq(device.overruns, 0);
	finish(&s);
}

Test(lane, random_runs__every_byte_once_and_nothing_left)
{
	const char *longer = getenv("TH_LONG");
	uint64_t runs = longer && *longer == '1' ? 5000 : 60;
	for (uint64_t seed = 1; seed <= runs; seed++) {
		cr_log_info("seed %llu", (unsigned long long)seed);
		play(seed);
	}
}
