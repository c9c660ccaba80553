/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_copy - copies in the agent's own memory: sessions that no worker has opened.
 *
 *   RESERVE --memory--> OPEN, REGISTER --PLAN--> PREPARED --GO--> pull --OUTCOME--> serves
 *      |                       |
 *      '- none: RESERVED       '-- RELEASE, broken group, failed operation --> closed
 *
 * Such a session is a member of its group like any other: the same parts, legs and proofs. What is
 * different is who begins: the server plans its one operation, which fills it, and nobody waits for
 * an answer. Its memory is the shell's, made before the reservation is accepted.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"

bool
ac_internal(const struct session *session)
{
	return session->open.reservation != 0;
}

/* ---- what is asked for ----------------------------------------------------------------------- */

static struct reserve *
own_copy_find(const struct agent_core *agent, uint64_t reservation, uint32_t shard)
{
	struct reserve *reserve;

	DL_FOREACH(agent->reserves, reserve)
	{
		if (reserve->ev.reservation == reservation && reserve->ev.shard == shard)
			return reserve;
	}
	return NULL;
}

static struct session *
find_session(const struct agent_core *agent, uint64_t reservation, uint32_t shard)
{
	struct session *session;

	for (session = agent->sessions; session != NULL; session = session->hh.next) {
		if (ac_internal(session) && session->open.reservation == reservation &&
			session->open.shard == shard)
			return session;
	}
	return NULL;
}

static void
own_copy_refuse(
	struct agent_core *agent, const struct ctl_ev_reserve *ev, int code, const char *text)
{
	struct ctl_reserved *reserved = &ac_lane_add(agent, agent->misc, CTL_RESERVED)->u.reserved;

	reserved->reservation = ev->reservation;
	reserved->shard = ev->shard;
	reserved->code = code < 0 ? code : TH_E_NOMEM_RETAIN;
	ac_copy(reserved->text, sizeof(reserved->text), text, TH_CTL_TEXT_BYTES);
}

static void
own_copy_forget(struct agent_core *agent, struct reserve *reserve)
{
	DL_DELETE(agent->reserves, reserve);
	agent->num_internal--;
	free(reserve);
}

static int
own_copy_check(const struct agent_core *agent, const struct ctl_ev_reserve *ev, struct th_err *err)
{
	if (ev->reservation == 0 || !th_name_valid(ev->model, TH_NAME_MAX) ||
		!th_name_valid(ev->replica, TH_NAME_MAX) || ev->num_shards == 0 ||
		ev->num_shards > TH_SHARDS_MAX || ev->shard >= ev->num_shards)
		return th_fail(err, TH_E_PROTOCOL,
			"the reference server asks for a copy of what cannot be");
	if (agent->config.attach.offload_bytes == 0)
		return th_fail(err, TH_E_NOMEM_RETAIN,
			"the agent of node %.200s takes no offloaded copies (--offload-limit 0)",
			agent->config.attach.node);
	if (agent->draining || ac_leaving(agent))
		return th_fail(err, TH_E_NOMEM_RETAIN,
			"the agent of node %.200s is drained or ends, and takes nothing new",
			agent->config.attach.node);
	if (agent->num_internal >= agent->config.reservations_max)
		return th_fail(err, TH_E_NOMEM_RETAIN,
			"the agent of node %.200s has %u offloaded shards, the most that it keeps",
			agent->config.attach.node, agent->config.reservations_max);
	return 0;
}

void
ac_reserve(struct agent_core *agent, const struct ctl_ev_reserve *ev)
{
	const struct session *source;
	struct th_err err;

	if (own_copy_find(agent, ev->reservation, ev->shard) != NULL ||
		find_session(agent, ev->reservation, ev->shard) != NULL)
		return;
	if (own_copy_check(agent, ev, &err) != 0) {
		TH_MARK(agent_reserve_refused);
		own_copy_refuse(agent, ev, err.code, err.text);
		return;
	}
	struct reserve *reserve = th_calloc(1, sizeof(*reserve));
	reserve->id = ++agent->last_reserve;
	reserve->ev = *ev;
	DL_APPEND(agent->reserves, reserve);
	agent->num_internal++;
	source = ev->source_sid != 0 ? ac_session_by_sid(agent, ev->source_sid) : NULL;
	struct agent_action *action = ac_action(agent, AGENT_RESERVE, 0);
	action->u.reserve.id = reserve->id;
	action->u.reserve.source_session = source != NULL ? source->id : 0;
	action->u.reserve.ev = *ev;
}

static void
own_copy_withdraw(struct agent_core *agent, struct reserve *reserve)
{
	TH_MARK(agent_reserve_withdrawn);
	ac_action(agent, AGENT_UNRESERVE, 0)->u.reserve.id = reserve->id;
	own_copy_forget(agent, reserve);
}

void
ac_reserves_forget(struct agent_core *agent)
{
	while (agent->reserves != NULL)
		own_copy_withdraw(agent, agent->reserves);
}

void
ac_release(struct agent_core *agent, const struct ctl_ev_release *release)
{
	struct reserve *reserve = own_copy_find(agent, release->reservation, release->shard);
	struct session *session = find_session(agent, release->reservation, release->shard);

	if (reserve != NULL)
		own_copy_withdraw(agent, reserve);
	/* One of a former life of the server may have the same number. */
	if (session != NULL && ac_known(session) && release->sid != 0 &&
		session->sid != release->sid)
		session = NULL;
	if (session != NULL)
		ac_close(agent, session, false);
}

/* ---- the memory is there --------------------------------------------------------------------- */

static void
open_session(struct agent_core *agent, const struct ctl_ev_reserve *ev, uint64_t id)
{
	struct ctl_open open = {
		.lineage = ev->version.lineage,
		.shard = ev->shard,
		.num_shards = ev->num_shards,
		.reservation = ev->reservation,
		.copy_why = ev->copy_why,
	};

	AC_COPY(open.model, ev->model);
	AC_COPY(open.replica, ev->replica);
	struct session *session = ac_session_new(agent, id, &open);
	session->reg = (struct ctl_register){
		.layout = ev->layout,
		.manifest = ev->manifest,
		.bytes = ev->bytes,
		.num_chunks = ev->num_chunks,
	};
	session->mapped = true;
	agent->num_internal++;
}

void
ac_reserved(struct agent_core *agent, uint64_t id, uint64_t session, int code, const char *text)
{
	struct reserve *reserve;
	struct ctl_ev_reserve ev;

	DL_FOREACH(agent->reserves, reserve)
	{
		if (reserve->id == id)
			break;
	}
	if (reserve == NULL) {
		/* Withdrawn while the shell was at it. */
		if (code == 0)
			ac_action(agent, AGENT_FREE, session);
		return;
	}
	ev = reserve->ev;
	own_copy_forget(agent, reserve);
	if (code != 0) {
		TH_MARK(agent_reserve_no_memory);
		own_copy_refuse(agent, &ev, code, text);
		return;
	}
	TH_ASSERT(ac_session_find(agent, session) == NULL);
	open_session(agent, &ev, session);
}

void
ac_internal_opened(struct agent_core *agent, struct session *session)
{
	ac_tensors_enter(session, TENSORS_REGISTERING, "register");
	session->reg.sid = session->sid;
	ac_lane_add(agent, session->lane, CTL_REGISTER)->u.reg = session->reg;
}

/* ---- its one operation ----------------------------------------------------------------------- */

void
ac_internal_plan(struct agent_core *agent, struct session *session, const struct ctl_ev_plan *plan)
{
	struct call *call = &session->call;

	TH_ASSERT(ac_internal(session));
	if (session->state != SESSION_OPEN || ac_broken(session) || session->unwanted ||
		session->part != NULL || plan->kind != CTL_OP_REPLICATE ||
		plan->op_seq != session->next_op_seq)
		return;
	/* The reply to REGISTER may still be on its way: it was taken, or there were no PLAN. */
	if (session->tensors == TENSORS_REGISTERING)
		ac_tensors_enter(session, TENSORS_REGISTERED, "PLAN");
	session->next_op_seq = plan->op_seq + 1;
	*call = (struct call){
		.plan = *plan,
		.order = {.kind = CTL_OP_REPLICATE,
			.submitted_ns = agent->now_ns,
			.deadline_ns = INT64_MAX},
		.op_seq = plan->op_seq,
		.result = {.version = session->held},
	};
	ac_call_enter(session, CALL_PLANNED, "PLAN");
	snprintf(call->order.spec, sizeof(call->order.spec), "%" PRIu64, plan->version.version);
	if (th_hash_equal(plan->layout, session->reg.layout))
		ac_call_prepared(agent, session, 0, "");
	else
		ac_call_prepared(
			agent, session, TH_E_LAYOUT, "the memory was laid out for another version");
}

void
ac_internal_filled(struct session *session, int code)
{
	if (code == 0)
		TH_MARK(agent_offload_filled);
	else
		session->unwanted = true;
}
