/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, a launch that loses its server halfway: some shards were open at the former one, others
 * are opened here, and they meet in one group, whichever comes first.
 */
#include <stdio.h>

#include "tests/support/core/refsrv_former.h"
#include "tests/unit/server/refsrv_fixture.h"

static void
setup(void)
{
	former_world(&w, &a, &b, &c);
}

TestSuite(refsrv_rejoin_open, .init = setup, .fini = teardown);

/* One more operation of which it knows the end, that nobody else was needed for. */
static void
was_told(struct ctl_rejoin *said, struct ctl_known_outcome *outcomes, enum ctl_op_kind kind,
	const char *spec, int code)
{
	struct ctl_known_outcome *outcome = &outcomes[said->num_outcomes++];

	*outcome = (struct ctl_known_outcome){
		.op_seq = said->next_op_seq++,
		.kind = kind,
		.code = code,
		.version = {.version = TH_NO_VERSION},
	};
	snprintf(outcome->spec, sizeof(outcome->spec), "%s", spec);
	said->outcomes = outcomes;
}

/* Both publish what is their next operation, together. */
static void
publish_together(struct world_member *one, struct world_member *two)
{
	world_call(&w, one, CTL_OP_PUBLISH, "3", TH_FOREVER);
	world_call(&w, two, CTL_OP_PUBLISH, "3", TH_FOREVER);
	succeeded(one);
	succeeded(two);
	cr_assert(former_listed(&w, 3));
}

Test(refsrv_rejoin_open, opened_first__the_other_comes_back_and_they_are_one_group)
{
	struct world_member opened = world_member(&w, a, "p", 0, 2);
	struct ctl_rejoin said = former_shard("p", 1, 2);
	struct world_member back = former_back(&w, b, &said);
	cr_assert_neq(w.reply.u.open.group_inc, said.group_inc, "its group has the other's number");
	cr_assert_eq(w.reply.u.open.sid, said.sid);
	publish_together(&opened, &back);
	world_sleep(&w, 60 * SEC);
	cr_assert_not(world_has(&w, a, CTL_EV_BROKEN, opened.sid));
	cr_assert_not(former_is_broken(&w, &back));
}

Test(refsrv_rejoin_open, back_first__the_other_is_opened_and_they_are_one_group)
{
	struct ctl_rejoin said = former_shard("p", 1, 2);
	struct world_member back = former_back(&w, b, &said);
	struct world_member opened = world_member(&w, a, "p", 0, 2);
	publish_together(&opened, &back);
}

Test(refsrv_rejoin_open, back_first__opened_when_all_have_said_what_they_hold)
{
	struct ctl_rejoin said = former_shard("p", 1, 2);
	struct world_member back = former_back(&w, b, &said);
	former_all_said(&w);
	world_sleep(&w, 20 * SEC);
	struct world_member opened = world_member(&w, a, "p", 0, 2);
	publish_together(&opened, &back);
}

Test(refsrv_rejoin_open, opened_before_anybody_came_from_a_former_server__they_meet)
{
	world_fini(&w);
	world_init(&w, NULL);
	new_agents(1);
	struct world_member opened = world_member(&w, a, "p", 0, 2);
	b = former_agent(&w);
	struct ctl_rejoin said = former_shard("p", 1, 2);
	struct world_member back = former_back(&w, b, &said);
	publish_together(&opened, &back);
}

Test(refsrv_rejoin_open, what_one_was_told__the_other_is_told_when_it_calls_it)
{
	struct world_member opened = world_member(&w, a, "p", 0, 2);
	struct ctl_rejoin said = former_shard("p", 1, 2);
	struct ctl_known_outcome outcomes[2];
	was_told(&said, outcomes, CTL_OP_UPDATE, "latest", 0);
	was_told(&said, outcomes, CTL_OP_REPLICATE, "7", TH_E_TIMEOUT);
	/* Asked alone the server would say something else: it waits for those who may know. */
	world_call(&w, &opened, CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_not(world_ended(&w, &opened));
	struct world_member back = former_back(&w, b, &said);
	succeeded(&opened);
	world_call(&w, &opened, CTL_OP_REPLICATE, "7", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &opened).code, TH_E_TIMEOUT);
	cr_assert_not(world_ended(&w, &back), "it knows");
	publish_together(&opened, &back);
}

Test(refsrv_rejoin_open, a_third_is_not_there__goes_on_as_any_launch)
{
	struct ctl_rejoin said = former_shard("p", 1, 3);
	struct ctl_known_outcome outcomes[1];
	was_told(&said, outcomes, CTL_OP_REPLICATE, "7", TH_E_TIMEOUT);
	struct world_member back = former_back(&w, b, &said);
	struct world_member opened = world_member(&w, a, "p", 0, 3);
	world_call(&w, &opened, CTL_OP_REPLICATE, "7", TH_FOREVER);
	world_call(&w, &back, CTL_OP_REPLICATE, "8", 5 * SEC);
	cr_assert_not(world_ended(&w, &opened));
	former_all_said(&w);
	cr_assert_eq(world_outcome(&w, &opened).code, TH_E_TIMEOUT);
	world_sleep(&w, 60 * SEC);
	/* Nobody is given up for being late; the deadline says who is missing. */
	cr_assert_eq(world_outcome(&w, &back).code, TH_E_TIMEOUT);
	cr_assert_not(former_is_broken(&w, &back));
	struct world_member third = world_member(&w, c, "p", 2, 3);
	world_call(&w, &third, CTL_OP_REPLICATE, "7", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &third).code, TH_E_TIMEOUT);
}

Test(refsrv_rejoin_open, nobody_comes_back__what_was_held_goes_on)
{
	struct world_member opened = world_member(&w, a, "p", 0, 2);
	world_call(&w, &opened, CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_not(world_ended(&w, &opened));
	former_all_said(&w);
	succeeded(&opened);
	struct world_member other = world_member(&w, b, "p", 1, 2);
	world_call(&w, &other, CTL_OP_UPDATE, "latest", TH_FOREVER);
	succeeded(&other);
	publish_together(&opened, &other);
}

/* The group has done what takes all of its shards: one that is opened is not one of them. */
static void
opens_beside(const struct ctl_rejoin *said)
{
	struct world_member back = former_back(&w, b, said);
	uint64_t sid;
	cr_assert_eq(world_open(&w, a, "m", "p", 0, 2, 1, &sid), TH_E_GROUP_MISMATCH);
	cr_assert(strstr(w.reply.text, "not all of its shards have come back"), "%s", w.reply.text);
	world_sleep(&w, 30 * SEC);
	former_broken(&w, &back, "its shard 0 did not come back in time");
}

Test(refsrv_rejoin_open, one_holds_a_version__another_cannot_be_opened_beside_it)
{
	struct ctl_rejoin said = former_holds("p", 1, 2, 7);
	opens_beside(&said);
}

Test(refsrv_rejoin_open, one_had_published__another_cannot_be_opened_beside_it)
{
	struct ctl_rejoin said = former_shard("p", 1, 2);
	struct ctl_known_outcome outcomes[1];
	was_told(&said, outcomes, CTL_OP_PUBLISH, "7", 0);
	opens_beside(&said);
}

Test(refsrv_rejoin_open, one_does_not_say_all__another_cannot_be_opened_beside_it)
{
	struct ctl_rejoin said = former_shard("p", 1, 2);
	said.next_op_seq = 100;
	opens_beside(&said);
}

Test(refsrv_rejoin_open, opened_first__who_held_a_version_is_of_another_group)
{
	world_member(&w, a, "p", 0, 2);
	struct ctl_rejoin said = former_holds("p", 1, 2, 7);
	cr_assert_eq(former_rejoin(&w, b, &said), TH_E_GROUP_BROKEN);
	cr_assert(strstr(w.reply.text, "another group has been opened under its name"), "%s",
		w.reply.text);
}

Test(refsrv_rejoin_open, other_launch_or_other_rules__another_group)
{
	uint64_t sid;
	struct ctl_rejoin said = former_shard("p", 1, 2);
	cr_assert_eq(world_launch(&w, a, "p", 0, 2, "new", &sid), 0);
	strcpy(said.open.launch_id, "old");
	cr_assert_eq(former_rejoin(&w, b, &said), TH_E_GROUP_BROKEN);
	strcpy(said.open.launch_id, "new");
	strcpy(said.open.retain, "latest");
	cr_assert_eq(former_rejoin(&w, b, &said), TH_E_GROUP_BROKEN);
	said.open.retain[0] = '\0';
	said.open.lineage = 2;
	cr_assert_eq(former_rejoin(&w, b, &said), TH_E_GROUP_BROKEN);
	said.open.lineage = 1;
	cr_assert_eq(former_rejoin(&w, b, &said), 0);
}

Test(refsrv_rejoin_open, two_have_come_back_told_different_ends__broken)
{
	struct ctl_rejoin said[2] = {former_shard("p", 1, 4), former_shard("p", 2, 4)};
	struct ctl_known_outcome outcomes[2][1];
	was_told(&said[0], outcomes[0], CTL_OP_REPLICATE, "7", TH_E_TIMEOUT);
	was_told(&said[1], outcomes[1], CTL_OP_REPLICATE, "7", TH_E_CANCELLED);
	struct world_member opened = world_member(&w, a, "p", 0, 4);
	struct world_member first = former_back(&w, b, &said[0]);
	struct world_member second = former_back(&w, c, &said[1]);
	former_all_said(&w);
	former_broken(&w, &first, "its members contradict each other");
	former_broken(&w, &second, "its members contradict each other");
	former_broken(&w, &opened, "its members contradict each other");
}

Test(refsrv_rejoin_open, a_shard_of_those_that_came_back_has_gone__broken)
{
	struct ctl_rejoin said = former_shard("p", 1, 3), gone = former_shard("p", 2, 3);
	struct world_member opened = world_member(&w, a, "p", 0, 3);
	struct world_member back = former_back(&w, b, &said);
	gone.gone = gone.died = true;
	cr_assert_eq(former_rejoin(&w, c, &gone), 0);
	former_broken(&w, &back, "shard 2 on node node2 lost its worker meanwhile");
	former_broken(&w, &opened, "shard 2 on node node2 lost its worker meanwhile");
	/* The name is free. */
	world_member(&w, c, "p", 0, 1);
}

Test(refsrv_rejoin_open, closed_while_it_waits__broken_for_all)
{
	struct ctl_rejoin said = former_shard("p", 1, 3);
	struct world_member opened = world_member(&w, a, "p", 0, 3);
	struct world_member back = former_back(&w, b, &said);
	cr_assert_eq(world_close(&w, &opened, false), 0);
	cr_assert(world_has(&w, b, CTL_EV_BROKEN, back.sid));
}

Test(refsrv_rejoin_open, opened_twice__the_second_is_refused_and_one_that_comes_back_breaks_it)
{
	struct ctl_rejoin said = former_shard("p", 1, 3), twin = former_shard("p", 2, 3);
	struct world_member back = former_back(&w, b, &said);
	struct world_member opened = world_member(&w, a, "p", 2, 3);
	uint64_t sid;
	cr_assert_eq(world_open(&w, c, "m", "p", 2, 3, 1, &sid), TH_E_GROUP_MISMATCH);
	cr_assert(strstr(w.reply.text, "is open on node node0 already"), "%s", w.reply.text);
	cr_assert_eq(former_rejoin(&w, c, &twin), TH_E_GROUP_BROKEN);
	former_broken(&w, &back, "its members contradict each other");
	former_broken(&w, &opened, "its members contradict each other");
}

/* ---- the launch has gone on ---- */

/* Shard 0 was open at the former server and 1 was not; 2 is at an agent that nobody has seen. */
static void
go_on_after(bool opened_first, struct world_member *ret_back, struct world_member *ret_opened)
{
	struct ctl_rejoin said = former_shard("p", 0, 3);

	if (opened_first)
		*ret_opened = world_member(&w, a, "p", 1, 3);
	*ret_back = former_back(&w, b, &said);
	if (!opened_first)
		*ret_opened = world_member(&w, a, "p", 1, 3);
	world_call(&w, ret_back, CTL_OP_UPDATE, "latest", TH_FOREVER);
	former_all_said(&w);
	succeeded(ret_back);
}

static void
go_on(struct world_member *ret_back, struct world_member *ret_opened)
{
	go_on_after(false, ret_back, ret_opened);
}

static void
breaks_all(const struct ctl_rejoin *late, const struct world_member *back,
	const struct world_member *opened)
{
	cr_assert_eq(former_rejoin(&w, former_agent(&w), late), TH_E_GROUP_BROKEN);
	former_broken(&w, back, "its members contradict each other");
	former_broken(&w, opened, "its members contradict each other");
}

Test(refsrv_rejoin_open, comes_too_late_and_was_told_another_end__broken_for_all)
{
	struct world_member back, opened;
	struct ctl_known_outcome outcomes[1];
	struct ctl_rejoin late = former_shard("p", 2, 3);
	go_on(&back, &opened);
	was_told(&late, outcomes, CTL_OP_UPDATE, "latest", TH_E_TIMEOUT);
	breaks_all(&late, &back, &opened);
}

Test(refsrv_rejoin_open, comes_too_late_to_a_group_with_another_number__broken_for_all)
{
	struct world_member back, opened;
	struct ctl_known_outcome outcomes[1];
	struct ctl_rejoin late = former_shard("p", 2, 3);
	go_on_after(true, &back, &opened);
	was_told(&late, outcomes, CTL_OP_UPDATE, "latest", TH_E_TIMEOUT);
	breaks_all(&late, &back, &opened);
}

Test(refsrv_rejoin_open, comes_too_late_and_was_told_of_what_has_not_been__broken_for_all)
{
	struct world_member back, opened;
	struct ctl_known_outcome outcomes[2];
	struct ctl_rejoin late = former_shard("p", 2, 3);
	go_on(&back, &opened);
	was_told(&late, outcomes, CTL_OP_UPDATE, "latest", 0);
	was_told(&late, outcomes, CTL_OP_REPLICATE, "7", TH_E_TIMEOUT);
	breaks_all(&late, &back, &opened);
}

Test(refsrv_rejoin_open, comes_too_late_and_was_told_the_same__opened_again_it_is_one_of_them)
{
	struct world_member back, opened;
	struct ctl_known_outcome outcomes[1];
	struct ctl_rejoin late = former_shard("p", 2, 3);
	go_on(&back, &opened);
	was_told(&late, outcomes, CTL_OP_UPDATE, "latest", 0);
	cr_assert_eq(former_rejoin(&w, former_agent(&w), &late), TH_E_GROUP_BROKEN);
	cr_assert_not(former_is_broken(&w, &back));
	struct world_member again = world_member(&w, c, "p", 2, 3);
	world_call(&w, &again, CTL_OP_UPDATE, "latest", TH_FOREVER);
	succeeded(&again);
}

Test(refsrv_rejoin_open, has_gone_and_that_is_told_too_late__broken)
{
	struct world_member back, opened;
	struct ctl_rejoin late = former_shard("p", 2, 3);
	go_on(&back, &opened);
	late.gone = true;
	cr_assert_eq(former_rejoin(&w, former_agent(&w), &late), 0);
	former_broken(&w, &back, "was closed or broken meanwhile");
}

Test(refsrv_rejoin_open, another_has_its_place__goes_on)
{
	struct world_member back, opened;
	struct ctl_rejoin late = former_shard("p", 2, 3);
	go_on(&back, &opened);
	struct world_member third = world_member(&w, c, "p", 2, 3);
	late.gone = true;
	cr_assert_eq(former_rejoin(&w, former_agent(&w), &late), 0);
	cr_assert_not(former_is_broken(&w, &back));
	cr_assert_not(former_is_broken(&w, &third));
}
