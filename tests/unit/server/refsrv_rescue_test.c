/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, retention: the last copy of a retained version whose group has broken, or that only spot
 * hosts have, is copied to host memory.
 */
#include <stdio.h>

#include "tests/unit/server/refsrv_fixture.h"

TestSuite(refsrv_rescue, .init = setup_retaining, .fini = teardown);

/* ---- broken groups ---- */

Test(refsrv_rescue, dead_worker__last_copy_is_read_from_its_agent)
{
	struct world_member m = world_published(&w, a, "p", "7");
	cr_assert_eq(world_close(&w, &m, true), 0);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m.sid), "its memory is still needed");
	cr_assert_eq(num_versions(c), 1);
	struct world_member o = world_accepts(&w, a);
	struct ctl_grant grant = world_filling(&w, &o);
	cr_assert_eq(grant.source_sid, m.sid);
	/* Others read from the copy that fills, not from what is left of the dead. */
	struct world_member r = world_member(&w, b, "r", 0, 1);
	cr_assert_eq(world_begin(&w, &r, CTL_OP_REPLICATE, "latest").source_sid, o.sid);
	world_finish(&w, &o, grant.leg);
	world_drained(&w, &m);
	cr_assert_eq(num_versions(c), 1);
	cr_assert_not(world_logged(&w, "is lost"));
}

Test(refsrv_rescue, dead_worker__another_copy_counts__drained_at_once)
{
	struct world_member m = world_published(&w, a, "p", "7"),
			    r = world_member(&w, b, "r", 0, 1);
	world_replicate(&w, &r, "7");
	cr_assert_eq(world_close(&w, &m, true), 0);
	world_drained(&w, &m);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
}

Test(refsrv_rescue, dead_worker__not_retained__drained_at_once)
{
	w.retain = NULL;
	struct world_member m = world_published(&w, a, "p", "7");
	cr_assert_eq(world_close(&w, &m, true), 0);
	world_drained(&w, &m);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
}

Test(refsrv_rescue, dead_worker__reader_waits_for_the_rescue)
{
	struct world_member m = world_published(&w, a, "p", "7"),
			    r = world_member(&w, b, "r", 0, 1);
	cr_assert_eq(world_close(&w, &m, true), 0);
	world_call(&w, &r, CTL_OP_REPLICATE, "7", TH_FOREVER);
	cr_assert_not(world_has(&w, b, CTL_EV_PLAN, r.sid));
	struct world_member o = world_accepts(&w, a);
	world_filling(&w, &o);
	taken(&r, CTL_EV_PLAN);
}

Test(refsrv_rescue, dead_worker__nobody_has_memory__lost_and_said_so)
{
	struct ctl_ev_reserve reserve;
	struct world_member m = world_published(&w, a, "p", "7");
	cr_assert_eq(world_close(&w, &m, true), 0);
	for (uint32_t agent = a; agent <= c; agent++) {
		cr_assert(world_reserve(&w, agent, &reserve));
		cr_assert_eq(world_refuse(&w, agent, &reserve), 0);
	}
	world_drained(&w, &m);
	cr_assert_eq(num_versions(c), 0);
	cr_assert(world_logged(&w, "version 7 of m is lost"));
}

Test(refsrv_rescue, dead_worker__nobody_answers__given_up_after_its_time)
{
	struct world_member m = world_published(&w, a, "p", "7");
	cr_assert_eq(world_close(&w, &m, true), 0);
	world_sleep(&w, 9 * SEC);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m.sid));
	world_sleep(&w, 2 * SEC);
	world_drained(&w, &m);
	cr_assert_eq(num_versions(c), 0);
	cr_assert(world_logged(&w, "is lost"));
}

Test(refsrv_rescue, dead_worker__slow_copy__goes_on_while_bytes_move)
{
	struct world_member m = world_published(&w, a, "p", "7");
	cr_assert_eq(world_close(&w, &m, true), 0);
	struct world_member o = world_accepts(&w, a);
	struct ctl_grant grant = world_filling(&w, &o);
	for (uint32_t chunks = 1; chunks < 5; chunks++) {
		world_sleep(&w, 9 * SEC);
		cr_assert_eq(beat(a, grant.leg, chunks), 0);
	}
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m.sid));
	world_sleep(&w, 25 * SEC);
	cr_assert(world_has(&w, a, CTL_EV_DRAIN, m.sid), "no byte for long");
}

Test(refsrv_rescue, group__one_worker_dies__all_parts_are_copied)
{
	struct world_member m[2], o[2];
	m[0] = world_member(&w, a, "p", 0, 2);
	m[1] = world_member(&w, b, "p", 1, 2);
	world_call(&w, &m[0], CTL_OP_PUBLISH, "7", TH_FOREVER);
	world_publish(&w, &m[1], "7");
	succeeded(&m[0]);
	cr_assert_eq(world_close(&w, &m[1], true), 0);
	cr_assert(world_has(&w, a, CTL_EV_BROKEN, m[0].sid));
	/* The survivor closes its handle: its part is needed until it is copied. */
	cr_assert_eq(world_close(&w, &m[0], false), 0);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m[0].sid));
	o[0] = world_accepts(&w, a);
	o[1] = world_accepts(&w, b);
	taken(&o[0], CTL_EV_PLAN);
	cr_assert_eq(world_prepared(&w, &o[0], 0), 0);
	world_finish(&w, &o[1], world_filling(&w, &o[1]).leg);
	world_finish(&w, &o[0], world_go(&w, &o[0]).leg);
	world_drained(&w, &m[0]);
	world_drained(&w, &m[1]);
	cr_assert_eq(num_versions(c), 1);
}

Test(refsrv_rescue, dead_agent_of_one_shard__nothing_can_be_rescued)
{
	struct world_member m[2];
	m[0] = world_member(&w, a, "p", 0, 2);
	m[1] = world_member(&w, b, "p", 1, 2);
	world_call(&w, &m[0], CTL_OP_PUBLISH, "7", TH_FOREVER);
	world_publish(&w, &m[1], "7");
	succeeded(&m[0]);
	w.agents[b].silent = true;
	world_sleep(&w, 12 * SEC);
	world_drained(&w, &m[0]);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, c));
}

Test(refsrv_rescue, agent_dies_during_the_rescue__the_rest_is_drained)
{
	struct world_member m[2];
	m[0] = world_member(&w, a, "p", 0, 2);
	m[1] = world_member(&w, b, "p", 1, 2);
	world_call(&w, &m[0], CTL_OP_PUBLISH, "7", TH_FOREVER);
	world_publish(&w, &m[1], "7");
	succeeded(&m[0]);
	struct refsrv_out out;
	w.agents[b].silent = true;
	world_sleep(&w, 5 * SEC);
	cr_assert_eq(world_close(&w, &m[0], true), 0);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m[0].sid));
	world_sleep(&w, 7 * SEC);
	refsrv_tick(w.server, w.now_ns, &out);
	world_drained(&w, &m[0]);
	cr_assert_eq(num_versions(c), 0);
}

/* Two trainers have published, and it is not yet known whether the bytes are the same. */
static struct world_member
undecided(struct world_member *first)
{
	w.hash_late = true;
	*first = world_member(&w, b, "first", 0, 1);
	world_publish(&w, first, "7");
	struct world_member second = world_member(&w, a, "second", 0, 1);
	world_publish(&w, &second, "7");
	return second;
}

Test(refsrv_rescue, undecided__who_is_listed_lives__given_up_at_once)
{
	struct world_member first, second = undecided(&first);
	unpublish(&second);
}

Test(refsrv_rescue, undecided__agent_of_who_is_listed_dies__kept_and_copied)
{
	struct ctl_ev_reserve reserve;
	struct world_member first, second = undecided(&first);
	w.agents[b].silent = w.agents[b].deaf = true;
	world_sleep(&w, 500 * MS);
	world_call(&w, &second, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	world_sleep(&w, 5 * SEC);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, second.sid), "nobody else has it");
	cr_assert_not(world_ended(&w, &second));
	world_sleep(&w, 10 * SEC);
	cr_assert(world_reserve(&w, a, &reserve), "now it is what is listed");
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, second.sid));
}

/* Its agent may be cut off only: what it has said, or will, decides whether they are the same. */
Test(refsrv_rescue, undecided__its_group_breaks_while_who_is_listed_is_silent__kept_and_copied)
{
	struct ctl_ev_reserve reserve;
	struct world_member first, second = undecided(&first);
	w.agents[b].silent = w.agents[b].deaf = true;
	world_sleep(&w, 5 * SEC);
	struct ctl_request request = {.kind = CTL_ADMIN, .u.admin.verb = CTL_ADMIN_EVICT};
	strcpy(request.u.admin.model, "m");
	strcpy(request.u.admin.replica, "second");
	cr_assert_eq(world_request(&w, c, &request), 0);
	cr_assert(world_has(&w, a, CTL_EV_BROKEN, second.sid));
	world_sleep(&w, SEC);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, second.sid), "nobody else has it");
	world_sleep(&w, 6 * SEC);
	cr_assert(world_reserve(&w, a, &reserve), "now it is what is listed");
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, second.sid));
}

Test(refsrv_rescue, undecided__its_group_breaks_and_who_is_listed_lives__drained_at_once)
{
	struct world_member first, second = undecided(&first);
	cr_assert_eq(world_close(&w, &second, true), 0);
	world_drained(&w, &second);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
}

/* What is left of the first is a beginning that its reader has, which makes no version. */
Test(refsrv_rescue, undecided__only_a_reader_of_who_is_listed_is_left__kept)
{
	struct world_member first, second = undecided(&first), reader;
	reader = world_member(&w, c, "reader", 0, 1);
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "7");
	cr_assert_eq(grant.source_sid, first.sid);
	w.agents[b].silent = w.agents[b].deaf = true;
	world_sleep(&w, 20 * SEC);
	cr_assert_eq(world_leg_end(&w, c, grant.leg, TH_E_NO_PATH, true, 4), 0);
	cr_assert_not(world_ended(&w, &reader), "it waits for what the second is");
	world_call(&w, &second, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, second.sid), "nobody else has it whole");
	cr_assert_not(world_ended(&w, &second));
	cr_assert_eq(world_content(&w, &second, 7), 0);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, second.sid), "nor now that it is listed");
}

Test(refsrv_rescue, broken_contract__is_not_rescued)
{
	struct world_member m = world_published(&w, a, "p", "7");
	struct ctl_request request = {.kind = CTL_CLOSE};
	request.u.close.sid = m.sid;
	request.u.close.broke_contract = true;
	cr_assert_eq(world_request(&w, a, &request), 0);
	world_drained(&w, &m);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
}

/* Its worker has died before its agent had digests of it; or its agent has ended it alone. */
static void
close_unreadable(const struct world_member *m, bool died)
{
	struct ctl_request request = {.kind = CTL_CLOSE};

	request.u.close.sid = m->sid;
	request.u.close.died = died;
	request.u.close.abandon = !died;
	request.u.close.unreadable = true;
	cr_assert_eq(world_request(&w, m->agent, &request), 0);
}

Test(refsrv_rescue, unreadable__readers_are_told_at_once)
{
	struct world_member m = world_published(&w, a, "p", "7"),
			    r = world_member(&w, b, "r", 0, 1);
	struct ctl_grant grant = world_begin(&w, &r, CTL_OP_REPLICATE, "7");
	close_unreadable(&m, true);
	world_drained(&w, &m);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
	cr_assert_eq(world_logged(&w, "version 7 of m is lost"), 1);
	cr_assert_eq(world_leg_end(&w, b, grant.leg, TH_E_NOT_AVAILABLE, true, 4), 0);
	cr_assert_eq(world_outcome(&w, &r).code, TH_E_VERSION_LOST);
}

Test(refsrv_rescue, unreadable__ended_by_its_agent__lost_and_said_so)
{
	struct world_member m = world_published(&w, a, "p", "7");
	world_member(&w, c, "k", 0, 1);
	close_unreadable(&m, false);
	world_drained(&w, &m);
	cr_assert_eq(world_logged(&w, "version 7 of m is lost"), 1);
}

Test(refsrv_rescue, unreadable__member_of_what_is_rescued__given_up)
{
	struct world_member m[2];
	m[0] = world_member(&w, a, "p", 0, 2);
	m[1] = world_member(&w, b, "p", 1, 2);
	world_call(&w, &m[0], CTL_OP_PUBLISH, "7", TH_FOREVER);
	world_publish(&w, &m[1], "7");
	succeeded(&m[0]);
	cr_assert_eq(world_close(&w, &m[0], true), 0);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m[0].sid), "its memory is still needed");
	close_unreadable(&m[1], true);
	world_drained(&w, &m[0]);
	world_drained(&w, &m[1]);
	cr_assert_eq(num_versions(c), 0);
	cr_assert_eq(world_logged(&w, "version 7 of m is lost"), 1);
}

Test(refsrv_rescue, unreadable__said_after_an_abandoning_close__given_up)
{
	struct world_member m = world_published(&w, a, "p", "7");
	struct ctl_request request = {.kind = CTL_CLOSE};
	world_member(&w, c, "k", 0, 1);
	request.u.close.sid = m.sid;
	request.u.close.abandon = true;
	cr_assert_eq(world_request(&w, a, &request), 0);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m.sid), "its memory is still needed");
	close_unreadable(&m, true);
	world_drained(&w, &m);
	cr_assert_eq(num_versions(c), 0);
	cr_assert_eq(world_logged(&w, "version 7 of m is lost"), 1);
}

Test(refsrv_rescue, unpublish_under_way__its_worker_dies__the_copy_goes_on)
{
	struct world_member m = world_published(&w, a, "p", "7");
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct world_member o = world_accepts(&w, a);
	struct ctl_grant grant = world_filling(&w, &o);
	cr_assert_eq(world_close(&w, &m, true), 0);
	cr_assert_not(world_has(&w, a, CTL_EV_RELEASE, 0), "the same copy will do");
	world_finish(&w, &o, grant.leg);
	world_drained(&w, &m);
	cr_assert_eq(num_versions(c), 1);
}

Test(refsrv_rescue, waiting_close__another_member_dies__both_go_when_copied)
{
	struct world_member m[2], o[2];
	world_member(&w, c, "k", 0, 1);
	m[0] = world_member(&w, a, "p", 0, 2);
	m[1] = world_member(&w, b, "p", 1, 2);
	world_call(&w, &m[0], CTL_OP_PUBLISH, "7", TH_FOREVER);
	world_publish(&w, &m[1], "7");
	succeeded(&m[0]);
	struct ctl_request request = {.kind = CTL_CLOSE};
	request.u.close.sid = m[0].sid;
	request.u.close.timeout_ns = TH_FOREVER;
	cr_assert_eq(world_request(&w, a, &request), 0);
	o[0] = world_accepts(&w, a);
	o[1] = world_accepts(&w, b);
	cr_assert_eq(world_close(&w, &m[1], true), 0);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m[0].sid));
	taken(&o[0], CTL_EV_PLAN);
	cr_assert_eq(world_prepared(&w, &o[0], 0), 0);
	world_finish(&w, &o[1], world_filling(&w, &o[1]).leg);
	world_finish(&w, &o[0], world_go(&w, &o[0]).leg);
	world_drained(&w, &m[0]);
	world_drained(&w, &m[1]);
	cr_assert_not(world_has(&w, a, CTL_EV_CLOSE_REFUSED, 0));
	cr_assert_eq(num_versions(c), 1);
}

/* ---- spot hosts ---- */

static uint32_t
spot_agent(void)
{
	w.spot = true;
	uint32_t agent = world_agent(&w);
	w.spot = false;
	return agent;
}

Test(refsrv_rescue, spot__only_copy__is_copied_to_a_host_that_stays)
{
	uint32_t spot = spot_agent();
	struct world_member m = world_published(&w, spot, "p", "7");
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
	world_sleep(&w, 2 * SEC);
	cr_assert(world_logged(&w, "at risk"));
	cr_assert_not(world_asked(&w, spot));
	struct world_member o = world_accepts(&w, a);
	struct ctl_grant grant = world_filling(&w, &o);
	cr_assert_eq(grant.source_sid, m.sid);
	world_finish(&w, &o, grant.leg);
	/* The trainer goes on at once. */
	unpublish(&m);
	cr_assert_eq(num_versions(c), 1);
}

static void
drain(uint32_t agent)
{
	struct ctl_request request = {.kind = CTL_ADMIN, .u.admin.verb = CTL_ADMIN_DRAIN};

	strcpy(request.u.admin.node, w.agents[agent].node);
	cr_assert_eq(world_request(&w, c, &request), 0);
}

/* What it has given up it would have lost with the spot host. */
Test(refsrv_rescue, drained_offload__last_copy_given_up__stays_until_another_is_complete)
{
	struct ctl_ev_reserve reserve;
	struct world_member m = world_published(&w, spot_agent(), "p", "7");
	world_sleep(&w, 2 * SEC);
	struct world_member o = world_accepts(&w, a);
	world_finish(&w, &o, world_filling(&w, &o).leg);
	drain(a);
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	for (uint32_t agent = b; agent <= c; agent++) {
		cr_assert(world_reserve(&w, agent, &reserve));
		cr_assert_eq(world_refuse(&w, agent, &reserve), 0);
	}
	cr_assert_eq(world_outcome(&w, &m).code, TH_E_NOMEM_RETAIN);
	cr_assert_not(world_has(&w, a, CTL_EV_RELEASE, o.sid));
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, o.sid));
	/* Later there is room: it may be given up, and only then the drained copy goes. */
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct world_member p = world_accepts(&w, b);
	struct ctl_grant grant = world_filling(&w, &p);
	world_sleep(&w, 2 * SEC);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, o.sid));
	world_finish(&w, &p, grant.leg);
	world_drained(&w, &m);
	succeeded(&m);
	world_sleep(&w, 2 * SEC);
	world_drained(&w, &o);
	cr_assert_eq(num_versions(c), 1);
}

Test(refsrv_rescue, spot__a_replica_elsewhere_in_time__nothing_is_copied)
{
	struct world_member m = world_published(&w, spot_agent(), "p", "7"),
			    r = world_member(&w, b, "r", 0, 1);
	world_replicate(&w, &r, "7");
	world_sleep(&w, 5 * SEC);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
	cr_assert_not(world_logged(&w, "at risk"));
	/* The last one on a host that stays may not go before it is copied. */
	world_call(&w, &r, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_asked(&w, b));
	(void)m;
}

Test(refsrv_rescue, spot__refused__tried_again_after_a_while)
{
	struct ctl_ev_reserve reserve;
	world_published(&w, spot_agent(), "p", "7");
	world_sleep(&w, 1500 * MS);
	for (uint32_t agent = a; agent <= c; agent++) {
		cr_assert(world_reserve(&w, agent, &reserve));
		cr_assert_eq(world_refuse(&w, agent, &reserve), 0);
	}
	world_sleep(&w, 9 * SEC);
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
	world_sleep(&w, 2 * SEC);
	cr_assert(world_asked(&w, a));
}

Test(refsrv_rescue, spot__off__is_said_only)
{
	struct refsrv_config config;
	refsrv_config_default(&config);
	config.rescue_spot = false;
	world_fini(&w);
	world_init(&w, &config);
	w.offload_bytes = UINT64_MAX;
	new_agents(3);
	w.retain = "latest";
	world_published(&w, spot_agent(), "p", "7");
	world_sleep(&w, 30 * SEC);
	cr_assert(world_logged(&w, "at risk"));
	cr_assert_not(world_asked(&w, a) || world_asked(&w, b) || world_asked(&w, c));
}

Test(refsrv_rescue, spot_flag_of_a_handle__does_not_count_either)
{
	struct ctl_request request = {.kind = CTL_OPEN};
	struct world_member m = {.agent = b, .num_shards = 1};
	strcpy(request.u.open.model, "m");
	strcpy(request.u.open.replica, "p");
	strcpy(request.u.open.retain, "latest");
	request.u.open.num_shards = 1;
	request.u.open.flags = CTL_OPEN_SPOT;
	cr_assert_eq(world_request(&w, b, &request), 0);
	m.sid = w.reply.u.open.sid;
	cr_assert_eq(world_register(&w, b, m.sid, 0), 0);
	world_publish(&w, &m, "7");
	world_sleep(&w, 2 * SEC);
	cr_assert(world_asked(&w, b), "its agent stays, and may keep the copy");
	cr_assert_eq(num_versions(c), 1);
	cr_assert_eq(
		w.reply.u.list.versions[0].replicas[0].flags, CTL_REPLICA_READY | CTL_REPLICA_SPOT);
}
