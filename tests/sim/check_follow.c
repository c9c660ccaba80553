/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_follow - I23: groups that take versions by themselves.
 *
 * What they take was said go for, to any server. While a worker that follows is told that it holds
 * a version, its memory has the bytes of that one, whether it calls or not. And the mark of a go
 * does not fall as long as an agent is there that was told of it, whatever becomes of servers: that
 * is asked of the answers that an operator gets.
 *
 * Its own record of what was said is all that this goes by. What an agent was told is certain where
 * no message is lost or late; that a version is taken at all, where nothing goes wrong.
 */
#include <inttypes.h>
#include <string.h>

#include "tests/sim/check.h"

#define TOLD_NS (SEC / 2)   /* an event has arrived, and a REJOIN, where nothing is lost */
#define TAKEN_NS (15 * SEC) /* a version that is there is taken within */

static struct {
	bool certain, free; /* nothing is lost on the way; nothing holds a version back */
	struct th_version said[MODELS_MAX]; /* the highest, by any server */
	struct {
		uint64_t inc;
		int64_t ns;
		struct th_version mark;
	} last[MODELS_MAX]; /* by the last one that was asked, since then at the latest */
	struct {
		uint64_t life, server_inc;
		int64_t follows_ns, attached_ns;
		struct th_version told;
	} workers[GROUPS_MAX][SHARDS_MAX];
} record;

void
check_follow_start(void)
{
	const struct options *o = &world.options;

	memset(&record, 0, sizeof(record));
	record.certain = o->loss_permille == 0 && o->slow_permille == 0 && o->host_pause_ns == 0 &&
			 o->server_pause_ns == 0 && o->cut_ns == 0 && o->slow_link_ns == 0 &&
			 o->pipe_drop_ns == 0 && o->peer_cut_ns == 0 && o->reset_percent == 0 &&
			 o->clock_skew_permille == 0;
	record.free = o->retain_percent == 0 && o->prefetch_percent == 0 && o->seed_percent == 0 &&
		      o->tickets_max == 0;
	for (uint32_t i = 0; i < MODELS_MAX; i++)
		record.said[i].version = record.last[i].mark.version = TH_NO_VERSION;
}

static bool
above(struct th_version a, struct th_version b)
{
	return !th_version_none(a) && (th_version_none(b) || th_version_compare(a, b) > 0);
}

static bool
lives(const struct worker *worker)
{
	return (worker->state == W_IDLE || worker->state == W_BUSY) && worker->handle != NULL &&
	       worker->line.broken == 0 && worker->line.evicted == 0;
}

/* ---- go -------------------------------------------------------------------------------------- */

void
check_follow_said(const struct srv *srv, uint32_t model, struct th_version mark)
{
	for (uint32_t i = 0; record.certain && i < world.options.groups; i++) {
		for (uint32_t k = 0; k < world.groups[i].shards; k++) {
			const struct worker *worker = &world.groups[i].workers[k];
			if (worker->group->model != model || !worker->following || !lives(worker) ||
				record.workers[i][k].life != worker->life ||
				record.workers[i][k].server_inc != srv->inc ||
				world.now_ns < record.workers[i][k].attached_ns + TOLD_NS ||
				!above(record.workers[i][k].told, mark))
				continue;
			sim_fail("I23",
				"go is at version %" PRIu64 ", and group %u shard %u was told of "
				"version %" PRIu64,
				mark.version, i, k, record.workers[i][k].told.version);
		}
	}
	if (above(mark, record.said[model]))
		record.said[model] = mark;
	if (record.last[model].inc == srv->inc &&
		th_version_compare(record.last[model].mark, mark) == 0)
		return;
	record.last[model].inc = srv->inc;
	record.last[model].ns = world.now_ns;
	record.last[model].mark = mark;
}

/* What its agent has heard by now, of the server that it is attached to. */
static void
hears(const struct worker *worker)
{
	const struct host *host = worker->host;
	uint32_t i = worker->group->index, k = worker->shard, model = worker->group->model;

	if (!worker->following || record.workers[i][k].life != worker->life) {
		record.workers[i][k].life = worker->life;
		record.workers[i][k].follows_ns = world.now_ns;
		record.workers[i][k].told.version = TH_NO_VERSION;
	}
	if (!host->attached || record.workers[i][k].server_inc != host->server_inc) {
		record.workers[i][k].server_inc = host->attached ? host->server_inc : 0;
		record.workers[i][k].attached_ns = world.now_ns;
	}
	int64_t since_ns = th_max_i64(record.last[model].ns,
		th_max_i64(record.workers[i][k].follows_ns, record.workers[i][k].attached_ns));
	if (worker->following && lives(worker) && host->attached &&
		record.last[model].inc == host->server_inc && world.now_ns > since_ns + TOLD_NS &&
		above(record.last[model].mark, record.workers[i][k].told))
		record.workers[i][k].told = record.last[model].mark;
}

/* ---- what is taken --------------------------------------------------------------------------- */

void
check_follow_line(const struct worker *worker, const struct agent_line *line)
{
	if (line->updated == worker->line.updated || th_version_none(line->held))
		return;
	TH_MARK(follower_has_followed);
	if (above(line->held, record.said[worker->group->model]))
		sim_fail("I23",
			"group %u shard %u was brought version %" PRIu64
			" by itself, and go was said up to %" PRId64,
			worker->group->index, worker->shard, line->held.version,
			(int64_t)record.said[worker->group->model].version);
	check_bytes(worker, line->held);
}

/* Its members have followed for a while, and have nothing to do with this layout or place. */
static bool
should_take(const struct group *group)
{
	for (uint32_t k = 0; k < group->shards; k++) {
		const struct worker *worker = &group->workers[k];
		if (!worker->following || !lives(worker) || worker->host->leaving ||
			record.workers[group->index][k].life != worker->life ||
			world.now_ns < record.workers[group->index][k].follows_ns + TAKEN_NS)
			return false;
	}
	return group->layout == 0 && (world.calm || world.options.drain_ns == 0);
}

static void
is_taken(const struct group *group)
{
	uint32_t model = group->model;
	struct th_version held = group->workers[0].line.held, id;
	int64_t since_ns;

	if (record.last[model].inc != group->workers[0].host->server_inc ||
		world.now_ns < record.last[model].ns + TAKEN_NS || !should_take(group))
		return;
	for (uint32_t i = 0; i < world.options.groups; i++) {
		const struct group *other = &world.groups[i];
		if (other->model != model || other->shards != group->shards || other->layout != 0 ||
			!check_list_keeps(other, &id, &since_ns) ||
			world.now_ns < since_ns + TAKEN_NS || !above(id, held) ||
			above(id, record.last[model].mark) ||
			/* A stage of its own switch. */
			th_version_none(held))
			continue;
		sim_fail("I23",
			"group %u follows and holds version %" PRIu64 ", go was said for %" PRIu64
			", and group %u has version %" PRIu64,
			group->index, held.version, record.last[model].mark.version, i, id.version);
	}
}

void
check_follow(void)
{
	for (uint32_t i = 0; i < world.options.groups; i++) {
		for (uint32_t k = 0; k < world.groups[i].shards; k++) {
			const struct worker *worker = &world.groups[i].workers[k];
			hears(worker);
			/* Its worker only reads, and calls nothing. */
			if (worker->following && lives(worker) && worker->state == W_IDLE &&
				!th_version_none(worker->line.held))
				check_bytes(worker, worker->line.held);
		}
		if (record.free && check_list_certain())
			is_taken(&world.groups[i]);
	}
}
