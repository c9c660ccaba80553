/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status_tables - what an agent says of its RDMA and of GPU memory, for `thctl status`: ports,
 * paths to other hosts, GPUs that it reaches, how it reaches what workers share, and what is not
 * well with them.
 */
#ifndef TH_TOOLS_THCTL_STATUS_TABLES_H
#define TH_TOOLS_THCTL_STATUS_TABLES_H

#include "ipc/proto/tensorhub.pb-c.h"
#include "tools/thctl/output.h"

/* NULL is an older agent, which says nothing. */
void rdma_judge(struct document *document, const Tensorhub__V1__RdmaInfo *rdma);
/* What comes from other datacenters, by which policy. NULL: an older agent. */
void far_fields(struct document *document, const Tensorhub__V1__FarInfo *far);
void rdma_fields(struct document *document, const Tensorhub__V1__RdmaInfo *rdma);
void rdma_tables(struct document *document, const Tensorhub__V1__RdmaInfo *rdma);
void gpus_judge(struct document *document, const Tensorhub__V1__GpusInfo *gpus);
void gpus_fields(struct document *document, const Tensorhub__V1__GpusInfo *gpus);
void gpus_table(struct document *document, const Tensorhub__V1__GpusInfo *gpus);

/* Each way that the agent reaches memory of the session, once: "cuda-ipc,direct". */
struct value gpus_paths(const Tensorhub__V1__SessionInfo *session);
/* The memory that workers share, allocation by allocation. */
void gpus_memory(struct document *document, const Tensorhub__V1__StatusReply *status);

#endif
