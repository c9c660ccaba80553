/* SPDX-License-Identifier: Apache-2.0 */
/*
 * D22: a session without a replica is a member of nothing. It watches; all that a member does is
 * refused, no server is told of it, and none that is lost takes it along.
 */
#include "ipc/base/checked.h"
#include "tests/unit/agent/agent_fixture.h"

#define OBSERVER 9u

static void
setup(void)
{
	rig_init(&rig);
	rig.mute = true;
}

static void
server_comes(void)
{
	rig.mute = false;
	rig_attach(&rig);
}

static void
opens_as(const struct ctl_open *open)
{
	rig_step(&rig,
		&(struct agent_event){.kind = AGENT_EV_OPEN, .session = OBSERVER, .u.open = *open});
}

static int
open_as(const struct ctl_open *open)
{
	opens_as(open);
	return rig_last(&rig, AGENT_OPENED)->u.answer.code;
}

static int
observe(void)
{
	return open_as(&(struct ctl_open){.model = "m", .num_shards = 1});
}

static void
setup_observing(void)
{
	setup_attached();
	cr_assert_eq(observe(), 0);
	rig_clear(&rig);
}

TestSuite(agent_observer, .init = setup_observing, .fini = teardown);
TestSuite(agent_observer_open, .init = setup, .fini = teardown);

static void
watch(uint32_t slot, const char *generation)
{
	rig_submit(&rig, OBSERVER, slot, AGENT_SUBMIT_WATCH, generation, TH_FOREVER);
}

static int
watched(uint32_t slot)
{
	return rig_complete(&rig, OBSERVER, slot)->u.complete.code;
}

static void
changes_to(uint64_t generation)
{
	struct ctl_event changed = {.kind = CTL_EV_CHANGED, .u.changed = {"m", generation}};

	rig_event(&rig, changed);
}

/* ---- open ---- */

Test(agent_observer_open, no_server_yet__is_open_with_the_first_that_is_not_told)
{
	opens_as(&(struct ctl_open){.model = "m", .num_shards = 1});
	cr_assert_eq(rig_count(&rig, AGENT_OPENED), 0);
	server_comes();
	cr_assert_eq(rig_last(&rig, AGENT_OPENED)->u.answer.code, 0);
	cr_assert(rig_last(&rig, AGENT_LINE)->u.line.safe_to_mutate);
	cr_assert_eq(rig_requests(&rig, CTL_OPEN), 0);
	watch(0, "0");
	changes_to(1);
	cr_assert_eq(watched(0), 0);
}

Test(agent_observer_open, what_a_member_has__is_refused_by_its_name)
{
	static const struct {
		struct ctl_open open;
		const char *begin;
	} cases[] = {
		{{.model = "m", .num_shards = 2}, "num_shards: "},
		{{.model = "m", .num_shards = 2, .shard = 1}, "num_shards: "},
		{{.model = "m", .num_shards = 1, .lineage = 1}, "lineage: "},
		{{.model = "m", .num_shards = 1, .retain = "latest"}, "retain: "},
		{{.model = "m", .num_shards = 1, .launch_id = "7"}, "launch_id: "},
		{{.model = "m", .num_shards = 1, .flags = CTL_OPEN_SPOT}, "flags: "},
		{{.num_shards = 1}, "the model"},
	};

	for (size_t i = 0; i < TH_ARRAY_LEN(cases); i++) {
		cr_assert_eq(open_as(&cases[i].open), TH_E_INVALID, "%s", cases[i].begin);
		const char *text = rig_last(&rig, AGENT_OPENED)->u.answer.text;
		cr_assert_eq(strncmp(text, cases[i].begin, strlen(cases[i].begin)), 0, "%s", text);
	}
}

Test(agent_observer_open, worker_dies_while_no_server_comes__nothing_is_left)
{
	opens_as(&(struct ctl_open){.model = "m", .num_shards = 1});
	rig_session(&rig, OBSERVER, AGENT_EV_LOST);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
	server_comes();
	cr_assert_eq(rig_count(&rig, AGENT_OPENED), 0);
}

/* ---- what it may do ---- */

Test(agent_observer, watch__server_is_asked_once_for_it_and_members)
{
	rig_open(&rig, 1);
	watch(0, "0");
	rig_submit(&rig, 1, 0, AGENT_SUBMIT_WATCH, "0", TH_FOREVER);
	cr_assert_eq(rig_requests(&rig, CTL_WATCH), 1);
	changes_to(3);
	cr_assert_eq(watched(0), 0);
	cr_assert_eq(code_of(0), 0);
}

Test(agent_observer, calls_of_a_member__are_refused_and_nobody_is_asked)
{
	for (uint32_t kind = CTL_OP_PUBLISH; kind <= CTL_OP_LIST; kind++) {
		const char *spec = kind == CTL_OP_PUBLISH ? "1" : "latest";
		rig_submit(&rig, OBSERVER, kind, kind, spec, TH_FOREVER);
		cr_assert_eq(watched(kind), TH_E_STATE);
		const char *text = rig_complete(&rig, OBSERVER, kind)->u.complete.text;
		cr_assert_not_null(strstr(text, "an observer"), "%s", text);
	}
	rig_session(&rig, OBSERVER, AGENT_EV_REGISTER);
	cr_assert_eq(rig_last(&rig, AGENT_REGISTERED)->u.answer.code, TH_E_STATE);
	rig_session(&rig, OBSERVER, AGENT_EV_UNREGISTER);
	cr_assert_eq(rig_last(&rig, AGENT_UNREGISTERED)->u.answer.code, TH_E_STATE);
	cr_assert_eq(rig_requests(&rig, CTL_OP) + rig_requests(&rig, CTL_REGISTER) +
			     rig_requests(&rig, CTL_UNREGISTER),
		0);
}

/* ---- what befalls others ---- */

Test(agent_observer, server_that_knows_nothing__is_told_of_members_only_and_watched)
{
	rig_open(&rig, 1);
	watch(0, "0");
	rig_lost(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_REJOIN), 1);
	cr_assert_eq(rig_request(&rig, CTL_REJOINED)->u.rejoined.num_sessions, 1);
	cr_assert_eq(rig_requests(&rig, CTL_WATCH), 1);
	changes_to(UINT64_C(1) << 40);
	cr_assert_eq(watched(0), 0);
}

Test(agent_observer, sessions_end_with_their_server__goes_on)
{
	rig_reset_at_loss();
	teardown();
	setup_observing();
	rig_lost(&rig);
	cr_assert_eq(rig_requests(&rig, CTL_REJOIN), 0);
	watch(0, "0");
	changes_to(UINT64_C(1) << 40);
	cr_assert_eq(watched(0), 0);
}

Test(agent_observer, agent_leaves__is_not_waited_for)
{
	struct agent_event leave = {.kind = AGENT_EV_LEAVE, .u.leave_timeout_ns = SEC};

	rig_hang_up(&rig);
	rig_step(&rig, &leave);
	cr_assert_eq(rig_last(&rig, AGENT_LEFT)->u.left.code, 0);
}

/* ---- its end ---- */

Test(agent_observer, close__is_done_at_once_and_the_server_hears_of_no_session)
{
	watch(0, "0");
	worker_closes(OBSERVER, false, TH_FOREVER);
	cr_assert_eq(watched(0), TH_E_CANCELLED);
	cr_assert_eq(closed(), 0);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 0);
	cr_assert(rig_request(&rig, CTL_WATCH)->u.watch.stop);
}

Test(agent_observer, dies__nobody_is_told)
{
	rig_session(&rig, OBSERVER, AGENT_EV_LOST);
	cr_assert_eq(rig_count(&rig, AGENT_FREE), 1);
	cr_assert_eq(rig_count(&rig, AGENT_CLOSED), 0);
	cr_assert_eq(rig_requests(&rig, CTL_CLOSE), 0);
}
