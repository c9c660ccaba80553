/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open_close - thc_open and thc_close: one connection to the agent's descriptor socket is one
 * handle.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/failpoint.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "ipc/base/name.h"
#include "ipc/base/path.h"
#include "ipc/base/retain_rules.h"
#include "ipc/base/state.h"
#include "ipc/shm/doorbell.h"
#include "ipc/sock/agent_dir.h"
#include "ipc/sock/owner.h"
#include "libthc/dial.h"
#include "libthc/libthc_own.h"

/* ---- arguments ----------------------------------------------------------------------------- */

#define OPEN_FLAGS                                                                                 \
	(THC_SPOT | THC_REQUIRE_RDMA | THC_OFFLOAD_SEED | THC_NO_MEMORY_FD | THC_STAGED |          \
		THC_PREFETCH)

static int
open_close_check_flags(uint32_t flags)
{
	if ((flags & ~(uint32_t)OPEN_FLAGS) != 0)
		return shim_fail(
			THC_E_INVALID, "opts->flags: 0x%" PRIx32 " has unknown bits", flags);
	return 0;
}

static int
check_name(const char *field, const char *name, char ret_name[TH_NAME_MAX + 1])
{
	if (name == NULL)
		return shim_fail(THC_E_INVALID, "opts->%s: is NULL", field);
	if (!th_name_valid(name, TH_NAME_MAX) || th_name_copy(ret_name, name) < 0)
		return shim_fail(THC_E_INVALID,
			"opts->%s: must be 1 to %d bytes of UTF-8 without control characters",
			field, TH_NAME_MAX);
	return 0;
}

static int
check_retain(const char *retain, char *ret_retain, size_t bytes)
{
	struct th_retain rules;
	struct th_err err;

	if (retain == NULL)
		return 0;
	if (th_retain_parse(retain, &rules, &err) < 0)
		return shim_fail(err.code, "opts->%s", err.text);
	(void)snprintf(ret_retain, bytes, "%s", retain);
	return 0;
}

/* The caller's options in the form of this library; an older header has up to lineage at least. */
static int
take_opts(const struct thc_open_opts *opts, struct thc_open_opts *ret_opts)
{
	if (opts == NULL)
		return shim_fail(THC_E_INVALID, "opts: is NULL");
	return struct_take("opts->struct_size", opts, opts->struct_size,
		offsetof(struct thc_open_opts, retain), ret_opts, sizeof(*ret_opts));
}

static int
check_opts(const struct thc_open_opts *opts, struct fdmsg_open *ret_open)
{
	int rc = check_name("model", opts->model, ret_open->model);
	/* NULL: an observer. Whether the other fields fit to that is the agent's to say. */
	if (rc == 0 && opts->replica != NULL)
		rc = check_name("replica", opts->replica, ret_open->replica);
	if (rc == 0 && opts->launch_id != NULL)
		rc = check_name("launch_id", opts->launch_id, ret_open->launch_id);
	if (rc < 0)
		return rc;
	if (opts->num_shards == 0 || opts->num_shards > TH_SHARDS_MAX)
		return shim_fail(THC_E_INVALID,
			"opts->num_shards: is %" PRIu32 "; a group has 1 to %d shards",
			opts->num_shards, TH_SHARDS_MAX);
	if (opts->shard >= opts->num_shards)
		return shim_fail(THC_E_INVALID,
			"opts->shard: is %" PRIu32 ", not below num_shards, which is %" PRIu32,
			opts->shard, opts->num_shards);
	rc = check_retain(opts->retain, ret_open->retain, sizeof(ret_open->retain));
	if (rc < 0)
		return rc;
	ret_open->lineage = opts->lineage;
	ret_open->shard = opts->shard;
	ret_open->num_shards = opts->num_shards;
	ret_open->flags = opts->flags;
	return open_close_check_flags(opts->flags);
}

struct endpoints { /* of the agent */
	char fds[DIAL_PATH_MAX + 1], ipc[DIAL_PATH_MAX + 1];
	char looked[AGENT_DIR_LOOKED_BYTES]; /* "": the directory was named */
};

static int
set_endpoint(
	const char *what, const char *folder, const char *file, char ret_path[DIAL_PATH_MAX + 1])
{
	int length = folder[0] == '\0'
			     ? -1
			     : snprintf(ret_path, DIAL_PATH_MAX + 1, "%s/%s", folder, file);

	if (length >= 0 && length <= DIAL_PATH_MAX)
		return 0;
	return shim_fail(THC_E_INVALID,
		"%s: is too long for a socket address, which has %d bytes with '/%s'", what,
		DIAL_PATH_MAX, file);
}

/* In the argument's directory, else the environment's, else where an agent is looked for. */
static int
find_endpoints(const char *agent, struct endpoints *ret_endpoints)
{
	const char *what = "opts->agent";
	struct agent_dir found;
	char folder[DIAL_PATH_MAX + 1] = ""; /* "": too long */

	ret_endpoints->looked[0] = '\0';
	if (agent == NULL) {
		agent = getenv("THC_AGENT");
		what = agent != NULL ? "opts->agent (from THC_AGENT)" : what;
	}
	if (agent == NULL) {
		agent_dir_find(&found, ret_endpoints->looked);
		agent = found.path;
	}
	if (agent[0] == '\0')
		return shim_fail(THC_E_INVALID, "%s: is empty", what);
	/* Documents connect again later, from whatever folder the process is in then. */
	int rc = th_path_absolute(agent, folder, sizeof(folder));
	if (rc < 0 && rc != -ENAMETOOLONG)
		return shim_fail(THC_E_INVALID,
			"%s: '%s' is relative to a folder that has no name (%s); give the whole "
			"path",
			what, agent, th_strerror(rc));
	rc = set_endpoint(what, folder, "agent.fds", ret_endpoints->fds);
	return rc < 0 ? rc : set_endpoint(what, folder, "agent.ipc", ret_endpoints->ipc);
}

/* ---- life ---------------------------------------------------------------------------------- */

static const struct th_states lives = {"handle",
	{
		[SHARD_CLOSED] = {"closed", TH_STATE(SHARD_OPEN)},
		[SHARD_OPEN] = {"open", TH_STATE(SHARD_CLOSING)},
		[SHARD_CLOSING] = {"closing", TH_STATE(SHARD_OPEN) | TH_STATE(SHARD_CLOSED)},
	}};

/* A program that closes twice is refused before (shard_enter). */
static void
life_enter(struct thc_shard *shard, enum shard_life life, const char *why)
{
	th_state_check(&lives, shard->life, life, why);
	shard->life = life;
}

/* ---- open ---------------------------------------------------------------------------------- */

static int
open_close_timed_out(const char *what)
{
	return shim_fail(THC_E_TIMEOUT, "%s before the deadline; nothing was changed", what);
}

static int
connect_agent(struct thc_shard *shard, const struct endpoints *endpoints, int64_t until_ns)
{
	const char *path = endpoints->fds;

	TH_FP(worker_connects);
	int rc = dial_unix(path, SOCK_SEQPACKET, until_ns);

	if (rc >= 0) {
		shard->sock = rc;
		rc = owner_check(shard->sock, path, errors_last());
		if (rc == 0 || rc == THC_E_DENIED)
			return rc;
	}
	switch (rc) {
	case -ENOENT:
	case -ECONNREFUSED:
		return shim_fail(THC_E_NO_AGENT,
			"no agent listens at %s; start one by `thctl up`, or set THC_AGENT to the "
			"directory of one that runs%s%s",
			path, endpoints->looked[0] != '\0' ? "; looked at " : "",
			endpoints->looked);
	case -EACCES:
	case -EPERM:
		return shim_fail(THC_E_DENIED,
			"%s may not be opened by this user; the agent's group may", path);
	case -ETIMEDOUT:
		return open_close_timed_out("the agent did not take the connection");
	default:
		return shim_fail(rc, "connecting to %s: %s", path, th_strerror(rc));
	}
}

/* Sends one message and takes the answer into shard->message: of kind expected, or REFUSED. */
static int
open_close_ask(struct thc_shard *shard, enum fdmsg_kind kind, const void *body, size_t bytes,
	enum fdmsg_kind expected, int64_t until_ns)
{
	struct fdmsg *message = shard->message;
	struct fdmsg_refused refused;
	int rc = fdmsg_send(shard->sock, kind, body, bytes, NULL, 0);

	/* It may have refused the connection and hung up: what it said is still to be read. */
	if (rc == -EPIPE || rc == -ECONNRESET)
		rc = 0;
	while (rc == 0) {
		rc = dial_wait(shard->sock, POLLIN, until_ns);
		if (rc == 0)
			rc = fdmsg_recv(shard->sock, message);
		if (rc == 0)
			rc = -EPIPE;
		else if (rc == -EAGAIN)
			rc = 0; /* woken for nothing */
	}
	if (rc == -ETIMEDOUT)
		return open_close_timed_out("the agent did not answer");
	if (rc == -EMFILE)
		return shim_fail(rc,
			"this process has no descriptors left for a handle; close some, or raise "
			"its limit of open files (ulimit -n)");
	if (rc == -EPROTO)
		return shim_fail(THC_E_PROTOCOL,
			"what listens at the agent's endpoint does not speak its protocol");
	if (rc < 0)
		return shim_fail(THC_E_AGENT_LOST,
			"the agent hung up while the handle was opened (%s); its log says why",
			th_strerror(rc));
	if (message->head.kind == FDMSG_REFUSED) {
		memcpy(&refused, message->body, sizeof(refused));
		refused.text[sizeof(refused.text) - 1] = '\0';
		return errors_from_agent(refused.code, refused.text);
	}
	if (message->head.kind != expected) {
		fdmsg_close_fds(message);
		return shim_fail(THC_E_PROTOCOL, "the agent sent message %u where %u was due",
			message->head.kind, (unsigned)expected);
	}
	return 0;
}

static int
say_hello(struct thc_shard *shard, int64_t until_ns)
{
	const struct fdmsg_hello hello = {.protocol_min = FDMSG_PROTOCOL_MIN,
		.protocol_max = FDMSG_PROTOCOL_MAX,
		.features = FDMSG_FEATURES,
		.page_bytes = (uint32_t)sysconf(_SC_PAGESIZE)};
	struct fdmsg_welcome welcome;
	int rc = open_close_ask(shard, FDMSG_HELLO, &hello, sizeof(hello), FDMSG_WELCOME, until_ns);

	if (rc < 0)
		return rc;
	memcpy(&welcome, shard->message->body, sizeof(welcome));
	/* As unsigned numbers: also when the lower bound is 0 one day. */
	if (welcome.protocol - FDMSG_PROTOCOL_MIN > FDMSG_PROTOCOL_MAX - FDMSG_PROTOCOL_MIN)
		return shim_fail(THC_E_PROTOCOL,
			"the agent speaks protocol %" PRIu32 " to %" PRIu32
			", this libthc %u to %u; upgrade the older one",
			welcome.protocol, welcome.protocol, FDMSG_PROTOCOL_MIN, FDMSG_PROTOCOL_MAX);
	shard->tensors_max = welcome.tensors_max;
	shard->features = welcome.features & hello.features;
	return 0;
}

static int
open_close_join(struct thc_shard *shard, const struct fdmsg_open *open, int64_t until_ns)
{
	struct fdmsg_session session;
	struct fdmsg *message = shard->message;
	int rc = open_close_ask(shard, FDMSG_OPEN, open, sizeof(*open), FDMSG_SESSION, until_ns);

	if (rc < 0)
		return rc;
	memcpy(&session, message->body, sizeof(session));
	rc = segment_worker_map(message->fds[0], message->fds[1], &shard->files);
	shard->bell_agent = th_fd_move(&message->fds[2]);
	shard->bell_worker = th_fd_move(&message->fds[3]);
	shard->agent_pidfd = th_fd_move(&message->fds[4]);
	shard->lifeline = th_fd_move(&message->fds[5]);
	fdmsg_close_fds(message);
	if (rc == 0 && (shard->lifeline >= 0) != ((shard->features & FDMSG_FEATURE_GPU) != 0))
		rc = -EPROTO;
	explicit_bzero(message->body, sizeof(session));
	if (rc < 0)
		return shim_fail(rc == -EPROTO ? THC_E_PROTOCOL : rc,
			"the descriptors of the session cannot be used: %s", th_strerror(rc));
	ring_worker_init(&shard->ring, shard->files.w, shard->files.a);
	shard->session = session.session;
	memcpy(shard->secret, session.secret, sizeof(shard->secret));
	explicit_bzero(&session.secret, sizeof(session.secret));
	TH_FP(worker_joined);
	shard->next_op_seq = session.next_op;
	/* What happened before this handle was there is not its news. */
	ring_events_read(&shard->ring, shard->events_reported);
	memcpy(shard->model, open->model, sizeof(shard->model));
	doorbell_arm(&shard->files.w->sleeping);
	return 0;
}

int
thc_open(const struct thc_open_opts *opts, int64_t timeout_ms, struct thc_shard **ret_shard)
{
	struct thc_open_opts own;
	struct fdmsg_open open = {0};
	struct endpoints endpoints;
	int64_t deadline_ns = 0;
	int rc = take_opts(opts, &own);

	if (rc == 0)
		rc = check_opts(&own, &open);
	if (rc == 0)
		rc = find_endpoints(own.agent, &endpoints);
	if (rc == 0)
		rc = deadline_of(timeout_ms, &deadline_ns);
	if (rc == 0 && ret_shard == NULL)
		rc = shim_fail(THC_E_INVALID, "ret_shard: is NULL");
	if (rc < 0)
		return rc;
	shard_process_init();
	struct thc_shard *shard = shard_new();
	if (shard == NULL)
		return shim_fail(-ENOMEM, "out of memory for a handle");
	shard->open_flags = own.flags;
	shard->observes = own.replica == NULL;
	int64_t until_ns = deadline_with_grace(deadline_ns);
	rc = sp_req_init(&shard->request, endpoints.ipc);
	if (rc == 0) {
		shard->kick = doorbell_new();
		if (shard->kick < 0)
			rc = shim_fail(shard->kick, "no descriptor for this handle: %s",
				th_strerror(shard->kick));
	}
	if (rc == 0)
		rc = connect_agent(shard, &endpoints, until_ns);
	if (rc == 0)
		rc = say_hello(shard, until_ns);
	if (rc == 0)
		rc = open_close_join(shard, &open, until_ns);
	if (rc < 0) {
		shard_unlist(shard);
		pthread_mutex_lock(&shard->lock);
		shard_unref_unlock(shard);
		return rc;
	}
	/* Under the lock: somebody may still ask what was closed at this address. */
	pthread_mutex_lock(&shard->lock);
	life_enter(shard, SHARD_OPEN, "thc_open");
	pthread_mutex_unlock(&shard->lock);
	log_info("libthc", "opened model=%s replica=%s shard=%" PRIu32 " session=%" PRIu64,
		open.model, open.replica, open.shard, shard->session);
	*ret_shard = shard;
	return 0;
}

/* ---- close --------------------------------------------------------------------------------- */

static const struct th_states closes = {
	"close of a handle", {
				     [CLOSE_NOT_ASKED] = {"not asked", TH_STATE(CLOSE_ASKED)},
				     [CLOSE_ASKED] = {"asked", TH_STATE(CLOSE_ANSWERED)},
				     [CLOSE_ANSWERED] = {"answered", TH_STATE(CLOSE_NOT_ASKED)},
			     }};

void
shard_close_enter(struct thc_shard *shard, enum shard_close state, const char *why)
{
	th_state_check(&closes, shard->close, state, why);
	shard->close = state;
}

static int
closes_on(uint32_t flags, const char *why)
{
	return shim_fail(THC_E_TIMEOUT, "%s; %s", why,
		(flags & THC_CLOSE_ABANDON) != 0 ? "the handle is freed all the same"
						 : "close again, or abandon the handle");
}

/*
 * Other threads' calls end by themselves now, one that has no room to send when there is some or at
 * its deadline; until they have the descriptors must stay.
 */
static int
wait_alone(struct thc_shard *shard, uint32_t flags, int64_t until_ns)
{
	shard_wake(shard);
	while (shard->inside > 1) {
		if (deadline_left(until_ns) == 0)
			return closes_on(flags, "another thread is still in a call of this handle");
		shard_sleep(shard, until_ns);
	}
	return 0;
}

/* 0 when the agent has let go of everything, or is gone. */
static int
close_session(struct thc_shard *shard, uint32_t flags, int64_t deadline_ns)
{
	const struct fdmsg_close close_message = {
		.flags = flags, .deadline_ns = deadline_left(deadline_ns)};
	int64_t until_ns = deadline_with_grace(deadline_ns);
	int rc = 0;

	TH_FP(worker_closes);
	if (shard->close == CLOSE_NOT_ASKED) {
		rc = shard_send(
			shard, FDMSG_CLOSE, &close_message, sizeof(close_message), NULL, until_ns);
		/* Before any answer can be taken: the lock was not given back since. */
		if (rc == 0)
			shard_close_enter(shard, CLOSE_ASKED, "thc_close");
	}
	if (rc == 0)
		rc = shard_await(shard, NULL, until_ns);
	if (rc == THC_E_AGENT_LOST)
		return 0;
	if (rc == -ETIMEDOUT)
		return closes_on(flags, "the agent has not let go of the memory yet");
	if (rc < 0)
		return rc;
	shard_close_enter(
		shard, CLOSE_NOT_ASKED, "the answer is used up: a later close asks again");
	if (shard->close_answer.code == 0)
		return 0;
	return errors_from_agent(shard->close_answer.code, shard->close_answer.text);
}

bool
session_is_being_closed(struct thc_shard *shard)
{
	if (shard->close == CLOSE_NOT_ASKED)
		return false;
	if (shard->close == CLOSE_ASKED)
		shard_look(shard);
	/* That a device keeps memory is said once, as the session ends: to a thc_close. */
	if (shard->close == CLOSE_ASKED || shard->close_answer.code == 0 ||
		shard->close_answer.code == -EBUSY)
		return true;
	shard_close_enter(
		shard, CLOSE_NOT_ASKED, "nobody waited for this answer: a later close asks again");
	return false;
}

/* The lock is held and given back; the handle is gone. */
static void
finish_close(struct thc_shard *shard)
{
	TH_FP(worker_closed);
	life_enter(shard, SHARD_CLOSED, "let go of");
	op_end_all(shard);
	/* Who copies or registers yet, abandoned with the handle, has them until it leaves. */
	if (!shard->shadow.copying && !shard->exclusive)
		tensors_release(shard);
	(void)shutdown(shard->sock, SHUT_RDWR);
	shard_wake(shard);
	/* The list's lock comes before the handle's; closed keeps everybody else out meanwhile. */
	pthread_mutex_unlock(&shard->lock);
	shard_unlist(shard);
	pthread_mutex_lock(&shard->lock);
	shard->refs--; /* the caller's; the one of this call is still there */
	shard_leave(shard);
}

int
thc_close(struct thc_shard *shard, uint32_t flags, int64_t timeout_ms)
{
	int64_t deadline_ns = 0;
	int rc = 0;

	if ((flags & ~(uint32_t)THC_CLOSE_ABANDON) != 0)
		return shim_fail(THC_E_INVALID, "flags: 0x%" PRIx32 " has unknown bits", flags);
	/* It would wait for itself to leave. */
	if (shard != NULL && wait_is_judging(shard))
		return shim_fail(THC_E_STATE,
			"a predicate of thc_wait cannot close the handle that is waited on");
	rc = deadline_of(timeout_ms, &deadline_ns);
	if (rc == 0)
		rc = shard_enter(shard, ENTER_LOST | ENTER_BEGINS_NOTHING);
	if (rc < 0)
		return rc;
	bool abandon = (flags & THC_CLOSE_ABANDON) != 0;
	life_enter(shard, SHARD_CLOSING, "thc_close");
	rc = wait_alone(shard, flags, deadline_with_grace(deadline_ns));
	if (rc == 0) {
		shard_look(shard); /* the agent may be gone, and then nothing is waited for */
		if (!shard_lost(shard) || shard->close == CLOSE_ANSWERED)
			rc = close_session(shard, flags, deadline_ns);
	}
	if (rc == 0 || abandon) {
		finish_close(shard);
		return rc;
	}
	life_enter(shard, SHARD_OPEN, "thc_close has failed");
	shard_leave(shard);
	return rc;
}
