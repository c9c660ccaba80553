/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_fuzz - the reference server's core as a whole: the input is what four agents, an operator
 * and the time do to it, request by request.
 *
 * A request goes to the core as it comes out of its converter, and no other way. Each reply must
 * pass the converter of who asked: a server that says what its agents refuse loses them all. The
 * core's own check follows each step.
 *
 * A step is a byte that says what, and the bytes that this reads. What agents were told (sessions,
 * legs, drains, ...) is kept and used again.
 */
#include <stdio.h>
#include <stdlib.h>

#include "ipc/base/assert.h"
#include "ipc/proto/convert.h"
#include "server/core/model/blob_hash.h"
#include "server/core/refsrv.h"
#include "tests/fuzz/pool.h"
#include "tests/support/core/core_check.h"

#define AGENTS 4u
#define DUE_MAX 32u
#define STEPS_MAX 400u
#define AGAIN_MAX 8u
#define SECOND_NS INT64_C(1000000000)

struct agent { /* a life of one */
	uint64_t inc, request_no, attach_no, last_event;
	struct ctl_event due[DUE_MAX]; /* that it has been sent, and can answer */
	uint32_t num_due;
};

static struct refsrv *server;
static int64_t now_ns;
static uint64_t last_token;
static struct agent agents[AGENTS];
static struct pool sids, legs, snapshots, reservations, incs, groups;
static uint64_t next_ops[POOL_MAX]; /* op_seq by sid */
static struct convert_arena arena;
static uint8_t asked[STEPS_MAX * 4]; /* by token */
static uint8_t asker[STEPS_MAX * 4];

/* ---- what comes back ------------------------------------------------------------------------ */

static void
hear_event(struct agent *agent, const struct ctl_event *event)
{
	struct ctl_event *due = &agent->due[agent->num_due++ % DUE_MAX];

	*due = *event;
	agent->last_event = event->number;
	if (event->kind == CTL_EV_GO)
		pool_add(&legs, event->u.go.grant.leg);
	else if (event->kind == CTL_EV_REROUTE)
		pool_add(&legs, event->u.reroute.grant.leg);
	else if (event->kind == CTL_EV_GRANT)
		pool_add(&legs, event->u.grant.leg);
	else if (event->kind == CTL_EV_RESERVE)
		pool_add(&reservations, event->u.reserve.reservation);
}

static void
hear_reply(struct agent *agent, const struct ctl_reply *reply)
{
	if (reply->code != 0)
		return;
	switch ((int)reply->kind) {
	case CTL_ATTACH:
		agent->attach_no = reply->u.attach.attach_no;
		pool_add(&incs, reply->u.attach.server_inc);
		if (reply->u.attach.fresh)
			agent->last_event = agent->num_due = 0;
		break;
	case CTL_POLL:
		for (uint32_t i = 0; i < reply->u.poll.num_events; i++)
			hear_event(agent, &reply->u.poll.events[i]);
		break;
	case CTL_OPEN:
	case CTL_REJOIN:
		pool_add(&sids, reply->u.open.sid);
		pool_add(&groups, reply->u.open.group_inc);
		break;
	case CTL_LIST:
		pool_add(&snapshots, reply->u.list.page.snapshot);
		break;
	case CTL_INSPECT:
		pool_add(&snapshots, reply->u.inspect.page.snapshot);
		break;
	default:
		break;
	}
}

static void
hear_replies(const struct refsrv_out *out)
{
	for (uint32_t i = 0; i < out->num_replies; i++) {
		const struct refsrv_reply *said = &out->replies[i];
		struct ctl_reply reply;
		struct th_err err = {0};
		uint8_t *data;
		size_t bytes;
		TH_ASSERT(said->token >= 1 && said->token <= last_token);
		TH_ASSERT(asked[said->token - 1] != 0); /* one reply each */
		enum ctl_request_kind kind = (enum ctl_request_kind)asked[said->token - 1];
		asked[said->token - 1] = 0;
		TH_ASSERT(said->reply.kind == kind);
		TH_ASSERT(ctl_reply_pack(&said->reply, &data, &bytes) == 0);
		int rc = ctl_reply_unpack(data, bytes, kind, &arena, &err, &reply);
		free(data);
		if (rc != 0)
			fprintf(stderr, "the reply to a request of kind %d is refused: %s\n",
				(int)kind, err.text);
		TH_ASSERT(rc == 0);
		hear_reply(&agents[asker[said->token - 1]], &reply);
	}
	refsrv_check(server);
}

/* It may ask for another step at once (an agent that is given up), and not for ever. */
static void
hear(struct refsrv_out *out)
{
	hear_replies(out);
	for (uint32_t again = 0; out->next_ns <= now_ns; again++) {
		TH_ASSERT(again < AGAIN_MAX);
		refsrv_tick(server, now_ns, out);
		hear_replies(out);
	}
}

/* ---- a request ------------------------------------------------------------------------------ */

static void
fill_name(struct input *input, char prefix, char ret_name[TH_NAME_MAX + 1])
{
	uint8_t byte = input_byte(input);

	snprintf(ret_name, TH_NAME_MAX + 1, "%c%u", prefix, byte % 3u);
}

static void
fill_spec(struct input *input, char ret_spec[TH_SPEC_MAX + 1])
{
	static const char *const specs[] = {"latest", "latest-1", "1", "2", "3", "4", "latest-2"};
	uint8_t byte = input_byte(input);

	snprintf(ret_spec, TH_SPEC_MAX + 1, "%s", specs[byte % (sizeof(specs) / sizeof(specs[0]))]);
}

static void
fill_retain(struct input *input, char ret_retain[TH_RETAIN_MAX + 1])
{
	static const char *const rules[] = {"", "latest", "latest,latest-1", "1,3"};
	uint8_t byte = input_byte(input);

	snprintf(ret_retain, TH_RETAIN_MAX + 1, "%s", rules[byte % 4]);
}

/* One of few blobs, which are single bytes. */
static struct th_hash
blob_key(struct input *input, uint8_t *ret_blob)
{
	*ret_blob = input_byte(input) % 3;
	return hash_bytes(ret_blob, 1);
}

static void
fill_open(struct input *input, struct ctl_open *open)
{
	uint8_t flags = input_byte(input);

	fill_name(input, 'm', open->model);
	fill_name(input, 'r', open->replica);
	open->num_shards = 1 + (flags & 1u);
	open->shard = flags >> 1 & flags & 1u;
	open->lineage = flags >> 2 & 1u;
	open->flags = flags >> 3 & 1u ? CTL_OPEN_SPOT : 0;
	fill_retain(input, open->retain);
	if (flags & 0x40)
		fill_name(input, 'l', open->launch_id);
	if (flags & 0x80)
		open->reservation = pool_pick(&reservations, input);
}

static void
fill_register(struct input *input, struct ctl_register *reg)
{
	uint8_t blob;

	reg->sid = pool_pick(&sids, input);
	reg->manifest = blob_key(input, &blob);
	reg->layout = (struct th_hash){.lo = 1u + input_byte(input) % 2u};
	reg->bytes = 1 + (uint64_t)input_byte(input) * 1000;
	reg->num_chunks = 1 + input_byte(input) % 8u;
}

static uint64_t
fill_op_seq(struct input *input, uint64_t sid)
{
	uint8_t byte = input_byte(input);

	if (byte < 0xc0)
		return next_ops[sid % POOL_MAX] + 1 - byte % 2;
	return input_number(input);
}

static void
fill_op(struct input *input, struct ctl_op *op)
{
	uint8_t byte, blob;

	op->sid = pool_pick(&sids, input);
	byte = input_byte(input);
	op->op_seq = byte < 0xe0 ? ++next_ops[op->sid % POOL_MAX] : fill_op_seq(input, op->sid);
	op->kind = CTL_OP_PUBLISH + byte % 5u;
	byte = input_byte(input);
	op->flags = op->kind == CTL_OP_UNPUBLISH ? byte & CTL_OP_FORCE : 0;
	op->timeout_ns = byte & 2 ? TH_FOREVER : (int64_t)(byte >> 2) * SECOND_NS / 4;
	if (byte & 4 && op->kind == CTL_OP_PUBLISH)
		op->attributes = blob_key(input, &blob);
	fill_spec(input, op->spec);
}

static void
fill_leg_end(struct input *input, struct ctl_leg_end *end)
{
	uint8_t byte = input_byte(input);

	end->leg = pool_pick(&legs, input);
	end->code = byte & 1 ? 0 : byte & 2 ? TH_E_PROTOCOL : TH_E_STALE_MEMORY;
	end->source_failed = (byte & 5) == 4;
	end->overwrote = byte & 8;
	end->chunks_verified = input_byte(input) % 9u;
	end->content = (struct th_hash){.lo = byte >> 4 & 3u};
	snprintf(end->text, sizeof(end->text), "%s", end->code != 0 ? "why" : "");
}

static void
fill_admin(struct input *input, struct ctl_admin *admin)
{
	uint8_t byte = input_byte(input);

	admin->verb = CTL_ADMIN_DRAIN + byte % 5u;
	admin->look = byte & 4;
	admin->leaving = byte & 8;
	admin->force = byte & 16;
	if (admin->verb == CTL_ADMIN_EVICT) {
		fill_name(input, 'm', admin->model);
		fill_name(input, 'r', admin->replica);
		admin->group = byte & 32 ? pool_pick(&groups, input) : 0;
	} else if (admin->verb == CTL_ADMIN_EVENTS) {
		admin->after = input_number(input);
	} else if (admin->verb == CTL_ADMIN_GO) {
		fill_name(input, 'm', admin->model);
		fill_spec(input, admin->spec);
	} else {
		fill_name(input, 'n', admin->node);
	}
}

static void
fill_rejoin(struct input *input, struct ctl_rejoin *rejoin, struct ctl_known_outcome *outcome)
{
	uint8_t byte = input_byte(input), more = input_byte(input);

	rejoin->sid = pool_pick(&sids, input);
	rejoin->group_inc = pool_pick(&groups, input);
	fill_open(input, &rejoin->open);
	rejoin->open.reservation = 0;
	rejoin->gone = byte & 1;
	rejoin->died = byte & 2;
	rejoin->registered = byte & 4;
	if (rejoin->registered)
		fill_register(input, &rejoin->reg);
	rejoin->reg.sid = rejoin->registered ? rejoin->sid : 0;
	rejoin->next_op_seq = 1 + input_byte(input) % 8u;
	rejoin->held = (struct th_version){0, byte & 8 ? input_byte(input) % 4u : TH_NO_VERSION};
	rejoin->gen = byte & 8 ? 1 + input_byte(input) % 4u : 0;
	rejoin->hashed = byte & 16;
	rejoin->content = (struct th_hash){.lo = byte >> 5 & 1u};
	rejoin->published = more & 128;
	rejoin->refused = byte & 64;
	rejoin->went = more & 1;
	if (rejoin->went) {
		rejoin->op_seq = rejoin->next_op_seq - (more >> 1 & 1u);
		rejoin->kind = more & 4 ? CTL_OP_UPDATE : CTL_OP_REPLICATE;
		fill_spec(input, rejoin->spec);
		rejoin->version = (struct th_version){0, input_byte(input) % 4u};
		rejoin->cancelled = more & 8;
		rejoin->done = more & 16;
		rejoin->chunks = input_byte(input) % 9u;
		rejoin->leg = more & 32 ? pool_pick(&legs, input) : 0;
		rejoin->source_sid = pool_pick(&sids, input);
		rejoin->source_gen = 1 + input_byte(input) % 4u;
	}
	if (byte & 128) {
		*outcome = (struct ctl_known_outcome){.op_seq = 1 + input_byte(input) % 4u,
			.kind = CTL_OP_PUBLISH + more % 5u,
			.code = more & 64 ? TH_E_LAYOUT : 0,
			.version = {0, input_byte(input) % 4u}};
		fill_spec(input, outcome->spec);
		rejoin->num_outcomes = 1;
		rejoin->outcomes = outcome;
	}
	byte = input_byte(input);
	snprintf(rejoin->follows, sizeof(rejoin->follows), "%s", byte & 1 ? "latest" : "");
	rejoin->go = (struct th_version){0, byte & 2 ? byte >> 2 & 3u : TH_NO_VERSION};
	if ((byte & 16) != 0)
		rejoin->automatic_waits = CTL_OP_AUTOMATIC | (byte >> 5);
	if ((byte & 16) == 0 && (byte >> 5) != 0)
		rejoin->automatic =
			(struct ctl_known_outcome){.op_seq = CTL_OP_AUTOMATIC | (byte >> 5),
				.kind = CTL_OP_UPDATE,
				.updated = byte & 64,
				.went = byte & 128,
				.version = rejoin->go};
	if (rejoin->went && (byte & 12) == 12)
		rejoin->op_seq = CTL_OP_AUTOMATIC | (byte >> 5);
}

static void
fill_rest(struct input *input, struct ctl_request *request, struct agent *agent)
{
	uint8_t byte = input_byte(input);

	switch ((int)request->kind) {
	case CTL_HELLO:
		request->u.hello = (struct ctl_hello){.protocol_min = TH_PROTOCOL_MIN,
			.protocol_max = TH_PROTOCOL_MAX,
			.serving = byte & 1};
		if (byte & 2) {
			request->u.hello.server_inc = input_number(input);
			request->u.hello.epoch = (uint32_t)(input_number(input) & TH_EPOCH_MAX);
		}
		break;
	case CTL_ATTACH:
		snprintf(request->u.attach.node, sizeof(request->u.attach.node), "n%u",
			(unsigned)(agent - agents));
		snprintf(request->u.attach.datacenter, sizeof(request->u.attach.datacenter), "d%u",
			byte & 1u);
		snprintf(request->u.attach.data_address, sizeof(request->u.attach.data_address),
			"h:1");
		request->u.attach.spot = byte & 2;
		request->u.attach.offload_bytes = byte & 4 ? UINT64_MAX : byte * UINT64_C(1000);
		request->u.attach.draining = (byte & 0x18) == 0x18;
		request->u.attach.leaving = (byte & 0x60) == 0x60;
		if (byte & 0x80) {
			request->u.attach.server_inc = pool_pick(&incs, input);
			request->u.attach.epoch = (uint32_t)(input_number(input) & TH_EPOCH_MAX);
		}
		break;
	case CTL_POLL:
		request->u.poll.last_event = agent->last_event - byte % 2u;
		break;
	case CTL_UNREGISTER:
		request->u.unregister_sid = pool_pick(&sids, input);
		break;
	case CTL_MANIFEST_GET:
		request->u.manifest_get.key = blob_key(input, &byte);
		break;
	case CTL_CANCEL:
		request->u.cancel.sid = pool_pick(&sids, input);
		request->u.cancel.op_seq = fill_op_seq(input, request->u.cancel.sid);
		break;
	case CTL_PREPARED:
		request->u.prepared = (struct ctl_prepared){.sid = pool_pick(&sids, input),
			.plan_no = input_byte(input) % 3u,
			.code = byte & 3 ? 0 : TH_E_LAYOUT};
		request->u.prepared.op_seq = fill_op_seq(input, request->u.prepared.sid);
		break;
	case CTL_DRAIN_DONE:
		request->u.drain_done = (struct ctl_drain_done){.sid = pool_pick(&sids, input),
			.gen = input_number(input),
			.drain_no = input_number(input)};
		break;
	case CTL_CONTENT:
		request->u.content = (struct ctl_content){.sid = pool_pick(&sids, input),
			.gen = input_byte(input) % 8u,
			.content = {.lo = byte % 3u}};
		break;
	case CTL_WATCH:
		fill_name(input, 'm', request->u.watch.model);
		request->u.watch.stop = byte & 1;
		break;
	case CTL_LIST:
		fill_name(input, 'm', request->u.list.model);
		request->u.list.page.snapshot = byte & 1 ? pool_pick(&snapshots, input) : 0;
		request->u.list.page.next = byte & 1 ? input_number(input) : 0;
		request->u.list.sid = byte & 2 ? pool_pick(&sids, input) : 0;
		request->u.list.op_seq = byte & 2 ? fill_op_seq(input, request->u.list.sid) : 0;
		break;
	case CTL_RESOLVE:
		fill_name(input, 'm', request->u.resolve.model);
		fill_spec(input, request->u.resolve.spec);
		request->u.resolve.shard = byte % 3u;
		break;
	case CTL_CLOSE:
		request->u.close = (struct ctl_close){.sid = pool_pick(&sids, input),
			.died = byte & 1,
			.broke_contract = byte & 2,
			.unreadable = byte & 4,
			.abandon = byte & 8,
			.timeout_ns = byte & 16 ? TH_FOREVER : SECOND_NS};
		break;
	case CTL_BORROW:
		fill_name(input, 'm', request->u.borrow.model);
		request->u.borrow.version = (struct th_version){0, byte >> 4 & 3u};
		request->u.borrow.shard = byte >> 6 & 1u;
		request->u.borrow.stop = byte & 1;
		request->u.borrow.held = byte & 2;
		request->u.borrow.room = byte & 4 ? 0 : UINT64_MAX;
		break;
	case CTL_WAITS:
		request->u.waits_sid = pool_pick(&sids, input);
		break;
	case CTL_INSPECT:
		request->u.inspect.snapshot = byte & 1 ? pool_pick(&snapshots, input) : 0;
		request->u.inspect.next = byte & 1 ? input_number(input) : 0;
		break;
	case CTL_RESERVED:
		request->u.reserved =
			(struct ctl_reserved){.reservation = pool_pick(&reservations, input),
				.shard = byte & 1u,
				.code = TH_E_NOMEM_RETAIN};
		break;
	case CTL_REJOINED:
		request->u.rejoined.num_sessions = byte % 8u;
		break;
	default:
		break;
	}
}

/* Through the converter, as if it had come by the wire. */
static void
ask(const struct ctl_request *request, struct agent *agent)
{
	struct ctl_request came;
	struct refsrv_out out;
	struct th_err err = {0};
	uint8_t *data;
	size_t bytes;

	TH_ASSERT(ctl_request_pack(request, &data, &bytes) == 0);
	int rc = ctl_request_unpack(data, bytes, &arena, &err, &came);
	free(data);
	if (rc != 0)
		return;
	came.connection = (uint64_t)(agent - agents) + 1;
	asker[last_token] = (uint8_t)(agent - agents);
	asked[last_token++] = (uint8_t)came.kind;
	refsrv_step(server, now_ns, last_token, &came, &out);
	hear(&out);
}

static void
ask_raw(struct input *input, struct agent *agent)
{
	struct input part = input_part(input);
	struct ctl_request request;
	struct th_err err = {0};

	if (ctl_request_unpack(part.at, part.left, &arena, &err, &request) == 0)
		ask(&request, agent);
}

static void
envelope(struct input *input, struct agent *agent, struct ctl_request *request)
{
	uint8_t byte = input_byte(input);

	request->agent_inc = byte == 0xff ? 0 : agent->inc;
	/* Some are of who does not know it. */
	request->secret.bytes[0] = byte == 0xfd ? 0xff : (uint8_t)agent->inc;
	request->attach_no = byte == 0xfe ? input_number(input) : agent->attach_no;
	/* Some are sent again. */
	request->request_no = byte >= 0xf0 ? agent->request_no : ++agent->request_no;
	request->answered_below = byte & 1 ? agent->request_no : 0;
}

static void
ask_any(struct input *input, struct agent *agent)
{
	uint8_t kind = input_byte(input);
	/* By a byte of its own: what an input of the corpus means stays. */
	struct ctl_request request = {
		.kind = (enum ctl_request_kind)(CTL_HELLO + kind % CTL_REJOINED)};
	struct ctl_known_outcome outcome;
	struct ctl_leg_progress progress = {0};
	uint8_t blob;

	if (kind >= UINT8_MAX - 1)
		request.kind = kind == UINT8_MAX ? CTL_WAITS : CTL_BORROW;
	envelope(input, agent, &request);
	switch ((int)request.kind) {
	case CTL_BEAT:
		progress.leg = pool_pick(&legs, input);
		progress.chunks_verified = input_byte(input) % 9u;
		request.u.beat.num_legs = legs.count > 0;
		request.u.beat.legs = &progress;
		break;
	case CTL_OPEN:
		fill_open(input, &request.u.open);
		break;
	case CTL_REGISTER:
		fill_register(input, &request.u.reg);
		break;
	case CTL_MANIFEST_PUT:
		request.u.manifest_put = (struct ctl_blob_part){.key = blob_key(input, &blob),
			.total_bytes = 1 + input_byte(input) / 0xffu,
			.data = &blob,
			.data_bytes = 1};
		break;
	case CTL_OP:
		fill_op(input, &request.u.op);
		break;
	case CTL_LEG_END:
		fill_leg_end(input, &request.u.leg_end);
		break;
	case CTL_ADMIN:
		fill_admin(input, &request.u.admin);
		break;
	case CTL_REJOIN:
		fill_rejoin(input, &request.u.rejoin, &outcome);
		break;
	default:
		fill_rest(input, &request, agent);
		break;
	}
	ask(&request, agent);
}

/* ---- what an agent would do ------------------------------------------------------------------ */

/* Answers an event as it should be, or with a failure. */
static void
answer(struct input *input, struct agent *agent)
{
	uint32_t has = agent->num_due < DUE_MAX ? agent->num_due : DUE_MAX;
	struct ctl_request request = {.kind = CTL_HELLO};
	uint8_t byte = input_byte(input);

	if (has == 0)
		return;
	const struct ctl_event *event =
		&agent->due[(agent->num_due - 1 - (byte >> 2) % has) % DUE_MAX];
	bool fails = (byte & 3) == 3;
	envelope(input, agent, &request);
	switch ((int)event->kind) {
	case CTL_EV_PLAN:
		request.kind = CTL_PREPARED;
		request.u.prepared = (struct ctl_prepared){.sid = event->u.plan.sid,
			.op_seq = event->u.plan.op_seq,
			.plan_no = event->u.plan.plan_no,
			.code = fails ? TH_E_LAYOUT : 0};
		break;
	case CTL_EV_GO:
	case CTL_EV_REROUTE:
		request.kind = CTL_LEG_END;
		request.u.leg_end = (struct ctl_leg_end){
			.leg = event->kind == CTL_EV_GO ? event->u.go.grant.leg
							: event->u.reroute.grant.leg,
			.code = fails ? TH_E_PROTOCOL : 0,
			.source_failed = fails,
			.chunks_verified = fails ? 0 : 8,
			.content = {.lo = 1}};
		break;
	case CTL_EV_DRAIN:
		request.kind = CTL_DRAIN_DONE;
		request.u.drain_done = (struct ctl_drain_done){
			event->u.drain.sid, event->u.drain.gen, event->u.drain.drain_no};
		break;
	case CTL_EV_RESERVE:
		request.kind = fails ? CTL_RESERVED : CTL_OPEN;
		if (fails) {
			request.u.reserved =
				(struct ctl_reserved){.reservation = event->u.reserve.reservation,
					.shard = event->u.reserve.shard,
					.code = TH_E_NOMEM_RETAIN};
			break;
		}
		request.u.open = (struct ctl_open){.shard = event->u.reserve.shard,
			.num_shards = event->u.reserve.num_shards,
			.lineage = event->u.reserve.version.lineage,
			.reservation = event->u.reserve.reservation};
		memcpy(request.u.open.model, event->u.reserve.model, sizeof(request.u.open.model));
		memcpy(request.u.open.replica, event->u.reserve.replica,
			sizeof(request.u.open.replica));
		break;
	case CTL_EV_RELEASE:
		request.kind = CTL_CLOSE;
		request.u.close = (struct ctl_close){.sid = event->u.release.sid};
		break;
	default:
		return;
	}
	ask(&request, agent);
}

static void
pass_time(struct input *input)
{
	static const int64_t steps_ns[] = {1, SECOND_NS / 50, SECOND_NS / 2, SECOND_NS,
		3 * SECOND_NS, 11 * SECOND_NS, 40 * SECOND_NS, 700 * SECOND_NS};
	struct refsrv_out out;
	uint8_t byte = input_byte(input);

	now_ns += steps_ns[byte % 8];
	if (byte & 8) {
		refsrv_gone(server, now_ns, byte >> 4, &out);
	} else {
		refsrv_tick(server, now_ns, &out);
	}
	hear(&out);
}

static void
look(struct input *input)
{
	uint64_t token = input_byte(input);

	(void)refsrv_inspect(server, now_ns);
	(void)refsrv_standing(server);
	refsrv_forget(server, token);
	if (token >= 1 && token <= last_token && asked[token - 1] == CTL_POLL)
		asked[token - 1] = 0;
	refsrv_check(server);
}

static void
begin(struct input *input)
{
	struct refsrv_config config;
	uint8_t byte = input_byte(input);

	refsrv_config_default(&config);
	config.server_inc = 77;
	config.generation_first = 1000;
	config.agents_max = 6;
	config.members_max = 16;
	config.members_per_agent_max = 8;
	config.event_bytes_max = 1u << 14;
	config.blob_bytes_max = 2 + (byte & 1u);
	config.snapshot_bytes_max = 1u << 13;
	config.part_bytes = byte & 2 ? 512 : 4096;
	config.pipelining = byte & 4;
	for (uint64_t i = 0; i < 4; i++)
		config.seed[i] = i + 1;
	now_ns = 100 * SECOND_NS;
	last_token = 0;
	memset(agents, 0, sizeof(agents));
	for (uint32_t i = 0; i < AGENTS; i++)
		agents[i].inc = i + 1;
	sids = legs = snapshots = reservations = incs = groups = (struct pool){0};
	memset(next_ops, 0, sizeof(next_ops));
	memset(asked, 0, sizeof(asked));
	server = refsrv_new(&config, now_ns);
	TH_ASSERT(server != NULL);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input input = {data, size};

	begin(&input);
	for (uint32_t step = 0; step < STEPS_MAX && input.left > 0; step++) {
		uint8_t what = input_byte(&input);
		struct agent *agent = &agents[what % AGENTS];
		if (what < 0x80)
			ask_any(&input, agent);
		else if (what < 0xc0)
			answer(&input, agent);
		else if (what < 0xe0)
			pass_time(&input);
		else if (what < 0xf0)
			look(&input);
		else
			ask_raw(&input, agent);
		convert_arena_free(&arena);
	}
	refsrv_free(server);
	return 0;
}
