/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unpack - see unpack.h. Pure.
 */
#include "daemon/host/worker/unpack.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"

#define ALLOCATION_BYTES 32u /* what malloc keeps beside each piece, roughly */
#define REQUEST_BUDGET (8u << 20)
/*
 * 131072 rows with long names and eight dimensions are 60 MiB; a doubling array is copied once
 * more.
 */
#define ROWS_BUDGET (256u << 20)

struct budget {
	size_t left;
};

static void *
budget_alloc(void *data, size_t bytes)
{
	struct budget *budget = data;
	if (bytes > SIZE_MAX - ALLOCATION_BYTES || bytes + ALLOCATION_BYTES > budget->left)
		return NULL;
	void *memory = malloc(bytes);
	if (memory)
		budget->left -= bytes + ALLOCATION_BYTES;
	return memory;
}

static void
budget_free(void *data, void *memory)
{
	(void)data;
	free(memory);
}

Tensorhub__V1__Request *
unpack_request(const uint8_t *data, size_t bytes)
{
	struct budget budget = {REQUEST_BUDGET};
	ProtobufCAllocator allocator = {budget_alloc, budget_free, &budget};
	return tensorhub__v1__request__unpack(&allocator, bytes, data);
}

void
unpack_request_free(Tensorhub__V1__Request *request)
{
	/* The allocator frees with free(), and so does the default one. */
	if (request)
		tensorhub__v1__request__free_unpacked(request, NULL);
}

/* Every row has each scalar, and the shapes of all rows together are as long as their ranks say. */
static int
check_counts(const Tensorhub__V1__TensorRows *message, struct th_err *err)
{
	size_t count = message->n_name;
	size_t dimensions = 0;
	if (message->n_dtype != count || message->n_ndim != count ||
		message->n_memory_id != count || message->n_memory_offset != count ||
		message->n_bytes != count)
		return th_fail(err, TH_E_INVALID, "a registration with columns of unequal length");
	for (size_t i = 0; i < count; i++) {
		if (message->ndim[i] > MANIFEST_DIMS_MAX)
			return th_fail(err, TH_E_INVALID,
				"tensor '%.255s' has %" PRIu32
				" dimensions; at most %d are allowed",
				message->name[i], message->ndim[i], MANIFEST_DIMS_MAX);
		dimensions += message->ndim[i];
	}
	if (message->n_local_shape != dimensions || message->n_global_shape != dimensions ||
		message->n_offset != dimensions)
		return th_fail(err, TH_E_INVALID,
			"a registration whose shapes do not have the dimensions it states");
	return 0;
}

static void
unpack_fill(const Tensorhub__V1__TensorRows *message, struct manifest_row *rows,
	struct tensors_place *places)
{
	size_t at = 0;
	for (size_t i = 0; i < message->n_name; i++) {
		struct manifest_row *row = &rows[i];
		row->name = message->name[i];
		row->dtype = message->dtype[i];
		row->ndim = message->ndim[i];
		for (uint32_t d = 0; d < row->ndim; d++, at++) {
			row->local_shape[d] = message->local_shape[at];
			row->global_shape[d] = message->global_shape[at];
			row->offset[d] = message->offset[at];
		}
		places[i] = (struct tensors_place){.memory_id = message->memory_id[i],
			.offset = message->memory_offset[i],
			.bytes = message->bytes[i]};
	}
}

int
unpack_rows(const uint8_t *data, size_t bytes, uint32_t tensors_max, struct th_err *err,
	struct unpacked_rows *ret_rows)
{
	struct budget budget = {ROWS_BUDGET};
	ProtobufCAllocator allocator = {budget_alloc, budget_free, &budget};
	Tensorhub__V1__TensorRows *message =
		tensorhub__v1__tensor_rows__unpack(&allocator, bytes, data);
	if (!message)
		return th_fail(err, TH_E_INVALID, "a registration that cannot be read");
	int rc = 0;
	void *storage = NULL;
	size_t count = message->n_name;
	if (count > tensors_max)
		rc = th_fail(err, TH_E_LIMIT,
			"a shard may have at most %" PRIu32
			" tensors (limit.tensors); this one has %zu",
			tensors_max, count);
	else
		rc = check_counts(message, err);
	if (rc == 0) {
		storage = calloc(
			count + 1, sizeof(struct manifest_row) + sizeof(struct tensors_place));
		if (!storage)
			rc = th_fail(
				err, -ENOMEM, "the agent is out of memory for this registration");
	}
	if (rc < 0) {
		tensorhub__v1__tensor_rows__free_unpacked(message, NULL);
		return rc;
	}
	struct manifest_row *rows = storage;
	struct tensors_place *places = (void *)(rows + count);
	unpack_fill(message, rows, places);
	*ret_rows = (struct unpacked_rows){
		.rows = {.count = (uint32_t)count, .rows = rows, .places = places},
		.message = message,
		.storage = storage,
	};
	return 0;
}

void
unpack_rows_free(struct unpacked_rows *rows)
{
	free(rows->storage);
	if (rows->message)
		tensorhub__v1__tensor_rows__free_unpacked(rows->message, NULL);
	*rows = (struct unpacked_rows){0};
}
