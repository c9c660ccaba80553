/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source - the RDMA of a leg at its source: which rails serve the part, queue pairs that answer
 * READs, where everything lies; and the end of that.
 *
 *   WAITING (for registrations, for as long as those take) -> NAMED (RAILS are told)
 *     -> MAKING (queue pairs, connected) -> TELLING (ACCEPT, KEYS, MAP) -> SERVING
 *   any of them -> LEAVING (queue pairs are freed, then DECLINE is answered) -> OVER
 *
 * READs cost the source nothing and tell it nothing: how far the reader is it knows from ALIVE.
 * Freeing the queue pairs is the fence: the leg has not ended before source_gone. If a device
 * refuses even that, the leg does not end before the transport does.
 *
 * Memory that no NIC reaches is staged: copied into memory of the agent's own, and READ there
 * (source_stage.h).
 *
 * Threads: the acceptor's, but for what checks call.
 */
#ifndef TH_TRANSPORT_RDMA_LEG_SOURCE_H
#define TH_TRANSPORT_RDMA_LEG_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"

struct frame;
struct leg_out;
struct source;

/* For a reader that takes RDMA, and READs what is staged if it takes that. NULL: this agent has
 * none. It may have a reason to decline. */
struct source *source_new(struct leg_out *leg, bool takes_staged);
/* RAILS or DECLINE do not follow at once: memory must be registered first. */
bool source_later(const struct source *source);
void source_start(struct source *source); /* the control connection is open */
/* NULL is harmless, here and below. It is gone. */
void source_free(struct source *source);

/* One of the RDMA frames, CHECK, or ALIVE of a leg with RDMA. 0, or it breaks the protocol. */
TH_MUST_USE int source_frame(
	struct source *source, const struct frame *frame, const uint8_t *payload);
/* The control connection's buffer is empty: puts the next frame in, if there is one. */
bool source_refill(struct source *source);
/* The part has grown. */
void source_grew(struct source *source);
int64_t source_tick(struct source *source, int64_t now_ns);

/* How much of the part may be told as its prefix. */
uint32_t source_prefix(const struct source *source, uint32_t prefix);
/* The reader has all there is, and waits for the rest; or it is not its turn. */
bool source_waits(const struct source *source, uint32_t prefix);
/* The leg is moved by RDMA. */
bool source_serves(const struct source *source);
/* Why one of its ends copies; NULL: none does. Borrowed. */
const char *source_copies(const struct source *source);

/* The leg ends. leg_out_settle is called when it is gone. */
void source_close(struct source *source);
bool source_gone(const struct source *source);

#endif
