/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_stats - what repeated measurements say: middle, spread, percentiles, ratios of two rows.
 *
 * Pure. Rates and times are doubles; a series grows by one value a round.
 */
#ifndef TH_TOOLS_BENCH_THBENCH_STATS_H
#define TH_TOOLS_BENCH_THBENCH_STATS_H

#include <stdint.h>

struct samples {
	uint32_t count;
	double *values; /* owns, in the order of the rounds */
};

void samples_add(struct samples *samples, double value);
void samples_free(struct samples *samples);

/*
 * The value below which share (0..1) of the sorted values lie; of an even number the median is the
 * mean of the two in the middle. 0 of nothing.
 */
double samples_quantile(const struct samples *samples, double share);
double samples_median(const struct samples *samples);
double samples_min(const struct samples *samples);
double samples_max(const struct samples *samples);

struct ratio_range {
	double ratio;    /* of the medians                                               */
	double min, max; /* of the rounds, each against the other row's value in it      */
};

/* Rounds that only one of the two has do not count for the range. All 0 where there is nothing. */
struct ratio_range samples_ratio(const struct samples *of, const struct samples *to);

#endif
