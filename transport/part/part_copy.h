/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part_copy - one chunk from a part to another one, past the caches and hashed on the way: the
 * digest is of what was stored. Both are direct and have the same table of chunks. Any thread that
 * does not block SIGBUS; one owner.
 */
#ifndef TH_TRANSPORT_PART_PART_COPY_H
#define TH_TRANSPORT_PART_PART_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "transport/hash/digest.h"
#include "transport/part/xfer_part.h"

struct part_copy {
	struct xfer_part *source, *part; /* borrow */
	struct xfer_cursor from, to;     /* done when to.left is 0 */
	struct digest digest;            /* where part wants one */
};

void part_copy_init(
	struct part_copy *copy, struct xfer_part *source, struct xfer_part *part, uint32_t chunk);
/* The next bytes, at most so many. 0, or TH_E_STALE_MEMORY: memory that can not be touched, and
 * whether it is the source's. */
TH_MUST_USE int part_copy_block(
	struct part_copy *copy, uint64_t most, uint64_t *ret_bytes, bool *ret_source);

#endif
