/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed_stress - packed buffers that are filled and read at the same time, by many threads. Runs
 * under ThreadSanitizer.
 *
 *   publisher (hasher, stopped now and then) -> first -> second
 *   publisher -> third, which came by TCP and is packed by two threads meanwhile -> fourth
 *
 * Each reader reads as a NIC would, no further than packed_prefix says; in the end all are equal.
 */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/name.h"
#include "tests/support/transport/transport_rig.h"
#include "transport/hash/digest.h"
#include "transport/part/packed.h"
#include "transport/transport_own.h"

#define ROUNDS 2
#define ROUNDS_LONG 12 /* with TH_LONG=1 in the environment */
#define SMALL 3000
#define PAUSE_US 20

struct end {
	struct rig_shard shard;
	struct packed *packed;
	struct xfer_part *part;
	struct end *from; /* NULL: the publisher */
	bool by_tcp;
	pthread_t threads[3];
	uint32_t num_threads;
	uint32_t told; /* atomic */
};

static uint64_t sizes[SMALL + 3];

static uint8_t *
packed_chunk(const struct end *end, uint32_t chunk)
{
	return packed_data(end->packed) + packed_at(end->shard.table, chunk);
}

static void
look_on(void *arg)
{
	__atomic_add_fetch((uint32_t *)arg, 1, __ATOMIC_RELAXED);
}

/* ---- readers -------------------------------------------------------------------------------- */

/* Tensor by tensor. */
static void
copy_rows(const struct end *from, const struct end *to, uint32_t chunk)
{
	const struct chunk_table *table = to->shard.table;
	for (uint32_t r = table->first[chunk]; r < table->first[chunk + 1]; r++) {
		const struct chunk_range *range = &table->ranges[r];
		memcpy(to->shard.tensors[range->row] + range->offset,
			from->shard.tensors[range->row] + range->offset, range->bytes);
	}
}

static void
take(struct end *end, uint32_t chunk)
{
	struct end *from = end->from;
	struct th_hash digest;
	int rc;
	if (packed_has(end->part, chunk) && !end->by_tcp) {
		memcpy(packed_chunk(end, chunk), packed_chunk(from, chunk),
			chunk_bytes(end->shard.table, chunk));
		rc = packed_landed(end->part, chunk, &digest);
	} else {
		copy_rows(from, end, chunk);
		rc = part_digest(end->part, chunk, &digest);
	}
	TH_ASSERT(rc == 0);
	TH_ASSERT(th_hash_equal(digest, *xfer_part_digest(from->part, chunk)));
	xfer_part_add_digests(end->part, chunk, &digest, 1);
	xfer_part_advance(end->part, chunk + 1);
}

static void *
read_main(void *arg)
{
	struct end *end = arg;
	for (uint32_t c = 0; c < end->shard.table->num_chunks; c++) {
		while (packed_prefix(end->from->part) <= c)
			usleep(PAUSE_US);
		take(end, c);
	}
	return NULL;
}

static void *
fill_main(void *arg)
{
	struct end *end = arg;
	while (packed_prefix(end->part) < end->shard.table->num_chunks) {
		int rc = packed_fill(end->part, 1);
		TH_ASSERT(rc >= 0);
		if (rc == 0)
			usleep(PAUSE_US);
	}
	return NULL;
}

/* ---- a round --------------------------------------------------------------------------------- */

static void
end_init(struct end *end, struct end *from, uint64_t fill)
{
	*end = (struct end){.from = from};
	rig_shard_init(&end->shard, sizes, SMALL + 3, fill);
	end->packed = packed_new(end->shard.table);
	end->part = rig_part(&end->shard, true);
	TH_ASSERT(end->packed && xfer_part_set_packed(end->part, end->packed) == 0);
	xfer_part_watch(end->part, look_on, &end->told);
}

static void
start(struct end *end, void *(*run)(void *arg))
{
	int rc = pthread_create(&end->threads[end->num_threads++], NULL, run, end);
	TH_ASSERT(rc == 0);
}

static void
end_fini(struct end *end)
{
	for (uint32_t i = 0; i < end->num_threads; i++)
		pthread_join(end->threads[i], NULL);
	TH_ASSERT(__atomic_load_n(&end->told, __ATOMIC_RELAXED) > 0);
	xfer_part_unwatch(end->part, look_on, &end->told);
	xfer_part_release(end->part);
	packed_release(end->packed);
}

static enum transport_event_kind
wait_job(struct transport *transport)
{
	struct transport_event event;
	struct pollfd poll_fd = {.fd = transport_fd(transport), .events = POLLIN};
	do {
		TH_ASSERT(poll(&poll_fd, 1, 60000) == 1);
	} while (transport_poll(transport, &event, 1) == 0);
	return event.kind;
}

static void
run_round(struct transport *transport, uint64_t round)
{
	struct end ends[5];
	enum transport_event_kind kind = TRANSPORT_HASH_STOPPED;
	end_init(&ends[0], NULL, round + 1);
	end_init(&ends[1], &ends[0], 0);
	end_init(&ends[2], &ends[1], 0);
	end_init(&ends[3], &ends[0], 0);
	end_init(&ends[4], &ends[3], 0);
	ends[3].by_tcp = true;
	for (uint32_t i = 1; i < 5; i++)
		start(&ends[i], read_main);
	start(&ends[3], fill_main);
	start(&ends[3], fill_main);
	for (uint64_t stop = 0; kind != TRANSPORT_HASHED; stop++) {
		int rc = transport_hash(transport, 1, ends[0].part);
		TH_ASSERT(rc == 0);
		if (stop < round) {
			usleep(500);
			transport_hash_stop(transport, 1);
		}
		kind = wait_job(transport);
	}
	/* Who reads from whom: the last one first. */
	for (uint32_t i = 5; i-- > 0;) {
		for (uint32_t t = 0; t < ends[i].num_threads; t++)
			pthread_join(ends[i].threads[t], NULL);
		ends[i].num_threads = 0;
	}
	for (uint32_t i = 1; i < 5; i++)
		TH_ASSERT(rig_shards_equal(&ends[0].shard, &ends[i].shard));
	for (uint32_t i = 0; i < 5; i++) {
		end_fini(&ends[i]);
		rig_shard_fini(&ends[i].shard);
	}
}

int
main(void)
{
	const struct transport_config config = {.hash_threads = 3};
	struct transport *transport;
	struct th_err err;
	for (uint32_t i = 0; i < SMALL; i++)
		sizes[i] = 500 + i * 7 % 9001;
	sizes[SMALL] = 2 * MIB;
	sizes[SMALL + 1] = 5 * MIB + 3;
	sizes[SMALL + 2] = 4 * MIB;
	int rc = transport_open(&config, &err, &transport);
	TH_ASSERT(rc == 0);
	const char *is_long = getenv("TH_LONG");
	uint64_t rounds = is_long && strcmp(is_long, "1") == 0 ? ROUNDS_LONG : ROUNDS;
	for (uint64_t round = 0; round < rounds; round++)
		run_round(transport, 2 * round);
	transport_close(transport);
	TH_ASSERT(packed_size_all() == 0);
	printf("%llu rounds\n", (unsigned long long)rounds);
	return 0;
}
