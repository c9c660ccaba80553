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

static struct {
	struct owner {
		uint64_t sid;
		uint32_t host;
	} owners[OWNERS_MAX];
	struct told { /* an OUTCOME */
		uint64_t server_inc, sid, op_seq, number;
	} told[TOLD_MAX];
	/* Of a server: who has said of a host that it failed him; the last two of them. */
	uint64_t blames[SERVERS_MAX][HOSTS_MAX][2];
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
		check_risk_event(host, event);
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

static void
blamed(uint64_t readers[2], uint64_t reader_inc)
{
	if (readers[0] == reader_inc)
		return;
	readers[1] = readers[0];
	readers[0] = reader_inc;
}

/* Of a leg that never began it is not known whom it was to read: it may have been any of them. */
static const struct host *
source_of(uint64_t server_number)
{
	for (const struct leg *leg = world.legs; leg != NULL; leg = leg->next) {
		if (leg->server_number == server_number)
			return leg->from_host;
	}
	return NULL;
}

static void
look_at_log(struct srv *srv)
{
	uint32_t s = srv->process.index;
	struct ctl_admin_reply reply;
	const struct ctl_admin admin = {.verb = CTL_ADMIN_EVENTS, .after = record.last_event[s]};

	if (srv_admin(srv, &admin, &reply) != 0)
		return;
	for (uint32_t i = 0; i < reply.num_events; i++) {
		const struct ctl_log_entry *entry = &reply.events[i];
		unsigned node;
		record.last_event[s] = entry->number;
		if (strstr(entry->text, "failed two readers") != NULL &&
			(sscanf(entry->text, "agent node%u ", &node) != 1 || node >= HOSTS_MAX ||
				record.blames[s][node][1] == 0))
			sim_fail("C6", "one reader is all that blames, and: %s", entry->text);
	}
}

void
check_blame(struct srv *srv, const struct ctl_request *request)
{
	uint32_t s = srv->process.index;

	if (request->kind != CTL_LEG_END || !request->u.leg_end.source_failed)
		return;
	if (record.last_inc[s] != srv->inc) {
		record.last_event[s] = 0;
		memset(record.blames[s], 0, sizeof(record.blames[s]));
	}
	record.last_inc[s] = srv->inc;
	const struct host *source = source_of(request->u.leg_end.leg);
	for (uint32_t i = 0; i < HOSTS_MAX; i++) {
		if (source == NULL || source->process.index == i)
			blamed(record.blames[s][i], request->agent_inc);
	}
	look_at_log(srv);
}
