/* SPDX-License-Identifier: Apache-2.0 */
/*
 * used - asks NVIDIA's management library.
 *
 * Of it three calls are used, in forms that it has had since it first came. Names and numbers are
 * its own (NVML API Reference Guide).
 */
#include "transport/cuda/helper/used.h"

#include <dlfcn.h>
#include <string.h>

#include "ipc/cuda/cuda_handle.h"

#define NVML_LIBRARY "libnvidia-ml.so.1"
#define NVML_SUCCESS 0

struct nvml_memory {
	unsigned long long total, free, used;
};

typedef int (*plain_fn)(void);
typedef int (*find_fn)(const char *uuid, void **ret_device);
typedef int (*memory_fn)(void *device, struct nvml_memory *ret_memory);

/* False: there is none. */
static _Bool
find_call(void *library, const char *name, void *ret_call)
{
	void *address = dlsym(library, name);
	memcpy(ret_call, &address, sizeof(address));
	return address != NULL;
}

static int
find_device(void *library, const uint8_t uuid[16], void **ret_device)
{
	plain_fn init = NULL;
	find_fn find = NULL;
	char text[CUDA_UUID_TEXT_BYTES];
	if (!find_call(library, "nvmlInit_v2", &init) ||
		!find_call(library, "nvmlDeviceGetHandleByUUID", &find) || init() != NVML_SUCCESS)
		return -1;
	return find(cuda_uuid_text(uuid, text), ret_device) == NVML_SUCCESS ? 0 : -1;
}

void
used_begin(struct used *used, const uint8_t uuid[16])
{
	memset(used, 0, sizeof(*used));
	used->library = dlopen(NVML_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (used->library && find_device(used->library, uuid, &used->device) < 0)
		used_end(used);
}

void
used_end(struct used *used)
{
	plain_fn shutdown = NULL;
	if (!used->library)
		return;
	if (find_call(used->library, "nvmlShutdown", &shutdown))
		shutdown();
	dlclose(used->library);
	memset(used, 0, sizeof(*used));
}

int64_t
used_bytes(const struct used *used)
{
	struct nvml_memory memory = {0};
	memory_fn get = NULL;
	if (!used->library || !find_call(used->library, "nvmlDeviceGetMemoryInfo", &get) ||
		get(used->device, &memory) != NVML_SUCCESS || memory.used > INT64_MAX)
		return -1;
	return (int64_t)memory.used;
}
