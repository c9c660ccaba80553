/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_import_test - GPU memory of a worker opened by another process, for each kind of allocator.
 *
 * The worker is a child, the test is the agent's GPU process.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/fd.h"
#include "tests/support/cuda/machine.h"
#include "tests/support/cuda/people.h"
#include "transport/cuda/helper/import.h"

#define MIB ((size_t)1 << 20)
#define CHUNK ((uint64_t)MACHINE_GRANULARITY)
#define PIECE_BYTES CHUNK

static struct machine machine;
static struct cuda cuda;
static struct import_pools pools = {.lock = PTHREAD_MUTEX_INITIALIZER};
static struct th_err err;
static enum cuda_kind kind; /* of the worker's memory */

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

#define OK(call) cr_assert_eq((call), CUDA_SUCCESS, "%s", #call)
#define GOOD(call) TH_ASSERT((call) == CUDA_SUCCESS) /* in the worker */

/* ---- the worker ----------------------------------------------------------------------------- */

static void
map_chunk(const struct cuda *own, CUdeviceptr address, CUmemAllocationHandleType types)
{
	const CUmemAllocationProp form = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = types,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
		.allocFlags.gpuDirectRDMACapable = 1};
	const CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle = 0;
	GOOD(own->cuMemCreate(&handle, CHUNK, &form, 0));
	GOOD(own->cuMemMap(address, CHUNK, 0, handle, 0));
	GOOD(own->cuMemRelease(handle));
	GOOD(own->cuMemSetAccess(address, CHUNK, &access, 1));
}

/* One piece of the kind. */
static CUdeviceptr
allocate(const struct cuda *own)
{
	CUmemPoolProps form = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	bool closed = kind == CUDA_KIND_CLOSED;
	CUmemoryPool pool = NULL;
	CUdeviceptr address = 0;
	if (kind == CUDA_KIND_LEGACY) {
		GOOD(test_cuda.cuMemAlloc(&address, PIECE_BYTES));
	} else if (kind == CUDA_KIND_POOL) {
		GOOD(test_cuda.cuMemPoolCreate(&pool, &form));
		GOOD(test_cuda.cuMemAllocFromPoolAsync(&address, PIECE_BYTES, pool, NULL));
	} else {
		GOOD(own->cuMemAddressReserve(
			&address, (kind == CUDA_KIND_CHUNKS ? 3 : 1) * CHUNK, 0, 0, 0));
		map_chunk(own, address,
			closed ? CU_MEM_HANDLE_TYPE_NONE
			       : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	}
	return address;
}

/* Gives its memory, waits, finds what was written into it. */
static void
worker(int sock)
{
	struct cuda own = cuda_ready(0);
	struct cuda_memory memory;
	struct cuda_handle handle;
	char step = 0, got[4];
	int fd = -1;
	CUdeviceptr address = allocate(&own);
	GOOD(own.cuMemsetD8(address, 'w', PIECE_BYTES));
	GOOD(own.cuCtxPopCurrent(NULL)); /* whoever registers has no context, perhaps */
	cuda_memory_init(&memory, 0);
	TH_ASSERT(cuda_memory_add(&memory, &own, address, PIECE_BYTES, NULL) == 0);
	TH_ASSERT(memory.count == 1 && memory.pieces[0].kind == kind);
	TH_ASSERT(cuda_handle_make(&own, 0, &memory.pieces[0], &handle, &fd, NULL) == 0);
	cuda_memory_end(&memory);
	int handles = machine_holds(&machine, getpid(), HELD_HANDLES);
	TH_ASSERT(handles == 0); /* what was retained is given back */
	tell(sock, &handle, sizeof(handle), fd);
	th_fd_close(&fd);
	hear(sock, &step, 1);
	CUcontext context = NULL;
	GOOD(own.cuDevicePrimaryCtxRetain(&context, 0));
	GOOD(own.cuCtxSetCurrent(context));
	GOOD(test_cuda.cuMemcpyDtoH(got, address + PIECE_BYTES - 4, 4));
	TH_ASSERT(memcmp(got, "back", 4) == 0);
}

/* ---- the kinds ------------------------------------------------------------------------------ */

static void
expect_nothing_left(void)
{
	static const enum machine_held all[] = {HELD_HANDLES, HELD_RESERVATIONS, HELD_MAPPINGS,
		HELD_IMPORTS, HELD_POOLS, HELD_ALLOCATIONS};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		cr_assert_eq(machine_holds(&machine, getpid(), all[i]), 0, "%d", (int)all[i]);
}

static void
expect_free(void)
{
	cr_assert_eq(machine_used(&machine, 0), machine.page->devices[0].context_bytes);
}

static void
through(enum cuda_kind of)
{
	struct cuda_handle handle;
	struct cuda_import import = {.address = 0};
	char got = 0;
	kind = of;
	struct person person = person_new(worker);
	cuda = cuda_ready(0);
	int fd = hear(person.sock, &handle, sizeof(handle));
	cr_assert_eq(fd >= 0, of != CUDA_KIND_LEGACY);
	cr_assert_eq(import_device(&cuda, handle.uuid, &err), 0);
	cr_assert_eq(import_new(&cuda, 0, &pools, &handle, fd, &import, &err), 0, "%s", err.text);
	th_fd_close(&fd);
	cr_assert_eq(import.bytes, PIECE_BYTES);
	OK(test_cuda.cuMemcpyDtoH(&got, import.address, 1));
	cr_assert_eq(got, 'w');
	OK(test_cuda.cuMemcpyHtoD(import.address + PIECE_BYTES - 4, "back", 4));
	tell(person.sock, "", 1, -1);
	person_end(&person);
	/* The worker is gone; what it wrote is not. */
	OK(test_cuda.cuMemcpyDtoH(&got, import.address, 1));
	cr_assert_eq(got, 'w');
	cr_assert_eq(import_end(&cuda, &pools, &import, &err), 0, "%s", err.text);
	cr_assert_eq(import_end(&cuda, &pools, &import, &err), 0, "nothing is left to end");
	expect_nothing_left();
	expect_free();
}

Test(cuda_import, legacy__is_shared_and_outlives_its_worker, .init = setup, .fini = teardown)
{
	through(CUDA_KIND_LEGACY);
}

Test(cuda_import, chunk__is_shared_and_outlives_its_worker, .init = setup, .fini = teardown)
{
	through(CUDA_KIND_CHUNK);
}

Test(cuda_import, chunks__are_shared_and_outlive_their_worker, .init = setup, .fini = teardown)
{
	through(CUDA_KIND_CHUNKS);
}

Test(cuda_import, pool__is_shared_and_outlives_its_worker, .init = setup, .fini = teardown)
{
	through(CUDA_KIND_POOL);
}

static const enum cuda_kind kinds[] = {
	CUDA_KIND_LEGACY, CUDA_KIND_CHUNK, CUDA_KIND_CHUNKS, CUDA_KIND_POOL};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* ---- what cannot be given ------------------------------------------------------------------- */

Test(cuda_import, make__closed_memory__has_a_dmabuf_and_no_handle, .init = setup, .fini = teardown)
{
	struct cuda_memory memory;
	struct cuda_handle handle;
	char got = 0;
	int fd = -7;
	uint64_t offset = 0;
	kind = CUDA_KIND_CLOSED;
	cuda = cuda_ready(0);
	CUdeviceptr address = allocate(&cuda);
	cuda_memory_init(&memory, 0);
	cr_assert_eq(cuda_memory_add(&memory, &cuda, address, CHUNK, &err), 0);
	cr_assert_eq(cuda_handle_make(&cuda, 0, &memory.pieces[0], &handle, &fd, &err),
		TH_E_MEMORY_KIND);
	cr_assert(strstr(err.text, "without a handle type"), "%s", err.text);
	cr_assert_eq(fd, -7, "untouched");
	cuda_memory_end(&memory);

	OK(cuda.cuMemsetD8(address + 5000, 'n', 1));
	cr_assert_eq(cuda_dmabuf_make(&cuda, 0, address + 5000, 1, &fd, &offset, &err), 0, "%s",
		err.text);
	cr_assert_eq(offset, 5000 % (uint64_t)sysconf(_SC_PAGESIZE));
	cr_assert_eq(machine_dmabuf_read(&machine, fd, offset, &got, 1), 0);
	cr_assert_eq(got, 'n');
	th_fd_close(&fd);
	cr_assert_eq(cuda_dmabuf_make(&cuda, 0, address, CHUNK + 1, &fd, &offset, &err),
		TH_E_MEMORY_KIND);
	cr_assert_eq(cuda_dmabuf_make(&cuda, 0, address, ~0ull, &fd, &offset, &err), TH_E_INVALID);
	machine.page->devices[0].dma_buf = 0;
	cr_assert_eq(
		cuda_dmabuf_make(&cuda, 0, address, CHUNK, &fd, &offset, &err), TH_E_MEMORY_KIND);
	cr_assert(strstr(err.text, "open kernel modules"), "%s", err.text);
}

Test(cuda_import, make__freed_since__is_refused_and_leaves_nothing, .init = setup, .fini = teardown)
{
	const struct cuda_piece piece = {
		.base = 0x7000000000, .bytes = CHUNK, .range = 0x7000000000, .range_bytes = CHUNK};
	struct cuda_handle handle;
	int fd = -1;
	cuda = cuda_ready(0);
	for (size_t i = 0; i < KINDS; i++) {
		struct cuda_piece gone = piece;
		gone.kind = kinds[i];
		cr_assert_eq(
			cuda_handle_make(&cuda, 0, &gone, &handle, &fd, &err), TH_E_MEMORY_KIND);
		cr_assert(strstr(err.text, "CUDA_ERROR_INVALID_VALUE"), "%s", err.text);
	}
	expect_nothing_left();
}

/* ---- what a worker may send ----------------------------------------------------------------- */

static void
expect_refusal(const struct cuda_handle *handle, int fd, int code)
{
	struct cuda_import import = {.address = 1};
	cr_assert_eq(import_new(&cuda, 0, &pools, handle, fd, &import, &err), code, "%d: %s",
		err.code, err.text);
	cr_assert_eq(import.address, 1, "untouched");
	expect_nothing_left();
}

Test(cuda_import, open__hostile_handle__is_refused_and_leaves_nothing, .init = setup,
	.fini = teardown)
{
	struct person people[KINDS];
	int stranger = memfd_create("stranger", MFD_CLOEXEC);
	for (size_t i = 0; i < KINDS; i++) {
		kind = kinds[i];
		people[i] = person_new(worker);
	}
	cuda = cuda_ready(0);
	for (size_t i = 0; i < KINDS; i++) {
		struct cuda_handle good, bad;
		int fd = hear(people[i].sock, &good, sizeof(good));
		bool legacy = kinds[i] == CUDA_KIND_LEGACY;
		bad = good;
		bad.kind = 99;
		expect_refusal(&bad, fd, TH_E_PROTOCOL);
		bad.kind = CUDA_KIND_CLOSED;
		expect_refusal(&bad, fd, TH_E_PROTOCOL);
		bad = good;
		bad.reserved = 1;
		expect_refusal(&bad, fd, TH_E_PROTOCOL);
		expect_refusal(&good, legacy ? stranger : -1, TH_E_PROTOCOL);
		bad = good;
		bad.bytes = 0;
		expect_refusal(&bad, fd, TH_E_PROTOCOL);
		bad.bytes = ~0ull;
		expect_refusal(&bad, fd, TH_E_PROTOCOL);
		/* More than it opens. */
		bad.bytes = good.bytes + CHUNK;
		bool chunk = kinds[i] == CUDA_KIND_CHUNK || kinds[i] == CUDA_KIND_CHUNKS;
		expect_refusal(&bad, fd, chunk ? TH_E_MEMORY_KIND : TH_E_PROTOCOL);
		bad = good;
		memset(bad.data, 0x77, sizeof(bad.data));
		if (!chunk)
			expect_refusal(&bad, fd, TH_E_MEMORY_KIND);
		cr_assert_eq(legacy, strstr(err.text, "PID and IPC namespaces") != NULL);
		if (!legacy)
			expect_refusal(&good, stranger, TH_E_MEMORY_KIND);
		th_fd_close(&fd);
		person_kill(&people[i]);
	}
	th_fd_close(&stranger);
	expect_free();
}

Test(cuda_import, device__of_another_host__is_said, .init = setup, .fini = teardown)
{
	uint8_t uuid[16] = {1, 2, 3};
	cuda = cuda_ready(0);
	cr_assert_eq(
		import_device(&cuda, (const uint8_t *)machine.page->devices[1].uuid.bytes, &err),
		1);
	cr_assert_eq(import_device(&cuda, uuid, &err), TH_E_NOT_AVAILABLE);
	cr_assert(strstr(err.text, "NVIDIA_VISIBLE_DEVICES"), "%s", err.text);
}

/* ---- a driver that fails -------------------------------------------------------------------- */

Test(cuda_import, open__driver_fails_at_any_call__leaves_nothing, .init = setup, .fini = teardown)
{
	static const int calls[] = {CALL_cuDeviceGetCount, CALL_cuDeviceGetUuid,
		CALL_cuDeviceTotalMem, CALL_cuIpcOpenMemHandle, CALL_cuMemGetAddressRange,
		CALL_cuMemImportFromShareableHandle, CALL_cuMemAddressReserve, CALL_cuMemMap,
		CALL_cuMemSetAccess, CALL_cuMemPoolImportFromShareableHandle,
		CALL_cuMemPoolImportPointer};
	struct person people[KINDS];
	unsigned met = 0;
	for (size_t i = 0; i < KINDS; i++) {
		kind = kinds[i];
		people[i] = person_new(worker);
	}
	cuda = cuda_ready(0);
	for (size_t i = 0; i < KINDS; i++) {
		struct cuda_handle handle;
		int fd = hear(people[i].sock, &handle, sizeof(handle));
		for (size_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
			struct cuda_import import = {.address = 0};
			int plan = machine_plan(&machine, FAULT_RESULT, getpid(), calls[c], 0,
				CUDA_ERROR_OUT_OF_MEMORY);
			int rc = import_new(&cuda, 0, &pools, &handle, fd, &import, &err);
			machine_lift(&machine, plan);
			cr_assert_eq(rc, machine_met(&machine, plan) ? -ENOMEM : 0, "%s", err.text);
			cr_assert(rc == 0 || strstr(err.text, "no room for it"), "%s", err.text);
			met += machine_met(&machine, plan) > 0;
			cr_assert_eq(import_end(&cuda, &pools, &import, &err), 0);
			expect_nothing_left();
		}
		th_fd_close(&fd);
		person_kill(&people[i]);
	}
	/* Three calls of four kinds; open and range; four, twice; two and range. */
	cr_assert_eq(met, 3 * 4 + 2 + 8 + 3);
	expect_free();
}

/* Nothing but the process's end frees it then. */
Test(cuda_import, open__in_vain_and_never_closed__is_the_processs_end, .init = setup,
	.fini = teardown)
{
	static const struct {
		enum cuda_kind kind;
		int fails, stays; /* calls */
		const char *name;
	} cases[] = {{CUDA_KIND_LEGACY, CALL_cuMemGetAddressRange, CALL_cuIpcCloseMemHandle,
			     "cuIpcCloseMemHandle"},
		{CUDA_KIND_CHUNK, CALL_cuMemSetAccess, CALL_cuMemUnmap, "cuMemUnmap"},
		{CUDA_KIND_CHUNK, CALL_cuMemcpyDtoHAsync, CALL_cuMemRelease, "cuMemRelease"},
		{CUDA_KIND_POOL, CALL_cuMemPoolImportPointer, CALL_cuMemPoolDestroy,
			"cuMemPoolDestroy"},
		{CUDA_KIND_POOL, CALL_cuMemGetAddressRange, CALL_cuMemFree, "cuMemFree"}};
	struct person people[sizeof(cases) / sizeof(cases[0])];
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		kind = cases[i].kind;
		people[i] = person_new(worker);
	}
	cuda = cuda_ready(0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct cuda_import import = {.address = 0};
		struct cuda_handle handle;
		int fd = hear(people[i].sock, &handle, sizeof(handle));
		int plan = machine_plan(&machine, FAULT_RESULT, getpid(), cases[i].fails, 0,
			CUDA_ERROR_OUT_OF_MEMORY);
		int plan2 = machine_plan(&machine, FAULT_RESULT, getpid(), cases[i].stays, 0,
			CUDA_ERROR_INVALID_VALUE);
		cr_assert_eq(import_new(&cuda, 0, &pools, &handle, fd, &import, &err), -EIO, "%s",
			cases[i].name);
		cr_assert(strstr(err.text, cases[i].name), "%s", err.text);
		cr_assert_eq(import.address, 0);
		machine_lift(&machine, plan);
		machine_lift(&machine, plan2);
		th_fd_close(&fd);
		person_kill(&people[i]);
	}
}

Test(cuda_import, end__driver_fails__says_so_once, .init = setup, .fini = teardown)
{
	struct cuda_handle handle;
	struct cuda_import import = {.address = 0};
	kind = CUDA_KIND_CHUNK;
	struct person person = person_new(worker);
	cuda = cuda_ready(0);
	int fd = hear(person.sock, &handle, sizeof(handle));
	cr_assert_eq(import_new(&cuda, 0, &pools, &handle, fd, &import, &err), 0);
	th_fd_close(&fd);
	person_kill(&person);
	machine_plan(&machine, FAULT_RESULT, 0, CALL_cuMemUnmap, 0, CUDA_ERROR_UNKNOWN);
	cr_assert_eq(import_end(&cuda, &pools, &import, &err), TH_E_MEMORY_KIND);
	cr_assert(strstr(err.text, "cannot be closed: CUDA_ERROR_UNKNOWN"), "%s", err.text);
	cr_assert_eq(import_end(&cuda, &pools, &import, &err), 0);
}

/* ---- several of one pool, and another GPU's ------------------------------------------------- */

/* Two pieces of one pool, each with a descriptor of its own. */
static void
pool_worker(int sock)
{
	struct cuda own = cuda_ready(0);
	const CUmemPoolProps form = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool pool = NULL;
	char step = 0;
	GOOD(test_cuda.cuMemPoolCreate(&pool, &form));
	for (int i = 0; i < 2; i++) {
		struct cuda_memory memory;
		struct cuda_handle handle;
		CUdeviceptr address = 0;
		int fd = -1;
		GOOD(test_cuda.cuMemAllocFromPoolAsync(&address, PIECE_BYTES, pool, NULL));
		GOOD(own.cuMemsetD8(address, (unsigned char)('a' + i), PIECE_BYTES));
		cuda_memory_init(&memory, 0);
		TH_ASSERT(cuda_memory_add(&memory, &own, address, PIECE_BYTES, NULL) == 0);
		TH_ASSERT(cuda_handle_make(&own, 0, &memory.pieces[0], &handle, &fd, NULL) == 0);
		cuda_memory_end(&memory);
		tell(sock, &handle, sizeof(handle), fd);
		th_fd_close(&fd);
	}
	hear(sock, &step, 1);
}

Test(cuda_import, pool__of_several_pieces__ends_with_the_last, .init = setup, .fini = teardown)
{
	struct cuda_import imports[2] = {{.address = 0}};
	char got = 0;
	struct person person = person_new(pool_worker);
	cuda = cuda_ready(0);
	for (int i = 0; i < 2; i++) {
		struct cuda_handle handle;
		int fd = hear(person.sock, &handle, sizeof(handle));
		cr_assert_eq(import_new(&cuda, 0, &pools, &handle, fd, &imports[i], &err), 0, "%s",
			err.text);
		th_fd_close(&fd);
	}
	cr_assert_eq(machine_holds(&machine, getpid(), HELD_POOLS), 1);
	cr_assert_eq(import_end(&cuda, &pools, &imports[0], &err), 0);
	cr_assert_eq(machine_holds(&machine, getpid(), HELD_POOLS), 1);
	OK(test_cuda.cuMemcpyDtoH(&got, imports[1].address, 1));
	cr_assert_eq(got, 'b');
	cr_assert_eq(import_end(&cuda, &pools, &imports[1], &err), 0);
	cr_assert_null(pools.first);
	expect_nothing_left();
	person_kill(&person);
}

/* Two handles of one worker have registered the same bytes. */
Test(cuda_import, pool__one_pointer_twice__is_there_until_both_have_ended, .init = setup,
	.fini = teardown)
{
	struct cuda_import imports[2] = {{.address = 0}};
	struct cuda_handle handle;
	char got = 0;
	struct person person = person_new(pool_worker);
	cuda = cuda_ready(0);
	int fd = hear(person.sock, &handle, sizeof(handle));
	for (int i = 0; i < 2; i++)
		cr_assert_eq(import_new(&cuda, 0, &pools, &handle, fd, &imports[i], &err), 0, "%s",
			err.text);
	cr_assert_eq(imports[0].address, imports[1].address, "as the driver has it");
	cr_assert_eq(import_end(&cuda, &pools, &imports[0], &err), 0, "%s", err.text);
	OK(test_cuda.cuMemcpyDtoH(&got, imports[1].address, 1));
	cr_assert_eq(got, 'a');
	/* What is wrong with one is not the other's. */
	handle.bytes *= 64;
	cr_assert_eq(import_new(&cuda, 0, &pools, &handle, fd, &imports[0], &err), TH_E_PROTOCOL);
	OK(test_cuda.cuMemcpyDtoH(&got, imports[1].address, 1));
	th_fd_close(&fd);
	cr_assert_eq(import_end(&cuda, &pools, &imports[1], &err), 0, "%s", err.text);
	cr_assert_null(pools.first);
	cr_assert_null(pools.by_data);
	expect_nothing_left();
	person_kill(&person);
}

/* Memory on GPU 0, opened for GPU 1. */
static void
through_peer(struct person *person, bool reached)
{
	struct cuda_import import = {.address = 0};
	struct cuda_handle handle;
	char got = 0;
	int fd = hear(person->sock, &handle, sizeof(handle));
	machine.page->devices[1].peers = reached ? 3 : 2;
	int rc = import_new(&cuda, 1, &pools, &handle, fd, &import, &err);
	th_fd_close(&fd);
	person_kill(person);
	cr_assert_eq(rc, reached ? 0 : TH_E_MEMORY_KIND, "%s", err.text);
	if (reached)
		OK(test_cuda.cuMemcpyDtoH(&got, import.address, 1));
	cr_assert_eq(got, reached ? 'w' : 0);
	cr_assert(reached || strstr(err.text, "no peer access"), "%s", err.text);
	cr_assert_eq(import_end(&cuda, &pools, &import, &err), 0);
	expect_nothing_left();
}

Test(cuda_import, peer__its_memory__is_reached_or_refused, .init = setup, .fini = teardown)
{
	struct person people[2 * KINDS];
	for (size_t i = 0; i < 2 * KINDS; i++) {
		kind = kinds[i % KINDS];
		people[i] = person_new(worker);
	}
	cuda = cuda_ready(1);
	for (size_t i = 0; i < 2 * KINDS; i++)
		through_peer(&people[i], i < KINDS);
	cr_assert_eq(machine_used(&machine, 0), 0);
}
