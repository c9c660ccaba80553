/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status - what this agent says of itself to thctl.
 *
 * Main thread only.
 */
#ifndef TH_DAEMON_HOST_STATUS_H
#define TH_DAEMON_HOST_STATUS_H

#include <stdint.h>

struct host;

void status_reply(struct host *host, uint64_t token, uint64_t request_no);

#endif
