/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_test - segment, ring and doorbell: both sides in one process, and one side lying.
 */
#include "ipc/shm/ring.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/shm/doorbell.h"
#include "ipc/shm/segment.h"

static struct segment_agent agent_segment;
static struct segment_worker worker_segment;
static struct ring_agent agent;
static struct ring_worker worker;

static void
setup(void)
{
	cr_assert_eq(segment_agent_new(&agent_segment), 0);
	cr_assert_eq(
		segment_worker_map(agent_segment.fd_w, agent_segment.fd_a, &worker_segment), 0);
	ring_agent_init(&agent, agent_segment.w, agent_segment.a);
	ring_worker_init(&worker, worker_segment.w, worker_segment.a);
}

static void
teardown(void)
{
	segment_worker_unmap(&worker_segment);
	segment_agent_free(&agent_segment);
}

TestSuite(ring, .init = setup, .fini = teardown);

static struct shm_submission
a_submission(uint64_t op_seq)
{
	struct shm_submission submission = {.op_seq = op_seq,
		.kind = SHM_PUBLISH,
		.slot = (uint16_t)(op_seq % SHM_CAPACITY),
		.flags = 3,
		.deadline_ns = -1,
		.version_spec = "17"};

	return submission;
}

static int
poll_in(int fd)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

	return poll(&poll_fd, 1, 0);
}

/* ---- segment ------------------------------------------------------------------------------- */

Test(ring, segment__file_a__cannot_be_written_by_the_worker)
{
	char byte = 1;

	cr_assert_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, agent_segment.fd_a, 0),
		MAP_FAILED);
	cr_assert_eq(errno, EPERM);
	cr_assert_eq(pwrite(agent_segment.fd_a, &byte, 1, 0), -1);
	cr_assert_eq(ftruncate(agent_segment.fd_a, 0), -1);
	cr_assert_eq(ftruncate(agent_segment.fd_w, 0), -1);
	cr_assert_eq(ftruncate(agent_segment.fd_w, 1 << 20), -1);
}

static int
a_file(size_t bytes, int seals, uint32_t magic, uint32_t layout_id, uint32_t capacity)
{
	const uint32_t header[4] = {magic, layout_id, capacity, 0};
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	cr_assert_eq(ftruncate(fd, (off_t)bytes), 0);
	cr_assert_eq(pwrite(fd, header, sizeof(header), 0), 16);
	cr_assert_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

Test(ring, segment_map__anything_wrong__is_refused)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	const struct {
		size_t bytes;
		int seals;
		uint32_t magic, layout_id, capacity;
	} bad[] = {
		{sizeof(struct shm_w) - 1, seals, SHM_MAGIC_W, 1, 64},
		{sizeof(struct shm_w) + 1, seals, SHM_MAGIC_W, 1, 64},
		{0 + 16, seals, SHM_MAGIC_W, 1, 64},
		{sizeof(struct shm_w), F_SEAL_GROW | F_SEAL_SEAL, SHM_MAGIC_W, 1, 64},
		{sizeof(struct shm_w), F_SEAL_SHRINK | F_SEAL_GROW, SHM_MAGIC_W, 1, 64},
		{sizeof(struct shm_w), seals, SHM_MAGIC_A, 1, 64},
		{sizeof(struct shm_w), seals, SHM_MAGIC_W, 2, 64},
		{sizeof(struct shm_w), seals, SHM_MAGIC_W, 1, 128},
	};
	struct segment_worker none = {0};

	for (size_t i = 0; i < TH_ARRAY_LEN(bad); i++) {
		int fd = a_file(bad[i].bytes, bad[i].seals, bad[i].magic, bad[i].layout_id,
			bad[i].capacity);
		cr_assert_eq(
			segment_worker_map(fd, agent_segment.fd_a, &none), -EPROTO, "case %zu", i);
		th_fd_close(&fd);
	}
	/* A writable file in the place of A, and no memfd at all. */
	int fd = a_file(sizeof(struct shm_a), seals, SHM_MAGIC_A, 1, 64);
	cr_assert_eq(segment_worker_map(agent_segment.fd_w, fd, &none), -EPROTO);
	th_fd_close(&fd);
	fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	cr_assert_eq(segment_worker_map(fd, agent_segment.fd_a, &none), -EPROTO);
	th_fd_close(&fd);
	cr_assert_null(none.w);
	cr_assert_null(none.a);
}

Test(ring, segment__forked_child__has_no_mapping)
{
	pid_t child = fork();

	if (child == 0) {
		unsigned char present;
		_exit(mincore(worker_segment.w, 1, &present) < 0 && errno == ENOMEM ? 0 : 1);
	}
	int status = 0;
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_assert(WIFEXITED(status));
	cr_assert_eq(WEXITSTATUS(status), 0);
}

/* ---- submissions --------------------------------------------------------------------------- */

Test(ring, take__nothing_submitted__is_0)
{
	struct shm_submission submission;

	cr_assert_eq(ring_take(&agent, &submission), 0);
}

Test(ring, push_and_take__three_times_round__keeps_order_and_content)
{
	for (uint64_t i = 0; i < 3 * SHM_CAPACITY + 5; i++) {
		struct shm_submission in = a_submission(i), out;
		cr_assert_eq(ring_push(&worker, &in), 0);
		cr_assert_eq(ring_take(&agent, &out), 1);
		cr_assert_eq(memcmp(&in, &out, sizeof(in)), 0);
	}
}

Test(ring, push__full__is_eagain_until_one_is_taken)
{
	struct shm_submission submission = a_submission(1);

	for (unsigned i = 0; i < SHM_CAPACITY; i++)
		cr_assert_eq(ring_push(&worker, &submission), 0);
	cr_assert_eq(ring_push(&worker, &submission), -EAGAIN);
	cr_assert_eq(ring_take(&agent, &submission), 1);
	cr_assert_eq(ring_push(&worker, &submission), 0);
	cr_assert_eq(ring_push(&worker, &submission), -EAGAIN);
}

Test(ring, push__agent_says_it_took_more_than_there_was__is_eproto)
{
	struct shm_submission submission = a_submission(1);

	atomic_store(&agent_segment.a->consumed, 1);
	cr_assert_eq(ring_push(&worker, &submission), -EPROTO);
}

Test(ring, take__impossible_index__is_eproto)
{
	const uint64_t bad[] = {SHM_CAPACITY + 1, UINT64_MAX, UINT64_C(1) << 63};
	struct shm_submission submission;

	for (size_t i = 0; i < TH_ARRAY_LEN(bad); i++) {
		atomic_store(&worker_segment.w->submitted, bad[i]);
		cr_assert_eq(ring_take(&agent, &submission), -EPROTO);
	}
	/* Backwards is a distance of nearly 2^64. */
	atomic_store(&worker_segment.w->submitted, 0);
	submission = a_submission(0);
	cr_assert_eq(ring_push(&worker, &submission), 0);
	cr_assert_eq(ring_take(&agent, &submission), 1);
	atomic_store(&worker_segment.w->submitted, 0);
	cr_assert_eq(ring_take(&agent, &submission), -EPROTO);
}

Test(ring, take__bad_record__is_eproto)
{
	for (int bad = 0; bad < 8; bad++) {
		struct shm_submission submission = a_submission(1), out;
		switch (bad) {
		case 0:
			submission.kind = 0;
			break;
		case 1:
			submission.kind = SHM_FOLLOW + 1;
			break;
		case 2:
			submission.slot = SHM_CAPACITY;
			break;
		case 3:
			submission.deadline_ns = -2;
			break;
		case 4:
			memset(submission.version_spec, '1', sizeof(submission.version_spec));
			break;
		case 5:
			submission.version_spec[10] = 'x';
			break;
		case 6:
			submission.reserved[7] = 1;
			break;
		default:
			submission.slot = UINT16_MAX;
			break;
		}
		teardown();
		setup();
		cr_assert_eq(ring_push(&worker, &submission), 0);
		cr_assert_eq(ring_take(&agent, &out), -EPROTO, "case %d", bad);
	}
}

/* The copy counts: what the worker changes after the take has no effect. */
Test(ring, take__record_changed_afterwards__copy_stays)
{
	struct shm_submission submission = a_submission(9), out;

	cr_assert_eq(ring_push(&worker, &submission), 0);
	cr_assert_eq(ring_take(&agent, &out), 1);
	worker_segment.w->submissions[0].slot = UINT16_MAX;
	cr_assert_eq(out.slot, 9);
}

/* ---- completions --------------------------------------------------------------------------- */

Test(ring, complete_and_pop__three_times_round__keeps_order)
{
	struct shm_completion out;

	for (uint64_t i = 0; i < 3 * SHM_CAPACITY + 5; i++) {
		struct shm_completion in = {.op_seq = i, .slot = (uint16_t)(i % 64), .code = -5003};
		cr_assert_not(ring_pending(&worker));
		cr_assert_eq(ring_complete(&agent, &in), 0);
		cr_assert(ring_pending(&worker));
		cr_assert_eq(ring_pop(&worker, &out), 1);
		cr_assert_eq(out.op_seq, i);
		cr_assert_eq(out.code, -5003);
		cr_assert_eq(ring_pop(&worker, &out), 0);
	}
}

Test(ring, complete__worker_collects_nothing__is_eproto_at_the_65th)
{
	const struct shm_completion completion = {.op_seq = 1};

	for (unsigned i = 0; i < SHM_CAPACITY; i++)
		cr_assert_eq(ring_complete(&agent, &completion), 0);
	cr_assert_eq(ring_complete(&agent, &completion), -EPROTO);
}

Test(ring, complete__worker_collected_what_was_never_there__is_eproto)
{
	const struct shm_completion completion = {.op_seq = 1};

	atomic_store(&worker_segment.w->collected, 5);
	cr_assert_eq(ring_complete(&agent, &completion), -EPROTO);
}

Test(ring, pop__impossible_index_or_slot__is_eproto)
{
	struct shm_completion completion = {.op_seq = 1, .slot = SHM_CAPACITY};

	cr_assert_eq(ring_complete(&agent, &completion), 0);
	cr_assert_eq(ring_pop(&worker, &completion), -EPROTO);
	atomic_store(&agent_segment.a->completed, SHM_CAPACITY + 1);
	cr_assert_eq(ring_pop(&worker, &completion), -EPROTO);
}

/* ---- slot and line ------------------------------------------------------------------------- */

Test(ring, slot__written__is_read_back_whole_and_progress_stays)
{
	struct shm_slot in = {.state = SHM_SLOT_DONE,
		.op_seq = 7,
		.code = -5007,
		.version = 17,
		.group_op_seq = 3,
		.transport = "tcp",
		.source = "trainer",
		.sentence = "tensor w differs"};
	struct shm_slot out;
	uint64_t done, total;

	ring_slot_progress(&agent, 63, 10, 20);
	ring_slot_write(&agent, 63, &in);
	cr_assert_eq(ring_slot_read(&worker, 63, &out), 0);
	cr_assert_eq(out.state, SHM_SLOT_DONE);
	cr_assert_eq(out.op_seq, 7);
	cr_assert_eq(out.code, -5007);
	cr_assert_eq(out.version, 17);
	cr_assert_eq(out.group_op_seq, 3);
	cr_assert_str_eq(out.transport, "tcp");
	cr_assert_str_eq(out.source, "trainer");
	cr_assert_str_eq(out.sentence, "tensor w differs");
	ring_progress(&worker, 63, 7, &done, &total);
	cr_assert_eq(done, 10);
	cr_assert_eq(total, 20);
	ring_progress(&worker, 63, 8, &done, &total);
	cr_assert_eq(done, 0);
	cr_assert_eq(total, 0);
}

Test(ring, slot_read__texts_without_end__are_terminated)
{
	static struct shm_slot in, out;

	memset(in.transport, 'x', sizeof(in.transport));
	memset(in.source, 'x', sizeof(in.source));
	memset(in.sentence, 'x', sizeof(in.sentence));
	ring_slot_write(&agent, 0, &in);
	cr_assert_eq(ring_slot_read(&worker, 0, &out), 0);
	cr_assert_eq(strlen(out.transport), sizeof(out.transport) - 1);
	cr_assert_eq(strlen(out.source), sizeof(out.source) - 1);
	cr_assert_eq(strlen(out.sentence), sizeof(out.sentence) - 1);
}

Test(ring, line__new_session__holds_nothing_and_is_safe)
{
	struct shm_line line;

	cr_assert_eq(ring_line_read(&worker, &line), 0);
	cr_assert_eq(line.held_version, UINT64_MAX);
	cr_assert_eq(line.ready_version, UINT64_MAX);
	cr_assert_eq(line.safe_to_mutate, 1);
}

Test(ring, line__agent_dies_in_a_write__reader_ends_and_next_writer_recovers)
{
	struct shm_line line = {.held_version = 5,
		.generation = 9,
		.events = {1, 2, 3, 4, 5, 6, 7, 8, 9},
		.ready_version = 8};
	struct shm_line out = {.generation = 77};

	atomic_store(&agent_segment.a->line.sequence, 7);
	cr_assert_eq(ring_line_read(&worker, &out), -EAGAIN);
	cr_assert_eq(out.generation, 77);
	uint16_t events[SHM_EV_COUNT] = {7, 7, 7, 7, 7, 7, 7, 7, 7};
	ring_events_read(&worker, events); /* these it can */
	cr_assert_eq(memcmp(events, agent_segment.a->line.events, sizeof(events)), 0);
	ring_line_write(&agent, &line);
	ring_events_read(&worker, events);
	cr_assert_eq(memcmp(events, line.events, sizeof(events)), 0);
	cr_assert_eq(ring_line_read(&worker, &out), 0);
	cr_assert_eq(out.held_version, 5);
	cr_assert_eq(out.generation, 9);
	cr_assert_eq(out.ready_version, 8);
	cr_assert_eq(memcmp(out.events, line.events, sizeof(line.events)), 0);
	atomic_store(&agent_segment.a->slots[3].sequence, 1);
	struct shm_slot slot;
	cr_assert_eq(ring_slot_read(&worker, 3, &slot), -EAGAIN);
}

/* ---- doorbell ------------------------------------------------------------------------------ */

Test(ring, doorbell__ring__only_a_sleeper_is_rung)
{
	_Atomic uint32_t sleeping = 0;
	int fd = doorbell_new();

	cr_assert_geq(fd, 0);
	cr_assert_eq(doorbell_ring(fd, &sleeping), 0);
	cr_assert_eq(poll_in(fd), 0);
	doorbell_arm(&sleeping);
	cr_assert_eq(doorbell_ring(fd, &sleeping), 1);
	cr_assert_eq(poll_in(fd), 1);
	cr_assert_eq(doorbell_drain(fd), 1);
	cr_assert_eq(doorbell_drain(fd), 0);
	cr_assert_eq(poll_in(fd), 0);
	doorbell_disarm(&sleeping);
	cr_assert_eq(doorbell_ring(fd, &sleeping), 0);
	th_fd_close(&fd);
	cr_assert_eq(doorbell_signal(-1), -EBADF);
	cr_assert_eq(doorbell_drain(-1), -EBADF);
}

Test(ring, doorbell__other_side_fills_it_or_makes_it_blocking__nobody_waits, .timeout = 5)
{
	const uint64_t full = UINT64_MAX - 1;
	int fd = doorbell_new();

	cr_assert_eq(write(fd, &full, sizeof(full)), (ssize_t)sizeof(full));
	cr_assert_eq(doorbell_signal(fd), 0);
	cr_assert_eq(fcntl(fd, F_SETFL, 0), 0);
	cr_assert_eq(doorbell_signal(fd), -EPROTO);
	cr_assert_eq(doorbell_drain(fd), 1);
	cr_assert_eq(doorbell_drain(fd), 0);
	th_fd_close(&fd);
}

Test(ring, doorbell_timer__ring__only_a_sleeper_is_rung)
{
	_Atomic uint32_t sleeping = 0;
	struct pollfd bell = {.fd = doorbell_timer_new(), .events = POLLIN};

	cr_assert_geq(bell.fd, 0);
	cr_assert_eq(doorbell_timer_ring(bell.fd, &sleeping), 0);
	cr_assert_eq(doorbell_drain(bell.fd), 0);
	doorbell_arm(&sleeping);
	for (int i = 0; i < 1000; i++) {
		cr_assert_eq(doorbell_timer_ring(bell.fd, &sleeping), 1);
		cr_assert_eq(doorbell_timer_signal(bell.fd), 0);
		cr_assert_eq(poll(&bell, 1, 20000), 1);
		/* A timer that is set again is not readable for a moment. */
		cr_assert_eq(doorbell_drain(bell.fd), 1);
		cr_assert_eq(doorbell_drain(bell.fd), 0);
	}
	th_fd_close(&bell.fd);
	cr_assert_eq(doorbell_timer_signal(-1), -EBADF);
}

static _Atomic uint64_t signalled;
static _Atomic bool stop_signalling;

static void *
signal_for_ever(void *arg)
{
	int fd = *(const int *)arg;

	while (!stop_signalling) {
		cr_assert_eq(doorbell_timer_signal(fd), 0);
		signalled++;
	}
	return NULL;
}

/* What a hostile worker does to the bell, at any moment of the signalling. */
Test(ring, doorbell_timer__other_side_makes_it_blocking_and_fills_it__nobody_waits, .timeout = 60)
{
	static const struct itimerspec often = {{.tv_nsec = 1}, {.tv_nsec = 1}};
	const uint64_t full = UINT64_MAX - 1;
	int fd = doorbell_timer_new();
	pthread_t thread;

	cr_assert_eq(pthread_create(&thread, NULL, signal_for_ever, &fd), 0);
	for (int i = 0; i < 20000; i++) {
		cr_assert_eq(fcntl(fd, F_SETFL, (i & 1) ? O_NONBLOCK : 0), 0);
		cr_assert_eq(write(fd, &full, sizeof(full)), -1);
		cr_assert_eq(timerfd_settime(fd, TFD_TIMER_ABSTIME, &often, NULL), 0);
	}
	uint64_t before = signalled;
	while (signalled == before) /* the test's limit ends this */
		(void)sched_yield();
	stop_signalling = true;
	cr_assert_eq(pthread_join(thread, NULL), 0);
	th_fd_close(&fd);
}
