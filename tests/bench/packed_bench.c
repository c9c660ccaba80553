/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed_bench - what it costs that small tensors are moved side by side: one thread packs, hashes
 * and scatters them, against memcpy of as many bytes.
 *
 *   packed_bench [tensors] [bytes of each] [rounds]
 *
 * The rounds of all kinds alternate; prints medians in GB/s (bytes of the tensors) and the ratio to
 * memcpy of one piece.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "tests/support/transport/transport_rig.h"
#include "transport/part/packed.h"
#include "transport/part/sigbus.h"
#include "transport/transport_own.h"

#define ROUNDS_MAX 99

enum kind { COPY, COPY_EACH, PACK, PACK_AND_HASH, HASH_TENSORS, SCATTER, SCATTER_AND_HASH, KINDS };

static const char *const names[KINDS] = {"memcpy, one piece", "memcpy, each tensor", "pack",
	"pack and hash", "hash the tensors only", "scatter", "hash and scatter"};

struct bench {
	struct rig_shard shard;
	struct packed *packed;
	uint8_t *plain; /* owns */
};

static struct xfer_part *
new_part(struct bench *bench, bool verify)
{
	struct xfer_part *part = rig_part(&bench->shard, verify);
	int rc = xfer_part_set_packed(part, bench->packed);
	TH_ASSERT(rc == 0);
	return part;
}

static void
copy_each(struct bench *bench)
{
	uint8_t *to = bench->plain;
	for (uint32_t i = 0; i < bench->shard.manifest.num_rows; i++) {
		memcpy(to, bench->shard.tensors[i], bench->shard.manifest.rows[i].bytes);
		to += bench->shard.manifest.rows[i].bytes;
	}
}

static void
run(struct bench *bench, enum kind kind, struct xfer_part *part)
{
	uint32_t num_chunks = bench->shard.table->num_chunks, row;
	struct th_hash digest;
	int rc = 0;
	if (kind == COPY)
		memcpy(bench->plain, bench->shard.memory, bench->shard.table->bytes);
	if (kind == COPY_EACH)
		copy_each(bench);
	if (kind == PACK)
		rc = packed_fill(part, num_chunks);
	for (uint32_t c = 0; c < num_chunks; c++) {
		if (kind == PACK_AND_HASH)
			rc = packed_hash(part, c, NULL, &digest, &row);
		else if (kind == HASH_TENSORS)
			rc = part_digest(part, c, &digest);
		else if (kind == SCATTER || kind == SCATTER_AND_HASH)
			rc = packed_landed(part, c, kind == SCATTER ? NULL : &digest);
	}
	TH_ASSERT(rc >= 0);
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
	static double rates[KINDS][ROUNDS_MAX];
	uint32_t count = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 50000;
	uint64_t bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 1024;
	uint32_t rounds = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 21;
	if (count == 0 || bytes == 0 || bytes >= 2 * MIB || rounds == 0 || rounds > ROUNDS_MAX) {
		fprintf(stderr, "usage: packed_bench [tensors] [bytes of each] [rounds]\n");
		return 2;
	}
	struct bench bench;
	uint64_t *sizes = th_calloc(count, sizeof(sizes[0]));
	for (uint32_t i = 0; i < count; i++)
		sizes[i] = bytes;
	rig_shard_init(&bench.shard, sizes, count, 1);
	bench.packed = packed_new(bench.shard.table);
	TH_ASSERT(bench.packed && sigbus_install() == 0);
	bench.plain = th_calloc(1, bench.shard.table->bytes);
	/* One round first, for the pages. */
	for (uint32_t round = 0; round <= rounds; round++) {
		for (uint32_t kind = 0; kind < KINDS; kind++) {
			struct xfer_part *part = new_part(&bench, kind != PACK);
			if (kind == PACK)
				xfer_part_advance(part, bench.shard.table->num_chunks);
			int64_t begin_ns = th_now_ns();
			run(&bench, kind, part);
			int64_t ns = th_now_ns() - begin_ns;
			if (round > 0)
				rates[kind][round - 1] =
					(double)bench.shard.table->bytes / (double)ns;
			xfer_part_release(part);
		}
	}
	printf("%u tensors of %llu bytes, %u chunks, one thread\n", count,
		(unsigned long long)bytes, bench.shard.table->num_chunks);
	for (uint32_t kind = 0; kind < KINDS; kind++)
		qsort(rates[kind], rounds, sizeof(rates[kind][0]), compare);
	for (uint32_t kind = 0; kind < KINDS; kind++)
		printf("%-24s %6.2f GB/s %6.2f x\n", names[kind], rates[kind][rounds / 2],
			rates[kind][rounds / 2] / rates[COPY][rounds / 2]);
	free(bench.plain);
	free(sizes);
	packed_release(bench.packed);
	rig_shard_fini(&bench.shard);
	return 0;
}
