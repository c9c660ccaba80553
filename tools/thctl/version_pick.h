/* SPDX-License-Identifier: Apache-2.0 */
/*
 * version_pick - what a version name means in a listing of libthc.
 *
 * Names and numbers resolve in the highest lineage that has a version; latest is its highest
 * version with a ready copy; latest-K is that number minus K. Pure.
 */
#ifndef TH_TOOLS_THCTL_VERSION_PICK_H
#define TH_TOOLS_THCTL_VERSION_PICK_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/base/name.h"
#include "libthc/thc.h"

/* NULL: not there now. Points into the listing. */
const struct thc_version_info *listing_resolve(
	const struct thc_listing *listing, const struct th_spec *spec);

/* Replicas of the version with a ready copy. */
uint64_t listing_ready(const struct thc_listing *listing, const struct thc_version_info *version);

#endif
