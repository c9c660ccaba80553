/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cast - see cast.h: what is checked, how a box is gone through, what a scale is. The loops over
 * rows are those of a kit (cast_own.h).
 */
#include "transport/cast/cast.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "transport/cast/cast_own.h"

/*
 * Blocks that are beside each other are gone through together, so that memory is read in long rows:
 * alone, a block would be 256 bytes of each row, and where rows lie a power of two apart they would
 * push each other out of the caches before the second look.
 */
#define STRIP_BLOCKS 64u
#define STRIP_BYTES 16384u /* of a row */

#define LEAST_PEAK 1e-4f                             /* fp8-block */
#define LEAST_SCALE ((float)(1.0 / (448.0 * 512.0))) /* fp8-channel */

static const struct cast_kit *forced; /* NULL: the best */

static const char *const scheme_names[] = {
	[CAST_ROUND] = "round",
	[CAST_FP8_BLOCK] = "fp8-block",
	[CAST_FP8_BLOCK_POW2] = "fp8-block-pow2",
	[CAST_FP8_CHANNEL] = "fp8-channel",
};

/* ---- which kit ------------------------------------------------------------------------------- */

static bool
kit_runs_here(const struct cast_kit *kit)
{
#ifdef CAST_WITH_X86
	if (kit == &cast_kit_avx512)
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
	if (kit == &cast_kit_avx2)
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#endif
	return kit == &cast_kit_plain;
}

/* The best first. */
static const struct cast_kit *const kits[] = {
#ifdef CAST_WITH_X86
	&cast_kit_avx512,
	&cast_kit_avx2,
#endif
	&cast_kit_plain,
};

static const struct cast_kit *
kit_here(void)
{
	if (forced)
		return forced;
	uint32_t i = 0;
	while (!kit_runs_here(kits[i]))
		i++;
	return kits[i];
}

const char *
cast_kind(void)
{
	return kit_here()->name;
}

bool
cast_force(const char *kind)
{
	if (!kind) {
		forced = NULL;
		return true;
	}
	for (uint32_t i = 0; i < TH_ARRAY_LEN(kits); i++) {
		if (strcmp(kits[i]->name, kind) == 0 && kit_runs_here(kits[i])) {
			forced = kits[i];
			return true;
		}
	}
	return false;
}

/* ---- what goes together ---------------------------------------------------------------------- */

const char *
cast_scheme_name(uint32_t scheme)
{
	return scheme < TH_ARRAY_LEN(scheme_names) ? scheme_names[scheme] : NULL;
}

static bool
has_blocks(const struct cast *cast)
{
	return cast->scheme == CAST_FP8_BLOCK || cast->scheme == CAST_FP8_BLOCK_POW2;
}

static bool
is_half(uint32_t type)
{
	return type == CAST_F16 || type == CAST_BF16;
}

static bool
types_fit(const struct cast *cast)
{
	if (cast->scheme == CAST_ROUND)
		return (cast->from == CAST_F32 && is_half(cast->to)) ||
		       (is_half(cast->from) && cast->to == CAST_F32);
	return (cast->from == CAST_F32 || is_half(cast->from)) && cast->to == CAST_F8_E4M3;
}

static uint32_t
block_of(const struct cast *cast, int side)
{
	return cast->block[side] > 0 ? cast->block[side] : CAST_BLOCK;
}

void
cast_grain(const struct cast *cast, const struct cast_box *box, uint64_t *ret_grain)
{
	for (uint32_t d = 0; d < box->ndim; d++)
		ret_grain[d] = 1;
	if (has_blocks(cast)) {
		ret_grain[box->ndim - 2] = block_of(cast, 0);
		ret_grain[box->ndim - 1] = block_of(cast, 1);
	} else if (cast->scheme == CAST_FP8_CHANNEL && box->global_shape[box->ndim - 1] > 0) {
		ret_grain[box->ndim - 1] = box->global_shape[box->ndim - 1];
	}
}

static int
check_cast(const struct cast *cast, struct th_err *err)
{
	const char *name = cast_scheme_name(cast->scheme);

	if (!name)
		return th_fail(
			err, TH_E_INVALID, "no conversion has the number %" PRIu32, cast->scheme);
	if (!types_fit(cast))
		return th_fail(err, TH_E_INVALID,
			"conversion %s goes from %s, not from type %" PRIu32 " to type %" PRIu32,
			name,
			cast->scheme == CAST_ROUND ? "F32 to BF16 or F16, and back"
						   : "BF16, F16 or F32 to F8_E4M3",
			cast->from, cast->to);
	if (!has_blocks(cast) && (cast->block[0] > 0 || cast->block[1] > 0))
		return th_fail(err, TH_E_INVALID, "conversion %s has no blocks: give 0, 0", name);
	if ((cast->block[0] == 0) != (cast->block[1] == 0))
		return th_fail(err, TH_E_INVALID,
			"a block of %" PRIu32 " x %" PRIu32
			": give both sides, or 0, 0 for %u x %u",
			cast->block[0], cast->block[1], CAST_BLOCK, CAST_BLOCK);
	return 0;
}

int
cast_check(const struct cast *cast, const struct cast_box *box, struct th_err *err)
{
	const uint32_t least = cast->scheme == CAST_ROUND ? 0 : 2;
	uint64_t grain[CAST_DIMS_MAX];

	int rc = check_cast(cast, err);
	if (rc < 0)
		return rc;
	if (box->ndim > CAST_DIMS_MAX || box->ndim < least)
		return th_fail(err, TH_E_LAYOUT,
			"conversion %s is for %" PRIu32 " to %u dimensions, and this has %" PRIu32,
			cast_scheme_name(cast->scheme), least, CAST_DIMS_MAX, box->ndim);
	cast_grain(cast, box, grain);
	for (uint32_t d = 0; d < box->ndim; d++) {
		const uint64_t global = box->global_shape[d], begin = box->offset[d];
		if (!th_range_fits(begin, box->shape[d], global))
			return th_fail(err, TH_E_LAYOUT,
				"%" PRIu64 " elements from %" PRIu64 " of dimension %" PRIu32
				", which has %" PRIu64,
				box->shape[d], begin, d, global);
		const uint64_t end = begin + box->shape[d];
		if (begin % grain[d] != 0 || (end % grain[d] != 0 && end != global))
			return th_fail(err, TH_E_LAYOUT,
				"conversion %s: %" PRIu64 " to %" PRIu64 " of dimension %" PRIu32
				" cuts a block; begin at a multiple of %" PRIu64
				" and end at one or at %" PRIu64,
				cast_scheme_name(cast->scheme), begin, end, d, grain[d], global);
	}
	return 0;
}

bool
cast_scales_box(const struct cast *cast, const struct cast_box *box, struct cast_box *ret_scales)
{
	uint64_t grain[CAST_DIMS_MAX];

	if (cast->scheme == CAST_ROUND)
		return false;
	cast_grain(cast, box, grain);
	struct cast_box scales = {.ndim = box->ndim};
	for (uint32_t d = 0; d < box->ndim; d++) {
		const uint64_t global = box->global_shape[d];
		scales.global_shape[d] = global / grain[d] + (global % grain[d] > 0);
		scales.offset[d] = box->offset[d] / grain[d];
		scales.shape[d] = box->shape[d] / grain[d] + (box->shape[d] % grain[d] > 0);
	}
	*ret_scales = scales;
	return true;
}

/* ---- scales ---------------------------------------------------------------------------------- */

static enum cast_input
input_of(uint32_t type)
{
	return type == CAST_F16 ? CAST_IN_F16 : type == CAST_BF16 ? CAST_IN_BF16 : CAST_IN_F32;
}

static float
peak_value(const struct cast_peak *peak, enum cast_input input)
{
	uint32_t most = 0;

	if (input == CAST_IN_F32) {
		for (uint32_t i = 0; i < TH_ARRAY_LEN(peak->lanes.full); i++)
			most = most < peak->lanes.full[i] ? peak->lanes.full[i] : most;
		return cast_float(most > F32_INFINITY ? F32_NAN : most);
	}
	for (uint32_t i = 0; i < TH_ARRAY_LEN(peak->lanes.half); i++)
		most = most < peak->lanes.half[i] ? peak->lanes.half[i] : most;
	return input == CAST_IN_F16 ? cast_of_f16((uint16_t)most) : cast_of_bf16((uint16_t)most);
}

/* The next power of two, or itself. What is not finite stays; no scale is below 2^-126. */
static float
power_of_two(float scale)
{
	const uint32_t bits = cast_bits(scale);

	if (bits >= F32_INFINITY)
		return scale;
	return cast_float((bits + 0x7fffffu) & F32_INFINITY);
}

static float
scale_of(const struct cast *cast, float peak)
{
	/* Comparisons with NaN are false, so it stays. */
	if (cast->scheme == CAST_FP8_CHANNEL) {
		const float scale = peak / E4M3_MAX;
		return scale < LEAST_SCALE ? LEAST_SCALE : scale;
	}
	const float scale = (peak < LEAST_PEAK ? LEAST_PEAK : peak) / E4M3_MAX;
	return cast->scheme == CAST_FP8_BLOCK_POW2 ? power_of_two(scale) : scale;
}

/* ---- through a box --------------------------------------------------------------------------- */

/* The last two dimensions of a box, at one index of the others. Strides are elements of a row. */
struct plane {
	const uint8_t *from;
	uint8_t *to;   /* NULL: not wanted */
	float *scales; /* NULL: not wanted */
	uint64_t rows, columns;
	uint64_t from_stride, to_stride, scales_stride;
};

/* Blocks beside each other, block_columns wide each, the last one perhaps less. */
struct strip {
	const uint8_t *from;
	uint8_t *to;
	uint64_t from_stride, to_stride; /* bytes */
	uint64_t num_rows, columns, block_columns;
	uint32_t num_blocks;
	float scales[STRIP_BLOCKS];
};

static size_t
size_of(uint32_t type)
{
	return type == CAST_F32 ? 4 : type == CAST_F8_E4M3 ? 1 : 2;
}

static uint64_t
block_width(const struct strip *strip, uint32_t block)
{
	return th_min_u64(strip->block_columns, strip->columns - block * strip->block_columns);
}

static void
find_scales(const struct cast *cast, const struct cast_kit *kit, struct strip *strip)
{
	const enum cast_input input = input_of(cast->from);
	const uint64_t step = strip->block_columns * size_of(cast->from);
	struct cast_peak peaks[STRIP_BLOCKS] = {0};

	for (uint64_t row = 0; row < strip->num_rows; row++)
		for (uint32_t i = 0; i < strip->num_blocks; i++)
			kit->peak[input](&peaks[i],
				strip->from + row * strip->from_stride + i * step,
				block_width(strip, i));
	for (uint32_t i = 0; i < strip->num_blocks; i++)
		strip->scales[i] = scale_of(cast, peak_value(&peaks[i], input));
}

static void
quantize(const struct cast *cast, const struct cast_kit *kit, const struct strip *strip)
{
	const enum cast_input input = input_of(cast->from);
	const bool divide = cast->scheme == CAST_FP8_CHANNEL;
	const size_t size = size_of(cast->from);
	const struct cast_kit *able[STRIP_BLOCKS];
	float by[STRIP_BLOCKS];

	for (uint32_t i = 0; i < strip->num_blocks; i++) {
		able[i] = isfinite(strip->scales[i]) ? kit : &cast_kit_plain;
		by[i] = divide ? strip->scales[i] : 1.0f / strip->scales[i];
	}
	for (uint64_t row = 0; row < strip->num_rows; row++) {
		const uint8_t *from = strip->from + row * strip->from_stride;
		uint8_t *to = strip->to + row * strip->to_stride;
		for (uint32_t i = 0; i < strip->num_blocks; i++) {
			const uint64_t at = i * strip->block_columns;
			(divide ? able[i]->over : able[i]->times)[input](
				to + at, from + at * size, block_width(strip, i), by[i]);
		}
	}
}

/* block_rows, block_columns: of a block, as far as the plane goes. */
static void
quantize_plane(const struct cast *cast, const struct plane *plane, uint64_t block_rows,
	uint64_t block_columns)
{
	const struct cast_kit *kit = kit_here();
	const size_t size = size_of(cast->from);
	const uint64_t fit = th_min_u64(STRIP_BLOCKS, STRIP_BYTES / size / block_columns);
	const uint64_t strip_columns = (fit > 0 ? fit : 1) * block_columns;
	struct strip strip = {.block_columns = block_columns,
		.from_stride = plane->from_stride * size,
		.to_stride = plane->to_stride};

	for (uint64_t row = 0; row < plane->rows; row += block_rows) {
		strip.num_rows = th_min_u64(block_rows, plane->rows - row);
		for (uint64_t column = 0; column < plane->columns; column += strip_columns) {
			strip.columns = th_min_u64(strip_columns, plane->columns - column);
			strip.num_blocks = (uint32_t)((strip.columns - 1) / block_columns + 1);
			strip.from = plane->from + row * strip.from_stride + column * size;
			find_scales(cast, kit, &strip);
			if (plane->scales)
				memcpy(plane->scales + row / block_rows * plane->scales_stride +
						column / block_columns,
					strip.scales, strip.num_blocks * sizeof(strip.scales[0]));
			if (!plane->to)
				continue;
			strip.to = plane->to + row * strip.to_stride + column;
			quantize(cast, kit, &strip);
		}
	}
}

static void
round_plane(const struct cast *cast, const struct plane *plane)
{
	const struct cast_kit *kit = kit_here();
	const bool whole =
		plane->from_stride == plane->columns && plane->to_stride == plane->columns;
	const uint64_t rows = whole ? 1 : plane->rows;
	const uint64_t count = whole ? plane->rows * plane->columns : plane->columns;
	const size_t from_step = plane->from_stride * size_of(cast->from);
	const size_t to_step = plane->to_stride * size_of(cast->to);

	for (uint64_t row = 0; row < rows; row++) {
		const void *from = plane->from + row * from_step;
		void *to = plane->to + row * to_step;
		if (cast->from == CAST_F32)
			kit->narrow[input_of(cast->to)](to, from, count);
		else
			kit->widen[input_of(cast->from)](to, from, count);
	}
}

/* All zero: those of a box that lies row-major and contiguous. */
static void
full_strides(const struct cast_box *box, const uint64_t *stride, uint64_t *ret_stride)
{
	bool given = false;
	uint64_t product = 1;

	for (uint32_t d = 0; d < box->ndim; d++)
		given |= stride[d] > 0;
	for (uint32_t d = box->ndim; d-- > 0; product *= box->shape[d])
		ret_stride[d] = given ? stride[d] : product;
}

static uint64_t
place_of(uint64_t index, const struct cast_box *box, uint32_t leading, const uint64_t *stride)
{
	uint64_t place = 0;

	for (uint32_t d = leading; d-- > 0; index /= box->shape[d])
		place += index % box->shape[d] * stride[d];
	return place;
}

static uint64_t
side(const struct cast_box *box, uint32_t from_last)
{
	return box->ndim >= from_last ? box->shape[box->ndim - from_last] : 1;
}

void
cast_run(const struct cast *cast, const struct cast_box *box, const struct cast_memory *memory)
{
	const uint32_t leading = box->ndim > 2 ? box->ndim - 2 : 0;
	uint64_t from[CAST_DIMS_MAX] = {0}, to[CAST_DIMS_MAX] = {0}, of_scales[CAST_DIMS_MAX] = {0};
	uint64_t grain[CAST_DIMS_MAX], num_planes = 1;
	struct cast_box scales;

	for (uint32_t d = 0; d < box->ndim; d++) {
		if (box->shape[d] == 0)
			return;
		num_planes *= d < leading ? box->shape[d] : 1;
	}
	full_strides(box, memory->from_stride, from);
	full_strides(box, memory->to_stride, to);
	const bool scaled = cast_scales_box(cast, box, &scales);
	if (scaled)
		full_strides(&scales, memory->scales_stride, of_scales);
	cast_grain(cast, box, grain);
	const uint32_t rows_at = box->ndim >= 2 ? box->ndim - 2 : 0;
	struct plane plane = {.rows = side(box, 2),
		.columns = side(box, 1),
		.from_stride = from[rows_at],
		.to_stride = to[rows_at],
		.scales_stride = of_scales[rows_at]};
	for (uint64_t i = 0; i < num_planes; i++) {
		plane.from = (const uint8_t *)memory->from +
			     place_of(i, box, leading, from) * size_of(cast->from);
		plane.to = memory->to ? (uint8_t *)memory->to +
						place_of(i, box, leading, to) * size_of(cast->to)
				      : NULL;
		plane.scales = memory->scales && scaled
				       ? memory->scales + place_of(i, box, leading, of_scales)
				       : NULL;
		if (scaled)
			quantize_plane(cast, &plane, grain[rows_at],
				th_min_u64(grain[rows_at + 1], plane.columns));
		else if (plane.to)
			round_plane(cast, &plane);
	}
}
