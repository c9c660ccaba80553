/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring - submissions, completions, slots and the line of a session (layout.h), from both sides.
 *
 * Neither side trusts the other: each keeps its own copies of all indices, copies a record once,
 * checks the copy and uses only that; a distance of more than the capacity is -EPROTO and ends the
 * session. Which wait belongs to which index is written in doorbell.h.
 *
 * A submission reserves its slot, and so a place in the completion ring, until the worker has
 * popped its completion. SHM_CANCEL reserves nothing and is not completed: its slot and op_seq are
 * those of the operation that is to end, so a late one hits no other operation.
 * The agent writes the slot (state DONE) before it completes: who pops the completion finds the
 * result in the slot, and the agent does not touch that slot again before its next submission.
 *
 * One thread at a time on each side (libthc: under the shard's mutex), except ring_progress,
 * ring_slot_progress, ring_pending, ring_line_read and ring_events_read, which any thread may
 * call.
 */
#ifndef TH_IPC_SHM_RING_H
#define TH_IPC_SHM_RING_H

#include <stdbool.h>

#include "ipc/base/checked.h"
#include "ipc/shm/layout.h"

/* ---- worker -------------------------------------------------------------------------------- */

struct ring_worker {
	struct shm_w *w;               /* borrows */
	const struct shm_a *a;         /* borrows */
	uint64_t submitted, collected; /* the worker's own copies */
};

void ring_worker_init(struct ring_worker *ring, struct shm_w *w, const struct shm_a *a);
/* 0; -EAGAIN: the agent has not taken the earlier ones yet; -EPROTO. Then ring the agent's
 * doorbell. */
TH_MUST_USE int ring_push(struct ring_worker *ring, const struct shm_submission *submission);
/* True when a completion waits. */
bool ring_pending(const struct ring_worker *ring);
/* 1; 0: none; -EPROTO: indices or record are impossible. slot < SHM_CAPACITY is checked. */
TH_MUST_USE int ring_pop(struct ring_worker *ring, struct shm_completion *ret_completion);
/*
 * A consistent copy; texts are NUL-terminated, whatever the agent wrote. 0; -EAGAIN: the agent was
 * writing all the time (or died while it wrote).
 */
TH_MUST_USE int ring_slot_read(
	const struct ring_worker *ring, uint32_t slot, struct shm_slot *ret_slot);
/* Of this operation: 0 and 0 while the slot still shows the one before. */
void ring_progress(const struct ring_worker *ring, uint32_t slot, uint64_t op_seq,
	uint64_t *ret_done_bytes, uint64_t *ret_total_bytes);
TH_MUST_USE int ring_line_read(const struct ring_worker *ring, struct shm_line *ret_line);
/*
 * The line's event counters alone. It cannot fail: a counter is whole while the agent writes the
 * line, or was stopped while it did, and counters of two moments lie between what they were.
 */
void ring_events_read(const struct ring_worker *ring, uint16_t ret_events[SHM_EV_COUNT]);

/* ---- agent --------------------------------------------------------------------------------- */

struct ring_agent {
	const struct shm_w *w;        /* borrows */
	struct shm_a *a;              /* borrows */
	uint64_t consumed, completed; /* the agent's own copies */
};

void ring_agent_init(struct ring_agent *ring, const struct shm_w *w, struct shm_a *a);
/*
 * Takes the next submission: 1, 0 when there is none, or -EPROTO (the session is then over) when
 * the index is impossible or the record is: unknown kind, slot out of range, deadline below -1,
 * spec not terminated or not zero behind its end, reserved bytes set. Whether the slot is free, and
 * what the spec means, is the caller's question.
 */
TH_MUST_USE int ring_take(struct ring_agent *ring, struct shm_submission *ret_submission);
/*
 * Publishes a completion; the slot has been written before. -EPROTO when the worker has submitted
 * more than it collected (it broke the rules: the session is over). Then ring the worker's
 * doorbell.
 */
TH_MUST_USE int ring_complete(struct ring_agent *ring, const struct shm_completion *completion);
/* All fields but sequence, done_bytes and total_bytes. */
void ring_slot_write(struct ring_agent *ring, uint32_t slot, const struct shm_slot *content);
/* To 0 and 0 before the slot is written for the next operation: see ring_progress. */
void ring_slot_progress(
	struct ring_agent *ring, uint32_t slot, uint64_t done_bytes, uint64_t total_bytes);
/*
 * All fields but sequence. When an event counter has grown, call doorbell_signal on the worker's
 * doorbell whatever its flag says: thc_fd promises to become readable.
 */
void ring_line_write(struct ring_agent *ring, const struct shm_line *line);

#endif
