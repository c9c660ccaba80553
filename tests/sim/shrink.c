/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shrink - a failing seed made small: kinds of faults switched off, single faults left out, fewer
 * processes, less time, as long as the same invariant breaks. Each trial is a process of its own.
 * What is left is printed as the options that replay it.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/sim/sim.h"

#define BUDGET_S 60
#define TRIAL_S 20u

static struct report { /* of the trial that runs */
	char invariant[32];
	struct options options;
	uint32_t num_strikes;
	struct strike strikes[STRIKES_MAX];
} * report;

static struct {
	uint64_t seed;
	char invariant[32];
	struct report failure; /* of the smallest run so far */
	time_t end;
	uint32_t trials;
} shrink;

/* The trial's end, told from inside it: see sim_fail(). */
void
shrink_report(const char *invariant)
{
	if (report == NULL)
		return;
	report->options = world.options;
	report->num_strikes = world.num_strikes;
	memcpy(report->strikes, world.strikes, sizeof(report->strikes));
	snprintf(report->invariant, sizeof(report->invariant), "%s", invariant);
}

static time_t
now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec;
}

static void
trial_died(int signal_no)
{
	(void)signal_no;
	shrink_report("core");
	_exit(1);
}

static void
be_quiet(void)
{
	int null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);

	if (null_fd >= 0) {
		dup2(null_fd, STDOUT_FILENO);
		dup2(null_fd, STDERR_FILENO);
	}
}

/* True: it still breaks the same invariant. */
static bool
trial(void)
{
	int status;

	if (now_s() >= shrink.end)
		return false;
	shrink.trials++;
	memset(report, 0, sizeof(*report));
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		be_quiet();
		signal(SIGABRT, trial_died);
		signal(SIGSEGV, trial_died);
		alarm(TRIAL_S);
		run_seed(shrink.seed, false);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status == 0)
		return false;
	if (shrink.invariant[0] != '\0' && strcmp(shrink.invariant, report->invariant) != 0)
		return false;
	shrink.failure = *report;
	return report->invariant[0] != '\0';
}

static bool
try_option(const struct option *option, int64_t value)
{
	int64_t before = 0;
	bool was_set = narrow_get(option, &before);

	if (!narrow_set(option, value))
		return false;
	if (trial())
		return true;
	if (was_set)
		narrow_set(option, before);
	else
		narrow_unset(option);
	return false;
}

/* A model without a trainer has nothing to do: that would look like a failure of its own. */
static bool
stays_alive(const struct option *option)
{
	const struct options *now = &shrink.failure.options;

	if (strcmp(option->name, "trainers") == 0)
		return now->trainers > now->models;
	return strcmp(option->name, "groups") != 0 || now->groups > now->trainers + 1;
}

static bool
fewer_options(void)
{
	const struct option *option;
	bool any = false;

	for (uint32_t i = 0; (option = option_at(i)) != NULL; i++) {
		int64_t now = option_get(&shrink.failure.options, option);
		if (option->rate && now != 0)
			any |= try_option(option, 0);
		else if (strcmp(option->name, "safety_ns") == 0)
			any |= now > SEC && try_option(option, now / 2);
		else if (strcmp(option->name, "fifo") == 0)
			any |= now == 0 && try_option(option, 1);
		else if (!option->rate && option->bytes == sizeof(uint32_t) && now > 1 &&
			 strstr(option->name, "percent") == NULL && stays_alive(option))
			any |= try_option(option, now - 1);
	}
	return any;
}

static bool
try_drop(const struct strike *strikes, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		if (!narrow_drop(strikes[i]))
			return false;
	}
	if (trial())
		return true;
	for (uint32_t i = 0; i < count; i++)
		narrow_undrop(strikes[i]);
	return false;
}

/* Halves, quarters, ... single ones of the faults that struck. */
static bool
fewer_strikes(void)
{
	bool any = false;

	for (uint32_t step = shrink.failure.num_strikes; step > 0; step /= 2) {
		struct report from = shrink.failure;
		for (uint32_t i = 0; i < from.num_strikes; i += step)
			any |= try_drop(&from.strikes[i], th_min_u32(step, from.num_strikes - i));
	}
	return any;
}

int
shrink_seed(uint64_t seed)
{
	report = mmap(
		NULL, sizeof(*report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (report == MAP_FAILED) {
		perror("thsim: mmap");
		return 2;
	}
	shrink.seed = seed;
	shrink.end = now_s() + BUDGET_S;
	if (!trial()) {
		printf("seed %" PRIu64 " does not fail: nothing to shrink\n", seed);
		return 0;
	}
	memcpy(shrink.invariant, report->invariant, sizeof(shrink.invariant));
	while (now_s() < shrink.end && (fewer_options() | fewer_strikes()))
		;
	printf("%s breaks in %u faults, after %u trials:\nthsim ", shrink.invariant,
		shrink.failure.num_strikes, shrink.trials);
	narrow_print(seed);
	return 1;
}
