/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_pair - see agent_pair.h and agent.h. A pair's block is kept by the reader's agent, and
 * named by the source's: it goes with the reader, and means nothing when the source's agent has
 * gone.
 */
#include "server/core/cluster/agent_pair.h"

#include "ipc/base/checked.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/model/model.h"
#include "server/core/view/event_log.h"

static struct pair_block *
pair_find(const struct agent *reader, const struct agent *source)
{
	struct pair_block *block;

	DL_FOREACH(reader->blocks, block)
	{
		if (block->source_inc == source->inc)
			return block;
	}
	return NULL;
}

static enum pair_state
block_state(const struct refsrv *server, const struct pair_block *block)
{
	if (server->now_ns >= block->until_ns)
		return PAIR_FREE;
	return server->now_ns >= block->last_resort_ns ? PAIR_LAST_RESORT_ONLY : PAIR_BLOCKED;
}

/*
 * One reader that fails may be at fault itself, and its pair is blocked. When two say the same it
 * is the source, or the way to it: a new node that fails every reader would else stay the least
 * loaded one, and draw each of them in turn. It is never taken away: who finds nothing else tries
 * it, and one success clears it.
 */
void
agent_blamed(struct refsrv *server, const struct agent *reader, struct agent *source)
{
	int64_t until_ns = th_deadline_ns(server->now_ns, server->config.pair_block_ns);

	if (source->blamed_by != 0 &&
		(source->blamed_by != reader->inc || TH_PLANT(one_reader_counts_twice)) &&
		server->now_ns < source->blamed_until_ns) {
		TH_MARK(c06_two_readers_quarantine_the_source);
		if (server->now_ns >= source->quarantine_until_ns)
			event_log(server, EVENT_WARN, NULL, source->info.node,
				"agent %s failed two readers, the last of them %s: it is read from "
				"only where nothing else is left",
				source->info.node, reader->info.node);
		source->quarantine_until_ns = until_ns;
	}
	source->blamed_by = reader->inc;
	source->blamed_until_ns = until_ns;
}

bool
agent_quarantined(const struct refsrv *server, const struct agent *source)
{
	return server->now_ns < source->quarantine_until_ns;
}

void
agent_pair_failed(struct refsrv *server, struct agent *reader, struct agent *source)
{
	struct pair_block *block = pair_find(reader, source);

	TH_MARK(c06_pair_blocked);
	agent_blamed(server, reader, source);

	if (block == NULL) {
		block = th_calloc(1, sizeof(*block));
		block->source_inc = source->inc;
		block->duration_ns = server->config.pair_block_ns;
		DL_APPEND(reader->blocks, block);
	} else {
		block->duration_ns = th_min_i64(block->duration_ns * 2,
			server->config.pair_block_ns * PAIR_BLOCK_GROWTH_MAX);
	}
	block->until_ns = th_deadline_ns(server->now_ns, block->duration_ns);
	block->state = PAIR_BLOCKED;
	block->last_resort_ns =
		th_deadline_ns(server->now_ns, block->duration_ns / PAIR_LAST_RESORT);
	agent_wake_at(server, reader, block->last_resort_ns);
}

static void
pair_drop(struct agent *reader, struct pair_block *block)
{
	DL_DELETE(reader->blocks, block);
	free(block);
}

void
agent_pair_worked(struct agent *reader, struct agent *source)
{
	struct pair_block *block = pair_find(reader, source);

	source->blamed_by = 0;
	source->quarantine_until_ns = 0;
	if (block != NULL)
		pair_drop(reader, block);
}

enum pair_state
agent_pair_state(
	const struct refsrv *server, const struct agent *reader, const struct agent *source)
{
	const struct pair_block *block = pair_find(reader, source);

	return block == NULL ? PAIR_FREE : block_state(server, block);
}

/*
 * Something an operation waits for may have become possible when a block ends. The record itself
 * stays as long again, so that the next failure doubles it.
 */
void
pair_timers(struct refsrv *server, struct agent *agent)
{
	struct pair_block *block, *next;

	DL_FOREACH_SAFE(agent->blocks, block, next)
	{
		int64_t forget_ns = th_deadline_ns(block->until_ns, block->duration_ns);
		if (server->now_ns >= forget_ns) {
			pair_drop(agent, block);
			continue;
		}
		enum pair_state state = block_state(server, block);
		if (state != block->state)
			model_dirty_agent(server, agent);
		block->state = state;
		if (state == PAIR_BLOCKED)
			agent_wake_at(server, agent, block->last_resort_ns);
		else
			agent_wake_at(
				server, agent, state == PAIR_FREE ? forget_ns : block->until_ns);
	}
}

void
pair_drop_all(struct agent *agent)
{
	while (agent->blocks != NULL)
		pair_drop(agent, agent->blocks);
	agent->blamed_by = 0;
	agent->quarantine_until_ns = 0;
}
