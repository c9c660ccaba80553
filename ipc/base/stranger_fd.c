/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stranger_fd - see stranger_fd.h.
 *
 * The threads that close are started when all that there are have something to do. They are never
 * joined, so what they share is static: one that waits in close() ends with the process.
 */
#include "ipc/base/stranger_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"

#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE (1U << 1)
#endif

/* ---- what it is ------------------------------------------------------------------------------ */

/* What has seals is memory of the kernel's. */
static bool
is_memory(int fd)
{
	return fcntl(fd, F_GET_SEALS) >= 0;
}

bool
stranger_is_dmabuf(int fd)
{
	char path[48], text[512];
	if (is_memory(fd))
		return true;
	/* The kernel's own words: of a dma-buf they say who exports it. */
	(void)snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	int info = open(path, O_RDONLY | O_CLOEXEC);
	if (info < 0)
		return false;
	ssize_t got = read(info, text, sizeof(text) - 1);
	th_fd_close(&info);
	text[got > 0 ? got : 0] = '\0';
	return strstr(text, "\nexp_name:") != NULL;
}

bool
stranger_may_be_drivers(int fd)
{
	struct statx st;
	/* AT_STATX_DONT_SYNC takes it from the kernel's memory, whatever the file system. */
	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &st) < 0)
		return false;
	return S_ISCHR(st.stx_mode) || stranger_is_dmabuf(fd);
}

/* ---- who closes it --------------------------------------------------------------------------- */

#define THREADS_MAX 16
#define STACK_BYTES (64u << 10)
/* What waits for so long waits for closes that somebody holds up: hundreds are over sooner. */
#define LONG_NS INT64_C(2000000000)

struct closing {
	struct closing *next;
	int64_t queued_ns;
	int fd; /* owns */
	void (*closed)(void *arg);
	void *arg;
};

struct pool {
	const char *whose;
	bool told; /* guarded by lock: that it takes long */
	pthread_cond_t work;
	struct closing *first, **last;     /* guarded by lock */
	uint32_t queued, closing, threads; /* guarded by lock */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool strangers = {
	"workers", false, PTHREAD_COND_INITIALIZER, NULL, &strangers.first, 0, 0, 0};
static struct pool drivers = {
	"GPU drivers", false, PTHREAD_COND_INITIALIZER, NULL, &drivers.first, 0, 0, 0};

/* Held while a child may have copies of this process's descriptors. */
static pthread_mutex_t copying = PTHREAD_MUTEX_INITIALIZER;

static void
close_entry(const struct closing *entry)
{
	static const struct linger no_linger = {0};
	/* No socket, mostly; nobody needs to wait for what one has not sent. */
	(void)setsockopt(entry->fd, SOL_SOCKET, SO_LINGER, &no_linger, sizeof(no_linger));
	(void)close(entry->fd); /* there is nobody who could do anything about a failure */
	if (!entry->closed)
		return;
	/* Its worker hears that nobody has it: a process that is just being started may have had a
	 * copy. */
	pthread_mutex_lock(&copying);
	pthread_mutex_unlock(&copying);
	entry->closed(entry->arg);
}

static void *
run_closer(void *arg)
{
	struct pool *pool = arg;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (!pool->first)
			pthread_cond_wait(&pool->work, &lock);
		struct closing *entry = pool->first;
		pool->first = entry->next;
		if (!pool->first)
			pool->last = &pool->first;
		pool->queued--;
		pool->closing++;
		pthread_mutex_unlock(&lock);
		close_entry(entry);
		free(entry);
		pthread_mutex_lock(&lock);
		pool->closing--;
	}
	return NULL;
}

/* True: somebody is there to close one more. */
static bool
start_closer(struct pool *pool)
{
	pthread_attr_t attributes;
	pthread_t thread;
	if (pool->threads - pool->closing > pool->queued || pool->threads == THREADS_MAX)
		return true;
	if (pthread_attr_init(&attributes) != 0)
		return pool->threads > 0;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	if (pthread_create(&thread, &attributes, run_closer, pool) == 0) {
		pthread_setname_np(thread, "th-close"); /* it is there: it waits for the lock */
		pool->threads++;
	}
	pthread_attr_destroy(&attributes);
	return pool->threads > 0;
}

/* Once, under the lock: the first that waits has waited for long. */
static void
look_for_long(struct pool *pool, int64_t now_ns)
{
	if (pool->told || pool->threads < THREADS_MAX || !pool->first ||
		now_ns - pool->first->queued_ns < LONG_NS)
		return;
	pool->told = true;
	log_warn("closer", "descriptors of %s take long to close threads=%u; no more are started",
		pool->whose, pool->threads);
}

static void
close_in(struct pool *pool, int fd, void (*closed)(void *arg), void *arg)
{
	const struct closing own = {
		.queued_ns = th_now_ns(), .fd = fd, .closed = closed, .arg = arg};
	struct closing *entry = malloc(sizeof(*entry));
	pthread_mutex_lock(&lock);
	bool taken = entry && start_closer(pool);
	look_for_long(pool, own.queued_ns);
	if (taken) {
		*entry = own;
		*pool->last = entry;
		pool->last = &entry->next;
		pool->queued++;
		pthread_cond_signal(&pool->work);
	}
	pthread_mutex_unlock(&lock);
	if (!taken) {
		/* Kept open it would fill the table of descriptors, which stops the agent, too. */
		log_warn("closer", "no thread closes a worker's descriptor fd=%d", fd);
		free(entry);
		close_entry(&own);
	}
}

void
stranger_close_drivers(int fd, void (*closed)(void *arg), void *arg)
{
	close_in(&drivers, fd, closed, arg);
}

void
stranger_close(int fd)
{
	close_in(&strangers, fd, NULL, NULL);
}

uint64_t
stranger_num_closing(void)
{
	pthread_mutex_lock(&lock);
	uint64_t waiting =
		(uint64_t)strangers.queued + strangers.closing + drivers.queued + drivers.closing;
	pthread_mutex_unlock(&lock);
	return waiting;
}

/* ---- who has no copy ------------------------------------------------------------------------- */

/* Of this process, below STRANGER_BELOW: what the main thread has is had through it. -1: there is
 * none. */
static int process_fd = -1;

static int
fetch_copy(int fd)
{
	return (int)syscall(SYS_pidfd_getfd, process_fd, fd, 0);
}

/* A filter of system calls may know the first and not the second (container runtimes do). */
static bool
open_process(void)
{
	process_fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	int fd = process_fd >= 0 && process_fd < STRANGER_BELOW ? fetch_copy(process_fd) : -1;
	if (fd >= 0) {
		(void)close(fd);
		return true;
	}
	if (process_fd >= 0)
		(void)close(process_fd);
	process_fd = -1;
	return false;
}

int
stranger_reserve(void)
{
	int fd;
	if (!open_process())
		return 0;
	do /* a file would have to be there */
		fd = fcntl(process_fd, F_DUPFD_CLOEXEC, 0);
	while (fd >= 0 && fd < STRANGER_BELOW);
	if (fd < 0)
		return -errno;
	(void)close(fd);
	return 0;
}

bool
stranger_bare_begin(void)
{
	return process_fd >= 0 &&
	       syscall(SYS_close_range, STRANGER_BELOW, ~0u, CLOSE_RANGE_UNSHARE) == 0;
}

int
stranger_bare_fetch(int fd)
{
	int got = fd < STRANGER_BELOW ? fd : fetch_copy(fd);
	if (got < 0)
		return -errno;
	/* The other copy stays: to close it may take as long as its maker likes. */
	return got == fd || dup3(got, fd, O_CLOEXEC) >= 0 ? 0 : -errno;
}

void
stranger_bare_clear(void)
{
	(void)syscall(SYS_close_range, STRANGER_BELOW, ~0u, 0);
}

static int
stranger_fd_compare_fds(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;
	return (x > y) - (x < y);
}

static long
close_gap(unsigned first, unsigned last, unsigned flags)
{
	return first > last ? 0 : syscall(SYS_close_range, first, last, flags);
}

/* What cannot be fetched is not there, as if its maker had taken it away. */
static void
fetch_all(const int *fds, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		int rc = stranger_bare_fetch(fds[i]);
		if (rc < 0)
			log_warn("closer",
				"a thread has not got a descriptor that it needs fd=%d why='%s'",
				fds[i], th_strerror(rc));
	}
}

/*
 * Where nobody has reserved numbers, beyond the last one first: that call makes the table this
 * thread's own, and what it copied is closed. Where it does not (an old kernel, a filter) the
 * thread shares the process's table as any other.
 */
void
stranger_bare_keep(int *fds, uint32_t count)
{
	qsort(fds, count, sizeof(fds[0]), stranger_fd_compare_fds);
	unsigned last = count > 0 ? (unsigned)fds[count - 1] : 0;
	bool bare = stranger_bare_begin();
	if (bare)
		fetch_all(fds, count);
	else if (close_gap(last + 1, ~0u, CLOSE_RANGE_UNSHARE) < 0)
		return;
	unsigned from = 0;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	from = STDERR_FILENO + 1; /* where the sanitizer reports */
#endif
	for (uint32_t i = 0; i < count && (!bare || fds[i] < STRANGER_BELOW); i++) {
		unsigned fd = (unsigned)fds[i];
		if (fd > from)
			(void)close_gap(from, fd - 1, 0);
		from = fd + 1;
	}
	if (bare)
		(void)close_gap(from, STRANGER_BELOW - 1, 0);
}

void
stranger_copies_begin(void)
{
	pthread_mutex_lock(&copying);
}

void
stranger_copies_end(void)
{
	pthread_mutex_unlock(&copying);
}
