/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the data port's door: strangers, in numbers and without manners, and a process that has
 * no descriptor left. What they do must hurt no leg.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "tests/support/rng.h"
#include "tests/support/transport/transport_peer.h"
#include "transport/transport_own.h"

Test(transport_door, strangers__dropped_and_counted_while_a_leg_goes_on)
{
	struct peer_setup *s = peer_start(3);
	struct rig_agent *reader = rig_add_agent(&s->rig, STALL_NS, 2);
	struct rig_shard copy;
	rig_shard_init(&copy, peer_eight_chunks, 1, 0);
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
		int fd = peer_dial(s->agent);
		peer_put_frame(fd, &bad[i], noise, 256);
		peer_expect_closed(fd);
		expected++;
	}
	for (size_t bytes = 33; bytes <= sizeof(noise); bytes = bytes * 3 + 1) {
		int fd = peer_dial(s->agent);
		peer_put(fd, noise, bytes);
		peer_expect_closed(fd);
		expected++;
	}
	int fd = peer_dial(s->agent); /* the key of no leg */
	peer_put_frame(fd, &(struct frame){.kind = FRAME_JOIN, .leg = 1, .bytes = FRAME_KEY_BYTES},
		key, sizeof(key));
	peer_expect_closed(fd);
	fd = peer_dial(s->agent); /* a protocol that does not exist */
	peer_put_frame(fd, &(struct frame){.kind = FRAME_HELLO, .bytes = FRAME_HELLO_BYTES}, hello,
		sizeof(hello));
	peer_expect_closed(fd);
	fd = peer_dial(s->agent); /* half a header */
	peer_put(fd, noise, 7);
	close(fd);
	expected += 3;
	fd = peer_dial(s->agent); /* nothing at all: a health check, not counted */
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
	xfer_part_release(to);
	rig_shard_fini(&copy);
	peer_finish(s);
}

Test(transport_door, slow_stranger__dropped_when_its_time_is_over)
{
	struct peer_setup *s = peer_start(8);
	s->rig.hello_ns = 200000000;
	struct rig_agent *agent = rig_add_agent(&s->rig, STALL_NS, 1);
	int64_t start_ns = th_now_ns();
	int fd = peer_dial(agent);
	peer_put(fd, "T", 1);
	peer_expect_closed(fd);
	int64_t took_ns = th_now_ns() - start_ns;
	cr_assert_gt(took_ns, 150000000);
	cr_assert_lt(took_ns, INT64_C(2000000000));
	peer_finish(s);
}

/* One byte now and then is no greeting: the time is for all of it. */
Test(transport_door, stranger_that_trickles__dropped_when_its_time_is_over)
{
	static const uint8_t zeros[FRAME_BYTES];
	struct peer_setup *s = peer_start(8);
	s->rig.hello_ns = 300000000;
	struct rig_agent *agent = rig_add_agent(&s->rig, STALL_NS, 1);
	int64_t start_ns = th_now_ns();
	int fd = peer_dial(agent);
	struct pollfd closed = {.fd = fd, .events = POLLIN};
	for (size_t i = 0; i < sizeof(zeros) - 1 && poll(&closed, 1, 30) == 0; i++)
		peer_put(fd, zeros + i, 1);
	peer_expect_closed(fd);
	cr_assert_gt(th_now_ns() - start_ns, 250000000);
	cr_assert_lt(th_now_ns() - start_ns, INT64_C(10000000000));
	cr_assert_eq(rig_counters(agent).strangers_refused, 1);
	peer_finish(s);
}

Test(transport_door, hundreds_of_idle_strangers__a_leg_still_gets_in)
{
	enum { STRANGERS = 400 };
	int fds[STRANGERS];
	struct peer_setup *s = peer_start(8);
	struct rig_agent *reader = rig_add_agent(&s->rig, STALL_NS, 2);
	struct rig_shard copy;
	rig_shard_init(&copy, peer_eight_chunks, 1, 0);
	struct xfer_part *to = rig_part(&copy, true);
	for (int i = 0; i < STRANGERS; i++)
		fds[i] = peer_dial(s->agent);
	rig_pull(s->agent, reader, 1, s->part, to);
	rig_wait(&s->rig, reader, TRANSPORT_DONE, 1);
	for (int i = 0; i < STRANGERS; i++)
		close(fds[i]);
	rig_fini(&s->rig);
	xfer_part_release(to);
	rig_shard_fini(&copy);
	peer_finish(s);
}

/* No descriptor left, not even the spare one: the door waits, it does not spin. */
Test(transport_door, no_descriptors_left__door_rests_and_opens_again)
{
	struct peer_setup *s = peer_start(8);
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
	peer_dial_with(client, s->agent);
	struct timespec used[2];
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used[0]);
	poll(NULL, 0, 300);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used[1]);
	int64_t used_ns = (used[1].tv_sec - used[0].tv_sec) * INT64_C(1000000000) +
			  (used[1].tv_nsec - used[0].tv_nsec);
	cr_assert_lt(used_ns, 100000000);
	close(first);
	close(last);
	peer_put_frame(client, &(struct frame){.kind = FRAME_BYE}, NULL, 0);
	peer_expect_closed(client);
	cr_assert_geq(rig_counters(s->agent).strangers_refused, 1);
	peer_finish(s);
}

/*
 * ---- what strangers cost ----------------------------------------------------------------------
 */

#define STRANGER_BYTES 512 /* what acceptor.c promises */

#ifdef __SANITIZE_ADDRESS__
size_t __sanitizer_get_current_allocated_bytes(void); /* its header is not everywhere */
#endif

/* What all threads have allocated by now. */
static size_t
heap(void)
{
#ifdef __SANITIZE_ADDRESS__
	return __sanitizer_get_current_allocated_bytes();
#else
	struct mallinfo2 info = mallinfo2();
	return info.uordblks + info.hblkhd;
#endif
}

static void
wait_refused(const struct rig_agent *agent, uint64_t count)
{
	int64_t until_ns = th_now_ns() + INT64_C(30000000000);
	while (rig_counters(agent).strangers_refused < count) {
		cr_assert_lt(th_now_ns(), until_ns, "%" PRIu64 " of %" PRIu64 " were refused",
			rig_counters(agent).strangers_refused, count);
		poll(NULL, 0, 5);
	}
}

/* Half a greeting, and what it announces is never sent: by turns with nothing at all. */
static void
greet_by_half(int fd, int number)
{
	static const uint8_t zeros[FRAME_HELLO_BYTES];
	struct frame hello = {.kind = FRAME_HELLO, .leg = 1, .bytes = FRAME_HELLO_BYTES};
	struct frame join = {.kind = FRAME_JOIN, .leg = 1, .bytes = FRAME_KEY_BYTES};
	if (number % 4 == 1)
		peer_put(fd, zeros, FRAME_BYTES / 2);
	else if (number % 4 == 2)
		peer_put_frame(fd, &hello, zeros, sizeof(zeros) - 1);
	else if (number % 4 == 3)
		peer_put_frame(fd, &join, NULL, 0);
}

Test(transport_door, flood_of_half_greetings__descriptors_and_memory_bounded)
{
	enum { FLOOD = 400 };
	int fds[FLOOD];
	struct peer_setup *s = peer_start(8);
	s->rig.hello_ns = INT64_C(60000000000);
	struct rig_agent *agent = rig_add_agent(&s->rig, STALL_NS, 1);
	int before = peer_descriptors();
	size_t heap_before = heap();
	for (int i = 0; i < FLOOD; i++) {
		fds[i] = peer_dial(agent);
		greet_by_half(fds[i], i);
	}
	wait_refused(agent, FLOOD - STRANGERS_MAX);
	cr_assert_leq(peer_descriptors() - before - FLOOD, STRANGERS_MAX + 1);
	cr_assert_lt(heap() - heap_before, (STRANGERS_MAX + 1) * STRANGER_BYTES);
	for (int i = 0; i < FLOOD; i++)
		close(fds[i]);
	peer_finish(s);
}

/* Whole greetings with tickets for nothing. */
Test(transport_door, flood_of_tickets_for_nothing__memory_bounded_and_readers_get_in)
{
	enum { FLOOD = 1000 };
	struct peer_setup *s = peer_start(8);
	s->rig.hello_ns = INT64_C(60000000000);
	s->agent = rig_add_agent(&s->rig, STALL_NS, 1);
	struct frame_hello hello = {.protocol = FRAME_PROTOCOL, .mode = FRAME_MODE_TCP};
	uint8_t payload[FRAME_HELLO_BYTES];
	size_t heap_before = heap();
	for (uint64_t i = 0; i < FLOOD; i++) {
		struct frame frame = {.kind = FRAME_HELLO, .leg = i, .bytes = sizeof(payload)};
		int fd = peer_dial(s->agent);
		hello.ticket = rig_ticket(1000 + i);
		frame_encode_hello(&hello, payload);
		peer_put_frame(fd, &frame, payload, sizeof(payload));
		close(fd);
	}
	/* Those who have left count, too: they are of one address. */
	wait_refused(s->agent, FLOOD - ASKED_BY_ONE);
	cr_assert_lt(heap() - heap_before, ASKED_BY_ONE * STRANGER_BYTES);
	/* Another address still has its part. */
	int other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in own = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1)};
	cr_assert_eq(bind(other, (struct sockaddr *)&own, sizeof(own)), 0);
	peer_dial_with(other, s->agent);
	hello.ticket = rig_ticket(7);
	frame_encode_hello(&hello, payload);
	struct frame asks = {.kind = FRAME_HELLO, .leg = 7, .bytes = sizeof(payload)};
	rig_offer(s->agent, 7, s->part);
	peer_put_frame(other, &asks, payload, sizeof(payload));
	cr_assert_eq(peer_get_frame(other).kind, FRAME_WELCOME);
	close(other);
	/* From the address that floods as well: who is expected takes no place. */
	uint8_t key[FRAME_KEY_BYTES];
	int control = peer_enter(s, 5, s->part, key);
	int data = peer_join(s, 5, key);
	peer_ask(data, 5, 3, 1);
	peer_take_data(s, data, 3);
	close(data);
	close(control);
	peer_finish(s);
}

/*
 * ---- what is over -----------------------------------------------------------------------------
 */

static void
expect_refused(int fd, const char *word)
{
	char text[TH_CTL_TEXT_BYTES] = "";
	struct frame frame = peer_get_frame(fd);
	cr_assert_eq(frame.kind, FRAME_REFUSED);
	cr_assert_lt(frame.bytes, sizeof(text));
	peer_get(fd, text, (size_t)frame.bytes);
	cr_assert(strstr(text, word), "%s", text);
	peer_expect_closed(fd);
}

static int
join(struct peer_setup *s, uint64_t leg, const uint8_t key[FRAME_KEY_BYTES])
{
	int fd = peer_join(s, leg, key);
	peer_ask(fd, leg, 0, 1);
	return fd;
}

static int
knock(struct peer_setup *s, uint64_t number)
{
	struct frame_hello hello = {
		.ticket = rig_ticket(number), .protocol = FRAME_PROTOCOL, .mode = FRAME_MODE_TCP};
	uint8_t payload[FRAME_HELLO_BYTES];
	int fd = peer_dial(s->agent);
	frame_encode_hello(&hello, payload);
	peer_put_frame(fd,
		&(struct frame){.kind = FRAME_HELLO, .leg = number, .bytes = sizeof(payload)},
		payload, sizeof(payload));
	return fd;
}

/* Of a leg that runs, and of one that waits for its grant: the first one keeps it. */
Test(transport_door, ticket_presented_twice__second_is_refused_at_once)
{
	struct peer_setup *s = peer_start(8);
	uint8_t key[FRAME_KEY_BYTES];
	int control = peer_enter(s, 5, s->part, key);
	int again = knock(s, 5);
	expect_refused(again, "presented before");
	int early = knock(s, 6);
	while (__atomic_load_n(&s->agent->transport->tickets.num_knocks, __ATOMIC_RELAXED) == 0)
		poll(NULL, 0, 1);
	again = knock(s, 6);
	expect_refused(again, "presented before");
	rig_offer(s->agent, 6, s->part);
	cr_assert_eq(peer_get_frame(early).kind, FRAME_WELCOME);
	cr_assert_eq(rig_counters(s->agent).tickets_refused, 2);
	close(early);
	close(control);
	peer_finish(s);
}

/* One that is expected has no key yet, and zeros are none. */
Test(transport_door, key_of_zeros__opens_nothing_that_is_expected)
{
	static const uint8_t zeros[FRAME_KEY_BYTES];
	struct peer_setup *s = peer_start(8);
	uint8_t key[FRAME_KEY_BYTES];
	rig_offer(s->agent, 9, s->part);
	int control = peer_enter(s, 5, s->part, key); /* so the offer before it has arrived */
	peer_expect_closed(peer_join(s, 0, zeros));
	peer_expect_closed(peer_join(s, 9, zeros));
	cr_assert_eq(rig_counters(s->agent).bytes_out, 0);
	close(control);
	peer_finish(s);
}

/* Who waits has left meanwhile: his ticket is used up all the same, and the leg ends at once. */
Test(transport_door, stranger_left_before_his_grant__leg_begins_and_ends)
{
	struct peer_setup *s = peer_start(8);
	int early = knock(s, 6);
	while (__atomic_load_n(&s->agent->transport->tickets.num_knocks, __ATOMIC_RELAXED) == 0)
		poll(NULL, 0, 1);
	close(early);
	uint8_t key[FRAME_KEY_BYTES];
	int control = peer_enter(s, 5, s->part, key); /* so the close before it has arrived */
	rig_offer(s->agent, 6, s->part);
	const struct transport_event *ended = rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, 6);
	cr_assert_eq(ended->bytes_moved, 0);
	cr_assert_neq(ended->code, 0);
	cr_assert_eq(s->agent->num_began, 2);
	close(control);
	peer_finish(s);
}

/* The same memory, published again: who read the old generation gets nothing of the new one. */
Test(transport_door, ticket_and_key_of_an_older_generation__never_a_byte)
{
	struct peer_setup *s = peer_start(8);
	uint8_t old_key[FRAME_KEY_BYTES], new_key[FRAME_KEY_BYTES], byte;
	int old_control = peer_enter(s, 5, s->part, old_key);
	int old_data = peer_join(s, 5, old_key);
	peer_ask(old_data, 5, 0, 1);
	peer_take_data(s, old_data, 0);
	transport_fence(s->agent->transport, 5);
	rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, 5);
	memset(s->shard.tensors[0], 0x77, CHUNK);
	struct xfer_part *old = s->part;
	s->part = rig_part(&s->shard, true);
	rig_add_digests(s->part);
	xfer_part_advance(s->part, 8);
	int control = peer_enter(s, 6, s->part, new_key);
	cr_assert_neq(memcmp(old_key, new_key, sizeof(old_key)), 0);

	peer_ask(old_data, 5, 0, 1);
	cr_assert_leq(recv(old_data, &byte, 1, 0), 0);
	peer_expect_closed(join(s, 5, old_key));
	peer_expect_closed(join(s, 6, old_key));
	peer_expect_closed(join(s, 5, new_key));
	int again = knock(s, 5);
	expect_refused(again, "no such ticket");
	cr_assert_eq(rig_counters(s->agent).strangers_refused, 4);
	/* All that left was the first chunk of the first reader. */
	cr_assert_eq(rig_counters(s->agent).bytes_out, CHUNK);
	int data = join(s, 6, new_key);
	peer_take_data(s, data, 0);
	close(data);
	close(control);
	close(old_data);
	close(old_control);
	rig_fini(&s->rig);
	s->rig.num_agents = 0;
	xfer_part_release(old);
	peer_finish(s);
}
