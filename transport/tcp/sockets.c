/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sockets - addresses and the options of data connections.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "ipc/base/fd.h"
#include "transport/transport_own.h"

#define KEEPALIVE_PROBES 3
#define KEEPALIVE_S_MAX 32767 /* of the kernel */

static void
set_option(int fd, int level, int option, int value)
{
	int rc = setsockopt(fd, level, option, &value, sizeof(value));
	(void)rc; /* each is an improvement that the connection works without */
}

static int
try_congestion(int fd, const char *name)
{
	int rc = setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name));
	return rc < 0 ? -errno : 0;
}

void
socket_set_congestion(int fd, const char *congestion)
{
	if (congestion[0] != '\0')
		(void)try_congestion(fd, congestion); /* not there: what it has */
}

int
socket_check_congestion(const char *congestion)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	int rc = try_congestion(fd, congestion);
	th_fd_close(&fd);
	return rc;
}

void
socket_pace(int fd, uint64_t rate)
{
	int rc = setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
	uint32_t small = (uint32_t)th_min_u64(rate, UINT32_MAX);
	if (rc < 0) /* before Linux 4.20 it had 32 bits */
		rc = setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &small, sizeof(small));
	(void)rc; /* the option is older than any kernel that has memfds with seals */
}

/*
 * Bytes that nobody acknowledges for dead_ns: the way or the peer is dead. An idle connection is
 * probed after the same time, and once more half of it later, which is its end.
 */
static void
set_patience(int fd, int64_t dead_ns)
{
	int64_t ms = th_min_i64(dead_ns / 1000000, INT32_MAX);
	int64_t idle_s = th_min_i64(th_max_i64(dead_ns / 1000000000, 1), KEEPALIVE_S_MAX);
	set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)ms);
	set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, (int)idle_s);
	set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, (int)th_max_i64(idle_s / 2, 1));
	set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
}

void
socket_prepare(int fd, const struct transport *transport)
{
	/* No SO_RCVBUF: it would switch the kernel's own tuning off. The congestion control is set,
	 * not inherited: the host's default may be one that is slow inside a datacenter. */
	socket_set_congestion(fd, transport->congestion);
	set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	set_patience(fd, transport->config.dead_ns);
}

int
socket_parse(const char *address, struct sockaddr_storage *ret_address, socklen_t *ret_bytes)
{
	char host[TH_ADDRESS_MAX + 1];
	const char *colon = strrchr(address, ':');
	size_t bytes = colon ? (size_t)(colon - address) : 0;
	if (bytes == 0 || bytes >= sizeof(host))
		return TH_E_INVALID;
	if (address[0] == '[' && bytes > 2 && colon[-1] == ']') {
		address++;
		bytes -= 2;
	}
	memcpy(host, address, bytes);
	host[bytes] = '\0';
	/* Numbers only: looking up a name may block, and this is called by threads that may not. */
	struct addrinfo hints = {
		.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
	struct addrinfo *found;
	if (getaddrinfo(host, colon + 1, &hints, &found) != 0)
		return TH_E_INVALID;
	memset(ret_address, 0, sizeof(*ret_address));
	memcpy(ret_address, found->ai_addr, found->ai_addrlen);
	*ret_bytes = found->ai_addrlen;
	freeaddrinfo(found);
	return 0;
}

int
socket_connect(
	const struct sockaddr_storage *address, socklen_t bytes, const struct transport *transport)
{
	int fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	socket_prepare(fd, transport);
	if (connect(fd, (const struct sockaddr *)address, bytes) < 0 && errno != EINPROGRESS) {
		int rc = -errno;
		th_fd_close(&fd);
		return rc;
	}
	return fd;
}

bool
socket_same_host(int fd)
{
	struct sockaddr_storage here = {0}, there = {0};
	socklen_t here_bytes = sizeof(here), there_bytes = sizeof(there);
	if (getsockname(fd, (struct sockaddr *)&here, &here_bytes) < 0 ||
		getpeername(fd, (struct sockaddr *)&there, &there_bytes) < 0 ||
		here.ss_family != there.ss_family)
		return false;
	const void *a = &((struct sockaddr_in *)&here)->sin_addr;
	const void *b = &((struct sockaddr_in *)&there)->sin_addr;
	size_t bytes = sizeof(struct in_addr);
	if (here.ss_family == AF_INET6) {
		a = &((struct sockaddr_in6 *)&here)->sin6_addr;
		b = &((struct sockaddr_in6 *)&there)->sin6_addr;
		bytes = sizeof(struct in6_addr);
	}
	return memcmp(a, b, bytes) == 0;
}

void
socket_name(const struct sockaddr_storage *address, char ret_name[PEER_BYTES])
{
	char host[PEER_BYTES - 9], port[6];
	const struct sockaddr *any = (const struct sockaddr *)address;
	socklen_t bytes = address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
							 : sizeof(struct sockaddr_in);
	if (getnameinfo(any, bytes, host, sizeof(host), port, sizeof(port),
		    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
		snprintf(ret_name, PEER_BYTES, "?");
	else if (strchr(host, ':'))
		snprintf(ret_name, PEER_BYTES, "[%s]:%s", host, port);
	else
		snprintf(ret_name, PEER_BYTES, "%s:%s", host, port);
}
