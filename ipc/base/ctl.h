/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl - what an agent and the reference server say to each other, as plain C structs.
 *
 * Both control cores speak these structs and nothing else; ipc/proto converts them to and from the
 * protobuf messages of the wire, and the simulator hands them over directly. Requests go from an
 * agent to the server and each gets one reply; events go from the server to one agent, numbered per
 * agent, and travel in the replies to POLL.
 *
 *   member 1..n        agent(s)               server
 *     op ------------> OP(op_seq, spec) ----->  PLAN at the first     (all members: the same PLAN)
 *                      check the layout, drain the old part
 *                      PREPARED ------------->  all PREPARED: choose the source replica
 *                   <- GO(grant), GRANT to the source's agent
 *                      pull, verify
 *                      LEG_END(0) ----------->  all shards in: the replica is READY
 *     outcome <------- OUTCOME <-------------
 *
 * Ownership: pointers are borrowed for the one call that hands the struct over, unless a comment
 * says otherwise. Times are durations in ns; TH_FOREVER means none.
 */
#ifndef TH_IPC_BASE_CTL_H
#define TH_IPC_BASE_CTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/ctl_base.h"

/* ---- listings ---------------------------------------------------------------------------- */

enum ctl_replica_flags { /* as enum thc_replica_flags */
	CTL_REPLICA_READY = 1u,
	CTL_REPLICA_OFFLOAD = 2u,
	CTL_REPLICA_SPOT = 4u,
	CTL_REPLICA_DRAINING = 8u,
};

struct ctl_replica_info {
	char name[TH_NAME_MAX + 1];
	char datacenter[TH_NAME_MAX + 1];
	uint32_t num_shards;
	uint32_t flags;
	uint64_t chunks_done, chunks_total;
};

struct ctl_version_info {
	struct th_version version;
	bool retained;
	uint32_t num_replicas;
	const struct ctl_replica_info *replicas; /* sorted by name */
};

struct ctl_listing {
	uint64_t generation;
	uint32_t num_versions;
	const struct ctl_version_info *versions; /* ascending; one may go on in the next part */
	struct ctl_page page;
};

/* ---- inspection, for operators ------------------------------------------------------------ */

struct ctl_node_info {
	char node[TH_NAME_MAX + 1];
	char datacenter[TH_NAME_MAX + 1];
	char address[TH_ADDRESS_MAX + 1];
	const char *state; /* "active", "suspect", "dead": static text */
	bool spot, draining;
	uint32_t members, legs_in, legs_out;
	int64_t silent_ns; /* since the last beat */
};

struct ctl_member_info {
	char model[TH_NAME_MAX + 1];
	char replica[TH_NAME_MAX + 1];
	char node[TH_NAME_MAX + 1];
	uint32_t shard, num_shards;
	uint64_t sid;
	const char *state;         /* "forming", "live", "broken": static text */
	const char *copy;          /* "none", "partial", "ready", "draining": static text */
	struct th_version version; /* of the copy */
	uint64_t bytes;
	uint32_t chunks_done, chunks_total;
	uint32_t flags;          /* enum ctl_open_flags */
	struct th_version ready; /* what its update installs without the network; or none */
	const char *why; /* of an agent's own copy: "prefetch", "seed"; a worker: empty. Static */
};

struct ctl_transfer_info {
	char model[TH_NAME_MAX + 1];
	struct th_version version;
	uint64_t leg;
	uint32_t shard;
	char source_replica[TH_NAME_MAX + 1], source_node[TH_NAME_MAX + 1];
	char reader_replica[TH_NAME_MAX + 1], reader_node[TH_NAME_MAX + 1];
	uint32_t chunks_done, chunks_total;
	int64_t age_ns;
	struct ctl_path path;
};

#define CTL_COUNTERS_MAX 24u

struct ctl_counter {
	char name[32];
	uint64_t value;
};

struct ctl_inspection {
	uint64_t server_inc;
	int64_t uptime_ns;
	uint32_t num_nodes, num_members, num_transfers;
	const struct ctl_node_info *nodes;
	const struct ctl_member_info *members;
	const struct ctl_transfer_info *transfers;
	struct ctl_page page;
	uint32_t num_counters; /* the server's own; in every part */
	struct ctl_counter counters[CTL_COUNTERS_MAX];
	bool serving;                        /* false: a standby, or it has been replaced */
	uint32_t epoch;                      /* 0: nobody has attached */
	char server_text[TH_CTL_TEXT_BYTES]; /* why it does not serve; may be empty */
};

/* ---- administration ----------------------------------------------------------------------- */

#define CTL_BLOCKERS_MAX 64u     /* told in one answer; all are counted */
#define CTL_LOG_ENTRIES_MAX 256u /* in one answer */

struct ctl_blocker {      /* what a drain waits for */
	const char *kind; /* "transfer", "last-copy", "moving", "collecting": static text */
	char model[TH_NAME_MAX + 1], replica[TH_NAME_MAX + 1];
	uint32_t shard;
	struct th_version version;
	bool stays; /* it will not end by itself: the sentence says what to do */
	char text[TH_CTL_TEXT_BYTES];
};

struct ctl_log_entry {
	uint64_t number;
	int64_t at_ns;        /* since the start of the server */
	int64_t wall_ns;      /* time of day, since 1970; 0: not known */
	const char *severity; /* "info", "warning", "error": static text */
	char model[TH_NAME_MAX + 1], node[TH_NAME_MAX + 1]; /* empty: it is about none */
	char text[TH_CTL_TEXT_BYTES];
};

struct ctl_admin_reply {
	uint64_t server_inc;
	/*
	 * DRAIN, UNDRAIN: "active", "draining", "empty" (draining, and nothing is waited for).
	 * EVICT: "there" (look), "moving", "evicted", "gone". GO: "said". EVENTS: empty. Static
	 * text.
	 */
	const char *state;
	char text[TH_CTL_TEXT_BYTES];        /* in a sentence */
	uint64_t group;                      /* EVICT: which one */
	uint32_t members, legs_in, legs_out; /* of the node, or of the replica; GO: followers */
	uint32_t num_blockers;               /* in all */
	uint32_t num_told;                   /* of the blockers, these are given */
	const struct ctl_blocker *blockers;
	uint32_t num_lost; /* DRAIN: retained versions that went with the node since it began */
	char lost_text[TH_CTL_TEXT_BYTES]; /* the first version that was lost, in a sentence */
	uint64_t last_event;               /* number of the newest that there is */
	uint32_t num_events;
	const struct ctl_log_entry *events; /* ascending */
	struct th_version go;               /* GO: the model's mark now; none: it has none */
};

/* ---- operations ------------------------------------------------------------------------------ */

enum ctl_op_kind { /* operations of a group, counted together by op_seq */
	CTL_OP_PUBLISH = 1,
	CTL_OP_UNPUBLISH,
	CTL_OP_REPLICATE,
	CTL_OP_UPDATE,
	CTL_OP_LIST,
	CTL_OP_FOLLOW, /* spec: "latest", or empty: no more */
};

/* As it stands in sentences, logs and listings; "?": none of these. */
static inline const char *
ctl_op_name(uint32_t kind)
{
	static const char *const names[] = {
		[CTL_OP_PUBLISH] = "publish",
		[CTL_OP_UNPUBLISH] = "unpublish",
		[CTL_OP_REPLICATE] = "replicate",
		[CTL_OP_UPDATE] = "update",
		[CTL_OP_LIST] = "list",
		[CTL_OP_FOLLOW] = "follow",
	};

	return kind >= CTL_OP_PUBLISH && kind <= CTL_OP_FOLLOW ? names[kind] : "?";
}

/* It names no version. */
static inline bool
ctl_op_unnamed(uint32_t kind)
{
	return kind == CTL_OP_UNPUBLISH || kind == CTL_OP_LIST || kind == CTL_OP_FOLLOW;
}

/*
 * An update that the server begins by itself, of a group that follows, is none of those that the
 * members count: no OP is sent for it. Its op_seq has this bit, and with it the gen of what it
 * brings. It is given up for whatever a member calls before GO, and what is called later waits at
 * the member's agent for its OUTCOME.
 */
#define CTL_OP_AUTOMATIC (UINT64_C(1) << 63)

static inline bool
ctl_op_automatic(uint64_t op_seq)
{
	return (op_seq & CTL_OP_AUTOMATIC) != 0;
}

/* ---- requests ---------------------------------------------------------------------------- */

enum ctl_request_kind {
	CTL_HELLO = 1, /* no effect: who are you, which protocol */
	CTL_ATTACH,    /* this agent life begins (or begins again at a new server) */
	CTL_BEAT,      /* on a socket of its own, every second */
	CTL_POLL,      /* held until there is an event or a second has passed */
	CTL_OPEN,      /* a member joins its group */
	CTL_REGISTER,  /* the member's layout */
	CTL_UNREGISTER,
	CTL_MANIFEST_PUT, /* part of a content-addressed blob: manifest or attributes */
	CTL_MANIFEST_GET,
	CTL_OP,         /* a member's n-th group operation */
	CTL_CANCEL,     /* before GO ends the operation for all; after it is too late */
	CTL_PREPARED,   /* the member is ready, or why it is not */
	CTL_LEG_END,    /* the reader's agent: this leg is over, nothing of it runs any more*/
	CTL_DRAIN_DONE, /* the source's agent: proof that nobody reads (sid, gen) */
	CTL_CONTENT,    /* the publisher's agent: what (sid, gen) is made of */
	CTL_WATCH,      /* tell me when the listing of this model changes */
	CTL_LIST,
	CTL_RESOLVE,  /* which version does this name mean now, and what is it made of */
	CTL_CLOSE,    /* a member leaves, or its worker died */
	CTL_INSPECT,  /* everything, for operators */
	CTL_RESERVED, /* the agent cannot keep what RESERVE asked for, and why */
	CTL_ADMIN,    /* drain, undrain, evict; what has happened: see struct ctl_admin */
	CTL_REJOIN,   /* to a server that knows nothing of it: this session goes on, or has ended */
	CTL_REJOINED, /* all sessions have been said again */
	CTL_WAITS,    /* what the operation waits for that this member has called */
	CTL_BORROW,   /* this agent lends a version to processes of its host, or wants to */
};

struct ctl_hello {
	uint32_t protocol_min, protocol_max;
	/*
	 * Set by another server that asks whether this one is there (its own epoch, or the highest
	 * it knows; its own life; whether it serves agents): 0, 0, false of an agent.
	 */
	uint64_t server_inc;
	uint32_t epoch;
	bool serving;
	char cluster[TH_CLUSTER_MAX + 1]; /* that the asker is of; empty: of any */
};

struct ctl_attach {
	char node[TH_NAME_MAX + 1];
	char datacenter[TH_NAME_MAX + 1];
	char data_address[TH_ADDRESS_MAX + 1]; /* where peers reach this agent's data port */
	bool spot;
	/*
	 * Memory that this agent keeps for copies of others' versions. 0: it takes none;
	 * UINT64_MAX: what it has free when it is asked.
	 */
	uint64_t offload_bytes;
	/*
	 * The server life that this agent was attached to last, and the highest epoch it has seen:
	 * 0 of an agent that was never attached.
	 */
	uint64_t server_inc;
	uint32_t epoch;
	bool draining; /* an operator has said so, and nobody has taken it back */
	bool leaving;  /* this agent is about to end: nothing more is read from it than must be */
	char cluster[TH_CLUSTER_MAX + 1]; /* as in struct ctl_hello */
};

struct ctl_leg_progress {
	uint64_t leg;
	uint32_t chunks_verified;
	const struct ctl_path *path; /* NULL: not said */
	uint64_t bytes_moved; /* by this leg, of chunks that are not whole, too; 0: not said */
};

struct ctl_beat { /* running legs of which this agent is the reader */
	uint32_t num_legs;
	const struct ctl_leg_progress *legs;
};

struct ctl_poll {
	uint64_t last_event; /* acknowledges all events up to this number */
};

enum ctl_open_flags { /* as enum thc_open_flags */
	CTL_OPEN_SPOT = 1u << 0,
	CTL_OPEN_REQUIRE_RDMA = 1u << 1,
	CTL_OPEN_SEED = 1u << 2, /* THC_OFFLOAD_SEED */
	CTL_OPEN_NO_MEMORY_FD = 1u << 3,
	CTL_OPEN_STAGED = 1u << 4,
	CTL_OPEN_PREFETCH = 1u << 5,
};

/* What a copy in an agent's own memory is for. The numbers are on the wire. */
enum ctl_copy_why {
	CTL_COPY_UNSAID = 0,
	CTL_COPY_LAST,     /* nobody else has a retained version                     */
	CTL_COPY_SPOT,     /* nobody who stays has it                                */
	CTL_COPY_DRAIN,    /* likewise                                               */
	CTL_COPY_PREFETCH, /* a group wants it on its hosts before it asks           */
	CTL_COPY_SEED,     /* likewise, in its datacenter                            */
	CTL_COPY_BORROW,   /* processes of the host borrow it                        */
};

struct ctl_open {
	char model[TH_NAME_MAX + 1];
	char replica[TH_NAME_MAX + 1];
	char launch_id[TH_NAME_MAX + 1]; /* empty: none */
	uint64_t lineage;
	uint32_t shard, num_shards;
	uint32_t flags;
	char retain[TH_RETAIN_MAX + 1]; /* rules, the same for all members; empty: none */
	uint64_t reservation;           /* of the RESERVE that this answers; 0: a worker opens */
	uint32_t pid;                   /* of the worker, for sentences; 0: not said */
	enum ctl_copy_why copy_why;     /* as that RESERVE said it                       */
};

struct ctl_register {
	uint64_t sid;
	struct th_hash layout;   /* of the canonical rows */
	struct th_hash manifest; /* key of the manifest blob, put before */
	uint64_t bytes;          /* of all tensors */
	uint32_t num_chunks;
};

struct ctl_blob_part { /* MANIFEST_PUT, and the reply to MANIFEST_GET */
	struct th_hash key;
	uint64_t total_bytes, offset;
	const uint8_t *data;
	size_t data_bytes;
};

struct ctl_blob_get {
	struct th_hash key;
	uint64_t offset;
};

enum ctl_op_flags {        /* as enum thc_unpublish_flags */
	CTL_OP_FORCE = 1u, /* of unpublish: give the version up */
};

struct ctl_op {
	uint64_t sid, op_seq;
	uint32_t kind; /* enum ctl_op_kind */
	uint32_t flags;
	int64_t timeout_ns;         /* counted by the server from the first member's call */
	char spec[TH_SPEC_MAX + 1]; /* "17", "latest", "latest-2"; a number for publish */
	struct th_hash attributes;  /* publish: key of the attributes blob, or none */
};

struct ctl_cancel {
	uint64_t sid, op_seq;
};

struct ctl_prepared {
	uint64_t sid, op_seq;
	uint32_t plan_no; /* of the PLAN that it answers */
	int code; /* 0, or why this member cannot (TH_E_LAYOUT...): ends the operation for all */
	char text[TH_CTL_TEXT_BYTES];
};

struct ctl_leg_end {
	uint64_t leg;
	int code;                 /* 0: every chunk is verified; else the cause */
	uint32_t chunks_verified; /* the prefix, whatever the code */
	bool overwrote;           /* at least one byte of the destination was written */
	bool source_failed;       /* the source or the way to it is to blame: plan another */
	uint64_t bytes_moved;
	char transport[32];
	char text[TH_CTL_TEXT_BYTES];
	struct th_hash content; /* code 0: of what has been verified; none: nothing was */
};

/*
 * A hash over the digests of all chunks, in order: which bytes these are. None: this agent makes no
 * digests, so nobody can tell.
 */
struct ctl_content {
	uint64_t sid, gen;
	struct th_hash content;
};

struct ctl_drain_done {
	uint64_t sid, gen;
	uint64_t drain_no; /* of the DRAIN that this answers: late proof is none for a newer one */
};

struct ctl_watch {
	char model[TH_NAME_MAX + 1];
	bool stop; /* nobody wants to hear of it any more */
};

struct ctl_list {
	char model[TH_NAME_MAX + 1];
	uint64_t sid, op_seq; /* a grouped list: the snapshot of that operation; 0, 0 otherwise */
	struct ctl_page page; /* entries are replicas                                           */
	/*
	 * Worker to agent: what was fetched before will do when it is of this generation or of a
	 * later one. 0: what is now.
	 */
	uint64_t generation;
};

struct ctl_resolve {
	char model[TH_NAME_MAX + 1];
	char spec[TH_SPEC_MAX + 1];
	uint32_t shard;
};

/*
 * When the member has a part of the last copy of a retained version, the parts of all members are
 * copied first, while the group goes on; the DRAIN follows then. When that cannot be done or
 * timeout_ns passes, CLOSE_REFUSED comes instead, and the session is open as before; not when the
 * worker died, broke the contract or abandons it: then it is given up.
 */
struct ctl_close {
	uint64_t sid;
	bool died;           /* the worker is gone: the part was not given up by its owner */
	bool broke_contract; /* it has written to what it had published */
	bool unreadable;     /* nobody can read what it holds, nor will be able to */
	bool abandon;        /* whatever happens to the version */
	int64_t timeout_ns;
};

/* The refusal of one RESERVE. It is accepted by OPEN with its number, then REGISTER. */
struct ctl_reserved {
	uint64_t reservation;
	uint32_t shard;
	int code; /* TH_E_NOMEM_RETAIN, ...: never 0 */
	char text[TH_CTL_TEXT_BYTES];
};

/*
 * What an operator asks, directly or through an agent; and an agent that is about to end, of
 * itself. Answered at once: what takes time is looked at again and again. To ask twice is to ask
 * once.
 */
enum ctl_admin_verb {
	CTL_ADMIN_DRAIN = 1, /* a node: nothing new comes, what must not be lost moves away */
	CTL_ADMIN_UNDRAIN,
	CTL_ADMIN_EVICT,  /* a replica: its group is broken, its members open again */
	CTL_ADMIN_EVENTS, /* what has happened after the event `after` */
	CTL_ADMIN_GO,     /* groups that follow the model may take its versions up to this one */
};

struct ctl_admin {
	uint32_t verb; /* enum ctl_admin_verb */
	char node[TH_NAME_MAX + 1];
	char model[TH_NAME_MAX + 1], replica[TH_NAME_MAX + 1];
	bool look;      /* DRAIN, EVICT: change nothing, only say how it stands */
	bool leaving;   /* DRAIN: by the agent of the node, which ends; until it attaches anew */
	bool force;     /* EVICT: also where the last copy of a retained version is lost */
	uint64_t group; /* EVICT: only this one, as an answer has said; 0: the one there is now */
	uint64_t after; /* EVENTS: their number */
	char spec[TH_SPEC_MAX + 1]; /* GO: the version */
	char from[TH_NAME_MAX + 1]; /* who asks, for the log of events; may be empty */
};

/*
 * An agent lends a shard out of a copy in its own memory. When there is none the server has it made
 * there, by RESERVE and as any; what cannot be made is told by BORROW_REFUSED. A copy that is there
 * is not given up before the agent says stop.
 */
struct ctl_borrow {
	char model[TH_NAME_MAX + 1];
	struct th_version version;
	uint32_t shard;
	bool stop;     /* nobody borrows it any more */
	bool held;     /* it is lent already: if it is there no more, it is not made again */
	uint64_t room; /* as many bytes may be brought for it */
};

/* ---- a session, to a server that knows nothing of it ----------------------------------------- */

#define TH_OUTCOMES_MAX 64u /* as many operations as a member may be ahead of its group */

/* How an operation ended: what one member was told the others must be told too. */
struct ctl_known_outcome {
	uint64_t op_seq;
	uint32_t kind, flags;
	char spec[TH_SPEC_MAX + 1];
	int code;
	bool updated;
	bool went;                 /* it was after GO: the old content was given up */
	struct th_version version; /* held since, when code is 0 */
};

/*
 * A session that a former server life knew. When all members of its group have said theirs and
 * nothing in it contradicts the rest, the group is live again: what it holds is listed, what ran
 * runs on under the old numbers, and operations that had no GO are called again by OP.
 */
struct ctl_rejoin {
	uint64_t sid, group_inc; /* as the former server numbered them */
	struct ctl_open open;
	/*
	 * It has ended meanwhile or is broken, and with it the group. Of what is below only what is
	 * held counts: it can still be read, and may be copied elsewhere before it is given up.
	 */
	bool gone;
	bool died; /* it is gone because its worker died */
	bool registered;
	struct ctl_register reg;
	uint64_t next_op_seq; /* all before it are decided or have had their GO */

	struct th_version held; /* none: nothing */
	uint64_t gen;           /* of held */
	bool hashed;            /* of held, or of what is all there of the running operation: */
	struct th_hash content; /* of those bytes, as in CONTENT */
	struct th_hash attributes;
	bool refused;   /* others had published other bytes before */
	bool published; /* held: its bytes are its worker's own, not received */

	bool went; /* an operation runs after its GO: */
	uint64_t op_seq;
	uint32_t kind, flags;
	char spec[TH_SPEC_MAX + 1];
	struct th_version version;
	bool cancelled;  /* a CANCEL of the server has come */
	bool done;       /* every byte is here */
	uint32_t chunks; /* verified prefix */
	uint64_t leg;    /* that runs; 0: none */
	bool leg_stops;  /* the leg was told to give way to another */
	uint64_t source_sid, source_gen;
	struct th_hash announced; /* of what it reads, as GO or REROUTE has said; or none */

	char follows[TH_SPEC_MAX + 1]; /* as FOLLOW has said; empty: it follows nothing */
	struct th_version go;          /* the model's mark, as GO_MARK has said; none: it did not */
	uint64_t automatic_waits;      /* an automatic operation that had no GO here; 0: none */
	/* How the last automatic operation has ended; op_seq 0: none has, or it is not known. */
	struct ctl_known_outcome automatic;

	uint32_t num_outcomes; /* ascending by op_seq, at most TH_OUTCOMES_MAX */
	const struct ctl_known_outcome *outcomes;
};

struct ctl_rejoined {
	uint32_t num_sessions;
};

struct ctl_request {
	enum ctl_request_kind kind;
	uint64_t agent_inc; /* random, one per agent process */
	/*
	 * Chosen by the agent process, the same in all that it says but HELLO. Others know
	 * agent_inc; this is what shows that a request is the agent's.
	 */
	struct th_secret secret;
	uint64_t request_no; /* a repeat with the same number gets the remembered reply */
	/*
	 * Whatever has a lower number was answered and is never sent again: the server need not
	 * remember those replies. 0: the agent does not say.
	 */
	uint64_t answered_below;
	/*
	 * Not on the wire: by which connection it came, as the shell that received it says. 0: it
	 * does not say.
	 */
	uint64_t connection;
	uint64_t attach_no; /* from the last reply to ATTACH; HELLO and a first ATTACH: 0 */
	union {
		struct ctl_hello hello;
		struct ctl_attach attach;
		struct ctl_beat beat;
		struct ctl_poll poll;
		struct ctl_open open;
		struct ctl_register reg;
		struct ctl_blob_part manifest_put;
		struct ctl_blob_get manifest_get;
		struct ctl_op op;
		struct ctl_cancel cancel;
		struct ctl_prepared prepared;
		struct ctl_leg_end leg_end;
		struct ctl_drain_done drain_done;
		struct ctl_content content;
		struct ctl_watch watch;
		struct ctl_list list;
		struct ctl_resolve resolve;
		struct ctl_close close;
		struct ctl_admin admin;
		struct ctl_page inspect; /* entries are nodes, then members, then transfers */
		struct ctl_reserved reserved;
		struct ctl_rejoin rejoin;
		struct ctl_rejoined rejoined;
		struct ctl_borrow borrow;
		uint64_t unregister_sid;
		uint64_t waits_sid;
	} u;
};

/* ---- events ------------------------------------------------------------------------------ */

enum ctl_event_kind {
	CTL_EV_PLAN = 1,      /* to every member that called: this is the operation */
	CTL_EV_GO,            /* to every member: pull, from here */
	CTL_EV_REROUTE,       /* stop this leg (send its LEG_END), go on with that one */
	CTL_EV_GRANT,         /* to a source's agent: this ticket may read (sid, gen) */
	CTL_EV_FENCE,         /* to a source's agent: forget the leg, destroy what it has */
	CTL_EV_DRAIN,         /* no new legs on (sid, gen); answer DRAIN_DONE when none is left */
	CTL_EV_UNDRAIN,       /* the part is listed again */
	CTL_EV_CANCEL,        /* stop pulling for this operation; LEG_END, then OUTCOME follows */
	CTL_EV_OUTCOME,       /* the end of an operation, the same for all members */
	CTL_EV_CHANGED,       /* the listing of a watched model changed */
	CTL_EV_BROKEN,        /* the group of this member is broken */
	CTL_EV_CONFLICT,      /* others had published other bytes before: the copy is not listed */
	CTL_EV_RESERVE,       /* hold a copy of this shard in the agent's own memory */
	CTL_EV_RELEASE,       /* that copy is not needed any more: close its session */
	CTL_EV_CLOSE_REFUSED, /* to who sent CLOSE: the session is open as before */
	CTL_EV_NODE,          /* to the agent of a node: it is being drained, or is not any more */
	CTL_EV_PING,    /* nothing but its number: the POLL that acknowledges it is the answer */
	CTL_EV_AT_RISK, /* a retained version that it holds or names may be lost, or is */
	CTL_EV_RULES,   /* to who has a member of the model: what all retain of it */
	CTL_EV_READY,   /* what update would install without the network, or that it is gone */
	CTL_EV_BORROW_REFUSED, /* to who sent BORROW: it will not be there */
	CTL_EV_GO_MARK,        /* to who has a member that follows: the model's mark */
};

struct ctl_grant { /* one shard from one source: a leg */
	uint64_t leg;
	struct th_ticket ticket;
	uint64_t source_sid, source_gen;
	uint64_t source_agent_inc; /* the reader's own: a copy within the host */
	char source_address[TH_ADDRESS_MAX + 1];
	char source_replica[TH_NAME_MAX + 1];
	char source_node[TH_NAME_MAX + 1];
	bool far; /* the source is in another datacenter */
};

struct ctl_ev_plan {
	uint64_t sid, op_seq;
	uint32_t kind;
	uint32_t plan_no; /* 0; of one that takes the place of another: higher */
	bool drain_old;   /* give up what the member holds: drain it, then PREPARED */
	struct th_version version;
	struct th_hash layout;   /* of this member's shard at the source */
	struct th_hash manifest; /* its rows, to name the tensor when layouts differ */
};

struct ctl_ev_go {
	uint64_t sid, op_seq;
	struct ctl_grant grant;
	struct th_hash attributes;     /* of what is read: to be told to the next server; or none */
	struct th_hash content;        /* of what is read, as its publisher says; none: not yet */
	char reason[CTL_REASON_BYTES]; /* why the source is no better one; empty: none is better */
};

struct ctl_ev_reroute {
	uint64_t sid, op_seq;
	uint64_t old_leg; /* 0: it has ended already */
	struct ctl_grant grant;
	struct th_hash content; /* as in GO */
};

struct ctl_ev_grant {
	uint64_t leg;
	struct th_ticket ticket;
	uint64_t sid, gen;
	uint64_t reader_agent_inc;
	char reader_node[TH_NAME_MAX + 1];
	char reader_replica[TH_NAME_MAX + 1];
	bool far; /* the reader is in another datacenter */
};

struct ctl_ev_part {
	uint64_t sid, gen;
	uint64_t drain_no; /* grows with every DRAIN of the server; DRAIN_DONE gives it back */
};

struct ctl_ev_outcome {
	uint64_t sid, op_seq;
	uint32_t kind;
	int code;
	bool updated;
	struct th_version version; /* now held, when code is 0 */
	uint64_t generation;       /* of the listing, grouped list */
	char source[TH_NAME_MAX + 1];
	char text[TH_CTL_TEXT_BYTES];
};

struct ctl_ev_changed {
	char model[TH_NAME_MAX + 1];
	uint64_t generation;
};

struct ctl_ev_broken {
	uint64_t sid;
	char text[TH_CTL_TEXT_BYTES];
	bool evicted; /* by an operator: later calls answer TH_E_EVICTED */
};

/*
 * An offload copy is a group whose members are sessions of the agents themselves. The agent finds
 * the memory, opens a session with OPEN (model, replica, shard, num_shards and lineage as here, and
 * the reservation) and sends REGISTER; or it answers RESERVED. When all shards are registered the
 * server begins the group's first operation by itself: CTL_OP_REPLICATE with op_seq 1, for which no
 * OP is sent, and PLAN, GO and OUTCOME follow as for any.
 */
struct ctl_ev_reserve {
	uint64_t reservation;
	char model[TH_NAME_MAX + 1];
	char replica[TH_NAME_MAX + 1]; /* of the copy that shall be kept */
	uint32_t shard, num_shards;
	struct th_version version;
	uint64_t bytes;
	uint32_t num_chunks;
	struct th_hash layout, manifest;
	uint64_t source_sid; /* a session of this agent with the same layout; 0: none */
	enum ctl_copy_why copy_why;
};

struct ctl_ev_release {
	uint64_t reservation;
	uint32_t shard;
	uint64_t sid; /* 0: no OPEN of it has come */
};

struct ctl_ev_close_refused {
	uint64_t sid;
	int code; /* TH_E_NOMEM_RETAIN or TH_E_TIMEOUT */
	char text[TH_CTL_TEXT_BYTES];
};

struct ctl_ev_node {
	bool draining;
	char text[TH_CTL_TEXT_BYTES]; /* who has asked for it */
};

/*
 * The rules that any group claims by, also one that has crashed: what an agent that is cut off from
 * the server goes by. It comes with every OPEN and REJOIN of a worker's, and when there are others.
 */
struct ctl_ev_rules {
	char model[TH_NAME_MAX + 1];
	bool all; /* more than fit a list, or not all are known yet: every version is retained */
	char rules[TH_RETAIN_MAX + 1]; /* all: empty */
	/* Those of them that more than one group claims: they stay when one of these closes. */
	char shared[TH_RETAIN_MAX + 1];
};

/*
 * Only to a member that was opened with CTL_OPEN_SEED or CTL_OPEN_PREFETCH, for an agent that knows
 * neither does not know this event.
 */
struct ctl_ev_ready {
	uint64_t sid;
	struct th_version version; /* none: there is none any more */
};

/* Only to an agent that has sent BORROW. */
struct ctl_ev_borrow_refused {
	char model[TH_NAME_MAX + 1];
	struct th_version version;
	uint32_t shard;
	int code; /* TH_E_NOT_AVAILABLE, TH_E_LIMIT, ...: never 0 */
	char text[TH_CTL_TEXT_BYTES];
};

/*
 * Up to which version the groups that follow may go. Their agents say it to the next server. Only
 * to an agent with a member that has called FOLLOW, for an older one does not know this event.
 */
struct ctl_ev_go_mark {
	char model[TH_NAME_MAX + 1];
	struct th_version version;
};

struct ctl_event {
	enum ctl_event_kind kind;
	uint64_t number; /* 1, 2, ... per agent */
	union {
		struct ctl_ev_plan plan;
		struct ctl_ev_go go;
		struct ctl_ev_reroute reroute;
		struct ctl_ev_grant grant;
		uint64_t fence_leg;
		struct ctl_ev_part drain, undrain;
		struct ctl_cancel cancel;
		struct ctl_ev_outcome outcome;
		struct ctl_ev_changed changed;
		struct ctl_ev_broken broken, conflict, at_risk;
		struct ctl_ev_reserve reserve;
		struct ctl_ev_release release;
		struct ctl_ev_close_refused close_refused;
		struct ctl_ev_node node;
		struct ctl_ev_rules rules;
		struct ctl_ev_ready ready;
		struct ctl_ev_borrow_refused borrow_refused;
		struct ctl_ev_go_mark go_mark;
	} u;
};

/* ---- replies ------------------------------------------------------------------------------ */

struct ctl_hello_reply {
	uint64_t server_inc;
	uint32_t protocol;
	uint32_t epoch;                   /* 0: it does not know yet, nobody has attached */
	bool serving;                     /* false: a standby, or fenced */
	char cluster[TH_CLUSTER_MAX + 1]; /* that this server is of; empty: of any */
};

struct ctl_attach_reply {
	uint64_t server_inc;
	uint64_t attach_no; /* of this attachment: every later request carries it */
	uint32_t epoch;     /* of this server life: grows from one to the next */
	bool fresh; /* the server knew nothing of this agent: its earlier sessions are gone */
};

struct ctl_poll_reply {
	uint32_t num_events;
	const struct ctl_event *events;
};

struct ctl_open_reply {
	uint64_t sid;
	uint64_t next_op_seq;
	uint64_t group_inc; /* of this incarnation of the replica */
};

struct ctl_resolve_reply {
	struct th_version version;
	uint32_t num_shards;
	struct th_hash layout, manifest, attributes;
};

struct ctl_waits_reply {
	char text[TH_CTL_TEXT_BYTES]; /* a sentence for people */
};

struct ctl_reply {
	enum ctl_request_kind kind;
	uint64_t request_no;
	int code; /* 0 or TH_E_*; with a code only text holds */
	/*
	 * The server does not know this agent life or attachment: attach, then try again. Happens
	 * when the server restarted or declared the agent dead. code is TH_E_NO_SERVER then.
	 */
	bool unknown_agent;
	char text[TH_CTL_TEXT_BYTES];
	union {
		struct ctl_hello_reply hello;
		struct ctl_attach_reply attach;
		struct ctl_poll_reply poll;
		struct ctl_open_reply open; /* and of REJOIN: the group may have another number */
		struct ctl_blob_part manifest_get;
		struct ctl_resolve_reply resolve;
		struct ctl_waits_reply waits;
		struct ctl_ev_changed watch; /* the generation now */
		struct ctl_listing list;
		struct ctl_inspection inspect;
		struct ctl_admin_reply admin;
	} u;
};

#endif
