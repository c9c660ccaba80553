/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_places - a validated registration: what a shard consists of and where each byte of it
 * lies.
 *
 * Made of the rows that a worker sent and of the memory objects that it shared. Everything is
 * checked here, once: shapes, names and ties by the manifest, places against the memory objects,
 * overlaps against each other. Afterwards it never changes. Main thread only; no I/O.
 */
#ifndef TH_DAEMON_HOST_WORKER_TENSOR_PLACES_H
#define TH_DAEMON_HOST_WORKER_TENSOR_PLACES_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/host/memory/holes.h"
#include "daemon/host/memory/memory.h"
#include "daemon/host/memory/memory_claims.h"
#include "ipc/base/err.h"
#include "ipc/proto/manifest.h"
#include "transport/part/chunk.h"
#include "transport/part/xfer_part.h"

struct packed;

struct tensors_place { /* of one row, as the worker says */
	uint32_t memory_id;
	uint64_t offset; /* in the memory object; of a GPU's it may run into those behind it */
	uint64_t bytes;
};

/* Rows in the worker's own order. Borrowed. */
struct tensors_rows {
	uint32_t count;
	const struct manifest_row *rows;
	const struct tensors_place *places;
};

struct tensors {
	struct manifest manifest;
	struct th_hash layout; /* of the rows                                                   */
	struct th_hash key;    /* of the encoded manifest                                       */
	uint8_t *encoded;      /* owns                                                          */
	size_t encoded_bytes;
	struct chunk_table *table; /* owns: a reference                                          */
	struct xfer_place *places; /* owns; [manifest.num_rows]; borrows what is memory's        */
	uint32_t *memory_ids;      /* owns; likewise: the memory objects; NULL: of no worker     */
	struct packed *packed;     /* owns: a reference; NULL: no NIC moves its small tensors    */
	const char *no_rdma;       /* why, as the transport has it; NULL: nothing is known       */
	bool told;                 /* the log says what could not be registered                  */
	bool covered;           /* there is nothing left to be registered: see nic_regions.h      */
	uint32_t gpus;          /* a mask: the worker's GPUs that rows lie on               */
	uint32_t read_only_row; /* of the manifest: can not be a destination; or UINT32_MAX   */
	const char *read_only;  /* why it can not; NULL: all can */
	struct interval *intervals; /* owns; sorted, disjoint; row = of the manifest             */
	uint32_t num_intervals;
	struct holes_file *files; /* owns; the worker's files that intervals lie in            */
	uint32_t num_files;
};

/* 0 and a registration; or a code with the sentence for the worker. */
int tensors_new(const struct tensors_rows *rows, const struct memory_set *memory,
	struct th_err *err, struct tensors **ret_tensors);
/*
 * The same of an encoded manifest, for memory that nobody has laid out yet: *ret_bytes of it are
 * needed, and tensors_place says where they begin, in memory, in the file that is mapped there and
 * for GPUs that reach it (both borrowed; may be NULL).
 */
int tensors_of_manifest(const uint8_t *data, size_t bytes, struct th_err *err,
	struct tensors **ret_tensors, uint64_t *ret_bytes);
void tensors_place(
	struct tensors *tensors, uint8_t *memory, struct fd_memory *file, struct gpus_host *host);
/* All rows, as far as they have bytes. */
bool tensors_mapped(const struct tensors *tensors);
void tensors_free(struct tensors *tensors); /* NULL: nothing */

#endif
