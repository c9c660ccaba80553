/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs_library_test - libibverbs that is not there, and such as cannot be used.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "transport/rdma/device/verbs.h"

static const char *hidden; /* the library that this machine shall not have */

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);

void *
__wrap_dlopen(const char *name, int flags)
{
	bool hide = hidden && strcmp(name, hidden) == 0;
	return __real_dlopen(hide ? "libibverbs-hidden.so.1" : name, flags);
}

/* Who has one loaded has it by its soname, as if it had been found. */
static void
load(const char *name)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/libverbs_%s.so", TH_VERBS_LIBRARIES, name);
	cr_assert(__real_dlopen(path, RTLD_NOW | RTLD_LOCAL), "%s", dlerror());
}

static void
expect_refusal(int code, const char *sentence)
{
	struct th_err err = {0};
	struct verbs verbs, before;
	memset(&verbs, 0x5a, sizeof(verbs));
	before = verbs;
	cr_assert_eq(verbs_ib(&verbs, &err), code, "%d: %s", err.code, err.text);
	cr_assert(strstr(err.text, sentence), "%s", err.text);
	cr_assert_eq(memcmp(&verbs, &before, sizeof(verbs)), 0, "untouched on failure");
}

Test(verbs_library, absent__is_said_with_what_to_install)
{
	hidden = "libibverbs.so.1";
	expect_refusal(-ENOENT,
		"libibverbs cannot be loaded (libibverbs-hidden.so.1: cannot open shared object "
		"file: No such file or directory): install rdma-core");
	/* It is looked for again: nothing was kept. */
	load("whole");
	hidden = NULL;
	struct verbs verbs;
	cr_assert_eq(verbs_ib(&verbs, NULL), 0);
}

Test(verbs_library, lacks_a_call__names_it_and_what_has_it)
{
	load("lacking");
	expect_refusal(-ENOSYS,
		"libibverbs.so.1 has no ibv_reg_dmabuf_mr of IBVERBS_1.12: update rdma-core to 34");
}

Test(verbs_library, call_of_another_form__is_not_taken_for_it)
{
	load("former");
	expect_refusal(-ENOSYS, "libibverbs.so.1 has no ibv_alloc_pd of IBVERBS_1.1");
}

Test(verbs_library, whole__is_loaded_once_and_asked_for_devices)
{
	struct verbs verbs = {0}, again = {0};
	struct verbs_device *device = NULL;
	struct th_err err = {0};
	load("whole");
	cr_assert_eq(verbs_ib(&verbs, &err), 0, "%s", err.text);
	cr_assert_eq(verbs.ops->open(verbs.context, &device, 1), 0);
	cr_assert_null(device);
	hidden = "libibverbs.so.1";
	cr_assert_eq(verbs_ib(&again, &err), 0, "%s", err.text);
	cr_assert_eq(again.ops, verbs.ops);
}
