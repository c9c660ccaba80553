/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader - the RDMA of a leg at its reader: the talk with the source, lanes in place of data
 * connections, and back to those when it comes to nothing.
 *
 *   NEW -> WAITING (for the source's rails, and for our own registrations; if those take their time
 *     the leg goes by data connections until lanes have proved themselves, unless RDMA is required)
 *     -> STAYING (by data connections: the rest is not worth lanes)
 *     -> MAKING (queue pairs) -> OFFERED -> MAPPING (until the source's map is whole) -> CONNECTING
 *     -> RUNNING (lanes probe, then READ)
 *   any of them -> LEAVING (lanes are closed, the source frees its queue pairs) -> DRAINING (it
 *   has, or said itself that there is no RDMA) -> OVER: the leg goes on by data connections, or
 *   fails where RDMA is required
 *   any of them -> CLOSING (the leg has ended)
 *
 * Chunks come from the leg's ledger, below the prefix that the source has told. What landed is
 * judged by checks (checks.h). A lane that breaks gives back what it had; the leg leaves when it
 * has none left. A chunk that does not match is put to the source before it is fetched again.
 * Where NICs do not reach the memory of an end, chunks go through slots there (reader_stage.h).
 *
 * Threads: the acceptor's, but for what lanes and checks call.
 */
#ifndef TH_TRANSPORT_RDMA_LEG_READER_H
#define TH_TRANSPORT_RDMA_LEG_READER_H

#include "transport/leg/leg_path.h"

extern const struct leg_in_path_ops reader_ops;

#endif
