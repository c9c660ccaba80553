/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_script - see verbs_script.h. */
#include "tests/support/rdma/verbs_script.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/fd.h"

#define PATIENCE_S 60
#define OWN_KEY 1u

struct verbs_cq {
	struct verbs_device *device;
	struct verbs_done done;
	bool any;
};

struct verbs_qp {
	struct verbs_device *device;
	struct verbs_cq *cq;
	uint32_t qpn;
};

void
script_address(struct verbs_gid *ret_gid, uint32_t index, uint8_t c, uint8_t d)
{
	*ret_gid = (struct verbs_gid){.index = index,
		.type = VERBS_GID_ROCE_V2,
		.raw = {[10] = 0xff, [11] = 0xff, [12] = 10, [13] = 77, [14] = c, [15] = d}};
}

void
script_init(struct script *script, uint32_t num_devices)
{
	TH_ASSERT(num_devices <= SCRIPT_DEVICES);
	*script = (struct script){.num_devices = num_devices};
	pthread_mutex_init(&script->lock, NULL);
	pthread_cond_init(&script->changed, NULL);
	for (uint32_t i = 0; i < num_devices; i++) {
		struct verbs_device *device = &script->devices[i];
		device->script = script;
		device->again_code = -ENODEV;
		device->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
		TH_ASSERT(device->event_fd >= 0);
		device->info = (struct verbs_info){.num_ports = 1,
			.reads_out_max = 16,
			.reads_in_max = 16,
			.mr_bytes_max = UINT64_MAX,
			.mrs_max = 1000,
			.qps_max = 1000,
			.qp_depth_max = 1024,
			.cq_depth_max = 65536};
		snprintf(device->info.name, sizeof(device->info.name), "fake_%u", i);
		for (uint32_t p = 0; p < SCRIPT_PORTS; p++) {
			device->ports[p] = (struct verbs_port){.link = VERBS_LINK_ETHERNET,
				.active = true,
				.mtu_bytes = 4096,
				.bits_per_second = UINT64_C(400000000000)};
			device->num_gids[p] = 1;
			script_address(&device->gids[p][0], 3, (uint8_t)i, (uint8_t)(p + 1));
		}
	}
}

void
script_fini(struct script *script)
{
	for (uint32_t i = 0; i < script->num_devices; i++)
		th_fd_close(&script->devices[i].event_fd);
	pthread_cond_destroy(&script->changed);
	pthread_mutex_destroy(&script->lock);
}

void
script_lock(struct script *script)
{
	pthread_mutex_lock(&script->lock);
}

void
script_unlock(struct script *script)
{
	pthread_cond_broadcast(&script->changed);
	pthread_mutex_unlock(&script->lock);
}

static void
add_event(struct verbs_device *device, struct verbs_event event, int code)
{
	uint64_t one = 1;
	script_lock(device->script);
	TH_ASSERT(device->events_in < SCRIPT_EVENTS);
	device->events[device->events_in] = event;
	device->event_codes[device->events_in++] = code;
	script_unlock(device->script);
	TH_ASSERT(write(device->event_fd, &one, sizeof(one)) == (ssize_t)sizeof(one));
}

void
script_event(struct verbs_device *device, enum verbs_event_kind kind, uint32_t port, uint32_t qpn)
{
	add_event(device, (struct verbs_event){.kind = kind, .port = port, .qpn = qpn}, 1);
}

void
script_event_fails(struct verbs_device *device, int code)
{
	add_event(device, (struct verbs_event){.kind = VERBS_EVENT_OTHER}, code);
}

void
script_hold(struct script *script)
{
	script_lock(script);
	script->hold = true;
	script_unlock(script);
}

void
script_release(struct script *script)
{
	script_lock(script);
	script->hold = false;
	script_unlock(script);
}

static void
wait_for(struct script *script, const uint32_t *number, uint32_t count)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_S;
	script_lock(script);
	while (*number < count)
		TH_ASSERT(pthread_cond_timedwait(&script->changed, &script->lock, &until) == 0);
	script_unlock(script);
}

void
script_wait_held(struct script *script, uint32_t count)
{
	wait_for(script, &script->held, count);
}

void
script_wait_reads(struct verbs_device *device, uint32_t count)
{
	wait_for(device->script, &device->reads, count);
}

/* ---- the table ---- */

static int
script_open(void *context, struct verbs_device **ret_devices, uint32_t devices_max)
{
	struct script *script = context;
	if (script->open_code < 0)
		return script->open_code;
	TH_ASSERT(script->num_devices <= devices_max);
	for (uint32_t i = 0; i < script->num_devices; i++)
		ret_devices[i] = &script->devices[i];
	return (int)script->num_devices;
}

static int
script_open_again(void *context, const struct verbs_info *info, struct verbs_device **ret_device)
{
	struct script *script = context;
	int rc = -ENODEV;
	script_lock(script);
	for (uint32_t i = 0; i < script->num_devices; i++) {
		struct verbs_device *device = &script->devices[i];
		if (strcmp(device->info.name, info->name) != 0)
			continue;
		TH_ASSERT(device->closes == 1 + device->reopens);
		device->tries++;
		rc = device->again_code;
		*ret_device = device;
		device->reopens += rc == 0;
	}
	script_unlock(script);
	return rc;
}

static void
script_close(struct verbs_device *device)
{
	script_lock(device->script);
	device->closes++;
	script_unlock(device->script);
}

static void
script_info(struct verbs_device *device, struct verbs_info *ret_info)
{
	*ret_info = device->info;
}

static int
script_port(struct verbs_device *device, uint32_t port, struct verbs_port *ret_port)
{
	script_lock(device->script);
	int rc = device->port_code;
	device->looks++;
	if (rc == 0)
		*ret_port = device->ports[port - 1];
	script_unlock(device->script);
	return rc;
}

static int
script_gids(
	struct verbs_device *device, uint32_t port, struct verbs_gid *ret_gids, uint32_t gids_max)
{
	script_lock(device->script);
	uint32_t count = device->num_gids[port - 1];
	int rc = device->gids_code < 0 ? device->gids_code : (int)count;
	TH_ASSERT(count <= gids_max);
	memcpy(ret_gids, device->gids[port - 1], count * sizeof(*ret_gids));
	script_unlock(device->script);
	return rc;
}

/* The script is locked. */
static void
wait_while_held(struct script *script)
{
	script->held++;
	pthread_cond_broadcast(&script->changed);
	while (script->hold)
		pthread_cond_wait(&script->changed, &script->lock);
	script->held--;
}

static int
reg(struct verbs_device *device, const struct script_reg *record, struct verbs_mr *ret_mr)
{
	struct script *script = device->script;
	script_lock(script);
	if (record->data && record->iova == (uintptr_t)record->data) {
		device->own_mrs++;
		*ret_mr = (struct verbs_mr){.lkey = OWN_KEY, .rkey = OWN_KEY, .handle = device};
		script_unlock(script);
		return 0;
	}
	wait_while_held(script);
	device->records[device->regs % SCRIPT_RECORDS] = *record;
	int rc = device->reg_code < 0 && device->regs >= device->regs_good ? device->reg_code : 0;
	uint32_t number = device->regs++;
	if (rc == 0) {
		device->mrs++;
		device->mrs_peak = device->mrs > device->mrs_peak ? device->mrs : device->mrs_peak;
		*ret_mr = (struct verbs_mr){
			.lkey = 0x100 + number, .rkey = 0x200 + number, .handle = device};
	}
	script_unlock(script);
	return rc;
}

static int
script_reg(struct verbs_device *device, void *data, uint64_t bytes, uint64_t iova, unsigned access,
	struct verbs_mr *ret_mr)
{
	struct script_reg record = {
		.data = data, .fd = -1, .bytes = bytes, .iova = iova, .access = access};
	return reg(device, &record, ret_mr);
}

static int
script_reg_dmabuf(struct verbs_device *device, int fd, uint64_t offset, uint64_t bytes,
	uint64_t iova, unsigned access, struct verbs_mr *ret_mr)
{
	struct script_reg record = {
		.fd = fd, .offset = offset, .bytes = bytes, .iova = iova, .access = access};
	return reg(device, &record, ret_mr);
}

static int
script_dereg(struct verbs_device *device, struct verbs_mr *mr)
{
	TH_ASSERT(mr->handle == device);
	bool own = mr->rkey == OWN_KEY;
	script_lock(device->script);
	if (!own)
		wait_while_held(device->script);
	int rc = own ? 0 : device->dereg_code;
	device->own_mrs -= own;
	device->deregs += !own;
	device->mrs -= !own && rc == 0;
	mr->handle = NULL;
	script_unlock(device->script);
	return rc;
}

static int
script_cq_new(struct verbs_device *device, uint32_t depth, struct verbs_cq **ret_cq)
{
	TH_ASSERT(depth > 0);
	script_lock(device->script);
	int rc = device->cq_code;
	if (rc == 0) {
		device->cqs++;
		device->cqs_made++;
		*ret_cq = th_calloc(1, sizeof(**ret_cq));
		(*ret_cq)->device = device;
	}
	script_unlock(device->script);
	return rc;
}

static void
script_cq_free(struct verbs_cq *cq)
{
	script_lock(cq->device->script);
	cq->device->cqs--;
	script_unlock(cq->device->script);
	free(cq);
}

static int
script_qp_new(struct verbs_device *device, struct verbs_cq *cq, uint32_t depth,
	struct verbs_qp **ret_qp, uint32_t *ret_qpn)
{
	TH_ASSERT(cq->device == device && depth > 0);
	script_lock(device->script);
	int rc = device->qp_code < 0 && device->qps_made >= device->qps_good ? device->qp_code : 0;
	if (rc == 0) {
		device->qps++;
		*ret_qp = th_calloc(1, sizeof(**ret_qp));
		**ret_qp = (struct verbs_qp){
			.device = device, .cq = cq, .qpn = 17 + device->qps_made++};
		*ret_qpn = (*ret_qp)->qpn;
	}
	script_unlock(device->script);
	return rc;
}

static int
script_qp_connect(struct verbs_qp *qp, const struct verbs_path *path)
{
	struct verbs_device *device = qp->device;
	script_lock(device->script);
	device->paths[device->connects++ % SCRIPT_RECORDS] = *path;
	int rc = device->connect_code;
	script_unlock(device->script);
	return rc;
}

static int
script_qp_free(struct verbs_qp *qp)
{
	script_lock(qp->device->script);
	qp->device->qps--;
	int rc = qp->device->free_code;
	script_unlock(qp->device->script);
	free(qp);
	return rc;
}

/* One at a time, and each is signalled. */
static int
script_post_reads(struct verbs_qp *qp, const struct verbs_read *reads, uint32_t count)
{
	struct verbs_device *device = qp->device;
	struct verbs_cq *cq = qp->cq;
	script_lock(device->script);
	TH_ASSERT(count == 1 && reads->signalled && !cq->any);
	bool dmabuf = reads->rkey != OWN_KEY;
	uint32_t *bad = dmabuf ? &device->bad_dmabuf_reads : &device->bad_reads;
	device->reads++;
	if (dmabuf)
		device->last_read = *reads;
	cq->any = *bad == 0 || !device->reads_hang;
	cq->done = (struct verbs_done){.id = reads->id,
		.qpn = qp->qpn,
		.status = *bad > 0 ? device->read_status : VERBS_OK};
	*bad -= *bad > 0;
	script_unlock(device->script);
	return 0;
}

static int
script_cq_poll(struct verbs_cq *cq, struct verbs_done *ret_done, uint32_t done_max)
{
	TH_ASSERT(done_max > 0);
	script_lock(cq->device->script);
	bool any = cq->any;
	*ret_done = cq->done;
	cq->any = false;
	script_unlock(cq->device->script);
	return any;
}

static int
script_event_fd(struct verbs_device *device)
{
	return device->event_fd;
}

static int
script_event_next(struct verbs_device *device, struct verbs_event *ret_event)
{
	uint64_t one;
	if (read(device->event_fd, &one, sizeof(one)) < 0) {
		TH_ASSERT(errno == EAGAIN);
		return 0;
	}
	script_lock(device->script);
	TH_ASSERT(device->events_out < device->events_in);
	*ret_event = device->events[device->events_out];
	int rc = device->event_codes[device->events_out++];
	script_unlock(device->script);
	return rc;
}

struct verbs
script_verbs(struct script *script)
{
	static const struct verbs_ops ops = {
		.open = script_open,
		.open_again = script_open_again,
		.close = script_close,
		.info = script_info,
		.port = script_port,
		.gids = script_gids,
		.reg = script_reg,
		.reg_dmabuf = script_reg_dmabuf,
		.dereg = script_dereg,
		.cq_new = script_cq_new,
		.cq_free = script_cq_free,
		.qp_new = script_qp_new,
		.qp_connect = script_qp_connect,
		.qp_free = script_qp_free,
		.cq_poll = script_cq_poll,
		.post_reads = script_post_reads,
		.event_fd = script_event_fd,
		.event_next = script_event_next,
	};
	return (struct verbs){.ops = &ops, .context = script};
}
