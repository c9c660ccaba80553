/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tickets - which tickets the data port knows, and who waits with one that it does not know yet.
 *
 * A grant of the server and the reader that it is for travel different ways: either may come
 * first. A grant is good for one knock, and so is a knock for one grant. Tickets are secrets: all
 * are compared, in constant time, whichever matches.
 *
 * No I/O, no clock, no memory of its own: grants and knocks are fields of the caller's objects.
 * Here the acceptor's thread runs it, in tests/sim the simulated hosts do.
 */
#ifndef TH_TRANSPORT_LEG_TICKETS_H
#define TH_TRANSPORT_LEG_TICKETS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "ipc/base/ctl.h"

struct ticket_grant { /* from the word to expect it until its leg has ended */
	LIST_ENTRY(ticket_grant) entry;
	struct th_ticket ticket;
	bool taken; /* somebody came with it */
};

struct ticket_knock { /* while it waits for its grant */
	LIST_ENTRY(ticket_knock) entry;
	struct th_ticket ticket;
};

LIST_HEAD(ticket_grants, ticket_grant);
LIST_HEAD(ticket_knocks, ticket_knock);

struct tickets { /* zero: none */
	struct ticket_grants grants;
	struct ticket_knocks knocks;
	uint32_t num_knocks;
};

/* grant->ticket is set. Returns who has waited for it, and waits no more, or NULL. */
struct ticket_knock *tickets_expect(struct tickets *tickets, struct ticket_grant *grant);
/* Before the grant's memory goes. A ticket of which this was said is as if never granted. */
void tickets_end(struct tickets *tickets, struct ticket_grant *grant);

/* knock->ticket is set. 0: *ret_grant is taken by it; -EAGAIN: it waits; TH_E_DENIED: another has
 * presented this ticket before. */
int tickets_knock(
	struct tickets *tickets, struct ticket_knock *knock, struct ticket_grant **ret_grant);
/* It waits no more. */
void tickets_leave(struct tickets *tickets, struct ticket_knock *knock);
/* Who waits with this ticket; NULL: nobody. */
struct ticket_knock *tickets_waiting(const struct tickets *tickets, const struct th_ticket *ticket);

#endif
