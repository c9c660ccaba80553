/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_process - see gpu_process.h.
 */
#include "transport/cuda/agent/gpu_process.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/fd.h"

#define SOCKET_BYTES (1 << 20) /* as far as net.core.wmem_max lets it */

static int
make_sockets(int socks[2])
{
	const int bytes = SOCKET_BYTES;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, socks) < 0)
		return -errno;
	for (unsigned i = 0; i < 2; i++)
		(void)setsockopt(socks[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	return 0;
}

static void
gpu_process_wait_for(pid_t pid)
{
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
}

int
process_start(struct process *ret_process, const struct gpus_config *config, struct th_err *err)
{
	int socks[2] = {-1, -1};
	pid_t pid = 0;
	int rc = make_sockets(socks);
	if (rc < 0)
		return th_fail(err, rc, "no socket for the process of a GPU: %s", th_strerror(rc));
	rc = config->launch(config->arg, socks[1], &pid, err);
	th_fd_close(&socks[1]);
	if (rc < 0) {
		th_fd_close(&socks[0]);
		return rc;
	}
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0) {
		rc = -errno;
		th_fd_close(&socks[0]);
		(void)kill(pid, SIGKILL);
		gpu_process_wait_for(pid);
		return th_fail(
			err, rc, "the process of a GPU cannot be watched: %s", th_strerror(rc));
	}
	*ret_process = (struct process){.pid = pid, .pidfd = pidfd, .sock = socks[0]};
	return 0;
}

int
process_say(struct process *process, const void *message, size_t bytes, int fd)
{
	return process->sock < 0 ? -EPIPE : wire_send(process->sock, message, bytes, fd);
}

int
process_hear(struct process *process, void *message, size_t room, struct wire_fd *ret_fd)
{
	*ret_fd = (struct wire_fd){.fd = -1};
	return process->sock < 0 ? 0 : wire_receive(process->sock, message, room, ret_fd);
}

void
process_hang_up(struct process *process)
{
	th_fd_close(&process->sock);
}

void
process_kill(struct process *process)
{
	(void)syscall(SYS_pidfd_send_signal, process->pidfd, SIGKILL, NULL, 0);
	th_fd_close(&process->sock);
}

bool
process_reap(struct process *process, char *why, size_t room)
{
	struct pollfd ready = {.fd = process->pidfd, .events = POLLIN};
	siginfo_t info = {0};
	if (poll(&ready, 1, 0) <= 0)
		return false;
	/* Somebody else may have waited for it: then nobody knows how it ended. */
	if (waitid((idtype_t)P_PIDFD, (id_t)process->pidfd, &info, WEXITED | WNOHANG) < 0)
		snprintf(why, room, "it ended");
	else if (info.si_code == CLD_EXITED)
		snprintf(why, room, "it ended with status %d", info.si_status);
	else
		snprintf(why, room, "it was ended by signal %d", info.si_status);
	process_forget(process);
	return true;
}

void
process_forget(struct process *process)
{
	th_fd_close(&process->sock);
	th_fd_close(&process->pidfd);
	*process = (struct process){.pidfd = -1, .sock = -1};
}
