/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nng_req_test - libthc's SP REQ against the nng library's REP, against a recording of what nng's
 * own REQ sends, and against peers that lie, hang up or are slow.
 */
#include "libthc/nng_req.h"

#include <criterion/criterion.h>
#include <endian.h>
#include <errno.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/sock/listener.h"

#define MS INT64_C(1000000)
#define REPLY_MAX (1u << 20)

static char dir[64], path[128];

static void
setup(void)
{
	strcpy(dir, "/tmp/thc-sp-XXXXXX");
	cr_assert_not_null(mkdtemp(dir));
	(void)snprintf(path, sizeof(path), "%s/agent.ipc", dir);
}

static void
teardown(void)
{
	(void)unlink(path);
	(void)rmdir(dir);
}

TestSuite(sp, .init = setup, .fini = teardown, .timeout = 30);

static int64_t
in_ms(int64_t ms)
{
	return th_now_ns() + ms * MS;
}

/* ---- against nng ---------------------------------------------------------------------------- */

static nng_socket
nng_rep(void)
{
	nng_socket rep;
	char url[160];

	(void)snprintf(url, sizeof(url), "ipc://%s", path);
	cr_assert_eq(nng_rep0_open(&rep), 0);
	cr_assert_eq(nng_listen(rep, url, NULL, 0), 0);
	return rep;
}

/* Answers as many requests as it is told with the request's bytes, each plus one. */
static void *
echo(void *arg)
{
	nng_socket rep = *(nng_socket *)arg;

	for (;;) {
		nng_msg *msg;
		if (nng_recvmsg(rep, &msg, 0) != 0)
			return NULL;
		uint8_t *body = nng_msg_body(msg);
		bool last = nng_msg_len(msg) == 4 && memcmp(body, "last", 4) == 0;
		for (size_t i = 0; i < nng_msg_len(msg); i++)
			body[i]++;
		if (nng_sendmsg(rep, msg, 0) != 0)
			return NULL;
		if (last)
			return arg;
	}
}

Test(sp, call__nng_rep__answers_small_and_large)
{
	const size_t sizes[] = {0, 1, 13, 4096, 65537, REPLY_MAX};
	static uint8_t data[REPLY_MAX];
	struct sp_req req;
	struct th_err err = {0};
	pthread_t thread;
	nng_socket rep = nng_rep();

	cr_assert_eq(pthread_create(&thread, NULL, echo, &rep), 0);
	cr_assert_eq(sp_req_init(&req, path), 0);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint8_t *reply = NULL;
		size_t bytes = 0;
		memset(data, (int)i, sizes[i]);
		cr_assert_eq(sp_req_call(&req, data, sizes[i], REPLY_MAX, in_ms(10000), &err,
				     &reply, &bytes),
			0, "%s", err.text);
		cr_assert_eq(bytes, sizes[i]);
		for (size_t b = 0; b < bytes; b++)
			cr_assert_eq(reply[b], (uint8_t)(i + 1));
		free(reply);
	}
	uint8_t *reply = NULL;
	size_t bytes = 0;
	cr_assert_eq(
		sp_req_call(&req, "last", 4, REPLY_MAX, in_ms(10000), &err, &reply, &bytes), 0);
	free(reply);
	cr_assert_eq(pthread_join(thread, NULL), 0);
	sp_req_close(&req);
	nng_close(rep);
}

Test(sp, call__nng_rep_starts_again__is_asked_again)
{
	struct sp_req req;
	struct th_err err = {0};
	pthread_t thread;

	cr_assert_eq(sp_req_init(&req, path), 0);
	for (int life = 0; life < 3; life++) {
		uint8_t *reply = NULL;
		size_t bytes = 0;
		nng_socket rep = nng_rep();
		cr_assert_eq(pthread_create(&thread, NULL, echo, &rep), 0);
		cr_assert_eq(
			sp_req_call(&req, "last", 4, REPLY_MAX, in_ms(10000), &err, &reply, &bytes),
			0, "%s", err.text);
		cr_assert_eq(memcmp(reply, "mbtu", 4), 0);
		free(reply);
		cr_assert_eq(pthread_join(thread, NULL), 0);
		nng_close(rep);
	}
	sp_req_close(&req);
}

/* ---- a peer made by hand --------------------------------------------------------------------- */

static int listener;

static void
listen_here(void)
{
	struct th_err err = {0};

	listener = listener_open(path, SOCK_STREAM, (gid_t)-1, &err);
	cr_assert_geq(listener, 0, "%s", err.text);
}

static int
accept_one(void)
{
	struct pollfd poll_fd = {.fd = listener, .events = POLLIN};

	cr_assert_eq(poll(&poll_fd, 1, 10000), 1);
	return listener_accept(listener);
}

static void
take(int sock, void *ret_bytes, size_t count)
{
	uint8_t *at = ret_bytes;

	while (count > 0) {
		struct pollfd poll_fd = {.fd = sock, .events = POLLIN};
		cr_assert_eq(poll(&poll_fd, 1, 10000), 1);
		ssize_t got = recv(sock, at, count, 0);
		cr_assert_gt(got, 0);
		at += got;
		count -= (size_t)got;
	}
}

static const uint8_t hello_req[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
static const uint8_t hello_rep[8] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};

/* What nng's own REQ sends is recorded and compared byte by byte with ours. */
static void
record(uint8_t hello[8], uint8_t frame[13], char payload[5])
{
	int sock = accept_one();

	cr_assert_geq(sock, 0);
	take(sock, hello, 8);
	cr_assert_eq(send(sock, hello_rep, 8, MSG_NOSIGNAL), 8);
	take(sock, frame, 13);
	take(sock, payload, 5);
	uint8_t reply[13 + 2];
	memcpy(reply, frame, 13);
	reply[8] = 6; /* the low byte of the length: id and two bytes */
	reply[13] = 'o';
	reply[14] = 'k';
	cr_assert_eq(send(sock, reply, 15, MSG_NOSIGNAL), 15);
	th_fd_close(&sock);
}

static void *
ask_ours(void *arg)
{
	struct sp_req req;
	uint8_t *reply = NULL;
	size_t bytes = 0;

	cr_assert_eq(sp_req_init(&req, path), 0);
	cr_assert_eq(
		sp_req_call(&req, "hello", 5, REPLY_MAX, in_ms(10000), NULL, &reply, &bytes), 0);
	cr_assert_eq(bytes, 2);
	cr_assert_eq(memcmp(reply, "ok", 2), 0);
	free(reply);
	sp_req_close(&req);
	return arg;
}

static void *
ask_nng(void *arg)
{
	nng_socket req;
	nng_msg *msg;
	char url[160];

	(void)snprintf(url, sizeof(url), "ipc://%s", path);
	cr_assert_eq(nng_req0_open(&req), 0);
	cr_assert_eq(nng_dial(req, url, NULL, 0), 0);
	cr_assert_eq(nng_msg_alloc(&msg, 0), 0);
	cr_assert_eq(nng_msg_append(msg, "hello", 5), 0);
	cr_assert_eq(nng_sendmsg(req, msg, 0), 0);
	cr_assert_eq(nng_recvmsg(req, &msg, 0), 0);
	cr_assert_eq(nng_msg_len(msg), 2);
	cr_assert_eq(memcmp(nng_msg_body(msg), "ok", 2), 0);
	nng_msg_free(msg);
	nng_close(req);
	return arg;
}

Test(sp, bytes_on_the_wire__ours_and_nngs__are_equal)
{
	uint8_t hello[2][8], frame[2][13];
	char payload[2][5];
	void *(*const askers[])(void *) = {ask_ours, ask_nng};

	listen_here();
	for (int i = 0; i < 2; i++) {
		pthread_t thread;
		cr_assert_eq(pthread_create(&thread, NULL, askers[i], NULL), 0);
		record(hello[i], frame[i], payload[i]);
		cr_assert_eq(pthread_join(thread, NULL), 0);
		cr_assert_eq(memcmp(hello[i], hello_req, 8), 0);
		/* The top bit of the request id is set; the other 31 are the asker's. */
		cr_assert_eq(frame[i][9] & 0x80, 0x80);
		memset(&frame[i][9], 0, 4);
	}
	cr_assert_eq(memcmp(hello[0], hello[1], 8), 0);
	cr_assert_eq(memcmp(frame[0], frame[1], 13), 0);
	cr_assert_eq(memcmp(payload[0], payload[1], 5), 0);
	th_fd_close(&listener);
}

/* ---- peers that do not behave ------------------------------------------------------------- */

enum misdeed {
	WRONG_HELLO,
	SHORT_HELLO,
	WRONG_TYPE,
	WRONG_ID,
	NO_ID,
	LONG_LENGTH,
	HUGE_LENGTH,
	HALF_FRAME,
	HALF_PAYLOAD,
	HANG_UP,
};

/* Serves connections until it has been connected to as often as it is told. */
struct peer_plan {
	enum misdeed misdeed;
	int connections;
};

static void
misbehave(int sock, enum misdeed misdeed)
{
	uint8_t bytes[64] = {1};
	uint64_t length = htobe64(6);
	size_t count = 15;

	take(sock, bytes + 32, 8);
	if (misdeed == WRONG_HELLO || misdeed == SHORT_HELLO) {
		memcpy(bytes, hello_req, 8);
		(void)send(sock, bytes, misdeed == WRONG_HELLO ? 8 : 3, MSG_NOSIGNAL);
		return;
	}
	cr_assert_eq(send(sock, hello_rep, 8, MSG_NOSIGNAL), 8);
	take(sock, bytes + 32, 13 + 5);
	if (misdeed == HANG_UP)
		return;
	if (misdeed == LONG_LENGTH)
		length = htobe64(4 + REPLY_MAX + 1);
	if (misdeed == HUGE_LENGTH)
		length = UINT64_MAX;
	if (misdeed == NO_ID)
		length = htobe64(3);
	memcpy(bytes + 1, &length, 8);
	memcpy(bytes + 9, bytes + 32 + 9, 4);
	if (misdeed == WRONG_TYPE)
		bytes[0] = 2;
	if (misdeed == WRONG_ID)
		bytes[12] ^= 1;
	if (misdeed == HALF_FRAME)
		count = 7;
	if (misdeed == HALF_PAYLOAD)
		count = 14;
	(void)send(sock, bytes, count, MSG_NOSIGNAL);
}

static void *
peer_main(void *arg)
{
	const struct peer_plan *plan = arg;

	for (int i = 0; i < plan->connections; i++) {
		int sock = accept_one();
		misbehave(sock, plan->misdeed);
		th_fd_close(&sock);
	}
	return NULL;
}

static void
expect(enum misdeed misdeed, int connections, int code)
{
	struct peer_plan plan = {misdeed, connections};
	struct sp_req req;
	struct th_err err = {0};
	uint8_t *reply = NULL;
	size_t bytes = 77;
	pthread_t thread;

	cr_assert_eq(pthread_create(&thread, NULL, peer_main, &plan), 0);
	cr_assert_eq(sp_req_init(&req, path), 0);
	int rc = sp_req_call(&req, "hello", 5, REPLY_MAX, in_ms(8000), &err, &reply, &bytes);
	cr_assert_eq(rc, code, "misdeed %d: %d %s", (int)misdeed, rc, err.text);
	cr_assert_eq(err.code, code);
	cr_assert_not_null(strstr(err.text, path));
	cr_assert_null(reply);
	cr_assert_eq(bytes, 77);
	cr_assert_eq(req.fd, -1);
	cr_assert_eq(pthread_join(thread, NULL), 0);
}

Test(sp, call__garbage__is_a_protocol_error)
{
	listen_here();
	expect(WRONG_HELLO, 1, TH_E_PROTOCOL);
	expect(WRONG_TYPE, 1, TH_E_PROTOCOL);
	expect(WRONG_ID, 1, TH_E_PROTOCOL);
	expect(NO_ID, 1, TH_E_PROTOCOL);
	th_fd_close(&listener);
}

Test(sp, call__announced_length_over_the_limit__is_refused_unread)
{
	listen_here();
	expect(LONG_LENGTH, 1, TH_E_PROTOCOL);
	expect(HUGE_LENGTH, 1, TH_E_PROTOCOL);
	th_fd_close(&listener);
}

Test(sp, call__peer_hangs_up__is_asked_once_more_and_then_lost)
{
	listen_here();
	expect(SHORT_HELLO, 1, TH_E_AGENT_LOST);
	expect(HANG_UP, 2, TH_E_AGENT_LOST);
	expect(HALF_FRAME, 2, TH_E_AGENT_LOST);
	expect(HALF_PAYLOAD, 2, TH_E_AGENT_LOST);
	th_fd_close(&listener);
}

Test(sp, call__nobody_answers__ends_at_the_deadline)
{
	struct sp_req req;
	struct th_err err = {0};
	uint8_t *reply = NULL;
	size_t bytes = 0;

	cr_assert_eq(sp_req_init(&req, path), 0);
	cr_assert_eq(sp_req_call(&req, "x", 1, REPLY_MAX, in_ms(1000), &err, &reply, &bytes),
		TH_E_NO_AGENT);
	cr_assert_not_null(strstr(err.text, "thctl up"));
	listen_here(); /* and never accepts: the backlog takes the connection */
	for (int64_t ms = 0; ms <= 300; ms += 300) {
		int64_t start = th_now_ns();
		cr_assert_eq(
			sp_req_call(&req, "x", 1, REPLY_MAX, start + ms * MS, &err, &reply, &bytes),
			TH_E_TIMEOUT);
		int64_t took = th_now_ns() - start;
		cr_assert_geq(took, ms * MS);
		cr_assert_lt(took, (ms + 500) * MS);
	}
	/* A full backlog. */
	cr_assert_eq(listen(listener, 0), 0);
	struct sp_req others[4];
	for (int i = 0; i < 4; i++) {
		cr_assert_eq(sp_req_init(&others[i], path), 0);
		int64_t start = th_now_ns();
		cr_assert_eq(sp_req_call(&others[i], "x", 1, REPLY_MAX, start + 100 * MS, &err,
				     &reply, &bytes),
			TH_E_TIMEOUT);
		cr_assert_lt(th_now_ns() - start, 600 * MS);
	}
	th_fd_close(&listener);
}

/* Byte by byte, but before the deadline. */
static void *
slow_main(void *arg)
{
	uint8_t bytes[13 + 3 + 13 + 5];
	int sock = accept_one();

	take(sock, bytes, 8);
	for (int i = 0; i < 8; i++)
		cr_assert_eq(send(sock, hello_rep + i, 1, MSG_NOSIGNAL), 1);
	take(sock, bytes + 16, 13 + 5);
	memcpy(bytes, bytes + 16, 13);
	bytes[8] = 7;
	memcpy(bytes + 13, "abc", 3);
	for (int i = 0; i < 16; i++) {
		struct pollfd none = {.fd = -1};
		(void)poll(&none, 1, 5);
		cr_assert_eq(send(sock, bytes + i, 1, MSG_NOSIGNAL), 1);
	}
	th_fd_close(&sock);
	return arg;
}

Test(sp, call__slow_peer_within_the_deadline__is_waited_for)
{
	struct sp_req req;
	struct th_err err = {0};
	uint8_t *reply = NULL;
	size_t bytes = 0;
	pthread_t thread;

	listen_here();
	cr_assert_eq(pthread_create(&thread, NULL, slow_main, NULL), 0);
	cr_assert_eq(sp_req_init(&req, path), 0);
	cr_assert_eq(
		sp_req_call(&req, "hello", 5, REPLY_MAX, in_ms(10000), &err, &reply, &bytes), 0);
	cr_assert_eq(bytes, 3);
	cr_assert_eq(memcmp(reply, "abc", 3), 0);
	free(reply);
	cr_assert_eq(pthread_join(thread, NULL), 0);
	sp_req_close(&req);
	th_fd_close(&listener);
}

Test(sp, init__path__must_fit_a_socket_address)
{
	struct sp_req req;
	char longest[DIAL_PATH_MAX + 2];

	memset(longest, 'x', sizeof(longest));
	longest[DIAL_PATH_MAX + 1] = '\0';
	cr_assert_eq(sp_req_init(&req, longest), TH_E_INVALID);
	longest[DIAL_PATH_MAX] = '\0';
	cr_assert_eq(sp_req_init(&req, longest), 0);
	cr_assert_eq(sp_req_init(&req, ""), TH_E_INVALID);
}
