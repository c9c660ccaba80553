/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_peer - a transport with one part to serve, and a peer of it that the test plays over
 * plain sockets. One thread; a failed check ends the test.
 */
#ifndef TH_TESTS_SUPPORT_TRANSPORT_TRANSPORT_PEER_H
#define TH_TESTS_SUPPORT_TRANSPORT_TRANSPORT_PEER_H

#include "tests/support/transport/transport_rig.h"
#include "transport/leg/frame.h"

#define STALL_NS INT64_C(500000000)
#define CHUNK (4 * MIB)

extern const uint64_t peer_eight_chunks[1];

struct peer_setup {
	struct rig rig;
	struct rig_agent *agent;
	struct rig_shard shard;
	struct xfer_part *part;
};

/* The part has all digests and this prefix. */
struct peer_setup *peer_start(uint32_t prefix);
void peer_finish(struct peer_setup *s);

void peer_dial_with(int fd, const struct rig_agent *agent);
int peer_dial(const struct rig_agent *agent);
/* A hostile peer does not mind that nobody listens any more. */
void peer_put(int fd, const void *data, size_t bytes);
void peer_get(int fd, void *data, size_t bytes);
void peer_put_frame(int fd, const struct frame *frame, const void *payload, size_t payload_bytes);
struct frame peer_get_frame(int fd);
/* As the reader of this leg: its ticket gets the part; returns the control connection. */
int peer_enter(struct peer_setup *s, uint64_t leg, struct xfer_part *part,
	uint8_t ret_key[FRAME_KEY_BYTES]);
/* Returns one more data connection of a leg that was entered. */
int peer_join(struct peer_setup *s, uint64_t leg, const uint8_t key[FRAME_KEY_BYTES]);
void peer_ask(int fd, uint64_t leg, uint32_t first, uint32_t count);
/* The chunk is the next that comes, whole. */
void peer_take_data(const struct peer_setup *s, int fd, uint32_t chunk);
/* Reads to the end; closes. */
void peer_expect_closed(int fd);
/* That this process has open, and what /proc counts besides: to be compared. */
int peer_descriptors(void);

#endif
