/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv - see refsrv.h. This file: the clock, the dispatch of requests, and the end of a step,
 * when everything that waits for something that has changed is looked at.
 *
 * Of the paper (server/README.md) section 4.4 is op/, 4.3.1 is route/route.c, 4.5 is route/leg.c
 * and cluster/agent.c.
 */
#include "server/core/refsrv.h"

#include <inttypes.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/cluster/node_drain.h"
#include "server/core/cluster/standby.h"
#include "server/core/model/blob.h"
#include "server/core/model/content.h"
#include "server/core/model/copy.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/op/follow.h"
#include "server/core/op/op.h"
#include "server/core/refsrv_state.h"
#include "server/core/rejoin/rejoin.h"
#include "server/core/retain/borrow.h"
#include "server/core/retain/offload.h"
#include "server/core/retain/retain.h"
#include "server/core/route/leg.h"
#include "server/core/timer.h"
#include "server/core/view/admin.h"
#include "server/core/view/event_log.h"
#include "server/core/view/inspect.h"
#include "server/core/view/listing.h"
#include "server/core/view/snapshot.h"

#define SECOND_NS INT64_C(1000000000)
#define SLEEP_MAX_NS SECOND_NS     /* the host comes back at least this often     */
#define LATE_NS (SECOND_NS / 20)   /* later than promised by more: we stood still */
#define SETTLE_ROUNDS_MAX 1000000u /* more would be a circle                      */

void
refsrv_config_default(struct refsrv_config *ret_config)
{
	*ret_config = (struct refsrv_config){
		.poll_hold_ns = SECOND_NS,
		.suspect_ns = 3 * SECOND_NS,
		.dead_ns = 10 * SECOND_NS,
		.gone_ns = 2 * SECOND_NS,
		.warm_ns = 3 * SECOND_NS,
		.form_ns = 30 * SECOND_NS,
		.coalesce_ns = SECOND_NS / 50,
		.pair_block_ns = 30 * SECOND_NS,
		.crawl_ns = 5 * SECOND_NS,
		.skip_ns = 120 * SECOND_NS,
		.fan_gain = 8,
		.successor_copies = 1,
		.grace_ns = 600 * SECOND_NS,
		.proof_ns = SECOND_NS + SECOND_NS / 2,
		.rescue_ns = 10 * SECOND_NS,
		.offload_ns = 600 * SECOND_NS,
		.release_ns = SECOND_NS,
		.rescue_spot = true,
		.agents_max = 4096,
		.members_max = 65536,
		.members_per_agent_max = 256,
		.event_bytes_max = UINT64_C(512) << 20,
		.blob_bytes_max = UINT64_C(1) << 30,
		.snapshot_bytes_max = UINT64_C(256) << 20,
		.part_bytes = TH_PART_BYTES_MAX,
		.pipelining = true,
		.probe_ns = SECOND_NS / 2,
		.silence_ns = 3 * SECOND_NS,
		.return_ns = 10 * SECOND_NS,
	};
}

/* ---- memory of a step ----------------------------------------------------------------------- */

void *
refsrv_scratch(struct refsrv *server, size_t count, size_t bytes)
{
	uint64_t total;

	TH_ASSERT(th_mul_u64(count, bytes, &total));
	TH_ASSERT(th_add_u64(total, sizeof(struct scratch), &total));
	struct scratch *scratch = th_calloc(1, total);
	LL_PREPEND(server->scratch, scratch);
	return scratch + 1;
}

static void
scratch_free(struct refsrv *server)
{
	while (server->scratch != NULL) {
		struct scratch *first = server->scratch;
		server->scratch = first->next;
		free(first);
	}
}

struct ctl_reply *
refsrv_reply(struct refsrv *server, uint64_t token, enum ctl_request_kind kind, uint64_t request_no)
{
	if (server->num_replies == server->replies_max) {
		server->replies_max = server->replies_max == 0 ? 16 : server->replies_max * 2;
		server->replies =
			th_realloc(server->replies, server->replies_max, sizeof(*server->replies));
	}
	struct refsrv_reply *reply = &server->replies[server->num_replies++];
	memset(reply, 0, sizeof(*reply));
	reply->token = token;
	reply->reply.kind = kind;
	reply->reply.request_no = request_no;
	return &reply->reply;
}

void
refsrv_wake_at(struct refsrv *server, int64_t at_ns)
{
	server->wake_ns = th_min_i64(server->wake_ns, at_ns);
}

/* ---- life ----------------------------------------------------------------------------------- */

struct refsrv *
refsrv_new(const struct refsrv_config *config, int64_t now_ns)
{
	struct refsrv *server = calloc(1, sizeof(*server));

	if (server == NULL)
		return NULL;
	server->config = *config;
	server->started_ns = server->now_ns = now_ns;
	server->last_snapshot = config->server_inc;
	server->generation = config->generation_first;
	server->wake_ns = INT64_MAX;
	server->promised_ns = th_deadline_ns(now_ns, SLEEP_MAX_NS);
	standby_init(server);
	return server;
}

/* What is left when its agents are gone: models that nobody was in. */
static void
free_models(struct refsrv *server)
{
	struct model *model, *next;

	HASH_ITER(hh, server->models, model, next)
	{
		struct group *group, *next_group;
		retain_free(server, model);
		DL_FOREACH_SAFE2(model->busy, group, next_group, busy_next)
		{
			timer_stop(server, &group->timer);
			group_settle(server, group);
		}
		model_release(server, model);
	}
	TH_ASSERT(server->models == NULL);
}

void
refsrv_free(struct refsrv *server)
{
	struct agent *agent, *next;

	if (server == NULL)
		return;
	HASH_ITER(hh, server->agents, agent, next)
	{
		while (agent->members != NULL)
			member_lost(server, agent->members, "the server ends");
	}
	HASH_ITER(hh, server->agents, agent, next)
	{
		agent_drop(server, agent);
	}
	free_models(server);
	blob_free_all(server);
	snapshot_free_all(server);
	event_log_free(server);
	node_drain_free_all(server);
	scratch_free(server);
	free(server->timers);
	free(server->replies);
	free(server);
}

/* ---- time ----------------------------------------------------------------------------------- */

/*
 * The host calls back when it was asked to. What it is late by is a stall of this process or its
 * machine, during which no beat could be heard: it is nobody's silence.
 */
static void
refsrv_advance(struct refsrv *server, int64_t now_ns)
{
	now_ns = th_max_i64(now_ns, server->now_ns);
	int64_t last_ns = th_min_i64(now_ns, th_deadline_ns(server->promised_ns, LATE_NS));
	if (last_ns < now_ns)
		TH_MARK(own_stall_does_not_count);
	if (TH_PLANT(own_stall_counts))
		last_ns = now_ns;
	if (last_ns < now_ns)
		standby_stood_still(server, now_ns - last_ns);
	if (last_ns > server->now_ns)
		server->live_ns += last_ns - server->now_ns;
	server->now_ns = now_ns;
}

static void
fire(struct refsrv *server, struct timer *timer)
{
	switch (timer->kind) {
	case TIMER_AGENT:
		agent_timers(server, TIMER_OWNER(timer, struct agent));
		break;
	case TIMER_MODEL:
		listing_timer(server, TIMER_OWNER(timer, struct model));
		break;
	case TIMER_OP:
		op_timers(server, TIMER_OWNER(timer, struct op));
		break;
	case TIMER_RETENTION:
		model_dirty(TIMER_OWNER(timer, struct retention)->model);
		break;
	case TIMER_GROUP:
		rejoin_group_timer(server, TIMER_OWNER(timer, struct group));
		break;
	}
}

static void
timers(struct refsrv *server)
{
	if (server->now_ns >= server->wake_ns) {
		/* Whoever still has a deadline says so again. */
		server->wake_ns = INT64_MAX;
		snapshot_timers(server);
		rejoin_timers(server);
	}
	for (struct timer *timer = timer_take(server); timer != NULL; timer = timer_take(server))
		fire(server, timer);
}

static void
settle_model(struct refsrv *server, struct model *model)
{
	struct group *group, *next;

	model->retention.wake_ns = INT64_MAX;
	rejoin_settle(server, model);
	DL_FOREACH_SAFE2(model->busy, group, next, busy_next)
	{
		group_settle(server, group);
	}
	follow_settle(server, model);
	retain_settle(server, model);
	model_release(server, model);
}

static void
refsrv_settle(struct refsrv *server)
{
	uint32_t rounds = 0;

	while (server->dirty != NULL) {
		struct model *model = server->dirty;
		TH_ASSERT(++rounds < SETTLE_ROUNDS_MAX + HASH_COUNT(server->models));
		DL_DELETE2(server->dirty, model, dirty_prev, dirty_next);
		model->dirty = false;
		settle_model(server, model);
	}
}

static void
refsrv_begin(struct refsrv *server, int64_t now_ns)
{
	scratch_free(server);
	server->num_replies = 0;
	refsrv_advance(server, now_ns);
	timers(server);
	refsrv_settle(server);
	standby_look(server);
}

static void
refsrv_end(struct refsrv *server, struct refsrv_out *ret_out)
{
	/* The last inventory that was waited for may have come, or its agent may be gone. */
	rejoin_timers(server);
	refsrv_settle(server);
	node_drain_tick(server);
	listing_tell_changes(server);
	agent_flush_all(server);
	const struct refsrv_probe *probes;
	uint32_t num_probes = standby_probes(server, &probes);
	int64_t wake_ns = th_min_i64(server->wake_ns, timer_next_ns(server));
	wake_ns = th_min_i64(wake_ns, standby_next_ns(server));
	server->promised_ns = th_min_i64(wake_ns, th_deadline_ns(server->now_ns, SLEEP_MAX_NS));
	*ret_out = (struct refsrv_out){
		.num_replies = server->num_replies,
		.replies = server->replies,
		.next_ns = server->promised_ns,
		.num_probes = num_probes,
		.probes = probes,
		.serving = standby_serves(server),
		.renew = server->standby.state == STANDBY_OVER,
	};
}

/* ---- requests ------------------------------------------------------------------------------- */

/* Mostly a mistake in a file: servers list each other, or an agent goes to another's. */
static int
cluster_check(struct refsrv *server, const struct ctl_request *request, struct th_err *err)
{
	bool attaches = request->kind == CTL_ATTACH;
	const char *theirs = attaches ? request->u.attach.cluster : request->u.hello.cluster;

	if ((!attaches && request->kind != CTL_HELLO) ||
		th_cluster_fits(theirs, server->config.cluster))
		return 0;
	server->counters.refused_clusters++;
	return th_fail(err, TH_E_DENIED,
		"%s %s is of cluster %s, and this reference server of cluster %s: set cluster to "
		"the same name in both files, or give each its own servers",
		attaches ? "agent" : "who asks",
		attaches ? request->u.attach.node : "for this server", theirs,
		server->config.cluster);
}

static int
hello(struct refsrv *server, const struct ctl_hello *request, struct ctl_hello_reply *ret_reply,
	struct th_err *err)
{
	bool serves = standby_serves(server);

	if (request->protocol_min > TH_PROTOCOL_MAX || request->protocol_max < TH_PROTOCOL_MIN ||
		request->protocol_min > request->protocol_max)
		return th_fail(err, TH_E_PROTOCOL,
			"the agent speaks protocol %u to %u, this server %u to %u: bring both to "
			"the "
			"same release",
			request->protocol_min, request->protocol_max, TH_PROTOCOL_MIN,
			TH_PROTOCOL_MAX);
	if (request->server_inc != 0) {
		int rc = standby_hello(server, request, err);
		if (rc != 0)
			return rc;
		serves = standby_serves(server);
	}
	*ret_reply = (struct ctl_hello_reply){
		.server_inc = server->config.server_inc,
		.protocol = th_min_u32(request->protocol_max, TH_PROTOCOL_MAX),
		.epoch = serves ? server->epoch : standby_epoch_heard(server),
		.serving = serves,
	};
	memcpy(ret_reply->cluster, server->config.cluster, sizeof(ret_reply->cluster));
	return 0;
}

static bool
changes_state(enum ctl_request_kind kind)
{
	switch (kind) {
	case CTL_ATTACH:
	case CTL_OPEN:
	case CTL_REGISTER:
	case CTL_UNREGISTER:
	case CTL_OP:
	case CTL_CANCEL:
	case CTL_PREPARED:
	case CTL_LEG_END:
	case CTL_DRAIN_DONE:
	case CTL_CLOSE:
	case CTL_RESERVED:
	case CTL_REJOIN:
	case CTL_BORROW:
		return true;
	case CTL_HELLO:
	case CTL_BEAT:
	case CTL_POLL:
	/* A blob is named by its bytes: putting it twice is putting it once. */
	case CTL_MANIFEST_PUT:
	case CTL_MANIFEST_GET:
	/* So is saying what a part is made of. */
	case CTL_CONTENT:
	case CTL_WATCH:
	case CTL_LIST:
	case CTL_RESOLVE:
	case CTL_INSPECT:
	case CTL_WAITS:
	/* To ask an operator's question twice is to ask it once. */
	case CTL_ADMIN:
	case CTL_REJOINED:
		return false;
	}
	return false;
}

static int
refsrv_change(struct refsrv *server, struct agent *agent, const struct ctl_request *request,
	struct ctl_reply *reply, struct th_err *err)
{
	switch ((int)request->kind) {
	case CTL_OPEN:
		return member_open(server, agent, &request->u.open, &reply->u.open, err);
	case CTL_REGISTER:
		return member_register(server, agent, &request->u.reg, err);
	case CTL_UNREGISTER:
		return member_unregister(server, agent, request->u.unregister_sid, err);
	case CTL_OP:
		return op_request(server, agent, &request->u.op, err);
	case CTL_CANCEL:
		return op_cancel(server, agent, &request->u.cancel, err);
	case CTL_PREPARED:
		return op_prepared(server, agent, &request->u.prepared, err);
	case CTL_LEG_END:
		return leg_end(server, agent, &request->u.leg_end, err);
	case CTL_DRAIN_DONE:
		return copy_drain_done(server, agent, &request->u.drain_done, err);
	case CTL_REJOIN:
		return rejoin_request(server, agent, &request->u.rejoin, &reply->u.open, err);
	case CTL_CLOSE:
		return member_close(server, agent, &request->u.close, err);
	case CTL_RESERVED:
		return offload_refused(server, agent, &request->u.reserved, err);
	case CTL_BORROW:
		return borrow_request(server, agent, &request->u.borrow, err);
	default:
		return th_fail(err, TH_E_INVALID, "the server does not know request kind %d",
			(int)request->kind);
	}
}

/*
 * To begin twice is to begin once; but an end that comes late, when the watch was begun anew, would
 * end that one, and nobody would hear of a change any more.
 */
static int
refsrv_watch(struct refsrv *server, struct agent *agent, const struct ctl_request *request,
	struct ctl_reply *reply, struct th_err *err)
{
	if (request->request_no != 0 && request->answered_below <= request->request_no) {
		agent_answered(agent, request->answered_below);
		if (agent_repeat(agent, request->request_no) == REPEAT_LATE &&
			!TH_PLANT(late_watch_believed))
			return th_fail(err, TH_E_STATE,
				"request %" PRIu64
				" of agent %s was answered before: it comes late",
				request->request_no, agent->info.node);
	}
	return listing_watch(server, agent, &request->u.watch, &reply->u.watch, err);
}

static int
question(struct refsrv *server, struct agent *agent, const struct ctl_request *request,
	struct ctl_reply *reply, struct th_err *err)
{
	switch ((int)request->kind) {
	case CTL_REJOINED:
		rejoin_inventory_told(server, agent, request->u.rejoined.num_sessions);
		return 0;
	case CTL_BEAT:
		agent_beat(server, agent, &request->u.beat, request->connection);
		return 0;
	case CTL_MANIFEST_PUT:
		return blob_put(server, agent, &request->u.manifest_put, err);
	case CTL_MANIFEST_GET:
		return blob_get(server, &request->u.manifest_get, &reply->u.manifest_get, err);
	case CTL_CONTENT:
		return content_report(server, agent, &request->u.content, err);
	case CTL_WATCH:
		return refsrv_watch(server, agent, request, reply, err);
	case CTL_LIST:
		return listing_request(server, agent, &request->u.list, &reply->u.list, err);
	case CTL_RESOLVE:
		return listing_resolve(server, &request->u.resolve, &reply->u.resolve, err);
	case CTL_INSPECT:
		return inspect_request(server, request, &reply->u.inspect, err);
	case CTL_WAITS:
		return op_waits(server, agent, request->u.waits_sid, &reply->u.waits, err);
	case CTL_ADMIN:
		return admin_request(server, &request->u.admin, &reply->u.admin, err);
	default:
		return th_fail(err, TH_E_INVALID, "the server does not know request kind %d",
			(int)request->kind);
	}
}

static int
unknown_agent(struct ctl_reply *reply, const struct agent *agent, struct th_err *err)
{
	reply->unknown_agent = true;
	if (agent == NULL)
		return th_fail(err, TH_E_NO_SERVER,
			"this server does not know this agent: it must attach first");
	if (agent->state != AGENT_DEAD)
		return th_fail(err, TH_E_NO_SERVER,
			"this request belongs to a former attachment of agent %s",
			agent->info.node);
	return th_fail(err, TH_E_NO_SERVER,
		"this server holds this agent for dead, it was silent too long or lost count: "
		"it must attach again");
}

/* A request may be sent again when its reply was lost: it must not take effect twice. */
static bool
seen_before(struct refsrv *server, struct agent *agent, const struct ctl_request *request,
	struct ctl_reply *reply, int *ret_rc, struct th_err *err)
{
	if (request->answered_below > request->request_no) {
		*ret_rc = th_fail(err, TH_E_INVALID,
			"agent %s says with request %" PRIu64
			" that it has the answers to all below %" PRIu64 ": that cannot be",
			agent->info.node, request->request_no, request->answered_below);
		return true;
	}
	agent_answered(agent, request->answered_below);
	if (!TH_PLANT(repeats_are_executed) &&
		agent_remembered(agent, request->request_no, reply)) {
		TH_MARK(i10_repeat_gets_the_same_reply);
		*ret_rc = reply->code;
		err->code = reply->code;
		memcpy(err->text, reply->text, sizeof(err->text));
		if (reply->kind != request->kind)
			*ret_rc = th_fail(err, TH_E_INVALID,
				"agent %s uses request number %" PRIu64 " for two requests",
				agent->info.node, request->request_no);
		reply->kind = request->kind;
		return true;
	}
	switch (agent_repeat(agent, request->request_no)) {
	case REPEAT_NONE:
		return false;
	case REPEAT_LATE:
		break;
	case REPEAT_UNKNOWN:
		/* To do it twice or never would both be wrong: the agent begins anew. */
		agent_lost_track(server, agent);
		*ret_rc = unknown_agent(reply, agent, err);
		return true;
	}
	*ret_rc = th_fail(err, TH_E_STATE,
		"request %" PRIu64
		" of agent %s is older than the server remembers: whether it took "
		"effect is not known",
		request->request_no, agent->info.node);
	return true;
}

/* An operator is no agent, and may ask what there is. A group's own list is for its members. */
static bool
asks_as_operator(const struct ctl_request *request)
{
	return request->agent_inc == 0 &&
	       ((request->kind == CTL_LIST && request->u.list.sid == 0) ||
		       request->kind == CTL_INSPECT || request->kind == CTL_ADMIN);
}

static int
refsrv_handle(struct refsrv *server, const struct ctl_request *request, struct ctl_reply *reply,
	struct th_err *err)
{
	struct agent *agent = agent_find(server, request->agent_inc);
	bool living = agent != NULL && agent->state != AGENT_DEAD;
	int rc = cluster_check(server, request, err);

	if (rc != 0)
		return rc;
	if (!standby_serves(server) && !standby_answers(request))
		return standby_refuse(server, request, reply, err);
	if (request->kind == CTL_HELLO)
		return hello(server, &request->u.hello, &reply->u.hello, err);
	rc = agent_proven(server, agent, request, err);
	if (rc != 0)
		return rc;
	if (!agent_speaks(agent, request) && request->kind != CTL_ATTACH &&
		!asks_as_operator(request))
		return unknown_agent(reply, agent, err);
	if (!changes_state(request->kind))
		return question(server, agent, request, reply, err);
	if (request->kind == CTL_ATTACH) {
		rc = agent_admit(server, request, err);
		if (rc != 0)
			return rc;
	}
	if (living && seen_before(server, agent, request, reply, &rc, err))
		return rc;
	if (request->kind == CTL_ATTACH && standby_left_behind(server, agent, &request->u.attach))
		return standby_refuse(server, request, reply, err);
	if (request->kind == CTL_ATTACH) {
		rc = agent_attach(server, request, &reply->u.attach, err);
		agent = agent_find(server, request->agent_inc);
	} else {
		rc = refsrv_change(server, agent, request, reply, err);
	}
	reply->code = rc;
	if (rc != 0)
		memcpy(reply->text, err->text, sizeof(reply->text));
	if (agent != NULL && agent->state != AGENT_DEAD)
		agent_remember(agent, reply);
	return rc;
}

static bool
is_held_poll(struct refsrv *server, uint64_t token, const struct ctl_request *request, int *ret_rc,
	struct th_err *err)
{
	struct agent *agent = agent_find(server, request->agent_inc);

	if (request->kind != CTL_POLL || !agent_speaks(agent, request) || !standby_serves(server))
		return false;
	*ret_rc = agent_poll(server, agent, token, request->request_no, &request->u.poll, err);
	return *ret_rc == 0;
}

static void
count(struct refsrv *server, enum ctl_request_kind kind)
{
	server->counters.requests++;
	server->counters.polls += kind == CTL_POLL;
	server->counters.beats += kind == CTL_BEAT;
	server->counters.lists += kind == CTL_LIST;
	server->counters.watches += kind == CTL_WATCH;
}

void
refsrv_step(struct refsrv *server, int64_t now_ns, uint64_t token,
	const struct ctl_request *request, struct refsrv_out *ret_out)
{
	struct ctl_reply reply = {.kind = request->kind, .request_no = request->request_no};
	struct th_err err = {0};
	int rc = 0;

	refsrv_begin(server, now_ns);
	count(server, request->kind);
	if (!is_held_poll(server, token, request, &rc, &err)) {
		if (rc == 0)
			rc = refsrv_handle(server, request, &reply, &err);
		reply.code = rc;
		if (rc != 0)
			memcpy(reply.text, err.text, sizeof(reply.text));
		reply.request_no = request->request_no;
		*refsrv_reply(server, token, request->kind, request->request_no) = reply;
	}
	refsrv_end(server, ret_out);
}

void
refsrv_tick(struct refsrv *server, int64_t now_ns, struct refsrv_out *ret_out)
{
	refsrv_begin(server, now_ns);
	refsrv_end(server, ret_out);
}

void
refsrv_gone(struct refsrv *server, int64_t now_ns, uint64_t connection, struct refsrv_out *ret_out)
{
	refsrv_begin(server, now_ns);
	agent_connection_ended(server, connection);
	refsrv_end(server, ret_out);
}

void
refsrv_probed(struct refsrv *server, int64_t now_ns, uint32_t peer,
	const struct ctl_hello_reply *reply, struct refsrv_out *ret_out)
{
	refsrv_begin(server, now_ns);
	standby_probed(server, peer, reply);
	refsrv_end(server, ret_out);
}

void
refsrv_forget(struct refsrv *server, uint64_t token)
{
	agent_forget_poll(server, token);
}

const struct ctl_inspection *
refsrv_inspect(struct refsrv *server, int64_t now_ns)
{
	inspect_build(server, &server->inspection);
	server->inspection.uptime_ns = now_ns - server->started_ns;
	return &server->inspection;
}
