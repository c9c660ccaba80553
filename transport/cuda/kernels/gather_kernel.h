/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather_kernel - copies many ranges, of GPU memory or of pinned host memory, from anywhere to
 * anywhere.
 *
 * This is the one source of what gather_kernel.ptx does, and of what the driver for tests does on a
 * CPU: as leaf_kernel.h, which says what who includes it defines.
 *
 * A warp has a task for itself: no thread waits for one of another warp, and a short task costs a
 * warp's time only. A warp takes each so many-th task of the table, and reads the next one while
 * the bytes of this one are on their way.
 *
 * What is stored is 16 bytes at a multiple of 16, and single bytes at both ends: never a byte
 * beyond the range. What is loaded is 16 bytes at a multiple of 16 which have at least one byte of
 * the range in them, or one byte. Where both sides lie alike, modulo 16, each of these is loaded
 * once; elsewhere twice, by threads that follow each other: the second finds it in the cache, or on
 * its way there.
 *
 * What it should make, reckoned for an H100 on PCIe 5 x16 (55 GB/s), and a launch of 32 blocks:
 *  - In flight. A warp has 32 x 4 x 16 bytes on the way: 2 KiB, 512 KiB in all. A read of host
 *    memory takes some 2 us, so that 110 KiB keep the bus busy.
 *  - 500 ranges of 8 KiB, a chunk: some 4 us until the first warp runs, 2 us for its task, 76 us
 *    for 4 MiB over the bus, 2 us for the event: 50 GB/s. 500 calls of the driver take 1000 us.
 *  - 500 ranges of 64 bytes: two for each warp, one round over the bus for the first task, two for
 *    bytes, and the second task comes meanwhile: 6 us, and as much for the launch and the event.
 *  - Within the GPU a round is 0.8 us: 512 KiB in that time are 650 GB/s.
 *  - Instructions. 16 bytes cost a thread a load, a store and some 8 more, where they are shifted
 *    another load and 14: at 55 GB/s a 300th of what the GPU's processors begin.
 * Reckoned from the assembled code (ptxas for sm_90: 64 registers, none spilled; all loads of a
 * round, 4 or 8, before the first is waited for), not measured: gpu_gather_bench (tests/bench)
 * measures where there is a GPU.
 */
#ifndef TH_TRANSPORT_CUDA_KERNELS_GATHER_KERNEL_H
#define TH_TRANSPORT_CUDA_KERNELS_GATHER_KERNEL_H

#include <stdint.h>

#include "transport/cuda/kernels/gather_task.h"
#include "transport/cuda/kernels/kernel_memory.h"

#define GATHER_AT_ONCE 4u    /* words of 16 bytes, of a thread, on their way */
#define GATHER_LINE_WORDS 8u /* 128 bytes: what a warp's loads are cut into */

struct gather { /* a task in registers */
	uint64_t to, from;
	uint32_t bytes;
};

GPU_CODE struct gather
gather_read(uint64_t task)
{
	struct pair places = gpu_load(task), size = gpu_load(task + 16);
	struct gather gather = {places.low, places.high, (uint32_t)size.low};
	return gather;
}

/*
 * So many words of 16 bytes to a multiple of 16; shift: from how many bytes behind one. A warp's
 * loads begin at a line: over the bus each line is one read, and one that is cut would be two. All
 * loads first, and nothing of them is looked at before the last is on its way.
 */
GPU_CODE void
gather_words(uint32_t lane, uint64_t to, uint64_t from, uint32_t words, uint32_t shift)
{
	const uint32_t first = (uint32_t)from / 16u % GATHER_LINE_WORDS, end = first + words;
	to -= 16u * first;
	from -= 16u * first + shift;
	GPU_UNROLL(1)
	for (uint32_t at = lane; at < end; at += GATHER_AT_ONCE * GATHER_WARP) {
		struct pair data[GATHER_AT_ONCE] = {{0, 0}}, more[GATHER_AT_ONCE] = {{0, 0}};
		GPU_UNROLL(4)
		for (uint32_t i = 0; i < GATHER_AT_ONCE; i++) {
			uint32_t word = at + i * GATHER_WARP;
			if (word >= first && word < end)
				data[i] = gpu_load(from + 16u * word);
		}
		GPU_UNROLL(4)
		for (uint32_t i = 0; i < GATHER_AT_ONCE; i++) {
			uint32_t word = at + i * GATHER_WARP;
			if (shift != 0 && word >= first && word < end)
				more[i] = gpu_load(from + 16u * word + 16u);
		}
		GPU_UNROLL(4)
		for (uint32_t i = 0; i < GATHER_AT_ONCE; i++) {
			uint32_t word = at + i * GATHER_WARP;
			if (word >= first && word < end)
				gpu_store_pair(to + 16u * word,
					gpu_join(data[i], more[i], shift, 8u * (shift & 7u)));
		}
	}
}

GPU_CODE void
gather_copy(uint32_t lane, const struct gather *gather)
{
	const uint64_t to = gather->to, from = gather->from;
	uint32_t head = (0u - (uint32_t)to) % 16u;
	head = head < gather->bytes ? head : gather->bytes;
	const uint32_t words = (gather->bytes - head) / 16u, tail = (gather->bytes - head) % 16u;
	/* A byte of one end or the other: half of the warp's threads have one each at most. */
	const uint32_t edge = lane % 16u;
	const uint32_t at = lane < 16u ? edge : gather->bytes - tail + edge;
	const int has_byte = edge < (lane < 16u ? head : tail);
	uint8_t byte = 0;
	if (has_byte)
		byte = gpu_load_byte(from + at);
	const uint32_t shift = (uint32_t)(from + head) % 16u;
	if (shift == 0)
		gather_words(lane, to + head, from + head, words, 0);
	else
		gather_words(lane, to + head, from + head, words, shift);
	if (has_byte)
		gpu_store_byte(to + at, byte);
}

/* What one of all warps of the launch does of the table. */
GPU_CODE void
gather_run(uint32_t lane, uint32_t warp, uint32_t warps, uint64_t tasks, uint32_t count)
{
	struct gather next = {0, 0, 0};
	if (warp < count)
		next = gather_read(tasks + warp * (uint64_t)sizeof(struct gather_task));
	GPU_UNROLL(1)
	for (uint32_t i = warp; i < count; i += warps) {
		struct gather now = next;
		if (count - i > warps)
			next = gather_read(
				tasks + (i + warps) * (uint64_t)sizeof(struct gather_task));
		gather_copy(lane, &now);
	}
}

#endif
