/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op - group operations: one plan and one outcome for all members.
 *
 *   HELD --> GATHER <--update, it is no last copy-- OFFLOADING --unpublish, the same--> DRAINING
 *              |  '-------what it holds goes------------^                                   |
 *              |                                                      proof of all parts -> DONE
 *              |--publish, list, nothing to do--> DONE
 *              '--GO--> RUNNING --all shards--> DONE
 *                          '--cause--> ABORTING --legs over, drained--> DONE
 *
 * Until GO every failure ends the operation for all, also for members that have not called yet, and
 * nothing has happened: from HELD, GATHER, OFFLOADING and DRAINING a failure leads to DONE. What a
 * former server has begun or decided begins RUNNING or DONE. An outcome is kept until all members
 * have called the next operation.
 */
#ifndef TH_SERVER_CORE_OP_OP_H
#define TH_SERVER_CORE_OP_OP_H

#include "server/core/refsrv_state.h"

/* ---- requests ------------------------------------------------------------------------------- */
int op_request(struct refsrv *server, struct agent *agent, const struct ctl_op *request,
	struct th_err *err);
int op_cancel(struct refsrv *server, struct agent *agent, const struct ctl_cancel *cancel,
	struct th_err *err);
int op_prepared(struct refsrv *server, struct agent *agent, const struct ctl_prepared *prepared,
	struct th_err *err);
/* What the operation waits for that this session has called, in a sentence. */
int op_waits(struct refsrv *server, struct agent *agent, uint64_t sid,
	struct ctl_waits_reply *ret_reply, struct th_err *err);

/* ---- what else moves an operation ----------------------------------------------------------- */
/* Something has changed that it may be waiting for. */
void op_poke(struct refsrv *server, struct op *op);
/* op_poke has nothing to do until a shard loses its leg, the last is done, or what it reads is
 * refused. */
bool op_goes_on(const struct op *op);
/* Its deadline may have passed. */
void op_timers(struct refsrv *server, struct op *op);
/* The first operation of an offload copy: the server itself calls it for all members. */
void op_begin_offload(struct refsrv *server, struct group *group, const struct version *version);
/* An update of a group that follows, outside the numbers of its members. */
void op_begin_automatic(struct refsrv *server, struct group *group, const struct version *version);
void op_replicate_begin(struct refsrv *server, struct op *op, const struct version *version);
void op_group_broken(struct refsrv *server, struct op *op);
/* unpublish: one more part is proven drained. */
void op_drain_check(struct refsrv *server, struct op *op);
/* replicate, update: one more shard is complete. */
void op_shard_done(struct refsrv *server, struct op *op);
/* All parts are done: it commits once their publisher's agent has said that these are its bytes. */
void op_all_done(struct refsrv *server, struct op *op);
/* After GO: ends it for all with this cause, once no leg runs and nobody reads what was filled. */
void op_abort(struct refsrv *server, struct op *op, int code, const char *text);
void op_abort_check(struct refsrv *server, struct op *op);

/* ---- for the files of the operations themselves --------------------------------------------- */
/* why: what has happened, static text. A way that the picture above does not have is a bug. */
void op_enter(struct op *op, enum op_state state, const char *why);
/* Decides: OUTCOME to all who have called, kept for the others. */
void op_succeed(struct refsrv *server, struct op *op, bool updated);
/* Before GO, or when an abort is over: the same with a failure; gives back what PLAN took. */
void op_fail(struct refsrv *server, struct op *op, int code, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* A member has called; one file each. May decide the operation. */
void op_publish_arrive(struct refsrv *server, struct op *op, struct member *member);
void op_unpublish_arrive(struct refsrv *server, struct op *op);
/* OP_OFFLOADING: something has changed. */
void op_unpublish_poke(struct refsrv *server, struct op *op);
void op_unpublish_undo(struct refsrv *server, struct op *op);
void op_replicate_arrive(struct refsrv *server, struct op *op, struct member *member);
void op_replicate_undo(struct refsrv *server, struct op *op);
void op_replicate_poke(struct refsrv *server, struct op *op);
/* Its version is fixed. */
bool op_planned(const struct op *op);
/* PLAN has hidden what the group held; the same was said by the former server that planned it. */
bool op_drains_old(const struct op *op);

void op_free(struct refsrv *server, struct op *op);

/*
 * ---- what a former server life has begun or decided (rejoin_build.c, op_recovered.c) ----------
 */
struct op *op_find(const struct group *group, uint64_t seq);
/* OUTCOME, unless it was told. */
void op_tell(struct op *op, struct member *member);
/* In its place among the others, or the automatic one; nobody has arrived. */
struct op *op_known(struct refsrv *server, struct group *group, uint64_t seq, uint32_t kind,
	uint32_t flags, const char *spec);
/*
 * One member was told this. told: bits by shard of those who were, or went on without; the others
 * will call it again.
 */
void op_recovered_outcome(struct refsrv *server, struct group *group,
	const struct ctl_known_outcome *outcome, const uint64_t *told);
/* This member has had its GO for it, and not been told how it ended. */
void op_tell_known(struct group *group, uint64_t seq, struct member *member);

#endif
