/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_offload_test - the messages of retention: their bytes on the wire, and what of them a
 * hostile peer cannot get through. That they come back whole is in convert_test.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/convert_wire.h"

/* ---- bytes, written down by hand from the .proto --------------------------------------------- */

Test(convert_offload, golden__reserved)
{
	struct ctl_request request;

	memset(&request, 0, sizeof(request));
	request.kind = CTL_RESERVED;
	request.u.reserved.reservation = 5;
	request.u.reserved.shard = 1;
	request.u.reserved.code = -1; /* zigzag: 1 */
	strcpy(request.u.reserved.text, "no");
	/* Field 60, length 10. */
	wire_request_is(&request, WIRE_BYTES("\xe2\x03\x0a\x08\x05\x10\x01\x18\x01\x22\x02no"));
}

Test(convert_offload, golden__release)
{
	struct ctl_event event;

	memset(&event, 0, sizeof(event));
	event.kind = CTL_EV_RELEASE;
	event.number = 9;
	event.u.release = (struct ctl_ev_release){5, 1, 300};
	/* Field 41, length 7. */
	wire_event_is(&event, WIRE_BYTES("\x08\x09\xca\x02\x07\x08\x05\x10\x01\x18\xac\x02"));
}

Test(convert_offload, golden__close_refused)
{
	struct ctl_event event;

	memset(&event, 0, sizeof(event));
	event.kind = CTL_EV_CLOSE_REFUSED;
	event.number = 1;
	event.u.close_refused.sid = 2;
	event.u.close_refused.code = -2;
	/* Field 42, length 4. */
	wire_event_is(&event, WIRE_BYTES("\x08\x01\xd2\x02\x04\x08\x02\x10\x03"));
}

Test(convert_offload, golden__at_risk)
{
	struct ctl_event event;

	memset(&event, 0, sizeof(event));
	event.kind = CTL_EV_AT_RISK;
	event.number = 3;
	event.u.at_risk.sid = 2;
	strcpy(event.u.at_risk.text, "x");
	/* Field 60, length 5. */
	wire_event_is(&event, WIRE_BYTES("\x08\x03\xe2\x03\x05\x08\x02\x12\x01x"));
}

Test(convert_offload, golden__rules)
{
	struct ctl_event event;

	memset(&event, 0, sizeof(event));
	event.kind = CTL_EV_RULES;
	event.number = 3;
	strcpy(event.u.rules.model, "m");
	strcpy(event.u.rules.rules, "latest,7");
	/* Field 61, length 13. */
	wire_event_is(&event, WIRE_BYTES("\x08\x03\xea\x03\x0d\x0a\x01m\x1a\x08latest,7"));
	strcpy(event.u.rules.shared, "7");
	wire_event_is(&event, WIRE_BYTES("\x08\x03\xea\x03\x10\x0a\x01m\x1a\x08latest,7\x22\x01"
					 "7"));
	event.u.rules.rules[0] = event.u.rules.shared[0] = '\0';
	event.u.rules.all = true;
	wire_event_is(&event, WIRE_BYTES("\x08\x03\xea\x03\x05\x0a\x01m\x10\x01"));
}

Test(convert_offload, golden__ready)
{
	struct ctl_event event;

	memset(&event, 0, sizeof(event));
	event.kind = CTL_EV_READY;
	event.number = 3;
	event.u.ready = (struct ctl_ev_ready){2, {0, 7}};
	/* Field 70, length 6. */
	wire_event_is(&event, WIRE_BYTES("\x08\x03\xb2\x04\x06\x08\x02\x12\x02\x10\x07"));
	event.u.ready.version.version = TH_NO_VERSION;
	wire_event_is(&event, WIRE_BYTES("\x08\x03\xb2\x04\x02\x08\x02"));
}

Test(convert_offload, golden__borrow)
{
	struct ctl_request request;

	memset(&request, 0, sizeof(request));
	request.kind = CTL_BORROW;
	strcpy(request.u.borrow.model, "m");
	request.u.borrow.version.version = 7;
	request.u.borrow.shard = 1;
	request.u.borrow.held = true;
	request.u.borrow.room = 100;
	/* Field 80, length 13. */
	wire_request_is(&request,
		WIRE_BYTES("\x82\x05\x0d\x0a\x01m\x12\x02\x10\x07\x18\x01\x28\x01\x30\x64"));
}

Test(convert_offload, golden__borrow_refused)
{
	struct ctl_event event;

	memset(&event, 0, sizeof(event));
	event.kind = CTL_EV_BORROW_REFUSED;
	event.number = 3;
	strcpy(event.u.borrow_refused.model, "m");
	event.u.borrow_refused.version.version = 7;
	event.u.borrow_refused.code = -2;
	/* Field 80, length 9. */
	wire_event_is(&event, WIRE_BYTES("\x08\x03\x82\x05\x09\x0a\x01m\x12\x02\x10\x07\x20\x03"));
}

Test(convert_offload, golden__go_mark)
{
	struct ctl_event event;

	memset(&event, 0, sizeof(event));
	event.kind = CTL_EV_GO_MARK;
	event.number = 3;
	strcpy(event.u.go_mark.model, "m");
	event.u.go_mark.version = (struct th_version){0, 7};
	/* Field 71, length 7. */
	wire_event_is(&event, WIRE_BYTES("\x08\x03\xba\x04\x07\x0a\x01m\x12\x02\x10\x07"));
}

Test(convert_offload, golden__reserve)
{
	struct ctl_event event;

	memset(&event, 0, sizeof(event));
	event.kind = CTL_EV_RESERVE;
	event.number = 1;
	event.u.reserve.reservation = 2;
	strcpy(event.u.reserve.model, "m");
	strcpy(event.u.reserve.replica, "r");
	event.u.reserve.shard = 3;
	event.u.reserve.num_shards = 4;
	event.u.reserve.version = (struct th_version){0, 7};
	event.u.reserve.bytes = 8;
	event.u.reserve.num_chunks = 9;
	event.u.reserve.layout = (struct th_hash){1, 0};
	event.u.reserve.manifest = (struct th_hash){0, 2};
	event.u.reserve.source_sid = 10;
	event.u.reserve.copy_why = CTL_COPY_SEED;
	/* Field 40, length 46. */
	wire_event_is(
		&event, WIRE_BYTES("\x08\x01\xc2\x02\x2e\x08\x02\x12\x01m\x1a\x01r\x20\x03\x28"
				   "\x04\x32\x02\x10\x07"
				   "\x38\x08\x40\x09"
				   "\x4a\x09\x09\x01\0\0\0\0\0\0\0"
				   "\x52\x09\x11\x02\0\0\0\0\0\0\0"
				   "\x58\x0a\x60\x05"));
}

/* ---- hostile --------------------------------------------------------------------------------- */

static char text_good[] = "good";
static char text_empty[] = "";
static char text_control[] = "a\nb";

/* A later version may have reasons that this one does not know. */
Test(convert_offload, open__a_reason_that_nobody_knows__is_none)
{
	Tensorhub__V1__Open open;
	struct ctl_request got;

	tensorhub__v1__open__init(&open);
	open.model = open.replica = text_good;
	open.num_shards = 1;
	open.copy_why = 6;
	cr_assert_eq(wire_take_request(TENSORHUB__V1__REQUEST__BODY_OPEN, &open, &got), 0);
	cr_assert_eq(got.u.open.copy_why, CTL_COPY_BORROW);
	open.copy_why = 7;
	cr_assert_eq(wire_take_request(TENSORHUB__V1__REQUEST__BODY_OPEN, &open, &got), 0);
	cr_assert_eq(got.u.open.copy_why, CTL_COPY_UNSAID);
	open.copy_why = UINT32_MAX;
	cr_assert_eq(wire_take_request(TENSORHUB__V1__REQUEST__BODY_OPEN, &open, &got), 0);
	cr_assert_eq(got.u.open.copy_why, CTL_COPY_UNSAID);
}

Test(convert_offload, open__rules_that_do_not_parse__are_refused)
{
	static char bad[][64] = {"latest,", "latest, 3", "all", "latest-0", "\x1b[2J",
		"1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"};
	Tensorhub__V1__Open open;
	struct ctl_request got;
	char longest[TH_RETAIN_MAX + 2];

	tensorhub__v1__open__init(&open);
	open.model = open.replica = text_good;
	open.num_shards = 1;
	for (size_t i = 0; i < TH_ARRAY_LEN(bad); i++) {
		open.retain = bad[i];
		cr_assert_eq(wire_take_request(TENSORHUB__V1__REQUEST__BODY_OPEN, &open, &got),
			TH_E_INVALID, "%s", bad[i]);
	}
	memset(longest, '1', sizeof(longest));
	for (size_t i = 2; i < sizeof(longest); i += 3)
		longest[i] = ',';
	longest[TH_RETAIN_MAX + 1] = '\0';
	open.retain = longest;
	cr_assert_eq(
		wire_take_request(TENSORHUB__V1__REQUEST__BODY_OPEN, &open, &got), TH_E_INVALID);
	longest[TH_RETAIN_MAX] = '\0';
	cr_assert_eq(wire_take_request(TENSORHUB__V1__REQUEST__BODY_OPEN, &open, &got), 0);
	cr_assert_str_eq(got.u.open.retain, longest);
}

Test(convert_offload, reserved__without_a_cause__is_refused)
{
	static const int32_t bad[] = {0, 1, INT32_MAX, INT32_MIN};
	Tensorhub__V1__Reserved reserved;
	struct ctl_request got;

	tensorhub__v1__reserved__init(&reserved);
	reserved.text = text_control;
	for (size_t i = 0; i < TH_ARRAY_LEN(bad); i++) {
		reserved.code = bad[i];
		cr_assert_eq(
			wire_take_request(TENSORHUB__V1__REQUEST__BODY_RESERVED, &reserved, &got),
			TH_E_INVALID);
	}
	reserved.code = TH_E_NOMEM_RETAIN;
	cr_assert_eq(wire_take_request(TENSORHUB__V1__REQUEST__BODY_RESERVED, &reserved, &got), 0);
	cr_assert_str_eq(got.u.reserved.text, "a?b", "what a terminal would obey is gone");
	reserved.shard = TH_SHARDS_MAX;
	cr_assert_eq(wire_take_request(TENSORHUB__V1__REQUEST__BODY_RESERVED, &reserved, &got),
		TH_E_INVALID);
}

Test(convert_offload, close__times__are_checked)
{
	Tensorhub__V1__Close close;
	struct ctl_request got;

	tensorhub__v1__close__init(&close);
	cr_assert_eq(wire_take_request(TENSORHUB__V1__REQUEST__BODY_CLOSE, &close, &got), 0);
	close.timeout_ns = TH_FOREVER;
	cr_assert_eq(wire_take_request(TENSORHUB__V1__REQUEST__BODY_CLOSE, &close, &got), 0);
	close.timeout_ns = -2;
	cr_assert_eq(
		wire_take_request(TENSORHUB__V1__REQUEST__BODY_CLOSE, &close, &got), TH_E_INVALID);
}

static int
take_event_as(int body_case, void *body, struct ctl_event *ret_got)
{
	Tensorhub__V1__Event message;
	struct convert_arena arena = {0};
	struct th_err err = {0};

	tensorhub__v1__event__init(&message);
	message.number = 1;
	message.body_case = (Tensorhub__V1__Event__BodyCase)body_case;
	message.plan = body; /* all of the union are pointers */
	size_t bytes = tensorhub__v1__event__get_packed_size(&message);
	uint8_t *data = malloc(bytes + 1);
	tensorhub__v1__event__pack(&message, data);
	int rc = ctl_event_unpack(data, bytes, &arena, &err, ret_got);
	cr_assert_eq(err.text[0] != '\0', rc != 0);
	convert_arena_free(&arena);
	free(data);
	return rc;
}

static int
take_reserve(Tensorhub__V1__EvReserve *reserve)
{
	return wire_take_event(TENSORHUB__V1__EVENT__BODY_RESERVE, reserve);
}

Test(convert_offload, reserve__fields__are_checked)
{
	Tensorhub__V1__EvReserve good, bad;
	Tensorhub__V1__Version version;
	Tensorhub__V1__Hash hash;

	tensorhub__v1__version__init(&version);
	tensorhub__v1__hash__init(&hash);
	hash.lo = 1;
	tensorhub__v1__ev_reserve__init(&good);
	good.reservation = 1;
	good.model = good.replica = text_good;
	good.num_shards = 1;
	good.version = &version;
	good.layout = good.manifest = &hash;
	cr_assert_eq(take_reserve(&good), 0);
	bad = good, bad.reservation = 0;
	cr_assert_eq(take_reserve(&bad), TH_E_INVALID);
	bad = good, bad.model = text_empty;
	cr_assert_eq(take_reserve(&bad), TH_E_INVALID);
	bad = good, bad.replica = text_control;
	cr_assert_eq(take_reserve(&bad), TH_E_INVALID);
	bad = good, bad.shard = 1;
	cr_assert_eq(take_reserve(&bad), TH_E_INVALID);
	bad = good, bad.num_shards = 0;
	cr_assert_eq(take_reserve(&bad), TH_E_INVALID);
	bad = good, bad.num_shards = TH_SHARDS_MAX + 1;
	cr_assert_eq(take_reserve(&bad), TH_E_INVALID);
	bad = good, bad.version = NULL;
	cr_assert_eq(take_reserve(&bad), TH_E_INVALID);
	bad = good, bad.layout = NULL;
	cr_assert_eq(take_reserve(&bad), TH_E_INVALID);
	bad = good, bad.manifest = NULL;
	cr_assert_eq(take_reserve(&bad), TH_E_INVALID);
}

Test(convert_offload, release_and_close_refused__fields__are_checked)
{
	Tensorhub__V1__EvRelease release;
	Tensorhub__V1__EvCloseRefused refused;

	tensorhub__v1__ev_release__init(&release);
	cr_assert_eq(wire_take_event(TENSORHUB__V1__EVENT__BODY_RELEASE, &release), 0);
	release.shard = TH_SHARDS_MAX;
	cr_assert_eq(wire_take_event(TENSORHUB__V1__EVENT__BODY_RELEASE, &release), TH_E_INVALID);
	tensorhub__v1__ev_close_refused__init(&refused);
	cr_assert_eq(
		wire_take_event(TENSORHUB__V1__EVENT__BODY_CLOSE_REFUSED, &refused), TH_E_INVALID);
	refused.code = TH_E_TIMEOUT;
	cr_assert_eq(wire_take_event(TENSORHUB__V1__EVENT__BODY_CLOSE_REFUSED, &refused), 0);
}

Test(convert_offload, at_risk__sentence__is_cut_and_obeyed_by_no_terminal)
{
	static char longest[2 * TH_CTL_TEXT_BYTES];
	Tensorhub__V1__EvBroken at_risk;
	struct ctl_event got;

	tensorhub__v1__ev_broken__init(&at_risk);
	at_risk.sid = 1;
	at_risk.text = text_control;
	cr_assert_eq(take_event_as(TENSORHUB__V1__EVENT__BODY_AT_RISK, &at_risk, &got), 0);
	cr_assert_eq(got.kind, CTL_EV_AT_RISK);
	cr_assert_str_eq(got.u.at_risk.text, "a?b");
	memset(longest, 'x', sizeof(longest) - 1);
	at_risk.text = longest;
	cr_assert_eq(take_event_as(TENSORHUB__V1__EVENT__BODY_AT_RISK, &at_risk, &got), 0);
	cr_assert_eq(strlen(got.u.at_risk.text), TH_CTL_TEXT_BYTES - 1);
	cr_assert_not(got.u.at_risk.evicted, "of another message");
}

Test(convert_offload, ready__version_that_is_not_there__is_none)
{
	Tensorhub__V1__EvReady ready;
	struct ctl_event got;

	tensorhub__v1__ev_ready__init(&ready);
	ready.sid = 1;
	cr_assert_eq(take_event_as(TENSORHUB__V1__EVENT__BODY_READY, &ready, &got), 0);
	cr_assert_eq(got.kind, CTL_EV_READY);
	cr_assert_eq(got.u.ready.sid, 1);
	cr_assert_eq(got.u.ready.version.version, TH_NO_VERSION);
}

Test(convert_offload, borrow__fields__are_checked)
{
	Tensorhub__V1__Borrow good, bad;
	Tensorhub__V1__EvBorrowRefused refused, no;
	Tensorhub__V1__Version version;
	struct ctl_request got;

	tensorhub__v1__version__init(&version);
	tensorhub__v1__borrow__init(&good);
	good.model = text_good;
	good.version = &version;
	cr_assert_eq(wire_take_request(TENSORHUB__V1__REQUEST__BODY_BORROW, &good, &got), 0);
	bad = good, bad.model = text_empty;
	cr_assert_eq(
		wire_take_request(TENSORHUB__V1__REQUEST__BODY_BORROW, &bad, &got), TH_E_INVALID);
	bad = good, bad.version = NULL;
	cr_assert_eq(
		wire_take_request(TENSORHUB__V1__REQUEST__BODY_BORROW, &bad, &got), TH_E_INVALID);
	bad = good, bad.shard = TH_SHARDS_MAX;
	cr_assert_eq(
		wire_take_request(TENSORHUB__V1__REQUEST__BODY_BORROW, &bad, &got), TH_E_INVALID);
	tensorhub__v1__ev_borrow_refused__init(&refused);
	refused.model = text_good;
	refused.version = &version;
	refused.code = TH_E_LIMIT;
	cr_assert_eq(wire_take_event(TENSORHUB__V1__EVENT__BODY_BORROW_REFUSED, &refused), 0);
	no = refused, no.model = text_control;
	cr_assert_eq(wire_take_event(TENSORHUB__V1__EVENT__BODY_BORROW_REFUSED, &no), TH_E_INVALID);
	no = refused, no.version = NULL;
	cr_assert_eq(wire_take_event(TENSORHUB__V1__EVENT__BODY_BORROW_REFUSED, &no), TH_E_INVALID);
	no = refused, no.code = 0;
	cr_assert_eq(wire_take_event(TENSORHUB__V1__EVENT__BODY_BORROW_REFUSED, &no), TH_E_INVALID);
	no = refused, no.shard = TH_SHARDS_MAX;
	cr_assert_eq(wire_take_event(TENSORHUB__V1__EVENT__BODY_BORROW_REFUSED, &no), TH_E_INVALID);
}

Test(convert_offload, go_mark__of_no_model_or_version__is_refused)
{
	Tensorhub__V1__EvGoMark mark;
	Tensorhub__V1__Version version;

	tensorhub__v1__ev_go_mark__init(&mark);
	tensorhub__v1__version__init(&version);
	mark.model = text_good;
	cr_assert_eq(wire_take_event(TENSORHUB__V1__EVENT__BODY_GO_MARK, &mark), TH_E_INVALID);
	mark.version = &version;
	cr_assert_eq(wire_take_event(TENSORHUB__V1__EVENT__BODY_GO_MARK, &mark), 0);
	mark.model = text_empty;
	cr_assert_eq(wire_take_event(TENSORHUB__V1__EVENT__BODY_GO_MARK, &mark), TH_E_INVALID);
	mark.model = text_control;
	cr_assert_eq(wire_take_event(TENSORHUB__V1__EVENT__BODY_GO_MARK, &mark), TH_E_INVALID);
}

Test(convert_offload, rules__that_do_not_parse_or_of_no_model__are_refused)
{
	static char bad[][64] = {"latest,", "latest, 3", "all", "latest-0", "\x1b[2J",
		"1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"};
	static char full[] = "latest-1,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15";
	Tensorhub__V1__EvRules rules;
	struct ctl_event got;
	char longest[2 * TH_RETAIN_MAX];

	tensorhub__v1__ev_rules__init(&rules);
	cr_assert_eq(wire_take_event(TENSORHUB__V1__EVENT__BODY_RULES, &rules), TH_E_INVALID);
	rules.model = text_control;
	cr_assert_eq(wire_take_event(TENSORHUB__V1__EVENT__BODY_RULES, &rules), TH_E_INVALID);
	rules.model = text_good;
	for (size_t i = 0; i < TH_ARRAY_LEN(bad); i++) {
		rules.rules = bad[i];
		cr_assert_eq(wire_take_event(TENSORHUB__V1__EVENT__BODY_RULES, &rules),
			TH_E_INVALID, "%s", bad[i]);
		rules.rules = full;
		rules.shared = bad[i];
		cr_assert_eq(wire_take_event(TENSORHUB__V1__EVENT__BODY_RULES, &rules),
			TH_E_INVALID, "%s", bad[i]);
		rules.shared = full;
	}
	memset(longest, '1', sizeof(longest));
	for (size_t i = 2; i < sizeof(longest); i += 3)
		longest[i] = ',';
	longest[sizeof(longest) - 1] = '\0';
	rules.rules = longest;
	cr_assert_eq(wire_take_event(TENSORHUB__V1__EVENT__BODY_RULES, &rules), TH_E_INVALID);
	rules.rules = full;
	cr_assert_eq(take_event_as(TENSORHUB__V1__EVENT__BODY_RULES, &rules, &got), 0);
	cr_assert_str_eq(got.u.rules.rules, full);
	cr_assert_str_eq(got.u.rules.shared, full);
	cr_assert_not(got.u.rules.all);
}
