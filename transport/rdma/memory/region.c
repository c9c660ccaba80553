/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region - see region.h.
 *
 * Each rail has two tasks of a region, run by its registrar in the order in which they are posted:
 * one that registers, posted at the beginning, and one that deregisters, posted once by whoever
 * lets the last reference go. The last of the first kind posts `settled` to the keeper, the last of
 * the second kind `gone`, so `gone` comes last of all and frees the region. Between the two a
 * registration that failed is tried again by the registrar's clock. One whose device is lost has
 * failed, until the device is back.
 */
#include "transport/rdma/memory/region.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "ipc/base/units.h"
#include "transport/rdma/device/device_own.h"
#include "transport/rdma/device/memlock.h"

#define AGAIN_NS INT64_C(1000000000) /* until a registration that failed is tried again, at least */
#define AGAIN_MAX_NS INT64_C(30000000000)
#define PIECE_ALIGN (UINT64_C(2) << 20) /* a huge page stays in one piece */

struct rail_registration { /* with one rail */
	struct loop_task enter_task, leave_task;
	struct region *region;
	uint32_t rail;
	enum region_state state; /* atomic: READY and FAILED are stored after what follows */
	struct verbs_mr *mrs;    /* owns: one for each piece */
	uint32_t num_mrs;
	struct th_err err; /* guarded by the lock of rails */
	/* The registrar's. */
	LIST_ENTRY(rail_registration) entry; /* of the rail's */
	int code;                            /* of the last try */
	uint32_t tries;
	int64_t tried_ns, again_ns; /* again_ns INT64_MAX: not by itself */
	int64_t pause_ns;
};

struct region {
	struct rails *rails;
	struct region_memory memory;
	struct region_user user;
	unsigned access;
	uint64_t first;       /* the address of the first byte: where it lies in its page */
	uint64_t piece_bytes; /* of all but the last */
	uint32_t num_pieces;
	uint32_t num_registrations;
	uint32_t refs, waiting, held; /* atomic */
	bool stuck;                   /* atomic: a device did not give the memory back */
	struct loop_task settled_task, gone_task;
	struct rail_registration *of[RAILS_MAX]; /* by rail; NULL: not asked for */
	struct rail_registration registrations[];
};

static struct opened_device *
opened_of(const struct rail_registration *registration)
{
	return registration->region->rails->rails[registration->rail].opened;
}

static bool
region_is_there(const struct rail_registration *registration)
{
	return (rails_there(registration->region->rails) >> registration->rail & 1) != 0;
}

static bool
is_dropped(struct region *region)
{
	return __atomic_load_n(&region->refs, __ATOMIC_ACQUIRE) == 0;
}

/* ---- with one rail (the registrar's thread) ----------------------------------------------- */

/* The bytes from the offset to the end of its piece. */
static uint64_t
left_in_piece(const struct region *region, uint64_t offset)
{
	uint64_t in_piece = offset % region->piece_bytes;
	return th_min_u64(region->piece_bytes - in_piece, region->memory.bytes - offset);
}

static int
register_piece(struct rail_registration *registration, uint32_t piece)
{
	struct region *region = registration->region;
	const struct region_memory *memory = &region->memory;
	struct opened_device *opened = opened_of(registration);
	const struct verbs_ops *ops = region->rails->ops;
	uint64_t offset = piece * region->piece_bytes;
	uint64_t bytes = left_in_piece(region, offset), address = region->first + offset;
	struct verbs_mr *ret_mr = &registration->mrs[piece];
	unsigned access = region->access | (opened->info.relaxed_ordering ? VERBS_RELAXED : 0);
	if (memory->data)
		return ops->reg(opened->device, (char *)memory->data + offset, bytes, address,
			access, ret_mr);
	return ops->reg_dmabuf(opened->device, memory->dmabuf_fd, memory->dmabuf_offset + offset,
		bytes, address, access, ret_mr);
}

/* A piece that is registered now, or no more. */
static void
count(struct rail_registration *registration, uint64_t piece, bool more)
{
	struct region *region = registration->region;
	struct rail_port *port = &region->rails->rails[registration->rail];
	uint64_t bytes = left_in_piece(region, piece * region->piece_bytes);
	__atomic_fetch_add(&port->opened->num_mrs, more ? 1 : -1u, __ATOMIC_RELAXED);
	__atomic_fetch_add(&port->num_mrs, more ? 1 : -1u, __ATOMIC_RELAXED);
	__atomic_fetch_add(&port->bytes_registered, more ? bytes : -bytes, __ATOMIC_RELAXED);
}

static void
deregister(struct rail_registration *registration)
{
	struct region *region = registration->region;
	struct opened_device *opened = opened_of(registration);
	for (; registration->num_mrs > 0; registration->num_mrs--) {
		struct verbs_mr *mr = &registration->mrs[registration->num_mrs - 1];
		int rc = region->rails->ops->dereg(opened->device, mr);
		/* What was registered with a device that is gone went with it. */
		if (rc < 0 && rc != -EIO && rc != -ENODEV && region_is_there(registration)) {
			log_error("rdma", "%s does not let go of memory: %s: it stays mapped",
				rail_name(region->rails, registration->rail), th_strerror(rc));
			__atomic_store_n(&region->stuck, true, __ATOMIC_RELEASE);
		}
		count(registration, registration->num_mrs - 1, false);
	}
}

/* What another time may bring. */
static bool
may_pass(int code)
{
	switch (code) {
	case -ENOMEM:
	case -EAGAIN:
	case -EBUSY:
	case -ENOSPC:
	case -EMFILE:
	case -ENFILE:
	case -EPERM:
		return true;
	default:
		return false;
	}
}

static void
region_explain(
	struct rail_registration *registration, int code, uint32_t piece, struct th_err *ret_err)
{
	struct region *region = registration->region;
	struct opened_device *opened = opened_of(registration);
	const char *rail = rail_name(region->rails, registration->rail);
	struct memlock_case failed = {
		.rail = rail,
		.code = code,
		.bytes = left_in_piece(region, piece * region->piece_bytes),
		.mrs = __atomic_load_n(&opened->num_mrs, __ATOMIC_RELAXED),
		.mrs_max = opened->info.mrs_max,
		.dmabuf = !region->memory.data,
		.memlock = {.limit_bytes = UINT64_MAX},
	};
	if (memlock_read(&failed.memlock) < 0)
		failed.memlock.limit_bytes = UINT64_MAX; /* then a less helpful sentence */
	if (region_is_there(registration))
		(void)memlock_explain(&failed, ret_err);
	else
		th_fail(ret_err, -ENODEV, "%s: the device is gone", rail);
}

/* What is shown of the rail. */
static void
region_show(struct rail_registration *registration, const struct th_err *err, bool was_failed)
{
	struct rails *rails = registration->region->rails;
	struct rail_port *port = &rails->rails[registration->rail];
	pthread_mutex_lock(&rails->lock);
	port->num_failed += err ? !was_failed : -1u;
	if (err) {
		registration->err = *err;
		memcpy(port->failed_why, err->text, sizeof(port->failed_why));
	} else if (port->num_failed == 0) {
		port->failed_why[0] = '\0';
	}
	pthread_mutex_unlock(&rails->lock);
}

/* What peers may READ of a GPU. Of its first bytes: it is all of one GPU. */
static int
try_to_read(struct rail_registration *registration, struct th_err *ret_err)
{
	struct region *region = registration->region;
	struct rail_port *port = &region->rails->rails[registration->rail];
	if (region->memory.data || (region->access & VERBS_REMOTE_READ) == 0)
		return 0;
	return selfread_try(
		port, &registration->mrs[0], region->first, left_in_piece(region, 0), ret_err);
}

/* All pieces, or none. Again after a failure: said once for each reason. */
static void
region_enter(struct rail_registration *registration)
{
	struct region *region = registration->region;
	struct rail_port *port = &region->rails->rails[registration->rail];
	struct th_err err = {0};
	int rc = 0;
	uint32_t at = 0;
	bool was_failed = registration->code < 0;
	for (; at < region->num_pieces && rc == 0; at += rc == 0) {
		if (is_dropped(region)) /* nobody asks any more */
			rc = -ECANCELED;
		else
			rc = region_is_there(registration) ? register_piece(registration, at)
							   : -ENODEV;
		if (rc == 0) {
			registration->num_mrs++;
			count(registration, at, true);
		}
	}
	if (rc == 0)
		rc = try_to_read(registration, &err);
	registration->tries++;
	registration->tried_ns = th_now_ns();
	registration->again_ns = INT64_MAX;
	if (rc < 0)
		deregister(registration);
	if (rc < 0 && rc != -ECANCELED) {
		bool limit = port->opened->info.mrs_max != 0 &&
			     __atomic_load_n(&port->opened->num_mrs, __ATOMIC_RELAXED) >=
				     port->opened->info.mrs_max;
		if (err.code == 0)
			region_explain(registration, rc, at % region->num_pieces, &err);
		if (rc != registration->code)
			log_at(region->memory.quiet ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARN, "rdma",
				"%s", err.text);
		region_show(registration, &err, was_failed);
		registration->code = rc;
		registration->pause_ns =
			th_min_i64(th_max_i64(2 * registration->pause_ns, AGAIN_NS), AGAIN_MAX_NS);
		if (region_is_there(registration) && (limit || may_pass(rc)))
			registration->again_ns = registration->tried_ns + registration->pause_ns;
		loop_tick_at(port->registrar, registration->again_ns);
	} else if (rc == 0) {
		if (was_failed) {
			char bytes[TH_UNITS_BYTES];
			th_print_size_short(region->memory.bytes, bytes);
			log_info("rdma", "%s has registered %s after all tries=%" PRIu32,
				rail_name(region->rails, registration->rail), bytes,
				registration->tries);
			region_show(registration, NULL, true);
		}
		registration->code = 0;
		registration->pause_ns = 0;
	}
	__atomic_store_n(
		&registration->state, rc == 0 ? REGION_READY : REGION_FAILED, __ATOMIC_RELEASE);
}

static void
run_enter(struct loop_task *task)
{
	struct rail_registration *registration =
		loop_container(task, struct rail_registration, enter_task);
	struct region *region = registration->region;
	struct rail_port *port = &region->rails->rails[registration->rail];
	LIST_INSERT_HEAD(&port->registrations, registration, entry);
	region_enter(registration);
	if (__atomic_sub_fetch(&region->waiting, 1, __ATOMIC_ACQ_REL) == 0)
		loop_post(region->rails->keeper, &region->settled_task);
}

static void
region_run_leave(struct loop_task *task)
{
	struct rail_registration *registration =
		loop_container(task, struct rail_registration, leave_task);
	struct region *region = registration->region;
	struct rails *rails = region->rails;
	bool gives_back = registration->num_mrs > 0;
	LIST_REMOVE(registration, entry);
	deregister(registration);
	if (registration->code < 0)
		region_show(registration, NULL, true);
	/* Locked memory is the process's: others may have been waiting for it. */
	for (uint32_t i = 0; gives_back && i < rails->num_rails; i++)
		loop_post(rails->rails[i].registrar, &rails->rails[i].released_task);
	if (__atomic_sub_fetch(&region->held, 1, __ATOMIC_ACQ_REL) == 0)
		loop_post(region->rails->keeper, &region->gone_task);
}

/* Each of those that failed is tried by itself: a large one keeps the others from nothing. */
int64_t
rail_registrar_tick(void *arg, int64_t now_ns)
{
	struct rail_port *port = arg;
	struct rail_registration *registration;
	int64_t next_ns = INT64_MAX;
	LIST_FOREACH(registration, &port->registrations, entry)
	{
		if (now_ns >= registration->again_ns && !is_dropped(registration->region))
			region_enter(registration);
		next_ns = th_min_i64(next_ns, registration->again_ns);
	}
	return next_ns;
}

static void
run_released(struct loop_task *task)
{
	struct rail_port *port = loop_container(task, struct rail_port, released_task);
	struct rail_registration *registration;
	int64_t soonest_ns = INT64_MAX;
	LIST_FOREACH(registration, &port->registrations, entry)
	{
		if (registration->again_ns == INT64_MAX)
			continue;
		registration->again_ns =
			th_min_i64(registration->again_ns, registration->tried_ns + AGAIN_NS);
		soonest_ns = th_min_i64(soonest_ns, registration->again_ns);
	}
	if (soonest_ns != INT64_MAX)
		loop_tick_at(port->registrar, soonest_ns);
}

/* Whoever used the keys holds the rail, and none does any more. */
static void
region_run_lost(struct loop_task *task)
{
	struct rail_port *port = loop_container(task, struct rail_port, lost_task);
	struct rail_registration *registration;
	LIST_FOREACH(registration, &port->registrations, entry)
	{
		struct th_err err;
		th_fail(&err, -ENODEV, "%s: the device is gone", port->name);
		region_show(registration, &err, registration->code < 0);
		__atomic_store_n(&registration->state, REGION_FAILED, __ATOMIC_RELEASE);
		deregister(registration);
		registration->code = -ENODEV;
		registration->again_ns = INT64_MAX;
	}
	selfread_close(port);
	port->selfread.not_before_ns = 0;
	opened_left(port->opened);
}

static void
run_back(struct loop_task *task)
{
	struct rail_port *port = loop_container(task, struct rail_port, back_task);
	struct rail_registration *registration;
	LIST_FOREACH(registration, &port->registrations, entry)
	{
		if (registration->code == 0)
			continue;
		registration->again_ns = 0;
		registration->pause_ns = 0;
	}
	loop_tick_at(port->registrar, 0);
}

void
rail_registrar_init(struct rail_port *port)
{
	LIST_INIT(&port->registrations);
	port->released_task.run = run_released;
	port->lost_task.run = region_run_lost;
	port->back_task.run = run_back;
}

/* ---- the keeper's thread ------------------------------------------------------------------ */

static void
run_settled(struct loop_task *task)
{
	struct region *region = loop_container(task, struct region, settled_task);
	if (region->user.settled)
		region->user.settled(region->user.arg, region);
}

static void
region_run_gone(struct loop_task *task)
{
	struct region *region = loop_container(task, struct region, gone_task);
	struct region_user user = region->user;
	struct region_memory memory = region->memory;
	bool stuck = __atomic_load_n(&region->stuck, __ATOMIC_ACQUIRE);
	if (!memory.close_fd)
		th_fd_close(&memory.dmabuf_fd);
	for (uint32_t i = 0; i < region->num_registrations; i++)
		free(region->registrations[i].mrs);
	__atomic_fetch_sub(&region->rails->num_regions, 1, __ATOMIC_RELEASE);
	free(region);
	/* What a device keeps of a dma-buf stays allocated: there is nothing to wait for. */
	if (stuck && !memory.data && user.stuck)
		user.stuck(user.arg);
	if (memory.dmabuf_fd >= 0 && memory.close_fd)
		memory.close_fd(memory.dmabuf_fd, user.gone, user.arg);
	else if (user.gone && !stuck)
		user.gone(user.arg);
}

/* ---- any thread --------------------------------------------------------------------------- */

/* As much as the most modest of the devices takes at once. */
static uint64_t
piece_bytes_of(const struct rails *rails, uint32_t mask, uint64_t page_bytes)
{
	uint64_t bytes = UINT64_MAX;
	for (uint32_t i = 0; i < rails->num_rails; i++) {
		uint64_t max = rails->rails[i].opened->info.mr_bytes_max;
		if ((mask >> i & 1) != 0 && max > 0)
			bytes = th_min_u64(bytes, max);
	}
	uint64_t align = bytes >= PIECE_ALIGN ? PIECE_ALIGN : page_bytes;
	return th_max_u64(bytes & ~(align - 1), page_bytes);
}

struct region *
region_new(struct rails *rails, const struct region_memory *memory, uint32_t mask, unsigned access,
	const struct region_user *user)
{
	uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	mask &= (uint32_t)((UINT64_C(1) << rails->num_rails) - 1);
	uint32_t count = memory->bytes > 0 ? (uint32_t)__builtin_popcount(mask) : 0;
	struct region *region =
		th_calloc(1, sizeof(*region) + count * sizeof(struct rail_registration));
	region->rails = rails;
	region->memory = *memory;
	if (memory->data)
		region->memory.dmabuf_fd = -1;
	region->user = *user;
	region->access = access;
	uint64_t begin = memory->data ? (uint64_t)(uintptr_t)memory->data : memory->dmabuf_offset;
	region->first = begin & (page_bytes - 1);
	region->piece_bytes = piece_bytes_of(rails, mask, page_bytes);
	uint64_t pieces =
		memory->bytes / region->piece_bytes + (memory->bytes % region->piece_bytes != 0);
	region->refs = 1;
	region->settled_task.run = run_settled;
	region->gone_task.run = region_run_gone;
	__atomic_fetch_add(&rails->num_regions, 1, __ATOMIC_RELAXED);
	/* A device of which so many are needed is none to use. */
	TH_ASSERT(pieces <= UINT32_MAX);
	region->num_pieces = (uint32_t)pieces;
	region->num_registrations = region->waiting = region->held = count;
	for (uint32_t i = 0, k = 0; k < count; i++) {
		if ((mask >> i & 1) == 0)
			continue;
		struct rail_registration *registration = &region->registrations[k++];
		*registration = (struct rail_registration){.enter_task.run = run_enter,
			.leave_task.run = region_run_leave,
			.region = region,
			.rail = i,
			.state = REGION_WAITING,
			.again_ns = INT64_MAX,
			.mrs = th_calloc(region->num_pieces, sizeof(struct verbs_mr))};
		region->of[i] = registration;
	}
	if (count == 0)
		loop_post(rails->keeper, &region->settled_task);
	for (uint32_t k = 0; k < count; k++)
		loop_post(rails->rails[region->registrations[k].rail].registrar,
			&region->registrations[k].enter_task);
	return region;
}

struct region *
region_retain(struct region *region)
{
	uint32_t before = __atomic_fetch_add(&region->refs, 1, __ATOMIC_RELAXED);
	TH_ASSERT(before > 0 && before < UINT32_MAX);
	return region;
}

void
region_release(struct region *region)
{
	if (!region)
		return;
	/* After the last one is gone the region may be freed at any moment below. */
	struct rails *rails = region->rails;
	uint32_t count = region->num_registrations;
	uint32_t before = __atomic_fetch_sub(&region->refs, 1, __ATOMIC_ACQ_REL);
	TH_ASSERT(before > 0);
	if (before > 1)
		return;
	if (count == 0)
		loop_post(rails->keeper, &region->gone_task);
	for (uint32_t k = 0; k < count; k++) {
		struct rail_registration *registration = &region->registrations[k];
		struct loop *registrar = rails->rails[registration->rail].registrar;
		loop_post(registrar, &registration->leave_task);
	}
}

static enum region_state
region_state_of(const struct rail_registration *registration)
{
	if (!registration)
		return REGION_NONE;
	return __atomic_load_n(&registration->state, __ATOMIC_ACQUIRE);
}

enum region_state
region_state(struct region *region, uint32_t rail, struct th_err *ret_err)
{
	const struct rail_registration *registration = rail < RAILS_MAX ? region->of[rail] : NULL;
	enum region_state state = region_state_of(registration);
	if (state == REGION_READY && !region_is_there(registration)) {
		th_fail(ret_err, -ENODEV, "%s: the device is gone", rail_name(region->rails, rail));
		return REGION_FAILED;
	}
	if (state == REGION_FAILED && ret_err) {
		pthread_mutex_lock(&region->rails->lock);
		*ret_err = registration->err;
		pthread_mutex_unlock(&region->rails->lock);
	}
	return state;
}

static uint32_t
mask_of(const struct region *region, enum region_state state)
{
	uint32_t mask = 0;
	for (uint32_t i = 0; i < RAILS_MAX; i++)
		mask |= region_state_of(region->of[i]) == state ? 1u << i : 0;
	return mask;
}

uint32_t
region_ready(struct region *region)
{
	return mask_of(region, REGION_READY) & rails_there(region->rails);
}

uint32_t
region_waiting(struct region *region)
{
	return mask_of(region, REGION_WAITING);
}

uint64_t
region_bytes(const struct region *region)
{
	return region->memory.bytes;
}

uint32_t
region_pieces(const struct region *region)
{
	return region->num_pieces;
}

uint64_t
region_piece_bytes(const struct region *region)
{
	return region->piece_bytes;
}

bool
region_mr(const struct region *region, uint32_t rail, uint64_t offset, struct region_key *ret_key)
{
	const struct rail_registration *registration = rail < RAILS_MAX ? region->of[rail] : NULL;
	if (offset >= region->memory.bytes || region_state_of(registration) != REGION_READY)
		return false;
	const struct verbs_mr *mr = &registration->mrs[offset / region->piece_bytes];
	*ret_key = (struct region_key){
		.lkey = mr->lkey,
		.rkey = mr->rkey,
		.address = region->first + offset,
		.bytes = left_in_piece(region, offset),
	};
	return true;
}
