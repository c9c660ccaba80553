/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_hash - see gpu_hash.h. The kernel is leaf_kernel.h; this writes its table of leaves and makes
 * chunks' digests of its values.
 *
 * A batch's memory is pinned host memory, which the kernel itself reads and writes: tasks, pieces,
 * values, short leaves. So a batch is one command on the stream, takes nothing of the GPU's memory,
 * and no copy of a table stands behind others' bytes in a copy engine.
 */
#include "transport/cuda/helper/gpu_hash.h"

#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "transport/cuda/gpu_wire.h"
#include "transport/cuda/helper/module.h"
#include "transport/cuda/kernels/kernel_ptx.h"
#include "transport/cuda/kernels/leaf_task.h"
#include "transport/hash/digest.h"

#define WITHOUT "the GPU cannot make digests"
#define SHORT_ROOM 256u     /* of a short leaf */
#define PIECES_A_CHUNK 192u /* beyond the first chunk's, which may be as bad as can be */

_Static_assert(LEAF_PIECES_MAX == GPU_RANGES_MAX, "all ranges of a chunk fit into one leaf's list");

struct gpu_hash {
	const struct cuda *cuda; /* borrows */
	struct gpu_module module;
};

struct chunk {
	uint32_t first, leaves; /* tasks */
	uint32_t short_bytes;   /* of the last of them, if it is a short one */
};

struct gpu_hash_batch {
	const struct cuda *cuda; /* borrows */
	CUfunction kernel;
	uint32_t chunks_max, leaves_max, pieces_max;
	uint32_t num_chunks, num_leaves, num_pieces;
	struct gpu_table table; /* owns */
	size_t pieces_at, values_at, short_at;
	struct leaf_task *tasks; /* in the table, as pieces and values */
	struct leaf_piece *pieces;
	uint64_t *values;
	struct copy_span *moves_to, *moves_from; /* own: as many on both sides, of as many bytes */
	uint64_t moved;                          /* all of their bytes */
	uint32_t num_moves, moves_max;
	struct chunk chunks[]; /* chunks_max */
};

int
gpu_hash_open(const struct cuda *cuda, int device, struct gpu_hash **ret_hash, struct th_err *err)
{
	struct gpu_module module;
	int rc = gpu_module_open(cuda, device, leaf_ptx, LEAF_KERNEL, WITHOUT, &module, err);
	if (rc < 0)
		return rc;
	struct gpu_hash *hash = th_calloc(1, sizeof(*hash));
	hash->cuda = cuda;
	hash->module = module;
	*ret_hash = hash;
	return 0;
}

void
gpu_hash_close(struct gpu_hash *hash)
{
	if (!hash)
		return;
	gpu_module_close(hash->cuda, &hash->module);
	free(hash);
}

/* ---- batches -------------------------------------------------------------------------------- */

/* Returns its bytes. */
static size_t
gpu_hash_lay_out(struct gpu_hash_batch *batch, uint32_t chunks)
{
	batch->chunks_max = chunks;
	batch->leaves_max = chunks * DIGEST_LEAVES_MAX;
	batch->pieces_max = GPU_RANGES_MAX + DIGEST_LEAVES_MAX + (chunks - 1) * PIECES_A_CHUNK;
	batch->pieces_at = batch->leaves_max * sizeof(struct leaf_task);
	batch->values_at = batch->pieces_at + batch->pieces_max * sizeof(struct leaf_piece);
	batch->short_at = batch->values_at + batch->leaves_max * sizeof(uint64_t);
	return batch->short_at + (size_t)chunks * SHORT_ROOM;
}

int
gpu_hash_batch_new(struct gpu_hash *hash, uint32_t chunks, struct gpu_hash_batch **ret_batch,
	struct th_err *err)
{
	TH_ASSERT(chunks > 0 && chunks <= GPU_HASH_CHUNKS_MAX);
	struct gpu_hash_batch *batch =
		th_calloc(1, sizeof(*batch) + chunks * sizeof(batch->chunks[0]));
	batch->cuda = hash->cuda;
	batch->kernel = hash->module.kernel;
	int rc = gpu_table_new(
		batch->cuda, gpu_hash_lay_out(batch, chunks), WITHOUT, &batch->table, err);
	if (rc < 0) {
		free(batch);
		return rc;
	}
	uint8_t *host = batch->table.host;
	batch->tasks = (void *)host;
	batch->pieces = (void *)(host + batch->pieces_at);
	batch->values = (void *)(host + batch->values_at);
	*ret_batch = batch;
	return 0;
}

void
gpu_hash_batch_free(struct gpu_hash_batch *batch)
{
	if (!batch)
		return;
	gpu_table_free(batch->cuda, &batch->table);
	free(batch->moves_to);
	free(batch->moves_from);
	free(batch);
}

void
gpu_hash_begin(struct gpu_hash_batch *batch)
{
	batch->num_chunks = batch->num_leaves = batch->num_pieces = batch->num_moves = 0;
	batch->moved = 0;
}

/* ---- what the GPU is told ------------------------------------------------------------------- */

/* The next bytes of the leaf. */
static void
gpu_hash_add_piece(
	struct gpu_hash_batch *batch, struct leaf_task *task, CUdeviceptr address, uint32_t bytes)
{
	struct leaf_piece *last = batch->pieces + batch->num_pieces - 1;
	if (task->pieces > 0 && last->address + last->bytes == address) {
		last->bytes += bytes;
	} else {
		TH_ASSERT(batch->num_pieces < batch->pieces_max);
		batch->pieces[batch->num_pieces++] = (struct leaf_piece){
			.address = address, .start = task->bytes, .bytes = bytes};
		task->pieces++;
	}
	task->bytes += bytes;
}

static void
gpu_hash_end_leaf(struct gpu_hash_batch *batch, struct leaf_task *task, struct chunk *chunk)
{
	uint32_t first = batch->num_pieces - task->pieces;
	if (task->pieces == 1) { /* it stands in the task */
		task->address = batch->pieces[first].address;
		batch->num_pieces--;
	} else {
		task->address =
			batch->table.device + batch->pieces_at + first * sizeof(struct leaf_piece);
	}
	if (task->bytes <= LEAF_SHORT_BYTES) {
		chunk->short_bytes = task->bytes;
		task->copy = batch->table.device + batch->short_at +
			     (uint64_t)SHORT_ROOM * batch->num_chunks;
	}
	batch->num_leaves++;
	chunk->leaves++;
}

static bool
gpu_hash_has_room(const struct gpu_hash_batch *batch, uint64_t bytes, uint32_t count)
{
	uint64_t leaves = (bytes + DIGEST_LEAF_BYTES - 1) / DIGEST_LEAF_BYTES;
	return batch->num_chunks < batch->chunks_max &&
	       count + leaves <= batch->pieces_max - batch->num_pieces;
}

int
gpu_hash_add(struct gpu_hash_batch *batch, const struct copy_span *ranges, uint32_t count)
{
	uint64_t all = 0;
	for (uint32_t i = 0; i < count; i++) {
		TH_ASSERT(ranges[i].bytes <= CHUNK_BYTES_MAX - all);
		all += ranges[i].bytes;
	}
	TH_ASSERT(count <= GPU_RANGES_MAX);
	if (!gpu_hash_has_room(batch, all, count))
		return -1;
	struct chunk *chunk = &batch->chunks[batch->num_chunks];
	struct leaf_task *task = &batch->tasks[batch->num_leaves];
	*chunk = (struct chunk){.first = batch->num_leaves};
	*task = (struct leaf_task){.bytes = 0};
	for (uint32_t i = 0; i < count; i++) {
		for (uint64_t at = 0; at < ranges[i].bytes;) {
			uint32_t part = (uint32_t)th_min_u64(
				DIGEST_LEAF_BYTES - task->bytes, ranges[i].bytes - at);
			gpu_hash_add_piece(batch, task, ranges[i].address + at, part);
			at += part;
			all -= part;
			if (task->bytes < DIGEST_LEAF_BYTES && all > 0)
				continue;
			gpu_hash_end_leaf(batch, task, chunk);
			if (all > 0)
				*++task = (struct leaf_task){.bytes = 0};
		}
	}
	return (int)batch->num_chunks++;
}

/* ---- copies --------------------------------------------------------------------------------- */

struct hash_cursor { /* in the ranges of one side */
	const struct copy_span *ranges, *end;
	uint64_t at; /* in the first of them */
};

static CUdeviceptr
cursor_skip(struct hash_cursor *cursor, uint64_t bytes)
{
	CUdeviceptr address = 0;
	while (cursor->ranges < cursor->end && cursor->at == cursor->ranges->bytes) {
		cursor->ranges++;
		cursor->at = 0;
	}
	if (cursor->ranges < cursor->end)
		address = cursor->ranges->address + cursor->at;
	while (bytes > 0) {
		TH_ASSERT(cursor->ranges < cursor->end);
		uint64_t part = th_min_u64(bytes, cursor->ranges->bytes - cursor->at);
		cursor->at += part;
		bytes -= part;
		if (bytes > 0) {
			cursor->ranges++;
			cursor->at = 0;
		}
	}
	return address;
}

/* How many bytes, at most so many, lie behind each other from here on. */
static uint64_t
cursor_run(struct hash_cursor cursor, uint64_t most)
{
	CUdeviceptr next = cursor_skip(&cursor, 0);
	uint64_t run = 0;
	while (run < most && cursor.ranges < cursor.end &&
		(cursor.at == cursor.ranges->bytes || cursor.ranges->address + cursor.at == next)) {
		uint64_t part = th_min_u64(most - run, cursor.ranges->bytes - cursor.at);
		run += part;
		next += part;
		cursor.ranges++;
		cursor.at = 0;
	}
	return run;
}

static void
add_move(struct gpu_hash_batch *batch, CUdeviceptr to, CUdeviceptr from, uint64_t bytes)
{
	uint32_t last = batch->num_moves - 1;
	batch->moved += bytes;
	if (batch->num_moves > 0 &&
		batch->moves_to[last].address + batch->moves_to[last].bytes == to &&
		batch->moves_from[last].address + batch->moves_from[last].bytes == from) {
		batch->moves_to[last].bytes += bytes;
		batch->moves_from[last].bytes += bytes;
		return;
	}
	if (batch->num_moves == batch->moves_max) {
		uint32_t max = batch->moves_max > 0 ? 2 * batch->moves_max : 64;
		batch->moves_to = th_realloc(batch->moves_to, max, sizeof(*batch->moves_to));
		batch->moves_from = th_realloc(batch->moves_from, max, sizeof(*batch->moves_from));
		batch->moves_max = max;
	}
	batch->moves_to[batch->num_moves] = (struct copy_span){to, bytes};
	batch->moves_from[batch->num_moves++] = (struct copy_span){from, bytes};
}

static void
copy_leaf(struct gpu_hash_batch *batch, struct leaf_task *task, struct hash_cursor *to,
	struct hash_cursor *from)
{
	uint64_t left = task->bytes;
	if (left == DIGEST_LEAF_BYTES && cursor_run(*to, left) == left &&
		cursor_run(*from, left) == left && cursor_skip(to, 0) % 16 == 0 &&
		cursor_skip(from, 0) % 16 == 0) {
		task->copy = cursor_skip(to, left);
		task->address = cursor_skip(from, left);
		return;
	}
	while (left > 0) {
		uint64_t part = cursor_run(*to, cursor_run(*from, left));
		CUdeviceptr target = cursor_skip(to, part);
		add_move(batch, target, cursor_skip(from, part), part);
		left -= part;
	}
}

int
gpu_hash_add_copy(struct gpu_hash_batch *batch, const struct copy_span *to, uint32_t num_to,
	const struct copy_span *from, uint32_t num_from)
{
	int number = gpu_hash_add(batch, to, num_to);
	if (number < 0)
		return number;
	struct hash_cursor target = {.ranges = to, .end = to + num_to};
	struct hash_cursor source = {.ranges = from, .end = from + num_from};
	const struct chunk *chunk = &batch->chunks[number];
	for (uint32_t i = 0; i < chunk->leaves; i++)
		copy_leaf(batch, &batch->tasks[chunk->first + i], &target, &source);
	return number;
}

/* ---- running -------------------------------------------------------------------------------- */

struct move
gpu_hash_moves(const struct gpu_hash_batch *batch)
{
	return (struct move){.op = GPU_COPY,
		.to = batch->moves_to,
		.from = batch->moves_from,
		.bytes = batch->moved};
}

int
gpu_hash_launch(struct gpu_hash_batch *batch, CUstream stream, struct th_err *err)
{
	CUdeviceptr tasks = batch->table.device, values = batch->table.device + batch->values_at;
	void *arguments[] = {&tasks, &values};
	if (batch->num_leaves == 0) /* of chunks without bytes */
		return 0;
	CUresult result = batch->cuda->cuLaunchKernel(batch->kernel, batch->num_leaves, 1, 1,
		LEAF_KERNEL_THREADS, 1, 1, 0, stream, arguments, NULL);
	if (result != CUDA_SUCCESS)
		return th_fail(err, -EIO, WITHOUT ": cuLaunchKernel says %s",
			cuda_result_name(batch->cuda, result));
	return 0;
}

struct th_hash
gpu_hash_value(const struct gpu_hash_batch *batch, uint32_t number)
{
	uint64_t values[DIGEST_LEAVES_MAX]; /* the GPU's are little-endian */
	TH_ASSERT(number < batch->num_chunks);
	const struct chunk *chunk = &batch->chunks[number];
	memcpy(values, batch->values + chunk->first, chunk->leaves * sizeof(values[0]));
	if (chunk->short_bytes > 0)
		values[chunk->leaves - 1] = htole64(XXH3_64bits(
			batch->table.host + batch->short_at + (size_t)SHORT_ROOM * number,
			chunk->short_bytes));
	XXH128_hash_t hash = XXH3_128bits(values, chunk->leaves * sizeof(values[0]));
	return (struct th_hash){.lo = hash.low64, .hi = hash.high64};
}
