/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admin_wait - what the verbs of operators share: asking again and again until something is so.
 *
 * A daemon that restarts meanwhile is waited for. One thread.
 */
#ifndef TH_TOOLS_THCTL_ADMIN_WAIT_H
#define TH_TOOLS_THCTL_ADMIN_WAIT_H

#include <stdbool.h>

#include "tools/thctl/rpc.h"
#include "tools/thctl/stop_signals.h"

struct admin_watch {
	const struct thctl *ctl;
	struct rpc *rpc;    /* owns; NULL: to be opened */
	struct stop *stop;  /* borrows; NULL: a signal ends the process */
	int64_t failing_ns; /* since when nothing has answered; 0: it does */
	bool said;          /* the sentence was said */
};

#define ADMIN_WAY_BYTES 1200
/* " -s URL" or " -r DIR", by which whoever is asked is found: for commands that are proposed. */
const char *admin_way(const struct thctl *ctl, char ret_way[ADMIN_WAY_BYTES]);

/* Who asks, for the log of events. */
void admin_from(struct ctl_admin *admin);

/* One question, at once. What the reply points to is valid until the next one. */
int admin_ask(struct admin_watch *watch, const struct ctl_admin *admin, struct th_err *err,
	struct ctl_admin_reply *ret_reply);

/*
 * The same, but while nobody answers it is asked again, for a while or until --timeout: 0, a
 * failure, or 1 when a signal came.
 */
int admin_ask_patiently(struct admin_watch *watch, const struct ctl_admin *admin,
	struct th_err *err, struct ctl_admin_reply *ret_reply);

/* Sleeps; false: a signal came, or --timeout has passed. */
bool admin_sleep(struct admin_watch *watch, int64_t ns);

void admin_close(struct admin_watch *watch);

#endif
