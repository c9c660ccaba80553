/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of legs over RDMA, with devices in memory: what makes a leg do without, what breaks midway,
 * how legs end. What every transport must do is in transport_test.c.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "ipc/base/clock.h"
#include "tests/support/rdma/fake_rdma.h"
#include "tests/support/transport/transport_pair.h"
#include "transport/rdma/leg/rail_pairs.h"
#include "transport/rdma/rdma.h"
#include "transport/transport_own.h"

#define STALL_NS INT64_C(600000000)
#define CHUNK (4 * MIB)

static const uint64_t eight_chunks[] = {32 * MIB};
static const uint64_t odd_sizes[] = {
	1, 70000, 2 * MIB - 1, 0, 2 * MIB, 4 * MIB + 1, 9 * MIB + 13, 65536, 65537, 3, 1000000};

static struct pair *
start_of(const uint64_t *sizes, uint32_t count, uint32_t rails, int64_t stall_ns)
{
	pair_rails = rails;
	struct pair *s = pair_new(sizes, count, stall_ns);
	pair_parts(s, true);
	rig_add_digests(s->from);
	return s;
}

static struct pair *
start(uint32_t rails)
{
	return start_of(eight_chunks, 1, rails, CALM_NS);
}

static void
pull(struct pair *s)
{
	pair_move(s, MODE_RDMA, 1, s->from, s->to);
}

static void
hold(struct rig_agent *agent, bool held)
{
	for (uint32_t i = 0; i < agent->num_rails; i++)
		fake_rdma_hold(agent->devices[i], held);
}

static uint64_t
asked(const struct rig_agent *agent)
{
	uint64_t posts = 0;
	for (uint32_t i = 0; i < agent->num_rails; i++) {
		struct fake_counters counters;
		fake_rdma_counters(agent->devices[i], &counters);
		posts += counters.posts;
	}
	return posts;
}

static uint64_t
queue_pairs(const struct rig_agent *agent)
{
	uint64_t qps = 0;
	for (uint32_t i = 0; i < agent->num_rails; i++) {
		struct fake_counters counters;
		fake_rdma_counters(agent->devices[i], &counters);
		qps += counters.qps;
	}
	return qps;
}

/* The reader has asked its devices for something more. */
static void
wait_asked(struct pair *s, uint64_t more_than)
{
	int64_t until_ns = th_now_ns() + INT64_C(40000000000);
	while (asked(s->reader_agent) <= more_than) {
		cr_assert_lt(th_now_ns(), until_ns);
		rig_pump(&s->rig, 1);
	}
}

/* A leg that has three chunks, and READs of those up to prefix are held on the wire. */
static struct pair *
start_reads(uint32_t rails, uint32_t prefix)
{
	struct pair *s = start(rails);
	xfer_part_advance(s->from, 3);
	pull(s);
	rig_wait_prefix(&s->rig, s->to, 3);
	hold(s->reader_agent, true);
	uint64_t before = asked(s->reader_agent);
	xfer_part_advance(s->from, prefix);
	wait_asked(s, before);
	return s;
}

static const struct transport_event *
expect_done(struct pair *s, const char *transport, const char *why)
{
	const struct transport_event *done = pair_done(s, 1);
	cr_assert_str_eq(done->transport, transport, "%s", done->fallback);
	cr_assert(strstr(done->fallback, why), "'%s'", done->fallback);
	cr_assert_eq(done->fallback[0] == '\0', why[0] == '\0', "%s", done->fallback);
	return done;
}

/*
 * ---- legs that do without ---------------------------------------------------------------------
 */

Test(transport_rdma_leg, source_without_devices__tcp_and_why)
{
	struct pair *s = calloc(1, sizeof(*s));
	s->source_agent = rig_add_agent(&s->rig, CALM_NS, 0);
	s->rig.num_rails = 1;
	s->reader_agent = rig_add_agent(&s->rig, CALM_NS, 0);
	rig_shard_init(&s->source, eight_chunks, 1, 42);
	rig_shard_init(&s->reader, eight_chunks, 1, 0);
	rig_register(s->reader_agent, &s->reader);
	pair_parts(s, false);
	xfer_part_advance(s->from, 8);
	pull(s);
	expect_done(s, "tcp", "the source's agent has no RDMA");
	cr_assert_eq(rig_counters(s->reader_agent).rdma_fallbacks, 1);
	pair_finish(s);
}

Test(transport_rdma_leg, memory_that_is_not_registered__tcp_and_why)
{
	struct rig_shard other;
	struct pair *s = calloc(1, sizeof(*s));
	s->rig.num_rails = 1;
	s->reader_agent = rig_add_agent(&s->rig, CALM_NS, 0);
	s->rig.stage_bytes = RDMA_NO_STAGE; /* or it would be copied */
	s->source_agent = rig_add_agent(&s->rig, CALM_NS, 0);
	rig_shard_init(&s->source, eight_chunks, 1, 42);
	rig_shard_init(&s->reader, eight_chunks, 1, 0);
	rig_register(s->reader_agent, &s->reader);
	pair_parts(s, true);
	rig_shard_init(&other, eight_chunks, 1, 42);
	struct xfer_part *from = rig_part(&other, true);
	rig_add_digests(from);
	xfer_part_advance(from, 8);
	pair_move(s, MODE_RDMA, 1, from, s->to);
	expect_done(s, "tcp", "the source says: some of its memory is not registered for RDMA");
	cr_assert_eq(rig_counters(s->source_agent).rdma_declines, 1);
	/* The same where it is required. */
	struct rig_shard empty;
	rig_shard_init(&empty, eight_chunks, 1, 0);
	rig_register(s->reader_agent, &empty);
	struct xfer_part *to = rig_part(&empty, true);
	s->reader_agent->require_rdma = true;
	pair_move(s, MODE_RDMA, 2, from, to);
	const struct transport_event *failed =
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_FAILED, 2);
	cr_assert_eq(failed->code, TH_E_NO_PATH);
	cr_assert(strstr(failed->text, "RDMA is required"), "%s", failed->text);
	cr_assert(strstr(failed->text, "not registered"), "%s", failed->text);
	cr_assert(failed->source_failed);
	cr_assert(!failed->overwrote);
	rig_halt(&s->rig);
	xfer_part_release(from);
	xfer_part_release(to);
	pair_finish(s);
	rig_shard_fini(&other);
	rig_shard_fini(&empty);
}

Test(transport_rdma_leg, required_and_no_rail_of_ours_is_up__failed_before_it_began)
{
	struct pair *s = start(1);
	xfer_part_advance(s->from, 8);
	s->reader_agent->require_rdma = true;
	fake_rdma_port_set(s->reader_agent->devices[0], 1, false);
	/* Until the keeper has seen it a leg may still begin, and break. */
	pull(s);
	const struct transport_event *failed =
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_FAILED, 1);
	cr_assert_eq(failed->code, TH_E_NO_PATH);
	cr_assert(strstr(failed->text, "RDMA is required"), "%s", failed->text);
	cr_assert(!failed->source_failed);
	pair_finish(s);
}

Test(transport_rdma_leg, source_with_a_cap__tcp_and_why)
{
	struct pair *s = calloc(1, sizeof(*s));
	s->rig.num_rails = 1;
	s->rig.rate_out = 1 << 30;
	s->source_agent = rig_add_agent(&s->rig, CALM_NS, 0);
	s->rig.rate_out = 0;
	s->reader_agent = rig_add_agent(&s->rig, CALM_NS, 0);
	rig_shard_init(&s->source, eight_chunks, 1, 42);
	rig_shard_init(&s->reader, eight_chunks, 1, 0);
	rig_register(s->source_agent, &s->source);
	rig_register(s->reader_agent, &s->reader);
	pair_parts(s, false);
	xfer_part_advance(s->from, 8);
	pull(s);
	expect_done(s, "tcp", "a cap on what leaves");
	pair_finish(s);
}

Test(transport_rdma_leg, queue_pairs_that_cannot_be_connected__tcp_and_why)
{
	for (uint32_t side = 0; side < 2; side++) {
		struct pair *s = start(1);
		xfer_part_advance(s->from, 8);
		struct rig_agent *agent = side ? s->reader_agent : s->source_agent;
		fake_rdma_refuse(agent->devices[0], FAKE_QP_CONNECT, 2, -EINVAL);
		pull(s);
		expect_done(s, "tcp", "cannot be connected");
		cr_assert_eq(queue_pairs(s->reader_agent), 0);
		pair_finish(s);
	}
}

/* Other legs wait for the thread that connects. */
Test(transport_rdma_leg, peers_that_nobody_finds__no_more_are_tried_after_a_second)
{
	for (uint32_t side = 0; side < 2; side++) {
		struct pair *s = start(4);
		uint64_t left = 0;
		struct rig_agent *agent = side ? s->reader_agent : s->source_agent;
		xfer_part_advance(s->from, 8);
		for (uint32_t i = 0; i < 4; i++) {
			fake_rdma_slow_connects(agent->devices[i], 600000000);
			fake_rdma_refuse(agent->devices[i], FAKE_QP_CONNECT, 1, -ETIMEDOUT);
		}
		pull(s);
		cr_assert_str_eq(pair_done(s, 1)->transport, "tcp");
		/* Of those that were not tried, no queue pair was made at the source. */
		for (uint32_t i = 0; i < 4; i++) {
			struct fake_counters counters;
			fake_rdma_counters(s->source_agent->devices[i], &counters);
			left += counters.qps_made == 0;
		}
		cr_assert(side || left >= 2);
		pair_finish(s);
	}
}

/* The first lane breaks before it begins, while the keeper tries in vain to connect the second. */
Test(transport_rdma_leg, port_goes_down_while_queue_pairs_are_connected__tcp_and_why)
{
	struct pair *s = start(2);
	xfer_part_advance(s->from, 8);
	fake_rdma_slow_connects(s->source_agent->devices[0], 100000000);
	fake_rdma_slow_connects(s->reader_agent->devices[1], 100000000);
	fake_rdma_refuse(s->reader_agent->devices[1], FAKE_QP_CONNECT, 1, -ETIMEDOUT);
	pull(s);
	while (queue_pairs(s->reader_agent) < 4)
		rig_pump(&s->rig, 1);
	fake_rdma_port_set(s->reader_agent->devices[0], 1, false);
	const struct transport_event *done = pair_done(s, 1);
	cr_assert_str_eq(done->transport, "tcp", "%s", done->fallback);
	cr_assert_neq(done->fallback[0], '\0');
	cr_assert_eq(queue_pairs(s->reader_agent), 0);
	pair_finish(s);
}

/* And no storm: the next leg does not even try. */
Test(transport_rdma_leg, probe_that_does_not_come_back__tcp_and_the_path_is_left_alone)
{
	struct pair *s = start(1);
	struct rig_shard second;
	struct path path;
	struct fake_counters before, after;
	xfer_part_advance(s->from, 8);
	hold(s->reader_agent, true);
	pull(s);
	expect_done(s, "tcp", "its first READ does not come back");
	cr_assert_eq(transport_paths(s->reader_agent->transport, &path, 1), 1);
	cr_assert_eq(path.failures, 1);
	cr_assert_gt(path.paused_until_ns, th_now_ns());
	cr_assert_eq(path.pause_ns, PATH_PAUSE_NS);
	hold(s->reader_agent, false);
	fake_rdma_counters(s->reader_agent->devices[0], &before);
	rig_shard_init(&second, eight_chunks, 1, 0);
	rig_register(s->reader_agent, &second);
	struct xfer_part *to = rig_part(&second, true);
	pair_move(s, MODE_RDMA, 2, s->from, to);
	const struct transport_event *done = rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, 2);
	cr_assert(strstr(done->fallback, "left alone for now"), "%s", done->fallback);
	fake_rdma_counters(s->reader_agent->devices[0], &after);
	cr_assert_eq(before.qps_made, after.qps_made);
	rig_halt(&s->rig);
	xfer_part_release(to);
	pair_finish(s);
	rig_shard_fini(&second);
}

/*
 * ---- what breaks midway -----------------------------------------------------------------------
 */

enum mishap { PORT_DOWN, REMOVED, PEER_REMOVED, CQ_LOST, MEMORY_GONE, CABLE_OUT };

static void
strike(struct pair *s, enum mishap fault, uint32_t rail)
{
	struct verbs_device *ours = s->reader_agent->devices[rail];
	struct verbs_device *theirs = s->source_agent->devices[rail];
	switch (fault) {
	case PORT_DOWN:
		fake_rdma_port_set(ours, 1, false);
		break;
	case REMOVED:
		fake_rdma_remove(ours);
		break;
	case PEER_REMOVED:
		fake_rdma_remove(theirs);
		break;
	case CQ_LOST:
		fake_rdma_break_cqs(ours);
		break;
	case MEMORY_GONE:
		fake_rdma_fail_read(ours, 0, VERBS_ACCESS);
		break;
	case CABLE_OUT:
		for (uint32_t i = 0; i < s->source_agent->num_rails; i++)
			fake_rdma_cut(ours, s->source_agent->devices[i], true);
		break;
	}
}

/* Of these only the device's retries tell; here they are used up at once. */
static const struct transport_event *
done_after(struct pair *s, enum mishap fault)
{
	const struct transport_event *done;
	while ((done = rig_find(s->reader_agent, TRANSPORT_DONE, 1)) == NULL) {
		cr_assert_null(rig_find(s->reader_agent, TRANSPORT_FAILED, 1));
		if (fault == PEER_REMOVED || fault == CABLE_OUT)
			fake_rdma_give_up(s->reader_agent->devices[0]);
		rig_pump(&s->rig, 5);
	}
	return done;
}

Test(transport_rdma_leg, one_of_two_rails_dies_midway__the_other_goes_on)
{
	for (enum mishap fault = PORT_DOWN; fault <= CABLE_OUT; fault++) {
		struct pair *s = start(2);
		xfer_part_advance(s->from, 3);
		pull(s);
		rig_wait_prefix(&s->rig, s->to, 3);
		strike(s, fault, 0);
		xfer_part_advance(s->from, 8);
		const struct transport_event *done = done_after(s, fault);
		cr_assert_str_eq(done->transport, "rdma", "fault %d", (int)fault);
		cr_assert_eq(done->bytes_moved, 8 * CHUNK, "fault %d", (int)fault);
		cr_assert(rig_shards_equal(&s->source, &s->reader));
		pair_finish(s);
	}
}

Test(transport_rdma_leg, all_rails_die_midway__goes_on_over_tcp_from_the_prefix)
{
	for (enum mishap fault = PORT_DOWN; fault <= CABLE_OUT; fault++) {
		struct pair *s = start(1);
		xfer_part_advance(s->from, 3);
		pull(s);
		rig_wait_prefix(&s->rig, s->to, 3);
		/* What is not moved again is not looked at. */
		memset(s->source.tensors[0], 0, 3 * CHUNK);
		strike(s, fault, 0);
		xfer_part_advance(s->from, 8);
		const struct transport_event *done = done_after(s, fault);
		cr_assert_str_eq(done->transport, "tcp", "fault %d", (int)fault);
		cr_assert_neq(done->fallback[0], '\0');
		cr_assert_eq(done->bytes_moved, 8 * CHUNK, "fault %d", (int)fault);
		cr_assert_eq(memcmp(s->source.tensors[0] + 3 * CHUNK,
				     s->reader.tensors[0] + 3 * CHUNK, 5 * CHUNK),
			0);
		cr_assert_eq(rig_counters(s->reader_agent).rdma_fallbacks, 1);
		cr_assert_eq(rig_counters(s->reader_agent).rdma_paths_broken, 1);
		/* The source says when it has freed its own: before it is asked by TCP. */
		if (fault != PEER_REMOVED)
			cr_assert_eq(queue_pairs(s->source_agent), 0);
		pair_finish(s);
	}
}

/* Who is to blame decides whether another source is asked: not for what is our own. */
Test(transport_rdma_leg, required_and_the_last_rail_dies__failed_with_the_prefix_kept)
{
	for (enum mishap fault = PORT_DOWN; fault <= CABLE_OUT; fault++) {
		struct pair *s = start(1);
		const struct transport_event *failed;
		bool ours = fault == PORT_DOWN || fault == REMOVED || fault == CQ_LOST;
		struct path path;
		s->reader_agent->require_rdma = true;
		xfer_part_advance(s->from, 3);
		pull(s);
		rig_wait_prefix(&s->rig, s->to, 3);
		strike(s, fault, 0);
		xfer_part_advance(s->from, 8);
		while (!(failed = rig_find(s->reader_agent, TRANSPORT_FAILED, 1))) {
			if (fault == PEER_REMOVED || fault == CABLE_OUT)
				fake_rdma_give_up(s->reader_agent->devices[0]);
			rig_pump(&s->rig, 5);
		}
		cr_assert_eq(failed->code, TH_E_NO_PATH);
		cr_assert(strstr(failed->text, "3 of 8"), "%s", failed->text);
		cr_assert(strstr(failed->text, "RDMA is required"), "%s", failed->text);
		cr_assert_eq(
			strncmp(failed->text, "reading from", 12) == 0, ours, "%s", failed->text);
		cr_assert_eq(failed->source_failed, !ours, "fault %d", (int)fault);
		cr_assert(failed->overwrote);
		cr_assert_eq(transport_paths(s->reader_agent->transport, &path, 1), 1);
		cr_assert_eq(path.failures > 0, fault == PEER_REMOVED || fault == CABLE_OUT);
		pair_finish(s);
	}
}

Test(transport_rdma_leg, required_and_our_queue_pairs_cannot_be_connected__whose_doing)
{
	static const struct {
		uint32_t side; /* 1: the reader's */
		int code;
		bool ours;
	} cases[] = {{0, -ENOMEM, false}, {0, -ETIMEDOUT, false}, {1, -ENOMEM, true},
		{1, -ETIMEDOUT, false}};
	for (size_t i = 0; i < TH_ARRAY_LEN(cases); i++) {
		struct pair *s = start(1);
		s->reader_agent->require_rdma = true;
		xfer_part_advance(s->from, 8);
		struct rig_agent *agent = cases[i].side ? s->reader_agent : s->source_agent;
		fake_rdma_refuse(agent->devices[0], FAKE_QP_CONNECT, 2, cases[i].code);
		pull(s);
		const struct transport_event *failed =
			rig_wait(&s->rig, s->reader_agent, TRANSPORT_FAILED, 1);
		cr_assert_eq(failed->code, TH_E_NO_PATH);
		cr_assert(strstr(failed->text, "cannot be connected"), "%s", failed->text);
		cr_assert_eq(failed->source_failed, !cases[i].ours, "case %zu", i);
		pair_finish(s);
	}
}

Test(transport_rdma_leg, source_closes_midway__failed_at_once_and_another_goes_on)
{
	struct rig_shard other;
	struct pair *s = start(2);
	struct rig_agent *second = rig_add_agent(&s->rig, CALM_NS, 0);
	rig_shard_init(&other, eight_chunks, 1, 42);
	rig_register(second, &other);
	struct xfer_part *from = rig_part(&other, true);
	rig_add_digests(from);
	xfer_part_advance(from, 8);
	xfer_part_advance(s->from, 3);
	pull(s);
	rig_wait_prefix(&s->rig, s->to, 3);
	rig_remove_agent(s->source_agent);
	const struct transport_event *failed =
		rig_wait(&s->rig, s->reader_agent, TRANSPORT_FAILED, 1);
	cr_assert_eq(failed->code, TH_E_NO_PATH);
	cr_assert(failed->source_failed);
	rig_pull(second, s->reader_agent, 2, from, s->to);
	const struct transport_event *done = rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, 2);
	cr_assert_str_eq(done->transport, "rdma");
	cr_assert_eq(done->bytes_moved, 5 * CHUNK);
	cr_assert(rig_shards_equal(&other, &s->reader));
	rig_halt(&s->rig);
	xfer_part_release(from);
	pair_finish(s);
	rig_shard_fini(&other);
}

/* Nothing comes, and nobody says so: not even the device. */
Test(transport_rdma_leg, reads_that_wait_forever__a_stall_of_the_path)
{
	struct pair *s = start_of(eight_chunks, 1, 1, STALL_NS);
	xfer_part_advance(s->from, 3);
	pull(s);
	rig_wait_prefix(&s->rig, s->to, 3);
	hold(s->reader_agent, true);
	xfer_part_advance(s->from, 8);
	expect_done(s, "tcp", "nothing comes through it any more");
	pair_finish(s);
}

/* What it may still write to is not given back, nor filled by other ways, until the agent ends. */
Test(transport_rdma_leg, queue_pair_neither_drained_nor_destroyed__the_part_stays_taken)
{
	static const int codes[] = {-EBUSY, -EIO};
	for (size_t i = 0; i < TH_ARRAY_LEN(codes); i++) {
		struct pair *s = start_reads(1, 8);
		struct verbs_device *device = s->reader_agent->devices[0];
		fake_rdma_mute(device, true);
		fake_rdma_refuse(device, FAKE_QP_FREE, 2, codes[i]);
		strike(s, PORT_DOWN, 0);
		while (queue_pairs(s->reader_agent) > 0)
			rig_pump(&s->rig, 1);
		if (codes[i] == -EIO) { /* it is gone, and nothing writes */
			expect_done(s, "tcp", "our port is down");
		} else {
			uint32_t prefix = xfer_part_prefix(s->to);
			while (rig_counters(s->reader_agent).legs_failed == 0)
				rig_pump(&s->rig, 1);
			transport_stop(s->reader_agent->transport, 1);
			rig_pump_for(&s->rig, 300000000);
			for (enum transport_event_kind kind = TRANSPORT_DONE;
				kind <= TRANSPORT_STOPPED; kind++)
				cr_assert_null(rig_find(s->reader_agent, kind, 1));
			cr_assert_eq(xfer_part_prefix(s->to), prefix);
		}
		pair_finish(s);
	}
}

struct nap {
	struct loop_task task;
	bool over; /* atomic */
};

static void
run_nap(struct loop_task *task)
{
	struct nap *nap = loop_container(task, struct nap, task);
	(void)nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 700000000}, NULL);
	__atomic_store_n(&nap->over, true, __ATOMIC_RELEASE);
}

/* As after a SIGSTOP: what came meanwhile is not counted yet when the clock is looked at. */
Test(transport_rdma_leg, we_were_frozen_ourselves__no_stall_of_the_path)
{
	static struct nap nap = {.task.run = run_nap};
	struct pair *s = start_of(eight_chunks, 1, 1, INT64_C(1500000000));
	xfer_part_advance(s->from, 3);
	pull(s);
	rig_wait_prefix(&s->rig, s->to, 3);
	/* It has seen that. */
	rig_pump_for(&s->rig, 500000000);
	hold(s->reader_agent, true);
	uint64_t before = asked(s->reader_agent);
	xfer_part_advance(s->from, 8);
	wait_asked(s, before);
	loop_post(s->reader_agent->transport->acceptor, &nap.task);
	while (!__atomic_load_n(&nap.over, __ATOMIC_ACQUIRE))
		rig_pump(&s->rig, 1);
	rig_pump_for(&s->rig, 30000000);
	hold(s->reader_agent, false);
	expect_done(s, "rdma", "");
	pair_finish(s);
}

Test(transport_rdma_leg, damaged_on_its_way__the_source_is_asked_and_it_is_read_again)
{
	struct pair *s = start_reads(1, 4);
	/* Its first READ finds other bytes; when the last has come they are right again. */
	s->source.tensors[0][3 * CHUNK] ^= 1;
	cr_assert_gt(fake_rdma_let(s->reader_agent->devices[0], 1), 0);
	s->source.tensors[0][3 * CHUNK] ^= 1;
	hold(s->reader_agent, false);
	xfer_part_advance(s->from, 8);
	const struct transport_event *done = rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, 1);
	cr_assert_str_eq(done->transport, "rdma");
	cr_assert(rig_shards_equal(&s->source, &s->reader));
	cr_assert_eq(done->bytes_moved, 9 * CHUNK);
	cr_assert_eq(rig_counters(s->reader_agent).checksum_failures, 1);
	cr_assert_eq(rig_counters(s->reader_agent).chunks_refetched, 1);
	cr_assert_null(rig_find(s->source_agent, TRANSPORT_CHANGED, 1));
	pair_finish(s);
}

/*
 * ---- ends -------------------------------------------------------------------------------------
 */

Test(transport_rdma_leg, stop_while_reads_are_on_the_wire__nothing_is_written_after_stopped)
{
	for (uint32_t rails = 1; rails <= 2; rails++) {
		struct pair *s = start_reads(rails, 8);
		transport_stop(s->reader_agent->transport, 1);
		const struct transport_event *stopped =
			rig_wait(&s->rig, s->reader_agent, TRANSPORT_STOPPED, 1);
		cr_assert(stopped->overwrote);
		mprotect(s->reader.memory, s->reader.bytes, PROT_NONE);
		hold(s->reader_agent, false);
		rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, 1);
		pair_finish(s);
	}
}

Test(transport_rdma_leg, fence_while_reads_are_on_the_wire__nothing_is_read_after_ended)
{
	for (uint32_t rails = 1; rails <= 2; rails++) {
		struct pair *s = start_reads(rails, 8);
		transport_fence(s->source_agent->transport, 1);
		rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, 1);
		cr_assert_eq(queue_pairs(s->source_agent), 0);
		mprotect(s->source.memory, s->source.bytes, PROT_NONE);
		hold(s->reader_agent, false);
		const struct transport_event *failed =
			rig_wait(&s->rig, s->reader_agent, TRANSPORT_FAILED, 1);
		cr_assert_eq(failed->code, TH_E_NO_PATH);
		cr_assert_eq(xfer_part_prefix(s->to), 3);
		pair_finish(s);
	}
}

/* Whatever the talk has come to. */
Test(transport_rdma_leg, stop_and_fence_at_any_moment__one_last_event)
{
	for (uint32_t round = 0; round < 24; round++) {
		struct pair *s = start(1 + round % 2);
		xfer_part_advance(s->from, round % 9);
		pull(s);
		rig_pump_for(&s->rig, (int64_t)(round / 2) * 400000);
		pair_cut(s, round);
		while (s->reader_agent->num_events == 0 && round % 3 != 0)
			rig_pump(&s->rig, 10);
		pair_finish(s);
	}
}

Test(transport_rdma_leg, source__learns_how_much_was_read)
{
	struct pair *s = start(1);
	xfer_part_advance(s->from, 8);
	pull(s);
	const struct transport_event *done = expect_done(s, "rdma", "");
	cr_assert_eq(done->bytes_moved, 8 * CHUNK);
	const struct transport_event *ended =
		rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, 1);
	cr_assert_eq(ended->code, 0);
	cr_assert_str_eq(ended->transport, "rdma");
	cr_assert_eq(ended->bytes_moved, 8 * CHUNK);
	pair_finish(s);
}

/*
 * ---- memory -----------------------------------------------------------------------------------
 */

Test(transport_rdma_leg, regions_in_small_pieces__arrive)
{
	pair_mr_bytes = 3 * MIB;
	struct pair *s = start_of(odd_sizes, TH_ARRAY_LEN(odd_sizes), 2, CALM_NS);
	cr_assert_eq(transport_hash(s->source_agent->transport, 7, s->from), 0);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_HASHED, 7);
	pull(s);
	expect_done(s, "rdma", "");
	pair_finish(s);
}

/* What is READ over and over is made ready once. */
Test(transport_rdma_leg, legs_one_after_the_other__nothing_more_is_registered)
{
	struct pair *s = start(1);
	struct fake_counters before, after;
	xfer_part_advance(s->from, 8);
	pull(s);
	expect_done(s, "rdma", "");
	fake_rdma_counters(s->reader_agent->devices[0], &before);
	for (uint64_t leg = 2; leg < 6; leg++) {
		xfer_part_release(s->to);
		s->to = rig_part(&s->reader, true);
		pair_move(s, MODE_RDMA, leg, s->from, s->to);
		cr_assert_str_eq(
			rig_wait(&s->rig, s->reader_agent, TRANSPORT_DONE, leg)->transport, "rdma");
	}
	fake_rdma_counters(s->reader_agent->devices[0], &after);
	cr_assert_eq(before.regs, after.regs);
	pair_finish(s);
}

/* What is there already is looked at, and not READ. */
Test(transport_rdma_leg, bytes_that_are_here_already__not_read)
{
	for (uint32_t equal = 3; equal <= 8; equal += 5) {
		struct pair *s = start(2);
		memcpy(s->reader.tensors[0], s->source.tensors[0], equal * CHUNK);
		xfer_part_expect_reuse(s->to);
		xfer_part_advance(s->from, 8);
		pull(s);
		const struct transport_event *done = expect_done(s, "rdma", "");
		cr_assert_eq(done->bytes_reused + done->bytes_moved, 8 * CHUNK);
		if (equal == 8)
			cr_assert_eq(done->bytes_moved, 0);
		pair_finish(s);
	}
}

/* Small tensors that came in by a copy are packed when somebody wants to READ them. */
Test(transport_rdma_leg, replica_that_was_copied__serves_by_rdma)
{
	struct rig_shard last;
	struct pair *s = start_of(odd_sizes, TH_ARRAY_LEN(odd_sizes), 1, CALM_NS);
	struct rig_agent *third = rig_add_agent(&s->rig, CALM_NS, 0);
	rig_shard_init(&last, odd_sizes, TH_ARRAY_LEN(odd_sizes), 0);
	rig_register(third, &last);
	struct xfer_part *end = rig_part(&last, true);
	cr_assert_eq(transport_hash(s->source_agent->transport, 7, s->from), 0);
	cr_assert_eq(transport_copy(s->reader_agent->transport, 1, s->from, s->to), 0);
	rig_pull(s->reader_agent, third, 2, s->to, end);
	const struct transport_event *done = rig_wait(&s->rig, third, TRANSPORT_DONE, 2);
	cr_assert_str_eq(done->transport, "rdma", "%s", done->fallback);
	cr_assert(rig_shards_equal(&s->source, &last));
	rig_halt(&s->rig);
	xfer_part_release(end);
	pair_finish(s);
	rig_shard_fini(&last);
}
