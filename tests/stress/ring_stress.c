/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_stress - a worker thread and an agent thread over one session: a million operations, each
 * side sleeping whenever it finds nothing. A lost wake-up shows as a poll that times out, a torn
 * record as a sum that does not match. Plain main, so that it runs under ThreadSanitizer.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "ipc/shm/doorbell.h"
#include "ipc/shm/ring.h"
#include "ipc/shm/segment.h"

#define OPERATIONS UINT64_C(1000000)
#define LOST_MS 20000 /* nobody is off its CPU for that long */

static struct segment_agent files;
static struct segment_worker mapped;
static int bell_agent, bell_worker;

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			(void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);      \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static void
sleep_on(int bell)
{
	struct pollfd poll_fd = {.fd = bell, .events = POLLIN};
	int rc;

	do {
		rc = poll(&poll_fd, 1, LOST_MS);
	} while (rc < 0 && errno == EINTR);
	CHECK(rc == 1); /* 0: a wake-up was lost */
	CHECK(doorbell_drain(bell) >= 0);
}

static void
finish(struct ring_agent *ring, const struct shm_submission *submission)
{
	const struct shm_completion completion = {.op_seq = submission->op_seq,
		.slot = submission->slot,
		.code = -(int32_t)(submission->op_seq % 5000)};
	const struct shm_slot slot = {.state = SHM_SLOT_DONE,
		.op_seq = submission->op_seq,
		.lineage = submission->op_seq * 3,
		.version = submission->op_seq * 7};
	const struct shm_line line = {.held_lineage = submission->op_seq,
		.held_version = submission->op_seq + 1,
		.generation = submission->op_seq + 2};

	ring_slot_progress(ring, submission->slot, submission->op_seq, submission->op_seq);
	ring_slot_write(ring, submission->slot, &slot);
	ring_line_write(ring, &line);
	CHECK(ring_complete(ring, &completion) == 0);
	CHECK(doorbell_ring(bell_worker, &files.w->sleeping) >= 0);
}

static void *
agent_main(void *arg)
{
	struct ring_agent ring;
	struct shm_submission submission;

	ring_agent_init(&ring, files.w, files.a);
	while (ring.consumed < OPERATIONS) {
		int rc = ring_take(&ring, &submission);
		CHECK(rc >= 0);
		if (rc == 1) {
			CHECK(submission.op_seq == ring.consumed - 1);
			finish(&ring, &submission);
			continue;
		}
		doorbell_arm(&files.a->sleeping);
		rc = ring_take(&ring, &submission);
		CHECK(rc >= 0);
		if (rc == 0)
			sleep_on(bell_agent);
		doorbell_disarm(&files.a->sleeping);
		if (rc == 1)
			finish(&ring, &submission);
	}
	return arg;
}

static void
check_line(const struct ring_worker *ring, uint64_t *last)
{
	struct shm_line line;

	if (ring_line_read(ring, &line) < 0)
		return; /* the other thread is off its CPU in the middle of a write */
	CHECK(line.held_lineage + 2 == line.generation || line.held_version == UINT64_MAX);
	CHECK(line.held_version == UINT64_MAX || line.held_version + 1 == line.generation);
	CHECK(line.generation >= *last);
	*last = line.generation;
}

static void
collect(struct ring_worker *ring, const struct shm_completion *completion, uint64_t expected)
{
	struct shm_slot slot;

	CHECK(completion->op_seq == expected);
	CHECK(completion->code == -(int32_t)(expected % 5000));
	CHECK(ring_slot_read(ring, completion->slot, &slot) == 0);
	CHECK(slot.state == SHM_SLOT_DONE && slot.op_seq == expected);
	CHECK(slot.lineage == expected * 3 && slot.version == expected * 7);
}

int
main(void)
{
	struct ring_worker ring;
	struct shm_completion completion;
	pthread_t thread;
	uint64_t submitted = 0, collected = 0, slept = 0, last = 0;

	CHECK(segment_agent_new(&files) == 0);
	CHECK(segment_worker_map(files.fd_w, files.fd_a, &mapped) == 0);
	bell_agent = doorbell_new();
	bell_worker = doorbell_new();
	CHECK(bell_agent >= 0 && bell_worker >= 0);
	ring_worker_init(&ring, mapped.w, mapped.a);
	CHECK(pthread_create(&thread, NULL, agent_main, NULL) == 0);
	while (collected < OPERATIONS) {
		/* Bursts of 1 to 64, so that both sides find the ring empty often. */
		uint64_t burst = 1 + (submitted * 2654435761u >> 7) % SHM_CAPACITY;
		while (burst-- > 0 && submitted < OPERATIONS && submitted - collected < 64) {
			const struct shm_submission submission = {.op_seq = submitted,
				.kind = SHM_UPDATE,
				.slot = (uint16_t)(submitted % SHM_CAPACITY),
				.version_spec = "latest"};
			int rc = ring_push(&ring, &submission);
			CHECK(rc == 0 || rc == -EAGAIN);
			if (rc < 0)
				break;
			submitted++;
			CHECK(doorbell_ring(bell_agent, &mapped.a->sleeping) >= 0);
		}
		check_line(&ring, &last);
		int rc = ring_pop(&ring, &completion);
		if (rc == 0) {
			doorbell_arm(&mapped.w->sleeping);
			rc = ring_pop(&ring, &completion);
			if (rc == 0 && submitted > collected) {
				sleep_on(bell_worker);
				slept++;
			}
			doorbell_disarm(&mapped.w->sleeping);
		}
		for (; rc == 1; rc = ring_pop(&ring, &completion))
			collect(&ring, &completion, collected++);
		CHECK(rc == 0);
	}
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(slept > 0);
	(void)printf("%" PRIu64 " operations, slept %" PRIu64 " times\n", collected, slept);
	segment_worker_unmap(&mapped);
	segment_agent_free(&files);
	th_fd_close(&bell_agent);
	th_fd_close(&bell_worker);
	return 0;
}
