/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_own - the transport's own structures.
 *
 * Threads: the *acceptor* keeps the door: it accepts, does the handshakes, owns the control
 * connection and the state of every leg between agents, and keeps its clocks. The *movers* own data
 * connections and know chunks only; those of RDMA are in rdma/rdma.h. Between them go tasks
 * (mover_loop.h). The shell's calls become commands to the acceptor.
 *
 * How a leg ends: only the acceptor ends one. It unwatches the part, asks each mover to close the
 * leg's connections, and has its queue pairs destroyed; when the last has answered it posts a last
 * task to itself: tasks run in order, so when that one runs nothing about the leg is under way any
 * more, and the last event is posted. The shell's thread frees the leg when it takes that event.
 */
#ifndef TH_TRANSPORT_TRANSPORT_OWN_H
#define TH_TRANSPORT_TRANSPORT_OWN_H

#include <netinet/in.h>
#include <semaphore.h>
#include <sys/queue.h>

#include "ipc/base/err.h"
#include "transport/data_fault.h"
#include "transport/hash/digest.h"
#include "transport/leg/chunk_ledger.h"
#include "transport/leg/frame.h"
#include "transport/leg/tickets.h"
#include "transport/loop/mover_loop.h"
#include "transport/mover_events.h"
#include "transport/transport.h"

#define MOVERS_MAX 16u
#define CONNECTIONS_MAX 16u /* of one leg */
/* Chunks asked for and not come, of one connection: a peer with more breaks the protocol. */
#define WINDOW_MAX 16u
/* What we ask for ourselves: 4 x 4 MiB cover 25 GB/s x 0.6 ms. Of a far source it is the most: with
 * 16 connections that covers 25 GB/s x 30 ms. */
#define WINDOW 4u
#define STRANGERS_MAX 128u   /* connections that have not shown a ticket or key yet */
#define ASKED_MAX 512u       /* tickets that wait for their grant */
#define ASKED_BY_ONE 128u    /* of those, as many that one address has presented */
#define PEER_BYTES 64u       /* "[v6 address%scope]:port" */
#define CONGESTION_BYTES 16u /* of a name, as the kernel has it */
#define CONNECT_NS INT64_C(2000000000)

struct capped;
struct hasher;
struct local;
struct block_copies;
struct leg_in;
struct leg_out;
struct rdma;
struct stranger;

LIST_HEAD(legs_in, leg_in);
LIST_HEAD(legs_out, leg_out);
TAILQ_HEAD(strangers, stranger);

struct transport {
	struct transport_config config;        /* immutable */
	char address[TH_ADDRESS_MAX + 1];      /* immutable */
	char engine_why[128];                  /* immutable */
	bool uring;                            /* immutable */
	char congestion[CONGESTION_BYTES];     /* immutable; empty: the host's own */
	char far_congestion[CONGESTION_BYTES]; /* immutable; empty: as near */
	struct events events;
	struct transport_counters counters; /* each field atomic */
	struct loop *acceptor;
	struct loop *movers[MOVERS_MAX];
	uint32_t num_movers;
	uint32_t num_blocks; /* atomic: that connections receive into */
	struct hasher *hasher;
	struct local *local;
	struct block_copies *block_copies;
	struct rdma *rdma; /* NULL: none */
#ifdef TH_FAULTS
	struct fault fault;
#endif
	/* Of the acceptor's thread. */
	int listen_fd; /* owns, until door does */
	int spare_fd;  /* owns: given up for a moment when there are no descriptors left */
	struct stream door;
	int64_t door_ns;            /* it rests until then; INT64_MAX: it does not */
	struct strangers strangers; /* oldest first */
	uint32_t num_reading;       /* of strangers: have not shown a ticket or key yet */
	struct tickets tickets;     /* of all legs out, and of the other strangers */
	uint32_t next_mover;
	struct legs_in legs_in;
	struct capped *capped;    /* owns: the cap on what far legs read; NULL: none */
	struct legs_out legs_out; /* whose reader has come; those who have not are in tickets */
	bool closing;
	bool halted;  /* the shell's thread's */
	sem_t closed; /* posted when closing and nothing is left */
};

static inline void
count_up(uint64_t *counter, uint64_t add)
{
	__atomic_add_fetch(counter, add, __ATOMIC_RELAXED);
}

/* ---- what goes to the acceptor -------------------------------------------------------------- */

enum command_kind {
	COMMAND_PULL,
	COMMAND_DROP_DONOR,
	COMMAND_STOP,
	COMMAND_EXPECT,
	COMMAND_REFUSE,
	COMMAND_FENCE,
	COMMAND_CLOSE
};

struct command { /* freed by whoever runs it */
	struct loop_task task;
	enum command_kind kind;
	struct transport *transport;
	uint64_t id;             /* leg */
	struct leg_in *leg_in;   /* PULL: moved */
	struct leg_out *leg_out; /* EXPECT: moved */
	struct th_ticket ticket; /* REFUSE */
	int code;                /* REFUSE */
	char text[TH_CTL_TEXT_BYTES];
};

/* ---- the door (acceptor.c) ------------------------------------------------------------------ */

int64_t acceptor_tick(void *arg, int64_t now_ns);
void acceptor_command(struct loop_task *task);
void acceptor_open_door(struct transport *transport);
/* After the last of something: is the transport's closing done? */
void acceptor_left(struct transport *transport);
struct loop *acceptor_next_mover(struct transport *transport);

/* Options that every connection of a leg has. */
void socket_prepare(int fd, const struct transport *transport);
/* Numeric "host:port" or "[host]:port". */
TH_MUST_USE int socket_parse(
	const char *address, struct sockaddr_storage *ret_address, socklen_t *ret_bytes);
/* A connection under way; -errno. */
TH_MUST_USE int socket_connect(
	const struct sockaddr_storage *address, socklen_t bytes, const struct transport *transport);
/* 0 or -errno: whether the kernel has it for this process; loads it where it may. */
TH_MUST_USE int socket_check_congestion(const char *congestion);
/* Of what is sent. */
void socket_set_congestion(int fd, const char *congestion);
/* Bytes a second of what is sent; UINT64_MAX: no limit. */
void socket_pace(int fd, uint64_t rate);
/* Whether the peer has our own address. */
bool socket_same_host(int fd);
void socket_name(const struct sockaddr_storage *address, char ret_name[PEER_BYTES]);

/* The connections that send have come or gone: their shares of the caps. Acceptor. */
void pacing_divide(struct transport *transport);

/* The cap on what far legs read (capped.c). NULL: none. */
struct capped *capped_new(uint64_t limit);
void capped_free(struct capped *capped);
/* Whoever may ask by now is told. When to call again. Acceptor. */
int64_t capped_tick(struct capped *capped, int64_t now_ns);

/* ---- copies and hashing (their own threads) ----------------------------------------------- */

TH_MUST_USE int local_new(struct transport *transport, uint32_t threads, struct local **ret_local);
void local_free(struct local *local); /* ends its legs */
TH_MUST_USE int local_copy(
	struct local *local, uint64_t leg, struct xfer_part *source, struct xfer_part *part);
void local_stop(struct local *local, uint64_t leg);
/* For tests: moments of a copy, when all bytes of this chunk lie in the part. */
void local_pass_points(const struct xfer_part *part, uint32_t chunk);

TH_MUST_USE int hasher_new(
	struct transport *transport, uint32_t threads, struct hasher **ret_hasher);
void hasher_close(struct hasher *hasher); /* ends its threads and jobs */
void hasher_free(struct hasher *hasher);  /* the same first, if that was not done */
TH_MUST_USE int hasher_add(struct hasher *hasher, uint64_t tag, struct xfer_part *part);
void hasher_stop(struct hasher *hasher, uint64_t tag);
/* Somebody has begun to watch a part: he may wait for its digests. Holding no lock of a part. */
void hasher_wanted(struct hasher *hasher);

/* The digest of a chunk as it lies in the memory of a touchable part. It may wait for a GPU. 0 or
 * TH_E_STALE_MEMORY. */
TH_MUST_USE int part_digest(struct xfer_part *part, uint32_t chunk, struct th_hash *ret_digest);

/* Memory of a part is not reached any more: that what is so, and why. The code for its owner. */
int part_lost_text(struct xfer_part *part, const char *what, char ret_text[TH_CTL_TEXT_BYTES]);
/* Of TH_E_LIMIT, where the memory is as it was: threads, or what a GPU's process maps of ours. */
#define LIMIT_TEXT "this agent is at a limit, its log says which"

/* Both for parts that are not direct; on the movers. Otherwise as the calls above. */
struct block_copies *block_copies_new(struct transport *transport);
void block_copies_free(struct block_copies *block_copies); /* ends them; the movers still run */
TH_MUST_USE int block_copy_copy(struct block_copies *block_copies, uint64_t leg,
	struct xfer_part *source, struct xfer_part *part);
void block_copy_hash(struct block_copies *block_copies, uint64_t tag, struct xfer_part *part);
void block_copy_stop(struct block_copies *block_copies, bool hash, uint64_t id);

#endif
