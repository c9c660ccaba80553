/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dc_seed - see dc_seed.h.
 */
#include "server/core/route/dc_seed.h"

#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/model/content.h"
#include "server/core/model/copy.h"
#include "server/core/model/model.h"

/* A seed to which no byte comes for so long has nothing that is worth waiting for. */
#define STUCK_NS INT64_C(5000000000)

void
dc_seed_leg(const struct refsrv *server, const struct leg *leg)
{
	struct copy *copy = leg->dst->copy;

	if (copy->seed || agent_near(leg->reader->agent, leg->src->member->agent))
		return;
	copy->seed = true;
	copy->seed_live_ns = server->live_ns;
}

bool
dc_seed_near(const struct copy *copy, const struct group *group)
{
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		const struct member *member = copy->parts[i].member;
		if (member == NULL || !agent_near(member->agent, group->members[i]->agent))
			return false;
	}
	return true;
}

static bool
gets_on(const struct refsrv *server, const struct copy *seed)
{
	for (uint32_t i = 0; i < seed->num_parts; i++) {
		const struct part *part = &seed->parts[i];
		if (!part->done && server->live_ns - part->moved_live_ns >= STUCK_NS)
			return false;
	}
	return server->live_ns - seed->seed_live_ns < server->config.skip_ns;
}

bool
dc_seed_skips(const struct refsrv *server, const struct group *group, const struct version *version)
{
	const struct copy *copy;
	bool found = false, late = false;

	if (version->num_shards != group->num_shards || group->num_joined < group->num_shards ||
		TH_PLANT(seed_is_not_waited_for))
		return false;
	DL_FOREACH(version->copies, copy)
	{
		if (copy->group == group || copy->draining || !copy_stands(copy) ||
			!content_listed(copy) || !dc_seed_near(copy, group))
			continue;
		if (copy->state == COPY_READY)
			return false;
		if (!copy->seed)
			continue;
		found = true;
		late = late || !gets_on(server, copy);
	}
	if (found && !late)
		TH_MARK(c17_skips_while_the_seed_fills);
	if (late)
		TH_MARK(joins_the_seed_that_takes_long);
	return found && !late;
}

void
dc_seed_complete(struct refsrv *server, const struct copy *copy)
{
	const struct version *later;

	for (later = copy->version->next; copy->seed && later != NULL; later = later->next) {
		if (version_counts(server, later))
			TH_MARK(c18_seed_ends_though_a_newer_version_is_there);
	}
}
