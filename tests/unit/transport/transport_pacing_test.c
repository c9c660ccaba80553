/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport's caps: that bytes leave no faster, and that the shares of connections follow
 * the legs that come and go, as the kernel has them. Busy machines only make a leg slower.
 */
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "ipc/base/clock.h"
#include "tests/support/transport/transport_rig.h"

#define CAP UINT64_C(40000000)
#define CALM_NS INT64_C(15000000000)
#define FDS_MAX 256
#define LEGS 2

static const uint64_t sizes[] = {32 * MIB};

struct setup {
	struct rig rig;
	struct rig_agent *source, *reader;
	struct rig_shard from_shard, shards[LEGS];
	struct xfer_part *from, *parts[LEGS];
};

static struct setup *
start_as(uint64_t rate_out, uint64_t rate_out_peer, struct transport_far far, int64_t stall_ns)
{
	struct setup *s = calloc(1, sizeof(*s));
	s->rig.rate_out = rate_out;
	s->rig.rate_out_peer = rate_out_peer;
	s->rig.far = far;
	s->source = rig_add_agent(&s->rig, stall_ns, 2);
	s->reader = rig_add_agent(&s->rig, stall_ns, 2);
	rig_shard_init(&s->from_shard, sizes, 1, 42);
	s->from = rig_part(&s->from_shard, true);
	rig_add_digests(s->from);
	for (int i = 0; i < LEGS; i++) {
		rig_shard_init(&s->shards[i], sizes, 1, 0);
		s->parts[i] = rig_part(&s->shards[i], true);
	}
	return s;
}

static struct setup *
start(uint64_t rate_out, uint64_t rate_out_peer)
{
	return start_as(rate_out, rate_out_peer, (struct transport_far){0}, CALM_NS);
}

/* The two are in different datacenters. */
static struct setup *
start_far(struct transport_far far, int64_t stall_ns)
{
	struct setup *s = start_as(0, 0, far, stall_ns);
	s->source->far = s->reader->far = true;
	return s;
}

static void
finish(struct setup *s)
{
	rig_fini(&s->rig);
	xfer_part_release(s->from);
	rig_shard_fini(&s->from_shard);
	for (int i = 0; i < LEGS; i++) {
		xfer_part_release(s->parts[i]);
		rig_shard_fini(&s->shards[i]);
	}
	free(s);
}

/* The sockets of this process that the kernel paces: how many, and what they may send together. */
static uint64_t
paced(uint32_t *ret_count)
{
	uint64_t sum = 0;
	*ret_count = 0;
	for (int fd = 3; fd < FDS_MAX; fd++) {
		uint64_t rate = 0;
		socklen_t bytes = sizeof(rate);
		if (getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &bytes) < 0 ||
			bytes != sizeof(rate) || rate == UINT64_MAX || rate == UINT32_MAX)
			continue;
		sum += rate;
		(*ret_count)++;
	}
	return sum;
}

static void
expect_shares(struct setup *s, uint32_t conns, uint64_t cap)
{
	int64_t until_ns = th_now_ns() + INT64_C(30000000000);
	uint32_t count;
	uint64_t sum;
	while ((sum = paced(&count)) > cap || sum < cap - conns || count != conns) {
		cr_assert_lt(th_now_ns(), until_ns, "%u connections share %llu", count,
			(unsigned long long)sum);
		rig_pump(&s->rig, 10);
	}
}

static void
shares_follow_the_legs(uint64_t rate_out, uint64_t rate_out_peer)
{
	struct setup *s = start(rate_out, rate_out_peer);
	/* Both wait for the second chunk, with all their connections. */
	xfer_part_advance(s->from, 1);
	rig_pull(s->source, s->reader, 1, s->from, s->parts[0]);
	expect_shares(s, 2, CAP);
	rig_pull(s->source, s->reader, 2, s->from, s->parts[1]);
	expect_shares(s, 4, CAP);
	transport_stop(s->reader->transport, 1);
	expect_shares(s, 2, CAP);
	xfer_part_advance(s->from, 8);
	rig_wait(&s->rig, s->reader, TRANSPORT_DONE, 2);
	cr_assert(rig_shards_equal(&s->from_shard, &s->shards[1]));
	finish(s);
}

Test(transport_pacing, rate_out__shares_follow_the_legs)
{
	shares_follow_the_legs(CAP, 0);
}

Test(transport_pacing, rate_out_peer__shares_follow_the_legs)
{
	shares_follow_the_legs(4 * CAP, CAP);
}

/* Of CAP. Ends s. */
static void
two_legs_hold(struct setup *s)
{
	xfer_part_advance(s->from, 8);
	int64_t start_ns = th_now_ns();
	for (int i = 0; i < LEGS; i++)
		rig_pull(s->source, s->reader, (uint64_t)i + 1, s->from, s->parts[i]);
	for (int i = 0; i < LEGS; i++)
		rig_wait(&s->rig, s->reader, TRANSPORT_DONE, (uint64_t)i + 1);
	double seconds = (double)(th_now_ns() - start_ns) / 1e9;
	double least = (double)(LEGS * sizes[0]) / (double)CAP;
	/* What the buffers of the kernel take at once is not paced yet. */
	cr_assert_gt(seconds, 0.6 * least, "%.2f s, %.2f s are the cap", seconds, least);
	finish(s);
}

Test(transport_pacing, rate_out__two_legs_together_keep_it)
{
	two_legs_hold(start(CAP, 0));
}

Test(transport_pacing, rate_out__two_legs_by_sendfile_keep_it)
{
	rig_with_files = true;
	two_legs_hold(start(CAP, 0));
}

Test(transport_pacing, far_limit__two_legs_together_keep_it)
{
	two_legs_hold(start_far((struct transport_far){.limit = CAP}, CALM_NS));
}

/* A chunk comes every 0.2 s, by our own will: that is no source that sends nothing any more. */
Test(transport_pacing, far_limit__slower_than_the_stall_clock__nobody_fails)
{
	const struct transport_far far = {.limit = CAP / 2, .connections = 2};
	struct setup *s = start_far(far, INT64_C(100000000));
	xfer_part_advance(s->from, 8);
	rig_pull(s->source, s->reader, 1, s->from, s->parts[0]);
	rig_wait(&s->rig, s->reader, TRANSPORT_DONE, 1);
	cr_assert(rig_shards_equal(&s->from_shard, &s->shards[0]));
	finish(s);
}

/* What it had leave for, or waited for, is free for the next one. */
Test(transport_pacing, far_limit__leg_stopped_while_it_waits__the_next_one_goes_on)
{
	struct setup *s = start_far((struct transport_far){.limit = CAP}, CALM_NS);
	xfer_part_advance(s->from, 8);
	rig_pull(s->source, s->reader, 1, s->from, s->parts[0]);
	rig_wait_prefix(&s->rig, s->parts[0], 1);
	transport_stop(s->reader->transport, 1);
	rig_wait(&s->rig, s->reader, TRANSPORT_STOPPED, 1);
	rig_pull(s->source, s->reader, 2, s->from, s->parts[1]);
	rig_wait(&s->rig, s->reader, TRANSPORT_DONE, 2);
	cr_assert(rig_shards_equal(&s->from_shard, &s->shards[1]));
	finish(s);
}

Test(transport_pacing, congestion__unknown__sentence)
{
	struct transport_config config = {.congestion = "nosuch"};
	struct th_err err = {0};
	struct transport *transport;
	cr_assert_eq(transport_open(&config, &err, &transport), TH_E_INVALID);
	cr_assert(strstr(err.text, "congestion control nosuch"), "%s", err.text);
}

Test(transport_pacing, far_congestion__unknown__sentence)
{
	struct transport_config config = {.far.congestion = "nosuch"};
	struct th_err err = {0};
	struct transport *transport;
	cr_assert_eq(transport_open(&config, &err, &transport), TH_E_INVALID);
	cr_assert(strstr(err.text, "congestion control nosuch"), "%s", err.text);
}

/* Sockets of this process that have it. */
static uint32_t
with_congestion(const char *wanted)
{
	uint32_t found = 0;
	for (int fd = 3; fd < FDS_MAX; fd++) {
		char name[16] = "";
		socklen_t bytes = sizeof(name);
		if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) == 0 &&
			strcmp(name, wanted) == 0)
			found++;
	}
	return found;
}

/* At the source alone: who sends decides. */
static void
far_connections_are(bool far, uint32_t conns)
{
	const struct transport_far like = {.congestion = "reno", .connections = 5};
	struct setup *s = start_far(like, CALM_NS);
	s->source->far = s->reader->far = far;
	cr_assert_eq(with_congestion("reno"), 0);
	rig_pull(s->source, s->reader, 1, s->from, s->parts[0]);
	xfer_part_advance(s->from, 1);
	rig_wait_prefix(&s->rig, s->parts[0], 1);
	int64_t until_ns = th_now_ns() + INT64_C(30000000000);
	while (with_congestion("reno") != conns && th_now_ns() < until_ns)
		rig_pump(&s->rig, 10);
	cr_assert_eq(with_congestion("reno"), conns);
	finish(s);
}

Test(transport_pacing, far__has_its_own_connections_and_congestion_control)
{
	far_connections_are(true, 5);
}

Test(transport_pacing, near__has_nothing_of_what_is_for_far)
{
	far_connections_are(false, 0);
}

Test(transport_pacing, congestion__reno__is_what_connections_have)
{
	struct setup *s = start(0, 0);
	s->rig.congestion = "reno"; /* no kernel is without it */
	struct rig_agent *reader = rig_add_agent(&s->rig, CALM_NS, 2);
	rig_pull(s->source, reader, 1, s->from, s->parts[0]);
	xfer_part_advance(s->from, 1);
	rig_wait_prefix(&s->rig, s->parts[0], 1);
	/* Its door, and what it has dialled. */
	cr_assert_geq(with_congestion("reno"), 1 + 1 + 1);
	finish(s);
}
