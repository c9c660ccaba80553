/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_rejoin - what a server that knows nothing is told of the sessions that a former one had.
 *
 *   OPEN session ----> REJOIN: what it holds, what of it runs, which outcomes it was told
 *   broken ----------> REJOIN gone: its group is over; but what it holds may be the last copy
 *   closing ---------> REJOIN gone: ... and nothing is held
 *   reset ----------^  (server_loss_reset): other agents may announce the rest of the group
 *
 * What runs after its GO runs on: legs in and out are numbered as before, and nobody who reads or
 * is read notices. An operation that had no GO has changed nothing: what was given up for it is
 * served again, and it is called again under its old number. It may have been decided, and another
 * member told so: that one's agent brings the outcome (I4), so ours must not be given up here.
 */
#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"

/* ---- outcomes -------------------------------------------------------------------------------- */

void
ac_rejoin_note(struct session *session)
{
	struct request_lane *lane = session->lane;
	const struct call *call = &session->call;
	struct ctl_known_outcome *outcome = &lane->automatic;

	if (!ac_call_automatic(call)) {
		if (lane->num_outcomes == TH_OUTCOMES_MAX)
			memmove(lane->outcomes, lane->outcomes + 1,
				--lane->num_outcomes * sizeof(*lane->outcomes));
		outcome = &lane->outcomes[lane->num_outcomes++];
	}
	*outcome = (struct ctl_known_outcome){
		.op_seq = call->op_seq,
		.kind = call->order.kind,
		.flags = call->order.flags,
		.code = call->outcome.code,
		.updated = call->outcome.updated,
		.went = ac_call_went(call),
		.version = call->outcome.version,
	};
	AC_COPY(outcome->spec, call->order.spec);
}

void
ac_rejoin_opened(struct session *session, uint64_t group_inc)
{
	session->lane->sid = session->sid;
	session->lane->group_inc = group_inc;
}

/* ---- what is said ---------------------------------------------------------------------------- */

static void
say_held(const struct session *session, struct ctl_rejoin *rejoin)
{
	const struct call *call = &session->call;
	const struct part *part = session->part;
	bool ended = ac_call_decided(call) && call->outcome.code == 0;

	if (part == NULL || ac_part_drains(part, DRAIN_HOPELESS) || part->state != PART_HELD ||
		(ended && call->order.kind == CTL_OP_UNPUBLISH))
		return;
	rejoin->held = session->held;
	rejoin->gen = part->gen;
	rejoin->attributes = part->attributes;
	rejoin->refused = part->refused;
	rejoin->published = part->published;
}

static void
say_running(const struct session *session, struct ctl_rejoin *rejoin)
{
	const struct call *call = &session->call;
	const struct inbound *in = session->in;

	rejoin->went = true;
	rejoin->attributes = session->part->attributes;
	rejoin->op_seq = call->op_seq;
	rejoin->kind = call->order.kind;
	rejoin->flags = call->order.flags;
	AC_COPY(rejoin->spec, call->order.spec);
	rejoin->version = call->plan.version;
	rejoin->cancelled = call->state == CALL_CANCELLED;
	rejoin->done = session->part->state >= PART_FULL;
	rejoin->announced = call->content;
	rejoin->chunks = rejoin->done ? session->reg.num_chunks
				      : th_min_u32(call->prefix, session->reg.num_chunks);
	if (in == NULL)
		return;
	rejoin->leg = in->grant.leg;
	rejoin->leg_stops = in->stop == STOP_REROUTE || in->stop == STOP_CANCEL;
	rejoin->source_sid = in->grant.source_sid;
	rejoin->source_gen = in->grant.source_gen;
}

static void
agent_rejoin_say(const struct session *session, struct ctl_rejoin *rejoin)
{
	const struct call *call = &session->call;
	const struct part *part = session->part;

	rejoin->sid = session->sid;
	rejoin->group_inc = session->lane->group_inc;
	rejoin->open = session->open;
	rejoin->registered =
		session->tensors == TENSORS_REGISTERING || session->tensors == TENSORS_REGISTERED;
	if (rejoin->registered)
		rejoin->reg = session->reg;
	bool automatic = ac_call_automatic(call);
	rejoin->next_op_seq =
		ac_call_waits(call) && !automatic ? call->op_seq : session->next_op_seq;
	rejoin->automatic_waits = ac_call_waits(call) && automatic ? call->op_seq : 0;
	rejoin->automatic = session->lane->automatic;
	AC_COPY(rejoin->follows, session->follows);
	rejoin->held.version = rejoin->version.version = rejoin->go.version = TH_NO_VERSION;
	if (!TH_PLANT(go_is_lost_with_the_server))
		rejoin->go = session->model->go;
	say_held(session, rejoin);
	if (ac_call_went(call) && !ac_call_decided(call))
		say_running(session, rejoin);
	if (part != NULL && (!th_version_none(rejoin->held) || rejoin->done)) {
		rejoin->hashed = ac_part_has_digests(part) || !part->published;
		rejoin->content = part->content;
	}
	rejoin->num_outcomes = session->lane->num_outcomes;
	rejoin->outcomes = session->lane->outcomes;
	if (TH_PLANT(outcomes_forgotten))
		rejoin->num_outcomes = 0;
}

/* Whatever it was told of what had no GO is void; it is called again. */
static void
call_again(struct agent_core *agent, struct session *session, bool never_sent)
{
	struct call *call = &session->call;

	if (!never_sent)
		ac_call_enter(session, CALL_ASKED_AGAIN, "REJOIN");
	/* Of what nobody calls the server says whether it goes on. */
	if (ac_call_automatic(call))
		return;
	session->next_op_seq = call->op_seq;
	ac_call_send(agent, session);
	if (call->cancel_sent)
		ac_lane_add(agent, session->lane, CTL_CANCEL)->u.cancel =
			(struct ctl_cancel){.sid = session->sid, .op_seq = call->op_seq};
	TH_MARK(rejoin_op_asked_again);
}

static void
announce(struct agent_core *agent, struct session *session)
{
	struct call *call = &session->call;
	struct part *part = session->part;
	struct ctl_rejoin *rejoin;
	bool never_sent = ac_call_never_sent(call);

	session->due.op_seq = 0;
	if (ac_call_automatic(call) && call->ghost)
		ac_call_abandon(agent, session, TH_E_CANCELLED, "");
	ac_lane_clear(agent, session->lane);
	session->at_server = AT_SERVER_REJOINING;
	session->ready.version = TH_NO_VERSION; /* this one says it anew */
	ac_alone_forget(session);               /* it is said that nothing is held */
	/* Named, not begun, and known to a server that is no more: there will be another. */
	call->has_next = false;
	rejoin = &ac_lane_add(agent, session->lane, CTL_REJOIN)->u.rejoin;
	agent_rejoin_say(session, rejoin);
	rejoin->gone = ac_broken(session);
	rejoin->died = ac_broken(session) && ac_lost(session);
	if (part != NULL) {
		ac_part_undrain_for(part, DRAIN_SERVER | (ac_call_went(call) ? 0 : DRAIN_PLAN));
	}
	if (ac_call_waits(call))
		call_again(agent, session, never_sent);
	else if (ac_call_went(call) && !ac_call_decided(call))
		TH_MARK(rejoin_leg_runs_on);
}

/* ---- what has ended -------------------------------------------------------------------------- */

static void
announce_gone(struct agent_core *agent, struct request_lane *lane, bool died)
{
	if (lane->sid == 0)
		return;
	struct ctl_rejoin *rejoin = &ac_lane_add(agent, lane, CTL_REJOIN)->u.rejoin;
	rejoin->sid = lane->sid;
	rejoin->group_inc = lane->group_inc;
	rejoin->open = lane->open;
	rejoin->gone = true;
	rejoin->died = died;
	rejoin->held.version = rejoin->version.version = rejoin->go.version = TH_NO_VERSION;
	TH_MARK(rejoin_gone);
}

bool
ac_rejoin_first(const struct ctl_request *request)
{
	return request->kind == CTL_REJOIN && request->u.rejoin.gone;
}

/* Its session is gone: whether it has told so is not known. */
static void
orphan(struct agent_core *agent, struct request_lane *lane)
{
	const struct request *request;
	bool leaves = false, died = false;

	DL_FOREACH(lane->queue, request)
	{
		leaves =
			leaves || request->ctl.kind == CTL_CLOSE || request->ctl.kind == CTL_REJOIN;
		died = died || (request->ctl.kind == CTL_CLOSE && request->ctl.u.close.died) ||
		       (request->ctl.kind == CTL_REJOIN && request->ctl.u.rejoin.died);
	}
	ac_lane_clear(agent, lane);
	if (leaves)
		announce_gone(agent, lane, died);
	if (lane->queue == NULL)
		ac_lane_free(agent, lane);
}

/*
 * A copy in the agent's own memory: what is complete or being filled is kept on. What had no GO is
 * begun anew by whoever needs it: the copy that it is made of has not been given up.
 */
static bool
goes_on(const struct session *session)
{
	const struct call *call = &session->call;
	bool failed = ac_call_decided(call) && call->outcome.code != 0;

	if (!ac_internal(session))
		return true;
	if (TH_PLANT(offload_dropped_at_rejoin))
		return false;
	return session->part != NULL && !session->unwanted && !failed &&
	       (call->state != CALL_NONE ? ac_call_went(call) : session->part->state == PART_HELD);
}

static void
forget_lanes(struct agent_core *agent)
{
	struct request_lane *lane, *next;

	ac_reserves_forget(agent);
	DL_FOREACH_SAFE(agent->lanes, lane, next)
	{
		if (lane == agent->misc)
			ac_lane_clear(agent, lane);
		else if (lane->session == NULL)
			orphan(agent, lane);
	}
}

/* Its group is broken, and no server has had what it holds given up: another may have it copied. */
static bool
may_be_rescued(const struct session *session)
{
	const struct call *call = &session->call;
	const struct part *part = session->part;
	bool kept = !ac_call_went(call) && (!ac_call_decided(call) || call->outcome.code != 0);

	return session->state == SESSION_OPEN && ac_broken(session) && ac_known(session) && kept &&
	       session->alone == ALONE_NOT && !ac_internal(session) && part != NULL &&
	       part->state == PART_HELD && !part->refused && ac_part_serves(part);
}

/* Nothing is called again in a broken group. */
static void
announce_broken(struct agent_core *agent, struct session *session)
{
	if (session->call.state != CALL_NONE)
		ac_call_fail(session, session->broken_code, session->broken_text);
	TH_MARK(rejoin_broken_announced);
	announce(agent, session);
}

static void
agent_rejoin_end(struct agent_core *agent, struct session *session, const char *text)
{
	bool opened = session->state != SESSION_OPENING;

	ac_session_forgotten(agent, session, text);
	if (opened)
		announce_gone(agent, session->lane, ac_lost(session));
}

/* No server is told of it, and none that has ended takes it along. */
static bool
outlives_servers(const struct session *session)
{
	return ac_observer(session) && !TH_PLANT(observer_ends_with_its_server);
}

void
ac_rejoin(struct agent_core *agent)
{
	struct session *session, *next;

	forget_lanes(agent);
	HASH_ITER(hh, agent->sessions, session, next)
	{
		if (outlives_servers(session)) {
			TH_MARK(d22_observer_outlives_its_server);
		} else if (session->state == SESSION_OPEN && !ac_broken(session) &&
			   goes_on(session)) {
			announce(agent, session);
		} else if (ac_close_keeps(agent, session)) {
			announce(agent, session);
			ac_close_again(agent, session);
		} else if (may_be_rescued(session)) {
			announce_broken(agent, session);
		} else {
			agent_rejoin_end(agent, session, session->broken_text);
		}
	}
}

void
ac_rejoin_none(struct agent_core *agent, const char *text)
{
	struct session *session, *next;

	forget_lanes(agent);
	HASH_ITER(hh, agent->sessions, session, next)
	{
		if (!outlives_servers(session))
			agent_rejoin_end(agent, session, text);
	}
}

/* ---- answers --------------------------------------------------------------------------------- */

void
ac_rejoin_reply(struct agent_core *agent, struct session *session, const struct ctl_reply *reply)
{
	char text[TH_CTL_TEXT_BYTES];

	if (session->at_server != AT_SERVER_REJOINING)
		return; /* it was gone */
	session->at_server = AT_SERVER_KNOWN;
	if (reply->code != 0) {
		AC_COPY(text, reply->text);
		ac_session_forgotten(agent, session, text);
		return;
	}
	/* It has met shards that were opened there: its group is theirs. */
	if (reply->u.open.group_inc != 0)
		session->lane->group_inc = reply->u.open.group_inc;
	/* What was on its way is as good as done: it was said with the rest. */
	ac_session_registered(agent, session, AGENT_REGISTERED, NULL);
	ac_session_registered(agent, session, AGENT_UNREGISTERED, NULL);
}

void
ac_rejoin_tick(struct agent_core *agent)
{
	const struct request_lane *lane;
	uint32_t count = 0;

	if (!agent->link.rejoined_due)
		return;
	DL_FOREACH(agent->lanes, lane)
	{
		if (lane->queue != NULL && lane->queue->ctl.kind == CTL_REJOIN)
			return;
		count += lane->session != NULL && !ac_observer(lane->session);
	}
	agent->link.rejoined_due = false;
	ac_lane_add(agent, agent->misc, CTL_REJOINED)->u.rejoined.num_sessions = count;
}
