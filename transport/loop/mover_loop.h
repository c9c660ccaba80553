/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover_loop - one thread that moves the bytes of its connections and runs the tasks it is sent.
 *
 * A stream is one connection without any idea of I/O: it says where the next bytes go (or come
 * from) and is told how many went. So it is the same for both engines: epoll, and io_uring, where
 * the kernel is told what recv_want names and says when it has come (mover_loop_uring.h).
 *
 * Threads: a stream and all calls about it belong to its loop's thread. loop_post is for any
 * thread.
 */
#ifndef TH_TRANSPORT_LOOP_MOVER_LOOP_H
#define TH_TRANSPORT_LOOP_MOVER_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "ipc/base/checked.h"

#define LOOP_RANGES_MAX 256u        /* of one call: a chunk of many small tensors has many */
#define LOOP_BLOCK_BYTES (1u << 20) /* of one call: what stays in cache until it is hashed */

struct loop;
struct stream;

/* ---- tasks ---- */

/*
 * Embedded in what it is about. A task that is queued already is not queued again; it is off the
 * queue before it runs, so it may be posted again from there, or its memory freed. Tasks run in the
 * order in which they were posted.
 */
struct loop_task {
	struct loop_task *next;
	void (*run)(struct loop_task *task);
	bool queued; /* atomic */
};

#define loop_container(pointer, type, member)                                                      \
	((type *)(void *)((char *)(pointer)-offsetof(type, member)))

enum loop_engine { LOOP_EPOLL, LOOP_URING };

/* tick (may be NULL) runs at the deadline it returned last, at once the first time, or sooner when
 * asked by loop_tick_at; it returns the next one (INT64_MAX: none). 0 or -errno. */
TH_MUST_USE int loop_new(const char *name, enum loop_engine engine,
	int64_t (*tick)(void *arg, int64_t now_ns), void *arg, struct loop **ret_loop);
/* Ends the thread after the tasks posted so far. No stream may be left. */
void loop_free(struct loop *loop);
void loop_post(struct loop *loop, struct loop_task *task);
/* The one descriptor that loop_post uses. */
int loop_wake_fd(const struct loop *loop);
/* On the loop's thread. */
void loop_tick_at(struct loop *loop, int64_t deadline_ns);

/* ---- streams ---- */

#define STREAM_EOF (-ESHUTDOWN) /* code of broken: the peer closed in order */

struct stream_file { /* bytes of a file, to be sent by sendfile */
	int fd;      /* borrows */
	uint64_t offset, bytes;
};

struct stream_ops {
	/* Much is received, and what recv_want names does not change but by recv_got. */
	bool bulk_in;
	/* A listening socket has only this and broken: somebody is at the door. */
	void (*ready)(struct stream *stream);
	/* Where the next received bytes go: count is LOOP_RANGES_MAX. 0: receive no more for now.
	 */
	uint32_t (*recv_want)(struct stream *stream, struct iovec *ret_ranges);
	/* They are there: the first bytes of those ranges. Negative: the stream is broken by that.
	 * Positive: it was given away or freed in here, and is not touched any more. */
	int (*recv_got)(struct stream *stream, const struct iovec *ranges, size_t bytes);
	/* What to send next. 0: nothing now; stream_wake when there is. */
	uint32_t (*send_want)(struct stream *stream, struct iovec *ret_ranges);
	/* May be NULL. Asked first: whether what to send next lies in a file that may be read later
	 * than it is sent. Never again after stream->no_file. */
	bool (*send_file)(struct stream *stream, struct stream_file *ret_file);
	int (*send_sent)(struct stream *stream, size_t bytes);
	void (*connected)(struct stream *stream); /* may be NULL for accepted ones */
	/* The connection ended by itself, or by a negative result above. It is closed already; the
	 * stream's memory may be freed in here. */
	void (*broken)(struct stream *stream, int code);
};

struct stream {
	const struct stream_ops *ops;
	struct loop *loop;
	int fd; /* owns; -1: not open */
	uint32_t interest;
	bool connecting;
	bool blocked; /* the socket takes no more for now: EPOLLOUT tells */
	bool more;    /* of send_want: what follows it is there, so the kernel may wait for it */
	bool spliced; /* something was sent out of a file: closing throws the kernel's queue away */
	struct uring_op *poll_in, *poll_out, *receiving; /* of the ring, and its own */
	bool no_file; /* the kernel does not send out of that kind of file: send_want is asked */
};

/* Takes the descriptor. connecting: connect() is under way. 0 or -errno (the descriptor is closed).
 */
TH_MUST_USE int stream_open(struct stream *stream, struct loop *loop, const struct stream_ops *ops,
	int fd, bool connecting);
/* Idempotent. reset: what is queued in the kernel is thrown away and the peer gets a reset. */
void stream_close(struct stream *stream, bool reset);
/* Gives the connection away without closing it. */
int stream_release(struct stream *stream);
/* Of a listening socket: whether it is looked at. It cannot fail. */
void stream_listen(struct stream *stream, bool listen);
/* recv_want has room again. */
void stream_want(struct stream *stream);
/* send_want has something: sends what the socket takes. The stream may be broken in here. */
void stream_wake(struct stream *stream);
/* Takes what has arrived, now. The stream may be broken in here. */
void stream_look(struct stream *stream);

#endif
