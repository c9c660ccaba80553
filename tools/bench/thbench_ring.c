/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_ring - verb ring: an operation that goes from a worker by the ring to its agent's core
 * and back, against two processes that wake each other by eventfds and do nothing else.
 *
 * Asleep: both sides have slept for 2 ms when it comes. Awake: one comes right after the other.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "tools/bench/thbench_daemons.h"
#include "tools/bench/thbench_worker.h"

#define ROUNDS 500u
#define ASLEEP_NS 2000000
#define MEMORY_BYTES (UINT64_C(1) << 20)

/* ---- the baseline ---------------------------------------------------------------------------- */

struct bells {
	int there, back; /* own */
	pid_t pid;
};

static void __attribute__((noreturn)) echo(const struct bells *bells)
{
	uint64_t count;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		if (read(bells->there, &count, sizeof(count)) != sizeof(count) ||
			write(bells->back, &count, sizeof(count)) != sizeof(count))
			_exit(0);
	}
}

static int
bells_start(struct bells *bells, struct th_err *err)
{
	*bells = (struct bells){.there = -1, .back = -1};
	bells->there = eventfd(0, EFD_CLOEXEC);
	bells->back = eventfd(0, EFD_CLOEXEC);
	if (bells->there >= 0 && bells->back >= 0)
		bells->pid = fork();
	if (bells->pid == 0 && bells->back >= 0)
		echo(bells);
	return bells->pid > 0 ? 0 : th_fail(err, -EAGAIN, "no process to answer by eventfd");
}

static void
bells_stop(struct bells *bells)
{
	if (bells->pid > 0) {
		kill(bells->pid, SIGKILL);
		waitpid(bells->pid, NULL, 0);
	}
	th_fd_close(&bells->there);
	th_fd_close(&bells->back);
}

static void
bells_measure(const struct bells *bells, struct section *section, uint32_t series, uint32_t count,
	long pause_ns)
{
	const struct timespec pause = {.tv_nsec = pause_ns};
	uint64_t one = 1;

	for (uint32_t i = 0; i < count; i++) {
		if (pause_ns > 0)
			nanosleep(&pause, NULL);
		int64_t begin_ns = th_now_ns();
		if (write(bells->there, &one, sizeof(one)) != sizeof(one) ||
			read(bells->back, &one, sizeof(one)) != sizeof(one))
			return;
		section_add(section, series, (double)(th_now_ns() - begin_ns) / 1e3);
	}
}

/* ---- the ring -------------------------------------------------------------------------------- */

static int
ring_measure(struct bench *bench, struct worker *worker, struct section *section, uint32_t series,
	uint32_t count, uint64_t pause_ns, struct th_err *err)
{
	const struct command command = {
		.command = WORKER_RING, .number = count, .tensor_bytes = pause_ns};
	int rc = worker_call(bench, worker, &command, NULL, err);

	for (uint32_t i = 0; i < count && rc == 0; i++)
		section_add(section, series, worker->samples[i]);
	return rc;
}

static int
thbench_ring_measure(
	struct bench *bench, struct worker *worker, const struct bells *bells, struct th_err *err)
{
	uint32_t rounds = bench->options.rounds > 0 ? bench->options.rounds : ROUNDS;
	struct section *section = report_section(&bench->report, "ring",
		"an operation from a worker to its agent and back, refused there");
	uint32_t series[4] = {
		section_series(section, "ring_asleep", "ring, both asleep", "us"),
		section_series(section, "ring_awake", "ring, one after the other", "us"),
		section_series(section, "eventfd_asleep", "eventfds only, both asleep", "us"),
		section_series(
			section, "eventfd_awake", "eventfds only, one after the other", "us"),
	};

	section_ratio(section, "asleep_to_eventfd", "asleep, to eventfds only", series[0],
		series[2], GOAL_NONE, 0.0);
	section_ratio(section, "awake_to_eventfd", "one after the other, to eventfds only",
		series[1], series[3], GOAL_NONE, 0.0);
	/* In parts, in turn: what disturbs the machine disturbs all. */
	for (uint32_t done = 0; done < rounds;) {
		uint32_t part = th_min_u32(rounds - done, rounds / 10 + 1);
		int rc = ring_measure(bench, worker, section, series[0], part, ASLEEP_NS, err);
		bells_measure(bells, section, series[2], part, ASLEEP_NS);
		if (rc == 0)
			rc = ring_measure(bench, worker, section, series[1], part, 0, err);
		bells_measure(bells, section, series[3], part, 0);
		if (rc < 0)
			return rc;
		done += part;
	}
	return 0;
}

static int
thbench_ring_run(struct bench *bench, struct th_err *err)
{
	const struct command alloc = {.command = WORKER_ALLOC, .bytes = MEMORY_BYTES};
	struct command join = {.command = WORKER_JOIN,
		.bytes = MEMORY_BYTES,
		.tensor_bytes = MEMORY_BYTES,
		.model = "ring",
		.replica = "worker"};
	struct worker worker = {0};
	struct bells bells = {.there = -1, .back = -1};
	struct field field = {0};
	const struct bench_daemon *agent;

	int rc = worker_start(bench, "worker", &worker, err);
	if (rc == 0)
		rc = bells_start(&bells, err);
	if (rc == 0)
		rc = field_start(bench, &field, &place_here, err);
	if (rc == 0)
		rc = field_agent(bench, &field, "agent", NULL, &place_here, &agent, err);
	if (rc == 0)
		rc = worker_call(bench, &worker, &alloc, NULL, err);
	if (rc == 0) {
		snprintf(join.agent, sizeof(join.agent), "%s", agent->runtime);
		rc = worker_call(bench, &worker, &join, NULL, err);
	}
	if (rc == 0)
		rc = thbench_ring_measure(bench, &worker, &bells, err);
	bells_stop(&bells);
	worker_stop(&worker);
	field_stop(&field);
	return rc;
}

const struct bench_verb bench_ring = {
	.name = "ring",
	.summary = "a worker's operation to its agent and back, asleep and awake",
	.run = thbench_ring_run,
};
