/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_move - see gpu_move.h.
 */
#include "transport/cuda/helper/gpu_move.h"

#include "ipc/base/checked.h"

struct walk { /* over both sides at once */
	const struct move *move;
	struct copy_span host; /* its one side, as the CPU sees it */
	const struct copy_span *to, *from;
	uint64_t to_at, from_at, left;
};

struct move_part { /* in one range on each side */
	CUdeviceptr to, from;
	uint64_t bytes;
};

static void
walk_begin(struct walk *walk, const struct move *move)
{
	*walk = (struct walk){.move = move,
		.host = {(CUdeviceptr)(uintptr_t)move->data, move->bytes},
		.to = move->to,
		.from = move->from,
		.left = move->bytes};
	if (move->op == GPU_READ)
		walk->to = &walk->host;
	else if (move->op == GPU_WRITE)
		walk->from = &walk->host;
}

static bool
walk_next(struct walk *walk, struct move_part *ret_part)
{
	if (walk->left == 0)
		return false;
	uint64_t bytes =
		th_min_u64(walk->to->bytes - walk->to_at, walk->from->bytes - walk->from_at);
	*ret_part = (struct move_part){
		walk->to->address + walk->to_at, walk->from->address + walk->from_at, bytes};
	walk->left -= bytes;
	walk->to_at += bytes;
	walk->from_at += bytes;
	if (walk->to_at == walk->to->bytes) {
		walk->to++;
		walk->to_at = 0;
	}
	if (walk->from_at == walk->from->bytes) {
		walk->from++;
		walk->from_at = 0;
	}
	return true;
}

static bool
is_reached(const struct move *move)
{
	return move->op == GPU_COPY || move->data_on_gpu != 0;
}

uint32_t
move_small(const struct move *move)
{
	struct walk walk;
	struct move_part part;
	uint32_t count = 0;
	walk_begin(&walk, move);
	while (is_reached(move) && walk_next(&walk, &part))
		count += part.bytes < MOVE_SMALL_BYTES;
	return count;
}

static bool
gathers(struct gpu_gather_batch *gather, const struct move *move, struct move_part part)
{
	CUdeviceptr host = move->data_on_gpu - (CUdeviceptr)(uintptr_t)move->data;
	if (!gather || part.bytes >= MOVE_SMALL_BYTES || !is_reached(move))
		return false;
	if (move->op == GPU_READ)
		part.to += host;
	else if (move->op == GPU_WRITE)
		part.from += host;
	return gpu_gather_add(gather, part.to, part.from, part.bytes);
}

/* The address of a peer's memory is as good as one of our own: it was opened for this GPU. */
static CUresult
gpu_move_call(const struct cuda *cuda, CUstream stream, enum gpu_run_op op,
	const struct move_part *part, const char **ret_call)
{
	if (op == GPU_READ) {
		*ret_call = "cuMemcpyDtoHAsync";
		return cuda->cuMemcpyDtoHAsync(
			(void *)(uintptr_t)part->to, part->from, part->bytes, stream);
	}
	if (op == GPU_WRITE) {
		*ret_call = "cuMemcpyHtoDAsync";
		return cuda->cuMemcpyHtoDAsync(
			part->to, (const void *)(uintptr_t)part->from, part->bytes, stream);
	}
	*ret_call = "cuMemcpyDtoDAsync";
	return cuda->cuMemcpyDtoDAsync(part->to, part->from, part->bytes, stream);
}

CUresult
move_ask(const struct cuda *cuda, CUstream stream, struct gpu_gather_batch *gather,
	const struct move *move, const char **ret_call)
{
	struct walk walk;
	struct move_part part;
	CUresult result = CUDA_SUCCESS;
	walk_begin(&walk, move);
	while (result == CUDA_SUCCESS && walk_next(&walk, &part)) {
		if (!gathers(gather, move, part))
			result = gpu_move_call(cuda, stream, move->op, &part, ret_call);
	}
	return result;
}
