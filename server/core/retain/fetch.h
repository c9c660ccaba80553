/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch - versions that agents bring into their own memory before a group asks for them.
 *
 * The hosts of a group whose members all have CTL_OPEN_PREFETCH bring each new version as soon as
 * it is there; those of a group with CTL_OPEN_SEED do so when it would cross to their datacenter
 * (paper 4.3.4, offload seeding), once for all groups there. Such a copy is an offload (offload.h)
 * with another reason: the same reservation, legs and proofs, and other groups may read from it.
 * Until it is whole the group's update finds nothing new; then it takes it at local speed.
 *
 * A complete copy stays until every group that wants it has it, or a newer one is whole, and longer
 * when it is the last of a retained version. Retention goes first: when it needs the room, such a
 * copy is given up. What cannot be brought is tried once, and the update goes over the wire with
 * the reason. A version that is overtaken is given up, but when more than half of it is there, and
 * of two in a row that were given up the third is finished: so readers always advance.
 */
#ifndef TH_SERVER_CORE_RETAIN_FETCH_H
#define TH_SERVER_CORE_RETAIN_FETCH_H

#include "server/core/refsrv_state.h"

/* With the model's other deadlines: begins what is new, ends what is overtaken, says READY. */
void fetch_settle(struct refsrv *server, struct model *model);
/* First of all when a model is settled: whether some group takes copies from anywhere near. */
void fetch_survey(struct model *model);
/* Some group still wants this copy, complete or not. */
bool fetch_wanted(struct refsrv *server, const struct offload *offload);
/* It is whole; it cannot be made. */
void fetch_completed(const struct offload *offload);
void fetch_failed(const struct offload *offload, const char *why);
/* The agent stays after all: what could not be brought to it is tried once more. */
void fetch_again(const struct agent *agent);
/*
 * The agent needs memory for a retained version: a fetched copy there that nobody reads, and that
 * retention does not need, is given up. False: there is none.
 */
bool fetch_gives_room(struct refsrv *server, const struct agent *agent);

/*
 * What an update of this group takes, that would take this version, which has a source: the same,
 * an older one that was brought, or NULL: nothing yet. ret_reason: why it comes over the wire
 * though it was to be brought before; NULL: that is not so.
 */
struct version *fetch_update(
	const struct group *group, struct version *version, const char **ret_reason);
/* The same for a group that takes versions by itself (op/follow.h). */
struct version *fetch_follow(
	struct refsrv *server, const struct group *group, struct version *version);

#endif
