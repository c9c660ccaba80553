/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpus_rig - a test that asks gpus.h for something and waits until it is there.
 *
 * All of it runs on the test's thread, but for what the GPU's thread tells.
 */
#ifndef TH_TESTS_SUPPORT_CUDA_GPUS_RIG_H
#define TH_TESTS_SUPPORT_CUDA_GPUS_RIG_H

#include "transport/cuda/agent/gpus.h"

#define RIG_BASE UINT64_C(0x7f0000000000)
#define RIG_PATIENCE_NS INT64_C(60000000000)

/* So many things have happened, since the last time that this was asked. */
void rig_happens(void);
void rig_wait(unsigned count);

/* A request that calls rig_happens when it is done. */
void rig_submit(struct gpu_request *request);
/* Submits it and waits until it is done; returns its code. */
int rig_carry(struct gpu_request *request);
struct gpu_request rig_read(const struct gpu_span *from, uint8_t *data);
struct gpu_request rig_write(const struct gpu_span *to, const uint8_t *data);
struct gpu_request rig_copy(const struct gpu_span *to, const struct gpu_span *from);
struct gpu_request rig_hash(const struct gpu_span *from);

/* Host memory of GPUs, with slices of a page; rig_happens when it is gone. */
struct rig_host {
	int fd;        /* owns */
	uint8_t *data; /* owns */
	uint64_t bytes;
	struct gpus_host *host; /* the test releases it */
};
struct rig_host rig_host_new(struct gpus *gpus, uint64_t pages);
void rig_host_end(struct rig_host *host); /* when it is gone */

/* A legacy piece at that place of the GPU's memory: the worker's address of it. */
uint64_t rig_add(struct gpu_space *space, uint64_t at, uint64_t bytes);
/* 0, or what settle told. */
int rig_settle(struct gpu_space *space, struct th_err *ret_err);
/* The one GPU that there is. */
struct gpu_status rig_status(struct gpus *gpus);
/* Until it is so, or the test fails. */
void rig_wait_until(bool (*is_so)(const struct gpu_status *status), struct gpus *gpus);
bool rig_no_imports(const struct gpu_status *status);
bool rig_no_process(const struct gpu_status *status);
bool rig_same(struct th_hash a, struct th_hash b);

#endif
