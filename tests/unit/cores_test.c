/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agent cores and the server's core together: whatever is lost, late or dies, bytes and outcomes
 * are right and nothing is left behind. The world and its oracles: tests/support/cores_world.h.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>

#include "tests/support/cores_world.h"

/* Long enough to be noticed by the agents, too short or long enough for the server to bury them. */
static void
cut(void)
{
	int64_t ns = 3 * SEC + (int64_t)world_chance(9 * SEC);
	uint64_t node = world_chance(NODES + 1);

	for (uint32_t i = 0; i < NODES; i++) {
		if (node == i || node == NODES)
			world_cut(i, ns);
	}
}

static uint64_t given_up; /* updates that were told NO_SERVER, of all runs of a test */

static void
run(uint64_t seed, uint32_t loss_percent, uint32_t death_permille, bool restart, bool cuts)
{
	fprintf(stderr, "seed=%" PRIu64 "\n", seed);
	world_start(seed);
	world.loss_percent = loss_percent;
	world.death_permille = death_permille;
	for (int i = 0; i < (cuts ? 60000 : 20000); i++) {
		world_step();
		if (restart && world_chance(6000) == 0)
			world_restart_server();
		if (cuts && world_chance(5000) == 0)
			cut();
	}
	/* A run that never met what the cores are for would prove nothing. */
	cr_assert(world.publishes > 0 && world.updates > 0 && world.copies > 0);
	given_up += world.given_up;
	if (!cuts) {
		cr_assert(world.partial_sources > 0);
		if (loss_percent > 0)
			cr_assert(world.fences > 0 && world.failed_legs > 0 && world.failures > 0);
	}
	world_stop();
}

Test(cores, calm__versions_flow_and_nothing_is_left)
{
	for (uint64_t seed = 1; seed <= 5; seed++)
		run(seed, 0, 0, false, false);
}

Test(cores, lossy__bytes_and_outcomes_are_right_and_nothing_is_left)
{
	for (uint64_t seed = 100; seed < 110; seed++)
		run(seed, 6, 0, false, false);
}

Test(cores, workers_die__bytes_and_outcomes_are_right_and_nothing_is_left)
{
	for (uint64_t seed = 200; seed < 210; seed++)
		run(seed, 4, 20, false, false);
}

Test(cores, server_restarts__bytes_are_right_and_nothing_is_left)
{
	for (uint64_t seed = 300; seed < 310; seed++)
		run(seed, 4, 10, true, false);
}

Test(cores, hosts_are_cut_off__bytes_and_outcomes_are_right_and_nothing_is_left)
{
	for (uint64_t seed = 400; seed < 410; seed++)
		run(seed, 2, 2, false, true);
	cr_assert(given_up > 0);
}

Test(cores, hosts_are_cut_off_and_the_server_restarts__bytes_are_right_and_nothing_is_left)
{
	for (uint64_t seed = 500; seed < 510; seed++)
		run(seed, 2, 2, true, true);
	cr_assert(given_up > 0);
}
