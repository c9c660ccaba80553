/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of daemon/host/regions for GPU memory: rows of it are registered by the worker's dma-bufs,
 * each once, and a shard of which one row has none is out of a NIC's reach.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/host/memory_gpu.h"
#include "daemon/host/regions.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/cuda/handle.h"
#include "tests/support/verbs_script.h"
#include "transport/access.h"
#include "transport/cuda/gpus.h"
#include "transport/rdma/packed.h"
#include "transport/rdma/region.h"

#define U8 1
#define MIB (UINT64_C(1) << 20)
#define BASE UINT64_C(0x7f0000000000)
#define PATIENCE_NS INT64_C(60000000000)

static struct script script;
static struct loop *keeper;
static struct rails *rails;
static struct gpus *gpus;
static struct regions regions;
static struct memory_set set;
static struct th_err err;
static struct manifest_row rows[8];
static struct tensors_place places[8];
static uint32_t num_rows;

static int
no_launch(void *arg, int sock, pid_t *ret_pid, struct th_err *reason)
{
	(void)arg;
	(void)sock;
	(void)ret_pid;
	return th_fail(reason, -ENOENT, "there are no processes here");
}

static void
setup(void)
{
	struct rails_config config = rails_config_default();
	const struct rails_user user = {0};
	const struct gpus_config gpus_config = {.launch = no_launch,
		.staging_bytes = 16 * MIB,
		.hang_ns = INT64_C(10000000000),
		.leave_ns = INT64_C(500000000),
		.idle_ns = INT64_C(10000000000)};
	script_init(&script, 2);
	cr_assert_eq(loop_new("keeper", LOOP_EPOLL, NULL, NULL, &keeper), 0);
	cr_assert_eq(rails_new(script_verbs(&script), &config, keeper, &user, &rails), 0);
	cr_assert_eq(gpus_new(&gpus_config, &err, &gpus), 0, "%s", err.text);
	regions = (struct regions){.rails = rails,
		.near = regions_near_all,
		.near_pci = regions_near_all_pci,
		.gpus = gpus,
		.root = ""};
}

static uint32_t
mrs(uint32_t device)
{
	script_lock(&script);
	uint32_t count = script.devices[device].mrs;
	script_unlock(&script);
	return count;
}

static void
wait_mrs(uint32_t count)
{
	int64_t end_ns = th_now_ns() + PATIENCE_NS;
	while (mrs(0) != count || mrs(1) != count) {
		cr_assert_lt(th_now_ns(), end_ns);
		usleep(200);
	}
}

static void
teardown(void)
{
	memory_fini(&set);
	wait_mrs(0);
	while (rails_regions(rails) > 0)
		usleep(200);
	rails_free(rails);
	loop_free(keeper);
	script_fini(&script);
	access_sweep();
	gpus_free(gpus);
}

TestSuite(daemon_dmabuf, .init = setup, .fini = teardown, .timeout = 120);

static uint32_t
piece(uint64_t base, uint64_t bytes)
{
	const struct memory_limits limits = {.objects_max = 100, .descriptors_max = 100};
	const struct memory_gpu_limits gpu_limits = {.gpus = gpus, .label = "m/r/0", .process = 7};
	struct cuda_handle handle = {.kind = CUDA_KIND_LEGACY, .bytes = bytes, .id = 1};
	struct fdmsg_gpu message = {.base = base, .bytes = bytes};
	uint32_t id = 0;
	int fd = -1;
	memcpy(message.handle, &handle, sizeof(handle));
	cr_assert_eq(memory_gpu_add(&set, &message, &fd, &limits, &gpu_limits, false, &err, &id), 0,
		"%s", err.text);
	return id;
}

/* A file stands for it: the devices of this test take any. */
static int
dmabuf(uint64_t base, uint64_t bytes, uint64_t offset, uint32_t descriptors_max)
{
	const struct memory_limits limits = {.objects_max = 100,
		.descriptors_max = descriptors_max,
		.kept_by_all = set.descriptors};
	const struct fdmsg_memory message = {
		.kind = FDMSG_DMABUF, .base = base, .bytes = bytes, .offset = offset};
	uint32_t id = 0;
	int fd = memfd_create("dma-buf", MFD_CLOEXEC);
	cr_assert_geq(fd, 0);
	int rc = memory_add(&set, &message, &fd, &limits, &err, &id);
	cr_assert_eq(rc < 0, fd >= 0, "a descriptor is taken or left");
	th_fd_close(&fd);
	return rc < 0 ? rc : (int)id;
}

static void
row(const char *name, uint32_t id, uint64_t offset, uint64_t bytes)
{
	rows[num_rows] = (struct manifest_row){.name = name, .dtype = U8, .ndim = 1};
	rows[num_rows].local_shape[0] = bytes;
	places[num_rows++] = (struct tensors_place){id, offset, bytes};
}

static struct tensors *
cover(void)
{
	const struct tensors_rows all = {num_rows, rows, places};
	struct tensors *tensors;
	cr_assert_eq(tensors_new(&all, &set, &err, &tensors), 0, "%s", err.text);
	regions_cover(&regions, tensors, &set, "m/r/0");
	return tensors;
}

Test(daemon_dmabuf, rows__in_two_dmabufs_over_three_pieces__each_registered_once)
{
	uint32_t first = piece(BASE, 4 * MIB), second = piece(BASE + 4 * MIB, 4 * MIB);
	uint32_t third = piece(BASE + 64 * MIB, 8 * MIB);
	cr_assert_eq(dmabuf(BASE + 64 * MIB, 8 * MIB, 0, 100), 4);
	cr_assert_eq(dmabuf(BASE + MIB, 7 * MIB, 4096, 100), 5);
	row("a", first, MIB, 5 * MIB); /* the first two pieces */
	row("b", second, 2 * MIB, 2 * MIB);
	row("c", third, 3, 4 * MIB);
	struct tensors *tensors = cover();
	cr_assert(tensors->covered);
	cr_assert_null(tensors->no_rdma, "%s", tensors->no_rdma);
	struct region *region = memory_object(&set, 5)->region;
	cr_assert_not_null(region);
	cr_assert_eq(tensors->places[0].region, region);
	cr_assert_eq(tensors->places[0].region_at, 0);
	cr_assert_eq(tensors->places[1].region, region);
	cr_assert_eq(tensors->places[1].region_at, 5 * MIB);
	cr_assert_eq(tensors->places[2].region, memory_object(&set, 4)->region);
	cr_assert_eq(tensors->places[2].region_at, 3);
	cr_assert_null(tensors->packed);
	wait_mrs(2);
	script_lock(&script);
	for (uint32_t i = 0; i < 2; i++) {
		const struct script_reg *record = &script.devices[0].records[i];
		cr_assert_null(record->data);
		cr_assert_geq(record->fd, 0);
		cr_assert_eq(record->access & VERBS_REMOTE_READ, VERBS_REMOTE_READ);
	}
	script_unlock(&script);
	tensors_free(tensors);
	tensors = cover(); /* other tensors in the same memory */
	cr_assert_eq(tensors->places[0].region, region);
	cr_assert_eq(mrs(0), 2);
	tensors_free(tensors);
	cr_assert_eq(memory_forget(&set, 5, false), 0);
	cr_assert_eq(set.descriptors, 2);
	wait_mrs(1);
}

Test(daemon_dmabuf, rows__small_ones__have_the_packed_buffer)
{
	uint32_t id = piece(BASE, 8 * MIB);
	cr_assert_eq(dmabuf(BASE, 4 * MIB, 0, 100), 2);
	row("large", id, 0, 4 * MIB);
	row("small", id, 5 * MIB, MIB); /* beyond the dma-buf, and that is no matter */
	struct tensors *tensors = cover();
	cr_assert(tensors->covered);
	cr_assert_null(tensors->no_rdma);
	cr_assert_not_null(tensors->packed);
	tensors_free(tensors);
}

Test(daemon_dmabuf, row__without_a_dmabuf__puts_the_shard_out_of_reach)
{
	uint32_t id = piece(BASE, 8 * MIB);
	cr_assert_eq(dmabuf(BASE, 4 * MIB, 0, 100), 2);
	row("a", id, 0, 2 * MIB);
	row("b", id, 3 * MIB, 2 * MIB);
	struct tensors *tensors = cover();
	cr_assert(tensors->covered, "there is nothing to come");
	cr_assert_str_eq(tensors->no_rdma, "its GPU memory has no dma-buf");
	cr_assert_null(tensors->places[0].region);
	cr_assert_eq(mrs(0), 0);
	tensors_free(tensors);
}

Test(daemon_dmabuf, dmabuf__that_cannot_be__is_refused)
{
	struct tensors *tensors = NULL;
	cr_assert_eq(dmabuf(BASE, 0, 0, 100), TH_E_INVALID);
	cr_assert_eq(dmabuf(UINT64_MAX - 4095, 4096, 0, 100), TH_E_INVALID);
	cr_assert_eq(dmabuf(BASE, 4096, UINT64_MAX - 4095, 100), TH_E_INVALID);
	cr_assert_eq(dmabuf(BASE, 4096, 0, 3), 1);
	cr_assert_eq(dmabuf(BASE + 4096, 4096, 0, 3), TH_E_LIMIT);
	row("a", 1, 0, 4096);
	const struct tensors_rows all = {num_rows, rows, places};
	cr_assert_eq(tensors_new(&all, &set, &err, &tensors), TH_E_INVALID);
	cr_assert(strstr(err.text, "for NICs alone"), "%s", err.text);
}
