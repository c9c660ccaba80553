/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_copy_bench - what it costs that memory is not mapped: the same legs between mapped
 * memory, files in memory and the memory of a process, over TCP and within a host.
 *
 *   transport_copy_bench [MiB] [rounds]
 *
 * One process has both agents, so the figures are good as ratios only. The rounds of all kinds
 * alternate; prints medians, and the ratio to mapped memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "tests/support/transport/transport_rig.h"

#define ROUNDS_MAX 99
#define STALL_NS INT64_C(15000000000) /* a busy machine is no stall */

static const struct {
	const char *name;
	enum rig_memory memory;
} kinds[] = {{"mapped", RIG_MAPPED}, {"file", RIG_FILE}, {"process", RIG_PROCESS}};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

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
	static double rates[2][KINDS][ROUNDS_MAX];
	struct rig_shard shards[2];
	uint64_t bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 512) << 20, leg = 0;
	uint32_t rounds = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 7;
	rounds = th_max_u32(th_min_u32(rounds, ROUNDS_MAX), 1);
	struct rig_agent *source = rig_add_agent(&rig, STALL_NS, 0);
	struct rig_agent *reader = rig_add_agent(&rig, STALL_NS, 0);
	for (uint32_t i = 0; i < 2; i++) {
		rig_shard_init(&shards[i], &bytes, 1, i + 1);
		rig_shard_to_file(&shards[i]);
	}
	for (uint32_t n = 0; n < rounds * 2 * KINDS; n++) {
		uint32_t local = n % 2, kind = n / 2 % KINDS;
		struct xfer_part *from = rig_part_of(&shards[0], kinds[kind].memory, true);
		struct xfer_part *to = rig_part_of(&shards[1], kinds[kind].memory, true);
		struct xfer_part *plain = rig_part(&shards[0], true);
		rig_add_digests(plain);
		xfer_part_add_digests(
			from, 0, xfer_part_digest(plain, 0), shards[0].table->num_chunks);
		xfer_part_advance(from, shards[0].table->num_chunks);
		xfer_part_release(plain);
		int64_t start_ns = th_now_ns();
		leg++;
		int rc = 0;
		if (local)
			rc = transport_copy(reader->transport, leg, from, to);
		else
			rig_pull(source, reader, leg, from, to);
		TH_ASSERT(rc == 0);
		rig_wait(&rig, reader, TRANSPORT_DONE, leg);
		rates[local][kind][n / 2 / KINDS] =
			(double)bytes / (double)(th_now_ns() - start_ns);
		TH_ASSERT(rig_shards_equal(&shards[0], &shards[1]));
		memset(shards[1].memory, 0, shards[1].bytes);
		xfer_part_release(from);
		xfer_part_release(to);
	}
	for (uint32_t local = 0; local < 2; local++) {
		for (uint32_t kind = 0; kind < KINDS; kind++) {
			qsort(rates[local][kind], rounds, sizeof(rates[0][0][0]), compare);
			printf("%s, %s to %s: %.2f GB/s, %.2f x mapped\n", local ? "local" : "tcp",
				kinds[kind].name, kinds[kind].name, rates[local][kind][rounds / 2],
				rates[local][kind][rounds / 2] / rates[local][0][rounds / 2]);
		}
	}
	rig_fini(&rig);
	for (uint32_t i = 0; i < 2; i++)
		rig_shard_fini(&shards[i]);
	return 0;
}
