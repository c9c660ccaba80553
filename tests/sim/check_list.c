/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_list - what list, wait and "latest" tell a worker fits what has happened.
 *
 * A listing is judged at the moment at which the server gives it: what a whole group holds, was
 * told of and does not give up is in it, complete; what a member was told that it holds no more is
 * not; nobody sees what was never published, nor a copy whose operation is failing. One generation
 * is one listing, and generations only grow within a server's life. So whoever waits has missed
 * nothing, and whoever waits for ever has: it is looked at what the world has become since.
 *
 * What a server may not know is not asked of it: this is certain only where nothing is lost, stands
 * still or begins anew, and some time after all that has ended. Then a listing is also what is
 * there for whoever asks for "latest", but where two have published different bytes.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/check.h"

#define RECOVERY_NS (25 * SEC)
#define UPSET_NS (40 * SEC) /* so long a rescue may take: two lives of one name */
#define NEWS_NS (3 * SEC)   /* CHANGED, coalesced, and what messages take */
#define WARM_NS (3 * SEC)
#define MISSED_NS (15 * SEC)  /* who has died is missed by then */
#define FETCHED_NS (40 * SEC) /* a version is brought within, also the third in a row */
#define UNDRAIN_NS (500 * MS) /* what an event takes, where nothing is lost */
#define KEPT 32u
#define VERSIONS_MAX 512u

static struct {
	bool steady, conflicts;
	struct {
		uint64_t generation, hash;
	} last[SERVERS_MAX][MODELS_MAX];
	uint64_t last_inc[SERVERS_MAX];
	int64_t done_ns[GROUPS_MAX][SHARDS_MAX];   /* the end of its last call that changes */
	int64_t begun_ns[GROUPS_MAX][STEPS_MAX];   /* the first member's call */
	int64_t gave_ns[MODELS_MAX][VERSIONS_MAX]; /* somebody has begun to give it up */
	int64_t upset_ns[GROUPS_MAX];              /* one of it has died, or it was broken */
	int64_t warm_from_ns[SERVERS_MAX], warm_until_ns[SERVERS_MAX];
	uint64_t warm_inc[SERVERS_MAX];          /* of the server that this is about */
	int64_t first_ns[SERVERS_MAX];           /* its first agent has attached */
	uint64_t warmed[SERVERS_MAX][HOSTS_MAX]; /* agents that it has waited for: their numbers */
	/* How often somebody has published it. */
	uint8_t published[MODELS_MAX][LINEAGES_MAX][VERSIONS_MAX];
	struct {
		uint64_t sid_life, server_inc, op_seq, hash;
	} grouped[KEPT];
	uint32_t num_grouped;
} record;

void
check_list_start(void)
{
	const struct options *o = &world.options;

	memset(&record, 0, sizeof(record));
	for (uint32_t i = 0; i < GROUPS_MAX; i++)
		record.upset_ns[i] = -UPSET_NS;
	record.steady = o->servers == 1 && o->diverge_permille == 0 && o->cancel_permille == 0 &&
			o->layout_percent == 0 && o->loss_permille == 0 && o->slow_permille == 0 &&
			o->twice_permille == 0 && o->leg_fail_permille == 0 &&
			o->corrupt_permille == 0 && o->host_pause_ns == 0 &&
			o->server_pause_ns == 0 && o->cut_ns == 0 && o->slow_link_ns == 0 &&
			o->pipe_drop_ns == 0 && o->late_pidfd_ns == 0 && o->evict_ns == 0 &&
			o->leave_ns == 0;
	record.conflicts = o->other_bytes_percent > 0 || o->layout_percent > 0;
}

/* Everybody who should know it knows. */
static bool
certain(void)
{
	if (record.conflicts || world.options.servers > 1)
		return false;
	return (record.steady && world.options.server_restart_ns == 0) ||
	       (world.calm && world.now_ns > world.calm_ns + RECOVERY_NS);
}

bool
check_list_certain(void)
{
	return certain();
}

/* ---- what is so ------------------------------------------------------------------------------ */

static bool
rests(const struct worker *worker)
{
	/* Who follows may hold something else in the next moment, and is told a little later. */
	return worker->handle != NULL && worker->host->process.alive && worker->line.broken == 0 &&
	       worker->line.evicted == 0 && !worker->following &&
	       (worker->state == W_IDLE ||
		       (worker->state == W_BUSY && worker->call.kind == CTL_OP_LIST));
}

void
check_list_published(const struct group *group, uint64_t version)
{
	uint8_t *often = version < VERSIONS_MAX
				 ? &record.published[group->model][group->lineage][version]
				 : NULL;

	if (often != NULL && *often < 2)
		*often = (uint8_t)(*often + 1);
}

/* Published anew: not listed before its bytes are known to be those of the first. */
static bool
is_second(const struct group *group, struct th_version id)
{
	return group->role == ROLE_TRAINER &&
	       (id.version >= VERSIONS_MAX || id.lineage >= LINEAGES_MAX ||
		       record.published[group->model][id.lineage][id.version] > 1);
}

/* All its members have a version, were told so, and none has begun to give it up. */
static bool
keeps(const struct group *group, struct th_version *ret_id)
{
	*ret_id = group->workers[0].line.held;
	if (is_second(group, *ret_id))
		return false;
	for (uint32_t i = 0; i < group->shards; i++) {
		const struct worker *worker = &group->workers[i];
		if (!rests(worker) || th_version_none(*ret_id) ||
			th_version_compare(worker->line.held, *ret_id) != 0)
			return false;
	}
	return true;
}

/* Since when, at the latest. */
static int64_t
kept_since(const struct group *group)
{
	int64_t ns = 0;

	for (uint32_t i = 0; i < group->shards; i++)
		ns = th_max_i64(ns, record.done_ns[group->index][i]);
	return ns;
}

bool
check_list_keeps(const struct group *group, struct th_version *ret_id, int64_t *ret_since_ns)
{
	*ret_since_ns = kept_since(group);
	return keeps(group, ret_id);
}

static bool
upset(const struct group *group)
{
	return world.now_ns < record.upset_ns[group->index] + UPSET_NS;
}

/* A member knows that its group does not hold this. */
static bool
gave_up(const struct group *group, struct th_version id)
{
	for (uint32_t i = 0; i < group->shards; i++) {
		const struct worker *worker = &group->workers[i];
		if (rests(worker) && th_version_compare(worker->line.held, id) != 0)
			return true;
	}
	return false;
}

/* ---- what is listed -------------------------------------------------------------------------- */

static bool
in_listing(const struct listed *listed, const struct group *group, struct th_version id)
{
	for (uint32_t i = 0; i < listed->num; i++) {
		if (listed->ready[i].group == group->index &&
			th_version_compare(listed->ready[i].id, id) == 0)
			return true;
	}
	return false;
}

static void
mix(struct listed *listed, uint64_t value)
{
	listed->hash = (listed->hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
	listed->hash ^= listed->hash >> 29;
}

static void
look_at_copy(uint32_t model, struct th_version id, const struct ctl_replica_info *replica,
	struct listed *listed)
{
	uint32_t index = (uint32_t)strtoul(replica->name + strlen("replica"), NULL, 10);
	const struct group *group = &world.groups[index % GROUPS_MAX];

	mix(listed, id.lineage << 32 ^ id.version << 16 ^ index << 8 ^ replica->flags);
	if (group->model != model)
		sim_fail("I17", "%s is listed under model %u", replica->name, model);
	if ((replica->flags & CTL_REPLICA_READY) != 0 &&
		replica->chunks_done != replica->chunks_total)
		sim_fail("I5", "%s is listed as ready with %" PRIu64 " of %" PRIu64 " chunks",
			replica->name, replica->chunks_done, replica->chunks_total);
	if ((replica->flags & (CTL_REPLICA_READY | CTL_REPLICA_DRAINING)) == CTL_REPLICA_DRAINING)
		sim_fail("list", "%s is listed with what it never had whole and gives up",
			replica->name);
	if ((replica->flags & CTL_REPLICA_OFFLOAD) != 0)
		return;
	if ((replica->flags & CTL_REPLICA_READY) != 0 && listed->num < LISTED_MAX) {
		listed->ready[listed->num].group = index;
		listed->ready[listed->num++].id = id;
	}
	if (certain() && !upset(group) && gave_up(group, id))
		sim_fail("list",
			"version %" PRIu64 " is listed with %s, which was told that it gave it up",
			id.version, replica->name);
}

static void
nothing_is_missing(uint32_t model, const struct listed *listed)
{
	for (uint32_t i = 0; certain() && i < world.options.groups; i++) {
		const struct group *group = &world.groups[i];
		struct th_version id;
		if (group->model == model && keeps(group, &id) && !in_listing(listed, group, id))
			sim_fail("list",
				"version %" PRIu64 " is not listed with %s, which holds it",
				id.version, group->replica);
	}
}

static void
generations(struct srv *srv, uint32_t model, const struct listed *listed)
{
	uint32_t s = srv->process.index;

	if (record.last_inc[s] != srv->inc)
		memset(record.last[s], 0, sizeof(record.last[s]));
	record.last_inc[s] = srv->inc;
	if (listed->generation < record.last[s][model].generation)
		sim_fail("list", "the listing of model %u goes back from %" PRIu64 " to %" PRIu64,
			model, record.last[s][model].generation, listed->generation);
	if (listed->generation == record.last[s][model].generation &&
		listed->hash != record.last[s][model].hash)
		sim_fail("list",
			"two listings of model %u have generation %" PRIu64 " and are not the same",
			model, listed->generation);
	record.last[s][model].generation = listed->generation;
	record.last[s][model].hash = listed->hash;
}

void
check_list_given(struct srv *srv, uint32_t model, bool grouped, const struct ctl_listing *from,
	struct listed *ret_listed)
{
	*ret_listed = (struct listed){.server_inc = srv->inc, .generation = from->generation};
	for (uint32_t v = 0; v < from->num_versions; v++) {
		const struct ctl_version_info *version = &from->versions[v];
		if (!check_known(model, version->version))
			sim_fail("list", "version %" PRIu64 " was never published",
				version->version.version);
		/* The snapshot of an operation is of the time when that was decided. */
		for (uint32_t r = 0; r < version->num_replicas; r++) {
			if (!grouped)
				look_at_copy(
					model, version->version, &version->replicas[r], ret_listed);
			else
				mix(ret_listed, version->version.version ^ r << 20 ^
							version->replicas[r].flags);
		}
	}
	if (grouped)
		return;
	generations(srv, model, ret_listed);
	nothing_is_missing(model, ret_listed);
}

void
check_resolved(uint32_t model, int code, struct th_version id)
{
	if (code == 0 && !check_known(model, id))
		sim_fail("list", "latest is version %" PRIu64 ", which was never published",
			id.version);
	for (uint32_t i = 0; certain() && i < world.options.groups; i++) {
		struct th_version kept;
		if (world.groups[i].model != model || !keeps(&world.groups[i], &kept) ||
			(code == 0 && th_version_compare(id, kept) >= 0))
			continue;
		sim_fail("list",
			"latest is version %" PRId64 ", and group %u holds version %" PRIu64,
			code == 0 ? (int64_t)id.version : -1, i, kept.version);
	}
}

/* ---- what a worker hears --------------------------------------------------------------------- */

void
check_list_told(const struct worker *worker, const struct listed *listed)
{
	struct reader *reader = reader_of(worker);

	if (listed->server_inc == reader->floor_inc && listed->generation < reader->floor)
		sim_fail("list",
			"group %u shard %u is told of generation %" PRIu64 ", and knew %" PRIu64,
			worker->group->index, worker->shard, listed->generation, reader->floor);
	reader->floor_inc = listed->server_inc;
	reader->floor = listed->generation;
}

void
check_list_grouped(const struct worker *worker, uint64_t op_seq, const struct listed *listed)
{
	uint64_t life = check_life(worker->sid);

	for (uint32_t i = 0; i < KEPT; i++) {
		/* A server that was lost takes along what it had listed. */
		if (record.grouped[i].sid_life == life &&
			record.grouped[i].server_inc == listed->server_inc &&
			record.grouped[i].op_seq == op_seq &&
			record.grouped[i].hash != (listed->hash ^ listed->generation))
			sim_fail("I4", "two members of group %u are given different listings",
				worker->group->index);
	}
	record.grouped[record.num_grouped % KEPT].sid_life = life;
	record.grouped[record.num_grouped % KEPT].server_inc = listed->server_inc;
	record.grouped[record.num_grouped % KEPT].op_seq = op_seq;
	record.grouped[record.num_grouped++ % KEPT].hash = listed->hash ^ listed->generation;
}

void
check_wait_over(const struct worker *worker, int code, uint64_t generation)
{
	struct reader *reader = reader_of(worker);

	if (code != 0)
		return;
	if (generation <= reader->listed.generation)
		sim_fail("wait",
			"group %u shard %u has waited for more than %" PRIu64
			" and is told of %" PRIu64,
			worker->group->index, worker->shard, reader->listed.generation, generation);
	if (worker->host->server_inc == reader->floor_inc)
		reader->floor = th_max_u64(reader->floor, generation);
}

bool
check_list_missed(uint32_t model, const struct listed *listed, int64_t since_ns,
	uint32_t *ret_group, struct th_version *ret_id)
{
	for (uint32_t i = 0; world.now_ns > since_ns + NEWS_NS && i < world.options.groups; i++) {
		const struct group *group = &world.groups[i];
		*ret_group = i;
		if (group->model == model && keeps(group, ret_id) &&
			!in_listing(listed, group, *ret_id) &&
			world.now_ns >= kept_since(group) + NEWS_NS)
			return true;
	}
	return false;
}

/*
 * Whoever was to give it up and has not, because a deadline passed or another member could not, is
 * read from again: each part of it.
 */
void
check_restored(void)
{
	struct agent_session_info info;
	struct th_version id;

	for (uint32_t i = 0; certain() && i < world.options.groups; i++) {
		const struct group *group = &world.groups[i];
		if (!keeps(group, &id) || world.now_ns < kept_since(group) + UNDRAIN_NS)
			continue;
		for (uint32_t k = 0; k < group->shards; k++) {
			const struct worker *worker = &group->workers[k];
			uint32_t at = 0;
			while (agent_core_session_at(worker->host->core, at, &info) &&
				info.session != worker->handle->id)
				at++;
			if (info.session == worker->handle->id && info.draining)
				sim_fail("list",
					"group %u keeps version %" PRIu64
					", and shard %u of it takes no readers",
					i, id.version, k);
		}
	}
}

void
check_waits(void)
{
	struct th_version id;
	uint32_t other = 0;

	for (uint32_t i = 0; certain() && i < world.options.groups; i++) {
		for (uint32_t k = 0; k < world.groups[i].shards; k++) {
			const struct worker *worker = &world.groups[i].workers[k];
			const struct reader *reader = reader_of(worker);
			if (rests(worker) && reader->life == worker->life &&
				reader->state == READER_WAITS &&
				check_list_missed(worker->group->model, &reader->listed,
					reader->since_ns, &other, &id))
				sim_fail("wait",
					"group %u shard %u waits and is not told that group %u has "
					"version %" PRIu64,
					i, k, other, id.version);
		}
	}
}

/* ---- latest ---------------------------------------------------------------------------------- */

void
check_list_gives(const struct worker *worker)
{
	struct th_version id = worker->line.held;

	if (!th_version_none(id) && id.version < VERSIONS_MAX)
		record.gave_ns[worker->group->model][id.version] = world.now_ns;
}

/* Something newer was given up since then: what was to be brought may have been that. */
static bool
newer_has_gone(uint32_t model, struct th_version held, int64_t since_ns)
{
	uint64_t first = th_version_none(held) ? 0 : held.version;

	for (uint64_t i = 0; i < VERSIONS_MAX; i++) {
		if (record.gave_ns[model][i] > since_ns && (i > first || held.lineage > 0))
			return true;
	}
	return false;
}

void
check_list_submit(const struct worker *worker)
{
	int64_t *begun_ns = &record.begun_ns[worker->group->index][worker->call.step];

	if (*begun_ns == 0)
		*begun_ns = world.now_ns;
	if (worker->call.kind == CTL_OP_UNPUBLISH || worker->call.kind == CTL_OP_UPDATE)
		check_list_gives(worker);
}

void
check_list_group_start(const struct group *group)
{
	memset(record.begun_ns[group->index], 0, sizeof(record.begun_ns[0]));
}

void
check_list_upset(const struct worker *worker)
{
	record.upset_ns[worker->group->index] = world.now_ns;
	check_list_gives(worker);
}

/*
 * An agent has attached, one of a former life of the server perhaps: when that has just begun, it
 * collects what the agents hold; a later one, or one that comes again, changes nothing of that.
 */
void
check_warms(const struct srv *srv, const struct host *host, bool former)
{
	uint32_t s = srv->process.index, h = host->process.index;

	if (record.warm_inc[s] != srv->inc) {
		record.warm_inc[s] = srv->inc;
		record.first_ns[s] = world.now_ns;
		memset(record.warmed[s], 0, sizeof(record.warmed[s]));
	}
	bool late = record.warm_until_ns[s] < world.now_ns;
	if (!former || record.warmed[s][h] == host->inc ||
		(late && world.now_ns - record.first_ns[s] > WARM_NS / 2))
		return;
	record.warmed[s][h] = host->inc;
	if (late)
		record.warm_from_ns[s] = world.now_ns;
	record.warm_until_ns[s] = world.now_ns + WARM_NS;
}

/* All that happened since then a server has decided that does not know yet what there is. */
static bool
warming_since(const struct host *host, int64_t ns)
{
	return record.steady && !record.conflicts &&
	       world.now_ns < record.warm_until_ns[host->server] &&
	       ns > record.warm_from_ns[host->server];
}

static bool
crashes(void)
{
	return world.options.host_crash_ns > 0 || world.options.worker_death_ns > 0;
}

void
check_latest(const struct worker *worker, int code, struct th_version held)
{
	const struct call *call = &worker->call;
	uint32_t index = worker->group->index;
	int64_t begun_ns = record.begun_ns[index][call->step];

	if (call->kind != CTL_OP_LIST)
		record.done_ns[index][worker->shard] = world.now_ns;
	/*
	 * Apart: a member is told what an operation came to that another called before. An update
	 * leaves the link to another datacenter to the one that is bringing the version here, and
	 * finds nothing while the latest is what has died and is not missed yet.
	 */
	if (code != 0 || strcmp(call->spec, "latest") != 0 || world.options.tickets_max > 0 ||
		worker->group->apart || (!certain() && !warming_since(worker->host, begun_ns)))
		return;
	if (call->kind == CTL_OP_REPLICATE
			? newer_has_gone(worker->group->model, held, begun_ns - SEC)
			: call->kind != CTL_OP_UPDATE || world.options.datacenters > 1 ||
				  (crashes() && newer_has_gone(worker->group->model, held,
							begun_ns - MISSED_NS)))
		return;
	/* Its hosts bring it first: what was there for long is there, too. */
	if (call->kind == CTL_OP_UPDATE && worker->group->flags != 0)
		begun_ns -= FETCHED_NS;
	for (uint32_t i = 0; i < world.options.groups; i++) {
		const struct group *group = &world.groups[i];
		struct th_version id;
		if (i != index && group->model == worker->group->model && keeps(group, &id) &&
			kept_since(group) < begun_ns && th_version_compare(id, held) > 0)
			sim_fail("latest",
				"group %u has asked for latest and holds version %" PRId64
				", and group %u has had version %" PRIu64 " all the time",
				index, (int64_t)held.version, i, id.version);
	}
}
