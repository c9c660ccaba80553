/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv_world - see refsrv_world.h.
 */
#include "tests/support/core/refsrv_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "server/core/model/blob_hash.h"
#include "server/core/view/event_log.h"

static void
check(struct world *w)
{
	if (!w->unchecked)
		refsrv_check(w->server);
}

static void
collect(struct world *w, const struct refsrv_out *out, uint64_t token)
{
	for (uint32_t i = 0; i < out->num_replies; i++) {
		const struct refsrv_reply *reply = &out->replies[i];
		if (reply->token == token) {
			w->reply = reply->reply;
			w->answered = true;
			continue;
		}
		for (uint32_t a = 0; a < w->num_agents; a++) {
			struct world_agent *agent = &w->agents[a];
			if (!agent->polling || agent->poll_token != reply->token)
				continue;
			agent->polling = false;
			const struct ctl_poll_reply *poll = &reply->reply.u.poll;
			if (reply->reply.code != 0) {
				agent->attached = false;
				continue;
			}
			for (uint32_t e = 0; e < poll->num_events; e++) {
				TH_ASSERT(poll->events[e].number == agent->last_event + 1);
				agent->last_event++;
				agent->inbox = th_realloc(
					agent->inbox, agent->num_inbox + 1, sizeof(*agent->inbox));
				agent->inbox[agent->num_inbox++] = poll->events[e];
			}
		}
	}
	w->next_ns = out->next_ns;
}

struct th_secret
world_secret(uint64_t inc)
{
	struct th_secret secret;

	memset(&secret, (int)(inc % 255 + 1), sizeof(secret));
	return secret;
}

/* Every agent that listens has a POLL standing; answers bring events, until there are none. */
static void
pump(struct world *w)
{
	for (bool again = true; again;) {
		again = false;
		for (uint32_t a = 0; a < w->num_agents; a++) {
			struct world_agent *agent = &w->agents[a];
			if (!agent->attached || agent->deaf || agent->polling)
				continue;
			struct ctl_request request = {
				.kind = CTL_POLL,
				.agent_inc = agent->inc,
				.secret = world_secret(agent->inc),
				.attach_no = agent->attach_no,
				.u.poll.last_event = agent->last_event,
			};
			struct refsrv_out out;
			agent->polling = true;
			agent->poll_token = ++w->last_token;
			refsrv_step(w->server, w->now_ns, agent->poll_token, &request, &out);
			check(w);
			collect(w, &out, 0);
			again = true;
		}
	}
}

void
world_init(struct world *w, const struct refsrv_config *config)
{
	*w = (struct world){.now_ns = 100 * SEC};
	if (config != NULL)
		w->config = *config;
	else
		refsrv_config_default(&w->config);
	w->config.server_inc = 77;
	for (uint64_t i = 0; i < 4; i++)
		w->config.seed[i] = i + 1;
	w->server = refsrv_new(&w->config, w->now_ns);
	TH_ASSERT(w->server != NULL);
	w->next_ns = w->now_ns;
	w->beat_ns = w->now_ns;
}

void
world_fini(struct world *w)
{
	refsrv_free(w->server);
	for (uint32_t a = 0; a < w->num_agents; a++)
		free(w->agents[a].inbox);
}

/* ---- agents ---- */

int
world_attach(struct world *w, uint32_t index, const char *datacenter)
{
	struct world_agent *agent = &w->agents[index];
	struct ctl_request request = {.kind = CTL_ATTACH};

	snprintf(request.u.attach.node, sizeof(request.u.attach.node), "%s", agent->node);
	snprintf(
		request.u.attach.datacenter, sizeof(request.u.attach.datacenter), "%s", datacenter);
	snprintf(request.u.attach.data_address, sizeof(request.u.attach.data_address), "%s:%u",
		agent->node, 7000 + index);
	request.u.attach.server_inc = agent->server_inc;
	request.u.attach.epoch = agent->epoch;
	request.u.attach.spot = w->spot;
	request.u.attach.offload_bytes = w->offload_bytes;
	int code = world_request(w, index, &request);
	if (code == 0) {
		agent->attached = true;
		agent->server_inc = w->reply.u.attach.server_inc;
		agent->attach_no = w->reply.u.attach.attach_no;
		agent->epoch = w->reply.u.attach.epoch;
		if (w->reply.u.attach.fresh)
			agent->last_event = 0;
	}
	pump(w);
	return code;
}

uint32_t
world_agent_in(struct world *w, const char *datacenter)
{
	uint32_t index = w->num_agents++;
	struct world_agent *agent = &w->agents[index];

	TH_ASSERT(index < WORLD_AGENTS_MAX);
	agent->inc = ++w->last_inc;
	agent->connection = ++w->last_connection;
	snprintf(agent->node, sizeof(agent->node), "node%u", index);
	TH_ASSERT(world_attach(w, index, datacenter) == 0);
	return index;
}

uint32_t
world_agent(struct world *w)
{
	return world_agent_in(w, "dc1");
}

int
world_restart(struct world *w, uint32_t index)
{
	struct world_agent *agent = &w->agents[index];

	agent->inc = ++w->last_inc;
	agent->connection = ++w->last_connection;
	agent->request_no = agent->last_event = agent->attach_no = agent->server_inc = 0;
	agent->attached = agent->polling = agent->silent = false;
	agent->num_inbox = 0;
	return world_attach(w, index, "dc1");
}

void
world_gone(struct world *w, uint32_t index)
{
	struct world_agent *agent = &w->agents[index];
	struct refsrv_out out;
	uint64_t ended = agent->connection;

	agent->connection = ++w->last_connection;
	refsrv_gone(w->server, w->now_ns, ended, &out);
	check(w);
	collect(w, &out, 0);
	pump(w);
}

/* ---- requests ---- */

int
world_repeat(struct world *w, uint32_t index, const struct ctl_request *request)
{
	struct refsrv_out out;
	uint64_t token = ++w->last_token;

	(void)index;
	w->answered = false;
	refsrv_step(w->server, w->now_ns, token, request, &out);
	check(w);
	collect(w, &out, token);
	TH_ASSERT(w->answered && w->reply.kind == request->kind);
	TH_ASSERT(w->reply.request_no == request->request_no);
	TH_ASSERT((w->reply.code == 0) == (w->reply.text[0] == '\0'));
	return w->reply.code;
}

int
world_request(struct world *w, uint32_t index, struct ctl_request *request)
{
	struct world_agent *agent = &w->agents[index];

	request->agent_inc = agent->inc;
	request->secret = world_secret(agent->inc);
	request->connection = agent->connection;
	request->request_no = ++agent->request_no;
	request->attach_no = request->kind == CTL_HELLO ? 0 : agent->attach_no;
	int code = world_repeat(w, index, request);
	if (agent->attached && w->reply.unknown_agent)
		agent->attached = false;
	/* The reply's pointers would not outlive the polls. */
	if (request->kind != CTL_LIST && request->kind != CTL_INSPECT &&
		request->kind != CTL_MANIFEST_GET && request->kind != CTL_ADMIN &&
		request->kind != CTL_WAITS)
		pump(w);
	return code;
}

static void
beat_all(struct world *w)
{
	for (uint32_t a = 0; a < w->num_agents; a++) {
		struct world_agent *agent = &w->agents[a];
		struct ctl_request request = {.kind = CTL_BEAT};
		if (agent->attached && !agent->silent)
			world_request(w, a, &request);
	}
}

void
world_sleep(struct world *w, int64_t ns)
{
	int64_t until_ns = w->now_ns + ns;

	while (w->now_ns < until_ns) {
		struct refsrv_out out;
		int64_t step_ns = w->next_ns < until_ns ? w->next_ns : until_ns;
		if (w->beat_ns + SEC < step_ns)
			step_ns = w->beat_ns + SEC;
		if (step_ns > w->now_ns)
			w->now_ns = step_ns;
		refsrv_tick(w->server, w->now_ns, &out);
		check(w);
		TH_ASSERT(out.next_ns > w->now_ns);
		collect(w, &out, 0);
		if (w->now_ns >= w->beat_ns + SEC) {
			w->beat_ns = w->now_ns;
			beat_all(w);
		}
		pump(w);
	}
}

/* ---- events ---- */

uint64_t
world_event_sid(const struct ctl_event *event)
{
	switch (event->kind) {
	case CTL_EV_PLAN:
		return event->u.plan.sid;
	case CTL_EV_GO:
		return event->u.go.sid;
	case CTL_EV_REROUTE:
		return event->u.reroute.sid;
	case CTL_EV_GRANT:
		return event->u.grant.sid;
	case CTL_EV_DRAIN:
		return event->u.drain.sid;
	case CTL_EV_UNDRAIN:
		return event->u.undrain.sid;
	case CTL_EV_CANCEL:
		return event->u.cancel.sid;
	case CTL_EV_OUTCOME:
		return event->u.outcome.sid;
	case CTL_EV_BROKEN:
		return event->u.broken.sid;
	case CTL_EV_CONFLICT:
		return event->u.conflict.sid;
	case CTL_EV_AT_RISK:
		return event->u.at_risk.sid;
	case CTL_EV_READY:
		return event->u.ready.sid;
	case CTL_EV_RELEASE:
		return event->u.release.sid;
	case CTL_EV_CLOSE_REFUSED:
		return event->u.close_refused.sid;
	case CTL_EV_FENCE:
	case CTL_EV_CHANGED:
	case CTL_EV_BORROW_REFUSED:
	case CTL_EV_RESERVE:
	case CTL_EV_NODE:
	case CTL_EV_PING:
	case CTL_EV_RULES:
	case CTL_EV_GO_MARK:
		return 0;
	}
	return 0;
}

static int64_t
find_event(const struct world_agent *agent, enum ctl_event_kind kind, uint64_t sid)
{
	for (uint32_t i = 0; i < agent->num_inbox; i++) {
		const struct ctl_event *event = &agent->inbox[i];
		if (event->kind == kind && (sid == 0 || world_event_sid(event) == sid))
			return i;
	}
	return -1;
}

bool
world_has(const struct world *w, uint32_t index, enum ctl_event_kind kind, uint64_t sid)
{
	return find_event(&w->agents[index], kind, sid) >= 0;
}

bool
world_take(struct world *w, uint32_t index, enum ctl_event_kind kind, uint64_t sid,
	struct ctl_event *ret_event)
{
	struct world_agent *agent = &w->agents[index];
	int64_t at = find_event(agent, kind, sid);

	if (at < 0)
		return false;
	*ret_event = agent->inbox[at];
	agent->num_inbox--;
	memmove(&agent->inbox[at], &agent->inbox[at + 1],
		(agent->num_inbox - (uint32_t)at) * sizeof(*agent->inbox));
	return true;
}

/* ---- requests by name ---- */

int
world_open(struct world *w, uint32_t agent, const char *model, const char *replica, uint32_t shard,
	uint32_t num_shards, uint64_t lineage, uint64_t *ret_sid)
{
	struct ctl_request request = {.kind = CTL_OPEN};

	snprintf(request.u.open.model, sizeof(request.u.open.model), "%s", model);
	snprintf(request.u.open.replica, sizeof(request.u.open.replica), "%s", replica);
	request.u.open.shard = shard;
	request.u.open.num_shards = num_shards;
	request.u.open.lineage = lineage;
	request.u.open.pid = 100 + shard;
	request.u.open.flags = w->flags;
	if (w->retain != NULL)
		snprintf(request.u.open.retain, sizeof(request.u.open.retain), "%s", w->retain);
	int code = world_request(w, agent, &request);
	if (code == 0)
		*ret_sid = w->reply.u.open.sid;
	return code;
}

int
world_launch(struct world *w, uint32_t agent, const char *replica, uint32_t shard,
	uint32_t num_shards, const char *launch_id, uint64_t *ret_sid)
{
	struct ctl_request request = {.kind = CTL_OPEN};

	snprintf(request.u.open.model, sizeof(request.u.open.model), "m");
	snprintf(request.u.open.replica, sizeof(request.u.open.replica), "%s", replica);
	snprintf(request.u.open.launch_id, sizeof(request.u.open.launch_id), "%s", launch_id);
	request.u.open.shard = shard;
	request.u.open.num_shards = num_shards;
	request.u.open.lineage = 1;
	int code = world_request(w, agent, &request);
	if (code == 0)
		*ret_sid = w->reply.u.open.sid;
	return code;
}

int
world_put(struct world *w, uint32_t agent, const void *data, size_t bytes, struct th_hash *ret_key)
{
	struct ctl_request request = {.kind = CTL_MANIFEST_PUT};

	*ret_key = hash_bytes(data, bytes);
	request.u.manifest_put = (struct ctl_blob_part){
		.key = *ret_key,
		.total_bytes = bytes,
		.data = data,
		.data_bytes = bytes,
	};
	return world_request(w, agent, &request);
}

int
world_register(struct world *w, uint32_t agent, uint64_t sid, uint32_t layout)
{
	struct ctl_request request = {.kind = CTL_REGISTER};
	char manifest[64];

	snprintf(manifest, sizeof(manifest), "manifest of layout %u", layout);
	int code = world_put(w, agent, manifest, strlen(manifest), &request.u.reg.manifest);
	if (code != 0)
		return code;
	request.u.reg.sid = sid;
	request.u.reg.layout = (struct th_hash){.lo = layout + 1, .hi = 1};
	request.u.reg.bytes = 1000;
	request.u.reg.num_chunks = WORLD_CHUNKS;
	return world_request(w, agent, &request);
}

bool
world_reserve(struct world *w, uint32_t agent, struct ctl_ev_reserve *ret_reserve)
{
	struct ctl_event event;

	if (!world_take(w, agent, CTL_EV_RESERVE, 0, &event))
		return false;
	*ret_reserve = event.u.reserve;
	return true;
}

int
world_accept(struct world *w, uint32_t agent, const struct ctl_ev_reserve *reserve,
	struct world_member *ret_m)
{
	struct ctl_request request = {.kind = CTL_OPEN};

	*ret_m = (struct world_member){.agent = agent,
		.shard = reserve->shard,
		.num_shards = reserve->num_shards,
		.seq = 1};
	memcpy(request.u.open.model, reserve->model, sizeof(request.u.open.model));
	memcpy(request.u.open.replica, reserve->replica, sizeof(request.u.open.replica));
	request.u.open.shard = reserve->shard;
	request.u.open.num_shards = reserve->num_shards;
	request.u.open.lineage = reserve->version.lineage;
	request.u.open.reservation = reserve->reservation;
	int code = world_request(w, agent, &request);
	if (code != 0)
		return code;
	ret_m->sid = w->reply.u.open.sid;
	request = (struct ctl_request){.kind = CTL_REGISTER};
	request.u.reg.sid = ret_m->sid;
	request.u.reg.layout = reserve->layout;
	request.u.reg.manifest = reserve->manifest;
	request.u.reg.bytes = reserve->bytes;
	request.u.reg.num_chunks = reserve->num_chunks;
	return world_request(w, agent, &request);
}

int
world_refuse(struct world *w, uint32_t agent, const struct ctl_ev_reserve *reserve)
{
	struct ctl_request request = {.kind = CTL_RESERVED};

	request.u.reserved.reservation = reserve->reservation;
	request.u.reserved.shard = reserve->shard;
	request.u.reserved.code = TH_E_NOMEM_RETAIN;
	snprintf(request.u.reserved.text, sizeof(request.u.reserved.text), "it has %u bytes free",
		agent);
	return world_request(w, agent, &request);
}

bool
world_asked(const struct world *w, uint32_t agent)
{
	return world_has(w, agent, CTL_EV_RESERVE, 0);
}

struct world_member
world_accepts(struct world *w, uint32_t agent)
{
	struct ctl_ev_reserve reserve;
	struct world_member m;

	TH_ASSERT(world_reserve(w, agent, &reserve));
	TH_ASSERT(world_accept(w, agent, &reserve, &m) == 0);
	return m;
}

struct ctl_grant
world_filling(struct world *w, const struct world_member *m)
{
	struct ctl_event event;

	TH_ASSERT(world_take(w, m->agent, CTL_EV_PLAN, m->sid, &event));
	TH_ASSERT(event.u.plan.op_seq == 1 && !event.u.plan.drain_old);
	TH_ASSERT(world_prepared(w, m, 0) == 0);
	return world_go(w, m);
}

int
world_op(struct world *w, uint32_t agent, uint64_t sid, uint64_t seq, enum ctl_op_kind kind,
	const char *spec, int64_t timeout_ns)
{
	struct ctl_request request = {.kind = CTL_OP};

	request.u.op.sid = sid;
	request.u.op.op_seq = seq;
	request.u.op.kind = kind;
	request.u.op.timeout_ns = timeout_ns;
	snprintf(request.u.op.spec, sizeof(request.u.op.spec), "%s", spec);
	return world_request(w, agent, &request);
}

int
world_prepared(struct world *w, const struct world_member *m, int code)
{
	struct ctl_request request = {.kind = CTL_PREPARED};

	request.u.prepared.sid = m->sid;
	request.u.prepared.op_seq = m->seq;
	request.u.prepared.code = code;
	if (code != 0)
		snprintf(request.u.prepared.text, sizeof(request.u.prepared.text),
			"shard %u cannot", m->shard);
	return world_request(w, m->agent, &request);
}

int
world_leg_end(struct world *w, uint32_t agent, uint64_t leg, int code, bool source_failed,
	uint32_t chunks)
{
	struct ctl_request request = {.kind = CTL_LEG_END};

	request.u.leg_end.leg = leg;
	request.u.leg_end.code = code;
	request.u.leg_end.source_failed = source_failed;
	request.u.leg_end.chunks_verified = chunks;
	if (code != 0)
		snprintf(request.u.leg_end.text, sizeof(request.u.leg_end.text), "leg failed");
	return world_request(w, agent, &request);
}

int
world_drain_done(struct world *w, uint32_t agent, const struct ctl_ev_part *drain)
{
	struct ctl_request request = {.kind = CTL_DRAIN_DONE};

	request.u.drain_done.sid = drain->sid;
	request.u.drain_done.gen = drain->gen;
	request.u.drain_done.drain_no = drain->drain_no;
	return world_request(w, agent, &request);
}

int
world_close(struct world *w, const struct world_member *m, bool died)
{
	struct ctl_request request = {.kind = CTL_CLOSE};

	request.u.close.sid = m->sid;
	request.u.close.died = died;
	return world_request(w, m->agent, &request);
}

int
world_cancel(struct world *w, const struct world_member *m)
{
	struct ctl_request request = {.kind = CTL_CANCEL};

	request.u.cancel.sid = m->sid;
	request.u.cancel.op_seq = m->seq;
	return world_request(w, m->agent, &request);
}

int
world_list(struct world *w, uint32_t agent, const char *model)
{
	struct ctl_request request = {.kind = CTL_LIST};

	snprintf(request.u.list.model, sizeof(request.u.list.model), "%s", model);
	return world_request(w, agent, &request);
}

uint32_t
world_flags(struct world *w, uint32_t agent, const char *replica, bool offload)
{
	TH_ASSERT(world_list(w, agent, "m") == 0);
	for (uint32_t v = 0; v < w->reply.u.list.num_versions; v++) {
		const struct ctl_version_info *info = &w->reply.u.list.versions[v];
		for (uint32_t r = 0; r < info->num_replicas; r++) {
			const struct ctl_replica_info *one = &info->replicas[r];
			if (strcmp(one->name, replica) == 0 &&
				((one->flags & CTL_REPLICA_OFFLOAD) != 0) == offload)
				return one->flags;
		}
	}
	return 0;
}

/* ---- exchanges ---- */

struct world_member
world_member(
	struct world *w, uint32_t agent, const char *replica, uint32_t shard, uint32_t num_shards)
{
	struct world_member m = {.agent = agent, .shard = shard, .num_shards = num_shards};

	TH_ASSERT(world_open(w, agent, "m", replica, shard, num_shards, 1, &m.sid) == 0);
	TH_ASSERT(world_register(w, agent, m.sid, shard) == 0);
	return m;
}

void
world_call(struct world *w, struct world_member *m, enum ctl_op_kind kind, const char *spec,
	int64_t timeout_ns)
{
	m->seq++;
	TH_ASSERT(world_op(w, m->agent, m->sid, m->seq, kind, spec, timeout_ns) == 0);
}

bool
world_ended(const struct world *w, const struct world_member *m)
{
	return world_has(w, m->agent, CTL_EV_OUTCOME, m->sid);
}

int
world_content(struct world *w, const struct world_member *m, uint64_t content)
{
	struct ctl_request request = {.kind = CTL_CONTENT};

	request.u.content.sid = m->sid;
	request.u.content.gen = m->seq;
	if (content != 0)
		request.u.content.content = (struct th_hash){.lo = content, .hi = m->shard + 1};
	return world_request(w, m->agent, &request);
}

struct ctl_ev_outcome
world_outcome(struct world *w, const struct world_member *m)
{
	struct ctl_event event;

	TH_ASSERT(world_take(w, m->agent, CTL_EV_OUTCOME, m->sid, &event));
	TH_ASSERT(event.u.outcome.op_seq == m->seq);
	TH_ASSERT((event.u.outcome.code == 0) == (event.u.outcome.text[0] == '\0'));
	if (event.u.outcome.code == 0 && event.u.outcome.kind == CTL_OP_PUBLISH && !w->hash_late)
		TH_ASSERT(world_content(w, m, 1) == 0);
	return event.u.outcome;
}

void
world_publish(struct world *w, struct world_member *m, const char *spec)
{
	world_call(w, m, CTL_OP_PUBLISH, spec, TH_FOREVER);
	TH_ASSERT(world_outcome(w, m).code == 0);
}

struct world_member
world_published(struct world *w, uint32_t agent, const char *replica, const char *version)
{
	struct world_member m = world_member(w, agent, replica, 0, 1);

	world_publish(w, &m, version);
	return m;
}

struct ctl_grant
world_go(struct world *w, const struct world_member *m)
{
	struct ctl_event event;

	TH_ASSERT(world_take(w, m->agent, CTL_EV_GO, m->sid, &event));
	TH_ASSERT(event.u.go.op_seq == m->seq);
	return event.u.go.grant;
}

struct ctl_grant
world_begin(struct world *w, struct world_member *m, enum ctl_op_kind kind, const char *spec)
{
	struct ctl_event event;

	world_call(w, m, kind, spec, TH_FOREVER);
	TH_ASSERT(world_take(w, m->agent, CTL_EV_PLAN, m->sid, &event));
	TH_ASSERT(world_prepared(w, m, 0) == 0);
	return world_go(w, m);
}

void
world_finish(struct world *w, const struct world_member *m, uint64_t leg)
{
	TH_ASSERT(world_leg_end(w, m->agent, leg, 0, false, WORLD_CHUNKS) == 0);
}

void
world_replicate(struct world *w, struct world_member *m, const char *spec)
{
	struct ctl_grant grant = world_begin(w, m, CTL_OP_REPLICATE, spec);

	world_finish(w, m, grant.leg);
	TH_ASSERT(world_outcome(w, m).code == 0);
}

struct ctl_ev_part
world_take_drain(struct world *w, const struct world_member *m)
{
	struct ctl_event event;

	TH_ASSERT(world_take(w, m->agent, CTL_EV_DRAIN, m->sid, &event));
	return event.u.drain;
}

void
world_drained(struct world *w, const struct world_member *m)
{
	struct ctl_ev_part drain = world_take_drain(w, m);

	TH_ASSERT(world_drain_done(w, m->agent, &drain) == 0);
}

uint32_t
world_logged(const struct world *w, const char *text)
{
	const struct event_entry *entry = NULL;
	uint32_t times = 0;

	while ((entry = event_log_after(w->server, entry == NULL ? 0 : entry->number)) != NULL)
		times += strstr(entry->text, text) != NULL;
	return times;
}
