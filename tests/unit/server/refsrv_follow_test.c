/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, followers: groups that take new versions by themselves, up to the mark of a go.
 */
#include <stdio.h>

#include "tests/support/core/refsrv_former.h"
#include "tests/unit/server/refsrv_fixture.h"

static void
setup_following(void)
{
	world_init(&w, NULL);
	w.offload_bytes = UINT64_MAX;
	new_agents(3);
}

TestSuite(refsrv_follow, .init = setup_following, .fini = teardown);

/* ---- what is said ---- */

static int
go(const char *model, const char *spec)
{
	struct ctl_request request = {.kind = CTL_ADMIN, .u.admin = {.verb = CTL_ADMIN_GO}};

	snprintf(request.u.admin.model, sizeof(request.u.admin.model), "%s", model);
	snprintf(request.u.admin.spec, sizeof(request.u.admin.spec), "%s", spec);
	return world_request(&w, c, &request);
}

static void
said_go(const char *spec)
{
	cr_assert_eq(go("m", spec), 0, "%s", w.reply.text);
}

static void
follows(struct world_member *m, const char *spec)
{
	world_call(&w, m, CTL_OP_FOLLOW, spec, TH_FOREVER);
	succeeded(m);
}

static struct world_member
follower(uint32_t agent, const char *replica)
{
	struct world_member m = single(agent, replica);

	follows(&m, "latest");
	return m;
}

/* An automatic operation has begun, of this version: the member as it counts there. */
static struct world_member
automatic(const struct world_member *m, uint64_t version)
{
	struct ctl_event event = taken(m, CTL_EV_PLAN);
	struct world_member its = *m;

	cr_assert(ctl_op_automatic(event.u.plan.op_seq));
	cr_assert_eq(event.u.plan.version.version, version);
	its.seq = event.u.plan.op_seq;
	return its;
}

static bool
is_asked(const struct world_member *m)
{
	return world_has(&w, m->agent, CTL_EV_PLAN, m->sid);
}

/* From which session. */
static uint64_t
followed(const struct world_member *m, uint64_t version)
{
	struct world_member its = automatic(m, version);

	cr_assert_eq(world_prepared(&w, &its, 0), 0);
	struct ctl_grant grant = world_go(&w, &its);
	world_finish(&w, &its, grant.leg);
	struct ctl_ev_outcome end = world_outcome(&w, &its);
	cr_assert_eq(end.code, 0, "%s", end.text);
	cr_assert(end.updated);
	cr_assert_eq(end.version.version, version);
	return grant.source_sid;
}

/* ---- go ---- */

Test(refsrv_follow, go__it_takes_the_version_without_a_call)
{
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = follower(b, "r");
	cr_assert_not(is_asked(&r), "nobody has said go");
	said_go("1");
	cr_assert_eq(w.reply.u.admin.go.version, 1);
	cr_assert_eq(w.reply.u.admin.members, 1);
	cr_assert(strstr(w.reply.u.admin.text, "up to 1; 1 replica follows") != NULL);
	cr_assert_eq(followed(&r, 1), p.sid);
	cr_assert_eq(world_logged(&w, "replica r of m has followed to version 1"), 1);
	cr_assert_not(is_asked(&r));
}

Test(refsrv_follow, follow_after_go__it_takes_it_as_well)
{
	struct ctl_event event;
	world_published(&w, a, "p", "1");
	said_go("latest");
	struct world_member r = follower(b, "r");
	cr_assert(world_take(&w, b, CTL_EV_GO_MARK, 0, &event));
	cr_assert_str_eq(event.u.go_mark.model, "m");
	cr_assert_eq(event.u.go_mark.version.version, 1);
	followed(&r, 1);
}

Test(refsrv_follow, mark__is_told_to_followers_alone_and_never_falls)
{
	struct ctl_event event;
	struct world_member p = world_published(&w, a, "p", "1");
	world_published(&w, a, "q", "2");
	struct world_member r = follower(b, "r");
	said_go("2");
	cr_assert(world_take(&w, b, CTL_EV_GO_MARK, 0, &event));
	cr_assert_eq(event.u.go_mark.version.version, 2);
	cr_assert_not(world_has(&w, p.agent, CTL_EV_GO_MARK, 0));
	followed(&r, 2);
	said_go("1");
	cr_assert_eq(w.reply.u.admin.go.version, 2);
	cr_assert_not(world_has(&w, b, CTL_EV_GO_MARK, 0));
	cr_assert_not(is_asked(&r));
}

Test(refsrv_follow, newest_not_above_the_mark__is_taken)
{
	world_published(&w, a, "p", "1");
	world_published(&w, a, "q", "2");
	world_published(&w, c, "x", "3");
	struct world_member r = follower(b, "r");
	said_go("2");
	followed(&r, 2);
	cr_assert_not(is_asked(&r), "3 is above the mark, 1 is older");
	said_go("3");
	followed(&r, 3);
}

Test(refsrv_follow, version_comes_when_go_was_said_for_a_later_one__it_is_taken)
{
	struct world_member p = world_published(&w, a, "p", "3");
	struct world_member r = follower(b, "r");
	said_go("3");
	struct world_member its = automatic(&r, 3);
	unpublish(&p);
	struct ctl_ev_outcome end = world_outcome(&w, &its);
	cr_assert_eq(end.code, 0, "what was planned has gone, and nothing else is there");
	cr_assert_not(end.updated);
	world_publish(&w, &p, "2");
	followed(&r, 2);
}

Test(refsrv_follow, go_for_what_is_not_there__is_refused)
{
	world_published(&w, a, "p", "1");
	cr_assert_eq(go("m", "2"), TH_E_NOT_AVAILABLE);
	cr_assert(says("version 2 of m is not there; thctl ls versions m"), "%s", w.reply.text);
	cr_assert_eq(go("m", "latest-1"), TH_E_NOT_AVAILABLE);
	cr_assert_eq(go("x", "1"), TH_E_NOT_AVAILABLE);
	cr_assert(says("no model x"), "%s", w.reply.text);
	cr_assert_eq(go("m", "soon"), TH_E_INVALID);
	cr_assert_eq(go("", "1"), TH_E_INVALID);
	cr_assert_eq(go("m", "1"), 0);
}

/* ---- the members' own calls ---- */

Test(refsrv_follow, own_call_before_go__ends_it_and_nothing_has_happened)
{
	world_published(&w, a, "p", "1");
	struct world_member r = follower(b, "r");
	said_go("1");
	followed(&r, 1);
	struct world_member q = world_published(&w, a, "q", "2");
	said_go("2");
	struct world_member its = automatic(&r, 2);
	world_call(&w, &r, CTL_OP_LIST, "", TH_FOREVER);
	struct ctl_ev_outcome end = world_outcome(&w, &its);
	cr_assert_eq(end.code, TH_E_CANCELLED);
	cr_assert(strstr(end.text, "gives way to a call of its members") != NULL, "%s", end.text);
	taken(&r, CTL_EV_UNDRAIN);
	succeeded(&r);
	cr_assert_eq(world_prepared(&w, &its, 0), 0, "late, and of no effect");
	cr_assert_eq(followed(&r, 2), q.sid, "when the call has ended it begins anew");
	cr_assert_eq(world_logged(&w, "could not follow"), 0);
}

Test(refsrv_follow, cancel_of_a_member_before_go__ends_it)
{
	world_published(&w, a, "p", "1");
	struct world_member r = follower(b, "r");
	said_go("1");
	struct world_member its = automatic(&r, 1);
	cr_assert_eq(world_cancel(&w, &its), 0);
	cr_assert_eq(world_outcome(&w, &its).code, TH_E_CANCELLED);
	followed(&r, 1);
}

Test(refsrv_follow, own_call_after_go__is_refused_for_agents_keep_it_back)
{
	world_published(&w, a, "p", "1");
	struct world_member r = follower(b, "r");
	said_go("1");
	struct world_member its = automatic(&r, 1);
	cr_assert_eq(world_prepared(&w, &its, 0), 0);
	struct ctl_grant grant = world_go(&w, &its);
	cr_assert_eq(
		world_op(&w, b, r.sid, r.seq + 1, CTL_OP_UNPUBLISH, "", TH_FOREVER), TH_E_STATE);
	cr_assert(says("keep calls back until that has ended"), "%s", w.reply.text);
	world_finish(&w, &its, grant.leg);
	succeeded(&its);
	unpublish(&r);
}

Test(refsrv_follow, numbers_of_the_members__do_not_count_it)
{
	world_published(&w, a, "p", "1");
	struct world_member r = follower(b, "r");
	said_go("1");
	followed(&r, 1);
	cr_assert_eq(r.seq, 1);
	world_call(&w, &r, CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_not(world_outcome(&w, &r).updated);
}

/* ---- the end of following ---- */

Test(refsrv_follow, follow_nothing__it_takes_no_more)
{
	world_published(&w, a, "p", "1");
	struct world_member r = follower(b, "r");
	follows(&r, "");
	said_go("1");
	cr_assert(strstr(w.reply.u.admin.text, "0 replicas follow") != NULL);
	cr_assert_not(is_asked(&r));
}

Test(refsrv_follow, unpublish__ends_it)
{
	world_published(&w, a, "p", "1");
	struct world_member r = follower(b, "r");
	said_go("1");
	followed(&r, 1);
	unpublish(&r);
	cr_assert_not(is_asked(&r), "the tensors are the worker's own");
	world_publish(&w, &r, "2");
}

Test(refsrv_follow, publish_and_unregister__are_refused_meanwhile)
{
	struct world_member r = follower(b, "r");
	world_call(&w, &r, CTL_OP_PUBLISH, "1", TH_FOREVER);
	struct ctl_ev_outcome end = world_outcome(&w, &r);
	cr_assert_eq(end.code, TH_E_STATE);
	cr_assert(strstr(end.text, "follows the versions of m") != NULL, "%s", end.text);
	struct ctl_request request = {.kind = CTL_UNREGISTER, .u.unregister_sid = r.sid};
	cr_assert_eq(world_request(&w, b, &request), TH_E_STATE);
	cr_assert(says("end that before you unregister"), "%s", w.reply.text);
	follows(&r, "");
	cr_assert_eq(world_request(&w, b, &request), 0);
}

Test(refsrv_follow, what_cannot_be_followed__is_refused)
{
	struct world_member r = single(b, "r");
	world_call(&w, &r, CTL_OP_FOLLOW, "latest-1", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &r).code, TH_E_INVALID);
	struct world_member n = {.agent = b, .num_shards = 1};
	cr_assert_eq(world_open(&w, b, "m", "n", 0, 1, 1, &n.sid), 0);
	world_call(&w, &n, CTL_OP_FOLLOW, "latest", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &n).code, TH_E_STATE, "it has registered nothing");
}

Test(refsrv_follow, closed_when_it_has_begun__nothing_is_left)
{
	world_published(&w, a, "p", "1");
	struct world_member r = follower(b, "r");
	said_go("1");
	struct world_member its = automatic(&r, 1);
	cr_assert_eq(world_prepared(&w, &its, 0), 0);
	struct ctl_grant grant = world_go(&w, &its);
	cr_assert_eq(world_close(&w, &r, false), 0);
	cr_assert_eq(world_leg_end(&w, b, grant.leg, TH_E_CANCELLED, false, 0), 0);
	cr_assert_eq(num_members(), 1);
}

/* ---- groups ---- */

static void
pair(struct world_member m[2], const char *replica)
{
	m[0] = world_member(&w, b, replica, 0, 2);
	m[1] = world_member(&w, c, replica, 1, 2);
}

static void
published_pair(const char *replica, const char *version)
{
	struct world_member p[2] = {
		world_member(&w, a, replica, 0, 2), world_member(&w, a, replica, 1, 2)};

	call_both(p, CTL_OP_PUBLISH, version);
	succeeded_both(p);
}

Test(refsrv_follow, members_of_a_group__switch_together)
{
	struct world_member r[2], its[2];
	struct ctl_grant grants[2];
	published_pair("p", "1");
	said_go("1");
	pair(r, "r");
	world_call(&w, &r[0], CTL_OP_FOLLOW, "latest", TH_FOREVER);
	cr_assert_not(is_asked(&r[0]), "all members say it");
	world_call(&w, &r[1], CTL_OP_FOLLOW, "latest", TH_FOREVER);
	succeeded_both(r);
	for (int i = 0; i < 2; i++)
		its[i] = automatic(&r[i], 1);
	cr_assert_eq(its[0].seq, its[1].seq);
	prepared_both(its);
	go_both(its, grants);
	world_finish(&w, &its[0], grants[0].leg);
	cr_assert_not(world_ended(&w, &its[0]));
	world_finish(&w, &its[1], grants[1].leg);
	succeeded_both(its);
}

Test(refsrv_follow, one_member_is_behind__it_is_waited_for)
{
	struct world_member r[2];
	published_pair("p", "1");
	pair(r, "r");
	call_both(r, CTL_OP_FOLLOW, "latest");
	succeeded_both(r);
	world_call(&w, &r[0], CTL_OP_LIST, "", TH_FOREVER);
	succeeded(&r[0]);
	said_go("1");
	cr_assert_not(is_asked(&r[0]), "they stand before different operations");
	world_call(&w, &r[1], CTL_OP_LIST, "", TH_FOREVER);
	succeeded(&r[1]);
	automatic(&r[0], 1);
	automatic(&r[1], 1);
}

/* ---- what fails ---- */

Test(refsrv_follow, member_cannot__tried_again_after_a_pause_that_doubles)
{
	world_published(&w, a, "p", "1");
	struct world_member r = follower(b, "r");
	said_go("1");
	for (int64_t pause_ns = SEC; pause_ns <= 4 * SEC; pause_ns *= 2) {
		struct world_member its = automatic(&r, 1);
		cr_assert_eq(world_prepared(&w, &its, TH_E_LAYOUT), 0);
		cr_assert_eq(world_outcome(&w, &its).code, TH_E_LAYOUT);
		world_sleep(&w, pause_ns - 10 * MS);
		cr_assert_not(is_asked(&r));
		world_sleep(&w, 20 * MS);
	}
	cr_assert_eq(world_logged(&w, "could not follow to version 1, and tries again in 2 s"), 1);
	followed(&r, 1);
}

Test(refsrv_follow, member_cannot__another_version_is_tried_at_once)
{
	world_published(&w, a, "p", "1");
	struct world_member r = follower(b, "r");
	said_go("1");
	struct world_member its = automatic(&r, 1);
	cr_assert_eq(world_prepared(&w, &its, TH_E_LAYOUT), 0);
	cr_assert_eq(world_outcome(&w, &its).code, TH_E_LAYOUT);
	world_published(&w, a, "q", "2");
	cr_assert_not(is_asked(&r));
	said_go("2");
	followed(&r, 2);
}

Test(refsrv_follow, fails_after_go__what_was_overwritten_is_brought_again)
{
	struct world_member p = world_published(&w, a, "p", "1");
	struct world_member r = follower(b, "r");
	said_go("1");
	struct world_member its = automatic(&r, 1);
	cr_assert_eq(world_prepared(&w, &its, 0), 0);
	struct ctl_grant grant = world_go(&w, &its);
	cr_assert_eq(world_leg_end(&w, b, grant.leg, TH_E_STALE_MEMORY, false, 3), 0);
	cr_assert_eq(world_outcome(&w, &its).code, TH_E_STALE_MEMORY);
	cr_assert_not(is_asked(&r));
	world_sleep(&w, SEC);
	cr_assert_eq(followed(&r, 1), p.sid);
}

Test(refsrv_follow, other_number_of_shards__is_said_and_not_tried_all_the_time)
{
	struct world_member r[2];
	world_published(&w, a, "p", "1");
	pair(r, "r");
	call_both(r, CTL_OP_FOLLOW, "latest");
	succeeded_both(r);
	said_go("1");
	cr_assert_eq(world_logged(&w, "could not follow to version 1"), 1);
	cr_assert_eq(world_logged(&w, "version 1 of m has 1 shards, replica r has 2"), 1);
	world_sleep(&w, 60 * SEC);
	cr_assert_leq(world_logged(&w, "could not follow to version 1"), 7);
}

Test(refsrv_follow, node_is_drained__nothing_begins_there)
{
	struct ctl_request request = {.kind = CTL_ADMIN, .u.admin = {.verb = CTL_ADMIN_DRAIN}};
	world_published(&w, a, "p", "1");
	struct world_member r = follower(b, "r");
	strcpy(request.u.admin.node, w.agents[b].node);
	cr_assert_eq(world_request(&w, c, &request), 0);
	said_go("1");
	cr_assert_not(is_asked(&r));
	request.u.admin.verb = CTL_ADMIN_UNDRAIN;
	cr_assert_eq(world_request(&w, c, &request), 0);
	world_sleep(&w, MS);
	followed(&r, 1);
}

/* ---- with versions that are brought before ---- */

Test(refsrv_follow, prefetch__brought_before_go_which_only_installs)
{
	world_published(&w, a, "p", "1");
	w.flags = CTL_OPEN_PREFETCH;
	struct world_member r = follower(b, "r");
	w.flags = 0;
	struct world_member o = brought(b);
	cr_assert_not(is_asked(&r));
	said_go("1");
	cr_assert_eq(followed(&r, 1), o.sid);
}

Test(refsrv_follow, prefetch__go_before_it_is_whole__is_waited_for)
{
	world_published(&w, a, "p", "1");
	w.flags = CTL_OPEN_PREFETCH;
	struct world_member r = follower(b, "r");
	w.flags = 0;
	struct world_member o = world_accepts(&w, b);
	struct ctl_grant grant = world_filling(&w, &o);
	said_go("1");
	cr_assert_not(is_asked(&r));
	world_finish(&w, &o, grant.leg);
	cr_assert_eq(followed(&r, 1), o.sid);
}

Test(refsrv_follow, prefetch__a_newer_one_is_brought_without_go__over_the_wire)
{
	struct world_member p = world_published(&w, a, "p", "1");
	world_published(&w, a, "q", "2");
	w.flags = CTL_OPEN_PREFETCH;
	struct world_member r = follower(b, "r");
	w.flags = 0;
	brought(b);
	said_go("1");
	cr_assert_eq(followed(&r, 1), p.sid);
}

/* ---- another server ---- */

static uint32_t x, y, z;

static void
setup_former(void)
{
	former_world(&w, &x, &y, &z);
	c = z;
}

TestSuite(refsrv_follow_rejoin, .init = setup_former, .fini = teardown);

/* It follows, holds version 7 and was told that go was said for version 8. */
static struct ctl_rejoin
former_follower(uint32_t shard, uint32_t num_shards)
{
	struct ctl_rejoin said = former_holds("r", shard, num_shards, 7);

	strcpy(said.follows, "latest");
	said.gen = CTL_OP_AUTOMATIC | 5;
	said.go = (struct th_version){1, 8};
	return said;
}

Test(refsrv_follow_rejoin, go__is_not_lost_with_the_server)
{
	struct ctl_rejoin s = former_holds("s", 0, 1, 8), r = former_follower(0, 1);
	former_back(&w, x, &s);
	struct world_member m = former_back(&w, y, &r);
	cr_assert_not(is_asked(&m), "others may still come");
	former_all_said(&w);
	followed(&m, 8);
}

Test(refsrv_follow_rejoin, go_while_it_collects__is_refused)
{
	struct ctl_rejoin s = former_holds("s", 0, 1, 8);
	former_back(&w, x, &s);
	cr_assert_eq(go("m", "8"), TH_E_NO_SERVER);
	cr_assert(says("is not known yet"), "%s", w.reply.text);
	former_all_said(&w);
	said_go("8");
}

Test(refsrv_follow_rejoin, had_no_go_anywhere__it_is_over)
{
	struct ctl_rejoin r = former_follower(0, 1);
	r.automatic_waits = CTL_OP_AUTOMATIC | 6;
	struct world_member m = former_back(&w, y, &r);
	m.seq = r.automatic_waits;
	cr_assert_eq(world_outcome(&w, &m).code, TH_E_CANCELLED);
}

/* Shard 0 fills version 8 in an automatic operation. */
static struct ctl_rejoin
former_follows_to(uint32_t shard, uint64_t leg)
{
	struct ctl_rejoin said = former_fills("r", shard, 2, 8, leg, "s");

	strcpy(said.follows, "latest");
	said.op_seq = CTL_OP_AUTOMATIC | 6;
	said.kind = CTL_OP_UPDATE;
	strcpy(said.spec, "8");
	return said;
}

Test(refsrv_follow_rejoin, one_had_go__the_other_gets_it)
{
	struct ctl_rejoin s[2] = {former_holds("s", 0, 2, 8), former_holds("s", 1, 2, 8)};
	struct ctl_rejoin went = former_follows_to(0, FORMER_LEG(1)), waits = former_follower(1, 2);
	struct world_member m[2];
	waits.automatic_waits = went.op_seq;
	former_back(&w, x, &s[0]);
	former_back(&w, x, &s[1]);
	m[0] = former_back(&w, y, &went);
	m[1] = former_back(&w, z, &waits);
	former_all_said(&w);
	struct world_member its = automatic(&m[1], 8);
	cr_assert_eq(its.seq, went.op_seq);
	m[0].seq = went.op_seq;
	former_finish(&w, &m[0], FORMER_LEG(1), 1);
	cr_assert_eq(world_prepared(&w, &its, 0), 0);
	struct ctl_grant grant = world_go(&w, &its);
	former_finish(&w, &its, grant.leg, 1);
	succeeded(&m[0]);
	succeeded(&its);
	cr_assert(former_listed(&w, 8));
}

Test(refsrv_follow_rejoin, one_was_told_the_end__the_other_is_told)
{
	struct ctl_rejoin went = former_follows_to(0, 0), told = former_follower(1, 2);
	struct world_member m;
	went.done = true;
	told.held.version = 8;
	told.gen = went.op_seq;
	told.automatic = (struct ctl_known_outcome){.op_seq = went.op_seq,
		.kind = CTL_OP_UPDATE,
		.updated = true,
		.went = true,
		.version = told.held};
	m = former_back(&w, y, &went);
	former_back(&w, z, &told);
	m.seq = went.op_seq;
	struct ctl_ev_outcome end = world_outcome(&w, &m);
	cr_assert_eq(end.code, 0);
	cr_assert(end.updated);
	cr_assert_eq(end.version.version, 8);
	cr_assert(former_listed(&w, 8));
}

Test(refsrv_follow_rejoin, one_had_go_and_the_other_does_not_know_of_it__broken)
{
	struct ctl_rejoin went = former_follows_to(0, 0), other = former_follower(1, 2);
	former_back(&w, y, &went);
	struct world_member m = former_back(&w, z, &other);
	former_all_said(&w);
	former_broken(&w, &m, "a shard does not know of the operation that runs");
}
