/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fdmsg - see fdmsg.h. One table says what each kind may carry; nothing else of a message is judged
 * here. Any thread, one at a time for each socket and direction.
 */
#include "ipc/sock/fdmsg.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"

/* The kernel's limit (SCM_MAX_FD): those without room would be closed by recvmsg itself. */
#define CONTROL_FDS 253u

struct shape {
	uint32_t body_bytes;
	uint16_t fds_min, fds_max;
};

static const struct shape shapes[] = {
	[FDMSG_HELLO] = {sizeof(struct fdmsg_hello), 0, 0},
	[FDMSG_WELCOME] = {sizeof(struct fdmsg_welcome), 0, 0},
	[FDMSG_REFUSED] = {sizeof(struct fdmsg_refused), 0, 0},
	[FDMSG_OPEN] = {sizeof(struct fdmsg_open), 0, 0},
	[FDMSG_SESSION] = {sizeof(struct fdmsg_session), FDMSG_SESSION_FDS, FDMSG_SESSION_FDS_GPU},
	[FDMSG_MEMORY] = {sizeof(struct fdmsg_memory), 1, 1},
	[FDMSG_MEMORY_ID] = {sizeof(struct fdmsg_memory_id), 0, 0},
	[FDMSG_FORGET] = {sizeof(struct fdmsg_forget), 0, 0},
	[FDMSG_CLOSE] = {sizeof(struct fdmsg_close), 0, 0},
	[FDMSG_CLOSED] = {sizeof(struct fdmsg_refused), 0, 0},
	[FDMSG_GPU] = {sizeof(struct fdmsg_gpu), 0, 1},
	[FDMSG_BORROW] = {sizeof(struct fdmsg_borrow), 0, 0},
	[FDMSG_LENT] = {sizeof(struct fdmsg_lent), 0, FDMSG_LENT_FDS},
};

static const struct shape *
shape_of(uint32_t kind)
{
	return kind >= FDMSG_HELLO && kind < TH_ARRAY_LEN(shapes) ? &shapes[kind] : NULL;
}

int
fdmsg_send(int sock, enum fdmsg_kind kind, const void *body, size_t body_bytes, const int *fds,
	uint32_t num_fds)
{
	const struct shape *shape = shape_of((uint32_t)kind);
	union {
		char bytes[CMSG_SPACE(FDMSG_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	/* iovec has no const; sendmsg only reads. */
	union {
		const void *constant;
		void *plain;
	} pointer = {.constant = body};

	TH_ASSERT(shape != NULL && body_bytes == shape->body_bytes && num_fds >= shape->fds_min &&
		  num_fds <= shape->fds_max);
	struct fdmsg_head head = {
		FDMSG_MAGIC, (uint16_t)kind, (uint16_t)num_fds, (uint32_t)body_bytes, 0};
	struct iovec parts[2] = {{&head, sizeof(head)}, {pointer.plain, body_bytes}};
	struct msghdr msg = {.msg_iov = parts, .msg_iovlen = 2};

	if (num_fds > 0) {
		memset(&control, 0, sizeof(control));
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(num_fds * sizeof(int));
		struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(num_fds * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, num_fds * sizeof(int));
	}
	for (;;) {
		ssize_t sent = sendmsg(sock, &msg, MSG_NOSIGNAL);
		if (sent >= 0) /* SOCK_SEQPACKET: all or nothing */
			return (size_t)sent == sizeof(head) + body_bytes ? 0 : -EMSGSIZE;
		if (errno != EINTR)
			return -errno;
	}
}

static void
close_one(fdmsg_close close_fd, int *fd)
{
	if (*fd >= 0 && close_fd != NULL)
		close_fd(th_fd_move(fd));
	else
		th_fd_close(fd);
}

/* Takes all descriptors out of the control data; those for which there is no room are closed. */
static uint32_t
take_fds(struct msghdr *msg, fdmsg_close close_fd, int *fds, uint32_t room)
{
	uint32_t count = 0;

	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg); cmsg != NULL;
		cmsg = CMSG_NXTHDR(msg, cmsg)) {
		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		size_t here = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < here; i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(fd));
			if (count < room)
				fds[count] = fd;
			else
				close_one(close_fd, &fd);
			count++;
		}
	}
	return count;
}

/* What did come must still be open: it is what fills the table. */
static bool
table_full(int sock)
{
	int fd = fcntl(sock, F_DUPFD_CLOEXEC, 0);
	bool full = fd < 0 && errno == EMFILE;

	th_fd_close(&fd);
	return full;
}

static int
fdmsg_check(int sock, const struct msghdr *msg, const struct fdmsg *received, size_t bytes,
	uint32_t num_fds)
{
	const struct fdmsg_head *head = &received->head;
	/* There is room for all that the kernel lets through: what was cut off could not be had. */
	bool cut = (msg->msg_flags & MSG_CTRUNC) != 0;

	if ((msg->msg_flags & MSG_TRUNC) != 0 || bytes < sizeof(*head))
		return -EPROTO;
	const struct shape *shape = shape_of(head->kind);
	if (head->magic != FDMSG_MAGIC || head->reserved != 0 || shape == NULL)
		return -EPROTO;
	if (head->body_bytes != shape->body_bytes || bytes != sizeof(*head) + shape->body_bytes)
		return -EPROTO;
	if (head->num_fds < shape->fds_min || head->num_fds > shape->fds_max)
		return -EPROTO;
	if (cut)
		return num_fds < head->num_fds && table_full(sock) ? -EMFILE : -EPROTO;
	return num_fds == head->num_fds ? 0 : -EPROTO;
}

int
fdmsg_recv(int sock, struct fdmsg *ret_msg)
{
	union {
		char bytes[CMSG_SPACE(CONTROL_FDS * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec parts[2] = {
		{&ret_msg->head, sizeof(ret_msg->head)}, {ret_msg->body, sizeof(ret_msg->body)}};
	struct msghdr msg = {.msg_iov = parts,
		.msg_iovlen = 2,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
	ssize_t bytes;
	bool reset = false;

	for (uint32_t i = 0; i < FDMSG_FDS_MAX; i++)
		ret_msg->fds[i] = -1;
	ret_msg->body_bytes = 0;
	/* That it hung up with messages of ours unread is told first, and once. */
	do {
		bytes = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
		if (bytes < 0 && errno == ECONNRESET && !reset) {
			reset = true;
			errno = EINTR;
		}
	} while (bytes < 0 && errno == EINTR);
	if (bytes < 0)
		return errno == ECONNRESET ? 0 : -errno;
	uint32_t num_fds = take_fds(&msg, ret_msg->close_fd, ret_msg->fds, FDMSG_FDS_MAX);
	if (bytes == 0 && num_fds == 0)
		return 0;
	int rc = fdmsg_check(sock, &msg, ret_msg, (size_t)bytes, num_fds);
	if (rc < 0)
		fdmsg_close_fds(ret_msg);
	if (rc == 0 || rc == -EMFILE)
		ret_msg->body_bytes = ret_msg->head.body_bytes;
	return rc < 0 ? rc : 1;
}

void
fdmsg_close_fds(struct fdmsg *msg)
{
	for (uint32_t i = 0; i < FDMSG_FDS_MAX; i++)
		close_one(msg->close_fd, &msg->fds[i]);
}

void
fdmsg_discard(int sock, fdmsg_close close_fd)
{
	union {
		char bytes[CMSG_SPACE(CONTROL_FDS * sizeof(int))];
		struct cmsghdr align;
	} control;
	char byte;
	struct iovec part = {&byte, sizeof(byte)};

	/* What was sent before can still be received; nothing comes after it. */
	if (shutdown(sock, SHUT_RDWR) < 0)
		return; /* no connection: nothing in it */
	for (;;) {
		struct msghdr msg = {.msg_iov = &part,
			.msg_iovlen = 1,
			.msg_control = control.bytes,
			.msg_controllen = sizeof(control.bytes)};
		ssize_t bytes = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
		if (bytes < 0 && errno != EINTR && errno != ECONNRESET)
			return;
		if (bytes >= 0 && take_fds(&msg, close_fd, NULL, 0) == 0 && bytes == 0)
			return;
	}
}
