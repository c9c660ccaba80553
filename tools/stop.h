/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stop - SIGINT, SIGTERM and SIGHUP as something to look at, for the time when there is work to
 * undo.
 *
 * Outside of stop_begin .. stop_end the signals keep their default: the process dies, and its agent
 * and the kernel clean up after it. One at a time; the calling thread must be the only one.
 */
#ifndef TH_TOOLS_STOP_H
#define TH_TOOLS_STOP_H

#include <signal.h>
#include <stdbool.h>

#include "ipc/base/checked.h"

struct stop {
	int fd;    /* owns: readable when a signal came                                      */
	int count; /* signals taken so far                                                   */
	sigset_t before;
};

TH_MUST_USE int stop_begin(struct stop *ret_stop); /* 0 or -errno */
/* Takes what came, and says whether anything ever did. Never blocks. */
bool stop_seen(struct stop *stop);
/*
 * A signal that nobody took in the meantime has its default effect now. A second call does
 * nothing.
 */
void stop_end(struct stop *stop);

#endif
