/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest - see digest.h. Whole leaves that lie in one piece are hashed by leaf.h; only a leaf that
 * is cut by a block or a tensor boundary goes through the streaming state.
 *
 * Debian's plain XXH3 symbols are the SSE2 build; on x86 the library's dispatching symbols are
 * twice as fast.
 */
#include "transport/hash/digest.h"

#include <endian.h>
#include <string.h>

#ifdef TH_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#endif

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"

void
digest_init(struct digest *digest)
{
	digest->leaf_bytes = 0;
	digest->num_leaves = 0;
}

/* Of the next leaves. More than a chunk has is a bug of the caller. */
static uint64_t *
digest_room(struct digest *digest, size_t leaves)
{
	TH_ASSERT(leaves <= DIGEST_LEAVES_MAX - digest->num_leaves);
	uint64_t *values = &digest->leaves[digest->num_leaves];
	digest->num_leaves += (uint32_t)leaves;
	return values;
}

static void
to_little_endian(uint64_t *values, size_t count)
{
	for (size_t i = 0; i < count; i++)
		values[i] = htole64(values[i]);
}

static void
digest_end_leaf(struct digest *digest)
{
	*digest_room(digest, 1) = htole64(XXH3_64bits_digest(&digest->leaf));
	digest->leaf_bytes = 0;
}

/* Of the leaf that is begun, which bytes do not exceed. */
static void
digest_add_piece(struct digest *digest, const void *data, size_t bytes)
{
	if (digest->leaf_bytes == 0)
		XXH3_64bits_reset(&digest->leaf);
	XXH3_64bits_update(&digest->leaf, data, bytes);
	digest->leaf_bytes += (uint32_t)bytes;
	if (digest->leaf_bytes == DIGEST_LEAF_BYTES)
		digest_end_leaf(digest);
}

void
digest_update(struct digest *digest, const void *data, size_t bytes)
{
	const uint8_t *at = data;
	while (bytes > 0) {
		size_t piece = th_min_size(DIGEST_LEAF_BYTES - digest->leaf_bytes, bytes);
		if (piece < DIGEST_LEAF_BYTES) {
			digest_add_piece(digest, at, piece);
		} else {
			size_t leaves = bytes / DIGEST_LEAF_BYTES;
			uint64_t *values = digest_room(digest, leaves);
			leaf_hash(at, (uint32_t)leaves, values);
			to_little_endian(values, leaves);
			piece = leaves * DIGEST_LEAF_BYTES;
		}
		at += piece;
		bytes -= piece;
	}
}

void
digest_copy(struct digest *digest, void *to, const void *from, size_t bytes)
{
	uint8_t *out = to;
	const uint8_t *in = from;
	while (bytes > 0) {
		size_t piece = th_min_size(DIGEST_LEAF_BYTES - digest->leaf_bytes, bytes);
		if (piece < DIGEST_LEAF_BYTES) {
			memcpy(out, in, piece);
			digest_add_piece(digest, out, piece);
		} else {
			size_t leaves = bytes / DIGEST_LEAF_BYTES;
			uint64_t *values = digest_room(digest, leaves);
			leaf_copy(out, in, (uint32_t)leaves, values);
			to_little_endian(values, leaves);
			piece = leaves * DIGEST_LEAF_BYTES;
		}
		out += piece;
		in += piece;
		bytes -= piece;
	}
}

struct th_hash
digest_final(struct digest *digest)
{
	if (digest->leaf_bytes > 0)
		digest_end_leaf(digest);
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
