/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_gpu - see memory_gpu.h. Main thread only.
 */
#include "daemon/host/memory/memory_gpu.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/host/memory/gpu_hold.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/base/stranger_fd.h"
#include "ipc/cuda/cuda_handle.h"
#include "transport/cuda/agent/gpus.h"
#include "transport/part/fd_memory.h"

_Static_assert(sizeof(struct cuda_handle) == FDMSG_HANDLE_BYTES, "what a message carries");
_Static_assert(GPUS_MAX == MEMORY_GPUS_MAX, "a place for each");

/* Of no file: st_dev has fewer bits. */
#define GPU_DEV UINT64_MAX

static bool
has_descriptor(uint32_t kind)
{
	return kind != CUDA_KIND_LEGACY;
}

/* What does not depend on who has sent it. Mistakes of a worker have a sentence each. */
static int
memory_gpu_check(const struct fdmsg_gpu *message, const struct cuda_handle *handle, int fd,
	struct th_err *err)
{
	uint64_t end;
	if (handle->kind < CUDA_KIND_LEGACY || handle->kind >= CUDA_KIND_CLOSED)
		return th_fail(err, TH_E_MEMORY_KIND,
			"GPU memory of a kind that this agent does not know (%" PRIu32
			"); libthc is newer than the agent: upgrade that",
			handle->kind);
	if (message->reserved != 0 || handle->reserved != 0)
		return th_fail(err, TH_E_INVALID, "GPU memory: a field that must be 0 is not");
	if (message->bytes == 0 || !th_add_u64(message->base, message->bytes, &end))
		return th_fail(err, TH_E_INVALID,
			"GPU memory at 0x%" PRIx64 ": %" PRIu64 " bytes are no range",
			message->base, message->bytes);
	if (handle->bytes != message->bytes)
		return th_fail(err, TH_E_INVALID,
			"GPU memory at 0x%" PRIx64 ": a piece of %" PRIu64
			" bytes with a handle of %" PRIu64,
			message->base, message->bytes, handle->bytes);
	if (has_descriptor(handle->kind) != (fd >= 0))
		return th_fail(err, TH_E_INVALID, "GPU memory at 0x%" PRIx64 " (%s): %s",
			message->base, cuda_kind_name((enum cuda_kind)handle->kind),
			fd >= 0 ? "a descriptor where there is none" : "it has no descriptor");
	if (fd >= 0 && !stranger_may_be_drivers(fd))
		return th_fail(err, TH_E_INVALID,
			"GPU memory at 0x%" PRIx64 " (%s): its descriptor is of no device and no "
			"memory, as a driver's are",
			message->base, cuda_kind_name((enum cuda_kind)handle->kind));
	return 0;
}

/* ---- spaces ---------------------------------------------------------------------------------- */

static struct memory_gpu *
memory_gpu_find_gpu(struct memory_set *set, const uint8_t uuid[16])
{
	for (uint32_t i = 0; i < MEMORY_GPUS_MAX; i++) {
		struct memory_gpu *gpu = &set->gpus[i];
		if (gpu->space && memcmp(gpu_space_uuid(gpu->space), uuid, 16) == 0)
			return gpu;
	}
	return NULL;
}

static void
free_gpu(struct memory_gpu *gpu)
{
	fd_memory_release(gpu->access);
	gpu_space_release(gpu->space);
	*gpu = (struct memory_gpu){0};
}

/* The worker's on this GPU, which begins with the first piece; NULL with a sentence. */
static struct memory_gpu *
take_gpu(struct memory_set *set, const struct memory_gpu_limits *limits, const uint8_t uuid[16],
	struct th_err *err)
{
	struct memory_gpu *gpu = memory_gpu_find_gpu(set, uuid);
	for (uint32_t i = 0; !gpu && i < MEMORY_GPUS_MAX; i++) {
		if (!set->gpus[i].space)
			gpu = &set->gpus[i];
	}
	if (!gpu) {
		th_fail(err, TH_E_LIMIT, "a worker may share memory of at most %u GPUs",
			MEMORY_GPUS_MAX);
		return NULL;
	}
	if (gpu->space)
		return gpu;
	gpu->space = gpu_space_new(limits->gpus, uuid, limits->label, err);
	if (!gpu->space) {
		/* A want of ours is as one of the GPU's process: the worker copies by itself. */
		if (th_is_errno(err->code))
			err->code = TH_E_MEMORY_KIND;
		return NULL;
	}
	gpu->access = fd_memory_new_gpu(limits->gpus, gpu->space);
	if (gpu->access)
		return gpu;
	free_gpu(gpu);
	th_fail(err, -ENOMEM, "the agent is out of memory");
	return NULL;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static bool
overlaps(const struct memory *object, const struct fdmsg_gpu *message)
{
	return object->base < message->base + message->bytes &&
	       message->base < object->base + object->bytes;
}

/* The worker gave the memory back, and has other memory there by now. */
static void
make_way(struct memory_set *set, const struct fdmsg_gpu *message)
{
	for (uint32_t i = 0; set->forgotten > 0 && i < set->count; i++) {
		const struct memory *object = &set->objects[i];
		if (object->space && object->forgotten && overlaps(object, message))
			memory_drop(set, i);
	}
}

struct hold *
memory_gpu_hold(struct memory_set *set)
{
	if (!set->hold)
		set->hold = hold_new();
	hold_use(set->hold);
	return set->hold;
}

static int
memory_gpu_add_piece(struct memory_set *set, struct memory_gpu *gpu,
	const struct fdmsg_gpu *message, const struct cuda_handle *handle, int *fd,
	uint64_t process, struct th_err *err, uint32_t *ret_id)
{
	struct memory object = {
		.dev = GPU_DEV,
		.ino = process,
		.base = message->base,
		.offset = message->base, /* an access' places are the worker's addresses */
		.bytes = message->bytes,
		.space = gpu->space,
		.gpu = (uint32_t)(gpu - set->gpus),
		.gpu_kind = handle->kind,
		.owner = *fd >= 0,
	};
	const struct gpu_piece_user user = {.arg = memory_gpu_hold(set), .gone = hold_end};
	int rc = gpu_space_add(gpu->space, handle, message->base, th_fd_move(fd), &user, err);
	if (rc < 0)
		return rc;
	object.access = fd_memory_retain(gpu->access);
	gpu->objects++;
	set->descriptors += object.owner;
	*ret_id = memory_append(set, &object);
	return 0;
}

int
memory_gpu_add(struct memory_set *set, const struct fdmsg_gpu *message, int *fd,
	const struct memory_limits *limits, const struct memory_gpu_limits *gpu_limits,
	bool registered, struct th_err *err, uint32_t *ret_id)
{
	struct cuda_handle handle;
	if (!gpu_limits->gpus)
		return th_fail(err, TH_E_MEMORY_KIND, "%s", gpu_limits->why_not);
	/* Each time takes the memory of all other workers along for a moment. */
	if (set->poisoned)
		return th_fail(err, TH_E_MEMORY_KIND,
			"the process of a GPU ended too often when it opened memory of %s, whose "
			"memory is not opened any more, until it opens a handle anew",
			gpu_limits->label);
	memcpy(&handle, message->handle, sizeof(handle));
	int rc = memory_gpu_check(message, &handle, *fd, err);
	if (rc == 0)
		rc = memory_reserve(set, limits->objects_max, err);
	if (rc == 0 && *fd >= 0 && limits->kept_by_all >= limits->descriptors_max)
		rc = memory_no_descriptors(limits, err);
	if (rc < 0)
		return rc;
	if (!registered)
		make_way(set, message);
	struct memory_gpu *gpu = take_gpu(set, gpu_limits, handle.uuid, err);
	if (!gpu)
		return err->code;
	rc = memory_gpu_add_piece(set, gpu, message, &handle, fd, gpu_limits->process, err, ret_id);
	if (gpu->objects == 0)
		free_gpu(gpu);
	return rc;
}

bool
memory_gpu_has(const struct memory *object, uint64_t offset, uint64_t bytes)
{
	uint64_t end, address = object->base + offset;
	return offset < object->bytes && th_add_u64(address, bytes, &end) &&
	       gpu_space_has(object->space, address, bytes);
}

void
memory_gpu_forget_all(struct memory_set *set)
{
	for (uint32_t i = 0; i < set->count; i++) {
		struct memory *object = &set->objects[i];
		if (!object->space && !object->dmabuf)
			continue;
		set->forgotten += !object->forgotten;
		object->forgotten = true;
		set->let_go_id = object->id;
	}
}

void
memory_gpu_drop(struct memory_set *set, struct memory *object)
{
	struct memory_gpu *gpu = &set->gpus[object->gpu];
	set->poisoned = set->poisoned || gpu_space_is_poisoned(object->space);
	gpu_space_forget(object->space, object->base);
	set->descriptors -= object->owner;
	object->owner = false;
	object->space = NULL;
	if (--gpu->objects == 0)
		free_gpu(gpu);
}

const char *
memory_gpu_kind(const struct memory *object)
{
	return cuda_kind_name((enum cuda_kind)object->gpu_kind);
}
