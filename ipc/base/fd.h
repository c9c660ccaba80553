/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd - ownership of file descriptors: whoever holds a number >= 0 closes it, once.
 *
 * An fd field that owns nothing is -1. Any thread, one owner.
 */
#ifndef TH_IPC_BASE_FD_H
#define TH_IPC_BASE_FD_H

#include <stdint.h>

/* Closes *fd unless it is -1, sets it to -1 and keeps errno: for cleanup after a failure. */
void th_fd_close(int *fd);

/* Hands the descriptor over: returns *fd and sets it to -1. */
int th_fd_move(int *fd);

/* 0 or -errno. */
int th_fd_nonblock(int fd);

/*
 * Of how many bytes it is, by the kernel's own memory: never waits, whatever file system or process
 * is behind it. A dma-buf tells its size that way, too. 0 or -errno.
 */
int th_fd_bytes(int fd, uint64_t *ret_bytes);

#endif
