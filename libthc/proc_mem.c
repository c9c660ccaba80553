/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proc_mem - memory that is reached by its address in this process, and the look at all registered
 * memory before an operation.
 *
 * /proc/self/mem is bound to this address space, not to a process id: who holds the descriptor
 * reaches this process, whatever is forked or takes its number later, and nothing once it has
 * ended.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>

#include "libthc/libthc_own.h"

int
private_open(struct thc_shard *shard)
{
	sent_lock();
	shard->giving = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	int error = errno;
	sent_unlock();
	if (shard->giving >= 0)
		return 0;
	return shim_fail(THC_E_MEMORY_KIND,
		"tensors: private memory needs /proc/self/mem, which cannot be opened (%s); take "
		"memory from thc_alloc, or a memfd and thc_import",
		th_strerror(-error));
}

const char *
private_tensor_at(const struct thc_shard *shard, uintptr_t at)
{
	const struct placed_tensor *found = NULL;

	for (size_t i = 0; i < shard->num_placed; i++) {
		const struct placed_tensor *placed = &shard->placed[i];
		if (placed->bytes > 0 && placed->start + placed->bytes > at &&
			(found == NULL || placed->start < found->start))
			found = placed;
	}
	return found != NULL ? found->name : "?";
}

int
private_look_at_gpus(struct thc_shard *shard, const char *operation)
{
	struct th_err err = {0};
	uint64_t at = 0;
	int rc = gpu_look(&shard->gpus, &at, &err);

	if (rc == 0)
		return 0;
	return shim_fail(rc, "%s: the GPU memory of tensor '%.80s' at 0x%" PRIx64 " %s", operation,
		private_tensor_at(shard, (uintptr_t)at), at, err.text);
}

int
private_look(struct thc_shard *shard, const char *operation, bool destination)
{
	uintptr_t at = 0;
	int rc = ranges_check(&shard->ranges, destination, &at);

	if (rc == 0)
		return private_look_at_gpus(shard, operation);
	switch (rc) {
	case RANGE_GONE:
		return shim_fail(THC_E_STALE_MEMORY,
			"%s: tensor '%.80s' is not mapped any more at 0x%" PRIxPTR
			"; thc_unregister, and register what is there now",
			operation, private_tensor_at(shard, at), at);
	case RANGE_OTHER:
		return shim_fail(THC_E_STALE_MEMORY,
			"%s: other memory is mapped at 0x%" PRIxPTR
			" than when tensor '%.80s' was registered; thc_unregister, and register "
			"what is there now",
			operation, at, private_tensor_at(shard, at));
	case RANGE_READ_ONLY:
		return shim_fail(THC_E_MEMORY_KIND,
			"%s: tensor '%.80s' is mapped read-only at 0x%" PRIxPTR
			" and cannot be a destination; make it writable (mprotect)",
			operation, private_tensor_at(shard, at), at);
	case RANGE_FD_READ_ONLY:
		return shim_fail(THC_E_MEMORY_KIND,
			"%s: tensor '%.80s' was imported with a descriptor that cannot be written "
			"and cannot be a destination; import one that can",
			operation, private_tensor_at(shard, at));
	default:
		return shim_fail(
			rc, "%s: looking at the registered memory: %s", operation, th_strerror(rc));
	}
}
