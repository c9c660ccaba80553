/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_recovered - operations that a former server life has begun or decided. See op.h, rejoin.h.
 */
#include <stdio.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/op/op.h"
#include "server/core/view/listing.h"

static const struct agent *
any_agent(const struct group *group)
{
	uint32_t i = 0;

	while (group->members[i] == NULL)
		i++;
	return group->members[i]->agent;
}

static int
by_seq(const struct op *a, const struct op *b)
{
	return (a->seq > b->seq) - (a->seq < b->seq);
}

struct op *
op_known(struct refsrv *server, struct group *group, uint64_t seq, uint32_t kind, uint32_t flags,
	const char *spec)
{
	struct op *op = th_calloc(1, sizeof(*op));

	(void)server;
	op->group = group;
	op->seq = seq;
	op->kind = kind;
	op->flags = flags;
	memcpy(op->spec, spec, strnlen(spec, TH_SPEC_MAX));
	op->deadline_ns = INT64_MAX;
	memcpy(op->first_node, any_agent(group)->info.node, sizeof(op->first_node));
	op->members = th_calloc(group->num_shards, sizeof(*op->members));
	op->version.version = TH_NO_VERSION;
	if (ctl_op_automatic(seq))
		group->automatic = op;
	else
		DL_INSERT_INORDER(group->ops, op, by_seq);
	return op;
}

static void
list_again(struct refsrv *server, struct op *op)
{
	struct th_err err;

	/* What was listed went with the server; what is there now is as good. */
	(void)listing_snapshot(
		server, any_agent(op->group)->inc, op->group->model, &err, &op->snapshot);
}

void
op_recovered_outcome(struct refsrv *server, struct group *group,
	const struct ctl_known_outcome *outcome, const uint64_t *told)
{
	struct op *op = op_known(
		server, group, outcome->op_seq, outcome->kind, outcome->flags, outcome->spec);

	op_enter(op, OP_DONE, "a former server decided");
	op->code = outcome->code;
	op->updated = outcome->updated;
	op->version = outcome->version;
	op->text[0] = '\0';
	if (op->code != 0)
		snprintf(op->text, sizeof(op->text),
			"the operation has failed (%s); its cause was lost with the reference "
			"server",
			th_strerror(op->code));
	if (op->code == 0 && op->kind == CTL_OP_LIST)
		list_again(server, op);
	for (uint32_t i = 0; i < group->num_shards; i++) {
		struct op_member *member = &op->members[i];
		bool knows = (told[i / 64] >> (i % 64) & 1) != 0;
		op->num_arrived += knows;
		member->told = member->arrived = knows;
	}
	model_dirty(group->model);
}

void
op_tell_known(struct group *group, uint64_t seq, struct member *member)
{
	struct op *op = op_find(group, seq);

	TH_ASSERT(op != NULL && op->state == OP_DONE);
	op->num_arrived += !op->members[member->shard].arrived;
	op->members[member->shard].arrived = true;
	op_tell(op, member);
}
