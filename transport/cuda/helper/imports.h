/* SPDX-License-Identifier: Apache-2.0 */
/*
 * imports - which memory of which workers the agent's GPU process has open.
 *
 * A piece is opened once, however many legs use it, and closed when its worker has left and the
 * last leg is done, whichever comes later. So a dead worker's GPU memory is free as soon as nobody
 * reads it, and until then readers go on: what they read stays.
 *
 * The driver opens and closes in the background (chores.h), opens in their order; a leg may hold
 * what is not open yet. One thread. Keys are the agent's, which gives each worker and each piece a
 * number that it never gives again, but for a piece that could not be opened.
 */
#ifndef TH_TRANSPORT_CUDA_HELPER_IMPORTS_H
#define TH_TRANSPORT_CUDA_HELPER_IMPORTS_H

#include "transport/cuda/helper/chores.h"
#include "transport/cuda/helper/import.h"

#define IMPORTS_MAX 65536u     /* of one GPU */
#define IMPORTS_ALL UINT64_MAX /* as a piece: all of the worker's */

struct imports_told { /* that a piece has been opened or closed */
	uint64_t worker, piece;
	int fd;            /* opened: the dma-buf of own memory, for who is told; else -1 */
	struct th_err err; /* code 0: well */
	bool is_lost;      /* not this memory's failure: the driver does not work any more */
};

struct imports_config {
	const struct cuda *cuda; /* borrows */
	int device;
	struct chores *opening, *closing; /* borrow */
	/* When chores are collected. What was not opened goes when nobody holds it. */
	void (*opened)(void *arg, const struct imports_told *told);
	void (*closed)(void *arg, const struct imports_told *told);
	void *arg;
};

struct imports {
	struct imports_config config;
	struct imports_entry *entries; /* own; uthash */
	struct imports_owner *owners;  /* own; uthash */
	struct import_pools pools;
};

void imports_init(struct imports *imports, const struct imports_config *config);

/* fd is taken. `failed` is NULL, or why it is not even tried. False: it is there already. */
bool imports_open(struct imports *imports, uint64_t worker, uint64_t piece,
	const struct cuda_handle *handle, int fd, const struct th_err *failed);
/* The same of the process's own memory. */
bool imports_open_own(struct imports *imports, uint64_t worker, uint64_t piece, uint64_t bytes);

/* Until imports_release; NULL: it is not there, or its worker left. */
struct imports_entry *imports_hold(struct imports *imports, uint64_t worker, uint64_t piece);
void imports_release(struct imports *imports, struct imports_entry *entry);
/* 1: it is not open yet; 0: it lies there; TH_E_STALE_MEMORY: it could not be opened. */
int imports_where(const struct imports_entry *entry, const struct cuda_import **ret_import);

/* Nobody begins to use them any more; closed when nobody does. */
void imports_leave(struct imports *imports, uint64_t worker, uint64_t piece);
/* Some of it is open, or opens, or closes. */
bool imports_has(const struct imports *imports, uint64_t worker, uint64_t piece);

#endif
