/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_file - parsing, and planning from two (see layout_file.h).
 */
#include "tools/file/layout_file.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "transport/cast/cast.h"

/* Where a sentence says that it is wrong. */
struct where {
	uint32_t shard, row;
	struct th_err *err;
};

static int
fail_row(const struct where *where, const char *what)
{
	return th_fail(where->err, TH_E_INVALID, "shard %" PRIu32 ", row %" PRIu32 ": %s",
		where->shard, where->row, what);
}

/* ---- rows ---------------------------------------------------------------------------------- */

static bool
take_number(const json_t *json, uint64_t *ret_number)
{
	if (!json_is_integer(json) || json_integer_value(json) < 0)
		return false;
	*ret_number = (uint64_t)json_integer_value(json);
	return true;
}

/* ndim numbers; where the key is not there they stay 0. */
static int
take_numbers(const struct where *where, const json_t *row, const char *key, size_t ndim,
	uint64_t *ret_numbers)
{
	const json_t *list = json_object_get(row, key);
	char what[96];
	if (!list)
		return 0;
	bool right = json_is_array(list) && json_array_size(list) == ndim;
	for (size_t i = 0; i < ndim && right; i++)
		right = take_number(json_array_get(list, i), &ret_numbers[i]);
	if (right)
		return 0;
	snprintf(what, sizeof(what), "%s must be a list of %zu numbers from 0 on", key, ndim);
	return fail_row(where, what);
}

static uint32_t
scheme_of(const char *name)
{
	_Static_assert(PLAN_ROUND == (int)CAST_ROUND && PLAN_FP8_CHANNEL == (int)CAST_FP8_CHANNEL,
		"the planner and the conversions number schemes alike");
	for (uint32_t i = PLAN_ROUND; i <= PLAN_FP8_CHANNEL; i++)
		if (name && strcmp(cast_scheme_name(i), name) == 0)
			return i;
	return PLAN_AS_PUBLISHED;
}

static int
take_convert(const struct where *where, const json_t *row, struct plan_convert *ret_convert)
{
	const json_t *convert = json_object_get(row, "convert");
	const json_t *of = json_object_get(convert, "of");
	const json_t *scales = json_object_get(convert, "scales");
	uint64_t block[2] = {0};
	if (!convert)
		return 0;
	ret_convert->scheme = scheme_of(json_string_value(json_object_get(convert, "scheme")));
	if (ret_convert->scheme == PLAN_AS_PUBLISHED)
		return fail_row(where, "convert.scheme is none of round, fp8-block, "
				       "fp8-block-pow2, fp8-channel");
	if ((of && !json_is_string(of)) || (scales && !json_is_boolean(scales)))
		return fail_row(where, "convert.of must be a name, and scales true or false");
	int rc = take_numbers(where, convert, "block", 2, block);
	if (rc < 0)
		return rc;
	if (block[0] > UINT32_MAX || block[1] > UINT32_MAX)
		return fail_row(where, "convert.block has numbers of more than 32 bits");
	ret_convert->of = json_string_value(of);
	ret_convert->scales = json_is_true(scales);
	ret_convert->block[0] = (uint32_t)block[0];
	ret_convert->block[1] = (uint32_t)block[1];
	return 0;
}

static int
parse_row(const struct where *where, const json_t *json, struct plan_row *ret_row)
{
	const json_t *shape = json_object_get(json, "shape");
	const char *dtype = json_string_value(json_object_get(json, "dtype"));
	struct manifest_row *form = &ret_row->form;
	size_t ndim = json_array_size(shape);
	form->name = json_string_value(json_object_get(json, "name"));
	form->dtype = dtype ? manifest_dtype_of_name(dtype) : 0;
	if (!form->name || form->dtype == 0)
		return fail_row(where, "it needs a name, and a dtype as safetensors has them");
	if (!json_is_array(shape) || ndim > MANIFEST_DIMS_MAX)
		return fail_row(where, "shape must be a list of at most 8 numbers");
	form->ndim = (uint32_t)ndim;
	int rc = take_numbers(where, json, "shape", ndim, form->local_shape);
	if (rc == 0)
		rc = take_numbers(where, json, "global_shape", ndim, form->global_shape);
	if (rc == 0)
		rc = take_numbers(where, json, "offset", ndim, form->offset);
	if (rc == 0)
		rc = take_numbers(where, json, "stride", ndim, ret_row->stride);
	if (rc == 0)
		rc = take_convert(where, json, &ret_row->convert);
	if (rc == 0 && !json_object_get(json, "global_shape"))
		memcpy(form->global_shape, form->local_shape, sizeof(form->global_shape));
	return rc;
}

/* ---- shards -------------------------------------------------------------------------------- */

/* The other names of a row; there is room for them. */
static int
parse_tied(const struct where *where, const json_t *row, struct layout_shard *shard)
{
	const json_t *tied = json_object_get(row, "tied");
	for (size_t i = 0; i < json_array_size(tied); i++) {
		const char *name = json_string_value(json_array_get(tied, i));
		if (!name)
			return fail_row(where, "tied must be a list of names");
		shard->aliases[shard->num_aliases++] = (struct manifest_alias){name, where->row};
	}
	return tied && !json_is_array(tied) ? fail_row(where, "tied must be a list of names") : 0;
}

static int
parse_shard(struct where *where, const json_t *json, struct layout_shard *shard)
{
	const json_t *rows = json_object_get(json, "rows");
	size_t count = json_array_size(rows), tied = 0;
	if (!json_is_array(rows))
		return th_fail(where->err, TH_E_INVALID, "shard %" PRIu32 " has no list of rows",
			where->shard);
	for (size_t i = 0; i < count; i++)
		tied += json_array_size(json_object_get(json_array_get(rows, i), "tied"));
	if (count > PLAN_ROWS_MAX || tied > PLAN_ROWS_MAX - count)
		return th_fail(where->err, TH_E_LIMIT,
			"shard %" PRIu32 " has %zu rows and %zu tied names; a shard has at most %u",
			where->shard, count, tied, PLAN_ROWS_MAX);
	shard->rows = calloc(count + 1, sizeof(shard->rows[0]));
	shard->aliases = calloc(tied + 1, sizeof(shard->aliases[0]));
	if (!shard->rows || !shard->aliases)
		return th_fail(where->err, -ENOMEM, "no memory for %zu rows", count);
	for (size_t i = 0; i < count; i++) {
		const json_t *row = json_array_get(rows, i);
		where->row = (uint32_t)i;
		int rc = parse_row(where, row, &shard->rows[i]);
		if (rc == 0)
			rc = parse_tied(where, row, shard);
		if (rc < 0)
			return rc;
		shard->count++;
	}
	return 0;
}

int
layout_file_parse(const char *text, size_t bytes, struct th_err *err, struct layout_file *ret_file)
{
	struct layout_file file = {0};
	struct where where = {.err = err};
	json_error_t place;
	json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &place);
	if (!root)
		return th_fail(err, TH_E_INVALID, "it is no valid JSON in line %d: %s", place.line,
			place.text);
	const json_t *shards = json_object_get(root, "shards");
	size_t count = json_array_size(shards);
	int rc = 0;
	file.json = root;
	if (count == 0 || count > TH_SHARDS_MAX)
		rc = th_fail(err, TH_E_INVALID, "shards must be a list of 1 to %d shards",
			TH_SHARDS_MAX);
	else if (!(file.shards = calloc(count, sizeof(file.shards[0]))))
		rc = th_fail(err, -ENOMEM, "no memory for %zu shards", count);
	for (size_t i = 0; i < count && rc == 0; i++) {
		where.shard = file.num_shards++;
		rc = parse_shard(&where, json_array_get(shards, i), &file.shards[i]);
	}
	if (rc < 0) {
		layout_file_free(&file);
		return rc;
	}
	*ret_file = file;
	return 0;
}

void
layout_file_free(struct layout_file *file)
{
	for (uint32_t i = 0; i < file->num_shards; i++) {
		free(file->shards[i].rows);
		free(file->shards[i].aliases);
	}
	free(file->shards);
	json_decref(file->json);
	*file = (struct layout_file){0};
}

/* ---- planning ------------------------------------------------------------------------------ */

/* As a manifest, in rows that have room for it. */
static int
publish(const struct layout_shard *from, uint32_t index, struct th_err *err,
	struct manifest_row *rows, struct manifest *ret_manifest)
{
	for (uint32_t i = 0; i < from->count; i++) {
		static const uint64_t none[MANIFEST_DIMS_MAX];
		const struct plan_row *row = &from->rows[i];
		if (row->convert.scheme != PLAN_AS_PUBLISHED ||
			memcmp(row->stride, none, sizeof(none)) != 0)
			return th_fail(err, TH_E_INVALID,
				"shard %" PRIu32 ", row %" PRIu32
				": what is published has neither stride nor convert",
				index, i);
		rows[i] = row->form;
	}
	*ret_manifest = (struct manifest){.rows = rows,
		.num_rows = from->count,
		.aliases = from->aliases,
		.num_aliases = from->num_aliases};
	return 0;
}

int
layout_file_plan(const struct layout_file *published, const struct layout_file *view,
	uint32_t shard, struct th_err *err, struct plan **ret_plan)
{
	const struct layout_shard *reader = &view->shards[shard];
	struct plan_view wanted = {.rows = reader->rows,
		.aliases = reader->aliases,
		.count = reader->count,
		.num_aliases = reader->num_aliases,
		.shard = shard,
		.num_shards = view->num_shards};
	struct planner *planner;
	uint32_t most = 1;
	for (uint32_t i = 0; i < published->num_shards; i++)
		most = th_max_u32(most, published->shards[i].count);
	int rc = planner_new(&wanted, err, &planner);
	if (rc < 0)
		return rc;
	struct manifest_row *rows = calloc(most, sizeof(rows[0]));
	if (!rows)
		rc = th_fail(err, -ENOMEM, "no memory for %" PRIu32 " rows", most);
	for (uint32_t i = 0; i < published->num_shards && rc == 0; i++) {
		struct manifest manifest;
		rc = publish(&published->shards[i], i, err, rows, &manifest);
		if (rc == 0)
			rc = planner_add(planner, &manifest, err);
	}
	if (rc == 0)
		rc = planner_finish(planner, err, ret_plan);
	free(rows);
	planner_free(planner);
	return rc;
}
