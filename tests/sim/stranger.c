/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stranger - somebody who reaches the servers and says what is not his to say. I20: it is refused,
 * and nobody is disturbed: what else is demanded of a world is demanded of one with strangers, too.
 *
 * He knows all numbers that agents get to know of each other, and those that they keep to
 * themselves, but no agent's secret.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/sim.h"

/* Another server, which has it all, as he says. */
static void
serves(struct srv *srv)
{
	struct ctl_request request = {.kind = CTL_HELLO};
	struct ctl_reply reply;
	uint64_t inc = srv->inc;

	request.u.hello = (struct ctl_hello){
		.protocol_min = TH_PROTOCOL_MIN,
		.protocol_max = TH_PROTOCOL_MAX,
		.server_inc = chance(RNG_FAULT, UINT64_MAX) | 1,
		.epoch = (uint32_t)between(RNG_FAULT, 1000, TH_EPOCH_MAX),
		.serving = true,
	};
	srv_stranger(srv, &request, &reply);
	if (srv->inc != inc)
		sim_fail("I20", "server %u begins anew, for a stranger says that he serves",
			srv->process.index);
}

static void
attaches_as(struct ctl_attach *attach, const struct host *host)
{
	snprintf(attach->node, sizeof(attach->node), "node%u", host->process.index);
	snprintf(attach->datacenter, sizeof(attach->datacenter), "dc%u", host->datacenter);
	snprintf(attach->data_address, sizeof(attach->data_address), "nowhere");
	attach->server_inc = percent(RNG_FAULT, 50) ? host->server_inc : chance(RNG_FAULT, 1000);
	attach->epoch = host->epoch;
}

static void
speaks_for(struct srv *srv, const struct host *host)
{
	static const enum ctl_request_kind kinds[] = {CTL_ATTACH, CTL_BEAT, CTL_POLL, CTL_REJOINED};
	struct ctl_request request = {
		.kind = kinds[chance(RNG_FAULT, TH_ARRAY_LEN(kinds))],
		.agent_inc = host->inc,
		.request_no = percent(RNG_FAULT, 50) ? UINT64_MAX - 1 : chance(RNG_FAULT, 1000),
		.attach_no = agent_core_attach_no(host->core),
		.secret = host->secret,
	};
	struct ctl_reply reply;

	request.secret.bytes[chance(RNG_FAULT, sizeof(request.secret.bytes))] ^= 1;
	if (request.kind == CTL_ATTACH)
		attaches_as(&request.u.attach, host);
	srv_stranger(srv, &request, &reply);
	if (reply.code == 0)
		sim_fail("I20", "a stranger is heard as host %u, with request kind %d",
			host->process.index, (int)request.kind);
}

void
stranger_speaks(void)
{
	struct srv *srv = &world.servers[chance(RNG_FAULT, world.options.servers)];
	const struct host *host = &world.hosts[chance(RNG_FAULT, world.options.hosts)];

	if (!srv->process.alive || srv->process.paused)
		return;
	serves(srv);
	/* A server that does not know the agent yet cannot tell which of two it is. */
	if (host->process.alive && host->attached && host->server_inc == srv->inc)
		speaks_for(srv, host);
}
