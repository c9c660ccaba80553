/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather - see gather.h. The kernel is gather_kernel.h; this writes its table.
 */
#include "transport/cuda/helper/gather.h"

#include <errno.h>
#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"
#include "transport/cuda/helper/module.h"
#include "transport/cuda/kernels/gather_task.h"
#include "transport/cuda/kernels/kernel_ptx.h"

#define WITHOUT "the GPU cannot copy many ranges at once"
#define WARPS_OF_BLOCK (GATHER_KERNEL_THREADS / GATHER_WARP)

struct gpu_gather {
	const struct cuda *cuda; /* borrows */
	struct gpu_module module;
};

struct gpu_gather_batch {
	const struct cuda *cuda; /* borrows */
	CUfunction kernel;
	struct gpu_table table;    /* owns */
	struct gather_task *tasks; /* in the table */
	uint32_t num_tasks, launched;
};

int
gpu_gather_open(
	const struct cuda *cuda, int device, struct gpu_gather **ret_gather, struct th_err *err)
{
	struct gpu_module module;
	int rc = gpu_module_open(cuda, device, gather_ptx, GATHER_KERNEL, WITHOUT, &module, err);
	if (rc < 0)
		return rc;
	struct gpu_gather *gather = th_calloc(1, sizeof(*gather));
	gather->cuda = cuda;
	gather->module = module;
	*ret_gather = gather;
	return 0;
}

void
gpu_gather_close(struct gpu_gather *gather)
{
	if (!gather)
		return;
	gpu_module_close(gather->cuda, &gather->module);
	free(gather);
}

int
gpu_gather_batch_new(
	struct gpu_gather *gather, struct gpu_gather_batch **ret_batch, struct th_err *err)
{
	struct gpu_table table;
	int rc = gpu_table_new(gather->cuda, GPU_GATHER_PIECES_MAX * sizeof(struct gather_task),
		WITHOUT, &table, err);
	if (rc < 0)
		return rc;
	struct gpu_gather_batch *batch = th_calloc(1, sizeof(*batch));
	batch->cuda = gather->cuda;
	batch->kernel = gather->module.kernel;
	batch->table = table;
	batch->tasks = (void *)table.host;
	*ret_batch = batch;
	return 0;
}

void
gpu_gather_batch_free(struct gpu_gather_batch *batch)
{
	if (!batch)
		return;
	gpu_table_free(batch->cuda, &batch->table);
	free(batch);
}

void
gpu_gather_begin(struct gpu_gather_batch *batch)
{
	batch->num_tasks = batch->launched = 0;
}

bool
gpu_gather_add(struct gpu_gather_batch *batch, CUdeviceptr to, CUdeviceptr from, uint64_t bytes)
{
	const uint64_t room = GPU_GATHER_PIECES_MAX - batch->num_tasks;
	if (bytes > room * GPU_GATHER_PIECE_BYTES)
		return false;
	while (bytes > 0) {
		uint32_t part = (uint32_t)th_min_u64(bytes, GPU_GATHER_PIECE_BYTES);
		batch->tasks[batch->num_tasks++] =
			(struct gather_task){.to = to, .from = from, .bytes = part};
		to += part;
		from += part;
		bytes -= part;
	}
	return true;
}

int
gpu_gather_launch(struct gpu_gather_batch *batch, CUstream stream, struct th_err *err)
{
	CUdeviceptr tasks = batch->table.device + batch->launched * sizeof(struct gather_task);
	uint64_t count = batch->num_tasks - batch->launched;
	uint64_t blocks =
		th_min_u64((count + WARPS_OF_BLOCK - 1) / WARPS_OF_BLOCK, GPU_GATHER_BLOCKS);
	void *arguments[] = {&tasks, &count};
	if (count == 0)
		return 0;
	CUresult result = batch->cuda->cuLaunchKernel(batch->kernel, (unsigned)blocks, 1, 1,
		GATHER_KERNEL_THREADS, 1, 1, 0, stream, arguments, NULL);
	if (result != CUDA_SUCCESS)
		return th_fail(err, -EIO, WITHOUT ": cuLaunchKernel says %s",
			cuda_result_name(batch->cuda, result));
	batch->launched = batch->num_tasks;
	return 0;
}
