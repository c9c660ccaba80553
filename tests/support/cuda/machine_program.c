/* SPDX-License-Identifier: Apache-2.0 */
/*
 * machine_program - GPUs for scripts: makes a machine, answers a line for each line, and removes
 * the machine when its input ends. Single-threaded.
 *
 *   machine_program DEVICES BYTES      first line: the folder, for TH_FAKE_CUDA
 *   used DEVICE                        bytes that somebody holds
 *   holds PID WHAT                     "imports", "contexts"...; -1: the process was never here
 *   calls PID CALL                     by their names, as in ipc/cuda/names.h; "stream"
 *   plan FAULT PID CALL AFTER RESULT   "result", "hang", "lost", "idle"; its number
 *   met PLAN; lift PLAN; lose DEVICE RESULT
 *   set DEVICE WHAT VALUE              "peers", "dma_buf", "pools", "compute_mode", "context_bytes"
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cuda/machine.h"

static struct machine machine;

static const char *const call_names[] = {
#define NAME(name, version, arguments) #name,
	CUDA_ALL_CALLS(NAME)
#undef NAME
		"stream",
};

static const char *const held_names[HELDS] = {
	[HELD_CONTEXTS] = "contexts",
	[HELD_ALLOCATIONS] = "allocations",
	[HELD_HANDLES] = "handles",
	[HELD_RESERVATIONS] = "reservations",
	[HELD_MAPPINGS] = "mappings",
	[HELD_IMPORTS] = "imports",
	[HELD_POOLS] = "pools",
	[HELD_HOST] = "host",
	[HELD_STREAMS] = "streams",
	[HELD_URGENT_STREAMS] = "urgent_streams",
	[HELD_EVENTS] = "events",
	[HELD_MODULES] = "modules",
};

static const char *const fault_names[] = {[FAULT_RESULT] = "result",
	[FAULT_HANG] = "hang",
	[FAULT_LOST] = "lost",
	[FAULT_IDLE] = "idle"};

/* -1: no such word. */
static int
find(const char *const *words, size_t count, const char *word)
{
	for (size_t i = 0; i < count; i++)
		if (words[i] && strcmp(words[i], word) == 0)
			return (int)i;
	return -1;
}

#define FIND(words, word) find(words, sizeof(words) / sizeof((words)[0]), word)

static int
set(unsigned device, const char *what, long long value)
{
	if (device >= machine.page->num_devices)
		return -1;
	struct machine_device *it = &machine.page->devices[device];
	if (strcmp(what, "peers") == 0)
		it->peers = (uint32_t)value;
	else if (strcmp(what, "dma_buf") == 0)
		it->dma_buf = (int)value;
	else if (strcmp(what, "pools") == 0)
		it->pools = (int)value;
	else if (strcmp(what, "compute_mode") == 0)
		it->compute_mode = (int)value;
	else if (strcmp(what, "context_bytes") == 0)
		it->context_bytes = (uint64_t)value;
	else
		return -1;
	return 0;
}

/* Of one line; "?" for what it does not understand. */
static void
answer(const char *line)
{
	char word[4][64] = {{0}};
	long long number[4] = {0};
	int count = sscanf(line, "%63s %63s %63s %63s", word[0], word[1], word[2], word[3]);
	for (int i = 1; i < count; i++)
		number[i] = atoll(word[i]);
	if (count == 2 && strcmp(word[0], "used") == 0) {
		printf("%llu\n", (unsigned long long)machine_used(&machine, (int)number[1]));
	} else if (count == 3 && strcmp(word[0], "holds") == 0 && FIND(held_names, word[2]) >= 0) {
		int held = FIND(held_names, word[2]);
		printf("%d\n", machine_holds(&machine, (pid_t)number[1], (enum machine_held)held));
	} else if (count == 3 && strcmp(word[0], "calls") == 0 && FIND(call_names, word[2]) >= 0) {
		printf("%u\n",
			machine_calls(&machine, (pid_t)number[1], FIND(call_names, word[2])));
	} else if (strcmp(word[0], "plan") == 0 && count == 4 && FIND(fault_names, word[1]) > 0 &&
		   FIND(call_names, word[3]) >= 0) {
		int after = 0, result = 0;
		sscanf(line, "%*s %*s %*s %*s %d %d", &after, &result);
		printf("%d\n",
			machine_plan(&machine, (enum machine_fault)FIND(fault_names, word[1]),
				(pid_t)number[2], FIND(call_names, word[3]), after,
				(CUresult)result));
	} else if (count == 2 && strcmp(word[0], "met") == 0) {
		printf("%u\n", machine_met(&machine, (int)number[1]));
	} else if (count == 2 && strcmp(word[0], "lift") == 0) {
		machine_lift(&machine, (int)number[1]);
		puts("0");
	} else if (count == 3 && strcmp(word[0], "lose") == 0) {
		machine_lose(&machine, (int)number[1], (CUresult)number[2]);
		puts("0");
	} else if (count == 4 && strcmp(word[0], "set") == 0 &&
		   set((unsigned)number[1], word[2], number[3]) == 0) {
		puts("0");
	} else {
		puts("?");
	}
}

int
main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: machine_program DEVICES BYTES\n");
		return 2;
	}
	machine_new(&machine, (unsigned)atoi(argv[1]), (uint64_t)atoll(argv[2]));
	puts(machine.folder);
	fflush(stdout);
	char line[256];
	while (fgets(line, sizeof(line), stdin)) {
		answer(line);
		fflush(stdout);
	}
	machine_remove(&machine);
	return 0;
}
