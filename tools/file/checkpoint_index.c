/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint_index - parsing and formatting of the index of a directory (see checkpoint_index.h).
 */
#include "tools/file/checkpoint_index.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/name.h"
#include "ipc/proto/manifest.h"

static int
compare_entries(const void *left, const void *right)
{
	const struct checkpoint_index_entry *a = left;
	const struct checkpoint_index_entry *b = right;

	return strcmp(a->tensor, b->tensor);
}

/* A plain name within the directory. */
static bool
file_name_valid(const char *name)
{
	return th_name_valid(name, TH_NAME_MAX) && !strchr(name, '/') && strcmp(name, ".") != 0 &&
	       strcmp(name, "..") != 0;
}

static int
parse_map(json_t *map, struct th_err *err, struct checkpoint_index *index)
{
	const char *tensor;
	json_t *value;

	size_t count = json_object_size(map);
	if (count > MANIFEST_ROWS_MAX)
		return th_fail(err, TH_E_LIMIT,
			"the index lists %zu tensors, at most %u are allowed", count,
			MANIFEST_ROWS_MAX);
	if (count == 0)
		return th_fail(err, TH_E_INVALID, "the index lists no tensor");
	index->entries = calloc(count, sizeof(index->entries[0]));
	if (!index->entries)
		return th_fail(err, -ENOMEM, "no memory for an index of %zu tensors", count);
	json_object_foreach(map, tensor, value)
	{
		struct checkpoint_index_entry *entry = &index->entries[index->count++];
		const char *file = json_string_value(value);
		if (!th_name_valid(tensor, TH_NAME_MAX))
			return th_fail(
				err, TH_E_INVALID, "the index lists a tensor without a valid name");
		if (!file || !file_name_valid(file))
			return th_fail(err, TH_E_INVALID,
				"the index has no plain file name for tensor '%s'", tensor);
		entry->tensor = strdup(tensor);
		entry->file = strdup(file);
		if (!entry->tensor || !entry->file)
			return th_fail(
				err, -ENOMEM, "no memory for an index of %zu tensors", count);
	}
	qsort(index->entries, index->count, sizeof(index->entries[0]), compare_entries);
	return 0;
}

int
checkpoint_index_parse(
	const char *text, size_t bytes, struct th_err *err, struct checkpoint_index *ret_index)
{
	struct checkpoint_index index = {0};
	json_error_t where;

	json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
	if (!root)
		return th_fail(err, TH_E_INVALID, "the index is no valid JSON in line %d: %s",
			where.line, where.text);
	json_t *map = json_object_get(root, "weight_map");
	int rc = json_is_object(map) ? parse_map(map, err, &index)
				     : th_fail(err, TH_E_INVALID, "the index has no weight_map");
	json_decref(root);
	if (rc < 0) {
		checkpoint_index_free(&index);
		return rc;
	}
	*ret_index = index;
	return 0;
}

void
checkpoint_index_free(struct checkpoint_index *index)
{
	for (uint32_t i = 0; i < index->count; i++) {
		free(index->entries[i].tensor);
		free(index->entries[i].file);
	}
	free(index->entries);
	*index = (struct checkpoint_index){0};
}

const char *
checkpoint_index_find(const struct checkpoint_index *index, const char *tensor)
{
	uint32_t low = 0;
	uint32_t high = index->count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		int order = strcmp(tensor, index->entries[middle].tensor);
		if (order == 0)
			return index->entries[middle].file;
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

int
checkpoint_index_format(const struct checkpoint_index_entry *entries, uint32_t count,
	uint64_t data_bytes, struct th_err *err, char **ret_text, size_t *ret_bytes)
{
	json_t *map = json_object();
	bool failed = !map;

	for (uint32_t i = 0; i < count && !failed; i++)
		failed = json_object_set_new(map, entries[i].tensor, json_string(entries[i].file)) <
			 0;
	/* pack takes the reference of map, also when it fails. */
	json_t *root = failed ? NULL
			      : json_pack("{s:{s:I}, s:o}", "metadata", "total_size",
					(json_int_t)data_bytes, "weight_map", map);
	if (failed)
		json_decref(map);
	char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
	json_decref(root);
	if (!text)
		return th_fail(err, -ENOMEM, "no memory for an index of %u tensors", count);
	*ret_text = text;
	*ret_bytes = strlen(text);
	return 0;
}
