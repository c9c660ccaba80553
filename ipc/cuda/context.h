/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context - a context of a worker's framework, current while a call that needs one is made.
 *
 * It is that of the memory, the thread's own, or the primary one when it is active: a thread of an
 * engine that registers or copies may have none of its own. None is ever made.
 */
#ifndef TH_IPC_CUDA_CONTEXT_H
#define TH_IPC_CUDA_CONTEXT_H

#include "ipc/base/checked.h"
#include "ipc/cuda/driver.h"

struct cuda_context {
	const struct cuda *cuda; /* borrows */
	CUdevice device;
	bool retained; /* the primary one, once more */
};

/*
 * One of the GPU (an ordinal of this process) is current on this thread until cuda_context_leave:
 * 0. Or with a sentence TH_E_MEMORY_KIND, there is none; TH_E_STALE_MEMORY, it has just gone.
 * address: of memory of that GPU.
 */
TH_MUST_USE int cuda_context_enter(const struct cuda *cuda, int ordinal, CUdeviceptr address,
	struct cuda_context *ret_context, struct th_err *err);
void cuda_context_leave(const struct cuda_context *context);

#endif
