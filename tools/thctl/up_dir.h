/* SPDX-License-Identifier: Apache-2.0 */
/*
 * up_dir - the directory that a `thctl up` serves: which it is, who has it, and its end.
 *
 * A lock on the file `up.lock` in it belongs to one `thctl up` for as long as that lives; the file
 * says who it is. Start and end only.
 */
#ifndef TH_TOOLS_THCTL_UP_DIR_H
#define TH_TOOLS_THCTL_UP_DIR_H

#include <limits.h>
#include <stdbool.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"

struct up_dir {
	char path[PATH_MAX]; /* from the root on */
	bool goes;           /* with us: it was not there, or is this user's own */
	int lock;            /* owns; -1 */
};

/*
 * named: -r or THC_AGENT. NULL: as root that of the machine, else the first where a worker looks
 * that this user may use. 0; TH_E_STATE: somebody has it, the sentence says who; TH_E_DENIED,
 * -errno, all with a sentence.
 */
TH_MUST_USE int up_dir_take(const char *named, struct up_dir *ret_dir, struct th_err *err);
/* For those who come later. */
void up_dir_sign(const struct up_dir *dir, const char *server);
/* Nothing is left of it, if it goes with us. A second call does nothing. */
void up_dir_leave(struct up_dir *dir);

#endif
