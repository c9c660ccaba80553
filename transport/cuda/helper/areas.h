/* SPDX-License-Identifier: Apache-2.0 */
/*
 * areas - the agent's host memory in the process of a GPU: mapped, and pinned for the GPU.
 *
 * Each area is one registration with the driver, for a copy must not run from one into another. An
 * area that the driver does not pin serves too, but for each copy the driver then waits for the
 * stream and moves the bytes by the CPU. An area that is forgotten stays until its last use ends:
 * neither the GPU nor a thread loses its memory under a copy. Then the agent is told, for its pages
 * are somebody else's from there on.
 *
 * One thread, but for the driver's calls (chores.h).
 */
#ifndef TH_TRANSPORT_CUDA_HELPER_AREAS_H
#define TH_TRANSPORT_CUDA_HELPER_AREAS_H

#include "ipc/cuda/driver.h"
#include "transport/cuda/gpu_wire.h"
#include "transport/cuda/helper/chores.h"

struct areas;

struct area {
	struct chore chore;
	struct areas *areas;
	uint32_t number;
	uint64_t at, bytes; /* in the file; bytes 0: it is forgotten, and nothing of it is left */
	int fd;             /* owns, until it is mapped */
	unsigned uses;      /* also the table's, and that of a chore */
	bool ready;         /* it has been tried to map it */
	uint8_t *data;      /* owns; NULL: it is not mapped */
	bool pinned;
	CUdeviceptr on_gpu; /* where kernels find data; 0: they do not */
	bool held;          /* it is forgotten, and the driver has it pinned still */
	struct th_err err;  /* why it is not mapped, not pinned, or held */
};

struct areas {
	struct chores *opening, *closing;               /* borrow */
	void (*is)(void *arg, const struct area *area); /* it is ready, or forgotten */
	void *arg;
	struct area *areas[GPU_AREAS_MAX];
};

void areas_init(struct areas *areas, struct chores *opening, struct chores *closing,
	void (*is)(void *arg, const struct area *area), void *arg);

/* `is` is called later, of both. fd is taken. False: there is one of this number; there is none. */
bool areas_open(struct areas *areas, const struct gpu_area *message, int fd);
bool areas_forget(struct areas *areas, uint32_t number);

/* Until areas_done; NULL: it is not there, or has no such bytes. It may not be ready yet. */
struct area *areas_use(struct areas *areas, uint32_t number, uint64_t at, uint64_t bytes);
void areas_done(struct area *area); /* NULL: nothing */

#endif
