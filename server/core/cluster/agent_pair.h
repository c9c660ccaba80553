/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_pair - readers and sources that had no luck with each other (agent_pair_* of agent.h): what
 * is due with time, and the end.
 */
#ifndef TH_SERVER_CORE_CLUSTER_AGENT_PAIR_H
#define TH_SERVER_CORE_CLUSTER_AGENT_PAIR_H

#include "server/core/refsrv_state.h"

/* The agent's blocks as a reader: those that end, and when to look again. */
void pair_timers(struct refsrv *server, struct agent *agent);
/* A new life begins without them. */
void pair_drop_all(struct agent *agent);

#endif
