/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_copy - copies between two parts of this agent, and digests of a part, where not all the
 * memory is mapped. What local.c and hasher.c do with threads that touch the memory themselves is
 * done here on a mover, with one ferry that reads the source and, for a copy, one that writes.
 *
 * A block goes round: read by the one ferry, hashed here, written by the other, free again. What is
 * hashed is what is written. Nothing here waits: the mover has connections to serve.
 *
 * A block_copy belongs to its mover, but for the list, stop, and the events. How it ends: when no
 * write is under way any more, or the destination's worker is gone, both ferries are abandoned. It
 * leaves the list, so that nobody can kick it any more, and after the tasks that were queued by
 * then the last event is posted.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "ipc/base/name.h"
#include "transport/local/block_copy_own.h"

#define REUSED_AT_ONCE 2u /* chunks, before the mover serves its connections again */

LIST_HEAD(block_copy_list, block_copy);

struct block_copies {
	struct transport *transport;
	pthread_mutex_t lock;
	pthread_cond_t empty;
	struct block_copy_list list; /* guarded by lock */
	uint32_t count;              /* guarded by lock: not ended */
	uint32_t next_mover;         /* the shell's */
};

int
part_lost_text(struct xfer_part *part, const char *what, char ret_text[TH_CTL_TEXT_BYTES])
{
	char why[TH_CTL_TEXT_BYTES / 2];
	int code = xfer_part_lost(part, why, sizeof(why));
	if (code == 0)
		snprintf(why, sizeof(why), "it was unmapped, shrunk, or its process has ended");
	snprintf(ret_text, TH_CTL_TEXT_BYTES, "%s: %s", what, why);
	return code < 0 ? code : TH_E_STALE_MEMORY;
}

/* ---- the end ------------------------------------------------------------------------------ */

/* Any thread, with the lock of a part held. */
static void
block_copy_part_changed(void *arg)
{
	struct block_copy *block_copy = arg;
	loop_post(block_copy->loop, &block_copy->kick_task);
}

/* How it ends; only the first counts. */
static void
block_copy_end(struct block_copy *block_copy, enum transport_event_kind kind, int code,
	bool source_failed, const char *text)
{
	if (block_copy->ending)
		return;
	block_copy->ending = true;
	block_copy->result.kind = kind;
	block_copy->result.code = code;
	block_copy->result.source_failed = source_failed;
	snprintf(block_copy->result.text, sizeof(block_copy->result.text), "%s", text);
}

static void
block_copy_do_stop(struct block_copy *block_copy)
{
	if (block_copy->part)
		block_copy_end(block_copy, TRANSPORT_STOPPED, TH_E_CANCELLED, false, "stopped");
	else
		block_copy_end(block_copy, TRANSPORT_HASH_STOPPED, TH_E_CANCELLED, false, "");
}

void
block_copy_fail(struct block_copy *block_copy, int error, uint32_t row, bool source_failed)
{
	int code = th_code_or(error, TH_E_STALE_MEMORY);
	if (!block_copy->ending)
		block_copy->result.row = row;
	if (!block_copy->part)
		xfer_part_fail(block_copy->source);
	char text[TH_CTL_TEXT_BYTES];
	int lost = part_lost_text(source_failed ? block_copy->source : block_copy->part,
		source_failed ? "the memory of the source can not be read any more"
			      : "our own memory can not be written any more",
		text);
	if (code == TH_E_STALE_MEMORY && !source_failed)
		code = lost;
	if (error == TH_E_LIMIT)
		ferry_limit(
			source_failed ? block_copy->reads : block_copy->writes, text, sizeof(text));
	if (error == TH_E_LIMIT && !block_copy->part) /* what cannot be hashed is withdrawn */
		xfer_part_set_lost(block_copy->source, error, text);
	if (error == TH_E_MEMORY_KIND)
		snprintf(text, sizeof(text),
			"a descriptor of our own memory has O_APPEND: the bytes would go to the "
			"end of the file");
	block_copy_end(block_copy, block_copy->part ? TRANSPORT_FAILED : TRANSPORT_HASH_FAILED,
		code, source_failed, text);
}

/* When nothing can be written any more. */
static void
block_copy_finish(struct block_copy *block_copy)
{
	bool writes = block_copy->part && !xfer_part_orphaned(block_copy->part);
	if (block_copy->ended || (writes && block_copy_gpu_busy(block_copy)) ||
		(writes && block_copy->writes && ferry_busy(block_copy->writes)))
		return;
	block_copy->ended = true;
	xfer_part_unwatch(block_copy->source, block_copy_part_changed, block_copy);
	if (block_copy->part)
		xfer_part_unwatch(block_copy->part, block_copy_part_changed, block_copy);
	if (block_copy->part)
		chunk_ledger_look_stop(&block_copy->ledger);
	ferry_abandon(block_copy->reads);
	ferry_abandon(block_copy->writes);
	block_copy_gpu_free(block_copy);
	loop_post(block_copy->loop, &block_copy->leave_task);
}

static void
block_copy_run_leave(struct loop_task *task)
{
	struct block_copy *block_copy = loop_container(task, struct block_copy, leave_task);
	struct block_copies *block_copies = block_copy->block_copies;
	pthread_mutex_lock(&block_copies->lock);
	LIST_REMOVE(block_copy, entry);
	pthread_mutex_unlock(&block_copies->lock);
	loop_post(block_copy->loop, &block_copy->last_task);
}

static void
name_way(const struct block_copy *block_copy, struct transport_event *event)
{
	bool by_gpu = __atomic_load_n(&block_copy->by_gpu, __ATOMIC_RELAXED);
	snprintf(event->transport, sizeof(event->transport), "%s", by_gpu ? "cuda-ipc" : "local");
	if (__atomic_load_n(&block_copy->why_told, __ATOMIC_ACQUIRE))
		snprintf(event->fallback, sizeof(event->fallback), "%s", block_copy->why);
}

static void
block_copy_run_last(struct loop_task *task)
{
	struct block_copy *block_copy = loop_container(task, struct block_copy, last_task);
	struct block_copies *block_copies = block_copy->block_copies;
	struct transport *transport = block_copies->transport;
	struct transport_event *result = &block_copy->result;
	if (block_copy->part) {
		result->bytes_moved = block_copy->bytes_moved;
		result->bytes_reused = block_copy->ledger.reuse.bytes;
		result->verify_ns = block_copy->verify_ns;
		result->transfer_ns = (uint64_t)(th_now_ns() - block_copy->started_ns);
		result->overwrote = block_copy->bytes_moved > 0;
		name_way(block_copy, result);
		if (result->kind == TRANSPORT_FAILED)
			count_up(&transport->counters.legs_failed, 1);
		chunk_ledger_fini(&block_copy->ledger);
		xfer_part_release(block_copy->part);
	}
	xfer_part_release(block_copy->source);
	events_post(&transport->events, &block_copy->last_node);
	pthread_mutex_lock(&block_copies->lock);
	block_copies->count--;
	pthread_cond_broadcast(&block_copies->empty);
	pthread_mutex_unlock(&block_copies->lock);
}

static bool
block_copy_fill_progress(struct event_node *node, struct transport_event *ret_event)
{
	struct block_copy *block_copy = loop_container(node, struct block_copy, progress_node);
	ret_event->kind = TRANSPORT_PROGRESS;
	ret_event->leg = block_copy->id;
	ret_event->bytes_moved = __atomic_load_n(&block_copy->bytes_moved, __ATOMIC_RELAXED);
	name_way(block_copy, ret_event);
	return true;
}

static bool
block_copy_fill_changed(struct event_node *node, struct transport_event *ret_event)
{
	struct block_copy *block_copy = loop_container(node, struct block_copy, changed_node);
	ret_event->kind = TRANSPORT_CHANGED;
	ret_event->leg = block_copy->id;
	ret_event->chunk = block_copy->changed_chunk;
	name_way(block_copy, ret_event);
	return true;
}

static bool
block_copy_fill_last(struct event_node *node, struct transport_event *ret_event)
{
	struct block_copy *block_copy = loop_container(node, struct block_copy, last_node);
	*ret_event = block_copy->result;
	free(block_copy);
	return true;
}

/* ---- blocks ------------------------------------------------------------------------------- */

static void
hash(struct block_copy *block_copy, struct ferry_block *block)
{
	int64_t before_ns = th_now_ns();
	if (block->first)
		digest_init(&block_copy->digest);
	digest_update(&block_copy->digest, block->data, block->bytes);
	if (block->last)
		block->digest = digest_final(&block_copy->digest);
	block_copy->verify_ns += (uint64_t)(th_now_ns() - before_ns);
}

/*
 * The digest is of what was read of the source: unlike the published one means that its worker has
 * written to what it had published. There is no way on which it could have been damaged.
 */
static bool
block_copy_still_published(struct block_copy *block_copy, const struct ferry_block *block)
{
	if (!block->last || !block_copy->verify || !block_copy->part ||
		th_hash_equal(block->digest, *xfer_part_digest(block_copy->source, block->chunk)))
		return true;
	block_copy_changed(block_copy, block->chunk);
	return false;
}

void
block_copy_changed(struct block_copy *block_copy, uint32_t chunk)
{
	struct transport *transport = block_copy->block_copies->transport;
	count_up(&transport->counters.checksum_failures, 1);
	block_copy->changed_chunk = chunk;
	events_post(&transport->events, &block_copy->changed_node);
	block_copy_end(block_copy, TRANSPORT_FAILED, TH_E_CHECKSUM, true,
		"the source is not what was published any more");
}

void
block_copy_hashed(struct block_copy *block_copy, uint32_t chunk, const struct th_hash *digest)
{
	struct xfer_part *part = block_copy->source;
	/* Known already when an earlier job was stopped between the two steps. */
	if (xfer_part_digest_count(part) == chunk)
		xfer_part_add_digests(part, chunk, digest, 1);
	xfer_part_advance(part, chunk + 1);
	if (chunk + 1 == xfer_part_table(part)->num_chunks)
		block_copy_end(block_copy, TRANSPORT_HASHED, 0, false, "");
}

void
block_copy_moved(struct block_copy *block_copy, uint64_t bytes)
{
	count_up(&block_copy->bytes_moved, bytes);
	count_up(&block_copy->block_copies->transport->counters.bytes_local, bytes);
}

void
block_copy_explain(struct block_copy *block_copy, const char *why)
{
	snprintf(block_copy->why, sizeof(block_copy->why), "by staging on the host: %s", why);
	__atomic_store_n(&block_copy->why_told, true, __ATOMIC_RELEASE);
	log_info("gpu", "GPUs do not do it alone %s=%" PRIu64 " why='%s'",
		block_copy->part ? "leg" : "tag", block_copy->id, block_copy->why);
	if (block_copy->part)
		count_up(&block_copy->block_copies->transport->counters.gpu_fallbacks, 1);
}

static void
take_read(struct block_copy *block_copy)
{
	struct ferry_block *block;
	while (!block_copy->ending && (block = ferry_take(block_copy->reads)) != NULL) {
		if (block->code < 0)
			block_copy_fail(block_copy, block->code, block->row, true);
		else if (block_copy->verify)
			hash(block_copy, block);
		if (block->code < 0 || !block_copy->part ||
			!block_copy_still_published(block_copy, block)) {
			if (!block_copy->part && block->code == 0 && block->last)
				block_copy_hashed(block_copy, block->chunk, &block->digest);
			ferry_put_back(block_copy->blocks, block);
			continue;
		}
		block_copy_moved(block_copy, block->bytes);
		ferry_submit(block_copy->writes, block);
	}
}

static void
block_copy_judge(struct block_copy *block_copy, int result)
{
	if (result < 0) {
		block_copy_end(block_copy, TRANSPORT_FAILED, result, true,
			"the copy does not match the published digests");
		return;
	}
	if (result & LEDGER_GREW)
		events_post_soon(
			&block_copy->block_copies->transport->events, &block_copy->progress_node);
	if (result & LEDGER_COMPLETE)
		block_copy_end(block_copy, TRANSPORT_DONE, 0, false, "");
}

void
block_copy_arrived(struct block_copy *block_copy, uint32_t chunk, const struct th_hash *digest)
{
	local_pass_points(block_copy->part, chunk);
	block_copy_judge(block_copy, chunk_ledger_arrived(&block_copy->ledger, chunk,
					     block_copy->verify ? digest : NULL));
}

static void
take_written(struct block_copy *block_copy)
{
	struct ferry_block *block;
	while (block_copy->writes && (block = ferry_take(block_copy->writes)) != NULL) {
		if (block->code < 0)
			block_copy_fail(block_copy, block->code, block->row, false);
		else if (block->last && !block_copy->ending)
			block_copy_arrived(block_copy, block->chunk, &block->digest);
		ferry_put_back(block_copy->blocks, block);
	}
}

static void
take_looks(struct block_copy *block_copy)
{
	if (block_copy->part && !block_copy->ending)
		block_copy_judge(block_copy, chunk_ledger_looked(&block_copy->ledger));
}

/* The publisher's digests, as far as the source knows them. */
static void
block_copy_take_digests(struct block_copy *block_copy)
{
	uint32_t known = xfer_part_digest_count(block_copy->source);
	uint32_t have = xfer_part_digest_count(block_copy->part);
	if (block_copy->verify && known > have)
		block_copy_judge(block_copy,
			chunk_ledger_digests(&block_copy->ledger, have,
				xfer_part_digest(block_copy->source, have), known - have));
}

/* All that the source has is here: what is missing will never be served. */
static void
block_copy_fail_short(struct block_copy *block_copy)
{
	struct chunk_ledger *ledger = &block_copy->ledger;
	if (chunk_ledger_lowest_missing(ledger) == ledger->num_chunks &&
		!chunk_ledger_looking(ledger))
		block_copy_fail(block_copy, TH_E_STALE_MEMORY, UINT32_MAX, true);
}

/* The next chunk that the part has not got yet, into chunk. */
static bool
take_chunk(struct block_copy *block_copy)
{
	/* First: the prefix is the last one then, and the digests below it are known. */
	bool failed = xfer_part_failed(block_copy->source);
	uint32_t limit = xfer_part_prefix(block_copy->source);
	int result;
	block_copy_take_digests(block_copy);
	for (uint32_t reused = 0; !block_copy->ending; reused++) {
		if (reused == REUSED_AT_ONCE) {
			loop_post(block_copy->loop, &block_copy->kick_task);
			return false;
		}
		if (!chunk_ledger_take(&block_copy->ledger, limit, &block_copy->chunk)) {
			if (failed)
				block_copy_fail_short(block_copy);
			return false;
		}
		if (!chunk_ledger_reuse(&block_copy->ledger, block_copy->chunk, &result))
			return true;
		block_copy_judge(block_copy, result);
	}
	return false;
}

bool
block_copy_next_chunk(struct block_copy *block_copy)
{
	if (!block_copy->part) {
		block_copy->chunk = block_copy->next_chunk;
		block_copy->reading =
			block_copy->next_chunk < xfer_part_table(block_copy->source)->num_chunks;
		block_copy->next_chunk += block_copy->reading;
	} else {
		block_copy->reading = take_chunk(block_copy);
	}
	if (block_copy->reading)
		xfer_cursor_init(&block_copy->cursor, block_copy->source, block_copy->chunk);
	return block_copy->reading;
}

static void
block_copy_feed(struct block_copy *block_copy)
{
	const struct chunk_table *table = xfer_part_table(block_copy->source);
	struct ferry_block *block;
	while (!block_copy->ending && (block_copy->reading || block_copy_next_chunk(block_copy)) &&
		(block = ferry_spare(block_copy->blocks)) != NULL) {
		block->cursor = block_copy->cursor;
		block->chunk = block_copy->chunk;
		block->bytes = th_min_u32(block_copy->cursor.left, FERRY_BYTES);
		block->first = block_copy->cursor.left == chunk_bytes(table, block_copy->chunk);
		block->last = block->bytes == block_copy->cursor.left;
		xfer_cursor_skip(&block_copy->cursor, block_copy->source, block->bytes);
		block_copy->reading = !block->last;
		ferry_submit(block_copy->reads, block);
	}
}

/* ---- the mover's side --------------------------------------------------------------------- */

static void
start_ferries(struct block_copy *block_copy)
{
	int rc = ferry_new(block_copy->source, false, block_copy->loop, &block_copy->kick_task,
		&block_copy->reads);
	if (rc == 0 && block_copy->part)
		rc = ferry_new(block_copy->part, true, block_copy->loop, &block_copy->kick_task,
			&block_copy->writes);
	bool for_gpus = block_copy->part && xfer_part_gpus(block_copy->part, NULL) &&
			!xfer_part_gpus(block_copy->source, NULL);
	block_copy->blocks = for_gpus ? block_copy->writes : block_copy->reads;
	if (rc < 0) {
		block_copy_end(block_copy,
			block_copy->part ? TRANSPORT_FAILED : TRANSPORT_HASH_FAILED,
			th_code_or(rc, TH_E_LIMIT), false,
			"the agent can start no more threads for memory that is not mapped");
	}
}

static void
block_copy_start(struct block_copy *block_copy)
{
	block_copy->started = true;
	xfer_part_watch(block_copy->source, block_copy_part_changed, block_copy);
	if (block_copy->part)
		xfer_part_watch(block_copy->part, block_copy_part_changed, block_copy);
	if (block_copy->part && xfer_part_prefix(block_copy->part) ==
					xfer_part_table(block_copy->part)->num_chunks) {
		block_copy_end(block_copy, TRANSPORT_DONE, 0, false, "");
		return;
	}
	if (!block_copy_gpu_start(block_copy))
		start_ferries(block_copy);
}

static void
run_gpu(struct block_copy *block_copy)
{
	if (block_copy_gpu_run(block_copy))
		return;
	block_copy_gpu_free(block_copy);
	if (!block_copy->ending)
		start_ferries(block_copy);
}

static void
run_ferries(struct block_copy *block_copy)
{
	if (!block_copy->ending)
		take_read(block_copy);
	take_written(block_copy);
	if (!block_copy->ending)
		block_copy_feed(block_copy);
}

static void
block_copy_run_kick(struct loop_task *task)
{
	struct block_copy *block_copy = loop_container(task, struct block_copy, kick_task);
	if (block_copy->ended)
		return;
	if (!block_copy->started)
		block_copy_start(block_copy);
	if (__atomic_load_n(&block_copy->stop, __ATOMIC_RELAXED))
		block_copy_do_stop(block_copy);
	take_looks(block_copy);
	if (block_copy->gpu)
		run_gpu(block_copy);
	if (!block_copy->gpu)
		run_ferries(block_copy);
	if (block_copy->ending)
		block_copy_finish(block_copy);
}

/* ---- calls of the shell ------------------------------------------------------------------- */

static struct block_copy *
new_block_copy(struct block_copies *block_copies, uint64_t id, struct xfer_part *source)
{
	struct transport *transport = block_copies->transport;
	struct block_copy *block_copy = th_calloc(1, sizeof(*block_copy));
	block_copy->block_copies = block_copies;
	block_copy->id = id;
	block_copy->source = xfer_part_retain(source);
	block_copy->next_chunk = xfer_part_prefix(source);
	block_copy->kick_task.run = block_copy_run_kick;
	block_copy->leave_task.run = block_copy_run_leave;
	block_copy->last_task.run = block_copy_run_last;
	block_copy->progress_node.fill = block_copy_fill_progress;
	block_copy->changed_node.fill = block_copy_fill_changed;
	block_copy->last_node.fill = block_copy_fill_last;
	block_copy->started_ns = th_now_ns();
	block_copy->loop = transport->movers[block_copies->next_mover++ % transport->num_movers];
	return block_copy;
}

static void
block_copy_launch(struct block_copies *block_copies, struct block_copy *block_copy)
{
	pthread_mutex_lock(&block_copies->lock);
	LIST_INSERT_HEAD(&block_copies->list, block_copy, entry);
	block_copies->count++;
	pthread_mutex_unlock(&block_copies->lock);
	loop_post(block_copy->loop, &block_copy->kick_task);
}

int
block_copy_copy(struct block_copies *block_copies, uint64_t leg, struct xfer_part *source,
	struct xfer_part *part)
{
	struct transport_counters *counters = &block_copies->transport->counters;
	struct block_copy *block_copy = new_block_copy(block_copies, leg, source);
	int rc = chunk_ledger_init(&block_copy->ledger, part, counters);
	if (rc < 0) {
		xfer_part_release(block_copy->source);
		free(block_copy);
		return rc;
	}
	chunk_ledger_look(&block_copy->ledger, block_copy->loop, &block_copy->kick_task);
	block_copy->part = xfer_part_retain(part);
	block_copy->verify = xfer_part_verify(part);
	block_copy->result.leg = leg;
	block_copy->result.row = UINT32_MAX;
	count_up(&counters->legs_in, 1);
	block_copy_launch(block_copies, block_copy);
	return 0;
}

void
block_copy_hash(struct block_copies *block_copies, uint64_t tag, struct xfer_part *part)
{
	struct block_copy *block_copy = new_block_copy(block_copies, tag, part);
	block_copy->verify = true;
	block_copy->result.tag = tag;
	block_copy_launch(block_copies, block_copy);
}

/* Under the lock: it is in the list, so its last task was not posted yet. */
static void
ask_to_stop(struct block_copy *block_copy)
{
	__atomic_store_n(&block_copy->stop, true, __ATOMIC_RELAXED);
	loop_post(block_copy->loop, &block_copy->kick_task);
}

void
block_copy_stop(struct block_copies *block_copies, bool hash, uint64_t id)
{
	struct block_copy *block_copy;
	pthread_mutex_lock(&block_copies->lock);
	LIST_FOREACH(block_copy, &block_copies->list, entry)
	{
		if (block_copy->id == id && !block_copy->part == hash)
			ask_to_stop(block_copy);
	}
	pthread_mutex_unlock(&block_copies->lock);
}

struct block_copies *
block_copies_new(struct transport *transport)
{
	struct block_copies *block_copies = th_calloc(1, sizeof(*block_copies));
	block_copies->transport = transport;
	LIST_INIT(&block_copies->list);
	pthread_mutex_init(&block_copies->lock, NULL);
	pthread_cond_init(&block_copies->empty, NULL);
	return block_copies;
}

void
block_copies_free(struct block_copies *block_copies)
{
	struct block_copy *block_copy;
	if (!block_copies)
		return;
	pthread_mutex_lock(&block_copies->lock);
	LIST_FOREACH(block_copy, &block_copies->list, entry)
	{
		/* The process ends: a write that is stuck in a worker's memory is left behind. */
		if (block_copy->part)
			xfer_part_orphan(block_copy->part);
		ask_to_stop(block_copy);
	}
	while (block_copies->count > 0)
		pthread_cond_wait(&block_copies->empty, &block_copies->lock);
	pthread_mutex_unlock(&block_copies->lock);
	pthread_cond_destroy(&block_copies->empty);
	pthread_mutex_destroy(&block_copies->lock);
	free(block_copies);
}
