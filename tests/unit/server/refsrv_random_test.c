/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv, at random: several agents and groups, seeded; deaths of workers and agents, frozen
 * agents, replies that were lost, requests that come twice, members that disagree.
 *
 * Checked all the time: the invariants of refsrv_check; that all members of a group get the same
 * outcome of their n-th operation; that no GRANT comes for a part being drained; that nobody reads
 * a part when its unpublish, close or failed operation is over; that listings, read in parts, are
 * what refsrv_reader.h says. At the end: every operation ends, and nothing is left.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/rng.h"
#include "server/core/model/content.h"
#include "server/core/model/group.h"
#include "tests/support/core/refsrv_sim.h"

#define TOTALS 41

/* ---- what agents and workers do by themselves ------------------------------------------------ */

static void
drain_step(struct sim_member *member)
{
	struct sim_part *part = &member->part;
	struct world_agent *agent = &sim->w.agents[member->m.agent];

	if (!agent->attached || agent->silent)
		return;
	if (part->drain_due && !sim_is_read(member->m.sid, part->drain_gen)) {
		struct ctl_request request = {.kind = CTL_DRAIN_DONE};
		request.u.drain_done.sid = member->m.sid;
		request.u.drain_done.gen = part->drain_gen;
		request.u.drain_done.drain_no = part->drain_no;
		part->drain_due = false;
		part->drained = true;
		sim->drained++;
		TH_ASSERT(sim_send(member->m.agent, &request) == 0 || !agent->attached);
		return;
	}
	/* A stalled reader of a part that is given up is fenced by the part's own agent. */
	if ((part->drain_due || part->giving_up) && sim_chance(20))
		sim_unserve(member->m.sid, part->drain_due ? part->drain_gen : part->gen);
	if (member->closed || !member->prepare_due)
		return;
	if (part->giving_up && sim_is_read(member->m.sid, part->gen))
		return;
	struct ctl_request request = {.kind = CTL_PREPARED};
	request.u.prepared.sid = member->m.sid;
	request.u.prepared.op_seq = member->m.seq;
	member->prepare_due = false;
	if (sim_fault(50)) {
		request.u.prepared.code = TH_E_LAYOUT;
		snprintf(request.u.prepared.text, sizeof(request.u.prepared.text), "no");
	}
	/* The proof: tickets that nobody has presented yet are void from now on. */
	part->drained = part->giving_up;
	TH_ASSERT(sim_send(member->m.agent, &request) == 0 || !agent->attached);
}

/* The digests are made behind the publish: sometimes at once, sometimes much later. */
static void
content_step(struct sim_member *member)
{
	struct ctl_request request = {.kind = CTL_CONTENT};

	if (member->part.gen == 0 || !member->part.hash_due || !sim_chance(15))
		return;
	member->part.hash_due = false;
	request.u.content.sid = member->m.sid;
	request.u.content.gen = member->part.gen;
	request.u.content.content = sim_hash_of(member);
	TH_ASSERT(sim_send(member->m.agent, &request) == 0 ||
		  !sim->w.agents[member->m.agent].attached);
}

/* What is listed as complete has the same bytes everywhere. */
static void
check_contents(void)
{
	uint64_t listed[8][SHARDS_MAX] = {{0}};

	for (uint32_t r = 0; r < REPLICAS; r++) {
		for (uint32_t s = 0; s < sim->num_shards[r]; s++) {
			const struct sim_member *member = &sim->members[r][s];
			const struct member *known =
				member->open ? member_lookup(sim->w.server, member->m.sid) : NULL;
			const struct copy *copy = known == NULL ? NULL : known->group->copy;
			if (copy == NULL || copy->gen != member->part.gen ||
				copy->state != COPY_READY || !content_listed(copy) ||
				known->group->state == GROUP_BROKEN || member->part.content == 0)
				continue;
			/* Layouts of another number of shards are another version's. */
			uint64_t *seen = &listed[copy->version->id.version][s];
			TH_ASSERT(*seen == 0 || *seen == member->part.content);
			*seen = member->part.content;
		}
	}
}

static void
leg_step(struct sim_leg *leg)
{
	const struct world_agent *agent = &sim->w.agents[leg->reader_agent];

	if (!leg->active || !agent->attached || agent->silent)
		return;
	if (!leg->served) {
		if (sim_chance(30))
			sim_end_leg(leg, TH_E_NO_PATH, true);
		return;
	}
	if (sim_fault(10)) {
		sim_end_leg(leg, TH_E_NO_PATH, true);
		return;
	}
	if (sim_fault(5)) {
		sim_end_leg(leg, TH_E_CHECKSUM, true);
		return;
	}
	if (sim_fault(3)) {
		sim_end_leg(leg, TH_E_STALE_MEMORY, false);
		return;
	}
	if (sim_chance(50) && leg->chunks < WORLD_CHUNKS)
		leg->chunks++;
	/* A source that is filling itself does not give more than it has. */
	const struct sim_member *src = sim_find_member(leg->src_sid);
	bool filling = src != NULL && src->part.next_gen == leg->src_gen && !src->done;
	if (filling && src->leg != 0) {
		const struct sim_leg *up = sim_find_leg(src->leg);
		if (up != NULL && leg->chunks > up->chunks)
			leg->chunks = up->chunks;
	}
	if (leg->chunks == WORLD_CHUNKS && !filling)
		sim_end_leg(leg, 0, false);
}

/* The worker ended: the member as the agent knows it lives on until it is drained. */
static void
close_member(struct sim_member *member, bool died)
{
	struct ctl_request request = {.kind = CTL_CLOSE};
	uint32_t agent = member->m.agent;

	request.u.close.sid = member->m.sid;
	request.u.close.died = died;
	TH_ASSERT(sim_send(agent, &request) == 0 || !sim->w.agents[agent].attached);
	member->closed = true;
	struct sim_leg *leg = member->leg == 0 ? NULL : sim_find_leg(member->leg);
	if (leg != NULL && sim->w.agents[agent].attached)
		sim_end_leg(leg, TH_E_CANCELLED, false);
	sim->ghosts = th_realloc(sim->ghosts, sim->num_ghosts + 1, sizeof(*sim->ghosts));
	sim->ghosts[sim->num_ghosts++] = *member;
	*member = (struct sim_member){.replica = member->replica, .shard = member->shard};
}

/* An agent's life is over: everything it held and read is gone. */
static void
agent_gone(uint32_t index)
{
	for (uint32_t r = 0; r < REPLICAS; r++) {
		for (uint32_t s = 0; s < sim->num_shards[r]; s++) {
			struct sim_member *member = &sim->members[r][s];
			if (!member->open || member->m.agent != index)
				continue;
			sim_unserve(member->m.sid, member->part.gen);
			sim_unserve(member->m.sid, member->part.next_gen);
			*member = (struct sim_member){.replica = r, .shard = s};
		}
	}
	for (uint32_t i = 0; i < sim->num_ghosts;) {
		struct sim_member *ghost = &sim->ghosts[i];
		if (ghost->m.agent == index) {
			sim_unserve(ghost->m.sid, ghost->part.gen);
			sim_unserve(ghost->m.sid, ghost->part.next_gen);
			*ghost = sim->ghosts[--sim->num_ghosts];
		} else {
			i++;
		}
	}
	for (uint64_t i = 0; i < sim->num_legs; i++)
		if (sim->legs[i].reader_agent == index)
			sim->legs[i].active = false;
	/* The server forgets with the agent what it has answered it. */
	for (uint32_t i = 0; i < RECENT; i++)
		if (sim->recent[i].agent == index)
			sim->recent[i].request.agent_inc = 0;
	sim->w.agents[index].num_inbox = 0;
}

static void
agent_step(uint32_t index)
{
	struct world_agent *agent = &sim->w.agents[index];

	if (!agent->attached) {
		/* Declared dead, or its process is new. */
		sim->deaths++;
		agent_gone(index);
		if (sim_chance(50)) {
			agent->silent = false;
			world_attach(&sim->w, index, "dc1");
		} else {
			world_restart(&sim->w, index);
		}
		return;
	}
	if (sim_fault(4))
		agent->silent = true;
	else if (agent->silent && (sim_chance(3) || !sim->faults))
		agent->silent = false;
	sim_handle_events(index, 1 + (uint32_t)th_rng_below(&sim->rng, 4));
}

static void
open_member(uint32_t r, uint32_t s)
{
	struct sim_member *member = &sim->members[r][s];
	uint32_t agent = (uint32_t)th_rng_below(&sim->rng, AGENTS);
	struct ctl_request request = {.kind = CTL_OPEN};

	if (!sim->w.agents[agent].attached || sim->w.agents[agent].silent)
		return;
	strcpy(request.u.open.model, "m");
	snprintf(request.u.open.replica, sizeof(request.u.open.replica), "r%u", r);
	request.u.open.shard = s;
	request.u.open.num_shards = sim->num_shards[r];
	request.u.open.lineage = 1;
	if (sim_send(agent, &request) != 0)
		return; /* the name is still taken by a member that closes */
	*member = (struct sim_member){.open = true, .replica = r, .shard = s};
	member->m = (struct world_member){.agent = agent,
		.shard = s,
		.num_shards = sim->num_shards[r],
		.sid = sim->w.reply.u.open.sid};
	int code = world_register(&sim->w, agent, member->m.sid, s);
	TH_ASSERT(code == 0 || !sim->w.agents[agent].attached);
	const struct member *known = member_lookup(sim->w.server, member->m.sid);
	if (known != NULL)
		member->group_inc = known->group->inc;
}

static void
call(struct sim_member *member)
{
	static const enum ctl_op_kind kinds[] = {CTL_OP_PUBLISH, CTL_OP_UNPUBLISH, CTL_OP_REPLICATE,
		CTL_OP_UPDATE, CTL_OP_UPDATE, CTL_OP_LIST};
	static const char *const names[] = {"latest", "latest", "latest-1", "3", "5"};
	/* All members of a group compute the same calls. */
	uint64_t state = member->group_inc * 1000003 + member->m.seq + 1;
	uint64_t number = th_splitmix64(&state);
	struct ctl_request request = {.kind = CTL_OP};

	if (sim_fault(8))
		number++;
	request.u.op.sid = member->m.sid;
	request.u.op.op_seq = ++member->m.seq;
	request.u.op.kind = kinds[number % 6];
	request.u.op.timeout_ns = (int64_t)(number / 6 % 5) * SEC + 100 * MS;
	if (request.u.op.kind == CTL_OP_PUBLISH)
		snprintf(request.u.op.spec, sizeof(request.u.op.spec), "%u",
			(unsigned int)(number / 64 % 8));
	else if (request.u.op.kind == CTL_OP_REPLICATE || request.u.op.kind == CTL_OP_UPDATE)
		strcpy(request.u.op.spec, names[number / 64 % 5]);
	member->pending = true;
	member->done = false;
	int code = sim_send(member->m.agent, &request);
	TH_ASSERT(code == 0 || !sim->w.agents[member->m.agent].attached);
}

static void
member_step(uint32_t r, uint32_t s)
{
	struct sim_member *member = &sim->members[r][s];

	if (!member->open) {
		if (sim_chance(20) && sim->faults)
			open_member(r, s);
		return;
	}
	const struct world_agent *agent = &sim->w.agents[member->m.agent];
	if (!agent->attached || agent->silent)
		return;
	const struct member *known = member_lookup(sim->w.server, member->m.sid);
	bool broken = known == NULL || known->group->state == GROUP_BROKEN;
	if (sim_fault(4) || (broken && sim_chance(10))) {
		close_member(member, sim_chance(50));
		return;
	}
	drain_step(member);
	content_step(member);
	if (!member->pending && sim_chance(30) && sim->faults)
		call(member);
	if (member->pending && sim_fault(3)) {
		struct ctl_request request = {.kind = CTL_CANCEL};
		request.u.cancel.sid = member->m.sid;
		request.u.cancel.op_seq = member->m.seq;
		sim_send(member->m.agent, &request);
	}
}

static void
step(void)
{
	for (uint32_t i = 0; i < AGENTS; i++)
		agent_step(i);
	for (uint32_t r = 0; r < REPLICAS; r++)
		for (uint32_t s = 0; s < sim->num_shards[r]; s++)
			member_step(r, s);
	for (uint32_t i = 0; i < sim->num_ghosts; i++)
		drain_step(&sim->ghosts[i]);
	for (uint64_t i = 0; i < sim->num_legs; i++)
		leg_step(&sim->legs[i]);
	if (sim->faults && sim_chance(20))
		sim_repeat_one();
	uint32_t asker = (uint32_t)th_rng_below(&sim->rng, AGENTS);
	if (sim_chance(30) && sim->w.agents[asker].attached)
		reader_step(&sim->reader, asker);
	/* What is over is of no interest. */
	uint64_t kept = 0;
	for (uint64_t i = 0; i < sim->num_legs; i++)
		if (sim->legs[i].active)
			sim->legs[kept++] = sim->legs[i];
	sim->num_legs = kept;
	check_contents();
	world_sleep(&sim->w, (int64_t)th_rng_below(&sim->rng, 60) * MS);
	if (sim_fault(5))
		world_sleep(&sim->w, (int64_t)th_rng_below(&sim->rng, 15) * SEC);
}

static bool
quiet(void)
{
	if (refsrv_inspect(sim->w.server, sim->w.now_ns)->num_transfers > 0)
		return false;
	for (uint32_t r = 0; r < REPLICAS; r++)
		for (uint32_t s = 0; s < sim->num_shards[r]; s++)
			if (sim->members[r][s].pending)
				return false;
	return true;
}

/* What is still going on, for whoever has to find out why. */
static void
explain(void)
{
	const struct ctl_inspection *all = refsrv_inspect(sim->w.server, sim->w.now_ns);

	for (uint32_t i = 0; i < all->num_nodes; i++)
		fprintf(stderr, "%s %s silent=%d attached=%d inbox=%u\n", all->nodes[i].node,
			all->nodes[i].state, sim->w.agents[i].silent, sim->w.agents[i].attached,
			sim->w.agents[i].num_inbox);
	for (uint32_t i = 0; i < all->num_members; i++) {
		const struct ctl_member_info *info = &all->members[i];
		const struct sim_member *member = sim_find_member(info->sid);
		const struct member *known = member_lookup(sim->w.server, info->sid);
		const struct op *op = group_open_op(known->group);
		fprintf(stderr, "%s.%u on %s sid=%llu %s copy=%s", info->replica, info->shard,
			info->node, (unsigned long long)info->sid, info->state, info->copy);
		if (op != NULL)
			fprintf(stderr, " op %llu kind %u state %d prepared %u",
				(unsigned long long)op->seq, op->kind, (int)op->state,
				op->num_prepared);
		if (member == NULL)
			fprintf(stderr, " (unknown to its agent)");
		else
			fprintf(stderr,
				" agent: closed %d pending %d prepare %d gen %llu next %llu "
				"giving_up %d drain_due %d leg %llu",
				member->closed, member->pending, member->prepare_due,
				(unsigned long long)member->part.gen,
				(unsigned long long)member->part.next_gen, member->part.giving_up,
				member->part.drain_due, (unsigned long long)member->leg);
		fprintf(stderr, "\n");
	}
	for (uint32_t i = 0; i < all->num_transfers; i++)
		fprintf(stderr, "leg %llu %s.%u <- %s\n", (unsigned long long)all->transfers[i].leg,
			all->transfers[i].reader_replica, all->transfers[i].shard,
			all->transfers[i].source_replica);
}

static void
run(uint64_t seed)
{
	sim = th_calloc(1, sizeof(*sim));
	th_rng_init_number(&sim->rng, seed);
	struct refsrv_config config;
	refsrv_config_default(&config);
	config.pair_block_ns = 2 * SEC;
	config.pipelining = seed % 8 != 0;
	config.part_bytes = 480; /* two replicas */
	world_init(&sim->w, &config);
	sim->reader.w = &sim->w;
	for (uint32_t i = 0; i < AGENTS; i++)
		world_agent(&sim->w);
	for (uint32_t r = 0; r < REPLICAS; r++)
		sim->num_shards[r] =
			seed % 3 == 0 ? 1 + (uint32_t)(r % 2) : 1 + (uint32_t)(seed % 3);
	sim->faults = true;
	for (int i = 0; i < 1200; i++)
		step();
	/* The faults stop: everything that can end ends. */
	sim->faults = false;
	for (int i = 0; i < 4000 && !quiet(); i++)
		step();
	if (!quiet())
		explain();
	TH_ASSERT(quiet());
	/* And when all have gone nothing is left. */
	for (uint32_t r = 0; r < REPLICAS; r++)
		for (uint32_t s = 0; s < sim->num_shards[r]; s++)
			if (sim->members[r][s].open &&
				sim->w.agents[sim->members[r][s].m.agent].attached)
				close_member(&sim->members[r][s], false);
	for (int i = 0; i < 500; i++)
		step();
	const struct ctl_inspection *all = refsrv_inspect(sim->w.server, sim->w.now_ns);
	TH_ASSERT(all->num_members == 0 && all->num_transfers == 0);
	TH_ASSERT(world_list(&sim->w, 0, "m") == 0 && sim->w.reply.u.list.num_versions == 0);
}

static void
finish(uint64_t totals[TOTALS])
{
	const uint64_t more[] = {sim->updated, sim->rerouted, sim->fenced, sim->cancelled,
		sim->drained, sim->deaths, sim->reader.num_whole, sim->reader.num_in_parts,
		sim->conflicts};

	for (int i = 0; i < TOTALS - 32; i++)
		totals[32 + i] += more[i];
	for (int i = 0; i < 32; i++)
		totals[i] += sim->counts[i];
	world_fini(&sim->w);
	free(sim->ghosts);
	free(sim);
}

Test(refsrv_random, faults__any_order__members_agree_and_nothing_is_left)
{
	const char *one = getenv("REFSRV_SEED");
	uint64_t first = one != NULL ? strtoull(one, NULL, 10) : 1, totals[TOTALS] = {0};
	uint64_t last = one != NULL ? first : 100;
	const char *many = getenv("REFSRV_SEEDS");
	if (many != NULL)
		last = first + strtoull(many, NULL, 10) - 1;

	for (uint64_t seed = first; seed <= last; seed++) {
		fprintf(stderr, "seed=%llu\n", (unsigned long long)seed);
		run(seed);
		finish(totals);
	}
	for (int i = 0; i < TOTALS; i++)
		if (totals[i] > 0)
			fprintf(stderr, "%s %d: %llu\n",
				i < 8    ? "kind"
				: i < 32 ? "code"
					 : "updated, rerouted, fenced, cancelled, drained, deaths, "
					   "listings, listings in parts, conflicts",
				i < 8    ? i
				: i < 32 ? -5000 - (i - 8)
					 : i - 32,
				(unsigned long long)totals[i]);
	/* A run that never got anywhere proves nothing. */
	for (int i = 32; i < TOTALS; i++)
		cr_assert(one != NULL || totals[i] >= 100);
	for (int kind = CTL_OP_PUBLISH; kind <= CTL_OP_LIST; kind++)
		cr_assert(one != NULL || totals[kind] > 100);
}
