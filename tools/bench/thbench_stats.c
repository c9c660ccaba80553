/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_stats - see thbench_stats.h.
 */
#include "tools/bench/thbench_stats.h"

#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"

void
samples_add(struct samples *samples, double value)
{
	/* Doubling would save little: a series has tens of values, or a few thousand. */
	if ((samples->count & (samples->count - 1)) == 0)
		samples->values = th_realloc(samples->values,
			samples->count == 0 ? 1 : 2 * (size_t)samples->count, sizeof(double));
	samples->values[samples->count++] = value;
}

void
samples_free(struct samples *samples)
{
	free(samples->values);
	*samples = (struct samples){0};
}

static int
thbench_stats_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double
samples_quantile(const struct samples *samples, double share)
{
	if (samples->count == 0)
		return 0.0;
	double *sorted = th_memdup(samples->values, samples->count * sizeof(double));
	qsort(sorted, samples->count, sizeof(double), thbench_stats_compare);
	double at = share * (double)(samples->count - 1);
	uint32_t below = (uint32_t)at;
	uint32_t above = th_min_u32(below + 1, samples->count - 1);
	double value = sorted[below] + (at - (double)below) * (sorted[above] - sorted[below]);
	free(sorted);
	return value;
}

double
samples_median(const struct samples *samples)
{
	return samples_quantile(samples, 0.5);
}

double
samples_min(const struct samples *samples)
{
	return samples_quantile(samples, 0.0);
}

double
samples_max(const struct samples *samples)
{
	return samples_quantile(samples, 1.0);
}

struct ratio_range
samples_ratio(const struct samples *of, const struct samples *to)
{
	struct ratio_range range = {0};
	uint32_t count = th_min_u32(of->count, to->count);
	double middle = samples_median(to);

	if (count == 0 || middle <= 0.0)
		return range;
	range.ratio = samples_median(of) / middle;
	for (uint32_t i = 0; i < count; i++) {
		double ratio = to->values[i] > 0.0 ? of->values[i] / to->values[i] : 0.0;
		if (i == 0 || ratio < range.min)
			range.min = ratio;
		if (i == 0 || ratio > range.max)
			range.max = ratio;
	}
	return range;
}
