/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listing - see listing.h. Copies of broken groups and of failed operations are not listed.
 */
#include "server/core/view/listing.h"

#include <inttypes.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/model/content.h"
#include "server/core/model/copy.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/retain/retain.h"
#include "server/core/timer.h"
#include "server/core/view/snapshot.h"

static bool
listed(const struct copy *copy)
{
	return (copy_stands(copy) || TH_PLANT(broken_group_is_listed)) && content_listed(copy);
}

static void
listing_count(const struct model *model, uint32_t *ret_versions, uint32_t *ret_replicas)
{
	const struct version *version;
	const struct copy *copy;

	*ret_versions = *ret_replicas = 0;
	DL_FOREACH(model->versions, version)
	{
		uint32_t before = *ret_replicas;
		DL_FOREACH(version->copies, copy)
		{
			*ret_replicas += listed(copy);
		}
		*ret_versions += *ret_replicas > before;
	}
}

static void
describe_copy(const struct copy *copy, struct ctl_replica_info *ret_info)
{
	const struct version *version = copy->version;

	memcpy(ret_info->name, copy->group->replica, sizeof(ret_info->name));
	ret_info->num_shards = copy->num_parts;
	ret_info->flags = (copy->state == COPY_READY ? CTL_REPLICA_READY : 0u) |
			  (copy->draining ? CTL_REPLICA_DRAINING : 0u) |
			  (copy->group->reservation != 0 ? CTL_REPLICA_OFFLOAD : 0u) |
			  (copy_spot(copy) ? CTL_REPLICA_SPOT : 0u);
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		const struct part *part = &copy->parts[i];
		if (i == 0)
			memcpy(ret_info->datacenter, part->member->agent->info.datacenter,
				sizeof(ret_info->datacenter));
		ret_info->chunks_done += part->chunks_done;
		ret_info->chunks_total += version->shards[i].num_chunks;
	}
}

static void
listing_fill(struct refsrv *server, const struct model *model, struct ctl_version_info *versions,
	struct ctl_replica_info *replicas)
{
	struct version *version;
	const struct copy *copy;

	DL_FOREACH(model->versions, version)
	{
		uint32_t num = 0;
		copy_sort(version);
		DL_FOREACH2(version->by_name, copy, name_next)
		{
			if (listed(copy))
				describe_copy(copy, &replicas[num++]);
		}
		if (num == 0)
			continue;
		versions->version = version->id;
		versions->retained = retain_names(server, version);
		versions->num_replicas = num;
		versions->replicas = replicas;
		versions++;
		replicas += num;
	}
}

/* Bytes on the wire, at most. */
static uint64_t
wire_bytes(const struct ctl_listing *listing)
{
	uint64_t bytes = 0;

	for (uint32_t v = 0; v < listing->num_versions; v++) {
		bytes += snapshot_version_bytes();
		for (uint32_t r = 0; r < listing->versions[v].num_replicas; r++)
			bytes += snapshot_replica_bytes(&listing->versions[v].replicas[r]);
	}
	return bytes;
}

static void
list_now(struct refsrv *server, const struct model *model, struct ctl_listing *ret_listing)
{
	uint32_t num_versions, num_replicas;

	listing_count(model, &num_versions, &num_replicas);
	struct ctl_version_info *versions = refsrv_scratch(server, num_versions, sizeof(*versions));
	struct ctl_replica_info *replicas = refsrv_scratch(server, num_replicas, sizeof(*replicas));
	listing_fill(server, model, versions, replicas);
	*ret_listing = (struct ctl_listing){
		.generation = model->generation,
		.num_versions = num_versions,
		.versions = versions,
	};
}

int
listing_snapshot(struct refsrv *server, uint64_t owner, const struct model *model,
	struct th_err *err, struct snapshot **ret_snapshot)
{
	uint32_t num_versions, num_replicas;
	struct snapshot *snapshot;

	listing_count(model, &num_versions, &num_replicas);
	int rc = snapshot_new(server, owner, model->name,
		num_versions * (uint64_t)sizeof(struct ctl_version_info) +
			num_replicas * (uint64_t)sizeof(struct ctl_replica_info),
		err, &snapshot);
	if (rc != 0)
		return rc;
	struct ctl_version_info *versions = (struct ctl_version_info *)(snapshot + 1);
	listing_fill(server, model, versions, (struct ctl_replica_info *)(versions + num_versions));
	snapshot->u.listing = (struct ctl_listing){
		.generation = model->generation,
		.num_versions = num_versions,
		.versions = versions,
	};
	snapshot->revision = model->revision;
	snapshot->whole = snapshot_is_whole(server, wire_bytes(&snapshot->u.listing));
	snapshot_hold(snapshot);
	*ret_snapshot = snapshot;
	return 0;
}

/* ---- requests ------------------------------------------------------------------------------- */

static int
snapshot_of_group(struct refsrv *server, struct agent *agent, const struct ctl_list *list,
	struct th_err *err, struct snapshot **ret_snapshot)
{
	struct member *member = member_find(server, agent, list->sid, err);
	const struct op *op;

	if (member == NULL)
		return err->code;
	DL_FOREACH(member->group->ops, op)
	{
		if (op->seq == list->op_seq && op->snapshot != NULL) {
			*ret_snapshot = op->snapshot;
			return 0;
		}
	}
	return th_fail(err, TH_E_NOT_AVAILABLE,
		"operation %" PRIu64
		" of replica %s is no listing, or all members have moved on from "
		"it: list again",
		list->op_seq, member->group->replica);
}

/* What one message cannot hold is kept, for everybody who asks before it changes. */
static int
list_model(struct refsrv *server, uint64_t owner, const struct model *model,
	struct ctl_listing *ret_listing, struct th_err *err)
{
	struct ctl_listing now;

	list_now(server, model, &now);
	if (snapshot_is_whole(server, wire_bytes(&now))) {
		*ret_listing = now;
		return 0;
	}
	struct snapshot *snapshot = snapshot_same(server, model);
	int rc = 0;
	if (snapshot == NULL) {
		rc = listing_snapshot(server, owner, model, err, &snapshot);
		if (rc == 0)
			snapshot_let_go(server, snapshot);
	}
	if (rc == 0)
		rc = snapshot_listing_part(server, snapshot, 0, ret_listing, err);
	return rc;
}

static int
model_name_check(const char *name, struct th_err *err)
{
	if (!th_name_valid(name, TH_NAME_MAX))
		return th_fail(err, TH_E_INVALID,
			"the model name is not 1 to %d bytes of UTF-8 without control characters",
			TH_NAME_MAX);
	return 0;
}

int
listing_request(struct refsrv *server, struct agent *agent, const struct ctl_list *list,
	struct ctl_listing *ret_listing, struct th_err *err)
{
	struct snapshot *snapshot = NULL;
	int rc;

	if (list->page.snapshot != 0) {
		rc = snapshot_find(server, list->page.snapshot, list->model, err, &snapshot);
		return rc != 0 ? rc
			       : snapshot_listing_part(
					 server, snapshot, list->page.next, ret_listing, err);
	}
	if (list->sid != 0) {
		rc = snapshot_of_group(server, agent, list, err, &snapshot);
		return rc != 0 ? rc : snapshot_listing_part(server, snapshot, 0, ret_listing, err);
	}
	rc = model_name_check(list->model, err);
	if (rc != 0)
		return rc;
	const struct model *model = model_find(server, list->model);
	if (model != NULL)
		return list_model(server, agent == NULL ? 0 : agent->inc, model, ret_listing, err);
	*ret_listing = (struct ctl_listing){.generation = server->generation};
	return 0;
}

int
listing_resolve(struct refsrv *server, const struct ctl_resolve *resolve,
	struct ctl_resolve_reply *ret_reply, struct th_err *err)
{
	int rc = model_name_check(resolve->model, err);
	struct th_spec spec;

	if (rc != 0)
		return rc;
	if (th_spec_parse(resolve->spec, &spec) != 0)
		return th_fail(err, TH_E_INVALID,
			"a version is a number, latest, or latest-K; this is none of them");
	const struct model *model = model_find(server, resolve->model);
	struct th_version id = {.version = TH_NO_VERSION};
	if (model != NULL)
		id = model_resolve(server, model, &spec);
	const struct version *version = th_version_none(id) ? NULL : version_find(model, id);
	const struct copy *copy = version == NULL ? NULL : version->copies;
	while (copy != NULL && !listed(copy))
		copy = copy->next;
	if (copy == NULL)
		return th_fail(err, TH_E_NOT_AVAILABLE,
			"version %s of %s is not there now: see `thctl ls versions %s`, or wait",
			resolve->spec, resolve->model, resolve->model);
	if (resolve->shard >= version->num_shards)
		return th_fail(err, TH_E_INVALID,
			"version %" PRIu64 " of %s has %u shards, shard %u was asked for",
			id.version, resolve->model, version->num_shards, resolve->shard);
	*ret_reply = (struct ctl_resolve_reply){
		.version = id,
		.num_shards = version->num_shards,
		.layout = version->shards[resolve->shard].layout,
		.manifest = version->shards[resolve->shard].manifest,
		.attributes = version->contents->shards[resolve->shard].attributes,
	};
	return 0;
}

/* ---- watching ------------------------------------------------------------------------------- */

static struct watch *
watch_find(const struct agent *agent, const struct model *model)
{
	struct watch *watch;

	DL_FOREACH(agent->watches, watch)
	{
		if (watch->model == model)
			return watch;
	}
	return NULL;
}

static void
watch_end(struct refsrv *server, struct agent *agent, struct watch *watch)
{
	server->counters.watches_open--;
	DL_DELETE(agent->watches, watch);
	DL_DELETE2(watch->model->watches, watch, model_prev, model_next);
	model_dirty(watch->model);
	free(watch);
	agent->num_watches--;
}

static struct watch *
watch_begin(struct refsrv *server, struct agent *agent, const char *model, struct th_err *err)
{
	if (agent->num_watches >= WATCHES_MAX) {
		th_fail(err, TH_E_LIMIT, "agent %s watches %u models already, which is the limit",
			agent->info.node, WATCHES_MAX);
		return NULL;
	}
	struct watch *watch = th_calloc(1, sizeof(*watch));
	watch->model = model_acquire(server, model);
	watch->agent = agent;
	DL_APPEND(agent->watches, watch);
	DL_APPEND2(watch->model->watches, watch, model_prev, model_next);
	agent->num_watches++;
	server->counters.watches_open++;
	return watch;
}

int
listing_watch(struct refsrv *server, struct agent *agent, const struct ctl_watch *request,
	struct ctl_ev_changed *ret_now, struct th_err *err)
{
	int rc = model_name_check(request->model, err);

	if (rc != 0)
		return rc;
	struct model *model = model_find(server, request->model);
	struct watch *watch = model == NULL ? NULL : watch_find(agent, model);
	ret_now->generation = model == NULL ? server->generation : model->generation;
	memcpy(ret_now->model, request->model, sizeof(ret_now->model));
	if (request->stop) {
		if (watch != NULL)
			watch_end(server, agent, watch);
		return 0;
	}
	if (watch == NULL)
		watch = watch_begin(server, agent, request->model, err);
	if (watch == NULL)
		return err->code;
	watch->told = ret_now->generation = watch->model->generation;
	return 0;
}

void
listing_drop_watches(struct refsrv *server, struct agent *agent)
{
	while (agent->watches != NULL)
		watch_end(server, agent, agent->watches);
}

static void
tell_watchers(struct refsrv *server, struct model *model)
{
	struct watch *watch;

	model->changed = false;
	model->quiet_ns = th_deadline_ns(server->now_ns, server->config.coalesce_ns);
	DL_FOREACH2(model->watches, watch, model_next)
	{
		if (watch->told == model->generation)
			continue;
		watch->told = model->generation;
		server->counters.changed++;
		struct ctl_ev_changed *ev = &agent_event(watch->agent, CTL_EV_CHANGED)->u.changed;
		memcpy(ev->model, model->name, sizeof(ev->model));
		ev->generation = model->generation;
	}
}

void
listing_tell_changes(struct refsrv *server)
{
	while (server->changed != NULL) {
		struct model *model = server->changed;
		DL_DELETE2(server->changed, model, changed_prev, changed_next);
		if (server->now_ns >= model->quiet_ns)
			tell_watchers(server, model);
		else if (TH_PLANT(coalesced_change_lost))
			model->changed = false;
		else
			timer_at(server, &model->timer, TIMER_MODEL, model->quiet_ns);
	}
}

void
listing_timer(struct refsrv *server, struct model *model)
{
	DL_APPEND2(server->changed, model, changed_prev, changed_next);
}
