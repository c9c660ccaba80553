/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admin - see admin.h.
 */
#include "server/core/view/admin.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "server/core/cluster/agent.h"
#include "server/core/cluster/node_drain.h"
#include "server/core/model/copy.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/op/follow.h"
#include "server/core/view/event_log.h"

/* ---- nodes ---------------------------------------------------------------------------------- */

static int
drain(struct refsrv *server, const struct ctl_admin *admin, struct ctl_admin_reply *ret_reply,
	struct th_err *err)
{
	struct agent *agent = agent_of_node(server, admin->node);
	bool there = agent != NULL && agent->state != AGENT_DEAD;

	if (agent == NULL && !node_drain_wanted(server, admin->node))
		return th_fail(err, TH_E_NOT_AVAILABLE,
			"no agent of node %s is known to this server; thctl ls nodes shows them",
			admin->node);
	if (!admin->look)
		node_drain_begin(server, admin->node, agent, admin);
	if (there) {
		node_drain_look(server, agent, ret_reply);
		return 0;
	}
	node_drain_absent(server, admin->node, ret_reply);
	return 0;
}

static int
undrain(struct refsrv *server, const struct ctl_admin *admin, struct ctl_admin_reply *ret_reply,
	struct th_err *err)
{
	struct agent *agent = agent_of_node(server, admin->node);

	if (agent == NULL && !node_drain_wanted(server, admin->node))
		return th_fail(err, TH_E_NOT_AVAILABLE,
			"no agent of node %s is known to this server; thctl ls nodes shows them",
			admin->node);
	if (agent != NULL && agent->state != AGENT_DEAD && agent->leaving)
		return th_fail(err, TH_E_STATE,
			"the agent of node %s has been told to end, which cannot be taken back: "
			"start it again",
			admin->node);
	if (!node_drain_end(server, admin->node, agent, admin->from))
		snprintf(ret_reply->text, sizeof(ret_reply->text),
			"node %.200s was not being drained", admin->node);
	ret_reply->state = "active";
	return 0;
}

/* ---- replicas ------------------------------------------------------------------------------- */

static struct group *
group_of(const struct model *model, const struct ctl_admin *admin)
{
	struct group *group = model == NULL ? NULL : group_first(model, admin->replica);

	for (; group != NULL; group = group->same_next) {
		if (admin->group != 0 ? group->inc == admin->group : !group_is_over(group))
			return group;
	}
	return NULL;
}

static void
count_replica(const struct group *group, struct ctl_admin_reply *ret_reply)
{
	ret_reply->group = group->inc;
	for (uint32_t i = 0; i < group->num_shards; i++)
		ret_reply->members += group->members[i] != NULL;
	for (uint32_t i = 0; group->copy != NULL && i < group->copy->num_parts; i++) {
		ret_reply->legs_in += group->copy->parts[i].num_fills;
		ret_reply->legs_out += group->copy->parts[i].num_readers;
	}
}

static void
describe_replica(const struct group *group, struct ctl_admin_reply *ret_reply)
{
	char holds[64] = "holds no version";

	if (group->copy != NULL)
		snprintf(holds, sizeof(holds), "%s version %" PRIu64,
			group->copy->state == COPY_READY ? "holds" : "is being filled with",
			group->copy->version->id.version);
	snprintf(ret_reply->text, sizeof(ret_reply->text),
		"replica %.100s of %.100s has %u of %u shards open and %s; %u transfers read it",
		group->replica, group->model->name, ret_reply->members, group->num_shards, holds,
		ret_reply->legs_out);
}

static void
evict_now(struct refsrv *server, struct group *group, const struct ctl_admin *admin)
{
	struct th_err cause;

	th_fail(&cause, TH_E_EVICTED,
		"replica %.100s of %.100s was evicted by an operator%s%.100s; close this handle "
		"and open again",
		group->replica, group->model->name, admin->from[0] != '\0' ? ": " : "",
		admin->from);
	group_evict(server, group, cause.text, admin->force);
}

static int
evict(struct refsrv *server, const struct ctl_admin *admin, struct ctl_admin_reply *ret_reply,
	struct th_err *err)
{
	struct group *group = group_of(model_find(server, admin->model), admin);

	if (group == NULL && admin->group != 0) {
		ret_reply->state = "gone";
		ret_reply->group = admin->group;
		return 0;
	}
	if (group == NULL)
		return th_fail(err, TH_E_NOT_AVAILABLE,
			"model %s has no replica %s here; thctl ls replicas shows them",
			admin->model, admin->replica);
	if (!admin->look && group->state != GROUP_BROKEN)
		evict_now(server, group, admin);
	count_replica(group, ret_reply);
	describe_replica(group, ret_reply);
	bool kept = group->copy != NULL && group->copy->rescued;
	ret_reply->state = group->state != GROUP_BROKEN ? "there" : kept ? "moving" : "evicted";
	return 0;
}

/* ---- followers ------------------------------------------------------------------------------ */

static int
go(struct refsrv *server, const struct ctl_admin *admin, struct ctl_admin_reply *ret_reply,
	struct th_err *err)
{
	int rc = follow_go_named(server, admin, &ret_reply->go, err);

	if (rc != 0)
		return rc;
	uint32_t following = model_find(server, admin->model)->num_following;
	snprintf(ret_reply->text, sizeof(ret_reply->text),
		"followers of %.200s may take its versions up to %" PRIu64
		"; %u replica%s follow%s",
		admin->model, ret_reply->go.version, following, following == 1 ? "" : "s",
		following == 1 ? "s" : "");
	ret_reply->state = "said";
	ret_reply->members = following;
	return 0;
}

/* ---- events --------------------------------------------------------------------------------- */

static void
events(struct refsrv *server, uint64_t after, struct ctl_admin_reply *ret_reply)
{
	struct ctl_log_entry *entries =
		refsrv_scratch(server, CTL_LOG_ENTRIES_MAX, sizeof(*entries));
	const struct event_entry *entry = event_log_after(server, after);
	uint32_t count = 0;

	while (entry != NULL && count < CTL_LOG_ENTRIES_MAX) {
		struct ctl_log_entry *to = &entries[count++];
		to->number = entry->number;
		to->at_ns = entry->at_ns;
		if (server->config.wall_ns != 0)
			to->wall_ns = th_deadline_ns(server->config.wall_ns, entry->at_ns);
		to->severity = event_severity_name(entry->severity);
		memcpy(to->model, entry->model, strlen(entry->model) + 1);
		memcpy(to->node, entry->node, strlen(entry->node) + 1);
		memcpy(to->text, entry->text, strlen(entry->text) + 1);
		entry = event_log_after(server, to->number);
	}
	ret_reply->num_events = count;
	ret_reply->events = entries;
}

/* ---- all ------------------------------------------------------------------------------------ */

static int
names_check(const struct ctl_admin *admin, struct th_err *err)
{
	bool of_node = admin->verb == CTL_ADMIN_DRAIN || admin->verb == CTL_ADMIN_UNDRAIN;

	if ((of_node && !th_name_valid(admin->node, TH_NAME_MAX)) ||
		(admin->verb == CTL_ADMIN_EVICT &&
			(!th_name_valid(admin->model, TH_NAME_MAX) ||
				!th_name_valid(admin->replica, TH_NAME_MAX))) ||
		(admin->verb == CTL_ADMIN_GO && !th_name_valid(admin->model, TH_NAME_MAX)))
		return th_fail(err, TH_E_INVALID,
			"the name of a node, model or replica is not 1 to %d bytes of UTF-8 "
			"without control characters",
			TH_NAME_MAX);
	return 0;
}

int
admin_request(struct refsrv *server, const struct ctl_admin *admin,
	struct ctl_admin_reply *ret_reply, struct th_err *err)
{
	struct ctl_admin_reply reply = {.server_inc = server->config.server_inc,
		.state = "",
		.go = {.version = TH_NO_VERSION}};
	int rc = names_check(admin, err);

	if (rc != 0)
		return rc;
	switch (admin->verb) {
	case CTL_ADMIN_DRAIN:
		rc = drain(server, admin, &reply, err);
		break;
	case CTL_ADMIN_UNDRAIN:
		rc = undrain(server, admin, &reply, err);
		break;
	case CTL_ADMIN_EVICT:
		rc = evict(server, admin, &reply, err);
		break;
	case CTL_ADMIN_EVENTS:
		events(server, admin->after, &reply);
		break;
	case CTL_ADMIN_GO:
		rc = go(server, admin, &reply, err);
		break;
	default:
		rc = th_fail(err, TH_E_INVALID,
			"the server does not know what operator's verb %u is", admin->verb);
		break;
	}
	if (rc != 0)
		return rc;
	reply.last_event = server->log.last;
	*ret_reply = reply;
	return 0;
}
