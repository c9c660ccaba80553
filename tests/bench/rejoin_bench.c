/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rejoin_bench - what it costs a server that restarts empty to be told what all the agents hold.
 *
 *   rejoin_bench [readers ...]        (1000 8000 32000)
 *
 * Drives the core alone, in virtual time and without a network. One model, one trainer and its
 * readers, 8 a host, each a group of one. Two worlds: all hold the version; or all are reading it,
 * in chains of 100, when the server is lost, and say so in an order in which most are told of
 * before the source that they read from. Each then has its next word: a reader's leg ends.
 *
 * Prints the time in the core from the first word to the last reader that is live again, and how
 * the cost of one reader compares with that of the first size. A measurement, not a test.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "server/core/refsrv.h"

#define SECOND_NS INT64_C(1000000000)
#define PER_HOST 8u
#define CHAIN 100u
#define SIZES_MAX 8u
#define EPOCH 6u /* of the server that is lost */
#define TRAINER 0u

struct bench {
	struct refsrv *server;
	int64_t now_ns;
	uint32_t num_readers, num_hosts;
	uint64_t tokens;
	uint64_t *attach_nos, *request_nos;
};

/* Others may have the processor meanwhile. */
static int64_t
used_ns(void)
{
	struct timespec time;

	TH_ASSERT(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0);
	return time.tv_sec * SECOND_NS + time.tv_nsec;
}

static struct ctl_reply
ask(struct bench *b, uint32_t host, struct ctl_request *request)
{
	struct ctl_reply reply = {.code = 1};
	struct refsrv_out out;
	uint64_t token = ++b->tokens;

	request->agent_inc = host + 1;
	request->request_no = ++b->request_nos[host];
	request->attach_no = b->attach_nos[host];
	request->answered_below = request->request_no;
	refsrv_step(b->server, b->now_ns, token, request, &out);
	for (uint32_t i = 0; i < out.num_replies; i++) {
		if (out.replies[i].token == token)
			reply = out.replies[i].reply;
	}
	if (reply.code != 0) {
		fprintf(stderr, "rejoin_bench: request %d fails: %d %s\n", (int)request->kind,
			reply.code, reply.text);
		exit(1);
	}
	return reply;
}

static uint64_t
id(uint64_t number)
{
	return ((uint64_t)EPOCH << TH_EPOCH_SHIFT) + number;
}

static void
attach(struct bench *b, uint32_t host)
{
	struct ctl_request request = {.kind = CTL_ATTACH};
	struct ctl_attach *attach = &request.u.attach;

	snprintf(attach->node, sizeof(attach->node), "host-%u.example.net", host);
	snprintf(attach->datacenter, sizeof(attach->datacenter), "dc1");
	snprintf(attach->data_address, sizeof(attach->data_address), "10.%u.%u.%u:7000", host >> 16,
		host >> 8 & 255, host & 255);
	attach->server_inc = 1234;
	attach->epoch = EPOCH;
	struct ctl_reply reply = ask(b, host, &request);
	b->attach_nos[host] = reply.u.attach.attach_no;
}

/* Number 0 is the trainer. */
static void
rejoin(struct bench *b, uint32_t number, bool reads)
{
	struct ctl_request request = {.kind = CTL_REJOIN};
	struct ctl_rejoin *said = &request.u.rejoin;

	*said = (struct ctl_rejoin){
		.sid = id(2 * (uint64_t)number + 1),
		.group_inc = id(2 * (uint64_t)number + 2),
		.open = {.model = "model", .num_shards = 1, .lineage = 1},
		.registered = true,
		.reg = {.layout = {.lo = 1, .hi = 1},
			.manifest = {.lo = 1, .hi = 2},
			.bytes = 1u << 20,
			.num_chunks = 16},
		.next_op_seq = 2,
		.held = {.version = TH_NO_VERSION},
		.version = {.version = TH_NO_VERSION},
		.go = {.version = TH_NO_VERSION},
	};
	snprintf(said->open.replica, sizeof(said->open.replica), "replica-%u", number);
	if (!reads || number == TRAINER) {
		said->held = (struct th_version){.lineage = 1, .version = 7};
		said->gen = 1;
		said->hashed = true;
		said->content = (struct th_hash){.lo = 1, .hi = 1};
	} else {
		uint32_t source = (number - 1) % CHAIN == 0 ? TRAINER : number - 1;
		said->went = true;
		said->op_seq = 1;
		said->kind = CTL_OP_REPLICATE;
		snprintf(said->spec, sizeof(said->spec), "latest");
		said->version = (struct th_version){.lineage = 1, .version = 7};
		said->leg = id(UINT64_C(1) << 32) + number;
		said->source_sid = id(2 * (uint64_t)source + 1);
		said->source_gen = 1;
	}
	(void)ask(b, number / PER_HOST, &request);
}

static void
told_all(struct bench *b)
{
	struct refsrv_out out;

	for (uint32_t host = 0; host < b->num_hosts; host++) {
		struct ctl_request request = {.kind = CTL_REJOINED};
		request.u.rejoined.num_sessions = PER_HOST;
		(void)ask(b, host, &request);
	}
	b->now_ns += 4 * SECOND_NS;
	refsrv_tick(b->server, b->now_ns, &out);
}

/* Seconds in the core. */
static double
measure(uint32_t readers, bool reads)
{
	struct bench b = {.now_ns = 1000 * SECOND_NS, .num_readers = readers};
	struct refsrv_config config;

	b.num_hosts = readers / PER_HOST + 1;
	b.attach_nos = th_calloc(b.num_hosts, sizeof(*b.attach_nos));
	b.request_nos = th_calloc(b.num_hosts, sizeof(*b.request_nos));
	refsrv_config_default(&config);
	config.server_inc = 1;
	config.agents_max = b.num_hosts;
	config.members_max = readers + 1;
	b.server = refsrv_new(&config, b.now_ns);
	TH_ASSERT(b.server != NULL);
	for (uint32_t host = 0; host < b.num_hosts; host++)
		attach(&b, host);
	int64_t begin_ns = used_ns();
	/* As many steps as there are readers, far apart. */
	uint64_t stride = 7919;
	while (readers % stride == 0)
		stride += 2;
	rejoin(&b, TRAINER, reads);
	for (uint64_t i = 0; i < readers; i++)
		rejoin(&b, (uint32_t)(i * stride % readers) + 1, reads);
	told_all(&b);
	for (uint32_t i = 1; reads && i <= readers; i++) {
		struct ctl_request request = {.kind = CTL_LEG_END};
		request.u.leg_end.leg = id(UINT64_C(1) << 32) + i;
		request.u.leg_end.chunks_verified = 16;
		request.u.leg_end.content = (struct th_hash){.lo = 1, .hi = 1};
		(void)ask(&b, i / PER_HOST, &request);
	}
	int64_t spent_ns = used_ns() - begin_ns;
	refsrv_free(b.server);
	free(b.attach_nos);
	free(b.request_nos);
	return (double)spent_ns / 1e9;
}

int
main(int argc, char **argv)
{
	uint32_t sizes[SIZES_MAX] = {1000, 8000, 32000}, num_sizes = 3;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1)
		num_sizes = 0;
	for (int i = 1; i < argc && num_sizes < SIZES_MAX; i++) {
		sizes[num_sizes++] = (uint32_t)strtoul(argv[i], NULL, 10);
		if (sizes[num_sizes - 1] < 100 || sizes[num_sizes - 1] >= 1u << 24) {
			fprintf(stderr, "rejoin_bench: a size is 100 to 16777215 readers\n");
			return 2;
		}
	}
	for (int reads = 0; reads < 2; reads++) {
		double first = 0;
		for (uint32_t i = 0; i < num_sizes; i++) {
			double seconds = measure(sizes[i], reads == 1);
			double each = seconds * 1e6 / sizes[i];
			first = i == 0 ? each : first;
			printf("%u readers of one model that %s: %.3f s, %.2f us each (%.2f)\n",
				sizes[i], reads ? "were reading it" : "hold it", seconds, each,
				each / first);
		}
	}
	return 0;
}
