/* SPDX-License-Identifier: Apache-2.0 */
/*
 * follow - groups that take new versions by themselves, as far as somebody has said go.
 *
 * FOLLOW, which all members call, says that the group follows. Go, of an operator or of a worker's
 * agent, raises the mark of the model. A group that follows and has nothing to do takes the newest
 * version that is there, newer than what it holds and not above the mark: the server begins an
 * update of it outside the numbers that its members count (CTL_OP_AUTOMATIC), and PLAN, PREPARED,
 * GO and OUTCOME are those of any. It begins when all members stand before the same operation, so
 * that they agree on what was before it and what comes after.
 *
 * Whatever a member calls before GO ends it, and nothing has happened. After GO no member can have
 * called: each was PREPARED, and its agent keeps back what its worker calls then.
 *
 * What fails is tried again when the version is another one, or after a pause, which doubles.
 */
#ifndef TH_SERVER_CORE_OP_FOLLOW_H
#define TH_SERVER_CORE_OP_FOLLOW_H

#include "server/core/refsrv_state.h"

/* One more member has called FOLLOW. */
void follow_arrive(struct refsrv *server, struct op *op, const struct member *member);
/* From now on, or no more; its members' agents are told the mark. */
void follow_set(struct group *group, bool follows);

/* Somebody says go up to this version: the mark rises, and never falls. False: it was as high. */
bool follow_go(struct model *model, struct th_version version);
/* The same by names, as an operator says it; the mark in ret_mark. */
int follow_go_named(struct refsrv *server, const struct ctl_admin *admin,
	struct th_version *ret_mark, struct th_err *err);

/* With the model's other deadlines: begins what can begin. */
void follow_settle(struct refsrv *server, struct model *model);
/* A member calls. Not 0: an automatic operation has had its GO. */
int follow_gives_way(struct refsrv *server, struct group *group, struct th_err *err);
/* An automatic operation is decided. */
void follow_decided(struct refsrv *server, const struct op *op);

/* This member has come back and waits for the end of one; NULL: it has come to nothing. */
void follow_tell(
	const struct member *member, uint64_t op_seq, const struct ctl_known_outcome *outcome);

#endif
