/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_shadow_test - GPU memory that no other process can map: what a scripted agent is given in
 * its place, who copies when, and what is said of a version that is not in GPU memory yet.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "libthc/gpu_copy.h"
#include "libthc/libthc_own.h"
#include "libthc/own_memory.h"
#include "libthc/thc.h"
#include "tests/support/gpu/closed_gpu.h"
#include "tests/unit/libthc/gpu_tensor.h"

#define CHUNK CLOSED_CHUNK

/* ---- a copy that takes long ---------------------------------------------------------------- */

static int too_late; /* so many times the deadline passes */

int __real_gpu_copy_run(struct gpu_copy *copy, int64_t until_ns, gpu_copy_stop stop, void *arg,
	struct th_err *err, uint64_t *ret_at);
int __wrap_gpu_copy_run(struct gpu_copy *copy, int64_t until_ns, gpu_copy_stop stop, void *arg,
	struct th_err *err, uint64_t *ret_at);

int
__wrap_gpu_copy_run(struct gpu_copy *copy, int64_t until_ns, gpu_copy_stop stop, void *arg,
	struct th_err *err, uint64_t *ret_at)
{
	if (too_late > 0) {
		too_late--;
		return -ETIMEDOUT;
	}
	return __real_gpu_copy_run(copy, until_ns, stop, arg, err, ret_at);
}

/* ---- a child meanwhile --------------------------------------------------------------------- */

static _Thread_local bool forks; /* as the next copy is made, another thread does */
static _Atomic pid_t forker;
static _Atomic bool forked;
static pthread_t fork_thread;

static bool
forker_sleeps(void)
{
	char path[64], state = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)atomic_load(&forker));
	FILE *stat = fopen(path, "r");
	if (stat == NULL)
		return false;
	int got = fscanf(stat, "%*d (%*[^)]) %c", &state);
	fclose(stat);
	return got == 1 && state == 'S';
}

static unsigned
count_copies(void)
{
	char link[64], target[64];
	unsigned count = 0;

	for (int fd = 0; fd < 200; fd++) {
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		ssize_t bytes = readlink(link, target, sizeof(target) - 1);
		count += bytes > 0 && strncmp(target, "/memfd:thc-memory", 17) == 0;
	}
	return count;
}

static void *
fork_main(void *arg)
{
	static int status = 1;

	(void)arg;
	atomic_store(&forker, gettid());
	pid_t child = fork();
	if (child == 0)
		_exit(count_copies() == 0 ? 0 : 1);
	atomic_store(&forked, true);
	cr_assert_eq(waitpid(child, &status, 0), child);
	return &status;
}

int __real_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice);

int
__wrap_madvise(void *at, size_t bytes, int advice)
{
	if (forks) {
		forks = false;
		cr_assert_eq(count_copies(), 1);
		cr_assert_eq(pthread_create(&fork_thread, NULL, fork_main, NULL), 0);
		while (!atomic_load(&forked) && !forker_sleeps())
			sched_yield();
	}
	return __real_madvise(at, bytes, advice);
}

/* ---- the world ----------------------------------------------------------------------------- */

TestSuite(libthc_shadow, .init = setup_two_gpus, .fini = world_end, .timeout = 60);

static CUdeviceptr
closed(uint64_t count)
{
	return closed_new(&cuda, count);
}

/* What the agent has of it. */
static uint8_t *
agents_view(void)
{
	struct stat st;

	cr_assert_eq(fstat(agent.memory_fd, &st), 0);
	cr_assert_eq(st.st_size, agent.memory.bytes);
	uint8_t *view = mmap(
		NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, agent.memory_fd, 0);
	cr_assert_neq(view, MAP_FAILED);
	return view;
}

static char *
path_of(const char *name)
{
	static char path[300];

	good(thc_memory_path(shard, name, path, sizeof(path)));
	return path;
}

/* ---- registration -------------------------------------------------------------------------- */

Test(libthc_shadow, register__closed_memory__has_a_copy_that_the_agent_maps)
{
	CUdeviceptr range = closed(3), pooled = 0;
	CUmemoryPool pool = NULL;

	OK(test_cuda.cuDeviceGetDefaultMemPool(&pool, 0));
	OK(test_cuda.cuMemAllocFromPoolAsync(&pooled, MIB, pool, NULL));
	const struct thc_tensor tensors[] = {tensor_at("b", range + CHUNK, 2 * CHUNK - 100),
		tensor_at("a", range + 100, CHUNK - 100), tensor_at("pooled", pooled, MIB),
		tensor_at("tied", pooled, MIB)};
	good(thc_register(shard, tensors, 4, sizeof(*tensors), SOON));
	cr_assert_eq(agent.gpus + agent.dmabufs, 0);
	cr_assert_eq(agent.memories, 1);
	cr_assert_eq(agent.memory.kind, FDMSG_SHADOW);
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(agent.places[i].id, 1);
	cr_assert_eq(agent.places[0].offset, agent.places[1].offset + CHUNK - 100,
		"what follows each other stays so");
	cr_assert_eq(agent.places[3].offset, agent.places[2].offset);
	cr_assert_eq(strncmp(path_of("a"),
			     "worker-copy (on GPU 0, no other process can map it: "
			     "libthc copies it through pinned",
			     80),
		0, "%s", path_of("a"));
	cr_assert_gt(holds(HELD_HOST), 0);
	good(thc_unregister(shard, SOON));
	fake_agent_await(&agent, &agent.forgets, 1);
	cr_assert_eq(holds(HELD_HOST), 0);
	cr_assert_eq(holds(HELD_STREAMS), 0);
	cr_assert_eq(holds(HELD_CONTEXTS), 1, "the test's");
}

/* Which has not mapped it, and soon has tensors of its own at that address. */
Test(libthc_shadow, fork__copy_of_the_parent__is_not_found_by_the_child)
{
	CUdeviceptr range = closed(1);
	struct memory_object found;
	int status = 1;

	good(register_one(range, CHUNK));
	const struct memory_object copy = shard->shadow.object;
	cr_assert_eq(memory_find(copy.start, 1, &found), MEMORY_INSIDE);
	pid_t child = fork();
	if (child == 0)
		_exit(memory_find(copy.start, 1, &found) == MEMORY_OUTSIDE &&
					fcntl(copy.fd, F_GETFD) < 0
				? 0
				: 1);
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_assert_eq(status, 0);
	good(thc_publish(shard, 1, SOON));
}

/* No agent is given it: what the agent of this test has, the child would have, too. */
Test(libthc_shadow, fork__while_the_copy_is_made__leaves_the_child_without)
{
	struct memory_object copy;
	int *status = NULL;

	forks = true;
	cr_assert_eq(memory_new(CHUNK, &copy), 0);
	cr_assert_eq(pthread_join(fork_thread, (void **)&status), 0);
	cr_assert_eq(*status, 0);
	memory_end(copy.start, copy.serial);
}

Test(libthc_shadow, register__beside_other_memory__each_goes_its_way)
{
	CUdeviceptr range = closed(1), legacy = 0;
	char *host = calloc(1, 100);

	OK(test_cuda.cuMemAlloc(&legacy, MIB));
	struct thc_tensor tensors[] = {tensor_at("closed", range, CHUNK),
		tensor_at("legacy", legacy, MIB),
		tensor_at("host", (CUdeviceptr)(uintptr_t)host, 100)};
	tensors[2].device = THC_HOST;
	good(thc_register(shard, tensors, 3, sizeof(*tensors), SOON));
	cr_assert_eq(agent.gpus, 1);
	cr_assert_eq(strncmp(path_of("closed"), "worker-copy", 11), 0);
	cr_assert_eq(strncmp(path_of("legacy"), "cuda-ipc", 8), 0);
	cr_assert_eq(strncmp(path_of("host"), "copy", 4), 0);
	good(thc_publish(shard, 1, SOON));
	free(host);
}

Test(libthc_shadow, register__memory_cannot_be_pinned__goes_on_and_says_so)
{
	CUdeviceptr range = closed(1);
	int plan = machine_plan(&machine, FAULT_RESULT, getpid(), CALL_cuMemHostRegister, 0,
		CUDA_ERROR_OUT_OF_MEMORY);

	good(register_one(range, CHUNK));
	cr_assert_eq(machine_met(&machine, plan), 1);
	cr_assert_not_null(strstr(path_of("weight"), "not pinned: cuMemHostRegister says CUDA_"));
	OK(cuda.cuMemsetD8(range, 7, CHUNK));
	good(thc_publish(shard, 1, SOON));
	cr_assert_eq(agents_view()[CHUNK - 1], 7);
}

Test(libthc_shadow, agent_that_knows_no_gpus__needs_none)
{
	CUdeviceptr range = closed(1);

	good(thc_close(shard, 0, SOON));
	script(agent.no_gpus = true);
	open_with(0);
	good(register_one(range, CHUNK));
	good(thc_publish(shard, 1, SOON));
}

/* ---- out ----------------------------------------------------------------------------------- */

Test(libthc_shadow, publish__copies_before_the_agent_is_asked)
{
	CUdeviceptr range = closed(40); /* several parts, on both streams */

	OK(cuda.cuMemsetD8(range, 1, 40 * CHUNK));
	OK(cuda.cuMemsetD8(range + 33 * CHUNK + 5, 2, 1));
	good(register_one(range, 40 * CHUNK));
	script(agent.operation_code = THC_E_GROUP_BROKEN);
	cr_assert_eq(thc_publish(shard, 1, SOON), THC_E_GROUP_BROKEN);
	uint8_t *view = agents_view();
	cr_assert_eq(view[0], 1);
	cr_assert_eq(view[33 * CHUNK + 5], 2);
	cr_assert_eq(view[40 * CHUNK - 1], 1);
	script(agent.operation_code = 0);
	OK(cuda.cuMemsetD8(range, 3, 40 * CHUNK));
	cr_assert_eq(view[0], 1, "not before it is published again");
	good(thc_publish(shard, 2, SOON));
	cr_assert_eq(view[0], 3);
	cr_assert_eq(view[33 * CHUNK + 5], 3);
	cr_assert_eq(holds(HELD_STREAMS), 0);
	cr_assert_eq(holds(HELD_CONTEXTS), 1);
}

Test(libthc_shadow, publish__what_is_held_or_read__is_not_written_over)
{
	CUdeviceptr range = closed(1);

	OK(cuda.cuMemsetD8(range, 1, CHUNK));
	good(register_one(range, CHUNK));
	good(thc_publish(shard, 1, SOON));
	script(agent.line.safe_to_mutate = 0; fake_agent_line(&agent));
	OK(cuda.cuMemsetD8(range, 2, CHUNK));
	expect(thc_publish(shard, 2, SOON), THC_E_STATE, "thc_unpublish first");
	cr_assert_eq(agents_view()[0], 1);
	cr_assert_eq(agent.submissions, 1);
	script(agent.line.safe_to_mutate = 1; fake_agent_line(&agent));
	good(thc_publish(shard, 2, SOON));
}

/* An agent that is killed leaves what it said last. */
Test(libthc_shadow, publish__agent_is_gone_and_had_said_no__is_lost)
{
	CUdeviceptr range = closed(1);

	good(register_one(range, CHUNK));
	good(thc_publish(shard, 1, SOON));
	script(agent.line.safe_to_mutate = 0; fake_agent_line(&agent); fake_agent_hang_up(&agent));
	fake_agent_freeze(&agent, true); /* its poll has let go of the socket */
	fake_agent_freeze(&agent, false);
	expect(thc_publish(shard, 2, SOON), THC_E_AGENT_LOST, "open again");
}

Test(libthc_shadow, publish__no_time__changes_nothing)
{
	CUdeviceptr range = closed(1);

	good(register_one(range, CHUNK));
	too_late = 1;
	expect(thc_publish(shard, 1, 0), THC_E_TIMEOUT, "nothing was changed");
	cr_assert_eq(agent.submissions, 0);
	good(thc_publish(shard, 1, 0));
}

Test(libthc_shadow, publish__driver_fails__names_the_tensor)
{
	CUdeviceptr range = closed(1);

	good(register_one(range, CHUNK));
	int plan = machine_plan(&machine, FAULT_RESULT, getpid(), CALL_cuMemcpyDtoHAsync, 0,
		CUDA_ERROR_LAUNCH_FAILED);
	expect(thc_publish(shard, 1, SOON), THC_E_MEMORY_KIND, "tensor 'weight' could not be");
	expect(thc_publish(shard, 1, SOON), THC_E_MEMORY_KIND,
		"CUDA_ERROR_LAUNCH_FAILED; where the GPU");
	machine_lift(&machine, plan);
	plan = machine_plan(&machine, FAULT_RESULT, getpid(), CALL_cuMemcpyDtoHAsync, 0,
		CUDA_ERROR_INVALID_VALUE);
	expect(thc_publish(shard, 1, SOON), THC_E_STALE_MEMORY, "thc_unregister, and register");
	machine_lift(&machine, plan);
	cr_assert_eq(agent.submissions, 0);
	good(thc_publish(shard, 1, SOON));
}

Test(libthc_shadow, publish__gpu_hangs__comes_back_in_time_and_the_memory_stays)
{
	CUdeviceptr range = closed(1);

	good(register_one(range, CHUNK));
	int plan = machine_plan(&machine, FAULT_HANG, getpid(), CALL_STREAM, 0, CUDA_SUCCESS);
	int64_t start = th_now_ns();
	expect(thc_publish(shard, 1, 100), THC_E_MEMORY_KIND, "a copy that does not end");
	cr_assert_lt(th_now_ns() - start, INT64_C(10000000000));
	expect(thc_publish(shard, 1, 100), THC_E_MEMORY_KIND, "still hangs in the CUDA driver");
	int pinned = holds(HELD_HOST);
	good(thc_unregister(shard, SOON));
	cr_assert_eq(holds(HELD_HOST), pinned, "the GPU may write it yet");
	machine_lift(&machine, plan);
}

/* ---- in ------------------------------------------------------------------------------------ */

Test(libthc_shadow, replicate__returns_with_the_bytes_on_the_gpu)
{
	CUdeviceptr range = closed(4);
	const struct thc_tensor tensors[] = {
		tensor_at("a", range, CHUNK + 100), tensor_at("b", range + CHUNK + 200, CHUNK)};

	OK(cuda.cuMemsetD8(range, 9, 4 * CHUNK));
	good(thc_register(shard, tensors, 2, sizeof(*tensors), SOON));
	uint8_t *view = agents_view();
	memset(view, 5, agent.memory.bytes);
	good(thc_replicate(shard, "1", SOON, NULL));
	cr_assert_eq(on_gpu(range), 5);
	cr_assert_eq(on_gpu(range + CHUNK + 99), 5);
	cr_assert_eq(on_gpu(range + CHUNK + 100), 9, "no tensor's");
	cr_assert_eq(on_gpu(range + CHUNK + 199), 9);
	cr_assert_eq(on_gpu(range + CHUNK + 200), 5);
	cr_assert_eq(on_gpu(range + 2 * CHUNK + 199), 5);
	cr_assert_eq(on_gpu(range + 2 * CHUNK + 200), 9);
	memset(view, 6, agent.memory.bytes);
	good(thc_update(shard, "2", SOON, NULL));
	cr_assert_eq(on_gpu(range), 6);
	/* One that fails has brought nothing. */
	script(agent.operation_code = THC_E_DIRTY);
	memset(view, 7, agent.memory.bytes);
	cr_assert_eq(thc_update(shard, "3", SOON, NULL), THC_E_DIRTY);
	cr_assert_eq(on_gpu(range), 6);
}

Test(libthc_shadow, op_wait__copies_for_who_waits_and_goes_on_later)
{
	CUdeviceptr range = closed(1);
	struct thc_op *op = NULL;

	good(register_one(range, CHUNK));
	script(agent.operation = FAKE_HOLD);
	good(thc_replicate_submit(shard, "1", SOON, &op));
	cr_assert_eq(thc_op_done(op), 0);
	memset(agents_view(), 5, CHUNK);
	fake_agent_await(&agent, &agent.submissions, 1);
	script(fake_agent_release(&agent, 0, ""); agent.line.held_lineage = 3;
		agent.line.held_version = 1; fake_agent_line(&agent));
	expect(thc_held_version(shard, NULL, NULL), THC_E_NOT_AVAILABLE,
		"not wholly in GPU memory");
	too_late = 3;
	expect(thc_op_wait(op, 0, NULL), THC_E_TIMEOUT, "wait again");
	cr_assert_eq(thc_op_done(op), 0);
	expect(thc_update(shard, "2", 0, NULL), THC_E_TIMEOUT, "nothing was changed");
	expect(thc_held_version(shard, NULL, NULL), THC_E_NOT_AVAILABLE,
		"not wholly in GPU memory");
	cr_assert_eq(thc_op_done(op), 1);
	cr_assert_eq(on_gpu(range + CHUNK - 1), 5);
	good(thc_held_version(shard, NULL, NULL));
	good(thc_op_wait(op, 0, NULL));
	thc_op_free(op);
}

/* Who polls by edge gets another one for each answer that it is not all there yet. */
Test(libthc_shadow, op_done__copies_for_a_while__and_thc_fd_tells_again)
{
	CUdeviceptr range = closed(1);
	struct epoll_event event = {.events = EPOLLIN | EPOLLET};
	struct thc_op *op = NULL;
	int epoll = epoll_create1(EPOLL_CLOEXEC), wakes = 0;

	good(register_one(range, CHUNK));
	cr_assert_eq(epoll_ctl(epoll, EPOLL_CTL_ADD, thc_fd(shard), &event), 0);
	good(thc_replicate_submit(shard, "1", SOON, &op));
	too_late = 3;
	do {
		cr_assert_eq(epoll_wait(epoll, &event, 1, SOON), 1, "woken %d times", wakes);
		wakes++;
		(void)thc_shard_events(shard);
	} while (thc_op_done(op) == 0);
	cr_assert_geq(wakes, 4);
	cr_assert_eq(thc_op_done(op), 1);
	cr_assert_eq(on_gpu(range), 0);
	thc_op_free(op);
	close(epoll);
}

Test(libthc_shadow, held_version__while_an_update_waits__is_the_old_one)
{
	CUdeviceptr range = closed(1);
	struct thc_op *op = NULL;
	uint64_t version = 0;

	good(register_one(range, CHUNK));
	good(thc_replicate(shard, "1", SOON, NULL));
	script(agent.line.held_lineage = 3; agent.line.held_version = 1; fake_agent_line(&agent);
		agent.operation = FAKE_HOLD);
	good(thc_update_submit(shard, "2", SOON, &op));
	good(thc_held_version(shard, NULL, &version));
	cr_assert_eq(version, 1);
	/* The agent has the new one, and its completion is still under way. */
	script(agent.line.held_version = 2; fake_agent_line(&agent));
	expect(thc_held_version(shard, NULL, NULL), THC_E_NOT_AVAILABLE,
		"not wholly in GPU memory");
	fake_agent_await(&agent, &agent.submissions, 2);
	script(fake_agent_release(&agent, 0, ""));
	good(thc_op_wait(op, SOON, NULL));
	good(thc_held_version(shard, NULL, &version));
	cr_assert_eq(version, 2);
	thc_op_free(op);
}

Test(libthc_shadow, replicate__no_time_to_copy__is_resolved)
{
	CUdeviceptr range = closed(1);
	struct thc_result result = THC_RESULT_INIT;

	good(register_one(range, CHUNK));
	memset(agents_view(), 5, CHUNK);
	too_late = 2;
	expect(thc_replicate(shard, "1", 0, NULL), THC_E_UNKNOWN, "call thc_resolve");
	cr_assert_eq(thc_publish(shard, 1, SOON), THC_E_STATE);
	expect(thc_resolve(shard, 0, &result), THC_E_UNKNOWN, "not all is copied");
	cr_assert_eq(on_gpu(range), 0);
	good(thc_resolve(shard, 0, &result));
	cr_assert_eq(result.updated, 1);
	cr_assert_eq(on_gpu(range), 5);
	cr_assert_eq(thc_resolve(shard, 0, NULL), THC_E_STATE);
}

Test(libthc_shadow, debt__nobody_waited__is_paid_by_the_next_operation)
{
	CUdeviceptr range = closed(1);
	struct thc_op *op = NULL;

	good(register_one(range, CHUNK));
	script(agent.operation = FAKE_HOLD; agent.ignore_cancel = true);
	good(thc_replicate_submit(shard, "1", SOON, &op));
	thc_op_free(op);
	memset(agents_view(), 5, CHUNK);
	fake_agent_await(&agent, &agent.submissions, 1);
	script(fake_agent_release(&agent, 0, ""));
	good(thc_update_submit(shard, "2", SOON, &op));
	cr_assert_eq(on_gpu(range), 5);
	fake_agent_await(&agent, &agent.submissions, 2);
	script(fake_agent_release(&agent, 0, ""));
	good(thc_op_wait(op, SOON, NULL));
	thc_op_free(op);
}

Test(libthc_shadow, debt__of_a_version_that_is_given_up__is_never_paid)
{
	CUdeviceptr range = closed(1);
	struct thc_op *op = NULL;

	good(register_one(range, CHUNK));
	good(thc_replicate_submit(shard, "1", SOON, &op));
	memset(agents_view(), 5, CHUNK);
	fake_agent_await(&agent, &agent.submissions, 1);
	good(thc_unpublish(shard, 0, SOON));
	expect(thc_op_wait(op, SOON, NULL), THC_E_CANCELLED, "given up before");
	cr_assert_eq(on_gpu(range), 0);
	thc_op_free(op);
	/* The same of a handle that is closed. */
	good(thc_replicate_submit(shard, "2", SOON, &op));
	fake_agent_await(&agent, &agent.submissions, 3);
	good(thc_close(shard, 0, SOON));
	expect(thc_op_wait(op, SOON, NULL), THC_E_CANCELLED, "");
	thc_op_free(op);
	cr_assert_eq(holds(HELD_HOST), 0);
	shard = NULL;
}

Test(libthc_shadow, wait__memory_was_put_to_sleep__names_the_tensor)
{
	CUdeviceptr range = closed(1);
	struct thc_op *op = NULL;

	good(register_one(range, CHUNK));
	script(agent.operation = FAKE_HOLD);
	good(thc_replicate_submit(shard, "1", SOON, &op));
	OK(cuda.cuMemUnmap(range, CHUNK));
	fake_agent_await(&agent, &agent.submissions, 1);
	script(fake_agent_release(&agent, 0, ""));
	expect(thc_op_wait(op, SOON, NULL), THC_E_STALE_MEMORY, "'weight'");
	/* Other memory at its address may be anybody's. */
	closed_map(&cuda, range, 1);
	memset(agents_view(), 5, CHUNK);
	expect(thc_op_wait(op, SOON, NULL), THC_E_STALE_MEMORY, "'weight'");
	cr_assert_eq(on_gpu(range), 0);
	thc_op_free(op);
	script(agent.operation = FAKE_COMPLETE);
	expect(thc_update(shard, "2", SOON, NULL), THC_E_STALE_MEMORY, "'weight'");
	good(thc_unpublish(shard, 0, SOON));
	good(thc_unregister(shard, SOON));
}

/* ---- contexts ------------------------------------------------------------------------------ */

static void *
publish_here(void *arg)
{
	static int rc;

	(void)arg;
	rc = thc_publish(shard, 1, SOON);
	return &rc;
}

Test(libthc_shadow, context__thread_that_has_none__takes_the_frameworks)
{
	CUdeviceptr range = closed(1);
	CUcontext own = NULL;
	pthread_t thread;
	int *rc = NULL;

	OK(cuda.cuMemsetD8(range, 7, CHUNK));
	good(register_one(range, CHUNK));
	cr_assert_eq(pthread_create(&thread, NULL, publish_here, NULL), 0);
	cr_assert_eq(pthread_join(thread, (void **)&rc), 0);
	cr_assert_eq(*rc, 0);
	cr_assert_eq(agents_view()[0], 7);
	cr_assert_eq(holds(HELD_CONTEXTS), 1);
	good(thc_unpublish(shard, 0, SOON));
	/* Where the program has made one of its own, only its thread has it. */
	OK(cuda.cuDevicePrimaryCtxRelease(0));
	OK(test_cuda.cuCtxCreate(&own, 0, 0));
	good(thc_publish(shard, 2, SOON));
	good(thc_unpublish(shard, 0, SOON));
	OK(cuda.cuCtxPopCurrent(&own));
	struct thc_op *op = NULL;
	expect(thc_publish(shard, 3, SOON), THC_E_MEMORY_KIND,
		"no context in this process; call this on a thread");
	expect(thc_publish_submit(shard, 3, SOON, &op), THC_E_MEMORY_KIND, "no context");
	cr_assert_eq(holds(HELD_CONTEXTS), 1, "none was made");
	OK(cuda.cuCtxPushCurrent(own));
}

/* ---- in parts ------------------------------------------------------------------------------ */

static bool
never_ready(void *arg)
{
	(void)arg;
	return false;
}

static bool
counts(void *arg)
{
	return --*(int *)arg < 0;
}

Test(libthc_shadow, gpu_copy__deadline_or_stop__goes_on_where_it_was)
{
	const uint64_t bytes = 50 * CHUNK;
	CUdeviceptr range = closed(50);
	uint8_t *host =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const struct copied_span spans[] = {{.gpu = range, .bytes = 100, .at = 0},
		{.gpu = range + 100, .bytes = bytes - 100, .at = 100}};
	struct gpu_copy copy = {.cuda = &cuda, .spans = spans, .count = 2, .host = host};
	struct th_err err = {0};
	uint64_t at = 0;
	int turns = 0, rc, parts = 1;

	OK(cuda.cuMemsetD8(range, 4, bytes));
	cr_assert_eq(__real_gpu_copy_run(&copy, 0, never_ready, NULL, &err, &at), -ETIMEDOUT);
	cr_assert_eq(copy.index + copy.offset, 0);
	while ((rc = __real_gpu_copy_run(&copy, INT64_MAX, counts, &parts, &err, &at)) ==
		-ECANCELED) {
		turns++;
		parts = 1000;
		cr_assert_gt(copy.index + copy.offset, 0);
	}
	cr_assert_eq(rc, 0, "%s", err.text);
	cr_assert_geq(turns, 1);
	for (uint64_t i = 0; i < bytes; i += 4093)
		cr_assert_eq(host[i], 4);
	cr_assert_eq(host[bytes - 1], 4);
}

/* Not before there is something on both streams. */
static bool
third(void *arg)
{
	return ++*(int *)arg > 2;
}

Test(libthc_shadow, gpu_copy__gpu_hangs__is_waited_for_once)
{
	const uint64_t bytes = 50 * CHUNK;
	CUdeviceptr range = closed(50);
	uint8_t *host =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const struct copied_span span = {.gpu = range, .bytes = bytes};
	struct gpu_copy copy = {.cuda = &cuda, .spans = &span, .count = 1, .host = host};
	struct th_err err = {0};
	uint64_t at = 0;
	int asked = 0;

	OK(cuda.cuMemHostRegister(host, bytes, 0)); /* or the copies would not return at once */
	int plan = machine_plan(&machine, FAULT_HANG, getpid(), CALL_STREAM, 0, CUDA_SUCCESS);
	cr_assert_eq(__real_gpu_copy_run(&copy, INT64_MAX, third, &asked, &err, &at),
		THC_E_MEMORY_KIND, "%s", err.text);
	cr_assert(copy.stuck);
	cr_assert_eq(asked, 3, "each wait asks whether to stop until it is told so");
	machine_lift(&machine, plan);
}
