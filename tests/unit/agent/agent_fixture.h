/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_fixture - the core of an agent at a server that does what a test says, and what many cases
 * do with session 1 of it. Whoever begins a suite names one setup and `teardown`.
 */
#ifndef TH_TESTS_UNIT_AGENT_AGENT_FIXTURE_H
#define TH_TESTS_UNIT_AGENT_AGENT_FIXTURE_H

#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/core/agent_rig.h"

static struct rig rig;
/* Of session 1, and of what it holds. */
static uint64_t sid __attribute__((unused)), gen __attribute__((unused));

static inline void
setup_attached(void)
{
	rig_init(&rig);
	rig_attach(&rig);
	rig_clear(&rig);
}

/* Session 1 is registered. */
static inline void
setup_ready(void)
{
	rig_init(&rig);
	rig_attach(&rig);
	sid = rig_ready(&rig, 1);
	rig_clear(&rig);
}

/* Session 1 holds version 3. */
static inline void
setup_holding(void)
{
	setup_ready();
	gen = rig_hold(&rig, 1, sid, "3");
}

static inline void
teardown(void)
{
	rig_fini(&rig);
}

/* A call of session 1. */
static inline void
submit(uint32_t slot, uint32_t kind, int64_t timeout_ns)
{
	rig_submit(&rig, 1, slot, kind, kind == CTL_OP_PUBLISH ? "9" : "latest", timeout_ns);
}

/* What it has come to. */
static inline int
code_of(uint32_t slot)
{
	return rig_complete(&rig, 1, slot)->u.complete.code;
}

static inline void
worker_closes(uint64_t session, bool abandon, int64_t timeout_ns)
{
	struct agent_event event = {.kind = AGENT_EV_CLOSE, .session = session};

	event.u.close.abandon = abandon;
	event.u.close.timeout_ns = timeout_ns;
	rig_step(&rig, &event);
}

/* What the last worker that closed was told. */
static inline int
closed(void)
{
	return rig_last(&rig, AGENT_CLOSED)->u.answer.code;
}

#endif
