/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group_launch - see group_launch.h.
 *
 * Launches have names, no order: a group remembers those that it and its predecessors replaced, so
 * that what is left of them cannot take the place of their successor. The memory goes with the last
 * group of the name.
 */
#include "server/core/model/group_launch.h"

#include <stdio.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "server/core/model/group.h"

#define REPLACED_MAX 16u /* per group; the oldest is forgotten first */

void
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

void
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

int
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

bool
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
