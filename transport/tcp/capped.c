/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capped - the cap on what legs from other datacenters bring, all together, at the reader: it asks
 * for no more than it wants, so the cap holds for any source, and on the whole way. A connection of
 * such a leg may ask for a chunk when the acceptor gives it leave; those who wait get it in turn.
 * Nobody sleeps: a leave comes as a kick, when the bucket says so.
 *
 *   mover     leave_task --> acceptor: queued --> leave, kick_task --> mover: READ
 *   mover     return_task -> acceptor: a leave, or the part of it that a short chunk did not need
 */
#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "transport/tcp/bucket.h"
#include "transport/tcp/tcp.h"

TAILQ_HEAD(waiting_conns, data_in);

struct capped { /* the acceptor's */
	struct bucket bucket;
	struct waiting_conns waiting;
};

struct capped *
capped_new(uint64_t limit)
{
	if (limit == 0)
		return NULL;
	struct capped *capped = th_calloc(1, sizeof(*capped));
	capped->bucket.rate = limit;
	TAILQ_INIT(&capped->waiting);
	return capped;
}

void
capped_free(struct capped *capped)
{
	free(capped);
}

/* ---- acceptor ----------------------------------------------------------------------------- */

static struct capped *
cap_of(const struct data_in *conn)
{
	return (conn->leg->flags & TRANSPORT_FAR) ? conn->leg->transport->capped : NULL;
}

int64_t
capped_tick(struct capped *capped, int64_t now_ns)
{
	struct data_in *conn;
	while (capped && (conn = TAILQ_FIRST(&capped->waiting)) != NULL) {
		int64_t at_ns = bucket_take(&capped->bucket, CHUNK_BYTES_MAX, now_ns);
		if (at_ns != 0)
			return at_ns;
		TAILQ_REMOVE(&capped->waiting, conn, waiting);
		conn->queued = false;
		/* The source was not asked for anything until now. */
		leg_in_lives(conn->leg, now_ns);
		__atomic_store_n(&conn->leave, true, __ATOMIC_RELEASE);
		loop_post(conn->loop, &conn->kick_task);
	}
	return INT64_MAX;
}

static void
look_at_cap(const struct data_in *conn)
{
	loop_tick_at(conn->leg->transport->acceptor, capped_tick(cap_of(conn), th_now_ns()));
}

static void
run_leave(struct loop_task *task)
{
	struct data_in *conn = loop_container(task, struct data_in, leave_task);
	/* A kick that is posted after the close would find the connection freed. */
	if (conn->retired || conn->leg->state >= LEG_IN_ENDING)
		return;
	conn->queued = true;
	TAILQ_INSERT_TAIL(&cap_of(conn)->waiting, conn, waiting);
	look_at_cap(conn);
}

static void
run_return(struct loop_task *task)
{
	struct data_in *conn = loop_container(task, struct data_in, return_task);
	bucket_give(
		&cap_of(conn)->bucket, __atomic_exchange_n(&conn->returned, 0, __ATOMIC_RELAXED));
	look_at_cap(conn);
}

void
capped_forget(struct data_in *conn)
{
	if (conn->queued)
		TAILQ_REMOVE(&cap_of(conn)->waiting, conn, waiting);
	conn->queued = false;
	if (__atomic_exchange_n(&conn->leave, false, __ATOMIC_RELAXED)) {
		bucket_give(&cap_of(conn)->bucket, CHUNK_BYTES_MAX);
		look_at_cap(conn);
	}
}

/* ---- mover -------------------------------------------------------------------------------- */

void
capped_init(struct data_in *conn)
{
	conn->leave_task.run = run_leave;
	conn->return_task.run = run_return;
}

bool
capped_may_ask(struct data_in *conn)
{
	if (!cap_of(conn) || __atomic_load_n(&conn->leave, __ATOMIC_ACQUIRE))
		return true;
	if (!conn->asks_leave)
		loop_post(conn->leg->transport->acceptor, &conn->leave_task);
	conn->asks_leave = true;
	return false;
}

void
capped_asked(struct data_in *conn, uint32_t bytes)
{
	if (!cap_of(conn))
		return;
	__atomic_store_n(&conn->leave, false, __ATOMIC_RELAXED);
	conn->asks_leave = false;
	if (bytes == CHUNK_BYTES_MAX)
		return;
	__atomic_add_fetch(&conn->returned, CHUNK_BYTES_MAX - bytes, __ATOMIC_RELAXED);
	loop_post(conn->leg->transport->acceptor, &conn->return_task);
}
