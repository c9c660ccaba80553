/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offload_rules - see offload_rules.h.
 */
#include "server/core/retain/offload_rules.h"

#include <inttypes.h>

#include "ipc/base/checked.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent_ping.h"
#include "server/core/cluster/node_drain.h"
#include "server/core/model/content.h"
#include "server/core/model/copy.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/rejoin/rejoin.h"
#include "server/core/retain/at_risk.h"
#include "server/core/retain/borrow.h"
#include "server/core/retain/fetch.h"
#include "server/core/retain/offload.h"
#include "server/core/retain/retain.h"
#include "server/core/view/event_log.h"

#define RETRY_FACTOR 10 /* a rescue that failed is tried again after so many release times */

static void
offload_rules_wake_at(struct model *model, int64_t at_ns)
{
	model->retention.wake_ns = th_min_i64(model->retention.wake_ns, at_ns);
}

/* ---- while it is made ----------------------------------------------------------------------- */

static bool
on_drained_node(const struct copy *copy)
{
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		const struct member *member = copy->parts[i].member;
		if (member != NULL && node_drains(member->agent))
			return true;
	}
	return false;
}

/*
 * Complete copies of the version but this group's: on hosts that stay, and on spot hosts and nodes
 * that are being drained. A suspect host may come back: it is neither.
 */
static void
offload_rules_count_ready(const struct version *version, const struct group *but,
	uint32_t *ret_steady, uint32_t *ret_leaving)
{
	const struct copy *copy;

	*ret_steady = *ret_leaving = 0;
	DL_FOREACH(version->copies, copy)
	{
		if (copy->state != COPY_READY || copy->draining || !content_listed(copy) ||
			copy->group->state == GROUP_BROKEN || copy->group == but)
			continue;
		*(copy_spot(copy) || on_drained_node(copy) ? ret_leaving : ret_steady) += 1;
	}
}

bool
offload_needed(struct refsrv *server, const struct offload *offload)
{
	const struct version *version = offload->version;
	const struct copy *copy;
	uint32_t steady, leaving;

	if (borrow_wanted(offload) || fetch_wanted(server, offload))
		return true;
	/* Who wants it, or waits for it, may not have come back yet. */
	if (offload->rejoined && model_warming(server, version->model))
		return true;
	if (offload->why == OFFLOAD_FETCH || offload->why == OFFLOAD_BORROW ||
		!retain_names(server, version))
		return false;
	/* Who waits for it may not have come back yet. */
	if (model_warming(server, version->model))
		return true;
	DL_FOREACH(version->copies, copy)
	{
		if (copy->keep != NULL)
			return true;
	}
	offload_rules_count_ready(version, offload->group, &steady, &leaving);
	return steady == 0 && leaving > 0;
}

/* ---- when it is complete -------------------------------------------------------------------- */

static bool
is_read(const struct copy *copy)
{
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		if (copy->parts[i].num_readers > 0)
			return true;
	}
	return false;
}

/*
 * A replica that nobody is about to give up has the version too, or a newer offload copy has taken
 * over. since_ns: its agents have lived at that time or later; INT64_MIN: as far as is known.
 */
static bool
another_will_do(struct refsrv *server, const struct offload *offload, int64_t since_ns)
{
	const struct copy *copy, *own = offload->group->copy;

	DL_FOREACH(offload->version->copies, copy)
	{
		int64_t wake_ns = INT64_MAX;
		if (copy == own || copy->keep != NULL || !copy_secure(copy) ||
			(copy->group->reservation != 0 && copy->id < own->id))
			continue;
		if (since_ns == INT64_MIN ||
			agent_ping_copy(server, copy, since_ns, &wake_ns) == PROOF_THERE)
			return true;
		offload_rules_wake_at(offload->version->model, wake_ns);
	}
	return false;
}

static bool
offload_rules_may_go(struct refsrv *server, struct offload *offload)
{
	if (TH_PLANT(retained_offload_released) && !is_read(offload->group->copy))
		return true;
	if (borrow_wanted(offload) && !TH_PLANT(lent_copy_given_up)) {
		TH_MARK(lent_copy_stays);
		return false;
	}
	/* Whoever has lent it says so before all are heard. */
	if (offload->rejoined && model_warming(server, offload->version->model))
		return false;
	if (fetch_wanted(server, offload))
		return false;
	if (!retain_names(server, offload->version))
		return !is_read(offload->group->copy);
	if (!another_will_do(server, offload, INT64_MIN)) {
		offload->spare_ns = INT64_MAX;
		return false;
	}
	if (offload->spare_ns == INT64_MAX)
		offload->spare_ns = server->now_ns;
	int64_t at_ns = th_deadline_ns(offload->spare_ns, server->config.release_ns);
	if (server->now_ns < at_ns) {
		offload_rules_wake_at(offload->version->model, at_ns);
		return false;
	}
	/* What was proven before may have died since: while it was waited nobody looked. */
	return another_will_do(server, offload, at_ns);
}

void
offload_release(struct refsrv *server, struct offload *offload)
{
	const struct version *version = offload->version;

	if (offload->group->state == GROUP_BROKEN || offload->group->copy == NULL) {
		event_log(server, EVENT_WARN, version->model->name, "",
			"the offload copy of version %" PRIu64 " of %s is gone: %s",
			version->id.version, version->model->name,
			offload->group->broken_why == NULL ? "its copy is not there"
							   : offload->group->broken_why);
		offload_end(server, offload, "it is gone");
		return;
	}
	if (!offload_rules_may_go(server, offload))
		return;
	TH_MARK(offload_released);
	event_log(server, EVENT_INFO, version->model->name, "",
		"the offload copy of version %" PRIu64 " of %s is released", version->id.version,
		version->model->name);
	offload_end(server, offload, "the offload copy is released");
}

bool
offload_make_room(struct refsrv *server, const struct agent *agent)
{
	const struct member *member;

	if (fetch_gives_room(server, agent))
		return true;
	DL_FOREACH2(agent->members, member, agent_next)
	{
		struct offload *offload = member->group->offload;
		if (offload == NULL || offload->version == NULL || offload->why == OFFLOAD_FETCH ||
			offload->state != OFFLOAD_READY || borrow_wanted(offload) ||
			retain_names(server, offload->version))
			continue;
		TH_MARK(c08_room_is_made);
		event_log(server, EVENT_INFO, offload->version->model->name, "",
			"the offload copy of version %" PRIu64
			" of %s is released while it is read: node %s needs its room",
			offload->version->id.version, offload->version->model->name,
			agent->info.node);
		offload_end(server, offload, "its room is needed");
		return true;
	}
	return false;
}

/* ---- hosts that may go, or shall ------------------------------------------------------------ */

bool
offload_at_risk(struct refsrv *server, const struct version *version)
{
	uint32_t steady, leaving;

	offload_rules_count_ready(version, NULL, &steady, &leaving);
	return steady == 0 && leaving > 0 && retain_names(server, version);
}

void
offload_rules_failed(struct refsrv *server, const struct offload *offload)
{
	struct version *version = offload->version;

	version->retry_ns =
		th_deadline_ns(server->now_ns, server->config.release_ns * RETRY_FACTOR);
	model_dirty(version->model);
	/* One that was made because somebody gives up his copy leaves that copy where it is. */
	if (offload_at_risk(server, version))
		at_risk_stays(server, version, offload->text);
}

/* What is copied: an offload copy that has to go, or any other that is complete. */
static struct copy *
any_ready(const struct version *version)
{
	struct copy *copy, *found = NULL;

	DL_FOREACH(version->copies, copy)
	{
		if (copy->state == COPY_READY && !copy->draining && content_listed(copy) &&
			copy->group->state != GROUP_BROKEN &&
			(found == NULL || copy->group->reservation != 0))
			found = copy;
	}
	return found;
}

static void
rescue(struct refsrv *server, struct version *version)
{
	if (!offload_at_risk(server, version)) {
		version->risk_ns = INT64_MAX;
		version->risk_told = false;
		at_risk_over(server, version);
		return;
	}
	if (version->risk_ns == INT64_MAX)
		version->risk_ns = server->now_ns;
	int64_t at_ns = th_max_i64(
		th_deadline_ns(version->risk_ns, server->config.release_ns), version->retry_ns);
	if (server->now_ns < at_ns) {
		offload_rules_wake_at(version->model, at_ns);
		return;
	}
	struct copy *copy = any_ready(version);
	if (copy == NULL)
		return;
	bool drained = on_drained_node(copy);
	if (!version->risk_told) {
		version->risk_told = true;
		TH_MARK(c07_at_risk);
		event_log(server, EVENT_WARN, version->model->name, "",
			"version %" PRIu64
			" of %s is at risk: it is retained, and only spot hosts or nodes that are "
			"being drained have it",
			version->id.version, version->model->name);
	}
	if (!drained && !server->config.rescue_spot)
		at_risk_stays(server, version, "retain.rescue_spot is off");
	else if (!offload_running(version))
		(void)offload_begin(server, copy, drained ? OFFLOAD_DRAIN : OFFLOAD_RESCUE, NULL);
}

void
offload_rescue(struct refsrv *server, struct model *model)
{
	struct version *version;

	/* While it is warming the server has not been told of all copies. */
	if (model->retention.claims == NULL || model_warming(server, model))
		return;
	DL_FOREACH(model->versions, version)
	{
		rescue(server, version);
	}
}
