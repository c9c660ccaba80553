/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_risk - THC_EV_AT_RISK: whose rules name a version is told when its last copy is lost, and
 * nobody is told where nothing can be.
 *
 * What is lost check_retain says, which looks at memories. Told is who is there all the time from
 * the crash until a server must have missed what died, if nothing newer has taken the version's
 * place in its rules by then. A server that has come since knows nothing of what is lost; nor does
 * one that has come before, when who died had not attached to it and said what it has.
 *
 * Where servers fail, members of one group may be told different things and call differently: it
 * breaks, and what it held is lost if there is no room for it. Others may hear of that loss before
 * its members hear that they are broken, so it is judged at the end who was told for nothing.
 */
#include <inttypes.h>
#include <string.h>

#include "tests/sim/check.h"

#define TOLD_NS (3 * SEC) /* since all agents are there, those that have died as new ones */
#define SAID_NS SEC       /* what agents hold the server knows so long after they attached */
#define LOSSES_MAX 64u

static struct {
	struct loss {
		bool open;
		uint32_t model;
		struct th_version id;
		int64_t at_ns;
		uint64_t server_inc;
		uint64_t lives[GROUPS_MAX][SHARDS_MAX]; /* of those who are to be told */
		uint16_t before[GROUPS_MAX][SHARDS_MAX];
	} losses[LOSSES_MAX];
	uint32_t next;
	int64_t moved_ns;          /* an agent has attached, or lost its server */
	bool broken;               /* some group */
	const struct worker *told; /* the first, where a server may have failed */
	int64_t told_ns;
} record;

void
check_risk_start(void)
{
	memset(&record, 0, sizeof(record));
}

void
check_risk_moves(void)
{
	record.moved_ns = world.now_ns;
}

/* All agents had told the server what they have, also those that have died. */
static bool
server_knew(void)
{
	for (uint32_t i = 0; i < world.options.hosts; i++) {
		const struct host *host = &world.hosts[i];
		if (!host->attached || host->server_inc != world.servers[0].inc)
			return false;
	}
	return world.now_ns >= record.moved_ns + SAID_NS;
}

void
check_risk_lost(uint32_t model, struct th_version id)
{
	struct loss *loss = &record.losses[record.next++ % LOSSES_MAX];

	TRACE("version # of model # is lost", id.version, model);
	*loss = (struct loss){.open = server_knew(),
		.model = model,
		.id = id,
		.at_ns = world.now_ns,
		.server_inc = world.servers[0].inc};
	for (uint32_t i = 0; i < world.options.groups; i++) {
		for (uint32_t k = 0; k < world.groups[i].shards; k++) {
			const struct worker *worker = &world.groups[i].workers[k];
			loss->lives[i][k] = worker->life;
			loss->before[i][k] = worker->line.at_risk;
		}
	}
}

static void
are_told(const struct loss *loss, const struct group *group)
{
	for (uint32_t k = 0; k < group->shards; k++) {
		const struct worker *worker = &group->workers[k];
		if (worker->life != loss->lives[group->index][k] ||
			worker->line.at_risk < loss->before[group->index][k])
			return;
	}
	for (uint32_t k = 0; k < group->shards; k++) {
		if (group->workers[k].line.at_risk == loss->before[group->index][k])
			sim_fail("risk",
				"version %" PRIu64 " of model %u was lost, and group %u shard %u, "
				"which retains \"%s\", was not told",
				loss->id.version, loss->model, group->index, k, group->retain);
	}
}

/* Which of them have died the server knows at the latest when they come again. */
static int64_t
all_there_since(void)
{
	int64_t ns = 0;

	for (uint32_t i = 0; i < world.options.hosts; i++) {
		const struct host *host = &world.hosts[i];
		if (!host->process.alive || !host->attached)
			return world.now_ns;
		ns = th_max_i64(ns, host->process.changed_ns);
	}
	return ns;
}

void
check_risk(void)
{
	for (uint32_t i = 0; i < LOSSES_MAX; i++) {
		struct loss *loss = &record.losses[i];
		if (!loss->open)
			continue;
		/* Published again, or to be told by one who never knew it. */
		loss->open = !check_retain_there(loss->model, loss->id) &&
			     world.servers[0].inc == loss->server_inc;
		if (!loss->open ||
			world.now_ns < th_max_i64(loss->at_ns, all_there_since()) + TOLD_NS)
			continue;
		loss->open = false;
		for (uint32_t k = 0; k < world.options.groups; k++) {
			const struct group *group = &world.groups[k];
			if (check_retain_named(group, loss->model, loss->id))
				are_told(loss, group);
		}
	}
}

/* An agent has told its worker something of its session. */
void
check_risk_line(const struct worker *worker, const struct agent_line *line)
{
	record.broken = record.broken || line->broken != 0;
	if (line->at_risk == worker->line.at_risk || record.told != NULL)
		return;
	record.told = worker;
	record.told_ns = world.now_ns;
	if (world.options.server_restart_ns == 0)
		check_risk_end();
}

void
check_risk_end(void)
{
	if (record.told != NULL && !record.broken && check_retain_nothing_is_lost())
		sim_fail("risk",
			"group %u shard %u was told of a risk at %.6f s, and nothing has failed",
			record.told->group->index, record.told->shard,
			(double)record.told_ns / SEC);
}
