/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaf_kernel - XXH3-64 (seed 0) of leaves in GPU memory, by the GPU: the values of leaf.h.
 *
 * This is the one source of what leaf_kernel.ptx does, and of what the driver for tests does on a
 * CPU. Who includes it has defined GPU_CODE and GPU_TABLE (how functions and constants are
 * declared) and GPU_UNROLL (how often a loop is unrolled), and defines the functions that touch GPU
 * memory (kernel_memory.h). It uses no more than C and C++ have in common.
 *
 * A leaf has a thread block of its own, which takes five steps with a barrier behind each:
 *
 *   leaf_begin  the task and the key go where all threads reach them fast
 *   leaf_list   ... and the list of its pieces, if there is more than one
 *   leaf_sum    each thread loads 16 times 16 bytes and sums them up; this is all the work
 *   leaf_chain  eight threads, one for each sum of XXH3, mix the sums of the 64 blocks in order
 *   leaf_end    one thread makes the value
 *
 * XXH3 scrambles its eight sums after each block of 1024 bytes, and that is what makes it a chain;
 * between two scrambles it only adds, in any order. So a block's sums are made without knowing
 * those of the block before: all bytes of a leaf are loaded at once, and the chain works on 64
 * bytes a block, in shared memory.
 *
 * What it should make, reckoned for an H100 (132 processors, 1.7 GHz, 3.35 TB/s from memory):
 *  - Loads. Eight threads that follow each other load the 128 bytes of a line, 16 bytes each; a
 *    warp's load is four whole lines. No byte is loaded twice.
 *  - In flight. To be kept busy, memory wants 3.35 TB/s x 0.8 us = 2.7 MB. A thread has 8 loads of
 *    16 bytes on the way: 32 KiB for a leaf, and with 64 registers a thread 4 leaves are on a
 *    processor at once: 16 MiB in all. One chunk alone (64 leaves) has 2 MiB.
 *  - Instructions. 16 bytes cost a thread a load, two loads of keys, 4 exclusive-ors, 2 products
 *    of 32 bits with sums of 64, and 4 additions: some 14. A processor begins 2 such instructions
 *    of a warp a clock: 2 x 32 x 16 / 14 = 73 bytes, where memory delivers 15. Four fifths of the
 *    processor stay with whoever else computes.
 *  - The chain. 63 scrambles of some 30 clocks each, 1.1 us, while other leaves load.
 *  - So a leaf takes some 5 us (its task 1.2, its bytes 1.5, the chain 1.1, the end), and 528 of
 *    them, 35 MB, are on their way at once: 7 TB/s where memory delivers 3.35. A batch of 16 chunks
 *    (67 MB) takes some 20 us of memory's time and 10 us of beginning and end: 2.2 TB/s. One chunk
 *    alone takes some 6 us and half as much again for the launch: 0.4 TB/s.
 *  - The tasks lie in pinned host memory, as the values do: one read of 32 bytes over the bus for a
 *    leaf and one write of 8, where copies to and from the GPU's own memory would be two more
 *    commands for other engines of the GPU, behind whatever those are at.
 * A leaf that does not begin at a multiple of 16 costs two loads where others cost one, of lines
 * that are in the cache then. All of this is reckoned from the assembled code (ptxas for sm_90: 64
 * registers, one spilled outside the loops, 8 loads in a row), not measured: gpu_digest_bench
 * (tests/bench) measures where there is a GPU.
 */
#ifndef TH_TRANSPORT_CUDA_KERNELS_LEAF_KERNEL_H
#define TH_TRANSPORT_CUDA_KERNELS_LEAF_KERNEL_H

#include <stdint.h>

#include "transport/cuda/kernels/kernel_memory.h"
#include "transport/cuda/kernels/leaf_task.h"

#define KERNEL_LEAF_BYTES 65536u
#define KERNEL_BLOCK_BYTES 1024u
#define KERNEL_BLOCKS 64u
#define KERNEL_STRIPE_BYTES 64u
#define KERNEL_STRIPES 16u /* of a block */
#define KERNEL_AT_ONCE 8u  /* loads of a thread */
#define KERNEL_PRIME32_1 0x9e3779b1u
#define KERNEL_PRIME64_1 0x9e3779b185ebca87ull
#define KERNEL_AVALANCHE 0x165667919e3779f9ull

struct leaf { /* one leaf's task, as it is in registers */
	uint64_t address, copy;
	uint32_t bytes, pieces;
	uint32_t blocks;  /* that are followed by a scramble */
	uint32_t stripes; /* of the block behind them; the last 64 bytes are a stripe once more */
};

struct leaf_shared { /* by the threads of a leaf */
	struct pair task[2];
	struct pair pieces[LEAF_PIECES_MAX]; /* where there is more than one */
	uint64_t key[24];
	/* Of each block: one half of its stripes, and the other. */
	uint64_t sums[KERNEL_BLOCKS][2][8];
	uint64_t last[8]; /* words, of a leaf that leaf_is_plain */
	uint64_t mixed[8];
};

/* Word i of the default secret: a constant of XXH3. */
GPU_CODE uint64_t
leaf_key(uint32_t i)
{
	GPU_TABLE const uint64_t words[24] = {0xbe4ba423396cfeb8, 0x1cad21f72c81017c,
		0xdb979083e96dd4de, 0x1f67b3b7a4a44072, 0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82,
		0x8e2443f7744608b8, 0x4c263a81e69035e0, 0xcb00c391bb52283c, 0xa32e531b8b65d088,
		0x4ef90da297486471, 0xd8acdea946ef1938, 0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9,
		0x3159b4cd4be0518a, 0x647378d9c97e9fc8, 0xc3ebd33483acc5ea, 0xeb6313faffa081c5,
		0x49daf0b751dd0d17, 0x9e68d429265516d3, 0xfca1477d58be162b, 0xce31d07ad1b8f88f,
		0x280416958f3acb45, 0x7e404bbbcafbd7af};
	return words[i];
}

/* Where the eight sums begin. */
GPU_CODE uint64_t
leaf_start(uint32_t i)
{
	GPU_TABLE const uint64_t words[8] = {0xc2b2ae3d, KERNEL_PRIME64_1, 0xc2b2ae3d27d4eb4f,
		0x165667b19e3779f9, 0x85ebca77c2b2ae63, 0x85ebca77, 0x27d4eb2f165667c5,
		KERNEL_PRIME32_1};
	return words[i];
}

/* ---- loads ---------------------------------------------------------------------------------- */

struct piece { /* leaf_piece in registers */
	uint64_t address;
	uint32_t start, bytes;
};

GPU_CODE struct piece
leaf_piece_at(const struct leaf_shared *shared, uint32_t i)
{
	struct pair words = shared->pieces[i];
	struct piece piece = {words.low, (uint32_t)words.high, (uint32_t)(words.high >> 32)};
	return piece;
}

/* The one with this byte. */
GPU_CODE uint32_t
leaf_piece_with(const struct leaf *leaf, const struct leaf_shared *shared, uint32_t at)
{
	uint32_t from = 0, to = leaf->pieces;
	while (to - from > 1) {
		uint32_t middle = (from + to) / 2;
		if (leaf_piece_at(shared, middle).start <= at)
			from = middle;
		else
			to = middle;
	}
	return from;
}

/* The 16 bytes of the leaf from at on, byte by byte where they lie in more than one piece. */
GPU_CODE struct pair
leaf_gather(const struct leaf *leaf, const struct leaf_shared *shared, uint32_t at)
{
	struct pair out = {0, 0};
	uint32_t number = leaf_piece_with(leaf, shared, at);
	struct piece piece = leaf_piece_at(shared, number);
	if (at - piece.start + 16 <= piece.bytes)
		return gpu_load_any(piece.address + (at - piece.start));
	GPU_UNROLL(1)
	for (uint32_t i = 0; i < 16; i++) {
		if (at + i - piece.start == piece.bytes)
			piece = leaf_piece_at(shared, ++number);
		uint64_t byte = gpu_load_byte(piece.address + (at + i - piece.start));
		if (i < 8)
			out.low |= byte << 8 * i;
		else
			out.high |= byte << 8 * (i - 8);
	}
	return out;
}

GPU_CODE struct pair
leaf_load(const struct leaf *leaf, const struct leaf_shared *shared, uint32_t at)
{
	return leaf->pieces == 1 ? gpu_load_any(leaf->address + at)
				 : leaf_gather(leaf, shared, at);
}

/* ---- the sums ------------------------------------------------------------------------------- */

/* Of the two halves of a word. */
GPU_CODE uint64_t
leaf_product(uint64_t word)
{
	return (word & 0xffffffffu) * (word >> 32);
}

GPU_CODE void
leaf_add(struct pair *sums, struct pair data, uint64_t key_low, uint64_t key_high)
{
	sums->low += data.high + leaf_product(data.low ^ key_low);
	sums->high += data.low + leaf_product(data.high ^ key_high);
}

/* Where a thread's work in a block is: its stripes are each second one, its bytes 16 of each. */
struct leaf_place {
	uint32_t half, lane; /* lane: the first of the two sums */
};

GPU_CODE struct leaf_place
leaf_place_of(uint32_t thread)
{
	struct leaf_place place = {thread / 4 % 2, thread % 4 * 2};
	return place;
}

GPU_CODE void
leaf_keep(struct leaf_shared *shared, uint32_t block, struct leaf_place place, struct pair sums)
{
	shared->sums[block][place.half][place.lane] = sums.low;
	shared->sums[block][place.half][place.lane + 1] = sums.high;
}

/* One piece, whole and aligned, as most are. */
GPU_CODE int
leaf_is_plain(const struct leaf *leaf)
{
	return leaf->pieces == 1 && leaf->bytes == KERNEL_LEAF_BYTES && leaf->address % 16 == 0;
}

/*
 * Every second one of a block's stripes, in a plain leaf: all loads first. What is copied is what
 * is hashed: each byte is loaded once. The very last stripe is left to leaf_chain.
 */
GPU_CODE void
leaf_sum_block(const struct leaf *leaf, struct leaf_shared *shared, uint32_t block,
	struct leaf_place place)
{
	uint64_t at =
		block * KERNEL_BLOCK_BYTES + place.half * KERNEL_STRIPE_BYTES + place.lane * 8u;
	uint64_t from = leaf->address + at, to = leaf->copy + at;
	struct pair data[KERNEL_AT_ONCE], sums = {0, 0};
	GPU_UNROLL(8)
	for (uint32_t i = 0; i < KERNEL_AT_ONCE; i++)
		data[i] = gpu_load(from + i * 2 * KERNEL_STRIPE_BYTES);
	/* Behind them, and for each block again: kept, the keys are 32 registers. */
	__asm__ volatile("" : : : "memory");
	if (leaf->copy) {
		GPU_UNROLL(8)
		for (uint32_t i = 0; i < KERNEL_AT_ONCE; i++)
			gpu_store_pair(to + i * 2 * KERNEL_STRIPE_BYTES, data[i]);
	}
	GPU_UNROLL(8)
	for (uint32_t i = 0; i < KERNEL_AT_ONCE; i++) {
		uint32_t key = 2 * i + place.half + place.lane;
		if (i == KERNEL_AT_ONCE - 1 && block == KERNEL_BLOCKS - 1 && place.half == 1) {
			shared->last[place.lane] = data[i].low;
			shared->last[place.lane + 1] = data[i].high;
			break;
		}
		leaf_add(&sums, data[i], shared->key[key], shared->key[key + 1]);
	}
	leaf_keep(shared, block, place, sums);
}

/* Sums in a leaf of one piece, of any length and alignment. */
GPU_CODE void
leaf_sum_piece(const struct leaf *leaf, struct leaf_shared *shared, uint32_t block,
	struct leaf_place place)
{
	uint32_t stripes = block < leaf->blocks ? KERNEL_STRIPES : leaf->stripes;
	uint64_t from = leaf->address + block * KERNEL_BLOCK_BYTES + place.lane * 8u;
	struct pair sums = {0, 0};
	uint32_t stripe = place.half;
	GPU_UNROLL(1)
	for (; stripe + 6 < stripes; stripe += 8) {
		struct pair data[4];
		GPU_UNROLL(4)
		for (uint32_t i = 0; i < 4; i++)
			data[i] = gpu_load_any(from + (stripe + 2 * i) * KERNEL_STRIPE_BYTES);
		GPU_UNROLL(4)
		for (uint32_t i = 0; i < 4; i++) {
			uint32_t key = stripe + 2 * i + place.lane;
			leaf_add(&sums, data[i], shared->key[key], shared->key[key + 1]);
		}
	}
	GPU_UNROLL(1)
	for (; stripe < stripes; stripe += 2) {
		uint32_t key = stripe + place.lane;
		leaf_add(&sums, gpu_load_any(from + stripe * KERNEL_STRIPE_BYTES),
			shared->key[key], shared->key[key + 1]);
	}
	leaf_keep(shared, block, place, sums);
}

/* Sums in any leaf. */
GPU_CODE void
leaf_sum_pieces(const struct leaf *leaf, struct leaf_shared *shared, uint32_t block,
	struct leaf_place place)
{
	uint32_t stripes = block < leaf->blocks ? KERNEL_STRIPES : leaf->stripes;
	uint32_t from = block * KERNEL_BLOCK_BYTES + place.lane * 8u;
	struct pair sums = {0, 0};
	GPU_UNROLL(1)
	for (uint32_t stripe = place.half; stripe < stripes; stripe += 2) {
		uint32_t key = stripe + place.lane;
		leaf_add(&sums, leaf_gather(leaf, shared, from + stripe * KERNEL_STRIPE_BYTES),
			shared->key[key], shared->key[key + 1]);
	}
	leaf_keep(shared, block, place, sums);
}

/* ---- the steps ------------------------------------------------------------------------------ */

GPU_CODE void
leaf_begin(uint32_t thread, uint64_t task, struct leaf_shared *shared)
{
	if (thread < 2)
		shared->task[thread] = gpu_load(task + 16 * thread);
	else if (thread >= 32 && thread < 32 + 24)
		shared->key[thread - 32] = leaf_key(thread - 32);
}

GPU_CODE struct leaf
leaf_list(uint32_t thread, struct leaf_shared *shared)
{
	struct pair first = shared->task[0], second = shared->task[1];
	struct leaf leaf = {
		first.low, first.high, (uint32_t)second.low, (uint32_t)(second.low >> 32), 0, 0};
	leaf.blocks = (leaf.bytes - 1) / KERNEL_BLOCK_BYTES;
	leaf.stripes = (leaf.bytes - 1) % KERNEL_BLOCK_BYTES / KERNEL_STRIPE_BYTES;
	if (leaf.pieces > 1)
		for (uint32_t i = thread; i < leaf.pieces; i += LEAF_KERNEL_THREADS)
			shared->pieces[i] = gpu_load(leaf.address + 16ull * i);
	return leaf;
}

GPU_CODE int
leaf_is_short(const struct leaf *leaf)
{
	return leaf->bytes <= LEAF_SHORT_BYTES;
}

/* All of the work for a short leaf: the CPU gets its bytes. */
GPU_CODE void
leaf_copy_short(uint32_t thread, const struct leaf *leaf, const struct leaf_shared *shared)
{
	struct piece piece = {leaf->address, 0, leaf->bytes};
	if (thread >= leaf->bytes)
		return;
	if (leaf->pieces > 1)
		piece = leaf_piece_at(shared, leaf_piece_with(leaf, shared, thread));
	gpu_store_byte(leaf->copy + thread, gpu_load_byte(piece.address + (thread - piece.start)));
}

GPU_CODE void
leaf_sum(uint32_t thread, const struct leaf *leaf, struct leaf_shared *shared)
{
	const uint32_t step = LEAF_KERNEL_THREADS / 8;
	struct leaf_place place = leaf_place_of(thread);
	uint32_t block = thread / 8;
	if (leaf->pieces > 1) {
		GPU_UNROLL(1)
		for (; block <= leaf->blocks; block += step)
			leaf_sum_pieces(leaf, shared, block, place);
	} else if (!leaf_is_plain(leaf)) {
		GPU_UNROLL(1)
		for (; block <= leaf->blocks; block += step)
			leaf_sum_piece(leaf, shared, block, place);
	} else {
		GPU_UNROLL(1)
		for (; block < KERNEL_BLOCKS; block += step)
			leaf_sum_block(leaf, shared, block, place);
	}
}

GPU_CODE void
leaf_chain(uint32_t thread, const struct leaf *leaf, struct leaf_shared *shared)
{
	if (thread >= 8)
		return;
	uint64_t own = shared->last[thread], other = shared->last[thread ^ 1];
	if (!leaf_is_plain(leaf)) {
		struct pair last = leaf_load(
			leaf, shared, leaf->bytes - KERNEL_STRIPE_BYTES + thread / 2 * 16);
		own = thread % 2 ? last.high : last.low;
		other = thread % 2 ? last.low : last.high;
	}
	/* The secret at 128, and at 121. */
	uint64_t scramble = shared->key[16 + thread];
	uint64_t key = shared->key[15 + thread] >> 8 | scramble << 56;
	uint64_t sum = leaf_start(thread);
	GPU_UNROLL(9)
	for (uint32_t block = 0; block < leaf->blocks; block++) {
		sum += shared->sums[block][0][thread] + shared->sums[block][1][thread];
		sum = (sum ^ sum >> 47 ^ scramble) * KERNEL_PRIME32_1;
	}
	sum += shared->sums[leaf->blocks][0][thread] + shared->sums[leaf->blocks][1][thread];
	shared->mixed[thread] = sum + other + leaf_product(own ^ key);
}

/* to: where the value goes. */
GPU_CODE void
leaf_end(uint32_t thread, const struct leaf *leaf, const struct leaf_shared *shared, uint64_t to)
{
	uint64_t value = leaf->bytes * KERNEL_PRIME64_1;
	if (thread != 0)
		return;
	for (uint32_t i = 0; i < 8; i += 2) { /* the secret at 11 */
		uint64_t first = shared->key[1 + i] >> 24 | shared->key[2 + i] << 40;
		uint64_t second = shared->key[2 + i] >> 24 | shared->key[3 + i] << 40;
		__extension__ unsigned __int128 product =
			(unsigned __int128)(shared->mixed[i] ^ first) *
			(shared->mixed[i + 1] ^ second);
		value += (uint64_t)product ^ (uint64_t)(product >> 64);
	}
	value ^= value >> 37;
	value *= KERNEL_AVALANCHE;
	gpu_store(to, value ^ value >> 32);
}

#endif
