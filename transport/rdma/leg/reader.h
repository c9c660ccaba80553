/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader - the RDMA of a leg at its reader: the talk with the source, lanes in place of data
 * connections, and back to those when it comes to nothing.
 *
 *   WAITING (for the source's rails, and for our own registrations; if those take their time the
 *     leg goes by data connections until lanes have proved themselves, unless RDMA is required)
 *     -> MAKING (queue pairs) -> OFFERED (until the source's map is whole) -> CONNECTING
 *     -> RUNNING (lanes probe, then READ)
 *   any of them -> LEAVING (lanes are closed, the source frees its queue pairs) -> OVER: the leg
 *   goes on by data connections, or fails where RDMA is required
 *
 * Chunks come from the leg's ledger, below the prefix that the source has told. What landed is
 * judged by checks (checks.h). A lane that breaks gives back what it had; the leg leaves when it
 * has none left. A chunk that does not match is put to the source before it is fetched again.
 * Where NICs do not reach the memory of an end, chunks go through slots there (reader_stage.h).
 *
 * Threads: the acceptor's, but for what lanes and checks call. reader_gone is when nothing of it is
 * under way on any thread.
 */
#ifndef TH_TRANSPORT_RDMA_LEG_READER_H
#define TH_TRANSPORT_RDMA_LEG_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"

struct frame;
struct leg_in;
struct reader;

/* NULL: this leg goes by data connections, and leg->fallback says why if there is RDMA at all. */
struct reader *reader_new(struct leg_in *leg);
/* NULL is harmless, here and below. It is gone. */
void reader_free(struct reader *reader);

/* WELCOME has come. later: the source must register its memory first. */
void reader_start(struct reader *reader, bool offered, bool later);
/* One of the RDMA frames, or CHECK. 0, or it breaks the protocol. */
TH_MUST_USE int reader_frame(
	struct reader *reader, const struct frame *frame, const uint8_t *payload);
/* The source has said something: it lives. */
void reader_heard(struct reader *reader);
/* There may be more to fetch. */
void reader_kick(struct reader *reader);
/* The control connection's buffer is empty: puts in what is to be asked of the source. */
void reader_refill(struct reader *reader);
/* When to be called again; INT64_MAX: not for this. late: we were to look long ago. The leg may
 * have ended in here. */
int64_t reader_tick(struct reader *reader, bool late, int64_t now_ns);
/* The stall clock is the reader's own business just now. */
bool reader_excuses(struct reader *reader);
/* The leg is moved by RDMA, as far as is known. */
bool reader_moves(const struct reader *reader);
/* It does through buffers at one end or both. */
bool reader_stages(const struct reader *reader);
uint32_t reader_landed(const struct reader *reader);
uint64_t reader_bytes(struct reader *reader); /* that came, of chunks on their way, too */
/* A byte of the part may have been written. */
bool reader_touched(const struct reader *reader);

/* The leg ends: nothing more is written. leg_in_settle is called when it is gone. */
void reader_close(struct reader *reader);
bool reader_gone(const struct reader *reader);

#endif
