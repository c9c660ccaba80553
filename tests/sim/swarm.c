/* SPDX-License-Identifier: Apache-2.0 */
/*
 * swarm - options from a seed: each kind of fault is there or not, and how often. A run with few
 * kinds gets further than one with all of them.
 */
#include "tests/sim/sim.h"

uint64_t
chance(enum stream stream, uint64_t bound)
{
	return th_rng_below(&world.rng[stream], bound);
}

bool
percent(enum stream stream, uint32_t share)
{
	return share > 0 && chance(stream, 100) < share;
}

bool
permille(enum stream stream, uint32_t share)
{
	return share > 0 && chance(stream, 1000) < share;
}

int64_t
between(enum stream stream, int64_t low, int64_t high)
{
	return low + (int64_t)chance(stream, (uint64_t)(high - low + 1));
}

static uint32_t
number(uint32_t low, uint32_t high)
{
	return (uint32_t)between(RNG_SWARM, low, high);
}

/* In a third of the seeds, at a rate of up to max. */
static uint32_t
rate(uint32_t max)
{
	return percent(RNG_SWARM, 35) ? number(1, max) : 0;
}

static int64_t
mean(int64_t low_ns, int64_t high_ns)
{
	return percent(RNG_SWARM, 35) ? between(RNG_SWARM, low_ns, high_ns) : 0;
}

/* Of processes and links: what is left is what workers do to each other. */
static void
no_faults(struct options *o)
{
	o->clock_skew_permille = o->loss_permille = o->twice_permille = o->slow_permille = 0;
	o->leg_fail_permille = o->corrupt_permille = 0;
	o->worker_death_ns = o->host_crash_ns = o->host_pause_ns = 0;
	o->server_restart_ns = o->server_pause_ns = 0;
	o->cut_ns = o->slow_link_ns = o->pipe_drop_ns = o->late_pidfd_ns = 0;
	o->evict_ns = o->leave_ns = 0;
}

/* Much is retained, and nothing else of what a worker may do to its group. */
static void
retaining(struct options *o)
{
	o->diverge_permille = o->other_bytes_percent = o->layout_percent = o->spot_percent = 0;
	o->retain_percent = number(50, 100);
	o->force_percent = percent(RNG_SWARM, 70) ? 0 : number(0, 30);
}

/*
 * Drawn from a stream of its own, and last: the worlds with one server are what they were before
 * there were others.
 */
static void
several_servers(struct options *o)
{
	if (!percent(RNG_PEER, 35))
		return;
	o->servers = percent(RNG_PEER, 65) ? 2 : 3;
	if (o->quiet)
		return;
	if (percent(RNG_PEER, 25)) {
		no_faults(o);
		retaining(o);
		o->only_servers_fail = true;
		o->cancel_permille = o->tickets_max = o->reset_percent = 0;
		o->drain_ns = 0;
	}
	if (percent(RNG_PEER, 60))
		o->peer_cut_ns = between(RNG_PEER, 2 * SEC, 20 * SEC);
	if (o->server_restart_ns == 0 && percent(RNG_PEER, 60))
		o->server_restart_ns = between(RNG_PEER, 4 * SEC, 20 * SEC);
	if (o->server_pause_ns == 0 && percent(RNG_PEER, 40))
		o->server_pause_ns = between(RNG_PEER, 4 * SEC, 20 * SEC);
	if (o->server_restart_ns > 0 && percent(RNG_PEER, 50))
		o->server_down_ns += between(RNG_PEER, 0, 20 * SEC);
	/* So bad that legs give up: rare with the rate above. */
	if (o->corrupt_permille > 0 && percent(RNG_PEER, 30))
		o->corrupt_permille = 250;
}

static void
draw(struct options *o)
{
	static const uint32_t shards[] = {1, 1, 2, 2, 2, 3, 4};
	static const uint32_t chunks[] = {1, 2, 4, 4, 8, 8, 16};
	bool crashes;

	*o = (struct options){.servers = 1};
	o->hosts = number(2, HOSTS_MAX);
	o->datacenters = number(1, 3);
	o->models = percent(RNG_SWARM, 20) ? 2 : 1;
	o->shards = shards[chance(RNG_SWARM, TH_ARRAY_LEN(shards))];
	o->chunks = chunks[chance(RNG_SWARM, TH_ARRAY_LEN(chunks))];
	o->trainers = o->models + number(0, 1);
	o->groups = number(o->trainers + 1, o->trainers + 4);
	o->clock_skew_permille = rate(200);
	o->spot_percent = percent(RNG_SWARM, 30) ? number(10, 60) : 0;
	o->shared_percent = percent(RNG_SWARM, 70) ? 100 : number(0, 100);
	o->nic_percent = number(0, 2) * 50;
	o->forever_percent = number(0, 60);
	o->cancel_permille = rate(60);
	o->diverge_permille = rate(10);
	o->other_bytes_percent = rate(40);
	o->layout_percent = percent(RNG_SWARM, 10) ? 30 : 0;
	o->safety_ns = between(RNG_SWARM, 15 * SEC, 50 * SEC);
	o->net_min_ns = between(RNG_SWARM, 20 * US, 2 * MS);
	o->net_mean_ns = between(RNG_SWARM, 20 * US, 5 * MS);
	o->chunk_ns = between(RNG_SWARM, 500 * US, 60 * MS);
	o->think_ns = between(RNG_SWARM, 50 * MS, 2 * SEC);
	o->pair_block_ns = between(RNG_SWARM, 200 * MS, 2 * SEC);
	o->crawl_ns = o->pair_block_ns;
	/* Chains are short here: in half of the worlds they become trees for no gain. */
	o->fan_gain = o->crawl_ns % 2 == 0 ? 8 : -32;
	o->fifo = percent(RNG_SWARM, 50);
	o->loss_permille = rate(100);
	o->twice_permille = rate(100);
	o->slow_permille = rate(20);
	o->leg_fail_permille = rate(40);
	o->corrupt_permille = rate(20);
	o->worker_death_ns = mean(2 * SEC, 20 * SEC);
	o->host_crash_ns = mean(4 * SEC, 30 * SEC);
	o->host_pause_ns = mean(2 * SEC, 20 * SEC);
	o->server_restart_ns = mean(4 * SEC, 30 * SEC);
	o->server_pause_ns = mean(4 * SEC, 30 * SEC);
	o->server_down_ns = between(RNG_SWARM, MS, 10 * SEC);
	o->cut_ns = mean(SEC, 20 * SEC);
	o->slow_link_ns = mean(2 * SEC, 20 * SEC);
	o->pipe_drop_ns = mean(SEC, 20 * SEC);
	o->late_pidfd_ns = mean(10 * MS, 3 * SEC);
	o->offload_max = percent(RNG_SWARM, 80) ? number(1, 8) : 0;
	o->tickets_max = percent(RNG_SWARM, 10) ? number(1, 3) : 0;
	o->retain_percent = percent(RNG_SWARM, 60) ? number(20, 100) : 0;
	o->force_percent = number(0, 50);
	o->lineage_percent = percent(RNG_SWARM, 20) ? number(5, 50) : 0;
	o->grace_ns = between(RNG_SWARM, 100 * MS, 4 * SEC);
	o->drain_ns = mean(SEC, 20 * SEC);
	o->evict_ns = mean(2 * SEC, 20 * SEC);
	o->leave_ns = mean(3 * SEC, 30 * SEC);
	o->reset_percent = percent(RNG_SWARM, 15) ? number(1, 100) : 0;
	o->renew_permille = rate(150);
	o->list_ns = percent(RNG_READ, 50) ? between(RNG_READ, 20 * MS, 2 * SEC) : 0;
	o->quiet = percent(RNG_SWARM, 10);
	/* Retention is checked best where little goes wrong. */
	crashes = !o->quiet && percent(RNG_SWARM, 10);
	if (!o->quiet && !crashes)
		return;
	no_faults(o);
	if (crashes)
		o->host_crash_ns = between(RNG_SWARM, SEC, 10 * SEC);
	if (crashes ? percent(RNG_SWARM, 30) : percent(RNG_SWARM, 50))
		o->server_restart_ns = between(RNG_SWARM, 2 * SEC, 15 * SEC);
	if (percent(RNG_SWARM, 80))
		retaining(o);
}

/*
 * Workers that hardly live until they are open, several of a group on one host, and answers that
 * are lost: what they have asked for outlives them. From a stream of its own, as above.
 */
static void
short_lives(struct options *o)
{
	if (!percent(RNG_SHORT, 3) || o->quiet || o->only_servers_fail)
		return;
	o->hosts = 2;
	o->shards = SHARDS_MAX;
	o->worker_death_ns = between(RNG_SHORT, 200 * MS, SEC);
	o->loss_permille = (uint32_t)between(RNG_SHORT, 100, 300);
}

/* Some of the worlds in which check_retain is certain: no death of a worker, no server more. */
static void
spot_hosts(struct options *o)
{
	if (percent(RNG_SHORT, 25) && o->servers == 1 && o->retain_percent >= 50 &&
		o->worker_death_ns == 0 && o->loss_permille == 0 && o->hosts > 2)
		o->spot_percent = (uint32_t)between(RNG_SHORT, 20, 60);
}

/*
 * Hosts crash, one after the other, and nothing else fails: what is retained may be lost. Or
 * workers die: so is what their agents have no digests of yet.
 */
static void
losses(struct options *o)
{
	bool hosts = percent(RNG_LOSS, 5), workers = !hosts && percent(RNG_LOSS, 5);

	if (!(hosts || workers) || o->quiet || o->servers > 1)
		return;
	no_faults(o);
	o->diverge_permille = o->other_bytes_percent = o->layout_percent = o->spot_percent = 0;
	o->cancel_permille = o->reset_percent = o->tickets_max = 0;
	o->force_percent = 0;
	o->drain_ns = 0;
	o->retain_percent = 100;
	if (hosts)
		o->host_crash_ns = between(RNG_LOSS, SEC, 6 * SEC);
	else
		o->worker_death_ns = between(RNG_LOSS, 300 * MS, 2 * SEC);
}

/*
 * Groups of one that are often without a server, and nothing else goes wrong: what the rules of
 * other hosts name must stay all the same. From a stream of its own, as above.
 */
static void
cut_off(struct options *o)
{
	if (o->servers > 1 || o->quiet || !percent(RNG_ALONE, 3))
		return;
	no_faults(o);
	retaining(o);
	o->shards = o->models = 1;
	o->cancel_permille = o->tickets_max = o->reset_percent = o->force_percent = 0;
	o->drain_ns = 0;
	o->server_restart_ns = between(RNG_ALONE, 2 * SEC, 8 * SEC);
	o->server_down_ns = between(RNG_ALONE, 3 * SEC, 10 * SEC);
}

/* In any world, also where nothing else goes wrong. From a stream of its own, as above. */
static void
strangers(struct options *o)
{
	if (percent(RNG_STRANGER, 25))
		o->stranger_ns = between(RNG_STRANGER, 100 * MS, 3 * SEC);
}

/* Sources, or who is on the way, that pass on other bytes and digests of these. */
static void
liars(struct options *o)
{
	if (!o->quiet && !o->only_servers_fail && percent(RNG_LIE, 10))
		o->lie_percent = (uint32_t)between(RNG_LIE, 5, 60);
}

/*
 * All call in the same instant what a slow link brings: a chunk takes a share of a second, all of
 * them one or two. From a stream of its own, as above.
 */
static void
bursts(struct options *o)
{
	o->far_times = 1;
	if (o->datacenters == 1 || !percent(RNG_BURST, 15))
		return;
	o->burst_ns = between(RNG_BURST, 200 * MS, 2 * SEC);
	o->far_times = (uint32_t)between(RNG_BURST, 1, 8);
	o->chunk_ns = th_min_i64(o->chunk_ns, th_min_i64(SEC / o->chunks, 200 * MS) / o->far_times);
}

/* In any world. From a stream of its own, as above. */
static void
observers(struct options *o)
{
	if (percent(RNG_OBSERVE, 30))
		o->observe_ns = between(RNG_OBSERVE, 20 * MS, 2 * SEC);
}

/* Agents that bring versions before they are asked for. From a stream of its own, as above. */
static void
fetches(struct options *o)
{
	if (!percent(RNG_FETCH, 25))
		return;
	o->prefetch_percent = (uint32_t)between(RNG_FETCH, 0, 100);
	o->seed_percent = o->datacenters == 1 ? 0 : (uint32_t)between(RNG_FETCH, 0, 100);
	/* Publishers that are faster than the links. */
	if (o->quiet && percent(RNG_FETCH, 50)) {
		o->chunks = 16;
		o->chunk_ns = between(RNG_FETCH, 60 * MS, 150 * MS) / o->far_times;
		o->think_ns = between(RNG_FETCH, 50 * MS, 300 * MS);
		o->retain_percent = 0;
	}
	if (o->offload_max == 0 && percent(RNG_FETCH, 80))
		o->offload_max = (uint32_t)between(RNG_FETCH, 1, 8);
}

/* Who borrows versions, through the observers. From a stream of its own, as above. */
static void
borrows(struct options *o)
{
	if (!percent(RNG_BORROW, 20))
		return;
	o->borrow_ns = between(RNG_BORROW, 20 * MS, 2 * SEC);
	if (o->observe_ns == 0)
		o->observe_ns = between(RNG_BORROW, 20 * MS, 2 * SEC);
	if (o->offload_max == 0 && percent(RNG_BORROW, 80))
		o->offload_max = (uint32_t)between(RNG_BORROW, 1, 8);
}

/* Groups that take versions by themselves. From a stream of its own, as above. */
static void
followers(struct options *o)
{
	if (!percent(RNG_FOLLOW, 25))
		return;
	o->follow_percent = (uint32_t)between(RNG_FOLLOW, 20, 100);
	o->go_ns = between(RNG_FOLLOW, 100 * MS, 3 * SEC);
	if (!percent(RNG_FOLLOW, 40))
		return;
	/* Servers are lost and nothing else: what each agent was told of a go is certain. */
	o->loss_permille = o->slow_permille = o->clock_skew_permille = o->reset_percent = 0;
	o->host_pause_ns = o->server_pause_ns = o->cut_ns = o->slow_link_ns = 0;
	o->pipe_drop_ns = o->peer_cut_ns = 0;
	o->server_restart_ns = between(RNG_FOLLOW, 3 * SEC, 8 * SEC);
	o->server_down_ns = between(RNG_FOLLOW, MS, SEC);
	o->go_ns = between(RNG_FOLLOW, 100 * MS, 500 * MS);
}

void
swarm_draw(struct options *o)
{
	draw(o);
	several_servers(o);
	short_lives(o);
	spot_hosts(o);
	losses(o);
	cut_off(o);
	strangers(o);
	liars(o);
	bursts(o);
	observers(o);
	fetches(o);
	borrows(o);
	followers(o);
}
