/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker - worker processes: what libthc does between a program and its agent.
 *
 *   OFF -> OPENING -> PUTTING (the manifest) -> REGISTERING -> IDLE <-> BUSY -> CLOSING -> OFF
 *
 * Events through the ring keep their order; opening, closing and dying take other ways.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/model/blob_hash.h"
#include "tests/sim/check.h"
#include "tests/sim/sim.h"

#define GRACE_NS (SEC + 300 * MS) /* libthc waits this much longer than the deadline */

struct worker_task {
	struct task task;
	struct worker *worker;
	uint64_t life, alarm;
};

static void
worker_in(struct worker *worker, void (*run)(struct task *), int64_t delay_ns)
{
	struct worker_task *task = task_new(sizeof(*task), run, NULL);

	task->worker = worker;
	task->life = worker->life;
	task->alarm = worker->alarm;
	task_in(&task->task, delay_ns);
}

/* NULL: it was meant for an earlier life. */
static struct worker *
worker_of(struct task *task)
{
	struct worker_task *mine = (struct worker_task *)task;

	return mine->worker->life == mine->life ? mine->worker : NULL;
}

static bool
voided(struct task *task)
{
	struct worker_task *mine = (struct worker_task *)task;

	return mine->worker->life != mine->life || mine->worker->alarm != mine->alarm;
}

static struct agent_event *
ring(struct worker *worker, enum agent_event_kind kind)
{
	int64_t due_ns = world.now_ns + between(RNG_WORK, 2 * US, 200 * US);

	if (due_ns <= worker->ring_ns)
		due_ns = worker->ring_ns + 1;
	worker->ring_ns = due_ns;
	return host_tell(worker->host, kind, worker->handle->id, due_ns - world.now_ns);
}

static void
go_on(struct task *task)
{
	struct worker *worker = worker_of(task);

	if (worker != NULL && worker->state == W_IDLE && worker->handle != NULL)
		program_next(worker);
}

static void
idle(struct worker *worker, int64_t think_ns)
{
	worker->state = W_IDLE;
	worker->alarm++;
	worker_in(worker, go_on, think_ns);
}

/* Nobody knows of a worker that has not knocked yet. */
static int64_t
after_open(const struct worker *worker, int64_t delay_ns)
{
	return th_max_i64(delay_ns, worker->open_ns - world.now_ns + 1);
}

static void
end(struct worker *worker)
{
	worker->state = W_OFF;
	worker->life++;
	worker->off_ns = world.now_ns;
	worker->handle = NULL;
	if (worker->memory == NULL)
		return;
	memory_unmap(worker->memory);
	worker->memory = NULL;
}

/* ---- opening --------------------------------------------------------------------------------- */

void
worker_start(struct worker *worker)
{
	struct host *host = worker->host;
	struct handle *handle;
	struct ctl_open *open;

	worker->starting = false;
	if (!host->process.alive || host->leaving) {
		worker->off_ns = world.now_ns;
		return;
	}
	worker->life++;
	worker->state = W_OPENING;
	worker->step = 0;
	worker->want_close = worker->ghost = worker->following = false;
	worker->line = (struct agent_line){.held.version = TH_NO_VERSION};
	worker->memory = memory_new(percent(RNG_WORK, world.options.shared_percent));
	worker->handle = handle = host_new_handle(host, worker->memory);
	handle->worker = worker;
	handle->memory->mapped += handle->memory->shared;
	int64_t knock_ns = between(RNG_WORK, 10 * US, 2 * MS);
	worker->open_ns = world.now_ns + knock_ns;
	open = &host_tell(host, AGENT_EV_OPEN, handle->id, knock_ns)->u.open;
	snprintf(open->model, sizeof(open->model), "model%u", worker->group->model);
	snprintf(open->replica, sizeof(open->replica), "%s", worker->group->replica);
	snprintf(open->launch_id, sizeof(open->launch_id), "%s", worker->group->launch);
	snprintf(open->retain, sizeof(open->retain), "%s", worker->group->retain);
	open->flags = worker->group->flags;
	open->lineage = worker->group->lineage;
	open->shard = worker->shard;
	open->num_shards = worker->group->shards;
	TRACE("worker #/# opens session # on host #", worker->group->index, worker->shard,
		handle->id, host->process.index);
}

static void
put(struct worker *worker)
{
	const uint64_t data[4] = {
		worker->group->model, worker->shard, worker->group->layout, world.options.chunks};
	struct ctl_request request = {
		.kind = CTL_MANIFEST_PUT,
		.agent_inc = worker->host->inc,
		.secret = worker->host->secret,
		.request_no = agent_core_request_no(worker->host->core),
		.attach_no = agent_core_attach_no(worker->host->core),
	};

	request.u.manifest_put = (struct ctl_blob_part){
		.key = hash_bytes(data, sizeof(data)),
		.total_bytes = sizeof(data),
		.data = (const uint8_t *)data,
		.data_bytes = sizeof(data),
	};
	worker->state = W_PUTTING;
	net_request(worker->host, AGENT_CHANNEL_CONTROL, &request, 0, worker->handle->id);
}

static uint64_t
sid_of(const struct worker *worker)
{
	struct agent_session_info info = {.session = 0};

	for (uint32_t i = 0; agent_core_session_at(worker->host->core, i, &info); i++) {
		if (info.session == worker->handle->id)
			return info.sid;
	}
	return 0;
}

void
worker_opened(struct worker *worker, int code)
{
	TRACE("worker #/# is opened: !", worker->group->index, worker->shard, TRACE_E(code));
	if (code != 0 || worker->state != W_OPENING)
		return; /* the handle goes, and worker_closed() comes; or it closes already */
	worker->sid = sid_of(worker);
	check_retain_opened(worker);
	put(worker);
}

void
worker_put(struct worker *worker, int code)
{
	const uint64_t data[4] = {
		worker->group->model, worker->shard, worker->group->layout, world.options.chunks};
	struct agent_event *event;

	if (worker->state != W_PUTTING)
		return;
	if (code != 0) {
		worker_close(worker);
		return;
	}
	worker->state = W_REGISTERING;
	event = ring(worker, AGENT_EV_REGISTER);
	event->u.reg.manifest = hash_bytes(data, sizeof(data));
	event->u.reg.layout = event->u.reg.manifest;
	event->u.reg.bytes = world.options.chunks * CHUNK_TOKENS * sizeof(uint64_t);
	event->u.reg.num_chunks = world.options.chunks;
	event->u.reg.mapped = worker->handle->memory->shared;
}

void
worker_registered(struct worker *worker, int code)
{
	TRACE("worker #/# is registered: !", worker->group->index, worker->shard, TRACE_E(code));
	if (worker->state != W_REGISTERING)
		return;
	if (code != 0) {
		worker_close(worker);
		return;
	}
	idle(worker, between(RNG_WORK, 0, world.options.think_ns));
	reader_begin(worker);
}

/* Other tensors, or the same once more: what it held before is nothing to them. */
void
worker_unregister(struct worker *worker)
{
	TRACE("worker #/# unregisters", worker->group->index, worker->shard);
	worker->state = W_UNREGISTERING;
	ring(worker, AGENT_EV_UNREGISTER);
}

void
worker_unregistered(struct worker *worker, int code)
{
	TRACE("worker #/# is unregistered: !", worker->group->index, worker->shard, TRACE_E(code));
	if (worker->state != W_UNREGISTERING)
		return;
	if (code == 0)
		put(worker);
	else
		idle(worker, between(RNG_WORK, 0, world.options.think_ns));
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void
give_up(struct task *task)
{
	if (!voided(task))
		worker_close(((struct worker_task *)task)->worker);
}

/* What had begun to move when its deadline came has had the time to end, too. */
static void
too_late(struct task *task)
{
	struct worker *worker = ((struct worker_task *)task)->worker;

	if (voided(task) || worker->state != W_UNKNOWN)
		return;
	check_late(worker);
	worker_close(worker);
}

static void
late(struct task *task)
{
	struct worker *worker = ((struct worker_task *)task)->worker;

	if (voided(task) || worker->state != W_BUSY)
		return;
	TRACE("worker #/#: its call # has an unknown outcome", worker->group->index, worker->shard,
		worker->call.step);
	check_deadline(worker);
	worker->state = W_UNKNOWN;
	if (world.calm)
		worker_in(worker, too_late,
			3 * SEC + 8 * world.options.chunks * world.options.chunk_ns);
	else
		worker_in(worker, give_up, between(RNG_WORK, 0, 10 * SEC));
}

static void
cancel(struct task *task)
{
	struct worker *worker = ((struct worker_task *)task)->worker;

	if (!voided(task) && worker->state == W_BUSY && worker->handle != NULL)
		ring(worker, AGENT_EV_CANCEL)->u.cancel_slot = worker->call.slot;
}

void
worker_submit(struct worker *worker)
{
	struct call *call = &worker->call;
	struct agent_event *event = ring(worker, AGENT_EV_SUBMIT);

	call->submitted_ns = world.now_ns;
	call->held = worker->line.held;
	check_submit(worker);
	check_retain_submit(worker);
	TRACE("worker #/# step #: calls # for version #", worker->group->index, worker->shard,
		call->step, call->kind, (uint64_t)atoll(call->spec));
	event->u.submit = (struct agent_submission){
		.slot = call->slot,
		.kind = call->kind,
		.flags = call->flags,
		.timeout_ns = call->timeout_ns,
	};
	memcpy(event->u.submit.spec, call->spec, sizeof(call->spec));
	worker->state = W_BUSY;
	worker->alarm++;
	/* The server counts the deadline by its own clock. */
	if (call->timeout_ns >= 0)
		worker_in(worker, late,
			call->timeout_ns + GRACE_NS +
				call->timeout_ns / 500 * world.options.clock_skew_permille);
	if (!world.calm && permille(RNG_WORK, world.options.cancel_permille))
		worker_in(worker, cancel, between(RNG_WORK, 0, 200 * MS));
}

void
worker_completed(struct worker *worker, const struct agent_action *action)
{
	int code = action->u.complete.code;

	if (action->u.complete.slot == READER_SLOT) {
		reader_completed(worker, action);
		return;
	}
	if ((worker->state != W_BUSY && worker->state != W_UNKNOWN) ||
		action->u.complete.slot != worker->call.slot)
		return;
	TRACE("worker #/# step #, operation #: !, version #", worker->group->index, worker->shard,
		worker->call.step, action->u.complete.op_seq, TRACE_E(code),
		action->u.complete.result.version.version);
	check_complete(worker, action);
	check_retain_complete(worker, code);
	worker->successes += code == 0;
	if (code == 0 && worker->call.kind == CTL_OP_FOLLOW)
		worker->following = worker->call.spec[0] != '\0';
	else if (code == 0 && worker->call.kind == CTL_OP_UNPUBLISH)
		worker->following = false;
	/* Else it was never sent; or it has ended, and nothing is held. */
	if (action->u.complete.op_seq != 0 || !th_version_none(action->u.complete.result.version))
		worker->ghost = code == TH_E_NO_SERVER;
	worker->state = W_IDLE;
	program_done(worker, code, action->u.complete.result.version);
	/* Until it has the listing its program is in the call. */
	if (code == 0 && worker->call.kind == CTL_OP_LIST &&
		reader_fetch(worker, action->u.complete.op_seq))
		return;
	idle(worker, program_think_ns(code == 0 ? worker->call.kind : 0));
}

void
worker_listed(struct worker *worker)
{
	if (worker->state == W_IDLE)
		idle(worker, program_think_ns(0));
}

void
worker_watch(struct worker *worker, uint64_t generation, int64_t timeout_ns)
{
	struct agent_event *event = ring(worker, AGENT_EV_SUBMIT);

	event->u.submit = (struct agent_submission){
		.slot = READER_SLOT,
		.kind = AGENT_SUBMIT_WATCH,
		.timeout_ns = timeout_ns,
	};
	snprintf(event->u.submit.spec, sizeof(event->u.submit.spec), "%lu",
		(unsigned long)generation);
}

void
worker_line(struct worker *worker, const struct agent_line *line)
{
	bool news = line->broken != worker->line.broken || line->evicted != worker->line.evicted;

	if (news)
		check_list_upset(worker);
	if (news && percent(RNG_WORK, 50))
		worker->want_close = true;
	worker->line = *line;
}

void
worker_may_write(struct worker *worker)
{
	worker->memory->right = MEMORY_OWNER;
	memory_scribble(worker->memory, "its worker");
}

/* ---- ending ---------------------------------------------------------------------------------- */

void
worker_close(struct worker *worker)
{
	if (worker->state == W_OFF || worker->state == W_CLOSING || worker->handle == NULL)
		return;
	TRACE("worker #/# closes session #", worker->group->index, worker->shard,
		worker->handle->id);
	check_list_gives(worker);
	worker->state = W_CLOSING;
	worker->group->apart = true;
	worker->alarm++;
	struct agent_event *event = host_tell(worker->host, AGENT_EV_CLOSE, worker->handle->id,
		after_open(worker, between(RNG_WORK, 2 * US, 500 * US)));
	event->u.close.timeout_ns =
		percent(RNG_WORK, 30) ? TH_FOREVER : between(RNG_WORK, 0, 10 * SEC);
}

void
worker_close_refused(struct worker *worker, int code)
{
	TRACE("worker #/# is refused to close: !", worker->group->index, worker->shard,
		TRACE_E(code));
	if (code == TH_E_NOMEM_RETAIN)
		check_retain_no_room();
	if (worker->state != W_CLOSING)
		return;
	if (worker->line.safe_to_mutate)
		sim_fail("I12", "a close is refused of what is not held any more");
	struct agent_event *event = host_tell(worker->host, AGENT_EV_CLOSE, worker->handle->id,
		between(RNG_WORK, 2 * US, 2 * SEC));
	event->u.close.timeout_ns = between(RNG_WORK, 0, 5 * SEC);
	event->u.close.abandon = percent(RNG_WORK, 50);
	if (event->u.close.abandon) {
		check_retain_abandon(worker);
		check_list_upset(worker);
	}
}

void
worker_closed(struct worker *worker)
{
	TRACE("worker #/# is closed", worker->group->index, worker->shard);
	check_retain_closed(worker);
	worker->memory->right = MEMORY_OWNER;
	memory_scribble(worker->memory, "its worker after close");
	end(worker);
}

void
worker_kill(struct worker *worker)
{
	int64_t late_ns = world.options.late_pidfd_ns;

	if (worker->state == W_OFF)
		return;
	TRACE("worker #/# dies", worker->group->index, worker->shard);
	check_list_upset(worker);
	if (worker->handle != NULL) {
		worker->handle->worker = NULL;
		struct agent_event *event =
			host_tell(worker->host, AGENT_EV_LOST, worker->handle->id,
				after_open(worker, !world.calm && late_ns > 0
							   ? between(RNG_FAULT, MS, late_ns)
							   : between(RNG_FAULT, 10 * US, 5 * MS)));
		event->u.lost.memory_gone = !worker->handle->memory->shared;
	}
	end(worker);
	check_retain_crash();
}

void
worker_agent_lost(struct worker *worker)
{
	TRACE("worker #/#: its agent is lost", worker->group->index, worker->shard);
	if (worker->state == W_OFF)
		return;
	check_list_upset(worker);
	worker->memory->right = MEMORY_OWNER;
	memory_scribble(worker->memory, "its worker without an agent");
	end(worker);
}
