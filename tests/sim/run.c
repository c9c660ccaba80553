/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run - one seed: a world, a phase with faults, a phase without in which everything must move, an
 * end at which nothing may be left.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/check.h"
#include "tests/sim/sim.h"

#define ALIVE_NS (20 * SEC)
#define CLOSE_NS (40 * SEC)
#define QUIET_NS (5 * SEC)

struct world world;

static void
run_until(int64_t end_ns)
{
	while (clock_next_ns() <= end_ns && clock_step())
		;
	world.now_ns = th_max_i64(world.now_ns, end_ns);
}

static void
begin(uint64_t seed)
{
	uint64_t state = seed;

	memset(&world, 0, sizeof(world));
	world.seed = seed;
	world.now_ns = SEC;
	for (uint32_t i = 0; i < RNG_STREAMS; i++)
		th_rng_init_number(&world.rng[i], th_splitmix64(&state));
	swarm_draw(&world.options);
	narrow_apply(&world.options);
	net_start();
	check_start();
	check_retain_start();
	check_risk_start();
	check_seed_start();
	check_fetch_start();
	check_follow_start();
	check_standby_start();
	check_list_start();
	check_wire_start();
	reader_start();
	for (uint32_t i = 0; i < SERVERS_MAX; i++) {
		struct srv *srv = &world.servers[i];
		srv->process.kind = "server";
		srv->process.index = i;
		if (i < world.options.servers)
			srv_start(srv);
	}
	for (uint32_t i = 0; i < HOSTS_MAX; i++) {
		struct host *host = &world.hosts[i];
		host->process.kind = "agent";
		host->process.index = i;
		host->datacenter = i % world.options.datacenters;
		host->spot = percent(RNG_SWARM, world.options.spot_percent);
		host->offload_max = (uint32_t)chance(RNG_SWARM, world.options.offload_max + 1);
		host->resets = percent(RNG_SWARM, world.options.reset_percent);
		if (i < world.options.hosts)
			host_start(host);
	}
	program_start();
	observer_start();
	borrower_start();
	operator_start();
	fault_start();
}

static void
end(void)
{
	for (uint32_t i = 0; i < world.options.hosts; i++) {
		process_kill(&world.hosts[i].process);
		door_host_died(&world.hosts[i]);
		agent_core_free(world.hosts[i].core);
	}
	for (uint32_t i = 0; i < world.options.servers; i++) {
		process_kill(&world.servers[i].process);
		refsrv_free(world.servers[i].core);
	}
	clock_clear();
	while (world.legs != NULL) {
		struct leg *first = world.legs;
		world.legs = first->next;
		free(first);
	}
	while (world.memories != NULL) {
		struct memory *first = world.memories;
		world.memories = first->next;
		free(first);
	}
}

uint64_t
run_seed(uint64_t seed, bool print)
{
	int64_t limit_ns;

	trace_begin(print);
	begin(seed);
	run_until(world.options.safety_ns);
	fault_end();
	run_until(world.now_ns + check_recovery_ns());
	check_one_serves();
	for (uint32_t i = 0; i < world.options.groups; i++)
		world.groups[i].successes_before = world.groups[i].successes;
	check_observers_calm();
	run_until(world.now_ns + ALIVE_NS);
	check_alive();
	check_observers_alive();
	check_one_serves();
	TRACE("everybody closes", 0);
	world.closing = true;
	limit_ns = world.now_ns + CLOSE_NS;
	while (check_remains() && world.now_ns < limit_ns)
		run_until(world.now_ns + 250 * MS);
	run_until(world.now_ns + QUIET_NS);
	check_slowly();
	check_end();
	check_retain_end();
	check_risk_end();
	end();
	return trace_hash();
}
