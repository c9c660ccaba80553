/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_group - I1 of what a call returns, I4 and I6: what the members of a group are told.
 *
 * What the operations with the same number say must agree among members of one life of their group,
 * which the server numbers; the offload copy of a replica has its name and is not one of them.
 *
 * What a server has told before its end is known to the agents that were told, and to nobody else.
 * Where they are gone as well, the next server cannot know, and nobody is left to compare. Where
 * one of them comes back when the next server has gone on without it, two outcomes cannot be
 * helped any more; but then nobody may go on with either: the next call of each is answered
 * GROUP_BROKEN.
 */
#include <inttypes.h>
#include <string.h>

#include "tests/sim/check.h"

#define OUTCOMES_MAX 1024u
#define VERSIONS_MAX 4096u
#define SIDS_MAX 16384u /* of a run; 2,800 have been seen */
#define NO_VARIANT 8u
#define TELLERS_MAX (2 * SHARDS_MAX) /* of one outcome; more are not needed */

struct teller { /* who was told, and its agent then: that remembers it for the next server */
	const struct worker *worker;
	const struct host *host;
	uint64_t host_inc, sid;
	uint64_t
		refused_by; /* the server that it came to, and where its group is broken; 0: none */
};

static struct {
	struct outcome {
		uint64_t op_seq, life;
		uint32_t kind, variant;
		int code;
		uint64_t version;
		uint64_t server_inc; /* who has told it */
		struct teller tellers[TELLERS_MAX];
		uint32_t num_tellers;
	} outcomes[GROUPS_MAX][OUTCOMES_MAX];
	uint32_t num_outcomes[GROUPS_MAX];
	/* Two outcomes were told, one by a server that is no more: life, and by whom the other. */
	struct split {
		uint64_t life, server_inc;
		struct teller away[TELLERS_MAX]; /* who was told by the former one */
		uint32_t num_away;
		bool known; /* one of these has come to the other server: all are to hear of it */
	} splits[GROUPS_MAX];
	bool over[GROUPS_MAX][SHARDS_MAX]; /* called when that was known */
	struct sid {
		uint64_t sid, life;
	} sids[SIDS_MAX];
	uint32_t num_sids;
	bool quiet; /* no process or link of this world fails */
	/* Published at any time: bits. */
	uint8_t variants[MODELS_MAX][LINEAGES_MAX][VERSIONS_MAX];
} record;

void
check_start(void)
{
	memset(record.num_outcomes, 0, sizeof(record.num_outcomes));
	memset(record.variants, 0, sizeof(record.variants));
	memset(record.splits, 0, sizeof(record.splits));
	record.num_sids = 0;
	record.quiet = world.options.quiet;
}

uint64_t
check_life(uint64_t sid)
{
	for (uint32_t i = record.num_sids; i > 0; i--) {
		if (record.sids[i - 1].sid == sid)
			return record.sids[i - 1].life;
	}
	return 0;
}

void
check_opened(uint64_t sid, uint64_t group_inc)
{
	if (check_life(sid) != 0)
		return;
	if (record.num_sids == SIDS_MAX)
		sim_fail("sim", "more than %u members: make SIDS_MAX larger", SIDS_MAX);
	record.sids[record.num_sids++] = (struct sid){.sid = sid, .life = group_inc};
}

void
check_group_start(const struct group *group)
{
	record.num_outcomes[group->index] = 0;
	memset(&record.splits[group->index], 0, sizeof(record.splits[0]));
	check_list_group_start(group);
}

void
check_published(const struct group *group, uint64_t version, uint32_t variant)
{
	check_list_published(group, version);
	if (version < VERSIONS_MAX)
		record.variants[group->model][group->lineage][version] |= (uint8_t)(1u << variant);
}

bool
check_known(uint32_t model, struct th_version id)
{
	return id.lineage < LINEAGES_MAX &&
	       (id.version >= VERSIONS_MAX || record.variants[model][id.lineage][id.version] != 0);
}

/* Which of the published contents of this version it is; NO_VARIANT: of none. */
static uint32_t
variant_of(const struct worker *worker, struct th_version version)
{
	uint32_t model = worker->group->model;

	if (version.lineage >= LINEAGES_MAX || version.version >= VERSIONS_MAX)
		return NO_VARIANT;
	for (uint32_t i = 0; i < NO_VARIANT; i++) {
		struct content content = program_content(worker->group, worker->shard, version, i);
		if ((record.variants[model][version.lineage][version.version] >> i & 1) != 0 &&
			memory_compare(worker->memory, &content) == UINT32_MAX)
			return i;
	}
	return NO_VARIANT;
}

void
check_bytes(const struct worker *worker, struct th_version held)
{
	if (variant_of(worker, held) == NO_VARIANT)
		sim_fail("I23",
			"group %u shard %u is told that it holds version %" PRIu64
			", and its bytes are not of it",
			worker->group->index, worker->shard, held.version);
}

/* Its first member that gives a version up does so for all of them: others still have the bytes. */
static bool
keeps(const struct group *group, struct th_version held)
{
	for (uint32_t i = 0; i < group->shards; i++) {
		const struct worker *member = &group->workers[i];
		bool calls = member->state == W_BUSY && member->call.kind != CTL_OP_LIST;
		if (calls || member->following ||
			(member->state != W_IDLE && member->state != W_BUSY) ||
			th_version_compare(member->line.held, held) != 0)
			return false;
	}
	return true;
}

/*
 * One version, one content: of those who read it at the same time none has another. Where nothing
 * is lost or stands still, that is; otherwise a server may have given up what a worker still holds.
 * A worker in a call may have given it up as well, and not have heard yet that it has.
 */
static void
same_content(const struct worker *worker, struct th_version held, uint32_t variant)
{
	if (!record.quiet || worker->group->role == ROLE_TRAINER)
		return;
	for (uint32_t i = 0; i < world.options.groups; i++) {
		const struct worker *other = &world.groups[i].workers[worker->shard];
		if (other == worker || other->state != W_IDLE ||
			other->group->role == ROLE_TRAINER ||
			other->group->model != worker->group->model || !keeps(other->group, held) ||
			other->memory->right != MEMORY_HELD)
			continue;
		if (variant_of(other, held) != variant)
			sim_fail("I1",
				"groups %u and %u hold different contents of version %" PRIu64,
				worker->group->index, other->group->index, held.version);
	}
}

/* Not the group's outcome, but what this member alone is told. */
static bool
private_code(int code)
{
	return code == TH_E_GROUP_BROKEN || code == TH_E_GROUP_MISMATCH || code == TH_E_NO_SERVER ||
	       code == TH_E_CANCELLED || code == TH_E_CONTRACT || code == TH_E_AGENT_LOST ||
	       code == TH_E_EVICTED;
}

/* Its group is no more, by itself or by an operator. */
static bool
broken(const struct agent_line *line)
{
	return line->broken != 0 || line->evicted != 0;
}

/* ---- a server ends, and with it what it has told --------------------------------------------- */

static bool
server_is_over(uint64_t inc)
{
	for (uint32_t i = 0; i < world.options.servers; i++) {
		if (world.servers[i].process.alive && world.servers[i].inc == inc)
			return false;
	}
	return true;
}

static void
tell(struct outcome *outcome, const struct worker *worker)
{
	if (outcome->num_tellers == TELLERS_MAX)
		return;
	outcome->tellers[outcome->num_tellers++] = (struct teller){
		.worker = worker,
		.host = worker->host,
		.host_inc = worker->host->inc,
		.sid = worker->sid,
	};
}

/* What the former server has told is replaced by what the other says. */
static void
split(uint32_t index, struct outcome *old, const struct outcome *new)
{
	struct split *split = &record.splits[index];

	if (split->life != new->life || split->server_inc != new->server_inc)
		*split = (struct split){.life = new->life, .server_inc = new->server_inc};
	for (uint32_t i = 0; i < old->num_tellers; i++) {
		const struct teller *teller = &old->tellers[i];
		if (!teller->host->process.alive || teller->host->inc != teller->host_inc)
			continue;
		if (teller->refused_by == new->server_inc)
			split->known = true;
		if (teller->refused_by == 0 && split->num_away < TELLERS_MAX)
			split->away[split->num_away++] = *teller;
	}
	*old = *new;
}

/* Where its group is broken whoever was told by the former server has been heard. */
static void
split_broken(const struct worker *worker)
{
	uint32_t index = worker->group->index;
	struct split *split = &record.splits[index];
	uint64_t server_inc = worker->host->server_inc;

	for (uint32_t i = 0; i < record.num_outcomes[index]; i++) {
		struct outcome *outcome = &record.outcomes[index][i];
		for (uint32_t k = 0; k < outcome->num_tellers; k++) {
			struct teller *teller = &outcome->tellers[k];
			if (teller->sid == worker->sid && teller->refused_by == 0)
				teller->refused_by = server_inc;
		}
	}
	for (uint32_t i = 0; i < split->num_away; i++) {
		if (split->away[i].sid == worker->sid && server_inc == split->server_inc)
			split->known = true;
	}
}

/* It has been told how a call has ended, and is not told that its group is broken. */
static void
split_goes_on(const struct worker *worker, const struct outcome *outcome)
{
	uint32_t index = worker->group->index;
	const struct split *split = &record.splits[index];
	bool over = record.over[index][worker->shard];

	if (split->life != outcome->life)
		return;
	for (uint32_t i = 0; i < split->num_away; i++) {
		if (split->away[i].sid == worker->sid && split->server_inc == outcome->server_inc)
			over = true;
	}
	if (over)
		sim_fail("I4",
			"group %u goes on with operation %" PRIu64
			", and an earlier one has ended in two ways",
			index, outcome->op_seq);
}

static void
agree(const struct worker *worker, struct outcome *new)
{
	uint32_t index = worker->group->index;

	new->server_inc = worker->host->server_inc;
	tell(new, worker);
	split_goes_on(worker, new);
	for (uint32_t i = 0; i < record.num_outcomes[index]; i++) {
		struct outcome *old = &record.outcomes[index][i];
		if (old->op_seq != new->op_seq || old->life != new->life)
			continue;
		bool same = old->code == new->code && old->version == new->version &&
			    old->kind == new->kind;
		if (!same && old->server_inc != new->server_inc &&server_is_over(old->server_inc)) {
			split(index, old, new);
			return;
		}
		/* What it said has come late. */
		if (!same && old->server_inc != new->server_inc &&server_is_over(new->server_inc)) {
			struct outcome other = *old;
			split(index, new, &other);
			return;
		}
		if (!same)
			sim_fail("I4",
				"group %u, operation %" PRIu64
				": one member has %s, version %" PRId64
				", another %s, version %" PRId64,
				index, new->op_seq, th_errname(old->code), (int64_t)old->version,
				th_errname(new->code), (int64_t) new->version);
		if (old->variant != new->variant)
			sim_fail("I1",
				"group %u: two members hold different contents of version "
				"%" PRIu64,
				index, new->version);
		tell(old, worker);
		old->server_inc = new->server_inc;
		return;
	}
	if (record.num_outcomes[index] < OUTCOMES_MAX)
		record.outcomes[index][record.num_outcomes[index]++] = *new;
}

/* ---- calls ----------------------------------------------------------------------------------- */

void
check_submit(const struct worker *worker)
{
	const struct call *call = &worker->call;
	const struct split *split = &record.splits[worker->group->index];

	check_list_submit(worker);
	record.over[worker->group->index][worker->shard] =
		split->known && split->life == check_life(worker->sid);
	if (call->kind == CTL_OP_PUBLISH && worker->memory->right != MEMORY_OWNER)
		sim_fail("I2", "a worker publishes memory that is not its own");
}

void
check_complete(struct worker *worker, const struct agent_action *action)
{
	const struct call *call = &worker->call;
	int code = action->u.complete.code;
	struct th_version held = action->u.complete.result.version;
	struct outcome outcome = {
		.op_seq = action->u.complete.op_seq,
		.life = check_life(worker->sid),
		.kind = call->kind,
		.code = code,
	};

	if (code == 0 && call->kind == CTL_OP_UNPUBLISH && worker->memory->right != MEMORY_OWNER)
		sim_fail("I2", "unpublish has succeeded and the memory is not the worker's");
	if (code == 0 && !ctl_op_unnamed(call->kind)) {
		outcome.version = held.version;
		if (th_version_none(held)) {
			/* There was nothing to have. */
			if (call->kind == CTL_OP_UPDATE && !action->u.complete.result.updated)
				return;
			sim_fail("I1", "call %u has succeeded and holds nothing", call->kind);
		}
		/* A broken group's member has its memory back: its bytes are its own affair. */
		if (broken(&worker->line) && worker->memory->right == MEMORY_OWNER)
			return;
		outcome.variant = variant_of(worker, held);
		if (outcome.variant == NO_VARIANT)
			sim_fail("I1",
				"group %u shard %u is told that it holds version %" PRIu64
				", and its bytes are not of it",
				worker->group->index, worker->shard, held.version);
		same_content(worker, held, outcome.variant);
		if (memcmp(call->spec, "latest", 6) == 0 &&
			th_version_compare(held, call->held) < 0)
			sim_fail("I6", "group %u moves back from version %" PRIu64 " to %" PRIu64,
				worker->group->index, call->held.version, held.version);
	}
	if (code == TH_E_NO_SERVER && !worker->following &&
		th_version_compare(worker->line.held, call->held) != 0)
		sim_fail("I4", "NO_SERVER promises that nothing has changed");
	/* The others may have begun it, and this member calls it again or not at all. */
	if (code != 0 && (outcome.op_seq == 0 || private_code(code)) && worker->group->shards > 1)
		worker->group->apart = true;
	if (outcome.op_seq != 0 && !private_code(code))
		agree(worker, &outcome);
	check_latest(worker, code, held);
}

/*
 * Whatever servers do, its members come to the next one with what they hold. Not while it forms: a
 * shard that was not open yet when its server was lost begins a new group.
 */
static bool
stays_whole(const struct group *group)
{
	for (uint32_t i = 0; i < group->shards; i++) {
		if (group->workers[i].step == 0)
			return false;
	}
	return world.options.only_servers_fail && check_one_led() && !group->apart;
}

void
check_line(const struct worker *worker, const struct agent_line *line)
{
	if (broken(line) && stays_whole(worker->group))
		sim_fail("I19", "group %u is broken, and nothing but servers has failed",
			worker->group->index);
	if (line->broken != 0)
		split_broken(worker);
	check_risk_line(worker, line);
	check_follow_line(worker, line);
	/* What a broken group's member holds is its own again, and stays. */
	if (line->safe_to_mutate && !th_version_none(line->held) && !broken(line))
		sim_fail("I2", "group %u shard %u holds a version and may write it",
			worker->group->index, worker->shard);
}
