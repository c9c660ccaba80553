/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader - what a worker asks beside its group's operations: thc_list, thc_wait, and what "latest"
 * means now.
 *
 *   THINKS -> ASKS (LIST or RESOLVE) -> THINKS, or WAITS for a newer listing -> ASKS
 *
 * As libthc does it: a wait is a watch of the listing that was seen last. A list of the whole group
 * is fetched when its operation has ended.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/check.h"
#include "tests/sim/sim.h"

#define WAIT_PERCENT 60u
#define RESOLVE_PERCENT 25u

static struct reader readers[GROUPS_MAX][SHARDS_MAX];

struct reader_task {
	struct task task;
	struct worker *worker;
	uint64_t life;
};

void
reader_start(void)
{
	memset(readers, 0, sizeof(readers));
}

struct reader *
reader_of(const struct worker *worker)
{
	return &readers[worker->group->index][worker->shard];
}

static bool
is_open(const struct worker *worker)
{
	return worker->handle != NULL && (worker->state == W_IDLE || worker->state == W_BUSY);
}

static void ask(struct task *task);

static void
later(struct worker *worker)
{
	struct reader_task *task = task_new(sizeof(*task), ask, NULL);

	reader_of(worker)->state = READER_THINKS;
	task->worker = worker;
	task->life = worker->life;
	task_in(&task->task, between(RNG_READ, MS, world.options.list_ns));
}

bool
reader_question(struct handle *handle, uint32_t model, enum ctl_request_kind kind, uint64_t sid,
	uint64_t op_seq)
{
	struct host *host = handle->host;
	struct ctl_request request = {
		.kind = kind,
		.agent_inc = host->inc,
		.secret = host->secret,
		.attach_no = agent_core_attach_no(host->core),
	};

	if (request.attach_no == 0)
		return false;
	request.request_no = agent_core_request_no(host->core);
	char *name = kind == CTL_LIST ? request.u.list.model : request.u.resolve.model;
	snprintf(name, TH_NAME_MAX + 1, "model%u", model);
	if (kind == CTL_RESOLVE) {
		strcpy(request.u.resolve.spec, "latest");
	} else if (op_seq != 0) {
		request.u.list.sid = sid;
		request.u.list.op_seq = op_seq;
	}
	net_request(host, AGENT_CHANNEL_CONTROL, &request, 0, handle->id);
	return true;
}

static bool
request(struct worker *worker, enum ctl_request_kind kind, uint64_t op_seq)
{
	return reader_question(worker->handle, worker->group->model, kind, worker->sid, op_seq);
}

static void
ask(struct task *task)
{
	struct reader_task *mine = (struct reader_task *)task;
	struct worker *worker = mine->worker;

	if (worker->life != mine->life || world.closing)
		return;
	enum ctl_request_kind kind = percent(RNG_READ, RESOLVE_PERCENT) ? CTL_RESOLVE : CTL_LIST;
	if (is_open(worker) && request(worker, kind, 0))
		reader_of(worker)->state = READER_ASKS;
	else
		later(worker);
}

void
reader_begin(struct worker *worker)
{
	struct reader *reader = reader_of(worker);

	/* It has registered other tensors. */
	if (reader->life == worker->life)
		return;
	*reader = (struct reader){.life = worker->life};
	if (world.options.list_ns > 0)
		later(worker);
}

bool
reader_fetch(struct worker *worker, uint64_t op_seq)
{
	return world.options.list_ns > 0 && is_open(worker) && request(worker, CTL_LIST, op_seq);
}

void
reader_answered(
	struct worker *worker, const struct flight *flight, int code, const struct listed *listed)
{
	struct reader *reader = reader_of(worker);

	TRACE("worker #/# hears from its question #: !, generation #", worker->group->index,
		worker->shard, flight->kind, TRACE_E(code),
		code != 0 || listed == NULL ? 0 : listed->generation);
	if (flight->op_seq != 0) {
		if (code == 0)
			check_list_grouped(worker, flight->op_seq, listed);
		worker_listed(worker);
		return;
	}
	if (reader->life != worker->life || reader->state != READER_ASKS)
		return;
	if (code == 0 && listed != NULL)
		check_list_told(worker, listed);
	if (code != 0 || listed == NULL || !is_open(worker) || world.closing ||
		!percent(RNG_READ, WAIT_PERCENT)) {
		later(worker);
		return;
	}
	reader->listed = *listed;
	reader->since_ns = world.now_ns;
	reader->state = READER_WAITS;
	TRACE("worker #/# waits for more than generation #", worker->group->index, worker->shard,
		listed->generation);
	worker_watch(worker, listed->generation, between(RNG_READ, 100 * MS, 20 * SEC));
}

void
reader_completed(struct worker *worker, const struct agent_action *action)
{
	struct reader *reader = reader_of(worker);

	if (reader->life != worker->life || reader->state != READER_WAITS)
		return;
	TRACE("worker #/# has waited: !, generation #", worker->group->index, worker->shard,
		TRACE_E(action->u.complete.code), action->u.complete.generation);
	check_wait_over(worker, action->u.complete.code, action->u.complete.generation);
	later(worker);
}
