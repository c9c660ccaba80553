/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_rig - several transports in one process, with shards to move between them.
 *
 * Plays the shell of each: collects events, serves the tickets that were offered and refuses
 * others. Without Criterion, so that the stress programs can use it: a failed check aborts. One
 * thread.
 */
#ifndef TH_TESTS_SUPPORT_TRANSPORT_TRANSPORT_RIG_H
#define TH_TESTS_SUPPORT_TRANSPORT_TRANSPORT_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/proto/manifest.h"
#include "transport/transport.h"

#define MIB (UINT64_C(1) << 20)
#define RIG_AGENTS_MAX 8
#define RIG_EVENTS_MAX 1024

#define RIG_RAILS_MAX 4
#define RIG_SHARDS_MAX 64 /* registered at one agent */

struct gpu_space;
struct gpus_host;
struct packed;
struct region;
struct rig_agent;

struct rig_shard { /* memory of one shard */
	struct manifest manifest;
	struct chunk_table *table;
	uint8_t *memory; /* owns: mmap */
	uint64_t gpu;    /* where a GPU has the same, when rig_gpus has GPUs */
	bool on_gpu;     /* the last part lies there: all rows, unless half */
	bool half;       /* every second row does */
	int fd;          /* owns: of rig_shard_to_file; -1 */
	uint64_t bytes;  /* of the mapping */
	bool filled;
	uint8_t **tensors;
	struct gpu_space *space; /* owns: of parts in a GPU's memory */
	struct gpus_host *host;  /* owns: of parts that GPUs reach */
	bool host_gone;          /* atomic */
	/* Of rig_register. */
	struct rig_agent *at;
	struct region *region;
	struct packed *packed;
};

struct rig_agent {
	struct transport *transport;
	struct transport_event events[RIG_EVENTS_MAX]; /* all but PROGRESS and BEGAN */
	uint32_t num_began;
	uint32_t num_events;
	uint32_t num_rails;
	struct verbs_device *devices[RIG_RAILS_MAX];
	struct rig_shard *shards[RIG_SHARDS_MAX]; /* borrows: registered here */
	uint32_t num_shards;
	bool require_rdma;       /* of legs that it pulls */
	struct xfer_part *donor; /* likewise; borrows */
	bool far;                /* likewise: from another datacenter; set at both ends */
};

struct rig {
	struct rig_agent agents[RIG_AGENTS_MAX];
	uint32_t num_agents;
	int64_t hello_ns; /* of agents added from now on; 0: the default. So are these: */
	int64_t dead_ns;
	uint64_t rate_out, rate_out_peer;
	const char *congestion;
	struct transport_far far;
	enum transport_sendfile sendfile; /* rig_with_files: YES */
	uint32_t num_rails;               /* fake devices of each; 0: no RDMA */
	uint64_t mr_bytes_max;            /* of those; 0: no limit */
	uint64_t stage_bytes;             /* 0: the default */
	struct fake_rdma *fabric;         /* owns */
};

/* Rows of U8 of these sizes, in this order. fill: the seed of the content, 0 for zeros. */
void rig_shard_init(struct rig_shard *shard, const uint64_t *sizes, uint32_t count, uint64_t fill);
void rig_shard_fini(struct rig_shard *shard);
struct xfer_part *rig_part(struct rig_shard *shard, bool verify);
/* The same bytes at the same addresses, but in a file in memory. */
void rig_shard_to_file(struct rig_shard *shard);
/* With the rails of this agent, if it has any, until it is removed. Parts made later know. */
void rig_register(struct rig_agent *agent, struct rig_shard *shard);
/* Does not wait until it is done. */
void rig_register_soon(struct rig_agent *agent, struct rig_shard *shard);
/* How a part reaches them. RIG_MIXED: mapped and through the file by turns. RIG_BOTH: mapped, and
 * the file is known, to be sent from. RIG_HOST: likewise, and rig_gpus reach it. RIG_GPU: as GPU
 * memory, where rig_gpus has GPUs; with the next two mapped, or the process's, by turns. */
enum rig_memory {
	RIG_MAPPED,
	RIG_FILE,
	RIG_PROCESS,
	RIG_MIXED,
	RIG_BOTH,
	RIG_HOST,
	RIG_GPU,
	RIG_GPU_MAPPED,
	RIG_GPU_PROCESS,
};
/* GPUs, and memory on them that has its image in the test's own memory. */
struct rig_gpus {
	struct gpus *gpus;
	/* Of a shard's memory: as mmap, and as munmap. */
	uint8_t *(*allocate)(uint64_t bytes, uint64_t *ret_gpu);
	void (*release)(uint8_t *memory, uint64_t bytes);
	/* From the image to the GPU, and back; have ended. NULL, all three: both are the same
	 * memory. */
	void (*put)(uint64_t gpu, const uint8_t *memory, uint64_t bytes);
	void (*get)(uint8_t *memory, uint64_t gpu, uint64_t bytes);
	const uint8_t *(*image)(uint64_t gpu); /* of what is at that address */
	/* One that has all of it as a piece. */
	struct gpu_space *(*share)(struct gpus *gpus, const struct rig_shard *shard);
	void (*unshare)(struct gpu_space *space);
	/* As fake_rdma_map_dmabuf; NULL: they are files. */
	void *(*map_dmabuf)(void *arg, int fd, uint64_t offset, size_t bytes);
};
extern const struct rig_gpus *rig_gpus; /* NULL: none. Before shards are made */
/* What rig_part makes of shards with content, and of those without; RIG_MAPPED. */
extern enum rig_memory rig_of_sources, rig_of_readers;
/* NICs reach a GPU's memory, too, where the shard is registered. */
extern bool rig_gpus_for_nics;
/* Devices take no dma-bufs. */
extern bool rig_no_dmabufs;
/* Of agents from now on: then a slab that nobody has is given back; 0: the default. */
extern int64_t rig_stage_idle_ns;
/* Of all shards and parts from now on: rig_part makes RIG_BOTH of them. */
extern bool rig_with_files;
struct xfer_part *rig_part_of(struct rig_shard *shard, enum rig_memory memory, bool verify);
/* What a test has written to the memory is on the GPU as well; as after rig_shard_init. */
void rig_shard_put(const struct rig_shard *shard);
/* The rows that the last part has on a GPU come from there: the memory is what the part is. */
void rig_shard_get(const struct rig_shard *shard);
/* Gets both before. */
bool rig_shards_equal(const struct rig_shard *a, const struct rig_shard *b);
/* Computes all digests here and now, of what the test has written; the prefix stays 0. */
void rig_add_digests(struct xfer_part *part);

/* stall_ns, connections 0: defaults. */
struct rig_agent *rig_add_agent(struct rig *rig, int64_t stall_ns, uint32_t connections);
void rig_remove_agent(struct rig_agent *agent);
/* Nobody touches a part any more. Those that are registered go before rig_fini. */
void rig_halt(struct rig *rig);
void rig_fini(struct rig *rig);

struct th_ticket rig_ticket(uint64_t number);
/* Whoever shows rig_ticket(leg) gets the part, as that leg. */
void rig_offer(struct rig_agent *agent, uint64_t leg, struct xfer_part *part);
/* Offers at source and pulls at reader under the same number. */
void rig_pull(struct rig_agent *source, struct rig_agent *reader, uint64_t leg,
	struct xfer_part *from, struct xfer_part *to);

/* One round over all agents, waiting up to that long for something to happen. */
void rig_pump(struct rig *rig, int timeout_ms);
/* The event of that kind for a leg (or tag), once it has come; aborts after 20 s. */
const struct transport_event *rig_wait(
	struct rig *rig, struct rig_agent *agent, enum transport_event_kind kind, uint64_t id);
/* It, if it has come by now. */
const struct transport_event *rig_find(
	const struct rig_agent *agent, enum transport_event_kind kind, uint64_t id);
void rig_wait_prefix(struct rig *rig, const struct xfer_part *part, uint32_t prefix);
void rig_pump_for(struct rig *rig, int64_t duration_ns);
struct transport_counters rig_counters(const struct rig_agent *agent);

/* Watches a part (xfer_part_watch): counts in a uint32_t, read by __atomic_load_n. */
void rig_count_news(void *counter);

#endif
