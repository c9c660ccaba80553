/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_time - I14, I15, I16 and I8 at the end: calls return, everything moves once the faults have
 * ended, and nothing is left when all have closed.
 */
#include <inttypes.h>

#include "tests/sim/check.h"

/* What was disturbed may take this long to find its way again. */
#define RECOVERY_NS (25 * SEC)
#define HOST_RECOVERY_NS (12 * SEC)
#define SERVER_RECOVERY_NS (40 * SEC) /* groups that form again */
/* It takes so much longer where a server gives the cluster back first. */
#define RETURN_NS (15 * SEC)

int64_t
check_recovery_ns(void)
{
	return RECOVERY_NS + (peer_count() > 0 ? RETURN_NS : 0);
}

static bool
undisturbed(const struct worker *worker)
{
	return world.calm && worker->call.submitted_ns > world.calm_ns + check_recovery_ns();
}

void
check_late(const struct worker *worker)
{
	if (undisturbed(worker))
		sim_fail("I14",
			"group %u shard %u: call %u of %" PRId64 " ms has no outcome in time",
			worker->group->index, worker->shard, worker->call.kind,
			worker->call.timeout_ns / MS);
}

/* Bytes move into a member's memory, or have begun to: that ends as soon as it can. */
static bool
has_begun(const struct worker *worker)
{
	return th_version_none(worker->line.held) && worker->handle != NULL &&
	       worker->handle->part.there;
}

/* It has its agent, and that a server, and it has been so for a while before this time. */
static bool
undisturbed_since(const struct host *host, int64_t since_ns)
{
	const struct srv *srv = &world.servers[host->server];

	return !host->leaving && host->process.alive && !host->process.paused &&
	       srv->process.alive && !srv->process.paused && host->attached &&
	       host->server_inc == srv->inc && host->dialed_ns + SERVER_RECOVERY_NS <= since_ns &&
	       host->process.changed_ns + HOST_RECOVERY_NS <= since_ns &&
	       srv->process.changed_ns + SERVER_RECOVERY_NS <= since_ns &&
	       net_whole_since(host, srv) + HOST_RECOVERY_NS <= since_ns;
}

/*
 * Whatever befalls the others: who has an agent, and that a server, for as long as the call takes,
 * has the answer when the time is over. Of a group the agents of all are between: the server waits
 * for one that says nothing until it takes it for dead. Apart: what others of the operation said
 * may be another call of theirs, with more time.
 */
void
check_deadline(const struct worker *worker)
{
	const struct call *call = &worker->call;
	bool moves = call->kind == CTL_OP_REPLICATE || call->kind == CTL_OP_UPDATE;

	if (world.options.loss_permille > 0 || world.options.slow_permille > 0 ||
		worker->handle == NULL || worker->group->apart)
		return;
	for (uint32_t i = 0; i < worker->group->shards; i++) {
		const struct worker *member = &worker->group->workers[i];
		if (member->host->server != worker->host->server ||
			!undisturbed_since(member->host, call->submitted_ns) ||
			((moves || member->following) && has_begun(member)))
			return;
	}
	sim_fail("I14",
		"group %u shard %u: call %u of %" PRId64
		" ms has no answer, and nothing is between its agent and the server",
		worker->group->index, worker->shard, call->kind, call->timeout_ns / MS);
}

/*
 * A node that is called empty may be switched off: what must stay is elsewhere. The server speaks
 * of what it knows: of an agent that is attached to it. Legs are not looked at: one that the server
 * has given up may run on until its ends have heard of it.
 */
void
check_empty(const struct srv *srv, const struct host *host)
{
	if (!host->process.alive || !host->attached || host->server_inc != srv->inc)
		return;
	check_retain_without(host);
}

void
check_alive(void)
{
	for (uint32_t i = 0; i < world.options.groups; i++) {
		const struct group *group = &world.groups[i];
		/* Another layout than the trainers' fails for good; a version may have no
		 * predecessor. */
		if (group->layout != 0 || group->behind > 0)
			continue;
		if (group->successes == group->successes_before)
			sim_fail("I15", "group %u has done nothing since the faults have ended", i);
	}
}

bool
check_remains(void)
{
	for (uint32_t i = 0; i < world.options.hosts; i++) {
		if (world.hosts[i].handles != NULL)
			return true;
	}
	for (uint32_t i = 0; i < world.options.groups; i++) {
		for (uint32_t k = 0; k < world.groups[i].shards; k++) {
			if (world.groups[i].workers[k].state != W_OFF)
				return true;
		}
	}
	return mover_running() > 0;
}

void
check_end(void)
{
	struct agent_session_info info;

	for (uint32_t i = 0; i < world.options.groups; i++) {
		for (uint32_t k = 0; k < world.groups[i].shards; k++) {
			const struct worker *worker = &world.groups[i].workers[k];
			if (worker->state != W_OFF)
				sim_fail("I16", "group %u shard %u does not end: state %d", i, k,
					(int)worker->state);
		}
	}
	for (uint32_t i = 0; i < world.options.hosts; i++) {
		if (agent_core_session_at(world.hosts[i].core, 0, &info))
			sim_fail("I16", "host %u still has a session of %s", i, info.replica);
	}
	if (mover_running() > 0)
		sim_fail("I16", "%u legs are left", mover_running());
	for (uint32_t i = 0; i < world.options.servers; i++) {
		struct srv *srv = &world.servers[i];
		const struct ctl_inspection *left =
			refsrv_inspect(srv->core, process_now(&srv->process));
		if (left->num_members > 0)
			sim_fail("I16",
				"server %u still has %u members, the first %s shard %u (%s, %s) of "
				"node %s",
				i, left->num_members, left->members[0].replica,
				left->members[0].shard, left->members[0].state,
				left->members[0].copy, left->members[0].node);
		if (left->num_transfers > 0)
			sim_fail("I8", "server %u still has %u legs", i, left->num_transfers);
	}
	for (const struct memory *memory = world.memories; memory != NULL; memory = memory->next) {
		if (memory->mapped > 0)
			sim_fail("I16", "a memory is still mapped");
	}
}
