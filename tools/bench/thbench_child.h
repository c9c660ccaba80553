/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_child - another program for a measurement, that is read line by line: iperf3, ip, the
 * scripts of peers.
 *
 * It is the leader of a process group of its own, which ends with it, and dies with us.
 */
#ifndef TH_TOOLS_BENCH_THBENCH_CHILD_H
#define TH_TOOLS_BENCH_THBENCH_CHILD_H

#include <stddef.h>
#include <sys/types.h>

#include "tools/bench/thbench.h"

struct child {
	pid_t pid;   /* 0: none */
	int in, out; /* own: its stdin and stdout; -1 */
	char *text;  /* owns: what was read and not given out yet */
	size_t used;
};

/* argv: NULL-terminated, found by PATH. log: where its stderr goes, -1: nowhere. 0 or -errno. */
TH_MUST_USE int child_start(struct child *child, const char *const *argv, int log);
/*
 * The next line without its end, which the caller frees; NULL at its end, after limit_ns, or when a
 * signal came to us.
 */
char *child_line(struct bench *bench, struct child *child, int64_t limit_ns);
/* All until its end, or until `until` stands in it (NULL: its end). As child_line. */
char *child_text(struct bench *bench, struct child *child, const char *until, int64_t limit_ns);
TH_MUST_USE int child_say(struct child *child, const char *line);
/* Its group stands still until it is told to go on: some poll, and would take a processor. */
void child_pause(const struct child *child);
void child_go_on(const struct child *child);
/* Closes its stdin, waits so long, then kills its group. A second call does nothing. */
void child_stop(struct child *child, int64_t patience_ns);

#endif
