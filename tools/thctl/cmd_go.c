/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_go - thctl go: groups that follow a model may take its versions up to this one.
 */
#include <inttypes.h>
#include <stdio.h>

#include "ipc/base/name.h"
#include "tools/thctl/admin_wait.h"

static int
cmd_go_print(const struct thctl *ctl, const struct ctl_admin_reply *reply)
{
	struct document document;

	document_init(&document, "go");
	if (asprintf(&document.headline, "%s", reply->text) < 0)
		document.headline = NULL;
	document_field(&document, "model", NULL, value_text(ctl->arguments[0]));
	document_field(&document, "lineage", NULL, value_number(reply->go.lineage));
	document_field(&document, "version", NULL, value_number(reply->go.version));
	document_field(&document, "followers", NULL, value_number(reply->members));
	return thctl_print(ctl, &document);
}

static int
run_go(struct thctl *ctl)
{
	struct ctl_admin admin = {.verb = CTL_ADMIN_GO};
	struct admin_watch watch = {.ctl = ctl};
	struct ctl_admin_reply reply;
	struct th_err err = {0};
	struct th_spec spec;

	if (th_name_copy(admin.model, ctl->arguments[0]) != 0)
		return thctl_usage(ctl, "\"%s\" is no name of a model", ctl->arguments[0]);
	if (th_spec_parse(ctl->arguments[1], &spec) != 0)
		return thctl_usage(ctl, "\"%s\" is no version; write a number, latest, or latest-K",
			ctl->arguments[1]);
	snprintf(admin.spec, sizeof(admin.spec), "%s", ctl->arguments[1]);
	admin_from(&admin);
	int rc = admin_ask(&watch, &admin, &err, &reply);
	int status = rc < 0 ? thctl_fail(ctl, rc, err.text) : cmd_go_print(ctl, &reply);
	admin_close(&watch);
	return status;
}

const struct verb verb_go = {
	.name = "go",
	.arguments = "MODEL VERSION",
	.summary = "let the replicas that follow a model take its versions up to this one",
	.text = "The version must be there. What was said for a newer one stays.",
	.arguments_min = 2,
	.arguments_max = 2,
	.run = run_go,
};
