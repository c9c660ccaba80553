/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, retention over the loss of a server: offload copies come back with their agents, and
 * while the server is warming nothing is given up that may be the last of its version.
 */
#include <stdio.h>

#include "ipc/base/checked.h"
#include "tests/support/core/refsrv_former.h"
#include "tests/unit/server/refsrv_fixture.h"

static void
setup(void)
{
	world_init(&w, NULL);
	w.offload_bytes = UINT64_MAX; /* which they attach with */
	a = former_agent(&w);
	b = former_agent(&w);
	c = former_agent(&w);
}

TestSuite(refsrv_rejoin_offload, .init = setup, .fini = teardown);

/* ---- what agents say ---- */

static struct ctl_request
rejoin_of(const char *replica, uint32_t shard, uint32_t num_shards, uint64_t group_inc)
{
	struct ctl_request request = {.kind = CTL_REJOIN};
	struct ctl_rejoin *said = &request.u.rejoin;

	said->sid = group_inc + 1 + shard;
	said->group_inc = group_inc;
	strcpy(said->open.model, "m");
	snprintf(said->open.replica, sizeof(said->open.replica), "%s", replica);
	said->open.shard = shard;
	said->open.num_shards = num_shards;
	said->open.lineage = 1;
	said->registered = said->hashed = true;
	said->reg = (struct ctl_register){
		.sid = said->sid,
		.layout = {.lo = shard + 1, .hi = 1},
		.manifest = {.lo = shard + 1, .hi = 2},
		.bytes = 1000,
		.num_chunks = WORLD_CHUNKS,
	};
	said->next_op_seq = 2;
	said->held = (struct th_version){.lineage = 1, .version = 7};
	said->gen = 1;
	said->content = (struct th_hash){.lo = 5, .hi = 1};
	said->version.version = said->go.version = TH_NO_VERSION;
	return request;
}

static struct world_member
comes_back(uint32_t agent, struct ctl_request *request)
{
	struct world_member m = {.agent = agent,
		.shard = request->u.rejoin.open.shard,
		.num_shards = request->u.rejoin.open.num_shards,
		.sid = request->u.rejoin.sid,
		.seq = 1};

	cr_assert_eq(world_request(&w, agent, request), 0, "%s", w.reply.text);
	return m;
}

/* A group of one that holds version 7. */
static struct world_member
holder(uint32_t agent, const char *replica, const char *retain, uint64_t group_inc)
{
	struct ctl_request request = rejoin_of(replica, 0, 1, group_inc);

	strcpy(request.u.rejoin.open.retain, retain);
	return comes_back(agent, &request);
}

static struct ctl_request
offload_of(const char *replica, uint32_t shard, uint32_t num_shards)
{
	struct ctl_request request = rejoin_of(replica, shard, num_shards, 700);

	request.u.rejoin.open.reservation = 70;
	return request;
}

static bool
asked(void)
{
	return world_has(&w, a, CTL_EV_RESERVE, 0) || world_has(&w, b, CTL_EV_RESERVE, 0) ||
	       world_has(&w, c, CTL_EV_RESERVE, 0);
}

static void
drained(const struct world_member *m)
{
	world_drained(&w, m);
}

/* ---- while the server is warming ---- */

Test(refsrv_rejoin_offload, warming__last_copy__waits_for_a_claim_that_comes_later)
{
	struct world_member m = holder(a, "p", "", 100);
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_not(asked());
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m.sid));
	struct ctl_request claim = rejoin_of("k", 0, 1, 200);
	strcpy(claim.u.rejoin.open.retain, "latest");
	claim.u.rejoin.next_op_seq = 1;
	claim.u.rejoin.held.version = TH_NO_VERSION;
	comes_back(b, &claim);
	former_all_said(&w);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m.sid));
	cr_assert(asked());
}

Test(refsrv_rejoin_offload, warming__nobody_claims_it__given_up_after_that)
{
	struct world_member m = holder(a, "p", "", 100);
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	world_sleep(&w, 2 * SEC);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m.sid));
	former_all_said(&w);
	cr_assert_not(asked());
	drained(&m);
	succeeded(&m);
}

Test(refsrv_rejoin_offload, warming__another_copy_comes__nothing_is_waited_for)
{
	struct world_member m = holder(a, "p", "latest", 100);
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m.sid));
	holder(b, "r", "", 200);
	drained(&m);
	succeeded(&m);
	cr_assert_not(asked());
}

Test(refsrv_rejoin_offload, warming__deadline__says_why)
{
	struct world_member m = holder(a, "p", "", 100);
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", SEC);
	world_sleep(&w, 2 * SEC);
	struct ctl_ev_outcome end = world_outcome(&w, &m);
	cr_assert_eq(end.code, TH_E_TIMEOUT);
	cr_assert(strstr(end.text, "reference server is new"), "%s", end.text);
}

Test(refsrv_rejoin_offload, dead_worker__the_rest_of_its_group_is_waited_for_then_it_is_copied)
{
	struct ctl_request one = rejoin_of("p", 0, 2, 100), other = rejoin_of("p", 1, 2, 100);
	strcpy(one.u.rejoin.open.retain, "latest");
	strcpy(other.u.rejoin.open.retain, "latest");
	struct world_member m = comes_back(a, &one);
	cr_assert_eq(world_close(&w, &m, true), 0);
	comes_back(b, &other);
	cr_assert(world_has(&w, b, CTL_EV_BROKEN, 0));
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m.sid), "it is the last copy");
	former_all_said(&w);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m.sid));
	cr_assert(world_has(&w, a, CTL_EV_RESERVE, 0) && world_has(&w, b, CTL_EV_RESERVE, 0));
}

Test(refsrv_rejoin_offload, dead_worker__the_rest_does_not_come__drained)
{
	struct ctl_request one = rejoin_of("p", 0, 2, 100);
	struct world_member m = comes_back(a, &one);
	cr_assert_eq(world_close(&w, &m, true), 0);
	former_all_said(&w);
	world_sleep(&w, 40 * SEC);
	drained(&m);
}

Test(refsrv_rejoin_offload, dead_worker__not_retained__drained_when_all_have_come)
{
	struct world_member m = holder(a, "p", "", 100);
	cr_assert_eq(world_close(&w, &m, true), 0);
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m.sid));
	former_all_said(&w);
	drained(&m);
	cr_assert_not(asked());
}

/* Nobody has put the manifest at this server yet: it is the one that the version came with. */
Test(refsrv_rejoin_offload, warm__last_copy__is_kept_though_its_manifest_is_not_here)
{
	struct world_member m = holder(a, "p", "latest", 100), o;
	struct ctl_ev_reserve reserve;

	former_all_said(&w);
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_reserve(&w, a, &reserve));
	cr_assert_eq(world_accept(&w, a, &reserve, &o), 0, "%s", w.reply.text);
	world_finish(&w, &o, world_filling(&w, &o).leg);
	drained(&m);
	succeeded(&m);
}

Test(refsrv_rejoin_offload, warm__another_manifest__is_not_what_was_asked_for)
{
	struct world_member m = holder(a, "p", "latest", 100), o;
	struct ctl_ev_reserve reserve;

	former_all_said(&w);
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	cr_assert(world_reserve(&w, a, &reserve));
	reserve.manifest.lo ^= 1;
	cr_assert_eq(world_accept(&w, a, &reserve, &o), TH_E_LAYOUT);
}

/* ---- a complete copy ---- */

Test(refsrv_rejoin_offload, complete__is_listed_and_lets_the_holder_go)
{
	struct ctl_request request = offload_of("p", 0, 1);
	comes_back(b, &request);
	cr_assert_eq(world_flags(&w, c, "p", true), CTL_REPLICA_OFFLOAD | CTL_REPLICA_READY);
	struct world_member m = holder(a, "p", "latest", 100);
	cr_assert_eq(world_flags(&w, c, "p", false), CTL_REPLICA_READY, "they do not meet");
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	drained(&m);
	succeeded(&m);
	former_all_said(&w);
	world_sleep(&w, 10 * SEC);
	cr_assert_not(asked());
	cr_assert_not(world_has(&w, b, CTL_EV_RELEASE, 0), "it is the only copy");
	cr_assert_eq(world_flags(&w, c, "p", true), CTL_REPLICA_OFFLOAD | CTL_REPLICA_READY);
}

Test(refsrv_rejoin_offload, complete__nobody_claims_it__released_when_all_have_come)
{
	struct ctl_request request = offload_of("p", 0, 1);
	struct world_member o = comes_back(b, &request);
	world_sleep(&w, SEC);
	cr_assert_not(world_has(&w, b, CTL_EV_RELEASE, 0));
	former_all_said(&w);
	struct ctl_event event = taken(&o, CTL_EV_RELEASE);
	cr_assert_eq(event.u.release.reservation, 70);
	cr_assert_eq(world_close(&w, &o, false), 0);
	drained(&o);
	cr_assert_eq(world_flags(&w, c, "p", true), 0);
}

Test(refsrv_rejoin_offload, a_shard_does_not_come__the_others_are_released)
{
	struct ctl_request request = offload_of("p", 0, 2);
	struct world_member o = comes_back(b, &request);
	former_all_said(&w);
	cr_assert_eq(world_flags(&w, c, "p", true), 0);
	cr_assert_not(world_has(&w, b, CTL_EV_RELEASE, 0));
	world_sleep(&w, 40 * SEC);
	taken(&o, CTL_EV_RELEASE);
	drained(&o);
}

Test(refsrv_rejoin_offload, a_shard_is_gone__the_others_are_refused)
{
	struct ctl_request gone = offload_of("p", 1, 2), other = offload_of("p", 0, 2);
	gone.u.rejoin.gone = true;
	gone.u.rejoin.registered = false;
	gone.u.rejoin.held.version = TH_NO_VERSION;
	cr_assert_eq(world_request(&w, b, &gone), 0, "%s", w.reply.text);
	cr_assert_eq(world_request(&w, a, &other), TH_E_GROUP_BROKEN);
}

/* ---- one that was being filled ---- */

/* Three chunks of version 7 are there, by leg 71 from this holder. */
static struct ctl_request
filling_of(const struct world_member *source)
{
	struct ctl_request request = offload_of("p", 0, 1);
	struct ctl_rejoin *said = &request.u.rejoin;

	said->version = said->held;
	said->held.version = TH_NO_VERSION;
	said->hashed = false;
	said->went = true;
	said->op_seq = 1;
	said->kind = CTL_OP_REPLICATE;
	said->chunks = 3;
	said->leg = 71;
	said->source_sid = source->sid;
	said->source_gen = 1;
	return request;
}

Test(refsrv_rejoin_offload, filling__goes_on_and_is_complete)
{
	struct world_member m = holder(a, "p", "latest", 100);
	world_call(&w, &m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	struct ctl_request request = filling_of(&m);
	struct world_member o = comes_back(b, &request);
	cr_assert_eq(world_flags(&w, c, "p", true), CTL_REPLICA_OFFLOAD);
	former_all_said(&w);
	cr_assert_not(asked(), "one is being made");
	cr_assert_not(world_has(&w, a, CTL_EV_DRAIN, m.sid));
	finished(&o, 71);
	drained(&m);
	succeeded(&m);
	cr_assert_eq(world_flags(&w, c, "p", true), CTL_REPLICA_OFFLOAD | CTL_REPLICA_READY);
}

static const char *
why_of(const struct world_member *m)
{
	const struct ctl_inspection *all = refsrv_inspect(w.server, w.now_ns);

	for (uint32_t i = 0; i < all->num_members; i++) {
		if (all->members[i].sid == m->sid)
			return all->members[i].why;
	}
	return "?";
}

/* What it was made for, as its agent says, and what operators are told. */
static void
is_wanted_until_overtaken(enum ctl_copy_why said, const char *shown)
{
	struct world_member m = holder(a, "p", "", 100);
	struct ctl_request reader = rejoin_of("r", 0, 1, 300), request = filling_of(&m);
	reader.u.rejoin.open.flags = CTL_OPEN_PREFETCH;
	reader.u.rejoin.held.version = 6;
	request.u.rejoin.open.copy_why = said;
	struct world_member o = comes_back(b, &request);
	cr_assert_not(world_has(&w, b, CTL_EV_CANCEL, o.sid), "who wants it comes later");
	comes_back(b, &reader);
	former_all_said(&w);
	world_sleep(&w, 10 * SEC);
	cr_assert_str_eq(why_of(&o), shown);
	cr_assert_not(asked(), "it is on its way");
	cr_assert_not(world_has(&w, b, CTL_EV_CANCEL, o.sid));
	world_published(&w, c, "q", "8");
	cr_assert_str_eq(why_of(&o), "given up");
	cr_assert_eq(world_leg_end(&w, b, 71, TH_E_CANCELLED, false, 3), 0);
	cr_assert(world_has(&w, b, CTL_EV_RELEASE, o.sid));
	cr_assert(asked(), "the newer one is brought");
}

Test(refsrv_rejoin_offload, filling__for_a_group__given_up_for_a_newer_version)
{
	is_wanted_until_overtaken(CTL_COPY_PREFETCH, "prefetch");
}

Test(refsrv_rejoin_offload, filling__nobody_says_why__given_up_for_a_newer_version)
{
	is_wanted_until_overtaken(CTL_COPY_UNSAID, "former server");
}

Test(refsrv_rejoin_offload, complete__operators_are_told_what_it_was_made_for)
{
	static const struct {
		enum ctl_copy_why said;
		const char *shown;
	} all[] = {{CTL_COPY_UNSAID, "former server"}, {CTL_COPY_LAST, "last copy"},
		{CTL_COPY_SPOT, "spot hosts"}, {CTL_COPY_DRAIN, "drain"}, {CTL_COPY_SEED, "seed"},
		{CTL_COPY_BORROW, "borrow"}};

	for (uint32_t i = 0; i < TH_ARRAY_LEN(all); i++) {
		char replica[] = {'p', (char)('0' + i), '\0'};
		struct ctl_request request = offload_of(replica, 0, 1);
		request.u.rejoin.open.copy_why = all[i].said;
		request.u.rejoin.open.reservation += i;
		request.u.rejoin.group_inc += 10 * i;
		request.u.rejoin.sid += 10 * i;
		struct world_member o = comes_back(b, &request);
		cr_assert_str_eq(why_of(&o), all[i].shown);
	}
}

Test(refsrv_rejoin_offload, all_bytes_are_there__complete_without_its_source)
{
	struct ctl_request request = offload_of("p", 0, 1);
	struct ctl_rejoin *said = &request.u.rejoin;
	said->version = said->held;
	said->held.version = TH_NO_VERSION;
	said->went = said->done = true;
	said->announced = (struct th_hash){.lo = 5, .hi = 1};
	said->op_seq = 1;
	said->kind = CTL_OP_REPLICATE;
	said->chunks = WORLD_CHUNKS;
	struct world_member o = comes_back(b, &request);
	struct ctl_request claim = rejoin_of("k", 0, 1, 200);
	strcpy(claim.u.rejoin.open.retain, "7");
	claim.u.rejoin.next_op_seq = 1;
	claim.u.rejoin.held.version = TH_NO_VERSION;
	comes_back(a, &claim);
	former_all_said(&w);
	succeeded(&o);
	cr_assert_eq(world_flags(&w, c, "p", true), CTL_REPLICA_OFFLOAD | CTL_REPLICA_READY);
	cr_assert_not(world_has(&w, b, CTL_EV_RELEASE, 0));
}

/* ---- what cannot be ---- */

Test(refsrv_rejoin_offload, nothing_to_go_on_with__refused)
{
	struct ctl_request request = offload_of("p", 0, 1);
	request.u.rejoin.held.version = TH_NO_VERSION;
	cr_assert_eq(world_request(&w, a, &request), TH_E_INVALID);
	cr_assert(strstr(w.reply.text, "release its memory"), "%s", w.reply.text);
	request = offload_of("p", 0, 1);
	request.u.rejoin.next_op_seq = 3;
	cr_assert_eq(world_request(&w, a, &request), TH_E_INVALID);
}

Test(refsrv_rejoin_offload, a_number_of_this_server__refused)
{
	struct world_member k = world_member(&w, a, "k", 0, 1);
	struct ctl_request request = offload_of("p", 0, 1);
	request.u.rejoin.open.reservation = k.sid + 1;
	cr_assert_eq(world_request(&w, a, &request), TH_E_GROUP_BROKEN);
}

Test(refsrv_rejoin_offload, shards_of_different_reservations__do_not_fit)
{
	struct ctl_request request = offload_of("p", 0, 2), other = offload_of("p", 1, 2);
	comes_back(a, &request);
	other.u.rejoin.open.reservation = 71;
	cr_assert_eq(world_request(&w, b, &other), TH_E_GROUP_BROKEN);
	cr_assert(world_has(&w, a, CTL_EV_RELEASE, 0));
}
