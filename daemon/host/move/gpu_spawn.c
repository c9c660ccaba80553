/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_spawn - see gpu_spawn.h.
 *
 * posix_spawn, because the agent has threads: after a fork hardly any call is safe.
 */
#include "daemon/host/move/gpu_spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/stranger_fd.h"

/* Out of the way of the numbers that they get, and of those that the launcher has copies of. */
#define ASIDE STRANGER_BELOW

struct child {
	const char *program;
	const posix_spawn_file_actions_t *files;
	const posix_spawnattr_t *attributes;
	int sock, lifeline;
	pid_t pid;
	int rc; /* as of posix_spawn */
	bool done;
};

/*
 * A thread of its own is the parent of them all, until the agent ends: it has no copies of workers'
 * descriptors, and so has no child, which would close them; and a child is killed when the thread
 * ends that is its parent (PR_SET_PDEATHSIG).
 */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t work, done;
	struct child *child; /* guarded by lock; NULL: nothing to do */
	bool runs;           /* guarded by lock */
} launcher = {
	PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, false};

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
start_bare(struct child *child, char *const argv[])
{
	int rc = stranger_bare_fetch(child->sock);
	if (rc == 0)
		rc = stranger_bare_fetch(child->lifeline);
	rc = rc < 0 ? -rc
		    : posix_spawn(&child->pid, child->program, child->files, child->attributes,
			      argv, environ);
	stranger_bare_clear();
	return rc;
}

static int
start_shared(struct child *child, char *const argv[])
{
	stranger_copies_begin();
	int rc = posix_spawn(
		&child->pid, child->program, child->files, child->attributes, argv, environ);
	stranger_copies_end();
	return rc;
}

static void *
launcher_main(void *arg)
{
	char name[] = "thagentd-gpu", option[] = LAUNCH_OPTION;
	char *const argv[] = {name, option, NULL};
	bool bare = stranger_bare_begin();
	(void)arg;
	pthread_setname_np(pthread_self(), "th-launch");
	pthread_mutex_lock(&launcher.lock);
	for (;;) {
		while (!launcher.child)
			pthread_cond_wait(&launcher.work, &launcher.lock);
		struct child *child = launcher.child;
		pthread_mutex_unlock(&launcher.lock);
		child->rc = bare ? start_bare(child, argv) : start_shared(child, argv);
		pthread_mutex_lock(&launcher.lock);
		child->done = true;
		launcher.child = NULL;
		pthread_cond_broadcast(&launcher.done);
	}
	return NULL;
}

static int
start_launcher(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	int rc = pthread_attr_init(&attributes);
	if (rc != 0)
		return rc;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&thread, &attributes, launcher_main, NULL);
	pthread_attr_destroy(&attributes);
	launcher.runs = rc == 0;
	return rc;
}

/* As posix_spawn: 0 or a positive number. */
static int
ask_launcher(struct child *child)
{
	pthread_mutex_lock(&launcher.lock);
	int rc = launcher.runs ? 0 : start_launcher();
	while (rc == 0 && launcher.child)
		pthread_cond_wait(&launcher.done, &launcher.lock);
	if (rc == 0) {
		launcher.child = child;
		pthread_cond_signal(&launcher.work);
	}
	while (rc == 0 && !child->done)
		pthread_cond_wait(&launcher.done, &launcher.lock);
	pthread_mutex_unlock(&launcher.lock);
	return rc != 0 ? rc : child->rc;
}

static int
spawn(const char *program, int sock, int lifeline, pid_t *ret_pid)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	struct child child = {.program = program,
		.files = &files,
		.attributes = &attributes,
		.sock = sock,
		.lifeline = lifeline};
	int rc = posix_spawn_file_actions_init(&files);
	if (rc != 0)
		return -rc;
	rc = posix_spawnattr_init(&attributes);
	if (rc == 0) {
		rc = set_files(&files, sock, lifeline);
		if (rc == 0)
			rc = set_signals(&attributes);
		if (rc == 0)
			rc = ask_launcher(&child);
		*ret_pid = child.pid;
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
launch_tidy(void)
{
	/* Which GPUs a batch system gave the agent says nothing of its workers'. */
	(void)unsetenv("CUDA_VISIBLE_DEVICES");
	/* This process is killed when it hangs; a client of MPS that is killed may take the others
	 * along. Who finds no MPS daemon goes without (nvidia-cuda-mps-control(1)). */
	(void)setenv("CUDA_MPS_PIPE_DIRECTORY", "/dev/null", 1);
}
