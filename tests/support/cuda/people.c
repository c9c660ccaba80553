/* SPDX-License-Identifier: Apache-2.0 */
/*
 * people - processes of a test that use a GPU.
 */
#include "tests/support/cuda/people.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/fd.h"

struct cuda
cuda_ready(int device)
{
	struct cuda cuda = {0};
	struct th_err err = {0};
	CUcontext context = NULL;
	if (cuda_open(&cuda, &err) < 0)
		fprintf(stderr, "%s\n", err.text);
	TH_ASSERT(cuda.library);
	test_calls_find(&cuda);
	TH_ASSERT(cuda.cuInit(0) == CUDA_SUCCESS);
	TH_ASSERT(cuda.cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
	TH_ASSERT(cuda.cuCtxSetCurrent(context) == CUDA_SUCCESS);
	return cuda;
}

struct person
person_new(void (*life)(int sock))
{
	int socks[2];
	TH_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, socks) == 0);
	fflush(NULL);
	pid_t pid = fork();
	TH_ASSERT(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(socks[0]);
		life(socks[1]);
		_exit(0);
	}
	close(socks[1]);
	return (struct person){pid, socks[0]};
}

void
tell(int sock, const void *data, size_t bytes, int fd)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	memset(&control, 0, sizeof(control));
	if (fd >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
	}
	TH_ASSERT(sendmsg(sock, &message, MSG_NOSIGNAL) == (ssize_t)bytes);
}

int
hear(int sock, void *data, size_t bytes)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = {.iov_base = data, .iov_len = bytes};
	struct msghdr message = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control)};
	ssize_t got = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
	int fd = -1;
	TH_ASSERT(got == (ssize_t)bytes);
	if (message.msg_controllen >= CMSG_LEN(sizeof(int)))
		memcpy(&fd, CMSG_DATA(&control.head), sizeof(fd));
	return fd;
}

static int
end(struct person *person)
{
	int status = 0;
	th_fd_close(&person->sock);
	while (waitpid(person->pid, &status, 0) < 0)
		TH_ASSERT(errno == EINTR);
	return status;
}

void
person_end(struct person *person)
{
	int status = end(person);
	TH_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void
person_kill(struct person *person)
{
	kill(person->pid, SIGKILL);
	end(person);
}
