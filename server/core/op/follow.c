/* SPDX-License-Identifier: Apache-2.0 */
/*
 * follow - see follow.h.
 */
#include "server/core/op/follow.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/cluster/node_drain.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/op/op.h"
#include "server/core/rejoin/rejoin.h"
#include "server/core/retain/fetch.h"
#include "server/core/route/dc_seed.h"
#include "server/core/route/route.h"
#include "server/core/view/event_log.h"

#define SECOND_NS INT64_C(1000000000)
#define PAUSE_MIN_NS SECOND_NS /* after a failure, and twice as long after each further one */
#define PAUSE_MAX_NS (60 * SECOND_NS) /* at most */
#define SEED_LOOK_NS SECOND_NS        /* whether the seed that is waited for still gets on */

/* ---- who follows ----------------------------------------------------------------------------- */

static void
tell_mark(const struct group *group)
{
	const struct model *model = group->model;

	if (th_version_none(model->go))
		return;
	for (uint32_t i = 0; i < group->num_shards; i++) {
		const struct member *member = group->members[i];
		if (member == NULL || member->closed)
			continue;
		struct ctl_ev_go_mark *ev = &agent_event(member->agent, CTL_EV_GO_MARK)->u.go_mark;
		memcpy(ev->model, model->name, sizeof(ev->model));
		ev->version = model->go;
	}
}

void
follow_set(struct group *group, bool follows)
{
	struct model *model = group->model;

	if (group->follow.follows != follows)
		model->num_following += follows ? 1u : -1u;
	group->follow = (struct following){
		.follows = follows, .retry_ns = INT64_MIN, .target = {.version = TH_NO_VERSION}};
	if (!follows)
		return;
	/* What the hosts bring before, when it is wanted, is what the group goes on to. */
	if (group->fetch.name[0] == '\0')
		snprintf(group->fetch.name, sizeof(group->fetch.name), "latest");
	tell_mark(group);
	model_dirty(model);
}

void
follow_arrive(struct refsrv *server, struct op *op, const struct member *member)
{
	struct group *group = op->group;

	if (op->spec[0] != '\0' && strcmp(op->spec, "latest") != 0) {
		op_fail(server, op, TH_E_INVALID,
			"replica %s asks to follow \"%s\": follow latest, or nothing any more",
			group->replica, op->spec);
		return;
	}
	if (op->spec[0] != '\0' && !member->registered) {
		op_fail(server, op, TH_E_STATE,
			"shard %u of replica %s asks to follow, but has registered no tensors: "
			"register first",
			member->shard, group->replica);
		return;
	}
	if (op->num_arrived < group->num_shards)
		return;
	follow_set(group, op->spec[0] != '\0');
	op_succeed(server, op, false);
}

/* ---- go -------------------------------------------------------------------------------------- */

bool
follow_go(struct model *model, struct th_version version)
{
	struct group *group;

	if (!th_version_none(model->go) && th_version_compare(version, model->go) <= 0)
		return false;
	model->go = version;
	model_dirty(model);
	DL_FOREACH(model->groups, group)
	{
		if (group->follow.follows)
			tell_mark(group);
	}
	return true;
}

int
follow_go_named(struct refsrv *server, const struct ctl_admin *admin, struct th_version *ret_mark,
	struct th_err *err)
{
	const char *name = admin->model, *text = admin->spec;
	struct model *model = model_find(server, name);
	struct th_spec spec;

	if (th_spec_parse(text, &spec) != 0)
		return th_fail(err, TH_E_INVALID,
			"go: \"%s\" is no version; write a number, latest, or latest-K", text);
	if (model == NULL)
		return th_fail(err, TH_E_NOT_AVAILABLE,
			"go: no model %s is known to this server; thctl ls models shows them",
			name);
	if (model_warming(server, model))
		return th_fail(err, TH_E_NO_SERVER,
			"go: the reference server was restarted and collects what the agents hold: "
			"whether version %s of %s is there is not known yet; say go again",
			text, name);
	struct th_version id = model_resolve(server, model, &spec);
	const struct version *version = th_version_none(id) ? NULL : version_find(model, id);
	if (version == NULL || !version_counts(server, version))
		return th_fail(err, TH_E_NOT_AVAILABLE,
			"go: version %s of %s is not there; thctl ls versions %s shows those that "
			"are",
			text, name, name);
	if (follow_go(model, id))
		event_log(server, EVENT_INFO, model->name, "",
			"followers of %s may take its versions up to %" PRIu64 "%s%.100s",
			model->name, id.version, admin->from[0] != '\0' ? ": " : "", admin->from);
	*ret_mark = model->go;
	return 0;
}

/* ---- the next version ------------------------------------------------------------------------ */

/* Idle, whole, on hosts that stay; and all of its members stand before the same operation. */
static bool
may_begin(const struct group *group)
{
	if (!group->follow.follows || group->state != GROUP_LIVE || group->rejoining ||
		group->num_closing > 0 || group_open_op(group) != NULL)
		return false;
	for (uint32_t i = 0; i < group->num_shards; i++) {
		const struct member *member = group->members[i];
		if (member->closed || !member->registered ||
			member->next_op_seq != group->members[0]->next_op_seq ||
			member->agent->state != AGENT_ACTIVE || member->agent->leaving ||
			node_drains(member->agent))
			return false;
	}
	return true;
}

static bool
within_mark(const struct model *model, struct th_version id)
{
	return TH_PLANT(follower_goes_before_go) ||
	       (!th_version_none(model->go) && th_version_compare(id, model->go) <= 0);
}

/* What the group would take now; NULL: there is nothing, or its hosts are still bringing it. */
static struct version *
next_of(struct refsrv *server, const struct group *group)
{
	struct version *head = group->model->versions, *version = head == NULL ? NULL : head->prev;
	const struct copy *held = group->copy;

	for (; version != NULL; version = version == head ? NULL : version->prev) {
		if (held != NULL && th_version_compare(version->id, held->version->id) <= 0)
			return NULL;
		if (within_mark(group->model, version->id) && version_counts(server, version) &&
			route_available(server, version, group))
			return fetch_follow(server, group, version);
	}
	return NULL;
}

static void
wake_at(struct model *model, int64_t at_ns)
{
	model->retention.wake_ns = th_min_i64(model->retention.wake_ns, at_ns);
}

static void
look(struct refsrv *server, struct group *group)
{
	struct following *follow = &group->follow;

	server->mark++;
	const struct version *version = next_of(server, group);
	if (version == NULL)
		return;
	if (dc_seed_skips(server, group, version)) {
		wake_at(group->model, th_deadline_ns(server->now_ns, SEED_LOOK_NS));
		return;
	}
	if (th_version_compare(version->id, follow->target) != 0) {
		follow->target = version->id;
		follow->pause_ns = 0;
		follow->retry_ns = INT64_MIN;
	}
	if (server->now_ns < follow->retry_ns) {
		wake_at(group->model, follow->retry_ns);
		return;
	}
	TH_MARK(follower_begins);
	op_begin_automatic(server, group, version);
}

void
follow_settle(struct refsrv *server, struct model *model)
{
	struct group *group;

	if (model->num_following == 0 || model_warming(server, model))
		return;
	DL_FOREACH(model->groups, group)
	{
		if (may_begin(group))
			look(server, group);
	}
}

/* ---- how it ends ----------------------------------------------------------------------------- */

int
follow_gives_way(struct refsrv *server, struct group *group, struct th_err *err)
{
	struct op *op = group->automatic;

	if (op == NULL || op->state == OP_DONE)
		return 0;
	if (op->state == OP_RUNNING || op->state == OP_ABORTING)
		return th_fail(err, TH_E_STATE,
			"replica %s of %s is receiving the version that it follows: its members' "
			"agents keep calls back until that has ended",
			group->replica, group->model->name);
	TH_MARK(follower_gives_way);
	op_fail(server, op, TH_E_CANCELLED,
		"the update of replica %s to version %s, which it follows, gives way to a call of "
		"its members before anything has changed",
		group->replica, op->spec);
	return 0;
}

void
follow_decided(struct refsrv *server, const struct op *op)
{
	struct group *group = op->group;
	struct following *follow = &group->follow;

	if (group->state == GROUP_BROKEN || op->code == TH_E_CANCELLED)
		return;
	if (op->code == 0) {
		if (op->updated)
			event_log(server, EVENT_INFO, group->model->name, op->first_node,
				"replica %s of %s has followed to version %" PRIu64, group->replica,
				group->model->name, op->version.version);
		return;
	}
	TH_MARK(follower_tries_again);
	follow->pause_ns = th_min_i64(PAUSE_MAX_NS, th_max_i64(PAUSE_MIN_NS, 2 * follow->pause_ns));
	follow->retry_ns = th_deadline_ns(server->now_ns, follow->pause_ns);
	event_log(server, EVENT_WARN, group->model->name, op->first_node,
		"replica %s of %s could not follow to version %s, and tries again in %" PRId64
		" s: %s",
		group->replica, group->model->name, op->spec, follow->pause_ns / SECOND_NS,
		op->text);
}

void
follow_tell(const struct member *member, uint64_t op_seq, const struct ctl_known_outcome *outcome)
{
	struct ctl_ev_outcome *ev = &agent_event(member->agent, CTL_EV_OUTCOME)->u.outcome;

	ev->sid = member->sid;
	ev->op_seq = op_seq;
	ev->kind = CTL_OP_UPDATE;
	ev->code = outcome == NULL ? TH_E_CANCELLED : outcome->code;
	ev->version.version = TH_NO_VERSION;
	if (outcome != NULL) {
		ev->updated = outcome->updated;
		ev->version = outcome->version;
	}
	if (ev->code != 0)
		snprintf(ev->text, sizeof(ev->text),
			"the update that the group follows came to nothing when the reference "
			"server was lost");
}
