/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xfer_part - the memory of one shard part at one generation, as the movers see it.
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
#ifndef TH_TRANSPORT_PART_XFER_PART_H
#define TH_TRANSPORT_PART_XFER_PART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "ipc/base/checked.h"
#include "ipc/base/ctl.h"
#include "transport/part/chunk.h"

struct xfer_part;

/*
 * table: the part takes a reference of its own (chunk_table_retain). tensors[i]: address of row i
 * of the canonical manifest; copied. verify: chunks count only with the publisher's digest. release
 * (may be NULL) is called once, by whichever thread drops the last reference: it only tells the
 * shell that the memory may be unmapped. NULL: out of memory.
 */
struct xfer_part *xfer_part_new(struct chunk_table *table, uint8_t *const *tensors,
	uint32_t num_tensors, bool verify, void (*release)(void *arg), void *arg);
/*
 * The same of rows of which some are not mapped: a place is an address here, or what access calls
 * it. A mapped row may have both: the file that it is a mapping of, for who can send out of a file;
 * that one cannot shrink. Keeps a reference of each access.
 *
 * A mapped row that lies in memory which is registered with NICs, or is about to be, has a region.
 * The part keeps no reference: who registered the memory does, as long as it is mapped. So it is
 * with host, where GPUs read and write it themselves.
 */
struct fd_memory;
struct gpus_host;
struct region;
struct xfer_place {
	uint8_t *data;            /* mapped; NULL otherwise, and for a row without bytes */
	struct fd_memory *access; /* borrows; may be NULL where there is data */
	uint64_t place;           /* what access calls it */
	struct region *region;    /* borrows; may be NULL */
	uint64_t region_at;       /* where in it the row begins */
	struct gpus_host *host;   /* borrows; may be NULL: no GPU reaches data (gpus.h) */
};
struct xfer_part *xfer_part_new_places(struct chunk_table *table, const struct xfer_place *places,
	uint32_t num_places, bool verify, void (*release)(void *arg), void *arg);
/*
 * Its small rows go through this buffer where a NIC moves them; made for the same table. Keeps a
 * reference. Before anybody else has the part. Of a part that is not touchable: nothing. 0 or
 * -ENOMEM.
 */
struct packed;
struct packing;
TH_MUST_USE int xfer_part_set_packed(struct xfer_part *part, struct packed *packed);
struct packing *xfer_part_packing(const struct xfer_part *part); /* NULL: there is none */
/* Why NICs do not reach all of it, as far as who made it knows: a clause about "its" memory that
 * lives as long as the process. Before anybody else has the part. NULL: nothing is known. */
void xfer_part_set_no_rdma(struct xfer_part *part, const char *why);
const char *xfer_part_no_rdma(const struct xfer_part *part);
struct xfer_part *xfer_part_retain(struct xfer_part *part);
void xfer_part_release(struct xfer_part *part);

const struct chunk_table *xfer_part_table(const struct xfer_part *part);
bool xfer_part_verify(const struct xfer_part *part);
/* All of it is mapped. If not, a ferry touches its bytes (ferry.h), also those that are mapped; or
 * requests to GPUs do. */
bool xfer_part_direct(const struct xfer_part *part);
/* All rows of one chunk are mapped. */
bool xfer_part_maps_chunk(const struct xfer_part *part, uint32_t chunk);
/* Rows of it lie in the memory of these GPUs (fd_memory.h); NULL: none. Borrowed. ret_whole (may be
 * NULL): no row lies anywhere else. */
struct gpus;
struct gpus *xfer_part_gpus(const struct xfer_part *part, bool *ret_whole);
/* How many GPUs rows of it lie on. ret_set: which; the same for parts on the same ones. */
uint32_t xfer_part_gpu_set(const struct xfer_part *part, struct th_hash *ret_set);
/* The uuid of the one that all of it lies on. NULL: there is no such. Borrowed. */
const uint8_t *xfer_part_only_gpu(const struct xfer_part *part);
/* The same of a chunk. */
const uint8_t *xfer_part_chunk_gpu(const struct xfer_part *part, uint32_t chunk);
/* All of it is mapped memory that GPUs read and write themselves. */
bool xfer_part_for_gpus(const struct xfer_part *part);
/* No row of it is behind a descriptor that its worker may keep from answering: all are mapped or in
 * GPU memory. So any thread that may wait for a GPU can touch its bytes (cuda/agent/touch.h). */
bool xfer_part_touchable(const struct xfer_part *part);
/* NULL: no NIC reaches the row. Borrowed. */
struct region *xfer_part_region(const struct xfer_part *part, uint32_t row, uint64_t *ret_at);
/* The descriptors behind it, each once: a new array with room for more, never NULL. */
int *xfer_part_descriptors(const struct xfer_part *part, uint32_t more, uint32_t *ret_count);
/*
 * The worker is gone: nobody can see what a write that got stuck in its memory does later, so
 * nobody waits for it any more. Calls the watchers, as xfer_part_advance does.
 */
void xfer_part_orphan(struct xfer_part *part);
bool xfer_part_orphaned(const struct xfer_part *part);
/*
 * Some of the memory of a published part can not be read: it never gets more digests, and who waits
 * for them is sent away. Calls the watchers, as xfer_part_advance does.
 */
void xfer_part_fail(struct xfer_part *part);
bool xfer_part_failed(const struct xfer_part *part);
/*
 * Why its memory is not reached any more, where somebody knows more than that: the first one stays.
 * TH_E_STALE_MEMORY, it is not there; or TH_E_MEMORY_KIND, it is, and the agent has no way to it.
 * 0: nobody knows.
 */
void xfer_part_set_lost(struct xfer_part *part, int code, const char *why);
int xfer_part_lost(struct xfer_part *part, char *ret_why, size_t bytes);
/*
 * Its memory held a version before, of which some chunks may be those that are wanted now: a leg
 * looks (reuse.h). Before its first leg.
 */
void xfer_part_expect_reuse(struct xfer_part *part);
bool xfer_part_expects_reuse(const struct xfer_part *part);

/*
 * Before a chunk of it is written: where the memory never held a version, its pages exist but are
 * not in our page tables yet. Each would be a fault of its own at the first write; a read maps
 * them by sixteens, writable. Of a direct part; elsewhere, and on kernels before 5.14, nothing.
 */
void xfer_part_map_chunk(const struct xfer_part *part, uint32_t chunk);

/* A place within one chunk, to walk over its memory in blocks. Pure; one owner. */
struct xfer_cursor {
	uint32_t range;  /* of the table */
	uint32_t left;   /* bytes of the chunk from here on */
	uint64_t offset; /* within the range */
};

void xfer_cursor_init(struct xfer_cursor *cursor, const struct xfer_part *part, uint32_t chunk);
/* Where the next bytes lie (at most as many as given, at most count ranges). Returns how many
 * ranges. Only of a direct part. */
uint32_t xfer_cursor_next(const struct xfer_cursor *cursor, const struct xfer_part *part,
	uint64_t bytes, struct iovec *ret_ranges, uint32_t count);
/* The next bytes that lie in one piece of one row, at most as many as given; of any part. */
struct xfer_piece {
	uint8_t *data;            /* mapped, or */
	struct fd_memory *access; /* borrows */
	uint64_t place;
	struct gpus_host *host; /* borrows; of data; may be NULL */
	uint64_t bytes;
	uint32_t row;
};
void xfer_cursor_piece(const struct xfer_cursor *cursor, const struct xfer_part *part,
	uint64_t bytes, struct xfer_piece *ret_piece);
/* The same as a place in a file, if the row is a mapping of one that is known. Of a direct part. */
struct xfer_file {
	int fd; /* borrows */
	uint64_t offset, bytes;
};
bool xfer_cursor_file(const struct xfer_cursor *cursor, const struct xfer_part *part,
	uint64_t bytes, struct xfer_file *ret_file);
void xfer_cursor_skip(struct xfer_cursor *cursor, const struct xfer_part *part, uint64_t bytes);

uint32_t xfer_part_prefix(const struct xfer_part *part);
uint64_t xfer_part_prefix_bytes(const struct xfer_part *part);
/* What legs from other agents have brought, with what comes again and chunks that are not whole:
 * many may fill at once, and the prefix stands still meanwhile. Any thread. */
void xfer_part_moved(struct xfer_part *part, uint64_t bytes);
uint64_t xfer_part_bytes_moved(const struct xfer_part *part);
/*
 * Nobody else may advance it at the same time. A part with verify needs the digests first. Calls
 * the watchers, with a lock of the part held: a watcher may not call back into the part.
 */
void xfer_part_advance(struct xfer_part *part, uint32_t prefix);
/*
 * Chunks beyond the prefix that a leg has verified before it ended: the next leg need not fetch
 * them again. Only by the leg that fills the part; legs follow each other, they never overlap.
 */
void xfer_part_keep(struct xfer_part *part, uint32_t chunk);
bool xfer_part_kept(const struct xfer_part *part, uint32_t chunk);
/* Digests 0 .. count-1 are known (count only grows). They are added in order, by one thread at a
 * time. */
uint32_t xfer_part_digest_count(const struct xfer_part *part);
const struct th_hash *xfer_part_digest(const struct xfer_part *part, uint32_t chunk);
void xfer_part_add_digests(
	struct xfer_part *part, uint32_t first, const struct th_hash *digests, uint32_t count);

/* A digest over all digests, in order: equal for equal bytes of one layout. None: not all known. */
struct th_hash xfer_part_content(const struct xfer_part *part);

/* Calls the watchers, as xfer_part_advance does: more of the part can be read than before. */
void xfer_part_tell(struct xfer_part *part);
/* After unwatch no call is under way or comes. */
typedef void (*xfer_part_watcher)(void *arg);
void xfer_part_watch(struct xfer_part *part, xfer_part_watcher watcher, void *arg);
bool xfer_part_watched(struct xfer_part *part); /* by now */
void xfer_part_unwatch(struct xfer_part *part, xfer_part_watcher watcher, void *arg);

#endif
