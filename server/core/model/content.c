/* SPDX-License-Identifier: Apache-2.0 */
/*
 * content - see content.h.
 *
 * version.contents has those that are not refused, oldest first: the head is the version. Later
 * ones are compared with the head only, because only it is certain to be read. A refused content is
 * kept alive by its copies alone.
 */
#include "server/core/model/content.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/model/blob.h"
#include "server/core/model/copy.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/rejoin/rejoin.h"
#include "server/core/view/event_log.h"

/* ---- life ----------------------------------------------------------------------------------- */

struct content *
content_new(struct refsrv *server, struct version *version, const struct th_hash *attributes)
{
	struct content *content = th_calloc(1, sizeof(*content));

	content->version = version;
	content->shards = th_calloc(version->num_shards, sizeof(*content->shards));
	for (uint32_t i = 0; i < version->num_shards; i++) {
		content->shards[i].attributes = attributes[i];
		blob_acquire(server, attributes[i]);
	}
	DL_APPEND(version->contents, content);
	return content;
}

struct content *
content_rejoin(struct refsrv *server, struct version *version, const struct content_shard *shards,
	bool published, bool refused)
{
	struct content *content = th_calloc(1, sizeof(*content)), *younger;

	content->version = version;
	content->rejoined = true;
	content->published = published;
	content->refused = refused;
	content->shards = th_memdup(shards, version->num_shards * sizeof(*shards));
	for (uint32_t i = 0; i < version->num_shards; i++)
		blob_acquire(server, shards[i].attributes);
	if (refused) {
		snprintf(content->refused_by, sizeof(content->refused_by), "another");
		return content;
	}
	DL_FOREACH(version->contents, younger)
	{
		if (!younger->rejoined)
			break;
	}
	if (younger != NULL)
		DL_PREPEND_ELEM(version->contents, younger, content);
	else
		DL_APPEND(version->contents, content);
	return content;
}

static void
content_free(struct refsrv *server, struct content *content)
{
	TH_ASSERT(content->num_copies == 0);
	for (uint32_t i = 0; i < content->version->num_shards; i++)
		blob_release(server, content->shards[i].attributes);
	if (!content->refused)
		DL_DELETE(content->version->contents, content);
	free(content->shards);
	free(content);
}

void
content_join(struct content *content, struct copy *copy)
{
	copy->content = content;
	content->num_copies++;
}

bool
content_listed(const struct copy *copy)
{
	return copy->content == copy->version->contents;
}

/* ---- comparing ------------------------------------------------------------------------------ */

enum comparison { SAME, DIFFERENT, UNDECIDED };

static enum comparison
content_compare(const struct content *a, const struct content *b, uint32_t *ret_shard)
{
	enum comparison result = SAME;

	for (uint32_t i = 0; i < a->version->num_shards; i++) {
		const struct content_shard *x = &a->shards[i], *y = &b->shards[i];
		if (x->unverified || y->unverified)
			continue;
		if (th_hash_none(x->hash) || th_hash_none(y->hash)) {
			result = TH_PLANT(contents_are_mixed) ? result : UNDECIDED;
		} else if (!th_hash_equal(x->hash, y->hash)) {
			*ret_shard = i;
			return DIFFERENT;
		}
	}
	return result;
}

/* Each shard is known, or its publisher has it and will say. */
static bool
can_be_known(const struct content *content)
{
	for (uint32_t i = 0; i < content->version->num_shards; i++) {
		const struct content_shard *shard = &content->shards[i];
		const struct copy *copy;
		bool found = shard->unverified || !th_hash_none(shard->hash);
		DL_FOREACH(content->version->copies, copy)
		{
			found = found ||
				(copy->content == content && !copy->received && copy_stands(copy));
		}
		if (!found)
			return false;
	}
	return true;
}

bool
content_undecided(const struct content *other, const struct content *begun)
{
	uint32_t shard;

	/* When nobody can say what the begun one was, the other takes its place. */
	return !other->refused && !begun->refused && can_be_known(other) &&
	       content_compare(other, begun, &shard) == UNDECIDED;
}

/* The copy that was published first, or has replaced it: whose bytes these are, for sentences. */
static const struct copy *
oldest_copy(const struct content *content)
{
	const struct copy *copy, *oldest = NULL;

	DL_FOREACH(content->version->copies, copy)
	{
		if (copy->content == content && (oldest == NULL || copy->id < oldest->id))
			oldest = copy;
	}
	return oldest;
}

static void
content_merge(struct refsrv *server, struct content *first, struct content *same)
{
	const struct version *version = first->version;
	struct copy *copy = version->copies == NULL ? NULL : version->copies->prev;

	/* From the newest back: of many that come back each is the same as those before it. */
	for (; same->num_copies > 0; copy = copy->prev) {
		if (copy->content != same)
			continue;
		same->num_copies--;
		content_join(first, copy);
	}
	for (uint32_t i = 0; i < version->num_shards; i++) {
		struct content_shard *to = &first->shards[i];
		if (th_hash_none(to->hash))
			to->hash = same->shards[i].hash;
		/* Whoever had it from a former server may not have heard of them. */
		if (first->rejoined && th_hash_none(to->attributes)) {
			to->attributes = same->shards[i].attributes;
			blob_acquire(server, to->attributes);
		}
		to->unverified =
			th_hash_none(to->hash) && (to->unverified || same->shards[i].unverified);
	}
	first->published = first->published || same->published;
	content_free(server, same);
	model_changed(server, version->model);
}

void
content_describe_refusal(const struct copy *copy, char *ret_text, size_t bytes)
{
	snprintf(ret_text, bytes,
		"version %" PRIu64 " of %.100s: replica %.100s has published other bytes (shard "
		"%u) than replica %.100s did before it, so its copy is not listed; unpublish it, "
		"and publish under another number, or when that one is gone everywhere",
		copy->version->id.version, copy->version->model->name, copy->group->replica,
		copy->content->refused_shard, copy->content->refused_by);
}

static void
content_refuse(
	struct refsrv *server, const struct content *first, struct content *other, uint32_t shard)
{
	struct version *version = first->version;
	const struct copy *winner = oldest_copy(first);
	struct copy *copy;

	TH_MARK(c09_other_bytes_refused);
	other->refused = true;
	other->refused_shard = shard;
	if (winner != NULL)
		memcpy(other->refused_by, winner->group->replica, sizeof(other->refused_by));
	DL_DELETE(version->contents, other);
	DL_FOREACH(version->copies, copy)
	{
		if (copy->content != other || copy->group->state == GROUP_BROKEN)
			continue;
		/* Its operation fails with it: what it reads is not the version any more. */
		if (copy->state == COPY_PARTIAL) {
			group_busy(copy->group);
			continue;
		}
		char text[TH_CTL_TEXT_BYTES];
		copy->refusal_due = true;
		content_describe_refusal(copy, text, sizeof(text));
		event_log(server, EVENT_ERROR, version->model->name,
			copy->parts[0].member->agent->info.node, "%s", text);
		for (uint32_t i = 0; i < copy->num_parts; i++) {
			const struct member *member = copy->parts[i].member;
			struct ctl_ev_broken *ev =
				&agent_event(member->agent, CTL_EV_CONFLICT)->u.conflict;
			ev->sid = member->sid;
			content_describe_refusal(copy, ev->text, sizeof(ev->text));
		}
	}
	/* Who hoped that they would be the same looks elsewhere, and who reads it stops. */
	model_changed(server, version->model);
}

/*
 * What only broken groups have is about to go: a trainer that was started again and publishes its
 * version with other bytes waits for that, and is not refused because it was quick.
 */
static bool
goes(const struct content *content)
{
	const struct copy *copy;

	DL_FOREACH(content->version->copies, copy)
	{
		if (copy->content == content &&
			(copy->group->state != GROUP_BROKEN || copy->rescued))
			return false;
	}
	return true;
}

static bool
all_known(const struct content *content)
{
	for (uint32_t i = 0; i < content->version->num_shards; i++) {
		if (th_hash_none(content->shards[i].hash))
			return false;
	}
	return true;
}

/* Readers of the first go on from the other, and prove in the end that it was the same. */
static void
take_over(struct refsrv *server, struct content *other, struct content *first)
{
	struct copy *copy;

	TH_MARK(content_taken_over);
	DL_FOREACH(first->version->copies, copy)
	{
		if (copy->content != first)
			continue;
		for (uint32_t i = 0; i < copy->num_parts; i++)
			copy->parts[i].proof_due = true;
	}
	content_merge(server, other, first);
}

/* Both are from a former server life: what was received there is not what was published. */
static bool
knows_better(const struct content *other, const struct content *first)
{
	return other->rejoined && other->published && first->rejoined && !first->published;
}

/* Compares all with the first, until nothing new follows from it. */
void
content_settle(struct refsrv *server, struct version *version)
{
	for (bool again = true; again && version->contents != NULL;) {
		struct content *first = version->contents, *other = first->next;
		again = false;
		while (other != NULL && !again) {
			struct content *next = other->next;
			uint32_t shard = 0;
			enum comparison result = content_compare(first, other, &shard);
			if (result == SAME) {
				content_merge(server, first, other);
				again = true; /* the first may know more now */
			} else if (result == DIFFERENT && knows_better(other, first)) {
				DL_DELETE(version->contents, other);
				DL_PREPEND(version->contents, other);
				again = true;
			} else if (result == DIFFERENT && !goes(first)) {
				content_refuse(server, first, other, shard);
			} else if (result == UNDECIDED && all_known(other) &&
				   !can_be_known(first)) {
				take_over(server, other, first);
				again = true;
			}
			other = next;
		}
	}
}

void
content_leave(struct refsrv *server, struct copy *copy)
{
	struct content *content = copy->content;
	struct version *version = copy->version;

	copy->content = NULL;
	model_dirty(version->model);
	if (--content->num_copies > 0) {
		if (!content->refused)
			content_settle(server, version);
		return;
	}
	bool first = version->contents == content;
	content_free(server, content);
	if (first && version->contents != NULL) {
		model_changed(server, version->model);
		content_settle(server, version);
	}
}

void
content_reconsider(struct refsrv *server, struct version *version)
{
	content_settle(server, version);
}

/* ---- what is known -------------------------------------------------------------------------- */

int
content_report(struct refsrv *server, const struct agent *agent, const struct ctl_content *report,
	struct th_err *err)
{
	struct member *member = member_lookup(server, report->sid);

	if (member == NULL)
		return 0;
	if (member->agent != agent)
		return th_fail(err, TH_E_INVALID, "session %" PRIu64 " is not one of agent %s",
			report->sid, agent->info.node);
	if (member->rejoin != NULL) {
		rejoin_content(member, report);
		return 0;
	}
	struct part *part = copy_part_of(member);
	if (part == NULL || part->copy->gen != report->gen)
		return 0;
	if (part->copy->received)
		return th_fail(err, TH_E_INVALID,
			"agent %s says what shard %u of replica %s is made of, which it has "
			"received: only its publisher says that",
			agent->info.node, part->shard, part->copy->group->replica);
	struct content *content = part->copy->content;
	struct content_shard *shard = &content->shards[part->shard];
	if (th_hash_none(report->content)) {
		if (!th_hash_none(shard->hash) || shard->unverified)
			return 0;
		shard->unverified = true;
	} else if (th_hash_none(shard->hash)) {
		shard->hash = report->content;
		shard->unverified = false;
	} else if (th_hash_equal(shard->hash, report->content)) {
		return 0;
	} else {
		return th_fail(err, TH_E_INVALID,
			"agent %s says that shard %u of replica %s has other bytes than it said "
			"before",
			agent->info.node, part->shard, part->copy->group->replica);
	}
	model_dirty(content->version->model);
	if (!content->refused)
		content_settle(server, content->version);
	return 0;
}

/* What a reader has said against what is known. */
static bool
contradicts(const struct part *part)
{
	const struct content_shard *shard = &part->copy->content->shards[part->shard];

	if (th_hash_none(part->told))
		return part->proof_due;
	return !th_hash_none(shard->hash) && !th_hash_equal(shard->hash, part->told) &&
	       !TH_PLANT(contents_are_mixed);
}

bool
content_arrived(struct part *part, struct th_hash hash)
{
	struct content_shard *shard = &part->copy->content->shards[part->shard];

	part->told = hash;
	if (TH_PLANT(word_of_a_reader_is_adopted) && th_hash_none(shard->hash))
		shard->hash = hash;
	return !contradicts(part);
}

/* It was published there, and its agent has not given it up. */
static bool
publisher_speaks(const struct content *content, uint32_t shard)
{
	const struct copy *copy;

	DL_FOREACH(content->version->copies, copy)
	{
		const struct part *part = &copy->parts[shard];
		if (copy->content == content && !copy->received && part->member != NULL &&
			!part->drained && part->member->agent->state != AGENT_DEAD)
			return true;
	}
	return false;
}

enum content_verdict
content_judge(struct refsrv *server, const struct part *part)
{
	const struct content *content = part->copy->content;
	const struct content_shard *shard = &content->shards[part->shard];
	const struct model *model = content->version->model;
	const struct content *other;

	if (contradicts(part))
		return CONTENT_OTHER;
	if (!th_hash_none(shard->hash) || shard->unverified)
		return CONTENT_SAME;
	if (publisher_speaks(content, part->shard) || model_warming(server, model) ||
		rejoin_awaited(model))
		return CONTENT_AWAITED;
	/* One that is published by another as well may take its readers over. */
	DL_FOREACH(content->version->contents, other)
	{
		if (other != content && content_undecided(other, content))
			return CONTENT_AWAITED;
	}
	return CONTENT_NEVER;
}
