/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace - what happened: the last lines for whoever reads a failure, and a hash over all of it.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/sim/sim.h"

#define LINES 256u /* the last ones are kept; a power of two */

static struct {
	struct line {
		int64_t ns;
		const char *text;
		uint64_t args[TRACE_ARGS];
	} lines[LINES];
	uint64_t count, hash;
	bool print;
} trace;

static void
print_line(const struct line *line)
{
	uint32_t arg = 0;

	printf("%10.6f ", (double)line->ns / 1e9);
	for (const char *c = line->text; *c != '\0'; c++) {
		uint64_t value = arg < TRACE_ARGS ? line->args[arg] : 0;
		if (*c == '#')
			printf("%" PRIu64, value);
		else if (*c == '!')
			printf("%s", value == 0 ? "ok" : th_errname((int)(int64_t)value));
		else if (*c == '$')
			printf("%s", (const char *)(uintptr_t)value);
		else
			putchar(*c);
		arg += *c == '#' || *c == '!' || *c == '$';
	}
	putchar('\n');
}

void
trace_add(const char *text, const uint64_t args[TRACE_ARGS])
{
	struct line *line = &trace.lines[trace.count++ % LINES];
	uint32_t arg = 0;

	line->ns = world.now_ns;
	line->text = text;
	memcpy(line->args, args, sizeof(line->args));
	trace.hash = (trace.hash ^ (uint64_t)world.now_ns) * UINT64_C(0x9e3779b97f4a7c15);
	for (const char *c = text; *c != '\0'; c++) {
		if ((*c == '#' || *c == '!') && arg < TRACE_ARGS)
			trace.hash = (trace.hash ^ args[arg]) * UINT64_C(0x9e3779b97f4a7c15);
		arg += *c == '#' || *c == '!' || *c == '$';
		trace.hash ^= trace.hash >> 29;
	}
	if (trace.print)
		print_line(line);
}

void
trace_begin(bool print)
{
	trace.count = trace.hash = 0;
	trace.print = print;
}

void
trace_dump(void)
{
	uint64_t at = trace.count > LINES ? trace.count - LINES : 0;

	if (!trace.print) {
		for (; at < trace.count; at++)
			print_line(&trace.lines[at % LINES]);
	}
	printf("FAILED seed %" PRIu64 " at %.6f s, event %" PRIu64 "\n", world.seed,
		(double)world.now_ns / 1e9, world.events);
	options_print(&world.options);
	fflush(stdout);
}

uint64_t
trace_hash(void)
{
	return trace.hash;
}

void
sim_fail(const char *invariant, const char *format, ...)
{
	va_list list;

	shrink_report(invariant);
	trace_dump();
	printf("%s: ", invariant);
	va_start(list, format);
	vprintf(format, list);
	va_end(list);
	printf("\n");
	fflush(stdout);
	_exit(1);
}
