/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reuse - chunks that need not move, because the destination has their bytes already: frozen
 * layers, experts that were not touched, a replica that missed nothing.
 *
 * The only evidence is a digest of what lies in the memory now: it is hashed within the leg, after
 * the memory was drained, and compared with the publisher's. What was there before, and what its
 * digests were, proves nothing: its worker may have written to it since.
 *
 * Hashing costs time that is lost when the bytes differ, so it is done where it may pay. A tensor
 * is mostly changed as a whole, so after a chunk that differs the rest of its tensor is fetched
 * unseen; and chunks that differ are paid for: 4 are free, each one that is equal buys another, and
 * one of 32 chunks is looked at in any case. When nothing is equal, which is what a training step
 * leaves, that is 3 % of the bytes hashed: a leg within a host is then 0.96 times as fast, over TCP
 * it is not seen (reuse_bench). One of 16 would cost twice that, and find what is equal behind much
 * that is not 64 MiB sooner.
 *
 * Pure; guarded by the intake's lock.
 */
#ifndef TH_TRANSPORT_REUSE_H
#define TH_TRANSPORT_REUSE_H

#include <stdbool.h>
#include <stdint.h>

struct reuse {
	bool on;
	uint32_t seen; /* chunks about which it was asked and had no reason to say no */
	uint32_t equal, different;
	uint32_t row;   /* of the last chunk that differed; UINT32_MAX: none */
	uint64_t bytes; /* of those that were equal */
};

void reuse_init(struct reuse *reuse, bool on);
/* Whether to hash the chunk that begins in this row. */
bool reuse_pays(const struct reuse *reuse, uint32_t row);
/* A chunk is fetched without a look. */
void reuse_pass(struct reuse *reuse);
void reuse_judge(struct reuse *reuse, uint32_t row, bool equal, uint64_t bytes);

#endif
