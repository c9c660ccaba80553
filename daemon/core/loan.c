/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loan - what this agent lends out of its own memory: a shard of a version to a process.
 *
 *   BORROW --a copy is here--> LEND --the process returns it, or ends--> over
 *      |                        ^
 *      '-- WAITING: the server has it brought --BORROW_REFUSED, deadline, close--> LOAN_REFUSED
 *
 * A need is what several loans have in common: which shard of which version. The server is told
 * of it as long as one stands, and keeps the copy meanwhile; one that knows nothing is told again.
 * Who waits may do so in slices of time, between which it looks around: so a need whose last loan
 * came to its deadline stands a little longer, and what is being brought for it goes on.
 * What is lent belongs to no session: it goes on when that which has borrowed it is closed, and
 * when the copy's own session ends, for the process has its pages.
 */
#include <inttypes.h>
#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/checked.h"
#include "ipc/base/sim.h"
#include "ipc/base/units.h"

#define LINGER_NS (INT64_C(5) * 1000000000)
#define LINGERING_MAX 64u /* a worker may ask for one after the other, and wait for none */

/* ---- needs ----------------------------------------------------------------------------------- */

static struct need *
need_find(const struct agent_core *agent, const char *model, struct th_version version,
	uint32_t shard)
{
	struct need *need;

	DL_FOREACH(agent->needs, need)
	{
		if (need->shard == shard && th_version_compare(need->version, version) == 0 &&
			strcmp(need->model, model) == 0)
			return need;
	}
	return NULL;
}

/* The session that has it all; NULL: there is none. */
static const struct session *
need_copy(const struct agent_core *agent, const struct need *need)
{
	const struct session *session;

	for (session = agent->sessions; session != NULL; session = session->hh.next) {
		const struct part *part = session->part;
		if (ac_internal(session) && session->state == SESSION_OPEN && part != NULL &&
			part->state == PART_HELD && !part->refused && !ac_part_draining(part) &&
			session->open.shard == need->shard &&
			th_version_compare(session->held, need->version) == 0 &&
			strcmp(session->open.model, need->model) == 0)
			return session;
	}
	return NULL;
}

static bool
need_waits(const struct agent_core *agent, const struct need *need)
{
	const struct loan *loan;

	DL_FOREACH(agent->loans, loan)
	{
		if (loan->need == need && !loan->lent)
			return true;
	}
	return need->linger_ns != 0;
}

/* Of this copy, which stays as a whole, some shard is lent; looked at are the needs before end. */
static bool
is_lent(const struct agent_core *agent, const struct need *need, const struct need *end)
{
	const struct need *other;

	for (other = agent->needs; other != end; other = other->next) {
		if (other->copy != 0 && th_version_compare(other->version, need->version) == 0 &&
			strcmp(other->model, need->model) == 0)
			return true;
	}
	return false;
}

/* Of all that is lent. */
static uint64_t
lent_bytes(const struct agent_core *agent)
{
	const struct need *need;
	uint64_t bytes = 0;

	DL_FOREACH(agent->needs, need)
	{
		if (need->copy != 0 && !is_lent(agent, need, need) &&
			!th_add_u64(bytes, need->bytes, &bytes))
			return UINT64_MAX;
	}
	return bytes;
}

static void
need_ask(struct agent_core *agent, struct need *need, uint64_t limit)
{
	struct ctl_borrow *borrow = &ac_lane_add(agent, agent->misc, CTL_BORROW)->u.borrow;
	uint64_t lent = lent_bytes(agent);

	need->asked = true;
	AC_COPY(borrow->model, need->model);
	borrow->version = need->version;
	borrow->shard = need->shard;
	borrow->held = !need_waits(agent, need);
	borrow->room = limit > lent ? limit - lent : 0;
}

static void
need_free(struct agent_core *agent, struct need *need)
{
	DL_DELETE(agent->needs, need);
	free(need);
}

static void
need_end(struct agent_core *agent, struct need *need)
{
	if (need->asked && !TH_PLANT(returned_in_silence)) {
		struct ctl_borrow *borrow = &ac_lane_add(agent, agent->misc, CTL_BORROW)->u.borrow;
		AC_COPY(borrow->model, need->model);
		borrow->version = need->version;
		borrow->shard = need->shard;
		borrow->stop = true;
	}
	need_free(agent, need);
}

/* The last one that waits gives up, and may be back at once. */
static void
need_linger(struct agent_core *agent, struct need *need)
{
	const struct need *other;
	uint32_t count = 0;

	DL_FOREACH(agent->needs, other)
	count += other->linger_ns != 0;
	if (need->num_loans == 1 && need->copy == 0 && count < LINGERING_MAX)
		need->linger_ns = th_deadline_ns(agent->now_ns, LINGER_NS);
}

static void
need_release(struct agent_core *agent, struct need *need)
{
	if (--need->num_loans == 0 && need->linger_ns == 0)
		need_end(agent, need);
}

/* ---- loans ----------------------------------------------------------------------------------- */

static void
loan_over(struct agent_core *agent, struct loan *loan)
{
	struct need *need = loan->need;

	DL_DELETE(agent->loans, loan);
	free(loan);
	need_release(agent, need);
}

static void
loan_answer_refused(struct agent_core *agent, uint64_t id, const struct th_err *err)
{
	struct agent_action *action = ac_action(agent, AGENT_LOAN_REFUSED, 0);

	action->u.loan.id = id;
	action->u.loan.code = err->code;
	AC_COPY(action->u.loan.text, err->text);
}

static void
loan_refuse(struct agent_core *agent, struct loan *loan, int code, const char *text)
{
	struct th_err err = {.code = code};

	ac_copy(err.text, sizeof(err.text), text, TH_CTL_TEXT_BYTES);
	loan_answer_refused(agent, loan->id, &err);
	loan_over(agent, loan);
}

static int
loan_check(const struct agent_core *agent, const struct session *session, struct th_err *err)
{
	uint32_t count = 0;
	const struct loan *loan;

	DL_FOREACH(agent->loans, loan)
	count++;
	if (session == NULL || session->state != SESSION_OPEN)
		return th_fail(err, TH_E_STATE, "borrow: the handle is not open");
	if (count >= AC_LOANS_MAX)
		return th_fail(err, TH_E_LIMIT,
			"borrow: this agent has %u loans, the most that it keeps; return some",
			AC_LOANS_MAX);
	if (agent->draining || ac_leaving(agent))
		return th_fail(err, TH_E_LIMIT,
			"borrow: the agent of node %.200s is drained or ends, and lends nothing "
			"new",
			agent->config.attach.node);
	return 0;
}

void
ac_borrow(struct agent_core *agent, uint64_t session_id, const struct agent_borrow *borrow)
{
	const struct session *session = ac_session_find(agent, session_id);
	struct th_err err;

	if (loan_check(agent, session, &err) != 0) {
		loan_answer_refused(agent, borrow->id, &err);
		return;
	}
	const char *model = session->open.model;
	struct need *need = need_find(agent, model, borrow->version, borrow->shard);
	if (need == NULL) {
		need = th_calloc(1, sizeof(*need));
		ac_copy(need->model, sizeof(need->model), model, TH_NAME_MAX);
		need->version = borrow->version;
		need->shard = borrow->shard;
		DL_APPEND(agent->needs, need);
	}
	bool waits = need_waits(agent, need);
	struct loan *loan = th_calloc(1, sizeof(*loan));
	loan->id = borrow->id;
	loan->session = session_id;
	loan->need = need;
	loan->limit = borrow->limit;
	loan->deadline_ns = th_deadline_ns(agent->now_ns, borrow->timeout_ns);
	need->num_loans++;
	need->linger_ns = 0;
	DL_APPEND(agent->loans, loan);
	/* Who waits has asked for all. */
	if (!waits && need_copy(agent, need) == NULL)
		need_ask(agent, need, borrow->limit);
}

void
ac_loan_returned(struct agent_core *agent, uint64_t id)
{
	struct loan *loan;

	DL_FOREACH(agent->loans, loan)
	{
		if (loan->id == id) {
			loan_over(agent, loan);
			return;
		}
	}
}

/* What the whole copy takes here. */
static uint64_t
copy_bytes(const struct agent_core *agent, const struct session *copy)
{
	const struct session *session;
	uint64_t bytes = 0;

	for (session = agent->sessions; session != NULL; session = session->hh.next) {
		if (session->open.reservation == copy->open.reservation &&
			!th_add_u64(bytes, session->reg.bytes, &bytes))
			return UINT64_MAX;
	}
	return bytes;
}

static void
lend(struct agent_core *agent, struct loan *loan, const struct session *copy)
{
	struct need *need = loan->need;
	uint64_t bytes = is_lent(agent, need, NULL) ? 0 : copy_bytes(agent, copy);
	uint64_t lent = lent_bytes(agent);
	char all[TH_UNITS_BYTES], most[TH_UNITS_BYTES], now[TH_UNITS_BYTES];
	struct th_err err;

	if (bytes > loan->limit || lent > loan->limit - bytes) {
		TH_MARK(loan_over_the_limit);
		th_fail(&err, TH_E_LIMIT,
			"borrow: version %" PRIu64 " of %.200s has %s, and %s of the %s that this "
			"agent may lend are lent; raise borrow.limit, or return what is lent",
			need->version.version, need->model, th_print_size_short(bytes, all),
			th_print_size_short(lent, now), th_print_size_short(loan->limit, most));
		loan_refuse(agent, loan, err.code, err.text);
		return;
	}
	TH_MARK(loan_made);
	loan->lent = true;
	if (need->copy != copy->id) {
		need->copy = copy->id;
		need->bytes = copy_bytes(agent, copy);
		/* It may be there for another reason, and would go with that. */
		need_ask(agent, need, loan->limit);
	}
	struct agent_action *action = ac_action(agent, AGENT_LEND, copy->id);
	action->u.loan.id = loan->id;
}

/* ---- what comes of a loan that waits --------------------------------------------------------- */

static void
loan_settle(struct agent_core *agent, struct loan *loan)
{
	const struct session *session = ac_session_find(agent, loan->session);
	const struct session *copy = need_copy(agent, loan->need);

	if (session == NULL || session->state != SESSION_OPEN)
		loan_refuse(agent, loan, TH_E_CANCELLED, "borrow: the handle was closed");
	else if (copy != NULL)
		lend(agent, loan, copy);
	else if (agent->now_ns >= loan->deadline_ns && !agent->link.attached)
		loan_refuse(agent, loan, TH_E_NO_SERVER,
			"borrow: the agent reaches no reference server; see 'thctl status'");
	else if (agent->now_ns >= loan->deadline_ns) {
		need_linger(agent, loan->need);
		loan_refuse(agent, loan, TH_E_TIMEOUT,
			"borrow: the version was not all in this agent's memory before the "
			"deadline");
	}
}

void
ac_loans_settle(struct agent_core *agent)
{
	struct loan *loan, *next;
	struct need *need, *later;

	DL_FOREACH_SAFE(agent->loans, loan, next)
	{
		if (!loan->lent)
			loan_settle(agent, loan);
	}
	DL_FOREACH_SAFE(agent->needs, need, later)
	{
		if (need->linger_ns != 0 && agent->now_ns >= need->linger_ns)
			need_end(agent, need);
	}
}

int64_t
ac_loans_next_ns(const struct agent_core *agent)
{
	const struct loan *loan;
	const struct need *need;
	int64_t next = INT64_MAX;

	DL_FOREACH(agent->loans, loan)
	{
		if (!loan->lent)
			next = th_min_i64(next, loan->deadline_ns);
	}
	DL_FOREACH(agent->needs, need)
	{
		if (need->linger_ns != 0)
			next = th_min_i64(next, need->linger_ns);
	}
	return next;
}

/* Those of it that wait. */
static void
need_refused(struct agent_core *agent, const char *model, struct th_version version, uint32_t shard,
	int code, const char *text)
{
	struct need *need = need_find(agent, model, version, shard);
	struct loan *loan, *next;

	if (need == NULL)
		return;
	TH_MARK(loan_refused_by_the_server);
	if (need->linger_ns != 0) {
		need_end(agent, need);
		return;
	}
	DL_FOREACH_SAFE(agent->loans, loan, next)
	{
		if (loan->need == need && !loan->lent)
			loan_refuse(agent, loan, code, text);
	}
}

void
ac_borrow_refused(struct agent_core *agent, const struct ctl_ev_borrow_refused *refused)
{
	char model[TH_NAME_MAX + 1], text[TH_CTL_TEXT_BYTES];

	AC_COPY(model, refused->model);
	AC_COPY(text, refused->text);
	need_refused(agent, model, refused->version, refused->shard,
		refused->code < 0 ? refused->code : TH_E_PROTOCOL, text);
}

void
ac_borrow_reply(
	struct agent_core *agent, const struct ctl_request *request, const struct ctl_reply *reply)
{
	const struct ctl_borrow *borrow = &request->u.borrow;
	char text[TH_CTL_TEXT_BYTES];

	if (reply->code == 0 || borrow->stop)
		return;
	AC_COPY(text, reply->text);
	need_refused(
		agent, borrow->model, borrow->version, borrow->shard, ac_code(reply->code), text);
}

/* ---- another server -------------------------------------------------------------------------- */

void
ac_borrow_renew(struct agent_core *agent)
{
	struct need *need, *next;
	const struct loan *loan;

	DL_FOREACH_SAFE(agent->needs, need, next)
	{
		uint64_t limit = 0;
		if (need->linger_ns != 0) {
			need_free(agent, need);
			continue;
		}
		DL_FOREACH(agent->loans, loan)
		{
			if (loan->need == need)
				limit = th_max_u64(limit, loan->limit);
		}
		TH_MARK(loan_told_to_the_next_server);
		need_ask(agent, need, limit);
	}
}

void
ac_loans_free(struct agent_core *agent)
{
	while (agent->loans != NULL) {
		struct loan *loan = agent->loans;
		DL_DELETE(agent->loans, loan);
		free(loan);
	}
	while (agent->needs != NULL)
		need_free(agent, agent->needs);
}
