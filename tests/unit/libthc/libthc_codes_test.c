/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_codes_test - each code that a call's page names, made to happen once, by rows: which calls
 * a cause concerns and what each of them answers then. The causes are a scripted agent's; the same
 * ones with real daemons are in tests/e2e. The calls are remembered
 * (tests/support/libthc/calls_seen.c), and tests/style/contract_seen.py compares them with the
 * pages.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "libthc/libthc_own.h"
#include "tests/unit/libthc/libthc_fixture.h"

static struct thc_op *op;

/* ---- the calls ----------------------------------------------------------------------------- */

static int64_t timeout_ms = SOON;

#define CALL(name, expression)                                                                     \
	static int call_##name(void)                                                               \
	{                                                                                          \
		return (expression);                                                               \
	}

CALL(close, thc_close(shard, 0, timeout_ms))

static int
call_register(void)
{
	return register_w(shard, memory, timeout_ms);
}

CALL(unregister, thc_unregister(shard, timeout_ms))

static int
call_memory_path(void)
{
	char text[64];

	return thc_memory_path(shard, "w", text, sizeof(text));
}

CALL(publish, thc_publish(shard, 1, timeout_ms))
CALL(unpublish, thc_unpublish(shard, 0, timeout_ms))
CALL(safe_to_mutate, thc_safe_to_mutate(shard))
CALL(replicate, thc_replicate(shard, "latest", timeout_ms, NULL))
CALL(update, thc_update(shard, "latest", timeout_ms, NULL))
CALL(held_version, thc_held_version(shard, NULL, NULL))
CALL(ready_version, thc_ready_version(shard, NULL, NULL))
CALL(resolve, thc_resolve(shard, timeout_ms, NULL))
CALL(set_attribute, thc_set_attribute(shard, "header", "{}", 2))

static int
call_get_manifest(void)
{
	struct thc_manifest *manifest = NULL;

	return thc_get_manifest(shard, "latest", 0, timeout_ms, &manifest);
}

static int
call_borrow(void)
{
	const struct thc_manifest *manifest = NULL;

	return thc_borrow(shard, "latest", 0, 0, timeout_ms, &manifest);
}

CALL(follow, thc_follow(shard, "latest", 0, timeout_ms))
CALL(follow_submit, thc_follow_submit(shard, "latest", 0, timeout_ms, &op))
CALL(go, thc_go(shard, 1, timeout_ms))

static int
list_with(uint32_t flags)
{
	struct thc_listing *listing = NULL;
	int rc = thc_list(shard, flags, timeout_ms, &listing);

	thc_listing_free(listing);
	return rc;
}

CALL(list, list_with(0))
CALL(list_group, list_with(THC_LIST_GROUP))
CALL(wait, thc_wait(shard, never, NULL, timeout_ms))
CALL(publish_submit, thc_publish_submit(shard, 1, timeout_ms, &op))
CALL(unpublish_submit, thc_unpublish_submit(shard, 0, timeout_ms, &op))
CALL(replicate_submit, thc_replicate_submit(shard, "latest", timeout_ms, &op))
CALL(update_submit, thc_update_submit(shard, "latest", timeout_ms, &op))
CALL(watch_submit, thc_watch_submit(shard, 1, timeout_ms, &op))
CALL(list_submit, thc_list_submit(shard, THC_LIST_GROUP, timeout_ms, &op))
CALL(fd, thc_fd(shard))
CALL(op_done, thc_op_done(op))
CALL(op_wait, thc_op_wait(op, timeout_ms, NULL))
CALL(op_progress, thc_op_progress(op, NULL, NULL))
CALL(op_cancel, thc_op_cancel(op))

static int
call_op_waits(void)
{
	char text[64];

	return thc_op_waits(op, timeout_ms, text, sizeof(text));
}

static int
call_op_listing(void)
{
	struct thc_listing *listing = NULL;
	int rc = thc_op_listing(op, timeout_ms, &listing);

	thc_listing_free(listing);
	return rc;
}

/* What a call asks of the agent, and what it needs before. */
enum {
	HANDLE = 1u,    /* is a call of a handle */
	OPERATION = 2u, /* waits for an operation's end */
	SUBMIT = 4u,
	DOCUMENT = 8u,   /* exchanges a document */
	LOST_TOO = 16u,  /* is also accepted when the agent is lost */
	TENSORS = 32u,   /* needs them registered; without it: needs them not registered */
	ATTRIBUTE = 64u, /* exchanges its document for an attribute */
	ASKS = 128u,     /* exchanges a document, about an operation that runs */
	ENDED = 256u,    /* and ASKS: about a grouped list that has ended */
};

static const struct {
	const char *name;
	int (*run)(void);
	unsigned what;
} calls[] = {
	{"close", call_close, HANDLE | LOST_TOO},
	{"register", call_register, HANDLE | DOCUMENT},
	{"unregister", call_unregister, HANDLE | DOCUMENT | TENSORS},
	{"memory_path", call_memory_path, HANDLE | TENSORS},
	{"publish", call_publish, HANDLE | OPERATION | DOCUMENT | ATTRIBUTE | TENSORS},
	{"unpublish", call_unpublish, HANDLE | OPERATION | TENSORS},
	{"safe_to_mutate", call_safe_to_mutate, HANDLE | LOST_TOO},
	{"replicate", call_replicate, HANDLE | OPERATION | TENSORS},
	{"update", call_update, HANDLE | OPERATION | TENSORS},
	{"held_version", call_held_version, HANDLE},
	{"ready_version", call_ready_version, HANDLE},
	{"resolve", call_resolve, HANDLE},
	{"set_attribute", call_set_attribute, HANDLE},
	{"get_manifest", call_get_manifest, HANDLE | DOCUMENT},
	{"borrow", call_borrow, HANDLE | DOCUMENT},
	{"follow", call_follow, HANDLE | OPERATION | TENSORS},
	{"follow_submit", call_follow_submit, HANDLE | SUBMIT | TENSORS},
	{"go", call_go, HANDLE | DOCUMENT},
	{"list", call_list, HANDLE | DOCUMENT},
	{"list of the group", call_list_group, HANDLE | OPERATION},
	{"wait", call_wait, HANDLE | DOCUMENT},
	{"publish_submit", call_publish_submit, HANDLE | SUBMIT | DOCUMENT | ATTRIBUTE | TENSORS},
	{"unpublish_submit", call_unpublish_submit, HANDLE | SUBMIT | TENSORS},
	{"replicate_submit", call_replicate_submit, HANDLE | SUBMIT | TENSORS},
	{"update_submit", call_update_submit, HANDLE | SUBMIT | TENSORS},
	{"watch_submit", call_watch_submit, HANDLE | SUBMIT},
	{"list_submit", call_list_submit, HANDLE | SUBMIT},
	{"fd", call_fd, HANDLE | LOST_TOO},
	{"op_done", call_op_done, 0},
	{"op_wait", call_op_wait, 0},
	{"op_progress", call_op_progress, 0},
	{"op_cancel", call_op_cancel, 0},
	{"op_waits", call_op_waits, ASKS | TENSORS},
	{"op_listing", call_op_listing, ASKS | ENDED},
};

/* ---- a handle ------------------------------------------------------------------------------ */

static void
open_handle(void)
{
	const struct thc_open_opts opts = good_opts();

	cr_assert_eq(thc_open(&opts, SOON, &shard), 0, "%s", thc_errmsg());
}

static void
open_for(size_t i)
{
	open_handle();
	if ((calls[i].what & TENSORS) != 0)
		cr_assert_eq(call_register(), 0, "%s", thc_errmsg());
	if ((calls[i].what & ATTRIBUTE) != 0)
		cr_assert_eq(call_set_attribute(), 0, "%s", thc_errmsg());
	if ((calls[i].what & ENDED) != 0) {
		script(agent.operation = FAKE_COMPLETE);
		cr_assert_eq(call_list_submit(), 0, "%s", thc_errmsg());
		cr_assert_eq(call_op_wait(), 0, "%s", thc_errmsg());
	} else if ((calls[i].what & ASKS) != 0) {
		script(agent.operation = FAKE_HOLD);
		cr_assert_eq(call_replicate_submit(), 0, "%s", thc_errmsg());
	}
}

static void
abandon(void)
{
	if (shard != NULL)
		(void)thc_close(shard, THC_CLOSE_ABANDON, SOON);
	thc_op_free(op);
	shard = NULL;
	op = NULL;
}

static void
teardown(void)
{
	abandon();
	teardown_memory();
}

TestSuite(libthc_codes, .init = setup_memory, .fini = teardown, .timeout = 120);

static void
expect(size_t i, int wanted)
{
	int got = calls[i].run();

	cr_assert_eq(
		got, wanted, "%s: %d and not %d: %s", calls[i].name, got, wanted, thc_errmsg());
	cr_assert_gt(strlen(thc_errmsg()), 4, "%s", calls[i].name);
}

#define each_call(mask)                                                                            \
	for (size_t i = 0; i < TH_ARRAY_LEN(calls); i++)                                           \
		if ((calls[i].what & (mask)) != 0)

/* ---- what the handle itself answers -------------------------------------------------------- */

Test(libthc_codes, every_call__in_a_forked_child__forked)
{
	open_handle();
	cr_assert_eq(call_register(), 0, "%s", thc_errmsg());
	cr_assert_eq(call_replicate_submit(), 0, "%s", thc_errmsg());
	pid_t child = fork();
	if (child == 0) {
		int bad = 0;
		for (size_t i = 0; i < TH_ARRAY_LEN(calls); i++)
			if (calls[i].run() != THC_E_FORKED)
				bad = (int)i + 1;
		_exit(bad);
	}
	int status = 0;
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_assert_eq(status, 0, "call %d", WEXITSTATUS(status) - 1);
}

Test(libthc_codes, every_call__agent_gone__agent_lost)
{
	open_handle();
	cr_assert_eq(call_register(), 0, "%s", thc_errmsg());
	script(agent.operation = FAKE_HOLD);
	cr_assert_eq(call_replicate_submit(), 0, "%s", thc_errmsg());
	fake_agent_await(&agent, &agent.submissions, 1);
	script(fake_agent_hang_up(&agent));
	cr_assert_eq(call_op_wait(), THC_E_AGENT_LOST);
	cr_assert_eq(call_op_done(), THC_E_AGENT_LOST);
	cr_assert_eq(call_op_waits(), THC_E_AGENT_LOST);
	cr_assert_eq(call_op_listing(), THC_E_AGENT_LOST);
	thc_op_free(op);
	op = NULL;
	each_call(HANDLE) if ((calls[i].what & LOST_TOO) == 0) expect(i, THC_E_AGENT_LOST);
	const struct thc_open_opts opts = good_opts();
	struct thc_shard *other = NULL;
	script(agent.open = FAKE_HANG_UP_OPEN);
	cr_assert_eq(thc_open(&opts, SOON, &other), THC_E_AGENT_LOST);
}

static void *
close_in_thread(void *arg)
{
	(void)arg;
	cr_assert_eq(call_close(), 0, "%s", thc_errmsg());
	return NULL;
}

Test(libthc_codes, every_call__while_another_thread_closes__state)
{
	pthread_t thread;

	open_handle();
	script(agent.close_silent = true);
	cr_assert_eq(pthread_create(&thread, NULL, close_in_thread, NULL), 0);
	fake_agent_await(&agent, &agent.closes, 1);
	each_call(HANDLE) expect(i, THC_E_STATE);
	script(fake_agent_hang_up(&agent));
	cr_assert_eq(pthread_join(thread, NULL), 0);
	shard = NULL;
}

/* As calls of other threads find it: of a handle that is closed, and one that closes again. */
Test(libthc_codes, every_call__of_a_closed_handle__state)
{
	open_handle();
	cr_assert_eq(call_register(), 0, "%s", thc_errmsg());
	cr_assert_eq(call_replicate_submit(), 0, "%s", thc_errmsg());
	cr_assert_eq(call_close(), 0, "%s", thc_errmsg());
	for (int freed = 0; freed < 2; freed++) {
		each_call(HANDLE)
		{
			expect(i, THC_E_STATE);
			says("this handle is closed");
		}
		cr_assert_eq(thc_shard_events(shard), 0);
		/* The last that refers to the handle. */
		thc_op_free(op);
		op = NULL;
	}
	shard = NULL;
}

/* Nor is memory lost by that: what was closed is opened again. */
Test(libthc_codes, open__after_closes__in_the_memory_of_those)
{
	struct thc_shard *first = NULL, *failed = NULL;
	const struct thc_open_opts opts = good_opts();

	open_handle();
	first = shard;
	for (int round = 0; round < 3; round++) {
		cr_assert_eq(call_close(), 0, "%s", thc_errmsg());
		script(agent.open = FAKE_HANG_UP_OPEN);
		cr_assert_eq(thc_open(&opts, SOON, &failed), THC_E_AGENT_LOST);
		cr_assert_eq(call_held_version(), THC_E_STATE);
		script(agent.open = FAKE_SESSION);
		open_handle();
		cr_assert_eq(shard, first);
		cr_assert_eq(call_held_version(), THC_E_NOT_AVAILABLE);
	}
	pid_t child = fork();
	if (child == 0) {
		/* The parent's, whose locks another thread may have had, are of no use here. */
		int rc = thc_open(&opts, SOON, &failed);
		_exit(call_held_version() == THC_E_FORKED && (rc < 0 || failed != first) ? 0 : 1);
	}
	int status = 0;
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_assert_eq(status, 0);
}

/* The thread is inside when the agent has its document or operation; then the handle is closed. */
static size_t blocked;

static void *
blocked_in_thread(void *arg)
{
	(void)arg;
	expect(blocked, THC_E_CANCELLED);
	return NULL;
}

static void *
asks_in_thread(void *arg)
{
	(void)arg;
	(void)call_list();
	return NULL;
}

Test(libthc_codes, operations__handle_closed_meanwhile__cancelled)
{
	pthread_t thread;

	each_call(OPERATION)
	{
		unsigned before = agent.submissions;
		script(agent.operation = FAKE_COMPLETE);
		open_for(i);
		script(agent.operation = FAKE_HOLD);
		blocked = i;
		cr_assert_eq(pthread_create(&thread, NULL, blocked_in_thread, NULL), 0);
		fake_agent_await(&agent, &agent.submissions, before + 1);
		cr_assert_eq(call_close(), 0, "%s", thc_errmsg());
		cr_assert_eq(pthread_join(thread, NULL), 0);
		shard = NULL;
	}
}

/* How many threads are in a call of the handle and have given its lock back: they wait. */
static void
await_inside(unsigned count)
{
	bool there = false;

	while (!there) {
		pthread_mutex_lock(&shard->lock);
		there = shard->inside == count;
		pthread_mutex_unlock(&shard->lock);
		(void)sched_yield();
	}
}

/* One document is under way, unanswered; the call waits for its turn when the handle is closed. */
Test(libthc_codes, documents__handle_closed_meanwhile__cancelled)
{
	pthread_t asker, closer, thread;

	each_call(DOCUMENT | ASKS)
	{
		open_for(i);
		if (calls[i].run == call_register) {
			/* The agent has the memory then, so that only the document is left. */
			cr_assert_eq(call_register(), 0, "%s", thc_errmsg());
			cr_assert_eq(call_unregister(), 0, "%s", thc_errmsg());
		}
		fake_agent_freeze(&agent, true);
		blocked = i;
		cr_assert_eq(pthread_create(&asker, NULL, asks_in_thread, NULL), 0);
		await_inside(1);
		cr_assert_eq(pthread_create(&thread, NULL, blocked_in_thread, NULL), 0);
		await_inside(2);
		cr_assert_eq(pthread_create(&closer, NULL, close_in_thread, NULL), 0);
		cr_assert_eq(pthread_join(thread, NULL), 0);
		fake_agent_freeze(&agent, false);
		cr_assert_eq(pthread_join(asker, NULL), 0);
		cr_assert_eq(pthread_join(closer, NULL), 0);
		thc_op_free(op);
		op = NULL;
		shard = NULL;
	}
}

/* ---- what the agent answers ---------------------------------------------------------------- */

Test(libthc_codes, documents__refused__the_agents_code)
{
	const int codes[] = {THC_E_LIMIT, THC_E_NO_SERVER, THC_E_DENIED};

	each_call(DOCUMENT | ASKS)
	{
		for (size_t k = 0; k < TH_ARRAY_LEN(codes); k++) {
			open_for(i);
			script(agent.request_code = codes[k]);
			expect(i, codes[k]);
			cr_assert_str_eq(thc_errmsg(), "refused as told");
			script(agent.request_code = 0);
			abandon();
		}
	}
}

Test(libthc_codes, documents__of_some_calls__more_codes)
{
	const struct {
		int (*run)(void);
		int code;
	} rows[] = {
		{call_register, THC_E_GROUP_BROKEN},
		{call_register, THC_E_DIRTY},
		{call_register, THC_E_NOT_AVAILABLE},
		{call_unregister, THC_E_GROUP_BROKEN},
		{call_unregister, THC_E_DIRTY},
		{call_get_manifest, THC_E_NOT_AVAILABLE},
		{call_get_manifest, THC_E_CHECKSUM},
		{call_borrow, THC_E_NOT_AVAILABLE},
		{call_borrow, THC_E_CHECKSUM},
		{call_op_listing, THC_E_NOT_AVAILABLE},
	};

	for (size_t k = 0; k < TH_ARRAY_LEN(rows); k++)
		for (size_t i = 0; i < TH_ARRAY_LEN(calls); i++) {
			if (calls[i].run != rows[k].run)
				continue;
			open_for(i);
			script(agent.request_code = rows[k].code);
			expect(i, rows[k].code);
			script(agent.request_code = 0);
			abandon();
		}
	open_handle();
	script(agent.request_code = THC_E_NOT_AVAILABLE);
	cr_assert_eq(call_list_group(), THC_E_NOT_AVAILABLE);
	script(agent.request_code = 0);
}

Test(libthc_codes, documents__answer_is_no_message__protocol)
{
	each_call(DOCUMENT | ASKS)
	{
		open_for(i);
		script(agent.request_garbage = true);
		expect(i, THC_E_PROTOCOL);
		script(agent.request_garbage = false);
		abandon();
	}
}

/* Its descriptor socket lives, the other endpoint is gone. */
Test(libthc_codes, documents__no_endpoint__no_agent)
{
	char path[128], aside[128];

	(void)snprintf(path, sizeof(path), "%s/agent.ipc", agent.dir);
	(void)snprintf(aside, sizeof(aside), "%s/aside", agent.dir);
	each_call(DOCUMENT | ASKS)
	{
		if ((calls[i].what & TENSORS) != 0)
			continue;
		open_for(i);
		cr_assert_eq(rename(path, aside), 0);
		expect(i, THC_E_NO_AGENT);
		cr_assert_eq(rename(aside, path), 0);
		abandon();
	}
	/* These have exchanged a document before, so the connection must break as well. */
	each_call(DOCUMENT | ASKS)
	{
		if ((calls[i].what & TENSORS) == 0)
			continue;
		open_for(i);
		cr_assert_eq(rename(path, aside), 0);
		script(agent.request_hang_up = true);
		expect(i, THC_E_NO_AGENT);
		script(agent.request_hang_up = false);
		cr_assert_eq(rename(aside, path), 0);
		abandon();
	}
}

Test(libthc_codes, documents__no_answer__timeout)
{
	each_call(DOCUMENT | ASKS)
	{
		open_for(i);
		script(agent.request_silent = true);
		timeout_ms = 0;
		expect(i, THC_E_TIMEOUT);
		timeout_ms = SOON;
		script(agent.request_silent = false);
		abandon();
	}
}

static const struct {
	int (*run)(void);
	int codes[20];
} outcomes[] = {
	{call_publish, {THC_E_INVALID, THC_E_STATE, THC_E_TIMEOUT, THC_E_NOT_AVAILABLE,
			       THC_E_VERSION_CONFLICT, THC_E_DIRTY, THC_E_GROUP_BROKEN,
			       THC_E_GROUP_MISMATCH, THC_E_NO_SERVER, THC_E_CANCELLED}},
	{call_unpublish, {THC_E_STATE, THC_E_TIMEOUT, THC_E_DIRTY, THC_E_GROUP_BROKEN,
				 THC_E_GROUP_MISMATCH, THC_E_NO_SERVER, THC_E_CANCELLED}},
	{call_replicate,
		{THC_E_INVALID, THC_E_STATE, THC_E_TIMEOUT, THC_E_VERSION_LOST, THC_E_LAYOUT,
			THC_E_GROUP_BROKEN, THC_E_GROUP_MISMATCH, THC_E_CHECKSUM, THC_E_NO_SERVER,
			THC_E_CANCELLED, THC_E_MEMORY_KIND, THC_E_STALE_MEMORY, THC_E_NO_PATH}},
	{call_update, {THC_E_INVALID, THC_E_STATE, THC_E_TIMEOUT, THC_E_VERSION_LOST, THC_E_LAYOUT,
			      THC_E_DIRTY, THC_E_GROUP_BROKEN, THC_E_GROUP_MISMATCH, THC_E_CHECKSUM,
			      THC_E_NO_SERVER, THC_E_CANCELLED, THC_E_MEMORY_KIND,
			      THC_E_STALE_MEMORY, THC_E_NO_PATH}},
	{call_list_group,
		{THC_E_STATE, THC_E_TIMEOUT, THC_E_DIRTY, THC_E_GROUP_BROKEN, THC_E_GROUP_MISMATCH,
			THC_E_LIMIT, THC_E_NO_SERVER, THC_E_CANCELLED}},
};

Test(libthc_codes, operations__outcome__the_agents_code)
{
	open_handle();
	cr_assert_eq(call_register(), 0, "%s", thc_errmsg());
	for (size_t k = 0; k < TH_ARRAY_LEN(outcomes); k++)
		for (const int *code = outcomes[k].codes; *code != 0; code++) {
			script(agent.operation_code = *code);
			int rc = outcomes[k].run();
			cr_assert_eq(rc, *code, "operation %zu: %d: %s", k, rc, thc_errmsg());
		}
	/* A code that is none is not passed on. */
	for (size_t k = 0; k < TH_ARRAY_LEN(outcomes); k++) {
		script(agent.operation_code = -99999);
		cr_assert_eq(outcomes[k].run(), THC_E_PROTOCOL);
	}
}

/*
 * The same outcomes, collected by thc_op_done, thc_op_wait and thc_resolve. For each code a call
 * ends half a second late, so four tests at once share them.
 */
#define PARTS 4

static void
outcomes_of_part(int part)
{
	int found = 0;

	open_handle();
	cr_assert_eq(call_register(), 0, "%s", thc_errmsg());
	for (int code = THC_E_INVALID; code >= THC_E_UNKNOWN; code--) {
		bool any = code == THC_E_PROTOCOL;
		for (size_t k = 0; k + 1 < TH_ARRAY_LEN(outcomes); k++)
			for (const int *one = outcomes[k].codes; *one != 0; one++)
				any = any || *one == code;
		if (!any || found++ % PARTS != part)
			continue;
		int sent = code == THC_E_PROTOCOL ? -99999 : code;
		script((agent.operation = FAKE_COMPLETE, agent.operation_code = sent));
		cr_assert_eq(call_update_submit(), 0, "%s", thc_errmsg());
		cr_assert_eq(call_op_wait(), code);
		cr_assert_eq(call_op_done(), code);
		thc_op_free(op);
		op = NULL;
		script(agent.operation = FAKE_HOLD);
		timeout_ms = 0;
		cr_assert_eq(call_replicate(), THC_E_UNKNOWN);
		timeout_ms = SOON;
		script(fake_agent_release(&agent, sent, "in the end"));
		cr_assert_eq(call_resolve(), code);
	}
}

Test(libthc_codes, submitted_operations__outcome__the_agents_code_first_part)
{
	outcomes_of_part(0);
}

Test(libthc_codes, submitted_operations__outcome__the_agents_code_second_part)
{
	outcomes_of_part(1);
}

Test(libthc_codes, submitted_operations__outcome__the_agents_code_third_part)
{
	outcomes_of_part(2);
}

Test(libthc_codes, submitted_operations__outcome__the_agents_code_last_part)
{
	outcomes_of_part(3);
}

Test(libthc_codes, operations__no_outcome_by_the_deadline__unknown)
{
	each_call(OPERATION)
	{
		script(agent.operation = FAKE_COMPLETE);
		open_handle();
		cr_assert_eq(call_register(), 0, "%s", thc_errmsg());
		script(agent.operation = FAKE_HOLD);
		timeout_ms = 0;
		expect(i, THC_E_UNKNOWN);
		cr_assert_eq(call_resolve(), THC_E_UNKNOWN);
		timeout_ms = SOON;
		abandon();
	}
	open_handle();
	cr_assert_eq(call_register(), 0, "%s", thc_errmsg());
	timeout_ms = 0;
	cr_assert_eq(call_update_submit(), 0, "%s", thc_errmsg());
	timeout_ms = SOON;
	cr_assert_eq(call_op_wait(), THC_E_UNKNOWN);
	timeout_ms = 0;
	cr_assert_eq(call_resolve(), THC_E_UNKNOWN);
	timeout_ms = SOON;
	/* Until then only thc_resolve, thc_close and the questions are accepted. */
	for (size_t i = 0; i < TH_ARRAY_LEN(calls); i++)
		if ((calls[i].what & (OPERATION | SUBMIT | DOCUMENT)) != 0)
			expect(i, THC_E_STATE);
}

Test(libthc_codes, resolve_and_op_wait__handle_closed_or_agent_gone__say_so)
{
	pthread_t thread;

	open_handle();
	cr_assert_eq(call_register(), 0, "%s", thc_errmsg());
	script(agent.operation = FAKE_HOLD);
	timeout_ms = 0;
	cr_assert_eq(call_replicate(), THC_E_UNKNOWN);
	timeout_ms = SOON;
	for (size_t i = 0; i < TH_ARRAY_LEN(calls); i++)
		if (calls[i].run == call_resolve)
			blocked = i;
	cr_assert_eq(pthread_create(&thread, NULL, blocked_in_thread, NULL), 0);
	await_inside(1);
	cr_assert_eq(call_close(), 0, "%s", thc_errmsg());
	cr_assert_eq(pthread_join(thread, NULL), 0);
	shard = NULL;
}

/* ---- limits -------------------------------------------------------------------------------- */

/*
 * A watch that ended in time leaves its submission and its cancellation in the ring. On a busy
 * machine a wait may end before it has submitted any, so it is tried until the ring is full.
 */
static void
fill_ring(void)
{
	timeout_ms = 5;
	do
		cr_assert_eq(call_wait(), THC_E_TIMEOUT, "%s", thc_errmsg());
	while (strstr(thc_errmsg(), "takes no submissions") == NULL);
}

Test(libthc_codes, submissions__agent_takes_none__timeout)
{
	open_handle();
	cr_assert_eq(call_register(), 0, "%s", thc_errmsg());
	script(agent.operation = FAKE_DEAF);
	cr_assert_eq(call_update_submit(), 0, "%s", thc_errmsg());
	fill_ring();
	cr_assert_eq(call_op_cancel(), THC_E_TIMEOUT);
	cr_assert_not_null(strstr(thc_errmsg(), "takes no submissions"), "%s", thc_errmsg());
	abandon();
	open_handle();
	cr_assert_eq(call_register(), 0, "%s", thc_errmsg());
	fill_ring();
	each_call(SUBMIT) expect(i, THC_E_TIMEOUT);
}

Test(libthc_codes, operations__all_open__limit)
{
	script((agent.operation = FAKE_HOLD, agent.ignore_cancel = true));
	open_handle();
	cr_assert_eq(call_register(), 0, "%s", thc_errmsg());
	timeout_ms = 1;
	int rc;
	do
		rc = call_wait();
	while (rc == THC_E_TIMEOUT);
	cr_assert_eq(rc, THC_E_LIMIT, "%s", thc_errmsg());
	timeout_ms = SOON;
	for (size_t i = 0; i < TH_ARRAY_LEN(calls); i++)
		if ((calls[i].what & (OPERATION | SUBMIT)) != 0 || calls[i].run == call_wait)
			expect(i, THC_E_LIMIT);
}

/* ---- the rest ------------------------------------------------------------------------------ */

Test(libthc_codes, open__agent_refuses__its_code)
{
	const int codes[] = {THC_E_INVALID, THC_E_TIMEOUT, THC_E_GROUP_MISMATCH, THC_E_LIMIT,
		THC_E_NO_AGENT, THC_E_NO_SERVER, THC_E_DENIED, THC_E_PROTOCOL};
	const struct thc_open_opts opts = good_opts();

	for (size_t k = 0; k < TH_ARRAY_LEN(codes); k++) {
		script({
			agent.open = FAKE_REFUSE_OPEN;
			agent.refuse_code = codes[k];
			agent.refuse_text = "not now";
		});
		cr_assert_eq(thc_open(&opts, SOON, &shard), codes[k]);
		cr_assert_str_eq(thc_errmsg(), "not now");
	}
}

/* Its refusal is read whether it hung up before HELLO was sent, before it was read, or after. */
Test(libthc_codes, open__agent_refuses_the_connection__its_code)
{
	const struct thc_open_opts opts = good_opts();

	script({
		agent.hello = FAKE_REFUSE_CONNECT;
		agent.refuse_code = THC_E_LIMIT;
		agent.refuse_text = "one handle is the limit";
	});
	for (int i = 0; i < 300; i++) {
		cr_assert_eq(thc_open(&opts, SOON, &shard), THC_E_LIMIT, "%s", thc_errmsg());
		cr_assert_str_eq(thc_errmsg(), "one handle is the limit");
	}
}

Test(libthc_codes, wait__watch_ends_early__its_code)
{
	const int codes[] = {THC_E_GROUP_BROKEN, THC_E_DIRTY, THC_E_CANCELLED};

	open_handle();
	for (size_t k = 0; k < TH_ARRAY_LEN(codes); k++) {
		script(agent.operation_code = codes[k]);
		cr_assert_eq(call_wait(), codes[k]);
	}
}

Test(libthc_codes, register__memory_refused__its_code)
{
	const int codes[] = {THC_E_MEMORY_KIND, THC_E_LIMIT, THC_E_INVALID};

	for (size_t k = 0; k < TH_ARRAY_LEN(codes); k++) {
		open_handle();
		script(agent.memory_code = codes[k]);
		cr_assert_eq(call_register(), codes[k]);
		script(agent.memory_code = 0);
		abandon();
	}
}

Test(libthc_codes, destinations__read_only__memory_kind)
{
	int (*const pulls[])(void) = {
		call_replicate, call_update, call_replicate_submit, call_update_submit};

	open_handle();
	cr_assert_eq(call_register(), 0, "%s", thc_errmsg());
	cr_assert_eq(mprotect(memory, 4096, PROT_READ), 0);
	for (size_t k = 0; k < TH_ARRAY_LEN(pulls); k++)
		cr_assert_eq(pulls[k](), THC_E_MEMORY_KIND, "%zu: %s", k, thc_errmsg());
}
