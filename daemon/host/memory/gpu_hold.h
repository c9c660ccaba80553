/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_hold - whether the agent still keeps GPU memory of a worker allocated.
 *
 * Each piece that a process of a GPU opens and each dma-buf that a NIC knows is a use, until it is
 * closed there and its descriptor is closed here: a descriptor alone keeps the memory. The worker
 * is told that its memory is free when the last use has ended, and not before. A device that
 * refuses to give it back ends its use, too, as there is nothing to wait for: then the worker is
 * told that. Any thread.
 */
#ifndef TH_DAEMON_HOST_MEMORY_GPU_HOLD_H
#define TH_DAEMON_HOST_MEMORY_GPU_HOLD_H

#include <stdbool.h>

struct hold;

struct hold *hold_new(void); /* with one use */
void hold_use(struct hold *hold);
/* A use has ended; the last one frees it. void: it is a callback of many. NULL: nothing. */
void hold_end(void *hold);
/* Of a use that has not ended: a device keeps the memory. void: as above. */
void hold_refused(void *hold);
/* Ends a use, and calls gone once when none is left: on any thread, maybe within the call. kept: a
 * device keeps some of it. */
typedef void (*hold_gone)(void *arg, bool kept);
void hold_end_and_tell(struct hold *hold, hold_gone gone, void *arg);

#endif
