/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log - one line on stderr for each thing an operator may want to know.
 *
 *   level subsystem message key=value
 *
 * No time stamp: what collects the line (systemd, a container's log) adds one. Control characters
 * and bytes that are not UTF-8 are escaped, so a peer's name cannot forge a line; a line is at most
 * LOG_LINE_BYTES and one write(2), so the lines of several threads and processes do not mix.
 * errno is kept. A line that nothing takes, as when a disk is full, is lost and counted; the first
 * that is taken again has the count in front of it. Any thread. Not for cores.
 */
#ifndef TH_IPC_BASE_LOG_H
#define TH_IPC_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"

#define LOG_LINE_BYTES 1024 /* with the newline; a longer one is cut and ends in "..." */

enum log_level { LOG_LEVEL_ERROR = 1, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Lines above the level are not written. At the start: LOG_LEVEL_INFO. */
void log_set_level(enum log_level level);
bool log_enabled(enum log_level level);

/* "error", "warn", "info" or "debug"; TH_E_INVALID for another text or NULL. */
TH_MUST_USE int log_parse_level(const char *text, enum log_level *ret_level);

void log_write(enum log_level level, const char *subsystem, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Lines that could not be written, in whole or in part, since the start of the process. */
uint64_t log_lost(void);

/* The arguments are evaluated only when the line is written. */
#define log_at(level, subsystem, ...)                                                              \
	do {                                                                                       \
		if (log_enabled(level))                                                            \
			log_write((level), (subsystem), __VA_ARGS__);                              \
	} while (0)

#define log_error(subsystem, ...) log_at(LOG_LEVEL_ERROR, subsystem, __VA_ARGS__)
#define log_warn(subsystem, ...) log_at(LOG_LEVEL_WARN, subsystem, __VA_ARGS__)
#define log_info(subsystem, ...) log_at(LOG_LEVEL_INFO, subsystem, __VA_ARGS__)
#define log_debug(subsystem, ...) log_at(LOG_LEVEL_DEBUG, subsystem, __VA_ARGS__)

#endif
