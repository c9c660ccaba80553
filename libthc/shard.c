/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard - a handle as a thing that several threads use: who is inside, who waits, what fork does,
 * and what arrives from the agent. Which calls there are is not known here. Locks: see
 * libthc_own.h.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/failpoint.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "ipc/base/state.h"
#include "ipc/shm/doorbell.h"
#include "ipc/sock/peer.h"
#include "libthc/borrow.h"
#include "libthc/libthc_own.h"
#include "libthc/own_memory.h"

/* The agent writes its heartbeat every second or so; a line that is older is a reason to look. */
#define HEARTBEAT_STALE_NS INT64_C(2000000000)
#define LOOK_PAUSE_NS INT64_C(100000000) /* and then not more often than this */

#define PASSING_MS 5 /* until what no event tells is asked again */

/* ---- the process, and fork ----------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct thc_shard *list;      /* open handles, under list_lock                           */
static struct thc_shard *unused;    /* closed ones that nothing refers to, by next, likewise   */
static _Atomic uint64_t fork_count; /* how many forks lie between the first process and this   */

static void
fork_prepare(void)
{
	/* So that the child finds all in order, whatever other threads were doing. */
	pthread_mutex_lock(&list_lock);
	memory_lock();
	sent_lock();
	lent_lock();
}

static void
fork_parent(void)
{
	lent_unlock();
	sent_unlock();
	memory_unlock();
	pthread_mutex_unlock(&list_lock);
}

static void
close_files(struct thc_shard *shard)
{
	th_fd_close(&shard->sock);
	th_fd_close(&shard->bell_agent);
	th_fd_close(&shard->bell_worker);
	th_fd_close(&shard->agent_pidfd);
	th_fd_close(&shard->lifeline);
	th_fd_close(&shard->kick);
	th_fd_close(&shard->epoll);
	th_fd_close(&shard->uncollected);
}

/*
 * Closes what would keep the parent's session alive and readable. A handle's lock may be held by a
 * thread that does not exist here, so nothing else is touched: the calls answer by the fork count.
 */
static void
fork_child(void)
{
	atomic_fetch_add_explicit(&fork_count, 1, memory_order_relaxed);
	for (struct thc_shard *shard = list; shard != NULL; shard = shard->next) {
		close_files(shard);
		th_fd_close(&shard->giving);
		th_fd_close(&shard->request.fd);
	}
	list = NULL;
	unused = NULL;
	memory_forked();
	lent_forked();
	lent_unlock();
	sent_unlock();
	memory_unlock();
	pthread_mutex_unlock(&list_lock);
}

static void
process_init(void)
{
	enum log_level level = LOG_LEVEL_ERROR;
	const char *text = getenv("THC_LOG");

	/* Without THC_LOG nothing is ever written: level 0 is below all. */
	if (text == NULL || log_parse_level(text, &level) < 0)
		log_set_level((enum log_level)0);
	else
		log_set_level(level);
	(void)pthread_atfork(fork_prepare, fork_parent, fork_child);
}

void
shard_process_init(void)
{
	(void)pthread_once(&once, process_init);
}

uint64_t
shard_fork_count(void)
{
	return atomic_load_explicit(&fork_count, memory_order_relaxed);
}

void
shard_unlist(struct thc_shard *shard)
{
	pthread_mutex_lock(&list_lock);
	if (shard->prev != NULL)
		shard->prev->next = shard->next;
	else
		list = shard->next;
	if (shard->next != NULL)
		shard->next->prev = shard->prev;
	shard->next = NULL;
	shard->prev = NULL;
	pthread_mutex_unlock(&list_lock);
}

void
shard_for_each(void (*visit)(struct thc_shard *shard, uint64_t arg), uint64_t arg)
{
	pthread_mutex_lock(&list_lock);
	for (struct thc_shard *shard = list; shard != NULL; shard = shard->next) {
		pthread_mutex_lock(&shard->lock);
		visit(shard, arg);
		pthread_mutex_unlock(&shard->lock);
	}
	pthread_mutex_unlock(&list_lock);
}

/* ---- life of a handle ---------------------------------------------------------------------- */

static struct thc_shard *
make_shard(void)
{
	pthread_condattr_t attr;
	struct thc_shard *shard = calloc(1, sizeof(*shard));

	if (shard == NULL)
		return NULL;
	/* Of the defaults that glibc gives these three calls none can fail. */
	(void)pthread_mutex_init(&shard->lock, NULL);
	(void)pthread_condattr_init(&attr);
	(void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	(void)pthread_cond_init(&shard->changed, &attr);
	(void)pthread_condattr_destroy(&attr);
	shard->fork_count = shard_fork_count();
	return shard;
}

struct thc_shard *
shard_new(void)
{
	struct fdmsg *message = calloc(1, sizeof(*message));

	if (message == NULL)
		return NULL;
	pthread_mutex_lock(&list_lock);
	struct thc_shard *shard = unused;
	if (shard != NULL)
		unused = shard->next;
	else
		shard = make_shard();
	if (shard == NULL) {
		pthread_mutex_unlock(&list_lock);
		free(message);
		return NULL;
	}
	shard->message = message;
	shard->refs = 1;
	shard->sock = -1;
	shard->bell_agent = -1;
	shard->bell_worker = -1;
	shard->agent_pidfd = -1;
	shard->lifeline = -1;
	shard->kick = -1;
	shard->epoll = -1;
	shard->uncollected = -1;
	shard->giving = -1;
	shard->request.fd = -1;
	/* In the list at once: a fork meanwhile must find the descriptors. */
	shard->next = list;
	if (list != NULL)
		list->prev = shard;
	list = shard;
	pthread_mutex_unlock(&list_lock);
	return shard;
}

/* The last call has left: what a thread might have polled or read is given up. */
static void
tear_down(struct thc_shard *shard)
{
	tensors_release(shard);
	close_files(shard);
	sp_req_close(&shard->request);
	segment_worker_unmap(&shard->files);
}

/* It is unlisted, and closed: a call that finds it reads nothing of what changes here. */
static void
shard_destroy(struct thc_shard *shard)
{
	const size_t kept = offsetof(struct thc_shard, model);

	tear_down(shard);
	attributes_free(shard);
	free(shard->sent);
	free(shard->forgets);
	free(shard->message);
	explicit_bzero((uint8_t *)shard + kept, sizeof(*shard) - kept);
	pthread_mutex_lock(&list_lock);
	shard->next = unused;
	unused = shard;
	pthread_mutex_unlock(&list_lock);
}

void
shard_unref_unlock(struct thc_shard *shard)
{
	bool last = --shard->refs == 0;

	pthread_mutex_unlock(&shard->lock);
	if (last)
		shard_destroy(shard);
}

/* The line tells without a system call that there is something to be read on the socket. */
static bool
ended(struct thc_shard *shard)
{
	uint16_t events[SHM_EV_COUNT];

	ring_events_read(&shard->ring, events);
	if (shard->ended == 0 && !shard_lost(shard) && events[SHM_EV_CONTRACT] != 0)
		shard_look(shard);
	return shard->ended != 0;
}

int
shard_enter(struct thc_shard *shard, unsigned flags)
{
	if (shard == NULL)
		return shim_fail(THC_E_INVALID, "shard: is NULL");
	if (shard->fork_count != shard_fork_count())
		return shim_fail(THC_E_FORKED, "this handle belongs to the parent process; open "
					       "one of its own after fork()");
	pthread_mutex_lock(&shard->lock);
	int rc = 0;
	bool begins = (flags & ENTER_BEGINS_NOTHING) == 0;
	if (shard->life != SHARD_OPEN)
		rc = shim_fail(THC_E_STATE, shard->life == SHARD_CLOSED
						    ? "this handle is closed"
						    : "another thread closes this handle");
	else if ((flags & ENTER_LOST) == 0 && ended(shard))
		rc = errors_from_agent(shard->ended, shard->ended_text);
	else if (begins && session_is_being_closed(shard) && !shard_lost(shard))
		rc = shim_fail(THC_E_STATE,
			"the agent closes this handle, as a thc_close that did not wait for it has "
			"asked; call thc_close again");
	else if (shard_lost(shard) && (flags & ENTER_LOST) == 0)
		rc = shard_lost_error(shard);
	else if (shard->unresolved != NULL && begins)
		rc = shim_fail(THC_E_STATE,
			"the outcome of an operation is not known yet; call thc_resolve first");
	else if (shard->observes && (flags & ENTER_MEMBER) != 0)
		rc = shim_fail(THC_E_STATE,
			"this handle is an observer, which lists, waits and gets manifests, and "
			"nothing else; open one with a replica");
	if (rc < 0) {
		pthread_mutex_unlock(&shard->lock);
		return rc;
	}
	shard->refs++;
	shard->inside++;
	return 0;
}

void
shard_leave(struct thc_shard *shard)
{
	shard->inside--;
	if (shard->life == SHARD_CLOSED && shard->inside == 0)
		tear_down(shard);
	if (shard->life != SHARD_OPEN)
		shard_wake(shard);
	shard_unref_unlock(shard);
}

int
shard_exclusive_begin(struct thc_shard *shard)
{
	if (shard->exclusive)
		return shim_fail(
			THC_E_STATE, "another thread registers, unregisters or closes this handle");
	shard->exclusive = true;
	return 0;
}

void
shard_exclusive_end(struct thc_shard *shard)
{
	shard->exclusive = false;
}

/*
 * The thread that polls for all does not see the condition variable, and what another thread has
 * taken off the doorbell or the socket is not there to wake it: it has a descriptor of its own.
 */
void
shard_wake(struct thc_shard *shard)
{
	pthread_cond_broadcast(&shard->changed);
	if (shard->polling)
		(void)doorbell_signal(shard->kick);
}

/* ---- the end of the agent ------------------------------------------------------------------ */

static const struct th_states agents = {
	"agent of a handle", {
				     [AGENT_THERE] = {"there", TH_STATE(AGENT_LOST)},
				     [AGENT_LOST] = {"lost", TH_STATE(AGENT_LOST_REPORTED)},
				     [AGENT_LOST_REPORTED] = {"lost, reported", 0},
			     }};

void
shard_agent_enter(struct thc_shard *shard, enum shard_agent state, const char *why)
{
	th_state_check(&agents, shard->agent, state, why);
	shard->agent = state;
}

int
shard_lost_error(const struct thc_shard *shard)
{
	return shim_fail(THC_E_AGENT_LOST,
		"%s; this handle holds nothing any more: thc_close it and open again",
		shard->lost_text);
}

void
shard_lose(struct thc_shard *shard, const char *format, ...)
{
	va_list args;

	if (shard_lost(shard))
		return;
	va_start(args, format);
	(void)vsnprintf(shard->lost_text, sizeof(shard->lost_text), format, args);
	va_end(args);
	shard_agent_enter(shard, AGENT_LOST, "given up");
	log_warn("libthc", "agent lost session=%" PRIu64 " reason=\"%s\"", shard->session,
		shard->lost_text);
	/* Tells the agent too when it is this side that gives up. */
	(void)shutdown(shard->sock, SHUT_RDWR);
	if (shard->epoll >= 0) {
		/* What stays readable for ever must not keep thc_fd so. */
		(void)epoll_ctl(shard->epoll, EPOLL_CTL_DEL, shard->sock, NULL);
		(void)epoll_ctl(shard->epoll, EPOLL_CTL_DEL, shard->bell_worker, NULL);
		if (shard->agent_pidfd >= 0)
			(void)epoll_ctl(shard->epoll, EPOLL_CTL_DEL, shard->agent_pidfd, NULL);
	}
	for (uint32_t slot = 0; slot < SHM_CAPACITY; slot++)
		if (shard->ops[slot] != NULL)
			op_finish(shard->ops[slot], THC_E_AGENT_LOST, shard->lost_text);
	shard_wake(shard);
	shard_update_fd(shard);
}

/* ---- what arrives -------------------------------------------------------------------------- */

static void
finish_one(struct thc_shard *shard, const struct shm_completion *completion)
{
	struct shm_slot slot;
	struct thc_op *op = shard->ops[completion->slot];

	if (op == NULL || op->op_seq != completion->op_seq) {
		shard_lose(shard, "the agent completed an operation that was not submitted");
		return;
	}
	if (ring_slot_read(&shard->ring, completion->slot, &slot) < 0 ||
		slot.state != SHM_SLOT_DONE || slot.op_seq != op->op_seq ||
		slot.code != completion->code) {
		shard_lose(shard, "the agent completed an operation without its result");
		return;
	}
	op->result.lineage = slot.lineage;
	op->result.version = slot.version;
	op->result.updated = slot.updated != 0;
	op->result.bytes_moved = slot.bytes_moved;
	op->result.bytes_reused = slot.bytes_reused;
	op->result.wait_ns = slot.wait_ns;
	op->result.transfer_ns = slot.transfer_ns;
	op->result.verify_ns = slot.verify_ns;
	op->result.bytes_prefetched = slot.bytes_prefetched;
	memcpy(op->result.source, slot.source, sizeof(op->result.source));
	memcpy(op->result.transport, slot.transport, sizeof(op->result.transport));
	errors_clean(op->result.source, sizeof(op->result.source));
	errors_clean(op->result.transport, sizeof(op->result.transport));
	if (slot.code == 0)
		memcpy(op->result.reason, slot.sentence, sizeof(op->result.reason));
	errors_clean(op->result.reason, sizeof(op->result.reason));
	op->group_op_seq = slot.group_op_seq;
	TH_FP(worker_completed);
	op_finish(op, completion->code, slot.sentence);
}

void
shard_collect(struct thc_shard *shard)
{
	struct shm_completion completion;
	bool any = false;

	while (!shard_lost(shard)) {
		int rc = ring_pop(&shard->ring, &completion);
		if (rc == 0)
			break;
		if (rc < 0)
			shard_lose(shard, "the agent broke the rules of the ring");
		else
			finish_one(shard, &completion);
		any = true;
	}
	if (any) {
		op_send_cancels(shard);
		shard_wake(shard);
		shard_update_fd(shard);
	}
}

/* The agent ends the session, for a reason of this worker's. What runs is answered on the ring. */
static bool
take_end(struct thc_shard *shard)
{
	struct fdmsg_refused refused;

	memcpy(&refused, shard->message->body, sizeof(refused));
	if (shard->ended != 0 || refused.code >= 0)
		return false;
	memcpy(shard->ended_text, refused.text, sizeof(shard->ended_text));
	shard->ended_text[sizeof(shard->ended_text) - 1] = '\0';
	shard->ended = refused.code;
	log_warn("libthc", "session ended session=%" PRIu64 " reason=\"%s\"", shard->session,
		shard->ended_text);
	return true;
}

/* True when the message was expected. */
static bool
take_message(struct thc_shard *shard)
{
	const struct fdmsg *message = shard->message;

	switch ((enum fdmsg_kind)message->head.kind) {
	case FDMSG_MEMORY_ID:
		return sent_take_answer(shard);
	case FDMSG_CLOSED:
		if (shard->close != CLOSE_ASKED)
			return false;
		memcpy(&shard->close_answer, message->body, sizeof(shard->close_answer));
		shard->close_answer.text[sizeof(shard->close_answer.text) - 1] = '\0';
		shard_close_enter(shard, CLOSE_ANSWERED, "CLOSED");
		return true;
	case FDMSG_LENT:
		return borrow_take_answer(shard);
	case FDMSG_REFUSED:
		return take_end(shard);
	case FDMSG_HELLO:
	case FDMSG_WELCOME:
	case FDMSG_OPEN:
	case FDMSG_SESSION:
	case FDMSG_MEMORY:
	case FDMSG_FORGET:
	case FDMSG_CLOSE:
	case FDMSG_GPU:
	case FDMSG_BORROW:
	default:
		return false;
	}
}

static void
shard_receive(struct thc_shard *shard)
{
	while (!shard_lost(shard)) {
		int rc = fdmsg_recv(shard->sock, shard->message);
		if (rc == -EAGAIN)
			return;
		if (rc == 0) {
			shard_lose(shard, "the agent hung up");
		} else if (rc == -EPROTO) {
			shard_lose(shard, "the agent sent what is no message");
		} else if (rc < 0 && (rc != -EMFILE || shard->message->head.kind != FDMSG_LENT)) {
			shard_lose(
				shard, "the connection to the agent failed: %s", th_strerror(rc));
		} else if (!take_message(shard)) {
			fdmsg_close_fds(shard->message);
			shard_lose(shard, "the agent sent an unexpected message of kind %u",
				shard->message->head.kind);
		}
		shard_wake(shard);
	}
}

#define POLL_BELL 0
#define POLL_SOCK 1
#define POLL_PIDFD 2
#define POLL_KICK 3 /* only for the thread that polls for all */
#define POLL_COUNT 4

static void
poll_set(const struct thc_shard *shard, struct pollfd ret_set[POLL_COUNT])
{
	ret_set[POLL_BELL] = (struct pollfd){.fd = shard->bell_worker, .events = POLLIN};
	ret_set[POLL_SOCK] = (struct pollfd){.fd = shard->sock, .events = POLLIN};
	/* -1, where there is none, is skipped by poll. */
	ret_set[POLL_PIDFD] = (struct pollfd){.fd = shard->agent_pidfd, .events = POLLIN};
	ret_set[POLL_KICK] = (struct pollfd){.fd = -1};
}

static void
poll_take(struct thc_shard *shard, const struct pollfd set[POLL_COUNT])
{
	if (shard_lost(shard))
		return;
	if (set[POLL_BELL].revents != 0 && doorbell_drain(shard->bell_worker) < 0)
		shard_lose(shard, "the agent's doorbell is no doorbell");
	/* Completions first: what was finished before the agent went has its outcome. */
	shard_collect(shard);
	if (set[POLL_SOCK].revents != 0)
		shard_receive(shard);
	if (set[POLL_PIDFD].revents != 0)
		shard_lose(shard, "the agent has ended");
	shard_update_fd(shard);
}

void
shard_look(struct thc_shard *shard)
{
	struct pollfd set[POLL_COUNT];

	if (shard_lost(shard))
		return;
	shard->looked_ns = th_now_ns();
	/* Armed before the ring is looked at, so that what comes later rings (doorbell.h). */
	doorbell_arm(&shard->files.w->sleeping);
	poll_set(shard, set);
	if (poll(set, POLL_COUNT, 0) >= 0)
		poll_take(shard, set);
}

bool
shard_heartbeat_stale(struct thc_shard *shard, const struct shm_line *line)
{
	int64_t now = th_now_ns();

	return now - (int64_t)line->heartbeat_ns > HEARTBEAT_STALE_NS &&
	       now - shard->looked_ns > LOOK_PAUSE_NS;
}

/* ---- thc_fd -------------------------------------------------------------------------------- */

static bool
has_uncollected(struct thc_shard *shard)
{
	uint16_t events[SHM_EV_COUNT];

	if (shard->agent == AGENT_LOST || shard->num_uncollected > 0)
		return true;
	/*
	 * Not by the whole line, which cannot be read while the agent writes it: the doorbell may
	 * have been drained just now, and nobody would look again.
	 */
	ring_events_read(&shard->ring, events);
	return memcmp(events, shard->events_reported, sizeof(events)) != 0;
}

void
shard_update_fd(struct thc_shard *shard)
{
	if (shard->uncollected < 0)
		return;
	bool wanted = has_uncollected(shard);
	if (wanted == shard->uncollected_set)
		return;
	if (wanted)
		(void)doorbell_signal(shard->uncollected);
	else
		(void)doorbell_drain(shard->uncollected);
	shard->uncollected_set = wanted;
}

static int
make_fd(struct thc_shard *shard)
{
	const int watched[] = {shard->bell_worker, shard->sock, shard->agent_pidfd};
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	int uncollected = doorbell_new();
	struct epoll_event event = {.events = EPOLLIN};
	int rc = epoll < 0 ? -errno : uncollected < 0 ? uncollected : 0;

	for (size_t i = 0; rc == 0 && !shard_lost(shard) && i < TH_ARRAY_LEN(watched); i++)
		if (watched[i] >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, watched[i], &event) < 0)
			rc = -errno;
	if (rc == 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, uncollected, &event) < 0)
		rc = -errno;
	if (rc < 0) {
		th_fd_close(&epoll);
		th_fd_close(&uncollected);
		return rc;
	}
	shard->epoll = epoll;
	shard->uncollected = uncollected;
	return 0;
}

/*
 * An epoll set, not the doorbell itself: what a thread drains while it waits for its own
 * operation must not make another's finished operation unseen, and must not spin while that stays
 * uncollected.
 */
int
thc_fd(struct thc_shard *shard)
{
	int rc = shard_enter(shard, ENTER_LOST | ENTER_BEGINS_NOTHING);

	if (rc < 0)
		return rc;
	if (shard->epoll < 0) {
		rc = make_fd(shard);
		if (rc < 0)
			rc = shim_fail(rc, "no descriptor for this handle: %s", th_strerror(rc));
		else
			shard_look(shard);
		shard_update_fd(shard);
	}
	if (rc == 0)
		rc = shard->epoll;
	shard_leave(shard);
	return rc;
}

/* ---- waiting ------------------------------------------------------------------------------- */

void
shard_sleep(struct thc_shard *shard, int64_t until_ns)
{
	struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
		.tv_nsec = (long)(until_ns % 1000000000)};

	if (until_ns == INT64_MAX)
		(void)pthread_cond_wait(&shard->changed, &shard->lock);
	else
		(void)pthread_cond_timedwait(&shard->changed, &shard->lock, &until);
}

/* This thread polls for all. The descriptors stay: it is inside. */
static void
poll_for_all(struct thc_shard *shard, int64_t until_ns)
{
	struct pollfd set[POLL_COUNT];

	doorbell_arm(&shard->files.w->sleeping);
	if (ring_pending(&shard->ring)) {
		shard_collect(shard);
		return;
	}
	shard->polling = true;
	poll_set(shard, set);
	set[POLL_KICK] = (struct pollfd){.fd = shard->kick, .events = POLLIN};
	pthread_mutex_unlock(&shard->lock);
	int rc = poll(set, POLL_COUNT, deadline_poll_ms(until_ns));
	pthread_mutex_lock(&shard->lock);
	shard->polling = false;
	shard->looked_ns = th_now_ns();
	if (rc > 0 && set[POLL_KICK].revents != 0)
		(void)doorbell_drain(shard->kick);
	if (rc > 0)
		poll_take(shard, set);
	/* Also when nothing came: one of the others must poll now. */
	shard_wake(shard);
}

int
shard_await(struct thc_shard *shard, const bool *done, int64_t until_ns)
{
	shard_collect(shard);
	while (done != NULL ? !*done : shard->close != CLOSE_ANSWERED) {
		if (shard_lost(shard))
			return shard_lost_error(shard);
		if (shard->life != SHARD_OPEN && done != NULL)
			return shim_fail(THC_E_CANCELLED, "another thread closes this handle");
		if (deadline_left(until_ns) == 0)
			return -ETIMEDOUT;
		if (shard->polling)
			shard_sleep(shard, until_ns);
		else
			poll_for_all(shard, until_ns);
	}
	return 0;
}

int
shard_send(struct thc_shard *shard, enum fdmsg_kind kind, const void *body, size_t body_bytes,
	const int *fd, int64_t until_ns)
{
	for (;;) {
		if (shard_lost(shard))
			return shard_lost_error(shard);
		int rc = fdmsg_send(shard->sock, kind, body, body_bytes, fd, fd != NULL ? 1 : 0);
		if (rc == 0)
			return 0;
		bool passes = shard_send_passes(rc);
		if (rc != -EAGAIN && !passes) {
			shard_lose(shard, "the agent hung up (%s)", th_strerror(rc));
			return shard_lost_error(shard);
		}
		if (deadline_left(until_ns) == 0)
			return -ETIMEDOUT;
		struct pollfd poll_fd = {.fd = shard->sock, .events = passes ? 0 : POLLOUT};
		pthread_mutex_unlock(&shard->lock);
		(void)poll(&poll_fd, 1, passes ? PASSING_MS : deadline_poll_ms(until_ns));
		pthread_mutex_lock(&shard->lock);
	}
}
