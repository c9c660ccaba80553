/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checks - threads that look at chunks which a NIC has moved, or is to move: hashing, comparing,
 * packing and scattering. A poller that did it would let its NIC run dry.
 *
 * A leg has a list; what is put into it is done by any of the threads, several at a time, the lists
 * by turns. Mapped memory is touched by guarded calls (sigbus.h); for GPU memory they wait for the
 * GPU (cuda/agent/touch.h), which is bounded.
 *
 * Threads: any, but for checks_new and checks_free.
 */
#ifndef TH_TRANSPORT_RDMA_ENGINE_CHECKS_H
#define TH_TRANSPORT_RDMA_ENGINE_CHECKS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "ipc/base/checked.h"

struct checks;

struct check_list {
	TAILQ_ENTRY(check_list) entry;
	struct checks *checks; /* immutable, as the next two */
	/* On one of the threads. what: as given. */
	void (*check)(struct check_list *list, uint32_t chunk, uint8_t what);
	/* After check_list_close: nothing is under way, and the list is not touched any more. */
	void (*closed)(struct check_list *list);
	uint32_t *next;      /* owns; guarded by the lock of checks, as all below */
	uint8_t *what;       /* owns */
	uint32_t head, tail; /* chunks; UINT32_MAX: none */
	uint32_t busy;
	bool queued, closing;
};

TH_MUST_USE int checks_new(uint32_t threads, struct checks **ret_checks);
/* No list is left. */
void checks_free(struct checks *checks);

/* check and closed are set. 0 or -ENOMEM. */
TH_MUST_USE int check_list_init(
	struct check_list *list, struct checks *checks, uint32_t num_chunks);
/* The list is closed, or init failed. */
void check_list_fini(struct check_list *list);
/* A chunk is in it once at most: not again before it was checked. Dropped when closing. */
void check_list_put(struct check_list *list, uint32_t chunk, uint8_t what);
/* What waits is dropped, what is under way is waited for: closed tells. */
void check_list_close(struct check_list *list);
/* Whether something waits or is under way. */
bool check_list_busy(struct check_list *list);

#endif
