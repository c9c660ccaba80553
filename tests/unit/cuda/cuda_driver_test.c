/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_driver_test - our declarations against NVIDIA's header, and drivers that cannot be used.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ipc/cuda/driver.h"
#include "tests/support/cuda/header.h"

/* ---- the header ----------------------------------------------------------------------------- */

static const struct cuda_fact ours[] = {CUDA_FACTS};

/* The numbers as the lists give them, not as the compiler made them. */
static const struct cuda_fact listed[] = {
#define LISTED(name, number) {#name, (number), 0},
	CUDA_RESULTS(LISTED) CUDA_POINTER_ATTRIBUTES(LISTED) CUDA_DEVICE_ATTRIBUTES(LISTED)
#undef LISTED
};

static void
skip_without_header(void)
{
	if (!cuda_header_facts)
		cr_skip_test("no cuda.h of CUDA 13.0 or newer");
}

Test(cuda_driver, header__numbers_and_layouts__are_those_of_cuda_h)
{
	skip_without_header();
	cr_assert_eq(cuda_header_count, sizeof(ours) / sizeof(ours[0]));
	for (size_t i = 0; i < cuda_header_count; i++) {
		const struct cuda_fact *theirs = &cuda_header_facts[i];
		cr_assert_str_eq(ours[i].name, theirs->name);
		cr_assert(ours[i].a == theirs->a && ours[i].b == theirs->b,
			"%s: %lld, %lld here and %lld, %lld in cuda.h", ours[i].name, ours[i].a,
			ours[i].b, theirs->a, theirs->b);
	}
	for (size_t i = 0; i < sizeof(listed) / sizeof(listed[0]); i++)
		cr_assert_eq(listed[i].a, cuda_header_facts[i].a, "%s", listed[i].name);
}

Test(cuda_driver, header__calls__have_the_form_of_the_version_that_is_asked_for)
{
	skip_without_header();
	cr_assert_gt(cuda_header_calls_count, 70);
	for (size_t i = 0; i < cuda_header_calls_count; i++)
		cr_assert_eq(cuda_header_calls[i].a, 1, "%s has another form in cuda.h %d",
			cuda_header_calls[i].name, cuda_header_version);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* As a framework has it: loaded before, found by its name. */
static void
load(const char *name)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/libcuda_%s.so", TH_CUDA_DRIVERS, name);
	cr_assert(dlopen(path, RTLD_NOW | RTLD_LOCAL), "%s", dlerror());
}

static void
expect_refusal(int code, const char *sentence)
{
	struct th_err err = {0};
	struct cuda cuda, before;
	memset(&cuda, 0x5a, sizeof(cuda));
	before = cuda;
	cr_assert_eq(cuda_open(&cuda, &err), code, "%d: %s", err.code, err.text);
	cr_assert(strstr(err.text, sentence), "%s", err.text);
	cr_assert_eq(memcmp(&cuda, &before, sizeof(cuda)), 0, "untouched on failure");
}

Test(cuda_driver, open__no_driver__is_said)
{
	void *there = dlopen(CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (there) /* a machine with a GPU */
		cr_skip_test("a CUDA driver is installed");
	expect_refusal(-ENOENT, "libcuda.so.1");
}

Test(cuda_driver, open__driver_before_cuda_12__names_both_versions)
{
	load("old");
	expect_refusal(-ENOSYS, "is of CUDA 11.4: 12.0 or newer is needed");
}

Test(cuda_driver, open__driver_that_lacks_a_call__names_it)
{
	load("lacking");
	expect_refusal(-ENOSYS, "of CUDA 12.2 has no cuMemPoolDestroy in the form of CUDA 11.2");
}

Test(cuda_driver, open__stub_of_the_toolkit__is_told_apart)
{
	load("stub");
	expect_refusal(-ENODEV, "stub of the CUDA toolkit");
}

Test(cuda_driver, open__driver_that_has_all_and_is_too_old__is_refused)
{
	load("claims_old");
	expect_refusal(-ENOSYS, "is of CUDA 11.8");
}

Test(cuda_driver, open__loaded_before__takes_that_copy_and_fills_every_entry)
{
	struct cuda cuda = {0};
	struct th_err err = {0};
	load("whole");
	cr_assert_eq(cuda_open(&cuda, &err), 0, "%s", err.text);
	cr_assert(cuda.was_loaded);
	cr_assert_eq(cuda.version, 13000);
#define CALL(name, version, arguments) cr_assert_not_null(cuda.name);
	CUDA_CALLS(CALL)
#undef CALL
	cr_assert_str_eq(
		cuda_result_name(&cuda, CUDA_ERROR_INVALID_VALUE), "CUDA_ERROR_INVALID_VALUE");
	cr_assert_str_eq(cuda_result_name(&cuda, CUDA_ERROR_UNKNOWN), "an unknown CUDA error");
	cuda_close(&cuda);
	cr_assert_null(cuda.library);
	cuda_close(&cuda);
}
