/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp - the stream path of legs between agents: data connections. The acceptor's side (tcp_in.c,
 * tcp_out.c) and the movers' side (data_in.c, data_out.c). Who may touch a field is said at the
 * field.
 */
#ifndef TH_TRANSPORT_TCP_TCP_H
#define TH_TRANSPORT_TCP_TCP_H

#include "transport/leg/leg_in.h"
#include "transport/leg/leg_out.h"
#include "transport/loop/ferry.h"
#include "transport/transport_own.h"

/* ---- reader --------------------------------------------------------------------------------- */

enum tcp_in_state { TCP_IN_IDLE, TCP_IN_MOVING, TCP_IN_RETIRING, TCP_IN_CLOSED };

struct tcp_in { /* tcp_in.c */
	struct leg_in_path path;
	struct leg_in *leg;                     /* borrows: outlives it */
	enum tcp_in_state state;                /* atomic: the acceptor writes, the movers read */
	struct data_in *conns[CONNECTIONS_MAX]; /* owns */
	uint32_t num_conns;
};

extern const struct leg_in_path_ops tcp_in_ops;

void tcp_in_conn_broken(struct tcp_in *tcp, const struct data_in *conn);
void tcp_in_conn_idle(struct tcp_in *tcp, struct data_in *conn);
void tcp_in_conn_gone(struct tcp_in *tcp, struct data_in *conn);

struct data_in {
	struct stream stream;
	struct tcp_in *tcp; /* borrows: outlives the connection, as leg */
	struct leg_in *leg;
	struct loop *loop;
	bool leads;                                         /* immutable: see ask_limit() */
	struct loop_task open_task, kick_task, close_task;  /* acceptor -> mover */
	struct loop_task settle_task;                       /* mover -> mover, the last there */
	struct loop_task broken_task, idle_task, gone_task; /* mover -> acceptor */
	bool retired;  /* the acceptor's: close_task is posted, before the leg ends */
	bool reset;    /* written before close_task is posted */
	int code;      /* written before broken_task is posted */
	bool own;      /* likewise: it was our own memory that failed */
	bool held;     /* atomic: it takes no more before our own memory has taken what came */
	uint32_t owed; /* atomic: as num_asked */
	/* Of a leg under the cap: see capped.c. */
	struct loop_task leave_task, return_task; /* mover -> acceptor */
	TAILQ_ENTRY(data_in) waiting;             /* acceptor, while queued */
	bool queued;
	bool leave;        /* atomic: the acceptor gives it, the mover takes it */
	uint32_t returned; /* atomic: bytes of leaves that were not needed */
	/* Mover. */
	/* Of a part that is not direct: what came goes through blocks. */
	struct ferry *ferry; /* owns */
	struct loop_task ferry_task;
	struct ferry_block *filling; /* owns */
	bool watching, closing;
	/* Chunks to keep asked for; it grows to the most, so that chunks interleave. */
	uint32_t window, window_most;
	bool asks_leave; /* of the acceptor, and has not used it */
	uint32_t asked[WINDOW_MAX], asked_head, num_asked; /* in the order asked */
	uint8_t header[FRAME_BYTES];
	uint32_t have;
	bool in_body;
	struct xfer_cursor cursor;
	struct digest digest;
	/* Of a direct part: what came waits here until it is a block, and goes to its place past
	 * the caches. NULL: it is received there. */
	uint8_t *block;       /* owns */
	uint32_t block_bytes; /* that wait */
	uint8_t out[2 * FRAME_BYTES + FRAME_KEY_BYTES + WINDOW_MAX * FRAME_BYTES];
	uint32_t out_bytes, out_sent;
};

/* Acceptor: a new connection of the leg, on some mover. leads: see ask_limit(). */
struct data_in *data_in_new(struct tcp_in *tcp, struct loop *loop, bool leads);

/* Mover: the next chunk may be asked for. False: not yet, the connection is kicked then. */
bool capped_may_ask(struct data_in *conn);
/* Mover: it was, and has so many bytes; 0: there is none to ask for. */
void capped_asked(struct data_in *conn, uint32_t bytes);
void capped_init(struct data_in *conn);
/* Acceptor: it asks for nothing more, and will be closed or is. */
void capped_forget(struct data_in *conn);

/* ---- source --------------------------------------------------------------------------------- */

struct tcp_out { /* tcp_out.c */
	struct leg_out_path path;
	struct leg_out *leg; /* borrows: outlives it */
	bool late_reads;     /* immutable: what is sent may be read later: see data_out.c */
	bool spliced;        /* atomic: some of it went out of files */
	/* Of conns and their closing: the acceptor writes, the part's watcher reads. */
	pthread_mutex_t lock;
	struct data_out *conns[CONNECTIONS_MAX]; /* owns */
	uint32_t num_conns;
};

extern const struct leg_out_path_ops tcp_out_ops;

struct tcp_out *tcp_out_of(const struct leg_out *leg); /* NULL: the leg has not begun */
/* A data connection with the leg's key. Takes the descriptor. */
void tcp_out_join(struct tcp_out *tcp, int fd);
void tcp_out_conn_broken(struct tcp_out *tcp, struct data_out *conn);
void tcp_out_conn_gone(struct tcp_out *tcp, struct data_out *conn);

struct data_out {
	struct stream stream;
	struct tcp_out *tcp; /* borrows: outlives the connection, as leg */
	struct leg_out *leg;
	struct loop *loop;
	int fd; /* owns, until the mover has opened its stream */
	struct loop_task open_task, kick_task, close_task; /* -> mover */
	struct loop_task pace_task;                        /* acceptor -> mover */
	uint64_t rate;                           /* atomic: bytes a second, 0: never limited */
	struct loop_task settle_task;            /* mover -> mover, the last there */
	struct loop_task broken_task, gone_task; /* mover -> acceptor */
	bool closing; /* written by the acceptor, under its lock: close_task is posted */
	bool reset;   /* written before close_task is posted */
	int code;     /* written before broken_task is posted */
	bool own;     /* likewise: it is the part's memory that failed */
	uint32_t row; /* likewise: of its manifest; UINT32_MAX: not known which */
	bool waiting; /* atomic: the next chunk is beyond the prefix */
	/* Mover. */
	/* Of a part that is not direct: what is sent comes through blocks. */
	struct ferry *ferry; /* owns */
	struct loop_task ferry_task;
	struct ferry_block *ready, **ready_last; /* own: read, to be sent in this order */
	struct digest digest;                    /* of a chunk that was asked for again */
	bool hashing;                            /* the chunk that comes is one */
	bool feeding; /* some of feed_cursor's chunk is to be submitted yet */
	uint32_t feed_chunk;
	struct xfer_cursor feed_cursor;
	uint8_t in[FRAME_BYTES];
	uint32_t have;
	uint32_t asked[WINDOW_MAX], asked_head, num_asked; /* in the order asked */
	bool sending;
	bool by_file; /* what is being sent goes out of a file */
	uint32_t chunk;
	uint8_t header[FRAME_BYTES];
	uint32_t header_sent;
	struct xfer_cursor cursor;
	uint8_t flipped; /* fault builds: what is sent in place of the chunk's first byte */
	bool flip;
};

/* Bytes a second; UINT64_MAX: no limit. Acceptor. */
void data_out_pace(struct data_out *conn, uint64_t rate);

struct data_out *data_out_new(struct tcp_out *tcp, struct loop *loop, int fd);
/* On its mover, once the leg has it among its connections. */
void data_out_start(struct data_out *conn);

#endif
