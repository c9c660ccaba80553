/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hasher - computes the digests of published parts in the background, in chunk order, and lets each
 * part's prefix follow: a chunk may be served as soon as its digest is known. Small tensors are
 * copied to the part's packed buffer on the way, where it has one, and hashed there.
 *
 * Threads: as many that step back for whatever else the host computes (a nice value of 10: against
 * a busy thread of a trainer one gets a tenth of a core), and as many that do not, but touch only
 * parts that somebody reads and waits for. Not the idle class: on a host that is always busy it
 * would never end, and until then nobody can tell whose bytes a version is made of.
 *
 * Any number of threads works on a job, each on a chunk of its own. Digests become known in order:
 * whoever finds the next ones ready hands them to the part, one thread at a time. One event ends
 * each job: HASHED, HASH_FAILED or HASH_STOPPED; then no thread reads the part any more.
 *
 * The pool's lock is never held while a call about a part is made that calls watchers.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "transport/cuda/agent/touch.h"
#include "transport/part/packed.h"
#include "transport/part/sigbus.h"
#include "transport/transport_own.h"

#define THREADS_MAX 16u /* of each kind */
#define NICE 10
#define BLOCK_BYTES (1u << 20) /* between two looks whether to stop: some 50 us */

struct hash_job {
	TAILQ_ENTRY(hash_job) entry;
	struct hasher *hasher;
	uint64_t tag;
	struct xfer_part *part; /* owns: a reference, until the event */
	uint32_t num_chunks;
	uint32_t next;           /* guarded: lowest chunk that nobody has begun */
	uint32_t known;          /* guarded: digests below it are the part's */
	uint32_t busy;           /* guarded: threads on it */
	bool settling;           /* guarded: one of them hands digests to the part */
	bool *ready;             /* owns; guarded: digests[c] is computed */
	struct th_hash *digests; /* owns; guarded until ready */
	bool stopping;           /* atomic; written under the lock */
	bool failed;             /* guarded */
	/* Shell, once posted. */
	struct event_node node;
	enum transport_event_kind kind;
	uint32_t row; /* HASH_FAILED */
};

TAILQ_HEAD(hash_jobs, hash_job);

struct hasher {
	struct transport *transport;
	pthread_mutex_t lock;
	pthread_cond_t work;   /* background threads */
	pthread_cond_t wanted; /* the others */
	struct hash_jobs jobs; /* guarded */
	bool stopping;         /* guarded */
	pthread_t threads[2 * THREADS_MAX];
	uint32_t num_threads;
};

static void
job_free(struct hash_job *job)
{
	free(job->ready);
	free(job->digests);
	free(job);
}

static bool
hasher_fill_last(struct event_node *node, struct transport_event *ret_event)
{
	struct hash_job *job = loop_container(node, struct hash_job, node);
	ret_event->kind = job->kind;
	ret_event->tag = job->tag;
	ret_event->row = job->row;
	if (job->kind == TRANSPORT_HASH_FAILED)
		ret_event->code = TH_E_STALE_MEMORY;
	job_free(job);
	return true;
}

/* Off the list, without the lock. */
static void
hasher_take_down(struct hash_job *job, enum transport_event_kind kind)
{
	struct transport *transport = job->hasher->transport;
	job->kind = kind;
	xfer_part_release(job->part);
	events_post(&transport->events, &job->node);
}

/* 1, 0: stopped midway, or TH_E_STALE_MEMORY and the row whose memory can not be read. */
static int
hash_chunk(const struct xfer_part *part, uint32_t chunk, const bool *stop,
	struct th_hash *ret_digest, uint32_t *ret_row)
{
	struct xfer_cursor cursor;
	struct digest digest;
	digest_init(&digest);
	xfer_cursor_init(&cursor, part, chunk);
	while (cursor.left > 0) {
		struct xfer_piece piece;
		if (stop && __atomic_load_n(stop, __ATOMIC_RELAXED))
			return 0;
		xfer_cursor_piece(&cursor, part, BLOCK_BYTES, &piece);
		int rc = sigbus_digest(&digest, piece.data, piece.bytes);
		if (rc < 0) {
			*ret_row = piece.row;
			return rc;
		}
		xfer_cursor_skip(&cursor, part, piece.bytes);
	}
	*ret_digest = digest_final(&digest);
	return 1;
}

int
part_digest(struct xfer_part *part, uint32_t chunk, struct th_hash *ret_digest)
{
	uint32_t row;
	if (!xfer_part_direct(part))
		return touch_digest(part, chunk, ret_digest, &row);
	int rc = hash_chunk(part, chunk, NULL, ret_digest, &row);
	return rc < 0 ? rc : 0;
}

/* ---- the threads -------------------------------------------------------------------------- */

/* Under the lock: hands to the part what is ready. Left and taken again around that. */
static void
hasher_settle(struct hash_job *job)
{
	struct hasher *hasher = job->hasher;
	if (job->settling)
		return;
	job->settling = true;
	while (job->known < job->num_chunks && job->ready[job->known]) {
		uint32_t first = job->known, end = first;
		while (end < job->num_chunks && job->ready[end])
			end++;
		pthread_mutex_unlock(&hasher->lock);
		/* Some are known already when an earlier job was stopped between the two steps. */
		uint32_t have = xfer_part_digest_count(job->part);
		if (have < end)
			xfer_part_add_digests(job->part, have, &job->digests[have], end - have);
		xfer_part_advance(job->part, end);
		pthread_mutex_lock(&hasher->lock);
		job->known = end;
	}
	job->settling = false;
}

/* Under the lock, left in between: one chunk of a job. */
static void
hasher_work(struct hash_job *job)
{
	struct hasher *hasher = job->hasher;
	struct th_hash digest;
	uint32_t row = UINT32_MAX, chunk = job->next++;
	job->busy++;
	pthread_mutex_unlock(&hasher->lock);
	int rc = packed_has(job->part, chunk)
			 ? packed_hash(job->part, chunk, &job->stopping, &digest, &row)
			 : hash_chunk(job->part, chunk, &job->stopping, &digest, &row);
	pthread_mutex_lock(&hasher->lock);
	if (rc < 0 && !job->failed) {
		job->failed = true;
		job->row = row;
	} else if (rc > 0) {
		job->digests[chunk] = digest;
		job->ready[chunk] = true;
		hasher_settle(job);
	}
	job->busy--;
}

/* Under the lock, left for the end: after a chunk. */
static void
end_if_done(struct hash_job *job)
{
	struct hasher *hasher = job->hasher;
	bool stopped = __atomic_load_n(&job->stopping, __ATOMIC_RELAXED);
	bool whole = job->known == job->num_chunks;
	if (job->busy > 0 || !(stopped || whole || job->failed))
		return;
	TAILQ_REMOVE(&hasher->jobs, job, entry);
	pthread_mutex_unlock(&hasher->lock);
	/* Not before: who sees that takes the prefix for the last one. */
	if (job->failed)
		xfer_part_fail(job->part);
	hasher_take_down(job, job->failed ? TRANSPORT_HASH_FAILED
			      : whole     ? TRANSPORT_HASHED
					  : TRANSPORT_HASH_STOPPED);
	pthread_mutex_lock(&hasher->lock);
}

/* Under the lock: jobs take turns, those that somebody waits for before others. */
static struct hash_job *
hasher_pick(struct hasher *hasher, bool only_wanted)
{
	struct hash_job *job, *found = NULL;
	TAILQ_FOREACH(job, &hasher->jobs, entry)
	{
		if (job->next == job->num_chunks || job->failed ||
			__atomic_load_n(&job->stopping, __ATOMIC_RELAXED))
			continue;
		if (xfer_part_watched(job->part)) {
			found = job;
			break;
		}
		if (!found && !only_wanted)
			found = job;
	}
	if (found) {
		TAILQ_REMOVE(&hasher->jobs, found, entry);
		TAILQ_INSERT_TAIL(&hasher->jobs, found, entry);
	}
	return found;
}

static void
hasher_run(struct hasher *hasher, bool only_wanted)
{
	pthread_cond_t *event = only_wanted ? &hasher->wanted : &hasher->work;
	pthread_mutex_lock(&hasher->lock);
	while (!hasher->stopping) {
		struct hash_job *job = hasher_pick(hasher, only_wanted);
		if (!job) {
			pthread_cond_wait(event, &hasher->lock);
			continue;
		}
		/* A reader may have come since. */
		if (!only_wanted && xfer_part_watched(job->part))
			pthread_cond_broadcast(&hasher->wanted);
		hasher_work(job);
		end_if_done(job);
	}
	pthread_mutex_unlock(&hasher->lock);
}

static void *
background_main(void *arg)
{
	/* Of this thread only. Without it the digests come all the same. */
	(void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
	hasher_run(arg, false);
	return NULL;
}

static void *
wanted_main(void *arg)
{
	hasher_run(arg, true);
	return NULL;
}

/* ---- calls of the shell ------------------------------------------------------------------- */

int
hasher_add(struct hasher *hasher, uint64_t tag, struct xfer_part *part)
{
	uint32_t num_chunks = xfer_part_table(part)->num_chunks;
	struct hash_job *job = th_calloc(1, sizeof(*job));
	job->ready = th_calloc((size_t)num_chunks + 1, sizeof(job->ready[0]));
	job->digests = th_calloc((size_t)num_chunks + 1, sizeof(job->digests[0]));
	job->num_chunks = num_chunks;
	job->hasher = hasher;
	job->tag = tag;
	job->part = xfer_part_retain(part);
	job->node.fill = hasher_fill_last;
	/* Without verify there is nothing to wait for: all of it may be served now. */
	if (!xfer_part_verify(part))
		xfer_part_advance(part, num_chunks);
	if (xfer_part_prefix(part) == num_chunks) {
		hasher_take_down(job, TRANSPORT_HASHED);
		return 0;
	}
	if (!xfer_part_direct(part)) {
		xfer_part_release(job->part);
		job_free(job);
		block_copy_hash(hasher->transport->block_copies, tag, part);
		return 0;
	}
	job->next = job->known = xfer_part_prefix(part);
	pthread_mutex_lock(&hasher->lock);
	TAILQ_INSERT_TAIL(&hasher->jobs, job, entry);
	pthread_cond_broadcast(&hasher->work);
	pthread_cond_broadcast(&hasher->wanted);
	pthread_mutex_unlock(&hasher->lock);
	return 0;
}

void
hasher_stop(struct hasher *hasher, uint64_t tag)
{
	struct hash_job *job;
	bool down = false;
	pthread_mutex_lock(&hasher->lock);
	TAILQ_FOREACH(job, &hasher->jobs, entry)
	{
		if (job->tag == tag)
			break;
	}
	if (job) {
		__atomic_store_n(&job->stopping, true, __ATOMIC_RELAXED);
		down = job->busy == 0;
		if (down)
			TAILQ_REMOVE(&hasher->jobs, job, entry);
	}
	pthread_mutex_unlock(&hasher->lock);
	if (down)
		hasher_take_down(job, TRANSPORT_HASH_STOPPED);
}

void
hasher_wanted(struct hasher *hasher)
{
	pthread_mutex_lock(&hasher->lock);
	if (!TAILQ_EMPTY(&hasher->jobs))
		pthread_cond_broadcast(&hasher->wanted);
	pthread_mutex_unlock(&hasher->lock);
}

int
hasher_new(struct transport *transport, uint32_t threads, struct hasher **ret_hasher)
{
	struct hasher *hasher = th_calloc(1, sizeof(*hasher));
	hasher->transport = transport;
	TAILQ_INIT(&hasher->jobs);
	pthread_mutex_init(&hasher->lock, NULL);
	pthread_cond_init(&hasher->work, NULL);
	pthread_cond_init(&hasher->wanted, NULL);
	sigset_t all, before;
	sigbus_mask(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int rc = 0;
	threads = th_min_u32(threads, THREADS_MAX);
	while (rc == 0 && hasher->num_threads < 2 * threads) {
		pthread_t *thread = &hasher->threads[hasher->num_threads];
		bool background = hasher->num_threads < threads;
		rc = -pthread_create(
			thread, NULL, background ? background_main : wanted_main, hasher);
		if (rc == 0) {
			pthread_setname_np(*thread, background ? "th-hash" : "th-hash-now");
			hasher->num_threads++;
		}
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc < 0) {
		hasher_free(hasher);
		return rc;
	}
	*ret_hasher = hasher;
	return 0;
}

void
hasher_close(struct hasher *hasher)
{
	if (!hasher)
		return;
	struct hash_job *job;
	pthread_mutex_lock(&hasher->lock);
	hasher->stopping = true;
	TAILQ_FOREACH(job, &hasher->jobs, entry)
	__atomic_store_n(&job->stopping, true, __ATOMIC_RELAXED);
	pthread_cond_broadcast(&hasher->work);
	pthread_cond_broadcast(&hasher->wanted);
	pthread_mutex_unlock(&hasher->lock);
	for (uint32_t i = 0; i < hasher->num_threads; i++)
		pthread_join(hasher->threads[i], NULL);
	hasher->num_threads = 0;
	while ((job = TAILQ_FIRST(&hasher->jobs)) != NULL) {
		TAILQ_REMOVE(&hasher->jobs, job, entry);
		hasher_take_down(job, TRANSPORT_HASH_STOPPED);
	}
}

void
hasher_free(struct hasher *hasher)
{
	if (!hasher)
		return;
	hasher_close(hasher);
	pthread_cond_destroy(&hasher->work);
	pthread_cond_destroy(&hasher->wanted);
	pthread_mutex_destroy(&hasher->lock);
	free(hasher);
}
