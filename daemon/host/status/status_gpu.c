/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status_gpu - see status_gpu.h. Main thread only.
 */
#include "daemon/host/status/status_gpu.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/host/host.h"
#include "daemon/host/memory/memory_gpu.h"
#include "daemon/host/worker/doc_channel.h"
#include "ipc/base/alloc.h"
#include "ipc/cuda/cuda_handle.h"
#include "transport/cuda/agent/gpus.h"

#define STATUS_MEMORY_MAX 64u /* of a session: thousands are no answer */

struct gpu_storage {
	Tensorhub__V1__GpuInfo info;
	char uuid[CUDA_UUID_TEXT_BYTES];
};

struct status_gpu {
	Tensorhub__V1__GpusInfo info;
	struct gpu_status statuses[GPUS_MAX];
	struct gpu_storage gpus[GPUS_MAX];
	Tensorhub__V1__GpuInfo *list[GPUS_MAX];
};

struct memory_storage {
	Tensorhub__V1__MemoryInfo info;
	const struct memory *last; /* of those that follow each other */
	char uuid[CUDA_UUID_TEXT_BYTES];
};

struct status_memory {
	struct memory_storage memory[STATUS_MEMORY_MAX];
	Tensorhub__V1__MemoryInfo *list[STATUS_MEMORY_MAX];
};

/* ---- GPUs ------------------------------------------------------------------------------------ */

static void
fill_gpu(struct gpu_status *status, struct gpu_storage *storage)
{
	Tensorhub__V1__GpuInfo *info = &storage->info;
	tensorhub__v1__gpu_info__init(info);
	info->uuid = cuda_uuid_text(status->uuid, storage->uuid);
	info->name = status->name;
	info->pci = status->pci;
	info->pid = status->pid;
	/* What a context takes is not always known. */
	info->context_bytes = status->context_bytes + status->own_bytes;
	info->workers = status->spaces;
	info->pieces = status->pieces;
	info->imports = status->imports;
	info->import_bytes = status->import_bytes;
	info->running = status->running;
	info->starts = status->starts;
	info->kills = status->kills;
	info->ends = status->ends;
	info->bytes_read = status->bytes_read;
	info->bytes_written = status->bytes_written;
	info->bytes_copied = status->bytes_copied;
	info->bytes_hashed = status->bytes_hashed;
	info->hashes = status->hashes_on_gpu;
	info->hashes_why = status->hashes_why;
	info->why = status->text;
	info->pinned_bytes = status->pinned_bytes;
}

struct status_gpu *
status_gpu_new(const struct host *host)
{
	struct gpus *gpus = host->gpu.gpus;
	struct status_gpu *status = th_calloc(1, sizeof(*status));
	struct gpus_stage_status stage = {0};
	Tensorhub__V1__GpusInfo *info = &status->info;
	tensorhub__v1__gpus_info__init(info);
	info->used = gpus != NULL;
	info->why = documents_text(gpus ? "" : "gpu=off");
	info->gpus = status->list;
	if (!gpus)
		return status;
	gpus_stage_status(gpus, &stage);
	info->stage_budget = stage.budget_bytes;
	info->stage_bytes = stage.bytes;
	info->stage_in_use = stage.bytes_in_use;
	info->stage_waits = stage.waits;
	info->stage_copied = stage.bytes_copied;
	info->n_gpus = gpus_status(gpus, status->statuses, GPUS_MAX);
	for (size_t i = 0; i < info->n_gpus; i++) {
		fill_gpu(&status->statuses[i], &status->gpus[i]);
		status->list[i] = &status->gpus[i].info;
	}
	return status;
}

void
status_gpu_free(struct status_gpu *status)
{
	free(status);
}

Tensorhub__V1__GpusInfo *
status_gpu_info(struct status_gpu *status)
{
	return &status->info;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static const char *
path_of(const struct memory *object)
{
	if (object->space)
		return "cuda-ipc";
	if (object->dmabuf)
		return "dma-buf";
	if (object->shadow)
		return "worker-copy";
	return object->map ? "direct" : "copy";
}

static const char *
kind_of(const struct memory *object)
{
	if (object->space)
		return memory_gpu_kind(object);
	if (object->dmabuf)
		return "for NICs";
	if (object->shadow)
		return "of GPU memory";
	if (object->map)
		return "memfd";
	return object->process ? "process" : "file";
}

/* The next one where the last one ends, and of its kind. */
static bool
status_gpu_follows(const struct memory *last, const struct memory *object)
{
	return last->base + last->bytes == object->base && last->space == object->space &&
	       last->gpu_kind == object->gpu_kind && !last->map == !object->map &&
	       last->process == object->process && last->dmabuf == object->dmabuf &&
	       last->shadow == object->shadow;
}

static void
status_gpu_begin(const struct memory *object, struct memory_storage *storage)
{
	Tensorhub__V1__MemoryInfo *info = &storage->info;
	tensorhub__v1__memory_info__init(info);
	info->path = documents_text(path_of(object));
	info->kind = documents_text(kind_of(object));
	if (object->space)
		info->gpu = cuda_uuid_text(gpu_space_uuid(object->space), storage->uuid);
	info->address = object->base;
}

struct status_memory *
status_memory_new(const struct memory_set *memory, Tensorhub__V1__SessionInfo *info)
{
	if (memory->count == memory->gone)
		return NULL;
	struct status_memory *status = th_calloc(1, sizeof(*status));
	info->memory = status->list;
	for (uint32_t i = 0; i < memory->count; i++) {
		const struct memory *object = &memory->objects[i];
		size_t last = info->n_memory;
		if (object->gone)
			continue;
		if (last == 0 || !status_gpu_follows(status->memory[last - 1].last, object)) {
			if (last == STATUS_MEMORY_MAX) {
				info->memory_more++;
				continue;
			}
			status_gpu_begin(object, &status->memory[last]);
			status->list[last] = &status->memory[last].info;
			info->n_memory = ++last;
		}
		struct memory_storage *storage = &status->memory[last - 1];
		storage->last = object;
		storage->info.bytes += object->bytes;
		storage->info.pieces++;
	}
	return status;
}

void
status_memory_free(struct status_memory *status)
{
	free(status);
}
