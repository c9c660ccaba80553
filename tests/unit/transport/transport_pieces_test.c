/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport over connections that give and take bytes in pieces of any size: a relay of
 * the test stands between reader and source and passes on a few bytes at a time.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/rng.h"
#include "tests/support/transport/transport_peer.h"

#define CALM_NS INT64_C(30000000000)
#define PAIRS_MAX 16

/* Smaller than a header, than a leaf, than a block, and more than one of each. */
static const size_t pieces[] = {1, 7, 33, 4097, 65535, 65537, 300001};

/*
 * ---- relay ------------------------------------------------------------------------------------
 */

struct relay {
	pthread_t thread;
	int door, stop[2]; /* stop: a pipe */
	struct rig_agent *source;
	struct th_rng rng;
	int fds[2 * PAIRS_MAX]; /* 2i: from the reader, 2i + 1: to the source */
	int count;
};

static void
no_delay(int fd)
{
	int one = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static void
take_in(struct relay *relay)
{
	int fd = accept(relay->door, NULL, NULL);
	cr_assert(fd >= 0 && relay->count < 2 * PAIRS_MAX);
	no_delay(fd);
	relay->fds[relay->count++] = fd;
	relay->fds[relay->count++] = peer_dial(relay->source);
	no_delay(relay->fds[relay->count - 1]);
}

/* One piece. An end is passed on too. */
static void
pass_on(struct relay *relay, int from)
{
	static uint8_t data[300001];
	size_t most = pieces[th_rng_u64(&relay->rng) % TH_ARRAY_LEN(pieces)];
	ssize_t got = recv(relay->fds[from], data, most, MSG_DONTWAIT);
	if (got > 0)
		peer_put(abs(relay->fds[from ^ 1]), data, (size_t)got);
	else
		shutdown(abs(relay->fds[from ^ 1]), SHUT_WR);
	if (got <= 0) {
		shutdown(relay->fds[from], SHUT_RD);
		relay->fds[from] = -relay->fds[from]; /* no longer looked at */
	}
}

static void *
relay_main(void *arg)
{
	struct relay *relay = arg;
	for (;;) {
		struct pollfd fds[2 + 2 * PAIRS_MAX] = {{.fd = relay->stop[0], .events = POLLIN},
			{.fd = relay->door, .events = POLLIN}};
		int count = relay->count;
		for (int i = 0; i < count; i++)
			fds[2 + i] = (struct pollfd){.fd = relay->fds[i], .events = POLLIN};
		poll(fds, (nfds_t)(2 + count), -1);
		if (fds[0].revents)
			return NULL;
		for (int i = 0; i < count; i++) {
			if (fds[2 + i].revents && relay->fds[i] > 0)
				pass_on(relay, i);
		}
		if (fds[1].revents)
			take_in(relay);
	}
}

/* name: where the reader is to go. */
static struct relay *
relay_start(struct rig_agent *source, char name[32])
{
	struct relay *relay = calloc(1, sizeof(*relay));
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t bytes = sizeof(address);
	relay->source = source;
	th_rng_init_number(&relay->rng, 11);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	relay->door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(bind(relay->door, (struct sockaddr *)&address, sizeof(address)), 0);
	cr_assert_eq(listen(relay->door, 8), 0);
	getsockname(relay->door, (struct sockaddr *)&address, &bytes);
	snprintf(name, 32, "127.0.0.1:%u", ntohs(address.sin_port));
	cr_assert_eq(pipe(relay->stop), 0);
	cr_assert_eq(pthread_create(&relay->thread, NULL, relay_main, relay), 0);
	return relay;
}

static void
relay_stop(struct relay *relay)
{
	cr_assert_eq(write(relay->stop[1], "", 1), 1);
	pthread_join(relay->thread, NULL);
	for (int i = 0; i < relay->count; i++)
		close(abs(relay->fds[i]));
	close(relay->door);
	close(relay->stop[0]);
	close(relay->stop[1]);
	free(relay);
}

/*
 * ---- tests ------------------------------------------------------------------------------------
 */

static void
arrives_in_pieces(bool verify, bool with_files)
{
	static const uint64_t sizes[] = {1, 70000, 2 * MIB - 1, 2 * MIB, 4 * MIB + 1, 65536, 65537};
	struct rig *rig = calloc(1, sizeof(*rig));
	struct rig_shard from_shard, to_shard;
	char name[32];
	rig_with_files = with_files;
	struct rig_agent *source = rig_add_agent(rig, CALM_NS, 0);
	struct rig_agent *reader = rig_add_agent(rig, CALM_NS, 3);
	rig_shard_init(&from_shard, sizes, TH_ARRAY_LEN(sizes), 42);
	rig_shard_init(&to_shard, sizes, TH_ARRAY_LEN(sizes), 0);
	struct xfer_part *from = rig_part(&from_shard, verify), *to = rig_part(&to_shard, verify);
	if (verify)
		rig_add_digests(from);
	xfer_part_advance(from, from_shard.table->num_chunks);
	struct relay *relay = relay_start(source, name);
	struct th_ticket ticket = rig_ticket(1);
	rig_offer(source, 1, from);
	cr_assert_eq(transport_pull(reader->transport, 1, name, &ticket, to, NULL, 0), 0);
	rig_wait(rig, reader, TRANSPORT_DONE, 1);
	cr_assert(rig_shards_equal(&from_shard, &to_shard));
	cr_assert_eq(rig_counters(reader).checksum_failures, 0);
	cr_assert_eq(rig_wait(rig, source, TRANSPORT_ENDED, 1)->code, 0);
	cr_assert_eq(rig_counters(source).bytes_out_file > 0, verify && with_files);
	rig_fini(rig);
	relay_stop(relay);
	xfer_part_release(from);
	xfer_part_release(to);
	rig_shard_fini(&from_shard);
	rig_shard_fini(&to_shard);
	free(rig);
}

Test(transport_pieces, verified__arrives)
{
	arrives_in_pieces(true, false);
}

Test(transport_pieces, by_sendfile__arrives)
{
	arrives_in_pieces(true, true);
}

Test(transport_pieces, without_verify__arrives)
{
	arrives_in_pieces(false, false);
}

/* Some receive into blocks then, and the others in place. */
Test(transport_pieces, more_connections_than_blocks__all_arrive)
{
	enum { LEGS = 24 };
	static const uint64_t sizes[] = {9 * MIB, 100, 2 * MIB + 1};
	struct rig *rig = calloc(1, sizeof(*rig));
	struct rig_shard from_shard, shards[LEGS];
	struct xfer_part *parts[LEGS];
	struct rig_agent *source = rig_add_agent(rig, CALM_NS, 0);
	struct rig_agent *reader = rig_add_agent(rig, CALM_NS, 4);
	rig_shard_init(&from_shard, sizes, 3, 42);
	struct xfer_part *from = rig_part(&from_shard, true);
	rig_add_digests(from);
	/* All wait for the last chunk, so that all are there at once. */
	xfer_part_advance(from, from_shard.table->num_chunks - 1);
	for (uint32_t i = 0; i < LEGS; i++) {
		rig_shard_init(&shards[i], sizes, 3, 0);
		parts[i] = rig_part(&shards[i], true);
		rig_pull(source, reader, 1 + i, from, parts[i]);
	}
	for (uint32_t i = 0; i < LEGS; i++)
		rig_wait_prefix(rig, parts[i], from_shard.table->num_chunks - 1);
	xfer_part_advance(from, from_shard.table->num_chunks);
	for (uint32_t i = 0; i < LEGS; i++) {
		rig_wait(rig, reader, TRANSPORT_DONE, 1 + i);
		cr_assert(rig_shards_equal(&from_shard, &shards[i]));
	}
	rig_fini(rig);
	for (uint32_t i = 0; i < LEGS; i++) {
		xfer_part_release(parts[i]);
		rig_shard_fini(&shards[i]);
	}
	xfer_part_release(from);
	rig_shard_fini(&from_shard);
	free(rig);
}
