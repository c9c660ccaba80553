/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_common - errors, addresses and notices of nng, for server and client. Any thread.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/net/net.h"
#include "ipc/net/net_internal.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>

#define LEAKS_STATUS 99

/*
 * nng 1.5.2 loses a connection's memory when it ends in the middle of a message. Not ours. Weak: a
 * test program may say more.
 */
__attribute__((weak, visibility("default"))) const char *
__lsan_default_suppressions(void)
{
	return "leak:libnng\n";
}
#endif

#define NS_PER_MS INT64_C(1000000)
#define DURATION_MS_MAX INT64_C(86400000) /* a day: an nng_duration has 31 bits */

static pthread_mutex_t links_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct net_link *links;
static uint64_t links_number; /* of the last one */

/*
 * In front of the C library's, for all of a program that links this folder, nng included. A peer
 * that hangs up before nng has written its greeting makes that write fail with EPIPE, which
 * nng 1.5.2 takes for its own close: the listener accepts, or the dialer dials, never again. As
 * ECONNRESET it ends that one connection only. Here, because every user of this folder links
 * this file; visible, because nng finds it by its name.
 */
__attribute__((visibility("default"))) ssize_t
sendmsg(int fd, const struct msghdr *message, int flags)
{
	ssize_t sent = syscall(SYS_sendmsg, fd, message, flags);

	if (sent < 0 && errno == EPIPE)
		errno = ECONNRESET;
	return sent;
}

typedef void (*stream_call)(nng_stream *stream, nng_aio *aio);

static stream_call stream_recv, stream_send;
static bool refuses_silently;

static __attribute__((constructor)) void
find_nng(void)
{
	void *recv = dlsym(RTLD_NEXT, "nng_stream_recv"),
	     *send = dlsym(RTLD_NEXT, "nng_stream_send");

	TH_ASSERT(recv != NULL && send != NULL);
	memcpy(&stream_recv, &recv, sizeof(stream_recv));
	memcpy(&stream_send, &send, sizeof(stream_send));
	/* Of others it is not known; telling one twice that it is over would be worse. */
	refuses_silently = strcmp(nng_version(), NET_NNG_REPAIRED) == 0;
}

/*
 * In front of nng's, which its transports call, for one lost end of an operation. A transport
 * that has read or written a part of a message asks for the rest of it here, in its callback.
 * Where the connection has been closed since the part was moved, nng 1.5.2 refuses
 * (nni_aio_begin) without calling back; the transport believes that it goes on. What waits for the
 * whole message then waits for ever, and so does the one thread that frees connections, as soon
 * as it comes to this one: from then on every connection that ends keeps its descriptor. So a
 * refused operation is ended here, as one whose connection was shut.
 *
 * A refusal leaves NNG_ECANCELED, at once. In these operations nothing else does: tcp and ipc
 * close an aio before they stop it, so what was under way has ended as NNG_ECLOSED by then. The
 * caller holds the lock that the callback needs first, so the result read here is of this call.
 * nng's TLS and HTTP call these too and are not used: to be looked at before they are.
 */
static void
end_refused(nng_aio *aio)
{
	if (refuses_silently && nng_aio_result(aio) == NNG_ECANCELED)
		nng_aio_finish(aio, NNG_ECONNSHUT);
}

__attribute__((visibility("default"))) void
nng_stream_recv(nng_stream *stream, nng_aio *aio)
{
	stream_recv(stream, aio);
	end_refused(aio);
}

__attribute__((visibility("default"))) void
nng_stream_send(nng_stream *stream, nng_aio *aio)
{
	stream_send(stream, aio);
	end_refused(aio);
}

void
net_exit(int status)
{
	fflush(stdout);
#ifdef __SANITIZE_ADDRESS__
	/* _exit runs no destructors, and the sanitizer's is where it looks for leaks. */
	if (__lsan_do_recoverable_leak_check() != 0)
		_exit(LEAKS_STATUS);
#endif
	_exit(status);
}

int
net_code(int nng_error)
{
	static const struct {
		int nng, code;
	} codes[] = {
		{NNG_EINTR, -EINTR},
		{NNG_ENOMEM, -ENOMEM},
		{NNG_EINVAL, TH_E_INVALID},
		{NNG_EBUSY, -EBUSY},
		{NNG_ETIMEDOUT, -ETIMEDOUT},
		{NNG_ECONNREFUSED, -ECONNREFUSED},
		{NNG_ECLOSED, -ECANCELED},
		{NNG_EAGAIN, -EAGAIN},
		{NNG_ENOTSUP, -ENOTSUP},
		{NNG_EADDRINUSE, -EADDRINUSE},
		{NNG_ESTATE, -EPROTO},
		{NNG_ENOENT, -ENOENT},
		{NNG_EPROTO, -EPROTO},
		{NNG_EUNREACHABLE, -EHOSTUNREACH},
		{NNG_EADDRINVAL, -EADDRNOTAVAIL},
		{NNG_EPERM, -EACCES},
		{NNG_EMSGSIZE, -EMSGSIZE},
		{NNG_ECONNABORTED, -ECONNRESET},
		{NNG_ECONNRESET, -ECONNRESET},
		{NNG_ECANCELED, -ECANCELED},
		{NNG_ENOFILES, -EMFILE},
		{NNG_ENOSPC, -ENOSPC},
		{NNG_ECONNSHUT, -ECONNRESET},
	};

	if (nng_error == 0)
		return 0;
	if (nng_error & NNG_ESYSERR)
		return -(nng_error & ~NNG_ESYSERR);
	for (size_t i = 0; i < TH_ARRAY_LEN(codes); i++)
		if (codes[i].nng == nng_error)
			return codes[i].code;
	return -EIO;
}

int
net_fail(struct th_err *err, int nng_error, const char *what, const char *address)
{
	int code = net_code(nng_error);
	const char *advice = "";

	if (code == -EADDRINUSE)
		advice = "; stop the other process there or choose another address";
	else if (code == -EADDRNOTAVAIL)
		advice = "; is it an address of this machine, and is the name known?";
	else if (code == -EMFILE)
		advice = "; raise the limit of open files (ulimit -n, LimitNOFILE=)";
	else if (code == -ECONNREFUSED)
		advice = "; nothing listens there";
	else if (code == -EACCES)
		advice = "; the process may not use this port or folder";
	return th_fail(err, code, "%s %s: %s%s", what, address,
		!th_is_errno(code) || code == -EIO ? nng_strerror(nng_error) : th_strerror(code),
		advice);
}

static void
pipe_event(nng_pipe pipe, nng_pipe_ev event, void *number)
{
	struct net_link *link;

	pthread_mutex_lock(&links_mutex);
	for (link = links; link != NULL; link = link->next)
		if (link->number == (uintptr_t)number)
			break;
	if (link != NULL)
		link->handler(link, (uint32_t)nng_pipe_id(pipe), event == NNG_PIPE_EV_ADD_POST);
	pthread_mutex_unlock(&links_mutex);
}

int
net_link_add(struct net_link *link, nng_socket socket)
{
	void *number;
	int rv;

	pthread_mutex_lock(&links_mutex);
	link->number = ++links_number;
	link->next = links;
	links = link;
	pthread_mutex_unlock(&links_mutex);
	number = (void *)(uintptr_t)link->number;
	rv = nng_pipe_notify(socket, NNG_PIPE_EV_ADD_POST, pipe_event, number);
	if (rv == 0)
		rv = nng_pipe_notify(socket, NNG_PIPE_EV_REM_POST, pipe_event, number);
	return rv;
}

void
net_link_remove(struct net_link *link)
{
	struct net_link **at = &links;

	pthread_mutex_lock(&links_mutex);
	while (*at != NULL && *at != link)
		at = &(*at)->next;
	if (*at != NULL)
		*at = link->next;
	pthread_mutex_unlock(&links_mutex);
}

static bool
port_valid(const char *text)
{
	size_t digits = strspn(text, "0123456789");

	return digits >= 1 && digits <= 5 && text[digits] == '\0' &&
	       strtoul(text, NULL, 10) <= UINT16_MAX;
}

int
net_url_check(const char *url, struct th_err *err)
{
	const char *port;

	if (url == NULL || strlen(url) >= NET_URL_BYTES)
		return th_fail(
			err, TH_E_INVALID, "an address has at most %d bytes", NET_URL_BYTES - 1);
	if (strncmp(url, "ipc:///", 7) == 0 && url[7] != '\0')
		return 0;
	if (strncmp(url, "tls+tcp://", 10) == 0)
		return th_fail(err, TH_E_INVALID,
			"%s: TLS is not built yet; use tcp:// in a trusted network", url);
	if (strncmp(url, "tcp://", 6) != 0)
		return th_fail(err, TH_E_INVALID,
			"%s: not an address; write tcp://HOST:PORT or ipc:///PATH", url);
	port = strrchr(url + 6, ':');
	if (port == NULL || port == url + 6 || !port_valid(port + 1) ||
		strchr(url + 6, '/') != NULL)
		return th_fail(err, TH_E_INVALID,
			"%s: no valid HOST:PORT; write for example tcp://10.0.0.1:7070", url);
	return 0;
}

bool
net_print_address(const nng_sockaddr *address, char ret_text[NET_URL_BYTES])
{
	char host[INET6_ADDRSTRLEN];

	if (address->s_family == NNG_AF_INET) {
		inet_ntop(AF_INET, &address->s_in.sa_addr, host, sizeof(host));
		snprintf(ret_text, NET_URL_BYTES, "%s:%u", host, ntohs(address->s_in.sa_port));
		return true;
	}
	if (address->s_family == NNG_AF_INET6) {
		inet_ntop(AF_INET6, address->s_in6.sa_addr, host, sizeof(host));
		snprintf(ret_text, NET_URL_BYTES, "[%s]:%u", host, ntohs(address->s_in6.sa_port));
		return true;
	}
	return false;
}

nng_duration
net_duration(int64_t ns)
{
	int64_t ms;

	if (ns < 0)
		return NNG_DURATION_INFINITE;
	ms = ns / NS_PER_MS + (ns % NS_PER_MS != 0);
	return (nng_duration)th_min_i64(ms, DURATION_MS_MAX);
}

void
net_wake(int fd)
{
	static const uint64_t one = 1;
	ssize_t written;

	do {
		written = write(fd, &one, sizeof(one));
	} while (written < 0 && errno == EINTR);
	/* EAGAIN: 2^64 - 2 wake-ups are waiting, so it is readable. */
	TH_ASSERT(written == sizeof(one) || errno == EAGAIN);
}

void
net_wake_clear(int fd)
{
	uint64_t count;
	ssize_t got;

	do {
		got = read(fd, &count, sizeof(count));
	} while (got < 0 && errno == EINTR);
}
