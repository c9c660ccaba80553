/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node_drain - see node_drain.h.
 */
#include "server/core/cluster/node_drain.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/model/content.h"
#include "server/core/model/copy.h"
#include "server/core/model/model.h"
#include "server/core/retain/borrow.h"
#include "server/core/retain/fetch.h"
#include "server/core/retain/offload.h"
#include "server/core/retain/offload_rules.h"

/* How often a node is looked at that has not become empty yet. */
#define LOOK_NS INT64_C(100000000)
#define EMPTY_LOOK_NS (10 * LOOK_NS) /* a node that was found empty is looked at so often */

struct drained_node { /* owned by server.drained_nodes, oldest first */
	char node[TH_NAME_MAX + 1];
	char from[TH_NAME_MAX + 1]; /* who asked for it first */
	uint32_t num_lost;          /* retained versions that went with it since */
	char *lost;                 /* owns; the first of them; NULL: none */
	struct drained_node *prev, *next;
};

bool
node_drains(const struct agent *agent)
{
	return agent->draining || agent->leaving;
}

/* ---- which nodes ---------------------------------------------------------------------------- */

static struct drained_node *
node_drain_find(const struct refsrv *server, const char *node)
{
	struct drained_node *drained;

	DL_FOREACH(server->drained_nodes, drained)
	{
		if (strcmp(drained->node, node) == 0)
			return drained;
	}
	return NULL;
}

bool
node_drain_wanted(const struct refsrv *server, const char *node)
{
	return node_drain_find(server, node) != NULL;
}

static void
node_drain_forget(struct refsrv *server, struct drained_node *drained)
{
	DL_DELETE(server->drained_nodes, drained);
	server->num_drained_nodes--;
	free(drained->lost);
	free(drained);
}

/* No more names than there may be agents: those of nodes that are gone for long give way. */
static void
node_drain_remember(struct refsrv *server, const char *node, const char *from)
{
	struct drained_node *drained = th_calloc(1, sizeof(*drained));

	if (server->num_drained_nodes >= server->config.agents_max)
		node_drain_forget(server, server->drained_nodes);
	memcpy(drained->node, node, strnlen(node, TH_NAME_MAX));
	memcpy(drained->from, from, strnlen(from, TH_NAME_MAX));
	DL_APPEND(server->drained_nodes, drained);
	server->num_drained_nodes++;
}

void
node_drain_free_all(struct refsrv *server)
{
	while (server->drained_nodes != NULL)
		node_drain_forget(server, server->drained_nodes);
}

void
node_drain_lost(struct refsrv *server, const struct copy *copy, const char *text)
{
	uint64_t visit = ++server->visit;

	for (uint32_t i = 0; i < copy->num_parts; i++) {
		const struct member *member = copy->parts[i].member;
		if (member == NULL || member->agent->visit == visit)
			continue;
		member->agent->visit = visit;
		struct drained_node *drained = node_drain_find(server, member->agent->info.node);
		if (drained == NULL)
			continue;
		TH_MARK(drain_has_lost);
		if (drained->num_lost++ == 0)
			drained->lost = th_strdup(text);
	}
}

static void
node_drain_tell_lost(
	const struct refsrv *server, const char *node, struct ctl_admin_reply *ret_reply)
{
	const struct drained_node *drained = node_drain_find(server, node);

	if (drained == NULL || drained->num_lost == 0)
		return;
	ret_reply->num_lost = drained->num_lost;
	snprintf(ret_reply->lost_text, sizeof(ret_reply->lost_text), "%s", drained->lost);
}

/* ---- beginning and ending ------------------------------------------------------------------- */

static void
node_drain_tell(struct agent *agent, const char *from)
{
	struct ctl_ev_node *ev = &agent_event(agent, CTL_EV_NODE)->u.node;

	ev->draining = agent->draining;
	snprintf(ev->text, sizeof(ev->text), "%s", from);
}

/* Who was chosen before for something new may be the wrong one now. */
static void
node_drain_changed(struct refsrv *server, struct agent *agent)
{
	agent->told_empty = false;
	model_dirty_all(server);
	server->drain_look_ns = server->now_ns;
}

void
node_drain_begin(
	struct refsrv *server, const char *node, struct agent *agent, const struct ctl_admin *admin)
{
	bool known = admin->leaving ? agent->leaving : node_drain_find(server, node) != NULL;

	if (known)
		return;
	if (!admin->leaving)
		node_drain_remember(server, node, admin->from);
	event_log(server, EVENT_INFO, NULL, node, "node %s is being drained%s%.200s", node,
		admin->from[0] != '\0' ? ": " : "", admin->from);
	if (agent == NULL || agent->state == AGENT_DEAD)
		return;
	if (admin->leaving) {
		agent->leaving = true;
	} else {
		agent->draining = true;
		node_drain_tell(agent, admin->from);
	}
	node_drain_changed(server, agent);
}

bool
node_drain_end(struct refsrv *server, const char *node, struct agent *agent, const char *from)
{
	struct drained_node *drained = node_drain_find(server, node);

	if (drained == NULL)
		return false;
	node_drain_forget(server, drained);
	event_log(server, EVENT_INFO, NULL, node, "node %s is not drained any more%s%.200s", node,
		from[0] != '\0' ? ": " : "", from);
	if (agent != NULL && agent->state != AGENT_DEAD) {
		agent->draining = false;
		node_drain_tell(agent, from);
		fetch_again(agent);
		node_drain_changed(server, agent);
	}
	return true;
}

void
node_attached(struct refsrv *server, struct agent *agent)
{
	const char *node = agent->info.node;

	/* What it was told by this server may have been taken back while it was away. */
	bool elsewhere = agent->info.server_inc != server->config.server_inc;

	if (agent->info.draining && elsewhere && node_drain_find(server, node) == NULL) {
		TH_MARK(drain_announced_again);
		node_drain_remember(
			server, node, "an operator, as its agent was told by an earlier server");
		event_log(server, EVENT_INFO, NULL, node,
			"node %s is being drained: its agent was told so by an earlier server",
			node);
	}
	agent->leaving = agent->info.leaving;
	const struct drained_node *drained = node_drain_find(server, node);
	agent->draining = drained != NULL;
	if (agent->draining || agent->info.draining)
		node_drain_tell(agent, drained == NULL ? "" : drained->from);
	if (node_drains(agent))
		node_drain_changed(server, agent);
}

/* ---- what is waited for --------------------------------------------------------------------- */

struct look {
	struct refsrv *server;
	const struct agent *agent;
	uint32_t num_blockers, num_told;
	struct ctl_blocker *blockers; /* NULL: they are only counted */
};

/* NULL: it is counted, and there is no room to tell it. */
static struct ctl_blocker *
node_drain_add(struct look *look, const char *kind, const struct part *part, bool stays)
{
	const struct copy *copy = part->copy;

	look->num_blockers++;
	if (look->blockers == NULL || look->num_told == CTL_BLOCKERS_MAX)
		return NULL;
	struct ctl_blocker *blocker = &look->blockers[look->num_told++];
	blocker->kind = kind;
	memcpy(blocker->model, copy->group->model->name, sizeof(blocker->model));
	memcpy(blocker->replica, copy->group->replica, sizeof(blocker->replica));
	blocker->shard = part->shard;
	blocker->version = copy->version->id;
	blocker->stays = stays;
	return blocker;
}

/* What it holds, or others do, may not be known yet: it only seems to be empty. */
static bool
collecting(const struct refsrv *server, const struct agent *agent)
{
	const struct member *member;

	if (server->warming || agent->inventory_due)
		return true;
	DL_FOREACH2(agent->members, member, agent_next)
	{
		if (member->group->rejoining)
			return true;
	}
	return false;
}

static void
look_at_server(struct look *look)
{
	if (!collecting(look->server, look->agent) || TH_PLANT(empty_before_it_is_known))
		return;
	TH_MARK(drain_waits_for_inventories);
	look->num_blockers++;
	if (look->blockers == NULL || look->num_told == CTL_BLOCKERS_MAX)
		return;
	struct ctl_blocker *blocker = &look->blockers[look->num_told++];
	blocker->kind = "collecting";
	blocker->version.version = TH_NO_VERSION;
	snprintf(blocker->text, sizeof(blocker->text),
		"the reference server was started again and is collecting what the agents hold: "
		"this ends by itself in seconds");
}

static unsigned int
per_cent(const struct part *part)
{
	uint32_t total = part->copy->version->shards[part->shard].num_chunks;

	return total == 0 ? 100 : (unsigned int)((uint64_t)part->chunks_done * 100 / total);
}

/* A leg has two ends here when source and reader are on this node: it is told with its source. */
static void
look_at_fills(struct look *look, const struct part *part)
{
	const struct leg *leg;

	DL_FOREACH2(part->fills, leg, dst_next)
	{
		if (leg->src != NULL && leg->src->member->agent == look->agent)
			continue;
		struct ctl_blocker *blocker = node_drain_add(look, "transfer", part, false);
		if (blocker == NULL)
			continue;
		snprintf(blocker->text, sizeof(blocker->text),
			"shard %u of replica %.100s of %.100s is being filled with version %" PRIu64
			" from node %.100s (%u %%): the transfer ends by itself",
			part->shard, blocker->replica, blocker->model, blocker->version.version,
			leg->src == NULL ? "?" : leg->src->member->agent->info.node,
			per_cent(part));
	}
}

static void
look_at_readers(struct look *look, const struct part *part)
{
	const struct leg *leg;

	DL_FOREACH2(part->readers, leg, src_next)
	{
		if (TH_PLANT(empty_while_it_is_read))
			break;
		struct ctl_blocker *blocker = node_drain_add(look, "transfer", part, false);
		if (blocker == NULL)
			continue;
		snprintf(blocker->text, sizeof(blocker->text),
			"replica %.100s on node %.100s reads shard %u of version %" PRIu64
			" of %.100s from replica %.100s (%u %%): the transfer ends by itself",
			leg->dst->copy->group->replica, leg->reader->agent->info.node, part->shard,
			blocker->version.version, blocker->model, blocker->replica,
			per_cent(leg->dst));
	}
}

/*
 * A retained version whose complete copies are all on nodes that are being drained, or on spot
 * hosts: it has to move first (offload_rules.c sees to that). A copy whose content nobody knows
 * yet may be such a one, too.
 */
static bool
last_of_its_version(struct refsrv *server, const struct copy *copy)
{
	/* Of a broken group: what is left in memory is being saved. */
	if (copy->rescued)
		return true;
	return copy->state == COPY_READY && !copy->content->refused &&
	       offload_at_risk(server, copy->version);
}

static void
look_at_copy(struct look *look, const struct part *part)
{
	const struct copy *copy = part->copy;
	const struct version *version = copy->version;

	if (!last_of_its_version(look->server, copy) || TH_PLANT(empty_with_a_last_copy))
		return;
	bool known = copy->rescued || content_listed(copy);
	bool moving = copy->rescued || (known && offload_running(version));
	bool refused = known && !moving &&
		       (look->server->now_ns < version->retry_ns ||
			       !offload_conceivable(look->server, copy));
	struct ctl_blocker *blocker =
		node_drain_add(look, moving ? "moving" : "last-copy", part, refused);
	if (blocker == NULL)
		return;
	TH_MARK(drain_waits_for_last_copy);
	const char *why =
		!known    ? "its node says soon whether it has the same bytes as they"
		: refused ? "no other host has memory for it: this does not end by itself; raise "
			    "the offload-limit of an agent, start another one, or give the "
			    "version up (thctl evict --force)"
		: moving  ? "it is being copied to another host"
			  : "it is to be copied to another host";
	snprintf(blocker->text, sizeof(blocker->text),
		"version %" PRIu64 " of %.100s is retained and only %s replica %.100s: %s",
		blocker->version.version, blocker->model,
		known ? "here, in" : "on hosts that may go, maybe also here in", blocker->replica,
		why);
}

/* Its pages are in other processes, and nobody can take them back; they outlive this agent. */
static void
look_at_loans(struct look *look, const struct part *part)
{
	const struct offload *offload = part->copy->group->offload;

	if (offload == NULL || offload->version == NULL || look->agent->leaving ||
		!borrow_lent(offload, part->shard))
		return;
	TH_MARK(drain_waits_for_borrowers);
	struct ctl_blocker *blocker = node_drain_add(look, "borrowed", part, true);
	if (blocker == NULL)
		return;
	snprintf(blocker->text, sizeof(blocker->text),
		"shard %u of version %" PRIu64
		" of %.100s is lent to processes of this node: this ends when they return it "
		"or end; thctl status there names them",
		part->shard, blocker->version.version, blocker->model);
}

static void
node_drain_look_at(struct look *look)
{
	const struct member *member;

	look_at_server(look);
	DL_FOREACH2(look->agent->members, member, agent_next)
	{
		const struct part *part = copy_part_of(member);
		if (part == NULL)
			continue;
		look_at_copy(look, part);
		look_at_loans(look, part);
		look_at_fills(look, part);
		look_at_readers(look, part);
	}
}

/* Once, each time that it has become so. */
static void
log_empty(struct refsrv *server, struct agent *agent, bool empty)
{
	if (empty && !agent->told_empty)
		event_log(server, EVENT_INFO, NULL, agent->info.node,
			"node %s is empty: nothing is lost when it is switched off",
			agent->info.node);
	agent->told_empty = empty;
}

/* Who wants it, and what a drain does not end. */
static void
node_drain_describe(
	const struct refsrv *server, const struct agent *agent, struct ctl_admin_reply *ret_reply)
{
	const struct drained_node *drained = node_drain_find(server, agent->info.node);
	char workers[96] = "", from[TH_NAME_MAX + 32] = "";

	if (agent->leaving)
		snprintf(from, sizeof(from), "its agent was told to end");
	else if (drained != NULL && drained->from[0] != '\0')
		snprintf(from, sizeof(from), "asked for by %s", drained->from);
	if (agent->num_members > 0)
		snprintf(workers, sizeof(workers),
			"%sopen handles of workers here: %u; they go on until their workers end",
			from[0] != '\0' ? "; " : "", agent->num_members);
	snprintf(ret_reply->text, sizeof(ret_reply->text), "%s%s", from, workers);
}

void
node_drain_look(struct refsrv *server, struct agent *agent, struct ctl_admin_reply *ret_reply)
{
	struct look look = {.server = server, .agent = agent};

	look.blockers = refsrv_scratch(server, CTL_BLOCKERS_MAX, sizeof(*look.blockers));
	node_drain_look_at(&look);
	ret_reply->state = !node_drains(agent)      ? "active"
			   : look.num_blockers == 0 ? "empty"
						    : "draining";
	if (node_drains(agent))
		log_empty(server, agent, look.num_blockers == 0);
	ret_reply->members = agent->num_members;
	ret_reply->legs_in = agent->legs_in;
	ret_reply->legs_out = agent->legs_out;
	ret_reply->num_blockers = look.num_blockers;
	ret_reply->num_told = look.num_told;
	ret_reply->blockers = look.blockers;
	node_drain_describe(look.server, agent, ret_reply);
	node_drain_tell_lost(server, agent->info.node, ret_reply);
}

void
node_drain_absent(struct refsrv *server, const char *node, struct ctl_admin_reply *ret_reply)
{
	const struct agent nobody = {0};
	struct look look = {.server = server, .agent = &nobody};

	look.blockers = refsrv_scratch(server, CTL_BLOCKERS_MAX, sizeof(*look.blockers));
	look_at_server(&look);
	ret_reply->state = node_drain_find(server, node) == NULL ? "active"
			   : look.num_blockers == 0              ? "empty"
								 : "draining";
	ret_reply->num_blockers = look.num_blockers;
	ret_reply->num_told = look.num_told;
	ret_reply->blockers = look.blockers;
	node_drain_tell_lost(server, node, ret_reply);
	snprintf(ret_reply->text, sizeof(ret_reply->text),
		"no agent of node %.200s is attached: nothing of it is here", node);
}

/* ---- the log -------------------------------------------------------------------------------- */

static bool
is_empty(struct refsrv *server, const struct agent *agent)
{
	struct look look = {.server = server, .agent = agent};

	node_drain_look_at(&look);
	return look.num_blockers == 0;
}

void
node_drain_tick(struct refsrv *server)
{
	struct agent *agent, *next;

	if (server->now_ns < server->drain_look_ns) {
		refsrv_wake_at(server, server->drain_look_ns);
		return;
	}
	server->drain_look_ns = INT64_MAX;
	HASH_ITER(hh, server->agents, agent, next)
	{
		if (agent->state == AGENT_DEAD || !node_drains(agent))
			continue;
		bool empty = is_empty(server, agent);
		log_empty(server, agent, empty);
		server->drain_look_ns = th_min_i64(server->drain_look_ns,
			th_deadline_ns(server->now_ns, empty ? EMPTY_LOOK_NS : LOOK_NS));
	}
	refsrv_wake_at(server, server->drain_look_ns);
}
