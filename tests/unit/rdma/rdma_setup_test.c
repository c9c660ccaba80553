/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the threads that connect queue pairs: whose turn it is, and legs beside one whose peer
 * nobody finds.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/clock.h"
#include "tests/support/rdma/fake_rdma.h"
#include "tests/support/tally.h"
#include "tests/support/transport/transport_pair.h"
#include "transport/loop/mover_loop.h"
#include "transport/rdma/engine/queue_setup.h"
#include "transport/rdma/leg/rail_pairs.h"
#include "transport/rdma/rdma.h"
#include "transport/transport_own.h"

#define LONG_NS INT64_C(60000000000)
#define SOON_NS INT64_C(20000000)
#define LEGS_MAX 3u

/* ---- turns -------------------------------------------------------------------------------- */

struct job {
	struct setup_turn turn;
	int64_t lasts_ns;
	bool held; /* until it is let go; guarded by the tally, as all that follows */
	bool late;
	uint32_t begun, over;
	uint32_t place; /* in which it began */
};

static struct tally tally;
static struct setup *setup;
static uint32_t num_begun;

static void
run_job(struct setup_turn *turn, bool late)
{
	struct job *job = loop_container(turn, struct job, turn);
	pthread_mutex_lock(&tally.lock);
	job->late = late;
	job->place = ++num_begun;
	job->begun = 1;
	pthread_cond_broadcast(&tally.moved);
	while (job->held && !late)
		pthread_cond_wait(&tally.moved, &tally.lock);
	pthread_mutex_unlock(&tally.lock);
	(void)nanosleep(&(struct timespec){.tv_nsec = job->lasts_ns}, NULL);
	tally_add(&tally, &job->over);
}

static void
open_setup(void)
{
	tally_init(&tally);
	cr_assert_eq(setup_new(&setup), 0);
}

static void
close_setup(void)
{
	setup_free(setup);
	tally_fini(&tally);
}

static void
post(struct job *job, const char *peer, int64_t wait_ns)
{
	job->turn.run = run_job;
	setup_post(setup, &job->turn, peer, wait_ns);
}

/* It runs, and does not end. */
static void
post_held(struct job *job, const char *peer)
{
	job->held = true;
	post(job, peer, LONG_NS);
	tally_wait(&tally, &job->begun, 1);
	cr_assert(!job->late);
}

static void
let_go(struct job *job)
{
	pthread_mutex_lock(&tally.lock);
	job->held = false;
	pthread_cond_broadcast(&tally.moved);
	pthread_mutex_unlock(&tally.lock);
}

static void
wait_over(struct job *job)
{
	tally_wait(&tally, &job->over, 1);
}

static void
finish(struct job *jobs, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		let_go(&jobs[i]);
	for (uint32_t i = 0; i < count; i++)
		wait_over(&jobs[i]);
}

Test(rdma_setup, one_host__two_turns_at_a_time_whatever_its_port)
{
	struct job held[2] = {0}, third = {0}, other = {0};
	open_setup();
	post_held(&held[0], "a:1");
	post_held(&held[1], "a:2");
	post(&third, "a:3", LONG_NS);
	post(&other, "b:1", LONG_NS);
	wait_over(&other);
	pthread_mutex_lock(&tally.lock);
	cr_assert_eq(third.begun, 0);
	pthread_mutex_unlock(&tally.lock);
	let_go(&held[0]);
	wait_over(&third);
	cr_assert(!third.late && !other.late);
	finish(held, 2);
	close_setup();
}

Test(rdma_setup, turn_that_does_not_come_in_time__is_told_so)
{
	struct job held[2] = {0}, third = {0};
	open_setup();
	post_held(&held[0], "[fd00::1]:1");
	post_held(&held[1], "[fd00::1]:1");
	post(&third, "[fd00::1]:1", SOON_NS);
	wait_over(&third);
	cr_assert(third.late);
	finish(held, 2);
	close_setup();
}

Test(rdma_setup, leg_that_ends__its_turn_waits_no_longer)
{
	struct job held[2] = {0}, third = {0};
	open_setup();
	post_held(&held[0], "a:1");
	post_held(&held[1], "a:1");
	post(&third, "a:1", LONG_NS);
	setup_hurry(setup, &held[0].turn); /* nothing: it runs */
	setup_hurry(setup, &third.turn);
	wait_over(&third);
	cr_assert(third.late);
	finish(held, 2);
	close_setup();
}

/* As the machine may be busy, a turn that is to be short may not be: then once more. */
Test(rdma_setup, silent_hosts__leave_a_thread_to_those_who_answered)
{
	bool done = false;
	open_setup();
	for (uint32_t tries = 0; !done && tries < 20; tries++) {
		struct job held[3] = {0}, known[4] = {0}, unknown = {0};
		char silent[3][32];
		for (uint32_t i = 0; i < 3; i++) {
			post(&known[i], "known:1", LONG_NS);
			wait_over(&known[i]);
		}
		for (uint32_t i = 0; i < 3; i++) {
			snprintf(silent[i], sizeof(silent[i]), "%u.%u:1", tries, i);
			post_held(&held[i], silent[i]);
		}
		post(&unknown, "unknown:1", SOON_NS);
		wait_over(&unknown);
		cr_assert(unknown.late);
		post(&known[3], "known:1", SOON_NS);
		wait_over(&known[3]);
		done = !known[3].late;
		finish(held, 3);
	}
	cr_assert(done);
	close_setup();
}

Test(rdma_setup, host_whose_turns_took_least__goes_first)
{
	struct job slow[2] = {{.lasts_ns = 600000000}}, held[3] = {0}, unknown = {0};
	open_setup();
	post(&slow[0], "slow:1", LONG_NS);
	wait_over(&slow[0]);
	post_held(&held[0], "a:1");
	post_held(&held[1], "a:1");
	post_held(&held[2], "b:1");
	post(&slow[1], "slow:1", LONG_NS);
	post(&unknown, "unknown:1", LONG_NS);
	let_go(&held[2]);
	wait_over(&slow[1]);
	wait_over(&unknown);
	cr_assert(!slow[1].late && !unknown.late);
	cr_assert_lt(unknown.place, slow[1].place);
	finish(held, 3);
	close_setup();
}

/* More than are remembered. */
Test(rdma_setup, many_hosts__each_has_its_turn)
{
	struct job *jobs = calloc(1000, sizeof(*jobs));
	open_setup();
	for (uint32_t i = 0; i < 1000; i++) {
		char peer[32];
		snprintf(peer, sizeof(peer), "10.0.%u.%u:7", i / 256, i % 256);
		post(&jobs[i], peer, LONG_NS);
	}
	finish(jobs, 1000);
	close_setup();
	free(jobs);
}

/* ---- legs --------------------------------------------------------------------------------- */

static const uint64_t eight_chunks[] = {32 * MIB};

struct legs {
	struct pair pair;
	uint32_t count;
	struct rig_shard readers[LEGS_MAX];
	struct xfer_part *to[LEGS_MAX];
};

/* Legs from one source to one reader. A busy machine is no reason to give up an offer. */
static struct legs *
legs_new(uint32_t count, uint32_t rails)
{
	struct legs *legs = calloc(1, sizeof(*legs));
	struct pair *p = &legs->pair;
	legs->count = count;
	p->rig.num_rails = rails;
	p->rig.hello_ns = CALM_NS;
	p->source_agent = rig_add_agent(&p->rig, CALM_NS, 0);
	p->reader_agent = rig_add_agent(&p->rig, CALM_NS, 0);
	rig_shard_init(&p->source, eight_chunks, 1, 42);
	rig_register(p->source_agent, &p->source);
	p->from = rig_part(&p->source, true);
	rig_add_digests(p->from);
	xfer_part_advance(p->from, 8);
	for (uint32_t i = 0; i < count; i++) {
		rig_shard_init(&legs->readers[i], eight_chunks, 1, 0);
		rig_register(p->reader_agent, &legs->readers[i]);
		legs->to[i] = rig_part(&legs->readers[i], true);
	}
	return legs;
}

static void
legs_finish(struct legs *legs)
{
	struct pair *p = &legs->pair;
	rig_halt(&p->rig);
	xfer_part_release(p->from);
	for (uint32_t i = 0; i < legs->count; i++)
		xfer_part_release(legs->to[i]);
	rig_fini(&p->rig);
	rig_shard_fini(&p->source);
	for (uint32_t i = 0; i < legs->count; i++)
		rig_shard_fini(&legs->readers[i]);
	free(legs);
}

static void
pull(struct legs *legs, uint32_t leg)
{
	pair_move(&legs->pair, MODE_RDMA, leg, legs->pair.from, legs->to[leg - 1]);
}

static void
expect(struct legs *legs, uint32_t leg, const char *transport, const char *why)
{
	const struct transport_event *done =
		rig_wait(&legs->pair.rig, legs->pair.reader_agent, TRANSPORT_DONE, leg);
	cr_assert_str_eq(done->transport, transport, "leg %u: '%s'", leg, done->fallback);
	cr_assert(strstr(done->fallback, why), "leg %u: '%s'", leg, done->fallback);
	cr_assert(rig_shards_equal(&legs->pair.source, &legs->readers[leg - 1]));
}

/* Connecting, by that agent, which does not come to an end. */
static void
pull_held(struct legs *legs, uint32_t leg, const struct rig_agent *agent, uint32_t held)
{
	int64_t until_ns = th_now_ns() + LONG_NS;
	struct fake_counters counters;
	pull(legs, leg);
	do {
		cr_assert_lt(th_now_ns(), until_ns);
		rig_pump(&legs->pair.rig, 1);
		fake_rdma_counters(agent->devices[0], &counters);
	} while (counters.connects_held < held);
}

Test(rdma_setup_leg, peer_that_nobody_finds__others_connect_meanwhile)
{
	for (uint32_t side = 0; side < 2; side++) {
		struct legs *legs = legs_new(2, 1);
		struct rig_agent *agent = side ? legs->pair.reader_agent : legs->pair.source_agent;
		fake_rdma_hold_connects(agent->devices[0], 1);
		pull_held(legs, 1, agent, 1);
		pull(legs, 2);
		expect(legs, 2, "rdma", "");
		cr_assert_null(rig_find(legs->pair.reader_agent, TRANSPORT_DONE, 1));
		fake_rdma_hold_connects(agent->devices[0], 0);
		expect(legs, 1, "rdma", "");
		legs_finish(legs);
	}
}

Test(rdma_setup_leg, source_that_is_busy_with_that_host__tcp_and_why)
{
	struct legs *legs = legs_new(3, 1);
	struct rig_agent *agent = legs->pair.source_agent;
	fake_rdma_hold_connects(agent->devices[0], 2);
	pull_held(legs, 1, agent, 1);
	pull_held(legs, 2, agent, 2);
	pull(legs, 3);
	expect(legs, 3, "tcp", "the source says: its agent is busy connecting to hosts");
	fake_rdma_hold_connects(agent->devices[0], 0);
	expect(legs, 1, "rdma", "");
	expect(legs, 2, "rdma", "");
	legs_finish(legs);
}

/* The next leg does not try it again. */
Test(rdma_setup_leg, pair_of_rails_that_cannot_be_connected__is_left_alone)
{
	for (uint32_t side = 0; side < 2; side++) {
		struct legs *legs = legs_new(2, 2);
		struct pair *p = &legs->pair;
		struct rig_agent *agent = side ? p->reader_agent : p->source_agent;
		struct path paths[8];
		uint32_t paused = 0;
		fake_rdma_refuse(agent->devices[0], FAKE_QP_CONNECT, 1, -ETIMEDOUT);
		pull(legs, 1);
		expect(legs, 1, "rdma", "");
		uint32_t count = paths_list(rdma_paths(p->reader_agent->transport->rdma), paths, 8);
		for (uint32_t i = 0; i < count; i++) {
			paused += paths[i].paused_until_ns > th_now_ns();
			cr_assert(paths[i].failures == 0 || strstr(paths[i].why, "connect"), "%s",
				paths[i].why);
		}
		cr_assert_eq(paused, 1);
		pull(legs, 2);
		expect(legs, 2, "rdma", "");
		legs_finish(legs);
	}
}
