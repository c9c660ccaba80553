/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue_setup - the threads that make and connect queue pairs ("th-rdma-setup").
 *
 * Where nobody answers for a peer's address the kernel looks for it for a second, and keeps the
 * thread for as long. So these threads do nothing else, there are a few of them, and legs take
 * turns:
 * - of one host two at a time;
 * - whose turns have been short lately goes first, in the order of asking; then the one whose turns
 *   were the shortest. Of a host that was never met half a second is thought;
 * - one thread is left for those whose turns have been short: they wait for none of the others,
 *   however many of those there are;
 * - a turn that may not run in time for these reasons is late: then it does nothing that may last.
 * What is asked of nobody but our own device (queue pairs are made, not connected) has a host "".
 *
 * A turn is embedded in what it is about, and belongs to these threads from setup_post until its
 * run has said that it is done; that may be freed then. Any thread.
 */
#ifndef TH_TRANSPORT_RDMA_ENGINE_QUEUE_SETUP_H
#define TH_TRANSPORT_RDMA_ENGINE_QUEUE_SETUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "ipc/base/checked.h"

#define SETUP_THREADS 4u
#define SETUP_OF_HOST 2u                        /* turns at a time */
#define SETUP_SHORT_NS INT64_C(200000000)       /* a turn that nobody minds */
#define SETUP_UNKNOWN_NS INT64_C(500000000)     /* of a host that was never met */
#define SETUP_WAIT_NS INT64_C(5000000000)       /* until a reader's turn is late */
#define SETUP_OFFER_WAIT_NS INT64_C(1000000000) /* a source's: readers wait 2 s for its answer */
#define SETUP_LATE "is busy connecting to hosts that do not answer"

struct setup;
struct setup_host;

struct setup_turn {
	TAILQ_ENTRY(setup_turn) entry;
	void (*run)(struct setup_turn *turn, bool late);
	/* Of queue_setup.c, guarded by its lock. */
	struct setup_host *host;
	int64_t until_ns;
	bool waits, hurried;
};

/* 0 or -errno. */
TH_MUST_USE int setup_new(struct setup **ret_setup);
/* No turn may be left. NULL is harmless. */
void setup_free(struct setup *setup);
/* peer: "host:port", or "". It is late when it may not run after wait_ns. */
void setup_post(struct setup *setup, struct setup_turn *turn, const char *peer, int64_t wait_ns);
/* Its leg ends: a turn that still waits is late at once. */
void setup_hurry(struct setup *setup, struct setup_turn *turn);

#endif
