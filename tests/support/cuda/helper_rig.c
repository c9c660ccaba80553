/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper_rig - plays the agent of one process of a GPU, and workers.
 */
#include "tests/support/cuda/helper_rig.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/fd.h"
#include "tests/support/cuda/test_calls.h"
#include "transport/hash/digest.h"

#define WAIT_MS 60000
#define GOOD(call) TH_ASSERT((call) == CUDA_SUCCESS) /* in the worker */

/* ---- the process ---------------------------------------------------------------------------- */

int
rig_launch_on(void *arg, int sock, pid_t *ret_pid, struct th_err *err)
{
	char *const argv[] = {(char *)(uintptr_t) "helper_program", NULL};
	posix_spawn_file_actions_t actions;
	(void)arg;
	posix_spawn_file_actions_init(&actions);
	/* A descriptor that is 3 already would keep its close-on-exec. */
	int theirs = fcntl(sock, F_DUPFD_CLOEXEC, 10);
	posix_spawn_file_actions_adddup2(&actions, theirs, 3);
	int rc = posix_spawn(ret_pid, TH_HELPER_PROGRAM, &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(theirs);
	return rc == 0 ? 0 : th_fail(err, -rc, "no process of a GPU");
}

void
rig_launch(struct rig *rig)
{
	int socks[2];
	memset(rig, 0, sizeof(*rig));
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, socks), 0);
	cr_assert_eq(rig_launch_on(NULL, socks[1], &rig->pid, NULL), 0);
	close(socks[1]);
	rig->sock = socks[0];
	rig->area_fd = memfd_create("area", MFD_CLOEXEC);
	cr_assert_eq(ftruncate(rig->area_fd, RIG_AREA_BYTES), 0);
	rig->area = mmap(NULL, RIG_AREA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, rig->area_fd, 0);
	cr_assert_neq(rig->area, MAP_FAILED);
}

void
rig_start(struct rig *rig, struct machine *machine, int device)
{
	struct gpu_ready ready = rig_start_as(rig, machine, device, 0);
	cr_assert_eq(ready.hashes_on_gpu, 1, "%s", ready.text);
}

struct gpu_ready
rig_start_as(struct rig *rig, struct machine *machine, int device, uint32_t flags)
{
	struct gpu_start start = {.kind = GPU_START, .flags = flags};
	struct gpu_ready ready;
	struct gpu_area_is is;
	rig_launch(rig);
	memcpy(start.uuid, machine->page->devices[device].uuid.bytes, sizeof(start.uuid));
	rig_send(rig, &start, sizeof(start), -1);
	rig_hear(rig, GPU_READY, &ready, sizeof(ready));
	cr_assert_eq(ready.code, 0, "%s", ready.text);
	cr_assert_eq(rig_area(rig, 0, RIG_AREA_BYTES, rig->area_fd, &is), 0, "%s", is.text);
	cr_assert_eq(is.pinned, 1);
	return ready;
}

void
rig_hang_up(struct rig *rig)
{
	shutdown(rig->sock, SHUT_RDWR);
	th_fd_close(&rig->sock);
}

static int
finish(struct rig *rig)
{
	int status = 0;
	while (waitpid(rig->pid, &status, 0) < 0)
		cr_assert_eq(errno, EINTR);
	th_fd_close(&rig->sock);
	th_fd_close(&rig->area_fd);
	munmap(rig->area, RIG_AREA_BYTES);
	return status;
}

int
rig_end(struct rig *rig)
{
	int status = finish(rig);
	cr_assert(WIFEXITED(status), "%d", status);
	return WEXITSTATUS(status);
}

void
rig_kill(struct rig *rig)
{
	kill(rig->pid, SIGKILL);
	finish(rig);
}

/* ---- messages ------------------------------------------------------------------------------- */

void
rig_send(struct rig *rig, const void *message, size_t bytes, int fd)
{
	tell(rig->sock, message, bytes, fd);
}

static uint32_t
next_kind(struct rig *rig)
{
	struct pollfd wait = {.fd = rig->sock, .events = POLLIN};
	uint32_t kind = 0;
	cr_assert_eq(poll(&wait, 1, WAIT_MS), 1, "the process says nothing");
	ssize_t got = recv(rig->sock, &kind, sizeof(kind), MSG_PEEK);
	return got == (ssize_t)sizeof(kind) ? kind : 0;
}

void
rig_hear(struct rig *rig, enum gpu_message_kind kind, void *ret_message, size_t bytes)
{
	uint32_t next = next_kind(rig);
	cr_assert_eq(next, kind, "%u instead of %u", next, kind);
	cr_assert_eq(recv(rig->sock, ret_message, bytes, MSG_TRUNC), (ssize_t)bytes);
}

void
rig_hear_nothing(struct rig *rig, int milliseconds)
{
	struct pollfd wait = {.fd = rig->sock, .events = POLLIN};
	cr_assert_eq(poll(&wait, 1, milliseconds), 0);
}

void
rig_hear_end(struct rig *rig, enum gpu_message_kind kind)
{
	char any[1024];
	uint32_t next;
	while ((next = next_kind(rig)) != 0) {
		cr_assert(kind == 0 || next == kind, "%u", next);
		cr_assert_gt(recv(rig->sock, any, sizeof(any), 0), 0);
	}
}

int
rig_area(struct rig *rig, uint32_t area, uint64_t bytes, int fd, struct gpu_area_is *ret_is)
{
	const struct gpu_area message = {.kind = GPU_AREA, .area = area, .bytes = bytes};
	rig_send(rig, &message, sizeof(message), fd);
	rig_hear(rig, GPU_AREA_IS, ret_is, sizeof(*ret_is));
	cr_assert_eq(ret_is->area, area);
	return ret_is->code;
}

struct gpu_opened
rig_open(struct rig *rig, uint64_t worker, uint64_t piece, const struct cuda_handle *handle, int fd)
{
	const struct gpu_open message = {
		.kind = GPU_OPEN, .worker = worker, .piece = piece, .handle = *handle};
	struct gpu_opened opened;
	rig_send(rig, &message, sizeof(message), fd);
	th_fd_close(&fd);
	rig_hear(rig, GPU_OPENED, &opened, sizeof(opened));
	cr_assert(opened.worker == worker && opened.piece == piece);
	return opened;
}

struct gpu_left
rig_leave(struct rig *rig, uint64_t worker, uint64_t piece)
{
	const struct gpu_leave message = {.kind = GPU_LEAVE, .worker = worker, .piece = piece};
	struct gpu_left left;
	rig_send(rig, &message, sizeof(message), -1);
	rig_hear(rig, GPU_LEFT, &left, sizeof(left));
	cr_assert(left.worker == worker && left.piece == piece);
	return left;
}

uint64_t
rig_run(struct rig *rig, enum gpu_run_op op, uint64_t at, const struct gpu_range *to,
	uint32_t num_to, const struct gpu_range *from, uint32_t num_from, bool hashes)
{
	struct gpu_run run = {.kind = GPU_RUN,
		.op = op,
		.area = rig->run_area,
		.hashes = hashes,
		.area_at = at,
		.num_to = num_to,
		.num_from = num_from,
		.num_chunks = 1};
	const struct gpu_range *side = num_from ? from : to;
	for (uint32_t i = 0; i < (num_from ? num_from : num_to); i++)
		run.chunk_bytes[0] += (uint32_t)side[i].bytes;
	return rig_run_of(rig, &run, to, from);
}

uint64_t
rig_run_of(struct rig *rig, const struct gpu_run *head, const struct gpu_range *to,
	const struct gpu_range *from)
{
	static _Alignas(8) uint8_t message[GPU_MESSAGE_BYTES_MAX];
	struct gpu_run run = *head;
	run.kind = GPU_RUN;
	run.run = rig->runs++;
	memcpy(message, &run, sizeof(run));
	if (run.num_to)
		memcpy(message + sizeof(run), to, run.num_to * sizeof(*to));
	if (run.num_from)
		memcpy(message + sizeof(run) + run.num_to * sizeof(*to), from,
			run.num_from * sizeof(*from));
	rig_send(rig, message, sizeof(run) + (run.num_to + run.num_from) * sizeof(*to), -1);
	return run.run;
}

struct gpu_done
rig_done(struct rig *rig)
{
	struct gpu_done done;
	rig_hear(rig, GPU_DONE, &done, sizeof(done));
	return done;
}

/* ---- workers -------------------------------------------------------------------------------- */

struct order { /* to a worker */
	enum { FILL = 1, DIGEST, STOP } what;
	uint32_t piece;
	uint8_t seed;
	uint64_t at, bytes;
};

static struct { /* what the next worker is */
	enum cuda_kind kind;
	int device;
	uint32_t num_pieces;
} next_worker;

uint8_t
rig_byte(uint8_t seed, uint64_t at)
{
	return (uint8_t)(seed + at + at / 251 + at / 65536 * 7);
}

static void
map_chunk(const struct cuda *cuda, CUdeviceptr address)
{
	const CUmemAllocationProp form = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, next_worker.device}};
	const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, next_worker.device},
		CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle = 0;
	GOOD(cuda->cuMemCreate(&handle, RIG_PIECE_BYTES, &form, 0));
	GOOD(cuda->cuMemMap(address, RIG_PIECE_BYTES, 0, handle, 0));
	GOOD(cuda->cuMemRelease(handle));
	GOOD(cuda->cuMemSetAccess(address, RIG_PIECE_BYTES, &access, 1));
}

static void
allocate(const struct cuda *cuda, CUdeviceptr *ret_pieces)
{
	const CUmemPoolProps form = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, next_worker.device}};
	bool one_range = next_worker.kind == CUDA_KIND_CHUNKS;
	/* A place more: the kind is told by what is behind a chunk. */
	uint64_t room = (next_worker.num_pieces + 1) * RIG_PIECE_BYTES;
	CUmemoryPool pool = NULL;
	CUdeviceptr range = 0;
	if (next_worker.kind == CUDA_KIND_POOL)
		GOOD(test_cuda.cuMemPoolCreate(&pool, &form));
	if (one_range)
		GOOD(cuda->cuMemAddressReserve(&range, room, 0, 0, 0));
	for (uint32_t i = 0; i < next_worker.num_pieces; i++) {
		ret_pieces[i] = range + i * RIG_PIECE_BYTES;
		if (next_worker.kind == CUDA_KIND_LEGACY) {
			GOOD(test_cuda.cuMemAlloc(&ret_pieces[i], RIG_PIECE_BYTES));
		} else if (next_worker.kind == CUDA_KIND_POOL) {
			GOOD(test_cuda.cuMemAllocFromPoolAsync(
				&ret_pieces[i], RIG_PIECE_BYTES, pool, NULL));
		} else {
			if (!one_range)
				GOOD(cuda->cuMemAddressReserve(
					&ret_pieces[i], RIG_PIECE_BYTES, 0, 0, 0));
			map_chunk(cuda, ret_pieces[i]);
		}
	}
}

static void
obey(int sock, CUdeviceptr piece, const struct order *order)
{
	uint8_t *data = malloc(RIG_PIECE_BYTES);
	TH_ASSERT(data);
	if (order->what == FILL) {
		for (uint64_t i = 0; i < RIG_PIECE_BYTES; i++)
			data[i] = rig_byte(order->seed, i);
		GOOD(test_cuda.cuMemcpyHtoD(piece, data, RIG_PIECE_BYTES));
		tell(sock, "", 1, -1);
	} else {
		GOOD(test_cuda.cuMemcpyDtoH(data, piece + order->at, order->bytes));
		struct th_hash digest = digest_of(data, order->bytes);
		tell(sock, &digest, sizeof(digest), -1);
	}
	free(data);
}

static void
worker(int sock)
{
	struct cuda cuda = cuda_ready(next_worker.device);
	CUdeviceptr pieces[RIG_PIECES_MAX];
	struct cuda_memory memory;
	struct order order;
	allocate(&cuda, pieces);
	for (uint32_t i = 0; i < next_worker.num_pieces; i++) {
		struct cuda_handle handle;
		int fd = -1;
		cuda_memory_init(&memory, next_worker.device);
		TH_ASSERT(cuda_memory_add(&memory, &cuda, pieces[i], RIG_PIECE_BYTES, NULL) == 0);
		TH_ASSERT(memory.count == 1 && memory.pieces[0].kind == next_worker.kind);
		TH_ASSERT(cuda_handle_make(&cuda, next_worker.device, &memory.pieces[0], &handle,
				  &fd, NULL) == 0);
		cuda_memory_end(&memory);
		tell(sock, &handle, sizeof(handle), fd);
		th_fd_close(&fd);
	}
	for (;;) {
		hear(sock, &order, sizeof(order));
		if (order.what == STOP)
			return;
		obey(sock, pieces[order.piece], &order);
	}
}

struct rig_worker
rig_worker_new(enum cuda_kind kind, int device, uint32_t num_pieces)
{
	struct rig_worker made = {.num_pieces = num_pieces};
	next_worker.kind = kind;
	next_worker.device = device;
	next_worker.num_pieces = num_pieces;
	made.person = person_new(worker);
	for (uint32_t i = 0; i < RIG_PIECES_MAX; i++)
		made.fds[i] = i < num_pieces ? hear(made.person.sock, &made.handles[i],
						       sizeof(made.handles[i]))
					     : -1;
	return made;
}

void
rig_worker_fill(struct rig_worker *worker, uint32_t piece, uint8_t seed)
{
	const struct order order = {.what = FILL, .piece = piece, .seed = seed};
	char ready;
	tell(worker->person.sock, &order, sizeof(order), -1);
	hear(worker->person.sock, &ready, 1);
}

struct th_hash
rig_worker_digest(struct rig_worker *worker, uint32_t piece, uint64_t at, uint64_t bytes)
{
	const struct order order = {.what = DIGEST, .piece = piece, .at = at, .bytes = bytes};
	struct th_hash digest;
	tell(worker->person.sock, &order, sizeof(order), -1);
	hear(worker->person.sock, &digest, sizeof(digest));
	return digest;
}

void
rig_worker_open(struct rig_worker *worker, struct rig *rig, uint64_t number)
{
	for (uint32_t i = 0; i < worker->num_pieces; i++) {
		struct gpu_opened opened =
			rig_open(rig, number, i, &worker->handles[i], th_fd_move(&worker->fds[i]));
		cr_assert_eq(opened.code, 0, "%s", opened.text);
	}
}

static void
close_fds(struct rig_worker *worker)
{
	for (uint32_t i = 0; i < RIG_PIECES_MAX; i++)
		th_fd_close(&worker->fds[i]);
}

void
rig_worker_end(struct rig_worker *worker)
{
	const struct order order = {.what = STOP};
	tell(worker->person.sock, &order, sizeof(order), -1);
	close_fds(worker);
	person_end(&worker->person);
}

void
rig_worker_kill(struct rig_worker *worker)
{
	close_fds(worker);
	person_kill(&worker->person);
}
