/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_limit - how many descriptors a daemon may have, and whether they run short.
 *
 * The kernel gives the lowest number that is free, so the number of a new descriptor says how many
 * there are at least. One thread; the limit is that of the process.
 */
#ifndef TH_IPC_BASE_FD_LIMIT_H
#define TH_IPC_BASE_FD_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#define FILES_KEPT_MAX 32u /* for who is there already, and for who asks what is wrong */

/* As many as this process may have. Logs why not. */
void files_raise(void);

/* The soft limit of open files (RLIMIT_NOFILE). */
uint64_t files_limit(void);

/* How many are kept for who is there already: FILES_KEPT_MAX, less where the limit is small. */
uint64_t files_kept(void);

/* How many more there may be when fd is the newest. */
uint64_t files_left_after(int fd);

/* How many more there may be at most; 0: none. fd: any that is open. */
uint64_t files_left(int fd);

struct files_watch { /* all zero: as at the start */
	bool few;
	uint64_t times;
};

/*
 * Looks, now and then; says so in the log when they begin to run short (counted in times) and when
 * they do not any more.
 */
void files_look(struct files_watch *watch, int fd);

#endif
