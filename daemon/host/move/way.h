/* SPDX-License-Identifier: Apache-2.0 */
/*
 * way - by what a leg between two hosts may go: what its handle asks for, and the options. Pure.
 */
#ifndef TH_DAEMON_HOST_MOVE_WAY_H
#define TH_DAEMON_HOST_MOVE_WAY_H

#include "daemon/host/config/agent_options.h"

/* required: by its handle (THC_REQUIRE_RDMA). far: from another datacenter. */

/* Why nothing of it may come by TCP, for people. NULL: it may. */
const char *way_why_no_tcp(const struct options *options, bool required, bool far);
/* enum transport_flag. rdma: there is some here; else TCP is allowed. ret_why: NULL, or why RDMA is
 * not tried although there may be some. */
unsigned way_choose(
	const struct options *options, bool rdma, bool required, bool far, const char **ret_why);

#endif
