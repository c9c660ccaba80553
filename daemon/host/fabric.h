/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fabric - RDMA as the host shell sees it: whether it is used, and why not.
 *
 * Main thread only.
 */
#ifndef TH_DAEMON_HOST_FABRIC_H
#define TH_DAEMON_HOST_FABRIC_H

#include "ipc/base/err.h"

struct host;

#define FABRIC_WHY_BYTES 192

struct fabric {
	char why_not[FABRIC_WHY_BYTES]; /* empty: it is used */
};

/* Says in the log what there is. Fails only where rdma=on and there is nothing. */
int fabric_start(struct host *host, struct th_err *err);

/* The clause that says why no bytes go by RDMA; NULL: they do. */
const char *fabric_why_not(const struct host *host);

#endif
