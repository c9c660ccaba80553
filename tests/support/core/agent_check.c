/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_check - the invariants of the agent core: says in code what its files rely on. See
 * core_check.h.
 */
#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/assert.h"
#include "ipc/base/name.h"
#include "tests/support/core/core_check.h"

static void
agent_check_slots(const struct session *session)
{
	const struct watch *a, *b;

	DL_FOREACH(session->watches, a)
	{
		TH_ASSERT(session->call.state == CALL_NONE || session->call.ghost ||
			  session->call.order.slot != a->slot);
		TH_ASSERT(!ac_pending(session) || session->pending.slot != a->slot);
		for (b = a->next; b != NULL; b = b->next)
			TH_ASSERT(a->slot != b->slot);
	}
}

static void
agent_check_part(const struct agent_core *agent, const struct session *session)
{
	const struct part *part = session->part;
	const struct outbound *out;
	const struct inbound *in;
	uint32_t running = 0, copies = 0;

	TH_ASSERT(part->session == session);
	DL_FOREACH(part->outbounds, out)
	{
		TH_ASSERT(out->part == part);
		running += out->state != OUTBOUND_GRANTED;
		/* What can never be complete waits for no reader. */
		TH_ASSERT(out->state != OUTBOUND_GRANTED || !ac_part_drains(part, DRAIN_HOPELESS));
		TH_ASSERT(out->state != OUTBOUND_SERVING || !out->stalled || ac_part_serves(part));
		TH_ASSERT(out->state != OUTBOUND_SERVING || !ac_part_drains(part, DRAIN_HOPELESS));
	}
	for (in = agent->inbounds; in != NULL; in = in->hh.next)
		copies += in->source == part || in->donor == part;
	TH_ASSERT(running == part->num_running && copies == part->num_copies);
	TH_ASSERT(part->digests == DIGESTS_NONE || part->published);
	/* A proof is given as soon as there is one, and never without. */
	TH_ASSERT(!ac_part_drains(part, DRAIN_SERVER) ||
		  part->drain_answered == ac_part_drained(part) || !ac_part_drained(part));
	TH_ASSERT(!part->drain_answered ||
		  (part->num_running == 0 && part->num_copies == 0 &&
			  (part->digests == DIGESTS_NONE || part->digests == DIGESTS_MADE)));
}

static bool
is_to_prepare(const struct call *call)
{
	return call->state == CALL_PLANNED || call->state == CALL_EXPLAINING;
}

/* Its worker was told that nothing has changed, and nothing may change any more. */
static void
check_ghost(const struct session *session)
{
	const struct call *call = &session->call;

	TH_ASSERT(!ac_call_went(call) && (!ac_call_decided(call) || call->cut));
	/* Whatever its end is: it must be asked for. */
	if (call->cut) {
		TH_ASSERT(call->cancel_sent && !is_to_prepare(call));
		TH_ASSERT(call->state >= CALL_ACCEPTED || call->request != NULL);
		return;
	}
	if (call->order.kind == CTL_OP_UNPUBLISH) {
		/* The server must get to know that nothing is held. */
		TH_ASSERT(session->open.num_shards == 1 && session->part == NULL);
		TH_ASSERT(th_version_none(session->held));
		TH_ASSERT(call->state >= CALL_ACCEPTED || call->request != NULL);
		TH_ASSERT(call->request == NULL || call->request->ctl.request_no != 0 ||
			  call->request->op_deadline_ns == INT64_MAX);
		return;
	}
	TH_ASSERT(call->order.kind == CTL_OP_UPDATE || call->order.kind == CTL_OP_REPLICATE);
	/* The server gets to know: it will be, or has been, asked to end it. */
	TH_ASSERT(call->cancel_sent && !ac_call_never_sent(call));
	TH_ASSERT(call->state >= CALL_ACCEPTED || call->request != NULL);
	TH_ASSERT(!is_to_prepare(call));
}

static void
check_pending(const struct agent_core *agent, const struct session *session)
{
	const struct order *order = &session->pending;

	/* In a broken group only what the others may have had decided before. */
	TH_ASSERT(session->state == SESSION_OPEN);
	TH_ASSERT(!ac_broken(session) || order->kind == CTL_OP_UNPUBLISH);
	TH_ASSERT(session->call.state != CALL_NONE);
	TH_ASSERT(session->call.ghost || ac_call_automatic(&session->call));
	TH_ASSERT(!ac_tensors_change(session));
	TH_ASSERT(order->kind != CTL_OP_UPDATE || agent->link.attached);
	TH_ASSERT(ac_pending_next_ns(agent, session) > agent->now_ns);
}

static void
check_call(const struct agent_core *agent, const struct session *session)
{
	const struct call *call = &session->call;

	TH_ASSERT(session->state == SESSION_OPEN || call->cut);
	TH_ASSERT(!call->cut || call->ghost);
	TH_ASSERT(call->request == NULL || call->request->lane == session->lane);
	/* update waits for no server. */
	TH_ASSERT(call->order.kind != CTL_OP_UPDATE || call->ghost || ac_call_automatic(call) ||
		  call->state >= CALL_PREPARED || agent->link.attached);
	TH_ASSERT(!ac_call_automatic(call) || call->request == NULL);
	if (ac_call_went(call)) {
		TH_ASSERT(session->part != NULL && session->part->gen == call->op_seq);
		TH_ASSERT(th_version_none(session->held));
		TH_ASSERT(session->part->state < PART_FULL || session->in == NULL);
		TH_ASSERT(call->state != CALL_FILLED || session->part->state == PART_FULL);
	}
	TH_ASSERT(!call->has_next || session->in != NULL);
	/* An outcome waits only for what still runs. */
	TH_ASSERT(!ac_call_decided(call) || session->in != NULL ||
		  (session->part != NULL && !ac_part_drained(session->part)));
}

static void
check_internal(const struct session *session)
{
	TH_ASSERT(!ac_pending(session) && !session->call.ghost && session->watches == NULL);
	TH_ASSERT(session->alone == ALONE_NOT);
	TH_ASSERT(session->part == NULL || !session->part->published);
	/* Of no use: it is on its way out. */
	TH_ASSERT(session->state != SESSION_OPEN || (!ac_broken(session) && !session->unwanted));
}

static void
check_observer(const struct agent_core *agent, const struct session *session)
{
	TH_ASSERT(session->state != SESSION_OPENING || !agent->link.attached);
	TH_ASSERT(!ac_internal(session) && !ac_known(session) && session->lane->queue == NULL);
	TH_ASSERT(session->tensors == TENSORS_NONE && session->call.state == CALL_NONE);
	TH_ASSERT(session->part == NULL && session->in == NULL && !ac_pending(session));
	TH_ASSERT(!ac_broken(session) && !session->dirty);
}

static void
check_session(const struct agent_core *agent, const struct session *session)
{
	const struct inbound *in = session->in;

	TH_ASSERT(session->lane != NULL && session->lane->session == session);
	TH_ASSERT(session->state != SESSION_OPENING || session->lane->queue != NULL ||
		  ac_observer(session));
	/* What no refusal is taken of does not become open again. */
	TH_ASSERT(ac_closing(session) || (!session->abandon && !session->close_final));
	agent_check_slots(session);
	if (ac_internal(session))
		check_internal(session);
	if (ac_observer(session))
		check_observer(agent, session);
	if (session->part != NULL)
		agent_check_part(agent, session);
	if (session->call.state != CALL_NONE)
		check_call(agent, session);
	if (session->call.ghost)
		check_ghost(session);
	if (ac_pending(session))
		check_pending(agent, session);
	TH_ASSERT(session->alone != ALONE_UNTOLD || session->call.ghost);
	TH_ASSERT(session->alone != ALONE_DRAINS ||
		  (session->part != NULL && ac_part_drains(session->part, DRAIN_LOCAL)));
	if (in != NULL) {
		TH_ASSERT(in->session == session && session->part != NULL);
		TH_ASSERT(session->part->state != PART_HELD && session->part != in->source);
		TH_ASSERT(session->state == SESSION_OPEN || in->stop == STOP_CANCEL);
		TH_ASSERT(in->donor == NULL || (ac_internal(session) && in->source == NULL));
		TH_ASSERT(in->donor == NULL || in->donor->state == PART_HELD);
		TH_ASSERT(in->donor == NULL || ac_part_serves(in->donor) || in->donor_dropped);
	}
	if (session->state != SESSION_OPENING && !ac_internal(session)) {
		TH_ASSERT(session->line.safe_to_mutate ==
			  (session->part == NULL && session->in == NULL &&
				  session->follows[0] == '\0'));
		TH_ASSERT(session->follows[0] == '\0' || !ac_broken(session));
		/* What is due waits for the end of a call, or the session closes. */
		TH_ASSERT(session->due.op_seq == 0 || session->call.state != CALL_NONE ||
			  session->state != SESSION_OPEN || ac_broken(session));
		TH_ASSERT(th_version_compare(session->line.held, session->held) == 0);
		TH_ASSERT(th_version_none(session->line.ready) ||
			  (agent->link.attached && !ac_broken(session) &&
				  th_version_compare(session->line.ready, session->held) > 0));
	}
}

void
agent_core_check(const struct agent_core *agent)
{
	const struct session *session;
	const struct outbound *out;
	const struct request_lane *lane;
	const struct reserve *reserve;
	uint32_t grants = 0, internal = 0;

	for (session = agent->sessions; session != NULL; session = session->hh.next) {
		check_session(agent, session);
		internal += ac_internal(session);
	}
	DL_FOREACH(agent->reserves, reserve)
	internal++;
	TH_ASSERT(internal == agent->num_internal && internal <= agent->config.reservations_max);
	for (out = agent->grants; out != NULL; out = out->grant_next)
		grants++;
	TH_ASSERT(grants == agent->num_grants && grants <= agent->config.grants_max);
	DL_FOREACH(agent->lanes, lane)
	{
		const struct request *request;
		TH_ASSERT(lane->session != NULL || lane == agent->misc || lane->queue != NULL);
		DL_FOREACH(lane->queue, request)
		{
			TH_ASSERT(request->lane == lane);
			TH_ASSERT(request == lane->queue ||
				  (!request->flying && request->ctl.request_no == 0));
		}
	}
	TH_ASSERT(!agent->link.attached || agent->link.phase == LINK_UP);
}
