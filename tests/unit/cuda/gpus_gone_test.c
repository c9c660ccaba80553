/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpus_gone_test - when a worker may be told that its memory is free: no process of a GPU has it
 * open, and its descriptor is closed; not before, and not never. And the agent's own, also where
 * the process never had it.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/log.h"
#include "tests/support/cuda/gpus_rig.h"
#include "tests/support/cuda/scripted_gpu.h"
#include "transport/cuda/agent/gpus_own.h"

#define MIB ((size_t)1 << 20)
#define LEAVE_NS INT64_C(20000000)

static struct script *script;
static struct gpus *gpus;
static struct th_err err;
static const uint8_t uuids[2][16] = {"the first GPU", "the second GPU"};

struct slow_close {
	int fd;
	void (*closed)(void *arg);
	void *arg;
};
static struct slow_close slow;

/* It takes until the test says so. */
static void
close_later(int fd, void (*closed)(void *arg), void *arg)
{
	slow = (struct slow_close){fd, closed, arg};
	rig_happens();
}

static void
begin(int64_t leave_ns)
{
	const struct gpus_config config = {.launch = script_launch,
		.arg = script,
		.close_fd = close_later,
		.staging_bytes = 8 * MIB,
		.hang_ns = RIG_PATIENCE_NS,
		.leave_ns = leave_ns,
		.idle_ns = RIG_PATIENCE_NS};
	TH_ASSERT(gpus_new(&config, &err, &gpus) == 0);
}

static void
set_up(void)
{
	log_set_level(LOG_LEVEL_ERROR);
	script = script_new();
}

static void
tear_down(void)
{
	gpus_free(gpus);
	script_free(script);
}

TestSuite(gpus_gone, .init = set_up, .fini = tear_down, .timeout = 120);

static void
count_gone(void *arg)
{
	__atomic_fetch_add((int *)arg, 1, __ATOMIC_RELEASE);
	rig_happens();
}

static int
times(const int *gone)
{
	return __atomic_load_n(gone, __ATOMIC_ACQUIRE);
}

static struct gpu_space *
space_new(unsigned gpu)
{
	struct gpu_space *space = gpu_space_new(gpus, uuids[gpu], "m/r/0", &err);
	cr_assert(space, "%s", err.text);
	return space;
}

static int
add_bytes(struct gpu_space *space, uint64_t at, uint64_t bytes, int fd, int *gone)
{
	struct cuda_handle handle = {.kind = CUDA_KIND_LEGACY, .bytes = bytes, .id = at};
	const struct gpu_piece_user user = {.arg = gone, .gone = count_gone};
	memcpy(handle.uuid, gpu_space_uuid(space), 16);
	return gpu_space_add(space, &handle, RIG_BASE + at, fd, &user, &err);
}

static int
add(struct gpu_space *space, uint64_t at, int fd, int *gone)
{
	return add_bytes(space, at, MIB, fd, gone);
}

static uint64_t
open_piece(struct gpu_space *space, uint64_t at, int *gone)
{
	cr_assert_eq(add(space, at, -1, gone), 0, "%s", err.text);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	return RIG_BASE + at;
}

static void
wait_for_leave(uint32_t count)
{
	while (script->messages[GPU_LEAVE] < count)
		usleep(500);
}

Test(gpus_gone, a_piece__forgotten__is_gone_when_the_process_has_let_go)
{
	int gone[2] = {0, 0};
	script_add(script, GPU_LEAVE, SCRIPT_WAIT, 0, 1);
	begin(RIG_PATIENCE_NS);
	struct gpu_space *space = space_new(0);
	uint64_t piece = open_piece(space, 0, &gone[0]);
	open_piece(space, MIB, &gone[1]);
	gpu_space_forget(space, piece);
	wait_for_leave(1);
	cr_assert_eq(times(&gone[0]), 0, "the process has not answered");
	script->go = 1;
	rig_wait(1);
	cr_assert_eq(times(&gone[0]), 1);
	cr_assert_eq(times(&gone[1]), 0, "nobody has forgotten that one");
	gpu_space_release(space);
	rig_wait(1);
	cr_assert_eq(times(&gone[0]), 1, "once");
	cr_assert_eq(times(&gone[1]), 1, "the end of a worker ends all it has");
}

Test(gpus_gone, a_process__that_does_not_let_go__is_dead_when_it_is_told)
{
	int gone = 0;
	script_add(script, GPU_LEAVE, SCRIPT_HANG, 0, 1);
	begin(LEAVE_NS);
	struct gpu_space *space = space_new(0);
	uint64_t piece = open_piece(space, 0, &gone);
	gpu_space_forget(space, piece);
	rig_wait(1);
	cr_assert_eq(times(&gone), 1);
	rig_wait_until(rig_no_process, gpus);
	cr_assert_eq(rig_status(gpus).kills, 1);
	gpu_space_release(space);
}

Test(gpus_gone, a_piece__open_in_two_processes__is_gone_when_both_have_let_go)
{
	int gone[2] = {0, 0};
	script_add(script, GPU_LEAVE, SCRIPT_WAIT, 1, 1);
	begin(RIG_PATIENCE_NS);
	struct gpu_space *spaces[2] = {space_new(0), space_new(1)};
	uint64_t piece = open_piece(spaces[0], 0, &gone[0]);
	open_piece(spaces[1], 8 * MIB, &gone[1]);
	struct gpu_span from = {spaces[0], RIG_BASE, MIB};
	struct gpu_span to = {spaces[1], RIG_BASE + 8 * MIB, MIB};
	struct gpu_request copy = rig_copy(&to, &from);
	cr_assert_eq(rig_carry(&copy), 0, "%s", copy.text);
	gpu_space_forget(spaces[0], piece);
	wait_for_leave(2); /* one of them has answered, or will */
	cr_assert_eq(times(&gone[0]), 0);
	script->go = 1;
	rig_wait(1);
	cr_assert_eq(times(&gone[0]), 1);
	gpu_space_release(spaces[0]);
	gpu_space_release(spaces[1]);
	rig_wait(1);
	cr_assert_eq(times(&gone[1]), 1);
}

/* The other GPU opens as many of its own for one copy before it. */
#define PARTS 60u
#define PART_BYTES UINT64_C(4096)

static void
forget_under_a_copy(void)
{
	int gone[2] = {0, 0};
	begin(RIG_PATIENCE_NS);
	struct gpu_space *space = space_new(0), *other = space_new(1);
	struct gpu_span parts[PARTS], from = {space, RIG_BASE, PARTS * PART_BYTES};
	uint64_t piece = open_piece(space, 0, &gone[0]);
	script->go = 0;
	script_add(script, GPU_START, SCRIPT_WAIT, 0, 1);
	for (unsigned i = 0; i < PARTS; i++) {
		uint64_t at = i * PART_BYTES;
		parts[i] = (struct gpu_span){other, RIG_BASE + at, PART_BYTES};
		cr_assert_eq(add_bytes(other, at, PART_BYTES, -1, &gone[1]), 0);
	}
	struct gpu_request copy = rig_copy(parts, &from);
	copy.num_to = PARTS;
	rig_submit(&copy);
	script->go = 1;
	while (__atomic_load_n(&other->opened_on, __ATOMIC_RELAXED) == 0)
		; /* the first of its own has not been said */
	gpu_space_forget(space, piece);
	rig_wait(2);
	cr_assert_eq(times(&gone[0]), 1, "%s", copy.text);
	gpu_space_release(space);
	gpu_space_release(other);
	gpus_free(gpus);
	gpus = NULL;
	rig_wait(PARTS);
	memset(script->steps, 0, sizeof(script->steps));
}

Test(gpus_gone, a_piece__forgotten_while_another_gpu_opens_it__is_gone)
{
	for (unsigned i = 0; i < 10; i++)
		forget_under_a_copy();
}

Test(gpus_gone, a_descriptor__that_takes_long_to_close__keeps_the_memory)
{
	int gone = 0, pipes[2];
	cr_assert_eq(pipe(pipes), 0);
	begin(RIG_PATIENCE_NS);
	struct gpu_space *space = space_new(0);
	cr_assert_eq(add(space, 0, pipes[0], &gone), 0, "%s", err.text);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	gpu_space_forget(space, RIG_BASE);
	rig_wait(1); /* the close has begun */
	cr_assert_eq(slow.fd, pipes[0]);
	cr_assert_eq(times(&gone), 0);
	close(slow.fd);
	slow.closed(slow.arg);
	rig_wait(1);
	cr_assert_eq(times(&gone), 1);
	gpu_space_release(space);
	close(pipes[1]);
}

Test(gpus_gone, a_piece__that_was_never_opened__is_gone_likewise)
{
	int gone[2] = {0, 0};
	/* However often: who waits for what has failed already has it tried again. */
	struct script_step *step = script_add(script, GPU_OPEN, SCRIPT_REFUSE, 0, 1000);
	step->code = -1;
	step->piece = 1;
	begin(RIG_PATIENCE_NS);
	struct gpu_space *space = space_new(0);
	cr_assert_eq(add(space, 0, -1, &gone[0]), 0, "%s", err.text);
	cr_assert_eq(rig_settle(space, &err), TH_E_MEMORY_KIND);
	gpu_space_forget(space, RIG_BASE);
	rig_wait(1);
	cr_assert_eq(times(&gone[0]), 1, "the process has refused it");
	open_piece(space, 0, &gone[0]);
	cr_assert_eq(add(space, 0, -1, &gone[1]), TH_E_INVALID);
	rig_wait(1);
	cr_assert_eq(times(&gone[1]), 1, "two at the same addresses");
	gpu_space_release(space);
	rig_wait(1);
	cr_assert_eq(times(&gone[0]), 2);
}

/* It is one of many, of which only so many are on their way at a time. */
Test(gpus_gone, a_piece__that_is_not_its_turn__is_gone_at_once_or_opened_later)
{
	int gone = 0, others = 0;
	const unsigned count = GPUS_OPENS_MAX + 20;
	begin(RIG_PATIENCE_NS);
	struct gpu_space *space = space_new(0);
	script_add(script, GPU_OPEN, SCRIPT_WAIT, 0, 1);
	for (unsigned i = 0; i < count; i++) {
		int rc = add_bytes(
			space, i * PART_BYTES, PART_BYTES, -1, i == count - 1 ? &gone : &others);
		cr_assert_eq(rc, 0, "%s", err.text);
	}
	while (script->messages[GPU_OPEN] == 0)
		usleep(500);
	struct gpu_span span = {space, RIG_BASE + (count - 2) * PART_BYTES, PART_BYTES};
	struct gpu_request hash = rig_hash(&span);
	rig_submit(&hash);
	gpu_space_forget(space, RIG_BASE + (count - 1) * PART_BYTES);
	rig_wait(1);
	cr_assert_eq(times(&gone), 1);
	script->go = 1;
	rig_wait(1);
	cr_assert_eq(hash.code, 0, "%s", hash.text);
	gpu_space_release(space);
	rig_wait(count - 1);
	cr_assert_eq(script->messages[GPU_OPEN], count - 1);
}

Test(gpus_gone, host_memory__whose_process_is_dead__is_gone_at_once)
{
	int gone = 0;
	begin(RIG_PATIENCE_NS);
	struct gpu_space *space = space_new(0);
	open_piece(space, 0, &gone);
	struct rig_host host = rig_host_new(gpus, 1);
	struct gpu_span span = {space, RIG_BASE, host.bytes};
	struct gpu_request read = rig_read(&span, host.data), hash = rig_hash(&span);
	read.host = host.host;
	cr_assert_eq(rig_carry(&read), 0, "%s", read.text);
	script_add(script, GPU_RUN, SCRIPT_DIE, 0, 3);
	cr_assert_eq(rig_carry(&hash), TH_E_STALE_MEMORY);
	rig_wait_until(rig_no_process, gpus);
	gpus_host_release(host.host);
	rig_wait(1);
	cr_assert_eq(script->messages[GPU_AREA], 1, "nobody has to be told");
	rig_host_end(&host);
	gpu_space_release(space);
	rig_wait(1);
}

/* ---- host memory that the process does not map ----------------------------------------------- */

#define REQUESTS 400u /* more than are under way at once */
#define ROUNDS 12u    /* more than there are deaths after which nothing is tried any more */

static struct script_step *
refuse_area(uint64_t at, int times)
{
	struct script_step *step = script_add(script, GPU_AREA, SCRIPT_REFUSE, 0, times);
	step->code = -ENOMEM;
	step->piece = at;
	return step;
}

static struct gpu_request
read_page(const struct gpu_span *span, struct rig_host *host, uint64_t at)
{
	struct gpu_request read = rig_read(span, host->data + at);
	read.host = host->host;
	return read;
}

static void
expect_refused(struct gpu_request *read)
{
	cr_assert_eq(read->code, TH_E_MEMORY_KIND, "%d: %s", read->code, read->text);
	cr_assert(read->unmapped);
	cr_assert_str_eq(read->text, "the script says no");
}

static void
expect_one_process(void)
{
	struct gpu_status status = rig_status(gpus);
	cr_assert_eq(status.kills + status.ends, 0, "%s", status.text);
	cr_assert_eq(script->lives, 1);
}

/* Half of them name it. */
static void
carry_many(const struct gpu_span *span, struct rig_host *host)
{
	static struct gpu_request requests[REQUESTS];
	for (unsigned i = 0; i < REQUESTS; i++) {
		requests[i] = i % 2 == 0   ? read_page(span, host, PART_BYTES)
			      : i % 4 == 1 ? read_page(span, host, 0)
					   : rig_hash(span);
		rig_submit(&requests[i]);
	}
	rig_wait(REQUESTS);
	for (unsigned i = 0; i < REQUESTS; i++) {
		if (i % 2 == 0)
			expect_refused(&requests[i]);
		else
			cr_assert_eq(requests[i].code, 0, "%s", requests[i].text);
	}
}

Test(gpus_gone, host_memory__that_is_never_mapped__fails_what_names_it_alone)
{
	int gone = 0;
	struct script_step *step = refuse_area(PART_BYTES, 1 << 20);
	memset(script->memory, 'x', PART_BYTES);
	begin(RIG_PATIENCE_NS);
	struct gpu_space *space = space_new(0);
	open_piece(space, 0, &gone);
	struct rig_host host = rig_host_new(gpus, 2);
	const struct gpu_span span = {space, RIG_BASE, PART_BYTES};
	for (unsigned i = 0; i < ROUNDS; i++)
		carry_many(&span, &host);
	expect_one_process();
	cr_assert_geq(step->met, (int)ROUNDS, "each time it is tried again");
	cr_assert_eq(script->areas, 1, "the other one");
	cr_assert_arr_eq(host.data, script->memory, PART_BYTES);
	step->times = 0;
	struct gpu_request read = read_page(&span, &host, PART_BYTES);
	cr_assert_eq(rig_carry(&read), 0, "%s", read.text);
	cr_assert_arr_eq(read.data, script->memory, PART_BYTES);
	gpus_host_release(host.host);
	rig_wait(1);
	cr_assert_eq(script->areas, 0);
	expect_one_process();
	rig_host_end(&host);
	gpu_space_release(space);
	rig_wait(1);
}

/* The request has failed for another reason before. */
Test(gpus_gone, host_memory__released_before_it_is_refused__is_gone_behind_that)
{
	int gone[2] = {0, 0};
	script_add(script, GPU_OPEN, SCRIPT_DIE, 0, 3); /* it is not opened again */
	refuse_area(PART_BYTES, 1);
	begin(RIG_PATIENCE_NS);
	struct gpu_space *space = space_new(0), *other = space_new(0);
	struct rig_host host = rig_host_new(gpus, 2);
	cr_assert_eq(add(space, 0, -1, &gone[0]), 0, "%s", err.text);
	cr_assert_eq(rig_settle(space, &err), TH_E_MEMORY_KIND);
	struct script_step *step = script_add(script, GPU_OPEN, SCRIPT_WAIT, 0, 1);
	cr_assert_eq(add(other, MIB, -1, &gone[1]), 0, "%s", err.text);
	const struct gpu_span span = {space, RIG_BASE, PART_BYTES};
	struct gpu_request read = read_page(&span, &host, PART_BYTES);
	cr_assert_eq(rig_carry(&read), TH_E_STALE_MEMORY);
	gpus_host_release(host.host);
	cr_assert_eq(rig_settle(space, &err), TH_E_MEMORY_KIND, "the thread has seen the release");
	while (step->met == 0)
		usleep(500);
	script->go = 1;
	rig_wait(1);
	cr_assert_eq(script->areas, 0);
	cr_assert_eq(script->lives, 4);
	rig_host_end(&host);
	gpu_space_release(space);
	gpu_space_release(other);
	rig_wait(2);
}

/* Of the agent's blocks: who comes next has it tried again. */
Test(gpus_gone, staging__that_is_refused_once__is_used_then)
{
	int gone = 0;
	refuse_area(0, 1);
	begin(RIG_PATIENCE_NS);
	struct gpu_space *space = space_new(0);
	open_piece(space, 0, &gone);
	uint8_t *data = gpus_block_take(gpus, NULL);
	const struct gpu_span span = {space, RIG_BASE, PART_BYTES};
	struct gpu_request read = rig_read(&span, data);
	(void)rig_carry(&read);
	expect_refused(&read);
	read = rig_read(&span, data);
	cr_assert_eq(rig_carry(&read), 0, "%s", read.text);
	expect_one_process();
	gpus_block_give(gpus, data);
	gpu_space_release(space);
	rig_wait(1);
}

Test(gpus_gone, the_end_of_all__ends_what_is_open)
{
	int gone = 0;
	begin(RIG_PATIENCE_NS);
	struct gpu_space *space = space_new(0);
	open_piece(space, 0, &gone);
	gpu_space_release(space);
	gpus_free(gpus);
	gpus = NULL;
	cr_assert_eq(times(&gone), 1);
}
