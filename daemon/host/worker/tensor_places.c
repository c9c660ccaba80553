/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_places - see tensor_places.h. Main thread only.
 */
#include "daemon/host/worker/tensor_places.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/host/memory/memory_gpu.h"
#include "ipc/base/checked.h"
#include "transport/part/packed.h"

static int
out_of_memory(struct th_err *err)
{
	return th_fail(err, -ENOMEM, "the agent is out of memory for this registration");
}

/* Where the bytes of a row lie in which file. Fails unless all of them are in the memory object. */
static int
row_interval(const struct tensors_rows *rows, uint32_t row, const struct memory_set *memory,
	struct th_err *err, struct interval *ret_interval)
{
	const struct tensors_place *place = &rows->places[row];
	const struct memory *object = memory_find(memory, place->memory_id);
	if (!object || object->dmabuf)
		return th_fail(err, TH_E_INVALID,
			"tensor '%s' lies in memory object %" PRIu32 ", which %s",
			rows->rows[row].name, place->memory_id,
			object ? "is a dma-buf: it is for NICs alone" : "was not shared");
	bool fits = object->space ? memory_gpu_has(object, place->offset, place->bytes)
				  : th_range_fits(place->offset, place->bytes, object->bytes);
	if (!fits)
		return th_fail(err, TH_E_INVALID,
			"tensor '%s': %" PRIu64 " bytes from offset %" PRIu64
			" are not in its memory object of %" PRIu64 " bytes%s",
			rows->rows[row].name, place->bytes, place->offset, object->bytes,
			object->space ? ", nor in those that follow it on its GPU" : "");
	uint64_t start = object->offset + place->offset;
	*ret_interval = (struct interval){.dev = object->dev,
		.ino = object->ino,
		.start = start,
		.end = start + place->bytes,
		.row = row};
	return 0;
}

/* One interval a row with bytes, sorted by place; ret_intervals has room for all rows. */
static int
place_rows(const struct tensors_rows *rows, const struct memory_set *memory, struct th_err *err,
	struct interval *ret_intervals, uint32_t *ret_count)
{
	uint32_t count = 0;
	for (uint32_t row = 0; row < rows->count; row++) {
		if (rows->places[row].bytes == 0)
			continue;
		int rc = row_interval(rows, row, memory, err, &ret_intervals[count]);
		if (rc < 0)
			return rc;
		count++;
	}
	if (count > 0)
		qsort(ret_intervals, count, sizeof(ret_intervals[0]), interval_compare);
	*ret_count = count;
	return 0;
}

/*
 * Exactly the same bytes under two names are one tensor; any other overlap is an error. The sorted
 * order puts ties side by side, behind the row that the others are tied to, which is all that is
 * kept.
 */
static int
tensor_places_find_ties(const struct tensors_rows *rows, struct interval *intervals,
	uint32_t *count, uint32_t *alias_of, struct th_err *err)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < *count; i++) {
		const struct interval *last = kept ? &intervals[kept - 1] : NULL;
		bool meets = last && last->dev == intervals[i].dev &&
			     last->ino == intervals[i].ino && intervals[i].start < last->end;
		if (meets && last->start == intervals[i].start && last->end == intervals[i].end) {
			alias_of[intervals[i].row] = last->row;
			continue;
		}
		if (meets)
			return th_fail(err, TH_E_INVALID,
				"tensors '%s' and '%s' overlap in memory without being the same "
				"bytes",
				rows->rows[last->row].name, rows->rows[intervals[i].row].name);
		intervals[kept++] = intervals[i];
	}
	*count = kept;
	return 0;
}

/* What the worker says of a tensor's size must be what its dtype and shape make of it. */
static int
tensor_places_check_bytes(const struct tensors_rows *rows, const uint32_t *position,
	const struct manifest *manifest, struct th_err *err)
{
	for (uint32_t row = 0; row < rows->count; row++) {
		uint64_t derived = manifest->rows[position[row]].bytes;
		if (rows->places[row].bytes != derived)
			return th_fail(err, TH_E_INVALID,
				"tensor '%s' is said to have %" PRIu64
				" bytes, but its dtype and shape make %" PRIu64,
				rows->rows[row].name, rows->places[row].bytes, derived);
	}
	return 0;
}

/* Of the canonical rows; intervals are still numbered by the worker's order and are renumbered. */
static void
set_places(struct tensors *tensors, const struct tensors_rows *rows, const uint32_t *position,
	const struct memory_set *memory)
{
	for (uint32_t i = 0; i < tensors->num_intervals; i++) {
		struct interval *interval = &tensors->intervals[i];
		const struct tensors_place *place = &rows->places[interval->row];
		const struct memory *object = memory_find(memory, place->memory_id);
		interval->row = position[interval->row];
		tensors->memory_ids[interval->row] = object->id;
		if (object->space)
			tensors->gpus |= UINT32_C(1) << object->gpu;
		if (object->access)
			tensors->places[interval->row] = (struct xfer_place){
				.access = object->access, .place = object->offset + place->offset};
		else
			tensors->places[interval->row] =
				(struct xfer_place){.data = object->data + place->offset,
					.access = object->file,
					.place = object->offset + place->offset};
		if (!object->space && !object->process)
			holes_count(tensors->files, &tensors->num_files, interval,
				object->access ? object->access : object->file, !object->access);
		if (object->read_only && !tensors->read_only) {
			tensors->read_only_row = interval->row;
			tensors->read_only = object->read_only;
		}
	}
}

/* Files with bytes in them, and one more. */
static uint32_t
files_at_most(const struct tensors *tensors)
{
	uint32_t count = 1;
	const struct interval *last = NULL;
	for (uint32_t i = 0; i < tensors->num_intervals; i++) {
		const struct interval *interval = &tensors->intervals[i];
		count += !last || last->dev != interval->dev || last->ino != interval->ino;
		last = interval;
	}
	return count;
}

static int
assemble(struct tensors *tensors, const struct tensors_rows *rows, const struct memory_set *memory,
	uint32_t *alias_of, uint32_t *position, struct th_err *err)
{
	int rc = place_rows(rows, memory, err, tensors->intervals, &tensors->num_intervals);
	if (rc < 0)
		return rc;
	rc = tensor_places_find_ties(
		rows, tensors->intervals, &tensors->num_intervals, alias_of, err);
	if (rc < 0)
		return rc;
	rc = manifest_build(rows->rows, rows->count, alias_of, position, err, &tensors->manifest);
	if (rc < 0)
		return rc;
	rc = tensor_places_check_bytes(rows, position, &tensors->manifest, err);
	if (rc < 0)
		return rc;
	tensors->places = calloc(tensors->manifest.num_rows, sizeof(tensors->places[0]));
	tensors->memory_ids = calloc(tensors->manifest.num_rows, sizeof(tensors->memory_ids[0]));
	tensors->files = calloc(files_at_most(tensors), sizeof(tensors->files[0]));
	tensors->read_only_row = UINT32_MAX;
	tensors->table = chunk_table_new(&tensors->manifest);
	if (!tensors->places || !tensors->memory_ids || !tensors->files || !tensors->table)
		return out_of_memory(err);
	rc = manifest_encode(&tensors->manifest, &tensors->encoded, &tensors->encoded_bytes);
	if (rc < 0)
		return th_fail(err, rc, "encoding the manifest: %s", th_strerror(rc));
	if (tensors->encoded_bytes > TH_BLOB_BYTES_MAX)
		return th_fail(err, TH_E_LIMIT,
			"the manifest of this shard has %zu bytes; at most %u are allowed",
			tensors->encoded_bytes, TH_BLOB_BYTES_MAX);
	set_places(tensors, rows, position, memory);
	tensors->layout = manifest_layout(&tensors->manifest);
	tensors->key = manifest_key(tensors->encoded, tensors->encoded_bytes);
	return 0;
}

int
tensors_new(const struct tensors_rows *rows, const struct memory_set *memory, struct th_err *err,
	struct tensors **ret_tensors)
{
	if (rows->count == 0)
		return th_fail(err, TH_E_INVALID, "a registration of no tensors");
	if (rows->count > MANIFEST_ROWS_MAX)
		return th_fail(err, TH_E_LIMIT,
			"a shard may have at most %u tensors; this one has %" PRIu32,
			MANIFEST_ROWS_MAX, rows->count);
	int rc;
	struct tensors *tensors = calloc(1, sizeof(*tensors));
	uint32_t *alias_of = malloc(rows->count * sizeof(alias_of[0]));
	uint32_t *position = malloc(rows->count * sizeof(position[0]));
	if (tensors)
		tensors->intervals = calloc(rows->count, sizeof(tensors->intervals[0]));
	if (!tensors || !alias_of || !position || !tensors->intervals) {
		rc = out_of_memory(err);
	} else {
		memset(alias_of, 0xff, rows->count * sizeof(alias_of[0])); /* UINT32_MAX: none */
		rc = assemble(tensors, rows, memory, alias_of, position, err);
	}
	free(alias_of);
	free(position);
	if (rc < 0) {
		tensors_free(tensors);
		return rc;
	}
	*ret_tensors = tensors;
	return 0;
}

/* ---- without a worker ------------------------------------------------------------------------ */

static int
tensor_places_measure(const struct manifest *manifest, struct th_err *err, uint64_t *ret_bytes)
{
	uint64_t end = 0;
	for (uint32_t row = 0; row < manifest->num_rows; row++) {
		if (!manifest_place_row(&manifest->rows[row], end, &end) ||
			!th_add_u64(end, manifest->rows[row].bytes, &end))
			return th_fail(err, TH_E_LIMIT, "the tensors are too large");
	}
	*ret_bytes = end;
	return 0;
}

static int
of_manifest(struct tensors *tensors, const uint8_t *data, size_t bytes, struct th_err *err,
	uint64_t *ret_bytes)
{
	int rc = manifest_decode(data, bytes, err, &tensors->manifest);
	if (rc == 0)
		rc = tensor_places_measure(&tensors->manifest, err, ret_bytes);
	if (rc < 0)
		return rc;
	tensors->read_only_row = UINT32_MAX;
	tensors->places = calloc(tensors->manifest.num_rows, sizeof(tensors->places[0]));
	tensors->table = chunk_table_new(&tensors->manifest);
	tensors->encoded = malloc(bytes);
	if (!tensors->places || !tensors->table || !tensors->encoded)
		return out_of_memory(err);
	memcpy(tensors->encoded, data, bytes);
	tensors->encoded_bytes = bytes;
	tensors->layout = manifest_layout(&tensors->manifest);
	tensors->key = manifest_key(data, bytes);
	return 0;
}

int
tensors_of_manifest(const uint8_t *data, size_t bytes, struct th_err *err,
	struct tensors **ret_tensors, uint64_t *ret_bytes)
{
	struct tensors *tensors = calloc(1, sizeof(*tensors));
	if (!tensors)
		return out_of_memory(err);
	int rc = of_manifest(tensors, data, bytes, err, ret_bytes);
	if (rc < 0) {
		tensors_free(tensors);
		return rc;
	}
	*ret_tensors = tensors;
	return 0;
}

void
tensors_place(
	struct tensors *tensors, uint8_t *memory, struct fd_memory *file, struct gpus_host *host)
{
	uint64_t at = 0;
	for (uint32_t row = 0; row < tensors->manifest.num_rows; row++) {
		uint64_t bytes = tensors->manifest.rows[row].bytes;
		/* tensors_of_manifest has found that the sum fits. */
		(void)manifest_place_row(&tensors->manifest.rows[row], at, &at);
		tensors->places[row] = (struct xfer_place){0};
		if (bytes > 0)
			tensors->places[row] = (struct xfer_place){
				.data = memory + at, .access = file, .place = at, .host = host};
		at += bytes;
	}
}

bool
tensors_mapped(const struct tensors *tensors)
{
	for (uint32_t i = 0; i < tensors->manifest.num_rows; i++) {
		if (tensors->manifest.rows[i].bytes > 0 && !tensors->places[i].data)
			return false;
	}
	return true;
}

void
tensors_free(struct tensors *tensors)
{
	if (!tensors)
		return;
	chunk_table_release(tensors->table);
	manifest_free(&tensors->manifest);
	packed_release(tensors->packed);
	free(tensors->places);
	free(tensors->memory_ids);
	free(tensors->intervals);
	free(tensors->files);
	free(tensors->encoded);
	free(tensors);
}
