/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_jobs - requests on their way through a GPU's process.
 *
 * A job says its request run by run. A run has as many whole chunks as fit into its message, or a
 * part of one. A chunk that takes several runs has no digest by the process: one of what was read
 * is made where it lies on the host, one of a GPU's in the scratch area, into which it is read by a
 * *pass* of its own, before the rest of the job is said: always of what has arrived, never of what
 * was sent.
 *
 * Jobs wait in a queue, and whoever has been said as a whole waits among the active for its runs to
 * be done. Of the scratch area, where digests are made that no process makes, there is
 * one.
 *
 * When the process dies, whatever was said of a job is forgotten and it begins again, as a suspect
 * (gpus_own.h).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "transport/cuda/agent/gpus_own.h"
#include "transport/hash/digest.h"
#include "transport/part/chunk.h"
#include "transport/part/pinned_pages.h"

_Static_assert(GPU_RUNS_MAX == 256, "a slot is the low byte of a run's number");

struct job {
	TAILQ_ENTRY(job) entry;
	struct job_list *list; /* that it is in */
	struct gpu_request *request;
	struct cut to, from; /* what is next */
	uint32_t chunk, end; /* to be said yet in this pass */
	uint32_t said;       /* bytes of that chunk */
	bool split;          /* the last chunk of the pass takes more than one run, and a digest */
	bool reads_back;     /* this pass: one chunk, into the scratch area */
	uint32_t runs;       /* under way */
	bool begun;          /* something of it, or for it, was said to this process */
	int code;            /* it has failed with it */
	bool unmapped;       /* it has failed as gpu_request.unmapped says */
	char text[GPU_TEXT_BYTES];
};

struct job_room { /* for a run */
	uint32_t chunks;
	uint64_t bytes; /* less than those of a chunk: a part of it */
};

static bool
job_wants_digest(const struct job *job)
{
	return job->request->op == GPU_HASH || job->request->hashes;
}

static struct th_hash *
job_digest(const struct job *job, uint32_t chunk)
{
	struct gpu_request *request = job->request;
	return request->chunks ? &request->chunks[chunk].digest : &request->digest;
}

static uint32_t
num_chunks(const struct job *job)
{
	return job->request->chunks ? job->request->num_chunks : 1;
}

static uint32_t
chunk_bytes_of(const struct job *job, uint32_t chunk)
{
	const struct gpu_request *request = job->request;
	return request->chunks ? request->chunks[chunk].bytes : request->bytes;
}

/* ---- passes --------------------------------------------------------------------------------- */

/* Over these chunks. What is read back is what was written, or what is to be hashed. */
static void
pass_begin(struct job *job, uint32_t chunk, uint32_t end)
{
	const struct gpu_request *request = job->request;
	const struct cut to = {.spans = request->to, .num_spans = request->num_to};
	const struct cut from = {.spans = request->from, .num_spans = request->num_from};
	uint64_t before = 0;
	for (uint32_t i = 0; i < chunk; i++)
		before += chunk_bytes_of(job, i);
	job->to = job->reads_back ? (struct cut){0} : to;
	job->from = job->reads_back && to.num_spans > 0 ? to : from;
	cut_skip(&job->to, before);
	cut_skip(&job->from, before);
	job->chunk = chunk;
	job->end = end;
	job->said = 0;
}

static void
go_on_from(struct job *job, uint32_t chunk)
{
	job->reads_back = job->split = false;
	pass_begin(job, chunk, num_chunks(job));
}

static void
read_back(struct job *job, uint32_t chunk)
{
	job->reads_back = true;
	pass_begin(job, chunk, chunk + 1);
}

/* From the beginning, also again. */
static void
job_begin(struct job *job)
{
	go_on_from(job, 0);
}

/* All runs of a pass are done. True: there is another one. */
static bool
job_settle(struct job *job, const uint8_t *scratch)
{
	uint32_t last = job->end - 1;
	if (job->reads_back) {
		*job_digest(job, last) = digest_of(scratch, chunk_bytes_of(job, last));
		go_on_from(job, job->end);
	} else if (job->split && job->request->op == GPU_READ) {
		*job_digest(job, last) = digest_of(job->request->data, job->request->bytes);
	} else if (job->split) {
		read_back(job, last);
	}
	return job->chunk < job->end;
}

/* ---- runs ----------------------------------------------------------------------------------- */

/* How many whole chunks; 0: a part of one. */
static int
cut_chunks(const struct job *job, const struct job_room *room, struct sides *sides,
	uint32_t *ret_count, char *text)
{
	uint32_t count = 0;
	int rc = 0;
	sides_begin(sides, &job->to, &job->from);
	while (rc == 0 && count < room->chunks && job->chunk + count < job->end) {
		uint64_t before = sides->bytes;
		uint32_t bytes = chunk_bytes_of(job, job->chunk + count) - job->said;
		rc = sides_add(sides, th_min_u64(bytes, room->bytes - before), text);
		bool all = sides->bytes == before + bytes;
		if (!all && count > 0)
			sides_cut_back(sides, before);
		if (!all || job->said > 0)
			break;
		count++;
	}
	TH_ASSERT(rc < 0 || sides->bytes > 0);
	*ret_count = count;
	return rc;
}

/*
 * The next run: what is in the sides, with its op, digests and chunks. 0; 1: none, but there is
 * another pass; or as sides_add. sides_drop either way.
 */
static int
job_cut(struct job *job, const struct job_room *room, struct sides *sides, struct gpu_run *ret_run,
	char *text)
{
	enum gpu_run_op op = job->request->op;
	uint32_t count = 0;
	int rc = cut_chunks(job, room, sides, &count, text);
	if (rc < 0)
		return rc;
	if (op == GPU_HASH && count == 0 && !job->reads_back) {
		read_back(job, job->chunk);
		return 1;
	}
	*ret_run = (struct gpu_run){.kind = GPU_RUN,
		.op = job->reads_back ? GPU_READ : op,
		.hashes = job_wants_digest(job) && count > 0 && !job->reads_back,
		.num_to = sides->to.count,
		.num_from = sides->from.count,
		.num_chunks = count > 0 ? count : 1,
		.chunk_bytes = {(uint32_t)sides->bytes}};
	for (uint32_t i = 0; i < count; i++)
		ret_run->chunk_bytes[i] = chunk_bytes_of(job, job->chunk + i);
	return 0;
}

/* That run was said. */
static void
job_said(struct job *job, const struct gpu_run *run, uint64_t bytes)
{
	cut_skip(&job->to, bytes);
	cut_skip(&job->from, bytes);
	if (job->said == 0 && bytes >= chunk_bytes_of(job, job->chunk)) {
		job->chunk += run->num_chunks;
		return;
	}
	job->said += (uint32_t)bytes;
	if (job_wants_digest(job)) { /* which is made before anything else is said */
		job->split = true;
		job->end = job->chunk + 1;
	}
	if (job->said == chunk_bytes_of(job, job->chunk)) {
		job->chunk++;
		job->said = 0;
	}
}

/* ---- the queue ------------------------------------------------------------------------------- */

static void
gpu_jobs_move_to(struct job *job, struct job_list *list, bool first)
{
	if (job->list)
		TAILQ_REMOVE(job->list, job, entry);
	job->list = list;
	if (first)
		TAILQ_INSERT_HEAD(list, job, entry);
	else
		TAILQ_INSERT_TAIL(list, job, entry);
}

/* It is the caller's again: nothing of it is under way. */
static void
gpu_jobs_tell(struct gpu *gpu, struct job *job)
{
	struct gpu_request *request = job->request;
	struct gpus_host *host = request->host;
	TH_ASSERT(job->runs == 0);
	TAILQ_REMOVE(job->list, job, entry);
	gpu->num_jobs--;
	if (gpu->alone == job)
		gpu->alone = NULL;
	if (gpu->scratch_user == job)
		gpu->scratch_user = NULL;
	request->next = NULL;
	request->code = job->code;
	request->unmapped = job->unmapped;
	memcpy(request->text, job->text, sizeof(request->text));
	free(job);
	request->done(request);
	gpus_host_release(host);
}

static void
gpu_jobs_fail(struct job *job, int code, const char *text)
{
	if (job->code < 0)
		return;
	job->code = code;
	snprintf(job->text, sizeof(job->text), "%s", text);
}

static bool
is_nowhere(const struct gpu_request *request, char *text)
{
	return (request->num_to > 0 && space_is_nowhere(request->to->space, text)) ||
	       (request->num_from > 0 && space_is_nowhere(request->from->space, text));
}

/* What is nowhere starts no process: it would be another GPU's, or would have nothing to do. */
void
jobs_add(struct gpu *gpu, struct gpu_request *request)
{
	char text[GPU_TEXT_BYTES];
	struct job *job = th_calloc(1, sizeof(*job));
	job->request = request;
	request->tries = 0;
	job_begin(job);
	gpu_jobs_move_to(job, &gpu->queue, false);
	gpu->num_jobs++;
	if (!is_nowhere(request, text))
		return;
	gpu_jobs_fail(job, TH_E_MEMORY_KIND, text);
	gpu_jobs_tell(gpu, job);
}

/* Memory of another GPU may be reached by that GPU's process. */
static int
code_for(const struct gpu *gpu, const struct gpu_space *space)
{
	return space->home == gpu ? TH_E_STALE_MEMORY : TH_E_MEMORY_KIND;
}

static int
gpu_jobs_code_of(const struct gpu *gpu, const struct job *job)
{
	const struct gpu_request *request = job->request;
	return request->num_from > 0 ? code_for(gpu, request->from[0].space) : TH_E_STALE_MEMORY;
}

/* ---- bytes on the host --------------------------------------------------------------------- */

static int
make_scratch(struct gpu *gpu)
{
	int rc = pinned_pages_map_file(
		"thagentd-gpu-scratch", CHUNK_BYTES_MAX, &gpu->scratch_fd, &gpu->scratch);
	if (rc == 0)
		gpu->scratch_host =
			host_make(gpu->scratch_fd, gpu->scratch, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX);
	return rc;
}

/* What the next run of a READ or WRITE reads or writes there. */
static struct gpus_host *
gpu_jobs_host_of(const struct gpu *gpu, const struct job *job, uint64_t *ret_at)
{
	const struct gpu_request *request = job->request;
	struct gpus_host *host = request->host ? request->host : blocks_host(gpu->gpus->blocks);
	*ret_at = job->said;
	if (job->reads_back)
		return gpu->scratch_host;
	uint64_t at = (uint64_t)(request->data - host->data);
	TH_ASSERT(th_range_fits(at, request->bytes, host->bytes));
	*ret_at += at;
	return host;
}

static bool
uses_host(const struct job *job)
{
	return job->reads_back || job->request->op == GPU_READ || job->request->op == GPU_WRITE;
}

/* ---- saying -------------------------------------------------------------------------------- */

enum said { SAID, SAID_ALL, SAID_LATER, SAID_NO_SCRATCH };

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
			gpu_jobs_fail(job, code_for(gpu, ranges->spaces[i]), text);
			return rc;
		}
	}
	return 0;
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
		.bytes = sides->bytes,
		.chunk = job->chunk,
		.num_digests = run.hashes ? run.num_chunks : 0,
		.counts_as_hash = job->reads_back,
		.op = (enum gpu_run_op)run.op};
	said->since_ns = said->said_ns;
	TAILQ_INSERT_TAIL(&gpu->runs, said, entry);
	job->runs++;
	return 0;
}

/* Where the bytes of a run begin on the host. */
static int
gpu_jobs_place(struct gpu *gpu, struct job *job, struct gpu_run *run)
{
	uint64_t at;
	if (!uses_host(job))
		return 0;
	struct gpus_host *host = gpu_jobs_host_of(gpu, job, &at);
	return pins_need(gpu, host, at, run);
}

/* One run takes no more: it does not cross from one slice of the host's memory to the next. */
static uint64_t
room_for(const struct gpu *gpu, const struct job *job)
{
	uint64_t at;
	if (!uses_host(job))
		return UINT64_MAX;
	const struct gpus_host *host = gpu_jobs_host_of(gpu, job, &at);
	return pins_room(host, at);
}

static bool
take_scratch(struct gpu *gpu, struct job *job)
{
	if (gpu->scratch_user && gpu->scratch_user != job)
		return false;
	gpu->scratch_user = job;
	if (!gpu->scratch && make_scratch(gpu) < 0)
		gpu_jobs_fail(
			job, TH_E_MEMORY_KIND, "the agent has no memory to hash GPU memory in");
	return true;
}

/* The next run of a job. What the CPU hashes goes chunk by chunk, so that copies go on beside. */
static enum said
say_sides(struct gpu *gpu, struct job *job)
{
	struct sides *sides = gpu->sides;
	struct gpu_run run;
	char text[GPU_TEXT_BYTES] = "";
	bool one = job_wants_digest(job) && !gpu->status.hashes_on_gpu;
	const struct job_room room = {
		.chunks = one ? 1 : GPU_RUN_CHUNKS_MAX, .bytes = room_for(gpu, job)};
	int rc = job_cut(job, &room, sides, &run, text);
	if (rc < 0)
		gpu_jobs_fail(job, rc, text);
	if (rc != 0)
		return rc < 0 ? SAID_ALL : SAID;
	job->begun = true;
	if (gpu_jobs_place(gpu, job, &run) < 0)
		return SAID_LATER;
	rc = need_pieces(gpu, job, &sides->to);
	if (rc == 0)
		rc = need_pieces(gpu, job, &sides->from);
	if (rc == 0)
		rc = say_run(gpu, job, &run, sides);
	if (rc < 0)
		return job->code < 0 ? SAID_ALL : SAID_LATER;
	job_said(job, &run, sides->bytes);
	return SAID;
}

static enum said
say_next(struct gpu *gpu, struct job *job)
{
	if (job->reads_back && !take_scratch(gpu, job))
		return SAID_NO_SCRATCH;
	if (job->code < 0 || job->chunk == job->end)
		return SAID_ALL;
	if (gpu->num_free_slots == 0)
		return SAID_LATER;
	enum said said = say_sides(gpu, job);
	sides_drop(gpu->sides);
	return said;
}

/* All of its runs are done. */
static void
gpu_jobs_settle(struct gpu *gpu, struct job *job)
{
	if (job->code == 0 && job_settle(job, gpu->scratch)) {
		if (gpu->scratch_user == job)
			gpu->scratch_user = NULL;
		gpu_jobs_move_to(job, &gpu->queue, true);
	} else {
		gpu_jobs_tell(gpu, job);
	}
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
		gpu_jobs_settle(gpu, job);
	else
		gpu_jobs_move_to(job, &gpu->active, false);
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
	if (!opens_say_leaving(gpu) || !pins_say(gpu))
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
				gpu_jobs_fail(job, code_for(gpu, span->space), why);
			at += piece->bytes - (span->address + at - piece->base);
			piece_release(piece);
		}
	}
	gpu_jobs_fail(job, gpu_jobs_code_of(gpu, job), text);
}

static void
gpu_jobs_count(struct gpu *gpu, const struct gpu_run_slot *run)
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
gpu_jobs_take_result(struct gpu *gpu, const struct gpu_run_slot *run, const struct gpu_done *done)
{
	struct job *job = run->job;
	switch (done->code) {
	case 0:
		for (uint32_t i = 0; i < run->num_digests; i++)
			*job_digest(job, run->chunk + i) = done->digests[i];
		if (run->num_digests > 0 && done->text[0])
			gpu_hashed_by_cpu(gpu, done->text);
		gpu_goes(gpu);
		break;
	case TH_E_STALE_MEMORY:
	case TH_E_PROTOCOL:
		fail_for(gpu, job, done->text);
		break;
	case TH_E_MEMORY_KIND: /* it has not mapped the host memory (gpu_pins.c) */
		if (run->op == GPU_READ || run->op == GPU_WRITE) {
			job->unmapped |= job->code == 0;
			gpu_jobs_fail(job, TH_E_MEMORY_KIND, done->text);
			break;
		}
		gpu_kill(gpu, "it missed host memory for what needs none");
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
	gpu_jobs_take_result(gpu, run, done);
	if (gpu->life != LIFE_UP)
		return;
	if (done->code == 0)
		gpu_jobs_count(gpu, run);
	TAILQ_REMOVE(&gpu->runs, run, entry);
	run->job = NULL;
	gpu->free_slots[gpu->num_free_slots++] = (uint8_t)index;
	job->runs--;
	/* In any other list, more of it is to be said, or not if it failed: jobs_say knows. */
	if (job->runs == 0 && job->list == &gpu->active)
		gpu_jobs_settle(gpu, job);
}

/* What was said behind it may have waited for it. */
void
jobs_hear_turn(struct gpu *gpu, int64_t said_ns)
{
	struct gpu_run_slot *run;
	TAILQ_FOREACH_REVERSE(run, &gpu->runs, run_list, entry)
	{
		if (run->said_ns < said_ns)
			break;
		run->since_ns = gpu->opened_ns;
	}
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
		gpu_jobs_fail(job, gpu_jobs_code_of(gpu, job), text);
	}
	if (job->code < 0) {
		gpu_jobs_tell(gpu, job);
		return;
	}
	job->begun = false;
	job_begin(job);
	gpu_jobs_move_to(job, &gpu->suspects, was_alone);
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
		gpu_jobs_fail(job, TH_E_MEMORY_KIND, why);
		gpu_jobs_tell(gpu, job);
	}
}

void
jobs_fail(struct gpu *gpu, const char *why)
{
	fail_list(gpu, &gpu->suspects, why);
	fail_list(gpu, &gpu->queue, why);
}

/* jobs_say tells them. */
void
jobs_refuse(struct gpu *gpu, const char *why)
{
	struct job *job;
	TAILQ_FOREACH(job, &gpu->suspects, entry)
	gpu_jobs_fail(job, TH_E_MEMORY_KIND, why);
	TAILQ_FOREACH(job, &gpu->queue, entry)
	gpu_jobs_fail(job, TH_E_MEMORY_KIND, why);
}

int64_t
jobs_deadline(const struct gpu *gpu)
{
	const struct gpu_run_slot *run = TAILQ_FIRST(&gpu->runs);
	return run ? th_deadline_ns(run->since_ns, gpu->gpus->config.hang_ns) : INT64_MAX;
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
	host_free(gpu->scratch_host);
	if (gpu->scratch)
		(void)munmap(gpu->scratch, CHUNK_BYTES_MAX);
	th_fd_close(&gpu->scratch_fd);
	free(gpu->sides);
}
