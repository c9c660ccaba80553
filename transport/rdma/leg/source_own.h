/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_own - the structures of source.c, for source_stage.c: what is copied has structures of its
 * own (source_stage.h).
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

/* No RDMA any more in this leg; the reader is told once the queue pairs are gone. */
void source_leave(struct source *source, const char *why);

#endif
