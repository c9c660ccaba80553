/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv_state - everything the reference server knows, and who owns what.
 *
 *   server > model > group (a replica's incarnation) > member (one shard, one session)
 *                  > version > copy (what a group holds) > part (one member's bytes) > leg
 *                            > content (what one publish has brought; copies share it)
 *
 * A group holds at most one copy and has at most one undecided operation. A leg connects a source
 * part with a destination part and is listed in both; it lives until its reader's agent has said
 * that it is over. Every object is owned by the list or table named beside it; all other pointers
 * are borrowed, and the functions that free an object clear them. One thread, no I/O, no clock.
 */
#ifndef TH_SERVER_CORE_REFSRV_STATE_H
#define TH_SERVER_CORE_REFSRV_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/ctl.h"
#include "ipc/base/err.h"
#include "ipc/base/retain_rules.h"
#include "ipc/base/tables.h"
#include "server/core/refsrv.h"
#include "server/core/view/event_log.h"

#define OP_WINDOW 64u            /* operations a member may be ahead of its group's slowest       */
#define CHAIN_DEPTH_MAX 256u     /* hops from a complete copy: beyond it a chain is all latency   */
#define REMEMBERED_MAX 1024u     /* replies kept per agent that says which it may ask for again */
#define REMEMBERED_UNSAID 128u   /* replies kept for an agent that does not say what it has*/
#define EVENTS_QUEUED_MAX 65536u /* per agent: one that never polls must not fill the memory    */
#define WATCHES_MAX 1024u        /* models watched by one agent                                   */
#define BORROWS_MAX 4096u        /* shards that one agent lends, or wants to lend                 */
#define UPLOADS_MAX 16u          /* unfinished blobs of one agent                                 */
#define PAIR_BLOCK_GROWTH_MAX 10 /* a pair's block doubles up to this many times its first      */
#define PAIR_LAST_RESORT 16      /* the only source is tried again after this part of the block   */

/* ---- time ----------------------------------------------------------------------------------- */

enum timer_kind { TIMER_AGENT = 1, TIMER_MODEL, TIMER_OP, TIMER_RETENTION, TIMER_GROUP };

struct timer { /* see timer.h */
	int64_t at_ns;
	uint64_t order; /* of asking */
	uint32_t place; /* in server.timers, from 1; 0: not set */
	enum timer_kind kind;
};

/* ---- agents --------------------------------------------------------------------------------- */

enum agent_state { AGENT_ACTIVE = 1, AGENT_SUSPECT, AGENT_DEAD };

struct queued_event { /* owned by agent.events */
	struct ctl_event event;
	struct queued_event *prev, *next;
};

struct remembered { /* the reply to a state-changing request; owned by agent.remembered */
	uint64_t request_no;
	enum ctl_request_kind kind;
	int code;
	char *text; /* owns; NULL: none */
	struct ctl_open_reply open;
	struct ctl_attach_reply attach;
	struct remembered *prev, *next;
	UT_hash_handle hh;
};

enum pair_state { PAIR_FREE, PAIR_LAST_RESORT_ONLY, PAIR_BLOCKED };

struct pair_block { /* owned by the reader's agent.blocks */
	uint64_t source_inc;
	int64_t until_ns;       /* avoided until then                                       */
	int64_t last_resort_ns; /* from then on taken when nothing else is left             */
	int64_t duration_ns;    /* doubles with every failure                               */
	enum pair_state state;  /* as last acted upon                                       */
	struct pair_block *prev, *next;
};

struct watch { /* owned by agent.watches */
	struct model *model;
	uint64_t told; /* generation of the last CHANGED, or of the reply to WATCH          */
	struct agent *agent;
	struct watch *prev, *next;             /* in agent.watches  */
	struct watch *model_prev, *model_next; /* in model.watches  */
};

struct upload { /* a blob that is not complete; owned by agent.uploads */
	struct th_hash key;
	uint64_t total_bytes, received_bytes;
	uint8_t *data;
	struct upload *prev, *next;
};

struct agent { /* owned by server.agents */
	struct refsrv *server;
	uint64_t inc;
	struct th_secret secret;    /* of its first ATTACH: who has it is this agent */
	uint64_t attach_no;         /* of its attachment: what carries another is of a former one */
	uint64_t first_attach_no;   /* what it knows of goes back to this one */
	uint64_t attach_request_no; /* of its last ATTACH: an older one comes late */
	struct ctl_attach info;
	enum agent_state state;
	int64_t beat_live_ns; /* on the server's live clock */
	uint64_t connection;  /* of its last beat; 0: none, or not known */
	bool gone;            /* that connection ended, and no beat has come since */
	int64_t gone_live_ns; /* when the connection ended */
	bool overflowed;      /* its event queue is full: it is treated as dead */
	bool draining;        /* an operator wants its node empty: see node_drain.h */
	bool leaving;         /* it is about to end */
	bool told_empty;      /* the log says that nothing is waited for */
	struct timer timer;   /* while it lives */
	bool inventory_due;   /* it had another server, and says what it holds */
	bool has_warmed;      /* its models have waited for its inventory: once in its life */
	bool warms;           /* its models wait now: what it brings makes them warm */

	bool polling;
	uint64_t poll_token, poll_request_no;
	int64_t poll_deadline_ns;
	bool ready; /* listed in server.ready */
	struct queued_event *events;
	uint64_t num_events, last_event_no, acked_event_no;
	int64_t stuck_ns;  /* since when it has fetched none of them                          */
	uint64_t ping_no;  /* event number of a PING that has no answer yet; 0: none         */
	int64_t ping_ns;   /* when the ping was sent*/
	int64_t proven_ns; /* it has answered a PING of this time; INT64_MIN: none           */

	struct remembered *remembered_by_no, *remembered;
	uint32_t num_remembered;
	uint64_t forgotten_request_no; /* the highest that fell out of the window */
	uint64_t answered_below;       /* as the agent says: lower ones never come again */

	struct member *members; /* borrows: by agent_prev/agent_next */
	uint32_t num_members, legs_in, legs_out;
	uint32_t legs_far; /* legs_out to other agents: what its network has to carry          */
	uint32_t num_reserved; /* shards of offload copies that it holds or was asked for      */
	struct pair_block *blocks;
	/* As a source: the reader that blamed it last, how long that is remembered, and until when
	 * it is the last resort for all, because two different ones did. */
	uint64_t blamed_by;
	int64_t blamed_until_ns, quarantine_until_ns;
	struct watch *watches;
	uint32_t num_watches;
	uint32_t num_borrows; /* of all models */
	struct upload *uploads;
	uint32_t num_uploads;
	uint64_t visit; /* scratch of route.c */
	struct agent *ready_prev, *ready_next, *dead_prev, *dead_next;
	UT_hash_handle hh, hh_node, hh_poll, hh_connection;
};

/* ---- retention ------------------------------------------------------------------------------- */

struct claim { /* the same rules of any number of groups; owned by retention.claims */
	struct th_retain rules;
	uint32_t num_holders; /* groups that have not been closed                            */
	uint32_t num_closing; /* holders of which a member closes: they do not count*/
	int64_t grace_ns;     /* a holder has crashed: it lasts until then; INT64_MIN: none  */
	struct claim *prev, *next;
};

/* What must be known before a copy is given up; owned by copy.keep. See last_copy.h. */
struct keep {
	int64_t since_ns;  /* only what is proven later counts                            */
	int64_t until_ns;  /* of a broken group: it is kept no longer, unless bytes move  */
	uint64_t progress; /* chunks of its offload copy when that was looked at last */
	int code;          /* of the offload that failed; 0: none has                     */
	char text[TH_CTL_TEXT_BYTES];
};

enum offload_why {
	OFFLOAD_GIVEN_UP = 1, /* the last copy is to be given up, or its group has broken */
	OFFLOAD_RESCUE,       /* only copies on spot hosts are left                       */
	OFFLOAD_DRAIN,        /* its node is being drained                                */
	OFFLOAD_REJOINED,     /* its agent did not say what a former server life made it for */
	OFFLOAD_FETCH,        /* a group wants it before it asks: see fetch.h             */
	OFFLOAD_BORROW,       /* a process of its host borrows it: see borrow.h           */
};

enum offload_state {
	OFFLOAD_RESERVING = 1, /* agents are asked for memory                          */
	OFFLOAD_FILLING,       /* its group replicates                                 */
	OFFLOAD_READY,
};

struct offload_shard {
	uint64_t place_inc; /* FETCH, BORROW: the agent where it is wanted              */
	uint64_t agent_inc; /* of whom it was asked; 0: of nobody                       */
	uint64_t sid;       /* of its session; 0: no OPEN has come                      */
	bool registered;
	uint64_t *refused; /* owns: agents that are not asked again                     */
	uint32_t num_refused;
};

struct offload { /* owned by retention.offloads; see offload.h */
	uint64_t reservation;
	struct version *version; /* NULL: it is gone, and this goes with the step        */
	enum offload_why why;
	enum offload_state state;
	char replica[TH_NAME_MAX + 1]; /* of the copy that is kept                       */
	uint64_t source_id;            /* the id of the source*/
	uint64_t avoid_inc;            /* agent that gets no part of it; 0: none         */
	bool pinned;         /* FETCH, BORROW: only where it is wanted, nowhere near             */
	struct group *group; /* borrows; NULL: nobody has joined               */
	uint32_t num_shards;
	struct offload_shard *shards; /* owns                                            */
	uint32_t attempts;
	int64_t deadline_ns;
	int64_t spare_ns; /* READY: another copy will do since then; INT64_MAX: none will */
	char text[TH_CTL_TEXT_BYTES]; /* the last refusal                                */
	bool rejoined;                /* a former server life had it made                */
	bool explained;               /* it was said what its group will break of*/
	struct offload *prev, *next;
};

struct borrow { /* a shard that an agent lends, or wants to; owned by retention.borrows */
	uint64_t agent_inc;
	struct th_version version;
	uint32_t shard;
	uint64_t room; /* a version that is brought for it must not be larger            */
	bool held;     /* it was there: should it go, it is not made again               */
	struct borrow *prev, *next;
};

struct retention { /* see retain.h; part of struct model */
	struct model *model;
	struct claim *claims;
	struct offload *offloads;
	struct borrow *borrows;
	struct timer timer; /* at wake_ns */
	int64_t wake_ns;    /* the next of all deadlines, while the model is settled     */
	uint64_t looks;     /* scratch of fetch.c: so often it has settled               */
	bool seeds;         /* likewise: some group wants copies anywhere near           */
	/* What the agents were told last: see retain_notice.h. */
	struct rules_told {
		struct th_retain rules;
		struct th_retain shared; /* by more than one group, one that crashed counts */
		bool all;                /* more than fit, or not all are known yet         */
	} told;
	int64_t shrink_ns; /* there is less by now, which is told then; INT64_MAX: no     */
};

/* ---- models, versions, copies --------------------------------------------------------------- */

struct model { /* owned by server.models; freed when nothing refers to it */
	struct refsrv *server;
	char name[TH_NAME_MAX + 1];
	struct version *versions; /* ascending */
	struct group *groups;     /* all incarnations, oldest first */
	struct replica *replicas; /* the same by name */
	struct group *busy; /* those with an open operation, or broken: by busy_prev/busy_next */
	uint32_t num_rejoining; /* groups that a former life knew, and that are not live yet */
	uint32_t num_unbuilt;   /* groups whose members are all there: they wait for a source */
	uint32_t num_following;
	struct th_version go; /* followers may take versions up to this one; none: no go yet */
	int64_t warm_ns;      /* it is warming, until then; 0: it is not */
	int64_t warm_end_ns;  /* it is not warm any more after that; 0: it has not been yet */
	struct watch *watches;
	struct retention retention;
	uint64_t generation; /* of the listing */
	uint64_t revision;   /* the revision of what it says of progress */
	int64_t quiet_ns;    /* no CHANGED before this */
	bool changed;        /* a CHANGED is due: listed in server.changed, or by the timer */
	bool dirty;          /* something changed that an operation may be waiting for */
	struct timer timer;  /* at quiet_ns */
	struct model *dirty_prev, *dirty_next;     /* in server.dirty */
	struct model *changed_prev, *changed_next; /* in server.changed */
	UT_hash_handle hh;
};

struct shard_layout {
	struct th_hash layout, manifest;
	uint64_t bytes;
	uint32_t num_chunks;
};

struct version { /* owned by model.versions; exists while it has a copy */
	struct model *model;
	struct th_version id;
	uint32_t num_shards;
	struct shard_layout *shards; /* owns; holds references to its blobs */
	struct copy *copies;         /* oldest first */
	struct copy *filling;        /* those that are PARTIAL: by fill_prev/fill_next */
	struct copy *by_name;        /* all, by name_prev/name_next: see copy_sort */
	bool unsorted;               /* by_name is not in order */
	struct content *contents;    /* not refused, oldest first: the head is what is listed */
	int64_t risk_ns;  /* retained, and only spot hosts have it, since then; INT64_MAX: no */
	int64_t retry_ns; /* the next rescue is not tried before*/
	bool risk_told;
	bool risk_raised; /* its holders have been told: see at_risk.h */
	struct version *prev, *next;
};

struct content_shard {
	struct th_hash hash;       /* over the digests of its chunks; none: not known */
	bool unverified;           /* its agent makes no digests */
	struct th_hash attributes; /* holds a reference to the blob */
};

struct content { /* owned by version.contents; a refused one by its copies; see content.h */
	struct version *version;
	struct content_shard *shards; /* owns */
	uint32_t num_copies;
	bool rejoined;  /* published in a former server life */
	bool published; /* its publisher has come back, whose word counts more */
	bool refused;
	uint32_t refused_shard;           /* the first that differs */
	char refused_by[TH_NAME_MAX + 1]; /* replica */
	struct content *prev, *next;
};

enum copy_state { COPY_PARTIAL = 1, COPY_READY };

struct copy {           /* owned by version.copies */
	uint64_t id;    /* creation order */
	uint64_t visit; /* scratch of route.c */
	struct version *version;
	struct group *group; /* whose group.copy points here, unless given_up */
	struct content *content;
	bool refusal_due; /* its content is refused, and the next call must say so */
	uint64_t gen;
	enum copy_state state;
	bool received;        /* filled by legs: its word on its bytes is compared, never taken */
	bool draining;        /* no new legs: being given up, broken, or aborted */
	bool aborting;        /* its operation failed after GO: nothing can be had from it */
	bool rescued;         /* its group is broken: kept for its offload copy to read from */
	bool seed;            /* it is or was read from another datacenter: see dc_seed.h */
	int64_t seed_live_ns; /* it is a seed since then, on the live clock */
	struct keep *keep;    /* owns; NULL: nobody wants to give it up */
	uint32_t num_parts;
	struct part *parts; /* owns, num_parts */
	struct copy *prev, *next, *fill_prev, *fill_next, *name_prev, *name_next;
};

enum chain { CHAIN_UNKNOWN, CHAIN_ALIVE, CHAIN_ADRIFT, CHAIN_ORPHAN };

struct part {
	struct copy *copy;
	struct member *member; /* NULL: forgotten after its drain */
	uint32_t shard;
	uint32_t chunks_done;  /* verified prefix */
	int64_t chunk_live_ns; /* when its leg began or that grew, on the live clock */
	int64_t moved_live_ns; /* the same of any byte of it                         */
	bool done;
	bool served;         /* a leg was granted on it */
	struct th_hash told; /* by its reader, when all is there: what it has; none: did not say */
	bool drained;        /* proven: no leg reads it, and none will */
	bool proof_due;      /* what it began with is gone: its digests must match in the end  */
	uint64_t drain_no;   /* of the DRAIN that has not been answered; 0: none */
	struct leg *leg;   /* the current leg that fills it; NULL: done, or waiting for a source */
	struct leg *fills; /* every leg into it that is not over: by dst_prev/dst_next */
	struct leg *readers; /* every leg out of it that is not over: by src_prev/src_next */
	uint32_t num_fills, num_readers;
	char *source_name; /* owns: the replica the last leg read from; NULL: none */

	/* Scratch of route.c, valid while mark equals server.mark. */
	uint64_t mark, below_mark;
	enum chain chain;
	bool crosses; /* what it still gets comes from another datacenter, perhaps through others */
	uint32_t depth, descendants;
	struct part *walk;
};

struct leg { /* owned by server.legs */
	uint64_t id;
	struct th_ticket ticket;
	struct part *dst;
	struct part *src; /* NULL: the source is gone, the reader has not said how it ended */
	struct member *reader;
	struct op *op;
	uint64_t src_copy_id;
	uint64_t adopted_sid, adopted_gen; /* what it reads, as its agent says; 0: see src       */
	bool blameless; /* the server itself took the source away: a failure proves nothing */
	uint32_t moved; /* so often because its source was given up: not more than once */
	int64_t granted_ns;
	uint64_t bytes_moved; /* as its reader's agent says; 0: it does not          */
	struct ctl_path path; /* as its reader's agent says it */
	struct leg *dst_prev, *dst_next, *src_prev, *src_next;
	struct leg *unlinked_prev, *unlinked_next; /* in server.unlinked                         */
	UT_hash_handle hh;
};

/* ---- groups and operations ------------------------------------------------------------------ */

enum group_state { GROUP_FORMING = 1, GROUP_LIVE, GROUP_BROKEN };

struct member { /* owned by server.members */
	uint64_t sid;
	struct agent *agent;
	struct group *group;
	uint32_t shard, flags, pid;
	uint64_t next_op_seq;
	struct rejoin *rejoin; /* owns; what it says of a former server life, until all have */
	uint64_t former_inc;   /* its group's number there; 0: it was opened here */
	uint64_t unbuilt_gen;  /* of what it holds from then, and is not on record; 0: none  */
	bool closing;          /* CLOSE was seen, and waits until the version is safe elsewhere */
	int64_t close_ns;      /* it may take until then to close */
	bool closed; /* CLOSE was seen: kept until its part is drained and its legs are over */
	bool registered;
	struct ctl_register reg;
	struct member *agent_prev, *agent_next;
	UT_hash_handle hh;
};

struct replica {              /* owned by model.replicas, while it has a group */
	char *name;           /* owns */
	struct group *groups; /* all incarnations, oldest first: by same_prev/same_next */
	UT_hash_handle hh;
};

struct awaited { /* owned by server.awaited: of a session that has not come back */
	uint64_t sid;
	struct group *groups; /* borrows: who reads from it; see rejoin_build */
	UT_hash_handle hh;
};

struct fetching { /* what its hosts bring before it asks: see fetch.h; part of struct group */
	char name[TH_SPEC_MAX + 1];      /* of its last update; empty: none, latest is followed */
	struct th_version ready;         /* as its members were told last */
	struct th_version failed;        /* this one could not be brought, */
	struct th_version failed_beside; /* when that was ready, */
	char why[CTL_REASON_BYTES];      /* for this reason */
	uint32_t given_up;               /* in a row, because a newer one was there */
	uint64_t on_its_way;             /* retention.looks, when something was that it waits for */
};

struct following { /* see follow.h; part of struct group */
	bool follows;
	struct th_version target; /* it tries to take this one, or has                    */
	int64_t pause_ns;         /* after the last failure                               */
	int64_t retry_ns;         /* not again before                                     */
};

struct group {                /* owned by model.groups */
	struct replica *same; /* the other incarnations */
	struct model *model;
	char replica[TH_NAME_MAX + 1];
	char launch_id[TH_NAME_MAX + 1];   /* empty: none */
	char (*replaced)[TH_NAME_MAX + 1]; /* owns: launches before this one, oldest first */
	uint32_t num_replaced;
	uint64_t lineage, inc;
	uint32_t num_shards, num_joined;
	enum group_state state;
	int broken_code;         /* TH_E_GROUP_BROKEN or TH_E_EVICTED, for later calls */
	bool closed_in_order;    /* it ended because a member was closed, and for nothing else */
	char *broken_why;        /* owns: a sentence; NULL: not broken */
	struct member **members; /* owns the array; by shard, NULL: not there */
	struct op *ops;          /* ascending op_seq */
	struct op *automatic;    /* owns; the last that the server has begun by itself   */
	struct copy *copy;       /* what it holds or fills */
	struct th_retain retain; /* its members' rules                              */
	struct claim *claim;     /* borrows; NULL: no rules, or a member has closed */
	bool claim_closing;      /* counted in claim.num_closing                    */
	uint32_t num_closing;    /* members                                         */
	struct fetching fetch;
	struct following follow;
	uint64_t reservation;       /* members are agents' own sessions; 0: workers'   */
	enum ctl_copy_why copy_why; /* likewise, as a former server life said it          */
	struct offload *offload;    /* borrows; NULL: workers', or no longer wanted    */
	bool rejoining;             /* known to a former server life; operations are held  */
	bool unbuilt;               /* all of its members are there, and it waits*/
	uint64_t awaited_sid;       /* the session it waits for; 0: none*/
	struct awaited *awaited;    /* who lists it by awaited_prev and awaited_next*/
	struct group *awaited_prev, *awaited_next;
	bool opened;        /* some members were opened here and are no former life's*/
	bool together;      /* something was decided in it that took all       */
	bool over;          /* broken before, and what it held may be rescued  */
	int64_t form_ns;    /* its shards are waited for until then; 0: it was opened here*/
	struct timer timer; /* at form_ns                                      */
	bool busy;          /* listed in model.busy */
	struct group *busy_prev, *busy_next, *same_prev, *same_next;
	struct group *prev, *next;
};

/* Written by op_enter (op.h). */
enum op_state {
	OP_NONE,       /* being made                                                     */
	OP_HELD,       /* its member is too far ahead of the slowest                     */
	OP_GATHER,     /* before GO: members arrive, prepare, or a version is waited for */
	OP_OFFLOADING, /* the held copy is the last of a retained version: being copied */
	OP_DRAINING,   /* unpublish: the proofs of the parts are coming in               */
	OP_RUNNING,    /* after GO                                                       */
	OP_ABORTING,   /* failed after GO: legs end, parts drain                         */
	OP_DONE,       /* decided                                                        */
};

struct op_member {
	bool arrived, planned, prepared, went, told;
};

struct blame { /* this source gave this leg bytes that did not match the digest */
	uint32_t shard;
	uint64_t copy_id;
};

struct op { /* owned by group.ops */
	struct group *group;
	uint64_t seq;
	uint32_t kind, flags;
	char spec[TH_SPEC_MAX + 1];
	int64_t deadline_ns;              /* INT64_MAX: none */
	struct timer timer;               /* at deadline_ns, until it is decided */
	char first_node[TH_NAME_MAX + 1]; /* of the member that called first */
	uint32_t first_shard;
	enum op_state state;
	uint32_t num_arrived, num_prepared;
	struct op_member *members;  /* owns, num_shards */
	struct th_hash *attributes; /* owns, publish; by shard; holds references to the blobs */

	bool adopted;     /* it ran under a former server; some may have had no GO */
	uint32_t plan_no; /* so often it was planned before: what was planned has gone */
	/* PLAN fixes it, and none comes before. When it is decided: what the group holds. */
	struct th_version version;
	struct blame *blames; /* owns */
	uint32_t num_blames;
	char *blame_text; /* owns: what the last reader said of its source; NULL: nobody did */

	/* The outcome; when aborting, the cause. */
	int code;
	bool updated;
	char text[TH_CTL_TEXT_BYTES];
	struct snapshot *snapshot; /* holds; a grouped list */
	struct op *prev, *next;
};

/* ---- the other servers ---------------------------------------------------------------------- */

enum standby_state {
	STANDBY_ASKING = 1, /* some of them have neither answered nor failed to, yet      */
	STANDBY_WAITING,    /* one of them is there first, or serves                      */
	STANDBY_SERVING,    /* without others: always                                     */
	STANDBY_OVER,       /* another serves in its place: the shell makes a new core    */
};

struct peer_server {               /* times are on the live clock */
	bool self;                 /* it is this server: it has answered with its life     */
	bool tried;                /* it has answered or failed once                       */
	bool asked;                /* it is being asked, since asked_ns*/
	int64_t asked_ns, next_ns; /* next_ns: asked again                        */
	int64_t heard_ns;          /* its last answer; INT64_MIN: none yet                 */
	int64_t since_ns;          /* it has answered all questions since; INT64_MAX: none */
	uint64_t inc;              /* as it said last:                                     */
	uint32_t epoch;
	bool serving;
};

struct standby { /* see standby.h; part of struct refsrv */
	enum standby_state state;
	uint32_t num_peers;
	struct peer_server peers[REFSRV_PEERS_MAX];
	uint32_t epoch;   /* the highest heard of */
	int64_t hint_ns;  /* a question of another is no reason to ask before that, live */
	int64_t stood_ns; /* this server stood still longer than silence_ns, then; INT64_MIN */
	char text[TH_CTL_TEXT_BYTES];    /* why it does not serve */
	struct refsrv_standing standing; /* for the shell */
	struct refsrv_probe probes[REFSRV_PEERS_MAX];
};

/* ---- the server ----------------------------------------------------------------------------- */

struct blob { /* owned by server.blobs, oldest first */
	struct th_hash key;
	uint64_t bytes;
	uint8_t *data;       /* NULL: it is referred to, and will be put again */
	uint64_t references; /* members and versions */
	UT_hash_handle hh;
};

struct snapshot { /* owned by server.snapshots, its arrays behind it */
	uint64_t id, owner;
	char model[TH_NAME_MAX + 1]; /* of a listing */
	bool inspection;
	bool whole; /* one part holds all of it */
	uint64_t revision, bytes;
	uint32_t references; /* of operations */
	int64_t made_ns, used_ns;
	union {
		struct ctl_listing listing;
		struct ctl_inspection inspection;
	} u;
	UT_hash_handle hh;
};

struct drained_node;

struct scratch { /* memory of the last replies; owned by server.scratch */
	struct scratch *next;
};

struct refsrv {
	struct refsrv_config config;
	int64_t started_ns, now_ns;
	int64_t live_ns; /* like now_ns, without the time in which the server itself stood still */
	int64_t wake_ns; /* the earliest of all deadlines, or earlier */
	int64_t promised_ns; /* when the host was asked to call again */

	struct agent *agents;
	struct agent *nodes;       /* the same, by node: by hh_node                               */
	struct agent *polls;       /* those that poll, by token: by hh_poll                       */
	struct agent *connections; /* those that have one, by it: by hh_connection            */
	struct agent *ready;       /* those that poll and have events: by ready_prev/ready_next   */
	struct agent *dead;        /* longest dead first: by dead_prev/dead_next                  */
	struct model *models;
	struct model *dirty;   /* to be settled in this step: by dirty_prev/dirty_next */
	struct model *changed; /* to be told of at its end: by changed_prev/changed_next */
	struct timer **timers; /* owns the array: a heap of borrowed timers */
	uint32_t num_timers, timers_max;
	uint64_t last_timer;
	struct member *members;
	struct leg *legs;
	struct awaited *awaited; /* by sid */
	struct leg *unlinked;    /* adopted ones whose source has not come back: adopted_sid != 0 */
	struct blob *blobs;
	uint32_t num_living, num_suspect; /* agents not dead, and those of them */
	uint64_t blob_bytes;              /* of blobs and of uploads, as announced */
	struct snapshot *snapshots;
	uint32_t num_claims;  /* of all models, each with other rules than those beside it */
	uint64_t num_events;  /* that no agent has fetched, but those of whom is given up for it */
	uint64_t num_at_risk; /* versions of which at_risk.h has told */
	uint64_t snapshot_bytes, last_snapshot;
	uint64_t generation; /* the highest of any model's listing */
	uint64_t revision;   /* the revision of any model's */
	struct event_log log;
	struct drained_node *drained_nodes; /* by operators; see node_drain.h */
	uint32_t num_drained_nodes;
	int64_t drain_look_ns;
	struct {
		uint64_t requests, polls, beats, lists, watches, changed, snapshots, watches_open;
		uint64_t refused_epochs, refused_clusters, refused_secrets;
	} counters;
	struct standby standby;
	bool warming;        /* agents may still say what a former server knew: see rejoin.h */
	int64_t warm_ns;     /* it warms until then, and until all inventories are in */
	int64_t warm_end_ns; /* it does not warm longer than until then */
	uint32_t num_inventories_due;
	uint32_t num_formed_again; /* groups that a former life knew, until they are forgotten */
	uint64_t first_id;         /* of this life and epoch */
	uint32_t epoch;            /* of this life; 0: nobody has attached yet */
	uint64_t last_id; /* of sids, legs, groups, copies, drains, attachments: see epoch.h */
	uint64_t mark, visit;
	/* The epoch as it was when the agents of former lives had come: see epoch.h. */
	uint32_t learnt_epoch;
	int64_t learnt_live_ns; /* the same moment on the live clock */

	struct refsrv_reply *replies; /* owns */
	uint32_t num_replies, replies_max;
	struct scratch *scratch;
	struct ctl_inspection inspection;
};

/* Memory that is valid until the next step; zeroed. */
void *refsrv_scratch(struct refsrv *server, size_t count, size_t bytes);

/* A reply to token, zeroed but for kind and number; valid until the next reply is added. */
struct ctl_reply *refsrv_reply(
	struct refsrv *server, uint64_t token, enum ctl_request_kind kind, uint64_t request_no);

/* The next call of refsrv_tick must not be later than this. */
void refsrv_wake_at(struct refsrv *server, int64_t at_ns);

#endif
