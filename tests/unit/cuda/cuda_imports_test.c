/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_imports_test - memory of workers is closed when they have left and nobody uses it, and not
 * before.
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "tests/support/cuda/machine.h"
#include "tests/support/cuda/people.h"
#include "transport/cuda/helper/imports.h"

#define MIB ((size_t)1 << 20)
#define WORKER 7u
#define PIECES 3u
#define TOLD_MAX 16u
#define WAIT_MS 60000

static struct machine machine;
static struct cuda cuda;
static struct chores opening, closing;
static struct imports imports;
static struct person person;
static struct cuda_handle handles[PIECES];
static int wake_fd;
static struct imports_told told_opened[TOLD_MAX], told_closed[TOLD_MAX];
static unsigned num_opened, num_closed;

static void
worker(int sock)
{
	struct cuda own = cuda_ready(0);
	char step = 0;
	for (unsigned i = 0; i < PIECES; i++) {
		CUdeviceptr address = 0;
		struct cuda_memory memory;
		struct cuda_handle handle;
		int fd = -1;
		TH_ASSERT(test_cuda.cuMemAlloc(&address, (i + 1) * MIB) == CUDA_SUCCESS);
		cuda_memory_init(&memory, 0);
		TH_ASSERT(cuda_memory_add(&memory, &own, address, 1, NULL) == 0);
		TH_ASSERT(cuda_handle_make(&own, 0, &memory.pieces[0], &handle, &fd, NULL) == 0);
		cuda_memory_end(&memory);
		tell(sock, &handle, sizeof(handle), -1);
	}
	hear(sock, &step, 1);
}

static void
opened(void *arg, const struct imports_told *told)
{
	(void)arg;
	told_opened[num_opened++] = *told;
}

static void
closed(void *arg, const struct imports_told *told)
{
	(void)arg;
	told_closed[num_closed++] = *told;
}

/* Until so many have been opened and closed in all. */
static void
wait_until(unsigned opens, unsigned closes)
{
	while (num_opened < opens || num_closed < closes) {
		struct pollfd wait = {.fd = wake_fd, .events = POLLIN};
		uint64_t count;
		cr_assert_eq(
			poll(&wait, 1, WAIT_MS), 1, "%u opened, %u closed", num_opened, num_closed);
		cr_assert_eq(read(wake_fd, &count, sizeof(count)), (ssize_t)sizeof(count));
		chores_collect(&opening);
		chores_collect(&closing);
	}
	cr_assert(num_opened == opens && num_closed == closes);
}

/* Three pieces of 1, 2 and 3 MiB are open. */
static void
setup(void)
{
	machine_new(&machine, 1, 64 * MIB);
	person = person_new(worker);
	cuda = cuda_ready(0);
	CUcontext context = NULL;
	TH_ASSERT(cuda.cuCtxGetCurrent(&context) == CUDA_SUCCESS);
	wake_fd = eventfd(0, EFD_CLOEXEC);
	TH_ASSERT(chores_start(&opening, &cuda, context, wake_fd) == 0);
	TH_ASSERT(chores_start(&closing, &cuda, context, wake_fd) == 0);
	const struct imports_config config = {.cuda = &cuda,
		.opening = &opening,
		.closing = &closing,
		.opened = opened,
		.closed = closed};
	imports_init(&imports, &config);
	for (unsigned i = 0; i < PIECES; i++) {
		hear(person.sock, &handles[i], sizeof(handles[i]));
		TH_ASSERT(imports_open(&imports, WORKER, i, &handles[i], -1, NULL));
	}
	wait_until(PIECES, 0);
}

static void
teardown(void)
{
	if (person.pid)
		person_kill(&person);
	machine_remove(&machine);
}

/* Of the GPU's memory, when the worker is dead. */
static uint64_t
kept(void)
{
	return machine_used(&machine, 0) - machine.page->devices[0].context_bytes;
}

Test(cuda_imports, open__three__are_told_in_order, .init = setup, .fini = teardown)
{
	struct cuda_handle bad = handles[0];
	struct th_err why = {0};
	for (unsigned i = 0; i < PIECES; i++) {
		cr_assert(told_opened[i].worker == WORKER && told_opened[i].piece == i);
		cr_assert_eq(told_opened[i].err.code, 0, "%s", told_opened[i].err.text);
	}
	cr_assert_eq(machine_holds(&machine, getpid(), HELD_IMPORTS), 3);
	cr_assert_not(imports_open(&imports, WORKER, 1, &handles[1], -1, NULL), "there already");
	bad.bytes = 0;
	th_fail(&why, TH_E_LIMIT, "no room");
	cr_assert(imports_open(&imports, WORKER, 9, &bad, -1, NULL));
	cr_assert(imports_open(&imports, WORKER, 10, &handles[1], -1, &why));
	wait_until(5, 0);
	cr_assert_eq(told_opened[3].err.code, TH_E_PROTOCOL);
	cr_assert(told_opened[4].err.code == TH_E_LIMIT && told_opened[4].piece == 10);
	cr_assert_eq(machine_holds(&machine, getpid(), HELD_IMPORTS), 3);
	cr_assert_not(imports_has(&imports, WORKER, 9));
	cr_assert_null(imports_hold(&imports, WORKER, 9));
	cr_assert_null(imports_hold(&imports, WORKER + 1, 1));
	imports_leave(&imports, WORKER, IMPORTS_ALL);
	wait_until(5, 3);
	cr_assert_not(imports_has(&imports, WORKER, IMPORTS_ALL));
	cr_assert_eq(machine_holds(&machine, getpid(), HELD_IMPORTS), 0);
}

Test(cuda_imports, leave__worker_killed_while_read__frees_at_the_last_reader, .init = setup,
	.fini = teardown)
{
	const struct cuda_import *where = NULL;
	char got = 1;
	struct imports_entry *first = imports_hold(&imports, WORKER, 2);
	cr_assert_eq(imports_hold(&imports, WORKER, 2), first);
	person_kill(&person);
	person.pid = 0;
	cr_assert_eq(kept(), 6 * MIB);
	imports_leave(&imports, WORKER, IMPORTS_ALL);
	wait_until(3, 2);
	cr_assert_eq(kept(), 3 * MIB, "what nobody reads is free at once");
	cr_assert(imports_has(&imports, WORKER, IMPORTS_ALL));
	cr_assert(imports_has(&imports, WORKER, 2));
	cr_assert_null(imports_hold(&imports, WORKER, 2), "no leg begins on it");
	imports_release(&imports, first);
	cr_assert_eq(imports_where(first, &where), 0);
	cr_assert_eq(test_cuda.cuMemcpyDtoH(&got, where->address + 3 * MIB - 1, 1), CUDA_SUCCESS);
	cr_assert_eq(kept(), 3 * MIB);
	imports_release(&imports, first);
	wait_until(3, 3);
	cr_assert_eq(kept(), 0);
	imports_leave(&imports, WORKER, IMPORTS_ALL);
	cr_assert_not(imports_has(&imports, WORKER, IMPORTS_ALL));
}

Test(cuda_imports, leave__one__leaves_the_others, .init = setup, .fini = teardown)
{
	struct imports_entry *first = imports_hold(&imports, WORKER, 0);
	imports_leave(&imports, WORKER, 1);
	imports_leave(&imports, WORKER, 1);
	wait_until(3, 1);
	cr_assert(told_closed[0].piece == 1 && told_closed[0].err.code == 0);
	cr_assert_eq(machine_holds(&machine, getpid(), HELD_IMPORTS), 2);
	imports_release(&imports, first);
	cr_assert_eq(imports_hold(&imports, WORKER, 0), first, "its worker is still there");
}

Test(cuda_imports, hold__not_open_yet__is_open_later_or_never, .init = setup, .fini = teardown)
{
	const struct cuda_import *where = NULL;
	struct cuda_handle bad = handles[1];
	bad.bytes = 99 * MIB;
	imports_leave(&imports, WORKER, 1);
	imports_leave(&imports, WORKER, 2);
	wait_until(3, 2);
	int plan = machine_plan(&machine, FAULT_HANG, 0, CALL_cuIpcOpenMemHandle, 0, 0);
	cr_assert(imports_open(&imports, WORKER, 11, &handles[1], -1, NULL));
	cr_assert(imports_open(&imports, WORKER, 12, &bad, -1, NULL));
	cr_assert(imports_open(&imports, WORKER, 13, &handles[2], -1, NULL));
	struct imports_entry *good = imports_hold(&imports, WORKER, 11);
	struct imports_entry *none = imports_hold(&imports, WORKER, 12);
	cr_assert_eq(imports_where(good, &where), 1);
	cr_assert_eq(imports_where(none, &where), 1);
	/* Who leaves before it is open has it opened and closed. */
	imports_leave(&imports, WORKER, 13);
	cr_assert_null(imports_hold(&imports, WORKER, 13));
	machine_lift(&machine, plan);
	wait_until(6, 3);
	cr_assert_eq(imports_where(good, &where), 0);
	cr_assert_eq(imports_where(none, &where), TH_E_STALE_MEMORY);
	cr_assert(imports_has(&imports, WORKER, 12));
	imports_release(&imports, none);
	cr_assert_not(imports_has(&imports, WORKER, 12));
	imports_release(&imports, good);
	cr_assert_not(imports_has(&imports, WORKER, 13));
	cr_assert_eq(machine_holds(&machine, getpid(), HELD_IMPORTS), 2);
}

Test(cuda_imports, close__driver_fails__is_said, .init = setup, .fini = teardown)
{
	machine_plan(&machine, FAULT_RESULT, 0, CALL_cuIpcCloseMemHandle, 1, CUDA_ERROR_UNKNOWN);
	imports_leave(&imports, WORKER, IMPORTS_ALL);
	wait_until(3, 3);
	cr_assert_eq(told_closed[0].err.code, 0);
	for (unsigned i = 1; i < 3; i++) {
		cr_assert_eq(told_closed[i].err.code, TH_E_MEMORY_KIND);
		cr_assert(strstr(told_closed[i].err.text, "CUDA_ERROR_UNKNOWN"));
		cr_assert_not(told_closed[i].is_lost, "the GPU is well");
	}
	cr_assert_not(imports_has(&imports, WORKER, IMPORTS_ALL));
}

Test(cuda_imports, open__in_vain_and_never_closed__ends_the_process, .init = setup,
	.fini = teardown)
{
	imports_leave(&imports, WORKER, 0);
	wait_until(3, 1);
	machine_plan(&machine, FAULT_RESULT, 0, CALL_cuMemGetAddressRange, 0, CUDA_ERROR_UNKNOWN);
	machine_plan(&machine, FAULT_RESULT, 0, CALL_cuIpcCloseMemHandle, 0, CUDA_ERROR_UNKNOWN);
	cr_assert(imports_open(&imports, WORKER, 11, &handles[0], -1, NULL));
	wait_until(4, 1);
	cr_assert_neq(told_opened[3].err.code, 0);
	cr_assert(told_opened[3].is_lost, "the GPU is well, but who else frees it?");
}

Test(cuda_imports, gpu__lost__is_not_the_memory, .init = setup, .fini = teardown)
{
	imports_leave(&imports, WORKER, 0);
	wait_until(3, 1);
	machine_lose(&machine, 0, CUDA_ERROR_UNKNOWN);
	cr_assert(imports_open(&imports, WORKER, 11, &handles[0], -1, NULL));
	imports_leave(&imports, WORKER, 1);
	wait_until(4, 2);
	cr_assert_neq(told_opened[3].err.code, 0);
	cr_assert(told_opened[3].is_lost);
	cr_assert(told_closed[1].is_lost);
}
