/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_process_test - what libthc may do to the process that links it: it prints nothing that was
 * not asked for, takes no signal and is ended by none, and writes no byte beyond a buffer.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "tests/unit/libthc/libthc_fixture.h"

static void
open_registered(void)
{
	cr_assert_eq(try_open(&shard), 0, "%s", thc_errmsg());
	cr_assert_eq(thc_alloc(4096, 0, (void **)&memory), 0);
	cr_assert_eq(register_w(shard, memory, SOON), 0, "%s", thc_errmsg());
}

TestSuite(libthc_process, .init = setup_agent, .fini = teardown_agent, .timeout = 60);

/* A handle's life, with failures and the loss of the agent. */
static void
live(void)
{
	struct thc_listing *listing = NULL;

	open_registered();
	cr_assert_eq(thc_publish(shard, 1, SOON), 0);
	script(agent.request_code = THC_E_NO_SERVER);
	cr_assert_eq(thc_list(shard, 0, SOON, &listing), THC_E_NO_SERVER);
	script(fake_agent_hang_up(&agent));
	cr_assert_eq(thc_publish(shard, 2, SOON), THC_E_AGENT_LOST);
	cr_assert_eq(thc_close(shard, 0, SOON), 0);
	cr_assert_eq(thc_free(memory), 0);
	script((agent.request_code = 0, agent.open = FAKE_BAD_FILES));
	cr_assert_eq(try_open(&shard), THC_E_PROTOCOL);
}

/* Bytes that live writes to the standard descriptors. */
static off_t
written(void)
{
	int file = memfd_create("test", MFD_CLOEXEC);
	int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
	struct stat st;

	cr_assert(file >= 0 && out >= 0 && err >= 0);
	cr_assert(dup2(file, STDOUT_FILENO) >= 0 && dup2(file, STDERR_FILENO) >= 0);
	live();
	cr_assert(dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0);
	cr_assert_eq(fstat(file, &st), 0);
	close(file);
	close(out);
	close(err);
	return st.st_size;
}

Test(libthc_process, output__thc_log_unset__nothing)
{
	unsetenv("THC_LOG");
	cr_assert_eq(written(), 0);
}

Test(libthc_process, output__thc_log_unknown__nothing)
{
	setenv("THC_LOG", "loud", 1);
	cr_assert_eq(written(), 0);
}

Test(libthc_process, output__thc_log_set__lines)
{
	setenv("THC_LOG", "debug", 1);
	cr_assert_gt(written(), 20);
}

Test(libthc_process, signals__none_is_taken)
{
	struct sigaction before[32], after[32];
	sigset_t mask_before, mask_after;

	for (int i = 1; i < 32; i++)
		(void)sigaction(i, NULL, &before[i]);
	(void)pthread_sigmask(SIG_SETMASK, NULL, &mask_before);
	live();
	for (int i = 1; i < 32; i++) {
		(void)sigaction(i, NULL, &after[i]);
		cr_assert_eq(before[i].sa_handler, after[i].sa_handler, "signal %d", i);
	}
	(void)pthread_sigmask(SIG_SETMASK, NULL, &mask_after);
	for (int i = 1; i < 32; i++)
		cr_assert_eq(sigismember(&mask_before, i), sigismember(&mask_after, i));
}

/* ---- a signal ends no call ----------------------------------------------------------------- */

static atomic_uint interrupted;

static void
on_signal(int signum)
{
	(void)signum;
	atomic_fetch_add(&interrupted, 1);
}

static int
publish(void)
{
	return thc_publish(shard, 1, SOON);
}

static int
list(void)
{
	struct thc_listing *listing = NULL;
	int rc = thc_list(shard, 0, SOON, &listing);

	thc_listing_free(listing);
	return rc;
}

static int
open_it(void)
{
	return try_open(&shard);
}

static int
close_it(void)
{
	return thc_close(shard, 0, SOON);
}

struct caller {
	int (*run)(void);
	int rc;
	atomic_bool ended;
};

static void *
caller_main(void *arg)
{
	struct caller *caller = arg;

	caller->rc = caller->run();
	atomic_store(&caller->ended, true);
	return NULL;
}

/* The agent is frozen until the call has been interrupted a hundred times. */
static void
interrupt(int (*run)(void))
{
	struct caller caller = {.run = run};
	pthread_t thread;

	fake_agent_freeze(&agent, true);
	atomic_store(&interrupted, 0);
	cr_assert_eq(pthread_create(&thread, NULL, caller_main, &caller), 0);
	while (atomic_load(&interrupted) < 100) {
		cr_assert_eq(pthread_kill(thread, SIGUSR1), 0);
		(void)usleep(100);
		cr_assert_not(atomic_load(&caller.ended), "%d", caller.rc);
	}
	fake_agent_freeze(&agent, false);
	cr_assert_eq(pthread_join(thread, NULL), 0);
	cr_assert_eq(caller.rc, 0, "%d", caller.rc);
}

Test(libthc_process, signals__while_a_call_waits__it_goes_on)
{
	/* Without SA_RESTART: each system call that can be is interrupted. */
	const struct sigaction action = {.sa_handler = on_signal};

	cr_assert_eq(sigaction(SIGUSR1, &action, NULL), 0);
	open_registered();
	interrupt(publish);
	interrupt(list);
	interrupt(close_it);
	interrupt(open_it);
	interrupt(close_it);
	cr_assert_eq(thc_free(memory), 0);
}

/* ---- buffers ------------------------------------------------------------------------------- */

Test(libthc_process, memory_path__short_buffer__is_cut)
{
	char text[16];

	open_registered();
	for (size_t room = 1; room < sizeof(text); room++) {
		memset(text, '#', sizeof(text));
		cr_assert_eq(thc_memory_path(shard, "w", text, room), 0, "%s", thc_errmsg());
		cr_assert_eq(strlen(text), room - 1);
		cr_assert_eq(strncmp("direct (memfd, mapped", text, room - 1), 0, "%s", text);
		for (size_t i = room; i < sizeof(text); i++)
			cr_assert_eq(text[i], '#');
	}
	cr_assert_eq(thc_close(shard, 0, SOON), 0);
	cr_assert_eq(thc_free(memory), 0);
}
