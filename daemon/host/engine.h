/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine - feeds the control core: a queue of events in, its actions out as calls of the files of
 * this folder.
 *
 * Whoever learns something posts an event, also while actions are carried out; engine_run steps the
 * core until the queue is empty. So the core is never entered twice, and what an action causes at
 * once comes after the rest of its actions. Main thread only.
 */
#ifndef TH_DAEMON_HOST_ENGINE_H
#define TH_DAEMON_HOST_ENGINE_H

#include <stdint.h>

#include "daemon/core/agent_core.h"
#include "ipc/proto/convert.h"

struct host;
struct engine_entry;

struct engine {
	struct agent_core *core;           /* owns */
	struct engine_entry *first, *last; /* owns */
	int64_t next_ns;                   /* the core wants a tick no later than this */
};

/* Copies the event. Pointers in it must stay valid: see engine_post_reply. */
void engine_post(struct host *host, const struct agent_event *event);
/*
 * The reply of the server to a request of the core, and the arena that holds what it points to
 * (moved).
 */
void engine_post_reply(struct host *host, uint64_t tag, const struct ctl_reply *reply,
	struct convert_arena *arena);
/* A tick when one is due, then all that was posted. */
void engine_run(struct host *host);
void engine_free(struct host *host);

#endif
