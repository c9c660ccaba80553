/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage - memory of the agent's own where chunks lie while a NIC moves them, for memory that no NIC
 * reaches: private to its process, not registrable, or not registered.
 *
 * A *slab* is STAGE_SLOTS slots of one chunk each, in one piece of memory and one region on all
 * rails. A leg has at most one at each end, for as long as its queue pairs may use it. The *stage*
 * is the agent's pool of them. They are made when they are wanted, up to a budget (key rdma.stage);
 * one that nobody had for a while is given back.
 *
 * Who holds a reference of a slab has it to himself: a read that got stuck in a worker's memory
 * keeps its own until it comes back (ferry.h), so that nobody else's bytes are written over.
 *
 * Any thread, but for stage_new, stage_close and stage_free.
 */
#ifndef TH_TRANSPORT_RDMA_STAGE_H
#define TH_TRANSPORT_RDMA_STAGE_H

#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "transport/chunk.h"

#define STAGE_SLOTS 8u
#define SLAB_BYTES ((uint64_t)STAGE_SLOTS * CHUNK_BYTES_MAX)

struct rdma;
struct region;
struct slab;
struct stage;

/* budget_bytes: of all slabs. rdma outlives it, but for what stuck threads still have. */
struct stage *stage_new(struct rdma *rdma, uint64_t budget_bytes);
/* After the last leg. Nothing is registered any more once its regions are gone. */
void stage_close(struct stage *stage);
/* When the keeper has ended. NULL: nothing, here and above. */
void stage_free(struct stage *stage);
/* On the keeper's thread: gives back what is idle. When to look again; INT64_MAX: when asked. */
int64_t stage_tick(struct stage *stage, int64_t now_ns);

/* One that is registered, or about to be (slab_region). 0, or TH_E_NO_PATH and a clause that names
 * rdma.stage. Not on a thread of the crew. */
TH_MUST_USE int stage_take(struct stage *stage, struct th_err *err, struct slab **ret_slab);
struct slab *slab_retain(struct slab *slab);
/* The last one: back to the pool. NULL: nothing. */
void slab_release(struct slab *slab);
/* A queue pair may READ it, or READ into it, for ever: nobody else gets it. */
void slab_condemn(struct slab *slab);
/* Before a peer may READ it: nothing of a former leg lies there any more. It takes milliseconds. */
void slab_clear(struct slab *slab);
struct region *slab_region(const struct slab *slab); /* borrowed */
/* Where to write to. */
uint8_t *slab_slot(struct slab *slab, uint32_t slot);
uint64_t slab_slot_at(uint32_t slot); /* its offset in the region */

struct stage_status {
	uint64_t budget_bytes;
	uint64_t bytes;        /* of all slabs that there are */
	uint64_t bytes_in_use; /* of those that a leg has */
	uint64_t refused;      /* legs that got none */
};
void stage_status(struct stage *stage, struct stage_status *ret_status);

#endif
