/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_peer - see transport_peer.h.
 */
#include "tests/support/transport/transport_peer.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

const uint64_t peer_eight_chunks[1] = {32 * MIB};

struct peer_setup *
peer_start(uint32_t prefix)
{
	struct peer_setup *s = calloc(1, sizeof(*s));
	s->agent = rig_add_agent(&s->rig, STALL_NS, 1);
	rig_shard_init(&s->shard, peer_eight_chunks, 1, 42);
	s->part = rig_part(&s->shard, true);
	rig_add_digests(s->part);
	xfer_part_advance(s->part, prefix);
	return s;
}

void
peer_finish(struct peer_setup *s)
{
	rig_fini(&s->rig);
	xfer_part_release(s->part);
	rig_shard_fini(&s->shard);
	free(s);
}

/*
 * ---- plain sockets ----------------------------------------------------------------------------
 */

void
peer_dial_with(int fd, const struct rig_agent *agent)
{
	const char *colon = strrchr(transport_address(agent->transport), ':');
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
	struct timeval patience = {.tv_sec = 10};
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	cr_assert_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
}

int
peer_dial(const struct rig_agent *agent)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	peer_dial_with(fd, agent);
	return fd;
}

void
peer_put(int fd, const void *data, size_t bytes)
{
	ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
	(void)sent;
}

void
peer_get(int fd, void *data, size_t bytes)
{
	uint8_t *at = data;
	while (bytes > 0) {
		ssize_t got = recv(fd, at, bytes, MSG_WAITALL);
		/* By SIGCHLD, with no handler: the parent of a GPU's process is a thread that
		 * blocks it, so it is sent, and another one is interrupted to ignore it. */
		if (got < 0 && errno == EINTR)
			continue;
		cr_assert_gt(got, 0, "%zu bytes missing, errno %d", bytes, errno);
		at += got;
		bytes -= (size_t)got;
	}
}

void
peer_put_frame(int fd, const struct frame *frame, const void *payload, size_t payload_bytes)
{
	uint8_t header[FRAME_BYTES];
	frame_encode(frame, header);
	peer_put(fd, header, sizeof(header));
	if (payload_bytes > 0)
		peer_put(fd, payload, payload_bytes);
}

struct frame
peer_get_frame(int fd)
{
	uint8_t header[FRAME_BYTES];
	struct frame frame;
	peer_get(fd, header, sizeof(header));
	cr_assert_eq(frame_decode(header, &frame), 0);
	return frame;
}

void
peer_expect_closed(int fd)
{
	uint8_t byte[4096];
	ssize_t got;
	while ((got = recv(fd, byte, sizeof(byte), 0)) > 0)
		continue;
	cr_assert(got == 0 || errno == ECONNRESET, "errno %d", errno);
	close(fd);
}

int
peer_descriptors(void)
{
	int count = 0;
	DIR *folder = opendir("/proc/self/fd");
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

/*
 * ---- a reader ---------------------------------------------------------------------------------
 */

int
peer_enter(struct peer_setup *s, uint64_t leg, struct xfer_part *part,
	uint8_t ret_key[FRAME_KEY_BYTES])
{
	struct frame_hello hello = {.ticket = rig_ticket(leg), .protocol = 1, .mode = 1};
	struct frame_welcome welcome;
	uint8_t payload[FRAME_WELCOME_BYTES];
	rig_offer(s->agent, leg, part);
	int control = peer_dial(s->agent);
	frame_encode_hello(&hello, payload);
	peer_put_frame(control,
		&(struct frame){.kind = FRAME_HELLO, .leg = leg, .bytes = FRAME_HELLO_BYTES},
		payload, FRAME_HELLO_BYTES);
	struct frame frame = peer_get_frame(control);
	cr_assert_eq(frame.kind, FRAME_WELCOME);
	cr_assert_eq(frame.count, xfer_part_table(part)->num_chunks);
	peer_get(control, payload, FRAME_WELCOME_BYTES);
	frame_decode_welcome(payload, &welcome);
	memcpy(ret_key, welcome.key, FRAME_KEY_BYTES);
	return control;
}

int
peer_join(struct peer_setup *s, uint64_t leg, const uint8_t key[FRAME_KEY_BYTES])
{
	int data = peer_dial(s->agent);
	peer_put_frame(data,
		&(struct frame){.kind = FRAME_JOIN, .leg = leg, .bytes = FRAME_KEY_BYTES}, key,
		FRAME_KEY_BYTES);
	return data;
}

void
peer_ask(int fd, uint64_t leg, uint32_t first, uint32_t count)
{
	peer_put_frame(fd,
		&(struct frame){.kind = FRAME_READ, .leg = leg, .first = first, .count = count},
		NULL, 0);
}

void
peer_take_data(const struct peer_setup *s, int fd, uint32_t chunk)
{
	static uint8_t data[CHUNK];
	struct frame frame = peer_get_frame(fd);
	cr_assert_eq(frame.kind, FRAME_DATA);
	cr_assert_eq(frame.first, chunk);
	peer_get(fd, data, CHUNK);
	cr_assert_eq(memcmp(data, s->shard.tensors[0] + chunk * CHUNK, CHUNK), 0);
}
