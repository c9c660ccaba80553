/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv_sim - the agents of the random test of the reference server: members, legs and outcomes as
 * they would know them, so that the server can be compared with it, and what events make of them.
 */
#ifndef TH_TESTS_SUPPORT_CORE_REFSRV_SIM_H
#define TH_TESTS_SUPPORT_CORE_REFSRV_SIM_H

#include "ipc/base/rng.h"
#include "tests/support/core/refsrv_reader.h"
#include "tests/support/core/refsrv_world.h"

#define AGENTS 5u
#define REPLICAS 5u
#define SHARDS_MAX 3u
#define RECENT 24u
#define OUTCOMES_MAX 8192u
#define LEGS_MAX 65536u

struct sim_part {          /* what an agent knows of one member's memory */
	uint64_t gen;      /* 0: nothing */
	uint64_t next_gen; /* being filled */
	bool giving_up, drained;
	uint64_t drain_no, drain_gen; /* a DRAIN that waits for its proof */
	uint64_t content;             /* which bytes; 0: none yet */
	bool hash_due;                /* published, and the server has not been told which bytes */
	bool drain_due;
};

struct sim_member {
	bool open, closed, pending, prepare_due, cancelling;
	bool done; /* this operation's leg has ended well */
	uint32_t replica, shard;
	struct world_member m;
	uint64_t group_inc;
	uint64_t leg; /* the running one */
	struct sim_part part;
};

struct sim_leg {
	bool active; /* the reader runs it */
	bool served; /* the source serves it: not fenced, its part not lost */
	uint64_t id, src_sid, src_gen;
	uint32_t reader_agent, src_agent;
	uint64_t dst_sid;
	uint32_t chunks;
};

struct outcome {
	uint64_t group_inc, seq;
	int code;
	bool updated;
	struct th_version version;
};

struct sim {
	struct world w;
	struct reader reader;
	struct th_rng rng;
	bool faults;
	uint32_t num_shards[REPLICAS];
	struct sim_member members[REPLICAS][SHARDS_MAX];
	struct sim_leg legs[LEGS_MAX];
	uint64_t num_legs;
	struct outcome outcomes[OUTCOMES_MAX];
	uint32_t num_outcomes;
	struct {
		uint32_t agent;
		struct ctl_request request;
		int code;
	} recent[RECENT];
	uint32_t num_recent;
	uint64_t counts[32], updated, rerouted, fenced, cancelled, drained, deaths, conflicts;
	/* Members that have closed: their parts may still be read and drained. */
	struct sim_member *ghosts;
	uint32_t num_ghosts;
};

extern struct sim *sim; /* the one that runs; the test owns it */

bool sim_chance(uint32_t percent);
bool sim_fault(uint32_t permille); /* false without faults */

/* The code; it may be sent again later, by sim_repeat_one. */
int sim_send(uint32_t agent, struct ctl_request *request);
void sim_repeat_one(void);

/* NULL: there is none. */
struct sim_member *sim_find_member(uint64_t sid);
struct sim_leg *sim_find_leg(uint64_t id);
bool sim_is_read(uint64_t sid, uint64_t gen);
void sim_unserve(uint64_t sid, uint64_t gen);
/* Of shards that are the same in all replicas: which bytes a member has. */
struct th_hash sim_hash_of(const struct sim_member *member);
/* The reader's agent says so. */
void sim_end_leg(struct sim_leg *leg, int code, bool source_failed);
/* An agent takes at most so many of the events that wait for it, and does what they ask. */
void sim_handle_events(uint32_t index, uint32_t most);

#endif
