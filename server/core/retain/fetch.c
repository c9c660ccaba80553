/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch - see fetch.h.
 */
#include "server/core/retain/fetch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/name.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/cluster/node_drain.h"
#include "server/core/model/content.h"
#include "server/core/model/copy.h"
#include "server/core/model/model.h"
#include "server/core/rejoin/rejoin.h"
#include "server/core/retain/borrow.h"
#include "server/core/retain/offload.h"
#include "server/core/retain/offload_rules.h"
#include "server/core/retain/retain.h"
#include "server/core/route/dc_seed.h"
#include "server/core/route/route.h"
#include "server/core/view/event_log.h"

#define GIVEN_UP_MAX 2u /* in a row; the next one is finished */

static const struct th_version none = {.version = TH_NO_VERSION};

/* ---- who wants versions to be brought ------------------------------------------------------- */

/* All members have this flag, and can take bytes. */
static bool
all_have(const struct group *group, uint32_t flags)
{
	if (group->state != GROUP_LIVE || group->reservation != 0 || group->rejoining)
		return false;
	for (uint32_t i = 0; i < group->num_shards; i++) {
		const struct member *member = group->members[i];
		if (member == NULL || member->closed || member->closing || !member->registered ||
			(member->flags & flags) == 0)
			return false;
	}
	return true;
}

static bool
prefetches(const struct group *group)
{
	return all_have(group, CTL_OPEN_PREFETCH);
}

/* Whoever holds nothing, and has never called update, is about to replicate, and does not wait. */
static bool
fetches(const struct group *group)
{
	return (group->copy != NULL || group->fetch.name[0] != '\0') &&
	       all_have(group, CTL_OPEN_PREFETCH | CTL_OPEN_SEED);
}

static struct th_version
held_by(const struct group *group)
{
	return group->copy == NULL || group->copy->content->refused ? none
								    : group->copy->version->id;
}

static bool
is_newer(struct th_version version, struct th_version than)
{
	return !th_version_none(version) &&
	       (th_version_none(than) || th_version_compare(version, than) > 0);
}

/* The tensors of the group can take it: else its update will say which does not fit. */
static bool
layouts_fit(const struct group *group, const struct version *version)
{
	if (version->num_shards != group->num_shards)
		return false;
	for (uint32_t i = 0; i < group->num_shards; i++) {
		if (!th_hash_equal(version->shards[i].layout, group->members[i]->reg.layout))
			return false;
	}
	return true;
}

/* ---- what is there -------------------------------------------------------------------------- */

static bool
is_whole(const struct copy *copy, const struct group *group)
{
	return copy->group != group && copy->state == COPY_READY && !copy->draining &&
	       copy_stands(copy) && content_listed(copy) && copy->num_parts == group->num_shards;
}

/* Each shard of it is on the host of the group's member of that shard. */
static bool
on_its_hosts(const struct copy *copy, const struct group *group)
{
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		const struct member *member = copy->parts[i].member;
		if (member == NULL || member->agent != group->members[i]->agent)
			return false;
	}
	return true;
}

/* The newest that is newer than what it holds, and whole on its hosts; NULL: there is none. */
static struct version *
ready_of(const struct group *group, struct th_version at_most)
{
	struct version *best = NULL;
	const struct member *member;

	/* Whatever is on all of its hosts is on this one. */
	DL_FOREACH2(group->members[0]->agent->members, member, agent_next)
	{
		const struct copy *copy = member->group->copy;
		if (copy == NULL || copy->version->model != group->model || !is_whole(copy, group))
			continue;
		struct version *version = copy->version;
		if (is_newer(version->id, held_by(group)) && !is_newer(version->id, at_most) &&
			(best == NULL || is_newer(version->id, best->id)) &&
			layouts_fit(group, version) && on_its_hosts(copy, group))
			best = version;
	}
	return best;
}

/* The same of its datacenter. */
static struct version *
near_of(const struct group *group, struct th_version at_most)
{
	struct version *head = group->model->versions, *version = head == NULL ? NULL : head->prev;
	const struct copy *copy;

	for (; version != NULL && is_newer(version->id, held_by(group));
		version = version == head ? NULL : version->prev) {
		if (is_newer(version->id, at_most))
			continue;
		DL_FOREACH(version->copies, copy)
		{
			if (is_whole(copy, group) && dc_seed_near(copy, group))
				return version;
		}
	}
	return NULL;
}

/* Where the group takes it from, by its flags. */
static struct version *
there_for(const struct group *group, struct th_version at_most)
{
	return prefetches(group) ? ready_of(group, at_most) : near_of(group, at_most);
}

/* ---- copies that are brought ---------------------------------------------------------------- */

/*
 * Of one that has come back from a former server life an older agent does not say what it was made
 * for. One that is lent may be taken, too.
 */
static bool
is_fetch(const struct offload *offload)
{
	return offload->why == OFFLOAD_FETCH || offload->why == OFFLOAD_BORROW ||
	       offload->why == OFFLOAD_REJOINED;
}

/* It is for who wants it alone, as far as is known: retention does not need it. */
static bool
only_brought(struct refsrv *server, const struct offload *offload)
{
	return offload->why == OFFLOAD_FETCH ||
	       (offload->why == OFFLOAD_REJOINED && !retain_names(server, offload->version));
}

/* It is, or will be, where the group takes it from. */
static bool
serves(struct refsrv *server, const struct offload *offload, const struct group *group)
{
	bool hosts = prefetches(group);

	if (offload->num_shards != group->num_shards)
		return false;
	for (uint32_t i = 0; i < offload->num_shards; i++) {
		const struct agent *agent = agent_find(server, offload->shards[i].agent_inc);
		const struct agent *own = group->members[i]->agent;
		if (agent == NULL || (hosts ? agent != own : !agent_near(agent, own)))
			return false;
	}
	return true;
}

/*
 * The groups that it may serve. As many hosts as prefetch have a copy each, so not every copy looks
 * at every group: where all groups that want one want it on their hosts, those of its first host.
 */
struct walk {
	bool begun;
	struct group *group;
	const struct member *member;
};

static struct group *
walk_next(struct refsrv *server, const struct offload *offload, struct walk *walk)
{
	const struct model *model = offload->version->model;

	if (!walk->begun) {
		const struct agent *agent = agent_find(server, offload->shards[0].agent_inc);
		walk->begun = true;
		walk->group = model->retention.seeds ? model->groups : NULL;
		walk->member = agent == NULL || walk->group != NULL ? NULL : agent->members;
	}
	struct group *group = walk->group;
	if (group != NULL) {
		walk->group = group->next;
		return group;
	}
	while (walk->member != NULL) {
		const struct member *member = walk->member;
		walk->member = member->agent_next;
		if (member->shard == 0 && member->group->model == model)
			return member->group;
	}
	return NULL;
}

void
fetch_survey(struct model *model)
{
	const struct group *group;

	model->retention.seeds = false;
	DL_FOREACH(model->groups, group)
	{
		for (uint32_t i = 0; group->reservation == 0 && i < group->num_shards; i++) {
			const struct member *member = group->members[i];
			if (member != NULL && (member->flags & CTL_OPEN_SEED) != 0 &&
				(member->flags & CTL_OPEN_PREFETCH) == 0)
				model->retention.seeds = true;
		}
	}
}

/* The version that the group follows by name; none: it is not there. */
static struct th_version
followed_by(struct refsrv *server, const struct group *group)
{
	const char *name = group->fetch.name[0] == '\0' ? "latest" : group->fetch.name;
	struct th_spec spec;

	return th_spec_parse(name, &spec) == 0 ? model_resolve(server, group->model, &spec) : none;
}

static bool
group_wants(struct refsrv *server, const struct group *group, const struct offload *offload)
{
	struct th_version id = offload->version->id;

	if (!fetches(group) || !is_newer(id, held_by(group)) || !serves(server, offload, group))
		return false;
	struct th_version followed = followed_by(server, group);
	if (is_newer(id, followed))
		return false;
	return offload->state != OFFLOAD_READY || there_for(group, followed) == offload->version;
}

bool
fetch_wanted(struct refsrv *server, const struct offload *offload)
{
	struct walk walk = {0};
	const struct group *group;

	if (!is_fetch(offload))
		return false;
	for (uint32_t i = 0; i < offload->num_shards; i++) {
		const struct agent *agent = agent_find(server, offload->shards[i].agent_inc);
		if (agent != NULL && (node_drains(agent) || agent->leaving))
			return false;
	}
	while ((group = walk_next(server, offload, &walk)) != NULL) {
		if (group_wants(server, group, offload))
			return true;
	}
	return false;
}

void
fetch_completed(const struct offload *offload)
{
	struct refsrv *server = offload->version->model->server;
	struct walk walk = {0};
	struct group *group;

	while ((group = walk_next(server, offload, &walk)) != NULL) {
		if (fetches(group) && serves(server, offload, group))
			group->fetch.given_up = 0;
	}
}

/* Not again for this version, until the group has taken what is ready meanwhile. */
static void
remember_failure(struct group *group, struct th_version version, const char *why)
{
	group->fetch.failed = version;
	/* What is given up is not ready any more. */
	group->fetch.failed_beside =
		th_version_compare(group->fetch.ready, version) == 0 ? none : group->fetch.ready;
	snprintf(group->fetch.why, sizeof(group->fetch.why), "not brought before: %s", why);
}

void
fetch_failed(const struct offload *offload, const char *why)
{
	const struct version *version = offload->version;
	struct group *group;

	TH_MARK(fetch_failed);
	event_log(version->model->server, EVENT_INFO, version->model->name, "",
		"version %" PRIu64 " of %s is not brought to replica %s before it asks: %s",
		version->id.version, version->model->name, offload->replica, why);
	/* Who asked for it is known by its places, though some may have refused. */
	DL_FOREACH(version->model->groups, group)
	{
		/* Whoever follows another version by then remembers what became of that. */
		bool its = fetches(group) && offload->num_shards == group->num_shards &&
			   th_version_compare(
				   followed_by(version->model->server, group), version->id) == 0;
		for (uint32_t i = 0; its && i < group->num_shards; i++)
			its = offload->shards[i].place_inc == group->members[i]->agent->inc;
		if (its)
			remember_failure(group, version->id, why);
	}
}

void
fetch_again(const struct agent *agent)
{
	const struct member *member;

	DL_FOREACH2(agent->members, member, agent_next)
	{
		member->group->fetch.failed = none;
	}
}

static bool
has_failed(const struct group *group, const struct version *version)
{
	return th_version_compare(group->fetch.failed, version->id) == 0 &&
	       th_version_compare(group->fetch.failed_beside, group->fetch.ready) == 0;
}

/* Retention does not need it: nothing names its version, or others have it, too. */
static bool
is_spare(struct refsrv *server, const struct offload *offload)
{
	const struct copy *own = offload->group == NULL ? NULL : offload->group->copy, *copy;

	if (own == NULL || own->state != COPY_READY)
		return true;
	for (uint32_t i = 0; i < own->num_parts; i++) {
		if (own->parts[i].num_readers > 0)
			return false;
	}
	if (!retain_names(server, offload->version))
		return true;
	DL_FOREACH(offload->version->copies, copy)
	{
		if (copy != own && copy->keep == NULL && copy_secure(copy))
			return true;
	}
	return false;
}

static struct offload *
spare_on(struct refsrv *server, const struct agent *agent)
{
	struct model *model;
	struct offload *offload;

	for (model = server->models; model != NULL; model = model->hh.next) {
		DL_FOREACH(model->retention.offloads, offload)
		{
			if (offload->version == NULL || !only_brought(server, offload) ||
				borrow_wanted(offload))
				continue;
			for (uint32_t i = 0; i < offload->num_shards; i++) {
				if (offload->shards[i].agent_inc == agent->inc &&
					is_spare(server, offload))
					return offload;
			}
		}
	}
	return NULL;
}

bool
fetch_gives_room(struct refsrv *server, const struct agent *agent)
{
	struct offload *offload = spare_on(server, agent);

	if (offload == NULL)
		return false;
	TH_MARK(fetched_copy_makes_room);
	fetch_failed(offload, "its memory was needed for a retained version");
	offload_end(server, offload, "its memory is needed for a retained version");
	return true;
}

/* ---- an update ------------------------------------------------------------------------------ */

struct version *
fetch_update(const struct group *group, struct version *version, const char **ret_reason)
{
	*ret_reason = NULL;
	if (!fetches(group) || !layouts_fit(group, version))
		return version;
	struct version *found = there_for(group, version->id);
	if (found == version || TH_PLANT(update_takes_what_is_not_there))
		return version;
	if (found != NULL) {
		TH_MARK(update_takes_what_was_brought_before);
		return found;
	}
	if (has_failed(group, version)) {
		TH_MARK(update_goes_over_the_wire);
		*ret_reason = group->fetch.why;
		return version;
	}
	TH_MARK(update_waits_for_what_is_brought);
	return NULL;
}

struct version *
fetch_follow(struct refsrv *server, const struct group *group, struct version *version)
{
	const char *reason;
	struct version *found = fetch_update(group, version, &reason);

	/* A newer one is brought, for which nobody has said go: this one never will be. */
	if (found == NULL && th_version_compare(followed_by(server, group), version->id) != 0)
		return version;
	return found;
}

/* ---- going on ------------------------------------------------------------------------------- */

/* Some group follows this very version, and takes it from there. */
static bool
is_followed(struct refsrv *server, const struct offload *offload)
{
	struct walk walk = {0};
	const struct group *group;

	while ((group = walk_next(server, offload, &walk)) != NULL) {
		if (fetches(group) && serves(server, offload, group) &&
			th_version_compare(followed_by(server, group), offload->version->id) == 0)
			return true;
	}
	return false;
}

static bool
mostly_there(const struct offload *offload)
{
	const struct copy *copy = offload->group == NULL ? NULL : offload->group->copy;
	uint64_t done = 0, all = 0;

	for (uint32_t i = 0; copy != NULL && i < copy->num_parts; i++) {
		done += copy->parts[i].chunks_done;
		all += copy->version->shards[i].num_chunks;
	}
	return done > all / 2;
}

/* Nobody follows it any more: it is finished, or given up. */
static void
overtaken(struct refsrv *server, struct offload *offload)
{
	struct group *group;
	bool third = false;

	DL_FOREACH(offload->version->model->groups, group)
	{
		third = third || (group->fetch.given_up >= GIVEN_UP_MAX && fetches(group) &&
					 serves(server, offload, group));
	}
	if (third) {
		TH_MARK(fetch_third_is_finished);
		return;
	}
	if (mostly_there(offload)) {
		TH_MARK(fetch_of_which_most_is_there_is_finished);
		return;
	}
	TH_MARK(fetch_is_overtaken);
	DL_FOREACH(offload->version->model->groups, group)
	{
		if (fetches(group) && serves(server, offload, group))
			group->fetch.given_up++;
	}
	offload_end(server, offload, "a newer version is there");
}

static void
end_what_is_overtaken(struct refsrv *server, struct model *model)
{
	struct offload *offload, *next;

	DL_FOREACH_SAFE(model->retention.offloads, offload, next)
	{
		if (offload->version != NULL && only_brought(server, offload) &&
			offload->state != OFFLOAD_READY && !borrow_wanted(offload) &&
			!is_followed(server, offload))
			overtaken(server, offload);
	}
}

/* It is what the group follows, or something older that is finished first: no other is begun. */
static bool
is_for(struct refsrv *server, const struct group *group, const struct offload *offload)
{
	if (!fetches(group) || !serves(server, offload, group) ||
		(TH_PLANT(each_group_brings_its_own) &&
			strcmp(offload->replica, group->replica) != 0))
		return false;
	struct th_version followed = followed_by(server, group), id = offload->version->id;
	return th_version_compare(followed, id) == 0 ||
	       (is_newer(followed, id) && !is_followed(server, offload));
}

static void
mark_those_it_is_for(struct refsrv *server, const struct offload *offload)
{
	struct walk walk = {0};
	struct group *group;

	if (!is_fetch(offload) || offload->version == NULL || offload->state == OFFLOAD_READY)
		return;
	while ((group = walk_next(server, offload, &walk)) != NULL) {
		if (is_for(server, group, offload))
			group->fetch.on_its_way = offload->version->model->retention.looks;
	}
}

static void
tell_ready(struct group *group, struct th_version followed)
{
	const struct version *version = ready_of(group, followed);
	struct th_version id = version == NULL ? none : version->id;

	if (th_version_compare(id, group->fetch.ready) == 0)
		return;
	group->fetch.ready = id;
	for (uint32_t i = 0; i < group->num_shards; i++) {
		const struct member *member = group->members[i];
		agent_event(member->agent, CTL_EV_READY)->u.ready =
			(struct ctl_ev_ready){.sid = member->sid, .version = id};
	}
}

static void
look(struct refsrv *server, struct group *group)
{
	struct th_version followed = followed_by(server, group);

	tell_ready(group, followed);
	if (!is_newer(followed, held_by(group)))
		return;
	struct version *version = version_find(group->model, followed);
	if (version == NULL || !layouts_fit(group, version) || has_failed(group, version) ||
		there_for(group, followed) == version || !route_available(server, version, group) ||
		group->fetch.on_its_way == group->model->retention.looks)
		return;
	/* A worker there reads it across already: it is the seed. */
	if (!prefetches(group) && dc_seed_skips(server, group, version))
		return;
	TH_MARK(fetch_begun);
	offload_begin_fetch(server, group, version, prefetches(group));
	/* The last one, unless nobody has room for it. */
	const struct offload *first = group->model->retention.offloads;
	if (first != NULL)
		mark_those_it_is_for(server, first->prev);
}

void
fetch_settle(struct refsrv *server, struct model *model)
{
	const struct offload *offload;
	struct group *group;

	if (model_warming(server, model))
		return;
	end_what_is_overtaken(server, model);
	model->retention.looks++;
	DL_FOREACH(model->retention.offloads, offload)
	{
		mark_those_it_is_for(server, offload);
	}
	DL_FOREACH(model->groups, group)
	{
		if (fetches(group))
			look(server, group);
	}
}
