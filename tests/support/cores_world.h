/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cores_world - agent cores and the server's core together, in virtual time: trainers publish and
 * unpublish, rollouts replicate and update, in groups of two shards on three hosts. Messages are
 * late, lost and repeated, hosts are cut off for a while, workers die, the server restarts empty.
 * One seed gives one run.
 *
 * cores_world.c carries messages and time; cores_shell.c is what surrounds a core: movers, workers
 * and their programs. The movers copy one chunk a millisecond behind the source's prefix and touch
 * memory as long as the core lets them. The oracle is the memory itself: a worker writes when it is
 * told that it may, and at that moment nothing may read; what arrived is what was published.
 */
#ifndef TH_TESTS_SUPPORT_CORES_WORLD_H
#define TH_TESTS_SUPPORT_CORES_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/agent.h"
#include "ipc/base/rng.h"
#include "server/core/refsrv.h"

#define MS INT64_C(1000000)
#define SEC (1000 * MS)
#define NODES 3u
#define GROUPS 5u /* the first two are trainers */
#define TRAINERS 2u
#define SHARDS 2u
#define CHUNKS 8u
#define LEGS_MAX 512u
#define WAITING_MAX 4096u
#define SEQS_MAX 4096u
#define NODE_INC(node) (UINT64_C(1000) + (node))

struct worker {
	uint32_t group, shard, node;
	uint64_t session; /* 0: none */
	enum { W_CLOSED, W_OPENING, W_REGISTERING, W_IDLE, W_BUSY, W_CLOSING } state;
	struct agent_line line;
	bool want_close;
	uint32_t step;          /* of the group's program */
	uint32_t kind;          /* of the operation that runs */
	struct th_version held; /* when it was submitted */
	int64_t next_ns;
	uint64_t buffer[CHUNKS];
	uint32_t prefix;
	bool part, hashing, hash_stopping;
	uint64_t gen;
};

struct group {
	struct worker workers[SHARDS];
	uint64_t first_version; /* of this incarnation */
	bool parted; /* its members may belong to different lives of the server's group */
	struct {
		bool seen;
		int code;
		uint64_t version;
	} outcomes[SEQS_MAX];
};

struct leg { /* a reader's mover, and what its source has of it */
	bool used, local, connected, over, stopped;
	uint64_t hello;
	uint32_t node;
	uint64_t leg, number;
	struct worker *to, *from;
	uint64_t to_gen, from_gen;
	uint32_t source_node;
	uint64_t out_leg;
	bool overwrote;
	int64_t stalled_until_ns; /* 0: moves */
};

enum item_kind { TO_SERVER, TO_AGENT };

struct item { /* something that happens later; owned by world.items */
	enum item_kind kind;
	int64_t due_ns;
	uint64_t order;
	uint32_t node;
	struct ctl_request request;
	struct ctl_leg_progress progress[64];
	uint64_t tag;
	bool unanswered; /* nobody waits for its reply */
	struct agent_event event;
	struct ctl_reply reply;
	struct ctl_event *events;
	struct item *next;
};

struct waiting {
	uint64_t token, tag;
	uint32_t node;
};

struct world {
	int64_t now_ns, server_next_ns;
	struct th_rng rng;
	struct refsrv *server;
	uint64_t server_inc, last_token, last_session, last_order, last_hello;
	struct agent *agents[NODES];
	int64_t agent_next_ns[NODES];
	int64_t cut_until_ns[NODES]; /* nothing passes between this agent and the server */
	struct group *groups;
	struct leg legs[LEGS_MAX];
	struct item *items;
	struct waiting waiting[WAITING_MAX];
	uint32_t num_waiting;
	uint32_t loss_percent, death_permille;
	bool stopping;
	/* What happened, so that a test can tell that it tried what it should. */
	uint64_t copies, partial_sources, fences, undrains, failed_legs;
	uint64_t next_version, updates, publishes, failures, given_up;
};

extern struct world world;

/* A new world: nothing is attached, nothing is open. */
void world_start(uint64_t seed);
/* One millisecond. */
void world_step(void);
/* The server is replaced by one that knows nothing. */
void world_restart_server(void);
/* This host and the server do not reach each other for a while. */
void world_cut(uint32_t node, int64_t ns);
/* The faults end, everybody closes: nothing may be left anywhere. Frees the world. */
void world_stop(void);

uint64_t world_chance(uint64_t bound);
/* An event for a core, a little later; the caller fills in the rest. */
struct agent_event *world_tell(uint32_t node, enum agent_event_kind kind, uint64_t session);
struct worker *world_worker(uint64_t session);
void world_send(uint32_t node, const struct agent_action *action);
/* Puts the manifest of this worker's shard at the server. */
void world_put(const struct worker *worker, struct th_hash *ret_key);

void shell_act(uint32_t node, const struct agent_action *action);
void shell_move(void);
void shell_worker_run(struct worker *worker);
void shell_group_open(struct group *group);
void shell_beat_legs(uint32_t node, struct item *item);

#endif
