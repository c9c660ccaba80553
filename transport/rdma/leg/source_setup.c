/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_setup - see source.h: from the memory that is being registered to queue pairs that are
 * connected.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "transport/part/packed.h"
#include "transport/rdma/leg/source_own.h"
#include "transport/rdma/memory/region.h"
#include "transport/rdma/rdma.h"

/* ---- the rails ---------------------------------------------------------------------------- */

/* Where it lies. */
static int
reach(struct source *source, struct th_err *err)
{
	const struct extents *extents = &source->extents;
	uint32_t waiting;
	int rc = places_init(extents, source->leg->part, err, &source->places);
	if (rc == 0 && (places_ready(extents, source->places, &waiting) | waiting) == 0)
		return places_why(extents, source->places, err);
	if (rc == 0)
		rc = check_list_init(&source->checks, rdma_checks(source->rdma, source->leg->part),
			extents->table->num_chunks + 1);
	source->has_checks = rc == 0;
	return rc;
}

/* By a copy, which may need memory that is to be registered first. */
static int
stage(struct source *source, const char *why, struct th_err *err)
{
	struct leg_out *leg = source->leg;
	int rc = staging_init(&source->staging, leg, why, err);
	if (rc < 0)
		return rc;
	places_free(&source->extents, source->places);
	source->places = NULL;
	source->await = (struct await){.begun_ns = th_now_ns()};
	log_info("rdma", "a leg is served out of copies leg=%" PRIu64 " reader=%s why='%s'",
		leg->id, leg->peer, source->staging.why);
	return 0;
}

int
source_prepare(struct source *source, struct th_err *err)
{
	struct transport *transport = source->leg->transport;
	if (transport->config.rate_out != 0 || transport->config.rate_out_peer != 0)
		return th_fail(err, TH_E_NO_PATH,
			"its agent has a cap on what leaves, which READs do not keep to");
	if (rdma_usable(source->rdma) == 0)
		return th_fail(err, TH_E_NO_PATH, "none of its rails is up");
	int rc = extents_init(&source->extents, xfer_part_table(source->leg->part));
	if (rc == 0)
		rc = reach(source, err);
	if (rc == TH_E_NO_PATH && source->takes_staged)
		rc = stage(source, err->text, err);
	return rc;
}

bool
source_later(const struct source *source)
{
	uint32_t waiting;
	if (source->why.text[0])
		return false;
	/* Slots are few, and ready soon. */
	if (!source->places)
		return !slab_is_made(source->staging.slab);
	uint32_t usable = rdma_usable(source->rdma);
	uint32_t ready = places_ready(&source->extents, source->places, &waiting);
	/* On rails that are down: it will be copied, once that is made. */
	if (((ready | waiting) & usable) == 0)
		return usable != 0 && source->takes_staged;
	return (waiting & usable) != 0;
}

/* One that went down just now has no address, which a reader would take for a broken protocol. */
static void
name_rail(struct source *source, uint32_t rail)
{
	struct rail_status status;
	struct wire_rail *named = &source->named[source->num_rails];
	rail_status(rdma_rails(source->rdma), rail, &status);
	if (status.state != RAIL_UP)
		return;
	*named = (struct wire_rail){.link = status.port.link, .lid = status.port.lid};
	memcpy(named->gid, status.gid.raw, VERBS_GID_BYTES);
	snprintf(named->name, sizeof(named->name), "%.31s", status.name);
	source->rails[source->num_rails++] = rail;
}

/* Of what is READ. */
static uint32_t
ready_rails(struct source *source, uint32_t *ret_waiting)
{
	if (!source->staging.slab)
		return places_ready(&source->extents, source->places, ret_waiting);
	return slab_rails(source->staging.slab, ret_waiting);
}

/* What cannot be READ where it lies may still be copied. */
static void
say_none(struct source *source, uint32_t waiting, uint32_t usable)
{
	const char *why = waiting != 0  ? "its memory is still being registered"
			  : usable == 0 ? "none of its rails is up"
					: "its memory is registered on no rail that is up";
	struct th_err err = {0};
	if (source->staging.slab && usable != 0) {
		staging_explain(&source->staging, &err);
		source_leave(source, err.text);
	} else if (usable == 0 || !source->takes_staged) {
		source_leave(source, why);
	} else if (stage(source, why, &err) < 0) {
		source_leave(source, err.text);
	}
}

void
source_name_rails(struct source *source, int64_t now_ns)
{
	uint32_t waiting, usable = rdma_usable(source->rdma);
	uint32_t ready = ready_rails(source, &waiting) & usable;
	waiting &= usable;
	if (await_more(&source->await, ready, waiting, now_ns))
		return;
	if (ready == 0) {
		say_none(source, waiting, usable);
		return;
	}
	for (uint32_t rail = 0; rail < RAILS_MAX && source->num_rails < WIRE_RAILS_MAX; rail++) {
		if (ready & (UINT32_C(1) << rail))
			name_rail(source, rail);
	}
	if (source->num_rails == 0) {
		source_leave(source, "its rails went down");
		return;
	}
	source->state = SOURCE_NAMED;
	source->say_rails = true;
	source->deadline_ns = now_ns + AWAIT_MAX_NS; /* the reader's memory may take as long */
	leg_out_wake(source->leg);
}

/* ---- the offer ---------------------------------------------------------------------------- */

static int
make_map(struct source *source, const uint32_t *rails)
{
	if (source->staging.slab)
		return staging_map(&source->staging, rails, source->num_lanes, &source->map,
			&source->made_why);
	if (map_own(&source->map, &source->extents, source->places, rails, source->num_lanes) == 0)
		return 0;
	return th_fail(&source->made_why, TH_E_NO_PATH,
		"its memory is registered in too many pieces, or not any more");
}

static void
run_make(struct setup_turn *turn, bool late)
{
	struct source *source = loop_container(turn, struct source, make_turn);
	struct rails *rails = rdma_rails(source->rdma);
	uint32_t used[WIRE_LANES_MAX], first = 0;
	bool any = false;
	int64_t until_ns = th_now_ns() + QUEUES_TURN_NS;
	if (late)
		(void)th_fail(&source->made_why, TH_E_NO_PATH, "its agent " SETUP_LATE);
	for (uint32_t i = 0; i < source->num_lanes && !late; i++) {
		struct source_lane *lane = &source->lanes[i];
		used[i] = lane->rail;
		if (__atomic_load_n(&source->ending, __ATOMIC_RELAXED) || th_now_ns() >= until_ns)
			continue;
		int rc = queues_new(rails, lane->rail, NULL, 1, &lane->queues, &source->made_why);
		if (rc == 0) {
			rc = queues_connect(rails, &lane->queues, &lane->offered.end,
				ENDPOINT_SOURCE, source->leg->peer, &source->made_why);
			/* Nobody knows of them: nothing is lost when this fails. */
			if (rc < 0)
				(void)queues_free(rails, &lane->queues);
		}
		lane->made = rc == 0;
		first = lane->made && !any ? i : first;
		any = any || lane->made;
	}
	/* Of what has no queue pairs no key is told: its device may be lost. */
	for (uint32_t i = 0; any && i < source->num_lanes; i++)
		used[i] = source->lanes[i].made ? used[i] : used[first];
	any = any && make_map(source, used) == 0;
	source->map.have_keys = any ? source->map.have_keys : 0;
	loop_post(source_acceptor(source), &source->made_task);
}

static void
source_setup_run_made(struct loop_task *task)
{
	struct source *source = loop_container(task, struct source, made_task);
	source->at_keeper = false;
	source_settle(source);
	if (source->closing || source->state != SOURCE_MAKING)
		return;
	if (source->map.have_keys == 0) {
		source_leave(source, source->made_why.text);
		return;
	}
	source->state = SOURCE_TELLING;
	source->say_accept = true;
	leg_out_look(source->leg);
}

int
source_offer(struct source *source, const struct frame *frame, const uint8_t *payload)
{
	struct wire_lane lanes[WIRE_LANES_MAX];
	/* What was on its way when we left. */
	if (source->state >= SOURCE_LEAVING)
		return 0;
	if (source->state != SOURCE_NAMED || source->say_rails)
		return TH_E_PROTOCOL;
	int rc = wire_decode_lanes(payload, frame->count, lanes);
	for (uint32_t i = 0; rc == 0 && i < frame->count; i++) {
		struct th_err err;
		if (!lanes[i].made || lanes[i].rail >= source->num_rails)
			return TH_E_PROTOCOL;
		rc = endpoint_check(&lanes[i].end, &err);
		source->lanes[i].offered = lanes[i];
		source->lanes[i].rail = source->rails[lanes[i].rail];
	}
	if (rc < 0)
		return TH_E_PROTOCOL;
	source->num_lanes = frame->count;
	source->reader_stages = (frame->flags & FRAME_STAGES) != 0;
	source->state = SOURCE_MAKING;
	source->at_keeper = true;
	setup_post(rdma_setup(source->rdma), &source->make_turn, source->leg->peer,
		SETUP_OFFER_WAIT_NS);
	return 0;
}

void
source_setup_init(struct source *source)
{
	source->make_turn.run = run_make;
	source->made_task.run = source_setup_run_made;
}
