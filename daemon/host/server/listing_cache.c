/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listing_cache - see listing_cache.h.
 *
 *   model > current (the last one fetched), a fetch, and who waits: joined (this fetch will do),
 *           later (the next one will)
 *   all > older ones in several parts, whose readers may still come
 *
 * Main thread only.
 */
#include "daemon/host/server/listing_cache.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>
#include <utlist.h>

#include "ipc/base/alloc.h"
#include "ipc/base/answer_pages.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "ipc/proto/convert.h"

#define SECOND_NS INT64_C(1000000000)
#define FETCH_NS (5 * SECOND_NS) /* of one part: a server that is slower counts as none     */
#define IDLE_NS (10 * SECOND_NS) /* not asked for: dropped                                  */
#define MODELS_MAX 1024u         /* any process of this host may name models                */
#define KEPT_BYTES_MAX (UINT64_C(256) << 20) /* as much as a server keeps                   */
#define NUMBER_BYTES 9u /* of a packed Reply: tag and value of the request number           */
#define NUMBER_TAG 0x09 /* field 1, fixed64 */

struct listing_part {
	uint8_t *data; /* owns: NUMBER_BYTES of room, then the packed reply without its number */
	size_t bytes;
	uint64_t first; /* entry */
};

struct whole { /* a listing; owned by its model, then by listings.older */
	uint64_t number, generation, bytes;
	char model[TH_NAME_MAX + 1];
	int64_t used_ns;
	uint32_t num_parts;
	struct listing_part *parts; /* owns */
	struct whole *prev, *next;
};

struct question { /* owned by a model */
	uint64_t token, request_no, generation;
	int64_t deadline_ns;
	struct question *prev, *next;
};

struct cached_model { /* owned by listings.models; stays while a fetch runs */
	struct listings *listings;
	char name[TH_NAME_MAX + 1];
	struct whole *current;
	struct whole *filling; /* a fetch runs, or NULL */
	struct pages pages;
	bool outdated; /* the fetch was begun at another server */
	struct question *joined, *later;
	UT_hash_handle hh;
};

struct listings {
	struct listings_io io;
	struct cached_model *models;
	struct whole *older;
	uint64_t last_number, kept_bytes;
	int64_t now_ns, next_ns;
	bool attached;
	uint64_t server_inc;
	char server_text[TH_CTL_TEXT_BYTES];
	struct listings_counters counters;
};

struct listings *
listings_new(const struct listings_io *io)
{
	struct listings *listings = th_calloc(1, sizeof(*listings));

	listings->io = *io;
	listings->next_ns = INT64_MAX;
	snprintf(listings->server_text, sizeof(listings->server_text), "not reached yet");
	return listings;
}

/* ---- listings that are there ---------------------------------------------------------------- */

static void
whole_free(struct listings *listings, struct whole *whole)
{
	if (!whole)
		return;
	for (uint32_t i = 0; i < whole->num_parts; i++)
		free(whole->parts[i].data);
	listings->kept_bytes -= whole->bytes;
	free(whole->parts);
	free(whole);
}

static void
older_free(struct listings *listings, struct whole *whole)
{
	DL_DELETE(listings->older, whole);
	whole_free(listings, whole);
}

/* Another one is current now: who has begun to read this one may read on. */
static void
whole_retire(struct listings *listings, struct whole *whole)
{
	if (!whole)
		return;
	if (whole->num_parts > 1)
		DL_APPEND(listings->older, whole);
	else
		whole_free(listings, whole);
}

static void
listing_cache_send_part(struct listings *listings, struct whole *whole,
	const struct listing_part *part, uint64_t token, uint64_t request_no)
{
	/* The packed reply lacks its number, which is another one for each asker. */
	part->data[0] = NUMBER_TAG;
	for (uint32_t i = 0; i < sizeof(request_no); i++)
		part->data[1 + i] = (uint8_t)(request_no >> (8 * i));
	whole->used_ns = listings->now_ns;
	listings->io.send(listings->io.arg, token, part->data, part->bytes);
}

static struct whole *
find_whole(const struct listings *listings, const char *model, uint64_t number)
{
	struct cached_model *entry = NULL;
	struct whole *whole;

	HASH_FIND_STR(listings->models, model, entry);
	if (entry && entry->current && entry->current->number == number)
		return entry->current;
	DL_FOREACH(listings->older, whole)
	{
		if (whole->number == number && strcmp(whole->model, model) == 0)
			return whole;
	}
	return NULL;
}

static void
answer_part(
	struct listings *listings, uint64_t token, uint64_t request_no, const struct ctl_list *list)
{
	struct whole *whole = find_whole(listings, list->model, list->page.snapshot);

	for (uint32_t i = 0; whole && i < whole->num_parts; i++) {
		if (whole->parts[i].first == list->page.next) {
			listing_cache_send_part(
				listings, whole, &whole->parts[i], token, request_no);
			return;
		}
	}
	listings->io.refuse(listings->io.arg, token, request_no, TH_E_NOT_AVAILABLE,
		"the agent does not keep this listing any more: begin again");
}

/* ---- who waits ------------------------------------------------------------------------------ */

static void
refuse_all(struct listings *listings, struct question **questions, int code, const char *text)
{
	while (*questions) {
		struct question *first = *questions;
		DL_DELETE(*questions, first);
		listings->io.refuse(listings->io.arg, first->token, first->request_no, code, text);
		free(first);
	}
}

static void
listing_cache_give(
	struct listings *listings, struct whole *whole, uint64_t token, uint64_t request_no)
{
	listings->counters.given++;
	listing_cache_send_part(listings, whole, &whole->parts[0], token, request_no);
}

/* The fetch that they have joined is over; what is too old for one of them is asked for again. */
static void
give_joined(struct listings *listings, struct cached_model *model)
{
	struct question *question, *next;

	DL_FOREACH_SAFE(model->joined, question, next)
	{
		DL_DELETE(model->joined, question);
		if (model->current->generation < question->generation) {
			/* Not again because of it: the number may be any. */
			question->generation = 0;
			DL_APPEND(model->later, question);
			continue;
		}
		listing_cache_give(listings, model->current, question->token, question->request_no);
		free(question);
	}
}

/* ---- fetching ------------------------------------------------------------------------------- */

static void fetch_answered(void *ctx, int rc, const struct ctl_reply *reply);

static void
fetch_ask(struct cached_model *model)
{
	struct listings *listings = model->listings;
	struct ctl_request request = {.kind = CTL_LIST};

	memcpy(request.u.list.model, model->name, sizeof(request.u.list.model));
	request.u.list.page = model->pages.ask;
	listings->io.ask(listings->io.arg, &request, FETCH_NS, fetch_answered, model);
}

static void
fetch_begin(struct cached_model *model)
{
	struct listings *listings = model->listings;

	model->filling = th_calloc(1, sizeof(*model->filling));
	model->filling->number = ++listings->last_number;
	memcpy(model->filling->model, model->name, sizeof(model->name));
	model->pages = (struct pages){0};
	model->outdated = false;
	listings->counters.fetched++;
	fetch_ask(model);
}

/* Those who came too late for it begin the next. */
static void
fetch_next(struct cached_model *model)
{
	if (!model->later)
		return;
	DL_CONCAT(model->joined, model->later);
	model->later = NULL;
	fetch_begin(model);
}

static void
fetch_fail(struct cached_model *model, int code, const char *text)
{
	whole_free(model->listings, model->filling);
	model->filling = NULL;
	refuse_all(model->listings, &model->joined, code, text);
	fetch_next(model);
}

static int
keep_part(struct cached_model *model, const struct ctl_reply *reply, struct th_err *err)
{
	struct listings *listings = model->listings;
	struct whole *whole = model->filling;
	struct ctl_reply part = *reply;
	uint8_t *data;
	size_t bytes;

	part.request_no = 0;
	part.unknown_agent = false;
	if (part.u.list.page.snapshot != 0)
		part.u.list.page.snapshot = whole->number;
	int rc = ctl_reply_pack(&part, &data, &bytes);
	if (rc < 0)
		return th_fail(err, rc, "a part of the listing: %s", th_strerror(rc));
	whole->parts = th_realloc(whole->parts, whole->num_parts + 1, sizeof(whole->parts[0]));
	struct listing_part *kept = &whole->parts[whole->num_parts++];
	kept->data = th_calloc(1, NUMBER_BYTES + bytes);
	kept->bytes = NUMBER_BYTES + bytes;
	kept->first = model->pages.ask.next;
	memcpy(kept->data + NUMBER_BYTES, data, bytes);
	free(data);
	whole->generation = reply->u.list.generation;
	whole->bytes += kept->bytes;
	listings->kept_bytes += kept->bytes;
	while (listings->kept_bytes > KEPT_BYTES_MAX && listings->older)
		older_free(listings, listings->older);
	if (listings->kept_bytes > KEPT_BYTES_MAX)
		return th_fail(err, TH_E_LIMIT,
			"the agent keeps listings of %" PRIu64 " bytes, which is its limit",
			KEPT_BYTES_MAX);
	return 0;
}

static int
listing_cache_take_part(
	struct cached_model *model, const struct ctl_reply *reply, struct th_err *err)
{
	const struct ctl_listing *listing = &reply->u.list;
	uint64_t entries = 0;

	int rc = keep_part(model, reply, err);
	if (rc < 0)
		return rc;
	for (uint32_t v = 0; v < listing->num_versions; v++)
		entries += listing->versions[v].num_replicas;
	rc = pages_take(&model->pages, listing->page, entries, listing->generation, err);
	return rc == -EPROTO ? TH_E_PROTOCOL : rc;
}

static void
fetch_done(struct cached_model *model)
{
	struct listings *listings = model->listings;

	whole_retire(listings, model->current);
	model->current = model->filling;
	model->filling = NULL;
	model->current->used_ns = listings->now_ns;
	listings->next_ns = th_min_i64(listings->next_ns, listings->now_ns + IDLE_NS);
	give_joined(listings, model);
	fetch_next(model);
}

static void
listing_cache_fetch_again(struct cached_model *model)
{
	struct listings *listings = model->listings;

	whole_free(listings, model->filling);
	model->filling = th_calloc(1, sizeof(*model->filling));
	model->filling->number = ++listings->last_number;
	memcpy(model->filling->model, model->name, sizeof(model->name));
	fetch_ask(model);
}

static void
fetch_answered(void *ctx, int rc, const struct ctl_reply *reply)
{
	struct cached_model *model = ctx;
	char text[TH_CTL_TEXT_BYTES];
	struct th_err err;

	TH_ASSERT(model->filling != NULL);
	if (rc != 0) {
		snprintf(text, sizeof(text),
			"the reference server did not answer (%s); see 'thctl status'",
			th_strerror(rc));
		fetch_fail(model, TH_E_NO_SERVER, text);
	} else if (model->outdated) {
		/* Nobody who asked then is left; what it says is of another server's life. */
		fetch_fail(model, TH_E_NO_SERVER, "the reference server is another one now");
	} else if (reply->code != 0) {
		if (pages_restart(&model->pages, reply->code))
			listing_cache_fetch_again(model);
		else
			fetch_fail(model, reply->code, reply->text);
	} else {
		rc = listing_cache_take_part(model, reply, &err);
		if (rc < 0)
			fetch_fail(model, rc, err.text);
		else if (rc > 0)
			fetch_ask(model);
		else
			fetch_done(model);
	}
}

/* ---- asking --------------------------------------------------------------------------------- */

static bool
unused(const struct cached_model *model)
{
	return !model->filling && !model->current && !model->joined && !model->later;
}

static void
model_free(struct listings *listings, struct cached_model *model)
{
	HASH_DEL(listings->models, model);
	free(model);
}

static struct cached_model *
find_model(struct listings *listings, const char *name)
{
	struct cached_model *model = NULL, *one, *next;

	HASH_FIND_STR(listings->models, name, model);
	if (model)
		return model;
	HASH_ITER(hh, listings->models, one, next)
	{
		if (HASH_COUNT(listings->models) < MODELS_MAX)
			break;
		if (one->filling)
			continue;
		whole_retire(listings, one->current);
		model_free(listings, one);
	}
	if (HASH_COUNT(listings->models) >= MODELS_MAX)
		return NULL;
	model = th_calloc(1, sizeof(*model));
	model->listings = listings;
	memcpy(model->name, name, strnlen(name, TH_NAME_MAX));
	HASH_ADD_STR(listings->models, name, model);
	return model;
}

static void
wait_for_fetch(struct listings *listings, struct cached_model *model, const struct question *wanted)
{
	struct question *question = th_memdup(wanted, sizeof(*wanted));

	listings->next_ns = th_min_i64(listings->next_ns, question->deadline_ns);
	if (!model->filling) {
		DL_APPEND(model->joined, question);
		fetch_begin(model);
	} else if (question->generation != 0 && !model->outdated) {
		/* Begun, most likely, because of the change that this one knows of. */
		DL_APPEND(model->joined, question);
	} else {
		DL_APPEND(model->later, question);
	}
}

void
listings_ask(struct listings *listings, int64_t now_ns, uint64_t token, uint64_t request_no,
	const struct ctl_list *list, int64_t timeout_ns)
{
	const struct question question = {.token = token,
		.request_no = request_no,
		.generation = list->generation,
		.deadline_ns = th_deadline_ns(now_ns, timeout_ns)};
	char text[TH_CTL_TEXT_BYTES];

	listings->now_ns = now_ns;
	if (list->page.snapshot != 0) {
		answer_part(listings, token, request_no, list);
		return;
	}
	if (!listings->attached) {
		snprintf(text, sizeof(text),
			"the agent reaches no reference server: %.300s; see 'thctl status'",
			listings->server_text);
		listings->io.refuse(listings->io.arg, token, request_no, TH_E_NO_SERVER, text);
		return;
	}
	struct cached_model *model = find_model(listings, list->model);
	if (!model)
		listings->io.refuse(listings->io.arg, token, request_no, TH_E_LIMIT,
			"the agent fetches the listings of 1024 models already: ask again");
	else if (list->generation != 0 && model->current &&
		 model->current->generation >= list->generation)
		listing_cache_give(listings, model->current, token, request_no);
	else
		wait_for_fetch(listings, model, &question);
}

static void
listing_cache_forget(struct question **questions, uint64_t token)
{
	struct question *question, *next;

	DL_FOREACH_SAFE(*questions, question, next)
	{
		if (question->token != token)
			continue;
		DL_DELETE(*questions, question);
		free(question);
	}
}

void
listings_forget_token(struct listings *listings, uint64_t token)
{
	for (struct cached_model *model = listings->models; model; model = model->hh.next) {
		listing_cache_forget(&model->joined, token);
		listing_cache_forget(&model->later, token);
	}
}

/* ---- the server, and time ------------------------------------------------------------------- */

void
listings_server(struct listings *listings, bool attached, uint64_t server_inc, const char *text)
{
	char reason[TH_CTL_TEXT_BYTES];
	bool same = attached && server_inc == listings->server_inc;

	listings->attached = attached;
	snprintf(listings->server_text, sizeof(listings->server_text), "%s", text);
	if (same)
		return;
	if (attached)
		listings->server_inc = server_inc;
	snprintf(reason, sizeof(reason),
		"the agent reaches no reference server: %.300s; see 'thctl status'",
		attached ? "it is another one now, ask again" : text);
	for (struct cached_model *model = listings->models; model; model = model->hh.next) {
		/* Its generations are not comparable with those of the next server. */
		whole_retire(listings, model->current);
		model->current = NULL;
		model->outdated = true;
		refuse_all(listings, &model->joined, TH_E_NO_SERVER, reason);
		refuse_all(listings, &model->later, TH_E_NO_SERVER, reason);
	}
}

static int64_t
listing_cache_expire(struct listings *listings, struct question **questions)
{
	struct question *question, *next;
	int64_t next_ns = INT64_MAX;

	DL_FOREACH_SAFE(*questions, question, next)
	{
		if (listings->now_ns < question->deadline_ns) {
			next_ns = th_min_i64(next_ns, question->deadline_ns);
			continue;
		}
		DL_DELETE(*questions, question);
		listings->io.refuse(listings->io.arg, question->token, question->request_no,
			TH_E_TIMEOUT,
			"the reference server did not answer before the deadline; see 'thctl "
			"status'");
		free(question);
	}
	return next_ns;
}

int64_t
listings_tick(struct listings *listings, int64_t now_ns)
{
	struct whole *whole, *next_whole;
	struct cached_model *model, *next_model;
	int64_t next_ns = INT64_MAX;

	listings->now_ns = now_ns;
	if (now_ns < listings->next_ns)
		return listings->next_ns;
	DL_FOREACH_SAFE(listings->older, whole, next_whole)
	{
		if (now_ns >= whole->used_ns + IDLE_NS)
			older_free(listings, whole);
		else
			next_ns = th_min_i64(next_ns, whole->used_ns + IDLE_NS);
	}
	HASH_ITER(hh, listings->models, model, next_model)
	{
		next_ns = th_min_i64(next_ns, listing_cache_expire(listings, &model->joined));
		next_ns = th_min_i64(next_ns, listing_cache_expire(listings, &model->later));
		if (model->current && now_ns >= model->current->used_ns + IDLE_NS) {
			whole_free(listings, model->current);
			model->current = NULL;
		}
		if (model->current)
			next_ns = th_min_i64(next_ns, model->current->used_ns + IDLE_NS);
		else if (unused(model))
			model_free(listings, model);
	}
	listings->next_ns = next_ns;
	return next_ns;
}

void
listings_counters(const struct listings *listings, struct listings_counters *ret_counters)
{
	*ret_counters = listings->counters;
}

void
listings_free(struct listings *listings)
{
	struct cached_model *model, *next;

	if (!listings)
		return;
	HASH_ITER(hh, listings->models, model, next)
	{
		struct question *question, *next_question;
		DL_CONCAT(model->joined, model->later);
		DL_FOREACH_SAFE(model->joined, question, next_question)
		{
			free(question);
		}
		whole_free(listings, model->filling);
		whole_free(listings, model->current);
		model_free(listings, model);
	}
	while (listings->older)
		older_free(listings, listings->older);
	free(listings);
}
