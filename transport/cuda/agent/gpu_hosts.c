/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_hosts - host memory of the agent that GPUs reach (gpus.h), but for which of it a process has:
 * that is in gpu_pins.c.
 *
 * Who made it and each request that names it have a reference. After the last one nobody names it
 * any more, so each GPU that was ever told of it forgets it, and the last of them tells the owner.
 */
#include <stdlib.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "transport/cuda/agent/gpus_own.h"

/* Pinned in some 50 ms where its pages are small ones, and not too many for a large memory. */
#define SLICE_BYTES (UINT64_C(256) << 20)

struct gpus_host *
host_make(int fd, uint8_t *data, uint64_t bytes, uint64_t slice_bytes)
{
	struct gpus_host *host = th_calloc(1, sizeof(*host));
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	TH_ASSERT(bytes > 0 && bytes % page == 0 && slice_bytes % page == 0);
	host->fd = fd;
	host->data = data;
	host->bytes = bytes;
	host->slice_bytes = slice_bytes;
	host->num_slices = (uint32_t)((bytes + slice_bytes - 1) / slice_bytes);
	host->refs = 1;
	return host;
}

struct gpus_host *
gpus_host_new(struct gpus *gpus, const struct gpus_host_memory *memory)
{
	struct gpus_host *host = host_make(memory->fd, memory->data, memory->bytes,
		memory->slice_bytes ? memory->slice_bytes : SLICE_BYTES);
	host->gpus = gpus;
	host->gone = memory->gone;
	host->arg = memory->arg;
	return host;
}

void
host_free(struct gpus_host *host)
{
	if (!host)
		return;
	for (uint32_t i = 0; i < GPUS_MAX; i++) {
		TH_ASSERT(host->num_pins[i] == 0);
		free(host->areas[i]);
	}
	free(host);
}

void
host_left(struct gpus_host *host)
{
	if (__atomic_sub_fetch(&host->left, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	void (*gone)(void *arg) = host->gone;
	void *arg = host->arg;
	host_free(host);
	gone(arg);
}

void
host_retain(struct gpus_host *host)
{
	__atomic_add_fetch(&host->refs, 1, __ATOMIC_RELAXED);
}

void
gpus_host_release(struct gpus_host *host)
{
	if (!host || __atomic_sub_fetch(&host->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	struct gpus *gpus = host->gpus;
	const struct gpu_order leave = {.kind = ORDER_HOST_LEAVES, .host = host};
	uint32_t told = __atomic_load_n(&host->told, __ATOMIC_RELAXED);
	host->left = 1 + (uint32_t)__builtin_popcount(told);
	pthread_mutex_lock(&gpus->lock);
	for (uint32_t i = 0; i < gpus->count; i++) {
		if (told >> i & 1)
			gpu_order(gpus->gpus[i], &leave);
	}
	pthread_mutex_unlock(&gpus->lock);
	host_left(host);
}
