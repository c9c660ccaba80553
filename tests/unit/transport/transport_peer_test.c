/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport against peers that misbehave: a reader and a source played by the test over
 * plain sockets. What they do must end their own leg and nothing else.
 */
#include "tests/support/transport/transport_peer.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "transport/leg/frame.h"
#include "transport/transport.h"

#define LEG 5

/*
 * ---- a reader played by the test --------------------------------------------------------------
 */

struct fake_reader {
	int control, data;
	uint8_t key[FRAME_KEY_BYTES];
};

static struct fake_reader
enter(struct peer_setup *s)
{
	struct fake_reader reader;
	reader.control = peer_enter(s, LEG, s->part, reader.key);
	reader.data = peer_join(s, LEG, reader.key);
	return reader;
}

static void
expect_ended(struct peer_setup *s, struct fake_reader *reader, int code)
{
	const struct transport_event *ended = rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, LEG);
	cr_assert_eq(ended->code, code, "%d %s", ended->code, ended->text);
	peer_expect_closed(reader->control);
	peer_expect_closed(reader->data);
	peer_finish(s);
}

Test(transport_peer, reader_asks_for_chunks_that_do_not_exist__ended)
{
	static const uint32_t bad[][2] = {{8, 1}, {7, 2}, {UINT32_MAX, 1}, {UINT32_MAX, 16}, {0, 0},
		{0, 17}, {0, UINT32_MAX}};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct peer_setup *s = peer_start(8);
		struct fake_reader reader = enter(s);
		peer_ask(reader.data, LEG, bad[i][0], bad[i][1]);
		expect_ended(s, &reader, TH_E_PROTOCOL);
	}
}

Test(transport_peer, reader_asks_for_too_much_at_once__ended)
{
	struct peer_setup *s = peer_start(0);
	struct fake_reader reader = enter(s);
	for (uint32_t i = 0; i < 17; i++)
		peer_ask(reader.data, LEG, i % 8, 1);
	expect_ended(s, &reader, TH_E_PROTOCOL);
}

static void
take_chunk(struct peer_setup *s, struct fake_reader *reader, uint32_t chunk)
{
	peer_ask(reader->data, LEG, chunk, 1);
	peer_take_data(s, reader->data, chunk);
}

/* Each time the source hashes the chunk again: as often as an honest reader asks, not more. */
Test(transport_peer, reader_asks_for_one_chunk_again_and_again__ended)
{
	struct peer_setup *s = peer_start(8);
	struct fake_reader reader = enter(s);
	for (int i = 0; i < 3; i++)
		take_chunk(s, &reader, 2);
	peer_ask(reader.data, LEG, 2, 1);
	const struct transport_event *ended = rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, LEG);
	cr_assert_eq(ended->code, TH_E_PROTOCOL);
	cr_assert_null(rig_find(s->agent, TRANSPORT_CHANGED, LEG));
	expect_ended(s, &reader, TH_E_PROTOCOL);
}

/* The second question comes while the chunk is on its way: that proves nothing. */
Test(transport_peer, reader_asks_twice_at_once__nobody_is_accused)
{
	for (int copied = 0; copied < 2; copied++) {
		struct peer_setup *s = peer_start(8);
		struct xfer_part *mapped = s->part;
		if (copied) {
			rig_shard_to_file(&s->shard);
			s->part = rig_part_of(&s->shard, RIG_FILE, true);
			xfer_part_add_digests(s->part, 0, xfer_part_digest(mapped, 0), 8);
			xfer_part_advance(s->part, 8);
		}
		struct fake_reader reader = enter(s);
		int other = peer_dial(s->agent);
		peer_put_frame(other,
			&(struct frame){.kind = FRAME_JOIN, .leg = LEG, .bytes = FRAME_KEY_BYTES},
			reader.key, FRAME_KEY_BYTES);
		peer_ask(reader.data, LEG, 2, 1);
		struct pollfd begun = {.fd = reader.data, .events = POLLIN};
		cr_assert_eq(poll(&begun, 1, 20000), 1);
		peer_ask(other, LEG, 2, 1);
		peer_take_data(s, other, 2);
		peer_take_data(s, reader.data, 2);
		take_chunk(s, &reader, 3);
		peer_put_frame(
			reader.control, &(struct frame){.kind = FRAME_BYE, .leg = LEG}, NULL, 0);
		cr_assert_eq(rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, LEG)->code, 0);
		cr_assert_null(rig_find(s->agent, TRANSPORT_CHANGED, LEG));
		close(other);
		if (copied)
			xfer_part_release(mapped);
		expect_ended(s, &reader, 0);
	}
}

/* Asked for once it is sent as it is: only who complains makes the source look. */
Test(transport_peer, memory_changed__second_question_is_answered_by_refused)
{
	struct peer_setup *s = peer_start(8);
	struct fake_reader reader = enter(s);
	s->shard.tensors[0][5 * CHUNK + 77] ^= 1;
	take_chunk(s, &reader, 5);
	peer_ask(reader.data, LEG, 5, 1);
	const struct transport_event *changed = rig_wait(&s->rig, s->agent, TRANSPORT_CHANGED, LEG);
	cr_assert_eq(changed->chunk, 5);
	char text[TH_CTL_TEXT_BYTES] = "";
	struct frame frame = peer_get_frame(reader.control);
	if (frame.kind == FRAME_PROGRESS) {
		static uint8_t digests[8 * 16];
		cr_assert_eq(frame.bytes, sizeof(digests));
		peer_get(reader.control, digests, sizeof(digests));
		frame = peer_get_frame(reader.control);
	}
	cr_assert_eq(frame.kind, FRAME_REFUSED);
	cr_assert_eq(frame.count, (uint32_t)-TH_E_CHECKSUM);
	cr_assert_lt(frame.bytes, sizeof(text));
	peer_get(reader.control, text, (size_t)frame.bytes);
	cr_assert(strstr(text, "chunk 5"), "%s", text);
	/* It leaves the end to the reader, or to its shell. */
	cr_assert_null(rig_find(s->agent, TRANSPORT_ENDED, LEG));
	transport_fence(s->agent->transport, LEG);
	expect_ended(s, &reader, TH_E_CONTRACT);
}

Test(transport_peer, reader_names_another_leg__ended)
{
	struct peer_setup *s = peer_start(8);
	struct fake_reader reader = enter(s);
	peer_ask(reader.data, LEG + 1, 0, 1);
	expect_ended(s, &reader, TH_E_PROTOCOL);
}

Test(transport_peer, reader_sends_noise__ended)
{
	uint8_t noise[256];
	memset(noise, 0xa5, sizeof(noise));
	struct peer_setup *s = peer_start(8);
	struct fake_reader reader = enter(s);
	peer_put(reader.data, noise, sizeof(noise));
	expect_ended(s, &reader, TH_E_PROTOCOL);
	s = peer_start(8);
	reader = enter(s);
	peer_put(reader.control, noise, sizeof(noise));
	expect_ended(s, &reader, TH_E_PROTOCOL);
	s = peer_start(8);
	reader = enter(s);
	peer_ask(reader.control, LEG, 0, 1);
	expect_ended(s, &reader, TH_E_PROTOCOL);
}

/* What is announced is never waited for, and no memory is taken for it. */
Test(transport_peer, reader_announces_what_no_frame_can_have__ended)
{
	static const struct frame bad[] = {
		{.kind = FRAME_BYE, .leg = LEG, .bytes = UINT64_MAX},
		{.kind = FRAME_ALIVE, .leg = LEG, .count = 1, .bytes = UINT64_C(1) << 40},
		{.kind = FRAME_HELLO, .leg = LEG, .bytes = FRAME_HELLO_BYTES},
		{.kind = FRAME_PROGRESS, .leg = LEG, .count = 8, .bytes = FRAME_PAYLOAD_MAX},
		{.kind = FRAME_READ, .leg = LEG, .count = 1, .bytes = UINT64_MAX},
		{.kind = FRAME_DATA, .leg = LEG, .count = 1, .bytes = UINT64_MAX},
	};
	for (size_t i = 0; i < 2 * sizeof(bad) / sizeof(bad[0]); i++) {
		struct peer_setup *s = peer_start(8);
		struct fake_reader reader = enter(s);
		peer_put_frame(i % 2 ? reader.data : reader.control, &bad[i / 2], NULL, 0);
		expect_ended(s, &reader, TH_E_PROTOCOL);
	}
}

Test(transport_peer, reader_opens_too_many_connections__ended)
{
	struct peer_setup *s = peer_start(8);
	struct fake_reader reader = enter(s);
	int fds[16];
	for (int i = 0; i < 16; i++) {
		fds[i] = peer_dial(s->agent);
		peer_put_frame(fds[i],
			&(struct frame){.kind = FRAME_JOIN, .leg = LEG, .bytes = FRAME_KEY_BYTES},
			reader.key, FRAME_KEY_BYTES);
	}
	rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, LEG);
	for (int i = 0; i < 16; i++)
		peer_expect_closed(fds[i]);
	expect_ended(s, &reader, TH_E_PROTOCOL);
}

Test(transport_peer, reader_leaves_without_a_word__ended)
{
	struct peer_setup *s = peer_start(8);
	struct fake_reader reader = enter(s);
	close(reader.control);
	const struct transport_event *ended = rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, LEG);
	cr_assert_eq(ended->code, TH_E_NO_PATH);
	peer_expect_closed(reader.data);
	peer_finish(s);
}

/* Reads bytes of chunks until so many have come. */
static void
take(int fd, uint64_t bytes)
{
	static uint8_t sink[MIB];
	while (bytes > 0) {
		size_t want = bytes < sizeof(sink) ? (size_t)bytes : sizeof(sink);
		ssize_t got = recv(fd, sink, want, 0);
		cr_assert_gt(got, 0);
		bytes -= (uint64_t)got;
	}
}

Test(transport_peer, reader_that_takes_nothing__stalled_resumed_stalled_fenced)
{
	struct peer_setup *s = peer_start(8);
	struct fake_reader reader = enter(s);
	/* More than the kernel holds for a reader that does not read. */
	peer_ask(reader.data, LEG, 0, 8);
	rig_wait(&s->rig, s->agent, TRANSPORT_STALLED, LEG);
	cr_assert_null(rig_find(s->agent, TRANSPORT_RESUMED, LEG));
	take(reader.data, 8 * (CHUNK + FRAME_BYTES));
	rig_wait(&s->rig, s->agent, TRANSPORT_RESUMED, LEG);
	s->agent->num_events = 0;
	/* Now it has all it asked for and asks for no more: still it takes no byte. */
	rig_wait(&s->rig, s->agent, TRANSPORT_STALLED, LEG);
	transport_fence(s->agent->transport, LEG);
	expect_ended(s, &reader, TH_E_CANCELLED);
}

Test(transport_peer, reader_asks_for_many_in_one_read__gets_them_in_order)
{
	struct peer_setup *s = peer_start(8);
	struct fake_reader reader = enter(s);
	static uint8_t data[CHUNK];
	peer_ask(reader.data, LEG, 2, 3);
	for (uint32_t c = 2; c < 5; c++) {
		struct frame frame = peer_get_frame(reader.data);
		cr_assert_eq(frame.kind, FRAME_DATA);
		cr_assert_eq(frame.first, c);
		cr_assert_eq(frame.bytes, CHUNK);
		peer_get(reader.data, data, CHUNK);
		cr_assert_eq(memcmp(data, s->shard.tensors[0] + c * CHUNK, CHUNK), 0);
	}
	peer_put_frame(reader.control, &(struct frame){.kind = FRAME_BYE, .leg = LEG}, NULL, 0);
	const struct transport_event *ended = rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, LEG);
	cr_assert_eq(ended->bytes_moved, 3 * CHUNK);
	expect_ended(s, &reader, 0);
}

/* A shard of many rows, all of them the same memory. */
struct endless {
	struct manifest manifest;
	struct chunk_table *table;
	struct xfer_part *part;
};

static void
endless_init(struct endless *endless, uint32_t count, uint64_t bytes, uint8_t *memory)
{
	struct manifest_row *rows = calloc(count, sizeof(*rows));
	char(*names)[16] = calloc(count, sizeof(*names));
	uint8_t **tensors = calloc(count, sizeof(*tensors));
	struct th_err err;
	for (uint32_t i = 0; i < count; i++) {
		snprintf(names[i], sizeof(names[i]), "t%08u", i);
		rows[i] = (struct manifest_row){
			.name = names[i], .dtype = 1, .ndim = 1, .local_shape = {bytes}};
		tensors[i] = memory;
	}
	cr_assert_eq(manifest_build(rows, count, NULL, NULL, &err, &endless->manifest), 0);
	endless->table = chunk_table_new(&endless->manifest);
	endless->part = xfer_part_new(endless->table, tensors, count, false, NULL, NULL);
	free(rows);
	free(names);
	free(tensors);
}

static void
endless_fini(struct endless *endless)
{
	xfer_part_release(endless->part);
	chunk_table_release(endless->table);
	manifest_free(&endless->manifest);
}

static void *
advance_all(void *arg)
{
	struct xfer_part *part = arg;
	for (uint32_t c = 1; c < xfer_part_table(part)->num_chunks; c++)
		xfer_part_advance(part, c);
	return NULL;
}

/* The prefix grows all the time, and each growth looks at connections that are just ending. */
Test(transport_peer, reader_drops_connections_that_wait__others_go_on)
{
	struct peer_setup *s = peer_start(8);
	struct xfer_part *small = s->part;
	struct endless endless;
	uint8_t byte;
	pthread_t thread;
	endless_init(&endless, 1, 400000 * CHUNK, s->shard.tensors[0]);
	uint32_t last = endless.table->num_chunks - 1;
	s->part = endless.part;
	struct fake_reader reader = enter(s);
	pthread_create(&thread, NULL, advance_all, endless.part);
	for (int i = 0; i < 2000 && xfer_part_prefix(endless.part) < last; i++) {
		int fd = peer_dial(s->agent);
		peer_put_frame(fd,
			&(struct frame){.kind = FRAME_JOIN, .leg = LEG, .bytes = FRAME_KEY_BYTES},
			reader.key, FRAME_KEY_BYTES);
		peer_ask(fd, LEG, last, 1);
		shutdown(fd, SHUT_WR);
		cr_assert_leq(recv(fd, &byte, 1, 0), 0);
		close(fd);
	}
	pthread_join(thread, NULL);
	cr_assert_null(rig_find(s->agent, TRANSPORT_ENDED, LEG));
	close(reader.control);
	close(reader.data);
	rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, LEG);
	rig_fini(&s->rig);
	endless_fini(&endless);
	s->part = small;
	peer_finish(s);
}

/*
 * ---- a source played by the test --------------------------------------------------------------
 */

struct fake_source {
	struct peer_setup *s; /* its shard is the content; its part is not used */
	struct rig_shard copy;
	struct xfer_part *to;
	int door, control, data;
};

static int
take_caller(int door)
{
	struct timeval patience = {.tv_sec = 10};
	int fd = accept(door, NULL, NULL);
	cr_assert_geq(fd, 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	return fd;
}

/* Up to the HELLO of the reader. mss 0: the system's; else the kernel queues little for us. */
static struct fake_source
be_asked_for(struct xfer_part *part, int mss)
{
	struct fake_source source = {.s = peer_start(8), .data = -1};
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t bytes = sizeof(address);
	char name[64];
	uint8_t payload[FRAME_HELLO_BYTES];
	struct th_ticket ticket = rig_ticket(LEG);
	rig_shard_init(&source.copy, peer_eight_chunks, 1, 0);
	source.to = part ? xfer_part_retain(part) : rig_part(&source.copy, true);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	source.door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (mss != 0) {
		int window = 4096;
		setsockopt(source.door, IPPROTO_TCP, TCP_MAXSEG, &mss, sizeof(mss));
		setsockopt(source.door, SOL_SOCKET, SO_RCVBUF, &window, sizeof(window));
		/* So small a window makes the kernel itself pause now and then. */
		source.s->agent = rig_add_agent(&source.s->rig, 50 * STALL_NS, 1);
	}
	cr_assert_eq(bind(source.door, (struct sockaddr *)&address, sizeof(address)), 0);
	cr_assert_eq(listen(source.door, 8), 0);
	getsockname(source.door, (struct sockaddr *)&address, &bytes);
	snprintf(name, sizeof(name), "127.0.0.1:%u", ntohs(address.sin_port));
	cr_assert_eq(
		transport_pull(source.s->agent->transport, LEG, name, &ticket, source.to, NULL, 0),
		0);
	source.control = take_caller(source.door);
	cr_assert_eq(peer_get_frame(source.control).kind, FRAME_HELLO);
	peer_get(source.control, payload, sizeof(payload));
	return source;
}

static struct fake_source
be_asked(void)
{
	return be_asked_for(NULL, 0);
}

static void
tell(struct fake_source *source, uint32_t prefix, uint32_t first, uint32_t count, uint8_t flags)
{
	uint8_t payload[64 * 16] = {0};
	struct frame frame = {.kind = FRAME_PROGRESS,
		.flags = flags,
		.leg = LEG,
		.first = first,
		.count = prefix,
		.bytes = count * 16u};
	if (count <= 8 && first <= 8 - count)
		frame_encode_digests(xfer_part_digest(source->s->part, first), count, payload);
	peer_put_frame(source->control, &frame, payload, count * 16u);
}

static void
welcome(struct fake_source *source)
{
	struct frame_welcome welcome = {.key = {7}, .bytes = 32 * MIB, .protocol = 1};
	uint8_t payload[FRAME_WELCOME_BYTES];
	frame_encode_welcome(&welcome, payload);
	peer_put_frame(source->control,
		&(struct frame){.kind = FRAME_WELCOME,
			.flags = FRAME_DIGESTS,
			.leg = LEG,
			.count = 8,
			.bytes = FRAME_WELCOME_BYTES},
		payload, sizeof(payload));
}

/* Up to the reader's first READ; digests of all chunks are told first. */
static struct fake_source
be_read(void)
{
	struct fake_source source = be_asked();
	uint8_t key[FRAME_KEY_BYTES];
	welcome(&source);
	tell(&source, 8, 0, 8, 0);
	source.data = take_caller(source.door);
	cr_assert_eq(peer_get_frame(source.data).kind, FRAME_JOIN);
	peer_get(source.data, key, sizeof(key));
	cr_assert_eq(key[0], 7);
	return source;
}

static void
give(struct fake_source *source, uint32_t chunk, uint8_t flip)
{
	uint8_t *data = source->s->shard.tensors[0] + chunk * CHUNK;
	data[99] ^= flip;
	peer_put_frame(source->data,
		&(struct frame){
			.kind = FRAME_DATA, .leg = LEG, .first = chunk, .count = 1, .bytes = CHUNK},
		data, CHUNK);
	data[99] ^= flip;
}

static void
leave(struct fake_source *source)
{
	if (source->data >= 0)
		close(source->data);
	close(source->control);
	close(source->door);
	rig_fini(&source->s->rig);
	source->s->rig.num_agents = 0;
	xfer_part_release(source->to);
	rig_shard_fini(&source->copy);
	peer_finish(source->s);
}

static const struct transport_event *
expect_failed(struct fake_source *source, int code)
{
	const struct transport_event *failed =
		rig_wait(&source->s->rig, source->s->agent, TRANSPORT_FAILED, LEG);
	cr_assert_eq(failed->code, code, "%d %s", failed->code, failed->text);
	cr_assert(failed->source_failed);
	return failed;
}

/* A slow link that many chunks share: none is whole, and who waits shall see that bytes come. */
Test(transport_peer, chunk_that_is_not_whole__its_bytes_are_counted)
{
	struct fake_source source = be_read();
	struct frame frame = peer_get_frame(source.data);
	cr_assert_eq(xfer_part_bytes_moved(source.to), 0);
	peer_put_frame(source.data,
		&(struct frame){.kind = FRAME_DATA,
			.leg = LEG,
			.first = frame.first,
			.count = 1,
			.bytes = CHUNK},
		source.s->shard.tensors[0] + frame.first * CHUNK, CHUNK / 2);
	while (xfer_part_bytes_moved(source.to) < CHUNK / 2) {
		rig_pump(&source.s->rig, 20);
		cr_assert_null(rig_find(source.s->agent, TRANSPORT_FAILED, LEG));
	}
	cr_assert_eq(xfer_part_bytes_moved(source.to), CHUNK / 2);
	cr_assert_eq(xfer_part_prefix(source.to), 0);
	leave(&source);
}

Test(transport_peer, byte_flipped_once__fetched_again)
{
	struct fake_source source = be_read();
	bool flipped = false;
	for (int given = 0; given < 9; given++) {
		struct frame frame = peer_get_frame(source.data);
		cr_assert_eq(frame.kind, FRAME_READ);
		uint8_t flip = frame.first == 3 && !flipped ? 1 : 0;
		flipped = flipped || flip;
		give(&source, frame.first, flip);
	}
	rig_wait(&source.s->rig, source.s->agent, TRANSPORT_DONE, LEG);
	cr_assert(rig_shards_equal(&source.s->shard, &source.copy));
	struct transport_counters counters = rig_counters(source.s->agent);
	cr_assert_eq(counters.chunks_refetched, 1);
	cr_assert_eq(counters.checksum_failures, 1);
	leave(&source);
}

Test(transport_peer, byte_flipped_always__failed_with_checksum)
{
	struct fake_source source = be_read();
	for (int times = 0; times < 12 && source.s->agent->num_events == 0; times++) {
		uint8_t header[FRAME_BYTES];
		struct frame frame;
		if (recv(source.data, header, sizeof(header), MSG_WAITALL) != sizeof(header))
			break;
		cr_assert_eq(frame_decode(header, &frame), 0);
		give(&source, frame.first, frame.first == 0 ? 1 : 0);
	}
	expect_failed(&source, TH_E_CHECKSUM);
	cr_assert_eq(xfer_part_prefix(source.to), 0);
	leave(&source);
}

/* The digests come after the bytes: what arrived is judged then, and fetched again then. */
Test(transport_peer, digests_after_the_bytes__judged_then)
{
	struct fake_source source = be_asked();
	uint8_t key[FRAME_KEY_BYTES];
	welcome(&source);
	source.data = take_caller(source.door);
	peer_get_frame(source.data);
	peer_get(source.data, key, sizeof(key));
	for (int given = 0; given < 8; given++) {
		uint32_t chunk = peer_get_frame(source.data).first;
		give(&source, chunk, chunk == 5 ? 1 : 0);
	}
	cr_assert_eq(xfer_part_prefix(source.to), 0);
	tell(&source, 8, 0, 8, 0);
	struct frame again = peer_get_frame(source.data);
	cr_assert_eq(again.first, 5);
	give(&source, 5, 0);
	rig_wait(&source.s->rig, source.s->agent, TRANSPORT_DONE, LEG);
	cr_assert(rig_shards_equal(&source.s->shard, &source.copy));
	leave(&source);
}

Test(transport_peer, source_sends_other_data_than_asked__failed)
{
	struct frame bad[] = {
		{.kind = FRAME_DATA, .leg = LEG, .first = 1, .count = 1, .bytes = CHUNK},
		{.kind = FRAME_DATA, .leg = LEG, .first = 0, .count = 1, .bytes = CHUNK - 1},
		{.kind = FRAME_DATA, .leg = LEG, .first = 0, .count = 1, .bytes = UINT64_MAX},
		{.kind = FRAME_DATA, .leg = LEG, .first = 0, .count = 2, .bytes = CHUNK},
		{.kind = FRAME_DATA, .leg = LEG + 1, .first = 0, .count = 1, .bytes = CHUNK},
		{.kind = FRAME_DATA, .leg = LEG, .first = UINT32_MAX, .count = 1, .bytes = CHUNK},
		{.kind = FRAME_READ, .leg = LEG, .first = 0, .count = 1},
		{.kind = FRAME_PROGRESS, .leg = LEG, .count = 8},
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct fake_source source = be_read();
		cr_assert_eq(peer_get_frame(source.data).first, 0);
		peer_put_frame(source.data, &bad[i], NULL, 0);
		const struct transport_event *failed = expect_failed(&source, TH_E_PROTOCOL);
		cr_assert(!failed->overwrote);
		leave(&source);
	}
}

/* On the control connection: what is announced is never waited for. */
Test(transport_peer, source_announces_what_no_frame_can_have__failed)
{
	static const struct frame bad[] = {
		{.kind = FRAME_PROGRESS, .leg = LEG, .count = 8, .bytes = UINT64_MAX - 15},
		{.kind = FRAME_PROGRESS, .leg = LEG, .count = 8, .bytes = FRAME_PAYLOAD_MAX + 16},
		{.kind = FRAME_PROGRESS, .leg = LEG, .count = 8, .bytes = 15},
		{.kind = FRAME_REFUSED, .leg = LEG, .count = 1, .bytes = UINT64_C(1) << 32},
		{.kind = FRAME_WELCOME, .leg = LEG, .count = 8, .bytes = UINT64_C(1) << 40},
		{.kind = FRAME_DATA, .leg = LEG, .count = 1, .bytes = CHUNK},
		{.kind = FRAME_BYE, .leg = LEG},
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct fake_source source = be_read();
		peer_put_frame(source.control, &bad[i], NULL, 0);
		expect_failed(&source, TH_E_PROTOCOL);
		leave(&source);
	}
}

Test(transport_peer, source_sends_more_than_asked__failed)
{
	struct fake_source source = be_read();
	for (int given = 0; given < 8; given++)
		give(&source, peer_get_frame(source.data).first, 0);
	/* Everything is here; one more may come too late to matter, or breaks the protocol. */
	give(&source, 0, 1);
	while (source.s->agent->num_events == 0)
		rig_pump(&source.s->rig, 100);
	cr_assert_eq(source.s->agent->events[0].kind, TRANSPORT_DONE);
	cr_assert(rig_shards_equal(&source.s->shard, &source.copy));
	leave(&source);
}

/*
 * It never reads what it is asked for and answers all the same: the questions pile up at the
 * reader, whose memory for them is bounded.
 */
Test(transport_peer, source_answers_before_it_is_asked__failed)
{
	static uint8_t memory[2 * MIB]; /* a chunk */
	struct endless endless;
	endless_init(&endless, 4000, sizeof(memory), memory);
	struct fake_source source = be_asked_for(endless.part, 88);
	struct frame_welcome hail = {.key = {7}, .bytes = endless.table->bytes, .protocol = 1};
	uint8_t payload[FRAME_WELCOME_BYTES];
	frame_encode_welcome(&hail, payload);
	peer_put_frame(source.control,
		&(struct frame){.kind = FRAME_WELCOME,
			.leg = LEG,
			.count = endless.table->num_chunks,
			.bytes = FRAME_WELCOME_BYTES},
		payload, sizeof(payload));
	source.data = take_caller(source.door);
	for (uint32_t c = 0; c < endless.table->num_chunks; c++) {
		if (rig_find(source.s->agent, TRANSPORT_FAILED, LEG))
			break;
		peer_put_frame(source.data,
			&(struct frame){.kind = FRAME_DATA,
				.leg = LEG,
				.first = c,
				.count = 1,
				.bytes = sizeof(memory)},
			memory, sizeof(memory));
		rig_pump(&source.s->rig, 0);
	}
	/* When this takes seconds, on a busy machine, the kernel gives the full socket up. */
	const struct transport_event *failed =
		rig_wait(&source.s->rig, source.s->agent, TRANSPORT_FAILED, LEG);
	cr_assert(failed->code == TH_E_PROTOCOL ||
			  (failed->code == TH_E_NO_PATH && strstr(failed->text, "timed out")),
		"%d %s", failed->code, failed->text);
	leave(&source);
	endless_fini(&endless);
}

Test(transport_peer, source_tells_nonsense__failed)
{
	for (int i = 0; i < 8; i++) {
		struct fake_source source = be_asked();
		if (i != 0)
			welcome(&source);
		if (i == 0)
			tell(&source, 8, 0, 8, 0); /* before the welcome */
		else if (i == 1)
			tell(&source, 9, 0, 8, 0); /* a prefix beyond the end */
		else if (i == 2)
			tell(&source, 8, 1, 7, 0); /* a gap */
		else if (i == 3)
			tell(&source, 8, 0, 9, 0); /* too many digests */
		else if (i == 4)
			tell(&source, 8, UINT32_MAX, 8, 0);
		else if (i == 5)
			welcome(&source); /* twice */
		else if (i == 6)
			tell(&source, 5, 0, 5, 0);
		else
			tell(&source, 8, 0, 8, FRAME_WAITING | 4); /* an unknown flag */
		if (i == 6)
			tell(&source, 4, 0, 0, 0); /* backwards */
		expect_failed(&source, TH_E_PROTOCOL);
		leave(&source);
	}
}

Test(transport_peer, source_sends_noise_for_a_welcome__failed)
{
	struct fake_source source = be_asked();
	uint8_t noise[512];
	memset(noise, 0x5a, sizeof(noise));
	peer_put(source.control, noise, sizeof(noise));
	expect_failed(&source, TH_E_PROTOCOL);
	leave(&source);
}

Test(transport_peer, source_refuses_with_control_characters__made_harmless)
{
	struct fake_source source = be_asked();
	static const char text[] = "no\n[31m\xff way";
	peer_put_frame(source.control,
		&(struct frame){
			.kind = FRAME_REFUSED, .leg = LEG, .count = 77, .bytes = sizeof(text) - 1},
		text, sizeof(text) - 1);
	const struct transport_event *failed = expect_failed(&source, TH_E_NO_PATH);
	cr_assert(strstr(failed->text, "no?[31m? way"), "%s", failed->text);
	leave(&source);
}

Test(transport_peer, source_that_sends_nothing__failed_after_the_stall_time)
{
	struct fake_source source = be_read();
	int64_t start_ns = th_now_ns();
	const struct transport_event *failed = expect_failed(&source, TH_E_NO_PATH);
	cr_assert_geq(th_now_ns() - start_ns, STALL_NS / 2);
	cr_assert_lt(th_now_ns() - start_ns, 20 * STALL_NS);
	cr_assert(strstr(failed->text, "sends nothing"), "%s", failed->text);
	leave(&source);
}

/* "I wait" is no excuse for chunks that it said it has. */
Test(transport_peer, source_that_pretends_to_wait__failed_after_the_stall_time)
{
	struct fake_source source = be_read();
	int64_t start_ns = th_now_ns();
	while (source.s->agent->num_events == 0 && th_now_ns() - start_ns < 20 * STALL_NS) {
		tell(&source, 8, 8, 0, FRAME_WAITING);
		rig_pump(&source.s->rig, 20);
	}
	expect_failed(&source, TH_E_NO_PATH);
	leave(&source);
}

/* Frozen while it waits itself: nothing says so any more, and that is the sign. */
Test(transport_peer, source_that_waits_and_falls_silent__failed)
{
	struct fake_source source = be_asked();
	uint8_t key[FRAME_KEY_BYTES];
	welcome(&source);
	tell(&source, 0, 0, 8, 0);
	source.data = take_caller(source.door);
	peer_get_frame(source.data);
	peer_get(source.data, key, sizeof(key));
	int64_t start_ns = th_now_ns();
	while (th_now_ns() - start_ns < 4 * STALL_NS) {
		tell(&source, 0, 8, 0, FRAME_WAITING);
		rig_pump(&source.s->rig, 20);
	}
	cr_assert_eq(source.s->agent->num_events, 0);
	expect_failed(&source, TH_E_NO_PATH);
	leave(&source);
}
