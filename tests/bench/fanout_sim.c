/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fanout_sim - how long many readers of one publisher take, in virtual time.
 *
 *   fanout_sim                       the table of README.md; fails when a row is over its limit
 *   fanout_sim READERS CHUNKS SPREAD CHUNK_US RTT_US     one row
 *
 * The real core of the reference server decides who reads from whom. Its agents are modelled here:
 * a link sends one chunk in a chunk time, and what several readers ask for at once shares it
 * evenly; what has arrived is sent on one round trip later, in order; a message takes half a round
 * trip, a connection two. Agents beat once a second, so that is how old the server's idea of their
 * progress is. Readers call at once or spread evenly over some chunk times.
 *
 * Times are in chunk times from the first call to the last reader's outcome. Beside them: a chain,
 * the best tree whose nodes have d readers each, the better of the two, or what the last one to
 * come needs alone, if that is more; and what RDMC's binomial pipeline would take, in which each
 * chunk has its own way.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "server/core/model/blob_hash.h"
#include "server/core/refsrv.h"

#define SECOND_NS INT64_C(1000000000)
#define CHUNK_BYTES (UINT64_C(4) << 20)
#define LIMIT 1.05
/* Who comes when a chain is well under way: that it should have been a tree is known then only. */
#define LATE_LIMIT 1.2

enum happening { REQUEST, EVENT, CALL, BEAT, CONNECTED, SHOWN, CHUNK };

struct happens {
	int64_t at_ns;
	uint64_t order;
	enum happening what;
	uint32_t host;
	uint64_t number; /* of a leg, or how often its chunk was put off */
	union {
		struct ctl_request request;
		struct ctl_event event;
	} u;
	struct happens *next;
};

struct leg {
	uint64_t number;
	uint32_t from, to;
	bool connected, sending;
	double left, rate; /* of the chunk: what is not there yet, and how much comes in 1 ns */
	int64_t since_ns;
	uint64_t turn; /* its chunk's end was put off so often */
	struct leg *next;
};

struct host {
	uint64_t request_no, attach_no, last_event, sid;
	uint32_t prefix, shown; /* chunks it has, and those that others may have */
	uint64_t sent;          /* chunks */
	struct leg *in, *out;
	int64_t called_ns, ended_ns;
};

struct sim {
	struct refsrv *server;
	int64_t now_ns, tick_ns, chunk_ns, rtt_ns;
	uint32_t num_hosts, chunks;
	struct host *hosts;
	struct happens **heap;
	uint32_t num_heap, heap_max;
	uint64_t orders, tokens;
	uint32_t moves, running;
	int code; /* the last reply's */
	struct ctl_reply reply;
};

/* ---- what happens later: a heap -------------------------------------------------------------- */

static bool
before(const struct happens *a, const struct happens *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static struct happens *
later(struct sim *sim, int64_t delay_ns, enum happening what, uint32_t host)
{
	struct happens *it = th_calloc(1, sizeof(*it));

	if (sim->num_heap == sim->heap_max) {
		sim->heap_max = sim->heap_max == 0 ? 1024 : 2 * sim->heap_max;
		sim->heap = th_realloc(sim->heap, sim->heap_max, sizeof(*sim->heap));
	}
	it->at_ns = sim->now_ns + delay_ns;
	it->order = ++sim->orders;
	it->what = what;
	it->host = host;
	uint32_t at = sim->num_heap++;
	while (at > 0 && before(it, sim->heap[(at - 1) / 2])) {
		sim->heap[at] = sim->heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	sim->heap[at] = it;
	return it;
}

static struct happens *
soonest(struct sim *sim)
{
	struct happens *first = sim->heap[0], *last = sim->heap[--sim->num_heap];
	uint32_t at = 0;

	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child >= sim->num_heap)
			break;
		if (child + 1 < sim->num_heap && before(sim->heap[child + 1], sim->heap[child]))
			child++;
		if (!before(sim->heap[child], last))
			break;
		sim->heap[at] = sim->heap[child];
		at = child;
	}
	sim->heap[at] = last;
	return first;
}

/* ---- the network ----------------------------------------------------------------------------- */

static void
set_rate(struct sim *sim, struct leg *leg, double rate)
{
	leg->left -= leg->rate * (double)(sim->now_ns - leg->since_ns);
	leg->since_ns = sim->now_ns;
	leg->rate = rate;
	leg->turn++;
	if (rate <= 0)
		return;
	double ns = leg->left / rate;
	struct happens *it = later(sim, ns < 0 ? 0 : (int64_t)(ns + 0.5), CHUNK, leg->to);
	it->number = leg->turn;
}

/* Something has begun or ended here: the link is shared anew. */
static void
share(struct sim *sim, struct host *host)
{
	uint32_t sending = 0;

	for (struct leg *leg = host->out; leg != NULL; leg = leg->next) {
		leg->sending = leg->connected && sim->hosts[leg->to].prefix < host->shown;
		sending += leg->sending;
	}
	for (struct leg *leg = host->out; leg != NULL; leg = leg->next)
		set_rate(sim, leg, leg->sending ? 1.0 / ((double)sim->chunk_ns * sending) : 0);
}

static void
drop(struct sim *sim, struct leg *leg)
{
	struct host *from = &sim->hosts[leg->from];
	struct leg **at = &from->out;

	while (*at != leg)
		at = &(*at)->next;
	*at = leg->next;
	sim->hosts[leg->to].in = NULL;
	free(leg);
	share(sim, from);
}

/* ---- the server and its agents --------------------------------------------------------------- */

static void
answers(struct sim *sim, const struct refsrv_out *out, uint64_t asked)
{
	sim->tick_ns = out->next_ns;
	for (uint32_t i = 0; i < out->num_replies; i++) {
		const struct refsrv_reply *reply = &out->replies[i];
		uint32_t index = (uint32_t)(reply->token & 0xffffffu);
		if (reply->reply.kind != CTL_POLL) {
			if (reply->token == asked)
				sim->reply = reply->reply;
			continue;
		}
		for (uint32_t j = 0; j < reply->reply.u.poll.num_events; j++) {
			const struct ctl_event *event = &reply->reply.u.poll.events[j];
			later(sim, sim->rtt_ns / 2, EVENT, index)->u.event = *event;
			sim->hosts[index].last_event = event->number;
		}
		struct happens *again = later(sim, sim->rtt_ns, REQUEST, index);
		again->u.request.kind = CTL_POLL;
		again->u.request.u.poll.last_event = sim->hosts[index].last_event;
	}
}

static void
ask(struct sim *sim, uint32_t index, struct ctl_request *request)
{
	struct host *host = &sim->hosts[index];
	struct refsrv_out out;
	uint64_t token = ++sim->tokens << 24 | index;

	request->agent_inc = index + 1;
	request->request_no = ++host->request_no;
	request->attach_no = host->attach_no;
	request->answered_below = request->request_no;
	refsrv_step(sim->server, sim->now_ns, token, request, &out);
	answers(sim, &out, token);
	if (request->kind != CTL_POLL && sim->reply.code != 0) {
		fprintf(stderr, "fanout_sim: request %d of host %u: %s\n", (int)request->kind,
			index, sim->reply.text);
		exit(1);
	}
}

static void
begin(struct sim *sim, uint32_t index, const struct ctl_grant *grant)
{
	struct leg *leg = th_calloc(1, sizeof(*leg));
	uint32_t from = 0;

	while (sim->hosts[from].sid != grant->source_sid)
		TH_ASSERT(++from < sim->num_hosts);
	leg->number = grant->leg;
	leg->from = from;
	leg->to = index;
	leg->left = 1;
	leg->since_ns = sim->now_ns;
	leg->next = sim->hosts[from].out;
	sim->hosts[from].out = leg;
	sim->hosts[index].in = leg;
	later(sim, 2 * sim->rtt_ns, CONNECTED, index)->number = leg->number;
}

static void
send_end(struct sim *sim, uint32_t index, uint64_t leg, int code)
{
	struct happens *it = later(sim, sim->rtt_ns / 2, REQUEST, index);

	it->u.request.kind = CTL_LEG_END;
	it->u.request.u.leg_end = (struct ctl_leg_end){
		.leg = leg,
		.code = code,
		.source_failed = code != 0,
		.chunks_verified = sim->hosts[index].prefix,
	};
}

static void
take(struct sim *sim, uint32_t index, const struct ctl_event *event)
{
	struct host *host = &sim->hosts[index];
	struct happens *it;

	switch ((int)event->kind) {
	case CTL_EV_PLAN:
		it = later(sim, sim->rtt_ns / 2, REQUEST, index);
		it->u.request.kind = CTL_PREPARED;
		it->u.request.u.prepared.sid = event->u.plan.sid;
		it->u.request.u.prepared.op_seq = event->u.plan.op_seq;
		break;
	case CTL_EV_GO:
		begin(sim, index, &event->u.go.grant);
		break;
	case CTL_EV_REROUTE:
		sim->moves++;
		if (host->in != NULL) { /* what was on its way is lost */
			send_end(sim, index, host->in->number, TH_E_CANCELLED);
			drop(sim, host->in);
		}
		begin(sim, index, &event->u.reroute.grant);
		break;
	case CTL_EV_OUTCOME:
		TH_ASSERT(event->u.outcome.code == 0);
		if (host->called_ns == 0)
			break;
		host->ended_ns = sim->now_ns;
		sim->running--;
		break;
	default:
		break;
	}
}

static void
beat(struct sim *sim, uint32_t index)
{
	const struct host *host = &sim->hosts[index];
	struct ctl_leg_progress progress;
	struct ctl_request request = {.kind = CTL_BEAT};

	if (host->in != NULL) {
		progress = (struct ctl_leg_progress){
			.leg = host->in->number, .chunks_verified = host->prefix};
		request.u.beat = (struct ctl_beat){1, &progress};
	}
	ask(sim, index, &request);
	later(sim, SECOND_NS, BEAT, index);
}

static void
chunk_arrived(struct sim *sim, struct leg *leg)
{
	struct host *to = &sim->hosts[leg->to], *from = &sim->hosts[leg->from];

	to->prefix++;
	from->sent++;
	leg->left = 1;
	leg->rate = 0;
	leg->since_ns = sim->now_ns;
	later(sim, sim->rtt_ns, SHOWN, leg->to);
	if (to->prefix < sim->chunks) {
		share(sim, from);
		return;
	}
	send_end(sim, leg->to, leg->number, 0);
	drop(sim, leg);
}

static void
operate(struct sim *sim, uint32_t index, enum ctl_op_kind kind)
{
	struct ctl_request request = {.kind = CTL_OP};

	request.u.op.sid = sim->hosts[index].sid;
	request.u.op.op_seq = 1;
	request.u.op.kind = kind;
	request.u.op.timeout_ns = 3600 * SECOND_NS;
	memcpy(request.u.op.spec, "1", 2);
	ask(sim, index, &request);
}

/* The publisher makes no digests: what arrives counts as it is. */
static void
vouch(struct sim *sim, uint32_t index)
{
	struct ctl_request request = {.kind = CTL_CONTENT};

	request.u.content.sid = sim->hosts[index].sid;
	request.u.content.gen = 1;
	ask(sim, index, &request);
}

static void
step(struct sim *sim)
{
	struct happens *it = soonest(sim);
	struct host *host = &sim->hosts[it->host];
	struct leg *leg = host->in;

	while (sim->tick_ns <= it->at_ns) {
		struct refsrv_out out;
		sim->now_ns = sim->tick_ns > sim->now_ns ? sim->tick_ns : sim->now_ns;
		refsrv_tick(sim->server, sim->now_ns, &out);
		answers(sim, &out, 0);
	}
	sim->now_ns = it->at_ns;
	switch (it->what) {
	case REQUEST:
		ask(sim, it->host, &it->u.request);
		break;
	case EVENT:
		take(sim, it->host, &it->u.event);
		break;
	case CALL:
		host->called_ns = sim->now_ns;
		operate(sim, it->host, CTL_OP_REPLICATE);
		break;
	case BEAT:
		beat(sim, it->host);
		break;
	case CONNECTED:
		if (leg != NULL && leg->number == it->number) {
			leg->connected = true;
			share(sim, &sim->hosts[leg->from]);
		}
		break;
	case SHOWN:
		host->shown++;
		share(sim, host);
		break;
	case CHUNK:
		if (leg != NULL && leg->turn == it->number && leg->sending)
			chunk_arrived(sim, leg);
		break;
	}
	free(it);
}

/* ---- one world ------------------------------------------------------------------------------- */

static void
join(struct sim *sim, uint32_t index)
{
	static const uint8_t manifest[] = "the same of all";
	struct th_hash key = hash_bytes(manifest, sizeof(manifest));
	struct ctl_request request = {.kind = CTL_ATTACH};
	struct ctl_attach *attach = &request.u.attach;

	snprintf(attach->node, sizeof(attach->node), "host%u", index);
	snprintf(attach->datacenter, sizeof(attach->datacenter), "dc");
	snprintf(attach->data_address, sizeof(attach->data_address), "10.0.0.1:%u", index + 1);
	ask(sim, index, &request);
	sim->hosts[index].attach_no = sim->reply.u.attach.attach_no;
	request = (struct ctl_request){.kind = CTL_POLL};
	ask(sim, index, &request);
	if (index == 0) {
		request = (struct ctl_request){.kind = CTL_MANIFEST_PUT};
		request.u.manifest_put = (struct ctl_blob_part){
			.key = key,
			.total_bytes = sizeof(manifest),
			.data = manifest,
			.data_bytes = sizeof(manifest),
		};
		ask(sim, index, &request);
	}
	request = (struct ctl_request){.kind = CTL_OPEN};
	memcpy(request.u.open.model, "m", 2);
	snprintf(request.u.open.replica, sizeof(request.u.open.replica), "r%u", index);
	request.u.open.num_shards = 1;
	ask(sim, index, &request);
	sim->hosts[index].sid = sim->reply.u.open.sid;
	request = (struct ctl_request){.kind = CTL_REGISTER};
	request.u.reg = (struct ctl_register){
		.sid = sim->hosts[index].sid,
		.layout = key,
		.manifest = key,
		.bytes = sim->chunks * CHUNK_BYTES,
		.num_chunks = sim->chunks,
	};
	ask(sim, index, &request);
	later(sim, (int64_t)index * SECOND_NS / sim->num_hosts, BEAT, index);
}

struct row {
	uint32_t readers, chunks, spread;
	int64_t chunk_ns, rtt_ns;
	double limit; /* of last/best */
};

struct result {
	double last, mean,
		sent; /* mean: of the readers' own times; sent: shards, by the publisher */
	uint32_t moves;
};

static struct result
play(const struct row *row)
{
	struct sim sim = {
		.now_ns = 1000 * SECOND_NS,
		.chunk_ns = row->chunk_ns,
		.rtt_ns = row->rtt_ns,
		.num_hosts = row->readers + 1,
		.chunks = row->chunks,
		.running = row->readers,
	};
	struct result result = {0};
	struct refsrv_config config;

	refsrv_config_default(&config);
	config.server_inc = 1;
	sim.server = refsrv_new(&config, sim.now_ns);
	TH_ASSERT(sim.server != NULL);
	sim.tick_ns = sim.now_ns;
	sim.hosts = th_calloc(sim.num_hosts, sizeof(*sim.hosts));
	for (uint32_t i = 0; i < sim.num_hosts; i++)
		join(&sim, i);
	sim.hosts[0].prefix = sim.hosts[0].shown = sim.chunks;
	operate(&sim, 0, CTL_OP_PUBLISH);
	vouch(&sim, 0);
	int64_t begin_ns = sim.now_ns + 3 * SECOND_NS;
	for (uint32_t i = 1; i <= row->readers; i++)
		later(&sim,
			begin_ns - sim.now_ns +
				(int64_t)(i - 1) * row->spread * row->chunk_ns / row->readers,
			CALL, i);
	while (sim.running > 0)
		step(&sim);
	for (uint32_t i = 1; i <= row->readers; i++) {
		const struct host *host = &sim.hosts[i];
		double end = (double)(host->ended_ns - begin_ns) / (double)row->chunk_ns;
		result.last = end > result.last ? end : result.last;
		result.mean += (double)(host->ended_ns - host->called_ns) / (double)row->chunk_ns /
			       row->readers;
	}
	result.moves = sim.moves;
	result.sent = (double)sim.hosts[0].sent / row->chunks;
	for (uint32_t i = 0; i < sim.num_hosts; i++)
		free(sim.hosts[i].in);
	while (sim.num_heap > 0)
		free(soonest(&sim));
	free(sim.heap);
	free(sim.hosts);
	refsrv_free(sim.server);
	return result;
}

/* Levels below the root that so many readers need, d to each. */
static uint32_t
depth_of(uint32_t readers, uint32_t d)
{
	uint64_t level = 1, all = 0;
	uint32_t depth = 0;

	while (all < readers) {
		level *= d;
		all += level;
		depth++;
	}
	return depth;
}

/* Prints one row; returns whether it is within the limit. */
static bool
show(const struct row *row)
{
	struct result result = play(row);
	uint32_t chain = row->chunks + row->readers - 1, tree = UINT32_MAX, rdmc = row->chunks;

	for (uint32_t d = 2; d <= row->readers; d++) {
		uint32_t time = d * (row->chunks + depth_of(row->readers, d));
		tree = time < tree ? time : tree;
	}
	for (uint32_t n = row->readers; n > 1; n >>= 1)
		rdmc++;
	uint32_t best = chain < tree ? chain : tree;
	if (best < row->spread + row->chunks)
		best = row->spread + row->chunks;
	printf("%7u %6u %6u %8.1f %6u %6u %6u %7.3f %6u %8.1f %6u %9.2f\n", row->readers,
		row->chunks, row->spread, result.last, chain, tree, best, result.last / best, rdmc,
		result.mean, result.moves, result.sent);
	return result.last <= row->limit * best;
}

int
main(int argc, char **argv)
{
	/* 4 MiB at 100 MB/s, hosts 0.2 ms from each other. */
	const int64_t chunk_ns = 41943040, rtt_ns = 200000;
	const struct row rows[] = {
		{8, 128, 0, chunk_ns, rtt_ns, LIMIT},
		{18, 128, 0, chunk_ns, rtt_ns, LIMIT},
		{64, 128, 0, chunk_ns, rtt_ns, LIMIT},
		{256, 128, 0, chunk_ns, rtt_ns, LIMIT},
		{64, 128, 16, chunk_ns, rtt_ns, LIMIT},
		{256, 128, 16, chunk_ns, rtt_ns, LIMIT},
		{64, 128, 64, chunk_ns, rtt_ns, LIMIT},
		{256, 128, 64, chunk_ns, rtt_ns, LATE_LIMIT},
		{256, 128, 256, chunk_ns, rtt_ns, LIMIT},
		{1024, 128, 0, chunk_ns, rtt_ns, LIMIT},
		{256, 16, 0, chunk_ns, rtt_ns, LIMIT},
		{256, 1024, 0, chunk_ns, rtt_ns, LIMIT},
	};
	bool good = true;

	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("%7s %6s %6s %8s %6s %6s %6s %7s %6s %8s %6s %9s\n", "readers", "chunks", "spread",
		"last", "chain", "tree", "best", "last/", "RDMC", "mean of", "moves", "publisher");
	printf("%7s %6s %6s %8s %6s %6s %6s %7s %6s %8s %6s %9s\n", "", "", "", "", "", "", "",
		"best", "", "a reader", "", "sent");
	if (argc == 6) {
		const struct row row = {
			.readers = (uint32_t)strtoul(argv[1], NULL, 10),
			.chunks = (uint32_t)strtoul(argv[2], NULL, 10),
			.spread = (uint32_t)strtoul(argv[3], NULL, 10),
			.chunk_ns = strtoll(argv[4], NULL, 10) * 1000,
			.rtt_ns = strtoll(argv[5], NULL, 10) * 1000,
		};
		if (row.readers == 0 || row.readers > 4000 || row.chunks == 0 ||
			row.chunk_ns <= 0 || row.rtt_ns < 0) {
			fprintf(stderr, "fanout_sim: 1 to 4000 readers, 1 chunk or more\n");
			return 2;
		}
		show(&row);
		return 0;
	}
	for (size_t i = 0; i < TH_ARRAY_LEN(rows); i++) {
		if (!show(&rows[i])) {
			fprintf(stderr,
				"fanout_sim: %u readers of %u chunks take more than %.2f "
				"of the best\n",
				rows[i].readers, rows[i].chunks, rows[i].limit);
			good = false;
		}
	}
	return good ? 0 : 1;
}
