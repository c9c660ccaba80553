/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_stage - the part of a source whose memory no NIC reaches: chunks are copied into the slots
 * of a slab, where the reader READs them.
 *
 * The reader names chunk and slot (STAGE), a ferry copies, and the reader is told (STAGED). While
 * that is under way it may not name the slot again; afterwards it may, whenever it likes. So all
 * that a reader can do to us is to have each chunk copied as often as it may fetch it. A chunk that
 * it wants again did not match: then it is hashed here, too.
 *
 * Acceptor only, but for staging_map.
 */
#ifndef TH_TRANSPORT_RDMA_LEG_SOURCE_STAGE_H
#define TH_TRANSPORT_RDMA_LEG_SOURCE_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/ctl.h"
#include "ipc/base/err.h"
#include "transport/loop/mover_loop.h"
#include "transport/rdma/memory/stage.h"

#define STAGING_FERRIES 4u

struct ferry;
struct frame;
struct leg_out;
struct map;
struct stage_block;

struct staging_ferry {
	struct ferry *ferry;       /* owns; NULL: there is none yet */
	struct stage_block *block; /* owns; NULL: the ferry has it */
};

struct staging {
	struct leg_out *leg;
	struct slab *slab; /* owns: a reference; NULL: nothing is staged */
	char why[TH_CTL_TEXT_BYTES];
	uint32_t num_slots;           /* in the order of their keys: of staging_map */
	uint32_t places[STAGE_SLOTS]; /* which of the slab each of them is */
	uint32_t chunks[STAGE_SLOTS]; /* that was asked for last */
	uint32_t busy;                /* mask: asked for, and not told yet */
	uint32_t waiting, staged;     /* masks, parts of busy: for a ferry; to be told */
	struct staging_ferry ferries[STAGING_FERRIES];
	struct loop_task done_task; /* ferry -> acceptor */
};

/* why: the memory is not READ where it lies; cut to a sentence. 0, or TH_E_NO_PATH and both
 * reasons. */
TH_MUST_USE int staging_init(
	struct staging *staging, struct leg_out *leg, const char *why, struct th_err *ret_err);
/* Its slab is registered on no rail: both reasons. */
void staging_explain(const struct staging *staging, struct th_err *ret_err);
/* No more of the part is read, and nothing more is told. Also of zeros. */
void staging_stop(struct staging *staging);
/* No queue pair reaches the slab any more; or for ever (stuck). */
void staging_fini(struct staging *staging, bool stuck);

/* The slots on these rails, cleared of what lay there. On the thread that may take milliseconds. 0,
 * or a code and why. */
TH_MUST_USE int staging_map(struct staging *staging, const uint32_t *rails, uint32_t num_rails,
	struct map *ret_map, struct th_err *ret_err);

/* STAGE. 0, or it breaks the protocol. */
TH_MUST_USE int staging_frame(struct staging *staging, const struct frame *frame);
/* Puts all STAGED that there are into the empty buffer. False: none. */
bool staging_refill(struct staging *staging);

#endif
