/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv - the reference server as a step function: all decisions, no I/O.
 *
 * Input: one request of an agent, or the time. Output: replies, in order, each to the token of a
 * request (a POLL may be answered many steps after it came). No clock, no randomness but the seed,
 * no thread. The same inputs give the same outputs.
 */
#ifndef TH_SERVER_CORE_REFSRV_H
#define TH_SERVER_CORE_REFSRV_H

#include <stdint.h>

#include "ipc/base/ctl.h"

struct refsrv;

struct refsrv_config {
	uint64_t server_inc;   /* random, one per server process                              */
	uint64_t seed[4];      /* for tickets                                                  */
	int64_t poll_hold_ns;  /* an eventless POLL is answered after this: 1 s                */
	int64_t suspect_ns;    /* no beat for this long: no new grants from or to the agent    */
	int64_t dead_ns;       /* ... and for this long: its members are gone                  */
	int64_t coalesce_ns;   /* CHANGED events of one model are at least this far apart      */
	int64_t pair_block_ns; /* a failed (reader, source) pair of agents is avoided this long*/
	uint32_t agents_max, members_max, members_per_agent_max;
	uint64_t blob_bytes_max; /* of all manifests and attributes together                   */
	bool pipelining;         /* partial replicas are sources (default: true)                */
};

/* The defaults of the table above; server_inc and seed are the caller's to fill. */
void refsrv_config_default(struct refsrv_config *ret_config);

struct refsrv_reply {
	uint64_t token;
	/* Its pointers are valid until the next call of refsrv_step. */
	struct ctl_reply reply;
};

struct refsrv_out {
	uint32_t num_replies;
	const struct refsrv_reply *replies; /* borrowed until the next call of refsrv_step     */
	int64_t next_ns;                    /* call refsrv_tick no later than this             */
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
 * Everything, for an operator who asks the server itself (INSPECT of an agent gives the same).
 * Borrowed until the next call.
 */
const struct ctl_inspection *refsrv_inspect(struct refsrv *server, int64_t now_ns);

/* Aborts the process with a sentence when an invariant does not hold (tests call it every step). */
void refsrv_check(const struct refsrv *server);

#endif
