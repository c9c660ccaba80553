/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_setup - see source.h: from the memory that is being registered to queue pairs that are
 * connected.
 */
#include <stdio.h>
#include <string.h>

#include "ipc/base/clock.h"
#include "transport/rdma/packed.h"
#include "transport/rdma/rdma.h"
#include "transport/rdma/region.h"
#include "transport/rdma/source_own.h"
#include "transport/tcp.h"

/* ---- the rails ---------------------------------------------------------------------------- */

int
source_prepare(struct source *source, struct th_err *err)
{
	struct transport *transport = source->leg->transport;
	const struct chunk_table *table = xfer_part_table(source->leg->part);
	uint32_t waiting;
	if (transport->config.rate_out != 0 || transport->config.rate_out_peer != 0)
		return th_fail(err, TH_E_NO_PATH,
			"its agent has a cap on what leaves, which READs do not keep to");
	int rc = extents_init(&source->extents, table);
	if (rc == 0)
		rc = places_init(&source->extents, source->leg->part, err, &source->places);
	if (rc == 0 && (places_ready(&source->extents, source->places, &waiting) | waiting) == 0)
		return places_why(&source->extents, source->places, err);
	if (rc == 0)
		rc = check_list_init(
			&source->checks, rdma_checks(source->rdma), table->num_chunks + 1);
	source->has_checks = rc == 0;
	return rc;
}

bool
source_later(const struct source *source)
{
	uint32_t waiting;
	if (!source || source->why.text[0])
		return false;
	(void)places_ready(&source->extents, source->places, &waiting);
	return (waiting & rdma_usable(source->rdma)) != 0;
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

void
source_name_rails(struct source *source, int64_t now_ns)
{
	uint32_t waiting, usable = rdma_usable(source->rdma);
	uint32_t ready = places_ready(&source->extents, source->places, &waiting) & usable;
	waiting &= usable;
	if (await_more(&source->await, ready, waiting, now_ns))
		return;
	if (ready == 0) {
		source_leave(source, waiting != 0 ? "its memory is still being registered"
				     : usable == 0
					     ? "none of its rails is up"
					     : "its memory is registered on no rail that is up");
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
	source->state = SOURCE_NAMED, source->say_rails = true;
	source->deadline_ns = now_ns + AWAIT_MAX_NS; /* the reader's memory may take as long */
	stream_wake(&source->leg->control.stream);
}

/* ---- the offer ---------------------------------------------------------------------------- */

static void
run_make(struct loop_task *task)
{
	struct source *source = loop_container(task, struct source, make_task);
	struct rails *rails = rdma_rails(source->rdma);
	uint32_t used[WIRE_LANES_MAX];
	bool any = false;
	for (uint32_t i = 0; i < source->num_lanes; i++) {
		struct source_lane *lane = &source->lanes[i];
		used[i] = lane->rail;
		/* A peer that nobody finds costs a second: not for a leg that ends. */
		if (__atomic_load_n(&source->ending, __ATOMIC_RELAXED))
			continue;
		int rc = queues_new(rails, lane->rail, NULL, 1, &lane->queues, &source->why);
		if (rc == 0) {
			rc = queues_connect(rails, &lane->queues, &lane->offered.end,
				ENDPOINT_SOURCE, source->leg->peer, &source->why);
			/* Nobody knows of them: nothing is lost when this fails. */
			if (rc < 0)
				(void)queues_free(rails, &lane->queues);
		}
		lane->made = rc == 0;
		any = any || lane->made;
	}
	if (any && map_own(&source->map, &source->extents, source->places, used,
			   source->num_lanes) < 0) {
		(void)th_fail(&source->why, TH_E_NO_PATH,
			"its memory is registered in too many pieces, or not any more");
		any = false;
	}
	source->map.have_keys = any ? source->map.have_keys : 0;
	loop_post(source_porter(source), &source->made_task);
}

static void
run_made(struct loop_task *task)
{
	struct source *source = loop_container(task, struct source, made_task);
	struct th_err why = source->why;
	source->at_keeper = false;
	source_settle(source);
	if (source->closing || source->state != SOURCE_MAKING)
		return;
	if (source->map.have_keys == 0) {
		source_leave(source, why.text);
		return;
	}
	source->state = SOURCE_TELLING;
	source->say_accept = true;
	source_wake(source);
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
	source->state = SOURCE_MAKING;
	source_to_keeper(source, &source->make_task);
	return 0;
}

void
source_setup_init(struct source *source)
{
	source->make_task.run = run_make;
	source->made_task.run = run_made;
}
