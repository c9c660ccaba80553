/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent - see agent.h.
 *
 *   ACTIVE -- suspect_ns without a beat --> SUSPECT -- dead_ns --> DEAD (kept for operators to see)
 *      ^------------- a beat ------------------'
 *
 * Silence is measured on the server's live clock, which stands still while the server itself did:
 * a server that was stopped must not take everybody else for dead. For the same reason a sudden
 * silence of many agents is held back: it is the network or the server, not they.
 */
#include "server/core/cluster/agent.h"

#include <inttypes.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/bytes.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent_pair.h"
#include "server/core/cluster/agent_ping.h"
#include "server/core/cluster/epoch.h"
#include "server/core/cluster/node_drain.h"
#include "server/core/cluster/standby.h"
#include "server/core/model/blob.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/rejoin/rejoin.h"
#include "server/core/retain/borrow.h"
#include "server/core/route/leg.h"
#include "server/core/timer.h"
#include "server/core/view/event_log.h"
#include "server/core/view/listing.h"

/* This many silent agents, and this share of all, count as one event of the network. */
#define MASS_AGENTS_MIN 3u
#define MASS_PERCENT 30u
#define MASS_HOLD_FACTOR 2               /* they get dead_ns times this in addition */
#define HOLD_LOOK_NS INT64_C(1000000000) /* a silent agent is looked at this often */

struct agent *
agent_find(struct refsrv *server, uint64_t inc)
{
	struct agent *agent = NULL;

	HASH_FIND(hh, server->agents, &inc, sizeof(inc), agent);
	return agent;
}

const char *
agent_state_name(enum agent_state state)
{
	switch (state) {
	case AGENT_ACTIVE:
		return "active";
	case AGENT_SUSPECT:
		return "suspect";
	case AGENT_DEAD:
		return "dead";
	}
	return "?";
}

/* The state and all that counts by it. */
static void
agent_set_state(struct refsrv *server, struct agent *agent, enum agent_state state)
{
	if (agent->state == AGENT_DEAD)
		DL_DELETE2(server->dead, agent, dead_prev, dead_next);
	if (state == AGENT_DEAD)
		DL_APPEND2(server->dead, agent, dead_prev, dead_next);
	server->num_living -= agent->state == AGENT_ACTIVE || agent->state == AGENT_SUSPECT;
	server->num_living += state != AGENT_DEAD;
	server->num_suspect -= agent->state == AGENT_SUSPECT;
	server->num_suspect += state == AGENT_SUSPECT;
	agent->state = state;
}

static void
set_connection(struct refsrv *server, struct agent *agent, uint64_t connection)
{
	if (agent->connection == connection)
		return;
	if (agent->connection != 0)
		HASH_DELETE(hh_connection, server->connections, agent);
	agent->connection = connection;
	if (connection != 0)
		HASH_ADD(hh_connection, server->connections, connection, sizeof(agent->connection),
			agent);
}

void
agent_wake_at(struct refsrv *server, struct agent *agent, int64_t at_ns)
{
	timer_at(server, &agent->timer, TIMER_AGENT, at_ns);
}

/* ---- events --------------------------------------------------------------------------------- */

static void
be_ready(struct agent *agent)
{
	if (agent->ready)
		return;
	agent->ready = true;
	DL_APPEND2(agent->server->ready, agent, ready_prev, ready_next);
}

static void
be_unready(struct agent *agent)
{
	if (!agent->ready)
		return;
	agent->ready = false;
	DL_DELETE2(agent->server->ready, agent, ready_prev, ready_next);
}

/* It is given up with the next step, and what it has not fetched goes with it. */
static void
overflow(struct agent *agent)
{
	if (agent->overflowed)
		return;
	agent->overflowed = true;
	agent->server->num_events -= agent->num_events;
	agent_wake_at(agent->server, agent, agent->server->now_ns);
}

/*
 * Of those with no less than their share the one that has fetched nothing for the longest time:
 * neither whoever fetches is given up for many that do not, nor whoever has little for one that has
 * much. Each search frees a share, so a flood costs each of its events no more than a few looks.
 */
static struct agent *
hoarder(const struct refsrv *server)
{
	uint64_t share = server->num_events / HASH_COUNT(server->agents);
	struct agent *agent, *found = NULL;

	for (agent = server->agents; agent != NULL; agent = agent->hh.next) {
		if (agent->overflowed || agent->num_events == 0 || agent->num_events < share)
			continue;
		if (found == NULL || agent->stuck_ns < found->stuck_ns ||
			(agent->stuck_ns == found->stuck_ns &&
				agent->num_events > found->num_events))
			found = agent;
	}
	TH_ASSERT(found != NULL); /* not all can have less than their share */
	return found;
}

struct ctl_event *
agent_event(struct agent *agent, enum ctl_event_kind kind)
{
	struct refsrv *server = agent->server;
	struct queued_event *queued = th_calloc(1, sizeof(*queued));

	queued->event.kind = kind;
	queued->event.number = ++agent->last_event_no;
	if (agent->events == NULL)
		agent->stuck_ns = server->now_ns;
	DL_APPEND(agent->events, queued);
	agent->num_events++;
	server->num_events += !agent->overflowed;
	if (agent->num_events > EVENTS_QUEUED_MAX)
		overflow(agent);
	if (server->num_events * sizeof(*queued) > server->config.event_bytes_max) {
		TH_MARK(events_of_all_are_too_many);
		overflow(hoarder(server));
	}
	if (agent->polling)
		be_ready(agent);
	return &queued->event;
}

static void
drop_events(struct agent *agent, uint64_t up_to)
{
	while (agent->events != NULL && agent->events->event.number <= up_to) {
		struct queued_event *first = agent->events;
		DL_DELETE(agent->events, first);
		free(first);
		agent->num_events--;
		agent->server->num_events -= !agent->overflowed;
		agent->stuck_ns = agent->server->now_ns;
	}
}

static void
poll_begin(struct refsrv *server, struct agent *agent, uint64_t token, uint64_t request_no)
{
	agent->polling = true;
	agent->poll_token = token;
	agent->poll_request_no = request_no;
	HASH_ADD(hh_poll, server->polls, poll_token, sizeof(agent->poll_token), agent);
}

static void
poll_end(struct refsrv *server, struct agent *agent)
{
	HASH_DELETE(hh_poll, server->polls, agent);
	agent->polling = false;
}

static void
poll_answer(struct refsrv *server, struct agent *agent)
{
	struct ctl_reply *reply =
		refsrv_reply(server, agent->poll_token, CTL_POLL, agent->poll_request_no);
	uint32_t count = (uint32_t)th_min_u64(agent->num_events, TH_EVENTS_MAX);

	poll_end(server, agent);
	if (count == 0)
		return;
	struct ctl_event *events = refsrv_scratch(server, count, sizeof(*events));
	struct queued_event *queued = agent->events;
	for (uint32_t i = 0; i < count; i++, queued = queued->next)
		events[i] = queued->event;
	reply->u.poll = (struct ctl_poll_reply){.num_events = count, .events = events};
}

int
agent_poll(struct refsrv *server, struct agent *agent, uint64_t token, uint64_t request_no,
	const struct ctl_poll *poll, struct th_err *err)
{
	if (poll->last_event > agent->last_event_no)
		return th_fail(err, TH_E_INVALID,
			"agent %s acknowledges event %" PRIu64
			", but the server has sent it only %" PRIu64
			": attach again with a new agent process",
			agent->info.node, poll->last_event, agent->last_event_no);
	if (poll->last_event > agent->acked_event_no)
		agent->acked_event_no = poll->last_event;
	drop_events(agent, agent->acked_event_no);
	agent_ping_acknowledged(server, agent);
	if (agent->polling) {
		/* Its requester has given up on it; answered empty, events go to the newer one. */
		refsrv_reply(server, agent->poll_token, CTL_POLL, agent->poll_request_no);
		poll_end(server, agent);
	}
	poll_begin(server, agent, token, request_no);
	agent->poll_deadline_ns = th_deadline_ns(server->now_ns, server->config.poll_hold_ns);
	agent_wake_at(server, agent, agent->poll_deadline_ns);
	if (agent->num_events > 0)
		be_ready(agent);
	return 0;
}

void
agent_forget_poll(struct refsrv *server, uint64_t token)
{
	struct agent *agent = NULL;

	HASH_FIND(hh_poll, server->polls, &token, sizeof(token), agent);
	if (agent != NULL)
		poll_end(server, agent);
}

/* It must attach again. */
static void
poll_refuse(struct refsrv *server, struct agent *agent, const char *why)
{
	struct ctl_reply *reply =
		refsrv_reply(server, agent->poll_token, CTL_POLL, agent->poll_request_no);
	struct th_err err;

	reply->code = th_fail(&err, TH_E_NO_SERVER, "%s", why);
	memcpy(reply->text, err.text, sizeof(reply->text));
	reply->unknown_agent = true;
	poll_end(server, agent);
}

void
agent_refuse_polls(struct refsrv *server, const char *why)
{
	struct agent *agent, *next;

	for (agent = server->polls; agent != NULL; agent = next) {
		next = agent->hh_poll.next;
		poll_refuse(server, agent, why);
	}
}

void
agent_flush_all(struct refsrv *server)
{
	while (server->ready != NULL) {
		struct agent *agent = server->ready;
		be_unready(agent);
		if (agent->polling && agent->num_events > 0)
			poll_answer(server, agent);
	}
}

bool
agent_near(const struct agent *a, const struct agent *b)
{
	return strcmp(a->info.datacenter, b->info.datacenter) == 0;
}

/* ---- life and death ------------------------------------------------------------------------- */

static void
reset(struct refsrv *server, struct agent *agent)
{
	TH_ASSERT(agent->members == NULL);
	timer_stop(server, &agent->timer);
	set_connection(server, agent, 0);
	agent->gone = false;
	be_unready(agent);
	drop_events(agent, UINT64_MAX);
	agent->last_event_no = agent->acked_event_no = 0;
	agent->overflowed = false;
	agent->num_reserved = 0;
	agent_ping_reset(agent);
	agent_forget_replies(agent);
	pair_drop_all(agent);
	blob_drop_uploads(server, agent);
	listing_drop_watches(server, agent);
	borrow_drop_all(server, agent);
}

void
agent_drop(struct refsrv *server, struct agent *agent)
{
	reset(server, agent);
	if (agent->polling)
		poll_end(server, agent);
	agent_set_state(server, agent, AGENT_DEAD);
	DL_DELETE2(server->dead, agent, dead_prev, dead_next);
	HASH_DELETE(hh_node, server->nodes, agent);
	HASH_DELETE(hh, server->agents, agent);
	free(agent);
}

/*
 * Nothing this agent holds can be had any more, and nothing it says counts until it attaches again.
 * The record stays, so that an operator sees what happened, until the node attaches again or the
 * room is needed.
 */
static void
agent_bury(struct refsrv *server, struct agent *agent, const char *why)
{
	agent_set_state(server, agent, AGENT_DEAD);
	rejoin_inventory_ends(server, agent);
	if (agent->leaving && agent->num_members == 0)
		event_log(server, EVENT_INFO, NULL, agent->info.node,
			"agent %s has ended, as it was told to", agent->info.node);
	else
		event_log(server, EVENT_ERROR, NULL, agent->info.node,
			"agent %s is dead: %s; what it held is gone, %u open shards with it",
			agent->info.node, why, agent->num_members);
	if (agent->polling) {
		struct th_err err;
		th_fail(&err, TH_E_NO_SERVER,
			"the server holds agent %s for dead: %s; it must attach again",
			agent->info.node, why);
		poll_refuse(server, agent, err.text);
	}
	while (agent->members != NULL)
		member_lost(server, agent->members, why);
	reset(server, agent);
	TH_ASSERT(agent->legs_in == 0 && agent->legs_out == 0);
}

void
agent_lost_track(struct refsrv *server, struct agent *agent)
{
	TH_MARK(repeat_below_the_window);
	agent_bury(server, agent, "it repeats what is older than the server remembers");
}

static struct agent *
find_node(struct refsrv *server, const char *node, uint64_t other_than_inc)
{
	struct agent *agent = NULL;

	HASH_FIND(hh_node, server->nodes, node, strlen(node), agent);
	return agent == NULL || agent->inc == other_than_inc ? NULL : agent;
}

struct agent *
agent_of_node(struct refsrv *server, const char *node)
{
	return find_node(server, node, 0);
}

static void
set_info(struct refsrv *server, struct agent *agent, const struct ctl_attach *attach)
{
	if (agent->info.node[0] != '\0')
		HASH_DELETE(hh_node, server->nodes, agent);
	agent->info = *attach;
	HASH_ADD_KEYPTR(hh_node, server->nodes, agent->info.node, strlen(agent->info.node), agent);
}

static int
attach_check(struct refsrv *server, uint64_t inc, const struct ctl_attach *attach,
	const struct agent *known, struct th_err *err)
{
	if (inc == 0 || !th_name_valid(attach->node, TH_NAME_MAX) ||
		!th_name_valid(attach->datacenter, TH_NAME_MAX) ||
		!th_name_valid(attach->data_address, TH_ADDRESS_MAX))
		return th_fail(err, TH_E_INVALID,
			"an agent attaches with a bad node, datacenter or data address: names are "
			"1 to %d bytes of UTF-8 without control characters",
			TH_NAME_MAX);
	const struct agent *twin = find_node(server, attach->node, inc);
	if (twin != NULL && twin->state == AGENT_ACTIVE)
		TH_MARK(c24_node_name_is_taken);
	if (twin != NULL && twin->state == AGENT_ACTIVE)
		return th_fail(err, TH_E_STATE,
			"node name %s is taken: another agent with data address %s is alive under "
			"it "
			"(this one has %s); give each agent its own node name, or, after a "
			"restart, "
			"try again in %" PRId64 " ms",
			attach->node, twin->info.data_address, attach->data_address,
			server->config.suspect_ns / 1000000);
	bool living = known != NULL && known->state != AGENT_DEAD;
	if (!living && twin == NULL && server->num_living >= server->config.agents_max)
		return th_fail(err, TH_E_LIMIT,
			"agent %s cannot attach: the server has its limit of %u agents "
			"(limit.agents)",
			attach->node, server->config.agents_max);
	return 0;
}

static bool
knows_secret(const struct agent *agent, const struct ctl_request *request)
{
	return th_bytes_same(&agent->secret, &request->secret, sizeof(agent->secret)) ||
	       TH_PLANT(secret_not_checked);
}

int
agent_proven(struct refsrv *server, const struct agent *agent, const struct ctl_request *request,
	struct th_err *err)
{
	if (agent == NULL || knows_secret(agent, request))
		return 0;
	TH_MARK(stranger_speaks_for_an_agent);
	server->counters.refused_secrets++;
	return th_fail(err, TH_E_DENIED,
		"somebody speaks for agent %s who is not this agent: the secret of its process "
		"is another one; nothing was done, and the agent goes on",
		agent->info.node);
}

int
agent_admit(struct refsrv *server, const struct ctl_request *request, struct th_err *err)
{
	const struct ctl_attach *attach = &request->u.attach;

	if (attach->server_inc == server->config.server_inc ||
		epoch_believed(server, attach->epoch))
		return 0;
	server->counters.refused_epochs++;
	return th_fail(err, TH_E_INVALID,
		"agent %s says that it was attached to a reference server of epoch %" PRIu32
		": this one is of epoch %" PRIu32 ", and believes no higher one than %" PRIu32
		", for no cluster has had so many servers since; if the agent comes from another "
		"cluster, restart it",
		attach->node, attach->epoch, server->epoch, epoch_bound(server));
}

bool
agent_speaks(const struct agent *agent, const struct ctl_request *request)
{
	return agent != NULL && agent->state != AGENT_DEAD && knows_secret(agent, request) &&
	       (agent->attach_no == request->attach_no || TH_PLANT(stale_attach_believed));
}

/*
 * It was attached to another server since, or twice, and has begun anew there. Or it has begun anew
 * here, and does not know: the answer that said so was lost.
 */
static bool
was_away(const struct refsrv *server, const struct agent *agent, const struct ctl_request *request)
{
	if (agent == NULL || agent->state == AGENT_DEAD)
		return false;
	if (request->u.attach.server_inc != server->config.server_inc)
		return true;
	if (request->attach_no < agent->first_attach_no)
		TH_MARK(fresh_attachment_was_not_heard_of);
	return request->attach_no < agent->first_attach_no && !TH_PLANT(unheard_attachment_goes_on);
}

int
agent_attach(struct refsrv *server, const struct ctl_request *request,
	struct ctl_attach_reply *ret_reply, struct th_err *err)
{
	const struct ctl_attach *attach = &request->u.attach;
	uint64_t inc = request->agent_inc;
	struct agent *agent = agent_find(server, inc);
	int rc = attach_check(server, inc, attach, agent, err);

	if (rc == 0 && agent != NULL && request->request_no <= agent->attach_request_no)
		rc = th_fail(err, TH_E_STATE,
			"agent %s has attached again since it sent this request", agent->info.node);
	if (rc != 0)
		return rc;
	if (was_away(server, agent, request))
		agent_bury(server, agent, "it was attached to another server meanwhile");
	bool fresh = agent == NULL || agent->state == AGENT_DEAD;
	/* Its first agent: this life is later than all that any server knows of. */
	if (server->epoch == 0)
		epoch_seen(server, standby_epoch_heard(server));
	if (attach->server_inc != server->config.server_inc)
		epoch_seen(server, attach->epoch);
	struct agent *twin = find_node(server, attach->node, inc);
	if (twin != NULL) {
		if (twin->state != AGENT_DEAD)
			agent_bury(server, twin, "a new agent process has attached from its node");
		agent_drop(server, twin);
	}
	if (agent == NULL) {
		if (HASH_COUNT(server->agents) >= server->config.agents_max && server->dead != NULL)
			agent_drop(server, server->dead);
		agent = th_calloc(1, sizeof(*agent));
		agent->server = server;
		agent->inc = inc;
		agent->secret = request->secret;
		agent_ping_reset(agent);
		agent_set_state(server, agent, AGENT_DEAD);
		HASH_ADD(hh, server->agents, inc, sizeof(agent->inc), agent);
	}
	if (agent->state != AGENT_ACTIVE)
		model_dirty_agent(server, agent);
	agent_set_state(server, agent, AGENT_ACTIVE);
	set_info(server, agent, attach);
	agent->attach_no = epoch_next_id(server);
	if (fresh)
		agent->first_attach_no = agent->attach_no;
	agent->attach_request_no = request->request_no;
	if (attach->server_inc != 0 && attach->server_inc != server->config.server_inc)
		rejoin_attached(server, agent);
	agent->beat_live_ns = server->live_ns;
	agent->gone = false;
	set_connection(server, agent, 0); /* its first beat says */
	agent_wake_at(server, agent, th_deadline_ns(server->now_ns, server->config.suspect_ns));
	event_log(server, EVENT_INFO, NULL, attach->node,
		"agent %s is attached: datacenter %s, data address %s%s", attach->node,
		attach->datacenter, attach->data_address, attach->spot ? ", spot" : "");
	node_attached(server, agent);
	*ret_reply = (struct ctl_attach_reply){
		.server_inc = server->config.server_inc,
		.attach_no = agent->attach_no,
		.epoch = server->epoch,
		.fresh = fresh,
	};
	return 0;
}

void
agent_beat(struct refsrv *server, struct agent *agent, const struct ctl_beat *beat,
	uint64_t connection)
{
	agent->beat_live_ns = server->live_ns;
	set_connection(server, agent, connection);
	agent->gone = false;
	if (agent->state == AGENT_SUSPECT) {
		agent_set_state(server, agent, AGENT_ACTIVE);
		event_log(server, EVENT_INFO, NULL, agent->info.node, "agent %s is back",
			agent->info.node);
		model_dirty_agent(server, agent);
		agent_wake_at(
			server, agent, th_deadline_ns(server->now_ns, server->config.suspect_ns));
	}
	for (uint32_t i = 0; i < beat->num_legs; i++)
		leg_progress(server, agent, &beat->legs[i]);
}

static int64_t
silence(const struct refsrv *server, const struct agent *agent)
{
	return server->live_ns - agent->beat_live_ns;
}

static void
lost_connection(struct refsrv *server, struct agent *agent)
{
	set_connection(server, agent, 0);
	agent->gone = true;
	agent->gone_live_ns = server->live_ns;
	if (agent->state != AGENT_SUSPECT)
		event_log(server, agent->leaving ? EVENT_INFO : EVENT_WARN, NULL, agent->info.node,
			"agent %s is suspect: its connection ended; nothing new is read "
			"from it or by it until it is back",
			agent->info.node);
	agent_set_state(server, agent, AGENT_SUSPECT);
	model_dirty_agent(server, agent);
	agent_wake_at(server, agent, th_deadline_ns(server->now_ns, server->config.gone_ns));
}

void
agent_connection_ended(struct refsrv *server, uint64_t connection)
{
	for (;;) {
		struct agent *agent = NULL;
		HASH_FIND(
			hh_connection, server->connections, &connection, sizeof(connection), agent);
		if (agent == NULL)
			return;
		lost_connection(server, agent);
	}
}

/*
 * Many fell silent together: it is the network. Connections that ended count too, for a switch
 * that restarts ends those of a whole rack.
 */
static bool
mass_silence(const struct refsrv *server)
{
	return server->num_suspect >= MASS_AGENTS_MIN &&
	       (uint64_t)server->num_suspect * 100 >= (uint64_t)server->num_living * MASS_PERCENT;
}

static void
life_timers(struct refsrv *server, struct agent *agent)
{
	const struct refsrv_config *config = &server->config;
	int64_t silent_ns = silence(server, agent);

	if (agent->overflowed) {
		TH_MARK(c33_agent_fetches_no_events);
		agent_bury(server, agent, "it does not fetch its events");
		return;
	}
	if (!agent->gone && silent_ns < config->suspect_ns) {
		agent_wake_at(server, agent, server->now_ns + config->suspect_ns - silent_ns);
		return;
	}
	if (agent->state != AGENT_SUSPECT) {
		event_log(server, EVENT_WARN, NULL, agent->info.node,
			"agent %s is suspect: no heartbeat for %" PRId64
			" ms; nothing new is read from it or by it",
			agent->info.node, silent_ns / 1000000);
		agent_set_state(server, agent, AGENT_SUSPECT);
		/* What it holds does not count for retention now. */
		model_dirty_agent(server, agent);
	}
	bool mass = mass_silence(server);
	int64_t patience_ns = mass ? config->dead_ns * (1 + MASS_HOLD_FACTOR) : config->dead_ns;
	int64_t gone_ns = agent->gone ? server->live_ns - agent->gone_live_ns : 0;
	if (silent_ns >= patience_ns) {
		agent_bury(server, agent, "no heartbeat of it has come for too long");
		return;
	}
	if (agent->gone && !mass && gone_ns >= config->gone_ns) {
		TH_MARK(agent_gone_for_good);
		agent_bury(server, agent, "its connection ended, and it did not come back");
		return;
	}
	int64_t left_ns = (silent_ns < config->dead_ns ? config->dead_ns : patience_ns) - silent_ns;
	if (agent->gone && !mass)
		left_ns = th_min_i64(left_ns, config->gone_ns - gone_ns);
	if (agent->gone && mass)
		TH_MARK(mass_expiry_is_held);
	/* A hold may end before, with the return of the others. */
	agent_wake_at(server, agent, server->now_ns + th_min_i64(left_ns, HOLD_LOOK_NS));
}

void
agent_timers(struct refsrv *server, struct agent *agent)
{
	TH_ASSERT(agent->state != AGENT_DEAD);
	if (agent->polling && server->now_ns >= agent->poll_deadline_ns)
		poll_answer(server, agent);
	if (agent->polling)
		agent_wake_at(server, agent, agent->poll_deadline_ns);
	pair_timers(server, agent);
	life_timers(server, agent);
}

/* ---- what requests were answered: a repeat gets the same ------------------------------------ */

bool
agent_remembered(struct agent *agent, uint64_t request_no, struct ctl_reply *ret_reply)
{
	const struct remembered *found = NULL;

	HASH_FIND(hh, agent->remembered_by_no, &request_no, sizeof(request_no), found);
	if (found == NULL)
		return false;
	ret_reply->kind = found->kind;
	ret_reply->code = found->code;
	if (found->text != NULL)
		memcpy(ret_reply->text, found->text, strlen(found->text) + 1);
	if (found->kind == CTL_OPEN || found->kind == CTL_REJOIN)
		ret_reply->u.open = found->open;
	if (found->kind == CTL_ATTACH)
		ret_reply->u.attach = found->attach;
	return true;
}

static void
forget_reply(struct agent *agent, struct remembered *entry)
{
	HASH_DELETE(hh, agent->remembered_by_no, entry);
	DL_DELETE(agent->remembered, entry);
	agent->num_remembered--;
	free(entry->text);
	free(entry);
}

static void
forget_oldest_reply(struct agent *agent)
{
	agent->forgotten_request_no =
		th_max_u64(agent->forgotten_request_no, agent->remembered->request_no);
	forget_reply(agent, agent->remembered);
}

void
agent_answered(struct agent *agent, uint64_t below)
{
	struct remembered *entry, *next;

	/* Requests overtake each other: an older word says nothing new. */
	if (below <= agent->answered_below)
		return;
	agent->answered_below = below;
	DL_FOREACH_SAFE(agent->remembered, entry, next)
	{
		if (entry->request_no < below)
			forget_reply(agent, entry);
	}
}

enum repeat
agent_repeat(const struct agent *agent, uint64_t request_no)
{
	if (request_no < agent->answered_below)
		return REPEAT_LATE;
	if (request_no > agent->forgotten_request_no)
		return REPEAT_NONE;
	return agent->answered_below == 0 ? REPEAT_LATE : REPEAT_UNKNOWN;
}

void
agent_remember(struct agent *agent, const struct ctl_reply *reply)
{
	struct remembered *entry = th_calloc(1, sizeof(*entry));

	entry->request_no = reply->request_no;
	entry->kind = reply->kind;
	entry->code = reply->code;
	if (reply->text[0] != '\0')
		entry->text = th_strdup(reply->text);
	if (reply->kind == CTL_OPEN || reply->kind == CTL_REJOIN)
		entry->open = reply->u.open;
	if (reply->kind == CTL_ATTACH)
		entry->attach = reply->u.attach;
	HASH_ADD(hh, agent->remembered_by_no, request_no, sizeof(entry->request_no), entry);
	DL_APPEND(agent->remembered, entry);
	if (++agent->num_remembered >
		(agent->answered_below == 0 ? REMEMBERED_UNSAID : REMEMBERED_MAX))
		forget_oldest_reply(agent);
}

void
agent_forget_replies(struct agent *agent)
{
	while (agent->remembered != NULL)
		forget_oldest_reply(agent);
	agent->forgotten_request_no = agent->answered_below = 0;
}
