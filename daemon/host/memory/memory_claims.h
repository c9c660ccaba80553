/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_claims - which bytes of which memory object a session uses, and whether two sessions
 * collide.
 *
 * A memory object is named by its inode, so the same memfd sent by two sessions (or twice by one)
 * is one object here. A claim is what a session does with its bytes now: published or replicated
 * bytes are read by peers and must not change (READ); the destination of a running replicate or
 * update is written (WRITE). A WRITE never meets another session's claim. Main thread only; pure.
 */
#ifndef TH_DAEMON_HOST_MEMORY_MEMORY_CLAIMS_H
#define TH_DAEMON_HOST_MEMORY_MEMORY_CLAIMS_H

#include <stdbool.h>
#include <stdint.h>

struct interval { /* [start, end) of a file; never empty */
	uint64_t dev, ino;
	uint64_t start, end;
	uint32_t row; /* of the owner's own list, for sentences */
};

/* By (dev, ino, start, end), for qsort. */
int interval_compare(const void *a, const void *b);

/*
 * Both sorted and free of overlaps in themselves. True: *ret_a and *ret_b are the first two that
 * meet.
 */
bool interval_overlap(const struct interval *a, uint32_t num_a, const struct interval *b,
	uint32_t num_b, uint32_t *ret_a, uint32_t *ret_b);

enum claim_mode { CLAIM_NONE, CLAIM_READ, CLAIM_WRITE };

struct claim {
	struct claim *next; /* borrows: of the table */
	enum claim_mode mode;
	const struct interval *intervals; /* borrows: valid while the claim is in a table */
	uint32_t num_intervals;
	void *owner;
};

struct claim_table {
	struct claim *first;
};

void claim_add(struct claim_table *table, struct claim *claim);    /* mode NONE */
void claim_remove(struct claim_table *table, struct claim *claim); /* harmless when not in it */

/*
 * The first claim of another owner that does not go together with claim in the given mode, or NULL.
 * *ret_own and *ret_other are the intervals that meet.
 */
const struct claim *claim_conflict(const struct claim_table *table, const struct claim *claim,
	enum claim_mode mode, uint32_t *ret_own, uint32_t *ret_other);

#endif
