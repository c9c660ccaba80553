/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv_world - a reference server and its agents without a network, for tests of the core.
 *
 * Each agent keeps one POLL standing and collects its events in an inbox, from which a test takes
 * them by kind and session. Every step is followed by refsrv_check. Time moves only in
 * world_sleep, in which agents that are not silent beat.
 */
#ifndef TH_TESTS_SUPPORT_CORE_REFSRV_WORLD_H
#define TH_TESTS_SUPPORT_CORE_REFSRV_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/ctl.h"
#include "ipc/base/err.h"
#include "server/core/refsrv.h"
#include "tests/support/core/core_check.h"

#ifndef WORLD_AGENTS_MAX /* a benchmark has more */
#define WORLD_AGENTS_MAX 16u
#endif
#define WORLD_CHUNKS 10u /* of every shard */
#define MS INT64_C(1000000)
#define SEC (1000 * MS)

struct world_agent {
	uint64_t inc, request_no, last_event, attach_no;
	uint64_t server_inc; /* attached to last */
	uint32_t epoch;
	char node[32];
	bool attached, silent; /* silent: no beats in world_sleep */
	uint64_t connection;   /* its requests come by it */
	bool deaf;             /* does not poll */
	bool polling;
	uint64_t poll_token;
	struct ctl_event *inbox;
	uint32_t num_inbox;
};

struct world {
	struct refsrv_config config;
	struct refsrv *server;
	int64_t now_ns, next_ns, beat_ns;
	uint64_t last_token, last_inc, last_connection;
	struct world_agent agents[WORLD_AGENTS_MAX];
	uint32_t num_agents;
	/* The reply to the last request; its pointers are copied into these. */
	struct ctl_reply reply;
	bool answered;
	bool spot;              /* of agents that attach */
	uint64_t offload_bytes; /* what such agents keep for copies of others */
	const char *retain;     /* rules that world_open and world_member bring; NULL: none */
	uint32_t flags;         /* CTL_OPEN_..., likewise */
	bool unchecked; /* no refsrv_check after each step: for what is measured */
	bool hash_late; /* world_outcome says nothing of what was published: world_content does */
};

/* A shard of a replica as a test drives it. */
struct world_member {
	uint32_t agent;
	uint32_t shard, num_shards;
	uint64_t sid, seq; /* seq: of the last operation called */
};

/* config NULL: the defaults. */
void world_init(struct world *w, const struct refsrv_config *config);
void world_fini(struct world *w);

/* A new agent, attached; returns its index. Its node is "node<index>" unless given. */
uint32_t world_agent(struct world *w);
uint32_t world_agent_in(struct world *w, const char *datacenter);
/* A new life of the same node: the code of ATTACH. */
int world_restart(struct world *w, uint32_t agent);
int world_attach(struct world *w, uint32_t agent, const char *datacenter);

/* Its connection ends; beats in world_sleep come by a new one. */
void world_gone(struct world *w, uint32_t agent);

/* Of the agent of this number, in all that it says. */
struct th_secret world_secret(uint64_t inc);
/* Sends; the reply is in w->reply, the code is returned. Fills agent and number. */
int world_request(struct world *w, uint32_t agent, struct ctl_request *request);
/* The same request once more, as after a lost reply. */
int world_repeat(struct world *w, uint32_t agent, const struct ctl_request *request);
void world_sleep(struct world *w, int64_t ns);

/* Takes the first such event out of the inbox; false: there is none. sid 0: of any session. */
bool world_take(struct world *w, uint32_t agent, enum ctl_event_kind kind, uint64_t sid,
	struct ctl_event *ret_event);
bool world_has(const struct world *w, uint32_t agent, enum ctl_event_kind kind, uint64_t sid);
/* The session an event is about; 0: none (FENCE, CHANGED). */
uint64_t world_event_sid(const struct ctl_event *event);

/* ---- requests ---- */
int world_open(struct world *w, uint32_t agent, const char *model, const char *replica,
	uint32_t shard, uint32_t num_shards, uint64_t lineage, uint64_t *ret_sid);
/* Opens a shard of model "m" for this launch, with lineage 1. */
int world_launch(struct world *w, uint32_t agent, const char *replica, uint32_t shard,
	uint32_t num_shards, const char *launch_id, uint64_t *ret_sid);
/* layout: any number; equal numbers are equal layouts. Puts the manifest first. */
int world_register(struct world *w, uint32_t agent, uint64_t sid, uint32_t layout);
/* The agent is asked for memory; and its answers. */
bool world_reserve(struct world *w, uint32_t agent, struct ctl_ev_reserve *ret_reserve);
int world_accept(struct world *w, uint32_t agent, const struct ctl_ev_reserve *reserve,
	struct world_member *ret_m);
int world_refuse(struct world *w, uint32_t agent, const struct ctl_ev_reserve *reserve);
/* It is asked, now or before. */
bool world_asked(const struct world *w, uint32_t agent);
/* The agent takes what it is asked for; aborts when it is not asked, or is refused. */
struct world_member world_accepts(struct world *w, uint32_t agent);
/* The last member of an offload copy is PREPARED and goes. */
struct ctl_grant world_filling(struct world *w, const struct world_member *m);
int world_put(
	struct world *w, uint32_t agent, const void *data, size_t bytes, struct th_hash *ret_key);
int world_op(struct world *w, uint32_t agent, uint64_t sid, uint64_t seq, enum ctl_op_kind kind,
	const char *spec, int64_t timeout_ns);
int world_prepared(struct world *w, const struct world_member *m, int code);
int world_leg_end(struct world *w, uint32_t agent, uint64_t leg, int code, bool source_failed,
	uint32_t chunks);
int world_drain_done(struct world *w, uint32_t agent, const struct ctl_ev_part *drain);
/* The agent has hashed what m holds: which bytes these are; 0: it makes no digests. */
int world_content(struct world *w, const struct world_member *m, uint64_t content);
int world_close(struct world *w, const struct world_member *m, bool died);
int world_cancel(struct world *w, const struct world_member *m);
int world_list(struct world *w, uint32_t agent, const char *model);
/* Of this replica of model "m", or of the offload copy under its name; 0: not listed. */
uint32_t world_flags(struct world *w, uint32_t agent, const char *replica, bool offload);

/* ---- whole exchanges; they abort when something else happens ---- */
/* Opens and registers; layout shard. lineage 1. */
struct world_member world_member(
	struct world *w, uint32_t agent, const char *replica, uint32_t shard, uint32_t num_shards);
/* The member's next operation; accepted. */
void world_call(struct world *w, struct world_member *m, enum ctl_op_kind kind, const char *spec,
	int64_t timeout_ns);
bool world_ended(const struct world *w, const struct world_member *m);
/* A publish that has succeeded is hashed at once: all publish the same bytes. */
struct ctl_ev_outcome world_outcome(struct world *w, const struct world_member *m);
void world_publish(struct world *w, struct world_member *m, const char *spec);
/* A group of one that holds this version. */
struct world_member world_published(
	struct world *w, uint32_t agent, const char *replica, const char *version);
/* Calls, takes PLAN, is PREPARED, takes GO: a one-shard group. */
struct ctl_grant world_begin(
	struct world *w, struct world_member *m, enum ctl_op_kind kind, const char *spec);
struct ctl_grant world_go(struct world *w, const struct world_member *m);
/* Its leg ends well. */
void world_finish(struct world *w, const struct world_member *m, uint64_t leg);
/* begin and finish and outcome 0. */
void world_replicate(struct world *w, struct world_member *m, const char *spec);
struct ctl_ev_part world_take_drain(struct world *w, const struct world_member *m);
/* Takes the DRAIN and answers that it is done. */
void world_drained(struct world *w, const struct world_member *m);
/* How often a sentence that has this in it is in the server's log. */
uint32_t world_logged(const struct world *w, const char *text);

#endif
