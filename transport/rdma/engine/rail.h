/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rail - one device as the READ engine sees it: its lanes, one completion queue and one window.
 *
 * The window bounds the bytes that the device has been asked for and that have not come. Lanes take
 * turns, a batch each, so that it is shared fairly by those that have something to fetch, and one
 * lane alone has all of it. A lane whose source is dead would take all of it in the end and keep it
 * for as long as the device tries: when others wait, what such a lane has asked for does not count,
 * and it asks for nothing more until something of it comes.
 *
 * Each lane has a window of its own as well, for links that are slower than the rail's window is
 * made for. What is asked for waits in a queue, of the source or of a switch, behind what was asked
 * for before it through the other queue pair. When that lasts longer than the device waits for an
 * answer it asks again, and both answers come: the queue grows by what nobody needs, the device
 * asks again after the same time, and soon nothing new comes although the link is full. So a lane
 * asks for no more than what comes within half of that time, by how long its last request took.
 *
 * A state machine without thread and clock: rail_step looks for completions and posts what there is
 * room for. poller.h runs it on a thread, tests and benches in virtual time. It allocates nothing
 * and calls the device only to poll and to post.
 */
#ifndef TH_TRANSPORT_RDMA_ENGINE_RAIL_H
#define TH_TRANSPORT_RDMA_ENGINE_RAIL_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "transport/loop/mover_loop.h"
#include "transport/rdma/device/verbs.h"
#include "transport/rdma/engine/lane.h"

#define RAIL_LANES_MAX 512u
#define RAIL_WINDOW_BYTES (8u << 20)
#define RAIL_SLICE_BYTES (256u << 10)
#define RAIL_CQ_DEPTH 8192u
#define RAIL_LATE_NS INT64_C(100000000)      /* nothing came through a lane, others wait for room */
#define RAIL_DRAIN_NS INT64_C(100000000)     /* for requests of failed queue pairs to come back */
#define RAIL_REFUSED_NS INT64_C(50000)       /* until a refused post is tried again */
#define RAIL_PATIENCE_NS INT64_C(1000000000) /* of a device that refuses posts */

/* What surrounds the state machine. Called on the rail's thread but for post. */
struct rail_around {
	/* Any thread: has the rail's thread run the task soon, after those posted before. */
	void (*post)(void *arg, struct loop_task *task);
	int64_t (*now_ns)(void *arg);
	/* Has qp_free called for the lane's queue pairs where that may take its time, and then
	 * lane->freed_task posted. */
	void (*free_qps)(void *arg, struct lane *lane);
};

struct rail_config {
	struct verbs verbs;
	struct verbs_cq *cq; /* borrows; the rail polls it alone */
	uint32_t cq_depth;
	uint64_t window_bytes; /* 0: RAIL_WINDOW_BYTES */
	uint32_t slice_bytes;  /* 0: RAIL_SLICE_BYTES */
	/* The device asks again when a queue pair gets nothing for so long; 0: it never does. */
	int64_t answer_ns;
	const struct rail_around *around;
	void *arg;
};

struct rail_counters {
	uint64_t bytes, reads;         /* that came back */
	uint64_t doorbells, signalled; /* posted */
	uint64_t chunks, chunks_back;  /* landed, given back */
	uint64_t broken;               /* lanes, not closed by their users */
	uint64_t refused;              /* posts that the device had no room for */
	uint64_t strange;              /* completions of nothing that we know */
	uint64_t given_up;             /* lanes whose requests did not come back in time */
	/* While a lane had chunks to fetch: for how long, and times that the READs outstanding. */
	uint64_t wanting_ns, outstanding_ns;
};

struct rail {
	struct verbs verbs;
	struct verbs_cq *cq;
	const struct rail_around *around;
	void *arg;
	uint32_t cq_depth;
	uint32_t cq_used;    /* atomic; requests that its lanes may have posted */
	uint32_t lanes_used; /* atomic */
	uint64_t window_bytes;
	uint32_t slice_bytes, batch; /* batch: slices, at most LANE_BATCH */
	int64_t answer_ns;
	bool lost; /* there are no completions any more */
	enum verbs_status lost_status;
	const char *lost_why;
	int64_t stepped_ns;
	uint64_t out_bytes;  /* asked for and not come */
	uint64_t late_bytes; /* of those: of lanes through which nothing comes */
	int64_t late_ns;     /* when to look for such lanes, if others wait */
	uint32_t out_reads;
	uint32_t num_wanting; /* running lanes that are not hungry */
	int64_t deadline_ns;  /* the soonest of the lanes', or sooner */
	struct lane *ready;   /* list; the first is next */
	struct lane *gone;    /* list: to be freed when the completion queue is empty */
	uint32_t num_lanes;   /* entries of lanes that were in use */
	uint32_t stamp;
	struct lane *lanes[RAIL_LANES_MAX];
	struct rail_counters counters; /* written by the rail's thread only, read by any */
};

void rail_init(struct rail *rail, const struct rail_config *config);
/* No lane may be left. */
void rail_fini(struct rail *rail);
/* Takes what has come, posts what there is room for. Whether something came or was posted. */
bool rail_step(struct rail *rail, int64_t now_ns);
/* When rail_step is needed although nothing comes; INT64_MAX: then not. */
int64_t rail_deadline(const struct rail *rail);
/* The device or its completion queue is gone: all lanes break. */
void rail_lose(struct rail *rail, enum verbs_status status, const char *why);
/* Any thread. */
void rail_counters(const struct rail *rail, struct rail_counters *ret_counters);
void rail_counters_add(struct rail_counters *sum, const struct rail_counters *more);

/* ---- inside: rail.c and lane.c ---- */

/* One thread writes, any reads. */
static inline void
rail_count(uint64_t *counter, uint64_t more)
{
	__atomic_store_n(counter, *counter + more, __ATOMIC_RELAXED);
}

/* The name of a request. */
uint64_t rail_id(uint32_t stamp, uint32_t lane, uint32_t qp, uint16_t position);
/* Room for a lane's requests. Any thread. */
bool rail_reserve(struct rail *rail, uint32_t requests);
void rail_admit(struct rail *rail, struct lane *lane);
void rail_ready(struct rail *rail, struct lane *lane);
void rail_unready(struct rail *rail, struct lane *lane);
/* The lane is closed and its queue pairs are destroyed: frees it. */
void rail_dismiss(struct rail *rail, struct lane *lane);
/* The lane is to be looked at then. */
void rail_expire_at(struct rail *rail, struct lane *lane, int64_t deadline_ns);

#endif
