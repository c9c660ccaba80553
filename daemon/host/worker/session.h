/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session - one worker's handle: its connection, shared files, memory and registration.
 *
 *   HELLO -> GREETED -> OPENING -> OPEN -> CLOSING -> (the core frees it) -> GONE -> freed
 *                          any of these -> LOST ----------------^
 *
 * The worker is lost when its process ends, it hangs up, or it breaks the rules of a channel: then
 * it gets no further word, its descriptors are closed at once, and the core winds up what it had.
 * The memory stays mapped until the core has freed the session and no mover holds a part of it any
 * more. Who closes hears the end of it when the agent keeps no GPU memory of it allocated: until
 * then the session is GONE and not freed. Main thread only.
 *
 * A session without a worker (offload) begins as OPEN, has neither connection nor ring, and keeps
 * a copy in the agent's own memory: see reserve.h.
 */
#ifndef TH_DAEMON_HOST_WORKER_SESSION_H
#define TH_DAEMON_HOST_WORKER_SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include <uthash.h>

#include "daemon/core/agent_core.h"
#include "daemon/host/memory/memory.h"
#include "daemon/host/memory/memory_claims.h"
#include "daemon/host/worker/registration.h"
#include "ipc/base/ctl.h"
#include "ipc/base/loop.h"
#include "ipc/shm/ring.h"
#include "ipc/shm/segment.h"
#include "ipc/sock/peer.h"

struct ctl_ev_reserve;
struct host;
struct offload_memory;

enum host_session_state {
	HOST_SESSION_HELLO,   /* connected */
	HOST_SESSION_GREETED, /* WELCOME was said */
	HOST_SESSION_OPENING, /* the core asks the server */
	HOST_SESSION_OPEN,
	HOST_SESSION_CLOSING, /* the core winds up; CLOSED follows */
	HOST_SESSION_LOST,    /* likewise, and nobody is told */
	HOST_SESSION_GONE,    /* the core has forgotten it */
};

struct session_slot {
	bool busy;       /* from the submission until its completion                           */
	uint32_t kind;   /* enum shm_submission_kind                                            */
	bool writes;     /* the tensors are its destination                                     */
	uint64_t op_seq; /* the worker's number                                                */
};

struct host_session {
	UT_hash_handle hh;
	struct host *host; /* borrows */
	uint64_t id;       /* never reused */
	enum host_session_state state;
	int64_t expire_ns; /* HELLO to OPENING: it is refused when it gets no further until then */
	int sock;          /* owns */
	struct loop_source sock_source, bell_source, end_source;
	struct peer peer; /* owns: the pidfd */

	bool knows_gpu;   /* FDMSG_FEATURE_GPU: both do */
	bool knows_loans; /* likewise FDMSG_FEATURE_BORROW */
	uint8_t secret[16];
	struct ctl_open open;
	struct segment_agent segment; /* owns */
	int bell_in, bell_out;        /* own: to the agent, to the worker */
	struct ring_agent ring;
	struct shm_line line; /* what the worker sees */
	struct session_slot slots[SHM_CAPACITY];
	struct host_session *next_busy; /* borrows: in the list of rings that have more */
	bool busy;

	struct memory_set memory; /* owns */
	struct registration registration;
	struct claim claim;
	bool follows;              /* the core may have its tensors written at any moment */
	uint64_t forbidden_source; /* the last one that no allowed transport reaches */
	uint64_t forbidden_gen;    /* in the operation that fills this generation    */
	uint32_t forbidden_times;  /* how many there were in it                      */
	bool ended;                /* by us, and told so; its close is still to come */
	bool owes_closed;          /* GONE, and its worker waits to hear of it */
	uint32_t live_parts;       /* that the core has begun and not ended */
	uint32_t held_parts;       /* whose memory somebody may still touch */
	struct host_session *next_dead;
	struct offload_memory *offload; /* owns; NULL: there is a worker, which owns the memory */
};

/* A new connection; takes sock. */
void session_accept(struct host *host, int sock);
/* A new connection for which there are no descriptors: it is told so; takes sock. */
void session_refuse_full(struct host *host, int sock, int code);
/* The sentence about code, -EMFILE or -ENFILE. */
void session_full_text(int code, char text[TH_CTL_TEXT_BYTES]);
struct host_session *session_find(struct host *host, uint64_t id); /* NULL */

/* A new session without a worker; takes tensors and memory. Its number. */
uint64_t session_internal(struct host *host, const struct ctl_ev_reserve *reserve,
	struct tensors *tensors, struct offload_memory *memory);

/*
 * The end of a worker that does not close. reason is logged once. violation: it broke the rules of
 * a channel and is counted.
 */
void session_lose(struct host_session *session, bool violation, const char *reason);
/* The core has forgotten the session: frees it, now or when the last mover has let go. */
void session_gone(struct host_session *session);
/* A part's memory is not touched any more. */
void session_part_released(struct host_session *session);
/* GPU memory of it is not kept any more, or will always be. */
void session_let_go(struct host_session *session);
/* What was forgotten or freed meanwhile is unmapped when nobody can touch it. */
void session_sweep_memory(struct host_session *session);
/* What it has registered is registered with NICs, as far as it is not and can be. */
void session_cover(struct host_session *session);
/* Whose addresses its memory has: equal for two handles of one process. */
uint64_t session_process(const struct host_session *session);
/* Why not, for xfer_part_set_no_rdma. */
const char *session_no_rdma(const struct host_session *session);
/* READ, WRITE or NONE, from what runs and what is held. */
void session_update_claim(struct host_session *session);

void session_reap(struct host *host); /* frees the dead: between two batches of the loop */
/* Ends those that come no further; sets host->next_expire_ns. */
void session_expire(struct host *host, int64_t now_ns);
/* Looks after session again no later than this. */
void session_expire_at(struct host_session *session, int64_t at_ns);
void session_free_all(struct host *host);

/* A member of nothing. Its memory and documents are refused here, its calls by the core. */
static inline bool
session_observes(const struct host_session *session)
{
	return session->open.replica[0] == '\0';
}

/* For logs and sentences: "model/replica/shard", or "model/(observer)". Returns buffer. */
#define SESSION_LABEL_BYTES 600
const char *session_label(const struct host_session *session, char buffer[SESSION_LABEL_BYTES]);

#endif
