/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operators - admin.ipc in the runtime directory, the socket of those who run the cluster.
 *
 * Workers have agent.ipc, where each may ask about its own. What changes the cluster for others, or
 * shows what others do, is asked here, and only root, the agent's user and the members of one group
 * (admin.group) may connect. Who asks is written by the agent, from what the kernel says of the
 * connection: the name in the request is the asker's word and is dropped. Main thread only.
 */
#ifndef TH_DAEMON_HOST_STATUS_OPERATORS_H
#define TH_DAEMON_HOST_STATUS_OPERATORS_H

#include <stdbool.h>

#include "ipc/base/ctl.h"
#include "ipc/base/err.h"
#include "ipc/net/net.h"

/* As long as agent.ipc, so that it fits into a socket address wherever that does. */
#define OPERATORS_FILE "admin.ipc"

/*
 * Makes the socket at path part of server, which listens at agent.ipc already. group: a name or a
 * number; empty: root and the agent's user only.
 */
TH_MUST_USE int operators_listen(
	struct net_server *server, const char *path, const char *group, struct th_err *err);

/* Whether a request has come by that socket, from somebody whom the kernel names. */
bool operators_asks(const struct net_peer *peer);

/* "uid 1000 (alice) pid 4711 on NODE": who asks, and that it is no agent that leaves. */
void operators_sign(const struct net_peer *peer, const char *node, struct ctl_admin *admin);

#endif
