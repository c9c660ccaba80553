/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leg_in - the reader's side of a leg from another agent: handshake, the source's progress, the
 * stall clock, the end. Its bytes come by paths (leg_path.h).
 *
 * The acceptor's, but for what is said otherwise. How a leg ends: transport_own.h.
 *
 *   CONNECTING -> ASKING (ticket sent) -> RUNNING (welcome)
 *   any of them -> ENDING (paths close) -> ENDED (the last task is posted)
 */
#ifndef TH_TRANSPORT_LEG_LEG_IN_H
#define TH_TRANSPORT_LEG_LEG_IN_H

#include "transport/leg/control.h"
#include "transport/leg/leg_path.h"
#include "transport/transport_own.h"

enum leg_way { LEG_BY_TCP, LEG_BY_RDMA, LEG_BY_RDMA_COPY };

enum leg_in_state {
	LEG_IN_CONNECTING,
	LEG_IN_ASKING,
	LEG_IN_RUNNING,
	LEG_IN_ENDING,
	LEG_IN_ENDED,
};

/* Paths read what is immutable or atomic, and write nothing. */
struct leg_in {
	LIST_ENTRY(leg_in) entry;
	/* Immutable. */
	struct transport *transport;
	uint64_t id;
	struct xfer_part *part; /* owns: a reference, until the last event */
	bool verify;
	struct sockaddr_storage address;
	socklen_t address_bytes;
	unsigned flags; /* enum transport_flag */
	char peer[PEER_BYTES];
	uint8_t key[FRAME_KEY_BYTES]; /* set since WELCOME */
	/* Any thread; the ledger has its own lock. */
	struct chunk_ledger ledger;
	uint32_t source_prefix; /* atomic */
	int64_t joined_ns;      /* atomic: the first data connection stands; 0 before */
	int64_t last_byte_ns;   /* atomic */
	uint64_t bytes_moved;   /* atomic */
	uint64_t verify_ns;     /* atomic */
	enum leg_way way;       /* atomic: for the shell */
	bool fallback_told;     /* atomic: fallback is there, and stays as it is */
	/* Any thread -> acceptor. */
	struct loop_task complete_task; /* the part is whole */
	struct loop_task kick_task;     /* there may be more to ask for */
	struct loop_task looked_task;   /* of a GPU's thread */
	/* Acceptor. */
	enum leg_in_state state;
	struct leg_in_path *paths[LEG_PATHS_MAX]; /* owns */
	uint32_t num_paths;                       /* 0 before the control connection stands */
	struct th_err fallback;                   /* why the leg goes without RDMA */
	struct th_err copy; /* why it goes by copies; there before way says that */
	struct control control;
	struct th_ticket ticket;
	/* In the last ALIVE; the other three of a leg whose source does not see it move. */
	uint32_t looks_said, chunks_said, prefix_said;
	uint64_t bytes_said;
	int64_t deadline_ns;   /* of the state; RUNNING: when to look again */
	int64_t running_ns;    /* since when */
	int64_t connecting_ns; /* since when there are data connections, or are made */
	int64_t excused_ns;    /* until then the source said that it waits, or we were late */
	struct loop_task last_task;
	/* Shell, once posted. */
	struct event_node progress_node, donor_node, last_node;
	struct transport_event result;
};

/* ---- for the transport ---------------------------------------------------------------------- */

/* The shell's thread makes it; then it is the acceptor's. */
TH_MUST_USE int leg_in_new(struct transport *transport, uint64_t id, const char *address,
	const struct th_ticket *ticket, struct xfer_part *part, struct xfer_part *donor,
	unsigned flags, struct leg_in **ret_leg);
void leg_in_start(struct leg_in *leg);
void leg_in_stop(struct leg_in *leg);
void leg_in_drop_donor(struct leg_in *leg);
struct leg_in *leg_in_find(struct transport *transport, uint64_t id);
struct leg_in *leg_in_next(struct leg_in *leg);
int64_t leg_in_tick(struct leg_in *leg, int64_t now_ns);

/* ---- for its paths, on the acceptor --------------------------------------------------------- */

/* Ends the leg with FAILED; text names the peer and the prefix behind it. It is the source, or the
 * way to it, so another may do better; _ours: no other would. */
void leg_in_fail(struct leg_in *leg, int code, const char *text);
void leg_in_fail_ours(struct leg_in *leg, int code, const char *text);
/* The same for a chunk that came and does not count. own: it was our own memory. */
void leg_in_fail_by(struct leg_in *leg, int code, bool own);
/* The same for a connection. The source may have said why before: its word counts. */
void leg_in_broken(struct leg_in *leg, int code, bool own);
/* After close: is nothing of the leg under way any more? */
void leg_in_settle(struct leg_in *leg);
/* The stream path shall fetch what is missing; and no more. */
void leg_in_stream(struct leg_in *leg);
void leg_in_retire(struct leg_in *leg);
bool leg_in_streams(const struct leg_in *leg);
/* There may be more to ask for: all paths. */
void leg_in_kick(struct leg_in *leg);
/* The leg's clock looks at once, and asks its paths when next. */
void leg_in_look(struct leg_in *leg);
/* What was not told until now is not the source's stall. */
void leg_in_excuse(struct leg_in *leg, int64_t now_ns);
/* A frame to the source: room is there for the few that a leg says, and for what refill asks. It
 * goes with leg_in_wake, which also has refill called. */
void leg_in_put(struct leg_in *leg, const struct frame *frame, const uint8_t *payload);
void leg_in_wake(struct leg_in *leg);
/* Takes what the source has said by now. */
void leg_in_hear(struct leg_in *leg);
/* The leg goes without RDMA, and why, for people. Once. */
void leg_in_fall_back(struct leg_in *leg, const char *why);
/* How its bytes come from now on. copy_why: NULL, or why by copies. */
void leg_in_goes(struct leg_in *leg, enum leg_way way, const char *copy_why);

/* ---- for its paths, on any thread ------------------------------------------------------------ */

/* The first connection stands. */
void leg_in_joined(struct leg_in *leg, int64_t now_ns);
/* Something has come, or the source was not asked for anything until now. */
void leg_in_lives(struct leg_in *leg, int64_t now_ns);
/* So many bytes have come; were hashed for so long. */
void leg_in_moved(struct leg_in *leg, uint64_t bytes, int64_t now_ns);
void leg_in_verified(struct leg_in *leg, int64_t ns);
/* enum chunk_ledger_result, not negative: the shell is told of what grew, and the leg is complete
 * or kicks its paths. */
void leg_in_counted(struct leg_in *leg, int result);
void leg_in_kick_soon(struct leg_in *leg);
/* For tests: moments of a leg, when all bytes of this chunk are here. */
void leg_in_pass_points(const struct leg_in *leg, uint32_t chunk);

#endif
