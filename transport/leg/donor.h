/* SPDX-License-Identifier: Apache-2.0 */
/*
 * donor - another version in the memory of this host, from which a leg takes the chunks that are
 * the same in both: what did not change needs no network.
 *
 * Which these are is known without a look: both parts have the publishers' digests, and the same
 * table of chunks. What was copied is hashed on the way and counts as what arrives does, so damage
 * in the donor is not passed on: such a chunk is fetched.
 *
 * The donor's memory must not change meanwhile. Whoever wants it to drops the donor, and hears when
 * the last thread has left it, which is one chunk later at most.
 *
 * Guarded by the ledger's lock, but for donor_copy and what is said otherwise.
 */
#ifndef TH_TRANSPORT_LEG_DONOR_H
#define TH_TRANSPORT_LEG_DONOR_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/part/xfer_part.h"

struct donor {
	bool on;                /* the leg began with one. Immutable */
	bool dropped;           /* no thread begins to read it any more */
	bool touched;           /* a byte may have been written */
	struct xfer_part *part; /* owns: a reference, until it is dropped and nobody reads it */
	uint32_t num_readers;
	uint64_t bytes; /* of chunks that came from it */
};

/* Before the first chunk. from may be NULL, or of no use for this part: then there is none. */
void donor_init(struct donor *donor, struct xfer_part *from, struct xfer_part *part);
/* The part that has a chunk with this digest, which is read until donor_end. NULL: none. */
struct xfer_part *donor_begin(struct donor *donor, uint32_t chunk, const struct th_hash *digest);
/* Copies it, without the lock. False: memory that can not be touched. */
bool donor_copy(
	struct xfer_part *from, struct xfer_part *part, uint32_t chunk, struct th_hash *ret_digest);
/* bytes: that count. True: it was dropped, and now nobody reads it. */
bool donor_end(struct donor *donor, uint64_t bytes);
/* True: nobody reads it; otherwise donor_end says so. */
bool donor_drop(struct donor *donor);
void donor_fini(struct donor *donor); /* nobody reads it */

#endif
