/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for offloaded copies: budget, pages, giving back; and how much room a host has. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/host/memory/host_pool.h"
#include "daemon/host/memory/mem_available.h"
#include "ipc/base/err.h"
#include "tests/support/cuda/gpus_rig.h"
#include "tests/support/cuda/scripted_gpu.h"
#include "transport/part/fd_memory.h"

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)

static char root[64];

/* A file of the pretended system. */
static void
write_file(const char *path, const char *text)
{
	char full[256];
	snprintf(full, sizeof(full), "%s%s", root, path);
	for (char *at = full + strlen(root) + 1; (at = strchr(at, '/')); at++) {
		*at = '\0';
		(void)mkdir(full, 0700);
		*at = '/';
	}
	FILE *file = fopen(full, "w");
	cr_assert_not_null(file, "%s", full);
	fputs(text, file);
	fclose(file);
}

static void
setup(void)
{
	snprintf(root, sizeof(root), "/tmp/th-offload-XXXXXX");
	cr_assert_not_null(mkdtemp(root));
	write_file("/proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   102400 kB\n");
	write_file("/proc/self/cgroup", "0::/\n");
}

static void
teardown(void)
{
	char command[128];
	snprintf(command, sizeof(command), "rm -rf %s", root);
	cr_assert_eq(system(command), 0);
}

TestSuite(daemon_offload, .init = setup, .fini = teardown);

/* ---- room ------------------------------------------------------------------------------ */

Test(daemon_offload, room__no_limits__what_the_kernel_calls_available)
{
	cr_assert_eq(room_now(root), 100 * MIB);
}

Test(daemon_offload, room__nothing_can_be_read__no_limit)
{
	cr_assert_eq(room_now("/nonexistent"), UINT64_MAX);
}

Test(daemon_offload, room__limit_of_a_group_above__counts_without_its_page_cache)
{
	write_file("/proc/self/cgroup", "0::/pod/agent\n");
	write_file("/sys/fs/cgroup/pod/agent/memory.max", "max\n");
	write_file("/sys/fs/cgroup/pod/agent/memory.current", "1\n");
	write_file("/sys/fs/cgroup/pod/memory.max", "83886080\n");
	write_file("/sys/fs/cgroup/pod/memory.current", "52428800\n");
	cr_assert_eq(room_now(root), 30 * MIB);
	write_file("/sys/fs/cgroup/pod/memory.stat",
		"anon 5\ninactive_file 8388608\nactive_file 2097152\n");
	cr_assert_eq(room_now(root), 40 * MIB);
	write_file("/sys/fs/cgroup/pod/agent/memory.max", "0\n");
	cr_assert_eq(room_now(root), 0);
}

Test(daemon_offload, room__groups_of_version_1__their_limit_counts)
{
	write_file("/proc/self/cgroup", "5:cpu,memory:/a\n4:cpuset:/b\n0::/\n");
	write_file("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "20971520\n");
	write_file("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1048576\n");
	write_file("/sys/fs/cgroup/memory/a/memory.stat", "total_inactive_file 1048576\n");
	cr_assert_eq(room_now(root), 20 * MIB);
}

/* ---- memory ---------------------------------------------------------------------------- */

struct seen {
	int calls, code;
	char text[512];
};

static void
on_done(void *arg, const struct th_err *result)
{
	struct seen *seen = arg;
	seen->calls++;
	seen->code = result->code;
	snprintf(seen->text, sizeof(seen->text), "%s", result->text);
}

static struct offload *
make(uint64_t limit)
{
	struct offload *offload = NULL;
	struct th_err err;
	const struct offload_config config = {
		.limit = limit, .root = root, .patience_ns = RIG_PATIENCE_NS};
	cr_assert_eq(offload_new(&config, &err, &offload), 0);
	return offload;
}

static void
wait_for(struct offload *offload)
{
	struct pollfd poller = {.fd = offload_fd(offload), .events = POLLIN};
	cr_assert_eq(poll(&poller, 1, 60000), 1);
	offload_poll(offload);
}

static struct offload_memory *
get(struct offload *offload, uint64_t bytes)
{
	struct seen seen = {0};
	struct th_err err = {0};
	struct offload_memory *memory = offload_start(offload, bytes, on_done, &seen, &err);
	cr_assert_not_null(memory, "%s", err.text);
	while (seen.calls == 0)
		wait_for(offload);
	cr_assert_eq(seen.code, 0, "%s", seen.text);
	return memory;
}

static void
refused(struct offload *offload, uint64_t bytes, const char *why)
{
	struct th_err err = {0};
	cr_assert_null(offload_start(offload, bytes, on_done, NULL, &err));
	cr_assert_eq(err.code, TH_E_NOMEM_RETAIN);
	cr_assert_not_null(strstr(err.text, why), "%s", err.text);
}

/* Pages of this process that are there, of memory shared with others or a file in memory. */
static uint64_t
shared_bytes(void)
{
	FILE *file = fopen("/proc/self/status", "r");
	char line[256];
	unsigned long long kib = 0;
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "RssShmem: %llu kB", &kib) == 1)
			break;
	}
	fclose(file);
	return kib * KIB;
}

Test(daemon_offload, memory__every_page_is_there_and_given_back)
{
	struct offload *offload = make(80 * MIB);
	uint64_t before = shared_bytes();
	struct offload_memory *memory = get(offload, 70 * MIB - 1);
	cr_assert_eq(offload_bytes(memory), 70 * MIB);
	cr_assert_eq(offload_used(offload), 70 * MIB);
	cr_assert_geq(shared_bytes(), before + 70 * MIB);
	uint8_t *data = offload_data(memory);
	cr_assert_eq(data[0], 0);
	data[70 * MIB - 1] = 1;
	offload_release(memory);
	while (offload_used(offload) > 0)
		wait_for(offload);
	cr_assert_lt(shared_bytes(), before + MIB);
	offload_free(offload);
}

Test(daemon_offload, budget__explicit__refused_with_its_numbers)
{
	struct offload *offload = make(10 * MIB);
	struct offload_memory *memory = get(offload, 8 * MIB);
	cr_assert_eq(offload_budget(offload), 10 * MIB);
	refused(offload, 3 * MIB, "8.00MiB of the 10.0MiB");
	struct offload_memory *other = get(offload, 2 * MIB);
	/* What is given back is free at once. */
	offload_release(memory);
	memory = get(offload, 8 * MIB);
	offload_release(memory);
	offload_release(other);
	offload_free(offload);
}

Test(daemon_offload, budget__none__refused)
{
	struct offload *offload = make(0);
	refused(offload, 1, "--offload-limit 0");
	offload_free(offload);
}

Test(daemon_offload, budget__by_default__half_of_what_is_available)
{
	struct offload *offload = make(OFFLOAD_HALF);
	cr_assert_eq(offload_budget(offload), 50 * MIB);
	refused(offload, 51 * MIB, "half of the memory");
	struct offload_memory *memory = get(offload, 30 * MIB);
	/* The pretended host does not see what was taken: 130 MiB in all. */
	cr_assert_eq(offload_budget(offload), 65 * MIB);
	refused(offload, 36 * MIB, "30.0MiB of the 65.0MiB");
	offload_release(memory);
	offload_free(offload);
}

Test(daemon_offload, budget__larger_than_the_host__refused)
{
	struct offload *offload = make(UINT64_C(1) << 40);
	refused(offload, 101 * MIB, "this host has 100MiB available");
	refused(offload, UINT64_MAX, "more than a host has");
	offload_free(offload);
}

Test(daemon_offload, release__while_it_is_made__done_is_not_called)
{
	struct offload *offload = make(90 * MIB);
	struct seen seen = {0};
	struct th_err err;
	for (int i = 0; i < 20; i++) {
		struct offload_memory *memory =
			offload_start(offload, 80 * MIB, on_done, &seen, &err);
		cr_assert_not_null(memory);
		if (i % 2)
			usleep(500);
		offload_release(memory);
		while (offload_used(offload) > 0)
			wait_for(offload);
	}
	cr_assert_eq(seen.calls, 0);
	offload_free(offload);
}

Test(daemon_offload, end__whatever_is_under_way__all_is_freed)
{
	struct seen seen = {0};
	struct th_err err;
	for (int i = 0; i < 10; i++) {
		struct offload *offload = make(90 * MIB);
		struct offload_memory *memory = get(offload, MIB);
		(void)offload_start(offload, 40 * MIB, on_done, &seen, &err);
		(void)offload_start(offload, 40 * MIB, on_done, &seen, &err);
		offload_release(memory);
		if (i % 2)
			usleep(1000);
		offload_free(offload);
	}
	cr_assert_eq(seen.calls, 0);
	cr_assert_lt(shared_bytes(), 4 * MIB);
}

/* ---- what is given up ------------------------------------------------------------------ */

static void
expect_quiet(struct offload *offload)
{
	struct pollfd poller = {.fd = offload_fd(offload), .events = POLLIN};
	cr_assert_eq(poll(&poller, 1, 50), 0);
}

Test(daemon_offload, given_up__what_takes_its_place_waits_for_its_release)
{
	struct offload *offload = make(10 * MIB);
	struct seen seen = {0}, small = {0};
	struct th_err err;
	struct offload_memory *memory = get(offload, 6 * MIB);
	refused(offload, 8 * MIB, "6.00MiB of the 10.0MiB");
	offload_give_up(memory);
	offload_give_up(memory);
	struct offload_memory *next = offload_start(offload, 8 * MIB, on_done, &seen, &err);
	cr_assert_not_null(next, "%s", err.text);
	expect_quiet(offload);
	/* The room is promised, once. */
	refused(offload, 3 * MIB, "8.00MiB of the 10.0MiB");
	/* What has room is not in its queue. */
	struct offload_memory *other = offload_start(offload, 2 * MIB, on_done, &small, &err);
	cr_assert_not_null(other, "%s", err.text);
	while (small.calls == 0)
		wait_for(offload);
	cr_assert_eq(small.code, 0, "%s", small.text);
	cr_assert_eq(seen.calls, 0);
	offload_release(memory);
	while (seen.calls == 0)
		wait_for(offload);
	cr_assert_eq(seen.code, 0, "%s", seen.text);
	offload_release(next);
	offload_release(other);
	while (offload_used(offload) > 0)
		wait_for(offload);
	cr_assert_eq(offload_budget(offload), 10 * MIB);
	offload_free(offload);
}

Test(daemon_offload, given_up__not_released_in_time__refused_with_the_reason)
{
	const struct offload_config config = {
		.limit = 10 * MIB, .root = root, .patience_ns = 50000000};
	struct offload *offload;
	struct seen seen = {0};
	struct th_err err;
	cr_assert_eq(offload_new(&config, &err, &offload), 0);
	struct offload_memory *memory = get(offload, 6 * MIB);
	offload_give_up(memory);
	cr_assert_not_null(offload_start(offload, 8 * MIB, on_done, &seen, &err));
	while (seen.calls == 0)
		wait_for(offload);
	cr_assert_eq(seen.code, TH_E_NOMEM_RETAIN);
	cr_assert(strstr(seen.text, "still read after 50"), "%s", seen.text);
	cr_assert_eq(offload_used(offload), 6 * MIB);
	/* It holds up nobody else. */
	struct offload_memory *other = get(offload, 4 * MIB);
	offload_release(memory);
	memory = get(offload, 6 * MIB);
	offload_release(memory);
	offload_release(other);
	offload_free(offload);
}

Test(daemon_offload, given_up__who_waits_for_it_is_withdrawn__its_room_is_free)
{
	struct offload *offload = make(10 * MIB);
	struct seen seen = {0};
	struct th_err err;
	struct offload_memory *memory = get(offload, 6 * MIB);
	offload_give_up(memory);
	struct offload_memory *next = offload_start(offload, 8 * MIB, on_done, &seen, &err);
	cr_assert_not_null(next, "%s", err.text);
	offload_release(next);
	/* At once, too. */
	next = offload_start(offload, 9 * MIB, on_done, &seen, &err);
	cr_assert_not_null(next, "%s", err.text);
	while (offload_used(offload) > 15 * MIB)
		wait_for(offload);
	cr_assert_eq(seen.calls, 0);
	offload_release(memory);
	while (seen.calls == 0)
		wait_for(offload);
	cr_assert_eq(seen.code, 0, "%s", seen.text);
	/* The end comes while somebody waits. */
	offload_give_up(next);
	cr_assert_not_null(offload_start(offload, 8 * MIB, on_done, &seen, &err));
	offload_release(next);
	offload_free(offload);
	cr_assert_eq(seen.calls, 1);
}

/* ---- GPUs ------------------------------------------------------------------------------ */

/* A GPU that is told of it and reads it: it is free when the GPU's process has forgotten it, and
 * until then nothing takes its place. */
Test(daemon_offload, memory__that_gpus_reach__is_freed_when_they_have_forgotten_it)
{
	static const uint8_t uuid[16] = "the first GPU";
	struct script *script = script_new();
	const struct gpus_config config = {.launch = script_launch,
		.arg = script,
		.staging_bytes = 8 * MIB,
		.hang_ns = RIG_PATIENCE_NS,
		.leave_ns = RIG_PATIENCE_NS,
		.idle_ns = RIG_PATIENCE_NS};
	struct cuda_handle handle = {.kind = CUDA_KIND_LEGACY, .bytes = MIB};
	struct gpus *gpus;
	struct seen seen = {0};
	struct th_err err;
	struct offload *offload = make(10 * MIB);
	cr_assert_eq(gpus_new(&config, &err, &gpus), 0, "%s", err.text);
	struct offload_memory *memory = get(offload, 8 * MIB);
	offload_offer(memory, gpus);
	int seals = fcntl(fd_memory_fd(offload_file(memory)), F_GET_SEALS);
	cr_assert_eq(seals, F_SEAL_SHRINK | F_SEAL_GROW);
	struct gpu_space *space = gpu_space_new(gpus, uuid, "m/r/0", &err);
	memcpy(handle.uuid, uuid, sizeof(uuid));
	cr_assert_eq(gpu_space_add(space, &handle, RIG_BASE, -1, NULL, &err), 0);
	memset(script->memory, 0x5a, MIB);
	struct gpu_span span = {space, RIG_BASE, MIB};
	struct gpu_request read = rig_read(&span, offload_data(memory) + 3 * MIB);
	read.host = offload_host(memory);
	cr_assert_eq(rig_carry(&read), 0, "%s", read.text);
	cr_assert_arr_eq(offload_data(memory) + 3 * MIB, script->memory, MIB);
	struct script_step *step = script_add(script, GPU_AREA, SCRIPT_WAIT, 0, 1);
	offload_release(memory);
	while (step->met == 0)
		usleep(1000);
	cr_assert_eq(offload_used(offload), 8 * MIB);
	/* Promised at once, and made when it fits. */
	struct offload_memory *next = offload_start(offload, 3 * MIB, on_done, &seen, &err);
	cr_assert_not_null(next, "%s", err.text);
	cr_assert_eq(poll(&(struct pollfd){.fd = offload_fd(offload), .events = POLLIN}, 1, 50), 0);
	cr_assert_eq(seen.calls, 0);
	script->go = 1;
	while (seen.calls == 0)
		wait_for(offload);
	cr_assert_eq(seen.code, 0, "%s", seen.text);
	offload_release(next);
	while (offload_used(offload) > 0)
		wait_for(offload);
	cr_assert_eq(script->areas, 0);
	gpu_space_release(space);
	gpus_free(gpus);
	offload_free(offload);
	script_free(script);
}
