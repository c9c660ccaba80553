/* SPDX-License-Identifier: Apache-2.0 */
/*
 * observer - handles without a replica, one of each host. D22: they list and wait like any worker,
 * whatever befalls groups and servers; all else is refused, and no server is ever told of them.
 *
 *   OFF -> OPENS -> THINKS -> ASKS (LIST or RESOLVE) -> THINKS, or WAITS for a newer listing
 *                     '----> CALLS what is a member's
 *   It closes or dies in any of them, and opens again.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/check.h"
#include "tests/sim/sim.h"

#define CALL_PERCENT 20u
#define RESOLVE_PERCENT 20u
#define WAIT_PERCENT 60u
#define SLOT 1u /* of its calls */

enum observer_state { OFF, OPENS, THINKS, ASKS, WAITS, CALLS, ENDS };

struct observer {
	struct host *host;
	enum observer_state state;
	uint64_t life;
	struct handle *handle; /* NULL: OFF */
	uint32_t model;
	uint64_t floor, floor_inc; /* the newest generation of this server */
	struct listed listed;      /* WAITS: for a newer one */
	int64_t since_ns;
	uint64_t num_told, num_told_before; /* listings; and before the faults ended */
};

static struct observer observers[HOSTS_MAX];

struct observer_task {
	struct task task;
	struct observer *observer;
	uint64_t life;
};

static void
observer_in(struct observer *observer, void (*run)(struct task *), int64_t delay_ns)
{
	struct observer_task *task = task_new(sizeof(*task), run, NULL);

	task->observer = observer;
	task->life = observer->life;
	task_in(&task->task, delay_ns);
}

/* NULL: it was meant for an earlier life. */
static struct observer *
observer_of(struct task *task)
{
	struct observer_task *mine = (struct observer_task *)task;

	return mine->observer->life == mine->life ? mine->observer : NULL;
}

uint32_t
observer_model(const struct observer *observer)
{
	return observer->model;
}

static uint32_t
index_of(const struct observer *observer)
{
	return observer->host->process.index;
}

/* ---- its lives ------------------------------------------------------------------------------- */

static void
observer_opens(struct task *task)
{
	struct observer *observer = observer_of(task);
	struct host *host = observer == NULL ? NULL : observer->host;

	if (observer == NULL || world.closing)
		return;
	if (!host->process.alive || host->leaving) {
		observer_in(observer, observer_opens, 500 * MS);
		return;
	}
	observer->state = OPENS;
	observer->model = (uint32_t)chance(RNG_OBSERVE, world.options.models);
	observer->floor = observer->floor_inc = 0;
	observer->handle = host_new_handle(host, NULL);
	observer->handle->observer = observer;
	struct ctl_open *open = &host_tell(host, AGENT_EV_OPEN, observer->handle->id, 0)->u.open;
	snprintf(open->model, sizeof(open->model), "model%u", observer->model);
	open->num_shards = 1;
	TRACE("observer # opens session #", index_of(observer), observer->handle->id);
}

static void
observer_off(struct observer *observer)
{
	observer->state = OFF;
	observer->handle = NULL;
	observer->life++;
	observer_in(observer, observer_opens, between(RNG_OBSERVE, MS, SEC));
}

static void
observer_ends(struct task *task)
{
	struct observer *observer = observer_of(task);
	bool dies = percent(RNG_OBSERVE, 50);

	if (observer == NULL || observer->state == ENDS)
		return;
	TRACE("observer # $", index_of(observer), TRACE_S(dies ? "dies" : "closes"));
	struct agent_event *event = host_tell(observer->host, dies ? AGENT_EV_LOST : AGENT_EV_CLOSE,
		observer->handle->id, between(RNG_OBSERVE, 2 * US, 500 * US));
	if (!dies) {
		event->u.close.timeout_ns = TH_FOREVER;
		observer->state = ENDS;
		return;
	}
	observer->handle->observer = NULL;
	observer_off(observer);
}

void
observer_gone(struct observer *observer)
{
	TRACE("observer # is gone", index_of(observer));
	observer_off(observer);
}

/* ---- what it does ---------------------------------------------------------------------------- */

/* All that a member may do. */
static void
call(struct observer *observer)
{
	uint32_t kind = (uint32_t)chance(RNG_OBSERVE, CTL_OP_LIST + 2);
	bool operates = kind >= CTL_OP_PUBLISH && kind <= CTL_OP_LIST;
	struct agent_event *event = host_tell(observer->host,
		operates    ? AGENT_EV_SUBMIT
		: kind == 0 ? AGENT_EV_REGISTER
			    : AGENT_EV_UNREGISTER,
		observer->handle->id, between(RNG_OBSERVE, 2 * US, 200 * US));

	observer->state = CALLS;
	TRACE("observer # calls #", index_of(observer), kind);
	if (kind == 0)
		event->u.reg.num_chunks = 1;
	if (!operates)
		return;
	event->u.submit = (struct agent_submission){
		.slot = SLOT, .kind = kind, .timeout_ns = SEC, .flags = kind == CTL_OP_LIST};
	strcpy(event->u.submit.spec, kind == CTL_OP_PUBLISH ? "1" : "latest");
}

static void
observer_goes_on(struct task *task)
{
	struct observer *observer = observer_of(task);

	if (observer == NULL || observer->state != THINKS)
		return;
	if (world.closing) {
		observer_ends(task);
	} else if (percent(RNG_OBSERVE, CALL_PERCENT)) {
		call(observer);
	} else {
		bool asks = reader_question(observer->handle, observer->model,
			percent(RNG_OBSERVE, RESOLVE_PERCENT) ? CTL_RESOLVE : CTL_LIST, 0, 0);
		if (asks)
			observer->state = ASKS;
		else
			observer_in(observer, observer_goes_on, world.options.observe_ns);
	}
}

static void
think(struct observer *observer)
{
	observer->state = THINKS;
	observer_in(observer, observer_goes_on, between(RNG_OBSERVE, MS, world.options.observe_ns));
}

static void
watch(struct observer *observer)
{
	struct agent_event *event = host_tell(observer->host, AGENT_EV_SUBMIT, observer->handle->id,
		between(RNG_OBSERVE, 2 * US, 200 * US));

	observer->state = WAITS;
	observer->since_ns = world.now_ns;
	event->u.submit = (struct agent_submission){
		.slot = READER_SLOT,
		.kind = AGENT_SUBMIT_WATCH,
		.timeout_ns = between(RNG_OBSERVE, 100 * MS, 8 * SEC),
	};
	snprintf(event->u.submit.spec, sizeof(event->u.submit.spec), "%" PRIu64,
		observer->listed.generation);
}

/* ---- what it hears --------------------------------------------------------------------------- */

/* Nobody is asked for it, so nobody can refuse it. */
void
observer_opened(struct observer *observer, int code)
{
	TRACE("observer # is opened: !", index_of(observer), TRACE_E(code));
	if (code != 0)
		sim_fail("D22", "the observer of host %u is not opened: %s", index_of(observer),
			th_errname(code));
	observer_in(observer, observer_ends, between(RNG_OBSERVE, 100 * MS, 15 * SEC));
	think(observer);
}

void
observer_refused(struct observer *observer, int code)
{
	/* CANCELLED: its agent leaves, and has closed it. */
	if (code != TH_E_STATE && code != TH_E_CANCELLED)
		sim_fail("D22", "the observer of host %u calls what is a member's: %s",
			index_of(observer), th_errname(code));
	if (observer->state == CALLS)
		think(observer);
}

void
observer_answered(struct observer *observer, int code, const struct listed *listed)
{
	if (observer->state != ASKS)
		return;
	TRACE("observer # hears: !, generation #", index_of(observer), TRACE_E(code),
		code != 0 || listed == NULL ? 0 : listed->generation);
	if (code != 0 || listed == NULL) {
		think(observer);
		return;
	}
	if (listed->server_inc == observer->floor_inc && listed->generation < observer->floor)
		sim_fail("list",
			"the observer of host %u is told of generation %" PRIu64
			", and knew %" PRIu64,
			index_of(observer), listed->generation, observer->floor);
	observer->floor_inc = listed->server_inc;
	observer->floor = listed->generation;
	observer->listed = *listed;
	observer->num_told++;
	if (percent(RNG_OBSERVE, WAIT_PERCENT))
		watch(observer);
	else
		think(observer);
}

void
observer_completed(struct observer *observer, const struct agent_action *action)
{
	int code = action->u.complete.code;

	if (action->u.complete.slot != READER_SLOT) {
		observer_refused(observer, code);
		return;
	}
	TRACE("observer # has waited: !, generation #", index_of(observer), TRACE_E(code),
		action->u.complete.generation);
	if (code != 0 && code != TH_E_TIMEOUT && code != TH_E_NO_SERVER && code != TH_E_CANCELLED)
		sim_fail("D22", "the wait of the observer of host %u ends with %s",
			index_of(observer), th_errname(code));
	if (code == 0 && action->u.complete.generation <= observer->listed.generation)
		sim_fail("wait",
			"the observer of host %u has waited for more than %" PRIu64
			" and is told of %" PRIu64,
			index_of(observer), observer->listed.generation,
			action->u.complete.generation);
	if (observer->state == WAITS)
		think(observer);
}

void
observer_line(const struct observer *observer, const struct agent_line *line)
{
	if (line->broken + line->contract + line->conflict + line->evicted + line->at_risk > 0 ||
		!th_version_none(line->held) || !line->safe_to_mutate)
		sim_fail("D22",
			"the observer of host %u is told of a group or a version of its own",
			index_of(observer));
}

bool
observer_asks(const struct observer *observer)
{
	return observer->state == THINKS;
}

/* A request that its agent sends, which may be of no observer. */
void
check_observer_sent(const struct host *host, const struct ctl_request *request)
{
	const struct ctl_open *open = request->kind == CTL_OPEN     ? &request->u.open
				      : request->kind == CTL_REJOIN ? &request->u.rejoin.open
								    : NULL;
	uint64_t sid = request->kind == CTL_REGISTER     ? request->u.reg.sid
		       : request->kind == CTL_UNREGISTER ? request->u.unregister_sid
		       : request->kind == CTL_OP         ? request->u.op.sid
		       : request->kind == CTL_CLOSE      ? request->u.close.sid
							 : 1;

	if ((open != NULL && open->replica[0] == '\0') || sid == 0)
		sim_fail("D22", "host %u tells the server of its observer by request %d",
			host->process.index, (int)request->kind);
}

/* Whoever waits has missed nothing. */
void
check_observers(void)
{
	struct th_version id;
	uint32_t group = 0;

	for (uint32_t i = 0; check_list_certain() && i < world.options.hosts; i++) {
		const struct observer *observer = &observers[i];
		if (observer->state == WAITS && observer->host->process.alive &&
			check_list_missed(observer->model, &observer->listed, observer->since_ns,
				&group, &id))
			sim_fail("wait",
				"the observer of host %u waits and is not told that group %u has "
				"version %" PRIu64,
				i, group, id.version);
	}
}

void
check_observers_calm(void)
{
	for (uint32_t i = 0; i < HOSTS_MAX; i++)
		observers[i].num_told_before = observers[i].num_told;
}

void
check_observers_alive(void)
{
	for (uint32_t i = 0; world.options.observe_ns > 0 && i < world.options.hosts; i++) {
		if (observers[i].num_told == observers[i].num_told_before)
			sim_fail("I15", "the observer of host %u hears nothing any more", i);
	}
}

void
observer_start(void)
{
	memset(observers, 0, sizeof(observers));
	for (uint32_t i = 0; i < HOSTS_MAX; i++)
		observers[i].host = &world.hosts[i];
	for (uint32_t i = 0; world.options.observe_ns > 0 && i < world.options.hosts; i++)
		observer_in(&observers[i], observer_opens, between(RNG_OBSERVE, 0, 3 * SEC));
}
