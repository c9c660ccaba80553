/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dc_seed - smart skipping: a version comes into a datacenter once.
 *
 * The first reader of a datacenter whose source is in another one is its seed. Who replicates there
 * reads behind it, for route.c prefers what is near. Who updates has a version to go on with, and
 * would stand still as long as the slow link takes: to it the new one is not there yet, until a
 * copy in its datacenter is complete. That is bounded: by config.skip_ns from the seed's GO, and
 * the seed must be getting on. After that it reads behind the seed; no second one is begun.
 *
 * An update asks at PLAN, so that nothing is drained in vain, and again when it could go: a seed
 * exists from GO on, and who was planned before has not seen it. The first of a datacenter that can
 * go is its seed, whoever was planned first. A plan holds no place for its group: it may never go,
 * as when one of its members does not call, and the others would wait for it.
 */
#ifndef TH_SERVER_CORE_ROUTE_DC_SEED_H
#define TH_SERVER_CORE_ROUTE_DC_SEED_H

#include "server/core/refsrv_state.h"

/* A leg begins, or is known again from a former life: it may be what makes its reader a seed. */
void dc_seed_leg(const struct refsrv *server, const struct leg *leg);

/* An update of this group to this version, which has a source, finds nothing new for now. */
bool dc_seed_skips(
	const struct refsrv *server, const struct group *group, const struct version *version);

/* Each shard of it is in the datacenter of the group's member of that shard. */
bool dc_seed_near(const struct copy *copy, const struct group *group);

/* This copy has become complete. */
void dc_seed_complete(struct refsrv *server, const struct copy *copy);

#endif
