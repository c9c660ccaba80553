/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rig_fake_gpus - see rig_fake_gpus.h.
 */
#include "tests/support/gpu/rig_fake_gpus.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "transport/part/fd_memory.h"

static uint8_t *
allocate(uint64_t bytes, uint64_t *ret_gpu)
{
	void *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	*ret_gpu = (uintptr_t)memory;
	return memory;
}

static struct rig_gpus mine;

/* What was abandoned may still be read. */
static void
release(uint8_t *memory, uint64_t bytes)
{
	while (fake_gpus_running(mine.gpus) > 0)
		(void)poll(NULL, 0, 1);
	munmap(memory, bytes);
}

static struct gpu_space *
share_on(struct gpus *gpus, const struct rig_shard *shard, uint8_t gpu)
{
	const uint8_t uuid[16] = {gpu};
	struct cuda_handle handle = {.kind = CUDA_KIND_LEGACY, .bytes = shard->bytes};
	struct th_err err;
	struct gpu_space *space = gpu_space_new(gpus, uuid, "rig", &err);
	int rc = gpu_space_add(space, &handle, (uintptr_t)shard->memory, -1, NULL, &err);
	TH_ASSERT(rc == 0);
	return space;
}

static struct gpu_space *
share(struct gpus *gpus, const struct rig_shard *shard)
{
	return share_on(gpus, shard, '0');
}

struct xfer_part *
rig_fake_part(struct rig_shard *shard, const char *rows, bool verify)
{
	uint32_t count = shard->manifest.num_rows;
	struct xfer_place *places = th_calloc(count, sizeof(places[0]));
	struct fd_memory *access[RIG_FAKE_GPUS];
	TH_ASSERT(strlen(rows) == count);
	for (uint8_t i = 0; i < RIG_FAKE_GPUS; i++) {
		access[i] = NULL;
		if (!strchr(rows, '0' + i))
			continue;
		struct gpu_space *space = share_on(mine.gpus, shard, (uint8_t)('0' + i));
		access[i] = fd_memory_new_gpu(mine.gpus, space);
		gpu_space_release(space);
	}
	for (uint32_t i = 0; i < count; i++) {
		if (rows[i] == 'm') {
			places[i].data = shard->tensors[i];
			continue;
		}
		TH_ASSERT(rows[i] >= '0' && rows[i] < '0' + RIG_FAKE_GPUS);
		places[i].access = access[rows[i] - '0'];
		places[i].place = (uintptr_t)shard->tensors[i];
	}
	struct xfer_part *part =
		xfer_part_new_places(shard->table, places, count, verify, NULL, NULL);
	TH_ASSERT(part);
	for (uint32_t i = 0; i < RIG_FAKE_GPUS; i++)
		fd_memory_release(access[i]);
	free(places);
	return part;
}

static struct rig_gpus mine = {
	.allocate = allocate, .release = release, .share = share, .unshare = gpu_space_release};

void
rig_fake_gpus_init(uint64_t staging_bytes)
{
	mine.gpus = fake_gpus_new(staging_bytes);
	rig_gpus = &mine;
}

void
rig_fake_gpus_fini(void)
{
	fd_memory_sweep();
	rig_gpus = NULL;
	gpus_free(mine.gpus);
}

uint32_t
rig_fake_count(enum gpu_run_op op)
{
	return fake_gpus_count(mine.gpus, op);
}
