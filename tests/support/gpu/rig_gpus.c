/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rig_gpus - see rig_gpus.h.
 */
#include "tests/support/gpu/rig_gpus.h"

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
#include "ipc/cuda/cuda_handle.h"
#include "tests/support/cuda/people.h"
#include "transport/part/fd_memory.h"

#define GPU_BYTES (UINT64_C(512) << 20)
#define PLACES_MAX 64u
#define WHOLE_BYTES (UINT64_C(2) << 20) /* no other memory lies beside it */
#define PATIENCE_NS INT64_C(30000000000)
#define GOOD(call) TH_ASSERT((call) == CUDA_SUCCESS)

enum cuda_kind rig_gpus_kind = CUDA_KIND_LEGACY;
unsigned rig_gpus_most = RIG_GPUS;

static struct machine *machine; /* borrows; NULL: the GPUs are real */
static struct cuda cuda;
static struct {
	int device;
	CUcontext context;
	CUuuid uuid;
} gpus[RIG_GPUS];
static unsigned num_gpus; /* 0: not looked for yet */
static unsigned next_gpu;
static struct place {
	uint8_t *memory; /* owns: mmap; NULL: nobody's */
	CUdeviceptr address;
	uint64_t bytes; /* of the GPU's, whole chunks; 0: no place */
	uint64_t range_bytes;
	uint64_t chunk_bytes;
	unsigned gpu; /* of gpus */
	enum cuda_kind kind;
	CUmemoryPool pool;
	uint32_t kept; /* atomic: pieces that a GPU's process may have open */
} places[PLACES_MAX];

/* ---- memory -------------------------------------------------------------------------------- */

static void
use(unsigned gpu)
{
	GOOD(cuda.cuCtxSetCurrent(gpus[gpu].context));
}

static int
attribute(CUdevice_attribute name, int device)
{
	int value = 0;
	GOOD(cuda.cuDeviceGetAttribute(&value, name, device));
	return value;
}

static CUmemAllocationProp
form_of_chunks(int device)
{
	int rdma = attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device);
	return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
		.allocFlags.gpuDirectRDMACapable = rdma != 0};
}

static void
map_chunk(CUdeviceptr address, uint64_t bytes, int device)
{
	const CUmemAllocationProp form = form_of_chunks(device);
	const CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle = 0;
	GOOD(cuda.cuMemCreate(&handle, bytes, &form, 0));
	GOOD(cuda.cuMemMap(address, bytes, 0, handle, 0));
	GOOD(cuda.cuMemRelease(handle));
	GOOD(cuda.cuMemSetAccess(address, bytes, &access, 1));
}

static uint64_t
granularity(enum cuda_kind kind, int device)
{
	if (kind != CUDA_KIND_CHUNK && kind != CUDA_KIND_CHUNKS)
		return WHOLE_BYTES;
	const CUmemAllocationProp form = form_of_chunks(device);
	size_t bytes = 0;
	GOOD(test_cuda.cuMemGetAllocationGranularity(
		&bytes, &form, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	return bytes;
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
allocate_at(struct place *place)
{
	int device = gpus[place->gpu].device;
	use(place->gpu);
	if (place->kind == CUDA_KIND_LEGACY) {
		GOOD(test_cuda.cuMemAlloc(&place->address, place->bytes));
	} else if (place->kind == CUDA_KIND_POOL) {
		place->pool = make_pool(device);
		GOOD(test_cuda.cuMemAllocFromPoolAsync(
			&place->address, place->bytes, place->pool, NULL));
		GOOD(cuda.cuStreamSynchronize(NULL));
	} else {
		GOOD(cuda.cuMemAddressReserve(&place->address, place->range_bytes, 0, 0, 0));
		for (uint64_t at = 0; at < place->bytes; at += place->chunk_bytes)
			map_chunk(place->address + at, place->chunk_bytes, device);
	}
}

/* A GPU that was lost keeps what it has. */
static void
free_at(struct place *place)
{
	(void)cuda.cuCtxSetCurrent(gpus[place->gpu].context);
	if (place->kind == CUDA_KIND_LEGACY) {
		(void)cuda.cuMemFree(place->address);
	} else if (place->kind == CUDA_KIND_POOL) {
		(void)test_cuda.cuMemFreeAsync(place->address, NULL);
		(void)cuda.cuStreamSynchronize(NULL);
		(void)cuda.cuMemPoolDestroy(place->pool);
	} else {
		for (uint64_t at = 0; at < place->bytes; at += place->chunk_bytes)
			(void)cuda.cuMemUnmap(place->address + at, place->chunk_bytes);
		(void)cuda.cuMemAddressFree(place->address, place->range_bytes);
	}
}

/* What nobody wants any more is freed when no process has it open: so a worker does it, and what a
 * driver makes of anything else is not said. Returns how many are still open. */
static unsigned
free_left(void)
{
	unsigned open = 0;
	for (struct place *place = places; place < places + PLACES_MAX; place++) {
		if (place->bytes == 0 || place->memory)
			continue;
		if (__atomic_load_n(&place->kept, __ATOMIC_ACQUIRE) > 0) {
			open++;
			continue;
		}
		free_at(place);
		place->bytes = 0;
	}
	return open;
}

static uint8_t *
allocate(uint64_t bytes, uint64_t *ret_gpu)
{
	struct place *place = places;
	(void)free_left();
	while (place < places + PLACES_MAX && place->bytes > 0)
		place++;
	TH_ASSERT(place < places + PLACES_MAX);
	*place = (struct place){.gpu = next_gpu++ % rig_gpus_count(), .kind = rig_gpus_kind};
	uint64_t step = granularity(place->kind, gpus[place->gpu].device);
	place->bytes = (bytes + step - 1) / step * step;
	place->chunk_bytes = place->kind == CUDA_KIND_CHUNKS ? step : place->bytes;
	/* A place more: the kind is told by what is behind a chunk. */
	place->range_bytes = place->bytes + (place->kind == CUDA_KIND_CHUNKS ? step : 0);
	allocate_at(place);
	place->memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	TH_ASSERT(place->memory != MAP_FAILED);
	*ret_gpu = place->address;
	return place->memory;
}

static struct place *
place_of(CUdeviceptr address)
{
	struct place *place = places;
	while (place < places + PLACES_MAX &&
		!(place->memory && address - place->address < place->bytes))
		place++;
	TH_ASSERT(place < places + PLACES_MAX);
	return place;
}

static void
release(uint8_t *memory, uint64_t bytes)
{
	struct place *place = places;
	while (place < places + PLACES_MAX && place->memory != memory)
		place++;
	TH_ASSERT(place < places + PLACES_MAX);
	munmap(memory, bytes);
	place->memory = NULL;
	(void)free_left();
}

/* Other processes look there next, and the driver may return before the last byte is there. */
static void
put(uint64_t gpu, const uint8_t *memory, uint64_t bytes)
{
	use(place_of(gpu)->gpu);
	GOOD(test_cuda.cuMemcpyHtoD(gpu, memory, bytes));
	GOOD(test_cuda.cuCtxSynchronize());
}

static void
get(uint8_t *memory, uint64_t gpu, uint64_t bytes)
{
	use(place_of(gpu)->gpu);
	GOOD(test_cuda.cuMemcpyDtoH(memory, gpu, bytes));
}

static const uint8_t *
image(uint64_t gpu)
{
	const struct place *place = place_of(gpu);
	return place->memory + (gpu - place->address);
}

static void
settled(void *arg, const struct th_err *result)
{
	if (result->code < 0)
		fprintf(stderr, "%s\n", result->text);
	TH_ASSERT(result->code == 0);
	sem_post(arg);
}

static void
piece_gone(void *arg)
{
	struct place *place = arg;
	__atomic_fetch_sub(&place->kept, 1, __ATOMIC_RELEASE);
}

static struct gpu_space *
share(struct gpus *of, const struct rig_shard *shard)
{
	struct place *place = place_of(shard->gpu);
	const struct gpu_piece_user user = {.arg = place, .gone = piece_gone};
	int device = gpus[place->gpu].device;
	struct cuda_memory memory;
	struct th_err err;
	sem_t all;
	use(place->gpu);
	struct gpu_space *space =
		gpu_space_new(of, (const uint8_t *)gpus[place->gpu].uuid.bytes, "m/r/0", &err);
	TH_ASSERT(space);
	cuda_memory_init(&memory, device);
	int rc = cuda_memory_add(&memory, &cuda, shard->gpu, shard->bytes, &err);
	for (size_t i = 0; rc == 0 && i < memory.count; i++) {
		const struct cuda_piece *piece = &memory.pieces[i];
		struct cuda_handle handle;
		int fd = -1;
		rc = cuda_handle_make(&cuda, device, piece, &handle, &fd, &err);
		if (rc < 0)
			break;
		__atomic_fetch_add(&place->kept, 1, __ATOMIC_RELAXED);
		rc = gpu_space_add(space, &handle, piece->base, fd, &user, &err);
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
	return machine_dmabuf_map(machine, fd, offset, bytes);
}

static struct rig_gpus mine = {.allocate = allocate,
	.release = release,
	.share = share,
	.unshare = gpu_space_release,
	.put = put,
	.get = get,
	.image = image};

/* ---- processes ----------------------------------------------------------------------------- */

static int
launch(void *arg, int sock, pid_t *ret_pid, struct th_err *err)
{
	char *const argv[] = {(char *)(uintptr_t) "helper_program", NULL};
	char program[PATH_MAX];
	posix_spawn_file_actions_t actions;
	(void)arg;
	gpus_here_path("helper_program", program);
	posix_spawn_file_actions_init(&actions);
	/* A descriptor that is 3 already would keep its close-on-exec. */
	int theirs = fcntl(sock, F_DUPFD_CLOEXEC, 10);
	posix_spawn_file_actions_adddup2(&actions, theirs, 3);
	int rc = -posix_spawn(ret_pid, program, &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(theirs);
	return rc < 0 ? th_fail(err, rc, "the test cannot start %s", program) : 0;
}

pid_t
rig_gpus_pid(unsigned gpu)
{
	struct gpu_status status[RIG_GPUS];
	uint32_t count = gpus_status(mine.gpus, status, RIG_GPUS);
	TH_ASSERT(gpu < num_gpus);
	for (uint32_t i = 0; i < count && i < RIG_GPUS; i++) {
		if (memcmp(status[i].uuid, gpus[gpu].uuid.bytes, 16) == 0)
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
	TH_ASSERT(machine);
	return machine;
}

/* ---- GPUs ---------------------------------------------------------------------------------- */

static bool
reach_each_other(int a, int b)
{
	int there = 0, back = 0;
	GOOD(cuda.cuDeviceCanAccessPeer(&there, a, b));
	GOOD(cuda.cuDeviceCanAccessPeer(&back, b, a));
	return there != 0 && back != 0;
}

static void
look_for_gpus(void)
{
	int count = 0, second = 1;
	if (num_gpus > 0)
		return;
	machine = gpus_here_open(RIG_GPUS, GPU_BYTES);
	cuda = cuda_ready(0);
	GOOD(cuda.cuDeviceGetCount(&count));
	while (second < count && !reach_each_other(0, second))
		second++;
	num_gpus = second < count ? RIG_GPUS : 1;
	TH_ASSERT(!machine || num_gpus == RIG_GPUS);
	gpus[RIG_GPUS - 1].device = second;
	for (unsigned i = 0; i < num_gpus; i++) {
		GOOD(cuda.cuDevicePrimaryCtxRetain(&gpus[i].context, gpus[i].device));
		GOOD(cuda.cuDeviceGetUuid(&gpus[i].uuid, gpus[i].device));
	}
}

unsigned
rig_gpus_count(void)
{
	look_for_gpus();
	return num_gpus < rig_gpus_most ? num_gpus : rig_gpus_most;
}

static const char *
lack_of(enum cuda_kind kind, int device)
{
	if ((kind == CUDA_KIND_CHUNK || kind == CUDA_KIND_CHUNKS) &&
		(attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) == 0 ||
			attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
				device) == 0))
		return "this machine's GPUs have no memory by cuMemCreate that can be exported";
	if (kind == CUDA_KIND_POOL &&
		(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device) == 0 ||
			(attribute(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, device) &
				CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0))
		return "this machine's GPUs have no memory pools that can be exported";
	return NULL;
}

const char *
rig_gpus_lack(enum cuda_kind kind)
{
	const char *lack = NULL;
	look_for_gpus();
	for (unsigned i = 0; i < num_gpus && !lack; i++)
		lack = lack_of(kind, gpus[i].device);
	TH_ASSERT(!machine || !lack);
	return lack;
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
	look_for_gpus();
	if (machine)
		mine.map_dmabuf = map_dmabuf;
	else
		rig_no_dmabufs = true;
	int rc = gpus_new(&config, &err, &mine.gpus);
	TH_ASSERT(rc == 0);
	rig_gpus = &mine;
}

/* Nor does the test, but where a GPU was lost: its memory cannot be freed. */
static void
expect_nothing_held(void)
{
	static const enum machine_held helds[] = {
		HELD_ALLOCATIONS, HELD_HANDLES, HELD_MAPPINGS, HELD_RESERVATIONS, HELD_POOLS};
	for (unsigned i = 0; i < RIG_GPUS; i++) {
		if (machine->page->devices[i].lost != 0)
			return;
	}
	for (unsigned i = 0; i < sizeof(helds) / sizeof(helds[0]); i++)
		TH_ASSERT(machine_holds(machine, getpid(), helds[i]) == 0);
}

void
rig_gpus_fini(void)
{
	fd_memory_sweep();
	rig_gpus = NULL;
	gpus_free(mine.gpus);
	mine.gpus = NULL;
	TH_ASSERT(free_left() == 0);
	if (machine)
		expect_nothing_held();
	gpus_here_close();
}
