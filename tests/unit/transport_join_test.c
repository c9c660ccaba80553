/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A data connection that joins its leg while the part grows to its end: what it waits for it is
 * told. The porter, which makes the connection, is held in the middle (--wrap), and the test plays
 * both readers over plain sockets.
 */
#include <criterion/criterion.h>
#include <semaphore.h>
#include <unistd.h>

#include "tests/support/transport_peer.h"
#include "transport/internal.h"
#include "transport/tcp.h"

#define LEG 5
#define OTHER 6
#define CHUNKS 8

static sem_t made, go;
static bool held; /* atomic */

struct data_out *__real_data_out_new(struct leg_out *leg, struct loop *loop, int fd);
struct data_out *__wrap_data_out_new(struct leg_out *leg, struct loop *loop, int fd);

struct data_out *
__wrap_data_out_new(struct leg_out *leg, struct loop *loop, int fd)
{
	struct data_out *conn = __real_data_out_new(leg, loop, fd);
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
