/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_list - thctl ls: tables of what the server knows, through the agent or directly.
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "tools/thctl/cluster_tables.h"
#include "tools/thctl/rpc.h"

enum what { MODELS, VERSIONS, REPLICAS, NODES, WORKERS, TRANSFERS, NUM_WHATS };

static const char *const names[NUM_WHATS] = {
	"models", "versions", "replicas", "nodes", "workers", "transfers"};

struct list {
	const struct thctl *ctl;
	enum what what;
	const char *model; /* NULL: all */
	struct rpc *rpc;
	struct ctl_inspection inspection; /* borrows, as the listings do: of rpc */
	struct cluster_model *models;     /* owns */
	uint32_t num_models;
};

static int
add_model(struct list *list, const char *name, struct th_err *err)
{
	struct ctl_listing listing;

	int rc = rpc_listing(list->rpc, name, err, &listing);
	if (rc < 0)
		return rc;
	list->models = th_realloc(list->models, list->num_models + 1, sizeof(list->models[0]));
	list->models[list->num_models++] = (struct cluster_model){.name = name, .listing = listing};
	return 0;
}

static int
get_listings(struct list *list, struct th_err *err)
{
	const char **found;
	uint32_t count = 0;
	int rc = 0;

	if (list->model)
		return add_model(list, list->model, err);
	found = cluster_model_names(&list->inspection, &count);
	for (uint32_t i = 0; i < count && rc == 0; i++)
		rc = add_model(list, found[i], err);
	free(found);
	return rc;
}

static int
cmd_list_ask(struct list *list, struct th_err *err)
{
	int rc = rpc_open(list->ctl, err, &list->rpc);

	if (rc == 0)
		rc = rpc_inspection(list->rpc, err, &list->inspection);
	if (rc == 0 && list->what <= REPLICAS)
		rc = get_listings(list, err);
	return rc;
}

static void
cmd_list_fill(const struct list *list, struct document *document)
{
	const struct ctl_inspection *inspection = &list->inspection;

	switch (list->what) {
	case MODELS:
		cluster_models(document, inspection, list->models, list->num_models);
		break;
	case VERSIONS:
		cluster_versions(document, inspection, list->models, list->num_models);
		break;
	case REPLICAS:
		cluster_replicas(document, inspection, list->models, list->num_models);
		break;
	case NODES:
		cluster_nodes(document, inspection);
		break;
	case WORKERS:
		cluster_workers(document, inspection, list->model);
		break;
	case TRANSFERS:
		cluster_transfers(document, inspection, list->model);
		break;
	case NUM_WHATS:
		break;
	}
}

static int
run_list(struct thctl *ctl)
{
	struct list list = {.ctl = ctl, .what = NUM_WHATS};
	struct document document;
	struct th_err err = {0};
	int status;

	for (int i = 0; i < NUM_WHATS; i++) {
		if (strcmp(names[i], ctl->arguments[0]) == 0)
			list.what = (enum what)i;
	}
	if (list.what == NUM_WHATS)
		return thctl_usage(ctl,
			"'%s' is not models, versions, replicas, nodes, workers or transfers",
			ctl->arguments[0]);
	if (ctl->num_arguments > 1)
		list.model = ctl->arguments[1];
	if (list.model && !th_name_valid(list.model, TH_NAME_MAX))
		return thctl_usage(ctl, "'%s' is no name of a model", list.model);
	if (list.model && list.what == NODES)
		return thctl_usage(ctl, "nodes belong to no model");
	int rc = cmd_list_ask(&list, &err);
	if (rc < 0) {
		status = thctl_fail(ctl, rc, err.text);
	} else {
		document_init(&document, names[list.what]);
		cmd_list_fill(&list, &document);
		status = thctl_print(ctl, &document);
	}
	free(list.models);
	rpc_close(list.rpc);
	return status;
}

const struct verb verb_ls = {
	.name = "ls",
	.arguments = "models|versions|replicas|nodes|workers|transfers [MODEL]",
	.summary = "tables of what the server knows",
	.arguments_min = 1,
	.arguments_max = 2,
	.run = run_list,
};
