/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stop_signals - SIGINT, SIGTERM and SIGHUP for the time when there is something to undo.
 *
 * A signal first ends the process at once, but not before what is left on the disk is undone: the
 * agent and the kernel clean up the rest. From stop_patient on the first signal is something to
 * look at, because work is undone in order then; a second one still ends the process at once. A
 * signal that was ignored from the start stays so. One at a time; the calling thread must be the
 * only one.
 */
#ifndef TH_TOOLS_THCTL_STOP_SIGNALS_H
#define TH_TOOLS_THCTL_STOP_SIGNALS_H

#include <signal.h>
#include <stdbool.h>

#include "ipc/base/checked.h"

#define STOP_SIGNALS 3

struct stop {
	int fd; /* owns: readable when a signal came that nobody has looked at               */
	struct sigaction before[STOP_SIGNALS];
	sigset_t mask; /* before stop_block */
};

/* undo may be NULL. It runs in a signal handler: async-signal-safe calls only. 0 or -errno. */
TH_MUST_USE int stop_begin(struct stop *ret_stop, void (*undo)(void));
void stop_patient(struct stop *stop);
/* Whether a signal ever came. Never blocks. */
bool stop_seen(struct stop *stop);
/* Around what must not end in the middle: a signal waits until then. */
void stop_block(struct stop *stop);
void stop_unblock(struct stop *stop);
/* Signals have the effect that they had before. A second call does nothing. */
void stop_end(struct stop *stop);

#endif
