/* SPDX-License-Identifier: Apache-2.0 */
/* fake_rdma - see fake_rdma.h: devices, regions and what the table asks. The wire: fake_wire.c. */
#include "tests/support/rdma/fake_rdma.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/fd.h"
#include "tests/support/rdma/fake_wire.h"

void
fake_signal(int fd)
{
	uint64_t one = 1;
	ssize_t written = write(fd, &one, sizeof(one));
	TH_ASSERT(written == sizeof(one));
}

static void
quiet_fd(int fd)
{
	uint64_t posts;
	ssize_t got = read(fd, &posts, sizeof(posts));
	(void)got;
}

/* 0, or what such a call ends with instead of being done. */
static int
refused(struct verbs_device *device, enum fake_call call)
{
	struct fake_refusal *refusal = &device->refusals[call];
	if (refusal->count == 0)
		return 0;
	if (refusal->good > 0) {
		refusal->good--;
		return 0;
	}
	refusal->count -= refusal->count != FAKE_ALWAYS;
	return refusal->code;
}

/* ---- devices ------------------------------------------------------------------------------- */

static uint32_t
or_default(uint32_t value, uint32_t otherwise)
{
	return value ? value : otherwise;
}

static int
fake_open(void *context, struct verbs_device **ret_devices, uint32_t devices_max)
{
	struct fake_host *host = context;
	uint32_t count = 0;
	fake_lock(host->fake);
	for (uint32_t i = 0; i < host->num_devices && count < devices_max; i++) {
		if (host->devices[i]->removed)
			continue;
		host->devices[i]->counters.opens++;
		ret_devices[count++] = host->devices[i];
	}
	fake_unlock(host->fake);
	return (int)count;
}

/* The old one goes when it is closed, not before. */
static int
fake_open_again(void *context, const struct verbs_info *info, struct verbs_device **ret_device)
{
	struct fake_host *host = context;
	int rc = -ENODEV;
	fake_lock(host->fake);
	for (uint32_t i = 0; i < host->num_devices; i++) {
		struct verbs_device *device = host->devices[i];
		const char *pci = device->config.pci ? device->config.pci : "";
		if (strcmp(device->name, info->name) != 0 || strcmp(pci, info->pci) != 0)
			continue;
		TH_ASSERT(device->counters.opens == 0);
		device->counters.tries++;
		rc = device->removed ? -ENODEV : refused(device, FAKE_OPEN_AGAIN);
		device->counters.opens += rc == 0;
		*ret_device = device;
	}
	fake_unlock(host->fake);
	return rc;
}

static void
fake_close(struct verbs_device *device)
{
	fake_lock(device->fake);
	TH_ASSERT(device->counters.opens > 0);
	TH_ASSERT(device->counters.mrs == 0 && device->counters.qps == 0);
	TH_ASSERT(device->counters.cqs == 0);
	device->counters.opens--;
	fake_unlock(device->fake);
}

static void
fake_info(struct verbs_device *device, struct verbs_info *ret_info)
{
	const struct fake_device_config *config = &device->config;
	*ret_info = (struct verbs_info){
		.num_ports = config->num_ports,
		.reads_out_max = config->reads_out_max,
		.reads_in_max = config->reads_in_max,
		.mr_bytes_max = config->mr_bytes_max,
		.mrs_max = config->mrs_max,
		.qps_max = config->qps_max,
		.qp_depth_max = config->qp_depth_max,
		.cq_depth_max = config->cq_depth_max,
		.relaxed_ordering = config->relaxed_ordering,
		.dmabuf = config->dmabuf,
	};
	snprintf(ret_info->name, sizeof(ret_info->name), "%s", device->name);
	snprintf(ret_info->pci, sizeof(ret_info->pci), "%s", config->pci ? config->pci : "");
}

static int
fake_port(struct verbs_device *device, uint32_t port, struct verbs_port *ret_port)
{
	if (port < 1 || port > device->config.num_ports)
		return -EINVAL;
	fake_lock(device->fake);
	int rc = device->removed ? -EIO : refused(device, FAKE_PORT);
	*ret_port = (struct verbs_port){
		.link = device->config.infiniband ? VERBS_LINK_INFINIBAND : VERBS_LINK_ETHERNET,
		.active = device->ports[port].active,
		.mtu_bytes = device->config.mtu_bytes,
		.lid = device->ports[port].lid,
		.bits_per_second = device->config.bytes_per_second * 8,
	};
	fake_unlock(device->fake);
	return rc;
}

static int
fake_gids(struct verbs_device *device, uint32_t port, struct verbs_gid *ret_gids, uint32_t gids_max)
{
	if (port < 1 || port > device->config.num_ports)
		return -EINVAL;
	fake_lock(device->fake);
	const struct fake_port *from = &device->ports[port];
	uint32_t count = th_min_u32(from->num_gids, gids_max);
	memcpy(ret_gids, from->gids, count * sizeof(ret_gids[0]));
	int rc = device->removed ? -EIO : (int)count;
	fake_unlock(device->fake);
	return rc;
}

/* ---- regions ------------------------------------------------------------------------------- */

static void
wait_while_held(struct verbs_device *device)
{
	fake_lock(device->fake);
	device->counters.regs_held++;
	fake_unlock(device->fake);
	while (__atomic_load_n(&device->hold_regs, __ATOMIC_ACQUIRE))
		(void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	fake_lock(device->fake);
	device->counters.regs_held--;
	fake_unlock(device->fake);
}

static int
add_region(struct verbs_device *device, const struct fake_region *region, struct verbs_mr *ret_mr)
{
	const struct fake_device_config *config = &device->config;
	int rc = device->removed ? -EIO : refused(device, FAKE_REG);
	if (rc < 0)
		return rc;
	if (region->bytes == 0 || (config->mr_bytes_max && region->bytes > config->mr_bytes_max))
		return -EINVAL;
	if (device->counters.mrs >= config->mrs_max)
		return -ENOMEM;
	uint32_t index = 0;
	while (index < device->num_regions && device->regions[index].live)
		index++;
	if (index == device->num_regions) {
		TH_ASSERT(index < FAKE_KEY_REGIONS);
		device->num_regions++;
		device->regions =
			realloc(device->regions, device->num_regions * sizeof(device->regions[0]));
		TH_ASSERT(device->regions != NULL);
	}
	/* A key is not used again soon: what is gone must not be found. */
	device->keys++;
	device->regions[index] = *region;
	device->regions[index].live = true;
	device->regions[index].key = device->keys << FAKE_KEY_SHIFT | index;
	device->counters.regs++;
	device->counters.mrs++;
	*ret_mr = (struct verbs_mr){
		.lkey = device->regions[index].key,
		.rkey = device->regions[index].key,
		.handle = device,
	};
	return 0;
}

/* As add_region, and it is seen. */
static int
ask_for_region(struct verbs_device *device, const struct fake_region *region,
	const struct fake_reg *asked, struct verbs_mr *ret_mr)
{
	wait_while_held(device);
	fake_lock(device->fake);
	int rc = add_region(device, region, ret_mr);
	struct fake_seen *seen = &device->seen;
	if (seen->num_regs < FAKE_SEEN_MAX) {
		seen->regs[seen->num_regs] = *asked;
		seen->regs[seen->num_regs].key = rc == 0 ? ret_mr->lkey : 0;
	}
	seen->num_regs++;
	fake_unlock(device->fake);
	return rc;
}

static int
fake_reg(struct verbs_device *device, void *data, uint64_t bytes, uint64_t iova, unsigned access,
	struct verbs_mr *ret_mr)
{
	struct fake_region region = {
		.data = data, .bytes = bytes, .iova = iova, .access = access, .dmabuf_fd = -1};
	struct fake_reg asked = {
		.data = data, .fd = -1, .bytes = bytes, .iova = iova, .access = access};
	TH_ASSERT(data || device->fake->virtual_time);
	return ask_for_region(device, &region, &asked, ret_mr);
}

static void *
map_file(void *arg, int fd, uint64_t offset, size_t bytes)
{
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
	(void)arg;
	return map == MAP_FAILED ? NULL : map;
}

void
fake_rdma_map_dmabuf(struct fake_rdma *fake,
	void *(*map)(void *arg, int fd, uint64_t offset, size_t bytes), void *arg)
{
	fake->map_dmabuf = map;
	fake->map_dmabuf_arg = arg;
}

static int
fake_reg_dmabuf(struct verbs_device *device, int fd, uint64_t offset, uint64_t bytes, uint64_t iova,
	unsigned access, struct verbs_mr *ret_mr)
{
	if (!device->config.dmabuf)
		return -EOPNOTSUPP;
	if (iova % 4096 != offset % 4096)
		return -EINVAL;
	uint64_t skip = offset % 4096;
	struct fake_rdma *fake = device->fake;
	void *map = fake->map_dmabuf(fake->map_dmabuf_arg, fd, offset - skip, bytes + skip);
	if (!map)
		return -errno;
	/* A region keeps the memory, whatever becomes of the descriptor. */
	int held_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	TH_ASSERT(held_fd >= 0);
	struct fake_region region = {.data = (uint8_t *)map + skip,
		.bytes = bytes,
		.iova = iova,
		.access = access,
		.dmabuf_fd = held_fd,
		.map = map,
		.map_bytes = bytes + skip};
	struct fake_reg asked = {
		.fd = fd, .offset = offset, .bytes = bytes, .iova = iova, .access = access};
	int rc = ask_for_region(device, &region, &asked, ret_mr);
	if (rc < 0) {
		munmap(map, bytes + skip);
		close(held_fd);
	}
	return rc;
}

static int
fake_dereg(struct verbs_device *device, struct verbs_mr *mr)
{
	wait_while_held(device);
	fake_lock(device->fake);
	uint32_t index = mr->lkey & (FAKE_KEY_REGIONS - 1);
	TH_ASSERT(mr->handle == device && index < device->num_regions);
	struct fake_region *region = &device->regions[index];
	TH_ASSERT(region->live && region->key == mr->lkey);
	region->live = false;
	if (region->map)
		munmap(region->map, region->map_bytes);
	th_fd_close(&region->dmabuf_fd);
	device->counters.deregs++;
	device->counters.mrs--;
	int rc = refused(device, FAKE_DEREG);
	fake_unlock(device->fake);
	mr->handle = NULL;
	return rc;
}

/* ---- completion queues --------------------------------------------------------------------- */

static int
fake_cq_new(struct verbs_device *device, uint32_t depth, struct verbs_cq **ret_cq)
{
	if (depth == 0 || depth > device->config.cq_depth_max)
		return -EINVAL;
	struct verbs_cq *cq = calloc(1, sizeof(*cq));
	TH_ASSERT(cq != NULL);
	cq->device = device;
	cq->depth = depth;
	cq->entries = calloc(depth, sizeof(cq->entries[0]));
	TH_ASSERT(cq->entries != NULL);
	cq->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	TH_ASSERT(cq->fd >= 0);
	fake_lock(device->fake);
	int rc = device->removed ? -EIO : 0;
	if (rc == 0)
		device->counters.cqs++;
	fake_unlock(device->fake);
	if (rc < 0) {
		close(cq->fd);
		free(cq->entries);
		free(cq);
		return rc;
	}
	*ret_cq = cq;
	return 0;
}

static void
fake_cq_free(struct verbs_cq *cq)
{
	struct fake_rdma *fake = cq->device->fake;
	fake_lock(fake);
	TH_ASSERT(cq->num_qps == 0);
	cq->device->counters.cqs--;
	fake_unlock(fake);
	close(cq->fd);
	free(cq->entries);
	free(cq);
}

static int
fake_cq_poll(struct verbs_cq *cq, struct verbs_done *ret_done, uint32_t done_max)
{
	struct fake_rdma *fake = cq->device->fake;
	fake_lock(fake);
	cq->device->counters.polls++;
	uint32_t count = 0;
	for (; count < done_max && cq->count > 0 && !cq->broken; count++) {
		const struct fake_entry *entry = &cq->entries[cq->head];
		struct verbs_qp *qp = fake_qp(fake, entry->done.qpn);
		ret_done[count] = entry->done;
		if (qp)
			qp->reclaimed = entry->upto;
		cq->head = (cq->head + 1) % cq->depth;
		cq->count--;
	}
	int rc = cq->broken ? -EIO : (int)count;
	fake_unlock(fake);
	return rc;
}

static int
fake_cq_arm(struct verbs_cq *cq)
{
	fake_lock(cq->device->fake);
	cq->device->counters.arms++;
	cq->armed = true;
	int rc = cq->broken ? -EIO : 0;
	fake_unlock(cq->device->fake);
	return rc;
}

static int
fake_cq_fd(struct verbs_cq *cq)
{
	return cq->fd;
}

static void
fake_cq_quiet(struct verbs_cq *cq)
{
	quiet_fd(cq->fd);
}

void
fake_cq_push(struct verbs_cq *cq, struct verbs_qp *qp, uint64_t id, enum verbs_status status)
{
	if (cq->count == cq->depth || cq->broken) {
		if (!cq->broken)
			cq->device->counters.overruns++;
		fake_break_cq(cq);
		return;
	}
	cq->entries[(cq->head + cq->count) % cq->depth] = (struct fake_entry){
		.done = {.id = id, .qpn = qp->qpn, .status = status},
		.upto = qp->done,
	};
	cq->count++;
	if (cq->armed) {
		cq->armed = false;
		fake_signal(cq->fd);
	}
}

void
fake_break_cq(struct verbs_cq *cq)
{
	struct verbs_event event = {.kind = VERBS_EVENT_CQ};
	if (cq->broken)
		return;
	cq->broken = true;
	fake_event(cq->device, &event);
	if (cq->armed)
		fake_signal(cq->fd);
}

/* ---- queue pairs --------------------------------------------------------------------------- */

static int
fake_qp_new(struct verbs_device *device, struct verbs_cq *cq, uint32_t depth,
	struct verbs_qp **ret_qp, uint32_t *ret_qpn)
{
	struct fake_rdma *fake = device->fake;
	TH_ASSERT(cq->device == device);
	if (depth == 0 || depth > device->config.qp_depth_max)
		return -EINVAL;
	fake_lock(fake);
	int rc = device->removed                                  ? -EIO
		 : device->counters.qps >= device->config.qps_max ? -ENOMEM
								  : refused(device, FAKE_QP_NEW);
	if (rc == 0) {
		struct verbs_qp *qp = calloc(1, sizeof(*qp));
		TH_ASSERT(qp != NULL);
		qp->device = device;
		qp->cq = cq;
		qp->depth = depth;
		qp->reads = calloc(depth, sizeof(qp->reads[0]));
		TH_ASSERT(qp->reads != NULL);
		fake_qp_add(fake, qp);
		cq->num_qps++;
		device->counters.qps_made++;
		device->counters.qps++;
		*ret_qp = qp;
		*ret_qpn = qp->qpn;
	}
	fake_unlock(fake);
	return rc;
}

static int
fake_qp_connect(struct verbs_qp *qp, const struct verbs_path *path)
{
	struct verbs_device *device = qp->device;
	int64_t connect_ns = __atomic_load_n(&device->connect_ns, __ATOMIC_RELAXED);
	if (connect_ns > 0)
		(void)nanosleep(&(struct timespec){.tv_nsec = connect_ns}, NULL);
	fake_lock(device->fake);
	bool held = device->hold_connects > 0;
	device->hold_connects -= held;
	device->counters.connects_held += held;
	fake_unlock(device->fake);
	while (held && __atomic_load_n(&device->connects_held, __ATOMIC_ACQUIRE))
		(void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	fake_lock(device->fake);
	if (device->seen.num_paths < FAKE_SEEN_MAX)
		device->seen.paths[device->seen.num_paths] = *path;
	device->seen.num_paths++;
	int rc = device->removed ? -EIO : refused(device, FAKE_QP_CONNECT);
	if (rc == 0 &&
		(qp->state != FAKE_NEW || path->port < 1 || path->port > device->config.num_ports ||
			path->reads_out > device->config.reads_out_max ||
			path->reads_in > device->config.reads_in_max ||
			path->mtu_bytes > device->config.mtu_bytes || path->mtu_bytes < 256 ||
			path->retries > 7 || path->timeout > 31 ||
			(path->global && path->gid_index >= FAKE_GIDS_MAX) ||
			(!path->global && !device->config.infiniband)))
		rc = -EINVAL;
	if (rc == 0) {
		qp->path = *path;
		qp->state = FAKE_READY;
		device->counters.qps_connected++;
	}
	fake_unlock(device->fake);
	return rc;
}

static int
fake_qp_fail(struct verbs_qp *qp)
{
	fake_lock(qp->device->fake);
	qp->device->counters.qps_failed++;
	fake_qp_flush(qp);
	int rc = qp->device->removed ? -EIO : 0;
	fake_unlock(qp->device->fake);
	return rc;
}

static int
fake_qp_free(struct verbs_qp *qp)
{
	struct verbs_device *device = qp->device;
	fake_lock(device->fake);
	/* Late, and they stay in the queue: its user cannot know them any more. */
	if (device->muted) {
		device->muted = false;
		fake_qp_flush(qp);
		device->muted = true;
	}
	fake_out(device, -(int64_t)(uint32_t)(qp->posted - qp->done));
	fake_qp_remove(device->fake, qp);
	qp->cq->num_qps--;
	device->counters.qps_freed++;
	device->counters.qps--;
	int rc = refused(device, FAKE_QP_FREE);
	fake_unlock(device->fake);
	free(qp->reads);
	free(qp);
	return rc;
}

static int
fake_post_reads(struct verbs_qp *qp, const struct verbs_read *reads, uint32_t count)
{
	struct verbs_device *device = qp->device;
	fake_lock(device->fake);
	int rc = device->removed ? -EIO : qp->state == FAKE_NEW ? -EINVAL : 0;
	if (rc == 0)
		rc = refused(device, FAKE_POST);
	if (rc == 0 && qp->posted - qp->reclaimed + count > qp->depth)
		rc = -ENOMEM;
	if (rc < 0) {
		device->counters.refused++;
		fake_unlock(device->fake);
		return rc;
	}
	if (device->half_post > 0 && device->half_post <= count) {
		count = device->half_post;
		rc = (int)count;
		device->half_post = 0;
	}
	for (uint32_t i = 0; i < count; i++) {
		TH_ASSERT(reads[i].bytes > 0);
		device->seen.last_read = reads[i];
		struct fake_read *read = &qp->reads[qp->posted++ % qp->depth];
		*read = (struct fake_read){.read = reads[i], .fate = VERBS_OK};
		if (device->fail_at == 0)
			read->fate = device->fail_status;
		if (device->fail_at >= 0)
			device->fail_at--;
		device->counters.signalled += reads[i].signalled;
	}
	device->counters.posts++;
	device->counters.reads += count;
	fake_out(device, count);
	if (qp->state == FAKE_ERROR)
		fake_qp_flush(qp);
	else
		fake_issue(qp);
	fake_unlock(device->fake);
	return rc;
}

/* ---- events -------------------------------------------------------------------------------- */

void
fake_event(struct verbs_device *device, const struct verbs_event *event)
{
	if (device->num_events == FAKE_EVENTS_MAX)
		return; /* nobody takes them */
	device->events[device->num_events++] = *event;
	fake_signal(device->event_fd);
}

static int
fake_event_fd(struct verbs_device *device)
{
	return device->event_fd;
}

static int
fake_event_next(struct verbs_device *device, struct verbs_event *ret_event)
{
	fake_lock(device->fake);
	int rc = device->num_events > 0 ? 1 : device->events_code;
	if (rc > 0) {
		device->counters.events++;
		*ret_event = device->events[0];
		device->num_events--;
		memmove(device->events, device->events + 1,
			device->num_events * sizeof(device->events[0]));
	} else {
		quiet_fd(device->event_fd);
	}
	fake_unlock(device->fake);
	return rc;
}

/* ---- the table and the fabric -------------------------------------------------------------- */

static const struct verbs_ops fake_ops = {
	.open = fake_open,
	.open_again = fake_open_again,
	.close = fake_close,
	.info = fake_info,
	.port = fake_port,
	.gids = fake_gids,
	.reg = fake_reg,
	.reg_dmabuf = fake_reg_dmabuf,
	.dereg = fake_dereg,
	.cq_new = fake_cq_new,
	.cq_free = fake_cq_free,
	.cq_poll = fake_cq_poll,
	.cq_arm = fake_cq_arm,
	.cq_fd = fake_cq_fd,
	.cq_quiet = fake_cq_quiet,
	.qp_new = fake_qp_new,
	.qp_connect = fake_qp_connect,
	.qp_fail = fake_qp_fail,
	.qp_free = fake_qp_free,
	.post_reads = fake_post_reads,
	.event_fd = fake_event_fd,
	.event_next = fake_event_next,
};

struct verbs
fake_rdma_verbs(struct fake_host *host)
{
	return (struct verbs){.ops = &fake_ops, .context = host};
}

struct fake_host *
fake_rdma_host(struct fake_rdma *fake)
{
	TH_ASSERT(fake->num_hosts < FAKE_HOSTS_MAX);
	struct fake_host *host = &fake->hosts[fake->num_hosts++];
	host->fake = fake;
	return host;
}

struct verbs_device *
fake_rdma_device(struct fake_host *host, const struct fake_device_config *config)
{
	struct fake_rdma *fake = host->fake;
	TH_ASSERT(host->num_devices < FAKE_DEVICES_MAX);
	struct verbs_device *device = calloc(1, sizeof(*device));
	TH_ASSERT(device != NULL);
	device->fake = fake;
	device->config = config ? *config : (struct fake_device_config){0};
	struct fake_device_config *own = &device->config;
	own->num_ports = or_default(own->num_ports, 1);
	own->reads_out_max = or_default(own->reads_out_max, 16);
	own->reads_in_max = or_default(own->reads_in_max, 16);
	own->mrs_max = or_default(own->mrs_max, 1u << 16);
	own->qps_max = or_default(own->qps_max, 1u << 16);
	own->qp_depth_max = or_default(own->qp_depth_max, 8192);
	own->cq_depth_max = or_default(own->cq_depth_max, 1u << 16);
	own->mtu_bytes = or_default(own->mtu_bytes, 4096);
	own->latency_ns = own->latency_ns ? own->latency_ns : FAKE_LATENCY_NS;
	own->mr_bytes_max = own->mr_bytes_max ? own->mr_bytes_max : UINT64_MAX;
	TH_ASSERT(own->num_ports <= FAKE_PORTS_MAX);
	fake_lock(fake);
	uint32_t number = fake->num_devices++;
	if (own->name)
		snprintf(device->name, sizeof(device->name), "%s", own->name);
	else
		snprintf(device->name, sizeof(device->name), "fake%u", number);
	for (uint32_t port = 1; port <= FAKE_PORTS_MAX; port++) {
		struct fake_port *at = &device->ports[port];
		at->active = true;
		at->lid = own->infiniband && !own->without_lid
				  ? (uint16_t)(number * FAKE_PORTS_MAX + port)
				  : 0;
		at->num_gids = 1;
		at->gids[0].type = own->infiniband ? VERBS_GID_IB : VERBS_GID_ROCE_V2;
		/* ::ffff:10.x.x.port, or fe80::number:port */
		uint8_t ipv4[] = {
			0xff, 0xff, 10, (uint8_t)(number >> 8), (uint8_t)number, (uint8_t)port};
		memcpy(at->gids[0].raw + 10, ipv4, sizeof(ipv4));
		if (own->infiniband) {
			at->gids[0].raw[0] = 0xfe;
			at->gids[0].raw[1] = 0x80;
		}
	}
	device->fail_at = -1;
	device->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	TH_ASSERT(device->event_fd >= 0);
	host->devices[host->num_devices++] = device;
	fake->devices = realloc(fake->devices, fake->num_devices * sizeof(fake->devices[0]));
	TH_ASSERT(fake->devices != NULL);
	fake->devices[number] = device;
	fake_unlock(fake);
	return device;
}

struct fake_rdma *
fake_rdma_new(bool virtual_time)
{
	struct fake_rdma *fake = calloc(1, sizeof(*fake));
	TH_ASSERT(fake != NULL);
	fake->virtual_time = virtual_time;
	fake->map_dmabuf = map_file;
	pthread_mutex_init(&fake->lock, NULL);
	return fake;
}

void
fake_rdma_free(struct fake_rdma *fake)
{
	for (uint32_t i = 0; i < fake->num_devices; i++) {
		struct verbs_device *device = fake->devices[i];
		TH_ASSERT(device->counters.qps == 0 && device->counters.mrs == 0);
		TH_ASSERT(device->counters.cqs == 0 && device->counters.opens == 0);
		close(device->event_fd);
		free(device->regions);
		free(device);
	}
	free(fake->devices);
	free(fake->qps);
	free(fake->cuts);
	free(fake->heap);
	pthread_mutex_destroy(&fake->lock);
	free(fake);
}

struct fake_device_config *
fake_rdma_config(struct verbs_device *device)
{
	return &device->config;
}

const struct fake_seen *
fake_rdma_seen(const struct verbs_device *device)
{
	return &device->seen;
}

void
fake_rdma_counters(struct verbs_device *device, struct fake_counters *ret_counters)
{
	fake_lock(device->fake);
	fake_out(device, 0);
	*ret_counters = device->counters;
	fake_unlock(device->fake);
}
