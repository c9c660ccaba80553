/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_cuda_share_test - the libcuda.so.1 of the tests in several processes: memory that they
 * share, and what is left of it when one of them ends.
 *
 * The worker is a child; the test itself is the other process. Each step is a message.
 */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "tests/support/cuda/machine.h"
#include "tests/support/cuda/people.h"

#define MIB ((size_t)1 << 20)
#define CHUNK MACHINE_GRANULARITY
#define POSIX_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static struct machine machine;

static void
setup(void)
{
	machine_new(&machine, 2, 64 * MIB);
}

static void
teardown(void)
{
	machine_remove(&machine);
}

#define EXPECT(result, call) cr_assert_eq((call), (result), "%s", #call)
#define OK(call) EXPECT(CUDA_SUCCESS, call)
#define GOOD(call) TH_ASSERT((call) == CUDA_SUCCESS) /* in a child */

static void
wait_for(int sock)
{
	char step = 0;
	hear(sock, &step, 1);
}

static void
go(int sock)
{
	tell(sock, "", 1, -1);
}

static uint64_t
own_context(void)
{
	return machine.page->devices[0].context_bytes;
}

/* ---- legacy handles ------------------------------------------------------------------------- */

static void
legacy_worker(int sock)
{
	struct cuda cuda = cuda_ready(0);
	CUdeviceptr address = 0, opened = 0;
	CUipcMemHandle handle;
	GOOD(test_cuda.cuMemAlloc(&address, 4 * MIB));
	GOOD(cuda.cuMemsetD8(address, 0x41, 4 * MIB));
	GOOD(cuda.cuIpcGetMemHandle(&handle, address + 100)); /* of the allocation, not of this */
	TH_ASSERT(cuda.cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ==
		  CUDA_ERROR_INVALID_CONTEXT); /* one's own */
	tell(sock, &handle, sizeof(handle), -1);
	wait_for(sock);
	GOOD(cuda.cuMemsetD8(address + 1, 0x42, 1));
	go(sock);
	wait_for(sock);
	GOOD(cuda.cuMemFree(address));
	go(sock);
	wait_for(sock);
}

static CUresult
open_handle(const struct cuda *cuda, CUipcMemHandle handle, CUdeviceptr *ret_address)
{
	return cuda->cuIpcOpenMemHandle(ret_address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

Test(fake_cuda_share, legacy__opened__is_the_same_memory, .init = setup, .fini = teardown)
{
	struct person worker = person_new(legacy_worker);
	struct cuda cuda = cuda_ready(0);
	CUipcMemHandle handle, bad = {{0}};
	CUdeviceptr first = 0, second = 0, base = 0;
	CUcontext other = NULL;
	size_t bytes = 0;
	char got[2];
	hear(worker.sock, &handle, sizeof(handle));
	OK(open_handle(&cuda, handle, &first));
	OK(open_handle(&cuda, handle, &second));
	cr_assert_eq(first, second, "once more in the same context: counted");
	OK(cuda.cuMemGetAddressRange(&base, &bytes, first));
	cr_assert_eq(base, first);
	cr_assert_eq(bytes, 4 * MIB);
	go(worker.sock);
	wait_for(worker.sock);
	OK(test_cuda.cuMemcpyDtoH(got, first, 2));
	cr_assert_eq(memcmp(got, "AB", 2), 0);

	EXPECT(CUDA_ERROR_INVALID_VALUE, open_handle(&cuda, bad, &base));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuIpcOpenMemHandle(&base, handle, 0));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuIpcGetMemHandle(&bad, first)); /* not its own */
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemFree(first));
	OK(test_cuda.cuCtxCreate(&other, 0, 0));
	EXPECT(CUDA_ERROR_ALREADY_MAPPED, open_handle(&cuda, handle, &base));
	EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuda.cuIpcCloseMemHandle(first));
	OK(test_cuda.cuCtxDestroy(other));

	OK(cuda.cuIpcCloseMemHandle(first));
	OK(test_cuda.cuMemcpyDtoH(got, first, 2));
	OK(cuda.cuIpcCloseMemHandle(first));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuIpcCloseMemHandle(first));
	EXPECT(CUDA_ERROR_INVALID_VALUE, test_cuda.cuMemcpyDtoH(got, first, 2));
	go(worker.sock);
	wait_for(worker.sock);
	EXPECT(CUDA_ERROR_INVALID_HANDLE, open_handle(&cuda, handle, &base)); /* freed */
	go(worker.sock);
	person_end(&worker);
	cr_assert_eq(machine_holds(&machine, getpid(), HELD_IMPORTS), 0);
	cr_assert_eq(machine_used(&machine, 0), own_context());
}

Test(fake_cuda_share, legacy__worker_killed__memory_stays_until_it_is_closed, .init = setup,
	.fini = teardown)
{
	struct person worker = person_new(legacy_worker);
	struct cuda cuda = cuda_ready(0);
	CUipcMemHandle handle;
	CUdeviceptr address = 0, again = 0;
	char got = 0;
	hear(worker.sock, &handle, sizeof(handle));
	OK(open_handle(&cuda, handle, &address));
	pid_t pid = worker.pid;
	person_kill(&worker);
	cr_assert_eq(machine_holds(&machine, pid, HELD_ALLOCATIONS), 1, "what it left");
	cr_assert_eq(machine_used(&machine, 0), own_context() + 4 * MIB);
	OK(test_cuda.cuMemcpyDtoH(&got, address + 4 * MIB - 1, 1));
	cr_assert_eq(got, 0x41);
	OK(cuda.cuIpcCloseMemHandle(address));
	cr_assert_eq(machine_used(&machine, 0), own_context(), "free at once");
	EXPECT(CUDA_ERROR_INVALID_HANDLE, open_handle(&cuda, handle, &again));
}

#define SMALLS 3
static const size_t small_bytes[SMALLS] = {1, 65, 1000};

static void
worker_of_small_memory(int sock)
{
	struct cuda cuda = cuda_ready(0);
	CUdeviceptr addresses[SMALLS], base = 0;
	CUipcMemHandle handles[SMALLS];
	size_t bytes = 0;
	for (int i = 0; i < SMALLS; i++) {
		GOOD(test_cuda.cuMemAlloc(&addresses[i], small_bytes[i]));
		GOOD(cuda.cuMemsetD8(addresses[i], (unsigned char)('a' + i), small_bytes[i]));
		GOOD(cuda.cuMemGetAddressRange(&base, &bytes, addresses[i]));
		TH_ASSERT(base == addresses[i] && bytes == small_bytes[i]);
		TH_ASSERT(addresses[i] == addresses[0] + 512 * (CUdeviceptr)i);
		GOOD(cuda.cuIpcGetMemHandle(&handles[i], addresses[i]));
	}
	TH_ASSERT(cuda.cuMemsetD8(addresses[1], 0, 66) == CUDA_ERROR_INVALID_VALUE);
	tell(sock, handles, sizeof(handles), -1);
	wait_for(sock);
	/* The block goes with the last of them, and what is free is taken again. */
	GOOD(cuda.cuMemFree(addresses[0]));
	GOOD(test_cuda.cuMemAlloc(&addresses[0], 512));
	TH_ASSERT(addresses[1] == addresses[0] + 512);
	for (int i = 0; i < SMALLS; i++)
		GOOD(cuda.cuMemFree(addresses[i]));
	go(sock);
	wait_for(sock);
}

Test(fake_cuda_share, legacy__small__is_opened_with_its_whole_block, .init = setup,
	.fini = teardown)
{
	struct person worker = person_new(worker_of_small_memory);
	struct cuda cuda = cuda_ready(0);
	CUipcMemHandle handles[SMALLS];
	CUdeviceptr opened[SMALLS], base = 0;
	size_t bytes = 0;
	hear(worker.sock, handles, sizeof(handles));
	uint64_t used = machine_used(&machine, 0);
	for (int i = SMALLS - 1; i >= 0; i--) {
		char got = 0;
		OK(open_handle(&cuda, handles[i], &opened[i]));
		OK(test_cuda.cuMemcpyDtoH(&got, opened[i] + small_bytes[i] - 1, 1));
		cr_assert_eq(got, 'a' + i);
	}
	cr_assert_eq(machine_holds(&machine, getpid(), HELD_IMPORTS), 1);
	OK(cuda.cuMemGetAddressRange(&base, &bytes, opened[1]));
	cr_assert_eq(bytes, 2 * MIB);
	cr_assert_eq(base, opened[0]);
	cr_assert_eq(opened[2], base + 1024);
	for (int i = 0; i < SMALLS; i++)
		OK(cuda.cuIpcCloseMemHandle(opened[i]));
	cr_assert_eq(machine_holds(&machine, getpid(), HELD_IMPORTS), 0);
	go(worker.sock);
	wait_for(worker.sock);
	cr_assert_eq(machine_used(&machine, 0), used - 2 * MIB);
	EXPECT(CUDA_ERROR_INVALID_HANDLE, open_handle(&cuda, handles[0], &opened[0]));
	go(worker.sock);
	person_end(&worker);
}

Test(fake_cuda_share, legacy__gpu_that_reaches_it_or_not__decides, .init = setup, .fini = teardown)
{
	struct person worker = person_new(legacy_worker);
	struct cuda cuda = cuda_ready(1);
	CUipcMemHandle handle;
	CUdeviceptr address = 0;
	char got = 0;
	hear(worker.sock, &handle, sizeof(handle));
	machine.page->devices[1].peers = 2;
	EXPECT(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, open_handle(&cuda, handle, &address));
	machine.page->devices[1].peers = 3;
	OK(open_handle(&cuda, handle, &address));
	OK(test_cuda.cuMemcpyDtoH(&got, address, 1));
	cr_assert_eq(got, 0x41);
	person_kill(&worker);
}

/* ---- chunks --------------------------------------------------------------------------------- */

static CUdeviceptr
map_chunks(const struct cuda *cuda, const CUmemGenericAllocationHandle *handles, unsigned count)
{
	const CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr range = 0;
	GOOD(cuda->cuMemAddressReserve(&range, count * CHUNK, 0, 0, 0));
	for (unsigned i = 0; i < count; i++)
		GOOD(cuda->cuMemMap(range + i * CHUNK, CHUNK, 0, handles[i], 0));
	GOOD(cuda->cuMemSetAccess(range, count * CHUNK, &access, 1));
	return range;
}

static void
vmm_worker(int sock)
{
	const CUmemAllocationProp form = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = POSIX_FD,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
		.allocFlags.gpuDirectRDMACapable = 1};
	struct cuda cuda = cuda_ready(0);
	CUmemGenericAllocationHandle handles[3];
	int fd = -1;
	for (int i = 0; i < 3; i++)
		GOOD(cuda.cuMemCreate(&handles[i], CHUNK, &form, 0));
	/* The order of addresses is not the order of memory. */
	CUmemGenericAllocationHandle last = handles[2];
	handles[2] = handles[0];
	handles[0] = last;
	CUdeviceptr range = map_chunks(&cuda, handles, 3);
	for (unsigned i = 0; i < 3; i++)
		GOOD(cuda.cuMemsetD8(range + i * CHUNK, (unsigned char)('a' + i), CHUNK));
	for (int i = 0; i < 3; i++) {
		GOOD(cuda.cuMemExportToShareableHandle(&fd, handles[i], POSIX_FD, 0));
		tell(sock, "", 1, fd);
		close(fd);
	}
	GOOD(cuda.cuMemGetHandleForAddressRange(
		&fd, range + CHUNK, 2 * CHUNK, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	tell(sock, "", 1, fd);
	close(fd);
	wait_for(sock);
}

Test(fake_cuda_share, chunks__imported__outlive_the_worker, .init = setup, .fini = teardown)
{
	struct person worker = person_new(vmm_worker);
	struct cuda cuda = cuda_ready(0);
	CUmemGenericAllocationHandle handles[3], pool = 0;
	CUmemAllocationProp form;
	char step = 0, got[2];
	for (int i = 0; i < 3; i++) {
		int fd = hear(worker.sock, &step, 1);
		OK(cuda.cuMemImportFromShareableHandle(
			&handles[i], (void *)(intptr_t)fd, POSIX_FD));
		close(fd);
	}
	int dmabuf = hear(worker.sock, &step, 1);
	EXPECT(CUDA_ERROR_INVALID_VALUE,
		cuda.cuMemImportFromShareableHandle(&pool, (void *)(intptr_t)dmabuf, POSIX_FD));
	person_kill(&worker);
	cr_assert_eq(machine_used(&machine, 0), own_context() + 3 * CHUNK);
	OK(test_cuda.cuMemGetAllocationPropertiesFromHandle(&form, handles[0]));
	cr_assert_eq(form.location.id, 0);
	cr_assert_eq(form.requestedHandleTypes, POSIX_FD);
	CUdeviceptr range = map_chunks(&cuda, handles, 3);
	OK(test_cuda.cuMemcpyDtoH(got, range + CHUNK - 1, 2));
	cr_assert_eq(memcmp(got, "ab", 2), 0);
	/* A NIC's view: the range that was asked for, across chunks. */
	cr_assert_eq(machine_dmabuf_read(&machine, dmabuf, CHUNK - 1, got, 2), 0);
	cr_assert_eq(memcmp(got, "bc", 2), 0);

	for (int i = 0; i < 3; i++)
		OK(cuda.cuMemRelease(handles[i]));
	OK(cuda.cuMemUnmap(range, 3 * CHUNK));
	OK(cuda.cuMemAddressFree(range, 3 * CHUNK));
	cr_assert_eq(machine_used(&machine, 0), own_context() + 2 * CHUNK, "the NIC's");
	close(dmabuf);
	cr_assert_eq(machine_used(&machine, 0), own_context());
}

/* ---- pools ---------------------------------------------------------------------------------- */

static void
pool_worker(int sock)
{
	CUmemPoolProps form = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = POSIX_FD,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	struct cuda cuda = cuda_ready(0);
	CUmemoryPool pool = NULL, plain = NULL;
	CUmemPoolPtrExportData data;
	CUipcMemHandle legacy;
	CUdeviceptr address = 0, hidden = 0;
	unsigned long long types = 0;
	int fd = -1;
	GOOD(test_cuda.cuMemPoolCreate(&pool, &form));
	GOOD(test_cuda.cuMemAllocFromPoolAsync(&address, MIB, pool, NULL));
	GOOD(cuda.cuMemsetD8(address, 'p', MIB));
	GOOD(cuda.cuPointerGetAttribute(
		&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address));
	TH_ASSERT(types == POSIX_FD);
	TH_ASSERT(cuda.cuIpcGetMemHandle(&legacy, address) == CUDA_ERROR_INVALID_VALUE);
	TH_ASSERT(cuda.cuMemPoolExportPointer(&data, address) == CUDA_ERROR_INVALID_VALUE);
	GOOD(cuda.cuMemPoolExportToShareableHandle(&fd, pool, POSIX_FD, 0));
	GOOD(cuda.cuMemPoolExportPointer(&data, address));
	/* The default pool is nobody else's. */
	GOOD(test_cuda.cuDeviceGetDefaultMemPool(&plain, 0));
	GOOD(test_cuda.cuMemAllocFromPoolAsync(&hidden, MIB, plain, NULL));
	TH_ASSERT(cuda.cuMemPoolExportToShareableHandle(&fd, plain, POSIX_FD, 0) ==
		  CUDA_ERROR_INVALID_VALUE);
	tell(sock, &data, sizeof(data), fd);
	wait_for(sock);
	GOOD(test_cuda.cuMemFreeAsync(address, NULL));
	GOOD(cuda.cuMemFree(hidden));
	GOOD(cuda.cuMemPoolDestroy(pool));
	TH_ASSERT(machine_holds(&machine, getpid(), HELD_ALLOCATIONS) == 0);
}

Test(fake_cuda_share, pools__imported_pointer__is_the_same_memory, .init = setup, .fini = teardown)
{
	struct person worker = person_new(pool_worker);
	struct cuda cuda = cuda_ready(0);
	CUmemPoolPtrExportData data;
	CUmemoryPool pool = NULL;
	CUstream stream = NULL;
	CUdeviceptr address = 0, again = 0;
	char got = 0;
	int fd = hear(worker.sock, &data, sizeof(data));
	OK(cuda.cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, POSIX_FD, 0));
	close(fd);
	EXPECT(CUDA_ERROR_INVALID_VALUE,
		test_cuda.cuMemAllocFromPoolAsync(&address, MIB, pool, NULL));
	OK(cuda.cuMemPoolImportPointer(&address, pool, &data));
	OK(cuda.cuMemPoolImportPointer(&again, pool, &data));
	cr_assert_eq(again, address, "the same, and not counted");
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemPoolExportPointer(&data, address));
	OK(test_cuda.cuMemcpyDtoH(&got, address + MIB - 1, 1));
	cr_assert_eq(got, 'p');
	OK(cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	OK(test_cuda.cuMemFreeAsync(address, stream));
	OK(cuda.cuStreamSynchronize(stream));
	EXPECT(CUDA_ERROR_INVALID_VALUE, test_cuda.cuMemcpyDtoH(&got, address, 1));
	OK(cuda.cuMemPoolDestroy(pool));
	cr_assert_eq(machine_holds(&machine, getpid(), HELD_IMPORTS), 0);
	cr_assert_eq(machine_holds(&machine, getpid(), HELD_POOLS), 0);
	go(worker.sock);
	person_end(&worker);
	cr_assert_eq(machine_used(&machine, 0), own_context());
}

/* ---- a process that hangs ------------------------------------------------------------------- */

static void
hanging_worker(int sock)
{
	struct cuda cuda = cuda_ready(0);
	CUdeviceptr address = 0;
	GOOD(test_cuda.cuMemAlloc(&address, MIB));
	go(sock);
	cuda.cuMemFree(address); /* does not come back */
	go(sock);
}

Test(fake_cuda_share, hang__killed__its_memory_is_free, .init = setup, .fini = teardown)
{
	int plan = machine_plan(&machine, FAULT_HANG, 0, CALL_cuMemFree, 0, CUDA_SUCCESS);
	struct person worker = person_new(hanging_worker);
	wait_for(worker.sock);
	while (machine_met(&machine, plan) == 0)
		usleep(1000);
	cr_assert_eq(machine_used(&machine, 0), own_context() + MIB);
	person_kill(&worker);
	cr_assert_eq(machine_used(&machine, 0), 0);
}
