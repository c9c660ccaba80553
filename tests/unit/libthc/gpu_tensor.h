/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_tensor - a machine of GPUs, a scripted agent and a handle at it, and bytes of GPU 0 as a
 * tensor: what the tests of libthc with GPU memory begin with.
 */
#ifndef TH_TESTS_UNIT_LIBTHC_GPU_TENSOR_H
#define TH_TESTS_UNIT_LIBTHC_GPU_TENSOR_H

#include <unistd.h>

#include "ipc/cuda/driver.h"
#include "tests/support/cuda/machine.h"
#include "tests/support/cuda/people.h"
#include "tests/unit/libthc/libthc_fixture.h"

#define MIB ((uint64_t)1 << 20)

static struct machine machine;
static struct cuda cuda;

#define expect(call, wanted, word)                                                                 \
	do {                                                                                       \
		int got = (call);                                                                  \
		cr_assert_eq(got, (wanted), "%s: %d %s", #call, got, thc_errmsg());                \
		cr_assert_not_null(strstr(thc_errmsg(), (word)), "%s: %s", #call, thc_errmsg());   \
	} while (0)
#define OK(call) cr_assert_eq((call), CUDA_SUCCESS, "%s", #call)

static inline void
open_with(uint32_t flags)
{
	struct thc_open_opts opts = good_opts();

	opts.replica = "rollout";
	opts.flags = flags;
	good(thc_open(&opts, SOON, &shard));
}

static inline CUdeviceptr
alloc(uint64_t bytes)
{
	CUdeviceptr address = 0;

	OK(test_cuda.cuMemAlloc(&address, bytes));
	return address;
}

static inline uint8_t
on_gpu(CUdeviceptr address)
{
	uint8_t byte = 0;

	OK(test_cuda.cuMemcpyDtoH(&byte, address, 1));
	return byte;
}

static inline int
holds(enum machine_held held)
{
	return machine_holds(&machine, getpid(), held);
}

static inline void
world_begin(uint32_t gpus)
{
	machine_new(&machine, gpus, 256 * MIB);
	cuda = cuda_ready(0);
	setup_agent();
	open_with(0);
}

static inline void
setup_two_gpus(void)
{
	world_begin(2);
}

static inline void
world_end(void)
{
	if (shard != NULL)
		good(thc_close(shard, 0, SOON));
	teardown_agent();
	machine_remove(&machine);
}

static inline struct thc_tensor
tensor_at(const char *name, CUdeviceptr address, uint64_t bytes)
{
	return (struct thc_tensor){.name = name,
		.data = (void *)(uintptr_t)address,
		.bytes = bytes,
		.dtype = THC_U8,
		.device = 0,
		.ndim = 1,
		.local_shape = {bytes}};
}

static inline int
register_at(struct thc_shard *handle, CUdeviceptr address, uint64_t bytes, int64_t timeout_ms)
{
	const struct thc_tensor tensor = tensor_at("weight", address, bytes);

	return thc_register(handle, &tensor, 1, sizeof(tensor), timeout_ms);
}

/* Registers it with the handle, as its only tensor. */
static inline int
register_one(CUdeviceptr address, uint64_t bytes)
{
	return register_at(shard, address, bytes, SOON);
}

#endif
