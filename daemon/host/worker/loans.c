/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loans - see loans.h. Main thread only.
 */
#include "daemon/host/worker/loans.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "daemon/host/host.h"
#include "daemon/host/memory/host_pool.h"
#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "ipc/sock/fdmsg.h"

struct loan {
	struct loan *prev, *next; /* borrows: of host->loans */
	struct host *host;
	uint64_t id;
	uint64_t session; /* who has asked, and may be gone */
	uint32_t token, shard, pid, uid;
	char model[TH_NAME_MAX + 1];
	struct th_version version;
	struct offload_memory *memory; /* borrows: a loan of it; NULL: it waits */
	int lease;                     /* owns: the write end */
	struct loop_source source;
	int64_t since_ns;
	struct loan *next_dead;
};

static struct loan *
loans_find(const struct host *host, uint64_t id)
{
	struct loan *loan;
	DL_FOREACH(host->loans, loan)
	{
		if (loan->id == id)
			return loan;
	}
	return NULL;
}

/* Freed when the loop's batch is over: its source may still be in it. */
static void
loan_bury(struct loan *loan)
{
	struct host *host = loan->host;
	DL_DELETE(host->loans, loan);
	loop_remove(&host->loop, &loan->source);
	th_fd_close(&loan->lease);
	if (loan->memory)
		offload_returned(loan->memory);
	loan->memory = NULL;
	loan->next_dead = host->dead_loans;
	host->dead_loans = loan;
}

void
loans_reap(struct host *host)
{
	while (host->dead_loans) {
		struct loan *loan = host->dead_loans;
		host->dead_loans = loan->next_dead;
		free(loan);
	}
}

static void
loan_returned(struct loan *loan)
{
	struct agent_event event = {.kind = AGENT_EV_RETURNED, .u.returned_loan = loan->id};
	engine_post(loan->host, &event);
	loan_bury(loan);
}

static void
lease_ended(void *arg, uint32_t events)
{
	struct loan *loan = arg;
	(void)events;
	log_info("loan",
		"returned loan=%" PRIu64 " model=%s version=%" PRIu64 " shard=%" PRIu32
		" pid=%" PRIu32,
		loan->id, loan->model, loan->version.version, loan->shard, loan->pid);
	loan_returned(loan);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static uint64_t
limit(const struct host *host)
{
	uint64_t own = host->options.borrow_limit;
	return own != UINT64_MAX ? own : offload_budget(host->offload) / 2;
}

bool
loans_borrow(struct host_session *session, const struct fdmsg_borrow *borrow)
{
	struct host *host = session->host;
	if (borrow->reserved != 0 || borrow->version == TH_NO_VERSION ||
		borrow->shard >= TH_SHARDS_MAX)
		return false;
	struct loan *loan = th_calloc(1, sizeof(*loan));
	loan->host = host;
	loan->id = ++host->last_loan;
	loan->session = session->id;
	loan->token = borrow->token;
	loan->shard = borrow->shard;
	loan->pid = session->peer.pid > 0 ? (uint32_t)session->peer.pid : 0;
	loan->uid = (uint32_t)session->peer.uid;
	memcpy(loan->model, session->open.model, sizeof(loan->model));
	loan->version = (struct th_version){borrow->lineage, borrow->version};
	loan->lease = loan->source.fd = -1;
	DL_APPEND(host->loans, loan);
	struct agent_event event = {.kind = AGENT_EV_BORROW, .session = session->id};
	event.u.borrow.id = loan->id;
	event.u.borrow.version = loan->version;
	event.u.borrow.shard = loan->shard;
	event.u.borrow.timeout_ns = borrow->deadline_ns < 0 ? TH_FOREVER : borrow->deadline_ns;
	event.u.borrow.limit = limit(host);
	engine_post(host, &event);
	return true;
}

/* ---- answering ------------------------------------------------------------------------------- */

/* To who has asked, if he is still there. */
static void
loans_say(const struct loan *loan, const struct fdmsg_lent *lent, const int *fds, uint32_t num_fds)
{
	struct host_session *session = session_find(loan->host, loan->session);
	if (!session || session->state != HOST_SESSION_OPEN)
		return;
	int rc = fdmsg_send(session->sock, FDMSG_LENT, lent, sizeof(*lent), fds, num_fds);
	if (rc == -EAGAIN)
		session_lose(session, true, "it does not read its answers");
	else if (rc < 0)
		session_lose(session, false, th_strerror(rc));
}

static void
loan_answer(const struct loan *loan, int code, const char *text)
{
	struct fdmsg_lent lent = {.token = loan->token, .code = code};
	snprintf(lent.text, sizeof(lent.text), "%s", text);
	loan->host->counters.loans_refused++;
	log_warn("loan",
		"refused loan=%" PRIu64 " model=%s version=%" PRIu64 " shard=%" PRIu32
		" code=%s reason=\"%s\"",
		loan->id, loan->model, loan->version.version, loan->shard, th_errname(code), text);
	loans_say(loan, &lent, NULL, 0);
}

void
loans_refused(struct host *host, const struct agent_action *action)
{
	struct loan *loan = loans_find(host, action->u.loan.id);
	if (!loan)
		return;
	loan_answer(loan, action->u.loan.code, action->u.loan.text);
	loan_bury(loan);
}

/* The lease's read end for him, or -errno. */
static int
make_lease(struct loan *loan)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	loan->lease = ends[1];
	/* That nobody has the read end is told without being asked for. */
	int rc = loop_add(&loan->host->loop, &loan->source, loan->lease, 0, lease_ended, loan);
	if (rc < 0) {
		th_fd_close(&ends[0]);
		return rc;
	}
	return ends[0];
}

static int
hand_out(struct loan *loan, struct offload_memory *memory)
{
	struct fdmsg_lent lent = {.token = loan->token, .bytes = offload_bytes(memory)};
	int fds[FDMSG_LENT_FDS] = {-1, -1};
	int rc = fds[0] = offload_lend(memory);
	if (rc < 0)
		return rc;
	loan->memory = memory;
	rc = fds[1] = make_lease(loan);
	if (rc >= 0) {
		/* Should he be gone, the lease ends as it is closed here. */
		loans_say(loan, &lent, fds, FDMSG_LENT_FDS);
		loan->since_ns = th_now_ns();
		loan->host->counters.loans++;
		log_info("loan",
			"lent loan=%" PRIu64 " model=%s version=%" PRIu64 " shard=%" PRIu32
			" pid=%" PRIu32 " bytes=%" PRIu64,
			loan->id, loan->model, loan->version.version, loan->shard, loan->pid,
			lent.bytes);
	}
	th_fd_close(&fds[0]);
	th_fd_close(&fds[1]);
	return rc < 0 ? rc : 0;
}

void
loans_lend(struct host *host, const struct agent_action *action)
{
	struct loan *loan = loans_find(host, action->u.loan.id);
	const struct host_session *copy = session_find(host, action->session);
	char text[TH_CTL_TEXT_BYTES];
	if (!loan)
		return;
	int rc = copy && copy->offload ? hand_out(loan, copy->offload) : -ESTALE;
	if (rc == 0)
		return;
	snprintf(text, sizeof(text),
		rc == -EINVAL
			? "borrow: this kernel cannot seal memory against writing (Linux 5.1 can)"
			: "borrow: the agent cannot hand out its memory: %s",
		th_strerror(rc));
	if (rc == -EMFILE || rc == -ENFILE) {
		session_full_text(rc, text);
		rc = TH_E_LIMIT;
	}
	loan_answer(loan, rc, text);
	loan_returned(loan);
}

/* ---- the rest -------------------------------------------------------------------------------- */

bool
loans_at(const struct host *host, uint32_t index, struct loan_info *ret_info)
{
	const struct loan *loan;
	DL_FOREACH(host->loans, loan)
	{
		if (!loan->memory || index-- > 0)
			continue;
		*ret_info = (struct loan_info){.version = loan->version,
			.shard = loan->shard,
			.pid = loan->pid,
			.uid = loan->uid,
			.bytes = offload_bytes(loan->memory),
			.age_ns = th_now_ns() - loan->since_ns};
		memcpy(ret_info->model, loan->model, sizeof(ret_info->model));
		return true;
	}
	return false;
}

void
loans_free(struct host *host)
{
	while (host->loans)
		loan_bury(host->loans);
	loans_reap(host);
}
