/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader_stage - of a leg's reader: chunks on their way through slots, at either end.
 *
 * Where the source stages (frame.h), chunks are asked of it before lanes READ them: the acceptor
 * asks whenever a slot of the source's is free, and lanes take what it says lies there. Where our
 * own memory is reached by no NIC, lanes READ into a slot of a slab of ours; what landed is hashed
 * there and carried to the part by ferries, a few at a time, since our worker's memory may hold up
 * whoever writes to it.
 *
 * In a slab on the part's GPU nothing is hashed: the GPU hashes what it has carried. What a NIC has
 * written is in order for that, for the CPU makes the driver's call that copies after it has seen
 * the READs' completions (NVIDIA, GPUDirect RDMA, "Synchronization and Memory Ordering").
 *
 *   source's slot:  FREE -> ASKED -> STAGED -> READING -> FREE
 *   our own slot:   FREE -> READING -> JUDGING -> READY -> WRITING -> FREE
 *
 * A lane that breaks leaves what is staged for another lane. Threads: said at each.
 */
#ifndef TH_TRANSPORT_RDMA_LEG_READER_STAGE_H
#define TH_TRANSPORT_RDMA_LEG_READER_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/ctl.h"
#include "transport/loop/ferry.h"
#include "transport/rdma/leg/rdma_wire.h"
#include "transport/rdma/memory/stage.h"

struct map_read;
struct reader;

#define READER_FERRIES 4u

enum reader_slot_state {
	READER_SLOT_FREE,
	READER_SLOT_ASKED,
	READER_SLOT_STAGED,
	READER_SLOT_READING,
	READER_SLOT_JUDGING,
	READER_SLOT_READY,
	READER_SLOT_WRITING,
};

struct reader_slot {
	uint32_t chunk;
	enum reader_slot_state state;
	struct th_hash digest; /* READY: of what lies there */
};

struct reader_ferry {
	struct reader *reader;
	struct ferry *ferry;        /* owns; NULL: not made, or abandoned */
	struct loop_task done_task; /* ferry -> acceptor */
	uint32_t slot;
	bool busy;
};

struct reader_stage {
	/* Immutable once lanes run, but for the leg's end. */
	uint32_t num_source;               /* slots of the source; 0: it does not stage */
	struct slab *slab;                 /* owns; NULL: we do not stage */
	struct th_err own_why, source_why; /* that it is so */
	/* Guarded by the reader's lock. */
	struct reader_slot source[WIRE_SLOTS_MAX];
	struct reader_slot own[STAGE_SLOTS];
	/* Any thread -> acceptor. */
	struct loop_task write_task;
	/* Acceptor. */
	struct reader_ferry ferries[READER_FERRIES];
	uint32_t num_ferries; /* made */
	bool watching, closed;
};

void reader_stage_init(struct reader *reader);
/* Of a leg whose end has come. */
void reader_stage_fini(struct reader *reader);

/* Our own memory is not reached, and why. 0, or there are no slots: the sentence is about both. */
TH_MUST_USE int reader_stage_own(struct reader *reader, const char *why, struct th_err *err);
/* The source stages, in so many slots. */
void reader_stage_source(struct reader *reader, uint32_t slots, const char *why);

/* ---- lanes, on their rails' threads ---- */

TH_MUST_USE bool reader_stage_take(struct reader *reader, uint32_t limit, uint32_t *ret_chunk);
/* Where the chunk lies, and is to lie. */
void reader_stage_place(struct reader *reader, struct map_read *read);
void reader_stage_give_back(struct reader *reader, uint32_t chunk);
/* True: that is all for now, a check or a ferry goes on with it. */
bool reader_stage_landed(struct reader *reader, uint32_t chunk);

/* ---- checks, on their threads ---- */

/* Where a chunk lies that has landed; NULL: in the part. */
const uint8_t *reader_stage_data(struct reader *reader, uint32_t chunk);
/* It is right, as far as that is known (digest NULL: not hashed), or it is not. False: there is no
 * slot of ours, so the caller goes on with it. */
bool reader_stage_judged(
	struct reader *reader, uint32_t chunk, bool right, const struct th_hash *digest);

/* ---- acceptor ---- */

/* No chunk is taken any more: those that nobody READs go back. Under the reader's lock. */
void reader_stage_stop(struct reader *reader);
/* The control connection's buffer is empty: asks for more, if there is something to ask. */
void reader_stage_ask(struct reader *reader);
/* STAGED. 0 or TH_E_PROTOCOL. */
TH_MUST_USE int reader_stage_staged(struct reader *reader, uint32_t chunk, uint32_t slot);
/* What came waits for our own memory. */
bool reader_stage_writes(struct reader *reader);
/* The leg does without RDMA, or ends: slots go back as soon as nobody uses them. True: nothing is
 * written to the part any more. */
bool reader_stage_close(struct reader *reader);

#endif
