/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status_gpu - what this agent says of its GPUs, and of the memory that workers share, to thctl.
 *
 * Main thread only.
 */
#ifndef TH_DAEMON_HOST_STATUS_STATUS_GPU_H
#define TH_DAEMON_HOST_STATUS_STATUS_GPU_H

#include "ipc/proto/tensorhub.pb-c.h"

struct host;
struct memory_set;
struct status_gpu;
struct status_memory;

/* As it is now. */
struct status_gpu *status_gpu_new(const struct host *host);
void status_gpu_free(struct status_gpu *status);
/* Valid until it is freed. */
Tensorhub__V1__GpusInfo *status_gpu_info(struct status_gpu *status);

/* The objects of one session into info->memory; NULL: it has none. Free with status_memory_free. */
struct status_memory *status_memory_new(
	const struct memory_set *memory, Tensorhub__V1__SessionInfo *info);
void status_memory_free(struct status_memory *status);

#endif
