/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk - the chunk table of a manifest: a pure function of its canonical rows (layout id 1).
 *
 * Small rows (less than 2 MiB) are packed greedily, in order and without padding, into chunks of at
 * most 4 MiB; a chunk never mixes small and large rows. Each large row is cut by itself every 4
 * MiB, its last chunk short. Rows without bytes are in no chunk. Progress, digests, resume and
 * requests count these chunks.
 */
#ifndef TH_TRANSPORT_PART_CHUNK_H
#define TH_TRANSPORT_PART_CHUNK_H

#include <stdint.h>

#include "ipc/base/ctl.h"
#include "ipc/proto/manifest.h"

#define CHUNK_BYTES_MAX (4u << 20) /* a constant of layout id 1 */

struct chunk_range {
	uint32_t row;    /* of the canonical manifest */
	uint64_t offset; /* within the row */
	uint64_t bytes;
};

struct chunk_table {
	uint32_t num_chunks;
	uint32_t num_small; /* chunks 0 .. num_small - 1 are of small rows; they come first */
	uint64_t bytes;     /* of all chunks */
	/* Ranges of chunk c: ranges[first[c]] .. ranges[first[c + 1] - 1]; chunk c starts at byte
	 * start[c] of the shard. Both arrays have num_chunks + 1 entries. */
	uint32_t *first;
	uint64_t *start;
	struct chunk_range *ranges;
	uint32_t references; /* atomic; others only retain and release */
};

/* NULL: out of memory. One reference. */
struct chunk_table *chunk_table_new(const struct manifest *manifest);
struct chunk_table *chunk_table_retain(struct chunk_table *table);
void chunk_table_release(struct chunk_table *table);
uint32_t chunk_bytes(const struct chunk_table *table, uint32_t chunk);

#endif
