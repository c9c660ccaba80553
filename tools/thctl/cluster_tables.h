/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_tables - what the server knows, as tables: for thctl ls and thctl -s status alike.
 *
 * Pure: from the answers to documents.
 */
#ifndef TH_TOOLS_THCTL_CLUSTER_TABLES_H
#define TH_TOOLS_THCTL_CLUSTER_TABLES_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/base/ctl.h"
#include "tools/thctl/output.h"

/* model: only what is of it; NULL: all. Each begins a table and fills it. */
void cluster_nodes(struct document *document, const struct ctl_inspection *inspection);
void cluster_workers(
	struct document *document, const struct ctl_inspection *inspection, const char *model);
void cluster_transfers(
	struct document *document, const struct ctl_inspection *inspection, const char *model);

/* What a handle was opened with, with commas between. */
struct value cluster_flags(uint32_t flags);

/* What the server counts; shown with -o wide and in JSON. */
void cluster_counters(struct document *document, const struct ctl_inspection *inspection);

/* A model with its listing, which may be empty. */
struct cluster_model {
	const char *name; /* borrows */
	struct ctl_listing listing;
};

/* The names of all models that have a worker, sorted. The caller frees the array, not the names. */
const char **cluster_model_names(const struct ctl_inspection *inspection, uint32_t *ret_count);

void cluster_models(struct document *document, const struct ctl_inspection *inspection,
	const struct cluster_model *models, uint32_t count);
/* Also for how many workers each was brought ahead, of those that want that. */
void cluster_versions(struct document *document, const struct ctl_inspection *inspection,
	const struct cluster_model *models, uint32_t count);
/* The copies, and the replicas that hold none. */
void cluster_replicas(struct document *document, const struct ctl_inspection *inspection,
	const struct cluster_model *models, uint32_t count);

/* Warnings about nodes that are silent and groups that are broken. */
void cluster_judge(struct document *document, const struct ctl_inspection *inspection);

#endif
