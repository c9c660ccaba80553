/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bytes_test - byte order, bounds and the sticky failure.
 */
#include "ipc/base/bytes.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t record[] = {
	0x01,                                           /* u8                                   */
	0x02, 0x03,                                     /* u16                                  */
	0x04, 0x05, 0x06, 0x87,                         /* u32                                  */
	0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x8f, /* u64                                  */
	0x02, 0x00, 'h', 'i',                           /* string                               */
	0xfe, 0xff,                                     /* bytes                                */
};

Test(bytes, read__whole_record__is_little_endian)
{
	struct th_reader reader;
	size_t len = 0;

	th_reader_init(&reader, record, sizeof(record));
	cr_assert_eq(th_read_u8(&reader), 0x01);
	cr_assert_eq(th_read_u16(&reader), 0x0302);
	cr_assert_eq(th_read_u32(&reader), 0x87060504u);
	cr_assert_eq(th_read_u64(&reader), UINT64_C(0x8f0e0d0c0b0a0908));
	const char *text = th_read_str(&reader, &len);
	cr_assert_eq(len, 2);
	cr_assert_eq(memcmp(text, "hi", 2), 0);
	cr_assert_eq(th_reader_left(&reader), 2);
	cr_assert_not(th_reader_done(&reader));
	cr_assert_eq(th_read_bytes(&reader, 2), record + 19);
	cr_assert(th_reader_done(&reader));
}

Test(bytes, read__beyond_the_end__fails_and_stays_failed)
{
	/* On the heap and exact, so that AddressSanitizer sees one byte too many. */
	uint8_t *data = malloc(7);
	struct th_reader reader;

	cr_assert_not_null(data);
	memset(data, 0xff, 7);
	th_reader_init(&reader, data, 7);
	cr_assert_eq(th_read_u64(&reader), 0);
	cr_assert(reader.failed);
	cr_assert_eq(th_read_u8(&reader), 0, "a failure is sticky");
	cr_assert_null(th_read_bytes(&reader, 0));
	cr_assert_eq(th_reader_left(&reader), 0);
	cr_assert_not(th_reader_done(&reader));
	free(data);
}

Test(bytes, read_bytes__huge_count__does_not_wrap)
{
	struct th_reader reader;

	th_reader_init(&reader, record, sizeof(record));
	(void)th_read_u8(&reader);
	cr_assert_null(th_read_bytes(&reader, SIZE_MAX));
	cr_assert(reader.failed);
}

Test(bytes, read_str__short_or_with_nul__fails)
{
	static const uint8_t too_short[] = {3, 0, 'a', 'b'};
	static const uint8_t with_nul[] = {3, 0, 'a', 0, 'b'};
	struct th_reader reader;
	size_t len = 77;

	th_reader_init(&reader, too_short, sizeof(too_short));
	cr_assert_null(th_read_str(&reader, &len));
	th_reader_init(&reader, with_nul, sizeof(with_nul));
	cr_assert_null(th_read_str(&reader, &len));
	cr_assert(reader.failed);
	cr_assert_eq(len, 77);
}

Test(bytes, read_str__empty__is_a_string)
{
	static const uint8_t empty[] = {0, 0};
	struct th_reader reader;
	size_t len = 77;

	th_reader_init(&reader, empty, sizeof(empty));
	cr_assert_not_null(th_read_str(&reader, &len));
	cr_assert_eq(len, 0);
	cr_assert(th_reader_done(&reader));
}

Test(bytes, reader__no_data__done)
{
	struct th_reader reader;

	th_reader_init(&reader, NULL, 0);
	cr_assert(th_reader_done(&reader));
}

static void
write_record(struct th_writer *writer)
{
	th_write_u8(writer, 0x01);
	th_write_u16(writer, 0x0302);
	th_write_u32(writer, 0x87060504u);
	th_write_u64(writer, UINT64_C(0x8f0e0d0c0b0a0908));
	th_write_str(writer, "hi");
	th_write_bytes(writer, "\xfe\xff", 2);
}

Test(bytes, write__whole_record__is_little_endian)
{
	uint8_t data[sizeof(record)];
	struct th_writer writer;

	th_writer_init(&writer, data, sizeof(data));
	write_record(&writer);
	cr_assert_not(writer.failed);
	cr_assert_eq(writer.at, sizeof(record));
	cr_assert_eq(memcmp(data, record, sizeof(record)), 0);
}

Test(bytes, write__dry_run__counts_the_same)
{
	struct th_writer writer;

	th_writer_init(&writer, NULL, 0);
	write_record(&writer);
	cr_assert_not(writer.failed);
	cr_assert_eq(writer.at, sizeof(record));
}

Test(bytes, write__every_short_buffer__fails_within_bounds)
{
	for (size_t size = 0; size < sizeof(record); size++) {
		uint8_t *data = malloc(size == 0 ? 1 : size);
		struct th_writer writer;

		cr_assert_not_null(data);
		th_writer_init(&writer, data, size);
		write_record(&writer);
		cr_assert(writer.failed, "%zu bytes were enough", size);
		cr_assert_leq(writer.at, size);
		free(data);
	}
}

Test(bytes, write_str__over_16_bits__fails)
{
	char *text = malloc(UINT16_MAX + 2);
	struct th_writer writer;

	cr_assert_not_null(text);
	memset(text, 'x', UINT16_MAX + 1);
	text[UINT16_MAX + 1] = '\0';
	th_writer_init(&writer, NULL, 0);
	th_write_str(&writer, text + 1);
	cr_assert_not(writer.failed);
	cr_assert_eq(writer.at, UINT16_MAX + 2);
	th_write_str(&writer, text);
	cr_assert(writer.failed);
	free(text);
}

Test(bytes, same__each_bit_counts)
{
	uint8_t a[16], b[16];

	memset(a, 0x5c, sizeof(a));
	memcpy(b, a, sizeof(b));
	cr_assert(th_bytes_same(a, b, sizeof(a)));
	for (size_t bit = 0; bit < 8 * sizeof(a); bit++) {
		b[bit / 8] ^= (uint8_t)(1u << bit % 8);
		cr_assert_not(th_bytes_same(a, b, sizeof(a)), "bit %zu", bit);
		cr_assert(th_bytes_same(a, b, bit / 8), "what is behind does not");
		b[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
}
