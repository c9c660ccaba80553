/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_rig - see transport_rig.h.
 */
#include "tests/support/transport/transport_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "tests/support/rdma/fake_rdma.h"
#include "tests/support/rng.h"
#include "transport/cuda/agent/gpus.h"
#include "transport/hash/digest.h"
#include "transport/part/fd_memory.h"
#include "transport/part/packed.h"
#include "transport/rdma/device/device.h"
#include "transport/rdma/memory/region.h"
#include "transport/rdma/rdma.h"

#define RIG_REAL_RAILS 2u
#define RIG_REAL_WINDOW_BYTES (512u << 10)
#define LOOK_NS INT64_C(2000000) /* for a device that was lost */

bool rig_with_files;
const struct rig_gpus *rig_gpus;
enum rig_memory rig_of_sources, rig_of_readers;
bool rig_gpus_for_nics;
bool rig_no_dmabufs;
int64_t rig_stage_idle_ns;

#define PATIENCE_NS INT64_C(40000000000)
#define GAP 3u /* bytes between two tensors */
#define BLOCK 65536u
#define PAGE 4096u

/* ---- shards ------------------------------------------------------------------------------- */

/* Random bytes; of a large tensor one block again and again, but each page begins with a number of
 * its own, so no two are equal. To draw all of them is most of what a sanitized test would do. */
static void
fill_tensor(struct th_rng *rng, uint8_t *tensor, size_t bytes)
{
	th_rng_bytes(rng, tensor, th_min_size(bytes, BLOCK));
	for (size_t at = BLOCK; at < bytes; at += PAGE) {
		memcpy(tensor + at, tensor + at - BLOCK, th_min_size(bytes - at, PAGE));
		uint64_t number = th_rng_u64(rng);
		memcpy(tensor + at, &number, th_min_size(bytes - at, sizeof(number)));
	}
}

void
rig_shard_init(struct rig_shard *shard, const uint64_t *sizes, uint32_t count, uint64_t fill)
{
	struct manifest_row *rows = th_calloc(count, sizeof(rows[0]));
	char(*names)[16] = th_calloc(count, sizeof(names[0]));
	*shard = (struct rig_shard){
		.tensors = th_calloc(count, sizeof(shard->tensors[0])), .fd = -1};
	for (uint32_t i = 0; i < count; i++) {
		snprintf(names[i], sizeof(names[i]), "t%08u", i);
		rows[i] = (struct manifest_row){
			.name = names[i], .dtype = 1, .ndim = 1, .local_shape = {sizes[i]}};
	}
	struct th_err err;
	int rc = manifest_build(rows, count, NULL, NULL, &err, &shard->manifest);
	TH_ASSERT(rc == 0);
	shard->table = chunk_table_new(&shard->manifest);
	TH_ASSERT(shard->table);
	/* Tensors lie so far apart: nothing is aligned, and an overrun is seen. */
	shard->bytes = 4096;
	for (uint32_t i = 0; i < count; i++)
		shard->bytes += sizes[i] + GAP;
	shard->filled = fill != 0;
	shard->memory = rig_gpus ? rig_gpus->allocate(shard->bytes, &shard->gpu)
				 : mmap(NULL, shard->bytes, PROT_READ | PROT_WRITE,
					   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	TH_ASSERT(shard->memory != MAP_FAILED);
	uint64_t at = 1;
	for (uint32_t i = 0; i < shard->manifest.num_rows; i++) {
		shard->tensors[i] = shard->memory + at;
		at += shard->manifest.rows[i].bytes + GAP;
	}
	if (fill != 0) {
		struct th_rng rng;
		th_rng_init_number(&rng, fill);
		for (uint32_t i = 0; i < shard->manifest.num_rows; i++)
			fill_tensor(&rng, shard->tensors[i], (size_t)shard->manifest.rows[i].bytes);
	}
	rig_shard_put(shard);
	free(rows);
	free(names);
	if (rig_with_files)
		rig_shard_to_file(shard);
}

void
rig_shard_put(const struct rig_shard *shard)
{
	if (rig_gpus && rig_gpus->put)
		rig_gpus->put(shard->gpu, shard->memory, shard->bytes);
}

void
rig_shard_get(const struct rig_shard *shard)
{
	if (!shard->on_gpu || !rig_gpus->get)
		return;
	if (!shard->half) {
		rig_gpus->get(shard->memory, shard->gpu, shard->bytes);
		return;
	}
	for (uint32_t i = 0; i < shard->manifest.num_rows; i += 2) {
		uint64_t at = (uint64_t)(shard->tensors[i] - shard->memory);
		rig_gpus->get(
			shard->tensors[i], shard->gpu + at, shard->manifest.rows[i].bytes + GAP);
	}
}

void
rig_register_soon(struct rig_agent *agent, struct rig_shard *shard)
{
	static const struct region_user nobody;
	if (agent->num_rails == 0 || shard->at)
		return;
	TH_ASSERT(agent->num_shards < RIG_SHARDS_MAX);
	struct rails *rails = rdma_rails(transport_rdma(agent->transport));
	struct region_memory memory = {
		.data = shard->memory, .dmabuf_fd = -1, .bytes = shard->bytes};
	shard->at = agent;
	shard->region = region_new(rails, &memory, UINT32_MAX, SHARD_ACCESS, &nobody);
	shard->packed = packed_new(shard->table);
	TH_ASSERT(shard->packed);
	packed_register(shard->packed, rails, UINT32_MAX);
	agent->shards[agent->num_shards++] = shard;
}

void
rig_register(struct rig_agent *agent, struct rig_shard *shard)
{
	rig_register_soon(agent, shard);
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	while (shard->at && (region_waiting(shard->region) != 0 ||
				    region_waiting(packed_region(shard->packed)) != 0)) {
		TH_ASSERT(th_now_ns() < until_ns);
		(void)poll(NULL, 0, 1);
	}
}

static void
unregister(struct rig_shard *shard)
{
	struct rig_agent *agent = shard->at;
	region_release(shard->region);
	packed_release(shard->packed);
	shard->region = NULL;
	shard->packed = NULL;
	shard->at = NULL;
	for (uint32_t i = 0; i < agent->num_shards; i++) {
		if (agent->shards[i] == shard)
			agent->shards[i--] = agent->shards[--agent->num_shards];
	}
}

void
rig_shard_fini(struct rig_shard *shard)
{
	if (shard->at)
		unregister(shard);
	if (shard->space)
		rig_gpus->unshare(shard->space);
	if (shard->host)
		gpus_host_release(shard->host);
	while (shard->host && !__atomic_load_n(&shard->host_gone, __ATOMIC_ACQUIRE))
		(void)poll(NULL, 0, 1);
	if (rig_gpus)
		rig_gpus->release(shard->memory, shard->bytes);
	else
		munmap(shard->memory, shard->bytes);
	th_fd_close(&shard->fd);
	chunk_table_release(shard->table);
	free(shard->tensors);
	manifest_free(&shard->manifest);
}

void
rig_shard_to_file(struct rig_shard *shard)
{
	shard->fd = memfd_create("rig", MFD_CLOEXEC);
	TH_ASSERT(shard->fd >= 0);
	for (uint64_t at = 0; at < shard->bytes;) {
		ssize_t put = write(shard->fd, shard->memory + at, shard->bytes - at);
		TH_ASSERT(put > 0);
		at += (uint64_t)put;
	}
	void *map = mmap(shard->memory, shard->bytes, PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_FIXED, shard->fd, 0);
	TH_ASSERT(map == shard->memory);
}

static void
close_fd(int fd)
{
	close(fd);
}

static struct fd_memory *
gpu_access(struct rig_shard *shard)
{
	TH_ASSERT(rig_gpus);
	if (!shard->space)
		shard->space = rig_gpus->share(rig_gpus->gpus, shard);
	struct fd_memory *access = fd_memory_new_gpu(rig_gpus->gpus, shard->space);
	TH_ASSERT(access);
	return access;
}

static void
host_gone(void *arg)
{
	struct rig_shard *shard = arg;
	__atomic_store_n(&shard->host_gone, true, __ATOMIC_RELEASE);
}

static void
show_to_gpus(struct rig_shard *shard)
{
	uint64_t bytes = (shard->bytes + 4095) / 4096 * 4096;
	TH_ASSERT(rig_gpus);
	if (shard->fd < 0)
		rig_shard_to_file(shard);
	TH_ASSERT(ftruncate(shard->fd, (off_t)bytes) == 0);
	shard->host = gpus_host_new(rig_gpus->gpus, &(struct gpus_host_memory){.fd = shard->fd,
							    .data = shard->memory,
							    .bytes = bytes,
							    .gone = host_gone,
							    .arg = shard});
}

struct xfer_part *
rig_part_of(struct rig_shard *shard, enum rig_memory memory, bool verify)
{
	uint32_t count = shard->manifest.num_rows;
	struct xfer_place *places = th_calloc(count, sizeof(places[0]));
	struct fd_memory *access = NULL, *gpu = NULL;
	shard->on_gpu = memory >= RIG_GPU;
	shard->half = memory > RIG_GPU;
	if (shard->on_gpu)
		gpu = gpu_access(shard);
	if (memory == RIG_HOST && !shard->host)
		show_to_gpus(shard);
	if (memory != RIG_MAPPED && memory != RIG_GPU && memory != RIG_GPU_MAPPED) {
		bool process = memory == RIG_PROCESS || memory == RIG_GPU_PROCESS;
		int fd = process ? open("/proc/self/mem", O_RDWR | O_CLOEXEC)
				 : fcntl(shard->fd, F_DUPFD_CLOEXEC, 0);
		TH_ASSERT(fd >= 0);
		access = fd_memory_new(fd, process ? FD_MEMORY_PROCESS : FD_MEMORY_FILE, close_fd);
		TH_ASSERT(access);
	}
	for (uint32_t i = 0; i < count; i++) {
		uintptr_t address = (uintptr_t)shard->tensors[i];
		if (shard->on_gpu && (!shard->half || i % 2 == 0)) {
			places[i].access = gpu;
			places[i].place = shard->gpu + (address - (uintptr_t)shard->memory);
			if (rig_gpus_for_nics) {
				places[i].region = shard->region;
				places[i].region_at = address - (uintptr_t)shard->memory;
			}
			continue;
		}
		places[i].region = shard->region;
		places[i].region_at = address - (uintptr_t)shard->memory;
		if (memory == RIG_MAPPED || memory == RIG_BOTH || memory == RIG_HOST ||
			memory == RIG_GPU_MAPPED || (memory == RIG_MIXED && i % 2 == 0)) {
			places[i].data = shard->tensors[i];
			places[i].host = memory == RIG_HOST ? shard->host : NULL;
			if (memory != RIG_BOTH && memory != RIG_HOST)
				continue;
		}
		places[i].access = access;
		places[i].place = memory == RIG_PROCESS || memory == RIG_GPU_PROCESS
					  ? address
					  : address - (uintptr_t)shard->memory;
	}
	struct xfer_part *part =
		xfer_part_new_places(shard->table, places, count, verify, NULL, NULL);
	TH_ASSERT(part);
	if (shard->packed && (!gpu || rig_gpus_for_nics)) {
		int rc = xfer_part_set_packed(part, shard->packed);
		TH_ASSERT(rc == 0);
	}
	fd_memory_release(access);
	fd_memory_release(gpu);
	free(places);
	return part;
}

struct xfer_part *
rig_part(struct rig_shard *shard, bool verify)
{
	if (rig_with_files)
		return rig_part_of(shard, RIG_BOTH, verify);
	enum rig_memory memory = shard->filled ? rig_of_sources : rig_of_readers;
	if (memory != RIG_MAPPED)
		return rig_part_of(shard, memory, verify);
	if (shard->region)
		return rig_part_of(shard, RIG_MAPPED, verify);
	struct xfer_part *part = xfer_part_new(
		shard->table, shard->tensors, shard->manifest.num_rows, verify, NULL, NULL);
	TH_ASSERT(part);
	shard->on_gpu = false;
	return part;
}

bool
rig_shards_equal(const struct rig_shard *a, const struct rig_shard *b)
{
	rig_shard_get(a);
	rig_shard_get(b);
	return a->bytes == b->bytes && memcmp(a->memory, b->memory, a->bytes) == 0;
}

static const uint8_t *
image(const struct xfer_piece *piece)
{
	if (piece->data)
		return piece->data;
	if (rig_gpus && rig_gpus->image && fd_memory_space(piece->access))
		return rig_gpus->image(piece->place);
	/* What is not mapped is called by its address: no part of a file. */
	return (uint8_t *)(uintptr_t)piece->place;
}

void
rig_add_digests(struct xfer_part *part)
{
	const struct chunk_table *table = xfer_part_table(part);
	for (uint32_t c = 0; c < table->num_chunks; c++) {
		struct xfer_cursor cursor;
		struct digest digest;
		struct xfer_piece piece;
		digest_init(&digest);
		xfer_cursor_init(&cursor, part, c);
		while (cursor.left > 0) {
			xfer_cursor_piece(&cursor, part, 1u << 20, &piece);
			digest_update(&digest, image(&piece), piece.bytes);
			xfer_cursor_skip(&cursor, part, piece.bytes);
		}
		struct th_hash hash = digest_final(&digest);
		xfer_part_add_digests(part, c, &hash, 1);
	}
}

/* ---- agents ------------------------------------------------------------------------------- */

/* The suites run over both: meson.build says which in the environment. */
static enum transport_engine
engine(void)
{
	const char *name = getenv("TH_TEST_ENGINE");
	return name && strcmp(name, "io_uring") == 0 ? TRANSPORT_ENGINE_URING
						     : TRANSPORT_ENGINE_EPOLL;
}

/* TH_TEST_VERBS: real devices, those that tests/vm/rails.py gives to two hosts. They are slow, so
 * less is under way. */
static void
real_devices(struct rig *rig, struct rig_agent *agent, struct rdma_config *rdma)
{
	static const char *const names[2][RIG_REAL_RAILS] = {{"h0r0", "h0r1"}, {"h1r0", "h1r1"}};
	static struct rails_config rails;
	TH_ASSERT(rig->num_rails <= RIG_REAL_RAILS);
	agent->num_rails = rig->num_rails;
	rails = rails_config_default();
	rails.names = names[(rig->num_agents - 1) % 2];
	rails.num_names = rig->num_rails;
	*rdma = (struct rdma_config){.rails = &rails, .window_bytes = RIG_REAL_WINDOW_BYTES};
	struct th_err err;
	int rc = verbs_ib(&rdma->verbs, &err);
	TH_ASSERT(rc == 0);
}

static struct verbs
open_devices(struct rig *rig, struct rig_agent *agent)
{
	if (!rig->fabric)
		rig->fabric = fake_rdma_new(false);
	if (rig_gpus && rig_gpus->map_dmabuf)
		fake_rdma_map_dmabuf(rig->fabric, rig_gpus->map_dmabuf, NULL);
	struct fake_host *host = fake_rdma_host(rig->fabric);
	struct fake_device_config config = {
		.mr_bytes_max = rig->mr_bytes_max, .dmabuf = !rig_no_dmabufs};
	for (agent->num_rails = 0; agent->num_rails < rig->num_rails; agent->num_rails++)
		agent->devices[agent->num_rails] = fake_rdma_device(host, &config);
	return fake_rdma_verbs(host);
}

struct rig_agent *
rig_add_agent(struct rig *rig, int64_t stall_ns, uint32_t connections)
{
	TH_ASSERT(rig->num_agents < RIG_AGENTS_MAX);
	struct rig_agent *agent = &rig->agents[rig->num_agents++];
	struct transport_config config = {.listen_host = "127.0.0.1",
		.connections = connections,
		.stall_ns = stall_ns,
		.hello_ns = rig->hello_ns,
		.dead_ns = rig->dead_ns,
		.rate_out = rig->rate_out,
		.rate_out_peer = rig->rate_out_peer,
		.congestion = rig->congestion,
		.far = rig->far,
		.engine = engine(),
		.sendfile = rig_with_files ? TRANSPORT_SENDFILE_YES : rig->sendfile,
		.agent_inc = rig->num_agents};
	struct rdma_config rdma;
	struct rails_config rails = rails_config_default();
	struct th_err err;
	rails.look_ns = LOOK_NS;
	if (rig->num_rails > 0) {
		if (getenv("TH_TEST_VERBS"))
			real_devices(rig, agent, &rdma);
		else
			rdma = (struct rdma_config){
				.verbs = open_devices(rig, agent), .rails = &rails};
		rdma.stage_bytes = rig->stage_bytes;
		rdma.stage_idle_ns = rig_stage_idle_ns;
		config.rdma = &rdma;
	}
	int rc = transport_open(&config, &err, &agent->transport);
	TH_ASSERT(rc == 0);
	return agent;
}

void
rig_remove_agent(struct rig_agent *agent)
{
	if (!agent->transport)
		return;
	transport_halt(agent->transport);
	while (agent->num_shards > 0)
		unregister(agent->shards[0]);
	transport_close(agent->transport);
	agent->transport = NULL;
}

void
rig_halt(struct rig *rig)
{
	for (uint32_t i = 0; i < rig->num_agents; i++) {
		if (rig->agents[i].transport)
			transport_halt(rig->agents[i].transport);
	}
}

void
rig_fini(struct rig *rig)
{
	for (uint32_t i = 0; i < rig->num_agents; i++)
		rig_remove_agent(&rig->agents[i]);
	rig->num_agents = 0;
	if (rig->fabric)
		fake_rdma_free(rig->fabric);
	rig->fabric = NULL;
}

struct th_ticket
rig_ticket(uint64_t number)
{
	struct th_ticket ticket = {{0x54}};
	memcpy(ticket.bytes + 8, &number, sizeof(number));
	return ticket;
}

void
rig_offer(struct rig_agent *agent, uint64_t leg, struct xfer_part *part)
{
	struct th_ticket ticket = rig_ticket(leg);
	transport_expect(agent->transport, leg, &ticket, part, agent->far ? TRANSPORT_FAR : 0);
}

void
rig_pull(struct rig_agent *source, struct rig_agent *reader, uint64_t leg, struct xfer_part *from,
	struct xfer_part *to)
{
	struct th_ticket ticket = rig_ticket(leg);
	rig_offer(source, leg, from);
	int rc = transport_pull(reader->transport, leg, transport_address(source->transport),
		&ticket, to, reader->donor,
		(reader->require_rdma ? TRANSPORT_REQUIRE_RDMA : 0) |
			(reader->far ? TRANSPORT_FAR : 0u));
	TH_ASSERT(rc == 0);
}

/* ---- events ------------------------------------------------------------------------------- */

static void
drain(struct rig_agent *agent)
{
	struct transport_event events[8];
	uint32_t count;
	while ((count = transport_poll(agent->transport, events, 8)) > 0) {
		for (uint32_t i = 0; i < count; i++) {
			if (events[i].kind == TRANSPORT_BEGAN) {
				agent->num_began++;
			} else if (events[i].kind != TRANSPORT_PROGRESS) {
				TH_ASSERT(agent->num_events < RIG_EVENTS_MAX);
				agent->events[agent->num_events++] = events[i];
			}
		}
	}
}

void
rig_pump(struct rig *rig, int timeout_ms)
{
	struct pollfd fds[RIG_AGENTS_MAX];
	for (uint32_t i = 0; i < rig->num_agents; i++) {
		struct transport *transport = rig->agents[i].transport;
		fds[i] = (struct pollfd){
			.fd = transport ? transport_fd(transport) : -1, .events = POLLIN};
	}
	int rc = poll(fds, rig->num_agents, timeout_ms);
	TH_ASSERT(rc >= 0 || errno == EINTR);
	for (uint32_t i = 0; i < rig->num_agents; i++) {
		if (rig->agents[i].transport)
			drain(&rig->agents[i]);
	}
}

const struct transport_event *
rig_find(const struct rig_agent *agent, enum transport_event_kind kind, uint64_t id)
{
	for (uint32_t i = 0; i < agent->num_events; i++) {
		const struct transport_event *event = &agent->events[i];
		bool of_hash = kind == TRANSPORT_HASHED || kind == TRANSPORT_HASH_FAILED ||
			       kind == TRANSPORT_HASH_STOPPED;
		if (event->kind == kind && (of_hash ? event->tag : event->leg) == id)
			return event;
	}
	return NULL;
}

static void
give_up(const struct rig *rig, const char *what, uint64_t id)
{
	fprintf(stderr, "still waiting: %s %llu\n", what, (unsigned long long)id);
	for (uint32_t a = 0; a < rig->num_agents; a++) {
		for (uint32_t i = 0; i < rig->agents[a].num_events; i++) {
			const struct transport_event *event = &rig->agents[a].events[i];
			fprintf(stderr, "  agent %u: kind %u leg %llu code %d '%s'\n", a,
				(unsigned)event->kind, (unsigned long long)event->leg, event->code,
				event->text);
		}
	}
	abort();
}

const struct transport_event *
rig_wait(struct rig *rig, struct rig_agent *agent, enum transport_event_kind kind, uint64_t id)
{
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	const struct transport_event *event;
	while ((event = rig_find(agent, kind, id)) == NULL) {
		if (th_now_ns() > until_ns)
			give_up(rig, "event of leg or tag", id);
		rig_pump(rig, 100);
	}
	return event;
}

void
rig_wait_prefix(struct rig *rig, const struct xfer_part *part, uint32_t prefix)
{
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	while (xfer_part_prefix(part) < prefix) {
		if (th_now_ns() > until_ns)
			give_up(rig, "prefix", prefix);
		rig_pump(rig, 100);
	}
}

void
rig_pump_for(struct rig *rig, int64_t duration_ns)
{
	int64_t until_ns = th_now_ns() + duration_ns;
	for (int64_t left_ns = duration_ns; left_ns > 0; left_ns = until_ns - th_now_ns())
		rig_pump(rig, (int)(left_ns / 1000000) + 1);
}

struct transport_counters
rig_counters(const struct rig_agent *agent)
{
	struct transport_counters counters;
	transport_counters(agent->transport, &counters);
	return counters;
}

void
rig_count_news(void *counter)
{
	__atomic_add_fetch((uint32_t *)counter, 1, __ATOMIC_RELAXED);
}
