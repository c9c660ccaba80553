/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel - modules and launches. A module is a text of PTX that names kernels; those of its kernels
 * that are known here run on the CPU.
 */
#include "tests/support/cuda/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "tests/support/cuda/calls.h"
#include "tests/support/cuda/gpu.h"

#define MODULES_MAX 64u
#define GRID_MAX 0x7fffffffu

static const struct kernel *const kernels[] = {&kernel_leaf_digests, &kernel_gather};
#define KERNELS (sizeof(kernels) / sizeof(kernels[0]))

struct CUfunc_st {
	CUmodule module;
	const struct kernel *kernel;
};

struct CUmod_st {
	CUcontext context;
	bool alive;
	char *text; /* owns */
	struct CUfunc_st functions[KERNELS];
};

static struct CUmod_st modules[MODULES_MAX];

struct launch {
	const struct kernel *kernel;
	unsigned blocks, threads;
	uint64_t arguments[KERNEL_ARGUMENTS_MAX];
};

/* ---- the memory that a kernel reaches -------------------------------------------------------- */

struct window { /* device addresses that lie behind each other here as well */
	CUdeviceptr from, to;
	bool write;
	char *data;
};

/* Of the launch that the thread runs. */
static _Thread_local struct {
	int device;
	bool failed;
	unsigned next;
	struct window windows[4];
	char nowhere[16] __attribute__((aligned(16)));
} running;

/* All of a GPU's memory, once. With the lock. */
static char *
memory_of(int device)
{
	static char *memory[MACHINE_DEVICES_MAX];
	if (!memory[device]) {
		void *data = mmap(NULL, gpu.machine.page->devices[device].bytes,
			PROT_READ | PROT_WRITE, MAP_SHARED, gpu.machine.files[device], 0);
		TH_ASSERT(data != MAP_FAILED);
		memory[device] = data;
	}
	return memory[device];
}

static bool
find_window(CUdeviceptr address, bool write, struct window *ret_window)
{
	pthread_mutex_lock(&gpu.lock);
	const struct region *region = gpu_region_at(address);
	struct window host = {.write = true};
	host.data = region ? NULL : gpu_host_at(address, &host.from, &host.to);
	if (host.data) {
		*ret_window = host;
		pthread_mutex_unlock(&gpu.lock);
		return true;
	}
	bool found = region && ((write ? region->writers : region->readers) >> running.device & 1u);
	if (found)
		*ret_window = (struct window){.from = region->base,
			.to = region->base + region->bytes,
			.write = write,
			.data = region->chunk < 0
					? (char *)(uintptr_t)region->base
					: memory_of(region->device) +
						  gpu.machine.page->chunks[region->chunk].offset +
						  gpu_region_offset(region)};
	pthread_mutex_unlock(&gpu.lock);
	return found;
}

void *
kernel_memory(CUdeviceptr address, bool write)
{
	for (unsigned i = 0; i < 4; i++) {
		const struct window *window = &running.windows[i];
		if (address >= window->from && address < window->to && (window->write || !write))
			return window->data + (address - window->from);
	}
	struct window *window = &running.windows[running.next++ % 4];
	if (find_window(address, write, window))
		return window->data + (address - window->from);
	running.failed = true;
	return running.nowhere;
}

static CUresult
run_launch(const void *argument, int device)
{
	const struct launch *launch = argument;
	memset(&running, 0, sizeof(running));
	running.device = device;
	launch->kernel->run(launch->arguments, launch->blocks, launch->threads);
	return running.failed ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

/* ---- modules -------------------------------------------------------------------------------- */

static bool
is_module(CUmodule module)
{
	return module >= modules && module < modules + MODULES_MAX && module->alive;
}

void
gpu_modules_end(CUcontext context)
{
	for (unsigned i = 0; i < MODULES_MAX; i++)
		if (modules[i].alive && modules[i].context == context) {
			modules[i].alive = false;
			free(modules[i].text);
			gpu_count(HELD_MODULES, -1);
		}
}

/* What the driver looks for before it compiles a text. */
static CUresult
check_text(const char *text, int device)
{
	const char *version = strstr(text, "\n.version "), *target = strstr(text, "\n.target sm_");
	int major = 0, capability = 0;
	if (!version || !target || sscanf(version, " .version %d", &major) != 1 ||
		sscanf(target, " .target sm_%d", &capability) != 1)
		return CUDA_ERROR_INVALID_PTX;
	if (major > 9)
		return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
	if (capability > gpu.machine.page->devices[device].capability)
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	return CUDA_SUCCESS;
}

CUresult
cuModuleLoadData(CUmodule *module, const void *image)
{
	ENTER(cuModuleLoadData);
	CUcontext context = gpu_context();
	if (!context)
		return gpu_no_context();
	if (!module || !image)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = check_text(image, context->device);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&gpu.lock);
	unsigned number = 0;
	while (number < MODULES_MAX && modules[number].alive)
		number++;
	if (number == MODULES_MAX)
		return gpu_leave(CUDA_ERROR_OUT_OF_MEMORY);
	modules[number] =
		(struct CUmod_st){.context = context, .alive = true, .text = th_strdup(image)};
	*module = &modules[number];
	gpu_count(HELD_MODULES, 1);
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuModuleUnload(CUmodule module)
{
	ENTER(cuModuleUnload);
	pthread_mutex_lock(&gpu.lock);
	if (!is_module(module))
		return gpu_leave(CUDA_ERROR_INVALID_HANDLE);
	CUresult result = gpu_wait_device(module->context->device);
	module->alive = false;
	free(module->text);
	gpu_count(HELD_MODULES, -1);
	return gpu_leave(result);
}

CUresult
cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	ENTER(cuModuleGetFunction);
	char entry[128];
	pthread_mutex_lock(&gpu.lock);
	if (!is_module(module))
		return gpu_leave(CUDA_ERROR_INVALID_HANDLE);
	if (!function || !name)
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	snprintf(entry, sizeof(entry), ".visible .entry %s(", name);
	for (size_t i = 0; i < KERNELS; i++) {
		if (strcmp(kernels[i]->name, name) != 0 || !strstr(module->text, entry))
			continue;
		module->functions[i] = (struct CUfunc_st){.module = module, .kernel = kernels[i]};
		*function = &module->functions[i];
		return gpu_leave(CUDA_SUCCESS);
	}
	return gpu_leave(CUDA_ERROR_NOT_FOUND);
}

/* ---- launches ------------------------------------------------------------------------------- */

static bool
is_function(CUfunction function)
{
	for (unsigned i = 0; i < MODULES_MAX; i++)
		if (modules[i].alive && function >= modules[i].functions &&
			function < modules[i].functions + KERNELS)
			return function->kernel != NULL;
	return false;
}

CUresult
cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
	unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
	CUstream stream, void **arguments, void **extra)
{
	ENTER(cuLaunchKernel);
	pthread_mutex_lock(&gpu.lock);
	if (!is_function(function))
		return gpu_leave(CUDA_ERROR_INVALID_HANDLE);
	const struct kernel *kernel = function->kernel;
	if (grid_x == 0 || grid_x > GRID_MAX || grid_y != 1 || grid_z != 1 || block_x == 0 ||
		block_x > kernel->threads_max || block_y != 1 || block_z != 1 || shared_bytes ||
		extra || (kernel->num_arguments > 0 && !arguments))
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	struct launch launch = {.kernel = kernel, .blocks = grid_x, .threads = block_x};
	for (unsigned i = 0; i < kernel->num_arguments; i++)
		memcpy(&launch.arguments[i], arguments[i], sizeof(launch.arguments[i]));
	return gpu_leave(gpu_queue_call(run_launch, &launch, sizeof(launch), stream));
}
