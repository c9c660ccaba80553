/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rejoin_open - shards that are opened while others of their replica come back: see rejoin.h.
 *
 * A launch goes on while its server is lost: some of its shards were open there, others open here
 * for the first time, and either may come first. They are one group as long as nothing was decided
 * in it that takes all shards. To a group that comes back, a shard that is opened is one that knows
 * nothing: it stands before operation 1, and is told what the others were told.
 *
 * Whether others will come back is known when the server has been told of all there is. Until then
 * what such a group calls is held, so that no operation ends in two ways. An agent that comes later
 * than that, from beyond a cut, may bring a shard that was told another end of an operation, or
 * will be asked for one that it has behind it: then the group is broken for all (I4).
 */
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "ipc/base/sim.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/op/op.h"
#include "server/core/rejoin/rejoin.h"
#include "server/core/retain/retain.h"

/* ---- what one shard alone can have been told ------------------------------------------------- */

static bool
takes_all(const struct ctl_known_outcome *outcome)
{
	bool asks = outcome->kind == CTL_OP_LIST || outcome->kind == CTL_OP_UPDATE;

	return outcome->went || outcome->updated || (outcome->code == 0 && !asks);
}

bool
rejoin_stood_alone(const struct ctl_rejoin *said)
{
	/* All of them, from the first on: what is not said may have been anything. */
	if (said->open.reservation != 0 || said->went || !th_version_none(said->held) ||
		said->num_outcomes != said->next_op_seq - 1)
		return false;
	for (uint32_t i = 0; i < said->num_outcomes; i++) {
		if (takes_all(&said->outcomes[i]))
			return false;
	}
	return true;
}

/* ---- meeting --------------------------------------------------------------------------------- */

/* A shard that was opened here may belong to a group that is to come back. */
static void
rejoin_open_await(struct group *group)
{
	for (uint32_t i = 0; i < group->num_shards; i++) {
		struct member *member = group->members[i];
		if (member == NULL || member->rejoin != NULL)
			continue;
		struct ctl_rejoin said = {
			.sid = member->sid,
			.group_inc = group->inc,
			.next_op_seq = 1,
			.held = {.version = TH_NO_VERSION},
			.version = {.version = TH_NO_VERSION},
		};
		rejoin_keep(member, &said);
	}
	group->opened = true;
	if (group->rejoining)
		return;
	group->rejoining = true;
	group->model->num_rejoining++;
}

static bool
untouched(const struct group *group)
{
	return group->state == GROUP_FORMING && group->ops == NULL && !group->rejoining;
}

bool
rejoin_may_open(const struct group *group)
{
	return !group->rejoining || !group->together;
}

bool
rejoin_opened(struct refsrv *server, struct member *member)
{
	struct group *group = member->group;

	if (group->reservation != 0 || group->num_shards == 1 ||
		(!group->rejoining && (!model_warming(server, group->model) || !untouched(group))))
		return false;
	if (!group->rejoining)
		TH_MARK(rejoin_open_waits);
	else if (!group->opened)
		TH_MARK(rejoin_open_joins);
	rejoin_open_await(group);
	rejoin_joined(server, group);
	if (!model_warming(server, group->model))
		rejoin_launch(server, group);
	return true;
}

struct group *
rejoin_meets(const struct model *model, const struct agent *agent, const struct ctl_rejoin *said)
{
	struct group *group = group_named(model, said->open.replica);
	struct th_err err;

	if (group == NULL || said->open.reservation != 0 || !rejoin_stood_alone(said) ||
		group->num_shards != said->open.num_shards ||
		group->lineage != said->open.lineage ||
		strcmp(group->launch_id, said->open.launch_id) != 0 ||
		group->members[said->open.shard] != NULL ||
		retain_join(group, agent, &said->open, &err) != 0)
		return NULL;
	if (untouched(group))
		rejoin_open_await(group);
	else if (!group->rejoining || group->together)
		return NULL;
	TH_MARK(rejoin_meets_the_opened);
	return group;
}

struct group *
rejoin_met(const struct model *model, const char *replica, uint64_t inc)
{
	struct group *group = group_named(model, replica);

	for (uint32_t i = 0; group != NULL && i < group->num_shards; i++) {
		if (group->members[i] != NULL && group->members[i]->former_inc == inc)
			return group;
	}
	return NULL;
}

/* ---- nobody else comes back ------------------------------------------------------------------ */

/* What any shard was told of operation seq; NULL: none was. */
static const struct ctl_known_outcome *
outcome_of(const struct group *group, uint64_t seq, bool *ret_differ)
{
	const struct ctl_known_outcome *found = NULL;

	for (uint32_t i = 0; i < group->num_shards; i++) {
		const struct rejoin *rejoin =
			group->members[i] == NULL ? NULL : group->members[i]->rejoin;
		if (rejoin == NULL || seq > rejoin->said.num_outcomes)
			continue;
		const struct ctl_known_outcome *one = &rejoin->outcomes[seq - 1];
		if (found != NULL && (one->kind != found->kind || one->code != found->code))
			*ret_differ = true;
		found = one;
	}
	return found;
}

void
rejoin_launch(struct refsrv *server, struct group *group)
{
	uint64_t told[TH_SHARDS_MAX / 64];
	const struct ctl_known_outcome *outcome;
	bool differ = false;

	if (!group->rejoining || !group->opened || group->unbuilt)
		return;
	TH_MARK(rejoin_launch_goes_on);
	for (uint64_t seq = 1; (outcome = outcome_of(group, seq, &differ)) != NULL; seq++) {
		memset(told, 0, sizeof(told));
		for (uint32_t i = 0; i < group->num_shards; i++) {
			const struct member *member = group->members[i];
			if (member != NULL && member->rejoin != NULL &&
				member->rejoin->said.num_outcomes >= seq)
				told[i / 64] |= UINT64_C(1) << (i % 64);
		}
		op_recovered_outcome(server, group, outcome, told);
	}
	if (differ)
		rejoin_break(server, group, "its members contradict each other");
	else
		rejoin_over(server, group);
}

/* ---- somebody does, too late ----------------------------------------------------------------- */

bool
rejoin_lacks(const struct group *group, const struct ctl_rejoin *said)
{
	return group->opened && !group->rejoining && group->state != GROUP_BROKEN &&
	       said->open.num_shards == group->num_shards &&
	       group->members[said->open.shard] == NULL;
}

bool
rejoin_came_late(const struct group *group, const struct ctl_rejoin *said)
{
	if (!rejoin_lacks(group, said))
		return false;
	TH_MARK(rejoin_launch_went_on);
	/* What it is told again is what it knows: it may be opened again, and the others go on. */
	for (uint32_t i = 0; i < said->num_outcomes; i++) {
		const struct ctl_known_outcome *known = &said->outcomes[i];
		const struct op *op = op_find(group, known->op_seq);
		if (op == NULL || op->state != OP_DONE || op->kind != known->kind ||
			op->code != known->code)
			return true;
	}
	return !rejoin_stood_alone(said);
}
