/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mem_available - how much memory this process can still take without anybody being killed for it.
 *
 * The least of what the kernel calls available and of what each memory limit leaves that the
 * process is under: beyond such a limit the kernel ends a process instead of failing a call. Any
 * thread; reads files of /proc and /sys.
 */
#ifndef TH_DAEMON_HOST_MEMORY_MEM_AVAILABLE_H
#define TH_DAEMON_HOST_MEMORY_MEM_AVAILABLE_H

#include <stdint.h>

/* In bytes. root: "", or a folder with files like those of the system (tests). What cannot be read
 * limits nothing. */
uint64_t room_now(const char *root);

#endif
