/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_helper_faults_test - the process of one GPU when something is wrong: a driver that fails or
 * hangs, a GPU that is lost, and its end at every step.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "tests/support/cuda/helper_rig.h"
#include "transport/cuda/helper/helper.h"
#include "transport/hash/digest.h"

#define MIB ((uint64_t)1 << 20)
#define WORKER 7u
#define OTHER 8u
#define ALL UINT64_MAX
#define WAIT_NS INT64_C(60000000000)

static struct machine machine;
static struct rig rig;
static struct rig_worker worker, other;
static const struct gpu_range range = {WORKER, 0, 0, MIB};
static const struct gpu_range others = {OTHER, 0, 0, MIB};

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

/* With a worker of this kind, whose one piece is open. */
static void
begin(enum cuda_kind kind)
{
	rig_start(&rig, &machine, 0);
	worker = rig_worker_new(kind, 0, 1);
	rig_worker_fill(&worker, 0, 1);
	rig_worker_open(&worker, &rig, WORKER);
}

static void
expect_free(void)
{
	rig_worker_kill(&worker);
	cr_assert_eq(machine_used(&machine, 0), 0);
}

static void
expect_end(int status)
{
	rig_hear_end(&rig, 0);
	cr_assert_eq(rig_end(&rig), status);
}

static void
wait_met(int plan)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	int64_t limit = th_now_ns() + WAIT_NS;
	while (machine_met(&machine, plan) == 0) {
		cr_assert_lt(th_now_ns(), limit, "nobody makes the call");
		nanosleep(&pause, NULL);
	}
}

/* ---- it does not begin ---------------------------------------------------------------------- */

static struct gpu_ready
start(const void *uuid)
{
	struct gpu_start message = {.kind = GPU_START};
	struct gpu_ready ready;
	memcpy(message.uuid, uuid, sizeof(message.uuid));
	rig_launch(&rig);
	rig_send(&rig, &message, sizeof(message), -1);
	rig_hear(&rig, GPU_READY, &ready, sizeof(ready));
	return ready;
}

static void
refused(const void *uuid, int code, const char *words)
{
	struct gpu_ready ready = start(uuid);
	cr_assert_eq(ready.code, code, "%d: %s", ready.code, ready.text);
	cr_assert(strstr(ready.text, words), "%s", ready.text);
	expect_end(1);
	cr_assert_eq(machine_used(&machine, 0), 0);
}

Test(gpu_helper_faults, start__no_context__says_why_and_ends, .init = setup, .fini = teardown)
{
	const char none[16] = "another host's..";
	const void *uuid = &machine.page->devices[0].uuid;
	refused(none, TH_E_NOT_AVAILABLE, "none of the 2 GPUs");
	int plan = machine_plan(
		&machine, FAULT_RESULT, 0, CALL_cuInit, 0, CUDA_ERROR_SYSTEM_NOT_READY);
	refused(uuid, TH_E_MEMORY_KIND, "cuInit says CUDA_ERROR_SYSTEM_NOT_READY");
	machine_lift(&machine, plan);
	/* Of that GPU or of another one: nobody can say that there is none. */
	plan = machine_plan(
		&machine, FAULT_RESULT, 0, CALL_cuDeviceGetUuid, 0, CUDA_ERROR_SYSTEM_NOT_READY);
	refused(uuid, TH_E_MEMORY_KIND, "cuDeviceGetUuid says CUDA_ERROR_SYSTEM_NOT_READY");
	machine_lift(&machine, plan);
	plan = machine_plan(&machine, FAULT_RESULT, 0, CALL_cuDevicePrimaryCtxRetain, 0,
		CUDA_ERROR_OUT_OF_MEMORY);
	refused(uuid, -ENOMEM, "has no room for the agent's context");
	machine_lift(&machine, plan);
	machine.page->devices[0].compute_mode = CU_COMPUTEMODE_PROHIBITED;
	refused(uuid, TH_E_MEMORY_KIND, "compute mode");
}

Test(gpu_helper_faults, start__gpu_for_one_process__says_so, .init = setup, .fini = teardown)
{
	machine.page->devices[0].compute_mode = CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
	worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	struct gpu_ready ready = start(&machine.page->devices[0].uuid);
	cr_assert_eq(ready.code, TH_E_MEMORY_KIND, "%d: %s", ready.code, ready.text);
	cr_assert(strstr(ready.text, "nvidia-smi -c DEFAULT"), "%s", ready.text);
	expect_end(1);
	rig_worker_end(&worker);
	ready = start(&machine.page->devices[0].uuid);
	cr_assert_eq(ready.code, 0, "%s", ready.text);
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
}

Test(gpu_helper_faults, start__two_of_one_host__know_their_gpu, .init = setup, .fini = teardown)
{
	struct gpu_ready ready = start(&machine.page->devices[1].uuid);
	cr_assert_eq(ready.code, 0, "%s", ready.text);
	cr_assert_str_eq(ready.name, machine.page->devices[1].name);
	cr_assert_str_eq(ready.pci, machine.page->devices[1].pci);
	cr_assert_eq(ready.context_bytes, machine.page->devices[1].context_bytes);
	cr_assert_eq(machine_used(&machine, 0), 0, "no context on another GPU");
	cr_assert_eq(machine_used(&machine, 1), machine.page->devices[1].context_bytes);
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
	cr_assert_eq(machine_used(&machine, 1), 0);
}

/* With its socket, and no room for anything else. */
static void
be_without_descriptors(int sock, int errors)
{
	const struct rlimit none = {5, 5};
	(void)dup2(sock, 3);
	(void)dup2(errors, STDERR_FILENO);
	closefrom(4);
	(void)open("/dev/null", O_RDONLY);
	(void)setrlimit(RLIMIT_NOFILE, &none);
	_exit(gpu_helper_main(3));
}

Test(gpu_helper_faults, start__no_descriptors__says_why_and_ends, .init = setup, .fini = teardown)
{
	int socks[2], errors[2], status = 0;
	char said[256] = "";
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, socks), 0);
	cr_assert_eq(pipe2(errors, O_CLOEXEC), 0);
	pid_t pid = fork();
	if (pid == 0)
		be_without_descriptors(socks[1], errors[1]);
	close(errors[1]);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	cr_assert_gt(read(errors[0], said, sizeof(said) - 1), 0);
	cr_assert(strstr(said, "eventfd"), "%s", said);
}

/* ---- a driver that fails -------------------------------------------------------------------- */

Test(gpu_helper_faults, area__not_pinned__serves_and_says_so, .init = setup, .fini = teardown)
{
	struct gpu_area_is is;
	begin(CUDA_KIND_LEGACY);
	machine_plan(&machine, FAULT_RESULT, rig.pid, CALL_cuMemHostRegister, 0,
		CUDA_ERROR_NOT_SUPPORTED);
	cr_assert_eq(rig_area(&rig, 0, 0, -1, &is), 0);
	cr_assert_eq(rig_area(&rig, 0, RIG_AREA_BYTES, rig.area_fd, &is), 0);
	cr_assert_eq(is.pinned, 0);
	cr_assert(strstr(is.text, "CUDA_ERROR_NOT_SUPPORTED"), "%s", is.text);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
	cr_assert_eq(rig_done(&rig).code, 0);
	cr_assert_eq(rig.area[MIB - 1], rig_byte(1, MIB - 1));
	rig_run(&rig, GPU_HASH, 0, NULL, 0, &range, 1, true);
	struct th_hash digest = rig_done(&rig).digests[0], own = digest_of(rig.area, MIB);
	cr_assert_eq(memcmp(&digest, &own, sizeof(own)), 0);
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
	expect_free();
}

static uint64_t
mapped_bytes(void)
{
	char path[64];
	unsigned long long pages = 0;
	snprintf(path, sizeof(path), "/proc/%d/statm", (int)rig.pid);
	FILE *file = fopen(path, "re");
	cr_assert(file && fscanf(file, "%llu", &pages) == 1);
	(void)fclose(file);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static unsigned
num_descriptors(void)
{
	char path[64];
	unsigned count = 0;
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)rig.pid);
	DIR *folder = opendir(path);
	cr_assert(folder);
	while (readdir(folder))
		count++;
	(void)closedir(folder);
	return count;
}

/* Area 1 is not there, as a run that waits for it and one that comes later are told; area 0 is. */
static void
refuse_area(enum __rlimit_resource kind, rlim_t limit, int code, const char *words)
{
	const struct gpu_area area = {.kind = GPU_AREA, .area = 1, .bytes = RIG_AREA_BYTES};
	struct gpu_area_is is;
	struct rlimit before;
	unsigned descriptors = num_descriptors();
	cr_assert_eq(prlimit(rig.pid, kind, NULL, &before), 0);
	const struct rlimit less = {limit, before.rlim_max};
	cr_assert_eq(prlimit(rig.pid, kind, &less, NULL), 0);
	rig.run_area = 1;
	rig_send(&rig, &area, sizeof(area), rig.area_fd);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
	rig_hear(&rig, GPU_AREA_IS, &is, sizeof(is));
	cr_assert(is.area == 1 && is.code == code && is.pinned == 0, "%d: %s", is.code, is.text);
	cr_assert(strstr(is.text, words), "%s", is.text);
	for (int i = 0; i < 2; i++) {
		struct gpu_done done = rig_done(&rig);
		cr_assert_eq(done.code, TH_E_MEMORY_KIND, "%s", done.text);
		cr_assert_str_eq(done.text, is.text);
		if (i == 0)
			rig_run(&rig, GPU_WRITE, 0, &range, 1, NULL, 0, false);
	}
	rig.run_area = 0;
	rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
	cr_assert_eq(rig_done(&rig).code, 0);
	cr_assert_eq(rig_area(&rig, 1, 0, -1, &is), 0, "it is forgotten as any other");
	cr_assert_eq(prlimit(rig.pid, kind, &before, NULL), 0);
	cr_assert_eq(num_descriptors(), descriptors);
}

Test(gpu_helper_faults, area__not_mapped__fails_its_runs_and_no_others, .init = setup,
	.fini = teardown)
{
	struct gpu_area_is is;
	begin(CUDA_KIND_LEGACY);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
	cr_assert_eq(rig_done(&rig).code, 0); /* its threads are there */
	refuse_area(RLIMIT_AS, mapped_bytes() + RIG_AREA_BYTES / 2, -ENOMEM,
		"cannot map 4MiB of the agent's memory: Cannot allocate memory; raise ");
	refuse_area(RLIMIT_NOFILE, 3, TH_E_LIMIT, "raise its limit (LimitNOFILE=)");
	rig.run_area = 1;
	cr_assert_eq(rig_area(&rig, 1, RIG_AREA_BYTES, rig.area_fd, &is), 0, "%s", is.text);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
	cr_assert_eq(rig_done(&rig).code, 0);
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
	expect_free();
}

Test(gpu_helper_faults, run__call_is_refused__only_that_one_fails, .init = setup, .fini = teardown)
{
	begin(CUDA_KIND_CHUNK);
	int plan = machine_plan(&machine, FAULT_RESULT, rig.pid, CALL_cuMemcpyDtoHAsync, 0,
		CUDA_ERROR_INVALID_VALUE);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
	struct gpu_done done = rig_done(&rig);
	cr_assert_eq(done.code, -EIO);
	cr_assert(strstr(done.text, "cuMemcpyDtoHAsync says CUDA_ERROR_INVALID_VALUE"), "%s",
		done.text);
	machine_lift(&machine, plan);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
	cr_assert_eq(rig_done(&rig).code, 0);
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
	expect_free();
}

Test(gpu_helper_faults, run__lane_that_cannot_begin__names_the_call, .init = setup,
	.fini = teardown)
{
	static const struct {
		int call;
		const char *words;
	} calls[] = {{CALL_cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange says"},
		{CALL_cuStreamCreateWithPriority, "cuStreamCreateWithPriority says"},
		{CALL_cuEventCreate, "cuEventCreate says"}};
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		begin(CUDA_KIND_LEGACY);
		machine_plan(&machine, FAULT_RESULT, rig.pid, calls[i].call, 0,
			CUDA_ERROR_OUT_OF_MEMORY);
		rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
		struct gpu_done done = rig_done(&rig);
		cr_assert_eq(done.code, -EIO);
		cr_assert(strstr(done.text, calls[i].words), "%s", done.text);
		expect_end(3);
		expect_free();
	}
}

Test(gpu_helper_faults, run__gpu_fails__is_told_and_the_process_ends, .init = setup,
	.fini = teardown)
{
	begin(CUDA_KIND_POOL);
	machine_plan(&machine, FAULT_RESULT, rig.pid, CALL_STREAM, 0, CUDA_ERROR_ILLEGAL_ADDRESS);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
	struct gpu_done done = rig_done(&rig);
	cr_assert_eq(done.code, -EIO);
	cr_assert(strstr(done.text, "CUDA_ERROR_ILLEGAL_ADDRESS"), "%s", done.text);
	expect_end(3);
	expect_free();
}

Test(gpu_helper_faults, gpu__lost__whoever_asks_next_hears_so, .init = setup, .fini = teardown)
{
	struct gpu_done done;
	begin(CUDA_KIND_LEGACY);
	machine_lose(&machine, 0, CUDA_ERROR_UNKNOWN);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
	done = rig_done(&rig);
	cr_assert_eq(done.code, -EIO, "%s", done.text);
	expect_end(3);
	rig_worker_kill(&worker);
}

Test(gpu_helper_faults, open__gpu_lost__is_not_the_workers_fault, .init = setup, .fini = teardown)
{
	rig_start(&rig, &machine, 0);
	worker = rig_worker_new(CUDA_KIND_CHUNK, 0, 1);
	machine_lose(&machine, 0, CUDA_ERROR_UNKNOWN);
	struct gpu_opened opened =
		rig_open(&rig, WORKER, 0, &worker.handles[0], th_fd_move(&worker.fds[0]));
	cr_assert_eq(opened.code, -EIO, "%s", opened.text);
	expect_end(3);
	rig_worker_kill(&worker);
}

Test(gpu_helper_faults, leave__driver_keeps_it__is_told, .init = setup, .fini = teardown)
{
	begin(CUDA_KIND_CHUNK);
	machine_plan(&machine, FAULT_RESULT, rig.pid, CALL_cuMemUnmap, 0, CUDA_ERROR_UNKNOWN);
	struct gpu_left left = rig_leave(&rig, WORKER, ALL);
	cr_assert_eq(left.code, TH_E_MEMORY_KIND);
	cr_assert(strstr(left.text, "CUDA_ERROR_UNKNOWN"), "%s", left.text);
	rig_kill(&rig);
	expect_free();
}

/* The agent would give its pages to somebody else, whom the GPU still reaches. */
Test(gpu_helper_faults, area__driver_keeps_it_pinned__is_the_end, .init = setup, .fini = teardown)
{
	const struct gpu_area forget = {.kind = GPU_AREA};
	begin(CUDA_KIND_CHUNK);
	machine_plan(&machine, FAULT_RESULT, rig.pid, CALL_cuMemHostUnregister, 0,
		CUDA_ERROR_INVALID_VALUE);
	rig_send(&rig, &forget, sizeof(forget), -1);
	rig_hear_end(&rig, GPU_DONE); /* not a word of it */
	cr_assert_eq(rig_end(&rig), 3);
	expect_free();
}

/* ---- a driver that hangs -------------------------------------------------------------------- */

/* What hangs holds up only itself. */
static void
others_go_on(int call)
{
	rig_run(&rig, GPU_WRITE, 0, &others, 1, NULL, 0, false);
	struct gpu_done done = rig_done(&rig);
	cr_assert_eq(done.code, 0, "%d: %s", call, done.text);
}

Test(gpu_helper_faults, open_and_close__hang__others_go_on, .init = setup, .fini = teardown)
{
	struct gpu_left left;
	struct gpu_opened opened;
	const struct gpu_leave leave = {.kind = GPU_LEAVE, .worker = WORKER, .piece = ALL};
	begin(CUDA_KIND_CHUNK);
	other = rig_worker_new(CUDA_KIND_LEGACY, 0, 2);
	const struct gpu_open open = {
		.kind = GPU_OPEN, .worker = OTHER, .piece = 1, .handle = other.handles[1]};
	cr_assert_eq(rig_open(&rig, OTHER, 0, &other.handles[0], -1).code, 0);
	int plan = machine_plan(&machine, FAULT_HANG, rig.pid, CALL_cuMemUnmap, 0, 0);
	rig_send(&rig, &leave, sizeof(leave), -1);
	wait_met(plan);
	others_go_on(CALL_cuMemUnmap);
	int plan2 = machine_plan(&machine, FAULT_HANG, rig.pid, CALL_cuIpcOpenMemHandle, 0, 0);
	rig_send(&rig, &open, sizeof(open), -1);
	wait_met(plan2);
	others_go_on(CALL_cuIpcOpenMemHandle);
	/* What needs it waits for it. */
	const struct gpu_range second = {OTHER, 1, 0, 4096};
	rig_run(&rig, GPU_READ, 0, NULL, 0, &second, 1, false);
	rig_hear_nothing(&rig, 50);
	machine_lift(&machine, plan2);
	rig_hear(&rig, GPU_OPENED, &opened, sizeof(opened));
	cr_assert_eq(opened.code, 0, "%s", opened.text);
	cr_assert_eq(rig_done(&rig).code, 0);
	machine_lift(&machine, plan);
	rig_hear(&rig, GPU_LEFT, &left, sizeof(left));
	cr_assert_eq(left.code, 0);
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
	rig_worker_kill(&other);
	expect_free();
}

Test(gpu_helper_faults, one_direction__hangs__the_others_go_on, .init = setup, .fini = teardown)
{
	begin(CUDA_KIND_CHUNK);
	int plan = machine_plan(&machine, FAULT_HANG, rig.pid, CALL_cuMemcpyDtoHAsync, 0, 0);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
	wait_met(plan);
	rig_run(&rig, GPU_WRITE, 0, &range, 1, NULL, 0, false);
	cr_assert_eq(rig_done(&rig).code, 0);
	/* The socket's end is the end, whatever hangs. */
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
	machine_lift(&machine, plan);
	expect_free();
}

/* The agent may say a piece again as soon as it hears that it failed, whoever waits with it. */
Test(gpu_helper_faults, open__failed_under_runs_that_wait__is_said_again, .init = setup,
	.fini = teardown)
{
	const struct gpu_area area = {.kind = GPU_AREA, .bytes = RIG_AREA_BYTES};
	struct gpu_open opens[3];
	struct gpu_opened opened;
	struct gpu_area_is is;
	begin(CUDA_KIND_LEGACY);
	other = rig_worker_new(CUDA_KIND_LEGACY, 0, 3);
	for (uint32_t i = 0; i < 3; i++)
		opens[i] = (struct gpu_open){
			.kind = GPU_OPEN, .worker = OTHER, .piece = i, .handle = other.handles[i]};
	cr_assert_eq(rig_area(&rig, 0, 0, -1, &is), 0);
	int open = machine_plan(&machine, FAULT_HANG, rig.pid, CALL_cuIpcOpenMemHandle, 0, 0);
	int fail = machine_plan(&machine, FAULT_RESULT, rig.pid, CALL_cuIpcOpenMemHandle, 0,
		CUDA_ERROR_INVALID_VALUE);
	int pin = machine_plan(&machine, FAULT_HANG, rig.pid, CALL_cuMemHostRegister, 0, 0);
	rig_send(&rig, &opens[0], sizeof(opens[0]), -1);
	rig_send(&rig, &opens[1], sizeof(opens[1]), -1);
	rig_send(&rig, &area, sizeof(area), rig.area_fd);
	rig_send(&rig, &opens[2], sizeof(opens[2]), -1);
	/* One waits for the area, the other for the third piece; both have the second. */
	const struct gpu_range both[2] = {{OTHER, 2, 0, MIB}, {OTHER, 1, 0, MIB}};
	rig_run(&rig, GPU_READ, 0, NULL, 0, &both[1], 1, false);
	rig_run(&rig, GPU_HASH, 0, NULL, 0, both, 2, true);
	rig_leave(&rig, OTHER, 3); /* of which there is nothing: it has taken all that */
	wait_met(open);
	machine_lift(&machine, open);
	rig_hear(&rig, GPU_OPENED, &opened, sizeof(opened));
	cr_assert_eq(opened.code, 0, "%s", opened.text);
	rig_hear(&rig, GPU_OPENED, &opened, sizeof(opened));
	cr_assert(opened.piece == 1 && opened.code != 0, "%d: %s", opened.code, opened.text);
	machine_lift(&machine, fail);
	rig_send(&rig, &opens[1], sizeof(opens[1]), -1);
	cr_assert_eq(rig_done(&rig).code, TH_E_STALE_MEMORY);
	cr_assert_eq(rig_done(&rig).code, TH_E_STALE_MEMORY);
	machine_lift(&machine, pin);
	rig_hear(&rig, GPU_AREA_IS, &is, sizeof(is));
	for (uint32_t i = 0; i < 2; i++) {
		rig_hear(&rig, GPU_OPENED, &opened, sizeof(opened));
		cr_assert(opened.piece == 2 - i && opened.code == 0, "%s", opened.text);
	}
	rig_run(&rig, GPU_HASH, 0, NULL, 0, both, 2, true);
	cr_assert_eq(rig_done(&rig).code, 0);
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
	rig_worker_kill(&other);
	expect_free();
}

/* ---- killed --------------------------------------------------------------------------------- */

/* All calls that it makes for this kind but those that only ask. */
struct steps {
	enum cuda_kind kind;
	int calls[32]; /* as many as are not 0 */
};
static const struct steps steps[] = {
	{CUDA_KIND_CHUNK,
		{CALL_cuDevicePrimaryCtxSetFlags, CALL_cuDevicePrimaryCtxRetain,
			CALL_cuModuleLoadData, CALL_cuModuleGetFunction, CALL_cuMemHostRegister,
			CALL_cuMemHostGetDevicePointer, CALL_cuMemImportFromShareableHandle,
			CALL_cuMemAddressReserve, CALL_cuMemMap, CALL_cuMemSetAccess,
			CALL_cuMemRelease, CALL_cuMemCreate, CALL_cuMemsetD8,
			CALL_cuMemGetHandleForAddressRange, CALL_cuStreamCreateWithPriority,
			CALL_cuEventCreate, CALL_cuMemcpyDtoHAsync, CALL_cuMemcpyHtoDAsync,
			CALL_cuMemcpyDtoDAsync, CALL_cuLaunchKernel, CALL_STREAM,
			CALL_cuEventRecord, CALL_cuEventSynchronize, CALL_cuMemUnmap,
			CALL_cuMemAddressFree, CALL_cuMemHostUnregister}},
	{CUDA_KIND_LEGACY,
		{CALL_cuIpcOpenMemHandle, CALL_cuMemGetAddressRange, CALL_cuIpcCloseMemHandle}},
	{CUDA_KIND_POOL, {CALL_cuMemPoolImportFromShareableHandle, CALL_cuMemPoolImportPointer,
				 CALL_cuMemFree, CALL_cuMemPoolDestroy}},
};

/* Everything an agent asks for, at once. */
static void
ask_everything(void)
{
	struct gpu_start first = {.kind = GPU_START};
	const struct gpu_area area = {.kind = GPU_AREA, .bytes = RIG_AREA_BYTES};
	const struct gpu_area forget = {.kind = GPU_AREA};
	const struct gpu_open open = {
		.kind = GPU_OPEN, .worker = WORKER, .handle = worker.handles[0]};
	const struct gpu_open own = {
		.kind = GPU_OPEN, .own = 1, .worker = OTHER, .handle.bytes = MACHINE_GRANULARITY};
	struct gpu_leave leave = {.kind = GPU_LEAVE, .worker = WORKER, .piece = ALL};
	const struct gpu_range second = {WORKER, 0, MIB, MIB};
	memcpy(first.uuid, machine.page->devices[0].uuid.bytes, sizeof(first.uuid));
	rig_launch(&rig);
	rig_send(&rig, &first, sizeof(first), -1);
	rig_send(&rig, &area, sizeof(area), rig.area_fd);
	rig_send(&rig, &open, sizeof(open), worker.fds[0]);
	rig_send(&rig, &own, sizeof(own), -1);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &range, 1, false);
	rig_run(&rig, GPU_WRITE, 0, &range, 1, NULL, 0, false);
	rig_run(&rig, GPU_COPY, 0, &others, 1, &range, 1, false);
	rig_run(&rig, GPU_COPY, 0, &second, 1, &others, 1, true);
	rig_run(&rig, GPU_HASH, 0, NULL, 0, &range, 1, true);
	rig_send(&rig, &leave, sizeof(leave), -1);
	leave.worker = OTHER;
	rig_send(&rig, &leave, sizeof(leave), -1);
	rig_send(&rig, &forget, sizeof(forget), -1);
}

Test(gpu_helper_faults, killed__at_every_step__leaves_no_memory, .init = setup, .fini = teardown)
{
	for (size_t k = 0; k < sizeof(steps) / sizeof(steps[0]); k++) {
		worker = rig_worker_new(steps[k].kind, 0, 1);
		uint64_t used = machine_used(&machine, 0);
		for (const int *call = steps[k].calls; *call != 0; call++) {
			int plan = machine_plan(&machine, FAULT_HANG, 0, *call, 0, 0);
			ask_everything();
			wait_met(plan);
			rig_kill(&rig);
			machine_lift(&machine, plan);
			cr_assert_eq(machine_used(&machine, 0), used, "%d", *call);
		}
		expect_free();
	}
}

Test(gpu_helper_faults, unharmed__does_all_of_it, .init = setup, .fini = teardown)
{
	uint32_t kinds[GPU_DONE + 1] = {0};
	worker = rig_worker_new(CUDA_KIND_CHUNK, 0, 1);
	ask_everything();
	for (int i = 0; i < 12; i++) {
		char message[1024];
		uint32_t kind = 0;
		cr_assert_gt(recv(rig.sock, message, sizeof(message), 0), 8);
		memcpy(&kind, message, sizeof(kind));
		cr_assert_leq(kind, GPU_DONE);
		kinds[kind]++;
	}
	cr_assert(kinds[GPU_READY] == 1 && kinds[GPU_AREA_IS] == 2 && kinds[GPU_OPENED] == 2 &&
		  kinds[GPU_DONE] == 5 && kinds[GPU_LEFT] == 2);
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
	expect_free();
}
