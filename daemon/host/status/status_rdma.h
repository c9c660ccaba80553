/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status_rdma - what this agent says of its RDMA to thctl.
 *
 * Main thread only.
 */
#ifndef TH_DAEMON_HOST_STATUS_STATUS_RDMA_H
#define TH_DAEMON_HOST_STATUS_STATUS_RDMA_H

#include "ipc/proto/tensorhub.pb-c.h"

struct host;
struct status_rdma;

/* As it is now. */
struct status_rdma *status_rdma_new(const struct host *host);
void status_rdma_free(struct status_rdma *status);
/* Valid until it is freed. */
Tensorhub__V1__RdmaInfo *status_rdma_info(struct status_rdma *status);

#endif
