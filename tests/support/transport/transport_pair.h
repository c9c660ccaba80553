/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_pair - a source and a reader in one process, each with a shard of the same shape, for
 * tests that hold over tcp and within a host alike. One thread; a failed check ends the test.
 */
#ifndef TH_TESTS_SUPPORT_TRANSPORT_TRANSPORT_PAIR_H
#define TH_TESTS_SUPPORT_TRANSPORT_TRANSPORT_PAIR_H

#include "tests/support/transport/transport_rig.h"

/* For tests in which a busy machine must not look like a stall. */
#define CALM_NS INT64_C(15000000000)

enum mode { MODE_TCP, MODE_LOCAL, MODE_RDMA };

/* Of pairs from now on: fake devices of each agent. */
extern uint32_t pair_rails;
extern uint64_t pair_mr_bytes; /* each takes so much at once; 0: no limit */
/* Which shards are not registered with them; a mask. */
enum pair_end { PAIR_SOURCE = 1 << 0, PAIR_READER = 1 << 1 };
extern unsigned pair_staged;

/* The test as suite_tcp and as suite_local; its body follows, and has `mode`. */
#define PAIR_TESTS(suite, name)                                                                    \
	PAIR_BOTH(suite, name)                                                                     \
	static void name(enum mode mode)
#define PAIR_BOTH(suite, name)                                                                     \
	static void name(enum mode mode);                                                          \
	Test(suite##_tcp, name)                                                                    \
	{                                                                                          \
		name(MODE_TCP);                                                                    \
	}                                                                                          \
	Test(suite##_local, name)                                                                  \
	{                                                                                          \
		name(MODE_LOCAL);                                                                  \
	}

struct pair {
	struct rig rig;
	struct rig_agent *source_agent, *reader_agent;
	struct rig_shard source, reader; /* bytes, and zeros */
	struct xfer_part *from, *to;     /* own; NULL until pair_parts */
	uint64_t leg;                    /* for the test: the last one */
};

struct pair *pair_new(const uint64_t *sizes, uint32_t count, int64_t stall_ns);
void pair_parts(struct pair *p, bool verify);
void pair_release(struct pair *p); /* the parts */
void pair_finish(struct pair *p);
void pair_move(
	struct pair *p, enum mode mode, uint64_t leg, struct xfer_part *from, struct xfer_part *to);
/* Leg 1 is stopped by its reader, fenced by its source or both, by the number of the round. */
void pair_cut(struct pair *p, uint32_t round);
/*
 * Legs one after the other: all but pair_done are of p->leg, which this one begins with new parts
 * in these kinds of memory.
 */
void pair_parts_of(struct pair *p, enum rig_memory from, enum rig_memory to, bool verify);
/* All of its source may be read; the digests are made without reading through what is tested. */
void pair_publish(struct pair *p);
/* The same, with digests that the source's agent makes. */
void pair_hash(struct pair *p);
void pair_go(struct pair *p, enum mode mode);
const struct transport_event *pair_wait(struct pair *p, enum transport_event_kind kind);

/* The reader's DONE, once it has come; both hold the same bytes then. */
const struct transport_event *pair_done(struct pair *p, uint64_t leg);

#endif
