/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_wait - thctl wait: until a version is there on so many replicas.
 *
 * The thread sleeps in thc_wait between changes of the listing; nothing polls.
 */
#include <inttypes.h>
#include <stdio.h>

#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "tools/thctl/member.h"
#include "tools/thctl/version_pick.h"

struct waiting {
	struct th_spec spec;
	uint64_t replicas; /* wanted                                                         */
	uint64_t ready;    /* found                                                          */
	uint64_t lineage, version;
};

static int
cmd_wait_is_there(const struct thc_listing *listing, void *arg)
{
	struct waiting *waiting = arg;

	const struct thc_version_info *found = listing_resolve(listing, &waiting->spec);
	if (!found)
		return 0;
	waiting->ready = listing_ready(listing, found);
	waiting->lineage = found->lineage;
	waiting->version = found->version;
	return waiting->ready >= waiting->replicas;
}

static int
print_found(const struct thctl *ctl, const struct waiting *waiting)
{
	struct document document;

	document_init(&document, "found");
	if (asprintf(&document.headline, "found %s %" PRIu64, ctl->model, waiting->version) < 0)
		document.headline = NULL;
	document_field(&document, "model", NULL, value_text(ctl->model));
	document_field(&document, "lineage", NULL, value_number(waiting->lineage));
	document_field(&document, "version", NULL, value_number(waiting->version));
	document_field(&document, "replicas_ready", NULL, value_number(waiting->ready));
	return thctl_print(ctl, &document);
}

static int
run_wait(struct thctl *ctl)
{
	const char *version = ctl->version ? ctl->version : "latest";
	struct waiting waiting = {.replicas = ctl->replicas};
	struct thc_shard *probe = NULL;
	struct th_err err = {0};

	if (!ctl->model)
		return thctl_usage(ctl, "--model is needed");
	if (ctl->replicas == 0 || th_spec_parse(version, &waiting.spec) < 0)
		return thctl_usage(ctl, "--replicas must be 1 or more");
	int rc = member_open_probe(ctl, &err, &probe);
	if (rc < 0)
		return thctl_fail(ctl, rc, err.text);
	rc = thc_wait(probe, cmd_wait_is_there, &waiting, thctl_left_ms(ctl));
	if (rc == THC_E_TIMEOUT)
		rc = th_fail(&err, rc,
			"version %s of model %s was not ready on %" PRIu64
			" replicas in time (%" PRIu64 " are)",
			version, ctl->model, waiting.replicas, waiting.ready);
	else if (rc < 0)
		rc = member_failed(rc, &err);
	member_close(ctl, probe, true);
	return rc < 0 ? thctl_fail(ctl, rc, err.text) : print_found(ctl, &waiting);
}

const struct verb verb_wait = {
	.name = "wait",
	.summary = "until a version is there",
	.text = "Without --version: any version. Exit status 6 when --timeout passes first.",
	.options = THCTL_MODEL | THCTL_VERSION | THCTL_REPLICAS,
	.agent_only = true,
	.run = run_wait,
};
