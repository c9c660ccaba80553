/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane - what a leg has on one rail: queue pairs to one device of its source, and the chunks that
 * are being read through them.
 *
 * A lane asks its user for chunks, cuts them into slices and posts those in batches: up to
 * LANE_BATCH slices, linked, one doorbell, only the last of them signalled. What is done is known
 * by its place in the queue pair's ring, never by counting completions: a good completion stands
 * for all before it, a bad one for nothing.
 *
 *   LANE_NEW -> LANE_PROBING -> LANE_RUNNING -> LANE_ENDING -> LANE_ENDED
 *
 * A lane ends when its user closes it, or breaks by itself: a request that failed, a device that is
 * gone. Its queue pairs are failed then, and it waits until what was posted has come back. If that
 * takes long, they are destroyed first. Only when nothing of the lane can write any more do chunks
 * go back: the next who reads them must be the last to write there.
 *
 * Threads: the lane belongs to its rail's thread; user's calls are made there. lane_* below are for
 * any thread. They only leave a message.
 */
#ifndef TH_TRANSPORT_RDMA_ENGINE_LANE_H
#define TH_TRANSPORT_RDMA_ENGINE_LANE_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "transport/loop/mover_loop.h"
#include "transport/rdma/device/verbs.h"

#define LANE_QPS_MAX 4u
#define LANE_DEPTH_MAX 64u  /* of one queue pair; devices read 16 at a time */
#define LANE_PIECES_MAX 16u /* of one chunk: one, and one more at each border of a region */
#define LANE_BATCH 4u       /* slices by one doorbell and one completion */

#define LANE_QPS 2u
#define LANE_DEPTH 16u

struct rail;
struct lane;

/* Consecutive bytes of a chunk that lie in one region at either end. */
struct lane_piece {
	uint64_t local, remote;
	uint32_t lkey, rkey;
	uint32_t bytes;
};

/* All but closed are not called any more once lane_close has been heard. */
struct lane_user {
	/* The next chunk to fetch. False: none now, and lane_kick when there may be. */
	bool (*take)(void *arg, uint32_t *ret_chunk);
	/* Where a chunk lies at both ends, in order; pieces without bytes are passed over. 0: it
	 * cannot be read through this lane, which breaks. */
	uint32_t (*pieces)(
		void *arg, uint32_t chunk, struct lane_piece *ret_pieces, uint32_t pieces_max);
	/* All its bytes are there. */
	void (*landed)(void *arg, uint32_t chunk);
	/* Was taken and has not landed. Nothing of this lane writes there any more. */
	void (*give_back)(void *arg, uint32_t chunk);
	/* The lane is of no more use. After all give_back; then only lane_close is left. why: for
	 * people, lives as long as the process. */
	void (*broken)(void *arg, enum verbs_status status, const char *why);
	/* May be NULL. A queue pair could be neither drained nor destroyed: what was asked for may
	 * still be written, so no chunk goes back. Before broken or closed. */
	void (*stuck)(void *arg);
	/* May be NULL. Each queue pair has read its probe. */
	void (*proved)(void *arg);
	/* After lane_close: nothing of the lane writes any more, unless it is stuck, and arg is not
	 * used any more. The lane frees itself and its queue pairs. */
	void (*closed)(void *arg);
};

struct lane_config {
	const struct lane_user *user; /* borrows */
	void *arg;
	struct verbs_qp *qps[LANE_QPS_MAX]; /* connected; the lane's when lane_new says so */
	uint32_t num_qps;
	uint32_t depth;          /* of each queue pair: requests posted and not done */
	struct lane_piece probe; /* each reads it before anything else. 0 bytes: none */
};

struct lane_counters {
	uint64_t bytes, reads, chunks; /* of what came back; chunks: landed */
	uint64_t doorbells, signalled;
};

/*
 * Takes the queue pairs. 0, -ENOMEM, or -ENOSPC: the rail's completion queue has no room for so
 * many requests more. Any thread; nothing happens before lane_start.
 */
TH_MUST_USE int lane_new(
	struct rail *rail, const struct lane_config *config, struct lane **ret_lane);
void lane_start(struct lane *lane);
/* There may be chunks to take. Not after closed. */
void lane_kick(struct lane *lane);
/* As if it had broken by itself: its port is down, its peer does not answer. */
void lane_break(struct lane *lane, enum verbs_status status, const char *why);
/* Once, in any state. */
void lane_close(struct lane *lane);
/* Any thread, before closed. */
void lane_counters(const struct lane *lane, struct lane_counters *ret_counters);

/* ---- inside: rail.c and lane.c ---- */

enum lane_state { LANE_NEW, LANE_PROBING, LANE_RUNNING, LANE_ENDING, LANE_ENDED };

enum lane_turn {
	LANE_POSTED,
	LANE_HUNGRY, /* nothing to post: a kick tells when there is */
	LANE_FULL,   /* no room: a completion makes some */
	LANE_OVER,
};

struct lane_chunk {
	uint32_t chunk;
	uint32_t slices; /* cut and not landed */
	bool taken;      /* this entry is in use */
	bool cut;        /* all of it */
};

struct lane_slot { /* a request that is posted and not done */
	uint32_t bytes;
	uint32_t entry; /* of chunks; LANE_NO_ENTRY: a probe */
	/* When it was posted, and what the lane had asked for then, with it. */
	int64_t posted_ns;
	uint64_t out_bytes;
};
#define LANE_NO_ENTRY UINT32_MAX

struct lane_qp {
	struct verbs_qp *qp;
	uint16_t posted, done; /* they run on; posted - done are under way */
	bool bad;              /* a request of it failed: nothing that follows has been read */
	struct lane_slot slots[LANE_DEPTH_MAX]; /* by position modulo LANE_DEPTH_MAX */
};

struct lane {
	struct rail *rail; /* borrows */
	const struct lane_user *user;
	void *arg;
	enum lane_state state;
	bool closing;   /* lane_close was heard */
	bool closed;    /* closed was called */
	bool hungry;    /* take had nothing; a kick ends it */
	bool freeing;   /* the queue pairs are being destroyed */
	bool freed;     /* they are */
	bool stuck;     /* one is not; written before freed_task is posted */
	bool dismissed; /* rail_dismiss was called */
	bool is_ready;  /* on the rail's list: may have something to post and room for it */
	enum verbs_status status; /* why it broke */
	const char *why;
	struct lane *next, *prev; /* of the rail's ready or gone */
	uint32_t index;           /* of the rail's table; RAIL_LANES_MAX: not there */
	uint32_t stamp;           /* of this use of that entry */
	uint32_t depth, num_qps;
	uint32_t probes;       /* to come back */
	uint64_t out_bytes;    /* asked for and not come */
	uint64_t window_bytes; /* that may be, as it looks now: see rail.h */
	uint64_t late_bytes; /* of those: so old that the rail's window is without them; 0: none */
	int64_t moved_ns;    /* when something came last, or was asked for after nothing was */
	int64_t deadline_ns; /* when to look at it; INT64_MAX: there is nothing to wait for */
	int64_t refused_ns;  /* since when the device takes no post; INT64_MAX: it does */
	struct lane_piece probe;
	/* The chunk that is being cut. */
	struct lane_piece pieces[LANE_PIECES_MAX];
	uint32_t num_pieces, piece;
	uint32_t at;    /* of that piece: bytes cut */
	uint32_t entry; /* LANE_NO_ENTRY: none */
	/* Cut and not posted. */
	struct verbs_read batch[LANE_BATCH];
	uint32_t batch_entries[LANE_BATCH];
	uint32_t num_batch;
	struct lane_counters counters; /* written by the rail's thread only, read by any */
	/* Messages. */
	struct loop_task start_task, kick_task, break_task, close_task, freed_task;
	struct loop_task free_task;     /* of who destroys queue pairs */
	enum verbs_status break_status; /* of the last lane_break; atomic */
	const char *break_why;          /* atomic */
	struct lane_qp qps[LANE_QPS_MAX];
	uint32_t num_chunks;
	struct lane_chunk chunks[]; /* of num_chunks: each that has a request or a slice, and one */
};

/* Posts one batch. */
enum lane_turn lane_turn(struct lane *lane);
/* A completion: the requests of that queue pair up to position are done. */
void lane_done(struct lane *lane, uint32_t qp, uint16_t position, enum verbs_status status);
/* Its deadline has come. */
void lane_expire(struct lane *lane);
/* The rail is lost. */
void lane_lose(struct lane *lane);

#endif
