/* SPDX-License-Identifier: Apache-2.0 */
/* plan_rig - see plan_rig.h. */
#include "tests/support/plan_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/splitmix.h"

void
plan_rig_free(struct plan_rig *rig)
{
	for (uint32_t i = 0; i < rig->num_shards; i++)
		free(rig->shards[i].rows);
	free(rig->shards);
	plan_rig_clear_view(rig);
	for (uint32_t i = 0; i < rig->num_names; i++)
		free(rig->names[i]);
	free(rig->names);
	*rig = (struct plan_rig){0};
}

void
plan_rig_clear_view(struct plan_rig *rig)
{
	free(rig->rows);
	rig->rows = NULL;
	rig->view = (struct plan_view){0};
}

static struct manifest_row
row_of(struct plan_rig *rig, const char *name, uint32_t dtype, uint32_t ndim,
	const struct plan_dim *dims)
{
	char *own = th_strdup(name);
	rig->names = th_realloc(rig->names, rig->num_names + 1u, sizeof(rig->names[0]));
	rig->names[rig->num_names++] = own;
	struct manifest_row row = {.name = own, .dtype = dtype, .ndim = ndim};
	for (uint32_t d = 0; d < ndim; d++) {
		row.local_shape[d] = dims[d].size;
		row.global_shape[d] = dims[d].whole;
		row.offset[d] = dims[d].lo;
	}
	return row;
}

void
plan_rig_publish(struct plan_rig *rig, uint32_t shard, const char *name, uint32_t dtype,
	uint32_t ndim, const struct plan_dim *dims)
{
	TH_ASSERT(shard < PLAN_RIG_SHARDS);
	if (!rig->shards)
		rig->shards = th_calloc(PLAN_RIG_SHARDS, sizeof(rig->shards[0]));
	struct manifest *manifest = &rig->shards[shard];
	rig->num_shards = th_max_u32(rig->num_shards, shard + 1);
	manifest->rows =
		th_realloc(manifest->rows, manifest->num_rows + 1u, sizeof(manifest->rows[0]));
	manifest->rows[manifest->num_rows++] = row_of(rig, name, dtype, ndim, dims);
}

struct plan_row *
plan_rig_want(struct plan_rig *rig, const char *name, uint32_t dtype, uint32_t ndim,
	const struct plan_dim *dims)
{
	rig->rows = th_realloc(rig->rows, rig->view.count + 1u, sizeof(rig->rows[0]));
	struct plan_row *row = &rig->rows[rig->view.count++];
	rig->view.rows = rig->rows;
	*row = (struct plan_row){.form = row_of(rig, name, dtype, ndim, dims)};
	return row;
}

struct plan_dim
plan_chunk(uint64_t whole, uint32_t ranks, uint32_t rank)
{
	uint64_t step = whole / ranks + (whole % ranks != 0);
	uint64_t lo = th_min_u64(whole, step * rank);
	return (struct plan_dim){whole, lo, th_min_u64(whole - lo, step)};
}

int
plan_rig_plan(struct plan_rig *rig, uint32_t shard, uint32_t num_shards, struct th_err *err,
	struct plan **ret_plan)
{
	struct planner *planner;
	rig->view.shard = shard;
	rig->view.num_shards = num_shards;
	int rc = planner_new(&rig->view, err, &planner);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < rig->num_shards && rc == 0; i++)
		rc = planner_add(planner, &rig->shards[i], err);
	if (rc == 0)
		rc = planner_finish(planner, err, ret_plan);
	planner_free(planner);
	return rc;
}

/* ---- carried out by hand ------------------------------------------------------------------- */

static uint64_t
value_of(const char *name, uint64_t place, uint32_t bits)
{
	uint64_t state = place;
	for (const char *at = name; *at; at++)
		state = state * 131 + (unsigned char)*at;
	return th_splitmix64(&state) >> 8 & ((UINT64_C(1) << bits) - 1);
}

static void
put_bits(uint8_t *bytes, uint64_t at, uint32_t bits, uint64_t value)
{
	for (uint32_t i = 0; i < bits; i++, at++) {
		bytes[at / 8] &= (uint8_t) ~(1u << at % 8);
		bytes[at / 8] |= (uint8_t)((value >> i & 1) << at % 8);
	}
}

static uint64_t
get_bits(const uint8_t *bytes, uint64_t at, uint32_t bits)
{
	uint64_t value = 0;
	for (uint32_t i = 0; i < bits; i++, at++)
		value |= (uint64_t)(bytes[at / 8] >> at % 8 & 1) << i;
	return value;
}

static uint64_t
volume(const uint64_t *size, uint32_t ndim)
{
	uint64_t elements = 1;
	for (uint32_t d = 0; d < ndim; d++)
		elements *= size[d];
	return elements;
}

/* The i-th element of a row: its place in the whole, and in memory by the strides (in elements). */
static uint64_t
place_of(const struct manifest_row *row, const uint64_t *stride, uint64_t i, uint64_t *ret_at)
{
	uint64_t place = 0, at = 0, step = 1, row_major = 1;
	for (uint32_t d = row->ndim; d-- > 0;) {
		uint64_t index = i % row->local_shape[d];
		i /= row->local_shape[d];
		place += (row->offset[d] + index) * step;
		at += index * (stride ? stride[d] : row_major);
		step *= row->global_shape[d];
		row_major *= row->local_shape[d];
	}
	*ret_at = at;
	return place;
}

static const uint64_t *
strides_of(const struct plan_row *row)
{
	for (uint32_t d = 0; d < row->form.ndim; d++)
		if (row->stride[d] != 0)
			return row->stride;
	return NULL;
}

static uint8_t *
published_bytes(const struct manifest_row *row, uint64_t *ret_bytes)
{
	uint32_t bits = manifest_dtype_bits(row->dtype);
	uint64_t elements = volume(row->local_shape, row->ndim), at;
	uint8_t *bytes = th_calloc(elements * bits / 8 + 1, 1);
	for (uint64_t i = 0; i < elements; i++) {
		uint64_t place = place_of(row, NULL, i, &at);
		put_bits(bytes, at * bits, bits, value_of(row->name, place, bits));
	}
	*ret_bytes = (elements * bits + 7) / 8;
	return bytes;
}

struct target {
	const struct plan_row *row;
	uint8_t *data, *times; /* bytes, and how often each was written */
	uint64_t bytes;
};

/* One run, element by element where it is converted. */
static const char *
copy_run(const struct target *target, const struct plan_piece *piece, uint32_t from_bits,
	const uint8_t *source, uint64_t source_bytes, uint64_t source_at, uint64_t at)
{
	uint32_t bits = manifest_dtype_bits(target->row->form.dtype);
	bool scales = target->row->convert.scales;
	if (!th_range_fits(source_at, piece->source_run, source_bytes))
		return "a run leaves its source";
	if (!th_range_fits(at, piece->run, target->bytes))
		return "a run leaves its row";
	for (uint64_t i = 0; i < piece->run; i++)
		target->times[at + i]++;
	if (piece->place == PLAN_COPY) {
		if (piece->source_run != piece->run)
			return "a copy has two lengths";
		memcpy(target->data + at, source + source_at, piece->run);
		return NULL;
	}
	if (scales)
		return NULL;
	if (piece->source_run * 8 / from_bits != piece->run * 8 / bits)
		return "a conversion loses elements";
	for (uint64_t i = 0; i < piece->run * 8 / bits; i++) {
		uint64_t value = get_bits(source, source_at * 8 + i * from_bits, from_bits);
		put_bits(target->data, at * 8 + i * bits, bits,
			bits < 64 ? value & ((UINT64_C(1) << bits) - 1) : value);
	}
	return NULL;
}

static const char *
copy_piece(const struct plan_rig *rig, const struct plan *plan, const struct plan_piece *piece,
	const struct target *target)
{
	if (piece->shard >= rig->num_shards ||
		piece->source_row >= rig->shards[piece->shard].num_rows)
		return "a piece has no source";
	const struct manifest_row *from = &rig->shards[piece->shard].rows[piece->source_row];
	const struct plan_convert *convert = &target->row->convert;
	if (strcmp(from->name, convert->of ? convert->of : target->row->form.name) != 0)
		return "a piece is of another tensor";
	uint64_t source_bytes, index[MANIFEST_DIMS_MAX] = {0}, runs = 0;
	uint8_t *source = published_bytes(from, &source_bytes);
	const struct plan_loop *loops = plan->loops + piece->loop;
	const char *wrong = NULL;
	for (bool more = true; more && !wrong; runs++) {
		uint64_t source_at = piece->source_at, at = piece->at;
		for (uint32_t i = 0; i < piece->num_loops; i++) {
			source_at += index[i] * loops[i].source_step;
			at += index[i] * loops[i].step;
		}
		wrong = copy_run(target, piece, manifest_dtype_bits(from->dtype), source,
			source_bytes, source_at, at);
		more = false;
		for (uint32_t i = piece->num_loops; i-- > 0 && !more;) {
			more = ++index[i] < loops[i].count;
			if (!more)
				index[i] = 0;
		}
	}
	if (!wrong && runs != piece->runs)
		wrong = "a piece has another number of runs";
	free(source);
	return wrong;
}

/* Each element once, with its value; and nothing but elements. */
static const char *
compare(const struct target *target)
{
	const struct plan_row *row = target->row;
	uint32_t bits = manifest_dtype_bits(row->form.dtype);
	uint64_t elements = volume(row->form.local_shape, row->form.ndim), at;
	uint8_t *wanted = th_calloc(target->bytes + 1, 1);
	const char *wrong = NULL;
	for (uint64_t i = 0; i < elements && !wrong; i++) {
		uint64_t place = place_of(&row->form, strides_of(row), i, &at);
		uint64_t value =
			value_of(row->convert.of ? row->convert.of : row->form.name, place, bits);
		if (row->convert.scheme == PLAN_ROUND && bits == 32)
			value &= 0xffff;
		for (uint64_t b = at * bits / 8; b < (at * bits + bits + 7) / 8; b++)
			wanted[b] = 1;
		if (!row->convert.scales && get_bits(target->data, at * bits, bits) != value)
			wrong = "an element has the value of another";
	}
	for (uint64_t i = 0; i < target->bytes && !wrong; i++)
		if (target->times[i] != wanted[i])
			wrong = target->times[i] > wanted[i] ? "a byte is written too often"
							     : "a byte is not written";
	free(wanted);
	return wrong;
}

const char *
plan_rig_replay(const struct plan_rig *rig, const struct plan *plan)
{
	const char *wrong = NULL;
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < rig->view.count && !wrong; i++) {
		const struct plan_row *row = &rig->rows[i];
		struct target target = {.row = row};
		uint32_t bits = manifest_dtype_bits(row->form.dtype);
		uint64_t last = volume(row->form.local_shape, row->form.ndim), at = 0;
		if (last > 0) {
			place_of(&row->form, strides_of(row), last - 1, &at);
			target.bytes = ((at + 1) * bits + 7) / 8;
		}
		target.data = th_calloc(target.bytes + 1, 1);
		target.times = th_calloc(target.bytes + 1, 1);
		for (uint32_t p = plan->first[i]; p < plan->first[i + 1] && !wrong; p++) {
			bytes += plan->pieces[p].bytes;
			if (plan->pieces[p].row != i)
				wrong = "a piece stands with another row";
			else
				wrong = copy_piece(rig, plan, &plan->pieces[p], &target);
		}
		/* Scales that are made here are no runs. */
		if (!wrong && !row->convert.scales)
			wrong = compare(&target);
		free(target.data);
		free(target.times);
	}
	if (!wrong && bytes != plan->bytes_in)
		wrong = "bytes_in is no sum";
	return wrong;
}
