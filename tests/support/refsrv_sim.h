/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv_sim - what the random test of the reference server remembers: agents, members, legs and
 * outcomes as they would know them, so that the server can be compared with it.
 */
#ifndef TH_TESTS_SUPPORT_REFSRV_SIM_H
#define TH_TESTS_SUPPORT_REFSRV_SIM_H

#include "ipc/base/rng.h"
#include "tests/support/refsrv_reader.h"
#include "tests/support/refsrv_world.h"

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

#endif
