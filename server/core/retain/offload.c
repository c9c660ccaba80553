/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offload - see offload.h. This file: making one. When it goes: offload_rules.c.
 */
#include "server/core/retain/offload.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/cluster/epoch.h"
#include "server/core/cluster/node_drain.h"
#include "server/core/model/content.h"
#include "server/core/model/copy.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/op/op.h"
#include "server/core/retain/borrow.h"
#include "server/core/retain/fetch.h"
#include "server/core/retain/last_copy.h"
#include "server/core/retain/offload_rules.h"
#include "server/core/retain/retain.h"
#include "server/core/view/event_log.h"

#define ATTEMPTS_MAX 3u /* of a whole group, after one that had begun has failed */

/* ---- which there are ------------------------------------------------------------------------ */

/* Where it is wanted, and for no rule: one that is for that alone. */
static bool
for_a_place(const struct offload *offload)
{
	return offload->why == OFFLOAD_FETCH || offload->why == OFFLOAD_BORROW;
}

/* For retention: the newest, and before all others one that is being made. */
static struct offload *
offload_of(const struct version *version)
{
	struct offload *offload, *found = NULL;

	DL_FOREACH(version->model->retention.offloads, offload)
	{
		if (offload->version == version && !for_a_place(offload) &&
			(found == NULL || found->state == OFFLOAD_READY ||
				offload->state != OFFLOAD_READY))
			found = offload;
	}
	return found;
}

bool
offload_running(const struct version *version)
{
	const struct offload *offload = offload_of(version);

	return offload != NULL && offload->state != OFFLOAD_READY;
}

/* It is complete, and its agents live and stay. */
static bool
stands(const struct offload *offload)
{
	return offload->group->copy != NULL && copy_secure(offload->group->copy);
}

bool
offload_awaited(const struct version *version)
{
	const struct offload *offload = offload_of(version);

	if (offload == NULL)
		return false;
	/* On nodes that are being drained or do not answer it stays until there is another one. */
	return offload->state != OFFLOAD_READY || stands(offload);
}

bool
offload_begun(const struct version *version)
{
	const struct offload *offload = offload_of(version);
	const struct copy *copy =
		offload == NULL || offload->group == NULL ? NULL : offload->group->copy;

	for (uint32_t i = 0; copy != NULL && i < copy->num_parts; i++) {
		if (copy->parts[i].done)
			return true;
	}
	return false;
}

uint64_t
offload_progress(const struct version *version)
{
	const struct offload *offload = offload_of(version);
	const struct copy *copy =
		offload == NULL || offload->group == NULL ? NULL : offload->group->copy;
	uint64_t chunks = 0;

	for (uint32_t i = 0; copy != NULL && i < copy->num_parts; i++)
		chunks += copy->parts[i].chunks_done;
	return chunks;
}

static struct offload *
offload_by_number(const struct refsrv *server, uint64_t reservation)
{
	const struct model *model;
	struct offload *offload;

	for (model = server->models; model != NULL; model = model->hh.next) {
		DL_FOREACH(model->retention.offloads, offload)
		{
			if (offload->reservation == reservation)
				return offload;
		}
	}
	return NULL;
}

/* What is copied: the copy that it was begun for, or any other that is complete. */
static const struct copy *
offload_source_of(const struct offload *offload)
{
	const struct copy *copy, *other = NULL;

	DL_FOREACH(offload->version->copies, copy)
	{
		if (copy->id == offload->source_id)
			return copy;
		if (other == NULL && copy->state == COPY_READY && content_listed(copy) &&
			copy->group->reservation == 0)
			other = copy;
	}
	return other;
}

/* ---- asking for memory ---------------------------------------------------------------------- */

static bool
has_refused(const struct offload_shard *shard, const struct agent *agent)
{
	for (uint32_t i = 0; i < shard->num_refused; i++) {
		if (shard->refused[i] == agent->inc)
			return true;
	}
	return false;
}

static bool
offload_has_room(const struct agent *agent, uint64_t bytes)
{
	return agent->state == AGENT_ACTIVE && !node_drains(agent) &&
	       agent->info.offload_bytes >= th_max_u64(1, bytes);
}

/* What is retained stays where a host stays; what is for a host may be lost with it. */
static bool
may_hold(const struct offload *offload, uint32_t shard, const struct agent *agent)
{
	bool stays = for_a_place(offload) ? !agent->leaving : !agent->info.spot;

	return stays && offload_has_room(agent, offload->version->shards[shard].bytes) &&
	       agent->inc != offload->avoid_inc && !has_refused(&offload->shards[shard], agent);
}

bool
offload_conceivable(const struct refsrv *server, const struct copy *copy)
{
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		const struct member *member = copy->parts[i].member;
		const struct agent *agent = member == NULL ? NULL : server->agents;
		for (; agent != NULL; agent = agent->hh.next) {
			if (!agent->info.spot &&
				offload_has_room(agent, copy->version->shards[i].bytes) &&
				agent_near(agent, member->agent))
				break;
		}
		if (agent == NULL)
			return false;
	}
	return true;
}

/* Where it belongs: with who wants it, else with who has it. NULL: that one is gone. */
static struct agent *
place_of(struct refsrv *server, const struct offload *offload, uint32_t shard)
{
	const struct copy *source;

	if (for_a_place(offload))
		return agent_find(server, offload->shards[shard].place_inc);
	source = offload_source_of(offload);
	return source == NULL || source->parts[shard].member == NULL
		       ? NULL
		       : source->parts[shard].member->agent;
}

/* Its place, then other agents of that datacenter: who keeps the least, the oldest. */
static struct agent *
offload_choose(struct refsrv *server, const struct offload *offload, uint32_t shard)
{
	struct agent *own = place_of(server, offload, shard), *agent, *best = NULL;

	if (own == NULL)
		return NULL;
	if (may_hold(offload, shard, own))
		return own;
	for (agent = server->agents; agent != NULL && !offload->pinned; agent = agent->hh.next) {
		if (agent_near(agent, own) && may_hold(offload, shard, agent) &&
			(best == NULL || agent->num_reserved < best->num_reserved))
			best = agent;
	}
	return best;
}

/* A session of the agent that has the same bytes: it need not ask for the manifest. */
static uint64_t
session_like(const struct version *version, uint32_t shard, const struct agent *agent)
{
	const struct copy *copy;

	DL_FOREACH(version->copies, copy)
	{
		const struct member *member = copy->parts[shard].member;
		if (member != NULL && member->agent == agent && !member->closed)
			return member->sid;
	}
	return 0;
}

/* Nobody was asked for it; what an agent has said itself is kept. */
static void
say_why_not_here(struct offload *offload, const struct agent *place)
{
	const char *why = place->leaving || node_drains(place) ? "it is to end"
			  : place->state != AGENT_ACTIVE
				  ? "it does not answer"
				  : "a copy does not fit there; raise its --offload-limit";

	if (offload->text[0] == '\0')
		snprintf(offload->text, sizeof(offload->text), "node %.64s: %s", place->info.node,
			why);
}

static enum ctl_copy_why
offload_say_why(const struct offload *offload)
{
	switch (offload->why) {
	case OFFLOAD_GIVEN_UP:
		return CTL_COPY_LAST;
	case OFFLOAD_RESCUE:
		return CTL_COPY_SPOT;
	case OFFLOAD_DRAIN:
		return CTL_COPY_DRAIN;
	case OFFLOAD_FETCH:
		return offload->pinned ? CTL_COPY_PREFETCH : CTL_COPY_SEED;
	case OFFLOAD_BORROW:
		return CTL_COPY_BORROW;
	case OFFLOAD_REJOINED:
		break;
	}
	return CTL_COPY_UNSAID;
}

static bool
offload_ask(struct refsrv *server, struct offload *offload, uint32_t shard)
{
	struct agent *agent = offload_choose(server, offload, shard);
	const struct shard_layout *layout = &offload->version->shards[shard];

	if (agent == NULL) {
		const struct agent *place = place_of(server, offload, shard);
		if (place != NULL && offload->why == OFFLOAD_FETCH)
			say_why_not_here(offload, place);
		return false;
	}
	offload->shards[shard].agent_inc = agent->inc;
	agent->num_reserved++;
	struct ctl_ev_reserve *ev = &agent_event(agent, CTL_EV_RESERVE)->u.reserve;
	ev->reservation = offload->reservation;
	memcpy(ev->model, offload->version->model->name, sizeof(ev->model));
	memcpy(ev->replica, offload->replica, sizeof(ev->replica));
	ev->shard = shard;
	ev->num_shards = offload->num_shards;
	ev->version = offload->version->id;
	ev->bytes = layout->bytes;
	ev->num_chunks = layout->num_chunks;
	ev->layout = layout->layout;
	ev->manifest = layout->manifest;
	ev->source_sid = session_like(offload->version, shard, agent);
	ev->copy_why = offload_say_why(offload);
	return true;
}

/* Whoever was asked for the shard, and has not become a member, need not keep anything. */
static void
unask(struct refsrv *server, struct offload *offload, uint32_t shard, bool tell)
{
	struct offload_shard *state = &offload->shards[shard];
	struct agent *agent = state->agent_inc == 0 ? NULL : agent_find(server, state->agent_inc);

	if (agent != NULL && agent->num_reserved > 0)
		agent->num_reserved--;
	if (agent != NULL && agent->state != AGENT_DEAD && tell && state->sid == 0)
		agent_event(agent, CTL_EV_RELEASE)->u.release = (struct ctl_ev_release){
			.reservation = offload->reservation,
			.shard = shard,
		};
	/* Who borrows it from there needs another. */
	if (offload->version != NULL)
		model_dirty(offload->version->model);
	state->agent_inc = 0;
	state->sid = 0;
	state->registered = false;
}

static void
offload_refuse(struct offload_shard *shard, uint64_t agent_inc)
{
	shard->refused = th_realloc(shard->refused, shard->num_refused + 1, sizeof(uint64_t));
	shard->refused[shard->num_refused++] = agent_inc;
}

/* ---- beginning and ending ------------------------------------------------------------------- */

void
offload_free(struct refsrv *server, struct offload *offload)
{
	for (uint32_t i = 0; i < offload->num_shards; i++) {
		unask(server, offload, i, true);
		free(offload->shards[i].refused);
	}
	free(offload->shards);
	free(offload);
}

/* The group goes: its members are released, who reads from it is moved or may end. */
static void
let_group_go(struct refsrv *server, struct offload *offload, const char *why)
{
	struct group *group = offload->group;

	if (group == NULL)
		return;
	offload->group = NULL;
	group->offload = NULL;
	group_break(server, group, why);
	/* When it was broken before it may go now. */
	model_dirty(group->model);
}

void
offload_end(struct refsrv *server, struct offload *offload, const char *why)
{
	struct model *model = offload->version->model;

	DL_DELETE(model->retention.offloads, offload);
	offload->version = NULL;
	let_group_go(server, offload, why);
	offload_free(server, offload);
	model_dirty(model);
}

void
offload_version_gone(const struct version *version)
{
	struct offload *offload;

	DL_FOREACH(version->model->retention.offloads, offload)
	{
		if (offload->version == version) {
			offload->version = NULL;
			model_dirty(version->model);
		}
	}
}

/* A rescue that has failed is tried for as long as it takes: the log has said so once. */
static bool
is_repetition(const struct version *version, enum offload_why why)
{
	return why != OFFLOAD_GIVEN_UP && version->risk_raised;
}

static void
offload_fail(struct refsrv *server, struct offload *offload)
{
	const struct version *version = offload->version;
	struct th_err err;

	if (offload->why == OFFLOAD_FETCH) {
		fetch_failed(
			offload, offload->text[0] == '\0' ? "its host is gone" : offload->text);
		offload_end(server, offload, "it cannot be brought");
		return;
	}
	if (offload->why == OFFLOAD_BORROW) {
		borrow_failed(offload,
			offload->text[0] == '\0' ? "it takes no copy of it" : offload->text);
		offload_end(server, offload, "it cannot be brought");
		return;
	}
	TH_MARK(c08_no_memory_anywhere);
	th_fail(&err, TH_E_NOMEM_RETAIN,
		"version %" PRIu64
		" of %.100s is retained, this is its last copy, and no agent can "
		"keep it in host memory%s%.200s; raise offload-limit of an agent, wait until "
		"another "
		"replica has the version, or give it up (THC_FORCE)",
		version->id.version, version->model->name, offload->text[0] == '\0' ? "" : ": ",
		offload->text);
	if (!is_repetition(version, offload->why))
		event_log(server, EVENT_WARN, version->model->name, "", "%s", err.text);
	last_copy_offload_failed(version, err.code, err.text);
	offload_rules_failed(server, offload);
	offload_end(server, offload, "not all shards found memory");
}

static bool
offload_ask_all(struct refsrv *server, struct offload *offload)
{
	for (uint32_t i = 0; i < offload->num_shards; i++) {
		if (offload->shards[i].agent_inc == 0 && !offload_ask(server, offload, i)) {
			offload_fail(server, offload);
			return false;
		}
	}
	return true;
}

static struct offload *
offload_new(struct refsrv *server, struct version *version, enum offload_why why,
	const struct group *group)
{
	struct offload *offload = th_calloc(1, sizeof(*offload));

	offload->reservation = epoch_next_id(server);
	offload->version = version;
	offload->why = why;
	offload->state = OFFLOAD_RESERVING;
	memcpy(offload->replica, group->replica, sizeof(offload->replica));
	offload->num_shards = version->num_shards;
	offload->shards = th_calloc(offload->num_shards, sizeof(*offload->shards));
	offload->deadline_ns = INT64_MAX;
	offload->spare_ns = INT64_MAX;
	DL_APPEND(version->model->retention.offloads, offload);
	model_dirty(version->model);
	return offload;
}

void
offload_begin_fetch(
	struct refsrv *server, const struct group *group, struct version *version, bool pinned)
{
	struct offload *offload = offload_new(server, version, OFFLOAD_FETCH, group);

	offload->pinned = pinned;
	for (uint32_t i = 0; i < group->num_shards; i++)
		offload->shards[i].place_inc = group->members[i]->agent->inc;
	(void)offload_ask_all(server, offload);
}

void
offload_begin_borrow(struct refsrv *server, const struct agent *agent, struct version *version)
{
	struct offload *offload =
		offload_new(server, version, OFFLOAD_BORROW, version->copies->group);

	offload->pinned = true;
	for (uint32_t i = 0; i < offload->num_shards; i++)
		offload->shards[i].place_inc = agent->inc;
	(void)offload_ask_all(server, offload);
}

struct offload *
offload_begin(
	struct refsrv *server, struct copy *source, enum offload_why why, const struct agent *avoid)
{
	struct version *version = source->version;
	struct offload *offload = offload_of(version);

	/* A complete one is enough, but when it is the one that has to go, or may be lost. */
	if (offload != NULL && (offload->state != OFFLOAD_READY ||
				       (offload->group != source->group && stands(offload))))
		return offload;
	offload = offload_new(server, version, why, source->group);
	offload->source_id = source->id;
	offload->avoid_inc = avoid == NULL ? 0 : avoid->inc;
	offload->deadline_ns = th_deadline_ns(server->now_ns, server->config.offload_ns);
	TH_MARK(offload_begun);
	if (!is_repetition(version, why))
		event_log(server, EVENT_INFO, version->model->name, "",
			"version %" PRIu64 " of %s is being copied to host memory from replica %s",
			version->id.version, version->model->name, offload->replica);
	return offload_ask_all(server, offload) ? offload : NULL;
}

/* The group is broken, or could not replicate: another one, while there is something to copy. */
static void
again(struct refsrv *server, struct offload *offload, const char *why)
{
	char text[TH_CTL_TEXT_BYTES];

	TH_MARK(offload_tried_again);
	snprintf(text, sizeof(text), "%s", why);
	memcpy(offload->text, text, sizeof(text));
	offload->explained = false;
	if (++offload->attempts >= ATTEMPTS_MAX) {
		offload_fail(server, offload);
		return;
	}
	let_group_go(server, offload, text);
	if (offload->version == NULL)
		return;
	for (uint32_t i = 0; i < offload->num_shards; i++)
		unask(server, offload, i, true);
	offload->reservation = epoch_next_id(server);
	offload->state = OFFLOAD_RESERVING;
	(void)offload_ask_all(server, offload);
}

/* ---- what agents answer --------------------------------------------------------------------- */

struct group *
offload_join(struct refsrv *server, struct model *model, const struct agent *agent,
	const struct ctl_open *open, struct th_err *err)
{
	struct offload *offload = model == NULL ? NULL : model->retention.offloads;

	while (offload != NULL && offload->reservation != open->reservation)
		offload = offload->next;
	if (offload == NULL || offload->version == NULL || offload->state != OFFLOAD_RESERVING ||
		open->num_shards != offload->num_shards ||
		open->lineage != offload->version->id.lineage ||
		strcmp(open->replica, offload->replica) != 0 ||
		offload->shards[open->shard].agent_inc != agent->inc ||
		(offload->shards[open->shard].sid != 0 && !TH_PLANT(reservation_taken_twice))) {
		th_fail(err, TH_E_STATE,
			"reservation %" PRIu64 " of shard %u is not one of agent %s, or no longer: "
			"release its memory",
			open->reservation, open->shard, agent->info.node);
		return NULL;
	}
	if (offload->group == NULL) {
		offload->group = group_new(server, model, open);
		offload->group->reservation = offload->reservation;
		offload->group->offload = offload;
	}
	return offload->group;
}

void
offload_joined(struct member *member)
{
	struct offload *offload = member->group->offload;

	if (offload != NULL)
		offload->shards[member->shard].sid = member->sid;
}

int
offload_register_check(
	const struct member *member, const struct ctl_register *reg, struct th_err *err)
{
	const struct offload *offload = member->group->offload;

	if (offload == NULL || offload->version == NULL)
		return member->group->reservation == 0
			       ? 0
			       : th_fail(err, TH_E_STATE,
					 "reservation %" PRIu64
					 " is no longer wanted: release its memory",
					 member->group->reservation);
	const struct shard_layout *layout = &offload->version->shards[member->shard];
	/* The version holds its manifest, be it only expected after the loss of a server. */
	if (th_hash_equal(layout->layout, reg->layout) && layout->num_chunks == reg->num_chunks &&
		th_hash_equal(layout->manifest, reg->manifest))
		return 0;
	return th_fail(err, TH_E_LAYOUT,
		"shard %u of the offload copy of %s is laid out otherwise than it was asked for",
		member->shard, member->group->replica);
}

void
offload_registered(const struct member *member)
{
	struct offload *offload = member->group->offload;

	if (offload == NULL)
		return;
	offload->shards[member->shard].registered = true;
	model_dirty(member->group->model);
}

/* Its agent closes the session now, which says nothing. */
void
offload_register_refused(const struct member *member, const struct th_err *err)
{
	struct offload *offload = member->group->offload;

	if (offload == NULL)
		return;
	snprintf(offload->text, sizeof(offload->text), "node %.64s: %.400s",
		member->agent->info.node, err->text);
	offload->explained = true;
}

int
offload_refused(struct refsrv *server, const struct agent *agent,
	const struct ctl_reserved *reserved, struct th_err *err)
{
	struct offload *offload = offload_by_number(server, reserved->reservation);
	char text[TH_CTL_TEXT_BYTES];

	if (offload == NULL || offload->version == NULL || offload->state != OFFLOAD_RESERVING ||
		reserved->shard >= offload->num_shards ||
		offload->shards[reserved->shard].agent_inc != agent->inc ||
		offload->shards[reserved->shard].sid != 0)
		return 0; /* an answer to what is no longer asked */
	if (reserved->code >= 0)
		return th_fail(err, TH_E_INVALID,
			"agent %s refuses reservation %" PRIu64 " without a code", agent->info.node,
			reserved->reservation);
	TH_MARK(c08_refused_by_one);
	memcpy(text, reserved->text, sizeof(text));
	text[sizeof(text) - 1] = '\0';
	snprintf(
		offload->text, sizeof(offload->text), "node %.64s: %.200s", agent->info.node, text);
	/* It hears of the RELEASE first. */
	bool asked_again = !for_a_place(offload) && reserved->code == TH_E_NOMEM_RETAIN &&
			   offload_make_room(server, agent);
	if (!asked_again)
		offload_refuse(&offload->shards[reserved->shard], agent->inc);
	unask(server, offload, reserved->shard, false);
	if (!offload_ask(server, offload, reserved->shard))
		offload_fail(server, offload);
	return 0;
}

/* ---- of a former server life ----------------------------------------------------------------- */

/* The reverse of offload_say_why. */
static void
offload_hear_why(struct offload *offload, enum ctl_copy_why why)
{
	static const enum offload_why meant[] = {
		[CTL_COPY_UNSAID] = OFFLOAD_REJOINED,
		[CTL_COPY_LAST] = OFFLOAD_GIVEN_UP,
		[CTL_COPY_SPOT] = OFFLOAD_RESCUE,
		[CTL_COPY_DRAIN] = OFFLOAD_DRAIN,
		[CTL_COPY_PREFETCH] = OFFLOAD_FETCH,
		[CTL_COPY_SEED] = OFFLOAD_FETCH,
		[CTL_COPY_BORROW] = OFFLOAD_BORROW,
	};

	offload->why = meant[why];
	offload->pinned = why == CTL_COPY_PREFETCH || why == CTL_COPY_BORROW;
}

void
offload_rejoined(struct refsrv *server, struct group *group)
{
	struct copy *copy = group->copy;
	struct offload *offload;

	if (copy == NULL) {
		group_break(server, group, "the offload copy holds nothing");
		return;
	}
	TH_MARK(offload_rejoined);
	offload = th_calloc(1, sizeof(*offload));
	offload->reservation = group->reservation;
	offload->version = copy->version;
	offload->rejoined = true;
	offload_hear_why(offload, group->copy_why);
	offload->state = copy->state == COPY_READY ? OFFLOAD_READY : OFFLOAD_FILLING;
	memcpy(offload->replica, group->replica, sizeof(offload->replica));
	offload->group = group;
	group->offload = offload;
	offload->num_shards = group->num_shards;
	offload->shards = th_calloc(offload->num_shards, sizeof(*offload->shards));
	for (uint32_t i = 0; i < offload->num_shards; i++) {
		struct member *member = group->members[i];
		offload->shards[i].agent_inc = member->agent->inc;
		/* Where it was wanted nobody says: where it is will do. */
		offload->shards[i].place_inc = member->agent->inc;
		offload->shards[i].sid = member->sid;
		offload->shards[i].registered = true;
		member->agent->num_reserved++;
	}
	offload->deadline_ns = for_a_place(offload)
				       ? INT64_MAX
				       : th_deadline_ns(server->now_ns, server->config.offload_ns);
	offload->spare_ns = INT64_MAX;
	DL_APPEND(group->model->retention.offloads, offload);
	model_dirty(group->model);
}

/* ---- going on ------------------------------------------------------------------------------- */

/* Who was asked and is suspect or gone is replaced; false: the offload is over, or begins anew. */
static bool
watch_asked(struct refsrv *server, struct offload *offload)
{
	for (uint32_t i = 0; i < offload->num_shards; i++) {
		struct offload_shard *shard = &offload->shards[i];
		const struct agent *agent = agent_find(server, shard->agent_inc);
		if (shard->sid != 0 || (agent != NULL && agent->state == AGENT_ACTIVE))
			continue;
		snprintf(offload->text, sizeof(offload->text), "node %.64s does not answer",
			agent == NULL ? "?" : agent->info.node);
		offload_refuse(shard, shard->agent_inc);
		unask(server, offload, i, true);
		if (!offload_ask(server, offload, i)) {
			offload_fail(server, offload);
			return false;
		}
	}
	return true;
}

static void
fill_when_registered(struct refsrv *server, struct offload *offload)
{
	for (uint32_t i = 0; i < offload->num_shards; i++) {
		if (!offload->shards[i].registered)
			return;
	}
	TH_ASSERT(offload->group->state == GROUP_LIVE);
	offload->state = OFFLOAD_FILLING;
	op_begin_offload(server, offload->group, offload->version);
}

/* True: it is complete from now on. */
static bool
completed(struct refsrv *server, struct offload *offload)
{
	const struct op *op = offload->state == OFFLOAD_FILLING ? offload->group->ops : NULL;

	if (op == NULL || op->state != OP_DONE || op->code != 0 ||
		offload->group->state == GROUP_BROKEN)
		return false;
	offload->state = OFFLOAD_READY;
	TH_MARK(offload_ready);
	if (offload->why == OFFLOAD_FETCH)
		fetch_completed(offload);
	event_log(server, EVENT_INFO, offload->version->model->name, "",
		"version %" PRIu64 " of %s is in host memory: the offload copy of replica %s is "
		"complete",
		offload->version->id.version, offload->version->model->name, offload->replica);
	model_dirty(offload->version->model);
	return true;
}

static void
making(struct refsrv *server, struct offload *offload)
{
	const struct group *group = offload->group;

	/* First: who waited for it may have given up its own copy in this very step. */
	if (completed(server, offload))
		return;
	if (!offload_needed(server, offload)) {
		TH_MARK(offload_unnecessary);
		offload_end(server, offload, "it is not needed any more");
		return;
	}
	if (group != NULL && group->state == GROUP_BROKEN) {
		again(server, offload, offload->explained ? offload->text : group->broken_why);
		return;
	}
	if (server->now_ns >= offload->deadline_ns) {
		snprintf(offload->text, sizeof(offload->text), "it took too long");
		offload_fail(server, offload);
		return;
	}
	struct retention *retention = &offload->version->model->retention;
	retention->wake_ns = th_min_i64(retention->wake_ns, offload->deadline_ns);
	if (offload->state == OFFLOAD_RESERVING) {
		/* An agent that was asked may become suspect without a word. */
		retention->wake_ns = th_min_i64(retention->wake_ns,
			th_deadline_ns(server->now_ns, server->config.suspect_ns));
		if (watch_asked(server, offload))
			fill_when_registered(server, offload);
		return;
	}
	const struct op *op = group->ops;
	if (op->state == OP_DONE)
		again(server, offload, op->text);
}

void
offload_settle(struct refsrv *server, struct model *model)
{
	struct offload *offload, *next;

	fetch_survey(model);
	DL_FOREACH_SAFE(model->retention.offloads, offload, next)
	{
		if (offload->version == NULL) {
			DL_DELETE(model->retention.offloads, offload);
			let_group_go(server, offload, "the version is gone");
			offload_free(server, offload);
		} else if (offload->state == OFFLOAD_READY) {
			offload_release(server, offload);
		} else {
			making(server, offload);
		}
	}
	offload_rescue(server, model);
	fetch_settle(server, model);
	borrow_settle(server, model);
}
