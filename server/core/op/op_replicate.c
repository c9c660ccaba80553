/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_replicate - replicate and update: the operations that bring bytes. See op.h.
 *
 * PLAN fixes the version when the first member calls (replicate: as soon as the version is there).
 * Each member checks its layout and gives up what it held, then is PREPARED. With the last of them
 * GO: one source replica for all shards, and only from here on may a byte be overwritten. A member
 * that cannot, a deadline or a cancel before GO restores the old copy: nothing has happened.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/model/content.h"
#include "server/core/model/copy.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/op/op.h"
#include "server/core/rejoin/rejoin.h"
#include "server/core/retain/fetch.h"
#include "server/core/retain/last_copy.h"
#include "server/core/route/chain_split.h"
#include "server/core/route/dc_seed.h"
#include "server/core/route/leg.h"
#include "server/core/route/route.h"

/* ---- PLAN ----------------------------------------------------------------------------------- */

bool
op_planned(const struct op *op)
{
	return op->adopted || !th_version_none(op->version);
}

bool
op_drains_old(const struct op *op)
{
	return op->adopted || (op_planned(op) && op->group->copy != NULL);
}

static void
send_plan(struct op *op, struct member *member, const struct version *version)
{
	const struct shard_layout *shard = &version->shards[member->shard];
	struct ctl_ev_plan *ev = &agent_event(member->agent, CTL_EV_PLAN)->u.plan;

	ev->sid = member->sid;
	ev->op_seq = op->seq;
	ev->kind = op->kind;
	ev->plan_no = op->plan_no;
	ev->drain_old = op_drains_old(op);
	ev->version = op->version;
	ev->layout = shard->layout;
	ev->manifest = shard->manifest;
	op->members[member->shard].planned = true;
}

/*
 * The held copy may be the last of a retained version: then it is copied first, and stays listed
 * and readable until that is done.
 */
static bool
may_give_up(struct refsrv *server, struct op *op)
{
	struct copy *held = op->group->copy;

	if (op->state == OP_GATHER)
		op_enter(op, OP_OFFLOADING, "what it holds goes");
	last_copy_begin(server, held);
	switch (last_copy_check(server, held)) {
	case LAST_COPY_WAIT:
		return false;
	case LAST_COPY_FAILED:
		op_fail(server, op, held->keep->code, "%s", held->keep->text);
		return false;
	case LAST_COPY_FREE:
		break;
	}
	op_enter(op, OP_GATHER, "it is no last copy");
	last_copy_end(held);
	return true;
}

static void
plan(struct refsrv *server, struct op *op, const struct version *version)
{
	struct group *group = op->group;

	if (version->num_shards != group->num_shards) {
		TH_MARK(c26_other_number_of_shards);
		op_fail(server, op, TH_E_LAYOUT,
			"version %" PRIu64
			" of %s has %u shards, replica %s has %u: open the replica "
			"with the same number of shards",
			version->id.version, group->model->name, version->num_shards,
			group->replica, group->num_shards);
		return;
	}
	if (group->copy != NULL && !may_give_up(server, op))
		return;
	op->version = version->id;
	if (group->copy != NULL)
		copy_hide(server, group->copy);
	for (uint32_t i = 0; i < group->num_shards; i++) {
		if (op->members[i].arrived)
			send_plan(op, group->members[i], version);
	}
}

void
op_replicate_begin(struct refsrv *server, struct op *op, const struct version *version)
{
	plan(server, op, version);
}

void
op_replicate_undo(struct refsrv *server, struct op *op)
{
	TH_MARK(d01_restored_before_go);
	if (op->group->state != GROUP_BROKEN)
		copy_restore(server, op->group->copy, op);
}

/* The group holds a version already: replicate has nothing to do, or must not. */
static bool
replicate_held(struct refsrv *server, struct op *op, struct th_version wanted)
{
	const struct copy *copy = op->group->copy;

	if (copy == NULL)
		return false;
	if (copy->content->refused && th_version_compare(copy->version->id, wanted) == 0) {
		char text[TH_CTL_TEXT_BYTES];
		content_describe_refusal(copy, text, sizeof(text));
		op_fail(server, op, TH_E_VERSION_CONFLICT, "%s", text);
		return true;
	}
	if (th_version_compare(copy->version->id, wanted) == 0)
		op_succeed(server, op, false);
	else
		op_fail(server, op, TH_E_STATE,
			"replica %s holds version %" PRIu64
			": unpublish it before you replicate %s, or call update",
			op->group->replica, copy->version->id.version, op->spec);
	return true;
}

/*
 * For update, when nobody may begin to read the latest, as while it is given up: the highest that
 * can be had, and is higher than what is held. NULL: there is none.
 */
static struct version *
next_best(struct refsrv *server, const struct group *group, struct th_version latest)
{
	const struct copy *held = group->copy;
	struct version *head = group->model->versions, *version = head == NULL ? NULL : head->prev;

	for (; version != NULL; version = version == head ? NULL : version->prev) {
		if (version->id.lineage != latest.lineage ||
			(held != NULL && th_version_compare(version->id, held->version->id) <= 0))
			return NULL;
		if (th_version_compare(version->id, latest) < 0 &&
			version_counts(server, version) && route_available(server, version, group))
			return version;
	}
	return NULL;
}

static void
try_plan(struct refsrv *server, struct op *op)
{
	struct group *group = op->group;
	struct th_spec spec;
	const char *reason;

	if (th_spec_parse(op->spec, &spec) != 0) {
		op_fail(server, op, TH_E_INVALID,
			"replica %s asks for version \"%s\": a version is a number, latest, or "
			"latest-K",
			group->replica, op->spec);
		return;
	}
	if (op->kind == CTL_OP_REPLICATE && spec.relative && model_warming(server, group->model)) {
		TH_MARK(warming_replicate_waits);
		return;
	}
	struct th_version wanted = model_resolve(server, group->model, &spec);
	if (op->kind == CTL_OP_REPLICATE && replicate_held(server, op, wanted))
		return;
	struct version *version =
		th_version_none(wanted) ? NULL : version_find(group->model, wanted);
	bool available = version != NULL && route_available(server, version, group);
	if (op->kind == CTL_OP_UPDATE && !available && !th_version_none(wanted) && spec.relative &&
		spec.number == 0 && !model_warming(server, group->model)) {
		struct version *next = next_best(server, group, wanted);
		if (next != NULL) {
			TH_MARK(update_takes_the_next_best);
			version = next;
			wanted = next->id;
			available = true;
		}
	}
	if (op->kind == CTL_OP_UPDATE) {
		if (spec.relative)
			memcpy(group->fetch.name, op->spec, sizeof(group->fetch.name));
		const struct copy *held = group->copy;
		int order = held == NULL ? 1 : th_version_compare(wanted, held->version->id);
		/* What it has is not that version. */
		if (held != NULL && held->content->refused && order == 0)
			order = 1;
		if (order < 0 && spec.relative)
			TH_MARK(i06_never_backward);
		if (available && order > 0 && spec.relative) {
			version = fetch_update(group, version, &reason);
			available = version != NULL;
		}
		if (available && order != 0 && dc_seed_skips(server, group, version))
			available = false;
		if (!available || order == 0 ||
			(order < 0 && spec.relative && !TH_PLANT(update_goes_backward))) {
			if (model_warming(server, group->model)) {
				/* It may be there, and update does not wait. */
				TH_MARK(warming_update_told);
				op_fail(server, op, TH_E_NO_SERVER,
					"the reference server was restarted and collects what the "
					"agents hold: whether there is a new version is not known "
					"yet; the held one stays, call update again");
				return;
			}
			op_succeed(server, op, false);
			return;
		}
	}
	if (available)
		plan(server, op, version);
}

void
op_replicate_arrive(struct refsrv *server, struct op *op, struct member *member)
{
	if (!member->registered) {
		op_fail(server, op, TH_E_STATE,
			"shard %u of replica %s asks for a version, but has registered no tensors: "
			"register first",
			member->shard, op->group->replica);
		return;
	}
	if (op->adopted)
		TH_MARK(rejoin_without_go);
	if (!op_planned(op))
		try_plan(server, op);
	else
		send_plan(op, member, version_find(op->group->model, op->version));
}

/*
 * What was planned is not to be had any more: it went, as when a trainer moves on, or a seed has
 * begun to bring it here. Nothing has happened yet, so all members begin anew, with what there is
 * now: a replicate by name waits for it as it did before the plan, an update may find nothing new.
 * What they are prepared for does not count.
 */
static void
plan_anew(struct refsrv *server, struct op *op)
{
	TH_MARK(c15_planned_anew);
	if (op_drains_old(op))
		op_replicate_undo(server, op);
	op->version = (struct th_version){.version = TH_NO_VERSION};
	op->plan_no++;
	op->num_prepared = 0;
	for (uint32_t i = 0; i < op->group->num_shards; i++)
		op->members[i].planned = op->members[i].prepared = false;
	try_plan(server, op);
}

/* ---- PREPARED and GO ------------------------------------------------------------------------ */

static void
go(struct refsrv *server, struct op *op, struct copy *source, const char *reason)
{
	struct group *group = op->group;
	struct version *version = source->version;

	/* Every member has proven that nobody reads its old part any more. */
	if (group->copy != NULL)
		copy_free(server, group->copy);
	struct copy *copy =
		copy_new(server, group, version, source->content, op->seq, COPY_PARTIAL);
	op_enter(op, OP_RUNNING, "GO");
	for (uint32_t i = 0; i < group->num_shards; i++) {
		struct ctl_grant grant;
		leg_start(server, op, &copy->parts[i], &source->parts[i], &grant);
		struct ctl_ev_go *ev = &agent_event(group->members[i]->agent, CTL_EV_GO)->u.go;
		ev->sid = group->members[i]->sid;
		ev->op_seq = op->seq;
		ev->grant = grant;
		ev->attributes = source->content->shards[i].attributes;
		ev->content = source->content->shards[i].hash;
		snprintf(ev->reason, sizeof(ev->reason), "%s", reason == NULL ? "" : reason);
		op->members[i].went = true;
	}
	for (uint32_t i = 0; i < group->num_shards; i++)
		chain_split_look(server, &copy->parts[i]);
}

/* Of whatever has it: no version is asked for that could be lost. */
static bool
op_replicate_by_name(const struct op *op)
{
	struct th_spec spec;

	return th_spec_parse(op->spec, &spec) == 0 && spec.relative;
}

static bool
agents_active(const struct group *group)
{
	for (uint32_t i = 0; i < group->num_shards; i++) {
		if (group->members[i]->agent->state != AGENT_ACTIVE)
			return false;
	}
	return true;
}

void
op_replicate_poke(struct refsrv *server, struct op *op)
{
	struct group *group = op->group;

	if (!op_planned(op)) {
		try_plan(server, op);
		return;
	}
	struct version *version = version_find(group->model, op->version);
	if (route_outlook(server, op, version, NULL) != OUTLOOK_WAIT) {
		TH_MARK(c15_planned_source_is_gone_before_go);
		if (op->kind == CTL_OP_UPDATE || op_replicate_by_name(op)) {
			plan_anew(server, op);
			return;
		}
		op_fail(server, op, TH_E_VERSION_LOST,
			"version %" PRIu64
			" of %s: its last complete copy went before the transfer "
			"to replica %s began; nothing has changed here, ask for another version",
			op->version.version, group->model->name, group->replica);
		return;
	}
	if ((op->num_prepared < group->num_shards && !TH_PLANT(go_before_all_are_prepared)) ||
		!agents_active(group))
		return;
	if (op->kind == CTL_OP_UPDATE && dc_seed_skips(server, group, version) &&
		!TH_PLANT(seed_goes_unseen_after_plan)) {
		TH_MARK(c17_seed_has_gone_since_plan);
		plan_anew(server, op);
		return;
	}
	const char *reason = NULL;
	if (op->kind == CTL_OP_UPDATE && op_replicate_by_name(op) &&
		fetch_update(group, version, &reason) != version) {
		TH_MARK(what_was_brought_has_gone_since_plan);
		plan_anew(server, op);
		return;
	}
	struct copy *source = route_choose_copy(server, op, version);
	if (source != NULL)
		go(server, op, source, reason);
}

static int
prepared_check(struct op *op, const struct member *member, const struct ctl_prepared *prepared,
	struct th_err *err)
{
	const struct version *version;

	if (prepared->code > 0)
		return th_fail(err, TH_E_INVALID,
			"shard %u of replica %s is prepared with code %d: a code is 0 or negative",
			member->shard, op->group->replica, prepared->code);
	if (prepared->code < 0)
		return 0;
	version = version_find(op->group->model, op->version);
	const struct shard_layout *shard = version == NULL ? NULL : &version->shards[member->shard];
	if (shard == NULL || !member->registered ||
		(th_hash_equal(shard->layout, member->reg.layout) &&
			shard->num_chunks == member->reg.num_chunks &&
			shard->bytes == member->reg.bytes))
		return 0;
	/* The agent has compared and should have said so; it must not overwrite another layout. */
	return th_fail(err, TH_E_LAYOUT,
		"shard %u of replica %s has another layout than version %" PRIu64 " of %s",
		member->shard, op->group->replica, op->version.version, op->group->model->name);
}

/* The others have begun to overwrite: a member that cannot follow them breaks the group. */
static int
adopted_prepared(struct refsrv *server, struct op *op, struct member *member,
	const struct ctl_prepared *prepared, struct th_err *err)
{
	int rc = prepared_check(op, member, prepared, err);

	if (rc == TH_E_INVALID)
		return rc;
	if (rc != 0 || prepared->code != 0) {
		struct th_err cause;
		th_fail(&cause, TH_E_GROUP_BROKEN,
			"replica %s of %s is broken: the reference server was lost when some of "
			"its shards had begun to receive, and shard %u on node %s cannot follow; "
			"close this handle and open again",
			op->group->replica, op->group->model->name, member->shard,
			member->agent->info.node);
		group_break(server, op->group, cause.text);
		return 0;
	}
	member->unbuilt_gen = 0;
	op->members[member->shard].prepared = true;
	op->num_prepared++;
	model_dirty(op->group->model);
	return 0;
}

int
op_prepared(struct refsrv *server, struct agent *agent, const struct ctl_prepared *prepared,
	struct th_err *err)
{
	struct member *member = member_find(server, agent, prepared->sid, err);

	if (member == NULL)
		return err->code;
	struct op *op = group_open_op(member->group);
	/* Decided meanwhile, or said before: the OUTCOME or GO is on its way. */
	bool adopted = op != NULL && op->adopted && op->state == OP_RUNNING;
	if (op == NULL || op->seq != prepared->op_seq || (op->state != OP_GATHER && !adopted) ||
		!op->members[member->shard].planned || op->members[member->shard].prepared)
		return 0;
	if (prepared->plan_no != op->plan_no) {
		TH_MARK(prepared_for_a_plan_before);
		return 0;
	}
	if (adopted)
		return adopted_prepared(server, op, member, prepared, err);
	int rc = prepared_check(op, member, prepared, err);
	if (rc == TH_E_INVALID)
		return rc;
	if (rc != 0) {
		op_fail(server, op, rc, "%s", err->text);
		return 0;
	}
	if (prepared->code < 0) {
		char text[TH_CTL_TEXT_BYTES];
		memcpy(text, prepared->text, sizeof(text));
		text[sizeof(text) - 1] = '\0';
		op_fail(server, op, prepared->code, "%s", text);
		return 0;
	}
	op->members[member->shard].prepared = true;
	if (++op->num_prepared == member->group->num_shards)
		op_replicate_poke(server, op);
	return 0;
}

/* ---- COMMIT or abort ------------------------------------------------------------------------ */

static void
fail_by_content(
	struct refsrv *server, struct op *op, const struct part *part, enum content_verdict verdict)
{
	const struct version *version = part->copy->version;
	struct th_err err;

	if (verdict == CONTENT_OTHER)
		th_fail(&err, TH_E_VERSION_CONFLICT,
			"version %" PRIu64 " of %.100s: what shard %u has received is not what was "
			"published; replicate again",
			version->id.version, version->model->name, part->shard);
	else
		th_fail(&err, TH_E_VERSION_LOST,
			"version %" PRIu64 " of %.100s: its publisher was lost before its agent "
			"had said which bytes shard %u has, so nobody can vouch for what has "
			"arrived; replicate another version, or publish again",
			version->id.version, version->model->name, part->shard);
	op_abort(server, op, err.code, err.text);
}

void
op_all_done(struct refsrv *server, struct op *op)
{
	struct copy *copy = op->group->copy;
	bool awaited = false;

	if (copy->content->refused)
		return; /* it is about to fail for that */

	for (uint32_t i = 0; i < copy->num_parts; i++) {
		enum content_verdict verdict = content_judge(server, &copy->parts[i]);
		if (verdict == CONTENT_OTHER || verdict == CONTENT_NEVER) {
			TH_MARK(arrived_and_cannot_be_vouched_for);
			fail_by_content(server, op, &copy->parts[i], verdict);
			return;
		}
		awaited = awaited || verdict == CONTENT_AWAITED;
	}
	if (awaited) {
		TH_MARK(all_is_here_but_the_publishers_word);
		return;
	}
	copy_complete(copy);
	dc_seed_complete(server, copy);
	model_changed(server, op->group->model);
	op_succeed(server, op, true);
}

void
op_shard_done(struct refsrv *server, struct op *op)
{
	const struct copy *copy = op->group->copy;

	TH_ASSERT(op->state == OP_RUNNING);
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		if (copy->parts[i].done)
			continue;
		TH_MARK(c04_shard_waits_for_the_others);
		if (!TH_PLANT(ready_with_the_first_shard))
			return;
	}
	op_all_done(server, op);
}

static bool
all_went(const struct op *op)
{
	for (uint32_t i = 0; i < op->group->num_shards; i++) {
		if (!op->members[i].went)
			return false;
	}
	return true;
}

void
op_abort(struct refsrv *server, struct op *op, int code, const char *text)
{
	struct group *group = op->group;
	struct copy *copy = group->copy;

	TH_ASSERT(op->state == OP_RUNNING);
	if (op->adopted && group->state != GROUP_BROKEN && !all_went(op)) {
		/* Some have given up what they held, others not: nothing fits both. */
		group_break(server, group, text);
		return;
	}
	op_enter(op, OP_ABORTING, "its cause");
	op->code = code;
	op->updated = false;
	memcpy(op->text, text, strnlen(text, sizeof(op->text) - 1));
	copy->aborting = true;
	copy->draining = true;
	content_reconsider(server, copy->version);
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		struct part *part = &copy->parts[i];
		agent_event(part->member->agent, CTL_EV_CANCEL)->u.cancel =
			(struct ctl_cancel){.sid = part->member->sid, .op_seq = op->seq};
		leg_expel_readers(part);
		part->drained = !part->served;
	}
	copy_drain(server, copy);
	model_changed(server, group->model);
	op_abort_check(server, op);
}

void
op_abort_check(struct refsrv *server, struct op *op)
{
	struct copy *copy = op->group->copy;

	for (uint32_t i = 0; i < copy->num_parts; i++) {
		if (copy->parts[i].num_fills > 0 || !copy->parts[i].drained)
			return;
	}
	char cause[TH_CTL_TEXT_BYTES];
	memcpy(cause, op->text, sizeof(cause));
	copy_free(server, copy);
	op_fail(server, op, op->code, "%s", cause);
}
