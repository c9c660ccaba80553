/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retain - see retain.h.
 *
 * Groups with the same rules share a claim, so what a question costs depends on how many different
 * rules there are, and there are few.
 */
#include "server/core/retain/retain.h"

#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/sim.h"
#include "server/core/model/copy.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/rejoin/rejoin.h"
#include "server/core/retain/offload.h"
#include "server/core/retain/retain_notice.h"
#include "server/core/timer.h"

/* ---- claims --------------------------------------------------------------------------------- */

int
retain_join(const struct group *group, const struct agent *agent, const struct ctl_open *open,
	struct th_err *err)
{
	struct th_retain rules;
	int rc = th_retain_parse(open->retain, &rules, err);

	if (rc != 0 || th_retain_equal(&rules, &group->retain))
		return rc;
	return th_fail(err, TH_E_GROUP_MISMATCH,
		"replica %.100s of %.100s: node %.64s opens it with retain \"%.100s\", another "
		"member with other rules; give all members the same",
		group->replica, group->model->name, agent->info.node, open->retain);
}

static struct claim *
retain_find(const struct model *model, const struct th_retain *rules, uint32_t *ret_count)
{
	struct claim *claim;

	*ret_count = 0;
	DL_FOREACH(model->retention.claims, claim)
	{
		if (th_retain_equal(&claim->rules, rules))
			return claim;
		++*ret_count;
	}
	return NULL;
}

int
retain_room(const struct refsrv *server, const char *name, const struct model *model,
	const struct th_retain *rules, struct th_err *err)
{
	uint32_t count = 0;

	if (rules->num_rules == 0 || (model != NULL && retain_find(model, rules, &count) != NULL))
		return 0;
	if (count >= RETAIN_CLAIMS_MAX)
		return th_fail(err, TH_E_LIMIT,
			"the server keeps %u different lists of retention rules for %.100s, which "
			"is its limit; those of crashed holders go after retain.grace: give all "
			"replicas the same rules, or open later",
			RETAIN_CLAIMS_MAX, name);
	/* Who is open has a member: there are more only while crashed holders are remembered. */
	if (server->num_claims >= server->config.members_max)
		return th_fail(err, TH_E_LIMIT,
			"the server keeps %u lists of retention rules, which is its limit "
			"(limit.members); those of crashed holders go after retain.grace: open "
			"%.100s later, or without rules",
			server->num_claims, name);
	return 0;
}

void
retain_claim(struct refsrv *server, struct group *group, const struct th_retain *rules)
{
	struct retention *retention = &group->model->retention;
	uint32_t count;

	group->retain = *rules;
	if (rules->num_rules == 0)
		return;
	struct claim *claim = retain_find(group->model, rules, &count);
	if (claim == NULL) {
		server->num_claims++;
		claim = th_calloc(1, sizeof(*claim));
		claim->rules = *rules;
		claim->grace_ns = INT64_MIN;
		DL_APPEND(retention->claims, claim);
	}
	claim->num_holders++;
	group->claim = claim;
	/* The listing says what is retained. */
	model_progressed(server, group->model);
	model_dirty(group->model);
}

static void
claim_drop(struct refsrv *server, struct retention *retention, struct claim *claim)
{
	DL_DELETE(retention->claims, claim);
	server->num_claims--;
	free(claim);
	model_progressed(server, retention->model);
	model_dirty(retention->model);
}

void
retain_leave(struct refsrv *server, struct group *group, bool crashed)
{
	struct claim *claim = group->claim;

	if (claim == NULL)
		return;
	retain_closing(group, false);
	group->claim = NULL;
	claim->num_holders--;
	if (crashed && !TH_PLANT(claim_ends_with_its_holder)) {
		TH_MARK(c20_holder_died);
		claim->grace_ns = th_max_i64(
			claim->grace_ns, th_deadline_ns(server->now_ns, server->config.grace_ns));
		/* Its end must be seen, also when nothing else happens. */
		model_dirty(group->model);
	} else if (claim->num_holders == 0 && claim->grace_ns == INT64_MIN) {
		claim_drop(server, &group->model->retention, claim);
	}
}

void
retain_closing(struct group *group, bool closing)
{
	struct claim *claim = group->claim;

	if (claim == NULL || group->claim_closing == closing)
		return;
	group->claim_closing = closing;
	claim->num_closing += closing ? 1 : UINT32_MAX;
	model_dirty(group->model);
}

void
retain_free(struct refsrv *server, struct model *model)
{
	struct claim *claim, *next;

	while (model->retention.offloads != NULL) {
		struct offload *offload = model->retention.offloads;
		DL_DELETE(model->retention.offloads, offload);
		if (offload->group != NULL)
			offload->group->offload = NULL;
		offload_free(server, offload);
	}

	DL_FOREACH_SAFE(model->retention.claims, claim, next)
	{
		TH_ASSERT(claim->num_holders == 0);
		DL_DELETE(model->retention.claims, claim);
		server->num_claims--;
		free(claim);
	}
}

/* ---- what they name ------------------------------------------------------------------------- */

static bool
claim_names(const struct claim *claim, struct th_version latest, struct th_version id)
{
	if (id.lineage != latest.lineage)
		return false;
	for (uint32_t i = 0; i < claim->rules.num_rules; i++) {
		const struct th_spec *rule = &claim->rules.rules[i];
		bool retain_do_names = rule->relative
					       ? rule->number <= latest.version &&
							 latest.version - rule->number == id.version
					       : rule->number == id.version;
		if (retain_do_names)
			return true;
	}
	return false;
}

/* only: by this claim; NULL: by any. */
static bool
retain_named(const struct model *model, const struct claim *only, struct th_version latest,
	struct th_version id)
{
	const struct claim *claim;

	DL_FOREACH(model->retention.claims, claim)
	{
		bool held = claim->num_holders > claim->num_closing || claim->grace_ns != INT64_MIN;
		if (held && (only == NULL || only == claim) && claim_names(claim, latest, id))
			return true;
	}
	return false;
}

/* Some agent has a part of both: they may go together. */
static bool
share_agent(const struct copy *a, const struct copy *b)
{
	for (uint32_t i = 0; i < a->num_parts; i++) {
		for (uint32_t j = 0; j < b->num_parts; j++) {
			if (a->parts[i].member->agent == b->parts[j].member->agent)
				return true;
		}
	}
	return false;
}

/*
 * It alone is the latest from now on; until then the one before it is kept beside it. Of copies
 * that share an agent the first counts.
 */
static bool
succeeds(const struct refsrv *server, const struct version *version)
{
	const struct copy *copy, *other;
	uint32_t num = 0;

	if (server->config.successor_copies <= 1)
		return true;
	DL_FOREACH(version->copies, copy)
	{
		bool apart = copy_secure(copy);
		for (other = version->copies; apart && other != copy; other = other->next)
			apart = !copy_secure(other) || !share_agent(copy, other);
		num += apart;
		if (num >= server->config.successor_copies)
			return true;
	}
	return false;
}

#ifdef TH_SIM
/* Somebody has begun to publish a later one. */
static bool
publish_begun(const struct version *version)
{
	const struct group *group;
	struct th_spec spec;

	DL_FOREACH(version->model->groups, group)
	{
		const struct op *op = group_open_op(group);
		if (op != NULL && op->kind == CTL_OP_PUBLISH &&
			th_spec_parse(op->spec, &spec) == 0 && spec.number > version->id.version)
			return true;
	}
	return false;
}
#else
#define publish_begun(version) ((void)(version), false)
#endif

/* listed: as if it were, of a version whose only copies are not yet. */
static bool
retain_do_names(
	struct refsrv *server, const struct claim *only, const struct version *version, bool listed)
{
	const struct model *model = version->model;
	const struct version *latest = model->versions->prev;

	if (model->retention.claims == NULL)
		return false;
	if (TH_PLANT(successor_before_published) && publish_begun(version))
		return false;
	server->mark++;
	/* From the newest down: each may be the latest, until one is so for certain. */
	for (;; latest = latest->prev) {
		if ((listed && latest == version) || version_counts(server, latest)) {
			if (retain_named(model, only, latest->id, version->id))
				return true;
			if (succeeds(server, latest))
				return false;
		}
		if (latest == model->versions)
			return false;
	}
}

bool
retain_claimed(struct refsrv *server, const struct version *version)
{
	return retain_do_names(server, NULL, version, false);
}

bool
retain_names(struct refsrv *server, const struct version *version)
{
	/* Who claims it may not have come yet. */
	return model_warming(server, version->model) ||
	       retain_do_names(server, NULL, version, false);
}

bool
retain_would_name(struct refsrv *server, const struct version *version)
{
	return model_warming(server, version->model) ||
	       retain_do_names(server, NULL, version, true);
}

bool
retain_group_names(struct refsrv *server, const struct group *group, const struct version *version)
{
	return group->claim != NULL && !group->claim_closing &&
	       retain_do_names(server, group->claim, version, false);
}

/* ---- time ----------------------------------------------------------------------------------- */

static void
settle_claims(struct refsrv *server, struct retention *retention)
{
	struct claim *claim, *next;

	DL_FOREACH_SAFE(retention->claims, claim, next)
	{
		if (claim->grace_ns == INT64_MIN)
			continue;
		if (server->now_ns < claim->grace_ns) {
			retention->wake_ns = th_min_i64(retention->wake_ns, claim->grace_ns);
			continue;
		}
		claim->grace_ns = INT64_MIN;
		if (claim->num_holders == 0)
			claim_drop(server, retention, claim);
	}
}

void
retain_settle(struct refsrv *server, struct model *model)
{
	struct retention *retention = &model->retention;

	settle_claims(server, retention);
	retain_notice_settle(server, model);
	offload_settle(server, model);
	timer_stop(server, &retention->timer);
	timer_at(server, &retention->timer, TIMER_RETENTION, retention->wake_ns);
}
