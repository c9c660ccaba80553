/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_borrow_test - thc_borrow and thc_return at a scripted agent: where the rows lie, what is
 * believed of the agent's memory, and how long a loan lasts. With real daemons: tests/e2e.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/proto/manifest.h"
#include "tests/unit/libthc/libthc_fixture.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

static uint8_t *rows_data;
static const struct thc_manifest *lent;

/* 5 bytes, then 64 that begin behind them, and a second name for these. */
static void
setup(void)
{
	const struct manifest_row rows[] = {
		{.name = "a", .dtype = THC_U8, .ndim = 1, .local_shape = {5}},
		{.name = "b", .dtype = THC_U8, .ndim = 1, .local_shape = {64}},
		{.name = "tied", .dtype = THC_U8, .ndim = 1, .local_shape = {64}},
		{.name = "z", .dtype = THC_U8, .ndim = 1, .local_shape = {0}},
	};
	const uint32_t alias_of[] = {UINT32_MAX, UINT32_MAX, 1, UINT32_MAX};
	struct manifest manifest;
	struct th_err err = {0};

	fake_agent_start(&agent);
	cr_assert_eq(manifest_build(rows, 4, alias_of, NULL, &err, &manifest), 0, "%s", err.text);
	cr_assert_eq(manifest_encode(&manifest, &rows_data, &agent.manifest_bytes), 0);
	manifest_free(&manifest);
	agent.blob_part_bytes = 1 << 20;
	agent.manifest = rows_data;
	agent.lent_bytes = 4096;
	agent.lent_seals = SEALS;
	good(try_open(&shard));
}

static void
teardown(void)
{
	teardown_handle();
	free(rows_data);
}

TestSuite(libthc_borrow, .init = setup, .fini = teardown, .timeout = 60);

static int
borrow(uint32_t flags, int64_t timeout_ms)
{
	return thc_borrow(shard, "latest", 1, flags, timeout_ms, &lent);
}

static const struct thc_tensor *
row(const char *name)
{
	for (size_t i = 0; i < lent->count; i++)
		if (strcmp(lent->tensors[i].name, name) == 0)
			return &lent->tensors[i];
	cr_assert_fail("no %s", name);
	return NULL;
}

static bool
lease_ended(int timeout_ms)
{
	struct pollfd end = {.fd = agent.lease};

	return poll(&end, 1, timeout_ms) == 1 && (end.revents & POLLERR) != 0;
}

/* Byte i of the file is i / 4. */
static void
rows_are_right(void)
{
	const uint8_t *a = row("a")->data, *b = row("b")->data;

	for (int i = 0; i < 5; i++)
		cr_assert_eq(a[i], i / 4);
	for (int i = 0; i < 64; i++)
		cr_assert_eq(b[i], (i + 5) / 4);
}

Test(libthc_borrow, rows__are_addresses__multiples_of_64)
{
	good(borrow(0, SOON));
	cr_assert_eq(lent->version, 17);
	cr_assert_eq(lent->shard, 1);
	cr_assert_eq(agent.borrowed.shard, 1);
	cr_assert_eq(agent.borrowed.lineage, 3);
	cr_assert_eq(agent.borrowed.version, 17);
	cr_assert_gt(agent.borrowed.deadline_ns, 0);
	cr_assert_eq((uintptr_t)row("a")->data % 64, 0);
	cr_assert_eq((uintptr_t)row("b")->data % 64, 0);
	cr_assert_eq(row("tied")->data, row("b")->data);
	cr_assert_null(row("z")->data);
	rows_are_right();
	cr_assert_not(lease_ended(0));
	good(thc_return(lent));
	cr_assert(lease_ended(SOON));
	cr_assert_eq(thc_return(lent), THC_E_INVALID);
}

Test(libthc_borrow, write__to_what_is_lent__sigsegv)
{
	good(borrow(0, SOON));
	for (int tied = 0; tied < 2; tied++) {
		pid_t child = fork();
		if (child == 0) {
			*(volatile uint8_t *)row(tied ? "b" : "a")->data = 9;
			_exit(0);
		}
		int status = 0;
		cr_assert_eq(waitpid(child, &status, 0), child);
		cr_assert(status != 0, "it was written");
	}
	rows_are_right();
	good(thc_return(lent));
}

Test(libthc_borrow, cow__writes_are_its_own)
{
	const struct thc_manifest *first;

	good(borrow(THC_COW, SOON));
	first = lent;
	memset(row("a")->data, 200, 5);
	memset(row("b")->data, 200, 64);
	cr_assert_eq(*(uint8_t *)row("tied")->data, 200);
	good(borrow(0, SOON));
	rows_are_right();
	good(thc_return(lent));
	good(thc_return(first));
}

Test(libthc_borrow, handle_closed__the_loan_stands)
{
	good(borrow(0, SOON));
	good(thc_close(shard, 0, SOON));
	rows_are_right();
	cr_assert_not(lease_ended(0));
	good(thc_return(lent));
	cr_assert(lease_ended(SOON));
	good(try_open(&shard)); /* for the teardown */
}

Test(libthc_borrow, forked_child__reads_on__and_the_loan_is_the_parents)
{
	int go[2];
	char byte = 0;

	good(borrow(0, SOON));
	cr_assert_eq(pipe(go), 0);
	fake_agent_lock(&agent); /* which has closed its copies by then */
	pid_t child = fork();
	if (child == 0) {
		close(go[1]);
		int rc = (int)read(go[0], &byte, 1); /* until the parent has returned it */
		_exit(rc == 0 && ((const uint8_t *)row("b")->data)[3] == 2 && thc_return(lent) == 0
				? 0
				: 1);
	}
	fake_agent_unlock(&agent);
	close(go[0]);
	good(thc_return(lent));
	cr_assert(lease_ended(SOON), "the child has it still");
	close(go[1]);
	int status = 0;
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_assert_eq(status, 0);
}

Test(libthc_borrow, refused__its_code_and_sentence)
{
	script(agent.borrow_code = THC_E_LIMIT);
	cr_assert_eq(borrow(0, SOON), THC_E_LIMIT);
	cr_assert_str_eq(thc_errmsg(), "refused as told");
	/* What it named is gone: a name that means it still is not asked for again. */
	script(agent.borrow_code = THC_E_NOT_AVAILABLE; agent.borrows = 0);
	cr_assert_eq(borrow(0, SOON), THC_E_NOT_AVAILABLE);
	cr_assert_eq(agent.borrows, 2);
	cr_assert_eq(thc_borrow(shard, "17", 1, 0, SOON, &lent), THC_E_NOT_AVAILABLE);
	cr_assert_eq(agent.borrows, 3);
	script(agent.borrow_code = THC_E_VERSION_LOST);
	cr_assert_eq(thc_borrow(shard, "17", 1, 0, SOON, &lent), THC_E_VERSION_LOST);
}

Test(libthc_borrow, memory_that_may_change_or_is_too_small__not_taken)
{
	script(agent.lent_seals = F_SEAL_SHRINK);
	cr_assert_eq(borrow(0, SOON), THC_E_PROTOCOL);
	cr_assert(lease_ended(SOON));
	script(agent.lent_seals = F_SEAL_FUTURE_WRITE);
	cr_assert_eq(borrow(0, SOON), THC_E_PROTOCOL);
	script(agent.lent_seals = SEALS; agent.lent_bytes = 68);
	cr_assert_eq(borrow(0, SOON), THC_E_PROTOCOL);
	script(agent.lent_bytes = 69);
	good(borrow(0, SOON));
	rows_are_right();
	good(thc_return(lent));
}

Test(libthc_borrow, no_descriptors_come__said_so)
{
	script(agent.lent_bare = true);
	cr_assert_eq(borrow(0, SOON), -EMFILE);
	says("descriptors");
}

Test(libthc_borrow, no_answer__timeout__and_a_late_one_is_returned)
{
	script(agent.borrow_silent = true);
	cr_assert_eq(borrow(0, 100), THC_E_TIMEOUT);
	script(agent.borrow_silent = false);
	good(borrow(0, SOON));
	good(thc_return(lent));
}

Test(libthc_borrow, agent_that_lends_nothing__said_so)
{
	good(thc_close(shard, 0, SOON));
	script(agent.no_gpus = true);
	good(try_open(&shard));
	cr_assert_eq(borrow(0, SOON), THC_E_PROTOCOL);
	says("lends nothing");
}

static void *
borrows_in_thread(void *arg)
{
	const struct thc_manifest **mine = arg;

	cr_assert_eq(thc_borrow(shard, "latest", 1, 0, SOON, mine), 0, "%s", thc_errmsg());
	return NULL;
}

Test(libthc_borrow, several_threads__each_has_its_own)
{
	pthread_t threads[4];
	const struct thc_manifest *each[4] = {NULL};

	for (int i = 0; i < 4; i++)
		cr_assert_eq(pthread_create(&threads[i], NULL, borrows_in_thread, &each[i]), 0);
	for (int i = 0; i < 4; i++)
		cr_assert_eq(pthread_join(threads[i], NULL), 0);
	for (int i = 0; i < 4; i++) {
		lent = each[i];
		rows_are_right();
		good(thc_return(lent));
	}
}

Test(libthc_borrow, agent_gone_meanwhile__agent_lost)
{
	good(borrow(0, SOON));
	script(fake_agent_hang_up(&agent));
	const struct thc_manifest *other = NULL;
	cr_assert_eq(thc_borrow(shard, "latest", 1, 0, SOON, &other), THC_E_AGENT_LOST);
	rows_are_right();
	good(thc_return(lent));
}
