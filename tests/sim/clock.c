/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock - what happens later, in order of (time, number), and processes with clocks of their own.
 *
 * A stopped process (SIGSTOP) handles nothing: what comes is kept and handled when it goes on. What
 * was meant for a process that has died is dropped.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/check.h"
#include "tests/sim/sim.h"

static struct heap { /* owns its tasks */
	struct task **tasks;
	uint32_t count, room;
	uint64_t last_order;
} heap;

static bool
before(const struct task *a, const struct task *b)
{
	return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

static void
push(struct task *task)
{
	if (heap.count == heap.room) {
		heap.room = heap.room == 0 ? 1024 : 2 * heap.room;
		heap.tasks = th_realloc(heap.tasks, heap.room, sizeof(struct task *));
	}
	uint32_t at = heap.count++;
	while (at > 0 && before(task, heap.tasks[(at - 1) / 2])) {
		heap.tasks[at] = heap.tasks[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	heap.tasks[at] = task;
}

static struct task *
pop(void)
{
	struct task *first = heap.tasks[0], *last = heap.tasks[--heap.count];
	uint32_t at = 0, child;

	while ((child = 2 * at + 1) < heap.count) {
		if (child + 1 < heap.count && before(heap.tasks[child + 1], heap.tasks[child]))
			child++;
		if (!before(heap.tasks[child], last))
			break;
		heap.tasks[at] = heap.tasks[child];
		at = child;
	}
	heap.tasks[at] = last;
	return first;
}

void *
task_new(size_t bytes, void (*run)(struct task *task), struct process *process)
{
	struct task *task = th_calloc(1, bytes);

	task->run = run;
	task->process = process;
	task->life = process == NULL ? 0 : process->life;
	return task;
}

void
task_at(struct task *task, int64_t due_ns)
{
	task->due_ns = due_ns < world.now_ns ? world.now_ns : due_ns;
	task->order = ++heap.last_order;
	push(task);
}

void
task_in(struct task *task, int64_t delay_ns)
{
	task_at(task, world.now_ns + delay_ns);
}

int64_t
clock_next_ns(void)
{
	return heap.count == 0 ? NEVER : heap.tasks[0]->due_ns;
}

bool
clock_step(void)
{
	if (heap.count == 0)
		return false;
	struct task *task = pop();
	struct process *process = task->process;
	world.now_ns = task->due_ns;
	if (process != NULL && (!process->alive || process->life != task->life)) {
		free(task);
		return true;
	}
	if (process != NULL && process->paused) {
		*process->held_end = task;
		process->held_end = &task->next;
		task->next = NULL;
		return true;
	}
	world.events++;
	task->run(task);
	free(task);
	check_event();
	return true;
}

void
clock_clear(void)
{
	while (heap.count > 0)
		free(heap.tasks[--heap.count]);
	heap.last_order = 0;
	free(heap.tasks);
	heap = (struct heap){0};
}

/* ---- processes ------------------------------------------------------------------------------- */

static void
drop_held(struct process *process)
{
	while (process->held != NULL) {
		struct task *first = process->held;
		process->held = first->next;
		free(first);
	}
	process->held_end = &process->held;
}

void
process_start(struct process *process)
{
	uint32_t skew = world.options.clock_skew_permille;

	process->changed_ns = world.now_ns;
	process->alive = true;
	process->paused = false;
	process->life++;
	process->real_ns = world.now_ns;
	process->local_ns = SEC + (int64_t)chance(RNG_SWARM, 1000) * SEC;
	process->permille = 1000 - skew + (uint32_t)chance(RNG_SWARM, 2 * skew + 1);
	process->wake_ns = NEVER;
	process->stood_ns = process->stops = 0;
	drop_held(process);
}

void
process_kill(struct process *process)
{
	process->changed_ns = world.now_ns;
	process->alive = process->paused = false;
	drop_held(process);
}

void
process_pause(struct process *process)
{
	process->changed_ns = world.now_ns;
	process->paused = true;
	process->stopped_ns = world.now_ns;
	process->stops++;
}

void
process_resume(struct process *process)
{
	struct task *task = process->held, *next;

	process->changed_ns = world.now_ns;
	process->paused = false;
	process->stood_ns += world.now_ns - process->stopped_ns;
	process->held = NULL;
	process->held_end = &process->held;
	for (; task != NULL; task = next) {
		next = task->next;
		task_in(task, 0);
	}
}

int64_t
process_now(const struct process *process)
{
	return process->local_ns + (world.now_ns - process->real_ns) / 1000 * process->permille;
}

static void
wake(struct task *task)
{
	struct process *process = task->process;

	if (task->due_ns == process->wake_ns || process->wake_ns <= world.now_ns)
		process->wake_ns = NEVER;
	process->on_wake(process);
}

void
process_wake_at(struct process *process, int64_t local_ns)
{
	int64_t left_ns, real_ns;

	if (local_ns >= NEVER / 4)
		return;
	left_ns = local_ns - process->local_ns;
	real_ns = left_ns <= 0 ? world.now_ns
			       : process->real_ns + (left_ns / process->permille + 1) * 1000;
	if (real_ns < world.now_ns)
		real_ns = world.now_ns;
	if (real_ns >= process->wake_ns)
		return;
	process->wake_ns = real_ns;
	task_at(task_new(sizeof(struct task), wake, process), real_ns);
}
