/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_cuda_test - the libcuda.so.1 of the tests in one process: what it does and what it refuses.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/cuda/machine.h"
#include "tests/support/cuda/people.h"

#define MIB ((size_t)1 << 20)
#define GPU_BYTES (64 * MIB)
#define CHUNK MACHINE_GRANULARITY

static struct machine machine;
static struct cuda cuda;

static void
setup(void)
{
	machine_new(&machine, 2, GPU_BYTES);
	cuda = cuda_ready(0);
}

static void
teardown(void)
{
	machine_remove(&machine);
}

#define EXPECT(result, call) cr_assert_eq((call), (result), "%s", #call)
#define OK(call) EXPECT(CUDA_SUCCESS, call)

static int
held(enum machine_held what)
{
	return machine_holds(&machine, getpid(), what);
}

static int
is(CUpointer_attribute attribute, CUdeviceptr address)
{
	unsigned long long value = 0;
	OK(cuda.cuPointerGetAttribute(&value, attribute, address));
	return (int)value;
}

static CUdeviceptr
alloc(size_t bytes)
{
	CUdeviceptr address = 0;
	OK(test_cuda.cuMemAlloc(&address, bytes));
	return address;
}

/* ---- machines ------------------------------------------------------------------------------- */

/* Its maker has been killed, long ago as far as the folder tells. */
static struct machine
orphan(void)
{
	static const struct timespec long_ago[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
	struct machine left;
	int pipe_fds[2];
	cr_assert_eq(pipe(pipe_fds), 0);
	pid_t pid = fork();
	if (pid == 0) {
		machine_new(&left, 1, GPU_BYTES);
		(void)!write(pipe_fds[1], &left, sizeof(left));
		pause();
	}
	cr_assert_eq(read(pipe_fds[0], &left, sizeof(left)), (ssize_t)sizeof(left));
	cr_assert_eq(utimensat(AT_FDCWD, left.folder, long_ago, 0), 0);
	machine_new(&machine, 1, GPU_BYTES);
	machine_remove(&machine);
	cr_assert_eq(access(left.folder, F_OK), 0, "its maker lives");
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	return left;
}

Test(fake_cuda, folder__of_who_was_killed__goes_with_the_next_one)
{
	struct machine left = orphan();
	machine_new(&machine, 1, GPU_BYTES);
	cr_assert_neq(access(left.folder, F_OK), 0);
	machine_remove(&machine);
	cr_assert_neq(access(machine.folder, F_OK), 0);
}

/* ---- devices and contexts ------------------------------------------------------------------- */

Test(fake_cuda, init__no_machine__is_a_driver_without_gpus)
{
	struct cuda none = {0};
	struct th_err err = {0};
	int count = 0;
	unsetenv(MACHINE_ENV);
	cr_assert_eq(cuda_open(&none, &err), 0, "%s", err.text);
	cr_assert_eq(none.version, 13000);
	EXPECT(CUDA_ERROR_NOT_INITIALIZED, none.cuDeviceGetCount(&count));
	EXPECT(CUDA_ERROR_NO_DEVICE, none.cuInit(0));
	cr_assert_str_eq(cuda_result_name(&none, CUDA_ERROR_NO_DEVICE), "CUDA_ERROR_NO_DEVICE");
}

Test(fake_cuda, devices__two__differ_by_uuid_and_are_peers, .init = setup, .fini = teardown)
{
	CUuuid first, second;
	char name[32], pci[16];
	size_t bytes = 0;
	int count = 0, can = 0, value = 0;
	OK(cuda.cuDeviceGetCount(&count));
	cr_assert_eq(count, 2);
	OK(cuda.cuDeviceGetUuid(&first, 0));
	OK(cuda.cuDeviceGetUuid(&second, 1));
	cr_assert_neq(memcmp(&first, &second, sizeof(first)), 0);
	OK(cuda.cuDeviceGetName(name, sizeof(name), 1));
	OK(cuda.cuDeviceGetPCIBusId(pci, sizeof(pci), 1));
	cr_assert_str_eq(pci, "0000:20:00.0");
	OK(cuda.cuDeviceTotalMem(&bytes, 0));
	cr_assert_eq(bytes, GPU_BYTES);
	OK(cuda.cuDeviceCanAccessPeer(&can, 0, 1));
	cr_assert_eq(can, 1);
	OK(cuda.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0));
	cr_assert_eq(value, 1);
	EXPECT(CUDA_ERROR_INVALID_DEVICE, cuda.cuDeviceGetUuid(&first, 2));
}

Test(fake_cuda, contexts__primary_and_own__end_with_their_memory, .init = setup, .fini = teardown)
{
	CUcontext primary = NULL, own = NULL, got = NULL;
	CUdeviceptr address = alloc(MIB), in_own = 0;
	unsigned flags = 0;
	int active = 0;
	uint64_t idle = machine_used(&machine, 1);
	cr_assert_eq(idle, 0, "a GPU without a context has all its memory");
	OK(cuda.cuCtxGetCurrent(&primary));
	OK(test_cuda.cuCtxCreate(&own, 0, 1));
	OK(test_cuda.cuMemAlloc(&in_own, MIB));
	cr_assert_eq(held(HELD_CONTEXTS), 2);
	cr_assert_gt(machine_used(&machine, 1), MIB - 1);
	EXPECT(CUDA_ERROR_INVALID_CONTEXT, test_cuda.cuCtxDestroy(primary));
	OK(test_cuda.cuCtxDestroy(own));
	cr_assert_eq(machine_used(&machine, 1), 0);
	EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuda.cuCtxPushCurrent(own));
	OK(cuda.cuCtxGetCurrent(&got));
	cr_assert_eq(got, primary);
	OK(cuda.cuDevicePrimaryCtxGetState(0, &flags, &active));
	cr_assert_eq(active, 1);
	OK(cuda.cuDevicePrimaryCtxRelease(0));
	cr_assert_eq(machine_used(&machine, 0), 0);
	EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, test_cuda.cuMemAlloc(&address, MIB));
	EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuda.cuDevicePrimaryCtxRelease(0));
	OK(cuda.cuCtxPopCurrent(NULL));
	EXPECT(CUDA_ERROR_INVALID_CONTEXT, test_cuda.cuMemAlloc(&address, MIB));
	cr_assert_eq(held(HELD_CONTEXTS) + held(HELD_ALLOCATIONS), 0);
}

Test(fake_cuda, fork__child__has_no_driver, .init = setup, .fini = teardown)
{
	pid_t child = fork();
	if (child == 0) {
		int count = 0;
		_exit(cuda.cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
					cuda.cuInit(0) == CUDA_ERROR_NOT_INITIALIZED
				? 0
				: 1);
	}
	int status = 0;
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_assert_eq(status, 0);
}

/* ---- legacy memory and copies --------------------------------------------------------------- */

Test(fake_cuda, copies__in_within_out__bring_the_bytes, .init = setup, .fini = teardown)
{
	char out[1000], back[1000];
	CUdeviceptr a = alloc(MIB), b = alloc(MIB);
	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = (char)(i * 7);
	OK(test_cuda.cuMemcpyHtoD(a + 100, out, sizeof(out)));
	OK(test_cuda.cuMemcpyDtoD(b + 50, a + 100, sizeof(out)));
	OK(cuda.cuMemsetD8(b + 60, 0x5a, 10));
	OK(test_cuda.cuMemcpyDtoH(back, b + 50, sizeof(back)));
	memset(out + 10, 0x5a, 10);
	cr_assert_eq(memcmp(out, back, sizeof(out)), 0);
	/* One allocation does not run on into the next. */
	EXPECT(CUDA_ERROR_INVALID_VALUE, test_cuda.cuMemcpyDtoH(back, a + MIB - 10, 20));
	OK(cuda.cuMemFree(a));
	EXPECT(CUDA_ERROR_INVALID_VALUE, test_cuda.cuMemcpyDtoH(back, a + 100, 1));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemFree(a));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemFree(b + 1));
	OK(cuda.cuMemFree(0));
	OK(cuda.cuMemFree(b));
	cr_assert_eq(held(HELD_ALLOCATIONS), 0);
}

Test(fake_cuda, alloc__more_than_there_is__is_out_of_memory, .init = setup, .fini = teardown)
{
	CUdeviceptr address = 0;
	size_t free_bytes = 0, total = 0;
	EXPECT(CUDA_ERROR_OUT_OF_MEMORY, test_cuda.cuMemAlloc(&address, GPU_BYTES));
	OK(test_cuda.cuMemGetInfo(&free_bytes, &total));
	cr_assert_eq(total, GPU_BYTES);
	cr_assert_lt(free_bytes, total, "a context takes some");
	OK(test_cuda.cuMemAlloc(&address, free_bytes));
	OK(cuda.cuMemFree(address));
	OK(test_cuda.cuMemAlloc(&address, free_bytes));
}

Test(fake_cuda, attributes__legacy_managed_host_and_foreign__are_told_apart, .init = setup,
	.fini = teardown)
{
	CUdeviceptr legacy = alloc(3 * MIB), managed = 0, base = 0;
	unsigned long long id = 0, again = 0;
	size_t bytes = 0;
	cr_assert_eq(is(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, legacy + 5), 1);
	cr_assert_eq(is(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, legacy), CU_MEMORYTYPE_DEVICE);
	cr_assert_eq(is(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, legacy), 1);
	cr_assert_eq(is(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, legacy), 0);
	OK(cuda.cuMemGetAddressRange(&base, &bytes, legacy + 12345));
	cr_assert_eq(base, legacy);
	cr_assert_eq(bytes, 3 * MIB);
	OK(cuda.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, legacy));

	OK(test_cuda.cuMemAllocManaged(&managed, MIB, CU_MEM_ATTACH_GLOBAL));
	memset((void *)(uintptr_t)managed, 1, MIB); /* the host may */
	cr_assert_eq(is(CU_POINTER_ATTRIBUTE_IS_MANAGED, managed), 1);
	cr_assert_eq(is(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, managed), 0);

	void *host = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CUdeviceptr at_host = (CUdeviceptr)(uintptr_t)host;
	int type = 7;
	EXPECT(CUDA_ERROR_INVALID_VALUE,
		cuda.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at_host));
	CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
	void *value = &type;
	OK(cuda.cuPointerGetAttributes(1, &asked, &value, at_host));
	cr_assert_eq(type, 0, "several at once: zeroes, no error");
	OK(cuda.cuMemHostRegister(host, MIB, CU_MEMHOSTREGISTER_PORTABLE));
	cr_assert_eq(is(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at_host), CU_MEMORYTYPE_HOST);
	EXPECT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
		cuda.cuMemHostRegister((char *)host + 4096, 4096, 0));
	OK(cuda.cuMemHostUnregister(host));
	EXPECT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuda.cuMemHostUnregister(host));
	munmap(host, MIB);
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemHostRegister(host, MIB, 0));

	/* The same address again is other memory, and says so. */
	OK(cuda.cuMemFree(legacy));
	EXPECT(CUDA_ERROR_NOT_FOUND, cuda.cuMemGetAddressRange(&base, &bytes, legacy));
	legacy = alloc(3 * MIB);
	OK(cuda.cuPointerGetAttribute(&again, CU_POINTER_ATTRIBUTE_BUFFER_ID, legacy));
	cr_assert_neq(id, again);
	int on = 1;
	OK(test_cuda.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, legacy));
	cr_assert_eq(is(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, legacy), 1);
}

/* ---- chunks that are mapped ----------------------------------------------------------------- */

static const CUmemAllocationProp exportable = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
	.allocFlags.gpuDirectRDMACapable = 1};

static const CUmemAccessDesc access_0 = {
	{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

Test(fake_cuda, vmm__two_chunks__are_one_range_and_two_mappings, .init = setup, .fini = teardown)
{
	CUmemGenericAllocationHandle a = 0, b = 0, retained = 0;
	CUdeviceptr range = 0, base = 0;
	size_t bytes = 0;
	char out[4096], back[4096];
	OK(cuda.cuMemAddressReserve(&range, 4 * CHUNK, 0, 0, 0));
	OK(cuda.cuMemCreate(&a, CHUNK, &exportable, 0));
	OK(cuda.cuMemCreate(&b, CHUNK, &exportable, 0));
	OK(cuda.cuMemMap(range, CHUNK, 0, a, 0));
	OK(cuda.cuMemMap(range + CHUNK, CHUNK, 0, b, 0));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemMap(range + CHUNK, CHUNK, 0, a, 0));
	memset(out, 0x33, sizeof(out));
	EXPECT(CUDA_ERROR_INVALID_VALUE, test_cuda.cuMemcpyHtoD(range, out, 1)); /* no access yet */
	OK(cuda.cuMemSetAccess(range, 2 * CHUNK, &access_0, 1));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemSetAccess(range, 3 * CHUNK, &access_0, 1));
	OK(test_cuda.cuMemcpyHtoD(range + CHUNK - 2048, out, sizeof(out)));
	OK(test_cuda.cuMemcpyDtoH(back, range + CHUNK - 2048, sizeof(back)));
	cr_assert_eq(memcmp(out, back, sizeof(out)), 0);

	OK(cuda.cuMemGetAddressRange(&base, &bytes, range + CHUNK + 1));
	cr_assert_eq(base, range + CHUNK, "one chunk only");
	cr_assert_eq(bytes, CHUNK);
	OK(cuda.cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, range + 1));
	cr_assert_eq(bytes, 4 * CHUNK);
	cr_assert_eq(is(CU_POINTER_ATTRIBUTE_MAPPED, range + 3 * CHUNK), 0);
	cr_assert_eq(is(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, range), 1);
	cr_assert_neq(is(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, range),
		is(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, range + CHUNK));

	/* Handles may go before mappings: the memory stays until both are gone. */
	uint64_t used = machine_used(&machine, 0);
	OK(cuda.cuMemRelease(a));
	OK(cuda.cuMemRelease(b));
	cr_assert_eq(machine_used(&machine, 0), used);
	OK(cuda.cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)(range + 77)));
	cr_assert_eq(retained, a);
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemAddressFree(range, 4 * CHUNK));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemUnmap(range, CHUNK / 2));
	OK(cuda.cuMemUnmap(range, 2 * CHUNK));
	cr_assert_eq(machine_used(&machine, 0), used - CHUNK, "a is retained");
	OK(cuda.cuMemRelease(retained));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemRelease(retained));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemAddressFree(range, CHUNK));
	OK(cuda.cuMemAddressFree(range, 4 * CHUNK));
	cr_assert_eq(machine_used(&machine, 0), used - 2 * CHUNK);
	for (int i = HELD_ALLOCATIONS; i < HELDS; i++)
		cr_assert_eq(held((enum machine_held)i), 0, "%d", i);
}

Test(fake_cuda, vmm__what_the_driver_refuses__is_refused, .init = setup, .fini = teardown)
{
	CUmemAllocationProp form = exportable;
	CUmemGenericAllocationHandle handle = 0;
	CUipcMemHandle legacy;
	CUdeviceptr range = 0;
	int fd = -1;
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemCreate(&handle, CHUNK / 2, &form, 0));
	form.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
	form.allocFlags.gpuDirectRDMACapable = 0;
	OK(cuda.cuMemCreate(&handle, CHUNK, &form, 0));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemExportToShareableHandle(&fd, handle,
						 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuda.cuMemAddressReserve(&range, CHUNK, 0, 0, 0));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemMap(range, 2 * CHUNK, 0, handle, 0));
	OK(cuda.cuMemMap(range, CHUNK, 0, handle, 0));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuIpcGetMemHandle(&legacy, range));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemFree(range));
	EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuda.cuMemGetHandleForAddressRange(&fd, range, CHUNK,
						 CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	EXPECT(CUDA_ERROR_INVALID_VALUE,
		cuda.cuMemImportFromShareableHandle(
			&handle, (void *)(intptr_t)0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	form.location.id = 9;
	EXPECT(CUDA_ERROR_INVALID_DEVICE, cuda.cuMemCreate(&handle, CHUNK, &form, 0));
	form.location.id = 0;
	form.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
	EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuda.cuMemCreate(&handle, CHUNK, &form, 0));
}

Test(fake_cuda, dmabuf__of_a_range__outlives_the_memory_s_owner, .init = setup, .fini = teardown)
{
	CUdeviceptr address = alloc(2 * MIB);
	uint64_t used = machine_used(&machine, 0);
	char data[] = "bytes of a GPU", back[sizeof(data)] = "";
	int fd = -1;
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemGetHandleForAddressRange(&fd, address + 1, MIB,
						 CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	OK(cuda.cuMemGetHandleForAddressRange(
		&fd, address + MIB, MIB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	cr_assert_eq(lseek(fd, 0, SEEK_END), (off_t)MIB, "as of any dma-buf");
	OK(test_cuda.cuMemcpyHtoD(address + MIB + 10, data, sizeof(data)));
	cr_assert_eq(machine_dmabuf_read(&machine, fd, 10, back, sizeof(back)), 0);
	cr_assert_str_eq(back, data);
	cr_assert_eq(machine_dmabuf_write(&machine, fd, 0, "BYTES", 5), 0);
	OK(test_cuda.cuMemcpyDtoH(back, address + MIB, 5));
	cr_assert_eq(memcmp(back, "BYTES", 5), 0);
	cr_assert_lt(machine_dmabuf_read(&machine, fd, MIB - 1, back, 2), 0);
	char *map = machine_dmabuf_map(&machine, fd, MIB / 2, MIB / 2);
	cr_assert_not_null(map);
	OK(test_cuda.cuMemcpyHtoD(address + MIB + MIB / 2 + 3, data, sizeof(data)));
	cr_assert_str_eq(map + 3, data);
	map[3] = 'B';
	OK(test_cuda.cuMemcpyDtoH(back, address + MIB + MIB / 2 + 3, 5));
	cr_assert_eq(memcmp(back, "Bytes", 5), 0);
	munmap(map, MIB / 2);
	cr_assert_null(machine_dmabuf_map(&machine, fd, MIB / 2, MIB));
	OK(cuda.cuMemFree(address));
	cr_assert_eq(machine_used(&machine, 0), used, "the descriptor holds it");
	close(fd);
	cr_assert_eq(machine_used(&machine, 0), used - 2 * MIB);
	address = alloc(MIB);
	CUcontext context = NULL;
	OK(cuda.cuCtxPopCurrent(&context));
	EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuda.cuMemGetHandleForAddressRange(&fd, address, MIB,
						   CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	OK(cuda.cuCtxPushCurrent(context));
	machine.page->devices[0].dma_buf = 0;
	EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuda.cuMemGetHandleForAddressRange(&fd, address, MIB,
						 CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
}

/* ---- streams and events --------------------------------------------------------------------- */

Test(fake_cuda, streams__copy_behind_an_event__waits_for_it, .init = setup, .fini = teardown)
{
	CUstream first = NULL, second = NULL;
	CUevent event = NULL;
	CUdeviceptr address = alloc(MIB);
	void *host = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	OK(cuda.cuMemHostRegister(host, MIB, CU_MEMHOSTREGISTER_PORTABLE));
	OK(cuda.cuStreamCreateWithPriority(&first, CU_STREAM_NON_BLOCKING, 0));
	OK(cuda.cuStreamCreateWithPriority(&second, CU_STREAM_NON_BLOCKING, -5));
	OK(cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	OK(test_cuda.cuEventQuery(event));
	OK(cuda.cuMemsetD8(address, 0x11, MIB));
	int plan = machine_plan(&machine, FAULT_HANG, 0, CALL_STREAM, 0, CUDA_SUCCESS);
	memset(host, 0x22, MIB);
	OK(cuda.cuMemcpyHtoDAsync(address, host, MIB, first));
	OK(cuda.cuEventRecord(event, first));
	OK(test_cuda.cuStreamWaitEvent(second, event, 0));
	OK(cuda.cuMemcpyDtoHAsync((char *)host + MIB / 2, address, MIB / 2, second));
	EXPECT(CUDA_ERROR_NOT_READY, cuda.cuStreamQuery(first));
	EXPECT(CUDA_ERROR_NOT_READY, test_cuda.cuEventQuery(event));
	EXPECT(CUDA_ERROR_NOT_READY, cuda.cuStreamQuery(second));
	machine_lift(&machine, plan);
	OK(cuda.cuStreamSynchronize(second));
	OK(cuda.cuEventSynchronize(event));
	OK(test_cuda.cuCtxSynchronize());
	cr_assert_eq(((char *)host)[MIB - 1], 0x22);
	OK(test_cuda.cuEventDestroy(event));
	EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda.cuEventRecord(event, first));
	OK(cuda.cuStreamDestroy(first));
	OK(cuda.cuStreamDestroy(second));
	EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda.cuStreamSynchronize(first));
	OK(cuda.cuMemHostUnregister(host));
	cr_assert_eq(held(HELD_STREAMS) + held(HELD_EVENTS) + held(HELD_HOST), 0);
}

/* As a process that lives long has them. */
Test(fake_cuda, places__of_what_is_destroyed__are_taken_again, .init = setup, .fini = teardown)
{
	const CUmemPoolProps form = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool first = NULL, pool = NULL;
	CUdeviceptr address = 0;
	OK(test_cuda.cuMemPoolCreate(&first, &form));
	OK(test_cuda.cuMemAllocFromPoolAsync(&address, MIB, first, NULL));
	OK(cuda.cuMemPoolDestroy(first));
	for (unsigned i = 0; i < 1100; i++) {
		CUstream stream = NULL;
		OK(cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
		OK(cuda.cuStreamDestroy(stream));
		OK(test_cuda.cuMemPoolCreate(&pool, &form));
		cr_assert_neq(pool, first, "it has memory still");
		OK(cuda.cuMemPoolDestroy(pool));
	}
}

Test(fake_cuda, events__of_another_context__are_refused, .init = setup, .fini = teardown)
{
	CUevent event = NULL;
	CUcontext other = NULL;
	CUstream stream = NULL;
	OK(cuda.cuEventCreate(&event, CU_EVENT_DEFAULT));
	OK(test_cuda.cuCtxCreate(&other, 0, 1));
	OK(cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_DEFAULT, 0));
	EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda.cuEventRecord(event, stream));
	OK(test_cuda.cuStreamWaitEvent(stream, event, 0)); /* waiting for it is allowed */
	OK(test_cuda.cuCtxDestroy(other));
	EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda.cuStreamQuery(stream));
}

Test(fake_cuda, copies__between_gpus__need_both_contexts_only, .init = setup, .fini = teardown)
{
	CUcontext zero = NULL, one = NULL;
	CUdeviceptr from = alloc(MIB), to = 0;
	char back[16] = "";
	OK(test_cuda.cuMemcpyHtoD(from, "fifteen letters", 16));
	OK(cuda.cuCtxGetCurrent(&zero));
	OK(cuda.cuDevicePrimaryCtxRetain(&one, 1));
	OK(cuda.cuCtxPushCurrent(one));
	OK(test_cuda.cuMemAlloc(&to, MIB));
	OK(test_cuda.cuCtxEnablePeerAccess(zero, 0));
	EXPECT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, test_cuda.cuCtxEnablePeerAccess(zero, 0));
	OK(test_cuda.cuMemcpyPeerAsync(to, one, from, zero, 16, NULL));
	OK(test_cuda.cuMemcpyDtoH(back, to, 16));
	cr_assert_str_eq(back, "fifteen letters");
	machine.page->devices[0].peers = 1;
	OK(cuda.cuCtxSetCurrent(zero));
	EXPECT(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, test_cuda.cuCtxEnablePeerAccess(one, 0));
}

/* ---- planned faults ------------------------------------------------------------------------- */

Test(fake_cuda, faults__result__comes_at_the_planned_call, .init = setup, .fini = teardown)
{
	CUdeviceptr address = 0;
	int plan = machine_plan(
		&machine, FAULT_RESULT, getpid(), CALL_cuMemAlloc, 1, CUDA_ERROR_OUT_OF_MEMORY);
	int other = machine_plan(
		&machine, FAULT_RESULT, getpid() + 1, CALL_cuMemFree, 0, CUDA_ERROR_UNKNOWN);
	OK(test_cuda.cuMemAlloc(&address, MIB));
	OK(cuda.cuMemFree(address));
	EXPECT(CUDA_ERROR_OUT_OF_MEMORY, test_cuda.cuMemAlloc(&address, MIB));
	machine_lift(&machine, plan);
	OK(test_cuda.cuMemAlloc(&address, MIB));
	cr_assert_eq(machine_met(&machine, plan), 1);
	cr_assert_eq(machine_met(&machine, other), 0);
	cr_assert_eq(machine_calls(&machine, getpid(), CALL_cuMemAlloc), 3);
}

Test(fake_cuda, faults__gpu_lost__everything_about_it_fails, .init = setup, .fini = teardown)
{
	CUdeviceptr address = alloc(MIB);
	CUstream stream = NULL;
	CUevent event = NULL;
	CUcontext again = NULL;
	OK(cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	OK(cuda.cuEventCreate(&event, 0));
	machine_plan(&machine, FAULT_LOST, 0, CALL_cuMemsetD8, 0, CUDA_ERROR_UNKNOWN);
	EXPECT(CUDA_ERROR_UNKNOWN, cuda.cuMemsetD8(address, 0, 1));
	EXPECT(CUDA_ERROR_UNKNOWN, cuda.cuMemFree(address));
	EXPECT(CUDA_ERROR_UNKNOWN, cuda.cuStreamQuery(stream));
	EXPECT(CUDA_ERROR_UNKNOWN, cuda.cuEventSynchronize(event));
	OK(cuda.cuCtxPopCurrent(NULL));
	OK(cuda.cuDevicePrimaryCtxRetain(&again, 1)); /* the other one lives */
	OK(cuda.cuCtxPushCurrent(again));
	OK(test_cuda.cuMemAlloc(&address, MIB));
}

/* ---- kernels -------------------------------------------------------------------------------- */

#define HEAD "//\n.version 6.0\n.target sm_70\n"
#define ENTRY ".visible .entry th_leaf_digests(\n)\n"

Test(fake_cuda, module__text_that_no_gpu_takes__is_refused, .init = setup, .fini = teardown)
{
	CUmodule module = NULL;
	CUfunction function = NULL;
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuModuleLoadData(&module, NULL));
	EXPECT(CUDA_ERROR_INVALID_PTX, cuda.cuModuleLoadData(&module, "no text of PTX"));
	EXPECT(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
		cuda.cuModuleLoadData(&module, "//\n.version 10.0\n.target sm_70\n" ENTRY));
	EXPECT(CUDA_ERROR_NO_BINARY_FOR_GPU,
		cuda.cuModuleLoadData(&module, "//\n.version 8.0\n.target sm_120\n" ENTRY));
	OK(cuda.cuModuleLoadData(&module, HEAD));
	EXPECT(CUDA_ERROR_NOT_FOUND,
		cuda.cuModuleGetFunction(&function, module, "th_leaf_digests"));
	OK(cuda.cuModuleUnload(module));
	EXPECT(CUDA_ERROR_INVALID_HANDLE, cuda.cuModuleUnload(module));
	OK(cuda.cuModuleLoadData(&module, HEAD ENTRY));
	EXPECT(CUDA_ERROR_NOT_FOUND, cuda.cuModuleGetFunction(&function, module, "another"));
	OK(cuda.cuModuleGetFunction(&function, module, "th_leaf_digests"));
	cr_assert_eq(held(HELD_MODULES), 1);
	OK(cuda.cuDevicePrimaryCtxRelease(0));
	cr_assert_eq(held(HELD_MODULES), 0);
}

Test(fake_cuda, launch__of_another_form__is_refused, .init = setup, .fini = teardown)
{
	CUmodule module = NULL;
	CUfunction function = NULL;
	CUdeviceptr nothing = 0;
	void *arguments[] = {&nothing, &nothing};
	OK(cuda.cuModuleLoadData(&module, HEAD ENTRY));
	OK(cuda.cuModuleGetFunction(&function, module, "th_leaf_digests"));
	EXPECT(CUDA_ERROR_INVALID_VALUE,
		cuda.cuLaunchKernel(function, 0, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
	EXPECT(CUDA_ERROR_INVALID_VALUE,
		cuda.cuLaunchKernel(function, 1, 1, 1, 512, 1, 1, 0, NULL, arguments, NULL));
	EXPECT(CUDA_ERROR_INVALID_VALUE,
		cuda.cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL));
	OK(cuda.cuModuleUnload(module));
	EXPECT(CUDA_ERROR_INVALID_HANDLE,
		cuda.cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
}

Test(fake_cuda, host_memory__unless_it_is_pinned__has_no_address_on_the_gpu, .init = setup,
	.fini = teardown)
{
	CUdeviceptr address = 0;
	char *data = aligned_alloc(4096, 4096);
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemHostGetDevicePointer(&address, data, 0));
	OK(cuda.cuMemHostRegister(data, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemHostGetDevicePointer(&address, data, 1));
	OK(cuda.cuMemHostGetDevicePointer(&address, data, 0));
	cr_assert_neq(address, (CUdeviceptr)(uintptr_t)data, "nobody takes the one for the other");
	OK(cuda.cuMemHostUnregister(data));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemHostGetDevicePointer(&address, data, 0));
	OK(cuda.cuMemHostRegister(data, 4096, CU_MEMHOSTREGISTER_PORTABLE));
	EXPECT(CUDA_ERROR_INVALID_VALUE, cuda.cuMemHostGetDevicePointer(&address, data, 0));
	OK(cuda.cuMemHostUnregister(data));
	free(data);
}
