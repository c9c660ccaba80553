/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, whose bytes a version has: publishers of the same version, with the same bytes and with
 * others, hashed early and late, and the readers that are bound to one of them.
 */
#include "ipc/base/name.h"
#include "tests/unit/server/refsrv_fixture.h"

static struct world_member first, second, reader;

static void
setup(void)
{
	world_init(&w, NULL);
	w.hash_late = true;
	new_agents(3);
	first = world_member(&w, a, "first", 0, 1);
	second = world_member(&w, b, "second", 0, 1);
	reader = world_member(&w, c, "reader", 0, 1);
}

TestSuite(refsrv_content, .init = setup, .fini = teardown);

static void
publish_both(void)
{
	world_publish(&w, &first, "1");
	world_publish(&w, &second, "1");
}

static void
say(const struct world_member *m, uint64_t content)
{
	cr_assert_eq(world_content(&w, m, content), 0, "%s", w.reply.text);
}

/* The replicas of version 1, as one text. */
static const char *
listed(void)
{
	static char text[256];

	text[0] = '\0';
	cr_assert_eq(world_list(&w, a, "m"), 0);
	const struct ctl_listing *listing = &w.reply.u.list;
	for (uint32_t i = 0; i < listing->num_versions; i++) {
		for (uint32_t k = 0; k < listing->versions[i].num_replicas; k++) {
			if (text[0] != '\0')
				strcat(text, " ");
			strcat(text, listing->versions[i].replicas[k].name);
		}
	}
	return text;
}

static void
expect_conflict(struct world_member *m, const char *name)
{
	struct ctl_event event = taken(m, CTL_EV_CONFLICT);
	cr_assert(strstr(event.u.conflict.text, name), "%s", event.u.conflict.text);
	cr_assert_not(world_has(&w, m->agent, CTL_EV_CONFLICT, m->sid));
}

/* ---- who is listed ---- */

Test(refsrv_content, same_bytes__second_joins_when_both_are_known)
{
	publish_both();
	cr_assert_str_eq(listed(), "first");
	say(&second, 7);
	cr_assert_str_eq(listed(), "first");
	say(&first, 7);
	cr_assert_str_eq(listed(), "first second");
	cr_assert_not(world_has(&w, b, CTL_EV_CONFLICT, 0));
	say(&second, 7); /* said again */
	cr_assert_str_eq(listed(), "first second");
}

Test(refsrv_content, other_bytes__second_is_unlisted_and_told_the_first_is_not_hurt)
{
	publish_both();
	say(&first, 7);
	say(&second, 8);
	cr_assert_str_eq(listed(), "first");
	expect_conflict(&second, "first");
	cr_assert_not(world_has(&w, a, CTL_EV_CONFLICT, 0));
	world_call(&w, &second, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct ctl_ev_outcome end = world_outcome(&w, &second);
	cr_assert_eq(end.code, TH_E_VERSION_CONFLICT);
	cr_assert(strstr(end.text, "replica second") && strstr(end.text, "replica first"), "%s",
		end.text);
	cr_assert_eq(end.version.version, 1, "it is held until it is unpublished");
	unpublish(&second);
	unpublish(&first);
	cr_assert_str_eq(listed(), "");
}

Test(refsrv_content, other_bytes_known_first__the_one_that_committed_first_stays)
{
	publish_both();
	say(&second, 8);
	cr_assert_str_eq(listed(), "first");
	say(&first, 7);
	cr_assert_str_eq(listed(), "first");
	expect_conflict(&second, "first");
}

Test(refsrv_content, one_shard_differs__all_members_hear_it_and_get_one_outcome)
{
	struct world_member p[2], q[2];
	for (uint32_t i = 0; i < 2; i++) {
		p[i] = world_member(&w, i == 0 ? a : b, "p", i, 2);
		q[i] = world_member(&w, i == 0 ? b : c, "q", i, 2);
	}
	call_both(p, CTL_OP_PUBLISH, "1");
	call_both(q, CTL_OP_PUBLISH, "1");
	for (uint32_t i = 0; i < 2; i++) {
		succeeded(&p[i]);
		succeeded(&q[i]);
	}
	say(&p[0], 1);
	say(&q[0], 1);
	say(&p[1], 1);
	cr_assert_str_eq(listed(), "p");
	say(&q[1], 2);
	cr_assert_str_eq(listed(), "p");
	for (uint32_t i = 0; i < 2; i++)
		expect_conflict(&q[i], "shard 1");
	call_both(q, CTL_OP_UNPUBLISH, "");
	for (uint32_t i = 0; i < 2; i++)
		cr_assert_eq(world_outcome(&w, &q[i]).code, TH_E_VERSION_CONFLICT);
	world_call(&w, &q[0], CTL_OP_UNPUBLISH, "", TH_FOREVER);
	world_call(&w, &q[1], CTL_OP_UNPUBLISH, "", TH_FOREVER);
	for (uint32_t i = 0; i < 2; i++) {
		world_drained(&w, &q[i]);
	}
	succeeded_both(q);
}

Test(refsrv_content, first_is_gone_before_it_is_known__second_is_the_version)
{
	publish_both();
	say(&second, 8);
	world_call(&w, &reader, CTL_OP_REPLICATE, "1", TH_FOREVER);
	struct ctl_event plan;
	cr_assert(world_take(&w, c, CTL_EV_PLAN, reader.sid, &plan));
	unpublish(&first);
	cr_assert_str_eq(listed(), "second");
	cr_assert_eq(world_prepared(&w, &reader, 0), 0);
	struct ctl_grant grant = world_go(&w, &reader);
	cr_assert_str_eq(grant.source_replica, "second");
	finished(&reader, grant.leg);
	cr_assert_str_eq(listed(), "reader second");
}

Test(refsrv_content, refused__stays_so_when_the_first_is_gone_and_a_third_is_new)
{
	struct world_member third = world_member(&w, c, "third", 0, 1);
	publish_both();
	say(&first, 7);
	say(&second, 8);
	unpublish(&first);
	cr_assert_str_eq(listed(), "");
	world_publish(&w, &third, "1");
	cr_assert_str_eq(listed(), "third");
	say(&third, 9);
	cr_assert_str_eq(listed(), "third");
	/* What was refused is published anew, and is compared anew. */
	world_call(&w, &second, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_eq(world_outcome(&w, &second).code, TH_E_VERSION_CONFLICT);
	unpublish(&second);
	world_publish(&w, &second, "1");
	say(&second, 9);
	cr_assert_str_eq(listed(), "second third");
}

Test(refsrv_content, three_publishers__each_is_compared_with_the_first_that_lives)
{
	struct world_member third = world_member(&w, c, "third", 0, 1);
	publish_both();
	world_publish(&w, &third, "1");
	say(&third, 9);
	say(&second, 8);
	cr_assert_not(world_has(&w, c, CTL_EV_CONFLICT, 0), "nobody knows yet who is first");
	unpublish(&first);
	cr_assert_str_eq(listed(), "second");
	expect_conflict(&third, "second");
}

/* Its reader may finish; who publishes meanwhile, as after a new start, waits for that. */
Test(refsrv_content, first_is_broken__second_is_not_refused_and_follows_it)
{
	publish_both();
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");
	cr_assert_eq(world_leg_end(&w, c, grant.leg, TH_E_STALE_MEMORY, false, 4), 0);
	cr_assert_eq(world_outcome(&w, &reader).code, TH_E_STALE_MEMORY);
	say(&first, 7);
	cr_assert_eq(world_close(&w, &first, true), 0);
	say(&second, 8);
	cr_assert_str_eq(listed(), "");
	cr_assert_not(world_has(&w, b, CTL_EV_CONFLICT, 0));
	world_drained(&w, &first);
	cr_assert_str_eq(listed(), "second");
	cr_assert_not(world_has(&w, b, CTL_EV_CONFLICT, 0));
	world_call(&w, &second, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_not(world_ended(&w, &second));
}

Test(refsrv_content, without_digests__taken_as_the_same)
{
	publish_both();
	say(&first, 0);
	cr_assert_str_eq(listed(), "first second");
	say(&second, 8);
	cr_assert_str_eq(listed(), "first second");
	cr_assert_not(world_has(&w, b, CTL_EV_CONFLICT, 0));
}

/* ---- readers are bound to one content ---- */

static struct ctl_grant
begin_and_fail(void)
{
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");

	cr_assert_str_eq(grant.source_replica, "first");
	cr_assert_eq(world_leg_end(&w, c, grant.leg, TH_E_NO_PATH, true, 4), 0);
	/* Not to the second, of which nobody knows what it has. */
	cr_assert_not(world_has(&w, c, CTL_EV_REROUTE, reader.sid));
	cr_assert_not(world_ended(&w, &reader));
	return grant;
}

Test(refsrv_content, reader__other_source_only_when_it_is_known_to_be_the_same)
{
	publish_both();
	begin_and_fail();
	say(&second, 7);
	cr_assert_not(world_has(&w, c, CTL_EV_REROUTE, reader.sid));
	say(&first, 7);
	struct ctl_event event = taken(&reader, CTL_EV_REROUTE);
	cr_assert_str_eq(event.u.reroute.grant.source_replica, "second");
	finished(&reader, event.u.reroute.grant.leg);
}

Test(refsrv_content, reader__other_bytes_elsewhere__the_version_is_lost_with_its_source)
{
	publish_both();
	begin_and_fail();
	say(&second, 8);
	say(&first, 7);
	cr_assert_not(world_has(&w, c, CTL_EV_REROUTE, reader.sid));
	cr_assert_not(world_ended(&w, &reader), "the first is still there");
	unpublish(&first);
	cr_assert_eq(world_outcome(&w, &reader).code, TH_E_VERSION_LOST);
	cr_assert_str_eq(listed(), "");
}

static int
finish_with(uint64_t leg, uint64_t content)
{
	struct ctl_request request = {.kind = CTL_LEG_END};

	request.u.leg_end.leg = leg;
	request.u.leg_end.chunks_verified = WORLD_CHUNKS;
	request.u.leg_end.content = (struct th_hash){.lo = content, .hi = 1};
	return world_request(&w, c, &request);
}

static void
first_dies(void)
{
	cr_assert_eq(world_close(&w, &first, true), 0);
	world_drained(&w, &first);
}

/* Where the reader of the dead first goes on. */
static uint64_t
taken_over(void)
{
	struct ctl_event event = taken(&reader, CTL_EV_REROUTE);
	cr_assert_str_eq(event.u.reroute.grant.source_replica, "second");
	cr_assert_str_eq(listed(), "reader second");
	return event.u.reroute.grant.leg;
}

Test(refsrv_content, reader__first_dies_before_it_is_known__goes_on_from_the_second)
{
	publish_both();
	begin_and_fail();
	say(&second, 8);
	first_dies();
	cr_assert_eq(finish_with(taken_over(), 8), 0);
	succeeded(&reader);
	cr_assert_str_eq(listed(), "reader second");
}

Test(refsrv_content, reader__first_dies_and_the_second_is_not_known_yet__waits_for_it)
{
	publish_both();
	begin_and_fail();
	first_dies();
	cr_assert_not(world_has(&w, c, CTL_EV_REROUTE, reader.sid));
	cr_assert_not(world_ended(&w, &reader));
	say(&second, 8);
	cr_assert_eq(finish_with(taken_over(), 8), 0);
	succeeded(&reader);
}

Test(refsrv_content, reader__first_dies_and_was_not_the_same__conflict_and_again)
{
	publish_both();
	begin_and_fail();
	say(&second, 8);
	first_dies();
	/* Its beginning is of other bytes: the digests of the whole are those of neither. */
	cr_assert_eq(finish_with(taken_over(), 78), 0);
	cr_assert_eq(world_outcome(&w, &reader).code, TH_E_VERSION_CONFLICT);
	cr_assert_str_eq(listed(), "second");
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");
	cr_assert_eq(finish_with(grant.leg, 8), 0);
	succeeded(&reader);
}

Test(refsrv_content, reader__first_dies_and_it_makes_no_digests__proves_nothing)
{
	publish_both();
	begin_and_fail();
	say(&second, 8);
	first_dies();
	uint64_t leg = taken_over();
	world_finish(&w, &reader, leg);
	cr_assert_eq(world_outcome(&w, &reader).code, TH_E_VERSION_CONFLICT);
}

Test(refsrv_content, reader__has_begun_with_the_first_and_is_read_itself__both_go_on)
{
	publish_both();
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");
	struct world_member below = world_member(&w, b, "below", 0, 1);
	struct ctl_grant next = world_begin(&w, &below, CTL_OP_REPLICATE, "1");
	cr_assert_eq(next.source_sid, reader.sid);
	cr_assert_eq(world_leg_end(&w, c, grant.leg, TH_E_NO_PATH, true, 4), 0);
	say(&second, 8);
	first_dies();
	cr_assert_str_eq(listed(), "below reader second");
	struct ctl_event event = taken(&reader, CTL_EV_REROUTE);
	cr_assert_eq(finish_with(event.u.reroute.grant.leg, 8), 0);
	succeeded(&reader);
	struct ctl_request end = {.kind = CTL_LEG_END};
	end.u.leg_end.leg = next.leg;
	end.u.leg_end.chunks_verified = WORLD_CHUNKS;
	end.u.leg_end.content = (struct th_hash){.lo = 8, .hi = 1};
	cr_assert_eq(world_request(&w, b, &end), 0);
	succeeded(&below);
}

Test(refsrv_content, reader__first_dies_and_the_second_dies_too__lost)
{
	publish_both();
	begin_and_fail();
	first_dies();
	cr_assert_eq(world_close(&w, &second, true), 0);
	world_drained(&w, &second);
	cr_assert_eq(world_outcome(&w, &reader).code, TH_E_VERSION_LOST);
}

Test(refsrv_content, reader__knows_the_content_when_its_publisher_is_gone)
{
	world_publish(&w, &first, "1");
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");
	say(&first, 7);
	cr_assert_eq(finish_with(grant.leg, 7), 0);
	succeeded(&reader);
	unpublish(&first);
	world_publish(&w, &first, "1");
	say(&first, 7);
	cr_assert_str_eq(listed(), "first reader");
	world_publish(&w, &second, "1");
	say(&second, 8);
	cr_assert_str_eq(listed(), "first reader");
	expect_conflict(&second, "reader");
}

/* ---- all is there, and the publisher's agent has not said what it is ---- */

static struct ctl_grant
arrived_early(uint64_t content)
{
	world_publish(&w, &first, "1");
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");
	cr_assert_eq(finish_with(grant.leg, content), 0);
	cr_assert_not(world_ended(&w, &reader), "it succeeds by its own word");
	return grant;
}

Test(refsrv_content, early__succeeds_when_its_publisher_says_the_same)
{
	arrived_early(7);
	say(&first, 7);
	succeeded(&reader);
	cr_assert_str_eq(listed(), "first reader");
}

/* A reader that ends before the publisher has hashed must not decide what was published. */
Test(refsrv_content, early__has_other_bytes__fails_others_are_not_hurt)
{
	struct world_member honest = world_member(&w, b, "honest", 0, 1);
	arrived_early(666);
	struct ctl_grant grant = world_begin(&w, &honest, CTL_OP_REPLICATE, "1");
	say(&first, 7);
	taken(&reader, CTL_EV_CANCEL);
	cr_assert_eq(grant.source_sid, first.sid);
	struct ctl_ev_outcome end = world_outcome(&w, &reader);
	cr_assert_eq(end.code, TH_E_VERSION_CONFLICT);
	cr_assert(strstr(end.text, "is not what was published") != NULL, "%s", end.text);
	struct ctl_request request = {.kind = CTL_LEG_END};
	request.u.leg_end.leg = grant.leg;
	request.u.leg_end.chunks_verified = WORLD_CHUNKS;
	request.u.leg_end.content = (struct th_hash){.lo = 7, .hi = 1};
	cr_assert_eq(world_request(&w, b, &request), 0);
	succeeded(&honest);
	cr_assert_str_eq(listed(), "first honest");
	/* What the publisher has said it cannot unsay. */
	cr_assert_eq(world_content(&w, &first, 8), TH_E_INVALID);
}

Test(refsrv_content, early__publisher_makes_no_digests__succeeds_when_it_says_so)
{
	arrived_early(7);
	say(&first, 0);
	succeeded(&reader);
	cr_assert_str_eq(listed(), "first reader");
}

Test(refsrv_content, early__makes_no_digests_itself__waits_all_the_same)
{
	world_publish(&w, &first, "1");
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");
	world_finish(&w, &reader, grant.leg);
	cr_assert_not(world_ended(&w, &reader));
	say(&first, 7);
	succeeded(&reader);
}

Test(refsrv_content, early__publisher_dies_and_its_agent_says_it__succeeds)
{
	arrived_early(7);
	cr_assert_eq(world_close(&w, &first, true), 0);
	cr_assert_not(world_ended(&w, &reader), "its agent still can");
	say(&first, 7);
	succeeded(&reader);
	world_drained(&w, &first);
	cr_assert_str_eq(listed(), "reader");
}

static void
expect_lost(void)
{
	taken(&reader, CTL_EV_CANCEL);
	struct ctl_ev_outcome end = world_outcome(&w, &reader);
	cr_assert_eq(end.code, TH_E_VERSION_LOST);
	cr_assert(strstr(end.text, "nobody can vouch") != NULL, "%s", end.text);
	cr_assert_eq(world_list(&w, c, "m"), 0);
	cr_assert_eq(w.reply.u.list.num_versions, 0);
}

Test(refsrv_content, early__publisher_has_given_it_up_without_a_word__lost)
{
	arrived_early(7);
	first_dies();
	expect_lost();
}

Test(refsrv_content, early__publishers_agent_is_lost__lost)
{
	arrived_early(7);
	w.agents[a].silent = true;
	world_sleep(&w, 5 * SEC);
	cr_assert_not(world_ended(&w, &reader), "it may come back");
	world_sleep(&w, 6 * SEC);
	expect_lost();
}

Test(refsrv_content, early__second_publisher_is_known__it_vouches_for_the_same_bytes)
{
	publish_both();
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");
	cr_assert_str_eq(grant.source_replica, "first");
	cr_assert_eq(finish_with(grant.leg, 8), 0);
	first_dies();
	cr_assert_not(world_ended(&w, &reader), "the second may be the same");
	say(&second, 8);
	succeeded(&reader);
	cr_assert_str_eq(listed(), "reader second");
}

Test(refsrv_content, early__second_publisher_has_other_bytes__conflict)
{
	publish_both();
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");
	cr_assert_eq(finish_with(grant.leg, 7), 0);
	say(&second, 8);
	first_dies();
	cr_assert_eq(world_outcome(&w, &reader).code, TH_E_VERSION_CONFLICT);
	cr_assert_str_eq(listed(), "second");
}

Test(refsrv_content, reader__says_content_as_if_it_had_published__refused)
{
	arrived_early(7);
	cr_assert_eq(world_content(&w, &reader, 8), TH_E_INVALID);
	cr_assert(strstr(w.reply.text, "only its publisher") != NULL, "%s", w.reply.text);
	cr_assert_eq(world_content(&w, &reader, 7), TH_E_INVALID);
	cr_assert_not(world_ended(&w, &reader));
	say(&first, 7);
	succeeded(&reader);
}

Test(refsrv_content, reader__is_told_what_is_known)
{
	struct world_member honest = world_member(&w, b, "honest", 0, 1);
	struct ctl_event event;
	const struct th_hash seven = {.lo = 7, .hi = 1};
	world_publish(&w, &first, "1");
	world_call(&w, &reader, CTL_OP_REPLICATE, "1", TH_FOREVER);
	cr_assert(world_take(&w, c, CTL_EV_PLAN, reader.sid, &event));
	cr_assert_eq(world_prepared(&w, &reader, 0), 0);
	cr_assert(world_take(&w, c, CTL_EV_GO, reader.sid, &event));
	cr_assert(th_hash_none(event.u.go.content), "nobody knows it yet");
	uint64_t leg = event.u.go.grant.leg;
	say(&first, 7);
	world_call(&w, &honest, CTL_OP_REPLICATE, "1", TH_FOREVER);
	cr_assert(world_take(&w, b, CTL_EV_PLAN, honest.sid, &event));
	cr_assert_eq(world_prepared(&w, &honest, 0), 0);
	cr_assert(world_take(&w, b, CTL_EV_GO, honest.sid, &event));
	cr_assert(th_hash_equal(event.u.go.content, seven));
	/* And whoever began without knowing it, with its next source. */
	world_publish(&w, &second, "1");
	say(&second, 7);
	cr_assert_eq(world_leg_end(&w, c, leg, TH_E_NO_PATH, true, 4), 0);
	cr_assert(world_take(&w, c, CTL_EV_REROUTE, reader.sid, &event));
	cr_assert(th_hash_equal(event.u.reroute.content, seven));
}

Test(refsrv_content, reader__has_other_bytes_than_were_published__conflict_and_again)
{
	world_publish(&w, &first, "1");
	say(&first, 7);
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");
	cr_assert_eq(finish_with(grant.leg, 8), 0);
	cr_assert_eq(world_outcome(&w, &reader).code, TH_E_VERSION_CONFLICT);
	cr_assert_str_eq(listed(), "first");
	grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");
	cr_assert_eq(finish_with(grant.leg, 7), 0);
	succeeded(&reader);
	cr_assert_str_eq(listed(), "first reader");
}

Test(refsrv_content, refused_holder__replicate_says_so_update_takes_what_is_listed)
{
	publish_both();
	say(&first, 7);
	say(&second, 8);
	for (int i = 0; i < 2; i++) {
		world_call(&w, &second, CTL_OP_REPLICATE, "1", TH_FOREVER);
		cr_assert_eq(world_outcome(&w, &second).code, TH_E_VERSION_CONFLICT);
	}
	world_call(&w, &second, CTL_OP_UPDATE, "latest", TH_FOREVER);
	struct ctl_event plan;
	cr_assert(world_take(&w, b, CTL_EV_PLAN, second.sid, &plan));
	cr_assert(plan.u.plan.drain_old);
	cr_assert_eq(world_prepared(&w, &second, 0), 0);
	struct ctl_grant grant = world_go(&w, &second);
	cr_assert_str_eq(grant.source_replica, "first");
	world_finish(&w, &second, grant.leg);
	cr_assert(world_outcome(&w, &second).updated);
	cr_assert_str_eq(listed(), "first second");
}

/* ---- published under a former server ---- */

/* A replica of another agent comes back with version 1, as that server knew it. */
static struct world_member
replica_comes_back(const char *replica, uint64_t sid, uint64_t content, bool published)
{
	struct ctl_request request = {.kind = CTL_REJOIN};
	struct ctl_rejoin *rejoin = &request.u.rejoin;
	struct world_member m = {.agent = world_agent(&w), .num_shards = 1, .sid = sid, .seq = 1};

	rejoin->sid = m.sid;
	rejoin->group_inc = sid + 1;
	rejoin->published = published;
	strcpy(rejoin->open.model, "m");
	strcpy(rejoin->open.replica, replica);
	rejoin->open.num_shards = 1;
	rejoin->open.lineage = 1;
	rejoin->registered = rejoin->hashed = true;
	rejoin->reg = (struct ctl_register){.sid = m.sid,
		.layout = {.lo = 1, .hi = 1},
		.manifest = {.lo = 2, .hi = 1},
		.bytes = 1000,
		.num_chunks = WORLD_CHUNKS};
	rejoin->next_op_seq = 2;
	rejoin->held = (struct th_version){.lineage = 1, .version = 1};
	rejoin->gen = 1;
	rejoin->content = (struct th_hash){.lo = content, .hi = 1};
	rejoin->version.version = rejoin->go.version = TH_NO_VERSION;
	cr_assert_eq(world_request(&w, m.agent, &request), 0, "%s", w.reply.text);
	return m;
}

static struct world_member
comes_back(uint64_t content)
{
	return replica_comes_back("former", 5, content, false);
}

/* Whoever received it there said what the publisher had said, or lies now. */
Test(refsrv_content, comes_back__reader_first_and_with_other_bytes__the_publisher_is_right)
{
	struct world_member received = replica_comes_back("received", 5, 666, false);
	cr_assert_str_eq(listed(), "received");
	struct world_member published = replica_comes_back("published", 15, 7, true);
	cr_assert_str_eq(listed(), "published");
	expect_conflict(&received, "published");
	cr_assert_not(world_has(&w, published.agent, CTL_EV_CONFLICT, 0));
	replica_comes_back("another", 25, 666, false);
	cr_assert_str_eq(listed(), "published");
	replica_comes_back("honest", 35, 7, false);
	cr_assert_str_eq(listed(), "honest published");
}

Test(refsrv_content, comes_back__other_bytes_than_are_read__readers_are_told_and_begin_again)
{
	struct world_member done = world_member(&w, b, "done", 0, 1);

	world_publish(&w, &first, "1");
	say(&first, 8);
	world_replicate(&w, &done, "1");
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");
	comes_back(7);
	cr_assert_str_eq(listed(), "former");
	expect_conflict(&first, "former");
	expect_conflict(&done, "former");
	cr_assert_not(world_has(&w, c, CTL_EV_CONFLICT, reader.sid), "its call says it");
	cr_assert(world_take(&w, c, CTL_EV_CANCEL, reader.sid, &(struct ctl_event){0}));
	cr_assert_eq(world_leg_end(&w, c, grant.leg, TH_E_CANCELLED, false, 3), 0);
	struct ctl_ev_outcome end = world_outcome(&w, &reader);
	cr_assert_eq(end.code, TH_E_VERSION_CONFLICT);
	cr_assert(strstr(end.text, "replica former"), "%s", end.text);
	cr_assert_eq(end.version.version, TH_NO_VERSION);
	grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");
	cr_assert_str_eq(grant.source_replica, "former");
	cr_assert_eq(finish_with(grant.leg, 7), 0);
	succeeded(&reader);
	cr_assert_str_eq(listed(), "former reader");
}

Test(refsrv_content, comes_back__the_same_bytes_as_are_read__nobody_notices)
{
	world_publish(&w, &first, "1");
	say(&first, 7);
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");
	comes_back(7);
	cr_assert_eq(finish_with(grant.leg, 7), 0);
	succeeded(&reader);
	cr_assert_str_eq(listed(), "first former reader");
}

/* ---- reports that do not fit ---- */

Test(refsrv_content, reports__late_foreign_or_contradicting__change_nothing)
{
	struct world_member late, foreign;
	publish_both();
	late = first;
	late.seq = 77;
	say(&late, 9);
	foreign = first;
	foreign.agent = b;
	cr_assert_eq(world_content(&w, &foreign, 9), TH_E_INVALID);
	say(&first, 7);
	cr_assert_eq(world_content(&w, &first, 8), TH_E_INVALID);
	foreign.agent = a;
	foreign.sid = 12345;
	say(&foreign, 9);
	say(&second, 7);
	cr_assert_str_eq(listed(), "first second");
	say(&reader, 9); /* holds nothing */
	cr_assert_str_eq(listed(), "first second");
}
