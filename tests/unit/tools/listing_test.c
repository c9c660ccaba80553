/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listing_test - what a version name means to thctl wait.
 */
#include <criterion/criterion.h>

#include "tools/thctl/version_pick.h"

static const struct thc_replica_info ready[] = {
	{.name = "a", .flags = THC_REPLICA_READY}, {.name = "b", .flags = THC_REPLICA_READY}};
static const struct thc_replica_info filling[] = {{.name = "c"}};

/* Lineage 0 has the higher numbers, and does not count beside lineage 1. */
static const struct thc_version_info versions[] = {
	{.lineage = 0, .version = 90, .num_replicas = 2, .replicas = ready},
	{.lineage = 1, .version = 3, .num_replicas = 1, .replicas = ready},
	{.lineage = 1, .version = 5, .num_replicas = 2, .replicas = ready},
	{.lineage = 1, .version = 6, .num_replicas = 1, .replicas = filling},
};

static const struct thc_version_info *
resolve(const char *text)
{
	const struct thc_listing listing = {
		.struct_size = sizeof(listing),
		.num_versions = 4,
		.version_bytes = sizeof(versions[0]),
		.replica_bytes = sizeof(ready[0]),
		.versions = versions,
	};
	struct th_spec spec;

	cr_assert_eq(th_spec_parse(text, &spec), 0);
	return listing_resolve(&listing, &spec);
}

Test(listing, resolve__in_the_highest_lineage)
{
	cr_assert_eq(resolve("latest"), &versions[2]);
	cr_assert_eq(resolve("latest-2"), &versions[1]);
	cr_assert_null(resolve("latest-1"));
	cr_assert_null(resolve("latest-6"));
	cr_assert_eq(resolve("6"), &versions[3]);
	cr_assert_eq(resolve("3"), &versions[1]);
	cr_assert_null(resolve("90"));
}

Test(listing, resolve__nothing_there)
{
	const struct thc_listing empty = {.struct_size = sizeof(empty)};
	struct th_spec spec;

	cr_assert_eq(th_spec_parse("latest", &spec), 0);
	cr_assert_null(listing_resolve(&empty, &spec));
}
