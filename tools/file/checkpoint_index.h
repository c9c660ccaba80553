/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint_index - model.safetensors.index.json: which tensor lies in which file.
 *
 * The file names come from a downloaded file, so they may not lead out of the directory. Pure.
 */
#ifndef TH_TOOLS_FILE_CHECKPOINT_INDEX_H
#define TH_TOOLS_FILE_CHECKPOINT_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/base/err.h"

struct checkpoint_index_entry {
	char *tensor, *file; /* owned by the index */
};

struct checkpoint_index {
	uint32_t count;
	struct checkpoint_index_entry *entries; /* by tensor name bytewise */
};

int checkpoint_index_parse(
	const char *text, size_t bytes, struct th_err *err, struct checkpoint_index *ret_index);
void checkpoint_index_free(struct checkpoint_index *index); /* leaves it empty */

/* The file of a tensor, NULL when the index does not have it. */
const char *checkpoint_index_find(const struct checkpoint_index *index, const char *tensor);

/* entries in any order. *ret_text is freed by the caller. */
int checkpoint_index_format(const struct checkpoint_index_entry *entries, uint32_t count,
	uint64_t data_bytes, struct th_err *err, char **ret_text, size_t *ret_bytes);

#endif
