/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_fetch - what a group's hosts bring before it asks: its update reads nothing else.
 *
 * It is judged when the first chunk of an update lands, and asks no core: the chunk comes from the
 * reader's own host. A host that was asked for memory once and had none may send its readers over
 * the wire from then on, so this is certain in worlds in which nothing goes wrong and no host has
 * refused.
 */
#include <string.h>

#include "tests/sim/check.h"

static struct {
	bool certain;
} record;

void
check_fetch_start(void)
{
	const struct options *o = &world.options;

	record.certain = o->quiet && o->servers == 1 && o->server_restart_ns == 0 &&
			 o->diverge_permille == 0 && o->cancel_permille == 0 && o->drain_ns == 0 &&
			 o->layout_percent == 0 && o->other_bytes_percent == 0 &&
			 o->tickets_max == 0 && o->offload_max > 0;
}

void
check_fetch_refused(void)
{
	record.certain = false;
}

void
check_fetch_chunk(const struct leg *leg)
{
	const struct worker *reader = leg->to->worker;

	if (!record.certain || world.closing || reader == NULL || leg->to->part.prefix > 0 ||
		leg->over || leg->stopping || (reader->group->flags & CTL_OPEN_PREFETCH) == 0 ||
		reader->call.kind != CTL_OP_UPDATE ||
		strncmp(reader->call.spec, "latest", strlen("latest")) != 0)
		return;
	for (uint32_t i = 0; i < reader->group->shards; i++) {
		if (reader->group->workers[i].host->offload_max == 0)
			return;
	}
	if (leg->from_host != leg->host)
		sim_fail("I21",
			"group %u shard %u, whose hosts bring versions before it asks, updates "
			"from host "
			"%u",
			reader->group->index, reader->shard, leg->from_host->process.index);
}
