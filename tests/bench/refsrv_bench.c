/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv_bench - what a request costs at the server, and what a shard that only waits holds there,
 * when there are many of them.
 *
 *   refsrv_bench [shards ...]        (1000 10000 100000)
 *
 * Drives the core alone, in virtual time and without a network: hosts with 8 shards, one group of 8
 * each. Nearly all of them hold a version and wait for the next: they beat every second, keep a
 * POLL standing, and call update, which finds what they have, every other second. Some groups
 * publish, unpublish and replicate, some leave and join again, and some hosts watch. Two worlds:
 * jobs of 64 groups each, and one job of all groups.
 *
 * Prints means of a request's time in the core alone, the least of the rounds, and how the last
 * size compares with the first. Most of a difference is memory that is in no cache any more. A
 * measurement, not a test.
 */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "server/core/model/blob_hash.h"
#include "server/core/refsrv.h"

#define SECOND_NS INT64_C(1000000000)
#define SHARDS 8u      /* of a host, and of a group */
#define JOB_GROUPS 64u /* of a job, where there are several */
#define SIZES_MAX 8u   /* sizes in one run */
#define ROUNDS 3u      /* of two virtual seconds */
#define CYCLES 32u     /* in a round: of each thing that is not idle */
#define READERS 4u     /* groups that replicate what a cycle has published */
#define WATCHERS 32u   /* hosts that watch their model all the time */
#define POLL_BIT (UINT64_C(1) << 63)

enum what {
	ATTACH,
	OPEN,
	REGISTER,
	BEAT,
	POLL,
	IDLE_UPDATE,
	PUBLISH,
	UPDATE,
	PREPARED,
	LEG_END,
	CONTENT,
	UNPUBLISH,
	DRAIN_DONE,
	WATCH,
	RESOLVE,
	CLOSE,
	TICK,
	FORGET,
	WHATS
};

static const char *const names[WHATS] = {
	[ATTACH] = "attach",
	[OPEN] = "open",
	[REGISTER] = "register",
	[BEAT] = "beat",
	[POLL] = "poll",
	[IDLE_UPDATE] = "update, nothing new",
	[PUBLISH] = "publish",
	[UPDATE] = "replicate",
	[PREPARED] = "prepared",
	[LEG_END] = "leg end",
	[CONTENT] = "content",
	[UNPUBLISH] = "unpublish",
	[DRAIN_DONE] = "drained",
	[WATCH] = "watch",
	[RESOLVE] = "resolve",
	[CLOSE] = "close",
	[TICK] = "tick",
	[FORGET] = "connection lost",
};

struct host { /* an agent with one group */
	uint64_t request_no, attach_no, last_event, poll_token;
	uint64_t sids[SHARDS], seq; /* seq: of the group's last operation */
	uint64_t held;              /* its version */
};

struct todo { /* an event that its agent has to answer */
	uint32_t host;
	struct ctl_event event;
};

struct bench {
	struct refsrv *server;
	int64_t now_ns, next_ns;
	uint64_t tokens;
	struct host *hosts;
	uint32_t num_hosts, job_groups;
	uint64_t *versions; /* the last of each job */
	struct todo *todos;
	uint32_t todo_first, todo_end, todos_max;
	struct th_hash manifest;
	int last_code;
	struct ctl_event last_outcome;
	int64_t begin_ns;
	long interrupted;
	int64_t spent_ns[WHATS];
	uint64_t count[WHATS];
};

struct result {
	double mean_ns[WHATS];
	double decisions;
	double bytes;
};

/* ---- time ----------------------------------------------------------------------------------- */

static long
interruptions(void)
{
	struct rusage usage;

	TH_ASSERT(getrusage(RUSAGE_THREAD, &usage) == 0);
	return usage.ru_nivcsw;
}

static void
begin(struct bench *b)
{
	b->interrupted = interruptions();
	b->begin_ns = th_now_ns();
}

/* A call in which others had the processor says nothing of the core, and does not count. */
static void
end(struct bench *b, enum what what)
{
	int64_t end_ns = th_now_ns();

	if (interruptions() != b->interrupted)
		return;
	b->spent_ns[what] += end_ns - b->begin_ns;
	b->count[what]++;
}

/* ---- one request ---------------------------------------------------------------------------- */

static struct todo *
add_todo(struct bench *b)
{
	if (b->todo_first == b->todo_end)
		b->todo_first = b->todo_end = 0;
	if (b->todo_end == b->todos_max) {
		b->todos_max = b->todos_max == 0 ? 1024 : b->todos_max * 2;
		b->todos = th_realloc(b->todos, b->todos_max, sizeof(*b->todos));
	}
	return &b->todos[b->todo_end++];
}

static void
take_poll(struct bench *b, uint32_t index, const struct ctl_reply *reply)
{
	struct host *host = &b->hosts[index];

	TH_ASSERT(reply->code == 0);
	for (uint32_t i = 0; i < reply->u.poll.num_events; i++) {
		struct todo *todo = add_todo(b);
		todo->host = index;
		todo->event = reply->u.poll.events[i];
		host->last_event = todo->event.number;
	}
	host->poll_token = 0; /* polls again at the next opportunity */
	struct todo *again = add_todo(b);
	again->host = index;
	again->event.kind = 0;
}

static void
take_out(struct bench *b, const struct refsrv_out *out, uint64_t token, struct ctl_reply *ret_reply)
{
	b->next_ns = out->next_ns;
	for (uint32_t i = 0; i < out->num_replies; i++) {
		const struct refsrv_reply *one = &out->replies[i];
		if (one->token == token && ret_reply != NULL)
			*ret_reply = one->reply;
		else if (one->token & POLL_BIT)
			take_poll(b, (uint32_t)(one->token & 0xffffffu), &one->reply);
	}
}

static struct ctl_reply
ask(struct bench *b, enum what what, uint32_t index, struct ctl_request *request)
{
	struct ctl_reply reply = {.code = 1};
	struct refsrv_out out;
	uint64_t token = ++b->tokens << 24 | index;

	if (request->kind == CTL_POLL) {
		token |= POLL_BIT;
		b->hosts[index].poll_token = token;
	}
	request->agent_inc = index + 1;
	request->request_no = ++b->hosts[index].request_no;
	request->attach_no = b->hosts[index].attach_no;
	request->answered_below = request->request_no;
	begin(b);
	refsrv_step(b->server, b->now_ns, token, request, &out);
	end(b, what);
	take_out(b, &out, token, request->kind == CTL_POLL ? NULL : &reply);
	if (request->kind == CTL_ATTACH && reply.code == 0)
		b->hosts[index].attach_no = reply.u.attach.attach_no;
	return reply;
}

static void
ask_well(struct bench *b, enum what what, uint32_t index, struct ctl_request *request)
{
	struct ctl_reply reply = ask(b, what, index, request);

	if (reply.code != 0) {
		fprintf(stderr, "refsrv_bench: %s fails: %d %s\n", names[what], reply.code,
			reply.text);
		exit(1);
	}
}

static void
poll_again(struct bench *b, uint32_t index)
{
	struct ctl_request request = {.kind = CTL_POLL};

	if (b->hosts[index].poll_token != 0)
		return;
	request.u.poll.last_event = b->hosts[index].last_event;
	ask(b, POLL, index, &request);
}

static void
answer(struct bench *b, uint32_t index, const struct ctl_event *event)
{
	struct ctl_request request = {.kind = 0};

	switch ((int)event->kind) {
	case 0:
		poll_again(b, index);
		break;
	case CTL_EV_PLAN:
		request.kind = CTL_PREPARED;
		request.u.prepared.sid = event->u.plan.sid;
		request.u.prepared.op_seq = event->u.plan.op_seq;
		ask_well(b, PREPARED, index, &request);
		break;
	case CTL_EV_GO:
		request.kind = CTL_LEG_END;
		request.u.leg_end.leg = event->u.go.grant.leg;
		request.u.leg_end.chunks_verified = 1;
		ask_well(b, LEG_END, index, &request);
		break;
	case CTL_EV_DRAIN:
		request.kind = CTL_DRAIN_DONE;
		request.u.drain_done.sid = event->u.drain.sid;
		request.u.drain_done.gen = event->u.drain.gen;
		request.u.drain_done.drain_no = event->u.drain.drain_no;
		ask_well(b, DRAIN_DONE, index, &request);
		break;
	case CTL_EV_OUTCOME:
		b->last_outcome = *event;
		break;
	default:
		break;
	}
}

/* Until no agent has anything to say. */
static void
pump(struct bench *b)
{
	while (b->todo_first < b->todo_end) {
		struct todo todo = b->todos[b->todo_first++];
		answer(b, todo.host, &todo.event);
	}
}

/* Time passes; the core is called when it wants to be. */
static void
sleep_until(struct bench *b, int64_t at_ns)
{
	struct refsrv_out out;

	while (b->next_ns <= at_ns) {
		b->now_ns = b->next_ns > b->now_ns ? b->next_ns : b->now_ns;
		begin(b);
		refsrv_tick(b->server, b->now_ns, &out);
		end(b, TICK);
		take_out(b, &out, 0, NULL);
		pump(b);
	}
	b->now_ns = at_ns;
}

/* ---- what hosts and groups do --------------------------------------------------------------- */

static uint32_t
job_of(const struct bench *b, uint32_t index)
{
	return index / b->job_groups;
}

static void
model_name(const struct bench *b, uint32_t index, char *buffer, size_t bytes)
{
	snprintf(buffer, bytes, "model-of-job-%u", job_of(b, index));
}

static void
attach(struct bench *b, uint32_t index)
{
	struct ctl_request request = {.kind = CTL_ATTACH};
	struct ctl_attach *attach = &request.u.attach;

	snprintf(attach->node, sizeof(attach->node), "host-%u.example.net", index);
	snprintf(attach->datacenter, sizeof(attach->datacenter), "dc1");
	snprintf(attach->data_address, sizeof(attach->data_address), "10.%u.%u.%u:7000",
		index >> 16, index >> 8 & 255, index & 255);
	ask_well(b, ATTACH, index, &request);
	poll_again(b, index);
	pump(b);
}

static void
beat(struct bench *b, uint32_t index)
{
	struct ctl_request request = {.kind = CTL_BEAT};

	ask_well(b, BEAT, index, &request);
}

static void
watch(struct bench *b, uint32_t index, bool stop)
{
	struct ctl_request request = {.kind = CTL_WATCH};

	model_name(b, index, request.u.watch.model, sizeof(request.u.watch.model));
	request.u.watch.stop = stop;
	ask_well(b, WATCH, index, &request);
}

static void
resolve(struct bench *b, uint32_t index)
{
	struct ctl_request request = {.kind = CTL_RESOLVE};

	model_name(b, index, request.u.resolve.model, sizeof(request.u.resolve.model));
	memcpy(request.u.resolve.spec, "latest", 7);
	ask_well(b, RESOLVE, index, &request);
}

static void
put_manifest(struct bench *b)
{
	static const uint8_t data[] = "a manifest that all shards share";
	struct ctl_request request = {.kind = CTL_MANIFEST_PUT};

	b->manifest = hash_bytes(data, sizeof(data));
	request.u.manifest_put = (struct ctl_blob_part){
		.key = b->manifest,
		.total_bytes = sizeof(data),
		.data = data,
		.data_bytes = sizeof(data),
	};
	ask_well(b, REGISTER, 0, &request);
}

static void
join(struct bench *b, uint32_t index)
{
	struct host *host = &b->hosts[index];

	host->seq = 0;
	for (uint32_t i = 0; i < SHARDS; i++) {
		struct ctl_request request = {.kind = CTL_OPEN};
		struct ctl_open *open = &request.u.open;
		model_name(b, index, open->model, sizeof(open->model));
		snprintf(open->replica, sizeof(open->replica), "replica-%u", index);
		open->shard = i;
		open->num_shards = SHARDS;
		struct ctl_reply reply = ask(b, OPEN, index, &request);
		TH_ASSERT(reply.code == 0);
		host->sids[i] = reply.u.open.sid;
	}
	for (uint32_t i = 0; i < SHARDS; i++) {
		struct ctl_request request = {.kind = CTL_REGISTER};
		request.u.reg = (struct ctl_register){
			.sid = host->sids[i],
			.layout = b->manifest,
			.manifest = b->manifest,
			.bytes = 1u << 20,
			.num_chunks = 1,
		};
		ask_well(b, REGISTER, index, &request);
	}
	pump(b);
}

static void
leave(struct bench *b, uint32_t index)
{
	for (uint32_t i = 0; i < SHARDS; i++) {
		struct ctl_request request = {.kind = CTL_CLOSE};
		request.u.close.sid = b->hosts[index].sids[i];
		ask_well(b, CLOSE, index, &request);
	}
	pump(b);
}

static struct ctl_ev_outcome
operate(struct bench *b, enum what what, uint32_t index, enum ctl_op_kind kind, uint64_t version)
{
	struct host *host = &b->hosts[index];

	host->seq++;
	for (uint32_t i = 0; i < SHARDS; i++) {
		struct ctl_request request = {.kind = CTL_OP};
		struct ctl_op *op = &request.u.op;
		op->sid = host->sids[i];
		op->op_seq = host->seq;
		op->kind = kind;
		op->timeout_ns = 30 * SECOND_NS;
		if (version != 0)
			snprintf(op->spec, sizeof(op->spec), "%llu", (unsigned long long)version);
		ask_well(b, what, index, &request);
		pump(b);
	}
	const struct ctl_ev_outcome *outcome = &b->last_outcome.u.outcome;
	if (outcome->sid < host->sids[0] || outcome->sid > host->sids[SHARDS - 1] ||
		outcome->op_seq != host->seq || outcome->code != 0) {
		fprintf(stderr, "refsrv_bench: %s of group %u ends with %d %s\n", names[what],
			index, outcome->code, outcome->text);
		exit(1);
	}
	host->held = outcome->version.version;
	return *outcome;
}

/* The publisher makes no digests: what arrives counts as it is. */
static void
vouch(struct bench *b, uint32_t index)
{
	const struct host *host = &b->hosts[index];

	for (uint32_t i = 0; i < SHARDS; i++) {
		struct ctl_request request = {.kind = CTL_CONTENT};
		request.u.content.sid = host->sids[i];
		request.u.content.gen = host->seq;
		ask_well(b, CONTENT, index, &request);
	}
}

/* A trainer's step, and some of its readers follow. */
static void
cycle(struct bench *b, uint32_t index)
{
	uint32_t trainer = index - index % b->job_groups;
	uint64_t version = ++b->versions[job_of(b, trainer)];

	operate(b, UNPUBLISH, trainer, CTL_OP_UNPUBLISH, 0);
	operate(b, PUBLISH, trainer, CTL_OP_PUBLISH, version);
	vouch(b, trainer);
	for (uint32_t i = 1; i <= READERS; i++) {
		uint32_t reader = trainer + 1 + (index + i) % (b->job_groups - 1);
		if (reader < b->num_hosts)
			TH_ASSERT(operate(b, UPDATE, reader, CTL_OP_UPDATE, version).updated);
	}
}

static void
rejoin(struct bench *b, uint32_t index)
{
	if (index % b->job_groups == 0)
		return;
	leave(b, index);
	join(b, index);
	operate(b, UPDATE, index, CTL_OP_UPDATE, b->versions[job_of(b, index)]);
}

static void
lose_connection(struct bench *b, uint32_t index)
{
	begin(b);
	refsrv_forget(b->server, b->hosts[index].poll_token);
	end(b, FORGET);
	b->hosts[index].poll_token = 0;
	poll_again(b, index);
}

/* ---- the world ------------------------------------------------------------------------------ */

static void
fill(struct bench *b)
{
	for (uint32_t i = 0; i < b->num_hosts; i++) {
		attach(b, i);
		if (i == 0)
			put_manifest(b);
		join(b, i);
		if (i % b->job_groups == 0) {
			b->versions[job_of(b, i)] = 1;
			operate(b, PUBLISH, i, CTL_OP_PUBLISH, 1);
			vouch(b, i);
		} else {
			operate(b, UPDATE, i, CTL_OP_UPDATE, 1);
		}
		if (i % (b->num_hosts / WATCHERS + 1) == 0)
			watch(b, i, false);
	}
}

/* Two virtual seconds: every group has been idle, and has asked whether there is something new. */
static void
play(struct bench *b, uint32_t round)
{
	uint32_t rare = b->num_hosts / CYCLES + 1;

	for (uint32_t slot = 0; slot < 2 * b->num_hosts; slot++) {
		uint32_t index = slot % b->num_hosts;
		sleep_until(b, b->now_ns + SECOND_NS / b->num_hosts);
		beat(b, index);
		pump(b);
		if (index % 2 == slot / b->num_hosts && index % b->job_groups != 0)
			operate(b, IDLE_UPDATE, index, CTL_OP_UPDATE, b->hosts[index].held);
		if (slot % rare == 0) {
			cycle(b, (index + round) % b->num_hosts);
			watch(b, index, false);
			resolve(b, index);
			watch(b, index, true);
		}
		if (slot % rare == rare / 2) {
			rejoin(b, index);
			lose_connection(b, index);
		}
	}
}

static uint64_t
heap_bytes(void)
{
	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

static void
keep_best(struct bench *b, struct result *best)
{
	int64_t spent_ns = 0;
	uint64_t count = 0;

	for (int i = 0; i < WHATS; i++) {
		spent_ns += b->spent_ns[i];
		count += b->count[i];
		if (b->count[i] == 0)
			continue;
		double mean_ns = (double)b->spent_ns[i] / (double)b->count[i];
		if (best->mean_ns[i] == 0 || mean_ns < best->mean_ns[i])
			best->mean_ns[i] = mean_ns;
	}
	double decisions = (double)count * 1e9 / (double)spent_ns;
	if (decisions > best->decisions)
		best->decisions = decisions;
	memset(b->spent_ns, 0, sizeof(b->spent_ns));
	memset(b->count, 0, sizeof(b->count));
}

static struct result
measure(uint32_t shards, bool one_job)
{
	struct result result = {0};
	struct bench b = {.now_ns = 1000 * SECOND_NS};
	struct refsrv_config config;

	b.num_hosts = shards / SHARDS;
	b.job_groups = one_job ? b.num_hosts : JOB_GROUPS;
	b.hosts = th_calloc(b.num_hosts, sizeof(*b.hosts));
	b.versions = th_calloc(b.num_hosts / b.job_groups + 1, sizeof(*b.versions));
	add_todo(&b);
	b.todo_end = 0;
	refsrv_config_default(&config);
	config.server_inc = 1;
	config.agents_max = b.num_hosts;
	config.members_max = b.num_hosts * SHARDS;
	uint64_t before = heap_bytes();
	b.server = refsrv_new(&config, b.now_ns);
	TH_ASSERT(b.server != NULL);
	b.next_ns = b.now_ns;
	fill(&b);
	struct result setup = {0};
	keep_best(&b, &setup);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		play(&b, round);
		keep_best(&b, &result);
	}
	result.mean_ns[ATTACH] = setup.mean_ns[ATTACH];
	result.bytes = (double)(heap_bytes() - before) / (b.num_hosts * SHARDS);
	refsrv_free(b.server);
	free(b.hosts);
	free(b.versions);
	free(b.todos);
	return result;
}

static void
print(const char *title, const uint32_t *sizes, uint32_t num_sizes, const struct result *results)
{
	const struct result *first = &results[0], *last = &results[num_sizes - 1];

	printf("%s\n%-22s", title, "shards");
	for (uint32_t i = 0; i < num_sizes; i++)
		printf(" %10u", sizes[i]);
	printf("   last/first\n%-22s", "decisions a second");
	for (uint32_t i = 0; i < num_sizes; i++)
		printf(" %10.0f", results[i].decisions);
	printf("   %.2f\n", last->decisions / first->decisions);
	for (int what = 0; what < WHATS; what++) {
		printf("%-22s", names[what]);
		for (uint32_t i = 0; i < num_sizes; i++)
			printf(" %7.0f ns", results[i].mean_ns[what]);
		printf("   %.2f\n", last->mean_ns[what] / first->mean_ns[what]);
	}
	printf("%-22s", "bytes a shard");
	for (uint32_t i = 0; i < num_sizes; i++)
		printf(" %10.0f", results[i].bytes);
	printf("\n");
}

int
main(int argc, char **argv)
{
	uint32_t sizes[SIZES_MAX] = {1000, 10000, 100000}, num_sizes = 3;
	struct result results[SIZES_MAX];

	setvbuf(stdout, NULL, _IOLBF, 0);

	if (argc > 1)
		num_sizes = 0;
	for (int i = 1; i < argc && num_sizes < SIZES_MAX; i++) {
		sizes[num_sizes++] = (uint32_t)strtoul(argv[i], NULL, 10);
		if (sizes[num_sizes - 1] < 100 || sizes[num_sizes - 1] >= 1u << 24) {
			fprintf(stderr, "refsrv_bench: a size is 100 to 16777215 shards\n");
			return 2;
		}
	}
	for (int one_job = 0; one_job < 2; one_job++) {
		for (uint32_t i = 0; i < num_sizes; i++)
			results[i] = measure(sizes[i], one_job == 1);
		print(one_job ? "one job of all groups" : "jobs of 64 groups", sizes, num_sizes,
			results);
	}
	return 0;
}
