/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_points - at which requests the server has a failpoint: before it decides, and when it has
 * sent what the decision caused. Only for service.c.
 */
#ifndef TH_SERVER_HOST_SERVER_POINTS_H
#define TH_SERVER_HOST_SERVER_POINTS_H

#include "ipc/base/ctl.h"
#include "ipc/base/failpoint.h"

/* By enum ctl_request_kind. */
static const enum failpoint points_asked[] = {
	[CTL_ATTACH] = FAILPOINT_server_attach,
	[CTL_REJOIN] = FAILPOINT_server_rejoin,
	[CTL_BEAT] = FAILPOINT_server_beat,
	[CTL_POLL] = FAILPOINT_server_poll,
	[CTL_OPEN] = FAILPOINT_server_open,
	[CTL_REGISTER] = FAILPOINT_server_register,
	[CTL_MANIFEST_PUT] = FAILPOINT_server_manifest_put,
	[CTL_OP] = FAILPOINT_server_op,
	[CTL_PREPARED] = FAILPOINT_server_prepared,
	[CTL_LEG_END] = FAILPOINT_server_leg_end,
	[CTL_DRAIN_DONE] = FAILPOINT_server_drain_done,
	[CTL_CONTENT] = FAILPOINT_server_content,
	[CTL_CLOSE] = FAILPOINT_server_close,
	[CTL_ADMIN] = FAILPOINT_server_admin,
	[CTL_RESERVED] = FAILPOINT_server_reserved,
};

static const enum failpoint points_answered[] = {
	[CTL_ATTACH] = FAILPOINT_server_attached,
	[CTL_REJOINED] = FAILPOINT_server_rejoined,
	[CTL_OPEN] = FAILPOINT_server_opened,
	[CTL_REGISTER] = FAILPOINT_server_registered,
	[CTL_OP] = FAILPOINT_server_op_taken,
	[CTL_PREPARED] = FAILPOINT_server_prepared_taken,
	[CTL_LEG_END] = FAILPOINT_server_leg_ended,
	[CTL_DRAIN_DONE] = FAILPOINT_server_drained,
	[CTL_CLOSE] = FAILPOINT_server_closed,
};

#endif
