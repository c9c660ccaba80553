/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu - the thread of one GPU: it alone starts, hears, watches and kills the GPU's process.
 *
 *   NONE  -> STARTING  there is work, and the last failure is some time ago
 *         -> UP        it has said READY
 *         -> ENDING    nobody needed it for a while, or the agent ends
 *   any   -> DYING     it owes an answer for too long, says what it cannot say, or has hung up
 *         -> NONE      it is dead: only now is what was under way begun again, or told
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "transport/cuda/gpus_own.h"
#include "transport/guard.h"

#define MS INT64_C(1000000)
/* The driver's first call takes seconds where many GPUs are and nothing keeps them awake. */
#define START_HANGS 3
#define BACKOFF_NS (100 * MS)
#define FAILS_NS (1000 * MS) /* so long, what comes after a failure fails with it */
#define PAUSE_NS (10 * MS)
#define STUCK_NS (10000 * MS)
#define STOP_NS (5000 * MS) /* for a process that does not die, at the agent's end */
#define STARTS_MAX 3u
#define DEATHS_MAX 8u /* in a row, with nothing done between */
#define HEAR_MAX 256u /* at a time */

/* ---- the inbox: any thread ----------------------------------------------------------------- */

static void
wake(struct gpu *gpu)
{
	const uint64_t one = 1;
	while (write(gpu->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

void
gpu_order(struct gpu *gpu, const struct gpu_order *order)
{
	struct gpu_order *own = th_memdup(order, sizeof(*order));
	own->next = NULL;
	pthread_mutex_lock(&gpu->lock);
	*gpu->orders_last = own;
	gpu->orders_last = &own->next;
	pthread_mutex_unlock(&gpu->lock);
	wake(gpu);
}

void
gpu_take_request(struct gpu *gpu, struct gpu_request *request)
{
	request->next = NULL;
	pthread_mutex_lock(&gpu->lock);
	*gpu->requests_last = request;
	gpu->requests_last = &request->next;
	pthread_mutex_unlock(&gpu->lock);
	wake(gpu);
}

void
gpu_show(struct gpu *gpu, struct gpu_status *ret_status)
{
	pthread_mutex_lock(&gpu->lock);
	*ret_status = gpu->shown;
	pthread_mutex_unlock(&gpu->lock);
	ret_status->spaces = __atomic_load_n(&gpu->num_spaces, __ATOMIC_RELAXED);
	ret_status->pieces = __atomic_load_n(&gpu->num_pieces, __ATOMIC_RELAXED);
}

/* ---- the inbox: the thread ----------------------------------------------------------------- */

/* To the other GPUs that may have it. */
static void
pass_on(struct gpu *gpu, uint32_t mask, uint64_t worker, uint64_t number)
{
	struct gpus *gpus = gpu->gpus;
	struct gpu_order leave = {.kind = ORDER_LEAVE, .worker = worker, .number = number};
	pthread_mutex_lock(&gpus->lock);
	for (uint32_t i = 0; i < gpus->count; i++) {
		if (i != gpu->index && mask >> i & 1)
			gpu_order(gpus->gpus[i], &leave);
	}
	pthread_mutex_unlock(&gpus->lock);
}

static void
obey(struct gpu *gpu, struct gpu_order *order)
{
	struct gpu_space *space = order->space;
	struct gpu_piece *piece = order->piece;
	switch (order->kind) {
	case ORDER_OPEN:
		opens_queue(gpu, piece);
		break;
	case ORDER_FORGET:
		opens_forget(gpu, piece);
		pass_on(gpu, order->mask, piece->worker, piece->number);
		piece_release(piece);
		break;
	case ORDER_SETTLED:
		settle_tell(order->settle);
		break;
	case ORDER_END:
		opens_forget_space(gpu, space);
		pass_on(gpu, __atomic_load_n(&space->opened_on, __ATOMIC_RELAXED), space->worker,
			GPUS_ALL_PIECES);
		space_end(space);
		break;
	case ORDER_LEAVE:
		opens_leave(gpu, order->worker, order->number);
		break;
	}
}

/* Whether the thread is to end. */
static bool
take_inbox(struct gpu *gpu)
{
	uint64_t times;
	while (read(gpu->wake_fd, &times, sizeof(times)) < 0 && errno == EINTR)
		;
	pthread_mutex_lock(&gpu->lock);
	struct gpu_request *request = gpu->requests;
	struct gpu_order *order = gpu->orders;
	bool stops = gpu->stops;
	if (gpu->is_new) {
		gpu->status = (struct gpu_status){0};
		gpu->starts_failed = gpu->deaths = 0;
		gpu->not_before_ns = 0;
		gpu->is_new = gpu->fails = false;
	}
	gpu->requests = NULL;
	gpu->requests_last = &gpu->requests;
	gpu->orders = NULL;
	gpu->orders_last = &gpu->orders;
	pthread_mutex_unlock(&gpu->lock);
	while (order) {
		struct gpu_order *next = order->next;
		obey(gpu, order);
		free(order);
		order = next;
	}
	while (request) {
		struct gpu_request *next = request->next;
		jobs_add(gpu, request);
		request = next;
	}
	return stops;
}

/* ---- failures ------------------------------------------------------------------------------ */

static void
live(struct gpu *gpu, enum gpu_life life)
{
	gpu->life = life;
	gpu->life_ns = th_now_ns();
	gpu->idle_ns = 0;
}

void
gpu_kill(struct gpu *gpu, const char *format, ...)
{
	va_list arguments;
	if (gpu->life == LIFE_NONE || gpu->life == LIFE_DYING)
		return;
	va_start(arguments, format);
	vsnprintf(gpu->why, sizeof(gpu->why), format, arguments);
	va_end(arguments);
	gpu->status.kills++;
	gpu->died_in = gpu->life;
	process_kill(&gpu->process);
	live(gpu, LIFE_DYING);
}

bool
gpu_said(struct gpu *gpu, int rc)
{
	if (rc == -EAGAIN)
		gpu->blocked = true;
	else if (rc == -ENOBUFS)
		gpu->pause_ns = th_now_ns() + PAUSE_NS;
	else if (rc < 0 && rc != -EPIPE && rc != -ECONNRESET)
		gpu_kill(gpu, "it cannot be spoken with: %s", th_strerror(rc));
	return rc == 0;
}

void
gpu_goes(struct gpu *gpu)
{
	gpu->starts_failed = 0;
	gpu->deaths = 0;
}

/* Nobody waits for a GPU that cannot be had. */
static void
fail_waiting(struct gpu *gpu)
{
	opens_fail(gpu, gpu->status.text);
	jobs_fail(gpu, gpu->status.text);
}

static void
fail_all(struct gpu *gpu)
{
	gpu->fails = true;
	gpu->starts_failed = 0;
	gpu->deaths = 0;
	gpu->not_before_ns = th_now_ns() + FAILS_NS;
	fail_waiting(gpu);
}

static void
start_failed(struct gpu *gpu)
{
	gpu->starts_failed++;
	gpu->not_before_ns = th_now_ns() + (BACKOFF_NS << gpu->starts_failed) / 2;
	log_warn("gpu", "the process of a GPU did not start: %s", gpu->status.text);
	if (gpu->starts_failed >= STARTS_MAX)
		fail_all(gpu);
}

/* It is dead. */
static void
gone(struct gpu *gpu, const char *how)
{
	struct gpu_status *status = &gpu->status;
	bool was_killed = gpu->life == LIFE_DYING;
	enum gpu_life in = was_killed ? gpu->died_in : gpu->life;
	blocks_process_ended(gpu->gpus->blocks);
	if (in != LIFE_ENDING) {
		const char *why = was_killed && gpu->why[0] ? gpu->why : how;
		memmove(status->text, why, strnlen(why, sizeof(status->text) - 1) + 1);
		status->ends += !was_killed || !gpu->why[0];
	}
	status->context_bytes = 0;
	gpu->blocked = false;
	gpu->why[0] = 0;
	opens_died(gpu);
	jobs_died(gpu, status->text);
	live(gpu, LIFE_NONE);
	if (in == LIFE_STARTING) {
		start_failed(gpu);
		return;
	}
	if (in != LIFE_UP)
		return;
	log_warn("gpu", "the process of a GPU has gone: %s", status->text);
	gpu->deaths++;
	gpu->not_before_ns = gpu->deaths > 1 ? gpu->life_ns + BACKOFF_NS / 2 : 0;
	if (gpu->deaths >= DEATHS_MAX)
		fail_all(gpu);
}

/* ---- hearing ------------------------------------------------------------------------------- */

union message {
	uint32_t kind;
	struct gpu_ready ready;
	struct gpu_area_is area;
	struct gpu_opened opened;
	struct gpu_left left;
	struct gpu_done done;
	uint8_t longer[sizeof(struct gpu_ready) + 1];
};

/* Ends where it must, and has nothing but letters in it. */
static bool
clean(char *text, size_t room)
{
	if (!memchr(text, 0, room))
		return false;
	for (; *text; text++) {
		if (*text < ' ' || *text > '~')
			*text = '?';
	}
	return true;
}

static bool
hear_ready(struct gpu *gpu, struct gpu_ready *ready)
{
	struct gpu_status *status = &gpu->status;
	if (!clean(ready->name, sizeof(ready->name)) || !clean(ready->pci, sizeof(ready->pci)) ||
		!clean(ready->text, sizeof(ready->text)))
		return false;
	if (ready->code < 0) {
		/* It has said why, and ends. Another one may find room; nothing else changes. */
		if (ready->code != -ENOMEM)
			gpu->starts_failed = STARTS_MAX - 1;
		snprintf(gpu->why, sizeof(gpu->why), "%s", ready->text);
		gpu->died_in = LIFE_STARTING;
		process_kill(&gpu->process);
		live(gpu, LIFE_DYING);
		return true;
	}
	memcpy(status->name, ready->name, sizeof(status->name));
	memcpy(status->pci, ready->pci, sizeof(status->pci));
	status->context_bytes = ready->context_bytes;
	status->hashes_on_gpu = ready->hashes_on_gpu == 1;
	live(gpu, LIFE_UP);
	log_info("gpu", "the process of a GPU has started gpu=%s pci=%s pid=%d", status->name,
		status->pci, (int)gpu->process.pid);
	return true;
}

/* False: it cannot say that. */
static bool
hear(struct gpu *gpu, union message *message, size_t bytes)
{
	bool up = gpu->life == LIFE_UP;
	uint32_t kind = bytes >= sizeof(kind) ? message->kind : 0;
	if (kind == GPU_READY && gpu->life == LIFE_STARTING && bytes == sizeof(message->ready))
		return hear_ready(gpu, &message->ready);
	if (kind == GPU_AREA_IS && up && bytes == sizeof(message->area) &&
		clean(message->area.text, GPU_TEXT_BYTES))
		jobs_hear_area(gpu, &message->area);
	else if (kind == GPU_OPENED && up && bytes == sizeof(message->opened) &&
		 clean(message->opened.text, GPU_TEXT_BYTES))
		opens_hear_opened(gpu, &message->opened);
	else if (kind == GPU_LEFT && up && bytes == sizeof(message->left) &&
		 clean(message->left.text, GPU_TEXT_BYTES))
		opens_hear_left(gpu, &message->left);
	else if (kind == GPU_DONE && up && bytes == sizeof(message->done) &&
		 clean(message->done.text, GPU_TEXT_BYTES))
		jobs_hear_done(gpu, &message->done);
	else
		return false;
	return true;
}

static void
hear_all(struct gpu *gpu)
{
	for (unsigned i = 0; i < HEAR_MAX; i++) {
		union message message;
		if (gpu->life != LIFE_STARTING && gpu->life != LIFE_UP)
			return;
		int got = process_hear(&gpu->process, &message, sizeof(message));
		if (got == -EAGAIN)
			return;
		if (got == 0) { /* it has hung up: whatever it still does, it is no use */
			gpu->died_in = gpu->life;
			process_kill(&gpu->process);
			live(gpu, LIFE_DYING);
			return;
		}
		if (!hear(gpu, &message, (size_t)got))
			gpu_kill(gpu, "it said what it cannot say (kind %u, %d bytes)",
				(size_t)got >= sizeof(message.kind) ? message.kind : 0, got);
	}
}

/* ---- starting, ending ---------------------------------------------------------------------- */

static void
start(struct gpu *gpu)
{
	struct gpus *gpus = gpu->gpus;
	struct th_err err = {0};
	struct gpu_start message = {
		.kind = GPU_START, .flags = gpus->config.hash_on_cpu ? GPU_HASH_ON_CPU : 0};
	memcpy(message.uuid, gpu->uuid, sizeof(message.uuid));
	gpu->fails = false;
	int rc = process_start(&gpu->process, &gpus->config, &err);
	if (rc < 0) {
		snprintf(gpu->status.text, sizeof(gpu->status.text), "%.*s",
			(int)GPU_TEXT_BYTES - 1, err.text[0] ? err.text : th_strerror(rc));
		start_failed(gpu);
		return;
	}
	gpu->status.starts++;
	blocks_process_begins(gpus->blocks);
	live(gpu, LIFE_STARTING);
	(void)gpu_said(gpu, process_say(&gpu->process, &message, sizeof(message), -1));
}

static void
end(struct gpu *gpu)
{
	process_hang_up(&gpu->process);
	live(gpu, LIFE_ENDING);
}

static bool
works(const struct gpu *gpu)
{
	return gpu->num_jobs > 0 || opens_wait(gpu);
}

/* When something is due that no event tells of. */
static int64_t
next_ns(const struct gpu *gpu)
{
	const struct gpus_config *config = &gpu->gpus->config;
	int64_t until_ns = INT64_MAX;
	switch (gpu->life) {
	case LIFE_NONE:
		return works(gpu) ? gpu->not_before_ns : INT64_MAX;
	case LIFE_STARTING:
		return th_deadline_ns(gpu->life_ns, START_HANGS * config->hang_ns);
	case LIFE_UP:
		until_ns = th_min_i64(opens_deadline(gpu), jobs_deadline(gpu));
		if (gpu->idle_ns > 0)
			until_ns =
				th_min_i64(until_ns, th_deadline_ns(gpu->idle_ns, config->idle_ns));
		if (gpu->pause_ns > 0)
			until_ns = th_min_i64(until_ns, gpu->pause_ns);
		return until_ns;
	case LIFE_ENDING:
		return th_deadline_ns(gpu->life_ns, config->leave_ns);
	case LIFE_DYING:
		return gpu->life_ns + STUCK_NS;
	}
	return until_ns;
}

static void
watch_up(struct gpu *gpu, int64_t now_ns)
{
	const struct gpus_config *config = &gpu->gpus->config;
	if (now_ns >= gpu->pause_ns)
		gpu->pause_ns = 0;
	if (now_ns >= opens_leave_deadline(gpu))
		gpu_kill(gpu, "it did not let go of a worker's memory within %" PRId64 " ms",
			config->leave_ns / MS);
	else if (now_ns >= opens_deadline(gpu) || now_ns >= jobs_deadline(gpu))
		gpu_kill(gpu, "it did not answer for %" PRId64 " ms", config->hang_ns / MS);
	else if (gpu->num_jobs > 0 || opens_any(gpu))
		gpu->idle_ns = 0;
	else if (gpu->idle_ns == 0)
		gpu->idle_ns = now_ns;
	else if (now_ns >= th_deadline_ns(gpu->idle_ns, config->idle_ns))
		end(gpu);
}

/* At the agent's end, one that does not die is left alone. */
static void
watch_dying(struct gpu *gpu, int64_t now_ns, int64_t stop_ns)
{
	if (stop_ns > 0 && now_ns >= stop_ns + STOP_NS) {
		log_error("gpu", "the process of a GPU does not die, and is left alone pid=%d",
			(int)gpu->process.pid);
		process_forget(&gpu->process);
		gone(gpu, "it does not die");
	} else if (now_ns >= gpu->life_ns + STUCK_NS) {
		log_warn("gpu",
			"the process of a GPU was killed and is not dead: the driver holds it, and "
			"what it did is not over pid=%d",
			(int)gpu->process.pid);
		gpu->life_ns = now_ns;
	}
}

/* False: the thread is to end. */
static bool
watch(struct gpu *gpu, int64_t stop_ns)
{
	int64_t now_ns = th_now_ns();
	char how[GPU_TEXT_BYTES];
	if (gpu->life != LIFE_NONE && process_reap(&gpu->process, how, sizeof(how)))
		gone(gpu, how);
	switch (gpu->life) {
	case LIFE_NONE:
		if (stop_ns > 0) {
			snprintf(gpu->status.text, sizeof(gpu->status.text), "the agent ends");
			fail_waiting(gpu);
			return false;
		}
		if (gpu->fails && now_ns < gpu->not_before_ns)
			fail_waiting(gpu);
		else if (works(gpu) && now_ns >= gpu->not_before_ns)
			start(gpu);
		break;
	case LIFE_STARTING:
		if (stop_ns > 0)
			end(gpu);
		else if (now_ns >= next_ns(gpu)) {
			/* Waiting as long again would help nobody. */
			gpu->starts_failed = STARTS_MAX - 1;
			gpu_kill(gpu, "it was not ready within %" PRId64 " ms",
				START_HANGS * gpu->gpus->config.hang_ns / MS);
		}
		break;
	case LIFE_UP:
		if (stop_ns > 0)
			end(gpu);
		else
			watch_up(gpu, now_ns);
		break;
	case LIFE_ENDING:
		if (now_ns >= next_ns(gpu))
			gpu_kill(gpu, "it did not end by itself");
		break;
	case LIFE_DYING:
		watch_dying(gpu, now_ns, stop_ns);
		break;
	}
	return true;
}

/* ---- the thread ---------------------------------------------------------------------------- */

static void
show(struct gpu *gpu)
{
	struct gpu_status *status = &gpu->status;
	status->pid = gpu->process.pid;
	status->imports = gpu->num_open;
	status->import_bytes = gpu->open_bytes;
	status->running = gpu->num_jobs;
	pthread_mutex_lock(&gpu->lock);
	gpu->is_free = gpu->life == LIFE_NONE && !works(gpu) && !gpu->orders && !gpu->requests;
	gpu->shown = *status;
	memcpy(gpu->shown.uuid, gpu->uuid, sizeof(gpu->uuid));
	pthread_mutex_unlock(&gpu->lock);
}

static void
wait_for_events(struct gpu *gpu)
{
	struct pollfd fds[3] = {{.fd = gpu->wake_fd, .events = POLLIN},
		{.fd = gpu->process.sock, .events = (short)(POLLIN | (gpu->blocked ? POLLOUT : 0))},
		{.fd = gpu->process.pidfd, .events = POLLIN}};
	int64_t until_ns = next_ns(gpu), left_ns = until_ns - th_now_ns();
	struct timespec left = {0};
	if (left_ns > 0) {
		left.tv_sec = left_ns / (1000 * MS);
		left.tv_nsec = left_ns % (1000 * MS);
	}
	if (ppoll(fds, 3, until_ns == INT64_MAX ? NULL : &left, NULL) > 0 &&
		fds[1].revents & POLLOUT)
		gpu->blocked = false;
}

static void *
gpu_main(void *arg)
{
	struct gpu *gpu = arg;
	int64_t stop_ns = 0;
	for (;;) {
		if (take_inbox(gpu) && stop_ns == 0)
			stop_ns = th_now_ns();
		hear_all(gpu);
		if (!watch(gpu, stop_ns))
			return NULL;
		if (gpu->life == LIFE_UP && !gpu->blocked && gpu->pause_ns == 0)
			jobs_say(gpu);
		show(gpu);
		wait_for_events(gpu);
	}
}

static int
start_thread(struct gpu *gpu)
{
	sigset_t mask, before;
	guard_mask(&mask);
	pthread_sigmask(SIG_SETMASK, &mask, &before);
	int rc = pthread_create(&gpu->thread, NULL, gpu_main, gpu);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -rc;
}

static void
destroy(struct gpu *gpu)
{
	TH_ASSERT(!gpu->orders && !gpu->requests);
	opens_end(gpu);
	jobs_end(gpu);
	pthread_mutex_destroy(&gpu->lock);
	th_fd_close(&gpu->wake_fd);
	free(gpu);
}

int
gpu_new(struct gpus *gpus, const uint8_t uuid[16], uint32_t index, struct gpu **ret_gpu)
{
	struct gpu *gpu = th_calloc(1, sizeof(*gpu));
	gpu->gpus = gpus;
	gpu->index = index;
	memcpy(gpu->uuid, uuid, sizeof(gpu->uuid));
	memcpy(gpu->shown.uuid, uuid, sizeof(gpu->shown.uuid));
	gpu->process = (struct process){.pidfd = -1, .sock = -1};
	gpu->requests_last = &gpu->requests;
	gpu->orders_last = &gpu->orders;
	pthread_mutex_init(&gpu->lock, NULL);
	opens_init(gpu);
	jobs_init(gpu);
	gpu->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int rc = gpu->wake_fd < 0 ? -errno : start_thread(gpu);
	if (rc < 0) {
		destroy(gpu);
		return rc;
	}
	*ret_gpu = gpu;
	return 0;
}

bool
gpu_reuse(struct gpu *gpu, const uint8_t uuid[16])
{
	if (__atomic_load_n(&gpu->num_spaces, __ATOMIC_ACQUIRE) > 0)
		return false;
	pthread_mutex_lock(&gpu->lock);
	bool is_free = gpu->is_free && !gpu->requests && !gpu->orders;
	if (is_free) {
		memcpy(gpu->uuid, uuid, sizeof(gpu->uuid));
		gpu->shown = (struct gpu_status){0};
		memcpy(gpu->shown.uuid, uuid, sizeof(gpu->shown.uuid));
		gpu->is_new = true;
	}
	pthread_mutex_unlock(&gpu->lock);
	return is_free;
}

void
gpu_stop(struct gpu *gpu)
{
	pthread_mutex_lock(&gpu->lock);
	gpu->stops = true;
	pthread_mutex_unlock(&gpu->lock);
	wake(gpu);
}

void
gpu_join(struct gpu *gpu)
{
	pthread_join(gpu->thread, NULL);
}

void
gpu_drain(struct gpu *gpu)
{
	(void)take_inbox(gpu);
	fail_waiting(gpu);
	(void)take_inbox(gpu);
}

void
gpu_free(struct gpu *gpu)
{
	destroy(gpu);
}
