/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_raw - see thbench_raw.h. Each connection has its own contiguous part of the bytes.
 */
#include "tools/bench/thbench_raw.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#include "ipc/base/fd.h"

#define PART_ALIGN (64u << 10)

void
raw_init(struct raw *raw)
{
	*raw = (struct raw){.door = -1};
}

void
raw_close(struct raw *raw)
{
	for (uint32_t i = 0; i < raw->count; i++)
		th_fd_close(&raw->fds[i]);
	th_fd_close(&raw->door);
	raw->count = 0;
}

/* The same that the agents set on their data connections. */
static int
new_socket(void)
{
	const int one = 1;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	int rc = setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
	(void)rc; /* not loaded: the host's default, as the agents do */
	rc = setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	(void)rc; /* an improvement that it works without */
	return fd;
}

int
raw_listen(struct raw *raw, uint16_t *ret_port)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t bytes = sizeof(address);
	int fd = new_socket();

	if (fd < 0)
		return fd;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 64) < 0 ||
		getsockname(fd, (struct sockaddr *)&address, &bytes) < 0) {
		int rc = -errno;
		th_fd_close(&fd);
		return rc;
	}
	raw->door = fd;
	*ret_port = ntohs(address.sin_port);
	return 0;
}

int
raw_accept(struct raw *raw, uint32_t count)
{
	while (raw->count < count && raw->count < RAW_CONNECTIONS_MAX) {
		int fd = accept4(raw->door, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			return -errno;
		raw->fds[raw->count++] = fd;
	}
	return 0;
}

int
raw_connect(struct raw *raw, uint16_t port, uint32_t count)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	while (raw->count < count && raw->count < RAW_CONNECTIONS_MAX) {
		int fd = new_socket();
		if (fd < 0)
			return fd;
		raw->fds[raw->count++] = fd;
		if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
			return -errno;
	}
	return 0;
}

/* ---- moving --------------------------------------------------------------------------------- */

enum how {
	HOW_SEND,
	HOW_SENDFILE,
	HOW_RECEIVE,
};

struct pump {
	pthread_t thread;
	enum how how;
	int fd, memfd;
	uint8_t *data; /* of the whole memory */
	uint64_t at, end, block;
	int rc;
};

static ssize_t
thbench_raw_move(const struct pump *pump, size_t bytes)
{
	off_t offset = (off_t)pump->at;

	switch (pump->how) {
	case HOW_SEND:
		return send(pump->fd, pump->data + pump->at, bytes, MSG_NOSIGNAL);
	case HOW_SENDFILE:
		return sendfile(pump->fd, pump->memfd, &offset, bytes);
	case HOW_RECEIVE:
		return recv(pump->fd, pump->data + pump->at, bytes, 0);
	}
	return -1;
}

static void *
pump_main(void *arg)
{
	struct pump *pump = arg;

	while (pump->at < pump->end && pump->rc == 0) {
		ssize_t moved =
			thbench_raw_move(pump, th_min_u64(pump->block, pump->end - pump->at));
		if (moved > 0)
			pump->at += (uint64_t)moved;
		else if (moved == 0)
			pump->rc = -ECONNRESET;
		else if (errno != EINTR)
			pump->rc = -errno;
	}
	return NULL;
}

static int
pump_all(const struct raw *raw, struct pump pump, uint64_t bytes)
{
	struct pump pumps[RAW_CONNECTIONS_MAX];
	uint64_t each = bytes / raw->count / PART_ALIGN * PART_ALIGN;
	int rc = 0;

	for (uint32_t i = 0; i < raw->count; i++) {
		pumps[i] = pump;
		pumps[i].fd = raw->fds[i];
		pumps[i].at = i * each;
		pumps[i].end = i + 1 < raw->count ? (i + 1) * each : bytes;
		if (i > 0 && pthread_create(&pumps[i].thread, NULL, pump_main, &pumps[i]) != 0)
			return -EAGAIN;
	}
	pump_main(&pumps[0]);
	for (uint32_t i = 0; i < raw->count; i++) {
		if (i > 0)
			pthread_join(pumps[i].thread, NULL);
		if (rc == 0)
			rc = pumps[i].rc;
	}
	return rc;
}

int
raw_send(struct raw *raw, const uint8_t *data, int memfd, uint64_t bytes, uint64_t block)
{
	uintptr_t start = (uintptr_t)data; /* it is only read */

	return pump_all(raw,
		(struct pump){.how = memfd < 0 ? HOW_SEND : HOW_SENDFILE,
			.memfd = memfd,
			.data = (uint8_t *)start,
			.block = block},
		bytes);
}

int
raw_receive(struct raw *raw, uint8_t *data, uint64_t bytes, uint64_t block)
{
	return pump_all(raw,
		(struct pump){.how = HOW_RECEIVE, .memfd = -1, .data = data, .block = block},
		bytes);
}
