/* SPDX-License-Identifier: Apache-2.0 */
/*
 * borrow - see borrow.h.
 */
#include "server/core/retain/borrow.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/sim.h"
#include "ipc/base/units.h"
#include "server/core/cluster/agent.h"
#include "server/core/model/content.h"
#include "server/core/model/copy.h"
#include "server/core/model/model.h"
#include "server/core/rejoin/rejoin.h"
#include "server/core/retain/offload.h"

/* ---- which there are ------------------------------------------------------------------------- */

static struct borrow *
borrow_find(
	const struct model *model, uint64_t agent_inc, struct th_version version, uint32_t shard)
{
	struct borrow *borrow;

	DL_FOREACH(model->retention.borrows, borrow)
	{
		if (borrow->agent_inc == agent_inc && borrow->shard == shard &&
			th_version_compare(borrow->version, version) == 0)
			return borrow;
	}
	return NULL;
}

static void
borrow_forget(struct refsrv *server, struct model *model, struct borrow *borrow)
{
	struct agent *agent = agent_find(server, borrow->agent_inc);

	if (agent != NULL && agent->num_borrows > 0)
		agent->num_borrows--;
	DL_DELETE(model->retention.borrows, borrow);
	free(borrow);
	model_dirty(model);
}

static void
borrow_refuse(struct refsrv *server, struct model *model, struct borrow *borrow, int code,
	const char *text)
{
	struct agent *agent = agent_find(server, borrow->agent_inc);

	if (agent != NULL && agent->state != AGENT_DEAD) {
		struct ctl_ev_borrow_refused *ev =
			&agent_event(agent, CTL_EV_BORROW_REFUSED)->u.borrow_refused;
		TH_MARK(borrow_refused);
		memcpy(ev->model, model->name, sizeof(ev->model));
		ev->version = borrow->version;
		ev->shard = borrow->shard;
		ev->code = code;
		snprintf(ev->text, sizeof(ev->text), "%s", text);
	}
	borrow_forget(server, model, borrow);
}

bool
borrow_lent(const struct offload *offload, uint32_t shard)
{
	return borrow_find(offload->version->model, offload->shards[shard].agent_inc,
		       offload->version->id, shard) != NULL;
}

bool
borrow_wanted(const struct offload *offload)
{
	/* Mostly nobody borrows anything. */
	if (offload->version->model->retention.borrows == NULL)
		return false;
	for (uint32_t i = 0; i < offload->num_shards; i++) {
		if (borrow_lent(offload, i))
			return true;
	}
	return false;
}

void
borrow_drop_all(struct refsrv *server, const struct agent *agent)
{
	struct model *model;
	struct borrow *borrow, *next;

	if (agent->num_borrows == 0)
		return;
	for (model = server->models; model != NULL; model = model->hh.next) {
		DL_FOREACH_SAFE(model->retention.borrows, borrow, next)
		{
			if (borrow->agent_inc == agent->inc)
				borrow_forget(server, model, borrow);
		}
	}
}

/* ---- what agents say ------------------------------------------------------------------------- */

int
borrow_request(struct refsrv *server, struct agent *agent, const struct ctl_borrow *request,
	struct th_err *err)
{
	struct model *model = request->stop ? model_find(server, request->model)
					    : model_acquire(server, request->model);
	struct borrow *borrow =
		model == NULL ? NULL
			      : borrow_find(model, agent->inc, request->version, request->shard);

	if (request->stop) {
		if (borrow != NULL)
			borrow_forget(server, model, borrow);
		return 0;
	}
	model_dirty(model);
	if (borrow == NULL && agent->num_borrows >= BORROWS_MAX)
		return th_fail(err, TH_E_LIMIT,
			"node %s lends %u shards, the most that there may be", agent->info.node,
			BORROWS_MAX);
	if (borrow == NULL) {
		borrow = th_calloc(1, sizeof(*borrow));
		borrow->agent_inc = agent->inc;
		borrow->version = request->version;
		borrow->shard = request->shard;
		agent->num_borrows++;
		DL_APPEND(model->retention.borrows, borrow);
	}
	borrow->room = request->room;
	borrow->held = request->held;
	return 0;
}

/* ---- going on -------------------------------------------------------------------------------- */

/* The copy that is lent, or will be; a complete one before all others. */
static struct offload *
serving(const struct model *model, const struct borrow *borrow)
{
	struct offload *offload, *found = NULL;

	DL_FOREACH(model->retention.offloads, offload)
	{
		if (offload->version == NULL || borrow->shard >= offload->num_shards ||
			offload->shards[borrow->shard].agent_inc != borrow->agent_inc ||
			th_version_compare(offload->version->id, borrow->version) != 0)
			continue;
		if (found == NULL || offload->state == OFFLOAD_READY)
			found = offload;
	}
	return found;
}

static bool
has_source(const struct version *version)
{
	const struct copy *copy;

	DL_FOREACH(version->copies, copy)
	{
		if (copy->state == COPY_READY && !copy->draining && copy_stands(copy) &&
			content_listed(copy))
			return true;
	}
	return false;
}

/* False: it was refused. */
static bool
may_be_brought(struct refsrv *server, struct model *model, struct borrow *borrow,
	const struct version *version)
{
	char text[TH_CTL_TEXT_BYTES], all[TH_UNITS_BYTES], room[TH_UNITS_BYTES];
	uint64_t bytes = 0;

	if (version == NULL || !has_source(version)) {
		snprintf(text, sizeof(text),
			"version %" PRIu64 " of %.200s is not there; thctl ls shows which are",
			borrow->version.version, model->name);
		borrow_refuse(server, model, borrow, TH_E_NOT_AVAILABLE, text);
		return false;
	}
	if (borrow->shard >= version->num_shards) {
		snprintf(text, sizeof(text), "version %" PRIu64 " of %.200s has %u shards",
			borrow->version.version, model->name, version->num_shards);
		borrow_refuse(server, model, borrow, TH_E_INVALID, text);
		return false;
	}
	for (uint32_t i = 0; i < version->num_shards; i++) {
		if (!th_add_u64(bytes, version->shards[i].bytes, &bytes))
			bytes = UINT64_MAX;
	}
	if (bytes > borrow->room) {
		snprintf(text, sizeof(text),
			"version %" PRIu64 " of %.200s has %s, and %s of what this agent may lend "
			"are left; raise borrow.limit, or return what is lent",
			borrow->version.version, model->name, th_print_size_short(bytes, all),
			th_print_size_short(borrow->room, room));
		borrow_refuse(server, model, borrow, TH_E_LIMIT, text);
		return false;
	}
	return true;
}

/* What failed while it was begun is refused in the same step: it is on the list no more. */
static struct borrow *
borrow_due(const struct model *model)
{
	struct borrow *borrow;

	DL_FOREACH(model->retention.borrows, borrow)
	{
		const struct offload *offload = serving(model, borrow);
		if (offload == NULL)
			return borrow;
		borrow->held = borrow->held || offload->state == OFFLOAD_READY;
	}
	return NULL;
}

void
borrow_failed(const struct offload *offload, const char *why)
{
	struct model *model = offload->version->model;
	struct borrow *borrow, *next;
	char text[TH_CTL_TEXT_BYTES];

	/* Whoever was asked had memory: then it is those that it was read from. */
	int code = offload->attempts > 0 ? TH_E_VERSION_LOST : TH_E_LIMIT;
	snprintf(text, sizeof(text),
		"version %" PRIu64 " of %.100s cannot be had in this agent's memory: %.300s",
		offload->version->id.version, model->name, why);
	DL_FOREACH_SAFE(model->retention.borrows, borrow, next)
	{
		if (borrow->agent_inc == offload->shards[0].place_inc && !borrow->held &&
			th_version_compare(borrow->version, offload->version->id) == 0)
			borrow_refuse(model->server, model, borrow, code, text);
	}
}

void
borrow_settle(struct refsrv *server, struct model *model)
{
	struct borrow *borrow;

	/* What is there, and who has it already, is not known yet. */
	if (model_warming(server, model))
		return;
	while ((borrow = borrow_due(model)) != NULL) {
		struct version *version = version_find(model, borrow->version);
		if (borrow->held) {
			TH_MARK(borrow_copy_has_gone);
			borrow_forget(server, model, borrow);
		} else if (may_be_brought(server, model, borrow, version)) {
			TH_MARK(borrow_is_brought);
			offload_begin_borrow(
				server, agent_find(server, borrow->agent_inc), version);
		}
	}
}
