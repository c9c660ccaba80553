/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transport against hosts that vanish: no end, no reset, and nothing is acknowledged any
 * more. A filter that drops all that a socket is sent makes its peer as dead as a cut wire.
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <linux/filter.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "tests/support/transport/transport_peer.h"

#define LEG 5
#define DEAD_NS INT64_C(1000000000)
#define LATEST_NS INT64_C(15000000000) /* by far: the machine may be busy */

/* From now on the kernel drops each segment to this socket, and acknowledges none. */
static void
vanish(int fd)
{
	struct sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
	struct sock_fprog program = {.len = 1, .filter = nothing};
	int rc = setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
	cr_assert_eq(rc, 0);
}

struct dead {
	struct peer_setup *s;
	struct rig_agent *source;
	int control, data, before;
};

/* A reader that has joined, at a source that is patient for DEAD_NS only. */
static struct dead
enter(uint32_t prefix)
{
	struct dead dead = {.s = peer_start(prefix)};
	uint8_t key[FRAME_KEY_BYTES];
	dead.s->rig.dead_ns = DEAD_NS;
	dead.s->agent = rig_add_agent(&dead.s->rig, STALL_NS, 1);
	dead.before = peer_descriptors();
	dead.control = peer_enter(dead.s, LEG, dead.s->part, key);
	dead.data = peer_join(dead.s, LEG, key);
	return dead;
}

/* Nobody fences: the kernel alone finds out. */
static void
expect_gone(struct dead *dead, int64_t since_ns)
{
	const struct transport_event *ended =
		rig_wait(&dead->s->rig, dead->s->agent, TRANSPORT_ENDED, LEG);
	int64_t took_ns = th_now_ns() - since_ns;
	cr_assert_eq(ended->code, TH_E_NO_PATH, "%d %s", ended->code, ended->text);
	cr_assert(strstr(ended->text, "the reader is gone"), "%s", ended->text);
	cr_assert_geq(took_ns, DEAD_NS / 2);
	cr_assert_lt(took_ns, LATEST_NS);
	cr_assert_eq(rig_counters(dead->s->agent).legs_fenced, 0);
	close(dead->control);
	close(dead->data);
	/* Data connections end before their leg does. */
	cr_assert_eq(peer_descriptors(), dead->before);
	peer_finish(dead->s);
}

Test(transport_dead, readers_host_vanishes_while_bytes_flow__leg_ends_and_nothing_stays)
{
	struct dead dead = enter(8);
	peer_ask(dead.data, LEG, 0, 1);
	peer_take_data(dead.s, dead.data, 0);
	int64_t start_ns = th_now_ns();
	vanish(dead.control);
	vanish(dead.data);
	peer_ask(dead.data, LEG, 1, 7);
	rig_wait(&dead.s->rig, dead.s->agent, TRANSPORT_STALLED, LEG);
	expect_gone(&dead, start_ns);
}

Test(transport_dead, readers_host_vanishes_while_nothing_flows__leg_ends_and_nothing_stays)
{
	struct dead dead = enter(8);
	peer_ask(dead.data, LEG, 0, 1);
	peer_take_data(dead.s, dead.data, 0);
	int64_t start_ns = th_now_ns();
	vanish(dead.control);
	vanish(dead.data);
	expect_gone(&dead, start_ns);
}

/* The source has nothing to send yet, and says so again and again to nobody. */
Test(transport_dead, readers_host_vanishes_while_the_source_waits__leg_ends_and_nothing_stays)
{
	struct dead dead = enter(2);
	peer_ask(dead.data, LEG, 5, 1);
	for (bool waits = false; !waits;) {
		static uint8_t digests[8 * 16];
		struct frame frame = peer_get_frame(dead.control);
		cr_assert_eq(frame.kind, FRAME_PROGRESS);
		cr_assert_leq(frame.bytes, sizeof(digests));
		if (frame.bytes > 0)
			peer_get(dead.control, digests, (size_t)frame.bytes);
		waits = frame.flags & FRAME_WAITING;
	}
	int64_t start_ns = th_now_ns();
	vanish(dead.control);
	vanish(dead.data);
	expect_gone(&dead, start_ns);
}

/* Nobody answers at all: not even the call is taken. */
Test(transport_dead, sources_host_is_not_there__failed_in_time_and_nothing_stays)
{
	struct peer_setup *s = peer_start(8);
	struct rig_shard copy;
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t bytes = sizeof(address);
	struct th_ticket ticket = rig_ticket(LEG);
	char name[64];
	rig_shard_init(&copy, peer_eight_chunks, 1, 0);
	struct xfer_part *to = rig_part(&copy, true);
	int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	cr_assert_eq(bind(door, (struct sockaddr *)&address, sizeof(address)), 0);
	cr_assert_eq(listen(door, 8), 0);
	vanish(door);
	getsockname(door, (struct sockaddr *)&address, &bytes);
	snprintf(name, sizeof(name), "127.0.0.1:%u", ntohs(address.sin_port));
	int before = peer_descriptors();
	int64_t start_ns = th_now_ns();
	cr_assert_eq(transport_pull(s->agent->transport, LEG, name, &ticket, to, NULL, 0), 0);
	const struct transport_event *failed = rig_wait(&s->rig, s->agent, TRANSPORT_FAILED, LEG);
	cr_assert_lt(th_now_ns() - start_ns, LATEST_NS);
	cr_assert_eq(failed->code, TH_E_NO_PATH);
	cr_assert(failed->source_failed && !failed->overwrote);
	cr_assert(strstr(failed->text, "does not answer"), "%s", failed->text);
	cr_assert_eq(peer_descriptors(), before);
	close(door);
	rig_fini(&s->rig);
	s->rig.num_agents = 0;
	xfer_part_release(to);
	rig_shard_fini(&copy);
	peer_finish(s);
}
