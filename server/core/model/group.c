/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group - see group.h.
 *
 * A member that closes stays on record until its part is proven drained and no leg into it runs:
 * the source agent, not the server, knows when memory is free. A group goes with its last member.
 */
#include "server/core/model/group.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/cluster/epoch.h"
#include "server/core/cluster/node_drain.h"
#include "server/core/model/blob.h"
#include "server/core/model/content.h"
#include "server/core/model/copy.h"
#include "server/core/model/model.h"
#include "server/core/op/follow.h"
#include "server/core/op/op.h"
#include "server/core/rejoin/rejoin.h"
#include "server/core/retain/at_risk.h"
#include "server/core/retain/last_copy.h"
#include "server/core/retain/offload.h"
#include "server/core/retain/retain.h"
#include "server/core/retain/retain_notice.h"
#include "server/core/route/leg.h"
#include "server/core/timer.h"
#include "server/core/view/event_log.h"

/* ---- another launch -------------------------------------------------------------------------- */

/*
 * A group that is started again replaces what is left of it. The members of one launch give one
 * launch_id. The first OPEN of another launch breaks the group of the old one, whose members may be
 * alive, or dead and not yet noticed. Without launch_ids the new members would be refused until the
 * old ones are gone.
 *
 * Launches have names, no order: a group remembers those that it and its predecessors replaced, so
 * that what is left of them cannot take the place of their successor. The memory goes with the last
 * group of the name.
 */

#define REPLACED_MAX 16u /* per group; the oldest is forgotten first */

static void
group_launch_free(struct group *group)
{
	free(group->replaced);
}

static void
group_launch_remember(struct group *group, const char *launch_id)
{
	if (launch_id[0] == '\0' || strcmp(launch_id, group->launch_id) == 0)
		return;
	if (group->replaced == NULL)
		group->replaced = th_calloc(REPLACED_MAX, sizeof(*group->replaced));
	if (group->num_replaced == REPLACED_MAX)
		memmove(group->replaced, group->replaced + 1,
			--group->num_replaced * sizeof(*group->replaced));
	memcpy(group->replaced[group->num_replaced++], launch_id, sizeof(*group->replaced));
}

/* A group that has just been listed in its model. */
static void
group_launch_new(struct group *group, const struct ctl_open *open)
{
	const struct group *other;

	memcpy(group->launch_id, open->launch_id, strnlen(open->launch_id, TH_NAME_MAX));
	if (group->launch_id[0] == '\0')
		return;
	for (other = group->same->groups; other != NULL; other = other->same_next) {
		if (other == group || other->reservation != 0)
			continue;
		for (uint32_t i = 0; i < other->num_replaced; i++)
			group_launch_remember(group, other->replaced[i]);
		group_launch_remember(group, other->launch_id);
	}
}

static bool
was_replaced(const struct group *group, const char *launch_id)
{
	for (uint32_t i = 0; i < group->num_replaced; i++) {
		if (strcmp(group->replaced[i], launch_id) == 0)
			return true;
	}
	return false;
}

/* 0, or TH_E_GROUP_MISMATCH: this launch was replaced, or only one side has a launch_id. */
static int
group_launch_check(const struct model *model, const struct agent *agent,
	const struct ctl_open *open, struct th_err *err)
{
	const struct group *group;

	for (group = group_first(model, open->replica); group != NULL; group = group->same_next) {
		if (group->reservation != 0)
			continue;
		if (open->launch_id[0] != '\0' && was_replaced(group, open->launch_id))
			return th_fail(err, TH_E_GROUP_MISMATCH,
				"launch %s of replica %s of %s was replaced by launch %s; this "
				"process on node %s is left over from it and should end",
				open->launch_id, group->replica, model->name, group->launch_id,
				agent->info.node);
		if (!group_is_over(group) &&
			(open->launch_id[0] == '\0') != (group->launch_id[0] == '\0'))
			return th_fail(err, TH_E_GROUP_MISMATCH,
				"replica %s of %s is open with%s a launch_id, node %s opens it "
				"with%s one; give all members the same",
				group->replica, model->name,
				group->launch_id[0] == '\0' ? "out" : "", agent->info.node,
				open->launch_id[0] == '\0' ? "out" : "");
	}
	return 0;
}

/* True: it was of another launch, and is broken now. */
static bool
group_launch_replaces(struct refsrv *server, struct group *group, const struct agent *agent,
	const struct ctl_open *open)
{
	struct th_err cause;

	if (strcmp(group->launch_id, open->launch_id) == 0)
		return false;
	th_fail(&cause, TH_E_GROUP_BROKEN,
		"replica %s of %s is broken: launch %s replaces launch %s (node %s opens it); "
		"close "
		"this handle",
		group->replica, group->model->name, open->launch_id, group->launch_id,
		agent->info.node);
	group_break(server, group, cause.text);
	return true;
}

/* ---- who belongs together -------------------------------------------------------------------- */

struct member *
member_lookup(struct refsrv *server, uint64_t sid)
{
	struct member *member = NULL;

	HASH_FIND(hh, server->members, &sid, sizeof(sid), member);
	return member;
}

struct member *
member_find(struct refsrv *server, const struct agent *agent, uint64_t sid, struct th_err *err)
{
	struct member *member = member_lookup(server, sid);

	if (member != NULL && member->agent == agent && !member->closed)
		return member;
	th_fail(err, TH_E_STATE, "agent %s has no open session %" PRIu64 ": open the shard again",
		agent->info.node, sid);
	return NULL;
}

struct op *
group_open_op(const struct group *group)
{
	struct op *last = group->ops == NULL ? NULL : group->ops->prev;

	if (group->automatic != NULL && group->automatic->state != OP_DONE)
		return group->automatic;
	return last == NULL || last->state == OP_DONE ? NULL : last;
}

uint64_t
group_slowest(const struct group *group)
{
	uint64_t slowest = UINT64_MAX;

	if (group->num_joined < group->num_shards)
		return 0;
	for (uint32_t i = 0; i < group->num_shards; i++) {
		/* A member of a broken group that is gone holds nobody up. */
		if (group->members[i] != NULL)
			slowest = th_min_u64(slowest, group->members[i]->next_op_seq - 1);
	}
	return slowest;
}

void
group_busy(struct group *group)
{
	if (group->busy)
		return;
	group->busy = true;
	DL_APPEND2(group->model->busy, group, busy_prev, busy_next);
}

static void
group_idle(struct group *group)
{
	group->busy = false;
	DL_DELETE2(group->model->busy, group, busy_prev, busy_next);
}

struct group *
group_first(const struct model *model, const char *replica)
{
	const struct replica *found = NULL;

	HASH_FIND_STR(model->replicas, replica, found);
	return found == NULL ? NULL : found->groups;
}

bool
group_is_over(const struct group *group)
{
	return group->state == GROUP_BROKEN || group->over;
}

/* ---- joining -------------------------------------------------------------------------------- */

struct group *
group_named(const struct model *model, const char *replica)
{
	struct group *group = group_first(model, replica);

	while (group != NULL && (group_is_over(group) || group->reservation != 0))
		group = group->same_next;
	return group;
}

static void
name_group(struct model *model, struct group *group)
{
	struct replica *replica = NULL;

	HASH_FIND_STR(model->replicas, group->replica, replica);
	if (replica == NULL) {
		replica = th_calloc(1, sizeof(*replica));
		replica->name = th_strdup(group->replica);
		HASH_ADD_KEYPTR(hh, model->replicas, replica->name, strlen(replica->name), replica);
	}
	group->same = replica;
	DL_APPEND2(replica->groups, group, same_prev, same_next);
}

static void
unname_group(struct model *model, struct group *group)
{
	struct replica *replica = group->same;

	DL_DELETE2(replica->groups, group, same_prev, same_next);
	if (replica->groups != NULL)
		return;
	HASH_DELETE(hh, model->replicas, replica);
	free(replica->name);
	free(replica);
}

struct group *
group_new(struct refsrv *server, struct model *model, const struct ctl_open *open)
{
	struct group *group = th_calloc(1, sizeof(*group));

	group->model = model;
	memcpy(group->replica, open->replica, strnlen(open->replica, TH_NAME_MAX));
	group->lineage = open->lineage;
	group->inc = epoch_next_id(server);
	group->num_shards = open->num_shards;
	group->state = GROUP_FORMING;
	group->members = th_calloc(group->num_shards, sizeof(struct member *));
	group->fetch.ready.version = group->fetch.failed.version = TH_NO_VERSION;
	group->follow.target.version = TH_NO_VERSION;
	DL_APPEND(model->groups, group);
	name_group(model, group);
	group_launch_new(group, open);
	return group;
}

int
group_open_check(struct refsrv *server, const struct agent *agent, const struct ctl_open *open,
	struct th_err *err)
{
	const struct refsrv_config *config = &server->config;

	if (!th_name_valid(open->model, TH_NAME_MAX) || !th_name_valid(open->replica, TH_NAME_MAX))
		return th_fail(err, TH_E_INVALID,
			"the model or replica name is not 1 to %d bytes of UTF-8 without control "
			"characters",
			TH_NAME_MAX);
	if (open->launch_id[0] != '\0' && !th_name_valid(open->launch_id, TH_NAME_MAX))
		return th_fail(err, TH_E_INVALID,
			"replica %s of %s: the launch_id is not 1 to %d bytes of UTF-8 without "
			"control characters",
			open->replica, open->model, TH_NAME_MAX);
	if (open->num_shards == 0 || open->num_shards > TH_SHARDS_MAX ||
		open->shard >= open->num_shards)
		return th_fail(err, TH_E_INVALID,
			"replica %s of %s: shard %u of %u is out of range (1 to %u shards, counted "
			"from 0)",
			open->replica, open->model, open->shard, open->num_shards,
			(unsigned int)TH_SHARDS_MAX);
	if (HASH_COUNT(server->members) >= config->members_max)
		return th_fail(err, TH_E_LIMIT,
			"the server has its limit of %u open shards (limit.members)",
			config->members_max);
	if (agent->num_members >= config->members_per_agent_max)
		return th_fail(err, TH_E_LIMIT,
			"agent %s has its limit of %u open shards (limit.members_per_agent)",
			agent->info.node, config->members_per_agent_max);
	return 0;
}

static const struct member *
any_member(const struct group *group)
{
	for (uint32_t i = 0; i < group->num_shards; i++) {
		if (group->members[i] != NULL)
			return group->members[i];
	}
	return NULL;
}

static int
join_check(const struct group *group, const struct agent *agent, const struct ctl_open *open,
	struct th_err *err)
{
	const struct member *other = any_member(group), *twin;
	const char *other_node = other == NULL ? "?" : other->agent->info.node;

	if (group->num_shards != open->num_shards)
		return th_fail(err, TH_E_GROUP_MISMATCH,
			"replica %s of %s: node %s opens it with %u shards, node %s with %u; give "
			"all members the same number",
			group->replica, group->model->name, agent->info.node, open->num_shards,
			other_node, group->num_shards);
	if (group->lineage != open->lineage)
		return th_fail(err, TH_E_GROUP_MISMATCH,
			"replica %s of %s: node %s opens it with lineage %" PRIu64
			", node %s with %" PRIu64 "; give all members the same one",
			group->replica, group->model->name, agent->info.node, open->lineage,
			other_node, group->lineage);
	int rc = retain_join(group, agent, open, err);
	if (rc != 0)
		return rc;
	if (!rejoin_may_open(group))
		return th_fail(err, TH_E_GROUP_MISMATCH,
			"replica %s of %s was open when the reference server was lost, and not all "
			"of its shards have come back: close them, or try again later",
			group->replica, group->model->name);
	twin = group->members[open->shard];
	if (twin != NULL)
		return th_fail(err, TH_E_GROUP_MISMATCH,
			"shard %u of replica %s of %s is open on node %s already, node %s opens it "
			"again; close it there first, or choose another replica name",
			open->shard, group->replica, group->model->name, twin->agent->info.node,
			agent->info.node);
	return 0;
}

/* The group of a worker's replica: there already, or new. */
static struct group *
group_join(
	struct refsrv *server, struct agent *agent, const struct ctl_open *open, struct th_err *err)
{
	struct th_retain rules;

	if (th_retain_parse(open->retain, &rules, err) != 0 ||
		retain_room(server, open->model, model_find(server, open->model), &rules, err) != 0)
		return NULL;
	struct model *model = model_acquire(server, open->model);
	if (group_launch_check(model, agent, open, err) != 0)
		return NULL;
	struct group *group = group_named(model, open->replica);
	if (group != NULL && group_launch_replaces(server, group, agent, open))
		group = NULL;
	if (group != NULL)
		return join_check(group, agent, open, err) == 0 ? group : NULL;
	group = group_new(server, model, open);
	retain_claim(server, group, &rules);
	return group;
}

struct member *
member_new(struct refsrv *server, struct agent *agent, struct group *group,
	const struct ctl_open *open, uint64_t sid)
{
	struct member *member = th_calloc(1, sizeof(*member));

	member->sid = sid;
	member->agent = agent;
	member->group = group;
	member->shard = open->shard;
	member->flags = open->flags;
	member->pid = open->pid;
	HASH_ADD(hh, server->members, sid, sizeof(member->sid), member);
	DL_APPEND2(agent->members, member, agent_prev, agent_next);
	agent->num_members++;
	group->members[member->shard] = member;
	return member;
}

int
member_open(struct refsrv *server, struct agent *agent, const struct ctl_open *open,
	struct ctl_open_reply *ret_reply, struct th_err *err)
{
	int rc = group_open_check(server, agent, open, err);

	if (rc == 0 && node_drains(agent) && open->reservation == 0)
		rc = th_fail(err, TH_E_STATE,
			"node %s %s: nothing new is opened there; open on another node%s",
			agent->info.node,
			agent->leaving ? "is about to end its agent" : "is being drained",
			agent->leaving ? "" : ", or take it back with thctl undrain");
	if (rc != 0)
		return rc;
	struct group *group =
		open->reservation == 0
			? group_join(server, agent, open, err)
			: offload_join(server, model_find(server, open->model), agent, open, err);
	if (group == NULL)
		return err->code;
	struct member *member = member_new(server, agent, group, open, epoch_next_id(server));
	member->next_op_seq = 1;
	*ret_reply = (struct ctl_open_reply){
		.sid = member->sid, .next_op_seq = 1, .group_inc = group->inc};
	retain_notice_joined(server, member);
	if (rejoin_opened(server, member))
		return 0;
	if (++group->num_joined == group->num_shards) {
		group->state = GROUP_LIVE;
		event_log(server, EVENT_INFO, group->model->name, agent->info.node,
			"%s%s of %s is live with %u shards",
			group->reservation != 0 ? "the offload copy of replica " : "replica ",
			group->replica, group->model->name, group->num_shards);
	}
	offload_joined(member);
	return 0;
}

/* ---- registering ---------------------------------------------------------------------------- */

static int
idle_check(const struct member *member, const char *what, struct th_err *err)
{
	const struct group *group = member->group;
	const struct op *op = group_open_op(group);

	if (copy_part_of(member) != NULL)
		return th_fail(err, TH_E_STATE,
			"shard %u of replica %s holds or fills version %" PRIu64
			": unpublish it before you %s",
			member->shard, group->replica, group->copy->version->id.version, what);
	if (rejoin_uses_registration(member))
		return th_fail(err, TH_E_STATE,
			"shard %u of replica %s held or filled a version when the reference server "
			"was lost: unpublish it before you %s",
			member->shard, group->replica, what);
	if (group->follow.follows)
		return th_fail(err, TH_E_STATE,
			"shard %u of replica %s follows the versions of %s: end that before you %s",
			member->shard, group->replica, group->model->name, what);
	if (op != NULL && op->members[member->shard].arrived)
		return th_fail(err, TH_E_STATE,
			"shard %u of replica %s has an operation open: wait for it before you %s",
			member->shard, group->replica, what);
	return 0;
}

static void
drop_registration(struct refsrv *server, struct member *member)
{
	if (member->registered)
		blob_release(server, member->reg.manifest);
	member->registered = false;
}

static int
group_register_check(struct refsrv *server, const struct member *member,
	const struct ctl_register *reg, struct th_err *err)
{
	int rc = idle_check(member, "register", err);
	if (rc != 0)
		return rc;
	if (th_hash_none(reg->layout) || th_hash_none(reg->manifest))
		return th_fail(err, TH_E_INVALID,
			"shard %u of replica %s registers without a layout or a manifest",
			member->shard, member->group->replica);
	/* A copy that this server has asked for is of what it knows: others bring the manifest. */
	if (member->group->reservation == 0 && !blob_exists(server, reg->manifest))
		return th_fail(err, TH_E_NOT_AVAILABLE,
			"the manifest of shard %u of replica %s is not at the server: put it, then "
			"register again",
			member->shard, member->group->replica);
	return offload_register_check(member, reg, err);
}

int
member_register(struct refsrv *server, struct agent *agent, const struct ctl_register *reg,
	struct th_err *err)
{
	struct member *member = member_find(server, agent, reg->sid, err);

	if (member == NULL)
		return err->code;
	int rc = group_register_check(server, member, reg, err);
	if (rc != 0) {
		offload_register_refused(member, err);
		return rc;
	}
	blob_acquire(server, reg->manifest);
	drop_registration(server, member);
	member->reg = *reg;
	member->registered = true;
	offload_registered(member);
	return 0;
}

int
member_unregister(struct refsrv *server, struct agent *agent, uint64_t sid, struct th_err *err)
{
	struct member *member = member_find(server, agent, sid, err);

	if (member == NULL)
		return err->code;
	int rc = idle_check(member, "unregister", err);
	if (rc == 0)
		drop_registration(server, member);
	return rc;
}

/* ---- leaving -------------------------------------------------------------------------------- */

void
member_settle(struct refsrv *server, struct member *member)
{
	struct group *group = member->group;
	struct part *part = copy_part_of(member);

	if (!member->closed)
		return;
	if (part != NULL) {
		if (!part->drained || part->num_fills > 0)
			return;
		TH_ASSERT(part->readers == NULL);
		part->member = NULL;
	}
	drop_registration(server, member);
	rejoin_member_free(member);
	group->members[member->shard] = NULL;
	DL_DELETE2(member->agent->members, member, agent_prev, agent_next);
	member->agent->num_members--;
	HASH_DELETE(hh, server->members, member);
	free(member);
	/* The group is looked at when the step ends: the caller may still hold it. */
	model_dirty(group->model);
}

static void
group_tell_broken(const struct group *group, const struct member *member, int code)
{
	if (group->reservation != 0) {
		agent_event(member->agent, CTL_EV_RELEASE)->u.release = (struct ctl_ev_release){
			.reservation = group->reservation,
			.shard = member->shard,
			.sid = member->sid,
		};
		return;
	}
	struct ctl_ev_broken *ev = &agent_event(member->agent, CTL_EV_BROKEN)->u.broken;
	ev->sid = member->sid;
	ev->evicted = code == TH_E_EVICTED;
	snprintf(ev->text, sizeof(ev->text), "%s", group->broken_why);
}

/*
 * node: of the member that broke it; empty: none did. rescue: what it holds can still be read, and
 * is kept until it is safe elsewhere when it is the last copy of a retained version.
 */
static void
break_group(struct refsrv *server, struct group *group, int code, enum event_severity severity,
	const char *node, const char *text, bool rescue)
{
	if (group->state == GROUP_BROKEN)
		return;
	group->state = GROUP_BROKEN;
	follow_set(group, false);
	group_busy(group);
	group->broken_code = code;
	group->closed_in_order = severity == EVENT_INFO;
	event_log(server, severity, group->model->name, node, "%s", text);
	group->broken_why = th_strdup(text);
	for (uint32_t i = 0; i < group->num_shards; i++) {
		struct member *member = group->members[i];
		if (member == NULL)
			continue;
		rejoin_drain_unbuilt(server, member);
		if (!member->closed)
			group_tell_broken(group, member, code);
	}
	struct op *op = group_open_op(group);
	/* First, so that an offload that this operation waits for goes on. */
	bool kept = rescue && last_copy_rescue(server, group);
	if (op != NULL)
		op_group_broken(server, op);
	if (group->copy != NULL)
		content_reconsider(server, group->copy->version);
	if (group->copy != NULL && !group->copy->aborting && !kept) {
		if (!group->closed_in_order)
			at_risk_lost(server, group->copy, text);
		copy_hide(server, group->copy);
		copy_drain(server, group->copy);
	}
	if (group->rejoining)
		rejoin_over(server, group);
	model_changed(server, group->model);
}

void
group_break(struct refsrv *server, struct group *group, const char *text)
{
	enum event_severity severity = group->reservation != 0 ? EVENT_INFO : EVENT_WARN;

	break_group(server, group, TH_E_GROUP_BROKEN, severity, "", text, true);
}

void
group_evict(struct refsrv *server, struct group *group, const char *text, bool force)
{
	TH_MARK(evicted);
	break_group(server, group, TH_E_EVICTED, EVENT_WARN, "", text, !force);
}

/* What was kept of a broken group to be copied cannot be read any more. */
static void
rescue_fails(struct refsrv *server, const struct group *group, const char *why)
{
	if (group->copy == NULL || !group->copy->rescued)
		return;
	at_risk_lost(server, group->copy, why);
	last_copy_rescue_stop(server, group->copy);
}

static void
group_leave(struct refsrv *server, struct member *member, const struct ctl_close *close)
{
	const struct agent *agent = member->agent;
	bool unreadable = close->broke_contract || close->unreadable;
	/* An agent that ends closes what its workers have not, who claim what they claimed. */
	bool ends = close->abandon && agent->leaving;
	bool crashed = close->died || close->broke_contract || ends;
	enum event_severity severity = close->broke_contract                 ? EVENT_ERROR
				       : (close->died || unreadable || ends) ? EVENT_WARN
									     : EVENT_INFO;
	struct th_err cause;

	th_fail(&cause, TH_E_GROUP_BROKEN,
		"replica %s of %s is broken: shard %u on node %s %s; close this handle and open "
		"again",
		member->group->replica, member->group->model->name, member->shard, agent->info.node,
		close->broke_contract ? "changed its published memory before unpublish"
		: close->died         ? "lost its worker"
		: ends                ? "was closed, because its agent ends"
				      : "was closed");
	if (close->died && copy_part_of(member) != NULL && copy_part_of(member)->readers != NULL)
		TH_MARK(c21_worker_died_while_it_was_read);
	retain_leave(server, member->group, crashed);
	last_copy_close_over(member);
	member->closed = true;
	break_group(server, member->group, TH_E_GROUP_BROKEN, severity, agent->info.node,
		cause.text, (close->died || close->abandon) && !unreadable);
	if (unreadable)
		rescue_fails(server, member->group, cause.text);
	member_settle(server, member);
}

void
member_leave(struct refsrv *server, struct member *member)
{
	group_leave(server, member, &(struct ctl_close){.sid = member->sid});
}

int
member_close(struct refsrv *server, struct agent *agent, const struct ctl_close *close,
	struct th_err *err)
{
	struct member *member = member_lookup(server, close->sid);

	if (member != NULL && member->agent == agent && member->closed && close->unreadable) {
		/* It was closed while its memory was still there to be rescued. */
		rescue_fails(server, member->group, "its memory went with its worker");
		return 0;
	}
	member = member_find(server, agent, close->sid, err);
	if (member == NULL)
		return err->code;
	if (member->rejoin != NULL && rejoin_close(server, member, close))
		return 0;
	bool may_wait =
		!close->died && !close->broke_contract && !close->abandon && !close->unreadable;
	if (!may_wait || !last_copy_close(server, member, close->timeout_ns))
		group_leave(server, member, close);
	return 0;
}

void
member_lost(struct refsrv *server, struct member *member, const char *why)
{
	struct group *group = member->group;
	struct th_err cause;

	th_fail(&cause, TH_E_GROUP_BROKEN,
		"replica %s of %s is broken: shard %u is lost with the agent of node %s (%s); "
		"close "
		"this handle and open again",
		group->replica, group->model->name, member->shard, member->agent->info.node, why);
	retain_leave(server, group, true);
	last_copy_close_over(member);
	member->closed = true;
	break_group(server, group, TH_E_GROUP_BROKEN, EVENT_WARN, member->agent->info.node,
		cause.text, false);
	rescue_fails(server, group, cause.text);
	struct part *part = copy_part_of(member);
	if (part != NULL) {
		/* No proof can come from there, and none is needed: its memory went with it. */
		leg_drop_fills(server, part);
		leg_expel_readers(part);
		copy_part_drained(server, part);
		return;
	}
	member_settle(server, member);
}

void
group_settle(struct refsrv *server, struct group *group)
{
	struct op *op = group_open_op(group);

	if (op != NULL)
		op_poke(server, op);
	if (group->num_closing > 0)
		last_copy_close_settle(server, group);
	if (group->state != GROUP_BROKEN) {
		op = group_open_op(group);
		/* Of thousands that read one version few have lost their leg. */
		if ((op == NULL || op_goes_on(op)) && group->num_closing == 0)
			group_idle(group);
		return;
	}
	if (group->copy != NULL && group->copy->rescued)
		last_copy_rescue_settle(server, group->copy);
	for (uint32_t i = 0; i < group->num_shards; i++) {
		if (group->members[i] != NULL)
			member_settle(server, group->members[i]);
	}
	if (any_member(group) != NULL || group->copy != NULL || group->offload != NULL ||
		rejoin_remembers(server, group))
		return;
	timer_stop(server, &group->timer);
	if (group->form_ns != 0)
		server->num_formed_again--;
	while (group->ops != NULL)
		op_free(server, group->ops);
	if (group->automatic != NULL)
		op_free(server, group->automatic);
	group_idle(group);
	DL_DELETE(group->model->groups, group);
	unname_group(group->model, group);
	group_launch_free(group);
	free(group->broken_why);
	free(group->members);
	free(group);
}
