/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop - see loop.h. Main thread only.
 */
#include "ipc/base/loop.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/fd.h"

#define BATCH 64 /* events a wake-up: what is left is still ready at the next */

static void
on_timer(void *arg, uint32_t events)
{
	struct event_loop *loop = arg;
	uint64_t count;

	(void)events;
	/* Who waits looks at the clock after every wake-up; the count says nothing more. */
	if (read(loop->timer_fd, &count, sizeof(count)) < 0)
		TH_ASSERT(errno == EAGAIN || errno == EINTR);
	loop->armed_ns = INT64_MAX;
}

static void
on_signals(void *arg, uint32_t events)
{
	struct event_loop *loop = arg;
	struct signalfd_siginfo info;

	(void)events;
	while (read(loop->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
		loop->on_signal(loop->arg, (int)info.ssi_signo);
}

static int
open_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return fd < 0 ? -errno : fd;
}

int
loop_open(struct event_loop *loop, void (*on_signal)(void *arg, int number), void *arg,
	struct th_err *err)
{
	*loop = (struct event_loop){
		.epoll_fd = -1,
		.timer_fd = -1,
		.signal_fd = -1,
		.timer.fd = -1,
		.signals.fd = -1,
		.armed_ns = INT64_MAX,
		.on_signal = on_signal,
		.arg = arg,
	};
	int rc = open_signals();
	if (rc >= 0) {
		loop->signal_fd = rc;
		loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
		loop->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
		rc = loop->epoll_fd < 0 || loop->timer_fd < 0 ? -errno : 0;
	}
	if (rc == 0)
		rc = loop_add(loop, &loop->timer, loop->timer_fd, EPOLLIN, on_timer, loop);
	if (rc == 0)
		rc = loop_add(loop, &loop->signals, loop->signal_fd, EPOLLIN, on_signals, loop);
	if (rc < 0)
		return th_fail(err, rc, "the event loop cannot be set up: %s", th_strerror(rc));
	return 0;
}

void
loop_close(struct event_loop *loop)
{
	th_fd_close(&loop->epoll_fd);
	th_fd_close(&loop->timer_fd);
	th_fd_close(&loop->signal_fd);
}

int
loop_add(struct event_loop *loop, struct loop_source *source, int fd, uint32_t events,
	void (*ready)(void *arg, uint32_t events), void *arg)
{
	struct epoll_event event = {.events = events, .data.ptr = source};

	if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
		return -errno;
	*source = (struct loop_source){.fd = fd, .ready = ready, .arg = arg};
	return 0;
}

void
loop_remove(struct event_loop *loop, struct loop_source *source)
{
	if (source->fd < 0)
		return;
	TH_ASSERT(epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, source->fd, NULL) == 0);
	source->fd = -1;
}

void
loop_arm(struct event_loop *loop, int64_t at_ns)
{
	if (at_ns == loop->armed_ns)
		return;
	struct itimerspec when = {0};
	if (at_ns != INT64_MAX) {
		/* Zero would switch the timer off. */
		int64_t moment = at_ns > 0 ? at_ns : 1;
		when.it_value.tv_sec = moment / 1000000000;
		when.it_value.tv_nsec = moment % 1000000000;
	}
	TH_ASSERT(timerfd_settime(loop->timer_fd, TFD_TIMER_ABSTIME, &when, NULL) == 0);
	loop->armed_ns = at_ns;
}

void
loop_wait(struct event_loop *loop, bool busy)
{
	struct epoll_event events[BATCH];
	int count = epoll_wait(loop->epoll_fd, events, BATCH, busy ? 0 : -1);

	TH_ASSERT(count >= 0 || errno == EINTR);
	for (int i = 0; i < count; i++) {
		struct loop_source *source = events[i].data.ptr;
		if (source->fd >= 0)
			source->ready(source->arg, events[i].events);
	}
}
