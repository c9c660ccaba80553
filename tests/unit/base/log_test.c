/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log_test - the form of a line, what is escaped, and that a line is one write.
 */
#include "ipc/base/log.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/err.h"
#include "ipc/base/fd.h"

/* A datagram socket in place of stderr: each write is one packet. */
static int reader = -1, real_stderr = -1;

static void
capture(void)
{
	int pair[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
	real_stderr = dup(STDERR_FILENO);
	cr_assert_neq(dup2(pair[0], STDERR_FILENO), -1);
	th_fd_close(&pair[0]);
	reader = pair[1];
}

static void
release(void)
{
	cr_assert_neq(dup2(real_stderr, STDERR_FILENO), -1);
	th_fd_close(&real_stderr);
	th_fd_close(&reader);
}

/* The next packet as a string, or "" when there is none. */
static const char *
next_line(void)
{
	static char line[2 * LOG_LINE_BYTES];
	ssize_t length = recv(reader, line, sizeof(line) - 1, MSG_DONTWAIT);

	line[length < 0 ? 0 : length] = '\0';
	return line;
}

TestSuite(log, .init = capture, .fini = release);

Test(log, line__has_level_subsystem_and_message)
{
	log_info("server", "agent attached node=%s members=%d", "a", 3);
	cr_assert_str_eq(next_line(), "info server agent attached node=a members=3\n");
	log_error("x", "broken");
	cr_assert_str_eq(next_line(), "error x broken\n");
	log_warn("x", "%s", "");
	cr_assert_str_eq(next_line(), "warn x \n");
	cr_assert_str_eq(next_line(), "");
}

static int
count_call(int *calls)
{
	return ++*calls;
}

Test(log, level__above__is_neither_written_nor_evaluated)
{
	int calls = 0;

	log_debug("x", "%d", count_call(&calls));
	cr_assert_str_eq(next_line(), "");
	cr_assert_eq(calls, 0);
	log_set_level(LOG_LEVEL_DEBUG);
	log_debug("x", "%d", count_call(&calls));
	cr_assert_str_eq(next_line(), "debug x 1\n");
	log_set_level(LOG_LEVEL_ERROR);
	log_warn("x", "%d", count_call(&calls));
	cr_assert_str_eq(next_line(), "");
	cr_assert(log_enabled(LOG_LEVEL_ERROR));
	cr_assert_not(log_enabled(LOG_LEVEL_WARN));
}

Test(log, controls_and_bad_utf8__are_escaped)
{
	log_info("x", "name=%s", "a\nerror forged\t\x1b[2J\x7f");
	cr_assert_str_eq(next_line(), "info x name=a\\nerror forged\\t\\x1b[2J\\x7f\n");
	log_info("x", "name=%s", "\xc3\xbc \xff \xc2\x9b \xc3");
	cr_assert_str_eq(next_line(), "info x name=\xc3\xbc \\xff \\xc2\\x9b \\xc3\n");
	log_info("a\nb", "c");
	cr_assert_str_eq(next_line(), "info a\\nb c\n");
}

Test(log, long_line__is_cut_at_the_limit)
{
	char text[3 * LOG_LINE_BYTES];

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	log_info("s", "%s", text);
	const char *line = next_line();
	cr_assert_eq(strlen(line), LOG_LINE_BYTES);
	cr_assert_str_eq(line + LOG_LINE_BYTES - 5, "x...\n");

	/* Escapes make it longer than what was formatted; none is halved. */
	memset(text, '\x01', 600);
	text[600] = '\0';
	log_info("s", "%s", text);
	line = next_line();
	cr_assert_leq(strlen(line), LOG_LINE_BYTES);
	cr_assert_str_eq(line + strlen(line) - 8, "\\x01...\n");
}

Test(log, line_of_exactly_the_limit__is_whole)
{
	char text[LOG_LINE_BYTES];
	/* "info s " before, and the room that every line keeps for "..." behind. */
	size_t fits = LOG_LINE_BYTES - 7 - 4;

	memset(text, 'x', sizeof(text));
	text[fits] = '\0';
	log_info("s", "%s", text);
	const char *line = next_line();
	cr_assert_eq(strlen(line), 7 + fits + 1);
	cr_assert_str_eq(line + strlen(line) - 3, "xx\n");
}

Test(log, write__fails__keeps_errno_and_goes_on)
{
	th_fd_close(&reader);
	errno = ENOENT;
	log_info("x", "nobody reads this");
	cr_assert_eq(errno, ENOENT);
}

Test(log, write__fails__is_counted_and_told_once)
{
	int full = open("/dev/full", O_WRONLY | O_CLOEXEC), taken = dup(STDERR_FILENO);

	cr_assert_eq(log_lost(), 0);
	cr_assert_neq(dup2(full, STDERR_FILENO), -1);
	log_info("x", "one");
	log_info("x", "two");
	cr_assert_eq(log_lost(), 2);
	cr_assert_neq(dup2(taken, STDERR_FILENO), -1);
	log_info("x", "three");
	cr_assert_str_eq(
		next_line(), "warn log lines before this one could not be written count=2\n");
	cr_assert_str_eq(next_line(), "info x three\n");
	log_info("x", "four");
	cr_assert_str_eq(next_line(), "info x four\n");
	cr_assert_eq(log_lost(), 2);
	th_fd_close(&full);
	th_fd_close(&taken);
}

Test(log, parse_level__texts)
{
	enum log_level level = LOG_LEVEL_INFO;

	cr_assert_eq(log_parse_level("error", &level), 0);
	cr_assert_eq(level, LOG_LEVEL_ERROR);
	cr_assert_eq(log_parse_level("debug", &level), 0);
	cr_assert_eq(level, LOG_LEVEL_DEBUG);
	cr_assert_eq(log_parse_level("Info", &level), TH_E_INVALID);
	cr_assert_eq(log_parse_level("", &level), TH_E_INVALID);
	cr_assert_eq(log_parse_level(NULL, &level), TH_E_INVALID);
	cr_assert_eq(level, LOG_LEVEL_DEBUG);
}
