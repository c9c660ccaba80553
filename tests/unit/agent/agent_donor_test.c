/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Donors of legs that fill copies of the agent's own: which version is one, and that it counts as
 * read until the movers say that they have left it.
 */
#include "tests/unit/agent/agent_fixture.h"

static uint64_t own; /* the sid of RIG_MEMORY */

/* Sessions are shard 1 of 2, as what rig_offload keeps is. */
static void
setup_shards(void)
{
	setup_attached();
	rig.num_shards = 2;
	rig.shard = 1;
}

/* Session 1 holds version 3, and RIG_MEMORY is filled from another host. */
static void
setup_pulling(void)
{
	setup_shards();
	sid = rig_ready(&rig, 1);
	gen = rig_hold(&rig, 1, sid, "3");
	own = rig_offload(&rig);
	rig_offload_filling(&rig, own);
}

TestSuite(agent_donor, .init = setup_shards, .fini = teardown);
TestSuite(agent_donor_read, .init = setup_pulling, .fini = teardown);

static const struct agent_action *
pull(void)
{
	return rig_last(&rig, AGENT_PULL);
}

static uint64_t
donor_of_next(void)
{
	rig_clear(&rig);
	own = rig_offload(&rig);
	rig_offload_filling(&rig, own);
	return pull()->u.leg.donor_session;
}

static void
hold(uint64_t session, const char *version)
{
	(void)rig_hold(&rig, session, rig_ready(&rig, session), version);
}

static void
donor_left(uint64_t leg)
{
	struct agent_event event = {.kind = AGENT_EV_DONOR_LEFT, .u.donor_leg = leg};

	rig_step(&rig, &event);
}

/* ---- which one ------------------------------------------------------------------------- */

Test(agent_donor, several_versions_are_held__the_newest)
{
	hold(1, "3");
	hold(2, "5");
	hold(3, "4");
	cr_assert_eq(donor_of_next(), 2);
	cr_assert_eq(pull()->u.leg.donor_gen, 1);
	cr_assert_eq(pull()->u.leg.source_session, 0);
}

Test(agent_donor, nothing_is_held__none)
{
	(void)rig_ready(&rig, 1);
	cr_assert_eq(donor_of_next(), 0);
}

Test(agent_donor, another_shard__none)
{
	rig.shard = 0;
	hold(1, "3");
	cr_assert_eq(donor_of_next(), 0);
}

Test(agent_donor, as_many_shards_as_others__none)
{
	rig.num_shards = 3;
	hold(1, "3");
	cr_assert_eq(donor_of_next(), 0);
}

Test(agent_donor, not_mapped__none)
{
	rig.unmapped = true;
	hold(1, "3");
	cr_assert_eq(donor_of_next(), 0);
}

Test(agent_donor, its_digests_are_being_made__none)
{
	(void)rig_publish(&rig, 1, rig_ready(&rig, 1), "3");
	cr_assert_eq(donor_of_next(), 0);
}

Test(agent_donor, it_is_being_given_up__none)
{
	sid = rig_ready(&rig, 1);
	gen = rig_hold(&rig, 1, sid, "3");
	uint64_t leg = rig_reader(&rig, sid, gen, 60);
	rig_event(&rig, rig_drain(sid, gen, 1));
	cr_assert_eq(donor_of_next(), 0);
	rig_out(&rig, AGENT_EV_OUT_ENDED, leg);
}

/* A worker's own tensors have what they have: they are looked at (transport/leg/reuse.h). */
Test(agent_donor, the_reader_is_a_worker__none)
{
	hold(1, "3");
	sid = rig_ready(&rig, 2);
	rig_filling(&rig, 2, sid, 1, 70);
	cr_assert_eq(pull()->u.leg.donor_session, 0);
}

/* ---- it is read ------------------------------------------------------------------------ */

Test(agent_donor_read, drain__it_is_left_first)
{
	uint64_t leg = pull()->u.leg.leg;
	cr_assert_eq(pull()->u.leg.donor_session, 1);
	rig_event(&rig, rig_drain(sid, gen, 4));
	cr_assert_eq(rig_last(&rig, AGENT_DONOR_DROP)->u.leg.leg, leg);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0);
	rig_sleep(&rig, 2 * SEC);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0, "time is no proof");
	cr_assert_eq(rig_count(&rig, AGENT_DONOR_DROP), 1);
	donor_left(leg);
	cr_assert_eq(rig_request(&rig, CTL_DRAIN_DONE)->u.drain_done.drain_no, 4);
	/* The leg goes on. */
	cr_assert_eq(rig_count(&rig, AGENT_STOP), 0);
	rig_leg(&rig, AGENT_EV_LEG_DONE, leg, 0);
	rig_event(&rig, rig_outcome(own, 1, 0, 17));
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 0);
}

Test(agent_donor_read, drain__the_end_of_the_leg_will_do)
{
	uint64_t leg = pull()->u.leg.leg;
	rig_event(&rig, rig_drain(sid, gen, 4));
	rig_leg(&rig, AGENT_EV_LEG_FAILED, leg, TH_E_NO_PATH);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 1);
	donor_left(leg); /* has crossed it */
}

/* The next leg is given what is there then. */
Test(agent_donor_read, source_fails__the_next_leg_has_a_donor_again)
{
	rig_leg(&rig, AGENT_EV_LEG_FAILED, pull()->u.leg.leg, TH_E_NO_PATH);
	rig_event(&rig, rig_reroute(own, 1, 0, 51));
	cr_assert_eq(pull()->u.leg.grant.leg, 51);
	cr_assert_eq(pull()->u.leg.donor_session, 1);
	rig_event(&rig, rig_drain(sid, gen, 4));
	rig_leg(&rig, AGENT_EV_LEG_FAILED, pull()->u.leg.leg, TH_E_NO_PATH);
	rig_event(&rig, rig_reroute(own, 1, 0, 52));
	cr_assert_eq(pull()->u.leg.grant.leg, 52);
	cr_assert_eq(pull()->u.leg.donor_session, 0, "it is being given up");
}

Test(agent_donor_read, its_worker_dies__it_is_left_then_freed)
{
	rig_session(&rig, 1, AGENT_EV_LOST);
	rig_event(&rig, rig_drain(sid, gen, 1));
	cr_assert_eq(rig_count(&rig, AGENT_DONOR_DROP), 1);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 0);
	donor_left(pull()->u.leg.leg);
	cr_assert_eq(rig_last(&rig, AGENT_FREE)->session, 1);
	cr_assert_lt(rig_at(&rig, AGENT_PART_END), rig_at(&rig, AGENT_FREE));
}

Test(agent_donor_read, left_by_a_leg_that_is_none__nothing)
{
	donor_left(999);
	rig_event(&rig, rig_drain(sid, gen, 4));
	donor_left(pull()->u.leg.leg + 1);
	cr_assert_eq(rig_requests(&rig, CTL_DRAIN_DONE), 0);
}
