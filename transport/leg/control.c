/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control - see control.h: collects whole frames, sends what is put in.
 */
#include "transport/leg/control.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/utf8.h"

static struct control *
control_of(struct stream *stream)
{
	return loop_container(stream, struct control, stream);
}

static uint32_t
control_recv_want(struct stream *stream, struct iovec *ret_ranges)
{
	struct control *control = control_of(stream);
	uint32_t have = control->have;
	if (have < FRAME_BYTES)
		ret_ranges[0] = (struct iovec){control->header + have, FRAME_BYTES - have};
	else
		ret_ranges[0] = (struct iovec){control->payload + (have - FRAME_BYTES),
			FRAME_BYTES + control->frame.bytes - have};
	return 1;
}

static int
control_recv_got(struct stream *stream, const struct iovec *ranges, size_t bytes)
{
	struct control *control = control_of(stream);
	(void)ranges;
	bool was_header = control->have < FRAME_BYTES;
	control->have += (uint32_t)bytes;
	if (control->have < FRAME_BYTES)
		return 0;
	if (was_header) {
		int rc = frame_decode(control->header, &control->frame);
		if (rc < 0)
			return rc;
		bool may = (control->payload_kinds >> control->frame.kind & 1) != 0;
		if (control->frame.bytes > (may ? control->payload_max : 0))
			return TH_E_PROTOCOL;
	}
	if (control->have < FRAME_BYTES + control->frame.bytes)
		return 0;
	control->have = 0;
	return control->handle(control, &control->frame, control->payload);
}

static uint32_t
control_send_want(struct stream *stream, struct iovec *ret_ranges)
{
	struct control *control = control_of(stream);
	if (control->out_sent == control->out_bytes) {
		control->out_sent = control->out_bytes = 0;
		if (control->refill)
			control->refill(control);
	}
	if (control->out_bytes == 0)
		return 0;
	ret_ranges[0] = (struct iovec){
		control->out + control->out_sent, control->out_bytes - control->out_sent};
	return 1;
}

static int
control_send_sent(struct stream *stream, size_t bytes)
{
	control_of(stream)->out_sent += (uint32_t)bytes;
	return 0;
}

static void
control_connected(struct stream *stream)
{
	struct control *control = control_of(stream);
	control->connected(control);
}

static void
control_broken(struct stream *stream, int code)
{
	struct control *control = control_of(stream);
	control->broken(control, code);
}

static const struct stream_ops control_ops = {
	.recv_want = control_recv_want,
	.recv_got = control_recv_got,
	.send_want = control_send_want,
	.send_sent = control_send_sent,
	.connected = control_connected,
	.broken = control_broken,
};

void
control_init(struct control *control, uint32_t payload_max, uint32_t payload_kinds)
{
	*control = (struct control){
		.stream.fd = -1, .payload_max = payload_max, .payload_kinds = payload_kinds};
	control->payload = th_calloc(1, payload_max);
	control->out = th_calloc(1, FRAME_BYTES + FRAME_PAYLOAD_MAX);
}

void
control_fini(struct control *control)
{
	TH_ASSERT(control->stream.fd < 0);
	free(control->payload);
	free(control->out);
}

int
control_open(struct control *control, struct loop *loop, int fd, bool connecting)
{
	return stream_open(&control->stream, loop, &control_ops, fd, connecting);
}

void
control_put(struct control *control, const struct frame *frame, const uint8_t *payload)
{
	TH_ASSERT(
		control->out_bytes + FRAME_BYTES + frame->bytes <= FRAME_BYTES + FRAME_PAYLOAD_MAX);
	frame_encode(frame, control->out + control->out_bytes);
	control->out_bytes += FRAME_BYTES;
	if (payload)
		memcpy(control->out + control->out_bytes, payload, frame->bytes);
	control->out_bytes += (uint32_t)frame->bytes;
}

void
control_sentence(const uint8_t *payload, size_t bytes, char ret_text[TH_CTL_TEXT_BYTES + 1])
{
	memcpy(ret_text, payload, bytes);
	th_utf8_clean(ret_text, bytes);
	ret_text[bytes] = '\0';
}
