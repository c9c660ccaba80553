/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tickets - see tickets.h.
 */
#include "transport/leg/tickets.h"

#include <errno.h>

#include "ipc/base/bytes.h"
#include "ipc/base/err.h"
#include "ipc/base/sim.h"

static bool
tickets_is_same(const struct th_ticket *a, const struct th_ticket *b)
{
	return th_bytes_same(a->bytes, b->bytes, sizeof(a->bytes));
}

struct ticket_knock *
tickets_waiting(const struct tickets *tickets, const struct th_ticket *ticket)
{
	struct ticket_knock *knock, *found = NULL;
	LIST_FOREACH(knock, &tickets->knocks, entry)
	{
		if (tickets_is_same(&knock->ticket, ticket))
			found = knock;
	}
	return found;
}

struct ticket_knock *
tickets_expect(struct tickets *tickets, struct ticket_grant *grant)
{
	struct ticket_knock *knock = tickets_waiting(tickets, &grant->ticket);
	LIST_INSERT_HEAD(&tickets->grants, grant, entry);
	grant->taken = knock != NULL;
	if (knock)
		tickets_leave(tickets, knock);
	return knock;
}

void
tickets_end(struct tickets *tickets, struct ticket_grant *grant)
{
	(void)tickets;
	LIST_REMOVE(grant, entry);
}

int
tickets_knock(struct tickets *tickets, struct ticket_knock *knock, struct ticket_grant **ret_grant)
{
	struct ticket_grant *grant, *found = NULL;
	LIST_FOREACH(grant, &tickets->grants, entry)
	{
		if (tickets_is_same(&grant->ticket, &knock->ticket))
			found = grant;
	}
	if (found && (!found->taken || TH_PLANT(ticket_taken_twice))) {
		found->taken = true;
		*ret_grant = found;
		return 0;
	}
	if (found || tickets_waiting(tickets, &knock->ticket)) {
		TH_MARK(i11_ticket_is_good_for_one);
		return TH_E_DENIED;
	}
	LIST_INSERT_HEAD(&tickets->knocks, knock, entry);
	tickets->num_knocks++;
	return -EAGAIN;
}

void
tickets_leave(struct tickets *tickets, struct ticket_knock *knock)
{
	LIST_REMOVE(knock, entry);
	tickets->num_knocks--;
}
