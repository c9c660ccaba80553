/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_events - thctl events: what has happened in the cluster, as the server remembers it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ipc/base/checked.h"
#include "tools/thctl/admin_wait.h"

#define LOOK_NS INT64_C(200000000)
#define NS_PER_S INT64_C(1000000000)
#define ROUNDS_MAX 64 /* four times what a server keeps, in the smallest parts it gives */
#define FIRST_LINES 10u /* of what was before, with -f */

static const struct column columns[] = {
	{"time", "TIME", false},
	{"severity", "SEVERITY", false},
	{"node", "NODE", false},
	{"model", "MODEL", false},
	{"text", "EVENT", false},
	{"number", "NUMBER", true},
	{"at_ns", "AFTER START", true},
	{"time_ns", "SINCE 1970", true},
};

/* Local time for people, with the offset, so that it can be compared across hosts. */
static void
print_time(const struct ctl_log_entry *entry, char ret_text[48])
{
	time_t seconds = (time_t)(entry->wall_ns / NS_PER_S);
	struct tm local;
	char date[32], zone[8];

	ret_text[0] = '\0';
	if (entry->wall_ns <= 0 || !localtime_r(&seconds, &local) ||
		strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &local) == 0 ||
		strftime(zone, sizeof(zone), "%z", &local) == 0)
		return;
	snprintf(ret_text, 48, "%s.%03d%s", date, (int)(entry->wall_ns % NS_PER_S / 1000000), zone);
}

static void
cmd_events_row_of(const struct ctl_log_entry *entry, struct value ret_row[TH_ARRAY_LEN(columns)])
{
	char moment[48];

	print_time(entry, moment);
	ret_row[0] = value_text(moment);
	ret_row[1] = value_text(entry->severity);
	ret_row[2] = value_text(entry->node);
	ret_row[3] = value_text(entry->model);
	ret_row[4] = value_text(entry->text);
	ret_row[5] = value_number(entry->number);
	ret_row[6] = value_duration(entry->at_ns);
	ret_row[7] = entry->wall_ns > 0 ? value_number((uint64_t)entry->wall_ns) : value_none();
}

/* ---- all of them ---------------------------------------------------------------------------- */

static int
run_once(struct thctl *ctl)
{
	struct ctl_admin admin = {.verb = CTL_ADMIN_EVENTS};
	struct admin_watch watch = {.ctl = ctl};
	struct ctl_admin_reply reply;
	struct document document;
	struct th_err err = {0};
	uint64_t server_inc = 0;
	int rc, rounds = 0;

	document_init(&document, "events");
	document_table(&document, "events", columns, TH_ARRAY_LEN(columns));
	do {
		rc = admin_ask(&watch, &admin, &err, &reply);
		if (rc < 0)
			break;
		if (server_inc != 0 && reply.server_inc != server_inc)
			break; /* the server was restarted: what it has is for the next call */
		server_inc = reply.server_inc;
		for (uint32_t i = 0; i < reply.num_events; i++) {
			struct value row[TH_ARRAY_LEN(columns)];
			cmd_events_row_of(&reply.events[i], row);
			document_row(&document, row);
			admin.after = reply.events[i].number;
		}
	} while (reply.num_events > 0 && admin.after < reply.last_event && ++rounds < ROUNDS_MAX);
	int status;
	if (rc < 0) {
		document_free(&document);
		status = thctl_fail(ctl, rc, err.text);
	} else {
		status = thctl_print(ctl, &document);
	}
	admin_close(&watch);
	return status;
}

/* ---- as they come --------------------------------------------------------------------------- */

/* One line of text, or one object on one line. */
static void
print_one(const struct thctl *ctl, const struct ctl_log_entry *entry)
{
	struct value row[TH_ARRAY_LEN(columns)];
	struct document document;

	cmd_events_row_of(entry, row);
	document_init(&document, "event");
	document.one_line = true;
	for (size_t i = 0; i < TH_ARRAY_LEN(columns); i++)
		document_field(&document, columns[i].key, columns[i].wide ? NULL : columns[i].title,
			row[i]);
	ctl->format->print(&document, false, stdout);
	document_free(&document);
}

struct following {
	uint64_t server_inc, after;
	bool began;
};

static void
follow_reply(
	const struct thctl *ctl, struct following *following, const struct ctl_admin_reply *reply)
{
	if (following->began && reply->server_inc != following->server_inc) {
		thctl_say("events: the reference server was started again and counts anew");
		following->after = 0;
	} else if (following->began && reply->num_events > 0 &&
		   reply->events[0].number > following->after + 1) {
		thctl_say("events: %" PRIu64 " were missed",
			reply->events[0].number - following->after - 1);
	}
	bool same = reply->server_inc == following->server_inc;
	following->server_inc = reply->server_inc;
	if (following->began && !same)
		return; /* they are asked for again, from the first */
	following->began = true;
	for (uint32_t i = 0; i < reply->num_events; i++) {
		print_one(ctl, &reply->events[i]);
		following->after = reply->events[i].number;
	}
}

static int
run_follow(struct thctl *ctl)
{
	struct ctl_admin admin = {.verb = CTL_ADMIN_EVENTS, .after = UINT64_MAX};
	struct admin_watch watch = {.ctl = ctl};
	struct following following = {0};
	struct ctl_admin_reply reply;
	struct th_err err = {0};

	/* Only to learn where it ends now. */
	int rc = admin_ask(&watch, &admin, &err, &reply);
	if (rc == 0)
		following.after =
			reply.last_event > FIRST_LINES ? reply.last_event - FIRST_LINES : 0;
	while (rc == 0) {
		admin.after = following.after;
		rc = admin_ask_patiently(&watch, &admin, &err, &reply);
		if (rc != 0)
			break;
		follow_reply(ctl, &following, &reply);
		if (fflush(stdout) != 0 || ferror(stdout)) {
			rc = th_fail(&err, -EIO, "cannot write the output");
			break;
		}
		if (following.after < reply.last_event)
			continue;
		if (!admin_sleep(&watch, LOOK_NS))
			break;
	}
	admin_close(&watch);
	return rc < 0 ? thctl_fail(ctl, rc, err.text) : THCTL_OK;
}

static int
run_events(struct thctl *ctl)
{
	return ctl->given & THCTL_FOLLOW ? run_follow(ctl) : run_once(ctl);
}

const struct verb verb_events = {
	.name = "events",
	.summary = "what has happened in the cluster",
	.text = "With --follow the last ten and then each as it comes, until a signal or "
		"--timeout; "
		"with -o json each is an object on a line of its own.",
	.options = THCTL_FOLLOW,
	.run = run_events,
};
