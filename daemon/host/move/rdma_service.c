/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma_service - see rdma_service.h. Main thread only.
 */
#include "daemon/host/move/rdma_service.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/host/host.h"
#include "ipc/base/alloc.h"
#include "ipc/base/log.h"
#include "ipc/base/units.h"
#include "transport/rdma/device/device.h"
#include "transport/rdma/device/memlock.h"
#include "transport/rdma/device/rail_places.h"
#include "transport/rdma/device/topology.h"
#include "transport/rdma/engine/rail.h"
#include "transport/rdma/memory/stage.h"
#include "transport/rdma/rdma.h"

/* ---- what the transport is opened with ----------------------------------------------------- */

struct fabric_config {
	struct rdma_config rdma;
	struct rails_config rails;
	char names_text[OPTIONS_RDMA_TEXT_BYTES];
	const char *names[PLACE_RAILS_MAX];
};

/* Without this folder no kernel module knows of a device, so there is nothing to open. */
static bool
any_device(void)
{
	bool found = false;
	DIR *folder = opendir("/sys/class/infiniband");
	const struct dirent *entry;
	while (folder && !found && (entry = readdir(folder)))
		found = entry->d_name[0] != '.';
	if (folder)
		closedir(folder);
	return found;
}

static void
name_devices(struct fabric_config *config, const char *devices)
{
	char *at = config->names_text;
	snprintf(config->names_text, sizeof(config->names_text), "%s", devices);
	config->rails.names = config->names;
	while (at[0] != '\0' && config->rails.num_names < PLACE_RAILS_MAX) {
		config->names[config->rails.num_names++] = strsep(&at, ",");
		if (!at)
			return;
	}
}

struct fabric_config *
fabric_config_new(struct host *host)
{
	const struct options_rdma *from = &host->options.rdma;
	struct verbs verbs;
	struct th_err err;
	if (!host->options.transport_rdma || from->mode == OPTIONS_RDMA_OFF || !any_device())
		return NULL;
	if (verbs_ib(&verbs, &err) < 0) {
		snprintf(host->fabric.why_not, sizeof(host->fabric.why_not), "%s", err.text);
		return NULL;
	}
	struct fabric_config *config = th_calloc(1, sizeof(*config));
	config->rails = rails_config_default();
	config->rails.gid = (struct gid_rule){
		.index = from->gid_index, .link_local = from->link_local, .roce_v1 = from->roce_v1};
	config->rails.mtu_bytes = from->mtu;
	config->rails.reads = from->depth;
	config->rails.pkey_index = (uint16_t)from->pkey_index;
	config->rails.service_level = (uint8_t)from->service_level;
	config->rails.traffic_class = (uint8_t)from->traffic_class;
	config->rails.timeout = (uint8_t)from->timeout;
	config->rails.retries = (uint8_t)from->retries;
	name_devices(config, from->devices);
	config->rdma = (struct rdma_config){.verbs = verbs,
		.rails = &config->rails,
		.slice_bytes = (uint32_t)from->slice,
		.depth = from->depth,
		.window_bytes = from->window,
		.stage_bytes = from->stage > 0 ? from->stage : RDMA_NO_STAGE};
	return config;
}

const struct rdma_config *
fabric_config_rdma(const struct fabric_config *config)
{
	return config ? &config->rdma : NULL;
}

void
fabric_config_free(struct fabric_config *config)
{
	free(config);
}

/* ---- the start ------------------------------------------------------------------------------ */

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

static uint32_t
near_pci(void *arg, uint32_t pci)
{
	return topology_near_pci(arg, pci);
}

static uint32_t
near_gpu(void *arg, const uint8_t uuid[16])
{
	return regions_near_gpu(arg, uuid);
}

/* Which rails are near to what, from now on. */
static void
rdma_service_look_at_host(struct host *host)
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
	host->regions.near_pci = near_pci;
	host->regions.gpus = host->gpu.gpus;
	host->regions.arg = host->fabric.topology;
	host->regions.root = "";
	stage_set_near(rdma_stage(transport_rdma(host->transport)), near_gpu, &host->regions);
}

/* One line of what there is; what a port has is said by itself (device.c). */
static void
say_used(const struct host *host)
{
	struct rails *rails = host->regions.rails;
	uint32_t count = rails_count(rails), relaxed = 0, dmabuf = 0;
	char slice[TH_UNITS_BYTES], window[TH_UNITS_BYTES], limit[TH_UNITS_BYTES];
	struct memlock memlock;
	for (uint32_t i = 0; i < count; i++) {
		const struct verbs_info *info = rail_info(rails, i);
		relaxed += info->relaxed_ordering;
		dmabuf += info->dmabuf;
	}
	bool unlimited = memlock_read(&memlock) < 0 || memlock_unlimited(&memlock);
	log_info("rdma",
		"used ports=%" PRIu32 " up=%d relaxed_ordering=%" PRIu32 " dma_buf=%" PRIu32
		" slice=%s window=%s memlock=%s",
		count, __builtin_popcount(rails_up(rails)), relaxed, dmabuf,
		th_print_size(host->options.rdma.slice, slice),
		th_print_size(host->options.rdma.window, window),
		unlimited ? "unlimited" : th_print_size(memlock.limit_bytes, limit));
	if (!unlimited)
		log_warn("rdma",
			"only %s of memory may be locked, and what is registered counts once for "
			"each device; " MEMLOCK_REMEDY,
			th_print_size_short(memlock.limit_bytes, limit));
}

int
fabric_start(struct host *host, struct th_err *err)
{
	struct fabric *fabric = &host->fabric;
	struct rdma *rdma = transport_rdma(host->transport);
	host->regions.rails = rdma ? rdma_rails(rdma) : NULL;
	bool loaded = fabric->why_not[0] == '\0';
	const char *why_not = loaded ? missing(host) : fabric->why_not;
	if (!why_not) {
		say_used(host);
		rdma_service_look_at_host(host);
		return 0;
	}
	host->regions.rails = NULL;
	if (host->options.rdma.mode == OPTIONS_RDMA_ON)
		return th_fail(err, TH_E_NO_PATH, "rdma=on, and %s%s, or say rdma=auto", why_not,
			loaded ? "; install its driver and give this user the devices in "
				 "/dev/infiniband"
			       : "");
	log_at(loaded ? LOG_LEVEL_INFO : LOG_LEVEL_WARN, "rdma", "not used reason=\"%s\"", why_not);
	if (loaded)
		snprintf(fabric->why_not, sizeof(fabric->why_not), "%s", why_not);
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
fabric_fell_back(struct host *host, const char *why)
{
	snprintf(host->fabric.last_fallback, sizeof(host->fabric.last_fallback), "%s", why);
}

void
fabric_copied(struct host *host, const char *why)
{
	host->fabric.copies++;
	snprintf(host->fabric.last_copy, sizeof(host->fabric.last_copy), "%s", why);
}

void
fabric_rail(const struct host *host, uint32_t rail, struct fabric_rail *ret_rail)
{
	struct rail_counters counters;
	rdma_rail_counters(transport_rdma(host->transport), rail, &counters);
	*ret_rail = (struct fabric_rail){.node = topology_node(host->fabric.topology, rail),
		.bytes = counters.bytes,
		.reads = counters.reads};
}
