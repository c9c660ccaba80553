/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save - a file or a directory that is filled beside its place and renamed there, whole or not at
 * all.
 *
 * Each file gets its room on the disk at once, so that a full one is found before anything is
 * moved, and is mapped: who fills it needs no memory for it. Until save_commit there is only a name
 * that begins with ".thctl-" in the same folder; save_end removes it. What commits is on the disk
 * before it has its name. Blocking I/O; the calling thread.
 */
#ifndef TH_TOOLS_FILE_SAVE_H
#define TH_TOOLS_FILE_SAVE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/err.h"

struct save_file {
	char *path; /* owns: where it is until save_commit                                  */
	int fd;     /* owns                                                                 */
	uint64_t bytes;
	uint8_t *map; /* shared with the file; NULL when it has no bytes                    */
};

struct save {
	char *path;   /* owns: where it shall be                                            */
	char *folder; /* owns: the folder of path                                           */
	char *temp;   /* owns: where it is until then                                       */
	bool directory, force;
	volatile sig_atomic_t there; /* temp is                                             */
	uint32_t files_max;
	volatile uint32_t num_files;
	struct save_file *files; /* owns */
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
 * delete. After a failure there is nothing to end.
 */
int save_begin(const char *path, bool directory, bool force, uint32_t files_max, struct th_err *err,
	struct save *ret_save);

/*
 * The next file, of bytes zero bytes. name: within the directory; not used for a file, of which
 * there is one. At most files_max; the file lives as long as save.
 */
int save_create(struct save *save, const char *name, uint64_t bytes, struct th_err *err,
	struct save_file **ret_file);

/* The bytes must lie in the file. */
int save_put(const struct save *save, struct save_file *file, uint64_t offset, const void *data,
	size_t bytes, struct th_err *err);

/* Of bytes that are there: from one place in a file to another one that does not overlap. */
int save_copy(const struct save *save, struct save_file *to, uint64_t to_offset,
	const struct save_file *from, uint64_t from_offset, uint64_t bytes, struct th_err *err);

/* All files to the disk. */
int save_sync(struct save *save, save_progress progress, void *arg, struct th_err *err);

int save_commit(struct save *save, struct th_err *err);
/*
 * Removes what was not committed. The mappings stay until the process ends: where an agent that was
 * not heard of any more may still write, nothing else may come to lie. Legal on a zeroed one.
 */
void save_end(struct save *save);
/* Removes what was not committed, in a signal handler; the process ends then. */
void save_undo(const struct save *save);

#endif
