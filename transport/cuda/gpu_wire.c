/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_wire - one message, of either end.
 */
#include "transport/cuda/gpu_wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

union control {
	struct cmsghdr head;
	char room[CMSG_SPACE(sizeof(int))];
};

int
wire_send(int sock, const void *message, size_t bytes, int fd)
{
	union control control = {0};
	struct iovec part = {.iov_base = (void *)(uintptr_t)message, .iov_len = bytes};
	struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1};
	ssize_t sent;
	if (fd >= 0) {
		head.msg_control = &control;
		head.msg_controllen = sizeof(control);
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
	}
	do {
		sent = sendmsg(sock, &head, MSG_NOSIGNAL | MSG_DONTWAIT);
	} while (sent < 0 && errno == EINTR);
	if (sent >= 0)
		return 0;
	/* Too many descriptors on their way, or no memory: both pass. */
	if (errno == ETOOMANYREFS || errno == ENOMEM)
		return -ENOBUFS;
	return -errno;
}

static void
take_fd(struct msghdr *head, struct wire_fd *ret_fd)
{
	const struct cmsghdr *part = CMSG_FIRSTHDR(head);
	bool cut = (head->msg_flags & MSG_CTRUNC) != 0;
	if (part && part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS &&
		part->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(&ret_fd->fd, CMSG_DATA(part), sizeof(int));
	ret_fd->more = cut && ret_fd->fd >= 0;
	ret_fd->lost = cut && ret_fd->fd < 0;
}

int
wire_receive(int sock, void *message, size_t room, struct wire_fd *ret_fd)
{
	union control control;
	struct iovec part = {.iov_base = message, .iov_len = room};
	/* For one descriptor: CMSG_SPACE has room for two. What does not fit never becomes one of
	 * this process, which would have to close it. */
	struct msghdr head = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = CMSG_LEN(sizeof(int))};
	ssize_t got;
	*ret_fd = (struct wire_fd){.fd = -1};
	do {
		got = recvmsg(sock, &head, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
	} while (got < 0 && errno == EINTR);
	if (got < 0)
		return errno == EAGAIN ? -EAGAIN : 0;
	take_fd(&head, ret_fd);
	return (int)got;
}
