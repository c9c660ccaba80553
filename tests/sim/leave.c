/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leave - agents that are told to end: nothing new begins, the core says when it may go, the
 * sessions are closed, the process ends, and is started again later.
 */
#include "tests/sim/sim.h"

#define LOOK_NS (20 * MS)
#define FAREWELL_NS (2 * SEC)

struct leaving { /* an agent process that has got its signal */
	struct task task;
	struct host *host;
	uint64_t life;
};

static void look(struct task *task);

static void
look_later(struct host *host)
{
	struct leaving *leaving = task_new(sizeof(*leaving), look, NULL);

	leaving->host = host;
	leaving->life = host->process.life;
	task_in(&leaving->task, LOOK_NS);
}

static bool
serves(const struct host *host)
{
	for (const struct leg *leg = world.legs; leg != NULL; leg = leg->next) {
		if (leg->serving && leg->from_host == host && leg->from_life == host->process.life)
			return true;
	}
	return false;
}

static bool
finished(const struct host *host)
{
	if (!host->left)
		return false;
	if (serves(host))
		return world.now_ns >= host->stop_ns;
	return host->handles == NULL || !host->attached || world.now_ns >= host->farewell_ns;
}

static void
look(struct task *task)
{
	const struct leaving *mine = (const struct leaving *)task;
	struct host *host = mine->host;

	if (!host->process.alive || host->process.life != mine->life)
		return;
	if (host->process.paused || !finished(host)) {
		look_later(host);
		return;
	}
	TRACE("host # has left", host->process.index);
	host_crash(host);
	fault_host_starts(host, between(RNG_MOVE, 100 * MS, 5 * SEC));
}

void
host_leave(struct host *host, int64_t timeout_ns)
{
	if (!host->process.alive || host->leaving)
		return;
	TRACE("host # is told to end within # ms", host->process.index,
		(uint64_t)(timeout_ns / MS));
	host->leaving = true;
	host->stop_ns = world.now_ns + timeout_ns;
	host_tell(host, AGENT_EV_LEAVE, 0, 0)->u.leave_timeout_ns = timeout_ns;
	look_later(host);
}

void
host_left(struct host *host, int code)
{
	TRACE("host # may go: !", host->process.index, TRACE_E(code));
	host->left = true;
	host->farewell_ns = world.now_ns + FAREWELL_NS;
	host->stop_ns = th_max_i64(host->stop_ns, host->farewell_ns);
	for (struct handle *handle = host->handles; handle != NULL; handle = handle->next) {
		struct worker *worker = handle->worker;
		/* Of one that has not knocked yet nobody knows. */
		if (worker != NULL && worker->open_ns >= world.now_ns)
			continue;
		host_tell(host, AGENT_EV_CLOSE, handle->id, 0)->u.close.abandon = true;
	}
}
