/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpus_own_test - memory of the agent's own on a GPU: what NICs and the GPU see of it, what becomes
 * of it with its process, and a process that does not give it as it should.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "tests/support/cuda/gpus_rig.h"
#include "tests/support/cuda/helper_rig.h"
#include "tests/support/cuda/scripted_gpu.h"
#include "transport/hash/digest.h"

#define MIB ((size_t)1 << 20)
#define OWN_BYTES (4 * MIB)
#define CONTEXT_BYTES (machine.page->devices[0].context_bytes)

static struct machine machine;
static struct gpus *gpus;
static struct th_err err;
static uint8_t seen[OWN_BYTES];
static _Atomic unsigned closes;

/* To do it here may take a thread for ever. */
static void
close_elsewhere(int fd, void (*closed)(void *arg), void *arg)
{
	closes++;
	close(fd);
	if (closed)
		closed(arg);
}

static void
begin(struct script *script)
{
	const struct gpus_config config = {.launch = script ? script_launch : rig_launch_on,
		.arg = script,
		.close_fd = close_elsewhere,
		.staging_bytes = 8 * MIB,
		.hang_ns = RIG_PATIENCE_NS,
		.leave_ns = RIG_PATIENCE_NS,
		.idle_ns = RIG_PATIENCE_NS};
	log_set_level(LOG_LEVEL_ERROR);
	TH_ASSERT(gpus_new(&config, &err, &gpus) == 0);
}

static void
set_up(void)
{
	machine_new(&machine, 1, 64 * MIB);
}

static void
tear_down(void)
{
	machine_remove(&machine);
}

TestSuite(gpus_own, .init = set_up, .fini = tear_down, .timeout = 120);

static struct gpu_space *
own_new(uint64_t bytes)
{
	const uint8_t *uuid = (const uint8_t *)machine.page->devices[0].uuid.bytes;
	struct gpu_space *space = gpu_space_new_own(gpus, uuid, bytes, "a slab", &err);
	cr_assert(space, "%s", err.text);
	return space;
}

static int
take_dmabuf(struct gpu_space *space)
{
	gpus_close_fd close_fd = NULL;
	int fd = gpu_space_take_dmabuf(space, &close_fd);
	cr_assert_geq(fd, 0);
	cr_assert_not_null(close_fd);
	cr_assert_eq(gpu_space_take_dmabuf(space, &close_fd), -1, "once");
	return fd;
}

static struct gpu_space *
share(struct rig_worker *worker)
{
	struct gpu_space *space = gpu_space_new(gpus, worker->handles[0].uuid, "m/r/0", &err);
	for (uint32_t i = 0; i < worker->num_pieces; i++) {
		cr_assert_eq(
			gpu_space_add(space, &worker->handles[i], RIG_BASE + i * RIG_PIECE_BYTES,
				th_fd_move(&worker->fds[i]), NULL, &err),
			0, "%s", err.text);
	}
	return space;
}

/* Nobody has any of the GPU's memory but the process, if there is one, for its context. */
static void
wait_until_free(void)
{
	int64_t until_ns = th_now_ns() + RIG_PATIENCE_NS;
	while (machine_used(&machine, 0) > (rig_status(gpus).pid != 0 ? CONTEXT_BYTES : 0)) {
		cr_assert_lt(th_now_ns(), until_ns, "the GPU's memory is not free");
		usleep(1000);
	}
}

static bool
has_none_shown(const struct gpu_status *status)
{
	return status->own_bytes == 0;
}

/* ---- what it is for ------------------------------------------------------------------------ */

Test(gpus_own, a_workers_memory__goes_through_it_to_a_nic_and_back)
{
	static uint8_t expected[RIG_PIECE_BYTES];
	struct rig_worker worker = rig_worker_new(CUDA_KIND_POOL, 0, 2);
	begin(NULL);
	struct gpu_space *space = share(&worker), *own = own_new(OWN_BYTES);
	struct gpu_span from = {space, RIG_BASE, RIG_PIECE_BYTES},
			slot = {own, MIB, RIG_PIECE_BYTES};
	struct gpu_span to = {space, RIG_BASE + RIG_PIECE_BYTES, RIG_PIECE_BYTES};
	rig_worker_fill(&worker, 0, 3);
	cr_assert_eq(rig_settle(own, &err), 0, "%s", err.text);
	int fd = take_dmabuf(own);
	cr_assert_eq(machine_dmabuf_read(&machine, fd, 0, seen, OWN_BYTES), 0);
	for (size_t i = 0; i < OWN_BYTES; i++)
		cr_assert_eq(seen[i], 0);
	struct gpu_request copy = rig_copy(&slot, &from);
	cr_assert_eq(rig_carry(&copy), 0, "%s", copy.text);
	cr_assert_eq(machine_dmabuf_read(&machine, fd, MIB, seen, RIG_PIECE_BYTES), 0);
	for (uint64_t i = 0; i < RIG_PIECE_BYTES; i++)
		cr_assert_eq(seen[i], rig_byte(3, i));
	cr_assert(rig_same(copy.digest, digest_of(seen, RIG_PIECE_BYTES)));
	memset(expected, 0x5c, sizeof(expected));
	cr_assert_eq(machine_dmabuf_write(&machine, fd, MIB, expected, sizeof(expected)), 0);
	copy = rig_copy(&to, &slot);
	cr_assert_eq(rig_carry(&copy), 0, "%s", copy.text);
	cr_assert(rig_same(copy.digest, digest_of(expected, sizeof(expected))));
	cr_assert(rig_same(rig_worker_digest(&worker, 1, 0, RIG_PIECE_BYTES), copy.digest));
	/* No worker's. */
	struct gpu_status status = rig_status(gpus);
	cr_assert_eq(status.own_bytes, OWN_BYTES);
	cr_assert(status.spaces == 1 && status.pieces == 2 && status.imports == 2);
	cr_assert_eq(status.import_bytes, 2 * RIG_PIECE_BYTES);
	close(fd);
	gpu_space_release(own);
	gpu_space_release(space);
	rig_worker_end(&worker);
	wait_until_free();
	rig_wait_until(has_none_shown, gpus);
	gpus_free(gpus);
}

/* What a NIC has is there until that lets go of it, with or without the process. */
Test(gpus_own, its_process__is_killed__it_is_lost_and_free_when_nics_let_go)
{
	struct rig_worker worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	begin(NULL);
	struct gpu_space *space = share(&worker), *own = own_new(OWN_BYTES);
	struct gpu_span from = {space, RIG_BASE, MIB}, slot = {own, 0, MIB};
	rig_worker_fill(&worker, 0, 7);
	cr_assert_eq(rig_settle(own, &err), 0, "%s", err.text);
	int fd = take_dmabuf(own);
	struct gpu_request copy = rig_copy(&slot, &from);
	cr_assert_eq(rig_carry(&copy), 0, "%s", copy.text);
	cr_assert_not(gpu_space_is_lost(own));
	kill(rig_status(gpus).pid, SIGKILL);
	do {
		copy = rig_copy(&slot, &from);
	} while (rig_carry(&copy) == 0);
	cr_assert_eq(copy.code, TH_E_STALE_MEMORY);
	cr_assert(strstr(copy.text, "a slab"), "%s", copy.text);
	cr_assert(gpu_space_is_lost(own));
	cr_assert_not(gpu_space_is_lost(space));
	struct gpu_request hash = rig_hash(&from);
	cr_assert_eq(rig_carry(&hash), 0, "a worker's goes on: %s", hash.text);
	cr_assert_eq(machine_dmabuf_read(&machine, fd, 0, seen, MIB), 0);
	cr_assert_eq(seen[MIB - 1], rig_byte(7, MIB - 1));
	gpu_space_release(space);
	rig_worker_end(&worker);
	gpu_space_release(own);
	cr_assert_geq(machine_used(&machine, 0), OWN_BYTES);
	close(fd);
	wait_until_free();
	gpus_free(gpus);
}

/* ---- where there is none ------------------------------------------------------------------- */

static void
expect_none(uint64_t bytes, const char *words)
{
	struct gpu_space *own = own_new(bytes);
	cr_assert_eq(rig_settle(own, &err), TH_E_MEMORY_KIND);
	cr_assert(strstr(err.text, words), "%s", err.text);
	cr_assert_not(gpu_space_is_lost(own));
	gpu_space_release(own);
	wait_until_free();
}

Test(gpus_own, a_gpu__that_has_none_for_nics__says_why)
{
	begin(NULL);
	expect_none(128 * MIB, "CUDA_ERROR_OUT_OF_MEMORY");
	machine.page->devices[0].dma_buf = 0;
	expect_none(OWN_BYTES, "dma-buf");
	machine.page->devices[0].vmm_rdma = 0;
	expect_none(OWN_BYTES, "NICs");
	cr_assert_eq(rig_status(gpus).kills + rig_status(gpus).ends, 0);
	gpus_free(gpus);
}

static bool
has_process(const struct gpu_status *status)
{
	return status->pid != 0;
}

/* Whichever of them it is, what came before it is undone. */
Test(gpus_own, a_driver__that_refuses_a_call__says_which_and_nothing_is_left)
{
	static const struct {
		int call;
		const char *name;
	} calls[] = {{CALL_cuMemCreate, "cuMemCreate"},
		{CALL_cuMemAddressReserve, "cuMemAddressReserve"}, {CALL_cuMemMap, "cuMemMap"},
		{CALL_cuMemSetAccess, "cuMemSetAccess"}, {CALL_cuMemsetD8, "cuMemsetD8"},
		{CALL_cuStreamSynchronize, "cuStreamSynchronize"},
		{CALL_cuMemGetHandleForAddressRange, "dma-buf"}};
	begin(NULL);
	expect_none(128 * MIB, "CUDA_ERROR_OUT_OF_MEMORY"); /* it has its context now */
	rig_wait_until(has_process, gpus); /* status comes a little behind what is told */
	pid_t pid = rig_status(gpus).pid;
	for (size_t i = 0; i < TH_ARRAY_LEN(calls); i++) {
		int plan = machine_plan(
			&machine, FAULT_RESULT, pid, calls[i].call, 0, CUDA_ERROR_NOT_SUPPORTED);
		expect_none(OWN_BYTES, calls[i].name);
		/* What has failed before it is waited for is tried again. */
		cr_assert_geq(machine_met(&machine, plan), 1, "%s", calls[i].name);
		machine_lift(&machine, plan);
		cr_assert_eq(machine_holds(&machine, pid, HELD_HANDLES), 0, "%s", calls[i].name);
		cr_assert_eq(machine_holds(&machine, pid, HELD_MAPPINGS), 0, "%s", calls[i].name);
		cr_assert_eq(
			machine_holds(&machine, pid, HELD_RESERVATIONS), 0, "%s", calls[i].name);
	}
	cr_assert_eq(rig_status(gpus).kills + rig_status(gpus).ends, 0);
	gpus_free(gpus);
}

static void
told(void *arg, const struct th_err *result)
{
	*(int *)arg = result->code;
	rig_happens();
}

Test(gpus_own, given_back__before_it_is_there__is_told_once_and_free)
{
	begin(NULL);
	for (unsigned i = 0; i < 8; i++) {
		int code = 1;
		struct gpu_space *own = own_new(OWN_BYTES);
		gpu_space_settle(own, told, &code);
		gpu_space_release(own);
		rig_wait(1);
		cr_assert(code == 0 || code == TH_E_STALE_MEMORY, "%d", code);
	}
	wait_until_free();
	gpus_free(gpus);
}

static int
no_launch(void *arg, int sock, pid_t *ret_pid, struct th_err *why)
{
	(void)arg;
	(void)sock;
	(void)ret_pid;
	return th_fail(why, -ENOENT, "there are no processes here");
}

static _Atomic bool over;

static void *
look(void *arg)
{
	unsigned *wrong = arg;
	while (!over) {
		struct gpu_status status = rig_status(gpus);
		*wrong += status.spaces != 0 || status.pieces != 0;
	}
	return NULL;
}

/* Whenever somebody looks. */
Test(gpus_own, own_memory__that_comes_and_goes__is_never_a_workers)
{
	const struct gpus_config config = {.launch = no_launch, .staging_bytes = 8 * MIB};
	unsigned wrong = 0;
	pthread_t thread;
	log_set_level(LOG_LEVEL_ERROR);
	cr_assert_eq(gpus_new(&config, &err, &gpus), 0);
	cr_assert_eq(pthread_create(&thread, NULL, look, &wrong), 0);
	for (unsigned i = 0; i < 20000; i++)
		gpu_space_release(own_new(MIB));
	over = true;
	cr_assert_eq(pthread_join(thread, NULL), 0);
	cr_assert_eq(wrong, 0);
	gpus_free(gpus);
}

/* ---- a process that is broken -------------------------------------------------------------- */

static unsigned
count_fds(void)
{
	unsigned count = 0;
	for (int fd = 0; fd < 256; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

/* It is there in the next life, and of the size that was asked for. A descriptor that should not
 * be is closed elsewhere. */
static void
is_there_after(enum script_act act, uint64_t kills, uint64_t ends, unsigned closed)
{
	unsigned fds = count_fds(), before = closes;
	struct script *script = script_new();
	struct script_step *step = script_add(script, GPU_OPEN, act, 0, 1);
	begin(script);
	struct gpu_space *own = own_new(OWN_BYTES);
	cr_assert_eq(rig_settle(own, &err), 0, "%d: %s", (int)act, err.text);
	int fd = take_dmabuf(own);
	cr_assert_eq(lseek(fd, 0, SEEK_END), (off_t)OWN_BYTES);
	close(fd);
	struct gpu_status status = rig_status(gpus);
	cr_assert_eq(step->met, 1);
	cr_assert_eq(closes - before, closed, "%d", (int)act);
	cr_assert(status.kills == kills && status.ends == ends, "%d: %s", (int)act, status.text);
	gpu_space_release(own);
	gpus_free(gpus);
	script_free(script);
	cr_assert_eq(count_fds(), fds, "%d", (int)act);
}

Test(gpus_own, a_process__that_sends_no_descriptor_or_two_or_a_short_one__is_killed)
{
	is_there_after(SCRIPT_LESS_FD, 1, 0, 1);
	is_there_after(SCRIPT_EMPTY, 0, 1, 1);
	is_there_after(SCRIPT_NO_FD, 1, 0, 0);
	is_there_after(SCRIPT_TWO_FDS, 1, 0, 1);
	is_there_after(SCRIPT_LIE, 1, 0, 1);
	is_there_after(SCRIPT_SHORT, 1, 0, 1);
	is_there_after(SCRIPT_DIE, 0, 1, 0);
}

/* With what has none. */
Test(gpus_own, a_process__that_sends_a_descriptor_with_anything_else__is_killed)
{
	static const enum gpu_message_kind kinds[] = {GPU_START, GPU_OPEN, GPU_RUN, GPU_LEAVE};
	static const uint8_t uuid[16] = "the first GPU";
	for (size_t i = 0; i < TH_ARRAY_LEN(kinds); i++) {
		struct script *script = script_new();
		struct script_step *step = script_add(script, kinds[i], SCRIPT_FD, 0, 1);
		struct cuda_handle handle = {.kind = CUDA_KIND_LEGACY, .bytes = MIB};
		begin(script);
		memcpy(handle.uuid, uuid, sizeof(uuid));
		struct gpu_space *space = gpu_space_new(gpus, uuid, "m/r/0", &err);
		struct gpu_span span = {space, RIG_BASE, MIB};
		cr_assert_eq(gpu_space_add(space, &handle, RIG_BASE, -1, NULL, &err), 0);
		struct gpu_request hash = rig_hash(&span);
		cr_assert_eq(rig_carry(&hash), 0, "%s", hash.text);
		gpu_space_release(space);
		rig_wait_until(rig_no_imports, gpus);
		cr_assert_eq(step->met, 1);
		cr_assert_eq(rig_status(gpus).kills, 1, "%zu", i);
		gpus_free(gpus);
		script_free(script);
	}
}

/* The process has it then, and would not make it a second time. */
Test(gpus_own, the_agent__has_no_room_for_its_descriptor__there_is_none)
{
	static int fds[1024];
	unsigned count = 0;
	struct rlimit limit, low = {0};
	struct script *script = script_new();
	script_add(script, GPU_OPEN, SCRIPT_WAIT, 0, 1);
	begin(script);
	struct gpu_space *own = own_new(OWN_BYTES);
	while (script->messages[GPU_OPEN] == 0)
		usleep(500);
	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	low = (struct rlimit){.rlim_cur = TH_ARRAY_LEN(fds), .rlim_max = limit.rlim_max};
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
	while (count < TH_ARRAY_LEN(fds) && (fds[count] = dup(0)) >= 0)
		count++;
	script->go = 1;
	int rc = rig_settle(own, &err);
	while (count > 0)
		close(fds[--count]);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	cr_assert_eq(rc, TH_E_MEMORY_KIND);
	cr_assert(strstr(err.text, "LimitNOFILE"), "%s", err.text);
	cr_assert_eq(rig_settle(own, &err), TH_E_MEMORY_KIND);
	cr_assert(strstr(err.text, "LimitNOFILE"), "%s", err.text);
	gpu_space_release(own);
	while (script->messages[GPU_LEAVE] == 0) /* it is given back */
		usleep(500);
	struct gpu_status status = rig_status(gpus);
	cr_assert_eq(status.kills + status.ends, 0, "%s", status.text);
	gpus_free(gpus);
	script_free(script);
}

Test(gpus_own, a_process__that_ends_each_time__there_is_none)
{
	struct script *script = script_new();
	script_add(script, GPU_OPEN, SCRIPT_DIE, 0, 1000);
	begin(script);
	struct gpu_space *own = own_new(OWN_BYTES);
	cr_assert_eq(rig_settle(own, &err), TH_E_MEMORY_KIND);
	cr_assert_eq(script->lives, 3);
	gpu_space_release(own);
	gpus_free(gpus);
	script_free(script);
}
