/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alone - unpublish of a group of one member while there is no server.
 *
 *   unpublish, not attached --> drained by ourselves --> answered --> told to the server, later
 *
 * The source agent is the authority over its buffers: its own proof that nobody reads them is all
 * that a group of one needs (with more members the server alone knows the others' proofs). What was
 * answered here must reach the server before anything else of the session does: the OP itself goes
 * on as a ghost (ghost.c), or, where the server ended that one otherwise or it never became an OP,
 * ALONE_UNTOLD makes another one. Until then readers that are sent here find nothing, and are sent
 * on.
 *
 * What a rule names is not given up so: nobody can be asked who else has it, or to keep it. It
 * waits for a server until its deadline; THC_FORCE gives it up. The rules are those of this host's
 * own sessions, and those of all hosts as a server said them last (CTL_EV_RULES): what has ended
 * since counts on. What the closing group itself claims does not count, unless others claim it too.
 */
#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/assert.h"
#include "ipc/base/retain_rules.h"
#include "ipc/base/sim.h"
#include "ipc/base/state.h"

static const struct th_states alone_states = {
	"alone", {
			 [ALONE_NOT] = {"not", TH_STATE(ALONE_DRAINS) | TH_STATE(ALONE_UNTOLD)},
			 [ALONE_DRAINS] = {"drains", TH_STATE(ALONE_NOT)},
			 [ALONE_UNTOLD] = {"untold", TH_STATE(ALONE_NOT)},
		 }};

static void
alone_enter(struct session *session, enum alone_state state, const char *why)
{
	th_state_check(&alone_states, session->alone, state, why);
	session->alone = state;
}

/* The worker's unpublish that has no outcome yet; NULL: none. */
static const struct order *
unpublishing(const struct session *session)
{
	const struct call *call = &session->call;

	/* One that others may have begun is not known to have ended. */
	if (ac_call_automatic(call))
		return NULL;
	if (ac_pending(session) && session->pending.kind == CTL_OP_UNPUBLISH)
		return &session->pending;
	if (ac_call_waits(call) && !call->ghost && call->order.kind == CTL_OP_UNPUBLISH)
		return &call->order;
	return NULL;
}

/* The highest that this host has: the latest may be higher, and then less is named. */
static uint64_t
latest_here(const struct agent_core *agent, const struct session *session)
{
	const struct session *other;
	uint64_t latest = session->held.version;

	for (other = agent->sessions; other != NULL; other = other->hh.next) {
		if (other->model == session->model && !th_version_none(other->held) &&
			other->held.lineage == session->held.lineage &&
			other->held.version > latest)
			latest = other->held.version;
	}
	return latest;
}

static bool
alone_names(const struct th_retain *rules, uint64_t latest, uint64_t version)
{
	for (uint32_t i = 0; i < rules->num_rules; i++) {
		const struct th_spec *rule = &rules->rules[i];
		if (rule->relative ? rule->number >= latest - version : rule->number == version)
			return true;
	}
	return false;
}

/* With its close what its group claims ends; a crash does not end it at once. */
static bool
claims(const struct session *other, const struct session *session)
{
	return !ac_closing(session) || ac_lost(session) ||
	       strcmp(other->open.replica, session->open.replica) != 0;
}

/* Somewhere, as far as a server has said. */
static bool
told(const struct session *session, uint64_t latest)
{
	const struct model *model = session->model;
	struct th_retain own = {0};

	if (!claims(session, session) && th_retain_parse(session->open.retain, &own, NULL) != 0)
		own.num_rules = 0;
	for (uint32_t i = 0; !model->rules_all; i++) {
		if (i == model->rules.num_rules)
			return false;
		const struct th_retain one = {1, {model->rules.rules[i]}};
		bool alone =
			th_retain_covers(&own, &one) && !th_retain_covers(&model->shared, &one);
		if (!alone && alone_names(&one, latest, session->held.version))
			break;
	}
	TH_MARK(a_rule_of_another_host);
	return true;
}

void
ac_alone_rules(struct agent_core *agent, const struct ctl_ev_rules *rules)
{
	struct model *model = ac_model_find(agent, rules->model);

	if (model == NULL)
		return;
	memset(&model->rules, 0, sizeof(model->rules));
	memset(&model->shared, 0, sizeof(model->shared));
	/* What cannot be read may name anything. */
	model->rules_all = rules->all || th_retain_parse(rules->rules, &model->rules, NULL) != 0 ||
			   th_retain_parse(rules->shared, &model->shared, NULL) != 0;
}

bool
ac_alone_retained(const struct agent_core *agent, const struct session *session)
{
	uint64_t latest = latest_here(agent, session);
	struct th_retain rules;
	const struct session *other;
	bool named = told(session, latest);

	for (other = agent->sessions; other != NULL; other = other->hh.next) {
		const struct part *part = other->part;
		if (other->model != session->model)
			continue;
		/* A whole copy that stays. */
		if (other != session && other->open.num_shards == 1 && part != NULL &&
			part->state == PART_HELD && ac_part_serves(part) && !part->refused &&
			other->state == SESSION_OPEN && !ac_broken(other) &&
			th_version_compare(other->held, session->held) == 0)
			return false;
		named = named || (claims(other, session) &&
					 th_retain_parse(other->open.retain, &rules, NULL) == 0 &&
					 alone_names(&rules, latest, session->held.version));
	}
	return named;
}

void
ac_alone_tick(struct agent_core *agent, struct session *session)
{
	const struct order *order = unpublishing(session);

	if (agent->link.attached || session->open.num_shards != 1 || ac_broken(session) ||
		session->alone == ALONE_DRAINS || order == NULL)
		return;
	TH_ASSERT(session->part != NULL);
	/* When its DRAIN has come the server has seen to it. */
	if ((order->flags & CTL_OP_FORCE) == 0 && !ac_part_drains(session->part, DRAIN_SERVER) &&
		ac_alone_retained(agent, session)) {
		TH_MARK(retained_waits_for_a_server);
		return;
	}
	alone_enter(session, ALONE_DRAINS, "unpublish, and no server");
	ac_part_drain_for(session->part, DRAIN_LOCAL);
}

void
ac_alone_forget(struct session *session)
{
	if (session->alone == ALONE_UNTOLD)
		alone_enter(session, ALONE_NOT, "the server hears it otherwise");
}

void
ac_alone_undo(struct session *session)
{
	/* The part of a broken group is over for good. */
	if (session->alone != ALONE_DRAINS)
		return;
	if (session->part != NULL && !ac_broken(session))
		ac_part_undrain_for(session->part, DRAIN_LOCAL);
	alone_enter(session, ALONE_NOT, "the server decides");
}

static void
alone_answer_pending(struct agent_core *agent, struct session *session)
{
	alone_enter(session, ALONE_UNTOLD, "never asked for");
	ac_pending_end(agent, session, 0, "");
}

static void
answer_call(struct agent_core *agent, struct session *session)
{
	struct call *call = &session->call;

	call->result.version = session->held;
	call->result.wait_ns = (uint64_t)(agent->now_ns - call->order.submitted_ns);
	ac_call_answer(agent, session, 0, "");
	call->ghost = true;
	/* It has no deadline any more: it must be told. What a former server had of it is void. */
	if (call->request != NULL && call->request->ctl.request_no == 0) {
		call->request->op_deadline_ns = INT64_MAX;
		call->request->ctl.u.op.flags |= CTL_OP_FORCE;
	} else if (!call->cancel_sent) {
		/* The server may be about to copy what is not there any more: it is told. */
		call->cancel_sent = true;
		ac_lane_add(agent, session->lane, CTL_CANCEL)->u.cancel =
			(struct ctl_cancel){.sid = session->sid, .op_seq = call->op_seq};
	}
}

void
ac_alone_settle(struct agent_core *agent, struct session *session)
{
	const struct order *order = unpublishing(session);

	if (session->alone != ALONE_DRAINS || order == NULL || !ac_part_drained(session->part))
		return;
	ac_part_end(agent, session);
	session->held.version = TH_NO_VERSION;
	session->follows[0] = '\0';
	alone_enter(session, ALONE_NOT, "drained");
	if (order == &session->pending)
		alone_answer_pending(agent, session);
	else
		answer_call(agent, session);
}

void
ac_alone_told(struct session *session, int code)
{
	/*
	 * Restored at its deadline, by a cancel that came before, or because it was to stay and
	 * found no memory: held, for the server.
	 */
	if (session->call.order.kind == CTL_OP_UNPUBLISH &&
		(code == TH_E_TIMEOUT || code == TH_E_CANCELLED || code == TH_E_NOMEM_RETAIN))
		alone_enter(session, ALONE_UNTOLD, "the server ended it otherwise");
}

bool
ac_alone_tell(struct agent_core *agent, struct session *session)
{
	/* Its memory is the worker's again: no rule can keep it. */
	const struct order order = {
		.kind = CTL_OP_UNPUBLISH,
		.flags = CTL_OP_FORCE,
		.submitted_ns = agent->now_ns,
		.deadline_ns = INT64_MAX,
	};

	if (session->alone != ALONE_UNTOLD)
		return false;
	alone_enter(session, ALONE_NOT, "told");
	ac_call_start(agent, session, &order);
	session->call.ghost = true;
	return true;
}
