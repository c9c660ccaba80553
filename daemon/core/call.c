/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call - the one group operation of a session, from its submission to its single completion.
 *
 *   asked, asked again --reply 0, its first event--> accepted --PLAN--> planned <--> explaining
 *         ^                                                                |             |
 *         '-- another server asks for all that had no GO                   v             |
 *                                                                       prepared <-------'
 *   decided <-- OUTCOME: all that had no GO                                |
 *   ending  <-- OUTCOME: running, filled, cancelled                        | GO
 *                                                                          v
 *      cancelled <--CANCEL-- filled <--every byte is here, LEG_END(0)-- running
 *
 * Each can be its last: when its outcome has been acted upon, when it is refused or was never sent,
 * when the session closes. Until GO another PLAN may come, and takes it back to planned.
 *
 * An operation that was never sent is ended here, at its deadline or on request: it is certain that
 * nothing was done. Once sent it has the outcome that the server says, however long that takes (the
 * worker's own deadline is libthc's business), except when the server has forgotten the session,
 * and except an update that waits for no server (ghost.c).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"
#include "ipc/base/state.h"

#define FLAG_FORCE 1u      /* THC_FORCE of unpublish  */
#define FLAG_LIST_GROUP 1u /* THC_LIST_GROUP of list  */

#define TO(state) TH_STATE(CALL_##state)
/* Whatever had no GO may end, be asked again of another server, or be decided. */
#define NO_GO (TO(NONE) | TO(ASKED_AGAIN) | TO(DECIDED))

static const struct th_states call_states = {"call",
	{
		[CALL_NONE] = {"none", TO(ASKED) | TO(PLANNED)},
		[CALL_ASKED] = {"asked", NO_GO | TO(ACCEPTED)},
		[CALL_ASKED_AGAIN] = {"asked again", NO_GO | TO(ACCEPTED)},
		[CALL_ACCEPTED] = {"accepted", NO_GO | TO(PLANNED)},
		[CALL_PLANNED] = {"planned", NO_GO | TO(PLANNED) | TO(EXPLAINING) | TO(PREPARED)},
		[CALL_EXPLAINING] = {"explaining", NO_GO | TO(PLANNED) | TO(PREPARED)},
		[CALL_PREPARED] = {"prepared", NO_GO | TO(PLANNED) | TO(RUNNING)},
		[CALL_DECIDED] = {"decided", TO(NONE)},
		[CALL_RUNNING] = {"running", TO(NONE) | TO(FILLED) | TO(CANCELLED) | TO(ENDING)},
		[CALL_FILLED] = {"filled", TO(NONE) | TO(CANCELLED) | TO(ENDING)},
		[CALL_CANCELLED] = {"cancelled", TO(NONE) | TO(ENDING)},
		[CALL_ENDING] = {"ending", TO(NONE)},
	}};

void
ac_call_enter(struct session *session, enum call_state state, const char *why)
{
	th_state_check(&call_states, session->call.state, state, why);
	session->call.state = state;
}

void
ac_call_answer(struct agent_core *agent, struct session *session, int code, const char *text)
{
	struct call *call = &session->call;

	TH_ASSERT(call->state != CALL_NONE && !call->ghost);
	ac_session_line(agent, session);
	struct agent_action *action = ac_action(agent, AGENT_COMPLETE, session->id);
	action->u.complete.slot = call->order.slot;
	action->u.complete.code = code;
	ac_copy(action->u.complete.text, sizeof(action->u.complete.text), text, TH_CTL_TEXT_BYTES);
	action->u.complete.result = call->result;
	/* What the server has not taken has no number: the next one gets it. */
	action->u.complete.op_seq = session->next_op_seq > call->op_seq ? call->op_seq : 0;
	action->u.complete.generation = call->outcome.generation;
}

static void
call_complete(struct agent_core *agent, struct session *session, int code, const char *text)
{
	struct call *call = &session->call;

	TH_ASSERT(!call->has_next);
	ac_alone_undo(session);
	if (ac_internal(session))
		ac_internal_filled(session, code);
	else if (ac_call_automatic(call))
		ac_follower_ended(session, code);
	else if (!call->ghost)
		ac_call_answer(agent, session, code, text);
	else if (session->state == SESSION_OPEN && !ac_broken(session) && !call->cut)
		ac_alone_told(session, code);
	/* What was let go here meanwhile the server has let go, too. */
	if (call->cut && call->order.kind == CTL_OP_UNPUBLISH && code == 0)
		ac_alone_forget(session);
	ac_call_enter(session, CALL_NONE, "its end");
	memset(call, 0, sizeof(*call));
	ac_pending_start(agent, session);
	ac_follower_settle(agent, session);
}

static void
call_refuse(struct agent_core *agent, const struct session *session,
	const struct agent_submission *submit, const struct th_err *err)
{
	struct agent_action *action = ac_action(agent, AGENT_COMPLETE, session->id);

	action->u.complete.slot = submit->slot;
	action->u.complete.code = err->code;
	AC_COPY(action->u.complete.text, err->text);
	action->u.complete.result.version.version = TH_NO_VERSION;
}

/* ---- submitting ------------------------------------------------------------------------------ */

static int
form_check(const struct agent_submission *submit, struct th_err *err)
{
	const char *name = ctl_op_name(submit->kind);
	uint32_t allowed = 0;
	struct th_spec spec;

	if (submit->kind < CTL_OP_PUBLISH || submit->kind > CTL_OP_FOLLOW)
		return th_fail(err, TH_E_INVALID, "there is no operation %u", submit->kind);
	if (submit->kind == CTL_OP_UNPUBLISH)
		allowed = FLAG_FORCE;
	else if (submit->kind == CTL_OP_LIST)
		allowed = FLAG_LIST_GROUP;
	if ((submit->flags & ~allowed) != 0)
		return th_fail(err, TH_E_INVALID,
			"%s: flags 0x%x are not offered by this version of the agent", name,
			submit->flags & ~allowed);
	if (submit->kind == CTL_OP_UNPUBLISH || submit->kind == CTL_OP_LIST)
		return 0;
	if (submit->kind == CTL_OP_FOLLOW && submit->spec[0] == '\0')
		return 0;
	if (memchr(submit->spec, '\0', sizeof(submit->spec)) == NULL ||
		th_spec_parse(submit->spec, &spec) != 0)
		return th_fail(err, TH_E_INVALID,
			"%s: \"%.*s\" is no version; write a number, latest, or latest-K", name,
			TH_SPEC_MAX, submit->spec);
	if (submit->kind == CTL_OP_PUBLISH && spec.relative)
		return th_fail(err, TH_E_INVALID,
			"publish: \"%s\" is relative; a version is published by its number",
			submit->spec);
	return 0;
}

/*
 * The others may have unpublished, which acts at the first call, and have closed before this member
 * called: then its call has succeeded already, and only the server knows.
 */
static bool
may_be_decided(const struct agent_core *agent, const struct session *session, uint32_t kind)
{
	return kind == CTL_OP_UNPUBLISH && session->held.version != TH_NO_VERSION &&
	       agent->link.attached && ac_known(session);
}

static int
state_check(const struct agent_core *agent, const struct session *session,
	const struct agent_submission *submit, struct th_err *err)
{
	const char *name = ctl_op_name(submit->kind);

	if (ac_observer(session) && !TH_PLANT(observer_calls))
		return ac_observer_refused(name, err);
	if (ac_broken(session) && !may_be_decided(agent, session, submit->kind))
		return th_fail(err, session->broken_code, "%s", session->broken_text);
	if (ac_ghost_busy(session))
		return th_fail(err, TH_E_STATE,
			"%s: %s is running on this handle; one operation at a time", name,
			ctl_op_name(ac_ghost_busy_kind(session)));
	if (ac_tensors_change(session))
		return th_fail(err, TH_E_STATE, "%s: wait until %s has returned", name,
			session->tensors == TENSORS_REGISTERING ? "register" : "unregister");
	if (session->dirty && submit->kind != CTL_OP_REPLICATE && submit->kind != CTL_OP_FOLLOW)
		return th_fail(err, TH_E_DIRTY,
			"%s: the tensors were partly overwritten by an operation that failed; only "
			"replicate and close are allowed",
			name);
	if (submit->kind == CTL_OP_LIST)
		return 0;
	if (ac_leaving(agent) && submit->kind != CTL_OP_UNPUBLISH)
		return th_fail(err, TH_E_CANCELLED,
			"%s: the agent of this host is about to end, and begins nothing new; open "
			"again when it is back",
			name);
	if (!ac_registered(session))
		return th_fail(err, TH_E_STATE, "%s: register tensors first", name);
	if (submit->kind == CTL_OP_PUBLISH && session->part != NULL &&
		session->held.version == TH_NO_VERSION)
		return th_fail(err, TH_E_STATE,
			"publish: the handle follows, and a version is being brought into its "
			"tensors; unpublish first, which ends that");
	if (submit->kind == CTL_OP_PUBLISH && session->part != NULL)
		return th_fail(err, TH_E_STATE,
			"publish: the handle holds version %" PRIu64 "; unpublish it first",
			session->held.version);
	if (submit->kind == CTL_OP_UNPUBLISH && session->part == NULL && !ac_broken(session))
		return th_fail(err, TH_E_STATE, "unpublish: the handle holds no version");
	if (submit->kind == CTL_OP_UPDATE && !agent->link.attached)
		return th_fail(err, TH_E_NO_SERVER,
			"update: the agent reaches no reference server now; the held version "
			"stays, "
			"try again later");
	return 0;
}

void
ac_call_send(struct agent_core *agent, struct session *session)
{
	struct call *call = &session->call;
	struct ctl_op *op = &ac_lane_add(agent, session->lane, CTL_OP)->u.op;

	op->sid = session->sid;
	op->op_seq = call->op_seq;
	op->kind = call->order.kind;
	op->flags = call->order.flags;
	op->timeout_ns = TH_FOREVER;
	AC_COPY(op->spec, call->order.spec);
	op->attributes = call->order.attributes;
	call->request = session->lane->queue->prev;
	call->request->op_deadline_ns = call->order.deadline_ns;
	/* What was ended without a server has no deadline: it must be told. */
	if (call->ghost && !call->cut && call->order.kind == CTL_OP_UNPUBLISH)
		call->request->op_deadline_ns = INT64_MAX;
}

void
ac_call_start(struct agent_core *agent, struct session *session, const struct order *order)
{
	TH_ASSERT(session->call.state == CALL_NONE);
	session->call = (struct call){
		.order = *order,
		.op_seq = session->next_op_seq,
		.result = {.version = session->held},
	};
	ac_call_enter(session, CALL_ASKED, "submitted");
	ac_call_send(agent, session);
}

void
ac_submit(struct agent_core *agent, struct session *session, const struct agent_submission *submit)
{
	struct th_err err = {.code = 0};

	if (ac_ended(session)) {
		th_fail(&err, TH_E_CONTRACT, "%s", session->ended_text);
		call_refuse(agent, session, submit, &err);
		return;
	}
	if (ac_closing(session)) {
		/* Submitted before: the two come by different ways. */
		th_fail(&err, TH_E_CANCELLED, "the handle was closed");
		call_refuse(agent, session, submit, &err);
		return;
	}
	if (session->state != SESSION_OPEN) {
		th_fail(&err, TH_E_STATE, "%s: the handle is not open", ctl_op_name(submit->kind));
		call_refuse(agent, session, submit, &err);
		return;
	}
	if (submit->kind == AGENT_SUBMIT_WATCH) {
		ac_watch(agent, session, submit);
		return;
	}
	if (form_check(submit, &err) != 0 || state_check(agent, session, submit, &err) != 0) {
		call_refuse(agent, session, submit, &err);
		return;
	}
	struct order order = {
		.slot = submit->slot,
		.kind = submit->kind,
		.flags = submit->flags,
		.submitted_ns = agent->now_ns,
		.deadline_ns = th_deadline_ns(agent->now_ns, submit->timeout_ns),
	};
	/* What these two do not use must not make the members' calls differ. */
	if (order.kind != CTL_OP_UNPUBLISH && order.kind != CTL_OP_LIST)
		AC_COPY(order.spec, submit->spec);
	if (order.kind == CTL_OP_PUBLISH)
		order.attributes = session->attributes;
	if (session->call.state == CALL_NONE) {
		ac_call_start(agent, session, &order);
		return;
	}
	ac_pending_keep(session, &order);
	ac_follower_gives_way(agent, session);
}

/* ---- ending without the server --------------------------------------------------------------- */

bool
ac_call_never_sent(const struct call *call)
{
	return call->state == CALL_ASKED && call->request != NULL &&
	       call->request->ctl.request_no == 0;
}

static void
call_withdraw(struct agent_core *agent, struct session *session, int code, const char *text)
{
	TH_ASSERT(ac_call_never_sent(&session->call));
	ac_lane_drop(agent, session->call.request);
	call_complete(agent, session, code, text);
}

void
ac_cancel(struct agent_core *agent, struct session *session, uint32_t slot)
{
	struct call *call = &session->call;

	if (ac_watch_cancel(agent, session, slot) || ac_pending_cancel(agent, session, slot))
		return;
	if (!ac_call_waits(call) || call->ghost || call->order.slot != slot || call->cancel_sent)
		return;
	if (ac_call_never_sent(call)) {
		call_withdraw(agent, session, TH_E_CANCELLED, "cancelled before it had begun");
		return;
	}
	call->cancel_sent = true;
	ac_lane_add(agent, session->lane, CTL_CANCEL)->u.cancel =
		(struct ctl_cancel){.sid = session->sid, .op_seq = call->op_seq};
}

/*
 * It is certain that nothing has changed or will: without our PREPARED there is no GO. Of several
 * members one must not be told of a failure where the others may be told that there was nothing to
 * do; but update waits for no server. An unpublish ends with the proofs of all parts: once ours is
 * being given, the others may have been told that it succeeded, whether we have called or not.
 */
static bool
certain(const struct agent_core *agent, const struct session *session)
{
	const struct call *call = &session->call;
	bool single = session->open.num_shards == 1;

	if (ac_call_never_sent(call))
		return single || call->order.kind != CTL_OP_UNPUBLISH ||
		       (session->part != NULL && !ac_part_draining(session->part));
	if (call->state == CALL_PREPARED)
		return false;
	if (call->order.kind == CTL_OP_UPDATE)
		return single || !agent->link.attached;
	return call->order.kind == CTL_OP_REPLICATE &&
	       (single || (!agent->link.attached && session->part == NULL));
}

int64_t
ac_call_give_up_ns(const struct agent_core *agent, const struct session *session)
{
	const struct call *call = &session->call;

	if (!ac_call_waits(call) || call->ghost || ac_call_automatic(call) ||
		!certain(agent, session))
		return INT64_MAX;
	if (!agent->link.attached && session->alone != ALONE_DRAINS)
		return call->order.kind == CTL_OP_UPDATE ? agent->now_ns : call->order.deadline_ns;
	/* The server's own word is about to come, also with nothing left: "look once". */
	return th_deadline_ns(call->order.deadline_ns, AC_GRACE_NS);
}

void
ac_call_tick(struct agent_core *agent, struct session *session)
{
	struct call *call = &session->call;
	char text[TH_CTL_TEXT_BYTES];

	ac_ghost_tick(agent, session);
	ac_alone_tick(agent, session);
	if (!ac_call_never_sent(call) || agent->now_ns < ac_call_give_up_ns(agent, session))
		return;
	bool attached = agent->link.attached;
	bool kept =
		!attached && call->order.kind == CTL_OP_UNPUBLISH && session->open.num_shards == 1;
	snprintf(text, sizeof(text), "%s: the reference server %s%s; nothing has changed",
		ctl_op_name(call->order.kind),
		attached ? "did not take it in time" : "could not be reached",
		kept ? ", and the version is retained: call again, or give it up (THC_FORCE)" : "");
	call_withdraw(agent, session, attached ? TH_E_TIMEOUT : TH_E_NO_SERVER, text);
}

int64_t
ac_call_next_ns(const struct agent_core *agent, const struct session *session)
{
	const struct watch *watch;
	int64_t next = ac_pending_next_ns(agent, session);

	next = th_min_i64(next, ac_call_give_up_ns(agent, session));
	DL_FOREACH(session->watches, watch)
	next = th_min_i64(next, watch->deadline_ns);
	return next;
}

void
ac_call_abandon(struct agent_core *agent, struct session *session, int code, const char *text)
{
	ac_pending_end(agent, session, code, text);
	if (session->call.state != CALL_NONE)
		call_complete(agent, session, code, text);
}

static void
call_decide(struct session *session, const char *why)
{
	ac_call_enter(session, ac_call_went(&session->call) ? CALL_ENDING : CALL_DECIDED, why);
}

void
ac_call_fail(struct session *session, int code, const char *text)
{
	struct call *call = &session->call;

	TH_ASSERT(call->state != CALL_NONE && code < 0);
	if (ac_call_decided(call))
		return;
	call_decide(session, "no server knows it");
	call->outcome.kind = call->order.kind;
	call->outcome.op_seq = call->op_seq;
	call->outcome.code = code;
	call->outcome.version.version = TH_NO_VERSION;
	ac_copy(call->outcome.text, sizeof(call->outcome.text), text, TH_CTL_TEXT_BYTES);
}

/* ---- with the server ------------------------------------------------------------------------- */

/* An event may come before the reply to OP: the one says as much as the other. */
static void
accepted(struct session *session, const char *why)
{
	if (session->call.state > CALL_ASKED_AGAIN)
		return;
	ac_call_enter(session, CALL_ACCEPTED, why);
	if (!ac_call_automatic(&session->call))
		session->next_op_seq = session->call.op_seq + 1;
}

void
ac_call_reply(struct agent_core *agent, struct session *session, const struct ctl_request *request,
	const struct ctl_reply *reply)
{
	struct call *call = &session->call;
	char text[TH_CTL_TEXT_BYTES];

	if (call->state == CALL_NONE || call->op_seq != request->u.op.op_seq ||
		call->state > CALL_ASKED_AGAIN)
		return;
	if (reply->code == 0) {
		accepted(session, "reply");
		return;
	}
	AC_COPY(text, reply->text);
	bool untold = call->ghost && !call->cut && call->order.kind == CTL_OP_UNPUBLISH;
	call_complete(agent, session, ac_code(reply->code), text);
	if (untold)
		ac_session_broken(agent, session, TH_E_GROUP_BROKEN,
			"the reference server did not take in that this shard was unpublished "
			"without it; close the handle and open it again");
}

void
ac_call_prepared(struct agent_core *agent, struct session *session, int code, const char *text)
{
	struct call *call = &session->call;

	ac_call_enter(session, CALL_PREPARED, code == 0 ? "drained" : "cannot be");
	struct ctl_prepared *message = &ac_lane_add(agent, session->lane, CTL_PREPARED)->u.prepared;
	message->sid = session->sid;
	message->op_seq = call->op_seq;
	message->plan_no = call->plan.plan_no;
	message->code = code;
	ac_copy(message->text, sizeof(message->text), text, TH_CTL_TEXT_BYTES);
}

void
ac_call_take_plan(struct agent_core *agent, struct session *session, const struct ctl_ev_plan *plan)
{
	struct call *call = &session->call;

	ac_call_enter(session, CALL_PLANNED, "PLAN");
	call->plan = *plan;
	if (call->ghost) {
		ac_ghost_plan(agent, session);
	} else if (ac_call_automatic(call) && session->follows[0] == '\0') {
		ac_call_prepared(agent, session, TH_E_PROTOCOL, "this member follows nothing");
	} else if (!ac_registered(session)) {
		ac_call_prepared(agent, session, TH_E_STATE, "no tensors are registered");
	} else if (session->part != NULL && !plan->drain_old) {
		ac_call_prepared(agent, session, TH_E_PROTOCOL,
			"the reference server does not know that this member holds a version");
	} else if (!th_hash_equal(plan->layout, session->reg.layout)) {
		TH_MARK(c26_other_layout);
		ac_call_enter(session, CALL_EXPLAINING, "another layout");
		struct agent_action *action = ac_action(agent, AGENT_EXPLAIN, session->id);
		action->u.explain.op_seq = call->op_seq;
		action->u.explain.manifest = plan->manifest;
	} else if (session->part != NULL) {
		ac_part_drain_for(session->part, DRAIN_PLAN); /* PREPARED when it is drained */
	}
}

void
ac_call_plan(struct agent_core *agent, struct session *session, const struct ctl_ev_plan *plan)
{
	struct call *call = &session->call;

	if (call->state == CALL_NONE && ac_internal(session)) {
		ac_internal_plan(agent, session, plan);
		return;
	}
	if (ctl_op_automatic(plan->op_seq) && plan->op_seq != call->op_seq) {
		ac_follower_plan(session, plan);
		ac_follower_settle(agent, session);
		return;
	}
	if (!ac_call_waits(call) || call->op_seq != plan->op_seq ||
		(call->state >= CALL_PLANNED && plan->plan_no <= call->plan.plan_no) ||
		(call->order.kind != CTL_OP_REPLICATE && call->order.kind != CTL_OP_UPDATE))
		return;
	accepted(session, "PLAN");
	/* What was said to a plan before it is of no use to anyone. */
	if (call->state >= CALL_PLANNED)
		TH_MARK(another_plan);
	ac_call_take_plan(agent, session, plan);
}

void
ac_call_explained(
	struct agent_core *agent, struct session *session, uint64_t op_seq, const char *text)
{
	struct call *call = &session->call;

	if (call->state != CALL_EXPLAINING || call->op_seq != op_seq)
		return;
	ac_call_prepared(agent, session, TH_E_LAYOUT,
		text[0] != '\0' ? text : "the registered tensors differ from those of the version");
}

void
ac_call_outcome(struct session *session, const struct ctl_ev_outcome *outcome)
{
	struct call *call = &session->call;

	if (ac_follower_taken_back(session, outcome->op_seq) || call->state == CALL_NONE ||
		call->op_seq != outcome->op_seq || ac_call_decided(call))
		return;
	accepted(session, "OUTCOME");
	call_decide(session, "OUTCOME");
	call->outcome = *outcome;
	call->outcome.code = ac_code(outcome->code);
	ac_rejoin_note(session);
}

/* ---- conclusions ----------------------------------------------------------------------------- */

static void
settle_prepared(struct agent_core *agent, struct session *session)
{
	if (session->call.state != CALL_PLANNED)
		return;
	if (session->part == NULL || ac_part_drained(session->part))
		ac_call_prepared(agent, session, 0, "");
}

static void
distrust(struct call *call, const char *text)
{
	call->outcome.code = TH_E_PROTOCOL;
	ac_copy(call->outcome.text, sizeof(call->outcome.text), text, TH_CTL_TEXT_BYTES);
}

/* After GO. False: not yet, something still reads the part. */
static bool
settle_filled(struct agent_core *agent, struct session *session)
{
	struct call *call = &session->call;
	struct part *part = session->part;

	if (call->outcome.code == 0 && part->state < PART_FULL)
		distrust(call, "the reference server calls an operation complete whose bytes are "
			       "not all here");
	if (call->outcome.code == 0) {
		ac_part_enter(part, PART_HELD, "OUTCOME");
		session->held = call->outcome.version;
		session->dirty = false;
		return true;
	}
	ac_part_drain_for(part, DRAIN_HOPELESS);
	ac_part_settle(agent, session);
	if (!ac_part_drained(part))
		return false;
	ac_part_end(agent, session);
	session->dirty = session->dirty || call->overwrote;
	if (session->dirty)
		TH_MARK(c16_handle_is_dirty);
	return true;
}

static bool
settle_unpublished(struct agent_core *agent, struct session *session)
{
	struct part *part = session->part;

	if (part != NULL) {
		/* The server had our proof; should it not, nothing is mutable without one. */
		ac_part_drain_for(part, DRAIN_LOCAL);
		ac_part_settle(agent, session);
		if (!ac_part_drained(part) && !TH_PLANT(late_proof_believed))
			return false;
		ac_part_end(agent, session);
	}
	session->held.version = TH_NO_VERSION;
	session->follows[0] = '\0';
	return true;
}

static bool
settle_outcome(struct agent_core *agent, struct session *session)
{
	struct call *call = &session->call;

	if (call->state == CALL_ENDING)
		return settle_filled(agent, session);
	call->result.wait_ns = (uint64_t)(agent->now_ns - call->order.submitted_ns);
	if (call->outcome.code != 0)
		return true;
	if (call->order.kind == CTL_OP_UNPUBLISH)
		return settle_unpublished(agent, session);
	if (call->order.kind == CTL_OP_FOLLOW)
		AC_COPY(session->follows, call->order.spec);
	if (call->order.kind == CTL_OP_PUBLISH) {
		ac_part_new(agent, session, call->op_seq, true)->attributes =
			call->order.attributes;
		session->held = call->outcome.version;
	}
	return true;
}

void
ac_call_settle(struct agent_core *agent, struct session *session)
{
	struct call *call = &session->call;
	char text[TH_CTL_TEXT_BYTES];

	ac_alone_settle(agent, session);
	ac_follower_settle(agent, session);
	settle_prepared(agent, session);
	if (!ac_call_decided(call))
		return;
	if (session->in != NULL) {
		/* Its end decides what was overwritten, and only then is the memory still. */
		ac_inbound_stop(agent, session->in, STOP_CANCEL);
		/* I3: until it has stopped it writes. */
		if (!TH_PLANT(not_flushed_before_the_end))
			return;
		ac_inbound_over(agent, session->in);
	}
	if (!settle_outcome(agent, session))
		return;
	call->result.version = session->held;
	if (call->outcome.code == 0) {
		call->result.updated = call->outcome.updated;
		if (call->outcome.source[0] != '\0')
			AC_COPY(call->result.source, call->outcome.source);
	}
	AC_COPY(text, call->outcome.text);
	call_complete(agent, session, call->outcome.code, text);
}
