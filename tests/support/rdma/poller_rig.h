/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poller_rig - a poller with its thread over a fake device, a source that is another, and lanes
 * that read the same chunks. Chunks that landed are asked for again after poller_rig_again. Any
 * thread.
 */
#ifndef TH_TESTS_SUPPORT_RDMA_POLLER_RIG_H
#define TH_TESTS_SUPPORT_RDMA_POLLER_RIG_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/support/rdma/fake_rdma.h"
#include "transport/rdma/engine/poller.h"

#define POLLER_RIG_CHUNKS 16u
#define POLLER_RIG_CHUNK_BYTES (1u << 20)
#define POLLER_RIG_BYTES ((uint64_t)POLLER_RIG_CHUNKS * POLLER_RIG_CHUNK_BYTES)

struct poller_rig {
	struct fake_rdma *fake;
	struct verbs verbs[2]; /* of the reader, of the source */
	struct verbs_device *devices[2];
	struct verbs_mr mrs[2];
	uint8_t *memory[2];
	struct verbs_cq *source_cq;
	struct loop *keeper;
	struct poller *poller;
	pthread_mutex_t lock;
	/* Guarded by lock. */
	uint32_t limit, next, num_landed, num_back, broken, closed;
	bool landed[POLLER_RIG_CHUNKS], taken[POLLER_RIG_CHUNKS];
	enum verbs_status status;
	bool endless; /* what landed is to be read again at once */
};

struct poller_lane {
	struct poller_rig *rig;
	struct lane *lane;
	struct verbs_qp *served[LANE_QPS]; /* of the source */
	uint32_t num_taken;                /* guarded by the rig's lock */
	uint32_t broken, closed;           /* guarded by the rig's lock */
};

void poller_rig_init(struct poller_rig *rig);
/* ops: what the poller calls; NULL: the fake device's. */
void poller_rig_init_with(struct poller_rig *rig, const struct verbs_ops *ops);
/* Every lane has been closed and fenced. */
void poller_rig_fini(struct poller_rig *rig);
/* Connects and starts a lane. */
void poller_rig_open(struct poller_rig *rig, struct poller_lane *ret_lane);
/* The source destroys its queue pairs. */
void poller_rig_fence(struct poller_lane *lane);
/* Chunks below limit may be taken. */
void poller_rig_push(struct poller_lane *lane, uint32_t limit);
/* Nothing is under way: all chunks are to be read again. */
void poller_rig_again(struct poller_rig *rig);
/* Until the number is that; a busy machine takes its time. */
void poller_rig_wait(struct poller_rig *rig, const uint32_t *number, uint32_t value);
uint64_t poller_rig_sleeps(struct poller_rig *rig);
/* Until it has gone to sleep once more than before. */
void poller_rig_wait_asleep(struct poller_rig *rig, uint64_t before);

#endif
