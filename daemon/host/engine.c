/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine - see engine.h. Main thread only.
 */
#include "daemon/host/engine.h"

#include <stdlib.h>

#include "daemon/host/execute.h"
#include "daemon/host/host.h"
#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"

struct engine_entry {
	struct engine_entry *next;
	struct agent_event event;
	struct ctl_reply *reply;    /* owns; where event.u.reply.reply points */
	struct convert_arena arena; /* owns */
};

static struct engine_entry *
engine_append(struct engine *engine, const struct agent_event *event)
{
	struct engine_entry *entry = th_calloc(1, sizeof(*entry));
	entry->event = *event;
	if (engine->last)
		engine->last->next = entry;
	else
		engine->first = entry;
	engine->last = entry;
	return entry;
}

static void
entry_free(struct engine_entry *entry)
{
	convert_arena_free(&entry->arena);
	free(entry->reply);
	free(entry);
}

void
engine_post(struct host *host, const struct agent_event *event)
{
	engine_append(&host->engine, event);
}

void
engine_post_reply(
	struct host *host, uint64_t tag, const struct ctl_reply *reply, struct convert_arena *arena)
{
	struct agent_event event = {.kind = AGENT_EV_REPLY, .u.reply.tag = tag};
	struct engine_entry *entry = engine_append(&host->engine, &event);
	entry->reply = th_memdup(reply, sizeof(*reply));
	entry->event.u.reply.reply = entry->reply;
	entry->arena = *arena;
	*arena = (struct convert_arena){0};
}

static void
engine_step(struct host *host, const struct agent_event *event)
{
	struct agent_actions actions;

	agent_core_step(host->engine.core, th_now_ns(), event, &actions);
	host->engine.next_ns = actions.next_ns;
	for (uint32_t i = 0; i < actions.count; i++)
		execute(host, &actions.actions[i]);
}

void
engine_run(struct host *host)
{
	static const struct agent_event tick = {.kind = AGENT_EV_TICK};
	struct engine *engine = &host->engine;

	if (th_now_ns() >= engine->next_ns)
		engine_step(host, &tick);
	while (engine->first) {
		struct engine_entry *entry = engine->first;
		engine->first = entry->next;
		if (!engine->first)
			engine->last = NULL;
		engine_step(host, &entry->event);
		entry_free(entry);
	}
}

void
engine_free(struct host *host)
{
	struct engine *engine = &host->engine;
	while (engine->first) {
		struct engine_entry *entry = engine->first;
		engine->first = entry->next;
		entry_free(entry);
	}
	engine->last = NULL;
	agent_core_free(engine->core);
	engine->core = NULL;
}
