/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_lost_test - a connection that is given up in the middle of a message is freed, whichever part
 * of it was being taken in. nng's callbacks are held, so that the order is always the same.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <nng/nng.h>
#include <nng/supplemental/util/platform.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/net/net.h"

#define MS INT64_C(1000000)
#define PATIENCE_NS (20000 * MS) /* far more than anything here needs */
#define HELD_MAX 1024

/* As in net_test.c. */
const char *__lsan_default_suppressions(void) __attribute__((visibility("default")));

const char *
__lsan_default_suppressions(void)
{
	return getenv("BXFI_MAP") == NULL ? "leak:libcriterion.so\n" : "leak:libnng.so\n";
}

static const uint8_t greeting[] = {0, 'S', 'P', 0, 0, 0x31, 0, 0}; /* of a REP socket */

/* ---- threads of nng that are held ----------------------------------------------------------- */

static nng_mtx *mutex;
static nng_cv *changed;
static bool released;
static uint32_t held;

static void
hold(void *unused)
{
	(void)unused;
	nng_mtx_lock(mutex);
	held++;
	nng_cv_wake(changed);
	while (!released)
		nng_cv_wait(changed);
	nng_mtx_unlock(mutex);
}

/* How many threads run callbacks. */
static uint32_t
runners(void)
{
	DIR *folder = opendir("/proc/self/task");
	struct dirent *entry;
	char path[300], name[32];
	uint32_t count = 0;

	cr_assert_not_null(folder);
	while ((entry = readdir(folder)) != NULL) {
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		file = fopen(path, "r");
		if (file == NULL)
			continue;
		if (fgets(name, sizeof(name), file) != NULL)
			count += strcmp(name, "nng:task\n") == 0;
		fclose(file);
	}
	closedir(folder);
	return count;
}

/* Until release() no callback of nng begins. */
static uint32_t
hold_runners(nng_aio *aios[HELD_MAX])
{
	uint32_t count = runners();

	cr_assert(count >= 1 && count <= HELD_MAX, "%u threads", count);
	held = 0;
	released = false;
	cr_assert_eq(nng_mtx_alloc(&mutex), 0);
	cr_assert_eq(nng_cv_alloc(&changed, mutex), 0);
	for (uint32_t i = 0; i < count; i++) {
		cr_assert_eq(nng_aio_alloc(&aios[i], hold, NULL), 0);
		nng_sleep_aio(0, aios[i]);
	}
	nng_mtx_lock(mutex);
	while (held < count)
		cr_assert_eq(nng_cv_until(changed, nng_clock() + 20000), 0, "they do not begin");
	nng_mtx_unlock(mutex);
	return count;
}

static void
release(nng_aio *aios[HELD_MAX], uint32_t count)
{
	nng_mtx_lock(mutex);
	released = true;
	nng_cv_wake(changed);
	nng_mtx_unlock(mutex);
	for (uint32_t i = 0; i < count; i++)
		nng_aio_free(aios[i]);
	nng_cv_free(changed);
	nng_mtx_free(mutex);
}

/* ---- a server that is not ours -------------------------------------------------------------- */

static int
listening(char ret_url[NET_URL_BYTES])
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(address);

	cr_assert_eq(bind(fd, (struct sockaddr *)&address, bytes), 0);
	cr_assert_eq(listen(fd, 16), 0);
	cr_assert_eq(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
	snprintf(ret_url, NET_URL_BYTES, "tcp://127.0.0.1:%u", ntohs(address.sin_port));
	return fd;
}

static void
exactly(int fd, uint8_t *data, size_t bytes)
{
	while (bytes > 0) {
		struct pollfd pfd = {.fd = fd, .events = POLLIN};
		ssize_t got;

		cr_assert_eq(poll(&pfd, 1, (int)(PATIENCE_NS / MS)), 1, "nothing comes");
		got = recv(fd, data, bytes, 0);
		cr_assert_gt(got, 0);
		data += got;
		bytes -= (size_t)got;
	}
}

/* Somebody has dialed: his greeting is taken and answered. */
static int
guest(int listener)
{
	struct pollfd pfd = {.fd = listener, .events = POLLIN};
	uint8_t theirs[8];
	int fd;

	cr_assert_eq(poll(&pfd, 1, (int)(PATIENCE_NS / MS)), 1, "nobody dials");
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	cr_assert_geq(fd, 0);
	exactly(fd, theirs, sizeof(theirs));
	cr_assert_eq(send(fd, greeting, sizeof(greeting), MSG_NOSIGNAL), 8);
	return fd;
}

/* The other end, in this process too; -1: it has been closed. */
static int
other_end(const struct sockaddr_in *here, const struct sockaddr_in *there)
{
	for (int fd = 3; fd < 4096; fd++) {
		struct sockaddr_in local = {0}, peer = {0};
		socklen_t local_bytes = sizeof(local), peer_bytes = sizeof(peer);

		if (getsockname(fd, (struct sockaddr *)&local, &local_bytes) == 0 &&
			local.sin_family == AF_INET && local.sin_port == there->sin_port &&
			(getpeername(fd, (struct sockaddr *)&peer, &peer_bytes) != 0 ||
				peer.sin_port == here->sin_port))
			return fd;
	}
	return -1;
}

/* A part of an answer, and nng has read it. */
static void
send_part(int fd, int other, const uint8_t *data, size_t bytes)
{
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	int out = 1, in = 1;

	cr_assert_eq(send(fd, data, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
	while (out != 0 || in != 0) {
		cr_assert_lt(th_now_ns(), until_ns, "it is not read");
		cr_assert_eq(ioctl(fd, TIOCOUTQ, &out), 0);
		cr_assert_eq(ioctl(other, FIONREAD, &in), 0);
		usleep(1000);
	}
}

static struct net_client_item
next_item(struct net_client *client)
{
	struct pollfd pfd = {.fd = net_client_fd(client), .events = POLLIN};
	struct net_client_item item;

	while (!net_client_next(client, &item))
		cr_assert_eq(poll(&pfd, 1, (int)(PATIENCE_NS / MS)), 1, "nothing comes");
	return item;
}

struct again {
	struct net_client *client;
	const char *url;
};

static void *
dial_again(void *argument)
{
	const struct again *again = argument;
	struct th_err err = {0};

	cr_assert_eq(net_client_dial(again->client, again->url, false, &err), 0, "%s", err.text);
	return NULL;
}

/* Of one that is answered now, with the number that it came with. */
static void
question_and_answer(struct net_client *client, int fd)
{
	uint8_t request[8 + 4 + 4], answer[8 + 4 + 4] = {[7] = 8};
	struct net_client_item item;

	cr_assert_eq(net_client_send(client, 2, (const uint8_t *)"what", 4, PATIENCE_NS), 0);
	exactly(fd, request, sizeof(request));
	memcpy(answer + 8, request + 8, 8);
	cr_assert_eq(send(fd, answer, sizeof(answer), MSG_NOSIGNAL), sizeof(answer));
	do {
		item = next_item(client);
	} while (item.kind != NET_REPLY);
	cr_assert_eq(item.rc, 0);
}

/*
 * The client dials anew when the first bytes of an answer have been read and are not looked at
 * yet: the rest is never asked for. The old connection is to go all the same.
 */
static void
given_up_after(size_t bytes)
{
	uint8_t request[8 + 4 + 4], answer[8 + 4 + 4] = {[7] = 8};
	struct sockaddr_in here, there;
	socklen_t here_bytes = sizeof(here), there_bytes = sizeof(there);
	static nng_aio *aios[HELD_MAX];
	int64_t until_ns;
	char url[NET_URL_BYTES];
	int listener = listening(url), fd, again, other;
	struct net_client *client;
	struct th_err err = {0};
	uint32_t count;

	cr_assert_eq(net_client_new(NULL, &err, &client), 0, "%s", err.text);
	cr_assert_eq(net_client_dial(client, url, false, &err), 0, "%s", err.text);
	cr_assert_eq(net_client_send(client, 1, (const uint8_t *)"what", 4, PATIENCE_NS), 0);
	fd = guest(listener);
	exactly(fd, request, sizeof(request));
	cr_assert_eq(next_item(client).kind, NET_UP);
	cr_assert_eq(getsockname(fd, (struct sockaddr *)&here, &here_bytes), 0);
	cr_assert_eq(getpeername(fd, (struct sockaddr *)&there, &there_bytes), 0);
	other = other_end(&here, &there);
	cr_assert_geq(other, 0);

	count = hold_runners(aios);
	send_part(fd, other, answer, bytes);
	cr_assert_eq(net_client_dial(client, url, false, &err), 0, "%s", err.text);
	release(aios, count);

	cr_assert_eq(next_item(client).rc, -ECANCELED);
	until_ns = th_now_ns() + PATIENCE_NS;
	while (other_end(&here, &there) >= 0) {
		cr_assert_lt(th_now_ns(), until_ns, "the connection is not freed");
		usleep(1000);
	}
	/* The new one serves. */
	again = guest(listener);
	question_and_answer(client, again);
	net_client_free(client);
	close(fd);
	close(again);
	close(listener);
}

Test(net_lost, given_up__in_the_length_of_an_answer__is_freed, .timeout = 60)
{
	given_up_after(3);
}

Test(net_lost, given_up__before_the_text_of_an_answer__is_freed, .timeout = 60)
{
	given_up_after(8);
}

/*
 * The client dials anew when the greeting has been read and is not looked at yet: that connection
 * is the one that it then has.
 */
Test(net_lost, dialed_again__while_greeted__is_the_same_connection, .timeout = 60)
{
	struct sockaddr_in here, there;
	socklen_t here_bytes = sizeof(here), there_bytes = sizeof(there);
	static nng_aio *aios[HELD_MAX];
	uint8_t theirs[8];
	char url[NET_URL_BYTES];
	int listener = listening(url), fd, other;
	struct again again = {.url = url};
	struct th_err err = {0};
	pthread_t thread;
	uint32_t count;

	cr_assert_eq(net_client_new(NULL, &err, &again.client), 0, "%s", err.text);
	cr_assert_eq(net_client_dial(again.client, url, false, &err), 0, "%s", err.text);
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	cr_assert_geq(fd, 0);
	exactly(fd, theirs, sizeof(theirs));
	cr_assert_eq(getsockname(fd, (struct sockaddr *)&here, &here_bytes), 0);
	cr_assert_eq(getpeername(fd, (struct sockaddr *)&there, &there_bytes), 0);
	other = other_end(&here, &there);
	cr_assert_geq(other, 0);

	/*
	 * It is read only when the callback of the greeting that was sent has asked for it. Who has
	 * sent that one has ended when all are held once, and its callback when they are again.
	 */
	release(aios, hold_runners(aios));
	count = hold_runners(aios);
	send_part(fd, other, greeting, sizeof(greeting));
	cr_assert_eq(pthread_create(&thread, NULL, dial_again, &again), 0);
	usleep(50000); /* a dialer that is closed would begin that before the release */
	release(aios, count);
	pthread_join(thread, NULL);

	question_and_answer(again.client, fd);
	net_client_free(again.client);
	close(fd);
	close(listener);
}

/* The client turns to another server: the first one has said nothing, or half of a greeting. */
static void
dialed_elsewhere_after(size_t bytes)
{
	struct sockaddr_in here, there;
	socklen_t here_bytes = sizeof(here), there_bytes = sizeof(there);
	uint8_t theirs[8];
	char silent_url[NET_URL_BYTES], url[NET_URL_BYTES];
	int silent = listening(silent_url), listener = listening(url), fd, other, again;
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	struct net_client *client;
	struct th_err err = {0};

	cr_assert_eq(net_client_new(NULL, &err, &client), 0, "%s", err.text);
	cr_assert_eq(net_client_dial(client, silent_url, false, &err), 0, "%s", err.text);
	fd = accept4(silent, NULL, NULL, SOCK_CLOEXEC);
	cr_assert_geq(fd, 0);
	exactly(fd, theirs, sizeof(theirs));
	cr_assert_eq(getsockname(fd, (struct sockaddr *)&here, &here_bytes), 0);
	cr_assert_eq(getpeername(fd, (struct sockaddr *)&there, &there_bytes), 0);
	other = other_end(&here, &there);
	cr_assert_geq(other, 0);
	if (bytes > 0)
		send_part(fd, other, greeting, bytes);

	cr_assert_eq(net_client_dial(client, url, false, &err), 0, "%s", err.text);
	again = guest(listener);
	question_and_answer(client, again);
	while (other_end(&here, &there) >= 0) {
		cr_assert_lt(th_now_ns(), until_ns, "the connection is not freed");
		usleep(1000);
	}
	net_client_free(client);
	close(fd);
	close(again);
	close(silent);
	close(listener);
}

Test(net_lost, dialed_elsewhere__before_the_greeting__keeps_no_descriptor, .timeout = 60)
{
	dialed_elsewhere_after(0);
}

Test(net_lost, dialed_elsewhere__in_the_greeting__keeps_no_descriptor, .timeout = 60)
{
	dialed_elsewhere_after(3);
}
