/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rail_pairs - pairs of one of our rails and one of a peer's: which of them to leave alone for now.
 *
 * A pair that fails (its probe did not come back, requests went unanswered, nothing came through it
 * any more) is not tried again for 30 seconds, then 60, up to 300; one success clears that. So a
 * cable that is out costs a leg now and then, not every leg. What is a peer's own doing (its memory
 * is gone, its agent has ended, its host has died) says nothing about a path and is not told here.
 *
 * A peer's rail is known by its data address too: it says itself which address its rail has, and
 * one that lied could have another's paths paused.
 *
 * Any thread: a lock.
 */
#ifndef TH_TRANSPORT_RDMA_LEG_RAIL_PAIRS_H
#define TH_TRANSPORT_RDMA_LEG_RAIL_PAIRS_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "transport/rdma/leg/rdma_wire.h"

#define PATHS_MAX 1024u /* those that were used longest ago are forgotten */
#define PATH_PEER_BYTES 64u
#define PATH_WHY_BYTES 96u
#define PATH_PAUSE_NS INT64_C(30000000000)
#define PATH_PAUSE_MAX_NS INT64_C(300000000000)

struct path {
	uint32_t rail;              /* ours */
	struct wire_rail peer;      /* theirs */
	char host[PATH_PEER_BYTES]; /* the data address by which it is reached */
	uint64_t bytes;             /* that were READ through it */
	uint64_t legs, failures;
	int64_t paused_until_ns; /* 0: it is not */
	int64_t pause_ns;        /* the last one */
	int64_t used_ns;
	char why[PATH_WHY_BYTES]; /* of the last failure */
};

struct paths;

struct paths *paths_new(void);
void paths_free(struct paths *paths);

bool path_paused(struct paths *paths, uint32_t rail, const struct wire_rail *peer, const char *host,
	int64_t now_ns);
void path_proved(struct paths *paths, uint32_t rail, const struct wire_rail *peer, const char *host,
	int64_t now_ns);
void path_moved(struct paths *paths, uint32_t rail, const struct wire_rail *peer, const char *host,
	uint64_t bytes);
void path_failed(struct paths *paths, uint32_t rail, const struct wire_rail *peer, const char *host,
	const char *why, int64_t now_ns);
/* Those used last first. Returns how many. */
uint32_t paths_list(struct paths *paths, struct path *ret_paths, uint32_t count);

#endif
