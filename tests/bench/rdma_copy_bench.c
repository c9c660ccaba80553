/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma_copy_bench - what it costs that memory is not registered: whole legs by RDMA of memory that
 * is, by RDMA through buffers (rdma-copy) of memory that is private to its process at one end or at
 * both, and the same by TCP.
 *
 *   rdma_copy_bench [MiB] [rounds]
 *
 * One process has all agents, and its devices READ by memcpy on the thread that asks: one copy,
 * where a real device needs none. So the figures are good as ratios only. The rounds of all kinds
 * alternate; prints medians, the ratio to registered memory and to TCP of private memory, and what
 * a GiB takes of processors.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "tests/support/transport/transport_rig.h"

#define ROUNDS_MAX 99
#define STALL_NS INT64_C(15000000000) /* a busy machine is no stall */

static const struct {
	const char *name, *transport;
	bool rdma, from_private, to_private;
} kinds[] = {{"rdma", "rdma", true, false, false},
	{"rdma-copy, source copies", "rdma-copy", true, true, false},
	{"rdma-copy, reader copies", "rdma-copy", true, false, true},
	{"rdma-copy, both copy", "rdma-copy", true, true, true},
	{"tcp, mapped", "tcp", false, false, false}, {"tcp, private", "tcp", false, true, true}};
#define KINDS TH_ARRAY_LEN(kinds)
#define TCP_PRIVATE (KINDS - 1)

struct bench {
	struct rig rig;
	struct rig_agent *sources[2], *readers[2]; /* without and with rails */
	struct rig_shard from[2], to[2];           /* registered, and private */
	uint64_t leg;
};

static int
compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static double
processors_s(void)
{
	struct rusage use;
	int rc = getrusage(RUSAGE_SELF, &use);
	TH_ASSERT(rc == 0);
	return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
	       (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
}

static void
publish(struct rig_shard *shard, struct xfer_part *part)
{
	struct xfer_part *plain = rig_part_of(shard, RIG_MAPPED, true);
	rig_add_digests(plain);
	xfer_part_add_digests(part, 0, xfer_part_digest(plain, 0), shard->table->num_chunks);
	xfer_part_advance(part, shard->table->num_chunks);
	xfer_part_release(plain);
}

/* GB/s, and what it took of processors. */
static double
run(struct bench *bench, uint32_t kind, double *ret_processors_s)
{
	struct rig_shard *from = &bench->from[kinds[kind].from_private];
	struct rig_shard *to = &bench->to[kinds[kind].to_private];
	struct rig_agent *reader = bench->readers[kinds[kind].rdma];
	struct xfer_part *source =
		rig_part_of(from, kinds[kind].from_private ? RIG_PROCESS : RIG_MAPPED, true);
	struct xfer_part *part =
		rig_part_of(to, kinds[kind].to_private ? RIG_PROCESS : RIG_MAPPED, true);
	publish(from, source);
	memset(to->memory, 0, to->bytes);
	double before_s = processors_s();
	int64_t begin_ns = th_now_ns();
	bench->leg++;
	rig_pull(bench->sources[kinds[kind].rdma], reader, bench->leg, source, part);
	const struct transport_event *done =
		rig_wait(&bench->rig, reader, TRANSPORT_DONE, bench->leg);
	int64_t ns = th_now_ns() - begin_ns;
	*ret_processors_s = processors_s() - before_s;
	if (strcmp(done->transport, kinds[kind].transport) != 0) {
		fprintf(stderr, "%s went by %s: %s\n", kinds[kind].name, done->transport,
			done->fallback);
		exit(1);
	}
	TH_ASSERT(rig_shards_equal(from, to));
	rig_wait(&bench->rig, bench->sources[kinds[kind].rdma], TRANSPORT_ENDED, bench->leg);
	for (uint32_t i = 0; i < 2; i++)
		bench->sources[i]->num_events = bench->readers[i]->num_events = 0;
	xfer_part_release(source);
	xfer_part_release(part);
	return (double)from->table->bytes / (double)ns;
}

static void
open_bench(struct bench *bench, uint64_t bytes)
{
	for (uint32_t i = 0; i < 2; i++) {
		bench->rig.num_rails = i;
		bench->sources[i] = rig_add_agent(&bench->rig, STALL_NS, 0);
		bench->readers[i] = rig_add_agent(&bench->rig, STALL_NS, 0);
		rig_shard_init(&bench->from[i], &bytes, 1, 1);
		rig_shard_init(&bench->to[i], &bytes, 1, 0);
	}
	rig_register(bench->sources[1], &bench->from[0]);
	rig_register(bench->readers[1], &bench->to[0]);
}

int
main(int argc, char **argv)
{
	static struct bench bench;
	static double rates[KINDS][ROUNDS_MAX], processors[KINDS][ROUNDS_MAX];
	uint64_t bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 256) << 20;
	uint32_t rounds = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 11;
	if (bytes == 0 || rounds == 0 || rounds > ROUNDS_MAX) {
		fprintf(stderr, "usage: rdma_copy_bench [MiB] [rounds]\n");
		return 2;
	}
	open_bench(&bench, bytes);
	/* One round first, for pages and slabs. */
	for (uint32_t round = 0; round <= rounds; round++) {
		for (uint32_t kind = 0; kind < KINDS; kind++) {
			double used_s, rate = run(&bench, kind, &used_s);
			if (round == 0)
				continue;
			rates[kind][round - 1] = rate;
			processors[kind][round - 1] = used_s * (double)(UINT64_C(1) << 30) /
						      (double)bench.from[0].table->bytes;
		}
	}
	for (uint32_t kind = 0; kind < KINDS; kind++) {
		qsort(rates[kind], rounds, sizeof(rates[kind][0]), compare);
		qsort(processors[kind], rounds, sizeof(processors[kind][0]), compare);
	}
	printf("%llu MiB, verified\n", (unsigned long long)(bytes >> 20));
	for (uint32_t kind = 0; kind < KINDS; kind++) {
		double median = rates[kind][rounds / 2];
		printf("%-26s %6.2f GB/s %6.2f x rdma %6.2f x tcp, private %6.2f CPU s a GiB\n",
			kinds[kind].name, median, median / rates[0][rounds / 2],
			median / rates[TCP_PRIVATE][rounds / 2], processors[kind][rounds / 2]);
	}
	rig_halt(&bench.rig);
	rig_fini(&bench.rig);
	for (uint32_t i = 0; i < 2; i++) {
		rig_shard_fini(&bench.from[i]);
		rig_shard_fini(&bench.to[i]);
	}
	return 0;
}
