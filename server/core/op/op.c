/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op - see op.h. This file: members calling, in order and in step; outcomes; cancel and deadline.
 */
#include "server/core/op/op.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"
#include "ipc/base/state.h"
#include "ipc/base/utf8.h"
#include "server/core/cluster/agent.h"
#include "server/core/cluster/epoch.h"
#include "server/core/model/blob.h"
#include "server/core/model/content.h"
#include "server/core/model/copy.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/op/follow.h"
#include "server/core/rejoin/rejoin.h"
#include "server/core/retain/last_copy.h"
#include "server/core/route/leg.h"
#include "server/core/timer.h"
#include "server/core/view/listing.h"
#include "server/core/view/snapshot.h"

#define TO(state) TH_STATE(OP_##state)

/* What a former server has begun or decided begins where that one was (op_known). */
static const struct th_states op_states = {
	"op", {
		      [OP_NONE] = {"new", TO(HELD) | TO(GATHER) | TO(RUNNING) | TO(DONE)},
		      [OP_HELD] = {"held", TO(GATHER) | TO(DONE)},
		      [OP_GATHER] = {"gather", TO(OFFLOADING) | TO(RUNNING) | TO(DONE)},
		      [OP_OFFLOADING] = {"offloading", TO(GATHER) | TO(DRAINING) | TO(DONE)},
		      [OP_DRAINING] = {"draining", TO(DONE)},
		      [OP_RUNNING] = {"running", TO(ABORTING) | TO(DONE)},
		      [OP_ABORTING] = {"aborting", TO(DONE)},
		      [OP_DONE] = {"done", 0},
	      }};

void
op_enter(struct op *op, enum op_state state, const char *why)
{
	th_state_check(&op_states, op->state, state, why);
	op->state = state;
}

static const char *
op_do_describe(uint32_t kind, const char *spec, uint32_t flags, char *buffer, size_t bytes)
{
	bool named = spec[0] != '\0' && kind != CTL_OP_UNPUBLISH && kind != CTL_OP_LIST;

	snprintf(buffer, bytes, flags != 0 ? "%s%s%s (flags 0x%x)" : "%s%s%s", ctl_op_name(kind),
		named ? " of " : "", named ? spec : "", flags);
	return buffer;
}

/* "publish of 17", for sentences. Borrowed until the next call with the same buffer. */
static const char *
op_describe(const struct op *op, char *buffer, size_t bytes)
{
	return op_do_describe(op->kind, op->spec, op->flags, buffer, bytes);
}

/* ---- outcomes ------------------------------------------------------------------------------- */

void
op_tell(struct op *op, struct member *member)
{
	struct op_member *state = &op->members[member->shard];
	struct ctl_ev_outcome *ev;

	if ((state->told && !TH_PLANT(outcome_told_twice)) || member->closed)
		return;
	if (op->state == OP_DONE && op->num_arrived > 1 && !state->told)
		TH_MARK(i04_one_outcome_for_several);
	state->told = true;
	ev = &agent_event(member->agent, CTL_EV_OUTCOME)->u.outcome;
	ev->sid = member->sid;
	ev->op_seq = op->seq;
	ev->kind = op->kind;
	ev->code = op->code;
	if (TH_PLANT(outcome_of_its_own) && member->shard > 0 && op->kind != CTL_OP_LIST)
		ev->code = ev->code == 0 ? TH_E_TIMEOUT : 0;
	ev->updated = op->updated;
	ev->version = op->version;
	if (op->snapshot != NULL)
		ev->generation = op->snapshot->u.listing.generation;
	if (op->updated) {
		const struct part *part = copy_part_of(member);
		if (part != NULL && part->source_name != NULL)
			memcpy(ev->source, part->source_name, strlen(part->source_name) + 1);
	}
	memcpy(ev->text, op->text, sizeof(ev->text));
}

static void
op_decide(struct refsrv *server, struct op *op)
{
	struct group *group = op->group;

	op_enter(op, OP_DONE, "its outcome");
	timer_stop(server, &op->timer);
	op->version = group->copy != NULL ? group->copy->version->id
					  : (struct th_version){.version = TH_NO_VERSION};
	for (uint32_t i = 0; i < group->num_shards; i++) {
		if (group->members[i] != NULL && op->members[i].arrived)
			op_tell(op, group->members[i]);
	}
	if (group->copy != NULL)
		last_copy_end(group->copy);
	if (ctl_op_automatic(op->seq))
		follow_decided(server, op);
	model_dirty(group->model);
}

void
op_succeed(struct refsrv *server, struct op *op, bool updated)
{
	op->code = 0;
	op->updated = updated;
	op->text[0] = '\0';
	op_decide(server, op);
}

void
op_fail(struct refsrv *server, struct op *op, int code, const char *format, ...)
{
	va_list args;

	TH_ASSERT(code < 0 && op->state != OP_DONE && op->state != OP_RUNNING);
	va_start(args, format);
	vsnprintf(op->text, sizeof(op->text), format, args);
	va_end(args);
	op->text[th_utf8_cut(op->text, strlen(op->text))] = '\0';
	op->code = code;
	op->updated = false;
	if (op->state == OP_DRAINING)
		op_unpublish_undo(server, op);
	else if (op->state == OP_GATHER && op_drains_old(op))
		op_replicate_undo(server, op);
	op_decide(server, op);
}

void
op_free(struct refsrv *server, struct op *op)
{
	struct group *group = op->group;

	for (uint32_t i = 0; op->attributes != NULL && i < group->num_shards; i++)
		blob_release(server, op->attributes[i]);
	snapshot_let_go(server, op->snapshot);
	timer_stop(server, &op->timer);
	if (ctl_op_automatic(op->seq))
		group->automatic = NULL;
	else
		DL_DELETE(group->ops, op);
	free(op->attributes);
	free(op->members);
	free(op->blames);
	free(op->blame_text);
	free(op);
}

void
op_group_broken(struct refsrv *server, struct op *op)
{
	TH_MARK(c12_member_lost_in_an_operation);
	if (op->state == OP_RUNNING)
		op_abort(server, op, op->group->broken_code, op->group->broken_why);
	else if (op->state != OP_ABORTING)
		op_fail(server, op, op->group->broken_code, "%s", op->group->broken_why);
}

/* ---- calling -------------------------------------------------------------------------------- */

struct op *
op_find(const struct group *group, uint64_t seq)
{
	struct op *op = group->automatic;

	if (op != NULL && op->seq == seq)
		return op;
	DL_FOREACH(group->ops, op)
	{
		if (op->seq == seq)
			return op;
	}
	return NULL;
}

/* Outcomes that every member has left behind are not asked for again. */
static void
trim(struct refsrv *server, struct group *group)
{
	uint64_t slowest = group_slowest(group);

	while (group->ops != NULL && group->ops->state == OP_DONE && group->ops->seq < slowest)
		op_free(server, group->ops);
}

static bool
too_far_ahead(const struct group *group, uint64_t seq)
{
	return !ctl_op_automatic(seq) && seq > group_slowest(group) + OP_WINDOW;
}

static struct op *
op_new(struct refsrv *server, struct member *member, const struct ctl_op *request)
{
	struct group *group = member->group;
	struct op *op = th_calloc(1, sizeof(*op));

	op->group = group;
	op->seq = request->op_seq;
	op->kind = request->kind;
	op->flags = request->flags;
	memcpy(op->spec, request->spec, strnlen(request->spec, TH_SPEC_MAX));
	op->deadline_ns = th_deadline_ns(server->now_ns, request->timeout_ns);
	memcpy(op->first_node, member->agent->info.node, sizeof(op->first_node));
	op->first_shard = member->shard;
	op->members = th_calloc(group->num_shards, sizeof(*op->members));
	if (op->kind == CTL_OP_PUBLISH)
		op->attributes = th_calloc(group->num_shards, sizeof(*op->attributes));
	op->version.version = TH_NO_VERSION;
	op_enter(op, too_far_ahead(group, op->seq) ? OP_HELD : OP_GATHER, "called");
	if (ctl_op_automatic(op->seq))
		group->automatic = op;
	else
		DL_APPEND(group->ops, op);
	group_busy(group);
	timer_at(server, &op->timer, TIMER_OP, op->deadline_ns);
	return op;
}

static void
op_list_arrive(struct refsrv *server, struct op *op, const struct member *member)
{
	struct th_err err;

	if (listing_snapshot(server, member->agent->inc, op->group->model, &err, &op->snapshot) !=
		0)
		op_fail(server, op, err.code, "%s", err.text);
	else
		op_succeed(server, op, false);
}

static void
dispatch_arrival(struct refsrv *server, struct op *op, struct member *member)
{
	switch (op->kind) {
	case CTL_OP_PUBLISH:
		op_publish_arrive(server, op, member);
		break;
	case CTL_OP_UNPUBLISH:
		op_unpublish_arrive(server, op);
		break;
	case CTL_OP_LIST:
		op_list_arrive(server, op, member);
		break;
	case CTL_OP_FOLLOW:
		follow_arrive(server, op, member);
		break;
	default:
		op_replicate_arrive(server, op, member);
		break;
	}
}

static void
op_arrive(struct refsrv *server, struct op *op, struct member *member, const struct ctl_op *request)
{
	op->members[member->shard].arrived = true;
	op->num_arrived++;
	if (op->kind == CTL_OP_PUBLISH && !th_hash_none(request->attributes)) {
		/* Its agent puts again what a former server had, and may not be there yet. */
		if (model_warming(server, op->group->model))
			blob_expect(server, request->attributes);
		else if (!blob_exists(server, request->attributes)) {
			op_fail(server, op, TH_E_NOT_AVAILABLE,
				"the attributes of shard %u of replica %s are not at the server: "
				"put "
				"them, then publish again",
				member->shard, op->group->replica);
			return;
		}
		blob_acquire(server, request->attributes);
		op->attributes[member->shard] = request->attributes;
	}
	if (op->state != OP_HELD)
		dispatch_arrival(server, op, member);
}

static void
unhold(struct refsrv *server, struct group *group)
{
	struct op *op = group_open_op(group);

	if (op == NULL || op->state != OP_HELD || too_far_ahead(group, op->seq))
		return;
	op_enter(op, OP_GATHER, "the slowest member has come nearer");
	for (uint32_t i = 0; i < group->num_shards; i++) {
		if (op->state == OP_DONE)
			return;
		if (op->members[i].arrived && group->members[i] != NULL)
			dispatch_arrival(server, op, group->members[i]);
	}
}

static bool
same_call(const struct op *op, const struct ctl_op *request)
{
	return op->kind == request->kind && op->flags == request->flags &&
	       strcmp(op->spec, request->spec) == 0;
}

/* The members' programs have diverged: loud, for all of them. */
static void
mismatch(struct refsrv *server, struct op *op, struct member *member, const struct ctl_op *request)
{
	char first[96], second[96];
	struct th_err cause;
	bool decided = op->state == OP_DONE;

	TH_MARK(c13_members_call_different_things);
	int old_code = op->code;

	th_fail(&cause, TH_E_GROUP_MISMATCH,
		"operation %" PRIu64
		": shard %u calls %s, shard %u calls %s; all members must make the same "
		"calls in the same order (replica %s, nodes %s and %s)",
		op->seq, op->first_shard, op_describe(op, first, sizeof(first)), member->shard,
		op_do_describe(
			request->kind, request->spec, request->flags, second, sizeof(second)),
		op->group->replica, op->first_node, member->agent->info.node);
	op->members[member->shard].arrived = true;
	op->num_arrived++;
	if (!decided) {
		op_fail(server, op, TH_E_GROUP_MISMATCH, "%s", cause.text);
		return;
	}
	/* Decided before: this member alone learns it now; after a success the others must too. */
	struct ctl_ev_outcome *ev = &agent_event(member->agent, CTL_EV_OUTCOME)->u.outcome;
	op->members[member->shard].told = true;
	ev->sid = member->sid;
	ev->op_seq = op->seq;
	ev->kind = request->kind;
	ev->code = TH_E_GROUP_MISMATCH;
	ev->version = op->version;
	memcpy(ev->text, cause.text, sizeof(ev->text));
	if (old_code == 0)
		group_break(server, op->group, cause.text);
}

static int
request_check(const struct member *member, const struct ctl_op *request, struct th_err *err)
{
	const struct op *open = group_open_op(member->group);

	if (request->kind < CTL_OP_PUBLISH || request->kind > CTL_OP_FOLLOW ||
		memchr(request->spec, '\0', sizeof(request->spec)) == NULL)
		return th_fail(err, TH_E_INVALID,
			"shard %u of replica %s asks for an operation of unknown kind %u",
			member->shard, member->group->replica, request->kind);
	if (request->op_seq != member->next_op_seq)
		return th_fail(err, TH_E_STATE,
			"shard %u of replica %s calls operation %" PRIu64 ", its next is %" PRIu64,
			member->shard, member->group->replica, request->op_seq,
			member->next_op_seq);
	if (open != NULL && open != member->group->automatic &&
		open->members[member->shard].arrived)
		return th_fail(err, TH_E_STATE,
			"shard %u of replica %s calls an operation while operation %" PRIu64
			" is open: wait for its outcome",
			member->shard, member->group->replica, open->seq);
	return 0;
}

static void
answer_broken(struct member *member, const struct ctl_op *request)
{
	struct ctl_ev_outcome *ev = &agent_event(member->agent, CTL_EV_OUTCOME)->u.outcome;

	ev->sid = member->sid;
	ev->op_seq = request->op_seq;
	ev->kind = request->kind;
	ev->code = member->group->broken_code;
	ev->version.version = TH_NO_VERSION;
	memcpy(ev->text, member->group->broken_why, strlen(member->group->broken_why) + 1);
}

int
op_request(struct refsrv *server, struct agent *agent, const struct ctl_op *request,
	struct th_err *err)
{
	char text[TH_CTL_TEXT_BYTES];
	struct member *member = member_find(server, agent, request->sid, err);

	if (member == NULL)
		return err->code;
	struct group *group = member->group;
	if (member->rejoin != NULL)
		return rejoin_op(server, member, request, err);
	struct op *op = op_find(group, request->op_seq);
	if (op != NULL && request->op_seq + 1 == member->next_op_seq && same_call(op, request))
		return 0; /* Asked again under another number: its outcome comes once. */
	int rc = request_check(member, request, err);
	if (rc == 0 && group->state != GROUP_BROKEN)
		rc = follow_gives_way(server, group, err);
	if (rc != 0)
		return rc;
	member->next_op_seq++;
	if (op == NULL && group->state == GROUP_BROKEN) {
		answer_broken(member, request);
		return 0;
	}
	bool opens = op == NULL;
	if (opens)
		op = op_new(server, member, request);
	if (opens && group->copy != NULL && group->copy->refusal_due) {
		group->copy->refusal_due = false;
		content_describe_refusal(group->copy, text, sizeof(text));
		op_fail(server, op, TH_E_VERSION_CONFLICT, "%s", text);
	}
	if (!same_call(op, request)) {
		mismatch(server, op, member, request);
	} else if (op->state == OP_DONE) {
		TH_MARK(c14_late_member_gets_the_outcome);
		op->members[member->shard].arrived = true;
		op->num_arrived++;
		op_tell(op, member);
		/* All may stand before the same operation now, which a follower waits for. */
		if (group->follow.follows)
			model_dirty(group->model);
	} else {
		op_arrive(server, op, member, request);
	}
	trim(server, group);
	unhold(server, group);
	return 0;
}

/* The server itself calls it for all members. */
static void
begin_for_all(struct refsrv *server, struct group *group, struct ctl_op *request,
	const struct version *version)
{
	request->timeout_ns = TH_FOREVER;
	snprintf(request->spec, sizeof(request->spec), "%" PRIu64, version->id.version);
	struct op *op = op_new(server, group->members[0], request);
	for (uint32_t i = 0; i < group->num_shards; i++)
		op->members[i].arrived = true;
	op->num_arrived = group->num_shards;
	op_replicate_begin(server, op, version);
}

void
op_begin_offload(struct refsrv *server, struct group *group, const struct version *version)
{
	struct ctl_op request = {.op_seq = 1, .kind = CTL_OP_REPLICATE};

	for (uint32_t i = 0; i < group->num_shards; i++)
		group->members[i]->next_op_seq = 2;
	begin_for_all(server, group, &request, version);
}

void
op_begin_automatic(struct refsrv *server, struct group *group, const struct version *version)
{
	struct ctl_op request = {
		.op_seq = CTL_OP_AUTOMATIC | epoch_next_id(server), .kind = CTL_OP_UPDATE};

	if (group->automatic != NULL)
		op_free(server, group->automatic);
	begin_for_all(server, group, &request, version);
}

int
op_cancel(struct refsrv *server, struct agent *agent, const struct ctl_cancel *cancel,
	struct th_err *err)
{
	struct member *member = member_find(server, agent, cancel->sid, err);
	char text[96];

	if (member == NULL)
		return err->code;
	if (member->rejoin != NULL) {
		rejoin_cancel(member, cancel);
		return 0;
	}
	struct op *op = op_find(member->group, cancel->op_seq);
	/* After GO it runs to its own end; when it is decided there is nothing to cancel. */
	if (op == NULL || !op->members[member->shard].arrived || op->state == OP_RUNNING ||
		op->state == OP_ABORTING || op->state == OP_DONE)
		return 0;
	op_fail(server, op, TH_E_CANCELLED,
		"%s of replica %s was cancelled by shard %u on node %s before anything changed",
		op_describe(op, text, sizeof(text)), op->group->replica, member->shard,
		agent->info.node);
	return 0;
}

/* ---- time ----------------------------------------------------------------------------------- */

/* "shard 3 on node b (pid 4711)": as much of that as is known. */
static void
describe_shard(const struct group *group, uint32_t shard, char *buffer, size_t bytes)
{
	const struct member *member = group->members[shard];
	char pid[24] = "";

	if (member != NULL && member->pid != 0)
		snprintf(pid, sizeof(pid), " (pid %" PRIu32 ")", member->pid);
	snprintf(buffer, bytes, "shard %u%s%.200s%s", shard, member != NULL ? " on node " : "",
		member != NULL ? member->agent->info.node : "", pid);
}

/* What this shard has not done yet; NULL: nothing. */
static const char *
missing_of(const struct op *op, uint32_t shard)
{
	const struct group *group = op->group;
	const struct op_member *member = &op->members[shard];

	if (op->state == OP_DRAINING)
		return group->copy->parts[shard].drained ? NULL : "is still being read";
	if (!member->arrived)
		return group->members[shard] == NULL ? "has not joined" : "has not called it";
	if (op->state == OP_RUNNING)
		return group->copy->parts[shard].done ? NULL : "is still receiving";
	return member->planned && !member->prepared ? "is not ready" : NULL;
}

/* What the operation still waits for: the first of the shards that have not come so far. */
static void
describe_wait(const struct op *op, char *buffer, size_t bytes)
{
	const struct group *group = op->group;

	if (op->state == OP_HELD) {
		snprintf(buffer, bytes, "its members are %u operations ahead of the slowest",
			OP_WINDOW);
		return;
	}
	if (op->state == OP_OFFLOADING && model_warming(group->model->server, group->model)) {
		snprintf(buffer, bytes,
			"the reference server is new, and has not yet been told who else has the "
			"version");
		return;
	}
	if (op->state == OP_OFFLOADING) {
		snprintf(buffer, bytes,
			"it is the last copy of a retained version, and is being copied to host "
			"memory");
		return;
	}
	if (op->kind == CTL_OP_REPLICATE && !op_planned(op)) {
		snprintf(buffer, bytes, "no source has the version");
		return;
	}
	for (uint32_t i = 0; i < group->num_shards; i++) {
		const char *missing = missing_of(op, i);
		if (missing != NULL) {
			char shard[256];
			describe_shard(group, i, shard, sizeof(shard));
			snprintf(buffer, bytes, "%s %s", shard, missing);
			return;
		}
	}
	snprintf(buffer, bytes, "%s",
		op->state == OP_ABORTING ? "its transfers are being stopped" : "no source is free");
}

int
op_waits(struct refsrv *server, struct agent *agent, uint64_t sid,
	struct ctl_waits_reply *ret_reply, struct th_err *err)
{
	const struct member *member = member_find(server, agent, sid, err);

	if (member == NULL)
		return err->code;
	const struct op *op = group_open_op(member->group);
	if (op == NULL || !op->members[member->shard].arrived)
		return th_fail(err, TH_E_STATE,
			"shard %u of replica %s has called no operation that has not ended",
			member->shard, member->group->replica);
	describe_wait(op, ret_reply->text, sizeof(ret_reply->text));
	return 0;
}

void
op_timers(struct refsrv *server, struct op *op)
{
	char what[96], wait[320];

	if (op->state == OP_RUNNING || op->state == OP_ABORTING || op->state == OP_DONE)
		return;
	if (server->now_ns < op->deadline_ns) {
		timer_at(server, &op->timer, TIMER_OP, op->deadline_ns);
		return;
	}
	TH_MARK(c30_one_deadline_for_all);
	if (op->num_arrived < op->group->num_shards)
		TH_MARK(c14_missing_member_is_named);
	describe_wait(op, wait, sizeof(wait));
	op_fail(server, op, TH_E_TIMEOUT,
		"%s of replica %s: the deadline passed before anything changed: %s; call again, or "
		"with a longer timeout",
		op_describe(op, what, sizeof(what)), op->group->replica, wait);
}

/* Only a former server's word comes so late: what was published first is back. */
static void
abort_refused(struct refsrv *server, struct op *op)
{
	const struct copy *copy = op->group->copy;
	char text[TH_CTL_TEXT_BYTES];

	TH_MARK(rejoin_refuses_what_is_read);
	snprintf(text, sizeof(text),
		"version %" PRIu64 " of %.100s: replica %.100s has come back, which published it "
		"first and with other bytes than those that replica %.100s was receiving; "
		"replicate again",
		copy->version->id.version, op->group->model->name, copy->content->refused_by,
		op->group->replica);
	op_abort(server, op, TH_E_VERSION_CONFLICT, text);
}

bool
op_goes_on(const struct op *op)
{
	const struct copy *copy = op->group->copy;

	if (op->kind != CTL_OP_REPLICATE && op->kind != CTL_OP_UPDATE)
		return false;
	if (op->state != OP_RUNNING)
		return op->state == OP_ABORTING;
	if (copy->content->refused)
		return false;
	bool all = true;
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		all = all && copy->parts[i].done;
		if (!copy->parts[i].done && copy->parts[i].leg == NULL)
			return false;
	}
	return !all; /* when all is here, what it waits for is the publisher's word */
}

void
op_poke(struct refsrv *server, struct op *op)
{
	if (op->kind == CTL_OP_UNPUBLISH && op->state == OP_OFFLOADING)
		op_unpublish_poke(server, op);
	if (op->kind != CTL_OP_REPLICATE && op->kind != CTL_OP_UPDATE)
		return;
	if (op->state == OP_GATHER || op->state == OP_OFFLOADING) {
		op_replicate_poke(server, op);
		return;
	}
	if (op->state == OP_RUNNING && op->group->copy->content->refused)
		abort_refused(server, op);
	/* Finding no source may abort the operation, and with it the copy goes. */
	bool all = true;
	for (uint32_t i = 0; op->state == OP_RUNNING && i < op->group->num_shards; i++) {
		struct part *part = &op->group->copy->parts[i];
		all = all && part->done;
		if (!part->done && part->leg == NULL)
			leg_find_source(server, op, part);
	}
	if (op->state == OP_RUNNING && all)
		op_all_done(server, op);
}
