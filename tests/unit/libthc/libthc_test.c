/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_test - the shim against a scripted agent: what it sends, what it makes of answers, and
 * that every call ends in time when the agent refuses, lies, freezes or goes.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/sock/peer.h"
#include "tests/unit/libthc/libthc_fixture.h"

#define MS INT64_C(1000000)

static int
open_for(int64_t timeout_ms)
{
	struct thc_open_opts opts = good_opts();

	opts.shard = 1;
	opts.num_shards = 2;
	opts.lineage = 9;
	return thc_open(&opts, timeout_ms, &shard);
}

static void
setup_open(void)
{
	setup_memory();
	cr_assert_eq(open_for(SOON), 0, "%s", thc_errmsg());
}

static int
register_two(void)
{
	const struct thc_tensor tensors[] = {
		{"w", memory, 24, THC_F32, THC_HOST, 2, {2, 3}, {0}, {0}},
		{"tied", memory, 24, THC_F32, THC_HOST, 2, {2, 3}, {0}, {0}},
		{"empty", NULL, 0, THC_F32, THC_HOST, 1, {0}, {0}, {0}},
	};

	return thc_register(shard, tensors, 3, sizeof(tensors[0]), SOON);
}

static void
setup_two(void)
{
	setup_open();
	cr_assert_eq(register_two(), 0, "%s", thc_errmsg());
}

TestSuite(libthc_open, .init = setup_memory, .fini = teardown_memory, .timeout = 30);
TestSuite(libthc, .init = setup_open, .fini = teardown_memory, .timeout = 30);
TestSuite(libthc_op, .init = setup_two, .fini = teardown_memory, .timeout = 30);

/* ---- open ---------------------------------------------------------------------------------- */

Test(libthc_open, open__agent_accepts__gets_all_options)
{
	cr_assert_eq(open_for(SOON), 0, "%s", thc_errmsg());
	cr_assert_str_eq(agent.opened.model, "llama");
	cr_assert_str_eq(agent.opened.replica, "trainer");
	cr_assert_eq(agent.opened.shard, 1);
	cr_assert_eq(agent.opened.num_shards, 2);
	cr_assert_eq(agent.opened.lineage, 9);
	cr_assert_eq(thc_safe_to_mutate(shard), 1);
	cr_assert_eq(thc_shard_events(shard), 0);
	cr_assert_eq(thc_close(shard, 0, SOON), 0);
	cr_assert_eq(agent.closes, 1);
	shard = NULL;
}

Test(libthc_open, open__protocol_ranges_do_not_overlap__names_both)
{
	agent.hello = FAKE_REFUSE_HELLO;
	agent.refuse_code = THC_E_PROTOCOL;
	agent.refuse_text = "this agent speaks protocol 3 to 4, the worker 1 to 1";
	cr_assert_eq(open_for(SOON), THC_E_PROTOCOL);
	says("3 to 4");
	says("1 to 1");
	script((agent.hello = FAKE_WELCOME, agent.protocol = 7));
	cr_assert_eq(open_for(SOON), THC_E_PROTOCOL);
	says("protocol 7 to 7");
	says("this libthc 1 to 1");
	cr_assert_null(shard);
}

Test(libthc_open, open__agent_refuses_or_lies__says_so)
{
	const struct {
		enum fake_hello hello;
		enum fake_open open;
		int refuse_code, code;
	} cases[] = {
		{FAKE_REFUSE_HELLO, FAKE_SESSION, THC_E_DENIED, THC_E_DENIED},
		{FAKE_REFUSE_HELLO, FAKE_SESSION, 12, THC_E_PROTOCOL},
		{FAKE_REFUSE_HELLO, FAKE_SESSION, 0, THC_E_PROTOCOL},
		{FAKE_REFUSE_HELLO, FAKE_SESSION, -99999, THC_E_PROTOCOL},
		{FAKE_GARBAGE_HELLO, FAKE_SESSION, 0, THC_E_PROTOCOL},
		{FAKE_HANG_UP_HELLO, FAKE_SESSION, 0, THC_E_AGENT_LOST},
		{FAKE_WELCOME, FAKE_REFUSE_OPEN, THC_E_GROUP_MISMATCH, THC_E_GROUP_MISMATCH},
		{FAKE_WELCOME, FAKE_HANG_UP_OPEN, 0, THC_E_AGENT_LOST},
		{FAKE_WELCOME, FAKE_WRONG_MESSAGE, 0, THC_E_PROTOCOL},
		{FAKE_WELCOME, FAKE_BAD_FILES, 0, THC_E_PROTOCOL},
	};

	for (size_t i = 0; i < TH_ARRAY_LEN(cases); i++) {
		script({
			agent.hello = cases[i].hello;
			agent.open = cases[i].open;
			agent.refuse_code = cases[i].refuse_code;
			agent.refuse_text = "as\nthe script says";
		});
		int rc = open_for(SOON);
		cr_assert_eq(rc, cases[i].code, "case %zu: %d %s", i, rc, thc_errmsg());
		cr_assert_null(strchr(thc_errmsg(), '\n'));
		cr_assert_null(shard);
	}
}

/* ---- every call ends in time --------------------------------------------------------------- */

static int64_t begun_ns;

static void
begin(void)
{
	begun_ns = th_now_ns();
}

/* At the earliest at the deadline, at the latest a second later. */
static void
ended_within(int64_t timeout_ms)
{
	int64_t took = th_now_ns() - begun_ns;

	cr_assert_geq(took, timeout_ms * MS);
	cr_assert_lt(took, (timeout_ms + 1000) * MS);
}

Test(libthc_open, open__agent_does_not_answer__ends_in_time)
{
	agent.hello = FAKE_SILENT_HELLO;
	begin();
	cr_assert_eq(open_for(200), THC_E_TIMEOUT);
	ended_within(200);
	begin();
	cr_assert_eq(open_for(0), THC_E_TIMEOUT);
	ended_within(0);
}

Test(libthc, frozen_agent__documents_and_close__end_in_time)
{
	struct thc_listing *listing = NULL;

	fake_agent_freeze(&agent, true);
	begin();
	cr_assert_eq(thc_list(shard, 0, 200, &listing), THC_E_TIMEOUT);
	ended_within(200);
	begin();
	cr_assert_eq(thc_close(shard, 0, 100), THC_E_TIMEOUT);
	ended_within(100);
	cr_assert_eq(thc_safe_to_mutate(shard), 1); /* nothing was ever registered */
	fake_agent_freeze(&agent, false);
	cr_assert_eq(thc_close(shard, 0, SOON), 0, "%s", thc_errmsg());
	cr_assert_eq(agent.closes, 1); /* the answer to the first was still due */
	shard = NULL;
}

Test(libthc_op, frozen_agent__operation__is_unknown_and_resolved_later)
{
	struct thc_result result = THC_RESULT_INIT;
	struct thc_listing *listing = NULL;

	fake_agent_freeze(&agent, true);
	begin();
	cr_assert_eq(thc_publish(shard, 17, 200), THC_E_UNKNOWN);
	ended_within(200);
	says("thc_resolve");
	cr_assert_eq(thc_publish(shard, 18, 200), THC_E_STATE);
	says("thc_resolve");
	cr_assert_eq(thc_list(shard, 0, SOON, &listing), THC_E_STATE);
	cr_assert_eq(thc_unregister(shard, SOON), THC_E_STATE);
	begin();
	cr_assert_eq(thc_resolve(shard, 100, NULL), THC_E_UNKNOWN);
	ended_within(100);
	fake_agent_freeze(&agent, false);
	cr_assert_eq(thc_resolve(shard, SOON, &result), 0, "%s", thc_errmsg());
	cr_assert_eq(result.version, 17);
	cr_assert_eq(thc_resolve(shard, SOON, NULL), THC_E_STATE);
	cr_assert_eq(thc_publish(shard, 18, SOON), 0, "%s", thc_errmsg());
}

Test(libthc_op, dead_agent__blocked_call__ends_at_once)
{
	struct thc_op *op = NULL;

	script(agent.operation = FAKE_HOLD);
	cr_assert_eq(thc_replicate_submit(shard, "latest", THC_FOREVER, &op), 0);
	fake_agent_await(&agent, &agent.submissions, 1);
	script(fake_agent_hang_up(&agent));
	begin();
	cr_assert_eq(thc_op_wait(op, THC_FOREVER, NULL), THC_E_AGENT_LOST);
	ended_within(0);
	thc_op_free(op);
	cr_assert_eq(thc_publish(shard, 1, SOON), THC_E_AGENT_LOST);
	says("hung up");
	cr_assert_eq(thc_held_version(shard, NULL, NULL), THC_E_AGENT_LOST);
	cr_assert_eq(thc_shard_events(shard), THC_EV_AGENT_LOST);
	cr_assert_eq(thc_shard_events(shard), 0);
	/* It hung up, but its process lives: nothing is proven. */
	cr_assert_eq(thc_safe_to_mutate(shard), 0);
	cr_assert_eq(thc_free(memory), THC_E_STATE);
	begin();
	cr_assert_eq(thc_close(shard, 0, SOON), 0);
	ended_within(0);
	shard = NULL;
}

Test(libthc_open, agents_process_ends__memory_is_safe)
{
	pid_t child = fork();

	if (child == 0) {
		(void)pause();
		_exit(0);
	}
	agent.pidfd = peer_pidfd_by_pid(child);
	cr_assert_geq(agent.pidfd, 0);
	cr_assert_eq(open_for(SOON), 0);
	cr_assert_eq(register_two(), 0);
	script({
		agent.line.safe_to_mutate = 0;
		agent.line.heartbeat_ns = 0;
		fake_agent_line(&agent);
	});
	cr_assert_eq(thc_safe_to_mutate(shard), 0);
	cr_assert_eq(kill(child, SIGKILL), 0);
	cr_assert_eq(waitpid(child, NULL, 0), child);
	script(agent.operation = FAKE_HOLD); /* a process that has ended completes nothing */
	cr_assert_eq(thc_publish(shard, 1, SOON), THC_E_AGENT_LOST);
	says("has ended");
	script(th_fd_close(&agent.lifeline[1]));
	cr_assert_eq(thc_safe_to_mutate(shard), 1);
	cr_assert_eq(thc_shard_events(shard), THC_EV_AGENT_LOST);
	th_fd_close(&agent.pidfd);
}

Test(libthc_op, agent_breaks_the_rules__handle_is_lost)
{
	const enum fake_operation lies[] = {FAKE_BAD_OP_SEQ, FAKE_NO_RESULT, FAKE_BAD_INDEX};

	for (size_t i = 0; i < TH_ARRAY_LEN(lies); i++) {
		script(agent.operation = lies[i]);
		cr_assert_eq(thc_publish(shard, 1, SOON), THC_E_AGENT_LOST, "case %zu", i);
		cr_assert_eq(thc_close(shard, 0, SOON), 0);
		shard = NULL;
		script(agent.operation = FAKE_COMPLETE);
		cr_assert_eq(open_for(SOON), 0, "%s", thc_errmsg());
		cr_assert_eq(register_two(), 0, "%s", thc_errmsg());
	}
}

Test(libthc, documents__refused_garbage_or_hang_up__say_so)
{
	struct thc_listing *listing = NULL;

	script(agent.request_code = THC_E_NO_SERVER);
	cr_assert_eq(thc_list(shard, 0, SOON, &listing), THC_E_NO_SERVER);
	says("refused as told");
	script((agent.request_code = 0, agent.request_garbage = true));
	cr_assert_eq(thc_list(shard, 0, SOON, &listing), THC_E_PROTOCOL);
	script((agent.request_garbage = false, agent.request_hang_up = true));
	cr_assert_eq(thc_list(shard, 0, SOON, &listing), THC_E_AGENT_LOST);
	script((agent.request_hang_up = false, agent.request_silent = true));
	begin();
	cr_assert_eq(thc_list(shard, 0, 100, &listing), THC_E_TIMEOUT);
	ended_within(100);
	script(agent.request_silent = false);
	cr_assert_eq(thc_list(shard, 0, SOON, &listing), 0, "%s", thc_errmsg());
	thc_listing_free(listing);
}

/* ---- registration -------------------------------------------------------------------------- */

Test(libthc, register__again_and_again__gives_each_memory_object_once)
{
	for (int i = 0; i < 3; i++) {
		cr_assert_eq(register_two(), 0, "%s", thc_errmsg());
		cr_assert_eq(agent.rows, 3);
		cr_assert_eq(agent.rows_bytes, 48);
		cr_assert_eq(agent.memories, 1);
		cr_assert_eq(agent.memory.base, (uint64_t)(uintptr_t)memory);
		cr_assert_eq(agent.memory.bytes, 1 << 16);
		cr_assert_eq(thc_unregister(shard, SOON), 0, "%s", thc_errmsg());
	}
	cr_assert_eq(agent.registers, 3);
	cr_assert_eq(agent.unregisters, 3);
	cr_assert_eq(thc_free(memory), 0);
	fake_agent_await(&agent, &agent.forgets, 1);
	cr_assert_eq(thc_alloc(1 << 16, 0, (void **)&memory), 0);
	cr_assert_eq(register_two(), 0, "%s", thc_errmsg());
	cr_assert_eq(agent.memories, 2);
}

Test(libthc, register__agent_refuses__nothing_is_held)
{
	script(agent.memory_code = THC_E_MEMORY_KIND);
	cr_assert_eq(register_two(), THC_E_MEMORY_KIND);
	says("not taken here");
	script((agent.memory_code = 0, agent.request_code = THC_E_LIMIT));
	cr_assert_eq(register_two(), THC_E_LIMIT);
	script((agent.request_code = 0, agent.tensors_max = 2));
	cr_assert_eq(thc_unregister(shard, SOON), THC_E_STATE);
	/* Refused twice, and still free to go. */
	cr_assert_eq(thc_free(memory), 0, "%s", thc_errmsg());
	cr_assert_eq(thc_alloc(1 << 16, 0, (void **)&memory), 0);
}

Test(libthc, register__no_answer__is_undone_by_the_next_call)
{
	struct thc_tensor tensor = {"w", memory, 24, THC_F32, THC_HOST, 2, {2, 3}, {0}, {0}};

	script(agent.request_silent = true);
	begin();
	cr_assert_eq(thc_register(shard, &tensor, 1, sizeof(tensor), 100), THC_E_TIMEOUT);
	ended_within(100);
	cr_assert_eq(thc_free(memory), THC_E_STATE); /* the agent may use it */
	cr_assert_eq(thc_publish(shard, 1, SOON), THC_E_STATE);
	script(agent.request_silent = false);
	cr_assert_eq(register_two(), 0, "%s", thc_errmsg());
	cr_assert_eq(agent.unregisters, 1);
}

Test(libthc, register__100000_tensors__travels_in_parts)
{
	const size_t count = 100000;
	struct thc_tensor *tensors = calloc(count, sizeof(*tensors));
	char(*names)[16] = calloc(count, sizeof(*names));

	for (size_t i = 0; i < count; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "layer.%zu", i);
		tensors[i] = (struct thc_tensor){
			.name = names[i], .dtype = THC_U8, .device = THC_HOST, .ndim = 1};
		if (i < 1000) {
			tensors[i].data = memory + i;
			tensors[i].bytes = 1;
			tensors[i].local_shape[0] = 1;
		}
	}
	cr_assert_eq(thc_register(shard, tensors, count, sizeof(*tensors), 20000), 0, "%s",
		thc_errmsg());
	cr_assert_eq(agent.rows, count);
	cr_assert_eq(agent.rows_bytes, 1000);
	cr_assert_gt(agent.requests, 2);
	cr_assert_eq(agent.registers, 1);
	free(tensors);
	free(names);
}

/* ---- operations ---------------------------------------------------------------------------- */

Test(libthc_op, blocking_calls__answer_with_the_agents_result)
{
	struct thc_result result = THC_RESULT_INIT;

	cr_assert_eq(thc_publish(shard, 17, SOON), 0, "%s", thc_errmsg());
	cr_assert_eq(agent.submission.kind, SHM_PUBLISH);
	cr_assert_str_eq(agent.submission.version_spec, "17");
	cr_assert_gt(agent.submission.deadline_ns, 0);
	cr_assert_leq(agent.submission.deadline_ns, SOON * MS);
	cr_assert_eq(thc_unpublish(shard, 0, THC_FOREVER), 0);
	cr_assert_eq(agent.submission.kind, SHM_UNPUBLISH);
	cr_assert_eq(agent.submission.deadline_ns, -1);
	cr_assert_eq(thc_replicate(shard, "18", SOON, &result), 0);
	cr_assert_eq(agent.submission.kind, SHM_REPLICATE);
	cr_assert_eq(result.struct_size, sizeof(result));
	cr_assert_eq(result.lineage, 3);
	cr_assert_eq(result.version, 18);
	cr_assert_eq(result.updated, 1);
	cr_assert_eq(result.bytes_moved, 1000);
	cr_assert_str_eq(result.source, "trainer");
	cr_assert_str_eq(result.transport, "tcp");
	script((agent.operation_code = THC_E_LAYOUT, agent.operation_text = "tensor 'w' differs"));
	result.version = 5;
	cr_assert_eq(thc_update(shard, "latest-2", SOON, &result), THC_E_LAYOUT);
	cr_assert_str_eq(thc_errmsg(), "tensor 'w' differs");
	cr_assert_str_eq(agent.submission.version_spec, "latest-2");
	cr_assert_eq(result.version, 5);
}

Test(libthc_op, submit__one_group_operation_at_a_time__and_fd_tells_its_end)
{
	struct thc_op *op = NULL, *other = NULL;
	uint64_t done = 0, total = 0;
	struct pollfd poll_fd = {.fd = thc_fd(shard), .events = POLLIN};

	cr_assert_geq(poll_fd.fd, 0);
	cr_assert_eq(poll(&poll_fd, 1, 0), 0);
	script(agent.operation = FAKE_HOLD);
	cr_assert_eq(thc_update_submit(shard, "latest", SOON, &op), 0);
	fake_agent_await(&agent, &agent.submissions, 1);
	cr_assert_eq(thc_op_done(op), 0);
	cr_assert_eq(thc_publish_submit(shard, 1, SOON, &other), THC_E_STATE);
	cr_assert_eq(thc_op_progress(op, &done, &total), 0);
	cr_assert_eq(done, 250);
	cr_assert_eq(total, 1000);
	begin();
	cr_assert_eq(thc_op_wait(op, 50, NULL), THC_E_TIMEOUT);
	ended_within(50);
	cr_assert_eq(poll(&poll_fd, 1, 0), 0);
	script(fake_agent_release(&agent, 0, NULL));
	cr_assert_eq(poll(&poll_fd, 1, SOON), 1);
	/* Seen by another call, but not collected: it stays readable. */
	cr_assert_eq(thc_shard_events(shard), 0);
	cr_assert_eq(poll(&poll_fd, 1, 0), 1);
	cr_assert_eq(thc_op_done(op), 1);
	cr_assert_eq(poll(&poll_fd, 1, 0), 0);
	cr_assert_eq(thc_op_done(op), 1);
	cr_assert_eq(thc_op_progress(op, &done, &total), 0);
	cr_assert_eq(done, 500);
	thc_op_free(op);
}

Test(libthc_op, cancel_and_free__running_operation__ends_cancelled)
{
	struct thc_op *op = NULL;

	script(agent.operation = FAKE_HOLD);
	cr_assert_eq(thc_replicate_submit(shard, "9", SOON, &op), 0);
	cr_assert_eq(thc_op_cancel(op), 0);
	cr_assert_eq(thc_op_wait(op, SOON, NULL), THC_E_CANCELLED);
	says("cancelled as asked");
	thc_op_free(op);
	/* Freed while it runs: cancelled by itself, and the next may come when it has ended. */
	cr_assert_eq(thc_replicate_submit(shard, "9", SOON, &op), 0);
	thc_op_free(op);
	fake_agent_await(&agent, &agent.cancels, 2);
	script(agent.operation = FAKE_COMPLETE);
	int rc;
	while ((rc = thc_publish(shard, 1, SOON)) == THC_E_STATE)
		(void)sched_yield();
	cr_assert_eq(rc, 0, "%s", thc_errmsg());
}

Test(libthc_op, close__with_an_operation_open__leaves_it_cancelled)
{
	struct thc_op *op = NULL;

	script(agent.operation = FAKE_HOLD);
	cr_assert_eq(thc_replicate_submit(shard, "9", SOON, &op), 0);
	cr_assert_eq(thc_close(shard, 0, SOON), 0, "%s", thc_errmsg());
	shard = NULL;
	cr_assert_eq(thc_op_done(op), THC_E_CANCELLED);
	cr_assert_eq(thc_op_wait(op, SOON, NULL), THC_E_CANCELLED);
	cr_assert_eq(thc_op_cancel(op), 0);
	thc_op_free(op);
}

Test(libthc_op, attributes__set__are_sent_before_each_publish)
{
	cr_assert_eq(thc_publish(shard, 1, SOON), 0);
	cr_assert_eq(agent.attribute_parts, 0);
	cr_assert_eq(thc_set_attribute(shard, "header", "{}", 2), 0);
	cr_assert_eq(agent.attribute_parts, 0);
	cr_assert_eq(thc_publish(shard, 2, SOON), 0);
	cr_assert_eq(agent.attribute_parts, 1);
	cr_assert_eq(thc_set_attribute(shard, "header", NULL, 0), 0);
	cr_assert_eq(thc_publish(shard, 3, SOON), 0);
	cr_assert_eq(agent.attribute_parts, 2);
	cr_assert_eq(thc_publish(shard, 4, SOON), 0);
	cr_assert_eq(agent.attribute_parts, 2);
}

/* ---- questions, listings ------------------------------------------------------------------- */

Test(libthc, line__events_and_held_version__are_seen_once)
{
	uint64_t lineage = 0, version = 0;
	struct pollfd poll_fd = {.fd = thc_fd(shard), .events = POLLIN};

	script({
		agent.line.held_lineage = 3;
		agent.line.held_version = 17;
		agent.line.safe_to_mutate = 0;
		agent.line.events[SHM_EV_BROKEN]++;
		agent.line.events[SHM_EV_EVICTED] = 2;
		fake_agent_line(&agent);
	});
	cr_assert_eq(poll(&poll_fd, 1, SOON), 1);
	cr_assert_eq(thc_held_version(shard, &lineage, &version), 0);
	cr_assert_eq(lineage, 3);
	cr_assert_eq(version, 17);
	cr_assert_eq(thc_safe_to_mutate(shard), 0);
	cr_assert_eq(poll(&poll_fd, 1, 0), 1);
	cr_assert_eq(thc_shard_events(shard), THC_EV_GROUP_BROKEN | THC_EV_EVICTED);
	cr_assert_eq(poll(&poll_fd, 1, 0), 0);
	cr_assert_eq(thc_shard_events(shard), 0);
}

/* The agent's word, as it writes it. */
static void
ready(uint64_t version)
{
	script({
		agent.line.ready_lineage = 3;
		agent.line.ready_version = version;
		agent.line.events[SHM_EV_READY]++;
		fake_agent_line(&agent);
	});
}

static void
none_is_ready(const char *why)
{
	uint64_t lineage = 1, version = 2;

	cr_assert_eq(thc_ready_version(shard, &lineage, &version), THC_E_NOT_AVAILABLE);
	says(why);
	cr_assert(lineage == 1 && version == 2);
}

Test(libthc, ready_version__without_the_flags__says_so)
{
	ready(17);
	none_is_ready("opened without THC_PREFETCH and THC_OFFLOAD_SEED");
}

Test(libthc, ready_version__told_and_taken_back__wakes_who_polls)
{
	const uint32_t flags[] = {THC_PREFETCH, THC_OFFLOAD_SEED};
	struct thc_open_opts opts = good_opts();
	uint64_t lineage = 0, version = 0;

	for (size_t i = 0; i < TH_ARRAY_LEN(flags); i++) {
		good(thc_close(shard, 0, SOON));
		opts.flags = flags[i];
		good(thc_open(&opts, SOON, &shard));
		cr_assert_eq(agent.opened.flags, flags[i]);
		struct pollfd poll_fd = {.fd = thc_fd(shard), .events = POLLIN};
		none_is_ready("no newer version is whole");
		ready(17);
		cr_assert_eq(poll(&poll_fd, 1, SOON), 1);
		cr_assert_eq(thc_shard_events(shard), THC_EV_READY);
		good(thc_ready_version(shard, &lineage, &version));
		cr_assert(lineage == 3 && version == 17);
		good(thc_ready_version(shard, NULL, NULL));
		/* Taken back: that is no event. */
		script(agent.line.ready_version = UINT64_MAX; fake_agent_line(&agent));
		none_is_ready("no newer version is whole");
		cr_assert_eq(thc_shard_events(shard), 0);
		script(fake_agent_line_half(&agent));
		none_is_ready("the agent was stopped while it wrote the version");
	}
}

/* ---- following ----------------------------------------------------------------------------- */

Test(libthc, follow__direct_memory__is_an_operation_of_a_kind_of_its_own)
{
	cr_assert_eq(thc_follow(shard, "latest", 0, SOON), THC_E_STATE);
	says("thc_register");
	good(register_two());
	good(thc_follow(shard, "latest", 0, SOON));
	cr_assert_eq(agent.submission.kind, SHM_FOLLOW);
	cr_assert_str_eq(agent.submission.version_spec, "latest");
	cr_assert_eq(agent.submission.flags, 0);
	good(thc_follow(shard, NULL, 0, SOON));
	cr_assert_eq(agent.submission.kind, SHM_FOLLOW);
	cr_assert_str_eq(agent.submission.version_spec, "");
}

/* What the agent reaches by descriptor or address must be looked at before each transfer. */
Test(libthc, follow__memory_that_is_copied__names_the_tensor)
{
	char *plain = calloc(1, 64);
	struct thc_op *op = NULL;
	const struct thc_tensor tensor = {"plain", plain, 64, THC_U8, THC_HOST, 1, {64}, {0}, {0}};

	good(thc_register(shard, &tensor, 1, sizeof(tensor), SOON));
	unsigned before = agent.submissions;
	cr_assert_eq(thc_follow(shard, "latest", 0, SOON), THC_E_MEMORY_KIND);
	says("tensor 'plain'");
	cr_assert_eq(thc_follow_submit(shard, "latest", 0, SOON, &op), THC_E_MEMORY_KIND);
	cr_assert_eq(agent.submissions, before);
	good(thc_unregister(shard, SOON));
	free(plain);
}

Test(libthc, follow__runs__is_the_one_operation)
{
	struct thc_op *op = NULL;

	good(register_two());
	script(agent.operation = FAKE_HOLD);
	good(thc_update_submit(shard, "latest", SOON, &op));
	cr_assert_eq(thc_follow(shard, "latest", 0, SOON), THC_E_STATE);
	says("update");
	fake_agent_await(&agent, &agent.submissions, 1);
	script(fake_agent_release(&agent, 0, NULL));
	good(thc_op_wait(op, SOON, NULL));
	thc_op_free(op);
	/* What had no answer in time is unknown, as of any operation of the group. */
	script(agent.ignore_cancel = true);
	cr_assert_eq(thc_follow(shard, NULL, 0, 0), THC_E_UNKNOWN);
	says("the follow had no outcome");
	fake_agent_await(&agent, &agent.submissions, 2);
	script(fake_agent_release(&agent, 0, NULL));
	good(thc_resolve(shard, SOON, NULL));
}

Test(libthc, follow__agent_of_an_older_release__said_so)
{
	struct thc_op *op = NULL;

	good(thc_close(shard, 0, SOON));
	script(agent.no_gpus = true);
	good(try_open(&shard));
	cr_assert_eq(thc_follow(shard, NULL, 0, SOON), THC_E_PROTOCOL);
	says("follows nothing");
	cr_assert_eq(thc_follow_submit(shard, NULL, 0, SOON, &op), THC_E_PROTOCOL);
}

Test(libthc, follow_submit__is_waited_for_as_any)
{
	struct thc_op *op = NULL;

	good(register_two());
	script(agent.operation = FAKE_HOLD);
	good(thc_follow_submit(shard, "latest", 0, SOON, &op));
	cr_assert_eq(thc_op_done(op), 0);
	fake_agent_await(&agent, &agent.submissions, 1);
	script(fake_agent_release(&agent, 0, NULL));
	good(thc_op_wait(op, SOON, NULL));
	thc_op_free(op);
	cr_assert_eq(agent.submission.kind, SHM_FOLLOW);
}

Test(libthc, follow__memory_is_not_mapped_any_more__says_so)
{
	void *own = NULL;
	struct thc_op *op = NULL;

	good(thc_alloc(4096, 0, &own));
	const struct thc_tensor tensor = {"gone", own, 64, THC_U8, THC_HOST, 1, {64}, {0}, {0}};
	good(thc_register(shard, &tensor, 1, sizeof(tensor), SOON));
	cr_assert_eq(munmap(own, 4096), 0);
	cr_assert_eq(thc_follow_submit(shard, "latest", 0, SOON, &op), THC_E_STALE_MEMORY);
	says("'gone'");
}

Test(libthc, followed__held_and_event__in_one_look)
{
	struct pollfd poll_fd = {.fd = thc_fd(shard), .events = POLLIN};
	uint64_t version = 0;

	script({
		agent.line.held_version = 18;
		agent.line.events[SHM_EV_UPDATED]++;
		fake_agent_line(&agent);
	});
	cr_assert_eq(poll(&poll_fd, 1, SOON), 1);
	good(thc_held_version(shard, NULL, &version));
	cr_assert_eq(version, 18);
	cr_assert_eq(thc_shard_events(shard), THC_EV_UPDATED);
	script(agent.line.events[SHM_EV_FOLLOW_FAILED]++; fake_agent_line(&agent));
	cr_assert_eq(thc_shard_events(shard), THC_EV_FOLLOW_FAILED);
	cr_assert_eq(thc_shard_events(shard), 0);
}

Test(libthc, list__agents_listing__is_converted)
{
	struct thc_listing *listing = NULL;

	cr_assert_eq(thc_list(shard, 0, SOON, &listing), 0, "%s", thc_errmsg());
	cr_assert_eq(agent.list_op_seq, 0);
	cr_assert_eq(listing->struct_size, sizeof(*listing));
	cr_assert_eq(listing->generation, 5);
	cr_assert_eq(listing->num_versions, 1);
	cr_assert_eq(listing->versions[0].lineage, 3);
	cr_assert_eq(listing->versions[0].version, 5);
	cr_assert_eq(listing->versions[0].num_replicas, 1);
	const struct thc_replica_info *replica = &listing->versions[0].replicas[0];
	cr_assert_str_eq(replica->name, "trainer");
	cr_assert_str_eq(replica->datacenter, "default");
	cr_assert_eq(replica->flags, THC_REPLICA_READY);
	cr_assert_float_eq(replica->progress, 0.25, 1e-9);
	thc_listing_free(listing);
	cr_assert_eq(thc_list(shard, THC_LIST_GROUP, SOON, &listing), 0, "%s", thc_errmsg());
	cr_assert_eq(agent.submission.kind, SHM_LIST);
	cr_assert_eq(agent.list_op_seq, 42); /* the operation's number at the server */
	thc_listing_free(listing);
}

/* What an agent sends is shown to people: in the path of memory, in results, in names. */
Test(libthc, texts__of_a_rude_agent__reach_no_terminal)
{
	struct thc_result result = THC_RESULT_INIT;
	struct thc_listing *listing = NULL;
	char path[64];

	script(agent.rude = true);
	cr_assert_eq(register_two(), 0, "%s", thc_errmsg());
	cr_assert_eq(thc_memory_path(shard, "w", path, sizeof(path)), 0);
	cr_assert_str_eq(path, "?[2J?[2J?[2J?[2 (memfd, mapped by the agent)");
	cr_assert_eq(thc_replicate(shard, "18", SOON, &result), 0);
	cr_assert_eq(strncmp(result.source, "?[2J?", 5), 0);
	cr_assert_eq(strncmp(result.transport, "?[2J?", 5), 0);
	cr_assert_eq(thc_list(shard, 0, SOON, &listing), THC_E_PROTOCOL);
	says("name");
}

static int
version_is_7(const struct thc_listing *listing, void *arg)
{
	unsigned *calls = arg;

	++*calls;
	/* Under no lock of libthc: other calls work here. */
	cr_assert_eq(thc_shard_events(shard), 0);
	if (*calls == 1)
		script({
			agent.generation = 7;
			agent.operation = FAKE_COMPLETE;
		});
	return listing->versions[0].version == 7;
}

Test(libthc, wait__generation_changes__asks_the_predicate_again)
{
	unsigned calls = 0;

	cr_assert_eq(thc_wait(shard, version_is_7, &calls, SOON), 0, "%s", thc_errmsg());
	cr_assert_eq(calls, 2);
	cr_assert_eq(agent.submission.kind, SHM_WATCH);
	cr_assert_str_eq(agent.submission.version_spec, "5");
	script(agent.operation = FAKE_HOLD);
	begin();
	cr_assert_eq(thc_wait(shard, never, NULL, 100), THC_E_TIMEOUT);
	ended_within(100);
	says("predicate: ");
	fake_agent_await(&agent, &agent.cancels, 1); /* the watch does not stay behind */
	cr_assert_eq(thc_wait(shard, never, NULL, 0), THC_E_TIMEOUT);
}

/* ---- fork ---------------------------------------------------------------------------------- */

Test(libthc_op, fork__childs_handles__answer_forked_and_parents_work)
{
	struct thc_op *op = NULL;

	script(agent.operation = FAKE_HOLD);
	cr_assert_eq(thc_update_submit(shard, "latest", SOON, &op), 0);
	pid_t child = fork();
	if (child == 0) {
		struct thc_listing *listing;
		int good = thc_publish(shard, 1, 0) == THC_E_FORKED &&
			   thc_held_version(shard, NULL, NULL) == THC_E_FORKED &&
			   thc_safe_to_mutate(shard) == THC_E_FORKED &&
			   thc_list(shard, 0, 0, &listing) == THC_E_FORKED &&
			   thc_fd(shard) == THC_E_FORKED && thc_op_done(op) == THC_E_FORKED &&
			   thc_close(shard, THC_CLOSE_ABANDON, 0) == THC_E_FORKED &&
			   thc_shard_events(shard) == 0;
		thc_op_free(op);
		_exit(good ? 0 : 1);
	}
	int status = 1;
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_assert_eq(status, 0);
	fake_agent_await(&agent, &agent.submissions, 1);
	script(fake_agent_release(&agent, 0, NULL));
	cr_assert_eq(thc_op_wait(op, SOON, NULL), 0, "%s", thc_errmsg());
	thc_op_free(op);
	cr_assert_eq(agent.hang_ups, 0);
}
