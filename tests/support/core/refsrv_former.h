/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv_former - agents that come from a server life that is over, and what they say of it.
 *
 * former_shard makes a REJOIN of one shard that is registered and holds nothing; a test changes
 * what it is about. Numbers are as that life would have given them: former_id.
 */
#ifndef TH_TESTS_SUPPORT_CORE_REFSRV_FORMER_H
#define TH_TESTS_SUPPORT_CORE_REFSRV_FORMER_H

#include "tests/support/core/refsrv_world.h"

#define FORMER_EPOCH 6u
#define FORMER_LEG(N) former_id(1000000 + (N))

/* The number n of that life; a replica's are those of its first letter. */
uint64_t former_id(uint64_t n);
/* An agent that was attached to it attaches; its inventory is not complete before former_said. */
uint32_t former_agent(struct world *w);
int former_said(struct world *w, uint32_t agent, uint32_t count);
/* A world with three of them; ret_c NULL: with two. */
void former_world(struct world *w, uint32_t *ret_a, uint32_t *ret_b, uint32_t *ret_c);
/* All have said what there is, and nothing more is waited for. */
void former_all_said(struct world *w);

/* replica: told apart by its first letter. Of model "m". */
struct ctl_rejoin former_shard(const char *replica, uint32_t shard, uint32_t num_shards);
/* It holds this version since operation 1, and all of that is hashed and alike. */
struct ctl_rejoin former_holds(
	const char *replica, uint32_t shard, uint32_t num_shards, uint64_t version);
/* It fills this version in operation 1 by a leg of this number, from a shard of source. */
struct ctl_rejoin former_fills(const char *replica, uint32_t shard, uint32_t num_shards,
	uint64_t version, uint64_t leg, const char *source);
/* The code of REJOIN. */
int former_rejoin(struct world *w, uint32_t agent, const struct ctl_rejoin *said);
/* It succeeds: the member, whose last operation is the one before next_op_seq. */
struct world_member former_back(struct world *w, uint32_t agent, const struct ctl_rejoin *said);

/* Its leg ends well, and these are the bytes: those that former_holds has are 1; 0: no digests. */
void former_finish(struct world *w, const struct world_member *m, uint64_t leg, uint64_t content);

/* The version is in the listing. */
bool former_listed(struct world *w, uint64_t version);
/* It was told that its group is broken by the loss of the server; taken: and why. */
bool former_is_broken(const struct world *w, const struct world_member *m);
void former_broken(struct world *w, const struct world_member *m, const char *why);

#endif
