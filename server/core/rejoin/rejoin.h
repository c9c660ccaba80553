/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rejoin - groups that a former server life knew: they come back shard by shard.
 *
 *   REJOIN of a member --> the group forms; its operations are held
 *     all shards there, nothing contradicts  --> LIVE: copy, outcomes and running legs as before
 *     one is gone, two contradict, form_ns   --> BROKEN, with a sentence
 *     broken before, and all hold the same   --> BROKEN, and rescued when it is the last copy
 *
 * As long as nothing was decided in it that takes all shards, one that is opened now may be one
 * that was never there: it joins them, and the group needs not come back whole.
 *
 * A copy is listed when all shards have announced it, never before (I5). An operation that one
 * member knows the end of has that end for all (I4); one that has had its GO runs on; any other is
 * called again by its members and planned anew.
 *
 * While agents may still come that bring something, the server is warming: nothing counts as
 * missing (model_warming). So it is when it begins and agents of a former life come: for warm_ns
 * after the last of them, and until all inventories are in. Of an agent that comes later, as from
 * the other half of a network, only the models are warming that it names. Each agent does that once
 * in its life, and no server and no model is warming for more than warm_ns and form_ns in all.
 * A server to which no agent brings a former life never is.
 */
#ifndef TH_SERVER_CORE_REJOIN_REJOIN_H
#define TH_SERVER_CORE_REJOIN_REJOIN_H

#include "server/core/refsrv_state.h"

int rejoin_request(struct refsrv *server, struct agent *agent, const struct ctl_rejoin *said,
	struct ctl_open_reply *ret_reply, struct th_err *err);
/* An agent that had another server has attached; its inventory follows. */
void rejoin_attached(struct refsrv *server, struct agent *agent);
/* The agent's inventory has come, or will not come any more. */
void rejoin_inventory_ends(struct refsrv *server, struct agent *agent);
/* The agent's inventory has come: it had so many sessions. */
void rejoin_inventory_told(struct refsrv *server, struct agent *agent, uint32_t num_sessions);

/* A shard that is opened now may belong to it. */
bool rejoin_may_open(const struct group *group);
/* It was, and is waited for with the others, or has completed the group. False: nobody waits. */
bool rejoin_opened(struct refsrv *server, struct member *member);

/* What this server knows of the model may not be all there is. */
bool model_warming(const struct refsrv *server, const struct model *model);
/* It is no longer, when its time is over. */
void rejoin_settle(struct refsrv *server, struct model *model);
/* A group of it is not complete. */
bool rejoin_awaited(const struct model *model);
void rejoin_timers(struct refsrv *server);
void rejoin_group_timer(struct refsrv *server, struct group *group);
/* A broken group that others may still ask for is remembered. */
bool rejoin_remembers(const struct refsrv *server, const struct group *group);

/* What comes of a member before its group is complete is kept for then. */
void rejoin_leg_end(struct agent *agent, const struct ctl_leg_end *end);
void rejoin_content(struct member *member, const struct ctl_content *report);
int rejoin_op(struct refsrv *server, struct member *member, const struct ctl_op *request,
	struct th_err *err);
/* False: it is carried out now. */
bool rejoin_close(struct refsrv *server, struct member *member, const struct ctl_close *close);
void rejoin_cancel(struct member *member, const struct ctl_cancel *cancel);
/* It cannot come back, because of why. */
void rejoin_break(struct refsrv *server, struct group *group, const char *why);
/* The group is complete, or broken: what has come goes on. */
void rejoin_over(struct refsrv *server, struct group *group);
/* Lets what one member asked go on; rejoin_over does it for all. */
void rejoin_goes_on(struct refsrv *server, struct member *member);
void rejoin_member_free(struct member *member);
/*
 * What a member holds and is not on record is given up with its group. Its agent waits for the
 * DRAIN as for any other; what it answers proves nothing to anybody.
 */
void rejoin_drain_unbuilt(struct refsrv *server, struct member *member);
/* It has said that it holds or fills something, which is not on record yet. */
bool rejoin_uses_registration(const struct member *member);

/* ---- rejoin_build.c -------------------------------------------------------------------------- */

struct rejoin { /* owned by member.rejoin until its group is complete */
	struct ctl_rejoin said;
	struct ctl_known_outcome *outcomes; /* owns; said.outcomes points here              */
	bool asked, cancelled; /* an operation was called, and was to be cancelled           */
	struct ctl_op op;
	int64_t op_deadline_ns;
	bool closes; /* what it holds may be the last copy: when all of it is there */
	struct ctl_close close;
	bool leg_ended;
	struct ctl_leg_end end;
};

/* All shards are there. False: not yet, a source of what runs may still come. */
bool rejoin_build(struct refsrv *server, struct group *group);

#endif
