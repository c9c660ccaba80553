/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_core - dispatches events to the files that know about them, gathers their actions. See
 * agent_core.h.
 *
 * After each event everything that has become possible is carried out (settle.c). No I/O, no clock;
 * the thread of the caller.
 */
#include "daemon/core/agent_core.h"

#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"

#define SECOND_NS INT64_C(1000000000)

void
agent_config_default(struct agent_config *ret_config)
{
	ret_config->beat_ns = SECOND_NS;
	ret_config->reply_ns = 3 * SECOND_NS;
	ret_config->server_silent_ns = 3 * SECOND_NS;
	ret_config->grant_ns = 60 * SECOND_NS;
	ret_config->start_ns = 7 * SECOND_NS / 10;
	ret_config->drain_wait_ns = 600 * SECOND_NS;
	ret_config->server_loss_reset = false;
	ret_config->sessions_max = 256;
	ret_config->reservations_max = 256;
	ret_config->grants_max = 4096;
}

struct agent_core *
agent_core_new(const struct agent_config *config, int64_t now_ns)
{
	struct agent_core *agent = th_calloc(1, sizeof(*agent));

	TH_ASSERT(config->agent_inc != 0 && config->beat_ns > 0 && config->reply_ns > 0 &&
		  config->server_silent_ns > 0 && config->sessions_max > 0 &&
		  config->grants_max > 0);
	agent->config = *config;
	agent->now_ns = now_ns;
	agent->misc = ac_lane_new(agent, NULL);
	ac_link_init(agent);
	return agent;
}

static void
agent_core_bury(struct agent_core *agent)
{
	while (agent->graves != NULL) {
		struct request *first = agent->graves;
		DL_DELETE(agent->graves, first);
		free(first);
	}
}

void
agent_core_free(struct agent_core *agent)
{
	if (agent == NULL)
		return;
	while (agent->sessions != NULL)
		ac_session_free(agent, agent->sessions);
	while (agent->lanes != NULL) {
		struct request_lane *first = agent->lanes;
		ac_lane_clear(agent, first);
		ac_lane_free(agent, first);
	}
	while (agent->reserves != NULL) {
		struct reserve *first = agent->reserves;
		DL_DELETE(agent->reserves, first);
		free(first);
	}
	ac_loans_free(agent);
	agent_core_bury(agent);
	free(agent->actions);
	free(agent);
}

/* ---- actions and texts ----------------------------------------------------------------------- */

struct agent_action *
ac_action(struct agent_core *agent, enum agent_action_kind kind, uint64_t session)
{
	if (agent->num_actions == agent->actions_max) {
		agent->actions_max = agent->actions_max == 0 ? 16 : 2 * agent->actions_max;
		agent->actions =
			th_realloc(agent->actions, agent->actions_max, sizeof(*agent->actions));
	}
	struct agent_action *action = &agent->actions[agent->num_actions++];
	memset(action, 0, sizeof(*action));
	action->kind = kind;
	action->session = session;
	return action;
}

void
ac_answer(struct agent_core *agent, enum agent_action_kind kind, uint64_t session,
	const struct th_err *err)
{
	struct agent_action *action = ac_action(agent, kind, session);

	if (err == NULL)
		return;
	action->u.answer.code = err->code;
	AC_COPY(action->u.answer.text, err->text);
}

void
ac_copy(char *ret_text, size_t bytes, const char *text, size_t text_bytes)
{
	size_t length = strnlen(text, th_min_size(text_bytes, bytes - 1));

	memcpy(ret_text, text, length);
	memset(ret_text + length, 0, bytes - length);
}

int
ac_code(int code)
{
	return code > 0 ? TH_E_PROTOCOL : code;
}

/* ---- dispatch -------------------------------------------------------------------------------- */

static void
session_event(struct agent_core *agent, const struct agent_event *event)
{
	struct session *session = ac_session_find(agent, event->session);
	struct ctl_register reg;

	if (session == NULL)
		return;
	switch ((int)event->kind) {
	case AGENT_EV_REGISTER:
		reg = (struct ctl_register){
			.layout = event->u.reg.layout,
			.manifest = event->u.reg.manifest,
			.bytes = event->u.reg.bytes,
			.num_chunks = event->u.reg.num_chunks,
		};
		session->mapped = event->u.reg.mapped;
		ac_session_register(agent, session, &reg);
		break;
	case AGENT_EV_UNREGISTER:
		ac_session_unregister(agent, session);
		break;
	case AGENT_EV_ATTRIBUTES:
		session->attributes = event->u.attributes;
		break;
	case AGENT_EV_SUBMIT:
		ac_submit(agent, session, &event->u.submit);
		break;
	case AGENT_EV_CANCEL:
		ac_cancel(agent, session, event->u.cancel_slot);
		break;
	case AGENT_EV_CLOSE:
		session->abandon = session->abandon || event->u.close.abandon;
		session->close_timeout_ns = event->u.close.timeout_ns;
		ac_close(agent, session, WORKER_THERE);
		return; /* it may be gone */
	case AGENT_EV_LOST:
		ac_close(agent, session,
			event->u.lost.memory_gone ? WORKER_MEMORY_GONE : WORKER_LOST);
		return; /* likewise */
	case AGENT_EV_HASHED:
	case AGENT_EV_HASH_STOPPED:
		ac_part_hashed(agent, session, event->u.hash.gen, event->u.hash.content,
			event->kind == AGENT_EV_HASH_STOPPED);
		break;
	case AGENT_EV_CONTRACT:
		ac_contract(agent, session, event->u.contract.gen, event->u.contract.text);
		return; /* it may be gone */
	case AGENT_EV_EXPLAINED:
		ac_call_explained(
			agent, session, event->u.explained.op_seq, event->u.explained.text);
		break;
	default:
		TH_ASSERT(false); /* dispatch knows what is of a session */
	}
	ac_settle(agent, session);
}

static void
agent_core_dispatch(struct agent_core *agent, const struct agent_event *event)
{
	switch (event->kind) {
	case AGENT_EV_TICK:
		break;
	case AGENT_EV_OPEN:
		ac_session_open(agent, event->session, &event->u.open);
		break;
	case AGENT_EV_REGISTER:
	case AGENT_EV_UNREGISTER:
	case AGENT_EV_ATTRIBUTES:
	case AGENT_EV_SUBMIT:
	case AGENT_EV_CANCEL:
	case AGENT_EV_CLOSE:
	case AGENT_EV_LOST:
	case AGENT_EV_HASHED:
	case AGENT_EV_HASH_STOPPED:
	case AGENT_EV_EXPLAINED:
	case AGENT_EV_CONTRACT:
		session_event(agent, event);
		break;
	case AGENT_EV_LEAVE:
		ac_leave_begin(agent, event->u.leave_timeout_ns);
		break;
	case AGENT_EV_REPLY:
		ac_link_reply(agent, event->u.reply.tag, event->u.reply.reply);
		break;
	case AGENT_EV_NO_REPLY:
		ac_link_no_reply(agent, event->u.reply.tag, event->u.reply.hung_up);
		break;
	case AGENT_EV_RESERVED:
		ac_reserved(agent, event->u.reserved.id, event->session, event->u.reserved.code,
			event->u.reserved.text);
		break;
	case AGENT_EV_BORROW:
		ac_borrow(agent, event->session, &event->u.borrow);
		break;
	case AGENT_EV_RETURNED:
		ac_loan_returned(agent, event->u.returned_loan);
		break;
	case AGENT_EV_LEG_DONE:
	case AGENT_EV_LEG_FAILED:
	case AGENT_EV_LEG_STOPPED:
		ac_inbound_report(agent, event->kind, &event->u.leg);
		break;
	case AGENT_EV_DONOR_LEFT:
		ac_inbound_donor_left(agent, event->u.donor_leg);
		break;
	case AGENT_EV_OUT_BEGAN:
	case AGENT_EV_OUT_STALLED:
	case AGENT_EV_OUT_RESUMED:
	case AGENT_EV_OUT_ENDED:
		ac_outbound_report(agent, event->kind, event->u.out_leg);
		break;
	}
}

static int64_t
agent_core_next_ns(const struct agent_core *agent)
{
	int64_t next = th_min_i64(ac_link_next_ns(agent), ac_outbound_next_ns(agent));
	next = th_min_i64(next, ac_leave_next_ns(agent));
	next = th_min_i64(next, ac_loans_next_ns(agent));
	const struct session *session;

	if (agent->link.phase == LINK_UP)
		next = th_min_i64(next, ac_lanes_next_ns(agent));
	for (session = agent->sessions; session != NULL; session = session->hh.next) {
		next = th_min_i64(next, ac_call_next_ns(agent, session));
		next = th_min_i64(next, ac_close_next_ns(agent, session));
	}
	return next;
}

void
agent_core_step(struct agent_core *agent, int64_t now_ns, const struct agent_event *event,
	struct agent_actions *ret_actions)
{
	struct session *session, *next;

	agent->num_actions = 0;
	agent_core_bury(agent);
	agent->now_ns = th_max_i64(agent->now_ns, now_ns);
	agent_core_dispatch(agent, event);
	ac_link_tick(agent);
	ac_outbound_tick(agent);
	HASH_ITER(hh, agent->sessions, session, next)
	{
		ac_call_tick(agent, session);
		ac_watch_tick(agent, session);
		ac_settle(agent, session);
	}
	ac_loans_settle(agent);
	ac_leave_tick(agent);
	ac_lanes_pump(agent);
	*ret_actions = (struct agent_actions){
		.count = agent->num_actions,
		.actions = agent->actions,
		.next_ns = agent_core_next_ns(agent),
	};
}

/* ---- questions ------------------------------------------------------------------------------- */

bool
agent_core_attached(const struct agent_core *agent)
{
	return agent->link.attached;
}

uint64_t
agent_core_request_no(struct agent_core *agent)
{
	return ++agent->last_request_no;
}

uint64_t
agent_core_attach_no(const struct agent_core *agent)
{
	return agent->link.phase == LINK_UP ? agent->link.attach_no : 0;
}

static const char *
state_name(const struct session *session)
{
	switch (session->state) {
	case SESSION_NONE:
	case SESSION_OPENING:
		return "opening";
	case SESSION_CLOSING:
	case SESSION_CLOSING_UNASKED:
		return ac_ended(session) ? "ended" : "closing";
	case SESSION_OPEN:
		break;
	}
	return ac_broken(session) ? "broken" : "open";
}

bool
agent_core_session_at(
	const struct agent_core *agent, uint32_t index, struct agent_session_info *ret_info)
{
	const struct session *session = agent->sessions;

	for (; session != NULL && index > 0; index--)
		session = session->hh.next;
	if (session == NULL)
		return false;
	memset(ret_info, 0, sizeof(*ret_info));
	ret_info->session = session->id;
	AC_COPY(ret_info->model, session->open.model);
	AC_COPY(ret_info->replica, session->open.replica);
	ret_info->shard = session->open.shard;
	ret_info->num_shards = session->open.num_shards;
	ret_info->offload = ac_internal(session);
	ret_info->sid = session->sid;
	ret_info->state = state_name(session);
	ret_info->operation =
		ac_ghost_busy(session) ? ctl_op_name(ac_ghost_busy_kind(session)) : "idle";
	ret_info->held = session->held;
	ret_info->ready = session->line.ready;
	ret_info->flags = session->open.flags;
	ret_info->bytes = ac_registered(session) ? session->reg.bytes : 0;
	ret_info->legs_in = session->in != NULL ? 1 : 0;
	ret_info->draining = session->part != NULL && ac_part_draining(session->part);
	if (session->part != NULL)
		ret_info->legs_out = session->part->num_running + session->part->num_copies;
	return true;
}
