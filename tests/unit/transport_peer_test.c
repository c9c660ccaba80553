/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport against peers that misbehave: strangers at the data port, a reader and a
 * source played by the test over plain sockets. What they do must end their own leg and nothing
 * else.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "ipc/base/fd.h"
#include "ipc/base/rng.h"
#include "tests/support/transport_rig.h"
#include "transport/frame.h"
#include "transport/internal.h"
#include "transport/transport.h"

#define MIB (UINT64_C(1) << 20)
#define STALL_NS INT64_C(200000000)
#define CHUNK (4 * MIB)
#define LEG 5

static const uint64_t eight_chunks[] = {32 * MIB};

struct setup {
	struct rig rig;
	struct rig_agent *agent;
	struct rig_shard shard;
	struct xfer_part *part;
};

static struct setup *
start(uint32_t prefix)
{
	struct setup *s = calloc(1, sizeof(*s));
	s->agent = rig_add_agent(&s->rig, STALL_NS, 1);
	rig_shard_init(&s->shard, eight_chunks, 1, 42);
	s->part = rig_part(&s->shard, true);
	rig_add_digests(s->part);
	xfer_part_advance(s->part, prefix);
	return s;
}

static void
finish(struct setup *s)
{
	rig_fini(&s->rig);
	xfer_part_release(s->part);
	rig_shard_fini(&s->shard);
	free(s);
}

/*
 * ---- plain sockets ----------------------------------------------------------------------------
 */

static void
dial_with(int fd, const struct rig_agent *agent)
{
	const char *colon = strrchr(transport_address(agent->transport), ':');
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
	struct timeval patience = {.tv_sec = 10};
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	cr_assert_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
}

static int
dial(const struct rig_agent *agent)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	dial_with(fd, agent);
	return fd;
}

/* A hostile peer does not mind that nobody listens any more. */
static void
put(int fd, const void *data, size_t bytes)
{
	ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
	(void)sent;
}

static void
get(int fd, void *data, size_t bytes)
{
	cr_assert_eq(recv(fd, data, bytes, MSG_WAITALL), (ssize_t)bytes);
}

static void
put_frame(int fd, const struct frame *frame, const void *payload, size_t payload_bytes)
{
	uint8_t header[FRAME_BYTES];
	frame_encode(frame, header);
	put(fd, header, sizeof(header));
	if (payload_bytes > 0)
		put(fd, payload, payload_bytes);
}

static struct frame
get_frame(int fd)
{
	uint8_t header[FRAME_BYTES];
	struct frame frame;
	get(fd, header, sizeof(header));
	cr_assert_eq(frame_decode(header, &frame), 0);
	return frame;
}

static void
expect_closed(int fd)
{
	uint8_t byte[4096];
	ssize_t got;
	while ((got = recv(fd, byte, sizeof(byte), 0)) > 0)
		continue;
	cr_assert(got == 0 || errno == ECONNRESET, "errno %d", errno);
	close(fd);
}

/*
 * ---- strangers --------------------------------------------------------------------------------
 */

Test(transport_peer, strangers__dropped_and_counted_while_a_leg_goes_on)
{
	struct setup *s = start(3);
	struct rig_agent *reader = rig_add_agent(&s->rig, STALL_NS, 2);
	struct rig_shard copy;
	rig_shard_init(&copy, eight_chunks, 1, 0);
	struct xfer_part *to = rig_part(&copy, true);
	rig_pull(s->agent, reader, 1, s->part, to);
	rig_wait_prefix(&s->rig, to, 3);

	static uint8_t noise[65536];
	uint8_t key[FRAME_KEY_BYTES] = {1}, hello[FRAME_HELLO_BYTES] = {0};
	struct th_rng rng;
	th_rng_init_number(&rng, 3);
	th_rng_bytes(&rng, noise, sizeof(noise));
	struct frame bad[] = {
		{.kind = FRAME_HELLO, .bytes = UINT64_MAX},
		{.kind = FRAME_HELLO, .bytes = FRAME_HELLO_BYTES + 1},
		{.kind = FRAME_JOIN, .bytes = UINT64_C(1) << 40},
		{.kind = FRAME_WELCOME, .bytes = FRAME_WELCOME_BYTES},
		{.kind = FRAME_READ, .count = 1},
		{.kind = FRAME_DATA, .count = 1, .bytes = 1},
		{.kind = FRAME_BYE},
		{.kind = FRAME_PROGRESS},
		{.kind = (enum frame_kind)0},
		{.kind = (enum frame_kind)9},
		{.kind = FRAME_HELLO, .bytes = FRAME_HELLO_BYTES, .flags = 1},
		{.kind = FRAME_HELLO, .bytes = FRAME_HELLO_BYTES, .count = 1},
	};
	uint64_t expected = 0;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		int fd = dial(s->agent);
		put_frame(fd, &bad[i], noise, 256);
		expect_closed(fd);
		expected++;
	}
	for (size_t bytes = 33; bytes <= sizeof(noise); bytes = bytes * 3 + 1) {
		int fd = dial(s->agent);
		put(fd, noise, bytes);
		expect_closed(fd);
		expected++;
	}
	int fd = dial(s->agent); /* the key of no leg */
	put_frame(fd, &(struct frame){.kind = FRAME_JOIN, .leg = 1, .bytes = FRAME_KEY_BYTES}, key,
		sizeof(key));
	expect_closed(fd);
	fd = dial(s->agent); /* a protocol that does not exist */
	put_frame(fd, &(struct frame){.kind = FRAME_HELLO, .bytes = FRAME_HELLO_BYTES}, hello,
		sizeof(hello));
	expect_closed(fd);
	fd = dial(s->agent); /* half a header */
	put(fd, noise, 7);
	close(fd);
	expected += 3;
	fd = dial(s->agent); /* nothing at all: a health check, not counted */
	close(fd);
	while (rig_counters(s->agent).strangers_refused < expected)
		rig_pump(&s->rig, 10);
	cr_assert_eq(s->agent->num_events, 0);
	cr_assert_eq(reader->num_events, 0);
	xfer_part_advance(s->part, 8);
	rig_wait(&s->rig, reader, TRANSPORT_DONE, 1);
	cr_assert(rig_shards_equal(&s->shard, &copy));
	cr_assert_eq(rig_counters(s->agent).strangers_refused, expected);
	rig_fini(&s->rig);
	s->rig.num_agents = 0;
	xfer_part_release(to);
	rig_shard_fini(&copy);
	finish(s);
}

Test(transport_peer, slow_stranger__dropped_when_its_time_is_over)
{
	struct setup *s = start(8);
	s->rig.hello_ns = 200000000;
	struct rig_agent *agent = rig_add_agent(&s->rig, STALL_NS, 1);
	int64_t start_ns = th_now_ns();
	int fd = dial(agent);
	put(fd, "T", 1);
	expect_closed(fd);
	int64_t took_ns = th_now_ns() - start_ns;
	cr_assert_gt(took_ns, 150000000);
	cr_assert_lt(took_ns, INT64_C(2000000000));
	finish(s);
}

Test(transport_peer, hundreds_of_idle_strangers__a_leg_still_gets_in)
{
	enum { STRANGERS = 400 };
	int fds[STRANGERS];
	struct setup *s = start(8);
	struct rig_agent *reader = rig_add_agent(&s->rig, STALL_NS, 2);
	struct rig_shard copy;
	rig_shard_init(&copy, eight_chunks, 1, 0);
	struct xfer_part *to = rig_part(&copy, true);
	for (int i = 0; i < STRANGERS; i++)
		fds[i] = dial(s->agent);
	rig_pull(s->agent, reader, 1, s->part, to);
	rig_wait(&s->rig, reader, TRANSPORT_DONE, 1);
	for (int i = 0; i < STRANGERS; i++)
		close(fds[i]);
	rig_fini(&s->rig);
	s->rig.num_agents = 0;
	xfer_part_release(to);
	rig_shard_fini(&copy);
	finish(s);
}

/* No descriptor left, not even the spare one: the door waits, it does not spin. */
Test(transport_peer, no_descriptors_left__door_rests_and_opens_again)
{
	struct setup *s = start(8);
	int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct rlimit limit;
	int first, last, fd;
	th_fd_close(&s->agent->transport->spare_fd);
	first = last = open("/dev/null", O_RDONLY | O_CLOEXEC);
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = (rlim_t)client + 64;
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	while ((fd = fcntl(first, F_DUPFD_CLOEXEC, 0)) >= 0)
		last = fd;
	dial_with(client, s->agent);
	struct timespec used[2];
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used[0]);
	poll(NULL, 0, 300);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used[1]);
	int64_t used_ns = (used[1].tv_sec - used[0].tv_sec) * INT64_C(1000000000) +
			  (used[1].tv_nsec - used[0].tv_nsec);
	cr_assert_lt(used_ns, 100000000);
	close(first);
	close(last);
	put_frame(client, &(struct frame){.kind = FRAME_BYE}, NULL, 0);
	expect_closed(client);
	cr_assert_geq(rig_counters(s->agent).strangers_refused, 1);
	finish(s);
}

/*
 * ---- a reader played by the test --------------------------------------------------------------
 */

struct fake_reader {
	int control, data;
	uint8_t key[FRAME_KEY_BYTES];
};

static struct fake_reader
enter(struct setup *s)
{
	struct fake_reader reader;
	struct frame_hello hello = {.ticket = rig_ticket(LEG), .protocol = 1, .mode = 1};
	struct frame_welcome welcome;
	uint8_t payload[FRAME_WELCOME_BYTES];
	rig_offer(s->agent, LEG, s->part);
	reader.control = dial(s->agent);
	frame_encode_hello(&hello, payload);
	put_frame(reader.control,
		&(struct frame){.kind = FRAME_HELLO, .leg = LEG, .bytes = FRAME_HELLO_BYTES},
		payload, FRAME_HELLO_BYTES);
	while (s->agent->num_offers > 0)
		rig_pump(&s->rig, 10);
	struct frame frame = get_frame(reader.control);
	cr_assert_eq(frame.kind, FRAME_WELCOME);
	cr_assert_eq(frame.count, xfer_part_table(s->part)->num_chunks);
	get(reader.control, payload, FRAME_WELCOME_BYTES);
	frame_decode_welcome(payload, &welcome);
	memcpy(reader.key, welcome.key, sizeof(reader.key));
	reader.data = dial(s->agent);
	put_frame(reader.data,
		&(struct frame){.kind = FRAME_JOIN, .leg = LEG, .bytes = FRAME_KEY_BYTES},
		reader.key, FRAME_KEY_BYTES);
	return reader;
}

static void
expect_ended(struct setup *s, struct fake_reader *reader, int code)
{
	const struct transport_event *ended = rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, LEG);
	cr_assert_eq(ended->code, code, "%d %s", ended->code, ended->text);
	expect_closed(reader->control);
	expect_closed(reader->data);
	finish(s);
}

static void
ask(int fd, uint64_t leg, uint32_t first, uint32_t count)
{
	put_frame(fd,
		&(struct frame){.kind = FRAME_READ, .leg = leg, .first = first, .count = count},
		NULL, 0);
}

Test(transport_peer, reader_asks_for_chunks_that_do_not_exist__ended)
{
	static const uint32_t bad[][2] = {{8, 1}, {7, 2}, {UINT32_MAX, 1}, {UINT32_MAX, 16}, {0, 0},
		{0, 17}, {0, UINT32_MAX}};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct setup *s = start(8);
		struct fake_reader reader = enter(s);
		ask(reader.data, LEG, bad[i][0], bad[i][1]);
		expect_ended(s, &reader, TH_E_PROTOCOL);
	}
}

Test(transport_peer, reader_asks_for_too_much_at_once__ended)
{
	struct setup *s = start(0);
	struct fake_reader reader = enter(s);
	for (int i = 0; i < 17; i++)
		ask(reader.data, LEG, 0, 1);
	expect_ended(s, &reader, TH_E_PROTOCOL);
}

Test(transport_peer, reader_names_another_leg__ended)
{
	struct setup *s = start(8);
	struct fake_reader reader = enter(s);
	ask(reader.data, LEG + 1, 0, 1);
	expect_ended(s, &reader, TH_E_PROTOCOL);
}

Test(transport_peer, reader_sends_noise__ended)
{
	uint8_t noise[256];
	memset(noise, 0xa5, sizeof(noise));
	struct setup *s = start(8);
	struct fake_reader reader = enter(s);
	put(reader.data, noise, sizeof(noise));
	expect_ended(s, &reader, TH_E_PROTOCOL);
	s = start(8);
	reader = enter(s);
	put(reader.control, noise, sizeof(noise));
	expect_ended(s, &reader, TH_E_PROTOCOL);
	s = start(8);
	reader = enter(s);
	ask(reader.control, LEG, 0, 1);
	expect_ended(s, &reader, TH_E_PROTOCOL);
}

Test(transport_peer, reader_opens_too_many_connections__ended)
{
	struct setup *s = start(8);
	struct fake_reader reader = enter(s);
	int fds[16];
	for (int i = 0; i < 16; i++) {
		fds[i] = dial(s->agent);
		put_frame(fds[i],
			&(struct frame){.kind = FRAME_JOIN, .leg = LEG, .bytes = FRAME_KEY_BYTES},
			reader.key, FRAME_KEY_BYTES);
	}
	rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, LEG);
	for (int i = 0; i < 16; i++)
		expect_closed(fds[i]);
	expect_ended(s, &reader, TH_E_PROTOCOL);
}

Test(transport_peer, reader_leaves_without_a_word__ended)
{
	struct setup *s = start(8);
	struct fake_reader reader = enter(s);
	close(reader.control);
	const struct transport_event *ended = rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, LEG);
	cr_assert_eq(ended->code, TH_E_NO_PATH);
	expect_closed(reader.data);
	finish(s);
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
	struct setup *s = start(8);
	struct fake_reader reader = enter(s);
	/* More than the kernel holds for a reader that does not read. */
	ask(reader.data, LEG, 0, 8);
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
	struct setup *s = start(8);
	struct fake_reader reader = enter(s);
	static uint8_t data[CHUNK];
	ask(reader.data, LEG, 2, 3);
	for (uint32_t c = 2; c < 5; c++) {
		struct frame frame = get_frame(reader.data);
		cr_assert_eq(frame.kind, FRAME_DATA);
		cr_assert_eq(frame.first, c);
		cr_assert_eq(frame.bytes, CHUNK);
		get(reader.data, data, CHUNK);
		cr_assert_eq(memcmp(data, s->shard.tensors[0] + c * CHUNK, CHUNK), 0);
	}
	put_frame(reader.control, &(struct frame){.kind = FRAME_BYE, .leg = LEG}, NULL, 0);
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
	struct setup *s = start(8);
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
		int fd = dial(s->agent);
		put_frame(fd,
			&(struct frame){.kind = FRAME_JOIN, .leg = LEG, .bytes = FRAME_KEY_BYTES},
			reader.key, FRAME_KEY_BYTES);
		ask(fd, LEG, last, 1);
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
	s->rig.num_agents = 0;
	endless_fini(&endless);
	s->part = small;
	finish(s);
}

/*
 * ---- a source played by the test --------------------------------------------------------------
 */

struct fake_source {
	struct setup *s; /* its shard is the content; its part is not used */
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
	struct fake_source source = {.s = start(8), .data = -1};
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t bytes = sizeof(address);
	char name[64];
	uint8_t payload[FRAME_HELLO_BYTES];
	struct th_ticket ticket = rig_ticket(LEG);
	rig_shard_init(&source.copy, eight_chunks, 1, 0);
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
	cr_assert_eq(transport_pull(source.s->agent->transport, LEG, name, &ticket, source.to), 0);
	source.control = take_caller(source.door);
	cr_assert_eq(get_frame(source.control).kind, FRAME_HELLO);
	get(source.control, payload, sizeof(payload));
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
	put_frame(source->control, &frame, payload, count * 16u);
}

static void
welcome(struct fake_source *source)
{
	struct frame_welcome welcome = {.key = {7}, .bytes = 32 * MIB, .protocol = 1};
	uint8_t payload[FRAME_WELCOME_BYTES];
	frame_encode_welcome(&welcome, payload);
	put_frame(source->control,
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
	cr_assert_eq(get_frame(source.data).kind, FRAME_JOIN);
	get(source.data, key, sizeof(key));
	cr_assert_eq(key[0], 7);
	return source;
}

static void
give(struct fake_source *source, uint32_t chunk, uint8_t flip)
{
	uint8_t *data = source->s->shard.tensors[0] + chunk * CHUNK;
	data[99] ^= flip;
	put_frame(source->data,
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
	finish(source->s);
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

Test(transport_peer, byte_flipped_once__fetched_again)
{
	struct fake_source source = be_read();
	bool flipped = false;
	for (int given = 0; given < 9; given++) {
		struct frame frame = get_frame(source.data);
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
	get_frame(source.data);
	get(source.data, key, sizeof(key));
	for (int given = 0; given < 8; given++) {
		uint32_t chunk = get_frame(source.data).first;
		give(&source, chunk, chunk == 5 ? 1 : 0);
	}
	cr_assert_eq(xfer_part_prefix(source.to), 0);
	tell(&source, 8, 0, 8, 0);
	struct frame again = get_frame(source.data);
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
		cr_assert_eq(get_frame(source.data).first, 0);
		put_frame(source.data, &bad[i], NULL, 0);
		const struct transport_event *failed = expect_failed(&source, TH_E_PROTOCOL);
		cr_assert(!failed->overwrote);
		leave(&source);
	}
}

Test(transport_peer, source_sends_more_than_asked__failed)
{
	struct fake_source source = be_read();
	for (int given = 0; given < 8; given++)
		give(&source, get_frame(source.data).first, 0);
	/* Everything is here; one more may come too late to matter, or breaks the protocol. */
	give(&source, 0, 1);
	while (source.s->agent->num_events == 0)
		rig_pump(&source.s->rig, 100);
	cr_assert_eq(source.s->agent->events[0].kind, TRANSPORT_DONE);
	cr_assert(rig_shards_equal(&source.s->shard, &source.copy));
	leave(&source);
}

/*
 * It never reads what it is asked for and answers all the same: the questions pile up at the reader,
 * whose memory for them is bounded.
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
	put_frame(source.control,
		&(struct frame){.kind = FRAME_WELCOME,
			.leg = LEG,
			.count = endless.table->num_chunks,
			.bytes = FRAME_WELCOME_BYTES},
		payload, sizeof(payload));
	source.data = take_caller(source.door);
	for (uint32_t c = 0; c < endless.table->num_chunks; c++) {
		if (rig_find(source.s->agent, TRANSPORT_FAILED, LEG))
			break;
		put_frame(source.data,
			&(struct frame){.kind = FRAME_DATA,
				.leg = LEG,
				.first = c,
				.count = 1,
				.bytes = sizeof(memory)},
			memory, sizeof(memory));
		rig_pump(&source.s->rig, 0);
	}
	expect_failed(&source, TH_E_PROTOCOL);
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
	put(source.control, noise, sizeof(noise));
	expect_failed(&source, TH_E_PROTOCOL);
	leave(&source);
}

Test(transport_peer, source_refuses_with_control_characters__made_harmless)
{
	struct fake_source source = be_asked();
	static const char text[] = "no\n[31m\xff way";
	put_frame(source.control,
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
	get_frame(source.data);
	get(source.data, key, sizeof(key));
	int64_t start_ns = th_now_ns();
	while (th_now_ns() - start_ns < 4 * STALL_NS) {
		tell(&source, 0, 8, 0, FRAME_WAITING);
		rig_pump(&source.s->rig, 20);
	}
	cr_assert_eq(source.s->agent->num_events, 0);
	expect_failed(&source, TH_E_NO_PATH);
	leave(&source);
}
