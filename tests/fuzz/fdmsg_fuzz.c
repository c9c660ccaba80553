/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fdmsg_fuzz - packets of the descriptor socket as a worker may send them, with descriptors.
 *
 * The first byte says how many; the rest is the packet. What is received has the size and the
 * descriptors of its kind, and no descriptor is left open, whatever came.
 */
#include "ipc/sock/fdmsg.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/assert.h"

#define SENT_FDS_MAX 9u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int ends[2] = {-1, -1};
static struct fdmsg message;

static void
send_packet(const uint8_t *data, size_t size, uint32_t num_fds)
{
	union {
		char bytes[CMSG_SPACE(SENT_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec part = {(void *)(uintptr_t)data, size};
	struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1};
	memset(&control, 0, sizeof(control));
	if (num_fds > 0) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(num_fds * sizeof(int));
		struct cmsghdr *head = CMSG_FIRSTHDR(&msg);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(num_fds * sizeof(int));
		for (uint32_t i = 0; i < num_fds; i++)
			memcpy(CMSG_DATA(head) + i * sizeof(int), &ends[0], sizeof(int));
	}
	TH_ASSERT(sendmsg(ends[0], &msg, MSG_NOSIGNAL) == (ssize_t)size);
}

/* The lowest that is free: what was received and is closed again makes no difference to it. */
static int
lowest_free(void)
{
	int fd = fcntl(ends[0], F_DUPFD_CLOEXEC, 0);
	TH_ASSERT(fd >= 0 && close(fd) == 0);
	return fd;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (ends[0] < 0)
		TH_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
				  ends) == 0);
	if (size < 2)
		return 0;
	uint32_t num_fds = data[0] % (SENT_FDS_MAX + 1);
	int free_fd = lowest_free();
	send_packet(data + 1, size - 1, num_fds);
	int rc = fdmsg_recv(ends[1], &message);
	TH_ASSERT(rc == 1 || rc == -EPROTO);
	if (rc == 1) {
		TH_ASSERT(message.head.magic == FDMSG_MAGIC && message.head.num_fds == num_fds);
		TH_ASSERT(message.head.kind >= FDMSG_HELLO && message.head.kind <= FDMSG_LENT);
		TH_ASSERT(message.body_bytes == size - 1 - sizeof(message.head));
		TH_ASSERT(memcmp(message.body, data + 1 + sizeof(message.head),
				  message.body_bytes) == 0);
		TH_ASSERT((message.head.kind == FDMSG_MEMORY) <= (num_fds == 1));
		TH_ASSERT((message.head.kind == FDMSG_GPU) <= (num_fds <= 1));
		TH_ASSERT((message.head.kind == FDMSG_LENT) <= (num_fds <= FDMSG_LENT_FDS));
	}
	for (uint32_t i = 0; i < FDMSG_FDS_MAX; i++)
		TH_ASSERT((message.fds[i] >= 0) == (rc == 1 && i < num_fds));
	fdmsg_close_fds(&message);
	TH_ASSERT(lowest_free() == free_fd);
	return 0;
}
