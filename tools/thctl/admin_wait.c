/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admin_wait - see admin_wait.h.
 */
#include "tools/thctl/admin_wait.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/clock.h"

#define MS_NS INT64_C(1000000)
#define AGAIN_NS (500 * MS_NS)     /* between two attempts to reach somebody */
#define GIVE_UP_NS (60000 * MS_NS) /* a daemon that is started again is back long before */

void
admin_from(struct ctl_admin *admin)
{
	char host[65] = "?";

	if (gethostname(host, sizeof(host) - 1) < 0)
		snprintf(host, sizeof(host), "?");
	snprintf(admin->from, sizeof(admin->from), "thctl of uid %u on %s", (unsigned)getuid(),
		host);
}

const char *
admin_way(const struct thctl *ctl, char ret_way[ADMIN_WAY_BYTES])
{
	snprintf(ret_way, ADMIN_WAY_BYTES, " %s %s", ctl->server ? "-s" : "-r",
		ctl->server ? ctl->server : ctl->runtime_dir);
	return ret_way;
}

int
admin_ask(struct admin_watch *watch, const struct ctl_admin *admin, struct th_err *err,
	struct ctl_admin_reply *ret_reply)
{
	int rc = watch->rpc ? 0 : rpc_open(watch->ctl, err, &watch->rpc);

	return rc < 0 ? rc : rpc_admin(watch->rpc, admin, err, ret_reply);
}

/*
 * Whoever was asked is not there, or has nobody to ask, or has been started again and does not know
 * yet what it was asked for: it may be back soon.
 */
static bool
may_return(int code)
{
	return code == TH_E_NO_SERVER || code == TH_E_NO_AGENT || code == TH_E_TIMEOUT ||
	       code == TH_E_NOT_AVAILABLE;
}

bool
admin_sleep(struct admin_watch *watch, int64_t ns)
{
	const struct thctl *ctl = watch->ctl;
	int64_t now_ns = th_now_ns();
	int64_t until_ns = now_ns + ns;

	if (ctl->timeout_ns >= 0 && ctl->deadline_ns < until_ns)
		until_ns = ctl->deadline_ns;
	while (now_ns < until_ns) {
		struct pollfd bell = {.fd = watch->stop ? watch->stop->fd : -1, .events = POLLIN};
		(void)poll(&bell, 1, (int)((until_ns - now_ns + MS_NS - 1) / MS_NS));
		if (watch->stop && stop_seen(watch->stop))
			return false;
		now_ns = th_now_ns();
	}
	return ctl->timeout_ns < 0 || now_ns < ctl->deadline_ns;
}

int
admin_ask_patiently(struct admin_watch *watch, const struct ctl_admin *admin, struct th_err *err,
	struct ctl_admin_reply *ret_reply)
{
	for (;;) {
		int rc = admin_ask(watch, admin, err, ret_reply);
		if (rc == 0) {
			if (watch->said)
				thctl_say("%s: there is an answer again", watch->ctl->verb->name);
			watch->failing_ns = 0;
			watch->said = false;
			return 0;
		}
		int64_t now_ns = th_now_ns();
		if (watch->failing_ns == 0)
			watch->failing_ns = now_ns;
		if (!may_return(rc) || now_ns - watch->failing_ns >= GIVE_UP_NS)
			return rc;
		if (!watch->said)
			thctl_say("%s: %s; asking again", watch->ctl->verb->name, err->text);
		watch->said = true;
		/* The connection may be what is wrong. */
		rpc_close(watch->rpc);
		watch->rpc = NULL;
		if (!admin_sleep(watch, AGAIN_NS))
			return watch->stop && stop_seen(watch->stop) ? 1 : rc;
	}
}

void
admin_close(struct admin_watch *watch)
{
	rpc_close(watch->rpc);
	watch->rpc = NULL;
}
