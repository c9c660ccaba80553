/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault - what goes wrong by itself, each kind at times of its own. What is wrong with single
 * messages and legs is drawn where they are sent (net.c, mover.c).
 */
#include <string.h>

#include "tests/sim/check.h"
#include "tests/sim/sim.h"

struct fault_task {
	struct task task;
	const struct fault *fault;
	uint32_t nth;            /* of its kind */
	struct process *process; /* which is to start or to go on */
	uint64_t life;
};

static struct host *
any_host(void)
{
	return &world.hosts[chance(RNG_FAULT, world.options.hosts)];
}

static struct srv *
any_server(void)
{
	return &world.servers[chance(RNG_FAULT, world.options.servers)];
}

static void
later(void (*run)(struct task *), struct process *process, int64_t delay_ns)
{
	struct fault_task *task = task_new(sizeof(*task), run, NULL);

	task->process = process;
	task->life = process->life;
	task_in(&task->task, delay_ns);
}

/* ---- processes ------------------------------------------------------------------------------- */

static void
go_on(struct task *task)
{
	struct fault_task *mine = (struct fault_task *)task;

	if (mine->process->life == mine->life && mine->process->paused) {
		TRACE("$ # goes on", TRACE_S(mine->process->kind), mine->process->index);
		process_resume(mine->process);
	}
}

static void
stop(struct process *process, int64_t ns)
{
	if (!process->alive || process->paused)
		return;
	TRACE("$ # is stopped for # ms", TRACE_S(process->kind), process->index,
		(uint64_t)(ns / MS));
	process_pause(process);
	later(go_on, process, ns);
}

static void
start_host(struct task *task)
{
	struct host *host = &world.hosts[((struct fault_task *)task)->process->index];

	if (!host->process.alive)
		host_start(host);
}

static void
start_server(struct task *task)
{
	struct srv *srv = &world.servers[((struct fault_task *)task)->process->index];

	if (!srv->process.alive)
		srv_start(srv);
}

static void
worker_dies(void)
{
	struct group *group = &world.groups[chance(RNG_FAULT, world.options.groups)];

	worker_kill(&group->workers[chance(RNG_FAULT, group->shards)]);
}

void
fault_host_starts(struct host *host, int64_t delay_ns)
{
	later(start_host, &host->process, delay_ns);
}

static void
host_ends(struct host *host, bool machine)
{
	for (uint32_t i = 0; machine && i < world.options.groups; i++) {
		for (uint32_t k = 0; k < world.groups[i].shards; k++) {
			if (world.groups[i].workers[k].host == host)
				worker_kill(&world.groups[i].workers[k]);
		}
	}
	/* Nobody is left who could end its connections. */
	for (uint32_t i = 0; machine && i < world.options.servers; i++) {
		uint32_t from = net_host(host), to = net_srv(&world.servers[i]);
		if (!net_is_cut(from, to))
			net_cut(from, to, world.now_ns + MS);
	}
	host_crash(host);
	fault_host_starts(host, between(RNG_FAULT, 100 * MS, 5 * SEC));
}

void
fault_machine_ends(struct host *host)
{
	host_ends(host, true);
}

static void
host_crashes(void)
{
	struct host *host = any_host();
	bool machine = percent(RNG_FAULT, 30);

	if (host->process.alive)
		host_ends(host, machine);
}

static void
host_stops(void)
{
	stop(&any_host()->process, between(RNG_FAULT, 50 * MS, 15 * SEC));
}

static void
server_restarts(void)
{
	struct srv *srv = any_server();

	if (!srv->process.alive)
		return;
	srv_stop(srv);
	later(start_server, &srv->process, between(RNG_FAULT, 0, world.options.server_down_ns));
}

static void
server_stops(void)
{
	struct srv *srv = any_server();

	/* Another takes over: for good, or just not. */
	if (peer_count() > 0 && percent(RNG_FAULT, 30))
		stop(&srv->process, percent(RNG_FAULT, 50) ? 60 * SEC : 5 * SEC);
	else
		stop(&srv->process, between(RNG_FAULT, 500 * MS, 12 * SEC));
	check_server_down();
}

/* ---- links ----------------------------------------------------------------------------------- */

static uint32_t
any_endpoint(void)
{
	uint64_t all = world.options.hosts + world.options.servers;
	uint64_t draw = chance(RNG_FAULT, all);

	return draw < world.options.hosts ? (uint32_t)draw
					  : HOSTS_MAX + (uint32_t)draw - world.options.hosts;
}

static void
each_link(uint32_t a, bool in, bool out, bool servers_only, int64_t until_ns)
{
	for (uint32_t b = 0; b < ENDPOINTS_MAX; b++) {
		if (b == a || (servers_only && b < HOSTS_MAX && a < HOSTS_MAX))
			continue;
		if (out)
			net_cut(a, b, until_ns);
		if (in)
			net_cut(b, a, until_ns);
	}
}

static void
halves(int64_t until_ns)
{
	uint64_t side = th_rng_u64(&world.rng[RNG_FAULT]);

	for (uint32_t a = 0; a < ENDPOINTS_MAX; a++) {
		for (uint32_t b = 0; b < ENDPOINTS_MAX; b++) {
			if ((side >> a & 1) != (side >> b & 1))
				net_cut(a, b, until_ns);
		}
	}
}

static void
links_are_cut(void)
{
	uint32_t a = any_endpoint(), b = any_endpoint(), kind = (uint32_t)chance(RNG_FAULT, 6);
	int64_t until_ns = world.now_ns + between(RNG_FAULT, 200 * MS, 14 * SEC);

	TRACE("links are cut: # # way # for # ms", a, b, kind,
		(uint64_t)((until_ns - world.now_ns) / MS));
	if (kind == 0) {
		net_cut(a, b, until_ns);
	} else if (kind == 1) {
		net_cut(a, b, until_ns);
		net_cut(b, a, until_ns);
	} else if (kind == 2) {
		each_link(a, true, true, false, until_ns);
	} else if (kind == 3) {
		each_link(a, true, true, true, until_ns);
	} else if (kind == 4) {
		each_link(a, percent(RNG_FAULT, 50), true, percent(RNG_FAULT, 50), until_ns);
	} else {
		halves(until_ns);
	}
}

/* Between servers, or between one agent and one server. */
static void
servers_are_cut(void)
{
	uint32_t a = net_srv(any_server()), b = net_srv(any_server());
	bool there = percent(RNG_FAULT, 80), back = percent(RNG_FAULT, 80);
	int64_t until_ns = world.now_ns + between(RNG_FAULT, SEC, 25 * SEC);

	if (!world.options.only_servers_fail && percent(RNG_FAULT, 35))
		b = net_host(any_host());
	if (a == b)
		return;
	TRACE("servers are cut: # and #, # # for # ms", a, b, there, back,
		(uint64_t)((until_ns - world.now_ns) / MS));
	if (there)
		net_cut(a, b, until_ns);
	if (back)
		net_cut(b, a, until_ns);
}

static void
link_is_slow(void)
{
	net_slow(any_endpoint(), any_endpoint(),
		world.now_ns + between(RNG_FAULT, 500 * MS, 20 * SEC),
		(uint32_t)between(RNG_FAULT, 5, 500));
}

static void
pipe_drops(void)
{
	struct host *host = any_host();

	if (host->process.alive)
		net_hang_up(host, &world.servers[host->server]);
}

/* ---- people ---------------------------------------------------------------------------------- */

static void
operator_drains_one(void)
{
	operator_drains(any_host());
}

static void
operator_evicts_one(void)
{
	operator_evicts(&world.groups[chance(RNG_FAULT, world.options.groups)]);
}

static void
agent_leaves(void)
{
	struct host *host = any_host();

	host_leave(host, between(RNG_FAULT, 0, 10 * SEC));
}

/* ---- when ------------------------------------------------------------------------------------ */

static const struct fault {
	const char *name;
	void (*strike)(void);
	size_t mean_ns; /* where it stands in struct options */
} faults[] = {
	{"worker_dies", worker_dies, offsetof(struct options, worker_death_ns)},
	{"host_crashes", host_crashes, offsetof(struct options, host_crash_ns)},
	{"host_stops", host_stops, offsetof(struct options, host_pause_ns)},
	{"server_restarts", server_restarts, offsetof(struct options, server_restart_ns)},
	{"server_stops", server_stops, offsetof(struct options, server_pause_ns)},
	{"links_are_cut", links_are_cut, offsetof(struct options, cut_ns)},
	{"link_is_slow", link_is_slow, offsetof(struct options, slow_link_ns)},
	{"pipe_drops", pipe_drops, offsetof(struct options, pipe_drop_ns)},
	{"operator_drains", operator_drains_one, offsetof(struct options, drain_ns)},
	{"operator_evicts", operator_evicts_one, offsetof(struct options, evict_ns)},
	{"agent_leaves", agent_leaves, offsetof(struct options, leave_ns)},
	{"servers_are_cut", servers_are_cut, offsetof(struct options, peer_cut_ns)},
	{"stranger_speaks", stranger_speaks, offsetof(struct options, stranger_ns)},
};

const char *
fault_name(uint32_t fault)
{
	return faults[fault].name;
}

bool
fault_named(const char *name, size_t bytes, uint32_t *ret_fault)
{
	for (uint32_t i = 0; i < TH_ARRAY_LEN(faults); i++) {
		if (strlen(faults[i].name) == bytes && memcmp(faults[i].name, name, bytes) == 0) {
			*ret_fault = i;
			return true;
		}
	}
	return false;
}

static void strike(struct task *task);

static void
schedule(const struct fault *fault, uint32_t nth)
{
	const int64_t *mean_ns = (const void *)((const char *)&world.options + fault->mean_ns);
	struct fault_task *task;

	if (*mean_ns == 0)
		return;
	task = task_new(sizeof(*task), strike, NULL);
	task->fault = fault;
	task->nth = nth;
	task_in(&task->task, between(RNG_FAULT, *mean_ns / 10, *mean_ns * 2));
}

/*
 * Each strike draws from a stream of its own, so that one that is left out (narrow.c) changes none
 * of the others.
 */
static void
strike(struct task *task)
{
	struct fault_task *mine = (struct fault_task *)task;
	struct strike number = {.fault = (uint32_t)(mine->fault - faults), .nth = mine->nth};
	struct th_rng stream = world.rng[RNG_FAULT];

	if (world.calm)
		return;
	th_rng_init_number(&world.rng[RNG_FAULT],
		world.seed * 8192 + number.fault * UINT64_C(512) + number.nth);
	schedule(mine->fault, mine->nth + 1);
	if (!narrow_dropped(number)) {
		if (world.num_strikes < STRIKES_MAX)
			world.strikes[world.num_strikes++] = number;
		mine->fault->strike();
	}
	world.rng[RNG_FAULT] = stream;
}

void
fault_start(void)
{
	for (size_t i = 0; i < TH_ARRAY_LEN(faults); i++)
		schedule(&faults[i], 1);
}

void
fault_end(void)
{
	TRACE("the faults end", 0);
	world.calm = true;
	world.calm_ns = world.now_ns;
	net_heal();
	for (uint32_t i = 0; i < world.options.hosts; i++) {
		struct host *host = &world.hosts[i];
		/* Who is told to end for the second time does so at once. */
		if (host->process.alive && host->leaving)
			host_crash(host);
		if (!host->process.alive)
			host_start(host);
		else if (host->process.paused)
			process_resume(&host->process);
	}
	for (uint32_t i = 0; i < world.options.servers; i++) {
		struct srv *srv = &world.servers[i];
		if (!srv->process.alive)
			srv_start(srv);
		else if (srv->process.paused)
			process_resume(&srv->process);
	}
	operator_ends();
}
