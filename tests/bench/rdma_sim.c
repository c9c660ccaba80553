/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma_sim - what the READ engine makes of a device, in virtual time.
 *
 *   rdma_sim          all figures with their goals; fails when one is missed
 *   rdma_sim cpu      only what the engine costs on this machine's clock
 *
 * The devices are fake (tests/support/fake_rdma): 400 Gbit/s, 10 us there and back. What a device
 * allows for so many bytes is the latency and their time on the wire. The engine's costs in
 * processor time are measured with a device that does nothing; they judge nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "tests/support/rdma/rail_rig.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define RATE UINT64_C(50000000000) /* bytes a second: 400 Gbit/s */
#define READERS 18u
#define PUSHES 64u /* prefixes on their way to one reader */

static bool missed;

static const char *
judge(bool good)
{
	missed = missed || !good;
	return good ? "" : "  MISSED";
}

static double
allowed_ns(uint64_t bytes)
{
	return FAKE_LATENCY_NS + (double)bytes / (double)RATE * 1e9;
}

static struct rail_node *
new_node(struct rail_rig *rig)
{
	struct rail_node_config config = {
		.device.bytes_per_second = RATE, .answer_ns = INT64_C(4096) << 16};
	return rail_rig_node(rig, &config);
}

static const char *
print_bytes(uint64_t bytes, char text[32])
{
	if (bytes >= GIB)
		snprintf(text, 32, "%.3g GiB", (double)bytes / (double)GIB);
	else
		snprintf(text, 32, "%.3g MiB", (double)bytes / (double)MIB);
	return text;
}

static void
end(struct rail_rig *rig, struct rail_leg *leg)
{
	for (uint32_t i = 0; i < leg->num_lanes; i++) {
		if (leg->lanes[i].lane)
			rail_leg_close(&leg->lanes[i]);
	}
	rail_rig_settle(rig);
	rail_leg_fini(leg);
}

/* ---- one leg ------------------------------------------------------------------------------- */

static void
one_leg(uint64_t bytes)
{
	struct rail_rig rig;
	struct rail_leg leg;
	struct rail_counters counters;
	struct fake_counters begin, device;
	struct rail_memory memory = {.bytes = bytes};
	char text[32];
	rail_rig_init(&rig);
	struct rail_node *reader = new_node(&rig), *source = new_node(&rig);
	struct rail_keys *local = rail_keys_new(reader, &memory, VERBS_LOCAL_WRITE);
	struct rail_keys *remote = rail_keys_new(source, &memory, VERBS_REMOTE_READ);
	rail_leg_init(&leg, &rig, bytes, RAIL_CHUNK_BYTES);
	rail_leg_open(&leg, local, remote, LANE_QPS, LANE_DEPTH, true);
	/* Until all that is to be read has been asked for. */
	while (rail_rig_settle(&rig), reader->rail.num_wanting == 0 && leg.next == 0)
		fake_rdma_run(rig.fake, rail_rig_next(&rig));
	fake_rdma_counters(reader->device, &begin);
	int64_t begin_ns = fake_rdma_now(rig.fake);
	while (reader->rail.num_wanting > 0) {
		fake_rdma_run(rig.fake, rail_rig_next(&rig));
		rail_rig_settle(&rig);
	}
	fake_rdma_counters(reader->device, &device);
	double window = LANE_QPS * LANE_DEPTH,
	       passed_ns = (double)(fake_rdma_now(rig.fake) - begin_ns);
	double full = (double)(device.outstanding_ns - begin.outstanding_ns) / passed_ns / window;
	rail_rig_run(&rig, INT64_MAX);
	TH_ASSERT(rail_leg_is_whole(&leg));
	rail_counters(&reader->rail, &counters);
	double mib = (double)bytes / (double)MIB;
	double part = allowed_ns(bytes) / (double)leg.landed_ns;
	double doorbells = (double)(counters.doorbells - LANE_QPS) / mib;
	double signalled = (double)(counters.signalled - LANE_QPS) / mib;
	/* What fits the window is asked for at once, and there is no time in which bytes remain. */
	bool large = bytes >= 64 * MIB;
	printf("%10s %10.1f %8.4f", print_bytes(bytes, text), (double)leg.landed_ns / 1e3, part);
	if (bytes > RAIL_WINDOW_BYTES)
		printf(" %12.3f", full);
	else
		printf(" %12s", "-");
	printf(" %10.2f %10.2f%s\n", doorbells, signalled,
		judge(!large || (part >= 0.99 && full >= 0.9 && doorbells <= 2 && signalled <= 2)));
	end(&rig, &leg);
	rail_keys_free(local);
	rail_keys_free(remote);
	rail_rig_fini(&rig);
}

/* ---- a chain ------------------------------------------------------------------------------- */

struct push {
	int64_t at_ns;
	uint32_t reader, limit;
};

static struct {
	struct rail_rig rig;
	struct rail_leg legs[READERS];
	struct push pushes[READERS * PUSHES];
	uint32_t first, num_pushes;
} chain;

static void
on_landed(struct rail_leg *leg, uint32_t chunk)
{
	uint32_t reader = (uint32_t)(leg - chain.legs);
	(void)chunk;
	if (reader + 1 == READERS)
		return;
	uint32_t room = TH_ARRAY_LEN(chain.pushes);
	TH_ASSERT(chain.num_pushes < room);
	chain.pushes[(chain.first + chain.num_pushes++) % room] = (struct push){
		fake_rdma_now(chain.rig.fake) + FAKE_LATENCY_NS / 2, reader + 1, leg->prefix};
}

static void
run_chain(void)
{
	struct rail_rig *rig = &chain.rig;
	for (;;) {
		rail_rig_settle(rig);
		const struct push *push = &chain.pushes[chain.first];
		int64_t next_ns = rail_rig_next(rig);
		if (chain.num_pushes > 0 && push->at_ns <= next_ns) {
			fake_rdma_run(rig->fake, push->at_ns);
			rail_leg_push(&chain.legs[push->reader], push->limit);
			chain.first = (chain.first + 1) % TH_ARRAY_LEN(chain.pushes);
			chain.num_pushes--;
		} else if (next_ns == INT64_MAX) {
			return;
		} else {
			fake_rdma_run(rig->fake, next_ns);
		}
	}
}

static void
one_chain(uint64_t bytes, bool judged)
{
	struct rail_memory memory = {.bytes = bytes};
	struct rail_keys *keys[READERS + 1];
	char text[32];
	chain.first = chain.num_pushes = 0;
	rail_rig_init(&chain.rig);
	for (uint32_t i = 0; i <= READERS; i++)
		keys[i] = rail_keys_new(new_node(&chain.rig), &memory,
			(i > 0 ? VERBS_LOCAL_WRITE : 0u) | VERBS_REMOTE_READ);
	for (uint32_t i = 0; i < READERS; i++) {
		rail_leg_init(&chain.legs[i], &chain.rig, bytes, RAIL_CHUNK_BYTES);
		if (i > 0)
			chain.legs[i].limit = 0;
		chain.legs[i].on_landed = on_landed;
		rail_leg_open(&chain.legs[i], keys[i + 1], keys[i], LANE_QPS, LANE_DEPTH, true);
	}
	run_chain();
	double chunks = chain.legs[0].num_chunks;
	double best = (chunks + READERS - 1) / chunks;
	TH_ASSERT(rail_leg_is_whole(&chain.legs[READERS - 1]));
	double last = (double)chain.legs[READERS - 1].landed_ns / allowed_ns(bytes);
	printf("%10s %8.0f %8.4f %8.4f %8.4f%s\n", print_bytes(bytes, text), chunks, best, last,
		last / best, judge(!judged || last <= 1.03 * best));
	for (uint32_t i = 0; i < READERS; i++)
		end(&chain.rig, &chain.legs[i]);
	for (uint32_t i = 0; i <= READERS; i++)
		rail_keys_free(keys[i]);
	rail_rig_settle(&chain.rig);
	rail_rig_fini(&chain.rig);
}

/* ---- two rails ----------------------------------------------------------------------------- */

enum death { NONE, PORT_DOWN, SOURCE_GONE };

static void
two_rails(uint64_t bytes, enum death death)
{
	static const char *const names[] = {"none", "port", "source"};
	struct rail_rig rig;
	struct rail_leg leg;
	struct rail_memory memory = {.bytes = bytes};
	struct rail_node *readers[2], *sources[2];
	struct rail_keys *locals[2], *remotes[2];
	struct fake_counters devices[2];
	char text[32];
	rail_rig_init(&rig);
	rail_leg_init(&leg, &rig, bytes, RAIL_CHUNK_BYTES);
	for (uint32_t i = 0; i < 2; i++) {
		readers[i] = new_node(&rig);
		sources[i] = new_node(&rig);
		locals[i] = rail_keys_new(readers[i], &memory, VERBS_LOCAL_WRITE);
		remotes[i] = rail_keys_new(sources[i], &memory, VERBS_REMOTE_READ);
		rail_leg_open(&leg, locals[i], remotes[i], LANE_QPS, LANE_DEPTH, true);
	}
	double best_ns = allowed_ns(bytes / 2);
	if (death != NONE) {
		/* In the middle, between two chunks. */
		int64_t half_ns = (int64_t)allowed_ns(bytes / 4) + 12345;
		rail_rig_run(&rig, half_ns);
		for (uint32_t i = 0; i < 2; i++)
			fake_rdma_counters(readers[i]->device, &devices[i]);
		best_ns = (double)half_ns +
			  allowed_ns(bytes - devices[0].bytes_in - devices[1].bytes_in);
		if (death == PORT_DOWN)
			fake_rdma_port_set(readers[0]->device, 1, false);
		else
			fake_rdma_vanish(sources[0]->device);
		/* The event, or the control connection, says so. */
		rail_rig_run(&rig, half_ns + 100000);
		lane_break(leg.lanes[0].lane, VERBS_GONE, "it is gone");
	}
	rail_rig_run(&rig, INT64_MAX);
	TH_ASSERT(rail_leg_is_whole(&leg));
	for (uint32_t i = 0; i < 2; i++)
		fake_rdma_counters(readers[i]->device, &devices[i]);
	double share =
		(double)devices[0].bytes_in / (double)(devices[0].bytes_in + devices[1].bytes_in);
	double part = (double)leg.landed_ns / best_ns;
	/* Of small shards the READs that were under way are much: they are read again. */
	bool good = death == NONE ? share >= 0.475 && share <= 0.525 : bytes < GIB || part <= 1.05;
	printf("%10s %8s %10.1f %8.4f %8.3f%s\n", print_bytes(bytes, text), names[death],
		(double)leg.landed_ns / 1e3, part, share, judge(good));
	end(&rig, &leg);
	for (uint32_t i = 0; i < 2; i++) {
		rail_keys_free(locals[i]);
		rail_keys_free(remotes[i]);
	}
	rail_rig_settle(&rig);
	rail_rig_fini(&rig);
}

/* ---- legs side by side --------------------------------------------------------------------- */

static void
many_legs(uint32_t num_legs, uint64_t bytes)
{
	struct rail_rig rig;
	struct rail_memory memory = {.bytes = bytes};
	struct rail_counters counters;
	rail_rig_init(&rig);
	struct rail_node *reader = new_node(&rig), *source = new_node(&rig);
	struct rail_keys *local = rail_keys_new(reader, &memory, VERBS_LOCAL_WRITE);
	struct rail_keys *remote = rail_keys_new(source, &memory, VERBS_REMOTE_READ);
	struct rail_leg *legs = calloc(num_legs, sizeof(*legs));
	TH_ASSERT(legs != NULL);
	for (uint32_t i = 0; i < num_legs; i++) {
		rail_leg_init(&legs[i], &rig, bytes, RAIL_CHUNK_BYTES);
		rail_leg_open(&legs[i], local, remote, LANE_QPS, LANE_DEPTH, true);
	}
	rail_rig_run(&rig, INT64_MAX);
	int64_t first_ns = INT64_MAX, last_ns = 0;
	for (uint32_t i = 0; i < num_legs; i++) {
		first_ns = th_min_i64(first_ns, legs[i].landed_ns);
		last_ns = th_max_i64(last_ns, legs[i].landed_ns);
	}
	rail_counters(&reader->rail, &counters);
	double part = allowed_ns(num_legs * bytes) / (double)last_ns;
	double doorbells = (double)counters.doorbells / ((double)counters.bytes / (double)MIB);
	printf("%10u %10.1f %8.4f %8.4f %10.2f%s\n", num_legs, (double)last_ns / 1e3, part,
		(double)first_ns / (double)last_ns, doorbells,
		judge(part >= 0.99 && doorbells <= 2));
	for (uint32_t i = 0; i < num_legs; i++)
		end(&rig, &legs[i]);
	free(legs);
	rail_keys_free(local);
	rail_keys_free(remote);
	rail_rig_settle(&rig);
	rail_rig_fini(&rig);
}

/* ---- the engine's own time ----------------------------------------------------------------- */

#define QUEUE 4096u

static struct { /* the device that does nothing */
	uint64_t ids[QUEUE];
	uint32_t head, tail;
	uint64_t taken, landed, chunks;
} nothing;

static int
nothing_poll(struct verbs_cq *cq, struct verbs_done *ret_done, uint32_t done_max)
{
	(void)cq;
	uint32_t count = 0;
	for (; count < done_max && nothing.head != nothing.tail; count++)
		ret_done[count] = (struct verbs_done){.id = nothing.ids[nothing.head++ % QUEUE]};
	return (int)count;
}

static int
nothing_post(struct verbs_qp *qp, const struct verbs_read *reads, uint32_t count)
{
	(void)qp;
	for (uint32_t i = 0; i < count; i++) {
		if (reads[i].signalled)
			nothing.ids[nothing.tail++ % QUEUE] = reads[i].id;
	}
	return 0;
}

static int
nothing_qp(struct verbs_qp *qp)
{
	(void)qp;
	return 0;
}

static bool
take(void *arg, uint32_t *ret_chunk)
{
	(void)arg;
	if (nothing.taken == nothing.chunks)
		return false;
	*ret_chunk = (uint32_t)nothing.taken++;
	return true;
}

static uint32_t
pieces(void *arg, uint32_t chunk, struct lane_piece *ret_pieces, uint32_t pieces_max)
{
	(void)arg;
	(void)pieces_max;
	uint64_t at = (uint64_t)chunk * RAIL_CHUNK_BYTES;
	ret_pieces[0] = (struct lane_piece){
		.local = at, .remote = at, .lkey = 1, .rkey = 2, .bytes = RAIL_CHUNK_BYTES};
	return 1;
}

static void
landed(void *arg, uint32_t chunk)
{
	(void)arg;
	(void)chunk;
	nothing.landed++;
}

static void
give_back(void *arg, uint32_t chunk)
{
	(void)arg;
	(void)chunk;
}

static void
broken(void *arg, enum verbs_status status, const char *why)
{
	(void)arg;
	(void)status;
	fprintf(stderr, "rdma_sim: %s\n", why);
	abort();
}

static void
closed(void *arg)
{
	(void)arg;
}

static struct loop_task *posted;

static void
post_task(void *arg, struct loop_task *task)
{
	(void)arg;
	posted = task;
}

static int64_t
real_ns(void *arg)
{
	(void)arg;
	return th_now_ns();
}

static void
free_qps(void *arg, struct lane *lane)
{
	post_task(arg, &lane->freed_task);
}

static void
run_posted(void)
{
	while (posted) {
		struct loop_task *task = posted;
		posted = NULL;
		task->run(task);
	}
}

/* Microseconds for a GiB. */
static double
cpu_once(uint64_t bytes)
{
	static const struct verbs_ops ops = {
		.cq_poll = nothing_poll, .post_reads = nothing_post, .qp_fail = nothing_qp};
	static const struct rail_around around = {
		.post = post_task, .now_ns = real_ns, .free_qps = free_qps};
	static const struct lane_user user = {.take = take,
		.pieces = pieces,
		.landed = landed,
		.give_back = give_back,
		.broken = broken,
		.closed = closed};
	static struct rail rail;
	struct rail_config config = {.verbs = {.ops = &ops}, .cq_depth = QUEUE, .around = &around};
	struct lane_config lane_config = {.user = &user, .num_qps = LANE_QPS, .depth = LANE_DEPTH};
	struct lane *lane;
	memset(&nothing, 0, sizeof(nothing));
	nothing.chunks = bytes / RAIL_CHUNK_BYTES;
	rail_init(&rail, &config);
	TH_ASSERT(lane_new(&rail, &lane_config, &lane) == 0);
	lane_start(lane);
	run_posted();
	int64_t begin_ns = th_now_ns();
	while (nothing.landed < nothing.chunks)
		rail_step(&rail, th_now_ns());
	double passed_us = (double)(th_now_ns() - begin_ns) / 1e3;
	lane_close(lane);
	run_posted();
	rail_step(&rail, th_now_ns());
	rail_fini(&rail);
	return passed_us / ((double)bytes / (double)GIB);
}

static int
compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static void
cpu(void)
{
	double rounds[21];
	for (size_t i = 0; i < TH_ARRAY_LEN(rounds); i++)
		rounds[i] = cpu_once(16 * GIB);
	qsort(rounds, TH_ARRAY_LEN(rounds), sizeof(rounds[0]), compare);
	printf("\nthe engine's own work (cut, post, complete; no device): "
	       "median %.1f, least %.1f us for a GiB\n",
		rounds[TH_ARRAY_LEN(rounds) / 2], rounds[0]);
}

/* -------------------------------------------------------------------------------------------- */

int
main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1 && strcmp(argv[1], "cpu") == 0) {
		cpu();
		return 0;
	}
	printf("one leg, one rail, 400 Gbit/s, 10 us (goals from 64 MiB on: 0.99 of what the "
	       "device allows; 0.9; 2; 2)\n%10s %10s %8s %12s %10s %10s\n",
		"bytes", "us", "of best", "outstanding", "doorbells", "signalled");
	printf("%10s %10s %8s %12s %10s %10s\n", "", "", "", "/ window", "/ MiB", "/ MiB");
	for (uint64_t bytes = MIB; bytes < 50 * GIB; bytes *= 4)
		one_leg(bytes);
	one_leg(50 * GIB);
	printf("\n%u readers in a chain (goal: the last within 1.03 x (K+N-1)/K)\n"
	       "%10s %8s %8s %8s %8s\n",
		READERS, "bytes", "chunks", "best", "last", "last/");
	printf("%10s %8s %8s %8s %8s\n", "", "K", "", "reader", "best");
	one_chain(64 * MIB, false);
	one_chain(256 * MIB, false);
	one_chain(GIB, true);
	one_chain(4 * GIB, true);
	printf("\none leg over two rails, one of which dies half way (goals: within 5 %% of one "
	       "half each; within 1.05 of what is left)\n%10s %8s %10s %8s %8s\n",
		"bytes", "dies", "us", "of best", "share");
	for (int death = NONE; death <= SOURCE_GONE; death++) {
		two_rails(256 * MIB, (enum death)death);
		two_rails(GIB, (enum death)death);
		two_rails(16 * GIB, (enum death)death);
	}
	printf("\nlegs of 256 MiB side by side on one rail (goals: 0.99, 2)\n"
	       "%10s %10s %8s %8s %10s\n",
		"legs", "us", "of best", "first/", "doorbells");
	printf("%10s %10s %8s %8s %10s\n", "", "", "", "last", "/ MiB");
	for (uint32_t legs = 2; legs <= 32; legs *= 4)
		many_legs(legs, 256 * MIB);
	cpu();
	if (missed)
		fprintf(stderr, "rdma_sim: a goal was missed\n");
	return missed;
}
