/* SPDX-License-Identifier: Apache-2.0 */
/*
 * acceptor - the door of the data port: accepts, reads a ticket or a key and nothing more, and runs
 * the shell's commands. One thread (mover_loop.h), which also owns the legs (leg_in.c, leg_out.c).
 *
 * Until a stranger has shown a ticket that is expected (tickets.h), it costs a descriptor and less
 * than 512 bytes, for hello_ns at most, and as long again for its ticket. When there are too many,
 * the oldest that has shown nothing goes.
 *
 * A ticket is random bits, so any stranger can make one that looks good, and when its grant is not
 * here yet it waits for hello_ns. It counts until then, also when who presented it has left, and
 * one address has a part of the places only, so that who floods the port keeps out the readers of
 * its own address and no others.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "transport/tcp/tcp.h"

#define ACCEPTS_AT_ONCE 64
#define DOOR_REST_NS INT64_C(100000000) /* when the machine has nothing left for a connection */
#define HELLO_BYTES (FRAME_BYTES + FRAME_HELLO_BYTES)

struct stranger {
	TAILQ_ENTRY(stranger) entry;
	struct stream stream;
	struct transport *transport;
	int64_t deadline_ns;
	bool asked;                /* its ticket waits for its grant */
	struct ticket_knock knock; /* then */
	uint64_t reader_leg;
	unsigned hello_flags; /* of the ticket's frame */
	uint8_t data[HELLO_BYTES];
	uint32_t have, need;
	uint64_t host; /* its address without the port, as far as nobody can choose it freely */
	char peer[PEER_BYTES];
};

static struct stranger *
stranger_of(struct stream *stream)
{
	return loop_container(stream, struct stranger, stream);
}

static void
free_stranger(struct stranger *stranger)
{
	struct transport *transport = stranger->transport;
	TAILQ_REMOVE(&transport->strangers, stranger, entry);
	if (stranger->asked)
		tickets_leave(&transport->tickets, &stranger->knock);
	else
		transport->num_reading--;
	stream_close(&stranger->stream, false);
	free(stranger);
}

static void
drop_stranger(struct stranger *stranger, const char *why)
{
	count_up(&stranger->transport->counters.strangers_refused, 1);
	log_debug("transport", "dropped a connection to the data port peer=%s why='%s'",
		stranger->peer, why);
	free_stranger(stranger);
}

/* ---- ticket or key ------------------------------------------------------------------------ */

static uint32_t
acceptor_recv_want(struct stream *stream, struct iovec *ret_ranges)
{
	struct stranger *stranger = stranger_of(stream);
	if (stranger->asked)
		return 0;
	/* Not a byte more: what follows a key is its data connection's. */
	ret_ranges[0] =
		(struct iovec){stranger->data + stranger->have, stranger->need - stranger->have};
	return 1;
}

/* Of IPv6 the network: whoever has one may take any address in it. */
static uint64_t
acceptor_host_of(const struct sockaddr_storage *address)
{
	uint64_t host = 0;
	if (address->ss_family == AF_INET6) {
		const struct in6_addr *v6 = &((const struct sockaddr_in6 *)address)->sin6_addr;
		bool v4 = IN6_IS_ADDR_V4MAPPED(v6);
		memcpy(&host, v6->s6_addr + (v4 ? 12 : 0), v4 ? 4 : sizeof(host));
	} else {
		const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
		memcpy(&host, &v4->sin_addr, sizeof(v4->sin_addr));
	}
	return host;
}

static bool
asks_too_much(const struct transport *transport, uint64_t host)
{
	const struct stranger *other;
	uint32_t count = 0;
	if (transport->tickets.num_knocks <= ASKED_BY_ONE)
		return false;
	TAILQ_FOREACH(other, &transport->strangers, entry)
	{
		count += other->asked && other->host == host;
	}
	return count > ASKED_BY_ONE;
}

/* Its leg begins, with what is left of its connection. */
static void
let_in(struct stranger *stranger, struct leg_out *leg)
{
	uint64_t reader_leg = stranger->reader_leg;
	unsigned hello_flags = stranger->hello_flags;
	int fd = stream_release(&stranger->stream);
	free_stranger(stranger);
	leg_out_start(leg, fd, reader_leg, hello_flags);
}

static void
turn_away(struct stranger *stranger, int code, const char *text)
{
	size_t bytes = strnlen(text, TH_CTL_TEXT_BYTES);
	uint8_t message[FRAME_BYTES + TH_CTL_TEXT_BYTES];
	struct frame frame = {.kind = FRAME_REFUSED,
		.leg = stranger->reader_leg,
		.count = code < 0 ? 0u - (uint32_t)code : 0,
		.bytes = bytes};
	frame_encode(&frame, message);
	memcpy(message + FRAME_BYTES, text, bytes);
	/* Nothing was sent on this connection yet: it takes all, or the peer is gone. */
	if (stranger->stream.fd >= 0) {
		ssize_t sent = send(stranger->stream.fd, message, FRAME_BYTES + bytes,
			MSG_DONTWAIT | MSG_NOSIGNAL);
		(void)sent;
	}
	count_up(&stranger->transport->counters.tickets_refused, 1);
	log_warn("transport", "ticket refused peer=%s code=%s reason=\"%s\"", stranger->peer,
		th_errname(code), text);
	drop_stranger(stranger, text);
}

/* 1: the stranger is gone. */
static int
acceptor_on_hello(struct stranger *stranger)
{
	struct transport *transport = stranger->transport;
	struct frame_hello hello;
	struct ticket_grant *grant;
	frame_decode_hello(stranger->data + FRAME_BYTES, &hello);
	if (hello.protocol != FRAME_PROTOCOL || hello.mode != FRAME_MODE_TCP)
		return TH_E_PROTOCOL;
	stranger->knock.ticket = hello.ticket;
	int rc = tickets_knock(&transport->tickets, &stranger->knock, &grant);
	if (rc == 0) {
		let_in(stranger, loop_container(grant, struct leg_out, grant));
		return 1;
	}
	if (rc == TH_E_DENIED) {
		turn_away(stranger, rc, "this ticket has been presented before");
		return 1;
	}
	stranger->asked = true;
	transport->num_reading--;
	if (transport->tickets.num_knocks > ASKED_MAX || asks_too_much(transport, stranger->host)) {
		drop_stranger(stranger, "too many tickets wait for their grant");
		return 1;
	}
	/* The place is taken for as long as the grant may take. */
	stranger->deadline_ns = th_now_ns() + transport->config.hello_ns;
	TAILQ_REMOVE(&transport->strangers, stranger, entry);
	TAILQ_INSERT_TAIL(&transport->strangers, stranger, entry);
	return 0;
}

static int
on_join(struct stranger *stranger)
{
	struct leg_out *leg = leg_out_find_key(
		stranger->transport, stranger->data + FRAME_BYTES, stranger->reader_leg);
	if (!leg)
		return TH_E_DENIED;
	int fd = stream_release(&stranger->stream);
	free_stranger(stranger);
	tcp_out_join(tcp_out_of(leg), fd);
	return 1;
}

static int
acceptor_recv_got(struct stream *stream, const struct iovec *ranges, size_t bytes)
{
	struct stranger *stranger = stranger_of(stream);
	(void)ranges;
	stranger->have += (uint32_t)bytes;
	if (stranger->have < stranger->need)
		return 0;
	struct frame frame;
	int rc = frame_decode(stranger->data, &frame);
	if (rc < 0)
		return rc;
	if (frame.kind != FRAME_HELLO && frame.kind != FRAME_JOIN)
		return TH_E_PROTOCOL;
	if (stranger->have == FRAME_BYTES) {
		stranger->need = FRAME_BYTES + (uint32_t)frame.bytes;
		return 0;
	}
	stranger->reader_leg = frame.leg;
	stranger->hello_flags = frame.flags;
	return frame.kind == FRAME_HELLO ? acceptor_on_hello(stranger) : on_join(stranger);
}

static uint32_t
acceptor_send_want(struct stream *stream, struct iovec *ret_ranges)
{
	(void)stream;
	(void)ret_ranges;
	return 0;
}

static void
acceptor_broken(struct stream *stream, int code)
{
	struct stranger *stranger = stranger_of(stream);
	if (stranger->asked)
		return; /* its place stays taken until it is judged, or its time is over */
	if (code == STREAM_EOF && stranger->have == 0)
		free_stranger(stranger);
	else
		drop_stranger(stranger, th_strerror(code));
}

static const struct stream_ops stranger_ops = {
	.recv_want = acceptor_recv_want,
	.recv_got = acceptor_recv_got,
	.send_want = acceptor_send_want,
	.broken = acceptor_broken,
};

/* ---- accepting ---------------------------------------------------------------------------- */

static void
admit(struct transport *transport, int fd, const struct sockaddr_storage *address)
{
	if (transport->num_reading >= STRANGERS_MAX) {
		struct stranger *oldest = TAILQ_FIRST(&transport->strangers);
		while (oldest->asked)
			oldest = TAILQ_NEXT(oldest, entry);
		drop_stranger(oldest, "too many connections without a ticket");
	}
	struct stranger *stranger = th_calloc(1, sizeof(*stranger));
	stranger->transport = transport;
	stranger->need = FRAME_BYTES;
	stranger->deadline_ns = th_now_ns() + transport->config.hello_ns;
	stranger->host = acceptor_host_of(address);
	socket_name(address, stranger->peer);
	TAILQ_INSERT_TAIL(&transport->strangers, stranger, entry);
	transport->num_reading++;
	int rc = stream_open(&stranger->stream, transport->acceptor, &stranger_ops, fd, false);
	if (rc < 0)
		drop_stranger(stranger, th_strerror(rc));
	else
		loop_tick_at(transport->acceptor, stranger->deadline_ns);
}

/*
 * Out of what a connection needs. The port would call again and again: it is not listened to for a
 * moment, the kernel keeps who comes meanwhile.
 */
static void
rest_door(struct transport *transport)
{
	stream_listen(&transport->door, false);
	transport->door_ns = th_now_ns() + DOOR_REST_NS;
	loop_tick_at(transport->acceptor, transport->door_ns);
}

/* No descriptors left: one caller is told, with the spare one. */
static void
shed(struct transport *transport)
{
	th_fd_close(&transport->spare_fd);
	int fd = accept4(transport->door.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	th_fd_close(&fd);
	transport->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	count_up(&transport->counters.strangers_refused, 1);
	log_warn("transport", "refused a connection to the data port why='no descriptors left'");
}

static void
acceptor_ready(struct stream *stream)
{
	struct transport *transport = loop_container(stream, struct transport, door);
	for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
		struct sockaddr_storage address = {0};
		socklen_t bytes = sizeof(address);
		int fd = accept4(stream->fd, (struct sockaddr *)&address, &bytes,
			SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0) {
			admit(transport, fd, &address);
		} else if (errno == EMFILE || errno == ENFILE) {
			shed(transport);
			rest_door(transport);
			return;
		} else if (errno == ENOMEM || errno == ENOBUFS) {
			log_warn("transport",
				"cannot accept a connection to the data port why='%s'",
				th_strerror(-errno));
			rest_door(transport);
			return;
		} else if (errno == EAGAIN) {
			return;
		}
		/* Anything else is about that one connection. */
	}
}

static void
door_broken(struct stream *stream, int code)
{
	(void)stream;
	log_error("transport", "the data port is closed: no reader can reach this agent why='%s'",
		th_strerror(code));
}

static const struct stream_ops door_ops = {.ready = acceptor_ready, .broken = door_broken};

struct open_door {
	struct loop_task task;
	struct transport *transport;
};

static void
run_open_door(struct loop_task *task)
{
	struct open_door *open_door = loop_container(task, struct open_door, task);
	struct transport *transport = open_door->transport;
	free(open_door);
	int rc = stream_open(&transport->door, transport->acceptor, &door_ops,
		th_fd_move(&transport->listen_fd), false);
	if (rc < 0)
		door_broken(&transport->door, rc);
}

void
acceptor_open_door(struct transport *transport)
{
	struct open_door *open_door = th_calloc(1, sizeof(*open_door));
	open_door->task.run = run_open_door;
	open_door->transport = transport;
	loop_post(transport->acceptor, &open_door->task);
}

/* ---- clock -------------------------------------------------------------------------------- */

int64_t
acceptor_tick(void *arg, int64_t now_ns)
{
	struct transport *transport = arg;
	if (now_ns >= transport->door_ns) {
		transport->door_ns = INT64_MAX;
		stream_listen(&transport->door, true);
	}
	int64_t next_ns = th_min_i64(transport->door_ns, capped_tick(transport->capped, now_ns));
	/* All have the same time: the oldest is the first. */
	struct stranger *stranger;
	while ((stranger = TAILQ_FIRST(&transport->strangers)) != NULL) {
		if (now_ns < stranger->deadline_ns) {
			next_ns = th_min_i64(next_ns, stranger->deadline_ns);
			break;
		}
		if (stranger->asked)
			turn_away(stranger, TH_E_DENIED,
				"the reference server has granted no such ticket");
		else
			drop_stranger(stranger, "no ticket in time");
	}
	/* No leg leaves its list within a tick: the last step of an end is a task. */
	for (struct leg_in *leg = LIST_FIRST(&transport->legs_in); leg; leg = leg_in_next(leg))
		next_ns = th_min_i64(next_ns, leg_in_tick(leg, now_ns));
	for (struct leg_out *leg = LIST_FIRST(&transport->legs_out); leg; leg = leg_out_next(leg))
		next_ns = th_min_i64(next_ns, leg_out_tick(leg, now_ns));
	return next_ns;
}

struct loop *
acceptor_next_mover(struct transport *transport)
{
	return transport->movers[transport->next_mover++ % transport->num_movers];
}

/* ---- commands ----------------------------------------------------------------------------- */

static struct stranger *
stranger_with(struct ticket_knock *knock)
{
	return loop_container(knock, struct stranger, knock);
}

static void
acceptor_expect(struct transport *transport, struct leg_out *leg)
{
	struct ticket_knock *knock = tickets_expect(&transport->tickets, &leg->grant);
	if (!knock)
		return;
	struct stranger *stranger = stranger_with(knock);
	stranger->asked = false;
	transport->num_reading++;
	let_in(stranger, leg);
}

static void
acceptor_refuse(struct transport *transport, const struct command *command)
{
	struct ticket_knock *knock = tickets_waiting(&transport->tickets, &command->ticket);
	if (knock)
		turn_away(stranger_with(knock), command->code, command->text);
}

static void
close_all(struct transport *transport)
{
	transport->closing = true;
	stream_close(&transport->door, false);
	while (!TAILQ_EMPTY(&transport->strangers))
		free_stranger(TAILQ_FIRST(&transport->strangers));
	for (struct leg_in *leg = LIST_FIRST(&transport->legs_in); leg; leg = leg_in_next(leg)) {
		/* The process ends: a write that is stuck in a worker's memory is left behind. */
		xfer_part_orphan(leg->part);
		leg_in_stop(leg);
	}
	struct ticket_grant *next;
	for (struct ticket_grant *grant = LIST_FIRST(&transport->tickets.grants); grant;
		grant = next) {
		next = LIST_NEXT(grant, entry);
		leg_out_fence(loop_container(grant, struct leg_out, grant));
	}
	acceptor_left(transport);
}

void
acceptor_left(struct transport *transport)
{
	if (transport->closing && LIST_EMPTY(&transport->legs_in) &&
		LIST_EMPTY(&transport->tickets.grants))
		sem_post(&transport->closed);
}

void
acceptor_command(struct loop_task *task)
{
	struct command *command = loop_container(task, struct command, task);
	struct transport *transport = command->transport;
	struct leg_in *leg_in;
	struct leg_out *leg_out;
	switch (command->kind) {
	case COMMAND_PULL:
		leg_in_start(command->leg_in);
		break;
	case COMMAND_DROP_DONOR:
		leg_in = leg_in_find(transport, command->id);
		if (leg_in)
			leg_in_drop_donor(leg_in);
		break;
	case COMMAND_STOP:
		leg_in = leg_in_find(transport, command->id);
		if (leg_in)
			leg_in_stop(leg_in);
		break;
	case COMMAND_EXPECT:
		acceptor_expect(transport, command->leg_out);
		break;
	case COMMAND_REFUSE:
		acceptor_refuse(transport, command);
		break;
	case COMMAND_FENCE:
		leg_out = leg_out_find(transport, command->id);
		if (leg_out)
			leg_out_fence(leg_out);
		break;
	case COMMAND_CLOSE:
		close_all(transport);
		break;
	}
	free(command);
}
