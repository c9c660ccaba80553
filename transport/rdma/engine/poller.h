/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poller - the thread of one rail.
 *
 * While there is something to do it asks the completion queue again and again, which costs no
 * system call. When nothing has come for a while it has the next completion wake it and sleeps:
 * after idle_ns when nothing is outstanding, after spin_ns when something is (a peer that is slow
 * or dead must not cost a core, and where there are few cores others need this one).
 *
 * It runs on the processors near its device, of those that the process may use.
 *
 * lane_new(poller_rail(poller), ...) makes lanes on it; their queue pairs are destroyed on the
 * keeper's loop.
 */
#ifndef TH_TRANSPORT_RDMA_ENGINE_POLLER_H
#define TH_TRANSPORT_RDMA_ENGINE_POLLER_H

#include <stdint.h>

#include "ipc/base/checked.h"
#include "transport/loop/mover_loop.h"
#include "transport/rdma/device/verbs.h"
#include "transport/rdma/engine/rail.h"

#define POLLER_IDLE_NS INT64_C(50000)
#define POLLER_SPIN_NS INT64_C(1000000)
#define POLLER_SPIN_FEW_NS INT64_C(20000) /* on few cores */
#define POLLER_FEW_CORES 3

struct poller;

struct poller_config {
	const char *name; /* of the thread: at most 15 bytes */
	struct verbs verbs;
	struct verbs_device *device; /* borrows */
	struct loop *keeper;      /* borrows; it may end before the poller, but not before lanes */
	uint64_t window_bytes;    /* 0: RAIL_WINDOW_BYTES */
	uint32_t slice_bytes;     /* 0: RAIL_SLICE_BYTES */
	uint32_t cq_depth;        /* 0: RAIL_CQ_DEPTH, or what the device can */
	int64_t answer_ns;        /* of rail_config */
	int64_t idle_ns, spin_ns; /* 0: what suits the machine */
};

struct poller_counters {
	uint64_t sleeps; /* and wake-ups */
	uint64_t steps;
};

/* Makes the completion queue, which may take milliseconds. 0 or -errno. */
TH_MUST_USE int poller_new(const struct poller_config *config, struct poller **ret_poller);
/* All its lanes have been closed, and the keeper has ended or done what it was posted. */
void poller_free(struct poller *poller);
struct rail *poller_rail(struct poller *poller);
/* For queue pairs, also those that only serve. */
struct verbs_cq *poller_cq(const struct poller *poller);
/* Any thread: the device is gone, or its completion queue overran. All lanes break. why lives as
 * long as the process. */
void poller_lose(struct poller *poller, enum verbs_status status, const char *why);
/* Any thread. */
void poller_counters(const struct poller *poller, struct poller_counters *ret_counters);

#endif
