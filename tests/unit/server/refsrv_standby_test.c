/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several servers: who serves, who is over, what is answered meanwhile. Up to three cores ask each
 * other over links that a test cuts; each is freed and made anew when it says so, as a shell does.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/err.h"
#include "server/core/refsrv.h"
#include "tests/support/core/core_check.h"

#define MS INT64_C(1000000)
#define SEC (1000 * MS)
#define SERVERS 3u
#define AGENTS 4u

static const char *const names[] = {"tcp://a:1", "tcp://b:1", "tcp://c:1"};

struct agent {
	uint32_t at; /* it beats there, once a second */
	uint64_t request_no, attach_no, server_inc;
	uint32_t epoch;
};

static struct cluster {
	uint32_t count;
	bool no_places; /* nobody knows where it stands in the list */
	const char *clusters[SERVERS];
	struct refsrv *servers[SERVERS];
	uint64_t incs[SERVERS];
	int64_t next_ns[SERVERS];
	bool stopped[SERVERS];
	bool cut[SERVERS][SERVERS]; /* what the first asks does not reach the second */
	uint32_t renewed[SERVERS];
	int64_t now_ns;
	uint64_t last_inc, last_token;
	struct agent agents[AGENTS];
	struct ctl_reply reply; /* to the last request */
	uint32_t asked;         /* questions to others */
	uint32_t refused;       /* POLLs that waited and were refused, as of an unknown agent */
} c;

static void take(uint32_t i, const struct refsrv_out *out);

static void
start(uint32_t i)
{
	struct refsrv_config config;
	struct refsrv_out out;

	refsrv_config_default(&config);
	config.server_inc = c.incs[i] = ++c.last_inc;
	config.num_peers = c.count;
	config.peers = names;
	config.me = c.no_places ? REFSRV_PEER_UNKNOWN : i;
	if (c.clusters[i] != NULL)
		strcpy(config.cluster, c.clusters[i]);
	c.servers[i] = refsrv_new(&config, c.now_ns);
	refsrv_tick(c.servers[i], c.now_ns, &out);
	take(i, &out);
}

static void
end(uint32_t i)
{
	refsrv_free(c.servers[i]);
	c.servers[i] = NULL;
}

/* Nobody is there: refused at once. Somebody, but not to be reached: nothing comes back. */
static void
ask(uint32_t from, uint32_t to, const struct ctl_hello *hello)
{
	const struct ctl_request request = {.kind = CTL_HELLO, .u.hello = *hello};
	struct ctl_hello_reply reply = {0};
	uint64_t token = ++c.last_token;
	struct refsrv_out out;
	int code = TH_E_NO_SERVER;

	c.asked++;
	if (c.cut[from][to] || c.stopped[to])
		return;
	if (c.servers[to] != NULL) {
		refsrv_step(c.servers[to], c.now_ns, token, &request, &out);
		for (uint32_t i = 0; i < out.num_replies; i++) {
			if (out.replies[i].token != token)
				continue;
			code = out.replies[i].reply.code;
			reply = out.replies[i].reply.u.hello;
		}
		take(to, &out);
	}
	if (c.servers[from] == NULL || c.incs[from] != hello->server_inc)
		return;
	refsrv_probed(c.servers[from], c.now_ns, to, code == 0 ? &reply : NULL, &out);
	take(from, &out);
}

static void
take(uint32_t i, const struct refsrv_out *out)
{
	struct refsrv_probe probes[REFSRV_PEERS_MAX];
	uint32_t num_probes = out->num_probes;

	refsrv_check(c.servers[i]);
	for (uint32_t k = 0; k < num_probes; k++)
		probes[k] = out->probes[k];
	for (uint32_t k = 0; k < out->num_replies; k++) {
		const struct ctl_reply *reply = &out->replies[k].reply;
		c.refused += reply->kind == CTL_POLL && reply->code == TH_E_NO_SERVER &&
			     reply->unknown_agent;
	}
	c.next_ns[i] = out->next_ns;
	if (out->renew) {
		cr_assert_eq(num_probes, 0);
		c.renewed[i]++;
		end(i);
		start(i);
		return;
	}
	for (uint32_t k = 0; k < num_probes; k++)
		ask(i, probes[k].peer, &probes[k].hello);
}

static void
run(int64_t ns)
{
	int64_t until_ns = c.now_ns + ns;

	for (;;) {
		uint32_t first = SERVERS;
		for (uint32_t i = 0; i < c.count; i++) {
			if (c.servers[i] != NULL && !c.stopped[i] &&
				(first == SERVERS || c.next_ns[i] < c.next_ns[first]))
				first = i;
		}
		if (first == SERVERS || c.next_ns[first] > until_ns)
			break;
		struct refsrv_out out;
		c.now_ns = c.next_ns[first] > c.now_ns ? c.next_ns[first] : c.now_ns;
		refsrv_tick(c.servers[first], c.now_ns, &out);
		cr_assert_gt(out.next_ns, c.now_ns);
		take(first, &out);
	}
	c.now_ns = until_ns;
}

static int
request(uint32_t i, uint32_t agent, struct ctl_request *request)
{
	struct refsrv_out out;
	uint64_t token = ++c.last_token;

	if (agent < AGENTS) {
		request->agent_inc = 1000 + agent;
		request->request_no = ++c.agents[agent].request_no;
		request->attach_no = c.agents[agent].attach_no;
	}
	memset(&c.reply, 0, sizeof(c.reply));
	refsrv_step(c.servers[i], c.now_ns, token, request, &out);
	for (uint32_t k = 0; k < out.num_replies; k++) {
		if (out.replies[k].token == token)
			c.reply = out.replies[k].reply;
	}
	take(i, &out);
	return c.reply.code;
}

/* Agents beat where they are attached. */
static void
rest(int64_t ns)
{
	int64_t until_ns = c.now_ns + ns;

	while (c.now_ns < until_ns) {
		run(until_ns - c.now_ns < SEC ? until_ns - c.now_ns : SEC);
		for (uint32_t a = 0; a < AGENTS; a++) {
			struct agent *agent = &c.agents[a];
			struct ctl_request beat = {.kind = CTL_BEAT};
			if (agent->attach_no == 0 || c.servers[agent->at] == NULL ||
				c.stopped[agent->at])
				continue;
			if (request(agent->at, a, &beat) != 0)
				agent->attach_no = 0;
		}
	}
}

static void
begin(uint32_t count)
{
	c = (struct cluster){.count = count, .now_ns = 100 * SEC};
	for (uint32_t i = 0; i < count; i++)
		start(i);
	rest(4 * SEC);
}

static void
finish(void)
{
	for (uint32_t i = 0; i < c.count; i++)
		refsrv_free(c.servers[i]);
}

TestSuite(refsrv_standby, .fini = finish);

static int
attach(uint32_t i, uint32_t agent)
{
	struct ctl_request attach = {.kind = CTL_ATTACH};

	strcpy(attach.u.attach.node, "n");
	attach.u.attach.node[0] = (char)('n' + agent);
	strcpy(attach.u.attach.datacenter, "dc");
	strcpy(attach.u.attach.data_address, "x:1");
	attach.u.attach.server_inc = c.agents[agent].server_inc;
	attach.u.attach.epoch = c.agents[agent].epoch;
	int code = request(i, agent, &attach);
	if (code == 0) {
		cr_assert_geq(c.reply.u.attach.epoch, c.agents[agent].epoch);
		c.agents[agent].server_inc = c.reply.u.attach.server_inc;
		c.agents[agent].attach_no = c.reply.u.attach.attach_no;
		c.agents[agent].at = i;
		c.agents[agent].epoch = c.reply.u.attach.epoch;
	}
	return code;
}

static void
beat(uint32_t i, uint32_t agent)
{
	cr_assert_eq(request(i, agent, &(struct ctl_request){.kind = CTL_BEAT}), 0);
}

static int
hello(uint32_t i)
{
	struct ctl_request hello = {.kind = CTL_HELLO,
		.u.hello = {.protocol_min = TH_PROTOCOL_MIN, .protocol_max = TH_PROTOCOL_MAX}};

	return request(i, 0, &hello);
}

static bool
serves(uint32_t i)
{
	return refsrv_inspect(c.servers[i], c.now_ns)->serving;
}

static const char *
why_not(uint32_t i)
{
	return refsrv_inspect(c.servers[i], c.now_ns)->server_text;
}

static void
cut(uint32_t a, uint32_t b, bool is_cut)
{
	c.cut[a][b] = c.cut[b][a] = is_cut;
}

static void
stop(uint32_t i, int64_t ns)
{
	struct refsrv_out out;

	c.stopped[i] = true;
	rest(ns);
	c.stopped[i] = false;
	refsrv_tick(c.servers[i], c.now_ns, &out);
	take(i, &out);
}

/* ---- who serves ------------------------------------------------------------------------------ */

Test(refsrv_standby, no_others__serves_at_once_and_asks_nobody)
{
	struct refsrv_config config;
	struct refsrv_out out;

	refsrv_config_default(&config);
	config.server_inc = 1;
	c = (struct cluster){.count = 1, .now_ns = SEC};
	c.servers[0] = refsrv_new(&config, c.now_ns);
	refsrv_tick(c.servers[0], c.now_ns, &out);
	cr_assert_eq(out.num_probes, 0);
	cr_assert_not(out.renew);
	cr_assert_eq(hello(0), 0);
	cr_assert(c.reply.u.hello.serving);
	cr_assert_eq(attach(0, 0), 0);
}

Test(refsrv_standby, first__asks_the_others_and_serves)
{
	begin(2);
	cr_assert(serves(0));
	cr_assert_eq(hello(0), 0);
	cr_assert_eq(c.reply.u.hello.epoch, 0);
	cr_assert_eq(attach(0, 0), 0);
	cr_assert_eq(c.agents[0].epoch, 1);
}

Test(refsrv_standby, first__others_never_answer__serves_after_a_second)
{
	c = (struct cluster){.count = 2, .now_ns = 100 * SEC, .cut[0][1] = true};
	start(0);
	rest(900 * MS);
	cr_assert_eq(hello(0), TH_E_NO_SERVER);
	cr_assert(strstr(c.reply.text, "tcp://b:1 has not answered yet"));
	rest(200 * MS);
	cr_assert_eq(hello(0), 0);
}

Test(refsrv_standby, second__refuses_agents_and_answers_servers_and_operators)
{
	struct ctl_request list = {.kind = CTL_LIST}, inspect = {.kind = CTL_INSPECT};
	struct ctl_request events = {.kind = CTL_ADMIN, .u.admin.verb = CTL_ADMIN_EVENTS};
	struct ctl_request drain = {.kind = CTL_ADMIN, .u.admin.verb = CTL_ADMIN_DRAIN};
	struct ctl_request other = {.kind = CTL_HELLO,
		.u.hello = {.protocol_min = TH_PROTOCOL_MIN,
			.protocol_max = TH_PROTOCOL_MAX,
			.server_inc = 99}};

	begin(2);
	cr_assert_eq(hello(1), TH_E_NO_SERVER);
	cr_assert_str_eq(c.reply.text, "standby: tcp://a:1 is alive");
	cr_assert_not(c.reply.unknown_agent);
	cr_assert_eq(attach(1, 0), TH_E_NO_SERVER);
	cr_assert(c.reply.unknown_agent);
	cr_assert_eq(request(1, 0, &(struct ctl_request){.kind = CTL_BEAT}), TH_E_NO_SERVER);
	cr_assert_eq(request(1, 0, &(struct ctl_request){.kind = CTL_POLL}), TH_E_NO_SERVER);
	cr_assert(c.reply.unknown_agent);
	cr_assert_eq(request(1, AGENTS, &list), TH_E_NO_SERVER);
	cr_assert_eq(request(1, AGENTS, &drain), TH_E_NO_SERVER);
	cr_assert_eq(request(1, AGENTS, &events), 0);
	cr_assert_eq(request(1, AGENTS, &inspect), 0);
	cr_assert_not(c.reply.u.inspect.serving);
	cr_assert_str_eq(c.reply.u.inspect.server_text, "standby: tcp://a:1 is alive");
	cr_assert_eq(request(1, AGENTS, &other), 0);
	cr_assert_not(c.reply.u.hello.serving);
}

Test(refsrv_standby, first_dies__second_serves_after_three_seconds_with_a_higher_epoch)
{
	begin(2);
	c.agents[0].epoch = 6;
	c.agents[0].server_inc = 1234;
	cr_assert_eq(attach(0, 0), 0);
	rest(SEC);
	end(0);
	rest(2400 * MS);
	cr_assert_not(serves(1));
	rest(SEC);
	cr_assert(serves(1));
	/* The dead one has told of its epoch; the agent brings less. */
	cr_assert_eq(attach(1, 1), 0);
	cr_assert_eq(c.agents[1].epoch, 8);
	cr_assert_eq(attach(1, 0), 0);
	cr_assert_eq(c.agents[0].epoch, 8);
}

Test(refsrv_standby, two_followers__one_after_the_other)
{
	begin(3);
	end(0);
	rest(4 * SEC);
	cr_assert(serves(1));
	cr_assert_str_eq(why_not(2), "standby: tcp://b:1 is alive");
	end(1);
	rest(4 * SEC);
	cr_assert(serves(2));
	cr_assert_eq(attach(2, 0), 0);
	start(1);
	rest(SEC);
	cr_assert_str_eq(why_not(1), "standby: tcp://c:1 serves, with epoch 1");
	rest(12 * SEC);
	cr_assert(serves(1));
	cr_assert_eq(c.renewed[2], 1);
}

Test(refsrv_standby, nobody_knows_its_place__found_by_their_lives)
{
	c = (struct cluster){.count = 3, .no_places = true, .now_ns = 100 * SEC};
	for (uint32_t i = 0; i < 3; i++)
		start(i);
	rest(4 * SEC);
	cr_assert(serves(0));
	cr_assert_str_eq(why_not(1), "standby: tcp://a:1 is alive");
	end(0);
	rest(4 * SEC);
	cr_assert(serves(1));
	cr_assert_not(serves(2));
}

Test(refsrv_standby, place_never_found__serves_only_when_nobody_else_is_there)
{
	c = (struct cluster){.count = 2, .no_places = true, .now_ns = 100 * SEC};
	c.cut[0][0] = c.cut[1][1] = true;
	start(0);
	start(1);
	rest(10 * SEC);
	cr_assert(!serves(0) && !serves(1));
	end(1);
	rest(4 * SEC);
	cr_assert(serves(0));
}

/* ---- one bad link ---------------------------------------------------------------------------- */

Test(refsrv_standby, link_between_servers_is_cut__nobody_moves)
{
	begin(2);
	cr_assert_eq(attach(0, 0), 0);
	cut(0, 1, true);
	rest(20 * SEC);
	beat(0, 0);
	/* An agent that asks is served; none does. */
	cr_assert(serves(0) && serves(1));
	cut(0, 1, false);
	rest(2 * SEC);
	cr_assert(serves(0) && !serves(1));
	beat(0, 0);
	cr_assert_eq(c.renewed[0] + c.renewed[1], 0);
}

Test(refsrv_standby, agent_cannot_reach_the_first__the_second_refuses_it)
{
	begin(2);
	cr_assert_eq(attach(0, 0), 0);
	rest(20 * SEC);
	cr_assert_eq(attach(1, 1), TH_E_NO_SERVER);
	beat(0, 0);
}

/* ---- two halves ------------------------------------------------------------------------------ */

/* Agent 0 at the first, agent 1 at the second, which has the higher epoch. */
static void
halves(void)
{
	begin(2);
	cr_assert_eq(attach(0, 0), 0);
	rest(SEC);
	cut(0, 1, true);
	rest(4 * SEC);
	cr_assert_eq(attach(1, 1), 0);
	cr_assert_eq(c.agents[1].epoch, 2);
}

static void
poll(uint32_t i, uint32_t agent)
{
	cr_assert_eq(request(i, agent, &(struct ctl_request){.kind = CTL_POLL}), 0);
}

Test(refsrv_standby, halves_meet__the_lower_epoch_is_over)
{
	halves();
	poll(0, 0);
	cut(0, 1, false);
	rest(1100 * MS);
	cr_assert_eq(c.renewed[0], 1);
	cr_assert_geq(c.refused, 1, "who waits is told");
	cr_assert_eq(attach(0, 0), TH_E_NO_SERVER);
	cr_assert_str_eq(c.reply.text, "standby: tcp://b:1 serves, with epoch 2");
	cr_assert_eq(attach(1, 0), 0);
	cr_assert(serves(1));
	cr_assert_eq(c.renewed[1], 0);
}

/* Who cannot ask believes nobody who asks; the other gives the cluster back to it. */
Test(refsrv_standby, only_one_can_ask__being_asked_proves_nothing)
{
	halves();
	c.cut[1][0] = false;
	rest(5 * SEC);
	cr_assert_eq(c.renewed[0], 0);
	beat(0, 0);
	beat(1, 1);
	rest(6 * SEC);
	cr_assert_eq(c.renewed[1], 1);
	cr_assert_eq(attach(1, 1), TH_E_NO_SERVER);
	cr_assert_eq(attach(0, 1), 0);
	beat(0, 0);
}

Test(refsrv_standby, only_one_can_ask__its_answer_is_enough)
{
	halves();
	c.cut[0][1] = false;
	rest(1100 * MS);
	cr_assert_eq(c.renewed[0], 1);
	cr_assert_str_eq(why_not(0), "standby: tcp://b:1 serves, with epoch 2");
}

Test(refsrv_standby, halves_of_one_epoch__one_is_over)
{
	/* Neither has heard of the other's epoch. */
	begin(2);
	cut(0, 1, true);
	rest(4 * SEC);
	cr_assert_eq(attach(0, 0), 0);
	cr_assert_eq(attach(1, 1), 0);
	cr_assert_eq(c.agents[0].epoch, c.agents[1].epoch);
	cut(0, 1, false);
	rest(2 * SEC);
	cr_assert_eq(c.renewed[0], 1, "it has the lower number");
	cr_assert_eq(c.renewed[1], 0);
	cr_assert(serves(1) && !serves(0));
}

/* ---- giving back ----------------------------------------------------------------------------- */

Test(refsrv_standby, first_comes_back_empty__waits_and_serves_after_ten_seconds)
{
	begin(2);
	end(0);
	rest(4 * SEC);
	cr_assert_eq(attach(1, 0), 0);
	start(0);
	rest(9 * SEC);
	cr_assert(serves(1) && !serves(0));
	beat(1, 0);
	rest(2 * SEC);
	cr_assert(serves(0) && !serves(1));
	cr_assert_eq(c.renewed[1], 1);
	cr_assert_eq(attach(0, 0), 0);
	cr_assert_eq(c.agents[0].epoch, 2);
}

Test(refsrv_standby, first_comes_back_again_and_again__is_not_waited_on)
{
	begin(2);
	end(0);
	rest(4 * SEC);
	cr_assert_eq(attach(1, 0), 0);
	for (uint32_t i = 0; i < 5; i++) {
		start(0);
		rest(6 * SEC);
		end(0);
		rest(100 * MS);
		start(0);
		rest(6 * SEC);
		end(0);
	}
	cr_assert_eq(c.renewed[1], 0);
	beat(1, 0);
}

Test(refsrv_standby, first_comes_back__nobody_attached_to_the_second__serves_at_once)
{
	begin(2);
	end(0);
	rest(4 * SEC);
	cr_assert(serves(1));
	start(0);
	rest(1100 * MS);
	cr_assert(serves(0) && !serves(1));
	cr_assert_eq(c.renewed[1], 0);
}

/* ---- standing still -------------------------------------------------------------------------- */

Test(refsrv_standby, follower_stood_still__has_not_heard_silence)
{
	begin(2);
	stop(1, 60 * SEC);
	cr_assert_not(serves(1));
	for (uint32_t i = 0; i < 100; i++) {
		rest(100 * MS);
		cr_assert_not(serves(1));
	}
}

Test(refsrv_standby, first_stood_still_for_a_minute__is_over_when_it_hears_of_the_other)
{
	begin(2);
	cr_assert_eq(attach(0, 0), 0);
	poll(0, 0);
	rest(SEC);
	stop(0, 5 * SEC);
	rest(SEC);
	beat(0, 0);
	cr_assert_eq(c.renewed[0], 0, "nobody has gone to the other one");
	stop(0, 60 * SEC);
	rest(1100 * MS);
	cr_assert_eq(c.renewed[0], 0);
	cr_assert(!serves(1), "the first is there again");
	c.stopped[0] = true;
	rest(10 * SEC);
	cr_assert_eq(attach(1, 0), 0);
	c.stopped[0] = false;
	rest(600 * MS);
	cr_assert_eq(c.renewed[0], 1);
	cr_assert(serves(1) && !serves(0));
	beat(1, 0);
	rest(12 * SEC);
	cr_assert(serves(0) && !serves(1));
	cr_assert_eq(attach(0, 0), 0);
}

Test(refsrv_standby, first_stood_still_and_the_other_died__an_agent_says_so)
{
	begin(2);
	cr_assert_eq(attach(0, 0), 0);
	cr_assert_eq(attach(0, 1), 0);
	rest(SEC);
	c.stopped[0] = true;
	rest(10 * SEC);
	cr_assert_eq(attach(1, 0), 0);
	end(1);
	rest(50 * SEC);
	stop(0, 0);
	cr_assert_eq(attach(0, 0), TH_E_NO_SERVER);
	cr_assert(c.reply.unknown_agent);
	cr_assert(strstr(c.reply.text, "attached to a later server, with epoch 2"));
	cr_assert_eq(c.renewed[0], 1);
	rest(2 * SEC);
	cr_assert_eq(attach(0, 0), 0);
	cr_assert_eq(c.agents[0].epoch, 3);
	cr_assert_eq(attach(0, 1), 0);
}

Test(refsrv_standby, one_agent_was_away__those_that_stayed_keep_their_server)
{
	begin(2);
	cr_assert_eq(attach(0, 0), 0);
	cr_assert_eq(attach(0, 1), 0);
	cut(0, 1, true);
	rest(4 * SEC);
	cr_assert_eq(attach(1, 1), 0);
	end(1);
	rest(SEC);
	beat(0, 0);
	cr_assert_eq(attach(0, 1), 0);
	cr_assert_eq(c.agents[1].epoch, 3);
	beat(0, 0);
	cr_assert_eq(c.renewed[0], 0);
}

/* ---- what nobody should say ------------------------------------------------------------------ */

Test(refsrv_standby, hostile_values__refused_or_taken_for_no_answer)
{
	struct ctl_request other = {.kind = CTL_HELLO,
		.u.hello = {.protocol_min = TH_PROTOCOL_MIN,
			.protocol_max = TH_PROTOCOL_MAX,
			.server_inc = 99,
			.epoch = UINT32_MAX,
			.serving = true}};
	struct ctl_hello_reply answer = {.server_inc = 99, .epoch = UINT32_MAX, .serving = true};
	struct refsrv_out out;

	begin(2);
	cr_assert_eq(attach(0, 0), 0);
	cr_assert_eq(request(0, AGENTS, &other), TH_E_INVALID);
	refsrv_probed(c.servers[0], c.now_ns, 1, &answer, &out);
	take(0, &out);
	answer = (struct ctl_hello_reply){.epoch = 5, .serving = true};
	refsrv_probed(c.servers[0], c.now_ns, 1, &answer, &out);
	take(0, &out);
	answer.server_inc = 99;
	refsrv_probed(c.servers[0], c.now_ns, 7, &answer, &out);
	take(0, &out);
	refsrv_probed(c.servers[0], c.now_ns, UINT32_MAX, &answer, &out);
	take(0, &out);
	refsrv_probed(c.servers[0], c.now_ns, 0, &answer, &out);
	take(0, &out);
	cr_assert_eq(c.renewed[0], 0);
	beat(0, 0);
	/* The highest there is can still be followed, when it is one of the list that has it. */
	answer.epoch = TH_EPOCH_MAX;
	refsrv_probed(c.servers[0], c.now_ns, 1, &answer, &out);
	take(0, &out);
	cr_assert_eq(c.renewed[0], 1);
	rest(4 * SEC);
	cr_assert_eq(attach(0, 0), 0);
}

static struct ctl_request
stranger(uint64_t inc)
{
	return (struct ctl_request){.kind = CTL_HELLO,
		.u.hello = {.protocol_min = TH_PROTOCOL_MIN,
			.protocol_max = TH_PROTOCOL_MAX,
			.server_inc = inc,
			.epoch = 1000,
			.serving = true}};
}

Test(refsrv_standby, anybody_says_that_he_serves__nobody_moves)
{
	begin(2);
	cr_assert_eq(attach(0, 0), 0);
	poll(0, 0);
	for (uint32_t i = 0; i < 20; i++) {
		struct ctl_request hello = stranger(99 + i);
		cr_assert_eq(request(0, AGENTS, &hello), 0);
		cr_assert_eq(request(1, AGENTS, &hello), 0);
		rest(300 * MS);
		beat(0, 0);
	}
	cr_assert_eq(c.renewed[0] + c.renewed[1], 0);
	cr_assert_eq(c.refused, 0);
	cr_assert(serves(0) && !serves(1));
	/* Nor has the second learnt from it how far the others are. */
	end(0);
	rest(4 * SEC);
	cr_assert_eq(attach(1, 1), 0);
	cr_assert_eq(c.agents[1].epoch, 2);
}

Test(refsrv_standby, anybody_says_that_he_serves__the_others_are_asked_at_once_and_once)
{
	struct ctl_request hello = stranger(99);
	uint32_t asked;

	begin(2);
	cr_assert_eq(attach(0, 0), 0);
	rest(100 * MS);
	asked = c.asked;
	for (uint32_t i = 0; i < 20; i++)
		cr_assert_eq(request(0, AGENTS, &hello), 0);
	cr_assert_eq(c.asked, asked + 1);
}

/* Each stands in the other's list, by mistake. */
Test(refsrv_standby, servers_of_two_clusters__are_nothing_to_each_other)
{
	struct ctl_hello_reply answer = {
		.server_inc = 99, .epoch = 1000, .serving = true, .cluster = "blue"};
	struct refsrv_out out;

	c = (struct cluster){.count = 2, .clusters = {"red", "blue"}, .now_ns = 100 * SEC};
	start(0);
	start(1);
	rest(4 * SEC);
	cr_assert(serves(0) && serves(1));
	cr_assert_eq(attach(0, 0), 0);
	cr_assert_eq(attach(1, 1), 0);
	/* Nor does an answer count, should one come. */
	refsrv_probed(c.servers[0], c.now_ns, 1, &answer, &out);
	take(0, &out);
	rest(20 * SEC);
	beat(0, 0);
	beat(1, 1);
	cr_assert_eq(c.renewed[0] + c.renewed[1], 0);
}

Test(refsrv_standby, first_agent_says_that_it_knows_this_life__is_attached_all_the_same)
{
	begin(2);
	c.agents[0].server_inc = c.incs[0];
	cr_assert_eq(attach(0, 0), 0);
	cr_assert_eq(c.agents[0].epoch, 1);
}
