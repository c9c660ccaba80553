/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reuse_bench - what it costs to look whether a chunk is here already, and what it saves: verified
 * legs into memory that is new, and into memory that held a version, of which all, half of the
 * tensors or none have other bytes; over TCP and within a host, into mapped memory and into a file.
 *
 *   reuse_bench [MiB] [rounds] [MiB of a tensor]
 *
 * One process has both agents, so the figures are good as ratios only. The rounds of all kinds
 * alternate; prints medians, the ratio to memory that is new, and how much moved.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "tests/support/transport/transport_rig.h"

#define ROUNDS_MAX 99
#define STALL_NS INT64_C(15000000000) /* a busy machine is no stall */
#define LEAF_BYTES (64u << 10)

static const struct {
	const char *name;
	enum rig_memory memory;
	bool expect;
	uint32_t changed; /* of two tensors */
} kinds[] = {
	{"new memory", RIG_MAPPED, false, 2},
	{"all changed", RIG_MAPPED, true, 2},
	{"half changed", RIG_MAPPED, true, 1},
	{"none changed", RIG_MAPPED, true, 0},
	{"a file, new", RIG_FILE, false, 2},
	{"a file, none changed", RIG_FILE, true, 0},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static int
compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

/* Memory of the reader: of the source, but for a byte in each leaf of the tensors that changed. */
static void
prepare(struct rig_shard *from, struct rig_shard *to, uint32_t count, uint64_t bytes, uint32_t kind)
{
	memcpy(to->memory, from->memory, to->bytes);
	for (uint32_t row = 0; row < count; row++) {
		for (uint64_t at = 0; row % 2 < kinds[kind].changed && at < bytes; at += LEAF_BYTES)
			to->tensors[row][at] ^= 1;
	}
}

static struct xfer_part *
published(struct rig_shard *shard, enum rig_memory memory)
{
	struct xfer_part *part = rig_part_of(shard, memory, true);
	struct xfer_part *plain = rig_part(shard, true);
	rig_add_digests(plain);
	xfer_part_add_digests(part, 0, xfer_part_digest(plain, 0), shard->table->num_chunks);
	xfer_part_advance(part, shard->table->num_chunks);
	xfer_part_release(plain);
	return part;
}

int
main(int argc, char **argv)
{
	static struct rig rig;
	static double rates[2][KINDS][ROUNDS_MAX];
	uint64_t moved[KINDS];
	struct rig_shard shards[2];
	uint64_t leg = 0, mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 512;
	uint32_t rounds = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 7;
	uint64_t tensor_mib = argc > 3 ? strtoull(argv[3], NULL, 10) : 48;
	rounds = th_max_u32(th_min_u32(rounds, ROUNDS_MAX), 1);
	tensor_mib = th_max_u64(tensor_mib, 1);
	uint32_t count = (uint32_t)th_max_u64(mib / tensor_mib, 1);
	uint64_t *sizes = th_calloc(count, sizeof(sizes[0]));
	for (uint32_t i = 0; i < count; i++)
		sizes[i] = tensor_mib << 20;
	struct rig_agent *source = rig_add_agent(&rig, STALL_NS, 0);
	struct rig_agent *reader = rig_add_agent(&rig, STALL_NS, 0);
	for (uint32_t i = 0; i < 2; i++) {
		rig_shard_init(&shards[i], sizes, count, i + 1);
		rig_shard_to_file(&shards[i]);
	}
	uint64_t bytes = shards[0].table->bytes;
	struct xfer_part *from = published(&shards[0], RIG_MAPPED);
	for (uint32_t n = 0; n < rounds * 2 * KINDS; n++) {
		/* Each kind comes behind each other one. */
		uint32_t local = n % 2, round = n / 2 / (uint32_t)KINDS;
		uint32_t kind = (n / 2 * (round % 2 ? 5 : 1) + round) % (uint32_t)KINDS;
		prepare(&shards[0], &shards[1], count, sizes[0], kind);
		struct xfer_part *to = rig_part_of(&shards[1], kinds[kind].memory, true);
		if (kinds[kind].expect)
			xfer_part_expect_reuse(to);
		int64_t start_ns = th_now_ns();
		leg++;
		int rc = 0;
		if (local)
			rc = transport_copy(reader->transport, leg, from, to);
		else
			rig_pull(source, reader, leg, from, to);
		TH_ASSERT(rc == 0);
		moved[kind] = rig_wait(&rig, reader, TRANSPORT_DONE, leg)->bytes_moved;
		rates[local][kind][round] = (double)bytes / (double)(th_now_ns() - start_ns);
		TH_ASSERT(rig_shards_equal(&shards[0], &shards[1]));
		xfer_part_release(to);
	}
	xfer_part_release(from);
	for (uint32_t local = 0; local < 2; local++) {
		for (uint32_t kind = 0; kind < KINDS; kind++) {
			double *of = rates[local][kind];
			qsort(of, rounds, sizeof(of[0]), compare);
			printf("%-5s %-20s %6.2f GB/s, %.2f x new memory, %.2f of it moved\n",
				local ? "local" : "tcp", kinds[kind].name, of[rounds / 2],
				of[rounds / 2] / rates[local][0][rounds / 2],
				(double)moved[kind] / (double)bytes);
		}
	}
	rig_fini(&rig);
	for (uint32_t i = 0; i < 2; i++)
		rig_shard_fini(&shards[i]);
	free(sizes);
	return 0;
}
