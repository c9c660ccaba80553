/* SPDX-License-Identifier: Apache-2.0 */
/*
 * way - see way.h. Pure.
 *
 * Between datacenters RDMA is for those who ask for it, by their handle or an option: there it is
 * policy, not trial, so that it is not tried is neither a fallback nor a warning.
 */
#include "daemon/host/move/way.h"

#include <stddef.h>

#include "transport/transport.h"

const char *
way_why_no_tcp(const struct options *options, bool required, bool far)
{
	if (required)
		return "this handle was opened with THC_REQUIRE_RDMA";
	if (!options->transport_tcp)
		return "tcp is left out of --transport";
	if (far && options->far_transport == OPTIONS_FAR_RDMA)
		return "in another datacenter, and far.transport is rdma";
	return NULL;
}

unsigned
way_choose(const struct options *options, bool rdma, bool required, bool far, const char **ret_why)
{
	unsigned flags = far ? TRANSPORT_FAR : 0;
	*ret_why = NULL;
	if (rdma && way_why_no_tcp(options, required, far))
		return flags | TRANSPORT_REQUIRE_RDMA;
	if (far && options->far_transport == OPTIONS_FAR_TCP)
		*ret_why = "the source is in another datacenter";
	else if (rdma && options->transport_tcp_first)
		*ret_why = "tcp stands before rdma in --transport";
	else if (rdma)
		return flags;
	return flags | TRANSPORT_NO_RDMA;
}
