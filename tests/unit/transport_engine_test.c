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

#include "tests/support/transport_rig.h"

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
	struct rig *rig = calloc(1, sizeof(*rig));
	struct rig_shard from_shard, to_shard;
	const char *why = NULL;
	setenv("TH_TEST_ENGINE", "io_uring", 1);
	forbid_io_uring();
	struct rig_agent *source = rig_add_agent(rig, 0, 0), *reader = rig_add_agent(rig, 0, 0);
	cr_assert_str_eq(transport_engine(source->transport, &why), "epoll");
	cr_assert(why && strstr(why, "not permitted"), "%s", why);
	rig_shard_init(&from_shard, sizes, 1, 42);
	rig_shard_init(&to_shard, sizes, 1, 0);
	struct xfer_part *from = rig_part(&from_shard, false), *to = rig_part(&to_shard, false);
	xfer_part_advance(from, from_shard.table->num_chunks);
	rig_pull(source, reader, 1, from, to);
	rig_wait(rig, reader, TRANSPORT_DONE, 1);
	cr_assert(rig_shards_equal(&from_shard, &to_shard));
	rig_fini(rig);
	xfer_part_release(from);
	xfer_part_release(to);
	rig_shard_fini(&from_shard);
	rig_shard_fini(&to_shard);
	free(rig);
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
