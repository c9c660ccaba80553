/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_stress - many legs at once, over TCP, by copy, and over RDMA of devices in memory that
 * lose ports and completion queues, also through buffers; between memory of every kind, chained,
 * stopped and fenced at random, with strangers at the door. Grants are given before and after their
 * readers come and taken back at any moment. Runs under ThreadSanitizer.
 *
 * After each round every leg must have had exactly one last event, and every part that is whole
 * must be right. A part that nobody may touch any more is made inaccessible at once: whoever does
 * is a crash. Prints its seed; takes another as its argument.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "tests/support/rdma/fake_rdma.h"
#include "tests/support/rng.h"
#include "tests/support/transport/transport_rig.h"
#include "transport/leg/frame.h"
#include "transport/loop/crew.h"
#include "transport/rdma/memory/stage.h"

#define AGENTS 3
#ifdef __SANITIZE_THREAD__
#define READERS 7
#else
#define READERS 12
#endif
#define ROUNDS 12
#define HASH_TAG 1000
#define FAR_LIMIT 300000000 /* bytes a second: so that connections wait in turn */

static const uint64_t sizes[] = {100, 3 * MIB, 5 * MIB + 7, 2 * MIB - 1, 12 * MIB, 77};
#define ROWS (sizeof(sizes) / sizeof(sizes[0]))

struct reader {
	struct rig_shard shard;
	struct xfer_part *part;
	uint32_t agent;  /* where it lives */
	uint32_t source; /* reader that it pulls from; READERS: the publisher */
	uint64_t leg;
	bool local;
	bool over; /* its last event has come */
};

/* Tickets that are expected, presented and taken back in any order, at agent 0. */
#define GRANTS_MAX 400
#define GRANTS_FIRST 1000 /* of their legs */

struct world {
	struct rig rig;
	uint32_t num_grants;
	struct rig_shard published;
	struct xfer_part *part;
	struct reader readers[READERS];
	struct th_rng rng;
};

static struct rig_agent *
agent_of(struct world *world, uint32_t reader)
{
	return &world->rig.agents[reader == READERS ? 0 : world->readers[reader].agent];
}

/* Half of them is mapped. */
static struct xfer_part *
any_part(struct world *world, struct rig_agent *agent, struct rig_shard *shard)
{
	uint64_t pick = th_rng_below(&world->rng, 6);
	enum rig_memory memory = pick < 3    ? RIG_MAPPED
				 : pick == 3 ? RIG_FILE
				 : pick == 4 ? RIG_PROCESS
					     : RIG_MIXED;
	if (memory == RIG_FILE || memory == RIG_MIXED)
		rig_shard_to_file(shard);
	/* One of them is not registered: its bytes go through slots, as those that are not mapped.
	 */
	if (th_rng_below(&world->rng, 8) != 0)
		rig_register(agent, shard);
	return rig_part_of(shard, memory, true);
}

static void
start_leg(struct world *world, uint32_t index)
{
	struct reader *reader = &world->readers[index];
	/* Only from one that comes before: no cycles. */
	uint64_t pick = th_rng_below(&world->rng, index + 1);
	reader->source = pick == index ? READERS : (uint32_t)pick;
	reader->agent = (uint32_t)th_rng_below(&world->rng, AGENTS);
	reader->leg = index + 1;
	rig_shard_init(&reader->shard, sizes, ROWS, 0);
	reader->part = any_part(world, agent_of(world, index), &reader->shard);
	struct xfer_part *from =
		reader->source == READERS ? world->part : world->readers[reader->source].part;
	struct rig_agent *at = agent_of(world, index), *source = agent_of(world, reader->source);
	reader->local = at == source;
	if (reader->local) {
		int rc = transport_copy(at->transport, reader->leg, from, reader->part);
		TH_ASSERT(rc == 0);
	} else {
		at->far = source->far = th_rng_below(&world->rng, 2) == 0;
		/* As if its host held a version that is the same. */
		at->donor = th_rng_below(&world->rng, 2) == 0 ? world->part : NULL;
		rig_pull(source, at, reader->leg, from, reader->part);
	}
}

static uint32_t
last_events(const struct rig_agent *agent, uint64_t leg)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < agent->num_events; i++) {
		enum transport_event_kind kind = agent->events[i].kind;
		if (agent->events[i].leg == leg &&
			(kind == TRANSPORT_DONE || kind == TRANSPORT_FAILED ||
				kind == TRANSPORT_STOPPED))
			count++;
	}
	return count;
}

/* Noise at a random agent's door. */
static void
knock(struct world *world)
{
	struct rig_agent *agent = &world->rig.agents[th_rng_below(&world->rng, AGENTS)];
	const char *colon = strrchr(transport_address(agent->transport), ':');
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
	uint8_t noise[200];
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0) {
		th_rng_bytes(&world->rng, noise, sizeof(noise));
		ssize_t sent =
			send(fd, noise, th_rng_below(&world->rng, sizeof(noise)), MSG_NOSIGNAL);
		(void)sent;
	}
	close(fd);
}

/* What happens to a device. */
static void
strike(struct world *world)
{
	struct rig_agent *agent = &world->rig.agents[th_rng_below(&world->rng, AGENTS)];
	if (agent->num_rails == 0)
		return;
	struct verbs_device *device = agent->devices[th_rng_below(&world->rng, agent->num_rails)];
	switch (th_rng_below(&world->rng, 8)) {
	case 0:
		fake_rdma_break_cqs(device);
		break;
	case 1:
		fake_rdma_fail_read(device, 0, VERBS_ACCESS);
		break;
	case 2:
		fake_rdma_fail_read(device, (uint32_t)th_rng_below(&world->rng, 20), VERBS_GONE);
		break;
	case 3:
	case 4:
		fake_rdma_port_set(device, 1, false);
		break;
	default:
		fake_rdma_port_set(device, 1, true);
		break;
	}
}

static void
present(struct world *world, uint64_t leg)
{
	struct rig_agent *agent = &world->rig.agents[0];
	const char *colon = strrchr(transport_address(agent->transport), ':');
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
	struct frame_hello hello = {
		.ticket = rig_ticket(leg), .protocol = FRAME_PROTOCOL, .mode = FRAME_MODE_TCP};
	const struct frame frame = {.kind = FRAME_HELLO, .leg = leg, .bytes = FRAME_HELLO_BYTES};
	uint8_t data[FRAME_BYTES + FRAME_HELLO_BYTES];
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	frame_encode(&frame, data);
	frame_encode_hello(&hello, data + FRAME_BYTES);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0) {
		ssize_t sent = send(fd, data, sizeof(data), MSG_NOSIGNAL);
		(void)sent;
	}
	close(fd);
}

/* One more grant: its reader comes before it, after it, twice or never; it is fenced or not. */
static void
grant(struct world *world)
{
	struct transport *transport = world->rig.agents[0].transport;
	if (world->num_grants == GRANTS_MAX)
		return;
	uint64_t leg = GRANTS_FIRST + world->num_grants++;
	const struct th_ticket ticket = rig_ticket(leg);
	uint64_t order = th_rng_below(&world->rng, 8);
	if (order & 1)
		present(world, leg);
	rig_offer(&world->rig.agents[0], leg, world->part);
	if (order & 2)
		present(world, leg);
	if (order & 4)
		transport_fence(transport, leg);
	else
		transport_refuse(transport, &ticket, TH_E_NOT_AVAILABLE, "nobody waits");
}

/* Each that was expected has one end, and none begins twice. */
static void
end_grants(struct world *world)
{
	struct rig_agent *agent = &world->rig.agents[0];
	for (uint32_t i = 0; i < world->num_grants; i++)
		transport_fence(agent->transport, GRANTS_FIRST + i);
	for (uint32_t i = 0; i < world->num_grants; i++)
		rig_wait(&world->rig, agent, TRANSPORT_ENDED, GRANTS_FIRST + i);
	for (uint32_t i = 0; i < agent->num_events; i++) {
		const struct transport_event *event = &agent->events[i];
		for (uint32_t j = 0; j < i && event->leg >= GRANTS_FIRST; j++)
			TH_ASSERT(agent->events[j].kind != event->kind ||
				  event->kind != TRANSPORT_ENDED ||
				  agent->events[j].leg != event->leg);
	}
}

static void
disturb(struct world *world)
{
	for (uint64_t count = th_rng_below(&world->rng, 6); count > 0; count--)
		grant(world);
	uint32_t index = (uint32_t)th_rng_below(&world->rng, READERS);
	struct reader *reader = &world->readers[index];
	switch (th_rng_below(&world->rng, 7)) {
	case 6:
		if (!reader->local)
			transport_drop_donor(agent_of(world, index)->transport, reader->leg);
		break;
	case 0:
		transport_stop(agent_of(world, index)->transport, reader->leg);
		break;
	case 1:
		if (!reader->local)
			transport_fence(agent_of(world, reader->source)->transport, reader->leg);
		break;
	case 2:
		transport_hash_stop(world->rig.agents[0].transport, HASH_TAG + 1);
		break;
	case 3:
	case 4:
		strike(world);
		break;
	default:
		knock(world);
		break;
	}
}

/* A leg that is over: one last event; whole and right, or cut off. */
static void
look(struct world *world)
{
	for (uint32_t i = 0; i < READERS; i++) {
		struct reader *reader = &world->readers[i];
		uint32_t events = last_events(agent_of(world, i), reader->leg);
		TH_ASSERT(events <= 1);
		if (events == 0 || reader->over)
			continue;
		reader->over = true;
		/* Others may still read it, and nobody may write. */
		mprotect(reader->shard.memory, reader->shard.bytes, PROT_READ);
		if (rig_find(agent_of(world, i), TRANSPORT_DONE, reader->leg))
			TH_ASSERT(rig_shards_equal(&world->published, &reader->shard));
	}
}

/* Who is cut off from its source ends as well, one after the other; the rest is stopped. */
static void
settle(struct world *world)
{
	bool all = false;
	for (int turns = 0; !all; turns++) {
		TH_ASSERT(turns < 3000);
		rig_pump(&world->rig, 20);
		look(world);
		all = true;
		for (uint32_t i = 0; i < READERS; i++) {
			struct reader *reader = &world->readers[i];
			bool orphan = reader->source != READERS &&
				      world->readers[reader->source].over &&
				      xfer_part_prefix(world->readers[reader->source].part) <
					      reader->shard.table->num_chunks;
			if (!reader->over && orphan)
				transport_stop(agent_of(world, i)->transport, reader->leg);
			all = all && reader->over;
		}
	}
}

static void
run_round(struct world *world, uint32_t disturbances, bool close_midway, bool with_rdma)
{
	memset(&world->rig, 0, sizeof(world->rig));
	memset(world->readers, 0, sizeof(world->readers));
	world->num_grants = 0;
	world->rig.num_rails = with_rdma ? 2 : 0;
	world->rig.far.limit = FAR_LIMIT;
	/* Now and then too little for all who copy. */
	world->rig.stage_bytes = (1 + th_rng_below(&world->rng, 12)) * SLAB_BYTES;
	for (int i = 0; i < AGENTS; i++)
		rig_add_agent(&world->rig, 0, 2);
	rig_shard_init(&world->published, sizes, ROWS, 1 + th_rng_below(&world->rng, 1000));
	/* A second part of the same memory, hashed at the same time: its job may be stopped. */
	struct xfer_part *twin = rig_part(&world->published, true);
	world->part = any_part(world, &world->rig.agents[0], &world->published);
	struct transport *home = world->rig.agents[0].transport;
	int rc = transport_hash(home, HASH_TAG + 1, twin);
	TH_ASSERT(rc == 0);
	for (uint32_t i = 0; i < READERS; i++) {
		start_leg(world, i);
		if (i == READERS / 2) {
			rc = transport_hash(home, HASH_TAG, world->part);
			TH_ASSERT(rc == 0);
		}
	}
	for (uint32_t i = 0; i < disturbances; i++) {
		disturb(world);
		rig_pump(&world->rig, (int)th_rng_below(&world->rng, 4));
		look(world);
	}
	if (!close_midway) {
		settle(world);
		end_grants(world);
		rig_wait(&world->rig, &world->rig.agents[0], TRANSPORT_HASHED, HASH_TAG);
	}
	rig_halt(&world->rig);
	/* What was cut off midway may still be written: not into what comes next at its place. */
	bool all = crew_wait(th_now_ns() + INT64_C(30000000000));
	TH_ASSERT(all);
	for (uint32_t i = 0; i < READERS; i++) {
		xfer_part_release(world->readers[i].part);
	}
	xfer_part_release(twin);
	xfer_part_release(world->part);
	rig_fini(&world->rig);
	for (uint32_t i = 0; i < READERS; i++)
		rig_shard_fini(&world->readers[i].shard);
	rig_shard_fini(&world->published);
}

int
main(int argc, char **argv)
{
	static struct world world;
	uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	printf("seed=%llu\n", (unsigned long long)seed);
	th_rng_init_number(&world.rng, seed);
	for (uint32_t round = 0; round < ROUNDS; round++)
		run_round(&world, round % 3 == 0 ? 0 : 8 * round, round % 4 == 3, round % 2 == 1);
	return 0;
}
