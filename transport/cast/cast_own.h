/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cast_own - between the files of transport/cast: what a kit is, and one element at a time.
 *
 * A kit has the loops over rows for one instruction set. The functions for single elements are the
 * formulas; the plain kit is nothing else, and the others use them for what does not fill a vector.
 */
#ifndef TH_TRANSPORT_CAST_CAST_OWN_H
#define TH_TRANSPORT_CAST_CAST_OWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "transport/cast/cast.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define CAST_WITH_X86 1
#endif

enum cast_input {
	CAST_IN_F16,
	CAST_IN_BF16,
	CAST_IN_F32,
	CAST_INPUTS,
};

/*
 * The largest of all elements, without their signs, as bits: of finite numbers the bits are in the
 * order of the values, infinity is above them and NaN above that. A lane is an element of the
 * input's size, each row is folded in by lanes, and the lanes at the end.
 */
struct cast_peak {
	union {
		_Alignas(64) uint16_t half[32];
		uint32_t full[16];
	} lanes;
};

struct cast_kit {
	const char *name;
	void (*peak[CAST_INPUTS])(struct cast_peak *peak, const void *from, size_t count);
	/* To E4M3: the product with by, or the quotient. The plain kit takes any by, the others a
	 * finite one and finite elements. */
	void (*times[CAST_INPUTS])(uint8_t *to, const void *from, size_t count, float by);
	void (*over[CAST_INPUTS])(uint8_t *to, const void *from, size_t count, float by);
	/* To F32, and from F32 (there is no row of CAST_IN_F32). */
	void (*widen[CAST_INPUTS])(float *to, const void *from, size_t count);
	void (*narrow[CAST_INPUTS])(uint16_t *to, const float *from, size_t count);
};

extern const struct cast_kit cast_kit_plain;
#ifdef CAST_WITH_X86
extern const struct cast_kit cast_kit_avx2, cast_kit_avx512;
#endif

#define F32_SIGN 0x80000000u
#define F32_INFINITY 0x7f800000u
#define F32_NAN 0x7fc00000u
#define F16_NAN 0x7e00u
#define BF16_NAN 0x7fc0u
#define E4M3_NAN 0x7fu
#define E4M3_MAX 448.0f
#define E4M3_MAX_BITS 0x43e00000u /* of E4M3_MAX */
#define E4M3_LEAST 0x3c800000u    /* the exponent of its smallest normal number, 2^-6 */
#define E4M3_ALIGN (20u << 23)    /* F32 has 20 bits of mantissa more */

static inline uint32_t
cast_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static inline float
cast_float(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* Exact; a NaN becomes the one of F32. */
static inline float
cast_of_bf16(uint16_t half)
{
	uint32_t bits = (uint32_t)half << 16;

	return cast_float((bits & ~F32_SIGN) > F32_INFINITY ? F32_NAN : bits);
}

static inline float
cast_of_f16(uint16_t half)
{
	const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = half & 0x7fffu;

	if (rest > 0x7c00u)
		return cast_float(F32_NAN);
	if (rest == 0x7c00u)
		return cast_float(sign | F32_INFINITY);
	if (rest >= 0x0400u)
		return cast_float(sign | ((rest << 13) + ((127u - 15u) << 23)));
	/* A denormal, or zero: as many times 2^-24, which is exact. */
	return cast_float(sign | cast_bits((float)rest * 0x1p-24f));
}

static inline uint16_t
cast_to_bf16(float value)
{
	const uint32_t bits = cast_bits(value);

	if ((bits & ~F32_SIGN) > F32_INFINITY)
		return BF16_NAN;
	return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline uint16_t
cast_to_f16(float value)
{
	const uint32_t bits = cast_bits(value), rest = bits & ~F32_SIGN;
	const uint32_t sign = bits >> 16 & 0x8000u;

	if (rest > F32_INFINITY)
		return F16_NAN;
	if (rest >= 0x47800000u) /* 2^16 */
		return (uint16_t)(sign | 0x7c00u);
	if (rest >= 0x38800000u) /* 2^-14, the smallest normal one; may round up to infinity */
		return (uint16_t)(sign |
				  ((rest - ((127u - 15u) << 23) + 0xfffu + (rest >> 13 & 1u)) >>
					  13));
	/* Beside 0.5 the last bit is worth 2^-24: the sum rounds to a multiple of it. */
	return (uint16_t)(sign | (cast_bits(cast_float(rest) + 0.5f) - 0x3f000000u));
}

/*
 * Rounded to nearest even, saturating. Beside a power of two that is 2^20 times the value's own the
 * sum rounds to a multiple of the last bit that E4M3 has there, and counts them; below the smallest
 * normal number that bit stays as large as it is there. Nothing depends on how denormals of F32 are
 * treated: they are far below half of the smallest E4M3.
 */
static inline uint8_t
cast_to_e4m3(float value)
{
	const uint32_t bits = cast_bits(value);
	uint32_t rest = bits & ~F32_SIGN;

	if (rest > F32_INFINITY)
		return E4M3_NAN;
	if (rest > E4M3_MAX_BITS)
		rest = E4M3_MAX_BITS;
	uint32_t exponent = rest & F32_INFINITY;
	if (exponent < E4M3_LEAST)
		exponent = E4M3_LEAST;
	const uint32_t beside = exponent + E4M3_ALIGN;
	const uint32_t count = cast_bits(cast_float(rest) + cast_float(beside)) - beside;
	return (uint8_t)((bits >> 24 & 0x80u) | (count + ((exponent - E4M3_LEAST) >> 20)));
}

#endif
