/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thsim - the cores in simulated worlds.
 *
 *   thsim [--seed N | --seeds A-B | --count N] [--jobs J] [--trace] [--twice] [--plant NAME]
 *         [--marks] [--keep-going]
 *
 * --count N     seeds 1 to N
 * --jobs J      this many processes
 * --trace       every event; otherwise the last ones, when a run fails
 * --twice       each seed two times: both runs must be the same
 * --plant NAME  with this bug switched on (TH_PLANT)
 * --marks       how often each mark (TH_MARK) was reached
 *
 * Exit status 0: no run failed. The first failure ends it, unless --keep-going.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/sim.h"

/* The linker makes these lists; without a mark or a plant there is none. */
extern struct th_sim_point *const __start_th_marks[] __attribute__((weak));
extern struct th_sim_point *const __stop_th_marks[] __attribute__((weak));
extern struct th_sim_point *const __start_th_plants[] __attribute__((weak));
extern struct th_sim_point *const __stop_th_plants[] __attribute__((weak));

#define MARKS_MAX 1024u

static struct {
	uint64_t first, last;
	uint32_t jobs;
	bool print, twice, marks, keep_going;
	const char *plant;
} how = {.first = 1, .last = 1, .jobs = 1};

static struct shared { /* by all processes */
	_Atomic uint64_t next, done, failed;
	_Atomic uint64_t hits[MARKS_MAX];
} * shared;

static size_t
count_marks(void)
{
	return (size_t)(__stop_th_marks - __start_th_marks);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void
died(int signal_no)
{
	/* A core's own invariant, or a sanitizer: what led there is worth more than safety here. */
	signal(signal_no, SIG_DFL);
	trace_dump();
	printf("core: ended by signal %d; its sentence is above, on stderr\n", signal_no);
	fflush(stdout);
	_exit(1);
}

static void
run(uint64_t seed)
{
	uint64_t hash = run_seed(seed, how.print);

	if (how.twice && run_seed(seed, false) != hash)
		sim_fail("I18", "two runs of one seed differ");
	if (how.print)
		printf("seed %" PRIu64 " hash %016" PRIx64 "\n", seed, hash);
}

static void
work(void)
{
	uint64_t seed;

	signal(SIGABRT, died);
	signal(SIGSEGV, died);
	while ((seed = atomic_fetch_add(&shared->next, 1)) <= how.last) {
		if (atomic_load(&shared->failed) > 0 && !how.keep_going)
			break;
		run(seed);
		atomic_fetch_add(&shared->done, 1);
	}
	for (size_t i = 0; i < count_marks() && i < MARKS_MAX; i++)
		atomic_fetch_add(&shared->hits[i], __start_th_marks[i]->hits);
}

static int
spawn(void)
{
	fflush(stdout);
	pid_t pid = fork();

	if (pid < 0) {
		perror("thsim: fork");
		return -1;
	}
	if (pid == 0) {
		work();
		exit(0);
	}
	return 0;
}

static void
run_all(void)
{
	uint32_t running = 0;
	int status;

	while (running < how.jobs && spawn() == 0)
		running++;
	while (running > 0 && wait(&status) > 0) {
		running--;
		if (status == 0)
			continue;
		atomic_fetch_add(&shared->failed, 1);
		if (how.keep_going && spawn() == 0)
			running++;
	}
}

/* ---- marks and planted bugs ------------------------------------------------------------------ */

static bool
switch_on(const char *name)
{
	bool found = false;

	for (struct th_sim_point *const *at = __start_th_plants; at < __stop_th_plants; at++) {
		if (strcmp((*at)->name, name) == 0)
			(*at)->on = found = true;
	}
	return found;
}

static void
print_plants(void)
{
	for (struct th_sim_point *const *at = __start_th_plants; at < __stop_th_plants; at++)
		printf("%s %s:%d\n", (*at)->name, (*at)->file, (*at)->line);
}

static void
print_marks(void)
{
	for (size_t i = 0; i < count_marks() && i < MARKS_MAX; i++)
		printf("%10" PRIu64 " %s %s:%d\n", atomic_load(&shared->hits[i]),
			__start_th_marks[i]->name, __start_th_marks[i]->file,
			__start_th_marks[i]->line);
}

/* ---- options --------------------------------------------------------------------------------- */

static int
usage(void)
{
	fprintf(stderr, "usage: thsim [--seed N | --seeds A-B | --count N] [--jobs J] [--trace] "
			"[--twice]\n             [--plant NAME] [--plants] [--marks] "
			"[--keep-going]\n");
	return 2;
}

static int
parse(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
		if (strcmp(name, "--trace") == 0) {
			how.print = true;
		} else if (strcmp(name, "--twice") == 0) {
			how.twice = true;
		} else if (strcmp(name, "--marks") == 0) {
			how.marks = true;
		} else if (strcmp(name, "--keep-going") == 0) {
			how.keep_going = true;
		} else if (strcmp(name, "--plants") == 0) {
			print_plants();
			exit(0);
		} else if (value == NULL) {
			return usage();
		} else if (strcmp(name, "--seed") == 0) {
			how.first = how.last = strtoull(argv[++i], NULL, 10);
		} else if (strcmp(name, "--count") == 0) {
			how.last = how.first + strtoull(argv[++i], NULL, 10) - 1;
		} else if (strcmp(name, "--jobs") == 0) {
			how.jobs = (uint32_t)strtoul(argv[++i], NULL, 10);
		} else if (strcmp(name, "--plant") == 0) {
			how.plant = argv[++i];
		} else if (strcmp(name, "--seeds") == 0) {
			char *dash;
			how.first = strtoull(argv[++i], &dash, 10);
			how.last = *dash == '-' ? strtoull(dash + 1, NULL, 10) : how.first;
		} else {
			return usage();
		}
	}
	return 0;
}

int
main(int argc, char **argv)
{
	if (parse(argc, argv) != 0)
		return 2;
	if (how.plant != NULL && !switch_on(how.plant)) {
		fprintf(stderr, "thsim: no bug has the name %s; --plants lists them\n", how.plant);
		return 2;
	}
	shared = mmap(
		NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED) {
		perror("thsim: mmap");
		return 2;
	}
	atomic_store(&shared->next, how.first);
	if (how.jobs <= 1 && !how.keep_going)
		work();
	else
		run_all();
	if (how.marks)
		print_marks();
	printf("%" PRIu64 " seeds, %" PRIu64 " failed%s%s\n", atomic_load(&shared->done),
		atomic_load(&shared->failed), how.plant != NULL ? ", with " : "",
		how.plant != NULL ? how.plant : "");
	return atomic_load(&shared->failed) > 0 ? 1 : 0;
}
