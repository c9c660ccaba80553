/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv_sim - see refsrv_sim.h.
 */
#include "tests/support/core/refsrv_sim.h"

#include <stdio.h>
#include <string.h>

#include "ipc/base/assert.h"

struct sim *sim;

bool
sim_chance(uint32_t percent)
{
	return th_rng_below(&sim->rng, 100) < percent;
}

bool
sim_fault(uint32_t permille)
{
	return sim->faults && th_rng_below(&sim->rng, 1000) < permille;
}

/* ---- requests, some of which are repeated at once or later -------------------------------- */

int
sim_send(uint32_t agent, struct ctl_request *request)
{
	int code = world_request(&sim->w, agent, request);

	if (!sim->w.agents[agent].attached)
		return code;
	uint32_t at = sim->num_recent++ % RECENT;
	sim->recent[at].agent = agent;
	sim->recent[at].request = *request;
	sim->recent[at].code = code;
	return code;
}

void
sim_repeat_one(void)
{
	if (sim->num_recent == 0)
		return;
	uint32_t at = (uint32_t)th_rng_below(
		&sim->rng, sim->num_recent < RECENT ? sim->num_recent : RECENT);
	struct world_agent *agent = &sim->w.agents[sim->recent[at].agent];
	struct ctl_request *request = &sim->recent[at].request;
	if (!agent->attached || agent->inc != request->agent_inc ||
		agent->request_no < request->request_no)
		return; /* another life: it does not remember */
	int code = world_repeat(&sim->w, sim->recent[at].agent, request);
	if (sim->w.reply.unknown_agent)
		agent->attached = false;
	else
		TH_ASSERT(code == sim->recent[at].code);
}

/* ---- what agents know ----------------------------------------------------------------------- */

struct sim_member *
sim_find_member(uint64_t sid)
{
	for (uint32_t r = 0; r < REPLICAS; r++)
		for (uint32_t s = 0; s < sim->num_shards[r]; s++)
			if (sim->members[r][s].open && sim->members[r][s].m.sid == sid)
				return &sim->members[r][s];
	for (uint32_t i = 0; i < sim->num_ghosts; i++)
		if (sim->ghosts[i].m.sid == sid)
			return &sim->ghosts[i];
	return NULL;
}

struct sim_leg *
sim_find_leg(uint64_t id)
{
	for (uint64_t i = sim->num_legs; i > 0; i--)
		if (sim->legs[i - 1].id == id)
			return &sim->legs[i - 1];
	return NULL;
}

bool
sim_is_read(uint64_t sid, uint64_t gen)
{
	for (uint64_t i = 0; i < sim->num_legs; i++) {
		const struct sim_leg *leg = &sim->legs[i];
		if (leg->active && leg->served && leg->src_sid == sid && leg->src_gen == gen)
			return true;
	}
	return false;
}

void
sim_unserve(uint64_t sid, uint64_t gen)
{
	for (uint64_t i = 0; i < sim->num_legs; i++)
		if (sim->legs[i].src_sid == sid && sim->legs[i].src_gen == gen)
			sim->legs[i].served = false;
}

struct th_hash
sim_hash_of(const struct sim_member *member)
{
	return (struct th_hash){.lo = member->part.content, .hi = member->shard + 1};
}

void
sim_end_leg(struct sim_leg *leg, int code, bool source_failed)
{
	struct ctl_request request = {.kind = CTL_LEG_END};

	leg->active = false;
	request.u.leg_end.leg = leg->id;
	request.u.leg_end.code = code;
	request.u.leg_end.source_failed = source_failed;
	request.u.leg_end.chunks_verified = code == 0 ? WORLD_CHUNKS : leg->chunks;
	const struct sim_member *reader = sim_find_member(leg->dst_sid);
	if (code == 0 && reader != NULL)
		request.u.leg_end.content = sim_hash_of(reader);
	if (code != 0)
		snprintf(request.u.leg_end.text, sizeof(request.u.leg_end.text), "leg failed");
	struct sim_member *member = sim_find_member(leg->dst_sid);
	if (member != NULL && member->leg == leg->id) {
		member->leg = 0;
		member->done |= code == 0;
	}
	int rc = sim_send(leg->reader_agent, &request);
	TH_ASSERT(rc == 0 || !sim->w.agents[leg->reader_agent].attached);
}

static void
start_leg(uint32_t agent, struct sim_member *member, const struct ctl_grant *grant, uint32_t chunks)
{
	TH_ASSERT(sim->num_legs < LEGS_MAX && member->leg == 0);
	struct sim_leg *leg = &sim->legs[sim->num_legs++];
	struct sim_member *src = sim_find_member(grant->source_sid);
	*leg = (struct sim_leg){
		.active = true,
		.served = src != NULL &&
			  (src->part.gen == grant->source_gen ||
				  src->part.next_gen == grant->source_gen) &&
			  !src->part.drained,
		.id = grant->leg,
		.src_sid = grant->source_sid,
		.src_gen = grant->source_gen,
		.reader_agent = agent,
		.dst_sid = member->m.sid,
		.chunks = chunks,
	};
	leg->src_agent = src == NULL ? agent : src->m.agent;
	if (leg->served && src->part.content != 0) {
		/* A reader gets the bytes of one publisher, wherever it is sent. */
		TH_ASSERT(member->part.content == 0 || member->part.content == src->part.content);
		member->part.content = src->part.content;
	}
	member->leg = leg->id;
}

static void
on_outcome(struct sim_member *member, const struct ctl_ev_outcome *end)
{
	uint32_t i;

	TH_ASSERT(member->pending && end->op_seq == member->m.seq);
	TH_ASSERT(member->leg == 0); /* nothing of it runs any more */
	member->pending = member->prepare_due = false;
	sim->counts[end->kind]++;
	sim->updated += end->updated;
	if (end->code != 0)
		sim->counts[8 + (uint32_t)(-end->code - 5000) % 24]++;
	for (i = 0; i < sim->num_outcomes; i++) {
		const struct outcome *other = &sim->outcomes[i];
		if (other->group_inc != member->group_inc || other->seq != end->op_seq)
			continue;
		/* A member that disagrees with what was decided hears so; the group is broken. */
		if (end->code == TH_E_GROUP_MISMATCH || other->code == TH_E_GROUP_MISMATCH)
			break;
		TH_ASSERT(other->code == end->code && other->updated == end->updated);
		TH_ASSERT(other->version.version == end->version.version);
		break;
	}
	if (i == sim->num_outcomes && sim->num_outcomes < OUTCOMES_MAX)
		sim->outcomes[sim->num_outcomes++] = (struct outcome){
			member->group_inc, end->op_seq, end->code, end->updated, end->version};
	struct sim_part *part = &member->part;
	if (part->next_gen != 0) { /* after GO */
		TH_ASSERT(end->code != 0 || member->done);
		if (end->code == 0)
			*part = (struct sim_part){.gen = part->next_gen, .content = part->content};
		else {
			/* The worker may overwrite or free this memory now (I2). */
			TH_ASSERT(!sim_is_read(member->m.sid, part->next_gen));
			*part = (struct sim_part){0};
		}
	} else if (end->code == 0 && end->kind == CTL_OP_PUBLISH) {
		/* One publish in six brings other bytes, to all its members the same. */
		uint64_t state = member->group_inc * 7919 + end->op_seq;
		*part = (struct sim_part){.gen = end->op_seq,
			.content = th_splitmix64(&state) % 6 == 0 ? 2 : 1,
			.hash_due = true};
	} else if (end->code == 0 && end->kind == CTL_OP_UNPUBLISH) {
		TH_ASSERT(!sim_is_read(member->m.sid, part->gen));
		*part = (struct sim_part){0};
	}
	member->done = false;
}

static void
on_event(uint32_t agent, const struct ctl_event *event)
{
	uint64_t sid = world_event_sid(event);
	struct sim_member *member = sid == 0 ? NULL : sim_find_member(sid);
	struct sim_leg *leg;

	if (sid != 0 && member == NULL) {
		/* A part that this agent does not know any more: nobody reads it. */
		if (event->kind == CTL_EV_DRAIN) {
			struct ctl_request request = {.kind = CTL_DRAIN_DONE};
			request.u.drain_done.sid = sid;
			request.u.drain_done.gen = event->u.drain.gen;
			request.u.drain_done.drain_no = event->u.drain.drain_no;
			sim_send(agent, &request);
		}
		return;
	}
	switch (event->kind) {
	case CTL_EV_PLAN:
		if (member->closed)
			break;
		TH_ASSERT(member->pending && event->u.plan.drain_old == (member->part.gen != 0));
		member->prepare_due = true;
		member->part.giving_up = event->u.plan.drain_old;
		break;
	case CTL_EV_GO:
		if (member->closed) {
			/* The worker died meanwhile: its agent never begins, and says so. */
			struct ctl_request request = {.kind = CTL_LEG_END};
			request.u.leg_end.leg = event->u.go.grant.leg;
			request.u.leg_end.code = TH_E_CANCELLED;
			member->part = (struct sim_part){.next_gen = event->u.go.op_seq};
			sim_send(agent, &request);
			break;
		}
		TH_ASSERT(!sim_is_read(sid, member->part.gen) || member->part.gen == 0);
		member->part = (struct sim_part){.next_gen = event->u.go.op_seq};
		member->done = false;
		start_leg(agent, member, &event->u.go.grant, 0);
		break;
	case CTL_EV_REROUTE: {
		sim->rerouted++;
		uint32_t chunks = 0;
		if (member->done)
			break;
		leg = member->leg == 0 ? NULL : sim_find_leg(member->leg);
		if (leg != NULL) {
			TH_ASSERT(leg->id == event->u.reroute.old_leg);
			chunks = leg->chunks;
			sim_end_leg(leg, TH_E_CANCELLED, true);
		}
		if (member->closed) {
			struct ctl_request request = {
				.kind = CTL_LEG_END, .u.leg_end.leg = event->u.reroute.grant.leg};
			request.u.leg_end.code = TH_E_CANCELLED;
			sim_send(agent, &request);
			break;
		}
		start_leg(agent, member, &event->u.reroute.grant, chunks);
		break;
	}
	case CTL_EV_GRANT:
		/* Nobody is let in to a part that is being given up or was drained. */
		TH_ASSERT(!member->part.drain_due && !member->part.drained &&
			  !member->part.giving_up);
		TH_ASSERT(event->u.grant.gen == member->part.gen ||
			  event->u.grant.gen == member->part.next_gen);
		break;
	case CTL_EV_FENCE:
		sim->fenced++;
		leg = sim_find_leg(event->u.fence_leg);
		if (leg != NULL)
			leg->served = false;
		break;
	case CTL_EV_DRAIN:
		TH_ASSERT(event->u.drain.gen == member->part.gen ||
			  event->u.drain.gen == member->part.next_gen);
		TH_ASSERT(event->u.drain.drain_no > member->part.drain_no);
		member->part.drain_due = true;
		member->part.drain_no = event->u.drain.drain_no;
		member->part.drain_gen = event->u.drain.gen;
		break;
	case CTL_EV_UNDRAIN:
		TH_ASSERT(event->u.undrain.gen == member->part.gen);
		member->part.drain_due = member->part.drained = member->part.giving_up = false;
		break;
	case CTL_EV_CANCEL:
		sim->cancelled++;
		leg = member->leg == 0 ? NULL : sim_find_leg(member->leg);
		if (leg != NULL)
			sim_end_leg(leg, TH_E_CANCELLED, false);
		break;
	case CTL_EV_OUTCOME:
		TH_ASSERT(!member->closed || member->pending);
		on_outcome(member, &event->u.outcome);
		break;
	case CTL_EV_CONFLICT:
		sim->conflicts++;
		break;
	case CTL_EV_CHANGED:
	case CTL_EV_BROKEN:
	case CTL_EV_NODE:
	case CTL_EV_RULES:
		break;
	case CTL_EV_RESERVE:
	case CTL_EV_RELEASE:
	case CTL_EV_CLOSE_REFUSED:
	case CTL_EV_PING:
	case CTL_EV_AT_RISK:
		TH_ASSERT(false); /* nobody here retains anything */
	}
}

void
sim_handle_events(uint32_t index, uint32_t most)
{
	struct world_agent *agent = &sim->w.agents[index];

	while (most-- > 0 && agent->num_inbox > 0 && agent->attached && !agent->silent) {
		struct ctl_event event = agent->inbox[0];
		agent->num_inbox--;
		memmove(agent->inbox, agent->inbox + 1, agent->num_inbox * sizeof(event));
		on_event(index, &event);
	}
}
