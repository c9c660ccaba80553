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
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/host/host.h"
#include "daemon/host/memory/gpu_hold.h"
#include "daemon/host/memory/memory_gpu.h"
#include "daemon/host/memory/nic_regions.h"
#include "daemon/host/orderly_end.h"
#include "daemon/host/worker/fd_channel.h"
#include "daemon/host/worker/registration.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/cuda/cuda_handle.h"
#include "tests/support/rdma/fake_rdma.h"
#include "transport/cuda/agent/gpus.h"
#include "transport/part/fd_memory.h"
#include "transport/part/packed.h"
#include "transport/rdma/memory/region.h"

#define U8 1
#define MIB (UINT64_C(1) << 20)
#define BASE UINT64_C(0x7f0000000000)
#define PATIENCE_NS INT64_C(60000000000)

static struct fake_rdma *fake;
static struct verbs_device *devices[2];
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

static uint32_t
all_rails(void *arg, const void *data, uint64_t bytes)
{
	(void)arg;
	(void)data;
	(void)bytes;
	return UINT32_MAX;
}

static uint32_t
all_rails_pci(void *arg, uint32_t pci)
{
	(void)arg;
	(void)pci;
	return UINT32_MAX;
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
	const struct fake_device_config device = {.dmabuf = true};
	fake = fake_rdma_new(false);
	struct fake_host *fake_host = fake_rdma_host(fake);
	for (uint32_t i = 0; i < 2; i++)
		devices[i] = fake_rdma_device(fake_host, &device);
	cr_assert_eq(loop_new("keeper", LOOP_EPOLL, NULL, NULL, &keeper), 0);
	cr_assert_eq(rails_new(fake_rdma_verbs(fake_host), &config, keeper, &user, &rails), 0);
	cr_assert_eq(gpus_new(&gpus_config, &err, &gpus), 0, "%s", err.text);
	regions = (struct regions){.rails = rails,
		.near = all_rails,
		.near_pci = all_rails_pci,
		.gpus = gpus,
		.root = ""};
}

/* Without the rail's own. */
static uint32_t
mrs(uint32_t rail)
{
	struct rail_status status;
	rail_status(rails, rail, &status);
	return status.num_mrs;
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
	fake_rdma_free(fake);
	fd_memory_sweep();
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

/* A file stands for it: the devices of this test take any. It is so much too short. */
static int
short_dmabuf(
	uint64_t base, uint64_t bytes, uint64_t offset, uint64_t missing, uint32_t descriptors_max)
{
	const struct memory_limits limits = {.objects_max = 100,
		.descriptors_max = descriptors_max,
		.kept_by_all = set.descriptors};
	const struct fdmsg_memory message = {
		.kind = FDMSG_DMABUF, .base = base, .bytes = bytes, .offset = offset};
	uint32_t id = 0;
	int fd = memfd_create("dma-buf", MFD_CLOEXEC);
	cr_assert_geq(fd, 0);
	if (offset + bytes > missing && offset + bytes < INT64_MAX)
		cr_assert_eq(ftruncate(fd, (off_t)(offset + bytes - missing)), 0);
	int rc = memory_add(&set, &message, &fd, &limits, &err, &id);
	cr_assert_eq(rc < 0, fd >= 0, "a descriptor is taken or left");
	th_fd_close(&fd);
	return rc < 0 ? rc : (int)id;
}

static int
dmabuf(uint64_t base, uint64_t bytes, uint64_t offset, uint32_t descriptors_max)
{
	return short_dmabuf(base, bytes, offset, 0, descriptors_max);
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
	const struct fake_seen *seen = fake_rdma_seen(devices[0]);
	uint32_t dmabufs = 0;
	for (uint32_t i = 0; i < seen->num_regs; i++) {
		cr_assert_eq(seen->regs[i].access & VERBS_REMOTE_READ, VERBS_REMOTE_READ);
		dmabufs += seen->regs[i].fd >= 0;
	}
	cr_assert_eq(dmabufs, 2);
	tensors_free(tensors);
	tensors = cover(); /* other tensors in the same memory */
	cr_assert_eq(tensors->places[0].region, region);
	cr_assert_eq(mrs(0), 2);
	tensors_free(tensors);
	cr_assert_eq(memory_forget(&set, 5, false), 0);
	cr_assert_eq(set.descriptors, 1);
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

/* A registration ends while a part is held, and other memory has come to its address. */
Test(daemon_dmabuf, dmabuf__forgotten_while_it_is_held__reaches_no_later_rows)
{
	uint32_t before = piece(BASE, 4 * MIB);
	cr_assert_eq(dmabuf(BASE, 4 * MIB, 0, 100), 2);
	row("a", before, 0, 2 * MIB);
	struct tensors *tensors = cover();
	const struct region *region = memory_object(&set, 2)->region;
	cr_assert_eq(tensors->places[0].region, region);
	tensors_free(tensors);
	cr_assert_eq(memory_forget(&set, 2, true), 0);
	cr_assert_eq(memory_forget(&set, before, true), 0);
	num_rows = 0;
	row("a", piece(BASE, 4 * MIB), 0, 2 * MIB);
	tensors = cover();
	cr_assert_str_eq(tensors->no_rdma, "its GPU memory has no dma-buf");
	cr_assert_null(tensors->places[0].region);
	tensors_free(tensors);
	cr_assert_eq(dmabuf(BASE, 4 * MIB, 0, 100), 4);
	tensors = cover();
	cr_assert_null(tensors->no_rdma, "%s", tensors->no_rdma);
	cr_assert_eq(tensors->places[0].region, memory_object(&set, 4)->region);
	cr_assert_neq(tensors->places[0].region, region);
	tensors_free(tensors);
}

static void
on_gone(void *arg, bool kept)
{
	__atomic_store_n((int *)arg, kept ? 2 : 1, __ATOMIC_RELEASE);
}

/* What the worker waits for whose memory is to be free: there is no use in waiting on. */
static int
how_it_ends(int dereg_code)
{
	int how = 0;
	uint32_t id = piece(BASE, 4 * MIB);
	cr_assert_eq(dmabuf(BASE, 4 * MIB, 0, 100), (int)id + 1);
	num_rows = 0;
	row("a", id, 0, 2 * MIB);
	struct tensors *tensors = cover();
	wait_mrs(1);
	fake_rdma_refuse(devices[0], FAKE_DEREG, 1, dereg_code);
	tensors_free(tensors);
	memory_gpu_forget_all(&set);
	memory_sweep(&set);
	struct hold *hold = set.hold;
	set.hold = NULL;
	hold_end_and_tell(hold, on_gone, &how);
	int64_t end_ns = th_now_ns() + PATIENCE_NS;
	while (__atomic_load_n(&how, __ATOMIC_ACQUIRE) == 0) {
		cr_assert_lt(th_now_ns(), end_ns);
		usleep(200);
	}
	return how;
}

Test(daemon_dmabuf, dmabuf__that_a_device_refuses_to_give_back__is_told)
{
	cr_assert_eq(how_it_ends(0), 1);
	cr_assert_eq(how_it_ends(-EBUSY), 2);
}

/* ---- what a worker hears of it --------------------------------------------------------------- */

static struct host host;
static struct fdmsg message;

static void
on_signal(void *arg, int number)
{
	(void)arg;
	(void)number;
}

/* A worker's whose piece and dma-buf are shared; its end of the socket. */
static int
open_session(void)
{
	int socks[2];
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, socks), 0);
	cr_assert_eq(piece(BASE, 4 * MIB), 1);
	cr_assert_eq(dmabuf(BASE, 4 * MIB, 0, 100), 2);
	session_accept(&host, socks[0]);
	cr_assert_eq(HASH_COUNT(host.sessions), 1);
	host.sessions->state = HOST_SESSION_OPEN;
	host.sessions->memory = set;
	set = (struct memory_set){0};
	return socks[1];
}

#define TOKEN 7 /* of who asks */

int __wrap_net_server_reply(
	struct net_server *server, uint64_t token, const uint8_t *data, size_t bytes);

int
__wrap_net_server_reply(
	struct net_server *server, uint64_t token, const uint8_t *data, size_t bytes)
{
	(void)server;
	(void)data;
	(void)bytes;
	return token == TOKEN ? 0 : -ESTALE;
}

/* What the last document was answered, when it is. */
static int
answer_of(const struct registration *registration)
{
	int64_t end_ns = th_now_ns() + PATIENCE_NS;
	while (registration->pending) {
		cr_assert_lt(th_now_ns(), end_ns);
		loop_arm(&host.loop, end_ns);
		loop_wait(&host.loop, false);
	}
	Tensorhub__V1__Reply *reply = tensorhub__v1__reply__unpack(
		NULL, registration->answer_bytes, registration->answer);
	int code = reply->code;
	tensorhub__v1__reply__free_unpacked(reply, NULL);
	return code;
}

static void
begin_to_unregister(struct host_session *session, uint64_t token, uint64_t number)
{
	Tensorhub__V1__Request request = TENSORHUB__V1__REQUEST__INIT;
	request.request_no = number;
	request.body_case = TENSORHUB__V1__REQUEST__BODY_UNREGISTER_TENSORS;
	registration_document(session, token, &request);
}

static int
unregister(struct host_session *session, uint64_t number)
{
	begin_to_unregister(session, TOKEN, number);
	return answer_of(&session->registration);
}

static void
begin_to_register(struct host_session *session)
{
	static uint8_t data[256];
	char name[] = "a", *names = name;
	uint32_t dtype = U8, ndim = 1, memory_id = 1;
	uint64_t bytes = 2 * MIB, zero = 0;
	Tensorhub__V1__TensorRows table = TENSORHUB__V1__TENSOR_ROWS__INIT;
	Tensorhub__V1__RegisterTensors body = TENSORHUB__V1__REGISTER_TENSORS__INIT;
	Tensorhub__V1__Request request = TENSORHUB__V1__REQUEST__INIT;
	table.n_name = table.n_dtype = table.n_ndim = table.n_memory_id = 1;
	table.n_memory_offset = table.n_bytes = 1;
	table.n_local_shape = table.n_global_shape = table.n_offset = 1;
	table.name = &names;
	table.dtype = &dtype;
	table.ndim = &ndim;
	table.memory_id = &memory_id;
	table.local_shape = table.global_shape = table.bytes = &bytes;
	table.offset = table.memory_offset = &zero;
	request.request_no = 1;
	request.body_case = TENSORHUB__V1__REQUEST__BODY_REGISTER_TENSORS;
	request.register_tensors = &body;
	body.num_parts = 1;
	body.data.data = data;
	body.data.len = tensorhub__v1__tensor_rows__pack(&table, data);
	registration_document(session, 0, &request);
}

/* No process opens the piece: that is what its worker is told first. */
static void
fail_to_register(struct host_session *session)
{
	begin_to_register(session);
	wait_mrs(1);
	fake_rdma_refuse(devices[0], FAKE_DEREG, 1, -EBUSY);
	cr_assert_eq(answer_of(&session->registration), TH_E_MEMORY_KIND);
}

Test(daemon_dmabuf, registration__that_failed_and_stays_with_a_device__is_told_once)
{
	cr_assert_eq(loop_open(&host.loop, on_signal, &host, &err), 0);
	cr_assert_eq(gpu_open(&host, &err), 0, "%s", err.text);
	host.gpu.gpus = gpus;
	host.regions = regions;
	host.options.tensors_max = 1;
	host.options.sessions_max = 1;
	int sock = open_session();
	fail_to_register(host.sessions);
	/* Nobody waits for the first answer any more. */
	begin_to_unregister(host.sessions, TOKEN + 1, 2);
	cr_assert_eq(answer_of(&host.sessions->registration), -EBUSY);
	cr_assert_eq(unregister(host.sessions, 3), -EBUSY);
	cr_assert_eq(unregister(host.sessions, 4), 0);
	cr_assert_eq(host.counters.registrations_refused, 1); /* what failed */
	session_free_all(&host);
	close(sock);
	sock = open_session();
	fail_to_register(host.sessions);
	host.sessions->state = HOST_SESSION_CLOSING;
	worker_closed(host.sessions, 0, "");
	/* Nor by an agent that stops, with or without a server to say good-bye to. */
	host.left = true;
	host.stop_ns = host.farewell_ns = INT64_MAX;
	cr_assert(!stop_finished(&host, th_now_ns()));
	session_gone(host.sessions);
	cr_assert(stop_finished(&host, th_now_ns()));
	cr_assert_eq(fdmsg_recv(sock, &message), 1);
	cr_assert_eq(message.head.kind, FDMSG_CLOSED);
	cr_assert_eq(((const struct fdmsg_refused *)(const void *)message.body)->code, -EBUSY);
	session_reap(&host);
	close(sock);
	host.gpu.gpus = NULL;
	gpu_close(&host);
	loop_close(&host.loop);
}

Test(daemon_dmabuf, dmabuf__that_cannot_be__is_refused)
{
	struct tensors *tensors = NULL;
	cr_assert_eq(dmabuf(BASE, 0, 0, 100), TH_E_INVALID);
	cr_assert_eq(dmabuf(UINT64_MAX - 4095, 4096, 0, 100), TH_E_INVALID);
	cr_assert_eq(dmabuf(BASE, 4096, UINT64_MAX - 4095, 100), TH_E_INVALID);
	cr_assert_eq(dmabuf(BASE, 4096, 0, 1), 1);
	cr_assert_eq(dmabuf(BASE + 4096, 4096, 0, 1), TH_E_LIMIT);
	row("a", 1, 0, 4096);
	const struct tensors_rows all = {num_rows, rows, places};
	cr_assert_eq(tensors_new(&all, &set, &err, &tensors), TH_E_INVALID);
	cr_assert(strstr(err.text, "for NICs alone"), "%s", err.text);
}

/* The offset is the worker's word, too. */
Test(daemon_dmabuf, dmabuf__shorter_than_it_is_said_to_be__is_refused)
{
	cr_assert_eq(short_dmabuf(BASE, 8192, 0, 1, 100), TH_E_INVALID);
	cr_assert(strstr(err.text, "has 8191 bytes, and 8192 from offset 0"), "%s", err.text);
	cr_assert_eq(short_dmabuf(BASE, 8192, 4096, 4096, 100), TH_E_INVALID);
	cr_assert_eq(short_dmabuf(BASE, 8192, 4096, 0, 100), 1);
}
