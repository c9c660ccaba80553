/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of a transport that cannot be opened: the sentence names what failed, and nothing is left.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ipc/base/err.h"
#include "transport/part/sigbus.h"
#include "transport/transport.h"

static int guard_rc;

int __wrap_sigbus_install(void); /* in place of sigbus_install, by the linker */

int
__wrap_sigbus_install(void)
{
	return guard_rc;
}

/* The kernel gives the lowest number that is free: the same twice, if none was left. */
static int
next_descriptor(void)
{
	int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
	cr_assert_geq(fd, 0);
	close(fd);
	return fd;
}

static void
expect_failure(int code, const char *word)
{
	const struct transport_config config = {.listen_host = "127.0.0.1"};
	struct transport *transport;
	struct th_err err = {0};
	cr_assert_eq(transport_open(&config, &err, &transport), code);
	cr_assert(strstr(err.text, word), "%s", err.text);
}

Test(transport_open, no_handler_of_sigbus__sentence_and_nothing_is_left)
{
	int next = next_descriptor();
	guard_rc = -EPERM;
	expect_failure(-EPERM, "SIGBUS");
	cr_assert_eq(next_descriptor(), next);
}

Test(transport_open, one_descriptor_is_left__sentence_and_nothing_is_left)
{
	int next = next_descriptor();
	struct rlimit limit;
	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	rlim_t before = limit.rlim_cur;
	limit.rlim_cur = (rlim_t)next + 1;
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	expect_failure(-EMFILE, "event descriptor");
	limit.rlim_cur = before;
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	cr_assert_eq(next_descriptor(), next);
}
