/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_states_test - who holds an operation, and whether it is cancelled: which ways there are, that
 * each other one ends the process, and what is counted on the way.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libthc/libthc_own.h"

/* By the diagrams of libthc/README.md: a row for each state, a column for each that may follow. */
static const bool holder_ways[][4] = {
	[OP_OF_CALLER] = {[OP_COLLECTED] = true, [OP_OF_NOBODY] = true},
	[OP_COLLECTED] = {[OP_OF_NOBODY] = true},
	[OP_OF_CALL] = {[OP_OF_NOBODY] = true},
	[OP_OF_NOBODY] = {false},
};

static const bool cancel_ways[][3] = {
	[CANCEL_NOT_ASKED] = {[CANCEL_DUE] = true, [CANCEL_SENT] = true},
	[CANCEL_DUE] = {[CANCEL_NOT_ASKED] = true, [CANCEL_SENT] = true},
	[CANCEL_SENT] = {false},
};

static void
go_holder(unsigned from, unsigned to)
{
	struct thc_shard shard = {.num_uncollected = 1};
	struct thc_op op = {.shard = &shard, .holder = from, .done = true};

	op_holder_enter(&op, to, "a test");
	_exit(op.holder == to ? 0 : 1);
}

static void
go_cancel(unsigned from, unsigned to)
{
	struct thc_shard shard = {.cancels_due = 1};
	struct thc_op op = {.shard = &shard, .cancel = from};

	op_cancel_enter(&op, to, "a test");
	_exit(op.cancel == to ? 0 : 1);
}

static void
expect_way(void (*go)(unsigned from, unsigned to), unsigned from, unsigned to, bool exists)
{
	int status = 0;
	pid_t pid = fork();

	cr_assert_geq(pid, 0);
	if (pid == 0) {
		go(from, to);
		_exit(2);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	if (exists)
		cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%u to %u: %d", from, to,
			status);
	else
		cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "%u to %u: %d", from,
			to, status);
}

Test(op_states, holder__each_way_of_the_diagram_and_no_other)
{
	for (unsigned from = 0; from < TH_ARRAY_LEN(holder_ways); from++)
		for (unsigned to = 0; to < TH_ARRAY_LEN(holder_ways[0]); to++)
			expect_way(go_holder, from, to, holder_ways[from][to]);
}

Test(op_states, cancel__each_way_of_the_diagram_and_no_other)
{
	for (unsigned from = 0; from < TH_ARRAY_LEN(cancel_ways); from++)
		for (unsigned to = 0; to < TH_ARRAY_LEN(cancel_ways[0]); to++)
			expect_way(go_cancel, from, to, cancel_ways[from][to]);
}

Test(op_states, uncollected__counts_what_is_done_and_not_seen)
{
	struct thc_shard shard = {.num_uncollected = 2};
	struct thc_op seen = {.shard = &shard, .done = true}, freed = seen, running = seen;

	running.done = false;
	op_holder_enter(&running, OP_OF_NOBODY, "was never counted");
	cr_assert_eq(shard.num_uncollected, 2);
	op_holder_enter(&freed, OP_OF_NOBODY, "was not seen");
	cr_assert_eq(shard.num_uncollected, 1);
	op_holder_enter(&seen, OP_COLLECTED, "is seen");
	cr_assert_eq(shard.num_uncollected, 0);
	op_holder_enter(&seen, OP_OF_NOBODY, "was seen");
	cr_assert_eq(shard.num_uncollected, 0);
}

Test(op_states, cancels_due__counts_what_waits_for_room)
{
	struct thc_shard shard = {0};
	struct thc_op sent = {.shard = &shard}, late = sent, ended = sent;

	op_cancel_enter(&sent, CANCEL_SENT, "there is room");
	cr_assert_eq(shard.cancels_due, 0);
	op_cancel_enter(&late, CANCEL_DUE, "the ring is full");
	op_cancel_enter(&ended, CANCEL_DUE, "the ring is full");
	cr_assert_eq(shard.cancels_due, 2);
	op_cancel_enter(&late, CANCEL_SENT, "there is room");
	cr_assert_eq(shard.cancels_due, 1);
	op_cancel_enter(&ended, CANCEL_NOT_ASKED, "it has ended");
	cr_assert_eq(shard.cancels_due, 0);
}
