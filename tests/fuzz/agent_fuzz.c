/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_fuzz - the agent's core as a whole: the input is what workers, peers, movers, the time and
 * a server that keeps no promise do to it, event by event.
 *
 * What the server says comes through its converter, and each request must pass the converter of the
 * server. The shell keeps its promises (agent_core.h), as it is of the same process: every request,
 * leg, hash and reservation has one end. The core's own check follows each step.
 */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/core/agent_core.h"
#include "ipc/base/assert.h"
#include "ipc/proto/convert.h"
#include "tests/fuzz/pool.h"
#include "tests/support/core/core_check.h"

#define STEPS_MAX 400u
#define OPEN_MAX 512u
#define WAITING_MAX 64u
#define SLOTS 4u
#define SESSIONS_MAX 8u
#define SECOND_NS INT64_C(1000000000)

/* What the shell has begun and not ended, by the number that the core gave or asked for. */
enum owed { NONE, REPLY, LEG_IN, DONOR, LEG_OUT, HASHING, HASH_STOPPING, RESERVATION };

struct debt {
	enum owed owed;
	enum ctl_request_kind kind; /* REPLY */
	uint64_t number, session, request_no;
};

struct session {
	uint64_t id; /* 0: none */
	bool open;
	enum { UNREGISTERED, ASKED, REGISTERED, LEAVING } registration;
	bool busy[SLOTS];
};

static struct agent_core *agent;
static int64_t now_ns, next_ns;
static struct debt debts[OPEN_MAX];
static struct session sessions[SESSIONS_MAX];
static struct pool sids, op_seqs;
static uint64_t last_session, last_sid, last_event, attach_no, last_loan;
static struct convert_arena arena;

/* ---- what the core does --------------------------------------------------------------------- */

static void
owe(enum owed owed, enum ctl_request_kind kind, uint64_t number, uint64_t session,
	uint64_t request_no)
{
	for (uint32_t i = 0; i < OPEN_MAX; i++) {
		if (debts[i].owed != NONE)
			continue;
		debts[i] = (struct debt){owed, kind, number, session, request_no};
		return;
	}
	TH_ASSERT(false); /* it begins more than it can end */
}

static struct debt *
find(enum owed owed, uint64_t number)
{
	for (uint32_t i = 0; i < OPEN_MAX; i++)
		if (debts[i].owed == owed && debts[i].number == number)
			return &debts[i];
	return NULL;
}

static struct session *
session_of(uint64_t id)
{
	for (uint32_t i = 0; i < SESSIONS_MAX; i++)
		if (sessions[i].id == id && id != 0)
			return &sessions[i];
	return NULL;
}

static void
on_send(const struct agent_action *action)
{
	struct ctl_request request = *action->u.send.request, came;
	struct th_err err = {0};
	uint8_t *data;
	size_t bytes;

	if (request.kind == CTL_BEAT)
		request.u.beat.num_legs = 0; /* the shell's to fill in */
	TH_ASSERT(ctl_request_pack(&request, &data, &bytes) == 0);
	int rc = ctl_request_unpack(data, bytes, &arena, &err, &came);
	free(data);
	if (rc != 0)
		fprintf(stderr, "a request of kind %d is refused: %s\n", (int)request.kind,
			err.text);
	TH_ASSERT(rc == 0);
	if (request.kind == CTL_OP)
		pool_add(&op_seqs, request.u.op.op_seq);
	owe(REPLY, request.kind, action->u.send.tag, 0, request.request_no);
}

/* Its memory belongs to nobody any more: the shell has no hash of it either. */
static void
on_free(uint64_t id)
{
	struct session *session = session_of(id);

	if (session != NULL)
		*session = (struct session){0};
}

static void
act(const struct agent_action *action)
{
	struct session *session = session_of(action->session);

	switch ((int)action->kind) {
	case AGENT_SEND:
		on_send(action);
		break;
	case AGENT_OPENED:
		TH_ASSERT(session != NULL && !session->open);
		session->open = true;
		if (action->u.answer.code != 0)
			on_free(action->session);
		break;
	case AGENT_REGISTERED:
		if (session != NULL && session->registration == ASKED)
			session->registration =
				action->u.answer.code == 0 ? REGISTERED : UNREGISTERED;
		break;
	case AGENT_UNREGISTERED:
		if (session != NULL && session->registration == LEAVING)
			session->registration =
				action->u.answer.code == 0 ? UNREGISTERED : REGISTERED;
		break;
	case AGENT_COMPLETE:
		if (session == NULL)
			break;
		TH_ASSERT(
			action->u.complete.slot < SLOTS && session->busy[action->u.complete.slot]);
		session->busy[action->u.complete.slot] = false;
		break;
	case AGENT_FREE:
		on_free(action->session);
		break;
	case AGENT_PART_NEW:
		if (action->u.part.published)
			owe(HASHING, CTL_HELLO, action->u.part.gen, action->session, 0);
		break;
	case AGENT_HASH:
		owe(HASHING, CTL_HELLO, action->u.part.gen, action->session, 0);
		break;
	case AGENT_HASH_STOP:
		for (uint32_t i = 0; i < OPEN_MAX; i++)
			if (debts[i].owed == HASHING && debts[i].session == action->session &&
				debts[i].number == action->u.part.gen)
				debts[i].owed = NONE;
		owe(HASH_STOPPING, CTL_HELLO, action->u.part.gen, action->session, 0);
		break;
	case AGENT_PULL:
	case AGENT_COPY:
		TH_ASSERT(find(LEG_IN, action->u.leg.leg) == NULL);
		owe(LEG_IN, CTL_HELLO, action->u.leg.leg, action->session, 0);
		break;
	case AGENT_DONOR_DROP:
		owe(DONOR, CTL_HELLO, action->u.leg.leg, action->session, 0);
		break;
	case AGENT_EXPECT:
		TH_ASSERT(find(LEG_OUT, action->u.leg.leg) == NULL);
		owe(LEG_OUT, CTL_HELLO, action->u.leg.leg, action->session, 0);
		break;
	case AGENT_RESERVE:
		TH_ASSERT(find(RESERVATION, action->u.reserve.id) == NULL);
		owe(RESERVATION, CTL_HELLO, action->u.reserve.id, 0, 0);
		break;
	default:
		break;
	}
}

static void
step(const struct agent_event *event)
{
	struct agent_actions out;

	agent_core_step(agent, now_ns, event, &out);
	agent_core_check(agent);
	TH_ASSERT(out.next_ns > now_ns);
	next_ns = out.next_ns;
	for (uint32_t i = 0; i < out.count; i++)
		act(&out.actions[i]);
}

/* ---- the server ----------------------------------------------------------------------------- */

static void
fill_text(struct input *input, char *text, size_t room, const char *begin)
{
	snprintf(text, room, "%s%u", begin, input_byte(input) % 3u);
}

static struct th_ticket
ticket_of(uint64_t number)
{
	struct th_ticket ticket = {{0}};

	memcpy(ticket.bytes, &number, sizeof(number));
	return ticket;
}

static void
fill_grant(struct input *input, struct ctl_grant *grant)
{
	uint8_t byte = input_byte(input);

	*grant = (struct ctl_grant){.leg = 1 + input_number(input) % 64,
		.source_sid = pool_pick(&sids, input),
		.source_gen = pool_pick(&op_seqs, input),
		.source_agent_inc = byte & 1 ? 1 : 2};
	grant->ticket = ticket_of(grant->leg);
	snprintf(grant->source_address, sizeof(grant->source_address), "h:1");
	fill_text(input, grant->source_replica, sizeof(grant->source_replica), "r");
	fill_text(input, grant->source_node, sizeof(grant->source_node), "n");
}

static void
fill_event(struct input *input, struct ctl_event *event)
{
	uint64_t sid = pool_pick(&sids, input), op_seq = pool_pick(&op_seqs, input);
	uint8_t byte = input_byte(input);

	/* By a byte of its own: what an input of the corpus means stays. */
	uint8_t kind = input_byte(input);
	*event = (struct ctl_event){.kind = CTL_EV_BORROW_REFUSED};
	if (kind == UINT8_MAX - 1)
		event->kind = CTL_EV_GO_MARK;
	else if (kind != UINT8_MAX)
		event->kind = (enum ctl_event_kind)(CTL_EV_PLAN + kind % CTL_EV_READY);
	switch ((int)event->kind) {
	case CTL_EV_PLAN:
		event->u.plan = (struct ctl_ev_plan){.sid = sid,
			.op_seq = op_seq,
			.kind = byte & 1 ? CTL_OP_REPLICATE : CTL_OP_UPDATE,
			.plan_no = byte >> 1 & 1u,
			.drain_old = byte & 4,
			.version = {0, byte >> 3 & 3u},
			.layout = {.lo = 1 + (byte >> 5 & 1u)},
			.manifest = {.lo = 1}};
		break;
	case CTL_EV_GO:
		event->u.go = (struct ctl_ev_go){
			.sid = sid, .op_seq = op_seq, .content = {.lo = byte & 3u}};
		fill_grant(input, &event->u.go.grant);
		break;
	case CTL_EV_REROUTE:
		event->u.reroute = (struct ctl_ev_reroute){.sid = sid,
			.op_seq = op_seq,
			.old_leg = byte % 64u,
			.content = {.lo = byte >> 6}};
		fill_grant(input, &event->u.reroute.grant);
		break;
	case CTL_EV_GRANT:
		event->u.grant = (struct ctl_ev_grant){.leg = 1 + byte % 64u,
			.ticket = ticket_of(1 + byte % 64u),
			.sid = sid,
			.gen = op_seq,
			.reader_agent_inc = 2};
		fill_text(
			input, event->u.grant.reader_node, sizeof(event->u.grant.reader_node), "n");
		fill_text(input, event->u.grant.reader_replica,
			sizeof(event->u.grant.reader_replica), "r");
		break;
	case CTL_EV_FENCE:
		event->u.fence_leg = 1 + byte % 64u;
		break;
	case CTL_EV_DRAIN:
	case CTL_EV_UNDRAIN:
		event->u.drain =
			(struct ctl_ev_part){.sid = sid, .gen = op_seq, .drain_no = byte % 8u};
		break;
	case CTL_EV_CANCEL:
		event->u.cancel = (struct ctl_cancel){sid, op_seq};
		break;
	case CTL_EV_OUTCOME:
		event->u.outcome = (struct ctl_ev_outcome){.sid = sid,
			.op_seq = op_seq,
			.kind = CTL_OP_PUBLISH + byte % 5u,
			.code = byte & 0x80 ? TH_E_LAYOUT : 0,
			.updated = byte & 0x40,
			.version = {0, byte & 0x20 ? TH_NO_VERSION : byte >> 3 & 3u},
			.generation = byte};
		snprintf(event->u.outcome.text, sizeof(event->u.outcome.text), "%s",
			byte & 0x80 ? "why" : "");
		break;
	case CTL_EV_CHANGED:
		fill_text(input, event->u.changed.model, sizeof(event->u.changed.model), "m");
		event->u.changed.generation = byte;
		break;
	case CTL_EV_BROKEN:
	case CTL_EV_CONFLICT:
	case CTL_EV_AT_RISK:
		event->u.broken = (struct ctl_ev_broken){.sid = sid, .evicted = byte & 1};
		snprintf(event->u.broken.text, sizeof(event->u.broken.text), "why");
		break;
	case CTL_EV_RESERVE:
		event->u.reserve = (struct ctl_ev_reserve){.reservation = 1 + byte % 4u,
			.shard = byte >> 2 & 1u,
			.num_shards = 2,
			.version = {0, byte >> 3 & 3u},
			.bytes = 1000,
			.num_chunks = 8,
			.layout = {.lo = 1},
			.manifest = {.lo = 1},
			.source_sid = byte & 0x80 ? sid : 0};
		fill_text(input, event->u.reserve.model, sizeof(event->u.reserve.model), "m");
		fill_text(input, event->u.reserve.replica, sizeof(event->u.reserve.replica), "r");
		break;
	case CTL_EV_RELEASE:
		event->u.release = (struct ctl_ev_release){.reservation = 1 + byte % 4u,
			.shard = byte >> 2 & 1u,
			.sid = byte & 0x80 ? sid : 0};
		break;
	case CTL_EV_CLOSE_REFUSED:
		event->u.close_refused = (struct ctl_ev_close_refused){
			.sid = sid, .code = byte & 1 ? TH_E_NOMEM_RETAIN : TH_E_TIMEOUT};
		snprintf(event->u.close_refused.text, sizeof(event->u.close_refused.text), "why");
		break;
	case CTL_EV_READY:
		event->u.ready = (struct ctl_ev_ready){
			sid, {0, byte & 0x20 ? TH_NO_VERSION : byte >> 3 & 3u}};
		break;
	case CTL_EV_BORROW_REFUSED:
		event->u.borrow_refused =
			(struct ctl_ev_borrow_refused){.version = {0, byte >> 3 & 3u},
				.shard = byte & 1u,
				.code = byte & 2 ? TH_E_LIMIT : TH_E_NOT_AVAILABLE};
		fill_text(input, event->u.borrow_refused.model,
			sizeof(event->u.borrow_refused.model), "m");
		break;
	case CTL_EV_GO_MARK:
		fill_text(input, event->u.go_mark.model, sizeof(event->u.go_mark.model), "m");
		event->u.go_mark.version = (struct th_version){0, byte & 3u};
		break;
	case CTL_EV_NODE:
		event->u.node.draining = byte & 1;
		break;
	case CTL_EV_RULES:
		fill_text(input, event->u.rules.model, sizeof(event->u.rules.model), "m");
		event->u.rules.all = byte & 1;
		snprintf(event->u.rules.rules, sizeof(event->u.rules.rules), "%s",
			byte & 1   ? ""
			: byte & 2 ? "latest"
				   : "latest,latest-1");
		break;
	default:
		break;
	}
	/* Some come again, some are missed. */
	byte = input_byte(input);
	event->number = byte < 0xe0 ? ++last_event : last_event + (byte & 3u);
}

static void
fill_reply(struct input *input, struct ctl_reply *reply, struct ctl_event events[4])
{
	uint8_t byte = input_byte(input);

	if (byte >= 0xe0) {
		reply->code = byte & 1 ? TH_E_STATE : TH_E_NO_SERVER;
		reply->unknown_agent = (byte & 3) == 2;
		snprintf(reply->text, sizeof(reply->text), "why");
		return;
	}
	switch ((int)reply->kind) {
	case CTL_HELLO:
		reply->u.hello = (struct ctl_hello_reply){.server_inc = 1 + byte % 2u,
			.protocol = TH_PROTOCOL_MAX,
			.epoch = byte >> 2 & 3u,
			.serving = !(byte & 0x80)};
		break;
	case CTL_ATTACH:
		reply->u.attach = (struct ctl_attach_reply){.server_inc = 1 + byte % 2u,
			.attach_no = ++attach_no,
			.epoch = byte & 2 ? (uint32_t)(input_number(input) & TH_EPOCH_MAX) : 1,
			.fresh = byte & 4};
		if (reply->u.attach.fresh)
			last_event = 0;
		break;
	case CTL_POLL:
		reply->u.poll.num_events = byte % 5u;
		reply->u.poll.events = events;
		for (uint32_t i = 0; i < reply->u.poll.num_events; i++)
			fill_event(input, &events[i]);
		break;
	case CTL_OPEN:
	case CTL_REJOIN:
		reply->u.open = (struct ctl_open_reply){
			.sid = byte & 1 ? pool_pick(&sids, input) : ++last_sid,
			.next_op_seq = 1 + (byte >> 1 & 7u),
			.group_inc = 1 + (byte >> 4 & 3u)};
		pool_add(&sids, reply->u.open.sid);
		break;
	case CTL_WATCH:
		fill_text(input, reply->u.watch.model, sizeof(reply->u.watch.model), "m");
		reply->u.watch.generation = byte;
		break;
	case CTL_ADMIN:
		reply->u.admin.state = byte & 1 ? "empty" : "draining";
		reply->u.admin.server_inc = 1;
		break;
	default:
		break;
	}
}

/* To a request that waits; as the wire has it, or none. */
static void
answer(struct input *input, struct debt *debt)
{
	struct ctl_reply reply = {.kind = debt->kind, .request_no = debt->request_no}, came;
	struct ctl_event events[4];
	struct th_err err = {0};
	uint8_t byte = input_byte(input), *data;
	struct agent_event event = {.kind = AGENT_EV_REPLY, .u.reply.tag = debt->number};
	size_t bytes;
	int rc = -1;

	if (byte < 0xe0) {
		fill_reply(input, &reply, events);
		TH_ASSERT(ctl_reply_pack(&reply, &data, &bytes) == 0);
		rc = ctl_reply_unpack(data, bytes, debt->kind, &arena, &err, &came);
		free(data);
	} else if (byte < 0xf0) {
		struct input part = input_part(input);
		rc = ctl_reply_unpack(part.at, part.left, debt->kind, &arena, &err, &came);
		came.request_no = debt->request_no;
	}
	debt->owed = NONE;
	if (rc == 0) {
		event.u.reply.reply = &came;
	} else {
		event.kind = AGENT_EV_NO_REPLY;
		event.u.reply.hung_up = byte & 1;
	}
	step(&event);
}

/* ---- the shell ------------------------------------------------------------------------------ */

static void
end_leg(struct input *input, struct debt *debt)
{
	uint8_t byte = input_byte(input);
	struct agent_event event = {.kind = (enum agent_event_kind)(AGENT_EV_LEG_DONE + byte % 3u)};

	event.u.leg = (struct agent_leg_report){.leg = debt->number,
		.code = event.kind == AGENT_EV_LEG_DONE ? 0 : TH_E_PROTOCOL,
		.source_failed = byte & 4,
		.overwrote = byte & 8,
		.chunks_verified = event.kind == AGENT_EV_LEG_DONE ? 8 : byte >> 5,
		.content = {.lo = byte >> 4 & 1u}};
	debt->owed = NONE;
	step(&event);
}

/* Also when its leg has ended since. */
static void
end_donor(struct debt *debt)
{
	const struct agent_event event = {.kind = AGENT_EV_DONOR_LEFT, .u.donor_leg = debt->number};

	debt->owed = NONE;
	step(&event);
}

static void
end_reservation(struct input *input, struct debt *debt)
{
	uint8_t byte = input_byte(input);
	struct agent_event event = {.kind = AGENT_EV_RESERVED,
		.u.reserved = {.id = debt->number, .code = byte & 1 ? TH_E_NOMEM_RETAIN : 0}};

	if (event.u.reserved.code == 0)
		event.session = ++last_session;
	debt->owed = NONE;
	step(&event);
}

static void
end_out(struct input *input, struct debt *debt)
{
	uint8_t byte = input_byte(input);
	struct agent_event event = {
		.kind = (enum agent_event_kind)(AGENT_EV_OUT_STALLED + byte % 3u),
		.u.out_leg = debt->number};

	if (event.kind == AGENT_EV_OUT_ENDED)
		debt->owed = NONE;
	step(&event);
}

static void
end_hash(struct input *input, struct debt *debt)
{
	struct agent_event event = {
		.kind = debt->owed == HASHING ? AGENT_EV_HASHED : AGENT_EV_HASH_STOPPED,
		.session = debt->session,
		.u.hash = {.gen = debt->number, .content = {.lo = input_byte(input) % 2u}}};

	debt->owed = NONE;
	step(&event);
}

/* Something that the shell owes. */
static void
end_one(struct input *input)
{
	uint32_t first = input_byte(input), i;

	for (i = 0; i < OPEN_MAX; i++) {
		struct debt *debt = &debts[(first + i) % OPEN_MAX];
		if (debt->owed == NONE)
			continue;
		if (debt->owed == REPLY)
			answer(input, debt);
		else if (debt->owed == LEG_IN)
			end_leg(input, debt);
		else if (debt->owed == DONOR)
			end_donor(debt);
		else if (debt->owed == LEG_OUT)
			end_out(input, debt);
		else if (debt->owed == RESERVATION)
			end_reservation(input, debt);
		else
			end_hash(input, debt);
		return;
	}
}

static void
open_session(struct input *input)
{
	struct agent_event event = {.kind = AGENT_EV_OPEN};
	uint8_t byte = input_byte(input);

	for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
		if (sessions[i].id != 0)
			continue;
		sessions[i] = (struct session){.id = ++last_session};
		event.session = last_session;
		event.u.open.num_shards = 1 + (byte & 1u);
		event.u.open.shard = byte >> 1 & byte & 1u;
		fill_text(input, event.u.open.model, sizeof(event.u.open.model), "m");
		fill_text(input, event.u.open.replica, sizeof(event.u.open.replica), "r");
		snprintf(event.u.open.retain, sizeof(event.u.open.retain), "%s",
			byte & 4   ? "latest,latest-1"
			: byte & 8 ? "1"
				   : "");
		step(&event);
		return;
	}
}

static void
submit(struct input *input, struct session *session)
{
	static const char *const specs[] = {"latest", "latest-1", "1", "2", "3", "", "x", "0"};
	struct agent_event event = {.kind = AGENT_EV_SUBMIT, .session = session->id};
	uint8_t byte = input_byte(input), more = input_byte(input);
	uint32_t slot = byte % SLOTS;

	if (session->busy[slot]) {
		event.kind = AGENT_EV_CANCEL;
		event.u.cancel_slot = slot;
	} else {
		session->busy[slot] = true;
		event.u.submit.slot = slot;
		event.u.submit.kind =
			byte >= 0xf0 ? AGENT_SUBMIT_WATCH : CTL_OP_PUBLISH + (byte >> 2) % 5u;
		event.u.submit.timeout_ns = more & 8 ? TH_FOREVER : (more >> 4) * SECOND_NS / 4;
		event.u.submit.flags = more == 0xff ? 2 : 0;
		snprintf(event.u.submit.spec, sizeof(event.u.submit.spec), "%s", specs[more % 8u]);
	}
	step(&event);
}

static void
of_session(struct input *input)
{
	uint8_t byte = input_byte(input), what = input_byte(input);
	struct session *session = &sessions[byte % SESSIONS_MAX];
	struct agent_event event = {.kind = AGENT_EV_CLOSE, .session = session->id};

	if (session->id == 0 || (!session->open && what < 0xe0)) {
		open_session(input);
		return;
	}
	if (what < 0x60) {
		submit(input, session);
		return;
	}
	if (what < 0xa0 && session->registration == UNREGISTERED) {
		event.kind = AGENT_EV_REGISTER;
		event.u.reg.layout = event.u.reg.manifest = (struct th_hash){.lo = 1 + (what & 1u)};
		event.u.reg.bytes = 1000;
		event.u.reg.num_chunks = 8;
		event.u.reg.mapped = what & 2;
		session->registration = ASKED;
	} else if (what < 0xa0 && session->registration == REGISTERED && what >= 0x90) {
		event.kind = AGENT_EV_UNREGISTER;
		session->registration = LEAVING;
	} else if (what == 0xae) {
		event.kind = AGENT_EV_RETURNED;
		event.u.returned_loan = input_byte(input) % 8u;
	} else if (what == 0xaf) {
		uint8_t how = input_byte(input);
		event.kind = AGENT_EV_BORROW;
		event.u.borrow = (struct agent_borrow){.id = ++last_loan,
			.version = {0, how >> 3 & 3u},
			.shard = how & 1u,
			.timeout_ns = how & 2 ? TH_FOREVER : SECOND_NS,
			.limit = how & 4 ? UINT64_MAX : 1000};
	} else if (what < 0xb0) {
		event.kind = AGENT_EV_ATTRIBUTES;
		event.u.attributes = (struct th_hash){.lo = what & 1u};
	} else if (what < 0xc0) {
		event.kind = AGENT_EV_EXPLAINED;
		event.u.explained.op_seq = pool_pick(&op_seqs, input);
		snprintf(event.u.explained.text, sizeof(event.u.explained.text), "why");
	} else if (what < 0xd0) {
		event.kind = AGENT_EV_CONTRACT;
		event.u.contract.gen = pool_pick(&op_seqs, input);
		snprintf(event.u.contract.text, sizeof(event.u.contract.text), "why");
	} else if (what < 0xe8) {
		event.u.close.abandon = what & 1;
		event.u.close.timeout_ns = what & 2 ? TH_FOREVER : SECOND_NS;
	} else {
		event.kind = AGENT_EV_LOST;
		event.u.lost.memory_gone = what & 1;
	}
	step(&event);
}

/* A reader comes, perhaps when its leg has begun before or is being fenced. */
static void
knock(struct input *input)
{
	uint32_t first = input_byte(input);

	for (uint32_t i = 0; i < OPEN_MAX; i++) {
		const struct debt *debt = &debts[(first + i) % OPEN_MAX];
		const struct agent_event event = {
			.kind = AGENT_EV_OUT_BEGAN, .u.out_leg = debt->number};
		if (debt->owed != LEG_OUT)
			continue;
		step(&event);
		return;
	}
}

/* The shell waits for no answer for ever. */
static void
time_out(void)
{
	uint32_t waiting = 0;

	for (uint32_t i = 0; i < OPEN_MAX; i++)
		waiting += debts[i].owed == REPLY;
	for (uint32_t i = 0; waiting > WAITING_MAX && i < OPEN_MAX; i++) {
		const struct agent_event event = {
			.kind = AGENT_EV_NO_REPLY, .u.reply.tag = debts[i].number};
		if (debts[i].owed != REPLY)
			continue;
		debts[i].owed = NONE;
		step(&event);
	}
}

static void
pass_time(struct input *input)
{
	static const int64_t steps_ns[] = {1, SECOND_NS / 50, SECOND_NS / 2, SECOND_NS,
		3 * SECOND_NS, 11 * SECOND_NS, 61 * SECOND_NS, 700 * SECOND_NS};
	struct agent_event event = {.kind = AGENT_EV_TICK};
	uint8_t byte = input_byte(input);

	time_out();
	if (byte & 8)
		now_ns = next_ns > now_ns && next_ns < INT64_MAX / 2 ? next_ns : now_ns;
	else
		now_ns += steps_ns[byte % 8];
	if (byte == 0xff) {
		event.kind = AGENT_EV_LEAVE;
		event.u.leave_timeout_ns = 10 * SECOND_NS;
	}
	step(&event);
}

static void
begin(struct input *input)
{
	struct agent_config config = {.agent_inc = 1, .secret = {{1}}};
	uint8_t byte = input_byte(input);

	agent_config_default(&config);
	snprintf(config.attach.node, sizeof(config.attach.node), "n0");
	snprintf(config.attach.datacenter, sizeof(config.attach.datacenter), "d0");
	snprintf(config.attach.data_address, sizeof(config.attach.data_address), "h:1");
	config.attach.offload_bytes = UINT64_MAX;
	config.server_loss_reset = byte & 1;
	config.drain_wait_ns = 30 * SECOND_NS;
	config.sessions_max = SESSIONS_MAX;
	config.reservations_max = 3;
	config.grants_max = 4;
	now_ns = next_ns = 1000 * SECOND_NS;
	memset(debts, 0, sizeof(debts));
	memset(sessions, 0, sizeof(sessions));
	sids = op_seqs = (struct pool){0};
	last_session = last_sid = last_event = attach_no = 0;
	agent = agent_core_new(&config, now_ns);
	TH_ASSERT(agent != NULL);
	step(&(struct agent_event){.kind = AGENT_EV_TICK});
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input input = {data, size};

	begin(&input);
	for (uint32_t i = 0; i < STEPS_MAX && input.left > 0; i++) {
		uint8_t what = input_byte(&input);
		if (what < 0x90)
			end_one(&input);
		else if (what < 0xd8)
			of_session(&input);
		else if (what < 0xe8)
			knock(&input);
		else
			pass_time(&input);
		convert_arena_free(&arena);
	}
	agent_core_free(agent);
	return 0;
}
