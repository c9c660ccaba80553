/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_spawn - starts the process of a GPU, which is this program again with another task.
 *
 * What it gets is all that it has: the socket to its agent, the write end of the lifeline, the
 * agent's log, and no other descriptor; nothing of the agent's memory. The signals by which a
 * service manager or a terminal ends all of a service at once are for the agent alone: this process
 * ends when its agent has no use for it any more, or is gone. Any thread.
 */
#ifndef TH_DAEMON_HOST_MOVE_GPU_SPAWN_H
#define TH_DAEMON_HOST_MOVE_GPU_SPAWN_H

#include <sys/types.h>

#include "ipc/base/err.h"

#define LAUNCH_OPTION "--gpu-helper" /* of this program, before any other; not for people */
#define LAUNCH_SOCK 3
#define LAUNCH_LIFELINE 4

/* The program that runs now, also where its file was replaced meanwhile. */
#define LAUNCH_SELF "/proc/self/exe"

/* 0, or -errno with a sentence. sock and lifeline stay the caller's. The caller reaps. */
int launch(const char *program, int sock, int lifeline, struct th_err *err, pid_t *ret_pid);

/* In the new process, first of all, while it has one thread: lets the driver see all GPUs of the
 * host, as no client of MPS. */
void launch_tidy(void);

#endif
