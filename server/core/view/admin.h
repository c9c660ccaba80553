/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admin - what operators ask: drain and undrain a node, evict a replica, read the log of events.
 *
 * Every request is answered at once and may be repeated. One thread, no I/O.
 */
#ifndef TH_SERVER_CORE_VIEW_ADMIN_H
#define TH_SERVER_CORE_VIEW_ADMIN_H

#include "server/core/refsrv_state.h"

int admin_request(struct refsrv *server, const struct ctl_admin *admin,
	struct ctl_admin_reply *ret_reply, struct th_err *err);

#endif
