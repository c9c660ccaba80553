/* SPDX-License-Identifier: Apache-2.0 */
/*
 * orderly_end - see orderly_end.h. Main thread only.
 */
#include "daemon/host/orderly_end.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/host/host.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "ipc/base/notify.h"

/* How long the server may take to hear that the sessions are gone, when nothing else runs. */
#define FAREWELL_NS INT64_C(2000000000)

static void
orderly_end_begin(struct host *host)
{
	struct agent_event event = {
		.kind = AGENT_EV_LEAVE, .u.leave_timeout_ns = host->options.drain_ns};
	host->stopping = true;
	host->stop_ns = th_deadline_ns(th_now_ns(), host->options.drain_ns);
	host->farewell_ns = INT64_MAX;
	th_notify("STOPPING=1");
	log_info("main", "stopping sessions=%u transfers_out=%" PRIu32, HASH_COUNT(host->sessions),
		legs_out_running(host));
	loop_remove(&host->loop, &host->listener_source);
	engine_post(host, &event);
}

static void
close_sessions(struct host *host)
{
	/*
	 * To the core every worker closes: it hides the copies, lets the transfers that read them
	 * end, and waits until nobody does. The workers see the end of their connection then.
	 */
	for (struct host_session *session = host->sessions; session; session = session->hh.next) {
		if (session->state < HOST_SESSION_OPENING || session->state >= HOST_SESSION_LOST)
			continue;
		struct agent_event event = {.kind = AGENT_EV_CLOSE, .session = session->id};
		/* What was to be moved has been, or the time is over. */
		event.u.close.abandon = true;
		engine_post(host, &event);
	}
}

void
stop_stays(const struct agent_action *action)
{
	log_warn("main", "stopping waits count=%" PRIu32, action->u.left.num_blockers);
	for (uint32_t i = 0; i < action->u.left.num_texts; i++)
		log_warn("main", "stopping waits: %s", action->u.left.texts[i]);
}

void
stop_left(struct host *host, const struct agent_action *action)
{
	if (action->u.left.code != 0 && action->u.left.num_blockers > 0) {
		host->left_behind = true;
		log_error("main", "left behind count=%" PRIu32, action->u.left.num_blockers);
		for (uint32_t i = 0; i < action->u.left.num_texts; i++)
			log_error("main", "left behind: %s", action->u.left.texts[i]);
	}
	host->left = true;
	host->farewell_ns = th_deadline_ns(th_now_ns(), FAREWELL_NS);
	/* That nothing more is waited for does not mean that there is no time to say good-bye. */
	host->stop_ns = th_max_i64(host->stop_ns, host->farewell_ns);
	close_sessions(host);
}

void
stop_signal(void *arg, int number)
{
	struct host *host = arg;
	if (number == SIGHUP)
		return; /* there is nothing to read again; it must not end the agent */
	if (host->stopping) {
		log_warn("main", "leaving at once reason=\"a second signal\"");
		net_exit(EXIT_SUCCESS);
	}
	orderly_end_begin(host);
}

/* A worker frees GPU memory when it hears of it: soon, for a process that keeps that is killed. */
static bool
owes_closed(const struct host *host)
{
	const struct host_session *session = host->sessions;
	while (session && !session->owes_closed)
		session = session->hh.next;
	return session != NULL;
}

bool
stop_finished(struct host *host, int64_t now_ns)
{
	if (!host->left)
		return false;
	bool idle = legs_out_running(host) == 0;
	if (idle && HASH_COUNT(host->sessions) == 0)
		return true;
	if (idle && now_ns >= host->farewell_ns)
		return true;
	if (idle && !host->attached && !owes_closed(host))
		return true;
	if (now_ns < host->stop_ns)
		return false;
	log_warn("main", "transfers are cut off transfers_out=%" PRIu32, legs_out_running(host));
	return true;
}

int
stop_exit_status(const struct host *host)
{
	return host->left_behind ? EXIT_FAILURE : EXIT_SUCCESS;
}
