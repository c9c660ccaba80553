/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of daemon/host/memory and tensors: what a worker may share, and what it may register in it.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/host/memory/memory.h"
#include "daemon/host/worker/tensor_places.h"
#include "ipc/base/name.h"

#define U8 1
#define F32 10
#define FILE_BYTES (64u << 10)

static int
new_memfd(unsigned int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	cr_assert(fd >= 0);
	cr_assert_eq(ftruncate(fd, FILE_BYTES), 0);
	if (seals)
		cr_assert_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static struct memory_limits limits = {.objects_max = 4, .descriptors_max = 3};

/* fd stays the caller's. */
static int
add(struct memory_set *set, int fd, uint32_t kind, uint64_t offset, uint64_t bytes)
{
	struct fdmsg_memory message = {.token = 1,
		.kind = kind,
		.base = kind == FDMSG_PROCESS ? offset : 0x1000,
		.bytes = bytes,
		.offset = offset};
	struct th_err err = {0};
	uint32_t id = 0;
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	cr_assert(copy >= 0);
	limits.kept_by_all = set->descriptors;
	int rc = memory_add(set, &message, &copy, &limits, &err, &id);
	if (rc < 0)
		cr_assert(err.text[0] != '\0' && copy >= 0, "a refusal without a sentence");
	if (copy >= 0)
		close(copy);
	return rc < 0 ? rc : (int)id;
}

Test(daemon_tensors, memory__sealed_memfd__is_mapped_in_place)
{
	struct memory_set set = {0};
	int fd = new_memfd(F_SEAL_SHRINK);
	cr_assert_eq(pwrite(fd, "here", 4, 5000), 4);
	int id = add(&set, fd, FDMSG_MEMFD, 5000, 100);
	close(fd);
	cr_assert_eq(id, 1);
	cr_assert_eq(memcmp(memory_find(&set, 1)->data, "here", 4), 0);
	memory_fini(&set);
}

/* To add the seal can take as long as another write to the file does. */
Test(daemon_tensors, memory__memfd_that_may_shrink__is_not_mapped_and_gets_no_seal)
{
	struct memory_set set = {0};
	int fd = new_memfd(0);
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 0, FILE_BYTES), TH_E_MEMORY_KIND);
	cr_assert_eq(fcntl(fd, F_GET_SEALS), 0);
	cr_assert_eq(add(&set, fd, FDMSG_FILE, 0, FILE_BYTES), 1);
	cr_assert_eq(fcntl(fd, F_GET_SEALS), 0);
	const struct memory *object = memory_find(&set, 1);
	cr_assert(object->access && !object->map && !object->data && !object->read_only);
	cr_assert_eq(set.mapped_bytes, 0);
	close(fd);
	memory_fini(&set);
}

static const char *
read_only(int fd)
{
	struct memory_set set = {0};
	int id = add(&set, fd, FDMSG_FILE, 0, FILE_BYTES);
	cr_assert_eq(id, 1);
	const char *why = memory_find(&set, 1)->read_only;
	memory_fini(&set);
	return why;
}

Test(daemon_tensors, memory__file_that_can_only_be_read__says_so)
{
	char path[64];
	int fd = new_memfd(0), sealed = new_memfd(F_SEAL_WRITE),
	    later = new_memfd(F_SEAL_FUTURE_WRITE);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int reading = open(path, O_RDONLY | O_CLOEXEC);
	cr_assert(reading >= 0);
	cr_assert_null(read_only(fd));
	cr_assert(strstr(read_only(reading), "reading only"));
	cr_assert(strstr(read_only(sealed), "sealed"));
	cr_assert(strstr(read_only(later), "sealed"));
}

Test(daemon_tensors, memory__file_that_would_be_written_elsewhere__is_refused)
{
	struct memory_set set = {0};
	char path[64];
	int fd = new_memfd(0), file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int appends = open(path, O_RDWR | O_APPEND | O_CLOEXEC);
	int writing = open(path, O_WRONLY | O_CLOEXEC);
	cr_assert(appends >= 0 && writing >= 0);
	cr_assert_eq(add(&set, appends, FDMSG_FILE, 0, FILE_BYTES), TH_E_MEMORY_KIND);
	cr_assert_eq(add(&set, writing, FDMSG_FILE, 0, FILE_BYTES), TH_E_MEMORY_KIND);
	/* On a disk, or anywhere else: only who made it knows when it answers. */
	cr_assert_eq(add(&set, file, FDMSG_FILE, 0, 4096), TH_E_MEMORY_KIND);
	cr_assert_eq(add(&set, fd, FDMSG_FILE, 1, FILE_BYTES), TH_E_INVALID);
	cr_assert_eq(set.count, 0);
	cr_assert_eq(set.descriptors, 0);
	memory_fini(&set);
}

Test(daemon_tensors, memory__of_the_process__is_kept_unless_the_worker_forbade_it)
{
	struct memory_set set = {0};
	int fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	int reading = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
	int writing = open("/proc/self/mem", O_WRONLY | O_CLOEXEC);
	int pipe_fds[2];
	cr_assert_eq(pipe2(pipe_fds, O_CLOEXEC), 0);
	cr_assert_eq(add(&set, fd, FDMSG_PROCESS, 0, INT64_MAX), 1);
	cr_assert(memory_find(&set, 1)->access && memory_find(&set, 1)->process);
	cr_assert_null(memory_find(&set, 1)->read_only);
	cr_assert_eq(add(&set, reading, FDMSG_PROCESS, 0, INT64_MAX), 2);
	cr_assert_not_null(memory_find(&set, 2)->read_only);
	cr_assert_eq(add(&set, writing, FDMSG_PROCESS, 0, INT64_MAX), TH_E_MEMORY_KIND);
	cr_assert_eq(add(&set, pipe_fds[0], FDMSG_PROCESS, 0, INT64_MAX), TH_E_MEMORY_KIND);
	cr_assert_eq(add(&set, fd, FDMSG_PROCESS, 1, INT64_MAX), TH_E_INVALID);
	cr_assert_eq(add(&set, fd, FDMSG_PROCESS, 0, UINT64_MAX), TH_E_INVALID);
	cr_assert_eq(add(&set, fd, FDMSG_PROCESS, 0, 0), TH_E_INVALID);
	limits.no_process = true;
	cr_assert_eq(add(&set, fd, FDMSG_PROCESS, 0, INT64_MAX), TH_E_MEMORY_KIND);
	memory_fini(&set);
}

Test(daemon_tensors, memory__objects_of_one_file__share_a_descriptor)
{
	struct memory_set set = {0};
	int fd = new_memfd(0), other = new_memfd(0), third = new_memfd(0);
	cr_assert_eq(add(&set, fd, FDMSG_FILE, 0, 4096), 1);
	cr_assert_eq(add(&set, fd, FDMSG_FILE, 4096, 4096), 2);
	cr_assert_eq(set.descriptors, 1);
	cr_assert_eq(memory_find(&set, 1)->access, memory_find(&set, 2)->access);
	cr_assert_eq(memory_forget(&set, 1, false), 0);
	cr_assert_eq(set.descriptors, 1, "the second object still has it");
	limits.descriptors_max = 2;
	cr_assert_eq(add(&set, other, FDMSG_FILE, 0, 4096), 3);
	cr_assert_eq(add(&set, third, FDMSG_FILE, 0, 4096), TH_E_LIMIT);
	cr_assert_eq(add(&set, other, FDMSG_FILE, 4096, 4096), 4);
	cr_assert_eq(memory_forget(&set, 2, false), 0);
	cr_assert_eq(set.descriptors, 1);
	memory_fini(&set);
	cr_assert_eq(set.descriptors, 0);
}

/* To send out of it; a mapping does without when there are many. */
Test(daemon_tensors, memory__mapped_memfds__keep_a_descriptor_each_while_few_are_kept)
{
	struct memory_set set = {0};
	int fd = new_memfd(F_SEAL_SHRINK), other = new_memfd(F_SEAL_SHRINK);
	limits.descriptors_max = 2;
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 0, 4096), 1);
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 4096, 4096), 2);
	cr_assert_eq(add(&set, other, FDMSG_MEMFD, 0, 4096), 3);
	cr_assert_not_null(memory_find(&set, 1)->file);
	cr_assert_eq(memory_find(&set, 1)->file, memory_find(&set, 2)->file);
	cr_assert_null(memory_find(&set, 3)->file);
	cr_assert_not_null(memory_find(&set, 3)->data);
	cr_assert_eq(set.descriptors, 1);
	cr_assert_eq(memory_forget(&set, 1, false), 0);
	cr_assert_eq(set.descriptors, 1, "the second object still has it");
	cr_assert_eq(add(&set, other, FDMSG_FILE, 0, 4096), 4, "the other half is for these");
	memory_fini(&set);
	cr_assert_eq(set.descriptors, 0);
}

Test(daemon_tensors, memory__what_cannot_be_mapped_safely__is_refused)
{
	struct memory_set set = {0};
	int no_seals = new_memfd(F_SEAL_SEAL), read_only = new_memfd(F_SEAL_WRITE);
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	int pipe_fds[2];
	cr_assert_eq(pipe2(pipe_fds, O_CLOEXEC), 0);
	cr_assert_eq(add(&set, no_seals, FDMSG_MEMFD, 0, 4096), TH_E_MEMORY_KIND);
	cr_assert_eq(add(&set, read_only, FDMSG_MEMFD, 0, 4096), TH_E_MEMORY_KIND);
	cr_assert_eq(add(&set, file, FDMSG_MEMFD, 0, 4096), TH_E_MEMORY_KIND);
	cr_assert_eq(add(&set, pipe_fds[0], FDMSG_MEMFD, 0, 4096), TH_E_MEMORY_KIND);
	int good = new_memfd(F_SEAL_SHRINK);
	cr_assert_eq(add(&set, good, 77, 0, 4096), TH_E_MEMORY_KIND);
	cr_assert_eq(set.count, 0);
	memory_fini(&set);
}

Test(daemon_tensors, memory__range_outside_the_file__is_refused)
{
	struct memory_set set = {0};
	int fd = new_memfd(F_SEAL_SHRINK);
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 0, FILE_BYTES + 1), TH_E_INVALID);
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 1, FILE_BYTES), TH_E_INVALID);
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, UINT64_MAX, 2), TH_E_INVALID);
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 0, UINT64_MAX), TH_E_INVALID);
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 0, 0), TH_E_INVALID);
	cr_assert_eq(set.count, 0);
	memory_fini(&set);
}

/* Sparse: it costs its worker nothing, and would cost the agent its address space. */
Test(daemon_tensors, memory__more_bytes_than_can_be_mapped__is_refused)
{
	struct memory_set set = {0};
	int fd = memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	cr_assert_eq(ftruncate(fd, MEMORY_BYTES_MAX + 4096), 0);
	cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 0, MEMORY_BYTES_MAX + 4096), TH_E_LIMIT);
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 0, 8192), 1);
	set.mapped_bytes += MEMORY_BYTES_MAX - 8192 - 4096;
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 0, 8192), TH_E_LIMIT, "with what it has");
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 0, 4096), 2);
	set.mapped_bytes -= MEMORY_BYTES_MAX - 8192 - 4096;
	limits.mapped_by_all = MEMORY_BYTES_MAX_ALL - 4096;
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 0, 8192), TH_E_LIMIT, "with what others have");
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 0, 4096), 3);
	limits.mapped_by_all = 0;
	close(fd);
	memory_fini(&set);
}

Test(daemon_tensors, memory__more_objects_than_allowed__is_refused_until_one_is_forgotten)
{
	struct memory_set set = {0};
	int fd = new_memfd(F_SEAL_SHRINK);
	for (int i = 1; i <= 4; i++)
		cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 0, 4096), i);
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 0, 4096), TH_E_LIMIT);
	cr_assert_eq(memory_forget(&set, 2, false), 0);
	cr_assert_eq(memory_forget(&set, 2, false), TH_E_INVALID);
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 0, 4096), 5);
	cr_assert_null(memory_find(&set, 2));
	cr_assert_eq(memory_find(&set, 1)->id, 1);
	cr_assert_eq(memory_find(&set, 3)->id, 3);
	cr_assert_eq(memory_find(&set, 5)->id, 5);
	memory_fini(&set);
}

Test(daemon_tensors, memory__forgotten_while_in_use__stays_mapped_until_the_sweep)
{
	struct memory_set set = {0};
	int fd = new_memfd(F_SEAL_SHRINK);
	cr_assert_eq(pwrite(fd, "x", 1, 0), 1);
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 0, 4096), 1);
	uint8_t *data = memory_find(&set, 1)->data;
	cr_assert_eq(memory_forget(&set, 1, true), 0);
	cr_assert_null(memory_find(&set, 1), "nobody can register in it any more");
	cr_assert_eq(*(volatile uint8_t *)data, 'x');
	cr_assert_eq(set.mapped_bytes, 4096);
	memory_sweep(&set);
	cr_assert_eq(set.mapped_bytes, 0);
	memory_fini(&set);
}

/* The kernel writes there, or says that this process may not. */
static int
written(uint8_t *to)
{
	int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	cr_assert_geq(zero, 0);
	int rc = read(zero, to, 1) == 1 ? 0 : -errno;
	close(zero);
	return rc;
}

Test(daemon_tensors, memory__mapped__can_be_written_only_while_it_is_said_to)
{
	struct memory_set set = {0};
	int fd = new_memfd(F_SEAL_SHRINK);
	cr_assert_eq(fallocate(fd, 0, 0, 2 * 4096), 0);
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 0, 4096), 1);
	cr_assert_eq(add(&set, fd, FDMSG_FILE, 4096, 4096), 2);
	uint8_t *data = memory_find(&set, 1)->data;
	cr_assert_eq(written(data), -EFAULT);
	cr_assert_eq(memory_set_writable(&set, true), 0);
	cr_assert_eq(written(data), 0);
	/* What comes later is not part of what receives. */
	cr_assert_eq(add(&set, fd, FDMSG_MEMFD, 4096, 4096), 3);
	cr_assert_eq(written(memory_find(&set, 3)->data), -EFAULT);
	cr_assert_eq(memory_set_writable(&set, true), 0);
	cr_assert_eq(written(memory_find(&set, 3)->data), 0);
	cr_assert_eq(memory_set_writable(&set, false), 0);
	cr_assert_eq(written(data), -EFAULT);
	cr_assert_eq(written(memory_find(&set, 3)->data), -EFAULT);
	memory_fini(&set);
}

/* ---- registrations ------------------------------------------------------------------------- */

struct world {
	struct memory_set memory;
	int fds[2];
	struct manifest_row rows[8];
	struct tensors_place places[8];
	uint32_t count;
	struct th_err err;
};

static void
world_open(struct world *world)
{
	*world = (struct world){0};
	for (int i = 0; i < 2; i++) {
		world->fds[i] = new_memfd(F_SEAL_SHRINK);
		cr_assert_eq(add(&world->memory, world->fds[i], FDMSG_MEMFD, 0, FILE_BYTES), i + 1);
	}
}

static void
world_row(struct world *world, const char *name, uint32_t dtype, uint64_t elements, uint32_t id,
	uint64_t offset)
{
	uint64_t bytes = elements * (dtype == F32 ? 4 : 1);
	world->rows[world->count] = (struct manifest_row){.name = name, .dtype = dtype, .ndim = 1};
	world->rows[world->count].local_shape[0] = elements;
	world->places[world->count++] = (struct tensors_place){id, offset, bytes};
}

static int
world_register(struct world *world, struct tensors **ret_tensors)
{
	struct tensors_rows rows = {world->count, world->rows, world->places};
	return tensors_new(&rows, &world->memory, &world->err, ret_tensors);
}

static void
world_refused(struct world *world, int code, const char *first, const char *second)
{
	struct tensors *tensors = NULL;
	cr_assert_eq(world_register(world, &tensors), code, "%s", world->err.text);
	cr_assert_null(tensors);
	cr_assert(strstr(world->err.text, first), "%s", world->err.text);
	cr_assert(strstr(world->err.text, second), "%s", world->err.text);
	memory_fini(&world->memory);
}

Test(daemon_tensors, register__rows_in_any_order__addresses_follow_the_canonical_order)
{
	struct world world;
	world_open(&world);
	world_row(&world, "z", U8, 10, 1, 100);
	world_row(&world, "a", F32, 10, 2, 0);
	world_row(&world, "empty", U8, 0, 0, 0);
	struct tensors *tensors;
	cr_assert_eq(world_register(&world, &tensors), 0, "%s", world.err.text);
	cr_assert_eq(tensors->manifest.num_rows, 3);
	cr_assert_str_eq(tensors->manifest.rows[0].name, "a");
	cr_assert_eq(tensors->places[0].data, memory_find(&world.memory, 2)->data);
	cr_assert_null(tensors->places[1].data);
	cr_assert_eq(tensors->places[2].data, memory_find(&world.memory, 1)->data + 100);
	cr_assert_eq(tensors->table->bytes, 50);
	cr_assert_eq(tensors->num_intervals, 2);
	cr_assert_eq(tensors->intervals[0].end - tensors->intervals[0].start +
			     tensors->intervals[1].end - tensors->intervals[1].start,
		50);
	cr_assert(!th_hash_none(tensors->layout) && !th_hash_none(tensors->key));
	tensors_free(tensors);
	memory_fini(&world.memory);
}

Test(daemon_tensors, register__tied_tensors__one_row_one_interval)
{
	struct world world;
	world_open(&world);
	world_row(&world, "lm_head", F32, 16, 1, 64);
	world_row(&world, "embed", F32, 16, 1, 64);
	struct tensors *tensors;
	cr_assert_eq(world_register(&world, &tensors), 0, "%s", world.err.text);
	cr_assert_eq(tensors->manifest.num_rows, 1);
	cr_assert_eq(tensors->manifest.num_aliases, 1);
	cr_assert_eq(tensors->num_intervals, 1);
	cr_assert_eq(tensors->intervals[0].row, 0);
	cr_assert_eq(tensors->places[0].data, memory_find(&world.memory, 1)->data + 64);
	tensors_free(tensors);
	memory_fini(&world.memory);
}

Test(daemon_tensors, register__tie_through_a_second_mapping_of_the_file__is_seen)
{
	struct world world;
	world_open(&world);
	cr_assert_eq(add(&world.memory, world.fds[0], FDMSG_MEMFD, 64, 1000), 3);
	world_row(&world, "a", U8, 16, 1, 80);
	world_row(&world, "b", U8, 16, 3, 16);
	struct tensors *tensors;
	cr_assert_eq(world_register(&world, &tensors), 0, "%s", world.err.text);
	cr_assert_eq(tensors->manifest.num_rows, 1);
	tensors_free(tensors);
	memory_fini(&world.memory);
}

/* What is mapped and what is reached through the descriptor is one file. */
Test(daemon_tensors, register__two_kinds_of_one_file__ties_and_overlaps_are_seen)
{
	struct world world;
	struct tensors *tensors;
	world_open(&world);
	cr_assert_eq(add(&world.memory, world.fds[0], FDMSG_FILE, 64, 1000), 3);
	world_row(&world, "a", U8, 16, 1, 80);
	world_row(&world, "b", U8, 16, 3, 16);
	world_row(&world, "c", U8, 16, 3, 100);
	cr_assert_eq(world_register(&world, &tensors), 0, "%s", world.err.text);
	cr_assert_eq(tensors->manifest.num_rows, 2);
	cr_assert_not_null(tensors->places[0].data);
	cr_assert_eq(tensors->places[0].access, memory_find(&world.memory, 1)->file);
	cr_assert_eq(tensors->places[0].place, 80);
	cr_assert_eq(tensors->places[1].access, memory_find(&world.memory, 3)->access);
	cr_assert_eq(tensors->places[1].place, 164);
	cr_assert_null(tensors->read_only);
	tensors_free(tensors);
	world_row(&world, "d", U8, 16, 3, 17);
	world_refused(&world, TH_E_INVALID, "'d'", "overlap");
}

Test(daemon_tensors, register__memory_that_can_only_be_read__is_named)
{
	struct world world;
	struct tensors *tensors;
	world_open(&world);
	int sealed = new_memfd(F_SEAL_WRITE);
	cr_assert_eq(add(&world.memory, sealed, FDMSG_FILE, 0, 4096), 3);
	world_row(&world, "b", U8, 16, 3, 16);
	world_row(&world, "a", U8, 16, 1, 80);
	cr_assert_eq(world_register(&world, &tensors), 0, "%s", world.err.text);
	cr_assert_eq(tensors->read_only_row, 1);
	cr_assert(strstr(tensors->read_only, "sealed"));
	tensors_free(tensors);
	memory_fini(&world.memory);
}

Test(daemon_tensors, register__partial_overlap__names_both)
{
	struct world world;
	world_open(&world);
	world_row(&world, "left", U8, 16, 1, 0);
	world_row(&world, "right", U8, 16, 1, 15);
	world_refused(&world, TH_E_INVALID, "left", "right");
}

Test(daemon_tensors, register__same_start_other_length__names_both)
{
	struct world world;
	world_open(&world);
	world_row(&world, "long", U8, 17, 1, 0);
	world_row(&world, "short", U8, 16, 1, 0);
	world_refused(&world, TH_E_INVALID, "long", "short");
}

Test(daemon_tensors, register__same_bytes_other_dtype__is_no_tie)
{
	struct world world;
	world_open(&world);
	world_row(&world, "bytes", U8, 64, 1, 0);
	world_row(&world, "floats", F32, 16, 1, 0);
	world_refused(&world, TH_E_INVALID, "bytes", "floats");
}

Test(daemon_tensors, register__tensor_outside_its_memory__is_refused)
{
	struct world world;
	world_open(&world);
	world_row(&world, "far", U8, 2, 1, FILE_BYTES - 1);
	world_refused(&world, TH_E_INVALID, "far", "not in its memory object");
	world_open(&world);
	world_row(&world, "wrapped", U8, 2, 1, UINT64_MAX);
	world_refused(&world, TH_E_INVALID, "wrapped", "not in its memory object");
}

Test(daemon_tensors, register__unknown_memory__is_refused)
{
	struct world world;
	world_open(&world);
	world_row(&world, "lost", U8, 2, 9, 0);
	world_refused(&world, TH_E_INVALID, "lost", "9");
}

Test(daemon_tensors, register__size_that_is_not_the_shapes__is_refused)
{
	struct world world;
	world_open(&world);
	world_row(&world, "w", F32, 4, 1, 0);
	world.places[0].bytes = 15;
	world_refused(&world, TH_E_INVALID, "'w'", "16");
}

Test(daemon_tensors, register__nothing__is_refused)
{
	struct world world;
	world_open(&world);
	world_refused(&world, TH_E_INVALID, "no tensors", "no tensors");
}

Test(daemon_tensors, register__empty_tensors_only__is_a_shard_without_chunks)
{
	struct world world;
	world_open(&world);
	world_row(&world, "e", U8, 0, 0, 0);
	struct tensors *tensors;
	cr_assert_eq(world_register(&world, &tensors), 0, "%s", world.err.text);
	cr_assert_eq(tensors->table->num_chunks, 0);
	cr_assert_eq(tensors->num_intervals, 0);
	tensors_free(tensors);
	memory_fini(&world.memory);
}

/* ---- memory without a worker ------------------------------------------------------------ */

Test(daemon_tensors, of_manifest__small_rows_lie_behind_each_other)
{
	const struct manifest_row rows[] = {
		{.name = "c", .dtype = U8, .ndim = 1, .local_shape = {100}},
		{.name = "a", .dtype = F32, .ndim = 1, .local_shape = {3}},
		{.name = "b", .dtype = U8, .ndim = 1, .local_shape = {0}},
		{.name = "big", .dtype = U8, .ndim = 1, .local_shape = {3u << 20}},
	};
	struct manifest manifest;
	struct tensors *tensors = NULL;
	struct th_err err;
	uint8_t *data, *base;
	size_t bytes;
	uint64_t needed;
	cr_assert_eq(manifest_build(rows, 4, NULL, NULL, &err, &manifest), 0);
	cr_assert_eq(manifest_encode(&manifest, &data, &bytes), 0);
	cr_assert_eq(tensors_of_manifest(data, bytes, &err, &tensors, &needed), 0);
	/* a: 12 bytes at 0; b: none; c: 100 at 12, for they are one chunk; big: at 128. */
	cr_assert_eq(needed, 128 + (3u << 20));
	base = malloc(needed);
	cr_assert_not_null(base);
	tensors_place(tensors, base, NULL, NULL);
	cr_assert_eq(tensors->places[0].data, base);
	cr_assert_null(tensors->places[1].data);
	cr_assert_eq(tensors->places[2].data, base + 12);
	cr_assert_eq(tensors->places[3].data, base + 128);
	struct th_hash layout = manifest_layout(&manifest), key = manifest_key(data, bytes);
	cr_assert(th_hash_equal(tensors->layout, layout));
	cr_assert(th_hash_equal(tensors->key, key));
	cr_assert_eq(tensors->table->bytes, 112 + (3u << 20));
	tensors_free(tensors);
	free(base);
	/* What the server sends is checked as what a worker sends. */
	tensors = NULL;
	cr_assert_lt(tensors_of_manifest(data, bytes - 1, &err, &tensors, &needed), 0);
	cr_assert(err.text[0] != '\0');
	cr_assert_null(tensors);
	manifest_free(&manifest);
	free(data);
}
