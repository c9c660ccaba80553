/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A data connection that joins its leg while the part grows to its end: what it waits for it is
 * told. And a reader that goes in the moment in which its source loses the memory: that is what the
 * leg ends by. The acceptor is held in the middle (the first by --wrap), and the test plays the
 * readers over plain sockets. And a copy within the host, one of whose threads finds nothing to do
 * while another one brings the last chunk (held by --wrap, too).
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include "ipc/base/err.h"
#include "tests/support/transport/transport_peer.h"
#include "transport/tcp/tcp.h"
#include "transport/transport_own.h"

#define LEG 5
#define OTHER 6
#define CHUNKS 8

static sem_t made, go;
static bool held; /* atomic */

struct data_out *__real_data_out_new(struct tcp_out *tcp, struct loop *loop, int fd);
struct data_out *__wrap_data_out_new(struct tcp_out *tcp, struct loop *loop, int fd);

struct data_out *
__wrap_data_out_new(struct tcp_out *tcp, struct loop *loop, int fd)
{
	struct data_out *conn = __real_data_out_new(tcp, loop, fd);
	if (__atomic_load_n(&held, __ATOMIC_ACQUIRE)) {
		sem_post(&made);
		sem_wait(&go);
	}
	return conn;
}

/* Whatever its movers had to do they have done: each has answered this often. */
static void
movers_turn(struct peer_setup *s, const int *conns, uint32_t count, uint32_t turns)
{
	static uint32_t asked; /* not the same chunk too often: that ends a leg */
	for (uint32_t i = 0; i < turns * count; i++, asked++) {
		peer_ask(conns[i % count], OTHER, asked % CHUNKS, 1);
		peer_take_data(s, conns[i % count], asked % CHUNKS);
	}
}

Test(transport_join, part_is_complete_before_the_leg_knows_the_connection__served)
{
	struct peer_setup *s = peer_start(0);
	struct xfer_part *whole = rig_part(&s->shard, false);
	uint8_t key[FRAME_KEY_BYTES], other_key[FRAME_KEY_BYTES];
	int others[MOVERS_MAX];
	uint32_t num_movers = s->agent->transport->num_movers;
	sem_init(&made, 0, 0);
	sem_init(&go, 0, 0);
	xfer_part_advance(whole, CHUNKS);
	int other = peer_enter(s, OTHER, whole, other_key);
	for (uint32_t i = 0; i < num_movers; i++)
		others[i] = peer_join(s, OTHER, other_key);
	movers_turn(s, others, num_movers, 1);

	int control = peer_enter(s, LEG, s->part, key);
	__atomic_store_n(&held, true, __ATOMIC_RELEASE);
	int data = peer_join(s, LEG, key);
	peer_ask(data, LEG, 0, 1);
	sem_wait(&made);
	/* A connection that has begun by now has found that it must wait. */
	movers_turn(s, others, num_movers, 3);
	xfer_part_advance(s->part, CHUNKS);
	__atomic_store_n(&held, false, __ATOMIC_RELEASE);
	sem_post(&go);
	peer_take_data(s, data, 0);

	const int all[] = {other, control, data};
	for (uint32_t i = 0; i < num_movers; i++)
		close(others[i]);
	for (uint32_t i = 0; i < 3; i++)
		close(all[i]);
	rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, LEG);
	rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, OTHER);
	peer_finish(s);
	xfer_part_release(whole);
	sem_destroy(&made);
	sem_destroy(&go);
}

struct stop {
	struct loop_task task;
	sem_t there, go;
};

static void
run_stop(struct loop_task *task)
{
	struct stop *stop = loop_container(task, struct stop, task);
	sem_post(&stop->there);
	sem_wait(&stop->go);
}

/* What it says to the reader finds that one gone: no reason to take the memory for readable. */
Test(transport_join, reader_goes_while_the_memory_is_lost__ended_by_the_memory)
{
	static struct stop stops[2];
	struct peer_setup *s = peer_start(0);
	struct loop *acceptor = s->agent->transport->acceptor;
	const struct linger reset = {.l_onoff = 1, .l_linger = 0};
	uint8_t key[FRAME_KEY_BYTES];
	int control = peer_enter(s, LEG, s->part, key);
	for (int i = 0; i < 2; i++) {
		stops[i].task.run = run_stop;
		sem_init(&stops[i].there, 0, 0);
		sem_init(&stops[i].go, 0, 0);
	}
	loop_post(acceptor, &stops[0].task);
	sem_wait(&stops[0].there);
	/* Both in its next turn, in this order: it sees no socket in between. */
	loop_post(acceptor, &stops[1].task);
	xfer_part_fail(s->part);
	sem_post(&stops[0].go);
	sem_wait(&stops[1].there);
	cr_assert_eq(setsockopt(control, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
	close(control);
	sem_post(&stops[1].go);
	const struct transport_event *ended = rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, LEG);
	cr_assert_eq(ended->code, TH_E_STALE_MEMORY, "%s", ended->text);
	peer_finish(s);
}

/* ---- a copy within the host ---------------------------------------------------------------- */

enum step { STEP_NONE, STEP_ARMED, STEP_FOUND_NOTHING, STEP_ARRIVED, STEP_SETTLED };

static pthread_mutex_t steps_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stepped = PTHREAD_COND_INITIALIZER;
static enum step step;
static struct chunk_ledger *watched; /* the first one that is taken from */
static _Thread_local bool found_nothing;

bool __real_chunk_ledger_take(struct chunk_ledger *ledger, uint32_t limit, uint32_t *ret_chunk);
bool __wrap_chunk_ledger_take(struct chunk_ledger *ledger, uint32_t limit, uint32_t *ret_chunk);
int __real_chunk_ledger_arrived(
	struct chunk_ledger *ledger, uint32_t chunk, const struct th_hash *digest);
int __wrap_chunk_ledger_arrived(
	struct chunk_ledger *ledger, uint32_t chunk, const struct th_hash *digest);

/* Under the lock, as the next one. */
static void
step_to(enum step to)
{
	if (step < to)
		step = to;
	pthread_cond_broadcast(&stepped);
}

static void
wait_step(enum step until)
{
	while (step < until)
		pthread_cond_wait(&stepped, &steps_lock);
}

bool
__wrap_chunk_ledger_take(struct chunk_ledger *ledger, uint32_t limit, uint32_t *ret_chunk)
{
	pthread_mutex_lock(&steps_lock);
	bool found = __real_chunk_ledger_take(ledger, limit, ret_chunk);
	if (step != STEP_NONE && !watched)
		watched = ledger;
	if (step != STEP_NONE && ledger == watched && !found) {
		found_nothing = true;
		step_to(STEP_FOUND_NOTHING);
		wait_step(STEP_ARRIVED);
	} else if (step != STEP_NONE && ledger != watched) {
		if (found_nothing) /* and has left that leg */
			step_to(STEP_SETTLED);
		wait_step(STEP_SETTLED);
	}
	pthread_mutex_unlock(&steps_lock);
	return found;
}

int
__wrap_chunk_ledger_arrived(
	struct chunk_ledger *ledger, uint32_t chunk, const struct th_hash *digest)
{
	pthread_mutex_lock(&steps_lock);
	bool holds = step != STEP_NONE && ledger == watched;
	if (holds)
		wait_step(STEP_FOUND_NOTHING);
	int result = __real_chunk_ledger_arrived(ledger, chunk, digest);
	if (holds) {
		step_to(STEP_ARRIVED);
		wait_step(STEP_SETTLED);
	}
	pthread_mutex_unlock(&steps_lock);
	return result;
}

Test(transport_join, source_fails_and_another_thread_brings_the_last_chunk__done)
{
	static const uint64_t one_chunk[] = {100000};
	struct rig_shard from, to[2];
	struct xfer_part *parts[2];
	struct peer_setup *s = peer_start(0);
	if (s->agent->transport->num_movers < 2) { /* one CPU: one thread copies */
		peer_finish(s);
		return;
	}
	rig_shard_init(&from, one_chunk, 1, 7);
	struct xfer_part *source = rig_part(&from, true);
	rig_add_digests(source);
	xfer_part_advance(source, 1);
	xfer_part_fail(source);
	for (uint32_t i = 0; i < 2; i++) {
		rig_shard_init(&to[i], one_chunk, 1, 0);
		parts[i] = rig_part(&to[i], true);
	}
	pthread_mutex_lock(&steps_lock);
	step = STEP_ARMED;
	cr_assert_eq(transport_copy(s->agent->transport, LEG, source, parts[0]), 0);
	wait_step(STEP_FOUND_NOTHING);
	cr_assert_eq(transport_copy(s->agent->transport, OTHER, source, parts[1]), 0);
	pthread_mutex_unlock(&steps_lock);
	rig_wait(&s->rig, s->agent, TRANSPORT_DONE, LEG);
	rig_wait(&s->rig, s->agent, TRANSPORT_DONE, OTHER);
	for (uint32_t i = 0; i < 2; i++) {
		cr_assert(rig_shards_equal(&from, &to[i]));
		xfer_part_release(parts[i]);
	}
	xfer_part_release(source);
	peer_finish(s);
	for (uint32_t i = 0; i < 2; i++)
		rig_shard_fini(&to[i]);
	rig_shard_fini(&from);
}
