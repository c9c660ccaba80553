/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_copying_test - other threads while one copies GPU memory that no other process can map:
 * what they wait for, what they may end, and what stays until the copy has ended.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "libthc/gpu_copy.h"
#include "libthc/libthc_own.h"
#include "libthc/nng_req.h"
#include "libthc/thc.h"
#include "tests/support/gpu/closed_gpu.h"
#include "tests/unit/libthc/gpu_tensor.h"

#define CHUNK CLOSED_CHUNK

static CUdeviceptr range; /* a chunk, registered */

/* ---- a copy and an answer that take long --------------------------------------------------- */

static _Atomic bool copying, asking;
static bool until_closed; /* the copy, which then has brought nothing */
/* While it is not NULL and says so, a copy or a document has not begun. */
static bool (*copy_waits)(void), (*document_waits)(void);

int __real_gpu_copy_run(struct gpu_copy *copy, int64_t until_ns, gpu_copy_stop stop, void *arg,
	struct th_err *err, uint64_t *ret_at);
int __wrap_gpu_copy_run(struct gpu_copy *copy, int64_t until_ns, gpu_copy_stop stop, void *arg,
	struct th_err *err, uint64_t *ret_at);

int
__wrap_gpu_copy_run(struct gpu_copy *copy, int64_t until_ns, gpu_copy_stop stop, void *arg,
	struct th_err *err, uint64_t *ret_at)
{
	atomic_store(&copying, true);
	while (copy_waits && copy_waits())
		usleep(1000);
	while (until_closed && !stop(arg))
		usleep(1000);
	if (until_closed)
		return -ECANCELED;
	return __real_gpu_copy_run(copy, until_ns, stop, arg, err, ret_at);
}

int __real_sp_req_call(struct sp_req *req, const void *data, size_t bytes, size_t reply_max,
	int64_t deadline_ns, struct th_err *err, uint8_t **ret_reply, size_t *ret_bytes);
int __wrap_sp_req_call(struct sp_req *req, const void *data, size_t bytes, size_t reply_max,
	int64_t deadline_ns, struct th_err *err, uint8_t **ret_reply, size_t *ret_bytes);

int
__wrap_sp_req_call(struct sp_req *req, const void *data, size_t bytes, size_t reply_max,
	int64_t deadline_ns, struct th_err *err, uint8_t **ret_reply, size_t *ret_bytes)
{
	atomic_store(&asking, true);
	while (document_waits && document_waits())
		usleep(1000);
	return __real_sp_req_call(
		req, data, bytes, reply_max, deadline_ns, err, ret_reply, ret_bytes);
}

/* A thread sleeps until a copy has ended; also when nobody wants that any more. */
static _Thread_local bool watched;
static _Atomic bool sleeps, sleeps_for_nothing;

void __real_shard_sleep(struct thc_shard *handle, int64_t until_ns);
void __wrap_shard_sleep(struct thc_shard *handle, int64_t until_ns);

void
__wrap_shard_sleep(struct thc_shard *handle, int64_t until_ns)
{
	if (watched && handle->shadow.copying) {
		atomic_store(&sleeps, true);
		atomic_store(&sleeps_for_nothing, handle->fill_due == 0);
	}
	__real_shard_sleep(handle, until_ns);
}

/* ---- the world ----------------------------------------------------------------------------- */

static void
setup(void)
{
	world_begin(1);
	range = closed_new(&cuda, 1);
	good(register_at(shard, range, CHUNK, SOON));
	atomic_store(&asking, false);
}

TestSuite(libthc_copying, .init = setup, .fini = world_end, .timeout = 60);

/* All that the agent has of the chunk. */
static void
fill_agents_copy(int byte)
{
	uint8_t *view = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED, agent.memory_fd, 0);

	cr_assert_neq(view, MAP_FAILED);
	memset(view, byte, CHUNK);
	munmap(view, CHUNK);
}

/* ---- tests --------------------------------------------------------------------------------- */

static void *
wait_for_it(void *arg)
{
	static int rc;

	rc = thc_op_wait(arg, SOON, NULL);
	return &rc;
}

Test(libthc_copying, close__while_a_thread_copies__sends_it_away)
{
	struct thc_op *op = NULL;
	pthread_t thread;
	int *rc = NULL;

	until_closed = true;
	good(thc_replicate_submit(shard, "1", SOON, &op));
	cr_assert_eq(pthread_create(&thread, NULL, wait_for_it, op), 0);
	while (!atomic_load(&copying))
		sched_yield();
	expect(thc_unregister(shard, SOON), THC_E_STATE, "runs");
	good(thc_close(shard, 0, SOON));
	shard = NULL;
	cr_assert_eq(pthread_join(thread, (void **)&rc), 0);
	cr_assert_eq(*rc, THC_E_CANCELLED);
	thc_op_free(op);
}

static _Atomic bool released; /* the copy may go on */
static _Atomic bool unregistered;

static bool
nobody_copies(void)
{
	return !atomic_load(&copying);
}

static bool
until_unregister_sleeps(void)
{
	return !atomic_load(&sleeps) && !atomic_load(&unregistered);
}

static void *
unregister_here(void *arg)
{
	static int rc;

	(void)arg;
	watched = true;
	rc = thc_unregister(shard, SOON);
	atomic_store(&unregistered, true);
	return &rc;
}

/* The answer comes while another thread copies for a publish that began before it. */
Test(libthc_copying, unregister__a_copy_began_meanwhile__frees_nothing_under_it)
{
	pthread_t thread;
	int *rc = NULL;

	int pinned = holds(HELD_HOST);
	document_waits = nobody_copies;
	copy_waits = until_unregister_sleeps;
	cr_assert_eq(pthread_create(&thread, NULL, unregister_here, NULL), 0);
	while (!atomic_load(&asking))
		sched_yield();
	(void)thc_publish(shard, 1, SOON);
	cr_assert(atomic_load(&sleeps), "it did not wait for the copy");
	cr_assert_eq(pthread_join(thread, (void **)&rc), 0);
	cr_assert_eq(*rc, 0);
	cr_assert_gt(pinned, 0);
	cr_assert_eq(holds(HELD_HOST), 0);
}

static bool
until_released(void)
{
	return !atomic_load(&released);
}

static void *
update_here(void *arg)
{
	static int rc;

	(void)arg;
	watched = true;
	rc = thc_update(shard, "2", SOON, NULL);
	return &rc;
}

static unsigned
submissions(void)
{
	fake_agent_lock(&agent);
	unsigned count = agent.submissions;
	fake_agent_unlock(&agent);
	return count;
}

/* Who waits for the copy of a version goes on waiting when that is given up. */
Test(libthc_copying, update__version_given_up_while_it_is_copied__is_not_pulled_over_it)
{
	struct thc_op *op = NULL;
	pthread_t copier, updater;
	int *rc = NULL;

	good(thc_replicate_submit(shard, "1", SOON, &op));
	copy_waits = until_released;
	cr_assert_eq(pthread_create(&copier, NULL, wait_for_it, op), 0);
	while (nobody_copies())
		sched_yield();
	cr_assert_eq(pthread_create(&updater, NULL, update_here, NULL), 0);
	while (!atomic_load(&sleeps))
		sched_yield();
	good(thc_unpublish(shard, 0, SOON));
	while (!atomic_load(&sleeps_for_nothing) && submissions() < 3)
		sched_yield();
	cr_assert_eq(submissions(), 2, "it was pulled over what is being copied");
	cr_assert_eq(thc_safe_to_mutate(shard), 0, "a thread writes it");
	fill_agents_copy(6);
	atomic_store(&released, true);
	cr_assert_eq(pthread_join(copier, (void **)&rc), 0);
	cr_assert_eq(pthread_join(updater, (void **)&rc), 0);
	cr_assert_eq(*rc, 0);
	cr_assert_eq(on_gpu(range), 6);
	cr_assert_eq(thc_safe_to_mutate(shard), 1, "the agent has said so all the time");
	thc_op_free(op);
}

static void *
publish_for_ever(void *arg)
{
	static int rc;

	(void)arg;
	rc = thc_publish(shard, 1, THC_FOREVER);
	return &rc;
}

Test(libthc_copying, close__while_a_copy_hangs__waits_a_little_for_it)
{
	pthread_t thread;
	int *rc = NULL;

	int plan = machine_plan(&machine, FAULT_HANG, getpid(), CALL_STREAM, 0, CUDA_SUCCESS);
	cr_assert_eq(pthread_create(&thread, NULL, publish_for_ever, NULL), 0);
	while (machine_met(&machine, plan) == 0)
		sched_yield();
	good(thc_close(shard, 0, SOON));
	shard = NULL;
	cr_assert_eq(pthread_join(thread, (void **)&rc), 0);
	cr_assert_eq(*rc, THC_E_MEMORY_KIND);
	machine_lift(&machine, plan);
}

/* Which ends no call: who abandons the handle does not wait for it. */
Test(libthc_copying, close__while_the_driver_hangs__is_abandoned_in_time)
{
	pthread_t thread;
	int *rc = NULL;

	int plan = machine_plan(
		&machine, FAULT_HANG, getpid(), CALL_cuMemcpyDtoHAsync, 0, CUDA_SUCCESS);
	cr_assert_eq(pthread_create(&thread, NULL, publish_for_ever, NULL), 0);
	while (machine_met(&machine, plan) == 0)
		sched_yield();
	expect(thc_close(shard, THC_CLOSE_ABANDON, 0), THC_E_TIMEOUT,
		"call of this handle; the handle is freed");
	shard = NULL;
	machine_lift(&machine, plan);
	cr_assert_eq(pthread_join(thread, (void **)&rc), 0);
	cr_assert_eq(*rc, THC_E_CANCELLED);
	cr_assert_eq(holds(HELD_HOST), 0, "the last who left has freed the copy");
}
