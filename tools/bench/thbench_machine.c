/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_machine - what machine the figures are of, and how busy it was.
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "ipc/base/units.h"
#include "libthc/thc.h"
#include "tools/bench/thbench.h"

#define KIB UINT64_C(1024)

/* The first line of a file, without its end; "?" where there is none. */
static void
first_line(const char *path, char *ret_line, size_t bytes)
{
	FILE *file = fopen(path, "re");

	snprintf(ret_line, bytes, "?");
	if (!file)
		return;
	if (fgets(ret_line, (int)bytes, file))
		ret_line[strcspn(ret_line, "\n")] = '\0';
	fclose(file);
}

/* What stands behind "name:" in a file of such lines; "?" where it is not there. */
static void
named_line(const char *path, const char *name, char *ret_text, size_t bytes)
{
	char line[512];
	FILE *file = fopen(path, "re");

	snprintf(ret_text, bytes, "?");
	while (file && fgets(line, sizeof(line), file)) {
		char *colon = strchr(line, ':');
		if (strncmp(line, name, strlen(name)) != 0 || !colon)
			continue;
		colon += 1 + strspn(colon + 1, " \t");
		colon[strcspn(colon, "\n")] = '\0';
		snprintf(ret_text, bytes, "%s", colon);
		break;
	}
	if (file)
		fclose(file);
}

uint64_t
bench_memory_available(void)
{
	char text[64];

	named_line("/proc/meminfo", "MemAvailable", text, sizeof(text));
	return strtoull(text, NULL, 10) * KIB;
}

int
bench_need_memory(const struct bench *bench, uint64_t bytes, const char *what, struct th_err *err)
{
	char needed[TH_UNITS_BYTES], there[TH_UNITS_BYTES];
	uint64_t available = bench_memory_available();

	(void)bench;
	/* A sixteenth stays for everybody else. */
	if (available == 0 || bytes <= available - available / 16)
		return 0;
	return th_fail(err, -ENOMEM,
		"%s needs %s of memory and %s are available; give a smaller --bytes", what,
		th_print_size_short(bytes, needed), th_print_size_short(available, there));
}

void
bench_machine_facts(struct bench *bench)
{
	struct report *report = &bench->report;
	char text[256], load[128];
	struct utsname name;

	report_fact_text(report, "thbench", "thbench", TH_VERSION);
	report_fact_text(report, "build", "built", TH_BUILD_KIND);
	report_fact_text(report, "libthc", "libthc", thc_version_string());
	named_line("/proc/cpuinfo", "model name", text, sizeof(text));
	report_fact_text(report, "cpu", "CPU", text);
	report_fact(report, "cpus", "CPUs it may use", bench->cpus, "");
	if (uname(&name) == 0)
		report_fact_text(report, "kernel", "kernel", name.release);
	report_fact(report, "memory_available", "memory available",
		(double)bench_memory_available(), "B");
	first_line("/proc/sys/net/ipv4/tcp_congestion_control", text, sizeof(text));
	report_fact_text(report, "host_congestion_control", "the host's congestion control", text);
	first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", text, sizeof(text));
	report_fact_text(report, "shmem_huge_pages", "huge pages of shared memory", text);
	first_line("/proc/loadavg", load, sizeof(load));
	report_fact_text(report, "load_before", "load when it began", load);
}
