/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rig_gpus - see rig_gpus.h.
 */
#include "tests/support/rig_gpus.h"

#include <fcntl.h>
#include <poll.h>
#include <semaphore.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/cuda/handle.h"
#include "tests/support/cuda/people.h"
#include "transport/access.h"

#define GPU_BYTES (UINT64_C(512) << 20)
#define SHARDS_MAX 64u
#define PATIENCE_NS INT64_C(30000000000)
#define GOOD(call) TH_ASSERT((call) == CUDA_SUCCESS)

enum cuda_kind rig_gpus_kind = CUDA_KIND_LEGACY;

static struct machine machine;
static struct cuda cuda;
static unsigned next_gpu;
static struct {
	uint8_t *memory;
	uint64_t bytes; /* of chunks */
	unsigned gpu;
	enum cuda_kind kind;
	CUmemoryPool pool;
} shards[SHARDS_MAX];

/* ---- memory -------------------------------------------------------------------------------- */

static void
map_chunk(CUdeviceptr address, uint64_t bytes, int device)
{
	const CUmemAllocationProp form = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
		.allocFlags.gpuDirectRDMACapable = 1};
	const CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle = 0;
	GOOD(cuda.cuMemCreate(&handle, bytes, &form, 0));
	GOOD(cuda.cuMemMap(address, bytes, 0, handle, 0));
	GOOD(cuda.cuMemRelease(handle));
	GOOD(cuda.cuMemSetAccess(address, bytes, &access, 1));
}

static CUmemoryPool
make_pool(int device)
{
	const CUmemPoolProps form = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
	CUmemoryPool pool = NULL;
	GOOD(test_cuda.cuMemPoolCreate(&pool, &form));
	return pool;
}

static void
use(unsigned gpu)
{
	CUcontext context = NULL;
	GOOD(cuda.cuDevicePrimaryCtxRetain(&context, (CUdevice)gpu));
	GOOD(cuda.cuCtxSetCurrent(context));
}

/* The test reads and writes what the GPU has at its address: nothing of ours is there otherwise. */
static void
show(CUdeviceptr address, uint64_t bytes, int gpu)
{
	struct th_err err;
	uint64_t offset;
	int fd;
	int rc = cuda_dmabuf_make(&cuda, gpu, address, bytes, &fd, &offset, &err);
	if (rc < 0)
		fprintf(stderr, "%s\n", err.text);
	TH_ASSERT(rc == 0 && offset == 0);
	void *map = machine_dmabuf_map(&machine, fd, 0, bytes), *at = (void *)(uintptr_t)address;
	TH_ASSERT(map);
	map = mremap(map, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at);
	TH_ASSERT(map == at);
	close(fd);
}

/* No dma-buf is made of a pool's memory: it is found by who has it. */
static void
show_of_pool(CUdeviceptr address, uint64_t bytes, unsigned gpu)
{
	const struct machine_chunk *chunk = machine.page->chunks, *end = chunk + MACHINE_CHUNKS_MAX;
	void *at = (void *)(uintptr_t)address;
	while (chunk < end &&
		!(chunk->generation != 0 && chunk->owner == getpid() && chunk->address == address))
		chunk++;
	TH_ASSERT(chunk < end && chunk->bytes >= bytes);
	void *map = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		machine.files[gpu], (off_t)chunk->offset);
	TH_ASSERT(map == at);
}

static CUdeviceptr
allocate_on(unsigned gpu, uint64_t bytes, enum cuda_kind kind, CUmemoryPool pool)
{
	CUdeviceptr address = 0;
	/* A place more: the kind is told by what is behind a chunk. */
	uint64_t step = kind == CUDA_KIND_CHUNKS ? MACHINE_GRANULARITY : bytes;
	uint64_t room = kind == CUDA_KIND_CHUNKS ? bytes + step : bytes;
	if (kind == CUDA_KIND_LEGACY) {
		GOOD(test_cuda.cuMemAlloc(&address, bytes));
	} else if (kind == CUDA_KIND_POOL) {
		GOOD(test_cuda.cuMemAllocFromPoolAsync(&address, bytes, pool, NULL));
		GOOD(cuda.cuStreamSynchronize(NULL));
		show_of_pool(address, bytes, gpu);
		return address;
	} else {
		GOOD(cuda.cuMemAddressReserve(&address, room, 0, 0, 0));
		for (uint64_t at = 0; at < bytes; at += step)
			map_chunk(address + at, step, (int)gpu);
	}
	for (uint64_t at = 0; at < bytes; at += step)
		show(address + at, step, (int)gpu);
	return address;
}

static uint8_t *
allocate(uint64_t bytes)
{
	unsigned i = 0, gpu = next_gpu++ % RIG_GPUS;
	while (i < SHARDS_MAX && shards[i].memory)
		i++;
	TH_ASSERT(i < SHARDS_MAX);
	use(gpu);
	shards[i].bytes = (bytes + MACHINE_GRANULARITY - 1) / MACHINE_GRANULARITY;
	shards[i].bytes *= MACHINE_GRANULARITY;
	shards[i].pool = rig_gpus_kind == CUDA_KIND_POOL ? make_pool((int)gpu) : NULL;
	shards[i].memory = (uint8_t *)(uintptr_t)allocate_on(
		gpu, shards[i].bytes, rig_gpus_kind, shards[i].pool);
	shards[i].gpu = gpu;
	shards[i].kind = rig_gpus_kind;
	memset(shards[i].memory, 0, bytes);
	return shards[i].memory;
}

static unsigned
find(const uint8_t *memory)
{
	unsigned i = 0;
	while (i < SHARDS_MAX && shards[i].memory != memory)
		i++;
	TH_ASSERT(i < SHARDS_MAX);
	return i;
}

static void
release(uint8_t *memory, uint64_t bytes)
{
	unsigned i = find(memory);
	CUdeviceptr address = (uintptr_t)memory;
	(void)bytes;
	shards[i].memory = NULL;
	void *hidden = mmap(memory, shards[i].bytes, PROT_NONE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	TH_ASSERT(hidden == memory);
	/* A GPU that was lost keeps what it has. */
	CUcontext context = NULL;
	(void)cuda.cuDevicePrimaryCtxRetain(&context, (CUdevice)shards[i].gpu);
	(void)cuda.cuCtxSetCurrent(context);
	if (shards[i].kind == CUDA_KIND_LEGACY) {
		(void)cuda.cuMemFree(address);
	} else if (shards[i].kind == CUDA_KIND_POOL) {
		(void)test_cuda.cuMemFreeAsync(address, NULL);
		(void)cuda.cuMemPoolDestroy(shards[i].pool);
	} else {
		(void)cuda.cuMemUnmap(address, shards[i].bytes);
	}
}

static void
settled(void *arg, const struct th_err *result)
{
	if (result->code < 0)
		fprintf(stderr, "%s\n", result->text);
	TH_ASSERT(result->code == 0);
	sem_post(arg);
}

static struct gpu_space *
share(struct gpus *gpus, const struct rig_shard *shard)
{
	unsigned gpu = shards[find(shard->memory)].gpu;
	struct cuda_memory memory;
	struct th_err err;
	sem_t all;
	use(gpu);
	struct gpu_space *space = gpu_space_new(
		gpus, (const uint8_t *)machine.page->devices[gpu].uuid.bytes, "m/r/0", &err);
	TH_ASSERT(space);
	cuda_memory_init(&memory, (int)gpu);
	int rc = cuda_memory_add(&memory, &cuda, (uintptr_t)shard->memory, shard->bytes, &err);
	for (size_t i = 0; rc == 0 && i < memory.count; i++) {
		const struct cuda_piece *piece = &memory.pieces[i];
		struct cuda_handle handle;
		int fd = -1;
		rc = cuda_handle_make(&cuda, (int)gpu, piece, &handle, &fd, &err);
		if (rc == 0)
			rc = gpu_space_add(space, &handle, piece->base, fd, NULL, &err);
	}
	if (rc < 0)
		fprintf(stderr, "%s\n", err.text);
	TH_ASSERT(rc == 0);
	cuda_memory_end(&memory);
	sem_init(&all, 0, 0);
	gpu_space_settle(space, settled, &all);
	sem_wait(&all);
	sem_destroy(&all);
	return space;
}

static void *
map_dmabuf(void *arg, int fd, uint64_t offset, size_t bytes)
{
	(void)arg;
	return machine_dmabuf_map(&machine, fd, offset, bytes);
}

static struct rig_gpus mine = {.allocate = allocate,
	.release = release,
	.share = share,
	.unshare = gpu_space_release,
	.map_dmabuf = map_dmabuf};

/* ---- processes ----------------------------------------------------------------------------- */

static int
launch(void *arg, int sock, pid_t *ret_pid, struct th_err *err)
{
	char *const argv[] = {(char *)(uintptr_t) "helper_program", NULL};
	posix_spawn_file_actions_t actions;
	(void)arg;
	posix_spawn_file_actions_init(&actions);
	/* A descriptor that is 3 already would keep its close-on-exec. */
	int theirs = fcntl(sock, F_DUPFD_CLOEXEC, 10);
	posix_spawn_file_actions_adddup2(&actions, theirs, 3);
	int rc = -posix_spawn(ret_pid, TH_HELPER_PROGRAM, &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(theirs);
	return rc < 0 ? th_fail(err, rc, "the test cannot start %s", TH_HELPER_PROGRAM) : 0;
}

pid_t
rig_gpus_pid(unsigned gpu)
{
	struct gpu_status status[RIG_GPUS];
	uint32_t count = gpus_status(mine.gpus, status, RIG_GPUS);
	for (uint32_t i = 0; i < count && i < RIG_GPUS; i++) {
		if (memcmp(status[i].uuid, machine.page->devices[gpu].uuid.bytes, 16) == 0)
			return status[i].pid;
	}
	return 0;
}

uint64_t
rig_gpus_starts(void)
{
	struct gpu_status status[RIG_GPUS];
	uint32_t count = gpus_status(mine.gpus, status, RIG_GPUS);
	uint64_t starts = 0;
	for (uint32_t i = 0; i < count && i < RIG_GPUS; i++)
		starts += status[i].starts;
	return starts;
}

struct machine *
rig_gpus_machine(void)
{
	return &machine;
}

void
rig_gpus_init(uint64_t staging_bytes, bool hash_on_cpu)
{
	const struct gpus_config config = {.launch = launch,
		.staging_bytes = staging_bytes,
		.hash_on_cpu = hash_on_cpu,
		.hang_ns = PATIENCE_NS,
		.leave_ns = PATIENCE_NS,
		.idle_ns = PATIENCE_NS};
	struct th_err err;
	machine_new(&machine, RIG_GPUS, GPU_BYTES);
	cuda = cuda_ready(0);
	int rc = gpus_new(&config, &err, &mine.gpus);
	TH_ASSERT(rc == 0);
	rig_gpus = &mine;
}

void
rig_gpus_fini(void)
{
	access_sweep();
	rig_gpus = NULL;
	gpus_free(mine.gpus);
	mine.gpus = NULL;
	machine_remove(&machine);
}
