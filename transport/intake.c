/* SPDX-License-Identifier: Apache-2.0 */
/*
 * intake - see intake.h. States of a chunk (an earlier leg's verified chunks begin as DONE):
 *
 *   FREE -> TAKEN -> ARRIVED (digest not known yet) -> DONE
 *             ^  \-------------------------------------^
 *             |   \-> BAD (did not match)
 *             +-------/
 */
#include "transport/intake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/err.h"
#include "ipc/base/name.h"
#include "transport/internal.h"
#include "transport/rdma/packed.h"

enum intake_state { INTAKE_FREE, INTAKE_TAKEN, INTAKE_ARRIVED, INTAKE_BAD, INTAKE_DONE };

int
intake_init(struct intake *intake, struct xfer_part *part, struct transport_counters *counters)
{
	uint32_t num_chunks = xfer_part_table(part)->num_chunks;
	size_t slots = num_chunks ? num_chunks : 1;
	*intake = (struct intake){.part = part, .counters = counters, .num_chunks = num_chunks};
	intake->states = calloc(slots, sizeof(intake->states[0]));
	intake->attempts = calloc(slots, sizeof(intake->attempts[0]));
	intake->arrived = calloc(slots, sizeof(intake->arrived[0]));
	if (!intake->states || !intake->attempts || !intake->arrived) {
		free(intake->states);
		free(intake->attempts);
		free(intake->arrived);
		return -ENOMEM;
	}
	intake->prefix = intake->next = xfer_part_prefix(part);
	/* Memory that is not mapped is only touched by who may be left behind. */
	intake->patient =
		xfer_part_expects_reuse(part) && xfer_part_verify(part) && xfer_part_direct(part);
	reuse_init(&intake->reuse, intake->patient);
	for (uint32_t c = intake->prefix; c < num_chunks; c++) {
		if (xfer_part_kept(part, c))
			intake->states[c] = INTAKE_DONE;
	}
	pthread_mutex_init(&intake->lock, NULL);
	return 0;
}

void
intake_fini(struct intake *intake)
{
	for (uint32_t c = intake->prefix; c < intake->num_chunks; c++) {
		if (intake->states[c] == INTAKE_DONE)
			xfer_part_keep(intake->part, c);
		else
			packed_drop(intake->part, c); /* the next leg may bring it another way */
	}
	pthread_mutex_destroy(&intake->lock);
	free(intake->states);
	free(intake->attempts);
	free(intake->arrived);
}

static uint32_t
row_of(const struct intake *intake, uint32_t chunk)
{
	const struct chunk_table *table = xfer_part_table(intake->part);
	return table->ranges[table->first[chunk]].row;
}

/* Under the lock: is the next chunk held back until there is a digest to compare it with? */
static bool
held_back(const struct intake *intake)
{
	return intake->patient && intake->next < intake->num_chunks &&
	       intake->next >= xfer_part_digest_count(intake->part) &&
	       reuse_pays(&intake->reuse, row_of(intake, intake->next));
}

bool
intake_take(struct intake *intake, uint32_t limit, uint32_t *ret_chunk)
{
	bool found = false;
	pthread_mutex_lock(&intake->lock);
	while (intake->next < intake->num_chunks && intake->states[intake->next] == INTAKE_DONE)
		intake->next++; /* an earlier leg brought it */
	uint32_t chunk = intake->next;
	if (intake->num_again > 0) {
		/* Rare, and near the prefix: all before it is done. */
		chunk = intake->prefix;
		while (intake->states[chunk] != INTAKE_BAD)
			chunk++;
		intake->num_again--;
		found = true;
	} else if (chunk < intake->num_chunks && chunk < limit && !held_back(intake)) {
		intake->next++;
		found = true;
	}
	if (found) {
		intake->states[chunk] = INTAKE_TAKEN;
		*ret_chunk = chunk;
	}
	pthread_mutex_unlock(&intake->lock);
	return found;
}

void
intake_give_back(struct intake *intake, uint32_t chunk)
{
	pthread_mutex_lock(&intake->lock);
	TH_ASSERT(chunk < intake->num_chunks && intake->states[chunk] == INTAKE_TAKEN);
	intake->states[chunk] = INTAKE_BAD;
	intake->num_again++;
	pthread_mutex_unlock(&intake->lock);
}

/* Under the lock. */
static uint32_t
lowest_missing(const struct intake *intake)
{
	uint32_t chunk = intake->prefix;
	while (chunk < intake->next && intake->states[chunk] != INTAKE_TAKEN)
		chunk++;
	return chunk == intake->next ? intake->num_chunks : chunk;
}

/* Under the lock. */
static int
fetch_again(struct intake *intake, uint32_t chunk)
{
	if (++intake->attempts[chunk] >= INTAKE_ATTEMPTS_MAX)
		return TH_E_CHECKSUM;
	__atomic_add_fetch(&intake->counters->chunks_refetched, 1, __ATOMIC_RELAXED);
	packed_drop(intake->part, chunk);
	intake->states[chunk] = INTAKE_BAD;
	intake->num_again++;
	return 0;
}

/* Compares an arrived chunk with its digest. Under the lock. */
static int
judge(struct intake *intake, uint32_t chunk, const struct th_hash *digest)
{
	struct transport_counters *counters = intake->counters;
	if (th_hash_equal(*xfer_part_digest(intake->part, chunk), *digest)) {
		intake->states[chunk] = INTAKE_DONE;
		__atomic_add_fetch(&counters->chunks_verified, 1, __ATOMIC_RELAXED);
		return 0;
	}
	__atomic_add_fetch(&counters->checksum_failures, 1, __ATOMIC_RELAXED);
	return fetch_again(intake, chunk);
}

/* Moves the prefix. The lock makes this the only advance of the part at a time. */
static int
settle(struct intake *intake)
{
	int result = intake->num_again > 0 ? INTAKE_AGAIN : 0;
	uint32_t before = intake->prefix;
	while (intake->prefix < intake->num_chunks && intake->states[intake->prefix] == INTAKE_DONE)
		intake->prefix++;
	if (intake->prefix == before)
		return result;
	xfer_part_advance(intake->part, intake->prefix);
	result |= INTAKE_GREW;
	if (intake->prefix == intake->num_chunks)
		result |= INTAKE_COMPLETE;
	return result;
}

bool
intake_reuse(struct intake *intake, uint32_t chunk, int *ret_result)
{
	struct xfer_part *part = intake->part;
	struct th_hash now;
	if (!intake->reuse.on)
		return false;
	uint32_t row = row_of(intake, chunk);
	pthread_mutex_lock(&intake->lock);
	bool look = intake->attempts[chunk] == 0 && chunk < xfer_part_digest_count(part) &&
		    reuse_pays(&intake->reuse, row);
	if (!look)
		reuse_pass(&intake->reuse);
	pthread_mutex_unlock(&intake->lock);
	if (!look)
		return false;
	/* The bytes as they are now: nothing else says what they are. */
	bool equal = part_digest(part, chunk, &now) == 0 &&
		     th_hash_equal(now, *xfer_part_digest(part, chunk));
	uint64_t bytes = chunk_bytes(xfer_part_table(part), chunk);
	pthread_mutex_lock(&intake->lock);
	reuse_judge(&intake->reuse, row, equal, bytes);
	if (equal) {
		intake->states[chunk] = INTAKE_DONE;
		__atomic_add_fetch(&intake->counters->chunks_verified, 1, __ATOMIC_RELAXED);
		__atomic_add_fetch(&intake->counters->bytes_reused, bytes, __ATOMIC_RELAXED);
		*ret_result = settle(intake);
	}
	pthread_mutex_unlock(&intake->lock);
	return equal;
}

bool
intake_hurry(struct intake *intake)
{
	pthread_mutex_lock(&intake->lock);
	bool held = held_back(intake) && lowest_missing(intake) == intake->num_chunks;
	if (held)
		intake->patient = false;
	pthread_mutex_unlock(&intake->lock);
	return held;
}

int
intake_arrived(struct intake *intake, uint32_t chunk, const struct th_hash *digest)
{
	int rc = 0;
	pthread_mutex_lock(&intake->lock);
	TH_ASSERT(chunk < intake->num_chunks && intake->states[chunk] == INTAKE_TAKEN);
	if (!digest) {
		intake->states[chunk] = INTAKE_DONE;
	} else if (chunk < xfer_part_digest_count(intake->part)) {
		rc = judge(intake, chunk, digest);
	} else {
		intake->states[chunk] = INTAKE_ARRIVED;
		intake->arrived[chunk] = *digest;
	}
	if (rc == 0)
		rc = settle(intake);
	pthread_mutex_unlock(&intake->lock);
	return rc;
}

int
intake_mismatched(struct intake *intake, uint32_t chunk)
{
	pthread_mutex_lock(&intake->lock);
	TH_ASSERT(chunk < intake->num_chunks && intake->states[chunk] == INTAKE_TAKEN);
	int rc = fetch_again(intake, chunk);
	if (rc == 0)
		rc = settle(intake);
	pthread_mutex_unlock(&intake->lock);
	return rc;
}

int
intake_digests(struct intake *intake, uint32_t first, const struct th_hash *digests, uint32_t count)
{
	struct xfer_part *part = intake->part;
	int rc = 0;
	if (first > intake->num_chunks || count > intake->num_chunks - first)
		return TH_E_PROTOCOL;
	pthread_mutex_lock(&intake->lock);
	uint32_t known = xfer_part_digest_count(part);
	uint32_t end = first + count;
	if (first > known)
		rc = TH_E_PROTOCOL;
	for (uint32_t c = first; rc == 0 && c < end && c < known; c++) {
		if (!th_hash_equal(*xfer_part_digest(part, c), digests[c - first]))
			rc = TH_E_CHECKSUM;
	}
	if (rc == 0 && end > known)
		xfer_part_add_digests(part, known, digests + (known - first), end - known);
	for (uint32_t c = known; rc == 0 && c < end; c++) {
		if (intake->states[c] == INTAKE_ARRIVED)
			rc = judge(intake, c, &intake->arrived[c]);
	}
	if (rc == 0)
		rc = settle(intake);
	pthread_mutex_unlock(&intake->lock);
	return rc;
}

uint32_t
intake_lowest_missing(struct intake *intake)
{
	pthread_mutex_lock(&intake->lock);
	uint32_t chunk = lowest_missing(intake);
	pthread_mutex_unlock(&intake->lock);
	return chunk;
}
