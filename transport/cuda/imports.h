/* SPDX-License-Identifier: Apache-2.0 */
/*
 * imports - which memory of which workers the agent's GPU process has open.
 *
 * A piece is opened once, however many legs use it, and closed when its worker has left and the
 * last leg is done, whichever comes later. So a dead worker's GPU memory is free as soon as nobody
 * reads it, and until then readers go on: what they read stays.
 *
 * One thread. Keys are the agent's, which gives each worker a number that it never gives again.
 */
#ifndef TH_TRANSPORT_CUDA_IMPORTS_H
#define TH_TRANSPORT_CUDA_IMPORTS_H

#include "transport/cuda/import.h"

#define IMPORTS_MAX 65536u /* of one GPU */

struct imports {
	const struct cuda *cuda; /* borrows */
	int device;
	struct imports_entry *entries; /* own; uthash */
	struct imports_owner *owners;  /* own; uthash */
	struct imports_entry *closing; /* left, and nobody uses them: utlist */
	uint64_t bytes;                /* that are open */
	unsigned failed;               /* that could not be closed: only the process's end does */
};

void imports_init(struct imports *imports, const struct cuda *cuda, int device);
/* Closes all, in use or not. 0, or TH_E_MEMORY_KIND with the first sentence. */
int imports_end(struct imports *imports, struct th_err *err);

/* 0, or with a sentence: as import_new; TH_E_STATE for a piece that is there; TH_E_LIMIT. */
int imports_open(struct imports *imports, uint64_t worker, uint64_t piece,
	const struct cuda_handle *handle, int fd, struct th_err *err);

/* A leg's use of it: where it lies until imports_done; NULL: it is not open, or its worker left. */
const struct cuda_import *imports_use(struct imports *imports, uint64_t worker, uint64_t piece);
/* 0, or TH_E_MEMORY_KIND with a sentence where it had to be closed and was not. */
int imports_done(struct imports *imports, uint64_t worker, uint64_t piece, struct th_err *err);

/* All of a worker's, or one of them: closed now, or by the last imports_done. */
int imports_leave(struct imports *imports, uint64_t worker, struct th_err *err);
int imports_forget(struct imports *imports, uint64_t worker, uint64_t piece, struct th_err *err);

/* The same in steps, for thousands take the driver a second: begin, and step until it says 0. A
 * step closes one of those that have begun: 1, or TH_E_MEMORY_KIND with a sentence. */
void imports_begin_leave(struct imports *imports, uint64_t worker);
void imports_begin_forget(struct imports *imports, uint64_t worker, uint64_t piece);
int imports_step(struct imports *imports, struct th_err *err);

unsigned imports_count(const struct imports *imports);
unsigned imports_count_of(const struct imports *imports, uint64_t worker);
bool imports_has(const struct imports *imports, uint64_t worker, uint64_t piece);

#endif
