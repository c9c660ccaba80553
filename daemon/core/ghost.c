/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ghost - an operation whose worker was answered, while the server may still know it.
 *
 *   pull sent --too late, not prepared--> ghost --OUTCOME, refusal, fresh attach--> gone
 *
 * Before our PREPARED the server cannot pass GO, so it is certain that the held version stays. That
 * is what the worker is told when no word of the server has come by its deadline; update, which
 * waits for no server, when it is known that there is none. But the OP may have been taken and its
 * op_seq used up: the lane repeats it until that is known, CANCEL follows it, a PLAN is declined,
 * and the OUTCOME is taken in silence. The worker's next operation gets its number only then: until
 * the ghost is gone one order is pending. Nothing of it has been sent, so to end it is certain to
 * change nothing. An unpublish that was ended without the server is a ghost too (alone.c). What the
 * server begins by itself (follower.c) is none, but an order waits for its end likewise.
 *
 * A close cuts off what runs, and asks for its CANCEL likewise. Of what had no GO here it waits for
 * the end, for only that says whether the held version stays: a retained one must not go with it.
 */
#include <stdio.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/sim.h"

/* ---- the ghost ------------------------------------------------------------------------------- */

void
ac_ghost_plan(struct agent_core *agent, struct session *session)
{
	TH_ASSERT(session->call.ghost);
	ac_call_prepared(agent, session, TH_E_CANCELLED,
		"the worker gave it up while no server was reachable");
}

/* Its worker was answered. */
static void
ghost_take_back(struct agent_core *agent, struct session *session)
{
	struct call *call = &session->call;

	call->ghost = true;
	if (call->state == CALL_PLANNED || call->state == CALL_EXPLAINING)
		ac_ghost_plan(agent, session);
	if (call->cancel_sent)
		return;
	call->cancel_sent = true;
	ac_lane_add(agent, session->lane, CTL_CANCEL)->u.cancel =
		(struct ctl_cancel){.sid = session->sid, .op_seq = call->op_seq};
}

bool
ac_ghost_may_cut(const struct session *session)
{
	const struct call *call = &session->call;
	const struct part *part = session->part;

	return ac_call_waits(call) && !ac_call_never_sent(call) && part != NULL &&
	       part->state == PART_HELD && !ac_part_drains(part, DRAIN_HOPELESS) &&
	       ac_known(session) && !ac_broken(session) && !ac_ended(session) &&
	       !session->abandon && !ac_internal(session);
}

void
ac_ghost_cut(struct agent_core *agent, struct session *session, int code, const char *text)
{
	struct call *call = &session->call;

	TH_MARK(close_cuts_off_a_call);
	ac_pending_end(agent, session, code, text);
	ac_alone_undo(session);
	if (!call->ghost && !ac_call_automatic(call))
		ac_call_answer(agent, session, code, text);
	call->cut = true;
	ghost_take_back(agent, session);
}

bool
ac_ghost_undecided(const struct session *session)
{
	const struct part *part = session->part;

	return session->call.cut && part->drains == DRAIN_PLAN;
}

static void
ghost_give_up(struct agent_core *agent, struct session *session)
{
	struct call *call = &session->call;

	TH_MARK(c30_ended_here_before_it_had_begun);
	bool attached = agent->link.attached;
	char text[TH_CTL_TEXT_BYTES];

	snprintf(text, sizeof(text),
		"%s: the reference server %s before anything had changed; the held version stays, "
		"try again later",
		ctl_op_name(call->order.kind), attached ? "did not answer in time," : "went away");
	ac_call_answer(agent, session, attached ? TH_E_TIMEOUT : TH_E_NO_SERVER, text);
	ghost_take_back(agent, session);
}

static void pending_tick(struct agent_core *agent, struct session *session);

void
ac_ghost_tick(struct agent_core *agent, struct session *session)
{
	if (!ac_call_never_sent(&session->call) &&
		agent->now_ns >= ac_call_give_up_ns(agent, session))
		ghost_give_up(agent, session);
	pending_tick(agent, session);
}

bool
ac_ghost_busy(const struct session *session)
{
	return ac_pending(session) || (session->call.state != CALL_NONE && !session->call.ghost &&
					      !ac_call_automatic(&session->call));
}

uint32_t
ac_ghost_busy_kind(const struct session *session)
{
	if (ac_pending(session))
		return session->pending.kind;
	return ac_ghost_busy(session) ? session->call.order.kind : 0;
}

/* ---- what waits for its end ------------------------------------------------------------------ */

void
ac_pending_keep(struct session *session, const struct order *order)
{
	TH_ASSERT(session->call.ghost || ac_call_automatic(&session->call));
	TH_ASSERT(!ac_pending(session));
	session->pending = *order;
}

void
ac_pending_start(struct agent_core *agent, struct session *session)
{
	if (ac_alone_tell(agent, session))
		return;
	if (session->tensors == TENSORS_UNREGISTER_WAITS)
		ac_session_send_unregister(agent, session);
	if (!ac_pending(session))
		return;
	/* What was checked when it came still holds: a ghost changes nothing of the session. What
	 * an automatic one has changed the server knows. */
	const struct order order = session->pending;
	session->pending.kind = 0;
	ac_call_start(agent, session, &order);
}

void
ac_pending_end(struct agent_core *agent, struct session *session, int code, const char *text)
{
	if (!ac_pending(session))
		return;
	session->pending.kind = 0;
	ac_alone_undo(session);
	ac_session_line(agent, session);
	struct agent_action *action = ac_action(agent, AGENT_COMPLETE, session->id);
	action->u.complete.slot = session->pending.slot;
	action->u.complete.code = code;
	ac_copy(action->u.complete.text, sizeof(action->u.complete.text), text, TH_CTL_TEXT_BYTES);
	action->u.complete.result.version = session->held;
}

bool
ac_pending_cancel(struct agent_core *agent, struct session *session, uint32_t slot)
{
	if (!ac_pending(session) || session->pending.slot != slot)
		return false;
	ac_pending_end(agent, session, TH_E_CANCELLED, "cancelled before it had begun");
	return true;
}

int64_t
ac_pending_next_ns(const struct agent_core *agent, const struct session *session)
{
	int64_t deadline_ns = session->pending.deadline_ns;

	if (!ac_pending(session))
		return INT64_MAX;
	return agent->link.attached || session->alone == ALONE_DRAINS
		       ? th_deadline_ns(deadline_ns, AC_GRACE_NS)
		       : deadline_ns;
}

static void
pending_tick(struct agent_core *agent, struct session *session)
{
	bool attached = agent->link.attached;
	bool hurry = session->pending.kind == CTL_OP_UPDATE && !attached;
	char text[TH_CTL_TEXT_BYTES];

	if (!ac_pending(session) || (!hurry && agent->now_ns < ac_pending_next_ns(agent, session)))
		return;
	snprintf(text, sizeof(text), "%s: the reference server %s; nothing has changed",
		ctl_op_name(session->pending.kind),
		attached ? "did not end the update before it in time" : "could not be reached");
	ac_pending_end(agent, session, attached ? TH_E_TIMEOUT : TH_E_NO_SERVER, text);
}
