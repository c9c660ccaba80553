/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outbound - legs out: tickets that the server granted, the readers that come with them, fencing.
 *
 *   GRANTED --BEGAN--> SERVING --stalled while draining, or FENCE--> FENCING --OUT_ENDED--> gone
 *      '------its reader is late, or FENCE--------------------------^
 *
 * The data port is told at once what to expect, and lets in who comes with the ticket: a grant that
 * is taken back may have begun by then, so it counts until OUT_ENDED, as any leg.
 *
 * A granted leg counts as reading: its reader has given up what it held and is on its way. While
 * the part drains it may still begin, but only within start_ns of its grant.
 */
#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/checked.h"
#include "ipc/base/sim.h"

static void
outbound_refuse(
	struct agent_core *agent, const struct th_ticket *ticket, int code, const char *text)
{
	struct agent_action *action = ac_action(agent, AGENT_REFUSE, 0);

	action->u.refuse.ticket = *ticket;
	action->u.refuse.code = code;
	ac_copy(action->u.refuse.text, sizeof(action->u.refuse.text), text, TH_CTL_TEXT_BYTES);
}

/* Its reader is waited for no more. */
static void
ungrant(struct agent_core *agent, struct outbound *out, enum outbound_state state)
{
	DL_DELETE2(agent->grants, out, grant_prev, grant_next);
	agent->num_grants--;
	out->state = state;
	out->part->num_running++;
}

void
ac_outbound_free(struct agent_core *agent, struct outbound *out)
{
	if (out->state == OUTBOUND_GRANTED)
		ungrant(agent, out, OUTBOUND_FENCING);
	out->part->num_running--;
	DL_DELETE(out->part->outbounds, out);
	HASH_DELETE(hh, agent->outbounds, out);
	free(out);
}

static void
leg_action(struct agent_core *agent, enum agent_action_kind kind, const struct outbound *out)
{
	struct agent_action *action = ac_action(agent, kind, out->part->session->id);

	action->u.leg.leg = out->leg;
	action->u.leg.gen = out->part->gen;
	action->u.leg.grant.leg = out->number;
	action->u.leg.grant.ticket = out->ticket;
	action->u.leg.grant.far = out->far;
}

static void
fence(struct agent_core *agent, struct outbound *out)
{
	bool granted = out->state == OUTBOUND_GRANTED;

	if (out->state == OUTBOUND_FENCING || (!granted && TH_PLANT(fence_does_nothing)))
		return;
	if (granted)
		ungrant(agent, out, OUTBOUND_FENCING);
	out->state = OUTBOUND_FENCING;
	leg_action(agent, AGENT_FENCE, out);
	/* I2: only OUT_ENDED says that nothing reads any more, or will. */
	if ((granted && TH_PLANT(grant_is_gone_when_fenced)) ||
		(!granted && TH_PLANT(fence_is_its_own_proof)))
		ac_outbound_free(agent, out);
}

/* ---- tickets --------------------------------------------------------------------------------- */

void
ac_outbound_grant(struct agent_core *agent, const struct ctl_ev_grant *grant)
{
	struct session *session = ac_session_by_sid(agent, grant->sid);
	struct part *part = session == NULL ? NULL : session->part;

	if (grant->reader_agent_inc == agent->config.agent_inc)
		return; /* a copy within the host: GO or REROUTE starts it */
	if (part == NULL || part->gen != grant->gen || !ac_part_serves(part)) {
		outbound_refuse(
			agent, &grant->ticket, TH_E_NOT_AVAILABLE, "the source is being given up");
		return;
	}
	if (part->published && !ac_part_has_digests(part))
		TH_MARK(c32_served_while_it_is_hashed);
	if (agent->num_grants >= agent->config.grants_max) {
		TH_MARK(c33_oldest_ticket_gives_way);
		fence(agent, agent->grants);
	}
	struct outbound *out = th_calloc(1, sizeof(*out));
	out->leg = ++agent->last_leg;
	out->number = grant->leg;
	out->life = agent->link.life;
	out->part = part;
	out->ticket = grant->ticket;
	out->far = grant->far;
	out->state = OUTBOUND_GRANTED;
	out->granted_ns = agent->now_ns;
	HASH_ADD(hh, agent->outbounds, leg, sizeof(out->leg), out);
	DL_APPEND(part->outbounds, out);
	DL_APPEND2(agent->grants, out, grant_prev, grant_next);
	agent->num_grants++;
	leg_action(agent, AGENT_EXPECT, out);
}

/* When a ticket that nobody has presented is void. */
static int64_t
expiry_ns(const struct agent_core *agent, const struct outbound *out)
{
	return th_deadline_ns(out->granted_ns,
		ac_part_draining(out->part) ? agent->config.start_ns : agent->config.grant_ns);
}

static struct outbound *
find_expired(const struct agent_core *agent)
{
	struct outbound *out;

	DL_FOREACH2(agent->grants, out, grant_next)
	{
		if (agent->now_ns >= expiry_ns(agent, out))
			return out;
	}
	return NULL;
}

void
ac_outbound_tick(struct agent_core *agent)
{
	struct outbound *out;

	while ((out = find_expired(agent)) != NULL)
		fence(agent, out);
}

int64_t
ac_outbound_next_ns(const struct agent_core *agent)
{
	const struct outbound *out;
	int64_t next = INT64_MAX;

	DL_FOREACH2(agent->grants, out, grant_next)
	next = th_min_i64(next, expiry_ns(agent, out));
	return next;
}

/* ---- fencing --------------------------------------------------------------------------------- */

void
ac_outbound_fence(struct agent_core *agent, uint64_t number)
{
	struct outbound *out;

	for (out = agent->outbounds; out != NULL; out = out->hh.next) {
		if (out->number == number && out->life == agent->link.life) {
			fence(agent, out);
			return;
		}
	}
}

void
ac_outbounds_fence(struct agent_core *agent, struct part *part, bool all)
{
	struct outbound *out, *next;

	DL_FOREACH_SAFE(part->outbounds, out, next)
	{
		bool late =
			out->state == OUTBOUND_GRANTED && agent->now_ns >= expiry_ns(agent, out);
		if (out->stalled)
			TH_MARK(c01_stalled_leg_is_fenced);
		if (late)
			TH_MARK(c01_reader_that_never_came_is_fenced);
		if (all || (out->stalled && !TH_PLANT(stalled_leg_goes_on)) || late)
			fence(agent, out);
	}
}

void
ac_outbound_report(struct agent_core *agent, enum agent_event_kind kind, uint64_t leg)
{
	struct outbound *out = NULL;

	HASH_FIND(hh, agent->outbounds, &leg, sizeof(leg), out);
	if (out == NULL)
		return;
	struct session *session = out->part->session;
	if (kind == AGENT_EV_OUT_BEGAN && out->state == OUTBOUND_GRANTED)
		ungrant(agent, out, OUTBOUND_SERVING);
	else if (kind == AGENT_EV_OUT_BEGAN)
		TH_MARK(agent_reader_comes_while_it_is_fenced);
	else if (kind == AGENT_EV_OUT_ENDED)
		ac_outbound_free(agent, out);
	else
		out->stalled = kind == AGENT_EV_OUT_STALLED;
	ac_settle(agent, session);
}
