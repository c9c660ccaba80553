/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image - planning the files of a fetched shard (see image.h).
 */
#include "tools/file/image.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "tools/file/carry.h"
#include "tools/file/checkpoint_index.h"

static const struct thc_tensor *
image_row_of(const struct thc_manifest *manifest, size_t index)
{
	return (const struct thc_tensor *)(const void *)((const char *)manifest->tensors +
							 index * manifest->tensor_bytes);
}

static int
copy_rows(const struct thc_manifest *manifest, struct th_err *err, struct image *image)
{
	if (manifest->count == 0)
		return th_fail(err, TH_E_INVALID, "the version has no tensor: nothing to fetch");
	if (manifest->count > MANIFEST_ROWS_MAX)
		return th_fail(err, TH_E_LIMIT, "%zu tensors, at most %u are allowed",
			manifest->count, MANIFEST_ROWS_MAX);
	image->count = (uint32_t)manifest->count;
	image->tensors = calloc(image->count, sizeof(image->tensors[0]));
	image->places = calloc(image->count, sizeof(image->places[0]));
	image->leaders = calloc(image->count, sizeof(image->leaders[0]));
	image->order = calloc(image->count, sizeof(image->order[0]));
	if (!image->tensors || !image->places || !image->leaders || !image->order)
		return th_fail(err, -ENOMEM, "no memory for %u tensors", image->count);
	for (uint32_t i = 0; i < image->count; i++) {
		memcpy(&image->tensors[i], image_row_of(manifest, i),
			th_min_size(sizeof(image->tensors[0]), manifest->tensor_bytes));
		image->tensors[i].device = THC_HOST;
		image->order[i] = i;
	}
	return 0;
}

static int
image_compare_names(const void *left, const void *right, void *arg)
{
	const struct thc_tensor *tensors = arg;

	return strcmp(
		tensors[*(const uint32_t *)left].name, tensors[*(const uint32_t *)right].name);
}

/* A tie is marked by equal data; compares the marks, and the index where they are equal. */
static int
compare_marks(const void *left, const void *right, void *arg)
{
	const struct thc_tensor *tensors = arg;
	uint32_t a = *(const uint32_t *)left;
	uint32_t b = *(const uint32_t *)right;
	uintptr_t mark_a = (uintptr_t)tensors[a].data;
	uintptr_t mark_b = (uintptr_t)tensors[b].data;

	if (mark_a != mark_b)
		return mark_a < mark_b ? -1 : 1;
	return a < b ? -1 : a > b;
}

/* Tied tensors are one row of the version, and must be registered as that. */
static int
tie_rows(struct image *image, struct th_err *err)
{
	struct thc_tensor *tensors = image->tensors;
	uint32_t leader = 0;

	qsort_r(image->order, image->count, sizeof(image->order[0]), compare_marks, tensors);
	for (uint32_t i = 0; i < image->count; i++) {
		uint32_t row = image->order[i];
		const void *mark = tensors[row].data;
		if (i == 0 || !mark || mark != tensors[leader].data)
			leader = row;
		else if (tensors[row].bytes != tensors[leader].bytes)
			return th_fail(err, TH_E_INVALID, "tied tensors differ in size: '%s'",
				tensors[row].name);
		image->leaders[row] = leader;
	}
	qsort_r(image->order, image->count, sizeof(image->order[0]), image_compare_names, tensors);
	return 0;
}

static bool
row_matches(const struct thc_tensor *row, const struct safetensors_tensor *tensor)
{
	if ((uint32_t)row->dtype != tensor->dtype || row->ndim != tensor->ndim ||
		row->bytes != tensor->bytes)
		return false;
	for (uint32_t i = 0; i < row->ndim; i++) {
		if (row->local_shape[i] != tensor->shape[i])
			return false;
	}
	return true;
}

struct name_key {
	const struct thc_tensor *tensors;
	const char *name;
};

static int
compare_key(const void *key, const void *element)
{
	const struct name_key *wanted = key;

	return strcmp(wanted->name, wanted->tensors[*(const uint32_t *)element].name);
}

/*
 * image->order is by name. Takes the order of the header when it describes exactly these rows: a
 * header has no holes, so the places follow from it.
 */
static int
order_as_header(struct image *image, const struct safetensors_header *header, struct th_err *err)
{
	if (header->count != image->count)
		return th_fail(err, TH_E_INVALID, "it lists %u tensors, the version has %u",
			header->count, image->count);
	uint32_t *order = calloc(image->count, sizeof(order[0]));
	if (!order)
		return th_fail(err, -ENOMEM, "no memory for %u tensors", image->count);
	for (uint32_t i = 0; i < header->count; i++) {
		const struct safetensors_tensor *tensor = &header->tensors[i];
		struct name_key key = {.tensors = image->tensors, .name = tensor->name};
		const uint32_t *row = bsearch(
			&key, image->order, image->count, sizeof(image->order[0]), compare_key);
		if (!row || image->tensors[*row].data ||
			!row_matches(&image->tensors[*row], tensor)) {
			free(order);
			return th_fail(err, TH_E_INVALID,
				"it differs from the version at tensor '%s'", tensor->name);
		}
		order[i] = *row;
	}
	memcpy(image->order, order, image->count * sizeof(order[0]));
	free(order);
	return 0;
}

/* The header is there; the data of the tensors follow it without a gap, in their order. */
static int
finish_file(struct image *image, struct image_file *file, struct th_err *err)
{
	uint64_t end = sizeof(file->length) + file->header_bytes;

	for (size_t i = 0; i < sizeof(file->length); i++)
		file->length[i] = (uint8_t)((uint64_t)file->header_bytes >> (8 * i));
	for (uint32_t i = 0; i < file->count; i++) {
		uint32_t row = image->order[file->first + i];
		image->places[row] = (struct image_place){
			.file = (uint32_t)(file - image->files), .offset = end};
		if (!th_add_u64(end, image->tensors[row].bytes, &end))
			return th_fail(
				err, TH_E_LIMIT, "the tensors have more bytes than a file can");
	}
	file->bytes = end;
	if (!th_add_u64(image->file_bytes, end, &image->file_bytes))
		return th_fail(err, TH_E_LIMIT, "the tensors have more bytes than a disk can");
	return 0;
}

/* NULL when there is no memory. */
static struct image_file *
image_add_file(struct image *image, uint32_t first, uint32_t count, struct th_err *err)
{
	struct image_file *files = realloc(image->files, (image->num_files + 1) * sizeof(files[0]));

	if (!files) {
		th_fail(err, -ENOMEM, "no memory for another file");
		return NULL;
	}
	image->files = files;
	struct image_file *file = &files[image->num_files++];
	*file = (struct image_file){.first = first, .count = count};
	return file;
}

/* 0 with image->carried set when the publisher's header was there and fits. */
static int
plan_carried(const struct thc_manifest *manifest, struct th_err *err, struct image *image)
{
	struct safetensors_header header = {0};
	struct th_err inner = {0};
	size_t bytes = 0;
	char *text = NULL;

	struct carry_attribute *attributes =
		calloc(manifest->num_attributes + 1, sizeof(attributes[0]));
	if (!attributes)
		return th_fail(err, -ENOMEM, "no memory for the attributes");
	for (size_t i = 0; i < manifest->num_attributes; i++) {
		const struct thc_attribute *given =
			(const void *)((const char *)manifest->attributes +
				       i * manifest->attribute_bytes);
		attributes[i] = (struct carry_attribute){
			.name = given->name, .value = given->value, .bytes = given->bytes};
	}
	int rc = carry_join(attributes, manifest->num_attributes, &inner, &text, &bytes);
	free(attributes);
	if (rc == 0)
		return 0;
	if (rc > 0)
		rc = safetensors_parse(text, bytes, &inner, &header);
	if (rc == 0)
		rc = order_as_header(image, &header, &inner);
	safetensors_free(&header);
	if (rc < 0) {
		/* The content does not depend on it: say so and write a header of our own. */
		snprintf(image->note, sizeof(image->note), "%s", inner.text);
		free(text);
		return 0;
	}
	struct image_file *file = image_add_file(image, 0, image->count, err);
	if (!file) {
		free(text);
		return -ENOMEM;
	}
	file->header = text;
	file->header_bytes = bytes;
	image->carried = true;
	return finish_file(image, file, err);
}

static int
format_file(struct image *image, struct image_file *file, struct th_err *err)
{
	struct safetensors_tensor *list = calloc(file->count, sizeof(list[0]));

	if (!list)
		return th_fail(err, -ENOMEM, "no memory for %u tensors", file->count);
	for (uint32_t i = 0; i < file->count; i++) {
		const struct thc_tensor *row = &image->tensors[image->order[file->first + i]];
		union {
			const char *in;
			char *out; /* the formatter only reads it */
		} name = {.in = row->name};
		list[i] = (struct safetensors_tensor){.name = name.out,
			.dtype = (uint32_t)row->dtype,
			.ndim = row->ndim,
			.bytes = row->bytes};
		memcpy(list[i].shape, row->local_shape, sizeof(list[i].shape));
	}
	int rc = safetensors_format(list, file->count, err, &file->header, &file->header_bytes);
	free(list);
	return rc < 0 ? rc : finish_file(image, file, err);
}

static int
plan_files(struct image *image, uint64_t file_bytes_max, struct th_err *err)
{
	uint64_t bytes = 0;
	uint32_t first = 0;

	for (uint32_t i = 0; i <= image->count; i++) {
		uint64_t next = i < image->count ? image->tensors[image->order[i]].bytes : 0;
		bool full = i > first && next > file_bytes_max - th_min_u64(bytes, file_bytes_max);
		if (i == image->count || full) {
			struct image_file *file = image_add_file(image, first, i - first, err);
			int rc = file ? format_file(image, file, err) : -ENOMEM;
			if (rc < 0)
				return rc;
			first = i;
			bytes = 0;
		}
		bytes += next;
	}
	return 0;
}

static void
name_files(struct image *image)
{
	for (uint32_t i = 0; i < image->num_files; i++) {
		struct image_file *file = &image->files[i];
		if (image->num_files == 1)
			snprintf(file->name, sizeof(file->name), "model.safetensors");
		else
			snprintf(file->name, sizeof(file->name), "model-%05u-of-%05u.safetensors",
				i + 1, image->num_files);
	}
}

int
image_plan(const struct thc_manifest *manifest, uint64_t file_bytes_max, struct th_err *err,
	struct image *ret_image)
{
	struct image image = {0};

	int rc = copy_rows(manifest, err, &image);
	if (rc == 0)
		rc = tie_rows(&image, err);
	if (rc == 0)
		rc = plan_carried(manifest, err, &image);
	if (rc == 0 && !image.carried)
		rc = plan_files(&image, file_bytes_max, err);
	if (rc < 0) {
		image_free(&image);
		return rc;
	}
	name_files(&image);
	*ret_image = image;
	return 0;
}

void
image_bind(struct image *image, uint8_t *const *maps)
{
	for (uint32_t i = 0; i < image->count; i++) {
		const struct image_place *place = &image->places[image->leaders[i]];
		/* One without bytes may lie at the end of the file. */
		image->tensors[i].data = maps[place->file] + place->offset;
	}
}

int
image_index(const struct image *image, struct th_err *err, char **ret_text, size_t *ret_bytes)
{
	uint64_t bytes = 0;
	uint32_t count = 0;

	struct checkpoint_index_entry *entries = calloc(image->count, sizeof(entries[0]));
	if (!entries)
		return th_fail(err, -ENOMEM, "no memory for %u tensors", image->count);
	for (uint32_t i = 0; i < image->num_files; i++) {
		struct image_file *file = &image->files[i];
		for (uint32_t j = 0; j < file->count; j++) {
			const struct thc_tensor *tensor =
				&image->tensors[image->order[file->first + j]];
			union {
				const char *in;
				char *out; /* the formatter only reads it */
			} name = {.in = tensor->name};
			TH_ASSERT(count < image->count);
			entries[count++] = (struct checkpoint_index_entry){
				.tensor = name.out, .file = file->name};
			bytes += tensor->bytes;
		}
	}
	int rc = checkpoint_index_format(entries, count, bytes, err, ret_text, ret_bytes);
	free(entries);
	return rc;
}

void
image_free(struct image *image)
{
	for (uint32_t i = 0; i < image->num_files; i++)
		free(image->files[i].header);
	free(image->files);
	free(image->order);
	free(image->leaders);
	free(image->places);
	free(image->tensors);
	*image = (struct image){0};
}
