/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settle - the one place where conclusions are drawn.
 *
 * The handlers of events record facts; what follows from them is carried out here, after each event
 * and for every session. So an event may come early, late or twice, and no order of two events
 * needs a place of its own. Each object knows its own conclusions (ac_part_settle, ac_call_settle,
 * ac_close_settle). Their order is here: the part first, for its proof is what the operation waits
 * for, and both are what the close waits for. No I/O, no clock; the thread of the caller.
 */
#include "daemon/core/agent_state.h"
#include "ipc/base/sim.h"

/* A broken group's part is over with its last reader; what is held stays until close. */
static void
settle_broken(struct agent_core *agent, struct session *session)
{
	if (ac_broken(session) && session->part != NULL && session->state == SESSION_OPEN &&
		!ac_call_went(&session->call) && ac_part_drained(session->part))
		ac_part_end(agent, session);
}

/* Nobody else closes a copy of the agent's own. */
static bool
is_unwanted(const struct session *session)
{
	return ac_internal(session) && session->state == SESSION_OPEN &&
	       (ac_broken(session) || session->unwanted);
}

void
ac_settle(struct agent_core *agent, struct session *session)
{
	ac_observer_settle(agent, session);
	ac_part_settle(agent, session);
	ac_call_settle(agent, session);
	settle_broken(agent, session);
	ac_session_line(agent, session);
	if (is_unwanted(session)) {
		TH_MARK(agent_offload_unwanted);
		ac_close(agent, session, WORKER_THERE); /* which settles it */
		return;
	}
	ac_close_settle(agent, session);
}

void
ac_settle_all(struct agent_core *agent)
{
	struct session *session, *next;

	HASH_ITER(hh, agent->sessions, session, next)
	{
		ac_settle(agent, session);
	}
}
