/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device - see device.h. A device's events are read on the keeper's loop through a duplicate of
 * their descriptor, since a stream closes what it has. Every event about a port is a reason to look
 * at the port, never a fact by itself: events come late, twice and in pairs.
 */
#include "transport/rdma/device/device.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "ipc/base/units.h"
#include "transport/rdma/device/device_own.h"
#include "transport/rdma/device/memlock.h"

#define EVENTS_AT_ONCE 64 /* of a device, before the loop's other work */
#define GIDS_MAX 256u
#define READS_FEW 16u
#define MTU_SMALL 4096u
#define LOOK_NS INT64_C(1000000000)

/* ---- looking at a port -------------------------------------------------------------------- */

struct device_look {
	enum rail_state state;
	struct verbs_port port;
	struct verbs_gid gid;
	struct th_err err;
};

static void
look_for_gid(struct rail_port *rail, struct device_look *look)
{
	const struct rails *rails = rail->opened->rails;
	struct verbs_gid gids[GIDS_MAX];
	int count = rails->ops->gids(rail->opened->device, rail->port, gids, GIDS_MAX);
	if (count < 0) {
		th_fail(&look->err, count, "its addresses cannot be read: %s", th_strerror(count));
		return;
	}
	int at = gid_choose(gids, (uint32_t)count, look->port.link, &rails->config.gid, &look->err);
	if (at < 0)
		return;
	look->gid = gids[at];
	look->state = RAIL_UP;
}

static void
device_look_at(struct rail_port *rail, struct device_look *ret_look)
{
	struct opened_device *opened = rail->opened;
	struct device_look look = {.state = opened->gone ? RAIL_GONE : RAIL_DOWN};
	int rc = opened->gone ? -ENODEV
			      : opened->rails->ops->port(opened->device, rail->port, &look.port);
	if (opened->gone)
		th_fail(&look.err, rc, "the device is gone");
	else if (rc < 0)
		th_fail(&look.err, rc, "its port cannot be asked: %s", th_strerror(rc));
	else if (!look.port.active)
		th_fail(&look.err, -ENETDOWN, "its link is down");
	else if (look.port.link == VERBS_LINK_INFINIBAND && look.port.lid == 0)
		th_fail(&look.err, -ENETDOWN, "it has no LID: is a subnet manager running?");
	else if (opened->info.reads_out_max == 0 || opened->info.reads_in_max == 0)
		th_fail(&look.err, -EOPNOTSUPP, "the device offers no READ");
	else
		look_for_gid(rail, &look);
	*ret_look = look;
}

static void
device_say(uint32_t index, const struct rail_port *rail, const struct device_look *look, bool first)
{
	char gid[GID_TEXT_BYTES];
	if (look->state != RAIL_UP) {
		/* A port that nobody plugged in is no news. */
		log_at(first ? LOG_LEVEL_INFO : LOG_LEVEL_WARN, "rdma",
			"rail %u, %s, cannot be used: %s", index, rail->name, look->err.text);
		return;
	}
	log_info("rdma",
		"rail %u, %s, is up: %s %s (GID %u), MTU %u, READs %u out and %u in, %.0f "
		"Gbit/s%s%s",
		index, rail->name, gid_type_text(look->gid.type), gid_text(look->gid.raw, gid),
		look->gid.index, look->port.mtu_bytes, rail->opened->info.reads_out_max,
		rail->opened->info.reads_in_max, (double)look->port.bits_per_second / 1e9,
		rail->opened->info.pci[0] ? " pci=" : "", rail->opened->info.pci);
}

/* Whether queue pairs that were made before still reach somebody. */
static bool
same_address(const struct device_look *look, const struct rail_status *status)
{
	return memcmp(look->gid.raw, status->gid.raw, VERBS_GID_BYTES) == 0 &&
	       look->gid.type == status->gid.type && look->port.lid == status->port.lid;
}

/* Whether the rail is another than before. */
static bool
device_probe(struct rails *rails, uint32_t index, bool first)
{
	struct rail_port *rail = &rails->rails[index];
	struct device_look look;
	device_look_at(rail, &look);
	pthread_mutex_lock(&rails->lock);
	struct rail_status *status = &rail->status;
	bool changed = first || look.state != status->state ||
		       (look.state == RAIL_UP && !same_address(&look, status));
	status->state = look.state;
	status->port = look.port;
	status->gid = look.gid;
	memcpy(status->why, look.err.text, sizeof(status->why));
	if (changed && !first)
		status->changes++;
	pthread_mutex_unlock(&rails->lock);
	if (changed)
		device_say(index, rail, &look, first);
	return changed;
}

/* ---- events (the keeper's thread) --------------------------------------------------------- */

void
rails_look(struct rails *rails, uint32_t index)
{
	if (device_probe(rails, index, false) && rails->user.changed)
		rails->user.changed(rails->user.arg, index);
}

static void
take_event(struct opened_device *opened, const struct verbs_event *event)
{
	struct rails *rails = opened->rails;
	const struct rails_user *user = &rails->user;
	for (uint32_t i = 0; i < opened->num_rails; i++) {
		uint32_t index = opened->first_rail + i;
		switch (event->kind) {
		case VERBS_EVENT_PORT_UP:
		case VERBS_EVENT_PORT_DOWN:
		case VERBS_EVENT_GIDS:
			if (rails->rails[index].port == event->port)
				rails_look(rails, index);
			break;
		case VERBS_EVENT_QP:
			if (user->queue_failed)
				user->queue_failed(user->arg, index, event->qpn);
			break;
		case VERBS_EVENT_CQ:
			log_error("rdma", "a completion queue of %s overran", opened->info.name);
			if (user->completions_lost)
				user->completions_lost(user->arg, index);
			break;
		case VERBS_EVENT_DEVICE:
		case VERBS_EVENT_OTHER:
			break;
		}
	}
}

static void
on_events(struct stream *stream)
{
	struct opened_device *opened = loop_container(stream, struct opened_device, events);
	for (int i = 0; i < EVENTS_AT_ONCE; i++) {
		struct verbs_event event;
		int got = opened->rails->ops->event_next(opened->device, &event);
		if (got == 0)
			return;
		if (got < 0 || event.kind == VERBS_EVENT_DEVICE) {
			opened_lose(opened);
			return;
		}
		take_event(opened, &event);
	}
}

static void
on_broken(struct stream *stream, int code)
{
	/* Only a connection that is read breaks; events.ready is asked first. */
	(void)stream;
	(void)code;
}

void
opened_watch(struct opened_device *opened)
{
	static const struct stream_ops events_ops = {.ready = on_events, .broken = on_broken};
	struct rails *rails = opened->rails;
	int fd = fcntl(rails->ops->event_fd(opened->device), F_DUPFD_CLOEXEC, 0);
	int rc = fd < 0 ? -errno
			: stream_open(&opened->events, rails->keeper, &events_ops, fd, false);
	if (rc < 0)
		log_error("rdma",
			"events of %s cannot be watched, so links that fail are found late: %s",
			opened->info.name, th_strerror(rc));
	/* What happened between the last look and now. */
	for (uint32_t k = 0; k < opened->num_rails; k++)
		rails_look(rails, opened->first_rail + k);
}

static void
run_watch(struct loop_task *task)
{
	struct rails *rails = loop_container(task, struct rails, watch_task);
	for (uint32_t i = 0; i < rails->num_opened; i++)
		opened_watch(&rails->opened[i]);
}

static void
run_unwatch(struct loop_task *task)
{
	struct rails *rails = loop_container(task, struct rails, unwatch_task);
	rails->stopped = true;
	for (uint32_t i = 0; i < rails->num_opened; i++)
		stream_close(&rails->opened[i].events, false);
	sem_post(&rails->unwatched);
}

/* ---- opening ------------------------------------------------------------------------------ */

struct rails_config
rails_config_default(void)
{
	return (struct rails_config){
		.gid = {.index = GID_INDEX_CHOSEN},
		.mtu_bytes = ENDPOINT_MTU_MAX,
		.reads = ENDPOINT_READS_MAX,
		.timeout = 16,
		.retries = 7,
		.look_ns = LOOK_NS,
		.selfread_ns = SELFREAD_NS,
	};
}

/* Sets used[i] when the name that says so is that of index i. */
static bool
device_is_wanted(
	const struct rails_config *config, const char *device, const char *name, bool *used)
{
	bool wanted = config->num_names == 0;
	for (uint32_t i = 0; i < config->num_names; i++) {
		if (strcmp(config->names[i], device) == 0 || strcmp(config->names[i], name) == 0) {
			wanted = true;
			used[i] = true;
		}
	}
	return wanted;
}

static void
add_rail(struct rails *rails, struct opened_device *opened, uint32_t port, const char *name)
{
	struct rail_port *rail = &rails->rails[rails->num_rails++];
	opened->num_rails++;
	rail->rails = rails;
	rail->opened = opened;
	rail->port = port;
	snprintf(rail->name, sizeof(rail->name), "%s", name);
	struct rail_status *status = &rail->status;
	memcpy(status->name, rail->name, sizeof(status->name));
	memcpy(status->pci, opened->info.pci, sizeof(status->pci));
	status->info = opened->info;
}

static void
add_device(struct rails *rails, struct verbs_device *device, const struct rails_config *config,
	bool *used)
{
	struct opened_device *opened = &rails->opened[rails->num_opened];
	*opened = (struct opened_device){
		.rails = rails, .device = device, .events.fd = -1, .first_rail = rails->num_rails};
	opened_init(opened);
	rails->ops->info(device, &opened->info);
	for (uint32_t port = 1; port <= opened->info.num_ports; port++) {
		char name[RAIL_NAME_BYTES];
		snprintf(name, sizeof(name), "%s/%u", opened->info.name, port);
		if (!device_is_wanted(config, opened->info.name, name, used))
			continue;
		if (rails->num_rails == RAILS_MAX) {
			log_warn("rdma", "%s is one rail too many, %u can be", name, RAILS_MAX);
			continue;
		}
		add_rail(rails, opened, port, name);
	}
	if (opened->num_rails == 0) {
		rails->ops->close(device);
		return;
	}
	rails->num_opened++;
}

static void
warn_of_limits(struct rails *rails)
{
	for (uint32_t i = 0; i < rails->num_rails; i++) {
		const struct rail_port *rail = &rails->rails[i];
		const struct verbs_info *info = &rail->opened->info;
		uint32_t mtu_bytes =
			th_min_u32(rail->status.port.mtu_bytes, rails->config.mtu_bytes);
		if (rail->status.state != RAIL_UP)
			continue;
		if (th_min_u32(info->reads_out_max, info->reads_in_max) < READS_FEW)
			log_warn("rdma", "%s has %u READs out and %u in at once: slow below %u",
				rail->name, info->reads_out_max, info->reads_in_max, READS_FEW);
		if (mtu_bytes < MTU_SMALL)
			log_warn("rdma",
				"%s has an MTU of %u: READs are slow below %u, for which an "
				"Ethernet "
				"interface needs an MTU of 4200",
				rail->name, mtu_bytes, MTU_SMALL);
	}
	struct memlock memlock;
	if (rails->num_rails > 0 && memlock_read(&memlock) == 0 && !memlock_unlimited(&memlock)) {
		char limit[TH_UNITS_BYTES];
		log_warn("rdma", "only %s of memory can be locked for RDMA: " MEMLOCK_REMEDY,
			th_print_size_short(memlock.limit_bytes, limit));
	}
}

static int
start_registrars(struct rails *rails)
{
	int rc = 0;
	for (uint32_t i = 0; i < rails->num_rails && rc == 0; i++) {
		char name[16];
		snprintf(name, sizeof(name), "th-rdma-mr%u", i & 0xffu);
		struct rail_port *port = &rails->rails[i];
		rail_registrar_init(port);
		rc = loop_new(name, LOOP_EPOLL, rail_registrar_tick, port, &port->registrar);
	}
	return rc;
}

static void
free_registrars(struct rails *rails)
{
	for (uint32_t i = 0; i < rails->num_rails; i++)
		loop_free(rails->rails[i].registrar);
}

static void
device_destroy(struct rails *rails)
{
	for (uint32_t i = 0; i < rails->num_rails; i++)
		selfread_close(&rails->rails[i]);
	for (uint32_t i = 0; i < rails->num_opened; i++) {
		struct opened_device *opened = &rails->opened[i];
		if (opened->source_cq)
			rails->ops->cq_free(opened->source_cq);
		if (opened->device)
			rails->ops->close(opened->device);
	}
	sem_destroy(&rails->unwatched);
	pthread_mutex_destroy(&rails->lock);
	pthread_mutex_destroy(&rails->source_cq_lock);
	free(rails);
}

int
rails_new(struct verbs verbs, const struct rails_config *config, struct loop *keeper,
	const struct rails_user *user, struct rails **ret_rails)
{
	struct verbs_device *devices[RAILS_MAX];
	int count = verbs.ops->open(verbs.context, devices, RAILS_MAX);
	if (count < 0)
		return count;
	struct rails *rails = th_calloc(1, sizeof(*rails));
	rails->ops = verbs.ops;
	rails->context = verbs.context;
	rails->config = *config;
	rails->config.names = NULL;
	if (rails->config.look_ns == 0)
		rails->config.look_ns = LOOK_NS;
	if (rails->config.selfread_ns == 0)
		rails->config.selfread_ns = SELFREAD_NS;
	rails->keeper = keeper;
	rails->user = *user;
	rails->watch_task.run = run_watch;
	rails->unwatch_task.run = run_unwatch;
	pthread_mutex_init(&rails->lock, NULL);
	pthread_mutex_init(&rails->source_cq_lock, NULL);
	sem_init(&rails->unwatched, 0, 0);
	bool *used = th_calloc(config->num_names, sizeof(*used));
	for (int i = 0; i < count; i++)
		add_device(rails, devices[i], config, used);
	for (uint32_t i = 0; i < config->num_names; i++) {
		if (!used[i])
			log_warn("rdma", "there is no device or port %s", config->names[i]);
	}
	free(used);
	int rc = start_registrars(rails);
	if (rc < 0) {
		free_registrars(rails);
		device_destroy(rails);
		return rc;
	}
	for (uint32_t i = 0; i < rails->num_rails; i++)
		device_probe(rails, i, true);
	warn_of_limits(rails);
	loop_post(keeper, &rails->watch_task);
	*ret_rails = rails;
	return 0;
}

void
rails_stop(struct rails *rails)
{
	loop_post(rails->keeper, &rails->unwatch_task);
	while (sem_wait(&rails->unwatched) < 0)
		TH_ASSERT(errno == EINTR);
}

void
rails_free(struct rails *rails)
{
	if (!rails)
		return;
	TH_ASSERT(__atomic_load_n(&rails->num_regions, __ATOMIC_ACQUIRE) == 0);
	rails_stop(rails);
	free_registrars(rails);
	rails_stop(rails); /* what the registrars have posted to the keeper has run */
	device_destroy(rails);
}

/* ---- asking ------------------------------------------------------------------------------- */

uint32_t
rails_regions(const struct rails *rails)
{
	return __atomic_load_n(&rails->num_regions, __ATOMIC_ACQUIRE);
}

uint32_t
rails_count(const struct rails *rails)
{
	return rails->num_rails;
}

uint32_t
rails_up(struct rails *rails)
{
	uint32_t mask = 0;
	pthread_mutex_lock(&rails->lock);
	for (uint32_t i = 0; i < rails->num_rails; i++)
		mask |= rails->rails[i].status.state == RAIL_UP ? 1u << i : 0;
	pthread_mutex_unlock(&rails->lock);
	return mask;
}

uint32_t
rails_there(struct rails *rails)
{
	uint32_t mask = 0;
	pthread_mutex_lock(&rails->lock);
	for (uint32_t i = 0; i < rails->num_rails; i++)
		mask |= rails->rails[i].status.state != RAIL_GONE ? 1u << i : 0;
	pthread_mutex_unlock(&rails->lock);
	return mask;
}

void
rail_status(struct rails *rails, uint32_t rail, struct rail_status *ret_status)
{
	TH_ASSERT(rail < rails->num_rails);
	pthread_mutex_lock(&rails->lock);
	const struct rail_port *port = &rails->rails[rail];
	*ret_status = port->status;
	if (port->status.state == RAIL_GONE)
		snprintf(ret_status->why, sizeof(ret_status->why),
			"the device is gone for %" PRId64 " s, and used again when it is back",
			(th_now_ns() - port->opened->lost_ns) / 1000000000);
	ret_status->num_failed = port->num_failed;
	memcpy(ret_status->failed_why, port->failed_why, sizeof(port->failed_why));
	pthread_mutex_unlock(&rails->lock);
	ret_status->bytes_registered = __atomic_load_n(&port->bytes_registered, __ATOMIC_RELAXED);
	ret_status->num_mrs = __atomic_load_n(&port->num_mrs, __ATOMIC_RELAXED);
}

const struct verbs_ops *
rails_ops(const struct rails *rails)
{
	return rails->ops;
}

struct verbs_device *
rail_device(const struct rails *rails, uint32_t rail)
{
	TH_ASSERT(rail < rails->num_rails);
	return rails->rails[rail].opened->device;
}

const char *
rail_name(const struct rails *rails, uint32_t rail)
{
	TH_ASSERT(rail < rails->num_rails);
	return rails->rails[rail].name;
}

int64_t
rails_answer_ns(const struct rails *rails)
{
	uint8_t timeout = rails->config.timeout;
	return timeout == 0 ? 0 : INT64_C(4096) << timeout;
}

const struct verbs_info *
rail_info(const struct rails *rails, uint32_t rail)
{
	TH_ASSERT(rail < rails->num_rails);
	return &rails->rails[rail].opened->info;
}

int
rail_endpoint(struct rails *rails, uint32_t rail, struct endpoint *ret_endpoint,
	struct endpoint_port *ret_port, struct th_err *ret_err)
{
	struct rail_status status;
	rail_status(rails, rail, &status);
	if (status.state != RAIL_UP)
		return th_fail(
			ret_err, TH_E_NO_PATH, "%s cannot be used: %s", status.name, status.why);
	const struct rails_config *config = &rails->config;
	*ret_endpoint = (struct endpoint){
		.link = status.port.link,
		.lid = status.port.lid,
		.mtu_bytes = th_min_u32(status.port.mtu_bytes, config->mtu_bytes),
		.reads_out = th_min_u32(status.info.reads_out_max, config->reads),
		.reads_in = th_min_u32(status.info.reads_in_max, config->reads),
	};
	memcpy(ret_endpoint->gid, status.gid.raw, VERBS_GID_BYTES);
	*ret_port = (struct endpoint_port){
		.port = rails->rails[rail].port,
		.gid_index = status.gid.index,
		.pkey_index = config->pkey_index,
		.service_level = config->service_level,
		.traffic_class = config->traffic_class,
		.timeout = config->timeout,
		.retries = config->retries,
	};
	return 0;
}

void
rail_warn_slow(
	struct rails *rails, uint32_t rail, const char *peer, uint32_t mtu_bytes, uint32_t reads)
{
	struct rail_status status;
	rail_status(rails, rail, &status);
	uint32_t own_reads = th_min_u32(status.info.reads_out_max, status.info.reads_in_max);
	uint32_t own_mtu_bytes = th_min_u32(status.port.mtu_bytes, rails->config.mtu_bytes);
	/* What is so at this end was said at the start. */
	bool is_slow = mtu_bytes < th_min_u32(MTU_SMALL, own_mtu_bytes) ||
		       reads < th_min_u32(READS_FEW, th_min_u32(own_reads, rails->config.reads));
	if (!is_slow || __atomic_exchange_n(&rails->rails[rail].warned, true, __ATOMIC_RELAXED))
		return;
	log_warn("rdma",
		"%s and %s agreed on an MTU of %u and %u READs at once, by what the peer offers: "
		"slow below %u and %u",
		status.name, peer, mtu_bytes, reads, MTU_SMALL, READS_FEW);
}
