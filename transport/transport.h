/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport - moving the bytes of a leg between two parts, for the agent's host shell.
 *
 * A leg is one shard pulled from one source. Movers are threads that own the sockets and copies;
 * they know chunks, never versions. The shell (one thread) starts and stops legs by the calls below
 * and drains events with transport_poll when transport_fd is readable. All calls below are made by
 * that one thread, return at once and never block on a peer.
 *
 * Life of a leg at the reader (leg_in): pull or copy -> PROGRESS... -> DONE or FAILED. After stop:
 * STOPPED. Exactly one of DONE, FAILED, STOPPED comes for each leg: the first that happens, so a
 * stop may still be answered by DONE or FAILED. When it has come no mover touches the part for this
 * leg any more: every connection is closed, every write has ended. Only after xfer_part_orphan a
 * write that is stuck in the worker's memory is not waited for.
 *
 * Life of a leg at the source (leg_out): expect -> a peer presents its ticket -> BEGAN -> (STALLED,
 * RESUMED)... -> ENDED. A peer may come before his leg is expected: he waits, for hello_ns. Exactly
 * one ENDED comes for each leg that was expected, also when nobody came or he had left by then.
 * fence ends it, begun or not: ENDED comes then too, and when it has come nobody can
 * begin it, and no byte of the part is read for it any more; of what went by sendfile the
 * kernel may still read, but then the reader's digests refuse what it finds (data_out.c).
 *
 * A chunk that does not match at the reader is asked for again, and then the source hashes its own
 * memory once more. When that is not what it published, its worker has written to published memory:
 * CHANGED, proof that no damage on the way can fake. It comes while the leg runs, so before anybody
 * could have been told that the memory may be written.
 *
 * A source that waits for bytes itself says so again and again, so that a reader can tell it from a
 * frozen one, which it gives up on after stall_ns.
 */
#ifndef TH_TRANSPORT_TRANSPORT_H
#define TH_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/ctl.h"
#include "transport/part/xfer_part.h"

struct rdma;        /* rdma/rdma.h */
struct rdma_config; /* rdma/rdma.h */
struct transport;

/* Whether verified chunks leave by sendfile where memory is a file. AUTO: not to this same host,
 * where the kernel would copy for the reader out of cold pages what send() leaves in the cache. */
enum transport_sendfile { TRANSPORT_SENDFILE_AUTO, TRANSPORT_SENDFILE_YES, TRANSPORT_SENDFILE_NO };

/* How the movers wait and receive. AUTO: epoll, which is no slower (mover_loop_uring.h). */
enum transport_engine { TRANSPORT_ENGINE_AUTO, TRANSPORT_ENGINE_EPOLL, TRANSPORT_ENGINE_URING };

struct transport_config {
	const char *listen_host; /* address or name of the data port; borrowed for the call */
	uint16_t listen_port;    /* 0 = any */
	uint32_t num_movers;     /* threads; 0 = chosen from the CPUs */
	uint32_t connections;    /* data connections of a TCP leg; 0 = default */
	uint32_t hash_threads;   /* for digests; twice as many while readers wait; 0 = chosen */
	int64_t stall_ns;        /* no byte for this long while the source is not waiting: 0.7 s */
	int64_t dead_ns;         /* a host that acknowledges nothing for this long is gone: 5 s */
	int64_t hello_ns;        /* a stranger must present a valid ticket within this: 2 s */
	uint64_t agent_inc;
	/* Congestion control of all connections; borrowed for the call. NULL: cubic where there is
	 * one. Empty: the host's own. Another that the kernel has not is a failure to open. */
	const char *congestion;
	/* Of legs from and to another datacenter (TRANSPORT_FAR). */
	struct transport_far {
		/* Of what this agent sends. NULL: bbr where there is one. Otherwise as above, and
		 * what is missing or empty means the same as near. */
		const char *congestion;
		uint32_t connections; /* as above; 0 = as many as a leg may have */
		uint64_t limit;       /* bytes a second that all of them read by TCP; 0: no cap */
	} far;
	/* Bytes a second of chunks that leave, in all and to one peer's address; 0: no cap. */
	uint64_t rate_out, rate_out_peer;
	enum transport_sendfile sendfile;
	enum transport_engine engine;
	const struct rdma_config *rdma; /* borrowed for the call; NULL: none */
};

enum transport_flag {                    /* of a leg */
	TRANSPORT_REQUIRE_RDMA = 1 << 0, /* without RDMA it fails: TH_E_NO_PATH, and why */
	TRANSPORT_NO_RDMA = 1 << 1,
	TRANSPORT_FAR = 1 << 2, /* the other end is in another datacenter */
};

enum transport_event_kind {
	TRANSPORT_PROGRESS = 1, /* leg_in: the verified prefix grew (coalesced: 5 ms) */
	TRANSPORT_DONE,         /* leg_in: all chunks are verified */
	TRANSPORT_FAILED,       /* leg_in: see code, text, source_failed */
	TRANSPORT_STOPPED,      /* leg_in: after transport_stop */
	TRANSPORT_DONOR_LEFT,   /* leg_in: its donor is not read any more. Before its end */
	TRANSPORT_BEGAN,        /* leg_out: its reader has come */
	TRANSPORT_STALLED,      /* leg_out: the reader has not taken a byte for stall_ns */
	TRANSPORT_RESUMED,      /* leg_out: it takes bytes again */
	TRANSPORT_CHANGED,      /* leg_out, and a copy's leg: see chunk. Its end follows */
	TRANSPORT_ENDED,        /* leg_out: over; bytes_moved says how much was sent */
	TRANSPORT_HASHED,       /* every digest of the part is known (transport_hash) */
	TRANSPORT_HASH_FAILED,  /* row can not be read any more; otherwise as HASH_STOPPED */
	TRANSPORT_HASH_STOPPED, /* after transport_hash_stop: no thread reads the part any more */
};

struct transport_event {
	enum transport_event_kind kind;
	uint64_t leg; /* PROGRESS .. ENDED: as given */
	uint64_t tag; /* HASHED, HASH_FAILED, HASH_STOPPED */
	/* HASH_FAILED, ENDED and a copy's FAILED with TH_E_STALE_MEMORY: which row of the source it
	 * was, UINT32_MAX when that is not known. */
	uint32_t row;
	uint32_t chunk; /* CHANGED */
	/* FAILED: TH_E_CHECKSUM, TH_E_NO_PATH, TH_E_PROTOCOL, TH_E_LAYOUT, TH_E_STALE_MEMORY (of
	 * the part itself when !source_failed), or that of the source's refusal. HASH_FAILED: as
	 * FAILED. STOPPED: TH_E_CANCELLED. ENDED: 0 when the reader said that it has all,
	 * TH_E_CANCELLED after a fence, TH_E_CONTRACT after CHANGED, else the cause. */
	int code;
	bool source_failed;   /* FAILED: another source may do better */
	bool overwrote;       /* FAILED, STOPPED: at least one byte was written to the part */
	uint64_t bytes_moved; /* of chunks, with those that moved again; ENDED: sent */
	/* DONE, FAILED, STOPPED: were here already (reuse.h); came from the donor (donor.h). */
	uint64_t bytes_reused, bytes_donated;
	uint64_t transfer_ns, verify_ns;
	/* "rdma", "rdma-copy", "tcp", "local", "cuda-ipc" (a copy by GPUs alone); ENDED: "tcp
	 * sendfile" when that was used. What it was at the end: see fallback. */
	char transport[32];
	/* PROGRESS, DONE, FAILED, STOPPED: why the leg went, or went on, without RDMA; of a copy,
	 * why GPUs do not do it alone. Empty where it did not, or the agent has none. */
	char fallback[TH_CTL_TEXT_BYTES];
	/* Of a leg by "rdma-copy": why its bytes go through buffers of the agents. */
	char copy[TH_CTL_TEXT_BYTES];
	char text[TH_CTL_TEXT_BYTES];
};

struct transport_counters { /* since the start, for status; a coherent snapshot is not promised */
	uint64_t bytes_in, bytes_out, bytes_local, bytes_reused;
	uint64_t bytes_out_file; /* of bytes_out: by sendfile */
	uint64_t bytes_in_rdma;  /* of bytes_in: by READs */
	uint64_t bytes_in_copy;  /* of bytes_in_rdma: through buffers, see copy */
	uint64_t bytes_staged;   /* copied at a source, to be READ there */
	uint64_t bytes_donated;  /* of chunks that donors had */
	uint64_t donor_failures; /* chunks of donors that were damaged, or could not be read */
	uint64_t chunks_verified, chunks_refetched, checksum_failures;
	uint64_t legs_in, legs_out, legs_failed, legs_fenced;
	/* Legs in that did without RDMA although the agent has it; paths that broke under one; legs
	 * out that could not be served by RDMA, or not to their end. */
	uint64_t rdma_fallbacks, rdma_paths_broken, rdma_declines;
	uint64_t gpu_fallbacks;     /* copies that GPUs began, and the agent went on with */
	uint64_t strangers_refused; /* data port: bad magic, bad ticket, too slow, too long */
	uint64_t tickets_refused;   /* of those: they came with a ticket for nothing */
};

/* Binds the data port and starts the movers. *err gets the sentence (a port in use...). */
int transport_open(const struct transport_config *config, struct th_err *err,
	struct transport **ret_transport);
/*
 * Ends all threads that touch parts, and all connections; events not yet polled are dropped. Blocks
 * up to a second. Then the memory of parts may be given back, also that which NICs know, and the
 * transport can only be closed.
 */
void transport_halt(struct transport *transport);
/* The same first, if that was not done. Nothing is registered with NICs any more. NULL: nothing. */
void transport_close(struct transport *transport);

/* "host:port" with numbers, the real port. Of a wildcard address it is of no use to a peer. */
const char *transport_address(const struct transport *transport);
/* "epoll" or "io_uring"; why (may be NULL): a sentence, when it is not what was asked for. */
const char *transport_engine(const struct transport *transport, const char **ret_why);
/* Of what is sent to other datacenters; empty: as near. And by how many connections it reads. */
const char *transport_far(const struct transport *transport, uint32_t *ret_connections);
int transport_fd(const struct transport *transport); /* readable: poll it */
/*
 * For regions (rdma/memory/region.h); all of them are released before transport_close. NULL: none.
 */
struct rdma *transport_rdma(const struct transport *transport);
/* Pairs of rails that legs in have used, for status (rdma/leg/rail_pairs.h). Returns how many. */
struct path;
uint32_t transport_paths(const struct transport *transport, struct path *ret_paths, uint32_t count);
/* Takes up to count events; returns how many. */
uint32_t transport_poll(
	struct transport *transport, struct transport_event *ret_events, uint32_t count);
void transport_counters(const struct transport *transport, struct transport_counters *ret_counters);

/*
 * The reader's side. part is retained until the leg's last event. It is filled from its verified
 * prefix on. leg numbers are not 0 and unique in the life of the transport, for legs in and out
 * each. flags: enum transport_flag. address is numeric, "host:port" or "[host]:port"; else
 * TH_E_INVALID: a look-up could block.
 * donor: NULL, or another version of the same shard in the memory of this host, which nobody
 * changes: chunks with the same digest come from there (leg/donor.h). It is retained and read until
 * DONOR_LEFT or the leg's last event.
 * After a negative result (also -ENOMEM) there is no leg and no event.
 */
int transport_pull(struct transport *transport, uint64_t leg, const char *address,
	const struct th_ticket *ticket, struct xfer_part *part, struct xfer_part *donor,
	unsigned flags);
/* DONOR_LEFT follows, unless the leg has ended. Of a leg without a donor, too. */
void transport_drop_donor(struct transport *transport, uint64_t leg);
/* The same between two parts of this agent; follows the prefix of source as it grows. The source's
 * side has no events: DONE, FAILED or STOPPED of the leg ends both. TH_E_LAYOUT: other chunks;
 * TH_E_CHECKSUM: part wants digests and source has none. */
int transport_copy(struct transport *transport, uint64_t leg, struct xfer_part *source,
	struct xfer_part *part);
/* Asks; the leg's last event still comes (STOPPED, or what came first). Unknown leg: nothing. */
void transport_stop(struct transport *transport, uint64_t leg);

/* The source's side. */
/* Who presents the ticket reads the part, which is retained until ENDED. Good for one. flags: FAR
 * or none. */
void transport_expect(struct transport *transport, uint64_t leg, const struct th_ticket *ticket,
	struct xfer_part *part, unsigned flags);
/* Who waits with this ticket is told that nothing comes of it, and why. Nobody: nothing. */
void transport_refuse(
	struct transport *transport, const struct th_ticket *ticket, int code, const char *text);
void transport_fence(struct transport *transport, uint64_t leg);

/*
 * Digests of a published part, in the background; its prefix grows with them. A part without verify
 * gets its whole prefix at once. tag is the caller's. One of HASHED, HASH_FAILED, HASH_STOPPED
 * comes; then no thread reads the part for this any more. A stop that finds the job done gets no
 * second event.
 */
int transport_hash(struct transport *transport, uint64_t tag, struct xfer_part *part);
void transport_hash_stop(struct transport *transport, uint64_t tag);

#endif
