/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log - see log.h. No lock and no heap: the line is made on the stack of the caller, and stderr is
 * written without a stream. A line that cannot be written is lost and counted; a daemon must not
 * wait for whoever reads its log. Any thread.
 */
#include "ipc/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/err.h"
#include "ipc/base/utf8.h"

static const char *const level_names[] = {
	[LOG_LEVEL_ERROR] = "error",
	[LOG_LEVEL_WARN] = "warn",
	[LOG_LEVEL_INFO] = "info",
	[LOG_LEVEL_DEBUG] = "debug",
};

/* Relaxed: a thread may see a new level one line late. */
static _Atomic int level_now = LOG_LEVEL_INFO;
static _Atomic uint64_t lost, lost_told; /* lines; the log itself says so when it can again */

void
log_set_level(enum log_level level)
{
	atomic_store_explicit(&level_now, (int)level, memory_order_relaxed);
}

bool
log_enabled(enum log_level level)
{
	return (int)level <= atomic_load_explicit(&level_now, memory_order_relaxed);
}

int
log_parse_level(const char *text, enum log_level *ret_level)
{
	if (text == NULL)
		return TH_E_INVALID;
	for (int i = LOG_LEVEL_ERROR; i <= LOG_LEVEL_DEBUG; i++) {
		if (strcmp(level_names[i], text) == 0) {
			*ret_level = (enum log_level)i;
			return 0;
		}
	}
	return TH_E_INVALID;
}

struct log_line {
	char text[LOG_LINE_BYTES];
	size_t len;
	bool cut;
};

/* Of every line: room for "...\n". */
#define LINE_TAIL_BYTES 4

/* All of it or nothing: an escape or a character is never halved. */
static void
line_add(struct log_line *line, const char *text, size_t len)
{
	if (line->cut || len > sizeof(line->text) - LINE_TAIL_BYTES - line->len) {
		line->cut = true;
		return;
	}
	memcpy(line->text + line->len, text, len);
	line->len += len;
}

static void
line_add_byte_escaped(struct log_line *line, uint8_t byte)
{
	static const char digits[] = "0123456789abcdef";

	if (byte == '\n')
		line_add(line, "\\n", 2);
	else if (byte == '\t')
		line_add(line, "\\t", 2);
	else
		line_add(line, (char[]){'\\', 'x', digits[byte >> 4], digits[byte & 15]}, 4);
}

static void
line_add_escaped(struct log_line *line, const char *text)
{
	size_t len = strlen(text);

	for (size_t at = 0; at < len && !line->cut;) {
		size_t count = th_utf8_char(text + at, len - at);
		if (count > 0 && !th_utf8_is_control(text + at, count)) {
			line_add(line, text + at, count);
			at += count;
			continue;
		}
		/* An invalid byte is escaped alone: the next one may begin a character. */
		size_t end = at + (count == 0 ? 1 : count);
		for (; at < end; at++)
			line_add_byte_escaped(line, (uint8_t)text[at]);
	}
}

uint64_t
log_lost(void)
{
	return atomic_load_explicit(&lost, memory_order_relaxed);
}

/* In one write; a part of it counts as lost, too. */
static bool
log_put(const char *text, size_t len)
{
	ssize_t written;

	do {
		written = write(STDERR_FILENO, text, len);
	} while (written < 0 && errno == EINTR);
	return written == (ssize_t)len;
}

/* Of several threads one says it. */
static void
log_tell_lost(void)
{
	char text[96];
	uint64_t before = atomic_load_explicit(&lost_told, memory_order_relaxed);
	uint64_t count = log_lost() - before;

	if (count == 0 || !atomic_compare_exchange_strong(&lost_told, &before, before + count))
		return;
	int length = snprintf(text, sizeof(text),
		"warn log lines before this one could not be written count=%" PRIu64 "\n", count);
	if (!log_put(text, (size_t)length))
		atomic_fetch_sub(&lost_told, count);
}

void
log_write(enum log_level level, const char *subsystem, const char *format, ...)
{
	int saved = errno;
	struct log_line line = {.len = 0};
	char message[LOG_LINE_BYTES];
	va_list args;

	line_add(&line, level_names[level], strlen(level_names[level]));
	line_add(&line, " ", 1);
	line_add_escaped(&line, subsystem);
	line_add(&line, " ", 1);

	va_start(args, format);
	int length = vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	if (length < 0)
		message[0] = '\0';
	else if ((size_t)length >= sizeof(message))
		message[th_utf8_cut(message, sizeof(message) - 1)] = '\0';
	line_add_escaped(&line, message);
	if (length >= (int)sizeof(message))
		line.cut = true;

	if (line.cut) {
		memcpy(line.text + line.len, "...", 3);
		line.len += 3;
	}
	line.text[line.len++] = '\n';
	log_tell_lost();
	if (!log_put(line.text, line.len))
		atomic_fetch_add_explicit(&lost, 1, memory_order_relaxed);
	errno = saved;
}
