/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topology - see topology.h. Only topology_near_memory and looking at the host enter the kernel.
 */
#include "transport/rdma/device/topology.h"

#include <errno.h>
#include <hwloc.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/err.h"
#include "ipc/base/log.h"

#define PCI_DISPLAY 0x03u
#define PCI_ACCELERATOR 0x12u
#define PCI_VGA 0x0300u
#define VENDOR_AMD 0x1002u
#define VENDOR_NVIDIA 0x10deu
#define SAMPLES_MAX 64u
#define LIST_BYTES 512u

struct near {
	uint32_t id; /* a node's number or a GPU's address */
	uint32_t rails;
};

struct topology {
	struct topology_rail *rails; /* owns */
	uint32_t num_rails, all;
	int32_t *rail_nodes; /* owns */
	struct near *nodes;  /* owns */
	uint32_t num_nodes;
	struct near *gpus; /* owns */
	uint32_t num_gpus;
	struct place_rules rules; /* owns */
	bool nodes_differ;        /* one node's rails are not another's */
	char why[128];
};

/* ---- what hwloc says ----------------------------------------------------------------------- */

/* The place of a rail in the tree: its PCI function, else its own name, else the root. */
static hwloc_obj_t
find_rail(hwloc_topology_t host, const struct topology_rail *rail)
{
	hwloc_obj_t found = NULL;
	char device[PLACE_RAIL_BYTES];

	if (rail->pci[0] != '\0')
		found = hwloc_get_pcidev_by_busidstring(host, rail->pci);
	if (found)
		return found;
	snprintf(device, sizeof(device), "%s", rail->name);
	device[strcspn(device, "/")] = '\0';
	while ((found = hwloc_get_next_osdev(host, found))) {
		if (found->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS &&
			strcmp(found->name, device) == 0)
			return found;
	}
	return hwloc_get_root_obj(host);
}

static bool
is_below(hwloc_obj_t object, hwloc_obj_t above)
{
	while (object && object != above)
		object = object->parent;
	return object != NULL;
}

/* Those with which `from` shares its lowest ancestor. */
static uint32_t
nearest(hwloc_obj_t from, const hwloc_obj_t *rails, uint32_t count)
{
	uint32_t mask = 0;

	for (hwloc_obj_t above = from->parent; above && mask == 0; above = above->parent) {
		for (uint32_t i = 0; i < count; i++) {
			if (is_below(rails[i], above))
				mask |= 1u << i;
		}
	}
	return mask;
}

/* A console is no GPU. */
static bool
is_gpu(hwloc_obj_t object)
{
	const struct hwloc_pcidev_attr_s *pci = &object->attr->pcidev;
	uint32_t base = (uint32_t)pci->class_id >> 8;

	if (base == PCI_DISPLAY && pci->class_id == PCI_VGA)
		return pci->vendor_id == VENDOR_NVIDIA || pci->vendor_id == VENDOR_AMD;
	return base == PCI_DISPLAY || base == PCI_ACCELERATOR;
}

static void
topology_add(struct near **list, uint32_t *count, uint32_t id, uint32_t rails)
{
	*list = th_realloc(*list, *count + 1, sizeof((*list)[0]));
	(*list)[(*count)++] = (struct near){id, rails};
}

static void
look_at_nodes(struct topology *topology, hwloc_topology_t host, const hwloc_obj_t *rails)
{
	hwloc_obj_t node = NULL;

	while ((node = hwloc_get_next_obj_by_type(host, HWLOC_OBJ_NUMANODE, node))) {
		uint32_t mask = nearest(node, rails, topology->num_rails);
		if (topology->num_nodes > 0 && mask != topology->nodes[0].rails)
			topology->nodes_differ = true;
		topology_add(&topology->nodes, &topology->num_nodes, node->os_index, mask);
	}
	for (uint32_t i = 0; i < topology->num_rails; i++) {
		hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(host, rails[i]);
		bool one = place && place->nodeset && hwloc_bitmap_weight(place->nodeset) == 1;
		/* The only node of a host says nothing. */
		topology->rail_nodes[i] = one && topology->num_nodes > 1
						  ? hwloc_bitmap_first(place->nodeset)
						  : TOPOLOGY_NODE_NONE;
	}
}

static void
look_at_gpus(struct topology *topology, hwloc_topology_t host, const hwloc_obj_t *rails)
{
	hwloc_obj_t device = NULL;

	while ((device = hwloc_get_next_pcidev(host, device))) {
		const struct hwloc_pcidev_attr_s *pci = &device->attr->pcidev;
		if (!is_gpu(device))
			continue;
		uint32_t address = (uint32_t)pci->domain << 16 | (uint32_t)pci->bus << 8 |
				   (uint32_t)pci->dev << 3 | (uint32_t)pci->func;
		topology_add(&topology->gpus, &topology->num_gpus, address,
			nearest(device, rails, topology->num_rails));
	}
}

/* Processors are not looked at one by one (x86), and nobody asks a GPU's or a display's library. */
static int
load(hwloc_topology_t host, const char *xml)
{
	static const char *const others[] = {
		"x86", "cuda", "nvml", "rsmi", "levelzero", "opencl", "gl"};

	for (size_t i = 0; i < TH_ARRAY_LEN(others); i++)
		(void)hwloc_topology_set_components(
			host, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, others[i]);
	if (hwloc_topology_set_flags(host, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) < 0 ||
		hwloc_topology_set_all_types_filter(host, HWLOC_TYPE_FILTER_KEEP_NONE) < 0 ||
		hwloc_topology_set_type_filter(
			host, HWLOC_OBJ_PACKAGE, HWLOC_TYPE_FILTER_KEEP_ALL) < 0 ||
		hwloc_topology_set_type_filter(
			host, HWLOC_OBJ_GROUP, HWLOC_TYPE_FILTER_KEEP_STRUCTURE) < 0 ||
		hwloc_topology_set_io_types_filter(host, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) < 0)
		return -errno;
	if (xml && hwloc_topology_set_xml(host, xml) < 0)
		return -errno;
	return hwloc_topology_load(host) < 0 ? -errno : 0;
}

static void
topology_look(struct topology *topology, const char *xml)
{
	hwloc_topology_t host;
	int rc = hwloc_topology_init(&host) < 0 ? -errno : 0;

	if (rc == 0) {
		rc = load(host, xml);
		if (rc == 0) {
			hwloc_obj_t rails[32];
			for (uint32_t i = 0; i < topology->num_rails; i++)
				rails[i] = find_rail(host, &topology->rails[i]);
			look_at_nodes(topology, host, rails);
			look_at_gpus(topology, host, rails);
		}
		hwloc_topology_destroy(host);
	}
	if (rc < 0)
		snprintf(topology->why, sizeof(topology->why),
			"hwloc cannot read the host's structure: %.60s", th_strerror(rc));
}

/* ---- making it ----------------------------------------------------------------------------- */

static void
copy_rules(struct topology *topology, const struct place_rules *rules)
{
	if (!rules || rules->count == 0)
		return;
	topology->rules.rules = th_calloc(rules->count, sizeof(rules->rules[0]));
	memcpy(topology->rules.rules, rules->rules, rules->count * sizeof(rules->rules[0]));
	topology->rules.count = rules->count;
}

struct topology *
topology_new(const struct topology_config *config)
{
	struct topology *topology = th_calloc(1, sizeof(*topology));
	uint32_t count = config->num_rails;

	TH_ASSERT(count <= 32);
	topology->num_rails = count;
	topology->all = count == 32 ? UINT32_MAX : (1u << count) - 1;
	topology->rails = th_calloc(count + 1, sizeof(topology->rails[0]));
	if (count > 0)
		memcpy(topology->rails, config->rails, count * sizeof(topology->rails[0]));
	topology->rail_nodes = th_calloc(count + 1, sizeof(topology->rail_nodes[0]));
	for (uint32_t i = 0; i < count; i++)
		topology->rail_nodes[i] = TOPOLOGY_NODE_NONE;
	copy_rules(topology, config->rules);
	if (count > 0)
		topology_look(topology, config->xml);
	return topology;
}

void
topology_free(struct topology *topology)
{
	if (!topology)
		return;
	place_free(&topology->rules);
	free(topology->gpus);
	free(topology->nodes);
	free(topology->rail_nodes);
	free(topology->rails);
	free(topology);
}

/* ---- questions ----------------------------------------------------------------------------- */

static uint32_t
topology_named(const struct topology *topology, const struct place_rule *rule)
{
	uint32_t mask = 0;

	for (uint32_t i = 0; i < rule->num_rails; i++) {
		for (uint32_t rail = 0; rail < topology->num_rails; rail++) {
			if (place_rail_is(rule->rails[i], topology->rails[rail].name))
				mask |= 1u << rail;
		}
	}
	return mask;
}

static uint32_t
topology_answer(const struct topology *topology, enum place_kind kind, uint32_t id,
	const struct near *list, uint32_t count)
{
	const struct place_rule *rule = place_find(&topology->rules, kind, id);

	if (rule)
		return topology_named(topology, rule);
	for (uint32_t i = 0; i < count; i++) {
		if (list[i].id == id)
			return list[i].rails;
	}
	return topology->all;
}

uint32_t
topology_near_node(const struct topology *topology, uint32_t node)
{
	return topology_answer(topology, PLACE_NODE, node, topology->nodes, topology->num_nodes);
}

uint32_t
topology_near_pci(const struct topology *topology, uint32_t pci)
{
	return topology_answer(topology, PLACE_PCI, pci, topology->gpus, topology->num_gpus);
}

uint32_t
topology_near_any(const struct topology *topology)
{
	return topology_answer(topology, PLACE_ANY, 0, NULL, 0);
}

/* The node of all pages that are there, of some of them; TOPOLOGY_NODE_NONE: not one node. */
static int32_t
topology_node_of(const void *data, uint64_t bytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page;
	uint64_t count = pages < SAMPLES_MAX ? pages : SAMPLES_MAX;
	const char *at[SAMPLES_MAX];
	int status[SAMPLES_MAX];
	int32_t node = TOPOLOGY_NODE_NONE;

	for (uint64_t i = 0; i < count; i++)
		at[i] = (const char *)data + i * (pages / count) * page;
	if (syscall(SYS_move_pages, 0, count, at, NULL, status, 0) < 0)
		return TOPOLOGY_NODE_NONE; /* a container may forbid it */
	for (uint64_t i = 0; i < count; i++) {
		if (status[i] < 0)
			continue; /* never touched */
		if (node != TOPOLOGY_NODE_NONE && node != status[i])
			return TOPOLOGY_NODE_NONE;
		node = status[i];
	}
	return node;
}

uint32_t
topology_near_memory(const struct topology *topology, const void *data, uint64_t bytes)
{
	if ((!topology->nodes_differ && topology->rules.count == 0) || bytes == 0)
		return topology_near_any(topology);
	int32_t node = topology_node_of(data, bytes);
	return node == TOPOLOGY_NODE_NONE ? topology_near_any(topology)
					  : topology_near_node(topology, (uint32_t)node);
}

int32_t
topology_node(const struct topology *topology, uint32_t rail)
{
	TH_ASSERT(rail < topology->num_rails);
	return topology->rail_nodes[rail];
}

const char *
topology_why(const struct topology *topology)
{
	return topology->why;
}

/* ---- the report ---------------------------------------------------------------------------- */

/* "mlx5_0/1,mlx5_1/1", or "none" */
static const char *
list_text(const struct topology *topology, uint32_t mask, char text[LIST_BYTES])
{
	size_t length = 0;

	snprintf(text, LIST_BYTES, "none");
	for (uint32_t i = 0; i < topology->num_rails; i++) {
		const char *name = topology->rails[i].name;
		if ((mask & 1u << i) == 0 || length + strlen(name) + 2 > LIST_BYTES)
			continue;
		length += (size_t)snprintf(
			text + length, LIST_BYTES - length, "%s%s", length > 0 ? "," : "", name);
	}
	return text;
}

static void
warn_unknown(const struct topology *topology)
{
	for (uint32_t i = 0; i < topology->rules.count; i++) {
		const struct place_rule *rule = &topology->rules.rules[i];
		for (uint32_t j = 0; j < rule->num_rails; j++) {
			bool there = false;
			for (uint32_t k = 0; k < topology->num_rails; k++)
				there = there ||
					place_rail_is(rule->rails[j], topology->rails[k].name);
			if (!there)
				log_warn("rdma",
					"no such device name=%s reason=\"rdma.rails names it\"",
					rule->rails[j]);
		}
	}
}

void
topology_log(const struct topology *topology)
{
	char text[LIST_BYTES];

	if (topology->num_rails == 0)
		return;
	if (topology->why[0] != '\0')
		log_warn("rdma", "all devices count as equally near reason=\"%s\"", topology->why);
	warn_unknown(topology);
	for (uint32_t i = 0; i < topology->num_nodes; i++) {
		uint32_t node = topology->nodes[i].id;
		log_info("rdma", "memory of node=%" PRIu32 " rails=%s", node,
			list_text(topology, topology_near_node(topology, node), text));
	}
	for (uint32_t i = 0; i < topology->num_gpus; i++) {
		uint32_t pci = topology->gpus[i].id;
		log_info("rdma", "memory of gpu=%04x:%02x:%02x.%x rails=%s", pci >> 16,
			pci >> 8 & 0xff, pci >> 3 & 0x1f, pci & 7,
			list_text(topology, topology_near_pci(topology, pci), text));
	}
}
