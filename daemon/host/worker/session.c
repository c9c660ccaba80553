/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session - see session.h: how sessions begin and end. What they say is in fd_channel.c (socket),
 * ring_channel.c (rings) and doc_channel.c. Main thread only.
 */
#include "daemon/host/worker/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "daemon/host/host.h"
#include "daemon/host/memory/host_pool.h"
#include "daemon/host/move/shared_parts.h"
#include "daemon/host/worker/fd_channel.h"
#include "daemon/host/worker/ring_channel.h"
#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "ipc/base/random.h"
#include "ipc/base/stranger_fd.h"

/* Who connects opens its session within this, or makes room for others. */
#define OPEN_NS INT64_C(10000000000)

const char *
session_label(const struct host_session *session, char buffer[SESSION_LABEL_BYTES])
{
	if (session->open.model[0] == '\0')
		snprintf(buffer, SESSION_LABEL_BYTES, "(not open)");
	else if (session_observes(session))
		snprintf(buffer, SESSION_LABEL_BYTES, "%s/(observer)", session->open.model);
	else
		snprintf(buffer, SESSION_LABEL_BYTES, "%s/%s/%" PRIu32, session->open.model,
			session->open.replica, session->open.shard);
	return buffer;
}

struct host_session *
session_find(struct host *host, uint64_t id)
{
	struct host_session *found;
	HASH_FIND(hh, host->sessions, &id, sizeof(id), found);
	return found;
}

/* Who is refused may come again at once, for ever: a line a second at most. */
static void
log_refused(struct host *host, const char *text)
{
	int64_t now_ns = th_now_ns();
	host->refused_untold++;
	if (now_ns < host->refused_told_ns + HOST_BEAT_NS)
		return;
	log_warn("session", "connections refused count=%" PRIu64 " reason=\"%s\"",
		host->refused_untold, text);
	host->refused_untold = 0;
	host->refused_told_ns = now_ns;
}

static void
refuse_connection(struct host *host, int sock, int code, const char *text)
{
	struct fdmsg_refused refused = {.code = code};
	snprintf(refused.text, sizeof(refused.text), "%s", text);
	(void)fdmsg_send(sock, FDMSG_REFUSED, &refused, sizeof(refused), NULL, 0);
	fdmsg_discard(sock, stranger_close);
	close(sock);
	host->counters.connections_refused++;
	log_refused(host, text);
}

void
session_full_text(int code, char text[TH_CTL_TEXT_BYTES])
{
	if (code == -ENFILE)
		snprintf(text, TH_CTL_TEXT_BYTES,
			"the host of this agent has no open files left (fs.file-max); raise that");
	else
		snprintf(text, TH_CTL_TEXT_BYTES,
			"this agent has no descriptors left for more: its limit of open files is "
			"%" PRIu64 "; close handles, or raise LimitNOFILE= of its unit (ulimit -n) "
			"and start it again",
			files_limit());
}

void
session_refuse_full(struct host *host, int sock, int code)
{
	char text[TH_CTL_TEXT_BYTES];
	session_full_text(code, text);
	host->counters.descriptors_refused++;
	refuse_connection(host, sock, TH_E_LIMIT, text);
}

static struct host_session *
new_session(struct host *host)
{
	struct host_session *session = th_calloc(1, sizeof(*session));
	session->host = host;
	session->id = ++host->last_session;
	session->sock = session->peer.pidfd = -1;
	session->sock_source.fd = session->bell_source.fd = session->end_source.fd = -1;
	session->bell_in = session->bell_out = -1;
	session->segment.fd_w = session->segment.fd_a = -1;
	session->claim.owner = session;
	HASH_ADD(hh, host->sessions, id, sizeof(session->id), session);
	return session;
}

uint64_t
session_internal(struct host *host, const struct ctl_ev_reserve *reserve, struct tensors *tensors,
	struct offload_memory *memory)
{
	struct host_session *session = new_session(host);
	/* Nobody gets to know it, so nobody can ask for anything in this session's name. */
	th_random(session->secret, sizeof(session->secret));
	memcpy(session->open.model, reserve->model, sizeof(session->open.model));
	memcpy(session->open.replica, reserve->replica, sizeof(session->open.replica));
	session->open.lineage = reserve->version.lineage;
	session->open.shard = reserve->shard;
	session->open.num_shards = reserve->num_shards;
	session->open.reservation = reserve->reservation;
	session->state = HOST_SESSION_OPEN;
	session->registration.state = REGISTRATION_DONE;
	session->registration.tensors = tensors;
	session->offload = memory;
	host->num_internal++;
	return session->id;
}

void
session_accept(struct host *host, int sock)
{
	char text[TH_CTL_TEXT_BYTES];
	if (HASH_COUNT(host->sessions) - host->num_internal >= host->options.sessions_max) {
		snprintf(text, sizeof(text),
			"this agent has %" PRIu32
			" sessions, which is its limit (limit.sessions); close some, or raise it",
			host->options.sessions_max);
		refuse_connection(host, sock, TH_E_LIMIT, text);
		return;
	}
	/* Those who are there go on transferring, and somebody may ask what is wrong. */
	if (files_left_after(sock) < files_kept()) {
		session_refuse_full(host, sock, -EMFILE);
		return;
	}
	struct peer peer;
	int rc = peer_identify(sock, &peer);
	if (rc == -EMFILE || rc == -ENFILE) {
		session_refuse_full(host, sock, rc);
		return;
	}
	if (rc < 0) {
		snprintf(text, sizeof(text), "the agent cannot tell who connects: %s",
			th_strerror(rc));
		refuse_connection(host, sock, rc, text);
		return;
	}
	struct host_session *session = new_session(host);
	session->sock = sock;
	session->peer = peer;
	/* Nothing is held, and nobody reads or writes what was never registered. */
	session->line.safe_to_mutate = 1;
	session->line.held_version = TH_NO_VERSION;
	session->line.ready_version = TH_NO_VERSION;
	session_expire_at(session, th_now_ns() + OPEN_NS);
	rc = loop_add(&host->loop, &session->sock_source, sock, EPOLLIN, worker_readable, session);
	if (rc == 0 && peer.pidfd >= 0)
		rc = loop_add(&host->loop, &session->end_source, peer.pidfd, EPOLLIN, worker_ended,
			session);
	if (rc < 0)
		session_lose(session, false, th_strerror(rc));
}

static void
hang_up(struct host_session *session)
{
	if (session->sock >= 0)
		fdmsg_discard(session->sock, stranger_close);
	th_fd_close(&session->sock);
}

/* Nothing is heard from the worker any more, or said to it but what is owed. */
static void
disconnect(struct host_session *session)
{
	struct event_loop *loop = &session->host->loop;
	loop_remove(loop, &session->sock_source);
	loop_remove(loop, &session->bell_source);
	loop_remove(loop, &session->end_source);
	if (!session->owes_closed)
		hang_up(session);
	th_fd_close(&session->bell_in);
	th_fd_close(&session->bell_out);
	peer_fini(&session->peer);
	operations_unqueue(session);
	registration_stop(session);
}

/* Out of the table; freed when the loop's batch is over, because sources may still be in it. */
static void
session_bury(struct host_session *session)
{
	struct host *host = session->host;
	session->owes_closed = false;
	disconnect(session);
	HASH_DEL(host->sessions, session);
	if (session->offload)
		host->num_internal--;
	session->state = HOST_SESSION_GONE;
	session->next_dead = host->dead;
	host->dead = session;
}

/* What it has registered lies in the memory of its process, which is only read through that. */
static bool
is_private(struct host_session *session)
{
	const struct tensors *tensors = session->registration.tensors;
	bool found = false;
	if (!tensors || !tensors->memory_ids)
		return false;
	for (uint32_t i = 0; i < tensors->manifest.num_rows; i++) {
		const struct memory *memory =
			memory_object(&session->memory, tensors->memory_ids[i]);
		found = found || (memory && memory->process);
	}
	return found;
}

void
session_lose(struct host_session *session, bool violation, const char *reason)
{
	struct host *host = session->host;
	char label[SESSION_LABEL_BYTES];
	if (session->state >= HOST_SESSION_LOST)
		return;
	if (violation)
		host->counters.protocol_violations++;
	if (violation || session->state >= HOST_SESSION_OPENING)
		log_write(violation ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, "session",
			"%s lost session=%" PRIu64 " shard=%s pid=%d uid=%u reason=\"%s\"",
			session->offload ? "offloaded copy" : "worker", session->id,
			session_label(session, label), (int)session->peer.pid,
			(unsigned)session->peer.uid, reason);
	if (session->state < HOST_SESSION_OPENING) {
		session_bury(session);
		return;
	}
	host->counters.sessions_lost++;
	session->state = HOST_SESSION_LOST;
	disconnect(session);
	parts_orphan(host, session->id);
	struct agent_event event = {.kind = AGENT_EV_LOST, .session = session->id};
	/* Whoever breaks the rules may live on. */
	event.u.lost.memory_gone = !violation && is_private(session);
	engine_post(host, &event);
}

/* GONE: when nobody can touch its memory, and its worker has heard what it waits for. */
static void
session_end(struct host_session *session)
{
	if (session->held_parts > 0)
		return;
	if (session->owes_closed) {
		if (!registration_let_go(session))
			return;
		const struct th_err *stays = &session->registration.stays;
		worker_say_closed(session, stays->code, stays->text);
	}
	session_bury(session);
}

void
session_gone(struct host_session *session)
{
	session->state = HOST_SESSION_GONE;
	disconnect(session);
	if (session->offload)
		offload_give_up(session->offload);
	session_end(session);
}

void
session_let_go(struct host_session *session)
{
	if (session->owes_closed && session->state == HOST_SESSION_GONE)
		session_end(session);
}

void
session_part_released(struct host_session *session)
{
	session->held_parts--;
	if (session->held_parts > 0)
		return;
	if (session->state == HOST_SESSION_GONE)
		session_end(session);
	else
		session_sweep_memory(session);
}

void
session_sweep_memory(struct host_session *session)
{
	if (session->held_parts == 0 && !session->registration.tensors)
		memory_sweep(&session->memory);
}

void
session_cover(struct host_session *session)
{
	const struct regions *regions = &session->host->regions;
	struct tensors *tensors = session->registration.tensors;
	char label[SESSION_LABEL_BYTES];
	/* THC_STAGED: it does not stay registered, so it never is. */
	if (!regions->rails || !tensors || (session->open.flags & CTL_OPEN_STAGED))
		return;
	if (session->offload)
		regions_cover_offload(regions, tensors, session->offload);
	else
		regions_cover(regions, tensors, &session->memory, session_label(session, label));
}

uint64_t
session_process(const struct host_session *session)
{
	/* Not visible from here, as in another container: each handle is taken for a process. */
	return session->peer.pid > 0 ? (uint64_t)session->peer.pid
				     : session->id | UINT64_C(1) << 63;
}

const char *
session_no_rdma(const struct host_session *session)
{
	if (session->open.flags & CTL_OPEN_STAGED)
		return "its handle was opened with THC_STAGED, so its memory is not registered";
	return session->registration.tensors ? session->registration.tensors->no_rdma : NULL;
}

void
session_update_claim(struct host_session *session)
{
	enum claim_mode mode = session->follows          ? CLAIM_WRITE
			       : session->live_parts > 0 ? CLAIM_READ
							 : CLAIM_NONE;
	for (uint32_t i = 0; i < SHM_CAPACITY; i++) {
		if (!session->slots[i].busy)
			continue;
		if (session->slots[i].writes)
			mode = CLAIM_WRITE;
		else if (session->slots[i].kind == SHM_PUBLISH && mode == CLAIM_NONE)
			mode = CLAIM_READ;
	}
	session->claim.mode = mode;
}

static void
session_free(struct host_session *session)
{
	claim_remove(&session->host->claims, &session->claim);
	registration_free(session);
	memory_fini(&session->memory);
	offload_release(session->offload);
	segment_agent_free(&session->segment);
	explicit_bzero(session->secret, sizeof(session->secret));
	free(session);
}

void
session_reap(struct host *host)
{
	while (host->dead) {
		struct host_session *session = host->dead;
		host->dead = session->next_dead;
		session_free(session);
	}
}

void
session_expire_at(struct host_session *session, int64_t at_ns)
{
	struct host *host = session->host;
	session->expire_ns = at_ns;
	host->next_expire_ns = th_min_i64(host->next_expire_ns, at_ns);
}

void
session_expire(struct host *host, int64_t now_ns)
{
	struct host_session *session, *next;
	int64_t at_ns = INT64_MAX;
	HASH_ITER(hh, host->sessions, session, next)
	{
		if (session->state > HOST_SESSION_OPENING)
			continue;
		if (now_ns < session->expire_ns)
			at_ns = th_min_i64(at_ns, session->expire_ns);
		else if (session->state < HOST_SESSION_OPENING)
			session_lose(session, false, "it connected and did not open a session");
		else if (!host->attached)
			worker_no_server(session);
		else
			/* The server takes its time, which is the worker's to judge. */
			session->expire_ns = INT64_MAX;
	}
	host->next_expire_ns = at_ns;
}

void
session_free_all(struct host *host)
{
	struct host_session *session, *next;
	HASH_ITER(hh, host->sessions, session, next)
	{
		session_bury(session);
	}
	session_reap(host);
}
