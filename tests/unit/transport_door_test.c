/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the data port's door: strangers, in numbers and without manners, and a process that has
 * no descriptor left. What they do must hurt no leg.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/rng.h"
#include "tests/support/transport_peer.h"
#include "transport/internal.h"

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
