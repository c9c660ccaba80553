/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outbound - legs out: tickets that the server granted, peers that present them, and fencing.
 *
 *   GRANTED --HELLO--> SERVING --stalled while draining, or FENCE--> FENCING --OUT_ENDED--> gone
 *
 * GRANT and HELLO travel different ways: either may come first, and neither waits for ever. A
 * ticket is good for one HELLO. All tickets are compared, in constant time, whichever matches.
 *
 * A granted leg counts as reading: its reader has given up what it held and is on its way. While
 * the part drains it may still begin, but only within start_ns of its grant.
 */
#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/assert.h"
#include "ipc/base/bytes.h"
#include "ipc/base/checked.h"
#include "ipc/base/sim.h"

bool
ac_ticket_equal(const struct th_ticket *a, const struct th_ticket *b)
{
	return th_bytes_same(a->bytes, b->bytes, sizeof(a->bytes));
}

static void
outbound_refuse(struct agent_core *agent, uint64_t hello, int code, const char *text)
{
	struct agent_action *action = ac_action(agent, AGENT_REFUSE, 0);

	action->u.refuse.hello = hello;
	action->u.refuse.code = code;
	ac_copy(action->u.refuse.text, sizeof(action->u.refuse.text), text, TH_CTL_TEXT_BYTES);
}

static void
ungrant(struct agent_core *agent, struct outbound *out)
{
	DL_DELETE2(agent->grants, out, grant_prev, grant_next);
	agent->num_grants--;
}

void
ac_outbound_free(struct agent_core *agent, struct outbound *out)
{
	struct part *part = out->part;

	if (out->state == OUTBOUND_GRANTED)
		ungrant(agent, out);
	else
		part->num_running--;
	DL_DELETE(part->outbounds, out);
	HASH_DELETE(hh, agent->outbounds, out);
	free(out);
}

static void
leg_action(struct agent_core *agent, enum agent_action_kind kind, const struct outbound *out,
	uint64_t hello)
{
	struct agent_action *action = ac_action(agent, kind, out->part->session->id);

	action->u.leg.leg = out->leg;
	action->u.leg.gen = out->part->gen;
	action->u.leg.hello = hello;
	action->u.leg.grant.leg = out->number;
	action->u.leg.grant.ticket = out->ticket;
}

static void
serve(struct agent_core *agent, struct outbound *out, uint64_t hello)
{
	TH_ASSERT(out->state == OUTBOUND_GRANTED && !ac_part_drains(out->part, DRAIN_HOPELESS));
	ungrant(agent, out);
	out->state = OUTBOUND_SERVING;
	out->part->num_running++;
	leg_action(agent, AGENT_SERVE, out, hello);
}

/* ---- tickets --------------------------------------------------------------------------------- */

static void
forget_hello(struct agent_core *agent, struct hello *hello)
{
	DL_DELETE(agent->hellos, hello);
	agent->num_hellos--;
	free(hello);
}

static struct hello *
find_hello(const struct agent_core *agent, const struct th_ticket *ticket)
{
	struct hello *hello, *found = NULL;

	DL_FOREACH(agent->hellos, hello)
	{
		if (ac_ticket_equal(&hello->ticket, ticket))
			found = hello;
	}
	return found;
}

static struct outbound *
find_ticket(const struct agent_core *agent, const struct th_ticket *ticket)
{
	struct outbound *out, *found = NULL;

	for (out = agent->outbounds; out != NULL; out = out->hh.next) {
		if (ac_ticket_equal(&out->ticket, ticket))
			found = out;
	}
	return found;
}

void
ac_outbound_grant(struct agent_core *agent, const struct ctl_ev_grant *grant)
{
	struct session *session = ac_session_by_sid(agent, grant->sid);
	struct part *part = session == NULL ? NULL : session->part;
	struct hello *hello = find_hello(agent, &grant->ticket);

	if (grant->reader_agent_inc == agent->config.agent_inc)
		return; /* a copy within the host: GO or REROUTE starts it */
	if (part == NULL || part->gen != grant->gen || !ac_part_serves(part)) {
		if (hello != NULL) {
			outbound_refuse(agent, hello->id, TH_E_NOT_AVAILABLE,
				"the source is being given up");
			forget_hello(agent, hello);
		}
		return;
	}
	if (part->published && !ac_part_has_digests(part))
		TH_MARK(c32_served_while_it_is_hashed);
	if (agent->num_grants >= agent->config.grants_max)
		TH_MARK(c33_oldest_ticket_gives_way);
	if (agent->num_grants >= agent->config.grants_max)
		ac_outbound_free(agent, agent->grants);
	struct outbound *out = th_calloc(1, sizeof(*out));
	out->leg = ++agent->last_leg;
	out->number = grant->leg;
	out->life = agent->link.life;
	out->part = part;
	out->ticket = grant->ticket;
	out->state = OUTBOUND_GRANTED;
	out->granted_ns = agent->now_ns;
	HASH_ADD(hh, agent->outbounds, leg, sizeof(out->leg), out);
	DL_APPEND(part->outbounds, out);
	DL_APPEND2(agent->grants, out, grant_prev, grant_next);
	agent->num_grants++;
	if (hello != NULL) {
		serve(agent, out, hello->id);
		forget_hello(agent, hello);
	}
}

void
ac_outbound_hello(struct agent_core *agent, uint64_t id, const struct th_ticket *ticket)
{
	struct outbound *out = find_ticket(agent, ticket);

	if (out != NULL && (out->state == OUTBOUND_GRANTED || TH_PLANT(ticket_taken_twice))) {
		serve(agent, out, id);
		return;
	}
	if (out != NULL || find_hello(agent, ticket) != NULL) {
		TH_MARK(i11_ticket_is_good_for_one);
		outbound_refuse(agent, id, TH_E_DENIED, "this ticket has been presented before");
		return;
	}
	if (agent->num_hellos >= agent->config.hellos_max) {
		outbound_refuse(agent, id, TH_E_LIMIT,
			"too many tickets wait for their grant (hellos_max)");
		return;
	}
	struct hello *hello = th_calloc(1, sizeof(*hello));
	hello->id = id;
	hello->ticket = *ticket;
	hello->deadline_ns = th_deadline_ns(agent->now_ns, agent->config.hello_ns);
	DL_APPEND(agent->hellos, hello);
	agent->num_hellos++;
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
	while (agent->hellos != NULL && agent->now_ns >= agent->hellos->deadline_ns) {
		outbound_refuse(agent, agent->hellos->id, TH_E_DENIED,
			"the reference server has granted no such ticket");
		forget_hello(agent, agent->hellos);
	}
	struct outbound *out;
	while ((out = find_expired(agent)) != NULL) {
		struct session *session = out->part->session;
		ac_outbound_free(agent, out);
		ac_settle(agent, session);
	}
}

int64_t
ac_outbound_next_ns(const struct agent_core *agent)
{
	const struct outbound *out;
	int64_t next = agent->hellos != NULL ? agent->hellos->deadline_ns : INT64_MAX;

	DL_FOREACH2(agent->grants, out, grant_next)
	next = th_min_i64(next, expiry_ns(agent, out));
	return next;
}

/* ---- fencing --------------------------------------------------------------------------------- */

static void
fence(struct agent_core *agent, struct outbound *out)
{
	if (out->state == OUTBOUND_GRANTED) {
		ac_outbound_free(agent, out);
	} else if (out->state == OUTBOUND_SERVING && !TH_PLANT(fence_does_nothing)) {
		out->state = OUTBOUND_FENCING;
		leg_action(agent, AGENT_FENCE, out, 0);
		/* I2: only OUT_ENDED says that nothing reads any more. */
		if (TH_PLANT(fence_is_its_own_proof))
			ac_outbound_free(agent, out);
	}
}

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
	if (out == NULL || out->state == OUTBOUND_GRANTED)
		return;
	struct session *session = out->part->session;
	if (kind == AGENT_EV_OUT_ENDED)
		ac_outbound_free(agent, out);
	else
		out->stalled = kind == AGENT_EV_OUT_STALLED;
	ac_settle(agent, session);
}
