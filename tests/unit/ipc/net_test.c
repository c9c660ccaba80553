/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_test - questions and answers over real sockets in one process, and what must not hurt them:
 * strangers, restarts, lost connections, and many at once. Every wait has an end.
 */
#include "ipc/net/net.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/ctl.h"

#define MS INT64_C(1000000)
#define PATIENCE_NS (10000 * MS) /* far more than anything here needs */

/*
 * Only a build with the leak sanitizer calls this. nng frees connections and listeners on a
 * thread of its own, some time after they were closed, so what it holds at exit is no leak; ours
 * would show, net allocates with its own calls. Criterion runs each test in a child with
 * BXFI_MAP set; the parent, which runs nothing of ours, forgets children that take long to exit.
 */
const char *__lsan_default_suppressions(void) __attribute__((visibility("default")));

const char *
__lsan_default_suppressions(void)
{
	return getenv("BXFI_MAP") == NULL ? "leak:libcriterion.so\n" : "leak:libnng.so\n";
}

static struct net_server *
server_at(const char *url, char ret_url[NET_URL_BYTES])
{
	struct net_server *server;
	struct th_err err = {0};

	cr_assert_eq(net_server_new(NULL, &err, &server), 0, "%s", err.text);
	cr_assert_eq(net_server_listen(server, url, 0600, &err, ret_url), 0, "%s", err.text);
	return server;
}

static struct net_client *
client_of(const char *url)
{
	struct net_client *client;
	struct th_err err = {0};

	cr_assert_eq(net_client_new(NULL, &err, &client), 0, "%s", err.text);
	cr_assert_eq(net_client_dial(client, url, false, &err), 0, "%s", err.text);
	return client;
}

static int
left_ms(int64_t until_ns)
{
	int64_t left_ns = until_ns - th_now_ns();

	return left_ns <= 0 ? 0 : (int)(left_ns / MS) + 1;
}

static bool
readable(int fd, int64_t until_ns)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};

	return poll(&pfd, 1, left_ms(until_ns)) == 1;
}

/* The next item of that kind; others are passed over. */
static struct net_server_item
server_item(struct net_server *server, enum net_server_item_kind kind)
{
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	struct net_server_item item;

	for (;;) {
		while (net_server_next(server, &item))
			if (item.kind == kind)
				return item;
		cr_assert(readable(net_server_fd(server), until_ns), "nothing came");
	}
}

/* nng tells of a connection beside its first request, and so perhaps after it. */
static struct net_server_counters
counters_with(struct net_server *server, uint32_t connections)
{
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	struct net_server_counters counters;

	for (;;) {
		net_server_counters(server, &counters);
		if (counters.connections == connections || th_now_ns() > until_ns)
			return counters;
		(void)sched_yield();
	}
}

static struct net_client_item
client_item(struct net_client *client, enum net_client_item_kind kind)
{
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	struct net_client_item item;

	for (;;) {
		while (net_client_next(client, &item))
			if (item.kind == kind)
				return item;
		cr_assert(readable(net_client_fd(client), until_ns), "nothing came");
	}
}

static void
ask(struct net_client *client, uint64_t tag, const char *text)
{
	cr_assert_eq(
		net_client_send(client, tag, (const uint8_t *)text, strlen(text), PATIENCE_NS), 0);
}

static void
answer(struct net_server *server, uint64_t token, const char *text)
{
	cr_assert_eq(net_server_reply(server, token, (const uint8_t *)text, strlen(text)), 0);
}

/* One question, one answer. */
static void
exchange(struct net_server *server, struct net_client *client)
{
	struct net_server_item request;
	struct net_client_item reply;

	ask(client, 42, "how much");
	request = server_item(server, NET_REQUEST);
	cr_assert_eq(request.bytes, 8);
	cr_assert_arr_eq(request.data, "how much", 8);
	cr_assert_neq(request.token, 0);
	answer(server, request.token, "so much");
	reply = client_item(client, NET_REPLY);
	cr_assert_eq(reply.rc, 0);
	cr_assert_eq(reply.tag, 42);
	cr_assert_eq(reply.bytes, 7);
	cr_assert_arr_eq(reply.data, "so much", 7);
}

Test(net, tcp__a_question__is_answered, .timeout = 30)
{
	char url[NET_URL_BYTES];
	struct net_server *server = server_at("tcp://127.0.0.1:0", url);
	struct net_client *client = client_of(url);
	struct net_server_counters counters;

	cr_assert_eq(strncmp(url, "tcp://127.0.0.1:", 16), 0, "%s", url);
	cr_assert_gt(atoi(url + 16), 0, "%s", url);
	client_item(client, NET_UP);
	for (int i = 0; i < 100; i++)
		exchange(server, client);
	counters = counters_with(server, 1);
	cr_assert_eq(counters.requests, 100);
	cr_assert_eq(counters.replies, 100);
	cr_assert_eq(counters.connections, 1);
	cr_assert_eq(counters.contexts_open, 0);
	net_client_free(client);
	net_server_free(server);
}

Test(net, ipc__the_peer__is_known_by_the_kernel, .timeout = 30)
{
	char path[64], given[80], url[NET_URL_BYTES];
	struct net_server *server;
	struct net_client *client;
	struct net_server_item item;
	struct stat status;

	snprintf(path, sizeof(path), "/tmp/th-net-%d", (int)getpid());
	snprintf(given, sizeof(given), "ipc://%s", path);
	server = server_at(given, url);
	cr_assert_str_eq(url, given);
	cr_assert_eq(stat(path, &status), 0);
	cr_assert_eq(status.st_mode & 0777, 0600);
	client = client_of(url);
	exchange(server, client);
	ask(client, 1, "who am I");
	item = server_item(server, NET_REQUEST);
	cr_assert(item.peer.local);
	cr_assert_eq(item.peer.pid, getpid());
	cr_assert_eq(item.peer.uid, getuid());
	cr_assert_eq(item.peer.gid, getgid());
	cr_assert_neq(item.peer.pipe, 0);
	net_client_free(client);
	net_server_free(server);
	unlink(path);
}

Test(net, listeners__each_request_has_the_number_of_its_own, .timeout = 30)
{
	char given[NET_URL_BYTES], url[3][NET_URL_BYTES];
	struct net_server *server = server_at("tcp://127.0.0.1:0", url[0]);
	struct net_client *clients[3];
	struct th_err err = {0};

	snprintf(given, sizeof(given), "ipc:///tmp/th-net-%d-two", (int)getpid());
	/* One that fails takes no number. */
	cr_assert_eq(net_server_listen(server, url[0], 0, &err, url[1]), -EADDRINUSE);
	cr_assert_eq(net_server_listen(server, given, 0600, &err, url[1]), 0, "%s", err.text);
	cr_assert_eq(net_server_listen(server, "tcp://127.0.0.1:0", 0, &err, url[2]), 0);
	for (uint32_t i = 0; i < 3; i++)
		clients[i] = client_of(url[i]);
	for (uint32_t round = 0; round < 2; round++)
		for (uint32_t i = 3; i-- > 0;) {
			ask(clients[i], round, "by which");
			struct net_server_item item = server_item(server, NET_REQUEST);
			cr_assert_eq(item.peer.listener, i);
			cr_assert_eq(item.peer.local, i == 1);
			cr_assert_eq(
				net_server_reply(server, item.token, item.data, item.bytes), 0);
			(void)client_item(clients[i], NET_REPLY);
		}
	for (uint32_t i = 0; i < 3; i++)
		net_client_free(clients[i]);
	net_server_free(server);
	unlink(given + strlen("ipc://"));
}

Test(net, answers__in_another_order__reach_their_questions, .timeout = 30)
{
	char url[NET_URL_BYTES];
	struct net_server *server = server_at("tcp://127.0.0.1:0", url);
	struct net_client *client = client_of(url);
	uint64_t tokens[300];
	char first[300];

	/* More than the contexts at the start: all must come in before one is answered. */
	for (uint64_t i = 0; i < 300; i++)
		cr_assert_eq(net_client_send(
				     client, i, (const uint8_t *)&(char){(char)i}, 1, PATIENCE_NS),
			0);
	for (int i = 0; i < 300; i++) {
		struct net_server_item item = server_item(server, NET_REQUEST);

		tokens[i] = item.token;
		first[i] = (char)item.data[0];
	}
	for (int i = 299; i >= 0; i--)
		cr_assert_eq(net_server_reply(server, tokens[i], (const uint8_t *)&first[i], 1), 0);
	for (int i = 0; i < 300; i++) {
		struct net_client_item item = client_item(client, NET_REPLY);

		cr_assert_eq(item.rc, 0);
		cr_assert_eq(item.data[0], (uint8_t)item.tag);
	}
	cr_assert_eq(net_server_reply(server, tokens[0], (const uint8_t *)first, 1), -ESTALE);
	cr_assert_eq(net_server_reply(server, 0, (const uint8_t *)first, 1), -ESTALE);
	cr_assert_eq(net_server_reply(server, UINT64_MAX, (const uint8_t *)first, 1), -ESTALE);
	net_client_free(client);
	net_server_free(server);
}

Test(net, listen__port_in_use__says_so, .timeout = 30)
{
	char url[NET_URL_BYTES], second[NET_URL_BYTES] = "untouched";
	struct net_server *server = server_at("tcp://127.0.0.1:0", url);
	struct net_server *other;
	struct th_err err = {0};

	cr_assert_eq(net_server_new(NULL, &err, &other), 0);
	cr_assert_eq(net_server_listen(other, url, 0, &err, second), -EADDRINUSE);
	cr_assert_not_null(strstr(err.text, url), "%s", err.text);
	cr_assert_not_null(strstr(err.text, "another address"), "%s", err.text);
	cr_assert_str_eq(second, "untouched");
	net_server_free(other);
	net_server_free(server);
}

Test(net, urls__that_cannot_be_used__are_refused, .timeout = 30)
{
	static const char *const bad[] = {"", "127.0.0.1:7070", "tcp://", "tcp://host",
		"tcp://:7070", "tcp://h:", "tcp://h:x", "tcp://h:65536", "tcp://h:1/path",
		"udp://h:1", "ipc://", "ipc:///", "tls+tcp://h:1", "ws://h:1"};
	char url[NET_URL_BYTES];
	struct net_server *server;
	struct net_client *client;
	struct th_err err = {0};

	cr_assert_eq(net_server_new(NULL, &err, &server), 0);
	cr_assert_eq(net_client_new(NULL, &err, &client), 0);
	for (size_t i = 0; i < TH_ARRAY_LEN(bad); i++) {
		err = (struct th_err){0};
		cr_assert_eq(net_server_listen(server, bad[i], 0, &err, url), TH_E_INVALID, "%s",
			bad[i]);
		cr_assert_neq(err.text[0], '\0');
		cr_assert_eq(net_client_dial(client, bad[i], false, &err), TH_E_INVALID);
	}
	cr_assert_lt(net_server_listen(server, "tcp://192.0.2.1:1", 0, &err, url), 0);
	cr_assert_not_null(strstr(err.text, "this machine"), "%s", err.text);
	net_client_free(client);
	net_server_free(server);
}

Test(net, dial__nothing_there__waits_or_says_so, .timeout = 30)
{
	char url[NET_URL_BYTES];
	struct net_server *server = server_at("tcp://127.0.0.1:0", url);
	struct net_client *client;
	struct net_client_item item;
	struct th_err err = {0};

	net_server_free(server);
	cr_assert_eq(net_client_new(NULL, &err, &client), 0);
	cr_assert_eq(net_client_dial(client, url, true, &err), -ECONNREFUSED);
	cr_assert_not_null(strstr(err.text, url), "%s", err.text);
	cr_assert_eq(net_client_dial(client, url, false, &err), 0);
	cr_assert_eq(net_client_send(client, 3, (const uint8_t *)"x", 1, 50 * MS), 0);
	item = client_item(client, NET_REPLY);
	cr_assert_eq(item.rc, -ETIMEDOUT);
	cr_assert_eq(item.tag, 3);
	ask(client, 4, "waits for the server");
	server = server_at(url, url);
	answer(server, server_item(server, NET_REQUEST).token, "here");
	item = client_item(client, NET_REPLY);
	cr_assert_eq(item.rc, 0);
	cr_assert_eq(item.tag, 4);
	net_client_free(client);
	net_server_free(server);
}

Test(net, a_question_without_answer__times_out, .timeout = 30)
{
	char url[NET_URL_BYTES];
	struct net_server *server = server_at("tcp://127.0.0.1:0", url);
	struct net_client *client = client_of(url);
	struct net_server_item request;
	struct net_client_item item;
	int64_t begin_ns;

	exchange(server, client);
	begin_ns = th_now_ns();
	cr_assert_eq(net_client_send(client, 5, (const uint8_t *)"x", 1, 100 * MS), 0);
	request = server_item(server, NET_REQUEST);
	item = client_item(client, NET_REPLY);
	cr_assert_eq(item.rc, -ETIMEDOUT);
	cr_assert_geq(th_now_ns() - begin_ns, 100 * MS);
	answer(server, request.token, "too late"); /* goes to nobody */
	exchange(server, client);
	net_client_free(client);
	net_server_free(server);
}

Test(net, the_server_goes__open_questions_end_and_it_may_come_back, .timeout = 60)
{
	char url[NET_URL_BYTES];
	struct net_server *server = server_at("tcp://127.0.0.1:0", url);
	struct net_client *client = client_of(url);

	for (int round = 0; round < 10; round++) {
		struct net_client_item item;
		int64_t begin_ns;

		exchange(server, client);
		ask(client, 6, "held");
		server_item(server, NET_REQUEST);
		begin_ns = th_now_ns();
		net_server_free(server);
		item = client_item(client, NET_REPLY);
		cr_assert_eq(item.rc, -ECONNRESET);
		cr_assert_lt(th_now_ns() - begin_ns, 2000 * MS);
		server = server_at(url, url);
	}
	exchange(server, client);
	net_client_free(client);
	net_server_free(server);
}

Test(net, link__up_and_down__are_told, .timeout = 30)
{
	char url[NET_URL_BYTES];
	struct net_server *server = server_at("tcp://127.0.0.1:0", url);
	struct net_client *client = client_of(url);

	client_item(client, NET_UP);
	net_server_free(server);
	client_item(client, NET_DOWN);
	server = server_at(url, url);
	client_item(client, NET_UP);
	net_client_free(client);
	net_server_free(server);
}

Test(net, the_asker_goes__its_tokens_are_reported, .timeout = 30)
{
	char url[NET_URL_BYTES];
	struct net_server *server = server_at("tcp://127.0.0.1:0", url);
	struct net_client *staying = client_of(url), *leaving = client_of(url);
	struct net_server_item item;
	struct net_server_counters counters;
	uint64_t kept, lost[2];
	int rc;

	ask(staying, 1, "stay");
	kept = server_item(server, NET_REQUEST).token;
	ask(leaving, 1, "leave");
	lost[0] = server_item(server, NET_REQUEST).token;
	ask(leaving, 2, "leave");
	lost[1] = server_item(server, NET_REQUEST).token;
	net_client_free(leaving);
	item = server_item(server, NET_GONE);
	cr_assert(item.token == lost[0] || item.token == lost[1]);
	cr_assert_eq(net_server_reply(server, item.token, (const uint8_t *)"x", 1), -ESTALE);
	/* The other is answered before its notice is taken: no notice then, or a stale token. */
	item.token = item.token == lost[0] ? lost[1] : lost[0];
	rc = net_server_reply(server, item.token, (const uint8_t *)"x", 1);
	cr_assert(rc == 0 || rc == -ESTALE);
	while (net_server_next(server, &item))
		cr_assert_neq(item.token, kept);
	answer(server, kept, "yes");
	cr_assert_eq(client_item(staying, NET_REPLY).rc, 0);
	exchange(server, staying);
	counters = counters_with(server, 1);
	cr_assert_eq(counters.contexts_open, 0);
	cr_assert_eq(counters.connections, 1);
	net_client_free(staying);
	net_server_free(server);
}

Test(net, a_connection_ends__the_server_is_told_which, .timeout = 30)
{
	char url[NET_URL_BYTES];
	struct net_server *server = server_at("tcp://127.0.0.1:0", url);
	struct net_client *staying = client_of(url), *leaving = client_of(url);
	struct net_server_item item;
	uint32_t pipe;

	exchange(server, staying);
	ask(leaving, 1, "x");
	item = server_item(server, NET_REQUEST);
	pipe = item.peer.pipe;
	answer(server, item.token, "y");
	cr_assert_eq(client_item(leaving, NET_REPLY).rc, 0);
	net_client_free(leaving);
	cr_assert_eq(server_item(server, NET_CLOSED).peer.pipe, pipe);
	while (net_server_next(server, &item))
		cr_assert_neq(item.kind, NET_CLOSED);
	exchange(server, staying);
	net_client_free(staying);
	net_server_free(server);
}

/* Requests of a connection that has just ended may still come in: but only where they were sent. */
static struct net_server_item
request_of_server(struct net_server *server, char at, const char *text)
{
	struct net_server_item item;

	do {
		item = server_item(server, NET_REQUEST);
		cr_assert_eq(item.data[0], at, "asked at %c: %.*s", at, (int)item.bytes,
			(const char *)item.data);
	} while (
		item.bytes != 1 + strlen(text) || memcmp(item.data + 1, text, item.bytes - 1) != 0);
	return item;
}

Test(net, dial__another_server__ends_what_was_open, .timeout = 60)
{
	char url[2][NET_URL_BYTES];
	struct net_server *servers[2] = {
		server_at("tcp://127.0.0.1:0", url[0]), server_at("tcp://127.0.0.1:0", url[1])};
	struct net_client *client = client_of(url[0]);
	struct th_err err = {0};

	for (int round = 0; round < 50; round++) {
		int at = round & 1;
		char letter = at == 0 ? '0' : '1';
		struct net_server_item request;

		ask(client, 6, at == 0 ? "0first" : "1first");
		request = request_of_server(servers[at], letter, "first");
		answer(servers[at], request.token, "yes");
		cr_assert_eq(client_item(client, NET_REPLY).rc, 0);
		ask(client, 7, at == 0 ? "0held" : "1held");
		request_of_server(servers[at], letter, "held");
		ask(client, 8, at == 0 ? "0perhaps sent" : "1perhaps sent");
		cr_assert_eq(net_client_dial(client, url[1 - at], false, &err), 0);
		for (int i = 0; i < 2; i++) {
			int rc = client_item(client, NET_REPLY).rc;

			cr_assert_eq(rc, -ECANCELED, "rc %d", rc);
		}
		server_item(servers[at], NET_GONE);
	}
	net_client_free(client);
	net_server_free(servers[0]);
	net_server_free(servers[1]);
}

Test(net, messages__of_the_longest_length__pass_and_longer_do_not, .timeout = 30)
{
	char url[NET_URL_BYTES];
	struct net_server *server = server_at("tcp://127.0.0.1:0", url);
	struct net_client *client = client_of(url);
	uint8_t *data = calloc(1, NET_MESSAGE_BYTES_MAX + 1);
	struct net_server_item item;
	struct net_client_item reply;

	/* 4 of them are the request number of the protocol. */
	cr_assert_eq(net_client_send(client, 1, data, NET_MESSAGE_BYTES_MAX - 4, PATIENCE_NS), 0);
	item = server_item(server, NET_REQUEST);
	cr_assert_eq(item.bytes, NET_MESSAGE_BYTES_MAX - 4);
	cr_assert_eq(
		net_server_reply(server, item.token, data, NET_MESSAGE_BYTES_MAX + 1), -EMSGSIZE);
	cr_assert_eq(net_server_reply(server, item.token, data, NET_MESSAGE_BYTES_MAX - 4), 0);
	reply = client_item(client, NET_REPLY);
	cr_assert_eq(reply.rc, 0);
	cr_assert_eq(reply.bytes, NET_MESSAGE_BYTES_MAX - 4);
	cr_assert_eq(net_client_send(client, 2, data, NET_MESSAGE_BYTES_MAX + 1, PATIENCE_NS),
		-EMSGSIZE);
	free(data);
	net_client_free(client);
	net_server_free(server);
}

static int
stranger(const char *url)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	address.sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
	cr_assert_geq(fd, 0);
	cr_assert_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

/* The server hangs up: end of file or a reset, within the patience. */
static void
hung_up(int fd)
{
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	char buffer[256];

	for (;;) {
		cr_assert(readable(fd, until_ns), "the connection stays open");
		if (recv(fd, buffer, sizeof(buffer), 0) <= 0)
			break;
	}
	close(fd);
}

Test(net, strangers__do_not_hurt_the_others, .timeout = 60)
{
	static const uint8_t hello[] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
	static const uint8_t pair[] = {0, 'S', 'P', 0, 0, 0x10, 0, 0};
	static const uint8_t huge[] = {0, 0, 0, 0, 0x40, 0, 0, 0}; /* 1 GiB follows, it says */
	static const uint8_t largest[] = {255, 255, 255, 255, 255, 255, 255, 255};
	static const uint8_t no_number[] = {0, 0, 0, 0, 0, 0, 0, 2, 1, 2};
	char url[NET_URL_BYTES];
	struct net_server *server = server_at("tcp://127.0.0.1:0", url);
	struct net_client *client = client_of(url);
	uint8_t junk[4096];
	int fd, idle[64];

	for (size_t i = 0; i < sizeof(junk); i++)
		junk[i] = (uint8_t)(i * 7 + 1);
	exchange(server, client);
	for (size_t i = 0; i < TH_ARRAY_LEN(idle); i++)
		idle[i] = stranger(url); /* says nothing */
	for (int round = 0; round < 8; round++) {
		fd = stranger(url);
		cr_assert_gt(send(fd, junk, sizeof(junk), MSG_NOSIGNAL), 0);
		hung_up(fd);
		exchange(server, client);
		fd = stranger(url);
		send(fd, pair, sizeof(pair), MSG_NOSIGNAL);
		hung_up(fd);
		fd = stranger(url);
		send(fd, hello, sizeof(hello), MSG_NOSIGNAL);
		send(fd, huge, sizeof(huge), MSG_NOSIGNAL);
		hung_up(fd);
		exchange(server, client);
		fd = stranger(url);
		send(fd, hello, sizeof(hello), MSG_NOSIGNAL);
		send(fd, largest, sizeof(largest), MSG_NOSIGNAL);
		hung_up(fd);
		fd = stranger(url);
		send(fd, hello, sizeof(hello), MSG_NOSIGNAL);
		send(fd, no_number, sizeof(no_number), MSG_NOSIGNAL);
		hung_up(fd);
		exchange(server, client);
	}
	for (size_t i = 0; i < TH_ARRAY_LEN(idle); i++)
		close(idle[i]);
	exchange(server, client);
	net_client_free(client);
	net_server_free(server);
}

static int
local_socket(const char *path, struct sockaddr_un *ret_address)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	cr_assert_geq(fd, 0);
	*ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
	snprintf(ret_address->sun_path, sizeof(ret_address->sun_path), "%s", path);
	return fd;
}

/* nng writes its greeting into a connection whose other end has gone: EPIPE. */
Test(net, guests__that_leave_before_the_greeting__do_not_hurt_the_others, .timeout = 60)
{
	char path[64], url[NET_URL_BYTES];
	struct sockaddr_un address;
	struct net_server *server;
	struct net_client *client;

	snprintf(path, sizeof(path), "/tmp/th-net-guests-%d", (int)getpid());
	snprintf(url, sizeof(url), "ipc://%s", path);
	server = server_at(url, url);
	for (int round = 0; round < 1000; round++) {
		int fd = local_socket(path, &address);

		cr_assert_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
		close(fd);
	}
	client = client_of(url);
	exchange(server, client);
	net_client_free(client);
	net_server_free(server);
	unlink(path);
}

/* The same for who dials: a server that ends as soon as it has accepted is dialed again. */
Test(net, hosts__that_leave_before_the_greeting__are_dialed_again, .timeout = 60)
{
	char path[64], url[NET_URL_BYTES];
	struct sockaddr_un address;
	struct net_server *server;
	struct net_client *client;

	snprintf(path, sizeof(path), "/tmp/th-net-hosts-%d", (int)getpid());
	snprintf(url, sizeof(url), "ipc://%s", path);
	int listener = local_socket(path, &address);
	cr_assert_eq(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	cr_assert_eq(listen(listener, 1), 0);
	client = client_of(url);
	for (int round = 0; round < 4; round++) {
		cr_assert(readable(listener, th_now_ns() + PATIENCE_NS), "nobody dials");
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		cr_assert_geq(fd, 0);
		close(fd);
	}
	close(listener);
	unlink(path);
	server = server_at(url, url);
	exchange(server, client);
	net_client_free(client);
	net_server_free(server);
	unlink(path);
}

Test(net, many_clients__each_with_a_standing_question, .timeout = 60)
{
	enum { CLIENTS = 64, EACH = 16 };
	char url[NET_URL_BYTES];
	struct net_server *server = server_at("tcp://127.0.0.1:0", url);
	struct net_client *clients[CLIENTS];
	struct net_server_counters counters;
	static uint64_t tokens[CLIENTS * EACH];

	for (int i = 0; i < CLIENTS; i++) {
		clients[i] = client_of(url);
		for (uint64_t j = 0; j < EACH; j++)
			ask(clients[i], j, "poll");
	}
	for (int i = 0; i < CLIENTS * EACH; i++)
		tokens[i] = server_item(server, NET_REQUEST).token;
	counters = counters_with(server, CLIENTS);
	cr_assert_eq(counters.contexts_open, CLIENTS * EACH);
	cr_assert_eq(counters.connections, CLIENTS);
	for (int i = 0; i < CLIENTS * EACH; i++)
		answer(server, tokens[i], "event");
	for (int i = 0; i < CLIENTS * EACH; i++)
		cr_assert_eq(client_item(clients[i / EACH], NET_REPLY).rc, 0);
	for (int i = 0; i < CLIENTS; i++)
		net_client_free(clients[i]);
	net_server_free(server);
}

Test(net, quiet__after_the_last_answer_is_sent, .timeout = 30)
{
	char url[NET_URL_BYTES];
	struct net_server *server = server_at("tcp://127.0.0.1:0", url);
	struct net_client *client = client_of(url);
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	struct net_server_item item;

	ask(client, 1, "last");
	item = server_item(server, NET_REQUEST);
	answer(server, item.token, "bye");
	while (!net_server_quiet(server)) {
		cr_assert(readable(net_server_fd(server), until_ns));
		cr_assert_not(net_server_next(server, &item));
	}
	cr_assert_eq(client_item(client, NET_REPLY).rc, 0);
	net_client_free(client);
	net_server_free(server);
}

Test(net, client__too_many_open__is_a_limit, .timeout = 30)
{
	struct net_client_options options = {.outstanding_max = 2};
	char url[NET_URL_BYTES];
	struct net_server *server = server_at("tcp://127.0.0.1:0", url);
	struct net_client *client;
	struct th_err err = {0};

	cr_assert_eq(net_client_new(&options, &err, &client), 0);
	cr_assert_eq(net_client_dial(client, url, false, &err), 0);
	ask(client, 1, "a");
	ask(client, 2, "b");
	cr_assert_eq(net_client_send(client, 3, (const uint8_t *)"c", 1, MS), TH_E_LIMIT);
	answer(server, server_item(server, NET_REQUEST).token, "x");
	cr_assert_eq(client_item(client, NET_REPLY).rc, 0);
	ask(client, 3, "c");
	net_client_free(client);
	net_server_free(server);
}
