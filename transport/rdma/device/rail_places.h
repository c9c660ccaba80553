/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rail_places - the operator's word on which rails serve which memory, as text.
 *
 * "node0=mlx5_0+mlx5_1,node1=mlx5_2,3b:00.0=mlx5_0,*=mlx5_3": a place is the memory of a NUMA node,
 * of the GPU at a PCI address, or any that is not named. A rail is a device ("mlx5_0", all its
 * ports) or a port of one ("mlx5_0/1"). No blanks and no semicolons: where the configuration file
 * has a comment begin with one. Pure.
 */
#ifndef TH_TRANSPORT_RDMA_DEVICE_RAIL_PLACES_H
#define TH_TRANSPORT_RDMA_DEVICE_RAIL_PLACES_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "transport/rdma/device/verbs.h"

#define PLACE_RULES_MAX 64u
#define PLACE_RAILS_MAX 16u
#define PLACE_NODES_MAX 1024u
#define PLACE_RAIL_BYTES (VERBS_NAME_BYTES + 12u) /* "mlx5_0/1" */

enum place_kind { PLACE_ANY, PLACE_NODE, PLACE_PCI };

struct place_rule {
	enum place_kind kind;
	uint32_t node; /* NODE */
	uint32_t pci;  /* PCI: see place_pci */
	uint32_t num_rails;
	char rails[PLACE_RAILS_MAX][PLACE_RAIL_BYTES];
};

struct place_rules {
	uint32_t count;
	struct place_rule *rules; /* owns */
};

/* An empty text has no rules. 0; TH_E_INVALID with a sentence, and nothing to free. */
TH_MUST_USE int place_parse(const char *text, struct th_err *err, struct place_rules *ret_rules);
void place_free(struct place_rules *rules);
/* The rule for a place, else the one for any; NULL: none. */
const struct place_rule *place_find(
	const struct place_rules *rules, enum place_kind kind, uint32_t node_or_pci);

/* "0000:3b:00.0" or "3b:00.0" as one number: domain, bus, device, function. */
TH_MUST_USE bool place_pci(const char *text, uint32_t *ret_pci);
/* A device, or a device and a port of it: 'mlx5_0', 'mlx5_0/1'. */
TH_MUST_USE bool place_rail_valid(const char *text);
/* Whether what the operator wrote means this rail ("mlx5_0/1"). */
bool place_rail_is(const char *written, const char *rail);

#endif
