/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_tensors - see gpu_tensors.h. What the driver says of an address is in ipc/cuda/cuda_memory.h.
 */
#include "libthc/gpu_tensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/cuda/cuda_handle.h"
#include "libthc/given.h"
#include "libthc/libthc_own.h"
#include "libthc/own_memory.h"
#include "libthc/register.h"

_Static_assert(sizeof(struct cuda_handle) == FDMSG_HANDLE_BYTES, "it travels");

/* ---- the driver ---------------------------------------------------------------------------- */

static struct cuda driver; /* under the lock of own_memory.h until it is there, then read-only */

int
gpu_driver(const struct cuda **ret_cuda, struct th_err *err)
{
	int rc = 0;

	/* That lock, because fork takes it: no child finds it held by a thread that is gone. */
	memory_lock();
	if (driver.library == NULL)
		rc = cuda_open(&driver, err);
	memory_unlock();
	if (rc < 0)
		return err->code = THC_E_MEMORY_KIND;
	*ret_cuda = &driver;
	return 0;
}

/* ---- pieces -------------------------------------------------------------------------------- */

static struct gpu_part *
gpu_tensors_part_of(const struct gpu_set *set, int device)
{
	for (size_t i = 0; i < set->count; i++)
		if (set->parts[i].memory.device == device)
			return &set->parts[i];
	return NULL;
}

static struct gpu_part *
part_add(struct gpu_set *set, int device)
{
	struct gpu_part *part = gpu_tensors_part_of(set, device);

	if (part != NULL)
		return part;
	struct gpu_part *more = reallocarray(set->parts, set->count + 1, sizeof(*more));
	if (more == NULL)
		return NULL;
	set->parts = more;
	part = &more[set->count++];
	memset(part, 0, sizeof(*part));
	cuda_memory_init(&part->memory, device);
	return part;
}

/* The index of the piece; there is one. */
static size_t
gpu_tensors_index_of(const struct gpu_part *part, uint64_t address)
{
	return (size_t)(cuda_memory_find(&part->memory, address) - part->memory.pieces);
}

static int
add_to(struct gpu_part *part, const struct cuda *cuda, const struct checked_tensor *tensor,
	struct th_err *err)
{
	const size_t known = part->memory.count;
	int rc = cuda_memory_add(&part->memory, cuda, tensor->start, tensor->bytes, err);

	if (rc < 0 || part->memory.count == known)
		return rc;
	sent_lock();
	rc = cuda_memory_check_pool(
		cuda, part->memory.device, cuda_memory_find(&part->memory, tensor->start), err);
	sent_unlock();
	return rc;
}

int
gpu_add(struct gpu_set *set, struct checked_tensor *tensor)
{
	const struct cuda *cuda = NULL;
	struct th_err err = {0};
	struct gpu_part *part = NULL;
	int rc = gpu_driver(&cuda, &err);

	if (rc == 0) {
		part = part_add(set, tensor->device);
		rc = part != NULL ? add_to(part, cuda, tensor, &err)
				  : th_fail(&err, -ENOMEM, "out of memory for its place");
	}
	if (rc < 0)
		return shim_fail(rc, "tensors[%zu].data: '%s' is said to lie on GPU %d: %s",
			tensor->index, tensor->name, tensor->device, err.text);
	tensor->way = WAY_GPU;
	uint64_t end = tensor->start + tensor->bytes;
	for (size_t i = gpu_tensors_index_of(part, tensor->start);
		i < part->memory.count && part->memory.pieces[i].base < end; i++)
		if (part->memory.pieces[i].kind == CUDA_KIND_CLOSED)
			tensor->way = WAY_COPIED;
	return 0;
}

void
gpu_free(struct gpu_set *set)
{
	for (size_t i = 0; i < set->count; i++) {
		cuda_memory_end(&set->parts[i].memory);
		free(set->parts[i].ranges);
	}
	free(set->parts);
	*set = (struct gpu_set){0};
}

const struct cuda_piece *
gpu_find(const struct gpu_set *set, int device, uint64_t address, uint64_t *ret_serial)
{
	const struct gpu_part *part = gpu_tensors_part_of(set, device);
	const struct cuda_piece *piece =
		part != NULL ? cuda_memory_find(&part->memory, address) : NULL;

	if (piece != NULL)
		*ret_serial = part->first_serial + (uint64_t)(piece - part->memory.pieces);
	return piece;
}

/* ---- to the agent -------------------------------------------------------------------------- */

/* For each piece, whether a tensor that the agent reaches there lies in it. */
static bool *
find_used(const struct gpu_part *part, const struct checked_tensor *tensors, size_t count)
{
	const struct cuda_memory *memory = &part->memory;
	bool *used = calloc(memory->count, sizeof(*used));

	for (size_t i = 0; used != NULL && i < count; i++) {
		if (tensors[i].way != WAY_GPU || tensors[i].device != memory->device)
			continue;
		uint64_t end = tensors[i].start + tensors[i].bytes;
		for (size_t p = gpu_tensors_index_of(part, tensors[i].start);
			p < memory->count && memory->pieces[p].base < end; p++)
			used[p] = true;
	}
	return used;
}

/* One dma-buf may span what lies behind each other in one range of addresses. */
static int
find_ranges(struct gpu_part *part, const bool *used)
{
	const struct cuda_memory *memory = &part->memory;
	const struct cuda_piece *last = NULL;

	part->ranges = calloc(memory->count, sizeof(*part->ranges));
	if (part->ranges == NULL)
		return -ENOMEM;
	for (size_t i = 0; i < memory->count; i++) {
		const struct cuda_piece *piece = &memory->pieces[i];
		if (!used[i] || !piece->rdma) {
			last = NULL;
			continue;
		}
		if (last == NULL || last->range != piece->range ||
			last->base + last->bytes != piece->base)
			part->ranges[part->num_ranges++].start = piece->base;
		part->ranges[part->num_ranges - 1].end = piece->base + piece->bytes;
		last = piece;
	}
	return 0;
}

static int
send_piece(
	struct sender *sender, const struct cuda *cuda, const struct gpu_part *part, size_t index)
{
	const struct cuda_piece *piece = &part->memory.pieces[index];
	struct fdmsg_gpu message = {.base = piece->base, .bytes = piece->bytes};
	struct cuda_handle handle;
	struct th_err err = {0};
	int *fd = &sender->shard->giving;

	/* A forked child would keep the memory allocated: it closes what lies there. */
	sent_lock();
	int rc = cuda_handle_make(cuda, part->memory.device, piece, &handle, fd, &err);
	sent_unlock();
	if (rc < 0)
		return shim_fail(rc, "%s", err.text);
	memcpy(message.handle, &handle, sizeof(message.handle));
	rc = sender_send(sender, part->first_serial + index, FDMSG_GPU, &message, sizeof(message),
		*fd >= 0 ? fd : NULL);
	sent_close(sender->shard);
	return rc;
}

static int
send_pieces(struct thc_shard *shard, const struct cuda *cuda, const struct gpu_part *part,
	const bool *used, int64_t until_ns)
{
	struct sender sender;
	int rc = 0;

	sender_begin(&sender, shard, until_ns);
	for (size_t i = 0; rc == 0 && i < part->memory.count; i++)
		if (used[i])
			rc = send_piece(&sender, cuda, part, i);
	return sender_end(&sender, rc);
}

static int
send_range(struct sender *sender, const struct cuda *cuda, struct gpu_part *part, size_t index)
{
	const struct gpu_range *range = &part->ranges[index];
	struct fdmsg_memory message = {
		.kind = FDMSG_DMABUF, .base = range->start, .bytes = range->end - range->start};
	struct th_err err = {0};
	int *fd = &sender->shard->giving;

	sent_lock();
	int rc = cuda_dmabuf_make(
		cuda, part->memory.device, range->start, message.bytes, fd, &message.offset, &err);
	sent_unlock();
	if (rc < 0) {
		if (part->no_nic[0] == '\0')
			(void)snprintf(part->no_nic, sizeof(part->no_nic), "%.190s", err.text);
		return 0;
	}
	rc = sender_send(sender, part->first_serial + part->memory.count + index, FDMSG_MEMORY,
		&message, sizeof(message), fd);
	sent_close(sender->shard);
	return rc;
}

static int
send_ranges(
	struct thc_shard *shard, const struct cuda *cuda, struct gpu_part *part, int64_t until_ns)
{
	struct sender sender;
	int rc = 0;

	sender_begin(&sender, shard, until_ns);
	sender.tolerant = true;
	for (size_t i = 0; rc == 0 && i < part->num_ranges; i++)
		rc = send_range(&sender, cuda, part, i);
	rc = sender_end(&sender, rc);
	if (sender.failed && part->no_nic[0] == '\0')
		(void)snprintf(part->no_nic, sizeof(part->no_nic), "%.190s", sender.failure.text);
	return rc;
}

/* Its pieces; the ranges are found. */
static int
gpu_tensors_send_part(struct thc_shard *shard, const struct cuda *cuda, struct gpu_part *part,
	struct checked_tensors *checked, int64_t until_ns)
{
	bool *used = find_used(part, checked->tensors, checked->count);
	int rc = used != NULL ? find_ranges(part, used) : -ENOMEM;

	if (rc < 0)
		rc = shim_fail(
			rc, "out of memory for %zu pieces of GPU memory", part->memory.count);
	part->first_serial = memory_serials(part->memory.count + part->num_ranges);
	if (rc == 0) {
		checked->gpu_given = true;
		rc = send_pieces(shard, cuda, part, used, until_ns);
	}
	free(used);
	return rc;
}

int
gpu_send(struct thc_shard *shard, struct gpu_set *set, struct checked_tensors *checked,
	int64_t until_ns)
{
	const struct checked_tensor *first = NULL;
	const struct cuda *cuda = NULL;
	struct th_err err = {0};

	for (size_t i = 0; first == NULL && i < checked->count; i++)
		if (checked->tensors[i].way == WAY_GPU)
			first = &checked->tensors[i];
	if (first == NULL)
		return 0;
	if ((shard->features & FDMSG_FEATURE_GPU) == 0)
		return shim_fail(THC_E_MEMORY_KIND,
			"tensors[%zu].device: '%s' lies on GPU %d, and this agent knows nothing of "
			"GPU memory; upgrade thagentd",
			first->index, first->name, first->device);
	int rc = gpu_driver(&cuda, &err);
	if (rc < 0)
		return shim_fail(rc, "tensors: %s", err.text);
	for (size_t i = 0; rc == 0 && i < set->count; i++)
		rc = gpu_tensors_send_part(shard, cuda, &set->parts[i], checked, until_ns);
	/* Behind all pieces: of memory objects there is a limit, and these may be missing. */
	for (size_t i = 0; rc == 0 && i < set->count; i++) {
		struct gpu_part *part = &set->parts[i];
		/* Copy mode: no NIC is to know of it. */
		if ((shard->open_flags & THC_STAGED) != 0)
			(void)snprintf(part->no_nic, sizeof(part->no_nic), "THC_STAGED");
		else
			rc = send_ranges(shard, cuda, part, until_ns);
	}
	return rc;
}

void
gpu_forget(struct thc_shard *shard, struct gpu_set *set)
{
	for (size_t i = set->count; i > 0; i--) {
		struct gpu_part *part = &set->parts[i - 1];
		if (part->first_serial == 0)
			continue; /* the agent was given nothing of it */
		/* The last first: what the agent was given is kept by serial. */
		for (size_t p = part->memory.count + part->num_ranges; p > 0; p--)
			sent_forget(shard, part->first_serial + p - 1);
		free(part->ranges);
		part->ranges = NULL;
		part->num_ranges = 0;
		part->first_serial = 0;
	}
}

/* ---- is it still there --------------------------------------------------------------------- */

int
gpu_look(const struct gpu_set *set, uint64_t *ret_at, struct th_err *err)
{
	const struct cuda *cuda = NULL;
	CUresult result = CUDA_SUCCESS;

	if (set->count == 0)
		return 0;
	*ret_at = set->parts[0].memory.pieces[0].base;
	int rc = gpu_driver(&cuda, err);
	for (size_t i = 0; rc == 0 && i < set->count; i++) {
		const struct cuda_piece *piece =
			cuda_memory_stale(&set->parts[i].memory, cuda, &result);
		if (piece == NULL)
			continue;
		*ret_at = piece->base;
		/* The driver knows no memory there, or other memory. */
		if (result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE)
			return th_fail(err, THC_E_STALE_MEMORY,
				"is not what was registered (freed, asleep, or mapped anew); "
				"thc_unregister, and register what is there when it is awake");
		return th_fail(err, THC_E_MEMORY_KIND,
			"cannot be looked at, as the CUDA driver says %s; where the GPU or its "
			"context in this process has failed, only a new process can use it",
			cuda_result_name(cuda, result));
	}
	return rc;
}

/* ---- for people ---------------------------------------------------------------------------- */

static bool
nic_reaches(const struct thc_shard *shard, const struct gpu_part *part, uint64_t address)
{
	for (size_t i = 0; i < part->num_ranges; i++)
		if (address >= part->ranges[i].start && address < part->ranges[i].end)
			return sent_find(shard, part->first_serial + part->memory.count + i) !=
			       NULL;
	return false;
}

void
gpu_path(const struct thc_shard *shard, int device, uint64_t address, char *ret_text,
	size_t text_bytes)
{
	uint64_t serial = 0;
	const struct gpu_part *part = gpu_tensors_part_of(&shard->gpus, device);
	const struct cuda_piece *piece = gpu_find(&shard->gpus, device, address, &serial);
	const struct sent_memory *sent = sent_find(shard, serial);

	if (piece == NULL)
		(void)snprintf(ret_text, text_bytes, "cuda-ipc");
	else if (nic_reaches(shard, part, address))
		(void)snprintf(ret_text, text_bytes, "%s (%s on GPU %d, with a dma-buf for NICs)",
			sent != NULL ? sent->path : "cuda-ipc", cuda_kind_name(piece->kind),
			device);
	else
		(void)snprintf(ret_text, text_bytes, "%s (%s on GPU %d, no dma-buf: %s)",
			sent != NULL ? sent->path : "cuda-ipc", cuda_kind_name(piece->kind), device,
			!piece->rdma              ? "this memory is for no NIC"
			: part->no_nic[0] != '\0' ? part->no_nic
						  : "it was refused");
}
