/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_wire - I10 and I17 at the way out of a server: one OUTCOME for each call and member, and
 * nothing of a member for another agent than its own. C6: who is set back for failing two readers
 * has failed two.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/check.h"

#define OWNERS_MAX 4096u /* powers of two */
#define TOLD_MAX 16384u
#define BLAMES_MAX 64u

static struct {
	struct owner {
		uint64_t sid;
		uint32_t host;
	} owners[OWNERS_MAX];
	struct told { /* an OUTCOME */
		uint64_t server_inc, sid, op_seq, number;
	} told[TOLD_MAX];
	struct blame { /* a reader has said that a source failed it */
		uint64_t server_inc, reader_inc;
	} blames[BLAMES_MAX];
	uint32_t num_blames;
	uint64_t last_event[SERVERS_MAX], last_inc[SERVERS_MAX];
} record;

void
check_wire_start(void)
{
	memset(&record, 0, sizeof(record));
}

/* Where a key stands, or a free place; the tables are large enough for what a run does. */
static uint32_t
place(uint64_t a, uint64_t b, uint32_t max)
{
	uint64_t state = a ^ b << 17;

	return (uint32_t)(th_splitmix64(&state) & (max - 1));
}

void
check_wire_opened(uint64_t sid, const struct host *host)
{
	struct owner *owner = &record.owners[place(sid, 0, OWNERS_MAX)];

	owner->sid = sid;
	owner->host = host->process.index;
}

static void
belongs(uint64_t sid, const struct host *host, const struct ctl_event *event)
{
	const struct owner *owner = &record.owners[place(sid, 0, OWNERS_MAX)];

	/* Another of the same place is not looked at. */
	if (owner->sid == sid && owner->host != host->process.index)
		sim_fail("I17", "event %d about session %" PRIu64 " of host %u is sent to host %u",
			(int)event->kind, sid, owner->host, host->process.index);
}

static void
outcome(const struct srv *srv, const struct ctl_event *event)
{
	const struct ctl_ev_outcome *ev = &event->u.outcome;
	struct told *told = &record.told[place(ev->sid, ev->op_seq, TOLD_MAX)];

	if (told->server_inc == srv->inc && told->sid == ev->sid && told->op_seq == ev->op_seq &&
		told->number != event->number)
		sim_fail("I10",
			"session %" PRIu64 " is told the outcome of operation %" PRIu64 " twice",
			ev->sid, ev->op_seq);
	*told = (struct told){srv->inc, ev->sid, ev->op_seq, event->number};
}

void
check_events(const struct srv *srv, const struct host *host, const struct ctl_poll_reply *poll)
{
	for (uint32_t i = 0; i < poll->num_events; i++) {
		const struct ctl_event *event = &poll->events[i];
		uint64_t sid = 0;
		if (event->kind == CTL_EV_OUTCOME) {
			outcome(srv, event);
			sid = event->u.outcome.sid;
		} else if (event->kind == CTL_EV_PLAN) {
			sid = event->u.plan.sid;
		} else if (event->kind == CTL_EV_GO) {
			sid = event->u.go.sid;
		} else if (event->kind == CTL_EV_GRANT) {
			sid = event->u.grant.sid;
		} else if (event->kind == CTL_EV_DRAIN || event->kind == CTL_EV_UNDRAIN) {
			sid = event->u.drain.sid;
		}
		if (sid != 0)
			belongs(sid, host, event);
	}
}

/* ---- blame ----------------------------------------------------------------------------------- */

static uint32_t
readers_that_blame(const struct srv *srv)
{
	uint64_t first = 0;

	for (uint32_t i = 0; i < th_min_u32(record.num_blames, BLAMES_MAX); i++) {
		const struct blame *blame = &record.blames[i];
		if (blame->server_inc != srv->inc)
			continue;
		if (first != 0 && blame->reader_inc != first)
			return 2;
		first = blame->reader_inc;
	}
	return first == 0 ? 0 : 1;
}

static void
look_at_log(struct srv *srv)
{
	uint32_t s = srv->process.index;
	struct ctl_admin_reply reply;

	if (record.last_inc[s] != srv->inc)
		record.last_event[s] = 0;
	record.last_inc[s] = srv->inc;
	const struct ctl_admin admin = {.verb = CTL_ADMIN_EVENTS, .after = record.last_event[s]};
	if (srv_admin(srv, &admin, &reply) != 0)
		return;
	for (uint32_t i = 0; i < reply.num_events; i++) {
		const struct ctl_log_entry *entry = &reply.events[i];
		record.last_event[s] = entry->number;
		if (strstr(entry->text, "failed two readers") != NULL &&
			readers_that_blame(srv) < 2)
			sim_fail("C6", "one reader is all that blames, and: %s", entry->text);
	}
}

void
check_blame(struct srv *srv, const struct ctl_request *request)
{
	if (request->kind != CTL_LEG_END || !request->u.leg_end.source_failed)
		return;
	record.blames[record.num_blames++ % BLAMES_MAX] =
		(struct blame){srv->inc, request->agent_inc};
	if (readers_that_blame(srv) < 2)
		look_at_log(srv);
}
