/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part - the memory of one shard part at one generation, as the movers see it.
 *
 * A chunk table (pure function of the manifest), the address of every tensor, the digests known so
 * far and the prefix: chunks 0 .. prefix-1 are final and may be served. At a publisher the prefix
 * follows the hashing, at a reader the verification; nobody serves beyond it. It only grows.
 *
 * Threads: created and released by the shell, shared with movers by reference count. The prefix and
 * the digest count are atomics; digests below the digest count are immutable. Whoever must act on
 * growth registers a watcher; it is called by the thread that advanced the prefix and may only wake
 * its own thread.
 */
#ifndef TH_TRANSPORT_PART_H
#define TH_TRANSPORT_PART_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/ctl.h"
#include "transport/chunk.h"

struct xfer_part;

struct xfer_range { /* bytes of a chunk as they lie in memory; owned by nobody                 */
	uint8_t *base;
	uint64_t bytes;
};

/*
 * table: borrowed for the life of the part through a reference of its own (chunk_table_retain).
 * tensors[i]: address of row i of the canonical manifest. release is called once, by whichever
 * thread drops the last reference: it only tells the shell that the memory may be unmapped.
 */
struct xfer_part *xfer_part_new(struct chunk_table *table, uint8_t *const *tensors, bool verify,
	void (*release)(void *arg), void *arg);
struct xfer_part *xfer_part_retain(struct xfer_part *part);
void xfer_part_release(struct xfer_part *part);

const struct chunk_table *xfer_part_table(const struct xfer_part *part);
/* The ranges of one chunk. Returns their number, at most count. */
uint32_t xfer_part_ranges(const struct xfer_part *part, uint32_t chunk,
	struct xfer_range *ret_ranges, uint32_t count);

uint32_t xfer_part_prefix(const struct xfer_part *part);
uint64_t xfer_part_prefix_bytes(const struct xfer_part *part);
/* Nobody else may advance it at the same time. Calls the watchers. */
void xfer_part_advance(struct xfer_part *part, uint32_t prefix);
/* Digests 0 .. count-1 are known (count only grows). */
uint32_t xfer_part_digest_count(const struct xfer_part *part);
const struct th_hash *xfer_part_digest(const struct xfer_part *part, uint32_t chunk);
void xfer_part_add_digests(
	struct xfer_part *part, uint32_t first, const struct th_hash *digests, uint32_t count);

typedef void (*xfer_part_watcher)(void *arg);
void xfer_part_watch(struct xfer_part *part, xfer_part_watcher watcher, void *arg);
void xfer_part_unwatch(struct xfer_part *part, xfer_part_watcher watcher, void *arg);

#endif
