/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_process - one life of a GPU's process: started, spoken with, killed, and known to be dead.
 *
 * Dead means that nothing of it touches memory any more: it is not enough that its socket has
 * ended. The kernel says so by its pidfd, after the driver has let go of all that it had. One
 * thread, which waits for sock and pidfd; the process may end with that thread.
 */
#ifndef TH_TRANSPORT_CUDA_AGENT_GPU_PROCESS_H
#define TH_TRANSPORT_CUDA_AGENT_GPU_PROCESS_H

#include "transport/cuda/agent/gpus.h"

struct process {
	pid_t pid;       /* 0: none, and none of what follows */
	int pidfd, sock; /* own; sock -1: hung up */
};

/* 0 or -errno with a sentence. */
int process_start(
	struct process *ret_process, const struct gpus_config *config, struct th_err *err);
/* wire_send, wire_receive (gpu_wire.h); hung up on is ended. */
int process_say(struct process *process, const void *message, size_t bytes, int fd);
int process_hear(struct process *process, void *message, size_t room, struct wire_fd *ret_fd);
/* It ends by itself. */
void process_hang_up(struct process *process);
void process_kill(struct process *process);
/* True: it is dead, and its memory free. why: how it ended. */
bool process_reap(struct process *process, char *why, size_t room);
/* It cannot be waited for. */
void process_forget(struct process *process);

#endif
