/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blob_hash - see blob_hash.h. A file of its own, because the inline library brings macros of its
 * own. Pure.
 */
#include "server/core/model/blob_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

struct th_hash
hash_bytes(const void *data, size_t bytes)
{
	XXH128_hash_t hash = XXH3_128bits(data, bytes);

	return (struct th_hash){.lo = hash.low64, .hi = hash.high64};
}
