/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover_loop_uring - io_uring in the place of epoll, for one loop. Its thread only.
 *
 * A stream whose ops say bulk_in is received by the ring: the kernel is told where the next bytes
 * go and says when some are there, with no call in between. Everything else is told as epoll would:
 * the ring polls, and the loop makes the calls. So sending is the same for both engines; sendfile
 * has no counterpart in a ring. For bulk it is no faster than epoll: a block takes one call there,
 * and here one completion; measured on Linux 6.18 over loopback 0.355 s of CPU for a verified GiB
 * against 0.337. So it is used only when it is asked for.
 */
#ifndef TH_TRANSPORT_LOOP_MOVER_LOOP_URING_H
#define TH_TRANSPORT_LOOP_MOVER_LOOP_URING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "ipc/base/checked.h"

#define URING_NOTHING INT64_MIN

struct iovec;
struct stream;
struct uring;

/*
 * wake_fd is polled for ever; tag stands for it in what uring_wait returns. 0 or -errno: EPERM,
 * ENOSYS and EINVAL where the kernel, a container or an administrator does not have it.
 */
TH_MUST_USE int uring_new(int wake_fd, void *tag, struct uring **ret_uring);
void uring_free(struct uring *uring); /* NULL: nothing */

/* stream->interest has changed, or the stream is new. */
void uring_set(struct uring *uring, struct stream *stream);
/* When it returns nothing of the stream is under way: its memory is not written to any more. */
void uring_remove(struct uring *uring, struct stream *stream);
/* As epoll_wait: a stream that is received by the ring has EPOLLIN. */
int uring_wait(struct uring *uring, struct epoll_event *ret_events, int count, int timeout_ms);
/* What the ring has received for the stream since; it takes the next after that. URING_NOTHING, or
 * as recvmsg, with a negative error; then the ranges are good until uring_took. */
int64_t uring_take(struct uring *uring, struct stream *stream, const struct iovec **ret_ranges);
void uring_took(struct uring *uring);

#endif
