/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover_loop - see mover_loop.h. Level-triggered: a stream that used up its turn is found again by
 * the next epoll_wait, behind the others that are ready, so none starves another.
 *
 * One turn: wait, move bytes for each ready stream up to its budget, run the posted tasks, tick.
 */
#include "transport/loop/mover_loop.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "transport/loop/mover_loop_uring.h"
#include "transport/part/sigbus.h"

#define BATCH 64
#define TURN_BYTES (4u << 20) /* one stream moves in a turn before the others get theirs */

struct loop {
	pthread_t thread;
	int epoll_fd, wake_fd; /* owns; epoll_fd: -1 with a ring */
	enum loop_engine engine;
	struct uring *uring; /* owns; the thread's; NULL: epoll */
	sem_t started;       /* posted when code is known */
	int code;
	int64_t (*tick)(void *arg, int64_t now_ns);
	void *arg;
	int64_t deadline_ns;
	pthread_mutex_t lock;
	struct loop_task *head, **tail; /* guarded by lock */
	struct loop_task stop_task;
	bool stopping;
	struct epoll_event batch[BATCH]; /* what is being worked on; a closed stream is taken out */
	int batch_count;
	struct iovec ranges[LOOP_RANGES_MAX];
};

/* ---- tasks -------------------------------------------------------------------------------- */

void
loop_post(struct loop *loop, struct loop_task *task)
{
	if (__atomic_exchange_n(&task->queued, true, __ATOMIC_ACQ_REL))
		return;
	task->next = NULL;
	pthread_mutex_lock(&loop->lock);
	bool was_empty = !loop->head;
	*loop->tail = task;
	loop->tail = &task->next;
	pthread_mutex_unlock(&loop->lock);
	if (was_empty) {
		uint64_t one = 1;
		/* Fails only when the counter is full, and then the loop is awake anyway. */
		ssize_t written = write(loop->wake_fd, &one, sizeof(one));
		(void)written;
	}
}

static void
mover_loop_run_tasks(struct loop *loop)
{
	pthread_mutex_lock(&loop->lock);
	struct loop_task *task = loop->head;
	loop->head = NULL;
	loop->tail = &loop->head;
	pthread_mutex_unlock(&loop->lock);
	while (task) {
		struct loop_task *next = task->next;
		/*
		 * From here on it may be posted again: what it is to see was written before that.
		 */
		(void)__atomic_exchange_n(&task->queued, false, __ATOMIC_ACQ_REL);
		task->run(task);
		task = next;
	}
}

/* ---- streams ------------------------------------------------------------------------------ */

static void
set_interest(struct stream *stream, uint32_t interest)
{
	if (stream->fd < 0 || stream->interest == interest)
		return;
	stream->interest = interest;
	if (stream->loop->uring) {
		uring_set(stream->loop->uring, stream);
		return;
	}
	struct epoll_event event = {.events = interest, .data.ptr = stream};
	int rc = epoll_ctl(stream->loop->epoll_fd, EPOLL_CTL_MOD, stream->fd, &event);
	TH_ASSERT(rc == 0);
}

/* A ring reports an operation on a non-blocking socket at once, as not possible now. */
static void
set_blocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	int rc = flags < 0 ? -1 : fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
	TH_ASSERT(rc == 0);
}

int
stream_open(struct stream *stream, struct loop *loop, const struct stream_ops *ops, int fd,
	bool connecting)
{
	uint32_t interest = connecting ? EPOLLOUT : EPOLLIN | EPOLLRDHUP;
	struct epoll_event event = {.events = interest, .data.ptr = stream};
	*stream = (struct stream){
		.ops = ops, .loop = loop, .fd = fd, .interest = interest, .connecting = connecting};
	if (loop->uring) {
		if (ops->bulk_in)
			set_blocking(fd);
		uring_set(loop->uring, stream);
		return 0;
	}
	if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
		int rc = -errno;
		th_fd_close(&stream->fd);
		return rc;
	}
	return 0;
}

int
stream_release(struct stream *stream)
{
	if (stream->fd < 0)
		return -1;
	struct loop *loop = stream->loop;
	for (int i = 0; i < loop->batch_count; i++) {
		if (loop->batch[i].data.ptr == stream)
			loop->batch[i].data.ptr = NULL;
	}
	if (loop->uring) {
		uring_remove(loop->uring, stream);
		return th_fd_move(&stream->fd);
	}
	/* Explicitly: another process may hold the descriptor's file too. */
	int rc = epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, stream->fd, NULL);
	TH_ASSERT(rc == 0);
	return th_fd_move(&stream->fd);
}

void
stream_close(struct stream *stream, bool reset)
{
	int fd = stream_release(stream);
	if (fd < 0)
		return;
	/* What was sent out of a file the kernel reads when it goes out, and never copied. */
	if (reset || stream->spliced) {
		struct linger linger = {.l_onoff = 1, .l_linger = 0};
		int rc = setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
		(void)rc; /* the close below then merely takes longer to be noticed */
	}
	th_fd_close(&fd);
}

void
stream_listen(struct stream *stream, bool listen)
{
	set_interest(stream, listen ? EPOLLIN | EPOLLRDHUP : 0);
}

static void
break_stream(struct stream *stream, int code)
{
	stream_close(stream, false);
	stream->ops->broken(stream, code);
}

/* What the ring has received. False: the stream is gone. */
static bool
take_in(struct stream *stream)
{
	struct uring *uring = stream->loop->uring;
	const struct iovec *ranges;
	int fd = stream->fd;
	int64_t got = uring_take(uring, stream, &ranges);
	if (got == URING_NOTHING)
		return true;
	int rc = got > 0 ? stream->ops->recv_got(stream, ranges, (size_t)got) : 0;
	uring_took(uring);
	if (got == -EINTR || got == -EAGAIN)
		return true;
	if (got <= 0 || rc < 0) {
		break_stream(stream, got == 0 ? STREAM_EOF : got < 0 ? (int)got : rc);
		return false;
	}
	return rc == 0 && stream->fd == fd;
}

/* False: the stream is gone. */
static bool
move_in(struct stream *stream)
{
	struct loop *loop = stream->loop;
	if (loop->uring && stream->ops->bulk_in)
		return take_in(stream);
	for (size_t moved = 0; moved < TURN_BYTES;) {
		uint32_t count = stream->ops->recv_want(stream, loop->ranges);
		if (count == 0) {
			set_interest(stream, stream->interest & ~(uint32_t)EPOLLIN);
			return true;
		}
		size_t wanted = 0;
		for (uint32_t i = 0; i < count; i++)
			wanted += loop->ranges[i].iov_len;
		struct msghdr message = {.msg_iov = loop->ranges, .msg_iovlen = count};
		ssize_t got = recvmsg(stream->fd, &message, MSG_DONTWAIT);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN)
			return true;
		if (got <= 0) {
			break_stream(stream, got == 0 ? STREAM_EOF : -errno);
			return false;
		}
		int fd = stream->fd;
		int rc = stream->ops->recv_got(stream, loop->ranges, (size_t)got);
		if (rc < 0) {
			break_stream(stream, rc);
			return false;
		}
		/* recv_got may have given the connection away: then nothing of it is touched. */
		if (rc > 0 || stream->fd != fd)
			return false;
		if ((size_t)got < wanted)
			return true;
		moved += (size_t)got;
	}
	return true;
}

/* Whether it is the file, not the connection: the same bytes can go another way. */
static bool
is_of_file(int error)
{
	return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == ESPIPE ||
	       error == EIO || error == EOVERFLOW;
}

/* Sends some of what comes next. Bytes, of *ret_wanted; 0: nothing to send; or -1 with errno. */
static ssize_t
send_some(struct stream *stream, size_t *ret_wanted)
{
	struct loop *loop = stream->loop;
	struct stream_file file;
	*ret_wanted = 0;
	if (stream->ops->send_file && !stream->no_file && stream->ops->send_file(stream, &file)) {
		off_t offset = (off_t)file.offset;
		ssize_t sent = sendfile(stream->fd, file.fd, &offset, (size_t)file.bytes);
		stream->spliced = stream->spliced || sent > 0;
		*ret_wanted = (size_t)file.bytes;
		if (sent > 0 || (sent < 0 && !is_of_file(errno)))
			return sent;
		stream->no_file = true;
		*ret_wanted = 0;
	}
	stream->more = false;
	uint32_t count = stream->ops->send_want(stream, loop->ranges);
	if (count == 0)
		return 0;
	for (uint32_t i = 0; i < count; i++)
		*ret_wanted += loop->ranges[i].iov_len;
	struct msghdr message = {.msg_iov = loop->ranges, .msg_iovlen = count};
	return sendmsg(
		stream->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL | (stream->more ? MSG_MORE : 0));
}

static bool
move_out(struct stream *stream)
{
	bool more = true;
	for (size_t moved = 0; more && moved < TURN_BYTES;) {
		size_t wanted;
		ssize_t sent = send_some(stream, &wanted);
		if (sent == 0) {
			stream->blocked = false;
			set_interest(stream, stream->interest & ~(uint32_t)EPOLLOUT);
			return true;
		}
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0 && errno == EAGAIN)
			break;
		int rc = sent < 0 ? -errno : stream->ops->send_sent(stream, (size_t)sent);
		if (rc < 0) {
			break_stream(stream, rc);
			return false;
		}
		more = (size_t)sent == wanted;
		moved += (size_t)sent;
	}
	stream->blocked = true;
	set_interest(stream, stream->interest | EPOLLOUT);
	return true;
}

void
stream_want(struct stream *stream)
{
	if (stream->fd >= 0 && !stream->connecting)
		set_interest(stream, stream->interest | EPOLLIN);
}

void
stream_wake(struct stream *stream)
{
	if (stream->fd >= 0 && !stream->connecting && !stream->blocked)
		move_out(stream);
}

void
stream_look(struct stream *stream)
{
	if (stream->fd >= 0 && !stream->connecting)
		(void)move_in(stream);
}

static void
finish_connect(struct stream *stream)
{
	int error = 0;
	socklen_t bytes = sizeof(error);
	if (getsockopt(stream->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) < 0)
		error = errno;
	if (error != 0) {
		break_stream(stream, -error);
		return;
	}
	stream->connecting = false;
	set_interest(stream, EPOLLIN | EPOLLRDHUP);
	stream->ops->connected(stream);
}

static void
serve_stream(struct loop *loop, int index)
{
	struct stream *stream = loop->batch[index].data.ptr;
	uint32_t events = loop->batch[index].events;
	if (stream->connecting) {
		finish_connect(stream);
		return;
	}
	if (stream->ops->ready) {
		stream->ops->ready(stream);
		return;
	}
	uint32_t ended = events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP);
	bool receives = (stream->interest & EPOLLIN) != 0;
	if (ended && !receives) {
		/* Paused: nobody reads what is left, only the end matters. */
		break_stream(stream, STREAM_EOF);
		return;
	}
	if (((events & EPOLLIN) || ended) && !move_in(stream))
		return;
	if (loop->batch[index].data.ptr && (events & EPOLLOUT))
		move_out(stream);
}

int
loop_wake_fd(const struct loop *loop)
{
	return loop->wake_fd;
}

/* ---- the thread --------------------------------------------------------------------------- */

void
loop_tick_at(struct loop *loop, int64_t deadline_ns)
{
	/* Without a tick there is no deadline that could be met. */
	if (loop->tick)
		loop->deadline_ns = th_min_i64(loop->deadline_ns, deadline_ns);
}

/* Milliseconds to wait, rounded up so that the deadline has passed when the wait ends. */
static int
wait_ms(const struct loop *loop)
{
	if (loop->deadline_ns == INT64_MAX)
		return -1;
	int64_t left = loop->deadline_ns - th_now_ns();
	if (left <= 0)
		return 0;
	return (int)th_min_i64((left + 999999) / 1000000, 60000);
}

static void
turn(struct loop *loop)
{
	int count = loop->uring ? uring_wait(loop->uring, loop->batch, BATCH, wait_ms(loop))
				: epoll_wait(loop->epoll_fd, loop->batch, BATCH, wait_ms(loop));
	TH_ASSERT(count >= 0 || errno == EINTR);
	loop->batch_count = count < 0 ? 0 : count;
	for (int i = 0; i < loop->batch_count; i++) {
		if (loop->batch[i].data.ptr == loop) {
			uint64_t posts;
			ssize_t got = read(loop->wake_fd, &posts, sizeof(posts));
			(void)got; /* only empties the counter */
		} else if (loop->batch[i].data.ptr) {
			serve_stream(loop, i);
		}
	}
	loop->batch_count = 0;
	mover_loop_run_tasks(loop);
	if (loop->tick && loop->deadline_ns != INT64_MAX) {
		int64_t now_ns = th_now_ns();
		if (now_ns >= loop->deadline_ns) {
			loop->deadline_ns = INT64_MAX;
			loop_tick_at(loop, loop->tick(loop->arg, now_ns));
		}
	}
}

static void *
loop_main(void *arg)
{
	struct loop *loop = arg;
	/* By this thread alone: the end of a ring interrupts calls of all who used it. */
	if (loop->engine == LOOP_URING)
		loop->code = uring_new(loop->wake_fd, loop, &loop->uring);
	bool fails = loop->code < 0;
	sem_post(&loop->started);
	while (!fails && !loop->stopping)
		turn(loop);
	uring_free(loop->uring);
	return NULL;
}

static void
mover_loop_run_stop(struct loop_task *task)
{
	loop_container(task, struct loop, stop_task)->stopping = true;
}

static void
mover_loop_destroy(struct loop *loop)
{
	sem_destroy(&loop->started);
	th_fd_close(&loop->epoll_fd);
	th_fd_close(&loop->wake_fd);
	pthread_mutex_destroy(&loop->lock);
	free(loop);
}

int
loop_new(const char *name, enum loop_engine engine, int64_t (*tick)(void *arg, int64_t now_ns),
	void *arg, struct loop **ret_loop)
{
	struct loop *loop = calloc(1, sizeof(*loop));
	if (!loop)
		return -ENOMEM;
	loop->tail = &loop->head;
	loop->stop_task.run = mover_loop_run_stop;
	loop->tick = tick;
	loop->arg = arg;
	loop->deadline_ns = tick ? 0 : INT64_MAX;
	loop->engine = engine;
	pthread_mutex_init(&loop->lock, NULL);
	sem_init(&loop->started, 0, 0);
	loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	loop->epoll_fd = engine == LOOP_EPOLL ? epoll_create1(EPOLL_CLOEXEC) : -1;
	int rc = loop->wake_fd < 0 ? -errno : 0;
	if (rc == 0 && engine == LOOP_EPOLL) {
		struct epoll_event event = {.events = EPOLLIN, .data.ptr = loop};
		if (loop->epoll_fd < 0 ||
			epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, loop->wake_fd, &event) < 0)
			rc = -errno;
	}
	/* Signals are the main thread's business. */
	sigset_t all, before;
	sigbus_mask(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (rc == 0)
		rc = -pthread_create(&loop->thread, NULL, loop_main, loop);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc == 0) {
		while (sem_wait(&loop->started) < 0 && errno == EINTR)
			continue;
		rc = loop->code;
		if (rc < 0)
			pthread_join(loop->thread, NULL);
	}
	if (rc < 0) {
		mover_loop_destroy(loop);
		return rc;
	}
	pthread_setname_np(loop->thread, name);
	*ret_loop = loop;
	return 0;
}

void
loop_free(struct loop *loop)
{
	if (!loop)
		return;
	loop_post(loop, &loop->stop_task);
	pthread_join(loop->thread, NULL);
	TH_ASSERT(!loop->head);
	mover_loop_destroy(loop);
}
