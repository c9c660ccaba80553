/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timer - when which object wants to be looked at next: a heap, so that the time that passes costs
 * nothing for those whose time has not come.
 *
 * An object has one timer, for the nearest of its deadlines; when it fires the object looks at all
 * of them and asks again. Deadlines that move away, as a beat moves that of an agent, need not be
 * taken back: the timer fires early and asks again. Equal times fire in the order of asking.
 */
#ifndef TH_SERVER_CORE_TIMER_H
#define TH_SERVER_CORE_TIMER_H

#include "server/core/refsrv_state.h"

/* The object whose field "timer" this is. */
#define TIMER_OWNER(timer, type) ((type *)(void *)((char *)(timer)-offsetof(type, timer)))

/* Fires at this time, or before when it was asked to. */
void timer_at(struct refsrv *server, struct timer *timer, enum timer_kind kind, int64_t at_ns);
/* Never fires; for an object that goes, or has no deadline any more. */
void timer_stop(struct refsrv *server, struct timer *timer);
/* Takes the first that is due; NULL: none is. */
struct timer *timer_take(struct refsrv *server);
/* When the first fires; INT64_MAX: never. */
int64_t timer_next_ns(const struct refsrv *server);

#endif
