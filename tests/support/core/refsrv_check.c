/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv_check - the invariants of the server's whole state, each as one assertion; quadratic in
 * places. See core_check.h.
 */
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/name.h"
#include "server/core/cluster/agent.h"
#include "server/core/cluster/epoch.h"
#include "server/core/cluster/standby.h"
#include "server/core/model/group.h"
#include "server/core/op/op.h"
#include "server/core/refsrv.h"
#include "server/core/refsrv_state.h"
#include "server/core/retain/last_copy.h"
#include "server/core/retain/retain.h"
#include "tests/support/core/core_check.h"

static void
refsrv_check_part(const struct part *part, uint64_t *num_legs)
{
	const struct copy *copy = part->copy;
	const struct leg *leg;
	uint32_t fills = 0, readers = 0;
	bool current_listed = part->leg == NULL;

	DL_FOREACH2(part->fills, leg, dst_next)
	{
		fills++;
		TH_ASSERT(leg->dst == part && leg->reader == part->member);
		TH_ASSERT(leg->op->group == copy->group);
		/* Trainers that give up together do not hand it on from one to the next. */
		TH_ASSERT(leg->moved <= 1);
		TH_ASSERT(leg->op->state == OP_RUNNING || leg->op->state == OP_ABORTING);
		current_listed |= leg == part->leg;
	}
	DL_FOREACH2(part->readers, leg, src_next)
	{
		readers++;
		TH_ASSERT(leg->src == part && leg->dst->copy->version == copy->version);
		TH_ASSERT(leg->dst->shard == part->shard && leg->dst->copy != copy);
		/* Whoever reads stays with one content, from the first chunk to the last. */
		TH_ASSERT(leg->dst->copy->content == copy->content);
		TH_ASSERT(!copy->content->refused || leg->dst->copy->aborting);
	}
	/* References counted = legs that run (I8). */
	TH_ASSERT(fills == part->num_fills && readers == part->num_readers);
	TH_ASSERT(current_listed);
	TH_ASSERT(!part->done || fills == 0);
	/* Proof of the drain is final: nobody reads a part that was proven unread (I2). */
	TH_ASSERT(!part->drained || readers == 0);
	TH_ASSERT(part->drain_no == 0 || copy->draining);
	TH_ASSERT(part->chunks_done <= copy->version->shards[part->shard].num_chunks);
	/* No circle, no endless chain (I9): following the sources ends soon. */
	const struct part *up = part;
	for (uint32_t depth = 0; up->leg != NULL && up->leg->src != NULL; depth++) {
		TH_ASSERT(depth <= CHAIN_DEPTH_MAX);
		up = up->leg->src;
	}
	*num_legs += fills;
}

static void
check_copy(const struct refsrv *server, const struct copy *copy, uint64_t *num_legs)
{
	const struct group *group = copy->group;
	const struct op *op = group_open_op(group);
	bool all_done = true;

	TH_ASSERT(group->copy == copy && copy->num_parts == copy->version->num_shards);
	TH_ASSERT(copy->content != NULL && copy->content->version == copy->version);
	TH_ASSERT(!copy->refusal_due || copy->content->refused);
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		const struct part *part = &copy->parts[i];
		TH_ASSERT(part->copy == copy && part->shard == i);
		TH_ASSERT(part->member == NULL || part->member == group->members[i]);
		TH_ASSERT(part->member != NULL || part->drained);
		refsrv_check_part(part, num_legs);
		all_done &= part->done;
	}
	/* READY if and only if every shard is complete, in one step (I5). */
	TH_ASSERT(copy->state != COPY_READY || all_done);
	TH_ASSERT(copy->state == COPY_READY ||
		  (op != NULL && (op->state == OP_RUNNING || op->state == OP_ABORTING)));
	TH_ASSERT(group->state != GROUP_BROKEN || copy->draining || copy->rescued);
	/* Kept while somebody wants to give it up, and until then nothing of it is hidden (I12). */
	TH_ASSERT((copy->keep != NULL) == last_copy_wanted(copy));
	TH_ASSERT(copy->keep == NULL || !copy->draining);
	TH_ASSERT(!copy->rescued || (group->state == GROUP_BROKEN && group->reservation == 0));
	TH_ASSERT(!copy->aborting || (op != NULL && op->state == OP_ABORTING));
	(void)server;
}

static void
check_copies(const struct version *version)
{
	const struct copy *copy;
	uint32_t filling = 0, named = 0;

	DL_FOREACH(version->copies, copy)
	{
		TH_ASSERT(copy->next == NULL || copy->next->id > copy->id);
		filling += copy->state == COPY_PARTIAL;
		named++;
	}
	DL_FOREACH2(version->filling, copy, fill_next)
	{
		TH_ASSERT(copy->state == COPY_PARTIAL && copy->version == version);
		filling--;
	}
	DL_FOREACH2(version->by_name, copy, name_next)
	{
		TH_ASSERT(copy->version == version);
		TH_ASSERT(version->unsorted || copy->name_next == NULL ||
			  strcmp(copy->group->replica, copy->name_next->group->replica) <= 0);
		named--;
	}
	TH_ASSERT(filling == 0 && named == 0);
}

static void
check_op(const struct group *group, const struct op *op)
{
	uint32_t arrived = 0, prepared = 0;

	for (uint32_t i = 0; i < group->num_shards; i++) {
		const struct op_member *member = &op->members[i];
		arrived += member->arrived;
		prepared += member->prepared;
		TH_ASSERT(!member->planned || member->arrived);
		TH_ASSERT(!member->prepared || member->planned);
		TH_ASSERT(!member->told || op->state == OP_DONE);
		if (op->state == OP_DONE && member->arrived && group->members[i] != NULL)
			TH_ASSERT(member->told || group->members[i]->closed);
	}
	TH_ASSERT(arrived == op->num_arrived && prepared == op->num_prepared);
	if (op->state == OP_RUNNING) {
		TH_ASSERT(prepared == group->num_shards || op->adopted);
		TH_ASSERT(group->copy != NULL);
		TH_ASSERT(group->copy->state == COPY_PARTIAL && !group->copy->aborting);
		TH_ASSERT(group->state != GROUP_BROKEN);
	}
	if (op->state == OP_GATHER)
		TH_ASSERT(op_drains_old(op) == (group->copy != NULL && group->copy->draining));
	if (op->state == OP_DRAINING)
		TH_ASSERT(group->copy != NULL && group->copy->draining);
	if (op->state == OP_OFFLOADING)
		TH_ASSERT(group->copy != NULL && !group->copy->draining && !op_planned(op));
	if (op->state == OP_DONE)
		TH_ASSERT(op->code <= 0 && (op->code == 0) == (op->text[0] == '\0'));
}

static void
check_group(const struct refsrv *server, const struct group *group)
{
	const struct op *op, *last = group->ops == NULL ? NULL : group->ops->prev;
	uint32_t members = 0;

	for (uint32_t i = 0; i < group->num_shards; i++) {
		const struct member *member = group->members[i];
		if (member == NULL)
			continue;
		members++;
		TH_ASSERT(member->group == group && member->shard == i);
		TH_ASSERT(!member->closed || group->state == GROUP_BROKEN);
		TH_ASSERT((member->rejoin == NULL) || group->rejoining || member->closed ||
			  group->state == GROUP_BROKEN);
	}
	TH_ASSERT(members > 0 || group->state == GROUP_BROKEN);
	TH_ASSERT(group->state != GROUP_LIVE || members == group->num_shards);
	TH_ASSERT(!group->rejoining || (group->state == GROUP_FORMING && group->copy == NULL));
	DL_FOREACH(group->ops, op)
	{
		TH_ASSERT(op->group == group);
		TH_ASSERT(op == last || op->next->seq > op->seq);
		/* One undecided operation, the last (I4). */
		TH_ASSERT(op == last || op->state == OP_DONE);
		check_op(group, op);
	}
	op = group->automatic;
	if (op != NULL) {
		TH_ASSERT(op->group == group && ctl_op_automatic(op->seq));
		TH_ASSERT(op->kind == CTL_OP_UPDATE && op->num_arrived == group->num_shards);
		/* It is open alone: what members call ends it, or waits at their agents. */
		TH_ASSERT(op->state == OP_DONE || last == NULL || last->state == OP_DONE);
		check_op(group, op);
	}
	op = group_open_op(group);
	TH_ASSERT(op == NULL || group->state != GROUP_BROKEN || op->state == OP_ABORTING);
	if (group->copy != NULL && group->copy->draining && group->state != GROUP_BROKEN)
		TH_ASSERT(op != NULL &&
			  ((op->state == OP_GATHER && op_drains_old(op)) ||
				  op->state == OP_DRAINING || op->state == OP_ABORTING));
	(void)server;
}

static void
check_timers(const struct refsrv *server)
{
	for (uint32_t place = 1; place <= server->num_timers; place++) {
		const struct timer *timer = server->timers[place - 1];
		/* At once: an operation without time, looked at once already. */
		TH_ASSERT(timer->place == place && timer->at_ns >= server->now_ns);
		TH_ASSERT(place == 1 || timer->at_ns >= server->timers[place / 2 - 1]->at_ns);
	}
}

/* Who has something to do is on the list of those who are looked at. */
static void
check_lists(const struct model *model)
{
	const struct group *group;
	uint32_t busy = 0, listed = 0, rejoining = 0, unbuilt = 0, following = 0;

	TH_ASSERT(!model->dirty && model->changed == (model->timer.place != 0));
	DL_FOREACH(model->groups, group)
	{
		const struct op *op = group_open_op(group);
		const struct group *same = group_first(model, group->replica);
		while (same != NULL && same != group)
			same = same->same_next;
		TH_ASSERT(same == group);
		TH_ASSERT((group->broken_why != NULL) == (group->state == GROUP_BROKEN));
		TH_ASSERT(group->busy ||
			  ((op == NULL || op_goes_on(op)) && group->state != GROUP_BROKEN &&
				  group->num_closing == 0));
		TH_ASSERT(op == NULL || op->deadline_ns == INT64_MAX || op->timer.place != 0 ||
			  op->state == OP_RUNNING || op->state == OP_ABORTING);
		busy += group->busy;
		TH_ASSERT(!group->unbuilt || group->rejoining);
		TH_ASSERT(group->unbuilt == (group->awaited != NULL));
		rejoining += group->rejoining;
		unbuilt += group->unbuilt;
		following += group->follow.follows;
		TH_ASSERT(!group->follow.follows || group->state == GROUP_LIVE);
	}
	DL_FOREACH2(model->busy, group, busy_next)
	{
		TH_ASSERT(group->busy);
		listed++;
	}
	TH_ASSERT(busy == listed);
	TH_ASSERT(rejoining == model->num_rejoining && unbuilt == model->num_unbuilt);
	TH_ASSERT(following == model->num_following);
}

static void
check_agent(const struct agent *agent)
{
	const struct queued_event *queued;
	const struct member *member;
	uint64_t events = 0, number = agent->acked_event_no;
	uint32_t members = 0;

	DL_FOREACH(agent->events, queued)
	{
		events++;
		TH_ASSERT(queued->event.number == number + 1);
		number++;
	}
	TH_ASSERT(events == agent->num_events && number == agent->last_event_no);
	TH_ASSERT(!agent->overflowed || agent->timer.place != 0);
	DL_FOREACH2(agent->members, member, agent_next)
	{
		members++;
		TH_ASSERT(member->agent == agent);
	}
	TH_ASSERT(members == agent->num_members);
	if (agent->state == AGENT_DEAD)
		TH_ASSERT(members == 0 && agent->legs_in == 0 && agent->legs_out == 0 &&
			  events == 0 && !agent->polling);
	TH_ASSERT(agent->num_remembered <= REMEMBERED_MAX);
}

/* By each of its names; and its time will come, or it is dead. */
static void
check_agent_found(const struct refsrv *server, const struct agent *agent)
{
	const struct agent *found = NULL;

	TH_ASSERT(agent->server == server && !agent->ready);
	HASH_FIND(hh_node, server->nodes, agent->info.node, strlen(agent->info.node), found);
	TH_ASSERT(found == agent);
	if (agent->polling) {
		HASH_FIND(hh_poll, server->polls, &agent->poll_token, sizeof(agent->poll_token),
			found);
		TH_ASSERT(found == agent && agent->num_events == 0);
	}
	if (agent->connection != 0) {
		HASH_FIND(hh_connection, server->connections, &agent->connection,
			sizeof(agent->connection), found);
		TH_ASSERT(found != NULL && found->connection == agent->connection);
	}
	TH_ASSERT((agent->state == AGENT_DEAD) == (agent->timer.place == 0));
}

/*
 * A leg that this very step has granted: both ends are heard of. Not looked at: one whose
 * connection has ended in this step, which may have come later; and one that a former life granted.
 */
static void
check_grant(const struct refsrv *server, const struct leg *leg)
{
	const struct agent *ends[] = {leg->reader->agent, NULL};

	if (leg->granted_ns != server->now_ns || leg->src == NULL || !epoch_is_own(server, leg->id))
		return;
	ends[1] = leg->src->member->agent;
	for (size_t i = 0; i < TH_ARRAY_LEN(ends); i++)
		TH_ASSERT(ends[i]->state == AGENT_ACTIVE ||
			  (ends[i]->gone && ends[i]->gone_live_ns == server->live_ns));
}

static void
check_agents(const struct refsrv *server)
{
	const struct agent *agent;
	const struct leg *leg;
	uint64_t in = 0, out = 0, far = 0, legs_in = 0, legs_out = 0, legs_far = 0;
	uint64_t living = 0, members = 0;
	uint64_t suspect = 0, polling = 0, connected = 0, dead = 0, events = 0;

	for (agent = server->agents; agent != NULL; agent = agent->hh.next) {
		check_agent(agent);
		in += agent->legs_in;
		out += agent->legs_out;
		far += agent->legs_far;
		members += agent->num_members;
		living += agent->state != AGENT_DEAD;
		suspect += agent->state == AGENT_SUSPECT;
		polling += agent->polling;
		events += agent->overflowed ? 0 : agent->num_events;
		connected += agent->connection != 0;
		check_agent_found(server, agent);
	}
	DL_COUNT2(server->dead, agent, dead, dead_next);
	TH_ASSERT(HASH_CNT(hh_node, server->nodes) == HASH_COUNT(server->agents));
	TH_ASSERT(HASH_CNT(hh_poll, server->polls) == polling && server->ready == NULL);
	TH_ASSERT(HASH_CNT(hh_connection, server->connections) == connected);
	TH_ASSERT(suspect == server->num_suspect && events == server->num_events);
	TH_ASSERT(dead + living == HASH_COUNT(server->agents));
	for (leg = server->legs; leg != NULL; leg = leg->hh.next) {
		legs_in++;
		check_grant(server, leg);
		legs_out += leg->src != NULL;
		legs_far += leg->src != NULL && leg->src->member->agent != leg->reader->agent;
	}
	TH_ASSERT(in == legs_in && out == legs_out && far == legs_far);
	TH_ASSERT(living == server->num_living && members == HASH_COUNT(server->members));
	TH_ASSERT(living <= server->config.agents_max);
	TH_ASSERT(members <= server->config.members_max);
}

static void
check_blobs(const struct refsrv *server)
{
	const struct blob *blob;
	const struct agent *agent;
	const struct upload *upload;
	uint64_t bytes = 0;

	for (blob = server->blobs; blob != NULL; blob = blob->hh.next)
		bytes += blob->bytes;
	for (agent = server->agents; agent != NULL; agent = agent->hh.next) {
		DL_FOREACH(agent->uploads, upload)
		{
			bytes += upload->total_bytes;
		}
	}
	TH_ASSERT(bytes == server->blob_bytes && bytes <= server->config.blob_bytes_max);
}

static void
check_snapshots(const struct refsrv *server)
{
	const struct snapshot *snapshot;
	const struct model *model;
	const struct group *group;
	const struct op *op;
	uint64_t bytes = 0, references = 0, held = 0;

	for (snapshot = server->snapshots; snapshot != NULL; snapshot = snapshot->hh.next) {
		bytes += snapshot->bytes;
		references += snapshot->references;
		/* What one part holds is kept for a group only. */
		TH_ASSERT(snapshot->references > 0 || !snapshot->whole);
	}
	for (model = server->models; model != NULL; model = model->hh.next) {
		DL_FOREACH(model->groups, group)
		{
			DL_FOREACH(group->ops, op)
			{
				held += op->snapshot != NULL;
			}
		}
	}
	TH_ASSERT(references == held && bytes == server->snapshot_bytes);
	TH_ASSERT(bytes <= server->config.snapshot_bytes_max);
}

static bool
for_a_place(const struct offload *offload)
{
	return offload->why == OFFLOAD_FETCH || offload->why == OFFLOAD_BORROW;
}

/*
 * One offload copy of a version at a time, but when a complete one is on nodes that are drained or
 * do not answer, or one comes back while another is made (I13). Of those that are fetched one a
 * host, and one a datacenter that is for all of it.
 */
static void
check_two_offloads(const struct offload *offload, const struct offload *other)
{
	bool fetched = for_a_place(offload);

	if (other->version != offload->version || offload->rejoined || other->rejoined ||
		fetched != for_a_place(other))
		return;
	if (!fetched) {
		TH_ASSERT(offload->state == OFFLOAD_READY && other->why != OFFLOAD_RESCUE);
		return;
	}
	/* Groups that share some of their hosts have a copy each; and a seed may have moved. */
	bool apart = offload->pinned != other->pinned;
	for (uint32_t i = 0; i < offload->num_shards; i++) {
		struct refsrv *server = offload->version->model->server;
		const struct agent *one = agent_find(server, offload->shards[i].agent_inc);
		const struct agent *two = agent_find(server, other->shards[i].agent_inc);
		apart = apart || one == NULL || two == NULL || one != two;
		if (!offload->pinned && !other->pinned && one != NULL && two != NULL)
			apart = apart && !agent_near(one, two);
	}
	TH_ASSERT(apart);
}

/* And the groups that they are. */
static void
check_offloads(const struct model *model)
{
	const struct offload *offload, *other;
	const struct group *group;

	DL_FOREACH(model->retention.offloads, offload)
	{
		TH_ASSERT(offload->version != NULL && offload->version->model == model);
		TH_ASSERT(offload->num_shards == offload->version->num_shards);
		TH_ASSERT(offload->state == OFFLOAD_RESERVING || offload->group != NULL);
		TH_ASSERT(offload->group == NULL || offload->group->offload == offload);
		for (other = offload->next; other != NULL; other = other->next)
			check_two_offloads(offload, other);
		for (uint32_t i = 0; i < offload->num_shards; i++)
			TH_ASSERT(offload->shards[i].agent_inc != 0 &&
				  (offload->shards[i].sid != 0 || !offload->shards[i].registered));
	}
	DL_FOREACH(model->groups, group)
	{
		uint32_t closing = 0;
		for (uint32_t i = 0; i < group->num_shards; i++) {
			const struct member *member = group->members[i];
			closing += member != NULL && member->closing;
		}
		TH_ASSERT(closing == group->num_closing);
		TH_ASSERT(group->offload == NULL ||
			  (group->offload->group == group && group->reservation != 0));
		/* Nobody keeps what nobody asked for (I16). */
		TH_ASSERT(group->reservation == 0 || group->offload != NULL || group->rejoining ||
			  group->state == GROUP_BROKEN);
		TH_ASSERT(group->reservation == 0 || group->claim == NULL);
	}
}

/* Each has an agent, and what it is lent from, unless the server is still being told. */
static void
check_borrows(const struct refsrv *server, const struct model *model)
{
	const struct borrow *borrow, *other;

	DL_FOREACH(model->retention.borrows, borrow)
	{
		struct refsrv *all = model->server;
		const struct agent *agent = agent_find(all, borrow->agent_inc);
		const struct offload *offload;
		bool serves = server->warming || model->warm_ns != 0;
		TH_ASSERT(agent != NULL && agent->state != AGENT_DEAD && agent->num_borrows > 0);
		for (other = borrow->next; other != NULL; other = other->next)
			TH_ASSERT(other->agent_inc != borrow->agent_inc ||
				  other->shard != borrow->shard ||
				  th_version_compare(other->version, borrow->version) != 0);
		DL_FOREACH(model->retention.offloads, offload)
		{
			serves = serves ||
				 (th_version_compare(offload->version->id, borrow->version) == 0 &&
					 borrow->shard < offload->num_shards &&
					 offload->shards[borrow->shard].agent_inc == agent->inc);
		}
		TH_ASSERT(serves);
	}
}

static uint32_t
check_claims(const struct model *model)
{
	uint32_t count = 0;
	const struct claim *claim, *other;
	const struct group *group;
	const struct rules_told *told = &model->retention.told;

	TH_ASSERT(model->retention.model == model);
	DL_FOREACH(model->retention.claims, claim)
	{
		uint32_t holders = 0;
		count++;
		DL_FOREACH(model->groups, group)
		{
			holders += group->claim == claim;
		}
		/* A claim has a holder, or had one that crashed (I16). */
		TH_ASSERT(holders == claim->num_holders && claim->rules.num_rules > 0);
		TH_ASSERT(claim->num_closing <= claim->num_holders);
		/* Every agent knows it, or will when it has its events. */
		TH_ASSERT(told->all || th_retain_covers(&told->rules, &claim->rules));
		TH_ASSERT(told->all || holders + (claim->grace_ns != INT64_MIN) <= 1 ||
			  th_retain_covers(&told->shared, &claim->rules));
		TH_ASSERT(holders > 0 || claim->grace_ns != INT64_MIN);
		for (other = claim->next; other != NULL; other = other->next)
			TH_ASSERT(!th_retain_equal(&claim->rules, &other->rules));
	}
	TH_ASSERT(count <= RETAIN_CLAIMS_MAX);
	return count;
}

void
refsrv_check(const struct refsrv *server)
{
	const struct model *model;
	const struct group *group;
	const struct version *version;
	const struct copy *copy;
	uint64_t num_legs = 0;
	uint32_t num_claims = 0;

	for (model = server->models; model != NULL; model = model->hh.next) {
		check_lists(model);
		TH_ASSERT(model->groups != NULL || model->versions != NULL ||
			  model->watches != NULL || model->retention.claims != NULL ||
			  model->retention.borrows != NULL);
		num_claims += check_claims(model);
		check_offloads(model);
		check_borrows(server, model);
		DL_FOREACH(model->groups, group)
		{
			check_group(server, group);
		}
		DL_FOREACH(model->versions, version)
		{
			TH_ASSERT(version->copies != NULL);
			TH_ASSERT(version->next == NULL ||
				  th_version_compare(version->id, version->next->id) < 0);
			check_copies(version);
			DL_FOREACH(version->copies, copy)
			{
				TH_ASSERT(copy->version == version);
				check_copy(server, copy, &num_legs);
			}
		}
	}
	TH_ASSERT(num_legs == HASH_COUNT(server->legs));
	TH_ASSERT(num_claims == server->num_claims);
	TH_ASSERT(server->dirty == NULL && server->changed == NULL);
	standby_check(server);
	check_timers(server);
	check_agents(server);
	check_blobs(server);
	check_snapshots(server);
}
