/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma_service - RDMA as the host shell sees it: whether it is used, and why not; which rails serve
 * which memory; what went without it.
 *
 * Main thread only.
 */
#ifndef TH_DAEMON_HOST_MOVE_RDMA_SERVICE_H
#define TH_DAEMON_HOST_MOVE_RDMA_SERVICE_H

#include <stdint.h>

#include "ipc/base/ctl.h"
#include "ipc/base/err.h"

struct host;
struct rdma_config;
struct topology;

struct fabric {
	char why_not[TH_SENTENCE_BYTES]; /* empty: it is used */
	struct topology *topology;       /* owns; NULL: there are no rails */
	char last_fallback[TH_CTL_TEXT_BYTES];
	uint64_t copies;
	char last_copy[TH_CTL_TEXT_BYTES];
};

struct fabric_config;

struct fabric_rail {
	int32_t node; /* negative: of none more than of others */
	uint64_t bytes, reads;
};

/* What the transport is opened with; valid as long as the options. NULL: without RDMA. Here
 * libibverbs is loaded, on a host that has devices. */
struct fabric_config *fabric_config_new(struct host *host);
const struct rdma_config *fabric_config_rdma(const struct fabric_config *config);
void fabric_config_free(struct fabric_config *config);

/* After the transport was opened: says in the log what there is, and has memory registered from
 * now on. Fails only where rdma=on and there is nothing. */
int fabric_start(struct host *host, struct th_err *err);
void fabric_free(struct host *host);

/* The clause that says why no bytes go by RDMA; NULL: they do. */
const char *fabric_why_not(const struct host *host);
/* A leg in went without RDMA, all of it or its rest, or failed for that. */
void fabric_fell_back(struct host *host, const char *why);
/* A leg went through buffers, since NICs do not reach the memory of an end. */
void fabric_copied(struct host *host, const char *why);
/* What is known of a rail here. */
void fabric_rail(const struct host *host, uint32_t rail, struct fabric_rail *ret_rail);

#endif
