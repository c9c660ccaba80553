/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_service - the GPUs of this host, for the main thread: started with the agent, ended with it.
 *
 * What touches GPU memory are processes of this program (gpu_spawn.h, transport/cuda/agent/gpus.h);
 * here is only who waits for their answers. Main thread, but for what is said of another.
 */
#ifndef TH_DAEMON_HOST_MOVE_GPU_SERVICE_H
#define TH_DAEMON_HOST_MOVE_GPU_SERVICE_H

#include <pthread.h>
#include <stdint.h>

#include "ipc/base/err.h"
#include "ipc/base/loop.h"

struct gpus;
struct gpu_note;
struct gpu_wait;
struct hold;
struct host;
struct memory_set;

struct gpu_service {
	struct gpus *gpus;      /* owns; NULL: GPU memory is not shared */
	const char *why_not;    /* then: a sentence for workers, with what to do */
	int lifeline[2];        /* own: the read end, which each worker gets, and the write end */
	struct gpu_wait *waits; /* owns: a list */
	pthread_mutex_t lock;
	struct gpu_note *notes; /* guarded by lock: what has settled */
	int fd;                 /* owns: notes wake the loop */
	struct loop_source source;
};

/* Before the transport. After a failure, and of a host of zeroes, gpu_close is legal. */
int gpu_open(struct host *host, struct th_err *err);
/* After the transport and the last session. */
void gpu_close(struct host *host);

/*
 * Calls done(arg, result) once, when all pieces of memory on the GPUs of mask (bits: of
 * memory->gpus) are open, or one of them cannot be opened. Never within the call.
 */
typedef void (*gpu_settled)(void *arg, const struct th_err *result);
struct gpu_wait *gpu_wait(struct host *host, const struct memory_set *memory, uint32_t mask,
	gpu_settled done, void *arg);
/* Likewise when nothing of the hold is left, or what is left stays; ends a use of it. */
struct gpu_wait *gpu_wait_gone(struct host *host, struct hold *hold, gpu_settled done, void *arg);
void gpu_wait_cancel(struct gpu_wait *wait); /* done is not called any more; NULL: nothing */

#endif
