/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover - legs: what the agents' data ports, network cards and kernels do.
 *
 *   reader --PULL--> knock --> source's door (door.c) --> connected --> chunk, chunk ...
 *
 * A chunk is posted, then its source's memory is sampled as it is at that moment, then it lands in
 * the destination, then the reader verifies it against the digest that came along.
 *   NIC    sampled when it lands, also while the source's agent is stopped; gone with the agent
 *   TCP    posted by the source's agent; the kernel reads the pages some time later, also when the
 *          agent has died meanwhile
 *   LOCAL  both shards are on one host; the agent reads and writes itself
 * Each end learns of the other's end by messages, which may be lost, and then by silence.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/model/blob_hash.h"
#include "tests/sim/check.h"
#include "tests/sim/sim.h"

#define STALL_NS (700 * MS)
#define SILENCE_NS (5 * SEC) /* the source drops a connection of which it hears nothing */
#define WAIT_NS (20 * MS)
#define OWN_FAULT_PERCENT 15u
#define BAD_CHUNKS_MAX 2u

struct leg_task {
	struct task task;
	struct leg *leg;
	uint32_t serial;
};

static void
leg_in(struct leg *leg, void (*run)(struct task *), struct process *process, int64_t delay_ns)
{
	struct leg_task *task = task_new(sizeof(*task), run, process);

	task->leg = leg;
	task->serial = leg->serial;
	task_in(&task->task, delay_ns);
}

static struct leg *
leg_of(struct task *task)
{
	return ((struct leg_task *)task)->leg;
}

static bool
stale(const struct task *task)
{
	const struct leg_task *mine = (const struct leg_task *)task;

	return mine->leg->over || mine->serial != mine->leg->serial;
}

static int64_t
link_delay(const struct leg *leg, bool to_reader)
{
	uint32_t reader = net_host(leg->host), source = net_host(leg->from_host);

	return to_reader ? net_delay(source, reader) : net_delay(reader, source);
}

static bool
source_lives(const struct leg *leg)
{
	return leg->from_host->process.alive && leg->from_host->process.life == leg->from_life;
}

/* ---- the source's end ------------------------------------------------------------------------ */

static void
out_ended(struct leg *leg)
{
	if (!leg->serving)
		return;
	leg->serving = false;
	leg->from = NULL;
	door_ended(leg->from_host, leg->from_number);
}

static void
reader_left(struct task *task)
{
	out_ended(leg_of(task));
}

/* What the source sees of its reader; it also finds out by itself that nothing comes any more. */
static void
watch(struct task *task)
{
	struct leg *leg = leg_of(task);
	bool behind;

	if (!leg->serving)
		return;
	behind = !leg->over && leg->from->part.prefix > leg->to->part.prefix;
	if (leg->over ? world.now_ns - leg->moved_ns > SILENCE_NS
		      : world.now_ns - leg->moved_ns > 4 * SILENCE_NS) {
		out_ended(leg);
		return;
	}
	if (!leg->fencing && !leg->stall_told && (behind || leg->over) &&
		world.now_ns - leg->moved_ns > STALL_NS) {
		leg->stall_told = true;
		host_tell_mover(leg->from_host, AGENT_EV_OUT_STALLED, 0)->u.out_leg =
			leg->from_number;
	}
	leg_in(leg, watch, &leg->from_host->process, STALL_NS / 2);
}

static void
resumed(struct leg *leg)
{
	if (!leg->stall_told || !leg->serving)
		return;
	leg->stall_told = false;
	host_tell_mover(leg->from_host, AGENT_EV_OUT_RESUMED, 0)->u.out_leg = leg->from_number;
}

/* ---- the reader's end ------------------------------------------------------------------------ */

static void
leg_over(struct leg *leg, enum agent_event_kind kind, int code, bool source_failed)
{
	struct agent_event *event = host_tell_mover(leg->host, kind, leg->to->id);
	struct part *part = &leg->to->part;
	int64_t delay_ns;

	TRACE("leg # of host # is over: event # !, chunks #", leg->server_number,
		leg->host->process.index, (uint64_t)kind, TRACE_E(code), part->prefix);
	event->u.leg = (struct agent_leg_report){
		.leg = leg->number,
		.code = code,
		.source_failed = source_failed,
		.overwrote = leg->overwrote,
		.chunks_verified = part->prefix,
		.transport = "sim",
	};
	if (kind == AGENT_EV_LEG_DONE)
		event->u.leg.content =
			hash_bytes(part->digests, world.options.chunks * sizeof(part->digests[0]));
	check_leg_over(leg, kind);
	leg->over = true;
	if (leg->way == LEG_LOCAL || !leg->serving)
		return;
	delay_ns = link_delay(leg, false);
	if (delay_ns != NEVER)
		leg_in(leg, reader_left, &leg->from_host->process, delay_ns);
}

static void
leg_fail(struct leg *leg, int code)
{
	leg_over(leg, AGENT_EV_LEG_FAILED, code, true);
}

static void step(struct task *task);

static void
step_in(struct leg *leg, int64_t delay_ns)
{
	leg->serial++;
	leg_in(leg, step, &leg->host->process, delay_ns);
}

static void
verify(struct task *task)
{
	struct leg *leg = leg_of(task);
	struct part *part = &leg->to->part;

	if (stale(task))
		return;
	leg->posted = false;
	leg->moved_ns = world.now_ns;
	resumed(leg);
	if (chunk_digest(leg->to->memory->tokens[leg->chunk]) != leg->digest) {
		TRACE("leg # chunk # is not what its digest says", leg->server_number, leg->chunk);
		if (++leg->bad_chunks > BAD_CHUNKS_MAX)
			leg_fail(leg, TH_E_CHECKSUM);
		else
			step_in(leg, 0);
		return;
	}
	part->digests[leg->chunk] = leg->digest;
	part->prefix = leg->chunk + 1;
	if (part->prefix == world.options.chunks)
		leg_over(leg, AGENT_EV_LEG_DONE, 0, false);
	else
		step_in(leg, 0);
}

static bool
readable(const struct leg *leg)
{
	return leg->from_memory->right != MEMORY_NOBODYS || leg->from_memory->shared;
}

static void
sample(struct leg *leg)
{
	check_sample(leg);
	memcpy(leg->tokens, leg->from_memory->tokens[leg->chunk], sizeof(leg->tokens));
	if (!world.calm && permille(RNG_MOVE, world.options.corrupt_permille))
		leg->tokens[chance(RNG_MOVE, CHUNK_TOKENS)] ^= UINT64_C(1) << chance(RNG_MOVE, 64);
	if (!world.calm && leg->lies) {
		leg->tokens[0] ^= 1;
		leg->digest = chunk_digest(leg->tokens);
	}
}

static void
land(struct task *task)
{
	struct leg *leg = leg_of(task);

	if (stale(task))
		return;
	if (leg->way == LEG_NIC) {
		if (!source_lives(leg) || !leg->serving)
			return; /* no answer of its card: the silence ends the leg */
		if (!readable(leg)) {
			leg_fail(leg, TH_E_STALE_MEMORY);
			return;
		}
		sample(leg);
	}
	if (leg->to->worker == NULL && !leg->to->memory->shared) {
		leg_over(leg, AGENT_EV_LEG_FAILED, TH_E_STALE_MEMORY, false);
		return;
	}
	check_write(leg);
	memcpy(leg->to->memory->tokens[leg->chunk], leg->tokens, sizeof(leg->tokens));
	leg->overwrote = true;
	leg_in(leg, verify, &leg->host->process, between(RNG_MOVE, US, 20 * US));
}

/* The kernel of the source's machine takes the pages: nobody's process is asked. */
static void
take_pages(struct task *task)
{
	struct leg *leg = leg_of(task);
	int64_t delay_ns;

	if (stale(task))
		return;
	if (leg->way == LEG_TCP && source_lives(leg) && !leg->serving)
		return; /* fenced before: the queue was dropped */
	if (!readable(leg)) {
		leg_fail(leg, TH_E_STALE_MEMORY);
		return;
	}
	sample(leg);
	delay_ns = leg->way == LEG_TCP ? link_delay(leg, true) : 0;
	if (delay_ns != NEVER)
		leg_in(leg, land, &leg->host->process, delay_ns + leg->chunk_ns / 2);
}

static void
post(struct leg *leg)
{
	if (leg->donor != NULL)
		check_donor(leg);
	leg->chunk = leg->to->part.prefix;
	leg->digest = leg->from->part.digests[leg->chunk];
	leg->posted = true;
	if (leg->way == LEG_NIC)
		leg_in(leg, land, NULL, leg->chunk_ns);
	else
		leg_in(leg, take_pages, leg->way == LEG_LOCAL ? &leg->host->process : NULL,
			leg->chunk_ns / 2);
}

/* Does the reader see its source at all now? */
static bool
reached(const struct leg *leg)
{
	uint32_t reader = net_host(leg->host), source = net_host(leg->from_host);

	if (leg->way == LEG_LOCAL)
		return true;
	if (!leg->serving || !source_lives(leg) || net_is_cut(reader, source) ||
		net_is_cut(source, reader))
		return false;
	return leg->way == LEG_NIC || !leg->from_host->process.paused;
}

static void
step(struct task *task)
{
	struct leg *leg = leg_of(task);

	if (stale(task))
		return;
	if (!leg->to->part.there || leg->to->part.gen != leg->to_gen)
		sim_fail("I3", "a leg of host %u writes to a part that is over",
			leg->host->process.index);
	if (world.now_ns - leg->moved_ns > STALL_NS) {
		leg_fail(leg, TH_E_NO_PATH);
		return;
	}
	if (!world.calm && permille(RNG_MOVE, world.options.leg_fail_permille)) {
		/* Its own host may have run out of something: no source is to blame for that. */
		if (percent(RNG_MOVE, OWN_FAULT_PERCENT))
			leg_over(leg, AGENT_EV_LEG_FAILED, TH_E_LIMIT, false);
		else
			leg_fail(leg, TH_E_NO_PATH);
		return;
	}
	if (leg->posted || !reached(leg)) {
		step_in(leg, WAIT_NS);
		leg->posted = false;
		return;
	}
	if (leg->from->part.prefix <= leg->to->part.prefix) {
		leg->moved_ns = world.now_ns; /* the source itself waits */
		step_in(leg, WAIT_NS);
		return;
	}
	post(leg);
	/* Should the chunk never come; it makes this one void. */
	leg_in(leg, step, &leg->host->process, STALL_NS + WAIT_NS);
}

static void
connected(struct task *task)
{
	struct leg *leg = leg_of(task);

	if (leg->over || leg->connected)
		return;
	leg->connected = true;
	leg->moved_ns = world.now_ns;
	step_in(leg, 0);
}

static void
unanswered(struct task *task)
{
	struct leg *leg = leg_of(task);

	if (!leg->over && !leg->connected)
		leg_fail(leg, TH_E_NO_PATH);
}

static void
closed_by_source(struct task *task)
{
	struct leg *leg = leg_of(task);

	if (!leg->over)
		leg_fail(leg, TH_E_NO_PATH);
}

/* Whoever has come by a ticket. */
static void
present_again(const struct leg *leg)
{
	door_knock_later(leg->from_host, &leg->ticket, between(RNG_MOVE, 10 * US, 500 * MS));
}

static void
knock(struct task *task)
{
	struct leg *leg = leg_of(task);

	if (leg->over)
		return;
	leg->from_life = leg->from_host->process.life;
	if (!world.calm && permille(RNG_MOVE, world.options.twice_permille))
		present_again(leg);
	door_knock(leg->from_host, &leg->ticket, leg);
}

void
mover_begin(struct host *host, const struct agent_action *action)
{
	const struct ctl_grant *grant = &action->u.leg.grant;
	struct leg *leg = th_calloc(1, sizeof(*leg));
	int64_t delay_ns;

	leg->next = world.legs;
	world.legs = leg;
	leg->host = leg->from_host = host;
	leg->host_life = leg->from_life = host->process.life;
	leg->number = action->u.leg.leg;
	leg->server_number = grant->leg;
	leg->to = host_handle(host, action->session);
	leg->to_gen = action->u.leg.gen;
	leg->chunk_ns = world.options.chunk_ns / 2 +
			(int64_t)chance(RNG_MOVE, 2 * (uint64_t)world.options.chunk_ns);
	leg->moved_ns = leg->begun_ns = world.now_ns;
	if (!leg->to->part.there || leg->to->part.gen != leg->to_gen)
		sim_fail("agent", "a leg for a part that is not there");
	if (action->kind == AGENT_COPY) {
		leg->way = LEG_LOCAL;
		leg->from = host_handle(host, action->u.leg.source_session);
		leg->from_gen = action->u.leg.source_gen;
		leg->from_memory = leg->from->memory;
		leg->lies = percent(RNG_LIE, world.options.lie_percent);
		if (!leg->from->part.there || leg->from->part.gen != leg->from_gen)
			sim_fail("agent", "a copy of a part that is not there");
		leg->connected = true;
		step_in(leg, between(RNG_MOVE, 10 * US, MS));
		return;
	}
	leg->way = percent(RNG_MOVE, world.options.nic_percent) ? LEG_NIC : LEG_TCP;
	leg->from_host = &world.hosts[(uint32_t)atoi(grant->source_address) % HOSTS_MAX];
	if (grant->far != (leg->from_host->datacenter != host->datacenter))
		sim_fail("C17", "leg %" PRIu64 " is told far=%d, and its source is not so",
			leg->server_number, grant->far);
	if (grant->far)
		leg->chunk_ns *= world.options.far_times;
	leg->ticket = grant->ticket;
	if (action->u.leg.donor_session != 0) {
		leg->donor = host_handle(host, action->u.leg.donor_session);
		leg->donor_gen = action->u.leg.donor_gen;
		check_donor(leg);
	}
	TRACE("leg # of host # pulls from host #", leg->server_number, host->process.index,
		leg->from_host->process.index);
	delay_ns = link_delay(leg, false);
	if (delay_ns != NEVER)
		leg_in(leg, knock, &leg->from_host->process, delay_ns);
	leg_in(leg, unanswered, &host->process, KNOCK_NS);
}

/* ---- what the cores say ---------------------------------------------------------------------- */

static void
flushed(struct task *task)
{
	struct leg *leg = leg_of(task);

	if (!leg->over)
		leg_over(leg, AGENT_EV_LEG_STOPPED, TH_E_CANCELLED, false);
}

void
mover_stop(struct host *host, uint64_t number)
{
	for (struct leg *leg = world.legs; leg != NULL; leg = leg->next) {
		if (leg->host != host || leg->host_life != host->process.life ||
			leg->number != number || leg->over || leg->stopping)
			continue;
		leg->stopping = true;
		/* Until its queue is flushed, what has been posted may still land. */
		leg_in(leg, flushed, &host->process, between(RNG_MOVE, 10 * US, 60 * MS));
	}
}

static void
donor_left(struct task *task)
{
	struct leg *leg = leg_of(task);

	if (leg->over || leg->donor == NULL)
		return;
	leg->donor = NULL;
	host_tell_mover(leg->host, AGENT_EV_DONOR_LEFT, 0)->u.donor_leg = leg->number;
}

/* It is read until the chunks that are under way have been copied. */
void
mover_drop_donor(struct host *host, uint64_t number)
{
	for (struct leg *leg = world.legs; leg != NULL; leg = leg->next) {
		if (leg->host == host && leg->host_life == host->process.life &&
			leg->number == number && !leg->over)
			leg_in(leg, donor_left, &host->process, between(RNG_MOVE, US, 20 * MS));
	}
}

/* ---- what the source's door says ------------------------------------------------------------- */

bool
mover_serve(struct leg *leg, uint64_t session, uint64_t gen, uint64_t number)
{
	struct host *host = leg->from_host;
	int64_t delay_ns;

	if (leg->over || leg->serving || !source_lives(leg))
		return false;
	leg->serving = true;
	leg->from = host_handle(host, session);
	leg->from_memory = leg->from->memory;
	leg->lies = percent(RNG_LIE, world.options.lie_percent);
	leg->from_gen = gen;
	leg->from_number = number;
	leg->moved_ns = world.now_ns;
	if (!leg->from->part.there)
		sim_fail("agent", "host %u serves a part that is not there", host->process.index);
	check_serve(leg);
	delay_ns = link_delay(leg, true);
	if (delay_ns != NEVER)
		leg_in(leg, connected, &leg->host->process, delay_ns);
	leg_in(leg, watch, &host->process, STALL_NS);
	return true;
}

void
mover_turned_away(struct leg *leg)
{
	int64_t delay_ns = link_delay(leg, true);

	if (!leg->over && !leg->serving && delay_ns != NEVER)
		leg_in(leg, closed_by_source, &leg->host->process, delay_ns);
}

void
mover_fenced(struct leg *leg)
{
	int64_t delay_ns = link_delay(leg, true);

	out_ended(leg);
	if (!leg->over && delay_ns != NEVER)
		leg_in(leg, closed_by_source, &leg->host->process, delay_ns);
}

uint32_t
mover_progress(const struct host *host, struct ctl_leg_progress *ret_legs, uint32_t legs_max)
{
	uint32_t count = 0;

	for (const struct leg *leg = world.legs; leg != NULL && count < legs_max; leg = leg->next) {
		if (leg->host != host || leg->host_life != host->process.life || leg->over ||
			leg->stopping)
			continue;
		ret_legs[count++] = (struct ctl_leg_progress){
			.leg = leg->server_number, .chunks_verified = leg->to->part.prefix};
	}
	return count;
}

void
mover_host_died(struct host *host)
{
	door_host_died(host);
	for (struct leg *leg = world.legs; leg != NULL; leg = leg->next) {
		if (leg->host == host && !leg->over) {
			int64_t delay_ns = link_delay(leg, false);
			leg->over = true;
			if (leg->serving && leg->from_host != host && delay_ns != NEVER)
				leg_in(leg, reader_left, &leg->from_host->process, delay_ns);
		}
		if (leg->from_host == host && leg->way != LEG_LOCAL) {
			int64_t delay_ns = link_delay(leg, true);
			leg->serving = false;
			leg->from = NULL;
			if (!leg->over && leg->way == LEG_TCP && delay_ns != NEVER)
				leg_in(leg, closed_by_source, &leg->host->process,
					delay_ns + (int64_t)chance(RNG_MOVE, 20 * MS));
		}
	}
}

/* ---- parts and their digests ----------------------------------------------------------------- */

struct hash_task {
	struct task task;
	struct host *host;
	uint64_t handle;
	uint32_t serial;
};

static void hash_chunk(struct task *task);

static void
hash_in(struct handle *handle, void (*run)(struct task *))
{
	struct hash_task *task = task_new(sizeof(*task), run, &handle->host->process);

	task->host = handle->host;
	task->handle = handle->id;
	task->serial = handle->hash_serial;
	task_in(&task->task, between(RNG_MOVE, 10 * US, world.options.chunk_ns));
}

static struct handle *
hashing(struct task *task)
{
	const struct hash_task *mine = (struct hash_task *)task;
	struct handle *handle = mine->host->handles;

	while (handle != NULL && handle->id != mine->handle)
		handle = handle->next;
	return handle != NULL && handle->hash_serial == mine->serial && handle->part.hashing
		       ? handle
		       : NULL;
}

static void
hash_chunk(struct task *task)
{
	struct handle *handle = hashing(task);
	struct part *part;

	if (handle == NULL || handle->part.stopping)
		return;
	part = &handle->part;
	if (handle->worker == NULL && !handle->memory->shared)
		return; /* it cannot be read any more; the agent learns of the death */
	check_hash(handle);
	part->digests[part->prefix] = chunk_digest(handle->memory->tokens[part->prefix]);
	if (++part->prefix < world.options.chunks) {
		hash_in(handle, hash_chunk);
		return;
	}
	part->hashing = false;
	struct agent_event *event = host_tell_mover(handle->host, AGENT_EV_HASHED, handle->id);
	event->u.hash.gen = part->gen;
	event->u.hash.content =
		hash_bytes(part->digests, world.options.chunks * sizeof(part->digests[0]));
}

static void
hash_stopped(struct task *task)
{
	const struct hash_task *mine = (struct hash_task *)task;
	struct handle *handle = mine->host->handles;

	while (handle != NULL && handle->id != mine->handle)
		handle = handle->next;
	if (handle == NULL)
		return;
	handle->part.hashing = handle->part.stopping = false;
	host_tell_mover(handle->host, AGENT_EV_HASH_STOPPED, handle->id)->u.hash.gen =
		handle->part.gen;
}

void
mover_part(struct host *host, const struct agent_action *action)
{
	struct handle *handle = host_handle(host, action->session);
	struct part *part = &handle->part;

	TRACE("host # session # part #: action # published #", host->process.index, handle->id,
		action->u.part.gen, (uint64_t)action->kind, action->u.part.published);
	if (action->kind == AGENT_PART_NEW ? part->there
					   : !part->there || part->gen != action->u.part.gen)
		sim_fail("agent", "host %u: the parts of a session are mixed up",
			host->process.index);
	if (action->kind == AGENT_PART_NEW || action->kind == AGENT_PART_END)
		mover_must_be_still(handle, "a part begins or ends");
	if (action->kind == AGENT_PART_END) {
		part->there = false;
		return;
	}
	if (action->kind == AGENT_HASH_STOP) {
		part->stopping = true;
		hash_in(handle, hash_stopped);
		return;
	}
	if (action->kind == AGENT_PART_NEW) {
		*part = (struct part){.there = true,
			.gen = action->u.part.gen,
			.published = action->u.part.published};
		check_part_new(handle);
	}
	if (part->published && part->prefix < world.options.chunks) {
		handle->hash_serial++;
		part->hashing = true;
		hash_in(handle, hash_chunk);
	}
}

/* ---- questions ------------------------------------------------------------------------------- */

void
mover_must_be_still(const struct handle *handle, const char *why)
{
	if (handle->part.hashing || handle->part.stopping)
		sim_fail("I2", "%s: session %lu of host %u is being hashed", why,
			(unsigned long)handle->id, handle->host->process.index);
	door_must_be_shut(handle, why);
	for (const struct leg *leg = world.legs; leg != NULL; leg = leg->next) {
		if (leg->to == handle && !leg->over)
			sim_fail("I3", "%s: a leg writes to session %lu of host %u", why,
				(unsigned long)handle->id, handle->host->process.index);
		if (leg->from == handle && (leg->way == LEG_LOCAL ? !leg->over : leg->serving))
			sim_fail("I2", "%s: a leg reads session %lu of host %u", why,
				(unsigned long)handle->id, handle->host->process.index);
		if (leg->donor == handle && !leg->over)
			sim_fail("I2", "%s: session %lu of host %u is a donor", why,
				(unsigned long)handle->id, handle->host->process.index);
	}
}

uint32_t
mover_running(void)
{
	uint32_t count = 0;

	for (const struct leg *leg = world.legs; leg != NULL; leg = leg->next)
		count += !leg->over || leg->serving;
	return count;
}
