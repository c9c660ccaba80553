/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_fd - what a stranger's descriptor is, without a question to whoever serves it.
 *
 * The owner of a file system may keep the agent, or the process of a GPU, in each close of a copy,
 * beyond SIGKILL. What the kernel or its drivers answer for alone is closed when it is closed. Any
 * thread.
 */
#ifndef TH_DAEMON_HOST_KERNEL_FD_H
#define TH_DAEMON_HOST_KERNEL_FD_H

#include <stdbool.h>

/* A dma-buf, or memory that stands for one in tests. */
bool kernel_fd_is_dmabuf(int fd);
/* What a driver may have handed out: of a device, or memory; no file or folder on a file system. */
bool kernel_fd_may_be_drivers(int fd);

#endif
