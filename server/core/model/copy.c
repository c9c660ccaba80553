/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy - see copy.h.
 *
 *   PARTIAL --all shards done--> READY --hide--> draining --proof of every part--> gone
 *      '------- aborted -------------------------^   '--restore (timeout, cancel)--> READY
 *
 * A DRAIN and its answer carry a number, because an answer may be delayed across a restore and the
 * next DRAIN, and would then prove what is not true any more.
 */
#include "server/core/model/copy.h"

#include <inttypes.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/cluster/epoch.h"
#include "server/core/cluster/node_drain.h"
#include "server/core/model/content.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/op/op.h"
#include "server/core/route/leg.h"
#include "server/core/view/event_log.h"

/* The order of listings; two incarnations of one replica name by age. */
static int
copy_by_name(const struct copy *a, const struct copy *b)
{
	int order = strcmp(a->group->replica, b->group->replica);

	return order != 0 ? order : (a->id > b->id) - (a->id < b->id);
}

void
copy_sort(struct version *version)
{
	if (version->unsorted)
		DL_SORT2(version->by_name, copy_by_name, name_prev, name_next);
	version->unsorted = false;
}

void
copy_complete(struct copy *copy)
{
	DL_DELETE2(copy->version->filling, copy, fill_prev, fill_next);
	copy->state = COPY_READY;
}

struct copy *
copy_new(struct refsrv *server, struct group *group, struct version *version,
	struct content *content, uint64_t gen, enum copy_state state)
{
	struct copy *copy = th_calloc(1, sizeof(*copy));

	TH_ASSERT(group->copy == NULL && group->num_shards == version->num_shards);
	copy->id = epoch_next_id(server);
	copy->version = version;
	copy->group = group;
	content_join(content, copy);
	copy->gen = gen;
	copy->state = state;
	copy->received = state == COPY_PARTIAL;
	copy->num_parts = group->num_shards;
	copy->parts = th_calloc(copy->num_parts, sizeof(*copy->parts));
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		struct part *part = &copy->parts[i];
		part->copy = copy;
		part->member = group->members[i];
		part->shard = i;
		part->done = state == COPY_READY;
		part->chunks_done = part->done ? version->shards[i].num_chunks : 0;
	}
	DL_APPEND(version->copies, copy);
	DL_APPEND2(version->by_name, copy, name_prev, name_next);
	version->unsorted = true;
	if (state == COPY_PARTIAL)
		DL_APPEND2(version->filling, copy, fill_prev, fill_next);
	group->copy = copy;
	model_changed(server, group->model);
	return copy;
}

/* A version goes with its last copy: given up in order, or lost with a replica that broke. */
static void
copy_log_end(struct refsrv *server, const struct copy *copy)
{
	const struct version *version = copy->version;
	const struct group *group = copy->group;

	if (copy->state == COPY_READY && group->state == GROUP_BROKEN && !group->closed_in_order)
		event_log(server, EVENT_WARN, group->model->name, NULL,
			"version %" PRIu64 " of %s is gone: its last copy went with replica %s",
			version->id.version, group->model->name, group->replica);
	else
		event_log(server, EVENT_INFO, group->model->name, NULL,
			"version %" PRIu64 " of %s is given up: replica %s was the last to have it",
			version->id.version, group->model->name, group->replica);
}

void
copy_free(struct refsrv *server, struct copy *copy)
{
	struct version *version = copy->version;
	struct group *group = copy->group;

	for (uint32_t i = 0; i < copy->num_parts; i++) {
		TH_ASSERT(copy->parts[i].fills == NULL);
		leg_detach_readers(&copy->parts[i]);
	}
	DL_DELETE(version->copies, copy);
	DL_DELETE2(version->by_name, copy, name_prev, name_next);
	if (copy->state == COPY_PARTIAL)
		DL_DELETE2(version->filling, copy, fill_prev, fill_next);
	content_leave(server, copy);
	if (version->copies == NULL) {
		copy_log_end(server, copy);
		version_free(server, version);
	}
	group->copy = NULL;
	free(copy->keep);
	for (uint32_t i = 0; i < copy->num_parts; i++)
		free(copy->parts[i].source_name);
	free(copy->parts);
	free(copy);
	model_changed(server, group->model);
}

void
copy_hide(struct refsrv *server, struct copy *copy)
{
	if (copy->draining)
		return;
	copy->draining = true;
	for (uint32_t i = 0; i < copy->num_parts; i++)
		leg_move_readers(server, &copy->parts[i]);
	if (!TH_PLANT(hidden_without_a_generation))
		model_changed(server, copy->group->model);
}

void
copy_drain(struct refsrv *server, struct copy *copy)
{
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		struct part *part = &copy->parts[i];
		if (part->drained || part->drain_no != 0)
			continue;
		part->drain_no = epoch_next_id(server);
		agent_event(part->member->agent, CTL_EV_DRAIN)->u.drain = (struct ctl_ev_part){
			.sid = part->member->sid,
			.gen = copy->gen,
			.drain_no = part->drain_no,
		};
	}
}

void
copy_restore(struct refsrv *server, struct copy *copy, const struct op *only_planned)
{
	copy->draining = false;
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		struct part *part = &copy->parts[i];
		part->drained = false;
		part->drain_no = 0;
		if (only_planned != NULL && !only_planned->members[i].planned)
			continue;
		if (TH_PLANT(undrain_lost) && i > 0)
			continue;
		agent_event(part->member->agent, CTL_EV_UNDRAIN)->u.undrain =
			(struct ctl_ev_part){.sid = part->member->sid, .gen = copy->gen};
	}
	model_changed(server, copy->group->model);
}

bool
copy_drained(const struct copy *copy)
{
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		if (!copy->parts[i].drained)
			return false;
	}
	return true;
}

bool
copy_stands(const struct copy *copy)
{
	return !copy->aborting && (copy->group->state != GROUP_BROKEN || copy->rescued);
}

bool
copy_spot(const struct copy *copy)
{
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		const struct member *member = copy->parts[i].member;
		if (member != NULL && !TH_PLANT(spot_counts) &&
			(member->agent->info.spot || (member->flags & CTL_OPEN_SPOT) != 0))
			return true;
	}
	return false;
}

bool
copy_secure(const struct copy *copy)
{
	bool ready = copy->state == COPY_READY || TH_PLANT(partial_copy_counts);

	if (!ready || copy->draining || copy->aborting || copy->group->state == GROUP_BROKEN ||
		!content_listed(copy) || copy_spot(copy))
		return false;
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		const struct agent *agent = copy->parts[i].member->agent;
		if (agent->state != AGENT_ACTIVE || node_drains(agent))
			return false;
	}
	return true;
}

struct part *
copy_part_of(const struct member *member)
{
	struct copy *copy = member->group->copy;

	if (copy == NULL || copy->parts[member->shard].member != member)
		return NULL;
	return &copy->parts[member->shard];
}

int
copy_drain_done(struct refsrv *server, struct agent *agent, const struct ctl_drain_done *done,
	struct th_err *err)
{
	struct member *member = member_lookup(server, done->sid);

	if (member == NULL)
		return 0;
	if (member->agent != agent)
		return th_fail(err, TH_E_INVALID, "session %" PRIu64 " is not one of agent %s",
			done->sid, agent->info.node);
	struct part *part = copy_part_of(member);
	/* Otherwise it answers an older DRAIN: nothing follows from it. */
	if (part == NULL || part->copy->gen != done->gen || part->drain_no == 0)
		return 0;
	if (part->drain_no == done->drain_no || TH_PLANT(late_proof_believed))
		copy_part_drained(server, part);
	else
		TH_MARK(late_proof_is_none);
	return 0;
}

void
copy_part_drained(struct refsrv *server, struct part *part)
{
	struct copy *copy = part->copy;
	struct group *group = copy->group;
	struct member *member = part->member;
	struct op *op = group_open_op(group);

	if (part->readers != NULL && part->readers->op->state == OP_RUNNING)
		TH_MARK(c01_drained_while_the_readers_group_goes_on);
	part->drained = true;
	part->drain_no = 0;
	leg_detach_readers(part);
	/* Who waits for its word waits in vain, if it has not come. */
	model_dirty(group->model);
	if (op != NULL && op->state == OP_DRAINING)
		op_drain_check(server, op);
	else if (op != NULL && op->state == OP_ABORTING)
		op_abort_check(server, op);
	else if (group->state == GROUP_BROKEN && copy_drained(copy))
		copy_free(server, copy);
	member_settle(server, member);
}
