/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of devices, regions and queue pairs over real verbs: in the guest, on the two soft-RoCE
 * devices that boot.sh lays, which reach themselves and not each other.
 *
 * One test at a time: they take links down and interfaces away.
 */
#include "transport/rdma/device/device.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <linux/capability.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "tests/support/tally.h"
#include "transport/rdma/device/device_own.h"
#include "transport/rdma/engine/queues.h"
#include "transport/rdma/memory/region.h"

#define MIB (UINT64_C(1) << 20)
#define SLICE (UINT64_C(256) << 10)
#define SLICES 8u
#define BYTES (2 * MIB)
#define DEPTH 16u
#define RESOURCES_BYTES 4096u

struct bench {
	struct loop *keeper;
	struct rails *rails;
	struct rails_config config;
	const struct verbs_ops *ops;
	struct tally tally;
	uint32_t done, settled, gone; /* by tally */
	char resources[RESOURCES_BYTES];
};

static void
on_changed(void *arg, uint32_t rail)
{
	struct bench *bench = arg;
	(void)rail;
	tally_add(&bench->tally, &bench->done);
}

static struct rail_status
wait_state(struct bench *bench, uint32_t rail, enum rail_state state)
{
	struct timespec until;
	struct rail_status status;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += TALLY_PATIENCE_S;
	pthread_mutex_lock(&bench->tally.lock);
	for (;;) {
		rail_status(bench->rails, rail, &status);
		if (status.state == state)
			break;
		int rc = pthread_cond_timedwait(&bench->tally.moved, &bench->tally.lock, &until);
		cr_assert_eq(rc, 0, "%s: %s", status.name, status.why);
	}
	pthread_mutex_unlock(&bench->tally.lock);
	return status;
}

static void
command(const char *line)
{
	cr_assert_eq(system(line), 0, "%s", line);
}

/* What the kernel has for users of RDMA. */
static void
read_resources(char ret_text[RESOURCES_BYTES])
{
	FILE *from = popen("rdma resource show", "r");
	cr_assert_not_null(from);
	size_t bytes = fread(ret_text, 1, RESOURCES_BYTES - 1, from);
	ret_text[bytes] = '\0';
	cr_assert_eq(pclose(from), 0);
	cr_assert_neq(strstr(ret_text, "rxe1"), NULL);
}

static void
setup(struct bench *bench)
{
	static const char *const names[] = {"rxe0", "rxe1"};
	struct rails_user user = {.arg = bench, .changed = on_changed};
	*bench = (struct bench){.config = rails_config_default()};
	bench->config.timeout = 12; /* 17 ms: here nobody is far away */
	bench->config.retries = 2;
	bench->config.names = names;
	bench->config.num_names = TH_ARRAY_LEN(names);
	tally_init(&bench->tally);
	read_resources(bench->resources);
	cr_assert_eq(loop_new("keeper", LOOP_EPOLL, NULL, NULL, &bench->keeper), 0);
	struct verbs verbs;
	struct th_err err;
	cr_assert_eq(verbs_ib(&verbs, &err), 0, "%s", err.text);
	cr_assert_eq(rails_new(verbs, &bench->config, bench->keeper, &user, &bench->rails), 0);
	bench->ops = rails_ops(bench->rails);
	cr_assert_eq(rails_count(bench->rails), 2);
	for (uint32_t i = 0; i < 2; i++)
		wait_state(bench, i, RAIL_UP); /* a new device gets its addresses by and by */
}

static void
close_rails(struct bench *bench)
{
	rails_free(bench->rails);
	loop_free(bench->keeper);
}

static void
teardown(struct bench *bench)
{
	static char resources[RESOURCES_BYTES];
	close_rails(bench);
	read_resources(resources);
	cr_assert_str_eq(resources, bench->resources);
}

/* ---- regions ---- */

static void
on_settled(void *arg, struct region *region)
{
	struct bench *bench = arg;
	(void)region;
	tally_add(&bench->tally, &bench->settled);
}

static void
on_gone(void *arg)
{
	struct bench *bench = arg;
	tally_add(&bench->tally, &bench->gone);
}

/* Shared memory, as that of workers is, and not at the beginning of a page. */
static uint8_t *
memory(uint8_t first)
{
	int fd = memfd_create("device", MFD_CLOEXEC);
	cr_assert(fd >= 0 && ftruncate(fd, BYTES + 4096) == 0);
	uint8_t *map = mmap(NULL, BYTES + 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	cr_assert_neq(map, MAP_FAILED);
	close(fd);
	for (uint64_t i = 0; i < BYTES + 4096; i++)
		map[i] = first ? (uint8_t)(first + i * 31 + (i >> 12)) : 0;
	return map + 100;
}

static void
forget(uint8_t *data)
{
	cr_assert_eq(munmap(data - 100, BYTES + 4096), 0);
}

static struct region *
make_region(struct bench *bench, void *data, unsigned access)
{
	struct region_memory spec = {.data = data, .bytes = BYTES};
	struct region_user user = {.arg = bench, .settled = on_settled, .gone = on_gone};
	uint32_t settled = bench->settled;
	struct region *region = region_new(bench->rails, &spec, 3, access, &user);
	tally_wait(&bench->tally, &bench->settled, settled + 1);
	return region;
}

static void
drop_region(struct bench *bench, struct region *region)
{
	uint32_t gone = bench->gone;
	region_release(region);
	tally_wait(&bench->tally, &bench->gone, gone + 1);
}

/* ---- queue pairs: both ends are ours ---- */

struct pair {
	struct bench *bench;
	uint32_t reader_rail, source_rail;
	enum endpoint_role source_role;
	struct verbs_cq *cq;
	struct queues reader, source;
	struct th_err err;
	int code;
	struct loop_task task;
	void (*run)(struct pair *pair);
	uint32_t done;
};

static void
run_pair(struct loop_task *task)
{
	struct pair *pair = loop_container(task, struct pair, task);
	pair->run(pair);
	tally_add(&pair->bench->tally, &pair->done);
}

static void
on_keeper(struct pair *pair, void (*run)(struct pair *pair))
{
	pair->task.run = run_pair;
	pair->run = run;
	uint32_t done = pair->done;
	loop_post(pair->bench->keeper, &pair->task);
	tally_wait(&pair->bench->tally, &pair->done, done + 1);
}

static void
open_both(struct pair *pair)
{
	struct rails *rails = pair->bench->rails;
	struct th_err *err = &pair->err;
	struct verbs_device *device = rail_device(rails, pair->reader_rail);
	cr_assert_eq(pair->bench->ops->cq_new(device, 4 * DEPTH, &pair->cq), 0);
	int rc = queues_new(rails, pair->reader_rail, pair->cq, DEPTH, &pair->reader, err);
	cr_assert_eq(rc, 0, "%s", err->text);
	rc = queues_new(rails, pair->source_rail, NULL, DEPTH, &pair->source, err);
	cr_assert_eq(rc, 0, "%s", err->text);
	cr_assert_eq(endpoint_check(&pair->source.own, err), 0, "%s", err->text);
	rc = queues_connect(rails, &pair->source, &pair->reader.own, pair->source_role, "a", err);
	if (rc == 0)
		rc = queues_connect(
			rails, &pair->reader, &pair->source.own, ENDPOINT_READER, "b", err);
	pair->code = rc;
}

static void
free_source(struct pair *pair)
{
	cr_assert_eq(queues_free(pair->bench->rails, &pair->source), 0);
}

static void
free_both(struct pair *pair)
{
	free_source(pair);
	cr_assert_eq(queues_free(pair->bench->rails, &pair->reader), 0);
	pair->bench->ops->cq_free(pair->cq);
}

static void
open_pair(struct bench *bench, struct pair *ret_pair, uint32_t source_rail)
{
	*ret_pair = (struct pair){
		.bench = bench, .source_rail = source_rail, .source_role = ENDPOINT_SOURCE};
	on_keeper(ret_pair, open_both);
}

/* All slices, half of them through each queue pair; only the last of each is signalled, unless all
 * are to be. */
static void
post(struct pair *pair, struct region *to, struct region *from, bool all_signalled)
{
	for (uint32_t q = 0; q < ENDPOINT_QPS; q++) {
		struct verbs_read reads[SLICES / ENDPOINT_QPS];
		for (uint32_t i = 0; i < TH_ARRAY_LEN(reads); i++) {
			uint32_t slice = q * (uint32_t)TH_ARRAY_LEN(reads) + i;
			struct region_key local, remote;
			cr_assert(region_mr(to, pair->reader_rail, slice * SLICE, &local));
			cr_assert(region_mr(from, pair->source_rail, slice * SLICE, &remote));
			cr_assert(local.bytes >= SLICE && remote.bytes >= SLICE);
			reads[i] = (struct verbs_read){.id = slice,
				.local = local.address,
				.remote = remote.address,
				.lkey = local.lkey,
				.rkey = remote.rkey,
				.bytes = (uint32_t)SLICE,
				.signalled = all_signalled || i + 1 == TH_ARRAY_LEN(reads)};
		}
		cr_assert_eq(pair->bench->ops->post_reads(
				     pair->reader.qps[q], reads, (uint32_t)TH_ARRAY_LEN(reads)),
			0);
	}
}

/* Sleeps until each has come; counts them by status. */
static void
await(struct pair *pair, uint32_t count, uint32_t ret_counts[VERBS_OTHER + 1])
{
	const struct verbs_ops *ops = pair->bench->ops;
	int64_t deadline_ns = th_now_ns() + TALLY_PATIENCE_S * INT64_C(1000000000);
	memset(ret_counts, 0, sizeof(uint32_t) * (VERBS_OTHER + 1));
	for (uint32_t have = 0; have < count;) {
		struct verbs_done done[4];
		cr_assert_eq(ops->cq_arm(pair->cq), 0);
		int got = ops->cq_poll(pair->cq, done, TH_ARRAY_LEN(done));
		cr_assert_geq(got, 0);
		for (int i = 0; i < got; i++) {
			cr_assert(done[i].qpn == pair->reader.own.qpns[0] ||
				  done[i].qpn == pair->reader.own.qpns[1]);
			cr_assert_lt(done[i].id, SLICES);
			ret_counts[done[i].status]++;
		}
		have += (uint32_t)got;
		if (got > 0)
			continue;
		struct pollfd entry = {.fd = ops->cq_fd(pair->cq), .events = POLLIN};
		cr_assert(poll(&entry, 1, 1000) >= 0 && th_now_ns() < deadline_ns,
			"%u of %u completions came", have, count);
		ops->cq_quiet(pair->cq);
	}
	struct verbs_done more;
	cr_assert_eq(ops->cq_poll(pair->cq, &more, 1), 0);
}

/* ---- tests ---- */

Test(vm_device, rails__each_with_its_ipv4_address)
{
	static struct bench bench;
	setup(&bench);
	cr_assert_eq(rails_up(bench.rails), 3);
	for (uint32_t i = 0; i < 2; i++) {
		struct rail_status status;
		struct th_err err;
		struct endpoint endpoint;
		struct endpoint_port port;
		char name[32], gid[GID_TEXT_BYTES], address[32];
		rail_status(bench.rails, i, &status);
		snprintf(name, sizeof(name), "rxe%u/1", i);
		snprintf(address, sizeof(address), "10.77.%u.1", i);
		cr_assert_str_eq(status.name, name);
		cr_assert_str_eq(gid_text(status.gid.raw, gid), address);
		cr_assert(status.gid.type == VERBS_GID_ROCE_V2 && status.pci[0] == '\0');
		cr_assert(status.port.link == VERBS_LINK_ETHERNET && status.port.active);
		cr_assert(status.info.reads_out_max > 0 && status.info.mr_bytes_max > 0);
		cr_assert_eq(rail_endpoint(bench.rails, i, &endpoint, &port, &err), 0);
		cr_assert_eq(port.gid_index, status.gid.index);
		cr_assert_leq(endpoint.reads_out, ENDPOINT_READS_MAX);
	}
	teardown(&bench);
}

/* Two regions: READs from the one land in the other. */
static struct {
	struct bench bench;
	struct pair pair;
	uint8_t *from, *to;
	struct region *source, *reader; /* NULL: dropped by the test */
} two;

static void
two_setup(void)
{
	setup(&two.bench);
	two.from = memory(7);
	two.to = memory(0);
	two.source = make_region(&two.bench, two.from, VERBS_REMOTE_READ);
	two.reader = make_region(&two.bench, two.to, VERBS_LOCAL_WRITE);
	cr_assert(region_ready(two.source) == 3 && region_ready(two.reader) == 3);
}

static void
two_drop(void)
{
	if (two.source)
		drop_region(&two.bench, two.source);
	drop_region(&two.bench, two.reader);
}

static void
two_teardown(void)
{
	two_drop();
	teardown(&two.bench);
	forget(two.from);
	forget(two.to);
}

/* From rail 0 to the source's rail. */
static void
two_open(uint32_t source_rail)
{
	open_pair(&two.bench, &two.pair, source_rail);
}

static void
two_open_here(void)
{
	two_open(0);
	cr_assert_eq(two.pair.code, 0, "%s", two.pair.err.text);
}

static void
expect_nothing_landed(void)
{
	for (uint64_t i = 0; i < BYTES; i++)
		cr_assert(two.to[i] == 0);
}

TestSuite(vm_device_two, .init = two_setup, .fini = two_teardown);

Test(vm_device_two, memory__is_read_through_two_queue_pairs)
{
	uint32_t counts[VERBS_OTHER + 1];
	for (uint32_t round = 0; round < 3; round++) {
		memset(two.to, 0, BYTES);
		two_open_here();
		post(&two.pair, two.reader, two.source, false);
		await(&two.pair, ENDPOINT_QPS, counts);
		cr_assert_eq(counts[VERBS_OK], ENDPOINT_QPS);
		cr_assert_eq(memcmp(two.from, two.to, BYTES), 0);
		on_keeper(&two.pair, free_both);
	}
}

Test(vm_device_two, source_deregisters__the_reader_is_refused)
{
	uint32_t counts[VERBS_OTHER + 1];
	two_open_here();
	struct region_key key, local;
	cr_assert(region_mr(two.source, 0, 0, &key) && region_mr(two.reader, 0, 0, &local));
	drop_region(&two.bench, two.source);
	two.source = NULL;
	struct verbs_read read = {.id = 1,
		.local = local.address,
		.remote = key.address,
		.lkey = local.lkey,
		.rkey = key.rkey,
		.bytes = 4096,
		.signalled = true};
	cr_assert_eq(two.bench.ops->post_reads(two.pair.reader.qps[0], &read, 1), 0);
	await(&two.pair, 1, counts);
	cr_assert_eq(counts[VERBS_ACCESS], 1);
	/* What comes after it does not get out. */
	cr_assert_eq(two.bench.ops->post_reads(two.pair.reader.qps[0], &read, 1), 0);
	await(&two.pair, 1, counts);
	cr_assert_eq(counts[VERBS_FLUSHED], 1);
	cr_assert_eq(two.to[0], 0);
	on_keeper(&two.pair, free_both);
}

Test(vm_device_two, source_only_serves_what_it_says)
{
	uint32_t counts[VERBS_OTHER + 1];
	/* Memory where READs land is not read by others. */
	struct region *lands = make_region(&two.bench, two.from, VERBS_LOCAL_WRITE);
	two_open_here();
	post(&two.pair, two.reader, lands, true);
	await(&two.pair, SLICES, counts);
	cr_assert(counts[VERBS_OK] == 0 && counts[VERBS_ACCESS] == ENDPOINT_QPS);
	on_keeper(&two.pair, free_both);
	drop_region(&two.bench, lands);
	/* Queue pairs of a reader answer nobody. */
	two.pair = (struct pair){.bench = &two.bench, .source_role = ENDPOINT_READER};
	on_keeper(&two.pair, open_both);
	cr_assert_eq(two.pair.code, 0, "%s", two.pair.err.text);
	post(&two.pair, two.reader, two.source, true);
	await(&two.pair, SLICES, counts);
	cr_assert_eq(counts[VERBS_OK], 0);
	on_keeper(&two.pair, free_both);
	expect_nothing_landed();
}

Test(vm_device_two, queue_pairs__freed_failed_or_across_rails__nothing_is_read)
{
	uint32_t counts[VERBS_OTHER + 1];
	two_open_here();
	on_keeper(&two.pair, free_source); /* the fence */
	post(&two.pair, two.reader, two.source, true);
	await(&two.pair, SLICES, counts);
	cr_assert(counts[VERBS_OK] == 0 && counts[VERBS_GONE] == ENDPOINT_QPS &&
		  counts[VERBS_FLUSHED] == SLICES - ENDPOINT_QPS);
	on_keeper(&two.pair, free_both);
	/* Our own fail: all comes back. */
	two_open_here();
	for (uint32_t i = 0; i < ENDPOINT_QPS; i++)
		cr_assert_eq(two.bench.ops->qp_fail(two.pair.reader.qps[i]), 0);
	post(&two.pair, two.reader, two.source, true);
	await(&two.pair, SLICES, counts);
	cr_assert_eq(counts[VERBS_FLUSHED], SLICES);
	on_keeper(&two.pair, free_both);
	/* There is no way. */
	two_open(1);
	if (two.pair.code == 0) {
		post(&two.pair, two.reader, two.source, true);
		await(&two.pair, SLICES, counts);
		cr_assert_eq(counts[VERBS_OK], 0);
	}
	on_keeper(&two.pair, free_both);
	expect_nothing_landed();
}

static int
read_itself(struct bench *bench, uint32_t rail, struct region *region)
{
	struct region_key key;
	struct th_err err;
	cr_assert(region_mr(region, rail, 0, &key));
	const struct verbs_mr mr = {.rkey = key.rkey};
	return selfread_try(&bench->rails->rails[rail], &mr, key.address, BYTES, &err);
}

Test(vm_device, memory__is_read_by_its_own_device_or_that_is_told)
{
	static struct bench bench;
	setup(&bench);
	uint8_t *data = memory(7);
	struct region *good = make_region(&bench, data, VERBS_REMOTE_READ);
	struct region *bad = make_region(&bench, data, VERBS_LOCAL_WRITE);
	for (uint32_t rail = 0; rail < 2; rail++) {
		const struct selfread *self = &bench.rails->rails[rail].selfread;
		cr_assert_eq(read_itself(&bench, rail, good), 0);
		cr_assert_not_null(self->qp);
		cr_assert_eq(memcmp(self->data, data, MIB), 0);
		cr_assert_eq(read_itself(&bench, rail, bad), -EREMOTEIO);
		cr_assert_null(self->qp);
		cr_assert_eq(read_itself(&bench, rail, good), 0);
		cr_assert_not_null(self->qp);
	}
	drop_region(&bench, good);
	drop_region(&bench, bad);
	forget(data);
	teardown(&bench);
}

Test(vm_device, link__down_and_up)
{
	static struct bench bench;
	setup(&bench);
	command("ip link set rdma1 down");
	struct rail_status status = wait_state(&bench, 1, RAIL_DOWN);
	cr_assert_neq(status.why[0], '\0');
	cr_assert_eq(rails_up(bench.rails), 1);
	command("ip link set rdma1 up");
	wait_state(&bench, 1, RAIL_UP);
	cr_assert_eq(rails_up(bench.rails), 3);
	teardown(&bench);
}

Test(vm_device, address__goes_moves_and_comes_back)
{
	static struct bench bench;
	char gid[GID_TEXT_BYTES];
	setup(&bench);
	command("ip addr del 10.77.1.1/24 dev rdma1");
	struct rail_status status = wait_state(&bench, 1, RAIL_DOWN);
	cr_assert_neq(strstr(status.why, "RoCE v2"), NULL, "%s", status.why);
	/* Two more take the places before it. */
	command("ip addr add fd77::1/64 dev rdma1 nodad");
	status = wait_state(&bench, 1, RAIL_UP);
	cr_assert_str_eq(gid_text(status.gid.raw, gid), "fd77::1");
	uint32_t index = status.gid.index;
	command("ip addr add 10.77.1.1/24 dev rdma1");
	do {
		status = wait_state(&bench, 1, RAIL_UP);
	} while (strcmp(gid_text(status.gid.raw, gid), "10.77.1.1") != 0);
	cr_assert_neq(status.gid.index, index);
	command("ip addr del fd77::1/64 dev rdma1");
	teardown(&bench);
}

/* The registering threads inherit it from this one. */
static void
may_lock(bool may)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];
	cr_assert_eq(syscall(SYS_capget, &header, data), 0);
	if (may)
		data[0].effective |= 1u << CAP_IPC_LOCK;
	else
		data[0].effective &= ~(1u << CAP_IPC_LOCK);
	cr_assert_eq(syscall(SYS_capset, &header, data), 0);
}

Test(vm_device, memlock__the_limit_is_named)
{
	static struct bench bench;
	struct rlimit little = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
	cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &little), 0);
	may_lock(false);
	setup(&bench);
	uint8_t *data = memory(7);
	struct region *region = make_region(&bench, data, VERBS_REMOTE_READ);
	struct th_err err = {0};
	cr_assert_eq(region_ready(region), 0);
	cr_assert_eq(region_state(region, 0, &err), REGION_FAILED);
	cr_assert_eq(err.code, TH_E_LIMIT);
	cr_assert_neq(strstr(err.text, "RLIMIT_MEMLOCK is 1.00MiB"), NULL, "%s", err.text);
	drop_region(&bench, region);
	teardown(&bench);
	may_lock(true);
	setup(&bench);
	region = make_region(&bench, data, VERBS_REMOTE_READ);
	cr_assert_eq(region_ready(region), 3);
	drop_region(&bench, region);
	teardown(&bench);
	forget(data);
}

Test(vm_device, interface__removed_under_everything)
{
	uint32_t counts[VERBS_OTHER + 1];
	two_setup();
	two.pair = (struct pair){.bench = &two.bench,
		.reader_rail = 1,
		.source_rail = 1,
		.source_role = ENDPOINT_SOURCE};
	on_keeper(&two.pair, open_both);
	cr_assert_eq(two.pair.code, 0, "%s", two.pair.err.text);
	/*
	 * soft-RoCE cannot take a device from who uses it: it says that the port is down, and waits
	 * until nobody does. (Drivers that can say that the device is gone.)
	 */
	command("ip link delete rdma1 &");
	wait_state(&two.bench, 1, RAIL_DOWN);
	cr_assert_eq(rails_up(two.bench.rails), 1);
	on_keeper(&two.pair, free_both);
	/* The other one does not care. */
	two_open_here();
	post(&two.pair, two.reader, two.source, false);
	await(&two.pair, ENDPOINT_QPS, counts);
	cr_assert_eq(memcmp(two.from, two.to, BYTES), 0);
	on_keeper(&two.pair, free_both);
	two_drop();
	close_rails(&two.bench);
	command("while [ -e /sys/class/infiniband/rxe1 ] || [ -e /sys/class/net/rdma1 ]; do "
		"sleep 0.05; done; ip link add rdma1 type dummy && "
		"ip addr add 10.77.1.1/24 dev rdma1 && ip link set rdma1 up && "
		"rdma link add rxe1 type rxe netdev rdma1");
	forget(two.from);
	forget(two.to);
}
