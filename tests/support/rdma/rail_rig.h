/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rail_rig - rails of the READ engine over fake devices in virtual time, and legs between them that
 * check every call the engine makes.
 *
 * A node is one device with its rail; as a source it only lends its memory. A leg reads chunks
 * through lanes to one or more nodes, each chunk once at a time, below a prefix that may move.
 */
#ifndef TH_TESTS_SUPPORT_RDMA_RAIL_RIG_H
#define TH_TESTS_SUPPORT_RDMA_RAIL_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/support/rdma/fake_rdma.h"
#include "transport/rdma/engine/rail.h"

#define RAIL_NODES_MAX 64u
#define RAIL_LANES 8u /* of one leg */
#define RAIL_CHUNK_BYTES (4u << 20)

struct rail_node {
	struct rail_rig *rig;
	struct verbs verbs;
	struct verbs_device *device;
	struct verbs_cq *cq;
	uint32_t cq_depth;
	struct rail rail;
	struct loop_task *head, **tail;
	struct lane *unfreed; /* list: their queue pairs are to be destroyed */
	bool holds_frees;     /* they wait until rail_rig_free_qps */
	uint32_t num_unfreed;
	struct lane *held[RAIL_LANES_MAX];
};

struct rail_rig {
	struct fake_rdma *fake;
	struct rail_node *nodes[RAIL_NODES_MAX];
	uint32_t num_nodes;
};

/* Memory that may be cut into several regions on every device. */
struct rail_memory {
	uint8_t *data; /* NULL: only its size matters */
	uint64_t bytes;
	uint64_t region_bytes; /* each but the last; 0: one region */
};

struct rail_keys { /* of one memory on one device */
	const struct rail_memory *memory;
	struct rail_node *node;
	uint32_t num_mrs;
	struct verbs_mr *mrs; /* owns */
};

enum leg_chunk { LEG_FREE, LEG_TAKEN, LEG_LANDED };

struct rail_leg;

struct leg_lane {
	struct rail_leg *leg;
	struct rail_node *node, *source;
	struct lane *lane; /* NULL: closed */
	struct verbs_qp *served[LANE_QPS_MAX];
	struct rail_keys *local, *remote;
	uint32_t num_qps;
	uint32_t taken, landed, back, proved, broken, closed;
	enum verbs_status status;
	uint32_t *has; /* owns; how often it holds a chunk: 0 or 1 */
};

struct rail_leg {
	uint64_t bytes;
	uint32_t chunk_bytes, num_chunks;
	uint32_t limit; /* chunks below it may be read */
	uint32_t num_landed, prefix, next;
	uint8_t *chunks; /* owns; enum leg_chunk */
	struct leg_lane lanes[RAIL_LANES];
	uint32_t num_lanes;
	int64_t landed_ns; /* the last one */
	/* May be NULL. */
	void (*on_landed)(struct rail_leg *leg, uint32_t chunk);
	void *arg;
	bool no_pieces;    /* pieces has none: as when memory is not registered */
	bool empty_pieces; /* of chunks without bytes */
	struct rail_rig *rig;
};

struct rail_node_config {
	struct fake_device_config device;
	uint64_t window_bytes;
	uint32_t slice_bytes, cq_depth; /* 0: defaults */
	int64_t answer_ns;
};

void rail_rig_init(struct rail_rig *rig);
/* Asserts that nothing is left. */
void rail_rig_fini(struct rail_rig *rig);
/* On a host of its own; config may be NULL. */
struct rail_node *rail_rig_node(struct rail_rig *rig, const struct rail_node_config *config);
void rail_node_free_qps(struct rail_node *node);

/* With bytes that tell where they belong. */
void rail_rig_fill(uint8_t *data, uint64_t bytes);
struct rail_keys *rail_keys_new(
	struct rail_node *node, const struct rail_memory *memory, unsigned access);
void rail_keys_free(struct rail_keys *keys);

void rail_leg_init(
	struct rail_leg *leg, struct rail_rig *rig, uint64_t bytes, uint32_t chunk_bytes);
void rail_leg_fini(struct rail_leg *leg);
/* Connects num_qps queue pairs of depth and starts a lane; proves it when probe is set. */
struct leg_lane *rail_leg_open(struct rail_leg *leg, struct rail_keys *local,
	struct rail_keys *remote, uint32_t num_qps, uint32_t depth, bool probe);
/* More may be read. */
void rail_leg_push(struct rail_leg *leg, uint32_t limit);
void rail_leg_kick(struct rail_leg *leg);
void rail_leg_close(struct leg_lane *lane);
/* The source destroys its queue pairs. */
void rail_leg_fence(struct leg_lane *lane);
bool rail_leg_is_whole(const struct rail_leg *leg);

/* Until then, or until nothing will happen any more. */
void rail_rig_run(struct rail_rig *rig, int64_t until_ns);
/* Without letting time pass. */
void rail_rig_settle(struct rail_rig *rig);
/* The moment of the next thing, of devices or rails. */
int64_t rail_rig_next(const struct rail_rig *rig);

#endif
