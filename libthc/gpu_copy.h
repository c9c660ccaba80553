/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_copy - moves bytes between GPU memory of this process and its host memory, on the calling
 * thread, under no lock.
 *
 * It works in a context that is there (ipc/cuda/context.h). Copies go on streams of its own, a
 * bounded part at a time, so that a deadline is kept and a GPU that hangs takes nobody along.
 */
#ifndef TH_LIBTHC_GPU_COPY_H
#define TH_LIBTHC_GPU_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/cuda/driver.h"

struct copied_span {
	uint64_t gpu, bytes;
	uint64_t at; /* in the host memory */
	int device;
};

struct gpu_copy {
	const struct cuda *cuda;
	const struct copied_span *spans; /* borrows; by device */
	size_t count;
	uint8_t *host;
	bool to_gpu;
	/* How far it is. */
	size_t index;
	uint64_t offset;
	/* The driver does not end what was given to it: the host memory must stay for ever. */
	bool stuck;
};

/* Whether it should end now; asked between the parts. */
typedef bool (*gpu_copy_stop)(void *arg);

/*
 * Goes on to the end: 0. -ETIMEDOUT: the deadline passed, and -ECANCELED: it was told to stop; both
 * at most half a second later, and a later call goes on from there. THC_E_STALE_MEMORY or
 * THC_E_MEMORY_KIND with a sentence, and the address that it is about; it begins anew then.
 */
TH_MUST_USE int gpu_copy_run(struct gpu_copy *copy, int64_t until_ns, gpu_copy_stop stop, void *arg,
	struct th_err *err, uint64_t *ret_at);

/* Host memory that GPUs reach at full speed: 0, or a code with a sentence. Any part of it may be
 * pinned by itself. address: of memory of the GPU whose context does it. */
#define GPU_PIN_BYTES ((uint64_t)256 << 20) /* a multiple of what one copy moves */
TH_MUST_USE int gpu_pin(const struct cuda *cuda, int device, uint64_t address, void *host,
	uint64_t bytes, struct th_err *err);
void gpu_unpin(const struct cuda *cuda, int device, uint64_t address, void *host);

#endif
