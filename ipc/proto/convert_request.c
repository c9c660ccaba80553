/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_request - struct ctl_request to and from the message Request. Both directions of one
 * kind stand in the same order as the kinds. Pure.
 */
#include <errno.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/proto/convert_internal.h"

#define REQUEST(NAME) TENSORHUB__V1__REQUEST__BODY_##NAME

/* ---- out ---------------------------------------------------------------------------------- */

static void
out_attach(struct convert_arena *arena, const struct ctl_attach *attach,
	Tensorhub__V1__Request *message)
{
	Tensorhub__V1__Attach *body = convert_message(arena, &tensorhub__v1__attach__descriptor);

	body->node = convert_out_text(attach->node);
	body->datacenter = convert_out_text(attach->datacenter);
	body->data_address = convert_out_text(attach->data_address);
	body->spot = attach->spot;
	body->offload_bytes = attach->offload_bytes;
	body->server_inc = attach->server_inc;
	body->epoch = attach->epoch;
	body->draining = attach->draining;
	body->leaving = attach->leaving;
	body->cluster = convert_out_text(attach->cluster);
	message->body_case = REQUEST(ATTACH);
	message->attach = body;
}

static void
out_beat(struct convert_arena *arena, const struct ctl_beat *beat, Tensorhub__V1__Request *message)
{
	Tensorhub__V1__Beat *body = convert_message(arena, &tensorhub__v1__beat__descriptor);

	body->n_legs = beat->num_legs;
	body->legs = convert_pointers(arena, beat->num_legs);
	for (uint32_t i = 0; i < beat->num_legs; i++) {
		body->legs[i] = convert_message(arena, &tensorhub__v1__leg_progress__descriptor);
		body->legs[i]->leg = beat->legs[i].leg;
		body->legs[i]->chunks_verified = beat->legs[i].chunks_verified;
		body->legs[i]->bytes_moved = beat->legs[i].bytes_moved;
		const struct ctl_path *path = beat->legs[i].path;
		if (path == NULL)
			continue;
		body->legs[i]->path = convert_out_text(path->name);
		body->legs[i]->rate = path->rate;
		body->legs[i]->why = convert_out_text(path->why);
	}
	message->body_case = REQUEST(BEAT);
	message->beat = body;
}

static void
out_op(struct convert_arena *arena, const struct ctl_op *op, Tensorhub__V1__Request *message)
{
	Tensorhub__V1__Op *body = convert_message(arena, &tensorhub__v1__op__descriptor);

	body->sid = op->sid;
	body->op_seq = op->op_seq;
	body->kind = op->kind;
	body->flags = op->flags;
	body->timeout_ns = op->timeout_ns;
	body->spec = convert_out_text(op->spec);
	body->attributes = convert_out_hash(arena, op->attributes);
	message->body_case = REQUEST(OP);
	message->op = body;
}

static void
out_prepared(struct convert_arena *arena, const struct ctl_prepared *prepared,
	Tensorhub__V1__Request *message)
{
	Tensorhub__V1__Prepared *body =
		convert_message(arena, &tensorhub__v1__prepared__descriptor);

	body->sid = prepared->sid;
	body->op_seq = prepared->op_seq;
	body->code = prepared->code;
	body->plan_no = prepared->plan_no;
	body->text = convert_out_text(prepared->text);
	message->body_case = REQUEST(PREPARED);
	message->prepared = body;
}

static void
out_leg_end(
	struct convert_arena *arena, const struct ctl_leg_end *end, Tensorhub__V1__Request *message)
{
	Tensorhub__V1__LegEnd *body = convert_message(arena, &tensorhub__v1__leg_end__descriptor);

	body->leg = end->leg;
	body->code = end->code;
	body->chunks_verified = end->chunks_verified;
	body->overwrote = end->overwrote;
	body->source_failed = end->source_failed;
	body->bytes_moved = end->bytes_moved;
	body->transport = convert_out_text(end->transport);
	body->text = convert_out_text(end->text);
	body->content = convert_out_hash(arena, end->content);
	message->body_case = REQUEST(LEG_END);
	message->leg_end = body;
}

static void
out_content(struct convert_arena *arena, const struct ctl_content *content,
	Tensorhub__V1__Request *message)
{
	Tensorhub__V1__Content *body = convert_message(arena, &tensorhub__v1__content__descriptor);

	body->sid = content->sid;
	body->gen = content->gen;
	body->content = convert_out_hash(arena, content->content);
	message->body_case = REQUEST(CONTENT);
	message->content = body;
}

/* What is asked without changing anything. */
static void
out_query(struct convert_arena *arena, const struct ctl_request *request,
	Tensorhub__V1__Request *message)
{
	if (request->kind == CTL_MANIFEST_GET) {
		message->body_case = REQUEST(MANIFEST_GET);
		message->manifest_get =
			convert_message(arena, &tensorhub__v1__blob_get__descriptor);
		message->manifest_get->key = convert_out_hash(arena, request->u.manifest_get.key);
		message->manifest_get->offset = request->u.manifest_get.offset;
	} else if (request->kind == CTL_WATCH) {
		message->body_case = REQUEST(WATCH);
		message->watch = convert_message(arena, &tensorhub__v1__watch__descriptor);
		message->watch->model = convert_out_text(request->u.watch.model);
		message->watch->stop = request->u.watch.stop;
	} else if (request->kind == CTL_LIST) {
		message->body_case = REQUEST(LIST);
		message->list = convert_message(arena, &tensorhub__v1__list__descriptor);
		message->list->model = convert_out_text(request->u.list.model);
		message->list->sid = request->u.list.sid;
		message->list->op_seq = request->u.list.op_seq;
		message->list->page = convert_out_page(arena, request->u.list.page);
		message->list->generation = request->u.list.generation;
	} else if (request->kind == CTL_RESOLVE) {
		message->body_case = REQUEST(RESOLVE);
		message->resolve = convert_message(arena, &tensorhub__v1__resolve__descriptor);
		message->resolve->model = convert_out_text(request->u.resolve.model);
		message->resolve->spec = convert_out_text(request->u.resolve.spec);
		message->resolve->shard = request->u.resolve.shard;
	} else if (request->kind == CTL_WAITS) {
		message->body_case = REQUEST(WAITS);
		message->waits = convert_message(arena, &tensorhub__v1__waits__descriptor);
		message->waits->sid = request->u.waits_sid;
	} else {
		TH_ASSERT(request->kind == CTL_INSPECT);
		message->body_case = REQUEST(INSPECT);
		message->inspect = convert_message(arena, &tensorhub__v1__inspect__descriptor);
		message->inspect->page = convert_out_page(arena, request->u.inspect);
	}
}

/* What names a session, an operation or an event, and little more. */
static void
convert_request_out_short(struct convert_arena *arena, const struct ctl_request *request,
	Tensorhub__V1__Request *message)
{
	if (request->kind == CTL_HELLO) {
		message->body_case = REQUEST(HELLO);
		message->hello = convert_message(arena, &tensorhub__v1__hello__descriptor);
		message->hello->protocol_min = request->u.hello.protocol_min;
		message->hello->protocol_max = request->u.hello.protocol_max;
		message->hello->server_inc = request->u.hello.server_inc;
		message->hello->epoch = request->u.hello.epoch;
		message->hello->serving = request->u.hello.serving;
		message->hello->cluster = convert_out_text(request->u.hello.cluster);
	} else if (request->kind == CTL_POLL) {
		message->body_case = REQUEST(POLL);
		message->poll = convert_message(arena, &tensorhub__v1__poll__descriptor);
		message->poll->last_event = request->u.poll.last_event;
	} else if (request->kind == CTL_UNREGISTER) {
		message->body_case = REQUEST(UNREGISTER);
		message->unregister =
			convert_message(arena, &tensorhub__v1__unregister__descriptor);
		message->unregister->sid = request->u.unregister_sid;
	} else if (request->kind == CTL_CANCEL) {
		message->body_case = REQUEST(CANCEL);
		message->cancel = convert_message(arena, &tensorhub__v1__cancel__descriptor);
		message->cancel->sid = request->u.cancel.sid;
		message->cancel->op_seq = request->u.cancel.op_seq;
	} else if (request->kind == CTL_DRAIN_DONE) {
		message->body_case = REQUEST(DRAIN_DONE);
		message->drain_done =
			convert_message(arena, &tensorhub__v1__drain_done__descriptor);
		message->drain_done->sid = request->u.drain_done.sid;
		message->drain_done->gen = request->u.drain_done.gen;
		message->drain_done->drain_no = request->u.drain_done.drain_no;
	} else {
		TH_ASSERT(request->kind == CTL_CLOSE);
		message->body_case = REQUEST(CLOSE);
		message->close = convert_message(arena, &tensorhub__v1__close__descriptor);
		message->close->sid = request->u.close.sid;
		message->close->died = request->u.close.died;
		message->close->broke_contract = request->u.close.broke_contract;
		message->close->unreadable = request->u.close.unreadable;
		message->close->abandon = request->u.close.abandon;
		message->close->timeout_ns = request->u.close.timeout_ns;
	}
}

static void
convert_request_out_body(struct convert_arena *arena, const struct ctl_request *request,
	Tensorhub__V1__Request *message)
{
	switch (request->kind) {
	case CTL_ATTACH:
		out_attach(arena, &request->u.attach, message);
		break;
	case CTL_BEAT:
		out_beat(arena, &request->u.beat, message);
		break;
	case CTL_OPEN:
		message->body_case = REQUEST(OPEN);
		message->open = convert_out_open(arena, &request->u.open);
		break;
	case CTL_REGISTER:
		message->body_case = REQUEST(REGISTER);
		message->register_ = convert_out_register(arena, &request->u.reg);
		break;
	case CTL_MANIFEST_PUT:
		message->body_case = REQUEST(MANIFEST_PUT);
		message->manifest_put = convert_out_blob_part(arena, &request->u.manifest_put);
		break;
	case CTL_OP:
		out_op(arena, &request->u.op, message);
		break;
	case CTL_PREPARED:
		out_prepared(arena, &request->u.prepared, message);
		break;
	case CTL_LEG_END:
		out_leg_end(arena, &request->u.leg_end, message);
		break;
	case CTL_CONTENT:
		out_content(arena, &request->u.content, message);
		break;
	case CTL_ADMIN:
		message->body_case = REQUEST(ADMIN);
		message->admin = convert_out_admin(arena, &request->u.admin);
		break;
	case CTL_MANIFEST_GET:
	case CTL_WATCH:
	case CTL_LIST:
	case CTL_RESOLVE:
	case CTL_INSPECT:
	case CTL_WAITS:
		out_query(arena, request, message);
		break;
	case CTL_HELLO:
	case CTL_POLL:
	case CTL_UNREGISTER:
	case CTL_CANCEL:
	case CTL_DRAIN_DONE:
	case CTL_CLOSE:
		convert_request_out_short(arena, request, message);
		break;
	case CTL_REJOIN:
		message->body_case = REQUEST(REJOIN);
		message->rejoin = convert_out_rejoin(arena, &request->u.rejoin);
		break;
	case CTL_REJOINED:
		message->body_case = REQUEST(REJOINED);
		message->rejoined = convert_message(arena, &tensorhub__v1__rejoined__descriptor);
		message->rejoined->num_sessions = request->u.rejoined.num_sessions;
		break;
	case CTL_BORROW:
		message->body_case = REQUEST(BORROW);
		message->borrow = convert_out_borrow(arena, &request->u.borrow);
		break;
	case CTL_RESERVED:
		message->body_case = REQUEST(RESERVED);
		message->reserved = convert_out_reserved(arena, &request->u.reserved);
		break;
	}
}

/* The message borrows it. */
static void
out_secret(const struct th_secret *secret, ProtobufCBinaryData *ret_secret)
{
	static const struct th_secret none;

	if (memcmp(secret, &none, sizeof(none)) == 0)
		return;
	ret_secret->data = (uint8_t *)(uintptr_t)secret->bytes;
	ret_secret->len = sizeof(secret->bytes);
}

int
ctl_request_pack(const struct ctl_request *request, uint8_t **ret_data, size_t *ret_bytes)
{
	Tensorhub__V1__Request message;
	struct convert_arena arena = {0};
	size_t messages = 4;
	int rc;

	if (request->kind == CTL_BEAT) {
		if (request->u.beat.num_legs > CONVERT_BEAT_LEGS_MAX)
			return TH_E_LIMIT;
		messages += request->u.beat.num_legs;
	} else if (request->kind == CTL_REJOIN) {
		if (request->u.rejoin.num_outcomes > TH_OUTCOMES_MAX)
			return TH_E_LIMIT;
		messages += 14 + 2 * (size_t)request->u.rejoin.num_outcomes;
	}
	rc = convert_reserve(&arena, messages * CONVERT_BYTES_PER_MESSAGE);
	if (rc != 0)
		return rc;
	tensorhub__v1__request__init(&message);
	message.request_no = request->request_no;
	message.agent_inc = request->agent_inc;
	message.answered_below = request->answered_below;
	message.attach_no = request->attach_no;
	out_secret(&request->secret, &message.secret);
	convert_request_out_body(&arena, request, &message);
	rc = convert_pack(&message.base, ret_data, ret_bytes);
	convert_arena_free(&arena);
	return rc;
}

/* ---- in ----------------------------------------------------------------------------------- */

static void
in_hello(struct convert_in *in, const Tensorhub__V1__Hello *body, struct ctl_hello *ret_hello)
{
	in->message = "HELLO";
	convert_in_check(in, body->protocol_min > 0 && body->protocol_min <= body->protocol_max,
		"protocol", "is no range");
	ret_hello->protocol_min = body->protocol_min;
	convert_in_check(in, body->epoch <= TH_EPOCH_MAX, "epoch", "is too high");
	convert_in_name_or_empty(in, "cluster", body->cluster, TH_CLUSTER_MAX, ret_hello->cluster);
	ret_hello->protocol_max = body->protocol_max;
	ret_hello->server_inc = body->server_inc;
	ret_hello->epoch = body->epoch;
	ret_hello->serving = body->serving;
}

static void
in_attach(struct convert_in *in, const Tensorhub__V1__Attach *body, struct ctl_attach *ret_attach)
{
	in->message = "ATTACH";
	convert_in_name(in, "node", body->node, TH_NAME_MAX, ret_attach->node);
	convert_in_name(in, "datacenter", body->datacenter, TH_NAME_MAX, ret_attach->datacenter);
	convert_in_name(
		in, "data_address", body->data_address, TH_ADDRESS_MAX, ret_attach->data_address);
	convert_in_check(in, body->epoch <= TH_EPOCH_MAX, "epoch", "is too high");
	convert_in_name_or_empty(in, "cluster", body->cluster, TH_CLUSTER_MAX, ret_attach->cluster);
	ret_attach->spot = body->spot;
	ret_attach->offload_bytes = body->offload_bytes;
	ret_attach->server_inc = body->server_inc;
	ret_attach->epoch = body->epoch;
	ret_attach->draining = body->draining;
	ret_attach->leaving = body->leaving;
}

static void
in_leg_progress(struct convert_in *in, const Tensorhub__V1__LegProgress *body,
	struct ctl_leg_progress *ret_progress)
{
	*ret_progress = (struct ctl_leg_progress){
		.leg = body->leg,
		.chunks_verified = body->chunks_verified,
		.bytes_moved = body->bytes_moved,
	};
	if (body->path[0] == '\0')
		return;
	struct ctl_path *path = convert_alloc_array(in->arena, 1, sizeof(*path));
	if (path == NULL) {
		convert_in_fail(in, -ENOMEM, "legs", "do not fit in memory");
		return;
	}
	convert_in_path(body->path, body->rate, body->why, path);
	ret_progress->path = path;
}

static void
in_beat(struct convert_in *in, const Tensorhub__V1__Beat *body, struct ctl_beat *ret_beat)
{
	struct ctl_leg_progress *legs;

	in->message = "BEAT";
	if (body->n_legs > CONVERT_BEAT_LEGS_MAX) {
		convert_in_fail(in, TH_E_INVALID, "legs", "are more than 16384");
		return;
	}
	legs = convert_alloc_array(in->arena, body->n_legs, sizeof(*legs));
	if (legs == NULL) {
		convert_in_fail(in, -ENOMEM, "legs", "do not fit in memory");
		return;
	}
	for (size_t i = 0; i < body->n_legs; i++)
		in_leg_progress(in, body->legs[i], &legs[i]);
	ret_beat->num_legs = (uint32_t)body->n_legs;
	ret_beat->legs = legs;
}

static void
in_op(struct convert_in *in, const Tensorhub__V1__Op *body, struct ctl_op *ret_op)
{
	bool named = !ctl_op_unnamed(body->kind);

	in->message = "OP";
	convert_in_op_kind(in, body->kind, &ret_op->kind);
	convert_in_spec(in, body->spec, named, ret_op->spec);
	convert_in_check(in, body->timeout_ns >= 0 || body->timeout_ns == TH_FOREVER, "timeout_ns",
		"is negative");
	convert_in_hash(in, "attributes", body->attributes, false, &ret_op->attributes);
	ret_op->sid = body->sid;
	ret_op->op_seq = body->op_seq;
	ret_op->flags = body->flags;
	ret_op->timeout_ns = body->timeout_ns;
}

static void
in_prepared(struct convert_in *in, const Tensorhub__V1__Prepared *body,
	struct ctl_prepared *ret_prepared)
{
	in->message = "PREPARED";
	convert_in_code(in, body->code, &ret_prepared->code);
	convert_in_sentence(body->text, sizeof(ret_prepared->text), ret_prepared->text);
	ret_prepared->sid = body->sid;
	ret_prepared->op_seq = body->op_seq;
	ret_prepared->plan_no = body->plan_no;
}

static void
in_leg_end(struct convert_in *in, const Tensorhub__V1__LegEnd *body, struct ctl_leg_end *ret_end)
{
	in->message = "LEG_END";
	convert_in_code(in, body->code, &ret_end->code);
	convert_in_name_or_empty(in, "transport", body->transport, sizeof(ret_end->transport) - 1,
		ret_end->transport);
	convert_in_sentence(body->text, sizeof(ret_end->text), ret_end->text);
	ret_end->leg = body->leg;
	ret_end->chunks_verified = body->chunks_verified;
	ret_end->overwrote = body->overwrote;
	ret_end->source_failed = body->source_failed;
	ret_end->bytes_moved = body->bytes_moved;
	convert_in_hash(in, "content", body->content, false, &ret_end->content);
}

static void
in_list(struct convert_in *in, const Tensorhub__V1__List *body, struct ctl_list *ret_list)
{
	in->message = "LIST";
	convert_in_name(in, "model", body->model, TH_NAME_MAX, ret_list->model);
	ret_list->sid = body->sid;
	ret_list->op_seq = body->op_seq;
	convert_in_page(in, body->page, &ret_list->page);
	ret_list->generation = body->generation;
}

static void
convert_request_in_resolve(
	struct convert_in *in, const Tensorhub__V1__Resolve *body, struct ctl_resolve *ret_resolve)
{
	in->message = "RESOLVE";
	convert_in_name(in, "model", body->model, TH_NAME_MAX, ret_resolve->model);
	convert_in_spec(in, body->spec, true, ret_resolve->spec);
	convert_in_check(in, body->shard < TH_SHARDS_MAX, "shard", "is more than 1023");
	ret_resolve->shard = body->shard;
}

static void
in_close(struct convert_in *in, const Tensorhub__V1__Close *body, struct ctl_close *ret_close)
{
	in->message = "CLOSE";
	convert_in_check(in, body->timeout_ns >= 0 || body->timeout_ns == TH_FOREVER, "timeout_ns",
		"is negative");
	*ret_close = (struct ctl_close){
		.sid = body->sid,
		.died = body->died,
		.broke_contract = body->broke_contract,
		.unreadable = body->unreadable,
		.abandon = body->abandon,
		.timeout_ns = body->timeout_ns,
	};
}

/* Kinds whose fields are numbers that only the core can judge. */
static void
in_numbers(const Tensorhub__V1__Request *message, struct ctl_request *request)
{
	switch ((int)message->body_case) {
	case REQUEST(POLL):
		request->kind = CTL_POLL;
		request->u.poll.last_event = message->poll->last_event;
		break;
	case REQUEST(UNREGISTER):
		request->kind = CTL_UNREGISTER;
		request->u.unregister_sid = message->unregister->sid;
		break;
	case REQUEST(WAITS):
		request->kind = CTL_WAITS;
		request->u.waits_sid = message->waits->sid;
		break;
	case REQUEST(CANCEL):
		request->kind = CTL_CANCEL;
		request->u.cancel =
			(struct ctl_cancel){message->cancel->sid, message->cancel->op_seq};
		break;
	default:
		TH_ASSERT(message->body_case == REQUEST(DRAIN_DONE));
		request->kind = CTL_DRAIN_DONE;
		request->u.drain_done = (struct ctl_drain_done){message->drain_done->sid,
			message->drain_done->gen, message->drain_done->drain_no};
		break;
	}
}

static void
convert_request_in_body(
	struct convert_in *in, const Tensorhub__V1__Request *message, struct ctl_request *request)
{
	switch ((int)message->body_case) {
	case REQUEST(HELLO):
		request->kind = CTL_HELLO;
		in_hello(in, message->hello, &request->u.hello);
		break;
	case REQUEST(ATTACH):
		request->kind = CTL_ATTACH;
		in_attach(in, message->attach, &request->u.attach);
		break;
	case REQUEST(BEAT):
		request->kind = CTL_BEAT;
		in_beat(in, message->beat, &request->u.beat);
		break;
	case REQUEST(OPEN):
		request->kind = CTL_OPEN;
		convert_in_open(in, message->open, &request->u.open);
		break;
	case REQUEST(REGISTER):
		request->kind = CTL_REGISTER;
		convert_in_register(in, message->register_, &request->u.reg);
		break;
	case REQUEST(MANIFEST_PUT):
		request->kind = CTL_MANIFEST_PUT;
		in->message = "MANIFEST_PUT";
		convert_in_blob_part(in, message->manifest_put, &request->u.manifest_put);
		break;
	case REQUEST(MANIFEST_GET):
		request->kind = CTL_MANIFEST_GET;
		in->message = "MANIFEST_GET";
		convert_in_hash(
			in, "key", message->manifest_get->key, true, &request->u.manifest_get.key);
		request->u.manifest_get.offset = message->manifest_get->offset;
		break;
	case REQUEST(OP):
		request->kind = CTL_OP;
		in_op(in, message->op, &request->u.op);
		break;
	case REQUEST(PREPARED):
		request->kind = CTL_PREPARED;
		in_prepared(in, message->prepared, &request->u.prepared);
		break;
	case REQUEST(LEG_END):
		request->kind = CTL_LEG_END;
		in_leg_end(in, message->leg_end, &request->u.leg_end);
		break;
	case REQUEST(WATCH):
		request->kind = CTL_WATCH;
		in->message = "WATCH";
		convert_in_name(
			in, "model", message->watch->model, TH_NAME_MAX, request->u.watch.model);
		request->u.watch.stop = message->watch->stop;
		break;
	case REQUEST(LIST):
		request->kind = CTL_LIST;
		in_list(in, message->list, &request->u.list);
		break;
	case REQUEST(RESOLVE):
		request->kind = CTL_RESOLVE;
		convert_request_in_resolve(in, message->resolve, &request->u.resolve);
		break;
	case REQUEST(INSPECT):
		request->kind = CTL_INSPECT;
		in->message = "INSPECT";
		convert_in_page(in, message->inspect->page, &request->u.inspect);
		break;
	case REQUEST(ADMIN):
		request->kind = CTL_ADMIN;
		convert_in_admin(in, message->admin, &request->u.admin);
		break;
	case REQUEST(CONTENT):
		request->kind = CTL_CONTENT;
		in->message = "CONTENT";
		request->u.content.sid = message->content->sid;
		request->u.content.gen = message->content->gen;
		convert_in_hash(in, "content", message->content->content, false,
			&request->u.content.content);
		break;
	case REQUEST(POLL):
	case REQUEST(UNREGISTER):
	case REQUEST(CANCEL):
	case REQUEST(DRAIN_DONE):
	case REQUEST(WAITS):
		in_numbers(message, request);
		break;
	case REQUEST(CLOSE):
		request->kind = CTL_CLOSE;
		in_close(in, message->close, &request->u.close);
		break;
	case REQUEST(REJOIN):
		request->kind = CTL_REJOIN;
		convert_in_rejoin(in, message->rejoin, &request->u.rejoin);
		break;
	case REQUEST(REJOINED):
		request->kind = CTL_REJOINED;
		request->u.rejoined.num_sessions = message->rejoined->num_sessions;
		break;
	case REQUEST(BORROW):
		request->kind = CTL_BORROW;
		convert_in_borrow(in, message->borrow, &request->u.borrow);
		break;
	case REQUEST(RESERVED):
		request->kind = CTL_RESERVED;
		convert_in_reserved(in, message->reserved, &request->u.reserved);
		break;
	case REQUEST(REGISTER_TENSORS):
	case REQUEST(UNREGISTER_TENSORS):
	case REQUEST(SET_ATTRIBUTES):
	case REQUEST(STATUS):
		convert_in_fail(in, TH_E_INVALID, "this kind",
			"is for an agent, and this is a reference server");
		break;
	default:
		convert_in_fail(in, TH_E_INVALID, "the body",
			"is missing or of a kind that this version does not know");
		break;
	}
}

static void
in_secret(struct convert_in *in, const ProtobufCBinaryData *secret, struct th_secret *ret_secret)
{
	if (secret->len == 0)
		return;
	convert_in_check(in, secret->len == sizeof(ret_secret->bytes), "secret", "is not 16 bytes");
	if (secret->len == sizeof(ret_secret->bytes))
		memcpy(ret_secret->bytes, secret->data, secret->len);
}

int
ctl_request_unpack(const uint8_t *data, size_t bytes, struct convert_arena *arena,
	struct th_err *err, struct ctl_request *ret_request)
{
	struct convert_in in = {.message = "request", .arena = arena, .err = err};
	struct ctl_request request = {0};
	Tensorhub__V1__Request *message;

	message = convert_unpack(&tensorhub__v1__request__descriptor, data, bytes, arena, err);
	if (message == NULL)
		return -EPROTO;
	request.request_no = message->request_no;
	request.agent_inc = message->agent_inc;
	request.answered_below = message->answered_below;
	request.attach_no = message->attach_no;
	in_secret(&in, &message->secret, &request.secret);
	convert_request_in_body(&in, message, &request);
	if (in.code != 0)
		return in.code;
	*ret_request = request;
	return 0;
}

int
ctl_refusal_pack(const uint8_t *request, size_t request_bytes, const struct th_err *failure,
	uint8_t **ret_data, size_t *ret_bytes)
{
	Tensorhub__V1__Reply reply;
	Tensorhub__V1__Request *message;
	struct convert_arena arena = {0};
	int rc;

	tensorhub__v1__reply__init(&reply);
	message = convert_unpack(
		&tensorhub__v1__request__descriptor, request, request_bytes, &arena, NULL);
	if (message != NULL)
		reply.request_no = message->request_no;
	reply.code = failure->code;
	reply.text = convert_out_text(failure->text);
	rc = convert_pack(&reply.base, ret_data, ret_bytes);
	convert_arena_free(&arena);
	return rc;
}
