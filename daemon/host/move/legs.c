/* SPDX-License-Identifier: Apache-2.0 */
/*
 * legs - see legs.h: legs in and out. Parts and hashing are in shared_parts.c. Main thread only.
 */
#include "daemon/host/move/legs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/host/host.h"
#include "daemon/host/move/shared_parts.h"
#include "daemon/host/move/way.h"
#include "daemon/host/worker/ring_channel.h"
#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "ipc/base/failpoint.h"
#include "ipc/base/log.h"
#include "ipc/base/units.h"

#define EVENTS_A_CALL 64
#define CALLS_A_WAKEUP 8
#define FORBIDDEN_TIMES 4u

struct leg {
	UT_hash_handle hh;
	uint64_t leg;        /* the core's number */
	uint64_t server_leg; /* for logs and beats */
	bool out, stopped;
	bool begun; /* of a leg out: its reader has come */
	uint64_t session;
	uint64_t source, source_gen; /* whose part is read; 0: not one of this agent */
	struct xfer_part *xfer;      /* owns: a reference */
	unsigned flags;              /* enum transport_flag */
	int64_t start_ns;
	uint64_t start_bytes; /* of the part that were there at the start */
	uint64_t start_moved; /* what other legs had brought to it by then */
	/* Of a leg in: */
	uint64_t source_sid, gen; /* of the grant, and of the part that it fills */
	struct ctl_path path;     /* how its bytes go, once that is known; the last beat's rate */
	char peer[TH_CTL_TEXT_BYTES]; /* where they come from */
};

static struct leg *
legs_find(struct host *host, uint64_t number)
{
	struct leg *leg;
	HASH_FIND(hh, host->legs.legs, &number, sizeof(number), leg);
	return leg;
}

static struct leg *
legs_add(struct host *host, const struct agent_action *action, struct xfer_part *xfer)
{
	struct leg *leg = th_calloc(1, sizeof(*leg));
	leg->leg = action->u.leg.leg;
	leg->server_leg = action->u.leg.grant.leg;
	leg->session = action->session;
	leg->xfer = xfer_part_retain(xfer);
	leg->start_ns = th_now_ns();
	leg->start_bytes = xfer_part_prefix_bytes(xfer);
	leg->start_moved = xfer_part_bytes_moved(xfer);
	HASH_ADD(hh, host->legs.legs, leg, sizeof(leg->leg), leg);
	return leg;
}

static void
legs_drop(struct host *host, struct leg *leg)
{
	HASH_DEL(host->legs.legs, leg);
	xfer_part_release(leg->xfer);
	free(leg);
}

/* By its handle. */
static bool
is_required(struct host *host, uint64_t id)
{
	const struct host_session *session = session_find(host, id);
	return session && (session->open.flags & CTL_OPEN_REQUIRE_RDMA) != 0;
}

/* ---- legs in -------------------------------------------------------------------------------- */

/* A leg that cannot begin ends like one that failed at its first byte. */
static void
fail_at_once(struct host *host, const struct agent_action *action, int code, bool source_failed,
	const char *text)
{
	struct agent_event event = {.kind = AGENT_EV_LEG_FAILED, .session = action->session};
	event.u.leg.leg = action->u.leg.leg;
	event.u.leg.code = code;
	event.u.leg.source_failed = source_failed;
	snprintf(event.u.leg.text, sizeof(event.u.leg.text), "%s", text);
	host->counters.legs_refused++;
	log_warn("leg", "not started leg=%" PRIu64 " code=%s reason=\"%s\"",
		action->u.leg.grant.leg, th_errname(code), text);
	engine_post(host, &event);
}

/* What may become of it. */
static const char *
way_text(const struct host *host, const struct leg *leg)
{
	if (leg->path.name[0] != '\0')
		return leg->path.name;
	if (fabric_why_not(host))
		return "tcp";
	return (leg->flags & TRANSPORT_REQUIRE_RDMA) ? "rdma" : "rdma,tcp";
}

static void
log_start(struct host *host, const struct leg *leg)
{
	char label[SESSION_LABEL_BYTES];
	char size[TH_UNITS_BYTES];
	const struct host_session *session = session_find(host, leg->session);
	log_info("leg", "%s leg=%" PRIu64 " shard=%s bytes=%s left=%" PRIu64 " verify=%s way=%s%s",
		leg->out ? "serving" : "pulling", leg->server_leg,
		session ? session_label(session, label) : "?",
		th_print_size_short(xfer_part_table(leg->xfer)->bytes, size),
		xfer_part_table(leg->xfer)->bytes - xfer_part_prefix_bytes(leg->xfer),
		xfer_part_verify(leg->xfer) ? "full" : "off", way_text(host, leg), leg->peer);
}

static void
show_progress(struct host *host, const struct leg *leg)
{
	struct host_session *session = session_find(host, leg->session);
	if (session && !ctl_op_automatic(leg->gen))
		operations_progress(session, xfer_part_prefix_bytes(leg->xfer),
			xfer_part_table(leg->xfer)->bytes);
}

/* To another host. What is not allowed at all was refused before (way_there). */
static void
legs_choose_way(struct host *host, struct leg *leg, bool far)
{
	const char *why;
	leg->flags = way_choose(&host->options, fabric_why_not(host) == NULL,
		is_required(host, leg->session), far, &why);
	if (leg->flags & TRANSPORT_NO_RDMA)
		snprintf(leg->path.name, sizeof(leg->path.name), "tcp");
	if (why)
		snprintf(leg->path.why, sizeof(leg->path.why), "%s", why);
}

/* Who follows has not called, so that nobody has looked (ring_channel.c). */
static int
legs_check_pages(struct host *host, const struct agent_action *action, struct th_err *err)
{
	const struct host_session *session = session_find(host, action->session);
	const struct tensors *tensors = session ? session->registration.tensors : NULL;
	if (!ctl_op_automatic(action->u.leg.gen) || !tensors)
		return 0;
	return operations_has_pages(tensors, true, err);
}

static void
legs_begin(struct host *host, const struct agent_action *action, struct xfer_part *xfer,
	struct xfer_part *source)
{
	struct xfer_part *donor =
		parts_find(host, action->u.leg.donor_session, action->u.leg.donor_gen);
	const struct ctl_grant *grant = &action->u.leg.grant;
	struct th_err err;
	if (legs_check_pages(host, action, &err) < 0) {
		fail_at_once(host, action, err.code, false, err.text);
		return;
	}
	struct leg *leg = legs_add(host, action, xfer);
	if (source)
		TH_FP(agent_copies);
	else
		TH_FP(agent_pulls);
	leg->source_sid = grant->source_sid;
	leg->gen = action->u.leg.gen;
	if (source) {
		snprintf(leg->path.name, sizeof(leg->path.name), "local");
		snprintf(leg->peer, sizeof(leg->peer),
			" from=%.200s why=\"both shards are on this host\"", grant->source_replica);
	} else {
		legs_choose_way(host, leg, grant->far);
		bool why = leg->path.why[0] != '\0';
		snprintf(leg->peer, sizeof(leg->peer),
			" from=%.160s node=%.160s address=%.80s%s%.64s%s", grant->source_replica,
			grant->source_node, grant->source_address, why ? " why=\"" : "",
			leg->path.why, why ? "\"" : "");
	}
	int rc = source ? transport_copy(host->transport, leg->leg, source, xfer)
			: transport_pull(host->transport, leg->leg, grant->source_address,
				  &grant->ticket, xfer, donor, leg->flags);
	if (rc < 0) {
		char text[TH_CTL_TEXT_BYTES];
		snprintf(text, sizeof(text), "the leg cannot be started: %s", th_strerror(rc));
		legs_drop(host, leg);
		fail_at_once(host, action, th_code_or(rc, TH_E_NO_PATH), true, text);
		return;
	}
	if (source) {
		leg->source = action->u.leg.source_session;
		leg->source_gen = action->u.leg.source_gen;
	}
	log_start(host, leg);
	show_progress(host, leg);
}

/*
 * No allowed way leads to this source. The server is asked for another one; when it has only this
 * one to offer, the operation must end and say so, not wait for a way that no time will open.
 */
static bool
is_forbidden_again(struct host *host, uint64_t id, uint64_t source, uint64_t gen)
{
	struct host_session *session = session_find(host, id);
	/* Of this operation: the next one's version may be on another host as well. */
	bool same = session && session->forbidden_gen == gen;
	/* Partial copies come and go: two of them may be offered in turn for ever. */
	bool again = same && (session->forbidden_source == source ||
				     session->forbidden_times >= FORBIDDEN_TIMES);
	if (session) {
		session->forbidden_times = same ? session->forbidden_times + 1 : 1;
		session->forbidden_source = source;
		session->forbidden_gen = gen;
	}
	return again;
}

static void
fail_forbidden(struct host *host, const struct agent_action *action, const char *text)
{
	bool again = is_forbidden_again(
		host, action->session, action->u.leg.grant.source_sid, action->u.leg.gen);
	fail_at_once(host, action, TH_E_NO_PATH, !again, text);
}

/* Whether a way to another host is allowed and there; why not. */
static bool
way_there(struct host *host, uint64_t id, bool far, char ret_text[TH_CTL_TEXT_BYTES])
{
	const char *why_not = fabric_why_not(host);
	const char *no_tcp = way_why_no_tcp(&host->options, is_required(host, id), far);
	if (!why_not || !no_tcp)
		return true;
	snprintf(ret_text, TH_CTL_TEXT_BYTES, "the source is on another host, %s, and %s", no_tcp,
		why_not);
	return false;
}

void
legs_pull(struct host *host, const struct agent_action *action)
{
	char text[TH_CTL_TEXT_BYTES];
	struct xfer_part *part = parts_find(host, action->session, action->u.leg.gen);
	if (!part)
		fail_at_once(host, action, TH_E_STATE, false, "the shard's memory is gone");
	else if (!way_there(host, action->session, action->u.leg.grant.far, text))
		fail_forbidden(host, action, text);
	else
		legs_begin(host, action, part, NULL);
}

void
legs_copy(struct host *host, const struct agent_action *action)
{
	struct xfer_part *part = parts_find(host, action->session, action->u.leg.gen);
	struct xfer_part *source =
		parts_find(host, action->u.leg.source_session, action->u.leg.source_gen);
	if (!part)
		fail_at_once(host, action, TH_E_STATE, false, "the shard's memory is gone");
	else if (!source)
		fail_at_once(
			host, action, TH_E_VERSION_LOST, true, "the source on this host is gone");
	else if (!host->options.transport_local)
		fail_forbidden(host, action,
			"the source is on this host and local is left out of --transport");
	else
		legs_begin(host, action, part, source);
}

void
legs_donor_drop(struct host *host, const struct agent_action *action)
{
	if (legs_find(host, action->u.leg.leg)) /* else its end is on the way to the core */
		transport_drop_donor(host->transport, action->u.leg.leg);
}

void
legs_stop(struct host *host, const struct agent_action *action)
{
	struct leg *leg = legs_find(host, action->u.leg.leg);
	if (!leg || leg->out)
		return; /* its end is on the way to the core */
	leg->stopped = true;
	transport_stop(host->transport, leg->leg);
}

/* Of what has arrived since the leg began. */
static const struct ctl_path *
path_now(struct leg *leg)
{
	int64_t ns = th_now_ns() - leg->start_ns;
	uint64_t bytes = xfer_part_prefix_bytes(leg->xfer) - leg->start_bytes;
	leg->path.rate = ns > 0 ? (uint64_t)((double)bytes * 1e9 / (double)ns) : 0;
	return &leg->path;
}

uint32_t
legs_progress(struct host *host, struct ctl_leg_progress **ret_legs)
{
	uint32_t count = 0;
	struct ctl_leg_progress *progress =
		th_calloc(HASH_COUNT(host->legs.legs) + 1, sizeof(*progress));
	for (struct leg *leg = host->legs.legs; leg; leg = leg->hh.next) {
		if (leg->out || leg->stopped || count >= CONVERT_BEAT_LEGS_MAX)
			continue;
		progress[count++] = (struct ctl_leg_progress){.leg = leg->server_leg,
			.chunks_verified = xfer_part_prefix(leg->xfer),
			.path = path_now(leg),
			.bytes_moved = xfer_part_bytes_moved(leg->xfer) - leg->start_moved};
	}
	*ret_legs = progress;
	return count;
}

/* What a leg achieved, for the log: bytes, rate and path. */
static void
legs_log_end(const struct leg *leg, const struct transport_event *event, int code)
{
	char size[TH_UNITS_BYTES], took[TH_UNITS_BYTES], rate[TH_UNITS_BYTES];
	char reused[TH_UNITS_BYTES], donated[TH_UNITS_BYTES];
	int64_t ns = th_now_ns() - leg->start_ns;
	double seconds = ns > 0 ? (double)ns / 1e9 : 1e-9;
	const char *word = event->fallback[0] != '\0' ? " fallback=\""
			   : event->copy[0] != '\0'   ? " copy=\""
						      : "";
	const char *why = event->fallback[0] != '\0' ? event->fallback : event->copy;
	log_write(code == 0 ? LOG_LEVEL_INFO : LOG_LEVEL_WARN, "leg",
		"%s leg=%" PRIu64
		" moved=%s reused=%s donated=%s took=%s rate=%s/s path=%s%s%s%s%s%s%s%s%s%s",
		leg->out                           ? "served"
		: code == 0                        ? "done"
		: event->kind == TRANSPORT_STOPPED ? "stopped"
						   : "failed",
		leg->server_leg, th_print_size_short(event->bytes_moved, size),
		th_print_size_short(event->bytes_reused, reused),
		th_print_size_short(event->bytes_donated, donated),
		th_print_duration_short(ns, took),
		th_print_size_short((uint64_t)((double)event->bytes_moved / seconds), rate),
		event->transport[0] != '\0' ? event->transport : "none", word, why,
		word[0] != '\0' ? "\"" : "", leg->peer,
		code == 0 ? "" : " code=", code == 0 ? "" : th_errname(code),
		code == 0 ? "" : " reason=\"", code == 0 ? "" : event->text, code == 0 ? "" : "\"");
}

static void
in_ended(struct host *host, struct leg *leg, const struct transport_event *event)
{
	struct agent_event report = {.session = leg->session};
	TH_FP(agent_leg_in_over);
	struct agent_leg_report *out = &report.u.leg;
	out->leg = leg->leg;
	out->chunks_verified = xfer_part_prefix(leg->xfer);
	out->bytes_moved = event->bytes_moved;
	out->bytes_reused = event->bytes_reused + event->bytes_donated;
	out->transfer_ns = event->transfer_ns;
	out->verify_ns = event->verify_ns;
	out->overwrote = event->overwrote;
	memcpy(out->transport, event->transport, sizeof(out->transport));
	memcpy(out->text, event->text, sizeof(out->text));
	if (event->kind == TRANSPORT_DONE) {
		report.kind = AGENT_EV_LEG_DONE;
		out->content = xfer_part_content(leg->xfer);
		out->overwrote = true;
	} else if (event->kind == TRANSPORT_FAILED) {
		report.kind = AGENT_EV_LEG_FAILED;
		out->code = event->code;
		out->source_failed = event->source_failed;
		/* The only way that is allowed does not lead to this source. One that may go by TCP
		 * has its fallback, and fails for other reasons. */
		if (out->source_failed && (leg->flags & TRANSPORT_REQUIRE_RDMA) &&
			event->code == TH_E_NO_PATH && event->fallback[0] != '\0')
			out->source_failed =
				!is_forbidden_again(host, leg->session, leg->source_sid, leg->gen);
	} else {
		report.kind = AGENT_EV_LEG_STOPPED;
		out->code = TH_E_CANCELLED;
	}
	show_progress(host, leg);
	legs_log_end(leg, event, out->code);
	if (event->fallback[0] != '\0' && leg->source == 0) /* a copy's is no matter of RDMA */
		fabric_fell_back(host, event->fallback);
	if (event->copy[0] != '\0')
		fabric_copied(host, event->copy);
	if (leg->source != 0 && out->code == TH_E_STALE_MEMORY && out->source_failed)
		parts_lost(host, leg->source, leg->source_gen, event->row);
	legs_drop(host, leg);
	engine_post(host, &report);
}

/* ---- legs out ------------------------------------------------------------------------------- */

static void
post_out(struct host *host, enum agent_event_kind kind, uint64_t number)
{
	struct agent_event event = {.kind = kind, .u.out_leg = number};
	engine_post(host, &event);
}

void
legs_expect(struct host *host, const struct agent_action *action)
{
	const struct th_ticket *ticket = &action->u.leg.grant.ticket;
	struct xfer_part *part = parts_find(host, action->session, action->u.leg.gen);
	if (!part) {
		transport_refuse(host->transport, ticket, TH_E_VERSION_LOST, "this copy is gone");
		post_out(host, AGENT_EV_OUT_ENDED, action->u.leg.leg);
		return;
	}
	struct leg *leg = legs_add(host, action, part);
	leg->out = true;
	leg->source = action->session;
	leg->source_gen = action->u.leg.gen;
	leg->flags = action->u.leg.grant.far ? TRANSPORT_FAR : 0;
	transport_expect(host->transport, leg->leg, ticket, part, leg->flags);
}

void
legs_fence(struct host *host, const struct agent_action *action)
{
	struct leg *leg = legs_find(host, action->u.leg.leg);
	if (!leg || !leg->out)
		return; /* its end is on the way to the core */
	if (leg->begun)
		log_warn("leg",
			"fenced leg=%" PRIu64
			" reason=\"its reader takes nothing, or was replaced\"",
			leg->server_leg);
	transport_fence(host->transport, leg->leg);
}

static void
out_event(struct host *host, struct leg *leg, const struct transport_event *event)
{
	if (event->kind == TRANSPORT_BEGAN) {
		TH_FP(agent_serves);
		leg->begun = true;
		leg->start_ns = th_now_ns();
		log_start(host, leg);
		post_out(host, AGENT_EV_OUT_BEGAN, leg->leg);
	} else if (event->kind == TRANSPORT_STALLED) {
		log_warn("leg", "stalled leg=%" PRIu64 " reason=\"the reader takes nothing\"",
			leg->server_leg);
		post_out(host, AGENT_EV_OUT_STALLED, leg->leg);
	} else if (event->kind == TRANSPORT_RESUMED) {
		post_out(host, AGENT_EV_OUT_RESUMED, leg->leg);
	} else {
		uint64_t number = leg->leg;
		TH_FP(agent_leg_out_over);
		if (leg->begun)
			legs_log_end(leg, event, 0);
		if (event->copy[0] != '\0')
			fabric_copied(host, event->copy);
		if (event->code == TH_E_STALE_MEMORY)
			parts_lost(host, leg->source, leg->source_gen, event->row);
		legs_drop(host, leg);
		post_out(host, AGENT_EV_OUT_ENDED, number);
	}
}

uint32_t
legs_out_running(const struct host *host)
{
	uint32_t count = 0;
	for (const struct leg *leg = host->legs.legs; leg; leg = leg->hh.next)
		count += leg->out && leg->begun;
	return count;
}

/* Of a running leg in. */
static void
note_path(struct leg *leg, const struct transport_event *event)
{
	if (event->transport[0] != '\0')
		snprintf(leg->path.name, sizeof(leg->path.name), "%.15s", event->transport);
	const char *why = event->fallback[0] != '\0' ? event->fallback : event->copy;
	if (why[0] != '\0')
		snprintf(leg->path.why, sizeof(leg->path.why), "%.159s", why);
}

/* ---- events of the movers ------------------------------------------------------------------- */

static void
on_event(struct host *host, const struct transport_event *event)
{
	struct leg *leg;
	switch (event->kind) {
	case TRANSPORT_HASHED:
		parts_hashed(host, event->tag);
		break;
	case TRANSPORT_HASH_FAILED:
		parts_hash_failed(host, event->tag, event->row);
		break;
	case TRANSPORT_HASH_STOPPED:
		parts_hash_stopped(host, event->tag);
		break;
	case TRANSPORT_PROGRESS:
		leg = legs_find(host, event->leg);
		if (leg) {
			note_path(leg, event);
			show_progress(host, leg);
		}
		break;
	case TRANSPORT_DONE:
	case TRANSPORT_FAILED:
	case TRANSPORT_STOPPED:
		leg = legs_find(host, event->leg);
		if (leg && !leg->out)
			in_ended(host, leg, event);
		break;
	case TRANSPORT_DONOR_LEFT: {
		struct agent_event left = {.kind = AGENT_EV_DONOR_LEFT, .u.donor_leg = event->leg};
		engine_post(host, &left);
		break;
	}
	case TRANSPORT_CHANGED:
		leg = legs_find(host, event->leg);
		if (leg)
			parts_changed(host, leg->source, leg->source_gen, event->chunk);
		break;
	case TRANSPORT_BEGAN:
	case TRANSPORT_STALLED:
	case TRANSPORT_RESUMED:
	case TRANSPORT_ENDED:
		leg = legs_find(host, event->leg);
		if (leg && leg->out)
			out_event(host, leg, event);
		break;
	}
}

void
legs_transport_ready(void *arg, uint32_t events)
{
	struct host *host = arg;
	struct transport_event batch[4];
	(void)events;
	for (int call = 0; call < CALLS_A_WAKEUP * EVENTS_A_CALL; call++) {
		uint32_t count = transport_poll(host->transport, batch, TH_ARRAY_LEN(batch));
		for (uint32_t i = 0; i < count; i++)
			on_event(host, &batch[i]);
		if (count < TH_ARRAY_LEN(batch))
			return;
	}
}

void
legs_close(struct host *host)
{
	struct leg *leg, *next;
	HASH_ITER(hh, host->legs.legs, leg, next)
	{
		legs_drop(host, leg);
	}
	parts_close(host);
}
