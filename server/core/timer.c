/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timer - see timer.h. A binary heap of borrowed timers; each knows its place in it, from 1 on.
 */
#include "server/core/timer.h"

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"

static bool
before(const struct timer *a, const struct timer *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void
timer_put(struct refsrv *server, struct timer *timer, uint32_t place)
{
	server->timers[place - 1] = timer;
	timer->place = place;
}

static void
rise(struct refsrv *server, struct timer *timer, uint32_t place)
{
	while (place > 1 && before(timer, server->timers[place / 2 - 1])) {
		timer_put(server, server->timers[place / 2 - 1], place);
		place /= 2;
	}
	timer_put(server, timer, place);
}

static void
sink(struct refsrv *server, struct timer *timer, uint32_t place)
{
	for (uint32_t child = place * 2; child <= server->num_timers; child = place * 2) {
		if (child < server->num_timers &&
			before(server->timers[child], server->timers[child - 1]))
			child++;
		if (!before(server->timers[child - 1], timer))
			break;
		timer_put(server, server->timers[child - 1], place);
		place = child;
	}
	timer_put(server, timer, place);
}

void
timer_at(struct refsrv *server, struct timer *timer, enum timer_kind kind, int64_t at_ns)
{
	if (at_ns == INT64_MAX || (timer->place != 0 && timer->at_ns <= at_ns))
		return;
	timer->at_ns = at_ns;
	timer->kind = kind;
	timer->order = ++server->last_timer;
	if (timer->place == 0) {
		if (server->num_timers == server->timers_max) {
			server->timers_max = th_max_u32(64, server->timers_max * 2);
			server->timers = th_realloc(
				server->timers, server->timers_max, sizeof(struct timer *));
		}
		timer->place = ++server->num_timers;
	}
	rise(server, timer, timer->place);
}

void
timer_stop(struct refsrv *server, struct timer *timer)
{
	uint32_t place = timer->place;

	if (place == 0)
		return;
	struct timer *last = server->timers[--server->num_timers];
	timer->place = 0;
	if (last == timer)
		return;
	rise(server, last, place);
	sink(server, last, last->place);
}

struct timer *
timer_take(struct refsrv *server)
{
	if (timer_next_ns(server) > server->now_ns)
		return NULL;
	struct timer *first = server->timers[0];
	timer_stop(server, first);
	return first;
}

int64_t
timer_next_ns(const struct refsrv *server)
{
	return server->num_timers == 0 ? INT64_MAX : server->timers[0]->at_ns;
}
