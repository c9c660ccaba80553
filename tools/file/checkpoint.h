/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint - a safetensors file, or a directory of several with an index, as one set of tensors.
 *
 * Opening reads the headers, checks everything and maps the files: what is published is the page
 * cache, so a checkpoint may be larger than memory. Nothing here follows the addresses of data: a
 * file that somebody cuts short would kill who does. The agent reads them, by a call that fails
 * then. Blocking I/O; the calling thread.
 */
#ifndef TH_TOOLS_FILE_CHECKPOINT_H
#define TH_TOOLS_FILE_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/err.h"
#include "tools/file/safetensors.h"
#include "tools/file/stamp.h"

#define CHECKPOINT_INDEX "model.safetensors.index.json"
#define CHECKPOINT_SUFFIX ".safetensors"

struct checkpoint_file {
	char *path; /* owns                                                                  */
	int fd;     /* owns                                                                  */
	struct stamp stamp;
	struct safetensors_header header;
	char *text; /* owns: the header as it stands in the file                             */
	size_t text_bytes;
	uint8_t *map;        /* owns: the whole file, for reading                         */
	const uint8_t *data; /* in map, behind the header                                 */
};

struct checkpoint {
	uint32_t num_files;
	struct checkpoint_file *files;
	uint32_t count;      /* tensors of all files                                         */
	uint64_t data_bytes; /* of all tensors                                               */
	uint32_t num_strays; /* safetensors files of the directory that its index leaves out */
	char *stray;         /* owns: the name of one of them                                */
};

/* path: a file, or a directory with an index or with exactly one file. */
int checkpoint_open(const char *path, struct th_err *err, struct checkpoint *ret_checkpoint);
/* 0 while all files are what they were when they were opened; TH_E_CONTRACT with a sentence. */
int checkpoint_check(const struct checkpoint *checkpoint, struct th_err *err);
void checkpoint_close(struct checkpoint *checkpoint); /* leaves it empty; legal on a zeroed one */

/* True when text ends in ".safetensors" and has something before it. */
bool checkpoint_is_file_name(const char *text);

#endif
