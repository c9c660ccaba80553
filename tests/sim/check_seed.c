/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_seed - C17: a version comes into a datacenter once.
 *
 * It is judged when the first chunk of a reader lands, by what groups hold and by the legs that
 * run; no server is asked, but legs are numbered in the order of their grants. A reader does not
 * take from another datacenter what a whole group in its own has, or was granted before. Who
 * updates does not read behind the seed of its datacenter, granted before and getting on: the new
 * version is not there yet, also to those who have called in the same instant.
 *
 * What a server may not know, or what it avoids for good reasons, is not looked at: this is certain
 * where nothing goes wrong, and some time after all that has ended. A leg that has failed makes its
 * pair of agents last choice for a while, and all that is about to change may have been otherwise
 * when the server chose.
 */
#include <inttypes.h>
#include <string.h>

#include "tests/sim/check.h"

#define RECOVERY_NS (25 * SEC)
#define BLOCK_NS (10 * SEC) /* a pair may be blocked for so long after a failure */
#define KNOWN_NS (100 * MS) /* from the choice of a source until its reader begins */
#define SKIP_SHARE 2        /* of config.skip_ns: that much of it is certain */

static struct {
	bool quiet; /* all the time */
	int64_t failed_ns;
} record;

void
check_seed_start(void)
{
	const struct options *o = &world.options;

	record.failed_ns = -BLOCK_NS;
	record.quiet = o->quiet && o->server_restart_ns == 0 && o->diverge_permille == 0 &&
		       o->cancel_permille == 0 && o->drain_ns == 0;
}

void
check_seed_leg_failed(void)
{
	record.failed_ns = world.now_ns;
}

static bool
certain(void)
{
	const struct options *o = &world.options;

	return o->servers == 1 && o->datacenters > 1 && o->layout_percent == 0 &&
	       o->other_bytes_percent == 0 && o->tickets_max == 0 &&
	       world.now_ns > record.failed_ns + BLOCK_NS && !world.closing &&
	       (record.quiet || (world.calm && world.now_ns > world.calm_ns + RECOVERY_NS));
}

/* What brings, or has brought, this part. */
static const struct leg *
leg_to(const struct handle *handle)
{
	const struct leg *leg = world.legs;

	while (leg != NULL &&
		(leg->to != handle || leg->to_gen != handle->part.gen || leg->stopping))
		leg = leg->next;
	return leg;
}

static bool
same_bytes(const struct memory *a, const struct memory *b)
{
	return memcmp(a->tokens[0], b->tokens[0], sizeof(a->tokens[0])) == 0;
}

/* The reader itself, or what reads from it. */
static bool
is_below(const struct handle *handle, const struct handle *reader)
{
	for (uint32_t hops = 0; handle != NULL && hops < GROUPS_MAX * SHARDS_MAX; hops++) {
		const struct leg *leg = leg_to(handle);
		if (handle == reader)
			return true;
		handle = leg == NULL || leg->over ? NULL : leg->from;
	}
	return false;
}

/* No leg has brought anything to the same part before. */
static bool
is_first(const struct leg *leg)
{
	for (const struct leg *other = world.legs; other != NULL; other = other->next) {
		if (other != leg && other->to == leg->to && other->to_gen == leg->to_gen)
			return false;
	}
	return true;
}

/*
 * No leg above it has just ended: until the server has heard of that, what is below may have lost
 * its source.
 */
static bool
is_fed(const struct leg *leg, const struct leg *than)
{
	struct th_version id;
	int64_t since_ns;

	for (uint32_t hops = 0; leg != NULL && hops < GROUPS_MAX * SHARDS_MAX; hops++) {
		if (leg->over)
			return leg->to->worker != NULL &&
			       check_list_keeps(leg->to->worker->group, &id, &since_ns) &&
			       than->begun_ns >= since_ns + KNOWN_NS;
		if (leg->from == NULL || (leg->way != LEG_LOCAL && !leg->serving))
			return false;
		leg = leg_to(leg->from);
	}
	return true;
}

/* It is being filled, by a leg granted before that one, and goes on. */
static bool
fills(const struct worker *worker, const struct leg *than, int64_t *ret_since_ns)
{
	const struct handle *handle = worker->handle;
	const struct leg *leg;

	if (worker->state != W_BUSY || handle == NULL || !handle->part.there ||
		handle->part.published || handle->part.prefix == 0 || worker->call.cancelled ||
		(worker->call.kind != CTL_OP_REPLICATE && worker->call.kind != CTL_OP_UPDATE))
		return false;
	leg = leg_to(handle);
	/* What is over the server may not have heard of; when it has, the group has all of it. */
	if (leg == NULL || leg->over || leg->begun_ns < worker->call.submitted_ns ||
		leg->server_number > than->server_number || !is_fed(leg, than))
		return false;
	*ret_since_ns = th_max_i64(*ret_since_ns, leg->begun_ns);
	return true;
}

/*
 * A leg of a filling member comes from elsewhere, and its members have had no other; and it is not
 * complete, so it never was.
 */
static bool
is_seed(const struct group *group)
{
	bool far = false, partial = false;

	for (uint32_t i = 0; i < group->shards; i++) {
		const struct handle *handle = group->workers[i].handle;
		const struct leg *leg = handle == NULL ? NULL : leg_to(handle);
		if (leg != NULL && !is_first(leg))
			return false;
		far = far || (leg != NULL && leg->host->datacenter != leg->from_host->datacenter);
		partial = partial || (handle != NULL && handle->part.prefix < world.options.chunks);
	}
	return far && partial;
}

enum has { HAS_NOT, HAS_SOME, HAS_ALL };

/* Whether all of this group is where the reader's is, and has what the leg brings. */
static enum has
has_near(const struct group *group, const struct leg *leg, int64_t *ret_since_ns)
{
	const struct group *reader = leg->to->worker->group;
	enum has has = HAS_ALL;
	struct th_version id;

	*ret_since_ns = 0;
	if (group == reader || group->model != reader->model || group->shards != reader->shards)
		return HAS_NOT;
	for (uint32_t i = 0; i < group->shards; i++) {
		if (group->workers[i].host->datacenter != reader->workers[i].host->datacenter)
			return HAS_NOT;
	}
	if (!check_list_keeps(group, &id, ret_since_ns)) {
		has = HAS_SOME;
		for (uint32_t i = 0; i < group->shards; i++) {
			if (!fills(&group->workers[i], leg, ret_since_ns))
				return HAS_NOT;
		}
	}
	const struct handle *part = group->workers[leg->to->worker->shard].handle;
	if (!part->part.there || !same_bytes(part->memory, leg->from_memory))
		return HAS_NOT;
	return has;
}

/* A copy with a part where the reader's group is comes before one that is near. */
static bool
shares_host(const struct leg *leg)
{
	const struct group *reader = leg->to->worker->group;

	if (reader->shards == 1)
		return false;
	if (leg->from->worker == NULL)
		return true;
	for (uint32_t i = 0; i < reader->shards; i++) {
		if (leg->from->worker->group->workers[i].host == reader->workers[i].host)
			return true;
	}
	return false;
}

static void
is_not_the_second(const struct leg *leg)
{
	const struct worker *reader = leg->to->worker;
	int64_t since_ns;

	if (shares_host(leg))
		return;
	for (uint32_t i = 0; i < world.options.groups; i++) {
		const struct group *group = &world.groups[i];
		enum has has = has_near(group, leg, &since_ns);
		if (has == HAS_NOT || (has == HAS_ALL && leg->begun_ns < since_ns + KNOWN_NS) ||
			is_below(group->workers[reader->shard].handle, leg->to))
			continue;
		sim_fail("C17",
			"group %u shard %u reads from host %u of datacenter %u, and group %u of "
			"its own datacenter %u %s",
			reader->group->index, reader->shard, leg->from_host->process.index,
			leg->from_host->datacenter, i, leg->host->datacenter,
			has == HAS_ALL ? "has the same" : "is getting the same");
	}
}

/* Whether the seed was to be waited for: it alone is near, and has not taken too long. */
static void
skips(const struct leg *leg)
{
	const struct worker *reader = leg->to->worker;
	const struct group *seed = NULL;
	int64_t since_ns;

	/* Published near, and its workers may not have been told so yet. */
	if (leg->from->part.published)
		return;
	for (uint32_t i = 0; i < world.options.groups; i++) {
		const struct group *group = &world.groups[i];
		enum has has = has_near(group, leg, &since_ns);
		if (has == HAS_ALL)
			return;
		if (has == HAS_NOT || !is_seed(group))
			continue;
		if (seed != NULL ||
			world.now_ns > since_ns + 4 * world.options.crawl_ns / SKIP_SHARE)
			return;
		seed = group;
	}
	if (seed != NULL)
		sim_fail("C17",
			"group %u shard %u updates to what group %u is still bringing into "
			"datacenter %u",
			reader->group->index, reader->shard, seed->index, leg->host->datacenter);
}

/* Whoever is moved from a source that is given up goes to an idle one, wherever it is. */
void
check_seed_chunk(const struct leg *leg)
{
	bool readable = leg->way == LEG_LOCAL || leg->serving;

	if (leg->to->worker == NULL || !readable || leg->over || leg->stopping ||
		leg->to->part.prefix > 0 || !certain() || !is_first(leg))
		return;
	if (leg->host->datacenter != leg->from_host->datacenter)
		is_not_the_second(leg);
	else if (leg->to->worker->call.kind == CTL_OP_UPDATE)
		skips(leg);
}
