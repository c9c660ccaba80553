/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inbound - legs in: GO, other sources, and how each leg ends.
 *
 * A session has at most one; the next begins when the movers have reported that the last one has
 * stopped. Every leg that the server granted gets its LEG_END, also those that never ran. What it
 * granted while LEG_END(0) was on its way follows that in the same lane, so it cannot do harm.
 *
 * A leg that fills a copy of the agent's own from another host may have a donor: the newest version
 * of the same shard that this host holds. Chunks that are the same in both come from there.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"

/* A leg that never ran. */
static void
decline(struct agent_core *agent, struct session *session, const struct ctl_grant *grant, int code,
	bool source_failed, const char *text)
{
	struct request_lane *lane = session != NULL ? session->lane : agent->misc;
	struct ctl_leg_end *end = &ac_lane_add(agent, lane, CTL_LEG_END)->u.leg_end;

	end->leg = grant->leg;
	end->code = code;
	end->source_failed = source_failed;
	if (session != NULL)
		end->chunks_verified = session->call.prefix;
	ac_copy(end->text, sizeof(end->text), text, TH_CTL_TEXT_BYTES);
}

/* ---- starting -------------------------------------------------------------------------------- */

static struct part *
local_source(
	const struct agent_core *agent, const struct session *reader, const struct ctl_grant *grant)
{
	struct session *source = ac_session_by_sid(agent, grant->source_sid);

	if (source == NULL || source == reader || source->part == NULL ||
		source->part->gen != grant->source_gen || !ac_part_serves(source->part))
		return NULL;
	return source->part;
}

/* Held, so that its bytes do not change, and with all its digests. */
static bool
may_donate(const struct session *session, const struct session *reader)
{
	const struct part *part = session->part;

	return session != reader && session->mapped && part != NULL && part->state == PART_HELD &&
	       ac_part_serves(part) && (!part->published || ac_part_has_digests(part)) &&
	       session->open.shard == reader->open.shard &&
	       session->open.num_shards == reader->open.num_shards &&
	       th_hash_equal(session->reg.layout, reader->reg.layout) &&
	       strcmp(session->open.model, reader->open.model) == 0;
}

static struct part *
find_donor(const struct agent_core *agent, const struct session *reader)
{
	const struct session *session, *best = NULL;

	for (session = agent->sessions; session != NULL; session = session->hh.next) {
		if (may_donate(session, reader) &&
			(best == NULL || th_version_compare(session->held, best->held) > 0))
			best = session;
	}
	return best == NULL ? NULL : best->part;
}

static void
give_donor(struct agent_core *agent, struct inbound *in, struct agent_action *pull)
{
	struct part *donor = ac_internal(in->session) ? find_donor(agent, in->session) : NULL;

	if (donor == NULL)
		return;
	TH_MARK(agent_donor_given);
	donor->num_copies++;
	in->donor = donor;
	pull->u.leg.donor_session = donor->session->id;
	pull->u.leg.donor_gen = donor->gen;
}

static void
inbound_start(struct agent_core *agent, struct session *session, const struct ctl_grant *grant)
{
	bool local = grant->source_agent_inc == agent->config.agent_inc;
	struct part *source = NULL;

	TH_ASSERT(session->in == NULL && session->part != NULL);
	if (local) {
		source = local_source(agent, session, grant);
		if (source == NULL) {
			decline(agent, session, grant, TH_E_NOT_AVAILABLE, true,
				"the source on this host is being given up");
			return;
		}
		source->num_copies++;
	}
	struct inbound *in = th_calloc(1, sizeof(*in));
	in->leg = ++agent->last_leg;
	in->life = agent->link.life;
	in->session = session;
	in->grant = *grant;
	in->source = source;
	in->prefetched =
		source != NULL && ac_internal(source->session) && source->state >= PART_FULL;
	session->in = in;
	HASH_ADD(hh, agent->inbounds, leg, sizeof(in->leg), in);
	AC_COPY(session->call.result.source, grant->source_replica);
	struct agent_action *action =
		ac_action(agent, local ? AGENT_COPY : AGENT_PULL, session->id);
	action->u.leg.leg = in->leg;
	action->u.leg.gen = session->part->gen;
	action->u.leg.grant = *grant;
	if (source != NULL) {
		action->u.leg.source_session = source->session->id;
		action->u.leg.source_gen = source->gen;
	} else {
		give_donor(agent, in, action);
	}
}

/* Should the server be lost, and whoever published them: the next one is told by us. */
static void
keep_attributes(struct agent_core *agent, struct session *session, struct th_hash key)
{
	if (th_hash_equal(key, session->kept_attributes))
		return;
	session->kept_attributes = key;
	ac_action(agent, AGENT_ATTRIBUTES, session->id)->u.attributes = key;
}

/*
 * The operation had its GO before the close was known: what this member held counts no more, the
 * server keeps no record of it, and no other word will tell that it is over.
 */
static void
others_went(struct session *session)
{
	if (session->part == NULL)
		return;
	TH_MARK(go_after_the_call_was_cut_off);
	ac_part_drain_for(session->part, DRAIN_HOPELESS);
}

void
ac_inbound_go(struct agent_core *agent, const struct ctl_ev_go *go)
{
	struct session *session = ac_session_by_sid(agent, go->sid);
	struct call *call = session == NULL ? NULL : &session->call;

	if (call == NULL || call->state == CALL_NONE || call->op_seq != go->op_seq ||
		ac_call_decided(call)) {
		TH_MARK(go_after_the_end);
		decline(agent, session, &go->grant, TH_E_CANCELLED, false,
			"the member has closed its handle");
		return;
	}
	if (call->cut) {
		others_went(session);
		decline(agent, session, &go->grant, TH_E_CANCELLED, false,
			"the member has closed its handle");
		return;
	}
	if (call->state != CALL_PREPARED || call->ghost ||
		(session->part != NULL && !ac_part_drained(session->part))) {
		/* Not one byte is overwritten on a word that does not fit our own proof. */
		decline(agent, session, &go->grant, TH_E_PROTOCOL, false,
			"GO of the reference server before this member was prepared");
		return;
	}
	ac_call_enter(session, CALL_RUNNING, "GO");
	call->result.wait_ns = (uint64_t)(agent->now_ns - call->order.submitted_ns);
	if (session->part != NULL)
		ac_part_end(agent, session);
	call->content = go->content;
	AC_COPY(call->result.reason, go->reason);
	keep_attributes(agent, session, go->attributes);
	ac_part_new(agent, session, call->op_seq, false)->attributes = go->attributes;
	session->held.version = TH_NO_VERSION;
	ac_session_line(agent, session);
	inbound_start(agent, session, &go->grant);
}

/* ---- another source -------------------------------------------------------------------------- */

static void
drop_next(struct agent_core *agent, struct session *session)
{
	struct call *call = &session->call;

	if (!call->has_next)
		return;
	call->has_next = false;
	decline(agent, session, &call->next, TH_E_CANCELLED, false, "not begun");
}

void
ac_inbound_reroute(struct agent_core *agent, const struct ctl_ev_reroute *reroute)
{
	struct session *session = ac_session_by_sid(agent, reroute->sid);
	struct call *call = session == NULL ? NULL : &session->call;

	if (call == NULL || call->op_seq != reroute->op_seq ||
		(call->state != CALL_RUNNING && call->state != CALL_FILLED)) {
		decline(agent, session, &reroute->grant, TH_E_CANCELLED, false,
			"the operation is over for this member");
		return;
	}
	if (call->state == CALL_FILLED) {
		TH_MARK(reroute_after_all_is_here);
		/* Behind our LEG_END(0): it frees the leg also where the operation is aborted. */
		decline(agent, session, &reroute->grant, TH_E_CANCELLED, false,
			"every byte is here already");
		return;
	}
	if (!th_hash_none(reroute->content))
		call->content = reroute->content;
	drop_next(agent, session);
	if (session->in == NULL) {
		inbound_start(agent, session, &reroute->grant);
		return;
	}
	call->has_next = true;
	call->next = reroute->grant;
	ac_inbound_stop(agent, session->in, STOP_REROUTE);
}

void
ac_inbound_cancel(struct agent_core *agent, const struct ctl_cancel *cancel)
{
	struct session *session = ac_session_by_sid(agent, cancel->sid);

	if (session == NULL || session->call.state == CALL_NONE ||
		session->call.op_seq != cancel->op_seq)
		return;
	/* Of one that went on at another server this member may have had no GO. */
	if (session->call.cut)
		others_went(session);
	if (!ac_call_went(&session->call))
		return;
	if (session->call.state == CALL_RUNNING || session->call.state == CALL_FILLED)
		ac_call_enter(session, CALL_CANCELLED, "CANCEL");
	ac_part_drain_for(session->part, DRAIN_HOPELESS);
	if (session->in != NULL)
		ac_inbound_stop(agent, session->in, STOP_CANCEL);
}

void
ac_inbound_stop(struct agent_core *agent, struct inbound *in, enum stop_reason reason)
{
	bool first = in->stop == STOP_NONE;

	if (reason == STOP_CANCEL)
		drop_next(agent, in->session);
	if (reason > in->stop)
		in->stop = reason;
	if (!first)
		return;
	struct agent_action *action = ac_action(agent, AGENT_STOP, in->session->id);
	action->u.leg.leg = in->leg;
	action->u.leg.gen = in->session->part->gen;
	action->u.leg.grant = in->grant;
}

void
ac_inbounds_drop_donor(struct agent_core *agent, const struct part *part)
{
	struct inbound *in;

	for (in = agent->inbounds; in != NULL; in = in->hh.next) {
		if (in->donor != part || in->donor_dropped)
			continue;
		TH_MARK(agent_donor_dropped);
		in->donor_dropped = true;
		ac_action(agent, AGENT_DONOR_DROP, in->session->id)->u.leg.leg = in->leg;
		/* I2: only DONOR_LEFT, or the leg's end, says that nobody reads it. */
		if (TH_PLANT(donor_is_left_when_told)) {
			in->donor->num_copies--;
			in->donor = NULL;
		}
	}
}

bool
ac_inbound_fence(struct agent_core *agent, uint64_t number)
{
	struct inbound *in;

	for (in = agent->inbounds; in != NULL; in = in->hh.next) {
		if (in->source != NULL && in->grant.leg == number && in->life == agent->link.life) {
			ac_inbound_stop(agent, in, STOP_SOURCE_GONE);
			return true;
		}
	}
	return false;
}

/* ---- ending ---------------------------------------------------------------------------------- */

static void
account(struct call *call, const struct inbound *in, const struct agent_leg_report *report)
{
	struct agent_result *result = &call->result;

	result->bytes_moved += report->bytes_moved;
	if (in->prefetched)
		result->bytes_prefetched += report->bytes_moved;
	result->bytes_reused += report->bytes_reused;
	result->transfer_ns += report->transfer_ns;
	result->verify_ns += report->verify_ns;
	if (report->transport[0] != '\0')
		AC_COPY(result->transport, report->transport);
	call->overwrote = call->overwrote || report->overwrote;
	call->prefix = th_max_u32(call->prefix, report->chunks_verified);
}

static void
send_end(struct agent_core *agent, const struct inbound *in, enum agent_event_kind kind,
	const struct agent_leg_report *report)
{
	struct session *session = in->session;
	bool failed = kind == AGENT_EV_LEG_FAILED;

	if (in->life != agent->link.life || !ac_known(session))
		return; /* granted by a server that is no more */
	struct ctl_leg_end *end = &ac_lane_add(agent, session->lane, CTL_LEG_END)->u.leg_end;
	end->leg = in->grant.leg;
	end->overwrote = report->overwrote;
	end->bytes_moved = report->bytes_moved;
	AC_COPY(end->transport, report->transport);
	if (kind == AGENT_EV_LEG_DONE) {
		end->chunks_verified = session->reg.num_chunks;
		end->content = report->content;
		return;
	}
	end->code = failed && report->code < 0 ? report->code : TH_E_CANCELLED;
	end->source_failed = failed ? report->source_failed : in->stop == STOP_SOURCE_GONE;
	end->chunks_verified = th_min_u32(report->chunks_verified, session->reg.num_chunks);
	if (report->text[0] != '\0')
		AC_COPY(end->text, report->text);
	else
		ac_copy(end->text, sizeof(end->text), "stopped", sizeof("stopped"));
}

/* Of a part that is read by a leg in, or NULL. May free its session. */
static void
unread(struct agent_core *agent, struct part *part)
{
	if (part == NULL)
		return;
	TH_ASSERT(part->num_copies > 0);
	part->num_copies--;
	ac_settle(agent, part->session);
}

void
ac_inbound_donor_left(struct agent_core *agent, uint64_t number)
{
	struct inbound *in = NULL;

	HASH_FIND(hh, agent->inbounds, &number, sizeof(number), in);
	if (in == NULL)
		return;
	struct part *donor = in->donor;
	in->donor = NULL;
	unread(agent, donor);
}

void
ac_inbound_over(struct agent_core *agent, struct inbound *in)
{
	struct part *read = in->source != NULL ? in->source : in->donor;

	in->session->in = NULL;
	HASH_DELETE(hh, agent->inbounds, in);
	free(in);
	unread(agent, read);
}

/*
 * Every chunk has the digest that the source has told, but these are not the digests that the
 * publisher's agent has made: nobody reads it here, and its operation fails.
 */
static bool
is_other(const struct inbound *in, const struct agent_leg_report *report,
	struct agent_leg_report *ret_failed)
{
	const struct call *call = &in->session->call;

	if (call->state == CALL_NONE || th_hash_none(call->content) ||
		th_hash_none(report->content) || th_hash_equal(call->content, report->content))
		return false;
	TH_MARK(arrived_is_not_what_was_published);
	ac_part_drain_for(in->session->part, DRAIN_HOPELESS);
	*ret_failed = *report;
	ret_failed->code = TH_E_CHECKSUM;
	snprintf(ret_failed->text, sizeof(ret_failed->text),
		"what replica %.100s told to be the digests of its bytes is not what the "
		"publisher's agent has made of them; replicate again, and look at the host of that "
		"replica",
		in->grant.source_replica);
	return true;
}

void
ac_inbound_report(
	struct agent_core *agent, enum agent_event_kind kind, const struct agent_leg_report *report)
{
	struct inbound *in = NULL;
	struct agent_leg_report failed;

	HASH_FIND(hh, agent->inbounds, &report->leg, sizeof(report->leg), in);
	if (in == NULL)
		return;
	struct session *session = in->session;
	struct call *call = &session->call;
	if (kind == AGENT_EV_LEG_DONE && is_other(in, report, &failed)) {
		kind = AGENT_EV_LEG_FAILED;
		report = &failed;
	}
	bool done = kind == AGENT_EV_LEG_DONE;
	if (call->state != CALL_NONE)
		account(call, in, report);
	if (done) {
		ac_part_enter(session->part, PART_FULL, "LEG_DONE");
		session->part->content = report->content;
	}
	send_end(agent, in, kind, report);
	if (done && call->state == CALL_RUNNING)
		ac_call_enter(session, CALL_FILLED, "LEG_END");
	if (done)
		drop_next(agent, session);
	ac_inbound_over(agent, in);
	if (call->has_next) {
		struct ctl_grant next = call->next;
		call->has_next = false;
		inbound_start(agent, session, &next);
	}
	ac_settle(agent, session);
}
