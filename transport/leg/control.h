/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control - a leg's control connection: whole frames in, a buffer out. Acceptor only.
 */
#ifndef TH_TRANSPORT_LEG_CONTROL_H
#define TH_TRANSPORT_LEG_CONTROL_H

#include "ipc/base/ctl.h"
#include "transport/leg/frame.h"
#include "transport/loop/mover_loop.h"

struct control {
	struct stream stream;
	/* A whole frame. Negative: it breaks the protocol, the connection ends by it. */
	int (*handle)(struct control *control, const struct frame *frame, const uint8_t *payload);
	/* The buffer is empty: puts the next frame in, if there is one. May be NULL. */
	void (*refill)(struct control *control);
	void (*broken)(struct control *control, int code);
	void (*connected)(struct control *control);
	uint8_t header[FRAME_BYTES];
	struct frame frame; /* decoded from a whole header */
	uint32_t have;      /* bytes of header and payload */
	uint8_t *payload;   /* owns */
	uint32_t payload_max, payload_kinds;
	uint8_t *out; /* owns; FRAME_BYTES + FRAME_PAYLOAD_MAX */
	uint32_t out_bytes, out_sent;
};

/* payload_kinds: a mask of enum frame_kind, of those that may have a payload here. */
void control_init(struct control *control, uint32_t payload_max, uint32_t payload_kinds);
void control_fini(struct control *control); /* the stream is closed */
TH_MUST_USE int control_open(struct control *control, struct loop *loop, int fd, bool connecting);
/* Appends a frame; there is always room for the few that a leg sends. */
void control_put(struct control *control, const struct frame *frame, const uint8_t *payload);
/* A sentence from the peer: data, made fit for a log line. bytes: TH_CTL_TEXT_BYTES at most. */
void control_sentence(const uint8_t *payload, size_t bytes, char ret_text[TH_CTL_TEXT_BYTES + 1]);

#endif
