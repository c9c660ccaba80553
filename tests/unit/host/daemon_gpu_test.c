/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of daemon/host/memory_gpu: what a worker may share of GPU memory, and register in it. There
 * is no GPU here: whether a piece can be opened is not known yet when it is taken.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/host/memory/gpu_hold.h"
#include "daemon/host/memory/memory_gpu.h"
#include "daemon/host/status/status_gpu.h"
#include "daemon/host/worker/tensor_places.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/cuda/cuda_handle.h"
#include "transport/cuda/agent/gpus.h"
#include "transport/part/fd_memory.h"

#define U8 1
#define MIB (UINT64_C(1) << 20)
#define BASE UINT64_C(0x7f0000000000)

static struct gpus *gpus;
static struct memory_set set;
static struct memory_limits limits;
static struct memory_gpu_limits gpu_limits;
static bool registered;
static struct th_err err;

static int
no_launch(void *arg, int sock, pid_t *ret_pid, struct th_err *reason)
{
	(void)arg;
	(void)sock;
	(void)ret_pid;
	return th_fail(reason, -ENOENT, "there are no processes here");
}

static void
setup(void)
{
	const struct gpus_config config = {.launch = no_launch,
		.staging_bytes = 16 * MIB,
		.hang_ns = INT64_C(10000000000),
		.leave_ns = INT64_C(500000000),
		.idle_ns = INT64_C(10000000000)};
	cr_assert_eq(gpus_new(&config, &err, &gpus), 0, "%s", err.text);
	set = (struct memory_set){0};
	limits = (struct memory_limits){.objects_max = 5000, .descriptors_max = 3};
	gpu_limits = (struct memory_gpu_limits){
		.gpus = gpus, .why_not = "gpu=off", .label = "m/r/0", .process = 77};
	registered = false;
}

static void
teardown(void)
{
	memory_fini(&set);
	fd_memory_sweep();
	gpus_free(gpus);
}

TestSuite(daemon_gpu, .init = setup, .fini = teardown, .timeout = 60);

/* As a worker makes it, of the GPU with this number. */
static struct fdmsg_gpu
message_of(uint32_t kind, uint8_t gpu, uint64_t base, uint64_t bytes)
{
	struct cuda_handle handle = {.kind = kind, .bytes = bytes, .id = 1};
	struct fdmsg_gpu message = {.token = 1, .base = base, .bytes = bytes};
	memset(handle.uuid, gpu, sizeof(handle.uuid));
	memcpy(message.handle, &handle, sizeof(handle));
	return message;
}

/* A code, or the id of the object; the descriptor is of no matter. */
static int
send_message(const struct fdmsg_gpu *message, bool descriptor)
{
	int fd = descriptor ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;
	uint32_t id = 0;
	err = (struct th_err){0};
	limits.kept_by_all = set.descriptors;
	int rc = memory_gpu_add(&set, message, &fd, &limits, &gpu_limits, registered, &err, &id);
	cr_assert_eq(rc < 0, err.text[0] != '\0', "a refusal without a sentence");
	th_fd_close(&fd);
	return rc < 0 ? rc : (int)id;
}

static int
add(uint32_t kind, uint8_t gpu, uint64_t base, uint64_t bytes)
{
	const struct fdmsg_gpu message = message_of(kind, gpu, base, bytes);
	return send_message(&message, kind != CUDA_KIND_LEGACY);
}

static void
refused(const struct fdmsg_gpu *message, bool descriptor, int code, const char *word)
{
	cr_assert_eq(send_message(message, descriptor), code, "%s", err.text);
	cr_assert(strstr(err.text, word), "no '%s' in: %s", word, err.text);
	cr_assert_eq(set.count, set.gone);
	cr_assert_null(set.gpus[0].space);
}

static uint32_t
spaces(void)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < MEMORY_GPUS_MAX; i++)
		count += set.gpus[i].space != NULL;
	return count;
}

Test(daemon_gpu, piece__that_a_worker_cannot_mean__is_refused_with_a_sentence)
{
	struct fdmsg_gpu message = message_of(CUDA_KIND_LEGACY, 1, BASE, MIB);
	const struct fdmsg_gpu good = message;
	struct cuda_handle handle;
	gpu_limits.gpus = NULL;
	refused(&message, false, TH_E_MEMORY_KIND, "gpu=off");
	gpu_limits.gpus = gpus;
	refused(&message, true, TH_E_INVALID, "a descriptor where there is none");
	message = message_of(CUDA_KIND_CHUNK, 1, BASE, MIB);
	refused(&message, false, TH_E_INVALID, "it has no descriptor");
	message = message_of(CUDA_KIND_POOL, 1, BASE, MIB);
	refused(&message, false, TH_E_INVALID, "it has no descriptor");
	for (uint32_t kind = CUDA_KIND_CLOSED; kind < CUDA_KIND_CLOSED + 2; kind++) {
		message = message_of(kind, 1, BASE, MIB);
		refused(&message, true, TH_E_MEMORY_KIND, "kind");
	}
	message = message_of(0, 1, BASE, MIB);
	refused(&message, true, TH_E_MEMORY_KIND, "kind");
	message = good;
	message.bytes = 0;
	refused(&message, false, TH_E_INVALID, "no range");
	message = good;
	message.base = UINT64_MAX - MIB + 1;
	refused(&message, false, TH_E_INVALID, "no range");
	message = good;
	message.bytes++;
	refused(&message, false, TH_E_INVALID, "a handle of 1048576");
	message = good;
	message.reserved = 1;
	refused(&message, false, TH_E_INVALID, "must be 0");
	message = good;
	memcpy(&handle, message.handle, sizeof(handle));
	handle.reserved = 1;
	memcpy(message.handle, &handle, sizeof(handle));
	refused(&message, false, TH_E_INVALID, "must be 0");
	cr_assert_eq(send_message(&good, false), 1);
	cr_assert_str_eq(memory_gpu_kind(memory_find(&set, 1)), "cudaMalloc");
}

Test(daemon_gpu, limits__of_objects_descriptors_and_gpus)
{
	for (int i = 0; i < 3; i++)
		cr_assert_eq(add(CUDA_KIND_CHUNKS, 1, BASE + (uint64_t)i * MIB, MIB), i + 1);
	cr_assert_eq(set.descriptors, 3);
	cr_assert_eq(add(CUDA_KIND_CHUNKS, 1, BASE + 3 * MIB, MIB), TH_E_LIMIT);
	cr_assert(strstr(err.text, "descriptors"), "%s", err.text);
	cr_assert_eq(add(CUDA_KIND_LEGACY, 1, BASE + 3 * MIB, MIB), 4, "it needs none");
	cr_assert_eq(memory_forget(&set, 2, false), 0);
	cr_assert_eq(set.descriptors, 2);
	cr_assert_eq(add(CUDA_KIND_CHUNKS, 1, BASE + 4 * MIB, MIB), 5);
	limits.objects_max = 4;
	cr_assert_eq(add(CUDA_KIND_LEGACY, 1, BASE + 5 * MIB, MIB), TH_E_LIMIT);
	limits.objects_max = 5000;
	for (uint8_t gpu = 2; gpu <= MEMORY_GPUS_MAX; gpu++)
		cr_assert_gt(add(CUDA_KIND_LEGACY, gpu, BASE + (uint64_t)gpu * 10 * MIB, MIB), 0);
	cr_assert_eq(spaces(), MEMORY_GPUS_MAX);
	cr_assert_eq(add(CUDA_KIND_LEGACY, 200, BASE + 900 * MIB, MIB), TH_E_LIMIT);
}

Test(daemon_gpu, forget__last_piece__ends_the_space)
{
	cr_assert_eq(add(CUDA_KIND_LEGACY, 1, BASE, MIB), 1);
	cr_assert_eq(add(CUDA_KIND_CHUNK, 1, BASE + MIB, MIB), 2);
	cr_assert_eq(add(CUDA_KIND_LEGACY, 2, BASE + 8 * MIB, MIB), 3);
	cr_assert_eq(spaces(), 2);
	cr_assert_neq(memory_find(&set, 1)->access, memory_find(&set, 3)->access);
	cr_assert_eq(memory_find(&set, 1)->access, memory_find(&set, 2)->access);
	cr_assert_eq(memory_forget(&set, 1, false), 0);
	cr_assert_eq(spaces(), 2);
	cr_assert_eq(memory_forget(&set, 2, true), 0, "something is registered");
	cr_assert_eq(spaces(), 2);
	cr_assert_null(memory_find(&set, 2));
	cr_assert_not_null(memory_object(&set, 2));
	memory_sweep(&set);
	cr_assert_null(memory_object(&set, 2));
	cr_assert_eq(spaces(), 1);
	cr_assert_eq(set.descriptors, 0);
	cr_assert_eq(memory_forget(&set, 3, false), 0);
	cr_assert_eq(spaces(), 0);
	cr_assert_eq(set.count, 0);
}

/* A worker frees memory and gets other memory at the same address: nothing is mixed up. */
Test(daemon_gpu, piece__at_the_place_of_a_forgotten_one__takes_it_unless_registered)
{
	cr_assert_eq(add(CUDA_KIND_LEGACY, 1, BASE, 4 * MIB), 1);
	cr_assert_eq(add(CUDA_KIND_LEGACY, 1, BASE + 3 * MIB, 4 * MIB), TH_E_INVALID);
	cr_assert_eq(memory_forget(&set, 1, true), 0);
	registered = true;
	cr_assert_eq(add(CUDA_KIND_LEGACY, 1, BASE + 3 * MIB, 4 * MIB), TH_E_INVALID);
	registered = false;
	cr_assert_eq(add(CUDA_KIND_LEGACY, 1, BASE + 3 * MIB, 4 * MIB), 2);
	cr_assert_null(memory_object(&set, 1));
	cr_assert_eq(memory_find(&set, 2)->base, BASE + 3 * MIB);
	cr_assert_eq(spaces(), 1);
}

/* With the registration that they were for. */
Test(daemon_gpu, forget_all__pieces_and_dmabufs__go_at_the_sweep_and_others_stay)
{
	const struct fdmsg_memory dmabuf = {.kind = FDMSG_DMABUF, .base = BASE, .bytes = MIB};
	const struct fdmsg_memory file = {.kind = FDMSG_FILE, .bytes = 4096};
	uint32_t id = 0;
	int fds[2] = {memfd_create("a", MFD_CLOEXEC), memfd_create("b", MFD_CLOEXEC)};
	cr_assert_eq(ftruncate(fds[0], MIB) | ftruncate(fds[1], 4096), 0);
	cr_assert_eq(add(CUDA_KIND_CHUNK, 1, BASE, MIB), 1);
	cr_assert_eq(memory_add(&set, &file, &fds[1], &limits, &err, &id), 0, "%s", err.text);
	cr_assert_eq(memory_add(&set, &dmabuf, &fds[0], &limits, &err, &id), 0, "%s", err.text);
	cr_assert_eq(set.descriptors, 3);
	memory_gpu_forget_all(&set);
	memory_gpu_forget_all(&set);
	cr_assert_null(memory_find(&set, 1));
	cr_assert_eq(spaces(), 1, "somebody may still read it");
	memory_sweep(&set);
	cr_assert_eq(spaces(), 0);
	cr_assert_eq(set.descriptors, 1);
	cr_assert_eq(set.let_go_id, 3);
	cr_assert_eq(set.forgotten, 0);
	cr_assert_not_null(memory_find(&set, 2));
	cr_assert_eq(add(CUDA_KIND_CHUNK, 1, BASE, MIB), 4);
}

static void
on_gone(void *arg, bool kept)
{
	cr_assert(!kept);
	sem_post(arg);
}

/* What a worker waits for that wants its memory free. */
Test(daemon_gpu, hold__of_all_gpu_memory__ends_with_the_last_of_it)
{
	const struct fdmsg_memory dmabuf = {.kind = FDMSG_DMABUF, .base = BASE, .bytes = MIB};
	uint32_t id = 0;
	int fd = memfd_create("a", MFD_CLOEXEC), left = -1;
	sem_t gone;
	sem_init(&gone, 0, 0);
	cr_assert_null(set.hold);
	cr_assert_eq(ftruncate(fd, MIB), 0);
	cr_assert_eq(add(CUDA_KIND_LEGACY, 1, BASE, MIB), 1);
	cr_assert_eq(add(CUDA_KIND_CHUNK, 1, BASE + MIB, MIB), 2);
	cr_assert_eq(memory_add(&set, &dmabuf, &fd, &limits, &err, &id), 0, "%s", err.text);
	cr_assert_eq(memory_forget(&set, 2, false), 0);
	memory_gpu_forget_all(&set);
	struct hold *hold = set.hold;
	set.hold = NULL;
	hold_end_and_tell(hold, on_gone, &gone);
	/* Of the next registration. */
	cr_assert_eq(add(CUDA_KIND_LEGACY, 2, BASE, MIB), 4);
	cr_assert_neq(set.hold, hold);
	cr_assert_eq(sem_getvalue(&gone, &left), 0);
	cr_assert_eq(left, 0, "somebody may still read it");
	memory_sweep(&set);
	cr_assert_eq(sem_wait(&gone), 0);
	cr_assert_not_null(memory_find(&set, 4));
	cr_assert_eq(sem_destroy(&gone), 0);
}

/* Of thousands, in the order of a worker that gives all back. */
Test(daemon_gpu, forget__thousands__leaves_the_others_where_they_are)
{
	const uint32_t count = 4000;
	for (uint32_t i = 0; i < count; i++)
		cr_assert_eq(add(CUDA_KIND_LEGACY, 1, BASE + i * MIB, MIB), (int)i + 1);
	for (uint32_t id = 1; id <= count; id++) {
		if (id % 4 != 0)
			cr_assert_eq(memory_forget(&set, id, false), 0);
	}
	cr_assert_eq(set.count - set.gone, count / 4);
	cr_assert_leq(set.count, count / 2, "what is gone makes way");
	for (uint32_t id = 1; id <= count; id++) {
		const struct memory *object = memory_find(&set, id);
		cr_assert_eq(object != NULL, id % 4 == 0);
		if (object)
			cr_assert_eq(object->base, BASE + (id - 1) * MIB);
	}
	cr_assert_eq(memory_forget(&set, 1, false), TH_E_INVALID);
}

/* Nothing is swept while a part is held. */
Test(daemon_gpu, pieces__come_and_go_while_one_is_held__take_no_more_room)
{
	cr_assert_eq(add(CUDA_KIND_LEGACY, 1, BASE, MIB), 1);
	cr_assert_eq(memory_forget(&set, 1, true), 0);
	for (int i = 0; i < 1000; i++) {
		cr_assert_eq(add(CUDA_KIND_LEGACY, 1, BASE + MIB, MIB), i + 2);
		cr_assert_eq(memory_forget(&set, (uint32_t)i + 2, true), 0);
	}
	cr_assert_leq(set.capacity, 8);
	cr_assert_not_null(memory_object(&set, 1));
	memory_sweep(&set);
	cr_assert_eq(set.count, 0);
	cr_assert_eq(spaces(), 0);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static struct manifest_row rows[4];
static struct tensors_place places[4];
static uint32_t num_rows;

static void
row(const char *name, uint32_t id, uint64_t offset, uint64_t bytes)
{
	rows[num_rows] = (struct manifest_row){.name = name, .dtype = U8, .ndim = 1};
	rows[num_rows].local_shape[0] = bytes;
	places[num_rows++] = (struct tensors_place){id, offset, bytes};
}

static int
register_rows(struct tensors **ret_tensors)
{
	const struct tensors_rows all = {num_rows, rows, places};
	err = (struct th_err){0};
	return tensors_new(&all, &set, &err, ret_tensors);
}

static const struct xfer_place *
place_of(const struct tensors *tensors, const char *name)
{
	for (uint32_t i = 0; i < tensors->manifest.num_rows; i++) {
		if (strcmp(tensors->manifest.rows[i].name, name) == 0)
			return &tensors->places[i];
	}
	return NULL;
}

/* Three chunks behind each other and a fourth behind a gap, in no order; and another GPU's. */
static void
share_chunks(void)
{
	limits.descriptors_max = 100;
	cr_assert_eq(add(CUDA_KIND_CHUNKS, 1, BASE + 2 * MIB, MIB), 1);
	cr_assert_eq(add(CUDA_KIND_CHUNKS, 1, BASE, MIB), 2);
	cr_assert_eq(add(CUDA_KIND_CHUNKS, 1, BASE + 4 * MIB, MIB), 3);
	cr_assert_eq(add(CUDA_KIND_CHUNKS, 1, BASE + MIB, MIB), 4);
	cr_assert_eq(add(CUDA_KIND_CHUNKS, 2, BASE + 3 * MIB, MIB), 5);
}

Test(daemon_gpu, rows__over_pieces_that_follow_each_other__lie_at_the_workers_address)
{
	struct tensors *tensors = NULL;
	share_chunks();
	row("a", 2, 100, 3 * MIB - 100);
	row("b", 3, MIB - 1, 1);
	row("c", 5, 0, MIB);
	row("d", 0, 0, 0);
	cr_assert_eq(register_rows(&tensors), 0, "%s", err.text);
	cr_assert_eq(place_of(tensors, "a")->place, BASE + 100);
	cr_assert_null(place_of(tensors, "a")->data);
	cr_assert_eq(place_of(tensors, "a")->access, memory_find(&set, 2)->access);
	cr_assert_eq(place_of(tensors, "b")->place, BASE + 5 * MIB - 1);
	cr_assert_eq(place_of(tensors, "c")->access, memory_find(&set, 5)->access);
	cr_assert_null(place_of(tensors, "d")->access);
	cr_assert_eq(tensors->gpus, 3);
	cr_assert_null(tensors->read_only);
	tensors_free(tensors);
}

static void
row_refused(uint32_t id, uint64_t offset, uint64_t bytes, const char *word)
{
	struct tensors *tensors = NULL;
	num_rows = 0;
	row("weights", id, offset, bytes);
	cr_assert_eq(register_rows(&tensors), TH_E_INVALID);
	cr_assert(strstr(err.text, "weights"), "%s", err.text);
	cr_assert(strstr(err.text, word), "no '%s' in: %s", word, err.text);
}

Test(daemon_gpu, rows__into_a_gap_or_another_gpu_or_beyond__are_refused)
{
	share_chunks();
	row_refused(2, 0, 3 * MIB + 1, "nor in those that follow it");
	row_refused(3, 1, MIB, "nor in those that follow it");
	row_refused(3, MIB, 1, "nor in those that follow it");
	row_refused(3, UINT64_MAX, 2, "nor in those that follow it");
	row_refused(3, 0, UINT64_MAX, "nor in those that follow it");
	row_refused(9, 0, 1, "was not shared");
	cr_assert_eq(memory_forget(&set, 4, false), 0);
	row_refused(2, 0, MIB + 1, "nor in those that follow it");
}

Test(daemon_gpu, rows__ties_and_overlaps__are_seen_by_address)
{
	struct tensors *tensors = NULL;
	share_chunks();
	row("a", 2, MIB - 8, 16);
	row("b", 2, MIB - 8, 16);
	row("c", 4, 8, 16);
	cr_assert_eq(register_rows(&tensors), 0, "%s", err.text);
	cr_assert_eq(tensors->manifest.num_rows, 2);
	cr_assert_eq(tensors->manifest.num_aliases, 1);
	cr_assert_eq(tensors->num_intervals, 2);
	cr_assert_eq(tensors->intervals[0].ino, 77, "two handles of one process meet");
	tensors_free(tensors);
	row("d", 4, 7, 16);
	cr_assert_eq(register_rows(&tensors), TH_E_INVALID);
	cr_assert(strstr(err.text, "overlap"), "%s", err.text);
}

Test(daemon_gpu, rows__of_both_memories__each_has_its_own_way)
{
	struct tensors *tensors = NULL;
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	uint32_t id = 0;
	cr_assert(fd >= 0 && ftruncate(fd, 4096) == 0);
	cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	const struct fdmsg_memory message = {.kind = FDMSG_MEMFD, .base = BASE, .bytes = 4096};
	cr_assert_eq(memory_add(&set, &message, &fd, &limits, &err, &id), 0, "%s", err.text);
	cr_assert_eq(add(CUDA_KIND_LEGACY, 1, BASE, MIB), 2);
	row("a", 1, 0, 4096);
	row("b", 2, 0, 4096);
	cr_assert_eq(register_rows(&tensors), 0, "%s", err.text);
	cr_assert_not_null(place_of(tensors, "a")->data);
	cr_assert_null(place_of(tensors, "b")->data);
	cr_assert_eq(place_of(tensors, "b")->place, BASE);
	cr_assert_eq(tensors->num_intervals, 2, "the same address is not the same memory");
	tensors_free(tensors);
	th_fd_close(&fd);
}

/* Nobody can be helped by the number of it: the worker can copy. */
Test(daemon_gpu, an_agent_without_descriptors__does_not_reach_the_memory)
{
	struct fdmsg_gpu first = message_of(CUDA_KIND_LEGACY, 1, BASE, MIB);
	struct fdmsg_gpu second = message_of(CUDA_KIND_LEGACY, 2, BASE + MIB, MIB);
	struct rlimit limit, none;
	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none = (struct rlimit){0, limit.rlim_max};
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
	refused(&first, false, TH_E_MEMORY_KIND, "gpu.staging could not be made");
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	cr_assert_geq(send_message(&first, false), 0, "%s", err.text);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
	cr_assert_eq(send_message(&second, false), TH_E_MEMORY_KIND);
	cr_assert(strstr(err.text, "no thread for another GPU"), "%s", err.text);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	cr_assert_geq(send_message(&second, false), 0, "%s", err.text);
}

/* What thctl is told of memory in so many places, each of one piece. */
static void
told(uint32_t pieces, size_t shown, uint64_t more)
{
	Tensorhub__V1__SessionInfo info;
	tensorhub__v1__session_info__init(&info);
	while (set.count < pieces)
		cr_assert_gt(add(CUDA_KIND_LEGACY, 1, BASE + 2 * set.count * MIB, MIB), 0, "%s",
			err.text);
	struct status_memory *status = status_memory_new(&set, &info);
	cr_assert_eq(info.n_memory, shown);
	cr_assert_eq(info.memory_more, more);
	for (size_t i = 0; i < shown; i++) {
		cr_assert_eq(info.memory[i]->address, BASE + 2 * i * MIB);
		cr_assert_eq(info.memory[i]->bytes, MIB);
		cr_assert_eq(info.memory[i]->pieces, 1);
	}
	status_memory_free(status);
}

Test(daemon_gpu, status__of_more_than_64_places__has_64_and_how_many_more)
{
	told(64, 64, 0);
	told(65, 64, 1);
	told(70, 64, 6);
	/* What goes on where the last one that is told ends is of that one. */
	set.objects[64].base = set.objects[63].base + MIB;
	Tensorhub__V1__SessionInfo info;
	tensorhub__v1__session_info__init(&info);
	struct status_memory *status = status_memory_new(&set, &info);
	cr_assert_eq(info.memory[63]->pieces, 2);
	cr_assert_eq(info.memory_more, 5);
	status_memory_free(status);
}
