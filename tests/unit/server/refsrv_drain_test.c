/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, the drain rule: what becomes of the readers of a part that is being given up. Trainers of
 * one job publish equal bytes and give them up together, step after step.
 */
#include <stdio.h>

#include "tests/unit/server/refsrv_fixture.h"

#define TRAINERS 4u
#define READERS 8u

static struct world_member trainers[TRAINERS], readers[READERS];
static uint64_t legs[READERS]; /* the newest of each */
static uint32_t moves[READERS];

static void
start(bool pipelining)
{
	struct refsrv_config config;
	char name[16];

	refsrv_config_default(&config);
	config.pipelining = pipelining;
	world_init(&w, &config);
	for (uint32_t i = 0; i < TRAINERS + READERS; i++)
		world_agent(&w);
	for (uint32_t i = 0; i < TRAINERS; i++) {
		snprintf(name, sizeof(name), "t%u", i);
		trainers[i] = world_member(&w, i, name, 0, 1);
	}
	for (uint32_t i = 0; i < READERS; i++) {
		snprintf(name, sizeof(name), "r%u", i);
		readers[i] = world_member(&w, TRAINERS + i, name, 0, 1);
	}
	memset(moves, 0, sizeof(moves));
}

static void
setup(void)
{
	start(true);
}

TestSuite(refsrv_drain, .init = setup, .fini = teardown);

/* What the readers' agents do: end the old leg, begin the new one. */
static void
follow(void)
{
	struct ctl_event event;

	for (uint32_t i = 0; i < READERS; i++) {
		while (world_take(&w, readers[i].agent, CTL_EV_REROUTE, readers[i].sid, &event)) {
			moves[i]++;
			if (event.u.reroute.old_leg != 0)
				cr_assert_eq(
					world_leg_end(&w, readers[i].agent, event.u.reroute.old_leg,
						TH_E_CANCELLED, false, 2),
					0);
			legs[i] = event.u.reroute.grant.leg;
		}
	}
}

static uint32_t
all_moves(void)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < READERS; i++) {
		cr_assert_leq(moves[i], 1, "reader %u has moved %u times", i, moves[i]);
		sum += moves[i];
	}
	return sum;
}

static uint32_t
most_readers_of_one(void)
{
	const struct ctl_inspection *all = refsrv_inspect(w.server, w.now_ns);
	uint32_t most = 0;

	for (uint32_t i = 0; i < all->num_nodes; i++)
		most = all->nodes[i].legs_out > most ? all->nodes[i].legs_out : most;
	return most;
}

static void
begin(uint32_t num_readers, const char *version)
{
	for (uint32_t i = 0; i < TRAINERS; i++)
		world_publish(&w, &trainers[i], version);
	for (uint32_t i = 0; i < num_readers; i++)
		legs[i] = world_begin(&w, &readers[i], CTL_OP_REPLICATE, version).leg;
}

/* Unpublish and the proof: a source's agent answers when its last reader is through. */
static void
give_up(uint32_t i, struct ctl_ev_part *ret_drain)
{
	world_call(&w, &trainers[i], CTL_OP_UNPUBLISH, "", 5 * SEC);
	*ret_drain = world_take_drain(&w, &trainers[i]);
	follow();
}

static void
whole_step(uint32_t num_readers, const char *version)
{
	struct ctl_ev_part drains[TRAINERS];

	begin(num_readers, version);
	for (uint32_t i = 0; i < TRAINERS; i++)
		give_up(i, &drains[i]);
	cr_assert_leq(most_readers_of_one(), 2, "nothing piles up");
	for (uint32_t i = 0; i < num_readers; i++) {
		finished(&readers[i], legs[i]);
	}
	for (uint32_t i = 0; i < TRAINERS; i++) {
		cr_assert_eq(world_drain_done(&w, i, &drains[i]), 0);
		succeeded(&trainers[i]);
	}
}

/* The next step: the readers give up what they hold. */
static void
let_go(uint32_t num_readers)
{
	for (uint32_t i = 0; i < num_readers; i++) {
		unpublish(&readers[i]);
	}
}

Test(refsrv_drain, trainers_together__pipelining__each_leg_moves_once_at_most)
{
	char version[16];

	for (uint32_t step = 1; step <= 3; step++) {
		snprintf(version, sizeof(version), "%u", step);
		memset(moves, 0, sizeof(moves));
		whole_step(READERS, version);
		/* Only those that read from a trainer can be in the way. */
		cr_assert_leq(all_moves(), TRAINERS);
		let_go(READERS);
	}
}

Test(refsrv_drain, trainers_together__every_source_is_busy__nothing_moves)
{
	world_fini(&w);
	start(false);
	whole_step(READERS, "1");
	cr_assert_eq(all_moves(), 0);
}

Test(refsrv_drain, trainers_together__one_reader__does_not_hop_from_one_to_the_next)
{
	world_fini(&w);
	start(false);
	whole_step(1, "1");
	cr_assert_eq(all_moves(), 1);
}

Test(refsrv_drain, trainers_together__two_readers__one_move_each_and_never_to_the_same)
{
	world_fini(&w);
	start(false);
	whole_step(2, "1");
	cr_assert_leq(all_moves(), 2);
}

Test(refsrv_drain, moved_leg__its_new_source_dies__moves_again)
{
	struct ctl_ev_part drain;

	world_fini(&w);
	start(false);
	begin(1, "1");
	world_sleep(&w, SEC);
	give_up(0, &drain);
	cr_assert_eq(moves[0], 1);
	const struct ctl_inspection *all = refsrv_inspect(w.server, w.now_ns);
	uint32_t source = 0;
	while (all->nodes[source].legs_out == 0)
		source++;
	cr_assert_lt(source, TRAINERS);
	w.agents[source].silent = true;
	world_gone(&w, source);
	world_sleep(&w, 2 * SEC);
	struct ctl_event event = taken(&readers[0], CTL_EV_REROUTE);
	finished(&readers[0], event.u.reroute.grant.leg);
}

Test(refsrv_drain, unpublish_fails__source_is_listed_again_and_others_have_not_moved_back)
{
	struct ctl_ev_part drains[2];

	world_fini(&w);
	start(false);
	begin(READERS, "1");
	give_up(0, &drains[0]);
	world_sleep(&w, 6 * SEC); /* its deadline: the two readers are slow, and go on */
	cr_assert_eq(world_outcome(&w, &trainers[0]).code, TH_E_TIMEOUT);
	follow();
	cr_assert_eq(all_moves(), 0);
	for (uint32_t i = 0; i < READERS; i++) {
		finished(&readers[i], legs[i]);
	}
}

Test(refsrv_drain, aborted_partial__its_children_move_at_once_also_to_a_busy_source)
{
	world_publish(&w, &trainers[0], "1");
	for (uint32_t i = 0; i < 3; i++)
		legs[i] = world_begin(&w, &readers[i], CTL_OP_REPLICATE, "1").leg;
	/* t0 -> r0 -> r1 -> r2; r1 fails by itself. */
	cr_assert_eq(world_leg_end(&w, readers[1].agent, legs[1], TH_E_STALE_MEMORY, false, 3), 0);
	struct ctl_event event = taken(&readers[2], CTL_EV_REROUTE);
	cr_assert_eq(event.u.reroute.old_leg, legs[2]);
	cr_assert_neq(event.u.reroute.grant.source_sid, readers[1].sid);
}
