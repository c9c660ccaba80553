/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leg_out - the source's side of a leg to another agent: welcome, progress for the reader, the
 * stall clock, the end. Its bytes go by paths (leg_path.h).
 *
 * The acceptor's, but for what is said otherwise. How a leg ends: transport_own.h.
 *
 *   EXPECTED (its reader may come) -> SERVING -> CHANGED (a chunk is not what was published)
 *      -> TOLD (and the reader knows)
 *   any of them -> ENDING (paths close) -> ENDED (the last task is posted); EXPECTED -> ENDED
 */
#ifndef TH_TRANSPORT_LEG_LEG_OUT_H
#define TH_TRANSPORT_LEG_LEG_OUT_H

#include "transport/leg/control.h"
#include "transport/leg/leg_path.h"
#include "transport/leg/tickets.h"
#include "transport/transport_own.h"

enum leg_out_state {
	LEG_OUT_EXPECTED,
	LEG_OUT_SERVING,
	LEG_OUT_CHANGED,
	LEG_OUT_TOLD,
	LEG_OUT_ENDING,
	LEG_OUT_ENDED,
};

/* Paths read what is immutable or atomic, and prefix_sent; they write nothing. */
struct leg_out {
	LIST_ENTRY(leg_out) entry; /* once its reader has come */
	/* Immutable. */
	struct transport *transport;
	uint64_t id;
	struct xfer_part *part; /* owns: a reference, until the last event */
	bool verify;
	unsigned flags; /* enum transport_flag: FAR or none */
	/* Immutable once it is SERVING. */
	uint64_t reader_leg;
	bool same_host; /* the reader has our own address */
	uint8_t key[FRAME_KEY_BYTES];
	char peer[PEER_BYTES];
	/* Any thread. */
	int64_t last_sent_ns;           /* atomic */
	uint64_t bytes_sent;            /* atomic */
	bool stalled;                   /* atomic */
	bool flipped;                   /* atomic; fault builds */
	uint8_t *asked;                 /* owns; each atomic: how often a chunk was asked for */
	bool changed;                   /* atomic: a chunk is not what was published any more */
	uint32_t changed_chunk;         /* written before changed_task is posted */
	struct loop_task changed_task;  /* -> acceptor, once */
	struct loop_task progress_task; /* -> acceptor */
	/* Acceptor. */
	enum leg_out_state state;
	struct ticket_grant grant;
	struct leg_out_path *paths[LEG_PATHS_MAX]; /* owns */
	uint32_t num_paths;                        /* 0 before the leg has begun */
	struct control control;
	uint32_t prefix_sent, digests_sent;
	uint32_t looks;    /* of the reader's last ALIVE */
	bool said_waiting; /* in the last PROGRESS */
	bool beat;         /* it is time for one without news */
	int lost_code; /* why the memory cannot be read: whatever ends the leg then, that is why */
	int64_t started_ns, excused_ns, deadline_ns, last_progress_ns;
	struct loop_task last_task;
	/* Shell, once posted. */
	struct event_node began_node, stall_node, changed_node, last_node;
	bool stall_reported;
	struct transport_event result;
};

/* ---- for the transport ---------------------------------------------------------------------- */

/* The shell's thread makes it; then it is the acceptor's, and costs little until it starts. */
struct leg_out *leg_out_new(struct transport *transport, uint64_t id,
	const struct th_ticket *ticket, struct xfer_part *part, unsigned flags);
/* Its reader is here. fd -1: he was, and the leg ends at once. hello_flags: enum frame_flag. */
void leg_out_start(struct leg_out *leg, int fd, uint64_t reader_leg, unsigned hello_flags);
/* Also of one that is expected: then nobody can start it any more. */
void leg_out_fence(struct leg_out *leg);
struct leg_out *leg_out_find(struct transport *transport, uint64_t id);
struct leg_out *leg_out_find_key(
	struct transport *transport, const uint8_t key[FRAME_KEY_BYTES], uint64_t reader_leg);
struct leg_out *leg_out_next(struct leg_out *leg);
int64_t leg_out_tick(struct leg_out *leg, int64_t now_ns);

/* ---- for its paths, on the acceptor --------------------------------------------------------- */

/* The reader broke the protocol, and how: the leg ends by a reset. */
void leg_out_fail(struct leg_out *leg, const char *text);
/* The memory cannot be read any more: the reader is told, the leg ends. row: of its manifest;
 * UINT32_MAX: not known which. TH_E_PROTOCOL: leg_out_fail. */
void leg_out_lost(struct leg_out *leg, int code, uint32_t row);
/* After close: is nothing of the leg under way any more? */
void leg_out_settle(struct leg_out *leg);
/* The stream path has connections. */
bool leg_out_streams(const struct leg_out *leg);
/* The leg's clock looks at once, and asks its paths when next; and what there is to say is said. */
void leg_out_look(struct leg_out *leg);
/* The reader has shown that it is not frozen, and fetched so many bytes more. */
void leg_out_alive(struct leg_out *leg, uint64_t bytes);
/* A frame to the reader: room is there for one of any size when refill is called. It goes with
 * leg_out_wake, which also has refill called. room: where its payload may be put before it; then
 * payload is NULL. */
uint8_t *leg_out_room(struct leg_out *leg);
void leg_out_put(struct leg_out *leg, const struct frame *frame, const uint8_t *payload);
void leg_out_wake(struct leg_out *leg);
/* Each chunk may be asked for as often as ever. */
void leg_out_ask_anew(struct leg_out *leg);

/* ---- for its paths, on any thread ------------------------------------------------------------ */

/* How often this chunk was asked for, with this time. */
uint32_t leg_out_asked(struct leg_out *leg, uint32_t chunk);
/* So many bytes were taken; or something is done for the reader. */
void leg_out_sent(struct leg_out *leg, uint64_t bytes);
void leg_out_lives(struct leg_out *leg);
/* Somebody waits for the part to grow, or does no more; or there is more to be told. */
void leg_out_nudge(struct leg_out *leg);
/* A chunk is not what was published any more. */
void leg_out_changed(struct leg_out *leg, uint32_t chunk);
#ifdef TH_FAULTS
bool leg_out_flips(struct leg_out *leg, uint32_t chunk); /* it shall arrive with one bit wrong */
#endif

#endif
