/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sticky - see sticky.h.
 */
#include "tests/support/transport/sticky.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "tests/support/transport/transport_rig.h"

#define PATIENCE_NS INT64_C(30000000000)

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int fd;
	off64_t from;
	uint32_t stuck;
} sticky = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, -1, 0, 0};

static void
get_stuck(int fd, size_t bytes, off64_t at)
{
	pthread_mutex_lock(&sticky.lock);
	if (fd == sticky.fd && at + (off64_t)bytes > sticky.from) {
		sticky.stuck++;
		pthread_cond_broadcast(&sticky.changed);
		while (sticky.fd == fd)
			pthread_cond_wait(&sticky.changed, &sticky.lock);
		sticky.stuck--;
	}
	pthread_mutex_unlock(&sticky.lock);
}

ssize_t
pread64(int fd, void *to, size_t bytes, off64_t at)
{
	get_stuck(fd, bytes, at);
	return syscall(SYS_pread64, fd, to, bytes, at);
}

ssize_t
pwrite64(int fd, const void *from, size_t bytes, off64_t at)
{
	get_stuck(fd, bytes, at);
	return syscall(SYS_pwrite64, fd, from, bytes, at);
}

void
sticky_make(const struct xfer_part *part, uint64_t from)
{
	uint32_t count;
	int *fds = xfer_part_descriptors(part, 0, &count);
	TH_ASSERT(count == 1);
	pthread_mutex_lock(&sticky.lock);
	sticky.fd = fds[0];
	sticky.from = (off64_t)from;
	pthread_mutex_unlock(&sticky.lock);
	free(fds);
}

void
sticky_wait(struct rig *rig)
{
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	for (uint32_t stuck = 0; stuck == 0;) {
		TH_ASSERT(th_now_ns() < until_ns);
		rig_pump(rig, 10);
		pthread_mutex_lock(&sticky.lock);
		stuck = sticky.stuck;
		pthread_mutex_unlock(&sticky.lock);
	}
}

void
sticky_let_go(void)
{
	pthread_mutex_lock(&sticky.lock);
	sticky.fd = -1;
	pthread_cond_broadcast(&sticky.changed);
	pthread_mutex_unlock(&sticky.lock);
}
