/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listing - what users see of a model: versions and their replicas, now or at a group's plan, and
 * word of changes to those who watch.
 */
#ifndef TH_SERVER_CORE_VIEW_LISTING_H
#define TH_SERVER_CORE_VIEW_LISTING_H

#include "server/core/refsrv_state.h"

/*
 * What the model lists now, held for the caller (snapshot_let_go); model may list nothing. owner:
 * the agent that asks. TH_E_LIMIT: too many are kept.
 */
int listing_snapshot(struct refsrv *server, uint64_t owner, const struct model *model,
	struct th_err *err, struct snapshot **ret_snapshot);

/* LIST: what is now, or the next part of what was then. agent NULL: an operator asks. */
int listing_request(struct refsrv *server, struct agent *agent, const struct ctl_list *list,
	struct ctl_listing *ret_listing, struct th_err *err);
int listing_resolve(struct refsrv *server, const struct ctl_resolve *resolve,
	struct ctl_resolve_reply *ret_reply, struct th_err *err);

/* CHANGED comes from now on, until the agent says stop or is gone. */
int listing_watch(struct refsrv *server, struct agent *agent, const struct ctl_watch *watch,
	struct ctl_ev_changed *ret_now, struct th_err *err);
void listing_drop_watches(struct refsrv *server, struct agent *agent);
/* Sends what is due; the rest when its time has come. */
void listing_tell_changes(struct refsrv *server);
/* It has: the model's quiet time is over. */
void listing_timer(struct refsrv *server, struct model *model);

#endif
