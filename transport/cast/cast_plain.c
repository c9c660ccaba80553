/* SPDX-License-Identifier: Apache-2.0 */
/* cast_plain - the kit of any CPU: see cast_own.h. It alone takes scales that are no numbers. */
#include "transport/cast/cast_own.h"

static float
same(float value)
{
	return value;
}

static void
plain_peak_half(struct cast_peak *peak, const void *from, size_t count)
{
	const uint16_t *in = from;

	for (size_t i = 0; i < count; i++) {
		const uint16_t rest = in[i] & 0x7fffu;
		if (rest > peak->lanes.half[0])
			peak->lanes.half[0] = rest;
	}
}

static void
plain_peak_full(struct cast_peak *peak, const void *from, size_t count)
{
	const uint32_t *in = from;

	for (size_t i = 0; i < count; i++) {
		const uint32_t rest = in[i] & ~F32_SIGN;
		if (rest > peak->lanes.full[0])
			peak->lanes.full[0] = rest;
	}
}

/* One loop for each type of input. */
#define PLAIN_QUANTIZE(input, type, read)                                                          \
	static void plain_times_##input(uint8_t *to, const void *from, size_t count, float by)     \
	{                                                                                          \
		const type *in = from;                                                             \
		for (size_t i = 0; i < count; i++)                                                 \
			to[i] = cast_to_e4m3(read(in[i]) * by);                                    \
	}                                                                                          \
	static void plain_over_##input(uint8_t *to, const void *from, size_t count, float by)      \
	{                                                                                          \
		const type *in = from;                                                             \
		for (size_t i = 0; i < count; i++)                                                 \
			to[i] = cast_to_e4m3(read(in[i]) / by);                                    \
	}
PLAIN_QUANTIZE(f16, uint16_t, cast_of_f16)
PLAIN_QUANTIZE(bf16, uint16_t, cast_of_bf16)
PLAIN_QUANTIZE(f32, float, same)

#define PLAIN_ROUND(input)                                                                         \
	static void plain_widen_##input(float *to, const void *from, size_t count)                 \
	{                                                                                          \
		const uint16_t *in = from;                                                         \
		for (size_t i = 0; i < count; i++)                                                 \
			to[i] = cast_of_##input(in[i]);                                            \
	}                                                                                          \
	static void plain_narrow_##input(uint16_t *to, const float *from, size_t count)            \
	{                                                                                          \
		for (size_t i = 0; i < count; i++)                                                 \
			to[i] = cast_to_##input(from[i]);                                          \
	}
PLAIN_ROUND(f16)
PLAIN_ROUND(bf16)

const struct cast_kit cast_kit_plain = {
	.name = "plain",
	.peak = {plain_peak_half, plain_peak_half, plain_peak_full},
	.times = {plain_times_f16, plain_times_bf16, plain_times_f32},
	.over = {plain_over_f16, plain_over_bf16, plain_over_f32},
	.widen = {plain_widen_f16, plain_widen_bf16, NULL},
	.narrow = {plain_narrow_f16, plain_narrow_bf16, NULL},
};
