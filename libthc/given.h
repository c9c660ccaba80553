/* SPDX-License-Identifier: Apache-2.0 */
/*
 * given - the memory that the agent of a session was given: each object once, with a descriptor or
 * a handle, by a serial of this process; what the agent calls it by is its answer.
 *
 * Thousands of pieces of GPU memory are sent ahead of the answers: a turn for each would take
 * longer than all the rest. Answers come in order. All under the lock of the handle, which is given
 * back while one waits; one sender of a handle at a time (shard_exclusive_begin).
 */
#ifndef TH_LIBTHC_GIVEN_H
#define TH_LIBTHC_GIVEN_H

#include "libthc/libthc_own.h"

struct sent_memory {
	uint64_t serial; /* of the memory object, see own_memory.h; or PRIVATE_SERIAL */
	uint32_t id;     /* by the agent */
	char path[16];   /* "direct", "copy", "cuda-ipc" */
};

/* NULL: it was not given. Until the next one is sent or forgotten. */
const struct sent_memory *sent_find(const struct thc_shard *shard, uint64_t serial);

struct sender {
	struct thc_shard *shard;
	int64_t until_ns;
	bool tolerant; /* what the agent refuses is no failure, and failure tells of it */
	uint32_t first_token, sent, answered, wanted;
	bool enough; /* as many as wanted were answered */
	bool failed;
	struct fdmsg_memory_id failure; /* the first one */
	uint64_t serials[FDMSG_AHEAD];
};

void sender_begin(struct sender *sender, struct thc_shard *shard, int64_t until_ns);
/*
 * body begins with its token, which is filled in here. fd: borrowed; NULL: none. 0, or a code with
 * a sentence, maybe of what was sent before.
 */
TH_MUST_USE int sender_send(struct sender *sender, uint64_t serial, enum fdmsg_kind kind,
	void *body, size_t body_bytes, const int *fd);
/* After rc, of the last sender_send: waits for the rest unless it failed. Always to be called. */
TH_MUST_USE int sender_end(struct sender *sender, int rc);

#endif
