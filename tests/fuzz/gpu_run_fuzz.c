/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_run_fuzz - a RUN as the agent, or what has taken its place, may send it to the process of a
 * GPU. What is taken has as many bytes on each side as its chunks, and no range behind the end.
 */
#include "transport/cuda/helper/gpu_run.h"

#include <stdlib.h>

#include "ipc/base/assert.h"
#include "tests/fuzz/input.h"
#include "transport/part/chunk.h"

static uint64_t
sum(const struct gpu_range *ranges, uint32_t count)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < count; i++) {
		TH_ASSERT(ranges[i].bytes > 0 && ranges[i].at <= UINT64_MAX - ranges[i].bytes);
		bytes += ranges[i].bytes;
	}
	return bytes;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct th_err err = {0};
	struct run *run = run_new(data, size, &err);

	if (run == NULL) {
		TH_ASSERT(err.code == TH_E_PROTOCOL && err.text[0] != '\0');
		return 0;
	}
	const struct gpu_run *message = &run->message;
	const struct copy_run *copy = &run->copy;
	uint64_t chunks = 0;
	TH_ASSERT(message->num_to <= GPU_RANGES_MAX && message->num_from <= GPU_RANGES_MAX);
	TH_ASSERT(copy->num_chunks >= 1 && copy->num_chunks <= GPU_RUN_CHUNKS_MAX);
	for (uint32_t i = 0; i < copy->num_chunks; i++) {
		TH_ASSERT(copy->chunk_bytes[i] > 0 && copy->chunk_bytes[i] <= CHUNK_BYTES_MAX);
		chunks += copy->chunk_bytes[i];
	}
	TH_ASSERT(copy->bytes == chunks);
	if (message->num_to > 0)
		TH_ASSERT(sum(run->ranges, message->num_to) == chunks);
	if (message->num_from > 0)
		TH_ASSERT(sum(run->ranges + message->num_to, message->num_from) == chunks);
	free(run);
	return 0;
}
