/* SPDX-License-Identifier: Apache-2.0 */
/*
 * close - how a session ends.
 *
 * The last copy of a retained version is copied elsewhere before its DRAIN comes, also when its
 * worker is dead: until then the memory stays. When that cannot be done the close is refused, and
 * the session is open again; who is dead, or takes no refusal, gives it up.
 *
 * Without a server nobody can be asked for that: the close waits for one until its deadline, and is
 * refused then. What no server has heard of is open as before. What one may have begun with stays
 * closing, until a server says more, or the worker closes again or dies.
 *
 * Closing: the operation is answered and cancelled, the leg in is stopped, the server is told, and
 * the part is drained: by the server's DRAIN, which hides it first so that no reader comes in vain,
 * or by ourselves when there is no server to wait for. Only the proof that nothing reads or writes
 * the memory ends it; no timer does.
 */
#include <inttypes.h>
#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/sim.h"

/* What is queued and was never sent, and means nothing once the session is closed. */
static void
drop_unsent(struct agent_core *agent, struct session *session, bool cuts)
{
	struct request *request, *next;

	DL_FOREACH_SAFE(session->lane->queue, request, next)
	{
		unsigned kind = (unsigned)request->ctl.kind;
		/* A former server may have had it: its end is asked for as ever. */
		if (cuts && (kind == CTL_OP || kind == CTL_CANCEL))
			continue;
		if (request->ctl.request_no == 0 && kind != CTL_LEG_END && kind != CTL_DRAIN_DONE &&
			kind != CTL_CLOSE && kind != CTL_REJOIN)
			ac_lane_drop(agent, request);
	}
}

static void
close_answer_pending(
	struct agent_core *agent, struct session *session, const struct th_err *err, bool cuts)
{
	if (session->tensors == TENSORS_REGISTERING)
		ac_answer(agent, AGENT_REGISTERED, session->id, err);
	if (ac_tensors_go(session))
		ac_answer(agent, AGENT_UNREGISTERED, session->id, err);
	if (ac_tensors_change(session))
		ac_tensors_enter(session,
			ac_tensors_go(session) ? TENSORS_REGISTERED : TENSORS_NONE, "closed");
	ac_alone_forget(session);
	ac_watches_end(agent, session, err->code, err->text);
	if (cuts)
		ac_ghost_cut(agent, session, err->code, err->text);
	else
		ac_call_abandon(agent, session, err->code, err->text);
}

static void
close_opening(struct agent_core *agent, struct session *session)
{
	struct request_lane *lane = session->lane;
	uint64_t id = session->id;
	bool silent = ac_lost(session) || ac_internal(session);

	TH_ASSERT(lane->queue != NULL || ac_observer(session));
	lane->died = ac_lost(session);
	if (lane->queue != NULL && lane->queue->ctl.request_no == 0)
		ac_lane_clear(agent, lane);
	ac_session_free(agent, session);
	if (!silent)
		ac_answer(agent, AGENT_CLOSED, id, NULL);
	ac_action(agent, AGENT_FREE, id);
}

static void
send_close(struct agent_core *agent, struct session *session, bool abandon)
{
	struct ctl_close *close = &ac_lane_add(agent, session->lane, CTL_CLOSE)->u.close;
	const struct part *part = session->part;

	/* When there is no server it goes later. */
	session->lane->queue->prev->op_deadline_ns =
		th_deadline_ns(session->closing_ns, session->close_timeout_ns);
	session->close_final = abandon || ac_lost(session) || ac_ended(session);
	session->close_reply = CLOSE_UNANSWERED;
	close->sid = session->sid;
	close->died = ac_lost(session);
	close->broke_contract = ac_ended(session);
	/* Of what was never whole nothing is said: nobody counts on it. */
	close->unreadable =
		part != NULL && ac_part_drains(part, DRAIN_HOPELESS) && part->state >= PART_FULL;
	close->abandon = abandon;
	close->timeout_ns = session->close_timeout_ns;
}

/* The CLOSE that no server can have seen; NULL: there is none. */
static struct request *
unsent_close(const struct session *session)
{
	struct request *request;

	DL_FOREACH(session->lane->queue, request)
	{
		if (request->ctl.kind == CTL_CLOSE && request->ctl.request_no == 0)
			return request;
	}
	return NULL;
}

/* The part is over without the server, which must not wait for a copy of what is not here. */
static void
insist(struct agent_core *agent, struct session *session)
{
	struct request *request = unsent_close(session);

	if (request == NULL) {
		send_close(agent, session, true);
		request = session->lane->queue->prev;
	}
	struct ctl_close *close = &request->ctl.u.close;
	close->died = ac_lost(session);
	close->abandon = close->unreadable = session->close_final = true;
}

/* Its worker has said that no rule is to keep what is held. */
static bool
close_forced(const struct session *session)
{
	const struct order *order = ac_pending(session) ? &session->pending : &session->call.order;

	return (ac_pending(session) ||
		       (session->call.state != CALL_NONE && !session->call.ghost)) &&
	       order->kind == CTL_OP_UNPUBLISH && (order->flags & CTL_OP_FORCE) != 0;
}

/* From OPEN to closing: whoever waits hears why, the server hears it, and the part is drained. */
static void
wind_up(struct agent_core *agent, struct session *session, enum session_state state,
	const char *why, const struct th_err *err)
{
	struct part *part = session->part;
	const struct call *call = &session->call;
	bool cuts = ac_ghost_may_cut(session);
	/* What has begun to change, or is given up by force, cannot be open as before. */
	bool abandon = session->abandon || close_forced(session) ||
		       (call->state != CALL_NONE && !cuts && !ac_call_never_sent(call)) ||
		       ac_tensors_change(session) || ac_internal(session);

	ac_session_enter(session, state, why);
	if (ac_internal(session) && !TH_PLANT(given_up_in_silence))
		ac_action(agent, AGENT_GIVEN_UP, session->id);
	/* First: a leg that was to follow it is known to the operation only. */
	if (session->in != NULL)
		ac_inbound_stop(agent, session->in, STOP_CANCEL);
	drop_unsent(agent, session, cuts);
	close_answer_pending(agent, session, err, cuts);
	if (part != NULL && part->state < PART_FULL)
		ac_part_drain_for(part, DRAIN_HOPELESS);
	/* Not committed: whether the server has a DRAIN for it depends on what crossed. */
	if (part != NULL && part->state != PART_HELD)
		ac_part_drain_for(part, DRAIN_LOCAL);
	if (ac_known(session))
		send_close(agent, session, abandon);
}

/*
 * Everything of a close but its end: the worker has not asked for one, and may still ask whether
 * its memory is safe.
 */
void
ac_contract(struct agent_core *agent, struct session *session, uint64_t gen, const char *text)
{
	struct part *part = session->part;
	struct th_err err;

	if (session->state != SESSION_OPEN || part == NULL || part->gen != gen)
		return;
	session->closing_ns = agent->now_ns;
	session->num_contract++;
	ac_copy(session->ended_text, sizeof(session->ended_text), text, TH_CTL_TEXT_BYTES);
	th_fail(&err, TH_E_CONTRACT, "%s", session->ended_text);
	ac_part_drain_for(part, DRAIN_HOPELESS);
	/* Of a copy of our own nobody else asks for the end. */
	wind_up(agent, session, ac_internal(session) ? SESSION_CLOSING : SESSION_CLOSING_UNASKED,
		"contract", &err);
	ac_settle(agent, session);
}

void
ac_close(struct agent_core *agent, struct session *session, enum worker_state worker)
{
	struct part *part = session->part;
	struct th_err err;

	if (session->worker < worker)
		session->worker = worker;
	session->closing_ns = agent->now_ns;
	if (session->state == SESSION_OPENING) {
		close_opening(agent, session);
		return;
	}
	/* Digests would be made from memory that a dying worker may have torn. */
	bool torn = part != NULL && part->published && !ac_part_has_digests(part);
	if (worker != WORKER_THERE && part != NULL &&
		(torn || session->worker == WORKER_MEMORY_GONE)) {
		ac_part_drain_for(part, DRAIN_HOPELESS);
		/* The server may have it copied, for a close in order. */
		if (ac_closing(session) && ac_known(session) && !ac_ended(session) &&
			!ac_part_drains(part, DRAIN_SERVER))
			insist(agent, session);
	}
	if (session->state == SESSION_OPEN) {
		th_fail(&err, TH_E_CANCELLED, "the handle was closed");
		wind_up(agent, session, SESSION_CLOSING, "closed", &err);
	} else if (session->state == SESSION_CLOSING_UNASKED) {
		ac_session_enter(session, SESSION_CLOSING, "closed");
	}
	ac_settle(agent, session);
}

/* Nothing has changed: the copy is listed, and its readers were let be. */
static void
close_reopen(struct agent_core *agent, struct session *session,
	const struct ctl_ev_close_refused *refused)
{
	struct th_err err = {.code = ac_code(refused->code)};
	bool asked = session->state == SESSION_CLOSING;

	TH_MARK(agent_close_refused);
	AC_COPY(err.text, refused->text);
	ac_session_enter(session, SESSION_OPEN, "the close is refused");
	/* Else its worker was told of another reason before. */
	if (asked)
		ac_answer(agent, AGENT_CLOSED, session->id, &err);
	session->close_reply = CLOSE_UNANSWERED;
}

void
ac_close_refused(struct agent_core *agent, const struct ctl_ev_close_refused *refused)
{
	struct session *session = ac_session_by_sid(agent, refused->sid);

	if (session == NULL) {
		/* Ended here while there was no server: it must not stay open there. */
		struct ctl_close *close = &ac_lane_add(agent, agent->misc, CTL_CLOSE)->u.close;
		TH_MARK(agent_close_refused_too_late);
		close->sid = refused->sid;
		close->abandon = close->unreadable = true;
		close->timeout_ns = TH_FOREVER;
		return;
	}
	if (!ac_closing(session) || session->close_final)
		return;
	if (ac_lost(session) || session->abandon || refused->code == 0 || session->part == NULL ||
		ac_part_draining(session->part)) {
		/* Meanwhile there is nobody, or nothing, to go back to. */
		TH_MARK(agent_close_insists);
		send_close(agent, session, true);
		return;
	}
	close_reopen(agent, session, refused);
}

/* ---- conclusions ----------------------------------------------------------------------------- */

static int64_t
drain_patience_ns(const struct agent_core *agent, const struct session *session)
{
	return th_deadline_ns(session->close_answered_ns, agent->config.drain_wait_ns);
}

/* Until when a part waits for a server that may have it copied elsewhere. */
static int64_t
server_patience_ns(const struct agent_core *agent, const struct session *session)
{
	int64_t until_ns = th_deadline_ns(session->closing_ns, agent->config.drain_wait_ns);

	/* Its worker closes again, or dies. */
	if (session->state == SESSION_CLOSING_UNASKED)
		return INT64_MAX;
	/* Who waits for it has said how long. */
	if (!ac_lost(session))
		until_ns = th_min_i64(
			until_ns, th_deadline_ns(session->closing_ns, session->close_timeout_ns));
	return until_ns;
}

static bool
waits_for_server(const struct agent_core *agent, const struct session *session)
{
	if (!ac_lost(session) && (session->close_final || session->abandon))
		return false;
	/* In a broken group: not what the server has seen to. */
	if (ac_broken(session) && ac_part_drains(session->part, DRAIN_SERVER))
		return false;
	/* It is not refused when nobody comes: there is nobody, or nothing, to go back to. */
	return !(ac_lost(session) || ac_broken(session)) ||
	       agent->now_ns < server_patience_ns(agent, session);
}

bool
ac_close_keeps(const struct agent_core *agent, const struct session *session)
{
	const struct part *part = session->part;

	return ac_closing(session) && ac_known(session) && !ac_ended(session) &&
	       !ac_internal(session) && part != NULL && part->state == PART_HELD &&
	       !ac_part_drains(part, DRAIN_LOCAL | DRAIN_HOPELESS) && !part->refused &&
	       waits_for_server(agent, session) && ac_alone_retained(agent, session);
}

void
ac_close_again(struct agent_core *agent, struct session *session)
{
	TH_MARK(close_told_to_the_next_server);
	send_close(agent, session, session->abandon);
}

/* The server has the part on record, has hidden it by now or will, and says so with a DRAIN. */
static bool
await_drain(const struct agent_core *agent, const struct session *session)
{
	if (!ac_known(session) || session->close_reply == CLOSE_REFUSED)
		return false;
	/* The memory stays mapped: at most what was held when the server went. */
	if (!agent->link.attached)
		return ac_close_keeps(agent, session);
	return session->close_reply == CLOSE_UNANSWERED ||
	       agent->now_ns < drain_patience_ns(agent, session);
}

/* For good, as far as is known. */
static bool
is_going(const struct session *session)
{
	return ac_part_draining(session->part) && !ac_ghost_undecided(session);
}

/* Its deadline has come, and no server. */
static void
refuse_alone(struct agent_core *agent, struct session *session)
{
	struct request *request = unsent_close(session);
	struct th_err err;

	th_fail(&err, TH_E_NO_SERVER,
		"version %" PRIu64 " of %s is retained, and the agent reaches no reference server "
		"that could have it copied elsewhere: close again later, or give it up with "
		"THC_CLOSE_ABANDON; see 'thctl status'",
		session->held.version, session->open.model);
	if (request != NULL) {
		TH_MARK(close_refused_alone);
		ac_lane_drop(agent, request);
		ac_session_enter(session, SESSION_OPEN, "no server came");
	} else {
		TH_MARK(close_refused_and_goes_on);
		ac_session_enter(session, SESSION_CLOSING_UNASKED, "no server came");
	}
	ac_answer(agent, AGENT_CLOSED, session->id, &err);
}

void
ac_close_settle(struct agent_core *agent, struct session *session)
{
	struct part *part = session->part;
	uint64_t id = session->id;
	bool lost = ac_lost(session), silent = lost || ac_internal(session);

	if (!ac_closing(session) || session->in != NULL)
		return;
	if (part != NULL) {
		if (!is_going(session)) {
			bool waits = await_drain(agent, session);
			if (waits && !agent->link.attached &&
				agent->now_ns >= server_patience_ns(agent, session))
				refuse_alone(agent, session);
			if (waits)
				return;
			ac_part_drain_for(part, DRAIN_LOCAL);
			ac_part_settle(agent, session);
		}
		if (!ac_part_drained(part))
			return;
		/* An unpublish that is cut off may be restored there: the CANCEL was in time, but
		 * its DRAIN came first, and what it hid is over. */
		bool alone = ac_part_drains(part, DRAIN_LOCAL) ||
			     (session->call.cut && session->call.order.kind == CTL_OP_UNPUBLISH);
		if (alone && part->state == PART_HELD && ac_known(session) &&
			!ac_part_drains(part, DRAIN_HOPELESS)) {
			TH_MARK(close_ended_alone);
			insist(agent, session);
		}
		ac_part_end(agent, session);
	}
	session->held.version = TH_NO_VERSION;
	ac_session_line(agent, session);
	if (session->state == SESSION_CLOSING_UNASKED)
		return;
	/* The worker may open the same shard again at once: the server must have let it go. */
	if (!lost && agent->link.attached && ac_known(session) &&
		session->close_reply == CLOSE_UNANSWERED)
		return;
	ac_session_free(agent, session);
	if (!silent)
		ac_answer(agent, AGENT_CLOSED, id, NULL);
	ac_action(agent, AGENT_FREE, id);
}

int64_t
ac_close_next_ns(const struct agent_core *agent, const struct session *session)
{
	const struct part *part = session->part;

	if (!ac_closing(session) || part == NULL || is_going(session))
		return INT64_MAX;
	if (!agent->link.attached)
		return server_patience_ns(agent, session);
	if (session->close_reply == CLOSE_UNANSWERED)
		return INT64_MAX;
	return drain_patience_ns(agent, session);
}
