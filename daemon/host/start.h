/* SPDX-License-Identifier: Apache-2.0 */
/*
 * start - brings the parts of the agent up in order, and down again.
 *
 * Main thread only.
 */
#ifndef TH_DAEMON_HOST_START_H
#define TH_DAEMON_HOST_START_H

#include "ipc/base/err.h"

struct host;

/* host->options is filled. After 0 the agent serves; after a failure call start_undo. */
int start(struct host *host, struct th_err *err);
/* Legal after any failure of start. */
void start_undo(struct host *host);

#endif
