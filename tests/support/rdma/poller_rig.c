/* SPDX-License-Identifier: Apache-2.0 */
/* poller_rig - see poller_rig.h. */
#include "tests/support/rdma/poller_rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"

#define PATIENCE_NS INT64_C(60000000000)

/* ---- a user -------------------------------------------------------------------------------- */

static bool
take(void *arg, uint32_t *ret_chunk)
{
	struct poller_lane *lane = arg;
	struct poller_rig *rig = lane->rig;
	pthread_mutex_lock(&rig->lock);
	TH_ASSERT(!lane->broken && !lane->closed);
	while (rig->next < POLLER_RIG_CHUNKS && (rig->landed[rig->next] || rig->taken[rig->next]))
		rig->next++;
	bool any = rig->next < rig->limit;
	if (any) {
		*ret_chunk = rig->next;
		rig->taken[rig->next++] = true;
		lane->num_taken++;
	}
	pthread_mutex_unlock(&rig->lock);
	return any;
}

static uint32_t
pieces(void *arg, uint32_t chunk, struct lane_piece *ret_pieces, uint32_t pieces_max)
{
	const struct poller_rig *rig = ((struct poller_lane *)arg)->rig;
	TH_ASSERT(pieces_max >= 1);
	ret_pieces[0] = (struct lane_piece){
		.local = (uint64_t)chunk * POLLER_RIG_CHUNK_BYTES,
		.remote = (uint64_t)chunk * POLLER_RIG_CHUNK_BYTES,
		.lkey = rig->mrs[0].lkey,
		.rkey = rig->mrs[1].rkey,
		.bytes = POLLER_RIG_CHUNK_BYTES,
	};
	return 1;
}

/* It has the chunk no more. */
static void
leave(struct poller_lane *lane, uint32_t chunk)
{
	TH_ASSERT(!lane->broken && !lane->closed);
	TH_ASSERT(lane->rig->taken[chunk] && lane->num_taken > 0);
	lane->rig->taken[chunk] = false;
	lane->num_taken--;
}

static void
landed(void *arg, uint32_t chunk)
{
	struct poller_lane *lane = arg;
	struct poller_rig *rig = lane->rig;
	pthread_mutex_lock(&rig->lock);
	leave(lane, chunk);
	rig->landed[chunk] = !rig->endless;
	rig->num_landed += !rig->endless;
	if (rig->endless)
		rig->next = th_min_u32(rig->next, chunk);
	pthread_mutex_unlock(&rig->lock);
}

static void
give_back(void *arg, uint32_t chunk)
{
	struct poller_lane *lane = arg;
	struct poller_rig *rig = lane->rig;
	pthread_mutex_lock(&rig->lock);
	leave(lane, chunk);
	rig->next = th_min_u32(rig->next, chunk);
	rig->num_back++;
	pthread_mutex_unlock(&rig->lock);
}

static void
broken(void *arg, enum verbs_status status, const char *why)
{
	struct poller_lane *lane = arg;
	struct poller_rig *rig = lane->rig;
	TH_ASSERT(why != NULL);
	pthread_mutex_lock(&rig->lock);
	TH_ASSERT(!lane->broken && !lane->closed && lane->num_taken == 0);
	lane->broken = 1;
	rig->status = status;
	rig->broken++;
	pthread_mutex_unlock(&rig->lock);
}

static void
closed(void *arg)
{
	struct poller_lane *lane = arg;
	struct poller_rig *rig = lane->rig;
	pthread_mutex_lock(&rig->lock);
	TH_ASSERT(!lane->closed);
	lane->closed = 1;
	rig->closed++;
	pthread_mutex_unlock(&rig->lock);
}

static const struct lane_user user = {.take = take,
	.pieces = pieces,
	.landed = landed,
	.give_back = give_back,
	.broken = broken,
	.closed = closed};

/* ---- around it ----------------------------------------------------------------------------- */

void
poller_rig_init(struct poller_rig *rig)
{
	poller_rig_init_with(rig, NULL);
}

void
poller_rig_init_with(struct poller_rig *rig, const struct verbs_ops *ops)
{
	*rig = (struct poller_rig){.fake = fake_rdma_new(false), .limit = POLLER_RIG_CHUNKS};
	pthread_mutex_init(&rig->lock, NULL);
	for (uint32_t i = 0; i < 2; i++) {
		struct fake_host *host = fake_rdma_host(rig->fake);
		rig->verbs[i] = fake_rdma_verbs(host);
		fake_rdma_device(host, NULL);
		TH_ASSERT(rig->verbs[i].ops->open(host, &rig->devices[i], 1) == 1);
		rig->memory[i] = calloc(1, POLLER_RIG_BYTES);
		TH_ASSERT(rig->memory[i] != NULL);
		TH_ASSERT(rig->verbs[i].ops->reg(rig->devices[i], rig->memory[i], POLLER_RIG_BYTES,
				  0, i ? VERBS_REMOTE_READ : VERBS_LOCAL_WRITE, &rig->mrs[i]) == 0);
	}
	for (uint64_t i = 0; i < POLLER_RIG_BYTES; i++)
		rig->memory[1][i] = (uint8_t)(i + i / 512);
	TH_ASSERT(rig->verbs[1].ops->cq_new(rig->devices[1], 16, &rig->source_cq) == 0);
	TH_ASSERT(loop_new("keeper", LOOP_EPOLL, NULL, NULL, &rig->keeper) == 0);
	struct poller_config config = {.name = "th-poll",
		.verbs = rig->verbs[0],
		.device = rig->devices[0],
		.keeper = rig->keeper};
	if (ops)
		config.verbs.ops = ops;
	TH_ASSERT(poller_new(&config, &rig->poller) == 0);
}

void
poller_rig_fini(struct poller_rig *rig)
{
	loop_free(rig->keeper);
	poller_free(rig->poller);
	rig->verbs[1].ops->cq_free(rig->source_cq);
	for (uint32_t i = 0; i < 2; i++) {
		TH_ASSERT(rig->verbs[i].ops->dereg(rig->devices[i], &rig->mrs[i]) == 0);
		rig->verbs[i].ops->close(rig->devices[i]);
		free(rig->memory[i]);
	}
	fake_rdma_free(rig->fake);
	pthread_mutex_destroy(&rig->lock);
}

void
poller_rig_open(struct poller_rig *rig, struct poller_lane *ret_lane)
{
	struct lane_config config = {
		.user = &user, .arg = ret_lane, .num_qps = LANE_QPS, .depth = LANE_DEPTH};
	struct verbs_path paths[2] = {0};
	*ret_lane = (struct poller_lane){.rig = rig};
	for (uint32_t i = 0; i < LANE_QPS; i++) {
		struct verbs_qp *qps[2];
		for (uint32_t end = 0; end < 2; end++) {
			struct verbs_gid gid;
			struct verbs_path *path = &paths[end];
			const struct verbs_ops *ops = rig->verbs[end].ops;
			struct verbs_cq *cq = end ? rig->source_cq : poller_cq(rig->poller);
			TH_ASSERT(ops->gids(rig->devices[end], 1, &gid, 1) == 1);
			*path = (struct verbs_path){.port = 1,
				.global = true,
				.mtu_bytes = 1024,
				.reads_out = 16,
				.reads_in = 16,
				.timeout = 16,
				.retries = 7};
			memcpy(path->gid, gid.raw, sizeof(gid.raw));
			TH_ASSERT(ops->qp_new(rig->devices[end], cq, LANE_DEPTH, &qps[end],
					  &path->qpn) == 0);
		}
		TH_ASSERT(rig->verbs[0].ops->qp_connect(qps[0], &paths[1]) == 0);
		TH_ASSERT(rig->verbs[1].ops->qp_connect(qps[1], &paths[0]) == 0);
		config.qps[i] = qps[0];
		ret_lane->served[i] = qps[1];
	}
	/* Lanes that are closed keep their room until the keeper has freed their queue pairs. */
	int rc = -ENOSPC;
	for (int64_t end_ns = th_now_ns() + PATIENCE_NS; rc == -ENOSPC && th_now_ns() < end_ns;) {
		rc = lane_new(poller_rail(rig->poller), &config, &ret_lane->lane);
		if (rc == -ENOSPC)
			nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	TH_ASSERT(rc == 0);
	lane_start(ret_lane->lane);
}

void
poller_rig_fence(struct poller_lane *lane)
{
	for (uint32_t i = 0; i < LANE_QPS; i++)
		TH_ASSERT(lane->rig->verbs[1].ops->qp_free(lane->served[i]) == 0);
}

void
poller_rig_again(struct poller_rig *rig)
{
	pthread_mutex_lock(&rig->lock);
	memset(rig->landed, 0, sizeof(rig->landed));
	memset(rig->taken, 0, sizeof(rig->taken));
	rig->num_landed = rig->next = 0;
	pthread_mutex_unlock(&rig->lock);
}

void
poller_rig_wait(struct poller_rig *rig, const uint32_t *number, uint32_t value)
{
	int64_t deadline_ns = th_now_ns() + PATIENCE_NS;
	for (;;) {
		pthread_mutex_lock(&rig->lock);
		uint32_t now = *number;
		pthread_mutex_unlock(&rig->lock);
		if (now == value)
			return;
		TH_ASSERT(th_now_ns() < deadline_ns);
		nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
	}
}

void
poller_rig_wait_asleep(struct poller_rig *rig, uint64_t before)
{
	struct poller_counters counters;
	int64_t deadline_ns = th_now_ns() + PATIENCE_NS;
	do {
		TH_ASSERT(th_now_ns() < deadline_ns);
		nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
		poller_counters(rig->poller, &counters);
	} while (counters.sleeps <= before);
}

uint64_t
poller_rig_sleeps(struct poller_rig *rig)
{
	struct poller_counters counters;
	poller_counters(rig->poller, &counters);
	return counters.sleeps;
}

void
poller_rig_push(struct poller_lane *lane, uint32_t limit)
{
	pthread_mutex_lock(&lane->rig->lock);
	lane->rig->limit = limit;
	pthread_mutex_unlock(&lane->rig->lock);
	lane_kick(lane->lane);
}
