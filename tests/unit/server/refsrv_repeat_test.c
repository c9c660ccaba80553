/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, repeats: a request that is sent again because its answer was lost takes effect once, also
 * when many others have passed it.
 */
#include "tests/unit/server/refsrv_fixture.h"

static uint64_t oldest; /* what the agent still waits for */

static void
setup(void)
{
	world_init(&w, NULL);
	new_agents(1);
}

TestSuite(refsrv_repeat, .init = setup, .fini = teardown);

/* The answer is lost: the agent will ask again. */
static struct ctl_request
lost_open(void)
{
	struct ctl_request request = {.kind = CTL_OPEN, .u.open.num_shards = 1};

	strcpy(request.u.open.model, "m");
	strcpy(request.u.open.replica, "r");
	oldest = request.answered_below = w.agents[a].request_no + 1;
	cr_assert_eq(world_request(&w, a, &request), 0);
	return request;
}

static void
others_pass(uint32_t count)
{
	struct ctl_request request = {.kind = CTL_UNREGISTER, .answered_below = oldest};

	for (uint32_t i = 0; i < count; i++)
		cr_assert_eq(world_request(&w, a, &request), TH_E_STATE);
}

Test(refsrv_repeat, many_others_have_passed__same_reply_one_effect)
{
	struct ctl_request open = lost_open();
	uint64_t sid = w.reply.u.open.sid;

	others_pass(900);
	cr_assert_eq(world_repeat(&w, a, &open), 0);
	cr_assert_eq(w.reply.u.open.sid, sid);
	cr_assert_eq(num_members(), 1);
}

Test(refsrv_repeat, overtaken_by_many__taken_once_when_it_comes)
{
	struct ctl_request open = {.kind = CTL_OPEN, .u.open.num_shards = 1};

	strcpy(open.u.open.model, "m");
	strcpy(open.u.open.replica, "r");
	open.agent_inc = w.agents[a].inc;
	open.secret = world_secret(w.agents[a].inc);
	open.request_no = open.answered_below = oldest = ++w.agents[a].request_no;
	open.attach_no = w.agents[a].attach_no;
	others_pass(900);
	cr_assert_eq(world_repeat(&w, a, &open), 0);
	uint64_t sid = w.reply.u.open.sid;
	cr_assert_eq(world_repeat(&w, a, &open), 0);
	cr_assert_eq(w.reply.u.open.sid, sid);
	cr_assert_eq(num_members(), 1);
}

Test(refsrv_repeat, answered__a_copy_that_comes_late_has_no_effect)
{
	struct ctl_request open = lost_open();
	struct world_member m = {.agent = a, .num_shards = 1, .sid = w.reply.u.open.sid};

	oldest = open.request_no + 1;
	others_pass(1);
	cr_assert_eq(world_close(&w, &m, false), 0);
	cr_assert_eq(world_repeat(&w, a, &open), TH_E_STATE);
	cr_assert_not(w.reply.unknown_agent);
	cr_assert_eq(num_members(), 0);
}

/* Begun anew since: a late end would end that. */
Test(refsrv_repeat, end_of_a_watch_comes_late__the_next_one_stays)
{
	struct ctl_request begin = {.kind = CTL_WATCH, .u.watch.model = "m"}, stop = begin;

	cr_assert_eq(world_request(&w, a, &begin), 0);
	stop.u.watch.stop = true;
	cr_assert_eq(world_request(&w, a, &stop), 0);
	begin.answered_below = w.agents[a].request_no + 1;
	cr_assert_eq(world_request(&w, a, &begin), 0);
	cr_assert_eq(world_repeat(&w, a, &begin), 0);
	cr_assert_eq(world_repeat(&w, a, &stop), TH_E_STATE);
}

Test(refsrv_repeat, older_than_the_server_remembers__the_agent_begins_anew)
{
	struct ctl_request open = lost_open();

	others_pass(1100);
	cr_assert_eq(world_repeat(&w, a, &open), TH_E_NO_SERVER);
	cr_assert(w.reply.unknown_agent);
	cr_assert_eq(num_members(), 0);
	w.agents[a].attached = w.agents[a].polling = false;
	cr_assert_eq(world_attach(&w, a, "dc1"), 0);
	cr_assert(w.reply.u.attach.fresh);
	world_member(&w, a, "r", 0, 1);
}

Test(refsrv_repeat, agent_says_it_has_answers_that_it_cannot_have__invalid)
{
	struct ctl_request open = lost_open(), lie = {.kind = CTL_UNREGISTER};

	lie.answered_below = UINT64_MAX;
	cr_assert_eq(world_request(&w, a, &lie), TH_E_INVALID);
	cr_assert(strstr(w.reply.text, "that cannot be") != NULL);
	/* Nothing was forgotten for it. */
	cr_assert_eq(world_repeat(&w, a, &open), 0);
	cr_assert_eq(num_members(), 1);
}
