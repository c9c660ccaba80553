/* SPDX-License-Identifier: Apache-2.0 */
/* selfread - see selfread.h. */
#include "transport/rdma/memory/selfread.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "ipc/base/units.h"
#include "transport/part/pinned_pages.h"
#include "transport/rdma/device/device_own.h"

#define DATA_BYTES (UINT64_C(1) << 20)
#define OWN_BYTES 64u /* of our own memory */
#define LOOK_NS 50000
#define PAUSE_NS INT64_C(30000000000) /* until a rail is asked again whether it reaches itself */

static uint32_t
selfread_index_of(const struct rail_port *port)
{
	return (uint32_t)(port - port->rails->rails);
}

static bool
selfread_is_there(const struct rail_port *port)
{
	return (rails_there(port->rails) >> selfread_index_of(port) & 1) != 0;
}

void
selfread_close(struct rail_port *port)
{
	struct selfread *self = &port->selfread;
	const struct verbs_ops *ops = port->rails->ops;
	int rc = 0;
	if (self->qp)
		(void)ops->qp_free(self->qp);
	if (self->cq)
		ops->cq_free(self->cq);
	/* The fence, even where the queue pair has not gone. */
	if (self->mr.handle)
		rc = ops->dereg(port->opened->device, &self->mr);
	if (rc < 0 && selfread_is_there(port))
		log_warn("rdma", "%s does not let go of memory: %s: it stays mapped", port->name,
			th_strerror(rc));
	else if (self->data)
		munmap(self->data, DATA_BYTES);
	*self = (struct selfread){.not_before_ns = self->not_before_ns};
}

/* ---- a queue pair that reads from itself -------------------------------------------------- */

static int
connect_to_itself(struct rail_port *port, uint32_t qpn)
{
	struct endpoint own;
	struct endpoint_port own_port;
	struct verbs_path path;
	int rc = rail_endpoint(port->rails, selfread_index_of(port), &own, &own_port, NULL);
	if (rc < 0)
		return rc;
	own.qpns[0] = qpn;
	own.psns[0] = (uint32_t)th_now_ns() & ENDPOINT_NUMBER_MAX;
	endpoint_path(&own, &own_port, &own, ENDPOINT_READER, 0, &path);
	path.reads_out = path.reads_in = 1;
	return port->rails->ops->qp_connect(port->selfread.qp, &path);
}

static int
open_it(struct rail_port *port)
{
	struct selfread *self = &port->selfread;
	const struct verbs_ops *ops = port->rails->ops;
	struct verbs_device *device = port->opened->device;
	uint32_t qpn = 0;
	self->data = pinned_pages_map(DATA_BYTES);
	int rc = self->data ? ops->reg(device, self->data, DATA_BYTES, (uintptr_t)self->data,
				      VERBS_LOCAL_WRITE | VERBS_REMOTE_READ, &self->mr)
			    : -ENOMEM;
	if (rc == 0)
		rc = ops->cq_new(device, 4, &self->cq);
	if (rc == 0)
		rc = ops->qp_new(device, self->cq, 2, &self->qp, &qpn);
	return rc == 0 ? connect_to_itself(port, qpn) : rc;
}

static const char *
selfread_describe(enum verbs_status status)
{
	switch (status) {
	case VERBS_FLUSHED:
		return "its queue pair failed";
	case VERBS_ACCESS:
		return "the device refuses access";
	case VERBS_LOCAL:
		return "the device refuses the request";
	case VERBS_GONE:
		return "the device does not answer";
	case VERBS_OK:
	case VERBS_OTHER:
		break;
	}
	return "the device reports an error";
}

/* 0, or a code and why. */
static int
read_one(struct rail_port *port, const struct verbs_read *read, struct th_err *ret_err)
{
	const struct verbs_ops *ops = port->rails->ops;
	int64_t wait_ns = port->rails->config.selfread_ns, until_ns = th_now_ns() + wait_ns;
	struct verbs_done done;
	int got = ops->post_reads(port->selfread.qp, read, 1);
	if (got != 0)
		return th_fail(ret_err, -EREMOTEIO, "the device takes no request");
	while ((got = ops->cq_poll(port->selfread.cq, &done, 1)) == 0) {
		if (!selfread_is_there(port))
			return th_fail(ret_err, -ENODEV, "the device is gone");
		if (th_now_ns() >= until_ns)
			return th_fail(ret_err, -ETIMEDOUT, "it did not end within %" PRId64 " ms",
				wait_ns / 1000000);
		(void)nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
	}
	if (got < 0)
		return th_fail(ret_err, got, "%s", th_strerror(got));
	if (done.status != VERBS_OK)
		return th_fail(ret_err, -EREMOTEIO, "%s", selfread_describe(done.status));
	return 0;
}

/* A new one, which has READ memory of our own. */
static int
selfread_make(struct rail_port *port, struct th_err *ret_err)
{
	struct selfread *self = &port->selfread;
	int rc = open_it(port);
	if (rc < 0)
		return th_fail(ret_err, rc, "%s", th_strerror(rc));
	uint64_t at = (uintptr_t)self->data;
	const struct verbs_read own = {.local = at,
		.remote = at + DATA_BYTES / 2,
		.lkey = self->mr.lkey,
		.rkey = self->mr.rkey,
		.bytes = OWN_BYTES,
		.signalled = true};
	return read_one(port, &own, ret_err);
}

/* ---- trying it ---------------------------------------------------------------------------- */

int
selfread_try(struct rail_port *port, const struct verbs_mr *mr, uint64_t address, uint64_t bytes,
	struct th_err *ret_err)
{
	struct selfread *self = &port->selfread;
	struct th_err why = {0};
	uint32_t up = rails_up(port->rails) >> selfread_index_of(port) & 1;
	if (!up || th_now_ns() < self->not_before_ns)
		return 0;
	bool is_new;
	do {
		is_new = !self->qp;
		if (is_new && selfread_make(port, &why) < 0) {
			log_info("rdma",
				"%s does not reach itself, so whether it can read GPU memory is "
				"not known: %s",
				port->name, why.text);
			selfread_close(port);
			self->not_before_ns = th_now_ns() + PAUSE_NS;
			return selfread_is_there(port) ? 0 : -ENODEV;
		}
		const struct verbs_read read = {.local = (uintptr_t)self->data,
			.remote = address,
			.lkey = self->mr.lkey,
			.rkey = mr->rkey,
			.bytes = (uint32_t)th_min_u64(bytes, DATA_BYTES),
			.signalled = true};
		if (read_one(port, &read, &why) == 0)
			return 0;
		selfread_close(port);
		if (!selfread_is_there(port))
			return -ENODEV;
	} while (!is_new); /* an older one may be broken: its port's address was another */
	char size[TH_UNITS_BYTES];
	return th_fail(ret_err, -EREMOTEIO,
		"%s cannot read this GPU's memory: a READ of %s of it by the device itself failed: "
		"%s: bytes go through the host's memory, see tensorhub-cuda(7)",
		port->name, th_print_size_short(th_min_u64(bytes, DATA_BYTES), size), why.text);
}
