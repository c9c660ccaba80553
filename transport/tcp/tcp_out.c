/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_out - the stream path of a leg at its source: the data connections that its reader opens
 * (data_out.c), each on one of the movers. Acceptor only, but for grew.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/fd.h"
#include "transport/tcp/tcp.h"

static struct tcp_out *
tcp_out_tcp_of(struct leg_out_path *path)
{
	return loop_container(path, struct tcp_out, path);
}

struct tcp_out *
tcp_out_of(const struct leg_out *leg)
{
	for (uint32_t i = 0; i < leg->num_paths; i++) {
		if (leg->paths[i]->ops == &tcp_out_ops)
			return tcp_out_tcp_of(leg->paths[i]);
	}
	return NULL;
}

/* ---- connections -------------------------------------------------------------------------- */

/* A kick that is posted after the close would find the connection freed: none is from here on. */
static void
close_conn(struct data_out *conn, bool reset)
{
	if (conn->closing)
		return;
	pthread_mutex_lock(&conn->tcp->lock);
	conn->closing = true;
	pthread_mutex_unlock(&conn->tcp->lock);
	conn->reset = reset;
	loop_post(conn->loop, &conn->close_task);
}

void
tcp_out_join(struct tcp_out *tcp, int fd)
{
	struct transport *transport = tcp->leg->transport;
	if (tcp->num_conns == CONNECTIONS_MAX) {
		th_fd_close(&fd);
		leg_out_fail(tcp->leg, "the reader opened too many connections");
		return;
	}
	if (tcp->leg->flags & TRANSPORT_FAR)
		socket_set_congestion(fd, transport->far_congestion);
	struct data_out *conn = data_out_new(tcp, acceptor_next_mover(transport), fd);
	pthread_mutex_lock(&tcp->lock);
	tcp->conns[tcp->num_conns++] = conn;
	pthread_mutex_unlock(&tcp->lock);
	/* Not before: it may wait at once for a prefix whose watcher must know it. */
	data_out_start(conn);
	pacing_divide(transport);
}

void
tcp_out_conn_broken(struct tcp_out *tcp, struct data_out *conn)
{
	if (conn->own || conn->code == TH_E_PROTOCOL)
		leg_out_lost(tcp->leg, conn->code, conn->row);
	else
		/* The reader knows as well and judges: its control connection tells how it goes
		 * on. */
		close_conn(conn, false);
}

void
tcp_out_conn_gone(struct tcp_out *tcp, struct data_out *conn)
{
	pthread_mutex_lock(&tcp->lock);
	uint32_t i = 0;
	while (tcp->conns[i] != conn)
		i++;
	tcp->conns[i] = tcp->conns[--tcp->num_conns];
	pthread_mutex_unlock(&tcp->lock);
	free(conn);
	pacing_divide(tcp->leg->transport);
	leg_out_settle(tcp->leg);
}

/* ---- what the leg asks -------------------------------------------------------------------- */

static bool
may_send_files(const struct leg_out *leg)
{
	if (leg->transport->config.sendfile != TRANSPORT_SENDFILE_AUTO)
		return leg->transport->config.sendfile == TRANSPORT_SENDFILE_YES;
	return !leg->same_host;
}

static struct leg_out_path *
tcp_out_open_path(struct leg_out *leg, unsigned hello_flags, unsigned *ret_welcome_flags)
{
	struct tcp_out *tcp = th_calloc(1, sizeof(*tcp));
	(void)ret_welcome_flags;
	tcp->path.ops = &tcp_out_ops;
	tcp->leg = leg;
	tcp->late_reads = (hello_flags & FRAME_VERIFIES) && leg->verify && may_send_files(leg);
	pthread_mutex_init(&tcp->lock, NULL);
	return &tcp->path;
}

static void
tcp_out_grew(struct leg_out_path *path)
{
	struct tcp_out *tcp = tcp_out_tcp_of(path);
	pthread_mutex_lock(&tcp->lock);
	for (uint32_t i = 0; i < tcp->num_conns; i++) {
		struct data_out *conn = tcp->conns[i];
		if (!conn->closing && __atomic_load_n(&conn->waiting, __ATOMIC_SEQ_CST))
			loop_post(conn->loop, &conn->kick_task);
	}
	pthread_mutex_unlock(&tcp->lock);
}

static bool
tcp_out_waits(struct leg_out_path *path)
{
	const struct tcp_out *tcp = tcp_out_tcp_of(path);
	for (uint32_t i = 0; i < tcp->num_conns; i++) {
		if (__atomic_load_n(&tcp->conns[i]->waiting, __ATOMIC_SEQ_CST))
			return true;
	}
	return false;
}

static bool
tcp_out_moves(struct leg_out_path *path)
{
	return tcp_out_tcp_of(path)->num_conns > 0;
}

/* Some of it went out of files. */
static void
tcp_out_say(struct leg_out_path *path, struct transport_event *ret_event)
{
	if (__atomic_load_n(&tcp_out_tcp_of(path)->spliced, __ATOMIC_RELAXED))
		memcpy(ret_event->transport, "tcp sendfile", sizeof("tcp sendfile"));
}

static void
tcp_out_close_path(struct leg_out_path *path, bool reset)
{
	struct tcp_out *tcp = tcp_out_tcp_of(path);
	for (uint32_t i = 0; i < tcp->num_conns; i++)
		close_conn(tcp->conns[i], reset);
}

static bool
tcp_out_gone(struct leg_out_path *path)
{
	return tcp_out_tcp_of(path)->num_conns == 0;
}

static void
tcp_out_free_path(struct leg_out_path *path)
{
	struct tcp_out *tcp = tcp_out_tcp_of(path);
	pthread_mutex_destroy(&tcp->lock);
	free(tcp);
}

const struct leg_out_path_ops tcp_out_ops = {
	.open = tcp_out_open_path,
	.grew = tcp_out_grew,
	.waits = tcp_out_waits,
	.moves = tcp_out_moves,
	.say = tcp_out_say,
	.close = tcp_out_close_path,
	.gone = tcp_out_gone,
	.free = tcp_out_free_path,
};
