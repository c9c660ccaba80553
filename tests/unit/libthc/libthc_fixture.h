/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_fixture - a handle at a scripted agent, and one tensor in host memory: what the tests of
 * libthc begin with. Whoever begins a suite names one setup and one teardown.
 */
#ifndef TH_TESTS_UNIT_LIBTHC_LIBTHC_FIXTURE_H
#define TH_TESTS_UNIT_LIBTHC_LIBTHC_FIXTURE_H

#include <criterion/criterion.h>
#include <string.h>

#include "libthc/thc.h"
#include "tests/support/libthc/fake_agent.h"

#define SOON 20000 /* ms: what comes at all has come by then */

static struct fake_agent agent;
static struct thc_shard *shard __attribute__((unused));
static char *memory __attribute__((unused)); /* of 64 KiB */

#define script(change)                                                                             \
	do {                                                                                       \
		fake_agent_lock(&agent);                                                           \
		change;                                                                            \
		fake_agent_unlock(&agent);                                                         \
	} while (0)
#define good(call) cr_assert_eq((call), 0, "%s: %s", #call, thc_errmsg())
#define says(text) cr_assert_not_null(strstr(thc_errmsg(), (text)), "%s", thc_errmsg())

static inline struct thc_open_opts
good_opts(void)
{
	struct thc_open_opts opts = THC_OPEN_OPTS_INIT;

	opts.model = "llama";
	opts.replica = "trainer";
	opts.agent = agent.dir;
	return opts;
}

static inline int
try_open(struct thc_shard **ret_shard)
{
	const struct thc_open_opts opts = good_opts();

	return thc_open(&opts, SOON, ret_shard);
}

static inline int
register_w(struct thc_shard *at, void *start, int64_t timeout_ms)
{
	const struct thc_tensor tensor = {"w", start, 24, THC_F32, THC_HOST, 2, {2, 3}, {0}, {0}};

	return thc_register(at, &tensor, 1, sizeof(tensor), timeout_ms);
}

static inline void
setup_agent(void)
{
	fake_agent_start(&agent);
}

static inline void
teardown_agent(void)
{
	fake_agent_stop(&agent);
}

static inline void
setup_memory(void)
{
	setup_agent();
	cr_assert_eq(thc_alloc(1 << 16, 0, (void **)&memory), 0);
}

static inline void
setup_handle(void)
{
	setup_memory();
	good(try_open(&shard));
}

static inline void
setup_registered(void)
{
	setup_handle();
	good(register_w(shard, memory, SOON));
}

static inline void
teardown_memory(void)
{
	if (shard != NULL)
		(void)thc_close(shard, THC_CLOSE_ABANDON, 0);
	good(thc_free(memory));
	teardown_agent();
}

/* The handle is closed in order. */
static inline void
teardown_handle(void)
{
	good(thc_close(shard, 0, SOON));
	teardown_agent();
}

/* For thc_wait. */
static inline int
never(const struct thc_listing *listing, void *arg)
{
	(void)listing;
	(void)arg;
	return 0;
}

#endif
