/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_unreached_test - GPU memory that another process could map, and that the agent does not
 * reach for whatever reason: the worker copies it, and says so.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ipc/base/log.h"
#include "libthc/thc.h"
#include "tests/unit/libthc/gpu_tensor.h"

TestSuite(libthc_unreached, .init = setup_two_gpus, .fini = world_end, .timeout = 60);

static void
expect_path(const char *name, const char *begin, const char *reason)
{
	char path[800];

	good(thc_memory_path(shard, name, path, sizeof(path)));
	cr_assert_eq(strncmp(path, begin, strlen(begin)), 0, "%s", path);
	cr_assert_not_null(strstr(path, reason), "%s", path);
}

/* What is published is what the GPU has, and what comes in is in its memory at the end. */
static void
expect_copies(CUdeviceptr address, uint64_t bytes, const char *reason)
{
	cr_assert_eq(agent.memory.bytes, bytes);
	uint8_t *view =
		mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, agent.memory_fd, 0);
	cr_assert_neq(view, MAP_FAILED);
	expect_path("weight",
		"worker-copy (on GPU 0, the agent does not reach it: libthc copies it through "
		"pinned host memory; ",
		reason);
	OK(cuda.cuMemsetD8(address, 3, bytes));
	good(thc_publish(shard, 1, SOON));
	cr_assert_eq(view[0], 3);
	cr_assert_eq(view[bytes - 1], 3);
	good(thc_unpublish(shard, 0, SOON));
	memset(view, 4, bytes);
	good(thc_replicate(shard, "2", SOON, NULL));
	cr_assert_eq(on_gpu(address), 4);
	memset(view, 5, bytes);
	good(thc_update(shard, "3", SOON, NULL));
	cr_assert_eq(on_gpu(address + bytes - 1), 5);
	munmap(view, (size_t)bytes);
}

/* ---- reasons ------------------------------------------------------------------------------- */

Test(libthc_unreached, handle__that_the_driver_does_not_make__is_copied)
{
	CUdeviceptr legacy = alloc(MIB);
	int plan = machine_plan(
		&machine, FAULT_RESULT, getpid(), CALL_cuIpcGetMemHandle, 0, CUDA_ERROR_UNKNOWN);

	good(register_at(shard, legacy, MIB, SOON));
	cr_assert_eq(agent.gpus, 0);
	cr_assert_eq(agent.memory.kind, FDMSG_SHADOW);
	expect_copies(legacy, MIB, "memory; no handle for the GPU memory at");
	expect_path("weight", "worker-copy", "cuIpcGetMemHandle says CUDA_ERROR_UNKNOWN)");
	/* Another time there may be a handle. */
	machine_lift(&machine, plan);
	good(thc_unregister(shard, SOON));
	good(register_at(shard, legacy, MIB, SOON));
	expect_path("weight", "cuda-ipc (cudaMalloc on GPU 0, with a dma-buf", "");
}

Test(libthc_unreached, piece__that_the_agent_does_not_take__is_copied)
{
	CUdeviceptr legacy = alloc(MIB);

	script(agent.gpu_good = 0; agent.gpu_code = THC_E_MEMORY_KIND);
	good(register_at(shard, legacy, MIB, SOON));
	cr_assert_eq(agent.registers, 1, "it was not asked to register what it has not");
	expect_copies(legacy, MIB, "not taken here");
}

Test(libthc_unreached, piece__that_no_gpu_process_opens__is_copied)
{
	CUdeviceptr legacy = alloc(MIB);

	script(agent.not_opened = 1);
	good(register_at(shard, legacy, MIB, SOON));
	cr_assert_eq(agent.registers, 2);
	fake_agent_await(&agent, &agent.forgets, 2);
	cr_assert(agent.pieces[0].forgotten, "and its dma-buf: it keeps nothing allocated");
	expect_copies(legacy, MIB, "no GPU process opens it");
	good(thc_unregister(shard, SOON));
	cr_assert_eq(holds(HELD_HOST), 0);
}

/* It knows no kind of memory for it either. */
Test(libthc_unreached, agent_that_knows_no_gpus__is_given_a_memfd)
{
	CUdeviceptr legacy = alloc(MIB);

	good(thc_close(shard, 0, SOON));
	script(agent.no_gpus = true);
	open_with(0);
	good(register_at(shard, legacy, MIB, SOON));
	cr_assert_eq(agent.memory.kind, FDMSG_MEMFD);
	expect_copies(legacy, MIB, "upgrade thagentd");
}

Test(libthc_unreached, limit_of_the_agent__is_a_failure)
{
	CUdeviceptr legacy = alloc(MIB);

	script(agent.gpu_good = 0; agent.gpu_code = THC_E_LIMIT);
	cr_assert_eq(register_at(shard, legacy, MIB, SOON), THC_E_LIMIT);
	cr_assert_eq(agent.memories, 0, "nothing is given in its place");
}

/* ---- together ------------------------------------------------------------------------------ */

static CUdeviceptr
closed(void)
{
	CUmemoryPool pool = NULL;
	CUdeviceptr address = 0;

	OK(test_cuda.cuDeviceGetDefaultMemPool(&pool, 0));
	OK(test_cuda.cuMemAllocFromPoolAsync(&address, MIB, pool, NULL));
	return address;
}

Test(libthc_unreached, beside_other_memory__each_says_its_own_reason)
{
	char *host = calloc(1, 100);
	struct thc_tensor tensors[] = {tensor_at("closed", closed(), MIB),
		tensor_at("weight", alloc(MIB), MIB),
		tensor_at("host", (CUdeviceptr)(uintptr_t)host, 100)};

	tensors[2].device = THC_HOST;
	script(agent.not_opened = 1);
	good(thc_register(shard, tensors, 3, sizeof(*tensors), SOON));
	expect_path("closed", "worker-copy (on GPU 0, no other process can map it: ", "memory)");
	expect_path("weight", "worker-copy (on GPU 0, the agent does not reach it: ", "opens it)");
	expect_path("host", "copy (private memory", "");
	cr_assert_eq(agent.memory.bytes, 2 * MIB, "one copy of both");
	cr_assert_eq(agent.places[0].id, agent.places[1].id);
	OK(cuda.cuMemsetD8((CUdeviceptr)(uintptr_t)tensors[1].data, 7, MIB));
	good(thc_publish(shard, 1, SOON));
	free(host);
}

/* ---- who is told --------------------------------------------------------------------------- */

static size_t
lines_with(const char *text, const char *word)
{
	size_t count = 0;

	for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word))
		count++;
	return count;
}

Test(libthc_unreached, log__has_one_warning_with_cost_and_reason)
{
	CUdeviceptr legacy = alloc(MIB);
	int file = memfd_create("stderr", MFD_CLOEXEC), before = dup(STDERR_FILENO);
	char text[4096] = "";

	script(agent.not_opened = 1);
	log_set_level(LOG_LEVEL_WARN); /* as with THC_LOG */
	dup2(file, STDERR_FILENO);
	int rc = register_at(shard, legacy, MIB, SOON);
	dup2(before, STDERR_FILENO);
	close(before);
	good(rc);
	cr_assert_gt(pread(file, text, sizeof(text) - 1, 0), 0);
	cr_assert_eq(lines_with(text, "warn"), 1, "%s", text);
	cr_assert_not_null(strstr(text, "host_bytes=1048576"), "%s", text);
	cr_assert_not_null(strstr(text, "reason=\"no GPU process opens it\""), "%s", text);
	close(file);
}

Test(libthc_unreached, no_host_memory__fails_with_both_reasons)
{
	CUdeviceptr legacy = alloc(MIB);
	const struct rlimit none = {4096, RLIM_INFINITY};
	struct rlimit before;

	script(agent.not_opened = 1);
	cr_assert_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
	signal(SIGXFSZ, SIG_IGN);
	cr_assert_eq(setrlimit(RLIMIT_FSIZE, &none), 0);
	int rc = register_at(shard, legacy, MIB, SOON);
	cr_assert_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
	cr_assert_eq(rc, THC_E_MEMORY_KIND, "%s", thc_errmsg());
	cr_assert_not_null(strstr(thc_errmsg(), "no GPU process opens it; "), "%s", thc_errmsg());
	cr_assert_not_null(strstr(thc_errmsg(), "is not to be had"), "%s", thc_errmsg());
	good(register_at(shard, legacy, MIB, SOON));
}
