/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manifest_codec - the encoding of a manifest and its two hashes.
 *
 * Decoding takes hostile bytes: nothing is allocated beyond a small multiple of what was received,
 * and a manifest that comes out passes all checks of manifest_build and is in canonical order, so
 * that one content has one encoding. Pure. xxHash is inlined, because libthc links libc only.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/proto/manifest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ipc/base/bytes.h"
#include "ipc/proto/manifest_internal.h"

#define MAGIC "THM1"
#define ROW_BYTES_MIN 5u   /* a name of one byte, no dimensions */
#define ALIAS_BYTES_MIN 7u /* a name of one byte */
#define ROW_BYTES_MAX (2u + TH_NAME_MAX + 2u + MANIFEST_DIMS_MAX * 24u)

static void
write_row(struct th_writer *writer, const struct manifest_row *row)
{
	th_write_str(writer, row->name);
	th_write_u8(writer, (uint8_t)row->dtype);
	th_write_u8(writer, (uint8_t)row->ndim);
	for (uint32_t d = 0; d < row->ndim; d++) {
		th_write_u64(writer, row->local_shape[d]);
		th_write_u64(writer, row->global_shape[d]);
		th_write_u64(writer, row->offset[d]);
	}
}

static void
write_manifest(struct th_writer *writer, const struct manifest *manifest)
{
	th_write_bytes(writer, MAGIC, 4);
	th_write_u32(writer, manifest->num_rows);
	th_write_u32(writer, manifest->num_aliases);
	for (uint32_t i = 0; i < manifest->num_rows; i++)
		write_row(writer, &manifest->rows[i]);
	for (uint32_t i = 0; i < manifest->num_aliases; i++) {
		th_write_str(writer, manifest->aliases[i].name);
		th_write_u32(writer, manifest->aliases[i].row);
	}
}

int
manifest_encode(const struct manifest *manifest, uint8_t **ret_data, size_t *ret_bytes)
{
	struct th_writer writer;
	th_writer_init(&writer, NULL, 0);
	write_manifest(&writer, manifest);
	size_t bytes = writer.at;
	uint8_t *data = malloc(bytes);
	if (!data)
		return -ENOMEM;
	th_writer_init(&writer, data, bytes);
	write_manifest(&writer, manifest);
	*ret_data = data;
	*ret_bytes = bytes;
	return 0;
}

/* ---- decode ------------------------------------------------------------------------------- */

struct decoder {
	struct th_reader reader;
	struct manifest manifest;
	char *names; /* next free byte of manifest.storage */
	struct th_err *err;
};

static int
manifest_codec_fail_short(struct decoder *decoder)
{
	return th_fail(decoder->err, TH_E_INVALID, "the manifest ends early, at byte %zu of %zu",
		decoder->reader.at, decoder->reader.size);
}

/* The storage has room: a NUL takes less than the two bytes of a length in the encoding. */
static int
read_name(struct decoder *decoder, const char **ret_name)
{
	size_t bytes;
	const char *name = th_read_str(&decoder->reader, &bytes);
	if (!name)
		return manifest_codec_fail_short(decoder);
	int rc = manifest_check_name(name, bytes, "tensor", decoder->err);
	if (rc < 0)
		return rc;
	char *own = decoder->names;
	memcpy(own, name, bytes);
	own[bytes] = '\0';
	decoder->names += bytes + 1;
	*ret_name = own;
	return 0;
}

static int
read_row(struct decoder *decoder, struct manifest_row *row)
{
	struct th_reader *reader = &decoder->reader;
	int rc = read_name(decoder, &row->name);
	if (rc < 0)
		return rc;
	row->dtype = th_read_u8(reader);
	row->ndim = th_read_u8(reader);
	for (uint32_t d = 0; d < row->ndim && d < MANIFEST_DIMS_MAX; d++) {
		row->local_shape[d] = th_read_u64(reader);
		row->global_shape[d] = th_read_u64(reader);
		row->offset[d] = th_read_u64(reader);
	}
	if (reader->failed)
		return manifest_codec_fail_short(decoder);
	rc = manifest_check_row(row, decoder->err);
	if (rc < 0)
		return rc;
	return manifest_add_bytes(&decoder->manifest.bytes, row, decoder->err);
}

static int
read_rows(struct decoder *decoder, uint32_t count)
{
	struct manifest *manifest = &decoder->manifest;
	for (uint32_t i = 0; i < count; i++) {
		struct manifest_row *row = &manifest->rows[i];
		int rc = read_row(decoder, row);
		if (rc < 0)
			return rc;
		manifest->num_rows = i + 1;
		if (i == 0)
			continue;
		bool small = manifest_row_is_small(row);
		bool small_before = manifest_row_is_small(row - 1);
		if ((small && !small_before) ||
			(small == small_before && strcmp(row[-1].name, row->name) >= 0))
			return th_fail(decoder->err, TH_E_INVALID,
				"tensor '%s' is out of canonical order", row->name);
	}
	return 0;
}

static int
read_aliases(struct decoder *decoder, uint32_t count)
{
	struct manifest *manifest = &decoder->manifest;
	for (uint32_t i = 0; i < count; i++) {
		struct manifest_alias *alias = &manifest->aliases[i];
		int rc = read_name(decoder, &alias->name);
		if (rc < 0)
			return rc;
		alias->row = th_read_u32(&decoder->reader);
		if (decoder->reader.failed)
			return manifest_codec_fail_short(decoder);
		if (alias->row >= manifest->num_rows ||
			strcmp(manifest->rows[alias->row].name, alias->name) >= 0)
			return th_fail(decoder->err, TH_E_INVALID,
				"alias '%s' names no row before it", alias->name);
		if (i > 0 && strcmp(alias[-1].name, alias->name) >= 0)
			return th_fail(decoder->err, TH_E_INVALID,
				"alias '%s' is out of canonical order", alias->name);
		manifest->num_aliases = i + 1;
	}
	return 0;
}

static int
check_names(struct decoder *decoder)
{
	const struct manifest *manifest = &decoder->manifest;
	size_t count = (size_t)manifest->num_rows + manifest->num_aliases;
	const char **names = calloc(count ? count : 1, sizeof(names[0]));
	if (!names)
		return th_fail(decoder->err, -ENOMEM, "no memory to check %zu names", count);
	for (uint32_t i = 0; i < manifest->num_rows; i++)
		names[i] = manifest->rows[i].name;
	for (uint32_t i = 0; i < manifest->num_aliases; i++)
		names[manifest->num_rows + i] = manifest->aliases[i].name;
	int rc = manifest_check_unique(names, count, "tensor", decoder->err);
	free(names);
	return rc;
}

/* Counts first, against what is there: only then memory. */
static int
read_counts(struct decoder *decoder, uint32_t *ret_rows, uint32_t *ret_aliases)
{
	struct th_reader *reader = &decoder->reader;
	const uint8_t *magic = th_read_bytes(reader, 4);
	uint32_t rows = th_read_u32(reader);
	uint32_t aliases = th_read_u32(reader);
	if (reader->failed)
		return manifest_codec_fail_short(decoder);
	if (memcmp(magic, MAGIC, 4) != 0)
		return th_fail(decoder->err, TH_E_INVALID, "this is not a manifest");
	if (rows > MANIFEST_ROWS_MAX || aliases > MANIFEST_ROWS_MAX - rows)
		return th_fail(decoder->err, TH_E_LIMIT,
			"%" PRIu32 " rows and %" PRIu32 " aliases; a shard has at most %u names",
			rows, aliases, MANIFEST_ROWS_MAX);
	if ((uint64_t)rows * ROW_BYTES_MIN + (uint64_t)aliases * ALIAS_BYTES_MIN >
		th_reader_left(reader))
		return th_fail(decoder->err, TH_E_INVALID,
			"the manifest is too short for %" PRIu32 " rows and %" PRIu32 " aliases",
			rows, aliases);
	*ret_rows = rows;
	*ret_aliases = aliases;
	return 0;
}

int
manifest_decode(
	const uint8_t *data, size_t bytes, struct th_err *err, struct manifest *ret_manifest)
{
	struct decoder decoder = {.err = err};
	struct manifest *manifest = &decoder.manifest;
	uint32_t rows = 0, aliases = 0;
	th_reader_init(&decoder.reader, data, bytes);
	int rc = read_counts(&decoder, &rows, &aliases);
	if (rc < 0)
		return rc;
	manifest->rows = calloc(rows ? rows : 1, sizeof(manifest->rows[0]));
	manifest->aliases = calloc(aliases ? aliases : 1, sizeof(manifest->aliases[0]));
	manifest->storage = decoder.names = malloc(bytes);
	if (!manifest->rows || !manifest->aliases || !manifest->storage) {
		rc = th_fail(err, -ENOMEM, "no memory for a manifest of %zu bytes", bytes);
		goto out;
	}
	rc = read_rows(&decoder, rows);
	if (rc == 0)
		rc = read_aliases(&decoder, aliases);
	if (rc == 0 && !th_reader_done(&decoder.reader))
		rc = th_fail(err, TH_E_INVALID, "the manifest has %zu bytes too many",
			th_reader_left(&decoder.reader));
	if (rc == 0)
		rc = check_names(&decoder);
	if (rc < 0)
		goto out;
	*ret_manifest = *manifest;
	*manifest = (struct manifest){0};
out:
	manifest_free(manifest);
	return rc;
}

/* ---- hashes ------------------------------------------------------------------------------- */

struct th_hash
manifest_layout(const struct manifest *manifest)
{
	XXH3_state_t state;
	uint8_t buffer[ROW_BYTES_MAX];
	XXH3_128bits_reset(&state);
	for (uint32_t i = 0; i < manifest->num_rows; i++) {
		struct th_writer writer;
		th_writer_init(&writer, buffer, sizeof(buffer));
		write_row(&writer, &manifest->rows[i]);
		XXH3_128bits_update(&state, buffer, writer.at);
	}
	XXH128_hash_t hash = XXH3_128bits_digest(&state);
	return (struct th_hash){.lo = hash.low64, .hi = hash.high64};
}

struct th_hash
manifest_key(const uint8_t *data, size_t bytes)
{
	XXH128_hash_t hash = XXH3_128bits(data, bytes);
	return (struct th_hash){.lo = hash.low64, .hi = hash.high64};
}
