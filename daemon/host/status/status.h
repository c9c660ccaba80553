/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status - what this agent says of itself to thctl: all to operators, to others what is theirs.
 *
 * Main thread only.
 */
#ifndef TH_DAEMON_HOST_STATUS_STATUS_H
#define TH_DAEMON_HOST_STATUS_STATUS_H

#include <stdint.h>

struct host;
struct net_peer;

/* worker: only what belongs to its user, which is the kernel's word; NULL: an operator asks. */
void status_reply(
	struct host *host, uint64_t token, uint64_t request_no, const struct net_peer *worker);

#endif
