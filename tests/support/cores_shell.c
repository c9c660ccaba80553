/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cores_shell - what surrounds an agent core in a simulated world: its movers, its sessions, and
 * the workers with their programs. See cores_world.h.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "ipc/base/name.h"
#include "server/core/hash.h"
#include "tests/support/cores_world.h"

/* ---- movers -------------------------------------------------------------------------- */

static struct th_hash
content_of(const struct worker *worker)
{
	return hash_bytes(worker->buffer, sizeof(worker->buffer));
}

static void
leg_over(struct leg *leg, enum agent_event_kind kind, int code)
{
	struct agent_event *event = world_tell(leg->node, kind, leg->to->session);

	cr_assert(!leg->over);
	leg->over = true;
	event->u.leg = (struct agent_leg_report){
		.leg = leg->leg,
		.code = code,
		.source_failed = true,
		.overwrote = leg->overwrote,
		.chunks_verified = leg->to->prefix,
	};
	if (kind == AGENT_EV_LEG_DONE)
		event->u.leg.content = content_of(leg->to);
	if (leg->connected && !leg->local)
		world_tell(leg->source_node, AGENT_EV_OUT_ENDED, 0)->u.out_leg = leg->out_leg;
	leg->connected = false;
}

static void
leg_begin(uint32_t node, const struct agent_action *action, bool local)
{
	uint32_t index = 0;

	while (index < LEGS_MAX && world.legs[index].used && !world.legs[index].over)
		index++;
	cr_assert_lt(index, LEGS_MAX);
	struct leg *leg = &world.legs[index];
	*leg = (struct leg){.used = true,
		.local = local,
		.node = node,
		.leg = action->u.leg.leg,
		.number = action->u.leg.grant.leg,
		.to = world_worker(action->session),
		.to_gen = action->u.leg.gen,
		.source_node = (uint32_t)(action->u.leg.grant.source_agent_inc - NODE_INC(0))};
	cr_assert(leg->to->part && leg->to->gen == leg->to_gen);
	if (local) {
		leg->from = world_worker(action->u.leg.source_session);
		leg->from_gen = action->u.leg.source_gen;
		leg->connected = true;
		world.copies++;
		return;
	}
	struct agent_event *hello = world_tell(leg->source_node, AGENT_EV_HELLO, 0);
	hello->u.hello.hello = leg->hello = ++world.last_hello;
	hello->u.hello.ticket = action->u.leg.grant.ticket;
}

static struct leg *
leg_find(uint32_t node, uint64_t number, bool out)
{
	for (uint32_t i = 0; i < LEGS_MAX; i++) {
		struct leg *leg = &world.legs[i];
		if (leg->used && !leg->over &&
			(out ? leg->connected && !leg->local && leg->source_node == node &&
						leg->out_leg == number
			     : leg->node == node && leg->leg == number))
			return leg;
	}
	return NULL;
}

static struct leg *
leg_of_hello(uint64_t hello)
{
	for (uint32_t i = 0; i < LEGS_MAX; i++) {
		if (world.legs[i].used && !world.legs[i].over && world.legs[i].hello == hello)
			return &world.legs[i];
	}
	return NULL;
}

static void
serve(uint32_t node, const struct agent_action *action)
{
	struct leg *leg = leg_of_hello(action->u.leg.hello);

	if (leg == NULL) {
		world_tell(node, AGENT_EV_OUT_ENDED, 0)->u.out_leg = action->u.leg.leg;
		return;
	}
	leg->connected = true;
	leg->out_leg = action->u.leg.leg;
	leg->from = world_worker(action->session);
	leg->from_gen = action->u.leg.gen;
	world.partial_sources += leg->from->line.held.version == TH_NO_VERSION;
}

/* A worker's memory may be written by its owner: nothing else touches it. */
static void
must_be_still(const struct worker *worker)
{
	cr_assert(!worker->hashing);
	for (uint32_t i = 0; i < LEGS_MAX; i++) {
		const struct leg *leg = &world.legs[i];
		if (leg->used && !leg->over)
			cr_assert(leg->to != worker && (!leg->connected || leg->from != worker));
	}
}

static void
fail_leg(struct leg *leg)
{
	world.failed_legs++;
	leg_over(leg, AGENT_EV_LEG_FAILED, TH_E_NO_PATH);
}

/* A reader that takes nothing for a while; its source notices. */
static bool
leg_stalls(struct leg *leg)
{
	if (leg->stalled_until_ns == 0 && world_chance(1000) < world.loss_percent) {
		leg->stalled_until_ns = world.now_ns + (int64_t)world_chance(500 * MS);
		if (!leg->local)
			world_tell(leg->source_node, AGENT_EV_OUT_STALLED, 0)->u.out_leg =
				leg->out_leg;
	} else if (leg->stalled_until_ns != 0 && world.now_ns >= leg->stalled_until_ns) {
		leg->stalled_until_ns = 0;
		if (!leg->local)
			world_tell(leg->source_node, AGENT_EV_OUT_RESUMED, 0)->u.out_leg =
				leg->out_leg;
	}
	return leg->stalled_until_ns != 0;
}

void
shell_move(void)
{
	for (uint32_t i = 0; i < GROUPS * SHARDS; i++) {
		struct worker *worker = &world.groups[i / SHARDS].workers[i % SHARDS];
		if (worker->hashing && !worker->hash_stopping && worker->prefix < CHUNKS &&
			++worker->prefix == CHUNKS) {
			worker->hashing = false;
			struct agent_event *event =
				world_tell(worker->node, AGENT_EV_HASHED, worker->session);
			event->u.hash.gen = worker->gen;
			event->u.hash.content = content_of(worker);
		}
	}
	for (uint32_t i = 0; i < LEGS_MAX; i++) {
		struct leg *leg = &world.legs[i];
		if (!leg->used || leg->over || !leg->connected)
			continue;
		cr_assert(leg->from->part && leg->from->gen == leg->from_gen);
		cr_assert(leg->to->part && leg->to->gen == leg->to_gen);
		if (leg_stalls(leg))
			continue;
		if (leg->to->prefix < CHUNKS && leg->from->prefix > leg->to->prefix) {
			leg->to->buffer[leg->to->prefix] = leg->from->buffer[leg->to->prefix];
			leg->to->prefix++;
			leg->overwrote = true;
		}
		if (leg->to->prefix == CHUNKS)
			leg_over(leg, AGENT_EV_LEG_DONE, 0);
		else if (world_chance(1000) < world.loss_percent)
			fail_leg(leg);
	}
}

/* ---- workers ------------------------------------------------------------------------- */

/* Who has not joined yet may do so in another life of the group, which counts anew. */
static bool
joining(const struct group *group)
{
	for (uint32_t i = 0; i < SHARDS; i++) {
		if (group->workers[i].state == W_OPENING)
			return true;
	}
	return false;
}

static void
check_outcome(struct worker *worker, const struct agent_action *action)
{
	int code = action->u.complete.code;
	uint64_t version = action->u.complete.result.version.version;
	uint64_t seq = action->u.complete.op_seq;
	struct group *group = &world.groups[worker->group];

	if (code == 0 && worker->kind != CTL_OP_LIST && version != TH_NO_VERSION) {
		for (uint32_t i = 0; i < CHUNKS; i++)
			cr_assert_eq(worker->buffer[i], 1000 * version + 100 * worker->shard + i);
		cr_assert_eq(worker->line.held.version, version);
	}
	if (code == TH_E_NO_SERVER) {
		/* Alone among the members' outcomes, but certain. */
		cr_assert_eq(th_version_compare(worker->line.held, worker->held), 0);
		world.given_up += worker->kind == CTL_OP_UPDATE;
	}
	if (code == TH_E_GROUP_BROKEN || code == TH_E_GROUP_MISMATCH || code == TH_E_CANCELLED ||
		code == TH_E_NO_SERVER)
		return;
	if (seq == 0 || seq >= SEQS_MAX || group->parted || joining(group))
		return;
	if (group->outcomes[seq].seen) {
		cr_assert_eq(group->outcomes[seq].code, code, "%d is not %d", code,
			group->outcomes[seq].code);
		cr_assert_eq(group->outcomes[seq].version, version);
	}
	group->outcomes[seq].seen = true;
	group->outcomes[seq].code = code;
	group->outcomes[seq].version = version;
}

static void
completed(struct worker *worker, const struct agent_action *action)
{
	int code = action->u.complete.code;

	check_outcome(worker, action);
	if (worker->state != W_BUSY)
		return;
	/* A worker waits for its operations: neither agent nor server may have another count. */
	cr_assert(code != TH_E_STATE || action->u.complete.op_seq != 0, "%s",
		action->u.complete.text);
	worker->state = W_IDLE;
	worker->next_ns =
		world.now_ns + (int64_t)world_chance((worker->group < TRAINERS ? 100 : 20) * MS);
	/* What has not been done is called again, under the same slot. */
	if (code != TH_E_NO_SERVER || world_chance(2) == 0)
		worker->step++;
	if (code == TH_E_GROUP_BROKEN || code == TH_E_GROUP_MISMATCH || code == TH_E_DIRTY ||
		(code == TH_E_NO_SERVER && world_chance(8) == 0))
		worker->want_close = true;
	world.failures += code != 0;
	world.publishes += code == 0 && worker->kind == CTL_OP_PUBLISH;
	world.updates += code == 0 && action->u.complete.result.updated;
}

static void
submit(struct worker *worker)
{
	struct group *group = &world.groups[worker->group];
	bool trainer = worker->group < TRAINERS;
	bool holds = worker->line.held.version != TH_NO_VERSION;
	struct agent_event *event = world_tell(worker->node, AGENT_EV_SUBMIT, worker->session);
	struct agent_submission *call = &event->u.submit;

	call->slot = worker->step % 64;
	call->timeout_ns = 2 * SEC;
	if (worker->step % 8 == 7)
		call->kind = CTL_OP_LIST;
	else if (trainer)
		call->kind = holds ? CTL_OP_UNPUBLISH : CTL_OP_PUBLISH;
	else
		call->kind = holds ? CTL_OP_UPDATE : CTL_OP_REPLICATE;
	worker->kind = call->kind;
	worker->held = worker->line.held;
	worker->state = W_BUSY;
	if (call->kind != CTL_OP_PUBLISH) {
		strcpy(call->spec, "latest");
		return;
	}
	uint64_t version = group->first_version + worker->step;
	snprintf(call->spec, sizeof(call->spec), "%" PRIu64, version);
	cr_assert(worker->line.safe_to_mutate);
	must_be_still(worker);
	for (uint32_t i = 0; i < CHUNKS; i++)
		worker->buffer[i] = 1000 * version + 100 * worker->shard + i;
}

/* ---- sessions ------------------------------------------------------------------------ */

static void
fail_group(const struct worker *worker)
{
	for (uint32_t i = 0; i < SHARDS; i++)
		world.groups[worker->group].workers[i].want_close = true;
}

static void
opened(struct worker *worker, int code)
{
	if (code != 0) {
		worker->session = 0;
		worker->state = W_CLOSED;
		fail_group(worker);
		return;
	}
	struct agent_event *event = world_tell(worker->node, AGENT_EV_REGISTER, worker->session);
	world_put(worker, &event->u.reg.manifest);
	event->u.reg.layout = event->u.reg.manifest;
	event->u.reg.bytes = CHUNKS;
	event->u.reg.num_chunks = CHUNKS;
	if (worker->state == W_OPENING)
		worker->state = W_REGISTERING;
}

static void
registered(struct worker *worker, int code)
{
	if (code != 0)
		fail_group(worker);
	if (worker->state == W_REGISTERING)
		worker->state = W_IDLE;
}

static void
freed(struct worker *worker)
{
	must_be_still(worker);
	cr_assert_not(worker->part);
	worker->session = 0;
	worker->state = W_CLOSED;
}

static void
part_action(struct worker *worker, const struct agent_action *action)
{
	switch ((int)action->kind) {
	case AGENT_PART_NEW:
		must_be_still(worker);
		cr_assert_not(worker->part);
		worker->part = true;
		worker->gen = action->u.part.gen;
		worker->prefix = 0;
		worker->hashing = action->u.part.published;
		break;
	case AGENT_PART_END:
		must_be_still(worker);
		cr_assert(worker->part && worker->gen == action->u.part.gen);
		worker->part = false;
		break;
	case AGENT_HASH:
		world.undrains++;
		cr_assert(worker->part && !worker->hashing && worker->gen == action->u.part.gen);
		worker->hashing = true;
		break;
	default: /* HASH_STOP */
		cr_assert_eq(worker->gen, action->u.part.gen);
		worker->hashing = false;
		world_tell(worker->node, AGENT_EV_HASH_STOPPED, worker->session)->u.hash.gen =
			worker->gen;
		break;
	}
}

void
shell_act(uint32_t node, const struct agent_action *action)
{
	struct leg *leg;

	switch ((int)action->kind) {
	case AGENT_SEND:
		world_send(node, action);
		break;
	case AGENT_OPENED:
		opened(world_worker(action->session), action->u.answer.code);
		break;
	case AGENT_REGISTERED:
		registered(world_worker(action->session), action->u.answer.code);
		break;
	case AGENT_COMPLETE:
		completed(world_worker(action->session), action);
		break;
	case AGENT_LINE:
		world_worker(action->session)->line = action->u.line;
		if (action->u.line.safe_to_mutate)
			must_be_still(world_worker(action->session));
		break;
	case AGENT_FREE:
		freed(world_worker(action->session));
		break;
	case AGENT_PART_NEW:
	case AGENT_PART_END:
	case AGENT_HASH:
	case AGENT_HASH_STOP:
		part_action(world_worker(action->session), action);
		break;
	case AGENT_PULL:
	case AGENT_COPY:
		leg_begin(node, action, action->kind == AGENT_COPY);
		break;
	case AGENT_STOP:
		leg = leg_find(node, action->u.leg.leg, false);
		if (leg != NULL)
			leg_over(leg, AGENT_EV_LEG_STOPPED, 0);
		break;
	case AGENT_SERVE:
		serve(node, action);
		break;
	case AGENT_REFUSE:
		leg = leg_of_hello(action->u.refuse.hello);
		if (leg != NULL)
			leg_over(leg, AGENT_EV_LEG_FAILED, TH_E_NO_PATH);
		break;
	case AGENT_FENCE:
		world.fences++;
		leg = leg_find(node, action->u.leg.leg, true);
		if (leg != NULL)
			leg_over(leg, AGENT_EV_LEG_FAILED, TH_E_NO_PATH);
		break;
	default:
		break;
	}
}

void
shell_beat_legs(uint32_t node, struct item *item)
{
	struct ctl_beat *beat = &item->request.u.beat;

	for (uint32_t i = 0; i < LEGS_MAX && beat->num_legs < TH_ARRAY_LEN(item->progress); i++) {
		const struct leg *leg = &world.legs[i];
		if (leg->used && !leg->over && !leg->stopped && leg->node == node)
			item->progress[beat->num_legs++] = (struct ctl_leg_progress){
				.leg = leg->number, .chunks_verified = leg->to->prefix};
	}
	beat->legs = item->progress;
}

/* The server still has members of the last incarnation: a new one may meet them, another not. */
static bool
lingers(const struct group *group)
{
	const struct ctl_inspection *seen = refsrv_inspect(world.server, world.now_ns);
	char replica[16];

	snprintf(replica, sizeof(replica), "replica%u", group->workers[0].group);
	for (uint32_t i = 0; i < seen->num_members; i++) {
		if (strcmp(seen->members[i].replica, replica) == 0)
			return true;
	}
	return false;
}

void
shell_group_open(struct group *group)
{
	for (uint32_t i = 0; i < SHARDS; i++) {
		if (group->workers[i].state != W_CLOSED)
			return;
	}
	memset(group->outcomes, 0, sizeof(group->outcomes));
	group->parted = lingers(group);
	group->first_version = world.next_version;
	world.next_version += 10000;
	for (uint32_t i = 0; i < SHARDS; i++) {
		struct worker *worker = &group->workers[i];
		worker->session = ++world.last_session;
		worker->state = W_OPENING;
		worker->want_close = false;
		worker->step = 0;
		worker->line = (struct agent_line){.held.version = TH_NO_VERSION};
		struct ctl_open *open =
			&world_tell(worker->node, AGENT_EV_OPEN, worker->session)->u.open;
		strcpy(open->model, "m");
		snprintf(open->replica, sizeof(open->replica), "replica%u", worker->group);
		open->shard = i;
		open->num_shards = SHARDS;
	}
}

void
shell_worker_run(struct worker *worker)
{
	bool alive = worker->state != W_CLOSED && worker->state != W_CLOSING;

	if (!alive || worker->state == W_OPENING)
		return;
	if (world.death_permille > 0 && world_chance(100000) < world.death_permille) {
		worker->state = W_CLOSING;
		world_tell(worker->node, AGENT_EV_LOST, worker->session);
	} else if (worker->state == W_BUSY && world_chance(10000) < world.loss_percent) {
		world_tell(worker->node, AGENT_EV_CANCEL, worker->session)->u.cancel_slot =
			worker->step % 64;
	} else if (worker->state != W_IDLE) {
		return;
	} else if (worker->want_close || world.stopping) {
		worker->state = W_CLOSING;
		world_tell(worker->node, AGENT_EV_CLOSE, worker->session);
	} else if (world.now_ns >= worker->next_ns) {
		submit(worker);
	}
}
