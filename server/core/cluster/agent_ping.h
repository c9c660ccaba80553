/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_ping - does an agent live now? A beat may have been on its way while the agent died; a PING
 * was sent after the question came up, so its answer, the POLL that acknowledges it, proves
 * something.
 */
#ifndef TH_SERVER_CORE_CLUSTER_AGENT_PING_H
#define TH_SERVER_CORE_CLUSTER_AGENT_PING_H

#include "server/core/refsrv_state.h"

enum proof {
	PROOF_THERE,   /* it has lived at since_ns or later                                 */
	PROOF_PENDING, /* it was asked: ask again when its model is dirty, or at ret_wake_ns */
	PROOF_NONE,    /* it does not answer, or is suspect                                 */
};

/* Of all agents that have a part of the copy. since_ns is not later than now. */
enum proof agent_ping_copy(
	struct refsrv *server, const struct copy *copy, int64_t since_ns, int64_t *ret_wake_ns);

/* The agent has acknowledged more events. */
void agent_ping_acknowledged(struct refsrv *server, struct agent *agent);
/* A new life, or the first. */
void agent_ping_reset(struct agent *agent);

#endif
