/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fabric - see fabric.h. Main thread only.
 */
#include "daemon/host/fabric.h"

#include <stdio.h>

#include "daemon/host/host.h"
#include "ipc/base/log.h"
#include "transport/rdma/device.h"
#include "transport/rdma/place.h"
#include "transport/rdma/topology.h"

static const char *
missing(const struct host *host)
{
	if (!host->options.transport_rdma)
		return "rdma is left out of --transport";
	if (host->options.rdma.mode == OPTIONS_RDMA_OFF)
		return "rdma is off in the configuration";
	if (!host->regions.rails || rails_count(host->regions.rails) == 0)
		return "this host has no RDMA device that the agent can use";
	return NULL;
}

static uint32_t
near(void *arg, const void *data, uint64_t bytes)
{
	return topology_near_memory(arg, data, bytes);
}

/* Which rails are near to what, from now on. */
static void
look_at_host(struct host *host)
{
	struct rails *rails = host->regions.rails;
	struct topology_rail list[RAILS_MAX];
	struct place_rules rules = {0};
	uint32_t count = rails_count(rails);
	for (uint32_t i = 0; i < count; i++) {
		struct rail_status status;
		rail_status(rails, i, &status);
		snprintf(list[i].name, sizeof(list[i].name), "%s", status.name);
		snprintf(list[i].pci, sizeof(list[i].pci), "%s", status.pci);
	}
	/* It was parsed before, with the other options. */
	if (place_parse(host->options.rdma.rails, NULL, &rules) < 0)
		rules = (struct place_rules){0};
	host->fabric.topology = topology_new(
		&(struct topology_config){.rails = list, .num_rails = count, .rules = &rules});
	place_free(&rules);
	topology_log(host->fabric.topology);
	host->regions.near = near;
	host->regions.arg = host->fabric.topology;
	host->regions.root = "";
}

int
fabric_start(struct host *host, struct th_err *err)
{
	struct fabric *fabric = &host->fabric;
	const char *why_not = missing(host);
	if (!why_not) {
		look_at_host(host);
		return 0;
	}
	host->regions.rails = NULL;
	snprintf(fabric->why_not, sizeof(fabric->why_not), "%s", why_not);
	if (host->options.rdma.mode == OPTIONS_RDMA_ON)
		return th_fail(err, TH_E_NO_PATH,
			"rdma=on, and %s; install its driver and give this user the devices in "
			"/dev/infiniband, or say rdma=auto",
			why_not);
	log_info("rdma", "not used reason=\"%s\"", why_not);
	return 0;
}

void
fabric_free(struct host *host)
{
	topology_free(host->fabric.topology);
	host->fabric.topology = NULL;
	host->regions.rails = NULL;
}

const char *
fabric_why_not(const struct host *host)
{
	return host->fabric.why_not[0] != '\0' ? host->fabric.why_not : NULL;
}

void
fabric_rail(const struct host *host, uint32_t rail, struct fabric_rail *ret_rail)
{
	*ret_rail = (struct fabric_rail){.node = topology_node(host->fabric.topology, rail)};
}
