/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of daemon/host/regions: which memory is registered with NICs, how often, and that it stays
 * mapped until no device knows it any more.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/host/memory/host_pool.h"
#include "daemon/host/memory/nic_regions.h"
#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "tests/support/folder.h"
#include "tests/support/rdma/fake_rdma.h"
#include "tests/support/transport/held_unmap.h"
#include "transport/part/fd_memory.h"
#include "transport/part/packed.h"
#include "transport/part/unmap.h"
#include "transport/rdma/memory/region.h"

#define U8 1
#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
#define PATIENCE_NS INT64_C(60000000000)
#define OBJECTS 3

struct world {
	struct fake_rdma *fake;
	struct verbs_device *devices[2];
	struct loop *keeper;
	struct rails *rails;
	struct regions regions;
	struct memory_set memory;
	int fds[OBJECTS];
	struct manifest_row *rows;
	struct tensors_place *places;
	char (*names)[16];
	uint32_t count;
};

static void
set_available(uint64_t bytes)
{
	char path[256];
	(void)mkdir(folder_path("proc"), 0700);
	snprintf(path, sizeof(path), "%s", folder_path("proc/meminfo"));
	FILE *file = fopen(path, "w");
	cr_assert_not_null(file);
	fprintf(file, "MemAvailable: %llu kB\n", (unsigned long long)(bytes / 1024));
	fclose(file);
}

static uint32_t
all_rails(void *arg, const void *data, uint64_t bytes)
{
	(void)arg;
	(void)data;
	(void)bytes;
	return UINT32_MAX;
}

/* Two rails; three objects of 32 MiB, of which the second begins within a page. */
static void
world_open(struct world *world, uint32_t rows_max)
{
	*world = (struct world){0};
	struct rails_config config = rails_config_default();
	const struct rails_user user = {0};
	world->fake = fake_rdma_new(false);
	struct fake_host *host = fake_rdma_host(world->fake);
	for (uint32_t i = 0; i < 2; i++)
		world->devices[i] = fake_rdma_device(host, NULL);
	cr_assert_eq(loop_new("keeper", LOOP_EPOLL, NULL, NULL, &world->keeper), 0);
	cr_assert_eq(
		rails_new(fake_rdma_verbs(host), &config, world->keeper, &user, &world->rails), 0);
	cr_assert_eq(rails_count(world->rails), 2);
	set_available(1024 * MIB);
	world->regions = (struct regions){.rails = world->rails, .near = all_rails, .root = folder};
	struct memory_limits limits = {.objects_max = 8, .descriptors_max = 8};
	for (uint32_t i = 0; i < OBJECTS; i++) {
		struct fdmsg_memory message = {.kind = FDMSG_MEMFD,
			.base = 0x1000,
			.bytes = 32 * MIB - (i == 1 ? 100 : 0),
			.offset = i == 1 ? 100 : 0};
		struct th_err err;
		uint32_t id;
		world->fds[i] = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		int copy = fcntl(world->fds[i], F_DUPFD_CLOEXEC, 0);
		cr_assert(copy >= 0 && ftruncate(copy, 32 * (off_t)MIB) == 0);
		cr_assert_eq(fcntl(copy, F_ADD_SEALS, F_SEAL_SHRINK), 0);
		cr_assert_eq(memory_add(&world->memory, &message, &copy, &limits, &err, &id), 0);
		cr_assert_eq(id, i + 1);
		if (copy >= 0)
			close(copy);
	}
	world->rows = th_calloc(rows_max, sizeof(world->rows[0]));
	world->places = th_calloc(rows_max, sizeof(world->places[0]));
	world->names = th_calloc(rows_max, sizeof(world->names[0]));
}

/* Their names are in the order of adding. */
static void
world_row(struct world *world, uint64_t bytes, uint32_t id, uint64_t offset)
{
	uint32_t i = world->count++;
	snprintf(world->names[i], sizeof(world->names[i]), "t%08u", i);
	world->rows[i] = (struct manifest_row){
		.name = world->names[i], .dtype = U8, .ndim = 1, .local_shape = {bytes}};
	world->places[i] = (struct tensors_place){id, offset, bytes};
}

static struct tensors *
world_register(struct world *world)
{
	struct tensors_rows rows = {world->count, world->rows, world->places};
	struct tensors *tensors;
	struct th_err err;
	cr_assert_eq(tensors_new(&rows, &world->memory, &err, &tensors), 0, "%s", err.text);
	regions_cover(&world->regions, tensors, &world->memory, "m/r/0");
	return tensors;
}

static void
wait_ready(struct region *region)
{
	int64_t end_ns = th_now_ns() + PATIENCE_NS;
	while (region_waiting(region) != 0) {
		cr_assert_lt(th_now_ns(), end_ns);
		usleep(200);
	}
}

static void
wait_for_zero(uint64_t (*what)(void))
{
	int64_t end_ns = th_now_ns() + PATIENCE_NS;
	while (what() != 0) {
		cr_assert_lt(th_now_ns(), end_ns);
		usleep(200);
	}
}

static struct fake_counters
counters_of(const struct world *world, uint32_t device)
{
	struct fake_counters counters;
	fake_rdma_counters(world->devices[device], &counters);
	return counters;
}

/* Registrations and their ends. */
static void
hold(struct world *world, bool held)
{
	for (uint32_t i = 0; i < 2; i++)
		fake_rdma_hold_regs(world->devices[i], held);
}

/* Nothing is left registered or mapped. */
static void
world_close(struct world *world)
{
	memory_fini(&world->memory);
	wait_for_zero(memory_unmapping);
	wait_for_zero(packed_size_all);
	wait_for_zero(memory_populating);
	rails_free(world->rails);
	loop_free(world->keeper);
	fake_rdma_free(world->fake);
	for (uint32_t i = 0; i < OBJECTS; i++)
		close(world->fds[i]);
	free(world->rows);
	free(world->places);
	free(world->names);
}

TestSuite(daemon_regions, .init = folder_make, .fini = folder_remove);

/* ---- what is registered --------------------------------------------------------------------- */

Test(daemon_regions, cover__ten_thousand_tensors_cost_as_much_as_ten)
{
	static struct world world;
	world_open(&world, 10005);
	for (uint32_t i = 0; i < 10000; i++)
		world_row(&world, KIB, 1, i * KIB);
	for (uint32_t i = 0; i < 5; i++)
		world_row(&world, 3 * MIB, 1, (12 + 3 * i) * MIB);
	struct tensors *tensors = world_register(&world);
	struct region *region = tensors->places[10000].region;
	cr_assert(region && tensors->packed && tensors->covered);
	for (uint32_t row = 0; row < 10000; row++)
		cr_assert_null(tensors->places[row].region);
	for (uint32_t row = 10000; row < 10005; row++) {
		cr_assert_eq(tensors->places[row].region, region);
		cr_assert_eq(tensors->places[row].region_at, (12 + 3 * (row - 10000)) * MIB);
	}
	wait_ready(region);
	wait_ready(packed_region(tensors->packed));
	for (uint32_t device = 0; device < 2; device++) {
		const struct fake_seen *seen = fake_rdma_seen(world.devices[device]);
		cr_assert_eq(seen->num_regs, 2);
		for (uint32_t i = 0; i < 2; i++) {
			const struct fake_reg *reg = &seen->regs[i];
			cr_assert_eq(reg->access & ~(unsigned)VERBS_RELAXED,
				VERBS_LOCAL_WRITE | VERBS_REMOTE_READ);
			cr_assert_lt(reg->iova, 4096, "an address of this process got out");
		}
	}
	/* The next tensors in the same memory find it registered. */
	struct tensors *again = world_register(&world);
	cr_assert_eq(again->places[10000].region, region);
	wait_ready(packed_region(again->packed));
	cr_assert_eq(counters_of(&world, 0).regs, 3);
	tensors_free(again);
	tensors_free(tensors);
	world_close(&world);
}

Test(daemon_regions, cover__only_memory_with_a_large_tensor__to_its_last_byte)
{
	static struct world world;
	struct region_key key;
	world_open(&world, 8);
	world_row(&world, 2 * MIB - 1, 1, 0);          /* small: packed */
	world_row(&world, 0, 2, 5);                    /* nowhere */
	world_row(&world, 2 * MIB, 2, 30 * MIB - 100); /* to the end of its region */
	world_row(&world, 2 * MIB, 2, 30 * MIB - 100); /* the same under another name */
	struct tensors *tensors = world_register(&world);
	cr_assert_eq(tensors->manifest.num_rows, 3);
	const struct xfer_place *large = &tensors->places[2];
	cr_assert_not_null(large->region);
	cr_assert_null(tensors->places[0].region);
	cr_assert_null(tensors->places[1].region);
	cr_assert_null(memory_find(&world.memory, 1)->region);
	cr_assert_null(memory_find(&world.memory, 3)->region);
	wait_ready(large->region);
	/* The mapping begins at the page, the object 100 bytes later. */
	cr_assert_eq(large->region_at, 30 * MIB);
	cr_assert_eq(region_bytes(large->region), 32 * MIB);
	cr_assert(region_mr(large->region, 1, large->region_at + 2 * MIB - 1, &key));
	cr_assert_eq(key.bytes, 1);
	cr_assert_not(region_mr(large->region, 1, large->region_at + 2 * MIB, &key));
	cr_assert_eq(packed_size(tensors->packed) % 4096, 0);
	cr_assert_geq(packed_size(tensors->packed), 2 * MIB - 1);
	/* A part of them knows. */
	struct xfer_part *part = xfer_part_new_places(
		tensors->table, tensors->places, tensors->manifest.num_rows, true, NULL, NULL);
	uint64_t at = 7;
	cr_assert_eq(xfer_part_region(part, 2, &at), large->region);
	cr_assert_eq(at, 30 * MIB);
	cr_assert_null(xfer_part_region(part, 0, &at));
	xfer_part_release(part);
	tensors_free(tensors);
	world_close(&world);
}

Test(daemon_regions, cover__one_tensor_that_no_nic_reaches__nothing_is_registered)
{
	static struct world world;
	struct memory_limits limits = {.objects_max = 8, .descriptors_max = 8};
	struct fdmsg_memory message = {.kind = FDMSG_FILE, .base = 0x1000, .bytes = MIB};
	struct th_err err;
	uint32_t id;
	world_open(&world, 8);
	int copy = fcntl(world.fds[2], F_DUPFD_CLOEXEC, 0);
	cr_assert_eq(memory_add(&world.memory, &message, &copy, &limits, &err, &id), 0);
	if (copy >= 0)
		close(copy);
	world_row(&world, 4 * MIB, 1, 0);
	world_row(&world, 10, 1, 4 * MIB);
	world_row(&world, 10, id, 0);
	struct tensors *tensors = world_register(&world);
	cr_assert_null(tensors->packed);
	cr_assert(tensors->covered);
	for (uint32_t row = 0; row < 3; row++)
		cr_assert_null(tensors->places[row].region);
	tensors_free(tensors);
	/* Likewise where there is no RDMA at all. */
	world.count = 1;
	world.regions.rails = NULL;
	tensors = world_register(&world);
	cr_assert_null(tensors->places[0].region);
	tensors_free(tensors);
	cr_assert_eq(counters_of(&world, 0).regs, 0);
	world_close(&world);
}

Test(daemon_regions, cover__a_device_that_refuses__costs_nothing_but_its_rail)
{
	static struct world world;
	world_open(&world, 8);
	fake_rdma_refuse(world.devices[1], FAKE_REG, FAKE_ALWAYS, -ENOMEM);
	world_row(&world, 4 * MIB, 1, 0);
	struct tensors *tensors = world_register(&world);
	wait_ready(tensors->places[0].region);
	cr_assert_eq(region_ready(tensors->places[0].region), 1);
	tensors_free(tensors);
	world_close(&world);
}

/* ---- how long ------------------------------------------------------------------------------- */

Test(daemon_regions, end__memory_stays_mapped_until_no_device_knows_it)
{
	static struct world world;
	world_open(&world, 8);
	world_row(&world, 4 * MIB, 1, 0);
	world_row(&world, 10, 2, 0);
	hold(&world, true);
	struct tensors *tensors = world_register(&world);
	while (counters_of(&world, 0).regs_held == 0 || counters_of(&world, 1).regs_held == 0)
		usleep(200);
	const struct memory *object = memory_find(&world.memory, 1);
	const void *map = object->map;
	const void *buffer = packed_data(tensors->packed);
	cr_assert_eq(memory_populating(), 32 * MIB);
	/* The worker goes, and all that it had. */
	tensors_free(tensors);
	for (uint32_t id = 2; id <= OBJECTS; id++)
		cr_assert_eq(memory_forget(&world.memory, id, false), 0);
	wait_for_zero(memory_unmapping);
	memory_fini(&world.memory);
	cr_assert(held_unmap_is_mapped(map) && held_unmap_is_mapped(buffer));
	cr_assert_eq(memory_unmapping(), 32 * MIB);
	cr_assert_gt(packed_size_all(), 0);
	hold(&world, false);
	wait_for_zero(memory_unmapping);
	wait_for_zero(packed_size_all);
	world_close(&world);
}

struct turn {
	struct loop_task task;
	bool taken; /* atomic */
};

static void
take_turn(struct loop_task *task)
{
	struct turn *turn = loop_container(task, struct turn, task);
	__atomic_store_n(&turn->taken, true, __ATOMIC_RELEASE);
}

/* Until the keeper has done what there was for it to do. */
static void
wait_keeper(struct world *world)
{
	static struct turn turn;
	int64_t end_ns = th_now_ns() + PATIENCE_NS;
	turn = (struct turn){.task.run = take_turn};
	loop_post(world->keeper, &turn.task);
	while (!__atomic_load_n(&turn.taken, __ATOMIC_ACQUIRE)) {
		cr_assert_lt(th_now_ns(), end_ns, "the keeper is held up");
		usleep(200);
	}
}

/* Hundreds of gigabytes take seconds; meanwhile the keeper fences what others read. */
Test(daemon_regions, end__a_munmap_that_takes_its_time__does_not_hold_up_the_keeper)
{
	static struct world world;
	world_open(&world, 40);
	for (uint32_t i = 0; i < 20; i++)
		world_row(&world, MIB, 2, i * MIB);
	world_row(&world, 4 * MIB, 1, 0);
	struct tensors *tensors = world_register(&world);
	wait_ready(tensors->places[20].region);
	wait_ready(packed_region(tensors->packed));
	const void *map = memory_find(&world.memory, 1)->map;
	uint64_t packed_bytes_there = packed_size_all();
	cr_assert_geq(packed_bytes_there, UNMAP_AWAY_BYTES);
	for (uint32_t id = 2; id <= OBJECTS; id++)
		cr_assert_eq(memory_forget(&world.memory, id, false), 0);
	wait_for_zero(memory_unmapping);
	held_unmap_begin(UNMAP_AWAY_BYTES);
	tensors_free(tensors);
	memory_fini(&world.memory);
	cr_assert(held_unmap_wait(1));
	for (uint32_t i = 0; i < 2; i++) {
		while (counters_of(&world, i).mrs > 0)
			usleep(200);
	}
	wait_keeper(&world);
	/* They count until it is done. */
	cr_assert_eq(memory_unmapping(), 32 * MIB);
	cr_assert_eq(packed_size_all(), packed_bytes_there);
	cr_assert(held_unmap_is_mapped(map));
	held_unmap_end();
	world_close(&world);
}

/* What no device ever knew. */
Test(daemon_regions, end__a_munmap_that_takes_its_time__does_not_hold_up_the_main_thread)
{
	static struct world world;
	world_open(&world, 8);
	held_unmap_begin(UNMAP_AWAY_BYTES);
	cr_assert_eq(memory_forget(&world.memory, 2, false), 0);
	cr_assert_eq(world.memory.mapped_bytes, 64 * MIB);
	cr_assert_eq(memory_unmapping(), 32 * MIB);
	memory_fini(&world.memory);
	cr_assert_eq(memory_unmapping(), 96 * MIB);
	cr_assert(held_unmap_wait(1));
	held_unmap_end();
	world_close(&world);
}

/* ---- when ----------------------------------------------------------------------------------- */

Test(daemon_regions, cover__memory_that_is_not_filled__waits_unless_there_is_room)
{
	static struct world world;
	world_open(&world, 8);
	world_row(&world, 4 * MIB, 1, 0);
	world_row(&world, 4 * MIB, 1, 4 * MIB);
	world_row(&world, 4 * MIB, 3, 0);
	set_available(80 * MIB);
	hold(&world, true);
	struct tensors *tensors = world_register(&world);
	/* 32 MiB of the first are as much as fits: they may all come to be. */
	cr_assert_not_null(tensors->places[0].region);
	cr_assert_eq(tensors->places[0].region, tensors->places[1].region);
	cr_assert_null(tensors->places[2].region);
	cr_assert_not(tensors->covered);
	cr_assert(strstr(tensors->no_rdma, "not filled"));
	cr_assert_eq(memory_missing(memory_find(&world.memory, 3)), 32 * MIB);
	hold(&world, false);
	wait_for_zero(memory_populating);
	set_available(10 * MIB);
	regions_cover(&world.regions, tensors, &world.memory, "m/r/0");
	cr_assert_null(tensors->places[2].region);
	/* The worker fills it, and publishes. */
	cr_assert_eq(fallocate(world.fds[2], 0, 0, 32 * (off_t)MIB), 0);
	cr_assert_eq(memory_missing(memory_find(&world.memory, 3)), 0);
	regions_cover(&world.regions, tensors, &world.memory, "m/r/0");
	cr_assert_not_null(tensors->places[2].region);
	cr_assert(tensors->covered);
	cr_assert_null(tensors->no_rdma);
	tensors_free(tensors);
	world_close(&world);
}

Test(daemon_regions, cover__small_tensors__buffers_take_half_of_the_memory_at_most)
{
	static struct world world;
	world_open(&world, 40);
	for (uint32_t i = 0; i < 30; i++)
		world_row(&world, MIB, 1, i * MIB);
	set_available(70 * MIB);
	struct tensors *first = world_register(&world);
	cr_assert_not_null(first->packed);
	cr_assert(first->covered);
	cr_assert_null(memory_find(&world.memory, 1)->region);
	/* Of what there would be without the first. */
	struct tensors *second = world_register(&world);
	cr_assert_null(second->packed);
	cr_assert_not(second->covered);
	cr_assert(strstr(second->no_rdma, "no room"));
	tensors_free(first);
	wait_for_zero(packed_size_all);
	regions_cover(&world.regions, second, &world.memory, "m/r/0");
	cr_assert_not_null(second->packed);
	tensors_free(second);
	world_close(&world);
}

/* ---- offloaded copies ----------------------------------------------------------------------- */

static void
on_done(void *arg, const struct th_err *result)
{
	cr_assert_eq(result->code, 0);
	*(bool *)arg = true;
}

static void
poll_offload(struct offload *offload)
{
	struct pollfd poller = {.fd = offload_fd(offload), .events = POLLIN};
	cr_assert_eq(poll(&poller, 1, 60000), 1);
	offload_poll(offload);
}

Test(daemon_regions, offload__is_registered_once_and_freed_when_no_device_knows_it)
{
	static struct world world;
	const struct offload_config config = {
		.limit = 64 * MIB, .root = folder, .patience_ns = PATIENCE_NS};
	struct offload *offload;
	struct tensors *tensors, *copy;
	struct th_err err;
	uint64_t bytes;
	bool done = false;
	world_open(&world, 8);
	set_available(10000 * MIB);
	world_row(&world, 1000, 1, 0);
	world_row(&world, 5 * MIB, 1, 4 * KIB);
	world_row(&world, 3 * MIB, 1, 8 * MIB);
	tensors = world_register(&world);
	cr_assert_eq(
		tensors_of_manifest(tensors->encoded, tensors->encoded_bytes, &err, &copy, &bytes),
		0);
	cr_assert_eq(offload_new(&config, &err, &offload), 0);
	struct offload_memory *memory = offload_start(offload, bytes, on_done, &done, &err);
	cr_assert_not_null(memory);
	while (!done)
		poll_offload(offload);
	tensors_place(copy, offload_data(memory), offload_file(memory), NULL);
	regions_cover_offload(&world.regions, copy, memory);
	regions_cover_offload(&world.regions, copy, memory); /* nothing more */
	cr_assert(copy->covered && copy->packed);
	cr_assert_null(copy->places[0].region);
	cr_assert_eq(copy->places[1].region, offload_region(memory));
	cr_assert_eq(copy->places[2].region, offload_region(memory));
	cr_assert_eq(
		copy->places[2].region_at, (uint64_t)(copy->places[2].data - offload_data(memory)));
	wait_ready(offload_region(memory));
	cr_assert_eq(region_ready(offload_region(memory)), 3);
	/* Somebody reads it still when it is given up. */
	struct region *region = region_retain(offload_region(memory));
	const void *data = offload_data(memory);
	tensors_free(copy);
	offload_release(memory);
	cr_assert(held_unmap_is_mapped(data));
	region_release(region);
	while (offload_used(offload) > 0)
		poll_offload(offload);
	tensors_free(tensors);
	world_close(&world);
	offload_free(offload);
}

/* What takes its place is promised at once, and made when it fits, or when that never comes. */
Test(daemon_regions, offloaded_copy__that_a_device_never_gives_back__holds_up_no_other)
{
	static struct world world;
	const struct offload_config config = {
		.limit = 10 * MIB, .root = folder, .patience_ns = INT64_C(50000000)};
	struct offload *offload;
	struct th_err err;
	bool done = false;
	world_open(&world, 8);
	cr_assert_eq(offload_new(&config, &err, &offload), 0);
	struct offload_memory *memory = offload_start(offload, 8 * MIB, on_done, &done, &err);
	cr_assert_not_null(memory, "%s", err.text);
	while (!done)
		poll_offload(offload);
	offload_register(memory, world.rails, 1);
	wait_ready(offload_region(memory));
	struct region *region = region_retain(offload_region(memory));
	const void *data = offload_data(memory);
	offload_release(memory);
	done = false;
	struct offload_memory *next = offload_start(offload, 8 * MIB, on_done, &done, &err);
	cr_assert_not_null(next, "%s", err.text);
	while (!done)
		poll_offload(offload);
	cr_assert(held_unmap_is_mapped(data), "the device may still read and write it");
	offload_release(next);
	region_release(region);
	while (offload_used(offload) > 0)
		poll_offload(offload);
	world_close(&world);
	offload_free(offload);
}
