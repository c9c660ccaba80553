/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_gpu_test - tensors on GPUs: how a scripted agent is given them, and what is said of memory
 * that cannot be a tensor, or is not any more.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/cuda/cuda_handle.h"
#include "ipc/sock/peer.h"
#include "libthc/given.h"
#include "libthc/libthc_own.h"
#include "libthc/thc.h"
#include "tests/unit/libthc/gpu_tensor.h"

#define CHUNK ((uint64_t)MACHINE_GRANULARITY)
#define OPEN CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

TestSuite(libthc_gpu, .init = setup_two_gpus, .fini = world_end, .timeout = 60);

static CUdeviceptr
reserve(uint64_t bytes)
{
	CUdeviceptr range = 0;

	OK(cuda.cuMemAddressReserve(&range, bytes, 0, 0, 0));
	return range;
}

static void
map(CUdeviceptr address, uint64_t bytes, CUmemAllocationHandleType types)
{
	const CUmemAllocationProp form = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = types,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
		.allocFlags.gpuDirectRDMACapable = 1};
	const CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle = 0;

	OK(cuda.cuMemCreate(&handle, bytes, &form, 0));
	OK(cuda.cuMemMap(address, bytes, 0, handle, 0));
	OK(cuda.cuMemRelease(handle));
	OK(cuda.cuMemSetAccess(address, bytes, &access, 1));
}

static CUdeviceptr
of_pool(CUmemAllocationHandleType types, uint64_t bytes)
{
	CUmemPoolProps form = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = types,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool pool = NULL;
	CUdeviceptr address = 0;

	OK(test_cuda.cuMemPoolCreate(&pool, &form));
	OK(test_cuda.cuMemAllocFromPoolAsync(&address, bytes, pool, NULL));
	return address;
}

static void
expect_path(const char *name, const char *text)
{
	char path[256];

	good(thc_memory_path(shard, name, path, sizeof(path)));
	cr_assert_eq(strncmp(path, text, strlen(text)), 0, "%s", path);
}

/* The piece that the agent was given with this number is that at the address. */
static void
expect_piece(unsigned number, CUdeviceptr base, uint64_t bytes, enum cuda_kind kind, bool has_fd)
{
	const struct fake_piece *piece = &agent.pieces[number];
	struct cuda_handle handle;
	CUuuid uuid;

	memcpy(&handle, piece->message.handle, sizeof(handle));
	cr_assert_eq(piece->message.base, base);
	cr_assert_eq(piece->message.bytes, bytes);
	cr_assert_eq(piece->has_fd, has_fd);
	cr_assert_eq(handle.kind, kind);
	cr_assert_eq(handle.bytes, bytes);
	OK(cuda.cuDeviceGetUuid(&uuid, 0));
	cr_assert_eq(memcmp(handle.uuid, &uuid, sizeof(uuid)), 0, "named by the GPU, no ordinal");
}

/* ---- what can be exported ------------------------------------------------------------------ */

Test(libthc_gpu, legacy__tensors_of_one_allocation__are_one_piece_with_a_dmabuf)
{
	CUdeviceptr segment = alloc(4 * MIB);
	const struct thc_tensor tensors[] = {tensor_at("b", segment + 512, 100),
		tensor_at("a", segment + MIB, MIB), tensor_at("empty", 0, 0)};

	good(thc_register(shard, tensors, 3, sizeof(*tensors), SOON));
	cr_assert_eq(agent.gpus, 1);
	expect_piece(0, segment, 4 * MIB, CUDA_KIND_LEGACY, false);
	cr_assert_eq(agent.places[0].id, agent.pieces[0].id);
	cr_assert_eq(agent.places[0].offset, 512);
	cr_assert_eq(agent.places[1].offset, MIB);
	cr_assert_eq(agent.places[2].id, 0);
	cr_assert_eq(agent.dmabufs, 1);
	cr_assert_eq(agent.dmabuf.base, segment);
	cr_assert_eq(agent.dmabuf.bytes, 4 * MIB);
	cr_assert_eq(agent.dmabuf.offset, 0);
	expect_path("a", "cuda-ipc (cudaMalloc on GPU 0, with a dma-buf for NICs)");
	good(thc_unregister(shard, SOON));
	fake_agent_await(&agent, &agent.forgets, 2);
	/* The agent has nothing of it any more: it is given anew, with a new number. */
	good(register_one(segment, MIB));
	cr_assert_eq(agent.gpus, 2);
	cr_assert_neq(agent.pieces[1].id, agent.pieces[0].id);
}

Test(libthc_gpu, chunks__tensor_across_them__names_the_first_and_one_dmabuf_spans_all)
{
	CUdeviceptr range = reserve(8 * CHUNK);
	uint32_t value = 0;

	for (uint64_t i = 0; i < 4; i++)
		map(range + i * CHUNK, CHUNK, OPEN);
	OK(cuda.cuMemsetD8(range + 2 * CHUNK, 0x5a, 4));
	good(register_one(range + CHUNK + 16, 2 * CHUNK));
	cr_assert_eq(agent.gpus, 3, "the first chunk holds no tensor");
	for (unsigned i = 0; i < 3; i++)
		expect_piece(i, range + (i + 1) * CHUNK, CHUNK, CUDA_KIND_CHUNKS, true);
	cr_assert_eq(agent.places[0].id, agent.pieces[0].id);
	cr_assert_eq(agent.places[0].offset, 16);
	cr_assert_eq(agent.dmabufs, 1);
	cr_assert_eq(agent.dmabuf.base, range + CHUNK);
	cr_assert_eq(agent.dmabuf.bytes, 3 * CHUNK);
	cr_assert_eq(machine_dmabuf_read(&machine, agent.dmabuf_fd, agent.dmabuf.offset + CHUNK,
			     &value, sizeof(value)),
		0);
	cr_assert_eq(value, 0x5a5a5a5au);
	expect_path("weight", "cuda-ipc (chunks of a range on GPU 0, with a dma-buf");
}

Test(libthc_gpu, kinds__all_in_one_registration__each_by_its_own_handle)
{
	CUdeviceptr legacy = alloc(MIB), chunk = reserve(CHUNK), pool = of_pool(OPEN, MIB);
	char *host = calloc(1, 100);

	map(chunk, CHUNK, OPEN);
	struct thc_tensor tensors[] = {tensor_at("legacy", legacy, MIB),
		tensor_at("chunk", chunk, CHUNK), tensor_at("pool", pool, MIB),
		tensor_at("host", (CUdeviceptr)(uintptr_t)host, 100)};
	tensors[3].device = THC_HOST;
	good(thc_register(shard, tensors, 4, sizeof(*tensors), SOON));
	cr_assert_eq(agent.gpus, 3);
	cr_assert_eq(agent.dmabufs, 2, "a pool's memory is for no NIC");
	expect_path("legacy", "cuda-ipc (cudaMalloc on GPU 0, with a dma-buf");
	expect_path("chunk", "cuda-ipc (a mapped chunk on GPU 0, with a dma-buf");
	expect_path("pool", "cuda-ipc (a memory pool on GPU 0, no dma-buf: this memory is for no");
	expect_path("host", "copy (private memory");
	free(host);
}

Test(libthc_gpu, devices__two__are_each_asked_in_their_own_name)
{
	CUdeviceptr first = alloc(MIB), second = 0;
	CUcontext other = NULL;

	OK(cuda.cuDevicePrimaryCtxRetain(&other, 1));
	OK(cuda.cuCtxPushCurrent(other));
	OK(test_cuda.cuMemAlloc(&second, MIB));
	OK(cuda.cuCtxPopCurrent(NULL));
	struct thc_tensor tensors[] = {tensor_at("a", first, MIB), tensor_at("b", second, MIB)};
	tensors[1].device = 1;
	good(thc_register(shard, tensors, 2, sizeof(*tensors), SOON));
	cr_assert_eq(agent.gpus, 2);
	cr_assert_neq(memcmp(agent.pieces[0].message.handle + 24,
			      agent.pieces[1].message.handle + 24, 16),
		0, "the UUID of each");
	cr_assert_eq(agent.pieces[1].id, agent.pieces[0].id + 1, "dma-bufs come behind all pieces");
	expect_path("b", "cuda-ipc (cudaMalloc on GPU 1, with a dma-buf");
}

Test(libthc_gpu, staged__no_nic_is_told)
{
	CUdeviceptr segment = alloc(MIB);

	good(thc_close(shard, 0, SOON));
	open_with(THC_STAGED);
	good(register_one(segment, MIB));
	cr_assert_eq(agent.dmabufs, 0);
	expect_path("weight", "cuda-ipc (cudaMalloc on GPU 0, no dma-buf: THC_STAGED)");
}

Test(libthc_gpu, dmabuf__none_to_be_had_or_not_wanted__is_told_and_no_failure)
{
	CUdeviceptr segment = alloc(MIB);

	script(agent.dmabuf_code = THC_E_MEMORY_KIND);
	good(register_one(segment, MIB));
	expect_path("weight", "cuda-ipc (cudaMalloc on GPU 0, no dma-buf: not taken here)");
	good(thc_unregister(shard, SOON));
	script(agent.rude = true);
	good(register_one(segment, MIB));
	expect_path("weight", "?[2J?[2J?[2J?[2 (cudaMalloc on GPU 0, no dma-buf: ?[2J");
	good(thc_unregister(shard, SOON));
	script(agent.rude = false);
	machine.page->devices[0].dma_buf = 0;
	good(register_one(segment, MIB));
	expect_path("weight", "cuda-ipc (cudaMalloc on GPU 0, no dma-buf: GPU 0 gives no dma-buf");
}

/* ---- thousands ----------------------------------------------------------------------------- */

static struct thc_tensor *
many_tensors(CUdeviceptr range, uint64_t span, size_t count)
{
	static char names[10000][32];
	struct thc_tensor *tensors = calloc(count, sizeof(*tensors));

	for (size_t i = 0; i < count; i++) {
		snprintf(names[i], sizeof(names[i]), "layer.%zu", i);
		tensors[i] = tensor_at(names[i], range + i * span, span);
	}
	return tensors;
}

Test(libthc_gpu, many_pieces__are_sent_ahead_of_their_answers)
{
	const size_t chunks = 100;
	CUdeviceptr range = reserve(chunks * CHUNK);

	for (uint64_t i = 0; i < chunks; i++)
		map(range + i * CHUNK, CHUNK, OPEN);
	struct thc_tensor *tensors = many_tensors(range, chunks * CHUNK / 10000, 10000);
	int64_t start = th_now_ns();
	good(thc_register(shard, tensors, 10000, sizeof(*tensors), SOON));
	printf("10,000 tensors in %zu chunks: %.1f ms\n", chunks,
		(double)(th_now_ns() - start) / 1e6);
	cr_assert_eq(agent.gpus, chunks);
	cr_assert_eq(agent.dmabufs, 1);
	cr_assert_eq(agent.rows, 10000);
	good(thc_unregister(shard, SOON));
	fake_agent_await(&agent, &agent.forgets, (unsigned)chunks + 1);
	/* One that the agent refuses ends the registration, and the others are taken back. */
	script(agent.gpu_good = agent.gpus + 70; agent.gpu_code = THC_E_LIMIT; agent.forgets = 0);
	expect(thc_register(shard, tensors, 10000, sizeof(*tensors), SOON), THC_E_LIMIT,
		"not taken here");
	cr_assert_eq(agent.unregisters, 2, "it has closed them when the call returns");
	fake_agent_await(&agent, &agent.forgets, 70);
	expect(thc_memory_path(shard, "layer.1", (char[8]){0}, 8), THC_E_STATE, "no tensors");
	script(agent.gpu_good = UINT32_MAX);
	good(thc_register(shard, tensors, 10000, sizeof(*tensors), SOON));
	free(tensors);
}

Test(libthc_gpu, agent_that_is_stopped__times_out_and_nothing_stays_given)
{
	CUdeviceptr segment = alloc(MIB);
	const struct thc_tensor tensor = tensor_at("weight", segment, MIB);

	fake_agent_freeze(&agent, true);
	expect(thc_register(shard, &tensor, 1, sizeof(tensor), 10), THC_E_TIMEOUT,
		"free none of it before thc_unregister");
	expect(thc_publish(shard, 1, 10), THC_E_STATE, "needs tensors");
	fake_agent_freeze(&agent, false);
	good(thc_unregister(shard, SOON));
	cr_assert_eq(agent.unregisters, 1);
	expect(thc_unregister(shard, SOON), THC_E_STATE, "no tensors");
	good(register_one(segment, MIB));
	cr_assert_eq(agent.gpus, 2);
	cr_assert_eq(agent.forgets, 1, "what came too late is not wanted");
	cr_assert_eq(agent.overlaps, 0, "and was forgotten before it came again");
}

Test(libthc_gpu, answer_that_is_none__what_came_of_it_is_settled_by_the_next_call)
{
	CUdeviceptr segment = alloc(MIB);
	const struct thc_tensor tensor = tensor_at("weight", segment, MIB);

	script(agent.request_garbage = true);
	expect(thc_register(shard, &tensor, 1, sizeof(tensor), SOON), THC_E_PROTOCOL,
		"free none of it before thc_unregister");
	script(agent.request_garbage = false);
	good(thc_unregister(shard, SOON));
	good(register_one(segment, MIB));
	script(agent.request_garbage = true);
	expect(thc_unregister(shard, SOON), THC_E_PROTOCOL, "");
	script(agent.request_garbage = false);
	good(thc_unregister(shard, SOON));
	good(register_one(segment, MIB));
}

/* ---- what is no tensor's memory ------------------------------------------------------------ */

Test(libthc_gpu, bad_memory__each_kind__names_the_tensor_and_what_to_do)
{
	CUdeviceptr legacy = alloc(MIB), managed = 0, freed = alloc(MIB), asleep = reserve(CHUNK);
	char *host = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	OK(cuda.cuMemFree(freed));
	OK(test_cuda.cuMemAllocManaged(&managed, MIB, CU_MEM_ATTACH_GLOBAL));
	OK(cuda.cuMemHostRegister(host, MIB, 0));
	CUdeviceptr pinned = (CUdeviceptr)(uintptr_t)host;
	expect(register_one(freed, MIB), THC_E_INVALID, "tensors[0].data: 'weight'");
	expect(register_one(freed, MIB), THC_E_INVALID, "it was freed, or never was");
	expect(register_one(managed, MIB), THC_E_MEMORY_KIND, "'weight'");
	expect(register_one(managed, MIB), THC_E_MEMORY_KIND, "allocate it with cudaMalloc");
	expect(register_one(pinned, MIB), THC_E_INVALID, "register it as host memory");
	expect(register_one(asleep, CHUNK), THC_E_INVALID, "wake the engine before");
	expect(register_one(legacy + 1, MIB), THC_E_INVALID, "end 1 bytes behind");
	expect(register_one(~0ull - 15, 16), THC_E_INVALID, "beyond the address space");
	struct thc_tensor tensor = tensor_at("odd", legacy + 2, 16);
	tensor.dtype = THC_F32;
	tensor.local_shape[0] = 4;
	expect(thc_register(shard, &tensor, 1, sizeof(tensor), SOON), THC_E_INVALID,
		"no multiple of the 4 bytes of an element");
	tensor = tensor_at("elsewhere", legacy, MIB);
	tensor.device = 1;
	expect(thc_register(shard, &tensor, 1, sizeof(tensor), SOON), THC_E_INVALID,
		"'elsewhere' is said to lie on GPU 1");
	expect(thc_register(shard, &tensor, 1, sizeof(tensor), SOON), THC_E_INVALID,
		"lies on GPU 0, not on GPU 1");
	tensor.device = -2;
	expect(thc_register(shard, &tensor, 1, sizeof(tensor), SOON), THC_E_INVALID,
		"give THC_HOST or a CUDA ordinal");
	cr_assert_eq(agent.memories, 0, "nothing of it has gone to the agent");
	good(register_one(legacy, MIB));
}

static void
give_a_handle(int sock)
{
	struct cuda own = cuda_ready(0);
	CUdeviceptr address = of_pool(OPEN, MIB);
	CUmemPoolPtrExportData data;
	CUmemoryPool pool = NULL;
	CUipcMemHandle handle;
	int fd = -1;
	char end;

	if (own.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) == 0 &&
		own.cuMemPoolExportToShareableHandle(&fd, pool, OPEN, 0) == CUDA_SUCCESS &&
		own.cuMemPoolExportPointer(&data, address) == CUDA_SUCCESS)
		tell(sock, &data, sizeof(data), fd);
	if (test_cuda.cuMemAlloc(&address, MIB) == CUDA_SUCCESS &&
		own.cuIpcGetMemHandle(&handle, address) == CUDA_SUCCESS)
		tell(sock, &handle, sizeof(handle), -1);
	(void)hear(sock, &end, 1);
}

/* Before the driver is there: a child of a process that has it has none. */
Test(libthc_gpu_people, handle_of_another_process__is_registered_there)
{
	CUmemPoolPtrExportData data;
	CUmemoryPool pool = NULL;
	CUipcMemHandle handle;
	CUdeviceptr address = 0;

	machine_new(&machine, 2, 256 * MIB);
	struct person other = person_new(give_a_handle);
	int fd = hear(other.sock, &data, sizeof(data));
	(void)hear(other.sock, &handle, sizeof(handle));
	cuda = cuda_ready(0);
	fake_agent_start(&agent);
	open_with(0);
	OK(cuda.cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	expect(register_one(address, MIB), THC_E_MEMORY_KIND, "'weight'");
	expect(register_one(address, MIB), THC_E_MEMORY_KIND, "registered in the process that");
	OK(cuda.cuIpcCloseMemHandle(address));
	OK(cuda.cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, OPEN, 0));
	OK(cuda.cuMemPoolImportPointer(&address, pool, &data));
	th_fd_close(&fd);
	expect(register_one(address, MIB), THC_E_MEMORY_KIND, "registered in the process that");
	tell(other.sock, "e", 1, -1);
	person_end(&other);
	world_end();
}

Test(libthc_gpu, driver_fails__is_told_with_its_name)
{
	CUdeviceptr legacy = alloc(MIB), other = alloc(MIB);

	good(register_one(other, MIB));
	machine_lose(&machine, 0, CUDA_ERROR_LAUNCH_FAILED);
	expect(thc_publish(shard, 1, SOON), THC_E_MEMORY_KIND, "CUDA_ERROR_LAUNCH_FAILED");
	expect(thc_replicate(shard, "1", SOON, NULL), THC_E_MEMORY_KIND, "only a new process");
	good(thc_unregister(shard, SOON));
	machine_lose(&machine, 0, CUDA_ERROR_ECC_UNCORRECTABLE);
	expect(register_one(legacy, MIB), THC_E_MEMORY_KIND,
		"CUDA_ERROR_ECC_UNCORRECTABLE; where the GPU or its context");
}

/* ---- contexts and calls -------------------------------------------------------------------- */

Test(libthc_gpu, host_memory_only__makes_no_call_of_the_driver)
{
	unsigned calls = 0, now = 0;
	char *host = calloc(1, 4096);

	for (int call = 0; call < CALLS; call++)
		calls += machine_calls(&machine, getpid(), call);
	struct thc_tensor tensor = tensor_at("host", (CUdeviceptr)(uintptr_t)host, 4096);
	tensor.device = THC_HOST;
	good(thc_register(shard, &tensor, 1, sizeof(tensor), SOON));
	good(thc_publish(shard, 1, SOON));
	good(thc_unpublish(shard, 0, SOON));
	good(thc_replicate(shard, "1", SOON, NULL));
	good(thc_unregister(shard, SOON));
	for (int call = 0; call < CALLS; call++)
		now += machine_calls(&machine, getpid(), call);
	cr_assert_eq(now, calls);
	free(host);
}

Test(libthc_gpu, context__of_the_caller_is_used_and_none_is_made)
{
	CUdeviceptr legacy = alloc(MIB);
	CUcontext before = NULL, after = NULL;

	good(register_one(legacy, MIB));
	good(thc_publish(shard, 1, SOON));
	OK(cuda.cuCtxGetCurrent(&after));
	cr_assert_not_null(after);
	good(thc_unregister(shard, SOON));
	/* A thread of a framework that has none current. */
	OK(cuda.cuCtxPopCurrent(&before));
	good(register_one(legacy, MIB));
	OK(cuda.cuCtxGetCurrent(&after));
	cr_assert_null(after);
	cr_assert_eq(holds(HELD_CONTEXTS), 1, "the test's");
	cr_assert_eq(holds(HELD_STREAMS), 0);
	OK(cuda.cuCtxPushCurrent(before));
}

static void *
register_here(void *arg)
{
	CUcontext current = NULL;
	const CUdeviceptr *range = arg;

	OK(cuda.cuCtxGetCurrent(&current));
	cr_assert_null(current);
	good(register_one(*range, CHUNK));
	OK(cuda.cuCtxGetCurrent(&current));
	cr_assert_null(current, "it is as it was");
	return NULL;
}

/* An engine may register on a thread that has never worked with the GPU. */
Test(libthc_gpu, dmabuf__of_a_thread_without_a_context__is_the_memory)
{
	CUdeviceptr ranges[] = {alloc(CHUNK), reserve(CHUNK)};
	uint32_t value = 0;

	map(ranges[1], CHUNK, OPEN);
	for (unsigned i = 0; i < 2; i++) {
		pthread_t thread;
		OK(cuda.cuMemsetD8(ranges[i], (unsigned char)(0x50 + i), CHUNK));
		cr_assert_eq(pthread_create(&thread, NULL, register_here, &ranges[i]), 0);
		cr_assert_eq(pthread_join(thread, NULL), 0);
		cr_assert_eq(agent.dmabufs, i + 1);
		cr_assert_eq(agent.dmabuf.base, ranges[i]);
		cr_assert_eq(machine_dmabuf_read(&machine, agent.dmabuf_fd,
				     agent.dmabuf.offset + CHUNK - 4, &value, sizeof(value)),
			0);
		cr_assert_eq(value, 0x50505050u + i * 0x01010101u);
		good(thc_unregister(shard, SOON));
	}
	cr_assert_eq(holds(HELD_CONTEXTS), 1, "the test's");
}

static unsigned
count_descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	unsigned count = 0;

	while (readdir(folder) != NULL)
		count++;
	closedir(folder);
	return count;
}

Test(libthc_gpu, descriptors__of_handles__are_not_kept)
{
	CUdeviceptr range = reserve(8 * CHUNK);

	for (uint64_t i = 0; i < 8; i++)
		map(range + i * CHUNK, CHUNK, OPEN);
	good(register_one(range, MIB));
	good(thc_unregister(shard, SOON));
	unsigned before = count_descriptors();
	good(register_one(range, 8 * CHUNK));
	good(thc_unregister(shard, SOON));
	fake_agent_await(&agent, &agent.forgets, 11);
	cr_assert_eq(count_descriptors(), before);
}

/* Open files of GPUs: the driver's own, and what is to be given away. */
static unsigned
count_gpu_files(void)
{
	char link[64], target[256];
	DIR *folder = opendir("/proc/self/fd");
	unsigned count = 0;

	for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
		snprintf(link, sizeof(link), "/proc/self/fd/%.20s", entry->d_name);
		ssize_t bytes = readlink(link, target, sizeof(target) - 1);
		target[bytes > 0 ? bytes : 0] = '\0';
		count += strstr(target, "/gpu") != NULL;
	}
	closedir(folder);
	return count;
}

static void *
register_main(void *range)
{
	static int rc;

	rc = register_one(*(CUdeviceptr *)range, 70 * CHUNK);
	return &rc;
}

static bool
waits_for_answers(void)
{
	pthread_mutex_lock(&shard->lock);
	bool waits = shard->sender != NULL && shard->sender->sent == FDMSG_AHEAD;
	pthread_mutex_unlock(&shard->lock);
	return waits;
}

/* It would keep the memory allocated for as long as it lives. */
Test(libthc_gpu, fork__while_a_handle_is_given_away__leaves_the_child_without)
{
	CUdeviceptr range = reserve(70 * CHUNK);
	pthread_t thread;
	int status = 1, *rc = NULL;

	for (uint64_t i = 0; i < 70; i++)
		map(range + i * CHUNK, CHUNK, OPEN);
	unsigned before = count_gpu_files();
	fake_agent_freeze(&agent, true);
	cr_assert_eq(pthread_create(&thread, NULL, register_main, &range), 0);
	while (!waits_for_answers())
		sched_yield();
	pid_t child = fork();
	if (child == 0)
		_exit(count_gpu_files() == before ? 0 : 1);
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_assert_eq(status, 0);
	fake_agent_freeze(&agent, false);
	cr_assert_eq(pthread_join(thread, (void **)&rc), 0);
	cr_assert_eq(*rc, 0);
}

/* Others allocate, and get rid of handles that have nothing to do with it. */
Test(libthc_gpu, register__driver_hangs__stops_no_other_handle)
{
	const enum machine_call calls[] = {
		CALL_cuMemExportToShareableHandle, CALL_cuMemGetHandleForAddressRange};
	CUdeviceptr range = reserve(70 * CHUNK);

	for (uint64_t i = 0; i < 70; i++)
		map(range + i * CHUNK, CHUNK, OPEN);
	for (unsigned i = 0; i < 2; i++) {
		struct thc_shard *other = shard;
		pthread_t thread;
		void *host = NULL, *more = NULL;
		int *rc = NULL;
		good(thc_alloc(MIB, 0, &host));
		struct thc_tensor tensor = tensor_at("host", (CUdeviceptr)(uintptr_t)host, MIB);
		tensor.device = THC_HOST;
		good(thc_register(other, &tensor, 1, sizeof(tensor), SOON));
		open_with(0); /* an agent of one session: the other has lost it */
		int plan = machine_plan(
			&machine, FAULT_HANG, getpid(), calls[i], 0, CUDA_ERROR_UNKNOWN);
		cr_assert_eq(pthread_create(&thread, NULL, register_main, &range), 0);
		while (machine_met(&machine, plan) == 0)
			sched_yield();
		good(thc_alloc(MIB, 0, &more));
		good(thc_close(other, THC_CLOSE_ABANDON, 0));
		machine_lift(&machine, plan);
		cr_assert_eq(pthread_join(thread, (void **)&rc), 0);
		cr_assert_eq(*rc, 0, "copied, or with no dma-buf");
		good(thc_unregister(shard, SOON));
		good(thc_free(host));
		good(thc_free(more));
	}
}

static void *
register_many(void *tensors)
{
	static int rc;

	rc = thc_register(shard, tensors, 32, sizeof(struct thc_tensor), THC_FOREVER);
	return &rc;
}

/* It waits for room to send, and an agent that is stopped makes none. */
static bool
has_not_sent_all(void)
{
	pthread_mutex_lock(&shard->lock);
	bool waits = shard->sender != NULL && shard->sender->tolerant && shard->sender->sent > 0;
	cr_assert(!waits || shard->sender->sent < 32);
	pthread_mutex_unlock(&shard->lock);
	return waits;
}

/* As AddressSanitizer sees it: what was to be sent stays until the call has left. */
Test(libthc_gpu, abandon__while_dmabufs_are_sent__keeps_what_that_call_reads)
{
	struct thc_tensor *tensors = many_tensors(0, 16, 32);
	pthread_t thread;
	int *rc = NULL;

	for (uint64_t i = 0; i < 32; i++)
		tensors[i].data = (void *)(uintptr_t)alloc(16);
	script(agent.dmabuf_code = THC_E_LIMIT; agent.last_dmabuf = 1);
	cr_assert_eq(setsockopt(shard->sock, SOL_SOCKET, SO_SNDBUF, &(int){1}, sizeof(int)), 0);
	cr_assert_eq(pthread_create(&thread, NULL, register_many, tensors), 0);
	fake_agent_await(&agent, &agent.dmabufs, 1);
	while (!has_not_sent_all())
		sched_yield();
	fake_agent_freeze(&agent, true);
	/* Takes the refusal, which the call tells of at its end. */
	cr_assert_geq(thc_fd(shard), 0);
	cr_assert(shard->sender->failed);
	expect(thc_close(shard, THC_CLOSE_ABANDON, 0), THC_E_TIMEOUT, "another thread");
	shard = NULL;
	cr_assert_eq(pthread_join(thread, (void **)&rc), 0);
	cr_assert_eq(*rc, THC_E_AGENT_LOST);
	fake_agent_freeze(&agent, false);
	free(tensors);
}

/* ---- memory that changes ------------------------------------------------------------------- */

Test(libthc_gpu, sleep__is_seen_by_each_operation_and_wake_registers_anew)
{
	CUdeviceptr range = reserve(2 * CHUNK);

	map(range, CHUNK, OPEN);
	map(range + CHUNK, CHUNK, OPEN);
	const struct thc_tensor tensors[] = {
		tensor_at("awake", range, CHUNK), tensor_at("asleep", range + CHUNK, CHUNK)};
	good(thc_register(shard, tensors, 2, sizeof(*tensors), SOON));
	OK(cuda.cuMemUnmap(range + CHUNK, CHUNK));
	expect(thc_publish(shard, 1, SOON), THC_E_STALE_MEMORY,
		"publish: the GPU memory of tensor "
		"'asleep'");
	expect(thc_replicate(shard, "1", SOON, NULL), THC_E_STALE_MEMORY, "replicate: the GPU");
	expect(thc_update(shard, "1", SOON, NULL), THC_E_STALE_MEMORY, "thc_unregister, and");
	map(range + CHUNK, CHUNK, OPEN);
	expect(thc_publish(shard, 1, SOON), THC_E_STALE_MEMORY, "mapped anew");
	cr_assert_eq(agent.submissions, 0, "the agent was not asked");
	good(thc_unregister(shard, SOON));
	good(thc_register(shard, tensors, 2, sizeof(*tensors), SOON));
	good(thc_publish(shard, 1, SOON));
}

/* The agent has let go of the tensors, and a device keeps their memory: that is told once. */
Test(libthc_gpu, unregister__device_keeps_the_memory__is_told_and_the_next_call_goes_on)
{
	CUdeviceptr legacy = alloc(MIB);

	good(register_one(legacy, MIB));
	script(agent.request_code = -EBUSY);
	expect(thc_unregister(shard, SOON), -EBUSY, "refused as told");
	script(agent.request_code = 0);
	good(thc_unregister(shard, SOON));
	script(agent.request_code = -EBUSY; agent.gpu_good = agent.gpus;
		agent.gpu_code = THC_E_LIMIT);
	expect(register_one(legacy, MIB), THC_E_LIMIT, "; and refused as told");
	script(agent.request_code = agent.gpu_code = 0);
	good(thc_unregister(shard, SOON));
	good(register_one(legacy, MIB));
	script(agent.close_code = -EBUSY);
	expect(thc_close(shard, 0, SOON), -EBUSY, "");
	script(agent.close_code = 0);
}

Test(libthc_gpu, freed__and_allocated_again_at_the_address__is_seen)
{
	CUdeviceptr segment = alloc(2 * MIB);

	good(register_one(segment, MIB));
	good(thc_publish(shard, 1, SOON));
	good(thc_unpublish(shard, 0, SOON));
	OK(cuda.cuMemFree(segment));
	expect(thc_publish(shard, 2, SOON), THC_E_STALE_MEMORY, "'weight'");
	cr_assert_eq(alloc(2 * MIB), segment, "where it was: the address says nothing");
	expect(thc_publish(shard, 2, SOON), THC_E_STALE_MEMORY, "'weight'");
}

/* One that is missed is published with what was there before, and nobody can tell. */
Test(libthc_gpu, many_pieces__one_of_them_freed__is_seen_by_each_operation)
{
	const uint64_t count = 3000;
	CUdeviceptr *pieces = calloc(count, sizeof(*pieces));
	struct thc_tensor *tensors = many_tensors(0, 16, count);

	for (uint64_t i = 0; i < count; i++) {
		pieces[i] = alloc(16);
		tensors[i].data = (void *)(uintptr_t)pieces[i];
	}
	int64_t start = th_now_ns();
	good(thc_register(shard, tensors, count, sizeof(*tensors), SOON));
	printf("%" PRIu64 " pieces: %.1f ms\n", count, (double)(th_now_ns() - start) / 1e6);
	good(thc_publish(shard, 1, SOON));
	good(thc_unpublish(shard, 0, SOON));
	unsigned submissions = agent.submissions;
	OK(cuda.cuMemFree(pieces[1234]));
	for (unsigned i = 0; i < 3; i++) {
		expect(thc_publish(shard, 2 + i, SOON), THC_E_STALE_MEMORY, "'layer.1234'");
		expect(thc_update(shard, "latest", SOON, NULL), THC_E_STALE_MEMORY, "layer.1234");
	}
	cr_assert_eq(agent.submissions, submissions, "the agent was not asked");
	/* More than a socket holds: the agent hears of each all the same. */
	good(thc_unregister(shard, SOON));
	fake_agent_await(&agent, &agent.forgets, 2 * (unsigned)count);
	free(pieces);
	free(tensors);
}

/* ---- the agent's end ----------------------------------------------------------------------- */

Test(libthc_gpu, safe_to_mutate__agent_has_ended__waits_for_its_gpu_processes)
{
	CUdeviceptr legacy = alloc(MIB);

	/* A process that ends, as the agent's. */
	good(thc_close(shard, 0, SOON));
	fflush(NULL);
	pid_t child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	int pidfd = peer_pidfd_by_pid(child);
	script(agent.pidfd = pidfd);
	open_with(0);
	good(register_one(legacy, MIB));
	int kept = -1;
	script(kept = dup(agent.lifeline[1]); agent.line.safe_to_mutate = 0;
		fake_agent_line(&agent); fake_agent_hang_up(&agent));
	cr_assert_eq(thc_publish(shard, 1, SOON), THC_E_AGENT_LOST);
	cr_assert_eq(thc_safe_to_mutate(shard), 0, "it may be frozen only");
	kill(child, SIGKILL);
	cr_assert_eq(waitpid(child, NULL, 0), child);
	cr_assert_eq(thc_safe_to_mutate(shard), 0, "a GPU process is left");
	close(kept);
	cr_assert_eq(thc_safe_to_mutate(shard), 1);
	script(agent.pidfd = -1);
	close(pidfd);
}
