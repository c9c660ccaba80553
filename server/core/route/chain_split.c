/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chain_split - see chain_split.h.
 *
 * Only legs between hosts are moved and counted as readers of a head: those within a host load no
 * network, and a part that is moved off its host would begin to. What reads from another datacenter
 * is no head: the way there is what its readers wait for.
 *
 * What is known of a reader's progress may be a beat (1 s) old, so the price of dividing may be
 * taken for too small by what the head received since: a wrong division costs no more than that.
 */
#include "server/core/route/chain_split.h"

#include "ipc/base/checked.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/route/leg.h"
#include "server/core/route/route.h"

/* A reader that is still there, on another host. */
static bool
is_far(const struct leg *leg)
{
	return leg->dst->leg == leg && leg->src->member->agent != leg->reader->agent;
}

static uint32_t
count_far(const struct part *part)
{
	const struct leg *leg;
	uint32_t count = 0;

	DL_FOREACH2(part->readers, leg, src_next)
	count += is_far(leg);
	return count;
}

/* One of those that are most hops below the part; NULL: nobody reads from it. */
static struct part *
deepest(struct part *top, uint32_t *ret_height)
{
	struct part *level = top, *last = NULL;
	uint32_t height = 0;

	top->walk = NULL;
	while (level != NULL) {
		struct part *next = NULL;
		TH_ASSERT(height <= 2 * CHAIN_DEPTH_MAX);
		for (struct part *at = level; at != NULL; at = at->walk) {
			struct leg *leg;
			DL_FOREACH2(at->readers, leg, src_next)
			{
				if (leg->dst->leg != leg)
					continue;
				leg->dst->walk = next;
				next = leg->dst;
			}
		}
		if (next != NULL) {
			last = next;
			height++;
		}
		level = next;
	}
	*ret_height = height;
	return last;
}

static uint32_t
log2_floor(uint32_t number)
{
	uint32_t log = 0;

	while (number >>= 1)
		log++;
	return log;
}

/* From the lowest of so many hops: what lies about in the middle and comes from another host. */
static struct leg *
middle(const struct part *top, struct part *lowest, uint32_t height)
{
	struct part *at = lowest;

	for (uint32_t i = 0; i < height / 2; i++)
		at = at->leg->src;
	while (at != top && !is_far(at->leg))
		at = at->leg->src;
	return at == top || at->leg->src == top ? NULL : at->leg;
}

static bool
can_move(struct refsrv *server, const struct leg *leg, struct part *head)
{
	return leg->op->state == OP_RUNNING && leg->dst->member->agent->state == AGENT_ACTIVE &&
	       route_serves(server, leg->op, leg->dst, head);
}

static void
split(struct refsrv *server, struct part *head, uint32_t shortest)
{
	struct leg *leg, *next;
	uint32_t height;
	struct part *lowest = deepest(head, &height);

	if (lowest == NULL || height <= shortest)
		return;
	if (count_far(head) == 1) {
		struct leg *lower = middle(head, lowest, height);
		if (lower != NULL && can_move(server, lower, head)) {
			TH_MARK(fan_chain_becomes_tree);
			leg_move(server, lower, head);
		}
	}
	DL_FOREACH_SAFE2(head->readers, leg, next, src_next)
	{
		if (leg->dst->leg == leg)
			split(server, leg->dst, shortest);
	}
}

/* Chunk times that the chains below the root take longer than a tree in which all have two. */
static int64_t
gain(const struct part *root, uint32_t chunks, uint32_t hops)
{
	const struct leg *leg;
	uint32_t first = 0, chains = 0;

	DL_FOREACH2(root->readers, leg, src_next)
	{
		if (leg->dst->leg != leg)
			continue;
		first = th_max_u32(first, leg->dst->chunks_done);
		chains += leg->dst->num_readers > 0;
	}
	int64_t saved = (int64_t)hops - 2 * (int64_t)log2_floor(hops);
	/* Where it has two already, half the speed is no price any more. */
	return chains > 1 ? saved : saved - chunks - first;
}

void
chain_split_look(struct refsrv *server, struct part *newest)
{
	int32_t least = server->config.fan_gain;
	struct part *root = newest;
	uint32_t hops = 0;

	for (; root->leg != NULL && root->leg->src != NULL; hops++) {
		TH_ASSERT(hops <= CHAIN_DEPTH_MAX);
		root = root->leg->src;
	}
	uint32_t chunks = newest->copy->version->shards[newest->shard].num_chunks;
	if (!root->done || hops < 3 || gain(root, chunks, hops) <= least ||
		!agent_near(root->member->agent, newest->member->agent))
		return;
	split(server, root, least > 2 ? (uint32_t)least : 2);
}
