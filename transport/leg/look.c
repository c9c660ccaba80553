/* SPDX-License-Identifier: Apache-2.0 */
/*
 * look - see look.h.
 */
#include "transport/leg/look.h"

#include <pthread.h>
#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "transport/cuda/agent/spans.h"
#include "transport/part/chunk.h"

_Static_assert(LOOKS_RUN <= GPU_RUN_CHUNKS_MAX, "a run is one request");

struct look {
	struct look *next; /* guarded by the lock: among the free ones, or those that are back */
	struct looks *looks;
	struct gpu_request request;
	struct gpu_chunk chunks[LOOKS_RUN]; /* of the request */
	uint32_t numbers[LOOKS_RUN];        /* their numbers in the part */
	uint32_t taken;
	struct spans spans;
};

struct looks {
	struct xfer_part *part; /* borrows, as the next two: until looks_free, or looks_stop */
	struct loop *loop;
	struct loop_task *back_task;
	pthread_mutex_t lock;
	/* Guarded by lock. */
	bool stopped, freed;
	uint32_t busy;
	struct look *free, *back, **back_last;
	struct look all[LOOKS_MAX];
};

struct looks *
looks_new(struct xfer_part *part, struct loop *loop, struct loop_task *back)
{
	struct looks *looks = th_calloc(1, sizeof(*looks));
	pthread_mutex_init(&looks->lock, NULL);
	looks->part = part;
	looks->loop = loop;
	looks->back_task = back;
	looks->back_last = &looks->back;
	for (uint32_t i = 0; i < LOOKS_MAX; i++) {
		looks->all[i].looks = looks;
		looks->all[i].next = looks->free;
		looks->free = &looks->all[i];
	}
	return looks;
}

static void
look_destroy(struct looks *looks)
{
	for (uint32_t i = 0; i < LOOKS_MAX; i++)
		spans_fini(&looks->all[i].spans);
	pthread_mutex_destroy(&looks->lock);
	free(looks);
}

void
looks_stop(struct looks *looks)
{
	pthread_mutex_lock(&looks->lock);
	looks->stopped = true;
	pthread_mutex_unlock(&looks->lock);
}

void
looks_free(struct looks *looks)
{
	if (!looks)
		return;
	pthread_mutex_lock(&looks->lock);
	looks->stopped = looks->freed = true;
	bool busy = looks->busy > 0;
	pthread_mutex_unlock(&looks->lock);
	if (!busy)
		look_destroy(looks);
}

/* On the GPU's thread. Posted under the lock: without it the loop could be gone by then. */
static void
look_done(struct gpu_request *request)
{
	struct look *look = loop_container(request, struct look, request);
	struct looks *looks = look->looks;
	pthread_mutex_lock(&looks->lock);
	look->next = NULL;
	*looks->back_last = look;
	looks->back_last = &look->next;
	if (!looks->stopped)
		loop_post(looks->loop, looks->back_task);
	bool last = --looks->busy == 0 && looks->freed;
	pthread_mutex_unlock(&looks->lock);
	if (last)
		look_destroy(looks);
}

/* NULL: stopped. */
static struct look *
take_free(struct looks *looks)
{
	pthread_mutex_lock(&looks->lock);
	TH_ASSERT(looks->stopped || looks->free);
	struct look *look = looks->stopped ? NULL : looks->free;
	if (look) {
		looks->free = look->next;
		looks->busy++;
	}
	pthread_mutex_unlock(&looks->lock);
	return look;
}

uint32_t
looks_begin(struct looks *looks, const uint32_t *chunks, uint32_t count)
{
	uint32_t begun = 0, bytes = 0, spans = 0;
	TH_ASSERT(count > 0 && count <= LOOKS_RUN);
	struct look *look = take_free(looks);
	if (!look)
		return 0;
	while (begun < count && spans_chunk(&look->spans, looks->part, chunks[begun])) {
		spans = look->spans.count;
		look->numbers[begun] = chunks[begun];
		look->chunks[begun].bytes =
			chunk_bytes(xfer_part_table(looks->part), chunks[begun]);
		bytes += look->chunks[begun++].bytes;
	}
	TH_ASSERT(begun > 0);
	look->taken = 0;
	look->request = (struct gpu_request){.op = GPU_HASH,
		.from = look->spans.spans,
		.num_from = spans, /* what follows is of the next one, on another GPU */
		.bytes = bytes,
		.hashes = true,
		.chunks = look->chunks,
		.num_chunks = begun,
		.done = look_done};
	gpu_submit(&look->request);
	return begun;
}

bool
looks_take(struct looks *looks, struct look_result *ret_result)
{
	pthread_mutex_lock(&looks->lock);
	struct look *look = looks->back;
	uint32_t i = look ? look->taken++ : 0;
	bool last = look && look->taken == look->request.num_chunks;
	if (last) {
		looks->back = look->next;
		if (!looks->back)
			looks->back_last = &looks->back;
	}
	pthread_mutex_unlock(&looks->lock);
	if (!look)
		return false;
	*ret_result = (struct look_result){.chunk = look->numbers[i],
		.code = look->request.code,
		.digest = look->chunks[i].digest};
	if (!last)
		return true;
	spans_fini(&look->spans);
	pthread_mutex_lock(&looks->lock);
	look->next = looks->free;
	looks->free = look;
	pthread_mutex_unlock(&looks->lock);
	return true;
}
