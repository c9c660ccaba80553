/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_life_test - how handles, operations and memory end, against a scripted agent: with threads
 * inside, with an agent that is stopped or gone, and what outlives what.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "tests/unit/libthc/libthc_fixture.h"

#define MS INT64_C(1000000)
#define BYTES (1 << 16)

TestSuite(libthc_life, .init = setup_handle, .fini = teardown_memory, .timeout = 60);
TestSuite(libthc_life_op, .init = setup_registered, .fini = teardown_memory, .timeout = 60);

/* ---- threads inside -------------------------------------------------------------------------- */

struct inside {
	int (*call)(void);
	pthread_t thread;
	int rc;
};

static struct thc_op *op;

static int
call_publish(void)
{
	return thc_publish(shard, 1, THC_FOREVER);
}

static int
call_op_wait(void)
{
	return thc_op_wait(op, THC_FOREVER, NULL);
}

static atomic_uint judged;

static int
never_and_counts(const struct thc_listing *listing, void *arg)
{
	(void)listing;
	(void)arg;
	atomic_fetch_add(&judged, 1u);
	return 0;
}

static int
call_wait(void)
{
	return thc_wait(shard, never_and_counts, NULL, THC_FOREVER);
}

static void *
run(void *arg)
{
	struct inside *inside = arg;

	inside->rc = inside->call();
	return NULL;
}

static void
enter(struct inside *inside, int (*call)(void))
{
	inside->call = call;
	inside->rc = 1;
	cr_assert_eq(pthread_create(&inside->thread, NULL, run, inside), 0);
}

static int
ended(struct inside *inside)
{
	cr_assert_eq(pthread_join(inside->thread, NULL), 0);
	return inside->rc;
}

Test(libthc_life_op, close__another_threads_call_runs__cancelled)
{
	struct inside publish;

	script(agent.operation = FAKE_HOLD);
	enter(&publish, call_publish);
	fake_agent_await(&agent, &agent.submissions, 1);
	cr_assert_eq(thc_close(shard, 0, SOON), 0, "%s", thc_errmsg());
	shard = NULL;
	cr_assert_eq(ended(&publish), THC_E_CANCELLED);
}

Test(libthc_life_op, close__many_threads_inside__all_cancelled)
{
	struct inside waits[8], op_waits[8];

	script(agent.operation = FAKE_HOLD);
	cr_assert_eq(thc_replicate_submit(shard, "latest", THC_FOREVER, &op), 0);
	for (size_t i = 0; i < 8; i++) {
		enter(&waits[i], call_wait);
		enter(&op_waits[i], call_op_wait);
	}
	/* Each is inside when its predicate is asked; an operation outlives its handle anyway. */
	while (atomic_load(&judged) < 8)
		(void)sched_yield();
	cr_assert_eq(thc_close(shard, 0, SOON), 0, "%s", thc_errmsg());
	shard = NULL;
	for (size_t i = 0; i < 8; i++) {
		cr_assert_eq(ended(&waits[i]), THC_E_CANCELLED);
		/* One that only begins now finds it ended. */
		cr_assert_eq(ended(&op_waits[i]), THC_E_CANCELLED);
	}
	cr_assert_eq(thc_op_done(op), THC_E_CANCELLED);
	thc_op_free(op);
}

Test(libthc_life_op, close__fails_while_others_wait__they_are_cancelled_and_it_is_still_there)
{
	struct inside wait;

	script((agent.operation = FAKE_HOLD, agent.close_silent = true));
	enter(&wait, call_wait);
	fake_agent_await(&agent, &agent.submissions, 1);
	cr_assert_eq(thc_close(shard, 0, 50), THC_E_TIMEOUT);
	says("close");
	cr_assert_eq(ended(&wait), THC_E_CANCELLED);
	cr_assert_eq(thc_free(memory), THC_E_STATE);
	cr_assert_eq(thc_held_version(shard, NULL, NULL), THC_E_NOT_AVAILABLE);
}

/* Its agent has not refused it and may end it at any time: nothing new begins meanwhile. */
Test(libthc_life_op, close__not_answered_in_time__only_close_and_questions)
{
	struct thc_listing *listing = NULL;
	char path[64];

	script(agent.close_silent = true);
	cr_assert_eq(thc_close(shard, 0, 0), THC_E_TIMEOUT);
	cr_assert_eq(thc_publish(shard, 1, SOON), THC_E_STATE);
	says("thc_close again");
	cr_assert_eq(thc_update_submit(shard, "latest", SOON, &op), THC_E_STATE);
	cr_assert_eq(thc_unregister(shard, SOON), THC_E_STATE);
	cr_assert_eq(thc_list(shard, 0, SOON, &listing), THC_E_STATE);
	cr_assert_eq(thc_wait(shard, never_and_counts, NULL, SOON), THC_E_STATE);
	cr_assert_eq(agent.submissions + agent.unregisters, 0);
	cr_assert_eq(thc_free(memory), THC_E_STATE);
	cr_assert_eq(thc_memory_path(shard, "w", path, sizeof(path)), 0);
	cr_assert_eq(thc_shard_events(shard), 0);
	cr_assert_eq(thc_safe_to_mutate(shard), 1);
	/* It is open again, whoever hears that first. */
	script(fake_agent_closed(&agent, THC_E_NOMEM_RETAIN));
	cr_assert_eq(thc_publish(shard, 1, SOON), 0, "%s", thc_errmsg());
	script(agent.close_silent = false);
	cr_assert_eq(thc_close(shard, 0, SOON), 0, "%s", thc_errmsg());
	cr_assert_eq(agent.closes, 2);
	shard = NULL;
}

/* A device keeps GPU memory: that is the last word of an agent, and no other call's to hear. */
Test(libthc_life_op, close__answered_too_late_and_hung_up__is_told_to_the_next)
{
	script(agent.close_silent = true);
	cr_assert_eq(thc_close(shard, 0, 0), THC_E_TIMEOUT);
	script(fake_agent_closed(&agent, -EBUSY));
	cr_assert_eq(thc_publish(shard, 1, SOON), THC_E_STATE);
	script(fake_agent_hang_up(&agent));
	cr_assert_eq(thc_safe_to_mutate(shard), 1);
	cr_assert_eq(thc_close(shard, 0, SOON), -EBUSY);
	says("not closed");
	cr_assert_eq(thc_close(shard, 0, 0), 0, "%s", thc_errmsg());
	shard = NULL;
	cr_assert_eq(agent.closes, 1);
}

Test(libthc_life_op, abandon__agent_does_not_answer__freed_all_the_same)
{
	struct inside publish;

	script((agent.operation = FAKE_HOLD, agent.close_silent = true));
	enter(&publish, call_publish);
	fake_agent_await(&agent, &agent.submissions, 1);
	cr_assert_eq(thc_close(shard, THC_CLOSE_ABANDON, 0), THC_E_TIMEOUT);
	says("freed all the same");
	shard = NULL;
	cr_assert_eq(ended(&publish), THC_E_CANCELLED);
	fake_agent_await(&agent, &agent.hang_ups, 1);
	cr_assert_eq(agent.closes, 1);
}

Test(libthc_life_op, abandon__agent_is_stopped__freed_in_time)
{
	fake_agent_freeze(&agent, true);
	cr_assert_eq(thc_publish(shard, 1, 0), THC_E_UNKNOWN);
	int64_t begin_ns = th_now_ns();
	cr_assert_eq(thc_close(shard, THC_CLOSE_ABANDON, 0), THC_E_TIMEOUT);
	cr_assert_leq(th_now_ns() - begin_ns, 2000 * MS);
	shard = NULL;
	fake_agent_freeze(&agent, false);
}

/* Opened, used and closed while a thread is inside each time; run under AddressSanitizer. */
Test(libthc_life, close__as_soon_as_the_call_begins__nothing_is_used_after_it)
{
	for (int i = 0; i < 50; i++) {
		struct inside wait;
		unsigned before;
		script((before = agent.submissions, agent.operation = FAKE_HOLD));
		enter(&wait, call_wait);
		fake_agent_await(&agent, &agent.submissions, before + 1);
		cr_assert_eq(thc_close(shard, i % 2 == 0 ? 0 : THC_CLOSE_ABANDON, SOON), 0);
		cr_assert_eq(ended(&wait), THC_E_CANCELLED);
		cr_assert_eq(try_open(&shard), 0, "%s", thc_errmsg());
	}
}

/* ---- memory ---------------------------------------------------------------------------------- */

Test(libthc_life_op, memory__outlives_its_handle__registered_in_the_next)
{
	cr_assert_eq(thc_free(memory), THC_E_STATE);
	says("thc_unregister");
	memset(memory, 0x5a, BYTES);
	cr_assert_eq(thc_close(shard, 0, SOON), 0);
	cr_assert_eq(try_open(&shard), 0);
	cr_assert_eq(register_w(shard, memory, SOON), 0, "%s", thc_errmsg());
	cr_assert_eq(agent.memories, 2, "a session knows only what it was given itself");
	cr_assert_eq(memory[BYTES - 1], 0x5a);
	cr_assert_eq(thc_publish(shard, 4, SOON), 0);
	cr_assert_eq(thc_free(memory), THC_E_STATE);
}

Test(libthc_life_op, memory__registered_by_the_parent__is_freed_by_a_child)
{
	int status = 1;
	pid_t child = fork();
	if (child == 0)
		_exit(thc_free(memory) == 0 ? 0 : 1);
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_assert_eq(status, 0);
	cr_assert_eq(thc_free(memory), THC_E_STATE);
	memory[0] = 1;
}

Test(libthc_life_op, memory__agent_lost__free_after_close_only)
{
	script(fake_agent_hang_up(&agent));
	cr_assert_eq(thc_publish(shard, 1, SOON), THC_E_AGENT_LOST);
	cr_assert_eq(register_w(shard, memory, SOON), THC_E_AGENT_LOST);
	cr_assert_eq(thc_unregister(shard, SOON), THC_E_AGENT_LOST);
	cr_assert_eq(thc_resolve(shard, SOON, NULL), THC_E_AGENT_LOST);
	cr_assert_eq(thc_free(memory), THC_E_STATE);
	cr_assert_eq(thc_close(shard, 0, 0), 0);
	cr_assert_eq(try_open(&shard), 0);
	cr_assert_eq(register_w(shard, memory, SOON), 0, "%s", thc_errmsg());
}

Test(libthc_life_op, register__other_tensors_after_unregister__taken)
{
	cr_assert_eq(register_w(shard, memory + 64, SOON), THC_E_STATE);
	says("thc_unregister");
	cr_assert_eq(thc_unregister(shard, SOON), 0);
	cr_assert_eq(thc_unregister(shard, SOON), THC_E_STATE);
	cr_assert_eq(register_w(shard, memory + 64, SOON), 0, "%s", thc_errmsg());
	cr_assert_eq(agent.first_place, 64);
	cr_assert_eq(agent.memories, 1);
}

Test(libthc_life_op, unregister__operation_runs__state)
{
	script(agent.operation = FAKE_HOLD);
	cr_assert_eq(thc_replicate_submit(shard, "9", SOON, &op), 0);
	cr_assert_eq(thc_unregister(shard, SOON), THC_E_STATE);
	says("runs");
	cr_assert_eq(agent.unregisters, 0);
	cr_assert_eq(thc_op_cancel(op), 0);
	cr_assert_eq(thc_op_wait(op, SOON, NULL), THC_E_CANCELLED);
	thc_op_free(op);
	cr_assert_eq(thc_unregister(shard, SOON), 0, "%s", thc_errmsg());
}

/* The answer to the first was that a version is held; so is that to the second. */
Test(libthc_life_op, unregister__no_answer_and_then_refused__tensors_stay_registered)
{
	char path[64];

	script(agent.request_silent = true);
	cr_assert_eq(thc_unregister(shard, 0), THC_E_TIMEOUT);
	script((agent.request_silent = false, agent.request_code = THC_E_STATE));
	cr_assert_eq(thc_unregister(shard, SOON), THC_E_STATE);
	says("refused as told");
	cr_assert_eq(thc_free(memory), THC_E_STATE);
	cr_assert_eq(thc_memory_path(shard, "w", path, sizeof(path)), 0, "%s", thc_errmsg());
	script(agent.request_code = 0);
	cr_assert_eq(thc_publish(shard, 1, SOON), 0, "%s", thc_errmsg());
	cr_assert_eq(thc_unregister(shard, SOON), 0, "%s", thc_errmsg());
	cr_assert_eq(agent.unregisters, 2);
}

/* A stopped agent is not lost: what it answers too late is for nobody, and the handle goes on. */
Test(libthc_life, register__agent_is_stopped__may_be_called_again)
{
	fake_agent_freeze(&agent, true);
	cr_assert_eq(register_w(shard, memory, 0), THC_E_TIMEOUT);
	says("stopped");
	cr_assert_eq(register_w(shard, memory, 0), THC_E_TIMEOUT);
	fake_agent_freeze(&agent, false);
	cr_assert_eq(register_w(shard, memory, SOON), 0, "%s", thc_errmsg());
	/* The second call waited for the answer to the first one, and sent nothing. */
	fake_agent_await(&agent, &agent.forgets, 1);
	cr_assert_eq(agent.memories, 2);
	cr_assert_eq(thc_publish(shard, 1, SOON), 0, "%s", thc_errmsg());
}

Test(libthc_life, register__answers_in_another_order__lost)
{
	script(agent.unexpected_message = true);
	cr_assert_eq(register_w(shard, memory, SOON), THC_E_AGENT_LOST);
	says("unexpected");
}

/* ---- what is accepted after what ------------------------------------------------------------- */

Test(libthc_life_op, unknown__only_resolve_close_and_questions)
{
	struct thc_listing *listing = NULL;

	fake_agent_freeze(&agent, true);
	cr_assert_eq(thc_publish(shard, 17, 0), THC_E_UNKNOWN);
	cr_assert_eq(thc_update(shard, "latest", 0, NULL), THC_E_STATE);
	cr_assert_eq(thc_list(shard, 0, 0, &listing), THC_E_STATE);
	cr_assert_eq(thc_wait(shard, never_and_counts, NULL, 0), THC_E_STATE);
	cr_assert_eq(register_w(shard, memory, 0), THC_E_STATE);
	cr_assert_eq(thc_unregister(shard, 0), THC_E_STATE);
	cr_assert_eq(thc_held_version(shard, NULL, NULL), THC_E_NOT_AVAILABLE);
	cr_assert_eq(thc_shard_events(shard), 0);
	cr_assert_geq(thc_fd(shard), 0);
	cr_assert_eq(thc_resolve(shard, 0, NULL), THC_E_UNKNOWN);
	fake_agent_freeze(&agent, false);
	cr_assert_eq(thc_close(shard, 0, SOON), 0, "%s", thc_errmsg());
	shard = NULL;
}

/* What was not known is a failure in the end: the same as the call would have returned. */
Test(libthc_life_op, unknown__resolves_to_the_failure)
{
	script((agent.operation_code = THC_E_VERSION_LOST, agent.operation_text = "its last copy"));
	fake_agent_freeze(&agent, true);
	cr_assert_eq(thc_replicate(shard, "3", 0, NULL), THC_E_UNKNOWN);
	fake_agent_freeze(&agent, false);
	cr_assert_eq(thc_resolve(shard, SOON, NULL), THC_E_VERSION_LOST);
	says("its last copy");
	cr_assert_eq(thc_resolve(shard, SOON, NULL), THC_E_STATE);
}

Test(libthc_life_op, unknown__agent_dies__lost_also_for_who_resolves)
{
	fake_agent_freeze(&agent, true);
	cr_assert_eq(thc_publish(shard, 17, 0), THC_E_UNKNOWN);
	fake_agent_freeze(&agent, false);
	script(fake_agent_hang_up(&agent));
	int rc = thc_resolve(shard, SOON, NULL);
	/* Its last words may have been the outcome. */
	cr_assert(rc == 0 || rc == THC_E_AGENT_LOST, "%d", rc);
	cr_assert_eq(thc_publish(shard, 18, SOON), THC_E_AGENT_LOST);
}

Test(libthc_life_op, submitted__deadline_passes__op_wait_says_unknown_and_resolve_ends_it)
{
	fake_agent_freeze(&agent, true);
	cr_assert_eq(thc_publish_submit(shard, 17, 0, &op), 0);
	cr_assert_eq(thc_op_wait(op, SOON, NULL), THC_E_UNKNOWN);
	cr_assert_eq(thc_publish(shard, 18, 0), THC_E_STATE);
	fake_agent_freeze(&agent, false);
	cr_assert_eq(thc_resolve(shard, SOON, NULL), 0, "%s", thc_errmsg());
	cr_assert_eq(thc_op_done(op), 1);
	thc_op_free(op);
	cr_assert_eq(thc_publish(shard, 18, SOON), 0, "%s", thc_errmsg());
}
