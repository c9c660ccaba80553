/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_test - headers of files: what is taken, every kind of lie, and that a written header
 * parses to what was meant.
 */
#include "tools/file/safetensors.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "libthc/thc.h"
#include "tests/support/rng.h"

#define TWO                                                                                        \
	"{\"__metadata__\":{\"format\":\"pt\"},"                                                   \
	"\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"                      \
	"\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}"

static int
parse(const char *text, struct th_err *err, struct safetensors_header *ret_header)
{
	return safetensors_parse(text, strlen(text), err, ret_header);
}

Test(safetensors, parse__two_tensors__in_the_order_of_their_data)
{
	struct safetensors_header header;
	struct th_err err = {0};

	cr_assert_eq(parse(TWO "   ", &err, &header), 0, "%s", err.text);
	cr_assert_eq(header.count, 2);
	cr_assert_eq(header.data_bytes, 16);
	cr_assert_str_eq(header.tensors[0].name, "a");
	cr_assert_eq(header.tensors[0].dtype, (uint32_t)THC_F32);
	cr_assert_eq(header.tensors[0].ndim, 0);
	cr_assert_eq(header.tensors[0].bytes, 4);
	cr_assert_str_eq(header.tensors[1].name, "b");
	cr_assert_eq(header.tensors[1].dtype, (uint32_t)THC_BF16);
	cr_assert_eq(header.tensors[1].ndim, 2);
	cr_assert_eq(header.tensors[1].shape[0], 2);
	cr_assert_eq(header.tensors[1].shape[1], 3);
	cr_assert_eq(header.tensors[1].offset, 4);
	cr_assert_eq(header.tensors[1].bytes, 12);
	safetensors_free(&header);
	cr_assert_eq(header.count, 0);
}

Test(safetensors, parse__empty_tensors_and_none__are_fine)
{
	struct safetensors_header header;
	struct th_err err = {0};

	cr_assert_eq(parse("{}", &err, &header), 0);
	cr_assert_eq(header.count, 0);
	cr_assert_eq(header.data_bytes, 0);
	safetensors_free(&header);
	/*
	 * Each at a border of another one; a shape that would not fit 64 bits is empty all the
	 * same.
	 */
	cr_assert_eq(parse("{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
			   "\"y\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
			   "\"z\":{\"dtype\":\"U8\",\"shape\":[9223372036854775807,4,0],"
			   "\"data_offsets\":[4,4]}}",
			     &err, &header),
		0, "%s", err.text);
	cr_assert_eq(header.count, 3);
	cr_assert_str_eq(header.tensors[0].name, "y");
	cr_assert_str_eq(header.tensors[2].name, "z");
	safetensors_free(&header);
}

Test(safetensors, parse__every_dtype_of_the_format__is_known)
{
	static const struct {
		const char *name;
		unsigned bits;
	} known[] = {{"BOOL", 8}, {"U8", 8}, {"I8", 8}, {"F8_E5M2", 8}, {"F8_E4M3", 8},
		{"F8_E8M0", 8}, {"I16", 16}, {"U16", 16}, {"F16", 16}, {"BF16", 16}, {"I32", 32},
		{"U32", 32}, {"F32", 32}, {"I64", 64}, {"U64", 64}, {"F64", 64}, {"C64", 64},
		{"F4", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}};
	struct safetensors_header header;
	char text[256];

	for (size_t i = 0; i < TH_ARRAY_LEN(known); i++) {
		struct th_err err = {0};
		snprintf(text, sizeof(text),
			"{\"w\":{\"dtype\":\"%s\",\"shape\":[8],\"data_offsets\":[0,%u]}}",
			known[i].name, known[i].bits);
		cr_assert_eq(parse(text, &err, &header), 0, "%s: %s", known[i].name, err.text);
		safetensors_free(&header);
	}
}

#define ONE(dtype, shape, offsets)                                                                 \
	"{\"w\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

Test(safetensors, parse__hostile__is_refused_with_a_sentence)
{
	static const char *const refused[] = {
		"",
		" {}",
		"[]",
		"{",
		"{}x",
		"{}{}",
		"null",
		"{\"w\":1}",
		"{\"w\":{}}",
		"{\"__metadata__\":[]}",
		"{\"__metadata__\":{\"a\":1}}",
		"{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}",
		"{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
		"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
		"{\"a\\nb\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
		"{\"\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
		ONE("\"X8\"", "[1]", "[0,1]"),
		ONE("8", "[1]", "[0,1]"),
		ONE("\"U8\"", "1", "[0,1]"),
		ONE("\"U8\"", "[-1]", "[0,1]"),
		ONE("\"U8\"", "[1.0]", "[0,1]"),
		ONE("\"U8\"", "[\"1\"]", "[0,1]"),
		ONE("\"U8\"", "[null]", "[0,1]"),
		ONE("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"),
		ONE("\"U8\"", "[1]", "[0]"),
		ONE("\"U8\"", "[1]", "[0,1,2]"),
		ONE("\"U8\"", "[1]", "{}"),
		ONE("\"U8\"", "[1]", "[1,0]"),
		ONE("\"U8\"", "[1]", "[-1,0]"),
		ONE("\"U8\"", "[1]", "[0,2]"),
		ONE("\"U8\"", "[2]", "[0,1]"),
		ONE("\"U8\"", "[1]", "[0.0,1.0]"),
		ONE("\"U8\"", "[1]", "[1,2]"),
		ONE("\"U8\"", "[1]", "[0,18446744073709551617]"),
		ONE("\"U8\"", "[18446744073709551617]", "[0,1]"),
		/* 2^32 * 2^32 elements: 0 by a product that wraps around. */
		ONE("\"U8\"", "[4294967296,4294967296]", "[0,0]"),
		ONE("\"F64\"", "[2305843009213693952]", "[0,0]"),
		ONE("\"F4\"", "[3]", "[0,2]"),
		/* The same key twice, also within a tensor. */
		"{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
		"\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
		"{\"w\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
		/* Overlap, hole, the same bytes. */
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
		"\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
		"\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[5,9]}}",
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
		"\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
		/* An empty one in the middle of another. */
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
		"\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}",
	};

	for (size_t i = 0; i < TH_ARRAY_LEN(refused); i++) {
		struct safetensors_header header = {.count = 77};
		struct th_err err = {0};
		cr_assert_eq(
			parse(refused[i], &err, &header), TH_E_INVALID, "taken: %s", refused[i]);
		cr_assert_eq(err.code, TH_E_INVALID);
		cr_assert_neq(err.text[0], '\0', "no sentence: %s", refused[i]);
		cr_assert_eq(header.count, 77);
	}
}

Test(safetensors, parse__deep_nesting__is_refused)
{
	char *text = malloc(100001);

	memset(text, '[', 100000);
	memcpy(text, "{\"w\":", 5);
	text[100000] = '\0';
	struct safetensors_header header;
	cr_assert_eq(parse(text, NULL, &header), TH_E_INVALID);
	free(text);
}

Test(safetensors, parse__every_truncation__is_refused)
{
	struct safetensors_header header;

	for (size_t bytes = 0; bytes < strlen(TWO); bytes++) {
		/* A copy of exactly that size, so that a read beyond it is seen. */
		char *copy = malloc(bytes ? bytes : 1);
		memcpy(copy, TWO, bytes);
		cr_assert_eq(safetensors_parse(copy, bytes, NULL, &header), TH_E_INVALID,
			"the first %zu bytes are taken", bytes);
		free(copy);
	}
}

/* Whatever is taken keeps the promises of a header. */
static void
check_promises(const struct safetensors_header *header)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < header->count; i++) {
		cr_assert_eq(header->tensors[i].offset, end);
		cr_assert_leq(header->tensors[i].ndim, MANIFEST_DIMS_MAX);
		end += header->tensors[i].bytes;
	}
	cr_assert_eq(header->data_bytes, end);
}

Test(safetensors, parse__random_flips__never_break_a_promise)
{
	struct th_rng rng;
	char text[sizeof(TWO)];
	int taken = 0;

	th_rng_init_number(&rng, 7);
	for (int round = 0; round < 20000; round++) {
		struct safetensors_header header;
		memcpy(text, TWO, sizeof(TWO));
		for (uint64_t flips = 1 + th_rng_below(&rng, 3); flips > 0; flips--)
			text[th_rng_below(&rng, sizeof(TWO) - 1)] =
				(char)(32 + th_rng_below(&rng, 96));
		if (safetensors_parse(text, sizeof(TWO) - 1, NULL, &header) == 0) {
			check_promises(&header);
			safetensors_free(&header);
			taken++;
		}
	}
	/* A change of a name is harmless, so some must have been taken. */
	cr_assert_gt(taken, 0);
}

Test(safetensors, header_length__must_fit_the_file_and_the_limit)
{
	const uint8_t five[8] = {5};
	const uint8_t limit[8] = {0x00, 0xe1, 0xf5, 0x05};
	const uint8_t above[8] = {0x01, 0xe1, 0xf5, 0x05};
	const uint8_t huge[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
	uint64_t bytes = 0;

	cr_assert_eq(safetensors_header_length(five, 13, NULL, &bytes), 0);
	cr_assert_eq(bytes, 5);
	cr_assert_eq(safetensors_header_length(five, 12, NULL, &bytes), TH_E_INVALID);
	cr_assert_eq(safetensors_header_length(limit, UINT64_C(100000008), NULL, &bytes), 0);
	cr_assert_eq(bytes, 100000000);
	cr_assert_eq(safetensors_header_length(above, UINT64_MAX, NULL, &bytes), TH_E_INVALID);
	cr_assert_eq(safetensors_header_length(huge, UINT64_MAX, NULL, &bytes), TH_E_INVALID);
	cr_assert_eq(bytes, 100000000);
}

Test(safetensors, format__parses_to_the_same_tensors)
{
	char first[] = "first \"quoted\" \xc3\xa9";
	char second[] = "second";
	struct safetensors_tensor tensors[] = {
		{.name = first, .dtype = THC_BF16, .ndim = 2, .shape = {3, 5}, .bytes = 30},
		{.name = second, .dtype = THC_I64, .ndim = 0, .bytes = 8},
	};
	struct safetensors_header header;
	struct th_err err = {0};
	size_t bytes = 0;
	char *text = NULL;

	cr_assert_eq(safetensors_format(tensors, 2, &err, &text, &bytes), 0, "%s", err.text);
	cr_assert_eq(bytes % 8, 0);
	cr_assert_eq(strlen(text), bytes);
	cr_assert_eq(parse(text, &err, &header), 0, "%s", err.text);
	cr_assert_eq(header.count, 2);
	cr_assert_str_eq(header.tensors[0].name, first);
	cr_assert_eq(header.tensors[0].bytes, 30);
	cr_assert_eq(header.tensors[0].shape[1], 5);
	cr_assert_eq(header.tensors[1].offset, 30);
	cr_assert_eq(header.tensors[1].dtype, (uint32_t)THC_I64);
	safetensors_free(&header);
	free(text);
}

Test(safetensors, format__what_no_file_can_hold__is_refused)
{
	char name[] = "w";
	struct safetensors_tensor odd = {
		.name = name, .dtype = THC_F4, .ndim = 1, .shape = {3}, .bytes = 2};
	struct safetensors_tensor unknown = {.name = name, .dtype = 99, .bytes = 1};
	char key[] = "__metadata__";
	struct safetensors_tensor metadata = {.name = key, .dtype = THC_U8, .bytes = 1};
	size_t bytes = 0;
	char *text = NULL;

	cr_assert_eq(safetensors_format(&odd, 1, NULL, &text, &bytes), TH_E_INVALID);
	cr_assert_eq(safetensors_format(&unknown, 1, NULL, &text, &bytes), TH_E_INVALID);
	cr_assert_eq(safetensors_format(&metadata, 1, NULL, &text, &bytes), TH_E_INVALID);
	cr_assert_null(text);
}
