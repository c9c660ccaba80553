/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_rig - see agent_rig.h. Everything is answered in the order in which it was sent, each
 * answer in a step of its own, until nothing is left to answer.
 */
#include "tests/support/core/agent_rig.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "tests/support/core/core_check.h"

#define LOG_MAX 4096u

static bool reset_at_loss;

void
rig_reset_at_loss(void)
{
	reset_at_loss = true;
}

void
rig_init(struct rig *rig)
{
	struct agent_config config = {.agent_inc = RIG_INC};

	agent_config_default(&config);
	memset(&config.secret, 's', sizeof(config.secret));
	config.server_loss_reset = reset_at_loss;
	config.sessions_max = 8;
	config.reservations_max = 3;
	config.drain_wait_ns = 3 * SEC;
	config.attach.offload_bytes = UINT64_MAX;
	strcpy(config.attach.cluster, "red");
	config.grants_max = 4;
	*rig = (struct rig){.now_ns = 1000 * SEC, .server_inc = 1, .last_sid = 100, .fresh = true};
	rig->sent = th_calloc(LOG_MAX, sizeof(*rig->sent));
	rig->actions = th_calloc(LOG_MAX, sizeof(*rig->actions));
	rig->events = th_calloc(LOG_MAX, sizeof(*rig->events));
	rig->agent = agent_core_new(&config, rig->now_ns);
}

void
rig_fini(struct rig *rig)
{
	agent_core_free(rig->agent);
	free(rig->sent);
	free(rig->actions);
	free(rig->events);
}

static void
step(struct rig *rig, const struct agent_event *event)
{
	struct agent_actions out;

	agent_core_step(rig->agent, rig->now_ns, event, &out);
	agent_core_check(rig->agent);
	cr_assert(out.next_ns > rig->now_ns, "the core asks to be called at once, for ever");
	rig->next_ns = out.next_ns;
	for (uint32_t i = 0; i < out.count; i++) {
		const struct agent_action *action = &out.actions[i];
		cr_assert_lt(rig->num_actions, LOG_MAX);
		rig->actions[rig->num_actions++] = *action;
		if (action->kind != AGENT_SEND)
			continue;
		cr_assert_lt(rig->num_sent, LOG_MAX);
		rig->sent[rig->num_sent++] = (struct rig_sent){
			.tag = action->u.send.tag,
			.channel = action->u.send.channel,
			.request = *action->u.send.request,
		};
	}
}

/* False: not now. */
static bool
fill_reply(struct rig *rig, const struct ctl_request *request, struct ctl_reply *reply)
{
	*reply = (struct ctl_reply){.kind = request->kind, .request_no = request->request_no};
	if (rig->unknown && request->kind != CTL_HELLO && request->kind != CTL_ATTACH) {
		reply->code = TH_E_NO_SERVER;
		reply->unknown_agent = true;
		return true;
	}
	reply->code = rig->refused[request->kind];
	if (reply->code != 0) {
		memcpy(reply->text, "refused by the rig", sizeof("refused by the rig"));
		return true;
	}
	switch ((int)request->kind) {
	case CTL_HELLO:
		reply->u.hello = (struct ctl_hello_reply){
			.server_inc = rig->server_inc, .protocol = TH_PROTOCOL_MAX};
		strcpy(reply->u.hello.cluster, rig->cluster);
		break;
	case CTL_ATTACH:
		reply->u.attach = (struct ctl_attach_reply){
			.server_inc = rig->server_inc,
			.attach_no = ++rig->attach_no,
			.epoch = (uint32_t)rig->server_inc,
			.fresh = rig->fresh,
		};
		if (rig->fresh)
			rig->last_event = rig->num_events = 0;
		rig->unknown = false;
		rig->fresh = false;
		break;
	case CTL_OPEN:
		reply->u.open = (struct ctl_open_reply){.sid = ++rig->last_sid,
			.next_op_seq = 1,
			.group_inc = 1000 + rig->last_sid};
		break;
	case CTL_REJOIN:
		reply->u.open.group_inc = rig->group_inc;
		break;
	case CTL_ADMIN:
		reply->u.admin = rig->admin;
		if (reply->u.admin.state == NULL)
			reply->u.admin.state = "empty";
		break;
	case CTL_WATCH:
		reply->u.watch.generation = rig->generation;
		break;
	case CTL_POLL:
		while (rig->num_events > 0 && rig->events[0].number <= request->u.poll.last_event)
			memmove(rig->events, rig->events + 1,
				--rig->num_events * sizeof(*rig->events));
		reply->u.poll.num_events = rig->num_events;
		reply->u.poll.events = rig->events;
		rig->raw = false;
		return rig->num_events > 0;
	default:
		break;
	}
	return true;
}

static bool
answer_one(struct rig *rig, uint32_t forced)
{
	for (uint32_t i = 0; i < rig->num_sent; i++) {
		struct rig_sent *sent = &rig->sent[i];
		uint32_t bit = 1u << sent->request.kind;
		struct ctl_reply reply;
		if (sent->answered || rig->mute || ((rig->held & bit) != 0 && (forced & bit) == 0))
			continue;
		struct agent_event event = {
			.kind = AGENT_EV_REPLY, .u.reply = {.tag = sent->tag, .reply = &reply}};
		if (rig->cut) {
			event.kind = AGENT_EV_NO_REPLY;
			event.u.reply.reply = NULL;
			event.u.reply.hung_up = rig->hangs_up;
		} else if (!fill_reply(rig, &sent->request, &reply)) {
			continue;
		}
		sent->answered = true;
		step(rig, &event);
		return true;
	}
	return false;
}

static void
settle(struct rig *rig)
{
	uint32_t rounds = 0;

	while (answer_one(rig, 0))
		cr_assert_lt(++rounds, 1000u, "the core and the server talk without end");
}

void
rig_step(struct rig *rig, const struct agent_event *event)
{
	step(rig, event);
	settle(rig);
}

void
rig_tick(struct rig *rig)
{
	struct agent_event event = {.kind = AGENT_EV_TICK};

	rig_step(rig, &event);
}

void
rig_sleep(struct rig *rig, int64_t ns)
{
	int64_t end = rig->now_ns + ns;

	while (rig->next_ns < end) {
		rig->now_ns = rig->next_ns;
		rig_tick(rig);
	}
	rig->now_ns = end;
	rig_tick(rig);
}

void
rig_clear(struct rig *rig)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < rig->num_sent; i++) {
		if (!rig->sent[i].answered)
			rig->sent[kept++] = rig->sent[i];
	}
	rig->num_sent = kept;
	rig->num_actions = 0;
}

void
rig_answer(struct rig *rig, enum ctl_request_kind kind)
{
	while (answer_one(rig, 1u << kind))
		;
	settle(rig);
}

void
rig_event_numbered(struct rig *rig, const struct ctl_event *event, uint64_t number)
{
	rig->events[rig->num_events] = *event;
	rig->events[rig->num_events++].number = number;
	rig->raw = true;
	settle(rig);
}

void
rig_event(struct rig *rig, struct ctl_event event)
{
	rig_event_numbered(rig, &event, ++rig->last_event);
}

/* ---- what was done ------------------------------------------------------------------- */

uint32_t
rig_count(const struct rig *rig, enum agent_action_kind kind)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < rig->num_actions; i++)
		count += rig->actions[i].kind == kind;
	return count;
}

int
rig_at(const struct rig *rig, enum agent_action_kind kind)
{
	for (uint32_t i = rig->num_actions; i > 0; i--) {
		if (rig->actions[i - 1].kind == kind)
			return (int)i - 1;
	}
	return -1;
}

const struct agent_action *
rig_last(const struct rig *rig, enum agent_action_kind kind)
{
	int at = rig_at(rig, kind);

	cr_assert_geq(at, 0, "no action of kind %d", (int)kind);
	return &rig->actions[at];
}

uint32_t
rig_sendings(const struct rig *rig, enum ctl_request_kind kind)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < rig->num_sent; i++)
		count += rig->sent[i].request.kind == kind;
	return count;
}

uint32_t
rig_requests(const struct rig *rig, enum ctl_request_kind kind)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < rig->num_sent; i++) {
		bool repeat = false;
		for (uint32_t j = 0; j < i; j++)
			repeat = repeat ||
				 rig->sent[j].request.request_no == rig->sent[i].request.request_no;
		count += rig->sent[i].request.kind == kind && !repeat;
	}
	return count;
}

const struct ctl_request *
rig_request(const struct rig *rig, enum ctl_request_kind kind)
{
	for (uint32_t i = rig->num_sent; i > 0; i--) {
		if (rig->sent[i - 1].request.kind == kind)
			return &rig->sent[i - 1].request;
	}
	cr_assert_fail("no request of kind %d", (int)kind);
	return NULL;
}

/* ---- scripts ------------------------------------------------------------------------- */

void
rig_attach(struct rig *rig)
{
	rig_tick(rig);
	cr_assert(agent_core_attached(rig->agent));
}

void
rig_hang_up(struct rig *rig)
{
	rig->cut = rig->hangs_up = true;
	rig_tick(rig);
	cr_assert_not(agent_core_attached(rig->agent));
}

void
rig_back(struct rig *rig)
{
	rig->cut = rig->mute = false;
	rig_sleep(rig, 4 * SEC);
	cr_assert(agent_core_attached(rig->agent));
}

void
rig_lost(struct rig *rig)
{
	rig_clear(rig);
	rig->num_sent = 0; /* nor is anything answered that was sent to the former */
	rig->server_inc++;
	rig->unknown = rig->fresh = true;
	rig_sleep(rig, 2 * SEC);
	cr_assert(agent_core_attached(rig->agent));
}

uint64_t
rig_open(struct rig *rig, uint64_t session)
{
	struct agent_event event = {.kind = AGENT_EV_OPEN, .session = session};

	strcpy(event.u.open.model, "m");
	event.u.open.replica[0] = (char)('a' + session % 26);
	event.u.open.num_shards = rig->num_shards == 0 ? 1 : rig->num_shards;
	event.u.open.shard = rig->shard;
	if (rig->retain != NULL)
		strcpy(event.u.open.retain, rig->retain);
	rig_step(rig, &event);
	cr_assert_eq(rig_last(rig, AGENT_OPENED)->u.answer.code, 0);
	return rig->last_sid;
}

uint64_t
rig_ready(struct rig *rig, uint64_t session)
{
	uint64_t sid = rig_open(rig, session);

	rig_session(rig, session, AGENT_EV_REGISTER);
	cr_assert_eq(rig_last(rig, AGENT_REGISTERED)->u.answer.code, 0);
	return sid;
}

void
rig_session(struct rig *rig, uint64_t session, enum agent_event_kind kind)
{
	struct agent_event event = {.kind = kind, .session = session};

	if (kind == AGENT_EV_REGISTER) {
		event.u.reg.layout = event.u.reg.manifest = RIG_LAYOUT;
		event.u.reg.num_chunks = RIG_CHUNKS;
		event.u.reg.bytes = 1000;
		event.u.reg.mapped = !rig->unmapped;
	}
	rig_step(rig, &event);
}

void
rig_submit(struct rig *rig, uint64_t session, uint32_t slot, uint32_t kind, const char *spec,
	int64_t timeout_ns)
{
	struct agent_event event = {.kind = AGENT_EV_SUBMIT, .session = session};

	event.u.submit.slot = slot;
	event.u.submit.kind = kind;
	event.u.submit.timeout_ns = timeout_ns;
	strcpy(event.u.submit.spec, spec);
	rig_step(rig, &event);
}

const struct agent_action *
rig_complete(const struct rig *rig, uint64_t session, uint32_t slot)
{
	const struct agent_action *found = NULL;

	for (uint32_t i = 0; i < rig->num_actions; i++) {
		const struct agent_action *action = &rig->actions[i];
		if (action->kind != AGENT_COMPLETE || action->session != session ||
			action->u.complete.slot != slot)
			continue;
		cr_assert_null(found, "slot %u is completed twice", slot);
		found = action;
	}
	cr_assert_not_null(found, "slot %u is not completed", slot);
	return found;
}

struct th_ticket
rig_ticket(uint64_t leg)
{
	struct th_ticket ticket = {{0}};

	memcpy(ticket.bytes + 8, &leg, sizeof(leg));
	return ticket;
}

static struct ctl_grant
grant(uint64_t leg)
{
	return (struct ctl_grant){
		.leg = leg,
		.ticket = rig_ticket(leg),
		.source_sid = 999,
		.source_gen = 1,
		.source_agent_inc = RIG_INC + 1,
		.source_address = "10.0.0.2:1",
		.source_replica = "trainer",
	};
}

struct ctl_event
rig_plan(uint64_t sid, uint64_t op_seq, bool drain_old)
{
	return (struct ctl_event){.kind = CTL_EV_PLAN,
		.u.plan = {.sid = sid,
			.op_seq = op_seq,
			.kind = CTL_OP_UPDATE,
			.drain_old = drain_old,
			.layout = RIG_LAYOUT,
			.manifest = RIG_LAYOUT}};
}

struct ctl_event
rig_go(uint64_t sid, uint64_t op_seq, uint64_t leg)
{
	return (struct ctl_event){
		.kind = CTL_EV_GO, .u.go = {.sid = sid, .op_seq = op_seq, .grant = grant(leg)}};
}

struct ctl_event
rig_reroute(uint64_t sid, uint64_t op_seq, uint64_t old_leg, uint64_t leg)
{
	return (struct ctl_event){.kind = CTL_EV_REROUTE,
		.u.reroute = {
			.sid = sid, .op_seq = op_seq, .old_leg = old_leg, .grant = grant(leg)}};
}

struct ctl_event
rig_grant(uint64_t sid, uint64_t gen, uint64_t leg)
{
	return (struct ctl_event){.kind = CTL_EV_GRANT,
		.u.grant = {.leg = leg,
			.ticket = rig_ticket(leg),
			.sid = sid,
			.gen = gen,
			.reader_agent_inc = RIG_INC + 2}};
}

struct ctl_event
rig_drain(uint64_t sid, uint64_t gen, uint64_t drain_no)
{
	return (struct ctl_event){
		.kind = CTL_EV_DRAIN, .u.drain = {.sid = sid, .gen = gen, .drain_no = drain_no}};
}

struct ctl_event
rig_undrain(uint64_t sid, uint64_t gen)
{
	return (struct ctl_event){.kind = CTL_EV_UNDRAIN, .u.undrain = {.sid = sid, .gen = gen}};
}

struct ctl_event
rig_outcome(uint64_t sid, uint64_t op_seq, int code, uint64_t version)
{
	struct ctl_event event = {.kind = CTL_EV_OUTCOME,
		.u.outcome = {.sid = sid,
			.op_seq = op_seq,
			.code = code,
			.version = {.version = version}}};

	if (code != 0)
		strcpy(event.u.outcome.text, "the cause");
	return event;
}

void
rig_leg(struct rig *rig, enum agent_event_kind kind, uint64_t leg, int code)
{
	struct agent_event event = {.kind = kind,
		.u.leg = {.leg = leg,
			.code = code,
			.source_failed = true,
			.overwrote = true,
			.chunks_verified = 4,
			.bytes_moved = 100,
			.transfer_ns = 5,
			.transport = "tcp"}};

	rig_step(rig, &event);
}

void
rig_out(struct rig *rig, enum agent_event_kind kind, uint64_t leg)
{
	struct agent_event event = {.kind = kind, .u.out_leg = leg};

	rig_step(rig, &event);
}

void
rig_hashed(struct rig *rig, enum agent_event_kind kind, uint64_t session, uint64_t gen)
{
	struct agent_event event = {.kind = kind, .session = session, .u.hash.gen = gen};

	rig_step(rig, &event);
}

uint64_t
rig_publish(struct rig *rig, uint64_t session, uint64_t sid, const char *version)
{
	rig_submit(rig, session, 60, CTL_OP_PUBLISH, version, TH_FOREVER);
	uint64_t gen = rig_request(rig, CTL_OP)->u.op.op_seq;
	struct ctl_event outcome = rig_outcome(sid, gen, 0, strtoull(version, NULL, 10));
	rig_event(rig, outcome);
	cr_assert_eq(rig_complete(rig, session, 60)->u.complete.code, 0);
	return gen;
}

uint64_t
rig_hold(struct rig *rig, uint64_t session, uint64_t sid, const char *version)
{
	uint64_t gen = rig_publish(rig, session, sid, version);

	rig_hashed(rig, AGENT_EV_HASHED, session, gen);
	rig_clear(rig);
	return gen;
}

uint64_t
rig_reader(struct rig *rig, uint64_t sid, uint64_t gen, uint64_t leg)
{
	struct ctl_event event = rig_grant(sid, gen, leg);

	rig_event(rig, event);
	cr_assert_eq(rig_last(rig, AGENT_EXPECT)->u.leg.grant.leg, leg);
	uint64_t number = rig_last(rig, AGENT_EXPECT)->u.leg.leg;
	rig_out(rig, AGENT_EV_OUT_BEGAN, number);
	return number;
}

uint64_t
rig_filling(struct rig *rig, uint64_t session, uint64_t sid, uint64_t op_seq, uint64_t leg)
{
	struct ctl_event event = rig_plan(sid, op_seq, false);

	rig_submit(rig, session, 61, CTL_OP_REPLICATE, "latest", TH_FOREVER);
	rig_event(rig, event);
	cr_assert_eq(rig_request(rig, CTL_PREPARED)->u.prepared.code, 0);
	event = rig_go(sid, op_seq, leg);
	rig_event(rig, event);
	cr_assert_eq(rig_last(rig, AGENT_PULL)->u.leg.grant.leg, leg);
	return rig_last(rig, AGENT_PULL)->u.leg.leg;
}

/* ---- copies in the agent's own memory -------------------------------------------------------- */

struct ctl_event
rig_reserve(uint64_t reservation, uint32_t shard)
{
	struct ctl_event event = {.kind = CTL_EV_RESERVE};

	event.u.reserve = (struct ctl_ev_reserve){
		.reservation = reservation,
		.model = "m",
		.replica = "r",
		.shard = shard,
		.num_shards = 2,
		.version = {.lineage = 4, .version = 17},
		.bytes = 1000,
		.num_chunks = RIG_CHUNKS,
		.layout = RIG_LAYOUT,
		.manifest = {.lo = 8, .hi = 8},
		.copy_why = CTL_COPY_SEED,
	};
	return event;
}

void
rig_release(struct rig *rig, uint64_t reservation, uint32_t shard, uint64_t sid)
{
	struct ctl_event event = {.kind = CTL_EV_RELEASE};

	event.u.release =
		(struct ctl_ev_release){.reservation = reservation, .shard = shard, .sid = sid};
	rig_event(rig, event);
}

void
rig_reserved(struct rig *rig, uint64_t id, uint64_t session, int code)
{
	struct agent_event event = {.kind = AGENT_EV_RESERVED, .session = session};

	event.u.reserved.id = id;
	event.u.reserved.code = code;
	if (code != 0)
		strcpy(event.u.reserved.text, "the shell has none");
	rig_step(rig, &event);
}

uint64_t
rig_offload(struct rig *rig)
{
	struct ctl_event event = rig_reserve(RIG_RESERVATION, 1);

	rig_event(rig, event);
	rig_reserved(rig, rig_last(rig, AGENT_RESERVE)->u.reserve.id, RIG_MEMORY, 0);
	cr_assert_eq(rig_requests(rig, CTL_OPEN), 1);
	cr_assert_eq(rig_requests(rig, CTL_REGISTER), 1);
	return rig->last_sid;
}

struct ctl_event
rig_offload_plan(uint64_t sid)
{
	struct ctl_event event = rig_plan(sid, 1, false);

	event.u.plan.kind = CTL_OP_REPLICATE;
	event.u.plan.version = (struct th_version){.lineage = 4, .version = 17};
	return event;
}

uint64_t
rig_offload_filling(struct rig *rig, uint64_t sid)
{
	struct ctl_event event = rig_offload_plan(sid);

	rig_event(rig, event);
	cr_assert_eq(rig_request(rig, CTL_PREPARED)->u.prepared.code, 0);
	event = rig_go(sid, 1, 50);
	rig_event(rig, event);
	return rig_last(rig, AGENT_PULL)->u.leg.leg;
}

uint64_t
rig_offload_filled(struct rig *rig)
{
	uint64_t sid = rig_offload(rig);
	struct ctl_event event = rig_outcome(sid, 1, 0, 17);

	rig_leg(rig, AGENT_EV_LEG_DONE, rig_offload_filling(rig, sid), 0);
	rig_event(rig, event);
	return sid;
}
