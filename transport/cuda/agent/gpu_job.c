/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_job - see gpu_job.h.
 */
#include "transport/cuda/agent/gpu_job.h"

#include "ipc/base/assert.h"
#include "transport/hash/digest.h"

bool
job_wants_digest(const struct job *job)
{
	return job->request->op == GPU_HASH || job->request->hashes;
}

struct th_hash *
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

void
job_begin(struct job *job)
{
	go_on_from(job, 0);
}

bool
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

int
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

void
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
