/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader_stage - see reader_stage.h.
 */
#include "transport/rdma/leg/reader_stage.h"

#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/name.h"
#include "transport/rdma/leg/reader_own.h"

/* A block of a ferry that keeps the slot which it is in. */
struct slot_block {
	struct ferry_block block; /* first */
	struct slab *slab;        /* owns: a reference */
};

static struct xfer_part *
reader_stage_part_of(const struct reader *reader)
{
	return reader->leg->part;
}

/* Under the lock. The one that a chunk is in; there is one, or none may be asked for. */
static struct reader_slot *
slot_of(struct reader_slot *slots, uint32_t count, uint32_t chunk, enum reader_slot_state state)
{
	for (uint32_t i = 0; i < count; i++) {
		if (slots[i].state == state && slots[i].chunk == chunk)
			return &slots[i];
	}
	TH_ASSERT(false);
	return NULL;
}

/* Under the lock. The one with the lowest chunk, or NULL. */
static struct reader_slot *
lowest(struct reader_slot *slots, uint32_t count, enum reader_slot_state state)
{
	struct reader_slot *found = NULL;
	for (uint32_t i = 0; i < count; i++) {
		if (slots[i].state == state && (!found || slots[i].chunk < found->chunk))
			found = &slots[i];
	}
	return found;
}

static struct reader_slot *
source_slot(struct reader *reader, uint32_t chunk, enum reader_slot_state state)
{
	return slot_of(reader->stage.source, reader->stage.num_source, chunk, state);
}

static struct reader_slot *
own_slot(struct reader *reader, uint32_t chunk, enum reader_slot_state state)
{
	return slot_of(reader->stage.own, STAGE_SLOTS, chunk, state);
}

static uint32_t
own_index(const struct reader *reader, const struct reader_slot *slot)
{
	return (uint32_t)(slot - reader->stage.own);
}

/* ---- how it begins ------------------------------------------------------------------------ */

int
reader_stage_own(struct reader *reader, const char *why, struct th_err *err)
{
	struct th_err own, no_room;
	(void)th_fail(&own, TH_E_NO_PATH, "%s", why);
	int rc = stage_take(rdma_stage(reader->rdma), reader_stage_part_of(reader), &no_room,
		&reader->stage.slab);
	if (rc < 0)
		return th_fail(err, rc, "%s, and %s", own.text, no_room.text);
	reader->stage.own_why = own;
	return 0;
}

void
reader_stage_source(struct reader *reader, uint32_t slots, const char *why)
{
	reader->stage.num_source = slots;
	(void)th_fail(&reader->stage.source_why, TH_E_NO_PATH, "%s", why);
}

bool
reader_stages(const struct reader *reader)
{
	return reader->stage.num_source > 0 || reader->stage.slab;
}

/* ---- lanes -------------------------------------------------------------------------------- */

bool
reader_stage_take(struct reader *reader, uint32_t limit, uint32_t *ret_chunk)
{
	struct reader_stage *stage = &reader->stage;
	struct reader_slot *own = NULL, *staged = NULL;
	bool found = false;
	pthread_mutex_lock(&reader->lock);
	if (stage->slab)
		own = lowest(stage->own, STAGE_SLOTS, READER_SLOT_FREE);
	if (reader->stopping || (stage->slab && !own)) {
		found = false;
	} else if (stage->num_source > 0) {
		staged = lowest(stage->source, stage->num_source, READER_SLOT_STAGED);
		found = staged != NULL;
	} else {
		found = reader_next(reader, limit, ret_chunk);
	}
	if (staged) {
		staged->state = READER_SLOT_READING;
		*ret_chunk = staged->chunk;
	}
	if (found && own)
		*own = (struct reader_slot){.chunk = *ret_chunk, .state = READER_SLOT_READING};
	pthread_mutex_unlock(&reader->lock);
	return found;
}

void
reader_stage_place(struct reader *reader, struct map_read *read)
{
	struct reader_stage *stage = &reader->stage;
	pthread_mutex_lock(&reader->lock);
	if (stage->num_source > 0)
		read->slot = (uint32_t)(source_slot(reader, read->chunk, READER_SLOT_READING) -
					stage->source);
	if (stage->slab) {
		uint32_t slot =
			own_index(reader, own_slot(reader, read->chunk, READER_SLOT_READING));
		read->own = (struct place){.region = slab_region(stage->slab),
			.offset = slab_slot_use(stage->slab, slot)};
	}
	pthread_mutex_unlock(&reader->lock);
	if (!stage->slab)
		read->own = places_chunk(&reader->extents, reader->places, read->chunk);
}

void
reader_stage_give_back(struct reader *reader, uint32_t chunk)
{
	struct reader_stage *stage = &reader->stage;
	bool stays = false;
	pthread_mutex_lock(&reader->lock);
	if (stage->slab)
		own_slot(reader, chunk, READER_SLOT_READING)->state = READER_SLOT_FREE;
	if (stage->num_source > 0) {
		stays = !reader->stopping;
		source_slot(reader, chunk, READER_SLOT_READING)->state =
			stays ? READER_SLOT_STAGED : READER_SLOT_FREE;
	}
	pthread_mutex_unlock(&reader->lock);
	if (!stays)
		chunk_ledger_give_back(&reader->leg->ledger, chunk);
}

bool
reader_stage_landed(struct reader *reader, uint32_t chunk)
{
	struct reader_stage *stage = &reader->stage;
	bool judge = reader->leg->verify && !(stage->slab && slab_space(stage->slab));
	pthread_mutex_lock(&reader->lock);
	if (stage->num_source > 0)
		source_slot(reader, chunk, READER_SLOT_READING)->state = READER_SLOT_FREE;
	if (stage->slab)
		own_slot(reader, chunk, READER_SLOT_READING)->state =
			judge ? READER_SLOT_JUDGING : READER_SLOT_READY;
	pthread_mutex_unlock(&reader->lock);
	if (stage->num_source > 0)
		leg_in_kick_soon(reader->leg);
	if (stage->slab && judge)
		check_list_put(&reader->checks, chunk, READER_LANDED);
	else if (stage->slab)
		loop_post(reader_acceptor(reader), &stage->write_task);
	return stage->slab != NULL;
}

/* ---- checks ------------------------------------------------------------------------------- */

const uint8_t *
reader_stage_data(struct reader *reader, uint32_t chunk)
{
	if (!reader->stage.slab)
		return NULL;
	pthread_mutex_lock(&reader->lock);
	uint32_t slot = own_index(reader, own_slot(reader, chunk, READER_SLOT_JUDGING));
	pthread_mutex_unlock(&reader->lock);
	return slab_slot(reader->stage.slab, slot);
}

bool
reader_stage_judged(struct reader *reader, uint32_t chunk, bool right, const struct th_hash *digest)
{
	struct reader_stage *stage = &reader->stage;
	if (!stage->slab)
		return false;
	pthread_mutex_lock(&reader->lock);
	struct reader_slot *slot = own_slot(reader, chunk, READER_SLOT_JUDGING);
	slot->state = right ? READER_SLOT_READY : READER_SLOT_FREE;
	if (digest)
		slot->digest = *digest;
	pthread_mutex_unlock(&reader->lock);
	if (right)
		loop_post(reader_acceptor(reader), &stage->write_task);
	else
		leg_in_kick_soon(reader->leg);
	return true;
}

/* ---- what the source is asked for ---------------------------------------------------------- */

void
reader_stage_stop(struct reader *reader)
{
	struct reader_stage *stage = &reader->stage;
	for (uint32_t i = 0; i < stage->num_source; i++) {
		struct reader_slot *slot = &stage->source[i];
		if (slot->state != READER_SLOT_ASKED && slot->state != READER_SLOT_STAGED)
			continue;
		slot->state = READER_SLOT_FREE;
		chunk_ledger_give_back(&reader->leg->ledger, slot->chunk);
	}
}

static bool
any_probes(const struct reader *reader)
{
	bool any = false;
	for (uint32_t i = 0; i < reader->num_lanes; i++) {
		const struct reader_lane *lane = &reader->lanes[i];
		any = any || (lane->lane && !lane->proved && !lane->broken);
	}
	return any;
}

void
reader_stage_ask(struct reader *reader)
{
	struct reader_stage *stage = &reader->stage;
	struct leg_in *leg = reader->leg;
	uint32_t limit = __atomic_load_n(&leg->source_prefix, __ATOMIC_ACQUIRE);
	/* Lanes probe the first slot: it is left alone until they have. */
	uint32_t first = any_probes(reader) ? 1 : 0;
	pthread_mutex_lock(&reader->lock);
	for (uint32_t i = first; i < stage->num_source && !reader->stopping; i++) {
		struct reader_slot *slot = &stage->source[i];
		if (slot->state != READER_SLOT_FREE)
			continue;
		if (!reader_next(reader, limit, &slot->chunk))
			break;
		slot->state = READER_SLOT_ASKED;
		const struct frame frame = {
			.kind = FRAME_STAGE, .leg = leg->id, .first = slot->chunk, .count = i};
		leg_in_put(leg, &frame, NULL);
	}
	pthread_mutex_unlock(&reader->lock);
}

int
reader_stage_staged(struct reader *reader, uint32_t chunk, uint32_t slot)
{
	struct reader_stage *stage = &reader->stage;
	if (slot >= stage->num_source)
		return TH_E_PROTOCOL;
	pthread_mutex_lock(&reader->lock);
	struct reader_slot *staged = &stage->source[slot];
	bool asked = staged->state == READER_SLOT_ASKED && staged->chunk == chunk;
	if (asked)
		staged->state = READER_SLOT_STAGED;
	pthread_mutex_unlock(&reader->lock);
	if (!asked)
		return TH_E_PROTOCOL;
	/* Its worker's memory may be slow; our own part of it the lanes watch over. */
	leg_in_lives(reader->leg, th_now_ns());
	reader_kick_lanes(reader);
	return 0;
}

/* ---- into our own memory ------------------------------------------------------------------- */

static void
reader_stage_drop_block(struct ferry_block *block)
{
	struct slot_block *own = (struct slot_block *)block;
	slab_release(own->slab);
	free(own);
}

/* The part's prefix grew, or its worker is gone: then a write under way is not waited for. */
static void
reader_stage_part_changed(void *arg)
{
	struct reader *reader = arg;
	if (xfer_part_orphaned(reader_stage_part_of(reader)))
		loop_post(reader_acceptor(reader), &reader->stage.write_task);
}

/* One that has nothing to do; a new one where there may be. NULL: all are busy, or none is to be
 * had. */
static struct reader_ferry *
idle_ferry(struct reader *reader)
{
	struct reader_stage *stage = &reader->stage;
	for (uint32_t i = 0; i < stage->num_ferries; i++) {
		if (!stage->ferries[i].busy)
			return &stage->ferries[i];
	}
	if (stage->num_ferries == READER_FERRIES)
		return NULL;
	struct reader_ferry *ferry = &stage->ferries[stage->num_ferries];
	int rc = ferry_new(reader_stage_part_of(reader), true, reader_acceptor(reader),
		&ferry->done_task, &ferry->ferry);
	if (rc < 0) {
		if (stage->num_ferries == 0)
			reader_fail(reader, rc, true);
		return NULL;
	}
	if (!stage->watching)
		xfer_part_watch(reader_stage_part_of(reader), reader_stage_part_changed, reader);
	stage->watching = true;
	stage->num_ferries++;
	return ferry;
}

static void
reader_stage_submit(struct reader *reader, struct reader_ferry *ferry, uint32_t slot)
{
	struct reader_stage *stage = &reader->stage;
	uint32_t chunk = stage->own[slot].chunk;
	struct slot_block *own = th_calloc(1, sizeof(*own));
	own->slab = slab_retain(stage->slab);
	own->block.chunk = chunk;
	own->block.bytes = chunk_bytes(xfer_part_table(reader_stage_part_of(reader)), chunk);
	own->block.space = slab_space(stage->slab);
	own->block.host = slab_host(stage->slab);
	if (own->block.space)
		own->block.at = slab_slot_at(slot);
	else
		own->block.data = slab_slot(stage->slab, slot);
	own->block.hashes = own->block.space && reader->leg->verify;
	own->block.drop = reader_stage_drop_block;
	xfer_cursor_init(&own->block.cursor, reader_stage_part_of(reader), chunk);
	ferry->busy = true;
	ferry->slot = slot;
	__atomic_store_n(&reader->touched, true, __ATOMIC_RELAXED);
	ferry_submit(ferry->ferry, &own->block);
}

static void
run_write(struct loop_task *task)
{
	struct reader *reader = loop_container(task, struct reader, stage.write_task);
	struct reader_stage *stage = &reader->stage;
	if (reader->state == READER_CLOSING) {
		reader_settle(reader);
		return;
	}
	for (;;) {
		pthread_mutex_lock(&reader->lock);
		struct reader_slot *slot = lowest(stage->own, STAGE_SLOTS, READER_SLOT_READY);
		pthread_mutex_unlock(&reader->lock);
		struct reader_ferry *ferry = slot ? idle_ferry(reader) : NULL;
		if (!ferry)
			return;
		pthread_mutex_lock(&reader->lock);
		slot->state = READER_SLOT_WRITING;
		pthread_mutex_unlock(&reader->lock);
		reader_stage_submit(reader, ferry, own_index(reader, slot));
	}
}

/* The slab has gone with the process of its GPU: the chunk comes by data connections. */
static void
reader_stage_lose(struct reader *reader, uint32_t chunk)
{
	chunk_ledger_give_back(&reader->leg->ledger, chunk);
	leg_in_kick_soon(reader->leg);
	reader_leave_ours(reader, "the process of our own GPU has ended, and its memory for copies "
				  "with it (rdma.stage)");
}

/* On the GPU nobody has looked at it before it was written. */
static bool
is_right(const struct reader *reader, uint32_t chunk, const struct th_hash *digest)
{
	const struct xfer_part *part = reader_stage_part_of(reader);
	return !slab_space(reader->stage.slab) || !reader->leg->verify ||
	       chunk >= xfer_part_digest_count(part) ||
	       th_hash_equal(*digest, *xfer_part_digest(part, chunk));
}

static void
run_written(struct loop_task *task)
{
	struct reader_ferry *ferry = loop_container(task, struct reader_ferry, done_task);
	struct reader *reader = ferry->reader;
	struct reader_slot *slot = &reader->stage.own[ferry->slot];
	if (reader->state == READER_CLOSING) {
		reader_settle(reader);
		return;
	}
	struct ferry_block *block = ferry->ferry ? ferry_take(ferry->ferry) : NULL;
	if (!block)
		return;
	int code = block->code;
	pthread_mutex_lock(&reader->lock);
	uint32_t chunk = slot->chunk;
	const struct th_hash digest = block->hashes ? block->digest : slot->digest;
	slot->state = READER_SLOT_FREE;
	pthread_mutex_unlock(&reader->lock);
	block->drop(block);
	ferry->busy = false;
	if (code < 0 && slab_lost(reader->stage.slab)) {
		reader_stage_lose(reader, chunk);
	} else if (code < 0) {
		reader_fail(reader, code, true);
		return;
	} else if (is_right(reader, chunk, &digest)) {
		reader_arrived(reader, chunk, reader->leg->verify ? &digest : NULL);
	} else {
		reader_doubt(reader, chunk);
	}
	if (reader->state == READER_OVER)
		(void)reader_stage_close(reader);
	else
		reader_kick_lanes(reader);
	run_write(&reader->stage.write_task);
}

bool
reader_stage_writes(struct reader *reader)
{
	struct reader_stage *stage = &reader->stage;
	pthread_mutex_lock(&reader->lock);
	bool writes = lowest(stage->own, STAGE_SLOTS, READER_SLOT_READY) ||
		      lowest(stage->own, STAGE_SLOTS, READER_SLOT_WRITING);
	pthread_mutex_unlock(&reader->lock);
	return writes;
}

/* ---- the end ------------------------------------------------------------------------------ */

static bool
any_in_use(struct reader *reader)
{
	bool any = false;
	pthread_mutex_lock(&reader->lock);
	for (uint32_t i = 0; i < STAGE_SLOTS; i++)
		any = any || reader->stage.own[i].state != READER_SLOT_FREE;
	pthread_mutex_unlock(&reader->lock);
	return any;
}

static void
reader_stage_let_go(struct reader_stage *stage, struct reader *reader)
{
	if (stage->watching)
		xfer_part_unwatch(reader_stage_part_of(reader), reader_stage_part_changed, reader);
	stage->watching = false;
	for (uint32_t i = 0; i < stage->num_ferries; i++) {
		ferry_abandon(stage->ferries[i].ferry);
		stage->ferries[i].ferry = NULL;
	}
}

bool
reader_stage_close(struct reader *reader)
{
	struct reader_stage *stage = &reader->stage;
	if (!stage->slab || stage->closed)
		return true;
	if (reader->state != READER_CLOSING && any_in_use(reader))
		return false;
	for (uint32_t i = 0; i < stage->num_ferries; i++) {
		if (ferry_busy(stage->ferries[i].ferry) &&
			!xfer_part_orphaned(reader_stage_part_of(reader)))
			return false;
	}
	reader_stage_let_go(stage, reader);
	stage->closed = true;
	/* Of a leg that ends lanes and checks may still use it. */
	if (reader->state != READER_CLOSING) {
		slab_release(stage->slab);
		stage->slab = NULL;
	}
	return true;
}

void
reader_stage_init(struct reader *reader)
{
	reader->stage.write_task.run = run_write;
	for (uint32_t i = 0; i < READER_FERRIES; i++) {
		reader->stage.ferries[i].reader = reader;
		reader->stage.ferries[i].done_task.run = run_written;
	}
}

void
reader_stage_fini(struct reader *reader)
{
	slab_release(reader->stage.slab);
}
