/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module - loads kernels and pins their tables.
 */
#include "transport/cuda/helper/module.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define CAPABILITY_MAJOR_MIN 7

static int
module_fail(const struct cuda *cuda, CUresult result, const char *call, const char *without,
	struct th_err *err)
{
	/* These have nothing against the GPU, but do not take the text. */
	bool refused = result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_INVALID_PTX ||
		       result == CUDA_ERROR_JIT_COMPILER_NOT_FOUND ||
		       result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ||
		       result == CUDA_ERROR_JIT_COMPILATION_DISABLED ||
		       result == CUDA_ERROR_NOT_FOUND || result == CUDA_ERROR_NOT_SUPPORTED;
	return th_fail(err, refused ? TH_E_NOT_AVAILABLE : -EIO, "%s: %s says %s", without, call,
		cuda_result_name(cuda, result));
}

static int
check_device(const struct cuda *cuda, int device, const char *without, struct th_err *err)
{
	int major = 0;
	CUresult result = cuda->cuDeviceGetAttribute(
		&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
	if (result != CUDA_SUCCESS)
		return th_fail(err, -EIO, "%s: cuDeviceGetAttribute says %s", without,
			cuda_result_name(cuda, result));
	if (major < CAPABILITY_MAJOR_MIN)
		return th_fail(err, TH_E_NOT_AVAILABLE,
			"%s: it is of compute capability %d, %d.0 is needed", without, major,
			CAPABILITY_MAJOR_MIN);
	return 0;
}

int
gpu_module_open(const struct cuda *cuda, int device, const char *text, const char *kernel,
	const char *without, struct gpu_module *ret_module, struct th_err *err)
{
	struct gpu_module module = {0};
	int rc = check_device(cuda, device, without, err);
	if (rc < 0)
		return rc;
	CUresult result = cuda->cuModuleLoadData(&module.module, text);
	if (result != CUDA_SUCCESS)
		return module_fail(cuda, result, "cuModuleLoadData", without, err);
	result = cuda->cuModuleGetFunction(&module.kernel, module.module, kernel);
	if (result != CUDA_SUCCESS) {
		gpu_module_close(cuda, &module);
		return module_fail(cuda, result, "cuModuleGetFunction", without, err);
	}
	*ret_module = module;
	return 0;
}

void
gpu_module_close(const struct cuda *cuda, struct gpu_module *module)
{
	cuda->cuModuleUnload(module->module);
}

/* A GPU that cannot map it does not refuse it at first: "the failure is deferred to
 * cuMemHostGetDevicePointer()" (CUDA driver API, cuMemHostRegister). */
CUresult
gpu_pin(const struct cuda *cuda, void *host, size_t bytes, CUdeviceptr *ret_on_gpu)
{
	CUdeviceptr on_gpu = 0;
	CUresult result = cuda->cuMemHostRegister(
		host, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	if (result == CUDA_SUCCESS &&
		cuda->cuMemHostGetDevicePointer(&on_gpu, host, 0) != CUDA_SUCCESS)
		on_gpu = 0;
	*ret_on_gpu = on_gpu;
	return result;
}

int
gpu_table_new(const struct cuda *cuda, size_t bytes, const char *without,
	struct gpu_table *ret_table, struct th_err *err)
{
	void *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (host == MAP_FAILED)
		return th_fail(err, -errno, "%s: no memory: %s", without, strerror(errno));
	struct gpu_table table = {.host = host, .bytes = bytes};
	const char *call = "cuMemHostRegister";
	CUresult result = cuda->cuMemHostRegister(host, bytes, CU_MEMHOSTREGISTER_DEVICEMAP);
	table.pinned = result == CUDA_SUCCESS;
	if (result == CUDA_SUCCESS) {
		call = "cuMemHostGetDevicePointer";
		result = cuda->cuMemHostGetDevicePointer(&table.device, host, 0);
	}
	if (result != CUDA_SUCCESS) {
		gpu_table_free(cuda, &table);
		return th_fail(err, result == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO,
			"%s: %s says %s", without, call, cuda_result_name(cuda, result));
	}
	*ret_table = table;
	return 0;
}

void
gpu_table_free(const struct cuda *cuda, struct gpu_table *table)
{
	/* The driver takes whatever comes to lie there for these pages: nothing may. */
	if (table->pinned && cuda->cuMemHostUnregister(table->host) != CUDA_SUCCESS)
		return;
	munmap(table->host, table->bytes);
}
