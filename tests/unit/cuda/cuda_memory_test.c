/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_memory_test - what lies behind the addresses of tensors, for each kind of allocator.
 */
#include "ipc/cuda/cuda_memory.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/cuda/cuda_handle.h"
#include "tests/support/cuda/machine.h"
#include "tests/support/cuda/people.h"

#define MIB ((size_t)1 << 20)
#define CHUNK ((uint64_t)MACHINE_GRANULARITY)

static struct machine machine;
static struct cuda cuda;
static CUresult result; /* of the driver, about what is stale */
static struct cuda_memory memory;
static struct th_err err;

static void
setup(void)
{
	machine_new(&machine, 2, 64 * MIB);
	cuda = cuda_ready(0);
	cuda_memory_init(&memory, 0);
}

static void
teardown(void)
{
	cuda_memory_end(&memory);
	machine_remove(&machine);
}

#define OK(call) cr_assert_eq((call), CUDA_SUCCESS, "%s", #call)

static void
add(CUdeviceptr address, uint64_t bytes)
{
	cr_assert_eq(cuda_memory_add(&memory, &cuda, address, bytes, &err), 0, "%s", err.text);
}

static void
expect_refusal(CUdeviceptr address, uint64_t bytes, int code, const char *sentence)
{
	size_t count = memory.count;
	cr_assert_eq(cuda_memory_add(&memory, &cuda, address, bytes, &err), code, "%s", err.text);
	cr_assert(strstr(err.text, sentence), "%s", err.text);
	cr_assert_eq(memory.count, count);
}

static CUdeviceptr
alloc(size_t bytes)
{
	CUdeviceptr address = 0;
	OK(test_cuda.cuMemAlloc(&address, bytes));
	return address;
}

static CUdeviceptr
reserve(uint64_t bytes)
{
	CUdeviceptr range = 0;
	OK(cuda.cuMemAddressReserve(&range, bytes, 0, 0, 0));
	return range;
}

/* As torch's expandable segments and the sleep modes do: the handle is given back at once. */
static void
map(CUdeviceptr address, uint64_t bytes, CUmemAllocationHandleType types, bool rdma)
{
	const CUmemAllocationProp form = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = types,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
		.allocFlags.gpuDirectRDMACapable = rdma};
	const CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle = 0;
	OK(cuda.cuMemCreate(&handle, bytes, &form, 0));
	OK(cuda.cuMemMap(address, bytes, 0, handle, 0));
	OK(cuda.cuMemRelease(handle));
	OK(cuda.cuMemSetAccess(address, bytes, &access, 1));
}

static void
expect_piece(CUdeviceptr address, CUdeviceptr base, uint64_t bytes, enum cuda_kind kind, bool rdma)
{
	const struct cuda_piece *piece = cuda_memory_find(&memory, address);
	cr_assert_not_null(piece);
	cr_assert_eq(piece->base, base);
	cr_assert_eq(piece->bytes, bytes);
	cr_assert_eq(piece->kind, kind, "%s", cuda_kind_name(piece->kind));
	cr_assert_eq(piece->rdma, rdma);
	cr_assert_neq(piece->id, 0);
}

/* ---- the kinds ------------------------------------------------------------------------------ */

Test(cuda_memory, legacy__thousands_of_tensors__share_few_pieces, .init = setup, .fini = teardown)
{
	CUdeviceptr segments[3] = {alloc(20 * MIB), alloc(2 * MIB), alloc(20 * MIB)};
	unsigned asked = machine_calls(&machine, getpid(), CALL_cuPointerGetAttributes);
	for (uint64_t i = 0; i < 10000; i++)
		add(segments[i % 3] + i * 200, 200);
	cr_assert_eq(memory.count, 3);
	cr_assert_eq(machine_calls(&machine, getpid(), CALL_cuPointerGetAttributes), asked + 3);
	expect_piece(segments[1] + 5, segments[1], 2 * MIB, CUDA_KIND_LEGACY, true);
	for (size_t i = 1; i < memory.count; i++)
		cr_assert_lt(memory.pieces[i - 1].base, memory.pieces[i].base);
	cr_assert_null(cuda_memory_find(&memory, segments[1] + 2 * MIB));
	cr_assert_not(memory.pieces[0].mapped);
}

Test(cuda_memory, chunk__fills_its_range__is_one_piece, .init = setup, .fini = teardown)
{
	CUdeviceptr range = reserve(2 * CHUNK);
	map(range, 2 * CHUNK, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, true);
	add(range + 100, 2 * CHUNK - 100);
	cr_assert_eq(memory.count, 1);
	expect_piece(range, range, 2 * CHUNK, CUDA_KIND_CHUNK, true);
	cr_assert(memory.pieces[0].mapped);
}

Test(cuda_memory, chunks__tensor_across_three__is_in_three_pieces, .init = setup, .fini = teardown)
{
	CUdeviceptr range = reserve(8 * CHUNK);
	for (uint64_t i = 0; i < 4; i++)
		map(range + i * CHUNK, CHUNK, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, false);
	add(range + CHUNK + 10, 2 * CHUNK);
	cr_assert_eq(memory.count, 3, "the first chunk holds no tensor");
	expect_piece(range + 2 * CHUNK, range + 2 * CHUNK, CHUNK, CUDA_KIND_CHUNKS, false);
	cr_assert_eq(memory.pieces[0].range, range);
	cr_assert_eq(memory.pieces[0].range_bytes, 8 * CHUNK);
	cr_assert_neq(memory.pieces[0].id, memory.pieces[1].id);
	add(range + 10, 4 * CHUNK - 10);
	cr_assert_eq(memory.count, 4);
	/* Behind the last chunk nothing is mapped yet. */
	expect_refusal(range + 3 * CHUNK, CHUNK + 1, TH_E_INVALID, "reserved address without");
}

Test(cuda_memory, pools__that_can_be_exported_or_not__differ, .init = setup, .fini = teardown)
{
	CUmemPoolProps form = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool open = NULL, closed = NULL;
	CUdeviceptr first = 0, second = 0;
	OK(test_cuda.cuMemPoolCreate(&open, &form));
	OK(test_cuda.cuDeviceGetDefaultMemPool(&closed, 0));
	OK(test_cuda.cuMemAllocFromPoolAsync(&first, MIB, open, NULL));
	OK(test_cuda.cuMemAllocFromPoolAsync(&second, MIB, closed, NULL));
	add(first, MIB);
	add(second + 1, 1);
	expect_piece(first, first, MIB, CUDA_KIND_POOL, false);
	expect_piece(second + 1, second, MIB, CUDA_KIND_CLOSED, false);
}

Test(cuda_memory, closed__chunk_without_handle_types__may_still_be_a_nic_s, .init = setup,
	.fini = teardown)
{
	CUdeviceptr plain = reserve(CHUNK), rdma = reserve(CHUNK);
	map(plain, CHUNK, CU_MEM_HANDLE_TYPE_NONE, false);
	map(rdma, CHUNK, CU_MEM_HANDLE_TYPE_NONE, true);
	add(plain, CHUNK);
	add(rdma, CHUNK);
	expect_piece(plain, plain, CHUNK, CUDA_KIND_CLOSED, false);
	expect_piece(rdma, rdma, CHUNK, CUDA_KIND_CLOSED, true);
}

/* More than all else that is asked of a piece. */
Test(cuda_memory, context__is_entered_once_for_all_pieces_of_a_tensor, .init = setup,
	.fini = teardown)
{
	CUdeviceptr range = reserve(8 * CHUNK);
	for (unsigned i = 0; i < 8; i++)
		map(range + i * CHUNK, CHUNK, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, false);
	unsigned before = machine_calls(&machine, getpid(), CALL_cuCtxPushCurrent);
	add(range, CHUNK);
	unsigned one = machine_calls(&machine, getpid(), CALL_cuCtxPushCurrent) - before;
	add(range, 8 * CHUNK);
	cr_assert_eq(memory.count, 8);
	cr_assert_gt(one, 0);
	cr_assert_eq(machine_calls(&machine, getpid(), CALL_cuCtxPushCurrent) - before, 2 * one);
	before += 2 * one;
	add(range, 8 * CHUNK);
	cr_assert_eq(machine_calls(&machine, getpid(), CALL_cuCtxPushCurrent), before, "all known");
}

Test(cuda_memory, context__none__needs_none_and_makes_none, .init = setup, .fini = teardown)
{
	CUdeviceptr legacy = alloc(MIB);
	OK(cuda.cuCtxPopCurrent(NULL));
	add(legacy, MIB);
	cr_assert_null(cuda_memory_stale(&memory, &cuda, &result));
	cr_assert_eq(machine_holds(&machine, getpid(), HELD_CONTEXTS), 1, "the test's");
}

static struct cuda driver;
static unsigned asked;

static CUresult
ask_in_a_context(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
	CUdevice device = -1;
	if (attribute != CU_POINTER_ATTRIBUTE_CONTEXT) {
		OK(driver.cuCtxGetDevice(&device));
		cr_assert_eq(device, 0);
		asked++;
	}
	return driver.cuPointerGetAttribute(value, attribute, address);
}

/* A mapped chunk belongs to no context: its GPU's is entered, not what the thread happens to have.
 */
Test(cuda_memory, context__none_or_another_gpu_s__asks_in_its_own, .init = setup, .fini = teardown)
{
	CUdeviceptr range = reserve(CHUNK);
	CUcontext other = NULL;
	map(range, CHUNK, CU_MEM_HANDLE_TYPE_NONE, true);
	OK(cuda.cuCtxPopCurrent(NULL));
	driver = cuda;
	cuda.cuPointerGetAttribute = ask_in_a_context;
	for (int i = 0; i < 2; i++) {
		unsigned before = asked;
		add(range, CHUNK);
		cr_assert_gt(asked, before);
		before = asked;
		cr_assert_null(cuda_memory_stale(&memory, &cuda, &result));
		cr_assert_eq(asked, before + 1);
		cuda_memory_end(&memory);
		OK(cuda.cuDevicePrimaryCtxRetain(&other, 1));
		OK(cuda.cuCtxPushCurrent(other));
	}
}

/* ---- what is no memory of the GPU ----------------------------------------------------------- */

Test(cuda_memory, add__what_cannot_be_a_tensor__says_why, .init = setup, .fini = teardown)
{
	CUdeviceptr legacy = alloc(MIB), managed = 0, other = 0;
	CUcontext one = NULL;
	int local = 0;
	expect_refusal((CUdeviceptr)(uintptr_t)&local, 4, TH_E_INVALID, "no GPU memory of this");
	add(legacy, MIB);
	expect_refusal(legacy + MIB - 1, 2, TH_E_INVALID, "end 1 bytes behind their allocation");
	expect_refusal(~0ull, 2, TH_E_INVALID, "has no 2 bytes behind it");
	OK(test_cuda.cuMemAllocManaged(&managed, MIB, CU_MEM_ATTACH_GLOBAL));
	expect_refusal(managed, MIB, TH_E_MEMORY_KIND, "managed memory");
	void *host = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	OK(cuda.cuMemHostRegister(host, MIB, 0));
	expect_refusal((CUdeviceptr)(uintptr_t)host, 1, TH_E_INVALID, "with device -1");
	OK(cuda.cuDevicePrimaryCtxRetain(&one, 1));
	OK(cuda.cuCtxPushCurrent(one));
	OK(test_cuda.cuMemAlloc(&other, MIB));
	expect_refusal(other, MIB, TH_E_INVALID, "not on GPU 0: the tensor's device has to be 1");
	OK(cuda.cuMemFree(other));
	expect_refusal(other, MIB, TH_E_INVALID, "it was freed, or never was");
	add(legacy, 0);
}

static void
lends(int sock)
{
	struct cuda own = cuda_ready(0);
	CUdeviceptr address = 0;
	CUipcMemHandle handle;
	char end;
	TH_ASSERT(test_cuda.cuMemAlloc(&address, 2 * MIB) == CUDA_SUCCESS);
	TH_ASSERT(own.cuIpcGetMemHandle(&handle, address) == CUDA_SUCCESS);
	tell(sock, &handle, sizeof(handle), -1);
	hear(sock, &end, 1);
}

Test(cuda_memory, add__what_another_process_lends__is_that_processs, .fini = teardown)
{
	CUdeviceptr address = 0;
	CUipcMemHandle handle;
	machine_new(&machine, 2, 64 * MIB);
	struct person person = person_new(lends);
	cuda = cuda_ready(0);
	cuda_memory_init(&memory, 0);
	hear(person.sock, &handle, sizeof(handle));
	OK(cuda.cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	expect_refusal(
		address, MIB, TH_E_MEMORY_KIND, "registered in the process that allocated it");
	OK(cuda.cuIpcCloseMemHandle(address));
	person_kill(&person);
}

static const CUmemPoolProps open_form = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

static void
lends_of_pool(int sock)
{
	struct cuda own = cuda_ready(0);
	CUmemPoolPtrExportData data;
	CUmemoryPool pool = NULL;
	CUdeviceptr address = 0;
	char end;
	int fd = -1;
	TH_ASSERT(test_cuda.cuMemPoolCreate(&pool, &open_form) == CUDA_SUCCESS);
	TH_ASSERT(test_cuda.cuMemAllocFromPoolAsync(&address, MIB, pool, NULL) == CUDA_SUCCESS);
	TH_ASSERT(own.cuMemPoolExportToShareableHandle(
			  &fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
	TH_ASSERT(own.cuMemPoolExportPointer(&data, address) == CUDA_SUCCESS);
	tell(sock, &data, sizeof(data), fd);
	hear(sock, &end, 1);
}

Test(cuda_memory, pool__of_another_process__is_told_from_own_ones, .fini = teardown)
{
	CUdeviceptr lent = 0, own = 0, destroyed = 0;
	CUmemoryPool theirs = NULL, ours = NULL, gone = NULL;
	CUmemPoolPtrExportData data;
	machine_new(&machine, 2, 64 * MIB);
	struct person person = person_new(lends_of_pool);
	cuda = cuda_ready(0);
	cuda_memory_init(&memory, 0);
	int fd = hear(person.sock, &data, sizeof(data));
	OK(cuda.cuMemPoolImportFromShareableHandle(
		&theirs, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	close(fd);
	OK(cuda.cuMemPoolImportPointer(&lent, theirs, &data));
	OK(test_cuda.cuMemPoolCreate(&ours, &open_form));
	OK(test_cuda.cuMemAllocFromPoolAsync(&own, MIB, ours, NULL));
	OK(test_cuda.cuMemPoolCreate(&gone, &open_form));
	OK(test_cuda.cuMemAllocFromPoolAsync(&destroyed, MIB, gone, NULL));
	OK(cuda.cuMemPoolDestroy(gone));
	add(lent, MIB);
	add(own, MIB);
	add(destroyed, MIB);
	cr_assert_eq(cuda_memory_check_pool(&cuda, 0, cuda_memory_find(&memory, lent), &err),
		TH_E_MEMORY_KIND);
	cr_assert(strstr(err.text, "registered in the process that allocated it"), "%s", err.text);
	int next = dup(0); /* the lowest one that is free */
	close(next);
	cr_assert_eq(cuda_memory_check_pool(&cuda, 0, cuda_memory_find(&memory, own), &err), 0);
	cr_assert_eq(dup(0), next, "its descriptor is closed");
	close(next);
	cr_assert_eq(
		cuda_memory_check_pool(&cuda, 0, cuda_memory_find(&memory, destroyed), &err), 0);
	person_kill(&person);
}

static void
lends_a_chunk(int sock)
{
	const CUmemAllocationProp form = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	struct cuda own = cuda_ready(0);
	CUmemGenericAllocationHandle handle = 0;
	char end;
	int fd = -1;
	TH_ASSERT(own.cuMemCreate(&handle, CHUNK, &form, 0) == CUDA_SUCCESS);
	TH_ASSERT(own.cuMemExportToShareableHandle(&fd, handle,
			  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
	tell(sock, "", 1, fd);
	hear(sock, &end, 1);
}

/* Nothing tells it from an own one; what its handle opens needs neither it nor its allocator. */
Test(cuda_memory, chunk__of_another_process__is_a_reference_of_its_own, .fini = teardown)
{
	const CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle lent = 0, opened = 0;
	struct cuda_handle handle;
	char got = 0;
	machine_new(&machine, 2, 64 * MIB);
	struct person person = person_new(lends_a_chunk);
	cuda = cuda_ready(0);
	cuda_memory_init(&memory, 0);
	int fd = hear(person.sock, &got, 1);
	OK(cuda.cuMemImportFromShareableHandle(
		&lent, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	CUdeviceptr range = reserve(CHUNK), other = reserve(CHUNK);
	OK(cuda.cuMemMap(range, CHUNK, 0, lent, 0));
	OK(cuda.cuMemRelease(lent));
	OK(cuda.cuMemSetAccess(range, CHUNK, &access, 1));
	OK(cuda.cuMemsetD8(range, 'c', CHUNK));
	add(range, CHUNK);
	expect_piece(range, range, CHUNK, CUDA_KIND_CHUNK, false);
	cr_assert_eq(cuda_memory_check_pool(&cuda, 0, &memory.pieces[0], &err), 0);
	cr_assert_eq(cuda_handle_make(&cuda, 0, &memory.pieces[0], &handle, &fd, &err), 0, "%s",
		err.text);
	person_kill(&person);
	OK(cuda.cuMemUnmap(range, CHUNK));
	OK(cuda.cuMemImportFromShareableHandle(
		&opened, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	OK(cuda.cuMemMap(other, CHUNK, 0, opened, 0));
	OK(cuda.cuMemRelease(opened));
	OK(cuda.cuMemSetAccess(other, CHUNK, &access, 1));
	OK(test_cuda.cuMemcpyDtoH(&got, other + CHUNK - 1, 1));
	cr_assert_eq(got, 'c');
	OK(cuda.cuMemUnmap(other, CHUNK));
	cr_assert_eq(machine_used(&machine, 0), machine.page->devices[0].context_bytes);
}

Test(cuda_memory, add__child_of_fork__says_so, .init = setup, .fini = teardown)
{
	CUdeviceptr legacy = alloc(MIB);
	fflush(NULL);
	pid_t child = fork();
	if (child == 0) {
		int rc = cuda_memory_add(&memory, &cuda, legacy, MIB, &err);
		_exit(rc == TH_E_INVALID && strstr(err.text, "fork()") ? 0 : 1);
	}
	int status = 0;
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_assert_eq(status, 0);
}

Test(cuda_memory, add__driver_that_fails__is_named, .init = setup, .fini = teardown)
{
	CUdeviceptr legacy = alloc(MIB);
	machine_lose(&machine, 0, CUDA_ERROR_UNKNOWN);
	expect_refusal(legacy, MIB, TH_E_MEMORY_KIND, "CUDA_ERROR_UNKNOWN; where the GPU");
}

/* ---- memory that changes -------------------------------------------------------------------- */

Test(cuda_memory, stale__same_address_other_memory__is_seen, .init = setup, .fini = teardown)
{
	CUdeviceptr first = alloc(2 * MIB), second = alloc(2 * MIB);
	add(first, MIB);
	add(second, MIB);
	cr_assert_null(cuda_memory_stale(&memory, &cuda, &result));
	OK(cuda.cuMemFree(second));
	const struct cuda_piece *stale = cuda_memory_stale(&memory, &cuda, &result);
	cr_assert_not_null(stale);
	cr_assert_eq(stale->base, second);
	alloc(2 * MIB); /* where it was, as a rule: the address says nothing */
	stale = cuda_memory_stale(&memory, &cuda, &result);
	cr_assert_not_null(stale);
	cr_assert_eq(stale->base, second);
}

Test(cuda_memory, stale__sleep_and_wake__is_seen_and_registers_anew, .init = setup,
	.fini = teardown)
{
	CUdeviceptr range = reserve(2 * CHUNK);
	for (uint64_t i = 0; i < 2; i++)
		map(range + i * CHUNK, CHUNK, CU_MEM_HANDLE_TYPE_NONE, true);
	add(range, 2 * CHUNK);
	cr_assert_null(cuda_memory_stale(&memory, &cuda, &result));
	OK(cuda.cuMemUnmap(range + CHUNK, CHUNK));
	const struct cuda_piece *stale = cuda_memory_stale(&memory, &cuda, &result);
	cr_assert_not_null(stale, "asleep");
	cr_assert_eq(stale->base, range + CHUNK);
	map(range + CHUNK, CHUNK, CU_MEM_HANDLE_TYPE_NONE, true);
	cr_assert_not_null(cuda_memory_stale(&memory, &cuda, &result), "awake, with other memory");
	cuda_memory_end(&memory);
	add(range, 2 * CHUNK);
	cr_assert_null(cuda_memory_stale(&memory, &cuda, &result));
	/* Remapped while tensors are added one by one: what was known does not fit any more. */
	cuda_memory_end(&memory);
	add(range + CHUNK, CHUNK);
	OK(cuda.cuMemUnmap(range, 2 * CHUNK));
	map(range, 2 * CHUNK, CU_MEM_HANDLE_TYPE_NONE, true);
	expect_refusal(range, CHUNK, TH_E_STALE_MEMORY, "changed while it was registered");
}
