/* SPDX-License-Identifier: Apache-2.0 */
/*
 * last_copy - see last_copy.h.
 *
 * Several copies of one version may be to be given up at once, as when all trainers of a step
 * unpublish together. Each is decided alone and hidden at once, so the last of them finds itself
 * alone, and only that one is copied.
 */
#include "server/core/retain/last_copy.h"

#include <inttypes.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/cluster/agent_ping.h"
#include "server/core/model/content.h"
#include "server/core/model/copy.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/rejoin/rejoin.h"
#include "server/core/retain/at_risk.h"
#include "server/core/retain/offload.h"
#include "server/core/retain/retain.h"
#include "server/core/view/event_log.h"

static void
last_copy_wake_at(struct copy *copy, int64_t at_ns)
{
	struct retention *retention = &copy->version->model->retention;

	retention->wake_ns = th_min_i64(retention->wake_ns, at_ns);
}

void
last_copy_begin(struct refsrv *server, struct copy *copy)
{
	if (copy->keep != NULL)
		return;
	/* Its deadlines are set when the model is settled. */
	model_dirty(copy->version->model);
	copy->keep = th_calloc(1, sizeof(*copy->keep));
	copy->keep->since_ns = server->now_ns;
	copy->keep->until_ns = INT64_MAX;
}

bool
last_copy_wanted(const struct copy *copy)
{
	const struct op *op = group_open_op(copy->group);

	return copy->rescued || copy->group->num_closing > 0 ||
	       (op != NULL && op->state == OP_OFFLOADING);
}

void
last_copy_end(struct copy *copy)
{
	if (copy->keep == NULL || last_copy_wanted(copy))
		return;
	free(copy->keep);
	copy->keep = NULL;
	/* An offload that was begun for it may not be needed any more. */
	model_dirty(copy->version->model);
}

/* Another complete copy that stays: THERE when all its agents live for certain. */
static enum proof
others_count(struct refsrv *server, struct copy *copy)
{
	const struct version *version = copy->version;
	enum proof best = PROOF_NONE;
	const struct copy *other;

	DL_FOREACH(version->copies, other)
	{
		int64_t wake_ns = INT64_MAX;
		if (other == copy || !copy_secure(other))
			continue;
		if (TH_PLANT(no_last_copy_proof))
			return PROOF_THERE;
		enum proof proof = agent_ping_copy(server, other, copy->keep->since_ns, &wake_ns);
		if (proof == PROOF_THERE)
			return proof;
		if (proof == PROOF_PENDING) {
			best = proof;
			last_copy_wake_at(copy, wake_ns);
		}
	}
	return best;
}

enum last_copy_result
last_copy_check(struct refsrv *server, struct copy *copy)
{
	struct version *version = copy->version;

	TH_ASSERT(copy->keep != NULL);
	/* What is not listed yet may be all that is left of its version. */
	if (copy->content->refused || !retain_would_name(server, version))
		return LAST_COPY_FREE;
	switch (others_count(server, copy)) {
	case PROOF_THERE:
		return LAST_COPY_FREE;
	case PROOF_PENDING:
		return LAST_COPY_WAIT;
	case PROOF_NONE:
		break;
	}
	/* Whoever has it too, or claims it, may be about to say so: no memory is taken before. */
	if (model_warming(server, version->model)) {
		TH_MARK(last_copy_waits_for_the_others);
		return LAST_COPY_WAIT;
	}
	/* Nobody lives who has what is listed, and this may be the same: it is soon decided. */
	if (!content_listed(copy)) {
		TH_MARK(undecided_copy_waits);
		return LAST_COPY_WAIT;
	}
	if (TH_PLANT(ack_before_all_copied) && offload_begun(version))
		return LAST_COPY_FREE;
	if (offload_awaited(version))
		return LAST_COPY_WAIT;
	if (copy->keep->code == 0 && offload_begin(server, copy, OFFLOAD_GIVEN_UP, NULL) != NULL)
		return LAST_COPY_WAIT;
	if (TH_PLANT(refusal_ignored))
		return LAST_COPY_FREE;
	TH_ASSERT(copy->keep->code != 0);
	return LAST_COPY_FAILED;
}

void
last_copy_offload_failed(const struct version *version, int code, const char *text)
{
	struct copy *copy;

	DL_FOREACH(version->copies, copy)
	{
		if (copy->keep == NULL)
			continue;
		copy->keep->code = code;
		memcpy(copy->keep->text, text, strnlen(text, sizeof(copy->keep->text) - 1) + 1);
	}
	model_dirty(version->model);
}

/* ---- broken groups -------------------------------------------------------------------------- */

bool
last_copy_rescue(struct refsrv *server, struct group *group)
{
	struct copy *copy = group->copy;

	if (group->reservation != 0 || copy == NULL || copy->state != COPY_READY ||
		copy->draining || copy->content->refused)
		return false;
	for (uint32_t i = 0; i < copy->num_parts; i++) {
		const struct member *member = copy->parts[i].member;
		if (member == NULL || member->agent->state == AGENT_DEAD)
			return false;
	}
	/*
	 * It may be the only one that makes its version the latest. What is not listed yet, as who
	 * published first has not said what it is, may be all that is left when that one is gone.
	 */
	copy->rescued = true;
	if (!retain_would_name(server, copy->version)) {
		copy->rescued = false;
		return false;
	}
	TH_MARK(last_copy_rescued);
	last_copy_begin(server, copy);
	copy->keep->until_ns = th_deadline_ns(server->now_ns, server->config.rescue_ns);
	return true;
}

void
last_copy_rescue_stop(struct refsrv *server, struct copy *copy)
{
	copy->rescued = false;
	copy_hide(server, copy);
	copy_drain(server, copy);
	last_copy_end(copy);
}

static bool
still_moving(const struct copy *copy)
{
	uint64_t progress = offload_progress(copy->version);
	bool moves = progress > copy->keep->progress;

	copy->keep->progress = progress;
	return moves;
}

void
last_copy_rescue_settle(struct refsrv *server, struct copy *copy)
{
	enum last_copy_result result = last_copy_check(server, copy);
	const char *text = copy->keep->text;

	if (result == LAST_COPY_WAIT) {
		/* Nothing is copied while the server is warming. */
		if (model_warming(server, copy->version->model) ||
			(server->now_ns >= copy->keep->until_ns && still_moving(copy)))
			copy->keep->until_ns =
				th_deadline_ns(server->now_ns, server->config.rescue_ns);
		if (server->now_ns < copy->keep->until_ns) {
			last_copy_wake_at(copy, copy->keep->until_ns);
			return;
		}
		text = "nobody has made a copy of it in time";
	}
	if (result != LAST_COPY_FREE)
		at_risk_lost(server, copy, text);
	last_copy_rescue_stop(server, copy);
}

/* ---- closing -------------------------------------------------------------------------------- */

void
last_copy_close_over(struct member *member)
{
	struct group *group = member->group;

	if (!member->closing)
		return;
	member->closing = false;
	if (--group->num_closing > 0)
		return;
	retain_closing(group, false);
	if (group->copy != NULL)
		last_copy_end(group->copy);
}

bool
last_copy_close(struct refsrv *server, struct member *member, int64_t timeout_ns)
{
	struct group *group = member->group;
	struct copy *copy = group->copy;

	/* Asked again, with another deadline. */
	if (member->closing) {
		member->close_ns = th_deadline_ns(server->now_ns, timeout_ns);
		model_dirty(group->model);
		return true;
	}
	if (group->state != GROUP_LIVE || group->reservation != 0 || copy == NULL ||
		copy->state != COPY_READY || copy->draining)
		return false;
	member->closing = true;
	member->close_ns = th_deadline_ns(server->now_ns, timeout_ns);
	group->num_closing++;
	/* Its own rules end with it, so they keep nothing. */
	retain_closing(group, true);
	last_copy_begin(server, copy);
	if (last_copy_check(server, copy) == LAST_COPY_FREE) {
		last_copy_close_over(member);
		return false;
	}
	group_busy(group);
	return true;
}

static void
refuse_close(struct member *member, int code, const char *text)
{
	struct ctl_ev_close_refused *ev =
		&agent_event(member->agent, CTL_EV_CLOSE_REFUSED)->u.close_refused;

	ev->sid = member->sid;
	ev->code = code;
	memcpy(ev->text, text, strnlen(text, sizeof(ev->text) - 1));
	last_copy_close_over(member);
}

static void
close_late(struct member *member)
{
	const struct copy *copy = member->group->copy;
	struct th_err err;

	th_fail(&err, TH_E_TIMEOUT,
		"close of shard %u of replica %.100s: the deadline passed while version %" PRIu64
		" of %.100s, which is retained and has no other copy, was being copied to host "
		"memory; close again, with a longer timeout or to abandon it",
		member->shard, member->group->replica, copy->version->id.version,
		member->group->model->name);
	refuse_close(member, err.code, err.text);
}

void
last_copy_close_settle(struct refsrv *server, struct group *group)
{
	struct copy *copy = group->copy;
	enum last_copy_result result = LAST_COPY_FREE;
	char text[TH_CTL_TEXT_BYTES] = "";
	int code = 0;

	if (group->state == GROUP_LIVE && copy != NULL && copy->keep != NULL && !copy->draining)
		result = last_copy_check(server, copy);
	if (result == LAST_COPY_FAILED) {
		code = copy->keep->code;
		memcpy(text, copy->keep->text, sizeof(text));
	}
	for (uint32_t i = 0; i < group->num_shards; i++) {
		struct member *member = group->members[i];
		if (member == NULL || !member->closing)
			continue;
		if (result == LAST_COPY_FREE) {
			member_leave(server, member);
		} else if (result == LAST_COPY_FAILED) {
			refuse_close(member, code, text);
		} else if (server->now_ns >= member->close_ns) {
			close_late(member);
		} else {
			last_copy_wake_at(copy, member->close_ns);
		}
	}
}
