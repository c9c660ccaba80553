/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, chains of partial replicas: a break has exactly one reaction, by the node below it; who
 * is blamed, and what two blames mean.
 */
#include <stdio.h>

#include "tests/unit/server/refsrv_fixture.h"

#define LENGTH 6u

static struct world_member source, spare, nodes[LENGTH];
static uint64_t legs[LENGTH];

static void
setup(void)
{
	world_init(&w, NULL);
	for (uint32_t i = 0; i < LENGTH + 3; i++)
		world_agent(&w);
	world_sleep(&w, 2 * SEC);
}

TestSuite(refsrv_chain, .init = setup, .fini = teardown);

/* source -> node 0 -> node 1 -> ... and a second complete copy, which comes later. */
static void
chain(bool with_spare)
{
	char name[16];

	source = world_member(&w, LENGTH, "source", 0, 1);
	world_publish(&w, &source, "1");
	for (uint32_t i = 0; i < LENGTH; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		nodes[i] = world_member(&w, i, name, 0, 1);
		struct ctl_grant grant = world_begin(&w, &nodes[i], CTL_OP_REPLICATE, "1");
		cr_assert_eq(grant.source_sid, i == 0 ? source.sid : nodes[i - 1].sid);
		legs[i] = grant.leg;
	}
	if (with_spare) {
		spare = world_member(&w, LENGTH + 1, "spare", 0, 1);
		world_publish(&w, &spare, "1");
	}
}

/* How many of the nodes got another source; the last such event. */
static uint32_t
reactions(uint32_t *ret_node, struct ctl_ev_reroute *ret_reroute)
{
	struct ctl_event event;
	uint32_t count = 0;

	for (uint32_t i = 0; i < LENGTH; i++) {
		while (world_take(&w, i, CTL_EV_REROUTE, nodes[i].sid, &event)) {
			count++;
			*ret_node = i;
			*ret_reroute = event.u.reroute;
		}
	}
	return count;
}

Test(refsrv_chain, root_dies__only_its_child_reacts_and_the_rest_waits)
{
	struct ctl_ev_reroute moved = {0};
	uint32_t node = LENGTH;

	chain(true);
	dies(LENGTH);
	cr_assert_eq(world_leg_end(&w, 0, legs[0], TH_E_NO_PATH, true, 4), 0);
	cr_assert_eq(reactions(&node, &moved), 1);
	cr_assert_eq(node, 0);
	cr_assert_eq(moved.grant.source_sid, spare.sid);
	world_sleep(&w, 12 * SEC);
	cr_assert_eq(reactions(&node, &moved), 0, "and nothing follows when it is buried");
}

Test(refsrv_chain, middle_dies__its_child_reads_from_above_it_and_keeps_its_prefix)
{
	struct ctl_ev_reroute moved = {0};
	uint32_t node = LENGTH;

	chain(false);
	dies(2);
	cr_assert_eq(world_leg_end(&w, 3, legs[3], TH_E_NO_PATH, true, 4), 0);
	cr_assert_eq(reactions(&node, &moved), 1);
	cr_assert_eq(node, 3);
	/* Not one that depends on it. */
	cr_assert(moved.grant.source_sid == source.sid || moved.grant.source_sid == nodes[0].sid ||
		  moved.grant.source_sid == nodes[1].sid);
	world_sleep(&w, 3 * SEC);
	cr_assert_eq(reactions(&node, &moved), 0);
}

Test(refsrv_chain, two_breaks_at_once__one_reaction_each)
{
	struct ctl_ev_reroute moved = {0};
	uint32_t node = LENGTH;

	chain(true);
	dies(1);
	dies(3);
	cr_assert_eq(world_leg_end(&w, 4, legs[4], TH_E_NO_PATH, true, 1), 0);
	cr_assert_eq(world_leg_end(&w, 2, legs[2], TH_E_NO_PATH, true, 2), 0);
	cr_assert_eq(reactions(&node, &moved), 2);
}

Test(refsrv_chain, child_is_impatient__its_waiting_parent_is_not_blamed)
{
	struct ctl_ev_reroute moved = {0};
	uint32_t node = LENGTH;

	chain(false);
	dies(LENGTH);
	/* Node 0 has lost its source and waits; node 1 should have waited too. */
	cr_assert_eq(world_leg_end(&w, 0, legs[0], TH_E_NO_PATH, true, 4), 0);
	cr_assert_eq(reactions(&node, &moved), 0);
	cr_assert_eq(world_leg_end(&w, 1, legs[1], TH_E_NO_PATH, true, 4), 0);
	spare = world_member(&w, LENGTH + 1, "spare", 0, 1);
	world_publish(&w, &spare, "1");
	cr_assert_eq(reactions(&node, &moved), 2);
	/* Were the pair of node 1 and node 0 blocked, it could not be below it. */
	struct world_member late = world_member(&w, 1, "late", 0, 1);
	(void)late;
	cr_assert_eq(world_leg_end(&w, 1, moved.grant.leg, TH_E_NO_PATH, true, 4), 0);
	cr_assert_eq(reactions(&node, &moved), 1);
}

Test(refsrv_chain, last_complete_copy_dies__no_circle_closes_and_all_learn_it)
{
	struct ctl_ev_reroute moved = {0};
	uint32_t node = LENGTH;

	chain(false);
	dies(LENGTH);
	cr_assert_eq(world_leg_end(&w, 0, legs[0], TH_E_NO_PATH, true, 4), 0);
	world_sleep(&w, 2 * SEC);
	cr_assert_eq(reactions(&node, &moved), 0, "its own descendants are no source");
	for (uint32_t i = 0; i < LENGTH; i++) {
		struct ctl_ev_part drain;
		struct ctl_event event;
		if (i > 0)
			cr_assert_eq(world_leg_end(&w, i, legs[i], TH_E_NO_PATH, true, 3), 0);
		if (world_take(&w, i, CTL_EV_DRAIN, nodes[i].sid, &event)) {
			drain = event.u.drain;
			cr_assert_eq(world_drain_done(&w, i, &drain), 0);
		}
	}
	for (uint32_t i = 0; i < LENGTH; i++)
		cr_assert_eq(world_outcome(&w, &nodes[i]).code, TH_E_VERSION_LOST);
}

/* ---- blame ---- */

static struct ctl_grant
reader(uint32_t agent, const char *name, struct world_member *ret_member)
{
	*ret_member = world_member(&w, agent, name, 0, 1);
	return world_begin(&w, ret_member, CTL_OP_REPLICATE, "1");
}

Test(refsrv_chain, one_reader_blames__others_still_read_from_it)
{
	struct world_member r0, r1;
	source = world_member(&w, 6, "a-source", 0, 1);
	spare = world_member(&w, 7, "b-spare", 0, 1);
	world_publish(&w, &source, "1");
	world_publish(&w, &spare, "1");
	struct ctl_grant g0 = reader(0, "r0", &r0);
	cr_assert_eq(g0.source_sid, source.sid);
	cr_assert_eq(world_leg_end(&w, 0, g0.leg, TH_E_NO_PATH, true, 0), 0);
	cr_assert_eq(reader(1, "r1", &r1).source_sid, source.sid);
}

/* Without pipelining: otherwise the least loaded is one of the readers. */
static void
two_sources(void)
{
	struct refsrv_config config;

	refsrv_config_default(&config);
	config.pipelining = false;
	world_fini(&w);
	world_init(&w, &config);
	for (uint32_t i = 0; i < LENGTH + 3; i++)
		world_agent(&w);
	source = world_member(&w, 6, "a-source", 0, 1);
	spare = world_member(&w, 7, "b-spare", 0, 1);
	world_publish(&w, &source, "1");
	world_publish(&w, &spare, "1");
}

/* Two readers of different hosts fail at the first source and go on at the other. */
static void
blamed_by_two(int code)
{
	struct world_member r[2];

	for (uint32_t i = 0; i < 2; i++) {
		struct ctl_grant grant = reader(i, i == 0 ? "r0" : "r1", &r[i]);
		cr_assert_eq(grant.source_sid, source.sid);
		cr_assert_eq(world_leg_end(&w, i, grant.leg, code, true, 0), 0);
		struct ctl_event event = taken(&r[i], CTL_EV_REROUTE);
		cr_assert_eq(event.u.reroute.grant.source_sid, spare.sid);
	}
}

Test(refsrv_chain, two_readers_blame__the_source_is_the_last_resort_of_all)
{
	struct world_member r2, r3;

	two_sources();
	blamed_by_two(TH_E_NO_PATH);
	/* It is idle, the other has two readers, and still. */
	cr_assert_eq(reader(2, "r2", &r2).source_sid, spare.sid);
	/* Nothing else is left: it is tried, and its success clears it. */
	world_call(&w, &spare, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct ctl_grant grant = reader(3, "r3", &r3);
	cr_assert_eq(grant.source_sid, source.sid);
	finished(&r3, grant.leg);
	struct world_member r4;
	cr_assert_eq(reader(4, "r4", &r4).source_sid, source.sid);
}

Test(refsrv_chain, two_readers_got_other_bytes__likewise)
{
	struct world_member r2;

	two_sources();
	blamed_by_two(TH_E_CHECKSUM);
	cr_assert_eq(reader(2, "r2", &r2).source_sid, spare.sid);
}

Test(refsrv_chain, two_readers_blame__forgotten_after_a_while)
{
	struct world_member r2;

	two_sources();
	blamed_by_two(TH_E_NO_PATH);
	world_sleep(&w, 31 * SEC);
	cr_assert_eq(reader(2, "r2", &r2).source_sid, source.sid);
}

Test(refsrv_chain, one_host_blames_twice__is_one_voice)
{
	struct world_member r0, r1, r2;

	two_sources();
	struct ctl_grant grant = reader(0, "r0", &r0);
	cr_assert_eq(world_leg_end(&w, 0, grant.leg, TH_E_CHECKSUM, true, 0), 0);
	grant = reader(0, "r1", &r1);
	cr_assert_eq(grant.source_sid, source.sid);
	cr_assert_eq(world_leg_end(&w, 0, grant.leg, TH_E_CHECKSUM, true, 0), 0);
	cr_assert_eq(reader(1, "r2", &r2).source_sid, source.sid);
}

/* ---- a slow reader in the way ---- */

/* For so many seconds node 0 has 3 chunks, and those behind it what they can have of them. */
static void
crawl(int seconds, uint32_t second)
{
	for (int i = 0; i < seconds; i++) {
		world_sleep(&w, SEC);
		cr_assert_eq(beat(0, legs[0], 3), 0);
		cr_assert_eq(beat(1, legs[1], second), 0);
		for (uint32_t node = 2; node < LENGTH; node++)
			cr_assert_eq(beat(node, legs[node], 2), 0);
	}
}

Test(refsrv_chain, slow_reader__the_first_behind_it_reads_beside_it)
{
	struct ctl_ev_reroute moved = {0};
	uint32_t node = LENGTH;

	chain(false);
	crawl(5, 3);
	cr_assert_eq(reactions(&node, &moved), 0, "it may only have paused");
	crawl(2, 3);
	cr_assert_eq(reactions(&node, &moved), 1);
	cr_assert_eq(node, 1);
	cr_assert_eq(moved.old_leg, legs[1]);
	cr_assert_eq(moved.grant.source_sid, source.sid);
	/* The source may be what is slow: it gets no third one, and nobody moves back. */
	legs[1] = moved.grant.leg;
	crawl(20, 3);
	cr_assert_eq(reactions(&node, &moved), 0);
	/* Its bytes come: those behind it have them from it. */
	finished(&nodes[1], legs[1]);
}

Test(refsrv_chain, slow_reader__an_idle_source_is_better_than_its_own)
{
	struct ctl_ev_reroute moved = {0};
	uint32_t node = LENGTH;

	chain(true);
	crawl(7, 3);
	cr_assert_eq(reactions(&node, &moved), 1);
	cr_assert_eq(node, 1);
	cr_assert_eq(moved.grant.source_sid, spare.sid);
}

Test(refsrv_chain, bytes_move__nobody_is_moved)
{
	struct ctl_ev_reroute moved = {0};
	uint32_t node = LENGTH;

	chain(true);
	for (uint32_t chunks = 1; chunks < 8; chunks++) {
		world_sleep(&w, 2 * SEC);
		for (uint32_t i = 0; i < LENGTH; i++)
			cr_assert_eq(beat(i, legs[i], chunks), 0);
	}
	cr_assert_eq(reactions(&node, &moved), 0);
}

/*
 * 4 MB/s from the source, and no limit behind it: four connections bring four chunks of 4 MiB
 * together, each 4.2 s, and the next reader has them before the beat and waits again. It must not
 * come and take half of that link.
 */
Test(refsrv_chain, bytes_come_in_bursts_by_a_slow_link__nobody_is_moved)
{
	struct ctl_ev_reroute moved = {0};
	uint32_t node = LENGTH;

	for (uint32_t phase = 0; phase < 1000; phase += 100) {
		teardown();
		setup();
		chain(true);
		for (uint32_t second = 1; second <= 12; second++) {
			uint32_t bursts = (1000 * second + phase) / 4200;
			world_sleep(&w, SEC);
			for (uint32_t i = 0; i < LENGTH; i++)
				cr_assert_eq(beat(i, legs[i], 4 * bursts), 0);
		}
		cr_assert_eq(reactions(&node, &moved), 0, "phase %u", phase);
	}
}

Test(refsrv_chain, slow_by_itself__stays_where_it_is)
{
	struct ctl_ev_reroute moved = {0};
	uint32_t node = LENGTH;

	chain(true);
	crawl(8, 2); /* node 0 has more than node 1 has taken */
	cr_assert_eq(reactions(&node, &moved), 0);
}

Test(refsrv_chain, source_reads_from_another_datacenter__its_readers_wait_for_it)
{
	struct ctl_event event;
	uint32_t far[2];

	source = world_member(&w, LENGTH, "source", 0, 1);
	world_publish(&w, &source, "1");
	for (uint32_t i = 0; i < 2; i++) {
		far[i] = world_agent_in(&w, "far");
		nodes[i] = world_member(&w, far[i], i == 0 ? "n0" : "n1", 0, 1);
		struct ctl_grant grant = world_begin(&w, &nodes[i], CTL_OP_REPLICATE, "1");
		cr_assert_eq(grant.source_sid, i == 0 ? source.sid : nodes[0].sid);
		legs[i] = grant.leg;
	}
	for (int i = 0; i < 10; i++) {
		world_sleep(&w, SEC);
		for (uint32_t node = 0; node < 2; node++) {
			struct ctl_leg_progress progress = {
				.leg = legs[node], .chunks_verified = 1};
			struct ctl_request request = {.kind = CTL_BEAT, .u.beat = {1, &progress}};
			cr_assert_eq(world_request(&w, far[node], &request), 0);
		}
	}
	cr_assert_not(world_take(&w, far[1], CTL_EV_REROUTE, nodes[1].sid, &event));
}

/* ---- several replicas of one host ---- */

Test(refsrv_chain, readers_of_their_own_host__do_not_count_as_load_of_its_network)
{
	static const struct { /* in the order of their calls */
		uint32_t agent, from;
	} order[] = {{0, 6}, {1, 0}, {0, 0}, {1, 1}, {1, 1}, {1, 1}, {2, 1}};
	struct world_member members[7];
	char name[16];

	source = world_member(&w, 6, "source", 0, 1);
	world_publish(&w, &source, "1");
	for (uint32_t i = 0; i < 7; i++) {
		snprintf(name, sizeof(name), "r%u", i);
		struct ctl_grant grant = reader(order[i].agent, name, &members[i]);
		uint32_t from = order[i].from == 6 ? 6 : UINT32_MAX;
		for (uint32_t j = 0; j < i && from == UINT32_MAX; j++)
			from = grant.source_sid == members[j].sid ? members[j].agent : from;
		cr_assert_eq(from, order[i].from, "reader %u reads from agent %u", i, from);
	}
}
