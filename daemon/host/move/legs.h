/* SPDX-License-Identifier: Apache-2.0 */
/*
 * legs - between the core's parts and legs and the movers of transport/.
 *
 * A part is the memory of a session at one generation; the core begins and ends it, movers share it
 * by reference. A leg in fills one, a leg out reads one. Every leg that the core starts here ends
 * with exactly one event, also when it cannot even begin. Main thread only; what a mover tells
 * comes through transport_poll, and the release of a part through an eventfd of this file.
 */
#ifndef TH_DAEMON_HOST_MOVE_LEGS_H
#define TH_DAEMON_HOST_MOVE_LEGS_H

#include <pthread.h>
#include <stdint.h>

#include "daemon/core/agent_core.h"
#include "ipc/base/loop.h"

struct host;
struct shared_part;
struct leg;
struct release_note;

struct legs {
	struct shared_part *parts;        /* uthash, by (session, gen) */
	struct shared_part *parts_by_tag; /* uthash, by the number that hashing goes under */
	struct leg *legs;                 /* uthash, by the core's number */
	uint64_t last_tag;

	/* Parts that the last mover has let go of; filled by any thread. */
	pthread_mutex_t lock;
	struct release_note *released; /* guarded by lock */
	int released_fd;               /* owns */
	struct loop_source released_source;
};

void legs_init(struct host *host); /* first of all: then it may be closed */
int legs_open(struct host *host, struct th_err *err);
void legs_close(struct host *host); /* after transport_close: no mover is left */

/* Of the loop: arg is the host. */
void legs_transport_ready(void *arg, uint32_t events);

/* The core's actions. */
void legs_part_new(struct host *host, const struct agent_action *action);
void legs_part_end(struct host *host, const struct agent_action *action);
void legs_hash(struct host *host, const struct agent_action *action);
void legs_hash_stop(struct host *host, const struct agent_action *action);
void legs_pull(struct host *host, const struct agent_action *action);
void legs_copy(struct host *host, const struct agent_action *action);
void legs_donor_drop(struct host *host, const struct agent_action *action);
void legs_stop(struct host *host, const struct agent_action *action);
void legs_expect(struct host *host, const struct agent_action *action);
void legs_fence(struct host *host, const struct agent_action *action);

/* The verified prefix of each running leg in, by the server's number. Free with free(). */
uint32_t legs_progress(struct host *host, struct ctl_leg_progress **ret_legs);
uint32_t legs_out_running(const struct host *host);

#endif
