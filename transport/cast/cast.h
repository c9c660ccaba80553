/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cast - named conversions between types of tensors: boxes of elements in, boxes of elements and
 * their scales out. tensorhub-convert(7) has the formulas; the same input gives the same bits with
 * every instruction set, whatever the MXCSR says about denormals, as long as it rounds to nearest.
 *
 * A box is a part of a tensor. Shapes, offsets and strides count elements, not bytes; the last
 * dimension is contiguous and all memory is aligned to its elements. What a scale is made of must
 * lie in one box, so a box begins on the borders of blocks and ends on one, or where the tensor
 * ends. Any box that cast_check takes may be cut at multiples of cast_grain and converted piece by
 * piece, in any order, with the same bits: that is how a caller with a bounded staging window goes
 * through a large tensor.
 *
 * Pure: no allocation, no locks, nothing is kept; any number of threads. A call may be left by a
 * jump (part/sigbus.h); then anything may stand in the output.
 */
#ifndef TH_TRANSPORT_CAST_CAST_H
#define TH_TRANSPORT_CAST_CAST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/err.h"

#define CAST_DIMS_MAX 8u /* THC_DIMS_MAX */
#define CAST_BLOCK 128u  /* rows and columns of a block, unless said otherwise */

/* The numbers are those of thc.h, which nothing here includes; a test compares. */
enum cast_type {
	CAST_F16 = 6,
	CAST_BF16 = 7,
	CAST_F32 = 10,
	CAST_F8_E4M3 = 14,
};

enum cast_scheme {
	CAST_ROUND = 1,
	CAST_FP8_BLOCK,
	CAST_FP8_BLOCK_POW2,
	CAST_FP8_CHANNEL,
};

struct cast {
	uint32_t scheme;   /* enum cast_scheme */
	uint32_t from, to; /* enum cast_type */
	uint32_t block
		[2]; /* rows, columns; 0, 0: CAST_BLOCK. Other schemes than fp8-block's: 0, 0 */
};

struct cast_box {
	uint32_t ndim;
	uint64_t global_shape[CAST_DIMS_MAX]; /* of the whole tensor */
	uint64_t offset[CAST_DIMS_MAX];       /* where the box begins in it */
	uint64_t shape[CAST_DIMS_MAX];        /* of the box; 0 is legal: nothing to do */
};

/*
 * Where a box lies. Strides are elements from one index of a dimension to the next; all zero means
 * row-major and contiguous. Those of dimensions of size 1 are ignored. The outputs overlap neither
 * the input nor each other.
 */
struct cast_memory {
	const void *from; /* borrows; only read */
	uint64_t from_stride[CAST_DIMS_MAX];
	void *to; /* borrows; NULL: only the scales are wanted */
	uint64_t to_stride[CAST_DIMS_MAX];
	float *scales; /* borrows; NULL: not wanted. The shape is that of cast_scales_box */
	uint64_t scales_stride[CAST_DIMS_MAX];
};

/* "fp8-block"; NULL for a number that is no scheme. */
const char *cast_scheme_name(uint32_t scheme);

/*
 * 0, or a sentence in err: TH_E_INVALID for a scheme, types or a block that do not go together,
 * TH_E_LAYOUT for a box that is not inside its tensor or not on the borders of blocks. The box may
 * come from another process: nothing is assumed about its numbers.
 */
int cast_check(const struct cast *cast, const struct cast_box *box, struct th_err *err);

/* For each dimension: a box may be cut at multiples of this, counted from the tensor's origin. */
void cast_grain(const struct cast *cast, const struct cast_box *box, uint64_t *ret_grain);

/*
 * Where the scales of this box lie in the tensor of all scales, which are F32: the same leading
 * dimensions, then one scale a block, or one a row and 1. False: the scheme has no scales.
 */
bool cast_scales_box(
	const struct cast *cast, const struct cast_box *box, struct cast_box *ret_scales);

/* Converts one box. Both have passed cast_check: that is the caller's part. */
void cast_run(
	const struct cast *cast, const struct cast_box *box, const struct cast_memory *memory);

/* Which instructions are used here: "avx512", "avx2" or "plain". */
const char *cast_kind(void);
/*
 * Tests and measurements: use these from now on; NULL: the best again. False, and nothing changed:
 * this CPU, or this build, does not have them. Not while others convert.
 */
bool cast_force(const char *kind);

#endif
