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
 * Looks of which the outcome is not known yet count as if they had found a difference. So they are
 * few at first, and the more the more are equal. What comes of them is worth a wait, but for those
 * one of 32: there, nothing was equal for long. Chunks of one tensor that were looked at together
 * count as one difference: they come in the order of the tensors, but for a few.
 *
 * Pure; guarded by the ledger's lock.
 */
#ifndef TH_TRANSPORT_LEG_REUSE_H
#define TH_TRANSPORT_LEG_REUSE_H

#include <stdbool.h>
#include <stdint.h>

struct reuse {
	bool on;
	uint32_t seen;             /* chunks about which it was asked and had no reason to say no */
	uint32_t equal, different; /* the latter of tensors */
	uint32_t row;              /* the last one of which a chunk differed; UINT32_MAX: none */
	uint64_t bytes;            /* of those that were equal */
};

void reuse_init(struct reuse *reuse, bool on);
/* Whether to hash the chunk that begins in this row, while so many others are being looked at. */
bool reuse_pays(const struct reuse *reuse, uint32_t row, uint32_t under_way);
/* Where it may pay, but for those: not to fetch the chunk before they are known. */
bool reuse_waits(const struct reuse *reuse, uint32_t row);
/* A chunk is fetched without a look. */
void reuse_pass(struct reuse *reuse);
void reuse_judge(struct reuse *reuse, uint32_t row, bool equal, uint64_t bytes);

#endif
