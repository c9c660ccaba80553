/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest - the digest of a chunk: XXH3-128 (seed 0) over the little-endian XXH3-64 digests (seed 0)
 * of its 64 KiB leaves, the last leaf short. Constants of layout id 1.
 *
 * The incremental form takes a chunk in pieces of any size, so that a receiver can hash each block
 * right after it arrived, while it is in cache. The value does not depend on the CPU. Pure, no
 * allocation; one digest belongs to one thread at a time.
 */
#ifndef TH_TRANSPORT_HASH_DIGEST_H
#define TH_TRANSPORT_HASH_DIGEST_H

#include <stddef.h>
#include <stdint.h>
/* The state of a hash has no size in the header otherwise. */
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "ipc/base/ctl.h"
#include "transport/hash/leaf.h"
#include "transport/part/chunk.h"

#define DIGEST_LEAF_BYTES LEAF_BYTES
#define DIGEST_LEAVES_MAX (CHUNK_BYTES_MAX / DIGEST_LEAF_BYTES)

struct digest {
	XXH3_state_t leaf;   /* of the leaf that is begun and not whole */
	uint32_t leaf_bytes; /* of it so far */
	uint32_t num_leaves; /* finished */
	uint64_t leaves[DIGEST_LEAVES_MAX];
};

void digest_init(struct digest *digest);
/* At most CHUNK_BYTES_MAX bytes in all. */
void digest_update(struct digest *digest, const void *data, size_t bytes);
/*
 * Copies too, past the caches where leaves are whole. The digest is of what was stored in to, even
 * when somebody writes to from meanwhile: that is found as any other damage, by the digest.
 */
void digest_copy(struct digest *digest, void *to, const void *from, size_t bytes);
struct th_hash digest_final(struct digest *digest);

struct th_hash digest_of(const void *data, size_t bytes);

#endif
