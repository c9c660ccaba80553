/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_thread - the thread of one GPU: it alone starts, hears, watches and kills the GPU's process.
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
#include "transport/cuda/agent/gpus_own.h"
#include "transport/part/sigbus.h"

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

/* ---- failures ------------------------------------------------------------------------------ */

static void
live(struct gpu *gpu, enum gpu_life life)
{
	gpu->life = life;
	gpu->life_ns = th_now_ns();
	gpu->idle_ns = 0;
}

/* gpu->why says why, if it is not its own doing. */
static void
die(struct gpu *gpu)
{
	gpu->died_in = gpu->life;
	process_kill(&gpu->process);
	live(gpu, LIFE_DYING);
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
	gpu->status.kills += gpu->life != LIFE_ENDING; /* where nobody needs it */
	die(gpu);
}

static void
pause_saying(struct gpu *gpu)
{
	int64_t now_ns = th_now_ns();
	gpu->pause_ns = now_ns + PAUSE_NS;
	if (gpu->refused_ns == 0)
		gpu->refused_ns = now_ns;
}

/* All that there was to say was said, as far as the process takes it. */
static void
gpu_thread_say(struct gpu *gpu)
{
	jobs_say(gpu);
	if (gpu->pause_ns == 0)
		gpu->refused_ns = 0;
}

bool
gpu_said(struct gpu *gpu, int rc)
{
	if (rc == -EAGAIN)
		gpu->blocked_ns = th_now_ns();
	else if (rc == -ENOBUFS)
		pause_saying(gpu);
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
gpu_thread_gone(struct gpu *gpu, const char *how)
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
	gpu->blocked_ns = gpu->pause_ns = gpu->refused_ns = 0;
	gpu->why[0] = 0;
	opens_died(gpu);
	jobs_died(gpu, status->text);
	pins_died(gpu);
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

/* What is many times slower than it could be, nobody looks for. */
static void
note_why(struct gpu *gpu, char *kept, const char *why, const char *what)
{
	bool is_new = strcmp(kept, why) != 0;
	memmove(kept, why, strlen(why) + 1);
	if (is_new && why[0])
		log_warn("gpu", "%s gpu=%s pci=%s why='%s'", what, gpu->status.name,
			gpu->status.pci, why);
}

void
gpu_hashed_by_cpu(struct gpu *gpu, const char *why)
{
	note_why(gpu, gpu->status.hashes_why, why, "digests are made by the CPU, over the bus");
}

static void
hear_kernels(struct gpu *gpu, const struct gpu_ready *ready)
{
	struct gpu_status *status = &gpu->status;
	status->hashes_on_gpu = ready->hashes_on_gpu == 1;
	if (gpu->gpus->config.hash_on_cpu) /* so it is set */
		memcpy(status->hashes_why, ready->text, sizeof(status->hashes_why));
	else
		gpu_hashed_by_cpu(gpu, ready->text);
	note_why(gpu, gpu->gathers_why, ready->gather_text, "small tensors are slower to copy");
}

/* What comes with each answer. */
static bool
is_result(int32_t code, char text[GPU_TEXT_BYTES])
{
	return code <= 0 && clean(text, GPU_TEXT_BYTES);
}

static bool
hear_ready(struct gpu *gpu, struct gpu_ready *ready)
{
	struct gpu_status *status = &gpu->status;
	char uuid[CUDA_UUID_TEXT_BYTES];
	if (!clean(ready->name, sizeof(ready->name)) || !clean(ready->pci, sizeof(ready->pci)) ||
		!clean(ready->gather_text, sizeof(ready->gather_text)) ||
		!is_result(ready->code, ready->text) || ready->hashes_on_gpu > 1)
		return false;
	if (ready->code < 0) {
		/* It has said why, and ends. Another one may find room; nothing else changes. */
		if (ready->code != -ENOMEM)
			gpu->starts_failed = STARTS_MAX - 1;
		gpu->none = ready->code == TH_E_NOT_AVAILABLE;
		if (gpu->none || ready->code == TH_E_MEMORY_KIND)
			snprintf(gpu->why, sizeof(gpu->why), "%s: %.200s",
				cuda_uuid_text(gpu->card->uuid, uuid), ready->text);
		else
			snprintf(gpu->why, sizeof(gpu->why), "%s", ready->text);
		die(gpu);
		return true;
	}
	memcpy(status->name, ready->name, sizeof(status->name));
	memcpy(status->pci, ready->pci, sizeof(status->pci));
	status->context_bytes = ready->context_bytes;
	hear_kernels(gpu, ready);
	live(gpu, LIFE_UP);
	log_info("gpu", "the process of a GPU has started gpu=%s pci=%s pid=%d", status->name,
		status->pci, (int)gpu->process.pid);
	return true;
}

/* False: it cannot say that. Takes the descriptor. */
static bool
gpu_thread_hear(struct gpu *gpu, union message *message, size_t bytes, const struct wire_fd *with)
{
	bool up = gpu->life == LIFE_UP;
	uint32_t kind = bytes >= sizeof(kind) ? message->kind : 0;
	bool is_opened = kind == GPU_OPENED && up && bytes == sizeof(message->opened) &&
			 is_result(message->opened.code, message->opened.text) && !with->more;
	if (is_opened) {
		opens_hear_opened(gpu, &message->opened, with);
		return true;
	}
	if (with->fd >= 0)
		gpu->gpus->config.close_fd(with->fd, NULL, NULL);
	if (with->fd >= 0 || with->lost || with->more)
		return false;
	if (kind == GPU_READY && gpu->life == LIFE_STARTING && bytes == sizeof(message->ready))
		return hear_ready(gpu, &message->ready);
	if (kind == GPU_AREA_IS && up && bytes == sizeof(message->area) &&
		is_result(message->area.code, message->area.text) && message->area.pinned <= 1)
		pins_hear(gpu, &message->area);
	else if (kind == GPU_LEFT && up && bytes == sizeof(message->left) &&
		 is_result(message->left.code, message->left.text))
		opens_hear_left(gpu, &message->left);
	else if (kind == GPU_DONE && up && bytes == sizeof(message->done) &&
		 is_result(message->done.code, message->done.text))
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
		struct wire_fd with;
		if (gpu->life != LIFE_STARTING && gpu->life != LIFE_UP)
			return;
		int got = process_hear(&gpu->process, &message, sizeof(message), &with);
		if (got == -EAGAIN)
			return;
		if (got == 0) { /* it has hung up: whatever it still does, it is no use */
			if (with.fd >= 0)
				gpu->gpus->config.close_fd(with.fd, NULL, NULL);
			die(gpu);
			return;
		}
		if (!gpu_thread_hear(gpu, &message, (size_t)got, &with))
			gpu_kill(gpu, "it said what it cannot say (kind %u, %d bytes)",
				(size_t)got >= sizeof(message.kind) ? message.kind : 0, got);
	}
}

/* ---- starting, ending ---------------------------------------------------------------------- */

static void
gpu_thread_start(struct gpu *gpu)
{
	struct gpus *gpus = gpu->gpus;
	struct th_err err = {0};
	struct gpu_start message = {
		.kind = GPU_START, .flags = gpus->config.hash_on_cpu ? GPU_HASH_ON_CPU : 0};
	memcpy(message.uuid, gpu->card->uuid, sizeof(message.uuid));
	gpu->fails = gpu->none = false;
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
	rc = process_say(&gpu->process, &message, sizeof(message), -1);
	if (rc == -EAGAIN || rc == -ENOBUFS) { /* nobody would say it again */
		snprintf(gpu->why, sizeof(gpu->why), "it could not be told its GPU: %s",
			th_strerror(rc));
		die(gpu);
	} else {
		(void)gpu_said(gpu, rc);
	}
}

static void
gpu_thread_end(struct gpu *gpu)
{
	process_hang_up(&gpu->process);
	live(gpu, LIFE_ENDING);
}

static bool
works(const struct gpu *gpu)
{
	return gpu->num_jobs > 0 || opens_wait(gpu);
}

/* Somebody wants another process, or a worker what this one has. For the agent's own memory nobody
 * waits. */
static bool
is_missed(const struct gpu *gpu)
{
	return works(gpu) || opens_any(gpu);
}

/* When the process has owed an answer for too long, or not taken what is said. */
static int64_t
answer_deadline(const struct gpu *gpu)
{
	int64_t until_ns =
		th_min_i64(th_min_i64(opens_deadline(gpu), jobs_deadline(gpu)), pins_deadline(gpu));
	if (gpu->blocked_ns == 0)
		return until_ns;
	return th_min_i64(until_ns, th_deadline_ns(gpu->blocked_ns, gpu->gpus->config.hang_ns));
}

/* When something is due that no event tells of. */
static int64_t
gpu_thread_next_ns(const struct gpu *gpu)
{
	const struct gpus_config *config = &gpu->gpus->config;
	int64_t until_ns = INT64_MAX;
	switch (gpu->life) {
	case LIFE_NONE:
		if (gpu->stop_ns > 0)
			return 0;
		return works(gpu) ? gpu->not_before_ns : INT64_MAX;
	case LIFE_STARTING:
		return th_deadline_ns(gpu->life_ns, START_HANGS * config->hang_ns);
	case LIFE_UP:
		until_ns = answer_deadline(gpu);
		if (gpu->idle_ns > 0)
			until_ns =
				th_min_i64(until_ns, th_deadline_ns(gpu->idle_ns, config->idle_ns));
		if (gpu->pause_ns > 0)
			until_ns = th_min_i64(until_ns, gpu->pause_ns);
		return until_ns;
	case LIFE_ENDING:
		/* To unpin and to take a context down is long: nobody has to be in a hurry. */
		return th_deadline_ns(gpu->life_ns,
			gpu->stop_ns > 0 || is_missed(gpu) ? config->leave_ns : config->hang_ns);
	case LIFE_DYING:
		until_ns = gpu->life_ns + STUCK_NS;
		return gpu->stop_ns > 0 ? th_min_i64(until_ns, gpu->stop_ns + STOP_NS) : until_ns;
	}
	return until_ns;
}

/* It is not the process's fault, and what it does goes on; nobody waits for the rest for ever. */
static void
give_up_saying(struct gpu *gpu)
{
	struct gpu_status *status = &gpu->status;
	snprintf(status->text, sizeof(status->text),
		"nothing could be sent to the process of a GPU for %" PRId64
		" ms: more descriptors are on their way than the agent's limit (LimitNOFILE=), or "
		"the host has no memory",
		gpu->gpus->config.hang_ns / MS);
	log_warn("gpu", "%s", status->text);
	gpu->refused_ns = 0;
	opens_fail(gpu, status->text);
	jobs_refuse(gpu, status->text);
}

static void
watch_up(struct gpu *gpu, int64_t now_ns)
{
	const struct gpus_config *config = &gpu->gpus->config;
	if (now_ns >= gpu->pause_ns)
		gpu->pause_ns = 0;
	if (gpu->refused_ns > 0 && now_ns >= th_deadline_ns(gpu->refused_ns, config->hang_ns))
		give_up_saying(gpu);
	if (now_ns >= opens_leave_deadline(gpu))
		gpu_kill(gpu, "it did not let go of a worker's memory in time");
	else if (now_ns >= answer_deadline(gpu))
		gpu_kill(gpu, "it did not answer for %" PRId64 " ms", config->hang_ns / MS);
	else if (gpu->num_jobs > 0 || opens_any(gpu))
		gpu->idle_ns = 0;
	else if (gpu->idle_ns == 0)
		gpu->idle_ns = now_ns;
	else if (now_ns >= th_deadline_ns(gpu->idle_ns, config->idle_ns))
		gpu_thread_end(gpu);
}

/* At the agent's end, one that does not die is left alone. */
static void
watch_dying(struct gpu *gpu, int64_t now_ns)
{
	if (gpu->stop_ns > 0 && now_ns >= gpu->stop_ns + STOP_NS) {
		log_error("gpu", "the process of a GPU does not die, and is left alone pid=%d",
			(int)gpu->process.pid);
		process_forget(&gpu->process);
		gpu_thread_gone(gpu, "it does not die");
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
gpu_thread_watch(struct gpu *gpu)
{
	int64_t now_ns = th_now_ns();
	char how[GPU_TEXT_BYTES];
	if (gpu->life != LIFE_NONE && process_reap(&gpu->process, how, sizeof(how)))
		gpu_thread_gone(gpu, how);
	switch (gpu->life) {
	case LIFE_NONE:
		if (gpu->stop_ns > 0) {
			snprintf(gpu->status.text, sizeof(gpu->status.text), "the agent ends");
			fail_waiting(gpu);
			return false;
		}
		if (gpu->fails && now_ns < gpu->not_before_ns)
			fail_waiting(gpu);
		else if (works(gpu) && now_ns >= gpu->not_before_ns)
			gpu_thread_start(gpu);
		break;
	case LIFE_STARTING:
		if (gpu->stop_ns > 0)
			gpu_thread_end(gpu);
		else if (now_ns >= gpu_thread_next_ns(gpu)) {
			/* Waiting as long again would help nobody. */
			gpu->starts_failed = STARTS_MAX - 1;
			gpu_kill(gpu, "it was not ready within %" PRId64 " ms",
				START_HANGS * gpu->gpus->config.hang_ns / MS);
		}
		break;
	case LIFE_UP:
		if (gpu->stop_ns > 0)
			gpu_thread_end(gpu);
		else
			watch_up(gpu, now_ns);
		break;
	case LIFE_ENDING:
		if (now_ns >= gpu_thread_next_ns(gpu))
			gpu_kill(gpu, "it did not end by itself");
		break;
	case LIFE_DYING:
		watch_dying(gpu, now_ns);
		break;
	}
	return true;
}

/* ---- the thread ---------------------------------------------------------------------------- */

static void
gpu_thread_show(struct gpu *gpu)
{
	struct gpu_status *status = &gpu->status;
	status->pid = gpu->process.pid;
	status->imports = gpu->num_open - gpu->num_open_own;
	status->import_bytes = gpu->open_bytes - gpu->open_own_bytes;
	status->own_bytes = gpu->open_own_bytes;
	status->pinned_bytes = gpu->pinned_bytes;
	status->running = gpu->num_jobs;
	pthread_mutex_lock(&gpu->lock);
	gpu->is_free = gpu->life == LIFE_NONE && !works(gpu) && !gpu->orders && !gpu->requests;
	gpu->is_none = gpu->none && !gpu->is_new;
	if (!gpu->is_new)
		gpu->shown = *status;
	memcpy(gpu->shown.uuid, gpu->card->uuid, sizeof(gpu->shown.uuid));
	pthread_mutex_unlock(&gpu->lock);
}

void
gpu_show(struct gpu *gpu, struct gpu_status *ret_status)
{
	pthread_mutex_lock(&gpu->lock);
	const struct gpu_card *card = gpu->card;
	*ret_status = gpu->shown;
	ret_status->spaces = __atomic_load_n(&card->num_spaces, __ATOMIC_RELAXED);
	ret_status->pieces = __atomic_load_n(&card->num_pieces, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&gpu->lock);
}

static void
wait_for_events(struct gpu *gpu)
{
	struct pollfd fds[3] = {{.fd = gpu->wake_fd, .events = POLLIN},
		{.fd = gpu->process.sock,
			.events = (short)(POLLIN | (gpu->blocked_ns > 0 ? POLLOUT : 0))},
		{.fd = gpu->process.pidfd, .events = POLLIN}};
	int64_t until_ns = gpu_thread_next_ns(gpu), left_ns = until_ns - th_now_ns();
	struct timespec left = {0};
	if (left_ns > 0) {
		left.tv_sec = left_ns / (1000 * MS);
		left.tv_nsec = left_ns % (1000 * MS);
	}
	if (ppoll(fds, 3, until_ns == INT64_MAX ? NULL : &left, NULL) > 0 &&
		fds[1].revents & POLLOUT)
		gpu->blocked_ns = 0;
}

static void *
gpu_main(void *arg)
{
	struct gpu *gpu = arg;
	for (;;) {
		if (inbox_take(gpu) && gpu->stop_ns == 0)
			gpu->stop_ns = th_now_ns();
		hear_all(gpu);
		if (!gpu_thread_watch(gpu))
			return NULL;
		if (gpu->life == LIFE_UP && gpu->blocked_ns == 0 && gpu->pause_ns == 0)
			gpu_thread_say(gpu);
		gpu_thread_show(gpu);
		wait_for_events(gpu);
	}
}

static int
gpu_thread_start_thread(struct gpu *gpu)
{
	sigset_t mask, before;
	sigbus_mask(&mask);
	pthread_sigmask(SIG_SETMASK, &mask, &before);
	int rc = pthread_create(&gpu->thread, NULL, gpu_main, gpu);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc == 0)
		pthread_setname_np(gpu->thread, "th-gpu");
	return -rc;
}

void
gpu_free(struct gpu *gpu)
{
	TH_ASSERT(!gpu->orders && !gpu->requests);
	opens_end(gpu);
	pins_end(gpu);
	jobs_end(gpu);
	pthread_mutex_destroy(&gpu->lock);
	th_fd_close(&gpu->wake_fd);
	card_release(gpu->card);
	free(gpu);
}

int
gpu_new(struct gpus *gpus, const uint8_t uuid[16], uint32_t index, struct gpu **ret_gpu)
{
	struct gpu *gpu = th_calloc(1, sizeof(*gpu));
	gpu->gpus = gpus;
	gpu->index = index;
	gpu->card = card_new(uuid);
	memcpy(gpu->shown.uuid, uuid, sizeof(gpu->shown.uuid));
	gpu->process = (struct process){.pidfd = -1, .sock = -1};
	gpu->requests_last = &gpu->requests;
	gpu->orders_last = &gpu->orders;
	pthread_mutex_init(&gpu->lock, NULL);
	opens_init(gpu);
	pins_init(gpu);
	jobs_init(gpu);
	gpu->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int rc = gpu->wake_fd < 0 ? -errno : gpu_thread_start_thread(gpu);
	if (rc < 0) {
		gpu_free(gpu);
		return rc;
	}
	*ret_gpu = gpu;
	return 0;
}

bool
gpu_reuse(struct gpu *gpu, const uint8_t uuid[16], bool takes_none)
{
	pthread_mutex_lock(&gpu->lock);
	struct gpu_card *before = gpu->card;
	bool is_used = __atomic_load_n(&before->refs, __ATOMIC_ACQUIRE) > 1;
	bool is_free = gpu->is_free && !gpu->requests && !gpu->orders &&
		       (!is_used || (takes_none && gpu->is_none));
	if (is_free) {
		memcpy(before->why, gpu->shown.text, sizeof(before->why));
		__atomic_store_n(&before->is_none, true, __ATOMIC_RELEASE);
		card_release(before);
		gpu->card = card_new(uuid);
		gpu->shown = (struct gpu_status){0};
		memcpy(gpu->shown.uuid, uuid, sizeof(gpu->shown.uuid));
		gpu->is_new = true;
		gpu->is_none = false;
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
	gpu_wake(gpu);
}

void
gpu_drain(struct gpu *gpu)
{
	(void)inbox_take(gpu);
	fail_waiting(gpu);
	(void)inbox_take(gpu);
}
