/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_memory - I1, I2, I3, I7: bytes. Its own record of who may touch a memory and of what was
 * published; the digests are not asked.
 */
#include <inttypes.h>

#include "tests/sim/check.h"

/* Somebody is about to write: what still reads or writes it is wrong by then. */
void
check_scribble(const struct memory *memory, const char *who)
{
	for (const struct leg *leg = world.legs; leg != NULL; leg = leg->next) {
		if (!leg->over && leg->to->memory == memory && memory->shared)
			sim_fail("I3", "%s writes to memory that leg %" PRIu64 " fills", who,
				leg->server_number);
		if (leg->from != NULL && leg->serving && !leg->over && leg->from_memory == memory &&
			memory->shared)
			sim_fail("I2", "%s writes to memory that leg %" PRIu64 " reads", who,
				leg->server_number);
		if (leg->donor != NULL && !leg->over && leg->donor->memory == memory)
			sim_fail("I2", "%s writes to memory that is a donor of leg %" PRIu64, who,
				leg->server_number);
	}
}

void
check_sample(const struct leg *leg)
{
	bool dead =
		!leg->from_host->process.alive || leg->from_host->process.life != leg->from_life;

	/* What comes from an agent that is gone is judged by its digests alone. */
	if (dead)
		return;
	if (leg->from_memory->right != MEMORY_HELD)
		sim_fail("I2", "leg %" PRIu64 " reads chunk %u of memory that its worker may write",
			leg->server_number, leg->chunk);
	if (leg->from == NULL || !leg->from->part.there || leg->from->part.gen != leg->from_gen)
		sim_fail("I2", "leg %" PRIu64 " reads a part that is over", leg->server_number);
	if (leg->from->part.prefix <= leg->chunk)
		sim_fail("I7", "leg %" PRIu64 " reads chunk %u before it is verified",
			leg->server_number, leg->chunk);
}

/* A chunk of it may be copied now. */
void
check_donor(const struct leg *leg)
{
	const struct part *part = &leg->donor->part;

	if (!part->there || part->gen != leg->donor_gen || part->prefix != world.options.chunks ||
		leg->donor->memory->right != MEMORY_HELD)
		sim_fail("I2", "the donor of leg %" PRIu64 " is not held", leg->server_number);
}

void
check_write(const struct leg *leg)
{
	if (leg->to->memory->right != MEMORY_HELD)
		sim_fail("I3", "leg %" PRIu64 " writes chunk %u to memory that was given back",
			leg->server_number, leg->chunk);
	if (!leg->to->part.there || leg->to->part.gen != leg->to_gen || leg->to->part.published)
		sim_fail("I3", "leg %" PRIu64 " writes to a part that is not its own",
			leg->server_number);
	if (leg->to->part.prefix > leg->chunk)
		sim_fail("I7", "leg %" PRIu64 " writes chunk %u again, which counts as verified",
			leg->server_number, leg->chunk);
	check_seed_chunk(leg);
	check_fetch_chunk(leg);
}

void
check_hash(const struct handle *handle)
{
	if (handle->memory->right != MEMORY_HELD)
		sim_fail("I2", "session %" PRIu64 " is hashed while its worker may write",
			handle->id);
}

void
check_part_new(struct handle *handle)
{
	if (handle->memory->right == MEMORY_NOBODYS && handle->memory->shared)
		sim_fail("I3", "a part begins in memory that was freed");
	if (handle->memory->right == MEMORY_OWNER)
		handle->memory->right = MEMORY_HELD;
}

void
check_serve(const struct leg *leg)
{
	if (leg->from_gen != leg->from->part.gen)
		sim_fail("I11", "a leg reads another generation than it was granted");
}

void
check_leg_over(const struct leg *leg, enum agent_event_kind kind)
{
	if (kind == AGENT_EV_LEG_DONE && leg->to->part.prefix != world.options.chunks)
		sim_fail("I7", "leg %" PRIu64 " is done with %u chunks", leg->server_number,
			leg->to->part.prefix);
	if (kind == AGENT_EV_LEG_FAILED)
		check_seed_leg_failed();
	else if (kind == AGENT_EV_LEG_DONE)
		check_risk_filled(leg);
}
