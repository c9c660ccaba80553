/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host - an agent process: steps the agent's core and carries out what it says. Decides nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/sim.h"
#include "tests/sim/check.h"
#include "tests/sim/sim.h"
#include "tests/support/core/core_check.h"

#define SWITCH_NS (3 * SEC) /* no server for this long: the next of the list is tried */
#define BEAT_LEGS 64u
#define ROOM_WAITS 100u /* memory is looked for so often while some is on its way out */

struct told { /* an event on its way to a core */
	struct task task;
	struct agent_event event;
};

static void
tell(struct task *task)
{
	struct told *told = (struct told *)task;

	host_step(&world.hosts[task->process->index], &told->event);
}

struct agent_event *
host_tell(struct host *host, enum agent_event_kind kind, uint64_t session, int64_t delay_ns)
{
	struct told *told = task_new(sizeof(*told), tell, &host->process);

	told->event.kind = kind;
	told->event.session = session;
	task_in(&told->task, delay_ns);
	return &told->event;
}

struct agent_event *
host_tell_mover(struct host *host, enum agent_event_kind kind, uint64_t session)
{
	int64_t due_ns = world.now_ns + between(RNG_MOVE, 5 * US, 300 * US);

	if (due_ns <= host->mover_ns)
		due_ns = host->mover_ns + 1;
	host->mover_ns = due_ns;
	return host_tell(host, kind, session, due_ns - world.now_ns);
}

struct handle *
host_handle(struct host *host, uint64_t id)
{
	struct handle *handle = host->handles;

	while (handle != NULL && handle->id != id)
		handle = handle->next;
	if (handle == NULL)
		sim_fail("agent", "host %u speaks of session %lu, which is over",
			host->process.index, (unsigned long)id);
	return handle;
}

struct handle *
host_new_handle(struct host *host, struct memory *memory)
{
	struct handle *handle = th_calloc(1, sizeof(*handle));

	handle->id = ++world.last_session;
	handle->host = host;
	handle->memory = memory;
	handle->line.held.version = TH_NO_VERSION;
	handle->next = host->handles;
	if (handle->next != NULL)
		handle->next->prev = handle;
	host->handles = handle;
	return handle;
}

/* ---- actions --------------------------------------------------------------------------------- */

static void
send_request(struct host *host, const struct agent_action *action)
{
	struct ctl_request request = *action->u.send.request;
	struct ctl_leg_progress legs[BEAT_LEGS];

	if (request.kind == CTL_BEAT) {
		request.u.beat.num_legs = mover_progress(host, legs, BEAT_LEGS);
		request.u.beat.legs = legs;
	}
	check_observer_sent(host, &request);
	net_request(host, action->u.send.channel, &request, action->u.send.tag, 0);
}

static void
free_handle(struct host *host, struct handle *handle)
{
	mover_must_be_still(handle, "AGENT_FREE");
	if (handle->part.there)
		sim_fail("agent", "session %lu is freed with its part", (unsigned long)handle->id);
	if (handle->worker != NULL)
		worker_closed(handle->worker);
	if (handle->observer != NULL)
		observer_gone(handle->observer);
	if (handle->memory != NULL && handle->memory->shared)
		memory_unmap(handle->memory);
	if (handle->prev != NULL)
		handle->prev->next = handle->next;
	else
		host->handles = handle->next;
	if (handle->next != NULL)
		handle->next->prev = handle->prev;
	free(handle);
}

static void
line(struct handle *handle, const struct agent_line *told)
{
	bool safe = told->safe_to_mutate && !handle->line.safe_to_mutate;

	if (told->safe_to_mutate)
		mover_must_be_still(handle, "safe_to_mutate");
	handle->line = *told;
	if (handle->observer != NULL)
		observer_line(handle->observer, told);
	if (handle->worker == NULL)
		return;
	check_line(handle->worker, told);
	worker_line(handle->worker, told);
	if (safe)
		worker_may_write(handle->worker);
}

static void
server_state(struct host *host, const struct agent_action *action)
{
	TRACE("host # is $ to server inc #", host->process.index,
		TRACE_S(action->u.server.attached ? "attached" : "not attached"),
		action->u.server.server_inc);
	if (host->attached && !action->u.server.attached)
		host->dialed_ns = world.now_ns;
	if (host->attached != action->u.server.attached)
		check_retain_moves();
	host->attached = action->u.server.attached;
	host->refused = action->u.server.refused;
	if (host->attached) {
		host->server_inc = action->u.server.server_inc;
		check_attached(host, action->u.server.epoch);
	}
}

static void
explain(struct host *host, const struct agent_action *action)
{
	struct agent_event *event = host_tell(
		host, AGENT_EV_EXPLAINED, action->session, between(RNG_MOVE, 10 * US, 50 * MS));

	event->u.explained.op_seq = action->u.explain.op_seq;
	strcpy(event->u.explained.text, "other tensors");
}

/* ---- memory for copies of others ------------------------------------------------------------- */

struct reserving { /* the shell looks for memory */
	struct task task;
	uint64_t id;
	uint32_t waited;
};

/* all: also those that are on their way out, for which whoever wants memory waits. */
static uint32_t
num_offloads(const struct host *host, bool all)
{
	uint32_t count = 0;

	for (const struct handle *handle = host->handles; handle != NULL; handle = handle->next)
		count += handle->offload && (all || !handle->given_up);
	return count;
}

/* Memory is refused for what is there. The core has to say of each copy that is on its way out. */
static void
check_given_up(struct host *host)
{
	struct agent_session_info info;

	for (uint32_t i = 0; agent_core_session_at(host->core, i, &info); i++) {
		if (info.offload && strcmp(info.state, "closing") == 0 &&
			!host_handle(host, info.session)->given_up)
			sim_fail("I13",
				"host %u has no memory and is not told that session %lu "
				"gives some up",
				host->process.index, (unsigned long)info.session);
	}
}

/* Of no worker, and mapped by its session alone: what is freed has its next owner at once. */
static struct handle *
new_offload(struct host *host)
{
	struct handle *handle = host_new_handle(host, memory_new(true));

	handle->offload = true;
	return handle;
}

static void
reserved(struct task *task)
{
	struct host *host = &world.hosts[task->process->index];
	struct agent_event event = {.kind = AGENT_EV_RESERVED};

	event.u.reserved.id = ((struct reserving *)task)->id;
	if (num_offloads(host, true) < host->offload_max) {
		event.session = new_offload(host)->id;
	} else if (num_offloads(host, false) < host->offload_max &&
		   ((struct reserving *)task)->waited < ROOM_WAITS) {
		struct reserving *again = task_new(sizeof(*again), reserved, task->process);
		TH_MARK(reserve_waits_for_room);
		again->id = event.u.reserved.id;
		again->waited = ((struct reserving *)task)->waited + 1;
		task_in(&again->task, between(RNG_MOVE, MS, 100 * MS));
		return;
	} else {
		check_given_up(host);
		event.u.reserved.code = TH_E_NOMEM_RETAIN;
		strcpy(event.u.reserved.text, "the host is full");
		check_fetch_refused();
	}
	TRACE("host # reserves: session # code !", host->process.index, event.session,
		TRACE_E(event.u.reserved.code));
	host_step(host, &event);
}

static void
reserve(struct host *host, const struct agent_action *action)
{
	struct reserving *mine = task_new(sizeof(*mine), reserved, &host->process);

	mine->id = action->u.reserve.id;
	/* A page now and then, or gigabytes. */
	task_in(&mine->task, percent(RNG_MOVE, 80) ? between(RNG_MOVE, 10 * US, 20 * MS)
						   : between(RNG_MOVE, 20 * MS, 3 * SEC));
}

static void
host_act(struct host *host, const struct agent_action *action)
{
	struct handle *handle = NULL;

	if (action->kind == AGENT_OPENED || action->kind == AGENT_REGISTERED ||
		action->kind == AGENT_UNREGISTERED || action->kind == AGENT_COMPLETE ||
		action->kind == AGENT_LINE || action->kind == AGENT_FREE ||
		action->kind == AGENT_CLOSED || action->kind == AGENT_GIVEN_UP)
		handle = host_handle(host, action->session);
	switch (action->kind) {
	case AGENT_SEND:
		send_request(host, action);
		break;
	case AGENT_OPENED:
		if (handle->worker != NULL)
			worker_opened(handle->worker, action->u.answer.code);
		if (handle->observer != NULL)
			observer_opened(handle->observer, action->u.answer.code);
		if (action->u.answer.code != 0)
			free_handle(host, handle);
		break;
	case AGENT_REGISTERED:
		if (handle->worker != NULL)
			worker_registered(handle->worker, action->u.answer.code);
		if (handle->observer != NULL)
			observer_refused(handle->observer, action->u.answer.code);
		break;
	case AGENT_UNREGISTERED:
		if (handle->worker != NULL)
			worker_unregistered(handle->worker, action->u.answer.code);
		if (handle->observer != NULL)
			observer_refused(handle->observer, action->u.answer.code);
		break;
	case AGENT_COMPLETE:
		if (handle->worker != NULL)
			worker_completed(handle->worker, action);
		if (handle->observer != NULL)
			observer_completed(handle->observer, action);
		break;
	case AGENT_LINE:
		line(handle, &action->u.line);
		break;
	case AGENT_GIVEN_UP:
		handle->given_up = true;
		check_borrow_given_up(host, handle);
		break;
	case AGENT_FREE:
		free_handle(host, handle);
		break;
	case AGENT_PART_NEW:
	case AGENT_PART_END:
	case AGENT_HASH:
	case AGENT_HASH_STOP:
		mover_part(host, action);
		break;
	case AGENT_PULL:
	case AGENT_COPY:
		mover_begin(host, action);
		break;
	case AGENT_DONOR_DROP:
		mover_drop_donor(host, action->u.leg.leg);
		break;
	case AGENT_STOP:
		mover_stop(host, action->u.leg.leg);
		break;
	case AGENT_EXPECT:
		door_expect(host, action);
		break;
	case AGENT_REFUSE:
		door_refuse(host, action);
		break;
	case AGENT_FENCE:
		door_fence(host, action->u.leg.leg);
		break;
	case AGENT_EXPLAIN:
		explain(host, action);
		break;
	case AGENT_SERVER_STATE:
		server_state(host, action);
		break;
	case AGENT_RESERVE:
		reserve(host, action);
		break;
	case AGENT_CLOSED:
		/* Else FREE follows. */
		if (action->u.answer.code != 0 && handle->worker != NULL)
			worker_close_refused(handle->worker, action->u.answer.code);
		break;
	case AGENT_LEND:
		borrower_lent(host, action);
		break;
	case AGENT_LOAN_REFUSED:
		borrower_refused(host, action);
		break;
	case AGENT_STAYS:
		break;
	case AGENT_LEFT:
		host_left(host, action->u.left.code);
		break;
	case AGENT_ATTRIBUTES:
	case AGENT_UNRESERVE: /* has crossed RESERVED, always: the core must take that, too */
	case AGENT_NODE:
		break;
	}
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void
arm(struct host *host)
{
	int64_t timeout_ns = net_next_timeout(host), now_ns = process_now(&host->process);

	process_wake_at(&host->process, host->next_ns);
	if (timeout_ns != NEVER)
		process_wake_at(&host->process, now_ns + th_max_i64(0, timeout_ns - world.now_ns) *
								 host->process.permille / 1000);
}

void
host_step(struct host *host, const struct agent_event *event)
{
	struct agent_actions out;

	TRACE("host # gets event # session #", host->process.index, (uint64_t)event->kind,
		event->session);
	agent_core_step(host->core, process_now(&host->process), event, &out);
	host->next_ns = out.next_ns;
	agent_core_check(host->core);
	for (uint32_t i = 0; i < out.count; i++)
		host_act(host, &out.actions[i]);
	if (host->refused && world.options.servers > 1)
		net_dial(host, (host->server + 1) % world.options.servers);
	host->refused = false;
	arm(host);
}

static void
host_wake(struct process *process)
{
	struct host *host = &world.hosts[process->index];
	const struct agent_event tick = {.kind = AGENT_EV_TICK};

	net_timeouts(host);
	if (process_now(process) >= host->next_ns)
		host_step(host, &tick);
	if (!host->attached && world.options.servers > 1 &&
		world.now_ns - host->dialed_ns > SWITCH_NS)
		net_dial(host, (host->server + 1) % world.options.servers);
	arm(host);
}

/* ---- the shell's own ------------------------------------------------------------------------- */

void
host_answered(struct host *host, const struct flight *flight, const struct ctl_reply *reply,
	const struct listed *listed)
{
	int code = reply == NULL ? TH_E_NO_SERVER : reply->code;

	for (struct handle *handle = host->handles; handle != NULL; handle = handle->next) {
		if (handle->id != flight->handle)
			continue;
		if (handle->observer != NULL)
			observer_answered(handle->observer, code, listed);
		if (handle->worker == NULL)
			return;
		if (flight->kind == CTL_MANIFEST_PUT)
			worker_put(handle->worker, code);
		else
			reader_answered(handle->worker, flight, code, listed);
		return;
	}
}

void
host_start(struct host *host)
{
	struct agent_config config = {.agent_inc = ++world.last_inc};

	process_start(&host->process);
	host->process.on_wake = host_wake;
	host->inc = config.agent_inc;
	memset(&config.secret, (int)(config.agent_inc % 255 + 1), sizeof(config.secret));
	host->secret = config.secret;
	host->attached = host->refused = host->leaving = host->left = false;
	host->epoch = 0;
	if (world.options.servers > 1)
		host->server = 0;
	host->connection = ++world.last_connection;
	host->dialed_ns = world.now_ns;
	host->mover_ns = host->next_ns = 0;
	agent_config_default(&config);
	snprintf(config.attach.node, sizeof(config.attach.node), "node%u", host->process.index);
	snprintf(config.attach.datacenter, sizeof(config.attach.datacenter), "dc%u",
		host->datacenter);
	snprintf(config.attach.data_address, sizeof(config.attach.data_address), "%u",
		host->process.index);
	config.attach.spot = host->spot;
	config.attach.offload_bytes = host->offload_max == 0 ? 0 : UINT64_MAX;
	config.server_loss_reset = host->resets;
	if (world.options.tickets_max > 0)
		config.grants_max = world.options.tickets_max;
	host->core = agent_core_new(&config, process_now(&host->process));
	TRACE("host # starts, inc #", host->process.index, host->inc);
	host_tell(host, AGENT_EV_TICK, 0, 0);
}

struct lost { /* a worker notices that its agent's process has ended */
	struct task task;
	struct worker *worker;
	uint64_t life;
};

static void
lost(struct task *task)
{
	struct lost *late = (struct lost *)task;

	if (late->worker->life == late->life)
		worker_agent_lost(late->worker);
}

static void
notice(struct worker *worker)
{
	struct lost *late = task_new(sizeof(*late), lost, NULL);

	late->worker = worker;
	late->life = worker->life;
	task_in(&late->task, !world.calm && world.options.late_pidfd_ns > 0
				     ? between(RNG_FAULT, MS, world.options.late_pidfd_ns)
				     : between(RNG_FAULT, 10 * US, 5 * MS));
}

void
host_crash(struct host *host)
{
	TRACE("host #: its agent dies", host->process.index);
	process_kill(&host->process);
	net_forget(host);
	mover_host_died(host);
	agent_core_free(host->core);
	host->core = NULL;
	while (host->handles != NULL) {
		struct handle *handle = host->handles;
		host->handles = handle->next;
		if (handle->worker != NULL) {
			handle->worker->handle = NULL;
			notice(handle->worker);
		}
		if (handle->observer != NULL)
			observer_gone(handle->observer);
		/* Its mapping is gone, and nothing of it reads or writes any more. */
		if (handle->memory != NULL && handle->memory->shared)
			memory_unmap(handle->memory);
		free(handle);
	}
	borrower_host_died(host);
	check_retain_crash();
}
