/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of slabs that lie on a GPU (rdma/stage.h), and of legs that copy through them: whose memory
 * no NIC reaches, but whose GPU has some that it does. The GPUs are the test's own (fake_gpus.h);
 * transport_cuda_test.c has real processes of theirs, and rdma_stage_test.c slabs of the host.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "tests/support/gpu/rig_fake_gpus.h"
#include "tests/support/rdma/fake_rdma.h"
#include "tests/support/transport/transport_pair.h"
#include "tests/support/transport/transport_peer.h"
#include "transport/rdma/device/device.h"
#include "transport/rdma/memory/region.h"
#include "transport/rdma/memory/stage_own.h"
#include "transport/rdma/rdma.h"

#define PATIENCE_NS INT64_C(30000000000)
#define CHUNKS 10u

/* More than a slab has, or it is not worth one of a GPU. */
static const uint64_t ten_chunks[] = {40 * MIB};
static const uint64_t odd_sizes[] = {
	1, 70000, 2 * MIB - 1, 0, 2 * MIB, 4 * MIB + 1, 29 * MIB + 13, 65536, 65537, 3, 1000000};
#define ODD (sizeof(odd_sizes) / sizeof(odd_sizes[0]))

static struct pair *
start(const uint64_t *sizes, uint32_t count)
{
	rig_fake_gpus_init(64 * MIB);
	if (pair_rails == 0)
		pair_rails = 1;
	struct pair *s = pair_new(sizes, count, CALM_NS);
	s->reader_agent->require_rdma = true;
	return s;
}

static struct stage *
stage_of(struct rig_agent *agent)
{
	return rdma_stage(transport_rdma(agent->transport));
}

static struct stage_status
status_of(struct rig_agent *agent)
{
	struct stage_status status;
	stage_status(stage_of(agent), &status);
	return status;
}

/* All that a GPU had of the agent's is free, by itself. */
static void
wait_until_none(struct pair *s, struct rig_agent *agent)
{
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	while (status_of(agent).bytes_on_gpus > 0) {
		cr_assert_lt(th_now_ns(), until_ns);
		rig_pump(&s->rig, 1);
	}
}

/* The source has published it. */
static void
pull(struct pair *s, enum rig_memory from, enum rig_memory to, bool verify)
{
	memset(s->reader.memory, 0, s->reader.bytes);
	s->from = rig_part_of(&s->source, from, verify);
	s->to = rig_part_of(&s->reader, to, verify);
	if (verify)
		rig_add_digests(s->from);
	xfer_part_advance(s->from, s->source.table->num_chunks);
	pair_move(s, MODE_RDMA, ++s->leg, s->from, s->to);
}

static const struct transport_event *
arrives(struct pair *s, enum rig_memory from, enum rig_memory to, bool verify, const char *way)
{
	pull(s, from, to, verify);
	const struct transport_event *done = pair_done(s, s->leg);
	cr_assert_str_eq(done->transport, way, "%s", done->fallback);
	wait_until_none(s, s->source_agent);
	wait_until_none(s, s->reader_agent);
	pair_release(s);
	return done;
}

/* ---- legs ---------------------------------------------------------------------------------- */

/* At either end and at both: one copy by the GPU for each chunk, and nothing through the host. */
Test(transport_slab, each_end__copied_by_the_gpu_alone)
{
	struct pair *s = start(ten_chunks, 1);
	for (uint32_t i = 0; i < 6; i++) {
		enum rig_memory from = i % 3 == 1 ? RIG_MAPPED : RIG_GPU;
		enum rig_memory to = i % 3 == 2 ? RIG_MAPPED : RIG_GPU;
		uint32_t before = rig_fake_count(GPU_COPY);
		arrives(s, from, to, i < 3, "rdma-copy");
		uint32_t ends = from == RIG_GPU && to == RIG_GPU ? 2 : 1;
		cr_assert_eq(rig_fake_count(GPU_COPY) - before, ends * CHUNKS);
	}
	cr_assert_eq(
		rig_fake_count(GPU_READ) + rig_fake_count(GPU_WRITE) + rig_fake_count(GPU_HASH), 0);
	cr_assert_eq(rig_counters(s->reader_agent).bytes_in_copy, 6 * 40 * MIB);
	cr_assert_eq(rig_counters(s->source_agent).bytes_staged, 4 * 40 * MIB);
	pair_finish_on_gpus(s);
}

Test(transport_slab, odd_sizes_on_several_rails__arrive)
{
	pair_rails = 3;
	struct pair *s = start(odd_sizes, ODD);
	for (uint32_t i = 0; i < 2; i++)
		arrives(s, RIG_GPU, RIG_GPU, i == 0, "rdma-copy");
	cr_assert_eq(rig_fake_count(GPU_READ) + rig_fake_count(GPU_WRITE), 0);
	pair_finish_on_gpus(s);
}

/* A device that takes 6 MiB at once: every third slot would lie in two pieces. */
Test(transport_slab, slots_that_lie_in_two_pieces__are_left_out)
{
	pair_mr_bytes = 6 * MIB;
	struct pair *s = start(ten_chunks, 1);
	arrives(s, RIG_GPU, RIG_MAPPED, true, "rdma-copy");
	cr_assert_eq(rig_fake_count(GPU_COPY), CHUNKS);
	pair_finish_on_gpus(s);
}

/* Not worth the time that it takes to make one; or not on one GPU, so that threads carry it. */
Test(transport_slab, small_or_mixed__by_a_slab_of_the_host)
{
	static const uint64_t small[] = {20 * MIB};
	struct pair *s = start(small, 1);
	arrives(s, RIG_GPU, RIG_GPU, true, "rdma-copy");
	pair_finish_on_gpus(s);
	s = start(odd_sizes, ODD);
	arrives(s, RIG_GPU_MAPPED, RIG_GPU_PROCESS, true, "rdma-copy");
	cr_assert_eq(rig_fake_count(GPU_COPY), 0);
	cr_assert_eq(fake_gpus_taken(rig_gpus->gpus), 0);
	pair_finish_on_gpus(s);
}

/* GPUs read and write these themselves, too: a chunk at once, and no block of the staging between.
 */
static void
expect_host_slabs(struct pair *s)
{
	arrives(s, RIG_GPU, RIG_GPU, true, "rdma-copy");
	cr_assert_eq(rig_fake_count(GPU_COPY), 0);
	cr_assert_eq(rig_fake_count(GPU_READ), CHUNKS);
	cr_assert_eq(rig_fake_count(GPU_WRITE), CHUNKS);
	cr_assert_eq(fake_gpus_taken(rig_gpus->gpus), 0);
	pair_finish_on_gpus(s);
}

Test(transport_slab, gpu_has_no_memory_for_nics__by_a_slab_of_the_host)
{
	struct pair *s = start(ten_chunks, 1);
	fake_gpus_have_no_own(rig_gpus->gpus);
	expect_host_slabs(s);
}

/* As on hosts where a NIC may only write there. What is wrong is not the pair of ports. */
Test(transport_slab, nic_cannot_read_the_gpu__by_a_slab_of_the_host)
{
	struct pair *s = start(ten_chunks, 1);
	fake_rdma_blind(s->source_agent->devices[0], true);
	arrives(s, RIG_GPU, RIG_MAPPED, true, "rdma-copy");
	cr_assert_eq(rig_fake_count(GPU_COPY), 0);
	cr_assert_eq(rig_fake_count(GPU_READ), CHUNKS);
	arrives(s, RIG_MAPPED, RIG_MAPPED, true, "rdma");
	cr_assert_eq(rig_counters(s->reader_agent).bytes_in_rdma, 80 * MIB);
	pair_finish_on_gpus(s);
}

Test(transport_slab, no_rail_takes_it__by_a_slab_of_the_host)
{
	rig_no_dmabufs = true;
	expect_host_slabs(start(ten_chunks, 1));
}

/* The source's GPU has its process only just started: the reader is told that it takes some time.
 * Otherwise he would take the source for dead. */
static void
expect_later(struct pair *s)
{
	static uint8_t payload[FRAME_PAYLOAD_MAX];
	const struct frame_hello hello = {.ticket = rig_ticket(5), .protocol = 1, .mode = 1};
	struct frame frame = {.kind = FRAME_HELLO,
		.flags = FRAME_VERIFIES | FRAME_TAKES_RDMA | FRAME_TAKES_STAGED,
		.leg = 5,
		.bytes = FRAME_HELLO_BYTES};
	s->from = rig_part_of(&s->source, RIG_GPU, true);
	rig_add_digests(s->from);
	xfer_part_advance(s->from, CHUNKS);
	fake_gpus_hold_own(rig_gpus->gpus, true);
	rig_offer(s->source_agent, 5, s->from);
	int fd = peer_dial(s->source_agent);
	frame_encode_hello(&hello, payload);
	peer_put_frame(fd, &frame, payload, FRAME_HELLO_BYTES);
	unsigned flags = 0;
	do {
		frame = peer_get_frame(fd);
		if (frame.kind == FRAME_WELCOME) {
			flags = frame.flags;
			fake_gpus_hold_own(rig_gpus->gpus, false);
		}
		peer_get(fd, payload, frame.bytes);
	} while (frame.kind != FRAME_RDMA_RAILS);
	cr_assert(flags & FRAME_OFFERS_RDMA);
	cr_assert(flags & FRAME_RDMA_LATER);
	close(fd);
	pair_finish_on_gpus(s);
}

Test(transport_slab, source_waits_for_its_gpu__says_that_it_comes_later)
{
	expect_later(start(ten_chunks, 1));
}

Test(transport_slab, source_is_registered_on_a_rail_that_is_down__says_that_it_comes_later)
{
	pair_rails = 2;
	pair_staged = PAIR_SOURCE;
	rig_gpus_for_nics = true;
	struct pair *s = start(ten_chunks, 1);
	struct region_key scratch; /* is registered before */
	while (!rdma_scratch(transport_rdma(s->source_agent->transport), 0, &scratch))
		rig_pump(&s->rig, 1);
	fake_rdma_refuse(s->source_agent->devices[0], FAKE_REG, 1, -EINVAL);
	rig_register(s->source_agent, &s->source);
	cr_assert_not_null(s->source.region);
	cr_assert_eq(region_ready(s->source.region), 2);
	fake_rdma_port_set(s->source_agent->devices[1], 1, false);
	while (rdma_usable(transport_rdma(s->source_agent->transport)) != 1)
		rig_pump(&s->rig, 1);
	expect_later(s);
}

/* ---- what goes wrong ----------------------------------------------------------------------- */

/* Held where the fourth copy waits: at the source, or at both ends. */
static void
lose(enum rig_memory from, enum rig_memory to)
{
	struct pair *s = start(ten_chunks, 1);
	s->reader_agent->require_rdma = false;
	fake_gpus_hold(rig_gpus->gpus, true);
	pull(s, from, to, true);
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	while (fake_gpus_running(rig_gpus->gpus) == 0) {
		cr_assert_lt(th_now_ns(), until_ns);
		rig_pump(&s->rig, 1);
	}
	cr_assert_gt(
		status_of(s->source_agent).bytes_on_gpus + status_of(s->reader_agent).bytes_on_gpus,
		0);
	fake_gpus_lose_own(rig_gpus->gpus);
	fake_gpus_hold(rig_gpus->gpus, false);
	const struct transport_event *done = pair_done(s, s->leg);
	cr_assert(strstr(done->fallback, "the process of"), "%s", done->fallback);
	wait_until_none(s, s->source_agent);
	wait_until_none(s, s->reader_agent);
	pair_finish_on_gpus(s);
}

Test(transport_slab, process_of_a_gpu_ends__the_leg_goes_on_without)
{
	lose(RIG_GPU, RIG_MAPPED);
	lose(RIG_MAPPED, RIG_GPU);
	lose(RIG_GPU, RIG_GPU);
}

Test(transport_slab, process_ends_and_rdma_is_required__told_as_our_own)
{
	struct pair *s = start(ten_chunks, 1);
	fake_gpus_hold(rig_gpus->gpus, true);
	pull(s, RIG_MAPPED, RIG_GPU, true);
	while (fake_gpus_running(rig_gpus->gpus) == 0)
		rig_pump(&s->rig, 1);
	fake_gpus_lose_own(rig_gpus->gpus);
	fake_gpus_hold(rig_gpus->gpus, false);
	const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
	cr_assert_eq(failed->code, TH_E_NO_PATH);
	cr_assert_not(failed->source_failed);
	pair_finish_on_gpus(s);
}

/* The worker's memory, not the slab. */
Test(transport_slab, memory_of_the_worker_gone__stale_and_whose)
{
	for (uint32_t own = 0; own < 2; own++) {
		struct pair *s = start(ten_chunks, 1);
		fake_gpus_fail(rig_gpus->gpus, GPU_COPY, TH_E_STALE_MEMORY, 3);
		pull(s, own ? RIG_MAPPED : RIG_GPU, own ? RIG_GPU : RIG_MAPPED, true);
		const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
		cr_assert_eq(failed->code, TH_E_STALE_MEMORY, "%s", failed->text);
		cr_assert_eq(failed->source_failed, own == 0);
		cr_assert(strstr(failed->text, "the test said so"), "%s", failed->text);
		pair_finish_on_gpus(s);
	}
}

Test(transport_slab, what_was_copied_is_damaged_once__fetched_again)
{
	struct pair *s = start(ten_chunks, 1);
	fake_gpus_flip(rig_gpus->gpus, GPU_COPY, 4, 1);
	arrives(s, RIG_MAPPED, RIG_GPU, true, "rdma-copy");
	cr_assert_eq(rig_counters(s->reader_agent).checksum_failures, 1);
	cr_assert_eq(rig_counters(s->reader_agent).bytes_in_rdma, 44 * MIB);
	cr_assert_eq(rig_fake_count(GPU_COPY), CHUNKS + 1);
	pair_finish_on_gpus(s);
}

Test(transport_slab, source_changes_what_is_published__told)
{
	struct pair *s = start(ten_chunks, 1);
	s->from = rig_part_of(&s->source, RIG_GPU, true);
	s->to = rig_part_of(&s->reader, RIG_GPU, true);
	rig_add_digests(s->from);
	xfer_part_advance(s->from, CHUNKS);
	s->source.tensors[0][9 * MIB] ^= 1;
	pair_move(s, MODE_RDMA, ++s->leg, s->from, s->to);
	cr_assert_eq(rig_wait(&s->rig, s->source_agent, TRANSPORT_CHANGED, s->leg)->chunk, 2);
	cr_assert(pair_wait(s, TRANSPORT_FAILED)->source_failed);
	pair_finish_on_gpus(s);
}

/* And nothing of it is left on a GPU when its pair has ended. */
Test(transport_slab, leg_is_cut_at_any_moment__ends)
{
	for (uint32_t round = 0; round < 12; round++) {
		struct pair *s = start(ten_chunks, 1);
		pull(s, RIG_GPU, RIG_GPU, round % 2);
		rig_pump_for(&s->rig, (int64_t)round * 900000);
		pair_cut(s, round);
		while (s->reader_agent->num_events == 0 && round % 3 != 0)
			rig_pump(&s->rig, 10);
		pair_finish_on_gpus(s);
	}
}

/* ---- the pool ------------------------------------------------------------------------------ */

static struct slab *
take(struct pair *s, struct xfer_part *part)
{
	struct th_err err = {0};
	struct slab *slab = NULL;
	cr_assert_eq(stage_take(stage_of(s->source_agent), part, &err, &slab), 0, "%s", err.text);
	return slab;
}

static uint32_t
wait_settled(struct slab *slab)
{
	uint32_t waiting, ready;
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	do {
		ready = slab_rails(slab, &waiting);
		cr_assert_lt(th_now_ns(), until_ns);
	} while (waiting != 0);
	return ready;
}

static uint32_t
only_the_second(void *arg, const uint8_t uuid[16])
{
	cr_assert_eq(uuid[0], '0');
	(*(uint32_t *)arg)++;
	return 2;
}

Test(transport_slab, taken__on_the_gpu_and_with_the_rails_near_to_it)
{
	uint32_t asked = 0;
	pair_rails = 3;
	struct pair *s = start(ten_chunks, 1);
	stage_set_near(stage_of(s->source_agent), only_the_second, &asked);
	s->from = rig_part_of(&s->source, RIG_GPU, true);
	struct slab *slab = take(s, s->from);
	cr_assert_eq(wait_settled(slab), 2);
	cr_assert_eq(asked, 1);
	cr_assert_not_null(slab_space(slab));
	cr_assert_not(slab_lost(slab));
	struct stage_status status = status_of(s->source_agent);
	cr_assert(status.bytes == SLAB_BYTES && status.bytes_in_use == SLAB_BYTES);
	cr_assert_eq(status.bytes_on_gpus, SLAB_BYTES);
	fake_gpus_lose_own(rig_gpus->gpus);
	cr_assert(slab_lost(slab));
	struct slab *host = take(s, NULL);
	cr_assert_null(slab_space(host));
	cr_assert_eq(wait_settled(host), 7);
	slab_release(host);
	slab_release(slab);
	wait_until_none(s, s->source_agent);
	while (status_of(s->source_agent).bytes > SLAB_BYTES)
		rig_pump(&s->rig, 1);
	cr_assert_eq(status_of(s->source_agent).bytes, SLAB_BYTES, "the host's is kept");
	pair_finish_on_gpus(s);
}

/* The host's does, by the other one. */
Test(transport_slab, rail_near_to_the_gpu_is_down__by_a_slab_of_the_host)
{
	uint32_t asked = 0;
	pair_rails = 2;
	struct pair *s = start(ten_chunks, 1);
	stage_set_near(stage_of(s->source_agent), only_the_second, &asked);
	fake_rdma_port_set(s->source_agent->devices[1], 1, false);
	while (rdma_usable(transport_rdma(s->source_agent->transport)) != 1)
		rig_pump(&s->rig, 1);
	for (uint32_t i = 1; i <= 3; i++) {
		arrives(s, RIG_GPU, RIG_MAPPED, true, "rdma-copy");
		cr_assert_eq(asked, i);
		cr_assert_eq(rig_fake_count(GPU_COPY), 0);
		cr_assert_eq(rig_fake_count(GPU_READ), i * CHUNKS);
		struct no_slabs *none = &stage_of(s->source_agent)->none[0];
		cr_assert_eq(none->pause_ns, 10000000000, "the port may come back");
		none->until_ns = 0;
	}
	pair_finish_on_gpus(s);
}

/* It would be of no use. */
Test(transport_slab, no_rail_is_up__none_is_made)
{
	struct fake_counters before, after;
	struct pair *s = start(ten_chunks, 1);
	struct rig_agent *source = s->source_agent;
	s->reader_agent->require_rdma = false;
	fake_rdma_port_set(source->devices[0], 1, false);
	while (rdma_usable(transport_rdma(source->transport)) != 0)
		rig_pump(&s->rig, 1);
	fake_rdma_counters(source->devices[0], &before);
	pull(s, RIG_GPU, RIG_MAPPED, true);
	const struct transport_event *done = pair_done(s, s->leg);
	cr_assert(strstr(done->fallback, "none of its rails is up"), "%s", done->fallback);
	wait_until_none(s, source);
	fake_rdma_counters(source->devices[0], &after);
	cr_assert_eq(after.regs, before.regs);
	pair_finish_on_gpus(s);
}

Test(transport_slab, given_back_at_any_moment__nothing_is_left)
{
	struct pair *s = start(ten_chunks, 1);
	s->from = rig_part_of(&s->source, RIG_GPU, true);
	uint32_t spaces = fake_gpus_spaces(rig_gpus->gpus);
	for (uint32_t i = 0; i < 200; i++) {
		if (i == 100)
			fake_gpus_have_no_own(rig_gpus->gpus);
		struct slab *slab = take(s, s->from);
		if (i % 3 == 0)
			(void)wait_settled(slab);
		else if (i % 3 == 1)
			rig_pump(&s->rig, 0);
		slab_release(slab);
		wait_until_none(s, s->source_agent);
	}
	cr_assert_eq(fake_gpus_spaces(rig_gpus->gpus), spaces);
	pair_finish_on_gpus(s);
}

/* It is not asked again by each leg. */
Test(transport_slab, gpu_that_has_none__is_left_alone_for_a_while)
{
	struct pair *s = start(ten_chunks, 1);
	fake_gpus_have_no_own(rig_gpus->gpus);
	s->from = rig_part_of(&s->source, RIG_GPU, true);
	struct slab *slab = take(s, s->from), *next;
	cr_assert_eq(wait_settled(slab), 1);
	cr_assert_null(slab_space(slab));
	next = take(s, s->from);
	cr_assert_eq(status_of(s->source_agent).bytes_on_gpus, 0, "it was not tried");
	slab_slot(slab, 0)[0] = 1;
	slab_release(slab);
	slab_release(next);
	cr_assert_eq(take(s, NULL), next, "they are as all others of the host's");
	slab_release(next);
	pair_finish_on_gpus(s);
}

static uint32_t
lines_with(int file, const char *words)
{
	static char text[65536];
	uint32_t count = 0;
	ssize_t bytes = pread(file, text, sizeof(text) - 1, 0);
	cr_assert_geq(bytes, 0);
	text[bytes] = '\0';
	for (const char *at = text; (at = strstr(at, words)) != NULL; at++)
		count++;
	return count;
}

/* As if the time had passed between two legs: a device that takes no dma-buf never will. */
Test(transport_slab, no_rail_takes_it__tried_less_and_less_often_and_said_once)
{
	static const int64_t pauses[] = {10, 20, 40, 80, 160, 300, 300};
	rig_no_dmabufs = true;
	struct pair *s = start(ten_chunks, 1);
	struct no_slabs *none = &stage_of(s->source_agent)->none[0];
	int file = memfd_create("stderr", MFD_CLOEXEC), before = dup(STDERR_FILENO);
	s->from = rig_part_of(&s->source, RIG_GPU, true);
	cr_assert_eq(dup2(file, STDERR_FILENO), STDERR_FILENO);
	for (uint32_t i = 0; i < TH_ARRAY_LEN(pauses); i++) {
		struct slab *slab = take(s, s->from);
		cr_assert_eq(wait_settled(slab), 1);
		cr_assert_null(slab_space(slab));
		slab_release(slab);
		cr_assert_eq(none->pause_ns, pauses[i] * 1000000000);
		cr_assert_leq(none->until_ns, th_now_ns() + none->pause_ns);
		none->until_ns = 0;
	}
	cr_assert_eq(dup2(before, STDERR_FILENO), STDERR_FILENO);
	cr_assert_eq(lines_with(file, "(dma-buf)"), 1);
	close(before);
	close(file);
	pair_finish_on_gpus(s);
}

/* For GPUs another one is made where there is room; one that they do not reach is better than none.
 */
Test(transport_slab, idle_ones_of_the_host__each_to_who_has_use_for_it)
{
	static const uint64_t small[] = {20 * MIB};
	struct slab *more[RDMA_STAGE_BYTES / SLAB_BYTES - 3];
	struct pair *s = start(small, 1);
	s->from = rig_part_of(&s->source, RIG_GPU, true);
	struct slab *plain = take(s, NULL), *reached = take(s, s->from);
	(void)wait_settled(plain);
	(void)wait_settled(reached);
	cr_assert_null(slab_host(plain));
	cr_assert_not_null(slab_host(reached));
	slab_release(reached);
	slab_release(plain);
	cr_assert_eq(take(s, s->from), reached);
	struct slab *another = take(s, s->from);
	cr_assert_not_null(slab_host(another), "there is room for one that the GPU reaches");
	cr_assert_eq(take(s, NULL), plain);
	for (uint32_t i = 0; i < TH_ARRAY_LEN(more); i++)
		more[i] = take(s, NULL);
	slab_release(plain);
	cr_assert_eq(take(s, s->from), plain, "there is no more room");
	slab_release(reached);
	cr_assert_eq(take(s, NULL), reached, "a leg without GPUs has use for any");
	slab_release(plain);
	slab_release(reached);
	slab_release(another);
	for (uint32_t i = 0; i < TH_ARRAY_LEN(more); i++)
		slab_release(more[i]);
	pair_finish_on_gpus(s);
}

/* Too many pieces of GPU memory are shared, say. */
Test(transport_slab, gpu_refuses_at_once__one_of_the_host_does_and_it_is_left_alone)
{
	struct pair *s = start(ten_chunks, 1);
	s->from = rig_part_of(&s->source, RIG_GPU, true);
	fake_gpus_refuse_own(rig_gpus->gpus, true);
	struct slab *slab = take(s, s->from);
	cr_assert_not_null(slab_host(slab));
	fake_gpus_refuse_own(rig_gpus->gpus, false);
	struct slab *next = take(s, s->from);
	cr_assert_eq(status_of(s->source_agent).bytes_on_gpus, 0, "it was asked again at once");
	cr_assert_eq(status_of(s->source_agent).bytes, 2 * SLAB_BYTES);
	slab_release(slab);
	slab_release(next);
	pair_finish_on_gpus(s);
}

/* Nobody else has looked at the clock. */
Test(transport_slab, gpu_has_none_and_nobody_has_the_hosts_either__given_back)
{
	rig_stage_idle_ns = 1000000;
	struct pair *s = start(ten_chunks, 1);
	fake_gpus_have_no_own(rig_gpus->gpus);
	s->from = rig_part_of(&s->source, RIG_GPU, true);
	struct slab *slab = take(s, s->from);
	cr_assert_eq(wait_settled(slab), 1);
	slab_release(slab);
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	while (status_of(s->source_agent).bytes > 0) {
		cr_assert_lt(th_now_ns(), until_ns);
		rig_pump(&s->rig, 1);
	}
	pair_finish_on_gpus(s);
}

Test(transport_slab, budget_used_up__none_and_why)
{
	struct th_err err = {0};
	struct slab *slabs[RDMA_STAGE_BYTES / SLAB_BYTES], *more = NULL;
	struct pair *s = start(ten_chunks, 1);
	s->from = rig_part_of(&s->source, RIG_GPU, true);
	for (uint32_t i = 0; i < TH_ARRAY_LEN(slabs); i++)
		slabs[i] = take(s, s->from);
	cr_assert_eq(stage_take(stage_of(s->source_agent), s->from, &err, &more), TH_E_NO_PATH);
	cr_assert(strstr(err.text, "rdma.stage"), "%s", err.text);
	cr_assert_eq(status_of(s->source_agent).bytes_on_gpus, RDMA_STAGE_BYTES);
	for (uint32_t i = 0; i < TH_ARRAY_LEN(slabs); i++)
		slab_release(slabs[i]);
	wait_until_none(s, s->source_agent);
	pair_finish_on_gpus(s);
}

/* It ends while a GPU makes one. */
Test(transport_slab, agent_ends_with_slabs_in_use__nothing_is_left)
{
	struct pair *s = start(ten_chunks, 1);
	s->from = rig_part_of(&s->source, RIG_GPU, true);
	struct slab *slab = take(s, s->from), *other = take(s, s->from);
	(void)wait_settled(slab);
	pair_finish(s);
	slab_release(slab);
	slab_release(other);
	rig_fake_gpus_fini();
}
