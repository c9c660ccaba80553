/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opens - which pieces of workers this life of a GPU's process has open, and is to open and close.
 *
 * A piece is opened when it is added, so that a failure is known early, and again when a run needs
 * it in a later life, or in the process of another GPU. Only so many are under way at once: what a
 * worker that leaves asks for is not behind thousands of them.
 *
 * A handle may end the process each time it is opened. After GPUS_TRIES such ends its piece is
 * poisoned, and with it the space: no worker gets to do that more often.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "transport/cuda/gpus_own.h"

#define CLOSE_NS INT64_C(100000) /* of a piece, by the driver */

struct opened_key {
	uint64_t worker, piece;
};

struct opened {
	struct opened_key key;
	bool opening, open, leaving; /* neither of the first two: it failed, and text says why */
	struct gpu_piece *piece;     /* owns a reference; NULL: leaving */
	bool home;                   /* of this GPU */
	uint64_t bytes;
	int64_t said_ns;
	char *text;                /* owns */
	TAILQ_ENTRY(opened) entry; /* while it is opening, as they were said */
	UT_hash_handle hh;
};

void
opens_init(struct gpu *gpu)
{
	TAILQ_INIT(&gpu->opening);
	TAILQ_INIT(&gpu->to_open);
	TAILQ_INIT(&gpu->suspect_pieces);
	gpu->leavings_last = &gpu->leavings;
}

static struct opened *
find(const struct gpu *gpu, uint64_t worker, uint64_t piece)
{
	struct opened_key key = {worker, piece};
	struct opened *opened = NULL;
	HASH_FIND(hh, gpu->opened, &key, sizeof(key), opened);
	return opened;
}

static void
not_opening(struct gpu *gpu, struct opened *opened)
{
	if (!opened->opening)
		return;
	TAILQ_REMOVE(&gpu->opening, opened, entry);
	gpu->num_opening--;
	opened->opening = false;
	gpu->piece_alone = false;
}

static void
not_open(struct gpu *gpu, struct opened *opened)
{
	if (!opened->open)
		return;
	gpu->num_open--;
	gpu->open_bytes -= opened->bytes;
	opened->open = false;
}

static void
drop(struct gpu *gpu, struct opened *opened)
{
	not_opening(gpu, opened);
	not_open(gpu, opened);
	piece_release(opened->piece);
	HASH_DEL(gpu->opened, opened);
	free(opened->text);
	free(opened);
}

static struct gpu_pieces *
queue_of(struct gpu *gpu, const struct gpu_piece *piece)
{
	return piece->tries > 0 ? &gpu->suspect_pieces : &gpu->to_open;
}

static bool
is_poisoned(struct gpu_piece *piece, struct gpu_space *space)
{
	return __atomic_load_n(&piece->poisoned, __ATOMIC_RELAXED) ||
	       __atomic_load_n(&space->poisoned, __ATOMIC_RELAXED);
}

static void
poison_text(const struct gpu_space *space, char *text)
{
	snprintf(text, GPU_TEXT_BYTES,
		"the process of the GPU ended %u times when it opened memory of %s: register it "
		"again, as memory of another kind",
		GPUS_TRIES, space->label);
}

/* ---- what is wanted ------------------------------------------------------------------------ */

void
opens_queue(struct gpu *gpu, struct gpu_piece *piece)
{
	char text[GPU_TEXT_BYTES];
	if (piece->queued) {
		piece_release(piece);
		return;
	}
	if (is_poisoned(piece, piece->space)) {
		poison_text(piece->space, text);
		space_known(piece, TH_E_MEMORY_KIND, text);
		piece_release(piece);
		return;
	}
	piece->queued = true;
	TAILQ_INSERT_TAIL(queue_of(gpu, piece), piece, entry);
}

static void
unqueue(struct gpu *gpu, struct gpu_piece *piece)
{
	TAILQ_REMOVE(queue_of(gpu, piece), piece, entry);
	piece->queued = false;
}

void
opens_forget(struct gpu *gpu, struct gpu_piece *piece)
{
	if (piece->queued) {
		unqueue(gpu, piece);
		piece_release(piece);
	}
	space_known(piece, 0, NULL);
	opens_leave(gpu, piece->worker, piece->number);
}

static void
forget_queued(struct gpu *gpu, struct gpu_pieces *queue, const struct gpu_space *space)
{
	struct gpu_piece *piece = TAILQ_FIRST(queue);
	while (piece) {
		struct gpu_piece *next = TAILQ_NEXT(piece, entry);
		if (piece->space == space) {
			unqueue(gpu, piece);
			piece_release(piece);
		}
		piece = next;
	}
}

void
opens_forget_space(struct gpu *gpu, struct gpu_space *space)
{
	forget_queued(gpu, &gpu->to_open, space);
	forget_queued(gpu, &gpu->suspect_pieces, space);
	opens_leave(gpu, space->worker, GPUS_ALL_PIECES);
}

/* Fails all of the space's that nobody has heard of yet. */
static void
fail_queued(
	struct gpu *gpu, struct gpu_pieces *queue, const struct gpu_space *space, const char *text)
{
	struct gpu_piece *piece = TAILQ_FIRST(queue);
	while (piece) {
		struct gpu_piece *next = TAILQ_NEXT(piece, entry);
		if (!space || piece->space == space) {
			unqueue(gpu, piece);
			space_known(piece, TH_E_MEMORY_KIND, text);
			piece_release(piece);
		}
		piece = next;
	}
}

void
opens_fail(struct gpu *gpu, const char *why)
{
	fail_queued(gpu, &gpu->to_open, NULL, why);
	fail_queued(gpu, &gpu->suspect_pieces, NULL, why);
}

bool
opens_wait(const struct gpu *gpu)
{
	return !TAILQ_EMPTY(&gpu->to_open) || !TAILQ_EMPTY(&gpu->suspect_pieces);
}

bool
opens_any(const struct gpu *gpu)
{
	return gpu->num_open > 0 || gpu->num_opening > 0 || gpu->leavings || opens_wait(gpu);
}

/* ---- opening ------------------------------------------------------------------------------- */

static int
say_open(struct gpu *gpu, struct gpu_space *space, struct gpu_piece *piece)
{
	struct gpu_open message = {.kind = GPU_OPEN,
		.worker = piece->worker,
		.piece = piece->number,
		.handle = piece->handle};
	int rc = process_say(&gpu->process, &message, sizeof(message), piece->fd);
	if (!gpu_said(gpu, rc))
		return -EAGAIN;
	__atomic_fetch_or(&space->opened_on, UINT32_C(1) << gpu->index, __ATOMIC_RELAXED);
	struct opened *opened = find(gpu, piece->worker, piece->number);
	if (!opened) {
		opened = th_calloc(1, sizeof(*opened));
		opened->key = (struct opened_key){piece->worker, piece->number};
		opened->home = space->home == gpu;
		opened->bytes = piece->bytes;
		opened->piece = piece;
		__atomic_fetch_add(&piece->refs, 1, __ATOMIC_RELAXED);
		HASH_ADD(hh, gpu->opened, key, sizeof(opened->key), opened);
	}
	opened->opening = true;
	opened->said_ns = th_now_ns();
	TAILQ_INSERT_TAIL(&gpu->opening, opened, entry);
	gpu->num_opening++;
	return 0;
}

int
opens_need(struct gpu *gpu, struct gpu_space *space, struct gpu_piece *piece, char *text)
{
	const struct opened *opened = find(gpu, piece->worker, piece->number);
	if (opened && opened->leaving) {
		snprintf(text, GPU_TEXT_BYTES, "GPU memory of %s has been given up", space->label);
		return TH_E_STALE_MEMORY;
	}
	if (opened && (opened->open || opened->opening))
		return 0;
	if (is_poisoned(piece, space)) {
		poison_text(space, text);
		return TH_E_STALE_MEMORY;
	}
	if (gpu->num_opening >= GPUS_OPENS_MAX)
		return -EAGAIN;
	return say_open(gpu, space, piece);
}

const char *
opens_why(struct gpu *gpu, uint64_t worker, uint64_t piece)
{
	const struct opened *opened = find(gpu, worker, piece);
	return opened && !opened->open ? opened->text : NULL;
}

/* The first of the queue. */
static bool
say_first(struct gpu *gpu, struct gpu_pieces *queue)
{
	struct gpu_piece *piece = TAILQ_FIRST(queue);
	const struct opened *opened = find(gpu, piece->worker, piece->number);
	bool is_open = opened && opened->open;
	bool is_under_way = opened && (opened->opening || opened->leaving);
	if (!is_open && !is_under_way && say_open(gpu, piece->space, piece) < 0)
		return false;
	unqueue(gpu, piece);
	if (is_open)
		space_known(piece, 0, NULL);
	piece_release(piece);
	return true;
}

bool
opens_say(struct gpu *gpu)
{
	while (!TAILQ_EMPTY(&gpu->to_open) && gpu->num_opening < GPUS_OPENS_MAX) {
		if (!say_first(gpu, &gpu->to_open))
			return false;
	}
	return true;
}

bool
opens_say_suspect(struct gpu *gpu)
{
	if (!say_first(gpu, &gpu->suspect_pieces))
		return false;
	gpu->piece_alone = gpu->num_opening > 0;
	return true;
}

void
opens_hear_opened(struct gpu *gpu, const struct gpu_opened *message)
{
	struct opened *opened = find(gpu, message->worker, message->piece);
	if (!opened || !opened->opening) {
		gpu_kill(gpu, "it opened what it was not asked to open");
		return;
	}
	if (message->code == -EIO) { /* it may be the piece: it is one of the suspects now */
		gpu_kill(gpu, "the driver failed: %s", message->text);
		return;
	}
	not_opening(gpu, opened);
	if (gpu->num_jobs == 0) /* else it is nothing yet that pieces can be opened */
		gpu_goes(gpu);
	free(opened->text);
	opened->text = NULL;
	if (opened->leaving)
		return;
	if (message->code < 0) {
		opened->text = th_strdup(message->text);
	} else {
		opened->open = true;
		gpu->num_open++;
		gpu->open_bytes += opened->bytes;
	}
	if (!opened->home)
		return;
	if (opened->piece->queued) {
		unqueue(gpu, opened->piece);
		piece_release(opened->piece);
	}
	opened->piece->tries = 0;
	if (message->code < 0)
		log_info("gpu", "a piece of GPU memory was not opened: %s", message->text);
	space_known(opened->piece, message->code < 0 ? TH_E_MEMORY_KIND : 0, message->text);
}

/* ---- closing ------------------------------------------------------------------------------- */

static bool
mark(struct opened *opened, uint64_t worker)
{
	if (opened->key.worker != worker || opened->leaving)
		return false;
	opened->leaving = true;
	piece_release(opened->piece);
	opened->piece = NULL;
	return true;
}

void
opens_leave(struct gpu *gpu, uint64_t worker, uint64_t piece)
{
	struct opened *opened, *next;
	uint32_t count = 0;
	if (piece != GPUS_ALL_PIECES) {
		opened = find(gpu, worker, piece);
		count = opened && mark(opened, worker);
	} else {
		HASH_ITER(hh, gpu->opened, opened, next)
		count += mark(opened, worker);
	}
	if (count == 0)
		return;
	struct gpu_leaving *leaving = th_calloc(1, sizeof(*leaving));
	*leaving = (struct gpu_leaving){
		.worker = worker, .piece = piece, .count = count, .since_ns = th_now_ns()};
	*gpu->leavings_last = leaving;
	gpu->leavings_last = &leaving->next;
}

bool
opens_say_leaving(struct gpu *gpu)
{
	for (struct gpu_leaving *leaving = gpu->leavings; leaving; leaving = leaving->next) {
		if (leaving->said)
			continue;
		struct gpu_leave message = {
			.kind = GPU_LEAVE, .worker = leaving->worker, .piece = leaving->piece};
		int rc = process_say(&gpu->process, &message, sizeof(message), -1);
		if (!gpu_said(gpu, rc))
			return false;
		leaving->said = true;
	}
	return true;
}

/* Answers come in the order of the questions. */
static bool
left(struct gpu *gpu, uint64_t worker, uint64_t piece)
{
	struct opened *opened, *next;
	if (piece != GPUS_ALL_PIECES) {
		opened = find(gpu, worker, piece);
		if (opened && opened->opening)
			return false;
		if (opened)
			drop(gpu, opened);
		return true;
	}
	HASH_ITER(hh, gpu->opened, opened, next)
	{
		if (opened->key.worker != worker)
			continue;
		if (opened->opening)
			return false;
		drop(gpu, opened);
	}
	return true;
}

void
opens_hear_left(struct gpu *gpu, const struct gpu_left *message)
{
	struct gpu_leaving **at = &gpu->leavings;
	while (*at && !((*at)->said && (*at)->worker == message->worker &&
			      (*at)->piece == message->piece))
		at = &(*at)->next;
	struct gpu_leaving *leaving = *at;
	if (!leaving || !left(gpu, message->worker, message->piece)) {
		gpu_kill(gpu, "it closed what it was not asked to close");
		return;
	}
	*at = leaving->next;
	if (!*at)
		gpu->leavings_last = at;
	free(leaving);
	gpu->left_ns = th_now_ns();
	if (message->code < 0)
		gpu_kill(gpu, "the driver did not close memory of a worker: %s", message->text);
}

/* ---- the end of a life --------------------------------------------------------------------- */

/* The worker's piece ended the process, or another one did. */
static void
suspect(struct gpu *gpu, struct gpu_piece *piece)
{
	char text[GPU_TEXT_BYTES];
	struct gpu_space *space = piece->space;
	if (piece->queued)
		unqueue(gpu, piece);
	else
		__atomic_fetch_add(&piece->refs, 1, __ATOMIC_RELAXED);
	piece->tries++;
	if (piece->tries < GPUS_TRIES && !is_poisoned(piece, space)) {
		piece->queued = true;
		TAILQ_INSERT_TAIL(&gpu->suspect_pieces, piece, entry);
		return;
	}
	poison_text(space, text);
	if (!is_poisoned(piece, space))
		log_warn("gpu", "%s", text);
	__atomic_store_n(&piece->poisoned, true, __ATOMIC_RELAXED);
	__atomic_store_n(&space->poisoned, true, __ATOMIC_RELAXED);
	space_known(piece, TH_E_MEMORY_KIND, text);
	fail_queued(gpu, &gpu->to_open, space, text);
	fail_queued(gpu, &gpu->suspect_pieces, space, text);
	piece_release(piece);
}

void
opens_died(struct gpu *gpu)
{
	struct opened *opened, *next;
	while ((opened = TAILQ_FIRST(&gpu->opening))) {
		if (opened->home && !opened->leaving)
			suspect(gpu, opened->piece);
		not_opening(gpu, opened);
	}
	HASH_ITER(hh, gpu->opened, opened, next)
	drop(gpu, opened);
	while (gpu->leavings) {
		struct gpu_leaving *leaving = gpu->leavings;
		gpu->leavings = leaving->next;
		free(leaving);
	}
	gpu->leavings_last = &gpu->leavings;
	gpu->piece_alone = false;
}

/* Thousands of pieces may be forgotten at once, or leave with one message: as long as it goes on,
 * and not much longer than the driver takes for each of them. */
int64_t
opens_leave_deadline(const struct gpu *gpu)
{
	const struct gpu_leaving *leaving = gpu->leavings;
	int64_t leave_ns = gpu->gpus->config.leave_ns;
	if (!leaving)
		return INT64_MAX;
	int64_t more_ns = th_min_i64(leaving->count * CLOSE_NS, leave_ns / 4 * 3);
	return th_deadline_ns(th_max_i64(leaving->since_ns, gpu->left_ns), leave_ns + more_ns);
}

int64_t
opens_deadline(const struct gpu *gpu)
{
	const struct opened *opened = TAILQ_FIRST(&gpu->opening);
	int64_t until_ns = opens_leave_deadline(gpu);
	if (opened)
		until_ns = th_min_i64(
			until_ns, th_deadline_ns(opened->said_ns, gpu->gpus->config.hang_ns));
	return until_ns;
}

void
opens_end(struct gpu *gpu)
{
	opens_died(gpu);
	TH_ASSERT(!opens_wait(gpu));
}
