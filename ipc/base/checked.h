/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checked - arithmetic on numbers that another process chose, and the small helpers around it.
 *
 * Each th_*_u64 with a ret_ says whether the result fits; ret_ is untouched when it does not. Pure.
 */
#ifndef TH_IPC_BASE_CHECKED_H
#define TH_IPC_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TH_ARRAY_LEN(array) (sizeof(array) / sizeof((array)[0]))
#define TH_MUST_USE __attribute__((warn_unused_result))

TH_MUST_USE static inline bool
th_add_u64(uint64_t a, uint64_t b, uint64_t *ret_sum)
{
	uint64_t sum;

	if (__builtin_add_overflow(a, b, &sum))
		return false;
	*ret_sum = sum;
	return true;
}

TH_MUST_USE static inline bool
th_mul_u64(uint64_t a, uint64_t b, uint64_t *ret_product)
{
	uint64_t product;

	if (__builtin_mul_overflow(a, b, &product))
		return false;
	*ret_product = product;
	return true;
}

/* True when [offset, offset + length) lies in [0, size). */
TH_MUST_USE static inline bool
th_range_fits(uint64_t offset, uint64_t length, uint64_t size)
{
	return offset <= size && length <= size - offset;
}

/* alignment is a power of two, which the caller knows. */
TH_MUST_USE static inline bool
th_align_up_u64(uint64_t value, uint64_t alignment, uint64_t *ret_aligned)
{
	uint64_t sum;

	if (__builtin_add_overflow(value, alignment - 1, &sum))
		return false;
	*ret_aligned = sum & ~(alignment - 1);
	return true;
}

static inline bool
th_is_power_of_two_u64(uint64_t value)
{
	return value != 0 && (value & (value - 1)) == 0;
}

static inline uint64_t
th_min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t
th_max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static inline uint32_t
th_min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static inline uint32_t
th_max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static inline size_t
th_min_size(size_t a, size_t b)
{
	return a < b ? a : b;
}

static inline int64_t
th_min_i64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t
th_max_i64(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/*
 * The moment that lies duration_ns after now_ns. A negative duration (TH_FOREVER) or one that
 * does not fit gives INT64_MAX, which no clock reaches.
 */
static inline int64_t
th_deadline_ns(int64_t now_ns, int64_t duration_ns)
{
	int64_t deadline;

	if (duration_ns < 0 || __builtin_add_overflow(now_ns, duration_ns, &deadline))
		return INT64_MAX;
	return deadline;
}

#endif
