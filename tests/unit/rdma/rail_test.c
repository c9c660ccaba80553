/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of transport/rdma/rail: windows, turns, batches and bounds; fake devices, virtual time. */
#include "transport/rdma/engine/rail.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/rdma/rail_rig.h"

#define MIB (UINT64_C(1) << 20)
#define RATE_400G UINT64_C(50000000000)

struct pair {
	struct rail_rig rig;
	struct rail_node *reader, *source;
	struct rail_memory to, from;
	struct rail_keys *local, *remote;
};

static void
start(struct pair *p, uint64_t bytes, const struct rail_node_config *config, uint64_t to_regions,
	uint64_t from_regions)
{
	struct rail_node_config rate = {.device.bytes_per_second = RATE_400G};
	*p = (struct pair){0};
	rail_rig_init(&p->rig);
	p->reader = rail_rig_node(&p->rig, config ? config : &rate);
	p->source = rail_rig_node(&p->rig, &rate);
	p->to = (struct rail_memory){
		.data = calloc(1, bytes), .bytes = bytes, .region_bytes = to_regions};
	p->from = (struct rail_memory){
		.data = malloc(bytes), .bytes = bytes, .region_bytes = from_regions};
	cr_assert(p->to.data && p->from.data);
	rail_rig_fill(p->from.data, bytes);
	p->local = rail_keys_new(p->reader, &p->to, VERBS_LOCAL_WRITE);
	p->remote = rail_keys_new(p->source, &p->from, VERBS_REMOTE_READ);
}

static void
finish(struct pair *p)
{
	rail_keys_free(p->local);
	rail_keys_free(p->remote);
	rail_rig_fini(&p->rig);
	free(p->to.data);
	free(p->from.data);
}

static void
close_all(struct pair *p, struct rail_leg *leg)
{
	for (uint32_t i = 0; i < leg->num_lanes; i++) {
		if (!leg->lanes[i].closed)
			rail_leg_close(&leg->lanes[i]);
	}
	rail_rig_settle(&p->rig);
	rail_leg_fini(leg);
	rail_rig_settle(&p->rig);
}

Test(rail, one_lane__all_bytes_by_few_doorbells)
{
	struct pair p;
	struct rail_leg leg;
	struct rail_counters counters;
	struct fake_counters device;
	start(&p, 64 * MIB, NULL, 0, 0);
	rail_leg_init(&leg, &p.rig, 64 * MIB, RAIL_CHUNK_BYTES);
	rail_leg_open(&leg, p.local, p.remote, LANE_QPS, LANE_DEPTH, true);
	rail_rig_run(&p.rig, INT64_MAX);
	cr_assert(rail_leg_is_whole(&leg));
	cr_assert_eq(leg.lanes[0].proved, 1);
	rail_counters(&p.reader->rail, &counters);
	/* 256 slices in batches of 4, and a probe by each queue pair. */
	cr_assert_eq(counters.reads, 256 + 2);
	cr_assert_eq(counters.doorbells, 64 + 2);
	cr_assert_eq(counters.signalled, 64 + 2);
	cr_assert_eq(counters.chunks, 16);
	cr_assert_eq(counters.strange, 0);
	fake_rdma_counters(p.reader->device, &device);
	cr_assert_eq(device.posts, counters.doorbells);
	cr_assert_eq(device.signalled, counters.signalled);
	cr_assert_eq(device.bytes_in, 64 * MIB + 16);
	cr_assert_eq(device.out_max, LANE_DEPTH);
	/* What the device allows, and the probe's way there and back. */
	cr_assert_leq(leg.landed_ns, (int64_t)(64 * MIB / 50) + 2 * FAKE_LATENCY_NS + 1000);
	close_all(&p, &leg);
	finish(&p);
}

Test(rail, window__never_exceeded_and_kept_full)
{
	static const uint64_t windows[] = {MIB / 8, MIB / 2, MIB, 3 * MIB, 8 * MIB};
	for (size_t w = 0; w < TH_ARRAY_LEN(windows); w++) {
		struct pair p;
		struct rail_leg leg;
		struct rail_node_config config = {
			.device.bytes_per_second = RATE_400G, .window_bytes = windows[w]};
		uint64_t most = 0;
		start(&p, 32 * MIB, &config, 0, 0);
		rail_leg_init(&leg, &p.rig, 32 * MIB, RAIL_CHUNK_BYTES);
		for (uint32_t i = 0; i < 3; i++)
			rail_leg_open(&leg, p.local, p.remote, LANE_QPS, LANE_DEPTH, false);
		for (;;) {
			rail_rig_settle(&p.rig);
			most = th_max_u64(most, p.reader->rail.out_bytes);
			int64_t next_ns = rail_rig_next(&p.rig);
			if (next_ns == INT64_MAX)
				break;
			fake_rdma_run(p.rig.fake, next_ns);
		}
		cr_assert(rail_leg_is_whole(&leg));
		cr_assert_eq(most, th_max_u64(windows[w], RAIL_SLICE_BYTES));
		close_all(&p, &leg);
		finish(&p);
	}
}

Test(rail, lanes_of_two_legs__share_the_window_fairly)
{
	struct pair p;
	struct rail_leg legs[2];
	start(&p, 64 * MIB, NULL, 0, 0);
	for (uint32_t i = 0; i < 2; i++) {
		rail_leg_init(&legs[i], &p.rig, 64 * MIB, RAIL_CHUNK_BYTES);
		rail_leg_open(&legs[i], p.local, p.remote, LANE_QPS, LANE_DEPTH, false);
		/* The second comes when the first has all of the window. */
		rail_rig_run(&p.rig, 100000);
	}
	uint32_t before = legs[0].num_landed;
	rail_rig_run(&p.rig, 1500000);
	cr_assert_gt(legs[1].num_landed, 5);
	int32_t ahead = (int32_t)(legs[0].num_landed - before) - (int32_t)legs[1].num_landed;
	/* The window's worth that was under way, and a chunk. */
	cr_assert_geq(ahead, -1);
	cr_assert_leq(ahead, 3);
	rail_rig_run(&p.rig, INT64_MAX);
	for (uint32_t i = 0; i < 2; i++) {
		cr_assert(rail_leg_is_whole(&legs[i]));
		close_all(&p, &legs[i]);
	}
	finish(&p);
}

/* Only the device's retries would end it, seconds later. */
Test(rail, source_falls_silent__others_do_not_wait_for_it)
{
	for (int back = 0; back < 2; back++) {
		struct pair p;
		struct rail_leg legs[2];
		struct rail_node_config rate = {.device.bytes_per_second = RATE_400G};
		start(&p, 64 * MIB, NULL, 0, 0);
		struct rail_node *other = rail_rig_node(&p.rig, &rate);
		struct rail_keys *remote = rail_keys_new(other, &p.from, VERBS_REMOTE_READ);
		for (uint32_t i = 0; i < 2; i++) {
			rail_leg_init(&legs[i], &p.rig, 64 * MIB, RAIL_CHUNK_BYTES);
			rail_leg_open(&legs[i], p.local, i ? remote : p.remote, LANE_QPS,
				LANE_DEPTH, false);
		}
		rail_rig_run(&p.rig, 500000);
		fake_rdma_cut(p.reader->device, p.source->device, true);
		rail_rig_run(&p.rig, 500000 + 2 * RAIL_LATE_NS);
		cr_assert(rail_leg_is_whole(&legs[1]));
		cr_assert(!rail_leg_is_whole(&legs[0]));
		if (back)
			fake_rdma_cut(p.reader->device, p.source->device, false);
		rail_rig_run(&p.rig, INT64_MAX);
		cr_assert_eq(rail_leg_is_whole(&legs[0]), back != 0);
		cr_assert_eq(legs[0].lanes[0].broken, !back);
		for (uint32_t i = 0; i < 2; i++)
			close_all(&p, &legs[i]);
		cr_assert_eq(p.reader->rail.out_bytes, 0);
		cr_assert_eq(p.reader->rail.late_bytes, 0);
		rail_keys_free(remote);
		finish(&p);
	}
}

Test(rail, more_lanes_than_the_window_has_batches__all_go_on)
{
	struct pair p;
	static struct rail_leg legs[24];
	struct rail_node_config config = {
		.device.bytes_per_second = RATE_400G, .window_bytes = 2 * MIB};
	start(&p, 16 * MIB, &config, 0, 0);
	for (uint32_t i = 0; i < TH_ARRAY_LEN(legs); i++) {
		rail_leg_init(&legs[i], &p.rig, 16 * MIB, RAIL_CHUNK_BYTES);
		rail_leg_open(&legs[i], p.local, p.remote, LANE_QPS, LANE_DEPTH, true);
	}
	/* Half of what all of them take. */
	rail_rig_run(&p.rig, (int64_t)(TH_ARRAY_LEN(legs) * 16 * MIB / 50 / 2));
	for (uint32_t i = 0; i < TH_ARRAY_LEN(legs); i++) {
		cr_assert_geq(legs[i].num_landed, 1);
		cr_assert_leq(legs[i].num_landed, 3);
	}
	rail_rig_run(&p.rig, INT64_MAX);
	struct rail_counters counters;
	rail_counters(&p.reader->rail, &counters);
	cr_assert_leq(counters.doorbells * MIB, 2 * counters.bytes);
	for (uint32_t i = 0; i < TH_ARRAY_LEN(legs); i++) {
		cr_assert(rail_leg_is_whole(&legs[i]));
		close_all(&p, &legs[i]);
	}
	finish(&p);
}

Test(rail, pieces__ends_of_regions_and_odd_sizes)
{
	static const struct {
		uint64_t bytes, to_regions, from_regions;
		uint32_t chunk_bytes;
	} shapes[] = {
		{1, 0, 0, RAIL_CHUNK_BYTES},
		{RAIL_SLICE_BYTES, 0, 0, RAIL_CHUNK_BYTES},
		{RAIL_SLICE_BYTES + 1, 0, 0, RAIL_CHUNK_BYTES},
		{9 * MIB + 13, 3 * MIB + 5, 2 * MIB + 7, RAIL_CHUNK_BYTES},
		{8 * MIB, 4 * MIB, 8 * MIB, RAIL_CHUNK_BYTES},
		{3 * MIB + 1, MIB / 4 + 1, MIB / 2 - 1, MIB},
		{1000, 0, 0, 7},
	};
	for (size_t i = 0; i < TH_ARRAY_LEN(shapes); i++) {
		struct pair p;
		struct rail_leg leg;
		start(&p, shapes[i].bytes, NULL, shapes[i].to_regions, shapes[i].from_regions);
		rail_leg_init(&leg, &p.rig, shapes[i].bytes, shapes[i].chunk_bytes);
		rail_leg_open(&leg, p.local, p.remote, LANE_QPS, LANE_DEPTH, false);
		rail_rig_run(&p.rig, INT64_MAX);
		cr_assert(rail_leg_is_whole(&leg));
		cr_assert_eq(memcmp(p.to.data, p.from.data, shapes[i].bytes), 0);
		close_all(&p, &leg);
		finish(&p);
	}
}

Test(rail, any_depth__never_more_than_that)
{
	for (uint32_t depth = 1; depth <= LANE_DEPTH_MAX; depth = depth * 3 / 2 + 1) {
		for (uint32_t qps = 1; qps <= LANE_QPS_MAX; qps++) {
			struct pair p;
			struct rail_leg leg;
			struct fake_counters device;
			start(&p, 4 * MIB, NULL, 0, 0);
			rail_leg_init(&leg, &p.rig, 4 * MIB, MIB);
			rail_leg_open(&leg, p.local, p.remote, qps, depth, true);
			rail_rig_run(&p.rig, INT64_MAX);
			cr_assert(rail_leg_is_whole(&leg));
			fake_rdma_counters(p.reader->device, &device);
			cr_assert_eq(device.refused, 0);
			close_all(&p, &leg);
			finish(&p);
		}
	}
}

Test(rail, prefix_grows__read_as_it_does)
{
	struct pair p;
	struct rail_leg leg;
	start(&p, 32 * MIB, NULL, 0, 0);
	rail_leg_init(&leg, &p.rig, 32 * MIB, RAIL_CHUNK_BYTES);
	leg.limit = 0;
	rail_leg_open(&leg, p.local, p.remote, LANE_QPS, LANE_DEPTH, true);
	for (uint32_t limit = 0; limit <= leg.num_chunks; limit++) {
		rail_leg_push(&leg, limit);
		rail_rig_run(&p.rig, INT64_MAX);
		cr_assert_eq(leg.num_landed, limit);
		cr_assert_eq(p.reader->rail.out_bytes, 0);
		cr_assert_eq(p.reader->rail.num_wanting, 0);
	}
	close_all(&p, &leg);
	finish(&p);
}

Test(rail, completion_queue__has_room_for_every_request_or_refuses)
{
	struct pair p;
	struct rail_leg leg;
	struct fake_counters device;
	struct rail_node_config config = {.device.bytes_per_second = RATE_400G,
		.cq_depth = 3 * LANE_QPS * LANE_DEPTH,
		.window_bytes = 64 * MIB};
	start(&p, 64 * MIB, &config, 0, 0);
	rail_leg_init(&leg, &p.rig, 64 * MIB, RAIL_CHUNK_BYTES);
	for (uint32_t i = 0; i < 3; i++)
		rail_leg_open(&leg, p.local, p.remote, LANE_QPS, LANE_DEPTH, false);
	struct lane_config more = {.num_qps = 1, .depth = 1};
	struct lane *lane;
	cr_assert_eq(lane_new(&p.reader->rail, &more, &lane), -ENOSPC);
	/* Every request of them comes back at once. */
	rail_rig_settle(&p.rig);
	for (uint32_t i = 0; i < 3; i++)
		lane_break(leg.lanes[i].lane, VERBS_OTHER, "tried");
	rail_rig_settle(&p.rig);
	fake_rdma_counters(p.reader->device, &device);
	cr_assert_eq(device.flushed, 3 * LANE_QPS * LANE_DEPTH);
	cr_assert_eq(device.overruns, 0);
	for (uint32_t i = 0; i < 3; i++)
		rail_leg_close(&leg.lanes[i]);
	rail_rig_settle(&p.rig);
	/* And their room is there again. */
	for (uint32_t i = 0; i < 3; i++)
		rail_leg_open(&leg, p.local, p.remote, LANE_QPS, LANE_DEPTH, false);
	rail_rig_run(&p.rig, INT64_MAX);
	cr_assert(rail_leg_is_whole(&leg));
	close_all(&p, &leg);
	cr_assert_eq(p.reader->rail.cq_used, 0);
	finish(&p);
}

Test(rail, two_rails__split_the_wire_evenly)
{
	struct pair p;
	struct rail_leg leg;
	struct fake_counters devices[2];
	struct rail_node_config config = {.device.bytes_per_second = RATE_400G};
	start(&p, 96 * MIB, &config, 0, 0);
	struct rail_node *reader = rail_rig_node(&p.rig, &config);
	struct rail_node *source = rail_rig_node(&p.rig, &config);
	struct rail_keys *local = rail_keys_new(reader, &p.to, VERBS_LOCAL_WRITE);
	struct rail_keys *remote = rail_keys_new(source, &p.from, VERBS_REMOTE_READ);
	rail_leg_init(&leg, &p.rig, 96 * MIB, RAIL_CHUNK_BYTES);
	rail_leg_open(&leg, p.local, p.remote, LANE_QPS, LANE_DEPTH, true);
	rail_leg_open(&leg, local, remote, LANE_QPS, LANE_DEPTH, true);
	rail_rig_run(&p.rig, INT64_MAX);
	cr_assert(rail_leg_is_whole(&leg));
	cr_assert_eq(memcmp(p.to.data, p.from.data, 96 * MIB), 0);
	fake_rdma_counters(p.reader->device, &devices[0]);
	fake_rdma_counters(reader->device, &devices[1]);
	cr_assert_float_eq((double)devices[0].bytes_in / (double)(96 * MIB), 0.5, 0.05);
	cr_assert_leq(leg.landed_ns, (int64_t)(48 * MIB / 50) + 200000);
	close_all(&p, &leg);
	rail_keys_free(local);
	rail_keys_free(remote);
	finish(&p);
}

/*
 * What is asked for waits behind what was asked for before it, in a queue that serves one queue
 * pair after the other if it likes. A device that gets nothing for 268 ms asks again.
 */
Test(rail, slow_link__what_is_asked_for_comes_before_the_device_asks_again)
{
	static const uint64_t rates[] = {4000000, 8000000, 30000000, 125000000, RATE_400G};
	const int64_t answer_ns = INT64_C(4096) << 16;
	for (size_t r = 0; r < TH_ARRAY_LEN(rates); r++) {
		struct pair p;
		struct rail_leg leg;
		struct rail_counters counters;
		struct fake_counters device;
		struct rail_node_config config = {
			.device.bytes_per_second = rates[r], .answer_ns = answer_ns};
		start(&p, 64 * MIB, &config, 0, 0);
		rail_leg_init(&leg, &p.rig, 64 * MIB, RAIL_CHUNK_BYTES);
		rail_leg_open(&leg, p.local, p.remote, LANE_QPS, LANE_DEPTH, true);
		rail_rig_run(&p.rig, INT64_MAX);
		cr_assert(rail_leg_is_whole(&leg));
		fake_rdma_counters(p.reader->device, &device);
		int64_t slowest_ms = device.slowest_ns / 1000000;
		cr_assert_lt(device.slowest_ns, answer_ns, "%zu: %d ms", r, (int)slowest_ms);
		/* And the link does not wait for us. */
		int64_t best_ns = (int64_t)(64 * MIB * 1000 / (rates[r] / 1000000));
		cr_assert_leq(leg.landed_ns, best_ns + best_ns / 100 + 2 * FAKE_LATENCY_NS);
		/* A fast one has all of the window, by as few doorbells as ever. */
		rail_counters(&p.reader->rail, &counters);
		if (rates[r] >= 125000000) {
			cr_assert_eq(device.out_max, LANE_DEPTH);
			cr_assert_leq(counters.doorbells, 64 + 2 + 2);
		}
		close_all(&p, &leg);
		finish(&p);
	}
}
