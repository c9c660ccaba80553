/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_retain - I12 and I13: what a claim names stays, and copies in hosts' memory are few.
 *
 * It asks no server. What is claimed follows from what workers have called and were told: a claim
 * counts when all members of its group were open before the version was first published, and none
 * has begun to close. The latest is the highest that may have been published: all members of a
 * group have called. What is there is what memories hold.
 *
 * What only spot hosts have may go with them; but what a host that stays has had is not given up
 * for their sake. That is certain only where nothing fails but agents that crash, and servers as
 * long as all agents are with one of them. Whatever is given up by force, and what a crash may have
 * taken while somebody was giving it up, is not looked at any more.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/check.h"

#define VERSIONS_MAX 512u
#define MISSED_NS (15 * SEC)
#define TWICE_NS (20 * SEC) /* an offload copy that is over is gone by then */

static struct {
	bool certain;
	struct life {
		int64_t first_ns; /* somebody has called publish; 0: nobody */
		bool committed;   /* somebody was told that it is published */
		bool seen;        /* complete, with nobody giving it up */
		bool forced;
		uint8_t called[GROUPS_MAX]; /* publish: bits of shards */
	} lives[MODELS_MAX][LINEAGES_MAX][VERSIONS_MAX];
	struct th_version top[MODELS_MAX]; /* the highest that may have been published */
	int64_t opened_ns[GROUPS_MAX][SHARDS_MAX];
	int64_t crash_ns;           /* the last one */
	const struct host *without; /* what is there is not counted */
	int64_t twice_ns;           /* since when there are two of one; 0: there are not */
	bool full;                  /* somebody was told that there is no room */
	bool abandoned;             /* what somebody held may be lost, by what he did */
} record;

void
check_retain_start(void)
{
	const struct options *o = &world.options;

	memset(&record, 0, sizeof(record));
	record.crash_ns = -MISSED_NS;
	for (uint32_t i = 0; i < MODELS_MAX; i++)
		record.top[i].version = TH_NO_VERSION;
	/* A cancelled call that was never sent makes its member diverge: the group breaks. */
	record.certain = (o->servers == 1 || o->host_crash_ns == 0) && o->diverge_permille == 0 &&
			 o->cancel_permille == 0 && o->other_bytes_percent == 0 &&
			 o->layout_percent == 0 && o->clock_skew_permille == 0 &&
			 o->loss_permille == 0 && o->twice_permille == 0 && o->slow_permille == 0 &&
			 o->leg_fail_permille == 0 && o->corrupt_permille == 0 &&
			 o->host_pause_ns == 0 && o->server_pause_ns == 0 && o->cut_ns == 0 &&
			 o->slow_link_ns == 0 && o->pipe_drop_ns == 0 && o->late_pidfd_ns == 0 &&
			 o->evict_ns == 0 && o->leave_ns == 0 && o->reset_percent == 0;
}

/* NULL: too far, not looked at. */
static struct life *
life_of(uint32_t model, struct th_version id)
{
	if (th_version_none(id) || id.lineage >= LINEAGES_MAX || id.version >= VERSIONS_MAX)
		return NULL;
	return &record.lives[model][id.lineage][id.version];
}

/* ---- what workers do ------------------------------------------------------------------------- */

static struct th_version
published_by(const struct worker *worker)
{
	return (struct th_version){
		.lineage = worker->group->lineage,
		.version = strtoull(worker->call.spec, NULL, 10),
	};
}

void
check_retain_opened(const struct worker *worker)
{
	record.opened_ns[worker->group->index][worker->shard] = world.now_ns;
}

void
check_retain_submit(const struct worker *worker)
{
	const struct group *group = worker->group;
	struct life *life;

	if (worker->call.kind == CTL_OP_UNPUBLISH && worker->call.flags != 0) {
		life = life_of(group->model, worker->call.held);
		if (life != NULL)
			life->forced = true;
	}
	if (worker->call.kind != CTL_OP_PUBLISH)
		return;
	struct th_version id = published_by(worker), *top = &record.top[group->model];
	check_risk_done(group->model, id);
	life = life_of(group->model, id);
	if (life == NULL)
		return;
	if (life->first_ns == 0)
		life->first_ns = world.now_ns;
	life->called[group->index] |= (uint8_t)(1u << worker->shard);
	if (life->called[group->index] == (1u << group->shards) - 1 &&
		(th_version_none(*top) || th_version_compare(id, *top) > 0))
		*top = id;
}

void
check_retain_complete(const struct worker *worker, int code)
{
	struct life *life;

	record.full = record.full || code == TH_E_NOMEM_RETAIN;
	/*
	 * Members may call differently after one of them alone was told something, as NO_SERVER:
	 * their group breaks, and where there is no room nobody rescues what it held.
	 */
	if (record.full && (code == TH_E_GROUP_MISMATCH || code == TH_E_GROUP_BROKEN)) {
		record.abandoned = true;
		life = life_of(worker->group->model, worker->call.held);
		if (life != NULL)
			life->forced = true;
	}
	if (code != 0 || worker->call.kind != CTL_OP_PUBLISH)
		return;
	check_risk_done(worker->group->model, published_by(worker));
	life = life_of(worker->group->model, published_by(worker));
	if (life != NULL)
		life->committed = true;
}

void
check_retain_no_room(void)
{
	record.full = true;
}

void
check_retain_abandon(const struct worker *worker)
{
	record.abandoned = true;
	/* What it holds may be on its way to it. */
	for (uint32_t i = 0; i < LINEAGES_MAX; i++) {
		for (uint32_t k = 0; k < VERSIONS_MAX; k++)
			record.lives[worker->group->model][i][k].forced |=
				record.lives[worker->group->model][i][k].first_ns != 0;
	}
}

/* A broken group has nothing to go back to: when no server has come in time, nobody refuses it. */
void
check_retain_closed(const struct worker *worker)
{
	if (worker->line.broken != 0 && !agent_core_attached(worker->host->core))
		check_retain_abandon(worker);
}

/* ---- what is there --------------------------------------------------------------------------- */

/* What a dead worker has left is read from where its agent has mapped it, if digests are there. */
static bool
readable(const struct handle *handle)
{
	return handle->offload || handle->worker != NULL ||
	       (handle->memory->shared && handle->part.prefix == world.options.chunks);
}

static bool
holds(const struct handle *handle, uint32_t model, uint32_t shard, struct th_version id)
{
	const struct content content = {
		.model = model, .shard = shard, .lineage = id.lineage, .version = id.version};

	return handle->part.there && readable(handle) &&
	       (handle->part.published || handle->part.prefix == world.options.chunks) &&
	       handle->memory->right == MEMORY_HELD &&
	       memory_compare(handle->memory, &content) == UINT32_MAX;
}

static uint32_t
count_on(
	const struct host *host, uint32_t model, uint32_t shard, struct th_version id, bool offload)
{
	const struct handle *handle = host->handles;
	uint32_t sum = 0;

	/* What a spot host has does not count, also for those who give theirs up. */
	if (host == record.without || host->spot)
		return 0;
	for (; handle != NULL; handle = handle->next)
		sum += (!offload || handle->offload) && holds(handle, model, shard, id);
	return sum;
}

static uint32_t
count(uint32_t model, uint32_t shard, struct th_version id, bool offload)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < world.options.hosts; i++)
		sum += count_on(&world.hosts[i], model, shard, id, offload);
	return sum;
}

/* Hosts that bring versions before they are asked have one each, not two. */
static bool
fetched(void)
{
	return world.options.prefetch_percent > 0 || world.options.seed_percent > 0 ||
	       world.options.borrow_ns > 0;
}

static bool
is_twice(uint32_t model, uint32_t shard, struct th_version id)
{
	if (!fetched())
		return count(model, shard, id, true) > 1;
	for (uint32_t i = 0; i < world.options.hosts; i++) {
		if (count_on(&world.hosts[i], model, shard, id, true) > 1)
			return true;
	}
	return false;
}

/* Bytes of all shards are somewhere; whether of one copy is not asked. */
static bool
there(uint32_t model, struct th_version id)
{
	for (uint32_t i = 0; i < world.options.shards; i++) {
		if (count(model, i, id, false) == 0)
			return false;
	}
	return true;
}

/* All members are there, and are not about to end. */
static bool
stands(const struct group *group)
{
	for (uint32_t i = 0; i < group->shards; i++) {
		const struct worker *worker = &group->workers[i];
		if (worker->handle == NULL || !worker->host->process.alive ||
			worker->line.broken != 0 || worker->state < W_PUTTING ||
			worker->state == W_CLOSING)
			return false;
	}
	return true;
}

static bool
on_spot(const struct group *group)
{
	for (uint32_t i = 0; i < group->shards; i++) {
		if (group->workers[i].host->spot)
			return true;
	}
	return false;
}

/* A group has it that does nothing at all, and none of it may be taken away. */
static bool
at_rest(uint32_t model, struct th_version id)
{
	for (uint32_t i = 0; i < world.options.groups; i++) {
		const struct group *group = &world.groups[i];
		uint32_t resting = 0;
		if (group->model != model || !stands(group) || on_spot(group))
			continue;
		for (uint32_t k = 0; k < group->shards; k++) {
			const struct worker *worker = &group->workers[k];
			resting += worker->state == W_IDLE &&
				   th_version_compare(worker->line.held, id) == 0 &&
				   holds(worker->handle, model, k, id);
		}
		if (resting == group->shards)
			return true;
	}
	return false;
}

/* Until then somebody may give it up in order who counts on what a dead worker held. */
static bool
deaths_are_missed(void)
{
	return world.options.worker_death_ns == 0 || world.now_ns > record.crash_ns + SEC;
}

/* What is being given up, or is in the hands of one agent, is looked at again when it rests. */
static void
forget_what_moves(bool crash)
{
	for (uint32_t m = 0; record.certain && m < MODELS_MAX; m++) {
		for (uint32_t i = 0; i < LINEAGES_MAX; i++) {
			for (uint32_t k = 0; k < VERSIONS_MAX; k++) {
				struct life *life = &record.lives[m][i][k];
				struct th_version id = {.lineage = i, .version = k};
				if (crash && life->seen && life->committed && !life->forced &&
					world.options.drain_ns == 0 &&
					world.options.spot_percent == 0 && !there(m, id))
					check_risk_lost(m, id);
				life->seen = life->seen && deaths_are_missed() && at_rest(m, id);
			}
		}
	}
}

void
check_retain_crash(void)
{
	record.crash_ns = world.now_ns;
	forget_what_moves(true);
}

/*
 * A claim is known to the server that its agent is attached to. Of several the first to be dialed
 * may be another one, for longer than a new server waits for those who are still to come.
 */
void
check_retain_moves(void)
{
	check_risk_moves();
	if (world.options.servers > 1)
		forget_what_moves(false);
}

static bool
all_with_one_server(void)
{
	const struct host *first = &world.hosts[0];

	for (uint32_t i = 0; i < world.options.hosts && world.options.servers > 1; i++) {
		const struct host *host = &world.hosts[i];
		if (!host->process.alive || !host->attached ||
			host->server_inc != first->server_inc)
			return false;
	}
	return check_one_led();
}

/* ---- what must be there ---------------------------------------------------------------------- */

/* A claim that has been there since before the version was. */
static bool
is_claimed(const struct group *group, const struct life *life)
{
	if (life == NULL || !life->committed || life->forced)
		return false;
	for (uint32_t i = 0; i < group->shards; i++) {
		if (record.opened_ns[group->index][i] > life->first_ns)
			return false;
	}
	return true;
}

static void
must_be_there(const struct group *group, struct th_version id)
{
	struct life *life = life_of(group->model, id);

	if (!is_claimed(group, life))
		return;
	if (!life->seen)
		life->seen = deaths_are_missed() && at_rest(group->model, id);
	else if (!there(group->model, id))
		sim_fail("I12",
			"version %" PRIu64 " of model %u is gone, and group %u retains \"%s\"",
			id.version, group->model, group->index, group->retain);
}

static void
rules(const struct group *group, void (*named)(const struct group *group, struct th_version id))
{
	struct th_version top = record.top[group->model], id = top;
	const char *rule = group->retain;
	/* Else the latest may go, and what is counted from it is another one. */
	bool latest = strncmp(rule, "latest", 6) == 0 && rule[6] != '-';

	while (!th_version_none(top) && *rule != '\0') {
		bool relative = strncmp(rule, "latest", 6) == 0;
		const char *number = relative ? rule + 6 + (rule[6] == '-') : rule;
		uint64_t n = strtoull(number, NULL, 10);
		id.version = relative ? top.version - n : n;
		if (!relative || (latest && n < top.version))
			named(group, id);
		rule = strchr(rule, ',');
		rule = rule == NULL ? "" : rule + 1;
	}
}

static struct th_version asked;
static bool found;

static void
is_asked(const struct group *group, struct th_version id)
{
	found = found || (th_version_compare(id, asked) == 0 &&
				 is_claimed(group, life_of(group->model, id)));
}

bool
check_retain_named(const struct group *group, uint32_t model, struct th_version id)
{
	asked = id;
	found = false;
	if (group->model == model && group->retain[0] != '\0' && stands(group))
		rules(group, is_asked);
	return found;
}

bool
check_retain_is_top(uint32_t model, struct th_version id)
{
	return th_version_compare(record.top[model], id) == 0;
}

bool
check_retain_there(uint32_t model, struct th_version id)
{
	return there(model, id);
}

bool
check_retain_nothing_is_lost(void)
{
	return record.certain && world.options.servers == 1 && world.options.host_crash_ns == 0 &&
	       world.options.worker_death_ns == 0 && world.options.drain_ns == 0 &&
	       world.options.spot_percent == 0 && !record.full && !record.abandoned;
}

void
check_retain_without(const struct host *host)
{
	/* What has just died may not have been missed yet. */
	bool certain = record.certain && all_with_one_server() &&
		       world.now_ns > record.crash_ns + MISSED_NS;

	record.without = host;
	for (uint32_t i = 0; certain && i < world.options.groups; i++) {
		if (world.groups[i].retain[0] != '\0' && stands(&world.groups[i]))
			rules(&world.groups[i], must_be_there);
	}
	record.without = NULL;
}

/* Two of one version's: not for long. */
static void
one_offload(void)
{
	bool twice = false;

	for (uint32_t m = 0; m < world.options.models; m++) {
		for (uint32_t i = 0; i < world.options.shards; i++)
			twice = twice || is_twice(m, i, record.top[m]);
	}
	if (!twice)
		record.twice_ns = 0;
	else if (record.twice_ns == 0)
		record.twice_ns = world.now_ns;
	else if (world.now_ns > record.twice_ns + TWICE_NS)
		sim_fail("I13", "two offload copies of the latest version stay");
}

void
check_retain(void)
{
	for (uint32_t i = 0; i < world.options.hosts; i++) {
		const struct host *host = &world.hosts[i];
		uint32_t sum = 0;
		for (const struct handle *h = host->handles; h != NULL; h = h->next)
			sum += h->offload;
		if (sum > host->offload_max)
			sim_fail("I13", "host %u keeps %u shards of others, and has room for %u", i,
				sum, host->offload_max);
	}
	if (!record.certain || !all_with_one_server())
		return;
	for (uint32_t i = 0; i < world.options.groups; i++) {
		if (world.groups[i].retain[0] != '\0' && stands(&world.groups[i]))
			rules(&world.groups[i], must_be_there);
	}
	/* The copy on a drained node stays until another can replace it. */
	if (world.options.drain_ns == 0)
		one_offload();
}

void
check_retain_end(void)
{
	for (uint32_t i = 0; i < world.options.hosts; i++) {
		const struct handle *handle = world.hosts[i].handles;
		if (handle != NULL)
			sim_fail("I13", "host %u still has memory of session %" PRIu64 "%s", i,
				handle->id, handle->offload ? ", for others" : "");
	}
}
