/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, lent copies: an agent lends a version out of its own memory, which is brought there when
 * it is not, and is kept as long as it is lent. How a copy is reserved and filled is in
 * refsrv_offload_test.
 */
#include <stdio.h>

#include "tests/unit/server/refsrv_fixture.h"

TestSuite(refsrv_borrow, .init = setup_keeping, .fini = teardown);

static struct ctl_request
borrow_of(uint64_t version)
{
	struct ctl_request request = {.kind = CTL_BORROW};

	snprintf(request.u.borrow.model, sizeof(request.u.borrow.model), "m");
	request.u.borrow.version = (struct th_version){.lineage = 1, .version = version};
	request.u.borrow.room = UINT64_MAX;
	return request;
}

static void
borrows(uint32_t agent, uint64_t version)
{
	struct ctl_request request = borrow_of(version);

	cr_assert_eq(world_request(&w, agent, &request), 0, "%s", w.reply.text);
}

static void
stops(uint32_t agent, uint64_t version)
{
	struct ctl_request request = borrow_of(version);

	request.u.borrow.stop = true;
	cr_assert_eq(world_request(&w, agent, &request), 0, "%s", w.reply.text);
}

/* For this reason; the sentence has these words. */
static void
refused(uint32_t agent, int code, const char *words)
{
	struct ctl_event event;

	cr_assert(world_take(&w, agent, CTL_EV_BORROW_REFUSED, 0, &event), "nobody was refused");
	cr_assert_eq(event.u.borrow_refused.code, code, "%s", event.u.borrow_refused.text);
	cr_assert_str_eq(event.u.borrow_refused.model, "m");
	cr_assert(strstr(event.u.borrow_refused.text, words), "%s", event.u.borrow_refused.text);
}

Test(refsrv_borrow, not_there__brought_and_kept_until_it_is_returned)
{
	struct world_member p = world_published(&w, a, "p", "1");
	borrows(b, 1);
	struct world_member o = brought(b);
	cr_assert_not(world_asked(&w, b));
	/* Its publisher goes, and a newer version comes. */
	unpublish(&p);
	world_publish(&w, &p, "2");
	world_sleep(&w, 60 * SEC);
	cr_assert_not(world_has(&w, b, CTL_EV_RELEASE, o.sid));
	stops(b, 1);
	released(&o);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
}

Test(refsrv_borrow, twice__brought_once)
{
	world_published(&w, a, "p", "1");
	borrows(b, 1);
	borrows(b, 1);
	struct world_member o = brought(b);
	borrows(b, 1);
	cr_assert_not(world_asked(&w, b));
	borrows(c, 1);
	cr_assert(world_asked(&w, c), "each host has its own");
	stops(b, 1);
	released(&o);
}

Test(refsrv_borrow, the_hosts_worker_has_it__copied_from_there)
{
	struct world_member p = world_published(&w, b, "p", "1");
	borrows(b, 1);
	struct world_member o = world_accepts(&w, b);
	struct ctl_grant grant = world_filling(&w, &o);
	cr_assert_eq(grant.source_sid, p.sid);
	world_finish(&w, &o, grant.leg);
}

Test(refsrv_borrow, there_for_another_reason__lent_and_kept_beyond_it)
{
	struct ctl_event event;
	struct world_member p = world_published(&w, b, "p", "1");
	w.retain = "latest";
	struct world_member k = world_member(&w, c, "k", 0, 1);
	w.retain = NULL;
	world_call(&w, &p, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct world_member o = brought(b);
	world_drained(&w, &p);
	succeeded(&p);
	borrows(b, 1);
	cr_assert_not(world_asked(&w, b));
	cr_assert_not(world_take(&w, b, CTL_EV_BORROW_REFUSED, 0, &event));
	/* Nobody retains it any more. */
	cr_assert_eq(world_close(&w, &k, false), 0);
	world_sleep(&w, 60 * SEC);
	cr_assert_not(world_has(&w, b, CTL_EV_RELEASE, o.sid));
	stops(b, 1);
	released(&o);
}

Test(refsrv_borrow, no_such_version__refused)
{
	borrows(b, 1);
	refused(b, TH_E_NOT_AVAILABLE, "version 1 of m is not there");
	world_published(&w, a, "p", "2");
	borrows(b, 1);
	refused(b, TH_E_NOT_AVAILABLE, "version 1 of m is not there");
	cr_assert_not(world_asked(&w, b));
}

Test(refsrv_borrow, no_such_shard__refused)
{
	struct ctl_request request = borrow_of(1);
	world_published(&w, a, "p", "1");
	request.u.borrow.shard = 1;
	cr_assert_eq(world_request(&w, b, &request), 0);
	refused(b, TH_E_INVALID, "1 shards");
}

Test(refsrv_borrow, larger_than_what_may_be_lent__refused_before_it_is_brought)
{
	struct ctl_request request = borrow_of(1);
	world_published(&w, a, "p", "1");
	request.u.borrow.room = 10;
	cr_assert_eq(world_request(&w, b, &request), 0);
	refused(b, TH_E_LIMIT, "borrow.limit");
	cr_assert_not(world_asked(&w, b));
	/* That it had been refused says nothing of the next time. */
	borrows(b, 1);
	cr_assert(world_asked(&w, b));
}

Test(refsrv_borrow, no_memory__refused_and_nobody_else_is_asked)
{
	struct ctl_ev_reserve reserve;
	world_published(&w, a, "p", "1");
	borrows(b, 1);
	cr_assert(world_reserve(&w, b, &reserve));
	cr_assert_eq(world_refuse(&w, b, &reserve), 0);
	refused(b, TH_E_LIMIT, "node1");
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
}

Test(refsrv_borrow, the_version_vanishes_while_it_is_brought__refused)
{
	world_published(&w, a, "p", "1");
	borrows(b, 1);
	struct world_member o = world_accepts(&w, b);
	struct ctl_grant grant = world_filling(&w, &o);
	dies(a);
	world_sleep(&w, 20 * SEC);
	cr_assert_eq(world_leg_end(&w, b, grant.leg, TH_E_VERSION_LOST, true, 3), 0);
	world_sleep(&w, 5 * SEC);
	cr_assert(world_has(&w, b, CTL_EV_RELEASE, o.sid));
	cr_assert(world_has(&w, b, CTL_EV_BORROW_REFUSED, 0));
}

Test(refsrv_borrow, given_up_while_it_is_brought__it_goes)
{
	world_published(&w, a, "p", "1");
	borrows(b, 1);
	struct world_member o = world_accepts(&w, b);
	struct ctl_grant grant = world_filling(&w, &o);
	stops(b, 1);
	cr_assert(world_has(&w, b, CTL_EV_RELEASE, o.sid));
	cr_assert_eq(world_leg_end(&w, b, grant.leg, TH_E_CANCELLED, false, 0), 0);
	released(&o);
	cr_assert_not(world_has(&w, b, CTL_EV_BORROW_REFUSED, 0));
}

Test(refsrv_borrow, the_copy_goes_with_its_session__not_made_again_but_for_the_next)
{
	world_published(&w, a, "p", "1");
	borrows(b, 1);
	struct world_member o = brought(b);
	cr_assert_eq(world_close(&w, &o, true), 0);
	if (world_has(&w, b, CTL_EV_DRAIN, o.sid))
		world_drained(&w, &o);
	world_sleep(&w, 5 * SEC);
	cr_assert_not(world_asked(&w, b), "who has borrowed it has its pages");
	borrows(b, 1);
	cr_assert(world_asked(&w, b));
}

Test(refsrv_borrow, retention_needs_the_room__what_is_lent_is_not_given_up)
{
	struct ctl_ev_reserve reserve;
	world_published(&w, a, "p", "1");
	borrows(b, 1);
	struct world_member o = brought(b);
	struct world_member z = {.agent = b, .num_shards = 1};
	w.retain = "latest";
	cr_assert_eq(world_open(&w, b, "n", "z", 0, 1, 1, &z.sid), 0);
	cr_assert_eq(world_register(&w, b, z.sid, 0), 0);
	world_publish(&w, &z, "1");
	world_call(&w, &z, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_reserve(&w, b, &reserve));
	cr_assert_eq(world_refuse(&w, b, &reserve), 0);
	cr_assert_not(world_has(&w, b, CTL_EV_RELEASE, o.sid));
	cr_assert(world_asked(&w, a) || world_asked(&w, c), "another host keeps it");
}

Test(refsrv_borrow, an_update_takes_it__and_a_lent_copy_stays)
{
	struct ctl_event go;
	world_published(&w, a, "p", "1");
	borrows(b, 1);
	struct world_member o = brought(b);
	struct world_member r = world_member(&w, b, "r", 0, 1);
	world_call(&w, &r, CTL_OP_UPDATE, "latest", TH_FOREVER);
	cr_assert_eq(world_prepared(&w, &r, 0), 0);
	cr_assert(world_take(&w, b, CTL_EV_GO, r.sid, &go));
	cr_assert_eq(go.u.go.grant.source_sid, o.sid, "the nearest");
	finished(&r, go.u.go.grant.leg);
	world_sleep(&w, 60 * SEC);
	cr_assert_not(world_has(&w, b, CTL_EV_RELEASE, o.sid));
}

Test(refsrv_borrow, drained_node__names_it_and_lends_nothing_new)
{
	world_published(&w, a, "p", "1");
	world_published(&w, a, "q", "2");
	borrows(b, 1);
	struct world_member o = brought(b);
	operator_says(CTL_ADMIN_DRAIN, "node1");
	operator_says(CTL_ADMIN_DRAIN, "node1");
	cr_assert_str_eq(w.reply.u.admin.state, "draining");
	cr_assert_eq(w.reply.u.admin.num_blockers, 1);
	cr_assert_str_eq(w.reply.u.admin.blockers[0].kind, "borrowed");
	cr_assert(w.reply.u.admin.blockers[0].stays);
	cr_assert_eq(w.reply.u.admin.blockers[0].version.version, 1);
	borrows(b, 2);
	refused(b, TH_E_LIMIT, "version 2");
	stops(b, 1);
	released(&o);
	operator_says(CTL_ADMIN_DRAIN, "node1");
	cr_assert_str_eq(w.reply.u.admin.state, "empty");
}

Test(refsrv_borrow, agent_ends_or_attaches_anew__forgotten)
{
	world_published(&w, a, "p", "1");
	borrows(b, 1);
	dies(b);
	world_sleep(&w, 30 * SEC);
	cr_assert_str_eq(node_state(b), "dead");
	cr_assert_not(world_asked(&w, a) || world_asked(&w, c));
}

Test(refsrv_borrow, stop_of_what_is_not_lent__nothing)
{
	stops(b, 1);
	world_published(&w, a, "p", "1");
	stops(b, 1);
	cr_assert_not(world_asked(&w, b) || world_has(&w, b, CTL_EV_BORROW_REFUSED, 0));
}
