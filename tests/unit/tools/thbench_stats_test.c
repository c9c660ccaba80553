/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/thbench_stats.h"

#include <criterion/criterion.h>

static struct samples
of(uint32_t count, const double *values)
{
	struct samples samples = {0};

	for (uint32_t i = 0; i < count; i++)
		samples_add(&samples, values[i]);
	return samples;
}

static void
expect(double is, double wanted)
{
	cr_expect(is > wanted - 1e-9 && is < wanted + 1e-9, "%g, not %g", is, wanted);
}

Test(thbench_stats, median__odd_number__is_the_one_in_the_middle)
{
	struct samples samples = of(5, (const double[]){9.0, 1.0, 5.0, 7.0, 3.0});

	expect(samples_median(&samples), 5.0);
	expect(samples_min(&samples), 1.0);
	expect(samples_max(&samples), 9.0);
	expect(samples.values[0], 9.0); /* the order of the rounds stays */
	samples_free(&samples);
}

Test(thbench_stats, median__even_number__is_the_mean_of_two)
{
	struct samples samples = of(4, (const double[]){4.0, 1.0, 2.0, 8.0});

	expect(samples_median(&samples), 3.0);
	samples_free(&samples);
}

Test(thbench_stats, quantile__between_two__is_in_proportion)
{
	struct samples samples = {0};

	for (int i = 0; i <= 100; i++)
		samples_add(&samples, 100.0 - i);
	expect(samples_quantile(&samples, 0.99), 99.0);
	expect(samples_quantile(&samples, 0.005), 0.5);
	expect(samples_quantile(&samples, 1.0), 100.0);
	samples_free(&samples);
}

Test(thbench_stats, nothing__is_zero)
{
	const struct samples none = {0};

	expect(samples_median(&none), 0.0);
	expect(samples_max(&none), 0.0);
	expect(samples_ratio(&none, &none).ratio, 0.0);
}

Test(thbench_stats, ratio__is_of_medians_and_its_range_of_rounds)
{
	/* A round in which the machine was busy spoils both: its own ratio is a usual one. */
	struct samples a = of(3, (const double[]){9.0, 3.0, 10.0});
	struct samples b = of(3, (const double[]){10.0, 4.0, 8.0});
	struct ratio_range range = samples_ratio(&a, &b);

	expect(range.ratio, 9.0 / 8.0);
	expect(range.min, 0.75);
	expect(range.max, 1.25);
	samples_free(&a);
	samples_free(&b);
}

Test(thbench_stats, ratio__more_rounds_of_one__count_for_its_median_only)
{
	struct samples a = of(3, (const double[]){6.0, 8.0, 100.0});
	struct samples b = of(2, (const double[]){2.0, 4.0});
	struct ratio_range range = samples_ratio(&a, &b);

	expect(range.ratio, 8.0 / 3.0);
	expect(range.min, 2.0);
	expect(range.max, 3.0);
	samples_free(&a);
	samples_free(&b);
}
