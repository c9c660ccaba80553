/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_drain - thctl drain and undrain: empty a node, and take that back.
 *
 * The server drains; this only looks on, so it may end at any time and be run again.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "tools/thctl/admin_wait.h"

#define LOOK_NS INT64_C(200000000)

static int
cmd_drain_node_of(const struct thctl *ctl, struct ctl_admin *admin)
{
	if (!th_name_valid(ctl->arguments[0], TH_NAME_MAX) ||
		th_name_copy(admin->node, ctl->arguments[0]) != 0)
		return thctl_usage(ctl, "'%s' is no name of a node", ctl->arguments[0]);
	admin_from(admin);
	return 0;
}

static uint32_t
count_stays(const struct ctl_admin_reply *reply)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < reply->num_told; i++)
		count += reply->blockers[i].stays;
	return count;
}

static void
add_blockers(struct document *document, const struct ctl_admin_reply *reply)
{
	static const struct column columns[] = {
		{"kind", "WAITS FOR", false},
		{"model", "MODEL", false},
		{"version", "VERSION", false},
		{"replica", "REPLICA", false},
		{"shard", "SHARD", false},
		{"ends_by_itself", "ENDS BY ITSELF", false},
		{"text", "WHY", false},
		{"lineage", "LINEAGE", true},
	};

	document_table(document, "blockers", columns, TH_ARRAY_LEN(columns));
	for (uint32_t i = 0; i < reply->num_told; i++) {
		const struct ctl_blocker *blocker = &reply->blockers[i];
		bool none = th_version_none(blocker->version);
		const struct value row[TH_ARRAY_LEN(columns)] = {
			value_text(blocker->kind),
			value_text(blocker->model),
			none ? value_none() : value_number(blocker->version.version),
			value_text(blocker->replica),
			value_number(blocker->shard),
			value_flag(!blocker->stays),
			value_text(blocker->text),
			none ? value_none() : value_number(blocker->version.lineage),
		};
		document_row(document, row);
	}
}

static int
cmd_drain_print(
	const struct thctl *ctl, const struct ctl_admin *admin, const struct ctl_admin_reply *reply)
{
	struct document document;
	int written;

	document_init(&document, ctl->verb->name);
	if (reply->num_blockers > 0)
		written = asprintf(&document.headline, "node %s is %s, waits for: %u", admin->node,
			reply->state, reply->num_blockers);
	else
		written = asprintf(&document.headline, "node %s is %s", admin->node, reply->state);
	if (written < 0)
		document.headline = NULL;
	document_field(&document, "node", NULL, value_text(admin->node));
	document_field(&document, "state", NULL, value_text(reply->state));
	document_field(&document, "note", *reply->text ? "note" : NULL, value_text(reply->text));
	document_field(&document, "workers", NULL, value_number(reply->members));
	document_field(&document, "transfers_in", NULL, value_number(reply->legs_in));
	document_field(&document, "transfers_out", NULL, value_number(reply->legs_out));
	document_field(&document, "num_blockers", NULL, value_number(reply->num_blockers));
	document_field(&document, "num_lost", NULL, value_number(reply->num_lost));
	add_blockers(&document, reply);
	return thctl_print(ctl, &document);
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* A line when what is waited for has become more, less or something else. */
static void
say_progress(const struct thctl *ctl, const struct ctl_admin_reply *reply, char **last)
{
	char *line;
	uint32_t shown = 0;

	/* What does not end by itself is what somebody has to do something about. */
	for (uint32_t i = reply->num_told; i-- > 0;) {
		if (reply->blockers[i].stays || count_stays(reply) == 0)
			shown = i;
	}
	const char *text = reply->num_told > 0 ? reply->blockers[shown].text : "";
	int written = reply->num_blockers == 1
			      ? asprintf(&line, "node %s waits: %s", ctl->arguments[0], text)
			      : asprintf(&line, "node %s waits for %u things, among them: %s",
					ctl->arguments[0], reply->num_blockers, text);

	if (written < 0)
		return;
	if (reply->num_blockers > 0 && (!*last || strcmp(*last, line) != 0))
		thctl_say("%s: %s", ctl->verb->name, line);
	free(*last);
	*last = line;
}

static int
cmd_drain_interrupted(const struct thctl *ctl)
{
	const char *node = ctl->arguments[0];
	char way[ADMIN_WAY_BYTES];

	admin_way(ctl, way);
	thctl_say("%s: the drain of node %s goes on; to look on again: thctl%s drain %s --watch; "
		  "to take it back: thctl%s undrain %s",
		ctl->verb->name, node, way, node, way, node);
	return THCTL_FAILED;
}

static int
cmd_drain_finish(
	const struct thctl *ctl, const struct ctl_admin *admin, const struct ctl_admin_reply *reply)
{
	int status = cmd_drain_print(ctl, admin, reply);
	char way[ADMIN_WAY_BYTES];
	bool empty = strcmp(reply->state, "empty") == 0;

	if (status != THCTL_OK)
		return status;
	if (reply->num_lost > 0) {
		thctl_say("%s: with node %s went what was retained and nowhere else (%u): %s; the "
			  "others: thctl%s events",
			ctl->verb->name, admin->node, reply->num_lost, reply->lost_text,
			admin_way(ctl, way));
		return THCTL_FAILED;
	}
	if (empty)
		return status;
	if (strcmp(reply->state, "draining") != 0) {
		thctl_say("%s: the drain was taken back; by whom: thctl%s events", ctl->verb->name,
			admin_way(ctl, way));
		return THCTL_FAILED;
	}
	admin_way(ctl, way);
	thctl_say("%s: node %s is not empty in time; the drain goes on; to look on again: thctl%s "
		  "drain %s --watch; to take it back: thctl%s undrain %s",
		ctl->verb->name, admin->node, way, admin->node, way, admin->node);
	return THCTL_TIMED_OUT;
}

static int
wait_empty(struct admin_watch *watch, struct ctl_admin *admin, struct ctl_admin_reply *reply)
{
	const struct thctl *ctl = watch->ctl;
	struct th_err err = {0};
	char *last = NULL;
	int rc = 0;

	admin->look = true;
	while (strcmp(reply->state, "draining") == 0) {
		if (ctl->given & THCTL_WATCH)
			say_progress(ctl, reply, &last);
		if (!admin_sleep(watch, LOOK_NS)) {
			rc = stop_seen(watch->stop) ? 1 : 0;
			break;
		}
		rc = admin_ask_patiently(watch, admin, &err, reply);
		if (rc != 0)
			break;
	}
	free(last);
	if (rc == 1)
		return cmd_drain_interrupted(ctl);
	return rc < 0 ? thctl_fail(ctl, rc, err.text) : cmd_drain_finish(ctl, admin, reply);
}

static int
run_drain(struct thctl *ctl)
{
	struct ctl_admin admin = {.verb = CTL_ADMIN_DRAIN};
	struct admin_watch watch = {.ctl = ctl};
	struct ctl_admin_reply reply;
	struct th_err err = {0};
	struct stop stop;
	bool wait = (ctl->given & THCTL_WATCH) != 0 || ctl->timeout_ns >= 0;
	int status = cmd_drain_node_of(ctl, &admin);

	if (status != 0)
		return status;
	int rc = stop_begin(&stop, NULL);
	if (rc == 0) {
		watch.stop = &stop;
		rc = admin_ask(&watch, &admin, &err, &reply);
	} else {
		th_fail(&err, rc, "cannot watch for signals: %s", th_strerror(rc));
	}
	/* From here on the drain has begun, and an end is to be told from that. */
	stop_patient(&stop);
	if (rc < 0)
		status = thctl_fail(ctl, rc, err.text);
	else if (wait)
		status = wait_empty(&watch, &admin, &reply);
	else
		status = cmd_drain_print(ctl, &admin, &reply);
	if (status == THCTL_OK && rc == 0 && !wait && count_stays(&reply) > 0)
		status = THCTL_DEGRADED;
	admin_close(&watch);
	return status;
}

static int
run_undrain(struct thctl *ctl)
{
	struct ctl_admin admin = {.verb = CTL_ADMIN_UNDRAIN};
	struct admin_watch watch = {.ctl = ctl};
	struct ctl_admin_reply reply;
	struct th_err err = {0};
	int status = cmd_drain_node_of(ctl, &admin);

	if (status != 0)
		return status;
	int rc = admin_ask(&watch, &admin, &err, &reply);
	status = rc < 0 ? thctl_fail(ctl, rc, err.text) : cmd_drain_print(ctl, &admin, &reply);
	admin_close(&watch);
	return status;
}

const struct verb verb_drain = {
	.name = "drain",
	.arguments = "NODE",
	.summary = "empty a node: nothing new, what runs ends, last copies move away",
	.text = "With --watch or --timeout it waits until the node is empty: exit status 6 when "
		"the "
		"time is up. It may be ended and run again at any time; the drain goes on.",
	.options = THCTL_WATCH,
	.arguments_min = 1,
	.arguments_max = 1,
	.run = run_drain,
};

const struct verb verb_undrain = {
	.name = "undrain",
	.arguments = "NODE",
	.summary = "take a drain back",
	.arguments_min = 1,
	.arguments_max = 1,
	.run = run_undrain,
};
