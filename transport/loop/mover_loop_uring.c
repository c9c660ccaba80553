/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover_loop_uring - see mover_loop_uring.h.
 *
 * An operation is its own memory and outlives its stream: when the stream goes, the operation is
 * cancelled and told of nobody. For a poll that may take its time. A receive must not write to the
 * stream's memory any more, so its cancelling is waited for (IORING_REGISTER_SYNC_CANCEL, Linux
 * 6.0): when that returns it is over, or will end without having been tried again.
 */
#include "transport/loop/mover_loop_uring.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "transport/loop/mover_loop.h"

#define ENTRIES 256u
#define SERVED_MAX 64

struct uring_op {
	LIST_ENTRY(uring_op) entry;
	void *tag; /* the stream; NULL: nobody wants to know any more */
	uint32_t mask;
	bool receives, landed;
	int32_t result;
	struct msghdr message;
	struct iovec ranges[]; /* LOOP_RANGES_MAX, of one that receives */
};

struct uring {
	struct io_uring ring;
	LIST_HEAD(, uring_op) ops; /* own: all in flight or landed */
	struct uring_op *taken;    /* owns: until uring_took */
	struct stream *served[SERVED_MAX];
	int num_served;
	int wake_fd; /* borrows */
	void *wake_tag;
	bool wake_armed;
};

static struct io_uring_sqe *
next_sqe(struct uring *uring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
	while (!sqe) {
		int rc = io_uring_submit(&uring->ring);
		TH_ASSERT(rc >= 0 || rc == -EBUSY || rc == -EAGAIN || rc == -EINTR);
		sqe = io_uring_get_sqe(&uring->ring);
	}
	return sqe;
}

static struct uring_op *
new_op(struct uring *uring, void *tag, uint32_t num_ranges)
{
	struct uring_op *op = th_calloc(1, sizeof(*op) + num_ranges * sizeof(op->ranges[0]));
	op->tag = tag;
	LIST_INSERT_HEAD(&uring->ops, op, entry);
	return op;
}

static void
free_op(struct uring_op *op)
{
	LIST_REMOVE(op, entry);
	free(op);
}

static struct uring_op *
poll_for(struct uring *uring, int fd, void *tag, uint32_t mask)
{
	struct uring_op *op = new_op(uring, tag, 0);
	struct io_uring_sqe *sqe = next_sqe(uring);
	op->mask = mask;
	io_uring_prep_poll_add(sqe, fd, mask);
	io_uring_sqe_set_data(sqe, op);
	return op;
}

/* A poll touches no memory: it need not be waited for. */
static void
drop_poll(struct uring *uring, struct uring_op **link)
{
	struct uring_op *op = *link;
	if (!op)
		return;
	struct io_uring_sqe *sqe = next_sqe(uring);
	op->tag = NULL;
	*link = NULL;
	io_uring_prep_cancel(sqe, op, 0);
	io_uring_sqe_set_data(sqe, NULL);
}

static void
mover_loop_uring_receive(struct uring *uring, struct stream *stream)
{
	struct uring_op *op = new_op(uring, stream, LOOP_RANGES_MAX);
	uint32_t count = stream->ops->recv_want(stream, op->ranges);
	if (count == 0) {
		free_op(op);
		stream->interest &= ~(uint32_t)EPOLLIN;
		return;
	}
	struct io_uring_sqe *sqe = next_sqe(uring);
	op->receives = true;
	op->message = (struct msghdr){.msg_iov = op->ranges, .msg_iovlen = count};
	io_uring_prep_recvmsg(sqe, stream->fd, &op->message, 0);
	io_uring_sqe_set_data(sqe, op);
	stream->receiving = op;
}

void
uring_set(struct uring *uring, struct stream *stream)
{
	bool bulk = stream->ops->bulk_in && !stream->connecting;
	if (bulk && (stream->interest & EPOLLIN) && !stream->receiving)
		mover_loop_uring_receive(uring, stream);
	uint32_t in = stream->interest & (EPOLLIN | EPOLLRDHUP);
	if (bulk && stream->receiving)
		in = 0; /* it finds the end itself */
	if (stream->poll_in && stream->poll_in->mask != in)
		drop_poll(uring, &stream->poll_in);
	if (in != 0 && !stream->poll_in)
		stream->poll_in = poll_for(uring, stream->fd, stream, in);
	if ((stream->interest & EPOLLOUT) && !stream->poll_out)
		stream->poll_out = poll_for(uring, stream->fd, stream, EPOLLOUT);
}

static void
end_receive(struct uring *uring, struct uring_op *op)
{
	if (op->landed) {
		free_op(op);
		return;
	}
	struct io_uring_sync_cancel_reg cancel = {
		.addr = (uint64_t)(uintptr_t)op, .fd = -1, .timeout = {-1, -1}};
	/* What is not submitted yet cannot be cancelled. */
	int rc = io_uring_submit(&uring->ring);
	TH_ASSERT(rc >= 0 || rc == -EBUSY || rc == -EAGAIN || rc == -EINTR);
	do
		rc = io_uring_register_sync_cancel(&uring->ring, &cancel);
	while (rc == -EINTR);
	TH_ASSERT(rc >= 0 || rc == -ENOENT || rc == -EALREADY);
	op->tag = NULL;
}

void
uring_remove(struct uring *uring, struct stream *stream)
{
	drop_poll(uring, &stream->poll_in);
	drop_poll(uring, &stream->poll_out);
	if (stream->receiving)
		end_receive(uring, stream->receiving);
	stream->receiving = NULL;
	for (int i = 0; i < uring->num_served; i++) {
		if (uring->served[i] == stream)
			uring->served[i] = NULL;
	}
	/* The operations hold the connection until they end: the peer is to see that. */
	int rc = io_uring_submit(&uring->ring);
	(void)rc;
	(void)io_uring_get_events(&uring->ring);
}

/* One completion. True: *ret_event says it. */
static bool
mover_loop_uring_complete(
	struct uring *uring, const struct io_uring_cqe *cqe, struct epoll_event *ret_event)
{
	struct uring_op *op = io_uring_cqe_get_data(cqe);
	if (!op)
		return false;
	if (!op->tag) {
		free_op(op);
		return false;
	}
	*ret_event = (struct epoll_event){.data.ptr = op->tag};
	if (op->tag == uring->wake_tag) {
		uring->wake_armed = false;
		free_op(op);
		return true;
	}
	struct stream *stream = op->tag;
	uring->served[uring->num_served++] = stream;
	if (op->receives) {
		op->landed = true;
		op->result = cqe->res;
		ret_event->events = EPOLLIN;
		return true;
	}
	if (stream->poll_in == op)
		stream->poll_in = NULL;
	else
		stream->poll_out = NULL;
	ret_event->events = cqe->res < 0 ? EPOLLERR : (uint32_t)cqe->res;
	free_op(op);
	return true;
}

int
uring_wait(struct uring *uring, struct epoll_event *ret_events, int count, int timeout_ms)
{
	struct __kernel_timespec timeout = {
		.tv_sec = timeout_ms / 1000, .tv_nsec = (long long)(timeout_ms % 1000) * 1000000};
	struct io_uring_cqe *cqe;
	int used = 0;
	/* As with level-triggered epoll: who was served is looked at again. */
	for (int i = 0; i < uring->num_served; i++) {
		if (uring->served[i])
			uring_set(uring, uring->served[i]);
	}
	uring->num_served = 0;
	if (!uring->wake_armed)
		(void)poll_for(uring, uring->wake_fd, uring->wake_tag, EPOLLIN);
	uring->wake_armed = true;
	int rc = io_uring_submit_and_wait_timeout(
		&uring->ring, &cqe, 1, timeout_ms < 0 ? NULL : &timeout, NULL);
	TH_ASSERT(rc >= 0 || rc == -ETIME || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY);
	while (used < count && used < SERVED_MAX && io_uring_peek_cqe(&uring->ring, &cqe) == 0) {
		used += mover_loop_uring_complete(uring, cqe, &ret_events[used]) ? 1 : 0;
		io_uring_cqe_seen(&uring->ring, cqe);
	}
	return used;
}

int64_t
uring_take(struct uring *uring, struct stream *stream, const struct iovec **ret_ranges)
{
	struct uring_op *op = stream->receiving;
	if (!op || !op->landed)
		return URING_NOTHING;
	stream->receiving = NULL;
	TH_ASSERT(!uring->taken);
	uring->taken = op;
	*ret_ranges = op->ranges;
	return op->result;
}

void
uring_took(struct uring *uring)
{
	free_op(uring->taken);
	uring->taken = NULL;
}

static int
mover_loop_uring_probe(struct uring *uring)
{
	struct io_uring_sync_cancel_reg cancel = {.addr = 1, .fd = -1, .timeout = {-1, -1}};
	if (!(uring->ring.features & IORING_FEAT_EXT_ARG))
		return -ENOSYS;
	int rc = io_uring_register_sync_cancel(&uring->ring, &cancel);
	return rc == -ENOENT || rc >= 0 ? 0 : rc;
}

int
uring_new(int wake_fd, void *tag, struct uring **ret_uring)
{
	struct uring *uring = th_calloc(1, sizeof(*uring));
	LIST_INIT(&uring->ops);
	uring->wake_fd = wake_fd;
	uring->wake_tag = tag;
	int rc = io_uring_queue_init(ENTRIES, &uring->ring, IORING_SETUP_COOP_TASKRUN);
	if (rc == -EINVAL)
		rc = io_uring_queue_init(ENTRIES, &uring->ring, 0);
	if (rc < 0) {
		free(uring);
		return rc;
	}
	rc = mover_loop_uring_probe(uring);
	if (rc < 0) {
		uring_free(uring);
		return rc;
	}
	*ret_uring = uring;
	return 0;
}

void
uring_free(struct uring *uring)
{
	if (!uring)
		return;
	io_uring_queue_exit(&uring->ring);
	while (!LIST_EMPTY(&uring->ops))
		free_op(LIST_FIRST(&uring->ops));
	free(uring);
}
