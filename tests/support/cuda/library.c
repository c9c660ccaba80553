/* SPDX-License-Identifier: Apache-2.0 */
/*
 * library - a libcuda.so.1 for tests: its door, its devices, and the faults that are planned.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/cuda/calls.h"
#include "tests/support/cuda/gpu.h"

#define EXPORT __attribute__((visibility("default")))

struct gpu gpu = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* ---- what every call begins with ------------------------------------------------------------ */

CUresult
gpu_lost(int device)
{
	return (CUresult)gpu.machine.page->devices[device].lost;
}

static CUresult
hang(struct machine_plan *plan)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	while (plan->fault == FAULT_HANG)
		nanosleep(&pause, NULL);
	return CUDA_SUCCESS;
}

CUresult
gpu_plan_met(int call)
{
	for (unsigned i = 0; i < MACHINE_FAULTS_MAX; i++) {
		struct machine_plan *plan = &gpu.machine.page->plans[i];
		int fault = plan->fault;
		if (!fault || plan->call != call || (plan->pid && plan->pid != gpu.pid))
			continue;
		if (atomic_fetch_sub(&plan->after, 1) > 0)
			continue;
		plan->met++;
		if (fault == FAULT_HANG)
			return hang(plan);
		if (fault == FAULT_IDLE)
			return GPU_IDLE;
		CUcontext context = gpu_context();
		if (fault == FAULT_LOST)
			machine_lose(&gpu.machine, context ? context->device : 0, plan->result);
		return plan->result;
	}
	return CUDA_SUCCESS;
}

/* Works whatever has become of the GPU: it asks it nothing. */
static bool
is_harmless(int call)
{
	static const int calls[] = {CALL_cuInit, CALL_cuDriverGetVersion, CALL_cuGetErrorName,
		CALL_cuGetErrorString, CALL_cuDeviceGetCount, CALL_cuDeviceGet,
		CALL_cuDeviceGetName, CALL_cuDeviceGetUuid, CALL_cuDeviceGetPCIBusId,
		CALL_cuCtxPushCurrent, CALL_cuCtxPopCurrent, CALL_cuCtxSetCurrent,
		CALL_cuCtxGetCurrent, CALL_cuCtxGetDevice};
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		if (calls[i] == call)
			return true;
	return false;
}

CUresult
gpu_enter(int call)
{
	if (gpu.pid == 0 || gpu.pid != getpid()) /* a child of fork() has no driver either */
		return CUDA_ERROR_NOT_INITIALIZED;
	gpu.process->calls[call]++;
	CUresult result = gpu_plan_met(call);
	CUcontext context = gpu_context();
	if (result == CUDA_SUCCESS && context && !is_harmless(call))
		result = gpu_lost(context->device);
	return result;
}

void
gpu_count(enum machine_held held, int change)
{
	gpu.process->held[held] += change;
}

bool
gpu_is_device(CUdevice device)
{
	return device >= 0 && device < (int)gpu.machine.page->num_devices;
}

/* ---- the door ------------------------------------------------------------------------------- */

static struct machine_process *
claim_process(pid_t pid)
{
	struct machine_process *processes = gpu.machine.page->processes;
	for (unsigned i = 0; i < MACHINE_PROCESSES_MAX; i++) {
		pid_t none = 0;
		if (atomic_compare_exchange_strong(&processes[i].pid, &none, pid))
			return &processes[i];
	}
	for (unsigned i = 0; i < MACHINE_PROCESSES_MAX; i++) {
		pid_t dead = processes[i].pid;
		if (dead == pid || kill(dead, 0) == 0 || errno != ESRCH ||
			!atomic_compare_exchange_strong(&processes[i].pid, &dead, pid))
			continue;
		for (int held = 0; held < HELDS; held++)
			processes[i].held[held] = 0;
		for (int call = 0; call < CALLS; call++)
			processes[i].calls[call] = 0;
		return &processes[i];
	}
	return NULL;
}

CUresult
cuInit(unsigned flags)
{
	pid_t pid = getpid();
	if (gpu.pid && gpu.pid != pid)
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&gpu.lock);
	const char *folder = getenv(MACHINE_ENV);
	if (flags != 0)
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	if (!gpu.pid) {
		int rc = folder ? machine_open(&gpu.machine, folder) : -ENODEV;
		if (rc == 0)
			gpu.process = claim_process(pid);
		if (folder && *folder && !gpu.process)
			fprintf(stderr, "no GPUs of %s: %s\n", folder,
				rc < 0 ? strerror(-rc) : "too many processes");
		if (!gpu.process || gpu.machine.page->num_devices == 0)
			return gpu_leave(CUDA_ERROR_NO_DEVICE);
		gpu.pid = pid;
	}
	gpu_leave(CUDA_SUCCESS);
	return gpu_enter(CALL_cuInit);
}

EXPORT CUresult
cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = 13000;
	return CUDA_SUCCESS;
}

static const struct {
	CUresult result;
	const char *name;
} names[] = {
#define NAME(name, number) {name, #name},
	CUDA_RESULTS(NAME)
#undef NAME
};

CUresult
cuGetErrorName(CUresult result, const char **name)
{
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (names[i].result != result)
			continue;
		*name = names[i].name;
		return CUDA_SUCCESS;
	}
	*name = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult
cuGetErrorString(CUresult result, const char **text)
{
	return cuGetErrorName(result, text);
}

static const struct {
	const char *name;
	int version;
	void *address;
} doors[] = {
#define DOOR(name, version, arguments) {#name, version, (void *)(uintptr_t)name},
	CUDA_ALL_CALLS(DOOR)
#undef DOOR
};

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **address, int version,
	unsigned long long flags, CUdriverProcAddressQueryResult *found);

EXPORT CUresult
cuGetProcAddress_v2(const char *name, void **address, int version, unsigned long long flags,
	CUdriverProcAddressQueryResult *found)
{
	(void)flags;
	*address = NULL;
	*found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	for (size_t i = 0; i < sizeof(doors) / sizeof(doors[0]); i++) {
		if (strcmp(name, doors[i].name) != 0)
			continue;
		/* It has one form of each call: another one must not be taken for it. */
		*found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		if (version != doors[i].version)
			break;
		*found = CU_GET_PROC_ADDRESS_SUCCESS;
		*address = doors[i].address;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_FOUND;
}

/* ---- devices -------------------------------------------------------------------------------- */

CUresult
cuDeviceGetCount(int *count)
{
	ENTER(cuDeviceGetCount);
	*count = (int)gpu.machine.page->num_devices;
	return CUDA_SUCCESS;
}

CUresult
cuDeviceGet(CUdevice *device, int ordinal)
{
	ENTER(cuDeviceGet);
	if (!gpu_is_device(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

CUresult
cuDeviceGetName(char *name, int bytes, CUdevice device)
{
	ENTER(cuDeviceGetName);
	if (!gpu_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (bytes <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)bytes, "%s", gpu.machine.page->devices[device].name);
	return CUDA_SUCCESS;
}

CUresult
cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	ENTER(cuDeviceGetUuid);
	if (!gpu_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*uuid = gpu.machine.page->devices[device].uuid;
	return CUDA_SUCCESS;
}

CUresult
cuDeviceGetPCIBusId(char *name, int bytes, CUdevice device)
{
	ENTER(cuDeviceGetPCIBusId);
	if (!gpu_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (bytes <= (int)strlen(gpu.machine.page->devices[device].pci))
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)bytes, "%s", gpu.machine.page->devices[device].pci);
	return CUDA_SUCCESS;
}

CUresult
cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
	ENTER(cuDeviceTotalMem);
	if (!gpu_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*bytes = gpu.machine.page->devices[device].bytes;
	return CUDA_SUCCESS;
}

CUresult
cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	ENTER(cuDeviceGetAttribute);
	if (!gpu_is_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	const struct machine_device *it = &gpu.machine.page->devices[device];
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
		*value = it->compute_mode;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = it->capability / 10;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*value = it->capability % 10;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
		*value = 1;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
		*value = it->vmm_rdma;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
		*value = 100; /* the owner of the memory sees them in order */
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
		*value = it->pools;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
		*value = it->pool_types;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
		*value = it->dma_buf;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult
cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	ENTER(cuDeviceCanAccessPeer);
	if (!gpu_is_device(device) || !gpu_is_device(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	*can = device != peer && (gpu.machine.page->devices[device].peers >> peer & 1u);
	return CUDA_SUCCESS;
}
