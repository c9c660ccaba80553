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
 * Every frame begins with a 32-byte header, little-endian: magic, kind, flags, 16 zero bits, the
 * reader's leg number, first, count, payload bytes. Every field is checked before it is used; what
 * a kind does not use is zero.
 */
#ifndef TH_TRANSPORT_FRAME_H
#define TH_TRANSPORT_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/ctl.h"
#include "transport/chunk.h"

#define FRAME_BYTES 32u
#define FRAME_KEY_BYTES 16u
#define FRAME_HELLO_BYTES 24u                       /* ticket, protocol, mode */
#define FRAME_WELCOME_BYTES 32u                     /* key, bytes of the shard, protocol, zero */
#define FRAME_DIGESTS_MAX 4096u                     /* in one PROGRESS: 64 KiB */
#define FRAME_READ_COUNT_MAX 16u                    /* chunks asked for in one READ */
#define FRAME_PAYLOAD_MAX (FRAME_DIGESTS_MAX * 16u) /* of all but DATA */
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
	 * Meanwhile it asks for nothing, and is not frozen. */
	FRAME_ALIVE,
};

enum frame_flag {
	FRAME_DIGESTS = 1 << 0, /* WELCOME: the source has the publisher's digests */
	FRAME_WAITING = 1 << 1, /* PROGRESS: this leg waits for bytes that the source waits for */
	FRAME_VERIFIES =
		1 << 2, /* HELLO: the reader takes no chunk but by the publisher's digest */
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
void frame_encode_digests(const struct th_hash *digests, uint32_t count, uint8_t *ret_data);
void frame_decode_digests(const uint8_t *data, uint32_t count, struct th_hash *ret_digests);

/* Takes the same time wherever the first difference is. */
bool frame_key_equal(const uint8_t a[FRAME_KEY_BYTES], const uint8_t b[FRAME_KEY_BYTES]);

#endif
