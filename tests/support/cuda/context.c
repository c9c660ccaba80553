/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context - contexts: one primary of each GPU, and others; which is current is a thread's own.
 *
 * A context takes memory of its GPU itself. When the last reference to a primary one is given back
 * it ends, with all memory that was allocated or opened in it.
 */
#include "tests/support/cuda/calls.h"
#include "tests/support/cuda/gpu.h"

#define DEPTH_MAX 32u

static __thread CUcontext stack[DEPTH_MAX];
static __thread unsigned depth;

CUcontext
gpu_context(void)
{
	CUcontext context = depth ? stack[depth - 1] : NULL;
	return context && context->alive ? context : NULL;
}

CUresult
gpu_no_context(void)
{
	return depth && stack[depth - 1] ? CUDA_ERROR_CONTEXT_IS_DESTROYED
					 : CUDA_ERROR_INVALID_CONTEXT;
}

bool
gpu_is_context(CUcontext context)
{
	return context >= gpu.contexts && context < gpu.contexts + gpu.num_contexts &&
	       context->alive;
}

/* By its mode: no other process may have it, or nobody. */
static bool
is_closed(CUdevice device)
{
	int mode = gpu.machine.page->devices[device].compute_mode;
	int lock = machine_lock(&gpu.machine);
	bool used = machine_is_used(&gpu.machine, device, gpu.pid);
	machine_unlock(lock);
	return mode == CU_COMPUTEMODE_PROHIBITED ||
	       (mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS && used);
}

static CUresult
new_context(CUcontext *ret_context, CUdevice device, unsigned flags, bool primary)
{
	struct machine_chunk form = {.device = device,
		.kind = MACHINE_CONTEXT,
		.bytes = gpu.machine.page->devices[device].context_bytes,
		.owner = gpu.pid};
	int chunk = -1;
	CUresult result = gpu_lost(device);
	if (result != CUDA_SUCCESS)
		return result;
	if (is_closed(device))
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	if (gpu.num_contexts == GPU_CONTEXTS_MAX)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = gpu_take(&form, &chunk);
	if (result != CUDA_SUCCESS)
		return result;
	CUcontext context = &gpu.contexts[gpu.num_contexts++];
	*context = (struct CUctx_st){.device = device,
		.alive = true,
		.primary = primary,
		.refs = 1,
		.flags = flags,
		.chunk = chunk};
	gpu_count(HELD_CONTEXTS, 1);
	*ret_context = context;
	return CUDA_SUCCESS;
}

static void
end_context(CUcontext context)
{
	gpu_streams_end(context);
	gpu_modules_end(context);
	context->alive = false;
	gpu_regions_of(context);
	gpu_drop(context->chunk);
	gpu_count(HELD_CONTEXTS, -1);
	if (context->primary)
		gpu.primary[context->device] = NULL;
}

CUresult
cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	ENTER(cuDevicePrimaryCtxRetain);
	if (!gpu_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&gpu.lock);
	CUcontext *primary = &gpu.primary[device];
	CUresult result = CUDA_SUCCESS;
	if (*primary)
		(*primary)->refs++;
	else
		result = new_context(primary, device, gpu.primary_flags[device], true);
	if (result == CUDA_SUCCESS)
		*context = *primary;
	return gpu_leave(result);
}

CUresult
cuDevicePrimaryCtxRelease(CUdevice device)
{
	ENTER(cuDevicePrimaryCtxRelease);
	if (!gpu_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&gpu.lock);
	CUcontext primary = gpu.primary[device];
	if (!primary)
		return gpu_leave(CUDA_ERROR_INVALID_CONTEXT);
	if (--primary->refs == 0)
		end_context(primary);
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
	ENTER(cuDevicePrimaryCtxSetFlags);
	if (!gpu_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	gpu.primary_flags[device] = flags;
	return CUDA_SUCCESS;
}

CUresult
cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
	ENTER(cuDevicePrimaryCtxGetState);
	if (!gpu_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*flags = gpu.primary_flags[device];
	*active = gpu.primary[device] != NULL;
	return CUDA_SUCCESS;
}

CUresult
cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
	ENTER(cuCtxCreate);
	if (!gpu_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (depth == DEPTH_MAX)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&gpu.lock);
	CUresult result = new_context(context, device, flags, false);
	if (result == CUDA_SUCCESS)
		stack[depth++] = *context;
	return gpu_leave(result);
}

CUresult
cuCtxDestroy(CUcontext context)
{
	ENTER(cuCtxDestroy);
	pthread_mutex_lock(&gpu.lock);
	if (!gpu_is_context(context) || context->primary)
		return gpu_leave(CUDA_ERROR_INVALID_CONTEXT);
	end_context(context);
	if (depth && stack[depth - 1] == context)
		depth--;
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuCtxPushCurrent(CUcontext context)
{
	ENTER(cuCtxPushCurrent);
	if (!gpu_is_context(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (depth == DEPTH_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	stack[depth++] = context;
	return CUDA_SUCCESS;
}

CUresult
cuCtxPopCurrent(CUcontext *context)
{
	ENTER(cuCtxPopCurrent);
	if (depth == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (context)
		*context = stack[depth];
	return CUDA_SUCCESS;
}

CUresult
cuCtxSetCurrent(CUcontext context)
{
	ENTER(cuCtxSetCurrent);
	if (context && !gpu_is_context(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context) {
		depth -= depth ? 1 : 0;
		return CUDA_SUCCESS;
	}
	if (depth == 0)
		depth = 1;
	stack[depth - 1] = context;
	return CUDA_SUCCESS;
}

CUresult
cuCtxGetCurrent(CUcontext *context)
{
	ENTER(cuCtxGetCurrent);
	*context = depth ? stack[depth - 1] : NULL;
	return CUDA_SUCCESS;
}

CUresult
cuCtxGetDevice(CUdevice *device)
{
	ENTER(cuCtxGetDevice);
	CUcontext context = gpu_context();
	if (!context)
		return gpu_no_context();
	*device = context->device;
	return CUDA_SUCCESS;
}

CUresult
cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	ENTER(cuCtxGetStreamPriorityRange);
	if (!gpu_context())
		return gpu_no_context();
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

CUresult
cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	ENTER(cuCtxEnablePeerAccess);
	CUcontext context = gpu_context();
	if (!context)
		return gpu_no_context();
	if (flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!gpu_is_context(peer) || peer == context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (peer->device == context->device ||
		!(gpu.machine.page->devices[context->device].peers >> peer->device & 1u))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	if (context->peers >> peer->device & 1u)
		return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	context->peers |= 1u << peer->device;
	return CUDA_SUCCESS;
}
