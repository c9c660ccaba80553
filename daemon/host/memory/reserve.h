/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reserve - memory for a shard that the agent itself shall keep, laid out by its manifest.
 *
 *   AGENT_RESERVE -> budget -> manifest (of a session here, or of the server) -> memory
 *   (host_pool.c)
 *                 -> a session without a worker -> AGENT_EV_RESERVED
 *
 * Each RESERVE is answered once. What comes of it is a session like the others to shared_parts.c
 * and legs.c: its tensors lie in that memory instead of a worker's. Main thread only.
 */
#ifndef TH_DAEMON_HOST_MEMORY_RESERVE_H
#define TH_DAEMON_HOST_MEMORY_RESERVE_H

#include <stdint.h>

struct agent_action;
struct host;

void reserve_begin(struct host *host, const struct agent_action *action);  /* AGENT_RESERVE */
void reserve_cancel(struct host *host, const struct agent_action *action); /* AGENT_UNRESERVE */
void reserves_free(struct host *host);

#endif
