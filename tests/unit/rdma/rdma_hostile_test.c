/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the talk about RDMA with peers that say what they must not, or nothing, at each of its
 * states. The peer is the test, over plain sockets.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "tests/support/rdma/fake_rdma.h"
#include "tests/support/transport/transport_pair.h"
#include "tests/support/transport/transport_peer.h"
#include "transport/rdma/leg/rail_pairs.h"
#include "transport/rdma/leg/rdma_wire.h"
#include "transport/transport_own.h"

#define LEG 5
#define HELLO_NS INT64_C(300000000) /* that a reader waits for each answer */

static const uint64_t eight_chunks[] = {32 * MIB};
static int64_t stall_ns = CALM_NS;
static unsigned pull_flags;
static uint8_t welcome_flags = FRAME_DIGESTS | FRAME_OFFERS_RDMA;

/* A pair with one rail each, of which the test plays one side. */
static struct pair *
start(int64_t hello_ns)
{
	struct pair *s = calloc(1, sizeof(*s));
	s->rig.num_rails = 1;
	s->rig.hello_ns = hello_ns;
	s->source_agent = rig_add_agent(&s->rig, stall_ns, 0);
	s->reader_agent = rig_add_agent(&s->rig, stall_ns, 0);
	rig_shard_init(&s->source, eight_chunks, 1, 42);
	rig_shard_init(&s->reader, eight_chunks, 1, 0);
	rig_register(s->source_agent, &s->source);
	rig_register(s->reader_agent, &s->reader);
	pair_parts(s, true);
	rig_add_digests(s->from);
	xfer_part_advance(s->from, 8);
	return s;
}

static void
put(int fd, enum frame_kind kind, uint32_t first, uint32_t count, const void *payload, size_t bytes)
{
	struct frame frame = {
		.kind = kind, .leg = LEG, .first = first, .count = count, .bytes = bytes};
	peer_put_frame(fd, &frame, payload, bytes);
}

/* The next frame of that kind, with its payload; what comes before is passed over. */
static struct frame
get(int fd, enum frame_kind kind, uint8_t payload[FRAME_PAYLOAD_MAX])
{
	for (;;) {
		struct frame frame = peer_get_frame(fd);
		if (frame.bytes > 0)
			peer_get(fd, payload, frame.bytes);
		if (frame.kind == kind)
			return frame;
	}
}

static const struct endpoint good_end = {.link = VERBS_LINK_ETHERNET,
	.gid = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 9},
	.mtu_bytes = 4096,
	.reads_out = 16,
	.reads_in = 16,
	.qpns = {1000, 1001},
	.psns = {1, 2}};

static void
put_lane(int fd, enum frame_kind kind, uint32_t first, uint32_t rail, const struct endpoint *end)
{
	struct wire_lane lane = {.rail = rail, .made = end != NULL};
	uint8_t payload[WIRE_LANE_BYTES];
	if (end)
		lane.end = *end;
	wire_encode_lanes(&lane, 1, payload);
	put(fd, kind, first, 1, payload, sizeof(payload));
}

/*
 * ---- the test is the reader -------------------------------------------------------------------
 */

/* RAILS have come. */
static int
enter(struct pair *s)
{
	static uint8_t payload[FRAME_PAYLOAD_MAX];
	struct frame_hello hello = {.ticket = rig_ticket(LEG), .protocol = 1, .mode = 1};
	rig_offer(s->source_agent, LEG, s->from);
	int fd = peer_dial(s->source_agent);
	frame_encode_hello(&hello, payload);
	struct frame frame = {.kind = FRAME_HELLO,
		.flags = FRAME_VERIFIES | FRAME_TAKES_RDMA,
		.leg = LEG,
		.bytes = FRAME_HELLO_BYTES};
	peer_put_frame(fd, &frame, payload, FRAME_HELLO_BYTES);
	frame = peer_get_frame(fd);
	cr_assert_eq(frame.kind, FRAME_WELCOME);
	cr_assert(frame.flags & FRAME_OFFERS_RDMA);
	peer_get(fd, payload, frame.bytes);
	frame = get(fd, FRAME_RDMA_RAILS, payload);
	cr_assert_eq(frame.count, 1);
	return fd;
}

static void
offer_wrong(int fd, uint32_t which)
{
	struct endpoint end = good_end;
	uint32_t rail = 0;
	switch (which) {
	case 0:
		rail = 1; /* there is one */
		break;
	case 1:
		end.mtu_bytes = 1000;
		break;
	case 2:
		end.qpns[1] = end.qpns[0];
		break;
	case 3:
		end.psns[0] = 1 << 24;
		break;
	case 4:
		end.reads_in = 0;
		break;
	case 5:
		memset(end.gid, 0, sizeof(end.gid));
		break;
	default:
		put_lane(fd, FRAME_RDMA_OFFER, 0, 0, NULL);
		return;
	}
	put_lane(fd, FRAME_RDMA_OFFER, 0, rail, &end);
}

static void
say_wrong(int fd, uint32_t which)
{
	uint8_t bytes[FRAME_ALIVE_BYTES] = {1}, huge[FRAME_ALIVE_BYTES] = {[7] = 0x80};
	switch (which) {
	case 0:
		put(fd, FRAME_CHECK, 0, 1, NULL, 0); /* of nothing that it has READ */
		break;
	case 1:
		put(fd, FRAME_ALIVE, 9, 1, bytes, sizeof(bytes)); /* of eight */
		break;
	case 2:
		put(fd, FRAME_ALIVE, 1, 17, bytes, sizeof(bytes));
		break;
	case 3:
		put(fd, FRAME_ALIVE, 1, 1, huge, sizeof(huge));
		break;
	case 4:
		put(fd, FRAME_ALIVE, 1, 1, bytes, sizeof(bytes));
		put(fd, FRAME_ALIVE, 1, 1, bytes, sizeof(bytes));
		break;
	case 5:
		put(fd, FRAME_ALIVE, 2, 2, bytes, sizeof(bytes));
		put(fd, FRAME_ALIVE, 1, 3, bytes, sizeof(bytes));
		break;
	case 6:
		put(fd, FRAME_RDMA_RAILS, 0, 1, NULL, 0);
		break;
	case 7:
		put_lane(fd, FRAME_RDMA_ACCEPT, 1, 0, &good_end);
		break;
	default:
		put_lane(fd, FRAME_RDMA_OFFER, 0, 0, &good_end);
		put_lane(fd, FRAME_RDMA_OFFER, 0, 0, &good_end);
		break;
	}
}

static void
expect_ended(struct pair *s, int fd)
{
	const struct transport_event *ended =
		rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, LEG);
	cr_assert_eq(ended->code, TH_E_PROTOCOL, "%s", ended->text);
	close(fd);
	pair_finish(s);
}

Test(rdma_hostile, reader_offers_what_cannot_be__ended)
{
	for (uint32_t which = 0; which < 7; which++) {
		struct pair *s = start(0);
		int fd = enter(s);
		offer_wrong(fd, which);
		expect_ended(s, fd);
	}
}

Test(rdma_hostile, reader_says_what_it_must_not__ended)
{
	for (uint32_t which = 0; which < 9; which++) {
		struct pair *s = start(0);
		int fd = enter(s);
		say_wrong(fd, which);
		expect_ended(s, fd);
	}
}

/* Each chunk may be asked about as often as it may be fetched. */
Test(rdma_hostile, reader_asks_about_a_chunk_for_ever__ended)
{
	static uint8_t payload[FRAME_PAYLOAD_MAX];
	struct pair *s = start(0);
	int fd = enter(s);
	put_lane(fd, FRAME_RDMA_OFFER, 0, 0, &good_end);
	struct frame frame = get(fd, FRAME_RDMA_ACCEPT, payload);
	cr_assert_eq(frame.first, 1, "one key");
	cr_assert_eq(get(fd, FRAME_RDMA_MAP, payload).count, 1);
	for (uint32_t i = 0; i < 3; i++) {
		put(fd, FRAME_CHECK, 2, 1, NULL, 0);
		cr_assert_eq(get(fd, FRAME_CHECK, payload).first, 2);
	}
	put(fd, FRAME_CHECK, 2, 1, NULL, 0);
	expect_ended(s, fd);
}

/* The source sees no READ: what it is told is all it knows. */
Test(rdma_hostile, reader_that_says_nothing__stalled_and_resumed_and_fenced)
{
	static uint8_t payload[FRAME_PAYLOAD_MAX];
	uint8_t bytes[FRAME_ALIVE_BYTES] = {1};
	stall_ns = INT64_C(400000000);
	struct pair *s = start(0);
	int fd = enter(s);
	put_lane(fd, FRAME_RDMA_OFFER, 0, 0, &good_end);
	get(fd, FRAME_RDMA_MAP, payload);
	rig_wait(&s->rig, s->source_agent, TRANSPORT_STALLED, LEG);
	put(fd, FRAME_ALIVE, 0, 1, bytes, sizeof(bytes));
	rig_wait(&s->rig, s->source_agent, TRANSPORT_RESUMED, LEG);
	transport_fence(s->source_agent->transport, LEG);
	const struct transport_event *ended =
		rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, LEG);
	cr_assert_eq(ended->code, TH_E_CANCELLED);
	cr_assert_eq(ended->bytes_moved, 1);
	close(fd);
	pair_finish(s);
}

/* Whatever it has said, its queue pairs go with it. */
Test(rdma_hostile, reader_leaves_in_any_state__ended_without_queue_pairs)
{
	static uint8_t payload[FRAME_PAYLOAD_MAX];
	for (uint32_t state = 0; state < 4; state++) {
		struct pair *s = start(0);
		int fd = enter(s);
		if (state > 0)
			put_lane(fd, FRAME_RDMA_OFFER, 0, 0, &good_end);
		if (state > 1)
			get(fd, FRAME_RDMA_MAP, payload);
		if (state > 2) {
			put(fd, FRAME_RDMA_DECLINE, 0, 5000, "no", 2);
			cr_assert_eq(get(fd, FRAME_RDMA_DECLINE, payload).bytes, 2);
		}
		close(fd);
		rig_wait(&s->rig, s->source_agent, TRANSPORT_ENDED, LEG);
		struct fake_counters counters;
		fake_rdma_counters(s->source_agent->devices[0], &counters);
		cr_assert_eq(counters.qps, 0, "state %u", state);
		pair_finish(s);
	}
}

/*
 * ---- the test is the source -------------------------------------------------------------------
 */

struct fake_source {
	struct pair *s;
	int door, fd;
	struct wire_rail rail;
};

static void
listen_at(struct fake_source *source, char name[64])
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t bytes = sizeof(address);
	source->door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	cr_assert_eq(bind(source->door, (struct sockaddr *)&address, sizeof(address)), 0);
	cr_assert_eq(listen(source->door, 16), 0);
	cr_assert_eq(getsockname(source->door, (struct sockaddr *)&address, &bytes), 0);
	snprintf(name, 64, "127.0.0.1:%u", ntohs(address.sin_port));
}

/* The reader has been welcomed. */
static struct fake_source
welcome(int64_t hello_ns)
{
	static uint8_t payload[FRAME_PAYLOAD_MAX];
	struct fake_source source = {.s = start(hello_ns),
		.rail = {.link = VERBS_LINK_ETHERNET,
			.gid = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 9},
			.name = "mlx5_0/1"}};
	struct th_ticket ticket = rig_ticket(LEG);
	char name[64];
	listen_at(&source, name);
	struct transport *reader = source.s->reader_agent->transport;
	cr_assert_eq(transport_pull(reader, LEG, name, &ticket, source.s->to, NULL, pull_flags), 0);
	source.fd = accept4(source.door, NULL, NULL, SOCK_CLOEXEC);
	cr_assert_geq(source.fd, 0);
	struct frame frame = peer_get_frame(source.fd);
	cr_assert_eq(frame.kind, FRAME_HELLO);
	cr_assert(frame.flags & FRAME_TAKES_RDMA);
	peer_get(source.fd, payload, frame.bytes);
	struct frame_welcome say = {.key = {1}, .bytes = 32 * MIB, .protocol = 1};
	frame = (struct frame){.kind = FRAME_WELCOME,
		.flags = welcome_flags,
		.leg = LEG,
		.count = 8,
		.bytes = FRAME_WELCOME_BYTES};
	frame_encode_welcome(&say, payload);
	peer_put_frame(source.fd, &frame, payload, FRAME_WELCOME_BYTES);
	return source;
}

static void
put_rails(struct fake_source *source)
{
	uint8_t payload[WIRE_RAIL_BYTES];
	wire_encode_rails(&source->rail, 1, payload);
	put(source->fd, FRAME_RDMA_RAILS, 0, 1, payload, sizeof(payload));
}

/* The reader has made its offer. */
static struct fake_source
offered(int64_t hello_ns)
{
	static uint8_t payload[FRAME_PAYLOAD_MAX];
	struct fake_source source = welcome(hello_ns);
	put_rails(&source);
	cr_assert_eq(get(source.fd, FRAME_RDMA_OFFER, payload).count, 1);
	return source;
}

static void
finish(struct fake_source *source)
{
	close(source->fd);
	close(source->door);
	pair_finish(source->s);
}

static const struct transport_event *
wait_failed(struct fake_source *source)
{
	return rig_wait(&source->s->rig, source->s->reader_agent, TRANSPORT_FAILED, LEG);
}

static void
expect_broken(struct fake_source *source, uint32_t which)
{
	const struct transport_event *failed = wait_failed(source);
	cr_assert_eq(failed->code, TH_E_PROTOCOL, "%u: %s", which, failed->text);
	struct fake_counters counters;
	fake_rdma_counters(source->s->reader_agent->devices[0], &counters);
	cr_assert_eq(counters.reads, 0);
	finish(source);
}

static void
put_key(struct fake_source *source, uint32_t first, uint64_t address, uint64_t bytes)
{
	struct wire_key key = {.address = address, .bytes = bytes, .rkeys = {7}};
	uint8_t payload[64];
	wire_encode_keys(&key, 1, 1, payload);
	put(source->fd, FRAME_RDMA_KEYS, first, 1, payload, wire_key_bytes(1));
}

static void
put_extent(struct fake_source *source, uint32_t first, uint32_t key, uint64_t address)
{
	struct wire_extent extent = {.key = key, .address = address};
	uint8_t payload[WIRE_EXTENT_BYTES];
	wire_encode_extents(&extent, 1, payload);
	put(source->fd, FRAME_RDMA_MAP, first, 1, payload, sizeof(payload));
}

Test(rdma_hostile, source_answers_before_it_was_asked__failed)
{
	for (uint32_t which = 0; which < 6; which++) {
		struct fake_source source = welcome(0);
		if (which == 0)
			put_lane(source.fd, FRAME_RDMA_ACCEPT, 1, 0, &good_end);
		else if (which == 1)
			put_key(&source, 0, 0, 32 * MIB);
		else if (which == 2)
			put_extent(&source, 0, 0, 0);
		else if (which == 3)
			put(source.fd, FRAME_CHECK, 0, 1, NULL, 0);
		else if (which == 4)
			put_lane(source.fd, FRAME_RDMA_OFFER, 0, 0, &good_end);
		else {
			put_rails(&source);
			put_rails(&source);
		}
		expect_broken(&source, which);
	}
}

Test(rdma_hostile, source_accepts_what_was_not_offered__failed)
{
	for (uint32_t which = 0; which < 4; which++) {
		struct fake_source source = offered(0);
		struct endpoint end = good_end;
		end.mtu_bytes = which == 2 ? 5000 : 4096;
		if (which == 1)
			put_lane(source.fd, FRAME_RDMA_ACCEPT, 1, 0, NULL);
		else if (which == 3)
			put_key(&source, 0, 0, 32 * MIB);
		else
			put_lane(source.fd, FRAME_RDMA_ACCEPT, 1, which == 0 ? 1 : 0, &end);
		expect_broken(&source, which);
	}
}

/* No READ goes where the source has not said that there is something. */
Test(rdma_hostile, source_maps_what_it_has_not__failed)
{
	for (uint32_t which = 0; which < 8; which++) {
		struct fake_source source = offered(0);
		put_lane(source.fd, FRAME_RDMA_ACCEPT, 2, 0, &good_end);
		if (which == 0) {
			put_key(&source, 1, 0, 16 * MIB); /* not the next */
		} else if (which == 1) {
			put_extent(&source, 1, 0, 0);
		} else {
			put_key(&source, 0, 4096, 16 * MIB);
			put_key(&source, 1, 4096 + (which == 7 ? MIB : 16 * MIB), 16 * MIB);
		}
		if (which == 2)
			put_key(&source, 2, 0, 1);
		else if (which == 3)
			put_extent(&source, 0, 2, 4096);
		else if (which == 4)
			put_extent(&source, 0, 0, 4095);
		else if (which == 5)
			put_extent(&source, 0, 0, 4097);
		else if (which == 6)
			put_extent(&source, 0, 1, 4096 + 16 * MIB);
		else if (which == 7)
			put_extent(&source, 0, 0, 4096);
		expect_broken(&source, which);
	}
}

/* It has slots, three of them, and says why. */
static struct fake_source
staging(uint64_t bytes, uint32_t keys)
{
	const struct wire_lane lane = {.made = true, .end = good_end};
	struct fake_source source = offered(0);
	uint8_t payload[WIRE_LANE_BYTES + 4] = {[WIRE_LANE_BYTES] = 'r', 'a', 'i', 'n'};
	wire_encode_lanes(&lane, 1, payload);
	struct frame frame = {.kind = FRAME_RDMA_ACCEPT,
		.flags = FRAME_STAGES,
		.leg = LEG,
		.first = 3,
		.count = 1,
		.bytes = sizeof(payload)};
	peer_put_frame(source.fd, &frame, payload, sizeof(payload));
	for (uint32_t i = 0; i < keys; i++)
		put_key(&source, i, i * 8 * MIB, bytes);
	return source;
}

Test(rdma_hostile, source_has_slots_that_cannot_be__failed)
{
	for (uint32_t which = 0; which < 5; which++) {
		struct fake_source source =
			staging(which == 0 ? 4 * MIB - 1 : 4 * MIB, which == 0 ? 3 : 2);
		if (which == 1)
			put_extent(&source, 0, 0, 0);
		else if (which == 2)
			put_key(&source, 3, 24 * MIB, 4 * MIB);
		else if (which == 3)
			put(source.fd, FRAME_STAGED, 0, 0, NULL, 0);
		else if (which == 4)
			put_lane(source.fd, FRAME_RDMA_ACCEPT, 1, 0, &good_end);
		expect_broken(&source, which);
	}
}

/* The reader has asked for two chunks; the first slot is left alone while it is probed. */
static struct fake_source
asked_to_stage(void)
{
	static uint8_t payload[FRAME_PAYLOAD_MAX];
	static const uint8_t digests[8 * 16];
	struct fake_source source = staging(4 * MIB, 3);
	put(source.fd, FRAME_PROGRESS, 0, 8, digests, sizeof(digests));
	for (uint32_t i = 0; i < 2; i++) {
		struct frame frame = get(source.fd, FRAME_STAGE, payload);
		cr_assert_eq(frame.first, i);
		cr_assert_eq(frame.count, i + 1);
	}
	return source;
}

Test(rdma_hostile, source_stages_what_it_must_not__failed)
{
	for (uint32_t which = 0; which < 7; which++) {
		struct fake_source source = asked_to_stage();
		if (which == 0)
			put(source.fd, FRAME_STAGED, 5, 1, NULL, 0); /* not asked for */
		else if (which == 1)
			put(source.fd, FRAME_STAGED, 0, 2, NULL, 0); /* into the other slot */
		else if (which == 2)
			put(source.fd, FRAME_STAGED, 0, 3, NULL, 0); /* there are three */
		else if (which == 3)
			put(source.fd, FRAME_STAGED, UINT32_MAX, 0, NULL, 0); /* of none */
		else if (which == 4)
			put(source.fd, FRAME_CHECK, 0, 1, NULL, 0); /* nobody has asked */
		else if (which == 5)
			put(source.fd, FRAME_STAGE, 0, 0, NULL, 0);
		for (uint32_t i = 0; which == 6 && i < 2; i++)
			put(source.fd, FRAME_STAGED, 0, 1, NULL, 0);
		const struct transport_event *failed = wait_failed(&source);
		cr_assert_eq(failed->code, TH_E_PROTOCOL, "%u: %s", which, failed->text);
		cr_assert_not(failed->overwrote);
		finish(&source);
	}
}

/* Of what it was asked for when the reader left, it may still speak; then no more. */
Test(rdma_hostile, source_stages_when_the_reader_has_left__passed_over_until_it_declines)
{
	static uint8_t payload[FRAME_PAYLOAD_MAX];
	struct fake_source source = asked_to_stage();
	cr_assert_gt(get(source.fd, FRAME_RDMA_DECLINE, payload).bytes, 0);
	put(source.fd, FRAME_STAGED, 0, 1, NULL, 0);
	put(source.fd, FRAME_RDMA_DECLINE, 0, 1, NULL, 0);
	int data = accept4(source.door, NULL, NULL, SOCK_CLOEXEC);
	cr_assert_eq(peer_get_frame(data).kind, FRAME_JOIN);
	peer_get(data, payload, FRAME_KEY_BYTES);
	/* What was staged and not READ comes this way. */
	cr_assert_leq(peer_get_frame(data).first, 1);
	put(source.fd, FRAME_STAGED, 1, 2, NULL, 0);
	cr_assert_eq(wait_failed(&source)->code, TH_E_PROTOCOL);
	close(data);
	finish(&source);
}

Test(rdma_hostile, source_declines_twice__failed)
{
	struct fake_source source = welcome(0);
	put(source.fd, FRAME_RDMA_DECLINE, 0, 1, "a\nb", 3);
	put(source.fd, FRAME_RDMA_DECLINE, 0, 1, "no", 2);
	const struct transport_event *failed = wait_failed(&source);
	cr_assert_eq(failed->code, TH_E_PROTOCOL);
	cr_assert_str_eq(failed->fallback, "the source says: a?b");
	finish(&source);
}

/* It lives no more: the leg does not wait for its TCP either. */
Test(rdma_hostile, source_falls_silent_in_any_state__failed)
{
	for (uint32_t state = 0; state < 3; state++) {
		struct fake_source source = state == 0 ? welcome(HELLO_NS) : offered(HELLO_NS);
		if (state == 2) {
			put_lane(source.fd, FRAME_RDMA_ACCEPT, 1, 0, &good_end);
			put_key(&source, 0, 0, 32 * MIB);
		}
		const struct transport_event *failed = wait_failed(&source);
		cr_assert_eq(failed->code, TH_E_NO_PATH);
		cr_assert(strstr(failed->text, "does not answer any more"), "%s", failed->text);
		cr_assert(strstr(failed->fallback, state == 0 ? "does not name its rails"
							      : "does not answer to the offer"),
			"%s", failed->fallback);
		finish(&source);
	}
}

/* Its memory is registered later: who can do with data connections does not wait for that. */
Test(rdma_hostile, source_registers_and_never_ends__data_connections)
{
	welcome_flags |= FRAME_RDMA_LATER;
	struct fake_source source = welcome(HELLO_NS);
	int data = accept4(source.door, NULL, NULL, SOCK_CLOEXEC);
	cr_assert_eq(peer_get_frame(data).kind, FRAME_JOIN);
	/* And may decline yet. */
	put(source.fd, FRAME_RDMA_DECLINE, 0, 1, "no", 2);
	rig_pump_for(&source.s->rig, 50000000);
	close(data);
	cr_assert_str_eq(wait_failed(&source)->fallback, "the source says: no");
	finish(&source);
}

Test(rdma_hostile, source_registers_and_falls_silent_and_rdma_is_required__failed)
{
	stall_ns = INT64_C(400000000);
	pull_flags = TRANSPORT_REQUIRE_RDMA;
	welcome_flags |= FRAME_RDMA_LATER;
	struct fake_source source = welcome(HELLO_NS);
	int64_t before_ns = th_now_ns();
	struct frame waits = {.kind = FRAME_PROGRESS, .flags = FRAME_WAITING, .leg = LEG};
	while (th_now_ns() < before_ns + 3 * stall_ns) {
		peer_put_frame(source.fd, &waits, NULL, 0);
		rig_pump_for(&source.s->rig, stall_ns / 4);
	}
	const struct transport_event *failed = wait_failed(&source);
	cr_assert_eq(failed->code, TH_E_NO_PATH);
	cr_assert(strstr(failed->text, "RDMA is required"), "%s", failed->text);
	cr_assert(strstr(failed->text, "does not name its rails"), "%s", failed->text);
	finish(&source);
}

/* Its queue pairs answer nothing, and the reader has said that it does without. */
static struct fake_source
unanswered(void)
{
	static uint8_t payload[FRAME_PAYLOAD_MAX];
	struct fake_source source = offered(0);
	put_lane(source.fd, FRAME_RDMA_ACCEPT, 1, 0, &good_end);
	put_key(&source, 0, 0, 32 * MIB);
	put_extent(&source, 0, 0, 0);
	struct frame frame = get(source.fd, FRAME_RDMA_DECLINE, payload);
	cr_assert_gt(frame.bytes, 0);
	return source;
}

static uint64_t
path_failures(const struct fake_source *source)
{
	struct path path;
	struct transport *reader = source->s->reader_agent->transport;
	return transport_paths(reader, &path, 1) == 1 ? path.failures : 0;
}

/* Queue pairs of which the other end is nothing: the leg asks for data connections. */
Test(rdma_hostile, source_is_not_where_it_says__data_connections)
{
	struct fake_source source = unanswered();
	cr_assert_eq(path_failures(&source), 0);
	put(source.fd, FRAME_RDMA_DECLINE, 0, 1, NULL, 0);
	int data = accept4(source.door, NULL, NULL, SOCK_CLOEXEC);
	cr_assert_eq(peer_get_frame(data).kind, FRAME_JOIN);
	cr_assert_eq(path_failures(&source), 1);
	close(data);
	wait_failed(&source);
	finish(&source);
}

/* Its host died: that is not the path's doing, and the next leg uses it. */
Test(rdma_hostile, source_dies__its_path_is_not_blamed)
{
	struct fake_source source = unanswered();
	close(source.fd);
	source.fd = dup(source.door);
	wait_failed(&source);
	cr_assert_eq(path_failures(&source), 0);
	finish(&source);
}

/* What was required fails once it is known who is to be blamed. */
Test(rdma_hostile, source_is_not_where_it_says_and_rdma_is_required__failed_and_blamed)
{
	pull_flags = TRANSPORT_REQUIRE_RDMA;
	struct fake_source source = unanswered();
	cr_assert_eq(path_failures(&source), 0);
	put(source.fd, FRAME_RDMA_DECLINE, 0, 1, NULL, 0);
	const struct transport_event *failed = wait_failed(&source);
	cr_assert_eq(failed->code, TH_E_NO_PATH);
	cr_assert(strstr(failed->text, "RDMA is required"), "%s", failed->text);
	cr_assert_eq(path_failures(&source), 1);
	finish(&source);
}

/*
 * ---- the reader's agent stands still ----------------------------------------------------------
 */

struct freeze {
	struct loop_task task;
	int64_t since_ns; /* atomic */
	sem_t over;
};

static void
run_freeze(struct loop_task *task)
{
	struct freeze *freeze = loop_container(task, struct freeze, task);
	__atomic_store_n(&freeze->since_ns, th_now_ns(), __ATOMIC_RELEASE);
	while (sem_wait(&freeze->over) < 0)
		continue;
}

static struct freeze freeze;

/* Since before that moment? Else this machine is too busy, and what follows would prove nothing. */
static bool
freeze_reader(struct fake_source *source, int64_t before_ns)
{
	freeze = (struct freeze){.task.run = run_freeze};
	sem_init(&freeze.over, 0, 0);
	loop_post(source->s->reader_agent->transport->acceptor, &freeze.task);
	while (__atomic_load_n(&freeze.since_ns, __ATOMIC_ACQUIRE) == 0)
		sched_yield();
	return freeze.since_ns < before_ns;
}

static void
thaw_reader(int64_t at_ns)
{
	while (th_now_ns() < at_ns)
		(void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	sem_post(&freeze.over);
}

/* A reader that waits: for RAILS, for ACCEPT, for DECLINE. Its patience is over not before that. */
static struct fake_source
waiting(uint32_t state, int64_t *ret_until_ns)
{
	static uint8_t payload[FRAME_PAYLOAD_MAX];
	*ret_until_ns = th_now_ns() + HELLO_NS * (state == 2 ? 2 : 1);
	struct fake_source source = state == 0 ? welcome(HELLO_NS) : offered(HELLO_NS);
	if (state == 2)
		get(source.fd, FRAME_RDMA_DECLINE, payload);
	return source;
}

static void
answer(struct fake_source *source, uint32_t state)
{
	if (state == 0) {
		put_rails(source);
	} else if (state == 1) {
		put_lane(source->fd, FRAME_RDMA_ACCEPT, 1, 0, &good_end);
		put_key(source, 0, 0, 32 * MIB);
		put_extent(source, 0, 0, 0);
	} else {
		put(source->fd, FRAME_RDMA_DECLINE, 0, 1, NULL, 0);
	}
}

static void
expect_heard(struct fake_source *source, uint32_t state)
{
	static uint8_t payload[FRAME_PAYLOAD_MAX];
	if (state == 0) {
		get(source->fd, FRAME_RDMA_OFFER, payload);
	} else if (state == 1) {
		payload[get(source->fd, FRAME_RDMA_DECLINE, payload).bytes] = '\0';
		cr_assert(strstr((char *)payload, "READ does not come"), "%s", (char *)payload);
	} else {
		struct pollfd door = {.fd = source->door, .events = POLLIN};
		cr_assert_eq(poll(&door, 1, 30000), 1);
		int data = accept4(source->door, NULL, NULL, SOCK_CLOEXEC);
		cr_assert_eq(peer_get_frame(data).kind, FRAME_JOIN);
		close(data);
	}
}

/* Its word lies in our socket when the clock is looked at; or it could not be expected to have
 * answered, because the whole host may have been suspended. */
Test(rdma_hostile, we_stood_still_while_the_source_answered__it_is_heard)
{
	for (uint32_t test = 0; test < 4; test++) {
		uint32_t state = th_min_u32(test, 2), late = test == 3;
		stall_ns = late ? INT64_C(400000000) : INT64_C(2000000000);
		for (bool proved = false; !proved;) {
			int64_t until_ns;
			struct fake_source source = waiting(state, &until_ns);
			proved = freeze_reader(&source, until_ns);
			if (!late)
				answer(&source, state);
			thaw_reader(th_now_ns() + HELLO_NS + (late ? stall_ns / 4 : 0) + 50000000);
			until_ns = th_now_ns() + HELLO_NS / 2;
			if (late)
				answer(&source, state);
			proved = proved && (!late || th_now_ns() < until_ns);
			if (proved)
				expect_heard(&source, state);
			finish(&source);
		}
	}
}
