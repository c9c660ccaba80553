/* SPDX-License-Identifier: Apache-2.0 */
/*
 * intake - see intake.h. States of a chunk (an earlier leg's verified chunks begin as DONE):
 *
 *   FREE -> TAKEN -> ARRIVED (digest not known yet) -> DONE
 *    |       ^ ^ \-------------------------------------^ ^
 *    |       | |  \-> BAD (did not match)                |
 *    |       | +------/                                  |
 *    |     MISSED (its bytes are not here)               |
 *    |       ^                                           |
 *    +-> LOOKING (by a GPU) -----------------------------+
 *
 * Of a part that GPUs look at, those that no GPU does begin as MAPPED (who takes one looks) or as
 * APART (nobody does), in place of FREE. They leave that in order. Where one is to be looked at by
 * a GPU, and so many looks are under way that no more may pay before these are known, it waits, and
 * so do all behind it.
 */
#include "transport/intake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/err.h"
#include "ipc/base/name.h"
#include "transport/internal.h"
#include "transport/look.h"
#include "transport/rdma/packed.h"

enum intake_state {
	INTAKE_FREE,
	INTAKE_MAPPED,
	INTAKE_APART,
	INTAKE_LOOKING,
	INTAKE_MISSED,
	INTAKE_TAKEN,
	INTAKE_ARRIVED,
	INTAKE_BAD,
	INTAKE_DONE,
};

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
	/* Memory behind a descriptor is only touched by who may be left behind. */
	intake->patient =
		xfer_part_expects_reuse(part) && xfer_part_verify(part) && xfer_part_direct(part);
	intake->hashes_here = intake->patient;
	reuse_init(&intake->reuse, intake->patient);
	for (uint32_t c = intake->prefix; c < num_chunks; c++) {
		if (xfer_part_kept(part, c))
			intake->states[c] = INTAKE_DONE;
	}
	pthread_mutex_init(&intake->lock, NULL);
	return 0;
}

static enum intake_state
first_state(const struct xfer_part *part, uint32_t chunk)
{
	if (xfer_part_chunk_gpu(part, chunk))
		return INTAKE_FREE;
	return xfer_part_maps_chunk(part, chunk) ? INTAKE_MAPPED : INTAKE_APART;
}

void
intake_look(struct intake *intake, struct loop *loop, struct loop_task *looked)
{
	struct xfer_part *part = intake->part;
	bool all_gpu;
	if (!xfer_part_gpus(part, &all_gpu) || !xfer_part_touchable(part) ||
		!xfer_part_expects_reuse(part) || !xfer_part_verify(part))
		return;
	intake->looks = looks_new(part, loop, looked);
	intake->patient = true;
	intake->hashes_here = !all_gpu;
	reuse_init(&intake->reuse, true);
	if (xfer_part_only_gpu(part))
		return;
	for (uint32_t c = intake->prefix; c < intake->num_chunks; c++) {
		if (intake->states[c] == INTAKE_FREE)
			intake->states[c] = (uint8_t)first_state(part, c);
	}
}

void
intake_look_stop(struct intake *intake)
{
	if (intake->looks)
		looks_stop(intake->looks);
}

void
intake_fini(struct intake *intake)
{
	looks_free(intake->looks);
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

/* ---- what is next (under the lock) --------------------------------------------------------- */

static bool
has_next(struct intake *intake, uint32_t limit)
{
	while (intake->next < intake->num_chunks && intake->states[intake->next] == INTAKE_DONE)
		intake->next++; /* an earlier leg brought it */
	return intake->next < th_min_u32(intake->num_chunks, limit);
}

/* Is the next chunk held back until there is a digest to compare it with? */
static bool
lacks_digest(const struct intake *intake)
{
	return intake->patient && intake->next < intake->num_chunks &&
	       intake->states[intake->next] != INTAKE_APART &&
	       intake->next >= xfer_part_digest_count(intake->part) &&
	       reuse_pays(&intake->reuse, row_of(intake, intake->next), 0);
}

/* A GPU may look at the next chunk: it has something to compare with. */
static bool
may_look(const struct intake *intake)
{
	return intake->looks && intake->states[intake->next] == INTAKE_FREE &&
	       intake->next < xfer_part_digest_count(intake->part);
}

/* ... or until others have come back, which then begin with it? */
static bool
held_back(const struct intake *intake)
{
	return lacks_digest(intake) ||
	       (may_look(intake) && reuse_waits(&intake->reuse, row_of(intake, intake->next)));
}

/* The first one that was looked at in vain. */
static bool
find_missed(const struct intake *intake, uint32_t limit, uint32_t *ret_chunk)
{
	if (intake->num_missed == 0)
		return false;
	const uint8_t *from = intake->states + intake->prefix;
	const uint8_t *state = memchr(from, INTAKE_MISSED, intake->next - intake->prefix);
	TH_ASSERT(state);
	*ret_chunk = (uint32_t)(state - intake->states);
	return *ret_chunk < limit;
}

static bool
has_any(struct intake *intake)
{
	uint32_t chunk;
	return intake->num_again > 0 || find_missed(intake, intake->limit, &chunk) ||
	       (has_next(intake, intake->limit) && !held_back(intake));
}

/* ---- looks by GPUs ------------------------------------------------------------------------- */

/* The next chunks, as far as they are to be looked at. Returns how many. */
static uint32_t
take_to_look(struct intake *intake, uint32_t limit, uint32_t ret_chunks[LOOKS_RUN])
{
	uint32_t count = 0;
	pthread_mutex_lock(&intake->lock);
	intake->limit = th_max_u32(intake->limit, limit);
	while (count < LOOKS_RUN && intake->num_looking < LOOKS_MAX &&
		has_next(intake, intake->limit) && may_look(intake) &&
		reuse_pays(&intake->reuse, row_of(intake, intake->next), intake->num_looking)) {
		intake->states[intake->next] = INTAKE_LOOKING;
		intake->num_looking++;
		ret_chunks[count++] = intake->next++;
	}
	pthread_mutex_unlock(&intake->lock);
	return count;
}

/* Under the lock. It is not here, or that can not be known. */
static void
miss(struct intake *intake, uint32_t chunk)
{
	intake->states[chunk] = INTAKE_MISSED;
	intake->num_missed++;
	intake->num_looking--;
}

/* They were stopped. */
static void
miss_all(struct intake *intake, const uint32_t *chunks, uint32_t count)
{
	pthread_mutex_lock(&intake->lock);
	for (uint32_t i = 0; i < count; i++)
		miss(intake, chunks[i]);
	pthread_mutex_unlock(&intake->lock);
}

static void
look_ahead(struct intake *intake, uint32_t limit)
{
	uint32_t chunks[LOOKS_RUN], count, begun = 0;
	while (intake->looks && (count = take_to_look(intake, limit, chunks)) > 0) {
		for (uint32_t at = 0; at < count; at += begun) {
			begun = looks_begin(intake->looks, chunks + at, count - at);
			if (begun == 0) {
				miss_all(intake, chunks + at, count - at);
				return;
			}
		}
	}
}

/* Under the lock. */
static void
count_reused(struct intake *intake, uint32_t chunk)
{
	struct transport_counters *counters = intake->counters;
	intake->states[chunk] = INTAKE_DONE;
	count_up(&counters->chunks_verified, 1);
	count_up(&counters->bytes_reused, chunk_bytes(xfer_part_table(intake->part), chunk));
}

/* Under the lock. One that failed is fetched, which fails with more to say, or does not. */
static void
judge_look(struct intake *intake, const struct look_result *look)
{
	bool equal = look->code == 0 &&
		     th_hash_equal(look->digest, *xfer_part_digest(intake->part, look->chunk));
	intake->num_looked++;
	reuse_judge(&intake->reuse, row_of(intake, look->chunk), equal,
		chunk_bytes(xfer_part_table(intake->part), look->chunk));
	if (equal) {
		count_reused(intake, look->chunk);
		intake->num_looking--;
	} else {
		miss(intake, look->chunk);
	}
}

int
intake_looked(struct intake *intake)
{
	struct look_result look;
	if (!intake->looks)
		return 0;
	while (looks_take(intake->looks, &look)) {
		pthread_mutex_lock(&intake->lock);
		judge_look(intake, &look);
		pthread_mutex_unlock(&intake->lock);
	}
	/* The GPU has something to do while those who fetch are told. */
	look_ahead(intake, 0);
	pthread_mutex_lock(&intake->lock);
	int result = settle(intake);
	if (has_any(intake))
		result |= INTAKE_AGAIN;
	pthread_mutex_unlock(&intake->lock);
	return result;
}

bool
intake_looking(struct intake *intake)
{
	pthread_mutex_lock(&intake->lock);
	bool looking = intake->num_looking > 0;
	pthread_mutex_unlock(&intake->lock);
	return looking;
}

uint32_t
intake_num_looked(struct intake *intake)
{
	pthread_mutex_lock(&intake->lock);
	uint32_t count = intake->num_looked;
	pthread_mutex_unlock(&intake->lock);
	return count;
}

/* ---- handing out --------------------------------------------------------------------------- */

bool
intake_take(struct intake *intake, uint32_t limit, uint32_t *ret_chunk)
{
	bool found = true;
	uint32_t chunk;
	look_ahead(intake, limit);
	pthread_mutex_lock(&intake->lock);
	if (intake->num_again > 0) {
		/* Rare, and near the prefix. */
		chunk = intake->prefix;
		while (intake->states[chunk] != INTAKE_BAD)
			chunk++;
		intake->num_again--;
	} else if (find_missed(intake, limit, &chunk)) {
		intake->num_missed--;
	} else if (has_next(intake, limit) && !held_back(intake)) {
		chunk = intake->next++;
		if (intake->looks && intake->states[chunk] != INTAKE_MAPPED)
			reuse_pass(&intake->reuse);
	} else {
		found = false;
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

bool
intake_reuse(struct intake *intake, uint32_t chunk, int *ret_result)
{
	struct xfer_part *part = intake->part;
	struct th_hash now;
	if (!intake->hashes_here || !xfer_part_maps_chunk(part, chunk))
		return false;
	uint32_t row = row_of(intake, chunk);
	pthread_mutex_lock(&intake->lock);
	bool look = intake->attempts[chunk] == 0 && chunk < xfer_part_digest_count(part) &&
		    reuse_pays(&intake->reuse, row, 0);
	if (!look)
		reuse_pass(&intake->reuse);
	pthread_mutex_unlock(&intake->lock);
	if (!look)
		return false;
	/* The bytes as they are now: nothing else says what they are. */
	bool equal = part_digest(part, chunk, &now) == 0 &&
		     th_hash_equal(now, *xfer_part_digest(part, chunk));
	pthread_mutex_lock(&intake->lock);
	intake->num_looked++;
	reuse_judge(&intake->reuse, row, equal, chunk_bytes(xfer_part_table(part), chunk));
	if (equal) {
		count_reused(intake, chunk);
		*ret_result = settle(intake);
	}
	pthread_mutex_unlock(&intake->lock);
	return equal;
}

bool
intake_hurry(struct intake *intake)
{
	pthread_mutex_lock(&intake->lock);
	bool held = lacks_digest(intake) && lowest_missing(intake) == intake->num_chunks;
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
