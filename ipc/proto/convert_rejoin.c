/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_rejoin - OPEN and REGISTER, and REJOIN, which repeats both to another server. Pure.
 */
#include <errno.h>

#include "ipc/base/name.h"
#include "ipc/proto/convert_internal.h"

/* ---- out ---------------------------------------------------------------------------------- */

Tensorhub__V1__Open *
convert_out_open(struct convert_arena *arena, const struct ctl_open *open)
{
	Tensorhub__V1__Open *body = convert_message(arena, &tensorhub__v1__open__descriptor);

	body->model = convert_out_text(open->model);
	body->replica = convert_out_text(open->replica);
	body->launch_id = convert_out_text(open->launch_id);
	body->lineage = open->lineage;
	body->shard = open->shard;
	body->num_shards = open->num_shards;
	body->flags = open->flags;
	body->retain = convert_out_text(open->retain);
	body->reservation = open->reservation;
	body->pid = open->pid;
	body->copy_why = open->copy_why;
	return body;
}

Tensorhub__V1__Register *
convert_out_register(struct convert_arena *arena, const struct ctl_register *reg)
{
	Tensorhub__V1__Register *body =
		convert_message(arena, &tensorhub__v1__register__descriptor);

	body->sid = reg->sid;
	body->layout = convert_out_hash(arena, reg->layout);
	body->manifest = convert_out_hash(arena, reg->manifest);
	body->bytes = reg->bytes;
	body->num_chunks = reg->num_chunks;
	return body;
}

static Tensorhub__V1__RunningOp *
out_running(struct convert_arena *arena, const struct ctl_rejoin *rejoin)
{
	Tensorhub__V1__RunningOp *body =
		convert_message(arena, &tensorhub__v1__running_op__descriptor);

	body->op_seq = rejoin->op_seq;
	body->kind = rejoin->kind;
	body->flags = rejoin->flags;
	body->spec = convert_out_text(rejoin->spec);
	body->version = convert_out_version(arena, rejoin->version);
	body->cancelled = rejoin->cancelled;
	body->done = rejoin->done;
	body->chunks = rejoin->chunks;
	body->leg = rejoin->leg;
	body->leg_stops = rejoin->leg_stops;
	body->source_sid = rejoin->source_sid;
	body->source_gen = rejoin->source_gen;
	body->content = convert_out_hash(arena, rejoin->announced);
	return body;
}

static Tensorhub__V1__KnownOutcome *
convert_rejoin_out_outcome(struct convert_arena *arena, const struct ctl_known_outcome *outcome)
{
	Tensorhub__V1__KnownOutcome *body =
		convert_message(arena, &tensorhub__v1__known_outcome__descriptor);

	body->op_seq = outcome->op_seq;
	body->kind = outcome->kind;
	body->flags = outcome->flags;
	body->spec = convert_out_text(outcome->spec);
	body->code = outcome->code;
	body->updated = outcome->updated;
	body->went = outcome->went;
	body->version = convert_out_version(arena, outcome->version);
	return body;
}

static Tensorhub__V1__Following *
out_following(struct convert_arena *arena, const struct ctl_rejoin *rejoin)
{
	Tensorhub__V1__Following *body;

	if (rejoin->follows[0] == '\0' && th_version_none(rejoin->go) &&
		rejoin->automatic_waits == 0 && rejoin->automatic.op_seq == 0)
		return NULL;
	body = convert_message(arena, &tensorhub__v1__following__descriptor);
	body->spec = convert_out_text(rejoin->follows);
	body->go = convert_out_version(arena, rejoin->go);
	body->waits = rejoin->automatic_waits;
	if (rejoin->automatic.op_seq != 0)
		body->ended = convert_rejoin_out_outcome(arena, &rejoin->automatic);
	return body;
}

Tensorhub__V1__Rejoin *
convert_out_rejoin(struct convert_arena *arena, const struct ctl_rejoin *rejoin)
{
	Tensorhub__V1__Rejoin *body = convert_message(arena, &tensorhub__v1__rejoin__descriptor);

	body->sid = rejoin->sid;
	body->group_inc = rejoin->group_inc;
	body->open = convert_out_open(arena, &rejoin->open);
	body->gone = rejoin->gone;
	body->died = rejoin->died;
	body->next_op_seq = rejoin->next_op_seq;
	if (rejoin->registered)
		body->register_ = convert_out_register(arena, &rejoin->reg);
	body->held = convert_out_version(arena, rejoin->held);
	body->gen = rejoin->gen;
	body->hashed = rejoin->hashed;
	body->content = convert_out_hash(arena, rejoin->content);
	body->attributes = convert_out_hash(arena, rejoin->attributes);
	body->refused = rejoin->refused;
	body->published = rejoin->published;
	if (rejoin->went)
		body->running = out_running(arena, rejoin);
	body->n_outcomes = rejoin->num_outcomes;
	body->outcomes = convert_pointers(arena, rejoin->num_outcomes);
	for (uint32_t i = 0; i < rejoin->num_outcomes; i++)
		body->outcomes[i] = convert_rejoin_out_outcome(arena, &rejoin->outcomes[i]);
	body->following = out_following(arena, rejoin);
	return body;
}

/* ---- in ----------------------------------------------------------------------------------- */

void
convert_in_open(struct convert_in *in, const Tensorhub__V1__Open *body, struct ctl_open *ret_open)
{
	in->message = "OPEN";
	convert_in_name(in, "model", body->model, TH_NAME_MAX, ret_open->model);
	convert_in_name(in, "replica", body->replica, TH_NAME_MAX, ret_open->replica);
	convert_in_name_or_empty(
		in, "launch_id", body->launch_id, TH_NAME_MAX, ret_open->launch_id);
	convert_in_check(in, body->num_shards >= 1 && body->num_shards <= TH_SHARDS_MAX,
		"num_shards", "is not 1 to 1024");
	convert_in_check(in, body->shard < body->num_shards, "shard", "is not below num_shards");
	ret_open->lineage = body->lineage;
	ret_open->shard = body->shard;
	ret_open->num_shards = body->num_shards;
	ret_open->flags = body->flags;
	convert_in_retain(in, body->retain, ret_open->retain);
	ret_open->reservation = body->reservation;
	ret_open->pid = body->pid;
	ret_open->copy_why = convert_in_copy_why(body->copy_why);
}

void
convert_in_register(
	struct convert_in *in, const Tensorhub__V1__Register *body, struct ctl_register *ret_reg)
{
	in->message = "REGISTER";
	convert_in_hash(in, "layout", body->layout, true, &ret_reg->layout);
	convert_in_hash(in, "manifest", body->manifest, true, &ret_reg->manifest);
	ret_reg->sid = body->sid;
	ret_reg->bytes = body->bytes;
	ret_reg->num_chunks = body->num_chunks;
}

static void
in_running(
	struct convert_in *in, const Tensorhub__V1__RunningOp *body, struct ctl_rejoin *ret_rejoin)
{
	ret_rejoin->went = true;
	ret_rejoin->op_seq = body->op_seq;
	ret_rejoin->flags = body->flags;
	convert_in_op_kind(in, body->kind, &ret_rejoin->kind);
	convert_in_check(in, body->kind == CTL_OP_REPLICATE || body->kind == CTL_OP_UPDATE, "kind",
		"moves no bytes");
	convert_in_spec(in, body->spec, true, ret_rejoin->spec);
	convert_in_version(body->version, &ret_rejoin->version);
	convert_in_check(in, !th_version_none(ret_rejoin->version), "version", "is missing");
	ret_rejoin->cancelled = body->cancelled;
	ret_rejoin->done = body->done;
	ret_rejoin->chunks = body->chunks;
	ret_rejoin->leg = body->leg;
	ret_rejoin->leg_stops = body->leg_stops;
	ret_rejoin->source_sid = body->source_sid;
	ret_rejoin->source_gen = body->source_gen;
	convert_in_hash(in, "content", body->content, false, &ret_rejoin->announced);
}

static void
convert_rejoin_in_outcome(struct convert_in *in, const Tensorhub__V1__KnownOutcome *body,
	struct ctl_known_outcome *ret_outcome)
{
	bool named = !ctl_op_unnamed(body->kind);

	ret_outcome->op_seq = body->op_seq;
	ret_outcome->flags = body->flags;
	convert_in_op_kind(in, body->kind, &ret_outcome->kind);
	convert_in_spec(in, body->spec, named, ret_outcome->spec);
	convert_in_code(in, body->code, &ret_outcome->code);
	convert_in_version(body->version, &ret_outcome->version);
	ret_outcome->updated = body->updated;
	ret_outcome->went = body->went;
}

static void
in_outcomes(struct convert_in *in, const Tensorhub__V1__Rejoin *body, struct ctl_rejoin *ret_rejoin)
{
	struct ctl_known_outcome *outcomes;

	if (body->n_outcomes > TH_OUTCOMES_MAX) {
		convert_in_fail(in, TH_E_INVALID, "outcomes", "are more than 64");
		return;
	}
	outcomes = convert_alloc_array(in->arena, body->n_outcomes, sizeof(*outcomes));
	if (outcomes == NULL) {
		convert_in_fail(in, -ENOMEM, "outcomes", "do not fit in memory");
		return;
	}
	for (size_t i = 0; i < body->n_outcomes; i++) {
		convert_rejoin_in_outcome(in, body->outcomes[i], &outcomes[i]);
		convert_in_check(in, i == 0 || outcomes[i].op_seq > outcomes[i - 1].op_seq,
			"outcomes", "do not ascend");
	}
	ret_rejoin->num_outcomes = (uint32_t)body->n_outcomes;
	ret_rejoin->outcomes = outcomes;
}

/* What the server has begun by itself has numbers of its own. */
static void
in_following(
	struct convert_in *in, const Tensorhub__V1__Following *body, struct ctl_rejoin *ret_rejoin)
{
	convert_in_spec(in, body->spec, false, ret_rejoin->follows);
	convert_in_version(body->go, &ret_rejoin->go);
	convert_in_check(in, body->waits == 0 || ctl_op_automatic(body->waits), "waits",
		"is a number of a member's");
	ret_rejoin->automatic_waits = body->waits;
	if (body->ended == NULL)
		return;
	convert_rejoin_in_outcome(in, body->ended, &ret_rejoin->automatic);
	convert_in_check(
		in, ctl_op_automatic(body->ended->op_seq), "ended", "has a number of a member's");
}

void
convert_in_rejoin(
	struct convert_in *in, const Tensorhub__V1__Rejoin *body, struct ctl_rejoin *ret_rejoin)
{
	in->message = "REJOIN";
	if (body->open == NULL) {
		convert_in_fail(in, TH_E_INVALID, "open", "is missing");
		return;
	}
	convert_in_open(in, body->open, &ret_rejoin->open);
	in->message = "REJOIN";
	convert_in_check(in, body->sid != 0, "sid", "is 0");
	convert_in_check(in, body->group_inc != 0, "group_inc", "is 0");
	ret_rejoin->sid = body->sid;
	ret_rejoin->group_inc = body->group_inc;
	ret_rejoin->gone = body->gone;
	ret_rejoin->died = body->died;
	ret_rejoin->next_op_seq = body->next_op_seq;
	ret_rejoin->registered = body->register_ != NULL;
	if (body->register_ != NULL)
		convert_in_register(in, body->register_, &ret_rejoin->reg);
	convert_in_version(body->held, &ret_rejoin->held);
	ret_rejoin->gen = body->gen;
	ret_rejoin->hashed = body->hashed;
	convert_in_hash(in, "content", body->content, false, &ret_rejoin->content);
	convert_in_hash(in, "attributes", body->attributes, false, &ret_rejoin->attributes);
	ret_rejoin->refused = body->refused;
	ret_rejoin->published = body->published;
	ret_rejoin->version.version = TH_NO_VERSION;
	if (body->running != NULL)
		in_running(in, body->running, ret_rejoin);
	in_outcomes(in, body, ret_rejoin);
	ret_rejoin->go.version = TH_NO_VERSION;
	if (body->following != NULL)
		in_following(in, body->following, ret_rejoin);
}
