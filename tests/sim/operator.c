/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operator - what an operator does: drains nodes, waits until they are empty, switches some off or
 * takes the drain back; evicts replicas. When the faults end, all is taken back. And says go, to
 * whatever server there is, mostly for the latest version, and to a new one for the oldest.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/check.h"
#include "tests/sim/sim.h"

#define LOOK_NS (200 * MS)
/* An agent that comes back late brings a drain along that its next server has not heard of. */
#define UNDRAINS 12u
#define UNDRAIN_NS SEC
#define NEW_NS (5 * SEC) /* since it was asked first */

struct draining { /* a node that the operator watches */
	struct task task;
	struct host *host;
	int64_t until_ns;
	bool switch_off;
};

static struct {
	uint64_t inc;
	int64_t ns;
} heard[SERVERS_MAX]; /* each server, since when */

static int
ask(struct srv *srv, const struct ctl_admin *admin, struct ctl_admin_reply *ret_reply)
{
	if (!srv->process.alive || srv->process.paused)
		return TH_E_NO_SERVER;
	return srv_admin(srv, admin, ret_reply);
}

static int
ask_of_node(struct host *host, uint32_t verb, struct ctl_admin_reply *ret_reply)
{
	struct srv *srv = &world.servers[host->server];
	struct ctl_admin admin = {.verb = verb};

	snprintf(admin.node, sizeof(admin.node), "node%u", host->process.index);
	int rc = ask(srv, &admin, ret_reply);
	if (rc == 0 && strcmp(ret_reply->state, "empty") == 0 &&
		strncmp(ret_reply->text, "no agent of node", 16) != 0)
		check_empty(srv, host);
	return rc;
}

static void
watch(struct task *task)
{
	const struct draining *mine = (const struct draining *)task;
	struct host *host = mine->host;
	struct ctl_admin_reply reply;

	if (world.calm)
		return;
	if (world.now_ns >= mine->until_ns) {
		TRACE("the operator takes the drain of host # back", host->process.index);
		ask_of_node(host, CTL_ADMIN_UNDRAIN, &reply);
		return;
	}
	if (ask_of_node(host, CTL_ADMIN_DRAIN, &reply) == 0 && strcmp(reply.state, "empty") == 0 &&
		mine->switch_off && host->process.alive) {
		TRACE("the operator switches host # off", host->process.index);
		fault_machine_ends(host);
	}
	struct draining *again = task_new(sizeof(*again), watch, NULL);
	again->host = host;
	again->until_ns = mine->until_ns;
	again->switch_off = mine->switch_off;
	task_in(&again->task, LOOK_NS);
}

void
operator_drains(struct host *host)
{
	struct draining *draining = task_new(sizeof(*draining), watch, NULL);

	TRACE("the operator drains host #", host->process.index);
	draining->host = host;
	draining->until_ns = world.now_ns + between(RNG_FAULT, 100 * MS, 15 * SEC);
	draining->switch_off = percent(RNG_FAULT, 40) && !world.options.quiet;
	task_in(&draining->task, 0);
}

void
operator_evicts(const struct group *group)
{
	struct ctl_admin admin = {.verb = CTL_ADMIN_EVICT};
	struct ctl_admin_reply reply;

	admin.force = percent(RNG_FAULT, 40);
	snprintf(admin.model, sizeof(admin.model), "model%u", group->model);
	snprintf(admin.replica, sizeof(admin.replica), "%s", group->replica);
	TRACE("the operator evicts group #, force #", group->index, admin.force);
	ask(&world.servers[chance(RNG_FAULT, world.options.servers)], &admin, &reply);
}

/* Of what workers of the model hold; none: nobody holds anything. */
static struct th_version
oldest_held(uint32_t model)
{
	struct th_version oldest = {.version = TH_NO_VERSION};

	for (uint32_t i = 0; i < world.options.groups; i++) {
		struct th_version held = world.groups[i].workers[0].line.held;
		if (world.groups[i].model == model && !th_version_none(held) &&
			(th_version_none(oldest) || th_version_compare(held, oldest) < 0))
			oldest = held;
	}
	return oldest;
}

/* Somebody who comes late asks it first: whatever it answers it has heard from agents alone. */
static bool
is_new(const struct srv *srv)
{
	uint32_t i = srv->process.index;

	if (heard[i].inc != srv->inc) {
		heard[i].inc = srv->inc;
		heard[i].ns = world.now_ns;
	}
	return world.now_ns < heard[i].ns + NEW_NS;
}

static void
say_go(struct task *task)
{
	uint32_t model = (uint32_t)chance(RNG_FOLLOW, world.options.models);
	struct srv *srv = &world.servers[chance(RNG_FOLLOW, world.options.servers)];
	struct ctl_admin admin = {.verb = CTL_ADMIN_GO, .spec = "latest"};
	struct ctl_admin_reply reply;

	(void)task;
	snprintf(admin.model, sizeof(admin.model), "model%u", model);
	/* For an older one, as by somebody who comes late: it takes nothing back. */
	if (percent(RNG_FOLLOW, 50))
		snprintf(admin.spec, sizeof(admin.spec), "%" PRIu64,
			world.last_version[model] -
				chance(RNG_FOLLOW, th_min_u64(world.last_version[model], 3) + 1));
	struct th_version oldest = oldest_held(model);
	if (is_new(srv) && !th_version_none(oldest))
		snprintf(admin.spec, sizeof(admin.spec), "%" PRIu64, oldest.version);
	if (ask(srv, &admin, &reply) == 0) {
		TRACE("go is said for version #", reply.go.version);
		check_follow_said(srv, model, reply.go);
	}
	if (!world.closing)
		task_in(task_new(sizeof(struct task), say_go, NULL),
			between(RNG_FOLLOW, 0, 2 * world.options.go_ns));
}

void
operator_start(void)
{
	memset(heard, 0, sizeof(heard));
	if (world.options.go_ns > 0)
		task_in(task_new(sizeof(struct task), say_go, NULL), world.options.go_ns);
}

struct undraining {
	struct task task;
	uint32_t times;
};

static void
undrain(struct task *task)
{
	uint32_t times = ((struct undraining *)task)->times;
	struct ctl_admin_reply reply;

	for (uint32_t i = 0; i < world.options.hosts; i++)
		ask_of_node(&world.hosts[i], CTL_ADMIN_UNDRAIN, &reply);
	if (times == 1)
		return;
	struct undraining *again = task_new(sizeof(*again), undrain, NULL);
	again->times = times - 1;
	task_in(&again->task, UNDRAIN_NS);
}

void
operator_ends(void)
{
	struct undraining *first = task_new(sizeof(*first), undrain, NULL);

	first->times = UNDRAINS;
	task_in(&first->task, 0);
}
