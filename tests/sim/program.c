/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program - what groups do: the same steps for all members (SPMD), each at its own pace.
 *
 * The member that comes first to a step draws it from what it holds; the others do the same, unless
 * they diverge. A launcher starts a group when all its processes have ended, and ends the rest of
 * one that has lost some.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/check.h"
#include "tests/sim/sim.h"

#define LAUNCHER_NS (250 * MS)
#define ORPHAN_NS (5 * SEC) /* members without the others are ended after this */
#define CLOSE 0u            /* kind of a step */
#define FORCE 1u            /* THC_FORCE */

struct content
program_content(
	const struct group *group, uint32_t shard, struct th_version version, uint32_t variant)
{
	return (struct content){
		.model = group->model,
		.shard = shard,
		.lineage = version.lineage,
		.version = version.version,
		.variant = variant,
	};
}

/* ---- steps ----------------------------------------------------------------------------------- */

static int64_t
draw_timeout(void)
{
	uint64_t draw = chance(RNG_WORK, 100);

	if (world.calm)
		return between(RNG_WORK, 4 * SEC, 8 * SEC);
	if (draw < world.options.forever_percent)
		return TH_FOREVER;
	if (draw >= 95)
		return 0;
	return between(RNG_WORK, 200 * MS, 8 * SEC);
}

static void
draw_publish(struct group *group, struct step *step)
{
	uint64_t *last = &world.last_version[group->model], state;

	step->kind = CTL_OP_PUBLISH;
	if (!group->follows || *last == 0 || percent(RNG_WORK, 10))
		++*last;
	step->version = *last;
	/* By the version: members that lag behind mean the same bytes by it. */
	state = world.seed ^ step->version << 8 ^ group->index << 4 ^ group->incarnation << 40;
	if (th_splitmix64(&state) % 100 < world.options.other_bytes_percent)
		step->variant = 1;
	snprintf(step->spec, sizeof(step->spec), "%" PRIu64, step->version);
	check_published(group, step->version, step->variant);
}

static void
draw_latest(const struct group *group, struct step *step)
{
	uint64_t last = world.last_version[group->model];

	/* Now and then one is ahead of what its relative name means. */
	if (group->behind > 0 && last > 0 && !world.calm && percent(RNG_WORK, 20))
		snprintf(step->spec, sizeof(step->spec), "%" PRIu64, last);
	else if (group->behind > 0)
		snprintf(step->spec, sizeof(step->spec), "latest-%u", group->behind);
	else if (group->role == ROLE_STANDALONE && last > 0 && !world.calm && percent(RNG_WORK, 40))
		snprintf(step->spec, sizeof(step->spec), "%" PRIu64,
			last - chance(RNG_WORK, th_min_u64(last, 2)));
	else
		strcpy(step->spec, "latest");
}

static void
draw_unpublish(struct step *step)
{
	step->kind = CTL_OP_UNPUBLISH;
	/* Else a last copy that must stay may keep its holder for ever. */
	if (percent(RNG_WORK, world.calm ? 50 : world.options.force_percent))
		step->flags = FORCE;
}

/* Who follows has little to call. */
static void
draw_follower(struct step *step, const struct worker *first, bool holds)
{
	uint64_t luck = chance(RNG_FOLLOW, 100);

	step->kind = CTL_OP_LIST;
	if (!first->following || luck < 5) {
		step->kind = CTL_OP_FOLLOW;
		strcpy(step->spec, first->following ? "" : "latest");
	} else if (luck < 10 && holds) {
		step->kind = CTL_OP_UNPUBLISH;
	} else if (luck < 30) {
		step->kind = CTL_OP_UPDATE;
		strcpy(step->spec, "latest");
	}
}

static void
draw(struct group *group, struct step *step, const struct worker *first)
{
	bool holds = !th_version_none(first->line.held);
	uint64_t luck = chance(RNG_WORK, 100);

	memset(step, 0, sizeof(*step));
	step->drawn_ns = world.now_ns;
	step->timeout_ns = draw_timeout();
	if (luck < 8)
		step->kind = CTL_OP_LIST;
	else if (luck == 8)
		step->kind = CLOSE;
	else if (group->follower)
		draw_follower(step, first, holds);
	else if (group->role == ROLE_TRAINER && !holds)
		draw_publish(group, step);
	else if (group->role == ROLE_TRAINER ||
		 (holds && (group->role == ROLE_STANDALONE || luck < 15)))
		draw_unpublish(step);
	else {
		step->kind = holds ? CTL_OP_UPDATE : CTL_OP_REPLICATE;
		draw_latest(group, step);
	}
	/* What always ends by itself may have no deadline; "look once" is for what may wait. */
	if (step->kind == CTL_OP_UNPUBLISH && step->timeout_ns == 0)
		step->timeout_ns = SEC;
}

void
program_next(struct worker *worker)
{
	struct group *group = worker->group;
	struct call *call = &worker->call;
	struct step *step;

	if (worker->want_close || world.closing || worker->step >= STEPS_MAX) {
		worker_close(worker);
		return;
	}
	while (group->num_steps <= worker->step)
		draw(group, &group->steps[group->num_steps++], worker);
	step = &group->steps[worker->step];
	if (step->kind == CLOSE) {
		worker_close(worker);
		return;
	}
	if (!world.calm && worker->memory->right == MEMORY_OWNER &&
		permille(RNG_WORK, world.options.renew_permille)) {
		worker_unregister(worker);
		return;
	}
	*call = (struct call){
		.kind = step->kind,
		.flags = step->flags,
		.slot = worker->step % 64,
		.step = worker->step,
		.timeout_ns = step->timeout_ns,
		.drawn_ns = step->drawn_ns,
	};
	memcpy(call->spec, step->spec, sizeof(call->spec));
	if (!world.calm && permille(RNG_WORK, world.options.diverge_permille))
		call->kind = CTL_OP_LIST;
	if (call->kind == CTL_OP_PUBLISH) {
		struct content content = program_content(group, worker->shard,
			(struct th_version){.lineage = group->lineage, .version = step->version},
			step->variant);
		if (worker->memory->right != MEMORY_OWNER) {
			/* It holds something that the first of the group does not. */
			worker_close(worker);
			return;
		}
		memory_write(worker->memory, &content);
	}
	worker_submit(worker);
}

/* A version that is taken back before anybody can read it moves nothing. */
static int64_t
draw_think(uint32_t kind)
{
	int64_t think_ns = between(RNG_WORK, 0, world.options.think_ns);

	if (kind != CTL_OP_PUBLISH)
		return think_ns;
	return world.calm ? between(RNG_WORK, 4 * SEC, 6 * SEC)
			  : think_ns + between(RNG_WORK, 0,
					       8 * world.options.chunk_ns * world.options.chunks);
}

int64_t
program_think_ns(uint32_t kind)
{
	int64_t think_ns = draw_think(kind), burst_ns = world.options.burst_ns;

	/* Until the next moment at which all call. */
	if (burst_ns > 0)
		think_ns += burst_ns - (world.now_ns + think_ns) % burst_ns;
	return think_ns;
}

void
program_done(struct worker *worker, int code, struct th_version held)
{
	struct group *group = worker->group;
	bool loyal = world.options.only_servers_fail;

	(void)held;
	/*
	 * Who may not give up what must stay and has no room for it is answered, not stuck; so is
	 * who has no place for what is published.
	 */
	group->successes += code == 0 || code == TH_E_NOMEM_RETAIN || code == TH_E_LAYOUT;
	if (code == TH_E_GROUP_BROKEN || code == TH_E_EVICTED || code == TH_E_GROUP_MISMATCH ||
		code == TH_E_CONTRACT || code == TH_E_VERSION_CONFLICT || code == TH_E_STATE ||
		(code == TH_E_NO_SERVER && !loyal && percent(RNG_WORK, 12)))
		worker->want_close = true;
	/* What has not been done is called again. */
	if (code != TH_E_NO_SERVER || (!loyal && percent(RNG_WORK, 50)))
		worker->step++;
}

/* ---- the launcher ---------------------------------------------------------------------------- */

struct launch {
	struct task task;
	struct worker *worker;
	uint64_t incarnation;
};

static void
start(struct task *task)
{
	struct launch *launch = (struct launch *)task;
	struct worker *worker = launch->worker;

	if (worker->group->incarnation == launch->incarnation && worker->starting)
		worker_start(worker);
}

static void
group_start(struct group *group)
{
	group->incarnation++;
	group->num_steps = 0;
	group->apart = false;
	if (group->launches)
		snprintf(group->launch, sizeof(group->launch), "launch%" PRIu64,
			++world.last_launch);
	/* Training goes on from an older checkpoint: the same numbers mean something new. */
	if (group->role == ROLE_TRAINER && percent(RNG_WORK, world.options.lineage_percent) &&
		!world.calm && world.last_lineage[group->model] + 1 < LINEAGES_MAX) {
		group->lineage = ++world.last_lineage[group->model];
		world.last_version[group->model] /= 2;
	} else if (group->role == ROLE_TRAINER) {
		group->lineage = world.last_lineage[group->model];
	}
	check_group_start(group);
	TRACE("group # starts for the # time", group->index, group->incarnation);
	for (uint32_t i = 0; i < group->shards; i++) {
		struct launch *launch = task_new(sizeof(*launch), start, NULL);
		launch->worker = &group->workers[i];
		launch->worker->starting = true;
		launch->incarnation = group->incarnation;
		task_in(&launch->task, between(RNG_WORK, 0, SEC));
	}
}

static void
look_after(struct group *group)
{
	uint32_t off = 0;
	bool hosts = true;
	int64_t off_ns = 0;

	for (uint32_t i = 0; world.calm && i < group->shards; i++) {
		struct worker *worker = &group->workers[i];
		/* It may wait for ever for what will not come again. */
		if (worker->state == W_BUSY &&
			(world.closing ? world.now_ns > worker->call.submitted_ns + ORPHAN_NS
				       : worker->call.drawn_ns < world.calm_ns &&
						 world.now_ns > world.calm_ns + 2 * ORPHAN_NS))
			worker_close(worker);
	}

	for (uint32_t i = 0; i < group->shards; i++) {
		const struct worker *worker = &group->workers[i];
		if (worker->starting)
			return;
		hosts = hosts && worker->host->process.alive && !worker->host->leaving;
		off += worker->state == W_OFF;
		if (worker->state == W_OFF)
			off_ns = th_max_i64(off_ns, worker->off_ns);
	}
	if (off == group->shards && hosts && !world.closing && world.now_ns > off_ns + 200 * MS)
		group_start(group);
	if (off == 0 || off == group->shards || world.now_ns < off_ns + ORPHAN_NS)
		return;
	for (uint32_t i = 0; i < group->shards; i++) {
		struct worker *worker = &group->workers[i];
		if (worker->state == W_OFF || worker->state == W_CLOSING)
			continue;
		if (!world.calm && percent(RNG_WORK, 30))
			worker_kill(worker);
		else
			worker_close(worker);
	}
}

static void
launcher(struct task *task)
{
	(void)task;
	for (uint32_t i = 0; i < world.options.groups; i++)
		look_after(&world.groups[i]);
	task_in(task_new(sizeof(struct task), launcher, NULL), LAUNCHER_NS);
}

void
program_start(void)
{
	static const char *const rules[] = {"latest", "latest", "latest,latest-1", "latest-1", "3"};
	const struct options *options = &world.options;

	for (uint32_t i = 0; i < options->groups; i++) {
		struct group *group = &world.groups[i];
		group->index = i;
		group->model = i % options->models;
		group->shards = options->shards;
		group->role = i < options->trainers    ? ROLE_TRAINER
			      : percent(RNG_SWARM, 70) ? ROLE_ROLLOUT
						       : ROLE_STANDALONE;
		group->behind = group->role == ROLE_ROLLOUT && percent(RNG_SWARM, 20)
					? 1 + (uint32_t)chance(RNG_SWARM, 3)
					: 0;
		group->follower = group->role == ROLE_ROLLOUT && group->behind == 0 &&
				  percent(RNG_FOLLOW, options->follow_percent);
		group->launches = percent(RNG_SWARM, 60);
		group->retain = percent(RNG_SWARM, options->retain_percent)
					? rules[chance(RNG_SWARM, TH_ARRAY_LEN(rules))]
					: "";
		if (group->role != ROLE_TRAINER)
			group->flags =
				(percent(RNG_FETCH, options->prefetch_percent) ? CTL_OPEN_PREFETCH
									       : 0u) |
				(percent(RNG_FETCH, options->seed_percent) ? CTL_OPEN_SEED : 0u);
		group->follows = group->role == ROLE_TRAINER && i >= options->models;
		if ((group->role != ROLE_TRAINER || group->follows) &&
			percent(RNG_SWARM, options->layout_percent))
			group->layout = 1;
		if (group->role != ROLE_TRAINER && group->layout != 0 && group->shards > 1 &&
			percent(RNG_SWARM, 50))
			group->shards--;
		snprintf(group->replica, sizeof(group->replica), "replica%u", i);
		uint32_t first = (uint32_t)chance(RNG_SWARM, options->hosts);
		for (uint32_t k = 0; k < group->shards; k++) {
			struct worker *worker = &group->workers[k];
			worker->group = group;
			worker->shard = k;
			worker->host = &world.hosts[(first + k) % options->hosts];
			worker->line.held.version = TH_NO_VERSION;
		}
	}
	task_in(task_new(sizeof(struct task), launcher, NULL), LAUNCHER_NS);
}
