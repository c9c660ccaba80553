/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_standby - I11 and I19: which server serves.
 *
 * I19 of several servers: one begins to serve only when none before it has answered for silence_ns,
 * as this file has seen the answers arrive; none goes on when it has heard of a later one; when all
 * is well, the first serves, no other does, and every agent is attached to it.
 *
 * Two halves of a network may both have a server that serves: what is demanded of all (I1 to I10)
 * is demanded of these too, but not that they list the same or keep what is retained: check_retain
 * looks only where nothing like it happens.
 */
#include <inttypes.h>
#include <string.h>

#include "tests/sim/check.h"

/* Of a stop so much, by the server's own clock, may be taken for time that passed. */
#define UNNOTICED_NS (1100 * MS)

static struct {
	struct {
		int64_t began_ns, heard_ns[SERVERS_MAX]; /* without the time it was stopped     */
		uint32_t stops;                          /* as many at began_ns                 */
		uint32_t heard_stops[SERVERS_MAX];
	} servers[SERVERS_MAX];
	int64_t silence_ns;
	bool two_down, two_served; /* at a time */
} record;

static int64_t
running_ns(const struct process *process)
{
	return world.now_ns - process->stood_ns;
}

void
check_standby_start(void)
{
	struct refsrv_config config;

	memset(&record, 0, sizeof(record));
	refsrv_config_default(&config);
	record.silence_ns = config.silence_ns;
}

void
check_server_begins(const struct srv *srv)
{
	uint32_t i = srv->process.index;

	memset(&record.servers[i], 0, sizeof(record.servers[i]));
	record.servers[i].began_ns = running_ns(&srv->process);
	record.servers[i].stops = srv->process.stops;
	for (uint32_t k = 0; k < SERVERS_MAX; k++) {
		record.servers[i].heard_ns[k] = record.servers[i].began_ns;
		record.servers[i].heard_stops[k] = srv->process.stops;
	}
}

void
check_server_serves(const struct srv *srv)
{
	uint32_t i = srv->process.index;

	for (uint32_t k = 0; k < peer_count(); k++)
		record.two_served = record.two_served || (k != i && world.servers[k].serving);
	for (uint32_t k = 0; k < i && peer_count() > 0; k++) {
		int64_t silent_ns = running_ns(&srv->process) - record.servers[i].heard_ns[k];
		int64_t stops = srv->process.stops - record.servers[i].heard_stops[k];
		int64_t least_ns =
			(record.silence_ns - stops * UNNOTICED_NS) / srv->process.permille * 1000 -
			MS;
		if (silent_ns < least_ns)
			sim_fail("I19",
				"server %u begins to serve, and server %u was silent for %" PRId64
				" ms only, of at least %" PRId64 " ms",
				i, k, silent_ns / MS, least_ns / MS);
	}
}

void
check_answered(struct srv *srv, uint32_t peer, const struct ctl_hello_reply *reply)
{
	uint32_t i = srv->process.index;

	record.servers[i].heard_ns[peer] = running_ns(&srv->process);
	record.servers[i].heard_stops[peer] = srv->process.stops;
	if (!srv->serving || peer == i)
		return;
	const struct ctl_inspection *now = refsrv_inspect(srv->core, process_now(&srv->process));
	if (now->epoch == 0 && peer < i)
		sim_fail("I19", "server %u serves, and has just heard of server %u", i, peer);
	if (reply->serving && reply->epoch > 0 &&
		(reply->epoch > now->epoch ||
			(reply->epoch == now->epoch && reply->server_inc > srv->inc)))
		sim_fail("I19",
			"server %u goes on with epoch %u, and has heard that server %u has %u", i,
			now->epoch, peer, reply->epoch);
}

void
check_server_down(void)
{
	uint32_t down = 0;

	for (uint32_t i = 0; i < peer_count(); i++)
		down += !world.servers[i].process.alive || world.servers[i].process.paused;
	record.two_down = record.two_down || down > 1;
}

/*
 * While an agent waits for a server that says nothing, another that goes on has its connection end
 * and nothing follow: it takes it for dead. With one server down at a time that does not happen.
 * Two that cannot see each other may each have a part of a group, which they take for the whole.
 */
bool
check_one_led(void)
{
	return !record.two_down && !record.two_served;
}

void
check_attached(struct host *host, uint32_t epoch)
{
	if (epoch < host->epoch)
		sim_fail("I11", "host %u is attached with epoch %u, and has accepted %u before",
			host->process.index, epoch, host->epoch);
	host->epoch = epoch;
}

void
check_one_serves(void)
{
	const struct srv *first = &world.servers[0];

	for (uint32_t i = 0; i < peer_count(); i++) {
		if (world.servers[i].serving != (i == 0))
			sim_fail("I19", "all is well, and server %u %s", i,
				i == 0 ? "does not serve" : "serves");
	}
	for (uint32_t i = 0; i < world.options.hosts && peer_count() > 0; i++) {
		const struct host *host = &world.hosts[i];
		if (!host->attached || host->server_inc != first->inc)
			sim_fail("I19", "all is well, and host %u is not attached to server 0", i);
	}
}
