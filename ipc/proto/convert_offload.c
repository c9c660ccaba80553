/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_offload - the messages of copies in agents' memory and of retention: RESERVE, RESERVED,
 * RELEASE, CLOSE_REFUSED, AT_RISK, RULES, READY, BORROW, BORROW_REFUSED, GO_MARK, and the rules in
 * an OPEN. Pure.
 */
#include <string.h>

#include "ipc/base/name.h"
#include "ipc/base/retain_rules.h"
#include "ipc/proto/convert_internal.h"

#define EVENT(NAME) TENSORHUB__V1__EVENT__BODY_##NAME

/* ---- out ---------------------------------------------------------------------------------- */

Tensorhub__V1__Reserved *
convert_out_reserved(struct convert_arena *arena, const struct ctl_reserved *reserved)
{
	Tensorhub__V1__Reserved *body =
		convert_message(arena, &tensorhub__v1__reserved__descriptor);

	body->reservation = reserved->reservation;
	body->shard = reserved->shard;
	body->code = reserved->code;
	body->text = convert_out_text(reserved->text);
	return body;
}

Tensorhub__V1__Borrow *
convert_out_borrow(struct convert_arena *arena, const struct ctl_borrow *borrow)
{
	Tensorhub__V1__Borrow *body = convert_message(arena, &tensorhub__v1__borrow__descriptor);

	body->model = convert_out_text(borrow->model);
	body->version = convert_out_version(arena, borrow->version);
	body->shard = borrow->shard;
	body->stop = borrow->stop;
	body->held = borrow->held;
	body->room = borrow->room;
	return body;
}

static Tensorhub__V1__EvBorrowRefused *
out_borrow_refused(struct convert_arena *arena, const struct ctl_ev_borrow_refused *refused)
{
	Tensorhub__V1__EvBorrowRefused *body =
		convert_message(arena, &tensorhub__v1__ev_borrow_refused__descriptor);

	body->model = convert_out_text(refused->model);
	body->version = convert_out_version(arena, refused->version);
	body->shard = refused->shard;
	body->code = refused->code;
	body->text = convert_out_text(refused->text);
	return body;
}

static Tensorhub__V1__EvReserve *
out_reserve(struct convert_arena *arena, const struct ctl_ev_reserve *reserve)
{
	Tensorhub__V1__EvReserve *body =
		convert_message(arena, &tensorhub__v1__ev_reserve__descriptor);

	body->reservation = reserve->reservation;
	body->model = convert_out_text(reserve->model);
	body->replica = convert_out_text(reserve->replica);
	body->shard = reserve->shard;
	body->num_shards = reserve->num_shards;
	body->version = convert_out_version(arena, reserve->version);
	body->bytes = reserve->bytes;
	body->num_chunks = reserve->num_chunks;
	body->layout = convert_out_hash(arena, reserve->layout);
	body->manifest = convert_out_hash(arena, reserve->manifest);
	body->source_sid = reserve->source_sid;
	body->copy_why = reserve->copy_why;
	return body;
}

void
convert_out_offload_event(
	struct convert_arena *arena, const struct ctl_event *event, Tensorhub__V1__Event *message)
{
	if (event->kind == CTL_EV_RESERVE) {
		message->body_case = EVENT(RESERVE);
		message->reserve = out_reserve(arena, &event->u.reserve);
	} else if (event->kind == CTL_EV_RELEASE) {
		message->body_case = EVENT(RELEASE);
		message->release = convert_message(arena, &tensorhub__v1__ev_release__descriptor);
		message->release->reservation = event->u.release.reservation;
		message->release->shard = event->u.release.shard;
		message->release->sid = event->u.release.sid;
	} else if (event->kind == CTL_EV_PING) {
		message->body_case = EVENT(PING);
		message->ping = convert_message(arena, &tensorhub__v1__ev_ping__descriptor);
	} else if (event->kind == CTL_EV_AT_RISK) {
		message->body_case = EVENT(AT_RISK);
		message->at_risk = convert_message(arena, &tensorhub__v1__ev_broken__descriptor);
		message->at_risk->sid = event->u.at_risk.sid;
		message->at_risk->text = convert_out_text(event->u.at_risk.text);
	} else if (event->kind == CTL_EV_RULES) {
		message->body_case = EVENT(RULES);
		message->rules = convert_message(arena, &tensorhub__v1__ev_rules__descriptor);
		message->rules->model = convert_out_text(event->u.rules.model);
		message->rules->all = event->u.rules.all;
		message->rules->rules = convert_out_text(event->u.rules.rules);
		message->rules->shared = convert_out_text(event->u.rules.shared);
	} else if (event->kind == CTL_EV_READY) {
		message->body_case = EVENT(READY);
		message->ready = convert_message(arena, &tensorhub__v1__ev_ready__descriptor);
		message->ready->sid = event->u.ready.sid;
		message->ready->version = convert_out_version(arena, event->u.ready.version);
	} else if (event->kind == CTL_EV_BORROW_REFUSED) {
		message->body_case = EVENT(BORROW_REFUSED);
		message->borrow_refused = out_borrow_refused(arena, &event->u.borrow_refused);
	} else if (event->kind == CTL_EV_GO_MARK) {
		message->body_case = EVENT(GO_MARK);
		message->go_mark = convert_message(arena, &tensorhub__v1__ev_go_mark__descriptor);
		message->go_mark->model = convert_out_text(event->u.go_mark.model);
		message->go_mark->version = convert_out_version(arena, event->u.go_mark.version);
	} else {
		message->body_case = EVENT(CLOSE_REFUSED);
		message->close_refused =
			convert_message(arena, &tensorhub__v1__ev_close_refused__descriptor);
		message->close_refused->sid = event->u.close_refused.sid;
		message->close_refused->code = event->u.close_refused.code;
		message->close_refused->text = convert_out_text(event->u.close_refused.text);
	}
}

/* ---- in ----------------------------------------------------------------------------------- */

void
convert_in_retain(struct convert_in *in, const char *text, char ret_rules[TH_RETAIN_MAX + 1])
{
	struct th_retain rules;

	ret_rules[0] = '\0';
	if (text == NULL || text[0] == '\0')
		return;
	if (th_retain_parse(text, &rules, NULL) == 0)
		memcpy(ret_rules, text, strlen(text) + 1);
	else
		convert_in_fail(in, TH_E_INVALID, "retain",
			"is no list of at most 16 rules latest, latest-K or a number");
}

static void
in_shard(struct convert_in *in, uint32_t shard, uint32_t num_shards)
{
	convert_in_check(in, num_shards >= 1 && num_shards <= TH_SHARDS_MAX, "num_shards",
		"is not 1 to 1024");
	convert_in_check(in, shard < num_shards, "shard", "is not below num_shards");
}

/* A refusal that names no cause would be none. */
static void
in_cause(struct convert_in *in, int32_t value, int *ret_code)
{
	convert_in_code(in, value, ret_code);
	convert_in_check(in, value != 0, "code", "is 0");
}

void
convert_in_reserved(struct convert_in *in, const Tensorhub__V1__Reserved *message,
	struct ctl_reserved *ret_reserved)
{
	in->message = "RESERVED";
	in_shard(in, message->shard, TH_SHARDS_MAX);
	in_cause(in, message->code, &ret_reserved->code);
	convert_in_sentence(message->text, sizeof(ret_reserved->text), ret_reserved->text);
	ret_reserved->reservation = message->reservation;
	ret_reserved->shard = message->shard;
}

void
convert_in_borrow(
	struct convert_in *in, const Tensorhub__V1__Borrow *message, struct ctl_borrow *ret_borrow)
{
	in->message = "BORROW";
	convert_in_name(in, "model", message->model, TH_NAME_MAX, ret_borrow->model);
	convert_in_version(message->version, &ret_borrow->version);
	convert_in_check(in, !th_version_none(ret_borrow->version), "version", "is missing");
	in_shard(in, message->shard, TH_SHARDS_MAX);
	ret_borrow->shard = message->shard;
	ret_borrow->stop = message->stop;
	ret_borrow->held = message->held;
	ret_borrow->room = message->room;
}

static void
in_borrow_refused(struct convert_in *in, const Tensorhub__V1__EvBorrowRefused *body,
	struct ctl_ev_borrow_refused *ret_refused)
{
	in->message = "BORROW_REFUSED";
	convert_in_name(in, "model", body->model, TH_NAME_MAX, ret_refused->model);
	convert_in_version(body->version, &ret_refused->version);
	convert_in_check(in, !th_version_none(ret_refused->version), "version", "is missing");
	in_shard(in, body->shard, TH_SHARDS_MAX);
	in_cause(in, body->code, &ret_refused->code);
	convert_in_sentence(body->text, sizeof(ret_refused->text), ret_refused->text);
	ret_refused->shard = body->shard;
}

enum ctl_copy_why
convert_in_copy_why(uint32_t why)
{
	return why <= CTL_COPY_BORROW ? (enum ctl_copy_why)why : CTL_COPY_UNSAID;
}

static void
in_reserve(struct convert_in *in, const Tensorhub__V1__EvReserve *body,
	struct ctl_ev_reserve *ret_reserve)
{
	in->message = "RESERVE";
	convert_in_check(in, body->reservation != 0, "reservation", "is 0");
	convert_in_name(in, "model", body->model, TH_NAME_MAX, ret_reserve->model);
	convert_in_name(in, "replica", body->replica, TH_NAME_MAX, ret_reserve->replica);
	in_shard(in, body->shard, body->num_shards);
	convert_in_version(body->version, &ret_reserve->version);
	convert_in_check(in, !th_version_none(ret_reserve->version), "version", "is missing");
	convert_in_hash(in, "layout", body->layout, true, &ret_reserve->layout);
	convert_in_hash(in, "manifest", body->manifest, true, &ret_reserve->manifest);
	ret_reserve->reservation = body->reservation;
	ret_reserve->shard = body->shard;
	ret_reserve->num_shards = body->num_shards;
	ret_reserve->bytes = body->bytes;
	ret_reserve->num_chunks = body->num_chunks;
	ret_reserve->source_sid = body->source_sid;
	ret_reserve->copy_why = convert_in_copy_why(body->copy_why);
}

bool
convert_in_offload_event(
	struct convert_in *in, const Tensorhub__V1__Event *message, struct ctl_event *ret_event)
{
	switch ((int)message->body_case) {
	case EVENT(RESERVE):
		ret_event->kind = CTL_EV_RESERVE;
		in_reserve(in, message->reserve, &ret_event->u.reserve);
		return true;
	case EVENT(RELEASE):
		ret_event->kind = CTL_EV_RELEASE;
		in->message = "RELEASE";
		in_shard(in, message->release->shard, TH_SHARDS_MAX);
		ret_event->u.release = (struct ctl_ev_release){message->release->reservation,
			message->release->shard, message->release->sid};
		return true;
	case EVENT(CLOSE_REFUSED):
		ret_event->kind = CTL_EV_CLOSE_REFUSED;
		in->message = "CLOSE_REFUSED";
		in_cause(in, message->close_refused->code, &ret_event->u.close_refused.code);
		convert_in_sentence(message->close_refused->text,
			sizeof(ret_event->u.close_refused.text), ret_event->u.close_refused.text);
		ret_event->u.close_refused.sid = message->close_refused->sid;
		return true;
	case EVENT(PING):
		ret_event->kind = CTL_EV_PING;
		return true;
	case EVENT(AT_RISK):
		ret_event->kind = CTL_EV_AT_RISK;
		ret_event->u.at_risk.sid = message->at_risk->sid;
		convert_in_sentence(message->at_risk->text, sizeof(ret_event->u.at_risk.text),
			ret_event->u.at_risk.text);
		return true;
	case EVENT(RULES):
		ret_event->kind = CTL_EV_RULES;
		in->message = "RULES";
		convert_in_name(
			in, "model", message->rules->model, TH_NAME_MAX, ret_event->u.rules.model);
		convert_in_retain(in, message->rules->rules, ret_event->u.rules.rules);
		convert_in_retain(in, message->rules->shared, ret_event->u.rules.shared);
		ret_event->u.rules.all = message->rules->all;
		return true;
	case EVENT(READY):
		ret_event->kind = CTL_EV_READY;
		ret_event->u.ready.sid = message->ready->sid;
		convert_in_version(message->ready->version, &ret_event->u.ready.version);
		return true;
	case EVENT(BORROW_REFUSED):
		ret_event->kind = CTL_EV_BORROW_REFUSED;
		in_borrow_refused(in, message->borrow_refused, &ret_event->u.borrow_refused);
		return true;
	case EVENT(GO_MARK):
		ret_event->kind = CTL_EV_GO_MARK;
		in->message = "GO_MARK";
		convert_in_name(in, "model", message->go_mark->model, TH_NAME_MAX,
			ret_event->u.go_mark.model);
		convert_in_version(message->go_mark->version, &ret_event->u.go_mark.version);
		convert_in_check(in, !th_version_none(ret_event->u.go_mark.version), "version",
			"is missing");
		return true;
	default:
		return false;
	}
}
