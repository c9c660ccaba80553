/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_core - the control core of thagentd as a step function: all decisions, no I/O.
 *
 * Input: one event (a worker's submission, a reply or event of the server, what a mover reports,
 * the time). Output: actions for the shell, to be carried out in order. No clock, no thread, no
 * memory of a worker: the core knows sessions, parts, legs and operations by number.
 *
 *   session  one handle of one worker = one member of one group; numbered by the shell, never
 *            reused
 *   part     the content of a session at one generation (gen = op_seq of the operation that
 *            made it)
 *   leg      in: this agent pulls for a session; out: a peer reads a part of ours; numbered by
 *            this core and never reused, because a restarted server counts its legs from the
 *            beginning while some of the old ones still run; grant.leg is the server's number
 *            (logs, BEAT)
 *
 * What the shell promises:
 *   - Every AGENT_SEND gets one REPLY or one NO_REPLY; a request may be sent again under a new
 *     tag, with the same request_no, before that.
 *   - The legs of a BEAT are the shell's to fill in: those of PULL and COPY that it was not told
 *     to STOP, by grant.leg.
 *   - PULL and COPY end with exactly one of LEG_DONE, LEG_FAILED, LEG_STOPPED, EXPECT with one
 *     OUT_ENDED, HASH_STOP with one HASH_STOPPED (also when HASHED has just been said), whatever
 *     crosses them. STOP, FENCE and HASH_STOP of what has been reported as over are to be ignored.
 *   - A PULL's donor is read until DONOR_LEFT, which follows DONOR_DROP, or until the leg's end.
 *   - The first peer who presents the ticket of an EXPECT begins its leg: OUT_BEGAN, before all
 *     else that is said of it. He may come before the EXPECT, and is kept waiting then, but not
 *     for ever. After OUT_ENDED nobody can begin it.
 *   - RESERVE gets one RESERVED, also when UNRESERVE has crossed it. With code 0 there is memory
 *     under a new session's number, with its tensors laid out and nothing in it; FREE ends that.
 *   - CLOSE and LOST may come in any order and repeatedly. After OPENED with a code, or FREE, the
 *     session's number means nothing any more; events that still carry it are ignored.
 *
 * What the server promises is written at the head of server/core/refsrv.h.
 */
#ifndef TH_DAEMON_CORE_AGENT_CORE_H
#define TH_DAEMON_CORE_AGENT_CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/ctl.h"

struct agent_core;

struct agent_config {
	uint64_t agent_inc;
	struct th_secret secret; /* as random: see struct ctl_request */
	struct ctl_attach attach;
	int64_t beat_ns;          /* 1 s */
	int64_t reply_ns;         /* a request unanswered for this long is sent again: 3 s */
	int64_t server_silent_ns; /* no reply for this long: no server: 3 s */
	int64_t grant_ns;      /* a ticket that nobody has presented for this long is void: 60 s */
	int64_t start_ns;      /* the same while its part drains: 0.7 s, as any stall */
	int64_t drain_wait_ns; /* what is closed waits this long for its DRAIN: 600 s */
	/*
	 * A server that knows nothing of this agent: its sessions are broken, as the paper
	 * (server/README.md) has it. Else they are announced to it and go on.
	 */
	bool server_loss_reset;
	uint32_t sessions_max;
	uint32_t reservations_max; /* shards of others that are kept here */
	uint32_t grants_max;       /* tickets that wait for their reader; the oldest gives way */
};

void agent_config_default(struct agent_config *ret_config); /* all but the first three */

/*
 * A session that is opened without a replica is an observer: a member of nothing, of which no
 * server knows. This is what it hears of all but watch and close; the argument is what was wanted.
 */
#define AGENT_OBSERVER_REFUSED                                                                     \
	"%s: this handle is an observer, a member of nothing, which lists, waits and gets "        \
	"manifests; open one with a replica"

/* ---- events ---------------------------------------------------------------------------------- */

enum agent_event_kind {
	AGENT_EV_TICK = 1, /* time has passed, nothing else */
	AGENT_EV_OPEN,     /* a worker wants to join; session is new */
	AGENT_EV_REGISTER, /* the shell has validated and mapped the tensors and put the manifest */
	AGENT_EV_UNREGISTER,
	AGENT_EV_ATTRIBUTES, /* what the next publish carries; blob put before */
	AGENT_EV_SUBMIT,     /* a ring submission, copied and checked for form */
	AGENT_EV_CANCEL,     /* of the operation in a slot */
	AGENT_EV_CLOSE,      /* orderly */
	AGENT_EV_LOST,       /* the worker died, hung up or broke the rules */
	AGENT_EV_REPLY,      /* of the server, to the request with this tag */
	AGENT_EV_NO_REPLY,   /* the request with this tag was not answered */
	AGENT_EV_LEG_DONE,   /* leg in: every chunk verified */
	AGENT_EV_LEG_FAILED,
	AGENT_EV_LEG_STOPPED,
	AGENT_EV_DONOR_LEFT,  /* leg in: its donor is not read any more */
	AGENT_EV_OUT_BEGAN,   /* leg out: the reader has come with its ticket */
	AGENT_EV_OUT_STALLED, /* leg out: the reader takes nothing */
	AGENT_EV_OUT_RESUMED,
	AGENT_EV_OUT_ENDED,    /* leg out: no byte is read for it any more */
	AGENT_EV_HASHED,       /* all digests of (session, gen) are known */
	AGENT_EV_HASH_STOPPED, /* no thread reads (session, gen) for digests any more */
	AGENT_EV_EXPLAINED,    /* why the layouts differ */
	AGENT_EV_RESERVED,     /* the end of RESERVE */
	AGENT_EV_CONTRACT,     /* proven: the worker has written to (session, gen) while it was
				* published; it has been told */
	AGENT_EV_LEAVE,        /* this agent is to end: nothing new begins, LEFT says when it may */
	AGENT_EV_BORROW,       /* a process wants a shard of a version out of this agent's memory:
				* LEND or LOAN_REFUSED follows, but after RETURNED */
	AGENT_EV_RETURNED,     /* the loan is over, or nobody waits for it */
};

struct agent_submission {
	uint32_t slot;      /* of the session, free */
	uint32_t kind;      /* enum ctl_op_kind, or AGENT_SUBMIT_WATCH */
	uint32_t flags;     /* of the call; what is not built yet answers TH_E_INVALID */
	int64_t timeout_ns; /* TH_FOREVER: none */
	char spec[TH_SPEC_MAX + 1];
};

/* Completes when the listing's generation is higher than spec (a decimal number). */
#define AGENT_SUBMIT_WATCH 100u

struct agent_leg_report {
	uint64_t leg;
	int code;
	bool source_failed, overwrote;
	uint32_t chunks_verified;
	uint64_t bytes_moved, bytes_reused, transfer_ns, verify_ns;
	char transport[32];
	char text[TH_CTL_TEXT_BYTES];
	struct th_hash content; /* LEG_DONE: over the digests; none: there are none */
};

struct agent_borrow {
	uint64_t id; /* of the loan, as the shell numbers them */
	struct th_version version;
	uint32_t shard;
	int64_t timeout_ns;
	uint64_t limit; /* bytes that may be lent in all */
};

struct agent_event {
	enum agent_event_kind kind;
	uint64_t session; /* OPEN .. LOST, HASHED, HASH_STOPPED, EXPLAINED */
	union {
		struct ctl_open open;
		struct {
			struct th_hash layout, manifest;
			uint64_t bytes;
			uint32_t num_chunks;
			bool mapped; /* all of it: movers may copy from it */
		} reg;
		struct th_hash attributes;
		struct agent_submission submit;
		uint32_t cancel_slot;
		struct {
			bool abandon; /* the worker does not wait, and takes no refusal */
			int64_t timeout_ns;
		} close; /* CLOSE */
		struct {
			bool memory_gone; /* its process's own, which is dead or has hung up */
		} lost;                   /* LOST */
		struct {
			uint64_t id;
			int code; /* session: of the new one, when it is 0 */
			char text[TH_CTL_TEXT_BYTES];
		} reserved;
		struct {
			uint64_t tag;
			const struct ctl_reply *reply; /* borrowed; NO_REPLY: NULL */
			bool hung_up; /* NO_REPLY: its connection ended, the server has gone */
		} reply;
		struct agent_leg_report leg; /* LEG_DONE, LEG_FAILED, LEG_STOPPED */
		uint64_t donor_leg;          /* DONOR_LEFT */
		uint64_t out_leg;            /* OUT_* */
		struct {
			uint64_t gen;
			struct th_hash content; /* HASHED: as in LEG_DONE */
		} hash;                         /* HASHED, HASH_STOPPED */
		struct {
			uint64_t op_seq;
			char text[TH_CTL_TEXT_BYTES];
		} explained;
		struct {
			uint64_t gen;
			char text[TH_CTL_TEXT_BYTES];
		} contract;
		int64_t leave_timeout_ns;
		struct agent_borrow borrow;
		uint64_t returned_loan;
	} u;
};

/* ---- actions --------------------------------------------------------------------------------- */

enum agent_action_kind {
	AGENT_SEND = 1,     /* a request to the server; REPLY or NO_REPLY follows exactly once */
	AGENT_OPENED,       /* the answer to OPEN; with a code the session is gone */
	AGENT_REGISTERED,   /* the answer to REGISTER */
	AGENT_UNREGISTERED, /* the answer to UNREGISTER; code 0: the shell may unmap */
	AGENT_COMPLETE,     /* the end of the operation in a slot */
	AGENT_LINE,         /* what the worker sees without asking */
	AGENT_CLOSED,       /* the answer to CLOSE: nobody reads or writes the memory any more;
			     * with a code the session is open as before */
	AGENT_FREE,       /* the session is gone (after CLOSED, or after LOST): unmap everything */
	AGENT_PART_NEW,   /* the session's tensors become part gen; published: to be hashed */
	AGENT_PART_END,   /* that part is over: no leg uses it */
	AGENT_HASH_STOP,  /* stop hashing (session, gen): HASH_STOPPED follows */
	AGENT_HASH,       /* go on hashing (session, gen): it was stopped and is served again */
	AGENT_PULL,       /* leg in, from a peer: LEG_DONE, LEG_FAILED or LEG_STOPPED follows */
	AGENT_COPY,       /* leg in, from a part of this agent: likewise */
	AGENT_DONOR_DROP, /* leg in: nothing more is copied from its donor; DONOR_LEFT follows */
	AGENT_STOP,       /* leg in */
	AGENT_EXPECT,     /* leg out: OUT_BEGAN may follow, OUT_ENDED follows */
	AGENT_REFUSE,     /* who has come with this ticket: nothing will come of it */
	AGENT_FENCE,      /* leg out: nobody may begin it, its connections are destroyed; OUT_ENDED
			  * follows */
	AGENT_EXPLAIN,    /* compare the session's layout with this manifest: EXPLAINED follows */
	AGENT_ATTRIBUTES, /* the session is filled with what has these: get and keep the blob */
	AGENT_RESERVE,    /* memory for a shard of others, laid out: RESERVED follows */
	AGENT_UNRESERVE,  /* it is not wanted any more */
	AGENT_GIVEN_UP,   /* a session of RESERVE closes: FREE follows when nobody reads it, and its
			   * memory is room that comes */
	AGENT_SERVER_STATE, /* attached or not, for logs and status */
	AGENT_NODE,  /* an operator drains this node, or does not any more: for logs and status */
	AGENT_STAYS, /* after LEAVE: what is waited for, now and then, for logs                  */
	AGENT_LEFT,  /* after LEAVE: the sessions may be closed, and the agent may end */
	AGENT_LEND,  /* the memory of the session, a copy of the agent's own, for a loan: RETURNED
		      * follows. It stays readable until then, whatever becomes of the session */
	AGENT_LOAN_REFUSED, /* the other end of BORROW */
};

enum agent_channel { AGENT_CHANNEL_CONTROL, AGENT_CHANNEL_POLL, AGENT_CHANNEL_BEAT };

struct agent_result { /* of struct thc_result */
	struct th_version version;
	bool updated;
	uint64_t bytes_moved, bytes_reused, wait_ns, transfer_ns, verify_ns;
	uint64_t bytes_prefetched;
	char source[TH_NAME_MAX + 1];
	char transport[32];
	char reason[CTL_REASON_BYTES];
};

struct agent_line {
	struct th_version held;
	bool safe_to_mutate;
	uint64_t generation;     /* of the model's listing */
	uint16_t broken;         /* how often THC_EV_GROUP_BROKEN happened */
	uint16_t contract;       /* how often THC_EV_CONTRACT happened */
	uint16_t conflict;       /* how often THC_EV_VERSION_CONFLICT happened */
	uint16_t evicted;        /* how often THC_EV_EVICTED happened */
	uint16_t at_risk;        /* how often THC_EV_AT_RISK happened */
	struct th_version ready; /* what update would install without the network; none */
	uint16_t ready_told;     /* how often THC_EV_READY happened */
	uint16_t updated;        /* how often the agent has brought a version by itself */
	uint16_t follow_failed;  /* how often it could not, and tries again */
	bool follows;            /* its memory may be written without a call: for the shell alone */
};

#define AGENT_LEFT_TEXTS 8u /* sentences of what was waited for: the first ones */

struct agent_action {
	enum agent_action_kind kind;
	uint64_t session; /* where it applies */
	union {
		struct {
			uint64_t tag;
			enum agent_channel channel;
			const struct ctl_request *request; /* borrowed until the next step */
		} send;
		struct {
			int code;
			char text[TH_CTL_TEXT_BYTES];
		} answer; /* OPENED, REGISTERED, UNREGISTERED, CLOSED */
		struct {
			uint32_t slot;
			int code;
			char text[TH_CTL_TEXT_BYTES];
			struct agent_result result;
			uint64_t op_seq;     /* of the group operation; 0: none was made */
			uint64_t generation; /* of the listing: grouped list, watch */
		} complete;
		struct agent_line line;
		struct {
			uint64_t gen;
			bool published; /* PART_NEW: the bytes are there; else to be pulled */
			bool used;      /* PART_NEW: its memory has been part of a version before */
		} part;                 /* PART_NEW, PART_END, HASH_STOP, HASH */
		struct {
			uint64_t leg;
			uint64_t gen;                        /* of the part to fill, or to serve */
			uint64_t source_session, source_gen; /* COPY */
			uint64_t donor_session, donor_gen;   /* PULL; 0: there is none */
			struct ctl_grant grant; /* PULL, COPY; EXPECT: leg, ticket, far */
		} leg;                          /* PULL, COPY, DONOR_DROP, STOP, EXPECT, FENCE */
		struct {
			struct th_ticket ticket;
			int code;
			char text[TH_CTL_TEXT_BYTES];
		} refuse;
		struct {
			uint64_t op_seq;
			struct th_hash manifest;
		} explain;
		struct th_hash attributes; /* none: forget those before */
		struct {
			uint64_t id;
			uint64_t source_session; /* has the same tensors, perhaps; 0: none */
			struct ctl_ev_reserve ev;
		} reserve; /* RESERVE; UNRESERVE: id */
		struct {
			bool attached;
			bool refused; /* it has answered, and takes nobody: try the next one */
			uint64_t server_inc;
			uint32_t epoch; /* the highest of a server that has taken this agent */
			char text[TH_CTL_TEXT_BYTES]; /* why not */
		} server;
		struct {
			bool draining;
			char text[TH_CTL_TEXT_BYTES]; /* who wanted it; may be empty */
		} node;
		struct {
			/* LEFT: 0: nothing is lost; TH_E_TIMEOUT: this was left. STAYS: 0 */
			int code;
			uint32_t num_blockers, num_texts;
			char (*texts)[TH_CTL_TEXT_BYTES]; /* borrowed until the next step */
		} left;                                   /* STAYS, LEFT */
		struct {
			uint64_t id;
			int code;
			char text[TH_CTL_TEXT_BYTES];
		} loan; /* LEND: id; LOAN_REFUSED */
	} u;
};

struct agent_actions {
	uint32_t count;
	const struct agent_action *actions; /* borrowed until the next step */
	int64_t next_ns;                    /* step with AGENT_EV_TICK no later than this */
};

struct agent_core *agent_core_new(const struct agent_config *config, int64_t now_ns);
void agent_core_free(struct agent_core *agent);

/* The first step (a TICK) begins to attach. */
void agent_core_step(struct agent_core *agent, int64_t now_ns, const struct agent_event *event,
	struct agent_actions *ret_actions);

bool agent_core_attached(const struct agent_core *agent);

/*
 * A request number for a request of the shell itself (MANIFEST_PUT, LIST, ...): the server knows an
 * agent's requests by number, so shell and core draw from one counter. A repeat keeps its number.
 */
uint64_t agent_core_request_no(struct agent_core *agent);
/* The attachment that every request of the shell names, too; 0: there is none. */
uint64_t agent_core_attach_no(const struct agent_core *agent);

/* For status: walks sessions in order of opening. */
struct agent_session_info {
	uint64_t session;
	char model[TH_NAME_MAX + 1], replica[TH_NAME_MAX + 1];
	uint32_t shard, num_shards;
	uint64_t sid;
	const char *state;     /* "opening", "open", "broken", "closing", "ended": static text */
	const char *operation; /* "idle", "publish", ...: static text */
	struct th_version held;
	struct th_version ready; /* as its worker sees it */
	uint32_t flags;          /* enum ctl_open_flags */
	uint64_t bytes;
	uint32_t legs_in, legs_out;
	bool offload;  /* a copy that the agent itself keeps: no worker has opened it */
	bool draining; /* what it holds takes no new readers: it is being given up */
};
/* Returns false when there is no index-th session. */
bool agent_core_session_at(
	const struct agent_core *agent, uint32_t index, struct agent_session_info *ret_info);

#endif
