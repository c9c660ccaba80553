/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic_regions - has the memory of a shard registered with the NICs that serve it.
 *
 * Registering is per allocation: the memory objects that a worker shares, or the one memory of an
 * offloaded copy, and only those in which a row of 2 MiB or more lies. The smaller rows of a shard
 * get a packed buffer (transport/part/packed.h). It begins when tensors are registered, goes on in
 * the background, and is kept: for one version after the other, and of a memory object also for
 * other tensors. What NICs know they may move although nobody asked for RDMA; what they do not know
 * goes another way, so nothing here fails.
 *
 * GPU memory is registered by its dma-bufs, which the worker has sent for it: a row of which no
 * dma-buf has all bytes is out of a NIC's reach, and with it the shard.
 *
 * Registering pins memory, and pages that nobody has touched come to be, on this process' account,
 * unless holes.h keeps them from it: then it fails, and is tried again. So memory that is not
 * filled yet waits until it is published, unless there is room for it. Main thread only.
 */
#ifndef TH_DAEMON_HOST_MEMORY_NIC_REGIONS_H
#define TH_DAEMON_HOST_MEMORY_NIC_REGIONS_H

#include <stdint.h>

#include "daemon/host/memory/memory.h"
#include "daemon/host/worker/tensor_places.h"

struct gpus;
struct offload_memory;
struct rails;

struct regions {
	struct rails *rails; /* borrows; NULL: there is no RDMA, and nothing is registered */
	/* The rails that serve this memory, as a mask. */
	uint32_t (*near)(void *arg, const void *data, uint64_t bytes);
	/* The same of the memory of a GPU at a PCI address (place_pci). */
	uint32_t (*near_pci)(void *arg, uint32_t pci);
	struct gpus *gpus; /* borrows; NULL: none */
	void *arg;
	const char *root; /* see room_now */
};

/* Rails that serve the memory of a GPU: all, where nobody knows which. Any thread. */
uint32_t regions_near_gpu(const struct regions *regions, const uint8_t uuid[16]);

/*
 * Of a worker's tensors, after tensors_new, and again before a part is made of them: what could not
 * be registered before may be by now. label: for the log.
 */
void regions_cover(const struct regions *regions, struct tensors *tensors,
	struct memory_set *memory, const char *label);
/* Of an offloaded copy, after tensors_place. */
void regions_cover_offload(
	const struct regions *regions, struct tensors *tensors, struct offload_memory *memory);

#endif
