/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bytes - see bytes.h. Every access goes through bytes_take() or bytes_put(), which are the only
 * bounds checks. Pure.
 */
#include "ipc/base/bytes.h"

#include <string.h>

bool
th_bytes_same(const void *a, const void *b, size_t size)
{
	const uint8_t *left = a, *right = b;
	volatile uint8_t difference = 0; /* volatile: no early end that a compiler finds */

	for (size_t i = 0; i < size; i++)
		difference = (uint8_t)(difference | (left[i] ^ right[i]));
	return difference == 0;
}

void
th_reader_init(struct th_reader *reader, const void *data, size_t size)
{
	*reader = (struct th_reader){.data = data, .size = size};
}

static const uint8_t *
bytes_take(struct th_reader *reader, size_t count)
{
	if (reader->failed || count > reader->size - reader->at) {
		reader->failed = true;
		return NULL;
	}
	const uint8_t *bytes = reader->data + reader->at;
	reader->at += count;
	return bytes;
}

static uint64_t
bytes_take_number(struct th_reader *reader, size_t count)
{
	const uint8_t *bytes = bytes_take(reader, count);
	uint64_t value = 0;

	if (bytes == NULL)
		return 0;
	for (size_t i = count; i > 0; i--)
		value = (value << 8) | bytes[i - 1];
	return value;
}

uint8_t
th_read_u8(struct th_reader *reader)
{
	return (uint8_t)bytes_take_number(reader, 1);
}

uint16_t
th_read_u16(struct th_reader *reader)
{
	return (uint16_t)bytes_take_number(reader, 2);
}

uint32_t
th_read_u32(struct th_reader *reader)
{
	return (uint32_t)bytes_take_number(reader, 4);
}

uint64_t
th_read_u64(struct th_reader *reader)
{
	return bytes_take_number(reader, 8);
}

const uint8_t *
th_read_bytes(struct th_reader *reader, size_t count)
{
	return bytes_take(reader, count);
}

const char *
th_read_str(struct th_reader *reader, size_t *ret_len)
{
	size_t len = th_read_u16(reader);
	const uint8_t *bytes = bytes_take(reader, len);

	/* A NUL inside would make two names equal to everybody who uses strcmp. */
	if (bytes != NULL && len > 0 && memchr(bytes, 0, len) != NULL)
		reader->failed = true;
	if (reader->failed)
		return NULL;
	*ret_len = len;
	return (const char *)bytes;
}

size_t
th_reader_left(const struct th_reader *reader)
{
	return reader->failed ? 0 : reader->size - reader->at;
}

bool
th_reader_done(const struct th_reader *reader)
{
	return !reader->failed && reader->at == reader->size;
}

void
th_writer_init(struct th_writer *writer, void *data, size_t size)
{
	*writer = (struct th_writer){.data = data, .size = data == NULL ? SIZE_MAX : size};
}

/* False: nothing may be written. *ret_to is NULL in a dry run. */
static bool
bytes_put(struct th_writer *writer, size_t count, uint8_t **ret_to)
{
	if (writer->failed || count > writer->size - writer->at) {
		writer->failed = true;
		return false;
	}
	*ret_to = writer->data == NULL ? NULL : writer->data + writer->at;
	writer->at += count;
	return true;
}

static void
put_number(struct th_writer *writer, uint64_t value, size_t count)
{
	uint8_t *to;

	if (!bytes_put(writer, count, &to) || to == NULL)
		return;
	for (size_t i = 0; i < count; i++) {
		to[i] = (uint8_t)value;
		value >>= 8;
	}
}

void
th_write_u8(struct th_writer *writer, uint8_t value)
{
	put_number(writer, value, 1);
}

void
th_write_u16(struct th_writer *writer, uint16_t value)
{
	put_number(writer, value, 2);
}

void
th_write_u32(struct th_writer *writer, uint32_t value)
{
	put_number(writer, value, 4);
}

void
th_write_u64(struct th_writer *writer, uint64_t value)
{
	put_number(writer, value, 8);
}

void
th_write_bytes(struct th_writer *writer, const void *bytes, size_t count)
{
	uint8_t *to;

	if (bytes_put(writer, count, &to) && to != NULL && count > 0)
		memcpy(to, bytes, count);
}

void
th_write_str(struct th_writer *writer, const char *text)
{
	size_t len = strlen(text);

	if (len > UINT16_MAX) {
		writer->failed = true;
		return;
	}
	th_write_u16(writer, (uint16_t)len);
	th_write_bytes(writer, text, len);
}
