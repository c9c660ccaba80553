/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stop_signals - signals by a handler and an eventfd (see stop_signals.h).
 */
#include "tools/thctl/stop_signals.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ipc/base/fd.h"

static const int numbers[STOP_SIGNALS] = {SIGINT, SIGTERM, SIGHUP};

/* What the handler works with; written while no signal is delivered. */
static volatile sig_atomic_t seen, patient;
static int bell = -1; /* borrows: of the one that has begun */
static void (*undo_all)(void);

static void
stop_signals_on_signal(int number)
{
	const uint64_t one = 1;
	int keep = errno;

	if (patient && !seen) {
		seen = 1;
		ssize_t rung = write(bell, &one, sizeof(one));
		(void)rung; /* seen says it too */
		errno = keep;
		return;
	}
	seen = 1;
	if (undo_all)
		undo_all();
	/* Delivered on return: the end that the sender of a signal expects. */
	signal(number, SIG_DFL);
	raise(number);
	errno = keep;
}

static void
all_signals(sigset_t *ret_set)
{
	sigemptyset(ret_set);
	for (int i = 0; i < STOP_SIGNALS; i++)
		sigaddset(ret_set, numbers[i]);
}

int
stop_begin(struct stop *ret_stop, void (*undo)(void))
{
	struct stop stop = {.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	struct sigaction action = {.sa_handler = stop_signals_on_signal, .sa_flags = SA_RESTART};

	if (stop.fd < 0)
		return -errno;
	seen = patient = 0;
	bell = stop.fd;
	undo_all = undo;
	all_signals(&action.sa_mask);
	for (int i = 0; i < STOP_SIGNALS; i++) {
		sigaction(numbers[i], NULL, &stop.before[i]);
		if (stop.before[i].sa_handler != SIG_IGN)
			sigaction(numbers[i], &action, NULL);
	}
	*ret_stop = stop;
	return 0;
}

void
stop_patient(struct stop *stop)
{
	(void)stop;
	patient = 1;
}

bool
stop_seen(struct stop *stop)
{
	uint64_t count;
	ssize_t got = read(stop->fd, &count, sizeof(count));

	(void)got; /* only so that a poll sleeps again */
	return seen != 0;
}

void
stop_block(struct stop *stop)
{
	sigset_t set;

	all_signals(&set);
	sigprocmask(SIG_BLOCK, &set, &stop->mask);
}

void
stop_unblock(struct stop *stop)
{
	sigprocmask(SIG_SETMASK, &stop->mask, NULL);
}

void
stop_end(struct stop *stop)
{
	if (stop->fd < 0)
		return;
	for (int i = 0; i < STOP_SIGNALS; i++)
		sigaction(numbers[i], &stop->before[i], NULL);
	bell = -1;
	undo_all = NULL;
	th_fd_close(&stop->fd);
}
