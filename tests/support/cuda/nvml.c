/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvml - a libnvidia-ml.so.1 for tests: how much of the memory of GPUs in a folder is taken.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cuda/machine.h"

#define EXPORT __attribute__((visibility("default")))
#define SUCCESS 0
#define UNINITIALIZED 1
#define INVALID_ARGUMENT 2
#define NOT_FOUND 6
#define GPU_IS_LOST 15
#define UNKNOWN 999

struct memory {
	unsigned long long total, free, used;
};

static struct machine machine;

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **ret_device);
EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory *ret_memory);

int
nvmlInit_v2(void)
{
	const char *folder = getenv(MACHINE_ENV);
	if (machine.page)
		return SUCCESS;
	return folder && machine_open(&machine, folder) == 0 ? SUCCESS : UNKNOWN;
}

int
nvmlShutdown(void)
{
	if (!machine.page)
		return UNINITIALIZED;
	machine_close(&machine);
	memset(&machine, 0, sizeof(machine));
	return SUCCESS;
}

int
nvmlDeviceGetHandleByUUID(const char *uuid, void **ret_device)
{
	if (!machine.page)
		return UNINITIALIZED;
	for (unsigned i = 0; i < machine.page->num_devices; i++) {
		const unsigned char *b = (const unsigned char *)machine.page->devices[i].uuid.bytes;
		char text[64];
		snprintf(text, sizeof(text),
			"GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
			b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11],
			b[12], b[13], b[14], b[15]);
		if (strcmp(text, uuid) != 0)
			continue;
		*ret_device = (void *)(uintptr_t)(i + 1);
		return SUCCESS;
	}
	return NOT_FOUND;
}

int
nvmlDeviceGetMemoryInfo(void *device, struct memory *ret_memory)
{
	uintptr_t number = (uintptr_t)device;
	if (!machine.page)
		return UNINITIALIZED;
	if (number == 0 || number > machine.page->num_devices)
		return INVALID_ARGUMENT;
	const struct machine_device *it = &machine.page->devices[number - 1];
	if (it->lost)
		return GPU_IS_LOST;
	ret_memory->total = it->bytes;
	ret_memory->used = machine_used(&machine, (int)number - 1);
	ret_memory->free = ret_memory->total - ret_memory->used;
	return SUCCESS;
}
