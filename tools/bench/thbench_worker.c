/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_worker - the parent's side of workers (see thbench_worker.h).
 */
#include "tools/bench/thbench_worker.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/fd.h"

#define QUIT_NS INT64_C(15000000000)
#define SAMPLE_BYTES (WORKER_SAMPLES_MAX * sizeof(double))

int
worker_start(struct bench *bench, const char *name, struct worker *worker, struct th_err *err)
{
	int socks[2];
	const pid_t parent = getpid();

	*worker = (struct worker){.sock = -1};
	snprintf(worker->name, sizeof(worker->name), "%s", name);
	int rc = bench_go_on(bench, err);
	if (rc < 0)
		return rc;
	double *samples =
		mmap(NULL, SAMPLE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (samples == MAP_FAILED)
		return th_fail(err, -errno, "no memory for samples: %s", strerror(errno));
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, socks) < 0) {
		rc = th_fail(err, -errno, "no socket: %s", strerror(errno));
		munmap(samples, SAMPLE_BYTES);
		return rc;
	}
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		/* Ctrl-C is for the parent, which then ends us. */
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		stop_end(&bench->stop);
		th_fd_close(&socks[0]);
		worker_serve(socks[1], samples);
	}
	rc = pid < 0 ? th_fail(err, -errno, "no process for %s: %s", name, strerror(errno)) : 0;
	th_fd_close(&socks[1]);
	if (rc < 0) {
		th_fd_close(&socks[0]);
		munmap(samples, SAMPLE_BYTES);
		return rc;
	}
	worker->pid = pid;
	worker->sock = socks[0];
	worker->samples = samples;
	return 0;
}

int
worker_ask(struct worker *worker, const struct command *command, struct th_err *err)
{
	worker->samples[0] = 0.0;
	ssize_t sent = send(worker->sock, command, sizeof(*command), MSG_NOSIGNAL);

	if (sent != sizeof(*command))
		return th_fail(err, -EPIPE, "%s: the worker is gone", worker->name);
	worker->busy = true;
	return 0;
}

int
worker_answer(
	struct bench *bench, struct worker *worker, struct answer *ret_answer, struct th_err *err)
{
	struct answer answer;
	struct pollfd polls[2] = {
		{.fd = worker->sock, .events = POLLIN}, {.fd = bench->stop.fd, .events = POLLIN}};

	while (polls[0].revents == 0) {
		if (poll(polls, 2, -1) < 0 && errno != EINTR)
			return th_fail(err, -errno, "cannot wait for %s: %s", worker->name,
				strerror(errno));
		int rc = bench_go_on(bench, err);
		if (rc < 0)
			return rc;
	}
	ssize_t got = recv(worker->sock, &answer, sizeof(answer), 0);
	if (got != sizeof(answer))
		return th_fail(err, -EPIPE, "%s: the worker has died", worker->name);
	worker->busy = false;
	if (answer.code < 0)
		return th_fail(err, answer.code, "%s: %s", worker->name, answer.text);
	if (ret_answer)
		*ret_answer = answer;
	return 0;
}

uint64_t
worker_done_bytes(const struct worker *worker)
{
	/* The worker writes it meanwhile. */
	return (uint64_t) * (const volatile double *)&worker->samples[0];
}

bool
worker_has_begun(const struct worker *worker)
{
	return worker_done_bytes(worker) > 0;
}

int
worker_call(struct bench *bench, struct worker *worker, const struct command *command,
	struct answer *ret_answer, struct th_err *err)
{
	int rc = worker_ask(worker, command, err);

	return rc < 0 ? rc : worker_answer(bench, worker, ret_answer, err);
}

void
worker_stop(struct worker *worker)
{
	const struct command quit = {.command = WORKER_QUIT};
	const struct timespec look = {.tv_nsec = 2000000};
	int64_t end_ns = th_now_ns() + QUIT_NS;

	if (worker->pid <= 0)
		return;
	if (worker->busy || worker_ask(worker, &quit, NULL) < 0)
		kill(worker->pid, SIGKILL);
	while (waitpid(worker->pid, NULL, WNOHANG) == 0) {
		if (th_now_ns() > end_ns)
			kill(worker->pid, SIGKILL);
		nanosleep(&look, NULL);
	}
	th_fd_close(&worker->sock);
	munmap(worker->samples, SAMPLE_BYTES);
	worker->pid = 0;
}
