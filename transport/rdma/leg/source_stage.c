/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_stage - see source_stage.h.
 */
#include "transport/rdma/leg/source_stage.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "ipc/base/name.h"
#include "transport/loop/ferry.h"
#include "transport/rdma/leg/rdma_wire.h"
#include "transport/rdma/leg/source_own.h"
#include "transport/rdma/memory/read_map.h"
#include "transport/rdma/memory/region.h"
#include "transport/rdma/rdma.h"

struct stage_block { /* of a ferry */
	struct ferry_block block;
	struct slab *slab; /* owns: a reference, so that a read that is stuck harms nobody */
	uint32_t slot;
};

static struct stage_block *
block_of(struct ferry_block *block)
{
	return loop_container(block, struct stage_block, block);
}

static void
source_stage_drop_block(struct ferry_block *block)
{
	struct stage_block *own = block_of(block);
	slab_release(own->slab);
	free(own);
}

static void run_done(struct loop_task *task);

/* ---- life --------------------------------------------------------------------------------- */

/* A device may take so little at once that a slot lies in two pieces: that one is left out. */
static uint32_t
choose_slots(struct staging *staging)
{
	uint64_t piece = region_piece_bytes(slab_region(staging->slab));
	uint32_t max = xfer_part_table(staging->leg->part)->num_chunks, count = 0;
	for (uint32_t i = 0; i < STAGE_SLOTS && count < max; i++) {
		uint64_t at = slab_slot_at(i);
		if (at / piece == (at + CHUNK_BYTES_MAX - 1) / piece)
			staging->places[count++] = i;
	}
	return count;
}

int
staging_init(struct staging *staging, struct leg_out *leg, const char *why, struct th_err *ret_err)
{
	struct th_err err = {0};
	char kept[TH_CTL_TEXT_BYTES];
	snprintf(kept, sizeof(kept), "%s", why); /* why may be what ret_err has */
	*staging = (struct staging){.leg = leg, .done_task.run = run_done};
	int rc = stage_take(rdma_stage(leg->transport->rdma), leg->part, &err, &staging->slab);
	if (rc < 0)
		return th_fail(ret_err, TH_E_NO_PATH, "%s; %s", kept, err.text);
	memcpy(staging->why, kept, sizeof(kept));
	return 0;
}

void
staging_explain(const struct staging *staging, struct th_err *ret_err)
{
	struct th_err err;
	slab_why(staging->slab, &err);
	(void)th_fail(ret_err, TH_E_NO_PATH, "%s; what it would copy to (rdma.stage) %s%s",
		staging->why,
		err.text[0] ? "could be registered on no rail: "
			    : "is registered on no rail that is up",
		err.text);
}

void
staging_stop(struct staging *staging)
{
	for (uint32_t i = 0; i < STAGING_FERRIES; i++) {
		struct staging_ferry *one = &staging->ferries[i];
		ferry_abandon(one->ferry);
		one->ferry = NULL;
		if (one->block)
			source_stage_drop_block(&one->block->block);
		one->block = NULL;
	}
	staging->waiting = staging->staged = 0;
}

void
staging_fini(struct staging *staging, bool stuck)
{
	staging_stop(staging);
	if (staging->slab && stuck)
		slab_condemn(staging->slab);
	slab_release(staging->slab);
	staging->slab = NULL;
}

int
staging_map(struct staging *staging, const uint32_t *rails, uint32_t num_rails, struct map *ret_map,
	struct th_err *ret_err)
{
	struct region *region = slab_region(staging->slab);
	staging->num_slots = choose_slots(staging);
	if (staging->num_slots == 0)
		return th_fail(ret_err, TH_E_NO_PATH, "%s; its devices register too little at once",
			staging->why);
	if (map_init_slots(ret_map, num_rails, staging->num_slots) < 0)
		return th_fail(ret_err, TH_E_NO_PATH, "out of memory");
	slab_clear(staging->slab);
	for (uint32_t i = 0; i < staging->num_slots; i++) {
		struct wire_key *key = &ret_map->keys[i];
		for (uint32_t r = 0; r < num_rails; r++) {
			struct region_key at;
			if (!region_mr(region, rails[r], slab_slot_at(staging->places[i]), &at))
				return th_fail(ret_err, TH_E_NO_PATH,
					"what it copies to is not registered any more");
			key->address = at.address;
			key->bytes = CHUNK_BYTES_MAX;
			key->rkeys[r] = at.rkey;
		}
	}
	ret_map->have_keys = staging->num_slots;
	return 0;
}

/* ---- copying ------------------------------------------------------------------------------ */

/* One that does nothing. NULL: all are busy, or no thread can be had. */
static struct staging_ferry *
find_ferry(struct staging *staging, int *ret_code)
{
	bool any = false;
	*ret_code = 0;
	for (uint32_t i = 0; i < STAGING_FERRIES; i++) {
		struct staging_ferry *one = &staging->ferries[i];
		if (one->ferry && one->block)
			return one;
		any = any || one->ferry;
	}
	for (uint32_t i = 0; i < STAGING_FERRIES; i++) {
		struct staging_ferry *one = &staging->ferries[i];
		if (one->ferry)
			continue;
		int rc = ferry_new(staging->leg->part, false, staging->leg->transport->acceptor,
			&staging->done_task, &one->ferry);
		if (rc < 0) {
			one->ferry = NULL;
			*ret_code = any ? 0 : rc; /* the others will do */
			return NULL;
		}
		one->block = th_calloc(1, sizeof(*one->block));
		one->block->slab = slab_retain(staging->slab);
		one->block->block.drop = source_stage_drop_block;
		return one;
	}
	return NULL;
}

static void
source_stage_submit(struct staging *staging, struct staging_ferry *one, uint32_t slot)
{
	struct leg_out *leg = staging->leg;
	uint32_t chunk = staging->chunks[slot];
	struct stage_block *own = one->block;
	struct ferry_block *block = &own->block;
	own->slot = slot;
	xfer_cursor_init(&block->cursor, leg->part, chunk);
	block->chunk = chunk;
	block->bytes = chunk_bytes(xfer_part_table(leg->part), chunk);
	block->hashes = leg->verify && __atomic_load_n(&leg->asked[chunk], __ATOMIC_RELAXED) > 1;
	block->space = slab_space(staging->slab);
	block->host = slab_host(staging->slab);
	if (block->space)
		block->at = slab_slot_at(staging->places[slot]);
	else
		block->data = slab_slot(staging->slab, staging->places[slot]);
	staging->waiting &= ~(UINT32_C(1) << slot);
	one->block = NULL;
	ferry_submit(one->ferry, block);
}

/* 0, or why no thread can be had. */
static int
source_stage_feed(struct staging *staging)
{
	while (staging->waiting != 0) {
		int rc;
		struct staging_ferry *one = find_ferry(staging, &rc);
		if (!one)
			return rc;
		source_stage_submit(staging, one, (uint32_t)__builtin_ctz(staging->waiting));
	}
	return 0;
}

#ifdef TH_FAULTS
static void
flip(struct leg_out *leg, const struct ferry_block *block)
{
	if (block->data && leg_out_flips(leg, block->chunk))
		block->data[0] ^= 1;
}
#endif

/* False: the leg ends by that. */
static bool
source_stage_take(struct staging *staging, const struct stage_block *own)
{
	struct leg_out *leg = staging->leg;
	const struct ferry_block *block = &own->block;
	if (block->code < 0 && slab_lost(staging->slab)) {
		source_leave(loop_container(staging, struct source, staging),
			"the process of its GPU has ended, and its memory for "
			"copies with it (rdma.stage)");
		return false;
	}
	if (block->code < 0) {
		leg_out_lost(leg, block->code, block->row);
		return false;
	}
	if (block->hashes &&
		!th_hash_equal(block->digest, *xfer_part_digest(leg->part, block->chunk))) {
		leg_out_changed(leg, block->chunk);
		return false;
	}
#ifdef TH_FAULTS
	flip(leg, block);
#endif
	count_up(&leg->transport->counters.bytes_staged, block->bytes);
	staging->staged |= UINT32_C(1) << own->slot;
	return true;
}

static void
run_done(struct loop_task *task)
{
	struct staging *staging = loop_container(task, struct staging, done_task);
	struct leg_out *leg = staging->leg;
	for (uint32_t i = 0; i < STAGING_FERRIES; i++) {
		struct staging_ferry *one = &staging->ferries[i];
		struct ferry_block *block = one->ferry ? ferry_take(one->ferry) : NULL;
		if (!block)
			continue;
		one->block = block_of(block);
		if (!source_stage_take(staging, one->block))
			return;
	}
	/* There is a ferry, so this cannot fail. */
	(void)source_stage_feed(staging);
	if (staging->staged != 0) {
		leg_out_lives(leg);
		leg_out_wake(leg);
	}
}

/* ---- frames ------------------------------------------------------------------------------- */

int
staging_frame(struct staging *staging, const struct frame *frame)
{
	struct leg_out *leg = staging->leg;
	uint32_t chunk = frame->first, slot = frame->count;
	if (slot >= staging->num_slots || (staging->busy >> slot & 1) != 0 ||
		chunk >= leg->prefix_sent || leg_out_asked(leg, chunk) > LEDGER_ATTEMPTS_MAX)
		return TH_E_PROTOCOL;
	staging->chunks[slot] = chunk;
	staging->busy |= UINT32_C(1) << slot;
	staging->waiting |= UINT32_C(1) << slot;
	int rc = source_stage_feed(staging);
	if (rc == 0)
		return 0;
	log_error("rdma", "cannot start a thread that copies for a leg leg=%" PRIu64 " why='%s'",
		leg->id, th_strerror(rc));
	return rc;
}

bool
staging_refill(struct staging *staging)
{
	if (staging->staged == 0)
		return false;
	while (staging->staged != 0) {
		uint32_t slot = (uint32_t)__builtin_ctz(staging->staged);
		struct frame frame = {.kind = FRAME_STAGED,
			.leg = staging->leg->reader_leg,
			.first = staging->chunks[slot],
			.count = slot};
		leg_out_put(staging->leg, &frame, NULL);
		staging->staged &= ~(UINT32_C(1) << slot);
		staging->busy &= ~(UINT32_C(1) << slot);
	}
	return true;
}
