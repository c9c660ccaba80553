/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpus_test - requests, spaces and blocks over a scripted process, one that does what it should.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "tests/support/cuda/gpus_rig.h"
#include "tests/support/cuda/scripted_gpu.h"
#include "transport/hash/digest.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define PAGE UINT64_C(4096)
#define BASE UINT64_C(0x7f0000000000)
#define PATIENCE_NS INT64_C(60000000000)

static struct script *script;
static struct gpus *gpus;
static struct th_err err;
static const uint8_t uuids[2][16] = {"the first GPU", "the second GPU"};

static struct gpus_config
config(void)
{
	return (struct gpus_config){.launch = script_launch,
		.arg = script,
		.staging_bytes = 8 * MIB,
		.hang_ns = PATIENCE_NS,
		.leave_ns = PATIENCE_NS,
		.idle_ns = PATIENCE_NS};
}

static void
begin(const struct gpus_config *as)
{
	TH_ASSERT(gpus_new(as, &err, &gpus) == 0);
}

static void
set_up(void)
{
	script = script_new();
	struct gpus_config as = config();
	begin(&as);
	for (size_t i = 0; i < SCRIPT_MEMORY_BYTES; i += 8)
		memcpy(script->memory + i, &i, 8);
}

static void
tear_down(void)
{
	gpus_free(gpus);
	script_free(script);
}

TestSuite(gpus, .init = set_up, .fini = tear_down);

/* A piece of which the worker's address is BASE and its place in the GPU's memory. */
static uint64_t
add(struct gpu_space *space, uint64_t at, uint64_t bytes)
{
	struct cuda_handle handle = {.kind = CUDA_KIND_LEGACY, .bytes = bytes, .id = at};
	memcpy(handle.uuid, gpu_space_uuid(space), 16);
	int rc = gpu_space_add(space, &handle, BASE + at, -1, NULL, &err);
	cr_assert_eq(rc, 0, "%s", err.text);
	return BASE + at;
}

struct waits {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned count;
	struct th_err result;
};

static struct waits waits = {
	.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void
happens(void)
{
	pthread_mutex_lock(&waits.lock);
	waits.count++;
	pthread_cond_broadcast(&waits.changed);
	pthread_mutex_unlock(&waits.lock);
}

static void
wait_for(unsigned count)
{
	pthread_mutex_lock(&waits.lock);
	while (waits.count < count)
		pthread_cond_wait(&waits.changed, &waits.lock);
	waits.count -= count;
	pthread_mutex_unlock(&waits.lock);
}

static void
settled(void *arg, const struct th_err *result)
{
	*(struct th_err *)arg = *result;
	happens();
}

static int
settle(struct gpu_space *space)
{
	gpu_space_settle(space, settled, &waits.result);
	wait_for(1);
	return waits.result.code;
}

static void
done(struct gpu_request *request)
{
	(void)request;
	happens();
}

static int
carry(struct gpu_request *request)
{
	request->done = done;
	gpu_submit(request);
	wait_for(1);
	return request->code;
}

static struct gpu_space *
space_new(unsigned gpu)
{
	struct gpu_space *space = gpu_space_new(gpus, uuids[gpu], "m/r/0", &err);
	cr_assert(space, "%s", err.text);
	return space;
}

static bool
same(struct th_hash a, struct th_hash b)
{
	return a.lo == b.lo && a.hi == b.hi;
}

Test(gpus, bytes__over_pieces__are_read_and_written)
{
	struct gpu_space *space = space_new(0);
	uint8_t *data = gpus_block_take(gpus, NULL);
	add(space, 0, MIB);
	add(space, MIB, MIB);
	cr_assert_eq(settle(space), 0, "%s", waits.result.text);
	cr_assert(gpu_space_has(space, BASE, 2 * MIB));
	cr_assert(!gpu_space_has(space, BASE, 2 * MIB + 1));
	cr_assert(!gpu_space_has(space, BASE - 1, 2));
	struct gpu_span span = {space, BASE + MIB - 100, 300 * KIB};
	struct gpu_request read = {.op = GPU_READ,
		.from = &span,
		.num_from = 1,
		.data = data,
		.bytes = 300 * KIB,
		.hashes = true};
	cr_assert_eq(carry(&read), 0, "%s", read.text);
	cr_assert_arr_eq(data, script->memory + MIB - 100, 300 * KIB);
	cr_assert(same(read.digest, digest_of(data, 300 * KIB)));
	memset(data, 7, 300 * KIB);
	struct gpu_request write = {
		.op = GPU_WRITE, .to = &span, .num_to = 1, .data = data, .bytes = 300 * KIB};
	cr_assert_eq(carry(&write), 0, "%s", write.text);
	cr_assert_arr_eq(script->memory + MIB - 100, data, 300 * KIB);
	struct gpu_request hash = {
		.op = GPU_HASH, .from = &span, .num_from = 1, .bytes = 300 * KIB};
	cr_assert_eq(carry(&hash), 0, "%s", hash.text);
	cr_assert(same(hash.digest, digest_of(data, 300 * KIB)));
	gpus_block_give(gpus, data);
	gpu_space_release(space);
}

/* Every second 64 bytes of a chunk's worth: more ranges than any message has. */
#define STRIDE 128u
#define PART 64u
#define PARTS 8000u
static struct gpu_span parts[2][PARTS];

static void
scatter(struct gpu_span *spans, struct gpu_space *space, uint64_t at)
{
	for (unsigned i = 0; i < PARTS; i++)
		spans[i] = (struct gpu_span){space, BASE + at + i * STRIDE, PART};
}

static void
gather(uint8_t *to, uint64_t at)
{
	for (unsigned i = 0; i < PARTS; i++)
		memcpy(to + i * PART, script->memory + at + i * STRIDE, PART);
}

Test(gpus, a_request__of_thousands_of_spans__is_cut_and_hashed)
{
	static uint8_t expected[PARTS * PART], got[PARTS * PART];
	struct gpu_space *space = space_new(0);
	uint8_t *data = gpus_block_take(gpus, NULL);
	add(space, 0, 4 * MIB);
	add(space, 4 * MIB, 4 * MIB);
	scatter(parts[0], space, 100);
	scatter(parts[1], space, 5 * MIB);
	gather(expected, 100);
	struct th_hash digest = digest_of(expected, sizeof(expected));
	struct gpu_request request = {.op = GPU_READ,
		.from = parts[0],
		.num_from = PARTS,
		.data = data,
		.bytes = PARTS * PART,
		.hashes = true};
	cr_assert_eq(carry(&request), 0, "%s", request.text);
	cr_assert_arr_eq(data, expected, sizeof(expected));
	cr_assert(same(request.digest, digest));
	request = (struct gpu_request){
		.op = GPU_HASH, .from = parts[0], .num_from = PARTS, .bytes = PARTS * PART};
	cr_assert_eq(carry(&request), 0, "%s", request.text);
	cr_assert(same(request.digest, digest));
	request = (struct gpu_request){.op = GPU_COPY,
		.to = parts[1],
		.num_to = PARTS,
		.from = parts[0],
		.num_from = PARTS,
		.bytes = PARTS * PART,
		.hashes = true};
	cr_assert_eq(carry(&request), 0, "%s", request.text);
	cr_assert(same(request.digest, digest));
	gather(got, 5 * MIB);
	cr_assert_arr_eq(got, expected, sizeof(expected));
	cr_assert_eq(script->ranges_max, GPU_RANGES_MAX);
	gpus_block_give(gpus, data);
	gpu_space_release(space);
}

/* Other people's weights: "dd" is what madvise(MADV_DONTDUMP) sets. */
static bool
is_in_no_core(const char *name)
{
	char line[512];
	bool here = false, found = false;
	FILE *maps = fopen("/proc/self/smaps", "re");
	cr_assert(maps);
	while (fgets(line, sizeof(line), maps)) {
		if (strstr(line, "/memfd:"))
			here = strstr(line, name) != NULL;
		if (here && strncmp(line, "VmFlags:", 8) == 0) {
			cr_assert(strstr(line, " dd"), "%s: %s", name, line);
			found = true;
			here = false;
		}
	}
	fclose(maps);
	return found;
}

Test(gpus, host_memory__of_the_agents_own__is_in_no_core)
{
	struct gpu_space *space = space_new(0);
	add(space, 0, 4 * MIB);
	scatter(parts[0], space, 100);
	struct gpu_request hash = {
		.op = GPU_HASH, .from = parts[0], .num_from = PARTS, .bytes = PARTS * PART};
	cr_assert_eq(carry(&hash), 0, "%s", hash.text);
	cr_assert(is_in_no_core("thagentd-gpu-scratch"));
	cr_assert(is_in_no_core("thagentd-gpu-staging"));
	gpu_space_release(space);
}

/* ---- several chunks ------------------------------------------------------------------------- */

struct group {
	struct gpu_chunk chunks[GPU_RUN_CHUNKS_MAX];
	struct gpu_request request;
};

/* Chunks of so many of the parts, each of which is a range. */
static void
group_of(struct group *group, enum gpu_run_op op, const uint32_t *parts_of_chunk, uint32_t count)
{
	uint32_t num_parts = 0;
	for (uint32_t i = 0; i < count; i++) {
		group->chunks[i] = (struct gpu_chunk){.bytes = parts_of_chunk[i] * PART};
		num_parts += parts_of_chunk[i];
	}
	TH_ASSERT(num_parts <= PARTS);
	group->request = (struct gpu_request){.op = op,
		.from = parts[0],
		.num_from = num_parts,
		.bytes = num_parts * PART,
		.hashes = true,
		.chunks = group->chunks,
		.num_chunks = count};
	if (op == GPU_COPY) {
		group->request.to = parts[1];
		group->request.num_to = num_parts;
	}
}

/* Where the spans of both sides lie. */
static struct gpu_space *
scatter_both(void)
{
	struct gpu_space *space = space_new(0);
	add(space, 0, 4 * MIB);
	add(space, 4 * MIB, 4 * MIB);
	scatter(parts[0], space, 100);
	scatter(parts[1], space, 5 * MIB);
	cr_assert_eq(settle(space), 0);
	return space;
}

static void
expect_group(struct group *group)
{
	static uint8_t expected[PARTS * PART], got[PARTS * PART];
	const struct gpu_request *request = &group->request;
	gather(expected, 100);
	gather(got, 5 * MIB);
	if (request->op == GPU_COPY)
		cr_assert_arr_eq(got, expected, request->bytes);
	uint64_t at = 0;
	for (uint32_t i = 0; i < request->num_chunks && request->hashes; i++) {
		struct th_hash digest = digest_of(expected + at, group->chunks[i].bytes);
		cr_assert(same(group->chunks[i].digest, digest), "chunk %u", i);
		at += group->chunks[i].bytes;
	}
}

static void
carry_group(enum gpu_run_op op, bool hashes, const uint32_t *parts_of_chunk, uint32_t count)
{
	static struct group group;
	group_of(&group, op, parts_of_chunk, count);
	group.request.hashes = hashes;
	memset(script->memory + 5 * MIB, 0, 2 * MIB);
	cr_assert_eq(carry(&group.request), 0, "%s", group.request.text);
	expect_group(&group);
}

Test(gpus, a_group__that_fits__is_one_message)
{
	static const uint32_t counts[] = {1, 2, 3, 1, 5, 8, 1, 1, 1, 1, 1, 1, 100, 1, 1, 7};
	struct gpu_space *space = scatter_both();
	for (uint32_t i = 0; i < 4; i++)
		carry_group(i < 2 ? GPU_COPY : GPU_HASH, i % 2 == 0, counts, 16);
	cr_assert_eq(script->messages[GPU_RUN], 4);
	cr_assert_eq(script->chunks_max, 16);
	struct gpu_status status;
	cr_assert_eq(gpus_status(gpus, &status, 1), 1);
	cr_assert_eq(status.bytes_copied, 2 * 135 * PART);
	gpu_space_release(space);
}

Test(gpus, a_group__of_full_chunks__is_one_message)
{
	struct gpu_chunk chunks[] = {{.bytes = 4 * MIB}, {.bytes = 4 * MIB}, {.bytes = MIB}};
	struct gpu_space *space = space_new(0);
	add(space, 0, 12 * MIB);
	add(space, 16 * MIB, 12 * MIB);
	struct gpu_span from = {space, BASE, 9 * MIB}, to = {space, BASE + 16 * MIB, 9 * MIB};
	struct gpu_request copy = {.op = GPU_COPY,
		.to = &to,
		.num_to = 1,
		.from = &from,
		.num_from = 1,
		.bytes = 9 * MIB,
		.hashes = true,
		.chunks = chunks,
		.num_chunks = TH_ARRAY_LEN(chunks)};
	cr_assert_eq(carry(&copy), 0, "%s", copy.text);
	cr_assert_arr_eq(script->memory + 16 * MIB, script->memory, 9 * MIB);
	for (uint32_t i = 0; i < TH_ARRAY_LEN(chunks); i++)
		cr_assert(same(chunks[i].digest,
			digest_of(script->memory + i * 4 * MIB, chunks[i].bytes)));
	cr_assert_eq(script->messages[GPU_RUN], 1);
	gpu_space_release(space);
}

Test(gpus, a_group__of_too_many_ranges__is_cut_between_chunks)
{
	static const uint32_t counts[] = {200, 200, 200, 200, 500, 20, 1, 1};
	struct gpu_space *space = scatter_both();
	carry_group(GPU_COPY, true, counts, 8);
	/* 400, 400, 500, 22 of each side. */
	cr_assert_eq(script->messages[GPU_RUN], 4);
	cr_assert_eq(script->ranges_max, 500);
	cr_assert_eq(script->messages[GPU_AREA], 0, "nothing was read back");
	carry_group(GPU_HASH, true, counts, 8);
	cr_assert_eq(script->messages[GPU_RUN], 4 + 4);
	gpu_space_release(space);
}

/* Only that one is read back, wherever it is. */
Test(gpus, a_group__of_which_a_chunk_fits_nowhere__is_hashed)
{
	static const uint32_t counts[][4] = {{1100, 5, 5, 5}, {5, 1100, 1100, 5}, {5, 5, 5, 1100},
		{1100, 1100, 1100, 1100}, {600, 600, 600, 600}};
	struct gpu_space *space = scatter_both();
	for (uint32_t i = 0; i < TH_ARRAY_LEN(counts); i++) {
		carry_group(GPU_COPY, true, counts[i], 4);
		carry_group(GPU_COPY, false, counts[i], 4);
		carry_group(GPU_HASH, true, counts[i], 4);
	}
	cr_assert_eq(script->lives, 1);
	gpu_space_release(space);
}

/* Copies go on beside a CPU that hashes, so it gets one chunk after another. */
Test(gpus, a_group__hashed_by_the_cpu__goes_chunk_by_chunk)
{
	static const uint32_t counts[] = {1, 2, 3, 4};
	gpus_free(gpus);
	struct gpus_config as = config();
	as.hash_on_cpu = true;
	begin(&as);
	struct gpu_space *space = scatter_both();
	carry_group(GPU_COPY, true, counts, 4);
	cr_assert_eq(script->messages[GPU_RUN], 4);
	carry_group(GPU_HASH, true, counts, 4);
	cr_assert_eq(script->messages[GPU_RUN], 8);
	carry_group(GPU_COPY, false, counts, 4);
	cr_assert_eq(script->messages[GPU_RUN], 9);
	gpu_space_release(space);
}

Test(gpus, a_group__of_which_some_is_not_shared__fails)
{
	static struct group group;
	static const uint32_t counts[] = {10, 10};
	struct gpu_space *space = scatter_both();
	group_of(&group, GPU_COPY, counts, 2);
	parts[0][15].address = BASE + 9 * MIB;
	cr_assert_eq(carry(&group.request), TH_E_STALE_MEMORY);
	cr_assert(strstr(group.request.text, "m/r/0"), "%s", group.request.text);
	gpu_space_release(space);
}

/* ---- two GPUs ------------------------------------------------------------------------------- */

Test(gpus, a_copy__between_two_gpus__opens_both_ends_where_it_goes_to)
{
	struct gpu_space *spaces[2] = {space_new(0), space_new(1)};
	struct gpu_status status[2];
	add(spaces[0], 0, MIB);
	add(spaces[1], 8 * MIB, MIB);
	cr_assert_eq(settle(spaces[0]), 0);
	struct gpu_span from = {spaces[0], BASE, MIB}, to = {spaces[1], BASE + 8 * MIB, MIB};
	struct gpu_request copy = {.op = GPU_COPY,
		.to = &to,
		.num_to = 1,
		.from = &from,
		.num_from = 1,
		.bytes = MIB,
		.hashes = true};
	cr_assert_eq(carry(&copy), 0, "%s", copy.text);
	cr_assert_arr_eq(script->memory + 8 * MIB, script->memory, MIB);
	cr_assert(same(copy.digest, digest_of(script->memory, MIB)));
	cr_assert_eq(gpus_status(gpus, status, 2), 2);
	cr_assert_eq(status[1].pieces, 1);
	gpu_space_release(spaces[0]);
	for (;;) { /* it leaves both */
		gpus_status(gpus, status, 2);
		if (status[0].imports == 0 && status[1].imports == 1)
			break;
		usleep(1000);
	}
	cr_assert_eq(status[1].bytes_copied, MIB);
	gpu_space_release(spaces[1]);
}

Test(gpus, many_requests__at_once__are_all_done)
{
	static struct gpu_request requests[2000];
	struct gpu_space *space = space_new(0);
	add(space, 0, 4 * MIB);
	struct gpu_span span = {space, BASE, 4096};
	for (unsigned i = 0; i < 2000; i++) {
		requests[i] = (struct gpu_request){
			.op = GPU_HASH, .from = &span, .num_from = 1, .bytes = 4096, .done = done};
		gpu_submit(&requests[i]);
	}
	wait_for(2000);
	for (unsigned i = 0; i < 2000; i++)
		cr_assert(same(requests[i].digest, digest_of(script->memory, 4096)));
	gpu_space_release(space);
}

Test(gpus, a_piece__that_is_forgotten__is_closed_and_not_found)
{
	struct gpu_space *space = space_new(0);
	struct gpu_status status;
	uint64_t piece = add(space, 0, MIB);
	add(space, MIB, MIB);
	cr_assert_eq(settle(space), 0);
	gpu_space_forget(space, piece + 4096);
	cr_assert(gpu_space_has(space, BASE, 2 * MIB), "none begins there");
	gpu_space_forget(space, piece);
	cr_assert(!gpu_space_has(space, BASE, 1));
	struct gpu_span span = {space, BASE, 4096};
	struct gpu_request hash = {.op = GPU_HASH, .from = &span, .num_from = 1, .bytes = 4096};
	cr_assert_eq(carry(&hash), TH_E_STALE_MEMORY);
	cr_assert(strstr(hash.text, "m/r/0"), "%s", hash.text);
	do {
		gpus_status(gpus, &status, 1);
	} while (status.imports != 1);
	cr_assert_eq(status.import_bytes, MIB);
	add(space, 0, MIB);
	cr_assert_eq(carry(&hash), 0, "%s", hash.text);
	gpu_space_release(space);
}

Test(gpus, a_piece__that_does_not_fit__is_refused)
{
	struct gpu_space *space = space_new(0);
	struct cuda_handle handle = {.kind = CUDA_KIND_LEGACY, .bytes = MIB};
	add(space, MIB, MIB);
	memcpy(handle.uuid, uuids[0], 16);
	const uint64_t wrong[] = {BASE + 1, BASE + 2 * MIB - 1, UINT64_MAX - 5};
	for (unsigned i = 0; i < 3; i++)
		cr_assert_eq(gpu_space_add(space, &handle, wrong[i], -1, NULL, &err), TH_E_INVALID);
	handle.uuid[0]++;
	cr_assert_eq(gpu_space_add(space, &handle, BASE, -1, NULL, &err), TH_E_INVALID);
	gpu_space_release(space);
}

struct own_waiter {
	struct gpus_waiter waiter;
	uint8_t *data;
	unsigned order;
};
static unsigned granted_so_far;

static void
granted(struct gpus_waiter *waiter, uint8_t *data)
{
	struct own_waiter *own = (struct own_waiter *)waiter;
	own->data = data;
	own->order = ++granted_so_far;
}

Test(gpus, blocks__that_are_out__are_granted_in_the_order_of_asking)
{
	uint8_t *blocks[16];
	struct gpus_stage_status status;
	struct own_waiter waiters[3] = {{{.granted = granted}, NULL, 0},
		{{.granted = granted}, NULL, 0}, {{.granted = granted}, NULL, 0}};
	gpu_space_release(space_new(0));
	for (unsigned i = 0; i < 16; i++) {
		blocks[i] = gpus_block_take(gpus, &waiters[0].waiter);
		cr_assert(blocks[i]);
		memset(blocks[i], (int)i, GPUS_BLOCK_BYTES);
	}
	for (unsigned i = 0; i < 16; i++)
		cr_assert_eq(blocks[i][GPUS_BLOCK_BYTES - 1], i);
	for (unsigned i = 0; i < 3; i++)
		cr_assert_null(gpus_block_take(gpus, &waiters[i].waiter));
	cr_assert(gpus_block_cancel(gpus, &waiters[1].waiter));
	cr_assert(!gpus_block_cancel(gpus, &waiters[1].waiter));
	gpus_block_give(gpus, blocks[3]);
	cr_assert_eq(waiters[0].data, blocks[3]);
	gpus_block_give(gpus, blocks[5]);
	cr_assert_eq(waiters[2].data, blocks[5]);
	cr_assert_eq(waiters[2].order, 2);
	gpus_stage_status(gpus, &status);
	cr_assert_eq(status.bytes_in_use, 8 * MIB);
	cr_assert_eq(status.waits, 3);
	for (unsigned i = 0; i < 16; i++)
		gpus_block_give(gpus, blocks[i]);
	gpus_stage_status(gpus, &status);
	cr_assert_eq(status.bytes_in_use, 0);
	cr_assert_eq(status.bytes, 0); /* no process that could have pinned them */
}

Test(gpus, who_does_not_wait__leaves_a_quarter_to_those_who_do)
{
	uint8_t *blocks[16];
	struct own_waiter waiter = {{.granted = granted}, NULL, 0};
	gpu_space_release(space_new(0));
	for (unsigned i = 0; i < 12; i++)
		blocks[i] = gpus_block_take(gpus, NULL);
	cr_assert(blocks[11]);
	cr_assert_null(gpus_block_take(gpus, NULL));
	for (unsigned i = 12; i < 16; i++)
		blocks[i] = gpus_block_take(gpus, &waiter.waiter);
	cr_assert(blocks[15]);
	cr_assert_null(gpus_block_take(gpus, &waiter.waiter));
	gpus_block_give(gpus, blocks[0]);
	cr_assert_eq(waiter.data, blocks[0]);
	for (unsigned i = 1; i < 5; i++) {
		cr_assert_null(gpus_block_take(gpus, NULL));
		gpus_block_give(gpus, blocks[i]);
	}
	cr_assert_null(gpus_block_take(gpus, NULL), "a quarter is free");
	gpus_block_give(gpus, blocks[5]);
	blocks[5] = gpus_block_take(gpus, NULL);
	cr_assert(blocks[5]);
	for (unsigned i = 5; i < 16; i++)
		gpus_block_give(gpus, blocks[i]);
	gpus_block_give(gpus, waiter.data);
}

Test(gpus, digests_by_the_cpu__are_what_the_process_is_told)
{
	struct gpus_config as = config();
	struct gpus *other;
	struct th_err result;
	as.hash_on_cpu = true;
	cr_assert_eq(gpus_new(&as, &err, &other), 0);
	struct gpu_space *space = gpu_space_new(other, uuids[0], "m/r/0", &err);
	cr_assert(space);
	add(space, 0, MIB);
	gpu_space_settle(space, settled, &result);
	wait_for(1);
	cr_assert_eq(result.code, 0, "%s", result.text);
	cr_assert_eq(script->flags, GPU_HASH_ON_CPU);
	gpu_space_release(space);
	gpus_free(other);
}

Test(gpus, staging__less_than_a_block__is_refused)
{
	struct gpus_config as = config();
	struct gpus *other;
	as.staging_bytes = GPUS_BLOCK_BYTES - 1;
	cr_assert_eq(gpus_new(&as, &err, &other), TH_E_INVALID);
	cr_assert(strstr(err.text, "gpu.staging"), "%s", err.text);
}

/* ---- host memory --------------------------------------------------------------------------- */

static bool
is_gone(const struct rig_host *host)
{
	rig_wait(1);
	struct rig_host ended = *host;
	rig_host_end(&ended);
	return true;
}

Test(gpus, host_memory__that_requests_name__is_read_and_written_itself)
{
	struct gpu_space *space = space_new(0);
	struct gpus_stage_status stage;
	struct rig_host host = rig_host_new(gpus, 100);
	add(space, 0, MIB);
	struct gpu_span span = {space, BASE + 3, 50 * PAGE};
	struct gpu_request read = {.op = GPU_READ,
		.from = &span,
		.num_from = 1,
		.data = host.data + 10 * PAGE + 77,
		.host = host.host,
		.bytes = 50 * PAGE,
		.hashes = true};
	cr_assert_eq(script->areas, 0);
	cr_assert_eq(carry(&read), 0, "%s", read.text);
	cr_assert_arr_eq(read.data, script->memory + 3, read.bytes);
	cr_assert(same(read.digest, digest_of(script->memory + 3, read.bytes)));
	cr_assert_eq(script->areas, 51); /* and not all of it */
	struct gpu_status status;
	do { /* it is shown a little later */
		gpus_status(gpus, &status, 1);
	} while (status.pinned_bytes != 51 * PAGE);
	memset(read.data, 9, read.bytes);
	struct gpu_request write = {.op = GPU_WRITE,
		.to = &span,
		.num_to = 1,
		.data = read.data,
		.host = host.host,
		.bytes = read.bytes};
	cr_assert_eq(carry(&write), 0, "%s", write.text);
	cr_assert_arr_eq(script->memory + 3, read.data, read.bytes);
	cr_assert_eq(script->areas, 51);
	gpus_stage_status(gpus, &stage);
	cr_assert_eq(stage.bytes, 0);
	gpus_host_release(host.host);
	cr_assert(is_gone(&host));
	cr_assert_eq(script->areas, 0);
	gpu_space_release(space);
}

Test(gpus, host_memory__that_nobody_named__is_gone_at_once)
{
	struct rig_host host = rig_host_new(gpus, 1);
	gpus_host_release(host.host);
	cr_assert(is_gone(&host));
}

Test(gpus, host_memory__released_under_a_request__goes_behind_it)
{
	struct gpu_space *space = space_new(0);
	struct rig_host host = rig_host_new(gpus, 1);
	add(space, 0, MIB);
	cr_assert_eq(settle(space), 0);
	struct script_step *step = script_add(script, GPU_RUN, SCRIPT_WAIT, 0, 1);
	struct gpu_span span = {space, BASE, PAGE};
	struct gpu_request read = rig_read(&span, host.data);
	read.host = host.host;
	read.done = done;
	gpu_submit(&read);
	while (step->met == 0)
		usleep(1000);
	gpus_host_release(host.host);
	cr_assert_eq(script->areas, 1);
	script->go = 1;
	wait_for(1);
	cr_assert_eq(read.code, 0, "%s", read.text);
	cr_assert_arr_eq(host.data, script->memory, PAGE);
	cr_assert(is_gone(&host));
	cr_assert_eq(script->areas, 0);
	gpu_space_release(space);
}

Test(gpus, host_memory__released_while_it_is_pinned__goes_behind_that)
{
	struct gpu_space *space = space_new(0);
	struct rig_host host = rig_host_new(gpus, 1);
	script_add(script, GPU_OPEN, SCRIPT_DIE, 0, 3); /* it is not opened again */
	add(space, 0, MIB);
	cr_assert_eq(settle(space), TH_E_MEMORY_KIND);
	struct script_step *step = script_add(script, GPU_AREA, SCRIPT_WAIT, 0, 1);
	struct gpu_span span = {space, BASE, PAGE};
	struct gpu_request read = rig_read(&span, host.data);
	read.host = host.host;
	cr_assert_eq(carry(&read), TH_E_STALE_MEMORY);
	gpus_host_release(host.host);
	while (step->met == 0)
		usleep(1000);
	script->go = 1;
	cr_assert(is_gone(&host));
	cr_assert_eq(script->areas, 0);
	cr_assert_eq(script->lives, 4);
	gpu_space_release(space);
}

Test(gpus, host_memory__of_two_gpus__goes_when_both_have_forgotten_it)
{
	struct gpu_space *spaces[2] = {space_new(0), space_new(1)};
	struct rig_host host = rig_host_new(gpus, 2);
	for (unsigned i = 0; i < 2; i++) {
		add(spaces[i], i * MIB, MIB);
		struct gpu_span span = {spaces[i], BASE + i * MIB, PAGE};
		struct gpu_request read = rig_read(&span, host.data + i * PAGE);
		read.host = host.host;
		cr_assert_eq(carry(&read), 0, "%s", read.text);
		cr_assert_arr_eq(read.data, script->memory + i * MIB, PAGE);
	}
	struct script_step *step = script_add(script, GPU_AREA, SCRIPT_DIE, 0, 1);
	gpus_host_release(host.host);
	cr_assert(is_gone(&host));
	cr_assert_eq(step->met, 1);
	gpu_space_release(spaces[0]);
	gpu_space_release(spaces[1]);
}

Test(gpus, host_memory__of_more_slices_than_areas__is_pinned_in_turn)
{
	const uint64_t pages = GPU_AREAS_MAX + 1000;
	struct gpu_space *space = space_new(0);
	struct rig_host host = rig_host_new(gpus, pages);
	add(space, 0, 4 * MIB);
	for (uint64_t at = 0; at < host.bytes;) {
		uint64_t bytes = th_min_u64(host.bytes - at, 4 * MIB);
		struct gpu_span span = {space, BASE, bytes};
		struct gpu_request read = rig_read(&span, host.data + at);
		read.host = host.host;
		cr_assert_eq(carry(&read), 0, "%s", read.text);
		at += bytes;
	}
	for (uint64_t at = 0; at < host.bytes; at += PAGE)
		cr_assert_arr_eq(host.data + at, script->memory + at % (4 * MIB), PAGE);
	cr_assert_eq(script->areas, GPU_AREAS_MAX);
	gpus_host_release(host.host);
	cr_assert(is_gone(&host));
	cr_assert_eq(script->areas, 0);
	gpu_space_release(space);
}
