/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model - see model.h.
 *
 * What counts as a version: a copy of the first content (content.h) that is complete, also while it
 * is being drained, or that is filling from a chain that reaches a complete copy. An orphan partial
 * does not count: its version may never be whole again.
 */
#include "server/core/model/model.h"

#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/sim.h"
#include "server/core/model/blob.h"
#include "server/core/model/content.h"
#include "server/core/model/copy.h"
#include "server/core/retain/at_risk.h"
#include "server/core/retain/offload.h"
#include "server/core/route/route.h"
#include "server/core/timer.h"

struct model *
model_find(struct refsrv *server, const char *name)
{
	struct model *model = NULL;

	HASH_FIND_STR(server->models, name, model);
	return model;
}

struct model *
model_acquire(struct refsrv *server, const char *name)
{
	struct model *model = model_find(server, name);

	if (model != NULL)
		return model;
	model = th_calloc(1, sizeof(*model));
	model->server = server;
	memcpy(model->name, name, strnlen(name, TH_NAME_MAX));
	/* Never below what was told of an earlier model of this name. */
	model->generation = TH_PLANT(generation_begins_anew) ? 1 : server->generation;
	model->revision = ++server->revision;
	model->quiet_ns = INT64_MIN;
	model->go.version = TH_NO_VERSION;
	model->retention.model = model;
	model->retention.shrink_ns = INT64_MAX;
	HASH_ADD_STR(server->models, name, model);
	return model;
}

void
model_release(struct refsrv *server, struct model *model)
{
	if (model->groups != NULL || model->versions != NULL || model->watches != NULL ||
		model->retention.claims != NULL || model->retention.offloads != NULL ||
		model->retention.borrows != NULL)
		return;
	timer_stop(server, &model->retention.timer);
	if (model->dirty)
		DL_DELETE2(server->dirty, model, dirty_prev, dirty_next);
	if (model->changed && model->timer.place == 0)
		DL_DELETE2(server->changed, model, changed_prev, changed_next);
	timer_stop(server, &model->timer);
	HASH_DELETE(hh, server->models, model);
	free(model);
}

void
model_dirty(struct model *model)
{
	if (model->dirty)
		return;
	model->dirty = true;
	DL_APPEND2(model->server->dirty, model, dirty_prev, dirty_next);
}

void
model_dirty_agent(struct refsrv *server, const struct agent *agent)
{
	struct member *member;

	DL_FOREACH2(agent->members, member, agent_next)
	{
		model_dirty(member->group->model);
		model_progressed(server, member->group->model);
	}
}

void
model_dirty_all(struct refsrv *server)
{
	struct model *model, *next;

	HASH_ITER(hh, server->models, model, next)
	{
		model_dirty(model);
		/* Where an agent is, and whether it may vanish, is in the listing too. */
		model_progressed(server, model);
	}
}

void
model_changed(struct refsrv *server, struct model *model)
{
	model->generation = ++server->generation;
	model->revision = ++server->revision;
	if (!model->changed)
		DL_APPEND2(server->changed, model, changed_prev, changed_next);
	model->changed = true;
	model_dirty(model);
}

void
model_progressed(struct refsrv *server, struct model *model)
{
	model->revision = ++server->revision;
}

struct version *
version_find(const struct model *model, struct th_version id)
{
	struct version *version;

	DL_FOREACH(model->versions, version)
	{
		if (th_version_compare(version->id, id) == 0)
			return version;
	}
	return NULL;
}

static int
version_order(const struct version *a, const struct version *b)
{
	return th_version_compare(a->id, b->id);
}

struct version *
version_new(struct refsrv *server, const struct group *group, struct th_version id)
{
	struct version *version = th_calloc(1, sizeof(*version));

	version->model = group->model;
	version->id = id;
	version->num_shards = group->num_shards;
	version->risk_ns = INT64_MAX;
	version->retry_ns = INT64_MIN;
	version->shards = th_calloc(group->num_shards, sizeof(*version->shards));
	for (uint32_t i = 0; i < group->num_shards; i++) {
		const struct ctl_register *reg = &group->members[i]->reg;
		version->shards[i] = (struct shard_layout){
			.layout = reg->layout,
			.manifest = reg->manifest,
			.bytes = reg->bytes,
			.num_chunks = reg->num_chunks,
		};
		blob_acquire(server, reg->manifest);
	}
	DL_INSERT_INORDER(group->model->versions, version, version_order);
	return version;
}

void
version_free(struct refsrv *server, struct version *version)
{
	offload_version_gone(version);
	at_risk_over(server, version);
	for (uint32_t i = 0; i < version->num_shards; i++) {
		blob_release(server, version->shards[i].manifest);
	}
	DL_DELETE(version->model->versions, version);
	free(version->shards);
	free(version);
}

/* ---- names ---------------------------------------------------------------------------------- */

static bool
copy_counts(struct refsrv *server, struct copy *copy)
{
	if (!copy_stands(copy) || !content_listed(copy))
		return false;
	if (copy->state == COPY_READY)
		return true;
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		enum chain chain = route_chain(server, &copy->parts[i]);
		if (chain != CHAIN_ALIVE && chain != CHAIN_ADRIFT) {
			TH_MARK(d20_orphan_is_no_version);
			return false;
		}
	}
	return true;
}

bool
version_counts(struct refsrv *server, const struct version *version)
{
	struct copy *copy;

	DL_FOREACH(version->copies, copy)
	{
		if (copy_counts(server, copy))
			return true;
	}
	return false;
}

struct th_version
model_resolve(struct refsrv *server, const struct model *model, const struct th_spec *spec)
{
	struct th_version none = {.version = TH_NO_VERSION};
	/* The list ascends, so the last that counts is the highest of the highest lineage. */
	struct version *latest = model->versions == NULL ? NULL : model->versions->prev;
	if (TH_PLANT(latest_is_the_oldest))
		latest = model->versions;

	server->mark++;
	while (latest != NULL && !version_counts(server, latest))
		latest = latest == model->versions ? NULL : latest->prev;
	if (latest == NULL)
		return none;
	if (!spec->relative)
		return (struct th_version){latest->id.lineage, spec->number};
	if (spec->number > latest->id.version) {
		TH_MARK(c11_latest_minus_more_than_there_are);
		return none;
	}
	return (struct th_version){latest->id.lineage, latest->id.version - spec->number};
}
