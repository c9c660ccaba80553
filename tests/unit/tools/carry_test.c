/* SPDX-License-Identifier: Apache-2.0 */
/*
 * carry_test - a header split over attributes and joined again; pieces that are missing or
 * too many.
 */
#include "tools/file/carry.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"

#define PIECES_MAX 20

static void
round_trip(size_t bytes)
{
	char names[PIECES_MAX][CARRY_NAME_BYTES];
	struct carry_attribute attributes[PIECES_MAX];
	char *header = malloc(bytes);
	char *joined = NULL;
	size_t joined_bytes = 0;

	for (size_t i = 0; i < bytes; i++)
		header[i] = (char)('a' + i % 23);
	uint32_t pieces = carry_pieces(bytes);
	cr_assert(pieces > 0 && pieces < PIECES_MAX);
	for (uint32_t i = 0; i < pieces; i++) {
		size_t at = (size_t)i * CARRY_PIECE_BYTES;
		/* In reverse: the order of attributes means nothing. */
		attributes[pieces - 1 - i] = (struct carry_attribute){
			.name = carry_name(i, pieces, names[i]),
			.value = header + at,
			.bytes = th_min_size(CARRY_PIECE_BYTES, bytes - at),
		};
	}
	cr_assert_eq(carry_join(attributes, pieces, NULL, &joined, &joined_bytes), 1);
	cr_assert_eq(joined_bytes, bytes);
	cr_assert_eq(memcmp(joined, header, bytes), 0);
	cr_assert_eq(joined[bytes], '\0');
	free(joined);
	free(header);
}

Test(carry, join__any_number_of_pieces__gives_the_header)
{
	round_trip(1);
	round_trip(65536);
	round_trip(65537);
	round_trip(131072);
	round_trip(CARRY_BYTES_MAX);
}

Test(carry, pieces__none_and_too_large__are_zero)
{
	cr_assert_eq(carry_pieces(0), 0);
	cr_assert_eq(carry_pieces(1), 1);
	cr_assert_eq(carry_pieces(CARRY_BYTES_MAX + 1), 0);
}

/* What thctl publish sets must pass the limit of all attributes together. */
Test(carry, largest_header__fits_the_attributes)
{
	static char value[CARRY_PIECE_BYTES];
	struct manifest_attribute attributes[PIECES_MAX];
	char names[PIECES_MAX][CARRY_NAME_BYTES];
	struct th_err err = {0};
	uint8_t *data = NULL;
	size_t bytes = 0;

	uint32_t pieces = carry_pieces(CARRY_BYTES_MAX);
	for (uint32_t i = 0; i < pieces; i++)
		attributes[i] = (struct manifest_attribute){
			.name = carry_name(i, pieces, names[i]),
			.value = value,
			.bytes = th_min_size(
				CARRY_PIECE_BYTES, CARRY_BYTES_MAX - i * CARRY_PIECE_BYTES),
		};
	cr_assert_eq(manifest_attributes_encode(attributes, pieces, &err, &data, &bytes), 0, "%s",
		err.text);
	free(data);
}

Test(carry, join__other_attributes__no_header)
{
	struct carry_attribute attributes[] = {
		{"tokenizer", "x", 1}, {"safetensors.headers", "y", 1}};
	char *header = NULL;
	size_t bytes = 0;

	cr_assert_eq(carry_join(NULL, 0, NULL, &header, &bytes), 0);
	cr_assert_eq(carry_join(attributes, 2, NULL, &header, &bytes), 0);
	cr_assert_null(header);
}

Test(carry, join__missing_piece__is_refused)
{
	struct carry_attribute gap[] = {
		{"safetensors.header.0", "x", 1}, {"safetensors.header.2", "y", 1}};
	struct carry_attribute odd[] = {{"safetensors.header.x", "x", 1}};
	struct th_err err = {0};
	char *header = NULL;
	size_t bytes = 0;

	cr_assert_eq(carry_join(gap, 2, &err, &header, &bytes), TH_E_INVALID);
	cr_assert(strstr(err.text, "safetensors.header.1"));
	cr_assert_eq(carry_join(odd, 1, &err, &header, &bytes), TH_E_INVALID);
	cr_assert_null(header);
}

Test(carry, join__too_large__is_refused)
{
	char *value = calloc(1, CARRY_BYTES_MAX + 1);
	struct carry_attribute large = {"safetensors.header", value, CARRY_BYTES_MAX + 1};
	char *header = NULL;
	size_t bytes = 0;

	cr_assert_eq(carry_join(&large, 1, NULL, &header, &bytes), TH_E_LIMIT);
	cr_assert_null(header);
	free(value);
}
