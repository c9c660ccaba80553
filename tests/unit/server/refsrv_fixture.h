/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv_fixture - the world of a test of the reference server, its agents, and the exchanges that
 * are made in many of its cases. Whoever begins a suite names one setup and `teardown`.
 */
#ifndef TH_TESTS_UNIT_SERVER_REFSRV_FIXTURE_H
#define TH_TESTS_UNIT_SERVER_REFSRV_FIXTURE_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/core/refsrv_world.h"

static struct world w;
static uint32_t a __attribute__((unused)), b __attribute__((unused)), c __attribute__((unused));

/* The first so many of a to c. */
static inline void
new_agents(uint32_t count)
{
	uint32_t *const names[] = {&a, &b, &c};

	for (uint32_t i = 0; i < count; i++)
		*names[i] = world_agent(&w);
}

static inline void
setup_empty(void)
{
	world_init(&w, NULL);
}

static inline void
setup_two(void)
{
	world_init(&w, NULL);
	new_agents(2);
}

static inline void
setup_three(void)
{
	world_init(&w, NULL);
	new_agents(3);
}

/* Three agents keep copies in their own memory. */
static inline void
setup_keeping(void)
{
	world_init(&w, NULL);
	w.offload_bytes = UINT64_MAX;
	new_agents(3);
}

/* They do, and what they open retains the latest. */
static inline void
setup_retaining(void)
{
	setup_keeping();
	w.retain = "latest";
}

static inline void
teardown(void)
{
	world_fini(&w);
}

/* The reply to the last request has this in its sentence. */
static inline bool
says(const char *words)
{
	return strstr(w.reply.text, words) != NULL;
}

/* It does not beat any more, and its connection is gone. */
static inline void
dies(uint32_t agent)
{
	w.agents[agent].silent = true;
	world_gone(&w, agent);
}

/* This event has come for m. */
static inline struct ctl_event
taken(const struct world_member *m, enum ctl_event_kind kind)
{
	struct ctl_event event;

	cr_assert(world_take(&w, m->agent, kind, m->sid, &event), "event %d", (int)kind);
	return event;
}

/* The agent is asked for memory, and the copy is made. */
static inline struct world_member
brought(uint32_t agent)
{
	struct world_member o = world_accepts(&w, agent);
	world_finish(&w, &o, world_filling(&w, &o).leg);
	return o;
}

/* An operator drains this node, or takes that back. */
static inline void
operator_says(enum ctl_admin_verb verb, const char *node)
{
	struct ctl_request request = {.kind = CTL_ADMIN};

	request.u.admin.verb = verb;
	snprintf(request.u.admin.node, sizeof(request.u.admin.node), "%s", node);
	cr_assert_eq(world_request(&w, a, &request), 0, "%s", w.reply.text);
}

/* It is released: its session is closed, its part drained. */
static inline void
released(const struct world_member *m)
{
	struct ctl_event event = taken(m, CTL_EV_RELEASE);
	cr_assert_eq(event.u.release.shard, m->shard);
	cr_assert_eq(world_close(&w, m, false), 0);
	if (world_has(&w, m->agent, CTL_EV_DRAIN, m->sid))
		world_drained(&w, m);
}

/* Its last call has ended well. */
static inline void
succeeded(const struct world_member *m)
{
	struct ctl_ev_outcome end = world_outcome(&w, m);

	cr_assert_eq(end.code, 0, "%s", end.text);
}

/* Its leg ends well, and so does its call. */
static inline void
finished(const struct world_member *m, uint64_t leg)
{
	world_finish(&w, m, leg);
	succeeded(m);
}

static inline void
unpublish(struct world_member *m)
{
	world_call(&w, m, CTL_OP_UNPUBLISH, "", TH_FOREVER);
	world_drained(&w, m);
	succeeded(m);
}

/* "none" when the server does not know its node. */
static inline const char *
node_state(uint32_t agent)
{
	const struct ctl_inspection *all = refsrv_inspect(w.server, w.now_ns);

	for (uint32_t i = 0; i < all->num_nodes; i++) {
		if (strcmp(all->nodes[i].node, w.agents[agent].node) == 0)
			return all->nodes[i].state;
	}
	return "none";
}

static inline int
beat(uint32_t agent, uint64_t leg, uint32_t chunks)
{
	struct ctl_leg_progress progress = {.leg = leg, .chunks_verified = chunks};
	struct ctl_request request = {.kind = CTL_BEAT, .u.beat = {1, &progress}};

	return world_request(&w, agent, &request);
}

/* The members of a group of two shards. */
static inline void
call_both(struct world_member m[2], enum ctl_op_kind kind, const char *spec)
{
	for (int i = 0; i < 2; i++)
		world_call(&w, &m[i], kind, spec, TH_FOREVER);
}

static inline void
prepared_both(const struct world_member m[2])
{
	for (int i = 0; i < 2; i++)
		cr_assert_eq(world_prepared(&w, &m[i], 0), 0);
}

static inline void
go_both(const struct world_member m[2], struct ctl_grant ret_grants[2])
{
	for (int i = 0; i < 2; i++)
		ret_grants[i] = world_go(&w, &m[i]);
}

static inline void
succeeded_both(const struct world_member m[2])
{
	for (int i = 0; i < 2; i++)
		succeeded(&m[i]);
}

/* A group of two shards that has called; their grants. */
static inline void
begin_both(struct world_member m[2], const char *spec, struct ctl_grant ret_grants[2])
{
	call_both(m, CTL_OP_REPLICATE, spec);
	prepared_both(m);
	go_both(m, ret_grants);
}

static inline struct world_member
single(uint32_t agent, const char *replica)
{
	return world_member(&w, agent, replica, 0, 1);
}

static inline uint32_t
num_members(void)
{
	return refsrv_inspect(w.server, w.now_ns)->num_members;
}

/* Of model "m", as this agent is told. */
static inline uint32_t
num_versions(uint32_t agent)
{
	cr_assert_eq(world_list(&w, agent, "m"), 0);
	return w.reply.u.list.num_versions;
}

#endif
