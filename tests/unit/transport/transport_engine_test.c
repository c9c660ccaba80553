/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of how transport chooses its engine. That both move bytes is shown by the other suites of
 * transport, which run over each (meson.build); where there is no io_uring they say so and run over
 * epoll twice.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "tests/support/transport/transport_pair.h"

/* As a container does. */
static void
forbid_io_uring(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = 4, .filter = filter};
	cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

Test(transport_engine, io_uring_forbidden__epoll_and_why)
{
	static const uint64_t sizes[] = {9000000};
	const char *why = NULL;
	setenv("TH_TEST_ENGINE", "io_uring", 1);
	forbid_io_uring();
	struct pair *s = pair_new(sizes, 1, 0);
	cr_assert_str_eq(transport_engine(s->source_agent->transport, &why), "epoll");
	cr_assert(why && strstr(why, "not permitted"), "%s", why);
	pair_parts(s, false);
	xfer_part_advance(s->from, s->source.table->num_chunks);
	pair_move(s, MODE_TCP, 1, s->from, s->to);
	pair_done(s, 1);
	pair_finish(s);
}

Test(transport_engine, not_asked_for__epoll_without_a_reason)
{
	struct rig *rig = calloc(1, sizeof(*rig));
	const char *why = "";
	setenv("TH_TEST_ENGINE", "epoll", 1);
	struct rig_agent *agent = rig_add_agent(rig, 0, 0);
	cr_assert_str_eq(transport_engine(agent->transport, &why), "epoll");
	cr_assert_null(why);
	rig_fini(rig);
	free(rig);
}
