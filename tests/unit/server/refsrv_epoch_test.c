/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server's lives: epochs, numbers that no other life has given, requests of a former
 * attachment.
 */
#include "tests/unit/server/refsrv_fixture.h"

TestSuite(refsrv_epoch, .init = setup_empty, .fini = teardown);

/* An agent that was attached to another server life, of this epoch. */
static uint32_t
comes_from(uint32_t epoch)
{
	uint32_t agent = w.num_agents++;

	w.agents[agent].inc = ++w.last_inc;
	strcpy(w.agents[agent].node, agent == 0 ? "n0" : agent == 1 ? "n1" : "n2");
	w.agents[agent].server_inc = 1234;
	w.agents[agent].epoch = epoch;
	cr_assert_eq(world_attach(&w, agent, "dc1"), 0);
	return agent;
}

static uint64_t
new_sid(uint32_t agent, const char *replica)
{
	uint64_t sid = 0;

	cr_assert_eq(world_open(&w, agent, "m", replica, 0, 1, 1, &sid), 0);
	return sid;
}

Test(refsrv_epoch, first_life__epoch_one_and_numbers_within_it)
{
	new_agents(1);

	cr_assert_eq(w.agents[a].epoch, 1);
	cr_assert_eq(new_sid(a, "r") >> TH_EPOCH_SHIFT, 1);
	cr_assert_neq(new_sid(a, "s"), new_sid(a, "t"));
}

Test(refsrv_epoch, agents_bring_epochs__one_above_the_highest)
{
	a = comes_from(6);
	uint64_t first, second;

	cr_assert_eq(w.agents[a].epoch, 7);
	first = new_sid(a, "r");
	cr_assert_eq(first >> TH_EPOCH_SHIFT, 7);
	cr_assert_eq(w.agents[comes_from(3)].epoch, 7);
	/* The life before had our epoch too: both rose from the same one. */
	cr_assert_eq(w.agents[comes_from(7)].epoch, 8);
	second = new_sid(a, "s");
	cr_assert_eq(second >> TH_EPOCH_SHIFT, 8);
	/* Its own agents bring its epoch again and again: that is no other life. */
	w.agents[a].epoch = 8;
	cr_assert_eq(world_attach(&w, a, "dc1"), 0);
	cr_assert_eq(w.agents[a].epoch, 8);
}

Test(refsrv_epoch, two_lives_of_one_epoch__numbers_do_not_meet)
{
	uint64_t here = new_sid(world_agent(&w), "r"), there;

	world_fini(&w);
	struct refsrv_config config;
	refsrv_config_default(&config);
	world_init(&w, &config);
	refsrv_free(w.server);
	w.config.server_inc = 78;
	w.server = refsrv_new(&w.config, w.now_ns);
	there = new_sid(world_agent(&w), "r");
	cr_assert_eq(here >> TH_EPOCH_SHIFT, there >> TH_EPOCH_SHIFT);
	cr_assert_gt(here > there ? here - there : there - here, 1000000);
}

Test(refsrv_epoch, former_attachment__its_requests_are_refused)
{
	new_agents(1);
	struct ctl_request open = {.kind = CTL_OPEN,
		.agent_inc = w.agents[a].inc,
		.secret = world_secret(w.agents[a].inc),
		.attach_no = w.agents[a].attach_no,
		.u.open = {.model = "m", .replica = "r", .num_shards = 1}};

	cr_assert_eq(world_attach(&w, a, "dc1"), 0);
	cr_assert_not(w.reply.u.attach.fresh);
	cr_assert_neq(open.attach_no, w.agents[a].attach_no);
	open.request_no = ++w.agents[a].request_no;
	cr_assert_eq(world_repeat(&w, a, &open), TH_E_NO_SERVER);
	cr_assert(w.reply.unknown_agent);
	cr_assert(strstr(w.reply.text, "former attachment") != NULL);
	open.kind = CTL_POLL;
	cr_assert_eq(world_repeat(&w, a, &open), TH_E_NO_SERVER);
	cr_assert_gt(new_sid(a, "r"), 0, "nobody is in its place");
}

Test(refsrv_epoch, late_attach__does_not_begin_a_life_again)
{
	new_agents(1);
	struct ctl_request late = {.kind = CTL_ATTACH,
		.agent_inc = w.agents[a].inc,
		.secret = world_secret(w.agents[a].inc),
		.request_no = w.agents[a].request_no};

	strcpy(late.u.attach.node, w.agents[a].node);
	strcpy(late.u.attach.datacenter, "dc1");
	strcpy(late.u.attach.data_address, "h:1");
	cr_assert_eq(world_repeat(&w, a, &late), 0, "remembered");
	w.agents[a].silent = true;
	world_sleep(&w, 11 * SEC);
	cr_assert_eq(world_repeat(&w, a, &late), TH_E_STATE);
	cr_assert_eq(world_attach(&w, a, "dc1"), 0);
	cr_assert(w.reply.u.attach.fresh);
}

Test(refsrv_epoch, attached_elsewhere_meanwhile__what_it_had_here_is_over)
{
	new_agents(2);
	struct world_member m0 = world_member(&w, a, "r", 0, 2);
	struct world_member m1 = world_member(&w, b, "r", 1, 2);

	(void)m0;
	w.agents[a].server_inc = 99;
	w.agents[a].epoch = 5;
	cr_assert_eq(world_attach(&w, a, "dc1"), 0);
	cr_assert(w.reply.u.attach.fresh);
	cr_assert_eq(w.agents[a].epoch, 6);
	struct ctl_event event = taken(&m1, CTL_EV_BROKEN);
	cr_assert(strstr(event.u.broken.text, "another server") != NULL);
}

Test(refsrv_epoch, answer_to_a_fresh_attachment_is_lost__the_next_is_fresh_too)
{
	new_agents(1);
	uint64_t known = w.agents[a].attach_no;

	w.agents[a].silent = true;
	world_sleep(&w, 15 * SEC);
	w.agents[a].silent = false;
	cr_assert_eq(world_attach(&w, a, "dc1"), 0);
	cr_assert(w.reply.u.attach.fresh, "it was dead");
	/* It did not hear of that, and counts events from where it was. */
	w.agents[a].attach_no = known;
	w.agents[a].attached = false;
	cr_assert_eq(world_attach(&w, a, "dc1"), 0);
	cr_assert(w.reply.u.attach.fresh);
	cr_assert_eq(world_attach(&w, a, "dc1"), 0);
	cr_assert_not(w.reply.u.attach.fresh);
}
