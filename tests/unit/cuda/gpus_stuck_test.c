/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpus_stuck_test - a process that is killed and does not die, as a driver may hold it.
 *
 * No test can make one: the kill is taken away. From then on the clock goes as far as the GPU's
 * thread wants to wait, at once.
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "tests/support/cuda/gpus_rig.h"
#include "tests/support/cuda/scripted_gpu.h"
#include "transport/cuda/agent/gpu_process.h"

#define MIB ((size_t)1 << 20)
#define MS INT64_C(1000000)
#define STOP_NS (5000 * MS) /* as gpu.c's */

static struct gpus *gpus;
static struct th_err err;
static _Atomic bool stuck;
static _Atomic int64_t waited_ns;
static pid_t pid;

void __wrap_process_kill(struct process *process);
int64_t __real_th_now_ns(void);
int64_t __wrap_th_now_ns(void);
int __real_ppoll(
	struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask);
int __wrap_ppoll(
	struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask);

void
__wrap_process_kill(struct process *process)
{
	th_fd_close(&process->sock);
	stuck = true;
}

int64_t
__wrap_th_now_ns(void)
{
	return __real_th_now_ns() + waited_ns;
}

int
__wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
	static const struct timespec none;
	if (!stuck || !timeout)
		return __real_ppoll(fds, count, timeout, mask);
	int rc = __real_ppoll(fds, count, &none, mask);
	if (rc == 0)
		waited_ns += timeout->tv_sec * (1000 * MS) + timeout->tv_nsec;
	return rc;
}

static int
launch(void *arg, int sock, pid_t *ret_pid, struct th_err *why)
{
	int rc = script_launch(arg, sock, ret_pid, why);
	pid = *ret_pid;
	return rc;
}

/* It does not end by itself either, so that the agent kills it while it ends. */
Test(gpus_stuck, a_process__that_does_not_die__is_left_alone_in_time_at_the_end, .timeout = 20)
{
	static const uint8_t uuid[16] = "the first GPU";
	struct script *script = script_new();
	const struct gpus_config config = {.launch = launch,
		.arg = script,
		.staging_bytes = 8 * MIB,
		.hang_ns = RIG_PATIENCE_NS,
		.leave_ns = 20 * MS,
		.idle_ns = RIG_PATIENCE_NS};
	log_set_level(LOG_LEVEL_ERROR);
	script->lingers = 1;
	cr_assert_eq(gpus_new(&config, &err, &gpus), 0, "%s", err.text);
	struct gpu_space *space = gpu_space_new(gpus, uuid, "m/r/0", &err);
	cr_assert(space, "%s", err.text);
	rig_add(space, 0, MIB);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	gpu_space_release(space);
	rig_wait_until(rig_no_imports, gpus); /* it has answered all */
	gpus_free(gpus);
	cr_assert(stuck);
	cr_assert_gt(waited_ns, 0);
	cr_assert_leq(waited_ns, STOP_NS);
	(void)kill(pid, SIGKILL);
	cr_assert_eq(waitpid(pid, NULL, 0), pid);
	script_free(script);
}
