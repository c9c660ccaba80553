/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle - one handle of one worker: opening, registering, what its worker sees, breaking.
 *
 *   OPENING          -> OPEN             the server's reply; of an observer: there is a server
 *   OPEN             -> CLOSING          its worker closes it, or is lost
 *                    -> CLOSING_UNASKED  ended by us: its worker has broken the contract
 *   CLOSING          -> OPEN             the close is refused
 *                    -> CLOSING_UNASKED  refused for want of a server, but one may have begun it
 *                    -> freed            it is proven that nobody touches its memory (close.c)
 *   CLOSING_UNASKED  -> CLOSING          its worker closes it again, or is lost
 *                    -> OPEN             a server refuses that first close after all
 *
 * broken is no state: the worker learns it, its operations answer it, and only close helps; the
 * bytes and what is held stay until then. See agent_state.h.
 */
#include <inttypes.h>
#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/retain_rules.h"
#include "ipc/base/sim.h"
#include "ipc/base/state.h"

#define TO(state) TH_STATE(SESSION_##state)

static const struct th_states session_states = {
	"handle", {
			  [SESSION_NONE] = {"none", TO(OPENING)},
			  [SESSION_OPENING] = {"opening", TO(OPEN)},
			  [SESSION_OPEN] = {"open", TO(CLOSING) | TO(CLOSING_UNASKED)},
			  [SESSION_CLOSING] = {"closing", TO(OPEN) | TO(CLOSING_UNASKED)},
			  [SESSION_CLOSING_UNASKED] = {"closing unasked", TO(OPEN) | TO(CLOSING)},
		  }};

#undef TO
#define TO(state) TH_STATE(TENSORS_##state)

static const struct th_states tensors_states = {"tensors",
	{
		[TENSORS_NONE] = {"none", TO(REGISTERING)},
		[TENSORS_REGISTERING] = {"registering", TO(NONE) | TO(REGISTERED)},
		[TENSORS_REGISTERED] = {"registered", TO(UNREGISTER_WAITS) | TO(UNREGISTERING)},
		[TENSORS_UNREGISTER_WAITS] = {"to be unregistered",
			TO(NONE) | TO(REGISTERED) | TO(UNREGISTERING)},
		[TENSORS_UNREGISTERING] = {"unregistering", TO(NONE) | TO(REGISTERED)},
	}};

void
ac_session_enter(struct session *session, enum session_state state, const char *why)
{
	th_state_check(&session_states, session->state, state, why);
	session->state = state;
}

void
ac_tensors_enter(struct session *session, enum tensors_state state, const char *why)
{
	th_state_check(&tensors_states, session->tensors, state, why);
	session->tensors = state;
}

struct session *
ac_session_find(const struct agent_core *agent, uint64_t id)
{
	struct session *session = NULL;

	HASH_FIND(hh, agent->sessions, &id, sizeof(id), session);
	return session;
}

struct session *
ac_session_by_sid(const struct agent_core *agent, uint64_t sid)
{
	struct session *session;

	/* Few sessions, and none of a former life of the server. */
	for (session = agent->sessions; session != NULL; session = session->hh.next) {
		if (ac_known(session) && session->sid == sid)
			return session;
	}
	return NULL;
}

/* ---- opening --------------------------------------------------------------------------------- */

#define OPEN_FLAGS                                                                                 \
	(CTL_OPEN_SPOT | CTL_OPEN_REQUIRE_RDMA | CTL_OPEN_NO_MEMORY_FD | CTL_OPEN_STAGED |         \
		CTL_OPEN_PREFETCH | CTL_OPEN_SEED)

static uint32_t
num_of_workers(const struct agent_core *agent)
{
	const struct session *session;
	uint32_t count = 0;

	for (session = agent->sessions; session != NULL; session = session->hh.next)
		count += !ac_internal(session);
	return count;
}

/* What a member says of itself has no meaning for who is none. */
static int
open_check_observer(const struct ctl_open *open, struct th_err *err)
{
	const char *what = open->shard != 0 || open->num_shards != 1 ? "num_shards"
			   : open->lineage != 0                      ? "lineage"
			   : open->retain[0] != '\0'                 ? "retain"
			   : open->launch_id[0] != '\0'              ? "launch_id"
			   : open->flags != 0                        ? "flags"
								     : NULL;

	if (what == NULL)
		return 0;
	return th_fail(err, TH_E_INVALID,
		"%s: without a replica the handle is an observer, which is a member of nothing and "
		"has none; leave it out, or name a replica",
		what);
}

static int
open_check(const struct agent_core *agent, const struct ctl_open *open, struct th_err *err)
{
	uint32_t refused = open->flags & ~(uint32_t)OPEN_FLAGS;
	struct th_retain rules;

	TH_ASSERT(open->reservation == 0);
	if (num_of_workers(agent) >= agent->config.sessions_max)
		return th_fail(err, TH_E_LIMIT,
			"this agent has its limit of %u open handles (limit.sessions)",
			agent->config.sessions_max);
	bool observer = open->replica[0] == '\0';
	if (!th_name_valid(open->model, TH_NAME_MAX) ||
		(!observer && !th_name_valid(open->replica, TH_NAME_MAX)))
		return th_fail(err, TH_E_INVALID,
			"the model or replica name is not 1 to %d bytes of UTF-8 without control "
			"characters",
			TH_NAME_MAX);
	if (open->num_shards == 0 || open->num_shards > TH_SHARDS_MAX ||
		open->shard >= open->num_shards)
		return th_fail(err, TH_E_INVALID,
			"shard %u of %u is out of range (1 to %d shards, counted from 0)",
			open->shard, open->num_shards, TH_SHARDS_MAX);
	if (th_retain_parse(open->retain, &rules, err) != 0)
		return err->code;
	if (refused != 0)
		return th_fail(err, TH_E_INVALID,
			"flags 0x%x: this version of the agent does not know 0x%x of them; open "
			"without these",
			open->flags, refused);
	return observer ? open_check_observer(open, err) : 0;
}

static void
send_open(struct agent_core *agent, struct session *session)
{
	ac_lane_add(agent, session->lane, CTL_OPEN)->u.open = session->open;
}

static void
answer_opened(struct agent_core *agent, struct session *session)
{
	ac_answer(agent, AGENT_OPENED, session->id, NULL);
	ac_session_line(agent, session);
}

void
ac_session_open(struct agent_core *agent, uint64_t id, const struct ctl_open *open)
{
	struct th_err err;

	TH_ASSERT(ac_session_find(agent, id) == NULL);
	if (open_check(agent, open, &err) != 0)
		ac_answer(agent, AGENT_OPENED, id, &err);
	else
		ac_session_new(agent, id, open);
}

void
ac_observer_settle(struct agent_core *agent, struct session *session)
{
	if (!ac_observer(session) || session->state != SESSION_OPENING || !agent->link.attached)
		return;
	ac_session_enter(session, SESSION_OPEN, "there is a server");
	answer_opened(agent, session);
}

struct session *
ac_session_new(struct agent_core *agent, uint64_t id, const struct ctl_open *open)
{
	struct session *session = th_calloc(1, sizeof(*session));
	session->id = id;
	ac_session_enter(session, SESSION_OPENING, "thc_open");
	session->open = *open;
	session->held.version = TH_NO_VERSION;
	session->line.held.version = TH_NO_VERSION;
	session->ready.version = session->line.ready.version = TH_NO_VERSION;
	session->model = ac_model_acquire(agent, session->open.model);
	session->lane = ac_lane_new(agent, session);
	HASH_ADD(hh, agent->sessions, id, sizeof(session->id), session);
	if (!ac_observer(session))
		send_open(agent, session);
	return session;
}

void
ac_session_free(struct agent_core *agent, struct session *session)
{
	if (session->in != NULL) {
		HASH_DELETE(hh, agent->inbounds, session->in);
		free(session->in);
	}
	if (session->part != NULL) {
		while (session->part->outbounds != NULL)
			ac_outbound_free(agent, session->part->outbounds);
		free(session->part);
	}
	while (session->watches != NULL) {
		struct watch *first = session->watches;
		DL_DELETE(session->watches, first);
		free(first);
	}
	if (ac_internal(session))
		agent->num_internal--;
	ac_lane_orphan(agent, session->lane);
	ac_model_release(agent, session->model);
	HASH_DELETE(hh, agent->sessions, session);
	free(session);
}

static void
handle_opened(struct agent_core *agent, struct session *session, const struct ctl_reply *reply)
{
	struct th_err err = {.code = ac_code(reply->code)};

	AC_COPY(err.text, reply->text);
	if (err.code == 0 &&
		(reply->u.open.sid == 0 || ac_session_by_sid(agent, reply->u.open.sid) != NULL))
		th_fail(&err, TH_E_PROTOCOL,
			"the reference server gave the number %" PRIu64 " of another session",
			reply->u.open.sid);
	if (err.code != 0) {
		uint64_t id = session->id;
		bool internal = ac_internal(session);
		ac_session_free(agent, session);
		if (internal)
			ac_action(agent, AGENT_FREE, id);
		else
			ac_answer(agent, AGENT_OPENED, id, &err);
		return;
	}
	ac_session_enter(session, SESSION_OPEN, "the server's reply");
	session->sid = reply->u.open.sid;
	session->at_server = AT_SERVER_KNOWN;
	ac_rejoin_opened(session, reply->u.open.group_inc);
	session->next_op_seq = reply->u.open.next_op_seq;
	if (ac_internal(session)) {
		ac_internal_opened(agent, session);
		return;
	}
	answer_opened(agent, session);
}

int
ac_observer_refused(const char *what, struct th_err *err)
{
	TH_MARK(d22_observer_refused);
	return th_fail(err, TH_E_STATE, AGENT_OBSERVER_REFUSED, what);
}

/* ---- registering ----------------------------------------------------------------------------- */

static int
handle_register_check(const struct agent_core *agent, const struct session *session,
	const char *what, struct th_err *err)
{
	if (ac_ended(session))
		return th_fail(err, TH_E_CONTRACT, "%s", session->ended_text);
	if (session->state != SESSION_OPEN)
		return th_fail(err, TH_E_STATE, "%s: the handle is not open", what);
	if (ac_observer(session))
		return ac_observer_refused(what, err);
	if (ac_broken(session))
		return th_fail(err, session->broken_code, "%s", session->broken_text);
	if (ac_tensors_change(session) || ac_ghost_busy(session))
		return th_fail(err, TH_E_STATE,
			"%s: another call of this handle is running; wait for its end", what);
	if (session->part != NULL)
		return th_fail(err, TH_E_STATE,
			"%s: the handle holds version %" PRIu64 "; unpublish it first", what,
			session->held.version);
	if (session->follows[0] != '\0')
		return th_fail(err, TH_E_STATE,
			"%s: the handle follows the versions of its model; end that first", what);
	if (session->dirty)
		return th_fail(err, TH_E_DIRTY,
			"%s: the tensors were partly overwritten by an operation that failed; only "
			"replicate and close are allowed",
			what);
	if (!agent->link.attached)
		return th_fail(err, TH_E_NO_SERVER,
			"%s: the agent reaches no reference server; see 'thctl status'", what);
	return 0;
}

void
ac_session_register(
	struct agent_core *agent, struct session *session, const struct ctl_register *reg)
{
	struct th_err err;
	int rc = handle_register_check(agent, session, "register", &err);

	if (rc == 0 && session->tensors != TENSORS_NONE)
		rc = th_fail(&err, TH_E_STATE,
			"register: tensors are registered already; unregister them first");
	if (rc != 0) {
		ac_answer(agent, AGENT_REGISTERED, session->id, &err);
		return;
	}
	ac_tensors_enter(session, TENSORS_REGISTERING, "register");
	session->reg = *reg;
	session->reg.sid = session->sid;
	ac_lane_add(agent, session->lane, CTL_REGISTER)->u.reg = session->reg;
}

void
ac_session_unregister(struct agent_core *agent, struct session *session)
{
	struct th_err err;
	int rc = handle_register_check(agent, session, "unregister", &err);

	if (rc == 0 && session->tensors == TENSORS_NONE)
		rc = th_fail(&err, TH_E_STATE, "unregister: no tensors are registered");
	if (rc != 0) {
		ac_answer(agent, AGENT_UNREGISTERED, session->id, &err);
		return;
	}
	/* To the server it would hold its version still. */
	if (session->call.state != CALL_NONE && session->call.order.kind == CTL_OP_UNPUBLISH)
		ac_tensors_enter(session, TENSORS_UNREGISTER_WAITS, "unregister");
	else
		ac_session_send_unregister(agent, session);
}

void
ac_session_send_unregister(struct agent_core *agent, struct session *session)
{
	ac_tensors_enter(session, TENSORS_UNREGISTERING, "unregister");
	ac_lane_add(agent, session->lane, CTL_UNREGISTER)->u.unregister_sid = session->sid;
}

void
ac_session_registered(struct agent_core *agent, struct session *session,
	enum agent_action_kind kind, const struct th_err *err)
{
	bool comes = kind == AGENT_REGISTERED, done = err == NULL || err->code == 0;

	if (comes ? session->tensors != TENSORS_REGISTERING : !ac_tensors_go(session))
		return;
	ac_tensors_enter(session, comes == done ? TENSORS_REGISTERED : TENSORS_NONE, "the reply");
	session->used = session->used && !done;
	if (ac_internal(session)) {
		session->unwanted = session->unwanted || !done;
		return;
	}
	ac_answer(agent, kind, session->id, err);
}

/* ---- replies --------------------------------------------------------------------------------- */

static void
orphan_reply(struct agent_core *agent, struct request_lane *lane, const struct ctl_request *request,
	const struct ctl_reply *reply)
{
	if (request->kind != CTL_OPEN || reply->code != 0)
		return;
	/* Its worker died while it was opened. */
	struct ctl_close *close = &ac_lane_add(agent, lane, CTL_CLOSE)->u.close;
	close->sid = reply->u.open.sid;
	close->died = lane->died;
}

void
ac_session_reply(struct agent_core *agent, struct request_lane *lane,
	const struct ctl_request *request, const struct ctl_reply *reply)
{
	struct session *session = lane->session;
	struct th_err err = {.code = ac_code(reply->code)};

	if (session == NULL) {
		orphan_reply(agent, lane, request, reply);
		return;
	}
	AC_COPY(err.text, reply->text);
	switch ((int)request->kind) {
	case CTL_OPEN:
		handle_opened(agent, session, reply);
		return; /* it may be gone */
	case CTL_REGISTER:
		ac_session_registered(agent, session, AGENT_REGISTERED, &err);
		break;
	case CTL_UNREGISTER:
		ac_session_registered(agent, session, AGENT_UNREGISTERED, &err);
		break;
	case CTL_OP:
		ac_call_reply(agent, session, request, reply);
		break;
	case CTL_REJOIN:
		ac_rejoin_reply(agent, session, reply);
		break;
	case CTL_CLOSE:
		session->close_reply = reply->code == 0 ? CLOSE_TAKEN : CLOSE_REFUSED;
		session->close_answered_ns = agent->now_ns;
		break;
	default:
		/* PREPARED, CANCEL, LEG_END, DRAIN_DONE: events say what follows. */
		break;
	}
	ac_settle(agent, session);
}

void
ac_session_conflict(struct agent_core *agent, struct session *session)
{
	session->num_conflict++;
	if (session->part != NULL)
		session->part->refused = true;
	ac_settle(agent, session);
}

void
ac_session_at_risk(struct agent_core *agent, struct session *session)
{
	TH_MARK(c07_holder_is_told);
	session->num_at_risk++;
	ac_settle(agent, session);
}

void
ac_session_ready(struct agent_core *agent, struct session *session, struct th_version version)
{
	session->ready = version;
	ac_settle(agent, session);
}

/* ---- breaking -------------------------------------------------------------------------------- */

void
ac_session_broken(struct agent_core *agent, struct session *session, int code, const char *text)
{
	if (ac_broken(session))
		return;
	TH_MARK(c12_member_is_told);
	session->broken_code = code;
	session->follows[0] = '\0';
	ac_alone_forget(session);
	ac_copy(session->broken_text, sizeof(session->broken_text), text, TH_CTL_TEXT_BYTES);
	if (code == TH_E_EVICTED)
		session->num_evicted++;
	else
		session->num_broken++;
	ac_watches_end(agent, session, code, session->broken_text);
	ac_pending_end(agent, session, code, session->broken_text);
}

void
ac_session_forgotten(struct agent_core *agent, struct session *session, const char *text)
{
	struct th_err err;
	struct part *part = session->part;

	ac_lane_clear(agent, session->lane);
	if (session->state == SESSION_OPENING && ac_internal(session)) {
		/* Nobody waits for it: its reservation ended with the server that made it. */
		uint64_t id = session->id;
		ac_session_free(agent, session);
		ac_action(agent, AGENT_FREE, id);
		return;
	}
	if (session->state == SESSION_OPENING) {
		send_open(agent, session);
		return;
	}
	session->at_server = AT_SERVER_NOT;
	if (part != NULL) {
		/* Nobody asks for it again; who reads it already may finish. */
		ac_part_undrain_for(part, DRAIN_SERVER | DRAIN_PLAN);
		ac_part_drain_for(part, DRAIN_LOCAL);
	}
	if (ac_closing(session)) {
		ac_call_abandon(agent, session, TH_E_CANCELLED, text);
		return;
	}
	ac_session_broken(agent, session, TH_E_GROUP_BROKEN, text);
	th_fail(&err, session->broken_code, "%s", session->broken_text);
	ac_session_registered(agent, session, AGENT_REGISTERED, &err);
	ac_session_registered(agent, session, AGENT_UNREGISTERED, &err);
	if (session->call.state != CALL_NONE)
		ac_call_fail(session, err.code, err.text);
}

/* ---- the line -------------------------------------------------------------------------------- */

static bool
safe_to_mutate(const struct session *session)
{
	/* A broken group's part is never served again, so its proof stays one. Who follows may be
	 * written to at any moment. */
	return session->in == NULL && session->part == NULL && session->follows[0] == '\0';
}

/*
 * What its worker may believe: that an update would install it now. While no server is there none
 * would; nor of a handle that is dirty, in a group that is over, or at an agent that ends. What is
 * not newer than what is held has been installed already, whether the server has said so or not.
 */
static struct th_version
ready_now(const struct agent_core *agent, const struct session *session)
{
	bool takes = agent->link.attached && !ac_leaving(agent) &&
		     session->at_server == AT_SERVER_KNOWN && session->state == SESSION_OPEN &&
		     !session->dirty && !ac_broken(session) && !ac_ended(session);

	return takes && th_version_compare(session->ready, session->held) > 0
		       ? session->ready
		       : (struct th_version){.version = TH_NO_VERSION};
}

void
ac_session_line(struct agent_core *agent, struct session *session)
{
	struct agent_line line = {
		.ready = ready_now(agent, session),
		.held = session->held,
		.safe_to_mutate = safe_to_mutate(session),
		.generation = session->model->generation,
		.broken = session->num_broken,
		.contract = session->num_contract,
		.conflict = session->num_conflict,
		.evicted = session->num_evicted,
		.at_risk = session->num_at_risk,
		.updated = session->num_updated,
		.follow_failed = session->num_follow_failed,
		.follows = session->follows[0] != '\0',
	};

	if (session->state == SESSION_OPENING || ac_internal(session))
		return;
	bool other_ready = th_version_compare(line.ready, session->line.ready) != 0;
	if (th_version_compare(line.held, session->line.held) == 0 &&
		line.safe_to_mutate == session->line.safe_to_mutate &&
		line.generation == session->line.generation &&
		line.broken == session->line.broken && line.contract == session->line.contract &&
		line.conflict == session->line.conflict && line.evicted == session->line.evicted &&
		line.at_risk == session->line.at_risk && line.updated == session->line.updated &&
		line.follow_failed == session->line.follow_failed &&
		line.follows == session->line.follows && !other_ready)
		return;
	if (other_ready && !th_version_none(line.ready)) {
		TH_MARK(worker_hears_what_is_ready);
		session->num_ready++;
	}
	line.ready_told = session->num_ready;
	session->line = line;
	ac_action(agent, AGENT_LINE, session->id)->u.line = line;
}
