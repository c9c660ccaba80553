/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rejoin - see rejoin.h. This file: members coming back, for how long they are waited for, and
 * shards that are opened meanwhile.
 *
 * A launch goes on while its server is lost: some of its shards were open there, others open here
 * for the first time, and either may come first. They are one group as long as nothing was decided
 * in it that takes all shards. To a group that comes back, a shard that is opened is one that knows
 * nothing: it stands before operation 1, and is told what the others were told.
 *
 * Whether others will come back is known when the server has been told of all there is. Until then
 * what such a group calls is held, so that no operation ends in two ways. An agent that comes later
 * than that, from beyond a cut, may bring a shard that was told another end of an operation, or
 * will be asked for one that it has behind it: then the group is broken for all (I4).
 */
#include "server/core/rejoin/rejoin.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/cluster/epoch.h"
#include "server/core/model/blob.h"
#include "server/core/model/copy.h"
#include "server/core/model/group.h"
#include "server/core/model/model.h"
#include "server/core/op/follow.h"
#include "server/core/op/op.h"
#include "server/core/retain/retain.h"
#include "server/core/retain/retain_notice.h"
#include "server/core/timer.h"
#include "server/core/view/event_log.h"

/* ---- what one shard alone can have been told ------------------------------------------------- */

static bool
takes_all(const struct ctl_known_outcome *outcome)
{
	bool asks = outcome->kind == CTL_OP_LIST || outcome->kind == CTL_OP_UPDATE;

	return outcome->went || outcome->updated || (outcome->code == 0 && !asks);
}

/* It knows the ends of all it has called, and none of them needed the others. */
static bool
rejoin_stood_alone(const struct ctl_rejoin *said)
{
	/* All of them, from the first on: what is not said may have been anything. */
	if (said->open.reservation != 0 || said->went || !th_version_none(said->held) ||
		said->num_outcomes != said->next_op_seq - 1)
		return false;
	for (uint32_t i = 0; i < said->num_outcomes; i++) {
		if (takes_all(&said->outcomes[i]))
			return false;
	}
	return true;
}

/* ---- nobody else comes back ------------------------------------------------------------------ */

/* What any shard was told of operation seq; NULL: none was. */
static const struct ctl_known_outcome *
outcome_of(const struct group *group, uint64_t seq, bool *ret_differ)
{
	const struct ctl_known_outcome *found = NULL;

	for (uint32_t i = 0; i < group->num_shards; i++) {
		const struct rejoin *rejoin =
			group->members[i] == NULL ? NULL : group->members[i]->rejoin;
		if (rejoin == NULL || seq > rejoin->said.num_outcomes)
			continue;
		const struct ctl_known_outcome *one = &rejoin->outcomes[seq - 1];
		if (found != NULL && (one->kind != found->kind || one->code != found->code))
			*ret_differ = true;
		found = one;
	}
	return found;
}

/* Who is not there is opened some time: what was held goes on, when some were opened here. */
static void
rejoin_launch(struct refsrv *server, struct group *group)
{
	uint64_t told[TH_SHARDS_MAX / 64];
	const struct ctl_known_outcome *outcome;
	bool differ = false;

	if (!group->rejoining || !group->opened || group->unbuilt)
		return;
	TH_MARK(rejoin_launch_goes_on);
	for (uint64_t seq = 1; (outcome = outcome_of(group, seq, &differ)) != NULL; seq++) {
		memset(told, 0, sizeof(told));
		for (uint32_t i = 0; i < group->num_shards; i++) {
			const struct member *member = group->members[i];
			if (member != NULL && member->rejoin != NULL &&
				member->rejoin->said.num_outcomes >= seq)
				told[i / 64] |= UINT64_C(1) << (i % 64);
		}
		op_recovered_outcome(server, group, outcome, told);
	}
	if (differ)
		rejoin_break(server, group, "its members contradict each other");
	else
		rejoin_over(server, group);
}

/* ---- warming -------------------------------------------------------------------------------- */

/* As long as one inventory may take, and the rest of a group. */
static int64_t
warm_end(const struct refsrv *server)
{
	return th_deadline_ns(
		th_deadline_ns(server->now_ns, server->config.warm_ns), server->config.form_ns);
}

static void
warm_server(struct refsrv *server, const struct agent *agent)
{
	if (!server->warming) {
		event_log(server, EVENT_WARN, NULL, agent->info.node,
			"agent %s comes from another server: collecting what the agents hold",
			agent->info.node);
		server->warm_end_ns = warm_end(server);
	}
	server->warming = true;
	server->warm_ns = th_min_i64(
		th_deadline_ns(server->now_ns, server->config.warm_ns), server->warm_end_ns);
	refsrv_wake_at(server, server->warm_ns);
}

static void
warm_model(struct refsrv *server, const struct agent *agent, struct model *model)
{
	int64_t until_ns = th_deadline_ns(server->now_ns, server->config.warm_ns);

	if (server->warming)
		return;
	if (model->warm_end_ns == 0)
		model->warm_end_ns = warm_end(server);
	until_ns = th_min_i64(until_ns, model->warm_end_ns);
	if (until_ns <= server->now_ns || until_ns <= model->warm_ns)
		return;
	TH_MARK(late_agent_warms_its_models);
	if (model->warm_ns == 0)
		event_log(server, EVENT_WARN, model->name, agent->info.node,
			"agent %s brings what another server knew of model %s: collecting what "
			"others have of it",
			agent->info.node, model->name);
	model->warm_ns = until_ns;
	model_dirty(model);
}

void
rejoin_attached(struct refsrv *server, struct agent *agent)
{
	agent->warms = !agent->has_warmed;
	agent->has_warmed = true;
	/* Those of a former life come when this one begins. A later one concerns its own models. */
	if (agent->warms && (server->warming || epoch_learning(server)))
		warm_server(server, agent);
	if (!agent->inventory_due)
		server->num_inventories_due++;
	agent->inventory_due = true;
}

void
rejoin_inventory_ends(struct refsrv *server, struct agent *agent)
{
	agent->warms = false;
	if (!agent->inventory_due)
		return;
	agent->inventory_due = false;
	server->num_inventories_due--;
}

void
rejoin_inventory_told(struct refsrv *server, struct agent *agent, uint32_t num_sessions)
{
	if (agent->inventory_due)
		event_log(server, EVENT_INFO, NULL, agent->info.node,
			"agent %s has told what its %u open handles hold; %u are taken over",
			agent->info.node, num_sessions, agent->num_members);
	rejoin_inventory_ends(server, agent);
}

bool
model_warming(const struct refsrv *server, const struct model *model)
{
	return (server->warming || model->warm_ns != 0) && !TH_PLANT(warming_skipped);
}

bool
rejoin_awaited(const struct model *model)
{
	return model->num_rejoining > 0;
}

static void
await_source(struct refsrv *server, struct group *group)
{
	struct awaited *awaited = NULL;

	HASH_FIND(hh, server->awaited, &group->awaited_sid, sizeof(awaited->sid), awaited);
	if (awaited == NULL) {
		awaited = th_calloc(1, sizeof(*awaited));
		awaited->sid = group->awaited_sid;
		HASH_ADD(hh, server->awaited, sid, sizeof(awaited->sid), awaited);
	}
	DL_APPEND2(awaited->groups, group, awaited_prev, awaited_next);
	group->awaited = awaited;
}

static void
await_no_longer(struct refsrv *server, struct group *group)
{
	struct awaited *awaited = group->awaited;

	if (awaited == NULL)
		return;
	DL_DELETE2(awaited->groups, group, awaited_prev, awaited_next);
	group->awaited = NULL;
	if (awaited->groups != NULL)
		return;
	HASH_DELETE(hh, server->awaited, awaited);
	free(awaited);
}

/* Those who wait for this session are added to the list. */
static void
take_waiting(struct refsrv *server, uint64_t sid, struct group **list)
{
	struct awaited *awaited = NULL;

	HASH_FIND(hh, server->awaited, &sid, sizeof(sid), awaited);
	for (struct group *group = awaited == NULL ? NULL : awaited->groups, *next; group != NULL;
		group = next) {
		next = group->awaited_next;
		await_no_longer(server, group);
		DL_APPEND2(*list, group, awaited_prev, awaited_next);
	}
}

static void
take_readers(struct refsrv *server, const struct group *source, struct group **list)
{
	for (uint32_t i = 0; i < source->num_shards; i++) {
		if (source->members[i] != NULL)
			take_waiting(server, source->members[i]->sid, list);
	}
	take_waiting(server, 0, list);
}

/* One that is built may be the source that another waits for. */
static void
build_readers(struct refsrv *server, const struct group *source)
{
	struct group *ready = NULL;

	take_readers(server, source, &ready);
	while (ready != NULL) {
		struct group *group = ready;
		DL_DELETE2(ready, group, awaited_prev, awaited_next);
		if (!group->unbuilt)
			continue;
		if (rejoin_build(server, group))
			take_readers(server, group, &ready);
		else
			await_source(server, group);
	}
}

/* Nobody else comes: each is built from what there is. */
static void
try_all(struct refsrv *server, struct model *model)
{
	struct group *group, *next;

	for (bool again = true; again && model->num_unbuilt > 0;) {
		again = false;
		DL_FOREACH_SAFE(model->groups, group, next)
		{
			if (group->unbuilt)
				again = rejoin_build(server, group) || again;
		}
	}
}

/* One more member is there; with the last of them the group is built. */
static void
rejoin_joined(struct refsrv *server, struct group *group)
{
	if (++group->num_joined < group->num_shards)
		return;
	group->unbuilt = true;
	group->model->num_unbuilt++;
	if (rejoin_build(server, group))
		build_readers(server, group);
	else
		await_source(server, group);
}

static void
launch_all(struct refsrv *server, struct model *model)
{
	struct group *group, *next;

	if (model->num_rejoining == 0)
		return;
	DL_FOREACH_SAFE(model->groups, group, next)
	rejoin_launch(server, group);
}

void
rejoin_timers(struct refsrv *server)
{
	struct model *model, *next;

	if (!server->warming)
		return;
	/* An inventory that is late is waited for, but not longer than for the rest of a group. */
	int64_t until_ns = server->num_inventories_due == 0
				   ? server->warm_ns
				   : th_deadline_ns(server->warm_ns, server->config.form_ns);
	until_ns = th_min_i64(until_ns, server->warm_end_ns);
	if (server->now_ns < until_ns) {
		refsrv_wake_at(server, until_ns);
		return;
	}
	server->warming = false;
	event_log(server, EVENT_INFO, NULL, NULL, "all agents have said what they hold");
	HASH_ITER(hh, server->models, model, next)
	{
		try_all(server, model);
		launch_all(server, model);
	}
	model_dirty_all(server);
}

void
rejoin_settle(struct refsrv *server, struct model *model)
{
	if (model->warm_ns == 0)
		return;
	if (server->now_ns < model->warm_ns) {
		model->retention.wake_ns = th_min_i64(model->retention.wake_ns, model->warm_ns);
		return;
	}
	model->warm_ns = 0;
	try_all(server, model);
	launch_all(server, model);
}

/* ---- groups that form again ----------------------------------------------------------------- */

static struct group *
rejoin_find_group(const struct model *model, const char *replica, uint64_t inc)
{
	struct group *group = group_first(model, replica);

	while (group != NULL && group->inc != inc)
		group = group->same_next;
	return group;
}

void
rejoin_break(struct refsrv *server, struct group *group, const char *why)
{
	struct th_err cause;

	th_fail(&cause, TH_E_GROUP_BROKEN,
		"replica %s of %s is broken: the reference server was lost, and %s; close this "
		"handle and open again",
		group->replica, group->model->name, why);
	TH_MARK(rejoin_contradiction);
	group_break(server, group, cause.text);
}

void
rejoin_group_timer(struct refsrv *server, struct group *group)
{
	char why[128];
	uint32_t missing = 0;

	if (server->now_ns < group->form_ns) {
		timer_at(server, &group->timer, TIMER_GROUP, group->form_ns);
		return;
	}
	if (group->state == GROUP_BROKEN) {
		model_dirty(group->model); /* it is forgotten now */
		return;
	}
	/* A launch is waited for as long as its operations wait. */
	if (!group->rejoining || group->opened)
		return;
	while (missing + 1 < group->num_shards && group->members[missing] != NULL)
		missing++;
	snprintf(why, sizeof(why), "its shard %u did not come back in time", missing);
	rejoin_break(server, group, why);
}

bool
rejoin_remembers(const struct refsrv *server, const struct group *group)
{
	return group->timer.place != 0 && server->now_ns < group->form_ns;
}

static struct group *
form(struct refsrv *server, struct model *model, const struct ctl_rejoin *said,
	const struct th_retain *rules)
{
	struct group *group = group_new(server, model, &said->open);

	if (said->open.reservation == 0)
		retain_claim(server, group, rules);
	group->inc = said->group_inc;
	group->reservation = said->open.reservation;
	group->copy_why = said->open.copy_why;
	group->rejoining = true;
	group->form_ns = th_deadline_ns(server->now_ns, server->config.form_ns);
	timer_at(server, &group->timer, TIMER_GROUP, group->form_ns);
	server->num_formed_again++;
	model->num_rejoining++;
	return group;
}

static void
rejoin_keep(struct member *member, const struct ctl_rejoin *said)
{
	struct rejoin *rejoin = th_calloc(1, sizeof(*rejoin));

	rejoin->said = *said;
	if (said->num_outcomes > 0)
		rejoin->outcomes =
			th_memdup(said->outcomes, said->num_outcomes * sizeof(*said->outcomes));
	rejoin->said.outcomes = rejoin->outcomes;
	member->rejoin = rejoin;
	member->former_inc = said->group_inc;
	member->next_op_seq = said->next_op_seq;
}

/* ---- shards that are opened meanwhile -------------------------------------------------------- */

/* A shard that was opened here may belong to a group that is to come back. */
static void
await_the_others(struct group *group)
{
	for (uint32_t i = 0; i < group->num_shards; i++) {
		struct member *member = group->members[i];
		if (member == NULL || member->rejoin != NULL)
			continue;
		struct ctl_rejoin said = {
			.sid = member->sid,
			.group_inc = group->inc,
			.next_op_seq = 1,
			.held = {.version = TH_NO_VERSION},
			.version = {.version = TH_NO_VERSION},
			.go = {.version = TH_NO_VERSION},
		};
		rejoin_keep(member, &said);
	}
	group->opened = true;
	if (group->rejoining)
		return;
	group->rejoining = true;
	group->model->num_rejoining++;
}

static bool
untouched(const struct group *group)
{
	return group->state == GROUP_FORMING && group->ops == NULL && !group->rejoining;
}

bool
rejoin_may_open(const struct group *group)
{
	return !group->rejoining || !group->together;
}

bool
rejoin_opened(struct refsrv *server, struct member *member)
{
	struct group *group = member->group;

	if (group->reservation != 0 || group->num_shards == 1 ||
		(!group->rejoining && (!model_warming(server, group->model) || !untouched(group))))
		return false;
	if (!group->rejoining)
		TH_MARK(rejoin_open_waits);
	else if (!group->opened)
		TH_MARK(rejoin_open_joins);
	await_the_others(group);
	rejoin_joined(server, group);
	if (!model_warming(server, group->model))
		rejoin_launch(server, group);
	return true;
}

/* The group, of another number, in which this one meets those that were opened; NULL: none. */
static struct group *
rejoin_meets(const struct model *model, const struct agent *agent, const struct ctl_rejoin *said)
{
	struct group *group = group_named(model, said->open.replica);
	struct th_err err;

	if (group == NULL || said->open.reservation != 0 || !rejoin_stood_alone(said) ||
		group->num_shards != said->open.num_shards ||
		group->lineage != said->open.lineage ||
		strcmp(group->launch_id, said->open.launch_id) != 0 ||
		group->members[said->open.shard] != NULL ||
		retain_join(group, agent, &said->open, &err) != 0)
		return NULL;
	if (untouched(group))
		await_the_others(group);
	else if (!group->rejoining || group->together)
		return NULL;
	TH_MARK(rejoin_meets_the_opened);
	return group;
}

/* The group in which a shard of that number is; NULL: none. */
static struct group *
rejoin_met(const struct model *model, const char *replica, uint64_t inc)
{
	struct group *group = group_named(model, replica);

	for (uint32_t i = 0; group != NULL && i < group->num_shards; i++) {
		if (group->members[i] != NULL && group->members[i]->former_inc == inc)
			return group;
	}
	return NULL;
}

/* ---- who comes back too late ----------------------------------------------------------------- */

/* It has gone on without this shard, which comes back now. */
static bool
rejoin_lacks(const struct group *group, const struct ctl_rejoin *said)
{
	return group->opened && !group->rejoining && group->state != GROUP_BROKEN &&
	       said->open.num_shards == group->num_shards &&
	       group->members[said->open.shard] == NULL;
}

/* It was told outcomes that the others will not be told. */
static bool
rejoin_came_late(const struct group *group, const struct ctl_rejoin *said)
{
	if (!rejoin_lacks(group, said))
		return false;
	TH_MARK(rejoin_launch_went_on);
	/* What it is told again is what it knows: it may be opened again, and the others go on. */
	for (uint32_t i = 0; i < said->num_outcomes; i++) {
		const struct ctl_known_outcome *known = &said->outcomes[i];
		const struct op *op = op_find(group, known->op_seq);
		if (op == NULL || op->state != OP_DONE || op->kind != known->kind ||
			op->code != known->code)
			return true;
	}
	return !rejoin_stood_alone(said);
}

/* ---- members -------------------------------------------------------------------------------- */

static void
rejoin_gone(struct refsrv *server, const struct agent *agent, const struct ctl_rejoin *said,
	const struct th_retain *rules)
{
	struct model *model = model_find(server, said->open.model);
	struct group *group =
		model == NULL ? NULL
			      : rejoin_find_group(model, said->open.replica, said->group_inc);
	char why[TH_NAME_MAX + 128];

	if (group == NULL && model != NULL)
		group = rejoin_met(model, said->open.replica, said->group_inc);
	if (group == NULL) {
		/*
		 * Of one shard that claims nothing: nobody else will ask. What is only remembered
		 * is bounded, too.
		 */
		if ((said->open.num_shards == 1 && said->open.retain[0] == '\0') ||
			server->num_formed_again >= server->config.members_max)
			return;
		group = form(server, model_acquire(server, said->open.model), said, rules);
	}
	/* Broken already; or all of its shards are there, and this is none of them. */
	if (!group->rejoining && !rejoin_lacks(group, said))
		return;
	snprintf(why, sizeof(why), "shard %u on node %s %s meanwhile", said->open.shard,
		agent->info.node, said->died ? "lost its worker" : "was closed or broken");
	/* As if it had left here: the claim ends with it, or a while after a crash. */
	retain_leave(server, group, said->died);
	rejoin_break(server, group, why);
}

static int
number_check(struct refsrv *server, const struct agent *agent, const struct ctl_rejoin *said,
	struct th_err *err)
{
	const struct member *other;

	if (said->sid == 0 || said->group_inc == 0)
		return th_fail(err, TH_E_INVALID,
			"shard %u of replica %s on node %s comes back without the numbers that the "
			"former server gave it",
			said->open.shard, said->open.replica, agent->info.node);
	/* Its last attachment was to this very life, which knows it no more. */
	if (agent->info.server_inc == server->config.server_inc) {
		TH_MARK(rejoin_of_one_given_up);
		return th_fail(err, TH_E_GROUP_BROKEN,
			"replica %s of %s is broken: the agent of node %s, where shard %u is, was "
			"given up, because the reference server had heard nothing of it for too "
			"long; close this handle and open again",
			said->open.replica, said->open.model, agent->info.node, said->open.shard);
	}
	if (epoch_is_own(server, said->sid) || epoch_is_own(server, said->group_inc) ||
		epoch_is_own(server, said->open.reservation))
		return th_fail(err, TH_E_GROUP_BROKEN,
			"replica %s of %s is broken: shard %u on node %s was open at another "
			"server, which served at the same time as this one (both in epoch %u), so "
			"what the two have decided cannot be told apart; close this handle and "
			"open again, and see thserverd(8) about two servers at once",
			said->open.replica, said->open.model, said->open.shard, agent->info.node,
			server->epoch);
	other = member_lookup(server, said->sid);
	if (other != NULL)
		return th_fail(err, TH_E_GROUP_BROKEN,
			"replica %s of %s is broken: shard %u on node %s comes back as session "
			"%" PRIu64 ", and so has shard %u of replica %s on node %s before; close "
			"this handle and open again",
			said->open.replica, said->open.model, said->open.shard, agent->info.node,
			said->sid, other->shard, other->group->replica, other->agent->info.node);
	return 0;
}

static int
group_check(const struct group *group, const struct ctl_rejoin *said, struct th_err *err)
{
	if (group->state == GROUP_BROKEN)
		return th_fail(err, TH_E_GROUP_BROKEN, "%s", group->broken_why);
	if (!group->rejoining || said->open.num_shards != group->num_shards ||
		said->open.lineage != group->lineage ||
		said->open.reservation != group->reservation ||
		strcmp(said->open.launch_id, group->launch_id) != 0 ||
		group->members[said->open.shard] != NULL ||
		(group->opened && !rejoin_stood_alone(said)))
		return th_fail(err, TH_E_GROUP_BROKEN,
			"replica %s of %s is broken: the reference server was lost, and shard %u "
			"does not fit to what the others say of the group; close this handle and "
			"open again",
			group->replica, group->model->name, said->open.shard);
	return 0;
}

bool
rejoin_uses_registration(const struct member *member)
{
	const struct rejoin *rejoin = member->rejoin;

	return rejoin != NULL && (rejoin->said.went || !th_version_none(rejoin->said.held));
}

void
rejoin_member_free(struct member *member)
{
	if (member->rejoin == NULL)
		return;
	free(member->rejoin->outcomes);
	free(member->rejoin);
	member->rejoin = NULL;
}

/* Ascending, and of what it has called. */
static bool
outcomes_fit(const struct ctl_rejoin *said)
{
	uint64_t last = 0;

	for (uint32_t i = 0; i < said->num_outcomes; i++) {
		uint64_t seq = said->outcomes[i].op_seq;
		if (seq <= last || seq >= said->next_op_seq)
			return false;
		last = seq;
	}
	return said->num_outcomes <= TH_OUTCOMES_MAX;
}

/* What it holds it has had since an operation that it has called. */
static bool
held_fits(const struct ctl_rejoin *said)
{
	return th_version_none(said->held) ||
	       (said->registered && said->gen > 0 &&
		       (said->gen < said->next_op_seq || ctl_op_automatic(said->gen)));
}

static bool
running_fits(const struct ctl_rejoin *said)
{
	bool called = ctl_op_automatic(said->op_seq) ||
		      (said->op_seq > 0 && said->next_op_seq == said->op_seq + 1);

	return !said->went || (said->registered && th_version_none(said->held) && called &&
				      said->chunks <= said->reg.num_chunks);
}

/* An offload copy has one operation, which fills it. Before its GO it is begun anew. */
static bool
fits_offload(const struct ctl_rejoin *said)
{
	bool fills = said->went && said->op_seq == 1 && said->kind == CTL_OP_REPLICATE;

	return said->next_op_seq == 2 && (fills || !th_version_none(said->held));
}

static int
said_check(const struct ctl_rejoin *said, struct th_err *err)
{
	bool registration = !said->registered ||
			    (!th_hash_none(said->reg.layout) && !th_hash_none(said->reg.manifest));

	if (said->open.reservation != 0 && !fits_offload(said))
		return th_fail(err, TH_E_INVALID,
			"shard %u of the offload copy of replica %s has nothing that can be gone "
			"on with: release its memory",
			said->open.shard, said->open.replica);
	if (said->next_op_seq > 0 && !ctl_op_automatic(said->next_op_seq) && registration &&
		held_fits(said) && running_fits(said) && outcomes_fit(said))
		return 0;
	return th_fail(err, TH_E_INVALID,
		"shard %u of replica %s says two things of itself that cannot both be true",
		said->open.shard, said->open.replica);
}

/* Its group is broken, and its memory can still be read. */
static bool
still_holds(const struct ctl_rejoin *said)
{
	return !th_version_none(said->held) && said->open.reservation == 0;
}

int
rejoin_request(struct refsrv *server, struct agent *agent, const struct ctl_rejoin *said,
	struct ctl_open_reply *ret_reply, struct th_err *err)
{
	struct th_retain rules;
	int rc = group_open_check(server, agent, &said->open, err);

	if (rc == 0)
		rc = number_check(server, agent, said, err);
	if (rc == 0)
		rc = th_retain_parse(said->open.retain, &rules, err);
	if (rc == 0 && said->open.reservation == 0)
		rc = retain_room(server, said->open.model, model_find(server, said->open.model),
			&rules, err);
	if (rc == 0 && said->gone && !still_holds(said)) {
		rejoin_gone(server, agent, said, &rules);
		return 0;
	}
	if (rc == 0)
		rc = said_check(said, err);
	if (rc != 0)
		return rc;
	struct model *model = model_acquire(server, said->open.model);
	if (agent->warms)
		warm_model(server, agent, model);
	struct group *group = rejoin_find_group(model, said->open.replica, said->group_inc);
	if (group == NULL && !said->gone)
		group = rejoin_meets(model, agent, said);
	/* What was broken has no claim to its name, whoever else has been opened under it. */
	if (group == NULL && said->open.reservation == 0 && !said->gone &&
		group_named(model, said->open.replica) != NULL) {
		group = rejoin_met(model, said->open.replica, said->group_inc);
		if (group != NULL && rejoin_came_late(group, said))
			rejoin_break(server, group, "its members contradict each other");
		return th_fail(err, TH_E_GROUP_BROKEN,
			"replica %s of %s is broken: the reference server was lost, and another "
			"group has been opened under its name; close this handle and open again",
			said->open.replica, said->open.model);
	}
	if (group == NULL)
		group = form(server, model, said, &rules);
	rc = group_check(group, said, err);
	if (rc != 0) {
		/* One that all have come back to takes no harm from one more. */
		if (group->rejoining || rejoin_came_late(group, said))
			rejoin_break(server, group, "its members contradict each other");
		return rc;
	}
	if (!th_version_none(said->go))
		follow_go(model, said->go);
	struct member *member = member_new(server, agent, group, &said->open, said->sid);
	retain_notice_joined(server, member);
	rejoin_keep(member, said);
	group->together = group->together || !rejoin_stood_alone(said);
	group->over = group->over || said->gone;
	*ret_reply = (struct ctl_open_reply){
		.sid = said->sid, .next_op_seq = said->next_op_seq, .group_inc = group->inc};
	if (said->registered) {
		blob_expect(server, said->reg.manifest);
		blob_acquire(server, said->reg.manifest);
		member->reg = said->reg;
		member->reg.sid = said->sid;
		member->registered = true;
	}
	rejoin_joined(server, group);
	model_dirty(model);
	return 0;
}

/* ---- all have come back, or not all will ---------------------------------------------------- */

void
rejoin_over(struct refsrv *server, struct group *group)
{
	if (!group->rejoining)
		return;
	group->rejoining = false;
	group->model->num_rejoining--;
	group->model->num_unbuilt -= group->unbuilt;
	group->unbuilt = false;
	await_no_longer(server, group);
	for (uint32_t i = 0; i < group->num_shards; i++) {
		if (group->members[i] != NULL && group->members[i]->rejoin != NULL)
			rejoin_goes_on(server, group->members[i]);
	}
}
