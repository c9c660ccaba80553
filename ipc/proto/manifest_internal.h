/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manifest_internal - what the files of the manifest share: the checks that a row must pass whether
 * it comes from a caller (manifest_build) or off the wire (manifest_decode).
 */
#ifndef TH_IPC_PROTO_MANIFEST_INTERNAL_H
#define TH_IPC_PROTO_MANIFEST_INTERNAL_H

#include <stdbool.h>

#include "ipc/proto/manifest.h"

/* Adds to the sum of all rows' bytes, below MANIFEST_BYTES_MAX. */
int manifest_add_bytes(uint64_t *total, const struct manifest_row *row, struct th_err *err);
/* No name twice. Sorts the array of pointers. */
int manifest_check_unique(const char **names, size_t count, const char *what, struct th_err *err);

/* Small rows stand before large ones, and among themselves by name. */
static inline bool
manifest_row_is_small(const struct manifest_row *row)
{
	return row->bytes < MANIFEST_SMALL_BYTES;
}

#endif
