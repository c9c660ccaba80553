/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retain_notice - see retain_notice.h.
 */
#include "server/core/retain/retain_notice.h"

#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/rejoin/rejoin.h"

/* What agents are to know now. */
static struct rules_told
retain_notice_collect(const struct refsrv *server, const struct model *model)
{
	const struct rules_told all = {.all = true};
	struct rules_told now = {0};
	const struct claim *claim;

	if (model_warming(server, model))
		return all;
	DL_FOREACH(model->retention.claims, claim)
	{
		bool many = claim->num_holders + (claim->grace_ns != INT64_MIN) > 1;
		for (uint32_t i = 0; i < claim->rules.num_rules; i++) {
			uint32_t before = now.rules.num_rules;
			if (!th_retain_add(&now.rules, &claim->rules.rules[i])) {
				TH_MARK(rules_more_than_fit);
				return all;
			}
			/* Of another claim, too. */
			if ((many || before == now.rules.num_rules) &&
				!th_retain_add(&now.shared, &claim->rules.rules[i]))
				return all;
		}
	}
	return now;
}

static bool
retain_notice_merge(struct th_retain *into, const struct th_retain *from)
{
	for (uint32_t i = 0; i < from->num_rules; i++) {
		if (!th_retain_add(into, &from->rules[i]))
			return false;
	}
	return true;
}

/* False: some of it is not in what was told. */
static bool
covers(const struct rules_told *told, const struct rules_told *now)
{
	return told->all || (!now->all && th_retain_covers(&told->rules, &now->rules) &&
				    th_retain_covers(&told->shared, &now->shared));
}

static void
retain_notice_tell(struct agent *agent, const struct model *model)
{
	const struct rules_told *told = &model->retention.told;

	if (TH_PLANT(rules_not_told))
		return;
	struct ctl_ev_rules *ev = &agent_event(agent, CTL_EV_RULES)->u.rules;
	memcpy(ev->model, model->name, sizeof(ev->model));
	ev->all = told->all;
	if (ev->all)
		return;
	th_retain_write(&told->rules, ev->rules);
	th_retain_write(&told->shared, ev->shared);
}

static void
tell_members(struct refsrv *server, const struct model *model)
{
	uint64_t visit = ++server->visit;
	const struct group *group;

	DL_FOREACH(model->groups, group)
	{
		for (uint32_t i = 0; i < group->num_shards; i++) {
			const struct member *member = group->members[i];
			if (member == NULL || member->agent->visit == visit)
				continue;
			member->agent->visit = visit;
			retain_notice_tell(member->agent, model);
		}
	}
}

/* True: there is more than was told, which has been told now. */
static bool
retain_notice_grow(struct refsrv *server, struct model *model)
{
	struct rules_told *told = &model->retention.told;
	struct rules_told now = retain_notice_collect(server, model);

	if (covers(told, &now))
		return false;
	if (now.all || !retain_notice_merge(&told->rules, &now.rules) ||
		!retain_notice_merge(&told->shared, &now.shared))
		*told = (struct rules_told){.all = true};
	tell_members(server, model);
	return true;
}

static void
shrink(struct refsrv *server, struct model *model)
{
	struct retention *retention = &model->retention;
	struct rules_told now = retain_notice_collect(server, model);

	if (covers(&now, &retention->told)) {
		retention->shrink_ns = INT64_MAX;
		return;
	}
	if (retention->shrink_ns == INT64_MAX)
		retention->shrink_ns = th_deadline_ns(server->now_ns, RULES_SHRINK_NS);
	if (server->now_ns < retention->shrink_ns) {
		retention->wake_ns = th_min_i64(retention->wake_ns, retention->shrink_ns);
		return;
	}
	TH_MARK(rules_shrink);
	retention->shrink_ns = INT64_MAX;
	retention->told = now;
	tell_members(server, model);
}

void
retain_notice_joined(struct refsrv *server, const struct member *member)
{
	struct model *model = member->group->model;

	if (member->group->reservation == 0 && !retain_notice_grow(server, model))
		retain_notice_tell(member->agent, model);
}

void
retain_notice_settle(struct refsrv *server, struct model *model)
{
	retain_notice_grow(server, model);
	shrink(server, model);
}
