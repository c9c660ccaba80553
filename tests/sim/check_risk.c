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
 *
 * Where all is known to the one server each event is judged when it leaves it: a version that a
 * whole group keeps on hosts that stay is not at risk; and nobody hears of one again as long as it
 * has been at risk without a break, as far as memories and rules tell: no host that stays has had
 * all of it, the same group's rules have named it, and nothing has become complete since.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/check.h"

#define TOLD_NS (3 * SEC) /* since all agents are there, those that have died as new ones */
#define SAID_NS SEC       /* what agents hold the server knows so long after they attached */
#define LOSSES_MAX 64u
#define KEPT_NS (200 * MS) /* so old is what a server knows that a group keeps */
#define DONE_NS (3 * SEC)  /* from the last byte until all know that it is complete */
#define TOLD_MAX 64u
#define VERSIONS_MAX 512u

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
	struct told { /* an event; its version has been at risk since */
		bool still;
		uint64_t sid;
		uint32_t model;
		struct th_version id;
		const struct group *group; /* its rules name it */
		int64_t ns;
	} events[TOLD_MAX];
	uint32_t next_event;
	uint64_t last_number[HOSTS_MAX], agent_inc[HOSTS_MAX];
	int64_t done_ns[MODELS_MAX][VERSIONS_MAX]; /* somebody has, or may have, become complete */
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

/* ---- events ---------------------------------------------------------------------------------- */

/* In other worlds it is not known which version of a number is meant, or who is being drained. */
static bool
is_judged(void)
{
	return world.options.lineage_percent == 0 && world.options.drain_ns == 0;
}

void
check_risk_done(uint32_t model, struct th_version id)
{
	if (!th_version_none(id) && id.version < VERSIONS_MAX)
		record.done_ns[model][id.version] = world.now_ns;
}

void
check_risk_filled(const struct leg *leg)
{
	for (uint32_t m = 0; is_judged() && m < world.options.models; m++) {
		for (uint32_t v = 0; v < VERSIONS_MAX && v <= world.last_version[m]; v++) {
			for (uint32_t k = 0; k < world.options.shards; k++) {
				const struct content content = {
					.model = m, .shard = k, .version = v};
				if (memory_compare(leg->to->memory, &content) == UINT32_MAX)
					record.done_ns[m][v] = world.now_ns;
			}
		}
	}
}

/* Or it asks for something newer, and there is nothing. */
static bool
has_it(const struct worker *worker, struct th_version id)
{
	bool updates = worker->state == W_BUSY && worker->call.kind == CTL_OP_UPDATE &&
		       strcmp(worker->call.spec, "latest") == 0 &&
		       check_retain_is_top(worker->group->model, id);

	return worker->handle != NULL && worker->host->process.alive && !worker->host->spot &&
	       worker->line.broken == 0 && worker->line.evicted == 0 &&
	       th_version_compare(worker->line.held, id) == 0 &&
	       (updates || worker->state == W_IDLE ||
		       (worker->state == W_BUSY && worker->call.kind == CTL_OP_LIST));
}

/* All of a group that stays has it, and none of it is being given up, for a while. */
static const struct group *
keeper(uint32_t model, struct th_version id)
{
	for (uint32_t i = 0; i < world.options.groups; i++) {
		const struct group *group = &world.groups[i];
		struct th_version kept;
		int64_t since_ns;
		bool keeps = check_list_keeps(group, &kept, &since_ns);
		/* What a trainer says may be another content, until its bytes are known. */
		bool stays = group->model == model && world.now_ns > since_ns + KEPT_NS &&
			     (keeps || group->role != ROLE_TRAINER);
		for (uint32_t k = 0; stays && k < group->shards; k++)
			stays = has_it(&group->workers[k], id);
		if (stays)
			return group;
	}
	return NULL;
}

static const struct group *
namer(uint32_t model, struct th_version id)
{
	for (uint32_t i = 0; i < world.options.groups; i++) {
		if (check_retain_named(&world.groups[i], model, id))
			return &world.groups[i];
	}
	return NULL;
}

static void
is_told(const struct host *host, const struct ctl_event *event)
{
	const struct ctl_ev_broken *ev = &event->u.at_risk;
	struct told told = {.sid = ev->sid, .ns = world.now_ns};
	const struct group *group;

	if (sscanf(ev->text, "version %" SCNu64 " of model%u ", &told.id.version, &told.model) !=
			2 ||
		told.model >= MODELS_MAX || told.id.version >= VERSIONS_MAX)
		sim_fail("risk", "a risk of no version: %s", ev->text);
	group = keeper(told.model, told.id);
	if (group != NULL)
		sim_fail("risk", "group %u has it on hosts that stay, and host %u is told: %s",
			group->index, host->process.index, ev->text);
	for (uint32_t i = 0; i < TOLD_MAX; i++) {
		const struct told *old = &record.events[i];
		if (old->still && old->sid == told.sid && old->model == told.model &&
			th_version_compare(old->id, told.id) == 0 &&
			record.done_ns[told.model][told.id.version] + DONE_NS < old->ns)
			sim_fail("risk", "session %" PRIu64 " was told at %.6f s, and again: %s",
				told.sid, (double)old->ns / SEC, ev->text);
	}
	told.group = namer(told.model, told.id);
	told.still = told.group != NULL && !check_retain_there(told.model, told.id);
	if (told.still)
		record.events[record.next_event++ % TOLD_MAX] = told;
}

/* A server's answer to a POLL. */
void
check_risk_event(const struct host *host, const struct ctl_event *event)
{
	uint32_t index = host->process.index;

	if (record.agent_inc[index] != host->inc)
		record.last_number[index] = 0;
	record.agent_inc[index] = host->inc;
	/* A copy that was to be given up stays. */
	if (event->kind == CTL_EV_UNDRAIN)
		memset(record.events, 0, sizeof(record.events));
	if (event->kind == CTL_EV_AT_RISK && event->number > record.last_number[index] &&
		is_judged() && check_list_certain())
		is_told(host, event);
	record.last_number[index] = th_max_u64(record.last_number[index], event->number);
}

/* After every event of the clock. */
void
check_risk_stands(void)
{
	for (uint32_t i = 0; i < TOLD_MAX; i++) {
		struct told *told = &record.events[i];
		if (told->still)
			told->still = check_retain_named(told->group, told->model, told->id) &&
				      !check_retain_there(told->model, told->id);
	}
}
