/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, after a former server was lost: groups come back shard by shard, what they hold and what
 * ran goes on, what contradicts breaks them with a sentence. What peers say that must not be
 * believed is in refsrv_rejoin_hostile_test.
 */
#include <stdio.h>

#include "tests/support/core/refsrv_former.h"
#include "tests/unit/server/refsrv_fixture.h"

static void
setup(void)
{
	former_world(&w, &a, &b, &c);
}

TestSuite(refsrv_rejoin, .init = setup, .fini = teardown);

/* One more operation of which it knows the end; held follows from it. */
static void
knows(struct ctl_rejoin *said, struct ctl_known_outcome *outcome, enum ctl_op_kind kind, int code,
	uint64_t version)
{
	*outcome = (struct ctl_known_outcome){
		.op_seq = said->next_op_seq++,
		.kind = kind,
		.code = code,
		.updated = code == 0 && version != TH_NO_VERSION && kind != CTL_OP_PUBLISH,
		.version = {1, version},
	};
	said->outcomes = outcome;
	said->num_outcomes = 1;
}

static int
asks(const struct world_member *m, uint64_t seq, enum ctl_op_kind kind, const char *spec)
{
	return world_op(&w, m->agent, m->sid, seq, kind, spec, TH_FOREVER);
}

/* A replica of another agent replicates this version: from whom. */
static uint64_t
read_from(uint32_t agent, const char *spec)
{
	struct world_member r = world_member(&w, agent, "reader", 0, 1);

	return world_begin(&w, &r, CTL_OP_REPLICATE, spec).source_sid;
}

/* ---- groups ---- */

Test(refsrv_rejoin, one_shard__holds__listed_and_read_at_once)
{
	struct ctl_rejoin said = former_holds("p", 0, 1, 7);
	struct world_member m = former_back(&w, a, &said);
	cr_assert(former_listed(&w, 7));
	cr_assert_eq(read_from(b, "7"), m.sid);
	/* It goes on where it was. */
	cr_assert_eq(asks(&m, 1, CTL_OP_UNPUBLISH, ""), TH_E_STATE);
	world_call(&w, &m, CTL_OP_REPLICATE, "7", TH_FOREVER);
	succeeded(&m);
}

Test(refsrv_rejoin, holds__given_up_after_the_proof_that_nobody_reads_it)
{
	struct ctl_rejoin said = former_holds("p", 0, 1, 7);
	struct world_member m = former_back(&w, a, &said);
	former_all_said(&w);
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_not(world_ended(&w, &m), "readers of the former server may be there");
	world_drained(&w, &m);
	succeeded(&m);
}

Test(refsrv_rejoin, attributes__of_whoever_has_them)
{
	struct th_hash key = {.lo = 5, .hi = 6};
	struct ctl_rejoin reader = former_holds("r", 0, 1, 7), other = former_holds("s", 0, 1, 7);
	struct ctl_request request = {.kind = CTL_RESOLVE};
	other.attributes = key;
	former_back(&w, a, &reader);
	former_back(&w, b, &other);
	/* Whoever reads it now is told them with the bytes, for the next time. */
	struct world_member m = world_member(&w, c, "new", 0, 1);
	struct ctl_event event;
	world_call(&w, &m, CTL_OP_REPLICATE, "7", TH_FOREVER);
	cr_assert(world_take(&w, c, CTL_EV_PLAN, m.sid, &event));
	cr_assert_eq(world_prepared(&w, &m, 0), 0);
	cr_assert(world_take(&w, c, CTL_EV_GO, m.sid, &event));
	cr_assert_eq(memcmp(&event.u.go.attributes, &key, sizeof(key)), 0);
	strcpy(request.u.resolve.model, "m");
	strcpy(request.u.resolve.spec, "7");
	cr_assert_eq(world_request(&w, a, &request), 0);
	cr_assert_eq(memcmp(&w.reply.u.resolve.attributes, &key, sizeof(key)), 0);
}

Test(refsrv_rejoin, several_shards__listed_with_the_last_of_them)
{
	struct ctl_rejoin said[3];
	struct world_member m[3];
	for (uint32_t i = 0; i < 3; i++)
		said[i] = former_holds("p", i, 3, 7);
	m[2] = former_back(&w, c, &said[2]);
	m[0] = former_back(&w, a, &said[0]);
	world_sleep(&w, 29 * SEC);
	cr_assert_not(former_listed(&w, 7), "never a part of it");
	m[1] = former_back(&w, a, &said[1]);
	cr_assert(former_listed(&w, 7));
	world_sleep(&w, 60 * SEC);
	for (uint32_t i = 0; i < 3; i++)
		cr_assert_not(former_is_broken(&w, &m[i]));
}

Test(refsrv_rejoin, nothing_held__live_and_the_next_operation_is_taken)
{
	struct ctl_rejoin said = former_shard("p", 0, 1);
	said.registered = false;
	struct world_member m = former_back(&w, a, &said);
	cr_assert_eq(world_register(&w, a, m.sid, 0), 0);
	world_publish(&w, &m, "3");
	cr_assert(former_listed(&w, 3));
}

Test(refsrv_rejoin, a_shard_does_not_come__broken_after_the_time_to_form)
{
	struct ctl_rejoin said = former_holds("p", 0, 2, 7), late = former_holds("p", 1, 2, 7);
	struct world_member m = former_back(&w, a, &said);
	world_sleep(&w, 30 * SEC - MS);
	cr_assert_not(former_is_broken(&w, &m));
	world_sleep(&w, MS);
	former_broken(&w, &m, "its shard 1 did not come back in time");
	/* What it holds was never on record; its agent waits for a DRAIN as for any other. */
	world_drained(&w, &m);
	cr_assert_eq(world_close(&w, &m, false), 0);
	/* Whoever comes then is no member of it, and begins another that nobody joins. */
	struct world_member second = former_back(&w, b, &late);
	world_sleep(&w, 30 * SEC);
	former_broken(&w, &second, "its shard 0 did not come back in time");
}

Test(refsrv_rejoin, a_shard_has_gone__broken_and_the_others_hear_it_whenever_they_come)
{
	struct ctl_rejoin first = former_holds("p", 0, 3, 7), gone = former_shard("p", 1, 3);
	struct ctl_rejoin last = former_holds("p", 2, 3, 7);
	struct world_member m = former_back(&w, a, &first);
	gone.gone = gone.died = true;
	cr_assert_eq(former_rejoin(&w, b, &gone), 0);
	former_broken(&w, &m, "shard 1 on node node1 lost its worker meanwhile");
	cr_assert_eq(former_rejoin(&w, c, &last), TH_E_GROUP_BROKEN);
	cr_assert(strstr(w.reply.text, "lost its worker"), "%s", w.reply.text);
	/* The name is free. */
	world_member(&w, c, "p", 0, 1);
}

Test(refsrv_rejoin, a_shard_has_gone_first__remembered_until_the_others_have_come)
{
	struct ctl_rejoin gone = former_shard("p", 1, 2), late = former_holds("p", 0, 2, 7);
	gone.gone = true;
	cr_assert_eq(former_rejoin(&w, b, &gone), 0);
	world_sleep(&w, 29 * SEC);
	cr_assert_eq(former_rejoin(&w, a, &late), TH_E_GROUP_BROKEN);
	cr_assert(strstr(w.reply.text, "shard 1 on node node1 was closed or broken"), "%s",
		w.reply.text);
	world_sleep(&w, 2 * SEC);
	/* Forgotten: it is as if nobody had said anything. */
	cr_assert_eq(former_rejoin(&w, a, &late), 0);
}

/* What it claimed is retained for a while when it has crashed, as if the server had seen that. */
static bool
retained_by_one_gone(bool died)
{
	struct ctl_rejoin gone = former_shard("p", 0, 1), holds = former_holds("q", 0, 1, 7);
	gone.gone = true;
	gone.died = died;
	strcpy(gone.open.retain, "7");
	former_back(&w, a, &holds);
	cr_assert_eq(former_rejoin(&w, b, &gone), 0);
	for (uint32_t agent = a; agent <= c; agent++)
		cr_assert_eq(former_said(&w, agent, 1), 0);
	world_sleep(&w, 5 * SEC);
	cr_assert_eq(world_list(&w, a, "m"), 0);
	return w.reply.u.list.versions[0].retained;
}

Test(refsrv_rejoin, gone_in_order__its_claim_has_ended)
{
	cr_assert_not(retained_by_one_gone(false));
}

Test(refsrv_rejoin, gone_by_a_crash__its_claim_goes_on_for_a_while)
{
	cr_assert(retained_by_one_gone(true));
	world_sleep(&w, w.config.grace_ns);
	cr_assert_eq(world_list(&w, a, "m"), 0);
	cr_assert_not(w.reply.u.list.versions[0].retained);
}

Test(refsrv_rejoin, closed_before_the_rest_is_there__broken_when_it_is)
{
	struct ctl_rejoin said[2] = {former_holds("p", 0, 2, 7), former_holds("p", 1, 2, 7)};
	struct world_member m = former_back(&w, a, &said[0]);
	cr_assert_eq(world_close(&w, &m, true), 0);
	struct world_member other = former_back(&w, b, &said[1]);
	struct ctl_event event = taken(&other, CTL_EV_BROKEN);
	cr_assert(strstr(event.u.broken.text, "lost its worker"), "%s", event.u.broken.text);
	cr_assert(former_listed(&w, 7), "it may be the last copy");
}

Test(refsrv_rejoin, agent_lost_before_the_rest_is_there__broken)
{
	struct ctl_rejoin said[3];
	for (uint32_t i = 0; i < 3; i++)
		said[i] = former_holds("p", i, 3, 7);
	struct world_member m = former_back(&w, a, &said[0]);
	former_back(&w, b, &said[1]);
	w.agents[b].silent = true;
	world_sleep(&w, 12 * SEC);
	struct ctl_event event = taken(&m, CTL_EV_BROKEN);
	cr_assert(strstr(event.u.broken.text, "shard 1 is lost"), "%s", event.u.broken.text);
	cr_assert_eq(former_rejoin(&w, c, &said[2]), TH_E_GROUP_BROKEN);
}

Test(refsrv_rejoin, opened_by_another_meanwhile__not_while_it_forms)
{
	struct ctl_rejoin said[2] = {former_holds("p", 0, 2, 7), former_holds("p", 1, 2, 7)};
	uint64_t sid;
	former_back(&w, a, &said[0]);
	cr_assert_eq(world_open(&w, b, "m", "p", 1, 2, 1, &sid), TH_E_GROUP_MISMATCH);
	cr_assert(strstr(w.reply.text, "was open when the reference server was lost"), "%s",
		w.reply.text);
	former_back(&w, b, &said[1]);
	/* One that was opened before the old one came keeps its name. */
	struct ctl_rejoin other = former_holds("q", 0, 1, 7);
	world_member(&w, b, "q", 0, 1);
	cr_assert_eq(former_rejoin(&w, a, &other), TH_E_GROUP_BROKEN);
	cr_assert(strstr(w.reply.text, "another group has been opened"), "%s", w.reply.text);
}

/* ---- contradictions ---- */

/* Both shards come; both hear why they do not fit. */
static void
contradict(const struct ctl_rejoin *one, const struct ctl_rejoin *two, const char *why)
{
	struct world_member m0 = former_back(&w, a, one), m1 = former_back(&w, b, two);

	former_broken(&w, &m0, why);
	former_broken(&w, &m1, why);
	cr_assert_not(former_listed(&w, 7));
}

Test(refsrv_rejoin, contradiction__other_versions)
{
	struct ctl_rejoin one = former_holds("p", 0, 2, 7), two = former_holds("p", 1, 2, 8);
	contradict(&one, &two, "its shards hold different versions");
}

Test(refsrv_rejoin, contradiction__since_other_operations)
{
	struct ctl_rejoin one = former_holds("p", 0, 2, 7), two = former_holds("p", 1, 2, 7);
	struct ctl_known_outcome list;
	knows(&two, &list, CTL_OP_LIST, 0, TH_NO_VERSION);
	two.gen = 2;
	contradict(&one, &two, "its shards hold different versions");
}

Test(refsrv_rejoin, contradiction__one_holds_nothing)
{
	struct ctl_rejoin one = former_holds("p", 0, 2, 7), two = former_shard("p", 1, 2);
	two.next_op_seq = 2;
	contradict(&one, &two, "its shards hold different versions");
}

Test(refsrv_rejoin, contradiction__told_different_outcomes)
{
	struct ctl_rejoin one = former_holds("p", 0, 3, 7), two = former_holds("p", 1, 3, 7);
	struct ctl_rejoin behind = former_holds("p", 2, 3, 7);
	struct ctl_known_outcome good, bad;
	knows(&one, &good, CTL_OP_UPDATE, 0, TH_NO_VERSION);
	knows(&two, &bad, CTL_OP_UPDATE, TH_E_TIMEOUT, TH_NO_VERSION);
	former_back(&w, c, &behind);
	contradict(&one, &two, "its shards were told different outcomes of operation 2");
}

Test(refsrv_rejoin, contradiction__an_end_that_nobody_knows)
{
	struct ctl_rejoin one = former_holds("p", 0, 2, 7), two = former_holds("p", 1, 2, 7);
	two.next_op_seq = 3;
	contradict(&one, &two, "nobody knows how operation 2 has ended");
}

Test(refsrv_rejoin, contradiction__too_far_apart)
{
	struct ctl_rejoin one = former_holds("p", 0, 2, 7), two = former_holds("p", 1, 2, 7);
	two.next_op_seq = 100;
	contradict(&one, &two, "its shards are 98 operations apart");
}

Test(refsrv_rejoin, contradiction__different_operations_run)
{
	struct ctl_rejoin one = former_fills("p", 0, 2, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin two = former_fills("p", 1, 2, 8, FORMER_LEG(2), "s");
	contradict(&one, &two, "its shards say that different operations run");
}

Test(refsrv_rejoin, contradiction__left_behind_what_runs)
{
	struct ctl_rejoin one = former_fills("p", 0, 2, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin two = former_shard("p", 1, 2);
	two.next_op_seq = 3;
	contradict(&one, &two, "an operation runs that a shard has left behind");
}

Test(refsrv_rejoin, contradiction__does_not_know_of_what_runs)
{
	struct ctl_rejoin one = former_fills("p", 0, 2, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin two = former_shard("p", 1, 2);
	two.registered = false;
	contradict(&one, &two, "a shard does not know of the operation that runs");
}

Test(refsrv_rejoin, contradiction__another_layout_than_the_version_has)
{
	struct ctl_rejoin there = former_holds("q", 0, 1, 7), said = former_holds("p", 0, 1, 7);
	former_back(&w, b, &there);
	said.reg.layout.lo = 99;
	struct world_member m = former_back(&w, a, &said);
	former_broken(&w, &m, "version 7 is there with another layout");
	cr_assert(former_listed(&w, 7), "that of the others");
}

Test(refsrv_rejoin, contradiction__another_number_of_shards_than_the_version_has)
{
	struct ctl_rejoin there = former_holds("q", 0, 1, 7);
	struct ctl_rejoin one = former_holds("p", 0, 2, 7), two = former_holds("p", 1, 2, 7);
	former_back(&w, b, &there);
	former_back(&w, a, &one);
	struct world_member m = former_back(&w, c, &two);
	former_broken(&w, &m, "version 7 is there with another layout");
}

/* ---- outcomes: what one was told the others are told too (I4) ---- */

Test(refsrv_rejoin, outcome__failed_for_one__for_whoever_asks_later_too)
{
	struct ctl_rejoin one = former_holds("p", 0, 2, 7), two = former_holds("p", 1, 2, 7);
	struct ctl_known_outcome failed;
	knows(&one, &failed, CTL_OP_UPDATE, TH_E_TIMEOUT, TH_NO_VERSION);
	struct world_member m0 = former_back(&w, a, &one), m1 = former_back(&w, b, &two);
	cr_assert(former_listed(&w, 7));
	cr_assert_not(world_ended(&w, &m0) || world_ended(&w, &m1), "the other has not asked");
	world_call(&w, &m1, CTL_OP_UPDATE, "", TH_FOREVER);
	struct ctl_ev_outcome end = world_outcome(&w, &m1);
	cr_assert_eq(end.code, TH_E_TIMEOUT);
	cr_assert(strstr(end.text, "its cause was lost with the reference server"), "%s", end.text);
	cr_assert_not(world_ended(&w, &m0), "it knows");
}

Test(refsrv_rejoin, outcome__of_what_went__told_without_being_asked)
{
	struct ctl_rejoin one = former_holds("p", 0, 2, 7);
	struct ctl_rejoin two = former_fills("p", 1, 2, 7, 0, "s");
	struct ctl_known_outcome done;
	one.next_op_seq = 1;
	knows(&one, &done, CTL_OP_REPLICATE, 0, 7);
	snprintf(done.spec, sizeof(done.spec), "latest");
	two.done = true;
	two.chunks = WORLD_CHUNKS;
	former_back(&w, a, &one);
	cr_assert_not(former_listed(&w, 7));
	struct world_member m1 = former_back(&w, b, &two);
	struct ctl_ev_outcome end = world_outcome(&w, &m1);
	cr_assert_eq(end.code, 0);
	cr_assert(end.updated);
	cr_assert_eq(end.version.version, 7);
	cr_assert(former_listed(&w, 7));
}

Test(refsrv_rejoin, outcome__of_a_publish__told_before_its_part_may_be_drained)
{
	struct ctl_rejoin one = former_holds("p", 0, 2, 7), two = former_shard("p", 1, 2);
	struct ctl_known_outcome done;
	one.next_op_seq = 1;
	knows(&one, &done, CTL_OP_PUBLISH, 0, 7);
	snprintf(done.spec, sizeof(done.spec), "7");
	struct world_member m0 = former_back(&w, a, &one), m1 = former_back(&w, b, &two);
	m1.seq = 1;
	succeeded(&m1);
	cr_assert_not(world_ended(&w, &m0));
	cr_assert(former_listed(&w, 7));
	/* Its repeat is no second operation. */
	cr_assert_eq(asks(&m1, 1, CTL_OP_PUBLISH, "7"), 0);
	cr_assert_not(world_ended(&w, &m1));
}

Test(refsrv_rejoin, outcome__of_an_unpublish__whoever_still_holds_gets_its_drain)
{
	struct ctl_rejoin one = former_holds("p", 0, 2, 7), two = former_holds("p", 1, 2, 7);
	struct ctl_known_outcome done;
	knows(&one, &done, CTL_OP_UNPUBLISH, 0, TH_NO_VERSION);
	one.held.version = TH_NO_VERSION;
	former_back(&w, a, &one);
	struct world_member m1 = former_back(&w, b, &two);
	cr_assert_not(former_listed(&w, 7));
	world_drained(&w, &m1);
	world_call(&w, &m1, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	succeeded(&m1);
}

Test(refsrv_rejoin, outcome__failed_after_go__nothing_is_held)
{
	struct ctl_rejoin one = former_holds("p", 0, 2, 7), two = former_holds("p", 1, 2, 7);
	struct ctl_known_outcome failed;
	knows(&one, &failed, CTL_OP_UPDATE, TH_E_DIRTY, TH_NO_VERSION);
	failed.went = true;
	one.held.version = TH_NO_VERSION;
	two.held.version = TH_NO_VERSION;
	two.went = true;
	two.op_seq = 2;
	two.next_op_seq = 3;
	two.kind = CTL_OP_UPDATE;
	two.version = (struct th_version){1, 8};
	former_back(&w, a, &one);
	struct world_member m1 = former_back(&w, b, &two);
	cr_assert_eq(world_outcome(&w, &m1).code, TH_E_DIRTY);
	cr_assert_not(former_is_broken(&w, &m1));
	cr_assert_not(former_listed(&w, 7));
}

Test(refsrv_rejoin, outcome__failed_after_go__who_had_none_gives_up_what_it_holds)
{
	struct ctl_rejoin one = former_shard("p", 0, 2), two = former_holds("p", 1, 2, 7);
	struct ctl_known_outcome failed;
	one.next_op_seq = 2;
	knows(&one, &failed, CTL_OP_UPDATE, TH_E_DIRTY, TH_NO_VERSION);
	failed.went = true;
	former_back(&w, a, &one);
	struct world_member m1 = former_back(&w, b, &two);
	cr_assert_not(former_is_broken(&w, &m1));
	world_drained(&w, &m1);
	world_call(&w, &m1, CTL_OP_UPDATE, "", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &m1).code, TH_E_DIRTY);
}

/* ---- what comes before the group is complete ---- */

Test(refsrv_rejoin, operation__called_before_the_rest_is_there__held_and_then_decided)
{
	struct ctl_rejoin one = former_holds("p", 0, 2, 7), two = former_holds("p", 1, 2, 7);
	struct world_member m0 = former_back(&w, a, &one);
	world_call(&w, &m0, CTL_OP_REPLICATE, "7", TH_FOREVER);
	cr_assert_eq(asks(&m0, m0.seq, CTL_OP_REPLICATE, "7"), 0, "its repeat");
	cr_assert_eq(asks(&m0, m0.seq + 1, CTL_OP_REPLICATE, "7"), TH_E_STATE, "one at a time");
	cr_assert_not(world_ended(&w, &m0));
	struct world_member m1 = former_back(&w, b, &two);
	world_call(&w, &m1, CTL_OP_REPLICATE, "7", TH_FOREVER);
	succeeded(&m0);
	succeeded(&m1);
}

Test(refsrv_rejoin, operation__held_too_long__its_time_has_run_out)
{
	struct ctl_rejoin one = former_holds("p", 0, 2, 7), two = former_holds("p", 1, 2, 7);
	struct world_member m0 = former_back(&w, a, &one);
	world_call(&w, &m0, CTL_OP_UNPUBLISH, "", 5 * SEC);
	world_sleep(&w, 4 * SEC);
	former_back(&w, b, &two);
	world_sleep(&w, SEC - MS);
	cr_assert_not(world_ended(&w, &m0));
	world_sleep(&w, MS);
	cr_assert_eq(world_outcome(&w, &m0).code, TH_E_TIMEOUT);
}

Test(refsrv_rejoin, operation__held_and_cancelled__is_cancelled)
{
	struct ctl_rejoin one = former_holds("p", 0, 2, 7), two = former_holds("p", 1, 2, 7);
	struct world_member m0 = former_back(&w, a, &one);
	world_call(&w, &m0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_eq(world_cancel(&w, &m0), 0);
	cr_assert_not(world_ended(&w, &m0));
	struct world_member m1 = former_back(&w, b, &two);
	cr_assert_eq(world_outcome(&w, &m0).code, TH_E_CANCELLED);
	cr_assert_not(former_is_broken(&w, &m1));
}

Test(refsrv_rejoin, operation__held_and_another_cancelled__goes_on)
{
	struct ctl_rejoin one = former_holds("p", 0, 2, 7), two = former_holds("p", 1, 2, 7);
	struct world_member m0 = former_back(&w, a, &one), other = m0;
	world_call(&w, &m0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	other.seq = 77;
	cr_assert_eq(world_cancel(&w, &other), 0);
	former_back(&w, b, &two);
	cr_assert_not(world_ended(&w, &m0));
}

Test(refsrv_rejoin, operation__held_when_the_group_breaks__is_told_so)
{
	struct ctl_rejoin one = former_holds("p", 0, 2, 7), gone = former_shard("p", 1, 2);
	struct world_member m0 = former_back(&w, a, &one);
	world_call(&w, &m0, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	gone.gone = true;
	cr_assert_eq(former_rejoin(&w, b, &gone), 0);
	former_broken(&w, &m0, "was closed or broken");
	cr_assert_eq(world_outcome(&w, &m0).code, TH_E_GROUP_BROKEN);
}

/* Both shards of q publish version 7: shard 0 these bytes, shard 1 those that p has. */
static struct world_member
publishes_too(uint64_t content)
{
	struct world_member q[2] = {world_member(&w, c, "q", 0, 2), world_member(&w, c, "q", 1, 2)};

	w.hash_late = true;
	world_call(&w, &q[0], CTL_OP_PUBLISH, "7", TH_FOREVER);
	world_call(&w, &q[1], CTL_OP_PUBLISH, "7", TH_FOREVER);
	cr_assert_eq(world_content(&w, &q[0], content), 0);
	cr_assert_eq(world_content(&w, &q[1], 1), 0);
	return q[0];
}

/* p comes back; what shard 0 holds is said while shard 1 is not there. */
static void
content_late(void)
{
	struct ctl_rejoin one = former_holds("p", 0, 2, 7), two = former_holds("p", 1, 2, 7);

	one.hashed = false;
	struct world_member m0 = former_back(&w, a, &one);
	cr_assert_eq(world_content(&w, &m0, 5), 0);
	m0.seq = 99;
	cr_assert_eq(world_content(&w, &m0, 66), 0, "of another generation: nothing");
	former_back(&w, b, &two);
}

Test(refsrv_rejoin, content__told_before_the_rest_is_there__others_are_refused)
{
	content_late();
	struct world_member q = publishes_too(6);
	cr_assert(world_has(&w, c, CTL_EV_CONFLICT, q.sid));
}

Test(refsrv_rejoin, content__told_before_the_rest_is_there__the_same_is_not)
{
	content_late();
	struct world_member q = publishes_too(5);
	cr_assert_not(world_has(&w, c, CTL_EV_CONFLICT, q.sid));
}

Test(refsrv_rejoin, content__others_were_published_meanwhile__they_are_refused)
{
	struct ctl_rejoin one = former_holds("p", 0, 2, 7), two = former_holds("p", 1, 2, 7);
	struct world_member q = publishes_too(6);
	former_back(&w, a, &one);
	cr_assert_not(world_has(&w, c, CTL_EV_CONFLICT, q.sid));
	former_back(&w, b, &two);
	cr_assert(world_has(&w, c, CTL_EV_CONFLICT, q.sid), "p was the first");
}
