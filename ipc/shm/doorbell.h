/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doorbell - how one side of a ring wakes the other: an eventfd, and a flag that says when it is
 * due.
 *
 * Who waits:  doorbell_arm(own flag), then look at the ring again; only when it is empty, poll the
 *             eventfd. Awake: doorbell_drain, then look at the ring.
 * Who wakes:  publish the index (ring.c), then doorbell_ring(eventfd, flag of the other).
 *
 * The four accesses form Dekker's pattern and are sequentially consistent operations (not a fence
 * beside relaxed ones: race checkers understand these):
 *     waker:   store index   (ring_push, ring_complete)    waiter:  store flag   (doorbell_arm)
 *              load flag     (doorbell_ring)                        load index   (ring_pending,
 *                                                                   ring_take, ring_pop)
 * In their total order one of the two stores comes first, so that at least one of the loads sees
 * it: either the waker sees the flag and rings, or the waiter sees the record and does not sleep.
 * A side may leave its flag set while it is awake: it is then rung more often than it needs.
 * tests/model/ring.pml is this protocol as a model, with the mistakes that it does not make.
 *
 * The other process holds the same file and may read, fill or change it, also its O_NONBLOCK. A
 * read cannot block here. A write to an eventfd can: the other fills it and makes it blocking, and
 * no look before the write is near enough to it. So who does not trust the waiter gives it a timer
 * that has gone off (doorbell_timer_*): to poll and to read it is like an eventfd, and no state of
 * it makes setting it wait. The other only loses its own wake-ups. Any thread.
 */
#ifndef TH_IPC_SHM_DOORBELL_H
#define TH_IPC_SHM_DOORBELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"

/* A new eventfd (close-on-exec, non-blocking) or -errno. */
TH_MUST_USE int doorbell_new(void);

void doorbell_arm(_Atomic uint32_t *own_sleeping);
void doorbell_disarm(_Atomic uint32_t *own_sleeping);

/* Makes fd readable, whatever the flag says. 0 or -errno; a full counter is readable, so it is 0.
 */
int doorbell_signal(int fd);
/* Rings when the other side may sleep. 1: rung, 0: not needed, or -errno. */
int doorbell_ring(int fd, const _Atomic uint32_t *other_sleeping);
/* The same for who waits in a process that is not trusted; drained by doorbell_drain, too. */
TH_MUST_USE int doorbell_timer_new(void);
int doorbell_timer_signal(int fd);
int doorbell_timer_ring(int fd, const _Atomic uint32_t *other_sleeping);
/* fd is not readable any more. 1: it was, 0: it was not, or -errno. */
int doorbell_drain(int fd);

#endif
