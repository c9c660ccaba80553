/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_imports_test - memory of workers is closed when they have left and nobody uses it, and not
 * before.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "tests/support/cuda/machine.h"
#include "tests/support/cuda/people.h"
#include "transport/cuda/imports.h"

#define MIB ((size_t)1 << 20)
#define WORKER 7u
#define PIECES 3u

static struct machine machine;
static struct cuda cuda;
static struct imports imports;
static struct person person;
static struct cuda_handle handles[PIECES];
static struct th_err err;

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
		TH_ASSERT(own.cuMemAlloc(&address, (i + 1) * MIB) == CUDA_SUCCESS);
		cuda_memory_init(&memory, 0);
		TH_ASSERT(cuda_memory_add(&memory, &own, address, 1, NULL) == 0);
		TH_ASSERT(cuda_handle_make(&own, 0, &memory.pieces[0], &handle, &fd, NULL) == 0);
		cuda_memory_end(&memory);
		tell(sock, &handle, sizeof(handle), -1);
	}
	hear(sock, &step, 1);
}

/* Three pieces of 1, 2 and 3 MiB are open. */
static void
setup(void)
{
	machine_new(&machine, 1, 64 * MIB);
	person = person_new(worker);
	cuda = cuda_ready(0);
	imports_init(&imports, &cuda, 0);
	for (unsigned i = 0; i < PIECES; i++) {
		hear(person.sock, &handles[i], sizeof(handles[i]));
		TH_ASSERT(imports_open(&imports, WORKER, i, &handles[i], -1, &err) == 0);
	}
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

Test(cuda_imports, open__three__are_counted, .init = setup, .fini = teardown)
{
	cr_assert_eq(imports_count(&imports), 3);
	cr_assert_eq(imports.bytes, 6 * MIB);
	cr_assert_eq(imports_open(&imports, WORKER, 1, &handles[1], -1, &err), TH_E_STATE);
	struct cuda_handle bad = handles[0];
	bad.bytes = 0;
	cr_assert_eq(imports_open(&imports, WORKER, 9, &bad, -1, &err), TH_E_PROTOCOL);
	cr_assert_eq(imports_count(&imports), 3);
	cr_assert_null(imports_use(&imports, WORKER, 9));
	cr_assert_null(imports_use(&imports, WORKER + 1, 1));
	cr_assert_eq(imports_end(&imports, &err), 0, "%s", err.text);
	cr_assert_eq(imports_count(&imports), 0);
	cr_assert_eq(imports.bytes, 0);
}

Test(cuda_imports, leave__worker_killed_while_read__frees_at_the_last_reader, .init = setup,
	.fini = teardown)
{
	char got = 1;
	const struct cuda_import *first = imports_use(&imports, WORKER, 2);
	cr_assert_eq(imports_use(&imports, WORKER, 2), first);
	person_kill(&person);
	person.pid = 0;
	cr_assert_eq(kept(), 6 * MIB);
	cr_assert_eq(imports_leave(&imports, WORKER, &err), 0, "%s", err.text);
	cr_assert_eq(kept(), 3 * MIB, "what nobody reads is free at once");
	cr_assert_eq(imports_count(&imports), 1);
	cr_assert_null(imports_use(&imports, WORKER, 2), "no leg begins on it");
	cr_assert_eq(imports_done(&imports, WORKER, 2, &err), 0);
	cr_assert_eq(cuda.cuMemcpyDtoH(&got, first->address + 3 * MIB - 1, 1), CUDA_SUCCESS);
	cr_assert_eq(kept(), 3 * MIB);
	cr_assert_eq(imports_done(&imports, WORKER, 2, &err), 0);
	cr_assert_eq(kept(), 0);
	cr_assert_eq(imports_count(&imports), 0);
	cr_assert_eq(imports_leave(&imports, WORKER, &err), 0);
}

Test(cuda_imports, forget__one__leaves_the_others, .init = setup, .fini = teardown)
{
	cr_assert_not_null(imports_use(&imports, WORKER, 0));
	cr_assert_eq(imports_forget(&imports, WORKER, 1, &err), 0);
	cr_assert_eq(imports_forget(&imports, WORKER, 1, &err), 0, "twice is once");
	cr_assert_eq(imports_count(&imports), 2);
	cr_assert_eq(imports_done(&imports, WORKER, 0, &err), 0);
	cr_assert_not_null(imports_use(&imports, WORKER, 0), "its worker is still there");
	/* Registered anew under the same number. */
	cr_assert_eq(imports_open(&imports, WORKER, 1, &handles[1], -1, &err), 0, "%s", err.text);
	cr_assert_eq(imports_end(&imports, &err), 0, "in use or not");
	cr_assert_eq(imports_count(&imports), 0);
}

Test(cuda_imports, close__driver_fails__is_counted_and_said, .init = setup, .fini = teardown)
{
	machine_plan(&machine, FAULT_RESULT, 0, CALL_cuIpcCloseMemHandle, 1, CUDA_ERROR_UNKNOWN);
	cr_assert_eq(imports_leave(&imports, WORKER, &err), TH_E_MEMORY_KIND);
	cr_assert(strstr(err.text, "CUDA_ERROR_UNKNOWN"), "%s", err.text);
	cr_assert_eq(imports.failed, 2);
	cr_assert_eq(imports_count(&imports), 0);
	cr_assert_eq(imports.bytes, 0);
}
