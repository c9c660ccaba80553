/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv and agents that lie, repeat, reorder or invent: each request gets a code and a sentence,
 * or is ignored because it says nothing new, and nobody else is hurt.
 *
 * Elsewhere: repeats (refsrv_repeat), digests (refsrv_content), sessions of others, names, shard
 * counts and limits (refsrv_session), order of operations (refsrv_op), PREPARED (refsrv_replicate),
 * LEG_END (refsrv_failure), what is no message at all (convert_hostile).
 */
#include "tests/unit/server/refsrv_fixture.h"

static struct world_member source, reader;

static void
setup(void)
{
	world_init(&w, NULL);
	new_agents(3);
	source = world_member(&w, a, "s", 0, 1);
	reader = world_member(&w, b, "r", 0, 1);
	world_publish(&w, &source, "1");
}

TestSuite(refsrv_hostile, .init = setup, .fini = teardown);

static uint32_t
chunks_done(const struct world_member *m)
{
	const struct ctl_inspection *all = refsrv_inspect(w.server, w.now_ns);

	for (uint32_t i = 0; i < all->num_members; i++) {
		if (all->members[i].sid == m->sid)
			return all->members[i].chunks_done;
	}
	return UINT32_MAX;
}

/* ---- unknown ---- */

Test(refsrv_hostile, request__of_unknown_kind__invalid)
{
	for (uint32_t kind = 200; kind < 203; kind++) {
		struct ctl_request request = {.kind = (enum ctl_request_kind)kind};
		cr_assert_eq(world_request(&w, a, &request), TH_E_INVALID);
		cr_assert(strstr(w.reply.text, "does not know request kind") != NULL);
	}
}

Test(refsrv_hostile, op__of_unknown_kind_or_endless_name__invalid_and_no_number_is_used_up)
{
	struct ctl_request request = {.kind = CTL_OP};

	request.u.op = (struct ctl_op){.sid = reader.sid, .op_seq = 1, .kind = 77};
	cr_assert_eq(world_request(&w, b, &request), TH_E_INVALID);
	request.u.op.kind = 0;
	cr_assert_eq(world_request(&w, b, &request), TH_E_INVALID);
	request.u.op.kind = CTL_OP_REPLICATE;
	memset(request.u.op.spec, '1', sizeof(request.u.op.spec));
	cr_assert_eq(world_request(&w, b, &request), TH_E_INVALID);
	world_replicate(&w, &reader, "1");
}

Test(refsrv_hostile, op__version_that_is_no_number__invalid_for_its_group)
{
	static const char *const specs[] = {"", "-1", "99999999999999999999", "latest-",
		"latest--1", "latest-99999999999999999999", " 1", "1 ", "0x1", "LATEST"};

	for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
		world_call(&w, &reader, CTL_OP_REPLICATE, specs[i], TH_FOREVER);
		cr_assert_eq(world_outcome(&w, &reader).code, TH_E_INVALID, "\"%s\"", specs[i]);
	}
	world_replicate(&w, &reader, "1");
}

Test(refsrv_hostile, cancel__of_what_is_not_there__no_effect)
{
	struct world_member other = reader;

	for (uint64_t seq = 0; seq < 3; seq++) {
		other.seq = seq * 1000;
		cr_assert_eq(world_cancel(&w, &other), 0);
	}
	world_call(&w, &reader, CTL_OP_REPLICATE, "1", TH_FOREVER);
	other.seq = 2;
	cr_assert_eq(world_cancel(&w, &other), 0);
	cr_assert_not(world_ended(&w, &reader));
}

/* ---- progress ---- */

Test(refsrv_hostile, beat__progress_beyond_the_end_or_backward__clamped_or_ignored)
{
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");

	cr_assert_eq(beat(b, grant.leg, 4), 0);
	cr_assert_eq(chunks_done(&reader), 4);
	cr_assert_eq(beat(b, grant.leg, 2), 0);
	cr_assert_eq(chunks_done(&reader), 4);
	cr_assert_eq(beat(b, grant.leg, UINT32_MAX), 0);
	cr_assert_eq(chunks_done(&reader), WORLD_CHUNKS);
	cr_assert_not(world_ended(&w, &reader), "only LEG_END says that it is complete");
}

Test(refsrv_hostile, beat__of_another_agents_leg__ignored)
{
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");

	cr_assert_eq(beat(c, grant.leg, 9), 0);
	cr_assert_eq(beat(a, grant.leg, 9), 0);
	cr_assert_eq(beat(b, grant.leg + 1, 9), 0);
	cr_assert_eq(beat(b, 0, 9), 0);
	cr_assert_eq(chunks_done(&reader), 0);
}

Test(refsrv_hostile, beat__full_progress_is_no_source_for_more_than_it_has)
{
	struct world_member below = world_member(&w, c, "below", 0, 1);
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");

	cr_assert_eq(beat(b, grant.leg, WORLD_CHUNKS), 0);
	struct ctl_grant next = world_begin(&w, &below, CTL_OP_REPLICATE, "1");
	/* The liar fails; who hangs on it goes on from the source. */
	cr_assert_eq(world_leg_end(&w, b, grant.leg, TH_E_STALE_MEMORY, false, 0), 0);
	if (next.source_sid == reader.sid) {
		struct ctl_event event = taken(&below, CTL_EV_REROUTE);
		cr_assert_eq(event.u.reroute.grant.source_sid, source.sid);
	}
}

/* ---- legs ---- */

Test(refsrv_hostile, leg_end__again_with_another_word__the_first_counts)
{
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");

	finished(&reader, grant.leg);
	cr_assert_eq(world_leg_end(&w, b, grant.leg, TH_E_CHECKSUM, true, 0), 0);
	cr_assert_eq(world_leg_end(&w, b, grant.leg, TH_E_STALE_MEMORY, false, 0), 0);
	cr_assert_eq(chunks_done(&reader), WORLD_CHUNKS);
	cr_assert_not(world_has(&w, b, CTL_EV_CANCEL, reader.sid));
}

Test(refsrv_hostile, leg_end__of_a_leg_that_was_never_granted__no_effect)
{
	cr_assert_eq(world_leg_end(&w, c, 1, 0, false, WORLD_CHUNKS), 0);
	cr_assert_eq(world_leg_end(&w, c, UINT64_MAX, TH_E_CHECKSUM, true, 0), 0);
}

/* ---- layouts ---- */

Test(refsrv_hostile, register__same_layout_with_other_sizes__refused_before_a_byte_moves)
{
	static const char manifest[] = "manifest of layout 0"; /* as world_member says it */
	struct ctl_request request = {.kind = CTL_REGISTER};
	struct world_member liar = {.agent = c, .num_shards = 1};
	struct ctl_register *reg = &request.u.reg;

	cr_assert_eq(world_open(&w, c, "m", "liar", 0, 1, 1, &liar.sid), 0);
	cr_assert_eq(world_put(&w, c, manifest, strlen(manifest), &reg->manifest), 0);
	reg->sid = liar.sid;
	reg->layout = (struct th_hash){.lo = 1, .hi = 1};
	reg->bytes = 1000;
	reg->num_chunks = WORLD_CHUNKS + 1;
	cr_assert_eq(world_request(&w, c, &request), 0);
	world_call(&w, &liar, CTL_OP_REPLICATE, "1", TH_FOREVER);
	cr_assert_eq(world_prepared(&w, &liar, 0), 0);
	cr_assert_eq(world_outcome(&w, &liar).code, TH_E_LAYOUT);
	cr_assert_not(world_has(&w, c, CTL_EV_GO, liar.sid));
}

/* ---- drains ---- */

Test(refsrv_hostile, drain_done__invented__proves_nothing)
{
	struct ctl_grant grant = world_begin(&w, &reader, CTL_OP_REPLICATE, "1");
	struct ctl_ev_part drain = {.sid = source.sid, .gen = source.seq, .drain_no = 0};

	/* Nobody has asked. */
	for (uint64_t number = 0; number < 4; number++) {
		drain.drain_no = number;
		cr_assert_eq(world_drain_done(&w, a, &drain), 0);
	}
	world_call(&w, &source, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct ctl_ev_part asked = world_take_drain(&w, &source);
	/* Another generation, another number, none, another agent. */
	drain = asked;
	drain.gen++;
	cr_assert_eq(world_drain_done(&w, a, &drain), 0);
	drain = asked;
	drain.drain_no++;
	cr_assert_eq(world_drain_done(&w, a, &drain), 0);
	drain.drain_no = 0;
	cr_assert_eq(world_drain_done(&w, a, &drain), 0);
	cr_assert_eq(world_drain_done(&w, b, &asked), TH_E_INVALID);
	cr_assert_not(world_ended(&w, &source));
	world_finish(&w, &reader, grant.leg);
	cr_assert_eq(world_drain_done(&w, a, &asked), 0);
	succeeded(&source);
	/* And once more. */
	cr_assert_eq(world_drain_done(&w, a, &asked), 0);
}

/* ---- events ---- */

Test(refsrv_hostile, poll__acknowledges_what_was_never_sent__invalid)
{
	struct ctl_request request = {.kind = CTL_POLL, .u.poll.last_event = UINT64_MAX};

	cr_assert_eq(world_request(&w, c, &request), TH_E_INVALID);
	cr_assert(strstr(w.reply.text, "sent it only") != NULL);
}
