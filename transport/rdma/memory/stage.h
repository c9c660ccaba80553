/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage - memory of the agent's own where chunks lie while a NIC moves them, for memory that no NIC
 * reaches: private to its process, not registrable, or not registered.
 *
 * A *slab* is STAGE_SLOTS slots of one chunk each, in one piece of memory and one region. A leg
 * has at most one at each end, for as long as its queue pairs may use it. The *stage* is the
 * agent's pool of them. They are made when they are wanted, up to a budget (key rdma.stage); one
 * that nobody had for a while is given back.
 *
 * A slab for a part that lies on one GPU lies there, too, where that GPU has memory which NICs
 * reach (cuda/agent/gpus.h) and a rail near to it takes it: bytes cross PCIe once. It belongs to
 * one leg, made for it and given back with it: so nothing of a GPU's is taken when no leg needs it,
 * and nobody has to clear it. That takes milliseconds, so not for a part with less bytes than a
 * slab. When the GPU's process ends, the slab is lost, and the leg goes on without RDMA. Where the
 * GPU has no such memory it is one of the host's: which it is shows when it is ready. One that is
 * made of the host's memory for a part with rows on GPUs is reached by these, too, so that nothing
 * is copied on the way but by them.
 *
 * Who holds a reference of a slab has it to himself: a read that got stuck in a worker's memory
 * keeps its own until it comes back (ferry.h), so that nobody else's bytes are written over.
 *
 * Any thread, but for stage_new, stage_close and stage_free.
 */
#ifndef TH_TRANSPORT_RDMA_MEMORY_STAGE_H
#define TH_TRANSPORT_RDMA_MEMORY_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "transport/part/chunk.h"

#define STAGE_SLOTS 8u
#define SLAB_BYTES ((uint64_t)STAGE_SLOTS * CHUNK_BYTES_MAX)

struct gpu_space;
struct gpus_host;
struct rdma;
struct region;
struct slab;
struct stage;
struct xfer_part;

/* budget_bytes: of all slabs; idle_ns: then one is given back, 0: 30 s. rdma outlives it, but for
 * what stuck threads still have. */
struct stage *stage_new(struct rdma *rdma, uint64_t budget_bytes, int64_t idle_ns);
/* Before the first leg: which rails are near to a GPU, as a mask; on any thread. NULL: all are. */
void stage_set_near(
	struct stage *stage, uint32_t (*near)(void *arg, const uint8_t uuid[16]), void *arg);
/* After the last leg. Nothing is registered any more once its regions are gone. */
void stage_close(struct stage *stage);
/* When the keeper has ended. NULL: nothing, here and above. */
void stage_free(struct stage *stage);
/* On the keeper's thread: gives back what is idle. When to look again; INT64_MAX: when asked. */
int64_t stage_tick(struct stage *stage, int64_t now_ns);

/* One that is registered, or about to be (slab_rails), for chunks of the part; NULL: of any memory.
 * 0, or TH_E_NO_PATH and a clause that names rdma.stage. Not on a thread of the crew. */
TH_MUST_USE int stage_take(struct stage *stage, const struct xfer_part *part, struct th_err *err,
	struct slab **ret_slab);
struct slab *slab_retain(struct slab *slab);
/* The last one: back to the pool. NULL: nothing. */
void slab_release(struct slab *slab);
/* A queue pair may READ it, or READ into it, for ever: nobody else gets it. */
void slab_condemn(struct slab *slab);
/* Rails on which it is ready; may still become it (waiting). Once it is on one: what follows. */
uint32_t slab_rails(struct slab *slab, uint32_t *ret_waiting);
/* False: it is to be on a GPU, or the host's instead. The GPU's process may take seconds. */
bool slab_is_made(struct slab *slab);
/* It is on none and will be on none: why, as a clause; empty: all of them are down. */
void slab_why(struct slab *slab, struct th_err *ret_err);
/* Before a peer may READ it: nothing of a former leg lies there any more. It takes milliseconds. */
void slab_clear(struct slab *slab);
struct region *slab_region(const struct slab *slab); /* borrowed */
/* NULL: it is the host's. Else slots lie at their offsets there. Borrowed. */
struct gpu_space *slab_space(const struct slab *slab);
/* Of the host's: GPUs reach its slots themselves. NULL: they do not. Borrowed. */
struct gpus_host *slab_host(const struct slab *slab);
/* What was on the GPU is gone. */
bool slab_lost(const struct slab *slab);
/* Where to write to, if it is the host's. */
uint8_t *slab_slot(struct slab *slab, uint32_t slot);
uint64_t slab_slot_at(uint32_t slot); /* its offset in the region */
/* The same, of one that is written to from now on: it is cleared before others have it. */
uint64_t slab_slot_use(struct slab *slab, uint32_t slot);

struct stage_status {
	uint64_t budget_bytes;
	uint64_t bytes;         /* of all slabs that there are */
	uint64_t bytes_on_gpus; /* of those */
	uint64_t bytes_in_use;  /* of those that a leg has */
	uint64_t refused;       /* legs that got none */
};
void stage_status(struct stage *stage, struct stage_status *ret_status);

#endif
