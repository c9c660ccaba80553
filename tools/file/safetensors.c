/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors - parsing and formatting of the header (see safetensors.h).
 *
 * jansson parses; it bounds the depth, refuses duplicate keys when asked and NUL in texts always.
 * Everything that a number could do wrong (overflow, overlap, holes, end) is checked here.
 */
#include "tools/file/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/name.h"

#define METADATA_KEY "__metadata__"
#define DATA_ALIGNMENT 8u

int
safetensors_header_length(const uint8_t length[SAFETENSORS_LENGTH_BYTES], uint64_t file_bytes,
	struct th_err *err, uint64_t *ret_bytes)
{
	uint64_t bytes = 0;

	for (int i = SAFETENSORS_LENGTH_BYTES - 1; i >= 0; i--)
		bytes = bytes << 8 | length[i];
	if (bytes > SAFETENSORS_HEADER_BYTES_MAX)
		return th_fail(err, TH_E_INVALID,
			"not a safetensors file: its header would have %" PRIu64
			" bytes, at most %" PRIu64 " are allowed",
			bytes, SAFETENSORS_HEADER_BYTES_MAX);
	if (!th_range_fits(SAFETENSORS_LENGTH_BYTES, bytes, file_bytes))
		return th_fail(err, TH_E_INVALID,
			"the file ends within its header: %" PRIu64 " bytes of header, %" PRIu64
			" bytes of file",
			bytes, file_bytes);
	*ret_bytes = bytes;
	return 0;
}

static int
safetensors_parse_number(const json_t *json, uint64_t *ret_number)
{
	if (!json_is_integer(json) || json_integer_value(json) < 0)
		return TH_E_INVALID;
	*ret_number = (uint64_t)json_integer_value(json);
	return 0;
}

static int
parse_shape(const json_t *json, struct th_err *err, struct safetensors_tensor *tensor)
{
	if (!json_is_array(json))
		return th_fail(err, TH_E_INVALID, "tensor '%s' has no shape", tensor->name);
	if (json_array_size(json) > MANIFEST_DIMS_MAX)
		return th_fail(err, TH_E_INVALID, "tensor '%s' has %zu dimensions, at most %d are",
			tensor->name, json_array_size(json), MANIFEST_DIMS_MAX);
	tensor->ndim = (uint32_t)json_array_size(json);
	for (uint32_t i = 0; i < tensor->ndim; i++) {
		if (safetensors_parse_number(json_array_get(json, i), &tensor->shape[i]) < 0)
			return th_fail(err, TH_E_INVALID,
				"tensor '%s': dimension %u is not a whole number", tensor->name, i);
	}
	return 0;
}

/* The bytes that dtype and shape ask for, which must be what data_offsets give. */
static int
safetensors_check_bytes(const struct safetensors_tensor *tensor, struct th_err *err)
{
	uint64_t bits = manifest_dtype_bits(tensor->dtype);
	bool fits = true;
	bool empty = false;

	for (uint32_t i = 0; i < tensor->ndim; i++) {
		empty |= tensor->shape[i] == 0;
		fits = fits && th_mul_u64(bits, tensor->shape[i], &bits);
	}
	if (!fits && !empty)
		return th_fail(
			err, TH_E_INVALID, "tensor '%s' has a shape beyond 64 bits", tensor->name);
	if (empty)
		bits = 0;
	if (bits % 8 != 0)
		return th_fail(err, TH_E_INVALID, "tensor '%s' does not end on a whole byte",
			tensor->name);
	if (bits / 8 != tensor->bytes)
		return th_fail(err, TH_E_INVALID,
			"tensor '%s' needs %" PRIu64
			" bytes by its shape, data_offsets give %" PRIu64,
			tensor->name, bits / 8, tensor->bytes);
	return 0;
}

static int
parse_tensor(
	const char *name, const json_t *json, struct th_err *err, struct safetensors_tensor *tensor)
{
	if (!th_name_valid(name, TH_NAME_MAX))
		return th_fail(err, TH_E_INVALID,
			"a tensor has an empty name, one with control characters or one of more "
			"than "
			"%d bytes",
			TH_NAME_MAX);
	tensor->name = strdup(name);
	if (!tensor->name)
		return th_fail(err, -ENOMEM, "no memory for the names of the tensors");
	if (!json_is_object(json))
		return th_fail(err, TH_E_INVALID, "tensor '%s' is not described", name);
	const char *dtype = json_string_value(json_object_get(json, "dtype"));
	tensor->dtype = dtype ? manifest_dtype_of_name(dtype) : 0;
	if (tensor->dtype == 0)
		return th_fail(
			err, TH_E_INVALID, "tensor '%s' has no dtype or an unknown one", name);
	int rc = parse_shape(json_object_get(json, "shape"), err, tensor);
	if (rc < 0)
		return rc;
	const json_t *offsets = json_object_get(json, "data_offsets");
	uint64_t end = 0;
	if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
		safetensors_parse_number(json_array_get(offsets, 0), &tensor->offset) < 0 ||
		safetensors_parse_number(json_array_get(offsets, 1), &end) < 0 ||
		end < tensor->offset)
		return th_fail(err, TH_E_INVALID, "tensor '%s' has no valid data_offsets", name);
	tensor->bytes = end - tensor->offset;
	return safetensors_check_bytes(tensor, err);
}

static int
check_metadata(json_t *json, struct th_err *err)
{
	const char *key;
	json_t *value;

	if (!json_is_object(json))
		return th_fail(err, TH_E_INVALID, METADATA_KEY " is not an object");
	json_object_foreach(json, key, value)
	{
		if (!json_is_string(value))
			return th_fail(err, TH_E_INVALID,
				METADATA_KEY " holds a value that is not a text");
	}
	return 0;
}

static int
compare_places(const void *left, const void *right)
{
	const struct safetensors_tensor *a = left;
	const struct safetensors_tensor *b = right;

	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	/* An empty tensor lies before the one that begins at the same byte. */
	if (a->bytes != b->bytes)
		return a->bytes < b->bytes ? -1 : 1;
	return strcmp(a->name, b->name);
}

static int
check_places(struct safetensors_header *header, struct th_err *err)
{
	uint64_t end = 0;

	/* Not with NULL, which an empty header has. */
	if (header->count > 0)
		qsort(header->tensors, header->count, sizeof(header->tensors[0]), compare_places);
	for (uint32_t i = 0; i < header->count; i++) {
		const struct safetensors_tensor *tensor = &header->tensors[i];
		if (tensor->offset != end)
			return th_fail(err, TH_E_INVALID,
				"tensor '%s' begins at byte %" PRIu64
				" of the data where byte %" PRIu64 " is next: %s",
				tensor->name, tensor->offset, end,
				tensor->offset < end ? "tensors overlap" : "there is a hole");
		end = tensor->offset + tensor->bytes;
	}
	header->data_bytes = end;
	return 0;
}

static int
parse_root(json_t *root, struct th_err *err, struct safetensors_header *header)
{
	const char *name;
	json_t *value;

	size_t count = json_object_size(root);
	if (count > (size_t)MANIFEST_ROWS_MAX + 1)
		return th_fail(err, TH_E_LIMIT, "%zu tensors in one file, at most %u are allowed",
			count, MANIFEST_ROWS_MAX);
	header->tensors = calloc(count ? count : 1, sizeof(header->tensors[0]));
	if (!header->tensors)
		return th_fail(err, -ENOMEM, "no memory for %zu tensors", count);
	json_object_foreach(root, name, value)
	{
		int rc;
		if (strcmp(name, METADATA_KEY) == 0)
			rc = check_metadata(value, err);
		else
			rc = parse_tensor(name, value, err, &header->tensors[header->count++]);
		if (rc < 0)
			return rc;
	}
	if (header->count > MANIFEST_ROWS_MAX)
		return th_fail(err, TH_E_LIMIT, "%u tensors in one file, at most %u are allowed",
			header->count, MANIFEST_ROWS_MAX);
	return check_places(header, err);
}

int
safetensors_parse(
	const char *text, size_t bytes, struct th_err *err, struct safetensors_header *ret_header)
{
	struct safetensors_header header = {0};
	json_error_t where;

	if (bytes == 0 || text[0] != '{')
		return th_fail(err, TH_E_INVALID,
			"not a safetensors file: its header does not begin with '{'");
	json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
	if (!root)
		return th_fail(err, TH_E_INVALID,
			"the safetensors header is no valid JSON at byte %d: %s", where.position,
			where.text);
	int rc = parse_root(root, err, &header);
	json_decref(root);
	if (rc < 0) {
		safetensors_free(&header);
		return rc;
	}
	*ret_header = header;
	return 0;
}

void
safetensors_free(struct safetensors_header *header)
{
	for (uint32_t i = 0; i < header->count; i++)
		free(header->tensors[i].name);
	free(header->tensors);
	*header = (struct safetensors_header){0};
}

/* NULL when there is no memory, or when a name is not UTF-8. */
static json_t *
format_tensor(const struct safetensors_tensor *tensor)
{
	json_t *shape = json_array();

	for (uint32_t i = 0; shape && i < tensor->ndim; i++) {
		if (json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i])) < 0) {
			json_decref(shape);
			return NULL;
		}
	}
	/* pack takes the reference of shape, also when it fails. */
	return json_pack("{s:s, s:o, s:[I,I]}", "dtype", manifest_dtype_name(tensor->dtype),
		"shape", shape, "data_offsets", (json_int_t)tensor->offset,
		(json_int_t)(tensor->offset + tensor->bytes));
}

static json_t *
format_root(struct safetensors_tensor *tensors, uint32_t count, struct th_err *err)
{
	uint64_t end = 0;

	/* Without this mark the readers of the usual frameworks refuse the file. */
	json_t *root = json_pack("{s:{s:s}}", METADATA_KEY, "format", "pt");
	for (uint32_t i = 0; root && i < count; i++) {
		struct safetensors_tensor *tensor = &tensors[i];
		tensor->offset = end;
		if (strcmp(tensor->name, METADATA_KEY) == 0) {
			th_fail(err, TH_E_INVALID,
				"a tensor is named '%s', a name that the format has for itself",
				tensor->name);
			json_decref(root);
			return NULL;
		}
		bool fits = th_add_u64(end, tensor->bytes, &end) && end <= INT64_MAX;
		if (!fits)
			th_fail(err, TH_E_LIMIT, "the tensors have more bytes than a file can");
		if (!fits || safetensors_check_bytes(tensor, err) < 0) {
			json_decref(root);
			return NULL;
		}
		if (json_object_set_new(root, tensor->name, format_tensor(tensor)) < 0) {
			json_decref(root);
			root = NULL;
		}
	}
	if (!root)
		th_fail(err, -ENOMEM, "no memory for the safetensors header");
	return root;
}

int
safetensors_format(struct safetensors_tensor *tensors, uint32_t count, struct th_err *err,
	char **ret_text, size_t *ret_bytes)
{
	/* Kept even when the caller wants no sentence: the code says which failure it was. */
	struct th_err failure = {0};

	json_t *root = format_root(tensors, count, &failure);
	if (!root)
		return th_fail(err, failure.code, "%s", failure.text);
	char *text = json_dumps(root, JSON_COMPACT);
	json_decref(root);
	size_t length = text ? strlen(text) : 0;
	size_t padded = (length + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT;
	char *grown = text ? realloc(text, padded + 1) : NULL;
	if (!grown) {
		free(text);
		return th_fail(err, -ENOMEM, "no memory for the safetensors header");
	}
	memset(grown + length, ' ', padded - length);
	grown[padded] = '\0';
	*ret_text = grown;
	*ret_bytes = padded;
	return 0;
}
