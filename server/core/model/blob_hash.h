/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blob_hash - the name of a blob: XXH3-128 of its bytes, seed 0. Inline, so the core needs no
 * library.
 */
#ifndef TH_SERVER_CORE_MODEL_BLOB_HASH_H
#define TH_SERVER_CORE_MODEL_BLOB_HASH_H

#include <stddef.h>

#include "ipc/base/ctl.h"

struct th_hash hash_bytes(const void *data, size_t bytes);

#endif
