/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_opens - which pieces of workers this life of a GPU's process has open, and is to open and
 * close.
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
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "transport/cuda/agent/gpus_own.h"

#define CLOSE_NS INT64_C(100000) /* of a piece, by the driver */

struct opened_key {
	uint64_t worker, piece;
};

struct opened {
	struct opened_key key;
	bool opening, open, leaving; /* neither of the first two: it failed, and text says why */
	struct gpu_piece *piece;     /* owns a reference, until the process has let go of it */
	bool home;                   /* of this GPU */
	bool own;                    /* of the process */
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
gpu_opens_find(const struct gpu *gpu, uint64_t worker, uint64_t piece)
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
	gpu->num_open_own -= opened->own;
	gpu->open_own_bytes -= opened->own ? opened->bytes : 0;
	opened->open = false;
}

static void
now_open(struct gpu *gpu, struct opened *opened)
{
	gpu->num_open++;
	gpu->open_bytes += opened->bytes;
	gpu->num_open_own += opened->own;
	gpu->open_own_bytes += opened->own ? opened->bytes : 0;
	opened->open = true;
}

static void
gpu_opens_drop(struct gpu *gpu, struct opened *opened)
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
		"the process of the GPU ended %u times when it opened memory of %s", GPUS_TRIES,
		space->label);
}

/* It is not opened any more, because of text. */
static bool
is_given_up(struct gpu_piece *piece, struct gpu_space *space, char *text)
{
	if (space_is_nowhere(space, text))
		return true;
	if (!is_poisoned(piece, space))
		return false;
	poison_text(space, text);
	return true;
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
	if (is_given_up(piece, piece->space, text)) {
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
		.own = piece->own,
		.worker = piece->worker,
		.piece = piece->number,
		.handle = piece->handle};
	int rc = process_say(&gpu->process, &message, sizeof(message), piece->own ? -1 : piece->fd);
	if (!gpu_said(gpu, rc))
		return -EAGAIN;
	__atomic_fetch_or(&space->opened_on, UINT32_C(1) << gpu->index, __ATOMIC_RELAXED);
	struct opened *opened = gpu_opens_find(gpu, piece->worker, piece->number);
	if (!opened) {
		opened = th_calloc(1, sizeof(*opened));
		opened->key = (struct opened_key){piece->worker, piece->number};
		opened->home = space->home == gpu;
		opened->own = piece->own;
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
	const struct opened *opened = gpu_opens_find(gpu, piece->worker, piece->number);
	if (opened && (opened->open || opened->opening))
		return 0;
	if (__atomic_load_n(&piece->lost, __ATOMIC_RELAXED)) {
		snprintf(text, GPU_TEXT_BYTES, "%s was lost with the process of the GPU",
			space->label);
		return TH_E_STALE_MEMORY;
	}
	if (is_given_up(piece, space, text))
		return TH_E_STALE_MEMORY;
	if (gpu->num_opening >= GPUS_OPENS_MAX)
		return -EAGAIN;
	/* Before the look: who forgets it from now on tells this GPU, too. */
	__atomic_fetch_or(&space->opened_on, UINT32_C(1) << gpu->index, __ATOMIC_RELAXED);
	if (!space_keeps(space, piece)) {
		snprintf(text, GPU_TEXT_BYTES, "GPU memory of %s has been given up", space->label);
		return TH_E_STALE_MEMORY;
	}
	return say_open(gpu, space, piece);
}

const char *
opens_why(struct gpu *gpu, uint64_t worker, uint64_t piece)
{
	const struct opened *opened = gpu_opens_find(gpu, worker, piece);
	return opened && !opened->open ? opened->text : NULL;
}

/* The first of the queue. */
static bool
say_first(struct gpu *gpu, struct gpu_pieces *queue)
{
	struct gpu_piece *piece = TAILQ_FIRST(queue);
	const struct opened *opened = gpu_opens_find(gpu, piece->worker, piece->number);
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

/* A NIC would be told more than there is. */
static bool
is_short(int fd, uint64_t bytes)
{
	uint64_t has = 0;
	return th_fd_bytes(fd, &has) < 0 || has < bytes;
}

bool
opens_hear_turn(struct gpu *gpu, int64_t said_ns)
{
	const struct opened *first = TAILQ_FIRST(&gpu->opening);
	struct gpu_leaving *leaving = gpu->leavings;
	if ((first && first->said_ns < said_ns) || pins_opening_ns(gpu) < said_ns) {
		gpu_kill(gpu, "it opened something before what was to be opened first");
		return false;
	}
	gpu->opened_ns = th_now_ns();
	gpu->refused_ns = 0; /* some of it gets through */
	if (leaving && said_ns <= leaving->queued_ns)
		leaving->since_ns = gpu->opened_ns;
	jobs_hear_turn(gpu, said_ns);
	return true;
}

/* Whether it may say so. */
static bool
is_answer(struct gpu *gpu, const struct opened *opened, const struct gpu_opened *message,
	const struct wire_fd *with)
{
	bool has_fd = with->fd >= 0 || with->lost;
	if (!opened || !opened->opening)
		gpu_kill(gpu, "it opened what it was not asked to open");
	else if (has_fd != (opened->own && message->code >= 0))
		gpu_kill(gpu, "it opened memory %s a descriptor", has_fd ? "with" : "without");
	else if (with->fd >= 0 && is_short(with->fd, opened->bytes))
		gpu_kill(gpu, "it opened memory with the descriptor of other memory");
	else if (message->code == -EIO) /* it may be the piece: it is one of the suspects now */
		gpu_kill(gpu, "the driver failed: %s", message->text);
	else
		return opens_hear_turn(gpu, opened->said_ns);
	return false;
}

/* Not of one that is leaving. why: empty, or it is not open. */
static void
know(struct gpu *gpu, struct opened *opened, const char *why)
{
	struct gpu_piece *piece = opened->piece;
	if (why[0])
		opened->text = th_strdup(why);
	else
		now_open(gpu, opened);
	if (!opened->home)
		return;
	if (piece->queued) {
		unqueue(gpu, piece);
		piece_release(piece);
	}
	piece->tries = 0;
	if (why[0])
		log_info("gpu", "a piece of GPU memory was not opened: %s", why);
	space_known(piece, why[0] ? TH_E_MEMORY_KIND : 0, why);
}

/* The process has it and nobody its dma-buf: it cannot be asked for once more before it has been
 * given back. */
static void
gpu_opens_lose(struct gpu *gpu, struct opened *opened)
{
	__atomic_store_n(&opened->piece->lost, true, __ATOMIC_RELAXED);
	know(gpu, opened,
		"the agent has no room for another descriptor: raise its limit (LimitNOFILE=)");
}

void
opens_hear_opened(struct gpu *gpu, const struct gpu_opened *message, const struct wire_fd *with)
{
	struct opened *opened = gpu_opens_find(gpu, message->worker, message->piece);
	bool is_right = is_answer(gpu, opened, message, with);
	if (is_right) {
		not_opening(gpu, opened);
		if (gpu->num_jobs == 0) /* else it is nothing yet that pieces can be opened */
			gpu_goes(gpu);
		free(opened->text);
		opened->text = NULL;
	}
	if (!is_right || opened->leaving) {
		if (with->fd >= 0)
			gpu->gpus->config.close_fd(with->fd, NULL, NULL);
		return;
	}
	if (opened->own)
		opened->piece->fd = with->fd;
	if (message->code < 0)
		know(gpu, opened, message->text[0] ? message->text : "it does not say why");
	else if (with->lost)
		gpu_opens_lose(gpu, opened);
	else
		know(gpu, opened, "");
}

/* ---- closing ------------------------------------------------------------------------------- */

/* How many pieces leave; with the whole worker those that its LEAVEs have not closed, too. */
static uint32_t
mark(struct gpu *gpu, struct gpu_leaving *leaving)
{
	struct opened *opened, *next;
	uint32_t count = 0;
	if (leaving->piece != GPUS_ALL_PIECES) {
		opened = gpu_opens_find(gpu, leaving->worker, leaving->piece);
		count = opened && !opened->leaving;
		if (count > 0)
			opened->leaving = true;
		return count;
	}
	HASH_ITER(hh, gpu->opened, opened, next)
	{
		if (opened->key.worker != leaving->worker)
			continue;
		opened->leaving = true;
		leaving->of_worker = !opened->own;
		count++;
	}
	return count;
}

void
opens_leave(struct gpu *gpu, uint64_t worker, uint64_t piece)
{
	int64_t now_ns = th_now_ns();
	struct gpu_leaving with = {
		.worker = worker, .piece = piece, .queued_ns = now_ns, .since_ns = now_ns};
	with.count = mark(gpu, &with);
	if (with.count == 0)
		return;
	struct gpu_leaving *leaving = th_calloc(1, sizeof(*leaving));
	*leaving = with;
	if (leaving->of_worker && gpu->worker_gone_ns == 0)
		gpu->worker_gone_ns = now_ns;
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

/* An OPEN that was said before a LEAVE is answered before it. */
static bool
left(struct gpu *gpu, uint64_t worker, uint64_t piece)
{
	struct opened *opened, *next;
	if (piece != GPUS_ALL_PIECES) {
		opened = gpu_opens_find(gpu, worker, piece);
		if (opened && opened->opening)
			return false;
		if (opened)
			gpu_opens_drop(gpu, opened);
		return true;
	}
	HASH_ITER(hh, gpu->opened, opened, next)
	{
		if (opened->key.worker != worker)
			continue;
		if (opened->opening)
			return false;
		gpu_opens_drop(gpu, opened);
	}
	return true;
}

static int64_t
first_worker_gone(const struct gpu *gpu)
{
	const struct gpu_leaving *leaving = gpu->leavings;
	while (leaving && !leaving->of_worker)
		leaving = leaving->next;
	return leaving ? leaving->queued_ns : 0;
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
	if (at == &gpu->leavings) /* else it is one that others wait behind no more than before */
		gpu->left_ns = th_now_ns();
	*at = leaving->next;
	if (!*at)
		gpu->leavings_last = at;
	free(leaving);
	gpu->worker_gone_ns = first_worker_gone(gpu);
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
	{
		if (opened->own && opened->open)
			__atomic_store_n(&opened->piece->lost, true, __ATOMIC_RELAXED);
		gpu_opens_drop(gpu, opened);
	}
	while (gpu->leavings) {
		struct gpu_leaving *leaving = gpu->leavings;
		gpu->leavings = leaving->next;
		free(leaving);
	}
	gpu->leavings_last = &gpu->leavings;
	gpu->worker_gone_ns = 0;
	gpu->piece_alone = false;
}

/* Thousands of pieces may be forgotten at once, or leave with one message: as long as it goes on,
 * and not much longer than the driver takes for each of them. One thread of the process opens
 * pieces and areas: what was said before is in the way. Another one unpins, and is not. */
int64_t
opens_leave_deadline(const struct gpu *gpu)
{
	const struct gpu_leaving *leaving = gpu->leavings;
	int64_t leave_ns = gpu->gpus->config.leave_ns;
	if (!leaving)
		return INT64_MAX;
	int64_t more_ns = th_min_i64(leaving->count * CLOSE_NS, leave_ns / 4 * 3);
	int64_t until_ns =
		th_deadline_ns(th_max_i64(leaving->since_ns, gpu->left_ns), leave_ns + more_ns);
	if (gpu->worker_gone_ns == 0 || gpu->gpus->config.leave_end_ns == 0)
		return until_ns;
	return th_min_i64(
		until_ns, th_deadline_ns(gpu->worker_gone_ns, gpu->gpus->config.leave_end_ns));
}

int64_t
opens_deadline(const struct gpu *gpu)
{
	const struct opened *opened = TAILQ_FIRST(&gpu->opening);
	int64_t until_ns = opens_leave_deadline(gpu);
	if (opened)
		until_ns = th_min_i64(
			until_ns, th_deadline_ns(th_max_i64(opened->said_ns, gpu->opened_ns),
					  gpu->gpus->config.hang_ns));
	return until_ns;
}

void
opens_end(struct gpu *gpu)
{
	opens_died(gpu);
	TH_ASSERT(!opens_wait(gpu));
}
