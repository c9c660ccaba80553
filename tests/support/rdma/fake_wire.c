/* SPDX-License-Identifier: Apache-2.0 */
/* fake_wire - see fake_rdma.h: what happens to READs, and what goes wrong. */
#include "tests/support/rdma/fake_wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"

/* ---- queue pairs by their numbers ---------------------------------------------------------- */

#define FIRST_QPN 2u /* 0 and 1 are the network's own */

struct verbs_qp *
fake_qp(const struct fake_rdma *fake, uint32_t qpn)
{
	return qpn >= FIRST_QPN && qpn - FIRST_QPN < fake->num_qps ? fake->qps[qpn - FIRST_QPN]
								   : NULL;
}

void
fake_qp_add(struct fake_rdma *fake, struct verbs_qp *qp)
{
	fake->num_qps++;
	fake->qps = realloc(fake->qps, fake->num_qps * sizeof(fake->qps[0]));
	TH_ASSERT(fake->qps != NULL);
	fake->qps[fake->num_qps - 1] = qp;
	qp->qpn = fake->num_qps - 1 + FIRST_QPN;
}

void
fake_qp_remove(struct fake_rdma *fake, struct verbs_qp *qp)
{
	fake->qps[qp->qpn - FIRST_QPN] = NULL;
}

void
fake_out(struct verbs_device *device, int64_t more)
{
	int64_t now_ns = device->fake->now_ns;
	device->counters.outstanding_ns += device->out * (uint64_t)(now_ns - device->out_since_ns);
	device->out_since_ns = now_ns;
	device->out += (uint64_t)more;
}

/* ---- who reaches whom ---------------------------------------------------------------------- */

static bool
is_cut(const struct fake_rdma *fake, const struct verbs_device *a, const struct verbs_device *b)
{
	for (uint32_t i = 0; i < fake->num_cuts; i++) {
		const struct fake_cut *cut = &fake->cuts[i];
		if ((cut->a == a && cut->b == b) || (cut->a == b && cut->b == a))
			return true;
	}
	return false;
}

/* The path names a port of that device. */
static bool
names(const struct verbs_path *path, const struct verbs_device *device, uint32_t port)
{
	const struct fake_port *at = &device->ports[port];
	if (!path->global)
		return path->lid != 0 && path->lid == at->lid;
	for (uint32_t i = 0; i < at->num_gids; i++) {
		if (memcmp(path->gid, at->gids[i].raw, VERBS_GID_BYTES) == 0)
			return true;
	}
	return false;
}

/* The queue pair that answers; NULL: none. */
static struct verbs_qp *
peer_of(const struct verbs_qp *qp)
{
	const struct verbs_device *device = qp->device;
	struct verbs_qp *peer = fake_qp(device->fake, qp->path.qpn);
	if (!peer || peer->state != FAKE_READY || peer->path.qpn != qp->qpn)
		return NULL;
	const struct verbs_device *other = peer->device;
	if (peer->path.psn != qp->path.own_psn || qp->path.psn != peer->path.own_psn)
		return NULL;
	if (!names(&qp->path, other, peer->path.port) || !names(&peer->path, device, qp->path.port))
		return NULL;
	if (device->removed || other->removed || device->vanished || other->vanished)
		return NULL;
	if (!device->ports[qp->path.port].active || !other->ports[peer->path.port].active)
		return NULL;
	return is_cut(device->fake, device, other) ? NULL : peer;
}

static struct fake_region *
region_of(struct verbs_device *device, uint32_t key, uint64_t address, uint64_t bytes)
{
	uint32_t index = key & (FAKE_KEY_REGIONS - 1);
	if (index >= device->num_regions)
		return NULL;
	struct fake_region *region = &device->regions[index];
	if (!region->live || region->key != key || address < region->iova)
		return NULL;
	return th_range_fits(address - region->iova, bytes, region->bytes) ? region : NULL;
}

/*
 * Whether a peer's bytes are there is told by frames between the hosts, and in that order a device
 * reads them: a sanitizer of threads sees nothing of it. What it writes here is in plain sight.
 */
#ifdef __SANITIZE_THREAD__
void __tsan_write_range(void *to, long bytes);

__attribute__((no_sanitize("thread"), noinline)) static void
copy(uint8_t *to, const uint8_t *from, size_t bytes)
{
	__tsan_write_range(to, (long)bytes);
	/* Not by memcpy, and nothing that the compiler would make one of. */
	for (size_t at = 0, step; at < bytes; at += step) {
		step = bytes - at >= 8 ? 8 : 1;
		if (step == 8)
			__builtin_memcpy(to + at, from + at, 8);
		else
			to[at] = from[at];
		__asm__ volatile("" : : : "memory");
	}
}
#else
static void
copy(uint8_t *to, const uint8_t *from, size_t bytes)
{
	memcpy(to, from, bytes);
}
#endif

/* The bytes move, if they may. */
static enum verbs_status
carry(struct verbs_qp *qp, struct verbs_qp *peer, const struct verbs_read *read)
{
	struct fake_region *to = region_of(qp->device, read->lkey, read->local, read->bytes);
	struct fake_region *from = region_of(peer->device, read->rkey, read->remote, read->bytes);
	if (!to || !(to->access & VERBS_LOCAL_WRITE))
		return VERBS_LOCAL;
	if (!from || !(from->access & VERBS_REMOTE_READ))
		return VERBS_ACCESS;
	if (peer->device->blind && from->dmabuf_fd >= 0)
		return VERBS_OTHER;
	if (to->data && from->data)
		copy(to->data + (read->local - to->iova), from->data + (read->remote - from->iova),
			read->bytes);
	qp->device->counters.bytes_in += read->bytes;
	peer->device->counters.bytes_out += read->bytes;
	return VERBS_OK;
}

/* ---- the end of a READ --------------------------------------------------------------------- */

void
fake_qp_flush(struct verbs_qp *qp)
{
	struct verbs_device *device = qp->device;
	qp->state = FAKE_ERROR;
	if (device->muted)
		return;
	while (qp->done != qp->posted) {
		const struct fake_read *read = &qp->reads[qp->done % qp->depth];
		qp->done++;
		fake_out(device, -1);
		device->counters.flushed++;
		if (read->read.signalled || !device->config.flushes_signalled_only)
			fake_cq_push(qp->cq, qp, read->read.id, VERBS_FLUSHED);
	}
	qp->issued = qp->done;
}

static void
finish(struct verbs_qp *qp, enum verbs_status status)
{
	const struct fake_read *read = &qp->reads[qp->done % qp->depth];
	qp->done++;
	fake_out(qp->device, -1);
	if (status != VERBS_OK)
		qp->device->counters.failed++;
	if (status != VERBS_OK || read->read.signalled)
		fake_cq_push(qp->cq, qp, read->read.id, status);
	if (status != VERBS_OK)
		fake_qp_flush(qp);
}

/* True: it is done, well or badly. False: nobody answers. */
static bool
try(struct verbs_qp *qp)
{
	const struct fake_read *read = &qp->reads[qp->done % qp->depth];
	struct verbs_qp *peer = peer_of(qp);
	if (!peer || read->fate == VERBS_GONE)
		return false;
	enum verbs_status status = read->fate;
	if (status == VERBS_OK && qp->path.reads_out > peer->path.reads_in)
		status = VERBS_OTHER;
	if (status == VERBS_OK)
		status = carry(qp, peer, &read->read);
	finish(qp, status);
	/* The other side has seen it too, and is of no more use. */
	if (status == VERBS_ACCESS) {
		struct verbs_event event = {.kind = VERBS_EVENT_QP, .qpn = peer->qpn};
		fake_qp_flush(peer);
		fake_event(peer->device, &event);
	}
	return true;
}

/* ---- virtual time -------------------------------------------------------------------------- */

static bool
is_sooner(const struct fake_happening *a, const struct fake_happening *b)
{
	return a->at_ps < b->at_ps || (a->at_ps == b->at_ps && a->order < b->order);
}

static void
happens(struct fake_rdma *fake, int64_t at_ps, uint32_t qpn, uint32_t number)
{
	if (fake->num_heap == fake->heap_room) {
		fake->heap_room = fake->heap_room ? fake->heap_room * 2 : 64;
		fake->heap = realloc(fake->heap, fake->heap_room * sizeof(fake->heap[0]));
		TH_ASSERT(fake->heap != NULL);
	}
	struct fake_happening next = {at_ps, fake->order++, qpn, number};
	uint32_t at = fake->num_heap++;
	for (; at > 0 && is_sooner(&next, &fake->heap[(at - 1) / 2]); at = (at - 1) / 2)
		fake->heap[at] = fake->heap[(at - 1) / 2];
	fake->heap[at] = next;
}

static struct fake_happening
take_soonest(struct fake_rdma *fake)
{
	struct fake_happening soonest = fake->heap[0], last = fake->heap[--fake->num_heap];
	uint32_t at = 0;
	for (;;) {
		uint32_t child = at * 2 + 1;
		if (child >= fake->num_heap)
			break;
		if (child + 1 < fake->num_heap &&
			is_sooner(&fake->heap[child + 1], &fake->heap[child]))
			child++;
		if (!is_sooner(&fake->heap[child], &last))
			break;
		fake->heap[at] = fake->heap[child];
		at = child;
	}
	fake->heap[at] = last;
	return soonest;
}

/* How long so many bytes take. */
static int64_t
time_of(const struct verbs_device *device, uint64_t bytes)
{
	uint64_t rate = device->config.bytes_per_second;
	if (rate == 0)
		return 0;
	return (int64_t)((__uint128_t)bytes * 1000000000000u / rate);
}

/* When the next READ to go on the wire will be done: the request goes there, the bytes come back
 * as both ends have time for them, behind those of the same queue pair. */
static int64_t
done_at(struct verbs_qp *qp, uint64_t bytes)
{
	struct verbs_device *device = qp->device;
	const struct verbs_qp *peer = peer_of(qp);
	int64_t now_ps = device->fake->now_ns * FAKE_PS;
	if (!peer)
		return th_max_i64(qp->last_ps, now_ps);
	struct verbs_device *other = peer->device;
	int64_t way_ps = (device->config.latency_ns + other->config.latency_ns) * FAKE_PS / 4;
	int64_t *out_ps = &other->ports[peer->path.port].out_free_ps;
	int64_t *in_ps = &device->ports[qp->path.port].in_free_ps;
	int64_t sent_ps = th_max_i64(now_ps + way_ps, *out_ps);
	*out_ps = sent_ps + time_of(other, bytes);
	int64_t come_ps = th_max_i64(sent_ps + way_ps, *in_ps);
	*in_ps = come_ps + time_of(device, bytes);
	int64_t done_ps = th_max_i64(*in_ps, *out_ps + way_ps);
	return th_max_i64(done_ps, qp->last_ps);
}

static void
happen(struct fake_rdma *fake, const struct fake_happening *what)
{
	struct verbs_qp *qp = fake_qp(fake, what->qpn);
	if (!qp || qp->state != FAKE_READY)
		return;
	qp->reads[what->number % qp->depth].due = true;
	/* Those behind one that is tried again wait for it. */
	while (qp->state == FAKE_READY && qp->done != qp->issued) {
		struct fake_read *read = &qp->reads[qp->done % qp->depth];
		if (!read->due)
			break;
		if (try(qp))
			continue;
		if (read->tries++ > qp->path.retries) {
			finish(qp, VERBS_GONE);
			return;
		}
		/* 4.096 us times 2 to the power of the timeout. */
		int64_t again_ps = what->at_ps + (INT64_C(4096) << qp->path.timeout) * FAKE_PS;
		read->due = false;
		qp->last_ps = th_max_i64(qp->last_ps, again_ps);
		happens(fake, again_ps, what->qpn, qp->done);
		return;
	}
	if (qp->state == FAKE_READY)
		fake_issue(qp);
}

int64_t
fake_rdma_now(const struct fake_rdma *fake)
{
	return fake->now_ns;
}

int64_t
fake_rdma_next(const struct fake_rdma *fake)
{
	if (fake->num_heap == 0)
		return INT64_MAX;
	return (fake->heap[0].at_ps + FAKE_PS - 1) / FAKE_PS;
}

void
fake_rdma_run(struct fake_rdma *fake, int64_t until_ns)
{
	fake_lock(fake);
	while (fake_rdma_next(fake) <= until_ns) {
		struct fake_happening what = take_soonest(fake);
		fake->now_ns = th_max_i64(fake->now_ns, (what.at_ps + FAKE_PS - 1) / FAKE_PS);
		happen(fake, &what);
	}
	fake->now_ns = th_max_i64(fake->now_ns, until_ns);
	fake_unlock(fake);
}

/* ---- onto the wire ------------------------------------------------------------------------- */

void
fake_issue(struct verbs_qp *qp)
{
	struct verbs_device *device = qp->device;
	if (!device->fake->virtual_time) {
		while (qp->state == FAKE_READY && qp->done != qp->posted) {
			if (device->held && device->let == 0)
				return;
			if (!try(qp))
				return;
			if (device->let > 0)
				device->let--;
		}
		return;
	}
	while (qp->issued != qp->posted && qp->issued - qp->done < qp->path.reads_out) {
		const struct fake_read *read = &qp->reads[qp->issued % qp->depth];
		qp->last_ps = done_at(qp, read->read.bytes);
		device->counters.slowest_ns = th_max_i64(
			device->counters.slowest_ns, qp->last_ps / FAKE_PS - device->fake->now_ns);
		happens(device->fake, qp->last_ps, qp->qpn, qp->issued);
		qp->issued++;
	}
	device->counters.out_max = th_max_u32(device->counters.out_max, qp->issued - qp->done);
}

static void
issue_all(struct fake_rdma *fake)
{
	for (uint32_t i = 0; i < fake->num_qps; i++) {
		if (fake->qps[i] && fake->qps[i]->state == FAKE_READY)
			fake_issue(fake->qps[i]);
	}
}

/* ---- what goes wrong ----------------------------------------------------------------------- */

void
fake_rdma_fail_read(struct verbs_device *device, uint32_t n, enum verbs_status status)
{
	fake_lock(device->fake);
	device->fail_at = n;
	device->fail_status = status;
	fake_unlock(device->fake);
}

void
fake_rdma_refuse(struct verbs_device *device, enum fake_call call, uint32_t count, int code)
{
	fake_lock(device->fake);
	device->refusals[call] = (struct fake_refusal){.count = count, .code = code};
	fake_unlock(device->fake);
}

void
fake_rdma_refuse_from(struct verbs_device *device, enum fake_call call, uint32_t good, int code)
{
	fake_lock(device->fake);
	device->refusals[call] = (struct fake_refusal){good, FAKE_ALWAYS, code};
	fake_unlock(device->fake);
}

void
fake_rdma_half_post(struct verbs_device *device, uint32_t taken)
{
	fake_lock(device->fake);
	device->half_post = taken;
	fake_unlock(device->fake);
}

void
fake_rdma_slow_connects(struct verbs_device *device, int64_t duration_ns)
{
	__atomic_store_n(&device->connect_ns, duration_ns, __ATOMIC_RELAXED);
}

void
fake_rdma_hold_connects(struct verbs_device *device, uint32_t count)
{
	fake_lock(device->fake);
	device->hold_connects = count;
	__atomic_store_n(&device->connects_held, count > 0, __ATOMIC_RELEASE);
	fake_unlock(device->fake);
}

void
fake_rdma_hold_regs(struct verbs_device *device, bool held)
{
	__atomic_store_n(&device->hold_regs, held, __ATOMIC_RELEASE);
}

void
fake_rdma_port_set(struct verbs_device *device, uint32_t port, bool active)
{
	struct verbs_event event = {
		.kind = active ? VERBS_EVENT_PORT_UP : VERBS_EVENT_PORT_DOWN, .port = port};
	fake_lock(device->fake);
	TH_ASSERT(port >= 1 && port <= device->config.num_ports);
	device->ports[port].active = active;
	fake_event(device, &event);
	if (!device->fake->virtual_time)
		issue_all(device->fake);
	fake_unlock(device->fake);
}

void
fake_rdma_vanish(struct verbs_device *device)
{
	fake_lock(device->fake);
	device->vanished = true;
	fake_unlock(device->fake);
}

void
fake_rdma_remove(struct verbs_device *device)
{
	struct fake_rdma *fake = device->fake;
	struct verbs_event event = {.kind = VERBS_EVENT_DEVICE};
	fake_lock(fake);
	for (uint32_t i = 0; i < fake->num_qps; i++) {
		if (fake->qps[i] && fake->qps[i]->device == device)
			fake_qp_flush(fake->qps[i]);
	}
	device->removed = true;
	fake_event(device, &event);
	fake_unlock(fake);
}

bool
fake_rdma_return(struct verbs_device *device)
{
	fake_lock(device->fake);
	bool returns = device->removed && device->counters.opens == 0;
	if (returns) {
		TH_ASSERT(device->counters.mrs == 0 && device->counters.qps == 0);
		device->num_events = 0;
		device->removed = false;
	}
	fake_unlock(device->fake);
	return returns;
}

void
fake_rdma_break_cqs(struct verbs_device *device)
{
	struct fake_rdma *fake = device->fake;
	fake_lock(fake);
	for (uint32_t i = 0; i < fake->num_qps; i++) {
		if (fake->qps[i] && fake->qps[i]->device == device)
			fake_break_cq(fake->qps[i]->cq);
	}
	fake_unlock(fake);
}

void
fake_rdma_mute(struct verbs_device *device, bool muted)
{
	fake_lock(device->fake);
	device->muted = muted;
	fake_unlock(device->fake);
}

void
fake_rdma_cut(struct verbs_device *a, struct verbs_device *b, bool cut)
{
	struct fake_rdma *fake = a->fake;
	fake_lock(fake);
	if (cut && !is_cut(fake, a, b)) {
		fake->cuts = realloc(fake->cuts, (fake->num_cuts + 1) * sizeof(fake->cuts[0]));
		TH_ASSERT(fake->cuts != NULL);
		fake->cuts[fake->num_cuts++] = (struct fake_cut){a, b};
	}
	for (uint32_t i = 0; !cut && i < fake->num_cuts; i++) {
		if ((fake->cuts[i].a == a && fake->cuts[i].b == b) ||
			(fake->cuts[i].a == b && fake->cuts[i].b == a))
			fake->cuts[i--] = fake->cuts[--fake->num_cuts];
	}
	if (!fake->virtual_time)
		issue_all(fake);
	fake_unlock(fake);
}

void
fake_rdma_set_rate(struct verbs_device *device, uint64_t bytes_per_second)
{
	fake_lock(device->fake);
	device->config.bytes_per_second = bytes_per_second;
	fake_unlock(device->fake);
}

void
fake_rdma_set_gids(
	struct verbs_device *device, uint32_t port, const struct verbs_gid *gids, uint32_t num_gids)
{
	struct verbs_event event = {.kind = VERBS_EVENT_GIDS, .port = port};
	fake_lock(device->fake);
	TH_ASSERT(port >= 1 && port <= device->config.num_ports && num_gids <= FAKE_GIDS_MAX);
	for (uint32_t i = 0; i < num_gids; i++)
		device->ports[port].gids[i] = gids[i];
	device->ports[port].num_gids = num_gids;
	fake_event(device, &event);
	fake_unlock(device->fake);
}

void
fake_rdma_add_event(struct verbs_device *device, const struct verbs_event *event)
{
	fake_lock(device->fake);
	fake_event(device, event);
	fake_unlock(device->fake);
}

void
fake_rdma_fail_events(struct verbs_device *device, int code)
{
	fake_lock(device->fake);
	device->events_code = code;
	fake_signal(device->event_fd);
	fake_unlock(device->fake);
}

/* ---- without virtual time ------------------------------------------------------------------ */

void
fake_rdma_hold(struct verbs_device *device, bool held)
{
	fake_lock(device->fake);
	device->held = held;
	device->let = 0;
	issue_all(device->fake);
	fake_unlock(device->fake);
}

uint32_t
fake_rdma_let(struct verbs_device *device, uint32_t count)
{
	fake_lock(device->fake);
	device->let = count;
	issue_all(device->fake);
	uint32_t went = count - device->let;
	device->let = 0;
	fake_unlock(device->fake);
	return went;
}

void
fake_rdma_blind(struct verbs_device *device, bool blind)
{
	fake_lock(device->fake);
	device->blind = blind;
	fake_unlock(device->fake);
}

void
fake_rdma_give_up(struct verbs_device *device)
{
	struct fake_rdma *fake = device->fake;
	fake_lock(fake);
	for (uint32_t i = 0; i < fake->num_qps; i++) {
		struct verbs_qp *qp = fake->qps[i];
		if (!qp || qp->device != device || qp->state != FAKE_READY ||
			qp->done == qp->posted)
			continue;
		if (!peer_of(qp) || qp->reads[qp->done % qp->depth].fate == VERBS_GONE)
			finish(qp, VERBS_GONE);
	}
	fake_unlock(fake);
}
