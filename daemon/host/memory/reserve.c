/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reserve - see reserve.h. Main thread only.
 */
#include "daemon/host/memory/reserve.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/host/host.h"
#include "daemon/host/memory/host_pool.h"
#include "daemon/host/worker/tensor_places.h"
#include "ipc/base/alloc.h"
#include "ipc/base/log.h"
#include "ipc/base/name.h"
#include "ipc/base/units.h"

struct reservation {
	struct reservation *prev, *next; /* borrows: of host->reservations */
	struct host *host;
	uint64_t id; /* the core's */
	struct ctl_ev_reserve ev;
	bool cancelled;                /* answered; freed when what it waits for has come */
	struct tensors *tensors;       /* owns */
	struct offload_memory *memory; /* owns */
};

static void
reserve_destroy(struct reservation *reservation)
{
	DL_DELETE(reservation->host->reservations, reservation);
	tensors_free(reservation->tensors);
	offload_release(reservation->memory);
	free(reservation);
}

static void
reserve_post(struct host *host, uint64_t id, uint64_t session, const struct th_err *result)
{
	struct agent_event event = {.kind = AGENT_EV_RESERVED, .session = session};
	event.u.reserved.id = id;
	event.u.reserved.code = result->code;
	snprintf(event.u.reserved.text, sizeof(event.u.reserved.text), "%s", result->text);
	engine_post(host, &event);
}

static void
reserve_refuse(struct reservation *reservation, const struct th_err *why)
{
	struct host *host = reservation->host;
	const struct ctl_ev_reserve *ev = &reservation->ev;
	struct th_err result;
	th_fail(&result, why->code, "node %.200s: %.280s", host->options.node, why->text);
	host->counters.reservations_refused++;
	log_warn("offload",
		"refused model=%s replica=%s shard=%" PRIu32 " version=%" PRIu64
		" code=%s reason=\"%s\"",
		ev->model, ev->replica, ev->shard, ev->version.version, th_errname(why->code),
		why->text);
	reserve_post(host, reservation->id, 0, &result);
	reserve_destroy(reservation);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void
memory_made(void *arg, const struct th_err *result)
{
	struct reservation *reservation = arg;
	struct host *host = reservation->host;
	const struct ctl_ev_reserve *ev = &reservation->ev;
	const struct th_err none = {0};
	char size[TH_UNITS_BYTES];
	if (result->code != 0) {
		reservation->memory = NULL;
		reserve_refuse(reservation, result);
		return;
	}
	if (host->gpu.gpus)
		offload_offer(reservation->memory, host->gpu.gpus);
	tensors_place(reservation->tensors, offload_data(reservation->memory),
		offload_file(reservation->memory), offload_host(reservation->memory));
	uint64_t session = session_internal(host, ev, reservation->tensors, reservation->memory);
	host->counters.reservations++;
	log_info("offload",
		"reserved session=%" PRIu64 " model=%s replica=%s shard=%" PRIu32
		" version=%" PRIu64 " bytes=%s used=%" PRIu64,
		session, ev->model, ev->replica, ev->shard, ev->version.version,
		th_print_size_short(offload_bytes(reservation->memory), size),
		offload_used(host->offload));
	session_cover(session_find(host, session));
	reservation->tensors = NULL; /* the session's from here on */
	reservation->memory = NULL;
	reserve_post(host, reservation->id, session, &none);
	reserve_destroy(reservation);
}

/* ---- what it consists of --------------------------------------------------------------------- */

static int
reserve_lay_out(
	struct reservation *reservation, const uint8_t *data, size_t bytes, struct th_err *err)
{
	const struct ctl_ev_reserve *ev = &reservation->ev;
	struct host *host = reservation->host;
	uint64_t needed;
	int rc = tensors_of_manifest(data, bytes, err, &reservation->tensors, &needed);
	if (rc < 0)
		return rc;
	const struct tensors *tensors = reservation->tensors;
	if (!th_hash_equal(tensors->layout, ev->layout) || tensors->table->bytes != ev->bytes ||
		tensors->table->num_chunks != ev->num_chunks)
		return th_fail(err, TH_E_PROTOCOL,
			"the manifest is not that of the shard that is to be kept");
	reservation->memory = offload_start(host->offload, needed, memory_made, reservation, err);
	return reservation->memory ? 0 : err->code;
}

static void
reserve_manifest_got(void *arg, const struct th_err *result, const uint8_t *data, size_t bytes)
{
	struct reservation *reservation = arg;
	struct th_err err = *result;
	if (reservation->cancelled) {
		reserve_destroy(reservation);
		return;
	}
	if (err.code == 0)
		(void)reserve_lay_out(reservation, data, bytes, &err);
	if (err.code != 0)
		reserve_refuse(reservation, &err);
}

/* A session of this agent that has registered the very same; NULL: none. */
static const struct tensors *
find_tensors(struct host *host, uint64_t first, struct th_hash key)
{
	const struct host_session *session = session_find(host, first);
	if (session && session->registration.tensors &&
		th_hash_equal(session->registration.tensors->key, key))
		return session->registration.tensors;
	for (session = host->sessions; session; session = session->hh.next) {
		const struct tensors *tensors = session->registration.tensors;
		if (tensors && th_hash_equal(tensors->key, key))
			return tensors;
	}
	return NULL;
}

void
reserve_begin(struct host *host, const struct agent_action *action)
{
	struct reservation *reservation = th_calloc(1, sizeof(*reservation));
	const struct ctl_ev_reserve *ev = &action->u.reserve.ev;
	struct th_err err = {0};
	*reservation = (struct reservation){.host = host, .id = action->u.reserve.id, .ev = *ev};
	DL_APPEND(host->reservations, reservation);
	if (host->stopping) {
		th_fail(&err, TH_E_NOMEM_RETAIN, "the agent is shutting down");
		reserve_refuse(reservation, &err);
		return;
	}
	/* Before anything is fetched for it. */
	if (offload_check(host->offload, ev->bytes, &err) < 0) {
		reserve_refuse(reservation, &err);
		return;
	}
	const struct tensors *same =
		find_tensors(host, action->u.reserve.source_session, ev->manifest);
	if (!same)
		blob_get(host, ev->manifest, reserve_manifest_got, reservation);
	else if (reserve_lay_out(reservation, same->encoded, same->encoded_bytes, &err) < 0)
		reserve_refuse(reservation, &err);
}

void
reserve_cancel(struct host *host, const struct agent_action *action)
{
	struct reservation *reservation;
	struct th_err result;
	DL_FOREACH(host->reservations, reservation)
	{
		if (reservation->id == action->u.reserve.id && !reservation->cancelled)
			break;
	}
	if (!reservation)
		return; /* its answer is on the way to the core */
	th_fail(&result, TH_E_CANCELLED, "not wanted any more");
	reserve_post(host, reservation->id, 0, &result);
	reservation->cancelled = true;
	/* Without memory it waits for its manifest, which comes or fails. */
	if (reservation->memory)
		reserve_destroy(reservation);
}

void
reserves_free(struct host *host)
{
	while (host->reservations)
		reserve_destroy(host->reservations);
}
