/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared_parts - the memory of the sessions as the movers share it, and its hashing.
 *
 * A part's memory may be unmapped when the core has ended it and the last mover has dropped its
 * reference; whichever thread drops that only leaves a note. Main thread only, but for that note.
 */
#ifndef TH_DAEMON_HOST_MOVE_SHARED_PARTS_H
#define TH_DAEMON_HOST_MOVE_SHARED_PARTS_H

#include <stdint.h>

#include "transport/part/xfer_part.h"

struct host;

/* NULL: the core has not begun it, or has ended it. Borrowed: retain it. */
struct xfer_part *parts_find(struct host *host, uint64_t session, uint64_t gen);

/* So many shards have digests computed now. */
uint32_t parts_hashing(const struct host *host);

/* What the transport says, by the tag of transport_hash. */
void parts_hashed(struct host *host, uint64_t tag);
void parts_hash_failed(struct host *host, uint64_t tag, uint32_t row);
void parts_hash_stopped(struct host *host, uint64_t tag);

/*
 * This chunk is not what was published, and by nobody's right: the session ends, with the tensor's
 * name.
 */
void parts_changed(struct host *host, uint64_t session, uint64_t gen, uint32_t chunk);
/*
 * A reader found that the memory of this row (of the manifest; UINT32_MAX: it is not known which)
 * can not be read any more: likewise.
 */
void parts_lost(struct host *host, uint64_t session, uint64_t gen, uint32_t row);
/* The worker of the session is gone: what is stuck in its memory is left behind. */
void parts_orphan(struct host *host, uint64_t session);

void parts_close(struct host *host);

#endif
