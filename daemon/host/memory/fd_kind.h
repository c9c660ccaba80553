/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_kind - what a stranger's descriptor is, without a question to whoever serves it.
 *
 * The owner of a file system may keep the agent, or the process of a GPU, in each close of a copy,
 * beyond SIGKILL; so may the writer of a pipe, or of a socket, from a page of such a file, in the
 * last one. And a socket with sockets on their way in it, nested deeply, may be one that the kernel
 * never sends on. What a driver hands out is closed when it is closed. Any thread.
 */
#ifndef TH_DAEMON_HOST_MEMORY_FD_KIND_H
#define TH_DAEMON_HOST_MEMORY_FD_KIND_H

#include <stdbool.h>

/* A dma-buf, or memory that stands for one in tests. False also where /proc does not tell. */
bool kernel_fd_is_dmabuf(int fd);
/* What a driver may have handed out: of a device (NVIDIA's: nvidiactl), memory, or a dma-buf. */
bool kernel_fd_may_be_drivers(int fd);

#endif
