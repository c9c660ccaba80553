/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_admin: what operators ask and are told comes back whole; its bytes are fixed; what a
 * hostile peer may write is refused with a sentence.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/convert_wire.h"

static struct ctl_request
new_request(enum ctl_admin_verb verb)
{
	struct ctl_request request;

	memset(&request, 0, sizeof(request));
	request.kind = CTL_ADMIN;
	request.request_no = 7;
	request.u.admin.verb = verb;
	return request;
}

Test(convert_admin, every_verb__comes_back)
{
	struct ctl_request request = new_request(CTL_ADMIN_DRAIN);

	wire_name(request.u.admin.node, TH_NAME_MAX, 'n');
	wire_name(request.u.admin.from, TH_NAME_MAX, 'f');
	wire_request_same(&request);
	request.u.admin.look = true;
	wire_request_same(&request);
	request.u.admin.leaving = true;
	wire_request_same(&request);
	request = new_request(CTL_ADMIN_UNDRAIN);
	strcpy(request.u.admin.node, "h1");
	wire_request_same(&request);
	request = new_request(CTL_ADMIN_EVICT);
	strcpy(request.u.admin.model, "m");
	strcpy(request.u.admin.replica, "r");
	request.u.admin.force = true;
	request.u.admin.group = UINT64_MAX;
	wire_request_same(&request);
	request = new_request(CTL_ADMIN_EVENTS);
	request.u.admin.after = UINT64_MAX;
	wire_request_same(&request);
	request = new_request(CTL_ADMIN_GO);
	wire_name(request.u.admin.model, TH_NAME_MAX, 'm');
	strcpy(request.u.admin.spec, "latest-18446744073709551615");
	wire_request_same(&request);
}

Test(convert_admin, attach__brings_the_state_of_the_node)
{
	struct ctl_request request;

	memset(&request, 0, sizeof(request));
	request.kind = CTL_ATTACH;
	request.agent_inc = 5;
	strcpy(request.u.attach.node, "n");
	strcpy(request.u.attach.datacenter, "d");
	strcpy(request.u.attach.data_address, "h:1");
	request.u.attach.draining = true;
	wire_request_same(&request);
	request.u.attach.leaving = true;
	wire_request_same(&request);
}

Test(convert_admin, event_of_a_node__comes_back)
{
	struct ctl_event event, got;
	struct convert_arena arena = {0};
	struct th_err err = {0};
	uint8_t *data;
	size_t bytes;

	memset(&event, 0, sizeof(event));
	event.kind = CTL_EV_NODE;
	event.number = 3;
	event.u.node.draining = true;
	wire_name(event.u.node.text, TH_CTL_TEXT_BYTES - 1, 't');
	cr_assert_eq(ctl_event_pack(&event, &data, &bytes), 0);
	cr_assert_eq(ctl_event_unpack(data, bytes, &arena, &err, &got), 0, "%s", err.text);
	cr_assert_eq(got.kind, CTL_EV_NODE);
	cr_assert(got.u.node.draining);
	cr_assert_str_eq(got.u.node.text, event.u.node.text);
	free(data);
	convert_arena_free(&arena);
}

Test(convert_admin, golden__drain)
{
	struct ctl_request request = new_request(CTL_ADMIN_DRAIN);

	request.request_no = 0;
	strcpy(request.u.admin.node, "h1");
	request.u.admin.look = true;
	/* Field 50, length 8; from the .proto. */
	wire_request_is(&request, WIRE_BYTES("\x92\x03\x08\x08\x01\x12\x02h1\x28\x01"));
}

Test(convert_admin, golden__go)
{
	struct ctl_request request = new_request(CTL_ADMIN_GO);

	request.request_no = 0;
	strcpy(request.u.admin.model, "m");
	strcpy(request.u.admin.spec, "17");
	/* Field 50, length 9. */
	wire_request_is(&request, WIRE_BYTES("\x92\x03\x09\x08\x05\x1a\x01m\x5a\x02"
					     "17"));
}

Test(convert_admin, reply__comes_back)
{
	static struct ctl_blocker blockers[CTL_BLOCKERS_MAX];
	static struct ctl_log_entry events[CTL_LOG_ENTRIES_MAX];
	struct ctl_reply reply = {.kind = CTL_ADMIN, .request_no = 9}, got;
	struct convert_arena arena = {0};
	struct th_err err = {0};
	uint8_t *data;
	size_t bytes;

	for (uint32_t i = 0; i < CTL_BLOCKERS_MAX; i++) {
		struct ctl_blocker *blocker = &blockers[i];
		blocker->kind = "last-copy";
		wire_name(blocker->model, TH_NAME_MAX, 'm');
		wire_name(blocker->replica, TH_NAME_MAX, 'r');
		blocker->shard = i;
		blocker->version = (struct th_version){1, 2};
		blocker->stays = i % 2 == 0;
		wire_name(blocker->text, TH_CTL_TEXT_BYTES - 1, 't');
	}
	for (uint32_t i = 0; i < CTL_LOG_ENTRIES_MAX; i++) {
		struct ctl_log_entry *entry = &events[i];
		entry->number = UINT64_MAX - CTL_LOG_ENTRIES_MAX + i;
		entry->at_ns = -1;
		entry->wall_ns = INT64_MAX;
		entry->severity = "warning";
		wire_name(entry->model, TH_NAME_MAX, 'm');
		wire_name(entry->node, TH_NAME_MAX, 'n');
		wire_name(entry->text, TH_CTL_TEXT_BYTES - 1, 't');
	}
	reply.u.admin = (struct ctl_admin_reply){
		.server_inc = 1,
		.state = "draining",
		.text = "two things are waited for",
		.group = 2,
		.members = 3,
		.legs_in = 4,
		.legs_out = 5,
		.num_blockers = UINT32_MAX,
		.num_told = CTL_BLOCKERS_MAX,
		.blockers = blockers,
		.num_lost = 7,
		.lost_text = "version 1 of m is lost",
		.last_event = UINT64_MAX,
		.go = {3, 9},
		.num_events = CTL_LOG_ENTRIES_MAX,
		.events = events,
	};
	cr_assert_eq(ctl_reply_pack(&reply, &data, &bytes), 0);
	/* The longest there can be is one message. */
	cr_assert_lt(bytes, CONVERT_MESSAGE_BYTES_MAX);
	cr_assert_eq(
		ctl_reply_unpack(data, bytes, CTL_ADMIN, &arena, &err, &got), 0, "%s", err.text);
	const struct ctl_admin_reply *admin = &got.u.admin;
	cr_assert_eq(admin->server_inc, 1);
	cr_assert_str_eq(admin->state, "draining");
	cr_assert_str_eq(admin->text, "two things are waited for");
	cr_assert_eq(admin->group, 2);
	cr_assert_eq(admin->members, 3);
	cr_assert_eq(admin->legs_in, 4);
	cr_assert_eq(admin->legs_out, 5);
	cr_assert_eq(admin->num_blockers, UINT32_MAX);
	cr_assert_eq(admin->num_told, CTL_BLOCKERS_MAX);
	cr_assert_eq(admin->num_lost, 7);
	cr_assert_str_eq(admin->lost_text, "version 1 of m is lost");
	cr_assert_eq(admin->last_event, UINT64_MAX);
	cr_assert_eq(admin->go.lineage, 3);
	cr_assert_eq(admin->go.version, 9);
	cr_assert_eq(admin->num_events, CTL_LOG_ENTRIES_MAX);
	for (uint32_t i = 0; i < admin->num_told; i++) {
		cr_assert_str_eq(admin->blockers[i].kind, blockers[i].kind);
		cr_assert_str_eq(admin->blockers[i].model, blockers[i].model);
		cr_assert_str_eq(admin->blockers[i].replica, blockers[i].replica);
		cr_assert_eq(admin->blockers[i].shard, i);
		cr_assert_eq(admin->blockers[i].version.version, 2);
		cr_assert_eq(admin->blockers[i].stays, i % 2 == 0);
		cr_assert_str_eq(admin->blockers[i].text, blockers[i].text);
	}
	for (uint32_t i = 0; i < admin->num_events; i++) {
		cr_assert_eq(admin->events[i].number, events[i].number);
		cr_assert_eq(admin->events[i].at_ns, -1);
		cr_assert_eq(admin->events[i].wall_ns, INT64_MAX);
		cr_assert_str_eq(admin->events[i].severity, "warning");
		cr_assert_str_eq(admin->events[i].model, events[i].model);
		cr_assert_str_eq(admin->events[i].node, events[i].node);
		cr_assert_str_eq(admin->events[i].text, events[i].text);
	}
	free(data);
	convert_arena_free(&arena);
}

/* ---- hostile ---- */

static int
take(Tensorhub__V1__Admin *admin)
{
	struct ctl_request got;

	return wire_take_request(TENSORHUB__V1__REQUEST__BODY_ADMIN, admin, &got);
}

static char good[] = "good", version[] = "17", bad_control[] = "a\nb", bad_bytes[] = "a\xff",
	    empty[] = "";
static char too_long[TH_NAME_MAX + 2];
static char *const bad[] = {bad_control, bad_bytes, too_long};

Test(convert_admin, verbs_and_names__are_refused)
{
	Tensorhub__V1__Admin admin;

	wire_name(too_long, TH_NAME_MAX + 1, 'n');
	tensorhub__v1__admin__init(&admin);
	cr_assert_eq(take(&admin), TH_E_INVALID, "verb 0");
	admin.verb = CTL_ADMIN_GO + 1;
	cr_assert_eq(take(&admin), TH_E_INVALID, "a verb of tomorrow");
	admin.verb = UINT32_MAX;
	cr_assert_eq(take(&admin), TH_E_INVALID);
	for (uint32_t verb = CTL_ADMIN_DRAIN; verb <= CTL_ADMIN_UNDRAIN; verb++) {
		admin.verb = verb;
		admin.node = empty;
		cr_assert_eq(take(&admin), TH_E_INVALID, "a node is needed");
		for (size_t i = 0; i < TH_ARRAY_LEN(bad); i++) {
			admin.node = bad[i];
			cr_assert_eq(take(&admin), TH_E_INVALID);
		}
		admin.node = good;
		cr_assert_eq(take(&admin), 0);
	}
	admin.verb = CTL_ADMIN_EVICT;
	cr_assert_eq(take(&admin), TH_E_INVALID, "a model is needed");
	admin.model = good;
	cr_assert_eq(take(&admin), TH_E_INVALID, "a replica is needed");
	admin.replica = good;
	cr_assert_eq(take(&admin), 0);
	for (size_t i = 0; i < TH_ARRAY_LEN(bad); i++) {
		admin.model = bad[i];
		cr_assert_eq(take(&admin), TH_E_INVALID);
		admin.model = good;
		admin.replica = bad[i];
		cr_assert_eq(take(&admin), TH_E_INVALID);
		admin.replica = good;
		admin.from = bad[i];
		cr_assert_eq(take(&admin), TH_E_INVALID);
		admin.from = empty;
	}
	admin.verb = CTL_ADMIN_GO;
	cr_assert_eq(take(&admin), TH_E_INVALID, "a version is needed");
	admin.spec = good;
	cr_assert_eq(take(&admin), TH_E_INVALID, "it is no version");
	admin.spec = version;
	cr_assert_eq(take(&admin), 0);
	admin.model = empty;
	cr_assert_eq(take(&admin), TH_E_INVALID, "a model is needed");
}

static int
take_reply(Tensorhub__V1__AdminReply *admin)
{
	struct convert_arena arena = {0};
	struct ctl_reply got;
	int rc = wire_take_reply(CTL_ADMIN, TENSORHUB__V1__REPLY__BODY_ADMIN, admin, &arena, &got);

	if (rc == 0 && got.u.admin.num_told > 0)
		cr_assert_null(strchr(got.u.admin.blockers[0].text, '\033'));
	convert_arena_free(&arena);
	return rc;
}

Test(convert_admin, replies__are_refused_or_made_harmless)
{
	static char escape[] = "\033[2J";
	Tensorhub__V1__AdminReply admin;
	Tensorhub__V1__Blocker blocker, *blockers[CTL_BLOCKERS_MAX + 1];
	Tensorhub__V1__LogEntry entry, second, *events[CTL_LOG_ENTRIES_MAX + 1];

	tensorhub__v1__admin_reply__init(&admin);
	tensorhub__v1__blocker__init(&blocker);
	tensorhub__v1__log_entry__init(&entry);
	tensorhub__v1__log_entry__init(&second);
	cr_assert_eq(take_reply(&admin), 0);
	admin.state = escape;
	cr_assert_eq(take_reply(&admin), TH_E_INVALID);
	admin.state = good;
	for (size_t i = 0; i < TH_ARRAY_LEN(blockers); i++)
		blockers[i] = &blocker;
	admin.blockers = blockers;
	admin.n_blockers = 1;
	cr_assert_eq(take_reply(&admin), TH_E_INVALID, "more told than there are");
	admin.num_blockers = UINT32_MAX;
	blocker.text = escape;
	cr_assert_eq(take_reply(&admin), 0);
	blocker.model = escape;
	cr_assert_eq(take_reply(&admin), TH_E_INVALID);
	blocker.model = good;
	admin.n_blockers = CTL_BLOCKERS_MAX;
	cr_assert_eq(take_reply(&admin), 0);
	admin.n_blockers++;
	cr_assert_eq(take_reply(&admin), TH_E_INVALID, "too many");
	admin.n_blockers = 0;
	for (size_t i = 0; i < TH_ARRAY_LEN(events); i++)
		events[i] = &entry;
	admin.events = events;
	admin.n_events = CTL_LOG_ENTRIES_MAX + 1;
	cr_assert_eq(take_reply(&admin), TH_E_INVALID, "too many");
	admin.n_events = 2;
	entry.number = second.number = 5;
	events[1] = &second;
	cr_assert_eq(take_reply(&admin), TH_E_INVALID, "one twice");
	second.number = 4;
	cr_assert_eq(take_reply(&admin), TH_E_INVALID, "backward");
	second.number = 9;
	cr_assert_eq(take_reply(&admin), 0, "a gap is what was forgotten");
	second.node = bad_bytes;
	cr_assert_eq(take_reply(&admin), TH_E_INVALID);
}
