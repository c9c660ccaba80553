/* SPDX-License-Identifier: Apache-2.0 */
/*
 * event_log: numbers without a gap, a bounded ring, sentences cut where a character ends; and what
 * the server writes into it.
 */
#include "server/core/view/event_log.h"

#include <stdio.h>

#include "ipc/base/utf8.h"
#include "server/core/refsrv_state.h"
#include "tests/unit/server/refsrv_fixture.h"

TestSuite(event_log, .init = setup_empty, .fini = teardown);

Test(event_log, empty__nothing_after_any_number)
{
	cr_assert_null(event_log_after(w.server, 0));
	cr_assert_null(event_log_after(w.server, UINT64_MAX));
}

Test(event_log, one__has_what_was_given)
{
	event_log(w.server, EVENT_WARN, "m", "n", "%s %d", "seven", 7);
	const struct event_entry *entry = event_log_after(w.server, 0);
	cr_assert_eq(entry->number, 1);
	cr_assert_eq(entry->severity, EVENT_WARN);
	cr_assert_str_eq(entry->model, "m");
	cr_assert_str_eq(entry->node, "n");
	cr_assert_str_eq(entry->text, "seven 7");
	cr_assert_null(event_log_after(w.server, 1));
}

Test(event_log, about_none__names_are_empty)
{
	event_log(w.server, EVENT_INFO, NULL, NULL, "x");
	cr_assert_str_eq(event_log_after(w.server, 0)->model, "");
	cr_assert_str_eq(event_log_after(w.server, 0)->node, "");
}

Test(event_log, more_than_the_ring_holds__the_oldest_go)
{
	for (uint32_t i = 1; i <= EVENT_LOG_MAX + 10; i++)
		event_log(w.server, EVENT_INFO, NULL, NULL, "%u", i);
	uint64_t last = 0;
	uint32_t count = 0;
	const struct event_entry *entry;
	while ((entry = event_log_after(w.server, last)) != NULL) {
		char text[16];
		snprintf(text, sizeof(text), "%u", (unsigned int)entry->number);
		cr_assert_str_eq(entry->text, text);
		cr_assert(last == 0 || entry->number == last + 1);
		last = entry->number;
		count++;
	}
	cr_assert_eq(count, EVENT_LOG_MAX);
	cr_assert_eq(event_log_after(w.server, 0)->number, 11);
	cr_assert_eq(last, EVENT_LOG_MAX + 10);
}

Test(event_log, long_sentence__is_cut_between_characters)
{
	char text[2 * TH_CTL_TEXT_BYTES];
	for (size_t i = 0; i + 2 < sizeof(text); i += 2)
		memcpy(text + i, "\xc3\xa9", 2);
	text[sizeof(text) - 2] = '\0';
	event_log(w.server, EVENT_INFO, NULL, NULL, "%s", text);
	const struct event_entry *entry = event_log_after(w.server, 0);
	cr_assert_eq(strlen(entry->text), TH_CTL_TEXT_BYTES - 2);
	cr_assert(th_utf8_valid(entry->text, strlen(entry->text)));
}

/* ---- what is written ---- */

/* Takes the next that has this in its sentence; the number of the last one taken moves on. */
static const struct event_entry *
next_with(uint64_t *last, const char *part)
{
	const struct event_entry *entry;

	while ((entry = event_log_after(w.server, *last)) != NULL) {
		*last = entry->number;
		if (strstr(entry->text, part) != NULL)
			return entry;
	}
	cr_assert_fail("no event says \"%s\"", part);
	return NULL;
}

Test(event_log, life_of_an_agent__attached_suspect_back_dead)
{
	new_agents(2);
	uint64_t last = 0;
	struct world_member m = world_member(&w, a, "r", 0, 1);

	world_publish(&w, &m, "7");
	w.agents[a].silent = true;
	world_sleep(&w, 4 * SEC);
	w.agents[a].silent = false;
	world_sleep(&w, 2 * SEC);
	w.agents[a].silent = true;
	world_sleep(&w, 12 * SEC);
	const struct event_entry *entry = next_with(&last, "agent node0 is attached");
	cr_assert_eq(entry->severity, EVENT_INFO);
	cr_assert_str_eq(entry->node, "node0");
	next_with(&last, "agent node1 is attached");
	next_with(&last, "replica r of m is live with 1 shards");
	cr_assert_str_eq(next_with(&last, "version 7 of m is published by replica r")->model, "m");
	entry = next_with(&last, "agent node0 is suspect");
	cr_assert_eq(entry->severity, EVENT_WARN);
	cr_assert_eq(entry->at_ns, 3 * SEC);
	next_with(&last, "agent node0 is back");
	next_with(&last, "agent node0 is suspect");
	entry = next_with(&last, "agent node0 is dead");
	cr_assert_eq(entry->severity, EVENT_ERROR);
	cr_assert(strstr(entry->text, "1 open shards") != NULL);
	cr_assert_eq(next_with(&last, "replica r of m is broken")->severity, EVENT_WARN);
	cr_assert_eq(next_with(&last, "version 7 of m is gone")->severity, EVENT_WARN);
	(void)b;
}

Test(event_log, orderly_end__is_no_warning)
{
	new_agents(1);
	struct world_member m = world_member(&w, a, "r", 0, 1);
	uint64_t last = 0;

	world_publish(&w, &m, "7");
	unpublish(&m);
	cr_assert_eq(world_close(&w, &m, false), 0);
	cr_assert_eq(next_with(&last, "version 7 of m is given up")->severity, EVENT_INFO);
	cr_assert_eq(next_with(&last, "was closed")->severity, EVENT_INFO);
}

Test(event_log, dead_worker_and_broken_contract__say_so)
{
	new_agents(1);
	struct world_member m = world_member(&w, a, "r", 0, 1), n = world_member(&w, a, "s", 0, 1);
	struct ctl_request request = {.kind = CTL_CLOSE};
	uint64_t last = 0;

	cr_assert_eq(world_close(&w, &m, true), 0);
	cr_assert_eq(next_with(&last, "lost its worker")->severity, EVENT_WARN);
	request.u.close = (struct ctl_close){.sid = n.sid, .broke_contract = true};
	cr_assert_eq(world_request(&w, a, &request), 0);
	cr_assert_eq(next_with(&last, "changed its published memory")->severity, EVENT_ERROR);
}
