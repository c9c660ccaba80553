/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fabric - RDMA as the host shell sees it: whether it is used, and why not; which rails serve which
 * memory; what went without it.
 *
 * Main thread only.
 */
#ifndef TH_DAEMON_HOST_FABRIC_H
#define TH_DAEMON_HOST_FABRIC_H

#include <stdint.h>

#include "ipc/base/ctl.h"
#include "ipc/base/err.h"

struct host;
struct topology;

#define FABRIC_WHY_BYTES 192

struct fabric {
	char why_not[FABRIC_WHY_BYTES]; /* empty: it is used */
	struct topology *topology;      /* owns; NULL: there are no rails */
	uint64_t fallbacks;             /* legs in that did without, although it is used */
	char last_fallback[TH_CTL_TEXT_BYTES];
};

struct fabric_rail {
	int32_t node; /* negative: of none more than of others */
	uint64_t bytes, reads;
};

/* After the transport was opened: says in the log what there is, and has memory registered from
 * now on. Fails only where rdma=on and there is nothing. */
int fabric_start(struct host *host, struct th_err *err);
void fabric_free(struct host *host);

/* The clause that says why no bytes go by RDMA; NULL: they do. */
const char *fabric_why_not(const struct host *host);
/* What is known of a rail here. */
void fabric_rail(const struct host *host, uint32_t rail, struct fabric_rail *ret_rail);

#endif
