/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed - the small tensors of a shard side by side: a NIC reads thousands of them at once.
 *
 * A READ moves one piece of memory at either end. So rows of less than 2 MiB are not read where
 * they lie, but out of one buffer that holds them in the order of the chunks, and into one. At a
 * publisher the hasher fills it, and hashes there what it has copied. At a reader READs land in it,
 * are hashed there and scattered to the tensors, and others read on from there. What came in any
 * other way is packed later, when somebody wants to READ it (packed_fill).
 *
 * The *buffer* (struct packed) belongs to a registration and is used for one version after the
 * other, so nothing is registered for a transfer. Which chunks lie in it is known per part
 * (struct packing): a new part begins with none. As of the tensors themselves, nobody touches the
 * buffer for a part that has ended: whatever is done here for a leg or a job is over before that
 * has its last event.
 *
 * Only parts whose memory is mapped or on a GPU have one (xfer_part_touchable). Any thread that may
 * wait for a GPU; a chunk is packed by one at a time.
 */
#ifndef TH_TRANSPORT_PART_PACKED_H
#define TH_TRANSPORT_PART_PACKED_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/ctl.h"
#include "transport/part/chunk.h"
#include "transport/rdma/device/verbs.h"

struct packed;
struct packing;
struct rails;
struct region;
struct xfer_part;

/*
 * What all memory of a shard is registered for, packed or not: a reader becomes a source of what it
 * has read, so READs land in it and peers READ it, and one registration serves both. Nobody else
 * ever writes to it from outside: there is no such access.
 */
#define SHARD_ACCESS (VERBS_LOCAL_WRITE | VERBS_REMOTE_READ)

/* ---- the buffer --------------------------------------------------------------------------- */

/* Where a chunk of small rows lies in it, at every host alike; whole lines of the cache. */
uint64_t packed_at(const struct chunk_table *table, uint32_t chunk);
/* 0: there are no small rows, so there is no buffer. */
uint64_t packed_bytes(const struct chunk_table *table);

/* Of these chunks. NULL: no memory. One reference. */
struct packed *packed_new(const struct chunk_table *table);
/* Has all of it registered with these rails, in the background; before others have it, once. Its
 * memory is given back when no device knows it any more. */
void packed_register(struct packed *packed, struct rails *rails, uint32_t mask);
void packed_release(struct packed *packed); /* NULL: nothing */
/* All of it, registered or about to be; NULL: not asked for. Borrowed. */
struct region *packed_region(const struct packed *packed);
uint8_t *packed_data(const struct packed *packed);
uint64_t packed_size(const struct packed *packed); /* what it takes from the host: whole pages */
/* The sizes of all that there are in this process. */
uint64_t packed_size_all(void);

/* ---- of a part (xfer_part_set_packed) ------------------------------------------------------ */

/* Keeps a reference of the buffer. NULL: no memory. */
struct packing *packing_new(struct packed *packed, const struct chunk_table *table);
void packing_free(struct packing *packing); /* NULL: nothing */
struct packed *packing_packed(const struct packing *packing);

/* Whether the chunk is read out of the buffer, and READs of it land there. */
bool packed_has(const struct xfer_part *part, uint32_t chunk);
/* Chunks below it may be READ: all of the part's prefix, or less when some are not packed yet. */
uint32_t packed_prefix(const struct xfer_part *part);

/*
 * Packs a chunk and hashes what now lies there. stop (may be NULL): looked at in between. 1, 0:
 * stopped midway, or TH_E_STALE_MEMORY and the row whose memory can not be read.
 */
TH_MUST_USE int packed_hash(struct xfer_part *part, uint32_t chunk, const bool *stop,
	struct th_hash *ret_digest, uint32_t *ret_row);

/* A chunk below the part's prefix is not packed, and nobody is at it. */
bool packed_lacks(const struct xfer_part *part);
/*
 * Packs up to so many chunks below the part's prefix that are not. When packed_prefix grew by that,
 * or a chunk is left to others, it calls the part's watchers. 1: there is more to do, 0: not for
 * this thread, or TH_E_STALE_MEMORY.
 */
TH_MUST_USE int packed_fill(struct xfer_part *part, uint32_t chunks);

/*
 * READs of this chunk have landed in the buffer: hashes it there (ret_digest may be NULL) and
 * scatters it. Before chunk_ledger_arrived. 0 or TH_E_STALE_MEMORY.
 */
TH_MUST_USE int packed_landed(struct xfer_part *part, uint32_t chunk, struct th_hash *ret_digest);
/* What landed was not the chunk, or its leg ended before that was known: then it may be written to
 * the tensors by who knows of no buffer. */
void packed_drop(struct xfer_part *part, uint32_t chunk);

/*
 * A reader says that a chunk it READ does not match: is what it can READ still what was published?
 * Of any chunk of a touchable part. 0: it is (a damaged copy in the buffer was made again);
 * TH_E_CONTRACT: the worker has written to it; TH_E_STALE_MEMORY; TH_E_PROTOCOL: nobody could have
 * READ and judged it yet.
 */
TH_MUST_USE int packed_check(struct xfer_part *part, uint32_t chunk);

#endif
