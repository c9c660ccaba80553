/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpus_kill_test - a GPU's process dies, hangs, refuses or lies at each step: what the agent asked
 * for is done all the same, or fails with its reason, and nothing else does.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "tests/support/cuda/gpus_rig.h"
#include "tests/support/cuda/scripted_gpu.h"
#include "transport/hash/digest.h"
#include "transport/loop/crew.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define MS INT64_C(1000000)

static struct script *script;
static struct gpus *gpus;
static struct th_err err;
static const uint8_t uuid[16] = "the first GPU";
#define UUID_TEXT "GPU-74686520-6669-7273-7420-475055000000"

static void
begin(int64_t hang_ns, int64_t leave_ns, int64_t idle_ns)
{
	const struct gpus_config config = {.launch = script_launch,
		.arg = script,
		.staging_bytes = 8 * MIB,
		.hang_ns = hang_ns,
		.leave_ns = leave_ns,
		.idle_ns = idle_ns};
	TH_ASSERT(gpus_new(&config, &err, &gpus) == 0);
}

static void
set_up(void)
{
	log_set_level(LOG_LEVEL_ERROR);
	script = script_new();
	for (size_t i = 0; i < SCRIPT_MEMORY_BYTES; i += 8)
		memcpy(script->memory + i, &i, 8);
}

static void
tear_down(void)
{
	script_free(script);
}

TestSuite(gpus_kill, .init = set_up, .fini = tear_down, .timeout = 120);

static struct gpu_space *
space_new(void)
{
	struct gpu_space *space = gpu_space_new(gpus, uuid, "m/r/0", &err);
	cr_assert(space, "%s", err.text);
	return space;
}

/* Everything that there is, once: all of it must be well at the end. */
static void
live(const char *what)
{
	struct gpu_space *space = space_new();
	uint8_t *data = gpus_block_take(gpus, NULL);
	const size_t bytes = 300 * KIB;
	struct gpu_span a = {space, RIG_BASE + 5, bytes}, b = {space, RIG_BASE + MIB + 9, bytes};
	rig_add(space, 0, MIB);
	uint64_t piece = rig_add(space, MIB, MIB);
	cr_assert_eq(rig_settle(space, &err), 0, "%s: %s", what, err.text);
	struct gpu_request read = rig_read(&a, data);
	cr_assert_eq(rig_carry(&read), 0, "%s: %s", what, read.text);
	cr_assert_arr_eq(data, script->memory + 5, bytes, "%s", what);
	memset(data, 0x5a, bytes);
	struct gpu_request write = rig_write(&b, data);
	cr_assert_eq(rig_carry(&write), 0, "%s: %s", what, write.text);
	cr_assert_arr_eq(data, script->memory + MIB + 9, bytes, "%s", what);
	struct gpu_request copy = rig_copy(&b, &a);
	cr_assert_eq(rig_carry(&copy), 0, "%s: %s", what, copy.text);
	cr_assert_arr_eq(script->memory + 5, script->memory + MIB + 9, bytes, "%s", what);
	/* In two chunks, and in one. */
	struct gpu_chunk chunks[2] = {{.bytes = 1000}, {.bytes = (uint32_t)bytes - 1000}};
	struct gpu_request group = rig_copy(&b, &a);
	group.chunks = chunks;
	group.num_chunks = 2;
	cr_assert_eq(rig_carry(&group), 0, "%s: %s", what, group.text);
	cr_assert(rig_same(chunks[0].digest, digest_of(script->memory + 5, 1000)), "%s", what);
	cr_assert(rig_same(chunks[1].digest, digest_of(script->memory + 1005, bytes - 1000)), "%s",
		what);
	struct gpu_request hash = rig_hash(&b);
	cr_assert_eq(rig_carry(&hash), 0, "%s: %s", what, hash.text);
	cr_assert(rig_same(hash.digest, digest_of(script->memory + 5, bytes)), "%s", what);
	cr_assert(rig_same(copy.digest, hash.digest), "%s", what);
	gpus_block_give(gpus, data);
	struct rig_host host = rig_host_new(gpus, 1);
	a.bytes = host.bytes;
	read = rig_read(&a, host.data);
	read.host = host.host;
	cr_assert_eq(rig_carry(&read), 0, "%s: %s", what, read.text);
	cr_assert_arr_eq(host.data, script->memory + 5, host.bytes, "%s", what);
	gpus_host_release(host.host);
	rig_wait(1);
	rig_host_end(&host);
	gpu_space_forget(space, piece);
	gpu_space_release(space);
	rig_wait_until(rig_no_imports, gpus);
}

static const char *const names[] = {[GPU_START] = "START",
	[GPU_AREA] = "AREA",
	[GPU_OPEN] = "OPEN",
	[GPU_LEAVE] = "LEAVE",
	[GPU_RUN] = "RUN"};
static const enum gpu_message_kind kinds[] = {GPU_START, GPU_AREA, GPU_OPEN, GPU_LEAVE, GPU_RUN};

/* How often each of them comes in a life that goes well. */
static int
count_of(enum gpu_message_kind kind)
{
	static const int counts[] = {
		[GPU_START] = 1, [GPU_AREA] = 3, [GPU_OPEN] = 2, [GPU_LEAVE] = 2, [GPU_RUN] = 6};
	return counts[kind];
}

static void
live_through_step(enum gpu_message_kind kind, int after, enum script_act act, int64_t hang_ns)
{
	char what[64];
	bool is_end = act == SCRIPT_DIE || act == SCRIPT_CLOSE;
	snprintf(what, sizeof(what), "act %d at %s %d", (int)act, names[kind], after);
	memset(script->steps, 0, sizeof(script->steps));
	struct script_step *step = script_add(script, kind, act, after, 1);
	begin(hang_ns, hang_ns, RIG_PATIENCE_NS);
	live(what);
	struct gpu_status status = rig_status(gpus);
	cr_assert_eq(step->met, 1, "%s", what);
	cr_assert(is_end ? status.ends > 0 : status.kills > 0, "%s", what);
	cr_assert(status.text[0], "%s", what);
	gpus_free(gpus);
}

static void
live_through(enum script_act act)
{
	for (size_t i = 0; i < TH_ARRAY_LEN(kinds); i++) {
		for (int after = 0; after < count_of(kinds[i]); after++)
			live_through_step(kinds[i], after, act, RIG_PATIENCE_NS);
	}
}

Test(gpus_kill, a_process__that_dies_at_any_step__is_not_noticed)
{
	live_through(SCRIPT_DIE);
}

Test(gpus_kill, a_process__that_hangs_up_at_any_step__is_not_noticed)
{
	live_through(SCRIPT_CLOSE);
}

/* One that is only slow, on a busy machine, may be killed, too: that is not noticed either. */
#define HANG_NS (300 * MS)

Test(gpus_kill, a_process__that_hangs_while_it_opens__is_killed)
{
	for (int after = 0; after < count_of(GPU_AREA); after++)
		live_through_step(GPU_AREA, after, SCRIPT_HANG, HANG_NS);
	live_through_step(GPU_OPEN, 0, SCRIPT_HANG, HANG_NS);
	live_through_step(GPU_OPEN, 1, SCRIPT_HANG, HANG_NS);
}

Test(gpus_kill, a_process__that_hangs_while_it_moves_bytes__is_killed)
{
	for (int after = 0; after < count_of(GPU_RUN); after++)
		live_through_step(GPU_RUN, after, SCRIPT_HANG, HANG_NS);
}

Test(gpus_kill, a_process__that_hangs_while_it_closes__is_killed)
{
	live_through_step(GPU_LEAVE, 0, SCRIPT_HANG, HANG_NS);
	live_through_step(GPU_LEAVE, 1, SCRIPT_HANG, HANG_NS);
}

Test(gpus_kill, a_process__that_answers_for_something_else__is_killed)
{
	live_through(SCRIPT_LIE);
}

Test(gpus_kill, a_process__that_says_too_little__is_killed)
{
	live_through(SCRIPT_SHORT);
}

Test(gpus_kill, a_process__that_says_too_much__is_killed)
{
	live_through(SCRIPT_LONG);
}

Test(gpus_kill, a_process__whose_text_does_not_end__is_killed)
{
	live_through(SCRIPT_ENDLESS);
}

static void
live_through_code(enum gpu_message_kind kind, int after, int code)
{
	char what[64];
	snprintf(what, sizeof(what), "code %d at %s %d", code, names[kind], after);
	memset(script->steps, 0, sizeof(script->steps));
	script_add(script, kind, SCRIPT_REFUSE, after, 1)->code = code;
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	live(what);
	cr_assert_eq(rig_status(gpus).kills, 1, "%s", what);
	gpus_free(gpus);
}

Test(gpus_kill, a_process__with_a_code_that_there_is_not__is_killed)
{
	for (size_t i = 0; i < TH_ARRAY_LEN(kinds); i++) {
		for (int after = 0; after < count_of(kinds[i]); after++)
			live_through_code(kinds[i], after, 1);
	}
	live_through_code(GPU_OPEN, 0, -EIO);
	live_through_code(GPU_AREA, count_of(GPU_AREA) - 1, -ENOMEM); /* it keeps it */
}

/* ---- what cannot be done ------------------------------------------------------------------- */

Test(gpus_kill, a_gpu__that_cannot_be_had__is_told_with_its_reason)
{
	struct script_step *step = script_add(script, GPU_START, SCRIPT_REFUSE, 0, 1000);
	step->code = -ENOMEM;
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	struct gpu_span span = {space, RIG_BASE, 4096};
	struct gpu_request hash = rig_hash(&span);
	rig_add(space, 0, MIB);
	cr_assert_eq(rig_settle(space, &err), TH_E_MEMORY_KIND);
	cr_assert_str_eq(err.text, "the script says no");
	cr_assert_eq(rig_carry(&hash), TH_E_MEMORY_KIND);
	cr_assert_str_eq(hash.text, "the script says no");
	cr_assert_eq(step->met, 3);
	struct gpu_status status = rig_status(gpus);
	cr_assert_eq(status.kills + status.ends, 0);
	/* When it can be had again, it is. */
	step->times = 0;
	do {
		hash = rig_hash(&span);
	} while (rig_carry(&hash) < 0);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	gpu_space_release(space);
	gpus_free(gpus);
}

/* The other end of the pair. */
static int
agents_end(int sock)
{
	const char byte = 0;
	char seen;
	for (int fd = 3; fd < 256; fd++) {
		int type = 0;
		socklen_t bytes = sizeof(type);
		if (fd != sock && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 &&
			type == SOCK_SEQPACKET && send(fd, &byte, 1, MSG_DONTWAIT) == 1 &&
			recv(sock, &seen, 1, MSG_PEEK | MSG_DONTWAIT) == 1)
			return fd;
	}
	TH_ASSERT(!"it is nowhere");
	return -1;
}

static _Atomic int deaf_starts;

/* Whose socket is full before it is told anything. */
static int
launch_deaf(void *arg, int sock, pid_t *ret_pid, struct th_err *ret_err)
{
	const char byte = 0;
	if (deaf_starts-- <= 0)
		return script_launch(arg, sock, ret_pid, ret_err);
	int agents = agents_end(sock);
	while (send(agents, &byte, 1, MSG_DONTWAIT) == 1)
		continue;
	*ret_pid = fork();
	while (*ret_pid == 0)
		pause();
	return 0;
}

Test(gpus_kill, a_process__that_cannot_be_told_its_gpu__is_a_start_that_failed)
{
	const struct gpus_config config = {.launch = launch_deaf,
		.arg = script,
		.staging_bytes = 8 * MIB,
		.hang_ns = 5000 * MS,
		.leave_ns = RIG_PATIENCE_NS,
		.idle_ns = RIG_PATIENCE_NS};
	deaf_starts = 2;
	TH_ASSERT(gpus_new(&config, &err, &gpus) == 0);
	live("deaf");
	cr_assert_eq(script->lives, 1);
	cr_assert_eq(rig_status(gpus).starts, 3);
	cr_assert(strstr(rig_status(gpus).text, "could not be told"), "%s", rig_status(gpus).text);
	gpus_free(gpus);
}

Test(gpus_kill, a_gpu__that_does_not_exist__is_asked_for_once)
{
	struct script_step *step = script_add(script, GPU_START, SCRIPT_REFUSE, 0, 1000);
	step->code = TH_E_NOT_AVAILABLE;
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	rig_add(space, 0, MIB);
	cr_assert_eq(rig_settle(space, &err), TH_E_MEMORY_KIND);
	cr_assert_str_eq(err.text, UUID_TEXT ": the script says no");
	cr_assert_eq(step->met, 1);
	gpu_space_release(space);
	gpus_free(gpus);
}

Test(gpus_kill, a_gpu__whose_process_is_never_ready__is_told_with_its_reason)
{
	script_add(script, GPU_START, SCRIPT_HANG, 0, 1);
	begin(50 * MS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	rig_add(space, 0, MIB);
	cr_assert_eq(rig_settle(space, &err), TH_E_MEMORY_KIND);
	cr_assert(strstr(err.text, "not ready"), "%s", err.text);
	cr_assert_eq(rig_status(gpus).kills, 1);
	gpu_space_release(space);
	gpus_free(gpus);
}

Test(gpus_kill, a_piece__that_does_not_open__is_told_and_tried_again)
{
	script_add(script, GPU_OPEN, SCRIPT_REFUSE, 0, 3)->piece = 2;
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	struct gpu_span span = {space, RIG_BASE, 2 * MIB};
	rig_add(space, 0, MIB);
	rig_add(space, MIB, MIB);
	cr_assert_eq(rig_settle(space, &err), TH_E_MEMORY_KIND);
	cr_assert_str_eq(err.text, "the script says no");
	struct gpu_request hash = rig_hash(&span);
	cr_assert_eq(rig_carry(&hash), TH_E_STALE_MEMORY);
	cr_assert_str_eq(hash.text, "the script says no");
	while (rig_settle(space, &err) < 0)
		;
	hash = rig_hash(&span);
	cr_assert_eq(rig_carry(&hash), 0, "%s", hash.text);
	cr_assert_eq(rig_status(gpus).starts, 1);
	gpu_space_release(space);
	gpus_free(gpus);
}

static int
code_of_run(int code, int times)
{
	memset(script->steps, 0, sizeof(script->steps));
	script_add(script, GPU_RUN, SCRIPT_REFUSE, 0, times)->code = code;
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	struct gpu_span span = {space, RIG_BASE, 4096};
	rig_add(space, 0, MIB);
	struct gpu_request hash = rig_hash(&span);
	int rc = rig_carry(&hash);
	if (rc < 0)
		cr_assert(strstr(hash.text, "the script says no"), "%s", hash.text);
	gpu_space_release(space);
	return rc;
}

Test(gpus_kill, a_run__that_fails__is_told_or_done_again)
{
	cr_assert_eq(code_of_run(TH_E_STALE_MEMORY, 1), TH_E_STALE_MEMORY);
	cr_assert_eq(rig_status(gpus).kills, 0);
	gpus_free(gpus);
	cr_assert_eq(code_of_run(TH_E_PROTOCOL, 1), TH_E_STALE_MEMORY);
	gpus_free(gpus);
	cr_assert_eq(code_of_run(-EIO, 2), 0);
	cr_assert_eq(rig_status(gpus).kills, 2);
	gpus_free(gpus);
	cr_assert_eq(code_of_run(-EIO, 3), TH_E_STALE_MEMORY);
	gpus_free(gpus);
	static const int none[] = {-EPERM, TH_E_MEMORY_KIND, 1}; /* it has no such code */
	for (size_t i = 0; i < TH_ARRAY_LEN(none); i++) {
		cr_assert_eq(code_of_run(none[i], 1), 0);
		cr_assert_eq(rig_status(gpus).kills, 1);
		gpus_free(gpus);
	}
}

/* ---- what ends it each time ---------------------------------------------------------------- */

Test(gpus_kill, a_request__that_ends_the_process_each_time__fails_alone)
{
	static struct gpu_request requests[300];
	script_add(script, GPU_RUN, SCRIPT_DIE, 0, 1000)->piece = 2;
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	struct gpu_span good = {space, RIG_BASE, 4096}, bad = {space, RIG_BASE + MIB, 4096};
	rig_add(space, 0, MIB);
	rig_add(space, MIB, MIB);
	for (unsigned i = 0; i < 300; i++) {
		requests[i] = rig_hash(i == 100 ? &bad : &good);
		rig_submit(&requests[i]);
	}
	rig_wait(300);
	for (unsigned i = 0; i < 300; i++)
		cr_assert_eq(requests[i].code, i == 100 ? TH_E_STALE_MEMORY : 0, "%u: %s", i,
			requests[i].text);
	cr_assert(strstr(requests[100].text, "3 times"), "%s", requests[100].text);
	cr_assert_eq(rig_status(gpus).ends, 3);
	gpu_space_release(space);
	gpus_free(gpus);
}

Test(gpus_kill, a_worker__whose_memory_ends_the_process__does_so_three_times)
{
	script_add(script, GPU_OPEN, SCRIPT_DIE, 0, 1000)->piece = 3;
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct gpu_space *good = space_new(), *bad = space_new();
	for (unsigned i = 0; i < 2; i++)
		rig_add(good, i * MIB, MIB);
	for (unsigned i = 0; i < 20; i++)
		rig_add(bad, i * MIB, MIB);
	cr_assert_eq(rig_settle(bad, &err), TH_E_MEMORY_KIND);
	cr_assert(strstr(err.text, "3 times"), "%s", err.text);
	cr_assert_eq(rig_settle(bad, &err), TH_E_MEMORY_KIND);
	cr_assert_eq(rig_settle(good, &err), 0, "%s", err.text);
	struct gpu_span span = {bad, RIG_BASE + 2 * MIB, 4096};
	struct gpu_request hash = rig_hash(&span);
	cr_assert_eq(rig_carry(&hash), TH_E_STALE_MEMORY);
	span.space = good;
	span.address = RIG_BASE;
	hash = rig_hash(&span);
	cr_assert_eq(rig_carry(&hash), 0, "%s", hash.text);
	cr_assert_eq(rig_status(gpus).ends, 3);
	gpu_space_release(good);
	gpu_space_release(bad);
	gpus_free(gpus);
}

Test(gpus_kill, a_gpu__whose_process_dies_at_all_runs__fails_them_all_in_the_end)
{
	static struct gpu_request requests[50];
	script_add(script, GPU_RUN, SCRIPT_DIE, 0, 1000);
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	struct gpu_span span = {space, RIG_BASE, 4096};
	rig_add(space, 0, MIB);
	for (unsigned i = 0; i < 50; i++) {
		requests[i] = rig_hash(&span);
		rig_submit(&requests[i]);
	}
	rig_wait(50);
	for (unsigned i = 0; i < 50; i++)
		/* By itself, three times, or with all when it is given up. */
		cr_assert(requests[i].code == TH_E_STALE_MEMORY ||
			  requests[i].code == TH_E_MEMORY_KIND);
	cr_assert_leq(rig_status(gpus).ends, 20);
	gpu_space_release(space);
	gpus_free(gpus);
}

/* ---- leaving ------------------------------------------------------------------------------- */

Test(gpus_kill, memory__that_a_process_does_not_let_go__is_free_with_its_end)
{
	script_add(script, GPU_LEAVE, SCRIPT_HANG, 0, 1);
	begin(RIG_PATIENCE_NS, 200 * MS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	rig_add(space, 0, MIB);
	cr_assert_eq(rig_settle(space, &err), 0);
	gpu_space_release(space);
	rig_wait_until(rig_no_process, gpus);
	struct gpu_status status = rig_status(gpus);
	cr_assert_eq(status.kills, 1);
	cr_assert(strstr(status.text, "let go"), "%s", status.text);
	gpus_free(gpus);
}

Test(gpus_kill, memory__that_the_driver_does_not_close__is_free_with_its_end)
{
	script_add(script, GPU_LEAVE, SCRIPT_REFUSE, 0, 1);
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	rig_add(space, 0, MIB);
	cr_assert_eq(rig_settle(space, &err), 0);
	gpu_space_release(space);
	rig_wait_until(rig_no_process, gpus);
	cr_assert_eq(rig_status(gpus).kills, 1);
	gpus_free(gpus);
}

Test(gpus_kill, a_worker__that_leaves_while_its_memory_is_opened__frees_it_soon)
{
	script_add(script, GPU_OPEN, SCRIPT_HANG, 0, 1);
	begin(RIG_PATIENCE_NS, 200 * MS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	rig_add(space, 0, MIB);
	while (script->messages[GPU_OPEN] == 0)
		usleep(500);
	gpu_space_release(space);
	rig_wait_until(rig_no_process, gpus);
	cr_assert_eq(rig_status(gpus).kills, 1);
	gpus_free(gpus);
}

static struct th_err left_err;

static void
left(void *arg, const struct th_err *result)
{
	(void)arg;
	left_err = *result;
	rig_happens();
}

Test(gpus_kill, who_waits_for_a_worker__that_leaves__is_told)
{
	script_add(script, GPU_OPEN, SCRIPT_WAIT, 0, 1);
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	rig_add(space, 0, MIB);
	gpu_space_settle(space, left, NULL);
	gpu_space_release(space);
	rig_wait(1);
	cr_assert_eq(left_err.code, TH_E_STALE_MEMORY);
	script->go = 1;
	rig_wait_until(rig_no_imports, gpus);
	cr_assert_eq(rig_status(gpus).kills, 0);
	gpus_free(gpus);
}

Test(gpus_kill, a_piece__forgotten_while_it_is_read__is_read_to_the_end)
{
	script_add(script, GPU_RUN, SCRIPT_WAIT, 0, 1);
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	struct gpu_span span = {space, RIG_BASE, 4096};
	uint64_t piece = rig_add(space, 0, MIB);
	struct gpu_request hash = rig_hash(&span), late = rig_hash(&span);
	rig_submit(&hash);
	while (script->messages[GPU_RUN] == 0)
		usleep(500);
	gpu_space_forget(space, piece);
	rig_submit(&late);
	rig_wait(1);
	cr_assert_eq(late.code, TH_E_STALE_MEMORY);
	script->go = 1;
	rig_wait(1);
	cr_assert_eq(hash.code, 0, "%s", hash.text);
	gpu_space_release(space);
	rig_wait_until(rig_no_imports, gpus);
	gpus_free(gpus);
}

/* Its many ranges are hashed where the agent sees them. */
Test(gpus_kill, a_digest__without_memory_to_make_it_in__fails_and_the_next_does_not)
{
	static struct gpu_span spans[GPU_RANGES_MAX + 1];
	static uint8_t data[sizeof(spans) / sizeof(spans[0]) * 8];
	struct rlimit limit, none;
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	rig_add(space, 0, MIB);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	for (uint32_t i = 0; i <= GPU_RANGES_MAX; i++) {
		spans[i] = (struct gpu_span){space, RIG_BASE + i * 16, 8};
		memcpy(data + i * 8, script->memory + i * 16, 8);
	}
	struct gpu_request hash = rig_hash(spans);
	hash.num_from = GPU_RANGES_MAX + 1;
	hash.bytes = sizeof(data);
	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none = (struct rlimit){0, limit.rlim_max};
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
	cr_assert_eq(rig_carry(&hash), TH_E_MEMORY_KIND);
	cr_assert(strstr(hash.text, "no memory to hash GPU memory in"), "%s", hash.text);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	cr_assert_eq(rig_carry(&hash), 0, "%s", hash.text);
	cr_assert(rig_same(hash.digest, digest_of(data, sizeof(data))));
	cr_assert_eq(rig_status(gpus).kills + rig_status(gpus).ends, 0);
	gpu_space_release(space);
	rig_wait_until(rig_no_imports, gpus);
	gpus_free(gpus);
}

/* ---- the end ------------------------------------------------------------------------------- */

/* Whoever wants the next one does not wait for long, and no hang is counted. */
Test(gpus_kill, a_process__that_ends_slowly__has_done_nothing_wrong)
{
	script->lingers = 1;
	begin(RIG_PATIENCE_NS, MS, 1);
	for (uint32_t life = 1; life <= 2; life++) {
		struct gpu_space *space = space_new();
		rig_add(space, 0, MIB);
		cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
		gpu_space_release(space);
		while (script->ending < life)
			usleep(500);
		cr_assert_neq(rig_status(gpus).pid, 0);
		cr_assert_eq(script->lives, life);
	}
	script->lingers = 0;
	rig_wait_until(rig_no_process, gpus);
	cr_assert_eq(rig_status(gpus).kills + rig_status(gpus).ends, 0);
	gpus_free(gpus);
}

Test(gpus_kill, a_process__that_nobody_needs__ends_and_gives_all_back)
{
	struct gpus_stage_status stage;
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, 1);
	live("idle");
	rig_wait_until(rig_no_process, gpus);
	struct gpu_status status = rig_status(gpus);
	cr_assert_eq(status.kills + status.ends, 0);
	cr_assert_eq(status.context_bytes, 0);
	do {
		gpus_stage_status(gpus, &stage);
	} while (stage.bytes > 0);
	uint8_t *data = gpus_block_take(gpus, NULL);
	cr_assert_eq(data[0], 0); /* another page: the first one is gone */
	gpus_block_give(gpus, data);
	live("again");
	gpus_free(gpus);
}

static void
give_up(struct gpu_request *request)
{
	gpus_block_give(gpus, request->data);
	gpu_space_release(request->from->space);
	rig_happens();
}

Test(gpus_kill, requests__under_way_at_the_end__fail)
{
	struct gpu_request requests[4];
	script_add(script, GPU_RUN, SCRIPT_HANG, 1, 1);
	begin(RIG_PATIENCE_NS, 100 * MS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	struct gpu_span span = {space, RIG_BASE, 4096};
	rig_add(space, 0, MIB);
	struct gpu_request first = rig_hash(&span);
	cr_assert_eq(rig_carry(&first), 0);
	for (unsigned i = 0; i < 4; i++) {
		requests[i] = rig_read(&span, gpus_block_take(gpus, NULL));
		requests[i].done = give_up;
		gpu_space_retain(space);
		gpu_submit(&requests[i]);
	}
	gpu_space_release(space);
	gpus_free(gpus);
	rig_wait(4);
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(requests[i].code, TH_E_MEMORY_KIND);
}

/* ---- strangers ----------------------------------------------------------------------------- */

Test(gpus_kill, gpus__that_do_not_exist__take_no_place_for_ever)
{
	script_add(script, GPU_START, SCRIPT_REFUSE, 0, 1000000)->code = TH_E_NOT_AVAILABLE;
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	for (unsigned i = 0; i < 2 * GPUS_MAX; i++) {
		uint8_t other[16] = {(uint8_t)i, 1};
		struct gpu_space *space;
		while (!(space = gpu_space_new(gpus, other, "m/r/0", &err))) {
			cr_assert_eq(err.code, TH_E_LIMIT);
			usleep(500);
		}
		cr_assert_eq(memcmp(gpu_space_uuid(space), other, 16), 0);
		if (i % 16 == 3) {
			rig_add(space, 0, MIB);
			cr_assert_eq(rig_settle(space, &err), TH_E_MEMORY_KIND);
		}
		gpu_space_release(space);
	}
	struct gpu_status status[GPUS_MAX];
	while (gpus_status(gpus, status, GPUS_MAX) > 0)
		usleep(500);
	gpus_free(gpus);
}

/* A worker that names as many as there are places, and stays. */
Test(gpus_kill, gpus__that_do_not_exist__keep_no_place_from_one_that_does)
{
	struct gpu_space *none[GPUS_MAX];
	struct script_step *step = script_add(script, GPU_START, SCRIPT_REFUSE, 0, GPUS_MAX);
	step->code = TH_E_NOT_AVAILABLE;
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	for (unsigned i = 0; i < GPUS_MAX; i++) {
		uint8_t other[16] = {[0] = 0xee, [15] = (uint8_t)i};
		none[i] = gpu_space_new(gpus, other, "m/r/0", &err);
		cr_assert(none[i], "%s", err.text);
		rig_add(none[i], 0, MIB);
		cr_assert_eq(rig_settle(none[i], &err), TH_E_MEMORY_KIND);
	}
	struct gpu_space *space;
	while (!(space = gpu_space_new(gpus, uuid, "m/r/1", &err))) /* the last one is dying */
		usleep(500);
	/* Nor does another one take the place again. */
	const uint8_t third_uuid[16] = {0x33};
	struct gpu_space *third = gpu_space_new(gpus, third_uuid, "m/r/2", &err);
	cr_assert(third, "%s", err.text);
	struct gpu_span bad = {none[0], RIG_BASE, 4096};
	struct gpu_span good = {space, RIG_BASE, 4096};
	struct gpu_request hash = rig_hash(&bad);
	struct gpu_request from = rig_copy(&good, &bad), to = rig_copy(&bad, &good);
	cr_assert_eq(rig_carry(&hash), TH_E_MEMORY_KIND);
	cr_assert_eq(rig_carry(&from), TH_E_MEMORY_KIND);
	cr_assert_eq(rig_carry(&to), TH_E_MEMORY_KIND);
	cr_assert_eq(script->lives, GPUS_MAX);
	rig_add(space, 0, MIB);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	struct gpu_status status[GPUS_MAX];
	cr_assert_eq(gpus_status(gpus, status, GPUS_MAX), GPUS_MAX);
	cr_assert_eq(memcmp(status[0].uuid, uuid, 16), 0);
	cr_assert(status[0].spaces == 1 && status[0].pieces == 1);
	/* The one that gave its place up: it has its name still, and starts no process any more. */
	const char *text = "GPU-ee000000-0000-0000-0000-000000000000: the script says no";
	cr_assert_eq(gpu_space_uuid(none[0])[0], 0xee);
	cr_assert_eq(rig_settle(none[0], &err), TH_E_MEMORY_KIND);
	cr_assert_str_eq(err.text, text);
	rig_add(none[0], MIB, MIB);
	cr_assert_eq(rig_settle(none[0], &err), TH_E_MEMORY_KIND);
	cr_assert_str_eq(err.text, text);
	cr_assert_str_eq(hash.text, text);
	cr_assert_str_eq(from.text, text);
	hash = rig_hash(&good);
	cr_assert_eq(rig_carry(&hash), 0, "%s", hash.text);
	cr_assert_eq(script->lives, GPUS_MAX + 1);
	gpu_space_forget(none[0], RIG_BASE);
	for (unsigned i = 0; i < GPUS_MAX; i++)
		gpu_space_release(none[i]);
	gpu_space_release(third);
	gpu_space_release(space);
	gpus_free(gpus);
}

/* A thread that has no descriptor but the GPU's. */
static struct gpu_request crew_request;
static struct gpu_space *crew_space;

static void
on_crew(void *arg)
{
	uint8_t *data = gpus_block_take(arg, NULL);
	struct gpu_span span = {crew_space, RIG_BASE, 4096};
	crew_request = rig_read(&span, data);
	cr_assert_eq(rig_carry(&crew_request), 0, "%s", crew_request.text);
	gpus_block_give(arg, data);
	gpu_space_release(crew_space);
}

Test(gpus_kill, a_thread__with_descriptors_of_its_own__reads_and_releases)
{
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	crew_space = space_new();
	rig_add(crew_space, 0, MIB);
	int *fds = malloc(sizeof(int));
	fds[0] = gpu_space_wake_fd(crew_space);
	cr_assert_eq(crew_start(on_crew, gpus, fds, 1), 0);
	cr_assert(crew_wait(th_now_ns() + RIG_PATIENCE_NS));
	rig_wait_until(rig_no_imports, gpus);
	cr_assert_eq(crew_request.code, 0);
	gpus_free(gpus);
}
