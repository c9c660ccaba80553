/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint - a safetensors file, or a directory of several with an index, as one set of tensors.
 *
 * Opening reads the headers and checks everything; reading copies the data of all files into one
 * piece of memory, each file's data as they lie in the file. The files are closed in between by
 * nobody: what is read is what was checked. Blocking I/O; the calling thread.
 */
#ifndef TH_TOOLS_CHECKPOINT_H
#define TH_TOOLS_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/err.h"
#include "tools/safetensors.h"

#define CHECKPOINT_INDEX "model.safetensors.index.json"
#define CHECKPOINT_SUFFIX ".safetensors"

struct checkpoint_file {
	char *path; /* owns                                                                  */
	int fd;     /* owns                                                                  */
	struct safetensors_header header;
	char *text; /* owns: the header as it stands in the file                             */
	size_t text_bytes;
	uint64_t memory_offset; /* where its data go in the memory of checkpoint_read        */
};

struct checkpoint {
	uint32_t num_files;
	struct checkpoint_file *files;
	uint32_t count;        /* tensors of all files                                       */
	uint64_t data_bytes;   /* of all tensors                                             */
	uint64_t memory_bytes; /* what checkpoint_read needs                                 */
};

/* Called between blocks of data; false stops with -ECANCELED. */
typedef bool (*checkpoint_progress)(uint64_t done_bytes, void *arg);

/* path: a file, or a directory with an index or with exactly one file. */
int checkpoint_open(const char *path, struct th_err *err, struct checkpoint *ret_checkpoint);
int checkpoint_read(const struct checkpoint *checkpoint, void *memory, checkpoint_progress progress,
	void *arg, struct th_err *err);
void checkpoint_close(struct checkpoint *checkpoint); /* leaves it empty; legal on a zeroed one */

/* True when text ends in ".safetensors" and has something before it. */
bool checkpoint_is_file_name(const char *text);

#endif
