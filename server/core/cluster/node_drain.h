/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node_drain - emptying a node: nothing new comes there, what runs ends, what must not be lost
 * moves to another node.
 *
 * An operator's drain belongs to the name of the node: it holds for whatever agent attaches under
 * it, until it is taken back. An agent that is about to end drains its node for its own life only.
 * What workers have open goes on; they are the operator's, or the scheduler's, to end.
 *
 * A drain only ever waits, nothing is cut off, and it can be looked at as often as one likes.
 */
#ifndef TH_SERVER_CORE_CLUSTER_NODE_DRAIN_H
#define TH_SERVER_CORE_CLUSTER_NODE_DRAIN_H

#include "server/core/refsrv_state.h"

/* It shall become empty: a source for others only where there is no better one. */
bool node_drains(const struct agent *agent);

/* The agent has attached: what an operator wanted of its node, here or at an earlier server. */
void node_attached(struct refsrv *server, struct agent *agent);

/* Repeatable; agent is that of the node, NULL: none is attached, only its name is known. */
void node_drain_begin(struct refsrv *server, const char *node, struct agent *agent,
	const struct ctl_admin *admin);
/* False: it was not being drained by an operator. */
bool node_drain_end(struct refsrv *server, const char *node, struct agent *agent, const char *from);
bool node_drain_wanted(const struct refsrv *server, const char *node);

/* What the drain waits for; a reply's state, numbers and blockers. */
void node_drain_look(struct refsrv *server, struct agent *agent, struct ctl_admin_reply *ret_reply);

/* The last copy of a retained version is lost: the nodes of its parts did not become empty. */
void node_drain_lost(struct refsrv *server, const struct copy *copy, const char *text);

/* No agent of the node is attached: one may still come that has what nobody knows of yet. */
void node_drain_absent(struct refsrv *server, const char *node, struct ctl_admin_reply *ret_reply);

/* At the end of a step: says once in the log when a node has become empty. */
void node_drain_tick(struct refsrv *server);

void node_drain_free_all(struct refsrv *server);

#endif
