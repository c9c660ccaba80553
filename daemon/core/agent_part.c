/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_part - the content of a session at one generation: serving, draining, and the proof of it.
 *
 *   filling --every byte is here--> full --OUTCOME--> held       (a publish is born held)
 *
 *   serving --DRAIN, PLAN with drain_old, close--> draining --nobody reads--> drained
 *      ^---------- UNDRAIN, its unpublish failed ------'   |
 *                                                          '--failure--> hopeless, for good
 *
 *   none --wanted again--> making --HASHED--> made            (its digests; born making or none)
 *     ^                      '--nobody wants them--> stopping --HASHED--> overtaken
 *     '--------------------------HASH_STOPPED-----------'        made <--HASH_STOPPED--'
 *
 * Why it drains is a set of causes; drained is no state but a proof, asked for when it matters.
 * Readers are legs out, copies within this host, legs that it is a donor of, and the thread that
 * makes digests. A donor is left at once, for those legs have a source as well. While draining,
 * a leg goes on as long as it progresses, also one that is granted and about to begin, and the
 * digests that it needs are still made; a stalled one is fenced. A part that can never be
 * complete is of no use to anyone: all its legs are fenced.
 */
#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/assert.h"
#include "ipc/base/sim.h"
#include "ipc/base/state.h"

static const struct th_states part_states = {
	"part", {
			[PART_NONE] = {"none", TH_STATE(PART_FILLING) | TH_STATE(PART_HELD)},
			[PART_FILLING] = {"filling", TH_STATE(PART_FULL)},
			[PART_FULL] = {"full", TH_STATE(PART_HELD)},
			[PART_HELD] = {"held", 0},
		}};

#define TO(state) TH_STATE(DIGESTS_##state)

static const struct th_states digests_states = {
	"digests", {
			   [DIGESTS_NONE] = {"none", TO(MAKING) | TO(MADE)},
			   [DIGESTS_MAKING] = {"making", TO(NONE) | TO(STOPPING) | TO(MADE)},
			   [DIGESTS_STOPPING] = {"stopping", TO(NONE) | TO(OVERTAKEN)},
			   [DIGESTS_OVERTAKEN] = {"overtaken", TO(MADE)},
			   [DIGESTS_MADE] = {"made", 0},
		   }};

void
ac_part_enter(struct part *part, enum part_state state, const char *why)
{
	th_state_check(&part_states, part->state, state, why);
	part->state = state;
}

static void
digests_enter(struct part *part, enum digests_state state, const char *why)
{
	th_state_check(&digests_states, part->digests, state, why);
	part->digests = state;
}

void
ac_part_drain_for(struct part *part, enum part_drain cause)
{
	part->drains |= cause;
}

void
ac_part_undrain_for(struct part *part, uint32_t causes)
{
	TH_ASSERT((causes & DRAIN_HOPELESS) == 0);
	part->drains &= ~causes;
	if ((causes & DRAIN_SERVER) != 0)
		part->drain_answered = false;
}

static void
part_action(struct agent_core *agent, enum agent_action_kind kind, const struct part *part)
{
	struct agent_action *action = ac_action(agent, kind, part->session->id);

	action->u.part.gen = part->gen;
	action->u.part.published = part->published;
	action->u.part.used = part->session->used;
}

struct part *
ac_part_new(struct agent_core *agent, struct session *session, uint64_t gen, bool published)
{
	struct part *part = th_calloc(1, sizeof(*part));

	TH_ASSERT(session->part == NULL && session->in == NULL);
	part->session = session;
	part->gen = gen;
	part->published = published;
	ac_part_enter(part, published ? PART_HELD : PART_FILLING, published ? "publish" : "GO");
	if (published)
		digests_enter(part, DIGESTS_MAKING, "publish");
	session->part = part;
	part_action(agent, AGENT_PART_NEW, part);
	return part;
}

void
ac_part_end(struct agent_core *agent, struct session *session)
{
	struct part *part = session->part;

	while (TH_PLANT(leg_counts_for_a_moment) && part->outbounds != NULL)
		ac_outbound_free(agent, part->outbounds);
	TH_ASSERT(ac_part_drained(part) && session->in == NULL);
	TH_ASSERT(part->outbounds == NULL);
	part_action(agent, AGENT_PART_END, part);
	free(part);
	session->part = NULL;
	session->used = true;
}

bool
ac_part_draining(const struct part *part)
{
	return part->drains != 0;
}

bool
ac_part_serves(const struct part *part)
{
	return !ac_part_draining(part);
}

static bool
is_hashing(const struct part *part)
{
	return part->digests != DIGESTS_NONE && part->digests != DIGESTS_MADE;
}

bool
ac_part_drained(const struct part *part)
{
	if (!ac_part_draining(part))
		return false;
	/* I2: a leg counts from its GRANT to the word that nothing reads for it any more. */
	if (TH_PLANT(leg_counts_for_a_moment))
		return part->num_copies == 0;
	return part->num_running == 0 && part->num_copies == 0 && !is_hashing(part) &&
	       part->outbounds == NULL;
}

/* ---- conclusions ----------------------------------------------------------------------------- */

static void
settle_hashing(struct agent_core *agent, struct part *part)
{
	bool readers = part->outbounds != NULL || part->num_copies > 0;
	bool wanted = part->published && !ac_part_drains(part, DRAIN_HOPELESS) &&
		      (!ac_part_draining(part) || readers);

	/* One thing at a time: of what is being stopped HASH_STOPPED comes. */
	if (wanted && part->digests == DIGESTS_NONE) {
		digests_enter(part, DIGESTS_MAKING, "wanted again");
		part_action(agent, AGENT_HASH, part);
	} else if (!wanted && part->digests == DIGESTS_MAKING) {
		digests_enter(part, DIGESTS_STOPPING, "nobody wants them");
		part_action(agent, AGENT_HASH_STOP, part);
	}
}

static void
stop_copies(struct agent_core *agent, const struct part *part)
{
	struct inbound *in;

	for (in = agent->inbounds; in != NULL; in = in->hh.next) {
		if (in->source == part)
			ac_inbound_stop(agent, in, STOP_SOURCE_GONE);
	}
}

static void
answer_drain(struct agent_core *agent, struct part *part)
{
	part->drain_answered = true;
	ac_lane_add(agent, part->session->lane, CTL_DRAIN_DONE)->u.drain_done =
		(struct ctl_drain_done){
			.sid = part->session->sid,
			.gen = part->gen,
			.drain_no = part->drain_no,
		};
}

void
ac_part_settle(struct agent_core *agent, struct session *session)
{
	struct part *part = session->part;

	if (part == NULL)
		return;
	if (ac_part_draining(part)) {
		ac_outbounds_fence(agent, part, ac_part_drains(part, DRAIN_HOPELESS));
		ac_inbounds_drop_donor(agent, part);
		if (ac_part_drains(part, DRAIN_HOPELESS))
			stop_copies(agent, part);
	}
	settle_hashing(agent, part);
	if (ac_part_drains(part, DRAIN_SERVER) && !part->drain_answered && ac_part_drained(part))
		answer_drain(agent, part);
}

/* ---- events ---------------------------------------------------------------------------------- */

static struct part *
agent_part_find(const struct agent_core *agent, const struct ctl_ev_part *named)
{
	struct session *session = ac_session_by_sid(agent, named->sid);

	if (session == NULL || session->part == NULL || session->part->gen != named->gen)
		return NULL;
	return session->part;
}

void
ac_part_drain(struct agent_core *agent, const struct ctl_ev_part *drain)
{
	struct part *part = agent_part_find(agent, drain);

	if (part == NULL) {
		/* What we do not have nobody reads. */
		ac_lane_add(agent, agent->misc, CTL_DRAIN_DONE)->u.drain_done =
			(struct ctl_drain_done){
				.sid = drain->sid,
				.gen = drain->gen,
				.drain_no = drain->drain_no,
			};
		return;
	}
	ac_part_drain_for(part, DRAIN_SERVER);
	part->drain_answered = false;
	part->drain_no = drain->drain_no;
}

void
ac_part_undrain(struct agent_core *agent, const struct ctl_ev_part *undrain)
{
	struct part *part = agent_part_find(agent, undrain);

	if (part != NULL)
		ac_part_undrain_for(part, DRAIN_SERVER | DRAIN_PLAN);
}

void
ac_part_hashed(struct agent_core *agent, struct session *session, uint64_t gen,
	struct th_hash content, bool stopped)
{
	struct part *part = session->part;

	if (part == NULL || part->gen != gen)
		return;
	if (stopped) {
		if (is_hashing(part))
			digests_enter(part, ac_part_has_digests(part) ? DIGESTS_MADE : DIGESTS_NONE,
				"HASH_STOPPED");
		return;
	}
	if (ac_part_draining(part))
		TH_MARK(d03_hashed_while_it_drains);
	if (ac_part_has_digests(part))
		return;
	if (ac_known(session)) {
		/*
		 * In the session's lane, so that it is said before the proof that nobody reads
		 * the part any more: with that goes what readers wait for.
		 */
		ac_lane_add(agent, session->lane, CTL_CONTENT)->u.content =
			(struct ctl_content){.sid = session->sid, .gen = gen, .content = content};
	}
	part->content = content;
	/* The thread that was told to stop says so itself. */
	digests_enter(part, part->digests == DIGESTS_STOPPING ? DIGESTS_OVERTAKEN : DIGESTS_MADE,
		"HASHED");
}
