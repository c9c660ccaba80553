/* SPDX-License-Identifier: Apache-2.0 */
/*
 * route - see route.h.
 *
 * A copy may be a source when it has the bytes of the version (content.h) and is not being given
 * up, its agents are alive and not blocked for this reader, it has (or reliably gets) all the
 * bytes, does not itself depend on the reader, and is not too far down a chain. Those of agents
 * that have failed two readers come last (agent.c). Among the rest: no bytes that still cross to
 * another datacenter, same agent, same datacenter, least loaded, fewest descendants (so that the
 * root of a running chain does not get a second reader), longest verified prefix, oldest.
 *
 * A part has one current leg, so following it upward is a walk without branches; what a walk finds
 * is remembered in the parts it passed until server.mark changes, so that looking at all copies of
 * a version costs one visit each. New legs never close a cycle, hence every walk ends.
 */
#include "server/core/route/route.h"

#include "ipc/base/checked.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/cluster/node_drain.h"
#include "server/core/model/content.h"
#include "server/core/model/copy.h"
#include "server/core/route/slow_reader.h"

static void
mark_fresh(const struct refsrv *server, struct part *part)
{
	if (part->mark == server->mark)
		return;
	part->mark = server->mark;
	part->chain = CHAIN_UNKNOWN;
	part->crosses = false;
	part->depth = 0;
	part->descendants = 0;
}

/* What is known of a part without looking further up; CHAIN_UNKNOWN: ask its source. */
static enum chain
chain_end(const struct part *part)
{
	if (part->done)
		return CHAIN_ALIVE;
	if (part->copy->aborting)
		return CHAIN_ORPHAN;
	if (part->leg != NULL)
		return part->leg->src == NULL ? CHAIN_ADRIFT : CHAIN_UNKNOWN;
	/* No source now; but a leg whose end is not known may have brought everything. */
	return part->num_fills > 0 ? CHAIN_ADRIFT : CHAIN_ORPHAN;
}

/* One without a member serves nobody. */
static bool
parts_near(const struct part *a, const struct part *b)
{
	return a->member == NULL || b->member == NULL ||
	       agent_near(a->member->agent, b->member->agent);
}

enum chain
route_chain(struct refsrv *server, struct part *part)
{
	struct part *below = NULL; /* the parts passed, linked by walk, nearest first */
	struct part *at = part;

	for (uint32_t hops = 0;; hops++) {
		/* A circle would never end. */
		TH_ASSERT(hops <= CHAIN_DEPTH_MAX);
		mark_fresh(server, at);
		if (at->chain == CHAIN_UNKNOWN)
			at->chain = chain_end(at);
		if (at->chain != CHAIN_UNKNOWN)
			break;
		at->walk = below;
		below = at;
		at = at->leg->src;
	}
	while (below != NULL) {
		below->chain = at->chain;
		below->crosses = at->crosses || !parts_near(at, below);
		below->depth = at->depth + 1;
		at = below;
		below = below->walk;
	}
	return part->chain;
}

/* How many parts read from this one, directly or not, for every copy of the version. */
static void
count_descendants(struct refsrv *server, const struct version *version, uint32_t shard)
{
	struct copy *copy;

	/* One that is complete reads from nobody. */
	DL_FOREACH2(version->filling, copy, fill_next)
	{
		struct part *part = &copy->parts[shard];
		uint32_t hops = 0;
		while (part->leg != NULL && part->leg->src != NULL) {
			TH_ASSERT(++hops <= CHAIN_DEPTH_MAX);
			part = part->leg->src;
			mark_fresh(server, part);
			part->descendants++;
		}
	}
}

/* Marks what reads from dst, directly or not; returns how many hops the longest such chain has. */
static uint32_t
mark_below(const struct refsrv *server, struct part *dst)
{
	struct part *level = dst;
	uint32_t height = 0;

	dst->below_mark = server->mark;
	dst->walk = NULL;
	while (level != NULL) {
		struct part *next = NULL;
		for (struct part *at = level; at != NULL; at = at->walk) {
			struct leg *leg;
			DL_FOREACH2(at->readers, leg, src_next)
			{
				if (leg->dst->leg != leg)
					continue;
				leg->dst->below_mark = server->mark;
				leg->dst->walk = next;
				next = leg->dst;
			}
		}
		level = next;
		height += next != NULL;
	}
	return height;
}

/*
 * What may be a source, from the best: a node that shall become empty is taken where there is no
 * other, and one whose agent is about to end only by an operation that has begun, or to keep what
 * would be lost; the pair of a failure before last of all.
 */
enum pass { PASS_GOOD, PASS_DRAINED, PASS_LAST_RESORT, NUM_PASSES };

struct query {
	struct refsrv *server;
	const struct op *op;
	enum pass pass;
	bool only_idle;
	bool relief;     /* complete, near, and read by nobody, or by one that crawls */
	bool begun;      /* the operation is running: bytes have been overwritten */
	uint32_t height; /* of what already reads from the destination */
};

/* Smaller is better, field by field in this order. */
struct score {
	uint64_t leaving, crossing, other_agent, other_datacenter;
	uint64_t legs, host_legs, descendants, missing, id;
};

static bool
blamed(const struct op *op, uint32_t shard, uint64_t copy_id)
{
	for (uint32_t i = 0; i < op->num_blames; i++) {
		if (op->blames[i].shard == shard && op->blames[i].copy_id == copy_id)
			return true;
	}
	return false;
}

/*
 * Whether this group may read from this copy, as far as the copy as a whole says. What is left of
 * a broken group is read by its offload copy only, and by others from there.
 */
static bool
copy_serves(const struct refsrv *server, const struct copy *copy, const struct group *reader)
{
	return (!copy->draining || TH_PLANT(draining_is_a_source)) && copy_stands(copy) &&
	       (!copy->rescued || reader->reservation != 0) &&
	       (copy->state == COPY_READY || server->config.pipelining);
}

static bool
part_serves(struct refsrv *server, struct part *part)
{
	return part->member != NULL &&
	       (part->member->agent->state == AGENT_ACTIVE || TH_PLANT(suspect_is_a_source)) &&
	       route_chain(server, part) == CHAIN_ALIVE;
}

static bool
relieves(const struct refsrv *server, const struct part *src, const struct member *reader)
{
	return src->done && src->copy->keep == NULL &&
	       agent_near(src->member->agent, reader->agent) &&
	       (src->num_readers == 0 ||
		       (src->num_readers == 1 && slow_reader_is(server, src->readers->dst)));
}

static bool
part_fits(const struct query *query, struct part *src, const struct member *reader)
{
	if (!part_serves(query->server, src))
		return false;
	if (src->depth + 1 + query->height > CHAIN_DEPTH_MAX) {
		TH_MARK(d07_chain_too_deep);
		return false;
	}
	if (query->only_idle && src->num_readers > 0)
		return false;
	if (query->relief && !relieves(query->server, src, reader))
		return false;
	const struct agent *agent = src->member->agent;
	bool too_late = agent->leaving && !query->begun && query->op->group->reservation == 0;
	if (node_drains(agent) && (query->pass < PASS_DRAINED || too_late)) {
		TH_MARK(source_drains);
		return false;
	}
	if (blamed(query->op, src->shard, src->copy->id))
		return false;
	if (query->pass < PASS_LAST_RESORT && agent_quarantined(query->server, agent)) {
		TH_MARK(c27_bad_source_comes_last);
		return false;
	}
	if (TH_PLANT(blame_evicts_the_source) && src->member->agent->blamed_by != 0)
		return false;
	enum pair_state pair = agent_pair_state(query->server, reader->agent, src->member->agent);
	return pair == PAIR_FREE ||
	       (query->pass == PASS_LAST_RESORT && pair == PAIR_LAST_RESORT_ONLY);
}

static void
score_add(struct score *score, const struct part *src, const struct member *reader)
{
	const struct agent *from = src->member->agent, *to = reader->agent;
	uint32_t chunks = src->copy->version->shards[src->shard].num_chunks;

	/* Who is about to give it up should not wait for new readers, but for his offload copy. */
	score->leaving += src->copy->keep != NULL && reader->group->reservation == 0;
	/* A seed that fills gives bytes no faster than the slow link, though it is near; and a
	 * group gets a version as late as its slowest member. */
	score->crossing |= src->crosses || !agent_near(from, to);
	score->other_agent += from != to;
	score->other_datacenter += !agent_near(from, to);
	score->legs += src->num_readers;
	score->host_legs += from->legs_far;
	score->descendants += src->descendants;
	score->missing = th_max_u64(score->missing, chunks - src->chunks_done);
	score->id = src->copy->id;
}

static bool
better(const struct score *a, const struct score *b)
{
	if (a->leaving != b->leaving)
		return a->leaving < b->leaving;
	if (a->crossing != b->crossing && !TH_PLANT(far_is_as_near))
		return a->crossing < b->crossing;
	if (a->other_agent != b->other_agent)
		return a->other_agent < b->other_agent;
	if (a->other_datacenter != b->other_datacenter && !TH_PLANT(far_is_as_near))
		return a->other_datacenter < b->other_datacenter;
	if (a->legs != b->legs)
		return a->legs < b->legs;
	if (a->host_legs != b->host_legs)
		return a->host_legs < b->host_legs;
	if (a->descendants != b->descendants)
		return a->descendants < b->descendants;
	if (a->missing != b->missing)
		return a->missing < b->missing;
	return a->id < b->id;
}

static bool
copy_fits(const struct query *query, struct copy *copy, struct score *ret_score)
{
	const struct group *group = query->op->group;
	struct score score = {0};

	if (copy->group == group || !copy_serves(query->server, copy, group) ||
		!content_listed(copy))
		return false;
	for (uint32_t i = 0; i < group->num_shards; i++) {
		if (!part_fits(query, &copy->parts[i], group->members[i]))
			return false;
		score_add(&score, &copy->parts[i], group->members[i]);
	}
	*ret_score = score;
	return true;
}

struct choice {            /* the best so far */
	struct copy *copy; /* NULL: none */
	struct score score;
};

static void
route_choose(struct choice *choice, struct copy *copy, const struct score *score)
{
	if (choice->copy == NULL || better(score, &choice->score))
		*choice = (struct choice){.copy = copy, .score = *score};
}

/* Of those on other agents none is better, but an older one. (What does not cross is near.) */
static bool
is_perfect(const struct score *score)
{
	return (score->leaving | score->crossing | score->legs | score->host_legs |
		       score->descendants | score->missing) == 0;
}

static void
try_copy(const struct query *query, struct copy *copy, struct choice *choice)
{
	struct score score;

	if (copy_fits(query, copy, &score))
		route_choose(choice, copy, &score);
}

/* What has a part on an agent of the reader: better than all that have none, if nothing crosses. */
static void
try_local(const struct query *query, const struct version *version, struct choice *choice)
{
	const struct group *group = query->op->group;
	uint64_t visit = ++query->server->visit;

	for (uint32_t i = 0; i < group->num_shards; i++) {
		struct agent *agent = group->members[i]->agent;
		const struct member *member;
		if (agent->visit == visit)
			continue;
		agent->visit = visit;
		DL_FOREACH2(agent->members, member, agent_next)
		{
			struct copy *copy = member->group->copy;
			if (copy == NULL || copy->version != version || copy->visit == visit)
				continue;
			copy->visit = visit;
			try_copy(query, copy, choice);
		}
	}
}

struct copy *
route_choose_copy(struct refsrv *server, const struct op *op, struct version *version)
{
	struct query query = {.server = server, .op = op};
	struct choice best = {0};
	struct copy *copy;

	server->mark++;
	count_descendants(server, version, 0);
	for (int pass = 0; pass < NUM_PASSES && best.copy == NULL; pass++) {
		query.pass = (enum pass)pass;
		try_local(&query, version, &best);
		if (best.copy != NULL && best.score.other_agent < op->group->num_shards &&
			(best.score.leaving | best.score.crossing) == 0)
			break;
		/* The oldest come first, and mostly nobody reads from one of the first. */
		DL_FOREACH(version->copies, copy)
		{
			try_copy(&query, copy, &best);
			if (best.copy == copy && is_perfect(&best.score))
				break;
		}
	}
	return best.copy;
}

static void
try_part(
	const struct query *query, const struct part *dst, struct copy *copy, struct choice *choice)
{
	struct part *src = &copy->parts[dst->shard];
	struct score score = {0};

	if (src->below_mark == query->server->mark && !TH_PLANT(no_cycle_check)) {
		TH_MARK(c28_own_descendant_is_no_source);
		return;
	}
	if (copy->content != dst->copy->content ||
		!copy_serves(query->server, copy, query->op->group) ||
		!part_fits(query, src, dst->member))
		return;
	score_add(&score, src, dst->member);
	route_choose(choice, copy, &score);
}

/* Nobody is moved to a doubtful source who could stay where he is. */
static struct part *
choose_part(struct query query, struct part *dst, int passes)
{
	struct refsrv *server = query.server;
	const struct version *version = dst->copy->version;
	const struct member *member;
	struct choice best = {0};
	struct copy *copy;

	server->mark++;
	query.height = mark_below(server, dst);
	count_descendants(server, version, dst->shard);
	for (int pass = 0; pass < passes && best.copy == NULL; pass++) {
		query.pass = (enum pass)pass;
		DL_FOREACH2(dst->member->agent->members, member, agent_next)
		{
			copy = member->shard == dst->shard ? member->group->copy : NULL;
			if (copy != NULL && copy->version == version)
				try_part(&query, dst, copy, &best);
		}
		if (best.copy != NULL && (best.score.leaving | best.score.crossing) == 0)
			break;
		DL_FOREACH(version->copies, copy)
		{
			try_part(&query, dst, copy, &best);
			if (best.copy == copy && is_perfect(&best.score))
				break;
		}
	}
	return best.copy == NULL ? NULL : &best.copy->parts[dst->shard];
}

struct part *
route_choose_part(struct refsrv *server, const struct op *op, struct part *dst, bool only_idle)
{
	struct query query = {.server = server, .op = op, .only_idle = only_idle, .begun = true};

	return choose_part(query, dst, only_idle ? 1 : NUM_PASSES);
}

struct part *
route_choose_relief(struct refsrv *server, const struct op *op, struct part *dst)
{
	struct query query = {.server = server, .op = op, .relief = true, .begun = true};

	return choose_part(query, dst, 1);
}

bool
route_serves(struct refsrv *server, const struct op *op, const struct part *dst, struct part *src)
{
	struct query query = {.server = server, .op = op, .begun = true};

	server->mark++;
	return src->copy->content == dst->copy->content &&
	       copy_serves(server, src->copy, op->group) && part_fits(&query, src, dst->member);
}

bool
route_available(struct refsrv *server, const struct version *version, const struct group *reader)
{
	struct copy *copy;

	server->mark++;
	DL_FOREACH(version->copies, copy)
	{
		bool all = copy->group != reader && copy_serves(server, copy, reader) &&
			   content_listed(copy);
		for (uint32_t i = 0; all && i < copy->num_parts; i++)
			all = part_serves(server, &copy->parts[i]) &&
			      (reader->reservation != 0 || !copy->parts[i].member->agent->leaving);
		if (all)
			return true;
	}
	return false;
}

/* Whether the copy may become a source for dst (NULL: for all shards), without a promise when. */
static bool
hopeful(struct refsrv *server, const struct op *op, struct copy *copy, const struct part *dst)
{
	/* A broken group's copy serves the legs it has and never a new one. */
	if (copy->group == op->group || !copy_stands(copy))
		return false;
	/* A reader stays with the content it has begun; another may turn out to be the same. */
	if (copy->content->refused ||
		(dst != NULL && copy->content != dst->copy->content &&
			!content_undecided(copy->content, dst->copy->content)))
		return false;
	/* A partial copy that must be complete before it serves depends on all its shards. */
	bool whole = copy->state == COPY_PARTIAL && !server->config.pipelining;
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		struct part *src = &copy->parts[i];
		if (dst != NULL && dst->shard != i && !whole)
			continue;
		if (route_chain(server, src) == CHAIN_ORPHAN)
			return false;
		if (dst != NULL && src->below_mark == server->mark)
			return false;
	}
	return true;
}

static bool
copy_blamed(const struct op *op, const struct copy *copy, const struct part *dst)
{
	return dst != NULL && blamed(op, dst->shard, copy->id);
}

enum outlook
route_outlook(
	struct refsrv *server, const struct op *op, const struct version *version, struct part *dst)
{
	bool any_blamed = false;
	struct copy *copy;

	if (version == NULL)
		return OUTLOOK_LOST;
	server->mark++;
	if (dst != NULL)
		mark_below(server, dst);
	DL_FOREACH(version->copies, copy)
	{
		if (copy_blamed(op, copy, dst))
			any_blamed = true;
		else if (hopeful(server, op, copy, dst))
			return OUTLOOK_WAIT;
	}
	return any_blamed ? OUTLOOK_CHECKSUM : OUTLOOK_LOST;
}
