/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy - what a group holds of a version: listing it, taking it out of service, proof, restoring.
 */
#ifndef TH_SERVER_CORE_MODEL_COPY_H
#define TH_SERVER_CORE_MODEL_COPY_H

#include "server/core/refsrv_state.h"

/* The group holds this from now on; READY: all parts are done, PARTIAL: none. */
struct copy *copy_new(struct refsrv *server, struct group *group, struct version *version,
	struct content *content, uint64_t gen, enum copy_state state);
/* All its shards are there. */
void copy_complete(struct copy *copy);
/* Puts version.by_name in the order of listings. */
void copy_sort(struct version *version);

/* Its group holds nothing. Legs into it must be over; readers have no source any more. */
void copy_free(struct refsrv *server, struct copy *copy);

/* No new readers; those that can go elsewhere do. */
void copy_hide(struct refsrv *server, struct copy *copy);
/* Asks the agents of all parts for proof that nobody reads; once for each time it is hidden. */
void copy_drain(struct refsrv *server, struct copy *copy);
/* Listed and readable again; the agents are told, or only those to which op sent its PLAN. */
void copy_restore(struct refsrv *server, struct copy *copy, const struct op *only_planned);
bool copy_drained(const struct copy *copy);
/* It has not failed, nor its group, or it is kept nevertheless: names and listings know it. */
bool copy_stands(const struct copy *copy);
/* Some of its members may vanish at any time: it never counts for retention. */
bool copy_spot(const struct copy *copy);
/* Complete, of the version, not being given up, on agents that live and stay: it counts. */
bool copy_secure(const struct copy *copy);

int copy_drain_done(struct refsrv *server, struct agent *agent, const struct ctl_drain_done *done,
	struct th_err *err);
/* The proof for one part is there. May free the copy, its members and its group. */
void copy_part_drained(struct refsrv *server, struct part *part);

/* The member's part of what its group holds; NULL: nothing, or forgotten. */
struct part *copy_part_of(const struct member *member);

#endif
