/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of region (allocations registered with rails) and memlock (why one could not be).
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "tests/support/rdma/fake_rdma.h"
#include "tests/support/tally.h"
#include "transport/rdma/device/memlock.h"
#include "transport/rdma/memory/region.h"

#define MIB (UINT64_C(1) << 20)
#define PAGE UINT64_C(4096)
#define DEVICES_MAX 3u
/* Nothing looks at the memory; it only has to be somewhere. */
#define SOMEWHERE ((void *)(uintptr_t)0x7f0000000000)

struct bench {
	struct fake_rdma *fake;
	struct fake_host *host;
	struct verbs_device *devices[DEVICES_MAX];
	uint32_t num_devices;
	struct loop *keeper;
	struct rails *rails;
	struct tally tally;
	uint32_t settled, gone, changed; /* by tally */
	uint32_t settled_waiting;        /* rails that were WAITING then */
	int64_t selfread_ns;
};

static void
on_settled(void *arg, struct region *region)
{
	struct bench *bench = arg;
	bench->settled_waiting += region_waiting(region);
	tally_add(&bench->tally, &bench->settled);
}

static void
on_gone(void *arg)
{
	struct bench *bench = arg;
	tally_add(&bench->tally, &bench->gone);
}

static void
on_changed(void *arg, uint32_t rail)
{
	struct bench *bench = arg;
	(void)rail;
	tally_add(&bench->tally, &bench->changed);
}

static void
setup(struct bench *bench, uint32_t num_devices)
{
	const struct fake_device_config config = {.dmabuf = true};
	*bench = (struct bench){.fake = fake_rdma_new(false), .num_devices = num_devices};
	bench->host = fake_rdma_host(bench->fake);
	for (uint32_t i = 0; i < num_devices; i++)
		bench->devices[i] = fake_rdma_device(bench->host, &config);
	tally_init(&bench->tally);
	cr_assert_eq(loop_new("keeper", LOOP_EPOLL, NULL, NULL, &bench->keeper), 0);
}

static void
start(struct bench *bench)
{
	struct rails_config config = rails_config_default();
	config.selfread_ns = bench->selfread_ns; /* 0: the default */
	struct rails_user user = {.arg = bench, .changed = on_changed};
	cr_assert_eq(rails_new(fake_rdma_verbs(bench->host), &config, bench->keeper, &user,
			     &bench->rails),
		0);
}

static void
teardown(struct bench *bench)
{
	rails_free(bench->rails);
	loop_free(bench->keeper);
	fake_rdma_free(bench->fake);
	tally_fini(&bench->tally);
}

static struct fake_counters
counters_of(struct verbs_device *device)
{
	struct fake_counters counters;
	fake_rdma_counters(device, &counters);
	return counters;
}

/* Registrations and their ends. */
static void
hold(struct bench *bench, bool held)
{
	for (uint32_t i = 0; i < bench->num_devices; i++)
		fake_rdma_hold_regs(bench->devices[i], held);
}

/* Until so many devices are held up. */
static void
wait_held(struct bench *bench, uint64_t count)
{
	uint64_t held;
	do {
		(void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		held = 0;
		for (uint32_t i = 0; i < bench->num_devices; i++)
			held += counters_of(bench->devices[i]).regs_held;
	} while (held < count);
}

static struct region *
make(struct bench *bench, void *data, uint64_t bytes, uint32_t mask, unsigned access)
{
	struct region_memory memory = {.data = data, .bytes = bytes};
	struct region_user user = {.arg = bench, .settled = on_settled, .gone = on_gone};
	return region_new(bench->rails, &memory, mask, access, &user);
}

static void
drop(struct bench *bench, struct region *region)
{
	uint32_t gone = bench->gone;
	region_release(region);
	tally_wait(&bench->tally, &bench->gone, gone + 1);
}

/* ---- how often devices are asked ---- */

static uint32_t
calls_for(uint32_t num_tensors)
{
	static struct bench bench;
	setup(&bench, 2);
	start(&bench);
	uint64_t tensor_bytes = 64 << 10;
	struct region *region = make(&bench, SOMEWHERE, num_tensors * tensor_bytes, 3,
		VERBS_LOCAL_WRITE | VERBS_REMOTE_READ);
	tally_wait(&bench.tally, &bench.settled, 1);
	for (uint32_t i = 0; i < num_tensors; i++) {
		for (uint32_t rail = 0; rail < 2; rail++) {
			struct region_key key;
			cr_assert(region_mr(region, rail, i * tensor_bytes, &key));
			cr_assert(key.address == i * tensor_bytes && key.bytes >= tensor_bytes);
		}
	}
	struct rail_status status;
	rail_status(bench.rails, 1, &status);
	cr_assert_eq(status.bytes_registered, num_tensors * tensor_bytes);
	cr_assert_eq(status.num_mrs, 1);
	drop(&bench, region);
	rail_status(bench.rails, 1, &status);
	cr_assert(status.bytes_registered == 0 && status.num_mrs == 0);
	struct fake_counters first = counters_of(bench.devices[0]);
	struct fake_counters second = counters_of(bench.devices[1]);
	cr_assert(first.regs == second.regs && first.mrs == 0);
	teardown(&bench);
	return (uint32_t)(first.regs + first.deregs + second.regs + second.deregs);
}

Test(rdma_region, ten_thousand_tensors__as_many_calls_as_ten)
{
	/* One registration and its end on each of two rails. */
	cr_assert_eq(calls_for(10), 4);
	cr_assert_eq(calls_for(10000), 4);
}

/* ---- pieces ---- */

Test(rdma_region, pieces__as_large_as_the_most_modest_rail_takes)
{
	static struct bench bench;
	setup(&bench, 3);
	fake_rdma_config(bench.devices[0])->mr_bytes_max = 9 * MIB;
	fake_rdma_config(bench.devices[1])->mr_bytes_max = 5 * MIB + 1;
	start(&bench);
	/* Begins within a page, and ends in a piece. */
	char *data = (char *)SOMEWHERE + 100;
	uint64_t bytes = 10 * MIB + 1;
	struct region *region = make(&bench, data, bytes, 3, VERBS_REMOTE_READ);
	tally_wait(&bench.tally, &bench.settled, 1);
	cr_assert_eq(region_ready(region), 3);
	cr_assert(region_pieces(region) == 3 && region_piece_bytes(region) == 4 * MIB);
	cr_assert_eq(region_bytes(region), bytes);
	for (uint32_t rail = 0; rail < 2; rail++) {
		const struct fake_seen *seen = fake_rdma_seen(bench.devices[rail]);
		cr_assert_eq(seen->num_regs, 3);
		for (uint32_t i = 0; i < 3; i++) {
			const struct fake_reg *record = &seen->regs[i];
			cr_assert(record->data == data + 4 * MIB * i);
			/* As the kernel wants it: at the same place of a page. */
			cr_assert_eq(record->iova, 100 + 4 * MIB * i);
			cr_assert_eq(record->bytes, i < 2 ? 4 * MIB : 2 * MIB + 1);
		}
	}
	cr_assert_eq(fake_rdma_seen(bench.devices[2])->num_regs, 0); /* was not asked for */
	cr_assert_eq(region_state(region, 2, NULL), REGION_NONE);

	static const struct {
		uint64_t offset, left;
		uint32_t piece;
	} rows[] = {{0, 4 * MIB, 0}, {4 * MIB - 1, 1, 0}, {4 * MIB, 4 * MIB, 1},
		{8 * MIB - 5, 5, 1}, {8 * MIB, 2 * MIB + 1, 2}, {10 * MIB, 1, 2}};
	for (size_t i = 0; i < TH_ARRAY_LEN(rows); i++) {
		struct region_key key;
		cr_assert(region_mr(region, 1, rows[i].offset, &key), "%zu", i);
		cr_assert_eq(key.bytes, rows[i].left, "%zu", i);
		cr_assert_eq(key.address, 100 + rows[i].offset, "%zu", i);
		uint32_t expected = fake_rdma_seen(bench.devices[1])->regs[rows[i].piece].key;
		cr_assert(key.lkey == expected && key.rkey == expected);
	}
	struct region_key key;
	cr_assert_not(region_mr(region, 1, bytes, &key));
	cr_assert_not(region_mr(region, 1, UINT64_MAX, &key));
	cr_assert_not(region_mr(region, 2, 0, &key));
	cr_assert_not(region_mr(region, RAILS_MAX, 0, &key));
	drop(&bench, region);
	cr_assert(counters_of(bench.devices[0]).mrs == 0 &&
		  counters_of(bench.devices[1]).deregs == 3);
	teardown(&bench);
}

Test(rdma_region, pieces__pages_where_a_device_takes_next_to_nothing)
{
	static struct bench bench;
	setup(&bench, 1);
	fake_rdma_config(bench.devices[0])->mr_bytes_max = 10000;
	start(&bench);
	struct region *region = make(&bench, SOMEWHERE, 5 * PAGE, 1, VERBS_REMOTE_READ);
	tally_wait(&bench.tally, &bench.settled, 1);
	cr_assert(region_pieces(region) == 3 && region_piece_bytes(region) == 2 * PAGE);
	drop(&bench, region);
	teardown(&bench);
}

Test(rdma_region, nothing__neither_bytes_nor_rails)
{
	static struct bench bench;
	struct region_key key;
	setup(&bench, 1);
	start(&bench);
	struct region *empty = make(&bench, SOMEWHERE, 0, 1, VERBS_REMOTE_READ);
	tally_wait(&bench.tally, &bench.settled, 1);
	cr_assert(region_pieces(empty) == 0 && !region_mr(empty, 0, 0, &key));
	struct region *unwanted = make(&bench, SOMEWHERE, MIB, 0, VERBS_REMOTE_READ);
	/* Rails that are not there. */
	struct region *nowhere = make(&bench, SOMEWHERE, MIB, ~1u, VERBS_REMOTE_READ);
	tally_wait(&bench.tally, &bench.settled, 3);
	cr_assert(!region_mr(unwanted, 0, 0, &key) && !region_mr(nowhere, 1, 0, &key));
	cr_assert(region_ready(nowhere) == 0 && region_waiting(nowhere) == 0);
	drop(&bench, empty);
	drop(&bench, unwanted);
	drop(&bench, nowhere);
	region_release(NULL);
	cr_assert_eq(fake_rdma_seen(bench.devices[0])->num_regs, 0);
	teardown(&bench);
}

/* ---- access ---- */

Test(rdma_region, access__remote_reads_only_where_asked)
{
	static struct bench bench;
	setup(&bench, 2);
	fake_rdma_config(bench.devices[1])->relaxed_ordering = true;
	start(&bench);
	struct region *lands = make(&bench, SOMEWHERE, MIB, 3, VERBS_LOCAL_WRITE);
	tally_wait(&bench.tally, &bench.settled, 1);
	struct region *serves = make(&bench, SOMEWHERE, MIB, 3, VERBS_REMOTE_READ);
	tally_wait(&bench.tally, &bench.settled, 2);
	const struct fake_reg *regs = fake_rdma_seen(bench.devices[0])->regs;
	cr_assert_eq(regs[0].access, VERBS_LOCAL_WRITE);
	cr_assert_eq(regs[1].access, VERBS_REMOTE_READ);
	regs = fake_rdma_seen(bench.devices[1])->regs;
	cr_assert_eq(regs[0].access, VERBS_LOCAL_WRITE | VERBS_RELAXED);
	cr_assert_eq(regs[1].access, VERBS_REMOTE_READ | VERBS_RELAXED);
	drop(&bench, lands);
	drop(&bench, serves);
	teardown(&bench);
}

static int
dmabuf(uint64_t bytes)
{
	int fd = memfd_create("dmabuf", MFD_CLOEXEC);
	cr_assert(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
	return fd;
}

Test(rdma_region, dmabuf__the_same_and_its_descriptor_is_closed)
{
	static struct bench bench;
	setup(&bench, 2);
	fake_rdma_config(bench.devices[0])->mr_bytes_max = 2 * MIB;
	start(&bench);
	int fd = dmabuf(4 * MIB);
	struct stat file, now;
	cr_assert_eq(fstat(fd, &file), 0);
	struct region_memory memory = {
		.dmabuf_fd = fd, .dmabuf_offset = 3 * PAGE + 8, .bytes = 3 * MIB};
	struct region_user user = {.arg = &bench, .settled = on_settled, .gone = on_gone};
	struct region *region = region_new(bench.rails, &memory, 3, VERBS_REMOTE_READ, &user);
	tally_wait(&bench.tally, &bench.settled, 1);
	cr_assert_eq(region_ready(region), 3);
	for (uint32_t rail = 0; rail < 2; rail++) {
		const struct fake_reg *record = fake_rdma_seen(bench.devices[rail])->regs;
		for (uint32_t i = 0; i < 2; i++, record++) {
			cr_assert_eq(record->fd, fd);
			cr_assert_eq(record->offset, 3 * PAGE + 8 + 2 * MIB * i);
			cr_assert_eq(record->iova, 8 + 2 * MIB * i);
		}
	}
	/* A device may be asked again until then. */
	drop(&bench, region);
	/* Its number may be another's by now. */
	cr_assert(fstat(fd, &now) < 0 || now.st_ino != file.st_ino || now.st_dev != file.st_dev);
	teardown(&bench);
}

static struct {
	int fd;
	void (*closed)(void *arg);
	void *arg;
} slow_close;

static void
close_later(int fd, void (*closed)(void *arg), void *arg)
{
	struct bench *bench = arg;
	slow_close.fd = fd;
	slow_close.closed = closed;
	slow_close.arg = arg;
	tally_add(&bench->tally, &bench->settled);
}

/* A descriptor alone keeps the memory. */
Test(rdma_region, dmabuf__is_gone_when_its_descriptor_is_closed)
{
	static struct bench bench;
	setup(&bench, 1);
	start(&bench);
	struct region_memory memory = {
		.dmabuf_fd = dmabuf(MIB), .close_fd = close_later, .bytes = MIB};
	struct region_user user = {.arg = &bench, .gone = on_gone};
	struct region *region = region_new(bench.rails, &memory, 1, VERBS_REMOTE_READ, &user);
	region_release(region);
	tally_wait(&bench.tally, &bench.settled, 1);
	cr_assert_eq(slow_close.fd, memory.dmabuf_fd);
	struct rail_status status;
	rail_status(bench.rails, 0, &status);
	cr_assert_eq(status.num_mrs, 0);
	cr_assert_eq(bench.gone, 0);
	close(slow_close.fd);
	slow_close.closed(slow_close.arg);
	tally_wait(&bench.tally, &bench.gone, 1);
	teardown(&bench);
}

/* ---- READs of dma-bufs by their own device ---- */

static struct region *
make_dmabuf(struct bench *bench, uint32_t settled)
{
	struct region_memory memory = {
		.dmabuf_fd = dmabuf(4 * MIB), .dmabuf_offset = 3 * PAGE + 8, .bytes = 3 * MIB};
	struct region_user user = {.arg = bench, .settled = on_settled, .gone = on_gone};
	struct region *region =
		region_new(bench->rails, &memory, 3, VERBS_LOCAL_WRITE | VERBS_REMOTE_READ, &user);
	tally_wait(&bench->tally, &bench->settled, settled);
	return region;
}

static void
expect_unreadable(struct region *region, const char *why)
{
	struct th_err err = {0};
	struct region_key key;
	cr_assert_eq(region_state(region, 0, &err), REGION_FAILED);
	cr_assert(strstr(err.text, "fake0/1 cannot read this GPU's memory"), "%s", err.text);
	cr_assert(strstr(err.text, why), "%s", err.text);
	cr_assert(strstr(err.text, "go through the host's memory"), "%s", err.text);
	cr_assert_eq(region_ready(region), 2);
	cr_assert_not(region_mr(region, 0, 0, &key));
}

Test(rdma_region, dmabuf__its_device_cannot_read_it__failed_there_and_why)
{
	static struct bench bench;
	setup(&bench, 2);
	struct verbs_device *const *devices = bench.devices;
	fake_rdma_blind(devices[0], true);
	start(&bench);
	struct region *region = make_dmabuf(&bench, 1);
	expect_unreadable(region, "the device reports an error");
	struct rail_status status;
	rail_status(bench.rails, 0, &status);
	cr_assert(status.num_failed == 1 && status.num_mrs == 0);
	/* By itself: where the region begins, and no more than is needed. */
	const struct fake_seen *seen = fake_rdma_seen(devices[1]);
	cr_assert(seen->last_read.remote == 8 && seen->last_read.bytes == MIB);
	cr_assert(seen->paths[0].reads_out == 1 && seen->paths[0].reads_in == 1);
	struct fake_counters second = counters_of(devices[1]);
	cr_assert(second.bytes_out == second.bytes_in && second.bytes_out > MIB);
	/* Memory of the host is not tried, nor what nobody READs. */
	uint64_t reads = counters_of(devices[0]).reads;
	fake_rdma_blind(devices[0], false);
	struct region *host = make(&bench, SOMEWHERE, MIB, 3, VERBS_REMOTE_READ);
	tally_wait(&bench.tally, &bench.settled, 2);
	cr_assert_eq(region_ready(host), 3);
	cr_assert_eq(counters_of(devices[0]).reads, reads);
	/* The next one is tried anew, by a new queue pair here and the same one there. */
	struct region *next = make_dmabuf(&bench, 3);
	cr_assert_eq(region_ready(next), 3);
	cr_assert_eq(counters_of(devices[0]).qps_made, 2);
	cr_assert_eq(counters_of(devices[1]).qps_made, 1);
	drop(&bench, region);
	drop(&bench, host);
	drop(&bench, next);
	teardown(&bench);
}

Test(rdma_region, dmabuf__a_read_of_it_does_not_end__failed_when_the_time_is_over)
{
	static struct bench bench;
	setup(&bench, 2);
	bench.selfread_ns = 2000000;
	fake_rdma_fail_read(bench.devices[0], 1, VERBS_GONE); /* its retries go on */
	start(&bench);
	struct region *region = make_dmabuf(&bench, 1);
	expect_unreadable(region, "did not end within 2 ms");
	cr_assert_eq(counters_of(bench.devices[0]).qps, 0);
	drop(&bench, region);
	teardown(&bench);
}

Test(rdma_region, dmabuf__the_device_goes_while_it_is_read__as_any_other)
{
	static struct bench bench;
	setup(&bench, 2);
	struct verbs_device *lost = bench.devices[0];
	struct region_memory memory = {.dmabuf_fd = dmabuf(MIB), .bytes = MIB};
	struct region_user user = {.arg = &bench, .settled = on_settled, .gone = on_gone};
	struct th_err err = {0};
	bench.selfread_ns = INT64_C(1000000000000);
	fake_rdma_fail_read(lost, 1, VERBS_GONE);
	start(&bench);
	struct region *region = region_new(bench.rails, &memory, 3, VERBS_REMOTE_READ, &user);
	while (counters_of(lost).reads < 2)
		(void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	cr_assert_eq(region_state(region, 0, NULL), REGION_WAITING);
	fake_rdma_remove(lost);
	tally_wait(&bench.tally, &bench.settled, 1);
	cr_assert_eq(region_state(region, 0, &err), REGION_FAILED);
	/* Its READ may fail before the device's event is heard. */
	cr_assert(strstr(err.text, "the device is gone") ||
			  strstr(err.text, "the device reports an error"),
		"%s", err.text);
	drop(&bench, region);
	teardown(&bench);
}

/* Neither says anything of the GPU. */
Test(rdma_region, dmabuf__the_queue_pair_is_what_fails__ready)
{
	static struct bench bench;
	setup(&bench, 2);
	struct verbs_device *device = bench.devices[0];
	bench.selfread_ns = 2000000;
	start(&bench);
	struct region *first = make_dmabuf(&bench, 1);
	cr_assert_eq(region_ready(first), 3);
	/* Made for an address that is another now. */
	fake_rdma_fail_read(device, 0, VERBS_OTHER);
	struct region *second = make_dmabuf(&bench, 2);
	cr_assert_eq(region_ready(second), 3);
	cr_assert_eq(counters_of(device).qps_made, 2);
	fake_rdma_cut(device, device, true); /* it does not reach itself any more */
	struct region *third = make_dmabuf(&bench, 3);
	cr_assert_eq(region_ready(third), 3);
	struct region *fourth = make_dmabuf(&bench, 4);
	cr_assert_eq(region_ready(fourth), 3);
	cr_assert_eq(counters_of(device).qps_made, 3); /* is not asked again soon */
	drop(&bench, first);
	drop(&bench, second);
	drop(&bench, third);
	drop(&bench, fourth);
	teardown(&bench);
}

/* ---- failures ---- */

Test(rdma_region, a_piece_fails__that_rail_has_none_the_other_has_all)
{
	static struct bench bench;
	setup(&bench, 2);
	fake_rdma_config(bench.devices[0])->mr_bytes_max = MIB * 2;
	fake_rdma_refuse_from(bench.devices[0], FAKE_REG, 2, -EFAULT);
	start(&bench);
	struct region *region = make(&bench, SOMEWHERE, 8 * MIB, 3, VERBS_REMOTE_READ);
	tally_wait(&bench.tally, &bench.settled, 1);
	struct th_err err = {0};
	struct region_key key;
	cr_assert_eq(region_ready(region), 2);
	cr_assert_eq(region_state(region, 0, &err), REGION_FAILED);
	cr_assert_eq(err.code, -EFAULT);
	cr_assert_neq(strstr(err.text, "fake0/1 cannot register 2.00MiB"), NULL, "%s", err.text);
	cr_assert_not(region_mr(region, 0, 0, &key));
	cr_assert(region_mr(region, 1, 7 * MIB, &key));
	struct fake_counters counters = counters_of(bench.devices[0]);
	cr_assert_eq(fake_rdma_seen(bench.devices[0])->num_regs, 3);
	cr_assert(counters.deregs == 2 && counters.mrs == 0);
	drop(&bench, region);
	cr_assert_eq(counters_of(bench.devices[0]).deregs, 2);
	cr_assert_eq(counters_of(bench.devices[1]).mrs, 0);
	teardown(&bench);
}

Test(rdma_region, regions_run_out__the_limit_is_named)
{
	static struct bench bench;
	setup(&bench, 1);
	fake_rdma_config(bench.devices[0])->mrs_max = 2;
	/* As a device may say it. */
	fake_rdma_refuse_from(bench.devices[0], FAKE_REG, 2, -EINVAL);
	start(&bench);
	struct region *regions[3];
	for (uint32_t i = 0; i < 3; i++) {
		regions[i] = make(&bench, SOMEWHERE, MIB, 1, VERBS_REMOTE_READ);
		tally_wait(&bench.tally, &bench.settled, i + 1);
	}
	struct th_err err = {0};
	cr_assert_eq(region_state(regions[1], 0, &err), REGION_READY);
	cr_assert_eq(region_state(regions[2], 0, &err), REGION_FAILED);
	cr_assert_eq(err.code, TH_E_LIMIT);
	cr_assert_neq(
		strstr(err.text, "all of the device's 2 memory regions"), NULL, "%s", err.text);
	for (uint32_t i = 0; i < 3; i++)
		drop(&bench, regions[i]);
	teardown(&bench);
}

/* The next time is after a second: the test waits for that once. */
Test(rdma_region, no_memory_for_now__tried_again_and_what_cannot_be_is_not)
{
	static struct bench bench;
	struct rail_status status;
	struct th_err err = {0};
	setup(&bench, 2);
	struct verbs_device *const *devices = bench.devices;
	fake_rdma_refuse(devices[0], FAKE_REG, FAKE_ALWAYS, -ENOMEM);
	fake_rdma_refuse(devices[1], FAKE_REG, FAKE_ALWAYS, -EFAULT);
	start(&bench);
	struct region *region = make(&bench, SOMEWHERE, MIB, 3, VERBS_REMOTE_READ);
	struct region *dropped = make(&bench, SOMEWHERE, MIB, 1, VERBS_REMOTE_READ);
	tally_wait(&bench.tally, &bench.settled, 2);
	cr_assert(region_ready(region) == 0 && region_waiting(region) == 0);
	cr_assert_eq(region_state(region, 0, &err), REGION_FAILED);
	rail_status(bench.rails, 0, &status);
	cr_assert_eq(status.num_failed, 2);
	cr_assert_str_eq(status.failed_why, err.text);
	drop(&bench, dropped);
	rail_status(bench.rails, 0, &status);
	cr_assert_eq(status.num_failed, 1);
	fake_rdma_refuse(devices[0], FAKE_REG, 0, 0);
	fake_rdma_refuse(devices[1], FAKE_REG, 0, 0);
	int64_t until_ns = th_now_ns() + INT64_C(40000000000);
	while (region_ready(region) == 0) {
		cr_assert_lt(th_now_ns(), until_ns);
		(void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	struct region_key key;
	cr_assert(region_mr(region, 0, 0, &key));
	rail_status(bench.rails, 0, &status);
	cr_assert(status.num_failed == 0 && status.failed_why[0] == '\0', "%s", status.failed_why);
	cr_assert(status.num_mrs == 1 && status.bytes_registered == MIB);
	cr_assert_eq(region_state(region, 1, NULL), REGION_FAILED);
	cr_assert_eq(fake_rdma_seen(devices[1])->num_regs, 1);
	cr_assert_eq(bench.settled, 2); /* once each */
	drop(&bench, region);
	rail_status(bench.rails, 1, &status);
	cr_assert_eq(status.num_failed, 0);
	teardown(&bench);
}

Test(rdma_region, the_device_goes__its_registrations_with_it)
{
	static struct bench bench;
	setup(&bench, 2);
	start(&bench);
	struct region *region = make(&bench, SOMEWHERE, MIB, 3, VERBS_REMOTE_READ);
	tally_wait(&bench.tally, &bench.settled, 1);
	hold(&bench, true);
	fake_rdma_remove(bench.devices[0]);
	/* Whoever sees that it has failed is told why, while the device still gives it back. */
	wait_held(&bench, 1);
	struct th_err err = {0};
	cr_assert_eq(region_state(region, 0, &err), REGION_FAILED);
	cr_assert_neq(strstr(err.text, "device is gone"), NULL, "%s", err.text);
	hold(&bench, false);
	tally_wait(&bench.tally, &bench.changed, 1);
	cr_assert_eq(region_ready(region), 2);
	struct region *later = make(&bench, SOMEWHERE, MIB, 3, VERBS_REMOTE_READ);
	tally_wait(&bench.tally, &bench.settled, 2);
	cr_assert_eq(region_state(later, 0, &err), REGION_FAILED);
	cr_assert_eq(fake_rdma_seen(bench.devices[0])->num_regs, 1); /* was not asked again */
	fake_rdma_refuse(bench.devices[0], FAKE_DEREG, FAKE_ALWAYS, -EIO);
	drop(&bench, region);
	drop(&bench, later);
	teardown(&bench);
}

Test(rdma_region, a_device_keeps_memory__it_is_never_said_to_be_gone)
{
	static struct bench bench;
	setup(&bench, 2);
	start(&bench);
	struct region *region = make(&bench, SOMEWHERE, MIB, 3, VERBS_REMOTE_READ);
	tally_wait(&bench.tally, &bench.settled, 1);
	fake_rdma_refuse(bench.devices[0], FAKE_DEREG, FAKE_ALWAYS, -EBUSY);
	region_release(region);
	/* One behind it, on the same threads. */
	struct region *next = make(&bench, SOMEWHERE, MIB, 3, VERBS_REMOTE_READ);
	tally_wait(&bench.tally, &bench.settled, 2);
	cr_assert_eq(bench.gone, 0);
	fake_rdma_refuse(bench.devices[0], FAKE_DEREG, 0, 0);
	drop(&bench, next);
	teardown(&bench);
	cr_assert_eq(bench.gone, 1);
}

/* ---- life ---- */

Test(rdma_region, released_while_it_is_registered__goes_when_it_may)
{
	static struct bench bench;
	struct region_key key;
	setup(&bench, 2);
	fake_rdma_config(bench.devices[0])->mr_bytes_max = 2 * MIB;
	start(&bench);
	hold(&bench, true);
	struct region *region = make(&bench, SOMEWHERE, 64 * MIB, 3, VERBS_REMOTE_READ);
	wait_held(&bench, 2);
	cr_assert_eq(region_waiting(region), 3);
	cr_assert_eq(region_state(region, 1, NULL), REGION_WAITING);
	cr_assert_not(region_mr(region, 0, 0, &key));
	region_release(region);
	cr_assert_eq(bench.gone, 0);
	hold(&bench, false);
	tally_wait(&bench.tally, &bench.gone, 1);
	cr_assert_eq(bench.settled, 1);
	cr_assert_eq(bench.settled_waiting, 0);
	for (uint32_t i = 0; i < 2; i++) {
		struct fake_counters counters = counters_of(bench.devices[i]);
		/* One of 32 was under way: no more are begun. */
		cr_assert_eq(fake_rdma_seen(bench.devices[i])->num_regs, 1);
		cr_assert(counters.regs == 1 && counters.deregs == 1 && counters.mrs == 0);
	}
	teardown(&bench);
}

#define THREADS 4u
#define ROUNDS 2000u

static void *
use(void *arg)
{
	struct region *region = arg;
	for (uint32_t i = 0; i < ROUNDS; i++) {
		struct region_key key;
		struct region *mine = region_retain(region);
		if (region_mr(mine, i % 2, i, &key))
			cr_assert_eq(key.address, i);
		region_release(mine);
	}
	region_release(region);
	return NULL;
}

Test(rdma_region, references__of_many_threads)
{
	static struct bench bench;
	pthread_t threads[THREADS];
	setup(&bench, 2);
	start(&bench);
	struct region *region = make(&bench, SOMEWHERE, MIB, 3, VERBS_REMOTE_READ);
	for (uint32_t i = 0; i < THREADS; i++)
		cr_assert_eq(pthread_create(&threads[i], NULL, use, region_retain(region)), 0);
	region_release(region);
	for (uint32_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	tally_wait(&bench.tally, &bench.gone, 1);
	cr_assert(counters_of(bench.devices[0]).mrs == 0 && counters_of(bench.devices[1]).mrs == 0);
	teardown(&bench);
	cr_assert_eq(bench.gone, 1);
}

/* ---- memlock ---- */

#define HOST_MAP "         0          0 4294967295\n"

Test(rdma_memlock, parse__what_is_locked_and_who_is_exempt)
{
	struct memlock memlock = memlock_parse("Name:\tthagentd\nVmLck:\t      12 kB\nVmPin:\t    "
					       "2048 kB\nCapEff:\t0000000000004000\n",
		HOST_MAP, 8 * MIB);
	cr_assert(memlock.locked_bytes == 2 * MIB && memlock.limit_bytes == 8 * MIB);
	cr_assert(memlock.exempt && memlock_unlimited(&memlock));
	/* All other capabilities. */
	memlock = memlock_parse("VmPin:\t0 kB\nCapEff:\t000001ffffffbfff\n", HOST_MAP, 8 * MIB);
	cr_assert(!memlock.exempt && !memlock_unlimited(&memlock));
	/* Within a user namespace the kernel does not look at it. */
	memlock = memlock_parse("CapEff:\tffffffffffffffff\n", "0 100000 65536\n", 8 * MIB);
	cr_assert_not(memlock.exempt);
	memlock = memlock_parse("", "", UINT64_MAX);
	cr_assert(memlock.locked_bytes == 0 && !memlock.exempt && memlock_unlimited(&memlock));
	cr_assert_eq(memlock_read(&memlock), 0);
}

Test(rdma_memlock, explain__the_limit_that_bites)
{
	struct memlock_case failed = {.rail = "mlx5_0/1",
		.code = -ENOMEM,
		.bytes = 64 * MIB,
		.mrs = 1,
		.mrs_max = 100,
		.memlock = {.limit_bytes = 65 * MIB, .locked_bytes = 2 * MIB}};
	struct th_err err = {0};
	cr_assert_eq(memlock_explain(&failed, &err), TH_E_LIMIT);
	static const char *const parts[] = {"mlx5_0/1", "64.0MiB", "RLIMIT_MEMLOCK is 65.0MiB",
		"2.00MiB", "LimitMEMLOCK=infinity", "CAP_IPC_LOCK"};
	for (size_t i = 0; i < TH_ARRAY_LEN(parts); i++)
		cr_assert_neq(strstr(err.text, parts[i]), NULL, "%s: %s", parts[i], err.text);
	/* It would have fitted, so it is something else. */
	failed.memlock.locked_bytes = MIB;
	cr_assert_eq(memlock_explain(&failed, &err), -ENOMEM);
	cr_assert_eq(strstr(err.text, "RLIMIT"), NULL, "%s", err.text);
	failed.memlock.locked_bytes = UINT64_MAX;
	cr_assert_eq(memlock_explain(&failed, &err), TH_E_LIMIT);
	failed.memlock.exempt = true;
	cr_assert_eq(memlock_explain(&failed, &err), -ENOMEM);
	/* Memory of a GPU is not locked. */
	failed.memlock.exempt = false;
	failed.dmabuf = true;
	cr_assert_eq(memlock_explain(&failed, &err), -ENOMEM);
	failed.code = -EOPNOTSUPP;
	cr_assert_eq(memlock_explain(&failed, &err), -EOPNOTSUPP);
	cr_assert_neq(strstr(err.text, "dma-buf"), NULL, "%s", err.text);
	failed.code = -EPERM;
	cr_assert_eq(memlock_explain(&failed, &err), -EPERM);
	failed.mrs = 100;
	cr_assert_eq(memlock_explain(&failed, &err), TH_E_LIMIT);
	cr_assert_neq(strstr(err.text, "100 memory regions"), NULL, "%s", err.text);
}
