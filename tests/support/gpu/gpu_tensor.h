/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_tensor - a machine of GPUs, a scripted agent and a handle at it, and bytes of GPU 0 as a
 * tensor: what the tests of libthc with GPU memory begin with.
 */
#ifndef TH_TESTS_SUPPORT_GPU_GPU_TENSOR_H
#define TH_TESTS_SUPPORT_GPU_GPU_TENSOR_H

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "ipc/cuda/driver.h"
#include "libthc/thc.h"
#include "tests/support/cuda/machine.h"
#include "tests/support/cuda/people.h"
#include "tests/support/libthc/fake_agent.h"

#define SOON 20000
#define MIB ((uint64_t)1 << 20)

static struct machine machine;
static struct cuda cuda;
static struct fake_agent agent;
static struct thc_shard *shard;

#define script(change)                                                                             \
	do {                                                                                       \
		fake_agent_lock(&agent);                                                           \
		change;                                                                            \
		fake_agent_unlock(&agent);                                                         \
	} while (0)
#define expect(call, wanted, word)                                                                 \
	do {                                                                                       \
		int got = (call);                                                                  \
		cr_assert_eq(got, (wanted), "%s: %d %s", #call, got, thc_errmsg());                \
		cr_assert_not_null(strstr(thc_errmsg(), (word)), "%s: %s", #call, thc_errmsg());   \
	} while (0)
#define good(call) cr_assert_eq((call), 0, "%s: %s", #call, thc_errmsg())
#define OK(call) cr_assert_eq((call), CUDA_SUCCESS, "%s", #call)

static inline void
open_with(uint32_t flags)
{
	struct thc_open_opts opts = THC_OPEN_OPTS_INIT;

	opts.model = "llama";
	opts.replica = "rollout";
	opts.agent = agent.dir;
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
	fake_agent_start(&agent);
	open_with(0);
}

static inline void
world_end(void)
{
	if (shard != NULL)
		good(thc_close(shard, 0, SOON));
	fake_agent_stop(&agent);
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

#endif
