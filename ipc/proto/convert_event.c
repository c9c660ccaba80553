/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_event - struct ctl_event to and from the message Event, alone or in a reply to POLL.
 * Pure.
 */
#include <errno.h>
#include <string.h>

#include "ipc/base/name.h"
#include "ipc/proto/convert_internal.h"

#define EVENT(NAME) TENSORHUB__V1__EVENT__BODY_##NAME

/* ---- out ---------------------------------------------------------------------------------- */

static Tensorhub__V1__Grant *
out_grant(struct convert_arena *arena, const struct ctl_grant *grant)
{
	Tensorhub__V1__Grant *message = convert_message(arena, &tensorhub__v1__grant__descriptor);

	message->leg = grant->leg;
	message->ticket = convert_out_bytes(grant->ticket.bytes, sizeof(grant->ticket.bytes));
	message->source_sid = grant->source_sid;
	message->source_gen = grant->source_gen;
	message->source_agent_inc = grant->source_agent_inc;
	message->source_address = convert_out_text(grant->source_address);
	message->source_replica = convert_out_text(grant->source_replica);
	message->source_node = convert_out_text(grant->source_node);
	message->far = grant->far;
	return message;
}

static Tensorhub__V1__EvPlan *
out_plan(struct convert_arena *arena, const struct ctl_ev_plan *plan)
{
	Tensorhub__V1__EvPlan *body = convert_message(arena, &tensorhub__v1__ev_plan__descriptor);

	body->sid = plan->sid;
	body->op_seq = plan->op_seq;
	body->kind = plan->kind;
	body->drain_old = plan->drain_old;
	body->plan_no = plan->plan_no;
	body->version = convert_out_version(arena, plan->version);
	body->layout = convert_out_hash(arena, plan->layout);
	body->manifest = convert_out_hash(arena, plan->manifest);
	return body;
}

static Tensorhub__V1__EvGrant *
out_ev_grant(struct convert_arena *arena, const struct ctl_ev_grant *grant)
{
	Tensorhub__V1__EvGrant *body = convert_message(arena, &tensorhub__v1__ev_grant__descriptor);

	body->leg = grant->leg;
	body->ticket = convert_out_bytes(grant->ticket.bytes, sizeof(grant->ticket.bytes));
	body->sid = grant->sid;
	body->gen = grant->gen;
	body->reader_agent_inc = grant->reader_agent_inc;
	body->reader_node = convert_out_text(grant->reader_node);
	body->reader_replica = convert_out_text(grant->reader_replica);
	body->far = grant->far;
	return body;
}

static Tensorhub__V1__EvPart *
out_part(struct convert_arena *arena, const struct ctl_ev_part *part)
{
	Tensorhub__V1__EvPart *body = convert_message(arena, &tensorhub__v1__ev_part__descriptor);

	body->sid = part->sid;
	body->gen = part->gen;
	body->drain_no = part->drain_no;
	return body;
}

static Tensorhub__V1__EvOutcome *
convert_event_out_outcome(struct convert_arena *arena, const struct ctl_ev_outcome *outcome)
{
	Tensorhub__V1__EvOutcome *body =
		convert_message(arena, &tensorhub__v1__ev_outcome__descriptor);

	body->sid = outcome->sid;
	body->op_seq = outcome->op_seq;
	body->kind = outcome->kind;
	body->code = outcome->code;
	body->updated = outcome->updated;
	body->version = convert_out_version(arena, outcome->version);
	body->generation = outcome->generation;
	body->source = convert_out_text(outcome->source);
	body->text = convert_out_text(outcome->text);
	return body;
}

/* GO and REROUTE: a grant for the reader. */
static void
out_reader(
	struct convert_arena *arena, const struct ctl_event *event, Tensorhub__V1__Event *message)
{
	if (event->kind == CTL_EV_GO) {
		message->body_case = EVENT(GO);
		message->go = convert_message(arena, &tensorhub__v1__ev_go__descriptor);
		message->go->sid = event->u.go.sid;
		message->go->op_seq = event->u.go.op_seq;
		message->go->grant = out_grant(arena, &event->u.go.grant);
		message->go->attributes = convert_out_hash(arena, event->u.go.attributes);
		message->go->content = convert_out_hash(arena, event->u.go.content);
		message->go->reason = convert_out_text(event->u.go.reason);
	} else {
		message->body_case = EVENT(REROUTE);
		message->reroute = convert_message(arena, &tensorhub__v1__ev_reroute__descriptor);
		message->reroute->sid = event->u.reroute.sid;
		message->reroute->op_seq = event->u.reroute.op_seq;
		message->reroute->old_leg = event->u.reroute.old_leg;
		message->reroute->grant = out_grant(arena, &event->u.reroute.grant);
		message->reroute->content = convert_out_hash(arena, event->u.reroute.content);
	}
}

/* The kinds of two fields or fewer. */
static void
convert_event_out_short(
	struct convert_arena *arena, const struct ctl_event *event, Tensorhub__V1__Event *message)
{
	if (event->kind == CTL_EV_FENCE) {
		message->body_case = EVENT(FENCE);
		message->fence = convert_message(arena, &tensorhub__v1__ev_fence__descriptor);
		message->fence->leg = event->u.fence_leg;
	} else if (event->kind == CTL_EV_CANCEL) {
		message->body_case = EVENT(CANCEL);
		message->cancel = convert_message(arena, &tensorhub__v1__cancel__descriptor);
		message->cancel->sid = event->u.cancel.sid;
		message->cancel->op_seq = event->u.cancel.op_seq;
	} else if (event->kind == CTL_EV_CHANGED) {
		message->body_case = EVENT(CHANGED);
		message->changed = convert_message(arena, &tensorhub__v1__watch_reply__descriptor);
		message->changed->model = convert_out_text(event->u.changed.model);
		message->changed->generation = event->u.changed.generation;
	} else if (event->kind == CTL_EV_CONFLICT) {
		message->body_case = EVENT(CONFLICT);
		message->conflict = convert_message(arena, &tensorhub__v1__ev_broken__descriptor);
		message->conflict->sid = event->u.conflict.sid;
		message->conflict->text = convert_out_text(event->u.conflict.text);
	} else if (event->kind == CTL_EV_NODE) {
		message->body_case = EVENT(NODE);
		message->node = convert_message(arena, &tensorhub__v1__ev_node__descriptor);
		message->node->draining = event->u.node.draining;
		message->node->text = convert_out_text(event->u.node.text);
	} else {
		message->body_case = EVENT(BROKEN);
		message->broken = convert_message(arena, &tensorhub__v1__ev_broken__descriptor);
		message->broken->sid = event->u.broken.sid;
		message->broken->text = convert_out_text(event->u.broken.text);
		message->broken->evicted = event->u.broken.evicted;
	}
}

Tensorhub__V1__Event *
convert_out_event(struct convert_arena *arena, const struct ctl_event *event)
{
	Tensorhub__V1__Event *message = convert_message(arena, &tensorhub__v1__event__descriptor);

	message->number = event->number;
	switch (event->kind) {
	case CTL_EV_PLAN:
		message->body_case = EVENT(PLAN);
		message->plan = out_plan(arena, &event->u.plan);
		break;
	case CTL_EV_GO:
	case CTL_EV_REROUTE:
		out_reader(arena, event, message);
		break;
	case CTL_EV_GRANT:
		message->body_case = EVENT(GRANT);
		message->grant = out_ev_grant(arena, &event->u.grant);
		break;
	case CTL_EV_DRAIN:
		message->body_case = EVENT(DRAIN);
		message->drain = out_part(arena, &event->u.drain);
		break;
	case CTL_EV_UNDRAIN:
		message->body_case = EVENT(UNDRAIN);
		message->undrain = out_part(arena, &event->u.undrain);
		break;
	case CTL_EV_OUTCOME:
		message->body_case = EVENT(OUTCOME);
		message->outcome = convert_event_out_outcome(arena, &event->u.outcome);
		break;
	case CTL_EV_FENCE:
	case CTL_EV_CANCEL:
	case CTL_EV_CHANGED:
	case CTL_EV_BROKEN:
	case CTL_EV_CONFLICT:
	case CTL_EV_NODE:
		convert_event_out_short(arena, event, message);
		break;
	case CTL_EV_RESERVE:
	case CTL_EV_RELEASE:
	case CTL_EV_CLOSE_REFUSED:
	case CTL_EV_PING:
	case CTL_EV_AT_RISK:
	case CTL_EV_RULES:
	case CTL_EV_READY:
	case CTL_EV_BORROW_REFUSED:
	case CTL_EV_GO_MARK:
		convert_out_offload_event(arena, event, message);
		break;
	}
	return message;
}

int
ctl_event_pack(const struct ctl_event *event, uint8_t **ret_data, size_t *ret_bytes)
{
	struct convert_arena arena = {0};
	int rc;

	rc = convert_reserve(&arena, CONVERT_MESSAGES_PER_EVENT * CONVERT_BYTES_PER_MESSAGE);
	if (rc != 0)
		return rc;
	rc = convert_pack(&convert_out_event(&arena, event)->base, ret_data, ret_bytes);
	convert_arena_free(&arena);
	return rc;
}

/* ---- in ----------------------------------------------------------------------------------- */

static void
in_ticket(struct convert_in *in, const ProtobufCBinaryData *ticket, struct th_ticket *ret_ticket)
{
	if (ticket->len == sizeof(ret_ticket->bytes))
		memcpy(ret_ticket->bytes, ticket->data, sizeof(ret_ticket->bytes));
	else
		convert_in_fail(in, TH_E_INVALID, "ticket", "has not 16 bytes");
}

static void
in_grant(struct convert_in *in, const Tensorhub__V1__Grant *message, struct ctl_grant *ret_grant)
{
	if (message == NULL) {
		convert_in_fail(in, TH_E_INVALID, "grant", "is missing");
		return;
	}
	in_ticket(in, &message->ticket, &ret_grant->ticket);
	convert_in_name(in, "source_address", message->source_address, TH_ADDRESS_MAX,
		ret_grant->source_address);
	convert_in_name(in, "source_replica", message->source_replica, TH_NAME_MAX,
		ret_grant->source_replica);
	convert_in_name(
		in, "source_node", message->source_node, TH_NAME_MAX, ret_grant->source_node);
	ret_grant->leg = message->leg;
	ret_grant->source_sid = message->source_sid;
	ret_grant->source_gen = message->source_gen;
	ret_grant->source_agent_inc = message->source_agent_inc;
	ret_grant->far = message->far;
}

static void
in_plan(struct convert_in *in, const Tensorhub__V1__EvPlan *body, struct ctl_ev_plan *ret_plan)
{
	in->message = "PLAN";
	convert_in_op_kind(in, body->kind, &ret_plan->kind);
	convert_in_version(body->version, &ret_plan->version);
	convert_in_check(in, !th_version_none(ret_plan->version), "version", "is missing");
	convert_in_hash(in, "layout", body->layout, true, &ret_plan->layout);
	convert_in_hash(in, "manifest", body->manifest, true, &ret_plan->manifest);
	ret_plan->sid = body->sid;
	ret_plan->op_seq = body->op_seq;
	ret_plan->drain_old = body->drain_old;
	ret_plan->plan_no = body->plan_no;
}

static void
in_go(struct convert_in *in, const Tensorhub__V1__EvGo *body, struct ctl_ev_go *ret_go)
{
	in->message = "GO";
	in_grant(in, body->grant, &ret_go->grant);
	convert_in_hash(in, "attributes", body->attributes, false, &ret_go->attributes);
	convert_in_hash(in, "content", body->content, false, &ret_go->content);
	convert_in_sentence(body->reason, sizeof(ret_go->reason), ret_go->reason);
	ret_go->sid = body->sid;
	ret_go->op_seq = body->op_seq;
}

static void
in_reroute(struct convert_in *in, const Tensorhub__V1__EvReroute *body,
	struct ctl_ev_reroute *ret_reroute)
{
	in->message = "REROUTE";
	in_grant(in, body->grant, &ret_reroute->grant);
	convert_in_hash(in, "content", body->content, false, &ret_reroute->content);
	ret_reroute->sid = body->sid;
	ret_reroute->op_seq = body->op_seq;
	ret_reroute->old_leg = body->old_leg;
}

static void
in_ev_grant(
	struct convert_in *in, const Tensorhub__V1__EvGrant *body, struct ctl_ev_grant *ret_grant)
{
	in->message = "GRANT";
	in_ticket(in, &body->ticket, &ret_grant->ticket);
	convert_in_name(in, "reader_node", body->reader_node, TH_NAME_MAX, ret_grant->reader_node);
	convert_in_name(
		in, "reader_replica", body->reader_replica, TH_NAME_MAX, ret_grant->reader_replica);
	ret_grant->leg = body->leg;
	ret_grant->sid = body->sid;
	ret_grant->gen = body->gen;
	ret_grant->reader_agent_inc = body->reader_agent_inc;
	ret_grant->far = body->far;
}

static void
convert_event_in_outcome(struct convert_in *in, const Tensorhub__V1__EvOutcome *body,
	struct ctl_ev_outcome *ret_outcome)
{
	in->message = "OUTCOME";
	convert_in_op_kind(in, body->kind, &ret_outcome->kind);
	convert_in_code(in, body->code, &ret_outcome->code);
	convert_in_version(body->version, &ret_outcome->version);
	convert_in_name_or_empty(in, "source", body->source, TH_NAME_MAX, ret_outcome->source);
	convert_in_sentence(body->text, sizeof(ret_outcome->text), ret_outcome->text);
	ret_outcome->sid = body->sid;
	ret_outcome->op_seq = body->op_seq;
	ret_outcome->updated = body->updated;
	ret_outcome->generation = body->generation;
}

static void
in_part(const Tensorhub__V1__EvPart *body, struct ctl_ev_part *ret_part)
{
	*ret_part = (struct ctl_ev_part){body->sid, body->gen, body->drain_no};
}

static void
convert_event_in_body(
	struct convert_in *in, const Tensorhub__V1__Event *message, struct ctl_event *event)
{
	switch ((int)message->body_case) {
	case EVENT(PLAN):
		event->kind = CTL_EV_PLAN;
		in_plan(in, message->plan, &event->u.plan);
		break;
	case EVENT(GO):
		event->kind = CTL_EV_GO;
		in_go(in, message->go, &event->u.go);
		break;
	case EVENT(REROUTE):
		event->kind = CTL_EV_REROUTE;
		in_reroute(in, message->reroute, &event->u.reroute);
		break;
	case EVENT(GRANT):
		event->kind = CTL_EV_GRANT;
		in_ev_grant(in, message->grant, &event->u.grant);
		break;
	case EVENT(FENCE):
		event->kind = CTL_EV_FENCE;
		event->u.fence_leg = message->fence->leg;
		break;
	case EVENT(DRAIN):
		event->kind = CTL_EV_DRAIN;
		in_part(message->drain, &event->u.drain);
		break;
	case EVENT(UNDRAIN):
		event->kind = CTL_EV_UNDRAIN;
		in_part(message->undrain, &event->u.undrain);
		break;
	case EVENT(CANCEL):
		event->kind = CTL_EV_CANCEL;
		event->u.cancel =
			(struct ctl_cancel){message->cancel->sid, message->cancel->op_seq};
		break;
	case EVENT(OUTCOME):
		event->kind = CTL_EV_OUTCOME;
		convert_event_in_outcome(in, message->outcome, &event->u.outcome);
		break;
	case EVENT(CHANGED):
		event->kind = CTL_EV_CHANGED;
		in->message = "CHANGED";
		convert_in_name(
			in, "model", message->changed->model, TH_NAME_MAX, event->u.changed.model);
		event->u.changed.generation = message->changed->generation;
		break;
	case EVENT(BROKEN):
		event->kind = CTL_EV_BROKEN;
		event->u.broken.sid = message->broken->sid;
		event->u.broken.evicted = message->broken->evicted;
		convert_in_sentence(
			message->broken->text, sizeof(event->u.broken.text), event->u.broken.text);
		break;
	case EVENT(NODE):
		event->kind = CTL_EV_NODE;
		event->u.node.draining = message->node->draining;
		convert_in_sentence(
			message->node->text, sizeof(event->u.node.text), event->u.node.text);
		break;
	case EVENT(CONFLICT):
		event->kind = CTL_EV_CONFLICT;
		event->u.conflict.sid = message->conflict->sid;
		convert_in_sentence(message->conflict->text, sizeof(event->u.conflict.text),
			event->u.conflict.text);
		break;
	default:
		if (convert_in_offload_event(in, message, event))
			break;
		in->message = "event";
		convert_in_fail(in, TH_E_INVALID, "the body",
			"is missing or of a kind that this version does not know");
		break;
	}
}

void
convert_in_event(
	struct convert_in *in, const Tensorhub__V1__Event *message, struct ctl_event *ret_event)
{
	*ret_event = (struct ctl_event){.number = message->number};
	in->message = "event";
	convert_in_check(in, message->number != 0, "number", "is 0");
	convert_event_in_body(in, message, ret_event);
}

int
ctl_event_unpack(const uint8_t *data, size_t bytes, struct convert_arena *arena, struct th_err *err,
	struct ctl_event *ret_event)
{
	struct convert_in in = {.message = "event", .arena = arena, .err = err};
	Tensorhub__V1__Event *message;
	struct ctl_event event;

	message = convert_unpack(&tensorhub__v1__event__descriptor, data, bytes, arena, err);
	if (message == NULL)
		return -EPROTO;
	convert_in_event(&in, message, &event);
	if (in.code != 0)
		return in.code;
	*ret_event = event;
	return 0;
}
