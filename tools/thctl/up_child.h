/* SPDX-License-Identifier: Apache-2.0 */
/*
 * up_child - a daemon that thctl up has started.
 *
 * It is told to end (SIGTERM) when this process is gone, whatever ended it, and hears no Ctrl-C of
 * the terminal: that is for thctl up, which ends both in their order. It writes to pipes of ours,
 * which never wait: what it says on stdout up to its line `ready ...` is kept, and of its log what
 * needs somebody is shown and the last lines are kept. One thread.
 */
#ifndef TH_TOOLS_THCTL_UP_CHILD_H
#define TH_TOOLS_THCTL_UP_CHILD_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "ipc/base/loop.h"

#define UP_LINE_BYTES 1024
#define UP_LAST_LINES 8

enum up_life {
	UP_NOT_STARTED,
	UP_STARTING,
	UP_READY,
	UP_ENDED, /* status has how */
};

struct up_lines { /* what comes by a pipe, line by line */
	int fd;   /* owns; -1: its end was read */
	struct loop_source source;
	char line[UP_LINE_BYTES];
	size_t used;
};

struct up_child {
	const char *name; /* static: "server" */
	enum up_life life;
	pid_t pid;
	int pidfd; /* owns; -1 */
	struct loop_source source;
	struct event_loop *loop; /* borrows */
	struct up_lines said, log;
	char ready[UP_LINE_BYTES]; /* the line of that name */
	char last[UP_LAST_LINES][UP_LINE_BYTES];
	size_t num_lines; /* of its log, of which the last are there */
	int status;       /* of waitpid */
};

/*
 * argv[0] is the path of the program. 0, or -errno with a sentence.
 */
TH_MUST_USE int up_child_start(struct up_child *child, const char *name, const char *const *argv,
	struct event_loop *loop, struct th_err *err);
bool up_child_runs(const struct up_child *child);
/* Of KEY=VALUE in its line `ready ...`; "" where there is none such. */
void up_child_value(const struct up_child *child, const char *key, char *ret_value, size_t bytes);
/* A signal, when it runs. */
void up_child_signal(const struct up_child *child, int number);
/* How it has ended, and the last lines of its log, on stderr. */
void up_child_say_end(const struct up_child *child);
/* Of one that has ended, or was not started. */
void up_child_fini(struct up_child *child);

#endif
