/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queues - the queue pairs of one end of a lane: made, told of their peer, and freed.
 *
 * Both ends make theirs first, tell each other the endpoint, and connect. They are used once: after
 * any failure come fresh ones, with fresh packet numbers, so that nothing that is still on its way
 * can be taken for an answer. Freeing them is the fence: no byte moves through them afterwards.
 *
 * They hold their rail (device.h). Those that cannot be freed hold it for ever: a device on which
 * they are is not closed.
 *
 * Threads: those of queue_setup.h make and connect, each its own: where nobody answers it is kept
 * for a second. Freeing is the keeper's. Posting and polling is for whoever has the lane.
 */
#ifndef TH_TRANSPORT_RDMA_ENGINE_QUEUES_H
#define TH_TRANSPORT_RDMA_ENGINE_QUEUES_H

#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "transport/rdma/device/device.h"
#include "transport/rdma/engine/endpoint.h"

/* A leg whose turn has lasted for so long begins no further lane: a peer that nobody finds costs a
 * second each, and other legs wait. */
#define QUEUES_TURN_NS INT64_C(1000000000)

struct queues {
	uint32_t rail, count;
	bool held; /* the rail, until queues_free, or by whoever takes the queue pairs */
	struct verbs_qp *qps[ENDPOINT_QPS]; /* owns */
	struct endpoint own;                /* for the peer */
	struct endpoint_port port;
	uint32_t reads; /* outstanding READs of each queue pair, when connected */
};

/* cq: where completions go; NULL: the rail's own, for a source, whose queue pairs complete nothing.
 * depth: of each queue pair. 0, or a code and why. */
TH_MUST_USE int queues_new(struct rails *rails, uint32_t rail, struct verbs_cq *cq, uint32_t depth,
	struct queues *ret_queues, struct th_err *ret_err);
/* peer has passed endpoint_check. peer_name: of the host, for the log. */
TH_MUST_USE int queues_connect(struct rails *rails, struct queues *queues,
	const struct endpoint *peer, enum endpoint_role own_role, const char *peer_name,
	struct th_err *ret_err);
/* The fence. 0; or -errno: a byte may still move, so the memory must not be given away before the
 * process ends or the device is gone. Freed queues are empty; freeing them again is harmless. */
int queues_free(struct rails *rails, struct queues *queues);

#endif
