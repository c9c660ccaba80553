/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_reply - struct ctl_reply to and from the message Reply. Pure.
 *
 * A reply does not say to which kind of request it belongs, most have no body: whoever asked
 * knows.
 */
#include <errno.h>

#include "ipc/base/name.h"
#include "ipc/proto/convert_internal.h"

#define REPLY(NAME) TENSORHUB__V1__REPLY__BODY_##NAME

/* ---- out ---------------------------------------------------------------------------------- */

/* How many messages the reply becomes, at most. */
static size_t
messages_of(const struct ctl_reply *reply)
{
	size_t messages = 6;

	if (reply->code != 0)
		return messages;
	if (reply->kind == CTL_POLL)
		messages += (size_t)reply->u.poll.num_events * CONVERT_MESSAGES_PER_EVENT;
	else if (reply->kind == CTL_LIST)
		messages += convert_listing_messages(&reply->u.list);
	else if (reply->kind == CTL_INSPECT)
		messages += convert_inspection_messages(&reply->u.inspect);
	else if (reply->kind == CTL_ADMIN)
		messages += convert_admin_messages(&reply->u.admin);
	return messages;
}

static Tensorhub__V1__PollReply *
out_poll(struct convert_arena *arena, const struct ctl_poll_reply *poll)
{
	Tensorhub__V1__PollReply *body =
		convert_message(arena, &tensorhub__v1__poll_reply__descriptor);

	body->n_events = poll->num_events;
	body->events = convert_pointers(arena, poll->num_events);
	for (uint32_t i = 0; i < poll->num_events; i++)
		body->events[i] = convert_out_event(arena, &poll->events[i]);
	return body;
}

static Tensorhub__V1__ResolveReply *
out_resolve(struct convert_arena *arena, const struct ctl_resolve_reply *resolve)
{
	Tensorhub__V1__ResolveReply *body =
		convert_message(arena, &tensorhub__v1__resolve_reply__descriptor);

	body->version = convert_out_version(arena, resolve->version);
	body->num_shards = resolve->num_shards;
	body->layout = convert_out_hash(arena, resolve->layout);
	body->manifest = convert_out_hash(arena, resolve->manifest);
	body->attributes = convert_out_hash(arena, resolve->attributes);
	return body;
}

/* The replies of two numbers. */
static void
convert_reply_out_short(
	struct convert_arena *arena, const struct ctl_reply *reply, Tensorhub__V1__Reply *message)
{
	if (reply->kind == CTL_HELLO) {
		message->body_case = REPLY(HELLO);
		message->hello = convert_message(arena, &tensorhub__v1__hello_reply__descriptor);
		message->hello->server_inc = reply->u.hello.server_inc;
		message->hello->protocol = reply->u.hello.protocol;
		message->hello->epoch = reply->u.hello.epoch;
		message->hello->serving = reply->u.hello.serving;
		message->hello->cluster = convert_out_text(reply->u.hello.cluster);
	} else if (reply->kind == CTL_ATTACH) {
		message->body_case = REPLY(ATTACH);
		message->attach = convert_message(arena, &tensorhub__v1__attach_reply__descriptor);
		message->attach->server_inc = reply->u.attach.server_inc;
		message->attach->fresh = reply->u.attach.fresh;
		message->attach->attach_no = reply->u.attach.attach_no;
		message->attach->epoch = reply->u.attach.epoch;
	} else if (reply->kind == CTL_OPEN || reply->kind == CTL_REJOIN) {
		message->body_case = REPLY(OPEN);
		message->open = convert_message(arena, &tensorhub__v1__open_reply__descriptor);
		message->open->sid = reply->u.open.sid;
		message->open->next_op_seq = reply->u.open.next_op_seq;
		message->open->group_inc = reply->u.open.group_inc;
	} else if (reply->kind == CTL_WATCH) {
		message->body_case = REPLY(WATCH);
		message->watch = convert_message(arena, &tensorhub__v1__watch_reply__descriptor);
		message->watch->model = convert_out_text(reply->u.watch.model);
		message->watch->generation = reply->u.watch.generation;
	}
}

static void
convert_reply_out_body(
	struct convert_arena *arena, const struct ctl_reply *reply, Tensorhub__V1__Reply *message)
{
	if (reply->kind == CTL_POLL) {
		message->body_case = REPLY(POLL);
		message->poll = out_poll(arena, &reply->u.poll);
	} else if (reply->kind == CTL_MANIFEST_GET) {
		message->body_case = REPLY(MANIFEST_GET);
		message->manifest_get = convert_out_blob_part(arena, &reply->u.manifest_get);
	} else if (reply->kind == CTL_LIST) {
		message->body_case = REPLY(LIST);
		message->list = convert_out_listing(arena, &reply->u.list);
	} else if (reply->kind == CTL_RESOLVE) {
		message->body_case = REPLY(RESOLVE);
		message->resolve = out_resolve(arena, &reply->u.resolve);
	} else if (reply->kind == CTL_WAITS) {
		message->body_case = REPLY(WAITS);
		message->waits = convert_message(arena, &tensorhub__v1__waits_reply__descriptor);
		message->waits->text = convert_out_text(reply->u.waits.text);
	} else if (reply->kind == CTL_INSPECT) {
		message->body_case = REPLY(INSPECT);
		message->inspect = convert_out_inspection(arena, &reply->u.inspect);
	} else if (reply->kind == CTL_ADMIN) {
		message->body_case = REPLY(ADMIN);
		message->admin = convert_out_admin_reply(arena, &reply->u.admin);
	} else {
		convert_reply_out_short(arena, reply, message);
	}
}

int
ctl_reply_pack(const struct ctl_reply *reply, uint8_t **ret_data, size_t *ret_bytes)
{
	Tensorhub__V1__Reply message;
	struct convert_arena arena = {0};
	uint64_t bytes;
	int rc;

	if (!th_mul_u64(messages_of(reply), CONVERT_BYTES_PER_MESSAGE, &bytes))
		return TH_E_LIMIT;
	rc = convert_reserve(&arena, bytes);
	if (rc != 0)
		return rc;
	tensorhub__v1__reply__init(&message);
	message.request_no = reply->request_no;
	message.code = reply->code;
	message.unknown_agent = reply->unknown_agent;
	message.text = convert_out_text(reply->text);
	if (reply->code == 0)
		convert_reply_out_body(&arena, reply, &message);
	rc = convert_pack(&message.base, ret_data, ret_bytes);
	convert_arena_free(&arena);
	return rc;
}

/* ---- in ----------------------------------------------------------------------------------- */

/* Which body a kind of reply has when its code is 0. */
static int
body_of(enum ctl_request_kind kind)
{
	switch ((int)kind) {
	case CTL_HELLO:
		return REPLY(HELLO);
	case CTL_ATTACH:
		return REPLY(ATTACH);
	case CTL_POLL:
		return REPLY(POLL);
	case CTL_OPEN:
	case CTL_REJOIN:
		return REPLY(OPEN);
	case CTL_MANIFEST_GET:
		return REPLY(MANIFEST_GET);
	case CTL_WATCH:
		return REPLY(WATCH);
	case CTL_LIST:
		return REPLY(LIST);
	case CTL_RESOLVE:
		return REPLY(RESOLVE);
	case CTL_WAITS:
		return REPLY(WAITS);
	case CTL_INSPECT:
		return REPLY(INSPECT);
	case CTL_ADMIN:
		return REPLY(ADMIN);
	default:
		return TENSORHUB__V1__REPLY__BODY__NOT_SET;
	}
}

static void
in_poll(struct convert_in *in, const Tensorhub__V1__PollReply *body,
	struct ctl_poll_reply *ret_poll)
{
	struct ctl_event *events;

	if (body->n_events > TH_EVENTS_MAX) {
		convert_in_fail(in, TH_E_INVALID, "events", "are more than 64");
		return;
	}
	events = convert_alloc_array(in->arena, body->n_events, sizeof(*events));
	if (events == NULL) {
		convert_in_fail(in, -ENOMEM, "events", "do not fit in memory");
		return;
	}
	for (size_t i = 0; i < body->n_events; i++)
		convert_in_event(in, body->events[i], &events[i]);
	ret_poll->num_events = (uint32_t)body->n_events;
	ret_poll->events = events;
}

static void
convert_reply_in_resolve(struct convert_in *in, const Tensorhub__V1__ResolveReply *body,
	struct ctl_resolve_reply *ret_resolve)
{
	convert_in_version(body->version, &ret_resolve->version);
	convert_in_check(in, !th_version_none(ret_resolve->version), "version", "is missing");
	convert_in_check(in, body->num_shards >= 1 && body->num_shards <= TH_SHARDS_MAX,
		"num_shards", "is not 1 to 1024");
	convert_in_hash(in, "layout", body->layout, true, &ret_resolve->layout);
	convert_in_hash(in, "manifest", body->manifest, true, &ret_resolve->manifest);
	convert_in_hash(in, "attributes", body->attributes, false, &ret_resolve->attributes);
	ret_resolve->num_shards = body->num_shards;
}

static void
convert_reply_in_body(
	struct convert_in *in, const Tensorhub__V1__Reply *message, struct ctl_reply *reply)
{
	switch ((int)reply->kind) {
	case CTL_HELLO:
		reply->u.hello.server_inc = message->hello->server_inc;
		reply->u.hello.protocol = message->hello->protocol;
		reply->u.hello.epoch = message->hello->epoch;
		reply->u.hello.serving = message->hello->serving;
		convert_in_name_or_empty(in, "cluster", message->hello->cluster, TH_CLUSTER_MAX,
			reply->u.hello.cluster);
		break;
	case CTL_ATTACH:
		reply->u.attach.server_inc = message->attach->server_inc;
		reply->u.attach.fresh = message->attach->fresh;
		reply->u.attach.attach_no = message->attach->attach_no;
		reply->u.attach.epoch = message->attach->epoch;
		convert_in_check(
			in, message->attach->epoch <= TH_EPOCH_MAX, "epoch", "is too high");
		break;
	case CTL_POLL:
		in_poll(in, message->poll, &reply->u.poll);
		break;
	case CTL_OPEN:
	case CTL_REJOIN:
		reply->u.open.sid = message->open->sid;
		reply->u.open.next_op_seq = message->open->next_op_seq;
		reply->u.open.group_inc = message->open->group_inc;
		break;
	case CTL_MANIFEST_GET:
		convert_in_blob_part(in, message->manifest_get, &reply->u.manifest_get);
		break;
	case CTL_WATCH:
		convert_in_name(
			in, "model", message->watch->model, TH_NAME_MAX, reply->u.watch.model);
		reply->u.watch.generation = message->watch->generation;
		break;
	case CTL_LIST:
		convert_in_listing(in, message->list, &reply->u.list);
		break;
	case CTL_RESOLVE:
		convert_reply_in_resolve(in, message->resolve, &reply->u.resolve);
		break;
	case CTL_WAITS:
		convert_in_sentence(
			message->waits->text, sizeof(reply->u.waits.text), reply->u.waits.text);
		break;
	case CTL_INSPECT:
		convert_in_inspection(in, message->inspect, &reply->u.inspect);
		break;
	case CTL_ADMIN:
		convert_in_admin_reply(in, message->admin, &reply->u.admin);
		break;
	default: /* the code is all there is */
		break;
	}
}

int
ctl_reply_unpack(const uint8_t *data, size_t bytes, enum ctl_request_kind kind,
	struct convert_arena *arena, struct th_err *err, struct ctl_reply *ret_reply)
{
	struct convert_in in = {.message = "reply", .arena = arena, .err = err};
	struct ctl_reply reply = {.kind = kind};
	Tensorhub__V1__Reply *message;

	message = convert_unpack(&tensorhub__v1__reply__descriptor, data, bytes, arena, err);
	if (message == NULL)
		return -EPROTO;
	reply.request_no = message->request_no;
	reply.unknown_agent = message->unknown_agent;
	convert_in_code(&in, message->code, &reply.code);
	convert_in_sentence(message->text, sizeof(reply.text), reply.text);
	if (reply.code == 0 && (int)message->body_case != body_of(kind))
		convert_in_fail(
			&in, -EPROTO, "the body", "is not what this kind of request asks for");
	else if (reply.code == 0)
		convert_reply_in_body(&in, message, &reply);
	if (in.code != 0)
		return in.code;
	*ret_reply = reply;
	return 0;
}
