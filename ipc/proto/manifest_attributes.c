/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manifest_attributes - the encoding of a version's attributes: names with short values.
 *
 * In the order given, no name twice. Decoding takes hostile bytes and puts everything into one
 * allocation: the array, then each value (8-aligned) with its name behind it. Pure.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/bytes.h"
#include "ipc/proto/manifest.h"
#include "ipc/proto/manifest_internal.h"

#define MAGIC "THA1"
#define ATTRIBUTE_BYTES_MIN 7u /* a name of one byte, no value */

static int
check_unique(const struct manifest_attribute *attributes, size_t count, struct th_err *err)
{
	const char **names = calloc(count ? count : 1, sizeof(names[0]));
	if (!names)
		return th_fail(err, -ENOMEM, "no memory to check %zu attributes", count);
	for (size_t i = 0; i < count; i++)
		names[i] = attributes[i].name;
	int rc = manifest_check_unique(names, count, "attribute", err);
	free(names);
	return rc;
}

static int
check_attribute(const struct manifest_attribute *attribute, struct th_err *err)
{
	if (!attribute->name || (!attribute->value && attribute->bytes > 0))
		return th_fail(err, TH_E_INVALID, "an attribute has no name or no value");
	int rc = manifest_check_name(attribute->name, strlen(attribute->name), "attribute", err);
	if (rc < 0)
		return rc;
	if (attribute->bytes > MANIFEST_ATTRIBUTE_BYTES_MAX)
		return th_fail(err, TH_E_LIMIT, "attribute '%s' has %zu bytes; at most %u",
			attribute->name, attribute->bytes, MANIFEST_ATTRIBUTE_BYTES_MAX);
	return 0;
}

static void
write_attributes(
	struct th_writer *writer, const struct manifest_attribute *attributes, size_t count)
{
	th_write_bytes(writer, MAGIC, 4);
	th_write_u32(writer, (uint32_t)count);
	for (size_t i = 0; i < count; i++) {
		th_write_str(writer, attributes[i].name);
		th_write_u32(writer, (uint32_t)attributes[i].bytes);
		th_write_bytes(writer, attributes[i].value, attributes[i].bytes);
	}
}

int
manifest_attributes_encode(const struct manifest_attribute *attributes, size_t count,
	struct th_err *err, uint8_t **ret_data, size_t *ret_bytes)
{
	if (count > MANIFEST_ATTRIBUTES_BYTES_MAX / ATTRIBUTE_BYTES_MIN)
		return th_fail(err, TH_E_LIMIT, "%zu attributes are too many", count);
	int rc = 0;
	for (size_t i = 0; i < count && rc == 0; i++)
		rc = check_attribute(&attributes[i], err);
	if (rc == 0)
		rc = check_unique(attributes, count, err);
	if (rc < 0)
		return rc;
	struct th_writer writer;
	th_writer_init(&writer, NULL, 0);
	write_attributes(&writer, attributes, count);
	size_t bytes = writer.at;
	if (bytes > MANIFEST_ATTRIBUTES_BYTES_MAX)
		return th_fail(err, TH_E_LIMIT, "the attributes have %zu bytes; at most %u", bytes,
			MANIFEST_ATTRIBUTES_BYTES_MAX);
	uint8_t *data = malloc(bytes);
	if (!data)
		return th_fail(err, -ENOMEM, "no memory for %zu bytes of attributes", bytes);
	th_writer_init(&writer, data, bytes);
	write_attributes(&writer, attributes, count);
	*ret_data = data;
	*ret_bytes = bytes;
	return 0;
}

static size_t
align8(size_t bytes)
{
	return (bytes + 7) & ~(size_t)7;
}

/* Reads one attribute where it lies; checks all but the uniqueness of its name. */
static int
read_attribute(struct th_reader *reader, struct th_err *err, const char **ret_name,
	size_t *ret_name_bytes, const uint8_t **ret_value, size_t *ret_bytes)
{
	size_t name_bytes = 0;
	const char *name = th_read_str(reader, &name_bytes);
	size_t bytes = th_read_u32(reader);
	const uint8_t *value = reader->failed ? NULL : th_read_bytes(reader, bytes);
	if (!name || !value)
		return th_fail(err, TH_E_INVALID, "the attributes end early, at byte %zu of %zu",
			reader->at, reader->size);
	int rc = manifest_check_name(name, name_bytes, "attribute", err);
	if (rc < 0)
		return rc;
	if (bytes > MANIFEST_ATTRIBUTE_BYTES_MAX)
		return th_fail(err, TH_E_LIMIT, "an attribute has %zu bytes; at most %u", bytes,
			MANIFEST_ATTRIBUTE_BYTES_MAX);
	*ret_name = name;
	*ret_name_bytes = name_bytes;
	*ret_value = value;
	*ret_bytes = bytes;
	return 0;
}

static int
manifest_attributes_read_header(struct th_reader *reader, struct th_err *err, size_t *ret_count)
{
	const uint8_t *magic = th_read_bytes(reader, 4);
	size_t count = th_read_u32(reader);
	if (reader->failed || memcmp(magic, MAGIC, 4) != 0)
		return th_fail(err, TH_E_INVALID, "these are no attributes");
	if (count > th_reader_left(reader) / ATTRIBUTE_BYTES_MIN)
		return th_fail(err, TH_E_INVALID, "too short for %zu attributes", count);
	*ret_count = count;
	return 0;
}

int
manifest_attributes_decode(const uint8_t *data, size_t bytes, struct th_err *err,
	struct manifest_attribute **ret_attributes, size_t *ret_count)
{
	if (bytes > MANIFEST_ATTRIBUTES_BYTES_MAX)
		return th_fail(err, TH_E_LIMIT, "the attributes have %zu bytes; at most %u", bytes,
			MANIFEST_ATTRIBUTES_BYTES_MAX);
	struct th_reader reader;
	size_t count = 0;
	th_reader_init(&reader, data, bytes);
	int rc = manifest_attributes_read_header(&reader, err, &count);
	if (rc < 0)
		return rc;
	/* A value, its name and a NUL, then up to 7 bytes to the next value's alignment; the
	 * encoding has 6 bytes for the two lengths. */
	size_t array_bytes = count * sizeof(struct manifest_attribute);
	struct manifest_attribute *attributes = malloc(array_bytes + bytes + count * 8);
	if (!attributes)
		return th_fail(err, -ENOMEM, "no memory for %zu bytes of attributes", bytes);
	uint8_t *at = (uint8_t *)attributes + array_bytes;
	for (size_t i = 0; i < count && rc == 0; i++) {
		const char *name = NULL;
		const uint8_t *value = NULL;
		size_t name_bytes = 0, value_bytes = 0;
		rc = read_attribute(&reader, err, &name, &name_bytes, &value, &value_bytes);
		if (rc < 0)
			break;
		memcpy(at, value, value_bytes);
		memcpy(at + value_bytes, name, name_bytes);
		at[value_bytes + name_bytes] = '\0';
		attributes[i] =
			(struct manifest_attribute){.name = (const char *)(at + value_bytes),
				.value = at,
				.bytes = value_bytes};
		at += align8(value_bytes + name_bytes + 1);
	}
	if (rc == 0 && !th_reader_done(&reader))
		rc = th_fail(err, TH_E_INVALID, "the attributes have %zu bytes too many",
			th_reader_left(&reader));
	if (rc == 0)
		rc = check_unique(attributes, count, err);
	if (rc < 0) {
		free(attributes);
		return rc;
	}
	*ret_attributes = attributes;
	*ret_count = count;
	return 0;
}
