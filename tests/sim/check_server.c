/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_server - I5: what the server lists as ready is complete, and it is so for all shards.
 */
#include <inttypes.h>
#include <string.h>

#include "tests/sim/check.h"

static void
look(struct srv *srv)
{
	const struct ctl_inspection *all = refsrv_inspect(srv->core, process_now(&srv->process));

	for (uint32_t i = 0; i < all->num_members; i++) {
		const struct ctl_member_info *a = &all->members[i];
		if (strcmp(a->copy, "ready") != 0)
			continue;
		if (a->chunks_done != a->chunks_total)
			sim_fail("I5", "%s shard %u is ready with %u of %u chunks", a->replica,
				a->shard, a->chunks_done, a->chunks_total);
	}
}

void
check_slowly(void)
{
	for (uint32_t i = 0; i < world.options.servers; i++) {
		struct srv *srv = &world.servers[i];
		if (srv->process.alive && !srv->process.paused)
			look(srv);
	}
}
