/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_reply - what an agent's requests were answered: a repeat gets the same. See agent.h.
 */
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"

bool
agent_remembered(struct agent *agent, uint64_t request_no, struct ctl_reply *ret_reply)
{
	const struct remembered *found = NULL;

	HASH_FIND(hh, agent->remembered_by_no, &request_no, sizeof(request_no), found);
	if (found == NULL)
		return false;
	ret_reply->kind = found->kind;
	ret_reply->code = found->code;
	if (found->text != NULL)
		memcpy(ret_reply->text, found->text, strlen(found->text) + 1);
	if (found->kind == CTL_OPEN || found->kind == CTL_REJOIN)
		ret_reply->u.open = found->open;
	if (found->kind == CTL_ATTACH)
		ret_reply->u.attach = found->attach;
	return true;
}

static void
forget_reply(struct agent *agent, struct remembered *entry)
{
	HASH_DELETE(hh, agent->remembered_by_no, entry);
	DL_DELETE(agent->remembered, entry);
	agent->num_remembered--;
	free(entry->text);
	free(entry);
}

static void
forget_oldest_reply(struct agent *agent)
{
	agent->forgotten_request_no =
		th_max_u64(agent->forgotten_request_no, agent->remembered->request_no);
	forget_reply(agent, agent->remembered);
}

void
agent_answered(struct agent *agent, uint64_t below)
{
	struct remembered *entry, *next;

	/* Requests overtake each other: an older word says nothing new. */
	if (below <= agent->answered_below)
		return;
	agent->answered_below = below;
	DL_FOREACH_SAFE(agent->remembered, entry, next)
	{
		if (entry->request_no < below)
			forget_reply(agent, entry);
	}
}

enum repeat
agent_repeat(const struct agent *agent, uint64_t request_no)
{
	if (request_no < agent->answered_below)
		return REPEAT_LATE;
	if (request_no > agent->forgotten_request_no)
		return REPEAT_NONE;
	return agent->answered_below == 0 ? REPEAT_LATE : REPEAT_UNKNOWN;
}

void
agent_remember(struct agent *agent, const struct ctl_reply *reply)
{
	struct remembered *entry = th_calloc(1, sizeof(*entry));

	entry->request_no = reply->request_no;
	entry->kind = reply->kind;
	entry->code = reply->code;
	if (reply->text[0] != '\0')
		entry->text = th_strdup(reply->text);
	if (reply->kind == CTL_OPEN || reply->kind == CTL_REJOIN)
		entry->open = reply->u.open;
	if (reply->kind == CTL_ATTACH)
		entry->attach = reply->u.attach;
	HASH_ADD(hh, agent->remembered_by_no, request_no, sizeof(entry->request_no), entry);
	DL_APPEND(agent->remembered, entry);
	if (++agent->num_remembered >
		(agent->answered_below == 0 ? REMEMBERED_UNSAID : REMEMBERED_MAX))
		forget_oldest_reply(agent);
}

void
agent_forget_replies(struct agent *agent)
{
	while (agent->remembered != NULL)
		forget_oldest_reply(agent);
	agent->forgotten_request_no = agent->answered_below = 0;
}
