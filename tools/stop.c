/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stop - signals by signalfd (see stop.h).
 */
#include "tools/stop.h"

#include <errno.h>
#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "ipc/base/fd.h"

int
stop_begin(struct stop *ret_stop)
{
	struct stop stop = {.fd = -1};
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGHUP);
	stop.fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
	if (stop.fd < 0)
		return -errno;
	int rc = pthread_sigmask(SIG_BLOCK, &signals, &stop.before);
	if (rc != 0) {
		th_fd_close(&stop.fd);
		return -rc;
	}
	*ret_stop = stop;
	return 0;
}

bool
stop_seen(struct stop *stop)
{
	struct signalfd_siginfo info;

	while (read(stop->fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
		stop->count++;
	return stop->count > 0;
}

void
stop_end(struct stop *stop)
{
	if (stop->fd < 0)
		return;
	th_fd_close(&stop->fd);
	pthread_sigmask(SIG_SETMASK, &stop->before, NULL);
}
