/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_points - at which requests to the server the agent has a failpoint before it sends them,
 * and at which events when they have come. Only for server_link.c.
 */
#ifndef TH_DAEMON_HOST_AGENT_POINTS_H
#define TH_DAEMON_HOST_AGENT_POINTS_H

#include "ipc/base/ctl.h"
#include "ipc/base/failpoint.h"

/* By enum ctl_request_kind. */
static const enum failpoint points_sends[] = {
	[CTL_ATTACH] = FAILPOINT_agent_sends_attach,
	[CTL_REJOIN] = FAILPOINT_agent_sends_rejoin,
	[CTL_REJOINED] = FAILPOINT_agent_sends_rejoined,
	[CTL_BEAT] = FAILPOINT_agent_sends_beat,
	[CTL_OPEN] = FAILPOINT_agent_sends_open,
	[CTL_REGISTER] = FAILPOINT_agent_sends_register,
	[CTL_OP] = FAILPOINT_agent_sends_op,
	[CTL_PREPARED] = FAILPOINT_agent_sends_prepared,
	[CTL_LEG_END] = FAILPOINT_agent_sends_leg_end,
	[CTL_DRAIN_DONE] = FAILPOINT_agent_sends_drain_done,
	[CTL_CONTENT] = FAILPOINT_agent_sends_content,
	[CTL_CLOSE] = FAILPOINT_agent_sends_close,
	[CTL_ADMIN] = FAILPOINT_agent_sends_admin,
	[CTL_RESERVED] = FAILPOINT_agent_sends_reserved,
};

/* By enum ctl_event_kind. */
static const enum failpoint points_told[] = {
	[CTL_EV_PLAN] = FAILPOINT_agent_told_plan,
	[CTL_EV_GO] = FAILPOINT_agent_told_go,
	[CTL_EV_GRANT] = FAILPOINT_agent_told_grant,
	[CTL_EV_DRAIN] = FAILPOINT_agent_told_drain,
	[CTL_EV_OUTCOME] = FAILPOINT_agent_told_outcome,
	[CTL_EV_RESERVE] = FAILPOINT_agent_told_reserve,
	[CTL_EV_RELEASE] = FAILPOINT_agent_told_release,
};

#endif
