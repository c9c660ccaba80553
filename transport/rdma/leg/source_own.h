/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_own - the structures of source.c (the end, what the reader says), source_setup.c (how
 * queue pairs come about) and source_say.c (what the reader is told); what is copied has structures
 * of its own (source_stage.h).
 */
#ifndef TH_TRANSPORT_RDMA_LEG_SOURCE_OWN_H
#define TH_TRANSPORT_RDMA_LEG_SOURCE_OWN_H

#include "ipc/base/err.h"
#include "transport/leg/leg_out.h"
#include "transport/loop/mover_loop.h"
#include "transport/rdma/engine/checks.h"
#include "transport/rdma/engine/queue_setup.h"
#include "transport/rdma/engine/queues.h"
#include "transport/rdma/leg/await.h"
#include "transport/rdma/leg/rdma_wire.h"
#include "transport/rdma/leg/source.h"
#include "transport/rdma/leg/source_stage.h"
#include "transport/rdma/memory/read_map.h"

#define SOURCE_NO_CHUNK UINT32_MAX

enum source_state {
	SOURCE_WAITING,
	SOURCE_NAMED,
	SOURCE_MAKING,
	SOURCE_TELLING,
	SOURCE_SERVING,
	SOURCE_LEAVING,
	SOURCE_OVER,
};

enum source_check { SOURCE_CHECK, SOURCE_FILL };

struct source_lane {
	uint32_t rail; /* ours */
	struct wire_lane offered;
	struct queues queues; /* owns */
	bool made;
};

struct source {
	struct leg_out_path path;
	struct leg_out *leg; /* borrows: outlives it */
	struct rdma *rdma;
	struct extents extents;
	struct place *places; /* owns; NULL: it is staged, or there is a reason to decline */
	struct staging staging;
	bool takes_staged; /* immutable: the reader does */
	struct check_list checks;
	bool has_checks;
	/* Keeper's or setup's while it has the source (at_keeper), else acceptor. */
	struct source_lane lanes[WIRE_LANES_MAX];
	uint32_t num_lanes;
	struct map map;
	struct th_err made_why; /* of the last lane that could not be made */
	bool stuck;             /* a queue pair could not be freed */
	/* Acceptor. */
	enum source_state state;
	bool reader_stages; /* it says so */
	bool at_keeper, closing, checks_closed;
	struct await await;
	int64_t deadline_ns;
	uint32_t rails[WIRE_RAILS_MAX], num_rails; /* as told */
	struct wire_rail named[WIRE_RAILS_MAX];    /* those, as they were when chosen */
	bool say_rails, say_accept, say_decline, say_check;
	uint32_t keys_told, extents_told;
	struct th_err why; /* for DECLINE */
	uint32_t reader_prefix, reader_chunks;
	uint64_t reader_bytes;
	uint32_t checked;            /* chunk that the reader asked about; SOURCE_NO_CHUNK: none */
	struct setup_turn make_turn; /* acceptor -> setup */
	struct loop_task free_task;  /* acceptor -> keeper */
	struct loop_task made_task, freed_task;
	/* Checks -> acceptor. */
	struct loop_task checked_task, lost_task, checks_closed_task;
	int checked_code; /* written before checked_task is posted */
	bool filling;     /* atomic: a fill is under way, or waits */
	bool ending;      /* atomic: a fill shall stop */
};

struct loop *source_acceptor(const struct source *source);
struct source *source_of(struct leg_out_path *path);
/* A source that closes or leaves: takes it as far as it goes. */
void source_settle(struct source *source);
/* No RDMA any more in this leg; the reader is told once the queue pairs are gone. */
void source_leave(struct source *source, const char *why);

/* The control connection's buffer is empty: puts the next frame in, if there is one. */
bool source_refill(struct leg_out_path *path);
void source_setup_init(struct source *source);
/* RAILS or DECLINE do not follow at once: memory must be registered first. */
bool source_later(const struct source *source);
/* What the part needs, where it lies or staged. 0, or a code and why it cannot be READ. */
TH_MUST_USE int source_prepare(struct source *source, struct th_err *err);
/* RAILS, once enough of the memory is registered. */
void source_name_rails(struct source *source, int64_t now_ns);
TH_MUST_USE int source_offer(
	struct source *source, const struct frame *frame, const uint8_t *payload);

#endif
