/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of how a leg asks a source that still receives, with a source played by the test.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/transport/transport_peer.h"
#include "transport/leg/frame.h"
#include "transport/transport.h"

#define LEG 5
#define CHUNKS 8u
#define CONNECTIONS 2u
#define QUIET_MS 200 /* what has not come by then is not expected */

struct source {
	struct peer_setup *s; /* its shard is the content */
	struct rig_shard copy;
	struct xfer_part *to;
	int door, control, data[CONNECTIONS];
	uint32_t asked;      /* so many chunks */
	uint32_t by[CHUNKS]; /* which connection asked for it, from 1; 0: none has */
};

static void
tell(struct source *source, uint32_t prefix, uint32_t digests)
{
	uint8_t payload[CHUNKS * 16] = {0};
	struct frame frame = {
		.kind = FRAME_PROGRESS, .leg = LEG, .count = prefix, .bytes = digests * 16u};

	if (digests > 0)
		frame_encode_digests(xfer_part_digest(source->s->part, 0), digests, payload);
	peer_put_frame(source->control, &frame, payload, digests * 16u);
}

static void
start(struct source *source, uint32_t prefix)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t bytes = sizeof(address);
	struct th_ticket ticket = rig_ticket(LEG);
	struct frame_welcome welcome = {.key = {7}, .bytes = CHUNKS * CHUNK, .protocol = 1};
	uint8_t payload[FRAME_WELCOME_BYTES];
	char name[64];

	*source = (struct source){.s = peer_start(CHUNKS)};
	struct rig_agent *agent = rig_add_agent(&source->s->rig, 40 * STALL_NS, CONNECTIONS);
	source->s->agent = agent;
	rig_shard_init(&source->copy, peer_eight_chunks, 1, 0);
	source->to = rig_part(&source->copy, true);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	source->door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(bind(source->door, (struct sockaddr *)&address, sizeof(address)), 0);
	cr_assert_eq(listen(source->door, 8), 0);
	getsockname(source->door, (struct sockaddr *)&address, &bytes);
	snprintf(name, sizeof(name), "127.0.0.1:%u", ntohs(address.sin_port));
	cr_assert_eq(transport_pull(agent->transport, LEG, name, &ticket, source->to, NULL, 0), 0);
	source->control = accept(source->door, NULL, NULL);
	cr_assert_eq(peer_get_frame(source->control).kind, FRAME_HELLO);
	peer_get(source->control, payload, FRAME_HELLO_BYTES);
	frame_encode_welcome(&welcome, payload);
	peer_put_frame(source->control,
		&(struct frame){.kind = FRAME_WELCOME,
			.flags = FRAME_DIGESTS,
			.leg = LEG,
			.count = CHUNKS,
			.bytes = FRAME_WELCOME_BYTES},
		payload, FRAME_WELCOME_BYTES);
	tell(source, prefix, CHUNKS);
	for (uint32_t i = 0; i < CONNECTIONS; i++) {
		source->data[i] = accept(source->door, NULL, NULL);
		cr_assert_eq(peer_get_frame(source->data[i]).kind, FRAME_JOIN);
		peer_get(source->data[i], payload, FRAME_KEY_BYTES);
	}
}

/* Takes the questions there are; waits for one at most so long. */
static bool
take_questions(struct source *source, int timeout_ms)
{
	struct pollfd fds[CONNECTIONS];

	for (uint32_t i = 0; i < CONNECTIONS; i++)
		fds[i] = (struct pollfd){.fd = source->data[i], .events = POLLIN};
	if (poll(fds, CONNECTIONS, timeout_ms) == 0)
		return false;
	for (uint32_t i = 0; i < CONNECTIONS; i++) {
		if (!(fds[i].revents & POLLIN))
			continue;
		struct frame frame = peer_get_frame(source->data[i]);
		cr_assert_eq(frame.kind, FRAME_READ);
		cr_assert_lt(frame.first, CHUNKS);
		source->by[frame.first] = i + 1;
		source->asked++;
	}
	return true;
}

static void
give(struct source *source, uint32_t chunk)
{
	peer_put_frame(source->data[source->by[chunk] - 1],
		&(struct frame){
			.kind = FRAME_DATA, .leg = LEG, .first = chunk, .count = 1, .bytes = CHUNK},
		source->s->shard.tensors[0] + chunk * CHUNK, CHUNK);
}

static void
finish(struct source *source)
{
	rig_wait(&source->s->rig, source->s->agent, TRANSPORT_DONE, LEG);
	cr_assert(rig_shards_equal(&source->s->shard, &source->copy));
	for (uint32_t i = 0; i < CONNECTIONS; i++)
		close(source->data[i]);
	close(source->control);
	close(source->door);
	rig_fini(&source->s->rig);
	source->s->rig.num_agents = 0;
	xfer_part_release(source->to);
	rig_shard_fini(&source->copy);
	peer_finish(source->s);
}

/* As in the middle of a chain: each chunk comes alone, with all of the link. */
Test(transport_chain, source_receives_too__one_connection_asks_in_order)
{
	struct source source;

	start(&source, 1);
	for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
		while (source.by[chunk] == 0)
			cr_assert(
				take_questions(&source, 20000), "chunk %u is not asked for", chunk);
		while (take_questions(&source, chunk < 2 ? QUIET_MS : 0))
			;
		for (uint32_t i = 0; i < CHUNKS; i++)
			cr_assert(source.by[i] == 0 || source.by[i] == source.by[0], "chunk %u", i);
		if (chunk > 0)
			tell(&source, chunk + 1, 0);
		give(&source, chunk);
	}
	finish(&source);
}

Test(transport_chain, source_is_far_ahead__all_connections_ask)
{
	struct source source;
	bool both = false;

	start(&source, 1);
	while (take_questions(&source, QUIET_MS))
		;
	cr_assert_eq(source.asked, 1);
	tell(&source, CHUNKS, 0);
	for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
		/* The second one asks for chunk 1 before the first one gets any. */
		while (source.by[chunk] == 0 || source.asked < 2)
			cr_assert(
				take_questions(&source, 20000), "chunk %u is not asked for", chunk);
		give(&source, chunk);
		both = both || source.by[chunk] != source.by[0];
	}
	cr_assert(both);
	finish(&source);
}
