/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of devices that are lost and come back: legs do without meanwhile, and use them afterwards.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/clock.h"
#include "tests/support/rdma/fake_rdma.h"
#include "tests/support/transport/transport_pair.h"
#include "transport/rdma/device/device.h"
#include "transport/rdma/engine/rail.h"
#include "transport/rdma/leg/rail_pairs.h"
#include "transport/rdma/memory/region.h"
#include "transport/rdma/rdma.h"
#include "transport/transport_own.h"

#define CHUNK (4 * MIB)
#define CHUNKS 8
#define PATIENCE_NS INT64_C(40000000000)

static const uint64_t sizes[] = {CHUNKS * CHUNK};

static struct pair *
start(uint32_t rails)
{
	pair_rails = rails;
	struct pair *s = pair_new(sizes, 1, CALM_NS);
	pair_parts(s, true);
	rig_add_digests(s->from);
	return s;
}

/* A leg of its own, into memory that has nothing of it. */
static void
renew(struct pair *s)
{
	pair_release(s);
	memset(s->reader.memory, 0, s->reader.bytes);
	pair_parts(s, true);
	rig_add_digests(s->from);
}

static struct rdma *
rdma_of(const struct rig_agent *agent)
{
	return agent->transport->rdma;
}

static struct rail_status
status_of(const struct rig_agent *agent, uint32_t rail)
{
	struct rail_status status;
	rail_status(rdma_rails(rdma_of(agent)), rail, &status);
	return status;
}

static void
lose(struct pair *s, struct rig_agent *agent, uint32_t rail)
{
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	fake_rdma_remove(agent->devices[rail]);
	while (status_of(agent, rail).state != RAIL_GONE) {
		cr_assert_lt(th_now_ns(), until_ns);
		rig_pump(&s->rig, 1);
	}
}

/* Until all that was there is there again. */
static void
bring_back(struct pair *s, struct rig_agent *agent, uint32_t rail)
{
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	struct region *region = (agent == s->reader_agent ? &s->reader : &s->source)->region;
	struct region_key key;
	while (!fake_rdma_return(agent->devices[rail])) {
		cr_assert_lt(th_now_ns(), until_ns, "it is still open");
		rig_pump(&s->rig, 1);
	}
	while (!(rdma_usable(rdma_of(agent)) >> rail & 1) ||
		!rdma_scratch(rdma_of(agent), rail, &key) ||
		(region && !(region_ready(region) >> rail & 1))) {
		cr_assert_lt(
			th_now_ns(), until_ns, "it is not back: %s", status_of(agent, rail).why);
		rig_pump(&s->rig, 1);
	}
}

static void
expect_done(struct pair *s, uint64_t leg, const char *transport)
{
	const struct transport_event *done = pair_done(s, leg);
	cr_assert_str_eq(done->transport, transport, "%s", done->fallback);
	cr_assert_eq(done->bytes_moved, CHUNKS * CHUNK);
}

static void
pull(struct pair *s, uint64_t leg, const char *transport)
{
	xfer_part_advance(s->from, CHUNKS);
	pair_move(s, MODE_RDMA, leg, s->from, s->to);
	expect_done(s, leg, transport);
}

static uint64_t
reads(const struct rig_agent *agent, uint32_t rail)
{
	struct fake_counters counters;
	fake_rdma_counters(agent->devices[rail], &counters);
	return counters.reads;
}

static uint64_t
bytes_counted(const struct rig_agent *agent, uint32_t rail)
{
	struct rail_counters counters;
	rdma_rail_counters(rdma_of(agent), rail, &counters);
	return counters.bytes;
}

/* The leg that was under way, and those after it. */
Test(rdma_back, our_only_device_is_lost_midway__tcp_until_it_is_back)
{
	struct pair *s = start(1);
	xfer_part_advance(s->from, 3);
	pair_move(s, MODE_RDMA, 1, s->from, s->to);
	rig_wait_prefix(&s->rig, s->to, 3);
	lose(s, s->reader_agent, 0);
	cr_assert(strstr(status_of(s->reader_agent, 0).why, "gone for"), "%s",
		status_of(s->reader_agent, 0).why);
	xfer_part_advance(s->from, CHUNKS);
	expect_done(s, 1, "tcp");
	uint64_t reads_before = reads(s->reader_agent, 0);
	uint64_t counted = bytes_counted(s->reader_agent, 0);
	cr_assert_geq(counted, 3 * CHUNK);
	renew(s);
	pull(s, 2, "tcp");
	cr_assert_eq(reads(s->reader_agent, 0), reads_before);

	bring_back(s, s->reader_agent, 0);
	cr_assert_eq(status_of(s->reader_agent, 0).state, RAIL_UP);
	cr_assert_eq(status_of(s->reader_agent, 0).num_failed, 0);
	renew(s);
	pull(s, 3, "rdma");
	cr_assert_gt(reads(s->reader_agent, 0), reads_before);
	cr_assert_geq(bytes_counted(s->reader_agent, 0), counted + CHUNKS * CHUNK);
	pair_finish(s);
}

Test(rdma_back, one_of_two_is_lost_midway__the_other_goes_on_and_both_are_used_afterwards)
{
	for (uint32_t source = 0; source < 2; source++) {
		struct pair *s = start(2);
		struct rig_agent *agent = source ? s->source_agent : s->reader_agent;
		xfer_part_advance(s->from, 3);
		pair_move(s, MODE_RDMA, 1, s->from, s->to);
		rig_wait_prefix(&s->rig, s->to, 3);
		lose(s, agent, 1);
		xfer_part_advance(s->from, CHUNKS);
		while (!rig_find(s->reader_agent, TRANSPORT_DONE, 1)) {
			/* Of the peer's device only the retries of ours tell. */
			for (uint32_t i = 0; source && i < 2; i++)
				fake_rdma_give_up(s->reader_agent->devices[i]);
			rig_pump(&s->rig, 5);
		}
		expect_done(s, 1, "rdma");
		bring_back(s, agent, 1);
		cr_assert_eq(rdma_usable(rdma_of(agent)), 3);
		uint64_t reads_before = reads(s->reader_agent, 1);
		renew(s);
		pull(s, 2, "rdma");
		/* The path to a peer that did not answer is left alone for a while. */
		if (!source)
			cr_assert_gt(reads(s->reader_agent, 1), reads_before);
		pair_finish(s);
	}
}

/* Without a leg, again and again, at either end: keys are others each time. */
Test(rdma_back, lost_again_and_again__used_each_time)
{
	struct pair *s = start(1);
	struct region_key before = {0}, key;
	for (uint32_t round = 0; round < 6; round++) {
		struct rig_agent *agent = round % 2 ? s->source_agent : s->reader_agent;
		struct region *region = round % 2 ? s->source.region : s->reader.region;
		cr_assert(region_mr(region, 0, 0, &before));
		lose(s, agent, 0);
		cr_assert_eq(region_ready(region), 0);
		bring_back(s, agent, 0);
		cr_assert(region_mr(region, 0, 0, &key));
		cr_assert_neq(key.lkey, before.lkey);
		renew(s);
		pull(s, round + 1, "rdma");
	}
	pair_finish(s);
}

/* What is registered while it is away is so when it is back. */
Test(rdma_back, memory_comes_while_it_is_away__registered_when_it_is_back)
{
	pair_rails = 1;
	pair_staged = PAIR_READER;
	struct pair *s = start(1);
	pair_staged = 0;
	lose(s, s->reader_agent, 0);
	rig_register_soon(s->reader_agent, &s->reader);
	bring_back(s, s->reader_agent, 0);
	renew(s);
	pull(s, 1, "rdma");
	pair_finish(s);
}

Test(rdma_back, slots_at_both_ends__used_afterwards)
{
	pair_staged = PAIR_READER | PAIR_SOURCE;
	struct pair *s = start(1);
	pair_staged = 0;
	pull(s, 1, "rdma-copy");
	lose(s, s->reader_agent, 0);
	lose(s, s->source_agent, 0);
	renew(s);
	pull(s, 2, "tcp");
	bring_back(s, s->reader_agent, 0);
	bring_back(s, s->source_agent, 0);
	renew(s);
	pull(s, 3, "rdma-copy");
	pair_finish(s);
}

Test(rdma_back, somebody_holds_the_rail__stays_open_until_he_lets_go)
{
	struct pair *s = start(1);
	struct rails *rails = rdma_rails(rdma_of(s->reader_agent));
	cr_assert(rail_hold(rails, 0) && rail_hold(rails, 0));
	struct poller *poller = rdma_poller(rdma_of(s->reader_agent), 0);
	lose(s, s->reader_agent, 0);
	cr_assert_not(rail_hold(rails, 0));
	rig_pump_for(&s->rig, 20000000);
	rail_unhold(rails, 0);
	rig_pump_for(&s->rig, 20000000);
	cr_assert_not(fake_rdma_return(s->reader_agent->devices[0]));
	cr_assert_eq(rdma_poller(rdma_of(s->reader_agent), 0), poller);
	rail_unhold(rails, 0);
	bring_back(s, s->reader_agent, 0);
	pull(s, 1, "rdma");
	pair_finish(s);
}

/* Whatever the agent is just doing with it. */
Test(rdma_back, agents_end_while_a_device_is_lost_or_back)
{
	for (uint32_t round = 0; round < 12; round++) {
		struct pair *s = start(1);
		struct rig_agent *agent = round % 2 ? s->source_agent : s->reader_agent;
		xfer_part_advance(s->from, 3);
		pair_move(s, MODE_RDMA, 1, s->from, s->to);
		if (round % 4 < 2)
			rig_wait_prefix(&s->rig, s->to, 3);
		lose(s, agent, 0);
		rig_pump_for(&s->rig, (int64_t)(round / 4) * 2000000);
		fake_rdma_return(agent->devices[0]);
		rig_pump_for(&s->rig, (int64_t)(round / 4) * 1000000);
		pair_finish(s);
	}
}
