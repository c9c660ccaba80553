/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma - the agent's RDMA: what is shared by all legs and all regions.
 *
 * The *keeper* is one loop thread ("th-rdma") for what may take milliseconds in the kernel: events
 * of devices, and the end of queue pairs, which is the fence that memory waits for. They begin on
 * threads of their own (queue_setup.h): the kernel looks for a peer's address for a second where
 * nobody answers, and no fence may wait for that. The *rails* are the ports that can be used
 * (device.h). Each has a poller, which alone posts and polls (poller.h). A *path* is a pair of one
 * of our rails and one of a peer's; it proves itself by a small READ before each use, and one that
 * fails is left alone for a while (rail_pairs.h). Chunks that have landed are looked at by threads
 * of their own (checks.h).
 *
 * A device that is lost and comes back gets new pollers. So who uses a rail's poller holds the rail
 * (device.h): an end of a lane from before it makes its queue pairs until they are freed or, where
 * the lane has taken them, until it has been closed.
 *
 * The transport opens and closes it. Nothing stays registered when rdma_close has returned.
 */
#ifndef TH_TRANSPORT_RDMA_RDMA_H
#define TH_TRANSPORT_RDMA_RDMA_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "ipc/base/checked.h"
#include "transport/rdma/device/verbs.h"
#include "transport/rdma/engine/endpoint.h"

struct checks;        /* checks.h */
struct lane;          /* lane.h */
struct loop;          /* loop.h */
struct paths;         /* rail_pairs.h */
struct poller;        /* poller.h */
struct rail_counters; /* rail.h */
struct rails;         /* device.h */
struct rails_config;  /* device.h */
struct region_key;    /* region.h */
struct setup;         /* queue_setup.h */
struct stage;         /* stage.h */
struct xfer_part;     /* transport/part/xfer_part.h */

#define RDMA_STAGE_BYTES (UINT64_C(512) << 20)
#define RDMA_NO_STAGE UINT64_MAX

/* Zeros: the defaults. */
struct rdma_config {
	struct verbs verbs;
	const struct rails_config *rails; /* borrowed for the call; NULL: the default */
	uint32_t slice_bytes;             /* of one READ: 256 KiB */
	uint32_t depth;                   /* outstanding READs of a queue pair: 16 */
	uint64_t window_bytes;            /* outstanding on a rail, all legs together: 8 MiB */
	uint32_t check_threads;           /* 0: chosen from the CPUs */
	uint64_t stage_bytes;  /* of slabs: RDMA_STAGE_BYTES; RDMA_NO_STAGE: there are none */
	int64_t stage_idle_ns; /* until one is given back: 30 s */
};

struct rdma;

/* No device is no failure: then there are no rails. 0 or -errno. */
TH_MUST_USE int rdma_open(const struct rdma_config *config, struct rdma **ret_rdma);
/* After the last leg, and after the last region is released. NULL is harmless. */
void rdma_close(struct rdma *rdma);

/* The defaults filled in; rails is NULL. */
const struct rdma_config *rdma_settings(const struct rdma *rdma);
struct loop *rdma_keeper(const struct rdma *rdma);
/* Where queue pairs are made and connected. NULL where there are no rails. */
struct setup *rdma_setup(const struct rdma *rdma);
struct rails *rdma_rails(const struct rdma *rdma);
/* For who holds the rail. NULL: of this rail nothing can be read any more, or ever. */
struct poller *rdma_poller(const struct rdma *rdma, uint32_t rail);
/* Of all its pollers, one after the other. Any thread. */
void rdma_rail_counters(struct rdma *rdma, uint32_t rail, struct rail_counters *ret_counters);
struct paths *rdma_paths(const struct rdma *rdma);
/* The threads that look at its chunks. For a GPU there are some of its own: one that hangs holds up
 * nobody else's. So there are for the first few sets of GPUs that one part lies on together; the
 * threads of the last one are for all sets that come later, too. */
struct checks *rdma_checks(struct rdma *rdma, const struct xfer_part *part);
/* NULL where there are no rails. */
struct stage *rdma_stage(const struct rdma *rdma);
/* Rails that are up and have a poller: legs may use them. */
uint32_t rdma_usable(const struct rdma *rdma);
/* A few bytes of our own where probes land. False: not (yet) registered on this rail. */
bool rdma_scratch(const struct rdma *rdma, uint32_t rail, struct region_key *ret_key);

/* Lanes that break when something happens to their rail. Any thread; removed before `closed` of the
 * lane has returned. */
struct rdma_lane {
	LIST_ENTRY(rdma_lane) entry;
	uint32_t rail;
	uint32_t qpns[ENDPOINT_QPS];
	struct lane *lane;
};
void rdma_lane_add(struct rdma *rdma, struct rdma_lane *lane);
void rdma_lane_remove(struct rdma *rdma, struct rdma_lane *lane);

#endif
