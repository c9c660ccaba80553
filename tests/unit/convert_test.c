/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_test - every kind of message with every field set survives the wire, and nothing that a
 * hostile peer can write reaches a core.
 */
#include "ipc/proto/convert.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/rng.h"
#include "ipc/proto/tensorhub.pb-c.h"

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
}

/* For kinds without pointers: the whole union comes back. */
static void
same_request(struct ctl_request *request)
{
	struct convert_arena arena = {0};
	struct ctl_request got;

	request->agent_inc = 0xfedcba9876543210;
	request->request_no = UINT64_MAX;
	send_request(request, &arena, &got);
	cr_assert_arr_eq(&got.u, &request->u, sizeof(got.u), "kind %d", (int)request->kind);
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
	same_request(&request);

	request = new_request(CTL_ATTACH);
	name_of(request.u.attach.node, TH_NAME_MAX, 'n');
	name_of(request.u.attach.datacenter, TH_NAME_MAX, 'd');
	name_of(request.u.attach.data_address, TH_ADDRESS_MAX, 'a');
	request.u.attach.spot = true;
	same_request(&request);

	request = new_request(CTL_OPEN);
	name_of(request.u.open.model, TH_NAME_MAX, 'm');
	strcpy(request.u.open.replica, "r\xc3\xa9plica");
	request.u.open.lineage = UINT64_MAX;
	request.u.open.shard = TH_SHARDS_MAX - 1;
	request.u.open.num_shards = TH_SHARDS_MAX;
	request.u.open.flags = UINT32_MAX;
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

	request = new_request(CTL_DRAIN_DONE);
	request.u.drain_done.sid = 1;
	request.u.drain_done.gen = 2;
	request.u.drain_done.drain_no = 3;
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

	request = new_request(CTL_LIST);
	strcpy(request.u.list.model, "m");
	request.u.list.sid = 4;
	request.u.list.op_seq = 5;
	same_request(&request);

	request = new_request(CTL_RESOLVE);
	strcpy(request.u.resolve.model, "m");
	strcpy(request.u.resolve.spec, "latest");
	request.u.resolve.shard = TH_SHARDS_MAX - 1;
	same_request(&request);

	request = new_request(CTL_INSPECT);
	same_request(&request);
}

Test(convert, request__with_arrays__comes_back)
{
	static uint8_t bytes[TH_PART_BYTES_MAX];
	static struct ctl_leg_progress legs[CONVERT_BEAT_LEGS_MAX];
	struct convert_arena arena = {0};
	struct ctl_request request = new_request(CTL_BEAT), got;
	struct th_rng rng;

	for (uint32_t i = 0; i < CONVERT_BEAT_LEGS_MAX; i++)
		legs[i] = (struct ctl_leg_progress){UINT64_MAX - i, i};
	request.u.beat.num_legs = CONVERT_BEAT_LEGS_MAX;
	request.u.beat.legs = legs;
	send_request(&request, &arena, &got);
	cr_assert_eq(got.u.beat.num_legs, CONVERT_BEAT_LEGS_MAX);
	for (uint32_t i = 0; i < CONVERT_BEAT_LEGS_MAX; i++) {
		cr_assert_eq(got.u.beat.legs[i].leg, legs[i].leg);
		cr_assert_eq(got.u.beat.legs[i].chunks_verified, legs[i].chunks_verified);
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
}

/* One event of every kind, every field set. */
static uint32_t
all_events(struct ctl_event events[16])
{
	uint32_t count = 0;

	memset(events, 0, 16 * sizeof(*events));
	for (int kind = CTL_EV_PLAN; kind <= CTL_EV_BROKEN; kind++) {
		events[count].kind = (enum ctl_event_kind)kind;
		events[count].number = count + 1;
		count++;
	}
	events[0].u.plan =
		(struct ctl_ev_plan){1, 2, CTL_OP_REPLICATE, true, {3, 4}, hash_a, hash_b};
	events[1].u.go.sid = 1;
	events[1].u.go.op_seq = 2;
	fill_grant(&events[1].u.go.grant);
	events[2].u.reroute.sid = 1;
	events[2].u.reroute.op_seq = 2;
	events[2].u.reroute.old_leg = 3;
	fill_grant(&events[2].u.reroute.grant);
	events[3].u.grant.leg = 4;
	memset(events[3].u.grant.ticket.bytes, 0xab, 16);
	events[3].u.grant.sid = 5;
	events[3].u.grant.gen = 6;
	events[3].u.grant.reader_agent_inc = 7;
	name_of(events[3].u.grant.reader_node, TH_NAME_MAX, 'n');
	name_of(events[3].u.grant.reader_replica, TH_NAME_MAX, 'r');
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
	strcpy(events[10].u.broken.text, "the worker of shard 3 died");
	return count;
}

Test(convert, event__every_kind__comes_back)
{
	static struct ctl_event events[16];
	struct ctl_event got;
	uint32_t count = all_events(events);
	struct convert_arena arena = {0};
	struct th_err err = {0};

	cr_assert_eq(count, 11);
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

	reply.u.hello = (struct ctl_hello_reply){UINT64_MAX, 1};
	send_reply(&reply, &arena, &got);
	cr_assert_arr_eq(&got.u.hello, &reply.u.hello, sizeof(got.u.hello));
	reply = new_reply(CTL_ATTACH);
	reply.u.attach.server_inc = 5;
	reply.u.attach.fresh = true;
	send_reply(&reply, &arena, &got);
	cr_assert_arr_eq(&got.u.attach, &reply.u.attach, sizeof(got.u.attach));
	reply = new_reply(CTL_OPEN);
	reply.u.open = (struct ctl_open_reply){6, 7};
	send_reply(&reply, &arena, &got);
	cr_assert_arr_eq(&got.u.open, &reply.u.open, sizeof(got.u.open));
	reply = new_reply(CTL_WATCH);
	name_of(reply.u.watch.model, TH_NAME_MAX, 'm');
	reply.u.watch.generation = 8;
	send_reply(&reply, &arena, &got);
	cr_assert_arr_eq(&got.u.watch, &reply.u.watch, sizeof(got.u.watch));
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

	for (int kind = CTL_HELLO; kind <= CTL_INSPECT; kind++) {
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
	static struct ctl_event events[16];
	struct convert_arena arena = {0};
	struct ctl_reply reply = new_reply(CTL_POLL), got;

	send_reply(&reply, &arena, &got);
	cr_assert_eq(got.u.poll.num_events, 0);
	reply.u.poll.num_events = all_events(events);
	reply.u.poll.events = events;
	send_reply(&reply, &arena, &got);
	cr_assert_eq(got.u.poll.num_events, 11);
	for (uint32_t i = 0; i < 11; i++)
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
	reply.u.list = (struct ctl_listing){9, 2, versions};
	send_reply(&reply, &arena, &got);
	cr_assert_eq(got.u.list.generation, 9);
	cr_assert_eq(got.u.list.num_versions, 2);
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
	struct ctl_node_info node = {"n", "d", "h:1", "suspect", true, 1, 2, 3, -4};
	struct ctl_member_info member = {
		"m", "r", "n", 1, 2, 3, "live", "partial", {4, 5}, 6, 7, 8};
	struct ctl_transfer_info transfer = {
		"m", {1, 2}, 3, 4, "sr", "sn", "rr", "rn", 5, 6, INT64_MAX};
	struct convert_arena arena = {0};
	struct ctl_reply reply = new_reply(CTL_INSPECT), got;

	reply.u.inspect = (struct ctl_inspection){7, 8, 1, 1, 1, &node, &member, &transfer};
	send_reply(&reply, &arena, &got);
	cr_assert_eq(got.u.inspect.server_inc, 7);
	cr_assert_eq(got.u.inspect.uptime_ns, 8);
	cr_assert_str_eq(got.u.inspect.nodes[0].node, "n");
	cr_assert_str_eq(got.u.inspect.nodes[0].datacenter, "d");
	cr_assert_str_eq(got.u.inspect.nodes[0].address, "h:1");
	cr_assert_str_eq(got.u.inspect.nodes[0].state, "suspect");
	cr_assert(got.u.inspect.nodes[0].spot);
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
	reply.u.list = (struct ctl_listing){9, 1, &version};
	cr_assert_eq(ctl_reply_pack(&reply, &data, &bytes), TH_E_LIMIT);
	version.num_replicas = UINT32_MAX / 2; /* decided before one of them is read */
	cr_assert_eq(ctl_reply_pack(&reply, &data, &bytes), TH_E_LIMIT);
	cr_assert_null(data);
	free(replicas);
}

/* ---- hostile ------------------------------------------------------------------------------- */

/* Unpacks what a peer could send; 0 or the code, which must come with a sentence. */
static int
take(Tensorhub__V1__Request *message)
{
	size_t bytes = tensorhub__v1__request__get_packed_size(message);
	uint8_t *data = malloc(bytes + 1);
	struct convert_arena arena = {0};
	struct th_err err = {0};
	struct ctl_request got;
	int rc;

	tensorhub__v1__request__pack(message, data);
	rc = ctl_request_unpack(data, bytes, &arena, &err, &got);
	cr_assert_eq(err.code, rc);
	cr_assert_eq(err.text[0] != '\0', rc != 0);
	cr_assert_eq(ctl_request_unpack(data, bytes, &arena, NULL, &got), rc);
	convert_arena_free(&arena);
	free(data);
	return rc;
}

static Tensorhub__V1__Request
request_of(int body_case, void *body)
{
	Tensorhub__V1__Request message;

	tensorhub__v1__request__init(&message);
	message.request_no = 5;
	message.body_case = (Tensorhub__V1__Request__BodyCase)body_case;
	message.hello = body; /* all of the union are pointers */
	return message;
}

static char name_too_long[TH_NAME_MAX + 2];
static char name_of_control[] = "a\nb";
static char name_not_utf8[] = "a\xff";
static char name_empty[] = "";
static char name_good[] = "good";
static char spec_latest[] = "latest";
static char spec_number[] = "17";
static char spec_open_end[] = "latest-";
static char spec_negative[] = "-1";
static char *const bad_names[] = {name_too_long, name_of_control, name_not_utf8, name_empty};

Test(convert, hostile__names__are_refused)
{
	Tensorhub__V1__Open open;
	Tensorhub__V1__Attach attach;
	Tensorhub__V1__List list;
	Tensorhub__V1__Request message;

	name_of(name_too_long, TH_NAME_MAX + 1, 'n');
	tensorhub__v1__open__init(&open);
	tensorhub__v1__attach__init(&attach);
	tensorhub__v1__list__init(&list);
	open.num_shards = 1;
	open.model = open.replica = name_good;
	attach.node = attach.datacenter = attach.data_address = name_good;
	list.model = name_good;
	message = request_of(TENSORHUB__V1__REQUEST__BODY_OPEN, &open);
	cr_assert_eq(take(&message), 0);
	for (size_t i = 0; i < TH_ARRAY_LEN(bad_names); i++) {
		message = request_of(TENSORHUB__V1__REQUEST__BODY_OPEN, &open);
		open.model = bad_names[i];
		cr_assert_eq(take(&message), TH_E_INVALID);
		open.model = name_good;
		open.replica = bad_names[i];
		cr_assert_eq(take(&message), TH_E_INVALID);
		open.replica = name_good;
		message = request_of(TENSORHUB__V1__REQUEST__BODY_ATTACH, &attach);
		cr_assert_eq(take(&message), 0);
		attach.node = bad_names[i];
		cr_assert_eq(take(&message), TH_E_INVALID);
		attach.node = name_good;
		attach.datacenter = bad_names[i];
		cr_assert_eq(take(&message), TH_E_INVALID);
		attach.datacenter = name_good;
		attach.data_address = bad_names[i];
		cr_assert_eq(take(&message), TH_E_INVALID);
		attach.data_address = name_good;
		message = request_of(TENSORHUB__V1__REQUEST__BODY_LIST, &list);
		list.model = bad_names[i];
		cr_assert_eq(take(&message), TH_E_INVALID);
	}
}

Test(convert, hostile__shards__are_refused)
{
	static const uint32_t bad[][2] = {
		{0, 0}, {1, 1}, {0, TH_SHARDS_MAX + 1}, {UINT32_MAX, UINT32_MAX}};
	Tensorhub__V1__Request message;
	Tensorhub__V1__Open open;
	Tensorhub__V1__Resolve resolve;

	tensorhub__v1__open__init(&open);
	open.model = open.replica = name_good;
	message = request_of(TENSORHUB__V1__REQUEST__BODY_OPEN, &open);
	for (size_t i = 0; i < TH_ARRAY_LEN(bad); i++) {
		open.shard = bad[i][0];
		open.num_shards = bad[i][1];
		cr_assert_eq(take(&message), TH_E_INVALID);
	}
	tensorhub__v1__resolve__init(&resolve);
	resolve.model = name_good;
	resolve.spec = spec_latest;
	message = request_of(TENSORHUB__V1__REQUEST__BODY_RESOLVE, &resolve);
	cr_assert_eq(take(&message), 0);
	resolve.shard = TH_SHARDS_MAX;
	cr_assert_eq(take(&message), TH_E_INVALID);
}

Test(convert, hostile__operations__are_refused)
{
	static char *const specs[] = {
		name_empty, name_good, name_too_long, spec_open_end, spec_negative};
	Tensorhub__V1__Request message;
	Tensorhub__V1__Op op;

	name_of(name_too_long, TH_NAME_MAX + 1, '7');
	tensorhub__v1__op__init(&op);
	message = request_of(TENSORHUB__V1__REQUEST__BODY_OP, &op);
	op.spec = spec_number;
	op.kind = CTL_OP_PUBLISH;
	cr_assert_eq(take(&message), 0);
	op.kind = 0;
	cr_assert_eq(take(&message), TH_E_INVALID);
	op.kind = CTL_OP_LIST + 1;
	cr_assert_eq(take(&message), TH_E_INVALID);
	op.kind = UINT32_MAX;
	cr_assert_eq(take(&message), TH_E_INVALID);
	op.kind = CTL_OP_REPLICATE;
	op.timeout_ns = -2;
	cr_assert_eq(take(&message), TH_E_INVALID);
	op.timeout_ns = INT64_MIN;
	cr_assert_eq(take(&message), TH_E_INVALID);
	op.timeout_ns = 0;
	for (size_t i = 0; i < TH_ARRAY_LEN(specs); i++) {
		op.spec = specs[i];
		cr_assert_eq(take(&message), TH_E_INVALID, "spec \"%s\"", specs[i]);
	}
}

Test(convert, hostile__blobs__are_refused)
{
	static uint8_t bytes[TH_PART_BYTES_MAX + 1];
	Tensorhub__V1__Request message;
	Tensorhub__V1__BlobPart part;
	Tensorhub__V1__BlobGet get;
	Tensorhub__V1__Hash key;

	tensorhub__v1__hash__init(&key);
	tensorhub__v1__blob_part__init(&part);
	key.lo = 1;
	part.key = &key;
	part.total_bytes = 100;
	part.data = (ProtobufCBinaryData){100, bytes};
	message = request_of(TENSORHUB__V1__REQUEST__BODY_MANIFEST_PUT, &part);
	cr_assert_eq(take(&message), 0);
	part.offset = 1;
	cr_assert_eq(take(&message), TH_E_INVALID, "beyond the end");
	part.offset = UINT64_MAX - 50;
	cr_assert_eq(take(&message), TH_E_INVALID, "wraps");
	part.offset = 0;
	part.data.len = 0;
	cr_assert_eq(take(&message), TH_E_INVALID, "empty");
	part.data.len = sizeof(bytes);
	part.total_bytes = TH_BLOB_BYTES_MAX;
	cr_assert_eq(take(&message), TH_E_INVALID, "too long a part");
	part.data.len = 1;
	part.total_bytes = TH_BLOB_BYTES_MAX + 1;
	cr_assert_eq(take(&message), TH_E_INVALID, "too long a blob");
	part.total_bytes = 1;
	cr_assert_eq(take(&message), 0);
	key.lo = 0;
	cr_assert_eq(take(&message), TH_E_INVALID, "key of zeros");
	part.key = NULL;
	cr_assert_eq(take(&message), TH_E_INVALID, "no key");

	tensorhub__v1__blob_get__init(&get);
	message = request_of(TENSORHUB__V1__REQUEST__BODY_MANIFEST_GET, &get);
	cr_assert_eq(take(&message), TH_E_INVALID, "no key");
}

Test(convert, hostile__hashes_codes_ranges__are_refused)
{
	Tensorhub__V1__Request message;
	Tensorhub__V1__Register reg;
	Tensorhub__V1__Prepared prepared;
	Tensorhub__V1__LegEnd end;
	Tensorhub__V1__Hello hello;
	Tensorhub__V1__Hash key;

	tensorhub__v1__hash__init(&key);
	key.hi = 1;
	tensorhub__v1__register__init(&reg);
	message = request_of(TENSORHUB__V1__REQUEST__BODY_REGISTER, &reg);
	reg.layout = &key;
	cr_assert_eq(take(&message), TH_E_INVALID);
	reg.manifest = &key;
	cr_assert_eq(take(&message), 0);
	reg.layout = NULL;
	cr_assert_eq(take(&message), TH_E_INVALID);

	tensorhub__v1__prepared__init(&prepared);
	message = request_of(TENSORHUB__V1__REQUEST__BODY_PREPARED, &prepared);
	cr_assert_eq(take(&message), 0);
	prepared.code = 1;
	cr_assert_eq(take(&message), TH_E_INVALID);
	prepared.code = INT32_MIN;
	cr_assert_eq(take(&message), TH_E_INVALID);

	tensorhub__v1__leg_end__init(&end);
	message = request_of(TENSORHUB__V1__REQUEST__BODY_LEG_END, &end);
	cr_assert_eq(take(&message), 0);
	end.transport = name_of_control;
	cr_assert_eq(take(&message), TH_E_INVALID);

	tensorhub__v1__hello__init(&hello);
	message = request_of(TENSORHUB__V1__REQUEST__BODY_HELLO, &hello);
	cr_assert_eq(take(&message), TH_E_INVALID);
	hello.protocol_min = 2;
	hello.protocol_max = 1;
	cr_assert_eq(take(&message), TH_E_INVALID);
}

Test(convert, hostile__sentences__are_cut_and_cleaned)
{
	static char text[4096];
	struct convert_arena arena = {0};
	struct ctl_request got;
	Tensorhub__V1__Request message;
	Tensorhub__V1__Prepared prepared;
	uint8_t data[8192];
	size_t bytes;

	tensorhub__v1__prepared__init(&prepared);
	message = request_of(TENSORHUB__V1__REQUEST__BODY_PREPARED, &prepared);
	memset(text, 'x', TH_CTL_TEXT_BYTES - 2);
	strcpy(text + TH_CTL_TEXT_BYTES - 2, "\xc3\xa9 and more");
	memcpy(text, "a\x1b[31m\n\xff", 8);
	prepared.text = text;
	bytes = tensorhub__v1__request__pack(&message, data);
	cr_assert_eq(ctl_request_unpack(data, bytes, &arena, NULL, &got), 0);
	cr_assert_eq(strlen(got.u.prepared.text), TH_CTL_TEXT_BYTES - 2, "cut between characters");
	cr_assert_eq(strncmp(got.u.prepared.text, "a?[31m??x", 9), 0);
	convert_arena_free(&arena);
}

Test(convert, hostile__other_bodies__are_refused)
{
	Tensorhub__V1__Request message;
	Tensorhub__V1__Status status;

	tensorhub__v1__status__init(&status);
	message = request_of(TENSORHUB__V1__REQUEST__BODY_STATUS, &status);
	cr_assert_eq(take(&message), TH_E_INVALID);
	message = request_of(TENSORHUB__V1__REQUEST__BODY__NOT_SET, NULL);
	cr_assert_eq(take(&message), TH_E_INVALID);
}

/* A field of the length-delimited kind whose content is `count` times `filler`. */
static size_t
put_field(uint8_t *data, uint8_t tag, uint8_t filler, size_t count)
{
	size_t at = 0;

	data[at++] = tag;
	for (size_t left = count;; left >>= 7) {
		data[at] = (uint8_t)(left & 0x7f);
		if (left < 0x80)
			break;
		data[at++] |= 0x80;
	}
	at++;
	memset(data + at, filler, count);
	return at + count;
}

Test(convert, hostile__a_million_bytes_of_tiny_parts__stay_bounded)
{
	uint8_t *data = calloc(1, CONVERT_MESSAGE_BYTES_MAX);
	struct convert_arena arena = {0};
	struct th_err err = {0};
	struct ctl_request got;
	size_t bytes;

	/* BEAT (12): pairs of 0x0a 0x00 are empty legs. */
	bytes = put_field(data, (12 << 3) | 2, 0x0a, CONVERT_MESSAGE_BYTES_MAX - 16);
	for (size_t i = 5; i < bytes; i += 2)
		data[i] = 0;
	cr_assert_lt(ctl_request_unpack(data, bytes, &arena, &err, &got), 0);
	cr_assert_leq(arena.bytes, CONVERT_ARENA_BYTES_MAX);
	convert_arena_free(&arena);
	/* The same amount of unknown fields. */
	memset(data, 0, CONVERT_MESSAGE_BYTES_MAX);
	for (size_t i = 0; i + 3 <= CONVERT_MESSAGE_BYTES_MAX; i += 3)
		memcpy(data + i, "\xf8\x3f\x01", 3);
	cr_assert_lt(
		ctl_request_unpack(data, CONVERT_MESSAGE_BYTES_MAX - 1, &arena, &err, &got), 0);
	cr_assert_leq(arena.bytes, CONVERT_ARENA_BYTES_MAX);
	convert_arena_free(&arena);
	cr_assert_eq(ctl_request_unpack(data, CONVERT_MESSAGE_BYTES_MAX + 1, &arena, &err, &got),
		-EPROTO);
	convert_arena_free(&arena);
	free(data);
}

Test(convert, hostile__every_truncation_and_flip__gives_an_answer)
{
	struct ctl_request request = new_request(CTL_OP), got;
	struct th_rng rng;
	uint8_t *data, copy[512];
	size_t bytes;

	request.u.op.kind = CTL_OP_PUBLISH;
	request.u.op.sid = 7;
	strcpy(request.u.op.spec, "latest-2");
	request.u.op.attributes = hash_a;
	cr_assert_eq(ctl_request_pack(&request, &data, &bytes), 0);
	cr_assert_lt(bytes, sizeof(copy));
	th_rng_init_number(&rng, 2);
	for (int i = 0; i < 20000; i++) {
		struct convert_arena arena = {0};
		struct th_err err = {0};
		size_t length = i < (int)bytes ? (size_t)i : bytes;

		memcpy(copy, data, bytes);
		if (length == bytes)
			copy[th_rng_below(&rng, bytes)] ^= (uint8_t)(1u << th_rng_below(&rng, 8));
		if (ctl_request_unpack(copy, length, &arena, &err, &got) == 0)
			cr_assert_eq(err.code, 0);
		else
			cr_assert_neq(err.text[0], '\0');
		convert_arena_free(&arena);
	}
	free(data);
}

/* Packs a hostile reply and unpacks it as the answer to a request of that kind. */
static int
take_reply(Tensorhub__V1__Reply *message, enum ctl_request_kind kind)
{
	size_t bytes = tensorhub__v1__reply__get_packed_size(message);
	uint8_t *data = malloc(bytes + 1);
	struct convert_arena arena = {0};
	struct th_err err = {0};
	struct ctl_reply got;
	int rc;

	tensorhub__v1__reply__pack(message, data);
	rc = ctl_reply_unpack(data, bytes, kind, &arena, &err, &got);
	cr_assert_eq(err.text[0] != '\0', rc != 0);
	convert_arena_free(&arena);
	free(data);
	return rc;
}

Test(convert, hostile__replies__are_refused)
{
	Tensorhub__V1__Reply message;
	Tensorhub__V1__OpenReply open;
	Tensorhub__V1__PollReply poll;
	Tensorhub__V1__Event event, *events[TH_EVENTS_MAX + 1];
	Tensorhub__V1__EvGo go;
	Tensorhub__V1__EvFence fence;
	Tensorhub__V1__Grant grant;
	uint8_t ticket[17] = {0};

	tensorhub__v1__reply__init(&message);
	cr_assert_eq(take_reply(&message, CTL_BEAT), 0);
	cr_assert_eq(take_reply(&message, CTL_OPEN), -EPROTO, "code 0 without a session");
	tensorhub__v1__open_reply__init(&open);
	message.body_case = TENSORHUB__V1__REPLY__BODY_OPEN;
	message.open = &open;
	cr_assert_eq(take_reply(&message, CTL_OPEN), 0);
	cr_assert_eq(take_reply(&message, CTL_BEAT), -EPROTO);
	message.code = 7;
	cr_assert_eq(take_reply(&message, CTL_OPEN), TH_E_INVALID);
	message.code = 0;

	tensorhub__v1__poll_reply__init(&poll);
	tensorhub__v1__event__init(&event);
	tensorhub__v1__ev_fence__init(&fence);
	for (size_t i = 0; i < TH_ARRAY_LEN(events); i++)
		events[i] = &event;
	event.body_case = TENSORHUB__V1__EVENT__BODY_FENCE;
	event.fence = &fence;
	event.number = 1;
	poll.events = events;
	poll.n_events = TH_EVENTS_MAX;
	message.body_case = TENSORHUB__V1__REPLY__BODY_POLL;
	message.poll = &poll;
	cr_assert_eq(take_reply(&message, CTL_POLL), 0);
	poll.n_events = TH_EVENTS_MAX + 1;
	cr_assert_eq(take_reply(&message, CTL_POLL), TH_E_INVALID, "too many events");
	poll.n_events = 1;
	event.number = 0;
	cr_assert_eq(take_reply(&message, CTL_POLL), TH_E_INVALID, "event 0");
	event.number = 1;
	event.body_case = TENSORHUB__V1__EVENT__BODY__NOT_SET;
	cr_assert_eq(take_reply(&message, CTL_POLL), TH_E_INVALID, "no event");

	tensorhub__v1__ev_go__init(&go);
	tensorhub__v1__grant__init(&grant);
	event.body_case = TENSORHUB__V1__EVENT__BODY_GO;
	event.go = &go;
	cr_assert_eq(take_reply(&message, CTL_POLL), TH_E_INVALID, "GO without a grant");
	go.grant = &grant;
	grant.source_address = grant.source_node = grant.source_replica = name_good;
	grant.ticket = (ProtobufCBinaryData){16, ticket};
	cr_assert_eq(take_reply(&message, CTL_POLL), 0);
	grant.ticket.len = 15;
	cr_assert_eq(take_reply(&message, CTL_POLL), TH_E_INVALID, "short ticket");
	grant.ticket.len = 17;
	cr_assert_eq(take_reply(&message, CTL_POLL), TH_E_INVALID, "long ticket");
	grant.ticket.len = 16;
	grant.source_address = name_of_control;
	cr_assert_eq(take_reply(&message, CTL_POLL), TH_E_INVALID, "address");
}

Test(convert, refusal__names_the_request_it_answers)
{
	static const uint8_t junk[] = {0xff, 0xff, 0xff};
	struct convert_arena arena = {0};
	struct th_err failure = {0}, err = {0};
	Tensorhub__V1__Request message;
	struct ctl_reply got;
	uint8_t data[64], *reply;
	size_t bytes, reply_bytes;

	message = request_of(TENSORHUB__V1__REQUEST__BODY__NOT_SET, NULL);
	bytes = tensorhub__v1__request__pack(&message, data);
	th_fail(&failure, TH_E_INVALID, "no body");
	cr_assert_eq(ctl_refusal_pack(data, bytes, &failure, &reply, &reply_bytes), 0);
	cr_assert_eq(ctl_reply_unpack(reply, reply_bytes, CTL_OPEN, &arena, &err, &got), 0);
	cr_assert_eq(got.request_no, 5);
	cr_assert_eq(got.code, TH_E_INVALID);
	cr_assert_str_eq(got.text, "no body");
	free(reply);
	cr_assert_eq(ctl_refusal_pack(junk, sizeof(junk), &failure, &reply, &reply_bytes), 0);
	cr_assert_eq(ctl_reply_unpack(reply, reply_bytes, CTL_OPEN, &arena, &err, &got), 0);
	cr_assert_eq(got.request_no, 0);
	free(reply);
	convert_arena_free(&arena);
}
