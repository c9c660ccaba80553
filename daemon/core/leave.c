/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leave - this agent is about to end, or its node is being drained.
 *
 *   LEAVE --> the server is told, again and again, until it says that nothing is waited for: what
 *             runs has ended, what must not be lost is elsewhere --> LEFT
 *         '-- the time is over, or nobody is there who could say so ---------------------> LEFT
 *
 * Meanwhile what workers hold is served as before, and they may give it up; nothing new begins.
 * A drain by an operator changes nothing here: it is only remembered, for the next server.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/checked.h"
#include "ipc/base/sim.h"

#define LOOK_NS INT64_C(100000000) /* between two questions */
/* After so long the same is told once more. */
#define TELL_NS INT64_C(30000000000)

void
ac_leave_attach(const struct agent_core *agent, struct ctl_attach *attach)
{
	attach->draining = agent->draining;
	attach->leaving = agent->leave.begun;
}

void
ac_leave_node(struct agent_core *agent, const struct ctl_ev_node *node)
{
	agent->draining = node->draining;
	struct agent_action *action = ac_action(agent, AGENT_NODE, 0);
	action->u.node.draining = node->draining;
	AC_COPY(action->u.node.text, node->text);
}

/* ---- leaving --------------------------------------------------------------------------------- */

static void
leave_tell(struct agent_core *agent, enum agent_action_kind kind, int code)
{
	struct leave *leave = &agent->leave;
	struct agent_action *action = ac_action(agent, kind, 0);

	action->u.left.code = code;
	action->u.left.num_blockers = leave->num_blockers;
	action->u.left.num_texts = leave->num_texts;
	action->u.left.texts = leave->texts;
}

static void
leave_finish(struct agent_core *agent, int code)
{
	if (agent->leave.done)
		return;
	agent->leave.done = true;
	leave_tell(agent, AGENT_LEFT, code);
}

/* Who has told it to end wants to know why it has not. */
static void
tell_blockers(struct agent_core *agent)
{
	struct leave *leave = &agent->leave;

	if (leave->num_texts == 0 || (leave->num_blockers == leave->num_told &&
					     agent->now_ns < leave->told_ns + TELL_NS))
		return;
	leave->num_told = leave->num_blockers;
	leave->told_ns = agent->now_ns;
	leave_tell(agent, AGENT_STAYS, 0);
}

void
ac_leave_begin(struct agent_core *agent, int64_t timeout_ns)
{
	struct leave *leave = &agent->leave;

	if (leave->begun)
		return;
	leave->begun = true;
	leave->deadline_ns = th_deadline_ns(agent->now_ns, timeout_ns);
	leave->next_ns = agent->now_ns;
}

bool
ac_leaving(const struct agent_core *agent)
{
	return agent->leave.begun;
}

static void
leave_ask(struct agent_core *agent)
{
	struct ctl_admin *admin = &ac_lane_add(agent, agent->misc, CTL_ADMIN)->u.admin;

	admin->verb = CTL_ADMIN_DRAIN;
	admin->leaving = true;
	AC_COPY(admin->node, agent->config.attach.node);
	snprintf(admin->from, sizeof(admin->from), "its agent was told to end");
	agent->leave.asked = true;
}

/* A reply to something else than the server of now was asked is not believed: it comes again. */
void
ac_leave_reply(struct agent_core *agent, const struct ctl_reply *reply)
{
	struct leave *leave = &agent->leave;
	const struct ctl_admin_reply *admin = &reply->u.admin;

	leave->asked = false;
	leave->next_ns = th_deadline_ns(agent->now_ns, LOOK_NS);
	if (reply->code != 0 || !leave->begun || leave->done)
		return;
	leave->num_blockers = admin->num_blockers;
	leave->num_texts = th_min_u32(admin->num_told, AGENT_LEFT_TEXTS);
	for (uint32_t i = 0; i < leave->num_texts; i++)
		AC_COPY(leave->texts[i], admin->blockers[i].text);
	if (strcmp(admin->state, "empty") == 0) {
		TH_MARK(left_empty);
		leave_finish(agent, 0);
	} else {
		tell_blockers(agent);
	}
}

/* Without a server nothing can be moved; what nobody has asked to keep is not waited for. */
static bool
nothing_to_keep(const struct agent_core *agent)
{
	const struct session *session;

	for (session = agent->sessions; session != NULL; session = session->hh.next) {
		bool kept = session->open.retain[0] != '\0' || session->open.reservation != 0;
		if (kept && session->part != NULL)
			return false;
	}
	return true;
}

void
ac_leave_tick(struct agent_core *agent)
{
	struct leave *leave = &agent->leave;

	if (!leave->begun || leave->done)
		return;
	if (agent->now_ns >= leave->deadline_ns) {
		TH_MARK(left_late);
		leave_finish(agent, TH_E_TIMEOUT);
	} else if (agent->sessions == NULL && agent->outbounds == NULL) {
		leave_finish(agent, 0);
	} else if (!agent->link.attached && nothing_to_keep(agent)) {
		leave_finish(agent, 0);
	} else if (!leave->asked && agent->link.phase == LINK_UP &&
		   agent->now_ns >= leave->next_ns) {
		leave_ask(agent);
	}
}

int64_t
ac_leave_next_ns(const struct agent_core *agent)
{
	const struct leave *leave = &agent->leave;

	if (!leave->begun || leave->done)
		return INT64_MAX;
	/* A question under way has its own time; without a link its end is waited for. */
	if (leave->asked || agent->link.phase != LINK_UP)
		return leave->deadline_ns;
	return th_min_i64(leave->deadline_ns, leave->next_ns);
}

/* The server that was asked is no more, and with it the question. */
void
ac_leave_renew(struct agent_core *agent)
{
	agent->leave.asked = false;
	agent->leave.next_ns = agent->now_ns;
}
