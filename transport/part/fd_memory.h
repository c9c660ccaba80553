/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_memory - memory of a worker that is not mapped here: a descriptor that is read and written
 * through. A file in memory that may shrink, or the memory of the worker's process. Or memory of a
 * GPU, which only requests to that reach (cuda/agent/gpus.h): it has no descriptor.
 *
 * A call may wait for as long as the worker likes: a page behind it can belong to a file system or
 * a fault handler that the worker serves. So calls are made by threads that may be left behind
 * (crew.h), never by one that others wait for. References are counted. Any thread.
 */
#ifndef TH_TRANSPORT_PART_FD_MEMORY_H
#define TH_TRANSPORT_PART_FD_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/checked.h"

enum fd_memory_kind {
	FD_MEMORY_FILE,    /* memfd, tmpfs: a place is an offset in the file */
	FD_MEMORY_PROCESS, /* /proc/PID/mem: a place is an address */
	FD_MEMORY_GPU,     /* gpu_space: a place is an address */
};

struct fd_memory;
struct gpu_space;
struct gpus;

/*
 * close_fd gets fd when the last reference is dropped, on a thread that shares the descriptors of
 * the process (fd_memory_sweep). NULL: fd is borrowed. NULL: out of memory, fd stays the caller's.
 */
struct fd_memory *fd_memory_new(int fd, enum fd_memory_kind kind, void (*close_fd)(int fd));
/* Of the GPU's memory: takes a reference of the space, dropped as a descriptor is closed. */
struct fd_memory *fd_memory_new_gpu(struct gpus *gpus, struct gpu_space *space);
struct fd_memory *fd_memory_retain(struct fd_memory *access);
void fd_memory_release(struct fd_memory *access);
int fd_memory_fd(const struct fd_memory *access); /* -1: a GPU's */
/* NULL, both: not a GPU's. */
struct gpu_space *fd_memory_space(const struct fd_memory *access);
struct gpus *fd_memory_gpus(const struct fd_memory *access);

/*
 * Not of a GPU's. All of it or a failure: TH_E_STALE_MEMORY when the bytes are not there any more
 * (a file that shrank, a range that was unmapped, a process that ended; of a write also a hole of a
 * file, where the kernel tells of it: it is not filled here), TH_E_MEMORY_KIND when
 * writing would not go where it should (O_APPEND), or -errno.
 */
TH_MUST_USE int fd_memory_read(struct fd_memory *access, uint64_t place, void *to, size_t bytes);
TH_MUST_USE int fd_memory_write(
	struct fd_memory *access, uint64_t place, const void *from, size_t bytes);

/*
 * Closes what threads of a crew dropped last: they have descriptors of their own (crew.h). Also
 * done by fd_memory_new and by a release on any other thread.
 */
void fd_memory_sweep(void);
/* Has run(left) called on a thread that shares the process's descriptors: now, or by a sweep. */
struct fd_memory_left {
	struct fd_memory_left *next;
	void (*run)(struct fd_memory_left *left);
};
void fd_memory_leave(struct fd_memory_left *left);

#endif
