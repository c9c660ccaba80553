/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_attachment - the attachment to the reference server, its standing POLL and its beats.
 *
 *   HELLO --ok--> ATTACH --ok--> UP --a reply says unknown_agent--> HELLO
 *
 * attached is what the sessions see: UP, and the server has answered within server_silent_ns and
 * has not hung up since. That alone ends nothing: what was sent is repeated until the server, or
 * its successor, answers. What was not sent waits: nobody can say that it may have begun.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"

#define RESTARTED_TEXT                                                                             \
	"the reference server restarted and does not know this shard; close the handle and open "  \
	"it "                                                                                      \
	"again"

static void
setup(struct agent_core *agent, enum link_phase phase)
{
	struct link *link = &agent->link;
	struct request *request = &link->setup;

	link->phase = phase;
	memset(request, 0, sizeof(*request));
	request->ctl.kind = phase == LINK_HELLO ? CTL_HELLO : CTL_ATTACH;
	request->ctl.agent_inc = agent->config.agent_inc;
	if (phase == LINK_HELLO) {
		request->ctl.u.hello = (struct ctl_hello){
			.protocol_min = TH_PROTOCOL_MIN,
			.protocol_max = TH_PROTOCOL_MAX,
		};
		AC_COPY(request->ctl.u.hello.cluster, agent->config.attach.cluster);
	} else {
		request->ctl.u.attach = agent->config.attach;
		request->ctl.u.attach.server_inc = link->server_inc;
		request->ctl.u.attach.epoch = link->epoch;
		ac_leave_attach(agent, &request->ctl.u.attach);
	}
}

void
ac_link_init(struct agent_core *agent)
{
	struct link *link = &agent->link;

	link->heard_ns = agent->now_ns;
	link->poll.ctl.kind = CTL_POLL;
	link->poll.ctl.agent_inc = agent->config.agent_inc;
	link->beat.ctl.kind = CTL_BEAT;
	link->beat.ctl.agent_inc = agent->config.agent_inc;
	setup(agent, LINK_HELLO);
}

/* ---- attached or not ------------------------------------------------------------------------- */

static struct agent_action *
server_attachment_server_state(struct agent_core *agent)
{
	struct link *link = &agent->link;
	struct agent_action *action = ac_action(agent, AGENT_SERVER_STATE, 0);

	action->u.server.attached = link->attached;
	action->u.server.server_inc = link->server_inc;
	action->u.server.epoch = link->epoch;
	AC_COPY(action->u.server.text, link->reason);
	return action;
}

static bool
not_attached(struct link *link, const char *reason)
{
	if (!link->attached && strcmp(link->reason, reason) == 0)
		return false;
	link->attached = false;
	ac_copy(link->reason, sizeof(link->reason), reason, TH_CTL_TEXT_BYTES);
	return true;
}

static void
detach(struct agent_core *agent, const char *reason)
{
	if (not_attached(&agent->link, reason))
		server_attachment_server_state(agent);
}

/* The shell hears of each refusal: each time there may be another server to be tried. */
static void
server_attachment_refused(struct agent_core *agent, const char *reason)
{
	not_attached(&agent->link, reason);
	server_attachment_server_state(agent)->u.server.refused = true;
}

static void
attach(struct agent_core *agent)
{
	struct link *link = &agent->link;

	if (link->attached)
		return;
	link->attached = true;
	link->reason[0] = '\0';
	server_attachment_server_state(agent);
}

static void
up(struct agent_core *agent, const struct ctl_attach_reply *reply)
{
	struct link *link = &agent->link;
	bool known = !reply->fresh && reply->server_inc == link->server_inc;
	bool first = link->server_inc == 0;
	struct request_lane *lane;

	link->server_inc = reply->server_inc;
	link->epoch = reply->epoch;
	link->attach_no = reply->attach_no;
	link->attach_tag = agent->last_tag;
	link->phase = LINK_UP;
	if (!known) {
		link->last_event = 0;
		link->rejoined_due = !first;
		if (first || agent->config.server_loss_reset) {
			link->life++; /* all that was said before is void */
			ac_rejoin_none(agent, RESTARTED_TEXT);
		} else {
			ac_rejoin(agent);
		}
		ac_leave_renew(agent);
		ac_watch_renew(agent);
		ac_borrow_renew(agent);
	}
	DL_FOREACH(agent->lanes, lane)
	{
		struct request *head = lane->queue;
		if (head == NULL)
			continue;
		head->flying = false;
		head->retry_ns = 0;
		head->backoff_ns = 0;
	}
	link->poll.flying = link->beat.flying = false;
	link->poll.retry_ns = 0;
	link->beat_ns = agent->now_ns;
	attach(agent);
}

static void
server_attachment_unknown(struct agent_core *agent, const struct request *request)
{
	/* An answer to what was sent before the last attachment says nothing about this one. */
	if (agent->link.phase != LINK_UP || request->attach_no != agent->link.attach_no)
		return;
	detach(agent, "the reference server does not know this agent: attaching again");
	setup(agent, LINK_HELLO);
}

/* ---- events of the server -------------------------------------------------------------------- */

static void
broken_event(struct agent_core *agent, const struct ctl_ev_broken *broken)
{
	struct session *session = ac_session_by_sid(agent, broken->sid);
	char text[TH_CTL_TEXT_BYTES];

	if (session == NULL)
		return;
	AC_COPY(text, broken->text);
	ac_session_broken(agent, session, broken->evicted ? TH_E_EVICTED : TH_E_GROUP_BROKEN, text);
}

static void
event(struct agent_core *agent, const struct ctl_event *event)
{
	struct session *session;

	switch (event->kind) {
	case CTL_EV_PLAN:
		session = ac_session_by_sid(agent, event->u.plan.sid);
		if (session != NULL)
			ac_call_plan(agent, session, &event->u.plan);
		break;
	case CTL_EV_GO:
		ac_inbound_go(agent, &event->u.go);
		break;
	case CTL_EV_REROUTE:
		ac_inbound_reroute(agent, &event->u.reroute);
		break;
	case CTL_EV_GRANT:
		ac_outbound_grant(agent, &event->u.grant);
		break;
	case CTL_EV_FENCE:
		if (!ac_inbound_fence(agent, event->u.fence_leg))
			ac_outbound_fence(agent, event->u.fence_leg);
		break;
	case CTL_EV_DRAIN:
		ac_part_drain(agent, &event->u.drain);
		break;
	case CTL_EV_UNDRAIN:
		ac_part_undrain(agent, &event->u.undrain);
		break;
	case CTL_EV_CANCEL:
		ac_inbound_cancel(agent, &event->u.cancel);
		break;
	case CTL_EV_OUTCOME:
		session = ac_session_by_sid(agent, event->u.outcome.sid);
		if (session != NULL)
			ac_call_outcome(session, &event->u.outcome);
		break;
	case CTL_EV_CHANGED:
		ac_watch_changed(agent, &event->u.changed);
		break;
	case CTL_EV_BROKEN:
		broken_event(agent, &event->u.broken);
		break;
	case CTL_EV_NODE:
		ac_leave_node(agent, &event->u.node);
		break;
	case CTL_EV_CONFLICT:
		session = ac_session_by_sid(agent, event->u.conflict.sid);
		if (session != NULL)
			ac_session_conflict(agent, session);
		break;
	case CTL_EV_RESERVE:
		ac_reserve(agent, &event->u.reserve);
		break;
	case CTL_EV_RELEASE:
		ac_release(agent, &event->u.release);
		break;
	case CTL_EV_CLOSE_REFUSED:
		ac_close_refused(agent, &event->u.close_refused);
		break;
	case CTL_EV_AT_RISK:
		session = ac_session_by_sid(agent, event->u.at_risk.sid);
		if (session != NULL)
			ac_session_at_risk(agent, session);
		break;
	case CTL_EV_RULES:
		ac_alone_rules(agent, &event->u.rules);
		break;
	case CTL_EV_BORROW_REFUSED:
		ac_borrow_refused(agent, &event->u.borrow_refused);
		break;
	case CTL_EV_READY:
		session = ac_session_by_sid(agent, event->u.ready.sid);
		if (session != NULL)
			ac_session_ready(agent, session, event->u.ready.version);
		break;
	case CTL_EV_GO_MARK:
		ac_follower_mark(agent, &event->u.go_mark);
		break;
	case CTL_EV_PING: /* the next POLL answers it */
		break;
	}
}

static void
poll_reply(struct agent_core *agent, const struct ctl_poll_reply *poll)
{
	for (uint32_t i = 0; i < poll->num_events; i++) {
		const struct ctl_event *one = &poll->events[i];
		if (one->number <= agent->link.last_event)
			continue;
		/* What is missing has not been acknowledged: the next POLL brings it. */
		if (one->number != agent->link.last_event + 1)
			return;
		agent->link.last_event = one->number;
		event(agent, one);
		/* Conclusions are drawn before the next fact: each was true when it was sent. */
		ac_settle_all(agent);
	}
}

/* ---- replies --------------------------------------------------------------------------------- */

/* From the beginning, and not at once: an ATTACH that was refused is refused again. */
static void
setup_failed(struct agent_core *agent, const char *text)
{
	struct link *link = &agent->link;

	ac_request_failed(agent, &link->setup);
	server_attachment_refused(agent, text);
	if (link->phase != LINK_ATTACH)
		return;
	int64_t backoff_ns = link->setup.backoff_ns, retry_ns = link->setup.retry_ns;
	setup(agent, LINK_HELLO);
	link->setup.backoff_ns = backoff_ns;
	link->setup.retry_ns = retry_ns;
}

static void
setup_reply(struct agent_core *agent, const struct ctl_reply *reply)
{
	struct link *link = &agent->link;
	char text[TH_CTL_TEXT_BYTES];

	if (reply->code != 0 || reply->unknown_agent) {
		AC_COPY(text, reply->text);
		setup_failed(agent, text);
	} else if (link->phase == LINK_ATTACH && reply->u.attach.epoch < link->epoch) {
		snprintf(text, sizeof(text),
			"this reference server is of epoch %" PRIu32 ", one of epoch %" PRIu32
			" was reached before: it has been replaced",
			reply->u.attach.epoch, link->epoch);
		setup_failed(agent, text);
	} else if (link->phase == LINK_ATTACH) {
		up(agent, &reply->u.attach);
	} else if (reply->u.hello.protocol < TH_PROTOCOL_MIN ||
		   reply->u.hello.protocol > TH_PROTOCOL_MAX) {
		snprintf(text, sizeof(text),
			"the reference server speaks protocol %" PRIu32 ", this agent %u to %u: "
			"install matching versions",
			reply->u.hello.protocol, TH_PROTOCOL_MIN, TH_PROTOCOL_MAX);
		setup_failed(agent, text);
	} else if (!th_cluster_fits(reply->u.hello.cluster, agent->config.attach.cluster)) {
		snprintf(text, sizeof(text),
			"the reference server is of cluster %s, this agent of cluster %s: set "
			"cluster to the same name in both files, or give each its own servers",
			reply->u.hello.cluster, agent->config.attach.cluster);
		setup_failed(agent, text);
	} else {
		/* What the last attempt cost is not forgotten: it may fail again. */
		int64_t backoff_ns = link->setup.backoff_ns;
		setup(agent, LINK_ATTACH);
		link->setup.backoff_ns = backoff_ns;
	}
}

static struct request *
server_attachment_find(struct agent_core *agent, uint64_t tag)
{
	struct link *link = &agent->link;
	struct request *fixed[] = {&link->setup, &link->poll, &link->beat};
	struct request_lane *lane;

	for (size_t i = 0; i < TH_ARRAY_LEN(fixed); i++) {
		if (fixed[i]->tag == tag && fixed[i]->flying)
			return fixed[i];
	}
	DL_FOREACH(agent->lanes, lane)
	{
		if (lane->queue != NULL && lane->queue->tag == tag && lane->queue->flying)
			return lane->queue;
	}
	return NULL;
}

/* An answer to an earlier sending of a request that has been sent again since. */
static struct request *
find_by_number(struct agent_core *agent, const struct ctl_reply *reply)
{
	struct request_lane *lane;

	DL_FOREACH(agent->lanes, lane)
	{
		struct request *head = lane->queue;
		if (head != NULL && head->ctl.request_no != 0 &&
			head->ctl.request_no == reply->request_no &&
			head->ctl.kind == reply->kind && head->attach_no == agent->link.attach_no)
			return head;
	}
	return NULL;
}

static void
lane_reply(struct agent_core *agent, struct request *request, const struct ctl_reply *reply)
{
	struct request_lane *lane = request->lane;
	struct ctl_request ctl = request->ctl;

	if (ctl.kind == CTL_WATCH)
		ac_watch_reply(agent, &ctl, reply);
	else if (ctl.kind == CTL_BORROW)
		ac_borrow_reply(agent, &ctl, reply);
	else if (ctl.kind == CTL_ADMIN)
		ac_leave_reply(agent, reply);
	else if (lane != agent->misc)
		ac_session_reply(agent, lane, &ctl, reply);
	if (request->lane != NULL)
		ac_lane_drop(agent, request);
}

void
ac_link_reply(struct agent_core *agent, uint64_t tag, const struct ctl_reply *reply)
{
	struct link *link = &agent->link;
	struct request *request = server_attachment_find(agent, tag);

	/* What was said to a former attachment is said again to this one, and counts then. */
	if (tag <= link->attach_tag || (link->phase != LINK_UP && request != &link->setup)) {
		if (!TH_PLANT(stale_reply_believed))
			return;
	}
	if (request == NULL && !reply->unknown_agent)
		request = find_by_number(agent, reply);
	if (request == NULL)
		return;
	link->heard_ns = agent->now_ns;
	if (reply->kind != request->ctl.kind || reply->request_no != request->ctl.request_no) {
		ac_request_failed(agent, request);
		return;
	}
	if (request == &link->setup) {
		setup_reply(agent, reply);
		return;
	}
	if (reply->unknown_agent) {
		ac_request_failed(agent, request);
		server_attachment_unknown(agent, request);
		return;
	}
	if (link->phase == LINK_UP && tag > link->hung_up_tag)
		attach(agent);
	if (request->lane != NULL) {
		lane_reply(agent, request, reply);
		return;
	}
	if (reply->code != 0) {
		ac_request_failed(agent, request);
		return;
	}
	request->flying = false;
	request->backoff_ns = request->retry_ns = 0;
	if (request == &link->poll)
		poll_reply(agent, &reply->u.poll);
}

void
ac_link_no_reply(struct agent_core *agent, uint64_t tag, bool hung_up)
{
	struct link *link = &agent->link;
	struct request *request = server_attachment_find(agent, tag);

	if (request == NULL)
		return;
	ac_request_failed(agent, request);
	if (!hung_up || link->phase != LINK_UP)
		return;
	detach(agent, "the reference server has hung up");
	/* What it said before is no sign that it is there again. */
	link->hung_up_tag = agent->last_tag;
	/* A POLL may stand unanswered for long: this is what finds it when it is back. */
	if (!link->beat.flying)
		link->beat_ns =
			th_min_i64(link->beat_ns, th_max_i64(agent->now_ns, link->beat.retry_ns));
}

/* ---- time ------------------------------------------------------------------------------------ */

static bool
due(struct agent_core *agent, struct request *request)
{
	if (agent->now_ns < ac_request_next_ns(agent, request))
		return false;
	request->flying = false;
	return true;
}

void
ac_link_tick(struct agent_core *agent)
{
	struct link *link = &agent->link;

	if (agent->now_ns >= th_deadline_ns(link->heard_ns, agent->config.server_silent_ns)) {
		detach(agent, "the reference server does not answer");
		ac_watch_no_server(agent);
	}
	if (link->phase != LINK_UP) {
		if (due(agent, &link->setup))
			ac_request_send(agent, &link->setup, AGENT_CHANNEL_CONTROL);
		return;
	}
	if (due(agent, &link->poll)) {
		link->poll.ctl.request_no = 0;
		link->poll.ctl.u.poll.last_event = link->last_event;
		ac_request_send(agent, &link->poll, AGENT_CHANNEL_POLL);
	}
	if (agent->now_ns >= link->beat_ns &&
		(!link->beat.flying || agent->now_ns >= ac_request_next_ns(agent, &link->beat))) {
		link->beat.flying = false;
		link->beat.ctl.request_no = 0;
		ac_request_send(agent, &link->beat, AGENT_CHANNEL_BEAT);
		link->beat_ns = th_deadline_ns(agent->now_ns, agent->config.beat_ns);
	}
}

int64_t
ac_link_next_ns(const struct agent_core *agent)
{
	const struct link *link = &agent->link;
	int64_t next =
		ac_request_next_ns(agent, link->phase == LINK_UP ? &link->poll : &link->setup);

	if (link->attached)
		next = th_min_i64(
			next, th_deadline_ns(link->heard_ns, agent->config.server_silent_ns));
	if (link->phase == LINK_UP) {
		int64_t beat = link->beat_ns;
		if (link->beat.flying)
			beat = th_max_i64(beat, ac_request_next_ns(agent, &link->beat));
		next = th_min_i64(next, beat);
	}
	return next;
}
