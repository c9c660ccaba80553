/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status - see status.h. Main thread only.
 */
#include "daemon/host/status/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/host/host.h"
#include "daemon/host/memory/host_pool.h"
#include "daemon/host/move/shared_parts.h"
#include "daemon/host/status/status_gpu.h"
#include "daemon/host/worker/doc_channel.h"
#include "daemon/host/worker/loans.h"
#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "ipc/base/stranger_fd.h"
#include "transport/cuda/agent/gpus.h"
#include "transport/part/packed.h"
#include "transport/rdma/device/device.h"
#include "transport/rdma/device/gid.h"
#include "transport/rdma/device/memlock.h"
#include "transport/rdma/leg/rail_pairs.h"
#include "transport/rdma/memory/stage.h"
#include "transport/rdma/rdma.h"

#define STATUS_PATHS_MAX 64u /* those used last: all of a large cluster are no answer */

struct counter {
	const char *name, *unit, *help;
	uint64_t value;
};

/* ---- RDMA ------------------------------------------------------------------------------------ */

struct rail_storage {
	Tensorhub__V1__RailInfo info;
	struct rail_status status;
	char address[GID_TEXT_BYTES];
};

struct path_storage {
	Tensorhub__V1__PathInfo info;
	struct path path;
	char peer[GID_TEXT_BYTES];
};

struct status_rdma {
	Tensorhub__V1__RdmaInfo info;
	struct fabric fabric; /* a copy: its texts */
	uint32_t num_rails;
	struct rail_storage rails[RAILS_MAX];
	Tensorhub__V1__RailInfo *rail_list[RAILS_MAX];
	struct path_storage paths[STATUS_PATHS_MAX];
	Tensorhub__V1__PathInfo *path_list[STATUS_PATHS_MAX];
};

static const char *
link_text(enum verbs_link link)
{
	static const char *const names[] = {"", "infiniband", "ethernet"};
	return names[link];
}

static void
fill_rail(const struct host *host, uint32_t rail, struct rail_storage *storage)
{
	static const char *const states[] = {"down", "up", "gone"};
	const struct rail_status *status = &storage->status;
	Tensorhub__V1__RailInfo *info = &storage->info;
	struct fabric_rail counts;
	rail_status(host->regions.rails, rail, &storage->status);
	fabric_rail(host, rail, &counts);
	tensorhub__v1__rail_info__init(info);
	info->name = documents_text(status->name);
	info->pci = documents_text(status->pci);
	info->on_node = counts.node >= 0;
	info->node = counts.node >= 0 ? (uint32_t)counts.node : 0;
	info->state = documents_text(states[status->state]);
	info->why = documents_text(status->why[0] ? status->why : status->failed_why);
	info->link = documents_text(link_text(status->port.link));
	if (status->state == RAIL_UP) {
		info->address = documents_text(gid_text(status->gid.raw, storage->address));
		info->address_type = documents_text(gid_type_text(status->gid.type));
	}
	info->mtu = status->port.mtu_bytes;
	info->depth = th_min_u32(status->info.reads_out_max, host->options.rdma.depth);
	info->bits_per_second = status->port.bits_per_second;
	info->bytes_in = counts.bytes;
	info->reads = counts.reads;
	info->bytes_registered = status->bytes_registered;
	info->registrations = status->num_mrs;
	info->relaxed_ordering = status->info.relaxed_ordering;
	info->dma_buf = status->info.dmabuf;
	info->changes = status->changes;
}

static void
fill_path(const struct host *host, const struct path *path, struct path_storage *storage)
{
	Tensorhub__V1__PathInfo *info = &storage->info;
	storage->path = *path;
	tensorhub__v1__path_info__init(info);
	info->rail = documents_text(rail_name(host->regions.rails, path->rail));
	info->host = storage->path.host;
	info->peer = documents_text(gid_text(path->peer.gid, storage->peer));
	info->bytes = path->bytes;
	info->legs = path->legs;
	info->failures = path->failures;
	if (path->paused_until_ns != 0)
		info->paused_ns = th_max_i64(path->paused_until_ns - th_now_ns(), 0);
	info->why = storage->path.why;
}

static void
fill_paths(const struct host *host, struct status_rdma *status)
{
	struct path *paths = th_calloc(STATUS_PATHS_MAX, sizeof(*paths));
	struct rdma *rdma = transport_rdma(host->transport);
	uint32_t count = paths_list(rdma_paths(rdma), paths, STATUS_PATHS_MAX);
	for (uint32_t i = 0; i < count; i++) {
		fill_path(host, &paths[i], &status->paths[i]);
		status->path_list[i] = &status->paths[i].info;
	}
	status->info.paths = status->path_list;
	status->info.n_paths = count;
	free(paths);
}

static void
fill_stage(const struct host *host, Tensorhub__V1__RdmaInfo *info)
{
	struct rdma *rdma = transport_rdma(host->transport);
	struct stage_status status;
	if (!rdma || !rdma_stage(rdma))
		return;
	stage_status(rdma_stage(rdma), &status);
	info->stage_budget = status.budget_bytes;
	info->stage_bytes = status.bytes;
	info->stage_on_gpus = status.bytes_on_gpus;
	info->stage_in_use = status.bytes_in_use;
	info->stage_refused = status.refused;
}

/* As it is now. */
static struct status_rdma *
status_rdma_new(const struct host *host)
{
	struct status_rdma *status = th_calloc(1, sizeof(*status));
	Tensorhub__V1__RdmaInfo *info = &status->info;
	struct memlock memlock = {.limit_bytes = UINT64_MAX};
	status->fabric = host->fabric;
	tensorhub__v1__rdma_info__init(info);
	info->used = fabric_why_not(host) == NULL;
	info->why = status->fabric.why_not;
	struct transport_counters counters;
	transport_counters(host->transport, &counters);
	info->fallbacks = counters.rdma_fallbacks;
	info->last_fallback = status->fabric.last_fallback;
	info->copies = status->fabric.copies;
	info->last_copy = status->fabric.last_copy;
	fill_stage(host, info);
	if (memlock_read(&memlock) < 0)
		memlock.limit_bytes = UINT64_MAX;
	info->memlock_limit = memlock_unlimited(&memlock) ? UINT64_MAX : memlock.limit_bytes;
	info->memlock_used = memlock.locked_bytes;
	status->num_rails = host->regions.rails ? rails_count(host->regions.rails) : 0;
	info->rails = status->rail_list;
	info->n_rails = status->num_rails;
	for (uint32_t i = 0; i < status->num_rails; i++) {
		fill_rail(host, i, &status->rails[i]);
		status->rail_list[i] = &status->rails[i].info;
	}
	if (status->num_rails > 0)
		fill_paths(host, status);
	return status;
}

static void
status_rdma_free(struct status_rdma *status)
{
	free(status);
}

/* Valid until it is freed. */
static Tensorhub__V1__RdmaInfo *
status_rdma_info(struct status_rdma *status)
{
	return &status->info;
}

/* ---- counters ------------------------------------------------------------------------------- */

#define COUNTERS_MAX 64

/* Of all GPUs together. */
static struct gpu_status
sum_gpus(const struct host *host)
{
	struct gpu_status *statuses = th_calloc(GPUS_MAX, sizeof(*statuses)), sum = {0};
	uint32_t count = host->gpu.gpus ? gpus_status(host->gpu.gpus, statuses, GPUS_MAX) : 0;
	for (uint32_t i = 0; i < count; i++) {
		sum.imports += statuses[i].imports;
		sum.starts += statuses[i].starts;
		sum.kills += statuses[i].kills;
		sum.ends += statuses[i].ends;
		sum.bytes_read += statuses[i].bytes_read;
		sum.bytes_written += statuses[i].bytes_written;
		sum.bytes_copied += statuses[i].bytes_copied;
		sum.bytes_hashed += statuses[i].bytes_hashed;
	}
	free(statuses);
	return sum;
}

static size_t
status_collect(struct host *host, struct counter *out)
{
	const struct gpu_status g = sum_gpus(host);
	const struct host_counters *c = &host->counters;
	struct transport_counters t = {0};
	struct net_server_counters n = {0};
	struct listings_counters l = {0};
	transport_counters(host->transport, &t);
	net_server_counters(host->documents, &n);
	listings_counters(host->listings, &l);
	const struct counter all[] = {
		{"sessions_opened", "1", "handles that workers opened", c->sessions_opened},
		{"sessions_lost", "1", "workers that ended without closing", c->sessions_lost},
		{"sessions_ended", "1", "by this agent: the worker broke its contract",
			c->sessions_ended},
		{"protocol_violations", "1", "workers dropped because they broke the protocol",
			c->protocol_violations},
		{"connections_refused", "1", "workers that found the agent full",
			c->connections_refused},
		{"descriptors_refused", "1", "... handles and memory for want of descriptors",
			c->descriptors_refused},
		{"descriptors_short", "1", "times the descriptors ran short", host->files.times},
		{"descriptors_left", "1", "that may still be opened",
			files_left(host->listener_fd)},
		{"hellos_refused", "1", "workers whose protocol version does not fit",
			c->hellos_refused},
		{"opens_refused", "1", "opens that were refused", c->opens_refused},
		{"memory_mapped", "1", "memory objects that workers shared", c->memory_mapped},
		{"memory_refused", "1", "memory objects that cannot be shared", c->memory_refused},
		{"descriptors_closing", "1", "descriptors of workers that are being closed now",
			stranger_num_closing()},
		{"registrations", "1", "shards registered", c->registrations},
		{"reservations", "1", "copies taken into this agent's own memory", c->reservations},
		{"reservations_refused", "1", "... and refused", c->reservations_refused},
		{"registrations_refused", "1", "registrations and attributes refused",
			c->registrations_refused},
		{"documents", "1", "requests on agent.ipc and admin.ipc", c->documents},
		{"documents_refused", "1", "requests on agent.ipc and admin.ipc that were refused",
			c->documents_refused},
		{"documents_denied", "1", "... of workers that asked what only operators may",
			c->documents_denied},
		{"documents_connections", "1", "connections to agent.ipc and admin.ipc now",
			n.connections},
		{"listings_fetched", "1", "listings fetched from the reference server", l.fetched},
		{"listings_given", "1", "... and given to workers and thctl", l.given},
		{"submissions", "1", "operations that workers submitted", c->submissions},
		{"submissions_refused", "1", "operations on memory that another shard uses",
			c->submissions_refused},
		{"completions", "1", "operations that ended", c->completions},
		{"legs_refused", "1", "transfers that could not be started", c->legs_refused},
		{"tickets_refused", "1", "peers that came with a ticket for nothing",
			t.tickets_refused},
		{"server_requests", "1", "requests to the reference server", c->server_requests},
		{"server_unanswered", "1", "requests that it did not answer", c->server_unanswered},
		{"server_switches", "1", "times another server was tried", c->server_switches},
		{"server_redials", "1", "connections made anew because nothing came by them",
			c->server_redials},
		{"bytes_in", "bytes", "received from other agents", t.bytes_in},
		{"bytes_in_rdma", "bytes", "... of them by RDMA", t.bytes_in_rdma},
		{"bytes_in_copy", "bytes", "... of those through buffers of the agents",
			t.bytes_in_copy},
		{"bytes_out", "bytes", "sent to other agents", t.bytes_out},
		{"bytes_out_file", "bytes", "... of them by sendfile, without a copy",
			t.bytes_out_file},
		{"bytes_staged", "bytes", "copied for peers that READ them", t.bytes_staged},
		{"bytes_local", "bytes", "copied within this host", t.bytes_local},
		{"bytes_reused", "bytes", "not moved: they were here already", t.bytes_reused},
		{"bytes_donated", "bytes", "not fetched: copied from another version on this host",
			t.bytes_donated},
		{"donor_failures", "1", "chunks of such a version that were damaged",
			t.donor_failures},
		{"chunks_verified", "1", "chunks with the publisher's digest", t.chunks_verified},
		{"chunks_refetched", "1", "chunks asked for again", t.chunks_refetched},
		{"checksum_failures", "1", "chunks with a wrong digest", t.checksum_failures},
		{"parts_hashing", "1", "shards whose digests are being computed now",
			parts_hashing(host)},
		{"legs_in", "1", "transfers to this host", t.legs_in},
		{"legs_out", "1", "transfers from this host", t.legs_out},
		{"legs_failed", "1", "transfers that failed", t.legs_failed},
		{"legs_fenced", "1", "transfers cut off at the source", t.legs_fenced},
		{"rdma_fallbacks", "1", "transfers to this host without RDMA although there is",
			t.rdma_fallbacks},
		{"rdma_paths_broken", "1", "paths that broke under a transfer",
			t.rdma_paths_broken},
		{"rdma_declines", "1", "transfers from this host that RDMA could not serve",
			t.rdma_declines},
		{"gpu_fallbacks", "1", "copies on this host that GPUs could not do alone",
			t.gpu_fallbacks},
		{"gpu_bytes_read", "bytes", "read from GPU memory into the host's", g.bytes_read},
		{"gpu_bytes_written", "bytes", "written from the host's memory into a GPU's",
			g.bytes_written},
		{"gpu_bytes_copied", "bytes", "copied from GPU memory to GPU memory",
			g.bytes_copied},
		{"gpu_bytes_hashed", "bytes", "of GPU memory hashed", g.bytes_hashed},
		{"gpu_imports", "1", "pieces of GPU memory that are open now", g.imports},
		{"gpu_starts", "1", "starts of a GPU's process", g.starts},
		{"gpu_kills", "1", "... that the agent killed, because they hung", g.kills},
		{"gpu_ends", "1", "... that ended although nobody asked for it", g.ends},
		{"strangers_refused", "1", "connections to the data port without a valid ticket",
			t.strangers_refused},
		{"log_lines_lost", "1", "lines of the log that could not be written", log_lost()},
	};
	_Static_assert(TH_ARRAY_LEN(all) <= COUNTERS_MAX, "room for all");
	for (size_t i = 0; i < TH_ARRAY_LEN(all); i++)
		out[i] = all[i];
	return TH_ARRAY_LEN(all);
}

static void
fill_counters(struct host *host, Tensorhub__V1__StatusReply *status)
{
	struct counter counters[COUNTERS_MAX];
	size_t count = status_collect(host, counters);
	Tensorhub__V1__CounterInfo *infos = th_calloc(count, sizeof(*infos));
	status->counters = th_calloc(count, sizeof(status->counters[0]));
	status->n_counters = count;
	for (size_t i = 0; i < count; i++) {
		tensorhub__v1__counter_info__init(&infos[i]);
		infos[i].name = documents_text(counters[i].name);
		infos[i].unit = documents_text(counters[i].unit);
		infos[i].help = documents_text(counters[i].help);
		infos[i].value = counters[i].value;
		status->counters[i] = &infos[i];
	}
}

/* ---- sessions ------------------------------------------------------------------------------- */

struct session_storage {
	Tensorhub__V1__SessionInfo info;
	Tensorhub__V1__Version held, ready;
	struct agent_session_info core;
	struct status_memory *memory; /* owns */
};

/* NULL: none. */
static Tensorhub__V1__Version *
version_info(struct th_version version, Tensorhub__V1__Version *storage)
{
	tensorhub__v1__version__init(storage);
	storage->lineage = version.lineage;
	storage->version = version.version;
	return version.version == TH_NO_VERSION ? NULL : storage;
}

static void
fill_session(struct host *host, struct session_storage *storage)
{
	const struct agent_session_info *core = &storage->core;
	const struct host_session *session = session_find(host, core->session);
	Tensorhub__V1__SessionInfo *info = &storage->info;
	tensorhub__v1__session_info__init(info);
	info->session = core->session;
	info->model = documents_text(core->model);
	info->replica = documents_text(core->replica);
	info->shard = core->shard;
	info->num_shards = core->num_shards;
	info->state = documents_text(
		session && session->state == HOST_SESSION_LOST ? "lost" : core->state);
	info->operation = documents_text(core->operation);
	info->bytes = core->bytes;
	info->legs_in = core->legs_in;
	info->legs_out = core->legs_out;
	info->flags = core->flags;
	info->held = version_info(core->held, &storage->held);
	info->ready = version_info(core->ready, &storage->ready);
	info->offload = core->offload;
	if (core->offload) {
		info->pid = getpid();
		info->uid = getuid();
	} else if (session) {
		info->pid = session->peer.pid;
		info->uid = session->peer.uid;
		storage->memory = status_memory_new(&session->memory, info);
	}
}

static bool
status_is_of(
	struct host *host, const struct agent_session_info *core, const struct net_peer *worker)
{
	const struct host_session *session = session_find(host, core->session);
	return worker->local && session && !core->offload && session->peer.uid == worker->uid;
}

static void
fill_sessions(struct host *host, const struct net_peer *worker, Tensorhub__V1__StatusReply *status,
	struct session_storage **ret_storage)
{
	uint32_t count = HASH_COUNT(host->sessions);
	struct session_storage *storage = th_calloc(count + 1, sizeof(*storage));
	status->sessions = th_calloc(count + 1, sizeof(status->sessions[0]));
	for (uint32_t i = 0; i < count; i++) {
		struct session_storage *next = &storage[status->n_sessions];
		if (!agent_core_session_at(host->engine.core, i, &next->core))
			break;
		if (worker && !status_is_of(host, &next->core, worker))
			continue;
		fill_session(host, next);
		status->sessions[status->n_sessions++] = &next->info;
	}
	*ret_storage = storage;
}

/* What may be used and is there, as --transport has it. */
static void
print_transports(const struct host *host, char *ret_text, size_t size)
{
	const struct options *options = &host->options;
	const char *why = NULL, *engine = transport_engine(host->transport, &why);
	char tcp[160] = "";
	if (options->transport_tcp)
		snprintf(tcp, sizeof(tcp), "tcp (%s%s%.120s),", engine, why ? "; " : "",
			why ? why : "");
	snprintf(ret_text, size, "%s%s%s%s", options->transport_local ? "local," : "",
		options->transport_tcp_first ? tcp : "", fabric_why_not(host) ? "" : "rdma,",
		options->transport_tcp_first ? "" : tcp);
	size_t length = strlen(ret_text);
	if (length > 0)
		ret_text[length - 1] = '\0'; /* the last comma */
}

/* What belongs to no worker in particular. */
struct common {
	struct status_rdma *rdma;   /* owns */
	struct status_gpu *gpus;    /* owns */
	struct loan_storage *loans; /* owns */
};

struct loan_storage {
	Tensorhub__V1__LoanInfo info;
	Tensorhub__V1__Version version;
	struct loan_info loan;
};

static struct loan_storage *
fill_loans(const struct host *host, Tensorhub__V1__StatusReply *status)
{
	struct loan_info loan;
	uint32_t count = 0;
	while (loans_at(host, count, &loan))
		count++;
	struct loan_storage *storage = th_calloc(count + 1, sizeof(*storage));
	status->loans = th_calloc(count + 1, sizeof(status->loans[0]));
	status->n_loans = count;
	for (uint32_t i = 0; i < count; i++) {
		struct loan_storage *next = &storage[i];
		Tensorhub__V1__LoanInfo *info = status->loans[i] = &next->info;
		(void)loans_at(host, i, &next->loan);
		tensorhub__v1__loan_info__init(info);
		tensorhub__v1__version__init(&next->version);
		next->version.lineage = next->loan.version.lineage;
		next->version.version = next->loan.version.version;
		info->model = next->loan.model;
		info->version = &next->version;
		info->shard = next->loan.shard;
		info->bytes = next->loan.bytes;
		info->pid = next->loan.pid;
		info->uid = next->loan.uid;
		info->age_ns = next->loan.age_ns;
	}
	return storage;
}

static void
fill_common(struct host *host, Tensorhub__V1__StatusReply *status, struct common *ret_common)
{
	ret_common->rdma = status_rdma_new(host);
	ret_common->gpus = status_gpu_new(host);
	ret_common->loans = fill_loans(host, status);
	status->rdma = status_rdma_info(ret_common->rdma);
	status->gpus = status_gpu_info(ret_common->gpus);
	for (struct host_session *session = host->sessions; session; session = session->hh.next)
		status->mapped_bytes += session->memory.mapped_bytes;
	status->mapped_bytes += memory_unmapping() + packed_size_all();
	status->mapped_bytes += status->rdma->stage_bytes - status->rdma->stage_on_gpus;
	status->mapped_bytes += status->gpus->stage_bytes;
	status->offload_used = offload_used(host->offload);
	status->offload_limit = offload_budget(host->offload);
	fill_counters(host, status);
}

static void
free_common(Tensorhub__V1__StatusReply *status, const struct common *common)
{
	status_rdma_free(common->rdma);
	status_gpu_free(common->gpus);
	free(status->loans);
	free(common->loans);
	free(status->counters[0]);
	free(status->counters);
}

static void
fill_far(const struct host *host, Tensorhub__V1__FarInfo *info)
{
	const struct options *options = &host->options;
	tensorhub__v1__far_info__init(info);
	info->transport = documents_text(options_far_name(options->far_transport));
	info->congestion = documents_text(transport_far(host->transport, &info->connections));
	info->limit = options->far_limit;
	info->fallbacks_counted = options->far_transport == OPTIONS_FAR_AUTO;
}

void
status_reply(struct host *host, uint64_t token, uint64_t request_no, const struct net_peer *worker)
{
	const struct options *options = &host->options;
	Tensorhub__V1__Reply reply;
	Tensorhub__V1__StatusReply status;
	Tensorhub__V1__FarInfo far;
	struct session_storage *storage;
	struct common common;
	char servers[OPTIONS_TEXT_BYTES], transports[256];
	tensorhub__v1__reply__init(&reply);
	tensorhub__v1__status_reply__init(&status);
	status.node = documents_text(options->node);
	status.datacenter = documents_text(options->datacenter);
	status.version = documents_text(TH_VERSION);
	status.pid = getpid();
	status.uptime_ns = th_now_ns() - host->start_ns;
	status.data_address = documents_text(transport_address(host->transport));
	status.server = documents_text(link_url(host));
	status.attached = host->attached;
	status.server_text = host->server_text;
	status.server_inc = host->server_inc;
	status.server_epoch = host->server_epoch;
	link_list(host, servers);
	status.servers = servers;
	status.draining = host->draining;
	status.leaving = host->stopping;
	status.verify = documents_text(options->verify ? "full" : "off");
	print_transports(host, transports, sizeof(transports));
	status.transports = transports;
	fill_far(host, &far);
	status.far = &far;
	status.own_only = worker != NULL;
	if (!worker)
		fill_common(host, &status, &common);
	fill_sessions(host, worker, &status, &storage);
	reply.request_no = request_no;
	reply.body_case = TENSORHUB__V1__REPLY__BODY_STATUS;
	reply.status = &status;
	documents_reply(host, token, &reply, NULL, NULL);
	if (!worker)
		free_common(&status, &common);
	for (size_t i = 0; i < status.n_sessions; i++)
		status_memory_free(storage[i].memory);
	free(status.sessions);
	free(storage);
}
