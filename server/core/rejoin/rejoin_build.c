/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rejoin_build - a group from what its members have said: see rejoin.h.
 *
 * Members differ by what they were told before the server was lost. Each stands before some
 * operation (next_op_seq). From the one that is furthest behind on, the outcomes that any of them
 * knows are put in a row, and what the group holds follows from what that member holds and from
 * these outcomes. Whoever is further must hold just that; whoever is behind will be told.
 *
 * An automatic operation (op/follow.h) has no place among those numbers, and needs none: it had its
 * GO when all members stood before the same operation, and none of them has called that one since,
 * but who knows how it has ended.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/model/blob.h"
#include "server/core/model/content.h"
#include "server/core/model/copy.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/op/follow.h"
#include "server/core/op/op.h"
#include "server/core/rejoin/rejoin.h"
#include "server/core/retain/offload.h"
#include "server/core/route/leg.h"
#include "server/core/view/event_log.h"

struct built { /* what follows from the members' words */
	struct refsrv *server;
	struct group *group;
	uint64_t base, top; /* operations of which some know, others not: base .. top - 1 */
	const struct ctl_known_outcome *known[OP_WINDOW + 1]; /* their ends, from base on */
	const struct ctl_rejoin
		*running; /* of an operation after GO that nobody knows the end of */
	struct th_version held;
	uint64_t gen;
	bool guessed;  /* what runs has no source here: its content is taken for that of others */
	char why[256]; /* what contradicts; empty: nothing */
};

static void contradiction(struct built *b, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static void
contradiction(struct built *b, const char *format, ...)
{
	va_list args;

	if (b->why[0] != '\0')
		return;
	va_start(args, format);
	vsnprintf(b->why, sizeof(b->why), format, args);
	va_end(args);
}

static const struct ctl_rejoin *
said(const struct built *b, uint32_t shard)
{
	return &b->group->members[shard]->rejoin->said;
}

/* ---- outcomes ------------------------------------------------------------------------------- */

/* Of operation seq, as any member knows it; NULL: nobody does. */
static const struct ctl_known_outcome *
known_outcome(const struct built *b, uint64_t seq)
{
	for (uint32_t i = 0; ctl_op_automatic(seq) && i < b->group->num_shards; i++) {
		if (said(b, i)->automatic.op_seq == seq)
			return &said(b, i)->automatic;
	}
	return seq >= b->base && seq - b->base < TH_ARRAY_LEN(b->known) ? b->known[seq - b->base]
									: NULL;
}

/* The first numbered operation whose end it does not know. */
static uint64_t
stands_before(const struct ctl_rejoin *one)
{
	return one->went && !ctl_op_automatic(one->op_seq) ? one->op_seq : one->next_op_seq;
}

static void
find_range(struct built *b)
{
	b->base = UINT64_MAX;
	for (uint32_t i = 0; i < b->group->num_shards; i++) {
		const struct ctl_rejoin *one = said(b, i);
		b->base = th_min_u64(b->base, stands_before(one));
		b->top = th_max_u64(b->top, one->next_op_seq);
	}
	if (b->top - b->base > OP_WINDOW + 1)
		contradiction(b, "its shards are %" PRIu64 " operations apart", b->top - b->base);
}

static void
note_outcome(struct built *b, const struct ctl_known_outcome *outcome)
{
	/* What is before the base all have behind them. */
	if (outcome->op_seq < b->base || outcome->op_seq - b->base >= TH_ARRAY_LEN(b->known))
		return;
	const struct ctl_known_outcome **found = &b->known[outcome->op_seq - b->base];
	if (*found != NULL && ((*found)->kind != outcome->kind || (*found)->code != outcome->code ||
				      (*found)->updated != outcome->updated))
		contradiction(b, "its shards were told different outcomes of operation %" PRIu64,
			outcome->op_seq);
	*found = outcome;
}

static void
find_outcomes(struct built *b)
{
	for (uint32_t i = 0; i < b->group->num_shards; i++) {
		const struct ctl_rejoin *one = said(b, i);
		for (uint32_t k = 0; k < one->num_outcomes; k++)
			note_outcome(b, &one->outcomes[k]);
	}
}

/* The operation that runs: all that had its GO say the same of it. */
static void
find_running(struct built *b)
{
	for (uint32_t i = 0; i < b->group->num_shards; i++) {
		const struct ctl_rejoin *one = said(b, i);
		if (!one->went || known_outcome(b, one->op_seq) != NULL)
			continue;
		if (b->running == NULL)
			b->running = one;
		if (one->op_seq != b->running->op_seq || one->kind != b->running->kind ||
			th_version_compare(one->version, b->running->version) != 0)
			contradiction(b, "its shards say that different operations run");
	}
	if (b->running == NULL)
		return;
	uint64_t before = stands_before(b->running);
	bool automatic = ctl_op_automatic(b->running->op_seq);
	if (b->running->next_op_seq != b->top)
		contradiction(b, "an operation runs that a shard has left behind");
	for (uint32_t i = 0; i < b->group->num_shards; i++) {
		const struct ctl_rejoin *one = said(b, i);
		/* Without GO it is before it, and will call it again; it was prepared. */
		if (!one->went &&
			(one->next_op_seq != before || !one->registered ||
				(automatic && one->automatic_waits != b->running->op_seq)))
			contradiction(b, "a shard does not know of the operation that runs");
	}
}

/* The member stands before seq and has what it says. */
static void
check_holds(struct built *b, uint64_t seq)
{
	for (uint32_t i = 0; i < b->group->num_shards; i++) {
		const struct ctl_rejoin *one = said(b, i);
		if (one->went || one->next_op_seq != seq)
			continue;
		if (seq == b->base && th_version_none(b->held) && b->gen == UINT64_MAX) {
			b->held = one->held;
			b->gen = one->gen;
		}
		if (th_version_compare(one->held, b->held) != 0 ||
			(!th_version_none(b->held) && one->gen != b->gen))
			contradiction(b, "its shards hold different versions");
	}
}

static void
apply(struct built *b, const struct ctl_known_outcome *outcome)
{
	bool brings = outcome->kind == CTL_OP_PUBLISH || outcome->updated;

	if (outcome->code == 0 && brings) {
		b->held = outcome->version;
		b->gen = outcome->op_seq;
	} else if ((outcome->code == 0 && outcome->kind == CTL_OP_UNPUBLISH) ||
		   (outcome->code != 0 && outcome->went)) {
		b->held.version = TH_NO_VERSION;
	}
}

static void
find_held(struct built *b)
{
	b->held.version = TH_NO_VERSION;
	b->gen = UINT64_MAX; /* nobody has said */
	for (uint32_t i = 0; i < b->group->num_shards; i++) {
		const struct ctl_rejoin *one = said(b, i);
		const struct ctl_known_outcome *ended = one->went && ctl_op_automatic(one->op_seq)
								? known_outcome(b, one->op_seq)
								: NULL;
		if (ended != NULL)
			apply(b, ended);
	}
	for (uint64_t seq = b->base; seq <= b->top && b->why[0] == '\0'; seq++) {
		bool runs = b->running != NULL && b->running->op_seq == seq;
		check_holds(b, seq);
		const struct ctl_known_outcome *outcome =
			seq < b->top ? known_outcome(b, seq) : NULL;
		if (outcome != NULL)
			apply(b, outcome);
		else if (seq < b->top && !runs)
			contradiction(b, "nobody knows how operation %" PRIu64 " has ended", seq);
	}
}

/* ---- the version ---------------------------------------------------------------------------- */

static bool
rejoin_build_fits(const struct built *b, const struct version *version)
{
	if (version->num_shards != b->group->num_shards)
		return false;
	for (uint32_t i = 0; i < version->num_shards; i++) {
		const struct ctl_register *reg = &b->group->members[i]->reg;
		if (!th_hash_equal(version->shards[i].layout, reg->layout) ||
			version->shards[i].num_chunks != reg->num_chunks)
			return false;
	}
	return true;
}

/* NULL: there is a contradiction. */
static struct version *
acquire_version(struct built *b, struct th_version id)
{
	struct group *group = b->group;
	struct version *version = version_find(group->model, id);

	for (uint32_t i = 0; i < group->num_shards; i++) {
		if (!group->members[i]->registered) {
			contradiction(b, "shard %u has no tensors for what the others hold", i);
			return NULL;
		}
	}
	if (version == NULL) {
		version = version_new(b->server, group, id);
	} else if (!rejoin_build_fits(b, version)) {
		contradiction(b, "version %" PRIu64 " is there with another layout", id.version);
		return NULL;
	}
	return version;
}

/* ---- a copy that is complete ---------------------------------------------------------------- */

static void
build_ready(struct built *b)
{
	struct refsrv *server = b->server;
	struct group *group = b->group;
	struct version *version = acquire_version(b, b->held);
	bool published = true, refused = false;

	if (version == NULL)
		return;
	struct content_shard *shards = th_calloc(group->num_shards, sizeof(*shards));
	for (uint32_t i = 0; i < group->num_shards; i++) {
		const struct ctl_rejoin *one = said(b, i);
		if (one->hashed) {
			shards[i].hash = one->content;
			shards[i].unverified = th_hash_none(one->content);
		}
		shards[i].attributes = one->attributes;
		blob_expect(server, one->attributes);
		published = published && one->published;
		refused = refused || one->refused;
	}
	struct content *content = content_rejoin(server, version, shards, published, refused);
	free(shards);
	struct copy *copy = copy_new(server, group, version, content, b->gen, COPY_READY);
	for (uint32_t i = 0; i < copy->num_parts; i++)
		copy->parts[i].served = true; /* it may be: nobody says */
	content_settle(server, version);
	TH_MARK(rejoin_copy_ready);
}

/* ---- an operation that runs ----------------------------------------------------------------- */

static struct part *
find_source(const struct built *b, const struct ctl_rejoin *one)
{
	const struct member *member = member_lookup(b->server, one->source_sid);
	struct part *part = member == NULL ? NULL : copy_part_of(member);

	if (one->leg == 0 || part == NULL || part->copy->group == b->group ||
		part->copy->gen != one->source_gen || part->shard != one->open.shard ||
		part->drained || part->copy->content->refused ||
		part->copy->group->model != b->group->model ||
		th_version_compare(part->copy->version->id, one->version) != 0)
		return NULL;
	return part;
}

/* Whose content the running copy has, and whether all who may say it are there. */
static struct content *
find_content(struct built *b, bool *ret_all)
{
	const struct version *version = version_find(b->group->model, b->running->version);
	struct content *found = NULL;

	*ret_all = true;
	b->group->awaited_sid = 0;
	for (uint32_t i = 0; i < b->group->num_shards; i++) {
		const struct ctl_rejoin *one = said(b, i);
		const struct part *source = one->went ? find_source(b, one) : NULL;
		if (one->went && one->leg != 0 && source == NULL) {
			*ret_all = false;
			b->group->awaited_sid = one->source_sid;
		}
		if (found == NULL && source != NULL)
			found = source->copy->content;
	}
	if (found == NULL && version != NULL) {
		found = version->contents;
		b->guessed = found != NULL;
	}
	if (found == NULL)
		*ret_all = false;
	return found;
}

static struct op *
adopt_op(struct built *b)
{
	struct group *group = b->group;
	struct op *op = op_known(b->server, group, b->running->op_seq, b->running->kind,
		b->running->flags, b->running->spec);

	op_enter(op, OP_RUNNING, "a former server said GO");
	op->adopted = true;
	op->version = b->running->version;
	for (uint32_t i = 0; i < group->num_shards; i++) {
		struct op_member *member = &op->members[i];
		/* Nobody calls that one again. */
		if (!said(b, i)->went && ctl_op_automatic(op->seq))
			member->arrived = true;
		op->num_arrived += member->arrived;
		if (!said(b, i)->went)
			continue;
		op->num_arrived++;
		op->num_prepared++;
		member->arrived = member->planned = member->prepared = member->went = true;
	}
	group_busy(group);
	return op;
}

static void
adopt_part(struct built *b, struct op *op, uint32_t shard)
{
	const struct rejoin *rejoin = b->group->members[shard]->rejoin;
	const struct ctl_rejoin *one = &rejoin->said;
	struct part *part = &b->group->copy->parts[shard];

	part->served = true;
	if (!one->went)
		return;
	part->chunks_done = one->chunks;
	/* Digests show whether that was right, where any are made. */
	part->proof_due = b->guessed && !part->copy->content->shards[shard].unverified;
	if (one->done) {
		part->done = content_arrived(part, one->content);
		if (!part->done)
			contradiction(b, "shard %u has received other bytes", shard);
		part->chunks_done = one->reg.num_chunks;
	} else if (one->leg != 0) {
		leg_adopt(b->server, op, part, one);
	}
}

/* LEG_ENDs that came before the rest of the group. */
static void
replay_ends(struct built *b, const struct op *op)
{
	for (uint32_t i = 0; i < b->group->num_shards; i++) {
		struct member *member = b->group->members[i];
		struct th_err err;
		if (op->state == OP_DONE || b->group->state == GROUP_BROKEN)
			return;
		if (member->rejoin->leg_ended)
			(void)leg_end(b->server, member->agent, &member->rejoin->end, &err);
	}
}

static void
build_running(struct built *b, struct content *content)
{
	struct refsrv *server = b->server;
	struct group *group = b->group;
	struct version *version = acquire_version(b, b->running->version);
	bool cancelled = false, all_went = true, all_done = true;

	if (version == NULL)
		return;
	if (content == NULL) {
		struct content_shard *shards = th_calloc(group->num_shards, sizeof(*shards));
		for (uint32_t i = 0; i < group->num_shards; i++) {
			shards[i].attributes = said(b, i)->attributes;
			shards[i].hash = said(b, i)->announced;
			blob_expect(server, shards[i].attributes);
		}
		content = content_rejoin(server, version, shards, false, false);
		free(shards);
	}
	struct op *op = adopt_op(b);
	struct copy *copy =
		copy_new(server, group, version, content, b->running->op_seq, COPY_PARTIAL);
	content_settle(server, version);
	for (uint32_t i = 0; i < group->num_shards; i++) {
		cancelled = cancelled || said(b, i)->cancelled;
		all_went = all_went && said(b, i)->went;
		adopt_part(b, op, i);
		all_done = all_done && copy->parts[i].done;
	}
	for (uint32_t i = 0; i < group->num_shards; i++) {
		if (op->members[i].arrived && !op->members[i].planned)
			op_replicate_arrive(server, op, group->members[i]);
	}
	TH_MARK(rejoin_op_adopted);
	if (b->why[0] != '\0' || (cancelled && !all_went)) {
		contradiction(b, "the operation that ran was being given up");
		return;
	}
	if (all_done)
		op_shard_done(server, op);
	else if (cancelled)
		op_abort(server, op, TH_E_DIRTY,
			"the operation had failed when the reference server was lost; replicate "
			"again");
	if (op->state != OP_DONE)
		replay_ends(b, op);
}

/* ---- the group ------------------------------------------------------------------------------ */

/* Those outcomes that somebody may still ask for, or was not told. */
static void
build_outcomes(struct built *b)
{
	for (uint64_t seq = b->base; seq < b->top; seq++) {
		const struct ctl_known_outcome *outcome = known_outcome(b, seq);
		if (outcome == NULL)
			continue;
		uint64_t *told = th_calloc((b->group->num_shards + 63) / 64, sizeof(*told));
		for (uint32_t i = 0; i < b->group->num_shards; i++) {
			const struct ctl_rejoin *one = said(b, i);
			/* It has had its GO, and not heard how that ended. */
			bool waits = one->went && one->op_seq == seq;
			if (one->next_op_seq > seq && !waits)
				told[i / 64] |= UINT64_C(1) << (i % 64);
			if (waits)
				TH_MARK(rejoin_outcome_told_on);
		}
		op_recovered_outcome(b->server, b->group, outcome, told);
		free(told);
	}
}

/* It has called what has succeeded since: a publish has, or the others' would not have. */
static bool
has_published(const struct built *b, const struct ctl_rejoin *one)
{
	const struct ctl_known_outcome *outcome = known_outcome(b, one->next_op_seq);

	return outcome != NULL && outcome->kind == CTL_OP_PUBLISH && outcome->code == 0;
}

/*
 * Those that went and are not told are told now; what they waited for has come to its end. Whoever
 * has published is told as well, and not when it asks again: its part is on record from here on,
 * and a DRAIN that came before the OUTCOME would find none.
 */
static void
tell_waiting(struct built *b)
{
	for (uint32_t i = 0; i < b->group->num_shards; i++) {
		const struct ctl_rejoin *one = said(b, i);
		struct member *member = b->group->members[i];
		const struct ctl_known_outcome *known =
			one->went ? known_outcome(b, one->op_seq) : NULL;
		if (known != NULL && ctl_op_automatic(one->op_seq)) {
			follow_tell(member, one->op_seq, known);
		} else if (known != NULL) {
			op_tell_known(b->group, one->op_seq, member);
		} else if (!one->went && has_published(b, one)) {
			TH_MARK(rejoin_publish_told_first);
			member->next_op_seq++;
			op_tell_known(b->group, one->next_op_seq, member);
		}
	}
}

/*
 * It broke while a former server had it: no operation of it counts any more. What all of it holds
 * alike may be the last copy: it is as if the group broke now.
 */
static void
build_over(struct built *b)
{
	b->held = said(b, 0)->held;
	b->gen = said(b, 0)->gen;
	for (uint32_t i = 0; i < b->group->num_shards; i++) {
		const struct ctl_rejoin *one = said(b, i);
		if (one->went || one->gen != b->gen || th_version_compare(one->held, b->held) != 0)
			b->held.version = TH_NO_VERSION;
	}
	if (!th_version_none(b->held)) {
		TH_MARK(rejoin_broken_holds);
		build_ready(b);
	}
	contradiction(b, "it was broken before that");
}

/* As the one says that knows most. */
static void
build_following(struct built *b)
{
	for (uint32_t i = 0; i < b->group->num_shards; i++) {
		if (said(b, i)->next_op_seq != b->top)
			continue;
		follow_set(b->group, said(b, i)->follows[0] != '\0');
		return;
	}
}

bool
rejoin_build(struct refsrv *server, struct group *group)
{
	struct built b = {.server = server, .group = group};
	struct content *content = NULL;
	bool all = true;

	if (!group->over) {
		find_range(&b);
		find_outcomes(&b);
		find_running(&b);
		find_held(&b);
	}
	if (b.why[0] == '\0' && b.running != NULL) {
		content = find_content(&b, &all);
		/* Whoever it reads from may come back too. */
		if (!all && model_warming(server, group->model))
			return false;
	}
	group->state = GROUP_LIVE;
	build_following(&b);
	if (group->over)
		build_over(&b);
	if (b.why[0] == '\0')
		build_outcomes(&b);
	if (b.why[0] == '\0' && b.running != NULL)
		build_running(&b, content);
	else if (b.why[0] == '\0' && !th_version_none(b.held))
		build_ready(&b);
	/* The end of a leg may have broken it, and what its members said is done with. */
	if (b.why[0] == '\0' && group->state != GROUP_BROKEN)
		tell_waiting(&b);
	if (b.why[0] != '\0') {
		struct th_err cause;
		th_fail(&cause, TH_E_GROUP_BROKEN,
			"replica %s of %s is broken: the reference server was lost, and %s; close "
			"this handle and open again",
			group->replica, group->model->name, b.why);
		TH_MARK(rejoin_contradiction);
		group_break(server, group, cause.text);
	}
	if (group->reservation != 0 && group->state != GROUP_BROKEN)
		offload_rejoined(server, group);
	if (group->state != GROUP_BROKEN)
		event_log(server, EVENT_INFO, group->model->name, NULL,
			"%s%s of %s has come back with %u shards",
			group->reservation != 0 ? "the offload copy of replica " : "replica ",
			group->replica, group->model->name, group->num_shards);
	/* What it reads is there, or may come; others may read it. */
	leg_link_adopted(server);
	rejoin_over(server, group);
	model_changed(server, group->model);
	return true;
}
