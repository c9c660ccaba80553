/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, what agents have yet to be told: bounded for each, and for all of them together. Who
 * beats and fetches nothing is given up for it, not who is told much and fetches it.
 */
#include "tests/unit/server/refsrv_fixture.h"

#define EVENT_BYTES 1320u /* as the manual says */
#define ROOM 1000u        /* events of all together */
#define AGENTS 8u

static uint32_t agents[AGENTS];
static struct world_member members[AGENTS];

static void
setup(void)
{
	struct refsrv_config config;

	refsrv_config_default(&config);
	config.event_bytes_max = (uint64_t)ROOM * EVENT_BYTES;
	world_init(&w, &config);
	for (uint32_t i = 0; i < AGENTS; i++) {
		char replica[2] = {(char)('a' + i)};
		agents[i] = world_agent(&w);
		members[i] = world_member(&w, agents[i], replica, 0, 1);
	}
}

TestSuite(refsrv_events, .init = setup, .fini = teardown);

/* Each outcome is an event, which it fetches or not; until it is given up. All beat. */
static void
told(uint32_t i, uint32_t count)
{
	struct world_member *m = &members[i];
	int code = 0;

	for (uint32_t n = 0; n < count && code == 0; n++)
		code = world_op(&w, m->agent, m->sid, ++m->seq, CTL_OP_LIST, "", TH_FOREVER);
	world_sleep(&w, 0);
}

Test(refsrv_events, all_fetch__any_number)
{
	for (uint32_t n = 0; n < 3; n++) {
		for (uint32_t i = 0; i < AGENTS; i++)
			told(i, ROOM / AGENTS);
	}
	for (uint32_t i = 0; i < AGENTS; i++)
		cr_assert_str_eq(node_state(agents[i]), "active");
}

Test(refsrv_events, one_fetches_nothing__given_up_when_all_the_room_is_taken)
{
	w.agents[agents[0]].deaf = true;
	told(0, 1); /* with it goes the POLL that stands */
	told(0, ROOM - AGENTS);
	cr_assert_str_eq(node_state(agents[0]), "active");
	told(0, AGENTS + 2);
	cr_assert_str_eq(node_state(agents[0]), "dead");
	for (uint32_t i = 1; i < AGENTS; i++)
		cr_assert_str_eq(node_state(agents[i]), "active");
}

/* Each has much less than one agent may have; another is told most at once, and fetches it. */
Test(refsrv_events, many_fetch_nothing__one_of_them_is_given_up_not_who_fetches)
{
	for (uint32_t i = 0; i < 4; i++) {
		w.agents[agents[i]].deaf = true;
		told(i, ROOM / 5);
		world_sleep(&w, 100 * MS);
	}
	w.agents[agents[4]].deaf = true;
	told(4, ROOM / 5 + 20);
	cr_assert_str_eq(node_state(agents[0]), "dead", "it has waited for the longest time");
	for (uint32_t i = 1; i < AGENTS; i++)
		cr_assert_str_eq(node_state(agents[i]), "active");
	/* What it had is free: there is room again. */
	told(5, ROOM / 10);
	for (uint32_t i = 1; i < AGENTS; i++)
		cr_assert_str_eq(node_state(agents[i]), "active");
}

/* Who has waited for longer, but for little, is not given up for another's. */
Test(refsrv_events, one_has_little_another_much__the_one_with_much)
{
	w.agents[agents[0]].deaf = true;
	told(0, 3);
	world_sleep(&w, SEC);
	w.agents[agents[1]].deaf = true;
	told(1, ROOM + 5);
	cr_assert_str_eq(node_state(agents[0]), "active");
	cr_assert_str_eq(node_state(agents[1]), "dead");
}
