/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manifest - the logical content of one shard: rows of (name, dtype, shapes), and its one encoding.
 *
 * Canonical order: tensors of less than 2 MiB by name bytewise, then the rest by name bytewise.
 * Tied tensors are one row under the first name; the other names are aliases of that row and stand
 * outside the layout hash. Where a tensor lies in memory is not part of a manifest.
 *
 * Encoding (little-endian): "THM1", u32 num_rows, u32 num_aliases, then the rows: u16 name bytes,
 * name, u8 dtype, u8 ndim, ndim x {u64 local, u64 global, u64 offset}; then the aliases: u16 name
 * bytes, name, u32 row. The layout hash is the XXH3-128 (seed 0) of the rows' bytes; the manifest's
 * key is the XXH3-128 of the whole encoding. Pure: no I/O, no thread.
 */
#ifndef TH_IPC_PROTO_MANIFEST_H
#define TH_IPC_PROTO_MANIFEST_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/base/ctl.h"
#include "ipc/base/err.h"

#define MANIFEST_DIMS_MAX 8
#define MANIFEST_ROWS_MAX 131072u       /* bounds an agent's memory per shard */
#define MANIFEST_SMALL_BYTES (2u << 20) /* below: packed together with its neighbours */
/* Of one shard: more than a host has, little enough that nobody's chunk table takes its memory. */
#define MANIFEST_BYTES_MAX (UINT64_C(1) << 44)

struct manifest_row {
	const char *name; /* owned by the manifest */
	uint32_t dtype;   /* enum thc_dtype */
	uint32_t ndim;
	uint64_t local_shape[MANIFEST_DIMS_MAX];
	uint64_t global_shape[MANIFEST_DIMS_MAX];
	uint64_t offset[MANIFEST_DIMS_MAX];
	uint64_t bytes; /* = ceil(product(local_shape) * bits / 8), derived */
};

struct manifest_alias {
	const char *name; /* owned by the manifest */
	uint32_t row;
};

struct manifest {
	uint32_t num_rows, num_aliases;
	struct manifest_row *rows;      /* canonical order */
	struct manifest_alias *aliases; /* by name bytewise */
	uint64_t bytes;                 /* of all rows */
	void *storage;                  /* owns: names */
};

/* Bits of one element of a thc_dtype; 0 when unknown. */
uint32_t manifest_dtype_bits(uint32_t dtype);
const char *manifest_dtype_name(uint32_t dtype); /* as in safetensors: "BF16"; NULL when unknown */
uint32_t manifest_dtype_of_name(const char *name); /* 0 when unknown */

/* 1 to TH_NAME_MAX bytes of UTF-8 without control characters. what: "tensor", "attribute". */
int manifest_check_name(const char *name, size_t bytes, const char *what, struct th_err *err);
/* A row alone, everything but its name, as manifest_build checks it; sets row->bytes. */
int manifest_check_row(struct manifest_row *row, struct th_err *err);

/* Of the same type, shape and place in the whole. */
bool manifest_same_form(const struct manifest_row *a, const struct manifest_row *b);

/*
 * Makes a canonical manifest of rows in any order. alias_of[i] is the index (in the given order) of
 * the row that row i is tied to, or UINT32_MAX; alias_of may be NULL. Among a tie the name first
 * bytewise becomes the row. ret_position[i] (may be NULL) says at which canonical row given row i
 * lies (for an alias: the row it is an alias of). A global shape of zeros means the local one.
 * Fails with TH_E_INVALID and a sentence: empty, over-long or non-UTF-8 name, control character in
 * a name, name twice, unknown dtype, more than 8 dimensions, product over 2^63, local box outside
 * global, a tie of tensors that differ or to a row that is tied itself; with TH_E_LIMIT: too many
 * rows, too many bytes.
 */
int manifest_build(const struct manifest_row *rows, uint32_t count, const uint32_t *alias_of,
	uint32_t *ret_position, struct th_err *err, struct manifest *ret_manifest);
void manifest_free(struct manifest *manifest); /* leaves it empty; legal on a zeroed one */

/* Encodes into memory that the caller frees with free(). */
int manifest_encode(const struct manifest *manifest, uint8_t **ret_data, size_t *ret_bytes);
/* Decodes hostile bytes; checks everything manifest_build checks, and the canonical order. */
int manifest_decode(
	const uint8_t *data, size_t bytes, struct th_err *err, struct manifest *ret_manifest);

struct th_hash manifest_layout(const struct manifest *manifest);
struct th_hash manifest_key(const uint8_t *data, size_t bytes); /* of any blob */

/* The first difference of two layouts as a sentence that names the tensor. Returns TH_E_LAYOUT, or
 * 0 when they are equal. */
int manifest_compare(
	const struct manifest *source, const struct manifest *destination, struct th_err *err);

/*
 * Where a row lies in memory that holds a whole shard, as an agent's own copy does: behind those
 * before it, which end there. Large rows begin with a line of the cache. Small ones follow each
 * other without a gap, as in their chunks: a chunk lies in one piece, so one request of a GPU fills
 * it. False: no memory is that large.
 */
#define MANIFEST_ROW_ALIGNMENT UINT64_C(64)
bool manifest_place_row(const struct manifest_row *row, uint64_t end, uint64_t *ret_at);

/* Attributes: "THA1", u32 count, then u16 name bytes, name, u32 value bytes, value. */
struct manifest_attribute {
	const char *name; /* NUL-terminated */
	const void *value;
	size_t bytes;
};
#define MANIFEST_ATTRIBUTE_BYTES_MAX (64u << 10)
#define MANIFEST_ATTRIBUTES_BYTES_MAX (1u << 20)
int manifest_attributes_encode(const struct manifest_attribute *attributes, size_t count,
	struct th_err *err, uint8_t **ret_data, size_t *ret_bytes);
/* *ret_attributes is one allocation (free()), names and values included (values are 8-aligned). */
int manifest_attributes_decode(const uint8_t *data, size_t bytes, struct th_err *err,
	struct manifest_attribute **ret_attributes, size_t *ret_count);

#endif
