/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frame - the messages between two agents' data ports. Encoding and checking only; no I/O.
 *
 *   reader                                         source
 *     control:  HELLO(ticket) ------------------>
 *               <------------------------- WELCOME(leg key) or REFUSED(code, sentence)
 *               <------------------------- PROGRESS(prefix, digests)...
 *               ALIVE(looks)... ---------------->
 *               BYE ---------------------------->
 *     data:     JOIN(leg key) READ(chunk)... --->
 *               <------------------------- DATA(chunk) bytes...
 *
 * Where both ends have RDMA, queue pairs take the place of the data connections. What is in the
 * payloads: rdma/leg/rdma_wire.h.
 *
 *     control:  HELLO, TAKES_RDMA -------------->
 *               <--------------- WELCOME, OFFERS_RDMA; then RAILS (the rails that serve the part)
 *                                or DECLINE(why not), and the leg goes by data connections; with
 *                                RDMA_LATER neither comes before memory is registered, and
 *                                meanwhile the leg goes by data connections
 *               OFFER(a rail of the source and its own queue pairs, per lane) ->
 *               <------- ACCEPT(the source's queue pairs, connected), KEYS..., MAP... or DECLINE
 *               ALIVE(prefix, chunks, bytes)... ->   the source does not see what is READ
 *               CHECK(chunk) ------------------->    it did not match: is it still as published?
 *               <------------------------- CHECK(chunk): it is; or REFUSED
 *               DECLINE(why) ------------------->    no RDMA any more in this leg
 *               <------------------------- DECLINE: the source's queue pairs are gone; the reader
 *                                          goes on by data connections
 *
 * A reader offers once in a leg. Who did not say TAKES_RDMA is sent none of these frames.
 *
 * Memory that no NIC reaches is staged: the source copies a chunk into a slot of its own
 * (rdma/memory/stage.h), and the reader READs it there. The reader says which chunk goes into which
 * slot, so it alone knows when a slot is free again.
 *
 *               <--------------- ACCEPT, STAGES(slots); KEYS: one for each slot. No MAP
 *               STAGE(chunk, slot) ------------->    nothing of what lay there is READ any more
 *               <--------------- STAGED(chunk, slot): it lies there, from the slot's beginning
 *
 * A chunk that did not match is staged again; there is no CHECK. Only who said TAKES_STAGED, too,
 * is served so.
 *
 * Every frame begins with a 32-byte header, little-endian: magic, kind, flags, 16 zero bits, the
 * reader's leg number, first, count, payload bytes. Every field is checked before it is used; what
 * a kind does not use is zero.
 */
#ifndef TH_TRANSPORT_LEG_FRAME_H
#define TH_TRANSPORT_LEG_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/ctl.h"
#include "transport/part/chunk.h"

#define FRAME_BYTES 32u
#define FRAME_KEY_BYTES 16u
#define FRAME_HELLO_BYTES 24u                       /* ticket, protocol, mode */
#define FRAME_WELCOME_BYTES 32u                     /* key, bytes of the shard, protocol, zero */
#define FRAME_DIGESTS_MAX 4096u                     /* in one PROGRESS: 64 KiB */
#define FRAME_READ_COUNT_MAX 16u                    /* chunks asked for in one READ */
#define FRAME_PAYLOAD_MAX (FRAME_DIGESTS_MAX * 16u) /* of all but DATA */
#define FRAME_ALIVE_BYTES 8u
#define FRAME_PROTOCOL 1u
#define FRAME_MODE_TCP 1u

enum frame_kind {
	FRAME_HELLO = 1, /* payload: the ticket... */
	FRAME_WELCOME,   /* count: chunks of the shard; payload: the leg's key... */
	FRAME_REFUSED,   /* count: the code, negated; payload: the sentence */
	FRAME_PROGRESS,  /* first: index of the first digest; count: the prefix; payload: digests */
	FRAME_BYE,
	FRAME_JOIN, /* payload: the leg's key */
	FRAME_READ, /* first, count: chunks */
	FRAME_DATA, /* first: the chunk; count: 1; payload: its bytes */
	/* count: of how many chunks the reader has seen whether it has them already; it grows.
	 * Meanwhile it asks for nothing, and is not frozen. With RDMA it counts the chunks that it
	 * has READ, too, and says first: its verified prefix, payload: the bytes that it has READ.
	 */
	FRAME_ALIVE,
	FRAME_RDMA_RAILS, /* count: rails; payload: them */
	FRAME_RDMA_OFFER, /* count: lanes; payload: the reader's ends */
	/* first: how many keys follow; count: lanes; payload: the other ends, and if it STAGES, the
	 * sentence why */
	FRAME_RDMA_ACCEPT,
	FRAME_RDMA_KEYS,    /* first, count: keys; payload: them, each with one rkey per lane */
	FRAME_RDMA_MAP,     /* first, count: extents; payload: where each lies */
	FRAME_RDMA_DECLINE, /* count: the code, negated; payload: the sentence */
	FRAME_CHECK,        /* first: the chunk; count: 1 */
	FRAME_STAGE,        /* first: the chunk; count: the slot that it shall be copied to */
	FRAME_STAGED,       /* the same: it is */
};

enum frame_flag {
	FRAME_DIGESTS = 1 << 0, /* WELCOME: the source has the publisher's digests */
	FRAME_WAITING = 1 << 1, /* PROGRESS: this leg waits for bytes that the source waits for */
	FRAME_VERIFIES =
		1 << 2, /* HELLO: the reader takes no chunk but by the publisher's digest */
	FRAME_TAKES_RDMA = 1 << 3,  /* HELLO: the reader could READ this shard */
	FRAME_OFFERS_RDMA = 1 << 4, /* WELCOME: RAILS follow */
	/* ACCEPT: chunks are READ out of slots, and first is how many there are. OFFER: this reader
	 * READs into slots and copies them to its memory; the source only tells people. */
	FRAME_STAGES = 1 << 5,
	FRAME_TAKES_STAGED = 1 << 6, /* HELLO: the reader knows STAGES */
	FRAME_RDMA_LATER = 1 << 7,   /* WELCOME: ... but not at once */
};

struct frame {
	enum frame_kind kind;
	uint8_t flags;
	uint64_t leg;
	uint32_t first, count;
	uint64_t bytes; /* of the payload */
};

struct frame_hello {
	struct th_ticket ticket;
	uint32_t protocol, mode;
};

struct frame_welcome {
	uint8_t key[FRAME_KEY_BYTES];
	uint64_t bytes; /* of the shard */
	uint32_t protocol;
};

void frame_encode(const struct frame *frame, uint8_t ret_data[FRAME_BYTES]);
/* TH_E_PROTOCOL: wrong magic, unknown kind or flag, or a length that this kind cannot have. */
TH_MUST_USE int frame_decode(const uint8_t data[FRAME_BYTES], struct frame *ret_frame);

void frame_encode_hello(const struct frame_hello *hello, uint8_t ret_data[FRAME_HELLO_BYTES]);
void frame_decode_hello(const uint8_t data[FRAME_HELLO_BYTES], struct frame_hello *ret_hello);
void frame_encode_welcome(
	const struct frame_welcome *welcome, uint8_t ret_data[FRAME_WELCOME_BYTES]);
void frame_decode_welcome(
	const uint8_t data[FRAME_WELCOME_BYTES], struct frame_welcome *ret_welcome);
void frame_encode_alive(uint64_t rdma_bytes, uint8_t ret_data[FRAME_ALIVE_BYTES]);
uint64_t frame_decode_alive(const uint8_t data[FRAME_ALIVE_BYTES]);
void frame_encode_digests(const struct th_hash *digests, uint32_t count, uint8_t *ret_data);
void frame_decode_digests(const uint8_t *data, uint32_t count, struct th_hash *ret_digests);

/* Takes the same time wherever the first difference is. */
bool frame_key_equal(const uint8_t a[FRAME_KEY_BYTES], const uint8_t b[FRAME_KEY_BYTES]);

#endif
