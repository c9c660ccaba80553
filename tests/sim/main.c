/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thsim - the cores in simulated worlds.
 *
 *   thsim [--seed N | --seeds A-B | --count N] [--jobs J] [--trace] [--twice] [--plant NAME]
 *         [--marks] [--keep-going] [--set NAME=VALUE,...] [--drop FAULT.N,...]
 *         [--shrink] [--replay FILE]
 *
 * --count N     seeds 1 to N
 * --jobs J      this many processes
 * --trace       every event; otherwise the last ones, when a run fails
 * --twice       each seed two times: both runs must be the same
 * --plant NAME  with this bug switched on (TH_PLANT)
 * --set, --drop options in place of the seed's own, faults that do not strike
 * --shrink      a failing seed: finds the --set and --drop with which little is left of it
 * --replay FILE options from a file
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
	bool print, twice, marks, keep_going, shrink, plants;
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
			"[--keep-going]\n             [--set NAME=VALUE,...] [--drop FAULT.N,...] "
			"[--shrink] [--replay FILE]\n");
	return 2;
}

static bool
parse_flag(const char *name)
{
	const struct {
		const char *name;
		bool *flag;
	} flags[] = {{"--trace", &how.print}, {"--twice", &how.twice}, {"--marks", &how.marks},
		{"--keep-going", &how.keep_going}, {"--shrink", &how.shrink},
		{"--plants", &how.plants}};

	for (size_t i = 0; i < TH_ARRAY_LEN(flags); i++) {
		if (strcmp(name, flags[i].name) == 0)
			return *flags[i].flag = true;
	}
	return false;
}

static bool
parse_value(const char *name, char *value)
{
	char *end = value;

	if (strcmp(name, "--plant") == 0) {
		how.plant = value;
		return true;
	}
	if (strcmp(name, "--set") == 0)
		return narrow_parse_set(value);
	if (strcmp(name, "--drop") == 0)
		return narrow_parse_drop(value);
	if (strcmp(name, "--seed") == 0)
		how.first = how.last = strtoull(value, &end, 10);
	else if (strcmp(name, "--count") == 0)
		how.last = how.first + strtoull(value, &end, 10) - 1;
	else if (strcmp(name, "--jobs") == 0)
		how.jobs = (uint32_t)strtoul(value, &end, 10);
	else if (strcmp(name, "--seeds") == 0) {
		how.first = strtoull(value, &end, 10);
		how.last = *end == '-' ? strtoull(end + 1, &end, 10) : how.first;
	}
	return end != value && *end == '\0';
}

/* The options stand in it as on a command line; a line that begins with # is a comment. */
static bool
parse_file(const char *path)
{
	FILE *file = fopen(path, "re");
	char line[4096];
	bool good = file != NULL;

	if (file == NULL)
		perror(path);
	while (good && fgets(line, sizeof(line), file) != NULL) {
		char *rest = line, *name;
		while (good && line[0] != '#' && (name = strtok_r(rest, " \n", &rest)) != NULL) {
			char *value = parse_flag(name) ? NULL : strtok_r(rest, " \n", &rest);
			good = parse_flag(name) || (value != NULL && parse_value(name, value));
		}
	}
	if (file != NULL)
		fclose(file);
	return good;
}

static int
parse(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (parse_flag(argv[i]))
			continue;
		if (i + 1 == argc)
			return usage();
		bool good = strcmp(argv[i], "--replay") == 0 ? parse_file(argv[i + 1])
							     : parse_value(argv[i], argv[i + 1]);
		if (!good)
			return usage();
		i++;
	}
	return 0;
}

int
main(int argc, char **argv)
{
	if (parse(argc, argv) != 0)
		return 2;
	if (how.plants) {
		print_plants();
		return 0;
	}
	if (how.plant != NULL && !switch_on(how.plant)) {
		fprintf(stderr, "thsim: no bug has the name %s; --plants lists them\n", how.plant);
		return 2;
	}
	if (how.shrink)
		return shrink_seed(how.first);
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
