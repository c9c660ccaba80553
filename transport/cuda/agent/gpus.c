/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpus - see gpus.h: what concerns all GPUs of the host, and which of them a request goes to.
 */
#include "transport/cuda/agent/gpus.h"

#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/fd.h"
#include "transport/cuda/agent/gpus_own.h"
#include "transport/part/chunk.h"

static void
close_here(int fd, void (*closed)(void *arg), void *arg)
{
	th_fd_close(&fd);
	if (closed)
		closed(arg);
}

int
gpus_new(const struct gpus_config *config, struct th_err *err, struct gpus **ret_gpus)
{
	struct blocks *blocks;
	int rc = blocks_new(config->staging_bytes, err, &blocks);
	if (rc < 0)
		return rc;
	struct gpus *gpus = th_calloc(1, sizeof(*gpus));
	gpus->config = *config;
	if (!gpus->config.close_fd)
		gpus->config.close_fd = close_here;
	gpus->blocks = blocks;
	pthread_mutex_init(&gpus->lock, NULL);
	*ret_gpus = gpus;
	return 0;
}

void
gpus_free(struct gpus *gpus)
{
	if (!gpus)
		return;
	for (uint32_t i = 0; i < gpus->count; i++)
		gpu_stop(gpus->gpus[i]);
	for (uint32_t i = 0; i < gpus->count; i++)
		pthread_join(gpus->gpus[i]->thread, NULL);
	/* What is told now may be the last reference to a space of any GPU. */
	for (uint32_t i = 0; i < 2 * gpus->count; i++)
		gpu_drain(gpus->gpus[i % gpus->count]);
	for (uint32_t i = 0; i < gpus->count; i++)
		gpu_free(gpus->gpus[i]);
	blocks_free(gpus->blocks);
	pthread_mutex_destroy(&gpus->lock);
	free(gpus);
}

static void
check_chunks(const struct gpu_request *request)
{
	const struct gpu_chunk one = {.bytes = request->bytes};
	const struct gpu_chunk *chunks = request->chunks ? request->chunks : &one;
	bool on_gpu = request->op == GPU_COPY || request->op == GPU_HASH;
	uint32_t count = request->chunks ? request->num_chunks : 1, sum = 0;
	TH_ASSERT(count > 0 && count <= (on_gpu ? GPU_RUN_CHUNKS_MAX : 1));
	for (uint32_t i = 0; i < count; i++) {
		TH_ASSERT(chunks[i].bytes > 0 && chunks[i].bytes <= CHUNK_BYTES_MAX);
		sum += chunks[i].bytes;
	}
	TH_ASSERT(sum == request->bytes);
}

void
gpu_submit(struct gpu_request *request)
{
	const struct gpu_span *side = request->num_to > 0 ? request->to : request->from;
	bool has_to = request->op == GPU_WRITE || request->op == GPU_COPY;
	TH_ASSERT(request->num_to > 0 ? has_to : !has_to && request->num_from > 0);
	TH_ASSERT((request->num_from > 0) == (request->op != GPU_WRITE));
	check_chunks(request);
	if (request->host)
		host_retain(request->host);
	request->code = 0;
	gpu_take_request(side->space->home, request);
}

/* ---- status -------------------------------------------------------------------------------- */

uint32_t
gpus_status(struct gpus *gpus, struct gpu_status *ret_status, uint32_t count)
{
	pthread_mutex_lock(&gpus->lock);
	uint32_t num = 0;
	for (uint32_t i = 0; i < gpus->count; i++) {
		struct gpu_status status;
		gpu_show(gpus->gpus[i], &status);
		/* One that a worker named, and nobody has ever seen. */
		if (status.spaces == 0 && status.name[0] == 0)
			continue;
		if (num < count)
			ret_status[num] = status;
		num++;
	}
	pthread_mutex_unlock(&gpus->lock);
	return num;
}
