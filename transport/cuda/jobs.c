/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jobs - requests on their way through a GPU's process.
 *
 * A job is a request: said in as many runs as its ranges need, done when all of them are. What
 * takes several runs is hashed here, for a digest is of one run: a block where it lies, anything
 * else when it has been read into the scratch area, of which there is one. Jobs wait in a queue,
 * and whoever has been said as a whole waits among the active for its runs to be done.
 *
 * When the process dies, whatever was said of a job is forgotten and it begins again, as a suspect
 * (gpus_own.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "transport/cuda/gpus_own.h"
#include "transport/digest.h"

/* Both full sides are a little more than a message takes. */
#define COPY_RANGES_MAX (GPU_RANGES_MAX - 1)
_Static_assert(sizeof(struct gpu_run) + 2 * COPY_RANGES_MAX * sizeof(struct gpu_range) <=
		       GPU_MESSAGE_BYTES_MAX,
	"a COPY fits");
_Static_assert(GPU_RUNS_MAX == 256, "a slot is the low byte of a run's number");

struct job {
	TAILQ_ENTRY(job) entry;
	struct job_list *list; /* that it is in */
	struct gpu_request *request;
	struct cut to, from;
	uint64_t said;   /* bytes, of this pass */
	uint32_t runs;   /* of these, under way */
	bool begun;      /* something of it, or for it, was said to this process */
	bool split;      /* it takes more than one run */
	bool reads_back; /* second pass: into the scratch area */
	int code;        /* it has failed with it */
	struct th_hash digest;
	char text[GPU_TEXT_BYTES];
};

static void
rewind_job(struct job *job)
{
	const struct gpu_request *request = job->request;
	job->to = (struct cut){.spans = request->to, .num_spans = request->num_to};
	job->from = (struct cut){.spans = request->from, .num_spans = request->num_from};
	job->said = 0;
}

static void
move_to(struct job *job, struct job_list *list, bool first)
{
	if (job->list)
		TAILQ_REMOVE(job->list, job, entry);
	job->list = list;
	if (first)
		TAILQ_INSERT_HEAD(list, job, entry);
	else
		TAILQ_INSERT_TAIL(list, job, entry);
}

void
jobs_add(struct gpu *gpu, struct gpu_request *request)
{
	struct job *job = th_calloc(1, sizeof(*job));
	job->request = request;
	request->tries = 0;
	rewind_job(job);
	move_to(job, &gpu->queue, false);
	gpu->num_jobs++;
}

/* It is the caller's again: nothing of it is under way. */
static void
tell(struct gpu *gpu, struct job *job)
{
	struct gpu_request *request = job->request;
	TH_ASSERT(job->runs == 0);
	TAILQ_REMOVE(job->list, job, entry);
	gpu->num_jobs--;
	if (gpu->alone == job)
		gpu->alone = NULL;
	if (gpu->scratch_user == job)
		gpu->scratch_user = NULL;
	request->next = NULL;
	request->code = job->code;
	request->digest = job->digest;
	memcpy(request->text, job->text, sizeof(request->text));
	free(job);
	request->done(request);
}

static void
fail(struct job *job, int code, const char *text)
{
	if (job->code < 0)
		return;
	job->code = code;
	snprintf(job->text, sizeof(job->text), "%s", text);
}

/* Memory of another GPU may be reached by that GPU's process. */
static int
code_for(const struct gpu *gpu, const struct gpu_space *space)
{
	return space->home == gpu ? TH_E_STALE_MEMORY : TH_E_MEMORY_KIND;
}

static int
code_of(const struct gpu *gpu, const struct job *job)
{
	const struct gpu_request *request = job->request;
	return request->num_from > 0 ? code_for(gpu, request->from[0].space) : TH_E_STALE_MEMORY;
}

/* ---- areas --------------------------------------------------------------------------------- */

static int
make_scratch(struct gpu *gpu)
{
	void *memory;
	gpu->scratch_fd = memfd_create("thagentd-gpu-scratch", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (gpu->scratch_fd < 0 || ftruncate(gpu->scratch_fd, CHUNK_BYTES_MAX) < 0 ||
		fcntl(gpu->scratch_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		goto out_failed;
	memory = mmap(NULL, CHUNK_BYTES_MAX, PROT_READ, MAP_SHARED, gpu->scratch_fd, 0);
	if (memory == MAP_FAILED)
		goto out_failed;
	gpu->scratch = memory;
	return 0;
out_failed:
	th_fd_close(&gpu->scratch_fd);
	return -ENOMEM;
}

/* 0: the process knows it, or will before what is said next. */
static int
need_area(struct gpu *gpu, uint32_t area)
{
	struct gpu_area message = {.kind = GPU_AREA, .area = area, .bytes = CHUNK_BYTES_MAX};
	int fd = gpu->scratch_fd;
	if (gpu->area_said_ns[area] != 0)
		return 0;
	if (area != GPUS_SCRATCH)
		fd = blocks_fd(gpu->gpus->blocks, area, &message.bytes);
	int rc = process_say(&gpu->process, &message, sizeof(message), fd);
	if (!gpu_said(gpu, rc))
		return -EAGAIN;
	gpu->area_said_ns[area] = th_now_ns();
	gpu->num_areas_owed++;
	return 0;
}

void
jobs_hear_area(struct gpu *gpu, const struct gpu_area_is *area)
{
	if (area->area >= GPU_AREAS_MAX || gpu->area_said_ns[area->area] <= 0) {
		gpu_kill(gpu, "it pinned what it was not asked to pin");
		return;
	}
	gpu->area_said_ns[area->area] = -1;
	gpu->num_areas_owed--;
	if (area->code < 0)
		gpu_kill(gpu, "it did not map the agent's memory: %s", area->text);
	else if (!area->pinned)
		log_info("gpu", "memory is not pinned, so copies are slower: %s", area->text);
}

/* ---- saying -------------------------------------------------------------------------------- */

enum said { SAID, SAID_ALL, SAID_LATER, SAID_NO_SCRATCH };

struct sides {
	struct cut_ranges to, from;
	struct cut cut_to, cut_from; /* behind them */
	uint64_t bytes;
};

static int
need_pieces(struct gpu *gpu, struct job *job, struct cut_ranges *ranges)
{
	for (uint32_t i = 0; i < ranges->count; i++) {
		char text[GPU_TEXT_BYTES] = "";
		if (i > 0 && ranges->pieces[i] == ranges->pieces[i - 1])
			continue;
		int rc = opens_need(gpu, ranges->spaces[i], ranges->pieces[i], text);
		if (rc == -EAGAIN)
			return rc;
		if (rc < 0) {
			fail(job, code_for(gpu, ranges->spaces[i]), text);
			return rc;
		}
	}
	return 0;
}

/* Of what is left, as much as one message takes, and as much on both sides. */
static int
cut_sides(struct job *job, uint64_t left, struct sides *sides)
{
	bool has_to = job->request->num_to > 0 && !job->reads_back;
	bool has_from = job->request->num_from > 0 && !job->reads_back;
	uint32_t max = has_to && has_from ? COPY_RANGES_MAX : GPU_RANGES_MAX;
	char text[GPU_TEXT_BYTES] = "";
	int rc = 0;
	sides->to.count = sides->from.count = 0;
	sides->cut_to = job->to;
	sides->cut_from = job->from;
	sides->bytes = left;
	if (job->reads_back) {
		/* What was written, or what is to be hashed. */
		bool written = job->request->num_to > 0;
		rc = cut_next(
			written ? &sides->cut_to : &sides->cut_from, max, left, &sides->from, text);
		sides->bytes = sides->from.bytes;
	}
	if (rc == 0 && has_to) {
		rc = cut_next(&sides->cut_to, max, sides->bytes, &sides->to, text);
		sides->bytes = sides->to.bytes;
	}
	if (rc == 0 && has_from) {
		rc = cut_next(&sides->cut_from, max, sides->bytes, &sides->from, text);
		sides->bytes = sides->from.bytes;
	}
	if (rc == 0 && has_to && has_from && sides->bytes < sides->to.bytes) {
		cut_drop(&sides->to);
		sides->cut_to = job->to;
		rc = cut_next(&sides->cut_to, max, sides->bytes, &sides->to, text);
	}
	TH_ASSERT(rc < 0 || sides->bytes > 0);
	if (rc < 0)
		fail(job, rc, text);
	return rc;
}

static int
say_run(struct gpu *gpu, struct job *job, const struct gpu_run *head, const struct sides *sides)
{
	uint32_t slot = gpu->free_slots[gpu->num_free_slots - 1];
	struct gpu_run run = *head;
	size_t at = sizeof(run);
	run.run = ++gpu->num_said << 8 | slot;
	memcpy(gpu->message, &run, sizeof(run));
	memcpy(gpu->message + at, sides->to.ranges, sides->to.count * sizeof(struct gpu_range));
	at += sides->to.count * sizeof(struct gpu_range);
	memcpy(gpu->message + at, sides->from.ranges, sides->from.count * sizeof(struct gpu_range));
	at += sides->from.count * sizeof(struct gpu_range);
	int rc = process_say(&gpu->process, gpu->message, at, -1);
	if (!gpu_said(gpu, rc))
		return -EAGAIN;
	gpu->num_free_slots--;
	struct gpu_run_slot *said = &gpu->slots[slot];
	*said = (struct gpu_run_slot){.number = run.run,
		.job = job,
		.said_ns = th_now_ns(),
		.bytes = run.bytes,
		.counts_as_hash = job->reads_back,
		.op = (enum gpu_run_op)run.op};
	TAILQ_INSERT_TAIL(&gpu->runs, said, entry);
	job->runs++;
	return 0;
}

/* Where the bytes of a run begin on the host. */
static int
place(struct gpu *gpu, struct job *job, struct gpu_run *run)
{
	const struct gpu_request *request = job->request;
	if (run->op != GPU_READ && run->op != GPU_WRITE)
		return 0;
	if (job->reads_back) {
		run->area = GPUS_SCRATCH;
		run->area_at = job->said;
	} else {
		blocks_where(gpu->gpus->blocks, request->data, request->bytes, &run->area,
			&run->area_at);
		run->area_at += job->said;
	}
	return need_area(gpu, run->area);
}

static bool
take_scratch(struct gpu *gpu, struct job *job)
{
	if (gpu->scratch_user && gpu->scratch_user != job)
		return false;
	gpu->scratch_user = job;
	if (!gpu->scratch && make_scratch(gpu) < 0)
		fail(job, TH_E_STALE_MEMORY, "the agent has no memory to hash GPU memory in");
	return true;
}

static void
read_back(struct job *job)
{
	rewind_job(job);
	job->reads_back = true;
}

static bool
wants_digest(const struct gpu_request *request)
{
	return request->op == GPU_HASH || request->hashes;
}

/* The next run of a job that has some left. */
static enum said
say_sides(struct gpu *gpu, struct job *job)
{
	struct sides *sides = gpu->sides;
	const struct gpu_request *request = job->request;
	uint64_t left = request->bytes - job->said;
	if (cut_sides(job, left, sides) < 0)
		return SAID_ALL;
	bool whole = sides->bytes == request->bytes;
	if (request->op == GPU_HASH && !whole && !job->reads_back) {
		read_back(job);
		return SAID;
	}
	struct gpu_run run = {.kind = GPU_RUN,
		.op = job->reads_back ? GPU_READ : request->op,
		.hashes = wants_digest(request) && whole && !job->reads_back,
		.bytes = sides->bytes,
		.num_to = sides->to.count,
		.num_from = sides->from.count};
	job->begun = true;
	if (place(gpu, job, &run) < 0)
		return SAID_LATER;
	int rc = need_pieces(gpu, job, &sides->to);
	if (rc == 0)
		rc = need_pieces(gpu, job, &sides->from);
	if (rc == 0)
		rc = say_run(gpu, job, &run, sides);
	if (rc < 0)
		return job->code < 0 ? SAID_ALL : SAID_LATER;
	job->to = sides->cut_to;
	job->from = sides->cut_from;
	job->said += sides->bytes;
	job->split |= !whole;
	return SAID;
}

static enum said
say_next(struct gpu *gpu, struct job *job)
{
	if (job->reads_back && !take_scratch(gpu, job))
		return SAID_NO_SCRATCH;
	if (job->code < 0 || job->said == job->request->bytes)
		return SAID_ALL;
	if (gpu->num_free_slots == 0)
		return SAID_LATER;
	enum said said = say_sides(gpu, job);
	cut_drop(&gpu->sides->to);
	cut_drop(&gpu->sides->from);
	return said;
}

/* All of its runs are done. */
static void
settle(struct gpu *gpu, struct job *job)
{
	struct gpu_request *request = job->request;
	if (job->code == 0 && job->reads_back) {
		job->digest = digest_of(gpu->scratch, request->bytes);
	} else if (job->code == 0 && job->split && wants_digest(request)) {
		if (request->op == GPU_COPY) {
			read_back(job);
			move_to(job, &gpu->queue, true);
			return;
		}
		job->digest = digest_of(request->data, request->bytes);
	}
	tell(gpu, job);
}

/* True: it is on its way as a whole, or was told. go_on: others may be said. */
static bool
say_job(struct gpu *gpu, struct job *job, bool *ret_go_on)
{
	enum said said;
	do {
		said = say_next(gpu, job);
	} while (said == SAID);
	*ret_go_on = said != SAID_LATER;
	if (said != SAID_ALL)
		return false;
	if (job->runs == 0)
		settle(gpu, job);
	else
		move_to(job, &gpu->active, false);
	return true;
}

static void
say_queue(struct gpu *gpu)
{
	bool go_on = true;
	struct job *job = TAILQ_FIRST(&gpu->queue);
	while (job && go_on) {
		struct job *next = TAILQ_NEXT(job, entry);
		(void)say_job(gpu, job, &go_on);
		job = next;
	}
}

static bool
any_suspect(const struct gpu *gpu)
{
	return gpu->alone || gpu->piece_alone || !TAILQ_EMPTY(&gpu->suspects) ||
	       !TAILQ_EMPTY(&gpu->suspect_pieces);
}

/* True: one of them is through already. */
static bool
say_suspect(struct gpu *gpu)
{
	bool go_on;
	if (gpu->piece_alone)
		return false;
	if (!gpu->alone && (!TAILQ_EMPTY(&gpu->runs) || gpu->num_opening > 0))
		return false;
	if (!gpu->alone)
		gpu->alone = TAILQ_FIRST(&gpu->suspects);
	if (!gpu->alone)
		return opens_say_suspect(gpu) && !gpu->piece_alone;
	if (gpu->alone->list == &gpu->active)
		return false;
	return say_job(gpu, gpu->alone, &go_on) && !gpu->alone;
}

void
jobs_say(struct gpu *gpu)
{
	if (!opens_say_leaving(gpu))
		return;
	while (any_suspect(gpu)) {
		if (!say_suspect(gpu))
			return;
	}
	say_queue(gpu);
	(void)opens_say(gpu);
}

/* ---- hearing ------------------------------------------------------------------------------- */

/* The piece that it failed for, if it is known: the first that this process does not have. */
static void
fail_for(struct gpu *gpu, struct job *job, const char *text)
{
	const struct gpu_request *request = job->request;
	for (uint32_t i = 0; i < request->num_to + request->num_from && job->code == 0; i++) {
		const struct gpu_span *span =
			i < request->num_to ? &request->to[i] : &request->from[i - request->num_to];
		for (uint64_t at = 0; at < span->bytes && job->code == 0;) {
			struct gpu_piece *piece = space_find(span->space, span->address + at);
			if (!piece)
				break;
			const char *why = opens_why(gpu, piece->worker, piece->number);
			if (why)
				fail(job, code_for(gpu, span->space), why);
			at += piece->bytes - (span->address + at - piece->base);
			piece_release(piece);
		}
	}
	fail(job, code_of(gpu, job), text);
}

static void
count(struct gpu *gpu, const struct gpu_run_slot *run)
{
	struct gpu_status *status = &gpu->status;
	if (run->op == GPU_HASH || run->counts_as_hash)
		status->bytes_hashed += run->bytes;
	else if (run->op == GPU_READ)
		status->bytes_read += run->bytes;
	else if (run->op == GPU_WRITE)
		status->bytes_written += run->bytes;
	else
		status->bytes_copied += run->bytes;
}

static void
take_result(struct gpu *gpu, struct job *job, const struct gpu_done *done)
{
	switch (done->code) {
	case 0:
		job->digest = wants_digest(job->request) ? done->digest : job->digest;
		gpu_goes(gpu);
		break;
	case TH_E_STALE_MEMORY:
	case TH_E_PROTOCOL:
		fail_for(gpu, job, done->text);
		break;
	case TH_E_MEMORY_KIND:
		fail(job, code_of(gpu, job), done->text);
		break;
	case -EIO: /* maybe for all others, too: they begin again in the next process */
		gpu_kill(gpu, "the driver failed: %s", done->text);
		break;
	default:
		gpu_kill(gpu, "it gave the code %d, which it does not have", done->code);
	}
}

void
jobs_hear_done(struct gpu *gpu, const struct gpu_done *done)
{
	uint32_t index = done->run & (GPU_RUNS_MAX - 1);
	struct gpu_run_slot *run = &gpu->slots[index];
	struct job *job = run->job;
	if (!job || run->number != done->run) {
		gpu_kill(gpu, "it did what it was not asked to do");
		return;
	}
	take_result(gpu, job, done);
	if (gpu->life != LIFE_UP)
		return;
	if (done->code == 0)
		count(gpu, run);
	TAILQ_REMOVE(&gpu->runs, run, entry);
	run->job = NULL;
	gpu->free_slots[gpu->num_free_slots++] = (uint8_t)index;
	job->runs--;
	/* In any other list, more of it is to be said, or not if it failed: jobs_say knows. */
	if (job->runs == 0 && job->list == &gpu->active)
		settle(gpu, job);
}

/* ---- the end of a life --------------------------------------------------------------------- */

static void
forget_runs(struct gpu *gpu)
{
	TAILQ_INIT(&gpu->runs);
	gpu->num_free_slots = GPU_RUNS_MAX;
	for (uint32_t i = 0; i < GPU_RUNS_MAX; i++) {
		gpu->free_slots[i] = (uint8_t)i;
		gpu->slots[i].job = NULL;
	}
	memset(gpu->area_said_ns, 0, sizeof(gpu->area_said_ns));
	gpu->num_areas_owed = 0;
	gpu->scratch_user = NULL;
}

static void
begin_again(struct gpu *gpu, struct job *job, bool was_alone, const char *why)
{
	char text[GPU_TEXT_BYTES];
	job->runs = 0;
	if (job->code == 0 && ++job->request->tries >= GPUS_TRIES) {
		snprintf(text, sizeof(text),
			"the process of the GPU ended %u times over it: %.160s", GPUS_TRIES, why);
		fail(job, code_of(gpu, job), text);
	}
	if (job->code < 0) {
		tell(gpu, job);
		return;
	}
	job->begun = job->split = job->reads_back = false;
	rewind_job(job);
	move_to(job, &gpu->suspects, was_alone);
}

static void
list_died(struct gpu *gpu, struct job_list *list, const struct job *alone, const char *why)
{
	struct job *job = TAILQ_FIRST(list);
	while (job) {
		struct job *next = TAILQ_NEXT(job, entry);
		if (job->begun)
			begin_again(gpu, job, job == alone, why);
		job = next;
	}
}

void
jobs_died(struct gpu *gpu, const char *why)
{
	const struct job *alone = gpu->alone;
	forget_runs(gpu);
	gpu->alone = NULL;
	list_died(gpu, &gpu->active, alone, why);
	list_died(gpu, &gpu->queue, alone, why);
	list_died(gpu, &gpu->suspects, alone, why);
	TH_ASSERT(TAILQ_EMPTY(&gpu->active));
}

static void
fail_list(struct gpu *gpu, struct job_list *list, const char *why)
{
	struct job *job;
	while ((job = TAILQ_FIRST(list))) {
		fail(job, TH_E_STALE_MEMORY, why);
		tell(gpu, job);
	}
}

void
jobs_fail(struct gpu *gpu, const char *why)
{
	fail_list(gpu, &gpu->suspects, why);
	fail_list(gpu, &gpu->queue, why);
}

int64_t
jobs_deadline(const struct gpu *gpu)
{
	int64_t hang_ns = gpu->gpus->config.hang_ns, until_ns = INT64_MAX;
	const struct gpu_run_slot *run = TAILQ_FIRST(&gpu->runs);
	if (run)
		until_ns = th_deadline_ns(run->said_ns, hang_ns);
	for (uint32_t i = 0; gpu->num_areas_owed > 0 && i < GPU_AREAS_MAX; i++) {
		if (gpu->area_said_ns[i] > 0)
			until_ns =
				th_min_i64(until_ns, th_deadline_ns(gpu->area_said_ns[i], hang_ns));
	}
	return until_ns;
}

void
jobs_init(struct gpu *gpu)
{
	TAILQ_INIT(&gpu->queue);
	TAILQ_INIT(&gpu->suspects);
	TAILQ_INIT(&gpu->active);
	gpu->scratch_fd = -1;
	gpu->sides = th_calloc(1, sizeof(*gpu->sides));
	forget_runs(gpu);
}

void
jobs_end(struct gpu *gpu)
{
	TH_ASSERT(gpu->num_jobs == 0);
	if (gpu->scratch)
		(void)munmap(gpu->scratch, CHUNK_BYTES_MAX);
	th_fd_close(&gpu->scratch_fd);
	free(gpu->sides);
}
