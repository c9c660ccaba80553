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
 * Freeing the queue pairs is the fence: the leg has not ended before. If a device
 * refuses even that, the leg does not end before the transport does.
 *
 * Memory that no NIC reaches is staged: copied into memory of the agent's own, and READ there
 * (source_stage.h).
 *
 * Threads: the acceptor's, but for what checks call.
 */
#ifndef TH_TRANSPORT_RDMA_LEG_SOURCE_H
#define TH_TRANSPORT_RDMA_LEG_SOURCE_H

#include "transport/leg/leg_path.h"

extern const struct leg_out_path_ops source_ops;

#endif
