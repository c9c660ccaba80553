/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local - copies between two parts of this agent, by a small pool of threads.
 *
 * Any number of threads works on a leg, each on a chunk of its own, copied past the caches and
 * hashed on the way: the digest is of what was stored. A leg follows the prefix of its source: when
 * there is nothing to copy it is idle until the source's watcher wakes it.
 *
 * Locks: the pool's guards the list and the counts; it is taken under a part's (by the watcher), so
 * no call about a part is made while it is held.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/failpoint.h"
#include "ipc/base/name.h"
#include "transport/part/part_copy.h"
#include "transport/part/sigbus.h"
#include "transport/transport_own.h"

#define BLOCK_BYTES (1u << 20) /* between two looks whether to stop: some 100 us */
#define THREADS_MAX 16u

struct copy_leg {
	TAILQ_ENTRY(copy_leg) entry;
	struct local *local;
	uint64_t id;
	struct xfer_part *source, *part; /* owns: references, until the last event */
	bool verify;
	struct chunk_ledger ledger;
	int64_t started_ns;
	uint64_t bytes_moved;   /* atomic */
	bool ending;            /* atomic; written under the pool's lock */
	bool changed;           /* atomic: a chunk of the source is not what was published */
	uint32_t changed_chunk; /* atomic */
	/* Guarded by the pool's lock. */
	bool idle;
	uint64_t wakes;
	uint32_t active; /* threads on it */
	/* Shell, once posted; before, guarded by the pool's lock. */
	struct event_node progress_node, changed_node, last_node;
	struct transport_event result;
};

TAILQ_HEAD(copy_legs, copy_leg);

struct local {
	struct transport *transport;
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct copy_legs legs; /* guarded; the one to look at next is first */
	bool stopping;         /* guarded */
	pthread_t threads[THREADS_MAX];
	uint32_t num_threads;
};

/* ---- life of a leg ------------------------------------------------------------------------ */

static void
source_grew(void *arg)
{
	struct copy_leg *leg = arg;
	struct local *local = leg->local;
	pthread_mutex_lock(&local->lock);
	leg->wakes++;
	leg->idle = false;
	pthread_cond_broadcast(&local->work);
	pthread_mutex_unlock(&local->lock);
}

/* Under the lock: the first end counts. True: nobody works on it, the caller takes it down. */
static bool
local_end(struct copy_leg *leg, enum transport_event_kind kind, int code, const char *text)
{
	if (__atomic_load_n(&leg->ending, __ATOMIC_RELAXED))
		return false;
	__atomic_store_n(&leg->ending, true, __ATOMIC_RELAXED);
	leg->result.kind = kind;
	leg->result.code = code;
	leg->result.source_failed = kind == TRANSPORT_FAILED;
	snprintf(leg->result.text, sizeof(leg->result.text), "%s", text);
	if (leg->active > 0)
		return false;
	TAILQ_REMOVE(&leg->local->legs, leg, entry);
	return true;
}

/* Off the list, no thread on it, without the lock. */
static void
local_take_down(struct copy_leg *leg)
{
	struct transport *transport = leg->local->transport;
	xfer_part_unwatch(leg->source, source_grew, leg);
	leg->result.bytes_moved = leg->bytes_moved;
	leg->result.bytes_reused = leg->ledger.reuse.bytes;
	leg->result.verify_ns = 0; /* hashed on the way: none of it apart */
	leg->result.transfer_ns = (uint64_t)(th_now_ns() - leg->started_ns);
	leg->result.overwrote = leg->bytes_moved > 0;
	if (leg->result.kind == TRANSPORT_FAILED)
		count_up(&transport->counters.legs_failed, 1);
	chunk_ledger_fini(&leg->ledger);
	xfer_part_release(leg->source);
	xfer_part_release(leg->part);
	events_post(&transport->events, &leg->last_node);
}

static bool
local_fill_progress(struct event_node *node, struct transport_event *ret_event)
{
	struct copy_leg *leg = loop_container(node, struct copy_leg, progress_node);
	ret_event->kind = TRANSPORT_PROGRESS;
	ret_event->leg = leg->id;
	ret_event->bytes_moved = __atomic_load_n(&leg->bytes_moved, __ATOMIC_RELAXED);
	memcpy(ret_event->transport, "local", 6);
	return true;
}

static bool
local_fill_changed(struct event_node *node, struct transport_event *ret_event)
{
	struct copy_leg *leg = loop_container(node, struct copy_leg, changed_node);
	ret_event->kind = TRANSPORT_CHANGED;
	ret_event->leg = leg->id;
	ret_event->chunk = __atomic_load_n(&leg->changed_chunk, __ATOMIC_RELAXED);
	memcpy(ret_event->transport, "local", 6);
	return true;
}

static bool
local_fill_last(struct event_node *node, struct transport_event *ret_event)
{
	struct copy_leg *leg = loop_container(node, struct copy_leg, last_node);
	*ret_event = leg->result;
	free(leg);
	return true;
}

/* ---- copying ------------------------------------------------------------------------------ */

/* 1, 0: stopped midway, or a code: memory that can not be touched, and whose. */
static int
copy_chunk(struct copy_leg *leg, uint32_t chunk, struct th_hash *ret_digest, bool *ret_source)
{
	struct part_copy copy;
	part_copy_init(&copy, leg->source, leg->part, chunk);
	while (copy.to.left > 0) {
		uint64_t bytes = 0;
		if (__atomic_load_n(&leg->ending, __ATOMIC_RELAXED))
			return 0;
		int rc = part_copy_block(&copy, BLOCK_BYTES, &bytes, ret_source);
		if (rc < 0)
			return rc;
		count_up(&leg->bytes_moved, bytes);
		count_up(&leg->local->transport->counters.bytes_local, bytes);
	}
	*ret_digest = digest_final(&copy.digest);
	return 1;
}

/* The publisher's digests, as far as the source knows them. */
static int
local_take_digests(struct copy_leg *leg)
{
	uint32_t known = xfer_part_digest_count(leg->source);
	uint32_t have = xfer_part_digest_count(leg->part);
	if (!leg->verify || known <= have)
		return 0;
	return chunk_ledger_digests(
		&leg->ledger, have, xfer_part_digest(leg->source, have), known - have);
}

/* A chunk that was copied and is not what was published: has its owner changed it? */
static bool
source_changed(struct copy_leg *leg, uint32_t chunk, const struct th_hash *copied)
{
	const struct th_hash *published = xfer_part_digest(leg->source, chunk);
	struct th_hash now;
	if (!leg->verify || th_hash_equal(*copied, *published) ||
		part_digest(leg->source, chunk, &now) < 0 || th_hash_equal(now, *published))
		return false;
	__atomic_store_n(&leg->changed_chunk, chunk, __ATOMIC_RELAXED);
	__atomic_store_n(&leg->changed, true, __ATOMIC_RELAXED);
	events_post(&leg->local->transport->events, &leg->changed_node);
	return true;
}

void
local_pass_points(const struct xfer_part *part, uint32_t chunk)
{
	if (chunk == 0)
		TH_FP(copy_first_chunk);
	if (chunk == xfer_part_table(part)->num_chunks - 1)
		TH_FP(copy_last_chunk);
}

/* One chunk. False: there was none to copy; a code then is true of a leg that nobody works on. */
static bool
local_work(struct copy_leg *leg, int *ret_result, bool *ret_source)
{
	uint32_t chunk;
	struct th_hash digest;
	/* First: the prefix is the last one then, and the digests below it are known. */
	bool failed = xfer_part_failed(leg->source);
	uint32_t limit = xfer_part_prefix(leg->source);
	int result = local_take_digests(leg);
	*ret_result = result;
	if (result < 0)
		return true;
	if (!chunk_ledger_take(&leg->ledger, limit, &chunk)) {
		/* What is missing will never be served, but for what another thread is at. */
		if (failed && !(result & LEDGER_COMPLETE))
			*ret_result = TH_E_STALE_MEMORY;
		return false;
	}
	if (chunk_ledger_reuse(&leg->ledger, chunk, &result)) {
		if (result & LEDGER_GREW)
			events_post_soon(&leg->local->transport->events, &leg->progress_node);
		*ret_result = result;
		return true;
	}
	result = copy_chunk(leg, chunk, &digest, ret_source);
	if (result <= 0) {
		*ret_result = result;
		return true;
	}
	local_pass_points(leg->part, chunk);
	result = chunk_ledger_arrived(&leg->ledger, chunk, leg->verify ? &digest : NULL);
	if (source_changed(leg, chunk, &digest))
		result = TH_E_CHECKSUM;
	if (result > 0 && (result & LEDGER_GREW))
		events_post_soon(&leg->local->transport->events, &leg->progress_node);
	*ret_result = result;
	return true;
}

/* Under the lock. */
static struct copy_leg *
local_pick(struct local *local)
{
	struct copy_leg *leg;
	TAILQ_FOREACH(leg, &local->legs, entry)
	{
		if (!leg->idle && !__atomic_load_n(&leg->ending, __ATOMIC_RELAXED))
			break;
	}
	if (leg) {
		/* To the end: legs take turns. */
		TAILQ_REMOVE(&local->legs, leg, entry);
		TAILQ_INSERT_TAIL(&local->legs, leg, entry);
		leg->active++;
	}
	return leg;
}

/* Under the lock, after a chunk. True: the caller takes the leg down. */
static bool
local_settle(struct copy_leg *leg, bool worked, uint64_t wakes, int result, bool source)
{
	leg->active--;
	if (!worked && leg->wakes == wakes)
		leg->idle = true;
	/* Another one may have brought the last chunk meanwhile, or have to fetch it again. */
	if (!worked && result < 0 && (leg->active > 0 || !leg->idle))
		result = 0;
	/* Who found nothing meanwhile may find something now, or that it was the last. */
	if (worked) {
		leg->wakes++;
		leg->idle = false;
	}
	if (worked && result > 0 && (result & LEDGER_AGAIN))
		pthread_cond_broadcast(&leg->local->work);
	if (__atomic_load_n(&leg->ending, __ATOMIC_RELAXED)) {
		if (leg->active > 0)
			return false;
		TAILQ_REMOVE(&leg->local->legs, leg, entry);
		return true;
	}
	if (result < 0) {
		bool down = local_end(leg, TRANSPORT_FAILED, result,
			result == TH_E_STALE_MEMORY && source
				? "the memory of the source can not be read any more"
			: result == TH_E_STALE_MEMORY ? "our own memory can not be written any more"
			: __atomic_load_n(&leg->changed, __ATOMIC_RELAXED)
				? "the source is not what was published any more"
				: "the copy does not match the published digests");
		leg->result.source_failed = source;
		return down;
	}
	if (result & LEDGER_COMPLETE)
		return local_end(leg, TRANSPORT_DONE, 0, "");
	return false;
}

static void *
local_main(void *arg)
{
	struct local *local = arg;
	pthread_mutex_lock(&local->lock);
	while (!local->stopping) {
		struct copy_leg *leg = local_pick(local);
		if (!leg) {
			pthread_cond_wait(&local->work, &local->lock);
			continue;
		}
		uint64_t wakes = leg->wakes;
		int result = 0;
		bool source = true;
		pthread_mutex_unlock(&local->lock);
		bool worked = local_work(leg, &result, &source);
		pthread_mutex_lock(&local->lock);
		if (local_settle(leg, worked, wakes, result, source)) {
			pthread_mutex_unlock(&local->lock);
			local_take_down(leg);
			pthread_mutex_lock(&local->lock);
		}
	}
	pthread_mutex_unlock(&local->lock);
	return NULL;
}

/* ---- calls of the shell ------------------------------------------------------------------- */

int
local_copy(struct local *local, uint64_t id, struct xfer_part *source, struct xfer_part *part)
{
	const struct chunk_table *from = xfer_part_table(source), *to = xfer_part_table(part);
	if (source == part || from->num_chunks != to->num_chunks ||
		memcmp(from->start, to->start, (to->num_chunks + 1) * sizeof(to->start[0])) != 0)
		return TH_E_LAYOUT;
	if (xfer_part_verify(part) && !xfer_part_verify(source))
		return TH_E_CHECKSUM;
	if (!xfer_part_direct(source) || !xfer_part_direct(part))
		return block_copy_copy(local->transport->block_copies, id, source, part);
	struct copy_leg *leg = th_calloc(1, sizeof(*leg));
	int rc = chunk_ledger_init(&leg->ledger, part, &local->transport->counters);
	if (rc < 0) {
		free(leg);
		return rc;
	}
	leg->local = local;
	leg->id = id;
	leg->source = xfer_part_retain(source);
	leg->part = xfer_part_retain(part);
	leg->verify = xfer_part_verify(part);
	leg->started_ns = th_now_ns();
	leg->progress_node.fill = local_fill_progress;
	leg->changed_node.fill = local_fill_changed;
	leg->last_node.fill = local_fill_last;
	leg->result.leg = id;
	leg->result.row = UINT32_MAX;
	memcpy(leg->result.transport, "local", 6);
	count_up(&local->transport->counters.legs_in, 1);
	xfer_part_watch(source, source_grew, leg);
	hasher_wanted(local->transport->hasher);
	bool whole = xfer_part_prefix(part) == to->num_chunks;
	pthread_mutex_lock(&local->lock);
	TAILQ_INSERT_TAIL(&local->legs, leg, entry);
	bool down = whole && local_end(leg, TRANSPORT_DONE, 0, "");
	pthread_cond_broadcast(&local->work);
	pthread_mutex_unlock(&local->lock);
	if (down)
		local_take_down(leg);
	return 0;
}

void
local_stop(struct local *local, uint64_t id)
{
	struct copy_leg *leg;
	pthread_mutex_lock(&local->lock);
	TAILQ_FOREACH(leg, &local->legs, entry)
	{
		if (leg->id == id)
			break;
	}
	bool down = leg && local_end(leg, TRANSPORT_STOPPED, TH_E_CANCELLED, "stopped");
	pthread_mutex_unlock(&local->lock);
	if (down)
		local_take_down(leg);
}

int
local_new(struct transport *transport, uint32_t threads, struct local **ret_local)
{
	struct local *local = th_calloc(1, sizeof(*local));
	local->transport = transport;
	TAILQ_INIT(&local->legs);
	pthread_mutex_init(&local->lock, NULL);
	pthread_cond_init(&local->work, NULL);
	sigset_t all, before;
	sigbus_mask(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int rc = 0;
	while (rc == 0 && local->num_threads < th_min_u32(threads, THREADS_MAX)) {
		pthread_t *thread = &local->threads[local->num_threads];
		rc = -pthread_create(thread, NULL, local_main, local);
		if (rc == 0) {
			pthread_setname_np(*thread, "th-copy");
			local->num_threads++;
		}
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc < 0) {
		local_free(local);
		return rc;
	}
	*ret_local = local;
	return 0;
}

void
local_free(struct local *local)
{
	if (!local)
		return;
	pthread_mutex_lock(&local->lock);
	local->stopping = true;
	struct copy_leg *leg;
	TAILQ_FOREACH(leg, &local->legs, entry)
	__atomic_store_n(&leg->ending, true, __ATOMIC_RELAXED);
	pthread_cond_broadcast(&local->work);
	pthread_mutex_unlock(&local->lock);
	for (uint32_t i = 0; i < local->num_threads; i++)
		pthread_join(local->threads[i], NULL);
	while ((leg = TAILQ_FIRST(&local->legs)) != NULL) {
		TAILQ_REMOVE(&local->legs, leg, entry);
		leg->result.kind = TRANSPORT_STOPPED;
		local_take_down(leg);
	}
	pthread_cond_destroy(&local->work);
	pthread_mutex_destroy(&local->lock);
	free(local);
}
