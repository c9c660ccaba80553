/* SPDX-License-Identifier: Apache-2.0 */
/*
 * access - memory of a worker that is not mapped here: a descriptor that is read and written
 * through. A file in memory that may shrink, or the memory of the worker's process. Or memory of a
 * GPU, which only requests to that reach (cuda/gpus.h): it has no descriptor.
 *
 * A call may wait for as long as the worker likes: a page behind it can belong to a file system or
 * a fault handler that the worker serves. So calls are made by threads that may be left behind
 * (crew.h), never by one that others wait for. References are counted. Any thread.
 */
#ifndef TH_TRANSPORT_ACCESS_H
#define TH_TRANSPORT_ACCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/checked.h"

enum access_kind {
	ACCESS_FILE,    /* memfd, tmpfs: a place is an offset in the file                       */
	ACCESS_PROCESS, /* /proc/PID/mem: a place is an address                                 */
	ACCESS_GPU,     /* gpu_space: a place is an address                                     */
};

struct access;
struct gpu_space;
struct gpus;

/*
 * close_fd gets fd when the last reference is dropped, on a thread that shares the descriptors of
 * the process (access_sweep). NULL: fd is borrowed. NULL: out of memory, fd stays the caller's.
 */
struct access *access_new(int fd, enum access_kind kind, void (*close_fd)(int fd));
/* Of the GPU's memory: takes a reference of the space, dropped as a descriptor is closed. */
struct access *access_new_gpu(struct gpus *gpus, struct gpu_space *space);
struct access *access_retain(struct access *access);
void access_release(struct access *access);
int access_fd(const struct access *access); /* -1: a GPU's */
/* NULL, both: not a GPU's. */
struct gpu_space *access_space(const struct access *access);
struct gpus *access_gpus(const struct access *access);

/*
 * Not of a GPU's. All of it or a failure: TH_E_STALE_MEMORY when the bytes are not there any more
 * (a file that shrank, a range that was unmapped, a process that ended; of a write also a hole of a
 * file, where the kernel tells of it: it is not filled here), TH_E_MEMORY_KIND when
 * writing would not go where it should (O_APPEND), or -errno.
 */
TH_MUST_USE int access_read(struct access *access, uint64_t place, void *to, size_t bytes);
TH_MUST_USE int access_write(struct access *access, uint64_t place, const void *from, size_t bytes);

/*
 * Closes what threads of a crew dropped last: they have descriptors of their own (crew.h). Also
 * done by access_new and by a release on any other thread.
 */
void access_sweep(void);
/* Has run(left) called on a thread that shares the process's descriptors: now, or by a sweep. */
struct access_left {
	struct access_left *next;
	void (*run)(struct access_left *left);
};
void access_leave(struct access_left *left);

#endif
