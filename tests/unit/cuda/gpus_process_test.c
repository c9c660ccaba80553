/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpus_process_test - gpus.h over the real process of a GPU: memory of every kind, and what
 * the driver, the kernel and workers do to it.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "tests/support/cuda/gpus_rig.h"
#include "tests/support/cuda/helper_rig.h"
#include "transport/hash/digest.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define MS INT64_C(1000000)
#define CONTEXT_BYTES (machine.page->devices[0].context_bytes)

static struct machine machine;
static struct gpus *gpus;
static struct th_err err;
static int last_process = -1; /* a pidfd of what was launched last: a number may be another's */

static int
launch(void *arg, int sock, pid_t *ret_pid, struct th_err *ret_err)
{
	int rc = rig_launch_on(arg, sock, ret_pid, ret_err);
	int pidfd = rc < 0 ? -1 : (int)syscall(SYS_pidfd_open, *ret_pid, 0);
	int before = __atomic_exchange_n(&last_process, pidfd, __ATOMIC_ACQ_REL);
	th_fd_close(&before);
	return rc;
}

static void
begin(int64_t hang_ns, int64_t leave_ns, int64_t idle_ns)
{
	const struct gpus_config config = {.launch = launch,
		.staging_bytes = 8 * MIB,
		.hang_ns = hang_ns,
		.leave_ns = leave_ns,
		.idle_ns = idle_ns};
	TH_ASSERT(gpus_new(&config, &err, &gpus) == 0);
}

static void
set_up(void)
{
	log_set_level(LOG_LEVEL_ERROR);
	machine_new(&machine, 2, 64 * MIB);
}

static void
tear_down(void)
{
	gpus_free(gpus);
	machine_remove(&machine);
	th_fd_close(&last_process);
}

TestSuite(gpus_process, .init = set_up, .fini = tear_down, .timeout = 120);

/* The worker's pieces, one behind the other from RIG_BASE. */
static struct gpu_space *
share(struct rig_worker *worker)
{
	struct gpu_space *space = gpu_space_new(gpus, worker->handles[0].uuid, "m/r/0", &err);
	cr_assert(space, "%s", err.text);
	for (uint32_t i = 0; i < worker->num_pieces; i++) {
		int rc = gpu_space_add(space, &worker->handles[i], RIG_BASE + i * RIG_PIECE_BYTES,
			th_fd_move(&worker->fds[i]), NULL, &err);
		cr_assert_eq(rc, 0, "%s", err.text);
	}
	return space;
}

/* Nobody but the processes of GPUs that have a context has any of it. */
static bool
is_free(int device)
{
	struct gpu_status status[2];
	uint64_t contexts = 0;
	uint32_t count = gpus_status(gpus, status, 2);
	for (uint32_t i = 0; i < count; i++)
		contexts += status[i].pid != 0;
	return machine_used(&machine, device) <= contexts * CONTEXT_BYTES;
}

static void
wait_until_free(int device)
{
	int64_t until_ns = th_now_ns() + RIG_PATIENCE_NS;
	while (!is_free(device)) {
		cr_assert_lt(th_now_ns(), until_ns, "the GPU's memory is not free");
		usleep(1000);
	}
}

/* ---- all goes well ------------------------------------------------------------------------- */

static void
use(enum cuda_kind kind)
{
	static uint8_t expected[400 * KIB];
	struct rig_worker worker = rig_worker_new(kind, 0, 3);
	struct gpu_space *space = share(&worker);
	uint8_t *data = gpus_block_take(gpus, NULL);
	const uint64_t at = RIG_PIECE_BYTES - 100 * KIB;
	struct gpu_span from = {space, RIG_BASE + at, sizeof(expected)};
	struct gpu_span to = {space, RIG_BASE + 2 * RIG_PIECE_BYTES, sizeof(expected)};
	rig_worker_fill(&worker, 0, 1);
	rig_worker_fill(&worker, 1, 2);
	for (uint64_t i = 0; i < sizeof(expected); i++)
		expected[i] = i < 100 * KIB ? rig_byte(1, at + i) : rig_byte(2, i - 100 * KIB);
	struct th_hash digest = digest_of(expected, sizeof(expected));
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	struct gpu_request read = rig_read(&from, data);
	cr_assert_eq(rig_carry(&read), 0, "%s", read.text);
	cr_assert_arr_eq(data, expected, sizeof(expected));
	struct gpu_request hash = rig_hash(&from);
	cr_assert_eq(rig_carry(&hash), 0, "%s", hash.text);
	cr_assert(rig_same(hash.digest, digest));
	struct gpu_request copy = rig_copy(&to, &from);
	cr_assert_eq(rig_carry(&copy), 0, "%s", copy.text);
	cr_assert(rig_same(copy.digest, digest));
	cr_assert(rig_same(rig_worker_digest(&worker, 2, 0, sizeof(expected)), digest));
	memset(data, 0x77, sizeof(expected));
	struct gpu_request write = rig_write(&to, data);
	cr_assert_eq(rig_carry(&write), 0, "%s", write.text);
	cr_assert(rig_same(rig_worker_digest(&worker, 2, 0, sizeof(expected)),
		digest_of(data, sizeof(expected))));
	gpus_block_give(gpus, data);
	rig_worker_kill(&worker);
	/* What is read stays, whatever becomes of its worker. */
	hash = rig_hash(&from);
	cr_assert_eq(rig_carry(&hash), 0, "%s", hash.text);
	cr_assert(rig_same(hash.digest, digest));
	cr_assert_geq(machine_used(&machine, 0), 3 * RIG_PIECE_BYTES);
	gpu_space_release(space);
	wait_until_free(0);
	/* The next worker is forked, and would have the socket of this process. */
	rig_wait_until(rig_no_process, gpus);
	struct gpu_status status = rig_status(gpus);
	cr_assert_eq(status.kills + status.ends, 0, "%s", status.text);
}

Test(gpus_process, memory__of_every_kind__is_moved_hashed_and_given_back)
{
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, 1);
	use(CUDA_KIND_LEGACY);
	use(CUDA_KIND_CHUNK);
	use(CUDA_KIND_CHUNKS);
	use(CUDA_KIND_POOL);
	cr_assert_eq(machine_used(&machine, 0), 0);
}

static char copy_text[2 * GPU_TEXT_BYTES];

static int
copy_across(enum cuda_kind kind)
{
	struct rig_worker workers[2] = {rig_worker_new(kind, 0, 1), rig_worker_new(kind, 1, 1)};
	struct gpu_space *spaces[2] = {share(&workers[0]), share(&workers[1])};
	struct gpu_span from = {spaces[0], RIG_BASE, MIB}, to = {spaces[1], RIG_BASE, MIB};
	rig_worker_fill(&workers[0], 0, 9);
	rig_worker_fill(&workers[1], 0, 3);
	struct gpu_request copy = rig_copy(&to, &from);
	int rc = rig_carry(&copy);
	struct th_hash digest = rig_worker_digest(&workers[0], 0, 0, MIB);
	if (rc == 0) {
		cr_assert(rig_same(rig_worker_digest(&workers[1], 0, 0, MIB), digest));
		cr_assert(rig_same(copy.digest, digest));
	} else {
		cr_assert(copy.text[0]);
		snprintf(copy_text, sizeof(copy_text), "%d %s", rc, copy.text);
	}
	for (unsigned i = 0; i < 2; i++) {
		gpu_space_release(spaces[i]);
		rig_worker_end(&workers[i]);
	}
	wait_until_free(0);
	wait_until_free(1);
	return rc;
}

Test(gpus_process, a_copy__between_gpus_that_reach_each_other__is_direct)
{
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	cr_assert_eq(copy_across(CUDA_KIND_LEGACY), 0);
	cr_assert_eq(copy_across(CUDA_KIND_CHUNK), 0);
}

Test(gpus_process, a_copy__between_gpus_that_do_not__goes_another_way)
{
	machine.page->devices[0].peers = 1u << 0;
	machine.page->devices[1].peers = 1u << 1;
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	cr_assert_eq(copy_across(CUDA_KIND_LEGACY), TH_E_MEMORY_KIND, "%s", copy_text);
	cr_assert_eq(copy_across(CUDA_KIND_CHUNK), TH_E_MEMORY_KIND);
}

/* ---- and does not -------------------------------------------------------------------------- */

/* Reads until told to stop; every one of them must be right. */
static unsigned
read_while(struct gpu_space *space, bool (*goes_on)(unsigned round))
{
	struct gpu_request requests[4];
	struct gpu_span span = {space, RIG_BASE + 1, 300 * KIB};
	unsigned round = 0;
	uint8_t *data[4];
	for (unsigned i = 0; i < 4; i++)
		data[i] = gpus_block_take(gpus, NULL);
	for (; goes_on(round); round++) {
		for (unsigned i = 0; i < 4; i++) {
			memset(data[i], 0, span.bytes);
			requests[i] = rig_read(&span, data[i]);
			requests[i].hashes = true;
			rig_submit(&requests[i]);
		}
		rig_wait(4);
		for (unsigned i = 0; i < 4; i++) {
			cr_assert_eq(requests[i].code, 0, "%s", requests[i].text);
			cr_assert_eq(data[i][span.bytes - 1], rig_byte(5, span.bytes));
			cr_assert(rig_same(requests[i].digest, digest_of(data[i], span.bytes)));
		}
	}
	for (unsigned i = 0; i < 4; i++)
		gpus_block_give(gpus, data[i]);
	return round;
}

static unsigned kills;

static bool
kills_now_and_then(unsigned round)
{
	if (round % 10 == 3) {
		int pidfd = __atomic_load_n(&last_process, __ATOMIC_ACQUIRE);
		kills += syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0) == 0;
	}
	return round < 60;
}

Test(gpus_process, reads__while_the_process_is_killed__are_all_done)
{
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct rig_worker worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	struct gpu_space *space = share(&worker);
	rig_worker_fill(&worker, 0, 5);
	read_while(space, kills_now_and_then);
	struct gpu_status status = rig_status(gpus);
	cr_assert_eq(kills, 6);
	cr_assert_gt(status.ends, 0);
	cr_assert_eq(status.kills, 0);
	gpu_space_release(space);
	rig_worker_end(&worker);
	wait_until_free(0);
}

static bool
once(unsigned round)
{
	return round < 1;
}

/* The process that there is hangs in a call of the driver; the next one does not. */
Test(gpus_process, a_driver__that_hangs_while_it_copies__costs_one_process)
{
	begin(1000 * MS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct rig_worker worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	struct gpu_space *space = share(&worker);
	rig_worker_fill(&worker, 0, 5);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	int plan = machine_plan(&machine, FAULT_HANG, rig_status(gpus).pid, CALL_cuMemcpyDtoHAsync,
		0, CUDA_SUCCESS);
	read_while(space, once);
	cr_assert_geq(machine_met(&machine, plan), 1);
	cr_assert_geq(rig_status(gpus).kills, 1);
	gpu_space_release(space);
	rig_worker_end(&worker);
	wait_until_free(0);
}

static void
die_while_it_closes(enum cuda_kind kind, int call)
{
	struct rig_worker worker = rig_worker_new(kind, 0, 2);
	struct gpu_space *space = share(&worker);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	uint64_t before = rig_status(gpus).kills;
	machine_plan(&machine, FAULT_HANG, rig_status(gpus).pid, call, 0, CUDA_SUCCESS);
	rig_worker_kill(&worker);
	int64_t since_ns = th_now_ns();
	gpu_space_release(space);
	wait_until_free(0);
	/* 0.8 s, and what a busy machine adds. */
	cr_assert_lt(th_now_ns() - since_ns, 10000 * MS);
	rig_wait_until(rig_no_process, gpus);
	struct gpu_status status = rig_status(gpus);
	cr_assert_eq(status.kills, before + 1, "%d: %s", call, status.text);
}

Test(gpus_process, a_dead_workers_memory__that_the_driver_does_not_close__is_free_soon)
{
	begin(RIG_PATIENCE_NS, 300 * MS, RIG_PATIENCE_NS);
	die_while_it_closes(CUDA_KIND_LEGACY, CALL_cuIpcCloseMemHandle);
	die_while_it_closes(CUDA_KIND_CHUNK, CALL_cuMemUnmap);
	die_while_it_closes(CUDA_KIND_POOL, CALL_cuMemPoolDestroy);
}

Test(gpus_process, a_gpu__that_is_lost__is_told_and_no_other_is_touched)
{
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct rig_worker workers[2] = {
		rig_worker_new(CUDA_KIND_LEGACY, 0, 1), rig_worker_new(CUDA_KIND_LEGACY, 1, 1)};
	struct gpu_space *spaces[2] = {share(&workers[0]), share(&workers[1])};
	struct gpu_span spans[2] = {{spaces[0], RIG_BASE, MIB}, {spaces[1], RIG_BASE, MIB}};
	for (unsigned i = 0; i < 2; i++)
		cr_assert_eq(rig_settle(spaces[i], &err), 0, "%s", err.text);
	machine_lose(&machine, 0, CUDA_ERROR_DEVICE_UNAVAILABLE);
	struct gpu_request hash = rig_hash(&spans[0]);
	cr_assert_eq(rig_carry(&hash), TH_E_MEMORY_KIND);
	cr_assert(strstr(hash.text, "CUDA_ERROR_DEVICE_UNAVAILABLE"), "%s", hash.text);
	hash = rig_hash(&spans[1]);
	cr_assert_eq(rig_carry(&hash), 0, "%s", hash.text);
	for (unsigned i = 0; i < 2; i++) {
		gpu_space_release(spaces[i]);
		rig_worker_kill(&workers[i]);
	}
	wait_until_free(0);
	wait_until_free(1);
}

Test(gpus_process, a_gpu__without_room_for_a_context__is_told_with_its_reason)
{
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct rig_worker worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	int plan = machine_plan(&machine, FAULT_RESULT, 0, CALL_cuDevicePrimaryCtxRetain, 0,
		CUDA_ERROR_OUT_OF_MEMORY);
	struct gpu_space *space = share(&worker);
	cr_assert_eq(rig_settle(space, &err), TH_E_MEMORY_KIND);
	cr_assert(strstr(err.text, "no room"), "%s", err.text);
	machine_lift(&machine, plan);
	while (rig_settle(space, &err) < 0)
		usleep(10000);
	gpu_space_release(space);
	rig_worker_end(&worker);
	wait_until_free(0);
}

/* In as many runs as it has pages, each of them a call of the driver. */
Test(gpus_process, a_write__of_which_a_part_is_lost__has_the_digest_of_what_is_there)
{
	machine.page->devices[0].capability = 61;
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct rig_worker worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	struct gpu_space *space = share(&worker);
	struct rig_host host = rig_host_new(gpus, 20);
	struct gpu_span to = {space, RIG_BASE + 7, host.bytes};
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	memset(host.data, 0x5a, host.bytes);
	machine_plan(&machine, FAULT_IDLE, rig_status(gpus).pid, CALL_cuMemcpyHtoDAsync, 25,
		CUDA_SUCCESS);
	struct gpu_request write = rig_write(&to, host.data);
	write.host = host.host;
	write.hashes = true;
	cr_assert_eq(rig_carry(&write), 0, "%s", write.text);
	cr_assert(rig_same(write.digest, digest_of(host.data, host.bytes)));
	memset(host.data, 0x7f, host.bytes);
	cr_assert_eq(rig_carry(&write), 0, "%s", write.text);
	cr_assert(!rig_same(write.digest, digest_of(host.data, host.bytes)));
	cr_assert(rig_same(write.digest, rig_worker_digest(&worker, 0, 7, host.bytes)));
	gpus_host_release(host.host);
	rig_wait(1);
	rig_host_end(&host);
	gpu_space_release(space);
	rig_worker_end(&worker);
	wait_until_free(0);
}

static bool
has_no_table(const struct gpu_status *status)
{
	return status->hashes_on_gpu && strstr(status->hashes_why, "cuMemHostRegister says");
}

/* What the kernel needs is not there when the first digest is asked for. */
Test(gpus_process, digests__that_the_cpu_makes_after_all__have_a_reason)
{
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct rig_worker worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	struct gpu_space *space = share(&worker);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	struct gpu_span span = {space, RIG_BASE, 4096};
	struct gpu_request hash = rig_hash(&span);
	cr_assert_eq(rig_status(gpus).hashes_why[0], 0);
	machine_plan(
		&machine, FAULT_RESULT, 0, CALL_cuMemHostRegister, 0, CUDA_ERROR_OUT_OF_MEMORY);
	cr_assert_eq(rig_carry(&hash), 0, "%s", hash.text);
	cr_assert(rig_same(hash.digest, rig_worker_digest(&worker, 0, 0, 4096)));
	rig_wait_until(has_no_table, gpus);
	gpu_space_release(space);
	rig_worker_end(&worker);
	wait_until_free(0);
}

Test(gpus_process, digests__that_the_cpu_makes__have_a_reason)
{
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, 1);
	for (int capability = 61; capability <= 90; capability += 29) {
		machine.page->devices[0].capability = capability;
		struct rig_worker worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
		struct gpu_space *space = share(&worker);
		cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
		struct gpu_status status = rig_status(gpus);
		cr_assert_eq(status.hashes_on_gpu, capability == 90);
		cr_assert_eq(status.hashes_why[0] == 0, capability == 90);
		cr_assert(capability == 90 || strstr(status.hashes_why, "compute capability 6"),
			"%s", status.hashes_why);
		gpu_space_release(space);
		rig_worker_end(&worker);
		rig_wait_until(rig_no_process, gpus);
	}
}

Test(gpus_process, memory__that_its_worker_has_freed__is_told)
{
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct rig_worker worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	rig_worker_end(&worker);
	worker.fds[0] = -1;
	struct gpu_space *space = share(&worker);
	struct gpu_span span = {space, RIG_BASE, 4096};
	cr_assert_eq(rig_settle(space, &err), TH_E_MEMORY_KIND);
	struct gpu_request hash = rig_hash(&span);
	cr_assert_eq(rig_carry(&hash), TH_E_STALE_MEMORY);
	cr_assert(hash.text[0]);
	gpu_space_release(space);
	wait_until_free(0);
}

Test(gpus_process, host_memory__read_into__is_pinned_and_given_back)
{
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct rig_worker worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	struct gpu_space *space = share(&worker);
	struct rig_host host = rig_host_new(gpus, 100);
	struct gpu_span span = {space, RIG_BASE, 300 * KIB};
	rig_worker_fill(&worker, 0, 5);
	struct gpu_request read = rig_read(&span, host.data + 5 * KIB);
	read.host = host.host;
	read.hashes = true;
	cr_assert_eq(rig_carry(&read), 0, "%s", read.text);
	cr_assert_eq(read.data[300 * KIB - 1], rig_byte(5, 300 * KIB - 1));
	cr_assert(rig_same(read.digest, digest_of(read.data, 300 * KIB)));
	unsigned before = machine_calls(&machine, rig_status(gpus).pid, CALL_cuMemHostUnregister);
	gpus_host_release(host.host);
	rig_wait(1);
	cr_assert_gt(
		machine_calls(&machine, rig_status(gpus).pid, CALL_cuMemHostUnregister), before);
	cr_assert_eq(rig_status(gpus).kills, 0);
	rig_host_end(&host);
	gpu_space_release(space);
	rig_worker_end(&worker);
	wait_until_free(0);
}

static void
read_into(struct rig_host *host, struct gpu_space *space)
{
	struct gpu_span span = {space, RIG_BASE, host->bytes};
	struct gpu_request read = rig_read(&span, host->data);
	read.host = host->host;
	cr_assert_eq(rig_carry(&read), 0, "%s", read.text);
}

/* Nobody has to be killed for it. */
Test(gpus_process, a_dead_workers_memory__while_host_memory_is_unpinned__is_free_at_once)
{
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct rig_worker worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 2);
	struct gpu_space *space = share(&worker);
	struct rig_host host = rig_host_new(gpus, 40);
	read_into(&host, space);
	int plan = machine_plan(&machine, FAULT_HANG, rig_status(gpus).pid,
		CALL_cuMemHostUnregister, 3, CUDA_SUCCESS);
	gpus_host_release(host.host);
	while (machine_met(&machine, plan) == 0)
		usleep(1000);
	rig_worker_kill(&worker);
	gpu_space_release(space);
	wait_until_free(0);
	cr_assert_eq(rig_status(gpus).kills, 0);
	machine_lift(&machine, plan);
	rig_wait(1);
	rig_host_end(&host);
}

Test(gpus_process, a_dead_workers_memory__while_areas_come_and_go__is_not_kept_by_them)
{
	begin(RIG_PATIENCE_NS, 300 * MS, RIG_PATIENCE_NS);
	struct rig_worker worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	struct rig_worker other = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	struct gpu_space *space = share(&worker), *others = share(&other);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	machine_plan(&machine, FAULT_HANG, rig_status(gpus).pid, CALL_cuIpcCloseMemHandle, 0,
		CUDA_SUCCESS);
	rig_worker_kill(&worker);
	gpu_space_release(space);
	int64_t until_ns = th_now_ns() + RIG_PATIENCE_NS;
	while (rig_status(gpus).kills == 0) {
		struct rig_host host = rig_host_new(gpus, 1);
		cr_assert_lt(th_now_ns(), until_ns, "the GPU's memory is not free");
		read_into(&host, others);
		gpus_host_release(host.host);
		rig_wait(1);
		rig_host_end(&host);
	}
	gpu_space_release(others);
	rig_worker_end(&other);
	wait_until_free(0);
}
