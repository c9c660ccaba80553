/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader_own - the structures of reader.c (the acceptor's side and the keeper's), reader_lane.c
 * (what lanes and checks call) and reader_stage.c (slots, where NICs do not reach the memory of an
 * end).
 */
#ifndef TH_TRANSPORT_RDMA_LEG_READER_OWN_H
#define TH_TRANSPORT_RDMA_LEG_READER_OWN_H

#include <pthread.h>

#include "ipc/base/err.h"
#include "transport/leg/leg_in.h"
#include "transport/loop/mover_loop.h"
#include "transport/rdma/engine/checks.h"
#include "transport/rdma/engine/lane.h"
#include "transport/rdma/engine/queue_setup.h"
#include "transport/rdma/engine/queues.h"
#include "transport/rdma/leg/await.h"
#include "transport/rdma/leg/rdma_wire.h"
#include "transport/rdma/leg/reader.h"
#include "transport/rdma/leg/reader_stage.h"
#include "transport/rdma/memory/read_map.h"
#include "transport/rdma/rdma.h"

/* A lane that has not proved itself by then breaks. */
#define READER_PROBE_NS INT64_C(1000000000)
#define READER_LOOKS_MAX 8u /* chunks that are looked at, or wait to be fetched after that */

enum reader_state {
	READER_NEW,
	READER_WAITING,
	READER_STAYING,
	READER_MAKING,
	READER_OFFERED,
	READER_MAPPING,
	READER_CONNECTING,
	READER_RUNNING,
	READER_LEAVING,
	READER_DRAINING,
	READER_OVER,
	READER_CLOSING,
};

enum reader_check { READER_LANDED, READER_LOOK };

struct reader_lane {
	struct reader *reader;
	uint32_t index; /* in OFFER, so in the map's rkeys; immutable, as the next two */
	uint32_t rail;
	struct wire_rail peer;
	/* Keeper's or setup's while it has the reader, else acceptor. */
	uint32_t peer_rail;
	struct queues queues; /* owns, until there is a lane */
	bool made, accepted;
	bool ours;    /* when it could not be connected: our own doing */
	bool unfound; /* it could not be connected, by the peer's doing or the network's */
	struct endpoint other;
	struct rdma_lane entry;
	struct lane *lane; /* owns, until it is closed; NULL: there never was one */
	/* Acceptor. */
	bool proved, broken, closing, closed;
	bool stuck;  /* written by the rail's thread before broken_task or closed_task is posted */
	bool blamed; /* it broke by its path, if the source lives on */
	uint64_t seen_bytes; /* that came through it */
	int64_t moved_ns;    /* when bytes came last, or there was nothing to come */
	/* The rail's thread. */
	uint32_t num_taken; /* atomic: chunks taken and not landed */
	struct loop_task proved_task, broken_task, closed_task;
	enum verbs_status status; /* written before broken_task is posted, as why */
	const char *why;
};

struct reader {
	struct leg_in_path path;
	struct leg_in *leg; /* borrows: outlives it */
	struct rdma *rdma;
	struct extents extents; /* immutable, as places */
	struct place *places;   /* owns; NULL: NICs do not reach all of our own memory */
	struct reader_stage stage;
	struct check_list checks;
	/* Immutable once lanes run. */
	struct map map;
	/* Keeper's or setup's while it has the reader (at_keeper), else acceptor. */
	struct reader_lane lanes[WIRE_LANES_MAX];
	uint32_t num_lanes;
	struct th_err why; /* of the last lane that could not be made */
	/* Acceptor. */
	enum reader_state state;
	bool at_keeper;     /* lanes are the keeper's or setup's now */
	bool checks_closed; /* no thread looks at a chunk any more */
	bool ours;          /* it left by our own doing */
	bool later;         /* it will say RAILS or DECLINE when its memory is registered */
	uint32_t num_blamed;
	struct await await;
	int64_t deadline_ns;
	int64_t stream_ns; /* WAITING: when to begin by data connections */
	int64_t heard_ns;  /* of the source, last */
	int64_t late_ns;   /* we came late ourselves, last */
	int64_t looked_ns; /* at the lanes, last */
	struct wire_rail rails[WIRE_RAILS_MAX];
	uint32_t num_rails;
	uint32_t doubtful;          /* chunk that the source was asked about; UINT32_MAX: none */
	struct setup_turn turn;     /* acceptor -> setup */
	struct loop_task free_task; /* acceptor -> keeper */
	struct loop_task made_task, connected_task, freed_task;
	/* Any thread -> acceptor. */
	struct loop_task doubt_task, failed_task, checks_closed_task;
	int failed_code;      /* written before failed_task is posted, once */
	bool failed_own;      /* our own memory */
	bool failed;          /* atomic */
	bool touched;         /* atomic: a READ into the part was asked for */
	uint32_t landed;      /* atomic: chunks */
	pthread_mutex_t lock; /* of what follows */
	bool stopping;        /* lanes take nothing more */
	uint32_t ready[READER_LOOKS_MAX], num_ready, num_looking;
	uint32_t *doubts; /* owns: chunks that did not match, in turn */
	uint32_t num_doubts;
};

extern const struct lane_user reader_lane_user;

struct reader *reader_of(struct leg_in_path *path);
struct loop *reader_acceptor(const struct reader *reader);
/* For each answer of the source, and for registrations. */
int64_t reader_patience_ns(const struct reader *reader);
/* The only writer of its state. until_ns: how long it is patient; INT64_MAX: for as long as it
 * takes. why is for people. */
void reader_enter(
	struct reader *reader, enum reader_state state, int64_t until_ns, const char *why);
void reader_kick_lanes(struct reader *reader);
/* No RDMA any more in this leg. why is for people. Where RDMA is required another source is asked
 * then; not when it is ours: our own rails or memory, with which no other would do better. */
void reader_leave(struct reader *reader, const char *why);
void reader_leave_ours(struct reader *reader, const char *why);
void reader_leave_if_done(struct reader *reader);
/* A closing reader: takes it as far as it goes. */
void reader_settle(struct reader *reader);
/* There may be more to fetch. */
void reader_kick(struct leg_in_path *path);
/* It does through buffers at one end or both. */
bool reader_stages(const struct reader *reader);

/* For people: how the leg's bytes come, and why not straight. */
void reader_say_way(struct reader *reader);
/* How lanes fare (reader_watch.c). */
void reader_watch_init(struct reader_lane *lane);
/* The source has said something, or sent: it lives. */
void reader_heard(struct leg_in_path *path);
/* Takes account of what came through it. Whether that is more than before. */
bool reader_look_at_bytes(struct reader_lane *lane);
/* A lane through which nothing comes, although it was asked for, breaks. */
void reader_look_at_lane(struct reader_lane *lane, int64_t now_ns);

/* How lanes come about (reader_setup.c). */
void reader_setup_init(struct reader *reader);
/* Once the source has told its rails, and enough of our own memory is registered. */
void reader_offer(struct reader *reader, int64_t now_ns);
TH_MUST_USE int reader_setup_frame(
	struct reader *reader, const struct frame *frame, const uint8_t *payload);

/* Rails on which our own end is ready; may still become it (waiting). */
uint32_t reader_ready(const struct reader *reader, uint32_t *ret_waiting);

/* The next chunk for lanes, or for the source to stage. Under the lock. */
bool reader_next(struct reader *reader, uint32_t limit, uint32_t *ret_chunk);
/* The leg shall fail. own: by our own memory. Any thread, once. */
void reader_fail(struct reader *reader, int code, bool own);
/* Checks: what is done with a chunk there. */
void reader_check(struct check_list *list, uint32_t chunk, uint8_t what);
/* A chunk's bytes lie in the part: digest NULL: not verified. Any thread. */
void reader_arrived(struct reader *reader, uint32_t chunk, const struct th_hash *digest);
/* No lane takes a chunk from now on; those that waited go back to the ledger. */
void reader_stop_taking(struct reader *reader);
/* What came is not the chunk that was published: it is fetched again, or the source has changed.
 * Any thread. */
void reader_doubt(struct reader *reader, uint32_t chunk);
/* The source holds it right, or will say that it does not, so it is fetched again. Any thread. */
void reader_mismatched(struct reader *reader, uint32_t chunk);
/* The next chunk that did not match. */
bool reader_next_doubt(struct reader *reader, uint32_t *ret_chunk);

#endif
