/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_rejoin_test - REJOIN and REJOINED: they come back whole, their bytes on the wire, and
 * what of them a hostile peer cannot get through.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/name.h"
#include "tests/support/convert_wire.h"

/* ---- and back -------------------------------------------------------------------------------- */

static struct ctl_request
new_request(enum ctl_request_kind kind)
{
	struct ctl_request request;

	memset(&request, 0, sizeof(request));
	request.kind = kind;
	return request;
}

/* Of an open session that has said nothing else. */
static struct ctl_request
rejoin_of(uint64_t sid)
{
	struct ctl_request request = new_request(CTL_REJOIN);
	struct ctl_rejoin *rejoin = &request.u.rejoin;

	rejoin->sid = sid;
	rejoin->group_inc = 2;
	strcpy(rejoin->open.model, "m");
	strcpy(rejoin->open.replica, "r");
	rejoin->open.num_shards = 1;
	rejoin->next_op_seq = 1;
	rejoin->held.version = rejoin->version.version = TH_NO_VERSION;
	rejoin->go.version = TH_NO_VERSION;
	return request;
}

static void
same(const struct ctl_request *request)
{
	const struct ctl_rejoin *said = &request->u.rejoin;
	struct convert_arena arena = {0};
	struct th_err err = {0};
	struct ctl_request got;
	uint8_t *data;
	size_t bytes;

	cr_assert_eq(ctl_request_pack(request, &data, &bytes), 0);
	cr_assert_lt(bytes, CONVERT_MESSAGE_BYTES_MAX);
	cr_assert_eq(ctl_request_unpack(data, bytes, &arena, &err, &got), 0, "%s", err.text);
	cr_assert_eq(got.u.rejoin.num_outcomes, said->num_outcomes);
	for (uint32_t i = 0; i < said->num_outcomes; i++)
		cr_assert_arr_eq(
			&got.u.rejoin.outcomes[i], &said->outcomes[i], sizeof(said->outcomes[i]));
	got.u.rejoin.outcomes = said->outcomes;
	cr_assert_arr_eq(&got, request, sizeof(got));
	free(data);
	convert_arena_free(&arena);
}

Test(convert_rejoin, rejoined__comes_back)
{
	struct ctl_request request = new_request(CTL_REJOINED);

	request.u.rejoined.num_sessions = UINT32_MAX;
	wire_request_same(&request);
}

Test(convert_rejoin, gone__comes_back)
{
	struct ctl_request request = rejoin_of(1);

	request.u.rejoin.gone = true;
	same(&request);
	request.u.rejoin.died = true;
	same(&request);
}

Test(convert_rejoin, held__comes_back)
{
	struct ctl_request request = rejoin_of(UINT64_MAX);
	struct ctl_rejoin *rejoin = &request.u.rejoin;

	rejoin->registered = true;
	rejoin->reg = (struct ctl_register){.sid = UINT64_MAX,
		.layout = {1, 2},
		.manifest = {3, 4},
		.bytes = UINT64_MAX,
		.num_chunks = UINT32_MAX};
	rejoin->next_op_seq = UINT64_MAX;
	rejoin->held = (struct th_version){5, 6};
	rejoin->gen = 7;
	same(&request);
	rejoin->hashed = true;
	same(&request);
	rejoin->content = (struct th_hash){8, 9};
	rejoin->attributes = (struct th_hash){10, 11};
	rejoin->refused = rejoin->published = true;
	same(&request);
}

Test(convert_rejoin, running__comes_back)
{
	struct ctl_request request = rejoin_of(1);
	struct ctl_rejoin *rejoin = &request.u.rejoin;

	rejoin->went = true;
	rejoin->op_seq = 2;
	rejoin->kind = CTL_OP_REPLICATE;
	strcpy(rejoin->spec, "latest-3");
	rejoin->version = (struct th_version){0, 0};
	same(&request);
	rejoin->kind = CTL_OP_UPDATE;
	rejoin->flags = 4;
	rejoin->cancelled = true;
	rejoin->chunks = UINT32_MAX;
	rejoin->leg = 5;
	rejoin->leg_stops = true;
	rejoin->source_sid = 6;
	rejoin->source_gen = 7;
	same(&request);
	rejoin->announced = (struct th_hash){8, 9};
	same(&request);
	rejoin->done = true;
	same(&request);
}

Test(convert_rejoin, following__comes_back)
{
	struct ctl_request request = rejoin_of(1);
	struct ctl_rejoin *rejoin = &request.u.rejoin;

	strcpy(rejoin->follows, "latest");
	same(&request);
	rejoin->go = (struct th_version){1, 0};
	same(&request);
	rejoin->automatic_waits = CTL_OP_AUTOMATIC | 5;
	same(&request);
	rejoin->automatic = (struct ctl_known_outcome){.op_seq = CTL_OP_AUTOMATIC,
		.kind = CTL_OP_UPDATE,
		.spec = "7",
		.updated = true,
		.went = true,
		.version = {1, 7}};
	same(&request);
}

Test(convert_rejoin, the_longest_there_can_be__comes_back)
{
	struct ctl_known_outcome outcomes[TH_OUTCOMES_MAX];
	struct ctl_request request = rejoin_of(1);
	struct ctl_rejoin *rejoin = &request.u.rejoin;

	memset(outcomes, 0, sizeof(outcomes));
	for (uint32_t i = 0; i < TH_OUTCOMES_MAX; i++) {
		struct ctl_known_outcome *outcome = &outcomes[i];
		outcome->op_seq = UINT64_MAX - TH_OUTCOMES_MAX + i;
		outcome->kind = CTL_OP_PUBLISH + i % (CTL_OP_FOLLOW - CTL_OP_PUBLISH + 1);
		outcome->flags = i;
		if (!ctl_op_unnamed(outcome->kind))
			strcpy(outcome->spec, "latest-18446744073709551615");
		outcome->code = i % 3 == 0 ? TH_E_TIMEOUT : 0;
		outcome->updated = i % 2 == 0;
		outcome->went = i % 5 == 0;
		outcome->version =
			(struct th_version){i % 4 == 0 ? 0 : i, i % 4 == 0 ? TH_NO_VERSION : i};
	}
	wire_name(rejoin->open.model, TH_NAME_MAX, 'm');
	wire_name(rejoin->open.replica, TH_NAME_MAX, 'r');
	wire_name(rejoin->open.launch_id, TH_NAME_MAX, 'l');
	wire_name(rejoin->open.retain, TH_RETAIN_MAX, '1');
	for (size_t i = 2; i < TH_RETAIN_MAX - 1; i += 3)
		rejoin->open.retain[i] = ',';
	rejoin->open.lineage = UINT64_MAX;
	rejoin->open.num_shards = TH_SHARDS_MAX;
	rejoin->open.shard = TH_SHARDS_MAX - 1;
	rejoin->open.flags = 1;
	rejoin->open.reservation = UINT64_MAX;
	rejoin->registered = true;
	rejoin->reg.layout = rejoin->reg.manifest = (struct th_hash){UINT64_MAX, UINT64_MAX};
	rejoin->num_outcomes = TH_OUTCOMES_MAX;
	rejoin->outcomes = outcomes;
	strcpy(rejoin->follows, "latest-18446744073709551615");
	rejoin->go = (struct th_version){UINT64_MAX, UINT64_MAX - 1};
	rejoin->automatic_waits = UINT64_MAX;
	rejoin->automatic = outcomes[0];
	rejoin->automatic.op_seq = UINT64_MAX;
	same(&request);
}

/* ---- bytes, written down by hand from the .proto --------------------------------------------- */

Test(convert_rejoin, golden__following)
{
	struct ctl_request request = rejoin_of(1);
	struct ctl_rejoin *rejoin = &request.u.rejoin;

	rejoin->automatic_waits = CTL_OP_AUTOMATIC;
	strcpy(rejoin->follows, "7");
	rejoin->go = (struct th_version){0, 7};
	/* Field 45, length 37; of following, field 17, length 18. */
	wire_request_is(&request, WIRE_BYTES("\xea\x02\x25\x08\x01\x10\x02"
					     "\x1a\x08\x0a\x01m\x12\x01r\x28\x01\x38\x01"
					     "\x8a\x01\x12\x0a\x01"
					     "7\x12\x02\x10\x07\x18"
					     "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"));
}

Test(convert_rejoin, golden__rejoined)
{
	struct ctl_request request = new_request(CTL_REJOINED);

	request.u.rejoined.num_sessions = 300;
	/* Field 46, length 3. */
	wire_request_is(&request, WIRE_BYTES("\xf2\x02\x03\x08\xac\x02"));
}

Test(convert_rejoin, golden__gone)
{
	struct ctl_request request = rejoin_of(1);

	request.u.rejoin.gone = request.u.rejoin.died = true;
	/* Field 45, length 20; open is field 3. */
	wire_request_is(&request, WIRE_BYTES("\xea\x02\x14\x08\x01\x10\x02"
					     "\x1a\x08\x0a\x01m\x12\x01r\x28\x01"
					     "\x20\x01\x28\x01\x38\x01"));
}

Test(convert_rejoin, golden__held)
{
	struct ctl_known_outcome known;
	struct ctl_request request = rejoin_of(1);
	struct ctl_rejoin *rejoin = &request.u.rejoin;

	memset(&known, 0, sizeof(known));
	known.op_seq = 3;
	known.kind = CTL_OP_UPDATE;
	strcpy(known.spec, "9");
	known.code = -1; /* zigzag: 1 */
	known.updated = known.went = true;
	known.version = (struct th_version){0, 9};
	rejoin->registered = true;
	rejoin->reg.layout = (struct th_hash){1, 0};
	rejoin->reg.manifest = (struct th_hash){0, 2};
	rejoin->next_op_seq = 4;
	rejoin->held = (struct th_version){0, 9};
	rejoin->gen = 3;
	rejoin->hashed = true;
	rejoin->content = (struct th_hash){5, 0};
	rejoin->refused = rejoin->published = true;
	rejoin->outcomes = &known;
	rejoin->num_outcomes = 1;
	wire_request_is(&request, WIRE_BYTES("\xea\x02\x53\x08\x01\x10\x02"
					     "\x1a\x08\x0a\x01m\x12\x01r\x28\x01"
					     /* registered: field 6 */
					     "\x32\x16\x12\x09\x09\x01\0\0\0\0\0\0\0"
					     "\x1a\x09\x11\x02\0\0\0\0\0\0\0"
					     "\x38\x04\x42\x02\x10\x09\x48\x03\x50\x01"
					     "\x5a\x09\x09\x05\0\0\0\0\0\0\0"
					     "\x68\x01"
					     /* an outcome: field 15 */
					     "\x7a\x11\x08\x03\x10\x04\x22\x01\x39\x28\x01\x30\x01"
					     "\x38\x01\x42\x02\x10\x09"
					     /* published: field 16 */
					     "\x80\x01\x01"));
}

Test(convert_rejoin, golden__running)
{
	struct ctl_request request = rejoin_of(1);
	struct ctl_rejoin *rejoin = &request.u.rejoin;

	rejoin->next_op_seq = 3;
	rejoin->went = true;
	rejoin->op_seq = 2;
	rejoin->kind = CTL_OP_REPLICATE;
	strcpy(rejoin->spec, "9");
	rejoin->version = (struct th_version){0, 9};
	rejoin->cancelled = rejoin->done = rejoin->leg_stops = true;
	rejoin->chunks = 8;
	rejoin->leg = 300;
	rejoin->source_sid = 11;
	rejoin->source_gen = 12;
	rejoin->announced = (struct th_hash){5, 0};
	wire_request_is(&request, WIRE_BYTES("\xea\x02\x37\x08\x01\x10\x02"
					     "\x1a\x08\x0a\x01m\x12\x01r\x28\x01"
					     "\x38\x03"
					     /* running: field 14 */
					     "\x72\x25\x08\x02\x10\x03\x22\x01\x39\x2a\x02\x10\x09"
					     "\x30\x01\x38\x01\x40\x08\x48\xac\x02\x50\x01"
					     "\x58\x0b\x60\x0c"
					     "\x6a\x09\x09\x05\0\0\0\0\0\0\0"));
}

/* ---- hostile --------------------------------------------------------------------------------- */

static char text_good[] = "good", text_empty[] = "", text_control[] = "a\nb",
	    text_bytes[] = "a\xff";
static char text_spec[] = "latest", text_no_spec[] = "yesterday";

static Tensorhub__V1__Open open_good;
static Tensorhub__V1__Hash hash_good;
static Tensorhub__V1__Version version_good;
static Tensorhub__V1__Register register_good;
static Tensorhub__V1__RunningOp running_good;
static Tensorhub__V1__KnownOutcome outcome_good;
static Tensorhub__V1__Rejoin good, bad; /* bad: good before each step of a test */

static void
setup(void)
{
	tensorhub__v1__open__init(&open_good);
	open_good.model = open_good.replica = text_good;
	open_good.num_shards = 2;
	tensorhub__v1__hash__init(&hash_good);
	hash_good.lo = 1;
	tensorhub__v1__version__init(&version_good);
	tensorhub__v1__register__init(&register_good);
	register_good.layout = register_good.manifest = &hash_good;
	tensorhub__v1__running_op__init(&running_good);
	running_good.op_seq = 1;
	running_good.kind = CTL_OP_UPDATE;
	running_good.spec = text_spec;
	running_good.version = &version_good;
	tensorhub__v1__known_outcome__init(&outcome_good);
	outcome_good.op_seq = 1;
	outcome_good.kind = CTL_OP_PUBLISH;
	outcome_good.spec = text_spec;
	tensorhub__v1__rejoin__init(&good);
	good.sid = good.group_inc = 1;
	good.open = &open_good;
	bad = good;
}

TestSuite(convert_rejoin_hostile, .init = setup);

static int
take(void)
{
	struct ctl_request got;
	int rc = wire_take_request(TENSORHUB__V1__REQUEST__BODY_REJOIN, &bad, &got);

	bad = good;
	return rc;
}

Test(convert_rejoin_hostile, numbers_and_open__are_checked)
{
	Tensorhub__V1__Open open;

	cr_assert_eq(take(), 0);
	bad.sid = 0;
	cr_assert_eq(take(), TH_E_INVALID);
	bad.group_inc = 0;
	cr_assert_eq(take(), TH_E_INVALID);
	bad.open = NULL;
	cr_assert_eq(take(), TH_E_INVALID);
	open = open_good, open.model = text_empty, bad.open = &open;
	cr_assert_eq(take(), TH_E_INVALID);
	open = open_good, open.replica = text_control, bad.open = &open;
	cr_assert_eq(take(), TH_E_INVALID);
	open = open_good, open.launch_id = text_bytes, bad.open = &open;
	cr_assert_eq(take(), TH_E_INVALID);
	open = open_good, open.num_shards = 0, bad.open = &open;
	cr_assert_eq(take(), TH_E_INVALID);
	open = open_good, open.num_shards = TH_SHARDS_MAX + 1, bad.open = &open;
	cr_assert_eq(take(), TH_E_INVALID);
	open = open_good, open.shard = 2, bad.open = &open;
	cr_assert_eq(take(), TH_E_INVALID);
	open = open_good, open.retain = text_no_spec, bad.open = &open;
	cr_assert_eq(take(), TH_E_INVALID);
}

Test(convert_rejoin_hostile, registration__is_checked)
{
	Tensorhub__V1__Register reg = register_good;

	bad.register_ = &reg;
	cr_assert_eq(take(), 0);
	reg.layout = NULL;
	bad.register_ = &reg;
	cr_assert_eq(take(), TH_E_INVALID);
	reg = register_good;
	reg.manifest = NULL;
	bad.register_ = &reg;
	cr_assert_eq(take(), TH_E_INVALID);
}

static int
take_running(const Tensorhub__V1__RunningOp *running)
{
	Tensorhub__V1__RunningOp copy = *running;

	bad.running = &copy;
	return take();
}

Test(convert_rejoin_hostile, running__is_checked)
{
	static const uint32_t kinds[] = {
		0, CTL_OP_PUBLISH, CTL_OP_UNPUBLISH, CTL_OP_LIST, CTL_OP_FOLLOW, UINT32_MAX};
	static char *const specs[] = {text_empty, text_no_spec, text_control, text_bytes};
	Tensorhub__V1__RunningOp running = running_good;

	cr_assert_eq(take_running(&running), 0);
	for (size_t i = 0; i < TH_ARRAY_LEN(kinds); i++) {
		running.kind = kinds[i];
		cr_assert_eq(take_running(&running), TH_E_INVALID, "%u", kinds[i]);
	}
	running = running_good;
	for (size_t i = 0; i < TH_ARRAY_LEN(specs); i++) {
		running.spec = specs[i];
		cr_assert_eq(take_running(&running), TH_E_INVALID, "%s", specs[i]);
	}
	running = running_good;
	running.version = NULL;
	cr_assert_eq(take_running(&running), TH_E_INVALID);
}

static int
take_outcomes(Tensorhub__V1__KnownOutcome *first, size_t count)
{
	Tensorhub__V1__KnownOutcome *outcomes[TH_OUTCOMES_MAX + 1];

	for (size_t i = 0; i < count; i++)
		outcomes[i] = &first[i];
	bad.outcomes = outcomes;
	bad.n_outcomes = count;
	return take();
}

static int
take_following(Tensorhub__V1__Following *following)
{
	bad.following = following;
	return take();
}

Test(convert_rejoin_hostile, following__is_checked)
{
	static char *const specs[] = {text_no_spec, text_control, text_bytes};
	Tensorhub__V1__KnownOutcome outcome = outcome_good;
	Tensorhub__V1__Following following;

	tensorhub__v1__following__init(&following);
	for (size_t i = 0; i < TH_ARRAY_LEN(specs); i++) {
		following.spec = specs[i];
		cr_assert_eq(take_following(&following), TH_E_INVALID, "%s", specs[i]);
	}
	following.spec = text_empty;
	following.waits = CTL_OP_AUTOMATIC - 1;
	cr_assert_eq(take_following(&following), TH_E_INVALID);
	following.waits = CTL_OP_AUTOMATIC;
	cr_assert_eq(take_following(&following), 0);
	following.ended = &outcome;
	cr_assert_eq(take_following(&following), TH_E_INVALID, "a number of a member's");
	outcome.op_seq = CTL_OP_AUTOMATIC;
	cr_assert_eq(take_following(&following), 0);
	outcome.kind = CTL_OP_FOLLOW + 1;
	cr_assert_eq(take_following(&following), TH_E_INVALID);
}

Test(convert_rejoin_hostile, outcomes__are_checked)
{
	static const int32_t codes[] = {1, INT32_MAX, INT32_MIN};
	static const uint32_t kinds[] = {0, CTL_OP_FOLLOW + 1, UINT32_MAX};
	Tensorhub__V1__KnownOutcome outcome = outcome_good;

	cr_assert_eq(take_outcomes(&outcome, 1), 0);
	for (size_t i = 0; i < TH_ARRAY_LEN(codes); i++) {
		outcome.code = codes[i];
		cr_assert_eq(take_outcomes(&outcome, 1), TH_E_INVALID);
	}
	outcome = outcome_good;
	for (size_t i = 0; i < TH_ARRAY_LEN(kinds); i++) {
		outcome.kind = kinds[i];
		cr_assert_eq(take_outcomes(&outcome, 1), TH_E_INVALID);
	}
	outcome = outcome_good;
	outcome.spec = text_empty;
	cr_assert_eq(take_outcomes(&outcome, 1), TH_E_INVALID);
	outcome.kind = CTL_OP_UNPUBLISH;
	cr_assert_eq(take_outcomes(&outcome, 1), 0, "it names nothing");
	outcome.spec = text_no_spec;
	cr_assert_eq(take_outcomes(&outcome, 1), TH_E_INVALID);
}

Test(convert_rejoin_hostile, outcomes__ascend_and_are_not_without_end)
{
	Tensorhub__V1__KnownOutcome outcomes[TH_OUTCOMES_MAX + 1];

	for (size_t i = 0; i < TH_ARRAY_LEN(outcomes); i++) {
		outcomes[i] = outcome_good;
		outcomes[i].op_seq = i + 1;
	}
	cr_assert_eq(take_outcomes(outcomes, TH_OUTCOMES_MAX), 0);
	cr_assert_eq(take_outcomes(outcomes, TH_OUTCOMES_MAX + 1), TH_E_INVALID);
	outcomes[1].op_seq = 1;
	cr_assert_eq(take_outcomes(outcomes, 2), TH_E_INVALID, "one twice");
	outcomes[1].op_seq = 0;
	cr_assert_eq(take_outcomes(outcomes, 2), TH_E_INVALID, "backward");
}
