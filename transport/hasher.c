/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hasher - computes the digests of published parts in the background, in chunk order, and lets each
 * part's prefix follow: a chunk may be served as soon as its digest is known.
 *
 * A small pool; each job is worked on by one thread at a time, jobs take turns chunk by chunk. One
 * event ends each job: HASHED, HASH_FAILED or HASH_STOPPED; then no thread reads the part any more.
 *
 * The pool's lock is never held while a call about a part is made: those call watchers.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "transport/guard.h"
#include "transport/internal.h"

#define THREADS_MAX 4u
#define BLOCK_BYTES (1u << 20) /* between two looks whether to stop: some 50 us */

struct hash_job {
	TAILQ_ENTRY(hash_job) entry;
	struct hasher *hasher;
	uint64_t tag;
	struct xfer_part *part; /* owns: a reference, until the event */
	bool busy;              /* guarded: a thread is on it */
	bool stopping;          /* atomic; written under the lock */
	/* Shell, once posted. */
	struct event_node node;
	enum transport_event_kind kind;
	uint32_t row; /* HASH_FAILED */
};

TAILQ_HEAD(hash_jobs, hash_job);

struct hasher {
	struct transport *transport;
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct hash_jobs jobs; /* guarded */
	bool stopping;         /* guarded */
	pthread_t threads[THREADS_MAX];
	uint32_t num_threads;
};

static bool
fill_last(struct event_node *node, struct transport_event *ret_event)
{
	struct hash_job *job = loop_container(node, struct hash_job, node);
	ret_event->kind = job->kind;
	ret_event->tag = job->tag;
	ret_event->row = job->row;
	if (job->kind == TRANSPORT_HASH_FAILED)
		ret_event->code = TH_E_STALE_MEMORY;
	free(job);
	return true;
}

/* Off the list, without the lock. */
static void
take_down(struct hash_job *job, enum transport_event_kind kind)
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
		int rc = guard_digest(&digest, piece.data, piece.bytes);
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
part_digest(const struct xfer_part *part, uint32_t chunk, struct th_hash *ret_digest)
{
	uint32_t row;
	int rc = hash_chunk(part, chunk, NULL, ret_digest, &row);
	return rc < 0 ? rc : 0;
}

/* One chunk. 1: the part is hashed; negative: it can not be. */
static int
work(struct hash_job *job)
{
	struct xfer_part *part = job->part;
	uint32_t num_chunks = xfer_part_table(part)->num_chunks;
	uint32_t chunk = xfer_part_prefix(part);
	struct th_hash digest;
	int rc = hash_chunk(part, chunk, &job->stopping, &digest, &job->row);
	if (rc < 0)
		xfer_part_fail(part);
	if (rc <= 0)
		return rc;
	/* Known already when an earlier job was stopped between the two steps. */
	if (xfer_part_digest_count(part) == chunk)
		xfer_part_add_digests(part, chunk, &digest, 1);
	xfer_part_advance(part, chunk + 1);
	return chunk + 1 == num_chunks;
}

/* Under the lock. */
static struct hash_job *
pick(struct hasher *hasher)
{
	struct hash_job *job;
	TAILQ_FOREACH(job, &hasher->jobs, entry)
	{
		if (!job->busy)
			break;
	}
	if (job) {
		TAILQ_REMOVE(&hasher->jobs, job, entry);
		TAILQ_INSERT_TAIL(&hasher->jobs, job, entry);
		job->busy = true;
	}
	return job;
}

static void *
hasher_main(void *arg)
{
	struct hasher *hasher = arg;
	pthread_mutex_lock(&hasher->lock);
	while (!hasher->stopping) {
		struct hash_job *job = pick(hasher);
		if (!job) {
			pthread_cond_wait(&hasher->work, &hasher->lock);
			continue;
		}
		pthread_mutex_unlock(&hasher->lock);
		int result = work(job);
		pthread_mutex_lock(&hasher->lock);
		job->busy = false;
		bool stopped = __atomic_load_n(&job->stopping, __ATOMIC_RELAXED);
		if (result != 0 || stopped) {
			TAILQ_REMOVE(&hasher->jobs, job, entry);
			pthread_mutex_unlock(&hasher->lock);
			take_down(job, result > 0   ? TRANSPORT_HASHED
				       : result < 0 ? TRANSPORT_HASH_FAILED
						    : TRANSPORT_HASH_STOPPED);
			pthread_mutex_lock(&hasher->lock);
		}
	}
	pthread_mutex_unlock(&hasher->lock);
	return NULL;
}

/* ---- calls of the shell ------------------------------------------------------------------- */

int
hasher_add(struct hasher *hasher, uint64_t tag, struct xfer_part *part)
{
	uint32_t num_chunks = xfer_part_table(part)->num_chunks;
	struct hash_job *job = th_calloc(1, sizeof(*job));
	job->hasher = hasher;
	job->tag = tag;
	job->part = xfer_part_retain(part);
	job->node.fill = fill_last;
	/* Without verify there is nothing to wait for: all of it may be served now. */
	if (!xfer_part_verify(part))
		xfer_part_advance(part, num_chunks);
	if (xfer_part_prefix(part) == num_chunks) {
		take_down(job, TRANSPORT_HASHED);
		return 0;
	}
	if (!xfer_part_direct(part)) {
		xfer_part_release(job->part);
		free(job);
		shuttle_hash(hasher->transport->shuttles, tag, part);
		return 0;
	}
	pthread_mutex_lock(&hasher->lock);
	TAILQ_INSERT_TAIL(&hasher->jobs, job, entry);
	pthread_cond_signal(&hasher->work);
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
		down = !job->busy;
		if (down)
			TAILQ_REMOVE(&hasher->jobs, job, entry);
	}
	pthread_mutex_unlock(&hasher->lock);
	if (down)
		take_down(job, TRANSPORT_HASH_STOPPED);
}

int
hasher_new(struct transport *transport, uint32_t threads, struct hasher **ret_hasher)
{
	struct hasher *hasher = th_calloc(1, sizeof(*hasher));
	hasher->transport = transport;
	TAILQ_INIT(&hasher->jobs);
	pthread_mutex_init(&hasher->lock, NULL);
	pthread_cond_init(&hasher->work, NULL);
	sigset_t all, before;
	guard_mask(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int rc = 0;
	while (rc == 0 && hasher->num_threads < th_min_u32(threads, THREADS_MAX)) {
		pthread_t *thread = &hasher->threads[hasher->num_threads];
		rc = -pthread_create(thread, NULL, hasher_main, hasher);
		if (rc == 0) {
			pthread_setname_np(*thread, "th-hash");
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
hasher_free(struct hasher *hasher)
{
	if (!hasher)
		return;
	struct hash_job *job;
	pthread_mutex_lock(&hasher->lock);
	hasher->stopping = true;
	TAILQ_FOREACH(job, &hasher->jobs, entry)
	__atomic_store_n(&job->stopping, true, __ATOMIC_RELAXED);
	pthread_cond_broadcast(&hasher->work);
	pthread_mutex_unlock(&hasher->lock);
	for (uint32_t i = 0; i < hasher->num_threads; i++)
		pthread_join(hasher->threads[i], NULL);
	while ((job = TAILQ_FIRST(&hasher->jobs)) != NULL) {
		TAILQ_REMOVE(&hasher->jobs, job, entry);
		take_down(job, TRANSPORT_HASH_STOPPED);
	}
	pthread_cond_destroy(&hasher->work);
	pthread_mutex_destroy(&hasher->lock);
	free(hasher);
}
