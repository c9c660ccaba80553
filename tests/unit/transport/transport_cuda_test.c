/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport with the real processes of GPUs, which are files or real (rig_gpus.h): each
 * kind of memory, and a process that is killed, or a GPU that is lost, while bytes move.
 * transport_gpu_test.c has what does not depend on how a GPU does its work.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "ipc/base/name.h"
#include "tests/support/gpu/rig_gpus.h"
#include "tests/support/transport/transport_pair.h"
#include "tests/support/transport/transport_peer.h"
#include "transport/loop/ferry.h"

#define STAGING (16 * MIB)

#define MODES(name)                                                                                \
	PAIR_BOTH(transport_cuda, name)                                                            \
	Test(transport_cuda_rdma, name)                                                            \
	{                                                                                          \
		pair_rails = 1;                                                                    \
		name(MODE_RDMA);                                                                   \
	}                                                                                          \
	static void name(enum mode mode)

static const uint64_t odd_sizes[] = {
	1, 70000, 2 * MIB - 1, 0, 2 * MIB, 4 * MIB + 1, 9 * MIB + 13, 65536, 65537, 3, 1000000};
#define ODD (sizeof(odd_sizes) / sizeof(odd_sizes[0]))
static const uint64_t ten_chunks[] = {40 * MIB};

static struct pair *
start(const uint64_t *sizes, uint32_t count)
{
	rig_gpus_init(STAGING, false);
	return pair_new(sizes, count, CALM_NS);
}

static void
finish(struct pair *s)
{
	pair_finish(s);
	rig_gpus_fini();
}

/* Of a pair the first shard is the source's. */
static unsigned
gpu_of_reader(void)
{
	return rig_gpus_count() - 1;
}

static void
clear(struct rig_shard *shard)
{
	memset(shard->memory, 0, shard->bytes);
	rig_shard_put(shard);
}

static void
parts(struct pair *s, enum rig_memory from, enum rig_memory to)
{
	pair_parts_of(s, from, to, true);
}

static void
kill_process(unsigned gpu)
{
	pid_t pid = rig_gpus_pid(gpu);
	cr_assert_gt(pid, 0);
	kill(pid, SIGKILL);
}

/* Nothing runs in it until SIGCONT. */
static pid_t
stop_process(unsigned gpu)
{
	siginfo_t info;
	pid_t pid = rig_gpus_pid(gpu);
	cr_assert_gt(pid, 0);
	kill(pid, SIGSTOP);
	while (waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOWAIT) < 0)
		cr_assert_eq(errno, EINTR);
	return pid;
}

static void
arrives(struct pair *s, enum mode mode, enum rig_memory from, enum rig_memory to)
{
	clear(&s->reader);
	parts(s, from, to);
	/* Else it goes by TCP while a busy GPU makes it room. */
	s->reader_agent->require_rdma = mode == MODE_RDMA;
	pair_go(s, mode);
	pair_hash(s);
	const struct transport_event *done = pair_wait(s, TRANSPORT_DONE);
	cr_assert(rig_shards_equal(&s->source, &s->reader), "%d to %d", (int)from, (int)to);
	bool direct = mode == MODE_LOCAL && from == RIG_GPU && to == RIG_GPU;
	cr_assert_str_eq(done->transport, direct              ? "cuda-ipc"
					  : mode == MODE_TCP  ? "tcp"
					  : mode == MODE_RDMA ? "rdma-copy"
							      : "local");
	rig_wait(&s->rig, s->source_agent, TRANSPORT_HASHED, s->leg);
	struct xfer_part *plain = rig_part_of(&s->source, RIG_MAPPED, true);
	rig_add_digests(plain);
	for (uint32_t c = 0; c < s->source.table->num_chunks; c++)
		cr_assert(
			th_hash_equal(*xfer_part_digest(s->from, c), *xfer_part_digest(plain, c)));
	xfer_part_release(plain);
	pair_release(s);
	s->reader_agent->require_rdma = false;
}

MODES(one_piece_and_many_chunks__arrive)
{
	static const enum cuda_kind kinds[] = {CUDA_KIND_LEGACY, CUDA_KIND_CHUNKS};
	RIG_GPUS_NEED(CUDA_KIND_CHUNKS);
	rig_gpus_init(STAGING, false);
	for (uint32_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		rig_gpus_kind = kinds[i];
		struct pair *s = pair_new(odd_sizes, ODD, CALM_NS);
		arrives(s, mode, RIG_GPU, RIG_GPU);
		arrives(s, mode, RIG_GPU, RIG_MAPPED);
		arrives(s, mode, RIG_HOST, RIG_GPU);
		arrives(s, mode, RIG_PROCESS, RIG_GPU);
		arrives(s, mode, RIG_GPU_MAPPED, RIG_GPU_PROCESS);
		cr_assert_eq(rig_counters(s->reader_agent).checksum_failures, 0);
		pair_finish(s);
	}
	rig_gpus_fini();
}

MODES(between_two_gpus__arrives_by_the_process_of_each)
{
	if (rig_gpus_count() < RIG_GPUS)
		cr_skip_test("two GPUs are needed that reach each other: this machine has one");
	struct pair *s = start(odd_sizes, ODD);
	arrives(s, mode, RIG_GPU, RIG_GPU);
	cr_assert(rig_gpus_pid(0) != 0 && rig_gpus_pid(1) != 0);
	cr_assert_neq(rig_gpus_pid(0), rig_gpus_pid(1));
	finish(s);
}

MODES(within_one_gpu__arrives_by_one_process)
{
	rig_gpus_most = 1;
	struct pair *s = start(odd_sizes, ODD);
	arrives(s, mode, RIG_GPU, RIG_GPU);
	cr_assert_eq(rig_gpus_starts(), 1);
	finish(s);
}

/* How often both processes asked their driver for it. */
static unsigned
calls(int call)
{
	unsigned sum = 0;
	for (unsigned i = 0; i < rig_gpus_count(); i++)
		sum += machine_calls(rig_gpus_machine(), rig_gpus_pid(i), call);
	return sum;
}

/* More than 400 a chunk. What RDMA cuts off at the end of a slot may be too few for a launch. */
MODES(many_small_tensors__arrive_by_launches)
{
	static uint64_t sizes[1000];
	ONLY_ON_FILES();
	for (uint32_t i = 0; i < 1000; i++)
		sizes[i] = 9001 + i % 32;
	struct pair *s = start(sizes, 1000);
	arrives(s, mode, RIG_GPU, RIG_GPU);
	cr_assert_geq(calls(CALL_cuLaunchKernel), s->source.table->num_chunks);
	cr_assert_lt(calls(CALL_cuMemcpyDtoHAsync) + calls(CALL_cuMemcpyHtoDAsync) +
			     calls(CALL_cuMemcpyDtoDAsync),
		mode == MODE_RDMA ? 100 : 1);
	finish(s);
}

/* Of all GPUs. */
static struct gpu_status
sum(void)
{
	struct gpu_status status[RIG_GPUS], all = {0};
	uint32_t count = gpus_status(rig_gpus->gpus, status, RIG_GPUS);
	for (uint32_t i = 0; i < count; i++) {
		all.bytes_read += status[i].bytes_read;
		all.bytes_written += status[i].bytes_written;
		all.pinned_bytes += status[i].pinned_bytes;
	}
	return all;
}

Test(transport_cuda, to_the_host_and_back__no_byte_is_staged)
{
	struct gpus_stage_status stage;
	struct pair *s = start(ten_chunks, 1);
	arrives(s, MODE_LOCAL, RIG_GPU, RIG_HOST);
	while (sum().bytes_read < ten_chunks[0]) /* it is shown a little later */
		rig_pump(&s->rig, 1);
	cr_assert_geq(sum().pinned_bytes, ten_chunks[0]);
	pair_finish(s);
	s = pair_new(ten_chunks, 1, CALM_NS);
	arrives(s, MODE_LOCAL, RIG_HOST, RIG_GPU);
	while (sum().bytes_written < ten_chunks[0])
		rig_pump(&s->rig, 1);
	gpus_stage_status(rig_gpus->gpus, &stage);
	cr_assert_eq(stage.bytes + stage.bytes_copied, 0);
	finish(s);
}

/* The process of the GPU is given a file that it may only read. */
static void
let_only_read(int file)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	cr_assert(fd >= 0 && dup3(fd, file, O_CLOEXEC) == file);
	close(fd);
}

/* All other memory is reached as before, so it goes through the staging. */
Test(transport_cuda, host_memory_that_is_not_mapped__arrives_by_ferries)
{
	struct pair *s = start(ten_chunks, 1);
	for (uint32_t round = 0; round < 3; round++) {
		clear(&s->reader);
		parts(s, RIG_GPU, RIG_HOST);
		if (round == 0)
			let_only_read(s->reader.fd);
		pair_publish(s);
		pair_go(s, MODE_LOCAL);
		const char *why = pair_done(s, s->leg)->fallback;
		cr_assert(
			strstr(why, "by staging on the host: ") == why && strstr(why, "cannot map"),
			"round %u: %s", round, why);
		cr_assert_eq(rig_counters(s->reader_agent).gpu_fallbacks, round + 1);
		cr_assert(rig_shards_equal(&s->source, &s->reader), "round %u", round);
		cr_assert_gt(sum().bytes_read, 0);
		pair_release(s);
	}
	cr_assert_lt(sum().pinned_bytes, ten_chunks[0]);
	cr_assert_eq(rig_gpus_starts(), 1);
	finish(s);
}

/* The agent's memory that all GPUs pin, when there is some. */
static int
find_staging(void)
{
	char path[64], name[256];
	for (int fd = 3; fd < 1024; fd++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		ssize_t length = readlink(path, name, sizeof(name) - 1);
		name[length > 0 ? length : 0] = '\0';
		if (strncmp(name, "/memfd:thagentd-gpu-staging", 27) == 0)
			return fd;
	}
	return -1;
}

/* The processes of GPUs map none of it. What it was. */
static int
hide_staging(void)
{
	int staging = find_staging(), kept = fcntl(staging, F_DUPFD_CLOEXEC, staging + 1);
	cr_assert(staging >= 0 && kept > staging);
	let_only_read(staging);
	return kept;
}

/* It is the agent that fails, not the worker's memory: the next transfer finds it as it was. */
static void
fails_by_the_agent(struct pair *s, enum mode mode, bool reads)
{
	char why[TH_CTL_TEXT_BYTES];
	parts(s, reads ? RIG_GPU : RIG_MAPPED, reads ? RIG_MAPPED : RIG_GPU);
	pair_publish(s);
	int kept = hide_staging();
	pair_go(s, mode);
	const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
	cr_assert_eq(failed->code, TH_E_LIMIT, "%s", failed->text);
	cr_assert_eq(failed->source_failed, reads);
	cr_assert(strstr(failed->text, mode == MODE_TCP ? "its log" : "cannot map"), "%s",
		failed->text);
	if (mode == MODE_TCP && reads)
		cr_assert_eq(rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, s->leg)->code,
			TH_E_LIMIT);
	cr_assert_eq(xfer_part_lost(s->from, why, sizeof(why)), 0);
	cr_assert_eq(xfer_part_lost(s->to, why, sizeof(why)), 0);
	cr_assert_geq(dup3(kept, find_staging(), O_CLOEXEC), 0);
	close(kept);
	s->leg++;
	pair_go(s, mode);
	pair_done(s, s->leg);
	cr_assert(rig_shards_equal(&s->source, &s->reader));
}

PAIR_TESTS(transport_cuda, staging_not_mapped_at_the_source__ends_the_transfer_alone)
{
	struct pair *s = start(ten_chunks, 1);
	fails_by_the_agent(s, mode, true);
	finish(s);
}

PAIR_TESTS(transport_cuda, staging_not_mapped_at_the_reader__ends_the_transfer_alone)
{
	struct pair *s = start(ten_chunks, 1);
	fails_by_the_agent(s, mode, false);
	finish(s);
}

Test(transport_cuda, staging_not_mapped__digests_fail_with_the_reason)
{
	char why[TH_CTL_TEXT_BYTES];
	struct pair *s = start(odd_sizes, ODD);
	parts(s, RIG_GPU_PROCESS, RIG_MAPPED);
	close(hide_staging());
	pair_hash(s);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_HASH_FAILED, s->leg);
	cr_assert_eq(xfer_part_lost(s->from, why, sizeof(why)), TH_E_LIMIT);
	cr_assert(strstr(why, "cannot map"), "%s", why);
	finish(s);
}

/* By the CPU, at each end. */
Test(transport_cuda, staging_that_others_keep__bytes_are_copied_once_more_and_counted)
{
	struct gpus_stage_status stage;
	uint8_t *kept[STAGING / GPUS_BLOCK_BYTES];
	uint32_t count = 0;
	struct pair *s = start(ten_chunks, 1);
	struct gpus *gpus = rig_gpus->gpus;
	arrives(s, MODE_TCP, RIG_GPU, RIG_GPU);
	gpus_stage_status(gpus, &stage);
	cr_assert_eq(stage.bytes_copied, 0, "bytes come and go in blocks of the staging");
	while ((kept[count] = gpus_block_take(gpus, NULL)) != NULL)
		count++;
	cr_assert_gt(count, 0);
	arrives(s, MODE_TCP, RIG_GPU, RIG_GPU);
	gpus_stage_status(gpus, &stage);
	cr_assert_eq(stage.bytes_copied, 2 * ten_chunks[0]);
	for (uint32_t i = 0; i < count; i++)
		gpus_block_give(gpus, kept[i]);
	finish(s);
}

/* Of the host's memory, because no NIC takes that of the GPUs; which both have pinned. */
Test(transport_cuda_rdma, slabs_of_the_host__no_byte_is_staged)
{
	struct gpus_stage_status stage;
	pair_rails = 1;
	rig_no_dmabufs = true;
	struct pair *s = start(ten_chunks, 1);
	for (uint32_t round = 0; round < 2; round++) {
		arrives(s, MODE_RDMA, RIG_GPU, RIG_GPU);
		/* They begin again in the next ones, and in slabs that were there. */
		for (unsigned i = 0; i < rig_gpus_count(); i++)
			kill_process(i);
	}
	gpus_stage_status(rig_gpus->gpus, &stage);
	cr_assert_eq(stage.bytes, 0);
	cr_assert_geq(rig_gpus_starts(), rig_gpus_count() + 1);
	finish(s);
}

/* What runs in it begins again in the next one. */
MODES(process_killed_midway__arrives)
{
	RIG_GPUS_NEED(CUDA_KIND_CHUNKS);
	rig_gpus_kind = CUDA_KIND_CHUNKS;
	struct pair *s = start(ten_chunks, 1);
	for (uint32_t round = 0; round < 3; round++) {
		clear(&s->reader);
		parts(s, RIG_GPU, RIG_GPU);
		pair_publish(s);
		pair_go(s, mode);
		rig_wait_prefix(&s->rig, s->to, 2 * round);
		/* A copy between GPUs needs the reader's alone. */
		pid_t pid = rig_gpus_pid(
			mode == MODE_LOCAL ? gpu_of_reader() : round % rig_gpus_count());
		cr_assert_neq(pid, 0);
		kill(pid, SIGKILL);
		pair_wait(s, TRANSPORT_DONE);
		cr_assert(rig_shards_equal(&s->source, &s->reader), "round %u", round);
		pair_release(s);
	}
	cr_assert_geq(rig_gpus_starts(), rig_gpus_count() + 1);
	finish(s);
}

/* The next one has none of the host's memory, and is told of it again. */
Test(transport_cuda, process_killed_while_it_writes_to_the_host__arrives)
{
	struct pair *s = start(ten_chunks, 1);
	for (uint32_t round = 0; round < 3; round++) {
		clear(&s->reader);
		parts(s, RIG_GPU, RIG_HOST);
		pair_publish(s);
		pair_go(s, MODE_LOCAL);
		rig_wait_prefix(&s->rig, s->to, 2 * round);
		kill_process(0);
		pair_wait(s, TRANSPORT_DONE);
		cr_assert(rig_shards_equal(&s->source, &s->reader), "round %u", round);
		pair_release(s);
	}
	cr_assert_geq(rig_gpus_starts(), 2);
	finish(s);
}

Test(transport_cuda, process_killed_while_it_hashes__hashed)
{
	struct pair *s = start(ten_chunks, 1);
	for (uint32_t round = 0; round < 3; round++) {
		parts(s, RIG_GPU, RIG_MAPPED);
		pair_hash(s);
		rig_wait_prefix(&s->rig, s->from, round);
		kill_process(0);
		rig_wait(&s->rig, s->source_agent, TRANSPORT_HASHED, s->leg);
		pair_release(s);
	}
	finish(s);
}

MODES(readers_gpu_lost__no_way_and_why)
{
	ONLY_ON_FILES();
	struct pair *s = start(ten_chunks, 1);
	parts(s, RIG_GPU, RIG_GPU);
	rig_add_digests(s->from);
	xfer_part_advance(s->from, 3);
	pair_go(s, mode);
	rig_wait_prefix(&s->rig, s->to, 3);
	machine_lose(rig_gpus_machine(), (int)gpu_of_reader(), CUDA_ERROR_ECC_UNCORRECTABLE);
	xfer_part_advance(s->from, 10);
	const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
	cr_assert_eq(failed->code, TH_E_MEMORY_KIND, "%s", failed->text);
	cr_assert_not(failed->source_failed);
	cr_assert(strstr(failed->text, "CUDA_ERROR_ECC_UNCORRECTABLE"), "%s", failed->text);
	finish(s);
}

static uint32_t
running(void)
{
	struct gpu_status status[RIG_GPUS];
	uint32_t all = 0, count = gpus_status(rig_gpus->gpus, status, RIG_GPUS);
	for (uint32_t i = 0; i < count; i++)
		all += status[i].running;
	return all;
}

/* So many, or more; 0: none. */
static void
wait_running(struct rig *rig, uint32_t count)
{
	int64_t until_ns = th_now_ns() + INT64_C(30000000000);
	while (count == 0 ? running() > 0 : running() < count) {
		cr_assert_lt(th_now_ns(), until_ns, "%u run, not %u", running(), count);
		rig_pump(rig, 1);
	}
}

/* ---- copies while bytes move ---------------------------------------------------------- */

/* With little room: most of what is asked for stays with the source. */
static int
join_with_little_room(const struct peer_setup *s, uint64_t leg, const uint8_t key[FRAME_KEY_BYTES])
{
	int room = 64 << 10, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)), 0);
	peer_dial_with(fd, s->agent);
	peer_put_frame(fd,
		&(struct frame){.kind = FRAME_JOIN, .leg = leg, .bytes = FRAME_KEY_BYTES}, key,
		FRAME_KEY_BYTES);
	return fd;
}

/* What comes from *at on, of chunks in their order, up to end. */
static void
take_until(const struct peer_setup *s, int fd, uint64_t *at, uint64_t end)
{
	static uint8_t data[FERRY_BYTES];
	while (*at < end) {
		if (*at % CHUNK == 0)
			cr_assert_eq(peer_get_frame(fd).first, *at / CHUNK);
		uint64_t bytes = th_min_u64(FERRY_BYTES - *at % FERRY_BYTES, end - *at);
		peer_get(fd, data, bytes);
		cr_assert_eq(memcmp(data, s->shard.tensors[0] + *at, bytes), 0);
		*at += bytes;
	}
}

/* One block is all that a source has which reads the next when the last is sent. */
Test(transport_cuda, reader_does_not_read__next_blocks_are_copied_meanwhile)
{
	uint8_t key[FRAME_KEY_BYTES];
	uint64_t copied = 0, sent = 0, at = 0;
	rig_gpus_init(STAGING, false);
	rig_of_sources = RIG_GPU;
	struct peer_setup *s = peer_start(8);
	int control = peer_enter(s, 1, s->part, key);
	int data = join_with_little_room(s, 1, key);
	peer_ask(data, 1, 0, 8);
	rig_wait(&s->rig, s->agent, TRANSPORT_STALLED, 1);
	int64_t until_ns = th_now_ns() + INT64_C(30000000000);
	while (copied <= sent + FERRY_BYTES) {
		cr_assert_lt(th_now_ns(), until_ns, "%" PRIu64 " copied, %" PRIu64 " sent", copied,
			sent);
		rig_pump(&s->rig, 1);
		copied = sum().bytes_read; /* first: what is sent meanwhile makes it no more */
		sent = rig_counters(s->agent).bytes_out;
	}
	/* They come without the GPU, the others with it. */
	pid_t pid = stop_process(0);
	take_until(s, data, &at, copied);
	kill(pid, SIGCONT);
	take_until(s, data, &at, peer_eight_chunks[0]);
	close(data);
	close(control);
	peer_finish(s);
	rig_gpus_fini();
}

/* One chunk comes by one connection. */
Test(transport_cuda, gpu_does_not_write__next_blocks_are_received_meanwhile)
{
	static const uint64_t one_chunk[] = {4 * MIB};
	struct pair *s = start(one_chunk, 1);
	cr_assert_eq(s->source.table->num_chunks, 1);
	arrives(s, MODE_TCP, RIG_MAPPED, RIG_GPU);
	clear(&s->reader);
	parts(s, RIG_MAPPED, RIG_GPU);
	pair_publish(s);
	wait_running(&s->rig, 0);
	pid_t pid = stop_process(gpu_of_reader());
	pair_go(s, MODE_TCP);
	wait_running(&s->rig, 2);
	kill(pid, SIGCONT);
	pair_done(s, s->leg);
	finish(s);
}

/* ---- what is there already ------------------------------------------------------------ */

/* The reader holds what is published, but for the first bytes of so many chunks. */
static void
move_again(struct pair *s, enum mode mode, uint32_t changed)
{
	memcpy(s->reader.memory, s->source.memory, s->source.bytes);
	for (uint32_t chunk = 0; chunk < changed; chunk++)
		s->reader.tensors[0][chunk * 4 * MIB] ^= 1;
	rig_shard_put(&s->reader);
	parts(s, RIG_GPU, RIG_GPU);
	pair_publish(s);
	xfer_part_expect_reuse(s->to);
	pair_go(s, mode);
}

static void
does_not_move(enum mode mode, bool hash_on_cpu)
{
	static const enum cuda_kind kinds[] = {CUDA_KIND_LEGACY, CUDA_KIND_CHUNKS};
	RIG_GPUS_NEED(CUDA_KIND_CHUNKS);
	rig_gpus_init(STAGING, hash_on_cpu);
	for (uint32_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		rig_gpus_kind = kinds[i];
		struct pair *s = pair_new(odd_sizes, ODD, CALM_NS);
		move_again(s, mode, 0);
		cr_assert_eq(pair_done(s, s->leg)->bytes_reused, s->source.table->bytes);
		pair_release(s);
		move_again(s, mode, 1);
		const struct transport_event *done = pair_done(s, s->leg);
		cr_assert(done->bytes_moved > 0 && done->bytes_moved <= 4 * MIB);
		pair_finish(s);
	}
	rig_gpus_fini();
}

MODES(bytes_that_are_here_already__do_not_move)
{
	does_not_move(mode, false);
}

Test(transport_cuda, gpu_that_does_not_hash__nor_do_they)
{
	does_not_move(MODE_TCP, true);
}

/* A leg whose looks are all under way, at the reader's GPU: that does not go on. */
static pid_t
stop_while_it_looks(struct pair *s, enum mode mode)
{
	arrives(s, mode, RIG_GPU, RIG_GPU);
	pid_t pid = stop_process(gpu_of_reader());
	move_again(s, mode, 0);
	wait_running(&s->rig, 1);
	return pid;
}

/* They begin again in the next one, and say the same. */
MODES(process_killed_while_it_looks__nothing_moves)
{
	struct pair *s = start(ten_chunks, 1);
	kill(stop_while_it_looks(s, mode), SIGKILL);
	cr_assert_eq(pair_done(s, s->leg)->bytes_moved, 0);
	cr_assert_eq(rig_gpus_starts(), rig_gpus_count() + 1);
	finish(s);
}

MODES(gpu_lost_while_it_looks__no_way_and_why)
{
	ONLY_ON_FILES();
	struct pair *s = start(ten_chunks, 1);
	pid_t pid = stop_while_it_looks(s, mode);
	machine_lose(rig_gpus_machine(), (int)gpu_of_reader(), CUDA_ERROR_ECC_UNCORRECTABLE);
	kill(pid, SIGCONT);
	const struct transport_event *failed = pair_wait(s, TRANSPORT_FAILED);
	cr_assert_eq(failed->code, TH_E_MEMORY_KIND, "%s", failed->text);
	cr_assert_not(failed->source_failed);
	cr_assert(strstr(failed->text, "CUDA_ERROR_ECC_UNCORRECTABLE"), "%s", failed->text);
	finish(s);
}

/* Who stops waits for no look: the memory is the worker's again while they are under way. */
MODES(stopped_while_it_looks__at_once)
{
	struct pair *s = start(ten_chunks, 1);
	pid_t pid = stop_while_it_looks(s, mode);
	transport_stop(s->reader_agent->transport, s->leg);
	pair_wait(s, TRANSPORT_STOPPED);
	cr_assert_gt(running(), 0);
	kill(pid, SIGCONT);
	finish(s);
}

/* The last of a worker's parts and its space go: nobody keeps its memory. */
Test(transport_cuda, all_let_go__the_memory_is_free)
{
	ONLY_ON_FILES();
	struct pair *s = start(ten_chunks, 1);
	arrives(s, MODE_TCP, RIG_GPU, RIG_GPU);
	struct machine *machine = rig_gpus_machine();
	pid_t pid = rig_gpus_pid(0);
	cr_assert_gt(machine_holds(machine, pid, HELD_IMPORTS), 0);
	pair_release(s);
	rig_gpus->unshare(s->source.space);
	s->source.space = NULL;
	int64_t until_ns = th_now_ns() + INT64_C(30000000000);
	while (machine_holds(machine, pid, HELD_IMPORTS) > 0) {
		cr_assert_lt(th_now_ns(), until_ns);
		rig_pump(&s->rig, 1);
	}
	finish(s);
}
