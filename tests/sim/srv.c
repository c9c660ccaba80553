/* SPDX-License-Identifier: Apache-2.0 */
/*
 * srv - server processes: refsrv, its time, and its end.
 */
#include <string.h>

#include "tests/sim/check.h"
#include "tests/sim/sim.h"

/* Token of a request that no agent has sent. */
#define OPERATOR UINT64_C(0xff)

static void
said(struct srv *srv, const struct refsrv_out *out)
{
	for (uint32_t i = 0; i < out->num_replies; i++)
		if (out->replies[i].token != OPERATOR)
			net_reply(srv, &out->replies[i]);
	srv->next_ns = out->next_ns;
	process_wake_at(&srv->process, srv->next_ns);
	refsrv_check(srv->core);
}

static void
opened(const struct refsrv_out *out)
{
	for (uint32_t i = 0; i < out->num_replies; i++) {
		const struct ctl_reply *reply = &out->replies[i].reply;
		if (reply->kind == CTL_OPEN && reply->code == 0)
			check_opened(reply->u.open.sid, reply->u.open.group_inc);
	}
}

void
srv_request(struct srv *srv, uint64_t token, const struct ctl_request *request)
{
	struct refsrv_out out;

	TRACE("server # takes request # from host #: kind # op #", srv->process.index,
		request->request_no, token & 0xff, (uint64_t)request->kind,
		request->kind == CTL_OP ? request->u.op.kind : 0);
	refsrv_step(srv->core, process_now(&srv->process), token, request, &out);
	opened(&out);
	said(srv, &out);
}

int
srv_admin(struct srv *srv, const struct ctl_admin *admin, struct ctl_admin_reply *ret_reply)
{
	struct ctl_request request = {.kind = CTL_ADMIN, .u.admin = *admin};
	struct refsrv_out out;
	int code = TH_E_NO_SERVER;

	refsrv_step(srv->core, process_now(&srv->process), OPERATOR, &request, &out);
	for (uint32_t i = 0; i < out.num_replies; i++) {
		if (out.replies[i].token != OPERATOR)
			continue;
		code = out.replies[i].reply.code;
		*ret_reply = out.replies[i].reply.u.admin;
	}
	said(srv, &out);
	return code;
}

void
srv_forget(struct srv *srv, uint64_t token)
{
	refsrv_forget(srv->core, token);
}

void
srv_gone(struct srv *srv, uint64_t connection)
{
	struct refsrv_out out;

	refsrv_gone(srv->core, process_now(&srv->process), connection, &out);
	said(srv, &out);
}

static void
srv_wake(struct process *process)
{
	struct srv *srv = &world.servers[process->index];
	struct refsrv_out out;

	if (process_now(process) < srv->next_ns) {
		process_wake_at(process, srv->next_ns);
		return;
	}
	refsrv_tick(srv->core, process_now(process), &out);
	said(srv, &out);
}

void
srv_start(struct srv *srv)
{
	struct refsrv_config config;

	process_start(&srv->process);
	srv->process.on_wake = srv_wake;
	refsrv_config_default(&config);
	config.server_inc = srv->inc = ++world.last_inc;
	for (size_t i = 0; i < TH_ARRAY_LEN(config.seed); i++)
		config.seed[i] = th_rng_u64(&world.rng[RNG_SWARM]);
	config.pair_block_ns = world.options.pair_block_ns;
	config.grace_ns = world.options.grace_ns;
	config.crawl_ns = world.options.crawl_ns;
	srv->generation += 1u << 20;
	config.generation_first = srv->generation;
	srv->core = refsrv_new(&config, process_now(&srv->process));
	srv->next_ns = 0;
	process_wake_at(&srv->process, process_now(&srv->process));
	TRACE("server # starts, inc #", srv->process.index, srv->inc);
}

void
srv_stop(struct srv *srv)
{
	TRACE("server # dies", srv->process.index);
	process_kill(&srv->process);
	refsrv_free(srv->core);
	srv->core = NULL;
	for (uint32_t i = 0; i < world.options.hosts; i++) {
		if (world.hosts[i].process.alive)
			net_hang_up(&world.hosts[i], srv);
	}
}
