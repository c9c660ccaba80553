/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_in - the stream path of a leg at its reader: its data connections (data_in.c), each on one of
 * the movers. Acceptor only.
 *
 *   IDLE -> MOVING <-> RETIRING (connections ask for nothing more, and go when idle) -> CLOSED
 */
#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "transport/tcp/tcp.h"

static struct tcp_in *
tcp_in_tcp_of(struct leg_in_path *path)
{
	return loop_container(path, struct tcp_in, path);
}

static void
tcp_in_enter(struct tcp_in *tcp, enum tcp_in_state state)
{
	__atomic_store_n(&tcp->state, state, __ATOMIC_RELEASE);
}

static void
add_conns(struct tcp_in *tcp)
{
	struct leg_in *leg = tcp->leg;
	uint32_t num_chunks = xfer_part_table(leg->part)->num_chunks;
	uint32_t missing = num_chunks - xfer_part_prefix(leg->part);
	const struct transport_config *config = &leg->transport->config;
	bool far = (leg->flags & TRANSPORT_FAR) != 0;
	uint32_t wanted = far ? config->far.connections : config->connections, there = 0;
	bool leads = true;
	/* Those that went when another path came may still count at the source when they come
	 * back. */
	if (leg->num_paths > 1)
		wanted = th_min_u32(wanted, CONNECTIONS_MAX / 2);
	for (uint32_t i = 0; i < tcp->num_conns; i++) {
		there += !tcp->conns[i]->retired;
		leads = leads && (tcp->conns[i]->retired || !tcp->conns[i]->leads);
	}
	for (; there < wanted && there < missing && tcp->num_conns < CONNECTIONS_MAX; there++) {
		struct loop *mover = acceptor_next_mover(leg->transport);
		tcp->conns[tcp->num_conns++] = data_in_new(tcp, mover, leads);
		leads = false;
	}
}

/* ---- what connections tell ---------------------------------------------------------------- */

void
tcp_in_conn_broken(struct tcp_in *tcp, const struct data_in *conn)
{
	if (!conn->retired) /* else it had nothing to do any more */
		leg_in_broken(tcp->leg, conn->code, conn->own);
}

void
tcp_in_conn_gone(struct tcp_in *tcp, struct data_in *conn)
{
	uint32_t i = 0;
	while (tcp->conns[i] != conn)
		i++;
	tcp->conns[i] = tcp->conns[--tcp->num_conns];
	capped_forget(conn);
	free(conn);
	if (tcp->state == TCP_IN_MOVING)
		add_conns(tcp); /* there was no room for as many as are wanted */
	leg_in_settle(tcp->leg);
}

/* Only one that has nothing left to do may go: the source would not know of it otherwise. */
void
tcp_in_conn_idle(struct tcp_in *tcp, struct data_in *conn)
{
	if (conn->retired || tcp->state != TCP_IN_RETIRING)
		return;
	conn->retired = true;
	capped_forget(conn);
	loop_post(conn->loop, &conn->close_task);
}

/* ---- what the leg asks -------------------------------------------------------------------- */

static struct leg_in_path *
tcp_in_open_path(struct leg_in *leg)
{
	struct tcp_in *tcp = th_calloc(1, sizeof(*tcp));
	tcp->path.ops = &tcp_in_ops;
	tcp->leg = leg;
	return &tcp->path;
}

/* Those that were about to go stay. */
static void
tcp_in_start(struct leg_in_path *path, unsigned welcome_flags)
{
	(void)welcome_flags;
	tcp_in_enter(tcp_in_tcp_of(path), TCP_IN_MOVING);
	add_conns(tcp_in_tcp_of(path));
}

static void
retire(struct leg_in_path *path)
{
	tcp_in_enter(tcp_in_tcp_of(path), TCP_IN_RETIRING);
}

/* A kick that is posted after the close would find the connection freed. */
static void
kick_conn(struct data_in *conn)
{
	if (!conn->retired)
		loop_post(conn->loop, &conn->kick_task);
}

static void
kick(struct leg_in_path *path)
{
	struct tcp_in *tcp = tcp_in_tcp_of(path);
	for (uint32_t i = 0; i < tcp->num_conns; i++)
		kick_conn(tcp->conns[i]);
}

/* Who leads asks ahead of what the source has. */
static void
tcp_in_grew(struct leg_in_path *path)
{
	struct tcp_in *tcp = tcp_in_tcp_of(path);
	for (uint32_t i = 0; i < tcp->num_conns; i++) {
		if (!tcp->conns[i]->leads)
			kick_conn(tcp->conns[i]);
	}
}

/* What our own memory has not taken yet cannot be sent by the source either, nor what it was not
 * asked for because of our own cap. */
static bool
tcp_in_excuses(struct leg_in_path *path)
{
	const struct tcp_in *tcp = tcp_in_tcp_of(path);
	bool held = false, capped = false, owed = false;
	for (uint32_t i = 0; i < tcp->num_conns; i++) {
		const struct data_in *conn = tcp->conns[i];
		held = held || __atomic_load_n(&conn->held, __ATOMIC_RELAXED);
		owed = owed || __atomic_load_n(&conn->owed, __ATOMIC_RELAXED) > 0;
		capped = capped || conn->queued;
	}
	return held || (capped && !owed);
}

static bool
tcp_in_moves(struct leg_in_path *path)
{
	return tcp_in_tcp_of(path)->state == TCP_IN_MOVING;
}

static void
tcp_in_close_path(struct leg_in_path *path, bool done)
{
	struct tcp_in *tcp = tcp_in_tcp_of(path);
	tcp_in_enter(tcp, TCP_IN_CLOSED);
	for (uint32_t i = 0; i < tcp->num_conns; i++) {
		struct data_in *conn = tcp->conns[i];
		if (conn->retired)
			continue;
		conn->reset = !done;
		capped_forget(conn);
		loop_post(conn->loop, &conn->close_task);
	}
}

static bool
tcp_in_gone(struct leg_in_path *path)
{
	return tcp_in_tcp_of(path)->state == TCP_IN_CLOSED && tcp_in_tcp_of(path)->num_conns == 0;
}

static void
tcp_in_free_path(struct leg_in_path *path)
{
	free(tcp_in_tcp_of(path));
}

const struct leg_in_path_ops tcp_in_ops = {
	.open = tcp_in_open_path,
	.start = tcp_in_start,
	.retire = retire,
	.kick = kick,
	.grew = tcp_in_grew,
	.excuses = tcp_in_excuses,
	.moves = tcp_in_moves,
	.close = tcp_in_close_path,
	.gone = tcp_in_gone,
	.free = tcp_in_free_path,
};
