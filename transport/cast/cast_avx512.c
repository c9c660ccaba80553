/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cast_avx512 - the kit of a CPU with AVX-512 F and BW: see cast_own.h. It has no use for the
 * instructions of AVX-512 BF16 and FP16: the former flush denormals. What does not fill a vector
 * goes by the formulas for one element.
 */
#include "transport/cast/cast_own.h"

#ifdef CAST_WITH_X86
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw"))) static
#define AVX512_INLINE static inline __attribute__((always_inline, target("avx512f,avx512bw")))

#define LANES 16u

/* ---- the largest element -------------------------------------------------------------------- */

AVX512 void
avx512_peak_half(struct cast_peak *peak, const void *from, size_t count)
{
	const uint16_t *in = from;
	const __m512i rest = _mm512_set1_epi16(0x7fff);
	__m512i peaks = _mm512_loadu_si512(peak->lanes.half);
	size_t i = 0;

	for (; count - i >= 2 * LANES; i += 2 * LANES)
		peaks = _mm512_max_epu16(peaks, _mm512_and_si512(_mm512_loadu_si512(in + i), rest));
	_mm512_storeu_si512(peak->lanes.half, peaks);
	if (i < count)
		cast_kit_plain.peak[CAST_IN_F16](peak, in + i, count - i);
}

AVX512 void
avx512_peak_full(struct cast_peak *peak, const void *from, size_t count)
{
	const uint32_t *in = from;
	const __m512i rest = _mm512_set1_epi32(0x7fffffff);
	__m512i peaks = _mm512_loadu_si512(peak->lanes.full);
	size_t i = 0;

	for (; count - i >= LANES; i += LANES)
		peaks = _mm512_max_epu32(peaks, _mm512_and_si512(_mm512_loadu_si512(in + i), rest));
	_mm512_storeu_si512(peak->lanes.full, peaks);
	if (i < count)
		cast_kit_plain.peak[CAST_IN_F32](peak, in + i, count - i);
}

/* ---- to F32 ---------------------------------------------------------------------------------- */

AVX512_INLINE __m512
avx512_f32_at(enum cast_input input, const uint8_t *at)
{
	if (input == CAST_IN_F16)
		return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)at));
	if (input == CAST_IN_F32)
		return _mm512_loadu_ps(at);
	const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)at));
	return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* Every NaN becomes the one of F32. */
AVX512_INLINE __m512
avx512_one_nan(__m512 value)
{
	const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
	return _mm512_mask_mov_ps(value, nan, _mm512_castsi512_ps(_mm512_set1_epi32(F32_NAN)));
}

AVX512_INLINE void
avx512_widen(enum cast_input input, float *to, const void *from, size_t count)
{
	const uint8_t *in = from;
	size_t i = 0;

	for (; count - i >= LANES; i += LANES)
		_mm512_storeu_ps(to + i, avx512_one_nan(avx512_f32_at(input, in + 2 * i)));
	if (i < count)
		cast_kit_plain.widen[input](to + i, in + 2 * i, count - i);
}

/* ---- from F32 -------------------------------------------------------------------------------- */

/* As cast_to_bf16. */
AVX512 void
avx512_narrow_bf16(uint16_t *to, const float *from, size_t count)
{
	const __m512i one = _mm512_set1_epi32(1), below = _mm512_set1_epi32(0x7fff);
	size_t i = 0;

	for (; count - i >= LANES; i += LANES) {
		const __m512 value = _mm512_loadu_ps(from + i);
		const __m512i bits = _mm512_castps_si512(value);
		const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
		const __m512i rounded =
			_mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, below)), 16);
		const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
		_mm256_storeu_si256((void *)(to + i),
			_mm512_cvtepi32_epi16(
				_mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(BF16_NAN))));
	}
	if (i < count)
		cast_kit_plain.narrow[CAST_IN_BF16](to + i, from + i, count - i);
}

/* The rounding is the instruction's own, not that of the MXCSR. */
AVX512 void
avx512_narrow_f16(uint16_t *to, const float *from, size_t count)
{
	size_t i = 0;

	for (; count - i >= LANES; i += LANES) {
		const __m512 value = avx512_one_nan(_mm512_loadu_ps(from + i));
		_mm256_storeu_si256((void *)(to + i),
			_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
	}
	if (i < count)
		cast_kit_plain.narrow[CAST_IN_F16](to + i, from + i, count - i);
}

/* ---- to E4M3 --------------------------------------------------------------------------------- */

/* As cast_to_e4m3. Only the low byte of each lane is its own. */
AVX512_INLINE __m512i
avx512_e4m3_of(__m512 value)
{
	const __m512i bits = _mm512_castps_si512(value);
	const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
	const __m512i rest = _mm512_min_epu32(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)),
		_mm512_set1_epi32(E4M3_MAX_BITS));
	const __m512i exponent =
		_mm512_max_epu32(_mm512_and_si512(rest, _mm512_set1_epi32(F32_INFINITY)),
			_mm512_set1_epi32(E4M3_LEAST));
	const __m512i beside = _mm512_add_epi32(exponent, _mm512_set1_epi32(E4M3_ALIGN));
	const __m512i sum = _mm512_castps_si512(
		_mm512_add_ps(_mm512_castsi512_ps(rest), _mm512_castsi512_ps(beside)));
	const __m512i count = _mm512_sub_epi32(sum, beside);
	const __m512i steps =
		_mm512_srli_epi32(_mm512_sub_epi32(exponent, _mm512_set1_epi32(E4M3_LEAST)), 20);
	return _mm512_or_si512(sign, _mm512_add_epi32(count, steps));
}

AVX512_INLINE void
avx512_quantize(
	enum cast_input input, bool divide, uint8_t *to, const void *from, size_t count, float by)
{
	const size_t size = input == CAST_IN_F32 ? 4 : 2;
	const __m512 all_by = _mm512_set1_ps(by);
	const uint8_t *in = from;
	size_t i = 0;

	for (; count - i >= LANES; i += LANES) {
		const __m512 value = avx512_f32_at(input, in + i * size);
		const __m512i code = avx512_e4m3_of(
			divide ? _mm512_div_ps(value, all_by) : _mm512_mul_ps(value, all_by));
		_mm_storeu_si128((void *)(to + i), _mm512_cvtepi32_epi8(code));
	}
	if (i < count)
		(divide ? cast_kit_plain.over : cast_kit_plain.times)[input](
			to + i, in + i * size, count - i, by);
}

/* ---- the kit --------------------------------------------------------------------------------- */

#define AVX512_QUANTIZE(name, input)                                                               \
	AVX512 void avx512_times_##name(uint8_t *to, const void *from, size_t count, float by)     \
	{                                                                                          \
		avx512_quantize(input, false, to, from, count, by);                                \
	}                                                                                          \
	AVX512 void avx512_over_##name(uint8_t *to, const void *from, size_t count, float by)      \
	{                                                                                          \
		avx512_quantize(input, true, to, from, count, by);                                 \
	}
AVX512_QUANTIZE(f16, CAST_IN_F16)
AVX512_QUANTIZE(bf16, CAST_IN_BF16)
AVX512_QUANTIZE(f32, CAST_IN_F32)

#define AVX512_WIDEN(name, input)                                                                  \
	AVX512 void avx512_widen_##name(float *to, const void *from, size_t count)                 \
	{                                                                                          \
		avx512_widen(input, to, from, count);                                              \
	}
AVX512_WIDEN(f16, CAST_IN_F16)
AVX512_WIDEN(bf16, CAST_IN_BF16)

const struct cast_kit cast_kit_avx512 = {
	.name = "avx512",
	.peak = {avx512_peak_half, avx512_peak_half, avx512_peak_full},
	.times = {avx512_times_f16, avx512_times_bf16, avx512_times_f32},
	.over = {avx512_over_f16, avx512_over_bf16, avx512_over_f32},
	.widen = {avx512_widen_f16, avx512_widen_bf16, NULL},
	.narrow = {avx512_narrow_f16, avx512_narrow_bf16, NULL},
};
#else
typedef int cast_avx512_is_for_x86;
#endif
