/* SPDX-License-Identifier: Apache-2.0 */
/*
 * register_check - see register.h. The agent checks everything again: here the caller gets the
 * sentence in the terms of its own call.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/name.h"
#include "libthc/libthc_own.h"
#include "libthc/register.h"

/* Without global_shape and offset: whole tensors, which is what an older header would know. */
#define TENSOR_BYTES_LEAST offsetof(struct thc_tensor, global_shape)

static int
check_form(const struct thc_tensor *tensor, size_t index)
{
	if (tensor->name == NULL)
		return shim_fail(THC_E_INVALID, "tensors[%zu].name: is NULL", index);
	if (!th_name_valid(tensor->name, THC_NAME_MAX))
		return shim_fail(THC_E_INVALID,
			"tensors[%zu].name: must be 1 to %d bytes of UTF-8 without control "
			"characters",
			index, THC_NAME_MAX);
	if (thc_dtype_bits(tensor->dtype) == 0)
		return shim_fail(THC_E_INVALID, "tensors[%zu].dtype: '%s' has the unknown type %d",
			index, tensor->name, (int)tensor->dtype);
	if (tensor->ndim > THC_DIMS_MAX)
		return shim_fail(THC_E_INVALID,
			"tensors[%zu].ndim: '%s' has %" PRIu32
			" dimensions; at most %d are allowed",
			index, tensor->name, tensor->ndim, THC_DIMS_MAX);
	if (tensor->device < THC_HOST)
		return shim_fail(THC_E_INVALID,
			"tensors[%zu].device: '%s' has %" PRId32
			"; give THC_HOST or a CUDA ordinal",
			index, tensor->name, tensor->device);
	return 0;
}

/* Fills the row; a global shape of zeros is the local one. */
static int
check_shape(const struct thc_tensor *tensor, size_t index, struct manifest_row *ret_row)
{
	uint64_t elements = 1, bits = thc_dtype_bits(tensor->dtype), total_bits;
	bool whole = true, empty = false;

	*ret_row = (struct manifest_row){
		.name = tensor->name, .dtype = (uint32_t)tensor->dtype, .ndim = tensor->ndim};
	for (uint32_t d = 0; d < tensor->ndim; d++) {
		whole = whole && tensor->global_shape[d] == 0;
		empty = empty || tensor->local_shape[d] == 0;
	}
	for (uint32_t d = 0; d < tensor->ndim; d++) {
		uint64_t local = tensor->local_shape[d];
		uint64_t global = whole ? local : tensor->global_shape[d];
		uint64_t end;
		if (!th_add_u64(tensor->offset[d], local, &end) || end > global)
			return shim_fail(THC_E_INVALID,
				"tensors[%zu].offset: '%s' reaches out of its global shape in "
				"dimension "
				"%" PRIu32 " (offset %" PRIu64 " + local %" PRIu64
				", global %" PRIu64 ")",
				index, tensor->name, d, tensor->offset[d], local, global);
		if (!empty && (!th_mul_u64(elements, local, &elements) || elements > INT64_MAX))
			return shim_fail(THC_E_INVALID,
				"tensors[%zu].local_shape: the product of '%s' does not fit into "
				"63 bits",
				index, tensor->name);
		ret_row->local_shape[d] = local;
		ret_row->global_shape[d] = global;
		ret_row->offset[d] = tensor->offset[d];
	}
	if (!th_mul_u64(empty ? 0 : elements, bits, &total_bits))
		return shim_fail(THC_E_INVALID,
			"tensors[%zu].local_shape: the size of '%s' does not fit into 64 bits",
			index, tensor->name);
	uint64_t bytes = total_bits / 8 + (total_bits % 8 != 0);
	if (tensor->bytes != bytes)
		return shim_fail(THC_E_INVALID,
			"tensors[%zu].bytes: '%s' has %" PRIu64
			", but its dtype and local_shape make "
			"%" PRIu64,
			index, tensor->name, tensor->bytes, bytes);
	ret_row->bytes = bytes;
	return 0;
}

static int
check_memory(const struct thc_tensor *tensor, size_t index, struct checked_tensor *ret_tensor)
{
	uintptr_t start = (uintptr_t)tensor->data;

	*ret_tensor = (struct checked_tensor){.name = tensor->name,
		.index = index,
		.start = start,
		.bytes = tensor->bytes,
		.device = tensor->device};
	if (tensor->bytes == 0)
		return 0;
	if (tensor->data == NULL)
		return shim_fail(THC_E_INVALID,
			"tensors[%zu].data: is NULL, but '%s' has %" PRIu64 " bytes", index,
			tensor->name, tensor->bytes);
	if (tensor->bytes > UINTPTR_MAX - start)
		return shim_fail(THC_E_INVALID,
			"tensors[%zu].data: '%s' reaches beyond the address space", index,
			tensor->name);
	/* No kernel reads an element there: the caller means another address. */
	uint64_t element = thc_dtype_bits(tensor->dtype) / 8;
	if (tensor->device != THC_HOST && element > 1 && start % element != 0)
		return shim_fail(THC_E_INVALID,
			"tensors[%zu].data: '%s' lies at 0x%" PRIxPTR
			" on GPU %d, which is no multiple of the %" PRIu64
			" bytes of an element: no kernel reads that",
			index, tensor->name, start, tensor->device, element);
	return 0;
}

/* How the agent will reach it; after the overlaps, which are errors however it lies. */
static int
find_memory(struct checked_tensor *tensor, uint32_t open_flags, struct gpu_set *gpus)
{
	size_t index = tensor->index;

	if (tensor->bytes == 0)
		return 0;
	if (tensor->device != THC_HOST)
		return gpu_add(gpus, tensor);
	tensor->way = WAY_PROCESS;
	switch (memory_find((uintptr_t)tensor->start, tensor->bytes, &tensor->object)) {
	case MEMORY_INSIDE:
		tensor->way = tensor->object.way;
		break;
	case MEMORY_PARTLY:
		return shim_fail(THC_E_MEMORY_KIND,
			"tensors[%zu].data: '%s' lies only partly in memory from thc_alloc or "
			"thc_import; it must lie wholly inside or wholly outside",
			index, tensor->name);
	case MEMORY_OUTSIDE:
	default:
		break;
	}
	if (tensor->way != WAY_PROCESS || (open_flags & THC_NO_MEMORY_FD) == 0)
		return 0;
	if (tensor->object.serial == 0)
		return shim_fail(THC_E_MEMORY_KIND,
			"tensors[%zu].data: '%s' is private memory, which this handle does not "
			"give to the agent (THC_NO_MEMORY_FD); take memory from thc_alloc, or a "
			"memfd and thc_import",
			index, tensor->name);
	return shim_fail(THC_E_MEMORY_KIND,
		"tensors[%zu].data: '%s' was imported with a descriptor that the agent cannot use "
		"(%s), and this handle gives it nothing else (THC_NO_MEMORY_FD); import a memfd",
		index, tensor->name, tensor->object.reason);
}

/* ---- overlaps and ties --------------------------------------------------------------------- */

struct placed {
	uint64_t start, bytes;
	uint32_t index;
};

static int
register_check_by_place(const void *a, const void *b)
{
	const struct placed *x = a, *y = b;

	if (x->start != y->start)
		return x->start < y->start ? -1 : 1;
	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? -1 : 1;
	return x->index < y->index ? -1 : 1;
}

/* alias_of[i] is the first tensor with exactly these bytes. Whatever else meets is an error. */
static int
register_check_find_ties(
	const struct checked_tensors *checked, struct placed *places, uint32_t *alias_of)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < checked->count; i++)
		if (checked->tensors[i].bytes > 0)
			places[count++] = (struct placed){
				checked->tensors[i].start, checked->tensors[i].bytes, i};
	qsort(places, count, sizeof(*places), register_check_by_place);
	const struct placed *last = NULL; /* the tensor that the next one may meet */
	for (uint32_t i = 0; i < count; i++) {
		const struct placed *place = &places[i];
		if (last == NULL || place->start - last->start >= last->bytes) {
			last = place;
			continue;
		}
		const struct manifest_row *a = &checked->rows[last->index];
		const struct manifest_row *b = &checked->rows[place->index];
		if (place->start != last->start || place->bytes != last->bytes ||
			!manifest_same_form(a, b))
			return shim_fail(THC_E_INVALID,
				"tensors[%" PRIu32 "].data: '%s' overlaps '%s' (tensors[%" PRIu32
				"]) without being the same bytes, dtype and shape",
				place->index, b->name, a->name, last->index);
		alias_of[place->index] = last->index;
	}
	return 0;
}

/* Names twice, and the limits of a whole shard: by the code that the agent uses too. */
static int
register_check_whole(const struct checked_tensors *checked)
{
	uint32_t *alias_of = malloc(checked->count * sizeof(*alias_of));
	struct placed *places = malloc(checked->count * sizeof(*places));
	struct manifest manifest;
	struct th_err err = {0};
	int rc = -ENOMEM;

	if (alias_of != NULL && places != NULL) {
		memset(alias_of, 0xff, checked->count * sizeof(*alias_of)); /* UINT32_MAX: none */
		rc = register_check_find_ties(checked, places, alias_of);
		if (rc == 0) {
			rc = manifest_build(checked->rows, (uint32_t)checked->count, alias_of, NULL,
				&err, &manifest);
			if (rc == 0)
				manifest_free(&manifest);
			else if (err.code != 0)
				rc = shim_fail(rc, "tensors: %s", err.text);
		}
	}
	if (rc == -ENOMEM)
		rc = shim_fail(rc, "out of memory for %zu tensors", checked->count);
	free(alias_of);
	free(places);
	return rc;
}

static int
check_each(const struct thc_tensor *tensors, size_t tensor_bytes, uint32_t open_flags,
	struct checked_tensors *checked)
{
	const uint8_t *at = (const uint8_t *)tensors;
	struct thc_tensor tensor;

	for (size_t i = 0; i < checked->count; i++, at += tensor_bytes) {
		int rc = struct_take("tensor_bytes", at, tensor_bytes, TENSOR_BYTES_LEAST, &tensor,
			sizeof(tensor));
		if (rc == 0)
			rc = check_form(&tensor, i);
		if (rc == 0)
			rc = check_shape(&tensor, i, &checked->rows[i]);
		if (rc == 0)
			rc = check_memory(&tensor, i, &checked->tensors[i]);
		if (rc < 0)
			return rc;
	}
	int rc = register_check_whole(checked);
	for (size_t i = 0; rc == 0 && i < checked->count; i++)
		rc = find_memory(&checked->tensors[i], open_flags, &checked->gpus);
	return rc;
}

int
tensors_check(const struct thc_tensor *tensors, size_t count, size_t tensor_bytes,
	uint32_t open_flags, struct checked_tensors *ret_checked)
{
	if (tensors == NULL)
		return shim_fail(THC_E_INVALID, "tensors: is NULL");
	if (count == 0)
		return shim_fail(THC_E_INVALID, "count: is 0; a shard has at least one tensor");
	int rc = struct_size_check("tensor_bytes", tensor_bytes, TENSOR_BYTES_LEAST);
	if (rc < 0)
		return rc;
	if (count > MANIFEST_ROWS_MAX)
		return shim_fail(THC_E_LIMIT, "count: %zu tensors; a shard has at most %u", count,
			MANIFEST_ROWS_MAX);
	struct checked_tensors checked = {.count = count,
		.rows = calloc(count, sizeof(*checked.rows)),
		.tensors = calloc(count, sizeof(*checked.tensors))};
	if (checked.rows == NULL || checked.tensors == NULL)
		rc = shim_fail(-ENOMEM, "out of memory for %zu tensors", count);
	else
		rc = check_each(tensors, tensor_bytes, open_flags, &checked);
	if (rc < 0) {
		tensors_checked_free(&checked);
		return rc;
	}
	*ret_checked = checked;
	return 0;
}

void
tensors_checked_free(struct checked_tensors *checked)
{
	free(checked->rows);
	free(checked->tensors);
	gpu_free(&checked->gpus);
	memset(checked, 0, sizeof(*checked));
}
