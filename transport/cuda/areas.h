/* SPDX-License-Identifier: Apache-2.0 */
/*
 * areas - the agent's host memory in the process of a GPU: mapped, and pinned for the GPU.
 *
 * Each area is one registration with the driver, for a copy must not run from one into another. An
 * area that the driver does not pin serves too, but for each copy the driver then waits on the
 * stream and moves the bytes by the CPU. An area that is replaced stays until its last use ends:
 * neither the GPU nor a thread loses its memory under a copy.
 *
 * One thread, and the context is current in it.
 */
#ifndef TH_TRANSPORT_CUDA_AREAS_H
#define TH_TRANSPORT_CUDA_AREAS_H

#include "ipc/cuda/driver.h"
#include "transport/cuda/wire.h"

struct area {
	uint8_t *data; /* owns */
	uint64_t bytes;
	unsigned uses; /* and one for the table */
	bool pinned;
};

struct areas {
	const struct cuda *cuda; /* borrows */
	struct area *areas[GPU_AREAS_MAX];
};

void areas_init(struct areas *areas, const struct cuda *cuda);

/*
 * Replaces what has the number; bytes 0: by nothing. fd is only borrowed. 0, *ret_why empty or why
 * it is not pinned; or with a sentence -errno or TH_E_PROTOCOL: nothing has the number then.
 */
int areas_set(struct areas *areas, uint32_t number, uint64_t bytes, int fd, struct th_err *ret_why,
	struct th_err *err);
bool areas_pinned(const struct areas *areas, uint32_t number);

/* Until area_done; NULL: it is not there, or has no such bytes. */
struct area *areas_use(struct areas *areas, uint32_t number, uint64_t at, uint64_t bytes);
void areas_done(struct areas *areas, struct area *area);

#endif
