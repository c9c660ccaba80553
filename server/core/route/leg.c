/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leg - see leg.h.
 *
 *   leg_start --> current --LEG_END(0)-------------------------> the shard is done
 *                    |------LEG_END(source_failed)-------------> another source, or waiting
 *                    |------LEG_END(other cause)---------------> the operation is aborted
 *                    '--moved or fenced--> superseded --LEG_END-> forgotten (a 0 still counts)
 *
 * The source agent is the authority over its buffers: a leg without src has been proven over, or
 * fenced, at its source, whatever its reader still believes.
 */
#include "server/core/route/leg.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/cluster/epoch.h"
#include "server/core/model/content.h"
#include "server/core/model/copy.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/op/op.h"
#include "server/core/rejoin/rejoin.h"
#include "server/core/route/dc_seed.h"
#include "server/core/route/route.h"
#include "server/core/route/slow_reader.h"
#include "server/core/route/ticket.h"

static uint32_t
part_chunks(const struct part *part)
{
	return part->copy->version->shards[part->shard].num_chunks;
}

static struct leg *
leg_find(struct refsrv *server, uint64_t id)
{
	struct leg *leg = NULL;

	HASH_FIND(hh, server->legs, &id, sizeof(id), leg);
	return leg;
}

void
leg_start(struct refsrv *server, struct op *op, struct part *dst, struct part *src,
	struct ctl_grant *ret_grant)
{
	struct leg *leg = th_calloc(1, sizeof(*leg));
	const struct agent *reader = dst->member->agent;
	struct agent *source = src->member->agent;

	TH_ASSERT(dst->leg == NULL && !dst->done);
	leg->id = epoch_next_id(server);
	leg->ticket = ticket_make(server->config.seed, leg->id);
	leg->dst = dst;
	leg->src = src;
	leg->reader = dst->member;
	leg->op = op;
	leg->src_copy_id = src->copy->id;
	leg->granted_ns = server->now_ns;
	HASH_ADD(hh, server->legs, id, sizeof(leg->id), leg);
	DL_APPEND2(dst->fills, leg, dst_prev, dst_next);
	dst->num_fills++;
	dst->leg = leg;
	dst->chunk_live_ns = dst->moved_live_ns = server->live_ns;
	dst->member->agent->legs_in++;
	DL_APPEND2(src->readers, leg, src_prev, src_next);
	src->num_readers++;
	src->served = true;
	source->legs_out++;
	source->legs_far += source != reader;
	free(dst->source_name);
	dst->source_name = th_strdup(src->copy->group->replica);
	dc_seed_leg(server, leg);

	struct ctl_ev_grant *grant = &agent_event(source, CTL_EV_GRANT)->u.grant;
	grant->leg = leg->id;
	grant->ticket = leg->ticket;
	grant->sid = src->member->sid;
	grant->gen = src->copy->gen;
	grant->reader_agent_inc = reader->inc;
	memcpy(grant->reader_node, reader->info.node, sizeof(grant->reader_node));
	memcpy(grant->reader_replica, dst->copy->group->replica, sizeof(grant->reader_replica));
	grant->far = !agent_near(source, reader);

	*ret_grant = (struct ctl_grant){
		.leg = leg->id,
		.ticket = leg->ticket,
		.source_sid = src->member->sid,
		.source_gen = src->copy->gen,
		.source_agent_inc = source->inc,
		.far = grant->far,
	};
	memcpy(ret_grant->source_address, source->info.data_address,
		sizeof(ret_grant->source_address));
	memcpy(ret_grant->source_replica, src->copy->group->replica,
		sizeof(ret_grant->source_replica));
	memcpy(ret_grant->source_node, source->info.node, sizeof(ret_grant->source_node));
}

/* Whoever says what reads what may say it wrong: no circle, no endless chain. */
static bool
may_read(const struct part *dst, const struct part *src)
{
	const struct part *up = src;

	for (uint32_t depth = 1; depth < CHAIN_DEPTH_MAX / 2; depth++) {
		if (up == dst)
			return false;
		if (up->leg == NULL || up->leg->src == NULL)
			return true;
		up = up->leg->src;
	}
	return false;
}

void
leg_adopt(struct refsrv *server, struct op *op, struct part *dst, const struct ctl_rejoin *said)
{
	/* Some other reader has this number, or will have: its end would be that one's. */
	if (epoch_is_own(server, said->leg) || leg_find(server, said->leg) != NULL)
		return;
	struct leg *leg = th_calloc(1, sizeof(*leg));
	leg->id = said->leg;
	leg->dst = dst;
	leg->reader = dst->member;
	leg->op = op;
	leg->granted_ns = server->now_ns;
	leg->blameless = true;
	HASH_ADD(hh, server->legs, id, sizeof(leg->id), leg);
	DL_APPEND2(dst->fills, leg, dst_prev, dst_next);
	dst->num_fills++;
	dst->member->agent->legs_in++;
	if (said->leg_stops)
		return;
	dst->leg = leg;
	dst->chunk_live_ns = dst->moved_live_ns = server->live_ns;
	leg->adopted_sid = said->source_sid;
	leg->adopted_gen = said->source_gen;
	if (leg->adopted_sid != 0)
		DL_APPEND2(server->unlinked, leg, unlinked_prev, unlinked_next);
}

/* Its source is known, or of no interest any more. */
static void
no_longer_unlinked(struct refsrv *server, struct leg *leg)
{
	if (leg->adopted_sid != 0)
		DL_DELETE2(server->unlinked, leg, unlinked_prev, unlinked_next);
	leg->adopted_sid = 0;
}

static void
link_adopted(struct refsrv *server, struct leg *leg)
{
	const struct member *member = member_lookup(server, leg->adopted_sid);
	struct part *src = member == NULL ? NULL : copy_part_of(member);

	/* What is not there yet may come; what is another content by now never will be. */
	if (src == NULL || src->copy->gen != leg->adopted_gen || src->shard != leg->dst->shard ||
		src->drained || src->copy == leg->dst->copy ||
		src->copy->content != leg->dst->copy->content || src->copy->content->refused ||
		!may_read(leg->dst, src))
		return;
	no_longer_unlinked(server, leg);
	leg->src = src;
	leg->src_copy_id = src->copy->id;
	leg->blameless = false;
	DL_APPEND2(src->readers, leg, src_prev, src_next);
	src->num_readers++;
	src->member->agent->legs_out++;
	src->member->agent->legs_far += src->member->agent != leg->reader->agent;
	free(leg->dst->source_name);
	leg->dst->source_name = th_strdup(src->copy->group->replica);
	dc_seed_leg(server, leg);
	model_dirty(leg->op->group->model);
}

void
leg_link_adopted(struct refsrv *server)
{
	struct leg *leg, *next;

	DL_FOREACH_SAFE2(server->unlinked, leg, next, unlinked_next)
	{
		if (leg->dst->leg == leg)
			link_adopted(server, leg);
	}
}

static void
leg_detach(struct leg *leg)
{
	struct part *src = leg->src;

	DL_DELETE2(src->readers, leg, src_prev, src_next);
	src->num_readers--;
	src->member->agent->legs_out--;
	src->member->agent->legs_far -= src->member->agent != leg->reader->agent;
	leg->src = NULL;
	leg->blameless = true;
}

/* Taken away at its source; the reader finds out and says so. */
static void
leg_fence(struct leg *leg)
{
	if (leg->src == NULL)
		return;
	agent_event(leg->src->member->agent, CTL_EV_FENCE)->u.fence_leg = leg->id;
	leg_detach(leg);
}

static void
leg_forget(struct refsrv *server, struct leg *leg)
{
	struct part *dst = leg->dst;

	if (leg->src != NULL)
		leg_detach(leg);
	no_longer_unlinked(server, leg);
	DL_DELETE2(dst->fills, leg, dst_prev, dst_next);
	dst->num_fills--;
	if (dst->leg == leg) {
		dst->leg = NULL;
		group_busy(dst->copy->group);
	}
	leg->reader->agent->legs_in--;
	HASH_DELETE(hh, server->legs, leg);
	free(leg);
}

void
leg_progress(
	struct refsrv *server, const struct agent *reader, const struct ctl_leg_progress *progress)
{
	struct leg *leg = leg_find(server, progress->leg);

	if (leg == NULL || leg->reader->agent != reader || leg->dst->done)
		return;
	if (progress->path != NULL)
		leg->path = *progress->path;
	/* Many chunks may fill at once, none of them whole for long. */
	if (progress->bytes_moved > leg->bytes_moved) {
		leg->bytes_moved = progress->bytes_moved;
		leg->dst->moved_live_ns = server->live_ns;
	}
	uint32_t chunks = th_min_u32(progress->chunks_verified, part_chunks(leg->dst));
	if (chunks <= leg->dst->chunks_done) {
		slow_reader_look(server, leg);
		return;
	}
	leg->dst->chunks_done = chunks;
	leg->dst->chunk_live_ns = leg->dst->moved_live_ns = server->live_ns;
	model_progressed(server, leg->op->group->model);
}

/* ---- moving --------------------------------------------------------------------------------- */

static void
reroute(struct refsrv *server, struct op *op, struct part *part, struct part *src)
{
	/* The newest that its reader has not ended; an older one ended or was named before. */
	struct leg *old = part->fills == NULL ? NULL : part->fills->dst_prev;
	struct ctl_grant grant;
	uint64_t old_id = old == NULL ? 0 : old->id;
	const struct content_shard *content = &part->copy->content->shards[part->shard];

	if (part->num_readers > 0)
		TH_MARK(c02_partial_source_gets_another_parent);
	if (part->chunks_done > 0)
		TH_MARK(c03_child_resumes_at_its_prefix);
	part->leg = NULL;
	leg_start(server, op, part, src, &grant);
	if (!op->members[part->shard].went) {
		/* Of an adopted operation: it has had no GO yet. */
		struct ctl_ev_go *go = &agent_event(part->member->agent, CTL_EV_GO)->u.go;
		op->members[part->shard].went = true;
		go->sid = part->member->sid;
		go->op_seq = op->seq;
		go->grant = grant;
		go->attributes = content->attributes;
		go->content = content->hash;
		model_dirty(op->group->model);
		return;
	}
	struct ctl_ev_reroute *ev = &agent_event(part->member->agent, CTL_EV_REROUTE)->u.reroute;
	ev->sid = part->member->sid;
	ev->op_seq = op->seq;
	ev->old_leg = old_id;
	ev->grant = grant;
	ev->content = content->hash;
	model_dirty(op->group->model);
}

static void
leg_give_up(struct refsrv *server, struct op *op, struct part *part, enum outlook outlook)
{
	struct th_err err;

	TH_MARK(c25_no_source_is_left);
	if (outlook == OUTLOOK_CHECKSUM)
		th_fail(&err, TH_E_CHECKSUM,
			"shard %u of version %" PRIu64
			" of %.100s: no source is left whose bytes match the published digests; "
			"the last: %.200s. Look for failing memory, a worker that changed "
			"published weights, or agents with another --verify, and publish again",
			part->shard, op->version.version, op->group->model->name,
			op->blame_text != NULL ? op->blame_text : "unknown");
	else
		th_fail(&err, TH_E_VERSION_LOST,
			"shard %u of version %" PRIu64 " of %s: its last complete copy is gone at "
			"chunk %u of %u; replicate another version",
			part->shard, op->version.version, op->group->model->name, part->chunks_done,
			part_chunks(part));
	op_abort(server, op, err.code, err.text);
}

void
leg_find_source(struct refsrv *server, struct op *op, struct part *part)
{
	TH_ASSERT(op->state == OP_RUNNING && part->leg == NULL && !part->done);
	if (part->member->agent->state != AGENT_ACTIVE || !op->members[part->shard].prepared)
		return;
	struct part *src = route_choose_part(server, op, part, false);
	if (src != NULL) {
		reroute(server, op, part, src);
		return;
	}
	/* A leg that was taken away may have brought everything: its end comes before a verdict. */
	if (part->num_fills > 0)
		return;
	/* Nor does anybody miss what may still come back. */
	if (model_warming(server, op->group->model) || rejoin_awaited(op->group->model))
		return;
	TH_MARK(c25_waits_for_a_source);
	enum outlook outlook = route_outlook(server, op, part->copy->version, part);
	if (outlook != OUTLOOK_WAIT)
		leg_give_up(server, op, part, outlook);
}

void
leg_move(struct refsrv *server, struct leg *leg, struct part *src)
{
	struct op *op = leg->op;
	struct part *dst = leg->dst;
	uint32_t moved = leg->moved;

	TH_ASSERT(dst->leg == leg && op->state == OP_RUNNING);
	leg_fence(leg);
	reroute(server, op, dst, src);
	dst->leg->moved = moved;
}

/*
 * A part is being given up. Its readers go at once to sources that nobody reads from and that stay;
 * where there is none they go on: the owner waits while bytes flow. Each leg moves once. Trainers
 * give up together: what was moved to the next of them would be moved on by it, step after step,
 * and each move costs a connection. Nor does a leg leave its datacenter: its bytes came there once.
 */
void
leg_move_readers(struct refsrv *server, struct part *part)
{
	struct leg *leg, *next;

	DL_FOREACH_SAFE2(part->readers, leg, next, src_next)
	{
		struct part *dst = leg->dst;
		if (dst->leg != leg || leg->op->state != OP_RUNNING ||
			dst->member->agent->state != AGENT_ACTIVE)
			continue;
		if (leg->moved > 0 && !TH_PLANT(drained_leg_hops)) {
			TH_MARK(d04_moved_leg_stays);
			continue;
		}
		struct part *src = route_choose_part(server, leg->op, dst, true);
		if (src == NULL)
			continue;
		const struct agent *reader = leg->reader->agent;
		if (agent_near(reader, part->member->agent) &&
			!agent_near(reader, src->member->agent)) {
			TH_MARK(c17_leg_stays_in_its_datacenter);
			continue;
		}
		TH_MARK(d04_leg_moved_to_an_idle_source);
		leg->moved++;
		leg_move(server, leg, src);
	}
}

void
leg_expel_readers(struct part *part)
{
	while (part->readers != NULL) {
		struct leg *leg = part->readers;
		bool current = leg->dst->leg == leg;
		leg_fence(leg);
		if (current) {
			/* Now without a source; model_dirty lets its operation look for one. */
			leg->dst->leg = NULL;
			group_busy(leg->dst->copy->group);
			model_dirty(leg->op->group->model);
		}
	}
}

void
leg_detach_readers(struct part *part)
{
	while (part->readers != NULL)
		leg_detach(part->readers);
}

void
leg_drop_fills(struct refsrv *server, struct part *part)
{
	while (part->fills != NULL) {
		leg_fence(part->fills);
		leg_forget(server, part->fills);
	}
}

/* ---- ending --------------------------------------------------------------------------------- */

/* I5: nothing but the reader's word that every chunk is verified finishes a shard. */
static bool
brought_all(const struct leg *leg, const struct ctl_leg_end *end)
{
	return end->code == 0 || (TH_PLANT(prefix_counts_as_all) &&
					 end->chunks_verified + 1 >= part_chunks(leg->dst));
}

static int
end_check(const struct leg *leg, const struct ctl_leg_end *end, struct th_err *err)
{
	uint32_t chunks = part_chunks(leg->dst);

	if (end->code > 0 || end->chunks_verified > chunks ||
		(end->code == 0 && end->chunks_verified != chunks))
		return th_fail(err, TH_E_INVALID,
			"leg %" PRIu64
			" ends with code %d and %u verified chunks of %u: a leg that "
			"succeeds has them all",
			leg->id, end->code, end->chunks_verified, chunks);
	return 0;
}

static void
blame(struct op *op, uint32_t shard, uint64_t copy_id, const char text[TH_CTL_TEXT_BYTES])
{
	size_t bytes = strnlen(text, TH_CTL_TEXT_BYTES - 1);
	op->blames = th_realloc(op->blames, op->num_blames + 1, sizeof(*op->blames));
	op->blames[op->num_blames++] = (struct blame){.shard = shard, .copy_id = copy_id};
	free(op->blame_text);
	op->blame_text = th_calloc(bytes + 1, 1);
	memcpy(op->blame_text, text, bytes);
}

static void
source_failed(struct refsrv *server, const struct leg *leg, const struct ctl_leg_end *end)
{
	if (end->code == TH_E_CHECKSUM) {
		TH_MARK(c22_bytes_did_not_match);
		blame(leg->op, leg->dst->shard, leg->src_copy_id, end->text);
		if (leg->src != NULL && !leg->blameless)
			agent_blamed(server, leg->reader->agent, leg->src->member->agent);
		return;
	}
	/* A source that is being drained fences its readers: that says nothing about the pair. */
	if (leg->blameless || leg->src == NULL || leg->src->copy->draining)
		TH_MARK(c06_nobody_is_blamed);
	/*
	 * Nor does a source that has no bytes because its own source is lost: one node reacts to a
	 * break, the one below it. Its readers wait for it; this one has not, and gets another.
	 */
	else if (!leg->src->done && leg->src->leg == NULL)
		TH_MARK(c05_parent_waits_upstream);
	else
		agent_pair_failed(server, leg->reader->agent, leg->src->member->agent);
}

static void
shard_done(struct refsrv *server, struct op *op, struct part *part)
{
	part->done = true;
	part->chunks_done = part_chunks(part);
	/*
	 * Others are of no interest any more: a newer one, granted while this end was on its way,
	 * or an older one whose end is still to come.
	 */
	leg_drop_fills(server, part);
	model_progressed(server, op->group->model);
	model_dirty(op->group->model);
	op_shard_done(server, op);
}

int
leg_end(struct refsrv *server, struct agent *agent, const struct ctl_leg_end *end,
	struct th_err *err)
{
	struct leg *leg = leg_find(server, end->leg);

	if (leg == NULL) {
		rejoin_leg_end(agent, end);
		return 0;
	}
	if (leg->reader->agent != agent)
		return th_fail(err, TH_E_INVALID, "leg %" PRIu64 " is not one of agent %s",
			end->leg, agent->info.node);
	int rc = end_check(leg, end, err);
	if (rc != 0)
		return rc;
	struct op *op = leg->op;
	struct part *part = leg->dst;
	bool current = part->leg == leg, all = brought_all(leg, end);

	part->chunks_done = th_max_u32(part->chunks_done, end->chunks_verified);
	model_progressed(server, op->group->model);
	if (all && leg->src != NULL)
		agent_pair_worked(agent, leg->src->member->agent);
	if (end->code != 0 && end->source_failed)
		source_failed(server, leg, end);
	leg_forget(server, leg);
	model_dirty(op->group->model);
	if (op->state == OP_ABORTING) {
		TH_MARK(leg_end_after_the_abort);
		/* After a success its agent ignores a REROUTE, so a newer leg would never end. */
		if (all)
			leg_drop_fills(server, part);
		op_abort_check(server, op);
	} else if (all && !part->done && !content_arrived(part, end->content)) {
		char text[TH_CTL_TEXT_BYTES];
		snprintf(text, sizeof(text),
			"version %" PRIu64 " of %.100s: what shard %u has received is not what was "
			"published; replicate again",
			part->copy->version->id.version, part->copy->version->model->name,
			part->shard);
		op_abort(server, op, TH_E_VERSION_CONFLICT, text);
	} else if (all && !part->done) {
		shard_done(server, op, part);
	} else if (end->code != 0 && current && end->source_failed) {
		leg_find_source(server, op, part);
	} else if (end->code != 0 && current) {
		char text[TH_CTL_TEXT_BYTES];
		memcpy(text, end->text, sizeof(text));
		text[sizeof(text) - 1] = '\0';
		op_abort(server, op, end->code, text);
	}
	return 0;
}
