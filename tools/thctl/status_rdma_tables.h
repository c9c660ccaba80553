/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status_rdma_tables - what an agent says of its RDMA, for `thctl status`: its ports, the paths to
 * other hosts, and what is not well with them.
 */
#ifndef TH_TOOLS_THCTL_STATUS_RDMA_TABLES_H
#define TH_TOOLS_THCTL_STATUS_RDMA_TABLES_H

#include "ipc/proto/tensorhub.pb-c.h"
#include "tools/thctl/output.h"

/* NULL is an older agent, which says nothing. */
void rdma_judge(struct document *document, const Tensorhub__V1__RdmaInfo *rdma);
void rdma_fields(struct document *document, const Tensorhub__V1__RdmaInfo *rdma);
void rdma_tables(struct document *document, const Tensorhub__V1__RdmaInfo *rdma);

#endif
