/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save - writing a file or a directory beside its place and renaming it there, whole or not at all.
 *
 * Until save_commit there is only a name that begins with ".thctl-" in the same folder; save_abort
 * removes it. What commits is on the disk before it has its name. Blocking I/O; the calling thread.
 */
#ifndef TH_TOOLS_SAVE_H
#define TH_TOOLS_SAVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/err.h"

struct save {
	char *path;   /* owns: where it shall be                                            */
	char *folder; /* owns: the folder of path                                           */
	char *temp;   /* owns: where it is until then; NULL: nothing there                  */
	bool directory, force;
};

struct save_range {
	const void *data; /* borrows */
	uint64_t bytes;
};

/* Called between blocks; false stops with -ECANCELED. */
typedef bool (*save_progress)(uint64_t done_bytes, void *arg);

/*
 * Whether save_begin would find the place free, without touching anything: to be asked before work
 * that would be in vain.
 */
int save_check(const char *path, bool directory, bool force, struct th_err *err);

/*
 * Fails when path is there already, unless force. With force a file may replace a file, and a
 * directory one that holds nothing but a checkpoint: whatever else lies there is not ours to
 * delete.
 */
int save_begin(
	const char *path, bool directory, bool force, struct th_err *err, struct save *ret_save);

/* One file with the ranges one behind the other. name: within the directory; NULL for a file. */
int save_write(struct save *save, const char *name, const struct save_range *ranges, size_t count,
	save_progress progress, void *arg, struct th_err *err);

int save_commit(struct save *save, struct th_err *err);
void save_abort(struct save *save); /* after a commit it only frees; legal on a zeroed one */

#endif
