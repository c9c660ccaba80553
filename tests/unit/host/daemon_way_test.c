/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/host/move/way: by what a leg may go, near and far. */
#include <criterion/criterion.h>
#include <string.h>

#include "daemon/host/config/options_set.h"
#include "daemon/host/move/way.h"
#include "transport/transport.h"

static struct options options;
static const char *why;

static void
reset(void)
{
	options_default(&options);
}

TestSuite(daemon_way, .init = reset);

static void
option(const char *key, const char *value)
{
	struct th_err err;
	cr_assert_eq(options_set(&options, key, value, &err), 0, "%s=%s", key, value);
}

static unsigned
near(bool rdma, bool required)
{
	return way_choose(&options, rdma, required, false, &why);
}

static unsigned
far(bool rdma, bool required)
{
	return way_choose(&options, rdma, required, true, &why);
}

Test(daemon_way, near__tries_rdma_where_there_is_some)
{
	cr_assert_eq(near(true, false), 0);
	cr_assert_null(why);
	cr_assert_eq(near(false, false), TRANSPORT_NO_RDMA);
	cr_assert_null(why);
	cr_assert_eq(near(true, true), TRANSPORT_REQUIRE_RDMA);
	option("transport", "tcp,rdma");
	cr_assert_eq(near(true, false), TRANSPORT_NO_RDMA);
	cr_assert_str_eq(why, "tcp stands before rdma in --transport");
}

Test(daemon_way, far__does_not_try_rdma_and_says_why)
{
	for (int rdma = 0; rdma < 2; rdma++) {
		cr_assert_eq(far(rdma, false), (TRANSPORT_FAR | TRANSPORT_NO_RDMA));
		cr_assert_str_eq(why, "the source is in another datacenter");
	}
	option("far.transport", "tcp");
	cr_assert_eq(far(true, false), (TRANSPORT_FAR | TRANSPORT_NO_RDMA));
}

Test(daemon_way, far__whoever_demands_rdma__gets_it)
{
	cr_assert_eq(far(true, true), (TRANSPORT_FAR | TRANSPORT_REQUIRE_RDMA));
	cr_assert_null(why);
	option("transport", "local,rdma");
	cr_assert_eq(far(true, false), (TRANSPORT_FAR | TRANSPORT_REQUIRE_RDMA));
}

Test(daemon_way, far_transport_auto__as_near)
{
	option("far.transport", "auto");
	cr_assert_eq(far(true, false), TRANSPORT_FAR);
	cr_assert_eq(far(false, false), (TRANSPORT_FAR | TRANSPORT_NO_RDMA));
	cr_assert_null(why);
	option("transport", "tcp,rdma");
	cr_assert_eq(far(true, false), (TRANSPORT_FAR | TRANSPORT_NO_RDMA));
	cr_assert_str_eq(why, "tcp stands before rdma in --transport");
}

Test(daemon_way, far_transport_rdma__nothing_far_goes_by_tcp)
{
	option("far.transport", "rdma");
	cr_assert_eq(far(true, false), (TRANSPORT_FAR | TRANSPORT_REQUIRE_RDMA));
	cr_assert_eq(near(true, false), 0);
	cr_assert(strstr(way_why_no_tcp(&options, false, true), "far.transport is rdma"));
	cr_assert_null(way_why_no_tcp(&options, false, false));
}
