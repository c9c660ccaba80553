/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared_parts - see shared_parts.h, and the part actions of legs.h. Main thread only, but for
 * on_release.
 */
#include "daemon/host/move/shared_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "daemon/host/host.h"
#include "daemon/host/worker/fd_channel.h"
#include "ipc/base/alloc.h"
#include "ipc/base/failpoint.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "ipc/shm/doorbell.h"

enum hash_state {
	HASH_IDLE,     /* not begun, or stopped                                               */
	HASH_RUNNING,  /* transport_hash was called                                            */
	HASH_STOPPING, /* transport_hash_stop was called, too */
	HASH_COMPLETE, /* all digests are known                                                */
	HASH_FAILED,   /* they will never be known: some of its memory is gone */
};

struct part_key {
	uint64_t session, gen;
};

struct shared_part {
	UT_hash_handle hh, hh_tag;
	struct part_key key;
	uint64_t tag;           /* of the hashing; a new one each time it begins */
	struct xfer_part *xfer; /* owns: a reference */
	enum hash_state hash;
};

/* Made with the part, so that the thread that lets go of it last needs no memory. */
struct release_note {
	struct release_note *next;
	struct host *host;
	uint64_t session;
};

/* Any thread. */
static void
on_release(void *arg)
{
	struct release_note *note = arg;
	struct legs *legs = &note->host->legs;
	pthread_mutex_lock(&legs->lock);
	note->next = legs->released;
	legs->released = note;
	pthread_mutex_unlock(&legs->lock);
	(void)doorbell_signal(legs->released_fd);
}

static void
shared_parts_take_notes(struct host *host)
{
	pthread_mutex_lock(&host->legs.lock);
	struct release_note *note = host->legs.released;
	host->legs.released = NULL;
	pthread_mutex_unlock(&host->legs.lock);
	while (note) {
		struct release_note *next = note->next;
		struct host_session *session = session_find(host, note->session);
		if (session)
			session_part_released(session);
		free(note);
		note = next;
	}
}

static void
on_released(void *arg, uint32_t events)
{
	struct host *host = arg;
	(void)events;
	(void)doorbell_drain(host->legs.released_fd);
	shared_parts_take_notes(host);
}

void
legs_init(struct host *host)
{
	pthread_mutex_init(&host->legs.lock, NULL);
	host->legs.released_fd = host->legs.released_source.fd = -1;
}

int
legs_open(struct host *host, struct th_err *err)
{
	struct legs *legs = &host->legs;
	legs->released_fd = doorbell_new();
	int rc = legs->released_fd;
	if (rc >= 0)
		rc = loop_add(&host->loop, &legs->released_source, legs->released_fd, EPOLLIN,
			on_released, host);
	return rc < 0 ? th_fail(err, rc, "an eventfd: %s", th_strerror(rc)) : 0;
}

static struct shared_part *
shared_parts_find(struct host *host, uint64_t session, uint64_t gen)
{
	const struct part_key key = {session, gen};
	struct shared_part *part;
	HASH_FIND(hh, host->legs.parts, &key, sizeof(key), part);
	return part;
}

struct xfer_part *
parts_find(struct host *host, uint64_t session, uint64_t gen)
{
	struct shared_part *part = shared_parts_find(host, session, gen);
	return part ? part->xfer : NULL;
}

/* ---- hashing -------------------------------------------------------------------------------- */

static void
shared_parts_post(struct host *host, enum agent_event_kind kind, const struct shared_part *part)
{
	struct agent_event event = {
		.kind = kind, .session = part->key.session, .u.hash.gen = part->key.gen};
	if (kind == AGENT_EV_HASHED)
		event.u.hash.content = xfer_part_content(part->xfer);
	engine_post(host, &event);
}

static void
start_hashing(struct host *host, struct shared_part *part)
{
	if (part->hash == HASH_RUNNING || part->hash == HASH_STOPPING || part->hash == HASH_FAILED)
		return;
	const struct chunk_table *table = xfer_part_table(part->xfer);
	if (!xfer_part_verify(part->xfer) && xfer_part_prefix(part->xfer) < table->num_chunks)
		/* Nobody asks for digests: all of it may be served at once. */
		xfer_part_advance(part->xfer, table->num_chunks);
	if (xfer_part_prefix(part->xfer) == table->num_chunks) {
		part->hash = HASH_COMPLETE;
		shared_parts_post(host, AGENT_EV_HASHED, part);
		return;
	}
	part->tag = ++host->legs.last_tag;
	int rc = transport_hash(host->transport, part->tag, part->xfer);
	if (rc < 0) {
		struct host_session *session = session_find(host, part->key.session);
		log_error("part", "no digests session=%" PRIu64 " reason=\"%s\"", part->key.session,
			th_strerror(rc));
		/* A part without digests can serve nobody: its worker must not think it does. */
		if (session)
			session_lose(session, false, "its digests cannot be computed");
		return;
	}
	part->hash = HASH_RUNNING;
	HASH_ADD(hh_tag, host->legs.parts_by_tag, tag, sizeof(part->tag), part);
}

static struct shared_part *
take_tagged(struct host *host, uint64_t tag)
{
	struct shared_part *part;
	HASH_FIND(hh_tag, host->legs.parts_by_tag, &tag, sizeof(tag), part);
	if (part)
		HASH_DELETE(hh_tag, host->legs.parts_by_tag, part);
	return part;
}

uint32_t
parts_hashing(const struct host *host)
{
	return HASH_CNT(hh_tag, host->legs.parts_by_tag);
}

void
parts_hashed(struct host *host, uint64_t tag)
{
	struct shared_part *part = take_tagged(host, tag);
	if (!part)
		return;
	bool stopping = part->hash == HASH_STOPPING;
	part->hash = HASH_COMPLETE;
	TH_FP(agent_hashed);
	shared_parts_post(host, AGENT_EV_HASHED, part);
	/* A stop that crossed the end: the tag is gone, so this is its only answer. */
	if (stopping)
		shared_parts_post(host, AGENT_EV_HASH_STOPPED, part);
}

/*
 * The copy can serve nobody any more. Its worker must not think that it does: it is told, and the
 * session ends. A worker that is gone, or closes, has no use for the sentence.
 */
static void
shared_parts_withdraw(
	struct host *host, struct host_session *session, struct shared_part *part, uint32_t row)
{
	const struct tensors *tensors = session->registration.tensors;
	struct agent_event event = {.kind = AGENT_EV_CONTRACT, .session = session->id};
	char which[256] = "its tensors", why[256];
	if (tensors && row < tensors->manifest.num_rows)
		snprintf(which, sizeof(which), "tensor '%.200s'", tensors->manifest.rows[row].name);
	if (xfer_part_lost(part->xfer, why, sizeof(why)) == 0)
		snprintf(why, sizeof(why), "unmapped, shrunk, or its process has ended");
	event.u.contract.gen = part->key.gen;
	snprintf(event.u.contract.text, sizeof(event.u.contract.text),
		"the memory of %s can not be read any more (%s), so what was published is "
		"withdrawn; close this handle",
		which, why);
	log_error("part", "withdrawn session=%" PRIu64 " reason=\"%s\"", session->id,
		event.u.contract.text);
	if (session->state != HOST_SESSION_OPEN || session->ended)
		return;
	worker_end(session, TH_E_CONTRACT, event.u.contract.text);
	if (session->state == HOST_SESSION_OPEN)
		engine_post(host, &event);
}

void
parts_lost(struct host *host, uint64_t session_id, uint64_t gen, uint32_t row)
{
	struct host_session *session = session_find(host, session_id);
	struct shared_part *part = shared_parts_find(host, session_id, gen);
	if (session && part)
		shared_parts_withdraw(host, session, part, row);
}

void
parts_hash_failed(struct host *host, uint64_t tag, uint32_t row)
{
	struct shared_part *part = take_tagged(host, tag);
	if (!part)
		return;
	bool stopping = part->hash == HASH_STOPPING;
	struct host_session *session = session_find(host, part->key.session);
	part->hash = HASH_FAILED;
	if (session)
		shared_parts_withdraw(host, session, part, row);
	if (stopping)
		shared_parts_post(host, AGENT_EV_HASH_STOPPED, part);
}

void
parts_hash_stopped(struct host *host, uint64_t tag)
{
	struct shared_part *part = take_tagged(host, tag);
	if (!part)
		return;
	const struct chunk_table *table = xfer_part_table(part->xfer);
	part->hash = HASH_IDLE;
	/* It was told to stop when the last digest was there: readers wait for what all are. */
	if (xfer_part_digest_count(part->xfer) == table->num_chunks) {
		part->hash = HASH_COMPLETE;
		shared_parts_post(host, AGENT_EV_HASHED, part);
	}
	shared_parts_post(host, AGENT_EV_HASH_STOPPED, part);
}

void
legs_hash(struct host *host, const struct agent_action *action)
{
	struct shared_part *part = shared_parts_find(host, action->session, action->u.part.gen);
	if (part)
		start_hashing(host, part);
}

void
legs_hash_stop(struct host *host, const struct agent_action *action)
{
	struct shared_part *part = shared_parts_find(host, action->session, action->u.part.gen);
	if (!part) {
		const struct shared_part gone = {.key = {action->session, action->u.part.gen}};
		shared_parts_post(host, AGENT_EV_HASH_STOPPED, &gone);
	} else if (part->hash == HASH_RUNNING) {
		part->hash = HASH_STOPPING;
		transport_hash_stop(host->transport, part->tag);
	} else if (part->hash != HASH_STOPPING) {
		shared_parts_post(host, AGENT_EV_HASH_STOPPED, part);
	}
}

/* ---- memory that was written to while it was published -------------------------------------- */

/* The tensors that have bytes in a chunk; its digest does not say which of them it is. */
static void
name_tensors(const struct tensors *tensors, uint32_t chunk, char *ret_text, size_t bytes)
{
	const struct chunk_table *table = tensors->table;
	const struct chunk_range *first = &table->ranges[table->first[chunk]];
	const struct chunk_range *last = &table->ranges[table->first[chunk + 1] - 1];
	const char *name = tensors->manifest.rows[first->row].name;
	if (first == last)
		snprintf(ret_text, bytes, "tensor '%.150s' (its bytes %" PRIu64 " to %" PRIu64 ")",
			name, first->offset, first->offset + first->bytes - 1);
	else
		snprintf(ret_text, bytes, "one of the tensors '%.120s' to '%.120s'", name,
			tensors->manifest.rows[last->row].name);
}

void
parts_changed(struct host *host, uint64_t session_id, uint64_t gen, uint32_t chunk)
{
	struct host_session *session = session_find(host, session_id);
	/* Who closes, or is gone, has nobody to be told; its part is on its way out. */
	if (!session || session->state != HOST_SESSION_OPEN || session->ended ||
		!session->registration.tensors || !shared_parts_find(host, session_id, gen))
		return;
	struct agent_event event = {.kind = AGENT_EV_CONTRACT, .session = session_id};
	char which[320];
	event.u.contract.gen = gen;
	name_tensors(session->registration.tensors, chunk, which, sizeof(which));
	snprintf(event.u.contract.text, sizeof(event.u.contract.text),
		"%s: published memory was changed before unpublish, a reader found it; close this "
		"handle, and write only after unpublish has returned (or this host's memory fails)",
		which);
	worker_end(session, TH_E_CONTRACT, event.u.contract.text);
	if (session->state == HOST_SESSION_OPEN)
		engine_post(host, &event);
}

void
parts_orphan(struct host *host, uint64_t session)
{
	for (struct shared_part *part = host->legs.parts; part; part = part->hh.next) {
		if (part->key.session == session)
			xfer_part_orphan(part->xfer);
	}
}

/* ---- begin and end -------------------------------------------------------------------------- */

static struct xfer_part *
new_xfer(struct host_session *session)
{
	struct host *host = session->host;
	struct release_note *note = th_calloc(1, sizeof(*note));
	*note = (struct release_note){.host = host, .session = session->id};
	session_cover(session);
	const struct tensors *tensors = session->registration.tensors;
	struct xfer_part *xfer = NULL;
	if (TH_FP_RC(agent_part_new) == 0)
		xfer = xfer_part_new_places(tensors->table, tensors->places,
			tensors->manifest.num_rows, host->options.verify, on_release, note);
	if (!xfer)
		free(note);
	else
		xfer_part_set_no_rdma(xfer, session_no_rdma(session));
	if (xfer && tensors->packed && xfer_part_set_packed(xfer, tensors->packed) < 0)
		log_warn("part", "no RDMA session=%" PRIu64 " reason=\"out of memory\"",
			session->id);
	return xfer;
}

void
legs_part_new(struct host *host, const struct agent_action *action)
{
	struct host_session *session = session_find(host, action->session);
	const struct part_key key = {action->session, action->u.part.gen};
	if (!session || !session->registration.tensors ||
		shared_parts_find(host, key.session, key.gen))
		return;
	int rc = memory_set_writable(&session->memory, !action->u.part.published);
	struct xfer_part *xfer = rc == 0 ? new_xfer(session) : NULL;
	if (rc < 0) {
		session_lose(session, false, "the kernel does not change the rights of its memory");
		return;
	}
	if (!xfer) {
		session_lose(session, false, "the agent is out of memory for its chunks");
		return;
	}
	if (action->u.part.used)
		xfer_part_expect_reuse(xfer);
	struct shared_part *part = th_calloc(1, sizeof(*part));
	part->key = key;
	part->xfer = xfer;
	HASH_ADD(hh, host->legs.parts, key, sizeof(part->key), part);
	session->held_parts++;
	session->live_parts++;
	session_update_claim(session);
	if (action->u.part.published)
		start_hashing(host, part);
}

static void
part_free(struct host *host, struct shared_part *part)
{
	if (part->hash == HASH_RUNNING || part->hash == HASH_STOPPING)
		HASH_DELETE(hh_tag, host->legs.parts_by_tag, part);
	HASH_DELETE(hh, host->legs.parts, part);
	xfer_part_release(part->xfer);
	free(part);
}

void
legs_part_end(struct host *host, const struct agent_action *action)
{
	struct shared_part *part = shared_parts_find(host, action->session, action->u.part.gen);
	if (!part)
		return;
	/* The core ends a part only after its hashing; a thread that still hashed would go on. */
	if (part->hash == HASH_RUNNING)
		transport_hash_stop(host->transport, part->tag);
	TH_FP(agent_part_end);
	part_free(host, part);
	struct host_session *session = session_find(host, action->session);
	if (session) {
		session->live_parts--;
		session_update_claim(session);
	}
}

void
parts_close(struct host *host)
{
	struct shared_part *part, *next;
	HASH_ITER(hh, host->legs.parts, part, next)
	{
		part_free(host, part);
	}
	shared_parts_take_notes(host);
	loop_remove(&host->loop, &host->legs.released_source);
	th_fd_close(&host->legs.released_fd);
	pthread_mutex_destroy(&host->legs.lock);
}
