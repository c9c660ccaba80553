/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model - models and their versions: which exist, what a version string means now.
 *
 * A model exists while a group, a version or a watch refers to it; a version while it has a copy.
 */
#ifndef TH_SERVER_CORE_MODEL_MODEL_H
#define TH_SERVER_CORE_MODEL_MODEL_H

#include "ipc/base/name.h"
#include "server/core/refsrv_state.h"

struct model *model_find(struct refsrv *server, const char *name);
struct model *model_acquire(struct refsrv *server, const char *name); /* makes it when needed */
void model_release(struct refsrv *server, struct model *model);       /* frees it when unused */

/* The listing changed: a new generation, a CHANGED is due, waiting operations look again. */
void model_changed(struct refsrv *server, struct model *model);
/* Only what the listing says of progress. */
void model_progressed(struct refsrv *server, struct model *model);
/* Only that waiting operations must look again. */
void model_dirty(struct model *model);
/* Marks each model in which this agent has a member: its place and its life matter there. */
void model_dirty_agent(struct refsrv *server, const struct agent *agent);
void model_dirty_all(struct refsrv *server);

struct version *version_find(const struct model *model, struct th_version id);
/* What the members of the group have registered; takes its own references to the blobs. */
struct version *version_new(struct refsrv *server, const struct group *group, struct th_version id);
void version_free(struct refsrv *server, struct version *version);

/*
 * It is there for names: a copy is complete, or filling from a chain that reaches a complete one.
 * Remembered while server.mark stays: the caller begins with server.mark++.
 */
bool version_counts(struct refsrv *server, const struct version *version);

/*
 * Which version the spec names now: in the highest lineage that has a version. None when there is
 * no version to count from, or when latest-K would be negative. The version need not exist.
 */
struct th_version model_resolve(
	struct refsrv *server, const struct model *model, const struct th_spec *spec);

#endif
