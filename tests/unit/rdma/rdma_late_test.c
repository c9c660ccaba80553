/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of legs that begin while memory is still being registered: they go by data connections and
 * move to RDMA when it is there, or wait for it where RDMA is required.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/clock.h"
#include "tests/support/rdma/fake_rdma.h"
#include "tests/support/transport/transport_pair.h"
#include "transport/rdma/leg/reader_own.h"
#include "transport/tcp/tcp.h"

#define CHUNK (4 * MIB)
#define CHUNKS 24

static const uint64_t sizes[] = {CHUNKS * CHUNK};

static void
hold_regs(const struct rig_agent *agent, bool held)
{
	for (uint32_t i = 0; i < agent->num_rails; i++)
		fake_rdma_hold_regs(agent->devices[i], held);
}

/* Of the late ones the registration does not come to an end; the part has this prefix. */
static struct pair *
start_late(unsigned late, uint32_t prefix, int64_t stall_ns)
{
	struct pair *s = calloc(1, sizeof(*s));
	s->rig.num_rails = 2;
	s->source_agent = rig_add_agent(&s->rig, stall_ns, 0);
	s->reader_agent = rig_add_agent(&s->rig, stall_ns, 0);
	rig_shard_init(&s->source, sizes, 1, 42);
	rig_shard_init(&s->reader, sizes, 1, 0);
	hold_regs(s->source_agent, late & PAIR_SOURCE);
	hold_regs(s->reader_agent, late & PAIR_READER);
	(late & PAIR_SOURCE ? rig_register_soon : rig_register)(s->source_agent, &s->source);
	(late & PAIR_READER ? rig_register_soon : rig_register)(s->reader_agent, &s->reader);
	pair_parts(s, true);
	rig_add_digests(s->from);
	xfer_part_advance(s->from, prefix);
	return s;
}

static struct pair *
start(bool late_source, uint32_t prefix)
{
	return start_late(late_source ? PAIR_SOURCE : PAIR_READER, prefix, CALM_NS);
}

static void
let_regs(struct pair *s)
{
	hold_regs(s->source_agent, false);
	hold_regs(s->reader_agent, false);
}

static void
pull(struct pair *s)
{
	pair_move(s, MODE_RDMA, 1, s->from, s->to);
}

static uint64_t
reads(const struct rig_agent *agent)
{
	uint64_t reads = 0;
	for (uint32_t i = 0; i < agent->num_rails; i++) {
		struct fake_counters counters;
		fake_rdma_counters(agent->devices[i], &counters);
		reads += counters.reads;
	}
	return reads;
}

/* Lanes ask for their probes at least. */
static void
wait_lanes(struct pair *s)
{
	int64_t until_ns = th_now_ns() + INT64_C(40000000000);
	while (reads(s->reader_agent) == 0) {
		cr_assert_lt(th_now_ns(), until_ns);
		rig_pump(&s->rig, 1);
	}
}

static const struct transport_event *
expect_done(struct pair *s, const char *transport, const char *why)
{
	const struct transport_event *done = pair_done(s, 1);
	cr_assert_str_eq(done->transport, transport, "%s", done->fallback);
	cr_assert(strstr(done->fallback, why), "'%s'", done->fallback);
	cr_assert_eq(done->fallback[0] == '\0', why[0] == '\0', "%s", done->fallback);
	cr_assert_eq(done->bytes_moved, CHUNKS * CHUNK);
	return done;
}

Test(rdma_late, memory_registers_meanwhile__begins_by_tcp_and_moves_to_rdma)
{
	for (uint32_t late_source = 0; late_source < 2; late_source++) {
		struct pair *s = start(late_source, 3);
		pull(s);
		rig_wait_prefix(&s->rig, s->to, 3);
		cr_assert_eq(reads(s->reader_agent), 0);
		let_regs(s);
		wait_lanes(s);
		rig_pump_for(&s->rig, 20000000);
		xfer_part_advance(s->from, CHUNKS);
		expect_done(s, "rdma", "");
		struct transport_counters counters = rig_counters(s->reader_agent);
		cr_assert_eq(counters.rdma_fallbacks, 0);
		cr_assert_geq(
			counters.bytes_in_rdma, 8 * CHUNK, "%zu", (size_t)counters.bytes_in_rdma);
		cr_assert_leq(counters.bytes_in_rdma, (CHUNKS - 3) * CHUNK);
		cr_assert_str_eq(
			rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, 1)->transport, "rdma");
		pair_finish(s);
	}
}

/* No other clock looks after it before a stall. */
Test(rdma_late, memory_of_both_registers__the_readers_is_looked_after_when_the_source_is_there)
{
	struct pair *s = start_late(PAIR_SOURCE | PAIR_READER, 3, INT64_C(300000000000));
	pull(s);
	rig_wait_prefix(&s->rig, s->to, 3);
	hold_regs(s->source_agent, false);
	const struct leg_in *leg = LIST_FIRST(&s->reader_agent->transport->legs_in);
	while (__atomic_load_n(&reader_of(leg->paths[0])->num_rails, __ATOMIC_RELAXED) == 0)
		rig_pump(&s->rig, 1);
	hold_regs(s->reader_agent, false);
	wait_lanes(s);
	xfer_part_advance(s->from, CHUNKS);
	expect_done(s, "rdma", "");
	pair_finish(s);
}

Test(rdma_late, memory_is_registered_when_all_is_there__tcp_and_why)
{
	for (uint32_t late_source = 0; late_source < 2; late_source++) {
		struct pair *s = start(late_source, CHUNKS);
		pull(s);
		expect_done(s, "tcp", "while memory was still being registered");
		cr_assert_eq(rig_counters(s->reader_agent).rdma_fallbacks, 1);
		cr_assert_eq(reads(s->reader_agent), 0);
		let_regs(s);
		pair_finish(s);
	}
}

/* Queue pairs would not be there before the rest is. */
Test(rdma_late, little_is_missing_when_memory_is_registered__stays_with_tcp)
{
	for (uint32_t late_source = 0; late_source < 2; late_source++) {
		struct pair *s = start(late_source, CHUNKS - 1);
		pull(s);
		rig_wait_prefix(&s->rig, s->to, CHUNKS - 1);
		let_regs(s);
		rig_pump_for(&s->rig, 100000000);
		xfer_part_advance(s->from, CHUNKS);
		expect_done(s, "tcp", "while memory was still being registered");
		cr_assert_eq(reads(s->reader_agent), 0);
		pair_finish(s);
	}
}

Test(rdma_late, required__waits_for_the_memory)
{
	for (uint32_t late_source = 0; late_source < 2; late_source++) {
		struct pair *s = start(late_source, CHUNKS);
		s->reader_agent->require_rdma = true;
		pull(s);
		rig_pump_for(&s->rig, 300000000);
		cr_assert_eq(rig_counters(s->reader_agent).bytes_in, 0);
		let_regs(s);
		expect_done(s, "rdma", "");
		cr_assert_eq(rig_counters(s->reader_agent).bytes_in_rdma, CHUNKS * CHUNK);
		pair_finish(s);
	}
}

/* Up, and down again: the chunks on their way come by either. */
Test(rdma_late, rails_die_after_the_move__goes_on_by_tcp)
{
	for (uint32_t late_source = 0; late_source < 2; late_source++) {
		struct pair *s = start(late_source, 3);
		/* What is looked at first is told by another count. */
		xfer_part_expect_reuse(s->to);
		pull(s);
		rig_wait_prefix(&s->rig, s->to, 3);
		let_regs(s);
		wait_lanes(s);
		xfer_part_advance(s->from, 12);
		rig_wait_prefix(&s->rig, s->to, 12);
		for (uint32_t i = 0; i < s->reader_agent->num_rails; i++)
			fake_rdma_port_set(s->reader_agent->devices[i], 1, false);
		rig_pump_for(&s->rig, 50000000);
		xfer_part_advance(s->from, CHUNKS);
		expect_done(s, "tcp", "our port is down");
		cr_assert_gt(rig_counters(s->reader_agent).bytes_in_rdma, 0);
		pair_finish(s);
	}
}

/* Data connections are not let go before lanes have proved themselves. */
Test(rdma_late, lanes_do_not_prove_themselves__tcp_goes_on_meanwhile)
{
	struct pair *s = start(true, 3);
	pull(s);
	rig_wait_prefix(&s->rig, s->to, 3);
	for (uint32_t i = 0; i < s->reader_agent->num_rails; i++)
		fake_rdma_hold(s->reader_agent->devices[i], true);
	let_regs(s);
	wait_lanes(s);
	xfer_part_advance(s->from, 12);
	rig_wait_prefix(&s->rig, s->to, 12);
	while (rig_counters(s->reader_agent).rdma_fallbacks == 0)
		rig_pump(&s->rig, 10);
	xfer_part_advance(s->from, CHUNKS);
	expect_done(s, "tcp", "its first READ does not come back");
	cr_assert_eq(rig_counters(s->reader_agent).bytes_in_rdma, 0);
	for (uint32_t i = 0; i < s->reader_agent->num_rails; i++)
		fake_rdma_hold(s->reader_agent->devices[i], false);
	pair_finish(s);
}

/* Whatever it has come to. */
Test(rdma_late, stop_and_fence_at_any_moment__one_last_event)
{
	for (uint32_t round = 0; round < 24; round++) {
		struct pair *s = start(round % 2, 3 + round % 5);
		pull(s);
		rig_wait_prefix(&s->rig, s->to, 3);
		let_regs(s);
		rig_pump_for(&s->rig, (int64_t)(round / 2) * 2000000);
		xfer_part_advance(s->from, CHUNKS);
		pair_cut(s, round);
		while (s->reader_agent->num_events == 0)
			rig_pump(&s->rig, 10);
		pair_finish(s);
	}
}
