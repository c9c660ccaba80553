/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_async_test - the _submit calls, thc_fd, thc_op_* and thc_shard_events against a scripted
 * agent: what a loop sees that polls thc_fd, also while other threads wait in the same handle.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "libthc/libthc_own.h"
#include "tests/unit/libthc/libthc_fixture.h"

#define MS INT64_C(1000000)

TestSuite(libthc_async, .init = setup_registered, .fini = teardown_memory, .timeout = 60);

static int
readable(int64_t wait_ms)
{
	struct pollfd poll_fd = {.fd = thc_fd(shard), .events = POLLIN};

	cr_assert_geq(poll_fd.fd, 0, "%s", thc_errmsg());
	return poll(&poll_fd, 1, (int)wait_ms);
}

/* It may be readable for nothing, which a call settles; but not for ever. */
static void
becomes_quiet(void)
{
	int64_t until = th_now_ns() + SOON * MS;

	while (readable(0) != 0) {
		cr_assert_lt(th_now_ns(), until, "thc_fd stays readable");
		cr_assert_eq(thc_shard_events(shard), 0);
	}
}

static struct thc_op *
update(const char *version, int64_t timeout_ms)
{
	struct thc_op *op = NULL;

	cr_assert_eq(thc_update_submit(shard, version, timeout_ms, &op), 0, "%s", thc_errmsg());
	return op;
}

/* Submitted, and the agent has it. */
static struct thc_op *
held_update(const char *version, int64_t timeout_ms)
{
	script(agent.operation = FAKE_HOLD);
	unsigned before = agent.submissions;
	struct thc_op *op = update(version, timeout_ms);
	fake_agent_await(&agent, &agent.submissions, before + 1);
	return op;
}

/* The loop of a caller: asks only when the descriptor says so. */
static int
await_by_fd(struct thc_op *op)
{
	int rc = 0;

	while (rc == 0) {
		cr_assert_eq(readable(SOON), 1, "no wake-up");
		rc = thc_op_done(op);
	}
	return rc;
}

/* ---- submit -------------------------------------------------------------------------------- */

Test(libthc_async, submit__each_of_the_four__ends_with_its_result)
{
	struct thc_result result = THC_RESULT_INIT;
	struct thc_op *op = NULL;

	cr_assert_eq(thc_publish_submit(shard, 17, SOON, &op), 0, "%s", thc_errmsg());
	cr_assert_eq(await_by_fd(op), 1);
	cr_assert_eq(agent.submission.kind, SHM_PUBLISH);
	cr_assert_str_eq(agent.submission.version_spec, "17");
	thc_op_free(op);
	cr_assert_eq(thc_unpublish_submit(shard, 0, SOON, &op), 0, "%s", thc_errmsg());
	cr_assert_eq(await_by_fd(op), 1);
	cr_assert_eq(agent.submission.kind, SHM_UNPUBLISH);
	thc_op_free(op);
	cr_assert_eq(thc_replicate_submit(shard, "18", SOON, &op), 0, "%s", thc_errmsg());
	cr_assert_eq(await_by_fd(op), 1);
	cr_assert_eq(agent.submission.kind, SHM_REPLICATE);
	cr_assert_eq(thc_op_wait(op, 0, &result), 0, "%s", thc_errmsg());
	cr_assert_eq(result.version, 18);
	cr_assert_eq(result.bytes_moved, 1000);
	thc_op_free(op);
	op = update("19", SOON);
	cr_assert_eq(thc_op_wait(op, SOON, &result), 0, "%s", thc_errmsg());
	cr_assert_eq(agent.submission.kind, SHM_UPDATE);
	cr_assert_eq(result.version, 19);
	cr_assert_str_eq(result.source, "trainer");
	thc_op_free(op);
	becomes_quiet();
}

Test(libthc_async, submit__bad_argument__is_refused_and_gives_nothing)
{
	struct thc_op *op = NULL;

	cr_assert_eq(thc_publish_submit(NULL, 1, SOON, &op), THC_E_INVALID);
	cr_assert_eq(thc_publish_submit(shard, THC_NO_VERSION, SOON, &op), THC_E_INVALID);
	cr_assert_eq(thc_publish_submit(shard, 1, SOON, NULL), THC_E_INVALID);
	says("ret_op");
	cr_assert_eq(thc_publish_submit(shard, 1, -2, &op), THC_E_INVALID);
	says("timeout_ms");
	cr_assert_eq(thc_unpublish_submit(shard, 1u << 9, SOON, &op), THC_E_INVALID);
	cr_assert_eq(thc_unpublish_submit(shard, 0, SOON, NULL), THC_E_INVALID);
	cr_assert_eq(thc_replicate_submit(shard, "newest", SOON, &op), THC_E_INVALID);
	cr_assert_eq(thc_replicate_submit(shard, NULL, SOON, &op), THC_E_INVALID);
	cr_assert_eq(thc_replicate_submit(shard, "1", SOON, NULL), THC_E_INVALID);
	cr_assert_eq(thc_update_submit(shard, "", SOON, &op), THC_E_INVALID);
	cr_assert_eq(thc_update_submit(shard, "1", SOON, NULL), THC_E_INVALID);
	cr_assert_null(op);
	cr_assert_eq(agent.submissions, 0);
	cr_assert_eq(thc_unregister(shard, SOON), 0);
	cr_assert_eq(thc_publish_submit(shard, 1, SOON, &op), THC_E_STATE);
	cr_assert_eq(thc_update_submit(shard, "1", SOON, &op), THC_E_STATE);
	says("thc_register");
	cr_assert_null(op);
}

Test(libthc_async, op_calls__bad_argument__is_refused)
{
	struct thc_result small = {.struct_size = 8};
	struct thc_op *op = held_update("1", SOON);

	cr_assert_eq(thc_op_done(NULL), THC_E_INVALID);
	cr_assert_eq(thc_op_wait(NULL, 0, NULL), THC_E_INVALID);
	cr_assert_eq(thc_op_progress(NULL, NULL, NULL), THC_E_INVALID);
	cr_assert_eq(thc_op_cancel(NULL), THC_E_INVALID);
	thc_op_free(NULL);
	cr_assert_eq(thc_op_wait(op, -2, NULL), THC_E_INVALID);
	cr_assert_eq(thc_op_wait(op, 0, &small), THC_E_INVALID);
	says("struct_size");
	cr_assert_eq(thc_op_progress(op, NULL, NULL), 0);
	cr_assert_eq(thc_fd(NULL), THC_E_INVALID);
	cr_assert_eq(thc_shard_events(NULL), 0);
	thc_op_free(op);
	/* It runs on for nobody, and a program that has it still is told so. */
	cr_assert_eq(thc_op_wait(op, 0, NULL), THC_E_INVALID);
	says("thc_op_free");
	thc_op_free(op);
}

Test(libthc_async, submit__another_runs__is_refused_until_that_has_ended)
{
	struct thc_op *op = held_update("1", SOON), *next = NULL;

	cr_assert_eq(thc_publish_submit(shard, 2, SOON, &next), THC_E_STATE);
	cr_assert_eq(thc_unpublish_submit(shard, 0, SOON, &next), THC_E_STATE);
	cr_assert_eq(thc_replicate_submit(shard, "2", SOON, &next), THC_E_STATE);
	cr_assert_eq(thc_update_submit(shard, "2", SOON, &next), THC_E_STATE);
	says("one");
	cr_assert_eq(thc_publish(shard, 2, SOON), THC_E_STATE);
	cr_assert_null(next);
	script({
		agent.operation = FAKE_COMPLETE;
		fake_agent_release(&agent, THC_E_VERSION_LOST, "its last copy is gone");
	});
	cr_assert_eq(readable(SOON), 1);
	/* It has ended, so another may begin, though nobody has collected the first. */
	next = update("2", SOON);
	cr_assert_eq(thc_op_wait(next, SOON, NULL), 0, "%s", thc_errmsg());
	thc_op_free(next);
	cr_assert_eq(readable(0), 1);
	cr_assert_eq(thc_op_done(op), THC_E_VERSION_LOST);
	says("its last copy is gone");
	becomes_quiet();
	thc_op_free(op);
}

/* ---- thc_fd -------------------------------------------------------------------------------- */

Test(libthc_async, fd__finished_operation__is_readable_until_it_is_collected_or_freed)
{
	struct thc_result result = THC_RESULT_INIT;

	for (int how = 0; how < 3; how++) {
		struct thc_op *op = update("4", SOON);
		cr_assert_eq(readable(SOON), 1);
		/* Other calls see it too, and take nothing away. */
		cr_assert_eq(thc_shard_events(shard), 0);
		cr_assert_eq(thc_op_progress(op, NULL, NULL), 0);
		for (int i = 0; i < 3; i++)
			cr_assert_eq(readable(SOON), 1);
		if (how == 0)
			cr_assert_eq(thc_op_done(op), 1);
		if (how == 1)
			cr_assert_eq(thc_op_wait(op, 0, &result), 0);
		if (how == 2)
			thc_op_free(op);
		becomes_quiet();
		if (how != 2)
			thc_op_free(op);
	}
	cr_assert_eq(thc_fd(shard), thc_fd(shard));
}

Test(libthc_async, fd__no_descriptors_left__fails_and_works_later)
{
	struct rlimit limit;

	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	const struct rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
	int rc = thc_fd(shard);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	cr_assert_eq(rc, -EMFILE);
	says("descriptor");
	cr_assert_eq(readable(0), 0);
	struct thc_op *op = update("4", SOON);
	cr_assert_eq(await_by_fd(op), 1);
	thc_op_free(op);
}

static int
edge_set(void)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLET};
	int set = epoll_create1(EPOLL_CLOEXEC);

	cr_assert_geq(set, 0);
	cr_assert_eq(epoll_ctl(set, EPOLL_CTL_ADD, thc_fd(shard), &event), 0);
	return set;
}

static bool
edge(int set, int64_t wait_ms)
{
	struct epoll_event event;

	return epoll_wait(set, &event, 1, (int)wait_ms) == 1;
}

Test(libthc_async, fd__edge_triggered__every_end_and_event_is_an_edge)
{
	int set = edge_set();

	while (edge(set, 0))
		;
	for (int i = 0; i < 200; i++) {
		struct thc_op *op = update("4", SOON);
		int rc = 0;
		while (rc == 0) {
			cr_assert(edge(set, SOON), "no edge for the end of operation %d", i);
			rc = thc_op_done(op);
		}
		cr_assert_eq(rc, 1);
		thc_op_free(op);
		script((agent.line.events[i % SHM_EV_COUNT]++, fake_agent_line(&agent)));
		do
			cr_assert(edge(set, SOON), "no edge for event %d", i);
		while (thc_shard_events(shard) == 0);
	}
	(void)close(set);
}

/*
 * What is found by a call and not announced by the agent: the first item was seen and stays, since
 * it belongs to another thread.
 */
Test(libthc_async, fd__edge_triggered__agent_found_lying__is_an_edge_beside_an_uncollected_end)
{
	struct thc_op *op = update("4", SOON), *next = NULL;
	int set = edge_set();

	cr_assert(edge(set, SOON));
	cr_assert_eq(thc_shard_events(shard), 0);
	while (edge(set, 0))
		cr_assert_eq(thc_shard_events(shard), 0);
	/* The next submission finds an index that cannot be. */
	script({
		agent.operation = FAKE_DEAF;
		atomic_store(&agent.files.a->consumed, 1000);
	});
	cr_assert_eq(thc_update_submit(shard, "5", SOON, &next), THC_E_AGENT_LOST);
	cr_assert(edge(set, SOON), "no edge for the lost agent");
	cr_assert_eq(thc_shard_events(shard), THC_EV_AGENT_LOST);
	cr_assert_eq(thc_op_done(op), 1);
	thc_op_free(op);
	(void)close(set);
}

static int
enough_now(const struct thc_listing *listing, void *arg)
{
	(void)listing;
	return *(const bool *)arg ? 1 : 0;
}

static bool enough;

/* Of the threads in thc_wait one polls for all: it takes the doorbell away from thc_fd. */
static void *
waiter_main(void *arg)
{
	int rc = thc_wait(shard, enough_now, arg, THC_FOREVER);

	return rc == 0 ? arg : NULL;
}

Test(libthc_async, fd__other_threads_block__shows_every_end_and_event)
{
	pthread_t threads[2];
	void *good = NULL;

	script(agent.operation = FAKE_HOLD);
	for (int i = 0; i < 2; i++)
		cr_assert_eq(pthread_create(&threads[i], NULL, waiter_main, &enough), 0);
	/* Both have looked; they share one watch. */
	fake_agent_await(&agent, &agent.requests, 2);
	fake_agent_await(&agent, &agent.submissions, 1);
	script(agent.operation = FAKE_COMPLETE);
	for (int i = 0; i < 300; i++) {
		struct thc_op *op = update("4", SOON);
		cr_assert_eq(await_by_fd(op), 1);
		thc_op_free(op);
		script((agent.line.events[SHM_EV_CONFLICT]++, fake_agent_line(&agent)));
		uint32_t mask = 0;
		while (mask == 0) {
			cr_assert_eq(readable(SOON), 1, "no wake-up for event %d", i);
			mask = thc_shard_events(shard);
		}
		cr_assert_eq(mask, THC_EV_VERSION_CONFLICT);
	}
	script({
		enough = true;
		fake_agent_release(&agent, 0, NULL);
	});
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(pthread_join(threads[i], &good), 0);
		cr_assert_eq(good, &enough, "%s", thc_errmsg());
	}
	becomes_quiet();
}

/*
 * The doorbell of the event has been taken off by another call, and the line cannot be read as a
 * whole: the agent was stopped while it wrote the next heartbeat.
 */
Test(libthc_async, fd__agent_stopped_in_its_next_heartbeat__shows_the_event)
{
	cr_assert_eq(readable(0), 0);
	script({
		agent.line.events[SHM_EV_BROKEN]++;
		fake_agent_line(&agent);
		fake_agent_line_half(&agent);
	});
	cr_assert_eq(readable(SOON), 1);
	(void)thc_safe_to_mutate(shard); /* looks, since it cannot read the line */
	cr_assert_eq(readable(SOON), 1);
	cr_assert_eq(thc_shard_events(shard), THC_EV_GROUP_BROKEN);
	script(fake_agent_line(&agent));
	becomes_quiet();
}

Test(libthc_async, fd__agent_hangs_up__is_readable_until_events_are_asked)
{
	struct thc_op *op = held_update("1", THC_FOREVER);

	cr_assert_eq(readable(0), 0);
	script(fake_agent_hang_up(&agent));
	cr_assert_eq(readable(SOON), 1);
	cr_assert_eq(thc_op_done(op), THC_E_AGENT_LOST);
	says("hung up");
	cr_assert_eq(readable(0), 1);
	cr_assert_eq(thc_shard_events(shard), THC_EV_AGENT_LOST);
	becomes_quiet();
	cr_assert_eq(thc_op_cancel(op), 0);
	cr_assert_eq(thc_op_wait(op, SOON, NULL), THC_E_AGENT_LOST);
	thc_op_free(op);
}

/* ---- events -------------------------------------------------------------------------------- */

Test(libthc_async, events__each__is_told_once)
{
	const uint32_t bits[] = {THC_EV_EVICTED, THC_EV_VERSION_CONFLICT, THC_EV_CONTRACT,
		THC_EV_GROUP_BROKEN, THC_EV_AGENT_LOST, THC_EV_AT_RISK, THC_EV_READY,
		THC_EV_UPDATED, THC_EV_FOLLOW_FAILED};

	cr_assert_eq(thc_shard_events(shard), 0);
	for (size_t i = 0; i < TH_ARRAY_LEN(bits); i++) {
		script((agent.line.events[i]++, fake_agent_line(&agent)));
		cr_assert_eq(thc_shard_events(shard), bits[i]);
		cr_assert_eq(thc_shard_events(shard), 0);
	}
	/* Several of a kind between two calls are one bit; different ones come together. */
	script({
		agent.line.events[SHM_EV_AT_RISK] = 3;
		agent.line.events[SHM_EV_CONTRACT] = UINT16_MAX;
		fake_agent_line(&agent);
	});
	cr_assert_eq(thc_shard_events(shard), THC_EV_AT_RISK | THC_EV_CONTRACT);
	script((agent.line.events[SHM_EV_CONTRACT]++, fake_agent_line(&agent)));
	cr_assert_eq(thc_shard_events(shard), THC_EV_CONTRACT);
	cr_assert_eq(thc_shard_events(shard), 0);
}

static int answer_pipe[2], never_pipe[2];

#define ALLOW(call)                                                                                \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (call), 0, 1),                                         \
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/*
 * Any system call but these ends the process. The clock is one where the kernel maps none. The
 * thread stays until the process ends: to end by itself takes more of them.
 */
static void *
asks_without_system_call(void *arg)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOW(SYS_write),
		ALLOW(SYS_read),
		ALLOW(SYS_clock_gettime),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	const struct sock_fprog program = {.len = TH_ARRAY_LEN(filter), .filter = filter};
	char news = 0;

	(void)arg;
	(void)thc_shard_events(shard); /* the first call of a thread may set things up */
	(void)thc_ready_version(shard, NULL, NULL);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
		news = 's';
	for (int i = 0; news == 0 && i < 1000; i++)
		if (thc_shard_events(shard) != 0 || thc_ready_version(shard, NULL, NULL) != 0)
			news = 'n';
	if (write(answer_pipe[1], news == 0 ? "0" : &news, 1) == 1)
		while (read(never_pipe[0], &news, 1) != 1)
			;
	return NULL;
}

Test(libthc_async, events__nothing_happened_and_no_thc_fd__make_no_system_call)
{
	pthread_t thread;
	char answer = 0;

	/* However slow this machine is: an old heartbeat would be a reason to look. */
	script({
		agent.line.heartbeat_ns = INT64_MAX / 2;
		agent.line.ready_version = 7;
		ring_line_write(&agent.ring, &agent.line);
	});
	shard->open_flags = THC_PREFETCH;
	cr_assert_eq(pipe(answer_pipe), 0);
	cr_assert_eq(pipe(never_pipe), 0);
	cr_assert_eq(pthread_create(&thread, NULL, asks_without_system_call, NULL), 0);
	cr_assert_eq(pthread_detach(thread), 0);
	cr_assert_eq(read(answer_pipe[0], &answer, 1), 1);
	if (answer == 's')
		cr_skip_test("the kernel takes no system call filter");
	cr_assert_eq(answer, '0');
}

/* ---- what it waits for ---------------------------------------------------------------------- */

Test(libthc_async, waits__while_it_runs__a_sentence_that_fits)
{
	char text[64] = "", small[] = "nothing";
	struct thc_op *watch = NULL, *op = held_update("1", SOON);

	cr_assert_eq(thc_op_waits(op, SOON, text, sizeof(text)), 0, "%s", thc_errmsg());
	cr_assert_str_eq(text, "shard 1 has not called it");
	cr_assert_eq(thc_op_waits(op, SOON, small, sizeof(small)), 0, "%s", thc_errmsg());
	cr_assert_str_eq(small, "shard 1");
	cr_assert_eq(thc_watch_submit(shard, 1, SOON, &watch), 0, "%s", thc_errmsg());
	cr_assert_eq(thc_op_waits(watch, SOON, text, sizeof(text)), THC_E_STATE);
	script(fake_agent_release(&agent, THC_E_CHECKSUM, "bytes differ"));
	cr_assert_eq(thc_op_wait(op, SOON, NULL), THC_E_CHECKSUM);
	cr_assert_eq(thc_op_waits(op, SOON, small, sizeof(small)), THC_E_STATE);
	cr_assert_str_eq(small, "shard 1");
	thc_op_free(watch);
	thc_op_free(op);
}

/* ---- a grouped list ------------------------------------------------------------------------- */

Test(libthc_async, listing__of_a_grouped_list__when_it_has_ended)
{
	struct thc_listing *listing = NULL;
	struct thc_op *op = NULL, *update_op = update("1", SOON);

	cr_assert_eq(await_by_fd(update_op), 1);
	cr_assert_eq(thc_op_listing(update_op, SOON, &listing), THC_E_STATE);
	says("this update has no listing");
	thc_op_free(update_op);
	script(agent.operation = FAKE_HOLD);
	cr_assert_eq(thc_list_submit(shard, THC_LIST_GROUP, SOON, &op), 0, "%s", thc_errmsg());
	cr_assert_eq(thc_op_listing(op, SOON, &listing), THC_E_STATE);
	says("has not ended yet");
	cr_assert_eq(thc_publish(shard, 1, SOON), THC_E_STATE);
	says("only one runs at a time");
	script({
		agent.operation = FAKE_COMPLETE;
		fake_agent_release(&agent, 0, NULL);
	});
	cr_assert_eq(await_by_fd(op), 1);
	/* Any number of times, each a listing of its own. */
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(thc_op_listing(op, SOON, &listing), 0, "%s", thc_errmsg());
		cr_assert_eq(agent.list_op_seq, 42); /* the operation's number at the server */
		cr_assert_eq(listing->num_versions, 1);
		thc_listing_free(listing);
	}
	thc_op_free(op);
	script(agent.operation_code = THC_E_GROUP_BROKEN);
	cr_assert_eq(thc_list_submit(shard, THC_LIST_GROUP, SOON, &op), 0, "%s", thc_errmsg());
	cr_assert_eq(thc_op_wait(op, SOON, NULL), THC_E_GROUP_BROKEN);
	cr_assert_eq(thc_op_listing(op, SOON, &listing), THC_E_STATE);
	says("thc_op_wait says why");
	thc_op_free(op);
}

static void *
takes_listing(void *arg)
{
	struct thc_listing *listing = NULL;

	cr_assert_eq(thc_op_listing(arg, SOON, &listing), 0, "%s", thc_errmsg());
	thc_listing_free(listing);
	return NULL;
}

/* The next operation would let the server forget the snapshot. */
Test(libthc_async, listing__while_it_is_taken__no_other_operation_begins)
{
	struct thc_listing *listing = NULL;
	struct thc_op *op = NULL;
	bool taking = false;
	pthread_t thread;

	cr_assert_eq(thc_list_submit(shard, THC_LIST_GROUP, SOON, &op), 0, "%s", thc_errmsg());
	cr_assert_eq(thc_op_wait(op, SOON, NULL), 0, "%s", thc_errmsg());
	fake_agent_freeze(&agent, true);
	cr_assert_eq(pthread_create(&thread, NULL, takes_listing, op), 0);
	while (!taking) {
		pthread_mutex_lock(&shard->lock);
		taking = shard->listing;
		pthread_mutex_unlock(&shard->lock);
		(void)sched_yield();
	}
	cr_assert_eq(thc_publish(shard, 1, SOON), THC_E_STATE);
	says("a grouped list of this handle runs");
	cr_assert_eq(thc_op_listing(op, SOON, &listing), THC_E_STATE);
	says("another thread");
	fake_agent_freeze(&agent, false);
	cr_assert_eq(pthread_join(thread, NULL), 0);
	cr_assert_eq(thc_publish(shard, 1, SOON), 0, "%s", thc_errmsg());
	thc_op_free(op);
}

/* ---- progress ------------------------------------------------------------------------------ */

Test(libthc_async, progress__before_during_and_after__is_of_this_operation)
{
	uint64_t done = 7, total = 7;
	struct thc_op *first = update("1", SOON);

	cr_assert_eq(thc_op_wait(first, SOON, NULL), 0);
	cr_assert_eq(thc_op_progress(first, &done, &total), 0);
	cr_assert_eq(done, 500);
	cr_assert_eq(total, 1000);
	/* The agent has not taken it yet: what the slot shows is of the one before. */
	script(agent.operation = FAKE_DEAF);
	struct thc_op *op = update("2", SOON);
	cr_assert_eq(thc_op_progress(op, &done, &total), 0);
	cr_assert_eq(done, 0);
	cr_assert_eq(total, 0);
	script(agent.operation = FAKE_HOLD);
	fake_agent_await(&agent, &agent.submissions, 2);
	cr_assert_eq(thc_op_progress(op, &done, NULL), 0);
	cr_assert_eq(done, 250);
	script(fake_agent_release(&agent, THC_E_CHECKSUM, "bytes differ"));
	cr_assert_eq(thc_op_wait(op, SOON, NULL), THC_E_CHECKSUM);
	cr_assert_eq(thc_op_progress(op, &done, &total), 0);
	cr_assert_eq(done, 500);
	cr_assert_eq(total, 1000);
	thc_op_free(op);
	/* The agent is lost: what was last seen stays. */
	op = held_update("3", SOON);
	script(fake_agent_hang_up(&agent));
	cr_assert_eq(thc_op_wait(op, SOON, NULL), THC_E_AGENT_LOST);
	cr_assert_eq(thc_op_progress(op, &done, &total), 0);
	cr_assert_eq(done, 250);
	cr_assert_eq(total, 1000);
	cr_assert_eq(thc_op_progress(first, &done, NULL), 0);
	cr_assert_eq(done, 500);
	thc_op_free(op);
	thc_op_free(first);
}

/* ---- cancel, free -------------------------------------------------------------------------- */

Test(libthc_async, cancel__running_operation__ends_as_the_agent_says)
{
	struct thc_op *op = held_update("1", SOON);

	cr_assert_eq(thc_op_cancel(op), 0);
	cr_assert_eq(thc_op_cancel(op), 0); /* asked once is enough */
	cr_assert_eq(await_by_fd(op), THC_E_CANCELLED);
	says("cancelled as asked");
	cr_assert_eq(agent.cancels, 1);
	thc_op_free(op);
	/* It has begun: it ends as it would have. */
	script(agent.ignore_cancel = true);
	op = held_update("2", SOON);
	cr_assert_eq(thc_op_cancel(op), 0);
	fake_agent_await(&agent, &agent.cancels, 2);
	cr_assert_eq(thc_op_done(op), 0);
	script(fake_agent_release(&agent, 0, NULL));
	cr_assert_eq(await_by_fd(op), 1);
	/* It has ended: nothing is asked any more. */
	cr_assert_eq(thc_op_cancel(op), 0);
	cr_assert_eq(thc_op_done(op), 1);
	thc_op_free(op);
	cr_assert_eq(agent.cancels, 2);
}

/* The end of a freed operation, which nobody is told of. */
static void
next_may_begin(void)
{
	int64_t until = th_now_ns() + SOON * MS;
	int rc;

	while ((rc = thc_publish(shard, 2, SOON)) == THC_E_STATE)
		cr_assert_lt(th_now_ns(), until);
	cr_assert_eq(rc, 0, "%s", thc_errmsg());
}

Test(libthc_async, free__running_operation__is_cancelled_and_tells_nothing)
{
	for (unsigned i = 0; i < 20; i++) {
		struct thc_op *op = held_update("1", SOON);
		cr_assert_geq(thc_fd(shard), 0);
		thc_op_free(op);
		fake_agent_await(&agent, &agent.cancels, i + 1);
		script(agent.operation = FAKE_COMPLETE);
		next_may_begin();
		becomes_quiet();
	}
}

/* Waits that timed out have left their submissions and cancels in a ring that nobody empties. */
Test(libthc_async, free__agent_takes_no_submissions__is_cancelled_when_it_does)
{
	bool no = false;

	script(agent.operation = FAKE_DEAF);
	struct thc_op *op = update("1", SOON);
	int rc = THC_E_TIMEOUT;
	while (agent.files.w->submitted < SHM_CAPACITY) {
		rc = thc_wait(shard, enough_now, &no, 20);
		cr_assert_eq(rc, THC_E_TIMEOUT, "%s", thc_errmsg());
	}
	cr_assert_eq(thc_op_cancel(op), THC_E_TIMEOUT);
	says("takes no submissions");
	thc_op_free(op);
	script(agent.operation = FAKE_HOLD_ODD);
	fake_agent_await(&agent, &agent.submissions, 2);
	next_may_begin();
}

/* ---- deadlines ----------------------------------------------------------------------------- */

Test(libthc_async, wait__its_own_deadline__operation_runs_on)
{
	struct thc_result result = THC_RESULT_INIT;
	struct thc_op *op = held_update("5", THC_FOREVER);
	int64_t begun = th_now_ns();

	result.version = 77;
	cr_assert_eq(agent.submission.deadline_ns, -1);
	cr_assert_eq(thc_op_wait(op, 0, &result), THC_E_TIMEOUT);
	cr_assert_eq(thc_op_wait(op, 60, &result), THC_E_TIMEOUT);
	says("runs on");
	cr_assert_geq(th_now_ns() - begun, 60 * MS);
	cr_assert_eq(result.version, 77);
	cr_assert_eq(thc_op_done(op), 0);
	script(fake_agent_release(&agent, 0, NULL));
	cr_assert_eq(thc_op_wait(op, THC_FOREVER, &result), 0);
	cr_assert_eq(result.version, 5);
	thc_op_free(op);
}

Test(libthc_async, wait__frozen_agent__ends_at_its_deadline_and_at_the_operations)
{
	struct thc_result result = THC_RESULT_INIT;
	struct thc_op *op = NULL, *next = NULL;

	fake_agent_freeze(&agent, true);
	int64_t begun = th_now_ns();
	op = update("5", 300);
	/* Before the operation's own deadline: it runs, as far as is known. */
	int rc = thc_op_wait(op, 50, NULL);
	cr_assert(rc == THC_E_TIMEOUT || th_now_ns() - begun > 300 * MS, "%d", rc);
	/* And from then on its outcome is unknown, however long the caller would wait. */
	cr_assert_eq(thc_op_wait(op, THC_FOREVER, NULL), THC_E_UNKNOWN);
	says("thc_resolve");
	cr_assert_eq(thc_op_done(op), 0);
	cr_assert_eq(thc_update_submit(shard, "6", SOON, &next), THC_E_STATE);
	says("thc_resolve");
	cr_assert_eq(thc_op_wait(op, 50, NULL), THC_E_UNKNOWN);
	cr_assert_eq(thc_resolve(shard, 50, NULL), THC_E_UNKNOWN);
	fake_agent_freeze(&agent, false);
	cr_assert_eq(await_by_fd(op), 1);
	cr_assert_eq(thc_op_wait(op, 0, &result), 0);
	cr_assert_eq(result.version, 5);
	/* Collected by thc_op_done, so there is nothing to be resolved. */
	cr_assert_eq(thc_resolve(shard, 0, NULL), THC_E_STATE);
	thc_op_free(op);
	next = update("6", SOON);
	cr_assert_eq(thc_op_wait(next, SOON, NULL), 0, "%s", thc_errmsg());
	thc_op_free(next);
}

Test(libthc_async, free__unknown_outcome__can_still_be_resolved)
{
	struct thc_result result = THC_RESULT_INIT;

	fake_agent_freeze(&agent, true);
	struct thc_op *op = update("5", 0);
	cr_assert_eq(thc_op_wait(op, THC_FOREVER, NULL), THC_E_UNKNOWN);
	thc_op_free(op);
	cr_assert_eq(thc_publish(shard, 6, SOON), THC_E_STATE);
	fake_agent_freeze(&agent, false);
	cr_assert_eq(thc_resolve(shard, SOON, &result), 0, "%s", thc_errmsg());
	cr_assert_eq(result.version, 5);
	cr_assert_eq(thc_publish(shard, 6, SOON), 0, "%s", thc_errmsg());
	becomes_quiet();
}

/* ---- close --------------------------------------------------------------------------------- */

Test(libthc_async, close__running_and_finished_operations__outlive_the_handle)
{
	struct thc_result result = THC_RESULT_INIT;
	struct thc_op *finished = update("1", SOON);
	uint64_t done = 0;

	cr_assert_eq(readable(SOON), 1);
	cr_assert_eq(thc_shard_events(shard), 0);
	struct thc_op *running = held_update("2", SOON);
	struct thc_op *freed_first = NULL;
	cr_assert_eq(thc_close(shard, 0, SOON), 0, "%s", thc_errmsg());
	shard = NULL;
	cr_assert_eq(thc_op_done(finished), 1);
	cr_assert_eq(thc_op_wait(finished, 0, &result), 0);
	cr_assert_eq(result.version, 1);
	cr_assert_eq(thc_op_done(running), THC_E_CANCELLED);
	says("closed");
	cr_assert_eq(thc_op_wait(running, THC_FOREVER, NULL), THC_E_CANCELLED);
	cr_assert_eq(thc_op_progress(running, &done, NULL), 0);
	cr_assert_eq(done, 250);
	cr_assert_eq(thc_op_cancel(running), 0);
	thc_op_free(running);
	thc_op_free(finished);
	/* And one that is freed without a look. */
	cr_assert_eq(try_open(&shard), 0, "%s", thc_errmsg());
	cr_assert_eq(register_w(shard, memory, SOON), 0, "%s", thc_errmsg());
	script(agent.operation = FAKE_HOLD);
	freed_first = update("3", SOON);
	cr_assert_eq(thc_close(shard, THC_CLOSE_ABANDON, SOON), 0, "%s", thc_errmsg());
	shard = NULL;
	thc_op_free(freed_first);
}

Test(libthc_async, close__fails__operation_runs_on)
{
	struct thc_op *op = held_update("2", SOON);

	script(agent.close_code = THC_E_TIMEOUT);
	cr_assert_eq(thc_close(shard, 0, SOON), THC_E_TIMEOUT);
	cr_assert_eq(thc_op_done(op), 0);
	script(fake_agent_release(&agent, 0, NULL));
	cr_assert_eq(await_by_fd(op), 1);
	thc_op_free(op);
	script(agent.close_code = 0);
}

Test(libthc_async, close__freed_operation_runs__leaves_nothing_behind)
{
	struct thc_op *op = NULL;

	script(agent.ignore_cancel = true);
	op = held_update("2", SOON);
	thc_op_free(op);
	cr_assert_eq(thc_close(shard, 0, SOON), 0, "%s", thc_errmsg());
	shard = NULL;
}

static void *
forever_main(void *arg)
{
	static int code;

	code = thc_op_wait(arg, THC_FOREVER, NULL);
	return &code;
}

Test(libthc_async, close__another_thread_waits_for_the_operation__that_call_ends)
{
	struct thc_op *op = held_update("2", THC_FOREVER);
	pthread_t thread;
	void *code = NULL;

	cr_assert_eq(pthread_create(&thread, NULL, forever_main, op), 0);
	cr_assert_eq(thc_close(shard, 0, SOON), 0, "%s", thc_errmsg());
	shard = NULL;
	cr_assert_eq(pthread_join(thread, &code), 0);
	cr_assert_eq(*(int *)code, THC_E_CANCELLED);
	thc_op_free(op);
}
