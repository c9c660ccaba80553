/* SPDX-License-Identifier: Apache-2.0 */
/*
 * failpoint - see failpoint.h: compiled into test builds only. Any thread.
 *
 * The file `arm` is read at every hit, so that a test can arm a process that runs; hits are counted
 * from the moment at which its text changed.
 */
#include "ipc/base/failpoint.h"

#ifndef TH_FAULTS
#error "only for builds with -Dfaults=true"
#endif

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_BYTES 512

static const char *const names[FAILPOINT_COUNT] = {
#define FAILPOINT_NAME(name) #name,
	[FAILPOINT_NONE] = "", FAILPOINTS(FAILPOINT_NAME)
#undef FAILPOINT_NAME
};

struct armed { /* one text, and what of it has happened */
	char text[TEXT_BYTES];
	unsigned hits[FAILPOINT_COUNT];
};

static struct {
	pthread_mutex_t lock;
	bool begun;
	const char *folder; /* NULL: none */
	struct armed fixed, file;
} points = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int
open_in_folder(const char *name, int flags)
{
	char path[TEXT_BYTES];

	if (points.folder == NULL)
		return -1;
	(void)snprintf(path, sizeof(path), "%s/%s", points.folder, name);
	return open(path, flags | O_CLOEXEC);
}

static void
failpoint_begin(void)
{
	const char *text = getenv("TH_FAILPOINT");

	points.begun = true;
	points.folder = getenv("TH_FAILPOINT_DIR");
	if (text != NULL)
		(void)snprintf(points.fixed.text, sizeof(points.fixed.text), "%s", text);
}

static void
read_file(void)
{
	char text[TEXT_BYTES] = "";
	int fd = open_in_folder("arm", O_RDONLY);

	if (fd >= 0) {
		ssize_t bytes = read(fd, text, sizeof(text) - 1);
		text[bytes > 0 ? bytes : 0] = '\0';
		text[strcspn(text, "\n")] = '\0';
		close(fd);
	}
	if (strcmp(text, points.file.text) == 0)
		return;
	memset(&points.file, 0, sizeof(points.file));
	memcpy(points.file.text, text, sizeof(text));
}

/* Counts the hit. What the text has for it goes to ret_action, "" when nothing. Under the lock. */
static void
failpoint_look(struct armed *armed, enum failpoint point, char ret_action[TEXT_BYTES])
{
	char text[TEXT_BYTES], *at = text, *entry;
	unsigned hit = ++armed->hits[point];

	memcpy(text, armed->text, sizeof(text));
	while ((entry = strsep(&at, ",")) != NULL) {
		const char *name = strsep(&entry, ":");
		const char *action = strsep(&entry, ":");
		unsigned long due = entry != NULL ? strtoul(entry, NULL, 10) : 1;
		bool named = strcmp(name, names[point]) == 0 || strcmp(name, "*") == 0;
		if (action != NULL && named && hit == due)
			(void)snprintf(ret_action, TEXT_BYTES, "%s", action);
	}
}

static void
report(enum failpoint point)
{
	char line[64];
	int fd = open_in_folder("reached", O_WRONLY | O_NONBLOCK);
	int bytes = snprintf(line, sizeof(line), "%s\n", names[point]);

	if (fd < 0)
		return;
	if (write(fd, line, (size_t)bytes) < 0)
		(void)fprintf(stderr, "failpoint: %s cannot be reported\n", names[point]);
	close(fd);
}

/* The open waits for a writer. */
static void
wait_for_go(void)
{
	int fd;

	do {
		fd = open_in_folder("go", O_RDONLY);
	} while (fd < 0 && errno == EINTR);
	if (fd >= 0)
		close(fd);
}

int
failpoint_hit(enum failpoint point)
{
	char action[TEXT_BYTES] = "";
	int before = errno, rc = 0;

	if (point == FAILPOINT_NONE)
		return 0;
	pthread_mutex_lock(&points.lock);
	if (!points.begun)
		failpoint_begin();
	read_file();
	failpoint_look(&points.fixed, point, action);
	failpoint_look(&points.file, point, action);
	pthread_mutex_unlock(&points.lock);
	if (action[0] != '\0')
		report(point);
	if (strcmp(action, "kill") == 0)
		(void)kill(getpid(), SIGKILL);
	else if (strcmp(action, "stop") == 0)
		(void)kill(getpid(), SIGSTOP);
	else if (strcmp(action, "exit") == 0)
		_exit(99);
	else if (strcmp(action, "pause") == 0)
		wait_for_go();
	else if (strncmp(action, "errno=", 6) == 0)
		rc = -(int)strtol(action + 6, NULL, 10);
	errno = before;
	return rc;
}
