/* SPDX-License-Identifier: Apache-2.0 */
/*
 * follower - a handle whose group takes new versions by itself: what the server begins for that.
 *
 *   PLAN of the server, outside the worker's numbers --nothing else runs--> planned ... ending
 *
 * Such an operation goes the ways of any (call.c), and nobody waits for it: its end is counted in
 * the line that the worker reads. What the worker calls meanwhile is kept until that end (ghost.c),
 * and the server is asked to give the other one up; after GO it does not, and the call waits. So no
 * OP is ever sent while one runs here, and of what has crossed its PLAN the server takes that back.
 * A PLAN that finds a call not quite at its end waits for that.
 *
 * The mark, up to which somebody has said go, is remembered for the next server.
 */
#include <inttypes.h>
#include <stdio.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/sim.h"

void
ac_follower_mark(struct agent_core *agent, const struct ctl_ev_go_mark *mark)
{
	struct model *model = ac_model_find(agent, mark->model);

	if (model != NULL &&
		(th_version_none(model->go) || th_version_compare(mark->version, model->go) > 0))
		model->go = mark->version;
}

void
ac_follower_plan(struct session *session, const struct ctl_ev_plan *plan)
{
	session->due = *plan;
}

bool
ac_follower_taken_back(struct session *session, uint64_t op_seq)
{
	if (session->due.op_seq != op_seq)
		return false;
	TH_MARK(follower_plan_is_taken_back);
	session->due.op_seq = 0;
	return true;
}

void
ac_follower_settle(struct agent_core *agent, struct session *session)
{
	struct call *call = &session->call;
	const struct ctl_ev_plan plan = session->due;

	if (plan.op_seq == 0 || call->state != CALL_NONE || session->state != SESSION_OPEN ||
		ac_broken(session))
		return;
	session->due.op_seq = 0;
	*call = (struct call){
		.order = {.slot = UINT32_MAX,
			.kind = CTL_OP_UPDATE,
			.submitted_ns = agent->now_ns,
			.deadline_ns = INT64_MAX},
		.op_seq = plan.op_seq,
		.result = {.version = session->held},
	};
	snprintf(call->order.spec, sizeof(call->order.spec), "%" PRIu64, plan.version.version);
	ac_call_take_plan(agent, session, &plan);
}

void
ac_follower_gives_way(struct agent_core *agent, struct session *session)
{
	struct call *call = &session->call;

	if (!ac_call_automatic(call) || !ac_call_waits(call) || call->cancel_sent)
		return;
	TH_MARK(follower_is_asked_to_give_way);
	call->cancel_sent = true;
	ac_lane_add(agent, session->lane, CTL_CANCEL)->u.cancel =
		(struct ctl_cancel){.sid = session->sid, .op_seq = call->op_seq};
}

void
ac_follower_ended(struct session *session, int code)
{
	const struct call *call = &session->call;

	TH_ASSERT(ac_call_automatic(call));
	if (code == 0 && call->outcome.updated)
		session->num_updated++;
	else if (code != 0 && code != TH_E_CANCELLED && code != TH_E_GROUP_BROKEN &&
		 code != TH_E_EVICTED)
		session->num_follow_failed++;
}
