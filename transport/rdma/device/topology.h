/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topology - which rails serve which memory.
 *
 * Memory is striped only over rails that are equally near to it, the nearest ones: of a GPU those
 * that share the lowest bridge of the PCI tree with it, else those of its host bridge, of its part
 * of the processor, of the host; of a NUMA node those of its part of the processor, else all. So a
 * host without structure, as most virtual machines, uses all of them. A rail that is on no PCI bus
 * is as far as can be. The operator may know better (rail_places.h).
 *
 * hwloc looks at the host once and is let go: what stays is a table. Immutable; any thread.
 */
#ifndef TH_TRANSPORT_RDMA_DEVICE_TOPOLOGY_H
#define TH_TRANSPORT_RDMA_DEVICE_TOPOLOGY_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/rdma/device/rail_places.h"
#include "transport/rdma/device/verbs.h"

#define TOPOLOGY_NODE_NONE (-1)

struct topology_rail {
	char name[PLACE_RAIL_BYTES]; /* "mlx5_0/1", or only the device */
	char pci[VERBS_PCI_BYTES];   /* empty: it is not on a PCI bus */
};

struct topology_config {
	const struct topology_rail *rails; /* rail i is bit i of a mask; at most 32 */
	uint32_t num_rails;
	const struct place_rules *rules; /* NULL: none; copied */
	const char *xml; /* a file of hwloc's instead of this host; NULL: the host */
};

struct topology;

/* Never fails: what hwloc cannot say is unknown, and then all rails are equally near. */
struct topology *topology_new(const struct topology_config *config);
void topology_free(struct topology *topology);

/* Masks of rails. 0 only when the operator named none that is there. */
uint32_t topology_near_node(const struct topology *topology, uint32_t node);
/* Of a GPU, by place_pci. An address that is not there: as memory of which nothing is known. */
uint32_t topology_near_pci(const struct topology *topology, uint32_t pci);
/* Memory of which nothing is known, or that lies on several nodes. */
uint32_t topology_near_any(const struct topology *topology);
/* Mapped host memory, by where its pages are now. Enters the kernel only where that matters. */
uint32_t topology_near_memory(const struct topology *topology, const void *data, uint64_t bytes);

/* The NUMA node of a rail; TOPOLOGY_NODE_NONE: it belongs to none more than to another. */
int32_t topology_node(const struct topology *topology, uint32_t rail);
/* Why the host's structure is not known; empty: it is. */
const char *topology_why(const struct topology *topology);
/* One line a place, and a warning for each name of the operator's that is no rail. */
void topology_log(const struct topology *topology);

#endif
