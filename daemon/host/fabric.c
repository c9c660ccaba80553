/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fabric - see fabric.h. Main thread only.
 */
#include "daemon/host/fabric.h"

#include <stdio.h>

#include "daemon/host/host.h"
#include "ipc/base/log.h"

static const char *
missing(const struct options *options)
{
	if (!options->transport_rdma)
		return "rdma is left out of --transport";
	if (options->rdma.mode == OPTIONS_RDMA_OFF)
		return "rdma is off in the configuration";
	return "this host has no RDMA device that the agent can use";
}

int
fabric_start(struct host *host, struct th_err *err)
{
	struct fabric *fabric = &host->fabric;

	snprintf(fabric->why_not, sizeof(fabric->why_not), "%s", missing(&host->options));
	if (host->options.rdma.mode == OPTIONS_RDMA_ON)
		return th_fail(err, TH_E_NO_PATH,
			"rdma=on, and %s; install its driver and give this user the devices in "
			"/dev/infiniband, or say rdma=auto",
			fabric->why_not);
	log_info("rdma", "not used reason=\"%s\"", fabric->why_not);
	return 0;
}

const char *
fabric_why_not(const struct host *host)
{
	return host->fabric.why_not[0] != '\0' ? host->fabric.why_not : NULL;
}
