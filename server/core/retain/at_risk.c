/* SPDX-License-Identifier: Apache-2.0 */
/*
 * at_risk - see at_risk.h. It decides nothing but who is told.
 */
#include "server/core/retain/at_risk.h"

#include <inttypes.h>
#include <stdio.h>

#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/cluster/node_drain.h"
#include "server/core/model/content.h"
#include "server/core/model/group.h"
#include "server/core/retain/retain.h"
#include "server/core/view/event_log.h"

/* Handles of broken groups have nothing to lose; agents' own sessions nobody to tell. */
static bool
concerns(struct refsrv *server, const struct group *group, const struct version *version)
{
	const struct copy *copy = group->copy;

	if (group->state == GROUP_BROKEN || group->reservation != 0)
		return false;
	bool holds = copy != NULL && copy->version == version && copy->state == COPY_READY &&
		     !copy->draining && content_listed(copy);
	return holds || retain_group_names(server, group, version);
}

static void
at_risk_tell(struct refsrv *server, const struct version *version, const char *text)
{
	const struct group *group;

	DL_FOREACH(version->model->groups, group)
	{
		if (!concerns(server, group, version))
			continue;
		for (uint32_t i = 0; i < group->num_shards; i++) {
			const struct member *member = group->members[i];
			if (member == NULL || member->closed)
				continue;
			struct ctl_ev_broken *ev =
				&agent_event(member->agent, CTL_EV_AT_RISK)->u.at_risk;
			ev->sid = member->sid;
			snprintf(ev->text, sizeof(ev->text), "%s", text);
		}
	}
}

static void
set_raised(struct refsrv *server, struct version *version)
{
	server->num_at_risk += version->risk_raised ? 0 : 1;
	version->risk_raised = true;
}

void
at_risk_stays(struct refsrv *server, struct version *version, const char *why)
{
	char text[TH_CTL_TEXT_BYTES];

	if (version->risk_raised && !TH_PLANT(risk_told_again))
		return;
	set_raised(server, version);
	TH_MARK(c07_nobody_can_rescue);
	snprintf(text, sizeof(text),
		"version %" PRIu64 " of %.100s is retained, only spot hosts or nodes that are "
		"being drained have it, and it cannot be copied to another host%s%.200s",
		version->id.version, version->model->name, why[0] != '\0' ? ": " : "", why);
	at_risk_tell(server, version, text);
}

void
at_risk_over(struct refsrv *server, struct version *version)
{
	server->num_at_risk -= version->risk_raised ? 1 : 0;
	version->risk_raised = false;
}

/*
 * Another complete copy, be it on a spot host, or one that is kept to be copied. Its content may be
 * one that is not listed yet: it is, when the last copy of the one before it has gone.
 */
static bool
another(const struct copy *copy)
{
	const struct copy *other;

	DL_FOREACH(copy->version->copies, other)
	{
		if (other != copy && other->state == COPY_READY && !other->draining &&
			!other->content->refused &&
			(other->group->state != GROUP_BROKEN || other->rescued))
			return true;
	}
	return false;
}

void
at_risk_lost(struct refsrv *server, struct copy *copy, const char *why)
{
	struct version *version = copy->version;
	char text[TH_CTL_TEXT_BYTES];
	bool rescued = copy->rescued;

	if (copy->state != COPY_READY || copy->draining || !content_listed(copy) ||
		(another(copy) && !TH_PLANT(risk_told_for_nothing)))
		return;
	/* Its group is broken: it may be the only one that makes its version the latest. */
	copy->rescued = true;
	if (retain_claimed(server, version)) {
		TH_MARK(retained_version_lost);
		snprintf(text, sizeof(text),
			"version %" PRIu64
			" of %.100s is lost, although it is retained; its last copy was that of "
			"replica %.100s: %.200s",
			version->id.version, version->model->name, copy->group->replica, why);
		event_log(server, EVENT_ERROR, version->model->name, "", "%s", text);
		node_drain_lost(server, copy, text);
		if (!version->risk_raised && !TH_PLANT(loss_is_not_told))
			at_risk_tell(server, version, text);
		set_raised(server, version);
	}
	copy->rescued = rescued;
}
