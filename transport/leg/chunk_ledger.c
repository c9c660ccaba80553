/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk_ledger - see chunk_ledger.h. States of a chunk (an earlier leg's verified chunks begin as
 * DONE):
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
#include "transport/leg/chunk_ledger.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/err.h"
#include "ipc/base/name.h"
#include "transport/leg/look.h"
#include "transport/part/packed.h"
#include "transport/transport_own.h"

enum ledger_state {
	LEDGER_FREE,
	LEDGER_MAPPED,
	LEDGER_APART,
	LEDGER_LOOKING,
	LEDGER_MISSED,
	LEDGER_TAKEN,
	LEDGER_ARRIVED,
	LEDGER_BAD,
	LEDGER_DONE,
};

int
chunk_ledger_init(
	struct chunk_ledger *ledger, struct xfer_part *part, struct transport_counters *counters)
{
	uint32_t num_chunks = xfer_part_table(part)->num_chunks;
	size_t slots = num_chunks ? num_chunks : 1;
	*ledger =
		(struct chunk_ledger){.part = part, .counters = counters, .num_chunks = num_chunks};
	ledger->states = calloc(slots, sizeof(ledger->states[0]));
	ledger->attempts = calloc(slots, sizeof(ledger->attempts[0]));
	ledger->arrived = calloc(slots, sizeof(ledger->arrived[0]));
	if (!ledger->states || !ledger->attempts || !ledger->arrived) {
		free(ledger->states);
		free(ledger->attempts);
		free(ledger->arrived);
		return -ENOMEM;
	}
	ledger->prefix = ledger->next = xfer_part_prefix(part);
	/* Memory behind a descriptor is only touched by who may be left behind. */
	ledger->patient =
		xfer_part_expects_reuse(part) && xfer_part_verify(part) && xfer_part_direct(part);
	ledger->hashes_here = ledger->patient;
	reuse_init(&ledger->reuse, ledger->patient);
	for (uint32_t c = ledger->prefix; c < num_chunks; c++) {
		if (xfer_part_kept(part, c))
			ledger->states[c] = LEDGER_DONE;
	}
	pthread_mutex_init(&ledger->lock, NULL);
	return 0;
}

void
chunk_ledger_set_donor(struct chunk_ledger *ledger, struct xfer_part *donor)
{
	donor_init(&ledger->donor, donor, ledger->part);
	if (ledger->donor.on)
		ledger->patient = ledger->hashes_here = true;
}

bool
chunk_ledger_drop_donor(struct chunk_ledger *ledger)
{
	pthread_mutex_lock(&ledger->lock);
	bool left = donor_drop(&ledger->donor);
	pthread_mutex_unlock(&ledger->lock);
	return left;
}

static enum ledger_state
first_state(const struct xfer_part *part, uint32_t chunk)
{
	if (xfer_part_chunk_gpu(part, chunk))
		return LEDGER_FREE;
	return xfer_part_maps_chunk(part, chunk) ? LEDGER_MAPPED : LEDGER_APART;
}

void
chunk_ledger_look(struct chunk_ledger *ledger, struct loop *loop, struct loop_task *looked)
{
	struct xfer_part *part = ledger->part;
	bool all_gpu;
	if (!xfer_part_gpus(part, &all_gpu) || !xfer_part_touchable(part) ||
		!xfer_part_expects_reuse(part) || !xfer_part_verify(part))
		return;
	ledger->looks = looks_new(part, loop, looked);
	ledger->patient = true;
	ledger->hashes_here = !all_gpu;
	reuse_init(&ledger->reuse, true);
	if (xfer_part_only_gpu(part))
		return;
	for (uint32_t c = ledger->prefix; c < ledger->num_chunks; c++) {
		if (ledger->states[c] == LEDGER_FREE)
			ledger->states[c] = (uint8_t)first_state(part, c);
	}
}

void
chunk_ledger_look_stop(struct chunk_ledger *ledger)
{
	if (ledger->looks)
		looks_stop(ledger->looks);
}

void
chunk_ledger_fini(struct chunk_ledger *ledger)
{
	looks_free(ledger->looks);
	donor_fini(&ledger->donor);
	for (uint32_t c = ledger->prefix; c < ledger->num_chunks; c++) {
		if (ledger->states[c] == LEDGER_DONE)
			xfer_part_keep(ledger->part, c);
		else
			packed_drop(ledger->part, c); /* the next leg may bring it another way */
	}
	pthread_mutex_destroy(&ledger->lock);
	free(ledger->states);
	free(ledger->attempts);
	free(ledger->arrived);
}

static uint32_t
chunk_ledger_row_of(const struct chunk_ledger *ledger, uint32_t chunk)
{
	const struct chunk_table *table = xfer_part_table(ledger->part);
	return table->ranges[table->first[chunk]].row;
}

/* Moves the prefix. The lock makes this the only advance of the part at a time. */
static int
chunk_ledger_settle(struct chunk_ledger *ledger)
{
	int result = ledger->num_again > 0 ? LEDGER_AGAIN : 0;
	uint32_t before = ledger->prefix;
	while (ledger->prefix < ledger->num_chunks && ledger->states[ledger->prefix] == LEDGER_DONE)
		ledger->prefix++;
	if (ledger->prefix == before)
		return result;
	xfer_part_advance(ledger->part, ledger->prefix);
	result |= LEDGER_GREW;
	if (ledger->prefix == ledger->num_chunks)
		result |= LEDGER_COMPLETE;
	return result;
}

/* ---- what is next (under the lock) --------------------------------------------------------- */

static bool
has_next(struct chunk_ledger *ledger, uint32_t limit)
{
	while (ledger->next < ledger->num_chunks && ledger->states[ledger->next] == LEDGER_DONE)
		ledger->next++; /* an earlier leg brought it */
	return ledger->next < th_min_u32(ledger->num_chunks, limit);
}

/* Is the next chunk held back until there is a digest to compare it with? */
static bool
lacks_digest(const struct chunk_ledger *ledger)
{
	return ledger->patient && ledger->next < ledger->num_chunks &&
	       ledger->states[ledger->next] != LEDGER_APART &&
	       ledger->next >= xfer_part_digest_count(ledger->part) &&
	       ((ledger->donor.part && !ledger->donor.dropped) ||
		       reuse_pays(&ledger->reuse, chunk_ledger_row_of(ledger, ledger->next), 0));
}

/* A GPU may look at the next chunk: it has something to compare with. */
static bool
may_look(const struct chunk_ledger *ledger)
{
	return ledger->looks && ledger->states[ledger->next] == LEDGER_FREE &&
	       ledger->next < xfer_part_digest_count(ledger->part);
}

/* Is the next chunk held back, for its digest or until looks that are under way come back? */
static bool
held_back(const struct chunk_ledger *ledger)
{
	return lacks_digest(ledger) ||
	       (may_look(ledger) &&
		       reuse_waits(&ledger->reuse, chunk_ledger_row_of(ledger, ledger->next)));
}

/* The first one that was looked at in vain. */
static bool
find_missed(const struct chunk_ledger *ledger, uint32_t limit, uint32_t *ret_chunk)
{
	if (ledger->num_missed == 0)
		return false;
	const uint8_t *from = ledger->states + ledger->prefix;
	const uint8_t *state = memchr(from, LEDGER_MISSED, ledger->next - ledger->prefix);
	TH_ASSERT(state);
	*ret_chunk = (uint32_t)(state - ledger->states);
	return *ret_chunk < limit;
}

static bool
has_any(struct chunk_ledger *ledger)
{
	uint32_t chunk;
	return ledger->num_again > 0 || find_missed(ledger, ledger->limit, &chunk) ||
	       (has_next(ledger, ledger->limit) && !held_back(ledger));
}

/* ---- looks by GPUs ------------------------------------------------------------------------- */

/* The next chunks, as far as they are to be looked at. Returns how many. */
static uint32_t
take_to_look(struct chunk_ledger *ledger, uint32_t limit, uint32_t ret_chunks[LOOKS_RUN])
{
	uint32_t count = 0;
	pthread_mutex_lock(&ledger->lock);
	ledger->limit = th_max_u32(ledger->limit, limit);
	while (count < LOOKS_RUN && ledger->num_looking < LOOKS_MAX &&
		has_next(ledger, ledger->limit) && may_look(ledger) &&
		reuse_pays(&ledger->reuse, chunk_ledger_row_of(ledger, ledger->next),
			ledger->num_looking)) {
		ledger->states[ledger->next] = LEDGER_LOOKING;
		ledger->num_looking++;
		ret_chunks[count++] = ledger->next++;
	}
	pthread_mutex_unlock(&ledger->lock);
	return count;
}

/* Under the lock. It is not here, or that can not be known. */
static void
miss(struct chunk_ledger *ledger, uint32_t chunk)
{
	ledger->states[chunk] = LEDGER_MISSED;
	ledger->num_missed++;
	ledger->num_looking--;
}

/* They were stopped. */
static void
miss_all(struct chunk_ledger *ledger, const uint32_t *chunks, uint32_t count)
{
	pthread_mutex_lock(&ledger->lock);
	for (uint32_t i = 0; i < count; i++)
		miss(ledger, chunks[i]);
	pthread_mutex_unlock(&ledger->lock);
}

static void
look_ahead(struct chunk_ledger *ledger, uint32_t limit)
{
	uint32_t chunks[LOOKS_RUN], count, begun = 0;
	while (ledger->looks && (count = take_to_look(ledger, limit, chunks)) > 0) {
		for (uint32_t at = 0; at < count; at += begun) {
			begun = looks_begin(ledger->looks, chunks + at, count - at);
			if (begun == 0) {
				miss_all(ledger, chunks + at, count - at);
				return;
			}
		}
	}
}

/* Under the lock. */
static void
count_reused(struct chunk_ledger *ledger, uint32_t chunk)
{
	struct transport_counters *counters = ledger->counters;
	ledger->states[chunk] = LEDGER_DONE;
	count_up(&counters->chunks_verified, 1);
	count_up(&counters->bytes_reused, chunk_bytes(xfer_part_table(ledger->part), chunk));
}

/* Under the lock. One that failed is fetched, which fails with more to say, or does not. */
static void
judge_look(struct chunk_ledger *ledger, const struct look_result *look)
{
	bool equal = look->code == 0 &&
		     th_hash_equal(look->digest, *xfer_part_digest(ledger->part, look->chunk));
	ledger->num_looked++;
	reuse_judge(&ledger->reuse, chunk_ledger_row_of(ledger, look->chunk), equal,
		chunk_bytes(xfer_part_table(ledger->part), look->chunk));
	if (equal) {
		count_reused(ledger, look->chunk);
		ledger->num_looking--;
	} else {
		miss(ledger, look->chunk);
	}
}

int
chunk_ledger_looked(struct chunk_ledger *ledger)
{
	struct look_result look;
	if (!ledger->looks)
		return 0;
	while (looks_take(ledger->looks, &look)) {
		pthread_mutex_lock(&ledger->lock);
		judge_look(ledger, &look);
		pthread_mutex_unlock(&ledger->lock);
	}
	/* The GPU has something to do while those who fetch are told. */
	look_ahead(ledger, 0);
	pthread_mutex_lock(&ledger->lock);
	int result = chunk_ledger_settle(ledger);
	if (has_any(ledger))
		result |= LEDGER_AGAIN;
	pthread_mutex_unlock(&ledger->lock);
	return result;
}

bool
chunk_ledger_looking(struct chunk_ledger *ledger)
{
	pthread_mutex_lock(&ledger->lock);
	bool looking = ledger->num_looking > 0;
	pthread_mutex_unlock(&ledger->lock);
	return looking;
}

uint32_t
chunk_ledger_num_looked(struct chunk_ledger *ledger)
{
	pthread_mutex_lock(&ledger->lock);
	uint32_t count = ledger->num_looked;
	pthread_mutex_unlock(&ledger->lock);
	return count;
}

/* ---- handing out --------------------------------------------------------------------------- */

bool
chunk_ledger_take(struct chunk_ledger *ledger, uint32_t limit, uint32_t *ret_chunk)
{
	bool found = true;
	uint32_t chunk;
	look_ahead(ledger, limit);
	pthread_mutex_lock(&ledger->lock);
	if (ledger->num_again > 0) {
		/* Rare, and near the prefix. */
		chunk = ledger->prefix;
		while (ledger->states[chunk] != LEDGER_BAD)
			chunk++;
		ledger->num_again--;
	} else if (find_missed(ledger, limit, &chunk)) {
		ledger->num_missed--;
	} else if (has_next(ledger, limit) && !held_back(ledger)) {
		chunk = ledger->next++;
		if (ledger->looks && ledger->states[chunk] != LEDGER_MAPPED)
			reuse_pass(&ledger->reuse);
	} else {
		found = false;
	}
	if (found) {
		ledger->states[chunk] = LEDGER_TAKEN;
		*ret_chunk = chunk;
	}
	pthread_mutex_unlock(&ledger->lock);
	return found;
}

void
chunk_ledger_give_back(struct chunk_ledger *ledger, uint32_t chunk)
{
	pthread_mutex_lock(&ledger->lock);
	TH_ASSERT(chunk < ledger->num_chunks && ledger->states[chunk] == LEDGER_TAKEN);
	ledger->states[chunk] = LEDGER_BAD;
	ledger->num_again++;
	pthread_mutex_unlock(&ledger->lock);
}

/* Under the lock. */
static uint32_t
lowest_missing(const struct chunk_ledger *ledger)
{
	uint32_t chunk = ledger->prefix;
	while (chunk < ledger->next && ledger->states[chunk] != LEDGER_TAKEN)
		chunk++;
	return chunk == ledger->next ? ledger->num_chunks : chunk;
}

/* Under the lock. */
static int
chunk_ledger_fetch_again(struct chunk_ledger *ledger, uint32_t chunk)
{
	if (++ledger->attempts[chunk] >= LEDGER_ATTEMPTS_MAX)
		return TH_E_CHECKSUM;
	__atomic_add_fetch(&ledger->counters->chunks_refetched, 1, __ATOMIC_RELAXED);
	packed_drop(ledger->part, chunk);
	ledger->states[chunk] = LEDGER_BAD;
	ledger->num_again++;
	return 0;
}

/* Compares an arrived chunk with its digest. Under the lock. */
static int
chunk_ledger_judge(struct chunk_ledger *ledger, uint32_t chunk, const struct th_hash *digest)
{
	struct transport_counters *counters = ledger->counters;
	if (th_hash_equal(*xfer_part_digest(ledger->part, chunk), *digest)) {
		ledger->states[chunk] = LEDGER_DONE;
		__atomic_add_fetch(&counters->chunks_verified, 1, __ATOMIC_RELAXED);
		return 0;
	}
	__atomic_add_fetch(&counters->checksum_failures, 1, __ATOMIC_RELAXED);
	return chunk_ledger_fetch_again(ledger, chunk);
}

/* The digest says that the donor has it; what was copied is judged all the same. */
static bool
copy_of_donor(struct chunk_ledger *ledger, uint32_t chunk, int *ret_result)
{
	struct transport_counters *counters = ledger->counters;
	struct xfer_part *part = ledger->part, *from = NULL;
	uint64_t bytes = chunk_bytes(xfer_part_table(part), chunk);
	struct th_hash now;
	pthread_mutex_lock(&ledger->lock);
	if (ledger->attempts[chunk] == 0 && chunk < xfer_part_digest_count(part))
		from = donor_begin(&ledger->donor, chunk, xfer_part_digest(part, chunk));
	pthread_mutex_unlock(&ledger->lock);
	if (!from)
		return false;
	bool equal = donor_copy(from, part, chunk, &now) &&
		     th_hash_equal(now, *xfer_part_digest(part, chunk));
	pthread_mutex_lock(&ledger->lock);
	ledger->num_looked++;
	if (donor_end(&ledger->donor, equal ? bytes : 0))
		*ret_result |= LEDGER_DONOR_LEFT;
	if (equal) {
		ledger->states[chunk] = LEDGER_DONE;
		count_up(&counters->chunks_verified, 1);
		count_up(&counters->bytes_donated, bytes);
		*ret_result |= chunk_ledger_settle(ledger);
	} else {
		count_up(&counters->donor_failures, 1);
	}
	pthread_mutex_unlock(&ledger->lock);
	return equal;
}

bool
chunk_ledger_reuse(struct chunk_ledger *ledger, uint32_t chunk, int *ret_result)
{
	struct xfer_part *part = ledger->part;
	struct th_hash now;
	*ret_result = 0;
	if (copy_of_donor(ledger, chunk, ret_result))
		return true;
	if (!ledger->hashes_here || !xfer_part_maps_chunk(part, chunk))
		return false;
	uint32_t row = chunk_ledger_row_of(ledger, chunk);
	pthread_mutex_lock(&ledger->lock);
	bool look = ledger->attempts[chunk] == 0 && chunk < xfer_part_digest_count(part) &&
		    reuse_pays(&ledger->reuse, row, 0);
	if (!look)
		reuse_pass(&ledger->reuse);
	pthread_mutex_unlock(&ledger->lock);
	if (!look)
		return false;
	/* The bytes as they are now: nothing else says what they are. */
	bool equal = part_digest(part, chunk, &now) == 0 &&
		     th_hash_equal(now, *xfer_part_digest(part, chunk));
	pthread_mutex_lock(&ledger->lock);
	ledger->num_looked++;
	reuse_judge(&ledger->reuse, row, equal, chunk_bytes(xfer_part_table(part), chunk));
	if (equal) {
		count_reused(ledger, chunk);
		*ret_result |= chunk_ledger_settle(ledger);
	}
	pthread_mutex_unlock(&ledger->lock);
	return equal;
}

bool
chunk_ledger_hurry(struct chunk_ledger *ledger)
{
	pthread_mutex_lock(&ledger->lock);
	bool held = lacks_digest(ledger) && lowest_missing(ledger) == ledger->num_chunks;
	if (held)
		ledger->patient = false;
	pthread_mutex_unlock(&ledger->lock);
	return held;
}

int
chunk_ledger_arrived(struct chunk_ledger *ledger, uint32_t chunk, const struct th_hash *digest)
{
	int rc = 0;
	pthread_mutex_lock(&ledger->lock);
	TH_ASSERT(chunk < ledger->num_chunks && ledger->states[chunk] == LEDGER_TAKEN);
	if (!digest) {
		ledger->states[chunk] = LEDGER_DONE;
	} else if (chunk < xfer_part_digest_count(ledger->part)) {
		rc = chunk_ledger_judge(ledger, chunk, digest);
	} else {
		ledger->states[chunk] = LEDGER_ARRIVED;
		ledger->arrived[chunk] = *digest;
	}
	if (rc == 0)
		rc = chunk_ledger_settle(ledger);
	pthread_mutex_unlock(&ledger->lock);
	return rc;
}

int
chunk_ledger_mismatched(struct chunk_ledger *ledger, uint32_t chunk)
{
	pthread_mutex_lock(&ledger->lock);
	TH_ASSERT(chunk < ledger->num_chunks && ledger->states[chunk] == LEDGER_TAKEN);
	int rc = chunk_ledger_fetch_again(ledger, chunk);
	if (rc == 0)
		rc = chunk_ledger_settle(ledger);
	pthread_mutex_unlock(&ledger->lock);
	return rc;
}

int
chunk_ledger_digests(
	struct chunk_ledger *ledger, uint32_t first, const struct th_hash *digests, uint32_t count)
{
	struct xfer_part *part = ledger->part;
	int rc = 0;
	if (first > ledger->num_chunks || count > ledger->num_chunks - first)
		return TH_E_PROTOCOL;
	pthread_mutex_lock(&ledger->lock);
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
		if (ledger->states[c] == LEDGER_ARRIVED)
			rc = chunk_ledger_judge(ledger, c, &ledger->arrived[c]);
	}
	if (rc == 0)
		rc = chunk_ledger_settle(ledger);
	pthread_mutex_unlock(&ledger->lock);
	return rc;
}

uint32_t
chunk_ledger_lowest_missing(struct chunk_ledger *ledger)
{
	pthread_mutex_lock(&ledger->lock);
	uint32_t chunk = lowest_missing(ledger);
	pthread_mutex_unlock(&ledger->lock);
	return chunk;
}
