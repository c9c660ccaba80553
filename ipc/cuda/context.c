/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context - see context.h.
 */
#include "ipc/cuda/context.h"

static bool
context_is_of(const struct cuda *cuda, CUcontext context, CUdevice device)
{
	CUdevice found = -1;
	if (!context || cuda->cuCtxPushCurrent(context) != CUDA_SUCCESS)
		return false;
	bool same = cuda->cuCtxGetDevice(&found) == CUDA_SUCCESS && found == device;
	(void)cuda->cuCtxPopCurrent(&context);
	return same;
}

static CUcontext
context_find(const struct cuda *cuda, CUdeviceptr address, struct cuda_context *context)
{
	CUcontext found = NULL;
	unsigned flags = 0;
	int active = 0;
	/* Memory of a pool, and mapped chunks, belong to none. */
	if (cuda->cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_CONTEXT, address) ==
			CUDA_SUCCESS &&
		context_is_of(cuda, found, context->device))
		return found;
	if (cuda->cuCtxGetCurrent(&found) == CUDA_SUCCESS &&
		context_is_of(cuda, found, context->device))
		return found;
	/* Never the first one to retain it: that would make it. */
	if (cuda->cuDevicePrimaryCtxGetState(context->device, &flags, &active) == CUDA_SUCCESS &&
		active != 0 &&
		cuda->cuDevicePrimaryCtxRetain(&found, context->device) == CUDA_SUCCESS) {
		context->retained = true;
		return found;
	}
	return NULL;
}

int
cuda_context_enter(const struct cuda *cuda, int ordinal, CUdeviceptr address,
	struct cuda_context *ret_context, struct th_err *err)
{
	struct cuda_context context = {.cuda = cuda};
	CUresult result = cuda->cuDeviceGet(&context.device, ordinal);
	if (result != CUDA_SUCCESS)
		return th_fail(err, TH_E_MEMORY_KIND, "GPU %d: cuDeviceGet says %s", ordinal,
			cuda_result_name(cuda, result));
	CUcontext found = context_find(cuda, address, &context);
	if (!found)
		return th_fail(err, TH_E_MEMORY_KIND,
			"GPU %d has no context in this process; call this on a thread where the "
			"framework has set the device",
			ordinal);
	result = cuda->cuCtxPushCurrent(found);
	if (result != CUDA_SUCCESS) {
		if (context.retained)
			(void)cuda->cuDevicePrimaryCtxRelease(context.device);
		return th_fail(err, TH_E_STALE_MEMORY, "the context of GPU %d is gone: %s", ordinal,
			cuda_result_name(cuda, result));
	}
	*ret_context = context;
	return 0;
}

void
cuda_context_leave(const struct cuda_context *context)
{
	CUcontext old = NULL;
	(void)context->cuda->cuCtxPopCurrent(&old);
	if (context->retained)
		(void)context->cuda->cuDevicePrimaryCtxRelease(context->device);
}
