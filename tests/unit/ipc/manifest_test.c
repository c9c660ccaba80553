/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of ipc/proto/manifest: the golden encoding, every refusal, hostile bytes. */
#include "ipc/proto/manifest.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/name.h"
#include "tests/support/golden.h"
#include "tests/support/rng.h"

static struct manifest_row
row(const char *name, uint32_t dtype, uint64_t elements)
{
	return (struct manifest_row){
		.name = name, .dtype = dtype, .ndim = 1, .local_shape = {elements}};
}

static void
refuse(const struct manifest_row *rows, uint32_t count, const uint32_t *alias_of, int code,
	const char *word)
{
	struct th_err err = {0};
	struct manifest manifest;
	cr_assert_eq(manifest_build(rows, count, alias_of, NULL, &err, &manifest), code, "%s: %s",
		word, err.text);
	cr_assert(strstr(err.text, word), "'%s' lacks '%s'", err.text, word);
}

/*
 * ---- golden -----------------------------------------------------------------------------------
 */

Test(manifest, build__golden__canonical_order_and_positions)
{
	static const char *const order[GOLDEN_ROWS] = {"a.scalar", "b.small", "c.just_small",
		"empty", "f4", "g.half", "s.part", "tie.a", "d.just_large", "e.long"};
	static const uint64_t bytes[GOLDEN_ROWS] = {
		4, 30, 2097151, 0, 2, 2097151, 8, 16, 2097152, 4194305};
	static const uint32_t position[GOLDEN_GIVEN] = {7, 5, 9, 1, 0, 3, 8, 2, 4, 6, 7};
	struct manifest manifest;
	uint32_t got[GOLDEN_GIVEN];
	cr_assert_eq(
		manifest_build(golden_given, GOLDEN_GIVEN, golden_alias_of, got, NULL, &manifest),
		0);
	cr_assert_eq(manifest.num_rows, GOLDEN_ROWS);
	for (uint32_t i = 0; i < GOLDEN_ROWS; i++) {
		cr_assert_str_eq(manifest.rows[i].name, order[i]);
		cr_assert_eq(manifest.rows[i].bytes, bytes[i]);
	}
	cr_assert_arr_eq(got, position, sizeof(got));
	cr_assert_eq(manifest.num_aliases, 1);
	cr_assert_str_eq(manifest.aliases[0].name, "tie.b");
	cr_assert_eq(manifest.aliases[0].row, 7);
	cr_assert_eq(manifest.bytes, GOLDEN_SHARD_BYTES);
	manifest_free(&manifest);
}

Test(manifest, encode__golden__known_bytes_and_hashes)
{
	static const uint8_t head[60] = "THM1\x0a\0\0\0\x01\0\0\0\x08\0a.scalar\x0a\0\x07\0b.small"
					"\x07\x02\x03\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
					"\0\x05";
	struct manifest manifest;
	uint8_t *data;
	size_t bytes;
	cr_assert_eq(golden_build(&manifest), 0);
	cr_assert_eq(manifest_encode(&manifest, &data, &bytes), 0);
	cr_assert_eq(bytes, GOLDEN_BLOB_BYTES);
	cr_assert_arr_eq(data, head, sizeof(head));
	cr_assert(th_hash_equal(manifest_layout(&manifest),
		(struct th_hash){0xc3cd3873a8d25d1f, 0xf58775eef3069619}));
	cr_assert(th_hash_equal(manifest_key(data, bytes),
		(struct th_hash){0xf8db762e14f85302, 0xdf5dfd7aba6681c0}));
	struct manifest back;
	cr_assert_eq(manifest_decode(data, bytes, NULL, &back), 0);
	cr_assert_eq(manifest_compare(&manifest, &back, NULL), 0);
	uint8_t *again;
	size_t again_bytes;
	cr_assert_eq(manifest_encode(&back, &again, &again_bytes), 0);
	cr_assert_eq(again_bytes, bytes);
	cr_assert_arr_eq(again, data, bytes);
	free(again);
	free(data);
	manifest_free(&back);
	manifest_free(&manifest);
}

Test(manifest, layout__other_aliases__same_layout_other_key)
{
	struct manifest_row rows[3] = {
		row("a", GOLDEN_U8, 4), row("b", GOLDEN_U8, 4), row("c", GOLDEN_U8, 4)};
	uint32_t tie_b[3] = {UINT32_MAX, 0, UINT32_MAX};
	struct manifest with, without;
	struct manifest_row two[2] = {rows[0], rows[2]};
	cr_assert_eq(manifest_build(rows, 3, tie_b, NULL, NULL, &with), 0);
	cr_assert_eq(manifest_build(two, 2, NULL, NULL, NULL, &without), 0);
	cr_assert(th_hash_equal(manifest_layout(&with), manifest_layout(&without)));
	manifest_free(&with);
	manifest_free(&without);
}

Test(manifest, build__empty__header_only)
{
	struct manifest manifest;
	uint8_t *data;
	size_t bytes;
	cr_assert_eq(manifest_build(NULL, 0, NULL, NULL, NULL, &manifest), 0);
	cr_assert_eq(manifest_encode(&manifest, &data, &bytes), 0);
	cr_assert_eq(bytes, 12);
	struct manifest back;
	cr_assert_eq(manifest_decode(data, bytes, NULL, &back), 0);
	cr_assert_eq(back.num_rows, 0);
	manifest_free(&back);
	free(data);
	manifest_free(&manifest);
}

/*
 * ---- dtypes -----------------------------------------------------------------------------------
 */

Test(manifest, dtype__all__bits_and_names_round_trip)
{
	static const uint32_t bits[23] = {
		0, 8, 8, 8, 16, 16, 16, 16, 32, 32, 32, 64, 64, 64, 8, 8, 64, 8, 8, 8, 4, 6, 6};
	for (uint32_t d = 0; d < 23; d++)
		cr_assert_eq(manifest_dtype_bits(d), bits[d]);
	for (uint32_t d = 1; d < 23; d++)
		cr_assert_eq(manifest_dtype_of_name(manifest_dtype_name(d)), d);
	cr_assert_eq(manifest_dtype_bits(23), 0);
	cr_assert_eq(manifest_dtype_bits(UINT32_MAX), 0);
	cr_assert_null(manifest_dtype_name(0));
	cr_assert_null(manifest_dtype_name(23));
	cr_assert_str_eq(manifest_dtype_name(7), "BF16");
	cr_assert_eq(manifest_dtype_of_name("bf16"), 0);
	cr_assert_eq(manifest_dtype_of_name(""), 0);
}

Test(manifest, build__sub_byte_dtypes__bytes_rounded_up)
{
	struct manifest_row rows[4] = {
		row("f4.1", 20, 1), row("f4.2", 20, 2), row("f6.3", 21, 3), row("f6.4", 22, 4)};
	static const uint64_t bytes[4] = {1, 1, 3, 3};
	struct manifest manifest;
	cr_assert_eq(manifest_build(rows, 4, NULL, NULL, NULL, &manifest), 0);
	for (int i = 0; i < 4; i++)
		cr_assert_eq(manifest.rows[i].bytes, bytes[i]);
	manifest_free(&manifest);
}

/*
 * ---- refusals ---------------------------------------------------------------------------------
 */

Test(manifest, build__bad_names__invalid)
{
	char name[TH_NAME_MAX + 2];
	struct manifest_row bad = row("", GOLDEN_U8, 1);
	refuse(&bad, 1, NULL, TH_E_INVALID, "empty");
	bad.name = NULL;
	refuse(&bad, 1, NULL, TH_E_INVALID, "no name");
	memset(name, 'x', sizeof(name));
	name[TH_NAME_MAX + 1] = '\0';
	bad.name = name;
	refuse(&bad, 1, NULL, TH_E_INVALID, "256");
	bad.name = "caf\xe9";
	refuse(&bad, 1, NULL, TH_E_INVALID, "UTF-8");
	bad.name = "a\nb";
	refuse(&bad, 1, NULL, TH_E_INVALID, "UTF-8");
	struct manifest manifest;
	name[TH_NAME_MAX] = '\0';
	bad.name = name;
	cr_assert_eq(manifest_build(&bad, 1, NULL, NULL, NULL, &manifest), 0);
	manifest_free(&manifest);
}

Test(manifest, build__name_twice__invalid_also_across_sizes)
{
	struct manifest_row rows[3] = {
		row("a", GOLDEN_U8, 1), row("b", GOLDEN_U8, 1), row("a", GOLDEN_U8, 4u << 20)};
	refuse(rows, 3, NULL, TH_E_INVALID, "'a'");
}

Test(manifest, build__bad_dtype_and_dims__invalid)
{
	struct manifest_row bad = row("a", 0, 1);
	refuse(&bad, 1, NULL, TH_E_INVALID, "dtype");
	bad.dtype = 23;
	refuse(&bad, 1, NULL, TH_E_INVALID, "dtype");
	bad = row("a", GOLDEN_U8, 1);
	bad.ndim = 9;
	refuse(&bad, 1, NULL, TH_E_INVALID, "dimensions");
	bad.ndim = UINT32_MAX;
	refuse(&bad, 1, NULL, TH_E_INVALID, "dimensions");
}

Test(manifest, build__boxes__inside_global_or_invalid)
{
	struct manifest_row bad = row("a", GOLDEN_U8, 4);
	bad.global_shape[0] = 8;
	bad.offset[0] = 4;
	struct manifest manifest;
	cr_assert_eq(manifest_build(&bad, 1, NULL, NULL, NULL, &manifest), 0);
	manifest_free(&manifest);
	bad.offset[0] = 5;
	refuse(&bad, 1, NULL, TH_E_INVALID, "box");
	bad.offset[0] = UINT64_MAX;
	refuse(&bad, 1, NULL, TH_E_INVALID, "box");
	bad.global_shape[0] = 0;
	bad.offset[0] = 1;
	refuse(&bad, 1, NULL, TH_E_INVALID, "box");
}

Test(manifest, build__products__overflow_is_invalid_zero_is_not)
{
	struct manifest_row big = row("a", GOLDEN_U8, 1);
	big.ndim = 3;
	big.local_shape[0] = big.local_shape[1] = UINT64_C(1) << 32;
	big.local_shape[2] = 1;
	refuse(&big, 1, NULL, TH_E_INVALID, "63 bits");
	big.local_shape[2] = 0;
	struct manifest manifest;
	cr_assert_eq(manifest_build(&big, 1, NULL, NULL, NULL, &manifest), 0);
	cr_assert_eq(manifest.rows[0].bytes, 0);
	manifest_free(&manifest);
	big = row("a", 11, UINT64_C(1) << 60); /* I64: elements fit, bits do not */
	refuse(&big, 1, NULL, TH_E_INVALID, "63 bits");
	big = row("a", GOLDEN_U8, 1);
	big.ndim = 2;
	big.local_shape[1] = 1;
	big.global_shape[0] = big.global_shape[1] = UINT64_C(1) << 33;
	refuse(&big, 1, NULL, TH_E_INVALID, "63 bits");
}

Test(manifest, build__too_many_bytes_or_rows__limit)
{
	struct manifest_row rows[2] = {
		row("a", GOLDEN_U8, MANIFEST_BYTES_MAX), row("b", GOLDEN_U8, 1)};
	struct manifest manifest;
	cr_assert_eq(manifest_build(rows, 1, NULL, NULL, NULL, &manifest), 0);
	manifest_free(&manifest);
	refuse(rows, 2, NULL, TH_E_LIMIT, "larger");
	refuse(rows, MANIFEST_ROWS_MAX + 1, NULL, TH_E_LIMIT, "131073");
}

Test(manifest, build__ties__first_name_leads_and_mismatch_is_invalid)
{
	struct manifest_row rows[3] = {
		row("m", GOLDEN_U8, 4), row("z", GOLDEN_U8, 4), row("b", GOLDEN_U8, 4)};
	uint32_t alias_of[3] = {UINT32_MAX, 0, 0};
	uint32_t position[3];
	struct manifest manifest;
	cr_assert_eq(manifest_build(rows, 3, alias_of, position, NULL, &manifest), 0);
	cr_assert_eq(manifest.num_rows, 1);
	cr_assert_str_eq(manifest.rows[0].name, "b");
	cr_assert_eq(manifest.num_aliases, 2);
	cr_assert_str_eq(manifest.aliases[0].name, "m");
	cr_assert_str_eq(manifest.aliases[1].name, "z");
	cr_assert_eq(manifest.bytes, 4);
	cr_assert_eq(position[0] | position[1] | position[2], 0);
	manifest_free(&manifest);
	rows[1].local_shape[0] = 5;
	refuse(rows, 3, alias_of, TH_E_INVALID, "'z'");
	rows[1].local_shape[0] = 4;
	alias_of[2] = 1; /* tied to a tie */
	refuse(rows, 3, alias_of, TH_E_INVALID, "'b'");
	alias_of[2] = 3;
	refuse(rows, 3, alias_of, TH_E_INVALID, "'b'");
	alias_of[2] = 2;
	refuse(rows, 3, alias_of, TH_E_INVALID, "'b'");
}

/*
 * ---- hostile bytes ----------------------------------------------------------------------------
 */

static uint8_t *
golden_blob(size_t *ret_bytes)
{
	struct manifest manifest;
	uint8_t *data;
	cr_assert_eq(golden_build(&manifest), 0);
	cr_assert_eq(manifest_encode(&manifest, &data, ret_bytes), 0);
	manifest_free(&manifest);
	return data;
}

/* Decodes from memory of exactly that size, so that a sanitizer sees every byte beyond. */
static int
decode_exact(const uint8_t *data, size_t bytes)
{
	struct th_err err = {0};
	struct manifest manifest = {0};
	uint8_t *copy = malloc(bytes ? bytes : 1);
	memcpy(copy, data, bytes);
	int rc = manifest_decode(copy, bytes, &err, &manifest);
	if (rc < 0) {
		cr_assert(err.text[0] != '\0');
		cr_assert_null(manifest.rows, "touched on failure");
	} else {
		/* What is accepted is canonical: it encodes to the very same bytes. */
		uint8_t *again;
		size_t again_bytes;
		cr_assert_eq(manifest_encode(&manifest, &again, &again_bytes), 0);
		cr_assert_eq(again_bytes, bytes);
		cr_assert_arr_eq(again, copy, bytes);
		free(again);
		manifest_free(&manifest);
	}
	free(copy);
	return rc;
}

Test(manifest, decode__every_truncation__refused)
{
	size_t bytes;
	uint8_t *data = golden_blob(&bytes);
	for (size_t cut = 0; cut < bytes; cut++)
		cr_assert_lt(decode_exact(data, cut), 0);
	cr_assert_eq(decode_exact(data, bytes), 0);
	uint8_t *more = calloc(1, bytes + 1);
	memcpy(more, data, bytes);
	cr_assert_lt(decode_exact(more, bytes + 1), 0);
	free(more);
	free(data);
}

Test(manifest, decode__random_flips__refused_or_canonical)
{
	size_t bytes;
	uint8_t *data = golden_blob(&bytes);
	struct th_rng rng;
	th_rng_init_number(&rng, 33);
	for (int round = 0; round < 50000; round++) {
		uint8_t copy[GOLDEN_BLOB_BYTES];
		memcpy(copy, data, bytes);
		for (uint64_t flips = 1 + th_rng_below(&rng, 4); flips > 0; flips--)
			copy[th_rng_below(&rng, bytes)] = (uint8_t)th_rng_u64(&rng);
		decode_exact(copy, bytes);
	}
	free(data);
}

Test(manifest, decode__counts_beyond_the_data__refused_without_memory)
{
	uint8_t data[12] = "THM1\0\0\x02\0\0\0\0\0"; /* 131072 rows and nothing behind */
	cr_assert_eq(decode_exact(data, 12), TH_E_INVALID);
	memset(data + 4, 0xff, 8);
	cr_assert_eq(decode_exact(data, 12), TH_E_LIMIT);
	memset(data + 4, 0, 8);
	memset(data + 8, 0xff, 4);
	cr_assert_eq(decode_exact(data, 12), TH_E_LIMIT);
}

/*
 * ---- compare ----------------------------------------------------------------------------------
 */

static void
compare(const struct manifest_row *theirs, uint32_t num_theirs, const struct manifest_row *ours,
	uint32_t num_ours, const char *word, const char *word2)
{
	struct manifest source, destination;
	struct th_err err = {0};
	cr_assert_eq(manifest_build(theirs, num_theirs, NULL, NULL, NULL, &source), 0);
	cr_assert_eq(manifest_build(ours, num_ours, NULL, NULL, NULL, &destination), 0);
	int rc = manifest_compare(&source, &destination, &err);
	cr_assert_eq(rc, word ? TH_E_LAYOUT : 0);
	if (word)
		cr_assert(strstr(err.text, word) && strstr(err.text, word2), "%s", err.text);
	manifest_free(&source);
	manifest_free(&destination);
}

Test(manifest, compare__each_difference__names_tensor_and_kind)
{
	struct manifest_row a[3] = {
		row("a", GOLDEN_U8, 4), row("b", GOLDEN_BF16, 4), row("c", GOLDEN_U8, 4)};
	struct manifest_row b[3] = {a[0], a[1], a[2]};
	compare(a, 3, b, 3, NULL, NULL);
	b[1].dtype = GOLDEN_F32;
	compare(a, 3, b, 3, "'b'", "BF16 at the source and F32 here");
	b[1] = a[1];
	b[1].local_shape[0] = 5;
	compare(a, 3, b, 3, "'b'", "local size");
	b[1] = a[1];
	b[1].global_shape[0] = 9;
	compare(a, 3, b, 3, "'b'", "global size");
	a[1].global_shape[0] = 9;
	b[1].offset[0] = 1;
	compare(a, 3, b, 3, "'b'", "offset");
	b[1] = a[1];
	b[1].ndim = 2;
	b[1].local_shape[1] = b[1].global_shape[1] = 1;
	compare(a, 3, b, 3, "'b'", "dimensions");
	compare(a, 3, a, 2, "'c'", "not registered here");
	compare(a, 2, a, 3, "'c'", "not at the source");
	b[0] = row("aa", GOLDEN_U8, 4);
	b[1] = a[1];
	compare(a, 3, b, 3, "'a'", "not registered here");
	b[0] = row("a", GOLDEN_U8, 4u << 20); /* moves to the end of the order */
	compare(a, 3, b, 3, "'a'", "local size");
	compare(NULL, 0, a, 1, "'a'", "not at the source");
}

/*
 * ---- attributes -------------------------------------------------------------------------------
 */

Test(manifest, attributes__round_trip__aligned_and_equal)
{
	struct manifest_attribute given[3] = {
		{"step", "12", 2}, {"empty", NULL, 0}, {"loss", "\0\1\2\3\4\5\6\7\x08", 9}};
	struct manifest_attribute *back;
	uint8_t *data;
	size_t bytes, count;
	cr_assert_eq(manifest_attributes_encode(given, 3, NULL, &data, &bytes), 0);
	cr_assert_eq(manifest_attributes_decode(data, bytes, NULL, &back, &count), 0);
	cr_assert_eq(count, 3);
	for (size_t i = 0; i < 3; i++) {
		cr_assert_str_eq(back[i].name, given[i].name);
		cr_assert_eq(back[i].bytes, given[i].bytes);
		cr_assert_eq((uintptr_t)back[i].value % 8, 0);
		if (given[i].bytes > 0)
			cr_assert_arr_eq(back[i].value, given[i].value, given[i].bytes);
	}
	free(back);
	for (size_t cut = 0; cut < bytes; cut++) {
		uint8_t *copy = malloc(cut ? cut : 1);
		struct th_err err = {0};
		memcpy(copy, data, cut);
		cr_assert_lt(manifest_attributes_decode(copy, cut, &err, &back, &count), 0);
		free(copy);
	}
	free(data);
	cr_assert_eq(manifest_attributes_encode(NULL, 0, NULL, &data, &bytes), 0);
	cr_assert_eq(manifest_attributes_decode(data, bytes, NULL, &back, &count), 0);
	cr_assert_eq(count, 0);
	free(back);
	free(data);
}

Test(manifest, attributes__random_flips__no_harm)
{
	struct manifest_attribute given[3] = {{"step", "12", 2}, {"x", "abc", 3}, {"yy", "0", 1}};
	uint8_t *data;
	size_t bytes;
	struct th_rng rng;
	cr_assert_eq(manifest_attributes_encode(given, 3, NULL, &data, &bytes), 0);
	th_rng_init_number(&rng, 34);
	for (int round = 0; round < 20000; round++) {
		struct manifest_attribute *back;
		size_t count;
		uint8_t *copy = malloc(bytes);
		memcpy(copy, data, bytes);
		for (uint64_t flips = 1 + th_rng_below(&rng, 3); flips > 0; flips--)
			copy[th_rng_below(&rng, bytes)] = (uint8_t)th_rng_u64(&rng);
		if (manifest_attributes_decode(copy, bytes, NULL, &back, &count) == 0)
			free(back);
		free(copy);
	}
	free(data);
}

Test(manifest, attributes__bad_ones__refused)
{
	static uint8_t big[MANIFEST_ATTRIBUTE_BYTES_MAX + 1];
	struct manifest_attribute given[20] = {{"a", "1", 1}, {"a", "2", 1}};
	struct th_err err;
	uint8_t *data;
	size_t bytes;
	cr_assert_eq(manifest_attributes_encode(given, 2, &err, &data, &bytes), TH_E_INVALID);
	given[1] = (struct manifest_attribute){"", "2", 1};
	cr_assert_eq(manifest_attributes_encode(given, 2, &err, &data, &bytes), TH_E_INVALID);
	given[1] = (struct manifest_attribute){"b", big, sizeof(big)};
	cr_assert_eq(manifest_attributes_encode(given, 2, &err, &data, &bytes), TH_E_LIMIT);
	char names[20][4];
	for (int i = 0; i < 20; i++) {
		snprintf(names[i], sizeof(names[i]), "n%d", i);
		given[i] = (struct manifest_attribute){names[i], big, sizeof(big) - 1};
	}
	cr_assert_eq(manifest_attributes_encode(given, 20, &err, &data, &bytes), TH_E_LIMIT);
}
