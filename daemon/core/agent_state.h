/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_state - everything the agent core knows, and who owns what.
 *
 *   agent > session: one handle of one worker > call (its group operation), watches, part, inbound
 *         > lane: requests to the server that must keep their order > request
 *         > part: the content of a session at one generation > outbound (a peer that reads it)
 *         > link: attachment to the server; models (watched listings)
 *
 * Every object is owned by the field named beside it; all other pointers are borrowed, and whoever
 * frees an object clears them. Functions of the core have the prefix ac_ when they are not in
 * agent_core.h: the shell, and in tests the server's core, live in the same binary. One thread, no
 * I/O.
 */
#ifndef TH_DAEMON_CORE_AGENT_STATE_H
#define TH_DAEMON_CORE_AGENT_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/agent_core.h"
#include "ipc/base/ctl.h"
#include "ipc/base/err.h"
#include "ipc/base/retain_rules.h"
#include "ipc/base/sim.h"
#include "ipc/base/tables.h"

struct session;
struct part;
struct request_lane;

/* ---- the server ------------------------------------------------------------------------------ */

struct request {                   /* owned by a lane, or a field of link */
	struct ctl_request ctl;    /* request_no 0: never sent                                  */
	int64_t op_deadline_ns;    /* OP, CLOSE: what is left of it is told when it is first sent */
	uint64_t tag;              /* of the last time it was sent                              */
	uint64_t attach_no;        /* under which attachment it was sent last                   */
	bool flying;               /* sent, and neither answered nor given up                   */
	int64_t sent_ns;           /* when it flies                                             */
	int64_t retry_ns;          /* else: not before                                          */
	int64_t backoff_ns;        /* what the next failure costs                               */
	struct request_lane *lane; /* NULL: a field of link                                     */
	struct request *prev, *next;
};

struct request_lane {            /* requests in order, one in flight; owned by agent.lanes */
	struct session *session; /* NULL: it has outlived its session, or is agent.misc      */
	struct request *queue;
	struct ctl_open open;    /* of its session                                              */
	uint64_t sid, group_inc; /* as a server numbered them; 0: not opened                   */
	/* How its operations ended, oldest first; owns: TH_OUTCOMES_MAX (agent_rejoin.c). */
	struct ctl_known_outcome *outcomes;
	uint32_t num_outcomes;
	/* Of the last that the server has begun by itself (follower.c); op_seq 0: none. */
	struct ctl_known_outcome automatic;
	bool died; /* how the session ended, when its OPEN is still unanswered               */
	struct request_lane *prev, *next;
};

enum link_phase { LINK_HELLO = 1, LINK_ATTACH, LINK_UP };

struct link {
	enum link_phase phase;
	bool attached;        /* as told to the shell: up, and not silent                  */
	uint64_t server_inc;  /* 0: never attached                                         */
	uint32_t epoch;       /* of the server, the highest that was accepted              */
	uint64_t attach_no;   /* as the server numbers it: every request carries it        */
	uint64_t attach_tag;  /* the last tag before it: answers up to it say nothing      */
	uint64_t life;        /* counts those at which the server knew nothing of us       */
	bool rejoined_due;    /* the sessions are being announced to it: REJOINED ends that    */
	uint64_t hung_up_tag; /* the last tag when the server hung up                      */
	uint64_t last_event;  /* number of the last event that was acted upon              */
	int64_t heard_ns;     /* the last reply                                            */
	int64_t beat_ns;      /* when the next BEAT is due                                 */
	struct request setup; /* HELLO or ATTACH                                           */
	struct request poll, beat;
	char reason[TH_CTL_TEXT_BYTES]; /* why not attached, as last told                    */
};

/* ---- what is held, and who reads it ---------------------------------------------------------- */

enum outbound_state { OUTBOUND_GRANTED = 1, OUTBOUND_SERVING, OUTBOUND_FENCING };

struct outbound {     /* leg out; owned by agent.outbounds */
	uint64_t leg; /* our number                                                         */
	uint64_t number, life; /* the server's number, and in which of its lives             */
	struct part *part;
	struct th_ticket ticket;
	enum outbound_state state;
	bool far; /* its reader is in another datacenter                                     */
	bool stalled;
	int64_t granted_ns;
	struct outbound *prev, *next;             /* in part.outbounds                        */
	struct outbound *grant_prev, *grant_next; /* in agent.grants while GRANTED            */
	UT_hash_handle hh;
};

enum part_state { /* of its bytes */
	PART_NONE = 0,
	PART_FILLING,
	PART_FULL, /* every byte is there                                                    */
	PART_HELD, /* full, and its operation has committed                                   */
};

enum part_drain { /* why it takes no new readers; several at once                          */
	DRAIN_SERVER = 1,   /* DRAIN of the server                                         */
	DRAIN_PLAN = 2,     /* PLAN with drain_old                                         */
	DRAIN_LOCAL = 4,    /* no server is asked: broken, failed, or closing without one  */
	DRAIN_HOPELESS = 8, /* it will never be full, or hashed: nobody can finish here    */
};

enum digests_state {
	DIGESTS_NONE = 0, /* it was received; or their making was stopped                  */
	DIGESTS_MAKING,
	DIGESTS_STOPPING,
	DIGESTS_OVERTAKEN, /* they were made before the word to stop arrived               */
	DIGESTS_MADE,
};

struct part { /* owned by session.part; agent_part.c has the ways of its states */
	struct session *session;
	uint64_t gen;
	enum part_state state;      /* written by ac_part_enter                              */
	enum digests_state digests; /* likewise by digests_enter                             */
	uint32_t drains;            /* enum part_drain, by ac_part_drain_for and its reverse */
	bool published;             /* its digests are made here: as it was born             */
	bool refused;               /* others had published other bytes before: in any state */
	bool drain_answered;        /* of DRAIN_SERVER: the proof was given                  */
	uint64_t drain_no;
	struct th_hash content;    /* once hashed, or filled; none: no digests are made      */
	struct th_hash attributes; /* published with it                                      */
	struct outbound *outbounds;
	uint32_t num_running; /* outbounds not GRANTED                                       */
	uint32_t num_copies;  /* inbounds of this agent that read it: as source, or as donor  */
};

enum stop_reason {
	STOP_NONE = 0,
	STOP_REROUTE,     /* another source was named                                        */
	STOP_SOURCE_GONE, /* a copy within the host whose source is being given up           */
	STOP_CANCEL,      /* the operation is over, or the session closes                    */
};

struct inbound {      /* leg in; owned by session.in and found by agent.inbounds */
	uint64_t leg; /* our number                                                          */
	uint64_t life;
	struct session *session;
	struct ctl_grant grant;
	struct part *source; /* a copy within the host                                       */
	struct part *donor;  /* else: a held version with some of the same chunks, or NULL    */
	bool donor_dropped;  /* the movers were told to leave it                              */
	bool prefetched;     /* of a copy of the agent's own that was whole when it began    */
	enum stop_reason stop;
	UT_hash_handle hh;
};

/* ---- sessions -------------------------------------------------------------------------------- */

struct order { /* a submission that has been checked */
	uint32_t slot, kind, flags;
	char spec[TH_SPEC_MAX + 1];
	struct th_hash attributes; /* publish                                                */
	int64_t submitted_ns, deadline_ns;
};

enum call_state { /* in this order: see ac_call_waits and its neighbours */
	CALL_NONE = 0,
	CALL_ASKED,       /* OP is to be sent, or is on its way                              */
	CALL_ASKED_AGAIN, /* asked, and a former server may have told others                */
	CALL_ACCEPTED,    /* the server has it                                               */
	CALL_PLANNED,     /* what is held is being drained                                   */
	CALL_EXPLAINING,  /* the plan has another layout: the shell says where they differ   */
	CALL_PREPARED,    /* PREPARED was sent                                               */
	CALL_DECIDED,     /* it has its outcome, and had no GO                               */
	CALL_RUNNING,     /* GO: from here on bytes may be overwritten                       */
	CALL_FILLED,      /* LEG_END(0) was sent                                             */
	CALL_CANCELLED,   /* CANCEL of the server: the OUTCOME will be a failure             */
	CALL_ENDING,      /* its outcome is acted upon when nothing runs any more            */
};

struct call {                  /* the group operation of a session; how it goes on: call.c */
	enum call_state state; /* written by ac_call_enter                                   */
	bool ghost;            /* its worker was answered, the server may still know it: ghost.c  */
	bool cut;              /* a ghost by a close: nothing may be concluded from what is held */
	bool cancel_sent;      /* in any state before GO: once is enough                          */
	bool overwrote;        /* by any of its legs: should it fail, the handle is dirty         */
	bool has_next;         /* there is a leg to start when the running one has stopped        */
	struct order order;
	uint64_t op_seq;
	struct request *request; /* OP, until it is answered; borrows                        */
	struct ctl_ev_plan plan;
	uint32_t prefix; /* verified chunks                                                  */
	struct ctl_grant next;
	struct th_hash content; /* of what is read, as its publisher says; none: not known   */
	struct ctl_ev_outcome outcome;
	struct agent_result result;
};

/* Nothing has changed yet, and nobody has decided. */
static inline bool
ac_call_waits(const struct call *call)
{
	return call->state != CALL_NONE && call->state <= CALL_PREPARED;
}

/* The server has begun it by itself: see follower.c. */
static inline bool
ac_call_automatic(const struct call *call)
{
	return call->state != CALL_NONE && ctl_op_automatic(call->op_seq);
}

static inline bool
ac_call_went(const struct call *call)
{
	return call->state >= CALL_RUNNING;
}

static inline bool
ac_call_decided(const struct call *call)
{
	return call->state == CALL_DECIDED || call->state == CALL_ENDING;
}

struct watch { /* owned by session.watches */
	uint32_t slot;
	uint64_t generation; /* wait until there is a higher one                             */
	int64_t deadline_ns;
	struct watch *prev, *next;
};

struct model { /* owned by agent.models; exists while a session names it */
	char name[TH_NAME_MAX + 1];
	uint32_t num_sessions;
	bool known; /* the server has said the generation, and will say when it changes      */
	bool asked; /* WATCH is on its way                                                   */
	uint64_t generation;
	uint64_t early; /* a newer one, said before the answer to WATCH */
	/* What is retained of it anywhere, as a server said last; it outlives that server. */
	struct th_retain rules;
	struct th_retain shared; /* those of them that more than one group claims            */
	bool rules_all;          /* every version                                            */
	struct th_version go;    /* followers may go up to it; none: a server has not said   */
	UT_hash_handle hh;
};

enum session_state { /* written by ac_session_enter (handle.c) */
	SESSION_NONE = 0,
	SESSION_OPENING,
	SESSION_OPEN,
	SESSION_CLOSING,
	SESSION_CLOSING_UNASKED, /* its worker waits for no end: we ended it, or had to refuse */
};

enum tensors_state { /* written by ac_tensors_enter (handle.c), in this order */
	TENSORS_NONE = 0,
	TENSORS_REGISTERING,
	TENSORS_REGISTERED,
	TENSORS_UNREGISTER_WAITS, /* until the server knows that nothing is held                */
	TENSORS_UNREGISTERING,
};

enum alone_state { /* written by ac_alone_enter (alone.c) */
	ALONE_NOT = 0,
	ALONE_DRAINS, /* an unpublish is being ended without the server                         */
	ALONE_UNTOLD, /* that unpublish has ended: the server is told before all else           */
};

enum at_server { /* what the server that we are attached to knows of the handle */
	AT_SERVER_NOT = 0,
	AT_SERVER_REJOINING, /* it is being told: REJOIN is in its lane                         */
	AT_SERVER_KNOWN,
};

enum worker_state { /* in this order: it only becomes worse */
	WORKER_THERE = 0,
	WORKER_LOST,        /* nobody is there to be answered                                   */
	WORKER_MEMORY_GONE, /* and nobody can read its own memory any more                      */
};

enum close_reply { CLOSE_UNANSWERED = 0, CLOSE_TAKEN, CLOSE_REFUSED }; /* to the last CLOSE */

struct session { /* owned by agent.sessions */
	uint64_t id;
	enum session_state state;
	struct ctl_open open;
	struct model *model;
	struct request_lane *lane;
	enum at_server at_server;
	uint64_t sid;
	uint64_t next_op_seq;

	int broken_code; /* TH_E_GROUP_BROKEN or TH_E_EVICTED: the group is broken, and why   */
	char broken_text[TH_CTL_TEXT_BYTES];

	enum tensors_state tensors;
	bool used;  /* its tensors were a part before, whatever is held now                    */
	bool dirty; /* a failed operation has overwritten some: lasts until another fills them */
	struct ctl_register reg;
	bool mapped; /* all of what is registered                                             */
	struct th_hash attributes;      /* of the next publish                                    */
	struct th_hash kept_attributes; /* of what was filled last: the shell has them       */

	struct call call;
	/* Starts when the ghost, or the automatic one, in call has ended; kind 0: there is none. */
	struct order pending;
	char follows[TH_SPEC_MAX + 1]; /* its group takes versions by itself; empty: it does not  */
	struct ctl_ev_plan due; /* of an automatic one that waits for a call's end; op_seq 0 */
	enum alone_state alone;
	struct watch *watches;
	struct part *part;
	struct inbound *in;
	struct th_version held;
	uint16_t num_broken, num_evicted;
	/* As last told. Before that nothing can be mutated, which no open handle begins with. */
	struct agent_line line;
	uint16_t num_conflict, num_at_risk, num_updated, num_follow_failed;
	/* As the server that knows it said last. What of it the worker may believe: handle.c. */
	struct th_version ready;
	uint16_t num_ready;

	uint16_t num_contract; /* not 0: ended by us; its worker's close is waited for, and why */
	char ended_text[TH_CTL_TEXT_BYTES];
	enum worker_state worker;
	bool unwanted;            /* no worker has opened it, and it is of no use: in any state   */
	bool abandon;             /* its worker takes no refusal: a second close may say so first */
	bool close_final;         /* the last CLOSE takes none: also for reasons of our own       */
	int64_t closing_ns;       /* since its worker has closed, the last time, or died          */
	int64_t close_timeout_ns; /* of the worker's close                                        */
	enum close_reply close_reply;
	int64_t close_answered_ns;
	UT_hash_handle hh;
};

/* Asked for by its worker or not. */
static inline bool
ac_closing(const struct session *session)
{
	return session->state >= SESSION_CLOSING;
}

/* The server that we are attached to knows it, or is being told. */
static inline bool
ac_known(const struct session *session)
{
	return session->at_server != AT_SERVER_NOT;
}

/*
 * A member of nothing: it watches, and the shell asks for lists and manifests on its behalf. The
 * server knows nothing of it, so nothing that befalls groups or servers ends it.
 */
static inline bool
ac_observer(const struct session *session)
{
	return session->open.replica[0] == '\0';
}

static inline bool
ac_broken(const struct session *session)
{
	return session->broken_code != 0;
}

static inline bool
ac_ended(const struct session *session)
{
	return session->num_contract != 0;
}

static inline bool
ac_lost(const struct session *session)
{
	return session->worker != WORKER_THERE;
}

/* An order waits for the end of the ghost in call. */
static inline bool
ac_pending(const struct session *session)
{
	return session->pending.kind != 0;
}

static inline bool
ac_registered(const struct session *session)
{
	return session->tensors >= TENSORS_REGISTERED;
}

/* They are being unregistered, or are to be. */
static inline bool
ac_tensors_go(const struct session *session)
{
	return session->tensors > TENSORS_REGISTERED;
}

/* A call to register or to unregister has not ended. */
static inline bool
ac_tensors_change(const struct session *session)
{
	return session->tensors == TENSORS_REGISTERING || ac_tensors_go(session);
}

struct leave { /* see leave.c */
	bool begun, done;
	bool asked; /* the question is on its way */
	int64_t deadline_ns, next_ns;
	uint32_t num_blockers, num_texts; /* as the server said last */
	uint32_t num_told;                /* blockers, when they were told last */
	int64_t told_ns;
	char texts[AGENT_LEFT_TEXTS][TH_CTL_TEXT_BYTES];
};

struct reserve { /* memory that the shell is asked for; owned by agent.reserves */
	uint64_t id;
	struct ctl_ev_reserve ev;
	struct reserve *prev, *next;
};

struct need { /* a shard that is lent, or to be; owned by agent.needs (loan.c) */
	char model[TH_NAME_MAX + 1];
	struct th_version version;
	uint32_t shard;
	uint32_t num_loans;
	bool asked;        /* the server was told */
	int64_t linger_ns; /* without a loan: until then one may ask again; 0: it has some */
	uint64_t copy;     /* the session that it was lent from last; 0: it was not, yet */
	uint64_t bytes;    /* of that copy, with its other shards */
	struct need *prev, *next;
};

#define AC_LOANS_MAX 4096u

struct loan { /* owned by agent.loans */
	uint64_t id;
	uint64_t session; /* who waits for it */
	struct need *need;
	bool lent;
	uint64_t limit;
	int64_t deadline_ns; /* while it is not lent */
	struct loan *prev, *next;
};

struct agent_core {
	struct agent_config config;
	int64_t now_ns;
	struct link link;
	struct request_lane *lanes;
	struct request_lane
		*misc;          /* one of lanes: what belongs to no session                       */
	struct request *graves; /* freed at the next step: actions may still point at them   */
	struct session *sessions;
	struct model *models;
	struct inbound *inbounds;
	struct outbound *outbounds;
	struct outbound *grants; /* oldest first                                             */
	struct reserve *reserves;
	struct need *needs;
	struct loan *loans;
	uint32_t num_internal; /* reserves, and sessions that came of them                   */
	uint32_t num_grants;
	uint64_t last_reserve;
	uint64_t last_tag, last_request_no, last_leg;
	bool draining; /* an operator drains this node */
	struct leave leave;
	struct agent_action *actions; /* owns                                                */
	uint32_t num_actions, actions_max;
};

/*
 * ---- actions and texts (agent_core.c)
 * -------------------------------------------------------------
 */

/* Zeroed but for kind and session; valid until the next action is added. */
struct agent_action *ac_action(
	struct agent_core *agent, enum agent_action_kind kind, uint64_t session);
void ac_answer(struct agent_core *agent, enum agent_action_kind kind, uint64_t session,
	const struct th_err *err);
/* Cut to size and terminated, whatever the source is. */
void ac_copy(char *ret_text, size_t bytes, const char *text, size_t text_bytes);
#define AC_COPY(to, from) ac_copy((to), sizeof(to), (from), sizeof(from))
/* A code as a server or a mover says it: 0 or negative. */
int ac_code(int code);

/*
 * ---- lanes (request_lane.c)
 * --------------------------------------------------------------------------
 */

struct request_lane *ac_lane_new(struct agent_core *agent, struct session *session);
/* Appends a zeroed request; it is sent at the end of the step when its turn has come. */
struct ctl_request *ac_lane_add(
	struct agent_core *agent, struct request_lane *lane, enum ctl_request_kind kind);
void ac_lane_drop(struct agent_core *agent, struct request *request);
void ac_lane_clear(struct agent_core *agent, struct request_lane *lane);
void ac_lane_free(struct agent_core *agent, struct request_lane *lane);
/* The session is gone: what is queued is still delivered, then the lane goes too. */
void ac_lane_orphan(struct agent_core *agent, struct request_lane *lane);
void ac_lanes_pump(struct agent_core *agent);
int64_t ac_lanes_next_ns(const struct agent_core *agent);
void ac_request_send(struct agent_core *agent, struct request *request, enum agent_channel channel);
void ac_request_failed(struct agent_core *agent, struct request *request);
/* When it must be looked at again, if the link is up. */
int64_t ac_request_next_ns(const struct agent_core *agent, const struct request *request);

/*
 * ---- link (server_attachment.c)
 * ---------------------------------------------------------------------------
 */

void ac_link_init(struct agent_core *agent);
void ac_link_reply(struct agent_core *agent, uint64_t tag, const struct ctl_reply *reply);
/* hung_up: the connection ended, which says more than silence. */
void ac_link_no_reply(struct agent_core *agent, uint64_t tag, bool hung_up);
void ac_link_tick(struct agent_core *agent);
int64_t ac_link_next_ns(const struct agent_core *agent);

/* ---- the end of this agent (leave.c) --------------------------------------------------------- */

/* What the server must know of it when it is attached to. */
void ac_leave_attach(const struct agent_core *agent, struct ctl_attach *attach);
void ac_leave_node(struct agent_core *agent, const struct ctl_ev_node *node);
void ac_leave_begin(struct agent_core *agent, int64_t timeout_ns);
bool ac_leaving(const struct agent_core *agent);
void ac_leave_reply(struct agent_core *agent, const struct ctl_reply *reply);
void ac_leave_tick(struct agent_core *agent);
int64_t ac_leave_next_ns(const struct agent_core *agent);
void ac_leave_renew(struct agent_core *agent);

/* ---- sessions (handle.c, close.c) ----------------------------------------------------------- */

/* why: what has happened, static text. */
void ac_session_enter(struct session *session, enum session_state state, const char *why);
void ac_tensors_enter(struct session *session, enum tensors_state state, const char *why);
struct session *ac_session_find(const struct agent_core *agent, uint64_t id);
struct session *ac_session_by_sid(const struct agent_core *agent, uint64_t sid);
void ac_session_open(struct agent_core *agent, uint64_t id, const struct ctl_open *open);
/* OPENING; the OPEN is on its way, but for an observer. */
struct session *ac_session_new(struct agent_core *agent, uint64_t id, const struct ctl_open *open);
/* It is open as soon as there is a server to be asked, which hears nothing of it. */
void ac_observer_settle(struct agent_core *agent, struct session *session);
/* What a member may do, and an observer may not. */
int ac_observer_refused(const char *what, struct th_err *err);
void ac_session_register(
	struct agent_core *agent, struct session *session, const struct ctl_register *reg);
void ac_session_unregister(struct agent_core *agent, struct session *session);
void ac_session_send_unregister(struct agent_core *agent, struct session *session);
/* REGISTER or UNREGISTER has been answered. */
void ac_session_registered(struct agent_core *agent, struct session *session,
	enum agent_action_kind kind, const struct th_err *err);
/* The reply to what is at the head of a session's lane. */
void ac_session_reply(struct agent_core *agent, struct request_lane *lane,
	const struct ctl_request *request, const struct ctl_reply *reply);
/* Its version was published before with other bytes; the next operation says so as well. */
void ac_session_conflict(struct agent_core *agent, struct session *session);
void ac_session_at_risk(struct agent_core *agent, struct session *session);
/* What its update would install without the network; none: nothing, or not any more. */
void ac_session_ready(struct agent_core *agent, struct session *session, struct th_version version);
/* code: TH_E_GROUP_BROKEN, or TH_E_EVICTED by an operator. */
void ac_session_broken(
	struct agent_core *agent, struct session *session, int code, const char *text);
/* The server has forgotten it. */
void ac_session_forgotten(struct agent_core *agent, struct session *session, const char *text);
void ac_session_free(struct agent_core *agent, struct session *session);
void ac_session_line(struct agent_core *agent, struct session *session);

/* worker: what is known of it now. */
void ac_close(struct agent_core *agent, struct session *session, enum worker_state worker);
/* What it holds is the last copy that this host knows of, and waits for a server to keep it. */
bool ac_close_keeps(const struct agent_core *agent, const struct session *session);
/* The server knows nothing of its CLOSE, but of the session. */
void ac_close_again(struct agent_core *agent, struct session *session);
void ac_close_refused(struct agent_core *agent, const struct ctl_ev_close_refused *refused);
/* Its worker has written to the part of this generation: nothing more is served from it. */
void ac_contract(struct agent_core *agent, struct session *session, uint64_t gen, const char *text);
/* The last of the conclusions: may free the session. */
void ac_close_settle(struct agent_core *agent, struct session *session);
int64_t ac_close_next_ns(const struct agent_core *agent, const struct session *session);

/* ---- conclusions (settle.c) ------------------------------------------------------------------ */

/* Carries out everything that has become possible. May free the session. */
void ac_settle(struct agent_core *agent, struct session *session);
void ac_settle_all(struct agent_core *agent);

/* ---- copies in the agent's own memory (own_copy.c) ------------------------------------------ */

/* No worker has opened it. */
bool ac_internal(const struct session *session);
void ac_reserve(struct agent_core *agent, const struct ctl_ev_reserve *ev);
void ac_release(struct agent_core *agent, const struct ctl_ev_release *release);
/* What the shell says to RESERVE. */
void ac_reserved(
	struct agent_core *agent, uint64_t id, uint64_t session, int code, const char *text);
/* The server that asked is no more. */
void ac_reserves_forget(struct agent_core *agent);
void ac_internal_opened(struct agent_core *agent, struct session *session);
void ac_internal_plan(
	struct agent_core *agent, struct session *session, const struct ctl_ev_plan *plan);
/* Its operation has ended with this code. */
void ac_internal_filled(struct session *session, int code);

/* ---- loans (loan.c) -------------------------------------------------------------------------- */

void ac_borrow(struct agent_core *agent, uint64_t session_id, const struct agent_borrow *borrow);
void ac_loan_returned(struct agent_core *agent, uint64_t id);
void ac_borrow_refused(struct agent_core *agent, const struct ctl_ev_borrow_refused *refused);
void ac_borrow_reply(
	struct agent_core *agent, const struct ctl_request *request, const struct ctl_reply *reply);
/* All that wait are lent, or end. */
void ac_loans_settle(struct agent_core *agent);
int64_t ac_loans_next_ns(const struct agent_core *agent);
/* After an attachment to a server that knows nothing of them. */
void ac_borrow_renew(struct agent_core *agent);
void ac_loans_free(struct agent_core *agent);

/* ---- operations (call.c) --------------------------------------------------------------------- */

void ac_submit(
	struct agent_core *agent, struct session *session, const struct agent_submission *submit);
void ac_cancel(struct agent_core *agent, struct session *session, uint32_t slot);
void ac_call_reply(struct agent_core *agent, struct session *session,
	const struct ctl_request *request, const struct ctl_reply *reply);
void ac_call_plan(
	struct agent_core *agent, struct session *session, const struct ctl_ev_plan *plan);
void ac_call_explained(
	struct agent_core *agent, struct session *session, uint64_t op_seq, const char *text);
void ac_call_outcome(struct session *session, const struct ctl_ev_outcome *outcome);
/* Ends it as OUTCOME would, for a reason of this agent. */
void ac_call_fail(struct session *session, int code, const char *text);
/* The worker is answered now; what the operation started is left to its owner. */
void ac_call_abandon(struct agent_core *agent, struct session *session, int code, const char *text);
void ac_call_settle(struct agent_core *agent, struct session *session);
void ac_call_tick(struct agent_core *agent, struct session *session);
int64_t ac_call_next_ns(const struct agent_core *agent, const struct session *session);
/* Writes its state; why: what has happened. */
void ac_call_enter(struct session *session, enum call_state state, const char *why);
/* A PLAN that is for it: what is held is drained, or it is said why this member cannot. */
void ac_call_take_plan(
	struct agent_core *agent, struct session *session, const struct ctl_ev_plan *plan);
/* Begins it: there is no other. */
void ac_call_start(struct agent_core *agent, struct session *session, const struct order *order);
/* When it is ended here, should nothing else have ended it; INT64_MAX: never. */
int64_t ac_call_give_up_ns(const struct agent_core *agent, const struct session *session);
/* Nothing of it has been sent, nor will be unless it stays. */
bool ac_call_never_sent(const struct call *call);
/* The completion of its slot: what it changed is told before. */
void ac_call_answer(struct agent_core *agent, struct session *session, int code, const char *text);
void ac_call_prepared(
	struct agent_core *agent, struct session *session, int code, const char *text);

/*
 * With a server the end of an operation is a matter of a few messages: what is late by less than
 * this is not given up, so that "look once" looks. Less than what libthc waits beyond a deadline.
 */
#define AC_GRACE_NS INT64_C(300000000)

/* ---- operations that nobody waits for, and what waits for their end (ghost.c) ---------------- */

void ac_ghost_tick(struct agent_core *agent, struct session *session);
void ac_ghost_plan(struct agent_core *agent, struct session *session);
/* A close cuts off what runs, and nothing that is held has changed yet. */
bool ac_ghost_may_cut(const struct session *session);
void ac_ghost_cut(struct agent_core *agent, struct session *session, int code, const char *text);
/* What is held is drained for nothing but a PLAN whose end is about to be said. */
bool ac_ghost_undecided(const struct session *session);
/* A worker's operation runs or waits: another one must be refused. */
bool ac_ghost_busy(const struct session *session);
/* The kind of that operation; 0: there is none. */
uint32_t ac_ghost_busy_kind(const struct session *session);
void ac_pending_keep(struct session *session, const struct order *order);
/* The call has ended: what waited for that begins. */
void ac_pending_start(struct agent_core *agent, struct session *session);
bool ac_pending_cancel(struct agent_core *agent, struct session *session, uint32_t slot);
void ac_pending_end(struct agent_core *agent, struct session *session, int code, const char *text);
int64_t ac_pending_next_ns(const struct agent_core *agent, const struct session *session);

/* ---- operations that the server begins by itself (follower.c) -------------------------------- */

void ac_follower_mark(struct agent_core *agent, const struct ctl_ev_go_mark *mark);
void ac_follower_plan(struct session *session, const struct ctl_ev_plan *plan);
/* The end of one that has not begun here: true, and it never will. */
bool ac_follower_taken_back(struct session *session, uint64_t op_seq);
/* Begins what is due, when nothing else runs. */
void ac_follower_settle(struct agent_core *agent, struct session *session);
/* The worker has called: what has not had its GO is cancelled. */
void ac_follower_gives_way(struct agent_core *agent, struct session *session);
/* The automatic operation has ended with this code. */
void ac_follower_ended(struct session *session, int code);

/* ---- unpublish without a server (alone.c) ---------------------------------------------------- */

void ac_alone_tick(struct agent_core *agent, struct session *session);
/* CTL_EV_RULES */
void ac_alone_rules(struct agent_core *agent, const struct ctl_ev_rules *rules);
/* A known rule names what the session holds, and no other copy of it is here. */
bool ac_alone_retained(const struct agent_core *agent, const struct session *session);
void ac_alone_settle(struct agent_core *agent, struct session *session);
/* The server need not be told of an unpublish any more. */
void ac_alone_forget(struct session *session);
/* The unpublish has failed: what was drained for it is served again. */
void ac_alone_undo(struct session *session);
/* A ghost has ended with this code. */
void ac_alone_told(struct session *session, int code);
/* True: the server is told now that nothing is held, which comes before all else. */
bool ac_alone_tell(struct agent_core *agent, struct session *session);

/*
 * ---- a server that knows nothing (agent_rejoin.c)
 * --------------------------------------------------
 */

/* It has attached us: every session is announced to it. */
void ac_rejoin(struct agent_core *agent);
/* It has attached us: all sessions end for this reason, and their groups with them. */
void ac_rejoin_none(struct agent_core *agent, const char *text);
/* The session that it made, or goes on with, has these numbers. */
void ac_rejoin_opened(struct session *session, uint64_t group_inc);
void ac_rejoin_reply(
	struct agent_core *agent, struct session *session, const struct ctl_reply *reply);
/* The call has an outcome: others of its group may not have been told. */
void ac_rejoin_note(struct session *session);
/* What comes before all else of a new session of this shard. */
bool ac_rejoin_first(const struct ctl_request *request);
void ac_rejoin_tick(struct agent_core *agent);
/* Asks for the operation, the first time or again. */
void ac_call_send(struct agent_core *agent, struct session *session);

/* ---- watches (watch.c) ----------------------------------------------------------------------- */

struct model *ac_model_acquire(struct agent_core *agent, const char *name);
/* NULL: no session names it. */
struct model *ac_model_find(const struct agent_core *agent, const char *name);
void ac_model_release(struct agent_core *agent, struct model *model);
void ac_watch(
	struct agent_core *agent, struct session *session, const struct agent_submission *submit);
bool ac_watch_cancel(struct agent_core *agent, struct session *session, uint32_t slot);
void ac_watches_end(struct agent_core *agent, struct session *session, int code, const char *text);
void ac_watch_tick(struct agent_core *agent, struct session *session);
void ac_watch_reply(
	struct agent_core *agent, const struct ctl_request *request, const struct ctl_reply *reply);
void ac_watch_changed(struct agent_core *agent, const struct ctl_ev_changed *changed);
/* Nobody says any more what changes: who waits is told. */
void ac_watch_no_server(struct agent_core *agent);
/* After an attachment to a server that knows nothing of it. */
void ac_watch_renew(struct agent_core *agent);

/* ---- legs in (inbound.c) --------------------------------------------------------------------- */

void ac_inbound_go(struct agent_core *agent, const struct ctl_ev_go *go);
void ac_inbound_reroute(struct agent_core *agent, const struct ctl_ev_reroute *reroute);
void ac_inbound_cancel(struct agent_core *agent, const struct ctl_cancel *cancel);
void ac_inbound_stop(struct agent_core *agent, struct inbound *in, enum stop_reason reason);
void ac_inbound_report(struct agent_core *agent, enum agent_event_kind kind,
	const struct agent_leg_report *report);
/* The part is to be left by the legs that it is a donor of, and was left by this one. */
void ac_inbounds_drop_donor(struct agent_core *agent, const struct part *part);
void ac_inbound_donor_left(struct agent_core *agent, uint64_t number);
/* Nothing of the leg runs any more. */
void ac_inbound_over(struct agent_core *agent, struct inbound *in);
/* FENCE of the server for a copy within the host. */
bool ac_inbound_fence(struct agent_core *agent, uint64_t number);

/*
 * ---- parts and legs out (agent_part.c, outbound.c)
 * -------------------------------------------------
 */

struct part *ac_part_new(
	struct agent_core *agent, struct session *session, uint64_t gen, bool published);
void ac_part_end(struct agent_core *agent, struct session *session);
/* Write its state; why: what has happened. */
void ac_part_enter(struct part *part, enum part_state state, const char *why);
void ac_part_drain_for(struct part *part, enum part_drain cause);
/* Never from DRAIN_HOPELESS. */
void ac_part_undrain_for(struct part *part, uint32_t causes);
static inline bool
ac_part_drains(const struct part *part, uint32_t causes)
{
	return (part->drains & causes) != 0;
}
static inline bool
ac_part_has_digests(const struct part *part)
{
	return part->digests >= DIGESTS_OVERTAKEN;
}
bool ac_part_draining(const struct part *part);
bool ac_part_serves(const struct part *part);
/* Draining, and nothing reads it. */
bool ac_part_drained(const struct part *part);
/* Fences, stops, hashes, answers: whatever follows from the state of the part. */
void ac_part_settle(struct agent_core *agent, struct session *session);
void ac_part_drain(struct agent_core *agent, const struct ctl_ev_part *drain);
void ac_part_undrain(struct agent_core *agent, const struct ctl_ev_part *undrain);
void ac_part_hashed(struct agent_core *agent, struct session *session, uint64_t gen,
	struct th_hash content, bool stopped);

void ac_outbound_grant(struct agent_core *agent, const struct ctl_ev_grant *grant);
void ac_outbound_report(struct agent_core *agent, enum agent_event_kind kind, uint64_t leg);
void ac_outbound_fence(struct agent_core *agent, uint64_t number);
void ac_outbounds_fence(struct agent_core *agent, struct part *part, bool all);
void ac_outbound_tick(struct agent_core *agent);
int64_t ac_outbound_next_ns(const struct agent_core *agent);
void ac_outbound_free(struct agent_core *agent, struct outbound *out);

#endif
