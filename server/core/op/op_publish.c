/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_publish - publish and unpublish: the two operations that move no bytes. See op.h.
 *
 * publish commits when the last member has called; whether others have published the same version
 * with other bytes turns out later (content.h). unpublish acts at the first call, for all
 * members: when the version is safe elsewhere (last_copy.h) the copy is hidden, so that no new
 * reader comes, and the outcome waits for the proof of every part.
 */
#include <inttypes.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"
#include "server/core/model/content.h"
#include "server/core/model/copy.h"
#include "server/core/model/model.h"
#include "server/core/op/follow.h"
#include "server/core/op/op.h"
#include "server/core/retain/last_copy.h"
#include "server/core/view/event_log.h"

/* ---- publish -------------------------------------------------------------------------------- */

static bool
same_layouts(const struct version *version, const struct group *group, uint32_t *ret_shard)
{
	for (uint32_t i = 0; i < group->num_shards; i++) {
		const struct ctl_register *reg = &group->members[i]->reg;
		if (!th_hash_equal(version->shards[i].layout, reg->layout) ||
			version->shards[i].num_chunks != reg->num_chunks) {
			*ret_shard = i;
			return false;
		}
	}
	return true;
}

static void
publish_commit(struct refsrv *server, struct op *op, struct th_version id)
{
	struct group *group = op->group;
	struct version *version = version_find(group->model, id);
	uint32_t shard = 0;

	if (version == NULL) {
		version = version_new(server, group, id);
	} else if (version->num_shards != group->num_shards) {
		op_fail(server, op, TH_E_VERSION_CONFLICT,
			"version %" PRIu64
			" of %s is there with %u shards, replica %s publishes %u: "
			"choose another version number, or unpublish that one everywhere first",
			id.version, group->model->name, version->num_shards, group->replica,
			group->num_shards);
		return;
	} else if (!same_layouts(version, group, &shard)) {
		TH_MARK(c09_other_layout_refused);
		op_fail(server, op, TH_E_VERSION_CONFLICT,
			"version %" PRIu64 " of %s is there with another layout than replica %s "
			"publishes (first difference in shard %u): choose another version number, "
			"or "
			"unpublish that one everywhere first",
			id.version, group->model->name, group->replica, shard);
		return;
	}
	if (version->next != NULL)
		TH_MARK(c10_older_than_the_latest);
	struct content *content = content_new(server, version, op->attributes);
	copy_new(server, group, version, content, op->seq, COPY_READY);
	event_log(server, EVENT_INFO, group->model->name, op->first_node,
		"version %" PRIu64 " of %s is published by replica %s", id.version,
		group->model->name, group->replica);
	op_succeed(server, op, false);
}

void
op_publish_arrive(struct refsrv *server, struct op *op, struct member *member)
{
	struct group *group = op->group;
	struct th_spec spec;

	if (th_spec_parse(op->spec, &spec) != 0 || spec.relative) {
		op_fail(server, op, TH_E_INVALID,
			"replica %s publishes version \"%s\": a version is published by its number",
			group->replica, op->spec);
		return;
	}
	if (group->copy != NULL) {
		op_fail(server, op, TH_E_STATE,
			"replica %s holds version %" PRIu64 ": unpublish it before version %s is "
			"published",
			group->replica, group->copy->version->id.version, op->spec);
		return;
	}
	if (group->follow.follows) {
		op_fail(server, op, TH_E_STATE,
			"replica %s follows the versions of %s, so its tensors are not its "
			"workers' own: end that before version %s is published",
			group->replica, group->model->name, op->spec);
		return;
	}
	if (!member->registered) {
		op_fail(server, op, TH_E_STATE,
			"shard %u of replica %s publishes, but has registered no tensors: register "
			"first",
			member->shard, group->replica);
		return;
	}
	if (op->num_arrived == group->num_shards || TH_PLANT(published_by_the_first_member))
		publish_commit(server, op,
			(struct th_version){.lineage = group->lineage, .version = spec.number});
}

/* ---- unpublish ------------------------------------------------------------------------------ */

void
op_unpublish_arrive(struct refsrv *server, struct op *op)
{
	struct copy *copy = op->group->copy;

	if (op->state == OP_DRAINING || op->state == OP_OFFLOADING)
		return;
	if (copy == NULL) {
		op_fail(server, op, TH_E_STATE,
			"replica %s holds no version: there is nothing to unpublish",
			op->group->replica);
		return;
	}
	TH_ASSERT(copy->state == COPY_READY && !copy->draining);
	op_enter(op, OP_OFFLOADING, "unpublish");
	last_copy_begin(server, copy);
	op_unpublish_poke(server, op);
}

void
op_unpublish_poke(struct refsrv *server, struct op *op)
{
	struct copy *copy = op->group->copy;
	bool force = (op->flags & CTL_OP_FORCE) != 0;
	enum last_copy_result result = force ? LAST_COPY_FREE : last_copy_check(server, copy);

	if (result == LAST_COPY_FAILED) {
		op_fail(server, op, copy->keep->code, "%s", copy->keep->text);
	} else if (result == LAST_COPY_FREE || TH_PLANT(hidden_before_copied)) {
		op_enter(op, OP_DRAINING, "it is no last copy");
		last_copy_end(copy);
		copy_hide(server, copy);
		copy_drain(server, copy);
	}
}

void
op_drain_check(struct refsrv *server, struct op *op)
{
	struct copy *copy = op->group->copy;

	if (!copy_drained(copy))
		return;
	copy_free(server, copy);
	/* Its workers have their tensors back, which nobody is to write any more. */
	follow_set(op->group, false);
	op_succeed(server, op, false);
}

void
op_unpublish_undo(struct refsrv *server, struct op *op)
{
	/* The copy of a broken group stays hidden; its drain goes on. */
	if (op->group->state != GROUP_BROKEN)
		copy_restore(server, op->group->copy, NULL);
}
