/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_ping - see agent_ping.h. One question is under way to an agent at a time; it answers all
 * who ask.
 */
#include "server/core/cluster/agent_ping.h"

#include "ipc/base/checked.h"
#include "server/core/cluster/agent.h"
#include "server/core/model/model.h"

void
agent_ping_reset(struct agent *agent)
{
	agent->ping_no = 0;
	agent->proven_ns = INT64_MIN;
}

static enum proof
agent_ping_proof(struct refsrv *server, struct agent *agent, int64_t since_ns, int64_t *ret_wake_ns)
{
	if (agent->state != AGENT_ACTIVE)
		return PROOF_NONE;
	if (agent->proven_ns >= since_ns)
		return PROOF_THERE;
	if (agent->ping_no == 0) {
		agent->ping_no = agent_event(agent, CTL_EV_PING)->number;
		agent->ping_ns = server->now_ns;
	}
	int64_t wake_ns = th_deadline_ns(agent->ping_ns, server->config.proof_ns);
	if (server->now_ns >= wake_ns)
		return PROOF_NONE;
	*ret_wake_ns = wake_ns;
	return PROOF_PENDING;
}

enum proof
agent_ping_copy(
	struct refsrv *server, const struct copy *copy, int64_t since_ns, int64_t *ret_wake_ns)
{
	enum proof worst = PROOF_THERE;

	for (uint32_t i = 0; i < copy->num_parts; i++) {
		enum proof proof = agent_ping_proof(
			server, copy->parts[i].member->agent, since_ns, ret_wake_ns);
		if (proof > worst)
			worst = proof;
	}
	return worst;
}

void
agent_ping_acknowledged(struct refsrv *server, struct agent *agent)
{
	struct member *member;

	if (agent->ping_no == 0 || agent->acked_event_no < agent->ping_no)
		return;
	agent->proven_ns = agent->ping_ns;
	agent->ping_no = 0;
	/* Who asked did so for a part that it has. */
	DL_FOREACH2(agent->members, member, agent_next)
	{
		model_dirty(member->group->model);
	}
	(void)server;
}
