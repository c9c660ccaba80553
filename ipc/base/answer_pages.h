/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer_pages - asking for a long answer part by part (struct ctl_page), and what each part must
 * be.
 *
 * The other side is not believed: every part must be of the snapshot that was begun, and must bring
 * the asker on. One that has lost the snapshot is asked from the beginning, a few times. Pure.
 */
#ifndef TH_IPC_BASE_ANSWER_PAGES_H
#define TH_IPC_BASE_ANSWER_PAGES_H

#include "ipc/base/checked.h"
#include "ipc/base/ctl.h"
#include "ipc/base/err.h"

#define PAGES_RESTARTS_MAX 8u        /* of one question: then its listing changes too fast   */
#define PAGES_ENTRIES_MAX (1u << 24) /* more no server has, and no asker could hold          */

struct pages {               /* starts as { 0 } */
	struct ctl_page ask; /* what to ask for */
	uint64_t mark;       /* the same in all parts: the listing's generation */
	uint32_t restarts;
};

/*
 * A part has come: how many entries are in it, and its mark. 1: ask on; 0: that was the last; or
 * -EPROTO with a sentence.
 */
TH_MUST_USE int pages_take(struct pages *pages, struct ctl_page page, uint64_t entries,
	uint64_t mark, struct th_err *err);

/*
 * The answer was a failure. True: the snapshot is gone, drop all parts and ask again; false: it is
 * the answer.
 */
bool pages_restart(struct pages *pages, int code);

#endif
