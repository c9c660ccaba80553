/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bytes - reading and writing little-endian records in memory, with bounds and a sticky failure.
 *
 * A codec reads or writes all fields and asks once, at the end, whether it went well: after the
 * first failure every read gives 0 or NULL and every write does nothing. What was read before that
 * question is still hostile data. Pure; one owner. Alignment does not matter.
 */
#ifndef TH_IPC_BASE_BYTES_H
#define TH_IPC_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* In the same time wherever they differ: for secrets. */
bool th_bytes_same(const void *a, const void *b, size_t size);

struct th_reader {
	const uint8_t *data; /* borrows */
	size_t size, at;
	bool failed;
};

void th_reader_init(struct th_reader *reader, const void *data, size_t size);
uint8_t th_read_u8(struct th_reader *reader);
uint16_t th_read_u16(struct th_reader *reader);
uint32_t th_read_u32(struct th_reader *reader);
uint64_t th_read_u64(struct th_reader *reader);
/* The next count bytes, within the reader's data; NULL when there are not so many. */
const uint8_t *th_read_bytes(struct th_reader *reader, size_t count);
/*
 * A string: u16 length, then that many bytes, none of them 0. Borrowed from the data, so not
 * NUL-terminated. NULL (and *ret_len untouched) on failure.
 */
const char *th_read_str(struct th_reader *reader, size_t *ret_len);
size_t th_reader_left(const struct th_reader *reader); /* 0 after a failure */
/* True when nothing failed and nothing is left: trailing bytes are an error too. */
bool th_reader_done(const struct th_reader *reader);

struct th_writer {
	uint8_t *data; /* borrows; NULL: nothing is written, only counted */
	size_t size, at;
	bool failed;
};

/* data NULL: a dry run that finds the size (at) of what will be written; size is ignored. */
void th_writer_init(struct th_writer *writer, void *data, size_t size);
void th_write_u8(struct th_writer *writer, uint8_t value);
void th_write_u16(struct th_writer *writer, uint16_t value);
void th_write_u32(struct th_writer *writer, uint32_t value);
void th_write_u64(struct th_writer *writer, uint64_t value);
void th_write_bytes(struct th_writer *writer, const void *bytes, size_t count);
/* As read by th_read_str. Fails when text has more than 65535 bytes. */
void th_write_str(struct th_writer *writer, const char *text);

#endif
