/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tables - uthash and utlist as the cores use them. One place for the settings.
 *
 * The hash function is fixed, so a run is repeatable; tables iterate in insertion order. Running
 * out of memory ends the process with a sentence (ipc/base/alloc.h): the sizes are bounded by the
 * limits of the configuration.
 */
#ifndef TH_IPC_BASE_TABLES_H
#define TH_IPC_BASE_TABLES_H

#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"

#define HASH_FUNCTION HASH_JEN
#define uthash_malloc(bytes) th_calloc(1, (bytes))
#define uthash_free(memory, bytes) free(memory)
#define uthash_fatal(text) th_assert_fail(__FILE__, __LINE__, text)
#include <uthash.h>
#include <utlist.h>

/* utlist checks its own use with assert: let it end as all our assertions do. */
#undef assert
#define assert(condition) TH_ASSERT(condition)

#endif
