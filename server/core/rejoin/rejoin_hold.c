/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rejoin_hold - what a member asks and reports before its group has come back: see rejoin.h.
 *
 * It is kept, and carried out when the group is complete or broken (rejoin_goes_on).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/cluster/epoch.h"
#include "server/core/model/copy.h"
#include "server/core/model/group.h"
#include "server/core/op/follow.h"
#include "server/core/op/op.h"
#include "server/core/rejoin/rejoin.h"
#include "server/core/route/leg.h"

void
rejoin_leg_end(struct agent *agent, const struct ctl_leg_end *end)
{
	struct member *member;

	DL_FOREACH2(agent->members, member, agent_next)
	{
		struct rejoin *rejoin = member->rejoin;
		if (rejoin == NULL || !rejoin->said.went || rejoin->said.leg != end->leg)
			continue;
		rejoin->leg_ended = true;
		rejoin->end = *end;
		TH_MARK(rejoin_leg_ended_early);
	}
}

void
rejoin_content(struct member *member, const struct ctl_content *report)
{
	struct ctl_rejoin *said = &member->rejoin->said;

	if (!th_version_none(said->held) && said->gen == report->gen) {
		said->hashed = true;
		said->content = report->content;
	}
}

int
rejoin_op(struct refsrv *server, struct member *member, const struct ctl_op *request,
	struct th_err *err)
{
	struct rejoin *rejoin = member->rejoin;

	if (rejoin->asked && rejoin->op.op_seq == request->op_seq)
		return 0;
	if (rejoin->asked || request->op_seq != member->next_op_seq || rejoin->said.went)
		return th_fail(err, TH_E_STATE,
			"shard %u of replica %s calls operation %" PRIu64 ", its next is %" PRIu64
			", and it has not ended the last",
			member->shard, member->group->replica, request->op_seq,
			member->next_op_seq);
	rejoin->asked = true;
	rejoin->op = *request;
	rejoin->op_deadline_ns = th_deadline_ns(server->now_ns, request->timeout_ns);
	TH_MARK(rejoin_op_held);
	return 0;
}

void
rejoin_cancel(struct member *member, const struct ctl_cancel *cancel)
{
	struct rejoin *rejoin = member->rejoin;

	if (rejoin->asked && rejoin->op.op_seq == cancel->op_seq)
		rejoin->cancelled = true;
}

bool
rejoin_close(struct refsrv *server, struct member *member, const struct ctl_close *close)
{
	struct rejoin *rejoin = member->rejoin;

	/* Its group can be read from as a whole only, and goes when the rest does not come. */
	if (close->broke_contract || close->unreadable || close->abandon ||
		th_version_none(rejoin->said.held) || !model_warming(server, member->group->model))
		return false;
	TH_MARK(rejoin_close_held);
	rejoin->closes = true;
	rejoin->close = *close;
	return true;
}

/* What has had its GO asks no more, and is told that it has failed with its group. */
static void
rejoin_hold_tell_broken(struct member *member, const struct ctl_rejoin *said)
{
	const struct op *op = op_find(member->group, said->op_seq);
	struct ctl_ev_outcome *ev;

	if (op != NULL && op->state == OP_DONE)
		op_tell_known(member->group, said->op_seq, member);
	if (op != NULL)
		return; /* it ends by itself */
	ev = &agent_event(member->agent, CTL_EV_OUTCOME)->u.outcome;
	ev->sid = member->sid;
	ev->op_seq = said->op_seq;
	ev->kind = said->kind;
	ev->code = TH_E_GROUP_BROKEN;
	ev->version.version = TH_NO_VERSION;
	snprintf(ev->text, sizeof(ev->text), "%s", member->group->broken_why);
}

void
rejoin_drain_unbuilt(struct refsrv *server, struct member *member)
{
	if (member->unbuilt_gen == 0 || member->agent->state == AGENT_DEAD)
		return;
	TH_MARK(rejoin_drained_unbuilt);
	agent_event(member->agent, CTL_EV_DRAIN)->u.drain = (struct ctl_ev_part){
		.sid = member->sid, .gen = member->unbuilt_gen, .drain_no = epoch_next_id(server)};
	member->unbuilt_gen = 0;
}

/* It was PREPARED for an automatic operation, and had no GO: others may have had theirs. */
static void
end_automatic(const struct member *member, const struct ctl_rejoin *said)
{
	const struct op *op = op_find(member->group, said->automatic_waits);

	if (said->automatic_waits == 0 || member->closed || (op != NULL && op->state != OP_DONE))
		return;
	TH_MARK(rejoin_automatic_is_over);
	follow_tell(member, said->automatic_waits, NULL);
}

/*
 * It says that it holds what is not on record here: its group broke before that, or has given it up
 * in an operation whose end it has not heard; or others have had the GO of the one that runs, and
 * it gives that up when it is PREPARED, or with its group.
 */
static void
look_for_unbuilt(struct refsrv *server, struct member *member, const struct ctl_rejoin *said)
{
	const struct part *part = copy_part_of(member);

	if (th_version_none(said->held) || (part != NULL && part->copy->gen == said->gen))
		return;
	member->unbuilt_gen = said->gen;
	if (part == NULL || member->group->state == GROUP_BROKEN)
		rejoin_drain_unbuilt(server, member);
}

void
rejoin_goes_on(struct refsrv *server, struct member *member)
{
	struct rejoin *rejoin = member->rejoin;
	struct ctl_cancel cancel = {.sid = member->sid, .op_seq = rejoin->op.op_seq};
	struct th_err err;

	member->rejoin = NULL;
	/* Unless the group was built, which looks at it: a leg of a broken one must end, too. */
	if (rejoin->leg_ended)
		(void)leg_end(server, member->agent, &rejoin->end, &err);
	if (rejoin->op_deadline_ns != INT64_MAX)
		rejoin->op.timeout_ns = th_max_i64(0, rejoin->op_deadline_ns - server->now_ns);
	look_for_unbuilt(server, member, &rejoin->said);
	if (rejoin->said.went && !member->closed && member->group->state == GROUP_BROKEN)
		rejoin_hold_tell_broken(member, &rejoin->said);
	end_automatic(member, &rejoin->said);
	if (rejoin->asked && !member->closed) {
		if (op_request(server, member->agent, &rejoin->op, &err) != 0)
			rejoin_break(server, member->group,
				"a shard asks again for another operation than it had called");
		if (rejoin->cancelled)
			(void)op_cancel(server, member->agent, &cancel, &err);
	}
	if (rejoin->closes && !member->closed)
		(void)member_close(server, member->agent, &rejoin->close, &err);
	free(rejoin->outcomes);
	free(rejoin);
}
