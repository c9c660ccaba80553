/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaf - XXH3-64 (seed 0) of 64 KiB leaves, as fast as the memory delivers them, and copies that
 * are hashed on the way.
 *
 * The values are those of any XXH3; only how they are computed is chosen at run time. With AVX2
 * four leaves that lie behind each other are read at once: one leaf alone is one stream of reads,
 * and memory gives one core more when asked at several places. Measured on a Xeon (Sapphire Rapids)
 * with two threads and 1 GiB: 1.3 times what the library's dispatching symbol makes, which is 2
 * times its plain one; in cache all three vector widths are the same. AVX-512 gained nothing over
 * AVX2 in any of it, so there is no such build.
 *
 * Pure; any thread. A call may be left by a jump (sigbus.h): nothing is held.
 */
#ifndef TH_TRANSPORT_HASH_LEAF_H
#define TH_TRANSPORT_HASH_LEAF_H

#include <stdbool.h>
#include <stdint.h>

#define LEAF_BYTES (64u << 10)

void leaf_hash(const void *data, uint32_t count, uint64_t *ret_values);
/*
 * Copies the leaves too. The values are of the bytes that were stored, even when somebody else
 * writes to the source meanwhile. What was stored is ordered before later stores.
 */
void leaf_copy(void *to, const void *from, uint32_t count, uint64_t *ret_values);

/* How it is done here: "avx2", "dispatch" (the library chooses), "plain". */
const char *leaf_kind(void);
/* Tests: do as on a CPU without AVX2, or again as this one can. Not while others hash. */
void leaf_force_plain(bool plain);

#endif
