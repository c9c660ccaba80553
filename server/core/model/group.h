/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group - replicas and their members: joining, registering, leaving, breaking.
 *
 * FORMING until all shards have joined, LIVE until a member leaves, then BROKEN for good: the next
 * OPEN of the same replica name begins a new incarnation.
 */
#ifndef TH_SERVER_CORE_MODEL_GROUP_H
#define TH_SERVER_CORE_MODEL_GROUP_H

#include "server/core/refsrv_state.h"

/* Also one that is closed and not forgotten yet; NULL: there is none. */
struct member *member_lookup(struct refsrv *server, uint64_t sid);
/* The open session sid of this agent; NULL and TH_E_STATE with a sentence when there is none. */
struct member *member_find(
	struct refsrv *server, const struct agent *agent, uint64_t sid, struct th_err *err);

int member_open(struct refsrv *server, struct agent *agent, const struct ctl_open *open,
	struct ctl_open_reply *ret_reply, struct th_err *err);
int member_register(struct refsrv *server, struct agent *agent, const struct ctl_register *reg,
	struct th_err *err);
int member_unregister(struct refsrv *server, struct agent *agent, uint64_t sid, struct th_err *err);
/* A CLOSE that has waited is carried out. */
void member_leave(struct refsrv *server, struct member *member);
int member_close(struct refsrv *server, struct agent *agent, const struct ctl_close *close,
	struct th_err *err);

/* Its agent is gone, and with it everything of this member. Frees it. */
void member_lost(struct refsrv *server, struct member *member, const char *why);
/* Forgets a closed member of which nothing is left. */
void member_settle(struct refsrv *server, struct member *member);

/* Without members, as open describes it. */
struct group *group_new(struct refsrv *server, struct model *model, const struct ctl_open *open);

/* ---- for members that come back (rejoin.c) ---- */
/* Broken, here or when a former server had it: its name is free. */
bool group_is_over(const struct group *group);
/* Not over, of this name; NULL: there is none. */
struct group *group_named(const struct model *model, const char *replica);
/* Names, numbers and limits. */
int group_open_check(struct refsrv *server, const struct agent *agent, const struct ctl_open *open,
	struct th_err *err);
/* In its place, which is free; next_op_seq is the caller's to set. */
struct member *member_new(struct refsrv *server, struct agent *agent, struct group *group,
	const struct ctl_open *open, uint64_t sid);

/* The only operation that is not decided, of the members or automatic; NULL: none. */
struct op *group_open_op(const struct group *group);
/* The oldest incarnation of this replica, the others by same_next; NULL: there is none. */
struct group *group_first(const struct model *model, const char *replica);
/* From now on looked at whenever something changes, until it has no open operation. */
void group_busy(struct group *group);
void group_break(struct refsrv *server, struct group *group, const char *text);
/*
 * By an operator: the same, but later calls of its members answer TH_E_EVICTED. force: the last
 * copy of a retained version is given up as well.
 */
void group_evict(struct refsrv *server, struct group *group, const char *text, bool force);
/*
 * When something has changed: its operation goes on; forgets closed members of which nothing is
 * left, and an empty group.
 */
void group_settle(struct refsrv *server, struct group *group);
/* How many operations the slowest member has called; who has not joined has called none. */
uint64_t group_slowest(const struct group *group);

#endif
