/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log_stress - several threads log while the level changes: every line arrives whole and once.
 *
 * Plain main, because no Criterion program starts under ThreadSanitizer. stderr is a datagram
 * socket, so that each write(2) is seen by itself; the main thread reads it until all lines that
 * had to be written are there.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/log.h"

enum { THREADS = 4, LINES = 2000 };

static void
fail(const char *what, const char *line)
{
	printf("log_stress: %s: %s\n", what, line);
	exit(1);
}

static void *
log_lines(void *arg)
{
	const unsigned int *number = arg;

	for (int i = 0; i < LINES; i++) {
		log_error("stress", "thread=%u line=%d padding=%0*d", *number, i, i % 200, 0);
		log_set_level(i % 2 == 0 ? LOG_LEVEL_ERROR : LOG_LEVEL_DEBUG);
		log_debug("stress", "now and then");
	}
	return NULL;
}

/* The lines of one thread come in its order; *next says which one is due. */
static void
check_error_line(const char *line, size_t length, int next[THREADS])
{
	unsigned int thread;
	int number, tail;

	if (sscanf(line, "error stress thread=%u line=%d padding=%n", &thread, &number, &tail) != 2)
		fail("not a line", line);
	if (thread >= THREADS || number != next[thread])
		fail("out of order", line);
	size_t padding = strspn(line + tail, "0");
	if (padding != (number % 200 == 0 ? 1 : (size_t)(number % 200)))
		fail("not whole", line);
	if ((size_t)tail + padding + 1 != length || line[length - 1] != '\n')
		fail("more than a line", line);
	next[thread]++;
}

static void
read_lines(int reader)
{
	int next[THREADS] = {0};
	char line[2 * LOG_LINE_BYTES];

	for (int left = THREADS * LINES; left > 0;) {
		ssize_t length = recv(reader, line, sizeof(line) - 1, 0);
		if (length <= 0)
			fail("cannot read", "stderr");
		line[length] = '\0';
		if (strcmp(line, "debug stress now and then\n") == 0)
			continue;
		check_error_line(line, (size_t)length, next);
		left--;
	}
}

int
main(void)
{
	static unsigned int numbers[THREADS];
	pthread_t threads[THREADS];
	int pair[2], real_stderr = dup(STDERR_FILENO);

	if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) != 0 || dup2(pair[0], STDERR_FILENO) < 0)
		fail("cannot replace", "stderr");
	th_fd_close(&pair[0]);
	for (unsigned int i = 0; i < THREADS; i++) {
		numbers[i] = i;
		if (pthread_create(&threads[i], NULL, log_lines, &numbers[i]) != 0)
			fail("cannot start", "a thread");
	}
	read_lines(pair[1]);
	/* Debug lines of the last rounds may still block a thread in a full socket. */
	th_fd_close(&pair[1]);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	/* A finding of a sanitizer must be seen. */
	(void)dup2(real_stderr, STDERR_FILENO);
	th_fd_close(&real_stderr);
	printf("%d lines of %d threads\n", THREADS * LINES, THREADS);
	return 0;
}
