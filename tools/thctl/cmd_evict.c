/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_evict - thctl evict: take a replica out. Its members get THC_E_EVICTED, and open again.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "tools/thctl/admin_wait.h"

#define LOOK_NS INT64_C(200000000)

static int
cmd_evict_print(const struct thctl *ctl, const struct ctl_admin_reply *reply)
{
	struct document document;

	document_init(&document, "evict");
	if (asprintf(&document.headline, "replica %s of %s is %s", ctl->replica, ctl->model,
		    reply->state) < 0)
		document.headline = NULL;
	document_field(&document, "model", NULL, value_text(ctl->model));
	document_field(&document, "replica", NULL, value_text(ctl->replica));
	document_field(&document, "state", NULL, value_text(reply->state));
	document_field(&document, "note", "note", value_text(reply->text));
	document_field(&document, "workers", NULL, value_number(reply->members));
	document_field(&document, "transfers_in", NULL, value_number(reply->legs_in));
	document_field(&document, "transfers_out", NULL, value_number(reply->legs_out));
	return thctl_print(ctl, &document);
}

/* The server's sentence says what goes. */
static bool
agrees(const struct ctl_admin_reply *reply)
{
	char answer[16] = "";

	char *text = output_harmless(reply->text);
	fprintf(stderr, "%s.\nEvict it? [y/N] ", text);
	fflush(stderr);
	free(text);
	if (!fgets(answer, sizeof(answer), stdin))
		return false;
	return answer[0] == 'y' || answer[0] == 'Y';
}

static int
wait_moved(struct admin_watch *watch, struct ctl_admin *admin, struct ctl_admin_reply *reply,
	struct th_err *err)
{
	admin->group = reply->group;
	while (strcmp(reply->state, "moving") == 0) {
		if (!admin_sleep(watch, LOOK_NS))
			return th_fail(err, TH_E_TIMEOUT,
				"the replica is evicted, but what it holds is still being copied "
				"to "
				"host memory: %.300s",
				reply->text);
		int rc = admin_ask_patiently(watch, admin, err, reply);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static int
run_evict(struct thctl *ctl)
{
	struct ctl_admin admin = {.verb = CTL_ADMIN_EVICT, .look = true};
	struct admin_watch watch = {.ctl = ctl};
	struct ctl_admin_reply reply;
	struct th_err err = {0};

	if (!ctl->model || !ctl->replica)
		return thctl_usage(ctl, "--model and --replica are needed");
	if (th_name_copy(admin.model, ctl->model) != 0 ||
		th_name_copy(admin.replica, ctl->replica) != 0)
		return thctl_usage(ctl, "--model or --replica is no name");
	bool sure = (ctl->given & THCTL_YES) != 0;
	admin_from(&admin);
	/* First: what is not there needs no leave. */
	int rc = admin_ask(&watch, &admin, &err, &reply);
	if (rc == 0 && !sure && !isatty(STDIN_FILENO)) {
		admin_close(&watch);
		return thctl_usage(ctl,
			"standard input is no terminal, so nobody can be asked whether to evict "
			"replica %s of %s; give --yes",
			ctl->replica, ctl->model);
	}
	if (rc == 0 && !sure && !agrees(&reply)) {
		admin_close(&watch);
		thctl_say("evict: nothing was done");
		return THCTL_FAILED;
	}
	admin.look = false;
	admin.force = (ctl->given & THCTL_FORCE) != 0;
	if (rc == 0) {
		/* Not one that was opened meanwhile. */
		admin.group = reply.group;
		rc = admin_ask(&watch, &admin, &err, &reply);
	}
	if (rc == 0)
		rc = wait_moved(&watch, &admin, &reply, &err);
	int status = rc < 0 ? thctl_fail(ctl, rc, err.text) : cmd_evict_print(ctl, &reply);
	admin_close(&watch);
	return status;
}

const struct verb verb_evict = {
	.name = "evict",
	.summary = "take a replica out; its workers open again",
	.text = "The last copy of a retained version stays readable until it is in the memory of a "
		"host; with --force it is given up at once.",
	.options = THCTL_MODEL | THCTL_REPLICA | THCTL_YES | THCTL_FORCE,
	.run = run_evict,
};
