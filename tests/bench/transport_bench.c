/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_bench - how near a leg over loopback comes to a plain copy through sockets.
 *
 *   transport_bench [MiB] [rounds] [connections]
 *
 * Two processes each time, memory allocated after the fork (pages written after a fork are copied
 * on write, which would be what is measured). Raw: as many connections, 1 MiB blocks, blocking
 * sends and receives, a thread for each. The rounds of both alternate; prints medians and their
 * ratio.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "tests/support/transport_rig.h"

#define BLOCK (256u << 10)
#define ROUNDS_MAX 99

static uint64_t shard_bytes = UINT64_C(1) << 30;
static uint32_t rounds = 7;
static uint32_t connections = 2;

static void
say(int fd, const void *data, size_t bytes)
{
	ssize_t written = write(fd, data, bytes);
	TH_ASSERT(written == (ssize_t)bytes);
}

static void
hear(int fd, void *data, size_t bytes)
{
	ssize_t got = read(fd, data, bytes);
	TH_ASSERT(got == (ssize_t)bytes);
}

/* ---- raw ---------------------------------------------------------------------------------- */

struct pump {
	pthread_t thread;
	int fd;
	uint8_t *data;
	uint64_t bytes;
	bool sends;
};

static void *
pump_main(void *arg)
{
	struct pump *pump = arg;
	for (uint64_t at = 0; at < pump->bytes;) {
		size_t block = (size_t)th_min_u64(BLOCK, pump->bytes - at);
		ssize_t moved = pump->sends ? send(pump->fd, pump->data + at, block, MSG_NOSIGNAL)
					    : recv(pump->fd, pump->data + at, block, 0);
		TH_ASSERT(moved > 0);
		at += (uint64_t)moved;
	}
	return NULL;
}

static void
pump_all(const int *fds, uint8_t *data, bool sends)
{
	struct pump *pumps = th_calloc(connections, sizeof(pumps[0]));
	uint64_t each = shard_bytes / connections;
	for (uint32_t i = 0; i < connections; i++) {
		pumps[i] = (struct pump){
			.fd = fds[i], .data = data + i * each, .bytes = each, .sends = sends};
		int rc = pthread_create(&pumps[i].thread, NULL, pump_main, &pumps[i]);
		TH_ASSERT(rc == 0);
	}
	for (uint32_t i = 0; i < connections; i++)
		pthread_join(pumps[i].thread, NULL);
	free(pumps);
}

static uint8_t *
memory(void)
{
	uint8_t *data =
		mmap(NULL, shard_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	TH_ASSERT(data != MAP_FAILED);
	memset(data, 1, shard_bytes);
	return data;
}

static void
raw_source(int to_reader, int from_reader)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t bytes = sizeof(address);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	uint8_t *data = memory();
	int door = socket(AF_INET, SOCK_STREAM, 0);
	int rc = setsockopt(door, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
	(void)rc;
	rc = bind(door, (struct sockaddr *)&address, sizeof(address));
	TH_ASSERT(rc == 0);
	rc = listen(door, 64);
	TH_ASSERT(rc == 0);
	rc = getsockname(door, (struct sockaddr *)&address, &bytes);
	TH_ASSERT(rc == 0);
	int *fds = th_calloc(connections, sizeof(fds[0]));
	say(to_reader, &address, sizeof(address));
	for (uint32_t i = 0; i < connections; i++) {
		fds[i] = accept(door, NULL, NULL);
		TH_ASSERT(fds[i] >= 0);
	}
	for (;;) {
		char go;
		hear(from_reader, &go, 1);
		if (go == 'q')
			_exit(0);
		pump_all(fds, data, true);
	}
}

/* ---- transport ---------------------------------------------------------------------------- */

static void
leg_source(int to_reader, int from_reader)
{
	static struct rig rig;
	struct rig_shard shard;
	rig_shard_init(&shard, &shard_bytes, 1, 1);
	struct xfer_part *part = rig_part(&shard, true);
	rig_add_digests(part);
	xfer_part_advance(part, shard.table->num_chunks);
	struct rig_agent *agent = rig_add_agent(&rig, 0, connections);
	char address[128] = {0};
	snprintf(address, sizeof(address), "%s", transport_address(agent->transport));
	say(to_reader, address, sizeof(address));
	for (;;) {
		uint64_t leg;
		hear(from_reader, &leg, sizeof(leg));
		if (leg == 0)
			_exit(0);
		rig_offer(agent, leg, part);
		say(to_reader, &leg, sizeof(leg));
		rig_wait(&rig, agent, TRANSPORT_ENDED, leg);
	}
}

/* ---- both --------------------------------------------------------------------------------- */

struct source {
	pid_t pid;
	int to, from;
};

static struct source
start(void (*run)(int to_reader, int from_reader))
{
	int there[2], back[2];
	struct source source;
	TH_ASSERT(pipe(there) == 0 && pipe(back) == 0);
	source.pid = fork();
	TH_ASSERT(source.pid >= 0);
	if (source.pid == 0) {
		run(back[1], there[0]);
		_exit(0);
	}
	source.to = there[1];
	source.from = back[0];
	return source;
}

static double
raw_round(const struct source *source, const int *fds, uint8_t *data)
{
	int64_t start_ns = th_now_ns();
	say(source->to, "g", 1);
	pump_all(fds, data, false);
	return (double)shard_bytes / (double)(th_now_ns() - start_ns);
}

static double
leg_round(const struct source *source, struct rig *rig, struct rig_shard *shard,
	const char *address, uint64_t leg)
{
	struct rig_agent *agent = &rig->agents[0];
	struct xfer_part *part = rig_part(shard, true);
	struct th_ticket ticket = rig_ticket(leg);
	uint64_t echo;
	say(source->to, &leg, sizeof(leg));
	hear(source->from, &echo, sizeof(echo));
	int64_t start_ns = th_now_ns();
	int rc = transport_pull(agent->transport, leg, address, &ticket, part);
	TH_ASSERT(rc == 0);
	const struct transport_event *done = rig_wait(rig, agent, TRANSPORT_DONE, leg);
	double rate = (double)shard_bytes / (double)(th_now_ns() - start_ns);
	if (leg == 1)
		printf("digests take %.1f%% of a mover's time\n",
			100.0 * (double)done->verify_ns / (double)done->transfer_ns);
	xfer_part_release(part);
	return rate;
}

static int
compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

int
main(int argc, char **argv)
{
	static struct rig rig;
	struct rig_shard shard;
	struct sockaddr_in raw_address;
	char leg_address[128];
	double raw[ROUNDS_MAX], leg[ROUNDS_MAX];
	if (argc > 1)
		shard_bytes = strtoull(argv[1], NULL, 10) << 20;
	if (argc > 2)
		rounds = th_min_u32((uint32_t)strtoul(argv[2], NULL, 10), ROUNDS_MAX);
	if (argc > 3)
		connections = (uint32_t)strtoul(argv[3], NULL, 10);
	struct source raw_process = start(raw_source), leg_process = start(leg_source);

	hear(raw_process.from, &raw_address, sizeof(raw_address));
	int *fds = th_calloc(connections, sizeof(fds[0]));
	for (uint32_t i = 0; i < connections; i++) {
		fds[i] = socket(AF_INET, SOCK_STREAM, 0);
		int rc = setsockopt(fds[i], IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
		(void)rc;
		rc = connect(fds[i], (struct sockaddr *)&raw_address, sizeof(raw_address));
		TH_ASSERT(rc == 0);
	}
	rig_shard_init(&shard, &shard_bytes, 1, 2);
	rig_add_agent(&rig, 0, connections);
	hear(leg_process.from, leg_address, sizeof(leg_address));
	for (uint32_t i = 0; i < rounds; i++) {
		raw[i] = raw_round(&raw_process, fds, shard.tensors[0]);
		leg[i] = leg_round(&leg_process, &rig, &shard, leg_address, i + 1);
		printf("round %u: raw %.2f GB/s, leg %.2f GB/s\n", i + 1, raw[i], leg[i]);
	}
	uint64_t none = 0;
	say(raw_process.to, "q", 1);
	say(leg_process.to, &none, sizeof(none));
	waitpid(raw_process.pid, NULL, 0);
	waitpid(leg_process.pid, NULL, 0);
	qsort(raw, rounds, sizeof(raw[0]), compare);
	qsort(leg, rounds, sizeof(leg[0]), compare);
	printf("%u connections: raw %.2f GB/s, leg with digests %.2f GB/s, ratio %.2f\n",
		connections, raw[rounds / 2], leg[rounds / 2], leg[rounds / 2] / raw[rounds / 2]);
	rig_fini(&rig);
	rig_shard_fini(&shard);
	free(fds);
	return 0;
}
