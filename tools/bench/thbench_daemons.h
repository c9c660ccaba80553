/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_daemons - a server and agents of one's own for a measurement.
 *
 * They lie below one temporary folder, hear of no configuration but ours, and end with us: in order
 * by field_stop, by the kernel when this process dies.
 */
#ifndef TH_TOOLS_BENCH_THBENCH_DAEMONS_H
#define TH_TOOLS_BENCH_THBENCH_DAEMONS_H

#include <sys/types.h>

#include "tools/bench/thbench.h"

#define FIELD_DAEMONS_MAX (BENCH_READERS_MAX + 4u)

struct bench_daemon {
	pid_t pid;
	char name[32];
	char runtime[128]; /* of an agent */
	char data[96];     /* of an agent: HOST:PORT */
};

/* Where a daemon runs and is reached. */
struct place {
	const char *host; /* borrows: its address */
	pid_t netns;      /* a process in its network namespace; 0: in ours */
};
extern const struct place place_here; /* loopback */

/* For a process of ours, before it becomes another program. 0 or -errno. */
TH_MUST_USE int daemons_enter(pid_t netns);

struct field {
	char dir[96]; /* "" when nothing was made */
	char url[128];
	uint32_t num_daemons;
	struct bench_daemon *daemons; /* owns: FIELD_DAEMONS_MAX, so that none ever moves */
};

/* A folder and a server. On failure nothing is left. */
TH_MUST_USE int field_start(
	struct bench *bench, struct field *field, const struct place *place, struct th_err *err);
/* One more agent; options: NULL-terminated, behind the shared ones. */
TH_MUST_USE int field_agent(struct bench *bench, struct field *field, const char *name,
	const char *const *options, const struct place *place,
	const struct bench_daemon **ret_agent, struct th_err *err);
/* SIGKILL, now. */
void field_kill(struct field *field, const struct bench_daemon *daemon);
/* Ends all and removes the folder. A second call does nothing. */
void field_stop(struct field *field);

/*
 * What an agent has in memory for itself: anonymous pages, and files in memory that it made. 0 when
 * it cannot be read.
 */
uint64_t field_memory(const struct bench_daemon *daemon);
/* TCP connections that end at this agent's data port now. */
uint32_t field_connections(const struct bench_daemon *daemon);

#endif
