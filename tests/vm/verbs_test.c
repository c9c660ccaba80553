/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of verbs_ib, device, queues, poller and lane over real verbs: in the guest, where rails.py
 * has laid rails between hosts, whose devices are called h<host>r<rail>.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "transport/rdma/device/device.h"
#include "transport/rdma/engine/lane.h"
#include "transport/rdma/engine/poller.h"
#include "transport/rdma/engine/queues.h"

#define PATIENCE_S 60
#define CHUNK_BYTES (1u << 20)
#define CHUNKS_MAX 32u
#define PROBE_BYTES 8u

struct bench {
	struct verbs verbs;
	struct loop *keeper;
	struct rails *rails;
	struct poller *poller; /* of host 0's rail 0, which reads */
	uint32_t reader, source;
	pthread_mutex_t lock;
	pthread_cond_t told;
	uint32_t changed[RAILS_MAX]; /* all by lock */
	/* The leg: chunks of its memory, in order. */
	uint8_t *from, *to;
	uint64_t bytes;
	struct verbs_mr from_mr, to_mr;
	struct queues serving, reading;
	struct lane *lane;
	uint32_t next, limit, landed, back, proved, broken, closed;
	uint32_t chunks[CHUNKS_MAX];
	uint32_t num_given_back, given_back[CHUNKS_MAX];
	enum verbs_status status;
	struct lane_counters counters;
};

static void
lock(struct bench *bench)
{
	pthread_mutex_lock(&bench->lock);
}

static void
unlock(struct bench *bench)
{
	pthread_cond_broadcast(&bench->told);
	pthread_mutex_unlock(&bench->lock);
}

static void
wait_for(struct bench *bench, const uint32_t *counter, uint32_t count)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_S;
	pthread_mutex_lock(&bench->lock);
	while (*counter < count)
		cr_assert_eq(pthread_cond_timedwait(&bench->told, &bench->lock, &until), 0);
	pthread_mutex_unlock(&bench->lock);
}

struct sync_task {
	struct loop_task task;
	struct bench *bench;
	void (*run)(struct bench *bench);
	uint32_t done;
};

static void
run_sync(struct loop_task *task)
{
	struct sync_task *sync = loop_container(task, struct sync_task, task);
	sync->run(sync->bench);
	lock(sync->bench);
	sync->done = 1;
	unlock(sync->bench);
}

static void
on_keeper(struct bench *bench, void (*run)(struct bench *bench))
{
	struct sync_task sync = {.task.run = run_sync, .bench = bench, .run = run};
	loop_post(bench->keeper, &sync.task);
	wait_for(bench, &sync.done, 1);
}

static void
shell(const char *command)
{
	cr_assert_eq(system(command), 0, "%s", command);
}

/* ---- rails ---- */

static void
on_changed(void *arg, uint32_t rail)
{
	struct bench *bench = arg;
	lock(bench);
	bench->changed[rail]++;
	unlock(bench);
}

static uint32_t
rail_named(const struct bench *bench, const char *name)
{
	for (uint32_t i = 0; i < rails_count(bench->rails); i++) {
		if (strcmp(rail_name(bench->rails, i), name) == 0)
			return i;
	}
	cr_assert(false, "no rail %s", name);
	return RAILS_MAX;
}

static void
setup(struct bench *bench, const struct rails_config *config)
{
	static const char *const names[] = {"h0r0", "h1r0"};
	struct rails_config own = *config;
	own.names = names;
	own.num_names = TH_ARRAY_LEN(names);
	*bench = (struct bench){0};
	pthread_mutex_init(&bench->lock, NULL);
	pthread_cond_init(&bench->told, NULL);
	struct rails_user user = {.arg = bench, .changed = on_changed};
	cr_assert_eq(loop_new("keeper", LOOP_EPOLL, NULL, NULL, &bench->keeper), 0);
	struct th_err err;
	cr_assert_eq(verbs_ib(&bench->verbs, &err), 0, "%s", err.text);
	cr_assert_eq(rails_new(bench->verbs, &own, bench->keeper, &user, &bench->rails), 0);
	bench->reader = rail_named(bench, "h0r0/1");
	bench->source = rail_named(bench, "h1r0/1");
}

static void
teardown(struct bench *bench)
{
	rails_free(bench->rails);
	loop_free(bench->keeper);
}

/* ---- a leg of one lane ---- */

static bool
leg_take(void *arg, uint32_t *ret_chunk)
{
	struct bench *bench = arg;
	lock(bench);
	bool any = bench->next < bench->limit;
	if (any)
		*ret_chunk = bench->next++;
	unlock(bench);
	return any;
}

static uint32_t
leg_pieces(void *arg, uint32_t chunk, struct lane_piece *ret_pieces, uint32_t pieces_max)
{
	const struct bench *bench = arg;
	uint64_t at = (uint64_t)chunk * CHUNK_BYTES;
	(void)pieces_max;
	ret_pieces[0] = (struct lane_piece){.local = at,
		.remote = at,
		.lkey = bench->to_mr.lkey,
		.rkey = bench->from_mr.rkey,
		.bytes = CHUNK_BYTES};
	return 1;
}

static void
leg_landed(void *arg, uint32_t chunk)
{
	struct bench *bench = arg;
	lock(bench);
	bench->chunks[chunk]++;
	bench->landed++;
	unlock(bench);
}

static void
leg_give_back(void *arg, uint32_t chunk)
{
	struct bench *bench = arg;
	lock(bench);
	bench->given_back[bench->back++] = chunk;
	unlock(bench);
}

static void
leg_broken(void *arg, enum verbs_status status, const char *why)
{
	struct bench *bench = arg;
	(void)why;
	lock(bench);
	bench->status = status;
	bench->broken++;
	unlock(bench);
}

static void
leg_proved(void *arg)
{
	struct bench *bench = arg;
	lock(bench);
	bench->proved++;
	unlock(bench);
}

static void
leg_closed(void *arg)
{
	struct bench *bench = arg;
	lock(bench);
	bench->closed++;
	unlock(bench);
}

static const struct lane_user leg_user = {
	.take = leg_take,
	.pieces = leg_pieces,
	.landed = leg_landed,
	.give_back = leg_give_back,
	.broken = leg_broken,
	.proved = leg_proved,
	.closed = leg_closed,
};

/* Both ends' queue pairs, each told of the other. */
static void
connect_both(struct bench *bench)
{
	struct th_err err = {0};
	cr_assert_eq(queues_new(bench->rails, bench->reader, poller_cq(bench->poller),
			     LANE_DEPTH_MAX, &bench->reading, &err),
		0, "%s", err.text);
	cr_assert_eq(
		queues_new(bench->rails, bench->source, NULL, LANE_DEPTH, &bench->serving, &err), 0,
		"%s", err.text);
	cr_assert_eq(queues_connect(bench->rails, &bench->serving, &bench->reading.own,
			     ENDPOINT_SOURCE, "reader", &err),
		0, "%s", err.text);
	cr_assert_eq(queues_connect(bench->rails, &bench->reading, &bench->serving.own,
			     ENDPOINT_READER, "source", &err),
		0, "%s", err.text);
}

static void
free_serving(struct bench *bench)
{
	cr_assert_eq(queues_free(bench->rails, &bench->serving), 0);
}

static uint8_t *
new_memory(uint64_t bytes)
{
	uint8_t *data =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(data, MAP_FAILED);
	return data;
}

static void
register_memory(
	struct bench *bench, uint32_t rail, uint8_t *data, unsigned access, struct verbs_mr *ret_mr)
{
	int rc = rails_ops(bench->rails)
			 ->reg(rail_device(bench->rails, rail), data, bench->bytes, 0, access,
				 ret_mr);
	cr_assert_eq(rc, 0, "%d", rc);
}

static void
deregister(struct bench *bench, uint32_t rail, struct verbs_mr *mr)
{
	const struct verbs_ops *ops = rails_ops(bench->rails);
	if (mr->handle)
		cr_assert_eq(ops->dereg(rail_device(bench->rails, rail), mr), 0);
	mr->handle = NULL;
}

/* All there, and not started. */
static void
leg_prepare(struct bench *bench, uint32_t num_chunks)
{
	bench->bytes = (uint64_t)num_chunks * CHUNK_BYTES;
	bench->from = new_memory(bench->bytes);
	bench->to = new_memory(bench->bytes);
	for (uint64_t i = 0; i < bench->bytes / 8; i++)
		((uint64_t *)(void *)bench->from)[i] = i * UINT64_C(0x9e3779b97f4a7c15);
	register_memory(bench, bench->source, bench->from, VERBS_REMOTE_READ, &bench->from_mr);
	register_memory(
		bench, bench->reader, bench->to, VERBS_LOCAL_WRITE | VERBS_RELAXED, &bench->to_mr);
	struct poller_config config = {.name = "th-rdma-test",
		.verbs = bench->verbs,
		.device = rail_device(bench->rails, bench->reader),
		.keeper = bench->keeper};
	cr_assert_eq(poller_new(&config, &bench->poller), 0);
	on_keeper(bench, connect_both);
	struct lane_config lane = {.user = &leg_user,
		.arg = bench,
		.num_qps = bench->reading.count,
		.depth = bench->reading.reads,
		.probe = {.lkey = bench->to_mr.lkey,
			.rkey = bench->from_mr.rkey,
			.bytes = PROBE_BYTES}};
	memcpy(lane.qps, bench->reading.qps, bench->reading.count * sizeof(lane.qps[0]));
	cr_assert_eq(lane_new(poller_rail(bench->poller), &lane, &bench->lane), 0);
}

/* Ready to read so many chunks; leg_limit lets it begin. */
static void
leg_begin(struct bench *bench, uint32_t num_chunks)
{
	leg_prepare(bench, num_chunks);
	lane_start(bench->lane);
}

static void
leg_limit(struct bench *bench, uint32_t limit)
{
	lock(bench);
	bench->limit = limit;
	unlock(bench);
	lane_kick(bench->lane);
}

static void
leg_end(struct bench *bench)
{
	lane_counters(bench->lane, &bench->counters);
	lane_close(bench->lane);
	wait_for(bench, &bench->closed, 1);
	on_keeper(bench, free_serving);
	deregister(bench, bench->reader, &bench->to_mr);
	deregister(bench, bench->source, &bench->from_mr);
	poller_free(bench->poller);
	munmap(bench->from, bench->bytes);
	munmap(bench->to, bench->bytes);
}

/* ---- tests ---- */

Test(vm_verbs, lane__reads_all_bytes_once)
{
	static struct bench bench;
	struct rails_config config = rails_config_default();
	setup(&bench, &config);
	leg_begin(&bench, 16);
	wait_for(&bench, &bench.proved, 1);
	leg_limit(&bench, 5);
	wait_for(&bench, &bench.landed, 5);
	leg_limit(&bench, 16);
	wait_for(&bench, &bench.landed, 16);
	for (uint32_t i = 0; i < 16; i++)
		cr_assert_eq(bench.chunks[i], 1);
	cr_assert_eq(memcmp(bench.from, bench.to, bench.bytes), 0);
	leg_end(&bench);
	cr_assert_eq(bench.back, 0);
	cr_assert_eq(bench.broken, 0);
	/* Four READs of 256 KiB to a doorbell: one doorbell and one completion for a MiB. */
	cr_assert_eq(bench.counters.bytes, bench.bytes);
	cr_assert_leq(bench.counters.doorbells, 2 * 16 + ENDPOINT_QPS);
	cr_assert_leq(bench.counters.signalled, 2 * 16 + ENDPOINT_QPS);
	teardown(&bench);
}

/* What the device is asked for, as the engine sees it: it is told of every fourth READ. */
Test(vm_verbs, lane__window_is_full_while_bytes_remain)
{
	static struct bench bench;
	struct rail_counters rail;
	struct rails_config config = rails_config_default();
	setup(&bench, &config);
	leg_begin(&bench, CHUNKS_MAX);
	wait_for(&bench, &bench.proved, 1);
	leg_limit(&bench, CHUNKS_MAX);
	wait_for(&bench, &bench.landed, CHUNKS_MAX);
	rail_counters(poller_rail(bench.poller), &rail);
	uint32_t window = th_min_u32(
		RAIL_WINDOW_BYTES / RAIL_SLICE_BYTES, bench.reading.count * bench.reading.reads);
	double full = (double)rail.outstanding_ns / (double)rail.wanting_ns / window;
	printf("figure: %u READs of %u KiB under way at most, %.3f of them while bytes remain; "
	       "%.2f doorbells and %.2f signalled completions per MiB\n",
		window, RAIL_SLICE_BYTES >> 10, full,
		(double)(rail.doorbells - ENDPOINT_QPS) / CHUNKS_MAX,
		(double)(rail.signalled - ENDPOINT_QPS) / CHUNKS_MAX);
	cr_assert_gt(full, 0.9);
	cr_assert_leq(rail.doorbells, 2 * CHUNKS_MAX + ENDPOINT_QPS);
	cr_assert_leq(rail.signalled, 2 * CHUNKS_MAX + ENDPOINT_QPS);
	leg_end(&bench);
	teardown(&bench);
}

Test(vm_verbs, region__gone_under_a_reader)
{
	static struct bench bench;
	struct rails_config config = rails_config_default();
	setup(&bench, &config);
	leg_begin(&bench, 16);
	leg_limit(&bench, 4);
	wait_for(&bench, &bench.landed, 4);
	deregister(&bench, bench.source, &bench.from_mr);
	leg_limit(&bench, 16);
	wait_for(&bench, &bench.broken, 1);
	cr_assert_eq(bench.status, VERBS_ACCESS);
	/* What was taken and has not landed came back, each once. */
	cr_assert_eq(bench.landed + bench.back, bench.next);
	leg_end(&bench);
	teardown(&bench);
}

Test(vm_verbs, region__nothing_beyond_its_end_and_nothing_without_leave)
{
	static struct bench bench;
	struct rails_config config = rails_config_default();
	setup(&bench, &config);
	leg_begin(&bench, 2);
	leg_limit(&bench, 1);
	wait_for(&bench, &bench.landed, 1);
	/* The reader's own memory gives no leave to be read by others, whoever asks. */
	uint32_t rkey = bench.from_mr.rkey;
	bench.from_mr.rkey = bench.to_mr.rkey;
	leg_limit(&bench, 2);
	wait_for(&bench, &bench.broken, 1);
	cr_assert_eq(bench.status, VERBS_ACCESS);
	bench.from_mr.rkey = rkey;
	leg_end(&bench);
	teardown(&bench);
}

Test(vm_verbs, source__its_queue_pairs_freed_are_a_fence)
{
	static struct bench bench;
	struct rails_config config = rails_config_default();
	config.retries = 1; /* soft-RoCE takes 7 as `for ever` */
	config.timeout = 14;
	setup(&bench, &config);
	leg_begin(&bench, 16);
	leg_limit(&bench, 2);
	wait_for(&bench, &bench.landed, 2);
	on_keeper(&bench, free_serving);
	leg_limit(&bench, 16);
	wait_for(&bench, &bench.broken, 1);
	cr_assert_eq(bench.status, VERBS_GONE);
	cr_assert_eq(bench.landed, 2);
	leg_end(&bench);
	teardown(&bench);
}

Test(vm_verbs, lane__broken_by_its_user_gives_everything_back)
{
	static struct bench bench;
	struct rails_config config = rails_config_default();
	setup(&bench, &config);
	leg_begin(&bench, 16);
	leg_limit(&bench, 1);
	wait_for(&bench, &bench.landed, 1);
	/* Nothing comes any more, and with these retries no error either. */
	shell("ip link set ph1r0 nomaster");
	leg_limit(&bench, 16);
	lane_break(bench.lane, VERBS_GONE, "the test says so");
	wait_for(&bench, &bench.broken, 1);
	cr_assert_eq(bench.landed + bench.back, bench.next);
	leg_end(&bench);
	shell("ip link set ph1r0 master sw0");
	teardown(&bench);
}

Test(vm_verbs, probe__a_path_that_carries_nothing_does_not_prove_itself)
{
	static struct bench bench;
	struct rails_config config = rails_config_default();
	config.retries = 1;
	config.timeout = 14;
	setup(&bench, &config);
	leg_prepare(&bench, 4);
	shell("ip link set ph1r0 nomaster");
	lane_start(bench.lane);
	leg_limit(&bench, 4);
	wait_for(&bench, &bench.broken, 1);
	cr_assert_eq(bench.status, VERBS_GONE);
	cr_assert_eq(bench.proved, 0);
	cr_assert_eq(bench.landed, 0);
	leg_end(&bench);
	shell("ip link set ph1r0 master sw0");
	teardown(&bench);
}
