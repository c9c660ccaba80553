/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch - see launch.h.
 *
 * posix_spawn, because the agent has threads: after a fork hardly any call is safe.
 */
#include "daemon/host/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <unistd.h>

#include "ipc/base/fd.h"

/* Out of the way of the numbers that they get. */
#define ASIDE 16

/* Held while a new process may have copies of this one's descriptors: until it has closed them. */
static pthread_mutex_t spawning = PTHREAD_MUTEX_INITIALIZER;

static int
set_files(posix_spawn_file_actions_t *files, int sock, int lifeline)
{
	/* What a library prints is not what the agent prints: only its complaints are kept. */
	int rc = posix_spawn_file_actions_addopen(files, 0, "/dev/null", O_RDWR, 0);
	if (rc == 0)
		rc = posix_spawn_file_actions_adddup2(files, 0, 1);
	if (rc == 0)
		rc = posix_spawn_file_actions_adddup2(files, sock, LAUNCH_SOCK);
	if (rc == 0)
		rc = posix_spawn_file_actions_adddup2(files, lifeline, LAUNCH_LIFELINE);
	/* Not by exec: the caller goes on when that has replaced the memory, which is a little
	 * before it closes anything, and tells workers that nobody has theirs any more. */
	if (rc == 0)
		rc = posix_spawn_file_actions_addclosefrom_np(files, LAUNCH_LIFELINE + 1);
	return rc;
}

static int
set_signals(posix_spawnattr_t *attributes)
{
	sigset_t blocked;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	sigaddset(&blocked, SIGINT);
	sigaddset(&blocked, SIGHUP);
	int rc = posix_spawnattr_setsigmask(attributes, &blocked);
	return rc == 0 ? posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK) : rc;
}

static int
spawn(const char *program, int sock, int lifeline, pid_t *ret_pid)
{
	char name[] = "thagentd-gpu", option[] = LAUNCH_OPTION;
	char *const argv[] = {name, option, NULL};
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	int rc = posix_spawn_file_actions_init(&files);
	if (rc != 0)
		return -rc;
	rc = posix_spawnattr_init(&attributes);
	if (rc == 0) {
		rc = set_files(&files, sock, lifeline);
		if (rc == 0)
			rc = set_signals(&attributes);
		pthread_mutex_lock(&spawning);
		if (rc == 0)
			rc = posix_spawn(ret_pid, program, &files, &attributes, argv, environ);
		pthread_mutex_unlock(&spawning);
		posix_spawnattr_destroy(&attributes);
	}
	posix_spawn_file_actions_destroy(&files);
	return -rc;
}

int
launch(const char *program, int sock, int lifeline, struct th_err *err, pid_t *ret_pid)
{
	int own_sock = fcntl(sock, F_DUPFD_CLOEXEC, ASIDE), own_lifeline = -1, rc = 0;
	if (own_sock >= 0)
		own_lifeline = fcntl(lifeline, F_DUPFD_CLOEXEC, ASIDE);
	if (own_lifeline < 0)
		rc = -errno;
	if (rc == 0)
		rc = spawn(program, own_sock, own_lifeline, ret_pid);
	th_fd_close(&own_sock);
	th_fd_close(&own_lifeline);
	return rc < 0 ? th_fail(err, rc, "starting %s %s: %s", program, LAUNCH_OPTION,
				th_strerror(rc))
		      : 0;
}

void
launch_await(void)
{
	pthread_mutex_lock(&spawning);
	pthread_mutex_unlock(&spawning);
}

void
launch_tidy(void)
{
	/* Which GPUs a batch system gave the agent says nothing of its workers'. */
	(void)unsetenv("CUDA_VISIBLE_DEVICES");
	/* This process is killed when it hangs; a client of MPS that is killed may take the others
	 * along. Who finds no MPS daemon goes without (nvidia-cuda-mps-control(1)). */
	(void)setenv("CUDA_MPS_PIPE_DIRECTORY", "/dev/null", 1);
}
