/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shuttle - copies between two parts of this agent, and digests of a part, where not all the memory
 * is mapped. What local.c and hasher.c do with threads that touch the memory themselves is done
 * here on a mover, with one ferry that reads the source and, for a copy, one that writes.
 *
 * A block goes round: read by the one ferry, hashed here, written by the other, free again. What is
 * hashed is what is written. Nothing here waits: the mover has connections to serve.
 *
 * A shuttle belongs to its mover, but for the list, stop, and the events. How it ends: when no
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
#include "transport/shuttle_own.h"

#define REUSED_AT_ONCE 2u /* chunks, before the mover serves its connections again */

LIST_HEAD(shuttle_list, shuttle);

struct shuttles {
	struct transport *transport;
	pthread_mutex_t lock;
	pthread_cond_t empty;
	struct shuttle_list list; /* guarded by lock */
	uint32_t count;           /* guarded by lock: not ended */
	uint32_t next_mover;      /* the shell's */
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
part_changed(void *arg)
{
	struct shuttle *shuttle = arg;
	loop_post(shuttle->loop, &shuttle->kick_task);
}

void
shuttle_end(struct shuttle *shuttle, enum transport_event_kind kind, int code, bool source_failed,
	const char *text)
{
	if (shuttle->ending)
		return;
	shuttle->ending = true;
	shuttle->result.kind = kind;
	shuttle->result.code = code;
	shuttle->result.source_failed = source_failed;
	snprintf(shuttle->result.text, sizeof(shuttle->result.text), "%s", text);
}

static void
stop(struct shuttle *shuttle)
{
	if (shuttle->part)
		shuttle_end(shuttle, TRANSPORT_STOPPED, TH_E_CANCELLED, false, "stopped");
	else
		shuttle_end(shuttle, TRANSPORT_HASH_STOPPED, TH_E_CANCELLED, false, "");
}

void
shuttle_fail(struct shuttle *shuttle, int error, uint32_t row, bool source_failed)
{
	int code = th_code_or(error, TH_E_STALE_MEMORY);
	if (!shuttle->ending)
		shuttle->result.row = row;
	if (!shuttle->part)
		xfer_part_fail(shuttle->source);
	char text[TH_CTL_TEXT_BYTES];
	int lost = part_lost_text(source_failed ? shuttle->source : shuttle->part,
		source_failed ? "the memory of the source can not be read any more"
			      : "our own memory can not be written any more",
		text);
	if (code == TH_E_STALE_MEMORY && !source_failed)
		code = lost;
	if (error == TH_E_LIMIT)
		ferry_limit(source_failed ? shuttle->reads : shuttle->writes, text, sizeof(text));
	if (error == TH_E_LIMIT && !shuttle->part) /* what cannot be hashed is withdrawn */
		xfer_part_set_lost(shuttle->source, error, text);
	if (error == TH_E_MEMORY_KIND)
		snprintf(text, sizeof(text),
			"a descriptor of our own memory has O_APPEND: the bytes would go to the "
			"end of the file");
	shuttle_end(shuttle, shuttle->part ? TRANSPORT_FAILED : TRANSPORT_HASH_FAILED, code,
		source_failed, text);
}

/* When nothing can be written any more. */
static void
finish(struct shuttle *shuttle)
{
	bool writes = shuttle->part && !xfer_part_orphaned(shuttle->part);
	if (shuttle->ended || (writes && shuttle_gpu_busy(shuttle)) ||
		(writes && shuttle->writes && ferry_busy(shuttle->writes)))
		return;
	shuttle->ended = true;
	xfer_part_unwatch(shuttle->source, part_changed, shuttle);
	if (shuttle->part)
		xfer_part_unwatch(shuttle->part, part_changed, shuttle);
	if (shuttle->part)
		intake_look_stop(&shuttle->intake);
	ferry_abandon(shuttle->reads);
	ferry_abandon(shuttle->writes);
	shuttle_gpu_free(shuttle);
	loop_post(shuttle->loop, &shuttle->leave_task);
}

static void
run_leave(struct loop_task *task)
{
	struct shuttle *shuttle = loop_container(task, struct shuttle, leave_task);
	struct shuttles *shuttles = shuttle->shuttles;
	pthread_mutex_lock(&shuttles->lock);
	LIST_REMOVE(shuttle, entry);
	pthread_mutex_unlock(&shuttles->lock);
	loop_post(shuttle->loop, &shuttle->last_task);
}

static void
name_way(const struct shuttle *shuttle, struct transport_event *event)
{
	bool by_gpu = __atomic_load_n(&shuttle->by_gpu, __ATOMIC_RELAXED);
	snprintf(event->transport, sizeof(event->transport), "%s", by_gpu ? "cuda-ipc" : "local");
	if (__atomic_load_n(&shuttle->why_told, __ATOMIC_ACQUIRE))
		snprintf(event->fallback, sizeof(event->fallback), "%s", shuttle->why);
}

static void
run_last(struct loop_task *task)
{
	struct shuttle *shuttle = loop_container(task, struct shuttle, last_task);
	struct shuttles *shuttles = shuttle->shuttles;
	struct transport *transport = shuttles->transport;
	struct transport_event *result = &shuttle->result;
	if (shuttle->part) {
		result->bytes_moved = shuttle->bytes_moved;
		result->bytes_reused = shuttle->intake.reuse.bytes;
		result->verify_ns = shuttle->verify_ns;
		result->transfer_ns = (uint64_t)(th_now_ns() - shuttle->started_ns);
		result->overwrote = shuttle->bytes_moved > 0;
		name_way(shuttle, result);
		if (result->kind == TRANSPORT_FAILED)
			count_up(&transport->counters.legs_failed, 1);
		intake_fini(&shuttle->intake);
		xfer_part_release(shuttle->part);
	}
	xfer_part_release(shuttle->source);
	events_post(&transport->events, &shuttle->last_node);
	pthread_mutex_lock(&shuttles->lock);
	shuttles->count--;
	pthread_cond_broadcast(&shuttles->empty);
	pthread_mutex_unlock(&shuttles->lock);
}

static bool
fill_progress(struct event_node *node, struct transport_event *ret_event)
{
	struct shuttle *shuttle = loop_container(node, struct shuttle, progress_node);
	ret_event->kind = TRANSPORT_PROGRESS;
	ret_event->leg = shuttle->id;
	ret_event->bytes_moved = __atomic_load_n(&shuttle->bytes_moved, __ATOMIC_RELAXED);
	name_way(shuttle, ret_event);
	return true;
}

static bool
fill_changed(struct event_node *node, struct transport_event *ret_event)
{
	struct shuttle *shuttle = loop_container(node, struct shuttle, changed_node);
	ret_event->kind = TRANSPORT_CHANGED;
	ret_event->leg = shuttle->id;
	ret_event->chunk = shuttle->changed_chunk;
	name_way(shuttle, ret_event);
	return true;
}

static bool
fill_last(struct event_node *node, struct transport_event *ret_event)
{
	struct shuttle *shuttle = loop_container(node, struct shuttle, last_node);
	*ret_event = shuttle->result;
	free(shuttle);
	return true;
}

/* ---- blocks ------------------------------------------------------------------------------- */

static void
hash(struct shuttle *shuttle, struct ferry_block *block)
{
	int64_t before_ns = th_now_ns();
	if (block->first)
		digest_init(&shuttle->digest);
	digest_update(&shuttle->digest, block->data, block->bytes);
	if (block->last)
		block->digest = digest_final(&shuttle->digest);
	shuttle->verify_ns += (uint64_t)(th_now_ns() - before_ns);
}

/*
 * The digest is of what was read of the source: unlike the published one means that its worker has
 * written to what it had published. There is no way on which it could have been damaged.
 */
static bool
still_published(struct shuttle *shuttle, const struct ferry_block *block)
{
	if (!block->last || !shuttle->verify || !shuttle->part ||
		th_hash_equal(block->digest, *xfer_part_digest(shuttle->source, block->chunk)))
		return true;
	shuttle_changed(shuttle, block->chunk);
	return false;
}

void
shuttle_changed(struct shuttle *shuttle, uint32_t chunk)
{
	struct transport *transport = shuttle->shuttles->transport;
	count_up(&transport->counters.checksum_failures, 1);
	shuttle->changed_chunk = chunk;
	events_post(&transport->events, &shuttle->changed_node);
	shuttle_end(shuttle, TRANSPORT_FAILED, TH_E_CHECKSUM, true,
		"the source is not what was published any more");
}

void
shuttle_hashed(struct shuttle *shuttle, uint32_t chunk, const struct th_hash *digest)
{
	struct xfer_part *part = shuttle->source;
	/* Known already when an earlier job was stopped between the two steps. */
	if (xfer_part_digest_count(part) == chunk)
		xfer_part_add_digests(part, chunk, digest, 1);
	xfer_part_advance(part, chunk + 1);
	if (chunk + 1 == xfer_part_table(part)->num_chunks)
		shuttle_end(shuttle, TRANSPORT_HASHED, 0, false, "");
}

void
shuttle_moved(struct shuttle *shuttle, uint64_t bytes)
{
	count_up(&shuttle->bytes_moved, bytes);
	count_up(&shuttle->shuttles->transport->counters.bytes_local, bytes);
}

void
shuttle_explain(struct shuttle *shuttle, const char *why)
{
	snprintf(shuttle->why, sizeof(shuttle->why), "by staging on the host: %s", why);
	__atomic_store_n(&shuttle->why_told, true, __ATOMIC_RELEASE);
	log_info("gpu", "GPUs do not do it alone %s=%" PRIu64 " why='%s'",
		shuttle->part ? "leg" : "tag", shuttle->id, shuttle->why);
	if (shuttle->part)
		count_up(&shuttle->shuttles->transport->counters.gpu_fallbacks, 1);
}

static void
take_read(struct shuttle *shuttle)
{
	struct ferry_block *block;
	while (!shuttle->ending && (block = ferry_take(shuttle->reads)) != NULL) {
		if (block->code < 0)
			shuttle_fail(shuttle, block->code, block->row, true);
		else if (shuttle->verify)
			hash(shuttle, block);
		if (block->code < 0 || !shuttle->part || !still_published(shuttle, block)) {
			if (!shuttle->part && block->code == 0 && block->last)
				shuttle_hashed(shuttle, block->chunk, &block->digest);
			ferry_put_back(shuttle->blocks, block);
			continue;
		}
		shuttle_moved(shuttle, block->bytes);
		ferry_submit(shuttle->writes, block);
	}
}

static void
judge(struct shuttle *shuttle, int result)
{
	if (result < 0) {
		shuttle_end(shuttle, TRANSPORT_FAILED, result, true,
			"the copy does not match the published digests");
		return;
	}
	if (result & INTAKE_GREW)
		events_post_soon(&shuttle->shuttles->transport->events, &shuttle->progress_node);
	if (result & INTAKE_COMPLETE)
		shuttle_end(shuttle, TRANSPORT_DONE, 0, false, "");
}

void
shuttle_arrived(struct shuttle *shuttle, uint32_t chunk, const struct th_hash *digest)
{
	local_pass_points(shuttle->part, chunk);
	judge(shuttle, intake_arrived(&shuttle->intake, chunk, shuttle->verify ? digest : NULL));
}

static void
take_written(struct shuttle *shuttle)
{
	struct ferry_block *block;
	while (shuttle->writes && (block = ferry_take(shuttle->writes)) != NULL) {
		if (block->code < 0)
			shuttle_fail(shuttle, block->code, block->row, false);
		else if (block->last && !shuttle->ending)
			shuttle_arrived(shuttle, block->chunk, &block->digest);
		ferry_put_back(shuttle->blocks, block);
	}
}

static void
take_looks(struct shuttle *shuttle)
{
	if (shuttle->part && !shuttle->ending)
		judge(shuttle, intake_looked(&shuttle->intake));
}

/* The publisher's digests, as far as the source knows them. */
static void
take_digests(struct shuttle *shuttle)
{
	uint32_t known = xfer_part_digest_count(shuttle->source);
	uint32_t have = xfer_part_digest_count(shuttle->part);
	if (shuttle->verify && known > have)
		judge(shuttle, intake_digests(&shuttle->intake, have,
				       xfer_part_digest(shuttle->source, have), known - have));
}

/* All that the source has is here: what is missing will never be served. */
static void
fail_short(struct shuttle *shuttle)
{
	struct intake *intake = &shuttle->intake;
	if (intake_lowest_missing(intake) == intake->num_chunks && !intake_looking(intake))
		shuttle_fail(shuttle, TH_E_STALE_MEMORY, UINT32_MAX, true);
}

/* The next chunk that the part has not got yet, into chunk. */
static bool
take_chunk(struct shuttle *shuttle)
{
	/* First: the prefix is the last one then, and the digests below it are known. */
	bool failed = xfer_part_failed(shuttle->source);
	uint32_t limit = xfer_part_prefix(shuttle->source);
	int result;
	take_digests(shuttle);
	for (uint32_t reused = 0; !shuttle->ending; reused++) {
		if (reused == REUSED_AT_ONCE) {
			loop_post(shuttle->loop, &shuttle->kick_task);
			return false;
		}
		if (!intake_take(&shuttle->intake, limit, &shuttle->chunk)) {
			if (failed)
				fail_short(shuttle);
			return false;
		}
		if (!intake_reuse(&shuttle->intake, shuttle->chunk, &result))
			return true;
		judge(shuttle, result);
	}
	return false;
}

bool
shuttle_next_chunk(struct shuttle *shuttle)
{
	if (!shuttle->part) {
		shuttle->chunk = shuttle->next_chunk;
		shuttle->reading =
			shuttle->next_chunk < xfer_part_table(shuttle->source)->num_chunks;
		shuttle->next_chunk += shuttle->reading;
	} else {
		shuttle->reading = take_chunk(shuttle);
	}
	if (shuttle->reading)
		xfer_cursor_init(&shuttle->cursor, shuttle->source, shuttle->chunk);
	return shuttle->reading;
}

static void
feed(struct shuttle *shuttle)
{
	const struct chunk_table *table = xfer_part_table(shuttle->source);
	struct ferry_block *block;
	while (!shuttle->ending && (shuttle->reading || shuttle_next_chunk(shuttle)) &&
		(block = ferry_spare(shuttle->blocks)) != NULL) {
		block->cursor = shuttle->cursor;
		block->chunk = shuttle->chunk;
		block->bytes = th_min_u32(shuttle->cursor.left, FERRY_BYTES);
		block->first = shuttle->cursor.left == chunk_bytes(table, shuttle->chunk);
		block->last = block->bytes == shuttle->cursor.left;
		xfer_cursor_skip(&shuttle->cursor, shuttle->source, block->bytes);
		shuttle->reading = !block->last;
		ferry_submit(shuttle->reads, block);
	}
}

/* ---- the mover's side --------------------------------------------------------------------- */

static void
start_ferries(struct shuttle *shuttle)
{
	int rc = ferry_new(
		shuttle->source, false, shuttle->loop, &shuttle->kick_task, &shuttle->reads);
	if (rc == 0 && shuttle->part)
		rc = ferry_new(
			shuttle->part, true, shuttle->loop, &shuttle->kick_task, &shuttle->writes);
	bool for_gpus = shuttle->part && xfer_part_gpus(shuttle->part, NULL) &&
			!xfer_part_gpus(shuttle->source, NULL);
	shuttle->blocks = for_gpus ? shuttle->writes : shuttle->reads;
	if (rc < 0) {
		shuttle_end(shuttle, shuttle->part ? TRANSPORT_FAILED : TRANSPORT_HASH_FAILED,
			th_code_or(rc, TH_E_LIMIT), false,
			"the agent can start no more threads for memory that is not mapped");
	}
}

static void
start(struct shuttle *shuttle)
{
	shuttle->started = true;
	xfer_part_watch(shuttle->source, part_changed, shuttle);
	if (shuttle->part)
		xfer_part_watch(shuttle->part, part_changed, shuttle);
	if (shuttle->part &&
		xfer_part_prefix(shuttle->part) == xfer_part_table(shuttle->part)->num_chunks) {
		shuttle_end(shuttle, TRANSPORT_DONE, 0, false, "");
		return;
	}
	if (!shuttle_gpu_start(shuttle))
		start_ferries(shuttle);
}

static void
run_gpu(struct shuttle *shuttle)
{
	if (shuttle_gpu_run(shuttle))
		return;
	shuttle_gpu_free(shuttle);
	if (!shuttle->ending)
		start_ferries(shuttle);
}

static void
run_ferries(struct shuttle *shuttle)
{
	if (!shuttle->ending)
		take_read(shuttle);
	take_written(shuttle);
	if (!shuttle->ending)
		feed(shuttle);
}

static void
run_kick(struct loop_task *task)
{
	struct shuttle *shuttle = loop_container(task, struct shuttle, kick_task);
	if (shuttle->ended)
		return;
	if (!shuttle->started)
		start(shuttle);
	if (__atomic_load_n(&shuttle->stop, __ATOMIC_RELAXED))
		stop(shuttle);
	take_looks(shuttle);
	if (shuttle->gpu)
		run_gpu(shuttle);
	if (!shuttle->gpu)
		run_ferries(shuttle);
	if (shuttle->ending)
		finish(shuttle);
}

/* ---- calls of the shell ------------------------------------------------------------------- */

static struct shuttle *
new_shuttle(struct shuttles *shuttles, uint64_t id, struct xfer_part *source)
{
	struct transport *transport = shuttles->transport;
	struct shuttle *shuttle = th_calloc(1, sizeof(*shuttle));
	shuttle->shuttles = shuttles;
	shuttle->id = id;
	shuttle->source = xfer_part_retain(source);
	shuttle->next_chunk = xfer_part_prefix(source);
	shuttle->kick_task.run = run_kick;
	shuttle->leave_task.run = run_leave;
	shuttle->last_task.run = run_last;
	shuttle->progress_node.fill = fill_progress;
	shuttle->changed_node.fill = fill_changed;
	shuttle->last_node.fill = fill_last;
	shuttle->started_ns = th_now_ns();
	shuttle->loop = transport->movers[shuttles->next_mover++ % transport->num_movers];
	return shuttle;
}

static void
launch(struct shuttles *shuttles, struct shuttle *shuttle)
{
	pthread_mutex_lock(&shuttles->lock);
	LIST_INSERT_HEAD(&shuttles->list, shuttle, entry);
	shuttles->count++;
	pthread_mutex_unlock(&shuttles->lock);
	loop_post(shuttle->loop, &shuttle->kick_task);
}

int
shuttle_copy(
	struct shuttles *shuttles, uint64_t leg, struct xfer_part *source, struct xfer_part *part)
{
	struct transport_counters *counters = &shuttles->transport->counters;
	struct shuttle *shuttle = new_shuttle(shuttles, leg, source);
	int rc = intake_init(&shuttle->intake, part, counters);
	if (rc < 0) {
		xfer_part_release(shuttle->source);
		free(shuttle);
		return rc;
	}
	intake_look(&shuttle->intake, shuttle->loop, &shuttle->kick_task);
	shuttle->part = xfer_part_retain(part);
	shuttle->verify = xfer_part_verify(part);
	shuttle->result.leg = leg;
	shuttle->result.row = UINT32_MAX;
	count_up(&counters->legs_in, 1);
	launch(shuttles, shuttle);
	return 0;
}

void
shuttle_hash(struct shuttles *shuttles, uint64_t tag, struct xfer_part *part)
{
	struct shuttle *shuttle = new_shuttle(shuttles, tag, part);
	shuttle->verify = true;
	shuttle->result.tag = tag;
	launch(shuttles, shuttle);
}

/* Under the lock: it is in the list, so its last task was not posted yet. */
static void
ask_to_stop(struct shuttle *shuttle)
{
	__atomic_store_n(&shuttle->stop, true, __ATOMIC_RELAXED);
	loop_post(shuttle->loop, &shuttle->kick_task);
}

void
shuttle_stop(struct shuttles *shuttles, bool hash, uint64_t id)
{
	struct shuttle *shuttle;
	pthread_mutex_lock(&shuttles->lock);
	LIST_FOREACH(shuttle, &shuttles->list, entry)
	{
		if (shuttle->id == id && !shuttle->part == hash)
			ask_to_stop(shuttle);
	}
	pthread_mutex_unlock(&shuttles->lock);
}

struct shuttles *
shuttles_new(struct transport *transport)
{
	struct shuttles *shuttles = th_calloc(1, sizeof(*shuttles));
	shuttles->transport = transport;
	LIST_INIT(&shuttles->list);
	pthread_mutex_init(&shuttles->lock, NULL);
	pthread_cond_init(&shuttles->empty, NULL);
	return shuttles;
}

void
shuttles_free(struct shuttles *shuttles)
{
	struct shuttle *shuttle;
	if (!shuttles)
		return;
	pthread_mutex_lock(&shuttles->lock);
	LIST_FOREACH(shuttle, &shuttles->list, entry)
	{
		/* The process ends: a write that is stuck in a worker's memory is left behind. */
		if (shuttle->part)
			xfer_part_orphan(shuttle->part);
		ask_to_stop(shuttle);
	}
	while (shuttles->count > 0)
		pthread_cond_wait(&shuttles->empty, &shuttles->lock);
	pthread_mutex_unlock(&shuttles->lock);
	pthread_cond_destroy(&shuttles->empty);
	pthread_mutex_destroy(&shuttles->lock);
	free(shuttles);
}
