/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state - the states of a kind of object as a table: what each is called, and what may follow it.
 *
 * One function of each kind writes its state (ac_call_enter, op_enter, ...), and asks here first. A
 * way that the table does not have is an error of our own, never input: whoever is sent something
 * out of turn refuses it before. The table is the diagram at the head of the object's file.
 */
#ifndef TH_IPC_BASE_STATE_H
#define TH_IPC_BASE_STATE_H

#include <stdint.h>

#define TH_STATES_MAX 16

struct th_states {
	const char *object;
	struct th_state {
		const char *name;
		uint32_t next; /* TH_STATE() of each that may follow */
	} list[TH_STATES_MAX];
};

#define TH_STATE(state) (UINT32_C(1) << (state))

/* Ends the process: `op: no way from done to running (GO)`. */
void th_state_refuse(const struct th_states *states, unsigned from, unsigned to, const char *why)
	__attribute__((noreturn, cold));

/* why: what has happened, static text. */
static inline void
th_state_check(const struct th_states *states, unsigned from, unsigned to, const char *why)
{
	if (from >= TH_STATES_MAX || to >= TH_STATES_MAX ||
		(states->list[from].next & TH_STATE(to)) == 0)
		th_state_refuse(states, from, to, why);
}

#endif
