/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_test - every kind of message with every field set survives the wire. What must not
 * survive: convert_hostile_test.
 */
#include "ipc/proto/convert.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/proto/tensorhub.pb-c.h"
#include "tests/support/rng.h"

#define EVENT_KINDS 22u

static const struct th_hash hash_a = {0x1122334455667788, 0x99aabbccddeeff00};
static const struct th_hash hash_b = {1, 0};
static const struct th_hash hash_c = {0, UINT64_MAX};

/* ---- round trips -------------------------------------------------------------------------- */

static void
send_request(
	const struct ctl_request *request, struct convert_arena *arena, struct ctl_request *ret_got)
{
	struct th_err err = {0};
	uint8_t *data;
	size_t bytes;

	cr_assert_eq(ctl_request_pack(request, &data, &bytes), 0);
	cr_assert_eq(ctl_request_unpack(data, bytes, arena, &err, ret_got), 0, "%s", err.text);
	memset(data, 0xee, bytes); /* the struct must not point into the message */
	free(data);
	cr_assert_eq(ret_got->kind, request->kind);
	cr_assert_eq(ret_got->request_no, request->request_no);
	cr_assert_eq(ret_got->agent_inc, request->agent_inc);
	cr_assert_eq(ret_got->answered_below, request->answered_below);
	cr_assert_eq(ret_got->attach_no, request->attach_no);
}

/* For kinds without pointers: the whole union comes back. */
static void
same_request(struct ctl_request *request)
{
	struct convert_arena arena = {0};
	struct ctl_request got;

	request->agent_inc = 0xfedcba9876543210;
	request->answered_below = 0xfedcba98;
	request->attach_no = UINT64_MAX - 1;
	request->request_no = UINT64_MAX;
	memset(&request->secret, 0x5c, sizeof(request->secret));
	send_request(request, &arena, &got);
	cr_assert_arr_eq(&got.u, &request->u, sizeof(got.u), "kind %d", (int)request->kind);
	cr_assert_arr_eq(&got.secret, &request->secret, sizeof(got.secret));
	convert_arena_free(&arena);
}

static struct ctl_request
new_request(enum ctl_request_kind kind)
{
	struct ctl_request request;

	memset(&request, 0, sizeof(request));
	request.kind = kind;
	return request;
}

static void
name_of(char *ret_name, size_t length, char letter)
{
	memset(ret_name, letter, length);
	ret_name[length] = '\0';
}

Test(convert, request__sessions__come_back)
{
	struct ctl_request request = new_request(CTL_HELLO);

	request.u.hello.protocol_min = 1;
	request.u.hello.protocol_max = 7;
	request.u.hello.server_inc = UINT64_MAX;
	request.u.hello.epoch = TH_EPOCH_MAX;
	request.u.hello.serving = true;
	name_of(request.u.hello.cluster, TH_CLUSTER_MAX, 'c');
	same_request(&request);

	request = new_request(CTL_ATTACH);
	name_of(request.u.attach.node, TH_NAME_MAX, 'n');
	name_of(request.u.attach.datacenter, TH_NAME_MAX, 'd');
	name_of(request.u.attach.data_address, TH_ADDRESS_MAX, 'a');
	request.u.attach.spot = true;
	request.u.attach.offload_bytes = UINT64_MAX;
	request.u.attach.server_inc = UINT64_MAX;
	request.u.attach.epoch = TH_EPOCH_MAX;
	name_of(request.u.attach.cluster, TH_CLUSTER_MAX, 'c');
	same_request(&request);

	request = new_request(CTL_OPEN);
	name_of(request.u.open.model, TH_NAME_MAX, 'm');
	strcpy(request.u.open.replica, "r\xc3\xa9plica");
	request.u.open.lineage = UINT64_MAX;
	request.u.open.shard = TH_SHARDS_MAX - 1;
	request.u.open.num_shards = TH_SHARDS_MAX;
	request.u.open.flags = UINT32_MAX;
	same_request(&request);
	name_of(request.u.open.launch_id, TH_NAME_MAX, 'l');
	strcpy(request.u.open.retain, "latest,latest-18446744073709551615,17");
	request.u.open.reservation = UINT64_MAX;
	same_request(&request);

	request = new_request(CTL_REGISTER);
	request.u.reg.sid = 7;
	request.u.reg.layout = hash_a;
	request.u.reg.manifest = hash_b;
	request.u.reg.bytes = UINT64_MAX;
	request.u.reg.num_chunks = UINT32_MAX;
	same_request(&request);

	request = new_request(CTL_UNREGISTER);
	request.u.unregister_sid = 0x8000000000000001;
	same_request(&request);

	request = new_request(CTL_CLOSE);
	request.u.close.sid = 3;
	request.u.close.died = true;
	request.u.close.broke_contract = true;
	request.u.close.unreadable = true;
	request.u.close.abandon = true;
	request.u.close.timeout_ns = TH_FOREVER;
	same_request(&request);

	request = new_request(CTL_BORROW);
	name_of(request.u.borrow.model, TH_NAME_MAX, 'm');
	request.u.borrow.version = (struct th_version){7, UINT64_MAX - 1};
	request.u.borrow.shard = TH_SHARDS_MAX - 1;
	same_request(&request);
	request.u.borrow.stop = request.u.borrow.held = true;
	request.u.borrow.room = UINT64_MAX;
	same_request(&request);

	request = new_request(CTL_RESERVED);
	request.u.reserved.reservation = UINT64_MAX;
	request.u.reserved.shard = TH_SHARDS_MAX - 1;
	request.u.reserved.code = TH_E_NOMEM_RETAIN;
	name_of(request.u.reserved.text, TH_CTL_TEXT_BYTES - 1, 't');
	same_request(&request);
}

Test(convert, request__operations__come_back)
{
	struct ctl_request request = new_request(CTL_OP);

	request.u.op.sid = 11;
	request.u.op.op_seq = 12;
	request.u.op.kind = CTL_OP_UPDATE;
	request.u.op.flags = 0xf0f0f0f0;
	request.u.op.timeout_ns = INT64_MAX;
	strcpy(request.u.op.spec, "latest-18446744073709551614");
	request.u.op.attributes = hash_c;
	same_request(&request);
	request.u.op.timeout_ns = TH_FOREVER;
	same_request(&request);

	request = new_request(CTL_OP); /* the two that need no version */
	request.u.op.kind = CTL_OP_UNPUBLISH;
	same_request(&request);
	request.u.op.kind = CTL_OP_LIST;
	same_request(&request);

	request = new_request(CTL_CANCEL);
	request.u.cancel.sid = 1;
	request.u.cancel.op_seq = UINT64_MAX;
	same_request(&request);

	request = new_request(CTL_PREPARED);
	request.u.prepared.sid = 5;
	request.u.prepared.op_seq = 6;
	request.u.prepared.plan_no = UINT32_MAX;
	request.u.prepared.code = TH_E_LAYOUT;
	name_of(request.u.prepared.text, TH_CTL_TEXT_BYTES - 1, 't');
	same_request(&request);

	request = new_request(CTL_LEG_END);
	request.u.leg_end.leg = 99;
	request.u.leg_end.code = -ECONNRESET;
	request.u.leg_end.chunks_verified = 41;
	request.u.leg_end.overwrote = true;
	request.u.leg_end.source_failed = true;
	request.u.leg_end.bytes_moved = UINT64_MAX - 1;
	name_of(request.u.leg_end.transport, 31, 'x');
	strcpy(request.u.leg_end.text, "the source at h2:7000 closed the connection");
	same_request(&request);

	request.u.leg_end.code = 0;
	request.u.leg_end.content = hash_a;
	same_request(&request);

	request = new_request(CTL_DRAIN_DONE);
	request.u.drain_done.sid = 1;
	request.u.drain_done.gen = 2;
	request.u.drain_done.drain_no = 3;
	same_request(&request);

	request = new_request(CTL_CONTENT);
	request.u.content.sid = 1;
	request.u.content.gen = UINT64_MAX;
	same_request(&request);
	request.u.content.content = hash_b;
	same_request(&request);
}

Test(convert, request__queries__come_back)
{
	struct ctl_request request = new_request(CTL_POLL);

	request.u.poll.last_event = 77;
	same_request(&request);

	request = new_request(CTL_MANIFEST_GET);
	request.u.manifest_get.key = hash_a;
	request.u.manifest_get.offset = 512 << 10;
	same_request(&request);

	request = new_request(CTL_WATCH);
	strcpy(request.u.watch.model, "m");
	same_request(&request);
	request.u.watch.stop = true;
	same_request(&request);

	request = new_request(CTL_LIST);
	strcpy(request.u.list.model, "m");
	request.u.list.sid = 4;
	request.u.list.op_seq = 5;
	request.u.list.generation = 6;
	same_request(&request);
	request.u.list.page = (struct ctl_page){UINT64_MAX, 7};
	same_request(&request);

	request = new_request(CTL_RESOLVE);
	strcpy(request.u.resolve.model, "m");
	strcpy(request.u.resolve.spec, "latest");
	request.u.resolve.shard = TH_SHARDS_MAX - 1;
	same_request(&request);

	request = new_request(CTL_WAITS);
	request.u.waits_sid = UINT64_MAX;
	same_request(&request);

	request = new_request(CTL_INSPECT);
	same_request(&request);
	request.u.inspect = (struct ctl_page){1, UINT64_MAX};
	same_request(&request);
}

Test(convert, request__with_arrays__comes_back)
{
	static uint8_t bytes[TH_PART_BYTES_MAX];
	static struct ctl_leg_progress legs[CONVERT_BEAT_LEGS_MAX];
	static const struct ctl_path path = {"rdma-copy", "the tensor \"a\"", UINT64_MAX};
	struct convert_arena arena = {0};
	struct ctl_request request = new_request(CTL_BEAT), got;
	struct th_rng rng;

	for (uint32_t i = 0; i < CONVERT_BEAT_LEGS_MAX; i++)
		legs[i] = (struct ctl_leg_progress){
			UINT64_MAX - i, i, i % 2 ? &path : NULL, UINT64_MAX - 3 * i};
	request.u.beat.num_legs = CONVERT_BEAT_LEGS_MAX;
	request.u.beat.legs = legs;
	send_request(&request, &arena, &got);
	cr_assert_eq(got.u.beat.num_legs, CONVERT_BEAT_LEGS_MAX);
	for (uint32_t i = 0; i < CONVERT_BEAT_LEGS_MAX; i++) {
		cr_assert_eq(got.u.beat.legs[i].leg, legs[i].leg);
		cr_assert_eq(got.u.beat.legs[i].chunks_verified, legs[i].chunks_verified);
		cr_assert_eq(got.u.beat.legs[i].bytes_moved, legs[i].bytes_moved);
		cr_assert_eq(got.u.beat.legs[i].path != NULL, i % 2 == 1);
		if (i % 2 == 0)
			continue;
		cr_assert_str_eq(got.u.beat.legs[i].path->name, path.name);
		cr_assert_str_eq(got.u.beat.legs[i].path->why, path.why);
		cr_assert_eq(got.u.beat.legs[i].path->rate, path.rate);
	}
	request.u.beat.num_legs = 0;
	send_request(&request, &arena, &got);
	cr_assert_eq(got.u.beat.num_legs, 0);

	th_rng_init_number(&rng, 1);
	th_rng_bytes(&rng, bytes, sizeof(bytes));
	request = new_request(CTL_MANIFEST_PUT);
	request.u.manifest_put.key = hash_a;
	request.u.manifest_put.total_bytes = TH_BLOB_BYTES_MAX;
	request.u.manifest_put.offset = TH_BLOB_BYTES_MAX - sizeof(bytes);
	request.u.manifest_put.data = bytes;
	request.u.manifest_put.data_bytes = sizeof(bytes);
	send_request(&request, &arena, &got);
	cr_assert_eq(got.u.manifest_put.total_bytes, TH_BLOB_BYTES_MAX);
	cr_assert_eq(got.u.manifest_put.offset, TH_BLOB_BYTES_MAX - sizeof(bytes));
	cr_assert_eq(got.u.manifest_put.key.hi, hash_a.hi);
	cr_assert_eq(got.u.manifest_put.data_bytes, sizeof(bytes));
	cr_assert_arr_eq(got.u.manifest_put.data, bytes, sizeof(bytes));
	convert_arena_free(&arena);
}

Test(convert, request_pack__too_many_legs__is_refused)
{
	struct ctl_request request = new_request(CTL_BEAT);
	uint8_t *data = NULL;
	size_t bytes = 0;

	request.u.beat.num_legs = CONVERT_BEAT_LEGS_MAX + 1;
	cr_assert_eq(ctl_request_pack(&request, &data, &bytes), TH_E_LIMIT);
	cr_assert_null(data);
}

static void
fill_grant(struct ctl_grant *grant)
{
	grant->leg = 8;
	memcpy(grant->ticket.bytes, "0123456789abcdef", 16);
	grant->source_sid = 9;
	grant->source_gen = 10;
	grant->source_agent_inc = UINT64_MAX;
	name_of(grant->source_address, TH_ADDRESS_MAX, 'a');
	name_of(grant->source_replica, TH_NAME_MAX, 'r');
	name_of(grant->source_node, TH_NAME_MAX, 'n');
	grant->far = true;
}

static void
fill_reserve(struct ctl_ev_reserve *reserve)
{
	reserve->reservation = UINT64_MAX;
	name_of(reserve->model, TH_NAME_MAX, 'm');
	name_of(reserve->replica, TH_NAME_MAX, 'r');
	reserve->shard = TH_SHARDS_MAX - 1;
	reserve->num_shards = TH_SHARDS_MAX;
	reserve->version = (struct th_version){1, 2};
	reserve->bytes = UINT64_MAX;
	reserve->num_chunks = UINT32_MAX;
	reserve->layout = hash_a;
	reserve->manifest = hash_b;
	reserve->source_sid = 3;
}

/* One event of every kind, every field set. */
static uint32_t
all_events(struct ctl_event events[EVENT_KINDS])
{
	uint32_t count = 0;

	memset(events, 0, EVENT_KINDS * sizeof(*events));
	for (int kind = CTL_EV_PLAN; kind <= CTL_EV_GO_MARK; kind++) {
		events[count].kind = (enum ctl_event_kind)kind;
		events[count].number = count + 1;
		count++;
	}
	events[0].u.plan =
		(struct ctl_ev_plan){1, 2, CTL_OP_REPLICATE, 7, true, {3, 4}, hash_a, hash_b};
	events[1].u.go.sid = 1;
	events[1].u.go.op_seq = 2;
	fill_grant(&events[1].u.go.grant);
	events[1].u.go.attributes = hash_b;
	events[1].u.go.content = hash_a;
	name_of(events[1].u.go.reason, CTL_REASON_BYTES - 1, 'w');
	events[2].u.reroute.sid = 1;
	events[2].u.reroute.op_seq = 2;
	events[2].u.reroute.old_leg = 3;
	fill_grant(&events[2].u.reroute.grant);
	events[2].u.reroute.content = hash_b;
	events[3].u.grant.leg = 4;
	memset(events[3].u.grant.ticket.bytes, 0xab, 16);
	events[3].u.grant.sid = 5;
	events[3].u.grant.gen = 6;
	events[3].u.grant.reader_agent_inc = 7;
	name_of(events[3].u.grant.reader_node, TH_NAME_MAX, 'n');
	name_of(events[3].u.grant.reader_replica, TH_NAME_MAX, 'r');
	events[3].u.grant.far = true;
	events[4].u.fence_leg = UINT64_MAX;
	events[5].u.drain = (struct ctl_ev_part){1, 2, 3};
	events[6].u.undrain = (struct ctl_ev_part){4, 5, 0};
	events[7].u.cancel = (struct ctl_cancel){6, 7};
	events[8].u.outcome.sid = 1;
	events[8].u.outcome.op_seq = 2;
	events[8].u.outcome.kind = CTL_OP_UPDATE;
	events[8].u.outcome.code = TH_E_VERSION_LOST;
	events[8].u.outcome.updated = true;
	events[8].u.outcome.version = (struct th_version){5, 6};
	events[8].u.outcome.generation = 7;
	name_of(events[8].u.outcome.source, TH_NAME_MAX, 's');
	name_of(events[8].u.outcome.text, TH_CTL_TEXT_BYTES - 1, 't');
	name_of(events[9].u.changed.model, TH_NAME_MAX, 'm');
	events[9].u.changed.generation = 8;
	events[10].u.broken.sid = 9;
	events[10].u.broken.evicted = true;
	strcpy(events[10].u.broken.text, "the worker of shard 3 died");
	events[11].u.conflict.sid = 10;
	strcpy(events[11].u.conflict.text, "others were first");
	fill_reserve(&events[12].u.reserve);
	events[13].u.release = (struct ctl_ev_release){11, TH_SHARDS_MAX - 1, 12};
	events[14].u.close_refused.sid = 13;
	events[14].u.close_refused.code = TH_E_NOMEM_RETAIN;
	strcpy(events[14].u.close_refused.text, "nowhere to offload it");
	events[17].u.at_risk.sid = UINT64_MAX;
	name_of(events[17].u.at_risk.text, TH_CTL_TEXT_BYTES - 1, 'r');
	strcpy(events[18].u.rules.model, "m");
	strcpy(events[18].u.rules.rules, "latest,7");
	events[19].u.ready = (struct ctl_ev_ready){UINT64_MAX, {5, 6}};
	name_of(events[20].u.borrow_refused.model, TH_NAME_MAX, 'm');
	events[20].u.borrow_refused.version = (struct th_version){7, 8};
	events[20].u.borrow_refused.shard = TH_SHARDS_MAX - 1;
	events[20].u.borrow_refused.code = TH_E_LIMIT;
	name_of(events[20].u.borrow_refused.text, TH_CTL_TEXT_BYTES - 1, 't');
	name_of(events[21].u.go_mark.model, TH_NAME_MAX, 'm');
	events[21].u.go_mark.version = (struct th_version){UINT64_MAX, 6};
	return count;
}

Test(convert, event__every_kind__comes_back)
{
	static struct ctl_event events[EVENT_KINDS];
	struct ctl_event got;
	uint32_t count = all_events(events);
	struct convert_arena arena = {0};
	struct th_err err = {0};

	cr_assert_eq(count, EVENT_KINDS);
	for (uint32_t i = 0; i < count; i++) {
		uint8_t *data;
		size_t bytes;

		cr_assert_eq(ctl_event_pack(&events[i], &data, &bytes), 0);
		cr_assert_eq(ctl_event_unpack(data, bytes, &arena, &err, &got), 0, "%s", err.text);
		cr_assert_eq(got.kind, events[i].kind);
		cr_assert_eq(got.number, events[i].number);
		cr_assert_arr_eq(&got.u, &events[i].u, sizeof(got.u), "kind %u", i + 1);
		free(data);
	}
	convert_arena_free(&arena);
}

static void
send_reply(const struct ctl_reply *reply, struct convert_arena *arena, struct ctl_reply *ret_got)
{
	struct th_err err = {0};
	uint8_t *data;
	size_t bytes;

	cr_assert_eq(ctl_reply_pack(reply, &data, &bytes), 0);
	cr_assert_eq(ctl_reply_unpack(data, bytes, reply->kind, arena, &err, ret_got), 0, "%s",
		err.text);
	free(data);
	cr_assert_eq(ret_got->request_no, reply->request_no);
	cr_assert_eq(ret_got->code, reply->code);
	cr_assert_eq(ret_got->unknown_agent, reply->unknown_agent);
	cr_assert_str_eq(ret_got->text, reply->text);
}

static struct ctl_reply
new_reply(enum ctl_request_kind kind)
{
	struct ctl_reply reply;

	memset(&reply, 0, sizeof(reply));
	reply.kind = kind;
	reply.request_no = 0x0102030405060708;
	return reply;
}

Test(convert, reply__without_arrays__comes_back)
{
	struct convert_arena arena = {0};
	struct ctl_reply reply = new_reply(CTL_HELLO), got;

	reply.u.hello = (struct ctl_hello_reply){UINT64_MAX, 1, 5, true, "c"};
	send_reply(&reply, &arena, &got);
	cr_assert_arr_eq(&got.u.hello, &reply.u.hello, sizeof(got.u.hello));
	reply = new_reply(CTL_ATTACH);
	reply.u.attach.server_inc = 5;
	reply.u.attach.fresh = true;
	reply.u.attach.attach_no = UINT64_MAX;
	reply.u.attach.epoch = TH_EPOCH_MAX;
	send_reply(&reply, &arena, &got);
	cr_assert_arr_eq(&got.u.attach, &reply.u.attach, sizeof(got.u.attach));
	reply = new_reply(CTL_REJOIN);
	reply.u.open = (struct ctl_open_reply){5, 6, UINT64_MAX};
	send_reply(&reply, &arena, &got);
	cr_assert_arr_eq(&got.u.open, &reply.u.open, sizeof(got.u.open));
	reply = new_reply(CTL_OPEN);
	reply.u.open = (struct ctl_open_reply){6, 7, 8};
	send_reply(&reply, &arena, &got);
	cr_assert_arr_eq(&got.u.open, &reply.u.open, sizeof(got.u.open));
	convert_arena_free(&arena);
}

Test(convert, reply__of_names_and_hashes__comes_back)
{
	struct convert_arena arena = {0};
	struct ctl_reply reply = new_reply(CTL_WATCH), got;

	name_of(reply.u.watch.model, TH_NAME_MAX, 'm');
	reply.u.watch.generation = 8;
	send_reply(&reply, &arena, &got);
	cr_assert_arr_eq(&got.u.watch, &reply.u.watch, sizeof(got.u.watch));
	reply = new_reply(CTL_WAITS);
	strcpy(reply.u.waits.text, "shard 3 has not called it");
	send_reply(&reply, &arena, &got);
	cr_assert_str_eq(got.u.waits.text, reply.u.waits.text);
	reply = new_reply(CTL_RESOLVE);
	reply.u.resolve = (struct ctl_resolve_reply){{1, 2}, TH_SHARDS_MAX, hash_a, hash_b, hash_c};
	send_reply(&reply, &arena, &got);
	cr_assert_arr_eq(&got.u.resolve, &reply.u.resolve, sizeof(got.u.resolve));
	reply = new_reply(CTL_MANIFEST_GET);
	reply.u.manifest_get = (struct ctl_blob_part){hash_a, 10, 7, (const uint8_t *)"abc", 3};
	send_reply(&reply, &arena, &got);
	cr_assert_arr_eq(got.u.manifest_get.data, "abc", 3);
	cr_assert_eq(got.u.manifest_get.offset, 7);
	cr_assert_eq(got.u.manifest_get.total_bytes, 10);
	convert_arena_free(&arena);
}

Test(convert, reply__a_code__needs_no_body)
{
	struct convert_arena arena = {0};
	struct ctl_reply reply, got;

	for (int kind = CTL_HELLO; kind <= CTL_RESERVED; kind++) {
		reply = new_reply((enum ctl_request_kind)kind);
		reply.code = TH_E_NO_SERVER;
		reply.unknown_agent = true;
		strcpy(reply.text, "this server does not know the agent");
		send_reply(&reply, &arena, &got);
		cr_assert_eq((int)got.kind, kind);
	}
	convert_arena_free(&arena);
}

Test(convert, reply__poll__brings_all_events)
{
	static struct ctl_event events[EVENT_KINDS];
	struct convert_arena arena = {0};
	struct ctl_reply reply = new_reply(CTL_POLL), got;

	send_reply(&reply, &arena, &got);
	cr_assert_eq(got.u.poll.num_events, 0);
	reply.u.poll.num_events = all_events(events);
	reply.u.poll.events = events;
	send_reply(&reply, &arena, &got);
	cr_assert_eq(got.u.poll.num_events, EVENT_KINDS);
	for (uint32_t i = 0; i < EVENT_KINDS; i++)
		cr_assert_arr_eq(&got.u.poll.events[i], &events[i], sizeof(events[i]));
	convert_arena_free(&arena);
}

Test(convert, reply__listing__comes_back)
{
	struct ctl_replica_info replicas[3];
	struct ctl_version_info versions[2] = {
		{{1, 2}, true, 3, replicas},
		{{UINT64_MAX, UINT64_MAX - 1}, false, 0, NULL},
	};
	struct convert_arena arena = {0};
	struct ctl_reply reply = new_reply(CTL_LIST), got;

	memset(replicas, 0, sizeof(replicas));
	for (uint32_t i = 0; i < 3; i++) {
		name_of(replicas[i].name, TH_NAME_MAX - i, 'r');
		name_of(replicas[i].datacenter, 1 + i, 'd');
		replicas[i].num_shards = i + 1;
		replicas[i].flags = CTL_REPLICA_READY | CTL_REPLICA_SPOT;
		replicas[i].chunks_done = i;
		replicas[i].chunks_total = UINT64_MAX;
	}
	reply.u.list = (struct ctl_listing){9, 2, versions, {5, 7}};
	send_reply(&reply, &arena, &got);
	cr_assert_eq(got.u.list.generation, 9);
	cr_assert_eq(got.u.list.num_versions, 2);
	cr_assert_eq(got.u.list.page.snapshot, 5);
	cr_assert_eq(got.u.list.page.next, 7);
	cr_assert(got.u.list.versions[0].retained);
	cr_assert_eq(got.u.list.versions[0].num_replicas, 3);
	cr_assert_arr_eq(got.u.list.versions[0].replicas, replicas, sizeof(replicas));
	cr_assert_eq(got.u.list.versions[1].version.lineage, UINT64_MAX);
	cr_assert_eq(got.u.list.versions[1].version.version, UINT64_MAX - 1);
	cr_assert_eq(got.u.list.versions[1].num_replicas, 0);
	convert_arena_free(&arena);
}

Test(convert, reply__inspection__comes_back)
{
	struct ctl_node_info node = {"n", "d", "h:1", "suspect", true, true, 1, 2, 3, -4};
	struct ctl_member_info member = {"m", "r", "n", 1, 2, 3, "live", "partial", {4, 5}, 6, 7, 8,
		9, {10, 11}, "last copy"};
	struct ctl_transfer_info transfer = {
		"m", {1, 2}, 3, 4, "sr", "sn", "rr", "rn", 5, 6, INT64_MAX, {"tcp", "why", 7}};
	struct convert_arena arena = {0};
	struct ctl_reply reply = new_reply(CTL_INSPECT), got;

	reply.u.inspect = (struct ctl_inspection){7, 8, 1, 1, 1, &node, &member, &transfer,
		{UINT64_MAX, 3}, 2, {{"a", 1}, {"b", UINT64_MAX}}, true, UINT32_MAX, "why"};
	send_reply(&reply, &arena, &got);
	cr_assert_eq(got.u.inspect.server_inc, 7);
	cr_assert_eq(got.u.inspect.uptime_ns, 8);
	cr_assert_eq(got.u.inspect.page.snapshot, UINT64_MAX);
	cr_assert_eq(got.u.inspect.page.next, 3);
	cr_assert_eq(got.u.inspect.num_counters, 2);
	cr_assert_str_eq(got.u.inspect.counters[1].name, "b");
	cr_assert_eq(got.u.inspect.counters[1].value, UINT64_MAX);
	cr_assert(got.u.inspect.serving);
	cr_assert_eq(got.u.inspect.epoch, UINT32_MAX);
	cr_assert_str_eq(got.u.inspect.server_text, "why");
	cr_assert_str_eq(got.u.inspect.nodes[0].node, "n");
	cr_assert_str_eq(got.u.inspect.nodes[0].datacenter, "d");
	cr_assert_str_eq(got.u.inspect.nodes[0].address, "h:1");
	cr_assert_str_eq(got.u.inspect.nodes[0].state, "suspect");
	cr_assert(got.u.inspect.nodes[0].spot);
	cr_assert(got.u.inspect.nodes[0].draining);
	cr_assert_eq(got.u.inspect.nodes[0].members, 1);
	cr_assert_eq(got.u.inspect.nodes[0].legs_in, 2);
	cr_assert_eq(got.u.inspect.nodes[0].legs_out, 3);
	cr_assert_eq(got.u.inspect.nodes[0].silent_ns, -4);
	cr_assert_str_eq(got.u.inspect.members[0].replica, "r");
	cr_assert_str_eq(got.u.inspect.members[0].state, "live");
	cr_assert_str_eq(got.u.inspect.members[0].copy, "partial");
	cr_assert_eq(got.u.inspect.members[0].num_shards, 2);
	cr_assert_eq(got.u.inspect.members[0].sid, 3);
	cr_assert_eq(got.u.inspect.members[0].version.version, 5);
	cr_assert_eq(got.u.inspect.members[0].bytes, 6);
	cr_assert_eq(got.u.inspect.members[0].chunks_done, 7);
	cr_assert_eq(got.u.inspect.members[0].chunks_total, 8);
	cr_assert_eq(got.u.inspect.members[0].flags, 9);
	cr_assert_eq(got.u.inspect.members[0].ready.lineage, 10);
	cr_assert_eq(got.u.inspect.members[0].ready.version, 11);
	cr_assert_str_eq(got.u.inspect.members[0].why, "last copy");
	cr_assert_arr_eq(got.u.inspect.transfers, &transfer, sizeof(transfer));
	convert_arena_free(&arena);
}

Test(convert, reply__too_long__is_a_limit)
{
	uint32_t count = 8192;
	struct ctl_replica_info *replicas = calloc(count, sizeof(*replicas));
	struct ctl_version_info version = {{1, 2}, false, count, replicas};
	struct ctl_reply reply = new_reply(CTL_LIST);
	uint8_t *data = NULL;
	size_t bytes;

	for (uint32_t i = 0; i < count; i++)
		name_of(replicas[i].name, TH_NAME_MAX, 'r');
	reply.u.list = (struct ctl_listing){9, 1, &version, {0}};
	cr_assert_eq(ctl_reply_pack(&reply, &data, &bytes), TH_E_LIMIT);
	version.num_replicas = UINT32_MAX / 2; /* decided before one of them is read */
	cr_assert_eq(ctl_reply_pack(&reply, &data, &bytes), TH_E_LIMIT);
	cr_assert_null(data);
	free(replicas);
}
