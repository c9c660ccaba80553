/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_service - see gpu_service.h.
 */
#include "daemon/host/move/gpu_service.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <utlist.h>

#include "daemon/host/host.h"
#include "daemon/host/memory/gpu_hold.h"
#include "daemon/host/move/gpu_spawn.h"
#include "ipc/base/alloc.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "ipc/base/stranger_fd.h"
#include "ipc/base/units.h"
#include "ipc/shm/doorbell.h"
#include "transport/cuda/agent/gpus.h"
#include "transport/loop/crew.h"
#include "transport/part/fd_memory.h"

#define HANG_NS INT64_C(10000000000)
#define LEAVE_NS INT64_C(500000000)
#define LEAVE_END_NS INT64_C(800000000) /* and the kernel takes some, too: free within 1 s */
#define IDLE_NS INT64_C(10000000000)
_Static_assert(LEAVE_NS / 4 * 7 < INT64_C(1000000000) && LEAVE_END_NS < INT64_C(1000000000),
	"GPU memory that a process does not let go of is free within 1 s (opens_leave_deadline)");

#define OFF                                                                                        \
	"this agent opens no GPU memory (gpu=off in its configuration); set gpu=auto, and start "  \
	"it again"

/* Of one GPU; made before anything can fail, and given back by whoever takes it last. */
struct gpu_note {
	struct gpu_note *next;
	struct gpu_service *gpu;
	struct gpu_wait *wait;
	struct th_err result;
};

struct gpu_wait {
	struct gpu_wait *prev, *next;
	struct gpu_service *gpu;
	uint32_t left;    /* GPUs that have not answered */
	gpu_settled done; /* NULL: cancelled, or called */
	void *arg;
	struct th_err result; /* the first failure */
};

/* ---- who waits ------------------------------------------------------------------------------- */

/* On the thread of a GPU. */
static void
space_settled(void *arg, const struct th_err *result)
{
	struct gpu_note *note = arg;
	struct gpu_service *gpu = note->gpu;
	note->result = *result;
	pthread_mutex_lock(&gpu->lock);
	LL_PREPEND(gpu->notes, note);
	/* A descriptor of a stranger may be closed when all else has ended. */
	if (gpu->fd >= 0)
		(void)doorbell_signal(gpu->fd);
	pthread_mutex_unlock(&gpu->lock);
}

/* On any thread. */
static void
on_hold_gone(void *arg, bool kept)
{
	struct th_err result = {0};
	if (kept)
		th_fail(&result, -EBUSY,
			"a network device refuses to give back GPU memory that was registered "
			"with it, so that stays allocated until the agent ends: its log names the "
			"device, start it again");
	space_settled(arg, &result);
}

static void
take_note(struct gpu_service *gpu, const struct gpu_note *note)
{
	struct gpu_wait *wait = note->wait;
	if (wait->result.code == 0)
		wait->result = note->result;
	if (--wait->left > 0)
		return;
	DL_DELETE(gpu->waits, wait);
	if (wait->done)
		wait->done(wait->arg, &wait->result);
	free(wait);
}

static void
gpu_service_take_notes(struct gpu_service *gpu)
{
	pthread_mutex_lock(&gpu->lock);
	struct gpu_note *note = gpu->notes;
	gpu->notes = NULL;
	pthread_mutex_unlock(&gpu->lock);
	while (note) {
		struct gpu_note *next = note->next;
		take_note(gpu, note);
		free(note);
		note = next;
	}
}

static void
on_notes(void *arg, uint32_t events)
{
	struct host *host = arg;
	(void)events;
	(void)doorbell_drain(host->gpu.fd);
	gpu_service_take_notes(&host->gpu);
}

static struct gpu_wait *
gpu_service_wait_new(struct gpu_service *gpu, uint32_t left, gpu_settled done, void *arg)
{
	struct gpu_wait *wait = th_calloc(1, sizeof(*wait));
	*wait = (struct gpu_wait){.gpu = gpu, .left = left, .done = done, .arg = arg};
	DL_APPEND(gpu->waits, wait);
	return wait;
}

static struct gpu_note *
note_new(struct gpu_wait *wait)
{
	struct gpu_note *note = th_calloc(1, sizeof(*note));
	*note = (struct gpu_note){.gpu = wait->gpu, .wait = wait};
	return note;
}

struct gpu_wait *
gpu_wait(struct host *host, const struct memory_set *memory, uint32_t mask, gpu_settled done,
	void *arg)
{
	struct gpu_wait *wait =
		gpu_service_wait_new(&host->gpu, (uint32_t)__builtin_popcount(mask), done, arg);
	for (uint32_t i = 0; i < GPUS_MAX; i++) {
		if (mask & (UINT32_C(1) << i))
			gpu_space_settle(memory->gpus[i].space, space_settled, note_new(wait));
	}
	return wait;
}

struct gpu_wait *
gpu_wait_gone(struct host *host, struct hold *hold, gpu_settled done, void *arg)
{
	struct gpu_wait *wait = gpu_service_wait_new(&host->gpu, 1, done, arg);
	hold_end_and_tell(hold, on_hold_gone, note_new(wait));
	return wait;
}

void
gpu_wait_cancel(struct gpu_wait *wait)
{
	if (wait)
		wait->done = NULL; /* the answers come nevertheless */
}

/* ---- start and end --------------------------------------------------------------------------- */

/* On the thread of a GPU. */
static int
start_process(void *arg, int sock, pid_t *ret_pid, struct th_err *err)
{
	const struct gpu_service *gpu = arg;
	return launch(LAUNCH_SELF, sock, gpu->lifeline[1], err, ret_pid);
}

int
gpu_open(struct host *host, struct th_err *err)
{
	const struct options_gpu *options = &host->options.gpu;
	struct gpu_service *gpu = &host->gpu;
	const struct gpus_config config = {
		.launch = start_process,
		.close_fd = stranger_close_drivers,
		.arg = gpu,
		.staging_bytes = options->staging_bytes,
		.hang_ns = HANG_NS,
		.leave_ns = LEAVE_NS,
		.leave_end_ns = LEAVE_END_NS,
		.idle_ns = IDLE_NS,
		.hash_on_cpu = options->digest_on_cpu,
	};
	char staging[TH_UNITS_BYTES];
	pthread_mutex_init(&gpu->lock, NULL);
	/* Also without GPUs: a worker has one thing less to tell apart. */
	if (pipe2(gpu->lifeline, O_CLOEXEC) < 0)
		return th_fail(err, -errno, "a pipe: %s", th_strerror(-errno));
	gpu->why_not = OFF;
	gpu->fd = doorbell_new();
	int rc = gpu->fd;
	if (rc >= 0)
		rc = loop_add(&host->loop, &gpu->source, gpu->fd, EPOLLIN, on_notes, host);
	if (rc < 0)
		return th_fail(err, rc, "an eventfd: %s", th_strerror(rc));
	if (!options->used) {
		log_info("gpu", "off");
		return 0;
	}
	rc = gpus_new(&config, err, &gpu->gpus);
	if (rc == 0)
		log_info("gpu", "auto staging=%s digest=%s",
			th_print_size_short(options->staging_bytes, staging),
			options->digest_on_cpu ? "cpu" : "gpu");
	return rc;
}

void
gpu_close(struct host *host)
{
	struct gpu_service *gpu = &host->gpu;
	struct gpu_wait *wait, *next;
	/* What crews dropped last, as spaces. */
	fd_memory_sweep();
	/* Threads that are left in a worker's memory may have spaces: they end with the process. */
	if (crew_count() == 0) {
		gpus_free(gpu->gpus);
		gpu->gpus = NULL;
	}
	loop_remove(&host->loop, &gpu->source);
	if (!gpu->gpus) {
		gpu_service_take_notes(gpu);
		DL_FOREACH_SAFE(gpu->waits, wait, next)
		{
			DL_DELETE(gpu->waits, wait);
			free(wait);
		}
	}
	pthread_mutex_lock(&gpu->lock);
	th_fd_close(&gpu->fd);
	pthread_mutex_unlock(&gpu->lock);
	th_fd_close(&gpu->lifeline[0]);
	th_fd_close(&gpu->lifeline[1]);
}
