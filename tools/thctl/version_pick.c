/* SPDX-License-Identifier: Apache-2.0 */
/*
 * version_pick - resolving of version names (see version_pick.h).
 */
#include "tools/thctl/version_pick.h"

static const struct thc_version_info *
version_at(const struct thc_listing *listing, uint32_t index)
{
	return (const void *)((const char *)listing->versions + index * listing->version_bytes);
}

uint64_t
listing_ready(const struct thc_listing *listing, const struct thc_version_info *version)
{
	uint64_t ready = 0;

	for (uint32_t i = 0; i < version->num_replicas; i++) {
		const struct thc_replica_info *replica =
			(const void *)((const char *)version->replicas +
				       i * listing->replica_bytes);
		ready += (replica->flags & (uint32_t)THC_REPLICA_READY) != 0;
	}
	return ready;
}

const struct thc_version_info *
listing_resolve(const struct thc_listing *listing, const struct th_spec *spec)
{
	const struct thc_version_info *latest = NULL;
	uint64_t number = spec->number;

	if (listing->num_versions == 0)
		return NULL;
	/* Ascending: the last one is of the highest lineage. */
	uint64_t lineage = version_at(listing, listing->num_versions - 1)->lineage;
	if (spec->relative) {
		for (uint32_t i = 0; i < listing->num_versions; i++) {
			const struct thc_version_info *version = version_at(listing, i);
			if (version->lineage == lineage && listing_ready(listing, version) > 0)
				latest = version;
		}
		if (!latest || latest->version < spec->number)
			return NULL;
		number = latest->version - spec->number;
	}
	for (uint32_t i = 0; i < listing->num_versions; i++) {
		const struct thc_version_info *version = version_at(listing, i);
		if (version->lineage == lineage && version->version == number)
			return version;
	}
	return NULL;
}
