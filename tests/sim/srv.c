/* SPDX-License-Identifier: Apache-2.0 */
/*
 * srv - server processes: refsrv, its time, and its end.
 */
#include <inttypes.h>
#include <string.h>

#include "ipc/base/answer_pages.h"
#include "tests/sim/check.h"
#include "tests/sim/sim.h"
#include "tests/support/core/core_check.h"

/* Tokens of requests that no agent has sent. */
#define STRANGER UINT64_C(0xfd)
#define PEER UINT64_C(0xfe)
#define OPERATOR UINT64_C(0xff)

#define ENTRIES_MAX 256u /* of one listing */
#define PART_BYTES 480u  /* a listing of more than two replicas comes in parts */

static void new_core(struct srv *srv);

static bool
is_first_part(const struct refsrv_reply *reply)
{
	return reply->reply.kind == CTL_LIST && reply->reply.u.list.page.next != 0;
}

/* A part of a listing is not sent: srv_request reads on. */
static void
said(struct srv *srv, const struct refsrv_out *out)
{
	for (uint32_t i = 0; i < out->num_replies; i++)
		if ((out->replies[i].token < STRANGER || out->replies[i].token > OPERATOR) &&
			!is_first_part(&out->replies[i]))
			net_reply(srv, &out->replies[i]);
	srv->next_ns = out->next_ns;
	process_wake_at(&srv->process, srv->next_ns);
	refsrv_check(srv->core);
	if (out->serving != srv->serving) {
		TRACE("server # $", srv->process.index,
			TRACE_S(out->serving ? "serves" : "does not serve"));
		srv->serving = out->serving;
		if (srv->serving)
			check_server_serves(srv);
	}
	for (uint32_t i = 0; i < out->num_probes; i++)
		peer_ask(srv, &out->probes[i]);
	if (!out->renew)
		return;
	TRACE("server # begins anew", srv->process.index);
	refsrv_free(srv->core);
	new_core(srv);
}

/* The parts are put together at once; the whole is what is judged, and what a worker hears. */
static void
read_on(struct srv *srv, const char *model, struct refsrv_reply reply)
{
	static struct ctl_version_info versions[ENTRIES_MAX];
	static struct ctl_replica_info replicas[ENTRIES_MAX];
	struct ctl_listing part = reply.reply.u.list, *whole = &reply.reply.u.list;
	struct ctl_request request = {.kind = CTL_LIST};
	struct pages pages = {0};
	uint64_t entries = 0;
	struct refsrv_out out;
	struct th_err err;

	strcpy(request.u.list.model, model);
	*whole = (struct ctl_listing){.generation = part.generation, .versions = versions};
	for (;;) {
		uint64_t before = entries;
		for (uint32_t i = 0; i < part.num_versions; i++) {
			uint32_t count = part.versions[i].num_replicas;
			if (count == 0 || entries + count > ENTRIES_MAX)
				sim_fail("sim", "a version of %u entries behind %" PRIu64, count,
					entries);
			memcpy(&replicas[entries], part.versions[i].replicas,
				count * sizeof(replicas[0]));
			versions[whole->num_versions] = part.versions[i];
			versions[whole->num_versions++].replicas = &replicas[entries];
			entries += count;
		}
		int more = pages_take(&pages, part.page, entries - before, part.generation, &err);
		if (more < 0)
			sim_fail("list", "a part of a listing is none: %s", err.text);
		if (more == 0)
			break;
		request.u.list.page = pages.ask;
		refsrv_step(srv->core, process_now(&srv->process), OPERATOR, &request, &out);
		part = (struct ctl_listing){0};
		for (uint32_t i = 0; i < out.num_replies; i++)
			if (out.replies[i].token == OPERATOR)
				part = out.replies[i].reply.u.list;
		said(srv, &out);
	}
	net_reply(srv, &reply);
}

static void
opened(const struct refsrv_out *out)
{
	for (uint32_t i = 0; i < out->num_replies; i++) {
		const struct ctl_reply *reply = &out->replies[i].reply;
		if (reply->kind == CTL_OPEN && reply->code == 0)
			check_opened(reply->u.open.sid, reply->u.open.group_inc);
		if (reply->kind == CTL_OPEN && reply->code == 0)
			check_wire_opened(
				reply->u.open.sid, &world.hosts[out->replies[i].token & 0xff]);
	}
}

static bool
attached(const struct refsrv_out *out)
{
	for (uint32_t i = 0; i < out->num_replies; i++) {
		if (out->replies[i].reply.kind == CTL_ATTACH && out->replies[i].reply.code == 0)
			return true;
	}
	return false;
}

void
srv_request(struct srv *srv, uint64_t token, const struct ctl_request *request)
{
	uint64_t inc = srv->inc;
	struct refsrv_out out;

	TRACE("server # takes request # from host #: kind # op #", srv->process.index,
		request->request_no, token & 0xff, (uint64_t)request->kind,
		request->kind == CTL_OP ? request->u.op.kind : 0);
	refsrv_step(srv->core, process_now(&srv->process), token, request, &out);
	opened(&out);
	if (request->kind == CTL_ATTACH && attached(&out))
		check_warms(srv, &world.hosts[token & 0xff],
			request->u.attach.server_inc != 0 &&
				request->u.attach.server_inc != srv->inc);
	said(srv, &out);
	bool lists = request->kind == CTL_LIST && srv->inc == inc; /* else its replies are gone */
	for (uint32_t i = 0; lists && i < out.num_replies; i++) {
		if (out.replies[i].token == token && is_first_part(&out.replies[i])) {
			read_on(srv, request->u.list.model, out.replies[i]);
			break;
		}
	}
	check_blame(srv, request);
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
srv_stranger(struct srv *srv, const struct ctl_request *request, struct ctl_reply *ret_reply)
{
	struct refsrv_out out;

	/* What time alone brings about is none of his doing. */
	refsrv_tick(srv->core, process_now(&srv->process), &out);
	said(srv, &out);
	*ret_reply = (struct ctl_reply){.code = TH_E_NO_SERVER};
	refsrv_step(srv->core, process_now(&srv->process), STRANGER, request, &out);
	for (uint32_t i = 0; i < out.num_replies; i++) {
		if (out.replies[i].token == STRANGER)
			*ret_reply = out.replies[i].reply;
	}
	TRACE("server # hears a stranger: kind # code !", srv->process.index,
		(uint64_t)request->kind, TRACE_E(ret_reply->code));
	said(srv, &out);
}

int
srv_asked(struct srv *srv, const struct ctl_hello *hello, struct ctl_hello_reply *ret_reply)
{
	struct ctl_request request = {.kind = CTL_HELLO, .u.hello = *hello};
	struct refsrv_out out;
	int code = TH_E_NO_SERVER;

	refsrv_step(srv->core, process_now(&srv->process), PEER, &request, &out);
	for (uint32_t i = 0; i < out.num_replies; i++) {
		if (out.replies[i].token != PEER)
			continue;
		code = out.replies[i].reply.code;
		*ret_reply = out.replies[i].reply.u.hello;
	}
	said(srv, &out);
	return code;
}

void
srv_answered(struct srv *srv, uint32_t peer, const struct ctl_hello_reply *reply)
{
	uint64_t inc = srv->inc;
	struct refsrv_out out;

	TRACE("server # hears of server #: $, epoch #, inc #", srv->process.index, peer,
		TRACE_S(reply == NULL    ? "nothing"
			: reply->serving ? "serves"
					 : "waits"),
		reply == NULL ? 0 : reply->epoch, reply == NULL ? 0 : reply->server_inc);
	refsrv_probed(srv->core, process_now(&srv->process), peer, reply, &out);
	said(srv, &out);
	if (reply != NULL && srv->inc == inc)
		check_answered(srv, peer, reply);
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

static void
new_core(struct srv *srv)
{
	static const char *const names[SERVERS_MAX] = {"server 0", "server 1", "server 2"};
	struct refsrv_config config;

	refsrv_config_default(&config);
	config.num_peers = peer_count();
	config.me = srv->lost ? REFSRV_PEER_UNKNOWN : srv->process.index;
	config.peers = names;
	config.server_inc = srv->inc = ++world.last_inc;
	for (size_t i = 0; i < TH_ARRAY_LEN(config.seed); i++)
		config.seed[i] = th_rng_u64(&world.rng[RNG_SWARM]);
	config.part_bytes = PART_BYTES;
	config.pair_block_ns = world.options.pair_block_ns;
	config.grace_ns = world.options.grace_ns;
	config.crawl_ns = world.options.crawl_ns;
	config.skip_ns = 4 * world.options.crawl_ns;
	config.fan_gain = (int32_t)world.options.fan_gain;
	srv->generation += 1u << 20;
	config.generation_first = srv->generation;
	srv->core = refsrv_new(&config, process_now(&srv->process));
	srv->next_ns = 0;
	srv->serving = false;
	check_server_begins(srv);
	process_wake_at(&srv->process, process_now(&srv->process));
	TRACE("server # starts, inc #", srv->process.index, srv->inc);
}

void
srv_start(struct srv *srv)
{
	process_start(&srv->process);
	srv->process.on_wake = srv_wake;
	srv->lost = peer_count() > 0 && percent(RNG_PEER, 20);
	new_core(srv);
}

void
srv_stop(struct srv *srv)
{
	TRACE("server # dies", srv->process.index);
	process_kill(&srv->process);
	refsrv_free(srv->core);
	srv->core = NULL;
	srv->serving = false;
	check_server_down();
	for (uint32_t i = 0; i < world.options.hosts; i++) {
		if (world.hosts[i].process.alive)
			net_hang_up(&world.hosts[i], srv);
	}
}
