/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crowd - thousands of replicas at a real server without thousands of workers, for list_test.py:
 * `crowd URL NODE MODEL VERSIONS NAME_BYTES`. It speaks to the server as an agent does, but sends
 * no heartbeat and polls no events: the server must be patient (lease.suspect).
 *
 * A line "COUNT" on standard input: so many more replicas of one shard publish, replica i version
 * i % VERSIONS; "done" when they are listed. Replica i has the name r%05d of i * 7919 mod 100000,
 * filled up with x to NAME_BYTES: so new ones come in between. Ends with standard input.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/net/net.h"
#include "ipc/proto/convert.h"
#include "ipc/proto/manifest.h"

#define WINDOW 64u /* requests under way */
#define PATIENCE_NS INT64_C(60000000000)

struct crowd {
	struct net_client *client;
	const char *model;
	uint32_t versions, name_bytes;
	struct th_hash manifest;
	uint64_t inc, number, attach_no;
	uint64_t *sids;
	uint32_t count;
};

static void
die(const char *what, const char *why)
{
	fprintf(stderr, "crowd: %s: %s\n", what, why);
	net_exit(1);
}

static void
ask(struct crowd *crowd, struct ctl_request *request, uint64_t tag)
{
	uint8_t *data;
	size_t bytes;

	request->agent_inc = crowd->inc;
	request->attach_no = crowd->attach_no;
	request->request_no = ++crowd->number;
	if (ctl_request_pack(request, &data, &bytes) != 0 ||
		net_client_send(crowd->client, tag, data, bytes, PATIENCE_NS) != 0)
		die("send", "failed");
	free(data);
}

/* The next reply, which must be a success; returns its tag. */
static uint64_t
take(struct crowd *crowd, enum ctl_request_kind kind, struct ctl_reply *ret_reply)
{
	struct pollfd wake = {.fd = net_client_fd(crowd->client), .events = POLLIN};
	struct convert_arena arena = {0};
	struct net_client_item item;
	struct th_err err = {0};

	for (;;) {
		while (net_client_next(crowd->client, &item)) {
			if (item.kind != NET_REPLY)
				continue;
			if (item.rc != 0)
				die("reply", "none came");
			if (ctl_reply_unpack(
				    item.data, item.bytes, kind, &arena, &err, ret_reply) != 0)
				die("reply", err.text);
			if (ret_reply->code != 0)
				die("refused", ret_reply->text);
			convert_arena_free(&arena);
			return item.tag;
		}
		(void)poll(&wake, 1, -1);
	}
}

static struct ctl_request
request_of(const struct crowd *crowd, enum ctl_request_kind kind, uint32_t i)
{
	struct ctl_request request = {.kind = kind};

	if (kind == CTL_OPEN) {
		struct ctl_open *open = &request.u.open;
		snprintf(open->model, sizeof(open->model), "%s", crowd->model);
		snprintf(open->replica, sizeof(open->replica), "r%05u", i * 7919u % 100000u);
		for (size_t at = strlen(open->replica); at < crowd->name_bytes; at++)
			open->replica[at] = 'x';
		open->num_shards = 1;
	} else if (kind == CTL_REGISTER) {
		request.u.reg = (struct ctl_register){.sid = crowd->sids[i],
			.layout = {1, 1},
			.manifest = crowd->manifest,
			.bytes = 1000,
			.num_chunks = 1};
	} else if (kind == CTL_CONTENT) {
		/* All of a version are of the same bytes: else the later ones are not listed. */
		request.u.content = (struct ctl_content){
			.sid = crowd->sids[i], .gen = 1, .content = {7, i % crowd->versions}};
	} else {
		request.u.op.sid = crowd->sids[i];
		request.u.op.op_seq = 1;
		request.u.op.kind = CTL_OP_PUBLISH;
		request.u.op.timeout_ns = TH_FOREVER;
		snprintf(request.u.op.spec, sizeof(request.u.op.spec), "%u", i % crowd->versions);
	}
	return request;
}

/* One kind of request for each replica from first on, many under way. */
static void
for_each(struct crowd *crowd, enum ctl_request_kind kind, uint32_t first)
{
	struct ctl_reply reply;
	uint32_t asked = first, answered = first;

	while (answered < crowd->count) {
		for (; asked < crowd->count && asked - answered < WINDOW; asked++) {
			struct ctl_request request = request_of(crowd, kind, asked);
			ask(crowd, &request, asked);
		}
		uint64_t tag = take(crowd, kind, &reply);
		if (kind == CTL_OPEN)
			crowd->sids[tag] = reply.u.open.sid;
		answered++;
	}
}

/* In order, one after the other: whoever lists meanwhile sees the first so many of them. */
static void
publish(struct crowd *crowd, uint32_t first)
{
	struct ctl_reply reply;

	for (uint32_t i = first; i < crowd->count; i++) {
		struct ctl_request op = request_of(crowd, CTL_OP, i);
		struct ctl_request content = request_of(crowd, CTL_CONTENT, i);
		ask(crowd, &op, i);
		take(crowd, CTL_OP, &reply);
		ask(crowd, &content, i);
		take(crowd, CTL_CONTENT, &reply);
	}
}

static void
join(struct crowd *crowd, const char *url, const char *node)
{
	static const uint8_t rows[] = "rows that nobody reads";
	struct ctl_request attach = {.kind = CTL_ATTACH}, put = {.kind = CTL_MANIFEST_PUT};
	struct ctl_reply reply;
	struct th_err err = {0};

	if (net_client_new(NULL, &err, &crowd->client) != 0 ||
		net_client_dial(crowd->client, url, true, &err) != 0)
		die(url, err.text);
	snprintf(attach.u.attach.node, sizeof(attach.u.attach.node), "%s", node);
	snprintf(attach.u.attach.datacenter, sizeof(attach.u.attach.datacenter), "dc");
	snprintf(attach.u.attach.data_address, sizeof(attach.u.attach.data_address), "127.0.0.1:1");
	ask(crowd, &attach, 0);
	take(crowd, CTL_ATTACH, &reply);
	crowd->attach_no = reply.u.attach.attach_no;
	crowd->manifest = manifest_key(rows, sizeof(rows));
	put.u.manifest_put = (struct ctl_blob_part){.key = crowd->manifest,
		.total_bytes = sizeof(rows),
		.data = rows,
		.data_bytes = sizeof(rows)};
	ask(crowd, &put, 0);
	take(crowd, CTL_MANIFEST_PUT, &reply);
}

int
main(int argc, char **argv)
{
	struct crowd crowd = {.inc = 77};
	uint32_t more;

	if (argc != 6)
		return 2;
	crowd.model = argv[3];
	crowd.versions = (uint32_t)atoi(argv[4]);
	crowd.name_bytes = (uint32_t)atoi(argv[5]);
	join(&crowd, argv[1], argv[2]);
	while (scanf("%" SCNu32, &more) == 1) {
		uint32_t first = crowd.count;
		crowd.count += more;
		crowd.sids = th_realloc(crowd.sids, crowd.count, sizeof(crowd.sids[0]));
		for_each(&crowd, CTL_OPEN, first);
		for_each(&crowd, CTL_REGISTER, first);
		publish(&crowd, first);
		printf("done\n");
		fflush(stdout);
	}
	free(crowd.sids);
	net_exit(0);
}
