/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fleet_bench - what a version costs the reference server that each host of a fleet brings ahead of
 * its workers.
 *
 *   fleet_bench [hosts ...]        (64 256 512 1000)
 *
 * Drives the core alone, in virtual time and without a network. One model, one trainer, and on each
 * host a group of one that holds version 1 and was opened with THC_PREFETCH. The trainer publishes
 * version 2; each agent opens and registers the copy that it is asked for, and fills it. Beside it
 * the same fleet without the flag, whose groups call update one after the other.
 *
 * Prints processor time for each host, with what this program does in the place of the agents. A
 * measurement, not a test.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "tests/support/core/refsrv_world.h"

#define SIZES_MAX 8u
#define TRAINER 0u

struct fleet {
	struct world world;
	uint32_t num_hosts;
	struct world_member trainer;
	struct world_member *workers, *brought; /* [num_hosts] */
};

/* Others may have the processor meanwhile. */
static double
used_us(void)
{
	struct timespec time;

	TH_ASSERT(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0);
	return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static void
begin(struct fleet *fleet, uint32_t num_hosts, uint32_t flags)
{
	struct world *w = &fleet->world;

	world_init(w, NULL);
	w->unchecked = true;
	w->offload_bytes = UINT64_MAX;
	fleet->num_hosts = num_hosts;
	fleet->workers = th_realloc(NULL, num_hosts, sizeof(*fleet->workers));
	fleet->brought = th_realloc(NULL, num_hosts, sizeof(*fleet->brought));
	TH_ASSERT(world_agent(w) == TRAINER);
	fleet->trainer = world_published(w, TRAINER, "trainer", "1");
	w->flags = flags;
	for (uint32_t i = 0; i < num_hosts; i++) {
		char name[16];
		snprintf(name, sizeof(name), "r%u", i);
		fleet->workers[i] = world_member(w, world_agent(w), name, 0, 1);
		world_replicate(w, &fleet->workers[i], "latest");
	}
	w->flags = 0;
	world_call(w, &fleet->trainer, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	world_drained(w, &fleet->trainer);
	TH_ASSERT(world_outcome(w, &fleet->trainer).code == 0);
	world_publish(w, &fleet->trainer, "2");
}

static void
end(struct fleet *fleet)
{
	world_fini(&fleet->world);
	free(fleet->workers);
	free(fleet->brought);
}

static void
update(struct world *w, struct world_member *worker)
{
	struct ctl_event go;

	world_call(w, worker, CTL_OP_UPDATE, "latest", TH_FOREVER);
	TH_ASSERT(world_prepared(w, worker, 0) == 0);
	if (world_has(w, worker->agent, CTL_EV_DRAIN, worker->sid))
		world_drained(w, worker);
	TH_ASSERT(world_take(w, worker->agent, CTL_EV_GO, worker->sid, &go));
	world_finish(w, worker, go.u.go.grant.leg);
}

static void
measure(struct fleet *fleet, uint32_t num_hosts)
{
	struct world *w = &fleet->world;
	double start_us, asked_us, filled_us, updated_us;

	begin(fleet, num_hosts, CTL_OPEN_PREFETCH);
	start_us = used_us();
	for (uint32_t i = 0; i < num_hosts; i++)
		fleet->brought[i] = world_accepts(w, fleet->workers[i].agent);
	asked_us = used_us() - start_us;
	start_us = used_us();
	for (uint32_t i = 0; i < num_hosts; i++)
		world_finish(w, &fleet->brought[i], world_filling(w, &fleet->brought[i]).leg);
	filled_us = used_us() - start_us;
	end(fleet);

	begin(fleet, num_hosts, 0);
	start_us = used_us();
	for (uint32_t i = 0; i < num_hosts; i++)
		update(w, &fleet->workers[i]);
	updated_us = used_us() - start_us;
	end(fleet);

	printf("%6u hosts: asked, registered %8.1f us, filled %8.1f us; an update %8.1f us\n",
		num_hosts, asked_us / num_hosts, filled_us / num_hosts, updated_us / num_hosts);
}

int
main(int argc, char **argv)
{
	uint32_t sizes[SIZES_MAX] = {64, 256, 512, 1000}, num_sizes = 4;
	struct fleet *fleet = th_realloc(NULL, 1, sizeof(*fleet));

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1)
		num_sizes = 0;
	for (int i = 1; i < argc && num_sizes < SIZES_MAX; i++) {
		sizes[num_sizes++] = (uint32_t)strtoul(argv[i], NULL, 10);
		if (sizes[num_sizes - 1] < 1 || sizes[num_sizes - 1] >= WORLD_AGENTS_MAX) {
			fprintf(stderr, "fleet_bench: a fleet is of 1 to %u hosts\n",
				WORLD_AGENTS_MAX - 1);
			return 2;
		}
	}
	for (uint32_t i = 0; i < num_sizes; i++)
		measure(fleet, sizes[i]);
	free(fleet);
	return 0;
}
