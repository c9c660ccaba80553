/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cast_avx2 - the kit of a CPU with AVX2 and F16C: see cast_own.h. What does not fill a vector goes
 * by the formulas for one element.
 */
#include "transport/cast/cast_own.h"

#ifdef CAST_WITH_X86
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,f16c"))) static
#define AVX2_INLINE static inline __attribute__((always_inline, target("avx2,f16c")))

#define LANES 8u
#define STEP 32u /* elements that make a vector of bytes */

/* What the exponents are too large by when they are counted from zero, and beside E4M3_ALIGN. */
#define EXCESS ((E4M3_LEAST + E4M3_ALIGN) >> 20)

AVX2_INLINE __m256i
avx2_load(const void *at)
{
	return _mm256_loadu_si256(at);
}

/* ---- the largest element -------------------------------------------------------------------- */

AVX2 void
avx2_peak_half(struct cast_peak *peak, const void *from, size_t count)
{
	const uint16_t *in = from;
	const __m256i rest = _mm256_set1_epi16(0x7fff);
	__m256i low = avx2_load(peak->lanes.half), high = avx2_load(peak->lanes.half + 16);
	size_t i = 0;

	for (; count - i >= 32; i += 32) {
		low = _mm256_max_epu16(low, _mm256_and_si256(avx2_load(in + i), rest));
		high = _mm256_max_epu16(high, _mm256_and_si256(avx2_load(in + i + 16), rest));
	}
	_mm256_storeu_si256((void *)peak->lanes.half, low);
	_mm256_storeu_si256((void *)(peak->lanes.half + 16), high);
	if (i < count)
		cast_kit_plain.peak[CAST_IN_F16](peak, in + i, count - i);
}

AVX2 void
avx2_peak_full(struct cast_peak *peak, const void *from, size_t count)
{
	const uint32_t *in = from;
	const __m256i rest = _mm256_set1_epi32(0x7fffffff);
	__m256i low = avx2_load(peak->lanes.full), high = avx2_load(peak->lanes.full + 8);
	size_t i = 0;

	for (; count - i >= 16; i += 16) {
		low = _mm256_max_epu32(low, _mm256_and_si256(avx2_load(in + i), rest));
		high = _mm256_max_epu32(high, _mm256_and_si256(avx2_load(in + i + 8), rest));
	}
	_mm256_storeu_si256((void *)peak->lanes.full, low);
	_mm256_storeu_si256((void *)(peak->lanes.full + 8), high);
	if (i < count)
		cast_kit_plain.peak[CAST_IN_F32](peak, in + i, count - i);
}

/* ---- to F32 ---------------------------------------------------------------------------------- */

AVX2_INLINE __m256
avx2_f32_at(enum cast_input input, const uint8_t *at)
{
	if (input == CAST_IN_F16)
		return _mm256_cvtph_ps(_mm_loadu_si128((const void *)at));
	if (input == CAST_IN_F32)
		return _mm256_loadu_ps((const void *)at);
	const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)at));
	return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* Every NaN becomes the one of F32. */
AVX2_INLINE __m256
avx2_one_nan(__m256 value)
{
	return _mm256_blendv_ps(value, _mm256_castsi256_ps(_mm256_set1_epi32(F32_NAN)),
		_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
}

AVX2_INLINE void
avx2_widen(enum cast_input input, float *to, const void *from, size_t count)
{
	const uint8_t *in = from;
	size_t i = 0;

	for (; count - i >= LANES; i += LANES)
		_mm256_storeu_ps(to + i, avx2_one_nan(avx2_f32_at(input, in + 2 * i)));
	if (i < count)
		cast_kit_plain.widen[input](to + i, in + 2 * i, count - i);
}

/* ---- from F32 -------------------------------------------------------------------------------- */

/* As cast_to_bf16, in the low halves. */
AVX2_INLINE __m256i
avx2_bf16_of(__m256 value)
{
	const __m256i bits = _mm256_castps_si256(value);
	const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
	const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
	const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
	const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
	return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(BF16_NAN), nan);
}

AVX2 void
avx2_narrow_bf16(uint16_t *to, const float *from, size_t count)
{
	size_t i = 0;

	for (; count - i >= 2 * LANES; i += 2 * LANES) {
		const __m256i low = avx2_bf16_of(_mm256_loadu_ps(from + i));
		const __m256i high = avx2_bf16_of(_mm256_loadu_ps(from + i + LANES));
		/* Vectors are packed by their halves. */
		const __m256i packed =
			_mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
		_mm256_storeu_si256((void *)(to + i), packed);
	}
	if (i < count)
		cast_kit_plain.narrow[CAST_IN_BF16](to + i, from + i, count - i);
}

/* The rounding is the instruction's own, not that of the MXCSR. */
AVX2 void
avx2_narrow_f16(uint16_t *to, const float *from, size_t count)
{
	size_t i = 0;

	for (; count - i >= LANES; i += LANES) {
		const __m256 value = avx2_one_nan(_mm256_loadu_ps(from + i));
		_mm_storeu_si128((void *)(to + i),
			_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
	}
	if (i < count)
		cast_kit_plain.narrow[CAST_IN_F16](to + i, from + i, count - i);
}

/* ---- to E4M3 --------------------------------------------------------------------------------- */

/* As cast_to_e4m3, and EXCESS more. */
AVX2_INLINE __m256i
avx2_e4m3_of(__m256 value)
{
	const __m256i bits = _mm256_castps_si256(value);
	const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
	const __m256i rest = _mm256_min_epu32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)),
		_mm256_set1_epi32(E4M3_MAX_BITS));
	const __m256i exponent =
		_mm256_max_epu32(_mm256_and_si256(rest, _mm256_set1_epi32(F32_INFINITY)),
			_mm256_set1_epi32(E4M3_LEAST));
	const __m256i beside = _mm256_add_epi32(exponent, _mm256_set1_epi32(E4M3_ALIGN));
	const __m256i sum = _mm256_castps_si256(
		_mm256_add_ps(_mm256_castsi256_ps(rest), _mm256_castsi256_ps(beside)));
	const __m256i count = _mm256_sub_epi32(sum, beside);
	return _mm256_add_epi32(_mm256_add_epi32(count, sign), _mm256_srli_epi32(beside, 20));
}

AVX2_INLINE __m256i
avx2_two(enum cast_input input, bool divide, const uint8_t *in, size_t size, __m256 by)
{
	const __m256 low = avx2_f32_at(input, in), high = avx2_f32_at(input, in + LANES * size);
	const __m256i a = avx2_e4m3_of(divide ? _mm256_div_ps(low, by) : _mm256_mul_ps(low, by));
	const __m256i b = avx2_e4m3_of(divide ? _mm256_div_ps(high, by) : _mm256_mul_ps(high, by));
	return _mm256_sub_epi16(_mm256_packus_epi32(a, b), _mm256_set1_epi16(EXCESS));
}

AVX2_INLINE void
avx2_quantize(
	enum cast_input input, bool divide, uint8_t *to, const void *from, size_t count, float by)
{
	const size_t size = input == CAST_IN_F32 ? 4 : 2;
	const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
	const __m256 all_by = _mm256_set1_ps(by);
	const uint8_t *in = from;
	size_t i = 0;

	for (; count - i >= STEP; i += STEP) {
		const __m256i low = avx2_two(input, divide, in + i * size, size, all_by);
		const __m256i high =
			avx2_two(input, divide, in + (i + STEP / 2) * size, size, all_by);
		const __m256i bytes = _mm256_packus_epi16(low, high);
		_mm256_storeu_si256((void *)(to + i), _mm256_permutevar8x32_epi32(bytes, order));
	}
	if (i < count)
		(divide ? cast_kit_plain.over : cast_kit_plain.times)[input](
			to + i, in + i * size, count - i, by);
}

/* ---- the kit --------------------------------------------------------------------------------- */

#define AVX2_QUANTIZE(name, input)                                                                 \
	AVX2 void avx2_times_##name(uint8_t *to, const void *from, size_t count, float by)         \
	{                                                                                          \
		avx2_quantize(input, false, to, from, count, by);                                  \
	}                                                                                          \
	AVX2 void avx2_over_##name(uint8_t *to, const void *from, size_t count, float by)          \
	{                                                                                          \
		avx2_quantize(input, true, to, from, count, by);                                   \
	}
AVX2_QUANTIZE(f16, CAST_IN_F16)
AVX2_QUANTIZE(bf16, CAST_IN_BF16)
AVX2_QUANTIZE(f32, CAST_IN_F32)

#define AVX2_WIDEN(name, input)                                                                    \
	AVX2 void avx2_widen_##name(float *to, const void *from, size_t count)                     \
	{                                                                                          \
		avx2_widen(input, to, from, count);                                                \
	}
AVX2_WIDEN(f16, CAST_IN_F16)
AVX2_WIDEN(bf16, CAST_IN_BF16)

const struct cast_kit cast_kit_avx2 = {
	.name = "avx2",
	.peak = {avx2_peak_half, avx2_peak_half, avx2_peak_full},
	.times = {avx2_times_f16, avx2_times_bf16, avx2_times_f32},
	.over = {avx2_over_f16, avx2_over_bf16, avx2_over_f32},
	.widen = {avx2_widen_f16, avx2_widen_bf16, NULL},
	.narrow = {avx2_narrow_f16, avx2_narrow_bf16, NULL},
};
#else
typedef int cast_avx2_is_for_x86;
#endif
