/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rig_fake_gpus - see rig_fake_gpus.h.
 */
#include "tests/support/rig_fake_gpus.h"

#include <poll.h>
#include <sys/mman.h>

#include "ipc/base/assert.h"
#include "transport/access.h"

static uint8_t *
allocate(uint64_t bytes)
{
	return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
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
share(struct gpus *gpus, const struct rig_shard *shard)
{
	static const uint8_t uuid[16] = {7};
	struct cuda_handle handle = {.kind = CUDA_KIND_LEGACY, .bytes = shard->bytes};
	struct th_err err;
	uint64_t piece;
	struct gpu_space *space = gpu_space_new(gpus, uuid, "rig", &err);
	int rc = gpu_space_add(space, &handle, (uintptr_t)shard->memory, -1, &err, &piece);
	TH_ASSERT(rc == 0);
	return space;
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
	access_sweep();
	rig_gpus = NULL;
	gpus_free(mine.gpus);
}
