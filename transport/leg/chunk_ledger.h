/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk_ledger - which chunks of a part are still to be fetched, which have come, and what they are
 * worth.
 *
 * The reader's bookkeeping, the same for every transport: chunks are handed out in order, come back
 * in any order with the digest of what arrived, count when the publisher's digest says the same,
 * and move the part's prefix when it reaches them. A chunk that arrives before its digest is known
 * is judged when that comes. A chunk that does not match is handed out again, twice at most.
 *
 * What a leg has verified beyond the prefix when it ends stays with the part for the next leg.
 * Chunks whose bytes the part may have already are looked at before they are fetched (reuse.h):
 * such a chunk is not handed out before its digest is known. Those that are mapped are looked at by
 * who takes them (chunk_ledger_reuse), those on a GPU here, ahead of the fetching
 * (chunk_ledger_look, look.h). Chunks that a donor has (donor.h) are copied by who takes them, in
 * the same call (chunk_ledger_reuse).
 *
 * Any thread: a lock, taken a few times per 4 MiB chunk.
 */
#ifndef TH_TRANSPORT_LEG_CHUNK_LEDGER_H
#define TH_TRANSPORT_LEG_CHUNK_LEDGER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "transport/leg/donor.h"
#include "transport/leg/reuse.h"
#include "transport/part/xfer_part.h"
#include "transport/transport.h"

#define LEDGER_ATTEMPTS_MAX 3 /* of one chunk at one source */

struct loop;
struct loop_task;
struct looks;

struct chunk_ledger {
	pthread_mutex_t lock;
	struct xfer_part *part; /* borrows: the leg holds it */
	struct transport_counters *counters;
	uint32_t num_chunks;
	uint8_t *states;         /* owns; guarded: enum ledger_state */
	uint8_t *attempts;       /* owns; guarded: how often a chunk came and did not match */
	struct th_hash *arrived; /* owns; guarded: digests of chunks that wait for theirs */
	uint32_t next;           /* guarded: lowest chunk never handed out */
	uint32_t num_again;      /* guarded: chunks to be handed out again */
	uint32_t num_missed;     /* guarded: chunks that were looked at, to be handed out */
	uint32_t num_looking;    /* guarded */
	uint32_t num_looked;     /* guarded */
	uint32_t limit;          /* guarded: the highest that was asked for */
	uint32_t prefix;         /* guarded */
	bool patient;            /* guarded: chunks are held back for their digests */
	bool hashes_here;        /* who takes a chunk may be to look at it. Immutable, as looks */
	struct looks *looks;     /* owns; NULL: none by GPUs */
	struct reuse reuse;      /* guarded, but for what is set at the beginning */
	struct donor donor;      /* likewise */
};

enum chunk_ledger_result {        /* bits */
	LEDGER_GREW = 1 << 0,     /* the part's prefix advanced */
	LEDGER_AGAIN = 1 << 1,    /* there are chunks to fetch, which nobody knows of */
	LEDGER_COMPLETE = 1 << 2, /* this call made the part whole */
	LEDGER_DONOR_LEFT =
		1 << 3, /* the donor was dropped, and this call was the last to read it */
};

TH_MUST_USE int chunk_ledger_init(
	struct chunk_ledger *ledger, struct xfer_part *part, struct transport_counters *counters);
void chunk_ledger_fini(struct chunk_ledger *ledger);
/*
 * Before the first chunk: those on GPUs are looked at, too. looked is posted to loop when some
 * looks have come back, for chunk_ledger_looked. Borrows both, until chunk_ledger_look_stop.
 */
void chunk_ledger_look(struct chunk_ledger *ledger, struct loop *loop, struct loop_task *looked);
/* When it returns looked is not posted any more. */
void chunk_ledger_look_stop(struct chunk_ledger *ledger);
/* Before the first chunk: another version on this host, or NULL. Takes a reference of its own. */
void chunk_ledger_set_donor(struct chunk_ledger *ledger, struct xfer_part *donor);
/* It is read for no more chunks. True: nor for one now; otherwise LEDGER_DONOR_LEFT says so. */
bool chunk_ledger_drop_donor(struct chunk_ledger *ledger);
/* Chunks may come without the source being asked for them. */
static inline bool
chunk_ledger_may_skip(const struct chunk_ledger *ledger)
{
	return ledger->reuse.on || ledger->donor.on;
}
/* By one thread at a time. enum chunk_ledger_result. */
int chunk_ledger_looked(struct chunk_ledger *ledger);
/* Looks are under way. */
bool chunk_ledger_looking(struct chunk_ledger *ledger);
/* Chunks that were looked at by now, by whomever. */
uint32_t chunk_ledger_num_looked(struct chunk_ledger *ledger);

/* The next chunk to fetch, below limit. False: none now. Any that are to be looked at first by a
 * GPU are, meanwhile. */
bool chunk_ledger_take(struct chunk_ledger *ledger, uint32_t limit, uint32_t *ret_chunk);
/* A chunk that was taken will not come that way: it is handed out again, whatever the limit. */
void chunk_ledger_give_back(struct chunk_ledger *ledger, uint32_t chunk);
/*
 * Of a chunk that was taken: are its bytes on this host already? Copies it, if a donor has it;
 * hashes what the part has, where that may pay and it is mapped. True: it counts, and need not be
 * fetched. ret_result is enum chunk_ledger_result, also of one that is to be fetched.
 */
bool chunk_ledger_reuse(struct chunk_ledger *ledger, uint32_t chunk, int *ret_result);
/*
 * When no digests come: hands out what was held back for them. False: nothing was, or a chunk that
 * was handed out has not come either.
 */
bool chunk_ledger_hurry(struct chunk_ledger *ledger);
/* The bytes of a chunk that was taken lie in the part; digest is of them (NULL: part without
 * verify). enum chunk_ledger_result, or TH_E_CHECKSUM: it did not match too often. */
TH_MUST_USE int chunk_ledger_arrived(
	struct chunk_ledger *ledger, uint32_t chunk, const struct th_hash *digest);
/* The same of a chunk that was found not to match, and counted as that (checksum_failures). */
TH_MUST_USE int chunk_ledger_mismatched(struct chunk_ledger *ledger, uint32_t chunk);
/* The publisher's digests, as a source knows them. enum chunk_ledger_result, TH_E_CHECKSUM (also:
 * they contradict what is known), or TH_E_PROTOCOL: a gap, or more than there are chunks. */
TH_MUST_USE int chunk_ledger_digests(
	struct chunk_ledger *ledger, uint32_t first, const struct th_hash *digests, uint32_t count);
/* Lowest chunk that was taken and has not come; num_chunks when none. */
uint32_t chunk_ledger_lowest_missing(struct chunk_ledger *ledger);

#endif
