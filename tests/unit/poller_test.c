/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of transport/rdma/poller: the thread around a rail; fake devices without virtual time. */
#include "transport/rdma/poller.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/clock.h"
#include "tests/support/fake_rdma.h"

#define MIB (UINT64_C(1) << 20)
#define CHUNKS 16u
#define CHUNK_BYTES (1u << 20)
#define BYTES ((uint64_t)CHUNKS * CHUNK_BYTES)
#define PATIENCE_NS INT64_C(60000000000)

struct setup {
	struct fake_rdma *fake;
	struct verbs verbs[2]; /* of the reader, of the source */
	struct verbs_device *devices[2];
	struct verbs_mr mrs[2];
	uint8_t *memory[2];
	struct verbs_cq *source_cq;
	struct loop *keeper;
	struct poller *poller;
	pthread_mutex_t lock;
	/* Guarded by lock. */
	uint32_t limit, next, num_landed, num_back, broken, closed;
	bool landed[CHUNKS];
	enum verbs_status status;
};

/* ---- a user -------------------------------------------------------------------------------- */

static bool
take(void *arg, uint32_t *ret_chunk)
{
	struct setup *s = arg;
	pthread_mutex_lock(&s->lock);
	while (s->next < CHUNKS && s->landed[s->next])
		s->next++;
	bool any = s->next < s->limit;
	if (any)
		*ret_chunk = s->next++;
	pthread_mutex_unlock(&s->lock);
	return any;
}

static uint32_t
pieces(void *arg, uint32_t chunk, struct lane_piece *ret_pieces, uint32_t pieces_max)
{
	const struct setup *s = arg;
	cr_assert_geq(pieces_max, 1);
	ret_pieces[0] = (struct lane_piece){
		.local = (uint64_t)chunk * CHUNK_BYTES,
		.remote = (uint64_t)chunk * CHUNK_BYTES,
		.lkey = s->mrs[0].lkey,
		.rkey = s->mrs[1].rkey,
		.bytes = CHUNK_BYTES,
	};
	return 1;
}

static void
landed(void *arg, uint32_t chunk)
{
	struct setup *s = arg;
	pthread_mutex_lock(&s->lock);
	s->landed[chunk] = true;
	s->num_landed++;
	pthread_mutex_unlock(&s->lock);
}

static void
give_back(void *arg, uint32_t chunk)
{
	struct setup *s = arg;
	pthread_mutex_lock(&s->lock);
	s->next = th_min_u32(s->next, chunk);
	s->num_back++;
	pthread_mutex_unlock(&s->lock);
}

static void
broken(void *arg, enum verbs_status status, const char *why)
{
	struct setup *s = arg;
	cr_assert_not_null(why);
	pthread_mutex_lock(&s->lock);
	s->status = status;
	s->broken++;
	pthread_mutex_unlock(&s->lock);
}

static void
closed(void *arg)
{
	struct setup *s = arg;
	pthread_mutex_lock(&s->lock);
	s->closed++;
	pthread_mutex_unlock(&s->lock);
}

static const struct lane_user user = {.take = take,
	.pieces = pieces,
	.landed = landed,
	.give_back = give_back,
	.broken = broken,
	.closed = closed};

/* ---- around it ----------------------------------------------------------------------------- */

static void
start(struct setup *s)
{
	*s = (struct setup){.fake = fake_rdma_new(false), .limit = CHUNKS};
	pthread_mutex_init(&s->lock, NULL);
	for (uint32_t i = 0; i < 2; i++) {
		struct fake_host *host = fake_rdma_host(s->fake);
		s->verbs[i] = fake_rdma_verbs(host);
		fake_rdma_device(host, NULL);
		cr_assert_eq(s->verbs[i].ops->open(host, &s->devices[i], 1), 1);
		s->memory[i] = calloc(1, BYTES);
		cr_assert_not_null(s->memory[i]);
		cr_assert_eq(s->verbs[i].ops->reg(s->devices[i], s->memory[i], BYTES, 0,
				     i ? VERBS_REMOTE_READ : VERBS_LOCAL_WRITE, &s->mrs[i]),
			0);
	}
	for (uint64_t i = 0; i < BYTES; i++)
		s->memory[1][i] = (uint8_t)(i + i / 512);
	cr_assert_eq(s->verbs[1].ops->cq_new(s->devices[1], 16, &s->source_cq), 0);
	cr_assert_eq(loop_new("keeper", LOOP_EPOLL, NULL, NULL, &s->keeper), 0);
	struct poller_config config = {.name = "th-poll",
		.verbs = s->verbs[0],
		.device = s->devices[0],
		.keeper = s->keeper};
	cr_assert_eq(poller_new(&config, &s->poller), 0);
}

static void
finish(struct setup *s)
{
	loop_free(s->keeper);
	poller_free(s->poller);
	s->verbs[1].ops->cq_free(s->source_cq);
	for (uint32_t i = 0; i < 2; i++) {
		cr_assert_eq(s->verbs[i].ops->dereg(s->devices[i], &s->mrs[i]), 0);
		s->verbs[i].ops->close(s->devices[i]);
		free(s->memory[i]);
	}
	fake_rdma_free(s->fake);
	pthread_mutex_destroy(&s->lock);
}

struct served {
	struct verbs_qp *qps[LANE_QPS];
};

static struct lane *
open_lane(struct setup *s, struct served *ret_served)
{
	struct lane_config config = {
		.user = &user, .arg = s, .num_qps = LANE_QPS, .depth = LANE_DEPTH};
	struct verbs_path paths[2] = {0};
	for (uint32_t i = 0; i < LANE_QPS; i++) {
		struct verbs_qp *qps[2];
		for (uint32_t end = 0; end < 2; end++) {
			struct verbs_gid gid;
			struct verbs_path *path = &paths[end];
			const struct verbs_ops *ops = s->verbs[end].ops;
			struct verbs_cq *cq = end ? s->source_cq : poller_cq(s->poller);
			cr_assert_eq(ops->gids(s->devices[end], 1, &gid, 1), 1);
			*path = (struct verbs_path){.port = 1,
				.global = true,
				.mtu_bytes = 1024,
				.reads_out = 16,
				.reads_in = 16,
				.timeout = 16,
				.retries = 7};
			memcpy(path->gid, gid.raw, sizeof(gid.raw));
			cr_assert_eq(
				ops->qp_new(s->devices[end], cq, LANE_DEPTH, &qps[end], &path->qpn),
				0);
		}
		cr_assert_eq(s->verbs[0].ops->qp_connect(qps[0], &paths[1]), 0);
		cr_assert_eq(s->verbs[1].ops->qp_connect(qps[1], &paths[0]), 0);
		config.qps[i] = qps[0];
		ret_served->qps[i] = qps[1];
	}
	struct lane *lane;
	cr_assert_eq(lane_new(poller_rail(s->poller), &config, &lane), 0);
	lane_start(lane);
	return lane;
}

static void
free_served(struct setup *s, struct served *served)
{
	for (uint32_t i = 0; i < LANE_QPS; i++)
		cr_assert_eq(s->verbs[1].ops->qp_free(served->qps[i]), 0);
}

/* Until the number is that; a busy machine takes its time. */
static void
wait_for(struct setup *s, const uint32_t *number, uint32_t value)
{
	int64_t deadline_ns = th_now_ns() + PATIENCE_NS;
	for (;;) {
		pthread_mutex_lock(&s->lock);
		uint32_t now = *number;
		pthread_mutex_unlock(&s->lock);
		if (now == value)
			return;
		cr_assert_lt(th_now_ns(), deadline_ns);
		nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
	}
}

/* Until it has gone to sleep once more than before. */
static void
wait_asleep(struct setup *s, uint64_t before)
{
	struct poller_counters counters;
	int64_t deadline_ns = th_now_ns() + PATIENCE_NS;
	do {
		cr_assert_lt(th_now_ns(), deadline_ns);
		nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
		poller_counters(s->poller, &counters);
	} while (counters.sleeps <= before);
}

static uint64_t
sleeps(struct setup *s)
{
	struct poller_counters counters;
	poller_counters(s->poller, &counters);
	return counters.sleeps;
}

static void
push(struct setup *s, struct lane *lane, uint32_t limit)
{
	pthread_mutex_lock(&s->lock);
	s->limit = limit;
	pthread_mutex_unlock(&s->lock);
	lane_kick(lane);
}

Test(poller, a_leg__all_bytes_and_nothing_left)
{
	struct setup s;
	struct served served;
	struct lane_counters counters;
	start(&s);
	struct lane *lane = open_lane(&s, &served);
	wait_for(&s, &s.num_landed, CHUNKS);
	cr_assert_eq(memcmp(s.memory[0], s.memory[1], BYTES), 0);
	lane_counters(lane, &counters);
	cr_assert_eq(counters.bytes, BYTES);
	cr_assert_eq(counters.doorbells, BYTES / MIB);
	lane_close(lane);
	wait_for(&s, &s.closed, 1);
	free_served(&s, &served);
	finish(&s);
}

Test(poller, asleep__each_kick_and_each_completion_wakes_it)
{
	struct setup s;
	struct served served;
	start(&s);
	s.limit = 0;
	struct lane *lane = open_lane(&s, &served);
	wait_asleep(&s, 0);
	for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
		/* Odd ones come when it has gone to sleep waiting for them. */
		uint64_t before = sleeps(&s);
		fake_rdma_hold(s.devices[0], chunk % 2);
		push(&s, lane, chunk + 1);
		if (chunk % 2)
			wait_asleep(&s, before);
		fake_rdma_hold(s.devices[0], false);
		wait_for(&s, &s.num_landed, chunk + 1);
		wait_asleep(&s, before + chunk % 2);
	}
	cr_assert_eq(memcmp(s.memory[0], s.memory[1], BYTES), 0);
	lane_close(lane);
	wait_for(&s, &s.closed, 1);
	free_served(&s, &served);
	finish(&s);
}

Test(poller, kicks_and_completions_at_any_moment__none_is_lost)
{
	struct setup s;
	struct served served;
	start(&s);
	s.limit = 0;
	struct lane *lane = open_lane(&s, &served);
	uint32_t rounds = getenv("TH_LONG") && *getenv("TH_LONG") == '1' ? 20000 : 300;
	for (uint32_t round = 0; round < rounds; round++) {
		pthread_mutex_lock(&s.lock);
		memset(s.landed, 0, sizeof(s.landed));
		s.num_landed = s.next = 0;
		pthread_mutex_unlock(&s.lock);
		/* Around the moment in which it goes to sleep. */
		nanosleep(&(struct timespec){.tv_nsec = round * 997 % 80000}, NULL);
		fake_rdma_hold(s.devices[0], round % 3 == 0);
		push(&s, lane, 1);
		nanosleep(&(struct timespec){.tv_nsec = round * 577 % 40000}, NULL);
		fake_rdma_hold(s.devices[0], false);
		wait_for(&s, &s.num_landed, 1);
		pthread_mutex_lock(&s.lock);
		s.limit = 0;
		pthread_mutex_unlock(&s.lock);
	}
	lane_close(lane);
	wait_for(&s, &s.closed, 1);
	free_served(&s, &served);
	finish(&s);
}

Test(poller, source_fences_in_the_middle__rest_goes_back_and_comes_by_another_lane)
{
	struct setup s;
	struct served served, other;
	start(&s);
	fake_rdma_hold(s.devices[0], true);
	struct lane *lane = open_lane(&s, &served);
	int64_t deadline_ns = th_now_ns() + PATIENCE_NS;
	for (uint32_t let = 0; let < 6; let += fake_rdma_let(s.devices[0], 1))
		cr_assert_lt(th_now_ns(), deadline_ns);
	free_served(&s, &served);
	fake_rdma_hold(s.devices[0], false);
	lane_break(lane, VERBS_GONE, "tried");
	wait_for(&s, &s.broken, 1);
	cr_assert_eq(s.status, VERBS_GONE);
	lane_close(lane);
	wait_for(&s, &s.closed, 1);
	lane = open_lane(&s, &other);
	wait_for(&s, &s.num_landed, CHUNKS);
	cr_assert_eq(memcmp(s.memory[0], s.memory[1], BYTES), 0);
	lane_close(lane);
	wait_for(&s, &s.closed, 2);
	free_served(&s, &other);
	finish(&s);
}

Test(poller, device_lost_while_asleep__lanes_break_and_close)
{
	struct setup s;
	struct served served[3];
	struct lane *lanes[3];
	start(&s);
	fake_rdma_hold(s.devices[0], true);
	for (uint32_t i = 0; i < 3; i++)
		lanes[i] = open_lane(&s, &served[i]);
	wait_asleep(&s, sleeps(&s));
	poller_lose(s.poller, VERBS_OTHER, "the device is gone");
	wait_for(&s, &s.broken, 3);
	for (uint32_t i = 0; i < 3; i++) {
		lane_close(lanes[i]);
		free_served(&s, &served[i]);
	}
	wait_for(&s, &s.closed, 3);
	finish(&s);
}

Test(poller, lanes_come_and_go__nothing_left)
{
	struct setup s;
	start(&s);
	for (uint32_t round = 0; round < 40; round++) {
		struct served served[4];
		struct lane *lanes[4];
		pthread_mutex_lock(&s.lock);
		memset(s.landed, 0, sizeof(s.landed));
		s.num_landed = s.next = s.closed = 0;
		pthread_mutex_unlock(&s.lock);
		for (uint32_t i = 0; i < 4; i++)
			lanes[i] = open_lane(&s, &served[i]);
		for (uint32_t i = 0; i < 4; i++) {
			lane_kick(lanes[i]);
			lane_close(lanes[i]);
		}
		wait_for(&s, &s.closed, 4);
		for (uint32_t i = 0; i < 4; i++)
			free_served(&s, &served[i]);
	}
	finish(&s);
}
