/* SPDX-License-Identifier: Apache-2.0 */
/*
 * door - an agent's data port: who comes with which ticket. The table is the transport's own
 * (transport/leg/tickets.h); its acceptor is played here.
 *
 *   EXPECT --> expected --knock--> begun (mover.c) --OUT_ENDED--> gone
 *                  '--FENCE, some time later---------------------^
 *
 * What the core takes back may begin before the door hears of it.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "tests/sim/check.h"
#include "tests/sim/sim.h"

#define OF(field, pointer, type) ((type *)(void *)((char *)(pointer)-offsetof(type, field)))

struct door_leg {
	struct ticket_grant grant;
	struct host *host;
	uint64_t number, session, gen;
	bool begun, fencing;
	struct leg *leg; /* that reads; NULL: not begun, or its reader has left */
};

struct knocker {
	struct ticket_knock knock;
	uint64_t number; /* of no other */
	struct leg *leg; /* NULL: whoever has come by a ticket */
};

struct door_task {
	struct task task;
	struct host *host;
	struct th_ticket ticket;
	uint64_t number; /* of a knocker, or of a leg of the core */
};

static struct door_task *
door_task(struct host *host, void (*run)(struct task *), uint64_t number)
{
	struct door_task *task = task_new(sizeof(*task), run, &host->process);

	task->host = host;
	task->number = number;
	return task;
}

static struct door_leg *
door_find(const struct host *host, uint64_t number)
{
	struct ticket_grant *grant;

	LIST_FOREACH(grant, &host->tickets.grants, entry)
	{
		struct door_leg *door = OF(grant, grant, struct door_leg);
		if (door->number == number)
			return door;
	}
	return NULL;
}

void
door_ended(struct host *host, uint64_t number)
{
	struct door_leg *door = door_find(host, number);

	tickets_end(&host->tickets, &door->grant);
	free(door);
	host_tell_mover(host, AGENT_EV_OUT_ENDED, 0)->u.out_leg = number;
}

static void
let_in(struct door_leg *door, struct leg *leg)
{
	if (door->begun)
		sim_fail("I11", "a ticket opens two legs of host %u", door->host->process.index);
	door->begun = true;
	host_tell_mover(door->host, AGENT_EV_OUT_BEGAN, 0)->u.out_leg = door->number;
	if (leg == NULL || !mover_serve(leg, door->session, door->gen, door->number)) {
		door_ended(door->host, door->number); /* he has left */
		return;
	}
	door->leg = leg;
	leg->fencing = door->fencing;
}

/* ---- who knocks ------------------------------------------------------------------------------ */

static void
turn_away(struct host *host, struct knocker *knocker)
{
	struct leg *leg = knocker->leg;

	tickets_leave(&host->tickets, &knocker->knock);
	free(knocker);
	if (leg != NULL)
		mover_turned_away(leg);
}

static void
waited(struct task *task)
{
	const struct door_task *mine = (struct door_task *)task;
	struct ticket_knock *knock;

	LIST_FOREACH(knock, &mine->host->tickets.knocks, entry)
	{
		struct knocker *knocker = OF(knock, knock, struct knocker);
		if (knocker->number != mine->number)
			continue;
		turn_away(mine->host, knocker);
		return;
	}
}

void
door_knock(struct host *host, const struct th_ticket *ticket, struct leg *leg)
{
	struct knocker *knocker = th_calloc(1, sizeof(*knocker));
	struct ticket_grant *grant;
	int rc;

	knocker->knock.ticket = *ticket;
	knocker->number = ++world.last_knock;
	knocker->leg = leg;
	rc = tickets_knock(&host->tickets, &knocker->knock, &grant);
	if (rc == -EAGAIN) {
		task_in(&door_task(host, waited, knocker->number)->task, KNOCK_NS);
		return;
	}
	free(knocker);
	if (rc == 0)
		let_in(OF(grant, grant, struct door_leg), leg);
	else if (leg != NULL)
		mover_turned_away(leg);
}

static void
knock_again(struct task *task)
{
	const struct door_task *mine = (struct door_task *)task;

	door_knock(mine->host, &mine->ticket, NULL);
}

void
door_knock_later(struct host *host, const struct th_ticket *ticket, int64_t delay_ns)
{
	struct door_task *task = door_task(host, knock_again, 0);

	task->ticket = *ticket;
	task_in(&task->task, delay_ns);
}

/* ---- what the core says ---------------------------------------------------------------------- */

void
door_expect(struct host *host, const struct agent_action *action)
{
	struct door_leg *door = th_calloc(1, sizeof(*door));
	const struct part *part = &host_handle(host, action->session)->part;
	struct ticket_knock *knock;

	if (!part->there || part->gen != action->u.leg.gen)
		sim_fail("agent", "host %u expects readers of a part that is not there",
			host->process.index);
	door->host = host;
	door->number = action->u.leg.leg;
	door->session = action->session;
	door->gen = action->u.leg.gen;
	door->grant.ticket = action->u.leg.grant.ticket;
	knock = tickets_expect(&host->tickets, &door->grant);
	if (knock != NULL) {
		struct knocker *knocker = OF(knock, knock, struct knocker);
		struct leg *leg = knocker->leg;
		free(knocker);
		let_in(door, leg);
	}
}

void
door_refuse(struct host *host, const struct agent_action *action)
{
	struct ticket_knock *knock = tickets_waiting(&host->tickets, &action->u.refuse.ticket);

	if (knock != NULL)
		turn_away(host, OF(knock, knock, struct knocker));
}

static void
door_fenced(struct task *task)
{
	const struct door_task *mine = (struct door_task *)task;
	struct door_leg *door = door_find(mine->host, mine->number);

	if (door == NULL)
		return;
	if (door->leg != NULL)
		mover_fenced(door->leg);
	else
		door_ended(door->host, door->number);
}

void
door_fence(struct host *host, uint64_t number)
{
	struct door_leg *door = door_find(host, number);

	if (door == NULL || door->fencing)
		return;
	door->fencing = true;
	if (door->leg != NULL)
		door->leg->fencing = true;
	task_in(&door_task(host, door_fenced, number)->task, between(RNG_MOVE, 10 * US, 60 * MS));
}

/* ---- questions, and the end ------------------------------------------------------------------ */

void
door_must_be_shut(const struct handle *handle, const char *why)
{
	struct ticket_grant *grant;

	LIST_FOREACH(grant, &handle->host->tickets.grants, entry)
	{
		if (OF(grant, grant, struct door_leg)->session == handle->id)
			sim_fail("I2", "%s: a reader of session %lu of host %u may still come", why,
				(unsigned long)handle->id, handle->host->process.index);
	}
}

void
door_host_died(struct host *host)
{
	while (!LIST_EMPTY(&host->tickets.grants)) {
		struct ticket_grant *grant = LIST_FIRST(&host->tickets.grants);
		tickets_end(&host->tickets, grant);
		free(OF(grant, grant, struct door_leg));
	}
	while (!LIST_EMPTY(&host->tickets.knocks)) {
		struct ticket_knock *knock = LIST_FIRST(&host->tickets.knocks);
		tickets_leave(&host->tickets, knock);
		free(OF(knock, knock, struct knocker));
	}
}
