/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_admin - what operators ask and are told: drain, evict, events, go. Pure.
 */
#include <errno.h>

#include "ipc/proto/convert_internal.h"

/* ---- requests ------------------------------------------------------------------------------- */

Tensorhub__V1__Admin *
convert_out_admin(struct convert_arena *arena, const struct ctl_admin *admin)
{
	Tensorhub__V1__Admin *message = convert_message(arena, &tensorhub__v1__admin__descriptor);

	message->verb = admin->verb;
	message->node = convert_out_text(admin->node);
	message->model = convert_out_text(admin->model);
	message->replica = convert_out_text(admin->replica);
	message->look = admin->look;
	message->leaving = admin->leaving;
	message->force = admin->force;
	message->group = admin->group;
	message->after = admin->after;
	message->from = convert_out_text(admin->from);
	message->spec = convert_out_text(admin->spec);
	return message;
}

void
convert_in_admin(
	struct convert_in *in, const Tensorhub__V1__Admin *message, struct ctl_admin *ret_admin)
{
	bool of_node = message->verb == CTL_ADMIN_DRAIN || message->verb == CTL_ADMIN_UNDRAIN;
	bool of_replica = message->verb == CTL_ADMIN_EVICT;

	in->message = "ADMIN";
	convert_in_check(in, message->verb >= CTL_ADMIN_DRAIN && message->verb <= CTL_ADMIN_GO,
		"verb", "is not drain, undrain, evict, events or go");
	if (of_node)
		convert_in_name(in, "node", message->node, TH_NAME_MAX, ret_admin->node);
	if (of_replica) {
		convert_in_name(in, "model", message->model, TH_NAME_MAX, ret_admin->model);
		convert_in_name(in, "replica", message->replica, TH_NAME_MAX, ret_admin->replica);
	}
	if (message->verb == CTL_ADMIN_GO) {
		convert_in_name(in, "model", message->model, TH_NAME_MAX, ret_admin->model);
		convert_in_spec(in, message->spec, true, ret_admin->spec);
	}
	convert_in_name_or_empty(in, "from", message->from, TH_NAME_MAX, ret_admin->from);
	ret_admin->verb = message->verb;
	ret_admin->look = message->look;
	ret_admin->leaving = message->leaving;
	ret_admin->force = message->force;
	ret_admin->group = message->group;
	ret_admin->after = message->after;
}

/* ---- replies -------------------------------------------------------------------------------- */

size_t
convert_admin_messages(const struct ctl_admin_reply *reply)
{
	return 3 + 2 * (size_t)reply->num_told + (size_t)reply->num_events;
}

static Tensorhub__V1__Blocker *
out_blocker(struct convert_arena *arena, const struct ctl_blocker *blocker)
{
	Tensorhub__V1__Blocker *message =
		convert_message(arena, &tensorhub__v1__blocker__descriptor);

	message->kind = convert_out_text(blocker->kind);
	message->model = convert_out_text(blocker->model);
	message->replica = convert_out_text(blocker->replica);
	message->shard = blocker->shard;
	message->version = convert_out_version(arena, blocker->version);
	message->stays = blocker->stays;
	message->text = convert_out_text(blocker->text);
	return message;
}

static Tensorhub__V1__LogEntry *
out_entry(struct convert_arena *arena, const struct ctl_log_entry *entry)
{
	Tensorhub__V1__LogEntry *message =
		convert_message(arena, &tensorhub__v1__log_entry__descriptor);

	message->number = entry->number;
	message->at_ns = entry->at_ns;
	message->wall_ns = entry->wall_ns;
	message->severity = convert_out_text(entry->severity);
	message->model = convert_out_text(entry->model);
	message->node = convert_out_text(entry->node);
	message->text = convert_out_text(entry->text);
	return message;
}

Tensorhub__V1__AdminReply *
convert_out_admin_reply(struct convert_arena *arena, const struct ctl_admin_reply *reply)
{
	Tensorhub__V1__AdminReply *message =
		convert_message(arena, &tensorhub__v1__admin_reply__descriptor);

	message->server_inc = reply->server_inc;
	message->state = convert_out_text(reply->state);
	message->text = convert_out_text(reply->text);
	message->group = reply->group;
	message->members = reply->members;
	message->legs_in = reply->legs_in;
	message->legs_out = reply->legs_out;
	message->num_blockers = reply->num_blockers;
	message->n_blockers = reply->num_told;
	message->blockers = convert_pointers(arena, reply->num_told);
	for (uint32_t i = 0; i < reply->num_told; i++)
		message->blockers[i] = out_blocker(arena, &reply->blockers[i]);
	message->num_lost = reply->num_lost;
	message->lost_text = convert_out_text(reply->lost_text);
	message->last_event = reply->last_event;
	message->go = convert_out_version(arena, reply->go);
	message->n_events = reply->num_events;
	message->events = convert_pointers(arena, reply->num_events);
	for (uint32_t i = 0; i < reply->num_events; i++)
		message->events[i] = out_entry(arena, &reply->events[i]);
	return message;
}

static void
in_blocker(struct convert_in *in, const Tensorhub__V1__Blocker *message,
	struct ctl_blocker *ret_blocker)
{
	convert_in_word(in, "kind", message->kind, &ret_blocker->kind);
	convert_in_name_or_empty(in, "model", message->model, TH_NAME_MAX, ret_blocker->model);
	convert_in_name_or_empty(
		in, "replica", message->replica, TH_NAME_MAX, ret_blocker->replica);
	ret_blocker->shard = message->shard;
	convert_in_version(message->version, &ret_blocker->version);
	ret_blocker->stays = message->stays;
	convert_in_sentence(message->text, sizeof(ret_blocker->text), ret_blocker->text);
}

static void
in_entry(struct convert_in *in, const Tensorhub__V1__LogEntry *message,
	struct ctl_log_entry *ret_entry)
{
	ret_entry->number = message->number;
	ret_entry->at_ns = message->at_ns;
	ret_entry->wall_ns = message->wall_ns;
	convert_in_word(in, "severity", message->severity, &ret_entry->severity);
	convert_in_name_or_empty(in, "model", message->model, TH_NAME_MAX, ret_entry->model);
	convert_in_name_or_empty(in, "node", message->node, TH_NAME_MAX, ret_entry->node);
	convert_in_sentence(message->text, sizeof(ret_entry->text), ret_entry->text);
}

static void
in_entries(struct convert_in *in, const Tensorhub__V1__AdminReply *message,
	struct ctl_admin_reply *ret_reply)
{
	struct ctl_blocker *blockers =
		convert_alloc_array(in->arena, message->n_blockers, sizeof(*blockers));
	struct ctl_log_entry *events =
		convert_alloc_array(in->arena, message->n_events, sizeof(*events));

	if (blockers == NULL || events == NULL) {
		convert_in_fail(in, -ENOMEM, "entries", "do not fit in memory");
		return;
	}
	for (size_t i = 0; i < message->n_blockers && in->code == 0; i++)
		in_blocker(in, message->blockers[i], &blockers[i]);
	for (size_t i = 0; i < message->n_events && in->code == 0; i++) {
		in_entry(in, message->events[i], &events[i]);
		convert_in_check(in, i == 0 || events[i].number > events[i - 1].number, "events",
			"are not in order");
	}
	ret_reply->num_told = (uint32_t)message->n_blockers;
	ret_reply->blockers = blockers;
	ret_reply->num_events = (uint32_t)message->n_events;
	ret_reply->events = events;
}

void
convert_in_admin_reply(struct convert_in *in, const Tensorhub__V1__AdminReply *message,
	struct ctl_admin_reply *ret_reply)
{
	in->message = "ADMIN";
	convert_in_check(
		in, message->n_blockers <= CTL_BLOCKERS_MAX, "blockers", "are more than 64");
	convert_in_check(
		in, message->n_events <= CTL_LOG_ENTRIES_MAX, "events", "are more than 256");
	convert_in_check(in, message->num_blockers >= message->n_blockers, "num_blockers",
		"is less than are told");
	if (in->code != 0)
		return;
	ret_reply->server_inc = message->server_inc;
	convert_in_word(in, "state", message->state, &ret_reply->state);
	convert_in_sentence(message->text, sizeof(ret_reply->text), ret_reply->text);
	ret_reply->group = message->group;
	ret_reply->members = message->members;
	ret_reply->legs_in = message->legs_in;
	ret_reply->legs_out = message->legs_out;
	ret_reply->num_blockers = message->num_blockers;
	ret_reply->num_lost = message->num_lost;
	convert_in_sentence(message->lost_text, sizeof(ret_reply->lost_text), ret_reply->lost_text);
	ret_reply->last_event = message->last_event;
	convert_in_version(message->go, &ret_reply->go);
	in_entries(in, message, ret_reply);
}
