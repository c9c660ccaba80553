/* SPDX-License-Identifier: Apache-2.0 */
/*
 * borrower - processes of a host that borrow versions out of its agent's memory, through the
 * handle of its observer, and return them some time later, whatever has become of that handle.
 *
 *   FREE -> WAITS (BORROW) -> LENT -> FREE (RETURNED, or the agent dies)
 *              '-> FREE (refused)
 *
 * What is lent is not given up (I22), which is certain where nothing goes wrong. It asks no core:
 * it keeps its own record of what was lent.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/check.h"
#include "tests/sim/sim.h"

#define LOANS_MAX 4u

enum loan_state { LOAN_FREE, LOAN_WAITS, LOAN_LENT };

struct sim_loan {
	enum loan_state state;
	uint64_t id, copy; /* copy: the session that it is lent from */
	uint32_t model, shard;
	struct th_version version;
};

static struct {
	struct sim_loan loans[LOANS_MAX];
} borrowers[HOSTS_MAX];

static uint64_t last_loan;
static bool certain;

struct borrower_task {
	struct task task;
	struct host *host;
};

static struct sim_loan *
loan_of(const struct host *host, uint64_t id)
{
	struct sim_loan *loans = borrowers[host->process.index].loans;

	for (uint32_t i = 0; i < LOANS_MAX; i++) {
		if (loans[i].state != LOAN_FREE && loans[i].id == id)
			return &loans[i];
	}
	return NULL;
}

/* ---- what they do ---------------------------------------------------------------------------- */

static struct handle *
open_handle(struct host *host)
{
	struct handle *handle = host->handles;

	while (handle != NULL && (handle->observer == NULL || !observer_asks(handle->observer)))
		handle = handle->next;
	return handle;
}

/* What some worker of that model holds now; false: none does. */
static bool
pick(uint32_t model, struct sim_loan *loan)
{
	uint32_t first = (uint32_t)chance(RNG_BORROW, world.options.groups);

	for (uint32_t i = 0; i < world.options.groups; i++) {
		const struct group *group = &world.groups[(first + i) % world.options.groups];
		const struct worker *worker = &group->workers[0];
		if (group->model != model || worker->handle == NULL ||
			th_version_none(worker->line.held))
			continue;
		loan->version = worker->line.held;
		loan->model = model;
		loan->shard = (uint32_t)chance(RNG_BORROW, group->shards);
		return true;
	}
	return false;
}

static void
borrow(struct host *host, struct sim_loan *loan)
{
	const struct handle *handle = open_handle(host);

	if (handle == NULL || host->leaving || !pick(observer_model(handle->observer), loan))
		return;
	loan->state = LOAN_WAITS;
	loan->id = ++last_loan;
	loan->copy = 0;
	TRACE("host # borrows: loan # version #", host->process.index, loan->id,
		loan->version.version);
	host_tell(host, AGENT_EV_BORROW, handle->id, between(RNG_BORROW, 2 * US, 500 * US))
		->u.borrow = (struct agent_borrow){.id = loan->id,
		.version = loan->version,
		.shard = loan->shard,
		.timeout_ns = between(RNG_BORROW, 10 * MS, 20 * SEC),
		.limit = UINT64_MAX};
}

static void
give_back(struct host *host, struct sim_loan *loan)
{
	TRACE("host # returns loan #", host->process.index, loan->id);
	loan->state = LOAN_FREE;
	host_tell(host, AGENT_EV_RETURNED, 0, between(RNG_BORROW, 2 * US, 500 * US))
		->u.returned_loan = loan->id;
}

static void
borrower_goes_on(struct task *task)
{
	struct host *host = ((struct borrower_task *)task)->host;
	struct sim_loan *loans = borrowers[host->process.index].loans;
	struct sim_loan *loan = &loans[chance(RNG_BORROW, LOANS_MAX)];

	for (uint32_t i = 0; world.closing && i < LOANS_MAX; i++) {
		if (loans[i].state == LOAN_LENT)
			give_back(host, &loans[i]);
	}
	if (world.closing || !host->process.alive)
		;
	else if (loan->state == LOAN_FREE)
		borrow(host, loan);
	else if (loan->state == LOAN_LENT && percent(RNG_BORROW, 30))
		give_back(host, loan);
	struct borrower_task *again = task_new(sizeof(*again), borrower_goes_on, NULL);
	again->host = host;
	task_in(&again->task, between(RNG_BORROW, MS, world.options.borrow_ns));
}

/* ---- what they hear -------------------------------------------------------------------------- */

void
borrower_lent(struct host *host, const struct agent_action *action)
{
	const struct handle *copy = host_handle(host, action->session);
	struct sim_loan *loan = loan_of(host, action->u.loan.id);

	TRACE("host # lends loan # session #", host->process.index, action->u.loan.id, copy->id);
	if (loan == NULL || loan->state != LOAN_WAITS)
		sim_fail("I22", "host %u lends what nobody waits for", host->process.index);
	if (!copy->offload || !copy->part.there || copy->part.prefix < world.options.chunks)
		sim_fail("I22", "host %u lends what is not all there", host->process.index);
	loan->state = LOAN_LENT;
	loan->copy = copy->id;
	for (const struct handle *other = host->handles; other != NULL; other = other->next) {
		const struct sim_loan *twin = NULL;
		for (uint32_t i = 0; i < LOANS_MAX && twin == NULL; i++) {
			const struct sim_loan *one = &borrowers[host->process.index].loans[i];
			if (one->state == LOAN_LENT && one->copy == other->id && one != loan &&
				one->model == loan->model && one->shard == loan->shard &&
				th_version_compare(one->version, loan->version) == 0)
				twin = one;
		}
		if (certain && twin != NULL && twin->copy != copy->id)
			sim_fail("I22", "host %u lends two copies of one version",
				host->process.index);
	}
}

void
borrower_refused(struct host *host, const struct agent_action *action)
{
	struct sim_loan *loan = loan_of(host, action->u.loan.id);

	TRACE("host # refuses loan #: !", host->process.index, action->u.loan.id,
		TRACE_E(action->u.loan.code));
	if (loan == NULL || loan->state != LOAN_WAITS || action->u.loan.code >= 0)
		sim_fail("I22", "host %u refuses what nobody waits for", host->process.index);
	loan->state = LOAN_FREE;
}

void
check_borrow_given_up(const struct host *host, const struct handle *handle)
{
	const struct sim_loan *loans = borrowers[host->process.index].loans;

	for (uint32_t i = 0; certain && !world.closing && i < LOANS_MAX; i++) {
		if (loans[i].state == LOAN_LENT && loans[i].copy == handle->id)
			sim_fail("I22", "host %u gives up session %" PRIu64 ", which it lends",
				host->process.index, handle->id);
	}
}

/* The processes have their pages still, and nobody to return them to. */
void
borrower_host_died(const struct host *host)
{
	memset(&borrowers[host->process.index], 0, sizeof(borrowers[0]));
}

void
borrower_start(void)
{
	const struct options *o = &world.options;

	memset(borrowers, 0, sizeof(borrowers));
	last_loan = 0;
	certain = o->quiet && o->servers == 1 && o->server_restart_ns == 0 &&
		  o->diverge_permille == 0 && o->drain_ns == 0 && o->other_bytes_percent == 0 &&
		  o->tickets_max == 0;
	for (uint32_t i = 0; o->borrow_ns > 0 && i < o->hosts; i++) {
		struct borrower_task *first = task_new(sizeof(*first), borrower_goes_on, NULL);
		first->host = &world.hosts[i];
		task_in(&first->task, between(RNG_BORROW, 0, 3 * SEC));
	}
}
