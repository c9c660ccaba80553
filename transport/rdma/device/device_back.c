/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_back - a device that was lost, and that is opened again when it is back.
 *
 * All of it on the keeper's loop, one phase after the other:
 *
 *   THERE   it is in use;
 *   HELD    it is lost; lanes break, and whoever holds it lets go (rail_hold);
 *   LEAVING its registrars let go of what they have registered with it;
 *   AWAY    nothing of it is left, it is closed, and it is looked for.
 *
 * It is closed before it is looked for: some drivers keep the old one for as long as somebody has
 * it open. What hangs keeps it from being closed, which is said once.
 */
#include <errno.h>
#include <inttypes.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "ipc/base/log.h"
#include "transport/rdma/device/device_own.h"

#define PAUSE_MAX_NS INT64_C(30000000000)
#define PATIENCE_NS INT64_C(30000000000) /* until it is said that it cannot be closed */
#define CALM_NS INT64_C(60000000000) /* one that stays for so long is looked for at once again */

static int64_t
seconds_since(int64_t then_ns)
{
	return (th_now_ns() - then_ns) / 1000000000;
}

/* ---- lost --------------------------------------------------------------------------------- */

static bool
is_held(struct opened_device *opened, uint32_t *ret_holds)
{
	pthread_mutex_lock(&opened->rails->lock);
	*ret_holds = opened->holds;
	pthread_mutex_unlock(&opened->rails->lock);
	return *ret_holds > 0;
}

/* HELD: the registrars' turn, once nobody holds it. */
static void
device_back_let_go(struct opened_device *opened)
{
	struct rails *rails = opened->rails;
	uint32_t holds;
	if (opened->phase != OPENED_HELD || rails->stopped || is_held(opened, &holds))
		return;
	opened->phase = OPENED_LEAVING;
	__atomic_store_n(&opened->leaving, opened->num_rails, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < opened->num_rails; i++) {
		struct rail_port *port = &rails->rails[opened->first_rail + i];
		loop_post(port->registrar, &port->lost_task);
	}
}

static void
run_unheld(struct loop_task *task)
{
	device_back_let_go(loop_container(task, struct opened_device, unheld_task));
}

static void
look_later(struct opened_device *opened)
{
	opened->look_ns = th_now_ns() + opened->pause_ns;
	opened->pause_ns = th_min_i64(2 * opened->pause_ns, PAUSE_MAX_NS);
	loop_tick_at(opened->rails->keeper, opened->look_ns);
}

/* What was made of it goes first: the user's, then ours. */
static void
close_device(struct opened_device *opened)
{
	struct rails *rails = opened->rails;
	for (uint32_t i = 0; i < opened->num_rails; i++) {
		if (rails->user.closing)
			rails->user.closing(rails->user.arg, opened->first_rail + i);
	}
	if (opened->source_cq)
		rails->ops->cq_free(opened->source_cq);
	opened->source_cq = NULL;
	rails->ops->close(opened->device);
	opened->device = NULL;
}

static void
run_left(struct loop_task *task)
{
	struct opened_device *opened = loop_container(task, struct opened_device, left_task);
	if (opened->phase != OPENED_LEAVING || opened->rails->stopped)
		return;
	close_device(opened);
	opened->phase = OPENED_AWAY;
	log_info("rdma", "%s is closed, and opened again when it is back", opened->info.name);
	look_later(opened);
}

void
opened_init(struct opened_device *opened)
{
	opened->unheld_task.run = run_unheld;
	opened->left_task.run = run_left;
	opened->pause_ns = opened->rails->config.look_ns;
}

void
opened_left(struct opened_device *opened)
{
	if (__atomic_sub_fetch(&opened->leaving, 1, __ATOMIC_ACQ_REL) == 0)
		loop_post(opened->rails->keeper, &opened->left_task);
}

void
opened_lose(struct opened_device *opened)
{
	struct rails *rails = opened->rails;
	TH_ASSERT(opened->phase == OPENED_THERE);
	stream_close(&opened->events, false);
	if (th_now_ns() - opened->there_ns > CALM_NS)
		opened->pause_ns = rails->config.look_ns;
	opened->phase = OPENED_HELD;
	opened->said = false;
	opened->code = -ENODEV;
	pthread_mutex_lock(&rails->lock);
	opened->lost_ns = th_now_ns();
	__atomic_store_n(&opened->gone, true, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&rails->lock);
	for (uint32_t i = 0; i < opened->num_rails; i++)
		rails_look(rails, opened->first_rail + i);
	loop_tick_at(rails->keeper, opened->lost_ns + PATIENCE_NS);
	device_back_let_go(opened);
}

/* ---- back --------------------------------------------------------------------------------- */

/* Regions are cut, and endpoints were told, by what it could do. */
static bool
does_as_much(const struct verbs_info *now, const struct verbs_info *before)
{
	return now->num_ports == before->num_ports && now->reads_out_max >= before->reads_out_max &&
	       now->reads_in_max >= before->reads_in_max &&
	       now->mr_bytes_max >= before->mr_bytes_max && now->mrs_max >= before->mrs_max &&
	       now->qps_max >= before->qps_max && now->qp_depth_max >= before->qp_depth_max &&
	       now->cq_depth_max >= before->cq_depth_max && now->dmabuf >= before->dmabuf;
}

static int
open_device(struct opened_device *opened)
{
	struct rails *rails = opened->rails;
	struct verbs_info info;
	int rc = rails->ops->open_again(rails->context, &opened->info, &opened->device);
	if (rc < 0) {
		opened->device = NULL;
		return rc;
	}
	rails->ops->info(opened->device, &info);
	if (!does_as_much(&info, &opened->info))
		rc = -EOPNOTSUPP;
	for (uint32_t i = 0; rc == 0 && i < opened->num_rails; i++) {
		if (rails->user.opened)
			rc = rails->user.opened(rails->user.arg, opened->first_rail + i);
	}
	if (rc < 0)
		close_device(opened);
	return rc;
}

/* Each reason once. */
static void
say_failure(struct opened_device *opened, int code)
{
	if (code == opened->code)
		return;
	opened->code = code;
	if (code == -EOPNOTSUPP)
		log_warn("rdma",
			"%s is back and can do less than before, so it is left alone: restart the "
			"agent",
			opened->info.name);
	else
		log_warn("rdma", "%s cannot be opened again: %s", opened->info.name,
			th_strerror(code));
}

static void
look_for(struct opened_device *opened)
{
	struct rails *rails = opened->rails;
	int rc = open_device(opened);
	if (rc < 0) {
		say_failure(opened, rc);
		look_later(opened);
		return;
	}
	log_info("rdma", "%s is open again after %" PRId64 " s", opened->info.name,
		seconds_since(opened->lost_ns));
	opened->phase = OPENED_THERE;
	opened->there_ns = th_now_ns();
	pthread_mutex_lock(&rails->lock);
	__atomic_store_n(&opened->gone, false, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&rails->lock);
	opened_watch(opened);
	for (uint32_t i = 0; i < opened->num_rails; i++) {
		struct rail_port *port = &rails->rails[opened->first_rail + i];
		loop_post(port->registrar, &port->back_task);
	}
}

/* ---- the clock ---------------------------------------------------------------------------- */

static int64_t
device_back_tick(struct opened_device *opened, int64_t now_ns)
{
	uint32_t holds;
	if (opened->phase == OPENED_AWAY && now_ns >= opened->look_ns)
		look_for(opened);
	if (opened->phase == OPENED_AWAY)
		return opened->look_ns;
	if (opened->phase != OPENED_HELD || opened->said || !is_held(opened, &holds))
		return INT64_MAX;
	if (now_ns < opened->lost_ns + PATIENCE_NS)
		return opened->lost_ns + PATIENCE_NS;
	opened->said = true;
	log_warn("rdma",
		"%s is lost for %" PRId64 " s and still held by %" PRIu32
		" ends of lanes, so it is not opened again before they are gone",
		opened->info.name, seconds_since(opened->lost_ns), holds);
	return INT64_MAX;
}

int64_t
rails_tick(struct rails *rails, int64_t now_ns)
{
	int64_t next_ns = INT64_MAX;
	for (uint32_t i = 0; i < rails->num_opened && !rails->stopped; i++)
		next_ns = th_min_i64(next_ns, device_back_tick(&rails->opened[i], now_ns));
	return next_ns;
}

/* ---- any thread --------------------------------------------------------------------------- */

bool
rail_hold(struct rails *rails, uint32_t rail)
{
	struct opened_device *opened = rails->rails[rail].opened;
	pthread_mutex_lock(&rails->lock);
	bool there = !opened->gone;
	opened->holds += there;
	pthread_mutex_unlock(&rails->lock);
	return there;
}

void
rail_unhold(struct rails *rails, uint32_t rail)
{
	struct opened_device *opened = rails->rails[rail].opened;
	pthread_mutex_lock(&rails->lock);
	TH_ASSERT(opened->holds > 0);
	opened->holds--;
	if (opened->gone && opened->holds == 0)
		loop_post(rails->keeper, &opened->unheld_task);
	pthread_mutex_unlock(&rails->lock);
}
