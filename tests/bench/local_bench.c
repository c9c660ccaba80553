/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_bench - legs within a host against a copy by hand: the same memory, the same threads.
 *
 *   local_bench [MiB] [rounds] [offset of the destination in a page]
 *
 * Baseline is nt_copy, and memcpy beside it, by as many threads as the transport's pool has. The
 * digest is measured by one thread: the library's symbol, leaf by leaf, and leaf.h. All take turns
 * in each round; prints medians with the spread, and the median of the ratios within a round.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#ifdef TH_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#endif

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "tests/support/transport_rig.h"
#include "transport/internal.h"
#include "transport/nt_copy.h"

#define ROUNDS_MAX 99
#define STALL_NS INT64_C(15000000000) /* a busy machine is no stall */
#define CHUNK ((size_t)4 << 20)

enum way { NT_COPY, MEMCPY, UNVERIFIED, VERIFIED, HASH_LIBRARY, HASH_LEAF, WAYS };
static const char *const names[WAYS] = {"nt_copy", "memcpy", "leg, unverified", "leg, verified",
	"digest, library", "digest, leaf.h"};
/* What each is compared with. */
static const enum way against[WAYS] = {
	NT_COPY, NT_COPY, NT_COPY, NT_COPY, HASH_LIBRARY, HASH_LIBRARY};

static struct {
	struct rig rig;
	struct rig_agent *agent;
	struct rig_shard shards[2];
	uint64_t bytes, leg;
	uint32_t threads;
	enum way way;
	size_t next; /* atomic */
	uint64_t sum;
} bench;

static int
compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static void *
copy_main(void *arg)
{
	for (;;) {
		size_t at = __atomic_fetch_add(&bench.next, CHUNK, __ATOMIC_RELAXED);
		if (at >= bench.bytes)
			return arg;
		size_t piece = th_min_size(CHUNK, bench.bytes - at);
		uint8_t *to = bench.shards[1].tensors[0] + at;
		if (bench.way == NT_COPY)
			nt_copy(to, bench.shards[0].tensors[0] + at, piece);
		else
			memcpy(to, bench.shards[0].tensors[0] + at, piece);
	}
}

static void
copy_by_hand(void)
{
	pthread_t threads[16];
	bench.next = 0;
	for (uint32_t i = 1; i < bench.threads; i++)
		TH_ASSERT(pthread_create(&threads[i], NULL, copy_main, NULL) == 0);
	copy_main(NULL);
	for (uint32_t i = 1; i < bench.threads; i++)
		pthread_join(threads[i], NULL);
}

static void
hash(void)
{
	const uint8_t *data = bench.shards[0].tensors[0];
	for (size_t at = 0; at + CHUNK <= bench.bytes; at += CHUNK) {
		uint64_t values[CHUNK / LEAF_BYTES];
		if (bench.way == HASH_LEAF)
			leaf_hash(data + at, CHUNK / LEAF_BYTES, values);
		for (uint32_t i = 0; bench.way == HASH_LIBRARY && i < CHUNK / LEAF_BYTES; i++)
			values[i] = XXH3_64bits(data + at + i * LEAF_BYTES, LEAF_BYTES);
		bench.sum += values[0];
	}
}

static double
leg(struct xfer_part *from, bool verify)
{
	struct xfer_part *to = rig_part(&bench.shards[1], verify);
	int64_t start_ns = th_now_ns();
	int rc = transport_copy(bench.agent->transport, ++bench.leg, from, to);
	TH_ASSERT(rc == 0);
	rig_wait(&bench.rig, bench.agent, TRANSPORT_DONE, bench.leg);
	double rate = (double)bench.bytes / (double)(th_now_ns() - start_ns);
	xfer_part_release(to);
	return rate;
}

static double
once(enum way way, struct xfer_part *from)
{
	bench.way = way;
	if (way == UNVERIFIED || way == VERIFIED)
		return leg(from, way == VERIFIED);
	int64_t start_ns = th_now_ns();
	if (way == NT_COPY || way == MEMCPY)
		copy_by_hand();
	else
		hash();
	return (double)bench.bytes / (double)(th_now_ns() - start_ns);
}

int
main(int argc, char **argv)
{
	static double rates[WAYS][ROUNDS_MAX], ratios[WAYS][ROUNDS_MAX];
	bench.bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1024) << 20;
	uint32_t rounds = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 9;
	rounds = th_max_u32(th_min_u32(rounds, ROUNDS_MAX), 1);
	size_t offset = argc > 3 ? strtoull(argv[3], NULL, 10) & 4095 : 0;
	bench.agent = rig_add_agent(&bench.rig, STALL_NS, 0);
	bench.threads = local_threads(bench.agent->transport->local);
	for (uint32_t i = 0; i < 2; i++) {
		rig_shard_init(&bench.shards[i], &bench.bytes, 1, i + 1);
		/* It has a page to spare. */
		bench.shards[i].tensors[0] = bench.shards[i].memory + (i == 1 ? offset : 0);
	}
	struct xfer_part *from = rig_part(&bench.shards[0], true);
	rig_add_digests(from);
	xfer_part_advance(from, bench.shards[0].table->num_chunks);
	for (uint32_t round = 0; round < rounds + 1; round++) { /* the first only warms up */
		for (uint32_t way = 0; way < WAYS; way++) {
			double rate = once((enum way)way, from);
			uint32_t slot = round > 0 ? round - 1 : 0;
			rates[way][slot] = rate;
			ratios[way][slot] = rate / rates[against[way]][slot];
		}
		TH_ASSERT(memcmp(bench.shards[0].tensors[0], bench.shards[1].tensors[0],
				  bench.bytes) == 0);
	}
	printf("%" PRIu64 " MiB, %u rounds, %u threads, leaves by %s\n", bench.bytes >> 20, rounds,
		bench.threads, leaf_kind());
	for (uint32_t way = 0; way < WAYS; way++) {
		qsort(rates[way], rounds, sizeof(rates[0][0]), compare);
		qsort(ratios[way], rounds, sizeof(ratios[0][0]), compare);
		printf("%-16s %6.2f GB/s (%.2f to %.2f), %.2f x %s\n", names[way],
			rates[way][rounds / 2], rates[way][0], rates[way][rounds - 1],
			ratios[way][rounds / 2], names[against[way]]);
	}
	xfer_part_release(from);
	rig_fini(&bench.rig);
	for (uint32_t i = 0; i < 2; i++)
		rig_shard_fini(&bench.shards[i]);
	return bench.sum == 1; /* the digests are not computed for nothing */
}
