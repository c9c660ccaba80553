/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_part - the content of a session at one generation: serving, draining, and the proof of it.
 *
 *   serving --DRAIN, PLAN with drain_old, failure, close--> draining --nobody reads--> drained
 *      ^------------------------- UNDRAIN -------------------'
 *
 * Readers are legs out, copies within this host, and the thread that makes digests. While draining,
 * a leg goes on as long as it progresses, also one that is granted and about to begin, and the
 * digests that it needs are still made; a stalled one is fenced. A part that can never be
 * complete is of no use to anyone: all its legs are fenced.
 */
#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/assert.h"
#include "ipc/base/sim.h"

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
	part->hashing = published;
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
	return part->drain_server || part->drain_plan || part->drain_local || part->hopeless;
}

bool
ac_part_serves(const struct part *part)
{
	return !ac_part_draining(part);
}

bool
ac_part_drained(const struct part *part)
{
	if (!ac_part_draining(part))
		return false;
	/* I2: a leg counts from its GRANT to the word that nothing reads for it any more. */
	if (TH_PLANT(leg_counts_for_a_moment))
		return part->num_copies == 0;
	return part->num_running == 0 && part->num_copies == 0 && !part->hashing &&
	       !part->hash_stopping && part->outbounds == NULL;
}

/* ---- conclusions ----------------------------------------------------------------------------- */

static void
settle_hashing(struct agent_core *agent, struct part *part)
{
	bool readers = part->outbounds != NULL || part->num_copies > 0;
	bool wanted = part->published && !part->hashed && !part->hopeless &&
		      (!ac_part_draining(part) || readers);

	if (part->hash_stopping)
		return; /* one thing at a time: HASH_STOPPED comes */
	if (wanted && !part->hashing) {
		part->hashing = true;
		part_action(agent, AGENT_HASH, part);
	} else if (!wanted && part->hashing) {
		part->hash_stopping = true;
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
		ac_outbounds_fence(agent, part, part->hopeless);
		if (part->hopeless)
			stop_copies(agent, part);
	}
	settle_hashing(agent, part);
	if (part->drain_server && !part->drain_answered && ac_part_drained(part))
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
	part->drain_server = true;
	part->drain_answered = false;
	part->drain_no = drain->drain_no;
}

void
ac_part_undrain(struct agent_core *agent, const struct ctl_ev_part *undrain)
{
	struct part *part = agent_part_find(agent, undrain);

	if (part == NULL)
		return;
	part->drain_server = part->drain_plan = false;
	part->drain_answered = false;
}

void
ac_part_hashed(struct agent_core *agent, struct session *session, uint64_t gen,
	struct th_hash content, bool stopped)
{
	struct part *part = session->part;

	if (part == NULL || part->gen != gen)
		return;
	if (stopped) {
		part->hashing = part->hash_stopping = false;
		return;
	}
	if (ac_part_draining(part))
		TH_MARK(d03_hashed_while_it_drains);
	if (!part->hashed && session->sid_known) {
		/*
		 * In the session's lane, so that it is said before the proof that nobody reads
		 * the part any more: with that goes what readers wait for.
		 */
		ac_lane_add(agent, session->lane, CTL_CONTENT)->u.content =
			(struct ctl_content){.sid = session->sid, .gen = gen, .content = content};
	}
	if (!part->hashed)
		part->content = content;
	part->hashed = true;
	/* The thread that was told to stop says so itself. */
	if (!part->hash_stopping)
		part->hashing = false;
}
