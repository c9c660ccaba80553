/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_bench - how near a leg over loopback comes to a plain copy through sockets.
 *
 *   transport_bench [MiB] [rounds] [connections] [ways]
 *
 * Two processes each time, and the same memory for all: two memfds, mapped, as thc_alloc gives
 * them, written to beforehand and larger than the caches. Raw: as many connections, with the same
 * congestion control, blocks of 256 KiB, blocking calls, a thread for each. The ways alternate
 * within a round; prints for each the median rate, its ratio to raw send and to raw sendfile (the
 * medians of the ratios within a round), and the CPU seconds of both processes for a GiB, which
 * depend less on what else the machine does. ways: which, of sfuvw in the order that is printed;
 * for a profile of one.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "tests/support/transport_rig.h"
#include "transport/access.h"

#define BLOCK (256u << 10)
#define ROUNDS_MAX 99
#define GIB 1073741824.0

enum way { RAW_SEND, RAW_SENDFILE, LEG_OFF, LEG_SEND, LEG_SENDFILE, NUM_WAYS };

static const char *const way_names[NUM_WAYS] = {
	"raw send", "raw sendfile", "leg unverified", "leg send", "leg sendfile"};

static const char way_letters[] = "sfuvw";
static const char *ways = way_letters;
static uint64_t shard_bytes = UINT64_C(1) << 30;
static uint32_t rounds = 9;
static uint32_t connections = 2;
static int source_fd, reader_fd; /* the two memories */

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

/* ---- memory ------------------------------------------------------------------------------- */

static int
new_memory(uint8_t fill)
{
	int fd = memfd_create("bench", MFD_CLOEXEC);
	TH_ASSERT(fd >= 0 && ftruncate(fd, (off_t)shard_bytes) == 0);
	uint8_t *data = mmap(NULL, shard_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	TH_ASSERT(data != MAP_FAILED);
	for (uint64_t at = 0; at < shard_bytes; at += 4096)
		memset(data + at, (int)(fill + at / 4096), 4096);
	munmap(data, shard_bytes);
	return fd;
}

static uint8_t *
map(int fd)
{
	uint8_t *data =
		mmap(NULL, shard_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	TH_ASSERT(data != MAP_FAILED);
	return data;
}

/* ---- raw ---------------------------------------------------------------------------------- */

struct pump {
	pthread_t thread;
	int fd;
	uint8_t *data;
	uint64_t start, bytes;
	char what;
};

static ssize_t
move(const struct pump *pump, uint64_t at, size_t block)
{
	off_t offset = (off_t)at;
	if (pump->what == 'r')
		return recv(pump->fd, pump->data + at, block, 0);
	if (pump->what == 's')
		return send(pump->fd, pump->data + at, block, MSG_NOSIGNAL);
	return sendfile(pump->fd, source_fd, &offset, block);
}

static void *
pump_main(void *arg)
{
	struct pump *pump = arg;
	for (uint64_t at = 0; at < pump->bytes;) {
		size_t block = (size_t)th_min_u64(BLOCK, pump->bytes - at);
		ssize_t moved = move(pump, pump->start + at, block);
		TH_ASSERT(moved > 0);
		at += (uint64_t)moved;
	}
	return NULL;
}

static void
pump_all(const int *fds, uint8_t *data, char what)
{
	struct pump *pumps = th_calloc(connections, sizeof(pumps[0]));
	uint64_t each = shard_bytes / connections;
	for (uint32_t i = 0; i < connections; i++) {
		pumps[i] = (struct pump){
			.fd = fds[i], .data = data, .start = i * each, .bytes = each, .what = what};
		int rc = pthread_create(&pumps[i].thread, NULL, pump_main, &pumps[i]);
		TH_ASSERT(rc == 0);
	}
	for (uint32_t i = 0; i < connections; i++)
		pthread_join(pumps[i].thread, NULL);
	free(pumps);
}

static void
raw_source(int to_reader, int from_reader)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t bytes = sizeof(address);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	uint8_t *data = map(source_fd);
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
		pump_all(fds, data, go);
	}
}

/* ---- legs --------------------------------------------------------------------------------- */

/* One tensor that begins where the memory does. */
static struct xfer_part *
new_part(uint8_t *data, struct access *file, bool verify)
{
	struct manifest_row row = {
		.name = "t", .dtype = 1, .ndim = 1, .local_shape = {shard_bytes}};
	struct manifest manifest;
	struct th_err err;
	int rc = manifest_build(&row, 1, NULL, NULL, &err, &manifest);
	TH_ASSERT(rc == 0);
	struct chunk_table *table = chunk_table_new(&manifest);
	struct xfer_place place = {.data = data, .access = file};
	struct xfer_part *part = xfer_part_new_places(table, &place, 1, verify, NULL, NULL);
	TH_ASSERT(part);
	chunk_table_release(table);
	manifest_free(&manifest);
	return part;
}

struct order { /* to the source of legs */
	uint64_t leg;
	enum way way;
};

static void
leg_source(int to_reader, int from_reader)
{
	static struct rig rig = {.sendfile = TRANSPORT_SENDFILE_YES};
	uint8_t *data = map(source_fd);
	struct access *file = access_new(source_fd, ACCESS_FILE, NULL);
	struct xfer_part *parts[NUM_WAYS] = {[LEG_OFF] = new_part(data, NULL, false),
		[LEG_SEND] = new_part(data, NULL, true),
		[LEG_SENDFILE] = new_part(data, file, true)};
	for (uint32_t i = LEG_OFF; i < NUM_WAYS; i++) {
		if (i != LEG_OFF)
			rig_add_digests(parts[i]);
		xfer_part_advance(parts[i], xfer_part_table(parts[i])->num_chunks);
	}
	struct rig_agent *agent = rig_add_agent(&rig, 0, connections);
	char address[128] = {0};
	snprintf(address, sizeof(address), "%s", transport_address(agent->transport));
	say(to_reader, address, sizeof(address));
	for (;;) {
		struct order order;
		hear(from_reader, &order, sizeof(order));
		if (order.leg == 0)
			_exit(0);
		rig_offer(agent, order.leg, parts[order.way]);
		say(to_reader, &order.leg, sizeof(order.leg));
		const struct transport_event *ended =
			rig_wait(&rig, agent, TRANSPORT_ENDED, order.leg);
		bool by_file = strcmp(ended->transport, "tcp sendfile") == 0;
		TH_ASSERT(by_file == (order.way == LEG_SENDFILE));
	}
}

/* ---- both --------------------------------------------------------------------------------- */

struct source {
	pid_t pid;
	int to, from;
};

struct bench {
	struct source raw, legs;
	int *fds; /* of raw */
	struct rig rig;
	char address[128];
	uint8_t *data;
	uint64_t leg;
	double rate[NUM_WAYS][ROUNDS_MAX], cpu[NUM_WAYS][ROUNDS_MAX];
	double verify; /* share of a leg's time */
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

/* CPU seconds of this process and of the source. */
static double
cpu_seconds(const struct source *source)
{
	struct timespec mine, its;
	clockid_t clock;
	int rc = clock_getcpuclockid(source->pid, &clock);
	TH_ASSERT(rc == 0);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &mine);
	clock_gettime(clock, &its);
	return (double)(mine.tv_sec + its.tv_sec) + (double)(mine.tv_nsec + its.tv_nsec) / 1e9;
}

static void
run_leg(struct bench *bench, enum way way)
{
	struct rig_agent *agent = &bench->rig.agents[0];
	struct xfer_part *part = new_part(bench->data, NULL, way != LEG_OFF);
	struct order order = {++bench->leg, way};
	struct th_ticket ticket = rig_ticket(order.leg);
	uint64_t echo;
	say(bench->legs.to, &order, sizeof(order));
	hear(bench->legs.from, &echo, sizeof(echo));
	int rc = transport_pull(agent->transport, order.leg, bench->address, &ticket, part);
	TH_ASSERT(rc == 0);
	const struct transport_event *done =
		rig_wait(&bench->rig, agent, TRANSPORT_DONE, order.leg);
	if (way != LEG_OFF)
		bench->verify = (double)done->verify_ns / (double)done->transfer_ns;
	agent->num_events = 0;
	xfer_part_release(part);
}

static void
run_way(struct bench *bench, enum way way, uint32_t round)
{
	const struct source *source = way < LEG_OFF ? &bench->raw : &bench->legs;
	/* What an earlier way left to do is not this one's. */
	struct timespec pause = {.tv_nsec = 20000000};
	nanosleep(&pause, NULL);
	double cpu = cpu_seconds(source);
	int64_t start_ns = th_now_ns();
	if (way < LEG_OFF) {
		say(source->to, way == RAW_SEND ? "s" : "f", 1);
		pump_all(bench->fds, bench->data, 'r');
	} else {
		run_leg(bench, way);
	}
	bench->rate[way][round] = (double)shard_bytes / (double)(th_now_ns() - start_ns);
	bench->cpu[way][round] = (cpu_seconds(source) - cpu) * GIB / (double)shard_bytes;
}

static int
compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static bool
wanted(enum way way)
{
	return strchr(ways, way_letters[way]) != NULL;
}

static double
median(const double *values)
{
	double sorted[ROUNDS_MAX];
	memcpy(sorted, values, rounds * sizeof(sorted[0]));
	qsort(sorted, rounds, sizeof(sorted[0]), compare);
	return sorted[rounds / 2];
}

static double
median_ratio(const double *values, const double *to)
{
	double ratios[ROUNDS_MAX];
	for (uint32_t i = 0; i < rounds; i++)
		ratios[i] = values[i] / to[i];
	return median(ratios);
}

static void
connect_raw(struct bench *bench)
{
	struct sockaddr_in address;
	hear(bench->raw.from, &address, sizeof(address));
	bench->fds = th_calloc(connections, sizeof(bench->fds[0]));
	for (uint32_t i = 0; i < connections; i++) {
		bench->fds[i] = socket(AF_INET, SOCK_STREAM, 0);
		int rc = setsockopt(bench->fds[i], IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
		(void)rc;
		rc = connect(bench->fds[i], (struct sockaddr *)&address, sizeof(address));
		TH_ASSERT(rc == 0);
	}
}

int
main(int argc, char **argv)
{
	static struct bench bench;
	if (argc > 1)
		shard_bytes = strtoull(argv[1], NULL, 10) << 20;
	if (argc > 2)
		rounds = th_min_u32((uint32_t)strtoul(argv[2], NULL, 10), ROUNDS_MAX);
	if (argc > 3)
		connections = (uint32_t)strtoul(argv[3], NULL, 10);
	if (argc > 4)
		ways = argv[4];
	if (shard_bytes == 0 || rounds == 0 || connections == 0) {
		fprintf(stderr, "usage: transport_bench [MiB] [rounds] [connections] [ways]\n");
		return 2;
	}
	source_fd = new_memory(1);
	reader_fd = new_memory(2);
	bench.raw = start(raw_source);
	bench.legs = start(leg_source);
	bench.data = map(reader_fd);
	rig_add_agent(&bench.rig, 0, connections);
	connect_raw(&bench);
	hear(bench.legs.from, bench.address, sizeof(bench.address));

	for (uint32_t way = 0; way < NUM_WAYS; way++) {
		if (wanted(way))
			run_way(&bench, way, 0); /* warm: windows, page tables, threads */
	}
	for (uint32_t i = 0; i < rounds; i++) {
		for (uint32_t way = 0; way < NUM_WAYS; way++) {
			if (wanted((way + i) % NUM_WAYS))
				run_way(&bench, (way + i) % NUM_WAYS, i);
		}
	}
	struct order none = {0};
	say(bench.raw.to, "q", 1);
	say(bench.legs.to, &none, sizeof(none));
	waitpid(bench.raw.pid, NULL, 0);
	waitpid(bench.legs.pid, NULL, 0);

	printf("%u connections, %llu MiB, %u rounds; digests take %.1f%% of a leg's time\n",
		connections, (unsigned long long)(shard_bytes >> 20), rounds, 100 * bench.verify);
	printf("%-16s %8s %14s %18s %10s\n", "", "GB/s", "of raw send", "of raw sendfile",
		"CPU s/GiB");
	for (uint32_t way = 0; way < NUM_WAYS; way++) {
		if (!wanted(way))
			continue;
		printf("%-16s %8.2f %14.2f %18.2f %10.3f\n", way_names[way],
			median(bench.rate[way]),
			median_ratio(bench.rate[way], bench.rate[RAW_SEND]),
			median_ratio(bench.rate[way], bench.rate[RAW_SENDFILE]),
			median(bench.cpu[way]));
	}
	rig_fini(&bench.rig);
	munmap(bench.data, shard_bytes);
	free(bench.fds);
	return 0;
}
