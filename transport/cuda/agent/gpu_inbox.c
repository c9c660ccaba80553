/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_inbox - what any thread wants of a GPU, until the GPU's thread takes it.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "transport/cuda/agent/gpus_own.h"

/* ---- any thread ----------------------------------------------------------------------------- */

void
gpu_wake(struct gpu *gpu)
{
	const uint64_t one = 1;
	while (write(gpu->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

void
gpu_order(struct gpu *gpu, const struct gpu_order *order)
{
	struct gpu_order *own = th_memdup(order, sizeof(*order));
	own->next = NULL;
	pthread_mutex_lock(&gpu->lock);
	*gpu->orders_last = own;
	gpu->orders_last = &own->next;
	pthread_mutex_unlock(&gpu->lock);
	gpu_wake(gpu);
}

void
gpu_take_request(struct gpu *gpu, struct gpu_request *request)
{
	request->next = NULL;
	pthread_mutex_lock(&gpu->lock);
	*gpu->requests_last = request;
	gpu->requests_last = &request->next;
	pthread_mutex_unlock(&gpu->lock);
	gpu_wake(gpu);
}

/* ---- its own -------------------------------------------------------------------------------- */

/* To the other GPUs that may have it. */
static void
gpu_inbox_pass_on(struct gpu *gpu, uint32_t mask, uint64_t worker, uint64_t number)
{
	struct gpus *gpus = gpu->gpus;
	struct gpu_order leave = {.kind = ORDER_LEAVE, .worker = worker, .number = number};
	pthread_mutex_lock(&gpus->lock);
	for (uint32_t i = 0; i < gpus->count; i++) {
		if (i != gpu->index && mask >> i & 1)
			gpu_order(gpus->gpus[i], &leave);
	}
	pthread_mutex_unlock(&gpus->lock);
}

static void
gpu_inbox_obey(struct gpu *gpu, struct gpu_order *order)
{
	struct gpu_space *space = order->space;
	struct gpu_piece *piece = order->piece;
	switch (order->kind) {
	case ORDER_OPEN:
		opens_queue(gpu, piece);
		break;
	case ORDER_FORGET:
		opens_forget(gpu, piece);
		gpu_inbox_pass_on(gpu, order->mask, piece->worker, piece->number);
		piece_release(piece);
		break;
	case ORDER_SETTLED:
		settle_tell(order->settle);
		break;
	case ORDER_END:
		opens_forget_space(gpu, space);
		gpu_inbox_pass_on(gpu, __atomic_load_n(&space->opened_on, __ATOMIC_RELAXED),
			space->worker, GPUS_ALL_PIECES);
		space_end(space);
		break;
	case ORDER_LEAVE:
		opens_leave(gpu, order->worker, order->number);
		break;
	case ORDER_HOST_LEAVES:
		pins_forget(gpu, order->host);
		break;
	}
}

bool
inbox_take(struct gpu *gpu)
{
	uint64_t times;
	while (read(gpu->wake_fd, &times, sizeof(times)) < 0 && errno == EINTR)
		;
	pthread_mutex_lock(&gpu->lock);
	struct gpu_request *request = gpu->requests;
	struct gpu_order *order = gpu->orders;
	bool stops = gpu->stops;
	if (gpu->is_new) {
		gpu->status = (struct gpu_status){0};
		gpu->gathers_why[0] = 0;
		gpu->starts_failed = gpu->deaths = 0;
		gpu->not_before_ns = 0;
		gpu->is_new = gpu->fails = gpu->none = false;
	}
	gpu->is_free = gpu->is_free && !request && !order;
	gpu->requests = NULL;
	gpu->requests_last = &gpu->requests;
	gpu->orders = NULL;
	gpu->orders_last = &gpu->orders;
	pthread_mutex_unlock(&gpu->lock);
	while (order) {
		struct gpu_order *next = order->next;
		gpu_inbox_obey(gpu, order);
		free(order);
		order = next;
	}
	while (request) {
		struct gpu_request *next = request->next;
		jobs_add(gpu, request);
		request = next;
	}
	return stops;
}
