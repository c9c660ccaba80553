/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_args_test - every argument error of every call: its code, and a sentence that begins with
 * the argument's name.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "tests/unit/libthc/libthc_fixture.h"

static void
setup(void)
{
	fake_agent_start(&agent);
	const struct thc_open_opts opts = good_opts();
	cr_assert_eq(thc_open(&opts, SOON, &shard), 0, "%s", thc_errmsg());
}

TestSuite(libthc_args, .init = setup, .fini = teardown_handle, .timeout = 30);

#define expect(call, wanted, begin)                                                                \
	do {                                                                                       \
		int got = (call);                                                                  \
		cr_assert_eq(got, (wanted), "%s: %d %s", #call, got, thc_errmsg());                \
		cr_assert_eq(strncmp(thc_errmsg(), (begin), strlen(begin)), 0, "%s: %s", #call,    \
			thc_errmsg());                                                             \
	} while (0)

/* ---- open, close --------------------------------------------------------------------------- */

#define expect_opts(change, begin)                                                                 \
	do {                                                                                       \
		struct thc_shard *none = NULL;                                                     \
		struct thc_open_opts opts = good_opts();                                           \
		change;                                                                            \
		expect(thc_open(&opts, SOON, &none), THC_E_INVALID, begin);                        \
		cr_assert_null(none);                                                              \
	} while (0)

Test(libthc_args, open__bad_opts__names_the_field)
{
	char name[THC_NAME_MAX + 2], dir[200];

	memset(name, 'n', sizeof(name));
	name[sizeof(name) - 1] = '\0';
	memset(dir, 'd', sizeof(dir));
	dir[sizeof(dir) - 1] = '\0';
	expect_opts(opts.struct_size = 0, "opts->struct_size: ");
	expect_opts(opts.struct_size--, "opts->struct_size: ");
	expect_opts(opts.model = NULL, "opts->model: ");
	expect_opts(opts.model = "", "opts->model: ");
	expect_opts(opts.model = name, "opts->model: ");
	expect_opts(opts.model = "a\nb", "opts->model: ");
	expect_opts(opts.model = "\xff", "opts->model: ");
	expect_opts(opts.replica = "", "opts->replica: ");
	expect_opts(opts.replica = name, "opts->replica: ");
	expect_opts(opts.launch_id = "", "opts->launch_id: ");
	expect_opts(opts.num_shards = 0, "opts->num_shards: ");
	expect_opts(opts.num_shards = 1025, "opts->num_shards: ");
	expect_opts(opts.shard = 1, "opts->shard: ");
	expect_opts(opts.retain = "latest,", "opts->retain: \"\" is no rule");
	expect_opts(opts.retain = "latest,17,yesterday", "opts->retain: \"yesterday\" is no rule");
	expect_opts(opts.agent = "", "opts->agent: ");
	expect_opts(opts.agent = dir, "opts->agent: ");
	expect_opts(opts.flags = 1u << 6, "opts->flags: 0x40 has unknown bits");
	expect_opts(opts.flags = THC_PREFETCH | 1u << 20, "opts->flags: 0x100020 has unknown bits");
}

Test(libthc_args, open__other_arguments__are_named)
{
	struct thc_shard *none = NULL;
	struct thc_open_opts opts = good_opts();

	expect(thc_open(NULL, SOON, &none), THC_E_INVALID, "opts: ");
	expect(thc_open(&opts, -2, &none), THC_E_INVALID, "timeout_ms: ");
	expect(thc_open(&opts, SOON, NULL), THC_E_INVALID, "ret_shard: ");
	opts.agent = "/tmp/thc-nobody-is-here";
	expect(thc_open(&opts, SOON, &none), THC_E_NO_AGENT, "no agent listens at /tmp/thc-nobody");
	cr_assert_not_null(strstr(thc_errmsg(), "thctl up"), "%s", thc_errmsg());
	cr_assert_eq(setenv("THC_AGENT", "", 1), 0);
	opts.agent = NULL;
	expect(thc_open(&opts, SOON, &none), THC_E_INVALID, "opts->agent (from THC_AGENT): ");
	cr_assert_eq(unsetenv("THC_AGENT"), 0);
	cr_assert_null(none);
}

Test(libthc_args, open__no_agent_is_named__is_looked_for_in_the_runtime_directory)
{
	char top[] = "/tmp/thc-xdg-XXXXXX", dir[64];
	struct thc_shard *found = NULL;
	struct thc_open_opts opts = good_opts();

	opts.agent = NULL;
	opts.replica = "another";
	cr_assert_not_null(mkdtemp(top));
	snprintf(dir, sizeof(dir), "%s/tensorhub", top);
	cr_assert_eq(unsetenv("THC_AGENT"), 0);
	cr_assert_eq(setenv("XDG_RUNTIME_DIR", top, 1), 0);
	/* It is there, and nobody listens: that of the machine is not asked instead. */
	cr_assert_eq(mkdir(dir, 0700), 0);
	expect(thc_open(&opts, SOON, &found), THC_E_NO_AGENT, "no agent listens at /tmp/thc-xdg-");
	cr_assert_not_null(strstr(thc_errmsg(), "looked at /tmp/thc-xdg-"), "%s", thc_errmsg());
	cr_assert_eq(rmdir(dir), 0);
	/* Sockets are found where their directory is now. */
	cr_assert_eq(thc_close(shard, 0, SOON), 0, "%s", thc_errmsg());
	cr_assert_eq(rename(agent.dir, dir), 0);
	cr_assert_eq(thc_open(&opts, SOON, &shard), 0, "%s", thc_errmsg());
	cr_assert_eq(rename(dir, agent.dir), 0);
	cr_assert_eq(rmdir(top), 0);
}

Test(libthc_args, close__bad_arguments__leave_the_handle)
{
	expect(thc_close(NULL, 0, SOON), THC_E_INVALID, "shard: ");
	expect(thc_close(shard, 2, SOON), THC_E_INVALID, "flags: ");
	expect(thc_close(shard, 0, -5), THC_E_INVALID, "timeout_ms: ");
}

/* ---- memory -------------------------------------------------------------------------------- */

Test(libthc_args, alloc_and_free__bad_arguments__are_named)
{
	int local = 0;
	void *pages = NULL;

	expect(thc_alloc(0, 0, &pages), THC_E_INVALID, "bytes: ");
	expect(thc_alloc(1, 2, &pages), THC_E_INVALID, "flags: ");
	expect(thc_alloc(1, 0, NULL), THC_E_INVALID, "ret_ptr: ");
	cr_assert_lt(thc_alloc(UINT64_MAX, 0, &pages), 0);
	cr_assert_null(pages);
	cr_assert_eq(thc_free(NULL), 0);
	expect(thc_free(&local), THC_E_INVALID, "ptr: ");
	cr_assert_eq(thc_alloc(5000, 0, &pages), 0);
	expect(thc_free((char *)pages + 1), THC_E_INVALID, "ptr: ");
	expect(thc_forget(pages), THC_E_INVALID, "addr: ");
	cr_assert_eq(thc_free(pages), 0);
	expect(thc_free(pages), THC_E_INVALID, "ptr: ");
}

Test(libthc_args, import__bad_arguments__are_named)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	cr_assert_eq(ftruncate(fd, 8192), 0);
	char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	cr_assert_neq(map, MAP_FAILED);
	expect(thc_import(NULL, 8192, fd, 0), THC_E_INVALID, "addr: ");
	expect(thc_import(map, 0, fd, 0), THC_E_INVALID, "bytes: ");
	expect(thc_import(map, UINT64_MAX, fd, 0), THC_E_INVALID, "bytes: ");
	expect(thc_import(map, 8192, -1, 0), THC_E_INVALID, "fd: ");
	expect(thc_import(map, 8192, fd, 1), THC_E_INVALID, "fd_offset: ");
	expect(thc_import(map, 8192, fd, UINT64_MAX), THC_E_INVALID, "fd_offset: ");
	char *other = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	expect(thc_import(other, 8192, fd, 0), THC_E_INVALID, "addr: is not a shared mapping");
	expect(thc_import(map, 4096, fd, 4096), THC_E_INVALID, "addr: is not a shared mapping");
	expect(thc_import(map + 4096, 8192, fd, 0), THC_E_INVALID, "addr: is not a shared mapping");
	munmap(other, 8192);
	cr_assert_eq(thc_import(map + 4100, 4000, fd, 4100), 0, "%s", thc_errmsg());
	cr_assert_eq(thc_forget(map + 4100), 0);
	cr_assert_eq(thc_import(map, 8192, fd, 0), 0, "%s", thc_errmsg());
	expect(thc_import(map + 4096, 4096, fd, 4096), THC_E_STATE, "addr: overlaps");
	expect(thc_free(map), THC_E_INVALID, "ptr: ");
	expect(thc_forget(NULL), THC_E_INVALID, "addr: ");
	cr_assert_eq(thc_forget(map), 0);
	expect(thc_forget(map), THC_E_INVALID, "addr: ");
	munmap(map, 8192);
	th_fd_close(&fd);
}

/* ---- register ------------------------------------------------------------------------------ */

static struct thc_tensor
good_tensor(const char *name, uint64_t offset)
{
	struct thc_tensor tensor = {.name = name,
		.data = memory + offset,
		.bytes = 24,
		.dtype = THC_F32,
		.device = THC_HOST,
		.ndim = 2,
		.local_shape = {2, 3}};

	return tensor;
}

/* Two tensors, of which the second is to be spoilt. */
static struct thc_tensor tensors[2];

static struct thc_tensor *
fresh_tensors(void)
{
	tensors[0] = good_tensor("a", 0);
	tensors[1] = good_tensor("weight", 64);
	return &tensors[1];
}

static void
check_tensors(int code, const char *begin)
{
	expect(thc_register(shard, tensors, 2, sizeof(tensors[0]), SOON), code, begin);
	if (code == THC_E_INVALID && tensors[1].name != NULL &&
		strcmp(tensors[1].name, "weight") == 0)
		cr_assert_not_null(strstr(thc_errmsg(), "'weight'"), "%s", thc_errmsg());
}

#define expect_tensor(change, code, begin)                                                         \
	do {                                                                                       \
		struct thc_tensor *tensor = fresh_tensors();                                       \
		change;                                                                            \
		check_tensors(code, begin);                                                        \
	} while (0)

Test(libthc_args, register__bad_tensor__names_tensor_and_field)
{
	char name[THC_NAME_MAX + 2];

	memset(name, 'n', sizeof(name));
	name[sizeof(name) - 1] = '\0';
	cr_assert_eq(thc_alloc(4096, 0, (void **)&memory), 0);
	expect_tensor(tensor->name = NULL, THC_E_INVALID, "tensors[1].name: ");
	expect_tensor(tensor->name = "", THC_E_INVALID, "tensors[1].name: ");
	expect_tensor(tensor->name = name, THC_E_INVALID, "tensors[1].name: ");
	expect_tensor(tensor->name = "\x80", THC_E_INVALID, "tensors[1].name: ");
	expect_tensor(tensor->name = "a", THC_E_INVALID, "tensors: two tensors have the name 'a'");
	expect_tensor(tensor->dtype = (enum thc_dtype)0, THC_E_INVALID, "tensors[1].dtype: ");
	expect_tensor(tensor->dtype = (enum thc_dtype)99, THC_E_INVALID, "tensors[1].dtype: ");
	expect_tensor(tensor->dtype = THC_F64, THC_E_INVALID, "tensors[1].bytes: ");
	expect_tensor(tensor->ndim = 9, THC_E_INVALID, "tensors[1].ndim: ");
	expect_tensor(tensor->bytes = 23, THC_E_INVALID, "tensors[1].bytes: ");
	expect_tensor(tensor->bytes = 0, THC_E_INVALID, "tensors[1].bytes: ");
	expect_tensor(
		tensor->local_shape[0] = UINT64_MAX / 2, THC_E_INVALID, "tensors[1].local_shape: ");
	expect_tensor(tensor->global_shape[0] = 2, THC_E_INVALID, "tensors[1].offset: ");
	expect_tensor(tensor->offset[1] = 1, THC_E_INVALID, "tensors[1].offset: ");
	expect_tensor(tensor->offset[1] = UINT64_MAX, THC_E_INVALID, "tensors[1].offset: ");
	expect_tensor(tensor->data = NULL, THC_E_INVALID, "tensors[1].data: ");
	expect_tensor(tensor->data = (void *)(UINTPTR_MAX - 3), THC_E_INVALID, "tensors[1].data: ");
	expect_tensor(
		tensor->data = memory + 23, THC_E_INVALID, "tensors[1].data: 'weight' overlaps");
	cr_assert_not_null(strstr(thc_errmsg(), "'a'"));
	/* The same place, but another type: no tie. */
	expect_tensor(
		{
			tensor->data = memory;
			tensor->dtype = THC_I32;
		},
		THC_E_INVALID, "tensors[1].data: 'weight' overlaps 'a'");
	expect_tensor(tensor->device = -2, THC_E_INVALID, "tensors[1].device: ");
	expect_tensor(tensor->data = memory + 4096 - 23, THC_E_MEMORY_KIND,
		"tensors[1].data: 'weight' lies only partly");
	expect_tensor(tensor->data = (void *)4096, THC_E_INVALID,
		"tensors[1].data: nothing is mapped at 0x1000");
	/* Without CUDA; where there is one, this process has not begun with it. */
	fresh_tensors()->device = 0;
	int rc = thc_register(shard, tensors, 2, sizeof(tensors[0]), SOON);
	cr_assert(rc == THC_E_MEMORY_KIND || rc == THC_E_INVALID, "%d", rc);
	cr_assert_not_null(
		strstr(thc_errmsg(), "tensors[1].data: 'weight' is said to lie on GPU 0: "), "%s",
		thc_errmsg());
	cr_assert_eq(agent.registers + agent.memories, 0);
	cr_assert_eq(thc_free(memory), 0);
}

Test(libthc_args, register__other_arguments__are_named)
{
	cr_assert_eq(thc_alloc(4096, 0, (void **)&memory), 0);
	struct thc_tensor tensor = good_tensor("a", 0);
	const size_t size = sizeof(tensor);

	expect(thc_register(NULL, &tensor, 1, size, SOON), THC_E_INVALID, "shard: ");
	expect(thc_register(shard, NULL, 1, size, SOON), THC_E_INVALID, "tensors: ");
	expect(thc_register(shard, &tensor, 0, size, SOON), THC_E_INVALID, "count: ");
	expect(thc_register(shard, &tensor, 131073, size, SOON), THC_E_LIMIT, "count: ");
	expect(thc_register(shard, &tensor, 1, size - 1, SOON), THC_E_INVALID, "tensor_bytes: ");
	expect(thc_register(shard, &tensor, 1, size, -9), THC_E_INVALID, "timeout_ms: ");
	expect(thc_unregister(NULL, SOON), THC_E_INVALID, "shard: ");
	expect(thc_unregister(shard, -9), THC_E_INVALID, "timeout_ms: ");
	expect(thc_unregister(shard, SOON), THC_E_STATE, "this handle has no tensors");
	cr_assert_eq(thc_register(shard, &tensor, 1, size, SOON), 0, "%s", thc_errmsg());
	expect(thc_register(shard, &tensor, 1, size, SOON), THC_E_STATE, "this handle has tensors");
	expect(thc_free(memory), THC_E_STATE, "ptr: a handle has this memory registered");

	char text[64];
	expect(thc_memory_path(NULL, "a", text, 64), THC_E_INVALID, "shard: ");
	expect(thc_memory_path(shard, NULL, text, 64), THC_E_INVALID, "tensor: ");
	expect(thc_memory_path(shard, "b", text, 64), THC_E_INVALID, "tensor: ");
	expect(thc_memory_path(shard, "a", NULL, 64), THC_E_INVALID, "ret_text: ");
	expect(thc_memory_path(shard, "a", text, 0), THC_E_INVALID, "text_bytes: ");
	cr_assert_eq(thc_memory_path(shard, "a", text, sizeof(text)), 0);
	cr_assert_eq(strncmp(text, "direct ", 7), 0);
	cr_assert_eq(thc_unregister(shard, SOON), 0, "%s", thc_errmsg());
	expect(thc_memory_path(shard, "a", text, 64), THC_E_STATE, "");
	cr_assert_eq(thc_free(memory), 0);
}

/* ---- observers ------------------------------------------------------------------------------ */

Test(libthc_args, observer__what_a_member_does__is_refused_and_not_asked)
{
	static const char observer[] = "this handle is an observer";
	const struct thc_tensor none = {"w", NULL, 0, THC_F32, THC_HOST, 1, {0}, {0}, {0}};
	struct thc_open_opts opts = good_opts();
	struct thc_listing *listing = NULL;
	struct thc_op *op = NULL;
	uint64_t version = 0;

	good(thc_close(shard, 0, SOON));
	opts.replica = NULL;
	good(thc_open(&opts, SOON, &shard));
	cr_assert_eq(agent.opened.replica[0], '\0');
	unsigned requests = agent.requests;
	expect(thc_register(shard, &none, 1, sizeof(none), SOON), THC_E_STATE, observer);
	expect(thc_unregister(shard, SOON), THC_E_STATE, observer);
	expect(thc_set_attribute(shard, "a", "b", 1), THC_E_STATE, observer);
	expect(thc_publish(shard, 1, SOON), THC_E_STATE, observer);
	expect(thc_publish_submit(shard, 1, SOON, &op), THC_E_STATE, observer);
	expect(thc_unpublish(shard, 0, SOON), THC_E_STATE, observer);
	expect(thc_unpublish_submit(shard, 0, SOON, &op), THC_E_STATE, observer);
	expect(thc_replicate(shard, "latest", SOON, NULL), THC_E_STATE, observer);
	expect(thc_replicate_submit(shard, "latest", SOON, &op), THC_E_STATE, observer);
	expect(thc_update(shard, "latest", SOON, NULL), THC_E_STATE, observer);
	expect(thc_update_submit(shard, "latest", SOON, &op), THC_E_STATE, observer);
	expect(thc_list(shard, THC_LIST_GROUP, SOON, &listing), THC_E_STATE, observer);
	expect(thc_list_submit(shard, THC_LIST_GROUP, SOON, &op), THC_E_STATE, observer);
	/* Questions have the answer of a handle that holds nothing. */
	expect(thc_resolve(shard, SOON, NULL), THC_E_STATE, "no operation");
	expect(thc_held_version(shard, NULL, &version), THC_E_NOT_AVAILABLE, "this handle holds");
	cr_assert_eq(thc_safe_to_mutate(shard), 1);
	cr_assert_eq(agent.submissions + agent.memories + agent.registers, 0);
	cr_assert_eq(agent.requests, requests);
	/* And what it is for. */
	good(thc_list(shard, 0, SOON, &listing));
	good(thc_watch_submit(shard, listing->generation - 1, SOON, &op));
	good(thc_op_wait(op, SOON, NULL));
	thc_op_free(op);
	thc_listing_free(listing);
}

/* ---- operations ---------------------------------------------------------------------------- */

Test(libthc_args, operations__bad_arguments__are_named)
{
	struct thc_op *op = NULL;
	struct thc_listing *listing = NULL;
	struct thc_result result = THC_RESULT_INIT;
	char text[8];
	const char *const bad[] = {"", "x", "latest-", "latest-0", "latest-01", "-1", "1 ",
		"Latest", "18446744073709551616", "18446744073709551615", "latest+1",
		"00000000000000000000000000000000001"};

	expect(thc_publish(NULL, 1, SOON), THC_E_INVALID, "shard: ");
	expect(thc_publish(shard, THC_NO_VERSION, SOON), THC_E_INVALID, "version: ");
	expect(thc_publish(shard, 1, -2), THC_E_INVALID, "timeout_ms: ");
	expect(thc_publish(shard, 1, SOON), THC_E_STATE, "publish needs tensors");
	expect(thc_publish_submit(shard, 1, SOON, NULL), THC_E_INVALID, "ret_op: ");
	expect(thc_publish_submit(shard, THC_NO_VERSION, SOON, &op), THC_E_INVALID, "version: ");
	expect(thc_unpublish(NULL, 0, SOON), THC_E_INVALID, "shard: ");
	expect(thc_unpublish(shard, 2, SOON), THC_E_INVALID, "flags: ");
	expect(thc_unpublish(shard, 0, -2), THC_E_INVALID, "timeout_ms: ");
	expect(thc_unpublish_submit(shard, 0, SOON, NULL), THC_E_INVALID, "ret_op: ");
	expect(thc_unpublish_submit(shard, 4, SOON, &op), THC_E_INVALID, "flags: ");
	expect(thc_replicate(NULL, "1", SOON, NULL), THC_E_INVALID, "shard: ");
	expect(thc_replicate(shard, NULL, SOON, NULL), THC_E_INVALID, "version: ");
	expect(thc_update(shard, NULL, SOON, NULL), THC_E_INVALID, "version: ");
	for (size_t i = 0; i < TH_ARRAY_LEN(bad); i++) {
		expect(thc_replicate(shard, bad[i], SOON, NULL), THC_E_INVALID, "version: ");
		expect(thc_update(shard, bad[i], SOON, NULL), THC_E_INVALID, "version: ");
		expect(thc_replicate_submit(shard, bad[i], SOON, &op), THC_E_INVALID, "version: ");
		expect(thc_update_submit(shard, bad[i], SOON, &op), THC_E_INVALID, "version: ");
	}
	expect(thc_replicate(shard, "latest", SOON, &result), THC_E_STATE,
		"replicate needs tensors");
	expect(thc_update(shard, "latest-3", SOON, &result), THC_E_STATE, "update needs tensors");
	expect(thc_update(shard, "1", -2, NULL), THC_E_INVALID, "timeout_ms: ");
	expect(thc_replicate_submit(shard, "1", SOON, NULL), THC_E_INVALID, "ret_op: ");
	expect(thc_update_submit(shard, "1", SOON, NULL), THC_E_INVALID, "ret_op: ");
	expect(thc_watch_submit(shard, 1, SOON, NULL), THC_E_INVALID, "ret_op: ");
	expect(thc_list_submit(NULL, THC_LIST_GROUP, SOON, &op), THC_E_INVALID, "shard: ");
	expect(thc_list_submit(shard, 0, SOON, &op), THC_E_INVALID, "flags: lacks");
	expect(thc_list_submit(shard, 3, SOON, &op), THC_E_INVALID, "flags: 0x3");
	expect(thc_list_submit(shard, THC_LIST_GROUP, -2, &op), THC_E_INVALID, "timeout_ms: ");
	expect(thc_list_submit(shard, THC_LIST_GROUP, SOON, NULL), THC_E_INVALID, "ret_op: ");
	result.struct_size = 8;
	expect(thc_replicate(shard, "1", SOON, &result), THC_E_INVALID, "ret_result: ");
	expect(thc_update(shard, "1", SOON, &result), THC_E_INVALID, "ret_result: ");
	expect(thc_resolve(shard, SOON, &result), THC_E_INVALID, "ret_result: ");
	expect(thc_op_wait(NULL, SOON, &result), THC_E_INVALID, "ret_result: ");
	expect(thc_resolve(NULL, SOON, NULL), THC_E_INVALID, "shard: ");
	expect(thc_resolve(shard, -2, NULL), THC_E_INVALID, "timeout_ms: ");
	expect(thc_resolve(shard, SOON, NULL), THC_E_STATE, "no operation");
	expect(thc_op_done(NULL), THC_E_INVALID, "op: ");
	expect(thc_op_wait(NULL, SOON, NULL), THC_E_INVALID, "op: ");
	expect(thc_op_wait(NULL, -2, NULL), THC_E_INVALID, "timeout_ms: ");
	expect(thc_op_progress(NULL, NULL, NULL), THC_E_INVALID, "op: ");
	expect(thc_op_waits(NULL, SOON, text, sizeof(text)), THC_E_INVALID, "op: ");
	expect(thc_op_waits(NULL, -2, text, sizeof(text)), THC_E_INVALID, "timeout_ms: ");
	expect(thc_op_waits(NULL, SOON, NULL, 8), THC_E_INVALID, "ret_text: ");
	expect(thc_op_waits(NULL, SOON, text, 0), THC_E_INVALID, "ret_text: ");
	expect(thc_op_listing(NULL, SOON, &listing), THC_E_INVALID, "op: ");
	expect(thc_op_listing(NULL, -2, &listing), THC_E_INVALID, "timeout_ms: ");
	expect(thc_op_listing(NULL, SOON, NULL), THC_E_INVALID, "ret_listing: ");
	expect(thc_op_cancel(NULL), THC_E_INVALID, "op: ");
	thc_op_free(NULL);
	cr_assert_null(op);
	cr_assert_eq(agent.submissions, 0);
}

Test(libthc_args, listings_and_questions__bad_arguments__are_named)
{
	struct thc_op *op = NULL;
	struct thc_listing *listing = NULL;
	struct thc_manifest *manifest = NULL;
	const struct thc_manifest *lent = NULL, none = {0};
	static char value[(64 << 10) + 1];

	expect(thc_list(NULL, 0, SOON, &listing), THC_E_INVALID, "shard: ");
	expect(thc_list(shard, 2, SOON, &listing), THC_E_INVALID, "flags: ");
	expect(thc_list(shard, 0, -2, &listing), THC_E_INVALID, "timeout_ms: ");
	expect(thc_list(shard, 0, SOON, NULL), THC_E_INVALID, "ret_listing: ");
	expect(thc_wait(NULL, never, NULL, SOON), THC_E_INVALID, "shard: ");
	expect(thc_wait(shard, NULL, NULL, SOON), THC_E_INVALID, "predicate: ");
	expect(thc_wait(shard, never, NULL, -2), THC_E_INVALID, "timeout_ms: ");
	expect(thc_get_manifest(NULL, "1", 0, SOON, &manifest), THC_E_INVALID, "shard: ");
	expect(thc_get_manifest(shard, "x", 0, SOON, &manifest), THC_E_INVALID, "version: ");
	expect(thc_get_manifest(shard, NULL, 0, SOON, &manifest), THC_E_INVALID, "version: ");
	expect(thc_get_manifest(shard, "1", 1024, SOON, &manifest), THC_E_INVALID, "of_shard: ");
	expect(thc_get_manifest(shard, "1", 0, -2, &manifest), THC_E_INVALID, "timeout_ms: ");
	expect(thc_get_manifest(shard, "1", 0, SOON, NULL), THC_E_INVALID, "ret_manifest: ");
	expect(thc_borrow(NULL, "1", 0, 0, SOON, &lent), THC_E_INVALID, "shard: ");
	expect(thc_borrow(shard, "x", 0, 0, SOON, &lent), THC_E_INVALID, "version: ");
	expect(thc_borrow(shard, NULL, 0, 0, SOON, &lent), THC_E_INVALID, "version: ");
	expect(thc_borrow(shard, "1", 1024, 0, SOON, &lent), THC_E_INVALID, "of_shard: ");
	expect(thc_borrow(shard, "1", 0, THC_WHOLE, SOON, &lent), THC_E_INVALID,
		"flags: THC_WHOLE");
	expect(thc_borrow(shard, "1", 0, 4, SOON, &lent), THC_E_INVALID, "flags: ");
	expect(thc_borrow(shard, "1", 0, 0, -2, &lent), THC_E_INVALID, "timeout_ms: ");
	expect(thc_borrow(shard, "1", 0, 0, SOON, NULL), THC_E_INVALID, "ret_manifest: ");
	expect(thc_follow(NULL, NULL, 0, SOON), THC_E_INVALID, "shard: ");
	expect(thc_follow(shard, "17", 0, SOON), THC_E_INVALID, "version: ");
	expect(thc_follow(shard, "", 0, SOON), THC_E_INVALID, "version: ");
	expect(thc_follow(shard, "latest", 1, SOON), THC_E_INVALID, "flags: ");
	expect(thc_follow(shard, "latest", 0, -2), THC_E_INVALID, "timeout_ms: ");
	expect(thc_follow_submit(NULL, NULL, 0, SOON, &op), THC_E_INVALID, "shard: ");
	expect(thc_follow_submit(shard, "17", 0, SOON, &op), THC_E_INVALID, "version: ");
	expect(thc_follow_submit(shard, NULL, 0, SOON, NULL), THC_E_INVALID, "ret_op: ");
	expect(thc_go(NULL, 1, SOON), THC_E_INVALID, "shard: ");
	expect(thc_go(shard, THC_NO_VERSION, SOON), THC_E_INVALID, "version: ");
	expect(thc_go(shard, 1, -2), THC_E_INVALID, "timeout_ms: ");
	expect(thc_return(NULL), THC_E_INVALID, "manifest: ");
	expect(thc_return(&none), THC_E_INVALID, "manifest: ");
	expect(thc_set_attribute(NULL, "a", "", 0), THC_E_INVALID, "shard: ");
	expect(thc_set_attribute(shard, NULL, "", 0), THC_E_INVALID, "name: ");
	expect(thc_set_attribute(shard, "", "", 0), THC_E_INVALID, "name: ");
	expect(thc_set_attribute(shard, "a", value, sizeof(value)), THC_E_LIMIT, "bytes: ");
	expect(thc_held_version(NULL, NULL, NULL), THC_E_INVALID, "shard: ");
	expect(thc_ready_version(NULL, NULL, NULL), THC_E_INVALID, "shard: ");
	expect(thc_held_version(shard, NULL, NULL), THC_E_NOT_AVAILABLE, "this handle holds no");
	expect(thc_safe_to_mutate(NULL), THC_E_INVALID, "shard: ");
	expect(thc_fd(NULL), THC_E_INVALID, "shard: ");
	cr_assert_eq(thc_shard_events(NULL), 0);
	thc_listing_free(NULL);
	thc_manifest_free(NULL);
	cr_assert_null(listing);
	cr_assert_null(manifest);
}

/* 16 of 64 KiB would be over 1 MiB with their names: the sixteenth is refused, the others stay. */
Test(libthc_args, set_attribute__all_together_over_the_limit__is_refused)
{
	static char value[64 << 10];
	char name[2] = "a";

	for (int i = 0; i < 15; i++, name[0]++)
		cr_assert_eq(thc_set_attribute(shard, name, value, sizeof(value)), 0, "%s",
			thc_errmsg());
	cr_assert_eq(thc_set_attribute(shard, name, value, sizeof(value)), THC_E_LIMIT);
	cr_assert_eq(thc_set_attribute(shard, "a", NULL, 0), 0);
	cr_assert_eq(thc_set_attribute(shard, "none", NULL, 0), 0);
	cr_assert_eq(thc_set_attribute(shard, name, value, sizeof(value)), 0, "%s", thc_errmsg());
	cr_assert_eq(thc_set_attribute(shard, name, "short", 5), 0);
}

Test(libthc_args, texts__codes_and_types)
{
	cr_assert_str_eq(thc_version_string(), TH_VERSION);
	cr_assert_str_eq(thc_strerror(0), "success");
	cr_assert_str_eq(thc_strerror(THC_E_FORKED), "the handle was inherited across fork()");
	cr_assert_str_eq(thc_strerror(12345), "unknown error");
	cr_assert_not_null(thc_errmsg());
	cr_assert_eq(thc_dtype_bits(THC_BF16), 16);
	cr_assert_eq(thc_dtype_bits(THC_F4), 4);
	cr_assert_eq(thc_dtype_bits(THC_F6_E3M2), 6);
	cr_assert_eq(thc_dtype_bits((enum thc_dtype)0), 0);
	cr_assert_eq(thc_dtype_bits((enum thc_dtype)23), 0);
}

/* Imported memory was unmapped and not forgotten: an allocation that comes to lie there fails. */
Test(libthc_args, alloc__where_an_import_is_registered__state)
{
	const size_t bytes = 16 << 20;
	int rc = 0, fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *blocks[200] = {NULL};
	size_t count = 0;

	cr_assert_geq(fd, 0);
	cr_assert_eq(ftruncate(fd, (off_t)bytes), 0);
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	cr_assert_neq(map, MAP_FAILED);
	cr_assert_eq(thc_import(map, bytes, fd, 0), 0, "%s", thc_errmsg());
	cr_assert_eq(thc_import(map, bytes, fd, 0), THC_E_STATE);
	cr_assert_eq(munmap(map, bytes), 0);
	while (count < 200 && (rc = thc_alloc(bytes, 0, &blocks[count])) == 0)
		count++;
	cr_assert_eq(rc, THC_E_STATE, "%d after %zu: %s", rc, count, thc_errmsg());
	cr_assert_eq(thc_forget(map), 0);
	for (size_t i = 0; i < count; i++)
		cr_assert_eq(thc_free(blocks[i]), 0);
	th_fd_close(&fd);
}
