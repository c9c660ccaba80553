/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent - the agents: who is attached and alive, their event queues and remembered replies.
 *
 * An agent's death is decided here and carried out through member_lost. One thread, no I/O.
 */
#ifndef TH_SERVER_CORE_CLUSTER_AGENT_H
#define TH_SERVER_CORE_CLUSTER_AGENT_H

#include "server/core/refsrv_state.h"

struct agent *agent_find(struct refsrv *server, uint64_t inc);
/* The agent that attached last under this name; NULL: none is on record. */
struct agent *agent_of_node(struct refsrv *server, const char *node);

/* Whoever has sent this knows the secret of this agent. NULL: of none that is known. */
int agent_proven(struct refsrv *server, const struct agent *agent,
	const struct ctl_request *request, struct th_err *err);
/* What this ATTACH says of other servers can be. */
int agent_admit(struct refsrv *server, const struct ctl_request *request, struct th_err *err);
int agent_attach(struct refsrv *server, const struct ctl_request *request,
	struct ctl_attach_reply *ret_reply, struct th_err *err);
/* connection: by which it came; 0: not known. */
void agent_beat(struct refsrv *server, struct agent *agent, const struct ctl_beat *beat,
	uint64_t connection);
/* The agent that beat by it last is as good as silent until it beats again. */
void agent_connection_ended(struct refsrv *server, uint64_t connection);
/* The agent is alive, and the request is its own and belongs to its present attachment. */
bool agent_speaks(const struct agent *agent, const struct ctl_request *request);

/* Answers an older POLL empty and holds this one. */
int agent_poll(struct refsrv *server, struct agent *agent, uint64_t token, uint64_t request_no,
	const struct ctl_poll *poll, struct th_err *err);
/* The asker of this POLL has gone; harmless when it is none. */
void agent_forget_poll(struct refsrv *server, uint64_t token);
/* Nobody is served here any more: all POLLs that wait are told so. */
void agent_refuse_polls(struct refsrv *server, const char *why);
/* Answers the waiting POLL of every agent that has events. */
void agent_flush_all(struct refsrv *server);

/* A new event at the end of the agent's queue, zeroed but for its kind: the caller fills it. */
struct ctl_event *agent_event(struct agent *agent, enum ctl_event_kind kind);

/* Fills ret_reply (but for its number) with the answer this request got before; false: not seen. */
bool agent_remembered(struct agent *agent, uint64_t request_no, struct ctl_reply *ret_reply);
/* The agent has the answers to all requests below this one. */
void agent_answered(struct agent *agent, uint64_t below);
enum repeat {
	REPEAT_NONE,    /* not seen before, as far as can be told                           */
	REPEAT_LATE,    /* answered long ago; a copy that was on its way: nobody waits      */
	REPEAT_UNKNOWN, /* below what is remembered: whether it was seen cannot be told     */
};
/* What a request is whose reply is not remembered. */
enum repeat agent_repeat(const struct agent *agent, uint64_t request_no);
/* Nothing that this agent says can be taken for what it is: it must attach again. */
void agent_lost_track(struct refsrv *server, struct agent *agent);
void agent_remember(struct agent *agent, const struct ctl_reply *reply);
/* Whoever attaches anew repeats nothing. */
void agent_forget_replies(struct agent *agent);

/* Looks at the agent's deadlines no later than this. */
void agent_wake_at(struct refsrv *server, struct agent *agent, int64_t at_ns);
/* Suspects or buries it when it is silent, answers its POLL when it has been held long enough. */
void agent_timers(struct refsrv *server, struct agent *agent);

/* They are in one datacenter. */
bool agent_near(const struct agent *a, const struct agent *b);

/* A leg from source to reader failed: avoid the pair. Or it worked: forgive it. */
void agent_pair_failed(struct refsrv *server, struct agent *reader, struct agent *source);
void agent_pair_worked(struct agent *reader, struct agent *source);
/* A reader says that this source gave it nothing, or nothing good. */
void agent_blamed(struct refsrv *server, const struct agent *reader, struct agent *source);
/* Two readers have blamed it: only who finds nothing else reads from it. */
bool agent_quarantined(const struct refsrv *server, const struct agent *source);
enum pair_state agent_pair_state(
	const struct refsrv *server, const struct agent *reader, const struct agent *source);

const char *agent_state_name(enum agent_state state);

/* Everything an agent owns; its members must be gone. */
void agent_drop(struct refsrv *server, struct agent *agent);

#endif
