/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, after a former server was lost: what an agent says of its sessions and cannot be true.
 * Whatever it is, others are not harmed by it, and what is not believed costs a bounded amount.
 */
#include "server/core/refsrv_state.h"
#include "tests/support/core/refsrv_former.h"
#include "tests/unit/server/refsrv_fixture.h"

static void
setup(void)
{
	former_world(&w, &a, &b, NULL);
}

TestSuite(refsrv_rejoin_hostile, .init = setup, .fini = teardown);

static void
refused(const struct ctl_rejoin *said, int code, const char *why)
{
	cr_assert_eq(former_rejoin(&w, a, said), code, "%s", w.reply.text);
	cr_assert(strstr(w.reply.text, why), "%s", w.reply.text);
}

/* ---- numbers ---- */

Test(refsrv_rejoin_hostile, number__none_or_of_this_life_or_given_already__refused)
{
	static const char none[] = "without the numbers that the former server gave it";
	static const char at_once[] = "another server, which served at the same time as this one";
	static const char twice[] = "comes back as session";
	struct ctl_rejoin said = former_holds("p", 0, 1, 7), other = former_holds("q", 0, 1, 7);
	struct world_member own = world_member(&w, b, "o", 0, 1);
	said.sid = 0;
	refused(&said, TH_E_INVALID, none);
	said.sid = own.sid;
	refused(&said, TH_E_GROUP_BROKEN, at_once);
	said.sid = own.sid + 1000;
	refused(&said, TH_E_GROUP_BROKEN, at_once);
	said = former_holds("p", 0, 1, 7);
	said.group_inc = 0;
	refused(&said, TH_E_INVALID, none);
	said.group_inc = own.sid;
	refused(&said, TH_E_GROUP_BROKEN, at_once);
	/* Another's session is not touched. */
	said = former_holds("p", 0, 1, 7);
	former_back(&w, b, &other);
	said.sid = other.sid;
	refused(&said, TH_E_GROUP_BROKEN, twice);
	said.gone = true;
	refused(&said, TH_E_GROUP_BROKEN, twice);
	cr_assert_eq(HASH_COUNT(w.server->members), 2);
	cr_assert(former_listed(&w, 7));
}

Test(refsrv_rejoin_hostile, leg__of_two_readers__the_second_has_none)
{
	struct ctl_rejoin s = former_holds("s", 0, 1, 7);
	struct ctl_rejoin one = former_fills("p", 0, 1, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin two = former_fills("q", 0, 1, 7, FORMER_LEG(1), "s");
	former_back(&w, b, &s);
	struct world_member m1 = former_back(&w, a, &one), m2 = former_back(&w, b, &two);
	struct ctl_event event;
	cr_assert_eq(world_leg_end(&w, b, FORMER_LEG(1), 0, false, WORLD_CHUNKS), TH_E_INVALID);
	cr_assert_not(world_ended(&w, &m2));
	former_finish(&w, &m1, FORMER_LEG(1), 1);
	succeeded(&m1);
	cr_assert(world_take(&w, b, CTL_EV_REROUTE, m2.sid, &event), "it gets one of its own");
	finished(&m2, event.u.reroute.grant.leg);
}

Test(refsrv_rejoin_hostile, legs__in_a_circle__nobody_waits_for_himself)
{
	struct ctl_rejoin s = former_holds("s", 0, 1, 7);
	struct ctl_rejoin one = former_fills("p", 0, 1, 7, FORMER_LEG(1), "q");
	struct ctl_rejoin two = former_fills("q", 0, 1, 7, FORMER_LEG(2), "p");
	struct ctl_rejoin self = former_fills("r", 0, 1, 7, FORMER_LEG(3), "r");
	struct world_member m1 = former_back(&w, a, &one), m2 = former_back(&w, b, &two);
	struct world_member m3 = former_back(&w, b, &self);
	former_back(&w, b, &s);
	cr_assert_eq(former_said(&w, a, 1), 0);
	cr_assert_eq(former_said(&w, b, 3), 0);
	world_sleep(&w, 3 * SEC);
	former_finish(&w, &m1, FORMER_LEG(1), 1);
	former_finish(&w, &m2, FORMER_LEG(2), 1);
	former_finish(&w, &m3, FORMER_LEG(3), 1);
	succeeded(&m1);
	succeeded(&m2);
	succeeded(&m3);
}

Test(refsrv_rejoin_hostile, agent__unknown_or_of_a_former_attachment__refused)
{
	struct ctl_request request = {
		.kind = CTL_REJOIN, .agent_inc = 4711, .request_no = 1, .attach_no = 3};
	request.u.rejoin = former_holds("p", 0, 1, 7);
	cr_assert_eq(world_repeat(&w, a, &request), TH_E_NO_SERVER);
	cr_assert(w.reply.unknown_agent);
	request.agent_inc = w.agents[a].inc;
	request.secret = world_secret(w.agents[a].inc);
	request.request_no = ++w.agents[a].request_no;
	request.attach_no = w.agents[a].attach_no - 1;
	cr_assert_eq(world_repeat(&w, a, &request), TH_E_NO_SERVER);
	request.kind = CTL_REJOINED;
	cr_assert_eq(world_repeat(&w, a, &request), TH_E_NO_SERVER);
	cr_assert_not(former_listed(&w, 7));
}

/* ---- two things that cannot both be true ---- */

static void
two_things(const struct ctl_rejoin *said)
{
	refused(said, TH_E_INVALID, "says two things of itself that cannot both be true");
	cr_assert_eq(HASH_COUNT(w.server->members), 0);
}

Test(refsrv_rejoin_hostile, says_two_things__refused)
{
	struct ctl_known_outcome known[2] = {{.op_seq = 1, .kind = CTL_OP_PUBLISH}};
	const struct ctl_rejoin holds = former_holds("p", 0, 1, 7);
	const struct ctl_rejoin fills = former_fills("p", 0, 1, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin said = holds;
	said.next_op_seq = 0;
	two_things(&said);
	said = holds, said.registered = false;
	two_things(&said);
	said = holds, said.reg.layout = (struct th_hash){0, 0};
	two_things(&said);
	said = holds, said.reg.manifest = (struct th_hash){0, 0};
	two_things(&said);
	said = holds, said.gen = 2; /* it has not called that */
	two_things(&said);
	said = holds, said.gen = CTL_OP_AUTOMATIC - 1;
	two_things(&said);
	said = holds, said.gen = 0;
	two_things(&said);
	said = fills, said.registered = false;
	two_things(&said);
	said = fills, said.held = (struct th_version){1, 6};
	two_things(&said);
	said = fills, said.op_seq = 0, said.next_op_seq = 1;
	two_things(&said);
	said = fills, said.op_seq = 2;
	two_things(&said);
	said = fills, said.op_seq = UINT64_MAX, said.next_op_seq = 0;
	two_things(&said);
	said = fills, said.chunks = WORLD_CHUNKS + 1;
	two_things(&said);
	/* Ends of what it has not called, or out of order. */
	said = holds, said.outcomes = known, said.num_outcomes = 1, known[0].op_seq = 2;
	two_things(&said);
	known[0].op_seq = UINT64_MAX;
	two_things(&said);
	known[0].op_seq = 0;
	two_things(&said);
	said.next_op_seq = 9, said.num_outcomes = 2, known[0].op_seq = 3, known[1].op_seq = 3;
	two_things(&said);
	known[1].op_seq = 2;
	two_things(&said);
}

/* One whose words fit by themselves, beside one that knows the end of what nobody has called. */
Test(refsrv_rejoin_hostile, an_end_of_what_nobody_has_called__no_harm)
{
	struct ctl_known_outcome known = {.op_seq = 2, .kind = CTL_OP_PUBLISH, .spec = "8"};
	struct ctl_rejoin one = former_shard("p", 0, 2), two = former_shard("p", 1, 2);
	one.next_op_seq = two.next_op_seq = 2;
	one.outcomes = &known;
	one.num_outcomes = 1;
	cr_assert_eq(former_rejoin(&w, a, &one), TH_E_INVALID);
	former_back(&w, b, &two);
}

Test(refsrv_rejoin_hostile, bad_open__refused)
{
	struct ctl_rejoin said = former_holds("p", 0, 1, 7);
	said.open.num_shards = 0;
	refused(&said, TH_E_INVALID, "shard");
	said.open.num_shards = TH_SHARDS_MAX + 1;
	refused(&said, TH_E_INVALID, "shard");
	said.open.num_shards = said.open.shard = 3;
	refused(&said, TH_E_INVALID, "shard");
	said = former_holds("p", 0, 1, 7);
	said.open.model[0] = '\0';
	refused(&said, TH_E_INVALID, "name");
	said = former_holds("p", 0, 1, 7);
	strcpy(said.open.retain, "sometimes");
	refused(&said, TH_E_INVALID, "retain");
}

/* ---- members that do not fit ---- */

/* The first is told as well, and the group is broken for everybody. */
static void
does_not_fit(const struct ctl_rejoin *said)
{
	struct ctl_rejoin first = former_holds("p", 0, 3, 7), third = former_holds("p", 2, 3, 7);
	struct world_member m = former_back(&w, b, &first);

	refused(said, TH_E_GROUP_BROKEN, "does not fit to what the others say of the group");
	former_broken(&w, &m, "its members contradict each other");
	refused(&third, TH_E_GROUP_BROKEN, "its members contradict each other");
}

Test(refsrv_rejoin_hostile, fits_not__other_number_of_shards)
{
	struct ctl_rejoin said = former_holds("p", 1, 2, 7);
	said.group_inc = former_holds("p", 0, 3, 7).group_inc;
	does_not_fit(&said);
}

Test(refsrv_rejoin_hostile, fits_not__more_shards_than_the_group_has)
{
	struct ctl_rejoin said = former_holds("p", 900, 1024, 7);
	does_not_fit(&said);
}

Test(refsrv_rejoin_hostile, fits_not__other_lineage)
{
	struct ctl_rejoin said = former_holds("p", 1, 3, 7);
	said.open.lineage = 2;
	does_not_fit(&said);
}

Test(refsrv_rejoin_hostile, fits_not__other_launch)
{
	struct ctl_rejoin said = former_holds("p", 1, 3, 7);
	strcpy(said.open.launch_id, "another");
	does_not_fit(&said);
}

Test(refsrv_rejoin_hostile, fits_not__a_shard_twice)
{
	struct ctl_rejoin said = former_holds("p", 0, 3, 7);
	said.sid++;
	does_not_fit(&said);
}

Test(refsrv_rejoin_hostile, to_a_group_that_is_live__refused_and_it_goes_on)
{
	struct ctl_rejoin first = former_holds("p", 0, 1, 7), late = first;
	struct world_member m = former_back(&w, b, &first);
	late.sid++;
	refused(&late, TH_E_GROUP_BROKEN, "does not fit");
	cr_assert_not(former_is_broken(&w, &m));
	late.gone = true;
	refused(&late, TH_E_GROUP_BROKEN, "does not fit");
	cr_assert_not(former_is_broken(&w, &m), "what is held, but broken");
	late.held.version = TH_NO_VERSION;
	cr_assert_eq(former_rejoin(&w, a, &late), 0);
	cr_assert_not(former_is_broken(&w, &m), "all of its shards are there");
	cr_assert(former_listed(&w, 7));
}

/* ---- between REJOIN and the rest of the group ---- */

Test(refsrv_rejoin_hostile, registers_another_layout_meanwhile__refused)
{
	struct ctl_rejoin one = former_fills("p", 0, 2, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin two = former_holds("q", 1, 2, 7);
	struct ctl_request request = {.kind = CTL_UNREGISTER};
	one.chunks = WORLD_CHUNKS - 1;
	struct world_member m = former_back(&w, a, &one), q = former_back(&w, a, &two);
	request.u.unregister_sid = m.sid;
	cr_assert_eq(world_request(&w, a, &request), TH_E_STATE);
	request.u.unregister_sid = q.sid;
	cr_assert_eq(world_request(&w, a, &request), TH_E_STATE);
	cr_assert_eq(world_register(&w, a, m.sid, 5), TH_E_STATE);
	cr_assert_eq(world_register(&w, a, q.sid, 5), TH_E_STATE);
}

Test(refsrv_rejoin_hostile, unregisters_what_it_did_not_use_meanwhile__goes_on)
{
	struct ctl_rejoin one = former_shard("p", 0, 2), two = former_shard("p", 1, 2);
	struct ctl_request request = {.kind = CTL_UNREGISTER};
	struct world_member m = former_back(&w, a, &one);
	request.u.unregister_sid = m.sid;
	cr_assert_eq(world_request(&w, a, &request), 0);
	former_back(&w, b, &two);
	cr_assert_not(former_is_broken(&w, &m));
	world_call(&w, &m, CTL_OP_REPLICATE, "7", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &m).code, TH_E_STATE);
}

Test(refsrv_rejoin_hostile, requests_of_a_call_that_is_not_there__nothing)
{
	struct ctl_rejoin one = former_fills("p", 0, 2, 7, FORMER_LEG(1), "s");
	struct ctl_rejoin two = former_fills("p", 1, 2, 7, FORMER_LEG(2), "s");
	struct ctl_ev_part drain = {.sid = one.sid, .gen = 1, .drain_no = 5};
	struct world_member m = former_back(&w, a, &one), foreign = m;
	cr_assert_eq(world_prepared(&w, &m, 0), 0);
	cr_assert_eq(world_drain_done(&w, a, &drain), 0);
	cr_assert_eq(world_leg_end(&w, a, FORMER_LEG(9), 0, false, WORLD_CHUNKS), 0);
	/* Its leg's end, as another agent tells it. */
	cr_assert_eq(world_leg_end(&w, b, FORMER_LEG(1), TH_E_LIMIT, false, 0), 0);
	/* Such an end as cannot be. */
	cr_assert_eq(world_leg_end(&w, a, FORMER_LEG(1), 0, false, WORLD_CHUNKS + 5), 0);
	foreign.agent = b;
	cr_assert_eq(world_content(&w, &foreign, 9), TH_E_INVALID);
	cr_assert_eq(world_op(&w, b, m.sid, 2, CTL_OP_LIST, "", TH_FOREVER), TH_E_STATE);
	former_back(&w, b, &two);
	cr_assert_not(world_ended(&w, &m));
	world_finish(&w, &m, FORMER_LEG(1));
	cr_assert_not(world_ended(&w, &m), "the other shard's is still running");
}

/* ---- inventories ---- */

Test(refsrv_rejoin_hostile, rejoined__twice_or_of_nobody_or_with_a_wrong_count__no_harm)
{
	struct ctl_rejoin said = former_holds("p", 0, 1, 7), late = former_holds("q", 0, 1, 7);
	uint32_t fresh = world_agent(&w);
	cr_assert_eq(former_said(&w, fresh, UINT32_MAX), 0, "it brings nothing");
	cr_assert_eq(former_said(&w, a, UINT32_MAX), 0);
	cr_assert_eq(former_said(&w, a, 0), 0);
	cr_assert_eq(w.server->num_inventories_due, 1, "b's");
	cr_assert_eq(former_said(&w, b, 0), 0);
	cr_assert_eq(w.server->num_inventories_due, 0);
	world_sleep(&w, 3 * SEC);
	cr_assert_not(w.server->warming);
	/* What comes after it is as good. */
	former_back(&w, a, &said);
	former_back(&w, b, &late);
	cr_assert(former_listed(&w, 7));
}

Test(refsrv_rejoin_hostile, attaches_again_and_again__counted_once)
{
	for (int i = 0; i < 5; i++) {
		w.agents[a].server_inc = 1234;
		cr_assert_eq(world_attach(&w, a, "dc1"), 0);
		cr_assert_eq(w.server->num_inventories_due, 2);
	}
	w.agents[a].silent = true;
	world_sleep(&w, 4 * SEC);
	cr_assert_eq(world_restart(&w, a), 0, "%s", w.reply.text);
	cr_assert_eq(w.server->num_inventories_due, 1, "its new life brings nothing");
}

Test(refsrv_rejoin_hostile, given_up_by_this_server__does_not_come_back_and_holds_no_name)
{
	struct ctl_rejoin said = former_shard("p", 0, 2);
	uint64_t sid;
	former_back(&w, a, &said);
	w.agents[a].silent = true;
	world_sleep(&w, 60 * SEC);
	/* Its groups are broken since, and their names are free for others. */
	cr_assert_eq(world_attach(&w, a, "dc1"), 0);
	refused(&said, TH_E_GROUP_BROKEN, "was given up, because the reference server had heard");
	cr_assert_eq(world_open(&w, b, "m", "p", 0, 1, 1, &sid), 0, "%s", w.reply.text);
}

Test(refsrv_rejoin_hostile, gone_sessions_without_end__are_bounded)
{
	struct refsrv_config config;
	refsrv_config_default(&config);
	config.members_max = 10;
	world_fini(&w);
	world_init(&w, &config);
	a = former_agent(&w);
	for (uint64_t i = 1; i <= 100; i++) {
		struct ctl_rejoin said = former_shard("p", 0, 2);
		said.gone = true;
		said.sid = former_id(1000 + i);
		said.group_inc = former_id(2000 + i);
		said.open.model[0] = (char)('a' + i % 26);
		said.open.model[1] = (char)('a' + i / 26);
		cr_assert_eq(former_rejoin(&w, a, &said), 0);
	}
	cr_assert_leq(HASH_COUNT(w.server->models), 10);
	world_sleep(&w, 31 * SEC);
	cr_assert_eq(HASH_COUNT(w.server->models), 0);
	/* What was remembered is forgotten, and there is room again. */
	struct ctl_rejoin said = former_shard("p", 0, 2), rest = former_shard("p", 1, 2);
	said.gone = true;
	cr_assert_eq(former_rejoin(&w, a, &said), 0);
	refused(&rest, TH_E_GROUP_BROKEN, "was closed or broken");
}

Test(refsrv_rejoin_hostile, gone__of_a_group_of_one__nothing_is_kept)
{
	struct ctl_rejoin said = former_shard("p", 0, 1);
	said.gone = true;
	cr_assert_eq(former_rejoin(&w, a, &said), 0);
	cr_assert_eq(HASH_COUNT(w.server->models), 0);
}

Test(refsrv_rejoin_hostile, more_sessions_than_are_allowed__refused)
{
	struct refsrv_config config;
	refsrv_config_default(&config);
	config.members_max = 2;
	world_fini(&w);
	world_init(&w, &config);
	a = former_agent(&w);
	for (char name[] = "a"; name[0] < 'c'; name[0]++) {
		struct ctl_rejoin said = former_holds(name, 0, 1, 7);
		former_back(&w, a, &said);
	}
	struct ctl_rejoin said = former_holds("c", 0, 1, 7);
	refused(&said, TH_E_LIMIT, "2");
}

/* Every field at its ends, in every combination that the wire lets through: nothing falls. */
Test(refsrv_rejoin_hostile, anything__in_any_combination__nothing_falls)
{
	static const uint64_t seqs[] = {1, 1, 2, 2, 2, 2, 3, 67, UINT64_MAX};
	static const uint64_t versions[] = {7, 7, TH_NO_VERSION - 1, TH_NO_VERSION};
	struct ctl_known_outcome known[2];
	uint64_t n = 0;

	for (uint32_t i = 0; i < 40000; i++) {
		struct ctl_rejoin said;
		/* Mostly both shards say the same, or hardly any group would be built. */
		uint64_t r = (i % 7 == 0 ? i + 1000000 : i / 2 + 1) * UINT64_C(0x9e3779b97f4a7c15);
		char name[2] = {(char)('a' + i / 2 % 20), '\0'};
		r ^= r >> 29;
		r *= UINT64_C(0xbf58476d1ce4e5b9);
		r ^= r >> 32;
		said = former_holds(name, i % 2, 2, versions[r & 3]);
		said.sid = former_id(10000 + ++n);
		said.group_inc = former_id(500000000 + n / 40 * 20 + i / 2 % 20);
		said.registered = (r >> 2 & 15) != 0;
		said.next_op_seq = seqs[(r >> 6) % TH_ARRAY_LEN(seqs)];
		said.gen = seqs[(r >> 12) % TH_ARRAY_LEN(seqs)];
		said.reg.num_chunks = (r >> 16 & 7) == 0 ? 0 : WORLD_CHUNKS;
		said.refused = (r >> 19 & 7) == 0;
		said.hashed = (r >> 22 & 1) != 0;
		said.went = (r >> 23 & 1) != 0;
		said.op_seq = said.next_op_seq - 1;
		said.kind = (r >> 24 & 1) != 0 ? CTL_OP_REPLICATE : CTL_OP_UPDATE;
		said.version = (struct th_version){r >> 25 & 1, versions[r >> 26 & 1]};
		if (said.went && (r >> 27 & 3) != 0)
			said.held.version = TH_NO_VERSION;
		said.done = (r >> 29 & 1) != 0;
		said.chunks = (uint32_t)(r >> 30 & 15);
		said.cancelled = (r >> 34 & 7) == 0;
		said.leg = (r >> 37 & 3) == 0 ? 0 : FORMER_LEG(r >> 39 & 15);
		said.leg_stops = (r >> 43 & 3) == 0;
		said.source_sid = said.sid - (r >> 45 & 15);
		said.source_gen = seqs[(r >> 49) % TH_ARRAY_LEN(seqs)];
		for (uint32_t k = 0; k < 2; k++) {
			known[k] = (struct ctl_known_outcome){
				.op_seq = said.next_op_seq - 2 + k,
				.kind = 1 + (uint32_t)(r >> (50 + k) & 3),
				.code = (r >> (52 + k) & 3) == 0 ? TH_E_TIMEOUT : 0,
				.updated = (r >> (54 + k) & 1) != 0,
				.went = (r >> (56 + k) & 1) != 0,
				.version = {1, versions[r >> 58 & 3]},
			};
			strcpy(known[k].spec, "7");
		}
		said.outcomes = known;
		said.num_outcomes = (uint32_t)(r >> 61 & 1) * 2;
		uint32_t agent = r >> 62 & 1 ? a : b;
		if (former_rejoin(&w, agent, &said) == 0 && (r >> 63) != 0)
			world_leg_end(&w, agent, said.leg, 0, false, WORLD_CHUNKS);
		if (i % 40 != 39)
			continue;
		/* Their agents die, and everything with them. */
		w.agents[a].silent = w.agents[b].silent = true;
		world_sleep(&w, 4 * SEC);
		cr_assert_eq(world_restart(&w, a), 0, "%s", w.reply.text);
		cr_assert_eq(world_restart(&w, b), 0, "%s", w.reply.text);
	}
	world_sleep(&w, 40 * SEC);
	cr_assert_eq(HASH_COUNT(w.server->members), 0);
	cr_assert_eq(HASH_COUNT(w.server->models), 0);
	cr_assert_eq(HASH_COUNT(w.server->legs), 0);
}
