/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer_pages - see answer_pages.h.
 */
#include "ipc/base/answer_pages.h"

#include <errno.h>
#include <inttypes.h>

int
pages_take(struct pages *pages, struct ctl_page page, uint64_t entries, uint64_t mark,
	struct th_err *err)
{
	const struct ctl_page *ask = &pages->ask;

	if (ask->snapshot != 0 && (page.snapshot != ask->snapshot || mark != pages->mark))
		return th_fail(err, -EPROTO, "a part of another snapshot than was asked for");
	if (entries > PAGES_ENTRIES_MAX - ask->next)
		return th_fail(
			err, -EPROTO, "an answer of more than %u entries", PAGES_ENTRIES_MAX);
	if (page.snapshot == 0 || page.next == 0)
		return 0;
	if (entries == 0 || page.next != ask->next + entries)
		return th_fail(err, -EPROTO,
			"a part of %" PRIu64 " entries after %" PRIu64 " that names %" PRIu64
			" as the next",
			entries, ask->next, page.next);
	pages->ask = page;
	pages->mark = mark;
	return 1;
}

bool
pages_restart(struct pages *pages, int code)
{
	if (code != TH_E_NOT_AVAILABLE || pages->ask.snapshot == 0 ||
		pages->restarts == PAGES_RESTARTS_MAX)
		return false;
	*pages = (struct pages){.restarts = pages->restarts + 1};
	return true;
}
