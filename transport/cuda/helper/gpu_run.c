/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_run - takes a RUN apart and finds its bytes.
 */
#include "transport/cuda/helper/gpu_run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"
#include "transport/part/chunk.h"

/* ---- the message ---------------------------------------------------------------------------- */

static bool
has_sides(const struct gpu_run *message)
{
	bool to = message->num_to > 0, from = message->num_from > 0;
	if (message->num_to > GPU_RANGES_MAX || message->num_from > GPU_RANGES_MAX)
		return false;
	switch (message->op) {
	case GPU_READ:
	case GPU_HASH:
		return from && !to;
	case GPU_WRITE:
		return to && !from;
	case GPU_COPY:
		return to && from;
	default:
		return false;
	}
}

/* How many bytes its chunks have; 0: no agent sends them. */
static uint64_t
sum_chunks(const struct gpu_run *message)
{
	bool on_gpu = message->op == GPU_COPY || message->op == GPU_HASH;
	uint64_t sum = 0;
	if (message->num_chunks > (on_gpu ? GPU_RUN_CHUNKS_MAX : 1))
		return 0;
	for (uint32_t i = 0; i < message->num_chunks; i++) {
		uint32_t bytes = message->chunk_bytes[i];
		if (bytes == 0 || bytes > CHUNK_BYTES_MAX)
			return 0;
		sum += bytes;
	}
	return sum;
}

/* None is empty, none ends behind the last address, and together they have these bytes. */
static bool
have_bytes(const struct gpu_range *ranges, uint32_t count, uint64_t bytes)
{
	uint64_t sum = 0, end;
	for (uint32_t i = 0; i < count; i++) {
		if (ranges[i].bytes == 0 || !th_add_u64(sum, ranges[i].bytes, &sum) ||
			!th_add_u64(ranges[i].at, ranges[i].bytes, &end))
			return false;
	}
	return count == 0 || sum == bytes;
}

struct run *
run_new(const void *message, size_t bytes, struct th_err *err)
{
	struct gpu_run head;
	if (bytes < sizeof(head)) {
		th_fail(err, TH_E_PROTOCOL, "a RUN of %zu bytes", bytes);
		return NULL;
	}
	memcpy(&head, message, sizeof(head));
	uint64_t sum = sum_chunks(&head);
	if (!has_sides(&head) || head.hashes > 1 || sum == 0) {
		th_fail(err, TH_E_PROTOCOL,
			"a RUN of kind %u with %u ranges to, %u from and %u chunks", head.op,
			head.num_to, head.num_from, head.num_chunks);
		return NULL;
	}
	size_t count = (size_t)head.num_to + head.num_from;
	const size_t each = sizeof(struct gpu_range) + sizeof(struct copy_span) +
			    sizeof(struct imports_entry *);
	if (bytes != sizeof(head) + count * sizeof(struct gpu_range)) {
		th_fail(err, TH_E_PROTOCOL, "a RUN of %zu bytes with %zu ranges", bytes, count);
		return NULL;
	}
	struct run *run = th_calloc(1, sizeof(*run) + count * each);
	struct gpu_range *ranges = (struct gpu_range *)(run + 1);
	memcpy(ranges, (const char *)message + sizeof(head), count * sizeof(*ranges));
	if (!have_bytes(ranges, head.num_to, sum) ||
		!have_bytes(ranges + head.num_to, head.num_from, sum)) {
		th_fail(err, TH_E_PROTOCOL, "a RUN of %" PRIu64 " bytes whose ranges have others",
			sum);
		free(run);
		return NULL;
	}
	run->message = head;
	run->ranges = ranges;
	run->spans = (struct copy_span *)(ranges + count);
	run->holds = (struct imports_entry **)(run->spans + count);
	run->copy.op = (enum gpu_run_op)head.op;
	run->copy.hashes = head.hashes || head.op == GPU_HASH;
	run->copy.bytes = (uint32_t)sum;
	run->copy.chunk_bytes = run->message.chunk_bytes;
	run->copy.num_chunks = head.num_chunks;
	return run;
}

/* ---- where it lies -------------------------------------------------------------------------- */

static int
gpu_run_refuse(struct run *run, int code, const char *text)
{
	run->copy.code = code;
	snprintf(run->copy.text, sizeof(run->copy.text), "%.*s", (int)GPU_TEXT_BYTES - 1, text);
	return code;
}

int
run_hold(struct run *run, struct imports *imports, struct areas *areas)
{
	const struct gpu_run *message = &run->message;
	uint32_t count = message->num_to + message->num_from;
	for (uint32_t i = 0; i < count; i++) {
		struct imports_entry *entry =
			imports_hold(imports, run->ranges[i].worker, run->ranges[i].piece);
		if (!entry)
			return gpu_run_refuse(run, TH_E_STALE_MEMORY,
				"a piece of a worker's GPU memory is not open");
		run->holds[run->num_holds++] = entry;
	}
	if (run->copy.op == GPU_COPY || run->copy.op == GPU_HASH)
		return 0;
	run->area = areas_use(areas, message->area, message->area_at, run->copy.bytes);
	if (!run->area)
		return gpu_run_refuse(
			run, TH_E_PROTOCOL, "the host memory of a copy is in no area");
	return 0;
}

/* Ranges that follow each other in memory become one span: each costs a call of the driver. */
static int
gpu_run_place(struct run *run, uint32_t first, uint32_t count, uint32_t *ret_count)
{
	struct copy_span *spans = run->spans + first;
	uint32_t placed = 0;
	for (uint32_t i = 0; i < count; i++) {
		const struct gpu_range *range = &run->ranges[first + i];
		const struct cuda_import *import = NULL;
		int rc = imports_where(run->holds[first + i], &import);
		if (rc != 0)
			return rc; /* it is on its way: what has failed was refused before */
		if (!th_range_fits(range->at, range->bytes, import->bytes))
			return gpu_run_refuse(run, TH_E_PROTOCOL,
				"a range is not within its piece of a worker's GPU memory");
		CUdeviceptr address = import->address + range->at;
		if (placed > 0 && spans[placed - 1].address + spans[placed - 1].bytes == address &&
			run->holds[first + i] == run->holds[first + i - 1])
			spans[placed - 1].bytes += range->bytes;
		else
			spans[placed++] = (struct copy_span){address, range->bytes};
	}
	*ret_count = placed;
	return 0;
}

int
run_place(struct run *run)
{
	struct copy_run *copy = &run->copy;
	const struct cuda_import *import;
	/* First: the agent may say at once again what has failed, so nobody may hold it still. */
	for (uint32_t i = 0; i < run->num_holds; i++) {
		if (imports_where(run->holds[i], &import) < 0)
			return gpu_run_refuse(run, TH_E_STALE_MEMORY,
				"a piece of a worker's GPU memory is not open");
	}
	if (run->area && !run->area->ready)
		return 1;
	if (run->area && !run->area->data)
		return gpu_run_refuse(run, TH_E_MEMORY_KIND, run->area->err.text);
	int rc = gpu_run_place(run, 0, run->message.num_to, &copy->num_to);
	if (rc == 0)
		rc = gpu_run_place(
			run, run->message.num_to, run->message.num_from, &copy->num_from);
	if (rc != 0)
		return rc;
	copy->to = run->spans;
	copy->from = run->spans + run->message.num_to;
	if (run->area) {
		copy->data = run->area->data + run->message.area_at;
		if (run->area->on_gpu)
			copy->data_on_gpu = run->area->on_gpu + run->message.area_at;
	}
	return 0;
}

void
run_free(struct run *run, struct imports *imports)
{
	for (uint32_t i = 0; i < run->num_holds; i++)
		imports_release(imports, run->holds[i]);
	areas_done(run->area);
	free(run);
}
