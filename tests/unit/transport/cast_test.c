/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport/cast. What is right is said by a table of all values of a type, computed from
 * the type's definition, and by a search in it for the nearest one; each kit that this CPU has must
 * say the same, bit for bit.
 */
#include "transport/cast/cast.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "ipc/base/checked.h"
#include "libthc/thc.h"
#include "tests/support/rng.h"

static const char *const kinds[] = {"plain", "avx2", "avx512"};

/* The next kit of this CPU; plain is always one. NULL after the last. */
static const char *
next_kind(uint32_t *at)
{
	while (*at < TH_ARRAY_LEN(kinds)) {
		const char *kind = kinds[(*at)++];
		if (cast_force(kind)) {
			cr_assert_str_eq(cast_kind(), kind);
			return kind;
		}
		cr_assert_str_neq(kind, "plain");
	}
	cast_force(NULL);
	return NULL;
}

static uint32_t
bits_of(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static float
float_of(uint32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* ---- the types, by their definition ---------------------------------------------------------- */

struct type {
	uint32_t mantissa, bias,
		infinity; /* code of infinity, or of what comes behind the largest */
	uint32_t sign, nan;
	bool saturates;
	double values
		[0x7f81]; /* up to infinity, which stands as the power of two that it begins at */
};

static struct type f16 = {10, 15, 0x7c00, 0x8000, 0x7e00, false, {0}};
static struct type bf16 = {7, 127, 0x7f80, 0x8000, 0x7fc0, false, {0}};
static struct type e4m3 = {3, 7, 0x7f, 0x80, 0x7f, true, {0}};

static double
value_of(const struct type *type, uint32_t code)
{
	const int exponent = (int)(code >> type->mantissa), bias = (int)type->bias;
	const double part = ldexp(code & ((1u << type->mantissa) - 1), -(int)type->mantissa);
	return exponent == 0 ? ldexp(part, 1 - bias) : ldexp(1 + part, exponent - bias);
}

static void
fill_types(void)
{
	struct type *const types[] = {&f16, &bf16, &e4m3};
	for (uint32_t i = 0; i < TH_ARRAY_LEN(types); i++)
		for (uint32_t code = 0; code <= types[i]->infinity; code++)
			types[i]->values[code] = value_of(types[i], code);
}

TestSuite(cast, .init = fill_types);

static uint32_t
nearest(const struct type *type, float value)
{
	const uint32_t sign = signbit(value) ? type->sign : 0;
	const double size = fabs((double)value);
	uint32_t low = 0, high = type->infinity;

	if (isnan(value))
		return type->nan;
	if (size >= type->values[high])
		return sign | (type->saturates ? high - 1 : high);
	while (high - low > 1) { /* values[low] <= size < values[high] */
		const uint32_t middle = (low + high) / 2;
		if (type->values[middle] <= size)
			low = middle;
		else
			high = middle;
	}
	const double below = size - type->values[low], above = type->values[high] - size;
	uint32_t code = below < above || (below == above && low % 2 == 0) ? low : high;
	if (type->saturates && code == type->infinity)
		code--;
	return sign | code;
}

/* What the two-byte types are as F32. */
static uint32_t
widened(const struct type *type, uint32_t code)
{
	const uint32_t rest = code & (type->sign - 1), sign = code & type->sign ? 0x80000000u : 0;
	if (rest > type->infinity)
		return 0x7fc00000u;
	if (rest == type->infinity)
		return sign | 0x7f800000u;
	return sign | bits_of((float)type->values[rest]);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static struct cast_box
box_2d(uint64_t rows, uint64_t columns)
{
	return (struct cast_box){
		.ndim = 2, .global_shape = {rows, columns}, .shape = {rows, columns}};
}

static void
run(const struct cast *cast, const struct cast_box *box, const void *from, void *to, float *scales)
{
	const struct cast_memory memory = {.from = from, .to = to, .scales = scales};
	struct th_err err = {0};
	cr_assert_eq(cast_check(cast, box, &err), 0, "%s", err.text);
	cast_run(cast, box, &memory);
}

/* One row, aligned to its elements and to nothing more, with an odd end for each kit. */
static void
run_row(uint32_t scheme, uint32_t from_type, uint32_t to_type, const void *from, uint64_t count,
	void *to, float *scales)
{
	const struct cast cast = {.scheme = scheme,
		.from = from_type,
		.to = to_type,
		.block = {scheme == CAST_FP8_BLOCK, scheme == CAST_FP8_BLOCK ? 1u << 30 : 0}};
	const struct cast_box box = box_2d(1, count);
	run(&cast, &box, from, to, scales);
}

/* ---- numbers --------------------------------------------------------------------------------- */

Test(cast, numbers__those_of_thc_h)
{
	cr_assert_eq((int)CAST_F16, (int)THC_F16);
	cr_assert_eq((int)CAST_BF16, (int)THC_BF16);
	cr_assert_eq((int)CAST_F32, (int)THC_F32);
	cr_assert_eq((int)CAST_F8_E4M3, (int)THC_F8_E4M3);
	cr_assert_eq(CAST_DIMS_MAX, THC_DIMS_MAX);
	cr_assert_str_eq(cast_scheme_name(CAST_ROUND), "round");
	cr_assert_str_eq(cast_scheme_name(CAST_FP8_BLOCK), "fp8-block");
	cr_assert_str_eq(cast_scheme_name(CAST_FP8_BLOCK_POW2), "fp8-block-pow2");
	cr_assert_str_eq(cast_scheme_name(CAST_FP8_CHANNEL), "fp8-channel");
	cr_assert_null(cast_scheme_name(0));
	cr_assert_null(cast_scheme_name(5));
}

Test(cast, force__what_is_not_there__stays)
{
	const char *before = cast_kind();
	cr_assert(!cast_force("avx1024"));
	cr_assert_str_eq(cast_kind(), before);
	cr_assert(cast_force("plain"));
	cr_assert_str_eq(cast_kind(), "plain");
	cr_assert(cast_force(NULL));
	cr_assert_str_eq(cast_kind(), before);
}

/* ---- round ----------------------------------------------------------------------------------- */

static void
expect_widened(const struct type *type, uint32_t number)
{
	uint16_t *from = malloc(0x10000 * sizeof(*from));
	float *to = malloc(0x10000 * sizeof(*to));
	const char *kind;

	for (uint32_t i = 0; i < 0x10000; i++)
		from[i] = (uint16_t)i;
	for (uint32_t at = 0; (kind = next_kind(&at));) {
		memset(to, 0x55, 0x10000 * sizeof(*to));
		run_row(CAST_ROUND, number, CAST_F32, from, 0x10000, to, NULL);
		for (uint32_t i = 0; i < 0x10000; i++)
			cr_assert_eq(bits_of(to[i]), widened(type, i), "%s: %x is %x", kind, i,
				bits_of(to[i]));
	}
	free(from);
	free(to);
}

Test(cast, widen__all_of_f16__exact)
{
	expect_widened(&f16, CAST_F16);
}

Test(cast, widen__all_of_bf16__exact)
{
	expect_widened(&bf16, CAST_BF16);
}

static void
expect_narrowed(const struct type *type, uint32_t number, const float *from, uint64_t count)
{
	uint16_t *to = malloc(count * sizeof(*to));
	const char *kind;

	for (uint32_t at = 0; (kind = next_kind(&at));) {
		memset(to, 0x55, count * sizeof(*to));
		run_row(CAST_ROUND, CAST_F32, number, from, count, to, NULL);
		for (uint64_t i = 0; i < count; i++)
			cr_assert_eq(to[i], nearest(type, from[i]), "%s: %a is %x", kind,
				(double)from[i], to[i]);
	}
	free(to);
}

/* Each value of the type, what lies in the middle to the next one, and F32's neighbours of both. */
static uint64_t
around(const struct type *type, float by, float *ret_floats)
{
	uint64_t count = 0;

	for (uint32_t code = 0; code < type->infinity; code++) {
		const double value = type->values[code], next = type->values[code + 1];
		const float centers[2] = {(float)value * by, (float)((value + next) / 2) * by};
		for (int i = 0; i < 2; i++) {
			const float three[3] = {nextafterf(centers[i], 0), centers[i],
				nextafterf(centers[i], INFINITY)};
			for (int j = 0; j < 3; j++) {
				ret_floats[count++] = three[j];
				ret_floats[count++] = -three[j];
			}
		}
	}
	return count;
}

static const uint32_t odd_floats[] = {0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff,
	0x00800000, 0x33000000, 0x33000001, 0xb3000001, 0x387fc000, 0x387fe000, 0x387fffff,
	0x477fefff, 0x477ff000, 0xc77ff000, 0x47800000, 0x7f7f7fff, 0x7f7f8000, 0xff7f8000,
	0x7f7fffff, 0x7f800000, 0xff800000, 0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fffffff,
	0xff800001, 0xffc12345, 0xffffffff};

static void
expect_narrowed_everywhere(const struct type *type, uint32_t number)
{
	float *from = malloc((12 * (uint64_t)type->infinity + 200000) * sizeof(*from));
	uint64_t count = around(type, 1.0f, from);
	struct th_rng rng;

	for (uint32_t i = 0; i < TH_ARRAY_LEN(odd_floats); i++)
		from[count++] = float_of(odd_floats[i]);
	th_rng_init_number(&rng, 3);
	for (int i = 0; i < 100003; i++)
		from[count++] = float_of((uint32_t)th_rng_u64(&rng));
	expect_narrowed(type, number, from, count);
	free(from);
}

Test(cast, narrow__f32_to_f16__nearest_even)
{
	expect_narrowed_everywhere(&f16, CAST_F16);
}

Test(cast, narrow__f32_to_bf16__nearest_even)
{
	expect_narrowed_everywhere(&bf16, CAST_BF16);
}

/* ---- to E4M3, without a scale ---------------------------------------------------------------- */

/* The first element makes the scale 1. */
static void
expect_quantized(uint32_t number, const void *from, const float *values, uint64_t count)
{
	static const uint32_t schemes[] = {CAST_FP8_BLOCK, CAST_FP8_CHANNEL};
	uint8_t *to = malloc(count);
	const char *kind;

	for (uint32_t at = 0; (kind = next_kind(&at));) {
		for (uint32_t s = 0; s < TH_ARRAY_LEN(schemes); s++) {
			float scale = 0;
			memset(to, 0x55, count);
			run_row(schemes[s], number, CAST_F8_E4M3, from, count, to, &scale);
			cr_assert_eq(bits_of(scale), 0x3f800000);
			for (uint64_t i = 0; i < count; i++)
				cr_assert_eq(to[i], nearest(&e4m3, values[i]), "%s: %a is %x", kind,
					(double)values[i], to[i]);
		}
	}
	free(to);
}

static void
expect_quantized_half(const struct type *type, uint32_t number)
{
	uint16_t *from = malloc(0x10000 * sizeof(*from));
	float *values = malloc(0x10000 * sizeof(*values));
	uint64_t count = 0;

	for (uint32_t code = 0; code < 0x10000; code++) {
		const float value = float_of(widened(type, code));
		if (!(fabsf(value) <= 448.0f))
			continue;
		values[count] = value;
		from[count++] = (uint16_t)code;
	}
	cr_assert_gt(count, 30000);
	expect_quantized(number, from, values, count);
	free(from);
	free(values);
}

Test(cast, e4m3__all_of_f16__nearest_even)
{
	expect_quantized_half(&f16, CAST_F16);
}

Test(cast, e4m3__all_of_bf16__nearest_even)
{
	expect_quantized_half(&bf16, CAST_BF16);
}

Test(cast, e4m3__around_each_value_and_each_middle__nearest_even)
{
	float from[12 * 128];
	uint64_t all = around(&e4m3, 1.0f, from), count = 0;

	for (uint64_t i = 0; i < all; i++)
		if (fabsf(from[i]) <= 448.0f)
			from[count++] = from[i];
	expect_quantized(CAST_F32, from, from, count);
}

Test(cast, e4m3__random_f32__nearest_even)
{
	float *from = malloc(100003 * sizeof(*from));
	struct th_rng rng;

	th_rng_init_number(&rng, 4);
	from[0] = -448.0f;
	for (int i = 1; i < 100003;
		i++) /* exponents up to 2^7, and as far below as there are any */
		from[i] = float_of((uint32_t)th_rng_below(&rng, 0x43800000) |
				   (th_rng_below(&rng, 2) ? 0x80000000u : 0));
	expect_quantized(CAST_F32, from, from, 100003);
	free(from);
}

/* ---- scales ---------------------------------------------------------------------------------- */

static const struct {
	uint32_t scheme, peak, scale; /* bits of F32 */
} known_scales[] = {
	{CAST_FP8_BLOCK, 0x00000000, 0x346facad},      /* 1e-4 / 448 */
	{CAST_FP8_BLOCK, 0x00000001, 0x346facad},      /* the smallest denormal */
	{CAST_FP8_BLOCK, 0x38d1b717, 0x346facad},      /* 1e-4 */
	{CAST_FP8_BLOCK, 0x3f800000, 0x3b124925},      /* 1 */
	{CAST_FP8_BLOCK, 0x40400000, 0x3bdb6db7},      /* 3 */
	{CAST_FP8_BLOCK, 0x7f7fffff, 0x7b124924},      /* the largest */
	{CAST_FP8_BLOCK, 0x7f800000, 0x7f800000},      /* infinity */
	{CAST_FP8_BLOCK, 0xffc00001, 0x7fc00000},      /* NaN */
	{CAST_FP8_BLOCK, 0x7f800001, 0x7fc00000},      /* NaN that signals */
	{CAST_FP8_BLOCK_POW2, 0x00000000, 0x34800000}, /* 2^-22 */
	{CAST_FP8_BLOCK_POW2, 0x43e00000, 0x3f800000}, /* 448: 1 */
	{CAST_FP8_BLOCK_POW2, 0x43e00001, 0x40000000}, /* its neighbour: above 1, so 2 */
	{CAST_FP8_BLOCK_POW2, 0x43dfffff, 0x3f800000}, /* below 1, so 1 */
	{CAST_FP8_BLOCK_POW2, 0x43600000, 0x3f000000}, /* 224: 0.5 */
	{CAST_FP8_BLOCK_POW2, 0x7f7fffff, 0x7b800000},
	{CAST_FP8_BLOCK_POW2, 0x7f800000, 0x7f800000},
	{CAST_FP8_BLOCK_POW2, 0x7fc00000, 0x7fc00000},
	{CAST_FP8_CHANNEL, 0x00000000, 0x36924925}, /* 1 / (448 * 512) */
	{CAST_FP8_CHANNEL, 0x3b000000, 0x36924925}, /* 2^-9, less than that times 448 */
	{CAST_FP8_CHANNEL, 0x40400000, 0x3bdb6db7},
	{CAST_FP8_CHANNEL, 0x7f800000, 0x7f800000},
	{CAST_FP8_CHANNEL, 0x7fffffff, 0x7fc00000},
};

/* The largest element stands at the end, and in the middle of a vector, with either sign. */
Test(cast, scale__known_peaks__known_scales)
{
	const char *kind;

	for (uint32_t at = 0; (kind = next_kind(&at));) {
		for (uint32_t i = 0; i < TH_ARRAY_LEN(known_scales); i++) {
			const struct cast cast = {
				known_scales[i].scheme, CAST_F32, CAST_F8_E4M3, {0, 0}};
			const struct cast_box box = box_2d(1, 77);
			for (int place = 0; place < 77; place += 38) {
				float from[77] = {0}, scale = 0;
				from[place] =
					float_of(known_scales[i].peak ^ (place ? 0 : 0x80000000u));
				run(&cast, &box, from, NULL, &scale);
				cr_assert_eq(bits_of(scale), known_scales[i].scale,
					"%s, %u at %d: %x", kind, i, place, bits_of(scale));
			}
		}
	}
}

/*
 * Found by a search with exact fractions: with a scale of 0x1.9f531p-8 (0x3bcfa988) the product of
 * this x and the reciprocal lies at the middle of two values after it was rounded, and beside it
 * before that: a kernel that fuses it with the sum that rounds it to E4M3 gives 9. The quotient of
 * the next x is at the middle, and its product is not.
 */
Test(cast, e4m3__beside_a_middle__product_and_quotient_are_rounded_by_themselves)
{
	const char *kind;

	for (uint32_t at = 0; (kind = next_kind(&at));) {
		float from[33], scale = 0;
		uint8_t to[33];
		for (int i = 0; i < 33; i++)
			from[i] = float_of(i % 2 ? 0x38dca421 : 0x38dca420);
		from[0] = float_of(0x4035b457);
		run_row(CAST_FP8_BLOCK, CAST_F32, CAST_F8_E4M3, from, 33, to, &scale);
		cr_assert_eq(bits_of(scale), 0x3bcfa988);
		for (int i = 1; i < 33; i++)
			cr_assert_eq(to[i], i % 2 ? 9 : 8, "%s: %d", kind, i);
		run_row(CAST_FP8_CHANNEL, CAST_F32, CAST_F8_E4M3, from, 33, to, &scale);
		cr_assert_eq(bits_of(scale), 0x3bcfa988);
		for (int i = 1; i < 33; i++)
			cr_assert_eq(to[i], 8, "%s: %d", kind, i);
	}
}

/* Also: what is not finite does not leave its block. */
Test(cast, not_finite__poisons_its_block_and_no_other)
{
	const char *kind;

	for (uint32_t at = 0; (kind = next_kind(&at));) {
		const struct cast cast = {CAST_FP8_BLOCK, CAST_BF16, CAST_F8_E4M3, {2, 64}};
		const struct cast_box box = box_2d(2, 192);
		uint16_t from[2][192];
		uint8_t to[2][192];
		float scales[3];
		for (int i = 0; i < 384; i++)
			from[i / 192][i % 192] = i % 3 ? 0x3f80 : 0xbf80; /* 1, -1 */
		from[1][5] = 0xffc1;                                      /* NaN */
		from[0][70] = 0xff80;                                     /* -infinity */
		run(&cast, &box, from, to, scales);
		cr_assert_eq(bits_of(scales[0]), 0x7fc00000);
		cr_assert_eq(bits_of(scales[1]), 0x7f800000);
		cr_assert_eq(bits_of(scales[2]), 0x3b124925);
		for (int i = 0; i < 384; i++) {
			const int row = i / 192, column = i % 192,
				  sign = from[row][column] >> 8 & 0x80;
			const int want = column < 64 || (row == 0 && column == 70) ? 0x7f
					 : column < 128                            ? sign
										   : sign | 0x7e;
			cr_assert_eq(to[row][column], want, "%s: %d, %d is %x", kind, row, column,
				to[row][column]);
		}
	}
}

/* ---- boxes ----------------------------------------------------------------------------------- */

#define LEADING 3u
#define ROWS 37u
#define COLUMNS 203u
#define WIDE 211u /* from one row to the next, in memory */
#define ELEMENTS (LEADING * (ROWS + 2) * WIDE)

/* A tensor LEADING x ROWS x COLUMNS that lies in a wider one, and what is to come out. */
struct sample {
	uint32_t type; /* enum cast_type */
	union {
		float full[ELEMENTS];
		uint16_t half[ELEMENTS];
	} from;
	float values[ELEMENTS];
	uint8_t codes[ELEMENTS];
	float scales[LEADING * ROWS * COLUMNS];
};

static uint64_t
index_of(uint64_t leading, uint64_t row, uint64_t column)
{
	return (leading * (ROWS + 2) + row) * WIDE + column;
}

static void
fill_sample(struct sample *sample, uint32_t type, struct th_rng *rng)
{
	sample->type = type;
	for (uint32_t i = 0; i < ELEMENTS; i++) {
		/* Exponents as of weights, over 2^12, and some zeros. */
		const uint32_t random = (uint32_t)th_rng_u64(rng);
		uint32_t bits = (random & 0x807fffffu) | ((random >> 23 & 0xfu) + 112u) << 23;
		if (random % 97 == 0)
			bits = random & 0x80000000u;
		if (type == CAST_F16)
			sample->from.half[i] = (uint16_t)nearest(&f16, float_of(bits));
		else if (type == CAST_BF16)
			sample->from.half[i] = (uint16_t)(bits >> 16);
		else
			sample->from.full[i] = float_of(bits);
		sample->values[i] = type == CAST_F16 ? float_of(widened(&f16, sample->from.half[i]))
				    : type == CAST_BF16
					    ? float_of(widened(&bf16, sample->from.half[i]))
					    : sample->from.full[i];
	}
}

/* What one block must become, element by element. */
static void
expect_block(struct sample *sample, uint32_t scheme, uint64_t leading, const uint64_t first[2],
	const uint64_t end[2], float *ret_scale)
{
	float peak = 0;

	for (uint64_t row = first[0]; row < end[0]; row++)
		for (uint64_t column = first[1]; column < end[1]; column++)
			peak = fmaxf(peak, fabsf(sample->values[index_of(leading, row, column)]));
	volatile float scale =
		scheme == CAST_FP8_CHANNEL ? peak / 448.0f : fmaxf(peak, 1e-4f) / 448.0f;
	if (scheme == CAST_FP8_CHANNEL)
		scale = fmaxf(scale, (float)(1.0 / (448.0 * 512.0)));
	if (scheme == CAST_FP8_BLOCK_POW2)
		scale = exp2f(ceilf((float)log2((double)scale)));
	volatile float reciprocal = 1.0f / scale;
	for (uint64_t row = first[0]; row < end[0]; row++) {
		for (uint64_t column = first[1]; column < end[1]; column++) {
			const uint64_t i = index_of(leading, row, column);
			volatile float scaled = scheme == CAST_FP8_CHANNEL
							? sample->values[i] / scale
							: sample->values[i] * reciprocal;
			sample->codes[i] = (uint8_t)nearest(&e4m3, scaled);
		}
	}
	*ret_scale = scale;
}

static void
expect_sample(struct sample *sample, uint32_t scheme, uint64_t rows, uint64_t columns)
{
	uint32_t block = 0;

	for (uint64_t leading = 0; leading < LEADING; leading++) {
		for (uint64_t row = 0; row < ROWS; row += rows) {
			for (uint64_t column = 0; column < COLUMNS; column += columns) {
				const uint64_t first[2] = {row, column};
				const uint64_t end[2] = {th_min_u64(row + rows, ROWS),
					th_min_u64(column + columns, COLUMNS)};
				expect_block(sample, scheme, leading, first, end,
					&sample->scales[block++]);
			}
		}
	}
}

/* Converts one part of the sample into its place, by strides. */
static void
run_part(const struct cast *cast, const struct sample *sample, struct cast_box box, uint8_t *to,
	float *scales)
{
	const size_t size = sample->type == CAST_F32 ? 4 : 2;
	const uint64_t at = index_of(box.offset[0], box.offset[1], box.offset[2]);
	struct cast_memory memory = {.from = (const uint8_t *)&sample->from + at * size,
		.from_stride = {(ROWS + 2) * WIDE, WIDE, 1},
		.to = to + at,
		.to_stride = {(ROWS + 2) * WIDE, WIDE, 1}};
	struct cast_box of_scales;
	struct th_err err = {0};

	cr_assert_eq(cast_check(cast, &box, &err), 0, "%s", err.text);
	cr_assert(cast_scales_box(cast, &box, &of_scales));
	const uint64_t wide = of_scales.global_shape[2], tall = of_scales.global_shape[1] * wide;
	memory.scales = scales + of_scales.offset[0] * tall + of_scales.offset[1] * wide +
			of_scales.offset[2];
	memory.scales_stride[0] = tall;
	memory.scales_stride[1] = wide;
	memory.scales_stride[2] = 1;
	cast_run(cast, &box, &memory);
}

/* All of it in pieces of a random number of grains, as through a window. */
static void
run_pieces(const struct cast *cast, const struct sample *sample, struct th_rng *rng, uint8_t *to,
	float *scales)
{
	struct cast_box box = {.ndim = 3, .global_shape = {LEADING, ROWS, COLUMNS}};
	uint64_t grain[CAST_DIMS_MAX], step[3];

	cast_grain(cast, &box, grain);
	for (int d = 0; d < 3; d++)
		step[d] = grain[d] * (1 + th_rng_below(rng, 3));
	for (box.offset[0] = 0; box.offset[0] < LEADING; box.offset[0] += step[0]) {
		for (box.offset[1] = 0; box.offset[1] < ROWS; box.offset[1] += step[1]) {
			for (box.offset[2] = 0; box.offset[2] < COLUMNS; box.offset[2] += step[2]) {
				for (int d = 0; d < 3; d++)
					box.shape[d] = th_min_u64(
						step[d], box.global_shape[d] - box.offset[d]);
				run_part(cast, sample, box, to, scales);
			}
		}
	}
}

static void
compare_sample(const struct sample *sample, const uint8_t *to, const float *scales,
	uint64_t num_scales, const char *kind)
{
	cr_assert_eq(memcmp(scales, sample->scales, num_scales * sizeof(*scales)), 0, "%s", kind);
	for (uint64_t leading = 0; leading < LEADING; leading++) {
		for (uint64_t row = 0; row < ROWS + 2; row++) {
			for (uint64_t column = 0; column < WIDE; column++) {
				const uint64_t i = index_of(leading, row, column);
				const bool inside = row < ROWS && column < COLUMNS;
				cr_assert_eq(to[i], inside ? sample->codes[i] : 0x55,
					"%s, %lu, %lu, %lu: %a is %x, not %x", kind, leading, row,
					column, (double)sample->values[i], to[i], sample->codes[i]);
			}
		}
	}
}

static const struct {
	uint32_t scheme, rows, columns;
} forms[] = {
	{CAST_FP8_BLOCK, 128, 128}, /* larger than the tensor in one direction */
	{CAST_FP8_BLOCK, 16, 64},
	{CAST_FP8_BLOCK, 1, 32},
	{CAST_FP8_BLOCK, 5, 3}, /* more beside each other than are gone through together */
	{CAST_FP8_BLOCK_POW2, 16, 64},
	{CAST_FP8_BLOCK_POW2, 128, 128},
	{CAST_FP8_CHANNEL, 1, COLUMNS},
};

static void
expect_forms(uint32_t type)
{
	struct sample *sample = malloc(sizeof(*sample));
	uint8_t *to = malloc(ELEMENTS);
	float *scales = malloc(sizeof(sample->scales));
	struct th_rng rng;
	const char *kind;

	th_rng_init_number(&rng, type);
	for (uint32_t i = 0; i < TH_ARRAY_LEN(forms); i++) {
		const bool blocks = forms[i].scheme != CAST_FP8_CHANNEL;
		const struct cast cast = {forms[i].scheme, type, CAST_F8_E4M3,
			{blocks ? forms[i].rows : 0, blocks ? forms[i].columns : 0}};
		const uint64_t tall = (ROWS - 1) / forms[i].rows + 1;
		const uint64_t num_scales = LEADING * tall * ((COLUMNS - 1) / forms[i].columns + 1);
		fill_sample(sample, type, &rng);
		expect_sample(sample, forms[i].scheme, forms[i].rows, forms[i].columns);
		for (uint32_t at = 0; (kind = next_kind(&at));) {
			for (int round = 0; round < 3; round++) {
				memset(to, 0x55, ELEMENTS);
				memset(scales, 0x55, sizeof(sample->scales));
				run_pieces(&cast, sample, &rng, to, scales);
				compare_sample(sample, to, scales, num_scales, kind);
			}
		}
	}
	free(sample);
	free(to);
	free(scales);
}

Test(cast, boxes__of_f32_in_pieces__each_block_by_itself)
{
	expect_forms(CAST_F32);
}

Test(cast, boxes__of_bf16_in_pieces__each_block_by_itself)
{
	expect_forms(CAST_BF16);
}

Test(cast, boxes__of_f16_in_pieces__each_block_by_itself)
{
	expect_forms(CAST_F16);
}

Test(cast, boxes__rounded_with_strides__nothing_else_is_written)
{
	const struct cast cast = {CAST_ROUND, CAST_BF16, CAST_F32, {0, 0}};
	const struct cast_box box = {.ndim = 5,
		.global_shape = {9, 2, 2, 3, 40},
		.offset = {4, 0, 0, 1, 7},
		.shape = {1, 2, 2, 2, 33}};
	uint16_t from[4][3][40];
	float to[4][2][50];
	const char *kind;

	for (uint32_t i = 0; i < 480; i++)
		from[i / 120][i / 40 % 3][i % 40] = (uint16_t)(0x3f80 + i);
	for (uint32_t at = 0; (kind = next_kind(&at));) {
		/* The stride of the first dimension, of which there is one, is nobody's. */
		const struct cast_memory memory = {.from = &from[0][1][7],
			.from_stride = {1, 240, 120, 40, 1},
			.to = to,
			.to_stride = {3, 200, 100, 50, 1}};
		memset(to, 0x55, sizeof(to));
		cr_assert_eq(cast_check(&cast, &box, NULL), 0);
		cast_run(&cast, &box, &memory);
		for (uint32_t i = 0; i < 400; i++) {
			const uint32_t a = i / 100, b = i / 50 % 2, c = i % 50;
			const uint32_t want =
				c < 33 ? (uint32_t)from[a][b + 1][c + 7] << 16 : 0x55555555;
			cr_assert_eq(bits_of(to[a][b][c]), want, "%s: %u", kind, i);
		}
	}
}

Test(cast, boxes__scalar_and_empty__done)
{
	const struct cast round = {CAST_ROUND, CAST_F32, CAST_BF16, {0, 0}};
	const struct cast block = {CAST_FP8_BLOCK, CAST_F32, CAST_F8_E4M3, {0, 0}};
	const struct cast channel = {CAST_FP8_CHANNEL, CAST_F32, CAST_F8_E4M3, {0, 0}};
	const struct cast_box scalar = {.ndim = 0};
	const struct cast_box empty = box_2d(0, 128), thin = box_2d(5, 0);
	const float one = 1.0f;
	uint16_t to = 0x5555;
	float scale = 2.0f;
	struct cast_box scales;

	run(&round, &scalar, &one, &to, NULL);
	cr_assert_eq(to, 0x3f80);
	cr_assert(!cast_scales_box(&round, &scalar, &scales));
	to = 0x5555;
	run(&block, &empty, &one, &to, &scale);
	run(&channel, &thin, &one, &to, &scale);
	cr_assert_eq(to, 0x5555);
	cr_assert_eq(bits_of(scale), bits_of(2.0f));
	cr_assert(cast_scales_box(&block, &empty, &scales));
	cr_assert_eq(scales.shape[0], 0);
	cr_assert_eq(scales.shape[1], 1);
}

/* Scales and codes are rows of their own, and a shard may have one of them. */
Test(cast, outputs__either_alone__the_same)
{
	const struct cast cast = {CAST_FP8_BLOCK, CAST_F32, CAST_F8_E4M3, {0, 0}};
	const struct cast_box box = box_2d(130, 140);
	float *from = malloc(130 * 140 * sizeof(*from));
	uint8_t *both = malloc(130 * 140), *alone = malloc(130 * 140);
	float scales[4], scales_alone[4];

	for (int i = 0; i < 130 * 140; i++)
		from[i] = sinf((float)i);
	run(&cast, &box, from, both, scales);
	run(&cast, &box, from, alone, NULL);
	run(&cast, &box, from, NULL, scales_alone);
	cr_assert_eq(memcmp(both, alone, 130 * 140), 0);
	cr_assert_eq(memcmp(scales, scales_alone, sizeof(scales)), 0);
	free(from);
	free(both);
	free(alone);
}

#ifdef __x86_64__
/* Somebody else in the process may have said so: some libraries do when they are loaded. */
Test(cast, denormals_off__the_same_bits)
{
	const uint32_t before = _mm_getcsr();
	const char *kind;

	for (uint32_t at = 0; (kind = next_kind(&at));) {
		float from[64], back[64];
		uint16_t half[64], brain[64];
		for (uint32_t i = 0; i < 64; i++)
			from[i] =
				float_of((i << 17) | 1 | (i % 2) << 31); /* denormals, small ones */
		_mm_setcsr(before | 0x8040);                             /* FTZ, DAZ */
		run_row(CAST_ROUND, CAST_F32, CAST_BF16, from, 63, brain, NULL);
		run_row(CAST_ROUND, CAST_BF16, CAST_F32, brain, 63, back, NULL);
		_mm_setcsr(before);
		for (uint32_t i = 0; i < 63; i++) {
			cr_assert_eq(brain[i], nearest(&bf16, from[i]), "%s: %u", kind, i);
			cr_assert_eq(bits_of(back[i]), (uint32_t)brain[i] << 16, "%s: %u", kind, i);
		}
		for (uint32_t i = 0; i < 64; i++)
			half[i] = (uint16_t)(i * 16 + 1); /* denormals of F16 */
		_mm_setcsr(before | 0x8040);
		run_row(CAST_ROUND, CAST_F16, CAST_F32, half, 63, back, NULL);
		run_row(CAST_ROUND, CAST_F32, CAST_F16, back, 63, brain, NULL);
		_mm_setcsr(before);
		for (uint32_t i = 0; i < 63; i++) {
			cr_assert_eq(bits_of(back[i]), widened(&f16, half[i]), "%s: %u", kind, i);
			cr_assert_eq(brain[i], half[i], "%s: %u", kind, i);
		}
	}
}
#endif

/* ---- what is refused ------------------------------------------------------------------------- */

static const struct {
	struct cast cast;
	struct cast_box box;
	int code;
	const char *sentence;
} refusals[] = {
	{{0, CAST_F32, CAST_BF16, {0, 0}}, {.ndim = 1}, TH_E_INVALID,
		"no conversion has the number 0"},
	{{CAST_ROUND, CAST_BF16, CAST_F16, {0, 0}}, {.ndim = 1}, TH_E_INVALID,
		"conversion round goes from F32 to BF16 or F16, and back, not from type 7 to type "
		"6"},
	{{CAST_FP8_BLOCK, CAST_F32, CAST_BF16, {0, 0}}, {.ndim = 2}, TH_E_INVALID,
		"conversion fp8-block goes from BF16, F16 or F32 to F8_E4M3, not from type 10 to "
		"type 7"},
	{{CAST_FP8_CHANNEL, CAST_F32, CAST_F8_E4M3, {1, 128}}, {.ndim = 2}, TH_E_INVALID,
		"conversion fp8-channel has no blocks: give 0, 0"},
	{{CAST_FP8_BLOCK, CAST_F32, CAST_F8_E4M3, {0, 128}}, {.ndim = 2}, TH_E_INVALID,
		"a block of 0 x 128: give both sides, or 0, 0 for 128 x 128"},
	{{CAST_FP8_BLOCK, CAST_F32, CAST_F8_E4M3, {0, 0}}, {.ndim = 1, .global_shape = {9}},
		TH_E_LAYOUT, "conversion fp8-block is for 2 to 8 dimensions, and this has 1"},
	{{CAST_ROUND, CAST_F32, CAST_BF16, {0, 0}}, {.ndim = 9}, TH_E_LAYOUT,
		"conversion round is for 0 to 8 dimensions, and this has 9"},
	{{CAST_ROUND, CAST_F32, CAST_BF16, {0, 0}},
		{.ndim = 1, .global_shape = {9}, .offset = {UINT64_MAX}, .shape = {2}}, TH_E_LAYOUT,
		"2 elements from 18446744073709551615 of dimension 0, which has 9"},
	{{CAST_FP8_BLOCK, CAST_F32, CAST_F8_E4M3, {0, 0}},
		{.ndim = 2, .global_shape = {300, 300}, .offset = {64, 0}, .shape = {64, 300}},
		TH_E_LAYOUT,
		"conversion fp8-block: 64 to 128 of dimension 0 cuts a block; begin at a multiple "
		"of 128 "
		"and end at one or at 300"},
	{{CAST_FP8_BLOCK_POW2, CAST_F32, CAST_F8_E4M3, {0, 0}},
		{.ndim = 2, .global_shape = {300, 300}, .offset = {0, 128}, .shape = {300, 100}},
		TH_E_LAYOUT,
		"conversion fp8-block-pow2: 128 to 228 of dimension 1 cuts a block; begin at a "
		"multiple "
		"of 128 and end at one or at 300"},
	{{CAST_FP8_CHANNEL, CAST_F32, CAST_F8_E4M3, {0, 0}},
		{.ndim = 2, .global_shape = {300, 300}, .shape = {300, 150}}, TH_E_LAYOUT,
		"conversion fp8-channel: 0 to 150 of dimension 1 cuts a block; begin at a multiple "
		"of 300 "
		"and end at one or at 300"},
};

Test(cast, check__what_does_not_go_together__is_refused_with_a_sentence)
{
	for (uint32_t i = 0; i < TH_ARRAY_LEN(refusals); i++) {
		struct th_err err = {0};
		cr_assert_eq(
			cast_check(&refusals[i].cast, &refusals[i].box, &err), refusals[i].code);
		cr_assert_str_eq(err.text, refusals[i].sentence);
	}
}
