/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_channel - see fd_channel.h. Every message in every state has an answer here: what does not fit
 * ends the session. Main thread only.
 */
#include "daemon/host/worker/fd_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/host/host.h"
#include "daemon/host/memory/memory_gpu.h"
#include "daemon/host/worker/loans.h"
#include "daemon/host/worker/ring_channel.h"
#include "ipc/base/clock.h"
#include "ipc/base/failpoint.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "ipc/base/name.h"
#include "ipc/base/random.h"
#include "ipc/base/retain_rules.h"
#include "ipc/shm/doorbell.h"
#include "ipc/sock/listener.h"

#define MESSAGES_A_WAKEUP 16 /* of one socket: the others have their turn then */
#define ACCEPTS_A_WAKEUP 64
#define SERVER_PATIENCE_NS INT64_C(1000000000)

#define CLOSE_ABANDON 1u /* as THC_CLOSE_ABANDON */

/* ---- sending -------------------------------------------------------------------------------- */

/* A worker that does not read its few answers has no use for more. */
static void
fd_channel_say(struct host_session *session, enum fdmsg_kind kind, const void *body, size_t bytes,
	const int *fds, uint32_t num_fds)
{
	int rc = fdmsg_send(session->sock, kind, body, bytes, fds, num_fds);
	if (rc == -EAGAIN)
		session_lose(session, true, "it does not read its answers");
	else if (rc < 0)
		session_lose(session, false, th_strerror(rc));
}

static void
fd_channel_refuse(struct host_session *session, int code, const char *text)
{
	struct fdmsg_refused refused = {.code = code};
	char label[SESSION_LABEL_BYTES];
	snprintf(refused.text, sizeof(refused.text), "%s", text);
	log_warn("session", "refused session=%" PRIu64 " shard=%s code=%s reason=\"%s\"",
		session->id, session_label(session, label), th_errname(code), text);
	(void)fdmsg_send(session->sock, FDMSG_REFUSED, &refused, sizeof(refused), NULL, 0);
}

/* ---- HELLO ---------------------------------------------------------------------------------- */

static void
fd_channel_on_hello(struct host_session *session, const struct fdmsg_hello *hello)
{
	struct host *host = session->host;
	if (hello->protocol_min > hello->protocol_max || hello->reserved != 0) {
		session_lose(session, true, "a HELLO that is none");
		return;
	}
	if (hello->protocol_min > FDMSG_PROTOCOL_MAX || hello->protocol_max < FDMSG_PROTOCOL_MIN) {
		char text[TH_CTL_TEXT_BYTES];
		snprintf(text, sizeof(text),
			"libthc speaks protocol %" PRIu32 " to %" PRIu32
			", this agent (thagentd " TH_VERSION ") %u to %u; upgrade the older "
			"of the two",
			hello->protocol_min, hello->protocol_max, FDMSG_PROTOCOL_MIN,
			FDMSG_PROTOCOL_MAX);
		host->counters.hellos_refused++;
		fd_channel_refuse(session, TH_E_PROTOCOL, text);
		session_lose(session, false, "protocol versions do not overlap");
		return;
	}
	session->knows_gpu = (hello->features & FDMSG_FEATURE_GPU) != 0;
	session->knows_loans = (hello->features & FDMSG_FEATURE_BORROW) != 0;
	struct fdmsg_welcome welcome = {
		.protocol = FDMSG_PROTOCOL_MAX,
		.features = hello->features & FDMSG_FEATURES,
		.tensors_max = host->options.tensors_max,
		.memory_objects_max = host->options.memory_objects_max,
	};
	if (hello->protocol_max < welcome.protocol)
		welcome.protocol = hello->protocol_max;
	snprintf(welcome.agent_version, sizeof(welcome.agent_version), "%s", TH_VERSION);
	snprintf(welcome.node, sizeof(welcome.node), "%s", host->options.node);
	session->state = HOST_SESSION_GREETED;
	TH_FP(agent_greets);
	fd_channel_say(session, FDMSG_WELCOME, &welcome, sizeof(welcome), NULL, 0);
}

/* ---- OPEN ----------------------------------------------------------------------------------- */

/* NUL-terminated, and nothing behind it that a later version could mean something by. */
static bool
text_field_valid(const char *field, size_t size)
{
	size_t length = strnlen(field, size);
	if (length == size)
		return false;
	for (size_t i = length; i < size; i++) {
		if (field[i] != '\0')
			return false;
	}
	return true;
}

static bool
open_well_formed(const struct fdmsg_open *open)
{
	return open->reserved == 0 && text_field_valid(open->model, sizeof(open->model)) &&
	       text_field_valid(open->replica, sizeof(open->replica)) &&
	       text_field_valid(open->launch_id, sizeof(open->launch_id)) &&
	       text_field_valid(open->retain, sizeof(open->retain));
}

/* The flags are the core's affair. */
static int
check_open(const struct fdmsg_open *open, struct th_err *err)
{
	if (!th_name_valid(open->model, TH_NAME_MAX))
		return th_fail(err, TH_E_INVALID,
			"model: a name has 1 to %d bytes of UTF-8 without control characters",
			TH_NAME_MAX);
	/* Without one it is an observer, of whom the core asks more. */
	if (open->replica[0] != '\0' && !th_name_valid(open->replica, TH_NAME_MAX))
		return th_fail(err, TH_E_INVALID,
			"replica: a name has 1 to %d bytes of UTF-8 without control characters",
			TH_NAME_MAX);
	if (open->num_shards == 0 || open->num_shards > TH_SHARDS_MAX)
		return th_fail(err, TH_E_INVALID,
			"num_shards is %" PRIu32 "; a group has 1 to %d shards", open->num_shards,
			TH_SHARDS_MAX);
	if (open->shard >= open->num_shards)
		return th_fail(err, TH_E_INVALID,
			"shard is %" PRIu32 "; with num_shards %" PRIu32 " it is 0 to %" PRIu32,
			open->shard, open->num_shards, open->num_shards - 1);
	struct th_retain rules;
	int rc = th_retain_parse(open->retain, &rules, err);
	if (rc < 0)
		return rc;
	if (open->launch_id[0] != '\0' && !th_name_valid(open->launch_id, TH_NAME_MAX))
		return th_fail(err, TH_E_INVALID,
			"launch_id: a name has 1 to %d bytes of UTF-8 without control characters",
			TH_NAME_MAX);
	return 0;
}

static void
on_open(struct host_session *session, const struct fdmsg_open *open)
{
	struct host *host = session->host;
	struct th_err err = {0};
	if (!open_well_formed(open)) {
		session_lose(session, true, "an OPEN that is none");
		return;
	}
	if (host->stopping)
		th_fail(&err, TH_E_NO_AGENT,
			"the agent is shutting down; open again when it is back");
	else
		check_open(open, &err);
	if (err.code != 0) {
		host->counters.opens_refused++;
		fd_channel_refuse(session, err.code, err.text);
		session_lose(session, false, "its open was refused");
		return;
	}
	memcpy(session->open.model, open->model, sizeof(session->open.model));
	memcpy(session->open.replica, open->replica, sizeof(session->open.replica));
	memcpy(session->open.launch_id, open->launch_id, sizeof(session->open.launch_id));
	/* The parser takes no longer text. */
	memcpy(session->open.retain, open->retain, sizeof(session->open.retain));
	session->open.lineage = open->lineage;
	session->open.shard = open->shard;
	session->open.num_shards = open->num_shards;
	session->open.flags = open->flags;
	session->open.pid = session->peer.pid > 0 ? (uint32_t)session->peer.pid : 0;
	session->state = HOST_SESSION_OPENING;
	TH_FP(agent_opens);
	/*
	 * Without a server there is nothing to wait for; an agent that has just started, or has
	 * just lost it, gets a while. Who opens again and again in little time hears that, too.
	 */
	int64_t now_ns = th_now_ns(), since_ns = host->attached ? now_ns : host->away_ns;
	session_expire_at(
		session, th_max_i64(now_ns, th_min_i64(now_ns, since_ns) + SERVER_PATIENCE_NS));
	struct agent_event event = {
		.kind = AGENT_EV_OPEN, .session = session->id, .u.open = session->open};
	engine_post(host, &event);
}

/* A code with its sentence for a worker that has got none, or code. */
static int
no_descriptors(struct host *host, int code, char text[TH_CTL_TEXT_BYTES])
{
	if (code != -EMFILE && code != -ENFILE)
		return code;
	session_full_text(code, text);
	host->counters.descriptors_refused++;
	return TH_E_LIMIT;
}

void
worker_no_server(struct host_session *session)
{
	const struct host *host = session->host;
	char text[TH_CTL_TEXT_BYTES];
	snprintf(text, sizeof(text),
		"the agent reaches no reference server at %.200s: %.200s; see 'thctl status'",
		link_url(host), host->server_text);
	session->host->counters.opens_refused++;
	fd_channel_refuse(session, TH_E_NO_SERVER, text);
	session_lose(session, false, "there is no server to open it at");
}

/* Everything that the worker gets with SESSION. 0 or -errno. */
static int
make_session(struct host_session *session)
{
	int rc = TH_FP_RC(agent_makes_session);
	if (rc == 0)
		rc = segment_agent_new(&session->segment);
	if (rc < 0)
		return rc;
	rc = doorbell_new();
	if (rc < 0)
		return rc;
	session->bell_in = rc;
	rc = doorbell_timer_new();
	if (rc < 0)
		return rc;
	session->bell_out = rc;
	th_random(session->secret, sizeof(session->secret));
	ring_agent_init(&session->ring, session->segment.w, session->segment.a);
	operations_start_line(session);
	return loop_add(&session->host->loop, &session->bell_source, session->bell_in, EPOLLIN,
		operations_rung, session);
}

void
worker_opened(struct host_session *session, int code, const char *text)
{
	struct host *host = session->host;
	char label[SESSION_LABEL_BYTES];
	if (code != 0) {
		if (session->state == HOST_SESSION_OPENING) {
			host->counters.opens_refused++;
			fd_channel_refuse(session, code, text);
		}
		session_gone(session);
		return;
	}
	if (session->state != HOST_SESSION_OPENING)
		return; /* lost meanwhile, which the core knows by now or will */
	int rc = make_session(session);
	if (rc < 0) {
		char why[TH_CTL_TEXT_BYTES];
		snprintf(
			why, sizeof(why), "the agent cannot set up a session: %s", th_strerror(rc));
		rc = no_descriptors(host, rc, why);
		fd_channel_refuse(session, rc, why);
		session_lose(session, false, why);
		return;
	}
	session->state = HOST_SESSION_OPEN;
	struct fdmsg_session message = {.session = session->id, .next_op = 1};
	memcpy(message.secret, session->secret, sizeof(message.secret));
	const int fds[FDMSG_SESSION_FDS_GPU] = {session->segment.fd_w, session->segment.fd_a,
		session->bell_in, session->bell_out, host->own_pidfd, host->gpu.lifeline[0]};
	fd_channel_say(session, FDMSG_SESSION, &message, sizeof(message), fds,
		session->knows_gpu ? FDMSG_SESSION_FDS_GPU : FDMSG_SESSION_FDS);
	explicit_bzero(&message, sizeof(message));
	th_fd_close(&session->segment.fd_w);
	th_fd_close(&session->segment.fd_a);
	if (session->state != HOST_SESSION_OPEN)
		return;
	host->counters.sessions_opened++;
	log_info("session",
		"worker attached session=%" PRIu64 " shard=%s num_shards=%" PRIu32
		" lineage=%" PRIu64 " pid=%d uid=%u",
		session->id, session_label(session, label), session->open.num_shards,
		session->open.lineage, (int)session->peer.pid, (unsigned)session->peer.uid);
	operations_enqueue(session);
}

void
worker_end(struct host_session *session, int code, const char *text)
{
	struct fdmsg_refused refused = {.code = code};
	char label[SESSION_LABEL_BYTES];
	snprintf(refused.text, sizeof(refused.text), "%s", text);
	session->ended = true;
	session->host->counters.sessions_ended++;
	log_warn("session", "ended session=%" PRIu64 " shard=%s pid=%d code=%s reason=\"%s\"",
		session->id, session_label(session, label), (int)session->peer.pid,
		th_errname(code), text);
	if (session->offload)
		return; /* there is no worker */
	/* Before the core lets the worker see that something has happened: libthc asks then. */
	fd_channel_say(session, FDMSG_REFUSED, &refused, sizeof(refused), NULL, 0);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* The other half is for connections: a worker cannot take those of others. */
static uint32_t
descriptors_max(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return 512;
	return (uint32_t)th_min_u64(limit.rlim_cur / 2, UINT32_MAX);
}

static struct memory_limits
memory_limits(const struct host_session *session)
{
	const struct host *host = session->host;
	struct memory_limits limits = {.objects_max = host->options.memory_objects_max,
		.descriptors_max = descriptors_max(),
		.no_process = (session->open.flags & CTL_OPEN_NO_MEMORY_FD) != 0};
	limits.mapped_by_all = memory_unmapping();
	for (const struct host_session *other = host->sessions; other; other = other->hh.next) {
		limits.mapped_by_all += other->memory.mapped_bytes;
		limits.kept_by_all += other->memory.descriptors;
	}
	return limits;
}

/* answer: of what could be shared all is said; otherwise rc and *err say why not. */
static void
answer_memory(struct host_session *session, struct fdmsg_memory_id *answer, int rc,
	const struct th_err *err)
{
	struct host *host = session->host;
	char label[SESSION_LABEL_BYTES];
	if (rc < 0) {
		snprintf(answer->text, sizeof(answer->text), "%s", err->text);
		rc = answer->code = no_descriptors(host, rc, answer->text);
		host->counters.memory_refused++;
		log_warn("memory", "refused session=%" PRIu64 " shard=%s code=%s reason=\"%s\"",
			session->id, session_label(session, label), th_errname(rc), answer->text);
	} else {
		host->counters.memory_mapped++;
	}
	fd_channel_say(session, FDMSG_MEMORY_ID, answer, sizeof(*answer), NULL, 0);
}

/* received: with its descriptor, for which there may have been no room. */
static int
take_memory(const struct host_session *session, bool received, struct th_err *err)
{
	if (session_observes(session))
		return th_fail(err, TH_E_STATE, AGENT_OBSERVER_REFUSED, "memory");
	int rc = received ? TH_FP_RC(agent_takes_memory) : -EMFILE;
	return rc < 0 ? th_fail(err, rc, "mapping it: %s", th_strerror(rc)) : 0;
}

static void
fd_channel_on_memory(struct host_session *session, const struct fdmsg_memory *message, int *fd)
{
	static const struct {
		const char *path, *text;
	} ways[] = {
		[FDMSG_MEMFD] = {"direct", "a memfd, mapped by the agent"},
		[FDMSG_FILE] = {"copy",
			"a file in memory, read and written through its descriptor"},
		[FDMSG_PROCESS] = {"copy",
			"memory of the process, read and written by its address"},
		[FDMSG_DMABUF] = {"dma-buf", "GPU memory as NICs reach it"},
		[FDMSG_SHADOW] = {"direct", "a memfd to which the worker copies GPU memory"},
	};
	struct fdmsg_memory_id answer = {.token = message->token};
	const struct memory_limits limits = memory_limits(session);
	struct th_err err = {0};
	int rc = take_memory(session, *fd >= 0, &err);
	if (rc == 0)
		rc = memory_add(&session->memory, message, fd, &limits, &err, &answer.id);
	if (rc == 0 && (message->kind == FDMSG_MEMFD || message->kind == FDMSG_SHADOW))
		th_fd_close(fd); /* its close never waits */
	if (rc == 0) {
		snprintf(answer.path, sizeof(answer.path), "%s", ways[message->kind].path);
		snprintf(answer.text, sizeof(answer.text), "%s", ways[message->kind].text);
	}
	answer_memory(session, &answer, rc, &err);
}

static void
on_gpu(struct host_session *session, const struct fdmsg_gpu *message, bool received, int *fd)
{
	const struct gpu_service *gpu = &session->host->gpu;
	struct fdmsg_memory_id answer = {.token = message->token, .path = "cuda-ipc"};
	const struct memory_limits limits = memory_limits(session);
	char label[SESSION_LABEL_BYTES];
	const struct memory_gpu_limits gpu_limits = {.gpus = gpu->gpus,
		.why_not = gpu->why_not,
		.label = session_label(session, label),
		.process = session_process(session)};
	struct th_err err = {0};
	int rc = take_memory(session, received, &err);
	if (rc == 0)
		rc = memory_gpu_add(&session->memory, message, fd, &limits, &gpu_limits,
			session->registration.tensors != NULL, &err, &answer.id);
	if (rc == 0)
		snprintf(answer.text, sizeof(answer.text), "%s, opened by the agent's GPU process",
			memory_gpu_kind(memory_find(&session->memory, answer.id)));
	answer_memory(session, &answer, rc, &err);
}

static void
on_forget(struct host_session *session, const struct fdmsg_forget *forget)
{
	bool in_use = session->held_parts > 0 || session->registration.tensors;
	/* Of a registration that is over: it could not know that they were forgotten by then. */
	if (memory_forget(&session->memory, forget->id, in_use) < 0 &&
		forget->id > session->memory.let_go_id)
		session_lose(session, true, "FORGET of memory that it has not shared");
}

static void
fd_channel_on_borrow(struct host_session *session, const struct fdmsg_borrow *borrow)
{
	if (!loans_borrow(session, borrow))
		session_lose(session, true, "a BORROW that is none");
}

/* ---- CLOSE ---------------------------------------------------------------------------------- */

static void
fd_channel_on_close(struct host_session *session, const struct fdmsg_close *message)
{
	session->state = HOST_SESSION_CLOSING;
	TH_FP(agent_closing);
	struct agent_event event = {.kind = AGENT_EV_CLOSE, .session = session->id};
	event.u.close.abandon = (message->flags & CLOSE_ABANDON) != 0;
	event.u.close.timeout_ns = message->deadline_ns < 0 ? TH_FOREVER : message->deadline_ns;
	engine_post(session->host, &event);
}

void
worker_say_closed(struct host_session *session, int code, const char *text)
{
	char label[SESSION_LABEL_BYTES];
	struct fdmsg_refused closed = {.code = code};
	snprintf(closed.text, sizeof(closed.text), "%s", text);
	log_info("session", "worker closed session=%" PRIu64 " shard=%s code=%s%s%s", session->id,
		session_label(session, label), code == 0 ? "0" : th_errname(code),
		code == 0 ? "" : " reason=", code == 0 ? "" : text);
	TH_FP(agent_closed);
	fd_channel_say(session, FDMSG_CLOSED, &closed, sizeof(closed), NULL, 0);
}

void
worker_closed(struct host_session *session, int code, const char *text)
{
	if (session->state != HOST_SESSION_CLOSING)
		return;
	const struct registration *registration = &session->registration;
	/* Its worker frees GPU memory next: it hears of the end when the agent keeps none. */
	session->owes_closed = code == 0 && (session->memory.hold || registration->wait ||
						    registration->stays.code != 0);
	if (code != 0)
		session->state = HOST_SESSION_OPEN;
	if (!session->owes_closed)
		worker_say_closed(session, code, text);
}

/* ---- receiving ------------------------------------------------------------------------------ */

/* fdmsg_recv has checked the body's size for the kind, and how many descriptors it carries. */
static void
fd_channel_dispatch(struct host_session *session, struct fdmsg *message)
{
	const void *body = message->body;
	bool greeted = session->state == HOST_SESSION_GREETED;
	bool open = session->state == HOST_SESSION_OPEN || session->state == HOST_SESSION_CLOSING;
	unsigned kind = message->head.kind;

	if (kind == FDMSG_HELLO && session->state == HOST_SESSION_HELLO)
		fd_channel_on_hello(session, body);
	else if (kind == FDMSG_OPEN && greeted)
		on_open(session, body);
	else if (kind == FDMSG_MEMORY && open)
		fd_channel_on_memory(session, body, &message->fds[0]);
	else if (kind == FDMSG_GPU && open && session->knows_gpu)
		on_gpu(session, body, message->head.num_fds == 0 || message->fds[0] >= 0,
			&message->fds[0]);
	else if (kind == FDMSG_FORGET && open)
		on_forget(session, body);
	else if (kind == FDMSG_BORROW && open && session->knows_loans)
		fd_channel_on_borrow(session, body);
	else if (kind == FDMSG_CLOSE && open)
		fd_channel_on_close(session, body);
	else
		session_lose(session, true, "a message that does not fit the state of its session");
}

static void
fd_channel_receive(struct host_session *session)
{
	struct fdmsg *message = session->host->message;
	for (int i = 0; i < MESSAGES_A_WAKEUP && session->sock >= 0; i++) {
		int rc = fdmsg_recv(session->sock, message);
		if (rc == -EAGAIN)
			return;
		if (rc == 0) {
			session_lose(session, false, "it hung up");
		} else if (rc == -EPROTO) {
			session_lose(session, true, "a malformed message on the descriptor socket");
		} else if (rc < 0 && rc != -EMFILE) {
			session_lose(session, false, th_strerror(rc));
		} else {
			/* Without its descriptor, for want of one, they are still answered. */
			fd_channel_dispatch(session, message);
			fdmsg_close_fds(message);
		}
	}
}

void
worker_readable(void *arg, uint32_t events)
{
	(void)events;
	fd_channel_receive(arg);
}

void
worker_ended(void *arg, uint32_t events)
{
	struct host_session *session = arg;
	(void)events;
	/* Its last words first: it may have closed in order before it ended. */
	fd_channel_receive(session);
	if (session->sock >= 0)
		session_lose(session, false, "its process ended");
}

/* The spare descriptor serves for a word to the next who connects. 0 or -errno. */
static int
refuse_next(struct host *host, int code)
{
	th_fd_close(&host->spare_fd);
	int sock = listener_accept(host->listener_fd);
	if (sock >= 0)
		session_refuse_full(host, sock, code);
	worker_take_spare(host);
	return sock < 0 ? sock : 0;
}

void
worker_take_spare(struct host *host)
{
	/* Somebody else may have been faster; then it is taken at a later beat. */
	if (host->spare_fd < 0)
		host->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void
worker_connects(void *arg, uint32_t events)
{
	struct host *host = arg;
	(void)events;
	for (int i = 0; i < ACCEPTS_A_WAKEUP; i++) {
		int sock = listener_accept(host->listener_fd);
		if (sock == -EMFILE || sock == -ENFILE) {
			sock = refuse_next(host, sock);
			if (sock == 0)
				continue;
		}
		if (sock >= 0) {
			session_accept(host, sock);
			continue;
		}
		if (sock == -EAGAIN)
			return;
		/* Left as it is, a full descriptor table would make the loop spin. */
		loop_remove(&host->loop, &host->listener_source);
		host->listener_paused = true;
		log_warn("session", "connections wait reason=\"%s\"", th_strerror(sock));
		return;
	}
}

void
worker_resume_listener(struct host *host)
{
	worker_take_spare(host);
	if (!host->listener_paused || host->stopping)
		return;
	host->listener_paused = loop_add(&host->loop, &host->listener_source, host->listener_fd,
					EPOLLIN, worker_connects, host) < 0;
}
