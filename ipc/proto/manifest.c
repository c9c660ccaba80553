/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manifest - checks rows and brings them into canonical order; compares two layouts.
 *
 * Pure: no I/O, no thread. The encoding is in manifest_codec.c.
 */
#include "ipc/proto/manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"
#include "ipc/proto/manifest_internal.h"

static const struct {
	const char *name;
	uint32_t bits;
} dtypes[] = {
	/* by the numbers of enum thc_dtype; 0 is none */
	{NULL, 0},
	{"U8", 8},
	{"I8", 8},
	{"BOOL", 8},
	{"I16", 16},
	{"U16", 16},
	{"F16", 16},
	{"BF16", 16},
	{"I32", 32},
	{"U32", 32},
	{"F32", 32},
	{"I64", 64},
	{"U64", 64},
	{"F64", 64},
	{"F8_E4M3", 8},
	{"F8_E5M2", 8},
	{"C64", 64},
	{"F8_E8M0", 8},
	{"F8_E4M3FNUZ", 8},
	{"F8_E5M2FNUZ", 8},
	{"F4", 4},
	{"F6_E2M3", 6},
	{"F6_E3M2", 6},
};
#define DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

uint32_t
manifest_dtype_bits(uint32_t dtype)
{
	return dtype < DTYPES ? dtypes[dtype].bits : 0;
}

const char *
manifest_dtype_name(uint32_t dtype)
{
	return dtype < DTYPES ? dtypes[dtype].name : NULL;
}

uint32_t
manifest_dtype_of_name(const char *name)
{
	for (uint32_t dtype = 1; dtype < DTYPES; dtype++) {
		if (strcmp(dtypes[dtype].name, name) == 0)
			return dtype;
	}
	return 0;
}

int
manifest_check_name(const char *name, size_t bytes, const char *what, struct th_err *err)
{
	if (bytes == 0)
		return th_fail(err, TH_E_INVALID, "a %s has an empty name", what);
	if (bytes > TH_NAME_MAX)
		return th_fail(err, TH_E_INVALID,
			"the name of a %s has %zu bytes; at most %d are allowed", what, bytes,
			TH_NAME_MAX);
	for (size_t i = 0; i < bytes;) {
		size_t step = th_utf8_char(name + i, bytes - i);
		if (step == 0 || th_utf8_is_control(name + i, step))
			return th_fail(err, TH_E_INVALID,
				"the name of a %s is not printable UTF-8 at byte %zu", what, i);
		i += step;
	}
	return 0;
}

/* Product of a shape. A dimension of 0 makes it 0, whatever the others are. */
static int
shape_product(const uint64_t *shape, uint32_t ndim, uint64_t *ret_product)
{
	uint64_t product = 1;
	for (uint32_t d = 0; d < ndim; d++) {
		if (shape[d] == 0) {
			*ret_product = 0;
			return 0;
		}
	}
	for (uint32_t d = 0; d < ndim; d++) {
		if (__builtin_mul_overflow(product, shape[d], &product) || product > INT64_MAX)
			return TH_E_INVALID;
	}
	*ret_product = product;
	return 0;
}

int
manifest_check_row(struct manifest_row *row, struct th_err *err)
{
	uint32_t bits = manifest_dtype_bits(row->dtype);
	if (bits == 0)
		return th_fail(err, TH_E_INVALID, "tensor '%s' has the unknown dtype %" PRIu32,
			row->name, row->dtype);
	if (row->ndim > MANIFEST_DIMS_MAX)
		return th_fail(err, TH_E_INVALID,
			"tensor '%s' has %" PRIu32 " dimensions; at most %d are allowed", row->name,
			row->ndim, MANIFEST_DIMS_MAX);
	for (uint32_t d = 0; d < row->ndim; d++) {
		uint64_t end;
		if (__builtin_add_overflow(row->offset[d], row->local_shape[d], &end) ||
			end > row->global_shape[d])
			return th_fail(err, TH_E_INVALID,
				"tensor '%s': its local box reaches out of the global shape in "
				"dimension %" PRIu32,
				row->name, d);
	}
	uint64_t elements, total_bits;
	uint64_t global_elements;
	if (shape_product(row->local_shape, row->ndim, &elements) < 0 ||
		shape_product(row->global_shape, row->ndim, &global_elements) < 0 ||
		__builtin_mul_overflow(elements, (uint64_t)bits, &total_bits))
		return th_fail(err, TH_E_INVALID,
			"tensor '%s': the product of its shape does not fit into 63 bits",
			row->name);
	row->bytes = total_bits / 8 + (total_bits % 8 != 0);
	return 0;
}

int
manifest_add_bytes(uint64_t *total, const struct manifest_row *row, struct th_err *err)
{
	if (row->bytes > MANIFEST_BYTES_MAX || *total > MANIFEST_BYTES_MAX - row->bytes)
		return th_fail(err, TH_E_LIMIT,
			"the shard is larger than %" PRIu64 " bytes with tensor '%s'",
			MANIFEST_BYTES_MAX, row->name);
	*total += row->bytes;
	return 0;
}

static int
manifest_compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int
manifest_check_unique(const char **names, size_t count, const char *what, struct th_err *err)
{
	if (count < 2)
		return 0;
	qsort(names, count, sizeof(names[0]), manifest_compare_names);
	for (size_t i = 1; i < count; i++) {
		if (strcmp(names[i - 1], names[i]) == 0)
			return th_fail(
				err, TH_E_INVALID, "two %ss have the name '%s'", what, names[i]);
	}
	return 0;
}

/* ---- build -------------------------------------------------------------------------------- */

struct build_row {
	struct manifest_row row;
	uint32_t given;  /* its index in the caller's order                                    */
	uint32_t root;   /* given index of the row that it is tied to; its own when to none    */
	uint32_t leader; /* at a root: given index of the name that stands for the tie         */
};

static int
compare_rows(const void *a, const void *b)
{
	const struct build_row *x = a, *y = b;
	bool small_x = manifest_row_is_small(&x->row), small_y = manifest_row_is_small(&y->row);
	if (small_x != small_y)
		return small_x ? -1 : 1;
	return strcmp(x->row.name, y->row.name);
}

/* Copies what counts: dimensions beyond ndim are zero, a global shape of zeros is the local one. */
static int
take_row(const struct manifest_row *given, struct build_row *build, struct th_err *err)
{
	struct manifest_row *row = &build->row;
	*row = (struct manifest_row){
		.name = given->name, .dtype = given->dtype, .ndim = given->ndim};
	if (!given->name)
		return th_fail(err, TH_E_INVALID, "a tensor has no name");
	int rc = manifest_check_name(given->name, strlen(given->name), "tensor", err);
	if (rc < 0)
		return rc;
	bool whole = true;
	for (uint32_t d = 0; d < given->ndim && d < MANIFEST_DIMS_MAX; d++) {
		row->local_shape[d] = given->local_shape[d];
		row->global_shape[d] = given->global_shape[d];
		row->offset[d] = given->offset[d];
		whole = whole && given->global_shape[d] == 0;
	}
	if (whole)
		memcpy(row->global_shape, row->local_shape, sizeof(row->global_shape));
	return manifest_check_row(row, err);
}

bool
manifest_same_form(const struct manifest_row *a, const struct manifest_row *b)
{
	return a->dtype == b->dtype && a->ndim == b->ndim &&
	       memcmp(a->local_shape, b->local_shape, sizeof(a->local_shape)) == 0 &&
	       memcmp(a->global_shape, b->global_shape, sizeof(a->global_shape)) == 0 &&
	       memcmp(a->offset, b->offset, sizeof(a->offset)) == 0;
}

/* Finds for each tie the name that comes first bytewise. */
static int
resolve_ties(struct build_row *build, uint32_t count, const uint32_t *alias_of, struct th_err *err)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t root = alias_of ? alias_of[i] : UINT32_MAX;
		if (root == UINT32_MAX)
			continue;
		if (root >= count || root == i || alias_of[root] != UINT32_MAX)
			return th_fail(err, TH_E_INVALID,
				"tensor '%s' is tied to a tensor that is none of its own",
				build[i].row.name);
		if (!manifest_same_form(&build[i].row, &build[root].row))
			return th_fail(err, TH_E_INVALID,
				"tensors '%s' and '%s' are the same bytes with different types or "
				"shapes",
				build[root].row.name, build[i].row.name);
		build[i].root = root;
		const char *leader = build[build[root].leader].row.name;
		if (strcmp(build[i].row.name, leader) < 0)
			build[root].leader = i;
	}
	return 0;
}

static int
compare_aliases(const void *a, const void *b)
{
	const struct manifest_alias *x = a, *y = b;
	return strcmp(x->name, y->name);
}

/* One allocation for all names; the rows and aliases point into it from now on. */
static int
own_names(struct manifest *manifest)
{
	size_t bytes = 0;
	for (uint32_t i = 0; i < manifest->num_rows; i++)
		bytes += strlen(manifest->rows[i].name) + 1;
	for (uint32_t i = 0; i < manifest->num_aliases; i++)
		bytes += strlen(manifest->aliases[i].name) + 1;
	if (bytes == 0)
		return 0;
	char *names = malloc(bytes);
	if (!names)
		return -ENOMEM;
	manifest->storage = names;
	for (uint32_t i = 0; i < manifest->num_rows; i++) {
		size_t length = strlen(manifest->rows[i].name) + 1;
		manifest->rows[i].name = memcpy(names, manifest->rows[i].name, length);
		names += length;
	}
	for (uint32_t i = 0; i < manifest->num_aliases; i++) {
		size_t length = strlen(manifest->aliases[i].name) + 1;
		manifest->aliases[i].name = memcpy(names, manifest->aliases[i].name, length);
		names += length;
	}
	return 0;
}

/* position[given index] = canonical row; build is in caller's order no more, but sorted. */
static void
fill_rows(struct manifest *manifest, const struct build_row *sorted, uint32_t count,
	const uint32_t *leader_of, uint32_t *position)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t given = sorted[i].given;
		if (leader_of[given] == given) {
			position[given] = manifest->num_rows;
			manifest->rows[manifest->num_rows++] = sorted[i].row;
		}
	}
	for (uint32_t i = 0; i < count; i++) {
		uint32_t given = sorted[i].given;
		if (leader_of[given] == given)
			continue;
		position[given] = position[leader_of[given]];
		manifest->aliases[manifest->num_aliases++] =
			(struct manifest_alias){.name = sorted[i].row.name, .row = position[given]};
	}
	if (manifest->num_aliases > 1)
		qsort(manifest->aliases, manifest->num_aliases, sizeof(manifest->aliases[0]),
			compare_aliases);
}

int
manifest_build(const struct manifest_row *rows, uint32_t count, const uint32_t *alias_of,
	uint32_t *ret_position, struct th_err *err, struct manifest *ret_manifest)
{
	if (count > MANIFEST_ROWS_MAX)
		return th_fail(err, TH_E_LIMIT, "%" PRIu32 " tensors; a shard has at most %u",
			count, MANIFEST_ROWS_MAX);
	size_t slots = count ? count : 1;
	struct manifest manifest = {
		.rows = calloc(slots, sizeof(manifest.rows[0])),
		.aliases = calloc(slots, sizeof(manifest.aliases[0])),
	};
	struct build_row *build = calloc(slots, sizeof(build[0]));
	const char **names = calloc(slots, sizeof(names[0]));
	uint32_t *leader_of = calloc(slots, sizeof(leader_of[0]));
	uint32_t *position = calloc(slots, sizeof(position[0]));
	int rc = 0;
	if (!manifest.rows || !manifest.aliases || !build || !names || !leader_of || !position) {
		rc = th_fail(
			err, -ENOMEM, "no memory for a manifest of %" PRIu32 " tensors", count);
		goto out;
	}
	for (uint32_t i = 0; i < count; i++) {
		build[i].given = build[i].root = build[i].leader = i;
		rc = take_row(&rows[i], &build[i], err);
		if (rc < 0)
			goto out;
		names[i] = rows[i].name;
	}
	rc = manifest_check_unique(names, count, "tensor", err);
	if (rc == 0)
		rc = resolve_ties(build, count, alias_of, err);
	for (uint32_t i = 0; rc == 0 && i < count; i++) {
		leader_of[i] = build[build[i].root].leader;
		if (leader_of[i] == i)
			rc = manifest_add_bytes(&manifest.bytes, &build[i].row, err);
	}
	if (rc < 0)
		goto out;
	qsort(build, count, sizeof(build[0]), compare_rows);
	fill_rows(&manifest, build, count, leader_of, position);
	rc = own_names(&manifest);
	if (rc < 0) {
		rc = th_fail(err, rc, "no memory for the names of %" PRIu32 " tensors", count);
		goto out;
	}
	if (ret_position)
		memcpy(ret_position, position, count * sizeof(position[0]));
	*ret_manifest = manifest;
	manifest = (struct manifest){0};
out:
	manifest_free(&manifest);
	free(build);
	free(names);
	free(leader_of);
	free(position);
	return rc;
}

bool
manifest_place_row(const struct manifest_row *row, uint64_t end, uint64_t *ret_at)
{
	*ret_at = end;
	return manifest_row_is_small(row) || th_align_up_u64(end, MANIFEST_ROW_ALIGNMENT, ret_at);
}

void
manifest_free(struct manifest *manifest)
{
	free(manifest->rows);
	free(manifest->aliases);
	free(manifest->storage);
	*manifest = (struct manifest){0};
}

/* ---- compare ------------------------------------------------------------------------------ */

static const struct manifest_row *
manifest_find_row(const struct manifest *manifest, const char *name)
{
	for (uint32_t i = 0; i < manifest->num_rows; i++) {
		if (strcmp(manifest->rows[i].name, name) == 0)
			return &manifest->rows[i];
	}
	return NULL;
}

static int
differ_by_dims(const struct manifest_row *source, const struct manifest_row *destination,
	struct th_err *err)
{
	if (source->ndim != destination->ndim)
		return th_fail(err, TH_E_LAYOUT,
			"tensor '%s' has %" PRIu32 " dimensions at the source and %" PRIu32 " here",
			source->name, source->ndim, destination->ndim);
	for (uint32_t d = 0; d < source->ndim; d++) {
		const char *what = "local size";
		uint64_t theirs = source->local_shape[d], ours = destination->local_shape[d];
		if (theirs == ours) {
			what = "global size";
			theirs = source->global_shape[d];
			ours = destination->global_shape[d];
		}
		if (theirs == ours) {
			what = "offset";
			theirs = source->offset[d];
			ours = destination->offset[d];
		}
		if (theirs != ours)
			return th_fail(err, TH_E_LAYOUT,
				"tensor '%s': its %s in dimension %" PRIu32 " is %" PRIu64
				" at the source and %" PRIu64 " here",
				source->name, what, d, theirs, ours);
	}
	return 0;
}

static int
differ(const struct manifest_row *source, const struct manifest_row *destination,
	struct th_err *err)
{
	if (source->dtype != destination->dtype) {
		const char *theirs = manifest_dtype_name(source->dtype);
		const char *ours = manifest_dtype_name(destination->dtype);
		return th_fail(err, TH_E_LAYOUT, "tensor '%s' is %s at the source and %s here",
			source->name, theirs ? theirs : "?", ours ? ours : "?");
	}
	return differ_by_dims(source, destination, err);
}

static int
manifest_fail_missing(const char *name, bool at_source, struct th_err *err)
{
	return th_fail(err, TH_E_LAYOUT, "tensor '%s' is %s", name,
		at_source ? "at the source and not registered here"
			  : "registered here and not at the source");
}

int
manifest_compare(
	const struct manifest *source, const struct manifest *destination, struct th_err *err)
{
	for (uint32_t i = 0; i < source->num_rows || i < destination->num_rows; i++) {
		const struct manifest_row *theirs = i < source->num_rows ? &source->rows[i] : NULL;
		const struct manifest_row *ours =
			i < destination->num_rows ? &destination->rows[i] : NULL;
		/* At the first difference in order, a name may be missing, or stand elsewhere
		 * because another size made another order. */
		if (theirs && (!ours || strcmp(theirs->name, ours->name) != 0)) {
			const struct manifest_row *same =
				manifest_find_row(destination, theirs->name);
			if (!same)
				return manifest_fail_missing(theirs->name, true, err);
			int rc = differ(theirs, same, err);
			if (rc < 0)
				return rc;
		}
		if (ours && (!theirs || strcmp(theirs->name, ours->name) != 0)) {
			const struct manifest_row *same = manifest_find_row(source, ours->name);
			if (!same)
				return manifest_fail_missing(ours->name, false, err);
			int rc = differ(same, ours, err);
			if (rc < 0)
				return rc;
			continue;
		}
		if (theirs && ours) {
			int rc = differ(theirs, ours, err);
			if (rc < 0)
				return rc;
		}
	}
	return 0;
}
