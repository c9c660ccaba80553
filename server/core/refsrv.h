/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv - the reference server as a step function: all decisions, no I/O.
 *
 * Input: one request of an agent, or the time. Output: replies, in order, each to the token of a
 * request (a POLL may be answered many steps after it came). No clock, no randomness but the seed,
 * no thread. The same inputs give the same outputs.
 *
 * What an agent can rely on, beyond the picture in ctl.h:
 *
 * Operations. The reply to OP says only whether it was accepted (code 0). Every accepted OP ends
 * with exactly one OUTCOME event for that member, also when it failed, was decided before this
 * member called, or the group is broken. An OP that is refused does not use up its op_seq:
 * unknown session, op_seq not the next, the last operation of this member not ended. PLAN is sent
 * for replicate and for update with something new, and only for those; the agent answers each
 * PLAN with PREPARED. publish, unpublish and list bring an OUTCOME only. OUTCOME of a publish
 * comes before any GRANT of its part, GO before any GRANT of the destination's part. A GRANT and
 * the GO or REROUTE that belongs to it go to two agents: the reader may well knock before its
 * GRANT has come.
 *
 * Failure before GO: OUTCOME with the code. When the PLAN had drain_old, UNDRAIN of the old part
 * (its gen, drain_no 0) comes before the OUTCOME: nothing has happened, the part is served again.
 * Not when the group broke: then its DRAIN follows. PREPARED after drain_old is the proof that
 * nobody reads the old part: a ticket for it that nobody has presented by then is void.
 *
 * Legs. A leg is over for the server when its reader's agent has sent LEG_END. A leg that the
 * server does not know any more is answered 0. source_failed asks for another source: REROUTE
 * comes, now or when there is one, or CANCEL. code != 0 without source_failed ends the operation
 * for all. LEG_END(0) finishes the shard, whatever crossed it: an agent that has sent LEG_END(0)
 * for an operation's leg ignores a REROUTE of that operation. REROUTE names the old leg while the
 * server has not seen its end; the agent ends it first (its LEG_END is due, whatever its code),
 * then starts the new one from its verified prefix.
 *
 * FENCE comes to the source's agent when the server has taken a leg away; the reader then sees
 * its source fail, says so, and is not blamed for it.
 *
 * After GO failure: CANCEL to every member; each agent ends its legs (LEG_END). Where the half-
 * filled part had served others, DRAIN of (sid, gen of this operation) comes too. When all has
 * been answered, OUTCOME with the cause: nobody reads or writes these bytes any more.
 *
 * Contents. CONTENT says what a published part is made of, when its digests are known; LEG_END(0)
 * says it of a filled one. CONFLICT comes to every member of a copy whose bytes are not those that
 * were published first (content.h), and the next operation of its group has that outcome.
 *
 * Draining. Each time a part is taken out of service (unpublish, close, a broken group, a failed
 * destination) its agent gets one DRAIN(sid, gen, drain_no). It answers DRAIN_DONE with the same
 * three numbers when no leg reads the part; at once for a part it does not know. No GRANT of that
 * part follows, unless an UNDRAIN(sid, gen) comes first.
 *
 * Close. CLOSE is answered at once, and the session's number is void from then on, except: when
 * the member held a part, exactly one DRAIN is due for it (it may have come before, when the
 * group broke); its DRAIN_DONE lets the server forget the part. A running leg of which the member
 * is the reader is ended by its agent with LEG_END. An operation that was open ends without an
 * OUTCOME for the member that closed; what was on its way when CLOSE came is still delivered, and
 * a GO or REROUTE among it is answered with LEG_END. The others get BROKEN, and GROUP_BROKEN for
 * what they have open or call later.
 *
 * Several servers (standby.h): one that does not serve answers HELLO of an agent with
 * TH_E_NO_SERVER, and all else of it as if it did not know it: the agent tries the next of its
 * list. To servers (HELLO with a server_inc) and operators (INSPECT, the log of events) it says so.
 *
 * A request of an agent life that the server does not know or holds for dead is answered with
 * TH_E_NO_SERVER and unknown_agent. After ATTACH with fresh = true the events count from 1 again.
 */
#ifndef TH_SERVER_CORE_REFSRV_H
#define TH_SERVER_CORE_REFSRV_H

#include <stdint.h>

#include "ipc/base/ctl.h"

struct refsrv;

#define REFSRV_PEERS_MAX 8u
#define REFSRV_PEER_UNKNOWN UINT32_MAX

struct refsrv_config {
	uint64_t server_inc; /* random, one per server process */
	uint64_t seed[4];    /* for tickets */
	char cluster[TH_CLUSTER_MAX +
		     1]; /* others than of this one are refused; empty: nobody is */
	/* Generations of listings count from here: higher than any that an earlier server told. */
	uint64_t generation_first;
	/* Time of day, ns since 1970, when the core was made: only for what operators read. */
	int64_t wall_ns;
	int64_t poll_hold_ns; /* an eventless POLL is answered after this: 1 s */
	int64_t suspect_ns;   /* no beat for this long: no new grants from or to the agent */
	int64_t dead_ns;      /* silent for this long: its members are gone */
	int64_t gone_ns;      /* or its connection ended, and it stays away for so long */
	int64_t warm_ns;      /* agents of a former server life are waited for this long: 3 s */
	int64_t form_ns; /* the rest of a group of which one has come is waited for so long: 30 s */
	int64_t coalesce_ns;   /* CHANGED events of one model are at least this far apart */
	int64_t pair_block_ns; /* a failed (reader, source) pair of agents is avoided this long*/
	int64_t crawl_ns;      /* no chunk for so long, behind one without: another source: 5 s */
	int64_t skip_ns;       /* an update waits for a seed no longer than this: 2 min */
	int32_t fan_gain;      /* a tree when that saves more chunk times (chain_split.h): 8 */
	uint32_t successor_copies; /* a version is retained until its successor has so many */
	int64_t grace_ns;          /* a claim outlives a crashed holder: 10 min */
	int64_t proof_ns;          /* an agent that is asked whether it lives answers in: 1.5 s */
	int64_t rescue_ns;  /* a broken group's last copy is kept so long, or as bytes move: 10 s */
	int64_t offload_ns; /* an offload copy is complete within: 10 min */
	int64_t release_ns; /* an offload copy goes when another has done for so long: 1 s */
	bool rescue_spot;   /* what only spot hosts have is copied to others (default: true) */
	uint32_t agents_max, members_max, members_per_agent_max;
	uint64_t event_bytes_max;    /* of what all agents together have not fetched: 512 MiB */
	uint64_t blob_bytes_max;     /* of all manifests and attributes together */
	uint64_t snapshot_bytes_max; /* of all listings kept to be given in parts, or for groups */
	uint32_t part_bytes;         /* of a long answer in one message: 512 KiB */
	bool pipelining;             /* partial replicas are sources (default: true) */
	/*
	 * The other servers (standby.h), and this one among them, first to last: names for
	 * sentences, borrowed for the life of the core. 0: there are no others.
	 */
	uint32_t num_peers; /* at most REFSRV_PEERS_MAX */
	uint32_t me; /* REFSRV_PEER_UNKNOWN: who answers a probe with server_inc is this one */
	const char *const *peers;
	int64_t probe_ns; /* each is asked this often: 500 ms; twice that without an answer: none */
	int64_t silence_ns; /* no answer for this long: it is not there: 3 s */
	int64_t return_ns;  /* one before this one has answered for this long: it serves: 10 s */
};

/* The defaults of the table above; server_inc and seed are the caller's to fill. */
void refsrv_config_default(struct refsrv_config *ret_config);

struct refsrv_reply {
	uint64_t token;
	/* Its pointers are valid until the next call of refsrv_step. */
	struct ctl_reply reply;
};

struct refsrv_probe { /* HELLO for another server: refsrv_probed says what came of it */
	uint32_t peer;
	struct ctl_hello hello;
};

struct refsrv_out {
	uint32_t num_replies;
	const struct refsrv_reply *replies; /* borrowed until the next call of refsrv_step */
	int64_t next_ns;                    /* call refsrv_tick no later than this */
	uint32_t num_probes;
	const struct refsrv_probe *probes; /* borrowed likewise */
	bool serving;                      /* false: a standby, or over */
	/*
	 * Another server serves in place of this one: free the core, and make a new one with a
	 * server_inc of its own. The replies are still to be sent. Stays true.
	 */
	bool renew;
};

/* NULL: out of memory. */
struct refsrv *refsrv_new(const struct refsrv_config *config, int64_t now_ns);
void refsrv_free(struct refsrv *server);

/* One request; token names it in a later reply. request is borrowed for the call. */
void refsrv_step(struct refsrv *server, int64_t now_ns, uint64_t token,
	const struct ctl_request *request, struct refsrv_out *ret_out);

/* Time has passed, or nothing else happened. */
void refsrv_tick(struct refsrv *server, int64_t now_ns, struct refsrv_out *ret_out);

/*
 * The requester of a POLL went away: its token will not be answered. Harmless for a token that
 * is not waiting.
 */
void refsrv_forget(struct refsrv *server, uint64_t token);

/*
 * A connection has ended. The agent whose last BEAT came by it has died, restarts or connects
 * again: no new work until it beats, and gone_ns later it is dead. Harmless for any other.
 */
void refsrv_gone(
	struct refsrv *server, int64_t now_ns, uint64_t connection, struct refsrv_out *ret_out);

/*
 * The answer to a probe of this core; NULL: there is none, or a refusal. Each probe has one end;
 * one that has none counts as failed after twice probe_ns.
 */
void refsrv_probed(struct refsrv *server, int64_t now_ns, uint32_t peer,
	const struct ctl_hello_reply *reply, struct refsrv_out *ret_out);

enum refsrv_state { REFSRV_ASKING = 1, REFSRV_STANDBY, REFSRV_SERVING };

struct refsrv_standing {
	enum refsrv_state state; /* after out.renew: what it was */
	uint32_t epoch;
	uint32_t me;      /* its place in the list: as configured, or found out since */
	uint64_t changes; /* grows when something of this has changed, but for the epoch */
	char text[TH_CTL_TEXT_BYTES]; /* why; empty: it serves */
};

/* What this server is among the others: for logs. Borrowed until the next call. */
const struct refsrv_standing *refsrv_standing(struct refsrv *server);

/*
 * Everything, for an operator who asks the server itself (INSPECT of an agent gives the same).
 * Borrowed until the next call.
 */
const struct ctl_inspection *refsrv_inspect(struct refsrv *server, int64_t now_ns);

#endif
