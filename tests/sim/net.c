/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net - links between the processes, one for each direction, and what nng makes of them.
 *
 * A message takes a shortest time and a random more, is late on a slow link, and is lost on one
 * that is cut. A request gets one answer at most: the server's reply, or none when the time is over
 * or the connection ends. It may arrive twice (then one of the two replies is nobody's), and its
 * reply may be lost when it has been acted upon.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/check.h"
#include "tests/sim/sim.h"

static struct {
	int64_t cut_ns[ENDPOINTS_MAX][ENDPOINTS_MAX];
	int64_t slow_ns[ENDPOINTS_MAX][ENDPOINTS_MAX];
	uint32_t factor[ENDPOINTS_MAX][ENDPOINTS_MAX];
	int64_t last_ns[ENDPOINTS_MAX][ENDPOINTS_MAX][3]; /* of a channel, with options.fifo */
	uint64_t last_token;
} net;

void
net_start(void)
{
	memset(&net, 0, sizeof(net));
}

uint32_t
net_host(const struct host *host)
{
	return host->process.index;
}

uint32_t
net_srv(const struct srv *srv)
{
	return HOSTS_MAX + srv->process.index;
}

void
net_cut(uint32_t from, uint32_t to, int64_t until_ns)
{
	if (until_ns > net.cut_ns[from][to])
		net.cut_ns[from][to] = until_ns;
}

void
net_slow(uint32_t from, uint32_t to, int64_t until_ns, uint32_t factor)
{
	net.slow_ns[from][to] = until_ns;
	net.factor[from][to] = factor;
}

void
net_heal(void)
{
	for (uint32_t a = 0; a < ENDPOINTS_MAX; a++) {
		for (uint32_t b = 0; b < ENDPOINTS_MAX; b++) {
			net.cut_ns[a][b] = th_min_i64(net.cut_ns[a][b], world.now_ns);
			net.slow_ns[a][b] = th_min_i64(net.slow_ns[a][b], world.now_ns);
		}
	}
}

bool
net_is_cut(uint32_t from, uint32_t to)
{
	return world.now_ns < net.cut_ns[from][to];
}

int64_t
net_whole_since(const struct host *host, const struct srv *srv)
{
	uint32_t a = net_host(host), b = net_srv(srv);
	int64_t ns = th_max_i64(host->hung_up_ns, th_max_i64(net.cut_ns[a][b], net.cut_ns[b][a]));

	return th_max_i64(ns, th_max_i64(net.slow_ns[a][b], net.slow_ns[b][a]));
}

static int64_t
delay(enum stream stream, uint32_t from, uint32_t to)
{
	const struct options *options = &world.options;
	uint64_t draw = th_rng_u64(&world.rng[stream]);
	int64_t delay_ns = options->net_min_ns;

	if (net_is_cut(from, to))
		return NEVER;
	if (!world.calm && permille(stream, options->loss_permille))
		return NEVER;
	/* Exponential: the number of leading zeros, and a part of one. */
	for (; (draw & 1) != 0 && delay_ns < SEC; draw >>= 1)
		delay_ns += options->net_mean_ns;
	delay_ns += (int64_t)(draw >> 32) % (options->net_mean_ns + 1);
	if (world.now_ns < net.slow_ns[from][to])
		delay_ns *= net.factor[from][to];
	if (!world.calm && permille(stream, options->slow_permille))
		delay_ns += between(stream, 10 * MS, 5 * SEC);
	return delay_ns;
}

int64_t
net_delay(uint32_t from, uint32_t to)
{
	return delay(RNG_NET, from, to);
}

int64_t
net_delay_of_peer(uint32_t from, uint32_t to)
{
	return delay(RNG_PEER, from, to);
}

static int64_t
channel_due(uint32_t from, uint32_t to, enum agent_channel channel, int64_t delay_ns)
{
	int64_t *last = &net.last_ns[from][to][channel], due_ns = world.now_ns + delay_ns;

	if (world.options.fifo && due_ns <= *last)
		due_ns = *last + 1;
	*last = due_ns;
	return due_ns;
}

/* ---- requests -------------------------------------------------------------------------------- */

struct arrival { /* of a request at a server */
	struct task task;
	struct srv *srv;
	uint64_t token;
	struct ctl_request request;
	uint64_t more[]; /* legs of a beat, bytes of a manifest */
};

/* One for each channel, all begin and end together. */
static uint64_t
connection_of(const struct host *host, enum agent_channel channel)
{
	return host->connection * 4 + channel;
}

static void
arrive(struct task *task)
{
	struct arrival *arrival = (struct arrival *)task;

	srv_request(arrival->srv, arrival->token, &arrival->request);
}

static void
transmit(struct host *host, struct srv *srv, enum agent_channel channel,
	const struct ctl_request *request, uint64_t token, int64_t replay_ns)
{
	uint32_t from = net_host(host), to = net_srv(srv);
	int64_t delay_ns = net_delay(from, to);
	const void *more = NULL;
	size_t bytes = 0;

	if (delay_ns == NEVER)
		return;
	if (request->kind == CTL_BEAT) {
		more = request->u.beat.legs;
		bytes = request->u.beat.num_legs * sizeof(struct ctl_leg_progress);
	} else if (request->kind == CTL_MANIFEST_PUT) {
		more = request->u.manifest_put.data;
		bytes = request->u.manifest_put.data_bytes;
	} else if (request->kind == CTL_REJOIN) {
		more = request->u.rejoin.outcomes;
		bytes = request->u.rejoin.num_outcomes * sizeof(struct ctl_known_outcome);
	}
	struct arrival *arrival = task_new(sizeof(*arrival) + bytes, arrive, &srv->process);
	arrival->srv = srv;
	arrival->token = token;
	arrival->request = *request;
	arrival->request.connection = connection_of(host, channel);
	if (bytes > 0)
		memcpy(arrival->more, more, bytes);
	if (request->kind == CTL_BEAT)
		arrival->request.u.beat.legs = (const void *)arrival->more;
	else if (request->kind == CTL_MANIFEST_PUT)
		arrival->request.u.manifest_put.data = (const void *)arrival->more;
	else if (request->kind == CTL_REJOIN)
		arrival->request.u.rejoin.outcomes = (const void *)arrival->more;
	if (replay_ns > 0)
		task_in(&arrival->task, delay_ns + replay_ns);
	else
		task_at(&arrival->task, channel_due(from, to, channel, delay_ns));
}

void
net_request(struct host *host, enum agent_channel channel, const struct ctl_request *request,
	uint64_t tag, uint64_t handle)
{
	struct srv *srv = &world.servers[host->server];
	uint64_t token = ++net.last_token << 8 | host->process.index;
	bool twice = !world.calm && permille(RNG_NET, world.options.twice_permille);

	if (host->num_flights == FLIGHTS_MAX)
		sim_fail("sim", "host %u has %u requests without an answer", host->process.index,
			FLIGHTS_MAX);
	host->flights[host->num_flights++] = (struct flight){
		.tag = tag,
		.token = token,
		.core = tag != 0,
		.handle = handle,
		.kind = request->kind,
		.op_seq = request->kind == CTL_LIST ? request->u.list.op_seq : 0,
		.server = host->server,
		.timeout_ns = world.now_ns + 3 * SEC,
	};
	transmit(host, srv, channel, request, token, 0);
	/*
	 * The second one is answered as well, but nobody waits for that reply. Some come when all
	 * around them has changed.
	 */
	if (twice)
		transmit(host, srv, channel, request, ++net.last_token << 8 | host->process.index,
			percent(RNG_NET, 30) ? between(RNG_NET, 500 * MS, 15 * SEC) : 0);
}

/* ---- replies --------------------------------------------------------------------------------- */

struct delivery { /* of a reply, or of its absence, at an agent */
	struct task task;
	struct host *host;
	uint64_t token;
	bool none;
	struct ctl_reply reply;
	uint64_t more[]; /* events of a poll, blockers of a drain, what is listed */
};

static struct flight *
flight_find(struct host *host, uint64_t token)
{
	for (uint32_t i = 0; i < host->num_flights; i++) {
		if (host->flights[i].token == token)
			return &host->flights[i];
	}
	return NULL;
}

static void
land(struct host *host, struct flight *landing, const struct ctl_reply *reply, bool hung_up,
	const void *more)
{
	struct flight flight = *landing;

	*landing = host->flights[--host->num_flights];
	if (!flight.core) {
		host_answered(host, &flight, reply,
			reply != NULL && reply->kind == CTL_LIST ? more : NULL);
		return;
	}
	struct agent_event event = {
		.kind = reply == NULL ? AGENT_EV_NO_REPLY : AGENT_EV_REPLY,
		.u.reply = {.tag = flight.tag, .reply = reply, .hung_up = hung_up},
	};
	host_step(host, &event);
}

static void
deliver(struct task *task)
{
	struct delivery *delivery = (struct delivery *)task;
	struct flight *flight = flight_find(delivery->host, delivery->token);

	if (flight != NULL)
		land(delivery->host, flight, delivery->none ? NULL : &delivery->reply,
			delivery->none, delivery->more);
}

/* What a worker is told of versions is judged where it is said. */
static const struct listed *
look_at(struct srv *srv, const struct host *host, const struct flight *flight,
	const struct ctl_reply *reply, struct listed *listed)
{
	const struct handle *handle = host->handles;

	while (handle != NULL && handle->id != flight->handle)
		handle = handle->next;
	if (handle == NULL || (handle->worker == NULL && handle->observer == NULL) ||
		reply->unknown_agent)
		return NULL;
	uint32_t model = handle->observer != NULL ? observer_model(handle->observer)
						  : handle->worker->group->model;
	if (reply->kind == CTL_RESOLVE)
		check_resolved(model, reply->code, reply->u.resolve.version);
	if (reply->kind == CTL_RESOLVE || reply->code != 0)
		return NULL;
	check_list_given(srv, model, flight->op_seq != 0, &reply->u.list, listed);
	return listed;
}

void
net_reply(struct srv *srv, const struct refsrv_reply *reply)
{
	struct host *host = &world.hosts[reply->token & 0xff];
	const struct flight *flight = flight_find(host, reply->token);
	const struct ctl_reply *from = &reply->reply;
	int64_t delay_ns = net_delay(net_srv(srv), net_host(host));
	struct listed listed;
	const void *more = NULL;
	size_t bytes = 0;

	if (flight == NULL || delay_ns == NEVER)
		return;
	if (from->kind == CTL_LIST || from->kind == CTL_RESOLVE)
		more = look_at(srv, host, flight, from, &listed);
	if (from->kind == CTL_POLL && from->code == 0)
		check_events(srv, host, &from->u.poll);
	if (more != NULL) {
		bytes = sizeof(listed);
	} else if (from->kind == CTL_POLL && from->code == 0) {
		more = from->u.poll.events;
		bytes = from->u.poll.num_events * sizeof(struct ctl_event);
	} else if (from->kind == CTL_ADMIN && from->code == 0) {
		more = from->u.admin.blockers;
		bytes = from->u.admin.num_told * sizeof(struct ctl_blocker);
	}
	struct delivery *delivery = task_new(sizeof(*delivery) + bytes, deliver, &host->process);
	delivery->host = host;
	delivery->token = reply->token;
	delivery->reply = *from;
	if (bytes > 0)
		memcpy(delivery->more, more, bytes);
	if (from->kind == CTL_POLL)
		delivery->reply.u.poll.events = (const void *)delivery->more;
	else if (from->kind == CTL_ADMIN)
		delivery->reply.u.admin.blockers = (const void *)delivery->more;
	task_at(&delivery->task, channel_due(net_srv(srv), net_host(host),
					 from->kind == CTL_POLL   ? AGENT_CHANNEL_POLL
					 : from->kind == CTL_BEAT ? AGENT_CHANNEL_BEAT
								  : AGENT_CHANNEL_CONTROL,
					 delay_ns));
}

void
net_timeouts(struct host *host)
{
	for (uint32_t i = 0; i < host->num_flights;) {
		struct flight *flight = &host->flights[i];
		if (flight->timeout_ns > world.now_ns) {
			i++;
			continue;
		}
		if (world.servers[flight->server].process.alive)
			srv_forget(&world.servers[flight->server], flight->token);
		land(host, flight, NULL, false, NULL);
	}
}

int64_t
net_next_timeout(const struct host *host)
{
	int64_t next_ns = NEVER;

	for (uint32_t i = 0; i < host->num_flights; i++)
		next_ns = th_min_i64(next_ns, host->flights[i].timeout_ns);
	return next_ns;
}

struct ending { /* of a connection, as a server sees it */
	struct task task;
	uint64_t connection;
};

static void
gone(struct task *task)
{
	srv_gone(&world.servers[task->process->index], ((struct ending *)task)->connection);
}

/* The server gets to know, unless nothing reaches it; then the beats that do not come tell it. */
static void
end_connection(struct host *host, struct srv *srv)
{
	for (uint32_t i = 0; i <= AGENT_CHANNEL_BEAT && srv->process.alive; i++) {
		int64_t delay_ns = net_delay(net_host(host), net_srv(srv));
		if (delay_ns == NEVER)
			continue;
		struct ending *ending = task_new(sizeof(*ending), gone, &srv->process);
		ending->connection = connection_of(host, i);
		task_in(&ending->task, delay_ns);
	}
	host->connection = ++world.last_connection;
	host->hung_up_ns = world.now_ns;
}

void
net_hang_up(struct host *host, struct srv *srv)
{
	for (uint32_t i = 0; i < host->num_flights; i++) {
		const struct flight *flight = &host->flights[i];
		int64_t delay_ns = net_delay(net_srv(srv), net_host(host));
		if (flight->server != srv->process.index || delay_ns == NEVER)
			continue;
		struct delivery *delivery = task_new(sizeof(*delivery), deliver, &host->process);
		delivery->host = host;
		delivery->token = flight->token;
		delivery->none = true;
		task_in(&delivery->task, delay_ns);
	}
	if (host->server == srv->process.index)
		end_connection(host, srv);
}

void
net_dial(struct host *host, uint32_t server)
{
	for (uint32_t i = 0; i < host->num_flights; i++) {
		struct delivery *delivery = task_new(sizeof(*delivery), deliver, &host->process);
		delivery->host = host;
		delivery->token = host->flights[i].token;
		delivery->none = true;
		task_in(&delivery->task, US);
	}
	end_connection(host, &world.servers[host->server]);
	host->server = server;
	host->dialed_ns = world.now_ns;
	TRACE("host # tries server #", host->process.index, server);
}

void
net_forget(struct host *host)
{
	for (uint32_t i = 0; i < host->num_flights; i++) {
		struct srv *srv = &world.servers[host->flights[i].server];
		if (srv->process.alive && !srv->process.paused)
			srv_forget(srv, host->flights[i].token);
	}
	host->num_flights = 0;
	end_connection(host, &world.servers[host->server]);
}
