/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_hostile_test - nothing that a hostile peer can write reaches a core: names, ranges,
 * hashes, sizes, tiny parts by the million, truncations and flips.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/proto/convert.h"
#include "ipc/proto/tensorhub.pb-c.h"
#include "tests/support/rng.h"

static void
name_of(char *ret_name, size_t length, char letter)
{
	memset(ret_name, letter, length);
	ret_name[length] = '\0';
}

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
static char name_of_letters[] = "abc";
static char name_good[] = "good";
static char spec_latest[] = "latest";
static char spec_number[] = "17";
static char spec_open_end[] = "latest-";
static char spec_negative[] = "-1";
static char *const bad_names[] = {name_too_long, name_of_control, name_not_utf8, name_empty};

Test(convert_hostile, names__are_refused)
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

Test(convert_hostile, pages__of_no_snapshot__are_refused)
{
	Tensorhub__V1__Page page;
	Tensorhub__V1__List list;
	Tensorhub__V1__Inspect inspect;
	Tensorhub__V1__Request message;

	tensorhub__v1__page__init(&page);
	tensorhub__v1__list__init(&list);
	tensorhub__v1__inspect__init(&inspect);
	list.model = name_good;
	list.page = inspect.page = &page;
	for (int i = 0; i < 2; i++) {
		message = i == 0 ? request_of(TENSORHUB__V1__REQUEST__BODY_LIST, &list)
				 : request_of(TENSORHUB__V1__REQUEST__BODY_INSPECT, &inspect);
		page.snapshot = page.next = 0;
		cr_assert_eq(take(&message), 0);
		page.next = 1;
		cr_assert_eq(take(&message), TH_E_INVALID);
		page.snapshot = UINT64_MAX;
		page.next = UINT64_MAX;
		cr_assert_eq(take(&message), 0);
	}
}

Test(convert_hostile, shards__are_refused)
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

Test(convert_hostile, operations__are_refused)
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
	op.kind = CTL_OP_FOLLOW + 1;
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

Test(convert_hostile, blobs__are_refused)
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

Test(convert_hostile, hashes_codes_ranges__are_refused)
{
	Tensorhub__V1__Request message;
	Tensorhub__V1__Register reg;
	Tensorhub__V1__Prepared prepared;
	Tensorhub__V1__LegEnd end;
	Tensorhub__V1__Hello hello;
	Tensorhub__V1__Attach attach;
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
	hello.protocol_max = 2;
	cr_assert_eq(take(&message), 0);
	hello.epoch = TH_EPOCH_MAX + 1;
	cr_assert_eq(take(&message), TH_E_INVALID);
	hello.epoch = 0;
	hello.cluster = name_of_control;
	cr_assert_eq(take(&message), TH_E_INVALID);
	tensorhub__v1__attach__init(&attach);
	message = request_of(TENSORHUB__V1__REQUEST__BODY_ATTACH, &attach);
	attach.node = attach.datacenter = attach.data_address = name_of_letters;
	cr_assert_eq(take(&message), 0);
	attach.epoch = TH_EPOCH_MAX;
	cr_assert_eq(take(&message), 0, "what a server has given");
	attach.epoch = TH_EPOCH_MAX + 1;
	cr_assert_eq(take(&message), TH_E_INVALID);
	attach.epoch = 0;
	attach.cluster = name_of_control;
	cr_assert_eq(take(&message), TH_E_INVALID);
}

Test(convert_hostile, secrets__of_other_lengths_are_refused)
{
	static uint8_t bytes[17] = {1};
	Tensorhub__V1__Request message;
	Tensorhub__V1__Poll poll;

	tensorhub__v1__poll__init(&poll);
	message = request_of(TENSORHUB__V1__REQUEST__BODY_POLL, &poll);
	for (size_t length = 0; length <= sizeof(bytes); length++) {
		message.secret = (ProtobufCBinaryData){length, bytes};
		cr_assert_eq(take(&message), length == 0 || length == 16 ? 0 : TH_E_INVALID);
	}
}

Test(convert_hostile, sentences__are_cut_and_cleaned)
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

Test(convert_hostile, other_bodies__are_refused)
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

Test(convert_hostile, a_million_bytes_of_tiny_parts__stay_bounded)
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

Test(convert_hostile, every_truncation_and_flip__gives_an_answer)
{
	struct ctl_request request = {.kind = CTL_OP}, got;
	struct th_rng rng;
	uint8_t *data, copy[512];
	size_t bytes;

	request.u.op.kind = CTL_OP_PUBLISH;
	request.u.op.sid = 7;
	strcpy(request.u.op.spec, "latest-2");
	request.u.op.attributes = (struct th_hash){1, 2};
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

Test(convert_hostile, replies__are_refused)
{
	Tensorhub__V1__Reply message;
	Tensorhub__V1__OpenReply open;
	Tensorhub__V1__PollReply poll;
	Tensorhub__V1__Event event, *events[TH_EVENTS_MAX + 1];
	Tensorhub__V1__EvGo go;
	Tensorhub__V1__EvFence fence;
	Tensorhub__V1__Grant grant;
	uint8_t ticket[17] = {0};
	char reason[2 * CTL_REASON_BYTES] = "";

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
	memset(reason, 'x', sizeof(reason) - 1);
	go.reason = reason;
	cr_assert_eq(take_reply(&message, CTL_POLL), 0, "a long reason is cut");
	grant.ticket.len = 15;
	cr_assert_eq(take_reply(&message, CTL_POLL), TH_E_INVALID, "short ticket");
	grant.ticket.len = 17;
	cr_assert_eq(take_reply(&message, CTL_POLL), TH_E_INVALID, "long ticket");
	grant.ticket.len = 16;
	grant.source_address = name_of_control;
	cr_assert_eq(take_reply(&message, CTL_POLL), TH_E_INVALID, "address");
}

Test(convert_hostile, refusal__names_the_request_it_answers)
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
