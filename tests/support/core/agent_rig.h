/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_rig - one agent core and a server that does what a test says, in virtual time.
 *
 * The rig answers every request with success unless it is told to hold or refuse a kind, keeps
 * what was sent and what was done since rig_clear, and hands events to the standing POLL. Every
 * step is followed by agent_check.
 */
#ifndef TH_TESTS_SUPPORT_CORE_AGENT_RIG_H
#define TH_TESTS_SUPPORT_CORE_AGENT_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/agent_core.h"
#include "ipc/base/err.h"

#define MS INT64_C(1000000)
#define SEC (1000 * MS)
#define RIG_INC UINT64_C(0xa9e17) /* of the agent under test */
#define RIG_LAYOUT ((struct th_hash){.lo = 7, .hi = 7})
#define RIG_CHUNKS 10u

struct rig_sent {
	uint64_t tag;
	enum agent_channel channel;
	struct ctl_request request;
	bool answered;
};

struct rig {
	struct agent_core *agent;
	int64_t now_ns, next_ns;
	uint64_t server_inc, attach_no, last_sid, last_event, queued;
	char cluster[8];              /* of the server: none; of the agent: "red" */
	bool fresh;                   /* what the next ATTACH is told */
	bool mute;                    /* nothing is answered, nothing is delivered */
	bool cut;                     /* everything gets NO_REPLY */
	bool hangs_up;                /* NO_REPLY says that its connection ended */
	uint32_t num_shards;          /* of the groups that are opened: 1 */
	uint32_t shard;               /* of the sessions that are opened: 0 */
	bool unmapped;                /* what is registered: movers reach it by calls only */
	bool unknown;                 /* everything but HELLO and ATTACH: who are you? */
	const char *retain;           /* rules of what is opened; NULL: none */
	uint32_t held;                /* mask of 1 << kind: not answered until rig_answer */
	int refused[32];              /* by kind: answered with this code */
	uint64_t generation;          /* told to WATCH */
	uint64_t group_inc;           /* told to REJOIN */
	struct ctl_admin_reply admin; /* told to ADMIN; "empty" */
	struct rig_sent *sent;
	uint32_t num_sent;
	struct agent_action *actions;
	uint32_t num_actions;
	struct ctl_event *events; /* not acknowledged yet */
	uint32_t num_events;
	bool raw; /* the next POLL gets them all, acknowledged or not */
};

void rig_init(struct rig *rig); /* not attached */
/* What rig_init makes from now on is an agent whose sessions end with their server. */
void rig_reset_at_loss(void);
void rig_fini(struct rig *rig);
void rig_step(struct rig *rig, const struct agent_event *event);
void rig_tick(struct rig *rig);
/* Lets time pass in the steps that the core asks for. */
void rig_sleep(struct rig *rig, int64_t ns);
void rig_clear(struct rig *rig); /* forgets actions, and requests that were answered */
/* Answers what is held of this kind. */
void rig_answer(struct rig *rig, enum ctl_request_kind kind);
/* Delivers an event of the server. */
void rig_event(struct rig *rig, struct ctl_event event);
/* Delivers it under this number, as if it were lost and sent again. */
void rig_event_numbered(struct rig *rig, const struct ctl_event *event, uint64_t number);

/* What was done since rig_clear. */
uint32_t rig_count(const struct rig *rig, enum agent_action_kind kind);
/* The last one; fails the test when there is none. */
const struct agent_action *rig_last(const struct rig *rig, enum agent_action_kind kind);
/* The position of the last one, to compare orders; -1: none. */
int rig_at(const struct rig *rig, enum agent_action_kind kind);
/* Distinct requests (repeats count once) since rig_clear, and the last one. */
uint32_t rig_requests(const struct rig *rig, enum ctl_request_kind kind);
const struct ctl_request *rig_request(const struct rig *rig, enum ctl_request_kind kind);
uint32_t rig_sendings(const struct rig *rig, enum ctl_request_kind kind);

/* ---- scripts ------------------------------------------------------------------------- */

void rig_attach(struct rig *rig);
void rig_hang_up(struct rig *rig); /* the server does, and answers no more */
void rig_back(struct rig *rig);    /* it answers again, and is attached to */
/* Another server, which knows nothing; what is told to it is kept. */
void rig_lost(struct rig *rig);
uint64_t rig_open(struct rig *rig, uint64_t session);  /* opened; returns its sid */
uint64_t rig_ready(struct rig *rig, uint64_t session); /* opened and registered; returns its sid */
void rig_submit(struct rig *rig, uint64_t session, uint32_t slot, uint32_t kind, const char *spec,
	int64_t timeout_ns);
void rig_session(struct rig *rig, uint64_t session, enum agent_event_kind kind);
/* The end of the operation in the slot, or fails the test. */
const struct agent_action *rig_complete(const struct rig *rig, uint64_t session, uint32_t slot);

struct ctl_event rig_plan(uint64_t sid, uint64_t op_seq, bool drain_old);
struct ctl_event rig_go(uint64_t sid, uint64_t op_seq, uint64_t leg);
struct ctl_event rig_reroute(uint64_t sid, uint64_t op_seq, uint64_t old_leg, uint64_t leg);
struct ctl_event rig_grant(uint64_t sid, uint64_t gen, uint64_t leg);
struct ctl_event rig_drain(uint64_t sid, uint64_t gen, uint64_t drain_no);
struct ctl_event rig_undrain(uint64_t sid, uint64_t gen);
struct ctl_event rig_outcome(uint64_t sid, uint64_t op_seq, int code, uint64_t version);
struct th_ticket rig_ticket(uint64_t leg);
void rig_leg(struct rig *rig, enum agent_event_kind kind, uint64_t leg, int code);
void rig_out(struct rig *rig, enum agent_event_kind kind, uint64_t leg);
void rig_hashed(struct rig *rig, enum agent_event_kind kind, uint64_t session, uint64_t gen);

/* ---- copies in the agent's own memory: shard of 2 of version 17 of m, replica r ---------- */

#define RIG_RESERVATION UINT64_C(77)
#define RIG_MEMORY UINT64_C(9) /* the number that the shell gives the new session */

struct ctl_event rig_reserve(uint64_t reservation, uint32_t shard);
void rig_release(struct rig *rig, uint64_t reservation, uint32_t shard, uint64_t sid);
/* What the shell answers. */
void rig_reserved(struct rig *rig, uint64_t id, uint64_t session, int code);
/* Shard 1 of RIG_RESERVATION is RIG_MEMORY, and registered at the server; returns its sid. */
uint64_t rig_offload(struct rig *rig);
struct ctl_event rig_offload_plan(uint64_t sid);
uint64_t rig_offload_filling(struct rig *rig, uint64_t sid); /* planned to GO; returns the leg */
uint64_t rig_offload_filled(struct rig *rig);                /* all of it; returns its sid */

/* ---- copies in the memory of workers ------------------------------------------------------ */

/* Publishes; returns gen. */
uint64_t rig_publish(struct rig *rig, uint64_t session, uint64_t sid, const char *version);
/* Publishes, and all is hashed; rig_clear; returns gen. */
uint64_t rig_hold(struct rig *rig, uint64_t session, uint64_t sid, const char *version);
/* A reader at the published part: GRANT and OUT_BEGAN; returns the core's number of the leg. */
uint64_t rig_reader(struct rig *rig, uint64_t sid, uint64_t gen, uint64_t leg);
/* replicate up to GO; returns the core's number of the leg in. */
uint64_t rig_filling(
	struct rig *rig, uint64_t session, uint64_t sid, uint64_t op_seq, uint64_t leg);

#endif
