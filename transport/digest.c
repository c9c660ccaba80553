/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest - see digest.h. Whole leaves that lie in one piece are hashed in one go; only a leaf that
 * is cut by a block or a tensor boundary goes through the streaming state.
 *
 * Debian's plain XXH3 symbols are the SSE2 build; on x86 the library's dispatching symbols are
 * two to three times as fast. Elsewhere there is one build, inlined here.
 */
#include "transport/digest.h"

#include <endian.h>

#ifdef TH_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#endif

#include "ipc/base/assert.h"

void
digest_init(struct digest *digest)
{
	digest->leaf_bytes = 0;
	digest->num_leaves = 0;
}

static void
add_leaf(struct digest *digest, uint64_t value)
{
	TH_ASSERT(digest->num_leaves < DIGEST_LEAVES_MAX);
	digest->leaves[digest->num_leaves++] = htole64(value);
}

void
digest_update(struct digest *digest, const void *data, size_t bytes)
{
	const uint8_t *at = data;
	while (bytes > 0) {
		if (digest->leaf_bytes == 0 && bytes >= DIGEST_LEAF_BYTES) {
			add_leaf(digest, XXH3_64bits(at, DIGEST_LEAF_BYTES));
			at += DIGEST_LEAF_BYTES;
			bytes -= DIGEST_LEAF_BYTES;
			continue;
		}
		if (digest->leaf_bytes == 0)
			XXH3_64bits_reset(&digest->leaf);
		size_t piece = DIGEST_LEAF_BYTES - digest->leaf_bytes;
		if (piece > bytes)
			piece = bytes;
		XXH3_64bits_update(&digest->leaf, at, piece);
		digest->leaf_bytes += (uint32_t)piece;
		at += piece;
		bytes -= piece;
		if (digest->leaf_bytes == DIGEST_LEAF_BYTES) {
			add_leaf(digest, XXH3_64bits_digest(&digest->leaf));
			digest->leaf_bytes = 0;
		}
	}
}

struct th_hash
digest_final(struct digest *digest)
{
	if (digest->leaf_bytes > 0) {
		add_leaf(digest, XXH3_64bits_digest(&digest->leaf));
		digest->leaf_bytes = 0;
	}
	XXH128_hash_t hash =
		XXH3_128bits(digest->leaves, digest->num_leaves * sizeof(digest->leaves[0]));
	return (struct th_hash){.lo = hash.low64, .hi = hash.high64};
}

struct th_hash
digest_of(const void *data, size_t bytes)
{
	struct digest digest;
	digest_init(&digest);
	digest_update(&digest, data, bytes);
	return digest_final(&digest);
}
