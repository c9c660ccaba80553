/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request_lane - requests to the server whose order matters: one in flight, the next when it is
 * answered.
 *
 * A request keeps its number until it is answered, however often it is sent, so the server can
 * recognise a repeat. A lane outlives its session until all is delivered: the server must learn
 * that a member has left. See agent_state.h.
 */
#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/sim.h"

#define BACKOFF_MIN_NS INT64_C(50000000)
#define BACKOFF_MAX_NS INT64_C(1000000000)
#define SETUP_BACKOFF_MAX_NS INT64_C(200000000) /* nothing goes on without a server          */

struct request_lane *
ac_lane_new(struct agent_core *agent, struct session *session)
{
	struct request_lane *lane = th_calloc(1, sizeof(*lane));

	lane->session = session;
	if (session != NULL) {
		lane->open = session->open;
		lane->outcomes = th_calloc(TH_OUTCOMES_MAX, sizeof(*lane->outcomes));
	}
	DL_APPEND(agent->lanes, lane);
	return lane;
}

static void
lane_retire(struct agent_core *agent, struct request_lane *lane)
{
	if (lane->session != NULL || lane == agent->misc || lane->queue != NULL)
		return;
	ac_lane_free(agent, lane);
}

void
ac_lane_free(struct agent_core *agent, struct request_lane *lane)
{
	DL_DELETE(agent->lanes, lane);
	free(lane->outcomes);
	free(lane);
}

struct ctl_request *
ac_lane_add(struct agent_core *agent, struct request_lane *lane, enum ctl_request_kind kind)
{
	struct request *request = th_calloc(1, sizeof(*request));

	request->ctl.kind = kind;
	request->ctl.agent_inc = agent->config.agent_inc;
	request->lane = lane;
	request->op_deadline_ns = INT64_MAX;
	DL_APPEND(lane->queue, request);
	return &request->ctl;
}

static void
unlink_request(struct agent_core *agent, struct request *request)
{
	struct request_lane *lane = request->lane;

	if (lane->session != NULL && lane->session->call.request == request)
		lane->session->call.request = NULL;
	DL_DELETE(lane->queue, request);
	request->lane = NULL;
	DL_APPEND(agent->graves, request);
}

void
ac_lane_drop(struct agent_core *agent, struct request *request)
{
	struct request_lane *lane = request->lane;

	unlink_request(agent, request);
	lane_retire(agent, lane);
}

void
ac_lane_clear(struct agent_core *agent, struct request_lane *lane)
{
	while (lane->queue != NULL)
		unlink_request(agent, lane->queue);
}

void
ac_lane_orphan(struct agent_core *agent, struct request_lane *lane)
{
	if (lane->session->call.request != NULL)
		lane->session->call.request = NULL;
	lane->session = NULL;
	lane_retire(agent, lane);
}

/* Each lane has one request under way, its first, and repeats it under its number. */
static uint64_t
answered_below(const struct agent_core *agent)
{
	const struct link *link = &agent->link;
	uint64_t below = agent->last_request_no + 1;
	const struct request_lane *lane;

	if (link->phase != LINK_UP && link->setup.ctl.request_no != 0)
		below = th_min_u64(below, link->setup.ctl.request_no);
	DL_FOREACH(agent->lanes, lane)
	{
		if (lane->queue != NULL && lane->queue->ctl.request_no != 0)
			below = th_min_u64(below, lane->queue->ctl.request_no);
	}
	return below;
}

/* ---- sending --------------------------------------------------------------------------------- */

void
ac_request_send(struct agent_core *agent, struct request *request, enum agent_channel channel)
{
	struct ctl_request *ctl = &request->ctl;

	TH_ASSERT(!request->flying);
	if (ctl->request_no == 0) {
		ctl->request_no = ++agent->last_request_no;
		int64_t left_ns = th_max_i64(0, request->op_deadline_ns - agent->now_ns);
		if (ctl->kind == CTL_OP && request->op_deadline_ns != INT64_MAX)
			ctl->u.op.timeout_ns = left_ns;
		if (ctl->kind == CTL_CLOSE && request->op_deadline_ns != INT64_MAX)
			ctl->u.close.timeout_ns = left_ns;
	}
	ctl->answered_below = answered_below(agent);
	if (ctl->kind != CTL_HELLO)
		ctl->secret = agent->config.secret;
	request->tag = ++agent->last_tag;
	request->attach_no = agent->link.attach_no;
	ctl->attach_no = ctl->kind == CTL_HELLO ? 0 : agent->link.attach_no;
	request->flying = true;
	request->sent_ns = agent->now_ns;
	struct agent_action *action = ac_action(agent, AGENT_SEND,
		request->lane != NULL && request->lane->session != NULL ? request->lane->session->id
									: 0);
	action->u.send.tag = request->tag;
	action->u.send.channel = channel;
	action->u.send.request = ctl;
}

void
ac_request_failed(struct agent_core *agent, struct request *request)
{
	int64_t max_ns = request == &agent->link.setup ? SETUP_BACKOFF_MAX_NS : BACKOFF_MAX_NS;

	request->flying = false;
	request->backoff_ns = request->backoff_ns == 0
				      ? BACKOFF_MIN_NS
				      : th_min_i64(2 * request->backoff_ns, max_ns);
	request->retry_ns = th_deadline_ns(agent->now_ns, request->backoff_ns);
}

int64_t
ac_request_next_ns(const struct agent_core *agent, const struct request *request)
{
	return request->flying ? th_deadline_ns(request->sent_ns, agent->config.reply_ns)
			       : request->retry_ns;
}

/*
 * A worker that closes and opens the same shard again must not find itself: the server takes the
 * CLOSE first, also when it was written while there was no server. Whoever waits is waited for by
 * nobody: an OPEN whose worker is gone waits for no other such OPEN, or the two would wait for each
 * other, and a lane with a CLOSE has no OPEN before it.
 */
static bool
must_wait(const struct agent_core *agent, const struct request_lane *lane)
{
	const struct request_lane *other;
	const struct request *request;

	if (lane->queue->ctl.kind != CTL_OPEN)
		return false;
	DL_FOREACH(agent->lanes, other)
	{
		if (other == lane || strcmp(other->open.model, lane->open.model) != 0 ||
			strcmp(other->open.replica, lane->open.replica) != 0)
			continue;
		DL_FOREACH(other->queue, request)
		{
			if (request->ctl.kind == CTL_CLOSE)
				return true;
			/* An orphan's OPEN will be followed by its CLOSE. */
			if (ac_rejoin_first(&request->ctl))
				return true;
			if (request->ctl.kind == CTL_OPEN && other->session == NULL &&
				(lane->session != NULL || TH_PLANT(orphans_wait)))
				return true;
		}
	}
	return false;
}

/*
 * Without a server only what it may know already is repeated. The rest stays certain not to have
 * begun, so that its worker can be told so.
 */
static bool
request_lane_may_go(const struct agent_core *agent, const struct request *head)
{
	return agent->link.attached || head->ctl.request_no != 0;
}

void
ac_lanes_pump(struct agent_core *agent)
{
	struct request_lane *lane;

	if (agent->link.phase != LINK_UP)
		return;
	ac_rejoin_tick(agent);
	DL_FOREACH(agent->lanes, lane)
	{
		struct request *head = lane->queue;
		if (head == NULL || !request_lane_may_go(agent, head) ||
			agent->now_ns < ac_request_next_ns(agent, head))
			continue;
		if (head->flying)
			head->flying = false; /* lost on the way: the same number again */
		if (!must_wait(agent, lane))
			ac_request_send(agent, head, AGENT_CHANNEL_CONTROL);
	}
}

int64_t
ac_lanes_next_ns(const struct agent_core *agent)
{
	int64_t next = INT64_MAX;
	const struct request_lane *lane;

	DL_FOREACH(agent->lanes, lane)
	{
		/* What waits for another lane goes when that one is answered. */
		if (lane->queue != NULL && request_lane_may_go(agent, lane->queue) &&
			!must_wait(agent, lane))
			next = th_min_i64(next, ac_request_next_ns(agent, lane->queue));
	}
	return next;
}
