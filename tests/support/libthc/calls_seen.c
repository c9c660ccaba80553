/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls_seen - remembers which call of libthc returned which code, for tests/contract/seen.py.
 *
 * It is linked into every test program that has libthc inside: the linker leads each thc_ call of
 * the test to __wrap_thc_, and __real_thc_ is the library's (ld --wrap; tests/meson.build names the
 * calls, and what one of the two lists lacks does not link). The codes go into a table in a file
 * that all programs map, so that nothing is opened, allocated or locked in a call: a test may count
 * its descriptors, run out of them, fork or be killed. Any thread. Without TH_CALLS_SEEN, a folder
 * that tests/contract/begin.py prepares, nothing is remembered.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libthc/thc.h"

/* The calls that return a code, with their parameters and arguments. */
#define CALLS(X)                                                                                   \
	X(thc_open,                                                                                \
		(const struct thc_open_opts *opts, int64_t timeout_ms,                             \
			struct thc_shard **ret_shard),                                             \
		(opts, timeout_ms, ret_shard))                                                     \
	X(thc_close, (struct thc_shard * shard, uint32_t flags, int64_t timeout_ms),               \
		(shard, flags, timeout_ms))                                                        \
	X(thc_alloc, (uint64_t bytes, uint32_t flags, void **ret_ptr), (bytes, flags, ret_ptr))    \
	X(thc_free, (void *ptr), (ptr))                                                            \
	X(thc_import, (void *addr, uint64_t bytes, int fd, uint64_t fd_offset),                    \
		(addr, bytes, fd, fd_offset))                                                      \
	X(thc_forget, (void *addr), (addr))                                                        \
	X(thc_register,                                                                            \
		(struct thc_shard * shard, const struct thc_tensor *tensors, size_t count,         \
			size_t tensor_bytes, int64_t timeout_ms),                                  \
		(shard, tensors, count, tensor_bytes, timeout_ms))                                 \
	X(thc_unregister, (struct thc_shard * shard, int64_t timeout_ms), (shard, timeout_ms))     \
	X(thc_memory_path,                                                                         \
		(struct thc_shard * shard, const char *tensor, char *ret_text, size_t text_bytes), \
		(shard, tensor, ret_text, text_bytes))                                             \
	X(thc_publish, (struct thc_shard * shard, uint64_t version, int64_t timeout_ms),           \
		(shard, version, timeout_ms))                                                      \
	X(thc_unpublish, (struct thc_shard * shard, uint32_t flags, int64_t timeout_ms),           \
		(shard, flags, timeout_ms))                                                        \
	X(thc_safe_to_mutate, (struct thc_shard * shard), (shard))                                 \
	X(thc_replicate,                                                                           \
		(struct thc_shard * shard, const char *version, int64_t timeout_ms,                \
			struct thc_result *ret_result),                                            \
		(shard, version, timeout_ms, ret_result))                                          \
	X(thc_update,                                                                              \
		(struct thc_shard * shard, const char *version, int64_t timeout_ms,                \
			struct thc_result *ret_result),                                            \
		(shard, version, timeout_ms, ret_result))                                          \
	X(thc_held_version,                                                                        \
		(struct thc_shard * shard, uint64_t * ret_lineage, uint64_t * ret_version),        \
		(shard, ret_lineage, ret_version))                                                 \
	X(thc_ready_version,                                                                       \
		(struct thc_shard * shard, uint64_t * ret_lineage, uint64_t * ret_version),        \
		(shard, ret_lineage, ret_version))                                                 \
	X(thc_resolve,                                                                             \
		(struct thc_shard * shard, int64_t timeout_ms, struct thc_result * ret_result),    \
		(shard, timeout_ms, ret_result))                                                   \
	X(thc_set_attribute,                                                                       \
		(struct thc_shard * shard, const char *name, const void *value, size_t bytes),     \
		(shard, name, value, bytes))                                                       \
	X(thc_get_manifest,                                                                        \
		(struct thc_shard * shard, const char *version, uint32_t of_shard,                 \
			int64_t timeout_ms, struct thc_manifest **ret_manifest),                   \
		(shard, version, of_shard, timeout_ms, ret_manifest))                              \
	X(thc_borrow,                                                                              \
		(struct thc_shard * shard, const char *version, uint32_t of_shard, uint32_t flags, \
			int64_t timeout_ms, const struct thc_manifest **ret_manifest),             \
		(shard, version, of_shard, flags, timeout_ms, ret_manifest))                       \
	X(thc_return, (const struct thc_manifest *manifest), (manifest))                           \
	X(thc_follow,                                                                              \
		(struct thc_shard * shard, const char *version, uint32_t flags,                    \
			int64_t timeout_ms),                                                       \
		(shard, version, flags, timeout_ms))                                               \
	X(thc_follow_submit,                                                                       \
		(struct thc_shard * shard, const char *version, uint32_t flags,                    \
			int64_t timeout_ms, struct thc_op **ret_op),                               \
		(shard, version, flags, timeout_ms, ret_op))                                       \
	X(thc_go, (struct thc_shard * shard, uint64_t version, int64_t timeout_ms),                \
		(shard, version, timeout_ms))                                                      \
	X(thc_list,                                                                                \
		(struct thc_shard * shard, uint32_t flags, int64_t timeout_ms,                     \
			struct thc_listing * *ret_listing),                                        \
		(shard, flags, timeout_ms, ret_listing))                                           \
	X(thc_wait,                                                                                \
		(struct thc_shard * shard, thc_predicate predicate, void *arg,                     \
			int64_t timeout_ms),                                                       \
		(shard, predicate, arg, timeout_ms))                                               \
	X(thc_publish_submit,                                                                      \
		(struct thc_shard * shard, uint64_t version, int64_t timeout_ms,                   \
			struct thc_op * *ret_op),                                                  \
		(shard, version, timeout_ms, ret_op))                                              \
	X(thc_unpublish_submit,                                                                    \
		(struct thc_shard * shard, uint32_t flags, int64_t timeout_ms,                     \
			struct thc_op * *ret_op),                                                  \
		(shard, flags, timeout_ms, ret_op))                                                \
	X(thc_replicate_submit,                                                                    \
		(struct thc_shard * shard, const char *version, int64_t timeout_ms,                \
			struct thc_op **ret_op),                                                   \
		(shard, version, timeout_ms, ret_op))                                              \
	X(thc_update_submit,                                                                       \
		(struct thc_shard * shard, const char *version, int64_t timeout_ms,                \
			struct thc_op **ret_op),                                                   \
		(shard, version, timeout_ms, ret_op))                                              \
	X(thc_watch_submit,                                                                        \
		(struct thc_shard * shard, uint64_t generation, int64_t timeout_ms,                \
			struct thc_op * *ret_op),                                                  \
		(shard, generation, timeout_ms, ret_op))                                           \
	X(thc_list_submit,                                                                         \
		(struct thc_shard * shard, uint32_t flags, int64_t timeout_ms,                     \
			struct thc_op * *ret_op),                                                  \
		(shard, flags, timeout_ms, ret_op))                                                \
	X(thc_fd, (struct thc_shard * shard), (shard))                                             \
	X(thc_op_done, (struct thc_op * op), (op))                                                 \
	X(thc_op_wait, (struct thc_op * op, int64_t timeout_ms, struct thc_result * ret_result),   \
		(op, timeout_ms, ret_result))                                                      \
	X(thc_op_progress,                                                                         \
		(struct thc_op * op, uint64_t * ret_done_bytes, uint64_t * ret_total_bytes),       \
		(op, ret_done_bytes, ret_total_bytes))                                             \
	X(thc_op_cancel, (struct thc_op * op), (op))                                               \
	X(thc_op_waits,                                                                            \
		(struct thc_op * op, int64_t timeout_ms, char *ret_text, size_t text_bytes),       \
		(op, timeout_ms, ret_text, text_bytes))                                            \
	X(thc_op_listing,                                                                          \
		(struct thc_op * op, int64_t timeout_ms, struct thc_listing * *ret_listing),       \
		(op, timeout_ms, ret_listing))

#define ROW_OF(name, parameters, arguments) ROW_##name,
enum { CALLS(ROW_OF) NUM_ROWS };
#undef ROW_OF

/* A row of the table; begin.py writes the names. Flag 0: success; 1 to 26: -5000 - code. */
#define FLAG_ERRNO 30
#define FLAG_OTHER 31
struct row {
	char name[32];
	uint8_t here[32]; /* the flags of test programs */
	uint8_t real[32]; /* of tests with real daemons: tests/e2e/library.py */
};
_Static_assert(sizeof(struct row) == 96, "as in tests/contract/seen.py");

static struct row *rows_of[NUM_ROWS]; /* NULL: nothing is remembered of this call */

static void
remember(struct row *row, int code)
{
	unsigned flag = FLAG_OTHER;

	if (row == NULL)
		return;
	if (code >= 0)
		flag = 0;
	else if (code >= -4095)
		flag = FLAG_ERRNO;
	else if (code <= THC_E_INVALID && code >= THC_E_EVICTED)
		flag = (unsigned)(-5000 - code);
	/* Read first: a call in a loop of a million keeps the cache line clean. */
	if (__atomic_load_n(&row->here[flag], __ATOMIC_RELAXED) == 0)
		__atomic_store_n(&row->here[flag], 1, __ATOMIC_RELAXED);
}

static void
find_rows(struct row *rows, size_t count)
{
#define NAME_OF(name, parameters, arguments) #name,
	static const char *const names[] = {CALLS(NAME_OF)};
#undef NAME_OF

	for (size_t i = 0; i < NUM_ROWS; i++)
		for (size_t j = 0; j < count; j++)
			if (strncmp(rows[j].name, names[i], sizeof(rows[j].name)) == 0)
				rows_of[i] = &rows[j];
}

static bool
map_table(const char *folder)
{
	char path[4096];
	struct stat st;
	void *map = MAP_FAILED;

	(void)snprintf(path, sizeof(path), "%s/table", folder);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return false;
	if (fstat(fd, &st) == 0 && st.st_size > 0)
		map = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	(void)close(fd);
	if (map == MAP_FAILED)
		return false;
	find_rows(map, (size_t)st.st_size / sizeof(struct row));
	return true;
}

/* Before main, and so before any test: a mark that this program ran. */
static void __attribute__((constructor)) begin(void)
{
	const char *folder = getenv("TH_CALLS_SEEN");
	char path[4096];

	if (folder == NULL || !map_table(folder))
		return;
	(void)snprintf(path, sizeof(path), "%s/ran.%s", folder, program_invocation_short_name);
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	if (fd >= 0)
		(void)close(fd);
}

#define WRAP(name, parameters, arguments)                                                          \
	int __real_##name parameters;                                                              \
	int __wrap_##name parameters;                                                              \
	int __wrap_##name parameters                                                               \
	{                                                                                          \
		int code = __real_##name arguments;                                                \
		remember(rows_of[ROW_##name], code);                                               \
		return code;                                                                       \
	}
CALLS(WRAP)
